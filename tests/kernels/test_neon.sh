#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tests the attention kernels for aarch64, built by a cross compiler or by the compiler of an aarch64 machine, and run
# under qemu-user. Skipped if neither is available.
set -u
source=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

compiler=aarch64-linux-gnu-gcc run=qemu-aarch64
if [ "$(uname -m)" = aarch64 ]; then compiler=cc run=; fi
for program in $compiler $run; do
  command -v "$program" >/dev/null || { echo "SKIP: no $program"; exit 77; }
done

# -O2 limits the run time. Floating-point flags are those of configure.ac.
$compiler -std=gnu11 -O2 -Wall -Wextra -Werror -ffp-contract=off -fno-trapping-math -march=armv8-a -static \
  -DBNY_HAVE_NEON -I "$source" -I "$source/src" -I "$source/include" -I "$source/kernels" -o "$work/tables" "$source"/tests/kernels/test_attention_tables.c \
  "$source"/kernels/cpu/{attention_neon,attention_portable,attention_table,detect}.c -lm || exit 1
timeout 240 $run "$work/tables" | tee "$work/out"
[ "${PIPESTATUS[0]}" -eq 0 ] || exit 1
grep -q '^attention tables: neon portable,' "$work/out"
