# SPDX-License-Identifier: Apache-2.0
"""The exceptions of banyan: one class for each status of the library."""

import builtins


class Error(Exception):
    """A failure. `status` is the name that the library has for it, and `rank` the rank to blame, or None."""

    status = "error"

    def __init__(self, text, rank=None):
        super().__init__(text)
        self.rank = rank


class ArgumentError(Error, ValueError):
    """An argument is wrong. Nothing was sent, and the communicator remains usable. `argument` names it."""

    status = "bad argument"
    argument = None


class OutOfMemoryError(Error, MemoryError):
    """Memory is lacking, or a message is larger than the arena allows."""

    status = "out of memory"


class SystemCallError(Error, OSError):
    """The operating system refused something."""

    status = "system error"


class UnsupportedError(Error, NotImplementedError):
    """This machine or this build cannot do it."""

    status = "unsupported"


class DataError(Error, ValueError):
    """Statistics that no row has, such as an undeclared NaN, or a result that its type cannot hold."""

    status = "bad data"


class StateError(Error, RuntimeError):
    """A call in the wrong order, or on a communicator that is closed or in use by another thread."""

    status = "bad state"


class BootstrapError(Error, ConnectionError):
    """Ranks could not find or authenticate each other."""

    status = "bootstrap failed"


class TimeoutError(Error, builtins.TimeoutError):
    """The deadline passed. `rank` is the rank that was waited for."""

    status = "timeout"


class PeerError(Error, ConnectionError):
    """A rank died, left, or refused its call."""

    status = "peer failed"


class MismatchError(Error, ValueError):
    """Ranks called with different shapes, dtypes or algorithms, or in different order."""

    status = "mismatch"


class AbortedError(Error, RuntimeError):
    """abort() was called, here or on another rank."""

    status = "aborted"


# In the order of banyan_status, from 1.
_CLASSES = (
    ArgumentError,
    OutOfMemoryError,
    SystemCallError,
    UnsupportedError,
    DataError,
    StateError,
    BootstrapError,
    TimeoutError,
    PeerError,
    MismatchError,
    AbortedError,
)


def make_error(status, text, rank):
    """The exception of a banyan_status."""
    kind = _CLASSES[status - 1] if 1 <= status <= len(_CLASSES) else Error
    return kind(text, rank if rank >= 0 else None)
