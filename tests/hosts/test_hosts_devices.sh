#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The network devices that ranks use (BANYAN_NET_DEVICES), on two nodes connected by eth0 and by eth1. The counters of
# both devices show which one the messages took.
# shellcheck disable=SC2016
# shellcheck source=tests/hosts/hosts_prelude.sh
. "$(dirname "$0")/hosts_prelude.sh"
need_programs "$world" "$build/banyan-perf" "$build/banyan-info"
need_hosts
need_messages
unset UCX_NET_DEVICES UCX_TLS
name=$("$hosts" up --owner $$ 2x1) || exit 1
# A second link, with its own network.
ip -n "banyan-$name-0" link add eth1 type veth peer name eth1 netns "banyan-$name-1" || exit 1
for host in 0 1; do
  ip -n "banyan-$name-$host" link set eth1 up && ip -n "banyan-$name-$host" addr add 10.78.0.$((host + 1))/24 dev eth1 ||
    exit 1
done

check() { # WHAT TEST...
  local what=$1 passed=no
  shift
  ! "$@" || passed=yes
  outcome "$what" $passed "the output was:"
}

# Runs 50 combines of 64 KiB, which is 3.2 MB of payload each way. Sets sent0 and sent1, the bytes sent by host 0's
# devices.
payload=$((50 * 65536))
measure() { # VARIABLE...
  "$hosts" run --timeout 60 "$name" -- env "$@" sh -c 'sent() { cat /sys/class/net/$1/statistics/tx_bytes; }
    eth0=$(sent eth0) eth1=$(sent eth1); "$@" || exit
    [ "$RANK" != 0 ] || echo "sent $(($(sent eth0) - eth0)) $(($(sent eth1) - eth1))"' sh \
    "$build/banyan-perf" combine --sizes 65536 --algorithm oneshot --iterations 45 --warmup 5 >"$work/out" 2>&1
  status=$?
  read -r sent0 sent1 < <(sed -n 's/^sent //p' "$work/out")
}

# goes_by DEVICE VARIABLE...: checks that the payload uses this device, and less than a tenth the other.
goes_by() {
  local device=$1 most least
  shift
  measure BANYAN_LOG=info "$@"
  check "$*: ends well" test "$status" = 0
  if [ "$device" = eth0 ]; then most=${sent0:-0} least=${sent1:-0}; else most=${sent1:-0} least=${sent0:-0}; fi
  check "$*: $most bytes by $device, at least $payload" test "$most" -ge $payload
  check "$*: $least bytes by the other, at most $((payload / 10))" test "$least" -le $((payload / 10))
}

# Container bridges that are equal on both nodes connect to no other node.
for host in 0 1; do
  for bridge in aa0 zz0; do
    ip -n "banyan-$name-$host" link add $bridge type bridge &&
      ip -n "banyan-$name-$host" link add v$bridge type veth peer name w$bridge &&
      ip -n "banyan-$name-$host" link set v$bridge master $bridge || exit 1
    for link in v$bridge w$bridge $bridge; do ip -n "banyan-$name-$host" link set $link up || exit 1; done
  done
  ip -n "banyan-$name-$host" addr add 172.20.0.$((host + 1))/24 dev aa0 &&
    ip -n "banyan-$name-$host" addr add 172.30.0.$((host + 1))/24 dev zz0 || exit 1
done
goes_by eth0 BANYAN_SLICES=1
check "the description names the interface of rank 0" \
  grep -q "network devices eth0 (by which rank 0 was reached)" "$work/out"
for host in 0 1; do
  for link in vaa0 vzz0 aa0 zz0; do ip -n "banyan-$name-$host" link del $link || exit 1; done
done
goes_by eth0 BANYAN_NET_DEVICES=eth0
check "the description names the device" grep -q "network devices eth0 (BANYAN_NET_DEVICES)" "$work/out"
goes_by eth1 BANYAN_NET_DEVICES=eth1
goes_by eth1 BANYAN_NET_DEVICES=^eth0
goes_by eth0 BANYAN_NET_DEVICES=^eth1,lo
goes_by eth1 BANYAN_NET_DEVICES=eth1 BANYAN_INTERFACE=eth0 # the bootstrap uses the other device
goes_by eth0 BANYAN_INTERFACE=eth0
check "the description names the reason" grep -q "network devices eth0 (BANYAN_INTERFACE)" "$work/out"
goes_by eth1 UCX_NET_DEVICES=eth1 BANYAN_NET_DEVICES=eth0
check "a warning says what has no effect" \
  grep -q "BANYAN_NET_DEVICES=eth0 has no effect, because UCX_NET_DEVICES=eth1 is set" "$work/out"

measure UCX_MAX_EAGER_RAILS=2
check "a warning says that rails change the order" grep -q "UCX_MAX_EAGER_RAILS=2 lets reports of ranks overtake" "$work/out"

measure BANYAN_NET_DEVICES=eth0,eth7
check "an unknown device is rejected" test "$status" != 0
check "with the list of those there are" grep -q 'no network device "eth7"; this node has eth0, eth1, lo' "$work/out"

"$hosts" exec "$name" 0 env BANYAN_NET_DEVICES=eth1 "$build/banyan-info" transports >"$work/out" 2>&1
check "banyan-info says what ranks would use" grep -q "eth1 (BANYAN_NET_DEVICES)" "$work/out"

report
