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
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT BANYAN_ALGORITHM
# The emulator's clock goes about as fast as time.
export PYTHONDONTWRITEBYTECODE=1 BANYAN_CUDA_LIBRARY="$fake" FAKE_CUDA=devices=2,live,step-ns=200
results=$(mktemp)
trap 'rm -f "$results"' EXIT
"$tests/gpu_small" || exit 1
"$script" --quick --output "$results" --tests "$tests" --tools "$tools" || exit 1
python3 "$here/gpu/check_results.py" "$results"
