# SPDX-License-Identifier: Apache-2.0
"""SGLang 0.5.23: sglang.srt.layers.dcp.comm, and sgl_kernel 0.4.10. A group of one rank gets its input back."""

import torch

from ._merge import base, combine, communicator, is_alone, merge


def cp_lse_ag_out_rs_mha(cp_attn_out, cp_attn_lse, cp_group, return_lse=False):
    """cp_attn_out [B, H, D], cp_attn_lse [B, H] in base e -> [B, H/N, D] (and [B, H/N] in the type of cp_attn_lse)."""
    if is_alone(cp_group):
        return (cp_attn_out, cp_attn_lse) if return_lse else cp_attn_out
    merged = combine(cp_attn_out, cp_attn_lse, cp_group, "e", "heads", return_lse)
    return (merged[0], merged[1].to(cp_attn_lse.dtype)) if return_lse else merged


def cp_lse_ag_out_rs_mla(cp_attn_out, cp_attn_lse, cp_group, ctx=None, is_lse_base_on_e=False):
    """cp_attn_out [B, H, D], cp_attn_lse [B, H] -> [H/N, B, D]: heads first, but [B, H, D] for one rank."""
    if isinstance(ctx, bool):
        raise TypeError("ctx is a bool: is_lse_base_on_e is the argument after it")
    if is_alone(cp_group):
        return cp_attn_out
    return combine(cp_attn_out, cp_attn_lse, cp_group, base(is_lse_base_on_e), "heads", heads_first=True)


def cp_lse_ag_out_rs_mla_npu(cp_attn_out, cp_attn_lse, cp_group):
    """cp_attn_out [B, H, D], cp_attn_lse [B, H] in base e -> [B, H/N, D]."""
    return cp_lse_ag_out_rs_mha(cp_attn_out, cp_attn_lse, cp_group)


def dcp_a2a_lse_reduce(
    cp_attn_out, cp_attn_lse, cp_group, is_lse_base_on_e=True, cuda_graph_buffers=None, comm_backend="a2a"
):
    """cp_attn_out [B, H, D], cp_attn_lse [B, H] -> [B, H/N, D].

    Buffers are not needed, and both backends ("a2a" and "fi_a2a") are this one.
    """
    if not isinstance(is_lse_base_on_e, (bool, int)):
        raise TypeError("is_lse_base_on_e is no bool: vLLM's form of the call is in banyan.compat.vllm")
    if cuda_graph_buffers is not None and not hasattr(cuda_graph_buffers, "keys"):
        raise TypeError("cuda_graph_buffers is no dict: vLLM's form of the call is in banyan.compat.vllm")
    if comm_backend not in ("a2a", "fi_a2a"):
        raise ValueError(f"comm_backend is a2a or fi_a2a, not {comm_backend!r}")
    if is_alone(cp_group):
        return cp_attn_out
    return combine(cp_attn_out, cp_attn_lse, cp_group, base(is_lse_base_on_e), "heads")


def init_fi_a2a_workspace(cp_group):
    """Makes the group's communicator before graphs are captured. Collective."""
    if not is_alone(cp_group):
        communicator(cp_group)


def merge_state_v2(v_a, s_a, v_b, s_b, v_merged=None, s_merged=None):
    """v [S, H, D] and s [S, H] in base e of two partials of one rank -> (v, s), or v_merged and s_merged."""
    merged, lse = merge(torch.stack([v_a, v_b]), torch.stack([s_a, s_b]))
    merged = merged.to(v_a.dtype) if v_merged is None else v_merged.copy_(merged)
    return merged, lse if s_merged is None else s_merged.copy_(lse)
