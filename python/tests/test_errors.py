# SPDX-License-Identifier: Apache-2.0
"""Arguments that are rejected by name, failures of ranks, Ctrl-C, and threads."""

import functools
import inspect
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import merged, partials, rejected

import banyan

SHAPE = (2, 4, 8)


def arrays():
    return np.zeros(SHAPE, np.float32), np.zeros(SHAPE[:2], np.float32)


def test_arguments_by_name(lone):
    o, lse = arrays()
    released = memoryview(bytearray(4))
    released.release()
    rejected("o", "3 dimensions|2 dimensions", lone.combine, o[0], lse)
    rejected("lse", "dimension 1 is 3, and the number of heads", lone.combine, o, lse[:, :3])
    rejected("o", "not contiguous: its stride is 8", lone.combine, o.transpose(0, 2, 1), np.zeros((2, 8), np.float32))
    rejected("o", "float64: banyan takes float32", lone.combine, o.astype(np.float64), lse)
    rejected("o", "order of bytes", lone.combine, o.astype(">f4"), lse)
    rejected("lse", "it is None", lone.combine, o, None)
    rejected("o", "a list is not an array", lone.combine, [1.0], lse)
    rejected("o", "memory", lone.combine, released, lse)
    frozen = np.zeros_like(o)
    frozen.flags.writeable = False
    lone.combine(frozen, lse)
    rejected("out", "read-only", lone.combine, o, lse, out=(frozen, None))
    rejected("out", "this rank's number of heads is 4", lone.combine, o, lse, out=o[:, :3])
    rejected("scatter", '"none", "heads", "tokens", "root"', lone.combine, o, lse, scatter="head")
    rejected("base", "'10': it is one of", lone.combine, o, lse, base="10")
    rejected("empty", "-inf", lone.combine, o, lse, empty="zero")
    rejected("wire", "f32", lone.combine, o, lse, wire="f8")
    given = o, *[o[:, :, None].repeat(4, 2)] * 2
    rejected("seq_lens", "sequence 1 has 9 keys", banyan.attention, *given, seq_lens=np.array([1, 9], np.int32))
    rejected("seq_lens", "int64: it is int32", banyan.attention, *given, seq_lens=np.array([1, 1]))
    rejected("algorithm", "there are oneshot", lone.combine, o, lse, algorithm="fastest")
    rejected("algorithm", "code 0", lone.combine, o, lse, algorithm="ring\0")
    assert lone.combine(o, lse)[0].shape == SHAPE


def test_calls_that_match_no_signature(lone):
    """One line says what is wrong, and inspect has the signatures, which those of the stubs are compared with."""
    o, lse = arrays()
    rule = banyan.Ownership("blocks", 2)
    for text, call in {
        "combine(): got an unexpected keyword argument 'bse', did you mean 'base'?": lambda: lone.combine(o, lse, bse=2),
        "combine(): missing a required argument: 'lse'": lambda: lone.combine(o),
        "barrier_init(): too many positional arguments": lambda: lone.barrier_init(1),
        "attention(): got an unexpected keyword argument 'pages'": lambda: banyan.attention(o, o, o, pages=1),
        "arguments of other types are wanted than (Ownership, str, int): token(self": lambda: rule.token("a", 1),
        "Ownership.__init__() got an unexpected keyword argument 'blok'": lambda: banyan.Ownership("blocks", 2, blok=1),
        "Threads.__init__() missing 1": lambda: banyan.Threads(),
    }.items():
        with pytest.raises(TypeError) as caught:
            call()
        assert text in str(caught.value) and "\n" not in str(caught.value)
    signature = inspect.signature(lone.combine)
    assert list(signature.parameters)[:3] == ["o", "lse", "sum"] and signature.parameters["out_empty"].default == "-inf"
    assert str(inspect.signature(banyan.split)) == "(count, parts, index)"
    assert list(inspect.signature(banyan.Ownership).parameters)[:2] == ["kind", "nranks"]
    assert lone.combine.__name__ == "combine" and "Merges" in banyan.Communicator.combine.__doc__
    bound, kept = lone.combine, functools.partial(banyan.Communicator.barrier, lone)
    assert bound(o, lse)[0].shape == SHAPE and kept() is None


def test_bad_data_names_the_row(lone):
    o, lse = arrays()
    lse[1, 2] = np.nan
    with pytest.raises(banyan.DataError, match="token 1"):
        lone.combine(o, lse)


def test_classes():
    from banyan import _core, errors

    names = _core.status_names()[1:]
    assert [kind.status for kind in errors._CLASSES] == names and len(names) == 11
    for kind in errors._CLASSES:  # the name of the class has a word of the status
        assert any(word in kind.__name__.lower() for word in kind.status.replace(" error", "").split()), kind
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
        (tmp_path / str(comm.rank)).touch()  # run() returns no results if a rank has died

    with pytest.raises(banyan.RankError, match="exit status 7") as caught:
        banyan.run(body, ranks=3, timeout=10)
    assert caught.value.rank == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2"]


def test_split():
    """Parts by color, in the order of keys; they outlive what they were made of."""

    def body(comm):
        rank = comm.rank
        color = None if rank == 4 else rank % 2
        part = comm.split(color, key=-rank)
        comm.barrier()
        comm.close()
        if part is None:
            return None
        with part:
            out, _ = part.combine(*partials(rank, SHAPE))
            want, _ = merged([partials(r, SHAPE) for r in (color, color + 2)])
            np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
            return part.rank, part.nranks

    assert banyan.run(body, ranks=5, timeout=60) == [(1, 2), (1, 2), (0, 2), (0, 2), None]


def test_a_rank_that_raises():
    def body(comm):
        if comm.rank == 1:
            raise KeyError("this one")
        comm.barrier()

    with pytest.raises(banyan.RankError, match="KeyError: 'this one'") as caught:
        banyan.run(body, ranks=2, timeout=60)
    assert caught.value.rank == 1


def test_abort_from_another_thread():
    """A wait releases the GIL. Otherwise the timer would never run."""

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

    # The waiter is in its barrier before the other thread calls, because the barrier is its first call.
    assert banyan.run(body, ranks=2, timeout=60) == [True] * 2


# Rank 1 is an idle thread. Rank 0, in the main thread, waits for it until it is interrupted.
INTERRUPTED = """
import gc, os, signal, sys, threading, time, banyan
where, raises = sys.argv[1:]
seen = []
def handler(number, frame):
    seen.append(number)
    if raises == "raise" or len(seen) > 2:
        raise KeyboardInterrupt
group, over = banyan.Threads(2), threading.Event()
def other():
    if where in ("threads", "env"):
        return over.wait(300)
    with banyan.Communicator.from_threads(group, 1, timeout=300) as comm:
        op = comm.barrier_init()
        if where == "shrink":
            comm.abort()
        over.wait(300)
peer = threading.Thread(target=other)
peer.start()
def go():
    if where == "env":
        os.environ.update(RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="9", BANYAN_SECRET="x" * 32)
        signal.signal(signal.SIGINT, handler)
        print("waits", flush=True)
        banyan.Communicator.from_env(timeout=300)
    if where == "threads":
        signal.signal(signal.SIGINT, handler)
        print("waits", flush=True)
        banyan.Communicator.from_threads(group, 0, timeout=300)
    comm = banyan.Communicator.from_threads(group, 0, timeout=300)
    op = comm.barrier_init()
    signal.signal(signal.SIGINT, handler)  # not the one that was there when the communicator was made
    if where == "shrink":
        while not comm.failed:
            time.sleep(0.01)
    elif where != "call":
        op.start()
    print("waits", flush=True)
    if where == "call":
        comm.barrier()
    elif where == "shrink":
        comm.shrink()
    elif where == "free":
        op.free()
    elif where == "close":
        comm.close()
    else:
        del op
    time.sleep(1)
try:
    go()
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    over.set()  # before what go() had is freed, which waits for the other rank where the signal came too early
    print("interrupted", len(seen), flush=True)
peer.join()
"""


@pytest.mark.parametrize("raises", ["raise", "return"])
@pytest.mark.parametrize("where", ["call", "env", "threads", "shrink", "free", "close", "del"])
def test_handlers_run_in_waits(where, raises):
    """Without handlers each wait would take five minutes. A handler that returns does not end the wait."""
    command = [sys.executable, "-c", INTERRUPTED, where, raises]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "waits\n", child.stderr.read()
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            child.send_signal(signal.SIGINT)
            time.sleep(0.2)
        said, errors = child.communicate(timeout=60)
    assert child.returncode == 0 and said.startswith("interrupted"), said + errors
    assert raises == "raise" or int(said.split()[1]) > 2


THREADS_INTERRUPTED = """
import signal, threading, banyan
met = threading.Barrier(3)
def body(comm):
    met.wait()
    if comm.rank == 0:
        comm.barrier()
    else:
        while not comm.failed:
            pass
threading.Thread(target=lambda: (met.wait(), signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))).start()
try:
    banyan.run(body, ranks=2, start="thread", timeout=300)
except KeyboardInterrupt:
    print([thread.name for thread in threading.enumerate() if thread.name.startswith("banyan")])
"""


def test_interrupt_leaves_no_ranks_that_are_threads():
    said = subprocess.run([sys.executable, "-c", THREADS_INTERRUPTED], stdout=subprocess.PIPE, text=True, timeout=120)
    assert said.stdout == "[]\n"


REJECTIONS = {
    "strides": lambda comm, o, lse: comm.combine(o.transpose(0, 2, 1), lse),
    "dtype": lambda comm, o, lse: comm.combine(o.astype(np.float64), lse),
    "shape": lambda comm, o, lse: comm.combine(o, lse[:1]),
    "word": lambda comm, o, lse: comm.combine(o, lse, scatter="head"),
    "keyword": lambda comm, o, lse: comm.combine(o, lse, scater="heads"),
    "keyword of init": lambda comm, o, lse: comm.allgather_init(o, to=1),
    "no argument": lambda comm, o, lse: comm.shift(),
    "no array": lambda comm, o, lse: comm.combine(None, lse),
    "init": lambda comm, o, lse: comm.combine_init(o, lse, base="10"),
    "attention": lambda comm, o, lse: comm.attention_combine(o, o, o),
    "attention_init": lambda comm, o, lse: comm.attention_combine_init(o, o, o, window="all"),
    "allgather": lambda comm, o, lse: comm.allgather(o[:, ::2]),
    "allgather_heads": lambda comm, o, lse: comm.allgather_heads(o, counts=[1]),
    "shift": lambda comm, o, lse: comm.shift(o, "far"),
    "shift_init": lambda comm, o, lse: comm.shift_init(o, "far"),
    "broadcast": lambda comm, o, lse: comm.broadcast(o, "first"),
    "broadcast_init": lambda comm, o, lse: comm.broadcast_init(o[:, ::2]),
}


@pytest.mark.parametrize("start", ["thread", "fork"])
def test_rejections_reach_peers(start):
    """Peers do not wait for a rank whose arguments Python rejects, and all ranks continue."""

    def body(comm):
        o, lse = partials(comm.rank, SHAPE)
        for name, call in REJECTIONS.items():
            if comm.rank == 1:
                with pytest.raises((banyan.ArgumentError, TypeError)) as own:
                    call(comm, o, lse)
                assert not isinstance(own.value, banyan.PeerError), name
            else:
                with pytest.raises(banyan.PeerError, match="rank 1 rejected its call"):
                    comm.combine(o, lse)
            assert not comm.failed, name
        return comm.combine(o, lse)[0]

    results = banyan.run(body, ranks=3, start=start, timeout=300)
    np.testing.assert_array_equal(results[0], results[2])


def test_errors_can_be_pickled():
    import pickle

    from banyan import errors

    for kind in errors._CLASSES:
        error = kind("a text", 3)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind and str(again) == "a text" and again.rank == 3
    error = banyan.RankError([(2, "two"), (0, "zero")])
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is banyan.RankError and str(again) == str(error)
    assert again.rank == 2 and again.failures == error.failures


def test_operations_freed_by_other_threads():
    """Threads free or drop operations while others call. They get StateError, or the release happens later."""
    group = banyan.Threads(2)
    over = threading.Event()
    shared = [[], []]

    def forget(rank):
        while not over.is_set():
            try:
                op = shared[rank].pop()
            except IndexError:
                time.sleep(0)
                continue
            try:
                op.free()
            except banyan.StateError:
                pass
            del op

    def again(call):
        while True:
            try:
                return call()
            except banyan.StateError:  # another thread is freeing an operation
                pass

    def body(rank):
        comm = banyan.Communicator.from_threads(group, rank, timeout=300)
        for step in range(100):
            made = [again(lambda: comm.broadcast_init(np.zeros(100))), again(comm.barrier_init)]
            again(made[step % 2].start)
            shared[rank].extend(made)
            del made
            again(comm.barrier)
        again(comm.close)

    workers = [threading.Thread(target=body, args=(rank,)) for rank in range(2)]
    others = [threading.Thread(target=forget, args=(rank % 2,)) for rank in range(4)]
    for thread in workers + others:
        thread.start()
    for thread in workers:
        thread.join()
    over.set()
    for thread in others:
        thread.join()


def test_child_of_a_fork_takes_no_part():
    def body(comm):
        o, lse = arrays()
        op = comm.combine_init(o, lse)
        op.start()
        child = os.fork()
        if child == 0:
            rejected = 0
            for call in (op.wait, comm.barrier, lambda: comm.combine(o, lse), comm.shrink):
                try:
                    call()
                except banyan.StateError as error:
                    rejected += "child of a fork" in str(error)
            comm.abort()
            op.free()
            del op
            comm.close()
            os._exit(rejected)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        for code in (3, None):  # a child that does not end by os._exit() reports nothing for this rank
            if (child := os.fork()) == 0:
                return sys.exit(code) if code else "the child's"
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (code or 0)
        op.wait()
        comm.barrier()
        return True

    assert banyan.run(body, ranks=2, timeout=300) == [True] * 2


def test_arguments_that_would_be_ignored(lone):
    """Unknown settings are rejected, and so are keywords of another constructor of a communicator."""
    lone_too = functools.partial(banyan.Communicator, lambda data, _: [data], 0, 1)
    for make in (banyan.Communicator.from_env, lone_too):
        with pytest.raises(TypeError, match="^timeot: no setting of a Communicator, which has timeout"):
            make(timeot=5)
    for words in ({"rank": 0, "nranks": 1}, {"prefix": "a"}, {"group": 7, "store": 7, "rank": 0, "nranks": 1}):
        with pytest.raises(ValueError, match=f"^{next(iter(words))}, |^prefix: "):
            banyan.Communicator.from_torch(**words)
    for words in ({"color": "red"}, {"color": 2**40}, {"color": 0, "key": 0.5}, {"color": 0, "key": None}):
        with pytest.raises(banyan.ArgumentError, match=f"^{list(words)[-1]}: "):
            lone.split(**words)
    wrong = {"timeout": "3", "first_timeout": None, "threads": 0.5, "arena_bytes": -1, "device": "tpu"}
    for name, word in wrong.items():
        rejected(name, "seconds|integer|at least 0|takes", lone_too, **{name: word})
    for rank, nranks in ((0, "2"), (0, 2**40), (1, 1), (1.0, 2)):
        name = "rank" if nranks in (1, 2) else "nranks"
        rejected(name, "fit into 32|integer|has rank", banyan.Communicator, lambda data, _: [data], rank, nranks)
    rejected("nranks", "fit into 32", banyan.Threads, 2**40)
    rejected("parts", "integer", banyan.split, 4, None, 0)
    for tag in (2**63, "x", None, 1.5):
        with pytest.raises(banyan.ArgumentError, match="^tag: it does not fit|^tag: .* it is an integer"):
            lone.set_tag(tag)


def test_own_allgather_is_checked():
    with pytest.raises(banyan.BootstrapError, match="returned 3 bytes"):
        banyan.Communicator(lambda data, timeout: b"abc", 0, 2)
    for what in (None, 7, "text", [b"bytes", "text"]):
        with pytest.raises(TypeError, match="^allgather: it returned .*not the bytes of each rank"):
            banyan.Communicator(lambda data, timeout, what=what: what, 0, 2)
    with pytest.raises(ZeroDivisionError):
        banyan.Communicator(lambda data, timeout: 1 // 0, 0, 2)
    with pytest.raises(banyan.ArgumentError, match="function"):
        banyan.Communicator(7, 0, 2)


@pytest.mark.parametrize("fault", ["another __init__", "no __init__", "no _core"])
def test_another_distribution_of_this_name(fault, tmp_path):
    """The search trees Banyan have the same import name. The rest of this package reports the conflict."""
    package = tmp_path / "banyan"
    core = shutil.ignore_patterns("_core*.so" if fault == "no _core" else "")
    shutil.copytree(os.path.dirname(banyan.__file__), package, ignore=core)
    if fault == "another __init__":
        (package / "__init__.py").write_text("SortedSet = None\n")
    elif fault == "no __init__":
        (package / "__init__.py").unlink()
    command = [sys.executable, "-S", "-m", "banyan", "info"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and (fault != "no _core" or "ImportError: " in done.stderr)
    assert "pip uninstall banyan banyan-attention" in done.stderr.splitlines()[-1], done.stderr


# The waiting thread prints no traceback, because CPython aborts if a daemon thread holds stderr at exit.
ENDS = """
import contextlib, threading, banyan
group, comms, waits = banyan.Threads(2), [None, None], threading.Event()
def body(rank):
    comms[rank] = banyan.Communicator.from_threads(group, rank, timeout=60)
    comms[rank].barrier()
    if rank == 1:
        waits.set()
        with contextlib.suppress(banyan.Error):
            comms[1].barrier()
threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(2)]
[thread.start() for thread in threads]
threads[0].join()
waits.wait()
"""


@pytest.mark.parametrize("end", ["comms[0].close()", "del comms[0]", "comms[0].abort()", "raise SystemExit(0)"])
def test_python_ends_while_a_thread_waits(end):
    """The call of a daemon thread returns while Python exits."""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", ENDS + end], stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
