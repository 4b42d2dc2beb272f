# SPDX-License-Identifier: Apache-2.0
"""Which ranks are of one round of torchrun: their environment does not say so, and torchrun's store does.

Rank 0 makes a nonce and passes it through the store to each rank that is there. The nonce becomes a part of the job's id,
so that a rank of another round, such as an orphan that still waits, meets nobody.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any, Iterator

from .errors import BootstrapError, TimeoutError

_calls = itertools.count()


def _torchrun_has_ended() -> bool:
    """Whether the launcher of this rank is a process without torch, which has adopted it. The launcher is the nearest
    ancestor that was not started with this rank's file for errors, whose path names its round and place. A script
    between them may have changed other variables. False if the launcher is hidden."""
    if not os.environ.get("TORCHELASTIC_ERROR_FILE"):
        return False  # not started by torchrun
    mine = os.fsencode(f"TORCHELASTIC_ERROR_FILE={os.environ['TORCHELASTIC_ERROR_FILE']}")
    process = os.getppid()
    try:
        while process > 0 and mine in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        return process > 0 and b"torch" not in Path(f"/proc/{process}/maps").read_bytes()
    except PermissionError:
        return process == 1  # of another user, so not torchrun
    except OSError:
        return False


def _pauses() -> Iterator[float]:
    """Pauses between looks, in which handlers of signals run. A wait of torch's own store logs each of its timeouts."""
    pause = 0.005
    while True:
        if _torchrun_has_ended():
            raise BootstrapError("from_env: the torchrun that started this rank has ended, and so has its round")
        yield pause
        pause = min(pause * 1.5, 0.1)


def meet(store: Any, rank: int, nranks: int, prefix: str, timeout: float) -> str:
    """Returns the nonce of this round's rank 0. Collective.

    A key of an earlier round may remain in the store. So a rank gets the nonce under a token that only this process has,
    and tells rank 0 that it has it.
    """
    deadline = time.monotonic() + timeout
    if rank > 0:
        token, pauses = uuid.uuid4().hex, _pauses()
        next(pauses)  # an orphan's token must not replace that of this round's rank
        store.set(f"{prefix}/here/{rank}", token)
        for pause in pauses:
            if store.check([f"{prefix}/nonce/{token}"]):
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"from_env: rank 0 of {nranks} did not come to torchrun's store within {timeout:g} s")
            time.sleep(pause)
        nonce = store.get(f"{prefix}/nonce/{token}").decode()
        store.set(f"{prefix}/has/{nonce}/{rank}", "1")
        return nonce
    nonce, given, missing = uuid.uuid4().hex, {}, set(range(1, nranks))
    for pause in _pauses():
        for other in sorted(missing):
            here = f"{prefix}/here/{other}"
            token = store.get(here) if store.check([here]) else None
            if token and given.get(other) != token:
                store.set(f"{prefix}/nonce/{token.decode()}", nonce)
                given[other] = token
            if token and store.check([f"{prefix}/has/{nonce}/{other}"]):
                missing.discard(other)
        if not missing:
            break
        if time.monotonic() > deadline:
            names = ", ".join(map(str, sorted(missing)[:16]))
            raise TimeoutError(f"from_env: of {nranks} ranks, {names} did not come to torchrun's store within {timeout:g} s")
        time.sleep(pause)
    return nonce


def _store_of_torch(timeout):
    """torch's default store, or that of torchrun's agent; None: there is none."""
    dist = sys.modules.get("torch.distributed")
    if dist and dist.is_available() and dist.is_initialized():
        if dist.get_world_size() == int(os.environ["WORLD_SIZE"]):
            return dist.distributed_c10d._get_default_store()
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    try:
        import torch.distributed as dist
    except ImportError:
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout), wait_for_workers=False)


@contextlib.contextmanager
def of_torch(timeout: float) -> Iterator[None]:
    """Extends the job's id by the nonce of this round, if torch has a store and there are several ranks."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(os.environ.get(name) for name in names) or os.environ["WORLD_SIZE"] == "1":
        yield
        return
    try:
        store = _store_of_torch(timeout)
        if store is None:
            nonce = None
        else:
            prefix = f"banyan/from_env/{next(_calls)}"
            nonce = meet(store, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), prefix, timeout)
    except RuntimeError as error:
        raise BootstrapError(f"from_env: torchrun's store does not answer, so its round may be over: {error}") from error
    own = os.environ.get("BANYAN_JOB")
    if nonce is not None:
        run = os.environ.get("TORCHELASTIC_RUN_ID", "")
        os.environ["BANYAN_JOB"] = f"{own or f'torchrun {run}'} {nonce}"
    try:
        yield
    finally:
        if own is not None:
            os.environ["BANYAN_JOB"] = own
        elif nonce is not None:
            del os.environ["BANYAN_JOB"]
