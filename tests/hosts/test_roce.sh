#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks of two nodes over verbs (tests/hosts/roce): combines by puts, by messages, and with all transports that UCX
# finds; a put to a sleeping rank; the death of a rank, and of a node. It takes a minute on an idle machine and several
# on a busy one, so "make check" does not run it. Each rank also runs this file.
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${top_builddir:-$here/../../build}" && pwd)
deadline_ms=30000

# ---- a rank ----------------------------------------------------------------------------------------------------------

counters=/sys/class/infiniband/rxe0/ports/1/hw_counters

# part NAME COMMAND...: prefixes each line of output with the part and the rank. Then it prints the status, and the
# packets and messages (not puts) that the adapter has sent.
part() {
  local name=$1 packets sends
  shift
  packets=$(cat $counters/sent_pkts) sends=$(cat $counters/rdma_sends)
  timeout -k 1 120 "$@" 2>&1 | sed -u "s/^/$name, rank $RANK: /"
  echo "$name, rank $RANK: status ${PIPESTATUS[0]}"
  echo "$name, rank $RANK: sent $(($(cat $counters/sent_pkts) - packets)) packets, $(($(cat $counters/rdma_sends) - sends)) messages"
}

# The node of rank 1 dies while combines run.
cut_power() {
  "$build/tests/faults/fault_rank" none 1 $deadline_ms 1000000 60000 2>&1 | while read -r line; do
    echo "$line"
    [[ $line != *'"stage": "met"'* ]] || (sleep 1 && echo "kill 1" >&9) &
  done
}

rank() {
  local world=$build/tests/hosts/hosts_world fault=$build/tests/faults/fault_rank
  export UCX_TLS=rc
  part puts "$world" more 60
  BANYAN_UCX_PUT=off part messages "$world" more 60
  UCX_TLS=all UCX_NET_DEVICES=all part "all transports" "$world" combines 60
  part "killed rank" "$fault" kill-inter 1 $deadline_ms 60 60000
  if [ "$RANK" = 1 ]; then cut_power; else part "killed host" "$fault" none 1 $deadline_ms 1000000 60000; fi
}

if [ "${1:-}" = rank ]; then
  rank
  exit 0
fi

# ---- the test --------------------------------------------------------------------------------------------------------

for program in "$build/tests/hosts/hosts_world" "$build/tests/faults/fault_rank" "$build/tests/hosts/roce_init"; do
  [ -x "$program" ] || { echo "skipped: $program is not built" && exit 77; }
done
output=$(mktemp) || exit 1
trap 'rm -f "$output"' EXIT
"$here/roce" --timeout 500 2x1 -- "$here/test_roce.sh" rank >"$output" 2>&1
status=$?
if [ $status = 77 ]; then
  cat "$output"
  exit 77
fi

failures=0
# expect WHAT PATTERN: checks that a line matches.
expect() {
  local line
  if line=$(grep -m 1 -E -- "$2" "$output"); then
    echo "ok: $1: $(cut -c 1-200 <<<"$line")"
  else
    failures=$((failures + 1))
    echo "FAIL: $1: no line like \"$2\""
  fi
}

# sent PART: prints packets and messages of rank 0.
sent() { sed -n "s/^$1, rank 0: sent \([0-9]*\) packets, \([0-9]*\) messages.*/\1 \2/p" "$output"; }

for part in puts messages "all transports"; do
  for r in 0 1; do expect "$part" "^$part, rank $r: status 0"; done
done
expect "by puts" '^puts, rank 0: [0-9]+ combines are right: .* over RDMA by puts,'
expect "a put wakes a rank that sleeps" '^puts, rank 0: a rank that slept woke in time'
expect "by messages" '^messages, rank 0: [0-9]+ combines are right: .* over RDMA,'
expect "by puts where there are others" '^all transports, rank 0: [0-9]+ combines are right: .* over RDMA by puts,'
# The adapter counts puts as packets, not as messages.
read -r packets sends < <(sent puts)
read -r _ sends_of_messages < <(sent messages)
if [ "${sends:-9}" -lt "${sends_of_messages:-0}" ] && [ $((2 * sends)) -lt "${packets:-0}" ]; then
  echo "ok: puts by the adapter: $packets packets, $sends messages; without puts $sends_of_messages messages"
else
  failures=$((failures + 1))
  echo "FAIL: puts by the adapter: ${packets:-no} packets, ${sends:-no} messages; without puts ${sends_of_messages:-no} messages"
fi
for part in "killed rank" "killed host"; do
  expect "$part is named" "^$part, rank 0: .*\"work\".*\"status\": \"(peer failed|timeout)\", \"culprit\": 1, .*rank 1 "
  expect "$part leaves one" "^$part, rank 0: .*\"afterwards\".*\"status\": \"ok\".*\"members\": 1"
  expect "$part leaves nothing" "^$part, rank 0: .*\"end\".*\"fds\": 0, \"threads\": 0, \"maps\": 0"
done
if grep -E '"stage": "wrong"|Assertion|ERROR' "$output" || [ $status != 0 ]; then failures=$((failures + 1)); fi
[ $failures = 0 ] || cat "$output"
[ $failures = 0 ]
