/* SPDX-License-Identifier: Apache-2.0 Starts the ranks of a tool, or finds out whether a launcher has started them. */
#ifndef BNY_TOOLS_COMMON_LAUNCH_H
#define BNY_TOOLS_COMMON_LAUNCH_H

#include <stdbool.h>

/* Where a rank may run: on the CPUs of its caller; on one CPU, the r-th (modulo their number) of the caller's; or on
 * the CPUs of one NUMA node. Consecutive ranks share a node, and nodes have equal numbers of ranks, within one. */
typedef enum bny_launch_binding { BNY_LAUNCH_FREE, BNY_LAUNCH_CPU, BNY_LAUNCH_NODE } bny_launch_binding;

/* Starts nranks copies of the running program with these arguments on this node, as ranks that banyan_env_create()
 * finds, and waits for them. BANYAN_LAUNCHED is 1 in them. The ranks end when the caller ends, in whatever way, and on
 * SIGINT, SIGTERM and SIGHUP. When a rank fails the others have 5 s to find out and end by themselves. Returns the exit
 * status for the program: of the first rank that failed (128 + signal if a signal ended it), 0 if none did, or 127 if
 * the ranks could not be started. To be called while the program has one thread. */
int bny_launch_local(int nranks, char **argv, bny_launch_binding binding);

/* Returns true if bny_launch_local() started this process as a rank. */
bool bny_launch_is_rank(void);

/* Returns true if RANK or WORLD_SIZE is set, as torchrun, bny_launch_local() and others of their kind do. One without
 * the other is a mistake, which banyan_env_create() reports. */
bool bny_launch_env_present(void);

/* Returns true if mpirun, srun or another MPI launcher started this process. */
bool bny_launch_under_mpi(void);

int bny_launch_cores(void);

/* Keeps this process on one CPU: number `index` of those allowed, one of each core first, or the next one that no other
 * process has by this call; from the beginning again if there are fewer. */
void bny_launch_pin(int index);

/* Returns the number of NUMA nodes with CPUs that this process may use; at least 1. */
int bny_launch_nodes(void);

/* Returns this process's rank by its launcher; NULL without a launcher. */
const char *bny_launch_rank(void);

/* Returns true in exactly one of the processes that a launcher started. They need not know each other. */
bool bny_launch_speaks(void);

#endif
