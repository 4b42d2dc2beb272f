# SPDX-License-Identifier: Apache-2.0
"""A step of a decoder gives each layer what attention_combine() gives it, and writes new keys to their slots."""

import numpy as np
import pytest
from conftest import rejected, run

import banyan

HEADS, KV_HEADS, DIM, PAGE = 4, 2, 16, 8


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def words_of(comm, keys):
    """Two sequences of one new token each. Keys alternate between ranks."""
    mine = np.array([len(range(comm.rank, n, comm.nranks)) for n in keys], np.int32)
    return dict(
        seq_lens=mine,
        page_table=np.array([[1, 3], [0, 2]], np.int32),
        query_start_loc=np.array([0, 1, 2], np.int32),
        query_start=np.array(keys, np.int32) - 1,
        key_start=np.full(2, comm.rank, np.int32),
        key_block=1,
        key_stride=comm.nranks,
        keys_max=2 * PAGE,
        gather=True,
        scatter="heads",
    )


def test_layers():
    def body(comm):
        keys = [21, 6]
        words = words_of(comm, keys)
        slots = np.full(2, -1, np.int64)
        for sequence, n in enumerate(keys):
            if (n - 1) % comm.nranks == comm.rank:
                place = (n - 1) // comm.nranks
                slots[sequence] = words["page_table"][sequence, place // PAGE] * PAGE + place % PAGE
        step = comm.attention_step(slots=slots, **words)
        heads = HEADS // comm.nranks
        for layer in range(6):
            more = [dict(), dict(scale=0.5), dict(window=5), dict(window=5, soft_cap=2.0), dict(),
                    dict(sinks=draw(9, HEADS))][layer]
            # The fifth layer has another layout, whose heads are behind the pages.
            shape = (KV_HEADS, 4, PAGE, DIM) if layer == 4 else (4, KV_HEADS, PAGE, DIM)
            k, v = (draw(10 * layer + kind, *shape) for kind in range(2))
            if layer == 4:
                k, v = k.swapaxes(0, 1), v.swapaxes(0, 1)
            q, new_k, new_v = draw(layer, 2, heads, DIM), draw(100 + layer, 2, KV_HEADS, DIM), draw(layer, 2, KV_HEADS, DIM)
            own_k, own_v = k.copy(), v.copy()
            for token, slot in enumerate(slots):
                if slot >= 0:
                    own_k[slot // PAGE, :, slot % PAGE], own_v[slot // PAGE, :, slot % PAGE] = new_k[token], new_v[token]
            want, lse = comm.attention_combine(q, own_k, own_v, **words, **more)
            out = np.empty((2, heads, DIM), np.float32)
            got = step(q, k, v, None if layer == 3 else out, new_k=new_k, new_v=new_v, **more)
            np.testing.assert_array_equal(k, own_k), np.testing.assert_array_equal(v, own_v)
            np.testing.assert_array_equal(got[0], want)
            if layer == 3:
                np.testing.assert_array_equal(got[1], lse)
            else:
                assert got[0] is out and got[1] is None
        return True

    assert all(run(body))


def test_rejections(lone):
    words = words_of(lone, [21, 6])
    words.update(seq_lens=np.array([9, 6], np.int32))
    q, k, new = draw(0, 2, HEADS, DIM), draw(1, 4, KV_HEADS, PAGE, DIM), draw(2, 2, KV_HEADS, DIM)
    rejected("slots", "int64 or int32", lone.attention_step, slots=np.zeros(2, np.float32), **words)
    step = lone.attention_step(slots=np.array([3, 4 * PAGE]), **words)
    rejected("slots", "element 1 is 32, and the cache has 32 slots", step, q, k, k, new_k=new, new_v=new)
    rejected("new_v", "both", step, q, k, k, new_k=new)
    rejected("new_k", "float16, and the cache has float32", step, q, k, k, new_k=new.astype(np.float16), new_v=new)
    rejected("new_k", "number of KV heads", step, q, k, k, new_k=new[:, :1], new_v=new)
    rejected("slots", "more elements than new_k", step, q, k, k, new_k=new[:1], new_v=new)
    rejected("new_k", "without slots", lone.attention_step(**words), q, k, k, new_k=new, new_v=new)
    rejected("q", "array", step, None, k, k)
    with pytest.raises(TypeError):
        lone.attention_step(scale=1.0, **words)
    frozen = k.copy()
    frozen.flags.writeable = False
    step = lone.attention_step(slots=np.array([3, 4]), **words)
    rejected("v", "read-only, and receives new keys", step, q, k, frozen, new_k=new, new_v=new)
    step(q, k, k, np.empty_like(q))
    # The arrays of a call that was rejected do not become those of the step.
    short = np.full((2, HEADS, DIM), 7, np.float32)
    frozen = short[:1].view()
    frozen.flags.writeable = False
    rejected("out", "read-only", step, q, k, k, frozen)
    rejected("out", "dimension 0 is 1", step, q, k, k, short[:1])
    assert (short == 7).all()
    step(q, k, k, np.empty_like(q))
    with pytest.raises(banyan.ArgumentError, match="value_dim|head_dim|that of"):
        step(q, k[..., :8], k, np.empty_like(q))
    step(q, k, k, np.empty_like(q))
