# SPDX-License-Identifier: Apache-2.0
"""Rounds of torchrun: an orphan of one round meets nobody of the next, whatever comes late."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from banyan import TimeoutError, rounds


class Store:
    """As a store of torch.distributed, in this process."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value.encode()

    def get(self, key):
        return self.values[key]

    def check(self, keys):
        return all(key in self.values for key in keys)


def meet_late(store, waits):
    """Ranks come after these times. Returns what each got."""
    got = [None] * len(waits)

    def play(rank):
        time.sleep(waits[rank])
        got[rank] = rounds.meet(store, rank, len(waits), "p", 30)

    threads = [threading.Thread(target=play, args=(rank,)) for rank in range(len(waits))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def test_ranks_of_one_round_get_one_nonce():
    store, seen = Store(), set()
    for waits in ([0, 0, 0], [0.3, 0, 0], [0, 0.3, 0.1]):  # keys of earlier rounds remain in the store
        got = meet_late(store, waits)
        assert len(set(got)) == 1 and got[0] not in seen
        seen.add(got[0])


def test_who_is_missing_is_named():
    store = Store()
    with pytest.raises(TimeoutError, match="of 3 ranks, 1, 2 did not come to torchrun's store within 0.2 s"):
        rounds.meet(store, 0, 3, "p", 0.2)
    with pytest.raises(TimeoutError, match="rank 0 of 3 did not come"):
        rounds.meet(store, 1, 3, "p", 0.2)


RANK = """
import os, sys, time, numpy
rank, number = int(os.environ["RANK"]), float(sys.argv[1])
with open(f"{sys.argv[2]}/{sys.argv[1]}.{rank}", "w") as out:
    out.write(f"{os.getpid()}\\n"), out.flush()
    if sys.argv[1] == "1" and rank == 1:
        time.sleep(300)
    if sys.argv[1] == "2" and rank == 0:
        time.sleep(4)
    while sys.argv[1] == "1" and rank == 2 and not os.path.exists(f"{sys.argv[2]}/2.1"):
        time.sleep(0.1)
    import banyan
    try:
        with banyan.Communicator.from_env(timeout=60) as comm:
            out.write(str(comm.combine(numpy.full((1, 1, 4), number, "f4"), numpy.zeros((1, 1), "f4"))[0][0, 0, 0]))
    except banyan.Error as error:
        out.write(f"failed: {error}")
"""


def await_line(path, number):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        lines = path.read_text().splitlines() if path.exists() else []
        if len(lines) > number:
            return lines[number]
        time.sleep(0.05)
    raise AssertionError(f"{path} has no line {number}")


def test_orphans_of_torchrun_meet_nobody(tmp_path):
    """torchrun is killed while rank 0 awaits rank 1, and before rank 2 imports banyan. In the next run with its id, port
    and count rank 0 comes last."""
    pytest.importorskip("torch")
    (tmp_path / "rank.py").write_text(RANK)
    with socket.socket() as held:
        held.bind(("", 0))
        port = held.getsockname()[1]

    def start(number):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--rdzv-id", "x"]
        command += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        return subprocess.Popen(command + [str(tmp_path / "rank.py"), str(number), str(tmp_path)])

    with start(1) as first:
        processes = [int(await_line(tmp_path / f"1.{rank}", 0)) for rank in range(3)]
        time.sleep(1)  # rank 0 comes to the store
        first.kill()
    os.kill(processes[1], signal.SIGKILL)
    try:
        with start(2) as second:
            assert second.wait(120) == 0
        for rank in range(3):
            assert await_line(tmp_path / f"2.{rank}", 1) == "2.0"
        for rank in (0, 2):
            said = await_line(tmp_path / f"1.{rank}", 1)  # a slow rank 0 may come when the store has ended as well
            assert said.startswith("failed: from_env: the torchrun that started this rank has ended") or (
                rank == 0 and said.startswith("failed: from_env: torchrun's store does not answer")
            ), said
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
