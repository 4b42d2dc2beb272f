# SPDX-License-Identifier: Apache-2.0
"""The calls of libbanyan, and their docstrings. Use the package banyan, which has all of it."""

from typing import Any, Callable, Dict, List, Literal, NoReturn, Optional, Protocol, Sequence, Tuple, TypeVar
from typing import TypedDict, Union

from typing_extensions import Buffer, Unpack

from .prune import Prune

class DLPackArray(Protocol):
    """An array of numpy, torch, jax, cupy, or another framework with DLPack."""

    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> Any: ...

Array = Union[DLPackArray, Buffer]  # a memoryview or similar too; its results are numpy arrays
Given = TypeVar("Given", bound=Array)  # results have the framework of the first array
Out = Union[None, Array, Sequence[Optional[Array]]]  # one array for the values, or one per result
Base = Literal["e", "2", 2]
Values = Literal["normalised", "numerator"]
Scatter = Literal["none", "heads", "tokens", "root"]
Wire = Literal["f32", "f16", "bf16", "e4m3"]
Order = Literal["plan", "canonical", "exact"]
Empty = Union[str, float]
EmptyRows = Literal["written", "kept"]
KvRows = Literal["plain", "flashmla_fp8"]
Preset = Literal[
    "flash_attention_2",
    "flash_attention_3",
    "flashinfer",
    "flashmla",
    "tensorrt_llm_helix",
    "ggml",
    "torch",
]

class CallWords(TypedDict, total=False):
    """Keyword arguments of all calls that merge or sum."""

    scatter: Scatter
    root: int
    order: Order
    wire: Wire
    algorithm: Optional[str]
    tokens: Union[None, int, Array]

class CombineWords(CallWords, total=False):
    """Keyword arguments of Communicator.combine()."""

    sum: Optional[Array]
    out: Out
    base: Optional[Base]
    empty: Optional[Empty]
    values: Optional[Values]
    out_base: Optional[Base]
    out_empty: Empty
    out_values: Optional[Values]
    stream: Optional[int]
    preset: Optional[Preset]
    values_scale: Union[None, float, Array]
    out_scale: Union[None, float, Array]
    seq_lens: Optional[Array]
    query_start_loc: Optional[Array]
    token_mask: Optional[Array]
    empty_rows: Optional[EmptyRows]

class SumWords(CallWords, total=False):
    """Keyword arguments of Communicator.allreduce()."""

    out: Optional[Array]

class GatherWords(TypedDict, total=False):
    """Keyword arguments of Communicator.allgather()."""

    out: Optional[Array]
    counts: Optional[Sequence[int]]

class HeadsWords(GatherWords, total=False):
    """Keyword arguments of Communicator.allgather_heads()."""

    tokens: Union[None, int, Array]

class BestWords(TypedDict, total=False):
    """Keyword arguments of a selection."""

    k: Optional[int]
    rows: Optional[Array]
    out: Optional[Tuple[Array, Array, Array, Array]]
    algorithm: Optional[str]

class SelectWords(BestWords, total=False):
    """Keyword arguments of Communicator.select()."""

    tokens: Union[None, int, Array]

class SelectedKeys(BestWords, total=False):
    """The arguments of select() for attention that selects its keys."""

    scores: Array
    indices: Array

class LayerWords(TypedDict, total=False):
    """Keyword arguments of attention that differ between the layers of a step."""

    scale: float
    window: Optional[int]
    soft_cap: Optional[float]
    sinks: Optional[Array]
    k_scale: Union[None, float, Array]
    v_scale: Union[None, float, Array]

class NewKeyWords(LayerWords, total=False):
    """Keyword arguments of AttentionStep()."""

    new_k: Optional[Array]
    new_v: Optional[Array]

class BatchWords(TypedDict, total=False):
    """Keyword arguments of attention that are equal for all layers of a step."""

    seq_lens: Optional[Array]
    page_table: Optional[Array]
    keys_max: int
    empty: Optional[Literal["nan"]]
    query_start_loc: Optional[Array]
    query_start: Optional[Array]
    tree_mask: Optional[Array]
    key_start: Optional[Array]
    key_block: Optional[int]
    key_stride: Optional[int]
    key_pattern: Optional[Sequence[int]]
    key_mask: Optional[Array]
    page_indptr: Optional[Array]
    last_page_len: Optional[Array]

class KeyWords(LayerWords, BatchWords, total=False):
    """Keyword arguments of attention() that describe keys and queries."""

    kv_rows: Optional[KvRows]
    q_rope: Optional[Array]
    parts: Optional[Sequence[Dict[str, Any]]]
    prune: Optional[Prune]

class ResultWords(CallWords, total=False):
    """Keyword arguments of attention over the keys of all ranks."""

    base: Base
    out_empty: Empty
    stream: Optional[int]
    gather: Union[None, bool, Sequence[int]]

class AttentionWords(KeyWords, ResultWords, total=False):
    """Keyword arguments of Communicator.attention_combine()."""

    out: Out
    select: Optional[SelectedKeys]

class StepWords(BatchWords, ResultWords, total=False):
    """Keyword arguments of Communicator.attention_step()."""

    slots: Optional[Array]

def version() -> str:
    """The version of libbanyan that runs."""
def network() -> str:
    """The network library that connects ranks of several nodes. Raises UnsupportedError if UCX cannot be loaded."""
def split(count: int, parts: int, index: int) -> Tuple[int, int]:
    """(first, number): the range of owner `index` of `count` things divided among `parts`. Raises ArgumentError."""
def status_names() -> list:
    """The names of statuses, by number."""

# banyan.jax_ops calls these. A target is a capsule; compiled functions hold the numbers of their settings.
jax_target: Callable[[str], Any]
jax_prepare: Callable[..., int]
jax_prepare_sum: Callable[..., int]
jax_prepare_select: Callable[..., int]
# banyan.torch_ops calls these. A graph holds the number of a communicator; schemas name the arguments of the ops.
torch_handle: Callable[[Comm], int]
torch_comm: Callable[[int], Comm]
torch_combine: Callable[..., Any]
torch_allreduce: Callable[..., Any]

def attention(
    q: Given,
    k: Array,
    v: Optional[Array],
    *,
    base: Base = "e",
    out: Out = None,
    dtype: Optional[Literal["f32", "q"]] = None,
    **words: Unpack[KeyWords],
) -> Tuple[Given, Given]:
    """Computes attention of q over this rank's keys, on one thread of the host. It neither communicates nor waits.

    Dtypes are f32, f16 and bf16; keys and values may also be int8 or eight-bit floats. Any strides are allowed, but the
    last dimension is contiguous. Arrays are read in place and not kept.

    q: [tokens, heads, head_dim], one token per sequence of the batch without query_start_loc.
    k, v: [batch, kv_heads, keys, head_dim] and [..., value_dim]; with page_table [pages, kv_heads, page_keys, dim].
    seq_lens: int32 [batch], the keys of each sequence; None: all of k.
    page_table: int32 [batch, n], the pages of each sequence.
    page_indptr, last_page_len: int32 [batch + 1] and [batch]. page_table is then one list, as FlashInfer has it, and
        last_page_len replaces seq_lens.
    scale: factor of logits; 0: 1 / sqrt(head_dim). soft_cap: logits become soft_cap * tanh(logit / soft_cap).
    sinks: f32 [heads], a logit without a value.
    empty="nan": a row with a NaN logit counts as a row without keys.
    query_start_loc: int32 [batch + 1], where the tokens of each sequence begin in q.
    query_start: int32 [batch], their position in the whole sequence. A query sees keys up to its own position.
    key_start, key_block, key_stride, key_pattern: positions of this rank's keys, from Ownership.queries().
    window: a query sees only this many of the last keys. tree_mask: uint64 [tokens], the drafts that it sees.
    key_mask: bool [batch, keys]. Keys with False are neither seen nor read.
    k_scale, v_scale: scales of eight-bit keys and values: a number, f32 [kv_heads], or f32 in the shape of k without
        its last dimension.
    kv_rows="flashmla_fp8": rows of k are 656 bytes in uint8 that contain the values, and v is None.
    q_rope: [tokens, heads, rope_dim], the last elements of queries, if they are stored separately.
    parts: keys in several memories of the host, oldest first. Each is a dict of k, v, seq_lens, page_table,
        page_indptr, last_page_len, k_scale, v_scale and kv_rows as above. k and v of the call are
        then None, and seq_lens is None or the sums.
    prune: the pages that may be left out, see Prune. Not available with parts or in exact order.
    keys_max: the largest length of a sequence, if known.
    out: a pair of arrays that receive the results, or one array for o.

    Returns (o, lse): [tokens, heads, value_dim] in the dtype of q and [tokens, heads] in f32, the input of
    Communicator.combine(). With dtype="f32" both are f32, so that a combine rounds once; with "q" both have the dtype
    of q. Raises ArgumentError, which names the argument, and UnsupportedError.
    """

def topk(scores: Given, k: int, *, lens: Optional[Array] = None, out: Optional[Tuple[Array, Array]] = None) -> Tuple[Given, Given]:
    """The k best of the last dimension of scores, best first, in the order of Communicator.select(): the higher score,
    then the lower position; NaN after all numbers. Local.

    scores: [..., n], f32, contiguous. k: 1 to 8192. lens: int32, how many of the n scores each row has.
    out: a tuple of the arrays that the call returns.

    Returns values [..., k] in f32 and positions [..., k] in int32. If there are fewer than k, the others are -inf and
    -1.
    """
def page_bounds_update(
    q: Array, k: Array, v: Optional[Array], *, first: Optional[Array] = None, **words: Unpack[KeyWords]
) -> None:
    """Bring prune.bounds up to date for keys first[b] (int32 [batch]) and later of each sequence; None: all.

    The other arguments are those of attention(), and the elements of q are not read. Raises ArgumentError, which names
    the argument, and UnsupportedError.
    """


def page_moves(
    pages: Sequence[int], *, weights: Optional[Sequence[int]] = None, of_moved: Optional[Sequence[int]] = None
) -> List[Tuple[int, int, int]]:
    """The moves (from, to, pages) after which each rank has its share of a sequence.

    pages: what each rank has of it now. weights: the share of each rank; 0: it leaves. of_moved: pages that each rank
    has of the sequences that were moved before, which balances all together; None: the fewest moves.
    """

class Ownership:
    """The base of banyan.Ownership."""

    def __init__(
        self,
        kind: Literal["ranges", "blocks"],
        nranks: int,
        *,
        block: int = 0,
        tokens: int = 0,
        weights: Optional[Sequence[int]] = None,
    ) -> None: ...
    @property
    def nranks(self) -> int:
        """The number of ranks that own tokens."""
    def moves_to(self, other: Ownership, length: int) -> List[Tuple[int, int, int, int]]:
        """The moves [(first, end, from, to)] that turn this layout into another. A token moves at most once."""
    def of_token(self, token: int) -> Tuple[int, int]:
        """(rank, position): the owner of a token, and its position among the owner's keys."""
    def of_tokens(self, tokens: Any) -> Tuple[Any, Any]:
        """(ranks, positions): the same for an array or list of tokens, as arrays of numpy in int32 and int64."""
    def token(self, rank: int, position: int) -> int:
        """The token at a position among the keys of a rank."""
    def keys(self, rank: int, length: int) -> int:
        """How many keys a rank has of a sequence of `length` tokens: an entry of its seq_lens."""
    def queries(self, rank: int) -> Tuple[int, int, int]:
        """(key_start, key_block, key_stride) of attention over the keys of a rank."""

class Threads:
    """The base of banyan.Threads."""

    def __init__(self, nranks: int) -> None: ...
    @property
    def nranks(self) -> int:
        """The number of ranks."""

class AttentionStep:
    """One step of a decoder, made by Communicator.attention_step(). Call it once for each layer."""

    def __call__(
        self,
        q: Given,
        k: Array,
        v: Array,
        out: Out = None,
        **words: Unpack[NewKeyWords],
    ) -> Tuple[Given, ...]:
        """Writes this rank's new keys to its cache, and attends over the keys of all ranks. Collective.

        q, k, v, out and the other words are those of attention_combine(). new_k, new_v: [tokens, kv_heads, dim] of the
            cache's dtype, which `slots` of the step puts into k and v. A layer whose arrays have the layouts of the layer
            before only exchanges pointers, where `out` is one array.

        Returns (o, lse); lse is None if `out` is one array. Raises what combine() raises.
        """

class Operation:
    """A persistent operation: planned once, run as op(), or by start(), test() and wait().

    All ranks start the operations of a communicator in the same order. An operation keeps its arrays alive. They stay
    the caller's and may change between runs. A run raises what the call of the same name raises, and StateError out of
    order.
    """

    @property
    def outputs(self) -> Any:
        """The arrays that a run writes."""
    @property
    def tokens(self) -> Optional[int]:
        """How many tokens the next run has, where the operation was made with a number; None: all."""
    @tokens.setter
    def tokens(self, number: int) -> None: ...
    def __call__(self) -> Any:
        """Runs the operation, and returns `outputs`."""
    def start(self) -> None:
        """Begins a run, and does what it can without waiting."""
    def test(self) -> bool:
        """Makes progress. Returns whether the run is complete."""
    def wait(self) -> Any:
        """Waits for the run that was started, and returns `outputs`."""
    def info(self) -> dict:
        """How it was planned, and what its last run has sent, as a dictionary."""
    def timed(self, runs: int) -> float:
        """Runs it `runs` times without Python in between, and returns the seconds: what the calls cost in C."""
    def describe(self) -> str:
        """What this rank runs: its steps, one a line."""
    def free(self) -> None:
        """Frees it, and gives up its arrays but the outputs. Closing the communicator does so as well."""

class Comm:
    """The base of banyan.Communicator.

    Collective calls are made by all ranks in the same order, with a deadline. ArgumentError means that this rank has
    sent nothing; peers get PeerError with its text. MismatchError, DataError, PeerError, TimeoutError and AbortedError
    end the communicator on every rank. Arrays are read and written in place: no other thread may write them during a
    call.
    """

    def __init__(
        self,
        source: Union[None, Threads, Callable[[bytes, float], Union[bytes, Sequence[bytes]]]] = None,
        rank: int = 0,
        nranks: int = 0,
        timeout: float = 0.0,
        arena_bytes: int = 0,
        algorithm: Optional[str] = None,
        device: Optional[str] = None,
        first_timeout: float = 0.0,
        threads: int = 0,
    ) -> None: ...
    @property
    def rank(self) -> int:
        """This rank, from 0."""
    @property
    def nranks(self) -> int:
        """The number of ranks."""
    @property
    def device(self) -> str:
        """The device, such as "cuda:0"; "" on the host."""
    @property
    def is_open(self) -> bool:
        """False after close()."""
    @property
    def failed(self) -> bool:
        """True if a failure has ended this communicator."""
    @property
    def failed_rank(self) -> int:
        """The rank that caused the failure, or -1."""
    @property
    def error(self) -> str:
        """The failure's text, or ""."""
    def _reject(self, argument: str, text: str) -> NoReturn:
        """Raises ArgumentError instead of making a collective call, and reports that to peers."""
    def _shrink(self) -> Tuple[Any, List[int]]: ...
    def _split(self, color: int, key: int) -> Optional[Any]: ...
    def close(self) -> None:
        """Frees the communicator with its operations. A with block does so at its end."""
    def abort(self, reason: Optional[str] = None) -> None:
        """Ends all calls on all ranks with AbortedError. Any thread may call it, at any time."""
    def describe(self) -> str:
        """What was found and chosen, in one paragraph."""
    def metrics(self) -> str:
        """This rank's counters as Prometheus text."""
    def set_tag(self, tag: int) -> int:
        """Sets the tag of operations from now on, such as a layer's number, and returns the previous one; -1: none.

        Errors and traces show it, and ranks compare it: calls that pair up wrongly are MismatchError."""
    def combine(self, o: Given, lse: Optional[Array], **words: Unpack[CombineWords]) -> Tuple[Given, ...]:
        """Merges the partials of all ranks. Collective: all ranks call it with the same shapes and settings.

        o: [tokens, heads, dim], f32, f16, bf16 or eight-bit floats; any strides, but the last dimension is contiguous.
        lse: [tokens, heads], f32, f16 or bf16: log of the sum of exponentials, in `base` "e" (None) or "2".
        sum: [tokens, heads], the denominators d; lse then has the maxima m.
        empty: the mark of a row without keys in lse (or m): "-inf" (None), "+inf", "nan", several joined by "|", or a
            number, which also marks all numbers below it. Values of such rows are not read.
        values: "normalised" (None) or "numerator", which needs `sum`.
        out_base, out_values: the same for the result; None: as for o and lse. out_empty: its mark, but not "nan".
        preset: the convention of a kernel, in place of base, empty, values and sum.
        values_scale, out_scale: scales of eight-bit floats: a number or f32 [heads].
        tokens: the number of tokens of this call, at most those of o, and equal on all ranks.
        seq_lens, query_start_loc, token_mask: int32 [batch], int32 [batch + 1] and bool [tokens]. They select the rows
            with keys on this rank; others are not read.
        empty_rows: "written" (None), or "kept": rows of `out` for which no rank has keys stay unchanged.
        scatter: "none" (all rows on all ranks), "heads", "tokens" or "root" (with `root`). split() returns the range of
            a rank.
        order: "plan", "canonical" or "exact". wire: "f32", "f16", "bf16" or "e4m3". algorithm: None: by predicted cost.
        stream: on a device, the address of a stream; None: the current stream of the framework.
        out: a pair of arrays that receive the results, of which lse may be None, or one array for the values.

        Returns (out, lse), or (out, m, d) with `sum`: new arrays of the frameworks and dtypes of o and lse, or those of
        `out`. Ranks other than the root get (None, None). Inputs are neither written nor kept.

        Raises ArgumentError, after which the communicator remains usable if the call was the first of its shape, and
        MismatchError, DataError, PeerError, TimeoutError or AbortedError, which end it on every rank.
        """
    def combine_init(self, o: Array, lse: Optional[Array], **words: Unpack[CombineWords]) -> Operation:
        """A persistent combine of these arrays, with the arguments of combine(). Collective.

        Returns an Operation, which keeps the arrays. Each run, op(), reads them anew and writes op.outputs. Tensors are
        not resized meanwhile, as torch's resize_() frees their memory. `tokens` is an array, which each run reads, or a
        number, which op.tokens sets.
        """
    def attention_combine(
        self, q: Given, k: Array, v: Optional[Array], **words: Unpack[AttentionWords]
    ) -> Tuple[Given, ...]:
        """Attention over the keys of all ranks: banyan.attention() and combine() in one call, with their arguments.
        Collective.

        keys_max: the largest length of a sequence on any rank, the same on all. Another number makes a new plan.
        gather: q has this rank's share of the heads, and is gathered first. True: all ranks have as many. A list: how
            many each rank has.
        tokens: how many query tokens this call has, at most those of q.
        select: a dict of the arguments of select(), with scores [batch, offers]: keys are selected first, in the same
            operation. Without key_mask, k and v have one key per page, [rows, kv_heads, 1, dim], and `rows` are their
            pages. With key_mask, an array that receives the chosen keys, k has all keys of the shard, and `rows` are
            their numbers in the sequence. order="exact" needs the mask. Host only.

        Returns (o, lse) like combine(): o has the dtype of q, and lse is f32. out: a pair of arrays for them. Raises
        what combine() raises.
        """
    def attention_combine_init(
        self, q: Array, k: Array, v: Optional[Array], **words: Unpack[AttentionWords]
    ) -> Operation:
        """A persistent attention_combine() of these arrays. Collective. Returns an Operation, which keeps the
        arrays.
        """
    def attention_step(self, **words: Unpack[StepWords]) -> AttentionStep:
        """Takes the arguments of attention_combine() that are equal for all layers of a step of a decoder. Local.

        slots: int64 or int32 [tokens], where the new keys of each layer go: key slot % page_keys of page slot //
            page_keys of k and v. Negative: the key is another rank's. Host only.

        Returns an AttentionStep, which keeps the arrays. They are not changed or resized until its last call.
        """
    def allreduce(self, x: Given, **words: Unpack[SumWords]) -> Given:
        """Sums x of all ranks, as after an output projection under tensor parallelism. Collective.

        x: [tokens, dim], f32, f16 or bf16. [dim] is one token, and more dimensions count as columns. Tokens have any
            stride; columns are contiguous.
        out: an array of the same dtype that receives the sums; x itself is allowed if it gets all of them.
        scatter: "none" (all sums on all ranks), "tokens" (a range of the first dimension, as split() says), "heads" (a
            range of the columns) or "root" (with `root`; other ranks get None).
        order: "plan", "canonical", whose bits do not depend on the algorithm, or "exact", nor on which rank gives what.
        wire: "f32", "f16", "bf16" or "e4m3", with a scale for each 32 columns; with "exact" "f32".
        tokens: the number of tokens of this call, at most those of x, and equal on all ranks.

        Sums are in f32 and rounded once. All ranks get the same bits. NaN and infinities arrive as such. Returns a new
        array of the framework of x, or `out`. Raises what combine() raises.
        """
    def allreduce_init(self, x: Array, **words: Unpack[SumWords]) -> Operation:
        """A persistent allreduce(). Collective. Returns an Operation."""
    def select(self, scores: Given, indices: Given, **words: Unpack[SelectWords]) -> Tuple[Given, Given, Given, Given]:
        """Selects the k best of the scored keys that all ranks offer, for each row. Collective.

        scores: [tokens, n], [tokens, heads, n] or [n], f32, contiguous: this rank's offers, in any order, such as those
            of topk(). n is at most k, and may be 0.
        indices: the same shape, int64, or on the host also int32: which key of the whole sequence it is. Negative: no
            offer.
        k: pairs that are chosen, 1 to 8192; None: n.
        rows: the same shape, int32: what `own` gets for an offer, such as its row in this rank's cache. None: its
            position along n.
        out: a tuple of the arrays that the call returns. tokens: as in allreduce().

        Best is the higher score, then the lower index; NaN comes after all numbers, and -0 equals 0. All ranks get the
        same pairs, however many ranks there are. Returns four arrays: scores [..., k] in f32, indices [..., k] in the
        dtype of indices, own [..., k] in int32, and own_counts [...] in int32. own has those that this rank offered,
        so page_table=own with seq_lens=own_counts attends to them in a cache with one key per page. If fewer than k
        pairs are offered, the other scores are -inf and the other indices -1. An index that is chosen twice in a row
        raises DataError on all ranks, which names the ranks that offered it. On a device a later call raises it, and
        the communicator has then failed.
        """
    def select_init(self, scores: Array, indices: Array, **words: Unpack[SelectWords]) -> Operation:
        """A persistent select() of int64 indices. Collective. Returns an Operation."""
    def allgather(self, mine: Given, **words: Unpack[GatherWords]) -> Given:
        """Gives all ranks the arrays of each: [nranks, *mine.shape], any dtype. Collective.

        mine: contiguous. counts: the size of the first dimension on each rank, where these differ; the arrays are then
        joined along it. out: an array that receives the result. Raises what combine() raises.
        """
    def allgather_init(self, mine: Array, **words: Unpack[GatherWords]) -> Operation:
        """A persistent allgather(). Collective. Returns an Operation."""
    def allgather_heads(self, mine: Given, **words: Unpack[HeadsWords]) -> Given:
        """Gives all ranks the heads of each, such as Q under tensor parallelism. Collective.

        mine: [tokens, heads of this rank, dim], with any strides. counts: the heads of each rank; None: as many as
            here.
        tokens: as in combine(). Returns [tokens, heads of all ranks, dim], or `out`. Raises what combine() raises.
        """
    def allgather_heads_init(self, mine: Array, **words: Unpack[HeadsWords]) -> Operation:
        """A persistent allgather_heads(). Collective. Returns an Operation."""
    def shift(self, send: Given, distance: int = 1, *, out: Optional[Array] = None) -> Given:
        """Sends an array to rank + distance, and returns that of rank - distance, modulo the number of ranks.
        Collective.

        send: contiguous, any dtype, and of the same shape on all ranks. out: an array that receives the result.
        """
    def shift_init(self, send: Array, distance: int = 1, *, out: Optional[Array] = None) -> Operation:
        """A persistent shift(). Collective. Returns an Operation."""
    def broadcast(self, data: Array, root: int = 0) -> None:
        """Copies the contiguous memory of `data` from the root to the others, in place. The root's may be read-only.
        Collective.
        """
    def broadcast_init(self, data: Array, root: int = 0) -> Operation:
        """A persistent broadcast(). Collective. Returns an Operation."""
    def barrier(self) -> None:
        """Returns when all ranks have called it. Collective."""
    def barrier_init(self) -> Operation:
        """A persistent barrier(). Collective. Returns an Operation."""
