# SPDX-License-Identifier: Apache-2.0
"""Attention of one rank, next to loops of reads and of FMA and to torch."""
import os
import statistics

from frame import DECODE, DTYPES, Times, json_of, table, timed

TORCH_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def alone(options, dtype, **shape):
    """A round of attention and of the loops beside it."""
    words = [word for name, value in shape.items() for word in (f"--{name.replace('_', '-')}", value)]
    return json_of([DECODE, "--kernel-only", "--dtype", dtype, "--threads", options.threads, "--repeat", 3, *words])


def torch_forms(options, dtype):
    """Both forms of torch, which must agree, over random values of the shape; none without torch."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # huge pages, as in the tools
    try:
        import torch
    except ImportError:
        return {}
    if dtype not in TORCH_NAMES:
        return {}
    kind = getattr(torch, TORCH_NAMES[dtype])
    attend = torch.nn.functional.scaled_dot_product_attention
    torch.set_num_threads(options.threads)
    group = options.heads // options.kv_heads
    q = torch.randn(options.batch, options.heads, 1, options.head_dim, dtype=kind)
    k = torch.randn(options.batch, options.kv_heads, options.keys, options.head_dim, dtype=kind)
    v = k[..., :512] if options.head_dim == 576 else torch.randn_like(k)
    folded_q = q.view(options.batch, options.kv_heads, group, options.head_dim)
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 5):
        plain = lambda: attend(q, k, v, enable_gqa=True)  # noqa: E731
    else:
        plain = lambda: attend(q, *(x.repeat_interleave(group, 1) for x in (k, v)))  # noqa: E731
    folded = lambda: attend(folded_q, k, v).reshape(options.batch, options.heads, 1, -1)  # noqa: E731
    if (plain() - folded()).abs().max() > 0.02 * v.abs().max():
        raise SystemExit("both forms of torch differ")
    return {"torch": timed(plain), "torch, folded": timed(folded)}


def attention(options):
    def rows():
        shape = {name: getattr(options, name) for name in ("batch", "heads", "kv_heads", "head_dim")}
        for dtype in options.dtypes:
            def banyan(dtype=dtype):
                one = alone(options, dtype, tokens=options.keys, **shape)
                return {"banyan": one["attention_us"], "loop of reads": one["read_us"]}

            times = Times()
            times.turns(dtype, {"banyan": banyan, **torch_forms(options, dtype)}, options.rounds)
            yield [dtype, *(times(dtype, name) for name in head[1:])]

    head = ["KV, us", "banyan", "loop of reads", "torch", "torch, folded"]
    table(options, head, rows())


PROMPTS = (128, 2048), (512, 512), (512, 8192), (2048, 2048)


def prefill(options):
    """Ratios of rounds: torch and banyan take turns. The better of torch's forms counts: enable_gqa, and repeated heads."""
    import torch

    attend, group = torch.nn.functional.scaled_dot_product_attention, options.heads // options.kv_heads
    torch.set_num_threads(options.threads)

    def row(dtype, queries, keys):
        kind = getattr(torch, TORCH_NAMES[dtype])
        q = torch.randn(1, options.heads, queries, options.head_dim, dtype=kind)
        k, v = torch.randn(2, 1, options.kv_heads, keys, options.head_dim, dtype=kind)
        mask = None if queries == keys else torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        wide = [x.repeat_interleave(group, 1) for x in (k, v)]

        def banyan():
            one = alone(options, dtype, tokens=keys, queries=queries, heads=options.heads, kv_heads=options.kv_heads,
                        head_dim=options.head_dim)
            return {"banyan": one["attention_us"], "fma": one["fma_gflops"], "dot": one["dot_gflops"],
                    "flops": one["gflops"] * one["attention_us"]}

        times = Times()
        times.turns(dtype, {"banyan": banyan,
                            "gqa": timed(lambda: attend(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)),
                            "repeated": timed(lambda: attend(q, *wide, attn_mask=mask, is_causal=mask is None))},
                    options.rounds, warm_up=1)
        us, rival = times(dtype, "banyan"), min(times(dtype, name) for name in ("gqa", "repeated"))
        speed, fma, dot = times(dtype, "flops") / us, times(dtype, "fma", max), times(dtype, "dot", max)
        return [dtype, f"{queries} x {keys}", us, rival, rival / us, speed, speed / fma,
                speed / dot if dot and dtype == "bf16" else None]

    table(options, ["type", "queries x keys", "banyan, us", "torch, us", "torch / banyan", "Gflop/s", "of FMA", "of dots"],
          (row(dtype, *prompt) for dtype in options.dtypes for prompt in PROMPTS))


def layouts(ranks, keys):
    """Name, and for each rank the positions of its keys and the words that describe them to attention."""
    import banyan
    import numpy as np

    for kind, block in ("ranges", 0), ("blocks", 64), ("blocks", 16), ("zigzag", 64):
        shards, at = [], np.arange(keys)
        if kind != "zigzag":
            rule = banyan.Ownership(kind, ranks, block=max(block, 1), tokens=0 if block else keys)
        for rank in range(ranks):
            if kind == "zigzag":
                pattern = [rank, 2 * ranks - 1 - rank]
                words = {"key_block": block, "key_stride": 2 * ranks * block, "key_pattern": pattern}
                mine, start = np.isin(at // block % (2 * ranks), pattern), 0
            else:
                start, key_block, key_stride = rule.queries(rank)
                words, mine = {"key_block": key_block, "key_stride": key_stride}, rule.of_tokens(at)[0] == rank
            shards.append((np.flatnonzero(mine), {**words, "key_start": np.array([start], np.int32)}))
        yield f"{kind} of {block}" if block else kind, shards


def shares(options):
    import banyan
    import numpy as np

    def us(queries, keys, shard, words):
        q = np.ones((queries, options.heads, options.head_dim), np.float32)
        k, v = np.ones((2, 1, options.kv_heads, max(len(shard), 1), options.head_dim), np.float32)
        words = {"seq_lens": np.array([len(shard)], np.int32), "query_start": np.array([keys - queries], np.int32),
                 "query_start_loc": np.array([0, queries], np.int32), **words}
        return timed(lambda: banyan.attention(q, k, v, **words))()

    def rows():
        for queries, keys in (2048, 2048), (512, 8192), (8192, 8192):
            for ranks in options.ranks:
                for name, shards in layouts(ranks, keys):
                    pairs = [(queries - np.maximum(at - (keys - queries), 0)).sum() for at, _ in shards]
                    spent = [min(us(queries, keys, *shard) for _ in range(options.rounds)) for shard in shards]
                    yield [f"{queries} x {keys}", ranks, name, *(max(one) / (sum(one) / ranks) for one in (pairs, spent))]

    table(options, ["queries x keys", "ranks", "keys by", "pairs of the slowest / mean", "its time / mean"], rows())


def shapes(options):
    """The limit is the lesser of two speeds: that of the loop of reads, and that at which a loop of FMA could compute."""
    def row(dtype, group, dim, batch):
        tokens = (128 << 20) // (2 * 8 * dim * DTYPES[dtype] * batch)
        ones = [alone(options, dtype, batch=batch, heads=8 * group, kv_heads=8, head_dim=dim, tokens=tokens)
                for _ in range(options.rounds)]
        read, ratio = (statistics.median(one[key] for one in ones) for key in ("read_gbps", "ratio"))
        fma = max(one["fma_gflops"] for one in ones) / (2 * group / DTYPES[dtype])
        return [dtype, group, dim, batch, read, ratio, fma, "read" if read <= fma else "FMA",
                ratio * read / min(read, fma)]

    table(options, ["KV", "group", "head_dim", "batch", "read GB/s", "of that", "FMA GB/s", "limit", "of the limit"],
          (row(dtype, group, dim, batch) for dtype in options.dtypes for group in (1, 4, 8)
           for dim in options.dims for batch in (1, 16)))


def mla(options):
    def rows():
        for dtype in DTYPES:
            shares = []
            for keys in {"tokens": 8192}, {"tokens": 2048, "spread": 65536}:
                ones = [alone(options, dtype, heads=128, kv_heads=1, head_dim=576, **keys) for _ in range(options.rounds)]
                shares.append(statistics.median(one["gflops"] for one in ones) / max(one["fma_gflops"] for one in ones))
            yield [dtype, *shares]

    table(options, ["KV", "mla, of a loop of FMA", "sparse"], rows())
