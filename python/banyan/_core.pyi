# SPDX-License-Identifier: Apache-2.0
from typing import Any, Callable, Dict, List, Literal, NoReturn, Optional, Sequence, Tuple, Union

Array = Any  # an array of numpy, torch, jax, cupy, or one with __dlpack__
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

def version() -> str: ...
def network() -> str: ...
def split(count: int, parts: int, index: int) -> Tuple[int, int]: ...
def status_names() -> list: ...
def jax_target() -> Any: ...
def jax_prepare(
    comms: list,
    base: Base,
    empty: Empty,
    out_base: Optional[Base],
    out_empty: Empty,
    scatter: Scatter,
    order: Order,
    wire: Wire,
    algorithm: Optional[str],
) -> int: ...
def torch_handle(comm: Comm) -> int: ...
def torch_comm(number: int) -> Comm: ...
def torch_combine(
    o: Array,
    lse: Array,
    comm: int,
    base: Base = "e",
    empty: str = "-inf",
    scatter: Scatter = "none",
    wire: Wire = "f32",
    order: Order = "plan",
) -> Tuple[Array, Array]: ...
def torch_combine_out(
    o: Array,
    lse: Array,
    comm: int,
    base: Base = "e",
    empty: str = "-inf",
    scatter: Scatter = "none",
    wire: Wire = "f32",
    order: Order = "plan",
    *,
    out: Array,
    out_lse: Array,
) -> None: ...
def attention(
    q: Array,
    k: Array,
    v: Optional[Array],
    *,
    seq_lens: Optional[Array] = None,
    page_table: Optional[Array] = None,
    scale: float = 0.0,
    keys_max: int = 0,
    empty: Optional[Literal["nan"]] = None,
    query_start_loc: Optional[Array] = None,
    query_start: Optional[Array] = None,
    tree_mask: Optional[Array] = None,
    key_start: Optional[Array] = None,
    key_block: Optional[int] = None,
    key_stride: Optional[int] = None,
    key_pattern: Optional[Sequence[int]] = None,
    key_mask: Optional[Array] = None,
    window: Optional[int] = None,
    soft_cap: Optional[float] = None,
    sinks: Optional[Array] = None,
    k_scale: Union[None, float, Array] = None,
    v_scale: Union[None, float, Array] = None,
    page_indptr: Optional[Array] = None,
    last_page_len: Optional[Array] = None,
    kv_rows: Optional[KvRows] = None,
    q_rope: Optional[Array] = None,
    parts: Optional[Sequence[Dict[str, Any]]] = None,
    base: Base = "e",
    out: Optional[Tuple[Array, Array]] = None,
    dtype: Optional[Literal["f32", "q"]] = None,
) -> Tuple[Array, Array]: ...

def next_page(
    nranks: int,
    *,
    weights: Optional[Sequence[int]] = None,
    of_sequence: Optional[Sequence[int]] = None,
    of_all: Optional[Sequence[int]] = None,
) -> int: ...
def tier_next(reads: Sequence[int], *, keep: int = 0) -> Optional[int]: ...
def page_moves(
    pages: Sequence[int], *, weights: Optional[Sequence[int]] = None, of_moved: Optional[Sequence[int]] = None
) -> List[Tuple[int, int, int]]: ...

class Ownership:
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
    def nranks(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def hash(self) -> int: ...
    def moves_to(self, other: Ownership, length: int) -> List[Tuple[int, int, int, int]]: ...
    def of_token(self, token: int) -> Tuple[int, int]: ...
    def of_tokens(self, tokens: Any) -> Tuple[Any, Any]: ...
    def token(self, rank: int, place: int) -> int: ...
    def keys(self, rank: int, length: int) -> int: ...
    def queries(self, rank: int, *, pattern: bool = False) -> Tuple[Any, ...]: ...

class Threads:
    def __init__(self, nranks: int) -> None: ...
    @property
    def nranks(self) -> int: ...

class Operation:
    @property
    def outputs(self) -> Any: ...
    tokens: Optional[int]
    def __call__(self) -> Any: ...
    def start(self) -> None: ...
    def test(self) -> bool: ...
    def wait(self) -> Any: ...
    def info(self) -> dict: ...
    def timed(self, runs: int) -> float: ...
    def describe(self) -> str: ...
    def free(self) -> None: ...

class Comm:
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
    def rank(self) -> int: ...
    @property
    def nranks(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def is_open(self) -> bool: ...
    @property
    def failed(self) -> bool: ...
    @property
    def failed_rank(self) -> int: ...
    @property
    def error(self) -> str: ...
    def _refuse(self, argument: str, text: str) -> NoReturn: ...
    def _shrink(self) -> Tuple[Any, List[int]]: ...
    def _split(self, arg0: int, arg1: int, /) -> Optional[Any]: ...
    def close(self) -> None: ...
    def abort(self, reason: Optional[str] = None) -> None: ...
    def describe(self) -> str: ...
    def metrics(self) -> str: ...
    def set_tag(self, tag: int) -> None: ...
    def combine(
        self,
        o: Array,
        lse: Optional[Array],
        *,
        sum: Optional[Array] = None,
        out: Any = None,
        base: Optional[Base] = None,
        empty: Optional[Empty] = None,
        values: Optional[Values] = None,
        out_base: Optional[Base] = None,
        out_empty: Empty = "-inf",
        out_values: Optional[Values] = None,
        scatter: Scatter = "none",
        root: int = 0,
        order: Order = "plan",
        wire: Wire = "f32",
        algorithm: Optional[str] = None,
        stream: Optional[int] = None,
        preset: Optional[Preset] = None,
        values_scale: Union[None, float, Array] = None,
        out_scale: Union[None, float, Array] = None,
        tokens: Union[None, int, Array] = None,
        seq_lens: Optional[Array] = None,
        query_start_loc: Optional[Array] = None,
        token_mask: Optional[Array] = None,
        empty_rows: Optional[EmptyRows] = None,
    ) -> Tuple[Array, ...]: ...
    def combine_init(
        self,
        o: Array,
        lse: Optional[Array],
        *,
        sum: Optional[Array] = None,
        out: Any = None,
        base: Optional[Base] = None,
        empty: Optional[Empty] = None,
        values: Optional[Values] = None,
        out_base: Optional[Base] = None,
        out_empty: Empty = "-inf",
        out_values: Optional[Values] = None,
        scatter: Scatter = "none",
        root: int = 0,
        order: Order = "plan",
        wire: Wire = "f32",
        algorithm: Optional[str] = None,
        stream: Optional[int] = None,
        preset: Optional[Preset] = None,
        values_scale: Union[None, float, Array] = None,
        out_scale: Union[None, float, Array] = None,
        tokens: Union[None, int, Array] = None,
        seq_lens: Optional[Array] = None,
        query_start_loc: Optional[Array] = None,
        token_mask: Optional[Array] = None,
        empty_rows: Optional[EmptyRows] = None,
    ) -> Operation: ...
    def attention_combine(
        self,
        q: Array,
        k: Array,
        v: Optional[Array],
        *,
        seq_lens: Optional[Array] = None,
        page_table: Optional[Array] = None,
        scale: float = 0.0,
        keys_max: int = 0,
        empty: Optional[Literal["nan"]] = None,
        query_start_loc: Optional[Array] = None,
        query_start: Optional[Array] = None,
        tree_mask: Optional[Array] = None,
        key_start: Optional[Array] = None,
        key_block: Optional[int] = None,
        key_stride: Optional[int] = None,
        key_pattern: Optional[Sequence[int]] = None,
        key_mask: Optional[Array] = None,
        window: Optional[int] = None,
        soft_cap: Optional[float] = None,
        sinks: Optional[Array] = None,
        k_scale: Union[None, float, Array] = None,
        v_scale: Union[None, float, Array] = None,
        page_indptr: Optional[Array] = None,
        last_page_len: Optional[Array] = None,
        kv_rows: Optional[KvRows] = None,
        q_rope: Optional[Array] = None,
        parts: Optional[Sequence[Dict[str, Any]]] = None,
        out: Any = None,
        base: Base = "e",
        out_empty: Empty = "-inf",
        scatter: Scatter = "none",
        root: int = 0,
        order: Order = "plan",
        wire: Wire = "f32",
        algorithm: Optional[str] = None,
        stream: Optional[int] = None,
        gather: Union[None, bool, Sequence[int]] = None,
        tokens: Union[None, int, Array] = None,
    ) -> Tuple[Array, ...]: ...
    def attention_combine_init(
        self,
        q: Array,
        k: Array,
        v: Optional[Array],
        *,
        seq_lens: Optional[Array] = None,
        page_table: Optional[Array] = None,
        scale: float = 0.0,
        keys_max: int = 0,
        empty: Optional[Literal["nan"]] = None,
        query_start_loc: Optional[Array] = None,
        query_start: Optional[Array] = None,
        tree_mask: Optional[Array] = None,
        key_start: Optional[Array] = None,
        key_block: Optional[int] = None,
        key_stride: Optional[int] = None,
        key_pattern: Optional[Sequence[int]] = None,
        key_mask: Optional[Array] = None,
        window: Optional[int] = None,
        soft_cap: Optional[float] = None,
        sinks: Optional[Array] = None,
        k_scale: Union[None, float, Array] = None,
        v_scale: Union[None, float, Array] = None,
        page_indptr: Optional[Array] = None,
        last_page_len: Optional[Array] = None,
        kv_rows: Optional[KvRows] = None,
        q_rope: Optional[Array] = None,
        parts: Optional[Sequence[Dict[str, Any]]] = None,
        out: Any = None,
        base: Base = "e",
        out_empty: Empty = "-inf",
        scatter: Scatter = "none",
        root: int = 0,
        order: Order = "plan",
        wire: Wire = "f32",
        algorithm: Optional[str] = None,
        stream: Optional[int] = None,
        gather: Union[None, bool, Sequence[int]] = None,
        tokens: Union[None, int, Array] = None,
    ) -> Operation: ...
    def allgather(self, mine: Array, *, out: Any = None, counts: Optional[Sequence[int]] = None) -> Array: ...
    def allgather_init(self, mine: Array, *, out: Any = None, counts: Optional[Sequence[int]] = None) -> Operation: ...
    def gather(self, mine: Array, *, out: Any = None, counts: Optional[Sequence[int]] = None) -> Array: ...
    def gather_init(self, mine: Array, *, out: Any = None, counts: Optional[Sequence[int]] = None) -> Operation: ...
    def allgather_heads(
        self,
        mine: Array,
        *,
        out: Any = None,
        counts: Optional[Sequence[int]] = None,
        tokens: Union[None, int, Array] = None,
    ) -> Array: ...
    def allgather_heads_init(
        self,
        mine: Array,
        *,
        out: Any = None,
        counts: Optional[Sequence[int]] = None,
        tokens: Union[None, int, Array] = None,
    ) -> Operation: ...
    def shift(self, send: Array, distance: int = 1, *, out: Any = None) -> Array: ...
    def shift_init(self, send: Array, distance: int = 1, *, out: Any = None) -> Operation: ...
    def broadcast(self, data: Array, root: int = 0) -> None: ...
    def broadcast_init(self, data: Array, root: int = 0) -> Operation: ...
    def barrier(self) -> None: ...
    def barrier_init(self) -> Operation: ...
