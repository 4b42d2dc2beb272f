# SPDX-License-Identifier: Apache-2.0
"""The calls by which engines merge partials today, with their signatures, on top of combine().

A group is a banyan.Communicator, a process group of torch.distributed, or an engine's wrapper of one (an object with
cpu_group, device_group or group). For the latter two a communicator is made at the first call, which is collective,
and kept. set_group() gives the communicator for a group instead, such as one that has a device.

Merges of two or more partials of one rank (FlashInfer's merge_state and the like) involve no peers. They are here in
torch's arithmetic so that a backend is complete, and are not faster than what they stand for.
"""

import math
import weakref

import torch

from .communicator import Communicator

_made: "weakref.WeakKeyDictionary[object, Communicator]" = weakref.WeakKeyDictionary()
_EMPTY = "+inf|nan"  # besides -inf, which is always an empty row


def set_group(group, comm):
    """Makes `comm` the communicator of `group`."""
    _made[group] = comm


def communicator(group):
    """The communicator of a group. Collective at the first call for each group of torch."""
    if isinstance(group, Communicator):
        return group
    if group is None:
        import torch.distributed as dist

        group = dist.distributed_c10d._get_default_group()
    comm = _made.get(group)
    if comm is None or not comm.is_open:
        names = ("cpu_group", "device_group", "group")
        inner = next((getattr(group, name) for name in names if hasattr(group, name)), group)
        comm = _made[group] = Communicator.from_torch(inner() if callable(inner) else inner)
    return comm


def _base(is_lse_base_on_e):
    return "e" if is_lse_base_on_e else "2"


def _masked(lse, seq_lens, query_start_loc):
    """lse with -inf in rows of sequences without keys here, and in rows behind the last sequence."""
    if seq_lens is None:
        return lse
    rows = torch.arange(lse.shape[0], device=lse.device)
    if query_start_loc is None:
        empty = seq_lens[: lse.shape[0]] == 0
    else:
        sequence = torch.bucketize(rows, query_start_loc[1:].to(rows.dtype), right=True)
        behind = sequence >= len(seq_lens)
        empty = behind | (seq_lens[sequence.clamp(max=len(seq_lens) - 1)] == 0)
    return lse.masked_fill(empty[:, None], -math.inf)


def _combine(out, lse, group, base, scatter, return_lse, wire="f32"):
    comm = communicator(group)
    given = lse if lse.dtype in (torch.float32, torch.float16) else lse.float()
    if not return_lse:
        heads = out.shape[1]
        if scatter == "heads":
            from ._core import split

            heads = split(heads, comm.nranks, comm.rank)[1]
        merged = out.new_empty((out.shape[0], heads, out.shape[2]))
        comm.combine(out, given, base=base, empty=_EMPTY, scatter=scatter, out=(merged, None), wire=wire)
        return merged
    return comm.combine(out, given, base=base, empty=_EMPTY, scatter=scatter, wire=wire)


# ---- vLLM 00b1dbe4, v1/attention/ops/dcp.py --------------------------------------------------------------------------


def cp_lse_ag_out_rs(cp_attn_out, cp_attn_lse, cp_group, ctx=None, return_lse=False, is_lse_base_on_e=True):
    """cp_attn_out [B, H, D], cp_attn_lse [B, H] -> [B, H/N, D] (and [B, H/N])."""
    return _combine(cp_attn_out, cp_attn_lse, cp_group, _base(is_lse_base_on_e), "heads", return_lse)


def cp_lse_ag_out_ar(cp_attn_out, cp_attn_lse, cp_group, ctx=None, return_lse=False, is_lse_base_on_e=True):
    """cp_attn_out [B, H, D], cp_attn_lse [B, H] -> [B, H, D] (and [B, H]) on all ranks."""
    return _combine(cp_attn_out, cp_attn_lse, cp_group, _base(is_lse_base_on_e), "none", return_lse)


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
    """cp_attn_out [B, H, D], cp_attn_lse [B, H] -> [B, H/N, D] (and [B, H/N]).

    Rows of sequences whose seq_lens is 0, and rows behind query_start_loc[-1], count as empty whatever their lse says.
    """
    lse = _masked(cp_attn_lse, seq_lens, query_start_loc)
    return _combine(cp_attn_out, lse, cp_group, _base(is_lse_base_on_e), "heads", return_lse)


class DCPCombine:
    """vLLM's protocol: partial_output [T, H, D], partial_lse [T, H] -> [T, H/N, D]."""

    def __init__(self, group, is_lse_base_on_e=True, return_lse=False):
        self.group, self.is_lse_base_on_e, self.return_lse = group, is_lse_base_on_e, return_lse

    def __call__(self, partial_output, partial_lse, *, seq_lens, query_start_loc):
        return dcp_a2a_lse_reduce(
            partial_output,
            partial_lse,
            self.group,
            None,
            self.return_lse,
            self.is_lse_base_on_e,
            seq_lens,
            query_start_loc,
        )


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
    """output [T, H, D] of two partials [T, H, D] with lse [H, T] in base e. output_scale: values are divided by it."""
    parts = torch.stack([prefix_output, suffix_output])
    lse = torch.stack([prefix_lse, suffix_lse]).transpose(1, 2)
    if prefill_tokens_with_context is not None:
        lse = lse.clone()
        lse[0, prefill_tokens_with_context:] = -math.inf
    merged, merged_lse = _merge(parts, lse, 1.0)
    output.copy_(merged if output_scale is None else merged / output_scale)
    if output_lse is not None:
        output_lse.copy_(merged_lse.transpose(0, 1))


# ---- SGLang 00ac7105, layers/dcp/comm.py -----------------------------------------------------------------------------


def cp_lse_ag_out_rs_mla(cp_attn_out, cp_attn_lse, cp_group, ctx=None, is_lse_base_on_e=False):
    """cp_attn_out [B, H, D], cp_attn_lse [B, H] -> [H/N, B, D]: heads first."""
    comm = communicator(cp_group)
    from ._core import split

    heads = split(cp_attn_out.shape[1], comm.nranks, comm.rank)[1]
    merged = cp_attn_out.new_empty((heads, cp_attn_out.shape[0], cp_attn_out.shape[2]))
    comm.combine(
        cp_attn_out,
        cp_attn_lse.float(),
        base=_base(is_lse_base_on_e),
        empty=_EMPTY,
        scatter="heads",
        out=(merged.transpose(0, 1), None),
    )
    return merged


def cp_lse_ag_out_rs_mha(cp_attn_out, cp_attn_lse, cp_group, return_lse=False):
    """cp_attn_out [B, H, D], cp_attn_lse [B, H] in base e -> [B, H/N, D] (and [B, H/N])."""
    return _combine(cp_attn_out, cp_attn_lse, cp_group, "e", "heads", return_lse)


# ---- TensorRT-LLM, read 2026-11 --------------------------------------------------------------------------------------


def helix(partial_o, softmax_stats, group):
    """alltoall_helix_native() and helix_post_process() as one call.

    partial_o [..., cp, D] with its normalised values, softmax_stats [..., cp, 2] f32 with (maximum, sum) -> [..., D].
    Entry [..., r, :] goes to rank r.
    """
    comm = communicator(group)
    cp, dim = partial_o.shape[-2:]
    if cp != comm.nranks:
        comm._refuse("partial_o", f"{cp} entries, and {comm.nranks} ranks")
    # Tokens of the combine are the ranks that the entries are for.
    rows = partial_o.reshape(-1, cp, dim).transpose(0, 1)
    stats = softmax_stats.reshape(-1, cp, 2).transpose(0, 1)
    merged = rows.new_empty((1, rows.shape[1], dim))
    shape = merged.shape[:2]
    kept = stats.new_empty(shape), stats.new_empty(shape)
    comm.combine(rows, stats[..., 0], sum=stats[..., 1], scatter="tokens", empty=_EMPTY, out=(merged, *kept))
    return merged.reshape(*partial_o.shape[:-2], dim)


# ---- FlashInfer fb28d72 ----------------------------------------------------------------------------------------------


def _merge(v, s, log_of_base):
    """Merges v [n, ..., D], s [n, ...] over n. s is in base exp(log_of_base)."""
    s = s.float()
    s = torch.where(torch.isfinite(s), s, torch.full_like(s, -math.inf)) * log_of_base
    top = s.amax(0)
    top = torch.where(torch.isinf(top), torch.zeros_like(top), top)
    weight = torch.exp(s - top)
    total = weight.sum(0)
    values = torch.where((weight > 0).unsqueeze(-1), v.float(), torch.zeros((), device=v.device))
    merged = (weight.unsqueeze(-1) * values).sum(0) / total.clamp(min=1e-30).unsqueeze(-1)
    return merged.to(v.dtype), (torch.log(total) + top) / log_of_base


def merge_state(v_a, s_a, v_b, s_b):
    """v [S, H, D] and s [S, H] in base 2 of two partials -> (v, s)."""
    return _merge(torch.stack([v_a, v_b]), torch.stack([s_a, s_b]), math.log(2))


def merge_states(v, s):
    """v [S, N, H, D] and s [S, N, H] in base 2 -> (v [S, H, D], s [S, H])."""
    return _merge(v.transpose(0, 1), s.transpose(0, 1), math.log(2))


def merge_state_in_place(v, s, v_other, s_other, mask=None):
    """merge_state() into v and s. mask [S]: rows in which it is False stay as they are."""
    merged, lse = merge_state(v, s, v_other, s_other)
    if mask is not None:
        keep = ~mask.bool()
        merged[keep], lse[keep] = v[keep], s[keep].to(lse.dtype)
    v.copy_(merged)
    s.copy_(lse)


def decode_cp_a2a_lse_reduce(o, lse, workspace, cp_rank, cp_size, lse_mode="base2"):
    """o [B, H, cp, D], lse [B, H, cp] -> [B, H, D]: entry [:, :, r] goes to rank r. workspace: a group."""
    comm = communicator(workspace)
    if (cp_rank, cp_size) != (comm.rank, comm.nranks):
        comm._refuse("cp_rank", f"rank {cp_rank} of {cp_size} here, and {comm.rank} of {comm.nranks} in the communicator")
    batch, heads, cp, dim = o.shape
    rows = o.reshape(batch * heads, cp, dim).transpose(0, 1)
    merged = o.new_empty((1, batch * heads, dim))
    stats = lse.float().reshape(batch * heads, cp).transpose(0, 1)
    comm.combine(
        rows, stats, base="2" if lse_mode == "base2" else "e", empty=_EMPTY, scatter="tokens", out=(merged, None)
    )
    return merged.reshape(batch, heads, dim)


# ---- lucidrains, ring-attention-pytorch 373f75b, tree_attn_decoding.py -----------------------------------------------


@torch.no_grad()
def tree_attn_decode(q, k=None, v=None, eps=1e-8, shard_kv_seq=True, use_triton=None, *, group=None):
    """q [b, h, 1, d], k and v [b, h, n, d] -> [b, h, 1, dv]: attention over the keys of all ranks.

    shard_kv_seq: all ranks have all keys, and each takes its part of them. Otherwise k and v are this rank's, or None.
    """
    from ._core import split

    comm = communicator(group)
    if (k is None) != (v is None):
        comm._refuse("k", "k and v are both given, or neither is")
    if shard_kv_seq:
        if k is None:
            comm._refuse("k", "k and v are needed, for they are not sharded yet")
        first, number = split(k.shape[-2], comm.nranks, comm.rank)
        k, v = k[..., first : first + number, :], v[..., first : first + number, :]
    if k is None:
        # Rows without keys. The values of a row are as long as those of q, as in the function that this stands for.
        batch, heads, _, dim = q.shape
        k = v = q.new_zeros((batch, heads, 0, dim))
    q, dtype = q[:, :, 0], q.dtype
    numbers = (torch.float32, torch.float16, torch.bfloat16)
    if dtype not in numbers:
        q, k, v = q.float(), k.float(), v.float()
    out = q.new_empty((*q.shape[:2], v.shape[-1]))
    comm.attention_combine(q, k, v, out=(out, None))
    return out.unsqueeze(2).to(dtype)


# ---- PyTorch 2.15, torch/distributed/tensor/experimental/_context_parallel/_attention.py -----------------------------


class SDPAMerger:
    """The form of _SDPAMerger: step(out [B, H, S, D], lse [B, H, S], partial) for each block, then results()."""

    def __init__(self, convert_to_f32, seq_dim):
        self._f32, self._dim = convert_to_f32, seq_dim
        self._out = self._lse = None
        self._keeps_last = False  # lse came as [B, H, S, 1], and goes so

    def step(self, out, lse, partial=False):
        """partial: the block is of the second half of the sequence."""
        self._dtypes = out.dtype, lse.dtype
        if self._f32:
            out, lse = out.float(), lse.float()
        self._keeps_last = lse.dim() == out.dim()
        lse = lse.squeeze(-1) if self._keeps_last else lse
        if self._out is None:
            self._out, self._lse = out.clone(), lse.clone()
            return
        half = self._out.shape[self._dim] // 2
        old_out = self._out.narrow(self._dim, half, half) if partial else self._out
        old_lse = self._lse.narrow(self._dim, half, half) if partial else self._lse
        merged, merged_lse = _merge(torch.stack([old_out, out]), torch.stack([old_lse, lse]), 1.0)
        old_out.copy_(merged)
        old_lse.copy_(merged_lse)

    def results(self):
        lse = self._lse.unsqueeze(-1) if self._keeps_last else self._lse
        return self._out.to(self._dtypes[0]), lse.to(self._dtypes[1])


# ---- NVIDIA's proposal, nccl-extensions#10 ---------------------------------------------------------------------------


def nccl_cp_combine(
    handle, partial_out, partial_lse, combined_out, combined_lse=None, *, lse_base="e", scatter="NONE", stream=None
):
    """ncclCpCombine: handle is a group; scatter is TOKEN, HEAD or NONE; combined_lse may be None."""
    where = {"TOKEN": "tokens", "HEAD": "heads", "NONE": "none"}[scatter.upper()]
    communicator(handle).combine(
        partial_out,
        partial_lse,
        base=str(lse_base),
        empty=_EMPTY,
        scatter=where,
        out=(combined_out, combined_lse),
        stream=stream,
    )
