# SPDX-License-Identifier: Apache-2.0
"""The type stubs match the module in names, and in names, order and defaults of parameters. Keywords have no order."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

import banyan
from banyan import _core

STUBS = ast.parse(pathlib.Path(_core.__file__).with_name("_core.pyi").read_text())
EVERY_CLASS = {node.name: node for node in STUBS.body if isinstance(node, ast.ClassDef)}
CLASSES = {name: node for name, node in EVERY_CLASS.items() if not node.bases}


def words_of(name):
    """Returns the names of a TypedDict of the stubs, with those of its bases."""
    found = EVERY_CLASS[name]
    inherited = [word for base in found.bases if base.id in EVERY_CLASS for word in words_of(base.id)]
    return inherited + [each.target.id for each in found.body if isinstance(each, ast.AnnAssign)]


def parameters(function):
    """Returns [(name, is keyword-only, has a default)] of a function of the stubs, by name where it is keyword-only."""
    given = function.args
    positional = given.posonlyargs + given.args
    defaults = [None] * (len(positional) - len(given.defaults)) + given.defaults
    found = [(each.arg, False, default is not None) for each, default in zip(positional, defaults)]
    named = [(each.arg, True, default is not None) for each, default in zip(given.kwonlyargs, given.kw_defaults)]
    if given.kwarg:  # **words: Unpack[a TypedDict, none of whose keys is required]
        named += [(name, True, True) for name in words_of(given.kwarg.annotation.slice.id)]
    return found + sorted(named)


def parameters_of_module(bound):
    """Returns the same for a function of the module, from its first nanobind signature."""
    text = re.sub(r"\\\d+", "0", bound.__nb_signature__[0][0])
    return parameters(ast.parse(text + ": ...").body[0])


def names_of(body):
    """Functions of a stub, and the names of attributes that are none."""
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    others = {node.target.id for node in body if isinstance(node, ast.AnnAssign)}
    properties = {name for name, node in functions.items() if node.decorator_list}
    return {name: node for name, node in functions.items() if name not in properties}, others | properties


def compare(functions, others, owner):
    there = {name for name in vars(owner) if not name.startswith("__") or name in functions}
    assert there - {"AttentionStep", "Comm", "Operation", "Ownership", "Threads"} == set(functions) | others
    for name, node in functions.items():
        # If the binding does not name an argument, only the stub does.
        bound = [each for each in parameters_of_module(getattr(owner, name))]
        assert len(bound) == len(parameters(node))
        if not any(each[0].startswith("arg") for each in bound):
            assert bound == parameters(node), name


def test_functions():
    compare(*names_of(STUBS.body), _core)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_classes(name):
    compare(*names_of(CLASSES[name].body), getattr(_core, name))


def undocumented(body, owner=""):
    """Public names of a file without a docstring. Properties of __init__ are described by their class."""
    for node in body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("_"):
            continue
        is_setter = any(isinstance(each, ast.Attribute) for each in node.decorator_list)
        if not ast.get_docstring(node) and not is_setter:
            yield owner + node.name
        if isinstance(node, ast.ClassDef) and node.name not in ("ShardedLayer", "ProcessGroup"):  # their frameworks document them
            yield from undocumented(node.body, node.name + ".")


def test_docstrings():
    """Everything public has a docstring, and stubs and module have the same ones."""
    for path in pathlib.Path(banyan.__file__).parent.rglob("*.py*"):
        if path.suffix in (".py", ".pyi"):
            assert list(undocumented(ast.parse(path.read_text()).body)) == [], path
    for name, node in names_of(CLASSES["Comm"].body)[0].items():
        assert name == "__init__" or ast.get_docstring(node) == getattr(_core.Comm, name).__nb_signature__[0][1]


TYPED = """
import banyan
import numpy as np
def body(comm: banyan.Communicator) -> float:
    rows = np.zeros((1, 2, 4), np.float32)
    out, lse = comm.combine(rows, memoryview(bytes(8)), scatter="heads", out=rows)
    return float(out.sum())
results: list[float] = banyan.run(body, ranks=2)
rows = np.zeros((1, 2, 4), np.float32)
fewer, members = banyan.Communicator.from_env().shrink()
fewer.barrier()
part = fewer.split(0, key=1)
if part is not None:
    part.barrier()
"""


def test_mypy(tmp_path):
    pytest.importorskip("mypy")
    wrong = TYPED + 'banyan.split(1, 2, "x")\nfewer.barrier(1)\nfewer.allgather(1)\nfewer.combine(rows, 2)\n'
    wrong += 'fewer.combine(rows, rows, scatter="head")\n'
    for text, errors in ((TYPED, 0), (wrong, 5)):
        (tmp_path / "typed.py").write_text(text)
        command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), str(tmp_path / "typed.py")]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, cwd=tmp_path).stdout
        assert said.count(": error:") == errors, said
    assert (pathlib.Path(banyan.__file__).parent / "py.typed").exists()
