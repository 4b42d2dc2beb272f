# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM, main (047098b7, read on 2026-11-26): Helix in tensorrt_llm._torch.attention, and its ops that merge.

alltoall_helix_native() alone exchanges and merges nothing. It has no counterpart, because here both are one call.
"""

import math

import torch

from ._merge import combine_entries, communicator, merge


def helix(partial_o, softmax_stats, group, scale=1.0, zero_kv_mask=None):
    """The exchange and the merge in one call: entry [..., r, :] goes to rank r.

    partial_o [..., cp, D] with normalised values and softmax_stats [..., cp, 2] f32 with (maximum, sum) -> [..., D].
    This is the layout of fifo_version 1. That of 2 has all heads of a rank in an entry: [T, cp, H * D] and
    [T, cp, H * 2] -> [T, H * D]. Values are multiplied by scale. zero_kv_mask [T], or longer: True for tokens of
    which this rank has no keys. A row whose sum is 0 is empty too.
    """
    comm, cp = communicator(group), partial_o.shape[-2]
    heads, rest = divmod(softmax_stats.shape[-1], 2)
    if rest or not heads or partial_o.shape[-1] % heads or softmax_stats.shape[:-1] != partial_o.shape[:-1]:
        comm._reject("softmax_stats", f"it is {tuple(softmax_stats.shape)} for partial_o {tuple(partial_o.shape)}")
    lead, dim = partial_o.shape[:-2], partial_o.shape[-1] // heads
    # [..., H, cp, ...]: for one head this is a view in the given order.
    rows = partial_o.reshape(*lead, cp, heads, dim).transpose(-2, -3)
    top, total = softmax_stats.reshape(*lead, cp, heads, 2).transpose(-2, -3).unbind(-1)
    empty = total == 0
    if zero_kv_mask is not None:
        mask = zero_kv_mask[: rows.shape[0]].bool()
        if not lead or mask.shape != rows.shape[:1]:
            comm._reject("zero_kv_mask", f"it is {tuple(zero_kv_mask.shape)} for {rows.shape[0]} tokens")
        empty = empty | mask.reshape(-1, *[1] * (top.dim() - 1))
    top, total = top.masked_fill(empty, -math.inf), total.masked_fill(empty, 0)
    merged = combine_entries(rows, top, comm, sums=total)
    merged = merged.reshape(*lead, heads * dim)
    return merged if scale == 1 else merged * scale


def _helix_post_process(
    partial_o, softmax_stats, mapping, num_heads_tp_cp, value_dim, aux_stream=None, ln_events=None, zero_kv_mask=None
):
    """partial_o [T, cp * H * D], softmax_stats [T, cp * H, 2] -> [T, H * D] of the H heads of this rank.

    mapping: a group, or TensorRT-LLM's mapping, whose cp_group_pg or set_group() gives the ranks. Which way its
    cp_config chooses for the exchange, and aux_stream and ln_events, change no result.
    """
    comm = communicator(mapping)
    tokens, shape = partial_o.shape[0], (comm.nranks, num_heads_tp_cp)
    rows = partial_o.reshape(tokens, *shape, value_dim).flatten(2)
    stats = softmax_stats.reshape(tokens, *shape, 2).flatten(2)
    return helix(rows, stats, comm, zero_kv_mask=zero_kv_mask)


def helix_post_process(gathered_o, gathered_stats, scale):
    """gathered_o [cp, T, H * D], gathered_stats [cp, T, H, 2] -> [T, H * D], within one rank."""
    return _merged(gathered_o.unflatten(2, (gathered_stats.shape[2], -1)), gathered_stats, scale, 0)


def helix_post_process_native(gathered_o, gathered_stats, scale, cp_dim):
    """gathered_o [..., D], gathered_stats [..., 2] -> [T, H * D]. ... is T, cp, H for cp_dim 1, and T, H, cp for 2."""
    if gathered_o.dim() != 4 or cp_dim not in (1, 2):
        raise ValueError(f"gathered_o is {tuple(gathered_o.shape)}, and cp_dim {cp_dim}: 4 dimensions, and 1 or 2")
    return _merged(gathered_o, gathered_stats, scale, cp_dim)


def _merged(o, stats, scale, cp_dim):
    if stats.shape != (*o.shape[:-1], 2):
        raise ValueError(f"gathered_stats is {tuple(stats.shape)} for values {tuple(o.shape)}")
    top, total = stats.movedim(cp_dim, 0).unbind(-1)
    merged, _ = merge(o.movedim(cp_dim, 0), top + torch.log(total))
    return (merged * scale).flatten(1).to(o.dtype)
