# SPDX-License-Identifier: Apache-2.0
"""Combines of numpy arrays: numbers, conventions, strides, scatter, persistent operations, the other collectives."""

import numpy as np
import pytest
from conftest import all_close, close, merged, partials, run

import banyan

SHAPE = (3, 5, 16)


@pytest.mark.parametrize("start", ["fork", "spawn", "thread"])
def test_numbers(start):
    want = merged([partials(r, SHAPE) for r in range(3)])
    all_close(run(combine_own, 3, start), want)


def combine_own(comm):
    return comm.combine(*partials(comm.rank, SHAPE))


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1e-5), (np.float16, 2e-3)])
@pytest.mark.parametrize("wire", ["f32", "f16", "bf16"])
def test_dtypes(dtype, tolerance, wire):
    want = merged([partials(r, SHAPE, dtype) for r in range(2)])

    def body(comm):
        out, lse = comm.combine(*partials(comm.rank, SHAPE, dtype), wire=wire)
        assert out.dtype == dtype and lse.dtype == np.float32
        return out, lse

    for out, lse in run(body, 2):
        close(out, want[0], {"f32": tolerance, "f16": 4e-3, "bf16": 4e-2}[wire])
        close(lse, want[1])


def test_bfloat16_of_ml_dtypes(lone):
    bf16 = pytest.importorskip("ml_dtypes").bfloat16
    o, lse = partials(0, SHAPE, empty=False)
    out, _ = lone.combine(o.astype(bf16), lse)
    assert out.dtype == bf16
    assert (out == o.astype(bf16)).all()


def test_conventions():
    """Base 2, numerators with m and d, and rows without keys as engines write them."""
    parts = [partials(r, SHAPE) for r in range(2)]
    want = merged(parts)

    def base_2(comm):
        o, lse = parts[comm.rank]
        lse = lse * np.float32(np.log2(np.e))
        return comm.combine(o, np.where(np.isinf(lse), np.nan, lse), base="2", empty="nan|+inf", out_base="e")

    def numerators(comm):
        o, lse = parts[comm.rank]
        d = np.exp(lse)
        return comm.combine(o * d[..., None], np.zeros_like(lse), sum=d, values="numerator", out_values="normalised")

    def below(comm):
        o, lse = parts[comm.rank]
        return comm.combine(o, np.where(np.isinf(lse), np.float32(-5e4), lse), empty=-4e4, out_empty="+inf")

    all_close(run(base_2, 2), want)
    for out, m, d in run(numerators, 2):
        close(out, want[0])
        with np.errstate(divide="ignore"):
            close(m + np.log(d), want[1])
    for out, lse in run(below, 2):
        close(lse, np.where(np.isinf(want[1]), np.inf, want[1]))


def test_strides():
    """Heads before tokens, a slice of a wider array, and lse as [heads, tokens]."""
    want = merged([partials(r, SHAPE) for r in range(2)])

    def body(comm):
        o, lse = partials(comm.rank, SHAPE)
        wide = np.zeros((SHAPE[1], SHAPE[0], 40), np.float32)
        wide[:, :, 8:24] = o.transpose(1, 0, 2)
        turned = np.ascontiguousarray(lse.T)
        out = np.zeros((SHAPE[1], SHAPE[0], 16), np.float32).transpose(1, 0, 2)
        values, stats = comm.combine(wide[:, :, 8:24].transpose(1, 0, 2), turned.T, out=(out, turned.T))
        assert values is out
        return values.copy(), stats.copy()

    all_close(run(body, 2), want)


@pytest.mark.parametrize("scatter", ["heads", "tokens", "root"])
def test_scatter(scatter):
    want = merged([partials(r, SHAPE) for r in range(3)])
    results = run(lambda comm: comm.combine(*partials(comm.rank, SHAPE), scatter=scatter, root=2), 3)
    if scatter == "root":
        assert [out is None for out, _ in results] == [True, True, False]
        results = results[2:]
    axis = 1 if scatter == "heads" else 0
    close(np.concatenate([out for out, _ in results], axis), want[0])
    close(np.concatenate([lse for _, lse in results], axis), want[1])


def test_out_without_lse_and_in_place():
    want = merged([partials(r, SHAPE) for r in range(2)])

    def body(comm):
        o, lse = partials(comm.rank, SHAPE)
        out = np.empty_like(o)
        values, stats = comm.combine(o, lse, out=out)
        assert values is out and stats is None
        comm.combine(o, lse, out=(o, lse))
        assert (o == out).all()
        return o, lse

    all_close(run(body, 2), want)


def test_persistent():
    def body(comm):
        o, lse = partials(comm.rank, SHAPE)
        first = comm.combine_init(o, lse, scatter="heads")
        barrier = comm.barrier_init()
        for step in range(3):
            o += step
            out, _ = first()
            barrier.start()
            while not barrier.test():
                pass
        info = first.info()
        assert info["roundings"] == 0 and info["algorithm"] in info["reason"]
        assert "send" in first.describe()
        assert first.timed(3) > 0
        return o, lse, out

    results = run(body, 2)
    want = merged([(o, lse) for o, lse, _ in results])
    close(np.concatenate([out for _, _, out in results], 1), want[0])


def test_operations_end_with_their_communicator(lone):
    op = lone.barrier_init()
    op()
    lone.close()
    with pytest.raises(banyan.StateError, match="freed"):
        op()
    with pytest.raises(banyan.StateError, match="closed"):
        lone.barrier()


def test_the_other_collectives():
    def body(comm):
        mine = np.full((2, 3), comm.rank, np.int64)
        every = comm.allgather(mine)
        assert every.shape == (3, 2, 3) and (every[:, 0, 0] == [0, 1, 2]).all()
        ragged = comm.allgather(np.full(comm.rank + 1, comm.rank, np.uint8), counts=[1, 2, 3])
        assert ragged.tolist() == [0, 1, 1, 2, 2, 2]
        assert (comm.shift(mine, -1) == (comm.rank + 1) % 3).all()
        assert (comm.shift_init(mine)() == (comm.rank - 1) % 3).all()
        assert (comm.allgather_init(mine)() == every).all()
        data = bytearray(b"rank %d" % comm.rank)
        comm.broadcast(data, 2)
        assert data == b"rank 2"
        comm.broadcast_init(data)()
        comm.broadcast(b"rank 0" if comm.rank == 0 else data, 0)  # the root's data may be read-only
        assert data == (b"rank 2" if comm.rank == 0 else b"rank 0")
        comm.barrier()
        return True

    assert run(body, 3) == [True] * 3


def test_metrics_and_tag(lone):
    lone.set_tag(7)
    lone.barrier()
    lone.set_tag(-1)
    assert 'banyan_operations_total{rank="0",ranks="1",collective="barrier"} ' in lone.metrics()


def test_describe(lone):
    assert "rank" in lone.describe()
    assert repr(lone) == "<banyan.Communicator, rank 0 of 1>"
    assert banyan.version() == banyan.__version__
