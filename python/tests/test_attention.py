# SPDX-License-Identifier: Apache-2.0
"""Attention with several query tokens per sequence, windows, soft caps, sinks, scales and lists of pages."""

import numpy as np
import pytest

import banyan

HEADS, KV_HEADS, DIM = 4, 2, 16


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(got, want):
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=2e-5, atol=2e-5)


def reference(q, k, v, sees, cap=0.0, sinks=None):
    """q [tokens, heads, dim] and keys [kv_heads, keys, dim] of one sequence; sees [tokens, keys] in bool."""
    group = q.shape[1] // k.shape[0]
    logits = np.einsum("thd,hkd->thk", q.astype(np.float64), k.repeat(group, 0)) / np.sqrt(q.shape[2])
    if cap:
        logits = cap * np.tanh(logits / cap)
    weight = np.where(sees[:, None, :], np.exp(logits), 0)
    total = weight.sum(-1) + (0 if sinks is None else np.exp(sinks))
    return np.einsum("thk,hkd->thd", weight, v.repeat(group, 0)) / total[..., None], np.log(total)


def test_refusals():
    q, k = draw(5, HEADS, DIM), draw(2, KV_HEADS, 8, DIM, seed=1)

    def refused(argument, text, **settings):
        with pytest.raises(banyan.ArgumentError, match=text) as caught:
            banyan.attention(q, k, k, **settings)
        assert caught.value.argument == argument

    starts = np.array([0, 3, 5], np.int32)
    refused("query_start_loc", "int64: it is int32", query_start_loc=starts.astype(np.int64))
    refused("query_start", "the batch is 2", query_start_loc=starts, query_start=starts)
    refused("tree_mask", "number of tokens of q is 5", query_start_loc=starts, tree_mask=np.zeros(4, np.uint32))
    refused("k", "the batch is 3", query_start_loc=np.arange(4, dtype=np.int32))
    refused("sinks", "number of heads of q is 4", query_start_loc=starts, sinks=np.zeros(2, np.float32))
    refused("k_scale", "number of KV heads is 2", query_start_loc=starts, k_scale=np.ones(4, np.float32))
    refused("v_scale", "both one number", query_start_loc=starts, k_scale=np.ones(2, np.float32), v_scale=1.0)
    refused("window", "integer", query_start_loc=starts, window="8")
    refused("last_page_len", "in place of", query_start_loc=starts, seq_lens=starts[1:], last_page_len=starts[1:])


def test_soft_cap_and_sinks():
    q, k, v, sinks = draw(1, HEADS, DIM), draw(1, KV_HEADS, 9, DIM, seed=1), draw(1, KV_HEADS, 9, DIM, seed=2), draw(HEADS)
    want = reference(q, k[0], v[0], np.ones((1, 9), bool), 0.5, sinks)

    def body(comm):
        mine = slice(*((0, 4) if comm.rank == 0 else (4, 9)))
        return comm.attention_combine(q, k[:, :, mine], v[:, :, mine], soft_cap=0.5, sinks=sinks)

    for o, lse in [banyan.attention(q, k, v, soft_cap=0.5, sinks=sinks), *banyan.run(body, 2, start="thread", timeout=60)]:
        close(o, want[0])
        close(lse, want[1])


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
