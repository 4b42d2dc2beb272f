/* SPDX-License-Identifier: Apache-2.0
 * Runs the plans of all ranks in a network simulator. The tools and the simulator share only this header, as plain
 * data. SimGrid is in a separate module (engine.cc), which is loaded on demand. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plan/network.h"
#include "plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the platform ------------------------------------------------------------------------------------------------ */

/* One direction of a link. All messages that cross it at the same time share its speed. */
typedef struct sim_link {
  bny_hop kind;
  int32_t owner; /* the first rank that uses it */
  bool out;      /* away from the owner */
  double bytes_per_ns;
  double bytes; /* bytes carried, set by the run */
} sim_link;

enum { SIM_NAME_BYTES = 64 };

typedef struct sim_platform {
  const bny_levels *levels;
  int32_t nlinks;
  sim_link *links;                    /* those of levels->network */
  double latency_scale, memory_scale; /* scaled machine: see --scale */
  void (*route)(const struct sim_platform *platform, int32_t from, int32_t to, bny_route *route);
} sim_platform;

struct plan_ranks;
sim_platform sim_platform_make(const struct plan_ranks *ranks);

extern const char *const sim_kind_names[BNY_HOPS];
const char *sim_link_name(const sim_link *link, char text[SIM_NAME_BYTES]); /* "nic of rank 8, out" */

/* ---- a run ------------------------------------------------------------------------------------------------------- */

/* A time span of a rank: a computing step or a wait. A send has no duration. */
typedef struct sim_event {
  int32_t rank, peer; /* peer: the other rank in WAIT and SEND, else -1 */
  bny_step_kind kind;
  double begin_ns, end_ns;
  int64_t bytes;
} sim_event;

/* Plans that all ranks run one after another. */
typedef struct sim_stage {
  const bny_request *request;
  bny_plan **plans;
} sim_stage;

typedef struct sim_job {
  sim_platform *platform;
  const sim_stage *stages;
  int32_t nstages;
  /* Returns the time of a step other than SEND and WAIT on its rank. */
  double (*work_ns)(const struct sim_job *job, const sim_stage *stage, const bny_plan *plan, const bny_step *step);
  double attention_bytes_per_ns; /* Ring Attention: speed at which DELIVER reads keys and values; else 0 */
  double step_ns;                /* the executor's own time for each step */
  double turns, switch_ns;       /* ranks for each core, if more than 1; then a wait that blocks takes so much more */
  bool events_wanted;
  double *finish_ns; /* by rank; the caller's */
  double total_ns;
  int64_t messages;
  sim_event *events; /* to free() */
  int64_t nevents;
} sim_job;

/* Returns false and sets the text if a message has no way. */
bool sim_ways_exist(const sim_job *job, char *error, size_t bytes);

/* Runs once; a second run needs another process. Returns false and sets the text if it is impossible. */
typedef struct sim_engine {
  const char *name; /* "SimGrid 3.32" */
  bool (*run)(sim_job *job, char *error, size_t bytes);
} sim_engine;

/* Returns the engine of the module. If it is missing, returns NULL and sets the text to the reason. */
const sim_engine *sim_engine_load(char *error, size_t bytes);

/* Runs in a child process, so that several runs are possible. Events are not returned. */
bool sim_run_apart(const sim_engine *engine, sim_job *job, char *error, size_t bytes);

double sim_work_ns(const sim_job *job, const sim_stage *stage, const bny_plan *plan, const bny_step *step);

#ifdef __cplusplus
}
#endif
