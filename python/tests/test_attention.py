# SPDX-License-Identifier: Apache-2.0
"""Attention with several query tokens per sequence, windows, soft caps, sinks, scales and lists of pages."""

import functools

import numpy as np
import pytest
from conftest import all_close, close, rejected

import banyan

HEADS, KV_HEADS, DIM = 4, 2, 16


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def reference(q, k, v, sees, cap=0.0, sinks=None):
    """q [tokens, heads, dim] and keys [kv_heads, keys, dim] of one sequence; sees [tokens, keys] in bool."""
    group = q.shape[1] // k.shape[0]
    logits = np.einsum("thd,hkd->thk", q.astype(np.float64), k.repeat(group, 0)) / np.sqrt(q.shape[2])
    if cap:
        logits = cap * np.tanh(logits / cap)
    weight = np.where(sees[:, None, :], np.exp(logits), 0)
    total = weight.sum(-1) + (0 if sinks is None else np.exp(sinks))
    return np.einsum("thk,hkd->thd", weight, v.repeat(group, 0)) / total[..., None], np.log(total)


def test_rejections():
    q, k = draw(5, HEADS, DIM), draw(2, KV_HEADS, 8, DIM, seed=1)
    call = functools.partial(banyan.attention, q, k, k)
    starts = np.array([0, 3, 5], np.int32)
    rejected("query_start_loc", "int64: it is int32", call, query_start_loc=starts.astype(np.int64))
    rejected("query_start", "the batch is 2", call, query_start_loc=starts, query_start=starts)
    rejected("tree_mask", "number of tokens of q is 5", call, query_start_loc=starts, tree_mask=np.zeros(4, np.uint64))
    rejected("tree_mask", "it is uint64", call, query_start_loc=starts, tree_mask=np.zeros(5, np.uint32))
    rejected("k", "the batch is 3", call, query_start_loc=np.arange(4, dtype=np.int32))
    rejected("sinks", "number of heads of q is 4", call, query_start_loc=starts, sinks=np.zeros(2, np.float32))
    rejected("k_scale", "number of KV heads is 2", call, query_start_loc=starts, k_scale=np.ones(4, np.float32))
    rejected("v_scale", "both one number", call, query_start_loc=starts, k_scale=np.ones(2, np.float32), v_scale=1.0)
    rejected("window", "integer", call, query_start_loc=starts, window="8")
    rejected("last_page_len", "in place of", call, query_start_loc=starts, seq_lens=starts[1:], last_page_len=starts[1:])


def test_a_scale_for_each_key():
    """Codes with their scales behind them, as vLLM keeps them: [pages, page_keys, kv_heads, dim + 4] in bytes."""
    pages = np.random.default_rng(4).integers(-127, 128, (2, 6, 5, KV_HEADS, DIM + 4), np.int8)
    scales = pages.view(np.float32)[..., -1]
    scales[:] = np.abs(draw(2, 6, 5, KV_HEADS, seed=5)) / 64
    k, v = pages[..., :DIM].transpose(0, 1, 3, 2, 4)
    k_scale, v_scale = scales.transpose(0, 1, 3, 2)
    words = {"seq_lens": np.array([13, 4], np.int32), "page_table": np.array([[5, 0, 2], [1, 3, 4]], np.int32)}
    want = banyan.attention(draw(2, HEADS, DIM), k * k_scale[..., None], v * v_scale[..., None], **words)
    got = banyan.attention(draw(2, HEADS, DIM), k, v, k_scale=k_scale, v_scale=v_scale, **words)
    close(got[0], want[0]), close(got[1], want[1])
    for bad in (np.ones(KV_HEADS, np.float32), 1.0, v_scale.copy()):
        with pytest.raises(banyan.ArgumentError, match="k_scale"):
            banyan.attention(draw(2, HEADS, DIM), k, v, k_scale=k_scale, v_scale=bad, **words)


def test_one_array_receives_the_values_alone(lone):
    q, k = draw(2, HEADS, DIM), draw(2, KV_HEADS, 9, DIM, seed=1)
    want, out = banyan.attention(q, k, k)[0], np.empty_like(q)
    for call in (banyan.attention, lone.attention_combine):
        out[:] = 0
        got, lse = call(q, k, k, out=out)
        assert got is out and lse is None
        close(out, want)


def test_lse_is_f32_unless_asked_otherwise(lone):
    q, k = draw(2, HEADS, DIM).astype(np.float16), draw(2, KV_HEADS, 9, DIM, seed=1).astype(np.float16)
    want = banyan.attention(q, k, k, dtype="f32")
    for o, lse in (banyan.attention(q, k, k), lone.attention_combine(q, k, k), lone.attention_combine_init(q, k, k)()):
        assert (o.dtype, lse.dtype) == (np.float16, np.float32)
        np.testing.assert_allclose(o, want[0], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(lse, want[1], rtol=1e-6)
    assert [array.dtype for array in want] == [np.float32] * 2
    assert [array.dtype for array in banyan.attention(q, k, k, dtype="q")] == [np.float16] * 2
    out = np.empty((2, HEADS, DIM), np.float32), np.empty((2, HEADS), np.float16)
    assert banyan.attention(q, k, k, out=out) is out and (out[0] == want[0]).all()
    for settings in ({"dtype": "f64"}, {"dtype": "q", "out": out}):
        with pytest.raises(banyan.ArgumentError, match="dtype"):
            banyan.attention(q, k, k, **settings)


def test_soft_cap_and_sinks():
    q, k, v, sinks = draw(1, HEADS, DIM), draw(1, KV_HEADS, 9, DIM, seed=1), draw(1, KV_HEADS, 9, DIM, seed=2), draw(HEADS)
    want = reference(q, k[0], v[0], np.ones((1, 9), bool), 0.5, sinks)

    def body(comm):
        mine = slice(*((0, 4) if comm.rank == 0 else (4, 9)))
        return comm.attention_combine(q, k[:, :, mine], v[:, :, mine], soft_cap=0.5, sinks=sinks)

    all_close([banyan.attention(q, k, v, soft_cap=0.5, sinks=sinks), *banyan.run(body, 2, start="thread", timeout=60)], want)


@pytest.mark.parametrize("window", [None, 3])
def test_several_queries(window):
    """Two sequences of 3 and 2 query tokens at the end of 8 and 6 keys, over two ranks of 4 positions each."""
    q, k, v = draw(5, HEADS, DIM), draw(2, KV_HEADS, 8, DIM, seed=1), draw(2, KV_HEADS, 8, DIM, seed=2)
    starts, first, lens = np.array([0, 3, 5], np.int32), np.array([5, 4], np.int32), np.array([8, 6], np.int32)
    want = []
    for b in range(2):
        position = first[b] + np.arange(starts[b + 1] - starts[b])[:, None]
        key = np.arange(lens[b])
        sees = (key <= position) & (key > position - (window or 99))
        want.append(reference(q[starts[b] : starts[b + 1]], k[b, :, : lens[b]], v[b, :, : lens[b]], sees))

    def body(comm):
        mine = slice(4 * comm.rank, 4 * comm.rank + 4)
        return comm.attention_combine(
            q,
            k[:, :, mine],
            v[:, :, mine],
            seq_lens=np.clip(lens - 4 * comm.rank, 0, 4).astype(np.int32),
            query_start_loc=starts,
            query_start=first,
            key_start=np.full(2, 4 * comm.rank, np.int32),
            window=window,
        )

    for o, lse in banyan.run(body, ranks=2, start="thread", timeout=60):
        close(o, np.concatenate([part for part, _ in want]))
        close(lse, np.concatenate([part for _, part in want]))


@pytest.mark.parametrize("dtype", [bool, np.uint8])
def test_a_mask_of_keys_leaves_padding_out(dtype):
    q, k, v = draw(5, HEADS, DIM), draw(2, KV_HEADS, 70, DIM, seed=1), draw(2, KV_HEADS, 70, DIM, seed=2)
    starts, first, mask = np.array([0, 2, 5], np.int32), np.array([68, 40], np.int32), np.ones((2, 70), dtype)
    mask[0, :35], mask[1, 20:33], mask[1, 60] = 0, 0, 0
    for x in (k, v):
        x.transpose(0, 2, 1, 3)[mask == 0] = np.nan
    words = {"query_start_loc": starts, "query_start": first, "key_mask": mask, "window": 50}
    o, lse = banyan.attention(q, k, v, **words)
    for b in range(2):
        position, key = first[b] + np.arange(starts[b + 1] - starts[b])[:, None], np.arange(70)
        sees = (key <= position) & (key > position - 50) & (mask[b] != 0)
        want = reference(q[starts[b] : starts[b + 1]], np.nan_to_num(k[b]), np.nan_to_num(v[b]), sees)
        close(o[starts[b] : starts[b + 1]], want[0]), close(lse[starts[b] : starts[b + 1]], want[1])
    none = banyan.attention(q, k[:, :, :0], v[:, :, :0], **{**words, "key_mask": mask[:, :0]})
    assert (none[0] == 0).all() and (none[1] == -np.inf).all()
    for wrong, text in ((mask[:1], "batch"), (mask[:, :69], "has 70 keys"), (mask.astype(np.int32), "bool")):
        with pytest.raises(banyan.ArgumentError, match=text):
            banyan.attention(q, k, v, **{**words, "key_mask": wrong})


def test_scales_and_a_list_of_pages():
    q, k = draw(2, HEADS, DIM), np.random.default_rng(3).integers(-100, 100, (3, KV_HEADS, 4, DIM)).astype(np.int8)
    scale = np.array([0.01, 0.02], np.float32)
    pages, indptr, last = np.array([2, 0, 1], np.int32), np.array([0, 2, 3], np.int32), np.array([3, 4], np.int32)
    o, _ = banyan.attention(
        q, k, k, page_table=pages, page_indptr=indptr, last_page_len=last, k_scale=scale, v_scale=scale
    )
    for b, keys in enumerate([np.concatenate([k[2], k[0][:, :3]], 1), k[1]]):
        floats = keys * scale[:, None, None]
        close(o[b : b + 1], reference(q[b : b + 1], floats, floats, np.ones((1, keys.shape[1]), bool))[0])


def test_a_part_of_queries_lies_apart():
    q, k, v = draw(2, HEADS, DIM), draw(2, KV_HEADS, 9, DIM, seed=1), draw(2, KV_HEADS, 9, DIM, seed=2)
    want = banyan.attention(q, k, v)
    rope = np.ascontiguousarray(q[..., 10:])
    for got in (
        banyan.attention(q[..., :10], k, v, q_rope=q[..., 10:]),
        banyan.attention(q[..., :10].copy(), k, v, q_rope=rope),
    ):
        assert all(np.array_equal(a, b) for a, b in zip(got, want))
    rejected("q_rope", "number of heads of q is 4", banyan.attention, q[..., :10], k, v, q_rope=rope[:, :2])
    rejected("k", "q and q_rope together is 16", banyan.attention, q[..., :10], k[..., :15], v, q_rope=rope)


def flashmla_rows(count):
    """Rows of 656 bytes, and the same numbers in f32: 512 of E4M3 with four scales, and 64 of bf16."""
    random = np.random.default_rng(5)
    codes = random.integers(0, 0x78, (count, 512)).astype(np.uint8) | random.integers(0, 2, (count, 512)).astype(np.uint8) << 7
    exponent, fraction = (codes >> 3 & 15).astype(np.int32), codes & 7
    numbers = np.where(exponent > 0, (1 + fraction / 8) * 2.0 ** (exponent - 7), fraction / 8 * 2.0**-6)
    scales = (2.0 ** random.integers(-12, -8, (count, 4))).astype(np.float32)
    tail = random.standard_normal((count, 64)).astype(np.float32).view(np.uint32) & 0xFFFF0000
    rows = np.concatenate([codes, scales.view(np.uint8), (tail >> 16).astype(np.uint16).view(np.uint8)], 1)
    values = np.where(codes & 0x80, -numbers, numbers) * scales.repeat(128, 1)
    return rows, np.concatenate([values.astype(np.float32), tail.view(np.float32)], 1)


def test_rows_of_flashmla():
    """Two sequences of 5 and 3 keys in pages of 4, over two ranks which have the first and the second page."""
    rows, same = flashmla_rows(16)
    q, pages, plain = draw(2, 8, 576), rows.reshape(4, 1, 4, 656), same.reshape(4, 1, 4, 576)
    tables = [np.array([[2], [0]], np.int32), np.array([[3], [1]], np.int32)]
    lens = [np.array([4, 3], np.int32), np.array([1, 0], np.int32)]

    def body(comm):
        settings = {"seq_lens": lens[comm.rank], "page_table": tables[comm.rank]}
        got = comm.attention_combine(q, pages, None, kv_rows="flashmla_fp8", **settings)
        want = comm.attention_combine(q, plain, plain[..., :512], **settings)
        rope = comm.attention_combine(q[..., :512], pages, None, kv_rows="flashmla_fp8", q_rope=q[..., 512:], **settings)
        return got, want, rope

    for got, want, rope in banyan.run(body, 2, start="thread", timeout=60):
        assert got[0].shape == (2, 8, 512)
        for other in (want, rope):
            np.testing.assert_allclose(got[0], other[0], rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(got[1], other[1], rtol=1e-5, atol=1e-5)
        keys = [np.concatenate([plain[2, :, :4], plain[3, :, :1]], 1), plain[0, :, :3]]
        for b, k in enumerate(keys):
            o, lse = reference(q[b : b + 1], k, k[..., :512], np.ones((1, k.shape[1]), bool))
            close(got[0][b : b + 1], o)
            close(got[1][b : b + 1], lse)
    words = {"kv_rows": "flashmla_fp8", "page_table": tables[0], "seq_lens": lens[0]}
    rejected("k", "a row of FlashMLA is 656", banyan.attention, q, pages[..., :600], None, **words)
    rejected("v", "part of the rows", banyan.attention, q, pages, plain, **words)


@pytest.mark.parametrize("counts", [None, (3, 0, 1), (1, 2, 3)])
@pytest.mark.parametrize("rope", [False, True])
def test_queries_are_gathered_first(counts, rope):
    """Each rank gives its share of the heads, in one call and in an operation that runs three times."""
    shares = counts or (2, 2, 2)
    heads, ends = sum(shares), np.cumsum(shares)
    kv_heads = 2 if heads % 2 == 0 else 1
    q, k = draw(4, heads, DIM), draw(3, 4, kv_heads, 5, DIM, seed=1)
    want = banyan.attention(q, np.concatenate(list(k), 2), np.concatenate(list(k), 2))

    def body(comm):
        mine = q[:, ends[comm.rank] - shares[comm.rank] : ends[comm.rank]]
        keys, settings = k[comm.rank], {"gather": True if counts is None else counts}
        if rope:
            mine, settings["q_rope"] = mine[..., :12], q[..., 12:]
        results = [comm.attention_combine(mine, keys, keys, **settings)]
        bound = np.array(mine)
        op = comm.attention_combine_init(bound, keys, keys, **settings)
        for factor in (0, 1, 1):
            bound[:] = mine * factor
            results.append([array.copy() for array in op()])
        op.free()
        return results[0], *results[2:]

    for results in banyan.run(body, 3, start="thread", timeout=60):
        all_close(results, want)


@pytest.mark.parametrize("scatter", ["none", "tokens"])
def test_keys_are_gathered_instead_of_partials(scatter, monkeypatch):
    q, k = draw(24, HEADS, DIM), draw(3, 1, KV_HEADS, 30, DIM, seed=6)
    words = {"query_start_loc": np.array([0, 24], np.int32), "query_start": np.array([66], np.int32)}

    def attend(comm):
        start = np.array([30 * comm.rank], np.int32)
        op = comm.attention_combine_init(q, k[comm.rank], k[comm.rank], key_start=start, keys_max=30, scatter=scatter, **words)
        return op.info()["algorithm"], np.array(op()[0])

    found = {}
    for way in "queries", "keys":
        monkeypatch.setenv("BANYAN_PASS", way)
        found[way] = banyan.run(attend, ranks=3)
        assert all((algorithm == "pass_kv") == (way == "keys") for algorithm, _ in found[way])
    for (_, partials), (_, keys) in zip(found["queries"], found["keys"], strict=True):
        close(partials, keys)


def test_tokens_of_a_run():
    """An operation of five query tokens, of which a run has three."""
    q, k = draw(5, HEADS, DIM), draw(2, 1, KV_HEADS, 6, DIM, seed=1)
    every = np.concatenate(list(k), 2)
    want = banyan.attention(q, every, every, query_start_loc=np.array([0, 5], np.int32))

    def body(comm):
        starts = np.array([0, 5], np.int32)
        op = comm.attention_combine_init(q, k[comm.rank], k[comm.rank], query_start_loc=starts, tokens=5)
        whole = [array.copy() for array in op()]
        op.outputs[0][:], op.tokens, starts[1] = 7, 3, 3
        part = [array.copy() for array in op()]
        return whole, part

    for whole, part in banyan.run(body, 2, start="thread", timeout=60):
        close(whole[0], want[0])
        close(part[0][:3], want[0][:3])
        assert (part[0][3:] == 7).all()


def test_threads_of_a_rank():
    q, k = draw(2, 8, 64), draw(2, 2, 3000, 64, seed=1)
    found = []
    for threads in 1, 3:
        with banyan.Communicator.from_threads(banyan.Threads(1), 0, threads=threads) as comm:
            assert f"{threads} thread{'s' if threads > 1 else ''} for attention" in comm.describe()
            found.append(comm.attention_combine(q, k, k)[0])
    assert np.array_equal(*found)
    for threads in -1, 1025:
        rejected("threads", "threads", banyan.Communicator.from_threads, banyan.Threads(1), 0, threads=threads)


def test_keys_in_several_memories(tmp_path):
    """Old keys in a mapped file, others in pages, the last in memory and in f32, for several query tokens."""
    tokens, lens = 3, [700, 300, 50]
    q, keys = draw(tokens, HEADS, DIM), draw(1, KV_HEADS, sum(lens), 2 * DIM, seed=1)
    positions = dict(query_start_loc=np.array([0, tokens], np.int32), query_start=np.array([1047], np.int32), window=900)
    whole = banyan.attention(q, keys[..., :DIM], keys[..., DIM:], **positions)
    old, middle, recent = np.split(keys, np.cumsum(lens)[:2], axis=2)
    file = np.memmap(tmp_path / "keys", np.float32, "w+", shape=old.shape)
    file[:] = old
    paged = np.zeros((7, KV_HEADS, 50, 2 * DIM), np.float32)
    table = np.array([[6, 2, 0, 5, 1, 3]], np.int32)
    for place, page in enumerate(table[0]):
        paged[page] = middle[0, :, 50 * place : 50 * place + 50]
    parts = [
        dict(k=file[..., :DIM], v=file[..., DIM:]),
        dict(k=paged[..., :DIM], v=paged[..., DIM:], page_table=table, seq_lens=np.array([300], np.int32)),
        dict(k=recent[..., :DIM], v=recent[..., DIM:]),
    ]
    for got, want in zip(banyan.attention(q, None, None, parts=parts, **positions), whole):
        close(got, want)

    for argument, text, given, words in (
        ("parts", "those of the call are None", keys, {}),
        ("parts", "in each part", None, {"page_table": table}),
        ("parts", 'no "key"', None, {"parts": [dict(parts[2], key=1)]}),
        ("parts", "list of dicts", None, {"parts": [parts]}),
        ("seq_lens", "the parts have 1050", None, {"seq_lens": np.array([1049], np.int32)}),
    ):
        rejected(argument, text, banyan.attention, q, given, given, **{"parts": parts, **positions, **words})


def test_pages_are_left_out_with_a_certificate():
    q, v = draw(1, HEADS, DIM), draw(1, KV_HEADS, 960, DIM, seed=2)
    k = np.repeat(draw(1, KV_HEADS, 120, DIM, seed=3), 8, 2) * 12  # pages of equal keys
    bounds = np.zeros((1, 120, KV_HEADS, banyan.Prune.floats(DIM, 8)), np.float32)
    prune = banyan.Prune(bounds, 1e-3, page_keys=8)
    prune.error, prune.read = np.ones((1, HEADS), np.float32), np.ones((1, HEADS), np.float32)
    prune.page_reads = np.zeros(120, np.uint64)
    for first, last in ((0, 500), (500, 960)):
        lens = np.array([last], np.int32)
        banyan.page_bounds_update(q, k, v, seq_lens=lens, prune=prune, first=np.array([first], np.int32))
    want = banyan.attention(q, k, v)[0]
    for o, _ in (banyan.attention(q, k, v, prune=prune), banyan.run(attend, 1, args=(q, k, v, prune))[0]):
        assert (np.linalg.norm(o - want, axis=-1) <= prune.error + 1e-4).all()
    assert (prune.read < 0.7).all() and (prune.error < 1).all()
    assert prune.page_reads.sum() == round(prune.read[0, :: HEADS // KV_HEADS].sum() * 120)
    prune.epsilon = 0
    assert (banyan.attention(q, k, v, prune=prune)[0] == want).all()
    paged = {"page_table": np.array([[0]], np.int32), "seq_lens": np.array([960], np.int32)}
    for argument, text, wrong, words in (
        ("prune.bounds", r"Prune.floats", banyan.Prune(bounds[..., :-1].copy(), page_keys=8), {}),
        ("prune", "it is a banyan.Prune", {}, {}),
        ("prune.bounds", "prune.bounds is NULL", banyan.Prune(None, error=prune.error, page_keys=8), {}),
        ("prune.page_keys", "with a page table it is None", banyan.Prune(None, page_keys=8), paged),
    ):
        rejected(argument, text, banyan.attention, q, k, v, prune=wrong, **words)
    rejected("prune.bounds", "is NULL", banyan.page_bounds_update, q, k, v)


def attend(comm, q, k, v, prune):
    return comm.attention_combine(q, k, v, prune=prune)
