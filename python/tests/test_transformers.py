# SPDX-License-Identifier: Apache-2.0
"""Small random models of transformers: sharded over ranks they give the tokens of eager attention on one, and the same
bits on all ranks."""

import os
import pathlib
import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch", "2.4", reason="transformers wants torch 2.4 or newer")
hf = pytest.importorskip("transformers", "5.23", reason="transformers 5.23 or newer is not installed")

import banyan
from banyan.transformers import ShardedCache

TOP = pathlib.Path(os.environ.get("top_srcdir", pathlib.Path(__file__).parents[2]))
NEW = 6
BASE = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
}
WINDOW = {"head_dim": 32, "sliding_window": 48}
MODELS = {
    "llama": ("LlamaConfig", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "mistral": ("MistralConfig", {"sliding_window": 64}),
    "gemma2": ("Gemma2Config", {**WINDOW, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 32}),
    "gemma3": ("Gemma3TextConfig", {**WINDOW, "num_hidden_layers": 7, "query_pre_attn_scalar": 32}),
    "gpt_oss": ("GptOssConfig", {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "deepseek_v2": ("DeepseekV2Config", MLA),
    "deepseek_v3": ("DeepseekV3Config", MLA),
}
FOUR = {"num_hidden_layers": 4, "sliding_window": 48}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
FAMILIES = {
    "qwen2": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 48, "max_window_layers": 1}),
    "qwen2_moe": ("Qwen2MoeConfig", {**MOE, "num_experts": 4, "shared_expert_intermediate_size": 64}),
    "qwen3_moe": ("Qwen3MoeConfig", {**MOE, "num_experts": 4}),
    "glm4_moe": ("Glm4MoeConfig", {**MOE, "n_routed_experts": 4}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4}),
    "phi3": ("Phi3Config", {"sliding_window": 48}),
    "olmo3": ("Olmo3Config", FOUR),  # the fourth layer has no window
    "cohere2": ("Cohere2Config", FOUR),
    "starcoder2": ("Starcoder2Config", {"sliding_window": 48}),
    "exaone4": ("Exaone4Config", {**FOUR, "sliding_window_pattern": 4}),
    "granite": ("GraniteConfig", {}),
    "gpt_neox": ("GPTNeoXConfig", {}),
    "gpt2": ("GPT2Config", {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 2048}),
    "opt": ("OPTConfig", {"ffn_dim": 128, "word_embed_proj_dim": 64}),
}


@pytest.fixture(autouse=True)
def few_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", ".*past_key_values", FutureWarning)  # the name of the keyword before 5.24
        yield
    torch.set_num_threads(before)


def build(name):
    """A model of random weights whose logits differ much. Its class makes some constant, which hides faults."""
    kind, words = {**MODELS, **FAMILIES}[name]
    model = hf.AutoModelForCausalLM.from_config(getattr(hf, kind)(**{**BASE, **words}), dtype=torch.float32).eval()
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            size = 2 if key.endswith("sinks") else 0.12 if weight.dim() > 1 else 0
            if size:
                weight.copy_(torch.randn(weight.shape, generator=draw) * size)
    return model


def prompts(batch, length, seed=11):
    """Random tokens, with padding on the left of all sequences but the first."""
    ids = torch.randint(2, 512, (batch, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    for row in range(1, batch):
        mask[row, : min(37 * row, length - 1)] = 0
    return ids * mask, mask


def generate(model, ids, mask, **words):
    words = {"do_sample": False, "max_new_tokens": NEW, **words}
    out = model.generate(
        input_ids=ids, attention_mask=mask, output_logits=True, return_dict_in_generate=True, **words
    )
    return out.sequences, torch.stack(out.logits)


def eager(name, batch, length, **words):
    """Returns a model, a prompt with its mask, and what eager attention generates."""
    model, (ids, mask) = build(name), prompts(batch, length)
    model.set_attn_implementation("eager")
    return model, ids, mask, generate(model, ids, mask, **words)


def alike(ranks, want):
    """Each of `ranks` has the tokens of `want`, and all have logits with the same bits."""
    for tokens, logits in ranks:
        assert torch.equal(tokens, want[0])
        assert torch.equal(logits, ranks[0][1])
    assert (ranks[0][1] - want[1]).abs().max() < 1e-4 * want[1].abs().max()


def sharded(model, nranks, body, **words):
    """Runs body(cache) on ranks that are threads and share the model."""
    model.set_attn_implementation("banyan")

    def rank(comm):
        cache = ShardedCache(model.config, comm, **words)
        try:
            with torch.inference_mode():
                return body(cache)
        finally:
            cache.comm.close()  # recover() may have replaced the communicator

    return banyan.run(rank, nranks, start="thread", timeout=120)


LENGTHS = [(name, length) for name in MODELS for length in (1, 127, 128, 129, 257, 4097)]
LENGTHS += [(name, 129) for name in FAMILIES]


@pytest.mark.parametrize("name, length", LENGTHS)
def test_tokens_are_those_of_eager(name, length):
    nranks, batch = (2, 1) if length > 1000 else (1 + length % 4, 2)
    model, ids, mask, want = eager(name, batch, length)
    words = {"max_length": length + NEW, "block": 32}
    alike(sharded(model, nranks, lambda cache: generate(model, ids, mask, **cache.keyword), **words), want)


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gpt_oss"])
@pytest.mark.parametrize(
    "words",
    [
        {"kind": "ranges", "block": 7},
        {"windows": "sharded", "prefill": "local"},
        {"block": 5, "weights": [1, 3, 2], "windows": "sharded"},
    ],
)
def test_layouts(name, words):
    model, ids, mask, want = eager(name, 2, 150)
    words["max_length"] = 150 + NEW
    alike(sharded(model, 3, lambda cache: generate(model, ids, mask, **cache.keyword), **words), want)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize(
    "words", [{"num_beams": 3}, {"prefill_chunk_size": 50}, {"num_beams": 2, "num_return_sequences": 2}]
)
def test_ways_to_generate(name, words):
    model, ids, mask, want = eager(name, 2, 131, **words)

    def body(cache):
        return generate(model, ids, mask, **cache.keyword, **words)

    alike(sharded(model, 2, body, max_length=140), want)


@pytest.mark.parametrize("name", ["qwen3", "gemma2"])
def test_several_turns(name):
    """The second prompt of a batch is padded too, so the mask of the whole text has a gap."""
    model, (ids, mask), (more, more_mask) = build(name), prompts(2, 90), prompts(2, 60, seed=12)

    def turns(cache):
        keyword = ShardedCache.keyword.fget(cache)  # a DynamicCache has no .keyword
        first, _ = generate(model, ids, mask, **keyword)
        whole = torch.cat([first, more], 1)
        whole_mask = torch.cat([mask, torch.ones(2, NEW, dtype=mask.dtype), more_mask], 1)
        return generate(model, whole, whole_mask, **keyword)

    model.set_attn_implementation("eager")
    want = turns(hf.DynamicCache(config=model.config))
    alike(sharded(model, 3, turns, max_length=200, block=16), want)


@pytest.mark.parametrize("name, windows", [("llama", "local"), ("gemma2", "local"), ("gemma2", "sharded")])
@pytest.mark.parametrize("by", ["prompt_lookup_num_tokens", "assistant_model"])
def test_candidates_that_are_dropped(name, windows, by):
    """Greedy tokens stay the same, and some candidates are wrong. The next turn finds the cache in order."""
    model, (ids, mask), (more, _) = build(name), prompts(1, 90), prompts(1, 30, seed=12)
    ids[:, 50:] = ids[:, :40]  # so that a lookup finds something
    helper = build("qwen3") if by == "assistant_model" else None
    crops = []

    def turns(cache, **words):
        keyword = ShardedCache.keyword.fget(cache)
        first, _ = generate(model, ids, mask, **keyword, **words)
        whole = torch.cat([first, more], 1)
        return generate(model, whole, torch.ones_like(whole), **keyword, max_new_tokens=20)

    def body(cache):
        crop = cache.crop
        cache.crop = lambda count: (crops.append(int(count)), crop(count))
        return turns(cache, **{by: helper or 4})

    model.set_attn_implementation("eager")
    want = turns(hf.DynamicCache(config=model.config))
    alike(sharded(model, 2, body, max_length=160, block=16, windows=windows), want)
    assert min(crops) < 0


@pytest.mark.parametrize("windows", ["local", "sharded"])
def test_a_turn_that_is_taken_back(windows, lone):
    model, (ids, mask), (more, _) = build("gemma2"), prompts(2, 90), prompts(2, 20, seed=12)
    model.set_attn_implementation("banyan")
    cache = ShardedCache(model.config, lone, 200, windows=windows)
    cache.activate_past_recording()
    want = generate(model, ids, mask, **cache.keyword)
    whole = torch.cat([want[0], more], 1)
    other = generate(model, whole, torch.nn.functional.pad(mask, (0, NEW + 20), value=1), **cache.keyword)
    dropped = cache.get_seq_length() - 89
    cache.crop(-dropped)
    alike([generate(model, ids, mask, **cache.keyword)], want)
    cache.crop(89)  # the length that remains
    cache.crop(400)  # which drops nothing
    assert cache.get_seq_length() == 89
    alike([generate(model, ids, mask, **cache.keyword)], want)
    assert other[0].shape[1] == 90 + NEW + 20 + NEW
    cache.crop(-1000)
    assert cache.get_seq_length() == 0
    alike([generate(model, ids, mask, **cache.keyword)], want)


def test_ranks_that_take_back_other_tokens():
    model, (ids, _) = build("llama"), prompts(1, 40)

    def body(cache):
        model(ids[:, :30], **cache.keyword)
        cache.crop(-2 - cache.comm.rank)
        with pytest.raises(banyan.MismatchError, match="tag 30 .*tag 29 |tag 29 .*tag 30 "):
            model(ids[:, 28:30], **cache.keyword)

    sharded(model, 2, body, max_length=60)


@pytest.mark.parametrize("name", MODELS)
def test_without_a_sharded_cache_attention_is_local(name):
    model, ids, mask, want = eager(name, 3, 100)
    model.set_attn_implementation("banyan")
    static = {"cache_implementation": "static", "max_new_tokens": NEW}
    alike([generate(model, ids, mask), generate(model, ids, mask, **static)], want)
    alike([generate(model, ids[2:], mask[2:], **static)], [tokens[..., 2:, :] for tokens in want])
    model.set_attn_implementation("eager")
    want = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    model.set_attn_implementation("banyan")
    seen = mask.bool()
    got = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    torch.testing.assert_close(got[seen], want[seen], rtol=1e-4, atol=1e-4)


def test_figures_and_a_local_prefill():
    """A first chunk takes no communication: one rank does it alone. Each keeps its share of the keys."""
    model, (ids, mask) = build("llama"), prompts(2, 100)

    def body(cache):
        if cache.comm.rank == 0:
            model(input_ids=ids, attention_mask=mask, **cache.keyword)
        cache.comm.barrier()
        return cache.keys_here, cache.bytes_here

    words = {"max_length": 128, "block": 16, "prefill": "local"}
    head_dim, layers = 16, 3
    assert sharded(model, 2, body, **words) == [(52, 2 * layers * 2 * 2 * 52 * head_dim * 4), (0, 0)]


def test_ranks_share_a_prompt_evenly():
    """A key counts for each query that sees it, which are those from its position on."""
    pairs = sharded(build("llama"), 8, lambda cache: int((2048 - cache._mine).sum()), max_length=2048)
    assert max(pairs) < 1.1 * sum(pairs) / 8


# ---- rejections --------------------------------------------------------------------------------------------------------


def rejected(text, kind=NotImplementedError):
    return pytest.raises(kind, match=text)


def test_what_the_attention_does_not_serve():
    model, (ids, mask) = build("llama"), prompts(2, 20)
    model.set_attn_implementation("banyan")
    with rejected("no cu_seq_lens_q, seq_idx: take another"):
        model(input_ids=ids, cu_seq_lens_q=torch.tensor([0, 20]), seq_idx=ids)
    with rejected("a tensor for each query"):
        model(input_ids=ids, attention_mask=torch.zeros(2, 1, 20, 20))
    with rejected("of packed sequences, chunks"):
        model(input_ids=ids[:1], position_ids=torch.arange(10).repeat(1, 2), use_cache=False)
    layer, query = model.model.layers[0].self_attn, torch.zeros(1, 4, 3, 16)
    for words in ({"position_bias": query}, {"indices": query}, {"dropout": 0.1}, {"output_attentions": True}):
        with rejected(f"banyan's attention has no {next(iter(words))}"):
            hf.AttentionInterface()["banyan"](layer, query, query, query, None, **words)
    with rejected("attention_mask: None"):
        hf.AttentionInterface()["banyan"](layer, query, query, query, None)
    model.config.is_causal = False
    with rejected("bidirectional"):
        model(input_ids=ids)


OWN = {"n_embd": 64, "n_head": 4, "n_layer": 2, "d_model": 64, "n_heads": 4, "n_layers": 2, "expansion_ratio": 2}


@pytest.mark.parametrize("kind", ["BloomConfig", "MptConfig", "GPTNeoXJapaneseConfig", "XGLMConfig", "RemBertConfig"])
def test_models_whose_attention_is_their_own(kind, lone):
    words = {name: word for name, word in {**BASE, **OWN}.items() if hasattr(getattr(hf, kind)(), name)}
    words |= {"attention_heads": 4, "ffn_dim": 64, "num_layers": 2} if kind == "XGLMConfig" else {}
    words |= {"is_decoder": True} if kind == "RemBertConfig" else {}
    config = getattr(hf, kind)(**words)
    model = hf.AutoModelForCausalLM.from_config(config, attn_implementation="banyan").eval()
    for keyword in ({}, ShardedCache(model.config, lone, 50).keyword):
        with rejected("code of its own|has no"):
            model.generate(torch.ones(1, 8, dtype=torch.int64), max_new_tokens=2, **keyword)


def test_windows_that_have_dropped_keys(lone):
    """Without a check, other layers would drop tokens, and later masks would be wrong."""
    model, (ids, mask) = build("gemma2"), prompts(2, 60)
    model.set_attn_implementation("banyan")
    cache = ShardedCache(model.config, lone, 90)
    want = generate(model, ids, mask, **cache.keyword)
    for _ in range(2):
        with rejected("crop: layer 0 keeps its last 48 keys alone"):
            cache.crop(-1)
        cache.activate_past_recording()  # too late
    assert cache.get_seq_length() == 65 and cache._lengths() == [65] * 3
    cache.reset()
    alike([generate(model, ids, mask, **cache.keyword)], want)


def test_windows_and_chunks_are_told_apart():
    from transformers.masking_utils import chunked_causal_mask_function, sliding_window_causal_mask_function

    make, words = hf.AttentionMaskInterface()["banyan"], {"batch_size": 1, "q_length": 3, "kv_length": 3}
    for window in (1, 2, 3, 100):
        seen = make(**words, mask_function=sliding_window_causal_mask_function(window), local_size=window)
        assert seen.window == window
        if window > 1:
            with rejected("chunks"):
                chunks = chunked_causal_mask_function(window, torch.zeros(1, dtype=torch.int64))
                make(**words, mask_function=chunks, local_size=window)


def test_what_the_cache_does_not_serve(lone):
    model, (ids, mask) = build("llama"), prompts(2, 20)
    model.set_attn_implementation("banyan")
    for kind, words, text in (
        ("Llama4TextConfig", {"attention_chunk_size": 16}, "layer 0 of llama4_text is chunked_attention"),
        ("Qwen3NextConfig", {}, "is linear_attention"),
        ("Gemma3nTextConfig", {}, "layer 0 of gemma3n_text may share keys"),
    ):
        with rejected(text):
            ShardedCache(getattr(hf, kind)(**words), lone, 100)
    wrong = {"windows": "both", "kind": None, "prefill": None, "block": True, "max_length": 0, "config": model}
    for name, word in {**wrong, "comm": None}.items():
        with rejected(f"^{name}: ", (TypeError, ValueError)):
            ShardedCache(**{"config": model.config, "comm": lone, "max_length": 100, name: word})
    cache, one = ShardedCache(model.config, lone, 20 + NEW - 1), ids[:, :1]
    generate(model, ids, mask, **cache.keyword)
    assert (cache.keys_here, cache.get_seq_length()) == (25, 25)
    with rejected("room for 25 tokens, and not 26", ValueError):
        model(input_ids=one, **cache.keyword)
    with rejected("it has 20 tokens, and the keys are"):  # the prompt lacks the tokens of the cache
        generate(model, ids, mask, **cache.keyword)
    cache.reset()
    with rejected("tokens so far, and use_cache is not False"):
        generate(model, ids, mask, use_cache=False, **cache.keyword)
    cache.reset()
    with rejected("the cache has 2 sequences, and here are 1", ValueError):
        model(input_ids=one, **cache.keyword)
        model(input_ids=one[:1], **cache.keyword)
    model.set_attn_implementation("sdpa")
    with rejected('attn_implementation is "sdpa" in the config of this cache'):
        model(input_ids=one, **cache.keyword)
    other = build("llama")
    other.set_attn_implementation("banyan")
    cache = ShardedCache(other.config, lone, 100)
    with rejected("layer 0 was not attended to by .*: the model has another attn_implementation"):
        model(input_ids=one, **cache.keyword)


def test_keys_that_are_not_those_of_the_cache(lone):
    model, query, states = build("llama"), torch.zeros(2, 4, 5, 16), torch.zeros(2, 2, 5, 16)
    model.set_attn_implementation("banyan")
    for at, kept, text in ((2, 5, "layer 2 attends to 5 keys, and the cache has 5 for layer 1"), (1, 4, "has 5 for")):
        cache = ShardedCache(model.config, lone, 100)
        seen = hf.AttentionMaskInterface()["banyan"](batch_size=2, q_length=5, kv_length=5)
        key, value = cache.update(states, states, 1)
        with rejected(text):
            layer = model.model.layers[at].self_attn
            hf.AttentionInterface()["banyan"](layer, query, key[:, :, :kept], value[:, :, :kept], seen)
    model.config.layer_types, model.config.sliding_window = ["sliding_attention"] * 3, 7
    ShardedCache(model.config, lone, 100, windows="sharded").update(states, states, 0)
    with rejected("layer 0 has a window of 7 in its config, and of None in its mask"):  # the model masks no windows
        hf.AttentionInterface()["banyan"](model.model.layers[0].self_attn, query, states, states, seen)
    with rejected("attends to 4 keys, and the mask has 5"):  # without a ShardedCache
        hf.AttentionInterface()["banyan"](layer, query, states[:, :, 1:], states[:, :, 1:], seen)


@pytest.mark.parametrize("windows", ["local", "sharded"])
def test_a_call_that_ends_between_layers(windows, lone):
    """Without a check, later layers would lack keys without an error, as a mask is sized by one layer."""
    model, (ids, mask) = build("gemma2"), prompts(2, 60)
    model.set_attn_implementation("banyan")
    cache = ShardedCache(model.config, lone, 90, windows=windows)
    want = generate(model, ids, mask, **cache.keyword)
    cache.reset()

    def stop(*_):
        raise KeyboardInterrupt

    hook = model.model.layers[1].self_attn.o_proj.register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        generate(model, ids, mask, **cache.keyword)
    hook.remove()
    with rejected("ended between layers: some have 0 tokens, and some 60. reset", banyan.StateError):
        model(input_ids=ids[:, -1:], **cache.keyword)
    cache.reset()
    alike([generate(model, ids, mask, **cache.keyword)], want)


@pytest.mark.parametrize(
    "name, words",
    [
        ("max_length", (90, 80)),
        ("block", (16, 32)),
        ("kind", ("ranges", "blocks")),
        ("weights", ([1, 2], [2, 1])),
        ("windows", ("local", "sharded")),
        ("prefill", ("local", "sharded")),
    ],
)
def test_ranks_whose_caches_are_made_by_other_words(name, words):
    """Without a check, ranks would share keys or miss keys, and get wrong tokens without an error."""
    model, (ids, mask) = build("gemma2"), prompts(2, 60)
    model.set_attn_implementation("banyan")

    def body(comm):
        cache = ShardedCache(model.config, comm, **{"max_length": 90, name: words[comm.rank]})
        with torch.inference_mode(), rejected(f"^{name}: rank 1 passed", banyan.MismatchError):
            generate(model, ids, mask, **cache.keyword)

    banyan.run(body, 2, start="thread", timeout=60)


# ---- processes -------------------------------------------------------------------------------------------------------


def example(*options, start=(sys.executable,)):
    program = [*start, str(TOP / "examples" / "generate_transformers.py"), "--verify", *options]
    done = subprocess.run(program, text=True, timeout=500, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0 and "in one process gives the same" in done.stdout, done.stdout
    return done.stdout


@pytest.mark.parametrize("nranks, sample, keys", [(1, True, 269), (2, True, 128), (3, False, 80), (4, True, 64)])
def test_under_torchrun(nranks, sample, keys):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(nranks), "--standalone")
    said = example("--tokens", "20", "--prompt-tokens", "250", *["--sample"] * sample, start=torchrun)
    assert f"rank {nranks - 1} of {nranks}: {keys} keys" in said


def test_the_example_goes_on_after_a_death():
    said = example("--ranks", "3", "--kill", "1", "--tokens", "20")
    assert "2 ranks go on at token" in said


# ---- a rank that dies ------------------------------------------------------------------------------------------------


class Watch(hf.StoppingCriteria):
    """Remembers the tokens so far, since generate() returns none if it fails; `dies` ends this rank in the middle."""

    def __init__(self, ids, dies_at=0):
        self.ids, self.dies_at = ids, dies_at

    def __call__(self, input_ids, scores, **_):
        self.ids = input_ids.clone()
        if self.ids.shape[1] == self.dies_at:
            raise SystemExit("this rank ends")
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize(
    "deaths, inside, more",
    [({1: 203}, 0, {}), ({0: 202, 2: 205}, 0, {}), ({1: 0}, 203, {}), ({1: 0}, 100, {"prefill_chunk_size": 50})],
)
def test_ranks_die_and_others_go_on(name, deaths, inside, more):
    """deaths {rank: tokens so far}: between steps. `inside`: with that many keys, rank 1 dies behind layer 1."""
    model, ids, mask, want = eager(name, 2, 200, max_new_tokens=12)
    computed, results = {}, []

    def leave(layer, positional, keyword, output):
        cache = next(word for word in keyword.values() if isinstance(word, ShardedCache))
        if inside and cache.comm.nranks == 4 and cache.comm.rank == 1 and cache.get_seq_length() == inside:
            raise SystemExit("this rank ends in a layer")

    def body(cache):
        me = cache.comm.rank
        watch, end = Watch(ids, deaths.get(me, 0)), ids.shape[1] + 12
        compute = cache._compute

        def counted(model, ids, mask, first, end):
            computed[me] = computed.get(me, 0) + end - first
            compute(model, ids, mask, first, end)

        cache._compute = counted
        while True:
            whole = torch.nn.functional.pad(mask, (0, watch.ids.shape[1] - mask.shape[1]), value=1)
            left = end - watch.ids.shape[1]
            try:
                words = {"stopping_criteria": [watch], **cache.keyword, **more, "max_new_tokens": left}
                tokens, _ = generate(model, watch.ids, whole, **words)
                return tokens, cache.comm.nranks
            except (banyan.PeerError, banyan.AbortedError):
                watch.ids = cache.recover(model, watch.ids, mask)

    model.model.layers[1].register_forward_hook(leave, with_kwargs=True)
    with pytest.raises(banyan.RankError) as caught:
        sharded(model, 4, lambda cache: results.append(body(cache)), max_length=230, block=16)
    assert set(caught.value.failures) == set(deaths)
    assert len(results) == 4 - len(deaths)
    for tokens, nranks in results:
        assert torch.equal(tokens, want[0]) and nranks == 4 - len(deaths)
    for count in computed.values():
        assert 0 < count < 200 * len(deaths) or name == "gemma2"  # windows dropped keys: all is recomputed
