# SPDX-License-Identifier: Apache-2.0
"""ring-flash-attn 0.1.8 and yunchang 0.6.4: update_out_and_lse of ring_flash_attn.utils and yunchang.ring.utils."""

import torch

from ._merge import merge


def update_out_and_lse(out, lse, block_out, block_lse, slice_=None):
    """Merges block_out [B, S, H, D] and block_lse [B, H, S] in base e into out [B, S, H, D] and lse [B, S, H, 1].

    The first block has None as out and lse. With slice_ the block is of that part, which is written in place.
    """
    block_out, block_lse = block_out.float(), block_lse.transpose(-2, -1).unsqueeze(-1)
    if out is None:
        if slice_ is not None:
            raise RuntimeError("first update_out_and_lse should not pass slice_ args")
        return block_out, block_lse
    old = (out, lse) if slice_ is None else (out[slice_], lse[slice_])
    merged, merged_lse = merge(torch.stack([old[0], block_out]), torch.stack([old[1], block_lse]).squeeze(-1))
    if slice_ is None:
        return merged, merged_lse.unsqueeze(-1)
    out[slice_], lse[slice_] = merged, merged_lse.unsqueeze(-1)
    return out, lse
