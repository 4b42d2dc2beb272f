# SPDX-License-Identifier: Apache-2.0
"""Small models with random weights, saved once: vLLM's dummy loading may give ranks other weights."""

import os

import tokenizers
import torch
import transformers

COMMON = dict(
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    max_position_embeddings=4096,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    tie_word_embeddings=False,
)
HEADS = dict(num_attention_heads=4, num_key_value_heads=1, head_dim=32)
WINDOWS = dict(sliding_window=48, layer_types=["sliding_attention", "full_attention"])

KINDS = {
    "llama": ("LlamaConfig", HEADS),
    "llama-8-2": ("LlamaConfig", dict(num_attention_heads=8, num_key_value_heads=2, head_dim=32)),
    "llama-long": (
        "LlamaConfig",
        dict(
            hidden_size=1024,
            intermediate_size=2048,
            num_attention_heads=8,
            num_key_value_heads=1,
            head_dim=128,
            max_position_embeddings=1 << 18,
        ),
    ),
    "llama-16": (
        "LlamaConfig",
        dict(
            hidden_size=1024,
            intermediate_size=2048,
            num_hidden_layers=16,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=128,
        ),
    ),
    "qwen3": ("Qwen3Config", HEADS),
    "gemma2": (
        "Gemma2Config",
        dict(HEADS, **WINDOWS, tie_word_embeddings=True, query_pre_attn_scalar=32, attn_logit_softcapping=5.0),
    ),
    "gemma3": ("Gemma3TextConfig", dict(HEADS, **WINDOWS, tie_word_embeddings=True, query_pre_attn_scalar=32)),
    "mistral": ("MistralConfig", dict(HEADS, sliding_window=48)),
    "gpt-oss": ("GptOssConfig", dict(HEADS, **WINDOWS, num_local_experts=4, num_experts_per_tok=2)),
    "llama4": (
        "Llama4TextConfig",
        dict(HEADS, intermediate_size_mlp=256, moe_layers=[], interleave_moe_layer_step=0, attention_chunk_size=64),
    ),
    "falcon": (
        "FalconConfig",
        dict(num_attention_heads=4, multi_query=True, alibi=True, new_decoder_architecture=False),
    ),
    "deepseek-v2": (
        "DeepseekV2Config",
        dict(
            num_attention_heads=4,
            num_key_value_heads=4,
            kv_lora_rank=512,
            q_lora_rank=None,
            qk_rope_head_dim=64,
            qk_nope_head_dim=64,
            v_head_dim=64,
            head_dim=64,
            first_k_dense_replace=9,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0),
        ),
    ),
}


def save(folder, kind):
    """Returns the folder of a model of this kind, and makes it if it is missing."""
    path = os.path.join(folder, kind)
    if os.path.exists(os.path.join(path, "model.safetensors")):
        return path
    name, words = KINDS[kind]
    torch.manual_seed(1)
    config = getattr(transformers, name)(**{**COMMON, **words})
    config.dtype = "float32"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if "sinks" in key:
                weight.uniform_(-1, 3)
            elif weight.dim() >= 2:
                weight.normal_(0, 0.02 if "embed" in key and kind.startswith("gemma") else 0.1)
    model.save_pretrained(path)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"<{i}>": i for i in range(COMMON["vocab_size"])}, "<0>"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<0>").save_pretrained(path)
    return path
