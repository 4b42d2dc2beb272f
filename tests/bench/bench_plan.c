/* SPDX-License-Identifier: Apache-2.0
 * How long it takes to plan one rank's own part in worlds of 8 to 16,384 ranks, islands of 8. banyan-plan --prove says
 * how long all plans and their proof take. usage: bench_plan [tokens]   of 32 heads x 128 values; default 8. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/builder.h"
#include "tests/plan/plan_util.h"
#include "tools/common/util.h"

enum { HEADS = 32, DIM = 128, LOOKED = 16, REPEAT = 5, RANKS_LEAST = 8, RANKS_MOST = 16384 };

/* Islands of 8, joined by slower links. */
static bny_request request_make(int32_t nranks, const char *algorithm, banyan_scatter scatter, int32_t tokens) {
  bny_request request = combine_of(nranks, algorithm, scatter, tokens, HEADS, DIM);
  bny_link_cost link = {.alpha_ns = 1500, .beta_ns_per_byte = 0.003, .gamma_ns_per_byte = 0.001, .ranks_per_core = 1};
  bny_levels *levels;
  request.cost = link;
  if (bny_levels_parse(nranks, "8", &link, &levels) != BANYAN_OK) {
    fprintf(stderr, "bench_plan: %s\n", banyan_last_error());
    exit(EXIT_FAILURE);
  }
  request.levels = levels;
  return request;
}

static void request_drop(bny_request *request) { bny_levels_free((bny_levels *)(uintptr_t)request->levels); }

/* The median over ranks spread over the world of the least of some runs; -1: it cannot. */
static double plan_ns(const bny_request *request) {
  double times[LOOKED];
  int looked = request->nranks < LOOKED ? request->nranks : LOOKED;
  for (int i = 0; i < looked; i++) {
    int32_t rank = (int32_t)((int64_t)i * (request->nranks - 1) / (looked - 1));
    for (int run = 0; run < REPEAT; run++) {
      bny_plan *plan;
      int64_t began = tool_now_ns();
      if (bny_plan_make(request, rank, &plan) != BANYAN_OK) return -1;
      double took = (double)(tool_now_ns() - began);
      times[i] = run == 0 || took < times[i] ? took : times[i];
      bny_plan_free(plan);
    }
  }
  return tool_percentile(times, (size_t)looked, 50);
}

static void bench_plans(int32_t tokens) {
  static const struct {
    const char *name;
    banyan_scatter scatter;
  } columns[] = {{"levels", BANYAN_SCATTER_NONE},
                 {"levels", BANYAN_SCATTER_HEADS},
                 {"recursive_doubling", BANYAN_SCATTER_NONE},
                 {"tree", BANYAN_SCATTER_NONE},
                 {NULL, BANYAN_SCATTER_NONE}};
  printf("one rank's plan, us: %d tokens x %d heads x %d\n%8s %10s %14s %10s %10s %10s\n", tokens, HEADS, DIM, "ranks",
         "levels", "levels, heads", "doubling", "tree", "chosen");
  for (int32_t nranks = RANKS_LEAST; nranks <= RANKS_MOST; nranks *= 2) {
    static const int widths[] = {10, 14, 10, 10, 10};
    printf("%8d", nranks);
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
      bny_request request = request_make(nranks, columns[i].name, columns[i].scatter, tokens);
      double ns = plan_ns(&request);
      if (ns < 0)
        printf(" %*s", widths[i], "-");
      else
        printf(" %*.1f", widths[i], ns / 1e3);
      request_drop(&request);
    }
    printf("\n");
    fflush(stdout);
  }
}

int main(int count, char **arguments) {
  int32_t tokens = count > 1 ? atoi(arguments[1]) : 8;
  if (tokens < 1 || tokens > 1 << 16) {
    fprintf(stderr, "usage: bench_plan [tokens]\n");
    return 2;
  }
  bench_plans(tokens);
  return EXIT_SUCCESS;
}
