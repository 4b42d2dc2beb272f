# SPDX-License-Identifier: Apache-2.0
"""Selections: the best of all ranks against a sort, layouts, persistent operations, frameworks."""

import numpy as np
import pytest
from conftest import rejected, run

import banyan


def best_of(scores, k):
    """Positions of the k best in each row, by a stable sort; NaN last."""
    return np.argsort(np.where(np.isnan(scores), np.inf, -(scores + 0.0)), axis=-1, kind="stable")[..., :k]


@pytest.mark.parametrize("shape", [(300,), (2, 20000), (3, 2, 40)])
def test_topk(shape):
    scores = np.random.default_rng(1).standard_normal(shape).astype(np.float32).round(2)
    values, positions = banyan.topk(scores, 30)
    assert (positions == best_of(scores, 30)).all() and positions.dtype == np.int32
    assert (values == np.take_along_axis(scores, positions.astype(np.int64), -1)).all()
    lens = np.full(shape[:-1], 7, np.int32)
    values, positions = banyan.topk(scores, 30, lens=lens)
    assert (positions[..., :7] == best_of(scores[..., :7], 7)).all() and (positions[..., 7:] == -1).all()
    assert (values[..., 7:] == -np.inf).all()


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("heads", [(), (2,)])
def test_select_is_a_sort(ranks, dtype, heads):
    keys, k = 90, 20
    scores = np.random.default_rng(2).integers(0, 30, (3, *heads, keys)).astype(np.float32)
    want = best_of(scores, k)

    def body(comm):
        mine = np.arange(comm.rank, keys, comm.nranks)
        best, positions = banyan.topk(np.ascontiguousarray(scores[..., mine]), k)
        indices = np.where(positions < 0, -1, mine[positions]).astype(dtype)
        chosen, which, own, counts = comm.select(best, indices, k=k, rows=positions)
        assert which.dtype == dtype and (which == want).all()
        assert (chosen == np.take_along_axis(scores, want, -1)).all()
        assert (counts == (which % comm.nranks == comm.rank).sum(-1)).all()
        for row in np.ndindex(counts.shape):
            ours = which[row][which[row] % comm.nranks == comm.rank]
            assert (mine[own[row][: counts[row]]] == ours).all() and (own[row][counts[row] :] == -1).all()

    run(body, ranks)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_attention_that_selects(ranks, dtype):
    keys, k, batch, heads, dim = 60, 9, 2, 2, 8
    draw = np.random.default_rng(5)
    scores = draw.integers(0, 20, (batch, keys)).astype(np.float32)
    q = draw.standard_normal((batch, heads, dim), np.float32)
    all_k, all_v = draw.standard_normal((2, batch, keys, dim), np.float32)
    want = best_of(scores, k)

    def body(comm):
        mine = np.arange(comm.rank, keys, comm.nranks)
        best, rows = banyan.topk(np.ascontiguousarray(scores[:, mine]), k)
        indices = np.where(rows < 0, -1, mine[rows]).astype(dtype)
        chosen = tuple(np.empty((batch, k), each) for each in ("f4", dtype, "i4")) + (np.empty(batch, "i4"),)
        given = {"scores": best, "indices": indices, "k": k, "rows": rows, "out": chosen}
        mask = np.full((batch, len(mine)), 7, np.uint8)
        own_k, own_v = (np.ascontiguousarray(each[:, None, mine]) for each in (all_k, all_v))
        masked = comm.attention_combine(q, own_k, own_v, select=given, key_mask=mask)
        assert (chosen[1] == want).all() and chosen[1].dtype == dtype
        pages = np.where(rows < 0, -1, rows + len(mine) * np.arange(batch, dtype=np.int32)[:, None]).astype(np.int32)
        given["rows"] = pages
        flat_k, flat_v = (each.reshape(-1, 1, 1, dim) for each in (own_k, own_v))
        listed = comm.attention_combine(q, flat_k, flat_v, select=given)
        if dtype == np.int64:
            op = comm.attention_combine_init(q, flat_k, flat_v, select=given)
            assert all((a == b).all() for a, b in zip(op(), listed))
        rejected("select", "a dict", comm.attention_combine, q, flat_k, flat_v, select=best)
        rejected("select", 'no "heads"', comm.attention_combine, q, flat_k, flat_v, select={"heads": 1})
        rejected("select", "are None", comm.attention_combine, q, flat_k, flat_v, select=given, seq_lens=chosen[3])
        rejected("k", "rows, kv_heads, 1", comm.attention_combine, q, own_k, own_v, select=given)
        for b in range(batch):
            logits = q[b] @ all_k[b, want[b]].T / dim**0.5
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            expected = weights / weights.sum(-1, keepdims=True) @ all_v[b, want[b]]
            for each in (masked, listed):
                np.testing.assert_allclose(each[0][b], expected, atol=1e-5)

    run(body, ranks)


def test_fewer_than_k_and_out():
    def body(comm):
        n = 2 if comm.rank else 0
        out = tuple(np.empty(shape, d) for shape, d in (((1, 5), "f4"), ((1, 5), "i8"), ((1, 5), "i4"), ((1,), "i4")))
        given = np.array([[1, np.nan]], np.float32)[:, :n], np.array([[7, 3]])[:, :n]
        got = comm.select(np.ascontiguousarray(given[0]), np.ascontiguousarray(given[1]), k=5, out=out)
        assert all(a is b for a, b in zip(got, out))
        np.testing.assert_array_equal(out[0], [[1, np.nan, -np.inf, -np.inf, -np.inf]])
        np.testing.assert_array_equal(out[1], [[7, 3, -1, -1, -1]])
        assert out[3][0] == n

    run(body)


def test_persistent():
    def body(comm):
        scores, indices = np.zeros((2, 3), np.float32), np.arange(6).reshape(2, 3) * 10 + comm.rank
        op = comm.select_init(scores, indices, k=3, tokens=2)
        scores[:] = comm.rank
        assert (op()[1] == indices - comm.rank + 1).all()
        scores[:] = -comm.rank
        op.tokens = 1
        assert (op()[1][0] == indices[0] - comm.rank).all()
        none = comm.select(np.empty((2, 0, 3), np.float32), np.empty((2, 0, 3), np.int64), tokens=1)
        assert [each.shape for each in none] == [(2, 0, 3)] * 3 + [(2, 0)]  # without heads there are no rows

    run(body)


def test_doubled_indices_name_both_ranks():
    def body(comm):
        scores, indices = np.ones((1, 2), np.float32), np.array([[comm.rank, 40]])
        with pytest.raises(banyan.DataError, match="index 40 of token 0, head 0 .* rank 0 and rank 1"):
            comm.select(scores, indices, k=4)
        return comm.select(scores[:, :1].copy(), indices[:, :1].copy(), k=4)[1].tolist()

    assert run(body) == [[[0, 1, -1, -1]]] * 2


def test_rejections(lone):
    scores, indices = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int64) + [0, 1, 2]
    rejected("scores", "float64", lone.select, scores.astype(float), indices)
    rejected("scores", "contiguous", lone.select, scores.T, indices.T)
    rejected("indices", "uint64", lone.select, scores, indices.astype(np.uint64))
    rejected("indices", "dimension 1 is 2", lone.select, scores, indices[:, :2])
    rejected("rows", "int64", lone.select, scores, indices, rows=indices)
    rejected("indices", "persistent", lone.select_init, scores, indices.astype(np.int32))
    rejected("out", "tuple of the 4", lone.select, scores, indices, out=scores)
    rejected("k", "at least 1", lone.select, scores, indices, k=0)
    rejected("k", "scores has 3 for each row", lone.select, scores, indices, k=2)
    rejected("out", "overlaps desc.scores", lone.select, scores, indices, out=(scores, None, None, None))
    rejected("lens", "each row", banyan.topk, scores, 1, lens=np.zeros(3, np.int32))
    rejected("scores", "float64: it is float32", banyan.topk, scores.astype(float), 1)
    rejected("out", "best overlaps scores", banyan.topk, scores, 3, out=(scores, None))
    assert (lone.select(scores, indices)[1] == indices).all()


@pytest.mark.parametrize("name, kind", [("torch", "Tensor"), ("jax.numpy", "ndarray")])
def test_results_are_of_the_framework_of_scores(name, kind):
    framework = pytest.importorskip(name)

    def body(comm):
        values, positions = banyan.topk(framework.arange(8, dtype=framework.float32), 3)
        assert values.tolist() == [7, 6, 5] and positions.dtype == framework.int32
        made = comm.select(values, positions * 2 + comm.rank, k=3)
        assert isinstance(made[1], getattr(framework, kind)) and made[1].dtype == framework.int32
        return made[1].tolist() == [14, 15, 12]

    assert run(body) == [True, True]
