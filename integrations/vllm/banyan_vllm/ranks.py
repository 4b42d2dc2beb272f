# SPDX-License-Identifier: Apache-2.0
"""The ranks of vLLM's decode context parallelism as a communicator of banyan."""

import os
import re
import socket

import torch
from vllm import envs
from vllm.distributed.parallel_state import get_dcp_group, get_dcp_world_size_and_rank

import banyan
import banyan.compat


def deadline_s():
    """Returns how long a rank waits for one that is late: less than vLLM's patience with a step, so that the error
    names the rank. banyan's own default of 30 s would end a server whose ranks are paused or swap."""
    own = os.environ.get("BANYAN_TIMEOUT_MS")
    return float(own) / 1e3 if own else 0.9 * envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS


def meet(group, **settings):
    """Makes the communicator of a group of vLLM. Between nodes with a secret its ranks meet where it is asked for, at an address
    of rank 0 that gloo has passed on: gloo itself has no secret."""
    here = os.environ.get("VLLM_HOST_IP", "")
    has_secret = bool(os.environ.get("BANYAN_SECRET") or os.environ.get("BANYAN_SECRET_FILE"))
    every = [None] * group.world_size
    with socket.create_server((here, 0)) as free:
        torch.distributed.all_gather_object(every, (here, free.getsockname()[1], has_secret), group=group.cpu_group)
    settings["timeout"] = deadline_s()
    without = [rank for rank, each in enumerate(every) if not each[2]]
    if len({host for host, _, _ in every}) == 1 or len(without) == len(every):
        return banyan.Communicator.from_torch(group.cpu_group, **settings)
    if without:
        raise RuntimeError(f"banyan-vllm: ranks {without} have no secret, and the others have: set BANYAN_SECRET_FILE on all nodes")
    host, port, _ = every[0]
    local = sum(each[0] == here for each in every)
    words = dict(RANK=group.rank_in_group, WORLD_SIZE=group.world_size, LOCAL_WORLD_SIZE=local, MASTER_ADDR=host)
    before = {name: os.environ.get(name) for name in (*words, "BANYAN_PORT")}
    os.environ.update({name: str(word) for name, word in words.items()}, BANYAN_PORT=str(port))
    try:
        return banyan.Communicator.from_env(**settings)
    finally:
        for name, word in before.items():
            os.environ.pop(name) if word is None else os.environ.update({name: word})


def communicator():
    """Returns the DCP group's communicator, with this vLLM rank's threads and CPUs. The first call is collective."""
    group = get_dcp_group()
    if group not in _made:
        before = os.sched_getaffinity(0)
        # vLLM binds each OpenMP thread to a CPU, this one too. Widens the set, because banyan's threads inherit it.
        bound = os.environ.get("GOMP_CPU_AFFINITY", "") + os.environ.get("KMP_AFFINITY", "").partition("proclist=[")[2]
        os.sched_setaffinity(0, {int(cpu) for cpu in re.split(r"[] ,]", bound) if cpu.isdigit()} or before)
        try:
            _made[group] = meet(group, threads=torch.get_num_threads())
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
