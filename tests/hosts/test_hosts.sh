#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks on several hosts (tests/hosts/hosts): every algorithm, scatter, wire and order, host memory, against a merge in double
# precision; on hosts alike and uneven, and over a network that is slow.
# shellcheck source=tests/hosts/hosts_prelude.sh
. "$(dirname "$0")/hosts_prelude.sh"
need_programs "$world"
need_hosts
need_messages
output=$(mktemp) || exit 1
trap 'rm -f "$output"' EXIT

failures=0
# run WHAT TEXT COMMAND...: success, and a line that contains the text.
run() {
  local what=$1 text=$2 status
  shift 2
  "$@" >"$output" 2>&1
  status=$?
  if [ $status = 0 ] && grep -qF -- "$text" "$output"; then
    echo "ok: $what: $(grep -F -- "$text" "$output" | cut -c 1-160)"
  else
    failures=$((failures + 1))
    echo "FAIL: $what: status $status, must be 0, with \"$text\" in:"
    cat "$output"
  fi
}

right="combines are right"
run "a host of 2" "$right" "$hosts" 1x2 -- "$world"
for layout in 2x2 3x2 4x1 2x4 3+1; do run $layout "$right" "$hosts" --timeout 60 $layout -- "$world"; done
run "slow network" "$right" "$hosts" --delay 0.1ms --rate 1gbit 2x1 -- "$world"
[ $failures = 0 ]
