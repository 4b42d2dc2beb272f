# SPDX-License-Identifier: Apache-2.0
"""Sums and gathers of tensor parallelism between nodes. vLLM's own use shared memory within a node, and gloo between
nodes."""

import logging

import torch
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

from . import ranks

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_logger = logging.getLogger("vllm.banyan")
_init, _reduce_scatter = CpuCommunicator.__init__, CpuCommunicator.reduce_scatter


class Between:
    """Has the functions of torch.distributed that CpuCommunicator calls, for ranks of several nodes."""

    def __init__(self, communicator):
        self.comm = ranks.meet(communicator, threads=1)

    def all_reduce(self, input, group=None):
        if input.dtype not in FLOATS:
            return torch.distributed.all_reduce(input, group=group)
        whole = input.contiguous()
        self.comm.allreduce(whole, out=whole)
        if whole is not input:
            input.copy_(whole)

    def all_gather_into_tensor(self, output, input, group=None):
        self.comm.allgather(input.contiguous(), out=output.view(self.comm.nranks, *input.shape))

    def gather(self, input, gather_list, dst=-1, group=None):
        for each, rows in zip(gather_list or (), self.comm.allgather(input.contiguous())):
            each.copy_(rows)


def init(self, *arguments, **words):
    _init(self, *arguments, **words)
    if self.dist_module is torch.distributed and self.unique_name.startswith("tp") and self.world_size > 1:
        self.dist_module = Between(self)
        _logger.info("Sums and gathers of group %s go by banyan. Start-up and pipeline stages stay with gloo.", self.unique_name)


def reduce_scatter(self, input_, dim=-1):
    if not isinstance(self.dist_module, Between) or input_.dtype not in FLOATS:
        return _reduce_scatter(self, input_, dim)
    rows = input_.movedim(dim, 0).contiguous()
    assert rows.shape[0] % self.world_size == 0
    return self.dist_module.comm.allreduce(rows, scatter="tokens").movedim(0, dim).contiguous()


def register():
    CpuCommunicator.__init__, CpuCommunicator.reduce_scatter = init, reduce_scatter
