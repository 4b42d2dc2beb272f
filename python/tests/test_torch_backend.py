# SPDX-License-Identifier: Apache-2.0
"""The backend of torch.distributed: the results of gloo, in processes; ranks that fail."""

import datetime
import multiprocessing
import os
import signal
import traceback

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not hasattr(dist, "ReduceOp") or not hasattr(dist.Backend, "default_device_backend_map"):
    pytest.skip("torch before 2.1 takes no such backends", allow_module_level=True)


def meet(rank, ranks, path, backend, timeout=60):
    import banyan.torch_backend  # noqa: F401  (it registers the backend)

    store = dist.FileStore(path, ranks)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=timeout)
    )


def rank_main(body, rank, ranks, path, pipe, given):
    torch.set_num_threads(1)
    try:
        meet(rank, ranks, path, *given)
        pipe.send((True, body(rank, ranks)))
        dist.destroy_process_group()
    except BaseException as error:
        pipe.send((False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
    pipe.close()


def run(body, ranks, tmp_path, *given):
    """Returns what each rank returned: (True, its result), (False, its exception's text), or None if it was killed."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
    path = str(tmp_path / f"store-{os.urandom(4).hex()}")
    workers = [
        context.Process(target=rank_main, args=(body, r, ranks, path, pipes[r][1], given)) for r in range(ranks)
    ]
    for worker in workers:
        worker.start()
    results = []
    for (receive, send), worker in zip(pipes, workers):
        send.close()
        try:
            results.append(receive.recv() if receive.poll(120) else None)
        except EOFError:
            results.append(None)
        worker.join(20)
        if worker.is_alive():
            worker.kill()
    return results


def ok(results):
    assert all(each and each[0] for each in results), results
    return [each[1] for each in results]


def values(rank, dtype, shape=(3, 4)):
    made = torch.arange(12).remainder(5).view(shape) * (rank + 1) - 3 * rank
    return made.to(dtype) if dtype != torch.bool else made > 0


def collectives(rank, ranks):
    """Every collective, with values whose sums are exact. Lists are copied to plain Python for the comparison."""
    said = []
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8):
        for operation in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
            x = values(rank, dtype)
            dist.all_reduce(x, operation)
            by_columns = values(rank, dtype).t()
            dist.all_reduce(by_columns, operation)
            on_root = values(rank, dtype)
            dist.reduce(on_root, 1, operation)
            said += [x, by_columns, on_root if rank == 1 else None]
        every = [torch.zeros(3, 4, dtype=dtype) for _ in range(ranks)]
        dist.all_gather(every, values(rank, dtype))
        joined = torch.zeros(3 * ranks, 4, dtype=dtype)
        dist.all_gather_into_tensor(joined, values(rank, dtype))
        given = values(rank, dtype)
        dist.broadcast(given, ranks - 1)
        here = [torch.zeros(3, 4, dtype=dtype) for _ in range(ranks)] if rank == 0 else None
        dist.gather(values(rank, dtype), here, 0)
        part = torch.zeros(3, 4, dtype=dtype)
        dist.scatter(part, [values(r + 1, dtype) for r in range(ranks)] if rank == 1 else None, 1)
        said += [*every, joined, given, *(here or []), part]
    bits = torch.tensor([1 << rank, 3], dtype=torch.int32)
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    objects = [{"rank": rank}, "x" * rank]
    dist.broadcast_object_list(objects, 1)
    all_objects = [None] * ranks
    dist.all_gather_object(all_objects, ("of", rank, b"y" * rank))
    work = dist.all_reduce(torch.ones(5), async_op=True)
    work.wait()
    dist.barrier()
    said += [bits, objects, all_objects, work.is_completed()]
    return [each.tolist() if isinstance(each, torch.Tensor) else each for each in said]


@pytest.mark.parametrize("ranks", [2, 3])
def test_results_are_those_of_gloo(ranks, tmp_path):
    want = ok(run(collectives, ranks, tmp_path, "gloo"))
    assert ok(run(collectives, ranks, tmp_path, "cpu:banyan")) == want


def scattered(rank, ranks):
    x = torch.stack([values(rank, torch.float32) + r for r in range(ranks)])
    want = sum(values(r, torch.float32) + rank for r in range(ranks))
    out = torch.zeros(3, 4)
    dist.reduce_scatter_tensor(out, x.view(-1, 4))
    assert torch.equal(out, want)
    dist.reduce_scatter(out.zero_(), list(x))
    assert torch.equal(out, want)
    most = torch.zeros(3, 4, dtype=torch.int64)
    dist.reduce_scatter_tensor(most, x.view(-1, 4).long(), dist.ReduceOp.MAX)
    assert torch.equal(most, torch.stack([values(r, torch.int64) + rank for r in range(ranks)]).amax(0))
    for dtype in (torch.float32, torch.float64, torch.complex64):
        mean = torch.full((4,), float(rank), dtype=dtype)
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        assert (mean == (ranks - 1) / 2).all()
    large = torch.full((2 * ranks, 2), 60000.0, dtype=torch.float16)  # whose sum f16 does not hold
    half = torch.empty(2, 2, dtype=torch.float16)
    dist.reduce_scatter_tensor(half, large, dist.ReduceOp.AVG)
    dist.all_reduce(large, dist.ReduceOp.AVG)
    assert (large == 60000).all() and (half == 60000).all()
    swapped = torch.zeros(ranks, 2)
    dist.all_to_all_single(swapped, torch.tensor([[10.0 * rank + r] * 2 for r in range(ranks)]))
    assert swapped[:, 0].tolist() == [10 * r + rank for r in range(ranks)]
    lists = [torch.zeros(1) for _ in range(ranks)]
    dist.all_to_all(lists, [torch.tensor([10.0 * rank + r]) for r in range(ranks)])
    assert [each.item() for each in lists] == [10 * r + rank for r in range(ranks)]
    # Uneven splits, of which one rank's may be even: all ranks send one row to rank 0, and 1 + their number to others.
    sizes = [[1 if to == 0 else 1 + r for to in range(ranks)] for r in range(ranks)]
    got = torch.zeros(sum(sizes[r][rank] for r in range(ranks)), 2)
    given = torch.full((sum(sizes[rank]), 2), float(rank))
    dist.all_to_all_single(got, given, [sizes[r][rank] for r in range(ranks)], sizes[rank])
    assert got[:, 1].tolist() == [float(r) for r in range(ranks) for _ in range(sizes[r][rank])]
    lists = [torch.zeros(sizes[r][rank]) for r in range(ranks)]
    dist.all_to_all(lists, [torch.full((n,), float(rank)) for n in sizes[rank]])
    assert [each.tolist() for each in lists] == [[float(r)] * sizes[r][rank] for r in range(ranks)]
    sparse = torch.eye(3).to_sparse()  # gloo has these
    dist.all_reduce(sparse)
    assert torch.equal(sparse.to_dense(), ranks * torch.eye(3))


def messages(rank, ranks):
    """A ring in which each rank sends before it receives, and messages of both directions and several sizes."""
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    sends = [dist.isend(torch.full((n,), float(100 * rank + n)), right) for n in (1, 70000, 3)]
    got = [torch.zeros(n) for n in (1, 70000, 3)]
    for each in [dist.irecv(each, left) for each in got] + sends:
        each.wait()
    assert [each[-1].item() for each in got] == [100 * left + n for n in (1, 70000, 3)]
    wide = torch.zeros(4, 6, dtype=torch.int64)
    work = [dist.isend(torch.arange(8).view(2, 4).t(), left, tag=5), dist.irecv(wide[:, ::3], right, tag=5)]
    assert all(each.wait() for each in work)
    assert torch.equal(wide[:, ::3], torch.arange(8).view(2, 4).t()) and wide[:, 1].sum() == 0
    pair = [dist.P2POp(dist.isend, torch.ones(3), right), dist.P2POp(dist.irecv, got[2], left)]
    assert all(each.wait() for each in dist.batch_isend_irecv(pair)) and (got[2] == 1).all()
    if rank == 0:
        dist.send_object_list(["of 0"], 1)
    elif rank == 1:
        heard = [None]
        dist.recv_object_list(heard, 0)
        assert heard == ["of 0"]


def groups(rank, ranks):
    pair, rest = dist.new_group([0, 2], backend="cpu:banyan"), dist.new_group([1])
    x = torch.tensor([float(rank)])
    if rank in (0, 2):
        dist.all_reduce(x, group=pair)
        dist.broadcast(x, 2, group=pair)
        assert pair.communicator.nranks == 2 and x.item() == 2
        dist.destroy_process_group(pair)
    else:
        dist.all_reduce(x, group=rest)
        assert x.item() == 1
    dist.barrier()
    if hasattr(torch.ops._c10d_functional, "all_reduce"):  # as compiled graphs call it, through C++
        total = torch.ops._c10d_functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD.group_name)
        assert torch.ops._c10d_functional.wait_tensor(total).tolist() == [ranks, ranks]


@pytest.mark.parametrize("body, ranks", [(scattered, 2), (scattered, 3), (messages, 2), (messages, 3), (groups, 3)])
def test_bodies(body, ranks, tmp_path):
    ok(run(body, ranks, tmp_path, "cpu:banyan"))


def dies(rank, ranks):
    dist.all_reduce(torch.ones(4))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


DIFFERENT = {  # calls of two ranks that do not go together
    "shape": lambda rank: dist.all_reduce(torch.ones(4 + rank)),
    "layout": lambda rank: dist.all_reduce(torch.eye(3) if rank else torch.eye(3).to_sparse()),
    "reduction": lambda rank: dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if rank else dist.ReduceOp.MIN),
    "mean": lambda rank: dist.all_reduce(torch.ones(4), dist.ReduceOp.AVG if rank else dist.ReduceOp.SUM),
    "dtype": lambda rank: dist.broadcast(torch.ones(2, dtype=torch.float64) if rank else torch.ones(4), 0),
    "root": lambda rank: dist.gather(torch.ones(2), [torch.zeros(2), torch.zeros(2)], rank),
    "splits": lambda rank: dist.all_to_all_single(torch.ones(4), torch.ones(4), [4, 0]),
    "message": lambda rank: dist.isend(torch.ones(2), 0).wait() if rank else dist.recv(torch.ones(1).long(), 1),
}


def gives_wrong_tensors(rank, ranks):
    """Rank 0 is at fault, and the other learns it at once. The group remains usable."""
    import banyan

    bad, three, six = rank == 0, torch.ones(3), torch.ones(6)
    for call in (
        lambda: dist.reduce_scatter_tensor(three, torch.ones(7 if bad else 6)),
        lambda: dist.reduce_scatter(three, [three, six if bad else three]),
        lambda: dist.scatter(three, [three, six] if bad else None, 0),
        lambda: dist.all_gather_into_tensor(torch.ones(6, dtype=torch.int32 if bad else torch.float32), three),
        lambda: dist.gather(three, [torch.ones(3), six] if bad else None, 0),
        lambda: dist.all_to_all_single(torch.ones(6), six, None, [7, -1] if bad else None),
        lambda: dist.all_reduce(torch.ones(3, dtype=torch.int64), dist.ReduceOp.AVG if bad else dist.ReduceOp.SUM),
    ):
        with pytest.raises(banyan.ArgumentError if bad else banyan.PeerError):
            call()
        dist.barrier()


def sends_to_none(rank, ranks):
    if rank == 0:
        dist.recv(torch.ones(1), 1)
    dist.barrier()


def test_a_dead_rank_is_named(tmp_path):
    results = run(dies, 3, tmp_path, "cpu:banyan")
    assert results[1] is None
    assert all("PeerError" in results[r][1] and "rank 1" in results[r][1] for r in (0, 2)), results


@pytest.mark.parametrize("what", DIFFERENT)
def test_calls_that_differ_are_named(what, tmp_path):
    results = run(lambda rank, ranks: DIFFERENT[what](rank), 2, tmp_path, "cpu:banyan")
    assert all("MismatchError" in each[1] for each in results), results


def test_a_wrong_tensor_is_an_error_on_all_ranks(tmp_path):
    ok(run(gives_wrong_tensors, 2, tmp_path, "cpu:banyan"))


def test_deadlines(tmp_path):
    results = run(sends_to_none, 2, tmp_path, "cpu:banyan", 2)
    assert not results[0][0] and not results[1][0], results
    assert "TimeoutError" in results[1][1] or "PeerError" in results[1][1], results


def test_rejections():
    import banyan
    from banyan import torch_backend

    group = torch_backend.ProcessGroup(dist.HashStore(), 0, 1, datetime.timedelta(seconds=30))
    with pytest.raises(banyan.ArgumentError, match="meta"):
        group.allreduce([torch.empty(3, device="meta")])
    with pytest.raises(banyan.UnsupportedError, match="source"):
        group.recv_anysource([torch.empty(3)], 0)
    with pytest.raises(ValueError, match="itself"):
        group.send([torch.empty(3)], 0, 0)
    with pytest.raises(banyan.ArgumentError, match="input_split_sizes"):
        group.all_to_all_single(torch.empty(3), torch.empty(3), [3], [2])
    group.shutdown()
