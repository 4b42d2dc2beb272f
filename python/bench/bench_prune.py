#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pruning on the keys of a real model: what share of the pages is read, how far results are from those of all keys,
what the certificate says of that, and the time: the table of docs/certain.md.

    python python/bench/bench_prune.py --tokens 2000 8000

Queries are those of the last token, in all layers of the model of examples/generate.py. Its text is
examples/constitution.txt, LICENSE and README.md. --cache keeps keys in a folder, since 8,000 tokens take minutes.
"""

import argparse
import pathlib
import sys
import time

import numpy as np

import banyan

ROOT = pathlib.Path(__file__).resolve().parents[2]
EPSILONS = (1e-1, 1e-2, 1e-3, 1e-4)


def compute(comm, tokens, file):
    """Writes q [layers, heads, dim] of the last of `tokens` tokens, and k, v [layers, kv_heads, tokens, dim]."""
    sys.path.insert(0, str(ROOT / "examples"))
    from smollm import Model, Session

    model = Model()
    text = "".join((ROOT / name).read_text() for name in ("examples/constitution.txt", "LICENSE", "README.md"))
    ids = model.encode(text)[:tokens]
    session = Session(comm, model, tokens)
    session.prefill(ids[:-1])
    session.ids.append(ids[-1])
    queries, fused = [], session._fused

    def record(layer):
        queries.append(session.q[0].copy())
        return fused(layer)

    session._fused = record
    session.step()
    np.savez(file, q=np.array(queries), k=session.k[:, 0], v=session.v[:, 0])


def exact(q, k, v):
    """In double precision."""
    group = len(q) // len(k)
    logits = np.einsum("hd,htd->ht", q.astype(float), np.repeat(k, group, 0).astype(float)) / q.shape[-1] ** 0.5
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return np.einsum("ht,htd->hd", weights, np.repeat(v, group, 0).astype(float)) / weights.sum(1)[:, None]


def measure(q, k, v, repeat, page_keys=0, codes=False, **how):
    """Means over layers and heads; errors are relative to the length of the exact row."""
    times, read, off, bound = [], [], [], []
    for layer in range(len(q)):
        pages = -(-k.shape[2] // page_keys) if page_keys else 0
        prune, one = None, (q[layer][None], k[layer][None], v[layer][None])
        if page_keys:
            floats = banyan.Prune.floats(k.shape[3], page_keys, codes)
            prune = banyan.Prune(
                np.zeros((1, pages, k.shape[1], floats), np.float32),
                page_keys=page_keys,
                codes=codes,
                error=np.zeros((1, q.shape[1]), np.float32),
                read=np.zeros((1, q.shape[1]), np.float32),
                **how,
            )
            banyan.page_bounds_update(*one, prune=prune)
        out = np.zeros_like(one[0]), np.zeros((1, q.shape[1]), np.float32)
        for _ in range(repeat):
            began = time.perf_counter()
            banyan.attention(*one, prune=prune, out=out)
            times.append(time.perf_counter() - began)
        want = exact(q[layer], k[layer], v[layer])
        length = np.linalg.norm(want, axis=1)
        off.append(np.linalg.norm(out[0][0] - want, axis=1) / length)
        if prune:
            read.append(prune.read.mean())
            bound.append(prune.error[0] / length)
            assert (off[-1] <= bound[-1] + 1e-4).all(), "an error above its bound"
    fastest = np.reshape(times, (-1, repeat)).min(1)
    figures = {"us": fastest.mean() * 1e6, "error": np.mean(off), "worst": np.max(off)}
    return {**figures, "read": np.mean(read) if read else 1.0, "bound": np.mean(bound) if bound else 0.0}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[2000, 8000])
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args()
    print("| tokens | bounds | epsilon | pages read | error | worst | certified | us |\n" + "|---" * 8 + "|")
    for tokens in options.tokens:
        file = options.cache / f"prune_keys_{tokens}.npz"
        if not file.exists():
            banyan.run(compute, 1, args=(tokens, file), timeout=3600)
        keys = np.load(file)
        q, k, v = (np.ascontiguousarray(keys[name], np.float32) for name in "qkv")
        cases = [("none", "", {})]
        cases += [("boxes", f"{e:.0e}", {"page_keys": 16, "epsilon": e}) for e in EPSILONS]
        cases += [("codes", f"{e:.0e}", {"page_keys": 16, "codes": True, "epsilon": e}) for e in EPSILONS]
        cases += [("codes", "top 32 pages", {"page_keys": 16, "codes": True, "top_pages": 32})]
        for name, words, case in cases:
            one = measure(q, k, v, options.repeat, **case)
            print(
                f"| {tokens:,} | {name} | {words} | {one['read']:.3f} | {one['error']:.1e} | {one['worst']:.1e} | "
                f"{one['bound']:.1e} | {one['us']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
