# SPDX-License-Identifier: Apache-2.0
"""Local ranks for tests and notebooks."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import sys
import threading
import time
import traceback
from typing import Any, Callable, Sequence, TypeVar

from .communicator import Communicator

Result = TypeVar("Result")


class RankError(RuntimeError):
    """A rank of run() failed. `rank` failed first; the text has its traceback. `failures` maps ranks to tracebacks."""

    failures: dict[int, str]
    rank: int

    def __init__(self, failures: Sequence[tuple[int, str]]) -> None:
        self.failures = dict(failures)
        self.rank, text = failures[0]
        super().__init__(f"rank {self.rank}: {text}")

    def __reduce__(self) -> Any:
        return RankError, (list(self.failures.items()),)


def run(
    fn: Callable[..., Result], ranks: int = 4, *, args: Sequence[Any] = (), start: str = "fork", **settings: Any
) -> list[Result]:
    """Starts local ranks, calls fn(comm, *args) in each, and returns the list of results.

    start: "fork", "spawn" or "thread". "fork" takes any function, also one that a notebook defines. "spawn" needs a
    function that can be imported; use it if this process has used CUDA or OpenMP. Results of processes are pickled.
    settings are those of Communicator. If a rank fails, run() waits for the others, and raises RankError with the
    traceback of the rank that failed first.
    """
    if not callable(fn):
        raise TypeError(f"fn: it is a function, and not a {type(fn).__name__}")
    if ranks < 1:
        raise ValueError(f"ranks: {ranks}: must be at least 1")
    if start == "thread":
        return _run_threads(fn, ranks, args, settings)
    if start not in ("fork", "spawn", "forkserver"):
        raise ValueError(f'start: {start!r}: it is "fork", "spawn" or "thread"')
    context: Any = multiprocessing.get_context(start)
    links: list[Any] = []
    children: list[Any] = []
    try:
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            # A forked child inherits the parent's ends and closes them. Otherwise no process would notice that the
            # parent ends.
            inherited = links + [ours] if start == "fork" else []
            child = context.Process(target=_child, args=(theirs, inherited, fn, rank, ranks, args, settings))
            links.append(ours)
            children.append(child)
            child.start()
            theirs.close()
        return _serve(links, children)
    finally:
        for link in links:
            link.close()
        for child in children:
            if child.pid is None:
                continue
            child.join(5)
            if child.is_alive():
                child.kill()
                child.join()


def _child(link, inherited, fn, rank, ranks, args, settings):
    for other in inherited:
        other.close()
    process = os.getpid()

    def gather(data, timeout_s):
        link.send(("gather", data))
        if not link.poll(timeout_s if timeout_s > 0 else None):
            raise TimeoutError("other ranks did not come")
        every = link.recv()
        if every is None:
            raise ConnectionError("another rank ended before it had a communicator")
        return every

    try:
        with Communicator(gather, rank, ranks, **settings) as comm:
            try:
                answer = ("result", fn(comm, *args))
                pickle.dumps(answer)
            except BaseException:
                # Report before the communicator is closed, because closing makes other ranks fail.
                answer = _failure(process)
    except BaseException:
        answer = _failure(process)
    if os.getpid() != process:
        return
    try:
        link.send(answer)
    except OSError:
        pass  # the parent has ended
    link.close()


def _failure(process):
    """The text of a failure and its time, by the clock of the node: the first one is the cause of the others."""
    if os.getpid() != process:
        raise  # noqa: PLE0704: a child forked by fn reports for no rank, and ends as it would without run()
    text = "interrupted" if isinstance(sys.exc_info()[1], KeyboardInterrupt) else traceback.format_exc()
    return "failure", (time.monotonic(), text)


def _serve(links, children):
    """Passes the all-gathers of children on, until each has sent a result or ended."""
    results, failures = [None] * len(links), []
    open_links = dict(zip(links, range(len(links))))
    gathered = {}
    while open_links:
        for link in multiprocessing.connection.wait(list(open_links)):
            rank = open_links[link]
            try:
                kind, data = link.recv()
            except EOFError:
                children[rank].join(5)
                # The time of its end is unknown. Time 0 makes it the first failure, as it may have caused the others.
                kind, data = "failure", (0, f"the process ended, exit status {children[rank].exitcode}")
            if kind == "gather":
                gathered[link] = data
                continue
            del open_links[link]
            if kind == "result":
                results[rank] = data
            else:
                failures.append((*data, rank))
        if gathered and len(gathered) == len(open_links):
            # A process that has ended no longer takes part, and processes that wait for it get an error.
            complete = len(gathered) == len(links)
            every = [gathered[link] for link in links] if complete else None
            for link in gathered:
                try:
                    link.send(every)
                except OSError:
                    pass
            gathered = {}
    if failures:
        raise RankError([(rank, text) for when, text, rank in sorted(failures)])
    return results


def _run_threads(fn, ranks, args, settings):
    from .communicator import Threads

    group = Threads(ranks)
    results, failures, comms = [None] * ranks, [], []
    stopped = threading.Event()

    def body(rank):
        try:
            with Communicator.from_threads(group, rank, **settings) as comm:
                try:
                    comms.append(comm)
                    if stopped.is_set():
                        return
                    results[rank] = fn(comm, *args)
                except BaseException:
                    failures.append((rank, traceback.format_exc()))
        except BaseException:
            failures.append((rank, traceback.format_exc()))
        finally:
            ended[rank].set()

    workers = [threading.Thread(target=body, args=(rank,), name=f"banyan rank {rank}") for rank in range(ranks)]
    ended = [threading.Event() for _ in workers]  # an interrupted Thread.join() of 3.11 marks the thread as ended
    try:
        for worker in workers:
            worker.start()
        for event in ended:
            event.wait()
    except BaseException:  # also for KeyboardInterrupt, all ranks must end
        stopped.set()
        for comm in list(comms):
            if comm.is_open:
                comm.abort("run() was interrupted")
        for worker, event in zip(workers, ended):
            if worker.ident is not None:
                event.wait()
        raise
    finally:
        for worker, event in zip(workers, ended):
            if event.is_set():
                worker.join()
    if failures:
        raise RankError(failures)
    return results
