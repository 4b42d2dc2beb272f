# SPDX-License-Identifier: Apache-2.0
"""Models of transformers whose keys and values are sharded over ranks along the sequence.

    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="banyan")
    cache = ShardedCache(model.config, comm, max_length=32768)
    model.generate(**inputs, **cache.keyword)

Importing this module registers the attention "banyan" with transformers. Every rank runs the whole model on the same
tokens, keeps a share of the keys, and gets the same logits, bit by bit. Without a ShardedCache attention is local.
"""

from __future__ import annotations

import inspect
import threading
import zlib
from typing import Any, Literal

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, GenerationMixin
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, Cache, CacheLayerMixin, get_layer_types_and_kwargs
from transformers.masking_utils import causal_mask_function

from . import _core
from .communicator import Communicator
from .errors import MismatchError, StateError, UnsupportedError

# Keywords that models pass to attention, where they have no effect.
_WITHOUT_EFFECT = {
    "cache_position",
    "is_causal",  # contained in the mask
    "num_items_in_batch",
    "output_hidden_states",
    "output_router_logits",
    "position_ids",
    "sliding_window",  # contained in the mask
    "use_cache",
}

# The keyword of a cache. transformers 5.24 renamed it.
_RENAMED = "cache" in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
_KEYWORD = "cache" if _RENAMED else "past_key_values"

_OWN_CODE = (
    "this model computes attention with code of its own, which wants a mask as a tensor: banyan serves models that call "
    "transformers' attention interface"
)

# .layer is the ShardedLayer that this thread updated last. Attention takes it and clears it.
_updated = threading.local()


def _int32(values: Any) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.int32)


class Mask:
    """What queries see, in place of a mask tensor: keys up to their own position, of those the last `window`, and none
    whose `padding` is False. transformers hands it from mask() to attention()."""

    ndim = 4  # as the tensor that it replaces

    def __init__(
        self, batch: int, queries: int, first: int, keys: tuple[int, int], window: int | None, padding: Any
    ) -> None:
        self.keys, self.window, self.padding = keys, window, padding  # keys: begin and end
        self.words = {
            "window": window,
            "query_start_loc": _int32([queries * sequence for sequence in range(batch + 1)]),
            "query_start": _int32([first] * batch),
        }

    def __getitem__(self, _: Any = None) -> Mask:
        return self  # models cut masks to the length of the keys

    contiguous = __getitem__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedError(_OWN_CODE)

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise UnsupportedError(_OWN_CODE)


def _is_plain(mask_function: Any, window: int | None, batch: Any, query: Any, key: Any) -> bool:
    """Returns True if the function is that of causal attention, with a window if there is one, at these positions."""
    sees = torch.as_tensor(mask_function(batch[:, None, None], 0, query[:, None], key))
    first = query[:, None] - (1 << 30 if window is None else window)  # 0 in configs that have windows in no layer
    return bool((sees == (key <= query[:, None]) & (key > first)).all())


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    use_vmap: bool = False,
    **_: Any,
) -> Mask:
    """The mask function of "banyan" for AttentionMaskInterface. Any but a causal mask with padding is rejected."""
    _updated.layer = None
    if isinstance(attention_mask, Mask):  # made before the forward pass, as for static caches
        return attention_mask
    first, end = int(q_offset), int(kv_offset) + kv_length  # those of a static cache are tensors
    if allow_is_causal_skip:
        reach = local_size or 1
        at = torch.tensor([0, 1, reach - 1, reach, reach + 1, 2 * reach])
        where = torch.tensor([0]), at, at
    else:  # a step of a static cache, where the mask is compared at all positions, or another mask
        where = torch.arange(batch_size), torch.tensor([first]), torch.arange(end)
        use_vmap = use_vmap or q_length > 1
    if use_vmap or not _is_plain(mask_function, local_size, *where):
        raise UnsupportedError(
            "banyan attends by causal masks, sliding windows and padding. Here the mask is another one: of packed "
            "sequences, chunks, images, or bidirectional attention"
        )
    if attention_mask is not None:
        if attention_mask.shape[1] < first + q_length:
            raise UnsupportedError(
                f"attention_mask: it has {attention_mask.shape[1]} tokens, and the keys are {first + q_length}. It and "
                "the input_ids of generate() have all tokens so far, and use_cache is not False. reset() empties a "
                "cache"
            )
        rest = end - attention_mask.shape[1]  # a static cache has room for more keys than tokens
        attention_mask = torch.nn.functional.pad(attention_mask[:, :end].bool(), (0, max(rest, 0)))
        if bool(attention_mask[:, : first + q_length].all()):
            attention_mask = None
    return Mask(batch_size, q_length, first, (int(kv_offset), end), local_size, attention_mask)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function of "banyan" for AttentionInterface: over the keys of all ranks, if those of this layer are
    in a ShardedCache, else over `key` alone. Models may expand what the cache holds, as those with latent keys do."""
    given = [name for name, word in others.items() if word is not None and word is not False]
    unknown = [name for name in given if name not in _WITHOUT_EFFECT] + ["dropout"] * (dropout > 0)
    if unknown:
        raise UnsupportedError(f"banyan's attention has no {', '.join(unknown)}: take another attn_implementation")
    if not isinstance(attention_mask, Mask):
        raise UnsupportedError(
            f"attention_mask: {'None' if attention_mask is None else 'a tensor for each query'}, where banyan wants a "
            "causal mask that transformers makes: pass the model none, or one of [batch, tokens]"
        )
    layer, _updated.layer = getattr(_updated, "layer", None), None
    first, end = attention_mask.keys
    index, here = (getattr(module, "layer_idx", None), end - first) if layer is None else (layer.index, layer.rows)
    if key.shape[2] != here or getattr(module, "layer_idx", index) != index:
        raise UnsupportedError(
            f"layer {getattr(module, 'layer_idx', '')} attends to {key.shape[2]} keys, and the "
            f"{'mask' if layer is None else 'cache'} has {here} for "
            f"layer {index}: layers that share keys or change their number are not served"
        )
    if layer is not None and layer.window not in (None, attention_mask.window):
        raise UnsupportedError(
            f"layer {index} has a window of {layer.window} in its config, and of {attention_mask.window} in its mask: "
            'take a ShardedCache with windows="local"'
        )
    batch, heads, count, _ = query.shape
    words = {
        **attention_mask.words,
        "scale": scaling or 0.0,
        "soft_cap": softcap or None,
        "sinks": None if s_aux is None else s_aux.detach().float(),
    }
    rows = query.transpose(1, 2).reshape(batch * count, heads, -1)
    if layer is not None:
        layer.cache.agree()
        words.update(layer.cache.shard(batch, layer.here, attention_mask))
        before = layer.cache.comm.set_tag(layer.length)  # a rank that dropped other tokens is MismatchError
        try:
            out, _ = layer.cache.comm.attention_combine(rows, key, value, **words)
        finally:
            layer.cache.comm.set_tag(before)
    else:
        padding = None if attention_mask.padding is None else attention_mask.padding[:, first:end]
        out, _ = _core.attention(rows, key, value, key_start=_int32([first] * batch), key_mask=padding, **words)
    return out.reshape(batch, count, heads, -1), None


class ShardedLayer(CacheLayerMixin):
    """The keys and values of one layer that this rank owns."""

    is_sliding = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, cache: ShardedCache, index: int, window: int | None) -> None:
        super().__init__()
        self.cache, self.index, self.window, self.length = cache, index, window, 0

    @property
    def here(self) -> int:
        """Returns the number of keys of a sequence on this rank."""
        return self.cache.keys_of(self.length)

    @property
    def rows(self) -> int:
        """Returns the rows of keys that models get. If there is none, one unused row, because some models need one."""
        return max(self.here, 1)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        if key_states.device.type != "cpu":
            raise UnsupportedError(f"a ShardedCache is in host memory, and keys are on {key_states.device}")
        # Zeroed memory takes physical pages only once it is written.
        rows = max(self.cache.capacity, 1)
        shapes = [(*states.shape[:2], rows, states.shape[3]) for states in (key_states, value_states)]
        self.keys, self.values = (key_states.new_zeros(shape) for shape in shapes)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        first, count = self.length, key_states.shape[2]
        if first + count > self.cache.max_length:
            raise ValueError(f"max_length: there is room for {self.cache.max_length} tokens, and not {first + count}")
        implementation = self.cache.config._attn_implementation
        if implementation != "banyan":
            raise UnsupportedError(
                f'attn_implementation is "{implementation}" in the config of this cache: it must be "banyan", as other '
                "attention sees the keys of this rank alone"
            )
        # Attention takes the updated layer. Attention of a model with another config leaves it here.
        before, _updated.layer = getattr(_updated, "layer", None), None
        if before is not None:
            raise UnsupportedError(
                f'layer {before.index} was not attended to by "banyan": the model has another attn_implementation than '
                "the config of this cache"
            )
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.keys.shape[0] != key_states.shape[0]:
            raise ValueError(f"the cache has {self.keys.shape[0]} sequences, and here are {key_states.shape[0]}")
        tokens, places = self.cache.owned(first, count)
        self.keys[:, :, places] = key_states[:, :, tokens]
        self.values[:, :, places] = value_states[:, :, tokens]
        self.length += count
        if first == 0 and self.cache.prefill == "local":
            return key_states, value_states
        _updated.layer = self
        return self.keys[:, :, : self.rows], self.values[:, :, : self.rows]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.cache.max_length

    def reset(self) -> None:
        self.keys = self.values = None
        self.is_initialized, self.length = False, 0

    def crop(self, tokens_to_remove: int) -> None:
        self.length += max(tokens_to_remove, -self.length)  # the rows stay, and are written again

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self.length == 0:
            return
        here = self.here
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(len(indices), *old.shape[1:])
            new[:, :, :here] = old[indices, :, :here]
            setattr(self, name, new)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        if self.length > 0:
            here = self.here
            for held in (self.keys, self.values):
                held[:, :, :here] = held[beam_idx, :, :here]

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.batch_select_indices(torch.arange(len(self.keys) if self.length else 0).repeat_interleave(repeats))

    def move(self, here: torch.Tensor, places: torch.Tensor) -> None:
        """Moves the keys at `here` to other rows, in memory of the cache's capacity."""
        keys, values = self.keys, self.values
        self.lazy_initialization(keys, values)
        self.keys[:, :, places], self.values[:, :, places] = keys[:, :, here], values[:, :, here]


class ShardedCache(Cache):
    """A cache whose keys and values are sharded over the ranks of `comm` along the sequence.

    max_length is the largest number of tokens of a sequence, padding included. banyan.Ownership assigns tokens to
    ranks: kind="blocks" by blocks of `block` tokens round the ranks, kind="ranges" by one range each of max_length, and
    by `weights` where ranks are uneven. Layers with a sliding window keep it on each rank and attend without
    communication; windows="sharded" shards them as well. prefill="local": each rank attends to the whole first chunk by
    itself, without communication, and keeps its share of the keys.

    All ranks pass the same arguments (else MismatchError), and call the model with the same tokens. Sampling needs
    a common seed: torch.manual_seed(). If a rank fails, the others get PeerError, and recover() continues with them.
    """

    def __init__(
        self,
        config: Any,
        comm: Communicator,
        max_length: int,
        *,
        block: int = 16,
        kind: Literal["blocks", "ranges"] = "blocks",
        weights: Any = None,
        windows: Literal["local", "sharded"] = "local",
        prefill: Literal["local", "sharded"] = "sharded",
    ) -> None:
        for name, given, method in (("config", config, "get_text_config"), ("comm", comm, "attention_combine")):
            if not hasattr(given, method):
                wanted = "model.config" if name == "config" else "a banyan.Communicator"
                raise TypeError(f"{name}: it is {wanted}, and not a {type(given).__name__}")
        choices = "local", "sharded"
        for name, word, known in (
            ("windows", windows, choices),
            ("prefill", prefill, choices),
            ("kind", kind, ("blocks", "ranges")),
        ):
            if word not in known:
                raise ValueError(f'{name}: {word!r}: it is "{known[0]}" or "{known[1]}"')
        for name, number in (("max_length", max_length), ("block", block)):
            if not hasattr(number, "__index__") or isinstance(number, bool) or not 1 <= number < 1 << 31:
                raise ValueError(f"{name}: {number!r}: it is an integer from 1 to 2^31 - 1")
        self.comm, self.max_length, self.block, self.prefill = comm, max_length, block, prefill
        rule = _core.Ownership(
            kind, comm.nranks, block=block, tokens=max_length if kind == "ranges" else 0, weights=weights
        )
        self._words: dict[str, Any] | None = {
            **{"max_length": int(max_length), "block": int(block), "kind": kind},
            **{"weights": weights is not None and list(weights), "windows": windows, "prefill": prefill},
        }
        # Arguments of attention_combine() that locate the keys.
        start, key_block, key_stride = rule.queries(comm.rank)
        self._positions = {"key_block": key_block, "key_stride": key_stride}
        self._key_start, self._lost = start, np.zeros(max_length, bool)
        self._set_owners(rule.of_tokens(np.arange(max_length))[0])
        self.config = config.get_text_config(decoder=True)
        super().__init__(layers=self._make_layers(windows))

    def _make_layers(self, windows: str) -> list[Any]:
        config: Any = self.config
        layers: list[Any] = []
        shares = "reuse" in (getattr(config, "kv_sharing_modes", None) or []) or getattr(
            config, "num_kv_shared_layers", None
        )
        for index, (kind, words) in enumerate(zip(*get_layer_types_and_kwargs(config))):
            if shares or kind not in ("full_attention", "sliding_attention", "dummy"):
                raise UnsupportedError(
                    f"layer {index} of {config.model_type} "
                    f"{'may share keys with another one' if shares else 'is ' + kind}: a ShardedCache has "
                    "full_attention and sliding_attention"
                )
            if kind == "full_attention" or (kind == "sliding_attention" and windows == "sharded"):
                layers.append(ShardedLayer(self, index, words.get("sliding_window")))
            else:
                layers.append(DYNAMIC_LAYER_TYPE_MAPPING[kind](**words))
        return layers

    # ---- owners ------------------------------------------------------------------------------------------------------

    def _set_owners(self, owners: np.ndarray) -> None:
        """Sets the owner of each token. A rank's keys are in the order of tokens."""
        mine = owners == self.comm.rank
        self._owners, self._mine = owners, torch.from_numpy(np.flatnonzero(mine))
        self._before = np.concatenate([[0], np.cumsum(mine)])  # keys of this rank before each position
        self.capacity = len(self._mine)
        self._keys_max = int(np.bincount(owners).max())
        self._known: dict[Any, Any] = {}

    def agree(self) -> None:
        """Raises MismatchError on all ranks if the arguments of their caches differ. Collective the first time."""
        if self._words is None:
            return
        mine = np.array([zlib.crc32(repr(word).encode()) for word in self._words.values()])
        every = self.comm.allgather(mine)
        for name, numbers in zip(self._words, every.T):
            for rank in np.flatnonzero(numbers != numbers[0]):
                text = f"{name}: rank {rank} passed another value to ShardedCache than rank 0"
                raise MismatchError(text, int(rank))
        self._words = None

    def keys_of(self, length: int) -> int:
        """Returns how many keys of a sequence of `length` tokens this rank has in a layer."""
        return int(self._before[length])

    def owned(self, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns this rank's tokens of `count` from `first` on, relative to `first`, and the rows of their keys."""
        return self._remember("owned", (first, count), lambda: self._find_owned(first, count))

    def _find_owned(self, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(self.keys_of(first), self.keys_of(first + count))
        return self._mine[places] - first, places

    def shard(self, batch: int, here: int, mask: Mask) -> dict[str, Any]:
        """Returns the arguments of attention_combine() that describe this rank's `here` keys."""
        return self._remember("shard", (mask, here), lambda: self._find_shard(batch, here, mask))

    def _find_shard(self, batch: int, here: int, mask: Mask) -> dict[str, Any]:
        padding = None if mask.padding is None else mask.padding[:, self._mine[:here]].contiguous()
        words = {"seq_lens": _int32([here] * batch), "key_start": _int32([self._key_start] * batch)}
        return {**words, "key_mask": padding, "keys_max": self._keys_max, **self._positions}

    def _remember(self, name: str, key: Any, make: Any) -> Any:
        """Returns a value that all layers of a forward pass share. The first layer computes it."""
        if self._known.get(name, (None,))[0] != key:
            self._known[name] = key, make()
        return self._known[name][1]

    @property
    def keyword(self) -> dict[str, ShardedCache]:
        """The keyword argument for generate() and models: {"cache": self}, or {"past_key_values": self} before 5.24."""
        return {_KEYWORD: self}

    def _lengths(self) -> list[int]:
        return [layer.get_seq_length() for layer in self.layers if isinstance(layer, CacheLayerMixin)]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """The number of keys that a mask has, and the first of them. Raises StateError if layers have different ones."""
        lengths = self._lengths()
        if min(lengths) < max(lengths):
            raise StateError(
                f"an earlier call ended between layers: some have {min(lengths)} tokens, and some {max(lengths)}. "
                "reset() empties the cache; after the failure of a rank recover() goes on with it"
            )
        return super().get_mask_sizes(query_length, layer_idx)

    # ---- figures -----------------------------------------------------------------------------------------------------

    @property
    def keys_here(self) -> int:
        """Returns how many keys of a sequence this rank has in each sharded layer."""
        return max((layer.here for layer in self._sharded()), default=0)

    @property
    def bytes_here(self) -> int:
        """Returns the bytes of keys and values on this rank, including windows."""
        total = 0
        for layer in self.layers:
            for held in (layer.keys, layer.values):
                if held is not None and isinstance(layer, ShardedLayer):
                    held = held[:, :, : layer.here]
                total += 0 if held is None else held.numel() * held.element_size()
        return total

    def _sharded(self) -> list[ShardedLayer]:
        return [layer for layer in self.layers if isinstance(layer, ShardedLayer)]

    def crop(self, tokens_to_remove: int) -> None:
        """Drops the last tokens, of which tokens_to_remove is the negative number. Local: all ranks do the same.

        A positive number is the length that remains, as before transformers 5.24. Layers with local windows that have
        dropped keys need activate_past_recording() before those tokens, which generate() calls itself. Otherwise they
        raise UnsupportedError, and nothing is dropped.
        """
        length, tokens_to_remove = self.get_seq_length(), int(tokens_to_remove)
        drop = min(0, tokens_to_remove - length if tokens_to_remove > 0 else max(tokens_to_remove, -length))
        if length + drop == 0:
            return self.reset()
        for index, layer in enumerate(self.layers):
            window: Any = getattr(layer, "sliding_window", None)
            if not drop or not window or length < window:
                continue
            left = layer.keys.shape[2] + drop if layer.record_past else 0
            if left < min(window - 1, length + drop):
                raise UnsupportedError(
                    f"crop: layer {index} keeps its last {window} keys alone: call activate_past_recording() before the "
                    'tokens that are to be dropped, or take windows="sharded"'
                )
        super().crop(drop)

    # ---- after a failure ---------------------------------------------------------------------------------------------

    def recover(
        self, model: torch.nn.Module, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Continues with the surviving ranks after PeerError, TimeoutError or AbortedError.

        Makes a communicator of them, `comm`, which is to be closed; the old one is closed here. Assigns the lost tokens
        to them, and computes their keys again. input_ids [batch, length] are the tokens so far, the last without keys;
        ranks may differ by the tokens of one step. Returns the part that all have: call generate() with it and this
        cache. Keys of other ranks stay where they are. Layers with local windows have dropped what is needed, so their
        models compute all keys again. If another rank fails meanwhile, call it again.
        """
        sharded = self._sharded()
        lengths = self._lengths()
        fewer, members = self.comm.shrink()
        self.comm.close()
        self.comm = fewer
        every = fewer.allgather(np.array([input_ids.shape[1], min(lengths)]))
        length, complete = (int(least) for least in every.min(0))
        self._lost |= ~np.isin(self._owners, members)
        self._lost[complete if len(sharded) == len(self.layers) else 0 :] = True
        self._move(members)
        missing = np.flatnonzero(self._lost[: length - 1])
        for layer in self.layers:
            if not isinstance(layer, ShardedLayer):
                layer.reset()
        for run in np.split(missing, np.flatnonzero(np.diff(missing) != 1) + 1):
            if len(run) > 0:
                self._compute(model, input_ids, attention_mask, int(run[0]), int(run[-1]) + 1)
        for layer in sharded:
            layer.length = length - 1
        self._lost[:] = False
        return input_ids[:, :length]

    def _move(self, members: list[int]) -> None:
        """Assigns tokens of lost ranks to the survivors in blocks, first to the one with the fewest."""
        renamed = np.full(max(max(members), int(self._owners.max())) + 1, -1)
        renamed[members] = range(len(members))
        owners, old = renamed[self._owners], self._mine
        have = np.bincount(owners[owners >= 0], minlength=len(members))
        for first in range(0, self.max_length, self.block):
            if owners[first] < 0:
                owner = int(have.argmin())
                owners[first : first + self.block] = owner
                have[owner] += self.block
        self._set_owners(owners)
        # Any assignment of blocks is a pattern whose period is the longest sequence.
        blocks = owners[:: self.block]
        self._key_start = 0
        self._positions = {
            "key_block": self.block,
            "key_stride": len(blocks) * self.block,
            "key_pattern": np.flatnonzero(blocks == self.comm.rank).tolist() or None,
        }
        places = torch.from_numpy(self._before[old.numpy()])
        for layer in self._sharded():
            if layer.is_initialized:
                layer.move(torch.arange(len(old)), places)

    def _compute(self, model: Any, input_ids: torch.Tensor, mask: torch.Tensor | None, first: int, end: int) -> None:
        """Computes the keys of tokens [first, end). Those before them are there."""
        for layer in self._sharded():
            layer.length = first
        words: dict[str, Any] = {"logits_to_keep": 1, "use_cache": True, **self.keyword}
        if mask is not None:
            mask = torch.nn.functional.pad(mask, (0, max(0, end - mask.shape[1])), value=1)[:, :end]
            words["position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)[:, first:]
            words["attention_mask"] = mask
        with torch.no_grad():
            model(input_ids=input_ids[:, first:end], **words)
        self._lost[first:end] = False


AttentionInterface.register("banyan", attention)
AttentionMaskInterface.register("banyan", mask)
