# SPDX-License-Identifier: Apache-2.0
"""Functions that the modules of engines share: the communicator of a group, a combine, merges within a rank."""

import math
import weakref

import torch

from .._core import split
from ..communicator import Communicator

_made: "weakref.WeakKeyDictionary[object, Communicator]" = weakref.WeakKeyDictionary()
EMPTY = "+inf|nan"  # in addition to -inf, which always marks an empty row


def set_group(group, comm):
    """Makes `comm` the communicator of `group`."""
    _made[group] = comm


def communicator(group):
    """Returns the communicator of a group, or of its name. Collective at the first call for each group of torch."""
    if isinstance(group, Communicator):
        return group
    if group is None or isinstance(group, str):
        from torch.distributed import distributed_c10d as c10d

        group = c10d._get_default_group() if group is None else c10d._resolve_process_group(group)
    if getattr(type(group), "__weakrefoffset__", 1) == 0:
        raise TypeError(f"a group is a banyan.Communicator, or a process group or its name, and not {group!r}")
    comm = _made.get(group)
    if comm is None or not comm.is_open:
        names = ("cpu_group", "device_group", "cp_group_pg", "group")
        inner = next((getattr(group, name) for name in names if hasattr(group, name)), group)
        comm = _made[group] = Communicator.from_torch(inner() if callable(inner) else inner)
    return comm


def is_alone(group):
    """Returns whether the group has one rank. Makes no communicator if the group itself knows."""
    return (getattr(group, "world_size", None) or communicator(group).nranks) == 1


def base(is_lse_base_on_e):
    """Returns the name that combine() has for the base of lse."""
    return "e" if is_lse_base_on_e else "2"


def contiguous_rows(rows):
    """Returns `rows`, or a copy if the last dimension is not contiguous, because engines' kernels accept it."""
    return rows if rows.stride(-1) == 1 or rows.shape[-1] < 2 else rows.contiguous()


def combine(out, lse, group, base, scatter, return_lse=False, heads_first=False, into=None):
    """out [B, H, D] and lse [B, H] of all ranks -> out in its type, or `into`, and lse in f32 if asked."""
    comm, out = communicator(group), contiguous_rows(out)
    given = lse if lse.dtype == torch.float32 else lse.float()
    words = {"base": base, "empty": EMPTY, "scatter": scatter}
    if not heads_first:
        merged, kept = comm.combine(out, given, out=None if into is None else (into, None), **words)
    else:
        heads = split(out.shape[1], comm.nranks, comm.rank)[1] if scatter == "heads" else out.shape[1]
        merged = out.new_empty((heads, out.shape[0], out.shape[2]))
        kept = given.new_empty((out.shape[0], heads), dtype=torch.float32) if return_lse else None
        comm.combine(out, given, out=(merged.transpose(0, 1), kept), **words)
    return (merged, kept) if return_lse else merged


def combine_entries(rows, lse, group, base=None, sums=None):
    """rows [..., cp, D] and lse [..., cp], of which entry r is for rank r -> [..., D]. Tokens are the entries."""
    comm = communicator(group)
    lead, (cp, dim) = rows.shape[:-2], rows.shape[-2:]
    if cp != comm.nranks:
        comm._reject(
            "partial_o", f"{cp} entries and {comm.nranks} ranks: {tuple(rows.shape)} is not [..., ranks, values]"
        )
    if lse.shape != rows.shape[:-1]:
        comm._reject("partial_lse", f"it is {tuple(lse.shape)} for partials {tuple(rows.shape)}")
    rows, lse = (tensor.reshape(-1, cp, *tensor.shape[len(lead) + 1 :]).transpose(0, 1) for tensor in (rows, lse))
    rows, merged = contiguous_rows(rows), rows.new_empty((1, rows.shape[1], dim))
    if sums is None:
        comm.combine(rows, lse.float(), base=base, empty=EMPTY, scatter="tokens", out=(merged, None))
    else:
        kept = lse.new_empty(merged.shape[:2]), lse.new_empty(merged.shape[:2])
        sums = sums.reshape(-1, cp).transpose(0, 1)
        comm.combine(rows, lse, sum=sums, scatter="tokens", empty=EMPTY, out=(merged, *kept))
    return merged.reshape(*lead, dim)


def merge(v, s, log_of_base=1.0):
    """Merges v [n, ..., D], s [n, ...] over n, in f32. s is in base exp(log_of_base)."""
    s = s.float()
    s = torch.where(torch.isfinite(s), s, torch.full_like(s, -math.inf)) * log_of_base
    top = s.amax(0)
    top = torch.where(torch.isinf(top), torch.zeros_like(top), top)
    weight = torch.exp(s - top)
    total = weight.sum(0)
    values = torch.where((weight > 0).unsqueeze(-1), v.float(), torch.zeros((), device=v.device))
    merged = (weight.unsqueeze(-1) * values).sum(0) / total.clamp(min=1e-30).unsqueeze(-1)
    return merged, (torch.log(total) + top) / log_of_base
