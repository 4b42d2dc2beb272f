# SPDX-License-Identifier: Apache-2.0
"""CPU_MLA: decode over a cache of latent keys that is sharded over the ranks of decode context parallelism.

vLLM gathers queries, attends, and combines, in model_executor/layers/attention/mla_attention.py. Here attention does
all three in one call, so that its Manager gathers and combines nothing. Prefill is vLLM's own.
"""

import torch
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.attention import mla_attention
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend, CPUMLAImpl

from . import ranks

_Manager = mla_attention.MLADCPManager


class Manager(_Manager):
    def __init__(self, *arguments, **words):
        super().__init__(*arguments, **words)
        self.query_gather = lambda query: query
        self.combine = lambda rows, lse, *, seq_lens, query_start_loc: rows


class Backend(CPUMLABackend):
    @staticmethod
    def get_impl_cls():
        # At this point vLLM has selected the CPU platform. MLAAttention makes its manager later.
        if ranks.count() > 1:
            mla_attention.MLADCPManager = Manager
        return Impl


class Impl(CPUMLAImpl):
    can_return_lse_for_decode = True  # read by check_attention_cp_compatibility in v1/worker/cp_utils.py
    supports_dcp = True

    def __init__(self, *arguments, **words):
        dcp = self.dcp_world_size
        super().__init__(*arguments, **words)
        self.dcp_world_size = dcp  # vLLM's class sets it to 1
        if dcp > 1:
            if get_current_vllm_config().speculative_config is not None:
                ranks.reject("speculative decoding with MLA")
            self.comm = ranks.communicator()
            self.cache = None

    def begin(self, decode, gather, page_keys):
        """Returns what is equal for all layers of a step."""
        table = decode.block_table.to(torch.int32)
        return self.comm.attention_step(
            page_table=table,
            keys_max=table.shape[1] * page_keys,
            seq_lens=decode.seq_lens.to(torch.int32),
            gather=gather,
            scatter="heads",
        )

    def split(self, cache):
        """Returns keys and values, each [pages, 1, page_keys, dim]. Values are the first elements of the keys."""
        if self.cache is not cache:
            keys = cache.unsqueeze(1)
            self.cache, self.halves = cache, (keys, keys[..., : self.kv_lora_rank])
        return self.halves

    def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
        if self.dcp_world_size == 1:
            return super().forward_mqa(q, kv_c_and_k_pe_cache, attn_metadata, layer)
        if isinstance(q, tuple):
            q = torch.cat(q, dim=-1)
        decode = attn_metadata.decode
        if not hasattr(decode, "banyan_step"):
            # With --dcp-q-replicate a rank has the queries of all heads.
            decode.banyan_step = self.begin(decode, q.shape[1] == self.num_heads, kv_c_and_k_pe_cache.shape[1])
        rows = q.new_empty(q.shape[0], self.num_heads, self.kv_lora_rank)
        decode.banyan_step(q, *self.split(kv_c_and_k_pe_cache), rows, scale=self.scale)
        # There is no lse to return, because the rows are already merged. The caller accepts any tensor.
        return rows, rows
