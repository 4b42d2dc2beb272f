# SPDX-License-Identifier: Apache-2.0
"""The argument `prune` of attention() and attention_combine(): which pages attention may skip."""

import dataclasses
from typing import Any, Optional


@dataclasses.dataclass
class Prune:
    """Skips pages that together hold at most epsilon of a row's softmax mass.

    bounds: f32, [pages, kv_heads, Prune.floats(...)], or without a page table [batch, pages, kv_heads, ...] for pages
        of page_keys keys. page_bounds_update() writes it.
    page_keys: keys of a page, 16 unless given. None with a page table.
    top_pages: each KV head reads this many pages of all ranks, those with the largest bounds; epsilon is then 0.
    error: f32, receives for each row a bound of the distance of its values from those over all keys.
    read: f32, receives for each row the share of this rank's pages that its KV head read.
    page_reads: uint64, one per page. Each run adds the number of KV heads and sequences that read the page.
    """

    bounds: Any
    epsilon: float = 0.0
    page_keys: Optional[int] = None
    top_pages: int = 0
    error: Optional[Any] = None
    read: Optional[Any] = None
    page_reads: Optional[Any] = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dataclass_fields__:
            raise AttributeError(f"a Prune has no {name}, but {', '.join(self.__dataclass_fields__)}")
        object.__setattr__(self, name, value)

    @staticmethod
    def floats(head_dim: int, page_keys: int) -> int:
        """Returns the number of floats in the bounds of a page and KV head: codes of its keys in eight bits."""
        return 2 + page_keys * (2 + (head_dim + 7) // 8 * 2)
