# SPDX-License-Identifier: Apache-2.0
"""Ops in torch's namespace `banyan`: numbers, the out form, fake tensors, graphs."""

import os
import random

import numpy as np
import pytest
from conftest import merged, partials

import banyan

torch = pytest.importorskip("torch")
from banyan import torch_ops  # noqa: E402  (it imports torch)

SHAPE = (3, 5, 16)
SEED = os.environ.get("TEST_SEED", "1")  # of graphs


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
        total = torch.ops.banyan.allreduce(o, number)
        assert torch.equal(total, every[0] + every[1]) and torch.equal(o, every[comm.rank])
        assert torch.equal(torch.ops.banyan.allreduce(o[0], number, "heads"), total[0].chunk(2, 1)[comm.rank])
        eight = torch.ops.banyan.allreduce(o, number, wire="e4m3")
        assert torch.equal(eight, comm.allreduce(o, wire="e4m3")) and not torch.equal(eight, total)
        torch.ops.banyan.allreduce_out(every[comm.rank], number, out=every[comm.rank])
        assert torch.equal(every[comm.rank], total)
        scores, positions = torch.ops.banyan.topk(o[0], 5)
        best = torch.ops.banyan.select(scores, positions * 2 + comm.rank, number, tag=4)
        for op, method in zip(best, comm.select(scores, positions * 2 + comm.rank, k=5)):
            assert torch.equal(op, method)
        every_score = torch.ops.banyan.allgather(o[0], number).permute(1, 0, 2).flatten(1)
        assert torch.equal(best[0], every_score.topk(5, 1)[0]) and best[1].dtype == torch.int32
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
        q, k = torch.zeros(2, 4, 8).half(), torch.zeros(2, 2, 10, 8).half()
        real += torch.ops.banyan.attention_combine(q, k, k, None, number, scatter=scatter)
        real += (torch.ops.banyan.allreduce(o[0], number, scatter=scatter),)
        fake += torch.ops.banyan.attention_combine(
            q.to("meta"), k.to("meta"), k.to("meta"), None, number, scatter=scatter
        )
        fake += (torch.ops.banyan.allreduce(o[0].to("meta"), number, scatter=scatter),)
        indices = torch.arange(o[0].numel()).view(o[0].shape) * 2 + comm.rank
        real += torch.ops.banyan.select(o[0], indices, number, 20) + torch.ops.banyan.topk(o[0], 3)
        fake += torch.ops.banyan.select(o[0].to("meta"), indices.to("meta"), number, 20)
        fake += torch.ops.banyan.topk(o[0].to("meta"), 3)
        return [(a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()) for a, b in zip(real, fake)]

    assert banyan.run(body, ranks=2, start="thread", timeout=60) == [[True] * 11] * 2


def test_rejections(lone):
    o, lse = tensors(0)
    with pytest.raises(ValueError, match="handle of no communicator"):
        torch.ops.banyan.combine(o, lse, 10**6)
    with pytest.raises(ValueError, match="root"):
        torch.ops.banyan.combine(o, lse, torch_ops.handle(lone), scatter="root")
    with pytest.raises(ValueError, match="root"):
        torch.ops.banyan.allreduce(o, torch_ops.handle(lone), scatter="root")


def test_a_graph_holds_the_op(lone):
    """Uses make_fx, which is the base of torch.compile and export."""
    proxy = pytest.importorskip("torch.fx.experimental.proxy_tensor")
    number = torch_ops.handle(lone)
    o, lse = tensors(0)
    graph = proxy.make_fx(lambda o, lse: torch.ops.banyan.combine(o * 2, lse, number)[0] + 1)(o, lse)
    assert "banyan.combine" in graph.code
    torch.testing.assert_close(graph(o, lse), torch.ops.banyan.combine(o * 2, lse, number)[0] + 1)


OPS = ["combine", "combine_out", "allreduce", "allreduce_out", "attention_combine", "select", "topk", "allgather", "shift"]


@pytest.mark.parametrize("name", OPS)
def test_opcheck_of_each(lone, name):
    if not hasattr(torch.library, "opcheck"):
        pytest.skip("torch before 2.5 has no opcheck")
    number = torch_ops.handle(lone)
    o, lse = tensors(0)
    q, k = torch.randn(2, 4, 8), torch.randn(2, 2, 10, 8)
    given, named = {
        "combine": ((o, lse, number), {"wire": "bf16"}),
        "combine_out": ((o, lse, number), {"out": torch.empty_like(o), "out_lse": torch.empty_like(lse)}),
        "allreduce": ((o, number), {"order": "canonical"}),
        "allreduce_out": ((o, number), {"out": torch.empty_like(o)}),
        "attention_combine": ((q, k, k, None, number), {}),
        "select": ((o[0], torch.arange(o[0].numel()).view(o[0].shape), number), {"k": 20}),
        "topk": ((o[0], 3), {}),
        "allgather": ((o, number), {}),
        "shift": ((o, number), {}),
    }[name]
    torch.library.opcheck(getattr(torch.ops.banyan, name).default, given, named)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(lone, dynamic):
    if not hasattr(torch, "compile"):
        pytest.skip("torch before 2.0 has no compile")
    number = torch_ops.handle(lone)

    def step(o, lse):
        out, merged_lse = torch.ops.banyan.combine(o * 2, lse, number)
        kept, kept_lse = torch.empty_like(out), torch.empty_like(merged_lse)
        torch.ops.banyan.combine_out(out + 1, merged_lse, number, out=kept, out_lse=kept_lse)
        return kept

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for tokens in (3, 2):
        o, lse = (torch.from_numpy(array) for array in partials(0, (tokens, 5, 16), empty=False))
        torch.testing.assert_close(compiled(o, lse), o * 2 + 1)


def test_export(lone):
    if not hasattr(torch, "export"):
        pytest.skip("torch before 2.1 has no export")
    number = torch_ops.handle(lone)

    class Step(torch.nn.Module):
        def forward(self, o, lse):
            return torch.ops.banyan.combine(o, lse, number)[0] * 2

    o, lse = (torch.from_numpy(array) for array in partials(0, SHAPE, empty=False))
    program = torch.export.export(Step(), (o, lse))
    assert "banyan.combine" in program.graph_module.code
    torch.testing.assert_close(program.module()(o, lse), o * 2)


OPS_DRAWN = ["combine", "combine_out", "allreduce", "allreduce_out", "select", "allgather", "shift"]


def drawn_program(seed, rank, number):
    """Returns a function of tensors. Ranks run the same ops of banyan, and differ in everything around them."""
    shared, own = random.Random(seed), random.Random(f"{seed} {rank}")
    calls = [shared.choice(OPS_DRAWN) for _ in range(shared.randint(2, 5))]
    sources = [shared.randint(0, at) for at in range(len(calls))]  # 0: an input; otherwise an earlier result
    detours = [own.randint(0, 3) for _ in calls]
    used = [own.random() < 0.6 for _ in calls]
    extra = [own.random() < 0.5 for _ in calls]
    last = own.sample(range(len(calls)), len(calls))

    def program(inputs, eye):
        results = []
        for at, name in enumerate(calls):
            x = inputs[at] if sources[at] == 0 else results[sources[at] - 1] + inputs[at]
            for _ in range(detours[at]):
                x = torch.mm(torch.mm(x, eye), eye.t())
            if name in ("combine", "combine_out"):
                o, lse = x.view(4, 1, 4), x.sum(1, keepdim=True) * 0
                if name == "combine":
                    y = torch.ops.banyan.combine(o, lse, number)[0]
                else:
                    y, kept_lse = torch.empty_like(o), torch.empty_like(lse)
                    torch.ops.banyan.combine_out(o, lse, number, out=y, out_lse=kept_lse)
                y = y.view(4, 4)
            elif name == "allreduce_out":
                y = torch.empty_like(x)
                torch.ops.banyan.allreduce_out(x, number, out=y)
            elif name == "select":
                indices = torch.arange(16).view(4, 4) * 2 + rank
                y = torch.ops.banyan.select(x, indices, number)[0]
            else:
                y = getattr(torch.ops.banyan, name)(x, number)
                y = y[1] if name == "allgather" else y
            results.append(y)
        answers = [results[at] for at in last if used[at]]
        return answers + [torch.mm(results[at].t(), results[at]) for at in last if extra[at]]

    return program, len(calls)


def test_compiled_graphs_that_differ_between_ranks():
    """Compiled graphs run banyan's ops in the order of the program: each rank gets what it gets without a compiler."""
    if not hasattr(torch.library, "register_torch_dispatch"):
        pytest.skip("torch before 2.5 may reorder ops")
    pairs = int(os.environ.get("TORCH_GRAPH_PAIRS", 3))

    def body(comm):
        number, wrong = torch_ops.handle(comm), []
        for pair in range(pairs):
            program, calls = drawn_program(f"{SEED} {pair}", comm.rank, number)
            inputs = [torch.full((4, 4), 10.0 * at + comm.rank) for at in range(calls)]
            want = program(inputs, torch.eye(4))
            with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(
                enable_autograd_cache=False  # a cached graph may be older than the ops
            ):
                got = torch.compile(program, fullgraph=True)(inputs, torch.eye(4))
            torch._dynamo.reset()
            wrong += [pair] if any(not torch.allclose(a, b) for a, b in zip(got, want)) else []
            comm.barrier()
        return wrong

    assert banyan.run(body, ranks=2, timeout=600 + 10 * pairs) == [[], []], f"seed {SEED}"


def test_tags_that_differ_name_the_op():
    def body(comm):
        number = torch_ops.handle(comm)
        one, other = torch.ones(4), torch.full((4,), 2.0)
        assert torch.equal(torch.ops.banyan.shift(one, number, tag=1), one)
        torch.ops.banyan.shift(one if comm.rank else other, number, tag=1 + comm.rank)

    with pytest.raises(banyan.RankError, match="tag 1 there, tag 2 here|tag 2 there, tag 1 here"):
        banyan.run(body, ranks=2, start="thread", timeout=60)
