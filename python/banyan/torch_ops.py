# SPDX-License-Identifier: Apache-2.0
"""Ops of PyTorch in the namespace `banyan`. Importing this module registers them.

    comm_handle = banyan.torch_ops.handle(comm)
    out, lse = torch.ops.banyan.combine(o, lse, comm_handle)
    torch.ops.banyan.combine_out(o, lse, comm_handle, out=out, out_lse=out_lse)
    total = torch.ops.banyan.allreduce(x, comm_handle)
    values, positions = torch.ops.banyan.topk(scores, k)
    scores, indices, own, own_counts = torch.ops.banyan.select(values, positions + first_key, comm_handle)

A handle is an integer, so that graphs can hold it. Ops are defined by torch.library's define and impl, without the
decorators of custom_op, and have implementations for fake tensors: torch.compile and export trace them.

A compiled graph runs the ops of this module in the order of the program, and drops none whose result is unused. So all
ranks run the same ops in the same order, even if the rest of their graphs differs. Ranks compare the `tag` of each op,
an integer from 0 on. Two ops of one shape that pair up although their tags differ raise MismatchError.
"""

import torch

from . import _core
from ._core import split
from ._core import torch_comm as _comm


def handle(comm):
    """Returns the integer that identifies a communicator in ops. It is valid as long as the communicator."""
    return _core.torch_handle(comm)


_HOW = 'str base="e", str empty="-inf", str scatter="none", str wire="f32", str order="plan", int tag=-1'
_library = torch.library.Library("banyan", "DEF")
_library.define(f"combine(Tensor o, Tensor lse, int comm, {_HOW}) -> (Tensor, Tensor)")
_library.define(f"combine_out(Tensor o, Tensor lse, int comm, {_HOW}, *, Tensor(a!) out, Tensor(b!) out_lse) -> ()")
_library.define(
    "attention_combine(Tensor q, Tensor k, Tensor v, Tensor? seq_lens, int comm, float scale=0.0, "
    'str scatter="none", str wire="f32", int tag=-1) -> (Tensor, Tensor)'
)
_SUM = 'str scatter="none", str wire="f32", str order="plan", int tag=-1'
_library.define(f"allreduce(Tensor x, int comm, {_SUM}) -> Tensor")
_library.define(f"allreduce_out(Tensor x, int comm, {_SUM}, *, Tensor(a!) out) -> ()")
_library.define(
    "select(Tensor scores, Tensor indices, int comm, int? k=None, Tensor? rows=None, int tag=-1) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
_library.define("topk(Tensor scores, int k, Tensor? lens=None) -> (Tensor, Tensor)")
_library.define("allgather(Tensor mine, int comm, int tag=-1) -> Tensor")
_library.define("shift(Tensor send, int comm, int distance=1, int tag=-1) -> Tensor")


def _reject_root(scatter):
    if scatter == "root":
        raise ValueError('scatter: "root" has no result on other ranks, which an op must have')


def _tagged(comm, tag, call):
    """Returns call(communicator), whose runs have this tag. A negative tag leaves that of the communicator."""
    comm = _comm(comm)
    if tag < 0:
        return call(comm)
    before = comm.set_tag(tag)
    try:
        return call(comm)
    finally:
        comm.set_tag(before)


def _attention_combine(q, k, v, seq_lens, comm, scale=0.0, scatter="none", wire="f32", tag=-1):
    if scatter == "root":
        _comm(comm)._reject("scatter", '"root" has no result on other ranks, which an op must have')
    how = {"seq_lens": seq_lens, "scale": scale, "scatter": scatter, "wire": wire}
    return _tagged(comm, tag, lambda comm: comm.attention_combine(q, k, v, **how))


def _select(scores, indices, comm, k=None, rows=None, tag=-1):
    given = [None if each is None else each.contiguous() for each in (scores, indices, rows)]
    return _tagged(comm, tag, lambda comm: comm.select(given[0], given[1], k=k, rows=given[2]))


def _topk(scores, k, lens=None):
    return _core.topk(scores.contiguous(), k, lens=lens)


def _allgather(mine, comm, tag=-1):
    return _tagged(comm, tag, lambda comm: comm.allgather(mine.contiguous()))


def _shift(send, comm, distance=1, tag=-1):
    return _tagged(comm, tag, lambda comm: comm.shift(send.contiguous(), distance))


def _part(comm, tokens, heads, scatter):
    if scatter == "heads":
        return tokens, split(heads, comm.nranks, comm.rank)[1]
    if scatter == "tokens":
        return split(tokens, comm.nranks, comm.rank)[1], heads
    _reject_root(scatter)
    return tokens, heads


def _combine_fake(o, lse, comm, base="e", empty="-inf", scatter="none", wire="f32", order="plan", tag=-1):
    rows = _part(_comm(comm), o.shape[0], o.shape[1], scatter)
    return o.new_empty((*rows, o.shape[2])), lse.new_empty(rows)


def _out_fake(*given, **named):
    return None


def _traced(name, *outputs):
    """Traces an out form as the other form and copies, because torch keeps the order only of ops that write nothing."""

    def trace(mode, op, types, args=(), kwargs=None):
        how = dict(kwargs)
        out = [how.pop(each) for each in outputs]
        with mode:
            made = getattr(torch.ops.banyan, name)(*args, **how)
            for to, result in zip(out, (made,) if len(out) == 1 else made):
                to.copy_(result)

    return trace


def _allreduce_fake(x, comm, scatter="none", wire="f32", order="plan", tag=-1):
    shape, comm = list(x.shape), _comm(comm)
    if scatter in ("heads", "tokens"):
        dim = -1 if scatter == "heads" else 0
        shape[dim] = split(shape[dim], comm.nranks, comm.rank)[1]
    _reject_root(scatter)
    return x.new_empty(shape)


def _attention_combine_fake(q, k, v, seq_lens, comm, scale=0.0, scatter="none", wire="f32", tag=-1):
    rows = _part(_comm(comm), q.shape[0], q.shape[1], scatter)
    return q.new_empty((*rows, v.shape[3])), q.new_empty(rows, dtype=torch.float32)


def _select_fake(scores, indices, comm, k=None, rows=None, tag=-1):
    lists = (*scores.shape[:-1], scores.shape[-1] if k is None else k)
    own = scores.new_empty(lists, dtype=torch.int32)
    return scores.new_empty(lists), indices.new_empty(lists), own, own.new_empty(scores.shape[:-1])


def _topk_fake(scores, k, lens=None):
    lists = (*scores.shape[:-1], k)
    return scores.new_empty(lists), scores.new_empty(lists, dtype=torch.int32)


def _allgather_fake(mine, comm, tag=-1):
    return mine.new_empty((_comm(comm).nranks, *mine.shape))


def _shift_fake(send, comm, distance=1, tag=-1):
    return torch.empty_like(send, memory_format=torch.contiguous_format)


def _keep(op):
    """Makes torch.compile run each call of `op` in the order of the program, even if nothing uses its result."""
    for node in (op, op.default):
        torch.fx.node.has_side_effect(node)
    try:
        from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
    except ImportError:  # torch before 2.3 keeps the call, and compiles in the order of the program
        return
    _register_effectful_op(op.default, _EffectType.ORDERED)


for _name, _body, _fake in (
    ("combine", _core.torch_combine, _combine_fake),
    ("combine_out", _core.torch_combine, _out_fake),
    ("allreduce", _core.torch_allreduce, _allreduce_fake),
    ("allreduce_out", _core.torch_allreduce, _out_fake),
    ("attention_combine", _attention_combine, _attention_combine_fake),
    ("select", _select, _select_fake),
    ("topk", _topk, _topk_fake),
    ("allgather", _allgather, _allgather_fake),
    ("shift", _shift, _shift_fake),
):
    for _device in ("CPU", "CUDA"):
        _library.impl(_name, _body, _device)
    if hasattr(torch.library, "register_fake"):
        torch.library.register_fake(f"banyan::{_name}", _fake, lib=_library)
    else:
        # For torch before 2.4. torch 1.13 dispatches tensors without memory to AutogradMeta first, and no further.
        for _key in ("Meta", "AutogradMeta"):
            _library.impl(_name, _fake, _key)
    if _name != "topk" and hasattr(torch, "fx") and hasattr(torch.fx.node, "has_side_effect"):
        _keep(getattr(torch.ops.banyan, _name))

if hasattr(torch.library, "register_torch_dispatch"):
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    for _name, _outputs in (("combine", ("out", "out_lse")), ("allreduce", ("out",))):
        torch.library.register_torch_dispatch(
            f"banyan::{_name}_out", FunctionalTensorMode, _traced(_name, *_outputs), lib=_library
        )
