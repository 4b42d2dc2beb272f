#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What calls and arrays cost by cffi in API mode, beside the binding of this package: docs/python.md has the figures.

    python python/bench/bench_cffi.py        # needs cffi and a C compiler; libbanyan.so.0 is that of the package
"""

import pathlib
import sys
import tempfile
import timeit

import cffi
import numpy as np

import banyan

library = pathlib.Path(banyan.__file__).parent / "libbanyan.so.0"
if not library.exists():
    sys.exit(f"{library} is not there: install the package with LIBBANYAN_BUILD")
folder = tempfile.TemporaryDirectory()
source = cffi.FFI()
declaration = "int32_t banyan_comm_rank(const void *comm);"
source.cdef(declaration)
source.set_source("by_cffi", "#include <stdint.h>\n" + declaration, extra_link_args=[str(library)])
source.compile(tmpdir=folder.name)
sys.path.insert(0, folder.name)
from by_cffi import ffi, lib  # noqa: E402  (made above)

comm = banyan.Communicator.from_threads(banyan.Threads(1), 0)
array, null, fields = np.zeros((1, 32, 128), np.float32), ffi.NULL, ffi.new("int32_t[8]")
# The call of rank: both are one call of C, with one argument.
for name, statement in (
    ("nanobind, comm.rank", "comm.rank"),
    ("cffi, banyan_comm_rank(comm)", "lib.banyan_comm_rank(null)"),
    ("cffi, memory, shape, strides and dtype", "ffi.from_buffer(array), array.shape, array.strides, array.dtype"),
    ("cffi, eight fields of a struct", ";".join(f"fields[{i}] = 1" for i in range(8))),
):
    best = min(timeit.repeat(statement, globals=globals(), number=50000, repeat=9)) / 50000
    print(f"{name:<40} {best * 1e9:6.0f} ns")
comm.close()
folder.cleanup()
