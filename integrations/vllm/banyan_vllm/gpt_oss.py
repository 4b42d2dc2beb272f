# SPDX-License-Identifier: Apache-2.0
"""gpt-oss with more tensor parallel ranks than KV heads, as decode context parallelism needs it. vLLM 0.32 divides the
number of KV heads by that of ranks, and gets 0. Its QKVParallelLinear then gives each rank a copy of one head."""

from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.models import gpt_oss
from vllm.model_executor.models.gpt_oss import GptOssForCausalLM  # noqa: F401

_build_attention = gpt_oss.OAIAttention._build_attention


def build_attention(self, **words):
    if self.num_key_value_heads < get_tensor_model_parallel_world_size():
        self.num_local_key_value_heads, self.kv_size = 1, self.head_dim
    return _build_attention(self, **words)


gpt_oss.OAIAttention._build_attention = build_attention
