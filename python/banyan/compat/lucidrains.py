# SPDX-License-Identifier: Apache-2.0
"""lucidrains, ring-attention-pytorch 0.5.20: tree_attn_decoding."""

import torch

from .._core import split
from ._merge import communicator


@torch.no_grad()
def tree_attn_decode(q, k=None, v=None, eps=1e-8, shard_kv_seq=True, use_triton=None, *, group=None):
    """q [b, h, 1, d], k and v [b, h, n, d] -> [b, h, 1, dv]: attention over the keys of all ranks. q may have more rows.

    shard_kv_seq: all ranks have all keys, and each takes its part of them. Otherwise k and v are this rank's, or None.
    eps and use_triton change nothing here.
    """
    comm = communicator(group)
    if (k is None) != (v is None):
        comm._reject("k", "k and v are both given, or neither is")
    if shard_kv_seq:
        if k is None:
            comm._reject("k", "k and v are needed, for they are not sharded yet")
        first, number = split(k.shape[-2], comm.nranks, comm.rank)
        k, v = k[..., first : first + number, :], v[..., first : first + number, :]
    if k is None:
        # Rows without keys. Their values have the length of q, as in the original function.
        k = v = q[:, :, :0]
    heads, dtype = q.shape[1:3], q.dtype
    rows = q.flatten(1, 2)  # several queries of a head become separate heads that share its keys
    numbers = (torch.float32, torch.float16, torch.bfloat16)
    if dtype not in numbers:
        rows, k, v = rows.float(), k.float(), v.float()
    out = rows.new_empty((*rows.shape[:2], v.shape[-1]))
    comm.attention_combine(rows, k, v, out=(out, None))
    return out.unflatten(1, heads).to(dtype)
