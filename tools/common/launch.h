/* SPDX-License-Identifier: Apache-2.0
 * Starts the ranks of a tool, or detects that a launcher has started them. */
#pragma once

#include <stdbool.h>

/* Where rank r may run. FREE: on all CPUs of its caller. CPU: on one CPU, number r (modulo their count) of the caller's
 * CPUs. NODE: on the CPUs of one NUMA node, or of all if there are fewer ranks than NUMA nodes. Consecutive ranks share
 * a NUMA node, and the numbers of ranks per NUMA node differ by at most one. */
typedef enum bny_launch_binding { BNY_LAUNCH_FREE, BNY_LAUNCH_CPU, BNY_LAUNCH_NODE } bny_launch_binding;

/* Starts nranks copies of the running program with these arguments on this node, and waits for them. Their environment
 * lets banyan_env_create() find the ranks, and BANYAN_LAUNCHED is 1. The ranks end when the caller ends for any reason,
 * and on SIGINT, SIGTERM and SIGHUP. After a rank has failed, the others have 5 s to end by themselves. Returns the
 * exit status for the program: that of the first rank that failed (128 + signal if a signal ended it), 0 if none
 * failed, or 127 if the ranks could not be started. The program must have only one thread. */
int bny_launch_local(int nranks, char **argv, bny_launch_binding binding);

/* Returns true if bny_launch_local() started this process as a rank. */
bool bny_launch_is_rank(void);

/* Returns true if RANK or WORLD_SIZE is set, as torchrun and bny_launch_local() do. If only one is set,
 * banyan_env_create() reports the error. */
bool bny_launch_env_present(void);

/* Returns true if mpirun, srun or another MPI launcher started this process. */
bool bny_launch_under_mpi(void);

int bny_launch_cores(void);

/* Pins this process to one CPU. The allowed CPUs are ordered with one CPU of each core first, and `index` wraps around.
 * The process gets CPU `index` of this order, or the next one that no other process has reserved by this call. */
void bny_launch_pin(int index);

/* Returns the number of NUMA nodes with CPUs that this process may use; at least 1. */
int bny_launch_nodes(void);

/* Returns the rank that the launcher assigned to this process; NULL without a launcher. */
const char *bny_launch_rank(void);

/* Returns true in exactly one of the processes that a launcher started. They need not be connected. */
bool bny_launch_speaks(void);
