# SPDX-License-Identifier: Apache-2.0
"""Merges attention partials over ranks in one topology-aware collective.

    out, lse = comm.combine(o, lse)      # o [tokens, heads, dim], lse [tokens, heads]

Arrays are of numpy, PyTorch, JAX, CuPy, or anything else that has DLPack, and come back in the caller's framework.
"""

try:
    from ._core import (
        AttentionStep,
        Operation,
        attention,
        network,
        page_bounds_update,
        page_moves,
        split,
        topk,
        version,
    )
except ModuleNotFoundError as error:
    raise ImportError(
        f"{__file__} has no _core: a distribution of the same import name, such as the search trees Banyan, may have "
        "replaced it. Run pip uninstall banyan banyan-attention, and install banyan-attention again"
    ) from error
from .communicator import Communicator, Threads
from .errors import (
    AbortedError,
    ArgumentError,
    BootstrapError,
    DataError,
    Error,
    MismatchError,
    OutOfMemoryError,
    PeerError,
    StateError,
    SystemCallError,
    TimeoutError,
    UnsupportedError,
)
from .judge import KernelReport, check
from .launch import RankError, run
from .ownership import Ownership
from .prune import Prune

__version__ = "0.1.0"

__all__ = [
    "AbortedError",
    "ArgumentError",
    "AttentionStep",
    "BootstrapError",
    "Communicator",
    "DataError",
    "Error",
    "KernelReport",
    "MismatchError",
    "Operation",
    "OutOfMemoryError",
    "Ownership",
    "PeerError",
    "Prune",
    "RankError",
    "StateError",
    "SystemCallError",
    "Threads",
    "TimeoutError",
    "UnsupportedError",
    "attention",
    "check",
    "network",
    "page_bounds_update",
    "page_moves",
    "run",
    "split",
    "topk",
    "version",
]
