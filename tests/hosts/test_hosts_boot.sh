#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# How ranks of several nodes find each other (docs/bootstrap.md): with each launcher's variables, over chosen
# interfaces, and with secrets in files. tests/faults/faults has another secret, and unauthenticated peers.
# shellcheck disable=SC2016
# shellcheck source=tests/hosts/hosts_prelude.sh
. "$(dirname "$0")/hosts_prelude.sh"
need_programs "$world"
need_hosts
"$hosts" 1x1 -- "$world" bootstrap >"$work/out" 2>&1
! grep -q 'built without libsodium' "$work/out" || skip "built without libsodium"

# on COMMAND...: runs ranks on hosts that stay up, 2 hosts with 3 ranks each.
on() { "$hosts" run --timeout 40 "$name" -- "$@"; }
met="6 ranks have met"
name=$("$hosts" up --owner $$ 2x3)

expect "torchrun's variables" 0 "$met" on "$world" bootstrap
expect "torchrun's own store has the port" 0 "$met" on env TORCHELASTIC_USE_AGENT_STORE=True "$world" bootstrap
expect "Slurm's variables" 0 "$met" on sh -c \
  'export SLURM_PROCID=$RANK SLURM_NTASKS=$WORLD_SIZE; unset RANK WORLD_SIZE; exec "$0" bootstrap' "$world"
expect "Open MPI's variables" 0 "$met" on sh -c \
  'export OMPI_COMM_WORLD_RANK=$RANK OMPI_COMM_WORLD_SIZE=$WORLD_SIZE; unset RANK WORLD_SIZE; exec "$0" bootstrap' "$world"
expect "a name of rank 0's node" 0 "$met" on env MASTER_ADDR=host0 "$world" bootstrap
expect "IPv6" 0 "$met" on env MASTER_ADDR=fd77::1 "$world" bootstrap

# Interfaces.
for interface in eth0 10.77.0.0/16; do
  expect "BANYAN_INTERFACE=$interface" 0 "$met" on env BANYAN_INTERFACE=$interface "$world" bootstrap
done
expect "BANYAN_INTERFACE, IPv6" 0 "$met" on env MASTER_ADDR=fd77::1 BANYAN_INTERFACE=fd77::/64 "$world" bootstrap
expect "an interface that is not there" 1 "eth0 10.77.0." on env BANYAN_INTERFACE=eth1 "$world" bootstrap
# Rank 0's name may resolve to 127.0.1.1 on its own node, and to its address on others.
expect "a name that is loopback at home" 0 "$met" on sh -c \
  'export BANYAN_INTERFACE=eth0; [ "$GROUP_RANK" != 0 ] || MASTER_ADDR=127.0.1.1; exec "$0" bootstrap' "$world"

# Names that DNS resolves only once rank 0 runs, and a name of a moved pod, which resolved to another node before.
cat >"$work/pod" <<'END'
export MASTER_ADDR=$1
[ "$LOCAL_RANK" != 0 ] || { sleep 1 && grep -v "$1" /etc/hosts >"$2.$GROUP_RANK" && echo "10.77.0.1 $1" >>"$2.$GROUP_RANK" &&
  cat "$2.$GROUP_RANK" >/etc/hosts; } &
exec "$3" bootstrap
END
expect "a name that comes late" 0 "$met" on sh "$work/pod" late "$work/hosts" "$world"
for host in 0 1; do "$hosts" exec "$name" $host sh -c 'echo "10.77.0.99 moved" >>/etc/hosts'; done
expect "a name that moves" 0 "$met" on sh "$work/pod" moved "$work/hosts" "$world"

# One node needs neither a name nor a secret, as under torchrun --standalone.
expect "one node" 0 "3 ranks have met" "$hosts" exec "$name" 1 env -u BANYAN_SECRET MASTER_ADDR=no.such.host \
  MASTER_PORT=29500 WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 sh -c \
  '(RANK=1 "$0" bootstrap) & (RANK=2 "$0" bootstrap) & RANK=0 "$0" bootstrap && wait' "$world"

# Secrets.
(umask 077 && echo "a secret" >"$work/secret")
expect "a secret of a file" 0 "$met" on env -u BANYAN_SECRET BANYAN_SECRET_FILE="$work/secret" "$world" bootstrap
expect "no secret" 1 "set BANYAN_SECRET" on env -u BANYAN_SECRET "$world" bootstrap
chmod 644 "$work/secret"
expect "a secret that others can read" 1 "chmod 600" on env -u BANYAN_SECRET BANYAN_SECRET_FILE="$work/secret" \
  "$world" bootstrap
expect "two of a rank" 1 "rank 4 has already joined" on sh -c '[ "$RANK" != 5 ] || RANK=4; exec "$0" bootstrap 3' "$world"
expect "too few ranks" 1 "rank 6 of 7 did not connect" on env WORLD_SIZE=7 "$world" bootstrap 3

# Ranks start by plain ssh, with the secret on standard input.
sshd=$(PATH=$PATH:/usr/sbin command -v sshd)
if [ -n "$sshd" ] && command -v ssh-keygen >/dev/null; then
  ssh-keygen -q -t ed25519 -N '' -f "$work/key"
  cp "$work/key.pub" "$work/authorized"
  mkdir -p /run/sshd
  for host in 0 1; do
    "$hosts" exec "$name" $host "$sshd" -f /dev/null -h "$work/key" -o PidFile="$work/sshd.$host" -o UsePAM=no \
      -o StrictModes=no -o AuthorizedKeysFile="$work/authorized" -o PermitRootLogin=prohibit-password
  done
  cat >"$work/by_ssh" <<'END'
secret=$(head -c 32 /dev/urandom | base64)
rank=0
for host in host0 host0 host1 host1; do
  ssh -i "$1/key" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "$host" \
    "read -r BANYAN_SECRET && export BANYAN_SECRET &&
      RANK=$rank WORLD_SIZE=4 MASTER_ADDR=host0 MASTER_PORT=29500 exec $2 bootstrap" <<<"$secret" &
  rank=$((rank + 1))
done
wait
END
  expect "ssh" 0 "4 ranks have met" "$hosts" exec "$name" 0 bash "$work/by_ssh" "$work" "$world"
fi

"$hosts" down "$name"
name=
expect "a network that loses packets" 0 "4 ranks have met" "$hosts" --loss 5% 2x2 -- "$world" bootstrap
if command -v mpirun >/dev/null; then
  expect "mpirun without MPI in the program" 0 "4 ranks have met" "$hosts" --mpirun 2x2 -- "$world" bootstrap
  [ ! -x "$build/tests/boot/mpi_boot" ] || ! have_messages ||
    expect "mpirun" 0 "4 ranks: ok" "$hosts" --mpirun 3+1 -- "$build/tests/boot/mpi_boot"
fi

report
