#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pruning on the keys of a real model: what share of the pages is read, how far results are from those of all keys,
what the certificate says of that, and the time: the table of docs/certain.md.

    python python/bench/bench_prune.py --tokens 2000 8000
    python python/bench/bench_prune.py --peaked --tokens 8192 32768 131072

Queries are those of the last token, in all layers of the model of examples/generate.py. Its text is
LICENSE, README.md and docs/python.md, or --text. --cache keeps keys in a folder, since 8,000 tokens take minutes.
--peaked: random keys instead, of which one run of 64 in 64 has logits about 11 above those of the others.
"""

import argparse
import itertools
import pathlib
import sys
import time

import numpy as np

import banyan

ROOT = pathlib.Path(__file__).resolve().parents[2]
EPSILONS = (1e-1, 1e-2, 1e-3, 1e-4)


def compute(comm, tokens, texts, file):
    """Writes q [layers, heads, dim] of the last of `tokens` tokens, and k, v [layers, kv_heads, tokens, dim]."""
    sys.path.insert(0, str(ROOT / "examples"))
    from smollm import Model, Session

    model = Model()
    ids = model.encode("".join(text.read_text() for text in texts))[:tokens]
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


def peaked(tokens, dim, group, dtype, kv_heads=2):
    """One layer of random keys. The heads of a KV head attend to the same keys: those along the axis of its queries."""
    draw = np.random.default_rng(tokens + dim + group)
    axis, q = draw.standard_normal((kv_heads, 1, dim)), draw.standard_normal((kv_heads, group, dim))
    k, v = (draw.standard_normal((1, kv_heads, tokens, dim), np.float32) for _ in range(2))
    hot = np.repeat(draw.permutation(tokens // 64) < tokens // 4096, 64)
    k[0][:, hot] += (12 / dim**0.5 * axis).astype(np.float32)
    q = (0.9 * axis + 0.4 * q).reshape(1, kv_heads * group, dim).astype(np.float32)
    return q, k.astype(dtype), v.astype(dtype)


def measure_peaked(options):
    """Prints one row per shape: attention to all keys, and to pages of 16."""
    head = "tokens | head_dim | group | type | all, us | pruned, us | ratio | pages read | error | certified"
    print(f"| {head} |\n" + "|---" * 10 + "|")
    for tokens, dim, group, dtype in itertools.product(options.tokens, (64, 128), (4, 8), (np.float32, np.float16)):
        one = peaked(tokens, dim, group, dtype)
        whole = measure(*one, options.repeat)
        pruned = measure(*one, options.repeat, page_keys=16, epsilon=1e-2)
        print(
            f"| {tokens:,} | {dim} | {group} | {np.dtype(dtype).name} | {whole['us']:.0f} | {pruned['us']:.0f} | "
            f"{whole['us'] / pruned['us']:.1f} | {pruned['read']:.3f} | {pruned['error']:.1e} | {pruned['bound']:.1e} |",
            flush=True,
        )


def exact(q, k, v):
    """In double precision."""
    rows, group = [], len(q) // len(k)
    for head, row in enumerate(q.astype(float)):
        logits = k[head // group].astype(float) @ row / q.shape[-1] ** 0.5
        weights = np.exp(logits - logits.max())
        rows.append(weights @ v[head // group].astype(float) / weights.sum())
    return np.array(rows)


def measure(q, k, v, repeat, page_keys=0, **how):
    """Means over layers and heads; errors are relative to the length of the exact row."""
    times, read, off, bound = [], [], [], []
    for layer in range(len(q)):
        pages = -(-k.shape[2] // page_keys) if page_keys else 0
        prune, one = None, (q[layer][None], k[layer][None], v[layer][None])
        if page_keys:
            floats = banyan.Prune.floats(k.shape[3], page_keys)
            prune = banyan.Prune(
                np.zeros((1, pages, k.shape[1], floats), np.float32),
                page_keys=page_keys,
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
    parser.add_argument("--peaked", action="store_true")
    pages = [ROOT / name for name in ("LICENSE", "README.md", "docs/python.md")]
    parser.add_argument("--text", type=pathlib.Path, nargs="+", default=pages)
    options = parser.parse_args()
    if options.peaked:
        measure_peaked(options)
        return
    print("| tokens | epsilon | pages read | error | worst | certified | us |\n" + "|---" * 7 + "|")
    for tokens in options.tokens:
        file = options.cache / f"prune_keys_{tokens}.npz"
        if not file.exists():
            banyan.run(compute, 1, args=(tokens, options.text, file), timeout=3600)
        keys = np.load(file)
        q, k, v = (np.ascontiguousarray(keys[name], np.float32) for name in "qkv")
        cases = [("no pruning", {})]
        cases += [(f"{e:.0e}", {"page_keys": 16, "epsilon": e}) for e in EPSILONS]
        cases += [("top 32 pages", {"page_keys": 16, "top_pages": 32})]
        for words, case in cases:
            one = measure(q, k, v, options.repeat, **case)
            print(
                f"| {tokens:,} | {words} | {one['read']:.3f} | {one['error']:.1e} | {one['worst']:.1e} | "
                f"{one['bound']:.1e} | {one['us']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
