# SPDX-License-Identifier: Apache-2.0
"""CPU_ATTN: attention over a paged cache that is sharded over the ranks of decode context parallelism."""

from dataclasses import dataclass

import numpy as np
import torch
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

import banyan

from . import ranks

FLOATS = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


class Backend(CPUAttentionBackend):
    @staticmethod
    def get_impl_cls():
        # vLLM asks each time that it makes a layer. A sharded layer writes its new keys in forward().
        Backend.forward_includes_kv_cache_update = ranks.count() > 1
        return Impl

    @staticmethod
    def get_builder_cls():
        return Builder

    @classmethod
    def customize_spec(cls, spec):
        """A layer with a window keeps the keys of all tokens under DCP, a share on each rank, as vLLM's own groups of
        windowed layers are rejected with DCP. The window is that of attention."""
        if not isinstance(spec, SlidingWindowSpec) or ranks.count() == 1:
            return spec
        names = FullAttentionSpec.__dataclass_fields__.keys() & SlidingWindowSpec.__dataclass_fields__.keys()
        return FullAttentionSpec(**{name: getattr(spec, name) for name in names - {"sliding_window"}})


@dataclass
class Metadata:
    num_actual_tokens: int
    layer: banyan.AttentionStep  # has all that is equal for the layers of a step
    causal: bool = True


class Builder(CPUAttentionMetadataBuilder):
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        parallel = vllm_config.parallel_config
        if parallel.decode_context_parallel_size > 1 and getattr(kv_cache_spec, "attention_chunk_size", None):
            ranks.reject("attention in chunks")
        self.is_sharded = parallel.decode_context_parallel_size > 1 and kv_cache_spec.dcp_sharded
        self.interleave = parallel.cp_kv_cache_interleave_size
        drafts = vllm_config.speculative_config
        if self.is_sharded and drafts is not None and drafts.method not in ("ngram", "suffix"):
            # A draft model advances by itself, without new lengths for each rank.
            ranks.reject(f"speculative decoding by {drafts.method}")

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        if not self.is_sharded or self.is_encoder_only_attention:
            return super().build(common_prefix_len, common_attn_metadata, fast_build)
        step = common_attn_metadata
        if step.causal is not True:
            ranks.reject("attention that is not causal")
        comm = ranks.communicator()
        begins = step.query_start_loc.to(torch.int32).numpy()
        starts = step.seq_lens.to(torch.int32).numpy() - np.diff(begins)
        layer = comm.attention_step(
            slots=step.slot_mapping[: step.num_actual_tokens],
            gather=True,
            scatter="heads",
            page_table=step.block_table_tensor.to(torch.int32),
            keys_max=step.block_table_tensor.shape[1] * self.block_size,
            seq_lens=step.dcp_local_seq_lens.to(torch.int32),
            query_start_loc=begins,
            query_start=starts,
            key_start=np.full_like(starts, comm.rank * self.interleave),
            key_block=self.interleave,
            key_stride=self.interleave * comm.nranks,
        )
        return Metadata(step.num_actual_tokens, layer)


class Impl(CPUAttentionBackendImpl):
    can_return_lse_for_decode = True  # read by check_attention_cp_compatibility in v1/worker/cp_utils.py
    supports_dcp = True
    supports_mtp_with_cp_non_trivial_interleave_size = True

    def __init__(self, *arguments, **words):
        super().__init__(*arguments, **words)
        self.is_sharded = self.dcp_world_size > 1 and self.attn_type != AttentionType.ENCODER_ONLY
        if not self.is_sharded:
            return
        for rejected, what in (
            (self.attn_type != AttentionType.DECODER, f"attention of the type {self.attn_type}"),
            (self.alibi_slopes is not None, "ALiBi"),
            (self.kv_cache_dtype not in ("auto", *FLOATS), f"a cache of {self.kv_cache_dtype}"),
        ):
            if rejected:
                ranks.reject(what)
        self.comm = ranks.communicator()
        self.float8 = FLOATS.get(self.kv_cache_dtype)
        self.cache = None
        self.words = dict(
            scale=self.scale,
            soft_cap=self.logits_soft_cap or None,
            window=self.sliding_window if self.sliding_window > 0 else None,
        )

    def process_weights_after_loading(self, act_dtype):
        super().process_weights_after_loading(act_dtype)
        if self.is_sharded and self.sinks is not None:
            # A rank has the sinks of its own heads, but attends for the heads of all ranks.
            self.words["sinks"] = self.comm.allgather(self.sinks.detach().float().contiguous()).reshape(-1)

    def split(self, kv_cache):
        """Returns keys and values, each [pages, kv_heads, page_keys, dim]. A page has its keys before its values."""
        if self.cache is not kv_cache:
            self.cache, pages = kv_cache, kv_cache if self.float8 is None else kv_cache.view(self.float8)
            count, heads, keys, _ = pages.shape
            self.halves = pages.view(count, heads, keys * 2, -1).chunk(2, dim=2)
        return self.halves

    def rounded(self, rows, scale):
        most = torch.finfo(self.float8).max
        return (rows.float() / scale).clamp(-most, most).to(self.float8)

    def forward(
        self,
        layer,
        query,
        key,
        value,
        kv_cache,
        attn_metadata,
        output,
        output_scale=None,
        output_block_scale=None,
    ):
        step = attn_metadata
        if not self.is_sharded or step is None or output_scale is not None or output_block_scale is not None:
            return super().forward(layer, query, key, value, kv_cache, step, output, output_scale, output_block_scale)
        # A single call does all steps. It writes new keys, gathers the queries of all ranks by heads, and each rank
        # attends to its shard (older and new keys, causal by position). Each rank gets the merged rows of its own heads.
        words = self.words
        if self.float8 is not None:
            k_scale, v_scale = layer._k_scale_float, layer._v_scale_float
            words = dict(words, k_scale=k_scale, v_scale=v_scale)
        if self.kv_sharing_target_layer_name is not None:
            key = value = None
        elif self.float8 is not None:
            key, value = self.rounded(key, k_scale), self.rounded(value, v_scale)
        tokens = step.num_actual_tokens
        rows = output if output.dim() == 3 else output.view(-1, self.num_heads, self.head_size)
        if query.shape[0] != tokens:
            query, rows = query[:tokens], rows[:tokens]
        step.layer(query, *self.split(kv_cache), rows, new_k=key, new_v=value, **words)
        return output
