# SPDX-License-Identifier: Apache-2.0
"""python -m banyan info: prints the versions of this copy, and what it finds on this machine."""

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


def main():
    """Runs the command line. Returns the exit status."""
    if sys.argv[1:] != ["info"]:
        print("usage: python -m banyan info", file=sys.stderr)
        return 2
    try:
        info()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that Python's flush at exit succeeds
    return 0


if __name__ == "__main__":
    sys.exit(main())
