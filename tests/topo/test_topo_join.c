/* SPDX-License-Identifier: Apache-2.0
 *
 * One model from those of several machines: what is derived from copies of one host is what is derived from a
 * description of all of them. */
#include <check.h>
#include <math.h>
#include <time.h>

#include "topo/model/join.h"
#include "topo/derive/levels.h"
#include "tests/topo/topo_util.h"
#include "tests/support/suite.h"

/* Switches outside of hosts get a guid: "unit/name". */
static void name_switches(bny_topo *topo, int unit) {
  char guid[128];
  for (int32_t n = 0; n < topo->nnodes; n++) {
    bny_topo_node *node = &topo->nodes[n];
    if (node->kind != BNY_TOPO_SWITCH || bny_topo_ancestor(topo, n, BNY_TOPO_HOST) >= 0) continue;
    snprintf(guid, sizeof guid, "%d/%.60s", unit, node->name);
    bny_topo_set_string(topo, &node->guid, guid);
  }
}

static bny_topo *joined(const bny_topo *const *models, int32_t count) {
  bny_topo_error error = {0};
  bny_topo *topo = keep(bny_topo_join(models, count, &error), drop_topo);
  ck_assert_msg(topo != NULL, "%s", error.text);
  return topo;
}

static bny_topo *copies(const char *description, int32_t count) {
  const bny_topo *models[64];
  bny_topo *one = load(description);
  name_switches(one, 0);
  for (int32_t m = 0; m < count; m++) models[m] = one;
  return joined(models, count);
}

static void levels_same(const bny_topo *a, const bny_topo *b, const char *what) {
  bny_topo_levels *one = topo_derive(a), *other = topo_derive(b);
  ck_assert(one && other);
  ck_assert_msg(one->nranks == other->nranks && one->nlevels == other->nlevels && one->nfindings == other->nfindings,
                "%s: %d ranks, %d levels, %d findings; wanted %d, %d, %d", what, one->nranks, one->nlevels,
                one->nfindings, other->nranks, other->nlevels, other->nfindings);
  for (int32_t r = 0; r < one->nranks; r++) {
    const bny_topo_rank *x = &one->ranks[r], *y = &other->ranks[r];
    ck_assert_msg(x->local == y->local && x->rail == y->rail && x->nvlinks == y->nvlinks &&
                      x->nic_path == y->nic_path && x->nic_shared == y->nic_shared,
                  "%s: rank %d", what, r);
  }
  for (int32_t l = 0; l < one->nlevels; l++) {
    const bny_topo_level *x = &one->levels[l], *y = &other->levels[l];
    const char *level = bny_topo_level_name(y->kind);
    ck_assert_msg(x->kind == y->kind && x->ngroups == y->ngroups, "%s: level %s", what, level);
    for (int32_t r = 0; r < one->nranks; r++)
      ck_assert_msg(x->group_of[r] == y->group_of[r], "%s: %s, rank %d", what, level, r);
    for (int32_t g = 0; g < x->ngroups; g++) {
      const bny_topo_group *p = &x->groups[g], *q = &y->groups[g];
      ck_assert_msg(p->path == q->path && p->all_to_all == q->all_to_all && p->uniform == q->uniform &&
                        fabs(p->gbytes_per_s - q->gbytes_per_s) < 1e-9,
                    "%s: %s, group %d: %s %g GB/s, wanted %s %g", what, level, g, bny_topo_path_name(p->path),
                    p->gbytes_per_s, bny_topo_path_name(q->path), q->gbytes_per_s);
    }
  }
}

/* ---- copies of one host ------------------------------------------------------------------------------------------ */

/* Each row has the text before "host" and the text behind it. */
static const char *const clusters[][2] = {
    {"", " nvswitch@18 package:2 numa bridge:4 pci@gen5x16 gpu@sm90@gen5x16 nic@400g@gen5x16"},
    {"leaf@rails ", " nvswitch@18 package:2 numa bridge:4 pci@gen5x16 gpu@sm90@gen5x16 nic@400g@gen5x16"},
    {"leaf ", " package:2 numa pci:2 gpu:2@sm80 nic@200g"},
    {"nvswitch@18 ", " package:2 numa gpu:2@sm100@c2c225GB nic:2@400g"},
    {"leaf@1600g nvswitch ", " numa:2 gpu:2@sm100 nic:2@400g"},
    {"", " package:2 numa:2"},
    {"", " xgmi package:2 pci:4 gpu@gfx942 nic@400g"},
    {"", " gpu:3@sm86"},
};

TEST_LOOP(as_described, (int)(sizeof clusters / sizeof clusters[0])) {
  static const int32_t counts[] = {1, 2, 3, 8, 33};
  char one[400], all[400];
  for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
    snprintf(one, sizeof one, "%shost%s", clusters[_i][0], clusters[_i][1]);
    snprintf(all, sizeof all, "%shost:%d%s", clusters[_i][0], counts[c], clusters[_i][1]);
    bny_topo *topo = copies(one, counts[c]), *wanted = load(all);
    ck_assert_msg(topo->nnodes == wanted->nnodes && topo->nlinks == wanted->nlinks,
                  "%s: %d nodes and %d links, wanted %d and %d", all, topo->nnodes, topo->nlinks, wanted->nnodes,
                  wanted->nlinks);
    levels_same(topo, wanted, all);
  }
}

static bool is_trunk(const bny_topo *topo, int32_t link) {
  return topo->nodes[topo->links[link].from].kind == BNY_TOPO_SWITCH &&
         topo->nodes[topo->links[link].to].kind == BNY_TOPO_SWITCH;
}

/* Pods that tell of their leaf switches and of the spine, and of the links between, each for itself. */
TEST(trunks_once) {
  const char *pod = "spine leaf:2@400g host:2 nvlink@4 package:2 numa bridge pci gpu:2@sm80 nic@200g";
  bny_topo *one = load(pod);
  name_switches(one, 0);
  bny_topo *twice = joined((const bny_topo *const[]){one, one, one}, 3);
  bny_topo *alone = joined((const bny_topo *const[]){one}, 1);
  ck_assert_int_eq(bny_topo_count(twice, BNY_TOPO_SWITCH), bny_topo_count(one, BNY_TOPO_SWITCH));
  ck_assert_int_eq(alone->nlinks, one->nlinks);
  levels_same(alone, one, "one pod");
  int32_t between[2] = {0, 0};
  const bny_topo *both[2] = {one, twice};
  for (int t = 0; t < 2; t++)
    for (int32_t l = 0; l < both[t]->nlinks; l++) between[t] += is_trunk(both[t], l);
  ck_assert_int_gt(between[0], 0);
  ck_assert_int_eq(between[0], between[1]);

  /* A model that knows more links between two switches than another did is believed. */
  int32_t leaf = -1, spine = -1;
  for (int32_t l = 0; l < one->nlinks && leaf < 0; l++)
    if (is_trunk(one, l)) leaf = one->links[l].from, spine = one->links[l].to;
  bny_topo *more = joined((const bny_topo *const[]){one}, 1);
  ck_assert_int_ge(join(more, BNY_TOPO_LINK_NET, spine, leaf, 50), 0);
  bny_topo *all = joined((const bny_topo *const[]){one, more, one}, 3);
  ck_assert_int_eq(all->nlinks, twice->nlinks + 1);
}

/* ---- models that differ ------------------------------------------------------------------------------------------ */

TEST(names_unique) {
  static const char *const names[] = {"node", "node", "node-2", "node", "node-2", "node-3", "other"};
  static const char *const wanted[] = {"node", "node-4", "node-2", "node-5", "node-2-2", "node-3", "other"};
  bny_topo *models[7];
  for (int i = 0; i < 7; i++) {
    models[i] = topo_new();
    int32_t host = put(models[i], BNY_TOPO_HOST, -1, names[i], NULL);
    put(models[i], BNY_TOPO_GPU, host, "GPU0", "0000:01:00.0");
    put(models[i], BNY_TOPO_SWITCH, -1, "leaf", NULL); /* without a guid: of its own */
  }
  bny_topo *topo = joined((const bny_topo *const *)models, 7);
  ck_assert_int_eq(topo->nnodes, 21);
  for (int i = 0; i < 7; i++) {
    ck_assert_str_eq(topo->nodes[3 * i].name, wanted[i]);
    ck_assert_str_eq(topo->nodes[3 * i + 1].name, "GPU0");
    ck_assert_str_eq(models[i]->nodes[0].name, names[i]);
  }
}

/* Nothing inside of a host changes, whatever stands beside it. */
TEST(paths_kept) {
  static const char *const hosts[] = {
      "host nvswitch@18 package:2 numa bridge:4 pci@gen5x16 gpu@sm90@gen5x16 nic@400g@gen5x16",
      "host:2 package:2 numa pci:2 gpu:2@sm80 nic@200g", "host package:2 numa gpu:2@sm100@c2c225GB nic:2@400g",
      "leaf:2 host gpu:2 nic:2@100g", "host nvlink gpu:4@sm70"};
  uint64_t state = 88172645463325252u;
  for (int round = 0; round < 20; round++) {
    bny_topo *models[6];
    int32_t count = 1 + (int32_t)(random_word(&state) % 6), first = 0;
    for (int32_t m = 0; m < count; m++) models[m] = load(hosts[random_word(&state) % 5]);
    bny_topo *topo = joined((const bny_topo *const *)models, count);
    for (int32_t m = 0; m < count; m++) {
      for (int i = 0; i < 200; i++) {
        int32_t a = (int32_t)(random_word(&state) % (uint64_t)models[m]->nnodes);
        int32_t b = (int32_t)(random_word(&state) % (uint64_t)models[m]->nnodes);
        ck_assert_msg(bny_topo_path_between(models[m], a, b) == bny_topo_path_between(topo, first + a, first + b),
                      "round %d, model %d: %d to %d", round, m, a, b);
        ck_assert_int_eq(models[m]->nodes[a].compute, topo->nodes[first + a].compute);
      }
      first += models[m]->nnodes;
    }
    ck_assert_int_eq(topo->nnodes, first);
  }
}

TEST(refused) {
  bny_topo_error error = {0};
  ck_assert_ptr_null(bny_topo_join(NULL, 0, &error));
  ck_assert_str_eq(error.text, "there is no model to join");
  bny_topo *loose = topo_new();
  put(loose, BNY_TOPO_GPU, -1, "GPU0", NULL); /* in no host: two of them cannot be told apart */
  ck_assert_ptr_null(bny_topo_join((const bny_topo *const[]){loose, loose}, 2, &error));
  ck_assert_ptr_nonnull(strstr(error.text, "two GPUs"));
  bny_topo *empty = topo_new(), *topo = joined((const bny_topo *const[]){empty, empty}, 2);
  ck_assert_int_eq(topo->nnodes, 0);
}

/* ---- many -------------------------------------------------------------------------------------------------------- */

static double seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

TEST(many) {
  enum { HOSTS = 2048, UNITS = 64 };
  static bny_topo *units[UNITS];
  static const bny_topo *models[HOSTS];
  const char *host =
      "leaf@rails host nvswitch@18 package:2 numa bridge:4 pci@gen5x16 gpu@sm90@gen5x16 nic@400g@gen5x16";
  for (int u = 0; u < UNITS; u++) {
    units[u] = load(host);
    name_switches(units[u], u);
  }
  for (int h = 0; h < HOSTS; h++) models[h] = units[h % UNITS];
  double start = seconds_now();
  bny_topo *topo = joined(models, HOSTS);
  double join_took = seconds_now() - start;
  start = seconds_now();
  bny_topo_levels *levels = topo_derive(topo);
  double derive_took = seconds_now() - start;
  ck_assert_ptr_nonnull(levels);
  printf("%d hosts, %d nodes, %d links: joined in %.0f ms, derived in %.0f ms\n", HOSTS, topo->nnodes, topo->nlinks,
         1000 * join_took, 1000 * derive_took);
  ck_assert_int_eq(levels->nranks, 8 * HOSTS);
  const bny_topo_level *leaves = bny_topo_level_of(levels, BNY_TOPO_LEVEL_LEAF);
  ck_assert_ptr_nonnull(leaves);
  ck_assert_int_eq(leaves->ngroups, 8 * UNITS);
  ck_assert_int_eq(leaves->groups[0].count, HOSTS / UNITS);
  ck_assert_int_eq(bny_topo_level_of(levels, BNY_TOPO_LEVEL_RAIL)->ngroups, 8);
  ck_assert_msg(join_took < 10, "%g s", join_took); /* not quadratic, with sanitizers and on a busy machine too */
}

int main(void) { return suite_main(suite_with("topo_join", 60, NULL, drop_kept)); }
