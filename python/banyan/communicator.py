# SPDX-License-Identifier: Apache-2.0
"""The communicator, and the ways to make one."""

from __future__ import annotations

import itertools
from typing import Any, Callable, Sequence

from . import _core, rounds

_store_uses = itertools.count()
_SETTINGS = ("timeout", "first_timeout", "arena_bytes", "algorithm", "device", "threads")


def _known(settings: dict[str, Any]) -> dict[str, Any]:
    unknown = [name for name in settings if name not in _SETTINGS]
    if unknown:
        raise TypeError(f"{', '.join(unknown)}: no setting of a Communicator, which has {', '.join(_SETTINGS)}")
    return settings


class Threads(_core.Threads):
    """A group of `nranks` ranks that are threads of this process, for Communicator.from_threads()."""

    __slots__ = ()

    def __init__(self, nranks: int) -> None:
        super().__init__(nranks)


class Communicator(_core.Comm):
    """Ranks that call collectives together.

    Use from_env(), from_threads(), from_mpi() or from_torch() if a launcher or framework has started the ranks.
    Communicator(allgather, rank, nranks) takes a custom all-gather: allgather(data, timeout_s) gets the bytes of this
    rank, and returns those of all ranks in rank order, as a list or joined. Only the constructor calls it.

    Settings, all by keyword: timeout, the deadline of a call in seconds (0: 30); first_timeout, that of the first call
    of a shape; arena_bytes, the memory shared with peers; algorithm; device, None for the host, else "cuda", "cuda:2"
    or "cuda:local"; threads, this rank's threads for attention on the host (0: one for each of its cores).

    One thread at a time may use a communicator. Only abort() may be called from any thread.
    """

    __slots__ = ()  # setting an unknown attribute fails, such as .tag instead of set_tag()

    def __init__(
        self, allgather: Callable[[bytes, float], bytes | Sequence[bytes]], rank: int, nranks: int, **settings: Any
    ) -> None:
        super().__init__(allgather, rank, nranks, **_known(settings))

    @classmethod
    def _made(cls, *arguments: Any, **settings: Any) -> Communicator:
        made = cls.__new__(cls)
        _core.Comm.__init__(made, *arguments, **_known(settings))
        return made

    @classmethod
    def from_env(cls, **settings: Any) -> Communicator:
        """Makes a rank from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them. Collective.

        Under torchrun ranks meet in its store first, if torch is installed, so that ranks of another round are left out.
        """
        with rounds.of_torch(settings.get("timeout") or 30):
            return cls._made(None, **settings)

    @classmethod
    def from_threads(cls, group: Threads, rank: int, **settings: Any) -> Communicator:
        """Makes a rank from a thread of this process. `group` is a banyan.Threads that all ranks share. Collective."""
        if not isinstance(group, Threads):
            raise TypeError(f"group: it is a banyan.Threads, and not a {type(group).__name__}")
        return cls._made(group, rank, group.nranks, **settings)

    @classmethod
    def from_mpi(cls, comm: Any = None, **settings: Any) -> Communicator:
        """Makes a rank from a communicator of mpi4py; None: MPI.COMM_WORLD. Collective, without a deadline."""
        if comm is None:
            from mpi4py import MPI

            comm = MPI.COMM_WORLD
        return cls._made(lambda data, _: comm.allgather(data), comm.Get_rank(), comm.Get_size(), **settings)

    @classmethod
    def from_torch(
        cls,
        group: Any = None,
        *,
        store: Any = None,
        rank: int | None = None,
        nranks: int | None = None,
        prefix: str | None = None,
        **settings: Any,
    ) -> Communicator:
        """Makes a rank from a process group or a store of torch.distributed. Collective.

        `group` is a ProcessGroup, a DeviceMesh of one dimension (of more: mesh["context"]), or None: the default one.

        With a store, `rank` and `nranks` are needed. Communicators of one store are made in the same order on all
        ranks, or each has a `prefix` of its own.
        """
        given = [name for name, word in (("rank", rank), ("nranks", nranks), ("prefix", prefix)) if word is not None]
        if store is None and given:
            raise ValueError(f"{', '.join(given)}: for a store alone, as a group has its own")
        if store is not None:
            if group is not None:
                raise ValueError("group, store: one of them says who the ranks are")
            if rank is None or nranks is None:
                raise ValueError("with a store, rank and nranks are needed")
            gather = _store_gather(store, rank, nranks, prefix or f"banyan/{next(_store_uses)}")
            return cls._made(gather, rank, nranks, **settings)
        import torch.distributed as dist

        group = group.get_group() if hasattr(group, "get_group") else group  # the group of a DeviceMesh
        if dist.get_rank(group) < 0:
            raise ValueError("group: this process is not in it")

        def gather_objects(data, _):
            every: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(every, data, group=group)
            return every

        return cls._made(gather_objects, dist.get_rank(group), dist.get_world_size(group), **settings)

    def shrink(self) -> tuple[Communicator, list[int]]:
        """Makes a communicator of the ranks that survived a failure.

        Returns it, and the old rank of each new one. Collective over the surviving ranks. The caller closes the old
        communicator.
        """
        made, members = self._shrink()
        return self._adopt(made), members

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Makes a communicator of the ranks of each color, in the order of their keys and then of their old ranks.

        A rank whose color is None or negative gets None. Collective over all ranks. The old communicator remains, and
        each may be closed first.
        """
        made = self._split(-1 if color is None else color, key)
        return None if made is None else self._adopt(made)

    def _adopt(self, made: Any) -> Communicator:
        new = type(self).__new__(type(self))
        adopt: Any = _core.Comm.__init__  # the second overload, which the stubs do not show
        adopt(new, made, self.device)
        return new

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self.is_open:
            return "<banyan.Communicator, closed>"
        return f"<banyan.Communicator, rank {self.rank} of {self.nranks}>"


def _store_gather(store, rank, nranks, prefix):
    rounds = itertools.count()

    def gather(data, timeout_s):
        from datetime import timedelta

        step = next(rounds)
        keys = [f"{prefix}/{step}/{r}" for r in range(nranks)]
        store.set(keys[rank], data.hex())  # stores of torch 1.13 take text only
        store.wait(keys, timedelta(seconds=timeout_s if timeout_s > 0 else 300))
        return [bytes.fromhex(store.get(key).decode()) for key in keys]

    return gather
