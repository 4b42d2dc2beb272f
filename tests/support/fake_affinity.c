/* SPDX-License-Identifier: Apache-2.0
 * Preloaded into programs on a fake machine (tests/machine): CPU affinity as if the machine had FAKE_CPUS processors.
 * The variable FAKE_AFFINITY holds the set of a new process, a cpu_set_t in hexadecimal digits. */
#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local cpu_set_t own;
static _Thread_local bool is_known;

__attribute__((visibility("default"))) int sched_getaffinity(pid_t task, size_t bytes, cpu_set_t *set) {
  const char *text = getenv("FAKE_AFFINITY");
  (void)task; /* sets of other processes are unknown */
  for (size_t i = 0; !is_known && i < sizeof own && text && text[0] && text[1]; i++, text += 2)
    sscanf(text, "%2hhx", (unsigned char *)&own + i);
  is_known = true;
  memset(set, 0, bytes);
  memcpy(set, &own, bytes < sizeof own ? bytes : sizeof own);
  return 0;
}

__attribute__((visibility("default"))) int sched_getcpu(void) {
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &set)) return cpu;
  return 0;
}

/* A set of the main thread is also that of later threads and programs. Linux lets each thread inherit its creator's. */
__attribute__((visibility("default"))) int sched_setaffinity(pid_t task, size_t bytes, const cpu_set_t *set) {
  const char *cpus = getenv("FAKE_CPUS");
  cpu_set_t wanted = {0};
  char text[2 * sizeof wanted + 1];
  if (task != 0 && task != getpid() && task != gettid()) return 0;
  memcpy(&wanted, set, bytes < sizeof wanted ? bytes : sizeof wanted);
  for (int cpu = cpus ? atoi(cpus) : 0; cpu < CPU_SETSIZE; cpu++) CPU_CLR(cpu, &wanted);
  if (CPU_COUNT(&wanted) == 0) {
    errno = EINVAL;
    return -1;
  }
  own = wanted;
  is_known = true;
  for (size_t i = 0; i < sizeof own; i++) snprintf(text + 2 * i, 3, "%02x", ((unsigned char *)&own)[i]);
  return gettid() == getpid() ? setenv("FAKE_AFFINITY", text, 1) : 0;
}
