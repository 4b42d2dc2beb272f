# SPDX-License-Identifier: Apache-2.0
"""Ops in torch's namespace `banyan`: numbers, the out form, fake tensors, graphs."""

import numpy as np
import pytest
from conftest import merged, partials

import banyan

torch = pytest.importorskip("torch")
from banyan import torch_ops  # noqa: E402  (it imports torch)

SHAPE = (3, 5, 16)


def tensors(rank):
    return [torch.from_numpy(array) for array in partials(rank, SHAPE)]


def test_ops_and_methods_agree():
    want = merged([partials(r, SHAPE) for r in range(2)])

    def body(comm):
        number = torch_ops.handle(comm)
        assert number == torch_ops.handle(comm)
        o, lse = tensors(comm.rank)
        out, merged_lse = torch.ops.banyan.combine(o, lse, number)
        kept, kept_lse = torch.empty_like(o), torch.empty_like(lse)
        torch.ops.banyan.combine_out(o, lse, number, out=kept, out_lse=kept_lse)
        assert torch.equal(kept, out) and torch.equal(kept_lse, merged_lse)
        every = torch.ops.banyan.allgather(o, number)
        assert torch.equal(every[comm.rank], o)
        assert torch.equal(torch.ops.banyan.shift(o, number), every[1 - comm.rank])
        return out, torch.ops.banyan.combine(o, lse, number, scatter="heads")[0]

    results = banyan.run(body, ranks=2, start="thread", timeout=60)
    for out, _ in results:
        np.testing.assert_allclose(out, want[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(torch.cat([part for _, part in results], 1), want[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scatter", ["none", "heads", "tokens"])
def test_fake_shapes_are_those_of_the_op(scatter):
    def body(comm):
        number = torch_ops.handle(comm)
        o, lse = tensors(comm.rank)
        real = torch.ops.banyan.combine(o.half(), lse, number, scatter=scatter)
        fake = torch.ops.banyan.combine(o.half().to("meta"), lse.to("meta"), number, scatter=scatter)
        q, k = torch.zeros(2, 4, 8), torch.zeros(2, 2, 10, 8)
        real += torch.ops.banyan.attention_combine(q, k, k, None, number, scatter=scatter)
        fake += torch.ops.banyan.attention_combine(
            q.to("meta"), k.to("meta"), k.to("meta"), None, number, scatter=scatter
        )
        return [(a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()) for a, b in zip(real, fake)]

    assert banyan.run(body, ranks=2, start="thread", timeout=60) == [[True] * 4] * 2


def test_refusals(lone):
    o, lse = tensors(0)
    with pytest.raises(ValueError, match="handle of no communicator"):
        torch.ops.banyan.combine(o, lse, 10**6)
    with pytest.raises(ValueError, match="root"):
        torch.ops.banyan.combine(o, lse, torch_ops.handle(lone), scatter="root")


def test_a_graph_holds_the_op(lone):
    """By make_fx, which torch.compile and export are built on."""
    proxy = pytest.importorskip("torch.fx.experimental.proxy_tensor")
    number = torch_ops.handle(lone)
    o, lse = tensors(0)
    graph = proxy.make_fx(lambda o, lse: torch.ops.banyan.combine(o * 2, lse, number)[0] + 1)(o, lse)
    assert "banyan.combine" in graph.code
    torch.testing.assert_close(graph(o, lse), torch.ops.banyan.combine(o * 2, lse, number)[0] + 1)


def test_opcheck(lone):
    if not hasattr(torch.library, "opcheck"):
        pytest.skip("torch before 2.5 has no opcheck")
    o, lse = tensors(0)
    torch.library.opcheck(torch.ops.banyan.combine.default, (o, lse, torch_ops.handle(lone)))
