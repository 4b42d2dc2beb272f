#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks on several nodes (tests/hosts/hosts): every algorithm, scatter, wire and order in host memory, against a merge
# in double precision, on equal and uneven nodes and over a slow network.
# shellcheck source=tests/hosts/hosts_prelude.sh
. "$(dirname "$0")/hosts_prelude.sh"
need_programs "$world"
need_hosts
need_messages
right="combines are right"
expect "a host of 2" 0 "$right" "$hosts" 1x2 -- "$world"
for layout in 2x2 3x2 4x1 2x4 3+1; do expect $layout 0 "$right" "$hosts" --timeout 60 $layout -- "$world"; done

# A bridge such as docker0 has the same address on all nodes and connects none of them. UCX prefers its larger packets.
name=$("$hosts" up --owner $$ 2x1)
for host in 0 1; do
  for part in "link add docker0 type veth peer name docker1" "addr add 172.17.0.1/16 dev docker0" \
    "link set docker0 up mtu 9000" "link set docker1 up mtu 9000"; do
    # shellcheck disable=SC2086
    "$hosts" exec "$name" $host ip $part || outcome "docker0 on host $host" no "ip $part"
  done
done
expect "an address that all hosts have" 0 "$right" "$hosts" run --timeout 60 "$name" -- "$world"
# Hosts of a ring of cables have no common network, and an address each of the loopback interface, to which routes lead.
for host in 0 1; do
  "$hosts" exec "$name" $host sh -c \
    "ip address add 10.88.0.$((host + 1))/32 dev lo && ip route add 10.88.0.$((2 - host))/32 via 10.77.0.$((2 - host))"
done
for interface in "" 10.88.0.0/24; do
  expect "routed addresses, BANYAN_INTERFACE=$interface" 0 "$right" "$hosts" run --timeout 60 "$name" -- \
    env MASTER_ADDR=10.88.0.1 BANYAN_INTERFACE="$interface" "$world"
done

# A firewall drops packets. UCX alone would wait for minutes.
for host in 0 1; do
  for part in "link add dead0 type veth peer name dead1" "addr add 10.99.0.$((host + 1))/24 dev dead0" "link set dead0 up" \
    "link set dead1 up" "neigh add 10.99.0.$((2 - host)) lladdr 02:00:00:00:00:99 dev dead0"; do
    # shellcheck disable=SC2086
    "$hosts" exec "$name" $host ip $part || outcome "dead0 on host $host" no "ip $part"
  done
done
expect "a firewall" 1 "it has not connected; a firewall may drop packets" \
  env UCX_NET_DEVICES=dead0 BANYAN_TIMEOUT_MS=1000 "$hosts" run --timeout 20 "$name" -- "$world"
"$hosts" down "$name"
name=
expect "slow network" 0 "$right" "$hosts" --delay 0.1ms --rate 1gbit 2x1 -- "$world"
report
