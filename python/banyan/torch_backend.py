# SPDX-License-Identifier: Apache-2.0
"""The backend "banyan" of torch.distributed, for tensors in host memory. Importing this module registers it.

    import banyan.torch_backend
    torch.distributed.init_process_group("cpu:banyan")

Sums of f32, f16 and bf16 are Communicator.allreduce(), in f32 with one rounding. All other reductions are all-gathers
that each rank reduces in the order of ranks. Calls complete before they return, with or without async_op, except isend
and irecv. If a rank fails, all others get an exception of banyan that names it. What the backend lacks, which is
all_reduce of sparse tensors, goes to a gloo group made from the same store. The log says so once.
"""

import functools
import itertools
import logging
import queue
import threading
import zlib

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.distributed import distributed_c10d as c10d

from .communicator import Communicator
from .errors import MismatchError, UnsupportedError

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_PIECE = 4 << 20  # bytes that all ranks together gather at once to reduce them
_SUM, _AVG = ReduceOp.RedOpType.SUM, ReduceOp.RedOpType.AVG
_REDUCTIONS = {
    _SUM: lambda every: every.sum(0, dtype=every.dtype),
    _AVG: lambda every: every.mean(0),  # f64 and complex numbers; a mean of integers is an error
    ReduceOp.RedOpType.PRODUCT: lambda every: every.prod(0, dtype=every.dtype),
    ReduceOp.RedOpType.MAX: lambda every: every.amax(0),
    ReduceOp.RedOpType.MIN: lambda every: every.amin(0),
    ReduceOp.RedOpType.BAND: lambda every: _fold(torch.bitwise_and, every),
    ReduceOp.RedOpType.BOR: lambda every: _fold(torch.bitwise_or, every),
    ReduceOp.RedOpType.BXOR: lambda every: _fold(torch.bitwise_xor, every),
}


def _fold(function, every):
    total = every[0]
    for each in every[1:]:
        total = function(total, each)
    return total


@functools.lru_cache(256)
def _tag_of(what, dtype):
    return zlib.crc32(f"{what} of {dtype}".encode())


def _compared(comm, what, dtype, call, *given, **how):
    """Makes a call of `comm` in which ranks compare, by its tag, what it is for."""
    before = comm.set_tag(_tag_of(what, dtype))
    try:
        return call(*given, **how)
    except MismatchError as error:
        raise MismatchError(f"{error}; here it is {what} of {dtype}", error.rank) from None
    finally:
        comm.set_tag(before)


def _plain(tensor):
    """Returns the tensor, or a copy if it is not contiguous."""
    return tensor.detach().contiguous()


def _give_back(whole, tensor):
    """Writes what _plain() has returned to the tensor."""
    if whole.data_ptr() != tensor.data_ptr():
        tensor.copy_(whole)


class _Work(dist.Work):
    """A call that is complete, or one of a channel, which completes later."""

    def __init__(self, result=(), pending=None):
        super().__init__()
        self._result, self._pending, self._error = result, pending, None

    def wait(self, timeout=None):
        if self._pending and not self._pending.wait(timeout.total_seconds() if timeout else None):
            raise TimeoutError("the message of a peer has not arrived in the time of this wait")
        if self._error:
            raise self._error
        return True

    def is_completed(self):
        return not self._pending or self._pending.is_set()

    def is_success(self):
        return self.is_completed() and not self._error

    def exception(self):
        return self._error

    def result(self):
        return list(self._result)

    def get_future(self):
        future = torch.futures.Future()
        self.wait()
        future.set_result(list(self._result))
        return future


class _Channel:
    """Messages from one rank to another: a communicator of the two, which a thread makes and uses."""

    def __init__(self, store, name, rank, timeout):
        self._made = (store, name, rank, timeout)
        self._calls = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"banyan {name}", daemon=True).start()

    def add(self, tensor, tag):
        work = _Work([tensor], threading.Event())
        self._calls.put((work, tensor, tag))
        return work

    def close(self):
        self._calls.put(None)

    def _run(self):
        store, name, rank, timeout = self._made
        comm = error = None
        for work, tensor, tag in iter(self._calls.get, None):
            try:
                if error:
                    raise error
                if comm is None:
                    how = {"timeout": timeout, "first_timeout": timeout, "arena_bytes": 1 << 20}
                    comm = Communicator.from_torch(store=store, rank=rank, nranks=2, prefix=name, **how)
                whole = _plain(tensor)
                _compared(comm, f"a message with tag {tag}", whole.dtype, comm.broadcast, whole, 0)
                if rank:
                    _give_back(whole, tensor)
            except Exception as failure:  # noqa: BLE001  (it is raised by wait())
                work._error = error = failure
            work._pending.set()
        if comm:
            comm.close()


class ProcessGroup(dist.ProcessGroup):
    """The ranks of a group, as torch.distributed calls them. `communicator` is theirs."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        seconds = timeout.total_seconds()
        self.communicator = Communicator.from_torch(
            store=store, rank=rank, nranks=size, prefix="banyan", timeout=seconds, first_timeout=seconds
        )
        self._channels = {}
        self._gloo = None

    supports_coalescing = supports_splitting = False

    def _get_backend(self, device):  # torch asks it what it supports
        return self

    def getBackendName(self):
        return "banyan"

    def _set_group_name(self, name):
        super()._set_group_name(name)
        self._name = name

    @property
    def group_name(self):  # that of the base needs a backend in C++
        return self._name

    def size(self):
        return self._size

    def rank(self):
        return self._rank

    def shutdown(self):
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self._gloo = None
        self.communicator.close()

    def abort(self):
        self.communicator.abort("the process group was aborted")

    def _check(self, tensor):
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            self.communicator._reject("tensor", f"it is of {tensor.device} and {tensor.layout}, and not dense on the CPU")

    def _dense(self, tensor):
        self._check(tensor)
        return _plain(tensor)

    def _want(self, name, tensor, dtype, count):
        """Rejects a tensor of another dtype or number of elements. `copy_` would convert or broadcast it."""
        self._check(tensor)
        if tensor.dtype != dtype or tensor.numel() != count:
            had = f"{tensor.numel()} elements of {tensor.dtype}"
            self.communicator._reject(name, f"it has {had}, and here are {count} of {dtype}")

    def _call(self, what, dtype, call, *given, **how):
        return _compared(self.communicator, what, dtype, call, *given, **how)

    def _allgather(self, what, tensor, **how):
        return self._call(what, tensor.dtype, self.communicator.allgather, tensor, **how)

    def _by_gloo(self, name, *given):
        # A rank that makes another call gets MismatchError here, and does not leave the others in gloo.
        self._allgather(f"{name} by gloo", torch.zeros(1))
        if self._gloo is None:
            logging.getLogger("banyan").warning("%s goes to gloo, because the backend banyan does not have it", name)
            store = dist.PrefixStore("gloo", self._store)
            self._gloo = dist.ProcessGroupGloo(store, self._rank, self._size, self._timeout)
        return getattr(self._gloo, name)(*given)

    # Reductions. Each writes `to`, a contiguous tensor that may be `of`.

    def _sum(self, of, to, operation, **how):
        if operation == _SUM:
            self.communicator.allreduce(of, out=to, **how)
            return
        total = self._call("a mean", of.dtype, self.communicator.allreduce, of.float(), **how)  # f16 may not hold it
        if to is not None:
            to.copy_(total.div_(self._size))

    def _is_sum(self, tensor, operation):
        return tensor.dtype in _FLOATS and operation in (_SUM, _AVG)

    def _reduce(self, tensor, operation):
        """Reduces a contiguous tensor in place."""
        if self._is_sum(tensor, operation):
            return self._sum(tensor, tensor, operation)
        reduction = _REDUCTIONS.get(operation)
        if reduction is None or (operation == _AVG and not (tensor.is_floating_point() or tensor.is_complex())):
            self.communicator._reject("op", f"banyan has no reduction {operation} of {tensor.dtype}")
        flat = tensor.view(-1)
        for piece in flat.split(max(1, _PIECE // self._size // tensor.element_size())):
            piece.copy_(reduction(self._allgather(f"a reduction {operation}", piece)))

    def allreduce(self, tensors, opts=c10d.AllreduceOptions()):
        for tensor in tensors:
            if tensor.is_sparse:
                return self._by_gloo("allreduce", tensors, opts)
            whole = self._dense(tensor)
            self._reduce(whole, opts.reduceOp.op)
            _give_back(whole, tensor)
        return _Work(tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors, opts=c10d.ReduceOptions()):
        (tensor,) = tensors
        whole, is_root = self._dense(tensor), self._rank == opts.rootRank
        if self._is_sum(whole, opts.reduceOp.op):
            self._sum(whole, whole if is_root else None, opts.reduceOp.op, scatter="root", root=opts.rootRank)
        else:
            whole = whole.clone()
            self._reduce(whole, opts.reduceOp.op)
        if is_root:
            _give_back(whole, tensor)
        return _Work(tensors)

    def reduce_scatter_single(self, output, of, opts=c10d.ReduceScatterOptions()):
        whole, out = self._dense(of), self._dense(output)
        self._want("input", whole, out.dtype, out.numel() * self._size)
        whole = whole.view(self._size, out.numel())
        if self._is_sum(whole, opts.reduceOp.op):
            self._sum(whole, out.view(1, out.numel()), opts.reduceOp.op, scatter="tokens")
        else:
            whole = whole.clone()
            self._reduce(whole, opts.reduceOp.op)
            out.view(-1).copy_(whole[self._rank])
        _give_back(out, output)
        return _Work([output])

    def reduce_scatter(self, outputs, inputs, opts=c10d.ReduceScatterOptions()):
        return self.reduce_scatter_single(outputs[0], self._joined(inputs[0], outputs[0]), opts)

    def _joined(self, inputs, output):
        """Returns the inputs, one for each rank, as one tensor. Each is as large as an output."""
        for each in inputs:
            self._want("input", each, output.dtype, output.numel())
        if len(inputs) != self._size:
            self.communicator._reject("input", f"a list of {len(inputs)} tensors for {self._size} ranks")
        return torch.stack([each.detach().reshape(output.shape) for each in inputs])

    # Copies.

    def broadcast(self, tensors, opts=c10d.BroadcastOptions()):
        for tensor in tensors:
            whole = self._dense(tensor)
            self._call("a broadcast", whole.dtype, self.communicator.broadcast, whole, opts.rootRank)
            _give_back(whole, tensor)
        return _Work(tensors)

    def all_gather_single(self, output, of, opts=c10d.AllgatherOptions()):
        whole, out = self._dense(of), self._dense(output)
        self._want("output", out, whole.dtype, whole.numel() * self._size)
        self._allgather("an all-gather", whole, out=out)
        _give_back(out, output)
        return _Work([output])

    def allgather(self, outputs, inputs, opts=c10d.AllgatherOptions()):
        for out, of in zip(outputs, inputs):
            whole, counts = self._dense(of).view(-1), [each.numel() for each in out]
            for each in out:
                self._want("output", each, whole.dtype, each.numel())
            every = self._allgather("an all-gather", whole, counts=counts)
            for to, piece in zip(out, every.split(counts)):
                to.copy_(piece.view(to.shape))
        return _Work(list(itertools.chain(*outputs)))

    def gather(self, outputs, inputs, opts=c10d.GatherOptions()):
        mine, to_root = self._dense(inputs[0]), outputs[0] if self._rank == opts.rootRank else []
        for to in to_root:
            self._want("output", to, mine.dtype, mine.numel())
        every = self._allgather(f"a gather to rank {opts.rootRank}", mine)
        for to, of in zip(to_root, every):
            to.copy_(of.view(to.shape))
        return _Work(outputs[0] if outputs else [])

    def scatter(self, outputs, inputs, opts=c10d.ScatterOptions()):
        is_root = self._rank == opts.rootRank
        like = self._dense(outputs[0])
        every = self._joined(inputs[0], like) if is_root else like.new_empty((self._size, *like.shape))
        self._call("a scatter", every.dtype, self.communicator.broadcast, every, opts.rootRank)
        outputs[0].copy_(every[self._rank])
        return _Work(outputs)

    def all_to_all_single(self, output, of, output_splits=(), input_splits=(), opts=c10d.AllToAllOptions()):
        """Shifts by each distance. Ranks first gather who sends how much and wants how much, so that all of them make the
        same calls, or get the same error."""
        whole, out = self._dense(of), self._dense(output)
        both = [self._split("input", whole, input_splits), self._split("output", out, output_splits)]
        every = self._call("an all-to-all", whole.dtype, self.communicator.allgather, torch.tensor(both))
        sizes, wanted = every.unbind(1)
        for source, target in (sizes != wanted.t()).nonzero().tolist():
            many = f"sends {int(sizes[source, target])} elements, and that one wants {int(wanted[target, source])}"
            raise MismatchError(f"all_to_all: rank {source} to rank {target} {many}", source)
        starts = [0, *itertools.accumulate(sizes[self._rank].tolist())]
        pieces = [None] * self._size
        for distance in range(self._size):
            to, source = (self._rank + distance) % self._size, (self._rank - distance) % self._size
            most = max(int(sizes[r, (r + distance) % self._size]) for r in range(self._size))
            room = whole.new_empty(most)
            room[: starts[to + 1] - starts[to]] = whole.view(-1)[starts[to] : starts[to + 1]]
            got = self.communicator.shift(room, distance) if most else room
            pieces[source] = got[: int(sizes[source, self._rank])]
        output.copy_(torch.cat(pieces).view(output.shape))
        return _Work([output])

    def _split(self, name, tensor, splits):
        """Returns the elements of a tensor for each rank: of `splits` rows, or of as many for each."""
        rows = len(tensor) if tensor.dim() else 0
        each = list(splits or ()) or [rows // self._size] * self._size
        if sum(each) != rows or len(each) != self._size or min(each) < 0:
            self.communicator._reject(f"{name}_split_sizes", f"{each}: for {rows} rows and {self._size} ranks")
        return [count * (tensor.numel() // max(1, rows)) for count in each]

    def alltoall(self, outputs, inputs, opts=c10d.AllToAllOptions()):
        made, given = (torch.cat([self._dense(each).view(-1) for each in every]) for every in (outputs, inputs))
        self.all_to_all_single(made, given, [e.numel() for e in outputs], [e.numel() for e in inputs])
        for to, of in zip(outputs, made.split([each.numel() for each in outputs])):
            to.copy_(of.view(to.shape))
        return _Work(outputs)

    def barrier(self, opts=c10d.BarrierOptions()):
        self.communicator.barrier()
        return _Work()

    def _pairwise(call):  # several of one kind, as the coalesced forms take them
        def run(self, outputs, inputs, *opts):
            for out, of in zip(outputs, inputs):
                call(self, out, of, *opts)
            return _Work(outputs)

        return run

    allgather_into_tensor_coalesced = all_gather_single_coalesced = _pairwise(all_gather_single)
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced = _pairwise(reduce_scatter_single)
    # Names in torch before 2.14.
    _allgather_base, _reduce_scatter_base, alltoall_base = all_gather_single, reduce_scatter_single, all_to_all_single
    del _pairwise

    # Messages. Those from one rank to another arrive in the order of their sends, and ranks compare their tags.

    def _channel(self, source, target):
        if source == target:
            raise ValueError(f"rank {source} cannot send to itself")
        if (source, target) not in self._channels:
            name, rank = f"banyan from {source} to {target}", int(self._rank == target)
            self._channels[source, target] = _Channel(self._store, name, rank, self._timeout.total_seconds())
        return self._channels[source, target]

    def send(self, tensors, target, tag):
        return self._channel(self._rank, target).add(self._dense(tensors[0]), tag)

    def recv(self, tensors, source, tag):
        self._dense(tensors[0])
        return self._channel(source, self._rank).add(tensors[0].detach(), tag)

    def recv_anysource(self, tensors, tag):
        raise UnsupportedError("recv without a source: the backend banyan needs the rank that sends")


dist.Backend.register_backend("banyan", ProcessGroup, devices=["cpu"])
