#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Bytes between nodes are counted in three ways: by the transport of each rank, by the network device of each node, and
# in the plans (banyan-plan --cost). A plan of two levels sends 1/w of the bytes of a flat one, for nodes of w ranks.
# shellcheck disable=SC2016
# shellcheck source=tests/hosts/hosts_prelude.sh
. "$(dirname "$0")/hosts_prelude.sh"
need_programs "$world" "$build/banyan-perf" "$build/banyan-plan"
need_hosts
need_messages
# between WHAT GOT LEAST MOST: checks that GOT is in the range.
between() {
  local passed=no
  [ "$2" -lt "$3" ] || [ "$2" -gt "$4" ] || passed=yes
  outcome "$1" $passed "$2, must be $3 to $4"
}

# planned HOST_RANKS BYTES ALGORITHM: prints the largest number of bytes that one of 8 ranks sends between nodes.
planned() {
  "$build/banyan-plan" --cost --ranks 8 --levels "$1" --bytes "$2" --heads $(($2 / 520)) --algorithm "$3" --json |
    awk -F '[:,]' '/"methods"/ { found = 1 } found && /"all"/ { print $2 + 0; exit }'
}

iterations=200 warmup=20
# measure LAYOUT BYTES ALGORITHM: sets all and most (payload of one call, sent by all ranks and by the busiest one), and
# device (bytes per call sent by the device of host 0).
measure() {
  "$hosts" --timeout 60 "$1" -- sh -c 'sent() { cat /sys/class/net/eth0/statistics/tx_bytes; }
    before=$(sent); "$@" || exit; [ "$RANK" != 0 ] || echo "device $(($(sent) - before))"' sh \
    "$build/banyan-perf" combine --sizes "$2" --algorithm "$3" --in-a-row --iterations $iterations --warmup $warmup \
    >"$work/out" 2>&1 || { cat "$work/out"; exit 1; }
  read -r all most < <(sed -n 's/^# Between nodes, .*: \([0-9]*\) sent by all ranks, \([0-9]*\) at most.*/\1 \2/p' "$work/out")
  device=$(($(sed -n 's/^device //p' "$work/out") / (iterations + warmup)))
}

# Closed formulae for 8 ranks, with S bytes per partial and g nodes of w ranks. Recursive doubling sends S in log2 g of
# its rounds. Two levels send S / w, and leaders send S each. Headers and acknowledgements may add a fifth.
for layout in 2x4 4x2; do
  g=${layout%x*} w=${layout#*x} rounds=$((g / 2)) size=16640
  for algorithm in levels_whole levels_leaders recursive_doubling; do
    measure $layout $size $algorithm
    formula=$((rounds * size)) senders=$w
    [ $algorithm != levels_whole ] || formula=$((rounds * size / w))
    [ $algorithm != levels_leaders ] || senders=1
    plan=$(planned "$w" $size $algorithm)
    between "$layout $algorithm, of one rank" "$most" $formula $formula
    # The plan uses other costs, and may choose a form for ranks of different nodes that sends more.
    between "$layout $algorithm, of one rank as planned" "$most" $formula "$plan"
    between "$layout $algorithm, of all ranks" "$all" $((g * senders * formula)) $((g * senders * formula))
    between "$layout $algorithm, through the device of host 0" "$device" $((senders * formula)) $((senders * formula * 6 / 5))
  done
done
# A plan may use several pieces, depending on its costs, which differ here. The number of bytes must not grow.
measure 2x4 133120 levels_whole
between "2x4 levels_whole, 133120 bytes, of one rank as planned" "$most" "$(planned 4 133120 levels_whole)" $((133120 / 4))
# An uneven world: three ranks of host 0 merge first, and the fourth sends S in three pieces.
measure 3+1 16640 levels_whole
between "3+1 levels_whole, of all ranks" "$all" $((2 * 16640)) $((2 * 16640 + 3 * 64 * 2))
report
