#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs nvcc's PTX of the kernels, as ptxas received it, on the emulator (ptx/ptx.hh), with the tests that run the source
# there. It covers every kernel of each architecture. EMULATE_PTX_ALL in the environment runs these tests in full.
set -u
build=${top_builddir:-.}
image=$build/tests/gpu/user_kernel.fatbin.kept
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

# Runs case $2 of test $1, or all cases.
run() {
  if env ${2:+"CK_RUN_CASE=$2"} "$build/tests/$1" >"$directory/${1##*/}" 2>&1; then
    grep '^[0-9]*%' "$directory/${1##*/}" | sed "s|^|$1: |"
    ! grep -q '^[0-9]*%: Checks: 0,' "$directory/${1##*/}" || touch "$directory/failed" # the case does not exist
  else
    tail -n 20 "$directory/${1##*/}"
    touch "$directory/failed"
  fi
}

# Runs a decode by each kernel for devices of compute capability $1. test_cuda_combine runs all other kernels.
run_kernels() {
  if BANYAN_CUDA_LIBRARY=$build/tests/emulate/.libs/fake_cuda.so BANYAN_CUDA_IMAGE=$directory/image \
    FAKE_CUDA=devices=1,live,step-ns=200,compute=$1 "$build/tests/gpu/gpu_kernels" --decodes >"$directory/gpu_kernels.$1" 2>&1; then
    echo "gpu_kernels: $(grep -c ': right' "$directory/gpu_kernels.$1") decodes for $1"
  else
    tail -n 20 "$directory/gpu_kernels.$1"
    touch "$directory/failed"
  fi
}

# Tests the kernels of file $1, for devices of capability $3. If $2 is set, it also runs more tests, as a 9.0 device.
check_file() {
  name=$(basename "$1" .ptx)
  user=$image/user_kernel.ptx
  [ -e "$user" ] || user=$image/user_kernel.${name#kernels.}.ptx
  EMULATE_PTX=$1
  [ -e "$user" ] && EMULATE_PTX=$1:$user
  EMULATE_PTX_NOTES=$directory/notes.$name
  if [ -n "${EMULATE_PTX_ALL:-}" ]; then unset EMULATE_PTX_BRIEF; else EMULATE_PTX_BRIEF=$([ -n "$2" ] && echo 1 || echo 2); fi
  export EMULATE_PTX EMULATE_PTX_NOTES ${EMULATE_PTX_BRIEF:+EMULATE_PTX_BRIEF}
  : >"$EMULATE_PTX_NOTES"
  run emulate/test_cuda_combine &
  run api/test_bytes "emulated device"
  run api/test_heads "emulated device"
  run_kernels "$3"
  if [ -n "$2" ] || [ -n "${EMULATE_PTX_ALL:-}" ]; then run emulate/test_cuda_faults; fi
  if [ -n "$2" ]; then
    [ -e "$user" ] && run device/test_device_user
    run api/test_attend "emulated device"
    run device/test_device_attention kernels
    run device/test_device_attention_fail
  fi
  wait
  # Checks that all kernels have run.
  sort -u "$EMULATE_PTX_NOTES" >"$directory/ran"
  sed -n 's/^\.visible \.entry \([a-z0-9_]*\)(.*/\1/p' "$1" | sort >"$directory/all"
  comm -23 "$directory/all" "$directory/ran" | sed 's/$/: no launch of it/' >"$directory/missing"
  cat "$directory/missing"
  if [ -s "$directory/missing" ] || [ ! -s "$directory/all" ]; then touch "$directory/failed"; fi
  echo "$(wc -l <"$directory/all") kernels of $1"
}

printf emulated >"$directory/image"
count=0
for one in "$build"/kernels.fatbin.kept/*.ptx; do
  if [ ! -e "$one" ] || [ ! -e "$build/tests/emulate/test_cuda_combine" ]; then continue; fi
  compute=$(sed -n 's/^\.target sm_\([0-9]*\).*/\1/p' "$one" | head -n 1)
  if [ "$compute" = 90 ]; then check_file "$one" library 90; else check_file "$one" '' "$compute"; fi
  count=$((count + 1))
done
if [ $count = 0 ]; then
  echo "skipped: no PTX has been made of the kernels, or nothing runs it"
  exit 77
fi
[ ! -e "$directory/failed" ]
