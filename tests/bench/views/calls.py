# SPDX-License-Identifier: Apache-2.0
"""The cost of a call from Python, next to C, gloo, mpi4py, torch and XLA; and prompts of transformers."""
import contextlib
import os
import tempfile
import threading
import time

from frame import CPUS, Times, cell, low, table, timed

TOKENS, HEADS, DIM = 1, 32, 128
CALLS = 200
SCORES, CHOSEN = 131072, 2048
COUNTS = 200  # numbers of tokens, far more than the plans that a communicator keeps
PROMPTS, PROMPT_TOKENS = (2048, 8192, 32768), 49152  # a prompt has as many rounds as fit, and at least one


def in_c(op):
    return lambda: 1e6 * op.timed(CALLS) / CALLS


def rows_of(library):
    return library.ones((TOKENS, HEADS, DIM), dtype=library.float32), library.zeros((TOKENS, HEADS), dtype=library.float32)


def combines(comm):
    import numpy as np

    o, lse = rows_of(np)
    out = np.empty_like(o), np.empty_like(lse)
    op = comm.combine_init(o, lse, out=out)
    yield "C: start and wait", in_c(op)
    yield "op()", timed(op, CALLS)
    yield "combine, numpy, out=", timed(lambda: comm.combine(o, lse, out=out), CALLS)
    yield "combine, numpy", timed(lambda: comm.combine(o, lse), CALLS)
    try:
        import torch

        from banyan import torch_ops
        from banyan.compat.vllm import cp_lse_ag_out_ar
    except ImportError:
        return
    t, t_lse = torch.from_numpy(o), torch.from_numpy(lse)
    t_out = torch.empty_like(t), torch.empty_like(t_lse)
    number = torch_ops.handle(comm)
    yield "combine, torch, out=", timed(lambda: comm.combine(t, t_lse, out=t_out), CALLS)
    yield "combine, torch", timed(lambda: comm.combine(t, t_lse), CALLS)
    yield "torch.ops.banyan.combine", timed(lambda: torch.ops.banyan.combine(t, t_lse, number), CALLS)
    yield "compat.vllm, cp_lse_ag_out_ar", timed(lambda: cp_lse_ag_out_ar(t, t_lse, comm, return_lse=True), CALLS)


def three_reductions(library, reduce, o, lse):
    top = reduce(lse, "max")
    weight = library.exp(lse - top)
    values, total = reduce(o * weight[..., None], "sum"), reduce(weight, "sum")
    return values / total[..., None], top + library.log(total)


def rivals(name, library, ranks, gather, reduce, calls):
    """Combines by all-gathers and merges and by three reductions, in numpy or torch."""
    o, lse = rows_of(library)
    all_o, all_lse, packed = (library.empty((ranks, *shape), dtype=library.float32)
                              for shape in (o.shape, lse.shape, (TOKENS, HEADS, DIM + 1)))
    mine = library.empty((TOKENS, HEADS, DIM + 1), dtype=library.float32)

    def merge(o, lse):
        top = library.amax(lse, 0)
        weight = library.exp(lse - top)
        total = weight.sum(0)
        return (weight[..., None] * o).sum(0) / total[..., None], top + library.log(total)

    def gather_packed():
        mine[..., :DIM], mine[..., DIM] = o, lse
        gather(mine, packed)
        return merge(packed[..., :DIM], packed[..., DIM])

    def gather_both():
        gather(o, all_o)
        gather(lse, all_lse)
        return merge(all_o, all_lse)

    yield f"{name}, packed all-gather and merge", timed(gather_packed, calls)
    yield f"{name}, two all-gathers and merge", timed(gather_both, calls)
    yield f"{name}, three allreduces", timed(lambda: three_reductions(library, reduce, o, lse), calls)


def gloo_combines(comm):
    import torch
    import torch.distributed as dist

    def reduce(x, how):
        x = x.clone()
        dist.all_reduce(x, dist.ReduceOp.MAX if how == "max" else dist.ReduceOp.SUM)
        return x

    return rivals("gloo", torch, comm.nranks, lambda mine, every: dist.all_gather(list(every), mine), reduce, CALLS // 10)


def mpi_combines(world):
    import numpy as np
    from mpi4py import MPI

    def reduce(x, how):
        result = np.empty_like(x)
        world.Allreduce(x, result, MPI.MAX if how == "max" else MPI.SUM)
        return result

    return rivals("mpi4py", np, world.size, world.Allgather, reduce, CALLS)


def selections(comm):
    import banyan
    import numpy as np
    import torch

    torch.set_num_threads(1)
    scores = torch.from_numpy(np.random.default_rng(comm.rank).standard_normal(SCORES).astype(np.float32))
    best, places = banyan.topk(scores, CHOSEN)
    indices = places.long() * comm.nranks + comm.rank
    op = comm.select_init(best, indices, out=tuple(each.clone() for each in comm.select(best, indices)))
    yield "select in C: start and wait", in_c(op)
    yield "select, torch", timed(lambda: comm.select(best, indices), CALLS)
    yield "banyan.topk of all scores", timed(lambda: banyan.topk(scores, CHOSEN), CALLS // 10)
    yield "torch.topk of all scores", timed(lambda: torch.topk(scores, CHOSEN), CALLS // 10)
    if comm.nranks > 1:
        yield "gloo, two all-gathers and sort", timed(gloo_selection(comm, best, indices), CALLS // 10)


def gloo_selection(comm, best, indices):
    import torch
    import torch.distributed as dist

    all_best, all_indices = (torch.empty(comm.nranks, *each.shape, dtype=each.dtype) for each in (best, indices))

    def gather():
        dist.all_gather(list(all_best), best)
        dist.all_gather(list(all_indices), indices)
        values, chosen = torch.sort(all_best.view(-1), descending=True, stable=True)
        return values[:CHOSEN], all_indices.view(-1)[chosen[:CHOSEN]]

    assert (comm.select(best, indices)[1] == gather()[1]).all()
    return gather


def rank_of_calls(comm, selects, rounds, meeting, world=None):
    """The times of one rank's calls, of which the first form is C."""
    with contextlib.suppress(ImportError):
        import torch.distributed as dist

        if comm.nranks > 1:
            dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=comm.rank, world_size=comm.nranks)
    forms = dict(selections(comm) if selects else combines(comm))
    if comm.nranks > 1 and not selects:
        with contextlib.suppress(ImportError):
            forms.update(gloo_combines(comm))
    if world is not None and not selects:
        forms.update(mpi_combines(world))
    times = Times()
    times.turns(comm.nranks, forms, rounds, warm_up=1, before=comm.barrier)
    return times


def calls(options):
    import banyan

    def rows(found):
        for times in found:
            base = next(low(values) for values in times.found.values())
            for ranks, name in times.found:
                us = times(ranks, name, low)
                yield [ranks, name, us, us - base, cell(us / base, 1), times(ranks, name)]

    selects = options.view == "select"
    with tempfile.TemporaryDirectory() as folder:
        if "OMPI_COMM_WORLD_SIZE" in os.environ or "PMI_SIZE" in os.environ:
            from mpi4py import MPI

            world = MPI.COMM_WORLD
            meeting = world.bcast(os.path.join(folder, "gloo"))
            with banyan.Communicator.from_mpi(world) as comm:
                found = [rank_of_calls(comm, selects, options.rounds, meeting, world)]
            world.Barrier()
            if world.rank > 0:
                return
        else:
            found = (banyan.run(rank_of_calls, ranks, args=(selects, options.rounds, os.path.join(folder, f"gloo{ranks}")))[0]
                     for ranks in options.ranks)
        table(options, ["ranks", "call", "us", "above C", "ratio", "median"], rows(found))


# ---- a layer of a decoder --------------------------------------------------------------------------------------------


def resident_mib():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def rank_of_layer(comm, rounds):
    """Each number of tokens comes twice in a row: its plan is made by the first call, and kept for the second."""
    import numpy as np

    heads, times = HEADS // comm.nranks, Times()
    k = np.ones((COUNTS, 1, 1, DIM), np.float32)

    def once(tokens):
        words = {"page_table": np.arange(tokens, dtype=np.int32)[:, None], "seq_lens": np.full(tokens, 1, np.int32)}
        step = comm.attention_step(gather=True, scatter="heads", keys_max=1, **words)
        q = np.ones((tokens, heads, DIM), np.float32)
        out = np.empty_like(q)
        return timed(lambda: step(q, k, k, out))()

    for turn in range(rounds + 1):
        pairs = [(once(tokens), once(tokens)) for tokens in range(1, COUNTS + 1)]
        if turn == 0:
            before = resident_mib()
            continue
        for new, known in pairs:
            times.add("all", "new", new)
            times.add("all", "known", known)
        times.add("all", "worst", max(new - known for new, known in pairs))
    return [comm.nranks, *(times("all", name) for name in ("new", "known", "worst")), resident_mib() - before]


def layer(options):
    import banyan

    table(options, ["ranks", f"a new number of 1 to {COUNTS} tokens, us", "the same again", "the worst adds", "MiB more resident"],
          (banyan.run(rank_of_layer, ranks, args=(options.rounds,))[0] for ranks in options.ranks))


# ---- JAX -------------------------------------------------------------------------------------------------------------


def jax(options):
    """Devices of one process are ranks."""
    ranks = options.ranks[0]
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={ranks}"
    import banyan
    import jax as xla
    import jax.numpy as jnp
    import numpy as np
    from banyan import jax_ops

    group, comms = banyan.Threads(ranks), [None] * ranks

    def make(rank):
        comms[rank] = banyan.Communicator.from_threads(group, rank)

    def reduce(x, how):
        return (xla.lax.pmax if how == "max" else xla.lax.psum)(x, "x")

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    mesh, spec = xla.sharding.Mesh(xla.devices(), ("x",)), xla.sharding.PartitionSpec("x")
    where = xla.sharding.NamedSharding(mesh, spec)
    o, lse = (xla.device_put(np.ones((ranks, *shape), np.float32), where) for shape in ((HEADS, DIM), (HEADS,)))

    def form(call):
        mapped = xla.jit(xla.shard_map(call, mesh=mesh, in_specs=(spec, spec), out_specs=(spec, spec), check_vma=False))
        return timed(lambda: mapped(o, lse)[0].block_until_ready(), 30)

    times = Times()
    times.turns(ranks, {"combine": form(lambda o, lse: jax_ops.combine(o, lse, comms, axis_name="x")),
                        "reductions": form(lambda o, lse: three_reductions(jnp, reduce, o, lse))}, options.rounds)
    table(options, ["devices", "combine, us", "pmax and two psums", "ratio"],
          [[ranks, times(ranks, "combine"), times(ranks, "reductions"), times.ratio(ranks, "combine", "reductions")]])


# ---- the first token -------------------------------------------------------------------------------------------------


def model_of(implementation):
    import torch
    import transformers

    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        **{"vocab_size": 512, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2},
        **{"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 65536},
    )
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()


def rank_of_prompts(comm, lengths):
    """The times of one rank's prompts, by length and form. Ranks divide the cores of the machine."""
    import torch
    from banyan.transformers import ShardedCache

    torch.set_num_threads(max(1, len(CPUS) // comm.nranks))
    stock, ours, times = model_of("sdpa"), model_of("banyan"), Times()
    for length in lengths:
        ids, tokens = torch.randint(2, 512, (1, length), generator=torch.Generator().manual_seed(length)), set()

        def answer(model, prefill=None):
            words = ShardedCache(ours.config, comm, max_length=length + 1, prefill=prefill).keyword if prefill else {}
            comm.barrier()
            since = time.perf_counter()
            with torch.no_grad():
                tokens.add(model(input_ids=ids, logits_to_keep=1, use_cache=True, **words).logits.argmax().item())
            comm.barrier()
            return 1e3 * (time.perf_counter() - since)

        forms = {name: lambda name=name: answer(ours, name) for name in ("sharded", "local")[:comm.nranks]}
        if comm.nranks == 1:
            forms["stock"] = lambda: answer(stock)
        times.turns(length, forms, max(1, min(4, PROMPT_TOKENS // length)))
        assert len(tokens) == 1, f"forms differ at {length}: {tokens}"
    return times


def first_token(options):
    import banyan

    lengths = options.tokens or PROMPTS
    one, two = (banyan.run(rank_of_prompts, ranks, args=(lengths,), start="spawn", timeout=300)[0] for ranks in (1, 2))
    table(options, ["prompt", "stock, ms", "1 rank, ms", "stock / that", "2 ranks, sharded", "2 ranks, local"],
          ([f"{n:,}", *(cell(one(n, name, min), 0) for name in ("stock", "sharded")), one(n, "stock", min) / one(n, "sharded", min),
            *(cell(two(n, name, min), 0) for name in ("sharded", "local"))] for n in lengths))
