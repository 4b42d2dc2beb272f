# SPDX-License-Identifier: Apache-2.0
"""Which pages attention may leave out: the argument `prune` of attention() and attention_combine()."""

import dataclasses
from typing import Any, Optional


@dataclasses.dataclass
class Prune:
    """Pages which together cannot hold more than epsilon of a row's softmax mass are not read.

    bounds: f32, [pages, kv_heads, Prune.floats(...)], or without a page table [batch, pages, kv_heads, ...] for pages
    of page_keys keys. page_bounds_update() writes it. codes: eight bits for each element of each key instead of boxes.
    top_pages: read this many pages, those of the largest bounds; epsilon is then 0. error and read: f32 arrays that
    receive, for each row, how far its values can be from those of all keys, and the share of this rank's pages that was
    read. page_reads: a uint64 array, one per page, to which each run adds how often it read the page: tier_next() takes
    it.
    """

    bounds: Any
    epsilon: float = 0.0
    page_keys: int = 16
    codes: bool = False
    top_pages: int = 0
    error: Optional[Any] = None
    read: Optional[Any] = None
    page_reads: Optional[Any] = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dataclass_fields__:
            raise AttributeError(f"a Prune has no {name}, but {', '.join(self.__dataclass_fields__)}")
        object.__setattr__(self, name, value)

    @staticmethod
    def floats(head_dim: int, page_keys: int, codes: bool = False) -> int:
        """The bounds of a page and KV head, in floats."""
        return 2 + (page_keys * (2 + (head_dim + 7) // 8 * 2) if codes else 2 * head_dim)
