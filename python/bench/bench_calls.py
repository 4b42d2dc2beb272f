#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what a call costs: banyan in C, from numpy and from torch, and gloo and mpi4py in the same run, as ratios.

    python python/bench/bench_calls.py                     # one rank, and two ranks as processes; gloo where torch is
    mpirun -n 2 python python/bench/bench_calls.py         # mpi4py as well
    python python/bench/bench_calls.py select              # the 2,048 best of 131,072 scores, here and of all ranks
    python python/bench/bench_calls.py shapes              # a layer of a decoder with a number of tokens not seen before

The methods take turns in rounds, so that what disturbs the machine disturbs all. The first figure is the round that a
tenth of the rounds beat: other programs only add time. The median says how much they added.
"""

import os
import statistics
import sys
import tempfile
import time

import numpy as np

import banyan

TOKENS, HEADS, DIM = 1, 32, 128
ROUNDS, CALLS = 31, 200
SCORES, CHOSEN = 131072, 2048
COUNTS = 200  # numbers of tokens, far more than the plans that a communicator keeps


def merge_numpy(all_o, all_lse):
    top = all_lse.max(0)
    weight = np.exp(all_lse - top)
    total = weight.sum(0)
    return (weight[..., None] * all_o).sum(0) / total[..., None], top + np.log(total)


def banyan_methods(comm):
    o, lse = np.ones((TOKENS, HEADS, DIM), np.float32), np.zeros((TOKENS, HEADS), np.float32)
    out = np.empty_like(o), np.empty_like(lse)
    op = comm.combine_init(o, lse, out=out)
    yield "C: start and wait", lambda: op.timed(CALLS)
    yield "op()", loop(op)
    yield "combine, numpy, out=", loop(lambda: comm.combine(o, lse, out=out))
    yield "combine, numpy", loop(lambda: comm.combine(o, lse))
    try:
        import torch

        from banyan import torch_ops
        from banyan.compat.vllm import cp_lse_ag_out_ar
    except ImportError:
        return
    t, t_lse = torch.from_numpy(o), torch.from_numpy(lse)
    t_out = torch.empty_like(t), torch.empty_like(t_lse)
    number = torch_ops.handle(comm)
    yield "combine, torch, out=", loop(lambda: comm.combine(t, t_lse, out=t_out))
    yield "combine, torch", loop(lambda: comm.combine(t, t_lse))
    yield "torch.ops.banyan.combine", loop(lambda: torch.ops.banyan.combine(t, t_lse, number))
    yield "compat.vllm, cp_lse_ag_out_ar", loop(lambda: cp_lse_ag_out_ar(t, t_lse, comm, return_lse=True))


def gloo_methods():
    import torch
    import torch.distributed as dist

    ranks = dist.get_world_size()
    o, lse = torch.ones(TOKENS, HEADS, DIM), torch.zeros(TOKENS, HEADS)
    all_o, all_lse = [torch.empty_like(o) for _ in range(ranks)], [torch.empty_like(lse) for _ in range(ranks)]

    packed = torch.empty(ranks, TOKENS, HEADS, DIM + 1)
    mine = torch.empty(TOKENS, HEADS, DIM + 1)

    def gather_packed():
        mine[..., :DIM], mine[..., DIM] = o, lse
        dist.all_gather(list(packed), mine)
        merged = torch.logsumexp(packed[..., DIM], 0)
        return (torch.exp(packed[..., DIM] - merged).unsqueeze(-1) * packed[..., :DIM]).sum(0), merged

    def gather():
        dist.all_gather(all_o, o)
        dist.all_gather(all_lse, lse)
        stacked = torch.stack(all_lse)
        merged = torch.logsumexp(stacked, 0)
        return (torch.exp(stacked - merged).unsqueeze(-1) * torch.stack(all_o)).sum(0), merged

    def three():
        top = lse.clone()
        dist.all_reduce(top, dist.ReduceOp.MAX)
        weight = torch.exp(lse - top)
        values = o * weight.unsqueeze(-1)
        dist.all_reduce(values)
        dist.all_reduce(weight)
        return values / weight.unsqueeze(-1), top + torch.log(weight)

    yield "gloo, packed all-gather and merge", loop(gather_packed, CALLS // 10)
    yield "gloo, two all-gathers and merge", loop(gather, CALLS // 10)
    yield "gloo, three allreduces", loop(three, CALLS // 10)


def select_methods(comm):
    import torch

    torch.set_num_threads(1)
    scores = torch.from_numpy(np.random.default_rng(comm.rank).standard_normal(SCORES).astype(np.float32))
    best, places = banyan.topk(scores, CHOSEN)
    indices = places.long() * comm.nranks + comm.rank
    out = tuple(each.clone() for each in comm.select(best, indices))
    op = comm.select_init(best, indices, out=out)
    yield "select in C: start and wait", lambda: op.timed(CALLS)
    yield "select, torch", loop(lambda: comm.select(best, indices))
    yield "banyan.topk of all scores", loop(lambda: banyan.topk(scores, CHOSEN), CALLS // 10)
    yield "torch.topk of all scores", loop(lambda: torch.topk(scores, CHOSEN), CALLS // 10)


def gloo_select_methods(comm):
    import torch
    import torch.distributed as dist

    best, places = torch.topk(torch.from_numpy(np.random.default_rng(comm.rank).standard_normal(SCORES).astype("f4")), CHOSEN)
    indices = places * comm.nranks + comm.rank
    all_best, all_indices = (torch.empty(comm.nranks, *each.shape, dtype=each.dtype) for each in (best, indices))

    def gather():
        dist.all_gather(list(all_best), best)
        dist.all_gather(list(all_indices), indices)
        values, chosen = torch.sort(all_best.view(-1), descending=True, stable=True)
        return values[:CHOSEN], all_indices.view(-1)[chosen[:CHOSEN]]

    assert (comm.select(best, indices)[1] == gather()[1]).all()
    yield "gloo, two all-gathers and sort", loop(gather, CALLS // 10)


def mpi_methods(world):
    from mpi4py import MPI

    o, lse = np.ones((TOKENS, HEADS, DIM), np.float32), np.zeros((TOKENS, HEADS), np.float32)
    all_o = np.empty((world.size, *o.shape), np.float32)
    all_lse = np.empty((world.size, *lse.shape), np.float32)

    def gather():
        world.Allgather(o, all_o)
        world.Allgather(lse, all_lse)
        return merge_numpy(all_o, all_lse)

    def three():
        top = np.empty_like(lse)
        world.Allreduce(lse, top, MPI.MAX)
        weight = np.exp(lse - top)
        values, total = np.empty_like(o), np.empty_like(lse)
        world.Allreduce(o * weight[..., None], values)
        world.Allreduce(weight, total)
        return values / total[..., None], top + np.log(total)

    yield "mpi4py, all-gather and merge", loop(gather)
    yield "mpi4py, three allreduces", loop(three)


def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def measure_shapes(comm):
    """Each number of tokens comes twice in a row: its plan is made by the first call, and kept for the second."""
    heads, page = HEADS // comm.nranks, 1
    k = np.ones((COUNTS, 1, page, DIM), np.float32)

    def layer(tokens):
        words = dict(page_table=np.arange(tokens, dtype=np.int32)[:, None], seq_lens=np.full(tokens, page, np.int32))
        step = comm.attention_step(gather=True, scatter="heads", keys_max=page, **words)
        q = np.ones((tokens, heads, DIM), np.float32)
        out, began = np.empty_like(q), time.perf_counter()
        step(q, k, k, out)
        return (time.perf_counter() - began) * 1e6

    turns = []
    for turn in range(6):
        turns.append([(layer(tokens), layer(tokens)) for tokens in range(1, COUNTS + 1)])
        if turn == 0:
            before = resident_mib()
    new, known = (statistics.median(pair[i] for turn in turns[1:] for pair in turn) for i in (0, 1))
    most = statistics.median(max(pair[0] - pair[1] for pair in turn) for turn in turns[1:])
    if comm.rank == 0:
        print(f"{comm.nranks} ranks, {HEADS} heads x {DIM}, 1 to {COUNTS} tokens: a number not seen before takes {new:.0f} us, "
              f"the same again {known:.0f} us; the worst of {COUNTS} adds {most:.0f} us. "
              f"{5 * COUNTS:,} new plans later {resident_mib() - before:+.1f} MiB are resident", flush=True)


def loop(call, calls=CALLS):
    def run():
        began = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - began) * CALLS / calls

    return run


def low(each):
    return sorted(each)[len(each) // 10]


def measure(comm, methods, say, what):
    times = {name: [] for name, _ in methods}
    for round_number in range(ROUNDS + 1):
        for name, run in methods:
            comm.barrier()
            seconds = run()
            if round_number:
                times[name].append(seconds / CALLS * 1e6)
    if not say:
        return
    base = low(times[methods[0][0]])
    print(
        f"{comm.nranks} rank{'s' if comm.nranks > 1 else ''}, {what:<28}"
        f"{'us':>9}{'above C':>9}{'ratio':>8}{'median':>10}"
    )
    for name, each in times.items():
        us = low(each)
        print(f"  {name:<36}{us:>9.2f}{us - base:>9.2f}{us / base:>8.1f}{statistics.median(each):>10.2f}")
    print()


def body(comm, meeting, world=None):
    selects = sys.argv[1:] == ["select"]
    methods = list(select_methods(comm) if selects else banyan_methods(comm))
    try:
        import torch.distributed as dist

        if comm.nranks > 1:
            dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=comm.rank, world_size=comm.nranks)
            methods += gloo_select_methods(comm) if selects else gloo_methods()
    except ImportError:
        pass
    if world is not None and not selects:
        methods += mpi_methods(world)
    what = f"{CHOSEN} of {SCORES} scores" if selects else f"{HEADS} rows x {DIM}, f32"
    measure(comm, methods, comm.rank == 0, what)
    sys.stdout.flush()


def main():
    with tempfile.TemporaryDirectory() as folder:
        if "OMPI_COMM_WORLD_SIZE" in os.environ or "PMI_SIZE" in os.environ:
            from mpi4py import MPI

            world = MPI.COMM_WORLD
            meeting = world.bcast(os.path.join(folder, "gloo"))
            with banyan.Communicator.from_mpi(world) as comm:
                body(comm, meeting, world)
            world.Barrier()
            return
        if sys.argv[1:] == ["shapes"]:
            return banyan.run(measure_shapes, 2)
        for ranks in (1, 2):
            banyan.run(body, ranks, args=(os.path.join(folder, f"gloo{ranks}"),))


if __name__ == "__main__":
    main()
