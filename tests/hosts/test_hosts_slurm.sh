#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks of two nodes (tests/hosts/hosts) as steps of a Slurm job: the recipes of docs/bootstrap.md, with a private
# Slurm.
# shellcheck source=tests/hosts/hosts_prelude.sh
. "$(dirname "$0")/hosts_prelude.sh"
need_programs "$world"
for command in munged slurmctld slurmd sbatch srun; do
  command -v $command >/dev/null || skip "no $command"
done
need_hosts

# A folder on the file system that all nodes share, as a home directory would be.
chmod 755 "$work"
name=$("$hosts" up --owner $$ 2x3) || exit 1

# daemon HOST COMMAND...: runs a daemon that ends with this script or with the host.
daemon() {
  local host=$1
  shift
  "$hosts" exec "$name" "$host" "$@" >"$work/$1.$host.log" 2>&1 </dev/null &
  disown
}

# wait_for COMMAND...: repeats it until it succeeds, or for 30 s.
wait_for() {
  local end=$((SECONDS + 30))
  until "$@"; do
    [ $SECONDS -lt $end ] || return
    sleep 0.1
  done
}

(umask 077 && head -c 1024 /dev/urandom >"$work/munge.key")
daemon 0 munged --foreground --force --key-file "$work/munge.key" --socket "$work/munge.socket" \
  --pid-file "$work/munged.pid" --log-file "$work/munged.log" --seed-file "$work/munge.seed"
wait_for test -S "$work/munge.socket"
mkdir "$work/state" "$work/spool.host0" "$work/spool.host1" "$work/tmp.host0" "$work/tmp.host1"
cat >"$work/slurm.conf" <<END
ClusterName=test
SlurmctldHost=host0(10.77.0.1)
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool.%n
TmpFS=$work/tmp.%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=host0 NodeAddr=10.77.0.1 CPUs=3
NodeName=host1 NodeAddr=10.77.0.2 CPUs=3
PartitionName=all Nodes=ALL Default=YES
END
printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint=%s\n' "$work" >"$work/cgroup.conf"
export SLURM_CONF=$work/slurm.conf
daemon 0 slurmctld -D
daemon 0 slurmd -D -N host0
daemon 1 slurmd -D -N host1
is_ready() { "$hosts" exec "$name" 0 sinfo -h -o '%T %D' 2>/dev/null | grep -q '^idle 2'; }
wait_for is_ready

# The commands are those of the page, word for word except for paths.
(umask 077 && head -c 32 /dev/urandom | base64 >"$work/secret")
mpi=true
[ -x "$build/tests/boot/mpi_boot" ] && have_messages && mpi=$build/tests/boot/mpi_boot
cat >"$work/job" <<END
#!/bin/bash
#SBATCH --nodes 2 --ntasks-per-node 3
export MASTER_ADDR=\$(scontrol show hostnames "\$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=\$((20000 + SLURM_JOB_ID % 10000))
export BANYAN_SECRET_FILE=$work/secret
srun $world bootstrap && echo "srun: ok"
srun --mpi=pmi2 $world bootstrap && echo "srun --mpi=pmi2: ok"
srun --mpi=pmix $world bootstrap && echo "srun --mpi=pmix: ok"
export OMPI_MCA_btl_tcp_if_include=eth0
export SLURM_PMIX_FENCE=ring
srun --mpi=pmix $mpi && echo "srun --mpi=pmix, MPI: ok"
END
"$hosts" exec "$name" 0 timeout 80 sbatch --wait -o "$work/output" "$work/job"
for what in "srun: ok" "srun --mpi=pmi2: ok" "srun --mpi=pmix: ok" "srun --mpi=pmix, MPI: ok"; do
  grep -qxF -- "$what" "$work/output" && echo "$what" && continue
  echo "FAIL: no \"$what\""
  failures=$((failures + 1))
done
[ $failures = 0 ] || cat "$work/output" "$work"/*.log
[ "$(grep -cxF "6 ranks have met" "$work/output")" = 3 ] && [ $failures = 0 ]
