# SPDX-License-Identifier: Apache-2.0
"""Arguments that are refused by name, failures of ranks, Ctrl-C, and threads."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import merged, partials

import banyan

SHAPE = (2, 4, 8)


def arrays():
    return np.zeros(SHAPE, np.float32), np.zeros(SHAPE[:2], np.float32)


def refused(argument, text, call, *given, **settings):
    with pytest.raises(banyan.ArgumentError, match=text) as caught:
        call(*given, **settings)
    assert caught.value.argument == argument
    assert str(caught.value).startswith(argument + ":")
    assert isinstance(caught.value, ValueError)


def test_arguments_by_name(lone):
    o, lse = arrays()
    released = memoryview(bytearray(4))
    released.release()
    refused("o", "3 dimensions|2 dimensions", lone.combine, o[0], lse)
    refused("lse", "dimension 1 is 3, and the number of heads", lone.combine, o, lse[:, :3])
    refused("o", "not contiguous: its stride is 8", lone.combine, o.transpose(0, 2, 1), np.zeros((2, 8), np.float32))
    refused("o", "float64: banyan takes float32", lone.combine, o.astype(np.float64), lse)
    refused("o", "order of bytes", lone.combine, o.astype(">f4"), lse)
    refused("lse", "it is None", lone.combine, o, None)
    refused("o", "a list is not an array", lone.combine, [1.0], lse)
    refused("o", "memory", lone.combine, released, lse)
    frozen = np.zeros_like(o)
    frozen.flags.writeable = False
    lone.combine(frozen, lse)
    refused("out", "read-only", lone.combine, o, lse, out=(frozen, None))
    refused("out", "this rank's number of heads is 4", lone.combine, o, lse, out=o[:, :3])
    refused("scatter", '"none", "heads", "tokens", "root"', lone.combine, o, lse, scatter="head")
    refused("base", "'10': it is one of", lone.combine, o, lse, base="10")
    refused("empty", "-inf", lone.combine, o, lse, empty="zero")
    refused("wire", "f32", lone.combine, o, lse, wire="f8")
    refused(
        "seq_lens",
        "sequence 1 has 9 keys",
        banyan.attention,
        o,
        *[o[:, :, None].repeat(4, 2)] * 2,
        seq_lens=np.array([1, 9], np.int32)
    )
    refused(
        "seq_lens",
        "int64: it is int32",
        banyan.attention,
        o,
        *[o[:, :, None].repeat(4, 2)] * 2,
        seq_lens=np.array([1, 1])
    )
    with pytest.raises(banyan.ArgumentError, match="algorithm"):
        lone.combine(o, lse, algorithm="fastest")
    assert lone.combine(o, lse)[0].shape == SHAPE


def test_bad_data_names_the_row(lone):
    o, lse = arrays()
    lse[1, 2] = np.nan
    with pytest.raises(banyan.DataError, match="token 1"):
        lone.combine(o, lse)


def test_classes():
    from banyan import _core, errors

    assert [kind.status for kind in errors._CLASSES] == _core.status_names()[1:]
    assert issubclass(banyan.TimeoutError, TimeoutError) and issubclass(banyan.PeerError, ConnectionError)


def test_mismatch_and_its_rank():
    def body(comm):
        o, lse = arrays()
        with pytest.raises(banyan.MismatchError, match="heads") as caught:
            comm.combine(o[:, : 4 - comm.rank], lse[:, : 4 - comm.rank])
        return caught.value.status

    assert banyan.run(body, ranks=2, timeout=60) == ["mismatch"] * 2


def test_a_rank_that_dies(tmp_path):
    """Survivors learn which rank died, shrink, and go on."""

    def body(comm):
        comm.barrier()
        if comm.rank == 1:
            os._exit(7)
        with pytest.raises((banyan.PeerError, banyan.TimeoutError)) as caught:
            comm.barrier()
        assert caught.value.rank == 1 and comm.failed and comm.failed_rank == 1
        fewer, members = comm.shrink()
        with fewer:
            assert members == [0, 2] and fewer.nranks == 2
            out, _ = fewer.combine(*partials(comm.rank, SHAPE))
        want, _ = merged([partials(r, SHAPE) for r in (0, 2)])
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
        (tmp_path / str(comm.rank)).touch()  # for run() has no results when a rank has died

    with pytest.raises(banyan.RankError, match="exit status 7") as caught:
        banyan.run(body, ranks=3, timeout=10)
    assert caught.value.rank == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2"]


def test_a_rank_that_raises():
    def body(comm):
        if comm.rank == 1:
            raise KeyError("this one")
        comm.barrier()

    with pytest.raises(banyan.RankError, match="KeyError: 'this one'") as caught:
        banyan.run(body, ranks=2, timeout=60)
    assert caught.value.rank == 1


def test_abort_from_another_thread():
    """The GIL is released in a wait: else the timer would never run."""

    def waits(comm):
        if comm.rank == 0:
            threading.Timer(0.1, comm.abort, ["enough"]).start()
            with pytest.raises(banyan.AbortedError, match="enough"):
                comm.barrier()
        else:
            while not comm.failed:
                time.sleep(0.01)
        return True

    assert banyan.run(waits, ranks=2, timeout=60) == [True] * 2


def test_two_threads_in_one_communicator():
    def body(comm):
        seen = []

        def wait():
            try:
                comm.barrier()
            except banyan.Error as error:
                seen.append(error)

        if comm.rank == 1:
            while not comm.failed:
                time.sleep(0.01)
            return True
        waiter = threading.Thread(target=wait)
        waiter.start()
        deadline = time.monotonic() + 60
        while True:
            try:
                comm.describe()
                comm.broadcast_init(np.zeros(1)).free()
            except banyan.StateError as error:
                assert "another thread" in str(error)
                break
            except banyan.Error:
                pytest.fail("the barrier was not waited for")
            assert time.monotonic() < deadline
        comm.abort()
        waiter.join()
        return isinstance(seen[0], banyan.AbortedError)

    # The waiter is in its barrier before the other thread calls, because it does nothing else first.
    assert banyan.run(body, ranks=2, timeout=60) == [True] * 2


INTERRUPTED = """
import signal, threading, time, banyan
group = banyan.Threads(2)
def other():
    with banyan.Communicator.from_threads(group, 1, timeout=300) as comm:
        while not comm.failed:
            time.sleep(0.01)
peer = threading.Thread(target=other)
peer.start()
comm = banyan.Communicator.from_threads(group, 0, timeout=300)
try:
    print("waits", flush=True)
    comm.barrier()
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("interrupted", comm.failed, comm.error)
    comm.abort()
peer.join()
comm.close()
"""


def test_interrupt_ends_a_wait():
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "waits\n"
        # Signals are sent until one has ended the wait, which takes five minutes without.
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            child.send_signal(signal.SIGINT)
            time.sleep(0.2)
        said, _ = child.communicate(timeout=60)
    assert child.returncode == 0 and said.startswith("interrupted")


def test_own_allgather_is_checked():
    with pytest.raises(banyan.BootstrapError, match="returned 3 bytes"):
        banyan.Communicator(lambda data, timeout: b"abc", 0, 2)
    with pytest.raises(ZeroDivisionError):
        banyan.Communicator(lambda data, timeout: 1 // 0, 0, 2)
    with pytest.raises(banyan.ArgumentError, match="function"):
        banyan.Communicator(7, 0, 2)
