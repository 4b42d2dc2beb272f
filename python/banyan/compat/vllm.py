# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.32 and 0.33: vllm.v1.attention.ops.dcp and .merge_attn_states. Inputs are left as they are."""

import math

import torch

from ._merge import base, combine, communicator, is_alone, merge


def _masked(comm, lse, seq_lens, query_start_loc):
    """lse with -inf in rows of sequences without keys here, and in rows behind the last sequence."""
    if seq_lens is None and query_start_loc is None:
        return lse
    if seq_lens is None or query_start_loc is None:
        comm._reject("seq_lens", "seq_lens and query_start_loc are given together, or neither is")
    if seq_lens.dim() != 1 or query_start_loc.shape != (len(seq_lens) + 1,):
        shapes = f"{tuple(seq_lens.shape)} and {tuple(query_start_loc.shape)}"
        comm._reject("query_start_loc", f"seq_lens [B] and query_start_loc [B + 1] have the shapes {shapes}")
    if not len(seq_lens):
        return torch.full_like(lse, -math.inf)  # warm-up of a graph has no sequences
    rows = torch.arange(lse.shape[0], device=lse.device, dtype=query_start_loc.dtype)
    sequence = torch.bucketize(rows, query_start_loc[1:], right=True).clamp(max=len(seq_lens) - 1)
    empty = (rows >= query_start_loc[-1]) | (seq_lens[sequence] == 0)
    return lse.masked_fill(empty[:, None], -math.inf)


def _reduce(out, lse, group, ctx, return_lse, is_lse_base_on_e, seq_lens, query_start_loc, scatter, lse_type=None):
    if isinstance(ctx, bool):
        raise TypeError("ctx is a bool: SGLang's form of the call is in banyan.compat.sglang")
    if is_alone(group):
        return (out, lse) if return_lse else out
    if out.dim() == 4 and out.shape[1] == 1:
        out = out.squeeze(1)
    if lse.dim() == 3 and 1 in (lse.shape[-1], lse.shape[0]):
        lse = lse.squeeze(-1 if lse.shape[-1] == 1 else 0)
    comm = communicator(group)
    lse = _masked(comm, lse, seq_lens, query_start_loc)
    merged = combine(out, lse, comm, base(is_lse_base_on_e), scatter, return_lse)
    if not return_lse or merged[1].dtype == (lse_type or lse.dtype):
        return merged
    return merged[0], merged[1].to(lse_type or lse.dtype)


def cp_lse_ag_out_rs(
    cp_attn_out,
    cp_attn_lse,
    cp_group,
    ctx=None,
    return_lse=False,
    is_lse_base_on_e=True,
    seq_lens=None,
    query_start_loc=None,
):
    """cp_attn_out [B, H, D], cp_attn_lse [B, H] -> [B, H/N, D] (and [B, H/N] in the type of cp_attn_lse)."""
    masks = seq_lens, query_start_loc
    return _reduce(cp_attn_out, cp_attn_lse, cp_group, ctx, return_lse, is_lse_base_on_e, *masks, "heads")


def cp_lse_ag_out_ar(
    cp_attn_out,
    cp_attn_lse,
    cp_group,
    ctx=None,
    return_lse=False,
    is_lse_base_on_e=True,
    seq_lens=None,
    query_start_loc=None,
):
    """cp_attn_out [B, H, D], cp_attn_lse [B, H] -> [B, H, D] (and [B, H] in the type of cp_attn_lse) on all ranks."""
    masks = seq_lens, query_start_loc
    return _reduce(cp_attn_out, cp_attn_lse, cp_group, ctx, return_lse, is_lse_base_on_e, *masks, "none")


def dcp_a2a_lse_reduce(
    cp_attn_out,
    cp_attn_lse,
    cp_group,
    ctx=None,
    return_lse=False,
    is_lse_base_on_e=True,
    seq_lens=None,
    query_start_loc=None,
):
    """cp_attn_out [B, H, D], cp_attn_lse [B, H] -> [B, H/N, D] (and [B, H/N] in f32).

    Rows of sequences whose seq_lens is 0, and rows behind query_start_loc[-1], count as empty whatever their lse says.
    """
    masks = seq_lens, query_start_loc
    f32 = torch.float32
    return _reduce(cp_attn_out, cp_attn_lse, cp_group, ctx, return_lse, is_lse_base_on_e, *masks, "heads", f32)


class DCPCombine:
    """vLLM's protocol: partial_output [T, H, D], partial_lse [T, H] -> [T, H/N, D]."""

    def __init__(self, group, is_lse_base_on_e=True, return_lse=False):
        self.group, self.is_lse_base_on_e, self.return_lse = group, is_lse_base_on_e, return_lse

    def __call__(self, partial_output, partial_lse, *, seq_lens, query_start_loc):
        options = self.return_lse, self.is_lse_base_on_e
        return dcp_a2a_lse_reduce(partial_output, partial_lse, self.group, None, *options, seq_lens, query_start_loc)


def merge_attn_states(
    output,
    prefix_output,
    prefix_lse,
    suffix_output,
    suffix_lse,
    output_lse=None,
    prefill_tokens_with_context=None,
    output_scale=None,
):
    """output [T, H, D] of two partials [T, H, D] with lse [H, T] in base e.

    Rows from prefill_tokens_with_context on are those of the suffix, and so are their lse, bit by bit. With
    output_scale, and not without it, output is of an fp8 type: values are divided by the scale and kept in its range.
    """
    is_wide = output.dtype in (torch.float32, torch.float16, torch.bfloat16)
    if is_wide != (output_scale is None):
        raise ValueError(f"output_scale is {'not used' if is_wide else 'needed'} for an output of {output.dtype}")
    rows = output.shape[0]  # inputs may have more rows
    ends = slice(rows if prefill_tokens_with_context is None else min(prefill_tokens_with_context, rows))
    merged, merged_lse = suffix_output[:rows].float(), suffix_lse[:, :rows].transpose(0, 1).float()
    if ends.stop:
        parts = torch.stack([prefix_output[ends], suffix_output[ends]])
        lse = torch.stack([prefix_lse[:, ends], suffix_lse[:, ends]]).transpose(1, 2)
        first, first_lse = merge(parts, lse)
        merged = torch.cat([first, merged[ends.stop :]])
        merged_lse = torch.cat([first_lse, merged_lse[ends.stop :]])
    if output_scale is not None:
        limits = torch.finfo(output.dtype)
        merged = (merged / output_scale).clamp(limits.min, limits.max)
    output.copy_(merged)
    if output_lse is not None:
        output_lse.copy_(merged_lse.transpose(0, 1))
