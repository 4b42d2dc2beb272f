# SPDX-License-Identifier: Apache-2.0
"""The ranks of vLLM's decode context parallelism as a communicator of banyan."""

import os
import re

import torch
from vllm.distributed.parallel_state import get_dcp_group, get_dcp_world_size_and_rank

import banyan
import banyan.compat


def communicator():
    """Returns the DCP group's communicator, with this vLLM rank's threads and CPUs. The first call is collective."""
    group = get_dcp_group()
    if group not in _made:
        before = os.sched_getaffinity(0)
        # vLLM binds each OpenMP thread to a CPU, this one too. Widens the set, because banyan's threads inherit it.
        bound = os.environ.get("GOMP_CPU_AFFINITY", "") + os.environ.get("KMP_AFFINITY", "").partition("proclist=[")[2]
        os.sched_setaffinity(0, {int(cpu) for cpu in re.split(r"[] ,]", bound) if cpu.isdigit()} or before)
        try:
            _made[group] = banyan.Communicator.from_torch(group.cpu_group, threads=torch.get_num_threads())
        finally:
            os.sched_setaffinity(0, before)
        banyan.compat.set_group(group, _made[group])
    return _made[group]


_made = {}


def reject(what):
    raise NotImplementedError(f"banyan-vllm: {what} has no decode context parallelism on CPUs")


def count():
    """Returns the DCP ranks of the attention layer that vLLM is making: 1 without DCP, or in a draft model."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    return get_dcp_world_size_and_rank(config is None or config.parallel_config.decode_context_parallel_size > 1)[0]
