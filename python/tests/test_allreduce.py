# SPDX-License-Identifier: Apache-2.0
"""Sums over ranks: numbers, layouts, scatters, persistent operations, ops of torch."""

import itertools

import numpy as np
import pytest
from conftest import rejected, run

import banyan


def drawn(rank, shape, dtype=np.float32):
    return np.random.default_rng(rank).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("shape", [(), (7,), (5, 12), (0, 4), (2, 3, 4)])
def test_sums_of_all_shapes(ranks, shape):
    want = sum(drawn(r, shape) for r in range(ranks))

    def body(comm):
        x = np.asarray(drawn(comm.rank, shape))
        given = x.copy()
        made = comm.allreduce(x, order="canonical")
        assert (x == given).all() and made.dtype == x.dtype
        assert comm.allreduce(x, out=x, order="canonical") is x
        assert (x == made).all()
        return made

    results = run(body, ranks)
    for each in results:
        assert each.shape == shape and each.tobytes() == results[0].tobytes()
        np.testing.assert_allclose(each, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype, wire", list(itertools.product([np.float32, np.float16], ["f32", "f16", "bf16", "e4m3"])))
def test_scatters_join_to_the_whole(dtype, wire):
    def body(comm):
        wide = drawn(comm.rank, (5, 18), dtype)
        x = wide[:, 2:13]  # rows of 11 with a stride of 18
        rows, columns = (comm.allreduce(x, scatter=each, wire=wire, order="canonical") for each in ("tokens", "heads"))
        root = comm.allreduce(x, scatter="root", root=1, wire=wire, order="canonical")
        assert (root is None) == (comm.rank != 1)
        out = np.full((5, 20), 7, dtype)
        comm.allreduce(x, out=out[:, :11], wire=wire, order="canonical")
        assert (out[:, 11:] == 7).all()
        few = np.full_like(out, 7)
        comm.allreduce(x, out=few[:, :11], wire=wire, order="canonical", tokens=2)
        assert (few[2:] == 7).all() and (few[:2] == out[:2]).all()
        return out[:, :11], rows, columns, root

    results = run(body, 3)
    whole = results[0][0]
    assert (np.concatenate([each[1] for each in results]) == whole).all()
    joined = np.concatenate([each[2] for each in results], 1)
    if wire != "e4m3":  # 32 columns of one rank share a scale
        assert (joined == whole).all()
    assert (results[1][3] == whole).all()
    tolerance = {"f32": 1e-3, "f16": 4e-3, "bf16": 3e-2, "e4m3": 0.4}[wire]
    want = sum(drawn(r, (5, 18), dtype).astype(np.float64)[:, 2:13] for r in range(3))
    np.testing.assert_allclose(whole, want, atol=3 * tolerance)
    np.testing.assert_allclose(joined, want, atol=3 * tolerance)


def test_persistent_sums_read_their_array_anew():
    def body(comm):
        x, out = np.zeros((4, 8), np.float32), np.full((4, 8), 9, np.float32)
        op = comm.allreduce_init(x, out=out, tokens=4)
        x[:] = comm.rank + 1
        assert op() is out and (out == 3).all()
        op.tokens = 1
        x[:] = 10
        op()
        assert (out[0] == 20).all() and (out[1:] == 3).all() and op.tokens == 1
        op.free()
        mine = comm.allreduce_init(x, scatter="root")
        assert (mine() is None) == (comm.rank != 0)

    run(body)


def test_exact_sums_do_not_depend_on_who_gives_what():
    parts = [drawn(r, (4, 50)) * 10.0 ** (3 * r) for r in range(3)]
    of = {order: [run(lambda comm: comm.allreduce(x[comm.rank].astype(np.float32), order=order), 3)[0]
          for x in (parts, parts[::-1])] for order in ("exact", "plan")}  # fmt: skip
    assert of["exact"][0].tobytes() == of["exact"][1].tobytes()
    np.testing.assert_allclose(of["exact"][0], of["plan"][0], rtol=1e-3)


def test_rejections(lone):
    x = np.zeros((4, 6), np.float32)
    rejected("x", "int32", lone.allreduce, x.astype(np.int32))
    rejected("x", "contiguous", lone.allreduce, x.T)
    rejected("x", "None", lone.allreduce, None)
    rejected("x", "rows share", lone.allreduce, np.broadcast_to(x[0], x.shape))
    rejected("out", "out overlaps in", lone.allreduce, x[:2], out=x[1:3])
    rejected("out", "rows share", lone.allreduce, x, out=np.lib.stride_tricks.as_strided(x, x.shape, (0, 4)))
    rejected("x", "not aligned", lone.allreduce, np.zeros(101, np.uint8)[1:97].view(np.float32))
    rejected("out", "dimension 1 is 5", lone.allreduce, x, out=np.zeros((4, 5), np.float32))
    rejected("out", "float16", lone.allreduce, x, out=np.zeros((4, 6), np.float16))
    rejected("out", "contiguous", lone.allreduce, x, out=np.zeros((6, 4), np.float32).T)
    rejected("scatter", "tokens", lone.allreduce, x[0], scatter="tokens")
    rejected("scatter", "heads", lone.allreduce, x[None], scatter="heads")
    rejected("tokens", "one element", lone.allreduce, x, tokens=np.zeros(2, np.int32))
    assert (lone.allreduce(x) == x).all()


def test_torch_and_jax_come_back_as_such():
    torch = pytest.importorskip("torch")

    def body(comm):
        x = torch.full((3, 4), comm.rank + 0.5, dtype=torch.bfloat16)
        made = comm.allreduce(x)
        assert made.dtype == torch.bfloat16 and (made == 2).all()
        comm.allreduce(x, out=x)
        return torch.equal(x, made)

    assert run(body) == [True, True]


def test_jax_arrays():
    jax = pytest.importorskip("jax")
    made = run(lambda comm: comm.allreduce(jax.numpy.full((3, 4), comm.rank + 0.5, jax.numpy.bfloat16)))
    assert all(isinstance(each, jax.Array) and (each == 2).all() for each in made)
