# SPDX-License-Identifier: Apache-2.0
"""Decode context parallelism on CPUs for vLLM. vLLM calls register() in each of its processes, by an entry point.

What it changes, by files of vLLM 0.32:
- v1/attention/backends/registry.py: CPU_ATTN and CPU_MLA become those of this package, as platforms/cpu.py takes
  these two whatever backend is asked for. Without decode context parallelism they are vLLM's own.
- utils/cpu_triton_utils.py: the slot mapping, which rejects context parallelism there. Plugins are loaded before
  platforms/cpu.py takes the function (v1/worker/worker_base.py). If Triton runs on this CPU, vLLM uses its own kernel.
- model_executor/layers/attention/mla_attention.py: MLADCPManager, see mla.py.
- distributed/device_communicators/cpu_communicator.py: the names of shared memory, which were the same on all nodes, so
  that tensor parallelism failed between nodes. Where names differ, sums and gathers go by banyan, see sums.py.
- model_executor/models/gpt_oss.py: the number of KV heads of a rank, see gpt_oss.py.
"""

import functools
import logging
import os

import numpy as np

VERSIONS = ("0.32.",)  # prefixes of the supported versions of vLLM

_logger = logging.getLogger("vllm.banyan")


def is_supported(vllm):
    return vllm.__version__.startswith(VERSIONS)


def slot_mapping(
    plain,
    num_tokens,
    max_num_tokens,
    query_start_loc,
    positions,
    block_table,
    block_table_stride,
    slots,
    KV_CACHE_BLOCK_SIZE,
    TOTAL_CP_WORLD_SIZE=1,
    TOTAL_CP_RANK=0,
    CP_KV_CACHE_INTERLEAVE_SIZE=1,
    PAD_ID=-1,
    BLOCK_SIZE=1024,
):
    """Where this rank keeps the key of each token: PAD_ID for those of other ranks, and behind the last token.

    Position p is of rank p / interleave % ranks, and a block has KV_CACHE_BLOCK_SIZE keys of each rank. `plain` is the
    function of vLLM, for one rank; the others are its arguments.
    """
    if TOTAL_CP_WORLD_SIZE == 1:
        return plain(
            num_tokens,
            max_num_tokens,
            query_start_loc,
            positions,
            block_table,
            block_table_stride,
            slots,
            KV_CACHE_BLOCK_SIZE,
        )
    block, ranks, interleave = KV_CACHE_BLOCK_SIZE, TOTAL_CP_WORLD_SIZE, CP_KV_CACHE_INTERLEAVE_SIZE
    begins, slots = query_start_loc.numpy(), slots.numpy()
    tokens = int(begins[-1])
    request = np.repeat(np.arange(len(begins) - 1), np.diff(begins))
    page, place = np.divmod(positions[:tokens].numpy(), block * ranks)
    is_mine = place // interleave % ranks == TOTAL_CP_RANK
    pages = block_table.numpy()[request, np.where(is_mine, page, 0)].astype(np.int64)
    local = place // (ranks * interleave) * interleave + place % interleave
    slots[:tokens] = np.where(is_mine, pages * block + local, PAD_ID)
    slots[tokens:max_num_tokens] = PAD_ID


def group_name(plain, communicator):
    """vLLM's name for shared memory, and the node: the kernel's boot, and which /dev/shm this is."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read(8)
    memory = os.stat("/dev/shm")
    return f"{plain(communicator)}-{boot}-{memory.st_dev}-{memory.st_ino}"


def register():
    import vllm

    if not is_supported(vllm):
        _logger.warning(
            "banyan-vllm is made for vLLM %s and changes nothing in vLLM %s: CPUs have no decode context parallelism. "
            "Install one of these versions, or a banyan-vllm for this one.",
            " and ".join(version + "x" for version in VERSIONS),
            vllm.__version__,
        )
        return
    from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed
    from vllm.model_executor.models import ModelRegistry
    from vllm.utils import cpu_triton_utils
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    from . import sums

    plain = cpu_triton_utils._compute_slot_mapping_kernel_impl
    cpu_triton_utils._compute_slot_mapping_kernel_impl = functools.partial(slot_mapping, plain)
    register_backend(AttentionBackendEnum.CPU_ATTN, "banyan_vllm.attention.Backend")
    register_backend(AttentionBackendEnum.CPU_MLA, "banyan_vllm.mla.Backend")
    ModelRegistry.register_model("GptOssForCausalLM", "banyan_vllm.gpt_oss:GptOssForCausalLM")
    named = functools.partial(group_name, _CPUSHMDistributed.make_group_name)
    _CPUSHMDistributed.make_group_name = staticmethod(named)
    sums.register()
