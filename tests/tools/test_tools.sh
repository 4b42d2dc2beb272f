#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the tools as users do: see tools_checks.py. BANYAN_DECODE and BANYAN_PERF name the programs; the defaults are
# those of the build.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=${top_builddir:-.}
BANYAN_DECODE=${BANYAN_DECODE:-$build/banyan-decode}
BANYAN_PERF=${BANYAN_PERF:-$build/banyan-perf}
export BANYAN_DECODE BANYAN_PERF
for program in "$BANYAN_DECODE" "$BANYAN_PERF"; do
  if [ ! -x "$program" ]; then
    echo "skipped: $program has not been built"
    exit 77
  fi
done
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 7))' 2>/dev/null; then
  echo "skipped: no python3 of 3.7 or newer"
  exit 77
fi
# Variables of an outer launcher must not reach the programs.
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT BANYAN_ALGORITHM
export PYTHONDONTWRITEBYTECODE=1
exec python3 "$here/tools_checks.py" "$@"
