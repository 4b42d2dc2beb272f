/* SPDX-License-Identifier: Apache-2.0
 * banyan-plan --simulate: simulates the plans of all ranks and of alternative methods with SimGrid. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tools/common/json.h"
#include "tools/plan/view.h"
#include "tools/simulate/rivals.h"

/* A simulation with more messages takes minutes and gigabytes. */
enum { MESSAGES_MAX = 200000 };
/* --regret skips algorithms whose predicted time exceeds the least simulated time by this factor. */
static const double hopeless = 3;

typedef struct simulator {
  const plan_view *view;
  const sim_engine *engine;
  sim_platform platform;
  double *finish_ns;
} simulator;

/* "nic=0.5": links of that kind, or memory, become so many times as fast, and latency so many times as long. */
static bool scale_apply(const char *text, sim_platform *platform, tool_error *error) {
  char name[16] = "", rest = 0;
  double factor = 0;
  int kind = 0;
  bool good = sscanf(text, "%15[a-z]=%lf%c", name, &factor, &rest) == 2 && factor >= 1e-3 && factor <= 1e3;
  while (kind < BNY_HOPS && strcmp(name, sim_kind_names[kind]) != 0) kind++;
  for (int32_t l = 0; l < platform->nlinks && good; l++)
    if ((int)platform->links[l].kind == kind) platform->links[l].bytes_per_ns *= factor;
  if (strcmp(name, "latency") == 0)
    platform->latency_scale = factor;
  else if (strcmp(name, "memory") == 0)
    platform->memory_scale = factor;
  else
    good = good && kind < BNY_HOPS;
  return good || tool_error_usage(error, tool_error_set(error,
                                                        "--scale %.40s: it takes a kind of link, latency or memory, "
                                                        "and a factor of 0.001 to 1000, such as nic=0.5",
                                                        text));
}

static bool simulator_make(const plan_view *view, simulator *made, tool_error *error) {
  char why[256];
  *made = (simulator){.view = view};
  if ((made->engine = sim_engine_load(why, sizeof why)) == NULL) return tool_error_set(error, "%s", why);
  made->finish_ns = tool_new((size_t)view->ranks->nranks, sizeof *made->finish_ns);
  made->platform = sim_platform_make(view->ranks);
  return view->scale == NULL || scale_apply(view->scale, &made->platform, error);
}

static sim_job job_of(simulator *s, const sim_case *what) {
  const bny_link_cost *link = &s->platform.levels->levels[0].link;
  for (int32_t l = 0; l < s->platform.nlinks; l++) s->platform.links[l].bytes = 0;
  return (sim_job){.platform = &s->platform,
                   .stages = what->stages,
                   .nstages = what->nstages,
                   .work_ns = sim_work_ns,
                   .attention_bytes_per_ns =
                       what->ring ? sim_memory_speed(s->view->ranks) * s->platform.memory_scale : 0,
                   .step_ns = s->view->step_ns,
                   .turns = link->ranks_per_core > 1 ? link->ranks_per_core : 1,
                   .switch_ns = link->ranks_per_core > 1 ? link->switch_ns * link->ranks_per_core : 0,
                   .finish_ns = s->finish_ns};
}

static int64_t messages_of(const sim_case *what) {
  int64_t count = 0;
  for (int32_t i = 0; i < what->nstages; i++)
    for (int32_t r = 0; r < what->requests[i].nranks; r++) count += what->stages[i].plans[r]->nmessages;
  return count;
}

/* Runs a case in a child and releases it. */
static bool run_case(simulator *s, sim_case *what, double *ns, tool_error *error) {
  char why[256];
  sim_job job = job_of(s, what);
  int64_t messages = messages_of(what);
  bool ok = messages <= MESSAGES_MAX || tool_error_set(error, "%lld messages; at most %d are simulated beside others",
                                                       (long long)messages, MESSAGES_MAX);
  if (ok && !(sim_ways_exist(&job, why, sizeof why) && sim_run_apart(s->engine, &job, why, sizeof why)))
    ok = tool_error_set(error, "%s", why);
  *ns = job.total_ns;
  sim_case_release(what);
  return ok;
}

/* ---- loads of links ---------------------------------------------------------------------------------------------- */

typedef struct load {
  int32_t links;
  double bytes, most; /* most: the share of the time in which the busiest one would carry its bytes */
  const sim_link *busiest;
} load;

static const sim_link *loads_find(const sim_job *job, load loads[BNY_HOPS]) {
  const sim_link *busiest = NULL;
  double most = 0;
  memset(loads, 0, BNY_HOPS * sizeof *loads);
  for (int32_t l = 0; l < job->platform->nlinks; l++) {
    const sim_link *link = &job->platform->links[l];
    load *all = &loads[link->kind];
    double busy = job->total_ns > 0 ? link->bytes / link->bytes_per_ns / job->total_ns : 0;
    all->links++;
    all->bytes += link->bytes;
    if (busy > all->most) {
      all->most = busy;
      all->busiest = link;
    }
    if (busy > most) {
      most = busy;
      busiest = link;
    }
  }
  return busiest;
}

/* ---- the timeline ------------------------------------------------------------------------------------------------ */

typedef struct style {
  const char *name, *category;
} style;

static const style styles[] = {[BNY_STEP_COPY] = {"copy", "compute"},
                               [BNY_STEP_MERGE] = {"merge", "compute"},
                               [BNY_STEP_SEND] = {"send", "send"},
                               [BNY_STEP_WAIT] = {"wait", "wait"},
                               [BNY_STEP_DELIVER] = {"deliver", "compute"}};

static void json_write(FILE *file, const sim_job *job, const char *title) {
  fputc('[', file);
  for (int32_t r = 0; r < job->stages[0].request->nranks; r++)
    fprintf(file,
            "%s\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"rank %d of %d (%s, "
            "simulated)\"}}",
            r > 0 ? "," : "", r, r, job->stages[0].request->nranks, title);
  for (int64_t i = 0; i < job->nevents; i++) {
    const sim_event *e = &job->events[i];
    const style *style = &styles[e->kind];
    fprintf(file, ",\n{\"name\":\"%s", style->name);
    if (e->peer >= 0) fprintf(file, " %d", e->peer);
    fprintf(file, "\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":0,\"ts\":%.3f,\"dur\":%.3f,\"args\":{",
            style->category, e->rank, e->begin_ns / 1e3, (e->end_ns - e->begin_ns) / 1e3);
    if (e->peer >= 0) fprintf(file, "\"peer\":%d,\"bytes\":%lld", e->peer, (long long)e->bytes);
    fputs("}}", file);
  }
  fputs("\n]\n", file);
}

/* Writes the events of a run as JSON for Perfetto, like BANYAN_TRACE. */
static bool timeline_write(const char *path, const sim_job *job, const char *title, tool_error *error) {
  FILE *file = fopen(path, "w");
  if (file == NULL) return tool_error_usage(error, tool_error_set(error, "%.200s: %s", path, strerror(errno)));
  json_write(file, job, title);
  bool ok = ferror(file) == 0;
  ok = fclose(file) == 0 && ok;
  return tool_error_usage(error, ok || tool_error_set(error, "%.200s: %s", path, strerror(errno)));
}

/* ---- --simulate -------------------------------------------------------------------------------------------------- */

typedef struct outcome {
  double first_ns, rival_ns[2], attention_ns; /* rivals: three allreduces, Ring Attention; NAN: not simulated */
  double predicted_ns, wall_s;
  int64_t memory_bytes;
  char rival_why[2][300];
} outcome;

static void rivals_run(simulator *s, outcome *out) {
  const plan_view *view = s->view;
  double shard = plan_shard_bytes(view->shape, view->keys);
  out->attention_ns = shard / sim_memory_speed(view->ranks) / s->platform.memory_scale;
  for (int i = 0; i < 2; i++) {
    sim_case rival;
    tool_error why = {.text = ""};
    out->rival_ns[i] = NAN;
    bool ok = i == 0 ? sim_case_allreduces(view->ranks, view->shape, &rival, &why)
              : view->ranks->nranks <= SIM_RING_RANKS_MAX
                  ? sim_case_ring(view->ranks, view->shape, view->keys, &rival, &why)
                  : tool_error_set(&why, "a ring of more than %d ranks is not simulated", SIM_RING_RANKS_MAX);
    if (!ok || !run_case(s, &rival, &out->rival_ns[i], &why)) {
      out->rival_ns[i] = NAN;
      snprintf(out->rival_why[i], sizeof out->rival_why[i], "%.290s", why.text);
    }
  }
}

static bool report_json(const simulator *s, const sim_job *job, const char *algorithm, const outcome *out,
                        tool_error *error) {
  load loads[BNY_HOPS];
  char name[SIM_NAME_BYTES];
  const sim_link *busiest = loads_find(job, loads);
  json_t *o = plan_shape_json(s->view->ranks, s->view->shape), *links = json_array();
  for (int kind = 0; kind < BNY_HOPS; kind++)
    if (loads[kind].bytes > 0)
      json_array_append_new(links, json_pack("{s:s, s:i, s:f, s:f, s:s}", "kind", sim_kind_names[kind], "links",
                                             loads[kind].links, "bytes", loads[kind].bytes, "load", loads[kind].most,
                                             "busiest", sim_link_name(loads[kind].busiest, name)));
  tool_json_add(o, json_pack("{s:s, s:s, s:f, s:f, s:f, s:I, s:o, s:s?}", "simulator", s->engine->name, "algorithm",
                             algorithm, "simulated_us", job->total_ns / 1e3, "first_us", out->first_ns / 1e3,
                             "predicted_us", out->predicted_ns / 1e3, "messages", (json_int_t)job->messages, "links",
                             links, "busiest", busiest != NULL ? sim_link_name(busiest, name) : NULL));
  if (s->view->shape->collective == BNY_COMBINE)
    tool_json_add(o,
                  json_pack("{s:f, s:o, s:o}", "attention_us", out->attention_ns / 1e3, "allreduces_us",
                            tool_json_real(out->rival_ns[0] / 1e3), "ring_us", tool_json_real(out->rival_ns[1] / 1e3)));
  tool_json_add(
      o, json_pack("{s:f, s:I}", "wall_seconds", out->wall_s, "peak_memory_bytes", (json_int_t)out->memory_bytes));
  return tool_json_write(o, s->view->stream, error);
}

static bool report_text(const simulator *s, const sim_job *job, const char *algorithm, const outcome *out,
                        tool_error *error) {
  FILE *stream = s->view->stream;
  load loads[BNY_HOPS];
  char text[PLAN_TEXT_BYTES], number[PLAN_NUMBER_BYTES], name[SIM_NAME_BYTES];
  const sim_link *busiest = loads_find(job, loads);
  plan_shape_print(s->view->shape, text);
  fprintf(stream, "%s\n%d ranks (%s) by %s, in %s\n\n", text, s->view->ranks->nranks, s->view->ranks->title, algorithm,
          s->engine->name);
  fprintf(stream, "simulated  %s", plan_text_time(job->total_ns, number));
  fprintf(stream, "; the first rank has finished at %s", plan_text_time(out->first_ns, number));
  fprintf(stream, "; predicted %s\n", plan_text_time(out->predicted_ns, number));
  fprintf(stream, "messages   %lld, in %.1f s of this machine's time and %s\n", (long long)job->messages, out->wall_s,
          plan_text_bytes((double)out->memory_bytes, number));
  fprintf(stream, "\n%-9s %7s %11s %6s  %s\n", "links", "number", "carried", "load", "the busiest one");
  for (int kind = 0; kind < BNY_HOPS; kind++)
    if (loads[kind].bytes > 0)
      fprintf(stream, "%-9s %7d %11s %5.1f%%  %s\n", sim_kind_names[kind], loads[kind].links,
              plan_text_bytes(loads[kind].bytes, number), 100 * loads[kind].most,
              sim_link_name(loads[kind].busiest, name));
  fprintf(stream, "busiest of all: %s\n", busiest != NULL ? sim_link_name(busiest, name) : "none: ranks share memory");
  if (s->view->shape->collective != BNY_COMBINE) return tool_flush(stream) || tool_error_stdout(error);
  static const char *const names[] = {"three allreduces", "Ring Attention"};
  fprintf(stream, "\nwith the attention to %lld keys of each rank before it, %s:\n", (long long)s->view->keys->per_rank,
          plan_text_time(out->attention_ns, number));
  fprintf(stream, "  %-17s %11s\n", "one combine", plan_text_time(out->attention_ns + job->total_ns, number));
  for (int i = 0; i < 2; i++) {
    double ns = out->rival_ns[i] + (i == 0 ? out->attention_ns : 0);
    if (isnan(ns))
      fprintf(stream, "  %-17s %s\n", names[i], out->rival_why[i]);
    else
      fprintf(stream, "  %-17s %11s, %.2f times\n", names[i], plan_text_time(ns, number),
              ns / (out->attention_ns + job->total_ns));
  }
  return tool_flush(stream) || tool_error_stdout(error);
}

static void finish(const sim_job *job, int64_t start, outcome *out) {
  struct rusage usage;
  out->first_ns = job->total_ns;
  for (int32_t r = 0; r < job->stages[0].request->nranks; r++)
    if (job->finish_ns[r] < out->first_ns) out->first_ns = job->finish_ns[r];
  out->predicted_ns = job->stages[0].plans[0]->predicted_ns;
  out->wall_s = (double)(tool_now_ns() - start) / 1e9;
  if (getrusage(RUSAGE_SELF, &usage) == 0) out->memory_bytes = (int64_t)usage.ru_maxrss * 1024;
}

bool plan_view_simulate(const plan_view *view, tool_error *error) {
  simulator s;
  sim_case what;
  outcome out = {.first_ns = 0};
  char why[256];
  int64_t start = tool_now_ns();
  if (!simulator_make(view, &s, error)) return false;
  if (view->shape->collective == BNY_COMBINE && view->ranks->nranks > 1) rivals_run(&s, &out);
  bool ok = sim_case_make(view->ranks, view->shape, &what, error);
  if (ok) {
    sim_job job = job_of(&s, &what);
    const char *algorithm = what.stages[0].plans[0]->algorithm;
    job.events_wanted = view->timeline != NULL;
    ok = (sim_ways_exist(&job, why, sizeof why) && s.engine->run(&job, why, sizeof why)) ||
         tool_error_set(error, "%s", why);
    finish(&job, start, &out);
    ok = ok && (view->json ? report_json : report_text)(&s, &job, algorithm, &out, error);
    ok = ok && (view->timeline == NULL || timeline_write(view->timeline, &job, algorithm, error));
    free(job.events);
    sim_case_release(&what);
  }
  return ok;
}

/* ---- --regret ---------------------------------------------------------------------------------------------------- */

static int by_prediction(const void *a_void, const void *b_void) {
  const bny_candidate *a = a_void, *b = b_void;
  if (a->chosen != b->chosen) return a->chosen ? -1 : 1;
  return a->ns < b->ns ? -1 : a->ns > b->ns;
}

bool plan_view_regret(const plan_view *view, tool_error *error) {
  simulator s;
  bny_request request = plan_request_make(view->ranks, view->shape);
  bny_candidate candidates[BNY_CANDIDATES_MAX];
  char number[PLAN_NUMBER_BYTES], best_name[64] = "";
  double chosen_ns = 0, least_ns = 0;
  int32_t count = bny_algorithm_candidates(&request, candidates), served = 0;
  for (int32_t i = 0; i < count; i++)
    if (!candidates[i].rejection && candidates[i].fits) {
      bny_candidate *one = &candidates[served++];
      *one = candidates[i];
      /* The library's choice leaves out what takes long to price. */
      int64_t most = MESSAGES_MAX;
      if (!one->chosen && bny_algorithm_price(&request, one->algorithm, &most, &one->ns) != BANYAN_OK)
        return tool_error_set(error, "%s", banyan_last_error());
    }
  qsort(candidates, (size_t)served, sizeof *candidates, by_prediction);
  if (!simulator_make(view, &s, error)) return false;
  json_t *list = json_array();
  bool ok = true;
  for (int32_t i = 0; i < served && ok; i++) {
    char name[64];
    size_t length = 0;
    double ns = NAN;
    sim_case what;
    plan_shape shape = *view->shape;
    tool_error why = {.text = ""};
    bny_algorithm_print(candidates[i].algorithm, name, sizeof name, &length);
    shape.algorithm = name;
    if (i > 0 && candidates[i].ns > hopeless * least_ns)
      tool_error_set(&why, "not simulated: predicted over %g times the least simulated", hopeless);
    else
      ok = sim_case_make(view->ranks, &shape, &what, error) &&
           (run_case(&s, &what, &ns, &why) || i > 0 || tool_error_set(error, "%s: %s", name, why.text));
    if (why.text[0]) ns = NAN;
    if (i == 0) chosen_ns = ns;
    if (i == 0 || ns < least_ns) {
      least_ns = ns;
      snprintf(best_name, sizeof best_name, "%s", name);
    }
    json_array_append_new(list, json_pack("{s:s, s:b, s:o, s:o, s:s}", "name", name, "chosen", candidates[i].chosen,
                                          "predicted_us", tool_json_real(candidates[i].ns / 1e3), "simulated_us",
                                          tool_json_real(ns / 1e3), "why", why.text));
    if (view->json) continue;
    fprintf(view->stream, "%-19s %11s predicted", name, plan_text_time(candidates[i].ns, number));
    fprintf(view->stream, isnan(ns) ? "  %s%s\n" : " %11s simulated%s\n",
            isnan(ns) ? why.text : plan_text_time(ns, number), candidates[i].chosen ? ", chosen" : "");
  }
  double regret = least_ns > 0 ? chosen_ns / least_ns - 1 : 0;
  if (ok && view->json) {
    json_t *o = plan_shape_json(view->ranks, view->shape);
    json_object_set(o, "methods", list);
    json_object_set_new(o, "best", json_string(best_name));
    json_object_set_new(o, "regret", json_real(regret));
    ok = tool_json_write(o, view->stream, error);
  } else if (ok) {
    fprintf(view->stream, "regret: %.1f %% of the time of %s\n", 100 * regret, best_name);
  }
  json_decref(list);
  return ok;
}
