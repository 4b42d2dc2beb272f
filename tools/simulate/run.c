/* SPDX-License-Identifier: Apache-2.0
 * Loads the simulator, and runs it in a child process. */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plan/clock.h"
#include "tools/simulate/simulate.h"

#define MODULE "banyan-simulate.so"

const sim_engine *sim_engine_load(char *error, size_t bytes) {
#ifdef BNY_SIMULATE_MODULE_FOLDER
  /* A program that is not installed finds the module in the build folder. */
  char program[4096] = "";
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - sizeof "/.libs/" MODULE);
  while (length > 0 && program[length - 1] != '/') length--;
  snprintf(program + (length > 0 ? length : 0), sizeof "/.libs/" MODULE, ".libs/" MODULE);
  void *module =
      access(program, R_OK) == 0 ? dlopen(program, RTLD_NOW) : dlopen(BNY_SIMULATE_MODULE_FOLDER "/" MODULE, RTLD_NOW);
  const sim_engine *engine = module != NULL ? dlsym(module, "banyan_sim_engine") : NULL;
  if (engine == NULL)
    snprintf(error, bytes, "cannot load the simulator: %.200s; apt-get install libsimgrid3.32", dlerror());
  return engine;
#else
  snprintf(error, bytes,
           "built without SimGrid, which simulates: apt-get install libsimgrid-dev, then configure and build again");
  return NULL;
#endif
}

double sim_work_ns(const sim_job *job, const sim_stage *stage, const bny_plan *plan, const bny_step *step) {
  if (job->attention_bytes_per_ns > 0)
    return step->kind == BNY_STEP_DELIVER ? (double)step->slice.bytes / job->attention_bytes_per_ns : 0;
  double gamma = job->platform->levels->levels[0].link.gamma_ns_per_byte / job->platform->memory_scale;
  return bny_step_ns(stage->request, plan, step, gamma);
}

/* ---- in a child -------------------------------------------------------------------------------------------------- */

/* Memory that parent and child share: the job's results, the times of ranks, and behind these the links. */
typedef struct answer {
  bool ok;
  char error[256];
  double total_ns;
  int64_t messages;
  double finish_ns[];
} answer;

static _Noreturn void child(const sim_engine *engine, sim_job *job, answer *result) {
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* an endless simulation would outlive its caller */
  size_t nranks = (size_t)job->stages[0].request->nranks;
  job->events_wanted = false;
  bool ok = engine->run(job, result->error, sizeof result->error);
  result->total_ns = job->total_ns;
  result->messages = job->messages;
  memcpy(result->finish_ns, job->finish_ns, nranks * sizeof(double));
  memcpy(&result->finish_ns[nranks], job->platform->links, (size_t)job->platform->nlinks * sizeof(sim_link));
  result->ok = ok;
  _exit(0); /* the parent's buffers and handlers are not the child's */
}

bool sim_run_apart(const sim_engine *engine, sim_job *job, char *error, size_t bytes) {
  size_t nranks = (size_t)job->stages[0].request->nranks, links = (size_t)job->platform->nlinks * sizeof(sim_link);
  size_t size = sizeof(answer) + nranks * sizeof(double) + links;
  answer *result = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (result == MAP_FAILED) return snprintf(error, bytes, "mmap: %s", strerror(errno)), false;
  fflush(NULL); /* or the child might write it again */
  pid_t pid = fork();
  if (pid == 0) child(engine, job, result);
  if (pid < 0) snprintf(result->error, sizeof result->error, "fork: %s", strerror(errno));
  while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR) continue;
  bool ok = result->ok;
  memcpy(job->finish_ns, result->finish_ns, nranks * sizeof(double));
  if (ok) memcpy(job->platform->links, &result->finish_ns[nranks], links);
  job->total_ns = result->total_ns;
  job->messages = result->messages;
  const char *died = "the simulation died; it may have run out of memory";
  if (!ok) snprintf(error, bytes, "%s", result->error[0] ? result->error : died);
  munmap(result, size);
  return ok;
}
