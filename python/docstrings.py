# SPDX-License-Identifier: Apache-2.0
"""Makes a header with the docstrings of the stubs, which the module has as well: docstrings.py STUBS HEADER"""

import ast
import sys


def docstrings(body, owner=""):
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            yield owner + node.name, ast.get_docstring(node)
        if isinstance(node, ast.ClassDef):
            yield from docstrings(node.body, node.name + "_")


with open(sys.argv[1]) as stubs, open(sys.argv[2], "w") as header:
    for name, text in docstrings(ast.parse(stubs.read()).body):
        header.write(f'inline constexpr char {name}[] = R"doc({text})doc";\n')
