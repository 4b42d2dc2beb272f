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
name=
trap 'rm -f "$output"; [ -z "$name" ] || "$hosts" down "$name"' EXIT

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

# A bridge such as docker0 has the same address on all hosts and leads to none of them. UCX prefers its larger packets.
name=$("$hosts" up --owner $$ 2x1)
for host in 0 1; do
  for part in "link add docker0 type veth peer name docker1" "addr add 172.17.0.1/16 dev docker0" \
    "link set docker0 up mtu 9000" "link set docker1 up mtu 9000"; do
    # shellcheck disable=SC2086
    "$hosts" exec "$name" $host ip $part || failures=$((failures + 1))
  done
done
run "an address that all hosts have" "$right" "$hosts" run --timeout 60 "$name" -- "$world"
"$hosts" down "$name"
name=
run "slow network" "$right" "$hosts" --delay 0.1ms --rate 1gbit 2x1 -- "$world"
[ $failures = 0 ]
