# SPDX-License-Identifier: Apache-2.0
"""FlashInfer 0.7.4: flashinfer.cascade, flashinfer.triton, flashinfer.comm.dcp_lse_reduce and the exchange over PCIe in
flashinfer.experimental.b12x.comm.pcie. Statistics are in base 2, and those of the exchange over PCIe in base e."""

import math

import torch

from ._merge import base, combine, combine_entries, communicator, merge

_LN2 = math.log(2)


def merge_state(v_a, s_a, v_b, s_b):
    """v [S, H, D] and s [S, H] in base 2 of two partials -> (v, s)."""
    merged, lse = merge(torch.stack([v_a, v_b]), torch.stack([s_a, s_b]), _LN2)
    return merged.to(v_a.dtype), lse


def merge_states(v, s):
    """v [S, N, H, D] and s [S, N, H] in base 2 -> (v [S, H, D], s [S, H])."""
    merged, lse = merge(v.transpose(0, 1), s.transpose(0, 1), _LN2)
    return merged.to(v.dtype), lse


def variable_length_merge_states(v, s, indptr):
    """v [L, H, D] and s [L, H] in base 2 -> (v [S, H, D], s [S, H]): row i merges rows indptr[i] to indptr[i + 1]."""
    first, counts = indptr[:-1].long(), indptr.diff()
    most = int(counts.max()) if len(counts) else 0
    behind = torch.arange(most, device=v.device) >= counts[:, None]
    at = (first[:, None] + torch.arange(most, device=v.device)).masked_fill(behind, 0)
    if most == 0:
        return v.new_zeros((len(counts), *v.shape[1:])), s.new_full((len(counts), *s.shape[1:]), -math.inf).float()
    return merge_states(v[at], s[at].float().masked_fill(behind[..., None], -math.inf))


def merge_state_in_place(v, s, v_other, s_other, mask=None):
    """merge_state() into v and s. mask [S]: rows in which it is False stay as they are."""
    merged, lse = merge_state(v, s, v_other, s_other)
    if mask is not None:
        keep = ~mask.bool()
        merged[keep], lse[keep] = v[keep], s[keep].to(lse.dtype)
    v.copy_(merged)
    s.copy_(lse)


def decode_cp_a2a_lse_reduce_workspace_size(max_tokens, local_heads, cp_size, head_dim, dtype):
    """Returns the bytes of FlashInfer's workspace. The memory of banyan's communicator is not included."""
    if min(max_tokens, local_heads, cp_size, head_dim) <= 0:
        raise ValueError("max_tokens, local_heads, cp_size and head_dim are positive")
    if cp_size > 64:
        raise ValueError(f"cp_size is {cp_size}, and at most 64")
    if dtype not in (torch.float16, torch.bfloat16):
        raise TypeError(f"dtype is float16 or bfloat16, not {dtype}")
    if head_dim % 8:
        raise ValueError(f"a row of {head_dim} values is no multiple of 16 bytes")
    words = -(-(16 + 8 * cp_size) // 16) * 16  # an epoch, and two readiness words per rank
    return words + 2 * cp_size * max_tokens * local_heads * (2 * head_dim + 4)


class Workspace:
    """Replaces FlashInfer's workspace tensor: holds the communicator and the size of the largest call."""

    def __init__(self, comm, rows, head_dim, dtype):
        self.comm, self.rows, self.head_dim, self.dtype = comm, rows, head_dim, dtype

    def check(self, partial_o):
        """Rejects a call that the workspace was not made for."""
        rows = partial_o.shape[:-2].numel()
        if rows > self.rows or partial_o.shape[-1] != self.head_dim or partial_o.dtype != self.dtype:
            made = f"{self.rows} rows of {self.head_dim} values in {self.dtype}"
            self.comm._reject(
                "partial_o", f"it is {tuple(partial_o.shape)} in {partial_o.dtype}, the workspace for {made}"
            )


def decode_cp_a2a_lse_reduce_create_workspace(max_tokens, local_heads, cp_size, head_dim, dtype, group):
    """The workspace for calls of at most max_tokens * local_heads rows. group: a group, or its name. Collective."""
    decode_cp_a2a_lse_reduce_workspace_size(max_tokens, local_heads, cp_size, head_dim, dtype)
    comm = communicator(group)
    if comm.nranks != cp_size:
        comm._reject("cp_size", f"it is {cp_size}, and the group has {comm.nranks} ranks")
    return Workspace(comm, max_tokens * local_heads, head_dim, dtype)


def decode_cp_a2a_lse_reduce(partial_o, partial_lse, workspace, cp_rank, cp_size, lse_mode="base2"):
    """partial_o [..., cp, D], partial_lse [..., cp] -> [..., D]: entry [..., r, :] goes to rank r.

    workspace: of decode_cp_a2a_lse_reduce_create_workspace(), or a group. lse_mode: "base2" or "basee".
    """
    comm = workspace.comm if isinstance(workspace, Workspace) else communicator(workspace)
    if lse_mode not in ("base2", "basee"):
        comm._reject("lse_mode", f"it is base2 or basee, not {lse_mode!r}")
    if (cp_rank, cp_size) != (comm.rank, comm.nranks):
        comm._reject(
            "cp_rank", f"rank {cp_rank} of {cp_size} here, and {comm.rank} of {comm.nranks} in the communicator"
        )
    if isinstance(workspace, Workspace):
        workspace.check(partial_o)
    return combine_entries(partial_o, partial_lse, comm, base=lse_mode[-1])


class PCIeDCPA2A:
    """A channel of a group, over any link. Arguments for FlashInfer's kernels, such as plan, change nothing."""

    def __init__(self, group):
        self.comm = communicator(group)

    @classmethod
    def from_process_group(
        cls,
        *,
        process_group,
        device,
        max_batch_size,
        total_heads,
        head_dim,
        query_head_dim=None,
        ext_module=None,
        stream_affine=True,
    ):
        """The channel of a group. Collective at the first call for each group."""
        return cls(process_group)

    def lse_reduce_scatter(
        self, partial_output, partial_lse, out=None, *, plan, is_lse_base_on_e=True, threads=256, block_limit=16
    ):
        """partial_output [B, H, D], partial_lse [B, H] -> [B, H/N, D], or out."""
        return combine(partial_output, partial_lse, self.comm, base(is_lse_base_on_e), "heads", into=out)

    def all_gather_heads(self, local_input, out=None, *, plan, threads=256, block_limit=16):
        """local_input [B, H/N, D] -> [B, H, D], or out."""
        return self.comm.allgather_heads(local_input, out=out)

    def close(self):
        """Does nothing: the communicator belongs to the group, and other calls use it."""
