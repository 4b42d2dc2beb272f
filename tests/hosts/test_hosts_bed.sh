#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The test bed tests/hosts/hosts: the environment of ranks on its hosts, how runs end, and that nothing is left behind.
# shellcheck disable=SC2016
# shellcheck source=tests/hosts/hosts_prelude.sh
. "$(dirname "$0")/hosts_prelude.sh"
need_hosts
# alive PID: true if the process exists and is no zombie.
alive() { [ -n "$(sed -n '/^State:[[:space:]]*[^Z[:space:]]/p' "/proc/$1/status" 2>/dev/null)" ]; }

left() { ip netns list | grep -c '^banyan-'"$1"; }
left_shared() { find /dev/shm /run/banyan-hosts -name "*$1*" 2>/dev/null | grep -c .; }

shared() { # the environment of all ranks, sorted
  "$hosts" "$@" -- sh -c \
    'echo "$RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE host $GROUP_RANK $(hostname)"' | sort
}
expect "ranks of 2x2" 0 "=3/4 local 1/2 host 1 host1" shared 2x2
expect "ranks of 3+1" 0 "=3/4 local 0/1 host 1 host1" shared 3+1
expect "a host without ranks" 0 "=1/2 local 0/1 host 2 host2" shared 1+0+1
expect "names of other hosts" 0 "=10.77.0.3 host2" "$hosts" 3+0+1 -- sh -c 'grep host2 /etc/hosts'
without_names() { unshare --mount sh -c 'mount --bind "$0" /etc && exec "$@"' "$work/etc" "$@"; }
cp -a /etc "$work/etc" 2>/dev/null # other beds come and go in /etc/netns meanwhile
rm -f "$work/etc/hosts"
expect "names where there is no /etc/hosts" 0 "=10.77.0.2 host1" without_names "$hosts" 2x1 -- sh -c \
  'echo 10.77.0.9 late >>/etc/hosts; grep host1 /etc/hosts'
outcome "no /etc/hosts is left" "$([ -e "$work/etc/hosts" ] || echo yes)" "$(ls -l "$work/etc/hosts" 2>&1)"
expect "only its own devices" 0 "=eth0 lo " "$hosts" 1x1 -- sh -c 'ls /sys/class/net | tr "\n" " "; echo'
expect "the first failure is the status" 7 "=hosts: rank 2 on host 1 ended with status 7" \
  "$hosts" 2+2 -- sh -c '[ $RANK = 2 ] && exit 7; exit 0'
expect "time limit" 124 "=hosts: 1 of 2 did not end by themselves, and were killed" \
  "$hosts" --timeout 1 2x1 -- sh -c '[ $RANK = 0 ] || sleep 1000'
expect "bad layouts" 1 '=hosts: layout "2x": must be HOSTSxRANKS such as 2x4, or ranks of each host such as 3+1' \
  "$hosts" 2x -- true
expect "unknown options" 2 "" "$hosts" --dealy 1ms 2x2 -- true

# Two concurrent runs do not see each other.
"$hosts" 2x1 -- sh -c 'sleep 0.5; grep -c . /proc/net/arp' >"$work/first" 2>&1 &
expect "two at once" 0 "" "$hosts" 2x1 -- sleep 0.5
wait $! || { echo "FAIL: the first of two"; failures=$((failures + 1)); }

# exchange WHAT OPTION...: prints WHAT when rank 1 has sent a megabyte to rank 0 by TCP.
cat >"$work/exchange.py" <<'END'
import os, socket, sys, time
bytes_each = int(sys.argv[1])
if os.environ["RANK"] == "0":
    listening = socket.create_server((os.environ["MASTER_ADDR"], 5000))
    peer = listening.accept()[0]
    began = time.monotonic()
    while bytes_each > 0: bytes_each -= len(peer.recv(65536))
    peer.sendall(b"!")
    times = []
    for _ in range(20):
        sent = time.monotonic()
        peer.sendall(b"x")
        peer.recv(1)
        times.append(time.monotonic() - sent)
    print("round trip of at least", "1 ms" if sorted(times)[10] >= 0.001 else "nothing")
else:
    for _ in range(100):
        try: peer = socket.create_connection((os.environ["MASTER_ADDR"], 5000)); break
        except OSError: time.sleep(0.02)
    began = time.monotonic()
    peer.sendall(bytes(bytes_each))
    peer.recv(1)
    print("took at least", "0.15 s" if time.monotonic() - began >= 0.15 else "nothing")
    for _ in range(20): peer.sendall(peer.recv(1))
END
if command -v python3 >/dev/null; then
  expect "no delay" 0 "=round trip of at least nothing" "$hosts" 2x1 -- python3 "$work/exchange.py" 1000000
  "$hosts" --delay 1us 1x1 -- true >"$work/probe" 2>&1
  if [ $? != 77 ]; then
    expect "delay" 0 "=round trip of at least 1 ms" "$hosts" --delay 0.6ms 2x1 -- python3 "$work/exchange.py" 1000
    expect "rate" 0 "=took at least 0.15 s" "$hosts" --rate 100mbit 2x1 -- python3 "$work/exchange.py" 2500000
    expect "loss" 0 "" "$hosts" --loss 10% 2x1 -- python3 "$work/exchange.py" 1000
    expect "all packets lost" 124 "" "$hosts" --timeout 1 --loss 100% 2x1 -- python3 "$work/exchange.py" 1000
  fi
fi

# Hosts that stay up: only their own ranks share their memory.
name=$("$hosts" up --owner $$ 2x1)
expect "a file in shared memory" 0 "" "$hosts" exec "$name" 0 touch "/dev/shm/of-$name"
expect "another process of that host" 0 "=of-$name" "$hosts" exec "$name" 0 ls -A /dev/shm
expect "another host" 0 "=0" "$hosts" exec "$name" 1 sh -c 'ls -A /dev/shm | wc -l'
expect "hosts of the same name, elsewhere" 0 "=0" "$hosts" 1x1 -- sh -c 'ls -A /dev/shm | wc -l'

# A link goes down, and up again.
expect "run on hosts that are up" 0 "=1 host1" "$hosts" run "$name" -- sh -c 'echo $RANK $(hostname)'
expect "one host" 0 "=host1" "$hosts" exec "$name" 1 hostname
expect "link down" 0 "" "$hosts" link "$name" 1 down
expect "is down" 0 "=down" "$hosts" exec "$name" 1 cat /sys/class/net/eth0/operstate
expect "link up" 0 "" "$hosts" link "$name" 1 up
expect "clean leaves what is in use" 0 "" "$hosts" clean
expect "a process on a host" 0 "" "$hosts" exec "$name" 0 sh -c 'sleep 1000 >/dev/null 2>&1 & exit 0'
sleeper=$(ip netns pids "banyan-$name-0")
expect "down" 0 "" "$hosts" down "$name"
expect "nothing is left of it" 1 =0 left "$name"
expect "nor of what it had in memory" 1 =0 left_shared "$name"
expect "nor of the process" 1 "" alive "$sleeper"
expect "hosts that are not up" 1 "=hosts: there are no hosts named $name" "$hosts" link "$name" 1 up
name=

# However a run ends, nothing remains, at the latest after the next run.
for signal in TERM KILL; do
  setsid "$hosts" 2x1 -- sh -c 'echo $$ >>"$0"; echo $TEST_HOSTS >"$0.name"; sleep 1000' "$work/pids" >/dev/null 2>&1 &
  pid=$!
  disown
  for _ in $(seq 100); do
    [ "$(grep -c . "$work/pids" 2>/dev/null)" = 2 ] && break
    sleep 0.05
  done
  kill -$signal $pid
  for _ in $(seq 100); do
    alive $pid || break
    sleep 0.05
  done
  [ $signal = TERM ] || expect "clean" 0 "" "$hosts" clean
  expect "no hosts after SIG$signal" 1 =0 left "$(cat "$work/pids.name")"
  expect "no files in memory after SIG$signal" 1 =0 left_shared "$(cat "$work/pids.name")"
  while read -r rank; do expect "no ranks after SIG$signal" 1 "" alive "$rank"; done <"$work/pids"
  rm -f "$work/pids"
done

if command -v mpirun >/dev/null; then
  expect "mpirun" 0 "=2 of 3 host1 secret" "$hosts" --mpirun 2+1 -- sh -c \
    'echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE $(hostname) ${BANYAN_SECRET:+secret}'
fi

report
