#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Three hosts in a ring of cables: each pair has a subnet of its own, and no network is common to all. Each host has an
# address on its loopback interface, to which routes over the cables lead.
# shellcheck source=tests/hosts/hosts_prelude.sh
. "$(dirname "$0")/hosts_prelude.sh"
need_programs "$world"
need_hosts
"$hosts" 1x1 -- "$world" bootstrap >"$work/out" 2>&1
! grep -q 'built without libsodium' "$work/out" || skip "built without libsodium"
name=$("$hosts" up --owner $$ 3x1)
on() { "$hosts" run --timeout 40 "$name" -- env MASTER_ADDR=10.79.0.1 "$@"; }
space() { echo "banyan-$name-$1"; }

# cable A B: joins two hosts by the subnet 10.78.AB.0/24, and leads their addresses over it.
cable() {
  local a=$1 b=$2 net=10.78.$1$2
  ip link add "to$b" netns "$(space "$a")" type veth peer name "to$a" netns "$(space "$b")" &&
    ip -n "$(space "$a")" address add "$net.1/24" dev "to$b" && ip -n "$(space "$b")" address add "$net.2/24" dev "to$a" &&
    ip -n "$(space "$a")" link set "to$b" up && ip -n "$(space "$b")" link set "to$a" up &&
    ip -n "$(space "$a")" route add "10.79.0.$((b + 1))/32" via "$net.2" src "10.79.0.$((a + 1))" &&
    ip -n "$(space "$b")" route add "10.79.0.$((a + 1))/32" via "$net.1" src "10.79.0.$((b + 1))"
}
for host in 0 1 2; do
  "$hosts" link "$name" $host down
  ip -n "$(space $host)" address add "10.79.0.$((host + 1))/32" dev lo || skip "addresses cannot be added here"
done
cable 0 1 && cable 1 2 && cable 0 2 || skip "cables cannot be laid here"

expect "the ranks of a ring meet" 0 "3 ranks have met" on "$world" bootstrap
if have_messages; then
  # UCX takes any address of a node, so each of them needs a route. Any rank may be the first that finds no way.
  expect "UCX names the addresses of both" 1 "cannot be reached from rank" on "$world"
  outcome "the addresses" "$(grep -q 'its node has lo 127.0.0.1, lo 10.79.0.[123], to[012] 10.78.*add routes' "$work/out" && echo yes)" ""
  for host in 0 1 2; do "$hosts" exec "$name" $host sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'; done
  ip -n "$(space 0)" route add 10.78.12.0/24 via 10.78.1.2
  ip -n "$(space 1)" route add 10.78.2.0/24 via 10.78.1.1
  ip -n "$(space 2)" route add 10.78.1.0/24 via 10.78.2.1
  expect "the ranks of a ring combine" 0 "" on "$world"
  expect "BANYAN_INTERFACE is the routed address" 0 "" on env BANYAN_INTERFACE=10.79.0.0/24 "$world"
fi

# Without its cable to host 0, host 2 has no network in common with it. Both ranks say so and name their addresses.
ip -n "$(space 0)" link delete to2
on "$world" bootstrap 3 >"$work/out" 2>&1
outcome "rank 0 names its networks" "$(grep -q 'did not connect.*nodes with a network in common.*10.78.1.1' "$work/out" && echo yes)" ""
outcome "rank 2 names both" "$(grep -q '10.79.0.1.*no network in common with it, but .*10.78.12.2' "$work/out" && echo yes)" ""
report
