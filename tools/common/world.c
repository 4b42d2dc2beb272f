/* SPDX-License-Identifier: Apache-2.0
 * The ranks of a tool: launched here, by mpirun or by an environment; each has a communicator. */
#include "tools/common/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/launch.h"

enum { AGREE_TEXT_BYTES = 600 };

static const int64_t progress_ns = 3000000000;

/* If this process must start the ranks, starts them, waits for them, sets *exit_status and returns true. */
static bool launch(const tool_world_options *options, char **argv, int *exit_status) {
  if (options->ranks == 0 || bny_launch_under_mpi() || bny_launch_env_present()) return false;
  int cores = bny_launch_cores();
  bool own = options->own_cores && options->ranks <= cores;
  if (options->own_cores && !own) {
    fprintf(stderr, "%s: %d ranks share %d core%s, so that times are those of waiting for one another\n",
            options->program, options->ranks, cores, cores == 1 ? "" : "s");
  }
  bny_launch_binding binding = options->pin || own ? BNY_LAUNCH_CPU
                               : options->on_nodes ? BNY_LAUNCH_NODE
                                                   : BNY_LAUNCH_FREE;
  *exit_status = bny_launch_local(options->ranks, argv, binding);
  return true;
}

/* Returns the local rank on this node if the launcher sets it, otherwise the rank. */
static int32_t local_rank(int32_t rank) {
  static const char *const variables[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "LOCAL_RANK"};
  for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
    const char *text = getenv(variables[i]);
    int64_t value;
    if (text != NULL && tool_parse_int(text, 0, INT32_MAX, &value)) return (int32_t)value;
  }
  return rank;
}

static bool join_mpi(const banyan_comm_config *config, tool_world *world, tool_error *error) {
  const tool_mpi *mpi = tool_mpi_load(error);
  if (mpi == NULL) return false;
  if (!mpi->start()) return tool_error_set(error, "MPI_Init failed");
  world->mpi = mpi;
  world->how = "under mpirun";
  banyan_status status = mpi->join(config, &world->comm);
  return status == BANYAN_OK || tool_error_banyan(error, status, "cannot create a communicator from MPI");
}

static bool join_env(const banyan_comm_config *config, tool_world *world, tool_error *error) {
  banyan_env *env;
  banyan_bootstrap bootstrap = {.size = sizeof bootstrap};
  world->how = bny_launch_is_rank() ? "local processes" : "from RANK and WORLD_SIZE";
  banyan_status status = banyan_env_create(config->timeout_ns, &env, &bootstrap);
  if (status != BANYAN_OK) return tool_error_banyan(error, status, "cannot join the other ranks");
  status = banyan_comm_create(&bootstrap, config, &world->comm);
  bool ok = status == BANYAN_OK || tool_error_banyan(error, status, "cannot create a communicator");
  banyan_env_destroy(env);
  return ok;
}

static int gather_alone(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  (void)context;
  (void)timeout_ns;
  memmove(all, mine, bytes);
  return 0;
}

banyan_status tool_world_alone(const banyan_comm_config *config, banyan_comm **comm) {
  banyan_bootstrap bootstrap = {.size = sizeof bootstrap, .nranks = 1, .allgather = gather_alone};
  return banyan_comm_create(&bootstrap, config, comm);
}

static bool join_nobody(const banyan_comm_config *config, tool_world *world, tool_error *error) {
  world->how = "one process";
  banyan_status status = tool_world_alone(config, &world->comm);
  return status == BANYAN_OK || tool_error_banyan(error, status, "cannot create a communicator");
}

/* Joins the other ranks. Blocks until all have joined. */
static bool join(const tool_world_options *options, tool_world *world, tool_error *error) {
  *world = (tool_world){.program = options->program, .nranks = 1};
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = options->timeout_ns};
  bool ok = bny_launch_under_mpi()     ? join_mpi(&config, world, error)
            : bny_launch_env_present() ? join_env(&config, world, error)
                                       : join_nobody(&config, world, error);
  if (!ok) return false;
  world->rank = banyan_comm_rank(world->comm);
  world->nranks = banyan_comm_nranks(world->comm);
  if (options->ranks != 0 && options->ranks != world->nranks) {
    tool_error_set(error, "--ranks %d, but the launcher started %d", options->ranks, world->nranks);
    error->everywhere = true;
    error->status = TOOL_EXIT_USAGE;
    return false;
  }
  if (options->pin && !bny_launch_is_rank()) { /* bny_launch_local() has already pinned its ranks */
    bny_launch_pin(local_rank(world->rank));
  }
  return true;
}

/* Leaves the communicator. If `failed` is a failure, other ranks may still run, and this rank aborts them. */
static void leave(tool_world *world, tool_exit failed) {
  if (failed != TOOL_EXIT_OK && world->comm != NULL) banyan_comm_abort(world->comm, "this rank gave up");
  banyan_comm_destroy(world->comm);
  world->comm = NULL;
  if (world->mpi == NULL) return;
  if (failed != TOOL_EXIT_OK) {
    fflush(stdout);
    fflush(stderr);
    world->mpi->give_up((int)failed);
  }
  world->mpi->stop();
}

/* Prints "program: rank 2: text" on stderr. */
static void complain(const tool_world *world, const tool_error *error) {
  if (error->everywhere && world->rank != 0) return;
  const char *rank = bny_launch_rank();
  if (rank == NULL || error->everywhere)
    fprintf(stderr, "%s: %s\n", world->program, error->text);
  else
    fprintf(stderr, "%s: rank %.10s: %s\n", world->program, rank, error->text);
}

int tool_world_run(const tool_world_options *options, char **argv, tool_world_work *work, void *arguments) {
  int exit_status;
  tool_world world;
  tool_error error = {.text = ""};
  bool good = false;
  if (launch(options, argv, &exit_status)) return exit_status;
  bool ok = join(options, &world, &error) && work(arguments, &world, &good, &error);
  if (!ok) complain(&world, &error);
  leave(&world, ok || error.everywhere ? TOOL_EXIT_OK : error.status);
  return !ok ? (int)error.status : good ? TOOL_EXIT_OK : TOOL_EXIT_FAILED;
}

bool tool_world_gather(const tool_world *world, const void *mine, size_t bytes, void *all, tool_error *error) {
  size_t mark = tool_mark(), *counts = tool_new((size_t)world->nranks, sizeof *counts);
  for (int32_t r = 0; r < world->nranks; r++) counts[r] = bytes;
  banyan_status status = banyan_allgather(world->comm, mine, all, counts);
  tool_release(mark);
  return status == BANYAN_OK || tool_error_banyan(error, status, "exchange of results");
}

bool tool_world_max(const tool_world *world, double *values, int count, tool_error *error) {
  size_t bytes = (size_t)count * sizeof *values, mark = tool_mark();
  double *all = tool_new((size_t)world->nranks, bytes);
  bool ok = tool_world_gather(world, values, bytes, all, error);
  for (int32_t r = 0; ok && r < world->nranks; r++) {
    for (int i = 0; i < count; i++) {
      double value = all[(size_t)r * (size_t)count + (size_t)i];
      value = isnan(value) ? INFINITY : value;
      values[i] = r == 0 || value > values[i] ? value : values[i];
    }
  }
  tool_release(mark);
  return ok;
}

typedef struct agreement {
  int32_t ok, status;
  char text[AGREE_TEXT_BYTES];
} agreement;

bool tool_world_agree(const tool_world *world, bool ok, tool_error *error) {
  agreement mine = {.ok = ok, .status = (int32_t)error->status};
  size_t mark = tool_mark();
  agreement *all = tool_new((size_t)world->nranks, sizeof *all);
  if (!ok) snprintf(mine.text, sizeof mine.text, "%s", error->text);
  tool_error exchange = {.text = ""};
  bool gathered = tool_world_gather(world, &mine, sizeof mine, all, &exchange);
  if (!gathered && ok) {
    *error = exchange; /* otherwise this rank has the more precise error */
  }
  for (int32_t r = 0; gathered && r < world->nranks; r++) {
    if (!all[r].ok) {
      all[r].text[AGREE_TEXT_BYTES - 1] = '\0';
      if (r == 0)
        tool_error_set(error, "%s", all[r].text);
      else
        tool_error_set(error, "%s (rank %d)", all[r].text, r);
      error->everywhere = true;
      error->status = (tool_exit)all[r].status;
      gathered = false;
      break;
    }
  }
  tool_release(mark);
  return gathered;
}

void tool_world_progress(const tool_world *world, tool_progress *progress, const char *what, int64_t done,
                         int64_t all) {
  int64_t now = tool_now_ns();
  if (progress->start_ns == 0) progress->start_ns = progress->printed_ns = now;
  if (world->rank == 0 && now - progress->printed_ns > progress_ns) {
    fprintf(stderr, "%s: %s: %lld %% after %lld s\n", world->program, what, (long long)(100 * done / all),
            (long long)((now - progress->start_ns) / 1000000000));
    progress->printed_ns = now;
  }
}
