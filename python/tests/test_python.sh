#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# pip builds the Python package against the library of this build, in an environment in the build folder. Its tests run
# there.
set -u
top=$(cd "${top_srcdir:-$(dirname "$0")/../..}" && pwd)
build=$(cd "${top_builddir:-.}" && pwd)
venv=$build/python/venv

skip() {
  echo "skipped: $*"
  exit 77
}

[ -e "$build/.libs/libbanyan.so" ] || skip "libbanyan.so has not been built"
grep -q '^SANITIZER_CFLAGS = *[^ ]' "$build/Makefile" && skip "the library has a sanitizer, and Python lacks its runtime"
cxx=${CXX:-c++}
command -v "${cxx%% *}" >/dev/null || skip "there is no C++ compiler"

# Selects the Python with most of the required packages. Debian's Python has Debian's numpy and torch.
usable() {
  "$1" -c '
import importlib.util, os, sys, sysconfig
assert sys.version_info >= (3, 9) and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
for name in ("venv", "ensurepip", "numpy"):
    assert importlib.util.find_spec(name), name' >/dev/null 2>&1
}
python=
for candidate in python3 /usr/bin/python3; do
  if usable $candidate; then python=$candidate && break; fi
done
[ -n "$python" ] || skip "no Python 3.9 or newer has its headers, venv and numpy (Debian: python3-dev python3-venv python3-numpy)"

[ -x "$venv/bin/python" ] || "$python" -m venv --system-site-packages "$venv" >/dev/null || skip "python3 -m venv failed"
pip="$venv/bin/python -m pip --quiet --disable-pip-version-check"
needed=
for name in scikit_build_core nanobind pytest; do
  "$venv/bin/python" -c "import $name" 2>/dev/null || needed="$needed ${name//_/-}"
done
for name in cmake ninja; do command -v $name >/dev/null || [ -x "$venv/bin/$name" ] || needed="$needed $name"; done
if [ -n "$needed" ]; then
  # shellcheck disable=SC2086
  $pip install --retries 1 $needed >"$venv/pip.log" 2>&1 </dev/null || skip "pip does not get$needed: $(tail -n 1 "$venv/pip.log")"
fi
# Installs more frameworks for all tests, such as PYTHON_TEST_PACKAGES="torch transformers".
for name in ${PYTHON_TEST_PACKAGES-}; do
  "$venv/bin/python" -c "import $name" 2>/dev/null || $pip install --retries 1 "$name" >>"$venv/pip.log" 2>&1 </dev/null ||
    echo "pip does not get $name: $(tail -n 1 "$venv/pip.log")"
done
export PATH=$venv/bin:$PATH
export CC CXX
# shellcheck disable=SC2086
$pip install --no-build-isolation --no-deps --force-reinstall "$top/python" --config-settings "cmake.define.LIBBANYAN_BUILD=$build" </dev/null || {
  echo "FAIL: pip does not build the package"
  exit 1
}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export top_srcdir=$top PYTHONDONTWRITEBYTECODE=1
tests() {
  "$venv/bin/python" -m pytest -q -ra -p no:cacheprovider --rootdir "$work" --basetemp "$work/tests" "$top/python/tests" "$@"
}
tests
status=$?
# JAX, mypy and mpi4py (160 MB) bring a newer numpy. They have their own folder, which only their tests use.
more=$venv/more
if [ ! -d "$more" ]; then
  $pip install --no-compile --retries 1 --target "$more" jax ml_dtypes mypy mpi4py >>"$venv/pip.log" 2>&1 </dev/null ||
    echo "pip does not get jax and others: $(tail -n 1 "$venv/pip.log")"
  PYTHONDONTWRITEBYTECODE='' PYTHONPATH=$more "$venv/bin/python" -c "import jax" 2>/dev/null # compiles the modules
fi
if [ $status = 0 ] && [ -d "$more" ]; then
  PYTHONPATH=$more tests -k "jax or ml_dtypes or eight_bit_floats or mypy or from_mpi or test_page"
  status=$?
fi
[ $status != 5 ] || echo "FAIL: there are no tests"
exit $status
