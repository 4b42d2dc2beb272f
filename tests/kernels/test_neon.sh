#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tests the attention kernels for aarch64 by the laws of attention, built by a cross compiler or by the compiler of an
# aarch64 machine, and run under qemu-user. Skipped if neither is available.
set -u
source=$(cd "${srcdir:-$(dirname "$0")/../..}" && pwd)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

compiler=aarch64-linux-gnu-gcc run=qemu-aarch64
if [ "$(uname -m)" = aarch64 ]; then compiler=cc run=; fi
for program in $compiler $run; do
  command -v "$program" >/dev/null || { echo "SKIP: no $program"; exit 77; }
done

# -O2 limits the run time. Floating-point flags are those of configure.ac.
flags="-std=gnu11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -ffp-contract=off -fno-trapping-math -march=armv8-a -static
  -DBNY_HAVE_NEON -DLAWS_FEWER=48 -I $source/tests/kernels/neon -I $source -I $source/src -I $source/include -I $source/kernels"
cd "$source" || exit 1
# shellcheck disable=SC2086
$compiler $flags -DHAVE_MEMFD_CREATE=1 -o "$work/laws" tests/attention/test_laws.c tests/support/{oracle,attention_oracle,drawn}.c \
  src/{attention,prune}/*.c kernels/*.c kernels/cpu/{attention_neon,attention_portable,attention_table,detect,portable,table}.c \
  src/base/{deadline,file,float_control,flight,interface,log,options,pool,process,quota,sized,status,sysfs,thread,trace}.c \
  -lm -lpthread || exit 1
timeout 900 $run "$work/laws" | tee "$work/out"
[ "${PIPESTATUS[0]}" -eq 0 ] || exit 1
grep -q '^kernels: neon portable$' "$work/out"
