#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What runs on machines with a GPU, run here: tests and benchmarks of tests/gpu/check-gpu, a little of each, on an
# emulated device. GPU_BUNDLE names an unpacked bundle to run instead of what the build has.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=${top_builddir:-.}
fake=$build/tests/.libs/fake_cuda.so
script=$here/gpu/check-gpu
tests=$build/tests/gpu
tools=$build
if [ -n "${GPU_BUNDLE:-}" ]; then
  script=$GPU_BUNDLE/check-gpu tests=$GPU_BUNDLE/bin tools=$GPU_BUNDLE/bin
fi
for file in "$fake" "$tests/test_gpu_combine" "$tools/banyan-perf"; do
  if [ ! -e "$file" ]; then
    echo "skipped: $file has not been built"
    exit 77
  fi
done
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 7))' 2>/dev/null; then
  echo "skipped: no python3 of 3.7 or newer"
  exit 77
fi
export PYTHONDONTWRITEBYTECODE=1
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
results=$directory/results.json
# Nothing of this environment: it runs on machines that have none. The emulator's clock goes about as fast as time.
check_gpu() {
  env -i PATH="$PATH" TMPDIR="$directory" BANYAN_CUDA_LIBRARY="$fake" FAKE_CUDA=devices=2,live,step-ns=200 \
    python3 "$script" --quick --seconds 200 --output "$results" --tests "$tests" --tools "$tools" "$@"
}
check_gpu || exit 1
python3 "$here/gpu/check_results.py" "$results" || exit 1
if ! grep -q '"name": "decode, .*, bulk copies"' "$results"; then
  echo "bulk copies have not been timed beside others"
  exit 1
fi
steps=$(grep -c '"seconds"' "$results")
check_gpu --only small --add || exit 1
if [ "$(grep -c '"seconds"' "$results")" != "$steps" ]; then
  echo "--add has lost or doubled something"
  exit 1
fi
# No GPU is no failure.
env -i PATH="$PATH" BANYAN_CUDA_LIBRARY="$directory/none.so" python3 "$script" --tests "$tests" --output "$results"
[ $? = 77 ]
