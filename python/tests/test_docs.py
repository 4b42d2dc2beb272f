# SPDX-License-Identifier: Apache-2.0
"""The Python blocks of README and of the pages run, each page from top to bottom."""

import os
import pathlib
import re

import pytest

TOP = pathlib.Path(os.environ.get("top_srcdir", pathlib.Path(__file__).parents[2]))


@pytest.mark.parametrize("page", ["README.md", "docs/python.md", "docs/integration.md"])
def test_page(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    text = (TOP / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)
    assert blocks
    names = {"__name__": "page"}
    for block in blocks:
        try:
            exec(compile(block, page, "exec"), names)
        except ModuleNotFoundError as error:
            if error.name not in ("torch", "jax", "transformers"):
                raise


def test_package_with_a_library_of_its_own_needs_none_of_the_machine():
    import banyan

    package = pathlib.Path(banyan.__file__).parent
    loaded = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
    library = [path for path in loaded if pathlib.Path(path).name.startswith("libbanyan.so")]
    if pathlib.Path(library[0]).parent != package:
        pytest.skip("this package uses an installed libbanyan")
    for path in loaded:
        if pathlib.Path(path).name.startswith(("libjansson", "libsodium", "libxml2", "libhwloc")):
            assert pathlib.Path(path).parent in (package, package.parent / "banyan_attention.libs"), path
