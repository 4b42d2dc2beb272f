#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Completion in bash offers the options, values, collectives and sections of the tools as they are.
set -u
top=$(cd "${top_srcdir:-$(dirname "$0")/../..}" && pwd)
build=$(cd "${top_builddir:-.}" && pwd)
[ -x "$build/banyan-info" ] || { echo "skipped: the tools have not been built" && exit 77; }
# shellcheck source=/dev/null
. "$top/packaging/completions/banyan.bash"
failed=0

# offers TEXT WORD BEFORE TOOL: what there is for WORD after BEFORE.
offers() {
  local text=$1 word=$2 before=$3 tool=$4
  COMPREPLY=()
  _banyan "$build/$tool" "$word" "$before"
  [ "${COMPREPLY[*]}" = "$text" ] && return
  echo "FAIL: $tool $before $word: ${COMPREPLY[*]} and not $text"
  failed=$((failed + 1))
}

offers "f32 f16 bf16" "" --wire banyan-perf
offers "bf16" b --wire banyan-decode
offers "heads" h --scatter banyan-plan
offers "--help" --he banyan-topo banyan-topo
offers "--scatter" --sc combine banyan-perf
offers "allgather" a banyan-perf banyan-perf
offers "options" o banyan-info banyan-info
for tool in banyan-decode banyan-perf banyan-plan banyan-topo banyan-info; do
  complete -p $tool >/dev/null || failed=$((failed + 1))
done
echo "test_completion: $failed failed"
[ $failed = 0 ]
