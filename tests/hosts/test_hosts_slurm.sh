#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks of two nodes (tests/hosts/hosts) as steps of a Slurm job: the recipes of docs/bootstrap.md, with a private
# Slurm.
# shellcheck source=tests/hosts/hosts_prelude.sh
. "$(dirname "$0")/hosts_prelude.sh"
need_programs "$world"
need_hosts

# A folder on the file system that all nodes share, as a home directory would be.
chmod 755 "$work"
name=$("$hosts" up --owner $$ 2x3) || exit 1

"$room/slurm" "$name" 3 "$work/slurm" || exit
export SLURM_CONF=$work/slurm/slurm.conf

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
[ $failures = 0 ] || cat "$work/output" "$work"/slurm/*.log
[ "$(grep -cxF "6 ranks have met" "$work/output")" = 3 ] && [ $failures = 0 ]
