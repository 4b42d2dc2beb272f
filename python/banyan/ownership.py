# SPDX-License-Identifier: Apache-2.0
"""The rule that says which rank owns which token."""

from __future__ import annotations

from typing import Literal, Sequence

from . import _core


class Ownership(_core.Ownership):
    """A rule that says which rank owns which token of a sequence. It communicates nothing and can be pickled.

    kind: "ranges", each rank has one range of `tokens` in the order of ranks; or "blocks", blocks of `block` tokens are
    assigned round-robin. weights: the share of each rank, which is the length of its turn; None: all alike. Raises
    ArgumentError.
    """

    __slots__ = ()

    def __init__(
        self,
        kind: Literal["ranges", "blocks"],
        nranks: int,
        *,
        block: int = 0,
        tokens: int = 0,
        weights: Sequence[int] | None = None,
    ) -> None:
        super().__init__(kind, nranks, block=block, tokens=tokens, weights=weights)
