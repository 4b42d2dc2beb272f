#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pruning on the keys of a real model: what share of the pages is read, how far results are from those of all keys,
what the certificate says of that, and the time: the table of docs/certain.md.

    python python/bench/bench_prune.py --tokens 2000 8000
    python python/bench/bench_prune.py --peaked --tokens 8192 32768 131072
    python python/bench/bench_prune.py --bounds --tokens 8000

Queries are those of the last token, in all layers of the model of examples/generate.py. Its text is
examples/constitution.txt, LICENSE and README.md. --cache keeps keys in a folder, since 8,000 tokens take minutes.
--peaked: random keys instead, of which one run of 64 in 64 has logits about 11 above those of the others.
--bounds: the share of pages that other kinds of bounds would read, in double precision, without the library.
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


def alike(k, page, keys):
    """Orders keys so that those of a page are alike: halves along the element that varies most, again and again."""
    if len(keys) <= page:
        return keys
    keys = keys[np.argsort(k[keys, k[keys].var(0).argmax()])]
    half = -(-len(keys) // page) // 2 * page
    return np.concatenate([alike(k, page, keys[:half]), alike(k, page, keys[half:])])


def share(bound, mass, epsilon):
    """The share of pages to read by logs of bounds and true masses, [heads, pages], in the library's order."""
    order = np.argsort(-(bound - bound.max(1, keepdims=True)).max(0))
    with np.errstate(over="ignore"):
        bound, mass = (np.exp(x[:, order] - mass.max(1, keepdims=True)) for x in (bound, mass))
    rest, read = bound[:, ::-1].cumsum(1)[:, ::-1], mass.cumsum(1) - mass
    return (rest > epsilon * read).any(0).mean()


def bounds(q, k, page):
    """Yields a name, logs of bounds, and logs of masses, for scaled queries of a KV head. Two levels: only the upper."""
    dim, length, at = k.shape[1], np.linalg.norm(q, axis=1, keepdims=True), np.arange(0, len(k), page)
    counts = np.diff(at, append=len(k))

    def boxes(q, k, wide=1):
        high, low = (f.reduceat(k, at[::wide]).repeat(wide, 0)[: len(at)] for f in (np.maximum, np.minimum))
        return np.maximum(q, 0) @ high.T + np.minimum(q, 0) @ low.T + np.log(counts)

    def codes(k, bits):
        step = abs(k).max(1, keepdims=True) / (2 ** (bits - 1) - 1)
        near = np.round(k / step) * step
        return np.logaddexp.reduceat(q @ near.T + length * np.linalg.norm(k - near, axis=1), at, axis=1)

    mean = np.add.reduceat(k, at) / counts[:, None]
    radius = np.maximum.reduceat(np.linalg.norm(k - mean.repeat(counts, 0), axis=1), at)
    balls = q @ mean.T + length * radius + np.log(counts)
    box, mass = boxes(q, k), np.logaddexp.reduceat(q @ k.T, at, axis=1)
    yield "boxes", box, mass
    yield "balls", balls, mass
    yield "smaller", np.minimum(box, balls), mass
    yield "centred", boxes(q, k - k.mean(0)) + q @ k.mean(0)[:, None], mass
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((dim, dim)))[0]
    yield "random", boxes(q @ turn, k @ turn), mass
    turn = (-1.0) ** np.array([[bin(i & j).count("1") for i in range(dim)] for j in range(dim)]) / dim**0.5
    yield "Hadamard", boxes(q @ turn, k @ turn), mass
    near = k[alike(k, page, np.arange(len(k)))]
    own = np.logaddexp.reduceat(q @ near.T, at, axis=1)
    yield "sorted", boxes(q, near), own
    yield "levels", boxes(q, k, 4), mass
    yield "4 bits", codes(k, 4), mass
    yield "8 bits", codes(k, 8), mass
    yield "and sorted", codes(near, 8), own
    yield "mass", mass, mass


def measure_bounds(q, k):
    shares, group, epsilons = {}, q.shape[1] // k.shape[1], (1e-1, 1e-2)
    for layer, head, page in itertools.product(range(len(q)), range(k.shape[1]), (4, 16)):
        rows = q[layer, head * group : (head + 1) * group].astype(float) / q.shape[2] ** 0.5
        for name, *logs in bounds(rows, k[layer, head].astype(float), page):
            shares.setdefault(name, []).append([share(*logs, epsilon) for epsilon in epsilons])
    print("| keys, epsilon | " + " | ".join(shares) + " |\n" + "|---" * (1 + len(shares)) + "|")
    means = [np.reshape(each, (-1, 4)).mean(0) for each in shares.values()]
    for row, (page, epsilon) in enumerate(itertools.product((4, 16), epsilons)):
        print(f"| {page}, {epsilon:.0e} | " + " | ".join(f"{mean[row]:.3f}" for mean in means) + " |")


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
    parser.add_argument("--bounds", action="store_true")
    options = parser.parse_args()
    if options.peaked:
        measure_peaked(options)
        return
    if not options.bounds:
        print("| tokens | epsilon | pages read | error | worst | certified | us |\n" + "|---" * 7 + "|")
    for tokens in options.tokens:
        file = options.cache / f"prune_keys_{tokens}.npz"
        if not file.exists():
            banyan.run(compute, 1, args=(tokens, file), timeout=3600)
        keys = np.load(file)
        q, k, v = (np.ascontiguousarray(keys[name], np.float32) for name in "qkv")
        if options.bounds:
            measure_bounds(q, k)
            continue
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
