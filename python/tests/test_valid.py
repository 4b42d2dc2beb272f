# SPDX-License-Identifier: Apache-2.0
"""Valid rows, numbers of tokens that differ from run to run, presets of kernels, eight-bit floats."""

import functools

import numpy as np
import pytest
from conftest import all_close, close, merged, partials, rejected, run

import banyan

SHAPE = (6, 4, 16)


def valid_partials(rank, valid):
    """Returns partials whose masked rows are NaN, so that a read of one shows in the result."""
    o, lse = partials(rank, SHAPE, empty=False)
    o[~valid], lse[~valid] = np.nan, np.nan
    return o, lse


def reference(valids):
    parts = []
    for rank, valid in enumerate(valids):
        o, lse = partials(rank, SHAPE, empty=False)
        lse[~valid] = -np.inf
        parts.append((o, lse))
    return merged(parts)


def test_sequences():
    """Three sequences of 3, 1 and 1 tokens, and a token of padding. Rank 0 has no keys of the first, rank 1 of the
    others."""
    starts, lens = np.array([0, 3, 4, 5], np.int32), np.array([[0, 7, 2], [5, 0, 0]], np.int32)
    valids = [np.array(row, bool) for row in ([0, 0, 0, 1, 1, 0], [1, 1, 1, 0, 0, 0])]
    want = reference(valids)

    def body(comm):
        given = valid_partials(comm.rank, valids[comm.rank])
        called = comm.combine(*given, seq_lens=lens[comm.rank], query_start_loc=starts)
        op = comm.combine_init(*given, seq_lens=lens[comm.rank], query_start_loc=starts)
        assert all((a == b).all() for a, b in zip(op(), called))
        return called

    for out, lse in run(body):
        close(out, want[0])
        close(lse, want[1])
        assert np.isneginf(lse[5]).all()


@pytest.mark.parametrize("dtype", [bool, np.uint8])
def test_token_mask_and_rows_that_are_kept(dtype):
    masks = [np.array(row, dtype) for row in ([1, 0, 0, 1, 1, 0], [1, 1, 0, 0, 1, 0])]
    want = reference([mask.astype(bool) for mask in masks])

    def body(comm):
        given = valid_partials(comm.rank, masks[comm.rank].astype(bool))
        out = np.full(SHAPE, 7, np.float32), np.full(SHAPE[:2], 7, np.float32)
        comm.combine(*given, token_mask=masks[comm.rank], empty_rows="kept", out=out)
        return out

    for out, lse in run(body):
        for row in range(SHAPE[0]):
            if masks[0][row] or masks[1][row]:
                close(out[row], want[0][row])
                close(lse[row], want[1][row])
            else:
                assert (out[row] == 7).all() and (lse[row] == 7).all()


def test_numbers_of_tokens():
    """A call and an operation of a capacity serve any number, as a number and as an array."""

    def body(comm):
        o, lse = partials(comm.rank, SHAPE, empty=False)
        now = np.array([6], np.int32)
        made = comm.combine_init(o, lse, tokens=6)
        bound = comm.combine_init(o, lse, tokens=now)
        assert (made.tokens, bound.tokens, comm.barrier_init().tokens) == (6, None, None)
        results = []
        for tokens in (6, 2, 0, 5):
            made.tokens = now[0] = tokens
            outs = [made(), bound(), comm.combine(o, lse, tokens=tokens)]
            assert all((out[:tokens] == outs[0][0][:tokens]).all() for out, _ in outs)
            results.append((tokens, outs[0][0][:tokens].copy(), outs[0][1][:tokens].copy()))
        return results

    want = merged([partials(r, SHAPE, empty=False) for r in range(2)])
    for results in run(body):
        for tokens, out, lse in results:
            close(out, want[0][:tokens])
            close(lse, want[1][:tokens])


def test_rejections(lone):
    o, lse = partials(0, SHAPE)
    combine = functools.partial(lone.combine, o, lse)
    rejected("seq_lens", "int64: it is int32", combine, seq_lens=np.zeros(6, np.int64))
    rejected("query_start_loc", "batch of seq_lens", combine, seq_lens=np.zeros(6, np.int32), query_start_loc=np.zeros(6, np.int32))
    rejected("token_mask", "number of tokens of o is 6", combine, token_mask=np.ones(5, bool))
    rejected("token_mask", "bool or uint8", combine, token_mask=np.ones(6, np.int8))
    rejected("tokens", "one element", combine, tokens=np.ones(2, np.int32))
    rejected("empty_rows", '"written", "kept"', combine, empty_rows="left")
    rejected("preset", "flash_attention_2", combine, preset="flash")
    rejected("base", "preset says", combine, preset="torch", base="e")
    op = lone.combine_init(o, lse)
    with pytest.raises(banyan.StateError, match="number of tokens"):
        op.tokens = 3


def marked(lse):
    return np.where(np.isneginf(lse), np.inf, lse)


def sums(lse):
    """Pairs of m and d."""
    return np.stack([lse - np.float32(1), np.full_like(lse, np.e)], -1)


PRESETS = {  # o and lse in base e as a kernel writes them; lse has -inf in rows without keys
    "flash_attention_2": lambda o, lse: (o, marked(lse).T.copy()),
    "flash_attention_3": lambda o, lse: (o, lse.T.copy()),
    "flashinfer": lambda o, lse: (o, lse * np.float32(np.log2(np.e))),
    "flashmla": lambda o, lse: (o, marked(lse)),
    "tensorrt_llm_helix": lambda o, lse: (o, sums(lse)),
    "ggml": lambda o, lse: (np.concatenate([sums(lse), o * sums(lse)[..., 1:]], -1), None),
    "torch": lambda o, lse: (o, lse),
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name):
    want = merged([partials(r, SHAPE) for r in range(2)])

    def body(comm):
        return comm.combine(*PRESETS[name](*partials(comm.rank, SHAPE)), preset=name, out_base="e")

    all_close(run(body), want)


def test_allgather_heads():
    """Shares of 2 and 1 heads, whose memory is [heads, tokens, dim], in place of all tokens and of some."""
    counts, shape = [2, 1], (5, 3, 8)
    q = np.random.default_rng(5).standard_normal(shape).astype(np.float32)

    def body(comm):
        first = 2 * comm.rank
        mine = np.ascontiguousarray(q[:, first : first + counts[comm.rank]].transpose(1, 0, 2)).transpose(1, 0, 2)
        assert (comm.allgather_heads(mine, counts=counts) == q).all()
        out = np.zeros((3, 5, 8), np.float32).transpose(1, 0, 2)
        op = comm.allgather_heads_init(mine, counts=counts, out=out, tokens=2)
        assert op() is out and (out[:2] == q[:2]).all() and (out[2:] == 0).all()
        op.tokens = 5
        assert (op() == q).all()
        even = comm.allgather_heads(mine[:, :1])
        assert (even == q[:, [0, 2]]).all()
        with pytest.raises(banyan.ArgumentError, match="this rank's count"):
            comm.allgather_heads(mine, counts=[1, 2])
        with pytest.raises(banyan.ArgumentError, match="rows share"):
            comm.allgather_heads(np.broadcast_to(mine[:1, :1], mine.shape), counts=counts)
        return True

    assert run(body) == [True, True]
