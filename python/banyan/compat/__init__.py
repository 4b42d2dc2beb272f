# SPDX-License-Identifier: Apache-2.0
"""The calls by which engines merge partials today, as their releases have them, on top of combine().

Each engine has a module with its names, keywords, order and defaults: vllm, sglang, flashinfer, tensorrt_llm,
lucidrains, ring and torch. A keyword that they lack is a TypeError, and so is a value that would change the result
unnoticed. This package itself has these names too, and vLLM's where engines share one.

A group is a banyan.Communicator, a process group of torch.distributed or its name, or an engine's wrapper of one (an
object with cpu_group, device_group, cp_group_pg or group). Except for a Communicator, the first call makes a
communicator, which is collective, and keeps it. set_group() sets an existing one, such as one with a device.

Merges of two or more partials of one rank (FlashInfer's merge_state and the like) involve no peers. They are here in
torch's arithmetic so that a backend is complete, and are not faster than the originals.
"""

from . import flashinfer, lucidrains, ring, sglang, tensorrt_llm, torch, vllm
from ._merge import communicator, set_group
from .flashinfer import (
    decode_cp_a2a_lse_reduce,
    merge_state,
    merge_state_in_place,
    merge_states,
    variable_length_merge_states,
)
from .lucidrains import tree_attn_decode
from .ring import update_out_and_lse
from .sglang import cp_lse_ag_out_rs_mha, cp_lse_ag_out_rs_mla, merge_state_v2
from .tensorrt_llm import helix
from .torch import _SDPAMerger
from .vllm import DCPCombine, cp_lse_ag_out_ar, cp_lse_ag_out_rs, dcp_a2a_lse_reduce, merge_attn_states
