#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What nvcc made of the kernels, as ptxas got it, run on the emulator (ptx/ptx.hh) by the tests that run their source there: each
# kernel there is, in the end. With EMULATE_PTX_ALL in the environment these tests are not shortened.
set -u
build=${top_builddir:-.}
image=$build/tests/gpu/user_kernel.fatbin.kept
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

# Of several architectures the one that has all kernels.
file=
for one in "$build"/kernels.fatbin.kept/*.ptx; do
  [ -e "$one" ] || continue
  if [ -z "$file" ] || grep -q '^\.target sm_90' "$one"; then file=$one; fi
done
if [ -z "$file" ] || [ ! -e "$build/tests/test_cuda_combine" ]; then
  echo "skipped: no PTX has been made of the kernels, or nothing runs it"
  exit 77
fi
user=$image/user_kernel.ptx
name=$(basename "$file" .ptx)
[ -e "$user" ] || user=$image/user_kernel.${name#kernels.}.ptx
EMULATE_PTX=$file
[ -e "$user" ] && EMULATE_PTX=$file:$user
EMULATE_PTX_NOTES=$directory/notes
export EMULATE_PTX EMULATE_PTX_NOTES
if [ -z "${EMULATE_PTX_ALL:-}" ]; then
  EMULATE_PTX_BRIEF=1
  export EMULATE_PTX_BRIEF
fi

# Of test $1 the case $2, or all of it.
run() {
  if env ${2:+"CK_RUN_CASE=$2"} "$build/tests/$1" >"$directory/$1" 2>&1; then
    grep '^[0-9]*%' "$directory/$1" | sed "s/^/$1: /"
  else
    tail -n 20 "$directory/$1"
    touch "$directory/failed"
  fi
}
(run test_cuda_combine; run test_cuda_decode kernels) &
run test_cuda_bytes
run test_cuda_faults
# What the library launches is chosen for a device of 9.0.
if grep -q '^\.target sm_90' "$file"; then
  [ -e "$user" ] && run test_device_user
  run test_device_attention devices
  run test_device_attention_fail devices
fi
wait

# All of them have run.
sort -u "$EMULATE_PTX_NOTES" >"$directory/ran"
sed -n 's/^\.visible \.entry \([a-z0-9_]*\)(.*/\1/p' "$file" | sort >"$directory/all"
comm -23 "$directory/all" "$directory/ran" | sed 's/$/: no launch of it/' >"$directory/missing"
cat "$directory/missing"
echo "$(wc -l <"$directory/all") kernels of $file"
[ ! -s "$directory/missing" ] && [ -s "$directory/all" ] && [ ! -e "$directory/failed" ]
