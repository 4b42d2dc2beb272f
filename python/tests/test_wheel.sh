#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tests wheels as users get them: test_wheel.sh FOLDER [PYTHON]. It is not a part of `make check`, because it downloads
# 200 MB and compiles the library with another compiler, for this machine and for aarch64. That takes ten minutes on two
# cores, and later runs take a minute. In an environment with only the wheel, the Python blocks of README run, and ranks
# connect over TCP. The aarch64 wheel does this in QEMU and runs most tests, with Debian's Python, if qemu-aarch64 and
# that version are available. Kernels are built for this machine's devices, because all take nvcc half an hour.
set -eu
export CUDA_ARCHS=${CUDA_ARCHS-native}
top=$(cd "$(dirname "$0")/../.." && pwd)
folder=${1:?usage: $0 FOLDER [PYTHON]}
python=${2:-python3}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

wheel_of() { # ARCH: builds a wheel, checks it, and prints its name
  local wheel file
  rm -f "$folder"/*_"$1".whl
  ARCH=$1 "$top/python/build_wheels.sh" "$folder" "$python" >"$folder/$1.log" 2>&1 || { tail -n 20 "$folder/$1.log" >&2 && return 1; }
  wheel=$(ls "$folder"/*manylinux_2_2[0-8]_"$1".whl)
  [ "$(stat -c %s "$wheel")" -lt 4000000 ] || { echo "FAIL: $wheel has over 4 MB" >&2 && return 1; }
  rm -rf "$folder/unpacked"
  "$python" -m zipfile -e "$wheel" "$folder/unpacked"
  while read -r file; do
    ! readelf -d "$file" | grep -E 'NEEDED.*(icu|xml2|hwloc|stdc)' >&2 || { echo "FAIL: $file" >&2 && return 1; }
  done < <(find "$folder/unpacked" -name '*.so*')
  [ -s "$folder/unpacked/banyan/licenses/sodium" ] || { echo "FAIL: no license" >&2 && return 1; }
  echo "$wheel"
}

cat >"$folder/blocks.py" <<'EOF'
import os, re, subprocess, sys
import banyan
assert "/python/banyan/" not in banyan.__file__, banyan.__file__
text = open(os.environ["top_srcdir"] + "/README.md").read()
names = {"__name__": "page"}
for block in re.findall(r"^```python\n(.*?)^```", text, re.S | re.M):
    exec(compile(block, "README.md", "exec"), names)
ranks = "import banyan; comm = banyan.Communicator.from_env(); comm.barrier(); print(comm)"
import socket
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
words = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
for rank in [subprocess.Popen([sys.executable, "-c", ranks], env={**words, "RANK": str(rank)}) for rank in range(2)]:
    assert rank.wait(120) == 0
EOF

wheel=$(wheel_of "$(uname -m)")
"$python" -m venv --clear "$folder/clean"
"$folder/clean/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
(cd "$folder" && top_srcdir=$top "$folder/clean/bin/python" blocks.py && "$folder/clean/bin/python" -m banyan info >info.txt)
! grep -qw avx2 /proc/cpuinfo || ! grep -q 'CPU kernels portable' "$folder/info.txt" || { echo "FAIL: $(cat "$folder/info.txt")" && exit 1; }
echo "passed: $(basename "$wheel"), $(stat -c %s "$wheel") bytes"

command -v qemu-aarch64 >/dev/null && [ "$(uname -m)" = x86_64 ] || exit 0
wheel=$(wheel_of aarch64)
root=$folder/aarch64/root
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ ! -e "$root/usr/bin/python$version" ]; then
  options="-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::Lists=$folder/aarch64/apt/lists -o Dir::Cache=$folder/aarch64/apt"
  # shellcheck disable=SC2086
  (cd "$folder/aarch64/apt" && apt-get -qq $options download "python$version-minimal" "libpython$version-minimal" \
    "libpython$version-stdlib" libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libbz2-1.0 liblzma5 libffi8 libssl3) ||
    { echo "skipped: aarch64, as Debian here has no Python $version" && exit 0; }
  for file in "$folder"/aarch64/apt/*.deb; do dpkg-deb -x "$file" "$root" && rm "$file"; done
fi
rm -rf "$folder/site"
"$python" -m pip download --quiet --no-deps --only-binary :all: --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
  --python-version "$version" -d "$folder/aarch64" numpy
for each in "$wheel" "$folder"/aarch64/numpy*.whl; do "$python" -m zipfile -e "$each" "$folder/site"; done
"$folder/clean/bin/python" -m pip install --quiet --disable-pip-version-check --target "$folder/site" pytest
# Programs that tests start by sys.executable also run in QEMU.
emulated=$folder/python-aarch64
printf '#!/bin/sh\nexec qemu-aarch64 -L %s -0 %s %s "$@"\n' "$root" "$emulated" "$root/usr/bin/python$version" >"$emulated"
chmod +x "$emulated"
export PYTHONHOME=$root/usr PYTHONPATH=$folder/site PYTHONDONTWRITEBYTECODE=1 top_srcdir=$top
"$emulated" "$folder/blocks.py"
(cd "$top/python/tests" && timeout 1200 "$emulated" -m pytest -q -p no:cacheprovider test_{attention,combine,errors,input,ownership,stubs,valid}.py)
echo "passed: $(basename "$wheel"), $(stat -c %s "$wheel") bytes, in QEMU"
