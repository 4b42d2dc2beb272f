# SPDX-License-Identifier: Apache-2.0
"""PyTorch 2.15: torch.distributed.tensor.experimental._context_parallel._attention."""

import torch

from ._merge import merge


class _SDPAMerger:
    """step(out [B, H, S, D], lse [B, H, S], partial) for each block, then results()."""

    def __init__(self, convert_to_f32, seq_dim):
        self._f32, self._dim = convert_to_f32, seq_dim
        self._out = self._lse = None
        self._keeps_last = False  # lse came as [B, H, S, 1] and is returned as such

    def step(self, out, lse, partial):
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
        merged, merged_lse = merge(torch.stack([old_out, out]), torch.stack([old_lse, lse]))
        old_out.copy_(merged)
        old_lse.copy_(merged_lse)

    def results(self):
        """(out, lse) of what was merged, in the dtypes of the first step."""
        lse = self._lse.unsqueeze(-1) if self._keeps_last else self._lse
        return self._out.to(self._dtypes[0]), lse.to(self._dtypes[1])

