/* SPDX-License-Identifier: Apache-2.0
 * CPU quotas of control groups: `docker --cpus 2`, limits of Kubernetes and systemd. The affinity mask does not show
 * them. The kernel stops all threads of a group that has used up its quota, until the next period, usually of 100
 * ms. */
#pragma once

#include <stdint.h>

enum { BNY_QUOTAS = 6 };

typedef struct bny_quota {
  uint64_t group; /* the inode of the group with this quota, the same in all containers; 0: no quota */
  double cpus;    /* limit for all processes in the group and below */
} bny_quota;

/* Fills quotas[BNY_QUOTAS], the smallest first, from cgroup v2's cpu.max or v1's cpu.cfs_quota_us of this process's
 * group and all groups above it. `root` is "" except in tests. A file that cannot be read counts as no quota. */
void bny_quotas_find(const char *root, bny_quota *quotas);
