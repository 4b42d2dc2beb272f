# SPDX-License-Identifier: Apache-2.0
"""The exceptions of banyan: one class for each status of the library."""

from __future__ import annotations

import ast
import builtins
import difflib
import inspect
import re
import sys
from typing import Any

_package = sys.modules[__package__]
if not hasattr(_package, "page_moves"):
    raise ImportError(
        f"the package banyan has the __init__.py of another distribution ({getattr(_package, '__file__', None)}), such as "
        "the search trees Banyan. Run pip uninstall banyan banyan-attention, and install banyan-attention again"
    )

from ._core import status_names  # noqa: E402  (another distribution has none)


class Error(Exception):
    """A failure. `status` is the library's name of it, and `rank` the rank that caused it, or None."""

    status = "error"

    def __init__(self, text: str, rank: int | None = None) -> None:
        super().__init__(text)
        self.rank = rank


class ArgumentError(Error, ValueError):
    """An argument is wrong, and this rank sent nothing. `argument` names it."""

    argument: str | None = None


class OutOfMemoryError(Error, MemoryError):
    """Memory is lacking, or a message is larger than the arena allows."""


class SystemCallError(Error, OSError):
    """The operating system rejected something."""


class UnsupportedError(Error, NotImplementedError):
    """This machine or this build cannot do it."""


class DataError(Error, ValueError):
    """Statistics that no row has, such as an undeclared NaN, or a result that its type cannot hold."""


class StateError(Error, RuntimeError):
    """A call in the wrong order, or on a communicator that is closed or in use by another thread."""


class BootstrapError(Error, ConnectionError):
    """Ranks could not find or authenticate each other."""


class TimeoutError(Error, builtins.TimeoutError):
    """The deadline passed. `rank` is the rank that was waited for."""


class PeerError(Error, ConnectionError):
    """A rank died, left, or rejected its call."""


class MismatchError(Error, ValueError):
    """Ranks called with different shapes, dtypes or algorithms, or in different order."""


class AbortedError(Error, RuntimeError):
    """abort() was called, here or on another rank."""


_CLASSES = tuple(Error.__subclasses__())  # in the order of banyan_status, starting at 1
for _kind, _name in zip(_CLASSES, status_names()[1:]):
    _kind.status = _name

# Maps struct fields of the library to Python arguments with a different name.
_ARGUMENTS = {
    "bootstrap": "rank",
    "heads": "q",
    "head_dim": "q",
    "kv_heads": "k",
    "kv_dtype": "k",
    "value_dim": "v",
    "timeout_ns": "timeout",
    "first_timeout_ns": "first_timeout",
    "in": "x",
    "in_stride": "x",
    "out_stride": "out",
    **dict.fromkeys(("best", "positions", "best_scores", "best_indices", "own", "own_counts"), "out"),
}


def _argument_of(text: str) -> tuple[str | None, str]:
    """Returns the argument that an error text names, such as "root" of "desc.root is 5", and the rest of the text.

    None: the text names no argument.
    """
    pattern = r"(?:banyan_\w+: )?(?:(in|out): )?((?:(?:desc|valid|queries|config|ownership)\.)?((?:prune\.)?[a-z]\w*)(.*))"
    found = re.match(pattern, text, re.S)
    if not found:
        return None, text
    side, rest, field, after = found.groups()
    if side == "out":
        return "out", rest
    if side == "in":
        if field in ("values_scale", "sum"):
            return field, rest
        return "o" if field.startswith("values") else "lse", rest
    if re.fullmatch(r"[qkv]_\w+_stride", field):
        return field[0], rest
    if field == "unknown":  # for example: unknown algorithm "x"
        return after.split()[0], text
    if re.match(r"[\d\[\]]* (is|leads|must|has|add|overlaps)\b", after):
        return _ARGUMENTS.get(field, field), rest
    return None, text


def make_error(status: int, text: str, rank: int) -> Error:
    """Returns the exception of a banyan_status."""
    kind = _CLASSES[status - 1] if 1 <= status <= len(_CLASSES) else Error
    argument, text = _argument_of(text) if kind is ArgumentError else (None, text)
    error = kind(f"{argument}: {text}" if argument else text, rank if rank >= 0 else None)
    if isinstance(error, ArgumentError):
        error.argument = argument
    return error


def signature_of(call: Any) -> inspect.Signature:
    """Returns the signature of a call of the extension, which nanobind gives as text with places for defaults."""
    text, _, *rest = call.__nb_signature__[0]
    node: Any = ast.parse(re.sub(r"\\(\d+)", r"\1", text) + ": ...").body[0]
    given, found = node.args, []
    standard = [None] * (len(given.args) - len(given.defaults)) + given.defaults
    for kind, names, values in (
        (inspect.Parameter.POSITIONAL_OR_KEYWORD, given.args, standard),
        (inspect.Parameter.KEYWORD_ONLY, given.kwonlyargs, given.kw_defaults),
    ):
        for name, value in zip(names, values):
            default = inspect.Parameter.empty if value is None else rest[0][ast.literal_eval(value)]
            found.append(inspect.Parameter(name.arg, kind, default=default))
    return inspect.Signature(found)


def wrong_call(call: Any, given: list[Any], named: dict[str, Any]) -> str:
    """Returns in one line what is wrong with the arguments of a call of the extension."""
    signature = signature_of(call)
    try:
        signature.bind(*given, **named)
    except TypeError as error:
        text = str(error)
        unknown = [name for name in named if name not in signature.parameters]
        near = difflib.get_close_matches(unknown[0], signature.parameters, 1) if unknown else []
        return f"{call.__name__}(): {text}{f', did you mean {near[0]!r}?' if near else ''}"
    types = ", ".join(type(each).__name__ for each in (*given, *named.values()))
    return f"{call.__name__}(): arguments of other types are wanted than ({types}): {call.__doc__.splitlines()[0]}"
