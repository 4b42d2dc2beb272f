# SPDX-License-Identifier: Apache-2.0
"""Pruning: what share of the pages is read, how far results are from those of all keys, what the certificate says of
that, and the time: the tables of docs/certain.md."""
import itertools
import os
import pathlib
import sys

from frame import TOP, Times, cell, table, timed

EPSILONS = (1e-1, 1e-2, 1e-3, 1e-4)
TEXTS = "LICENSE", "README.md", "docs/python.md"


def compute(comm, tokens, texts, file):
    """Writes q [layers, heads, dim] of the last of `tokens` tokens, and k, v [layers, kv_heads, tokens, dim]."""
    import numpy as np

    sys.path.insert(0, os.path.join(TOP, "examples"))
    from smollm import Model, Session

    model = Model()
    ids = model.encode("".join(text.read_text(encoding="utf-8") for text in texts))[:tokens]
    session = Session(comm, model, tokens)
    session.prefill(ids[:-1])
    session.ids.append(ids[-1])
    queries = []

    def record(layer):  # the queries of the layer before
        queries.extend([session.q[0].copy()] if layer > 0 else [])

    session.step(record)
    queries.append(session.q[0].copy())
    np.savez(file, q=np.array(queries), k=session.k[:, 0], v=session.v[:, 0])


def drawn(tokens, dim, group, dtype, kv_heads=2):
    """One layer of random keys. The heads of a KV head attend to the same keys: those along the axis of its queries."""
    import numpy as np

    draw = np.random.default_rng(tokens + dim + group)
    axis, q = draw.standard_normal((kv_heads, 1, dim)), draw.standard_normal((kv_heads, group, dim))
    k, v = (draw.standard_normal((1, kv_heads, tokens, dim), np.float32) for _ in range(2))
    hot = np.repeat(draw.permutation(tokens // 64) < tokens // 4096, 64)
    k[0][:, hot] += (12 / dim**0.5 * axis).astype(np.float32)
    q = (0.9 * axis + 0.4 * q).reshape(1, kv_heads * group, dim).astype(np.float32)
    return q, k.astype(dtype), v.astype(dtype)


def exact(q, k, v):
    """In double precision."""
    import numpy as np

    rows, group = [], len(q) // len(k)
    for head, row in enumerate(q.astype(float)):
        logits = k[head // group].astype(float) @ row / q.shape[-1] ** 0.5
        weights = np.exp(logits - logits.max())
        rows.append(weights @ v[head // group].astype(float) / weights.sum())
    return np.array(rows)


def measure(rounds, q, k, v, page_keys=0, **how):
    """Means over layers and heads; errors are relative to the length of the exact row."""
    import banyan
    import numpy as np

    times, read, off, bound = Times(), [], [], []
    for layer in range(len(q)):
        pages = -(-k.shape[2] // page_keys) if page_keys else 0
        prune, one = None, (q[layer][None], k[layer][None], v[layer][None])
        if page_keys:
            floats = banyan.Prune.floats(k.shape[3], page_keys)
            rows = [np.zeros((1, q.shape[1]), np.float32) for _ in range(2)]
            prune = banyan.Prune(np.zeros((1, pages, k.shape[1], floats), np.float32), page_keys=page_keys,
                                 error=rows[0], read=rows[1], **how)
            banyan.page_bounds_update(*one, prune=prune)
        out = np.zeros_like(one[0]), np.zeros((1, q.shape[1]), np.float32)
        times.turns(layer, {"us": timed(lambda: banyan.attention(*one, prune=prune, out=out))}, rounds)
        want = exact(q[layer], k[layer], v[layer])
        length = np.linalg.norm(want, axis=1)
        off.append(np.linalg.norm(out[0][0] - want, axis=1) / length)
        if prune:
            read.append(prune.read.mean())
            bound.append(prune.error[0] / length)
            assert (off[-1] <= bound[-1] + 1e-4).all(), "an error above its bound"
    return {"us": np.mean([times(layer, "us", min) for layer in range(len(q))]), "error": np.mean(off), "worst": np.max(off),
            "read": np.mean(read) if read else 1.0, "bound": np.mean(bound) if bound else 0.0}


def small(*values):
    return [f"{value:.1e}" for value in values]


def prune(options):
    """Queries are those of the last token, in all layers of the model of examples/generate.py."""
    import banyan
    import numpy as np

    def rows():
        texts = options.text or [pathlib.Path(TOP, name) for name in TEXTS]
        for tokens in options.tokens or (2000, 8000):
            file = options.cache / f"prune_keys_{tokens}.npz"
            if not file.exists():
                banyan.run(compute, 1, args=(tokens, texts, file), timeout=3600)
            keys = np.load(file)
            q, k, v = (np.ascontiguousarray(keys[name], np.float32) for name in "qkv")
            cases = [("no pruning", {}), *((f"{e:.0e}", {"page_keys": 16, "epsilon": e}) for e in EPSILONS),
                     ("top 32 pages", {"page_keys": 16, "top_pages": 32})]
            for words, case in cases:
                one = measure(options.rounds, q, k, v, **case)
                yield [f"{tokens:,}", words, cell(one["read"], 3), *small(one["error"], one["worst"], one["bound"]),
                       cell(one["us"], 0)]

    table(options, ["tokens", "epsilon", "pages read", "error", "worst", "certified", "us"], rows())


def peaked(options):
    """Random keys, of which one run of 64 in 64 has logits about 11 above those of the others."""
    import numpy as np

    def rows():
        shapes = itertools.product(options.tokens or (2000, 8000), (64, 128), (4, 8), (np.float32, np.float16))
        for tokens, dim, group, dtype in shapes:
            keys = drawn(tokens, dim, group, dtype)
            whole = measure(options.rounds, *keys)
            one = measure(options.rounds, *keys, page_keys=16, epsilon=1e-2)
            yield [f"{tokens:,}", dim, group, np.dtype(dtype).name, *(cell(each["us"], 0) for each in (whole, one)),
                   cell(whole["us"] / one["us"], 1), cell(one["read"], 3), *small(one["error"], one["bound"])]

    table(options, ["tokens", "head_dim", "group", "type", "all, us", "pruned, us", "ratio", "pages read", "error", "certified"],
          rows())
