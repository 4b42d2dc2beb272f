# SPDX-License-Identifier: Apache-2.0
"""python -m banyan info: prints the versions of this copy, and what it finds on this machine.

python -m banyan check MODULE:FUNCTION: judges the partials of an attention kernel. Ends with 1 if they have a fault.
"""

import argparse
import importlib
import os
import platform
import sys

from . import errors  # raises a clear error if another package is installed
import banyan


def _version_of(name):
    try:
        module = importlib.import_module(name)
    except Exception as error:
        return f"no ({type(error).__name__})"
    return getattr(module, "__version__", "yes")


def info():
    """Prints the versions of this copy, and what it finds on this machine."""
    print(f"banyan      {banyan.__version__}, libbanyan {banyan.version()}")
    print(f"python      {platform.python_version()}, {sys.executable}")
    print(f"module      {banyan._core.__file__}")
    for name in ("numpy", "torch", "jax", "cupy", "mpi4py"):
        print(f"{name:<11} {_version_of(name)}")
    try:
        network = banyan.network()
    except banyan.Error as error:
        network = f"no: {error}"
    print(f"network     {network}")
    with banyan.Communicator.from_threads(banyan.Threads(1), 0) as comm:
        print(f"one rank    {comm.describe()}")


def check(name, words):
    """Judges a kernel, and returns the exit status."""
    module, _, function = name.partition(":")
    try:
        if not function:
            raise ValueError("a kernel is MODULE:FUNCTION, such as adapters:flash_attention")
        kernel = importlib.import_module(module)
        for part in function.split("."):
            kernel = getattr(kernel, part)
        report = banyan.check(kernel, **words)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        print(f"python -m banyan check {name}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0 if report.ok else 1


def main():
    """Runs the command line. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m banyan")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="print the versions of this copy, and what it finds on this machine")
    judge = commands.add_parser("check", help="judge what an attention kernel returns")
    judge.description, judge.formatter_class = banyan.check.__doc__, argparse.RawDescriptionHelpFormatter
    judge.add_argument("kernel", metavar="MODULE:FUNCTION")
    for name, values in (("framework", ("numpy", "torch")), ("dtype", ("f32", "f16", "bf16"))):
        judge.add_argument(f"--{name}", choices=values, default=values[0])
    judge.add_argument("--form", choices=("ragged", "padded"), default="ragged")
    for name, standard in (("heads", 8), ("kv-heads", 2), ("dim", 64), ("window", None)):
        judge.add_argument(f"--{name}", type=int, default=standard, metavar="N")
    judge.add_argument("--sinks", action="store_true")
    for name in ("device", "preset"):
        judge.add_argument(f"--{name}")
    judge.add_argument("--allow", action="append", default=[], metavar="FAULT")
    words = vars(parser.parse_args())
    if words.pop("command") == "check":
        return check(words.pop("kernel"), words)
    try:
        info()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that Python's flush at exit succeeds
    return 0


if __name__ == "__main__":
    sys.exit(main())
