/* SPDX-License-Identifier: Apache-2.0
 * Levels and rails. The result for each file of tests/topologies is compared with the golden NAME.levels next
 * to it. BANYAN_UPDATE_GOLDENS=1 rewrites the goldens, for review. */
#include <stdarg.h>
#include <time.h>

#include "topo/levels/levels.h"
#include "tests/topo/topo_laws.h"
#include "tests/topo/topo_util.h"

/* ---- goldens ----------------------------------------------------------------------------------------------------- */

static void member_ranges(const bny_topo_level *level, const bny_topo_group *group, FILE *out) {
  for (int32_t i = 0; i < group->count;) {
    int32_t start = level->members[group->first + i], last = start;
    while (++i < group->count && level->members[group->first + i] == last + 1) last++;
    fprintf(out, start == last ? " %d" : " %d-%d", start, last);
  }
}

/* Consecutive groups that are alike share a line: "NVL 371 GB/s file, all to all: host0 0-3 | host1 4-7". */
static void level_render(const bny_topo *topo, const bny_topo_level *level, FILE *out) {
  char before[128] = "", what[128];
  fprintf(out, "%s", bny_topo_level_name(level->kind));
  for (int32_t g = 0; g < level->ngroups; g++) {
    const bny_topo_group *group = &level->groups[g];
    snprintf(what, sizeof what, "\n  %s %.4g GB/s %s%s%s: ", bny_topo_path_name(group->path), group->gbytes_per_s,
             bny_topo_source_name(group->source), group->all_to_all ? ", all to all" : "",
             group->uniform ? "" : ", uneven");
    fprintf(out, "%s%s", strcmp(what, before) == 0 ? " | " : what,
            group->node >= 0 ? topo->nodes[group->node].name : "-");
    member_ranges(level, group, out);
    strcpy(before, what);
  }
  fputc('\n', out);
}

/* Writes the ranks of a host and returns their number. */
static int32_t host_render(const bny_topo *topo, const bny_topo_levels *levels, int32_t first, char *text,
                           size_t bytes) {
  int32_t r = first;
  size_t used = 0;
  for (; r < levels->nranks && levels->ranks[r].host == levels->ranks[first].host; r++) {
    const bny_topo_rank *rank = &levels->ranks[r];
    used +=
        (size_t)snprintf(text + used, bytes - used, "    %s, NVLinks %d", topo->nodes[rank->node].name, rank->nvlinks);
    if (rank->nic >= 0)
      used += (size_t)snprintf(text + used, bytes - used, ", %s (%s, of %d, %.4g GB/s), rail %d",
                               topo->nodes[rank->nic].name, bny_topo_path_name(rank->nic_path), rank->nic_shared,
                               rank->nic_gbytes_per_s, rank->rail);
    used += (size_t)snprintf(text + used, bytes - used, "\n");
    ck_assert_uint_lt(used, bytes);
  }
  return r - first;
}

static char *render(const bny_topo *topo, const bny_topo_levels *levels) {
  char *text = NULL, before[8192] = "", host[8192];
  size_t bytes;
  FILE *out = open_memstream(&text, &bytes);
  ck_assert_ptr_nonnull(out);
  fprintf(out, "ranks: %d, each a %s\n", levels->nranks, bny_topo_kind_name(levels->rank_kind));
  for (int32_t r = 0; r < levels->nranks;) {
    int32_t count = host_render(topo, levels, r, host, sizeof host);
    bool alike = strcmp(host, before) == 0;
    fprintf(out, "  %s from %d%s\n%s", topo->nodes[levels->ranks[r].host].name, r, alike ? ": alike" : "",
            alike ? "" : host);
    strcpy(before, host);
    r += count;
  }
  for (int32_t i = 0; i < levels->nlevels; i++) level_render(topo, &levels->levels[i], out);
  fclose(out);
  return topo_text(text);
}

TEST_LOOP(goldens, OWN_TOPOLOGIES) {
  bny_topo *topo = load_own(own_topologies[_i]);
  if (topo != NULL) ck_golden(own_topologies[_i], ".levels", render(topo, topo_derive(topo)));
}

/* ---- laws of any model ------------------------------------------------------------------------------------------- */

TEST(laws_of_descriptions) {
  static const char *const texts[] = {
      "host",
      "gpu",
      "host:3 gpu:5",
      "nic:4",
      "host:2 gpu nic:3",
      "leaf:3@rails host:2 gpu:4 nic:4@400g",
      "spine:3 leaf:2 host:2 package:2 numa:2 nic@100g nvlink gpu:3@sm80",
      "nvswitch:4 host:2 gpu:4 nic:2@200g",
      "leaf:2 nvswitch:2 host:2 gpu:3 nic",
      "host:70 package:2 numa:2",
  };
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    bny_topo *topo = load(texts[i]);
    const char *broken = law_of_model(topo);
    ck_assert_msg(broken == NULL, "%s: %s", texts[i], broken);
    bny_topo_levels *levels = topo_derive(topo);
    for (int32_t r = 0; r < levels->nranks; r++) /* no NIC of the host is nearer, because all NICs are alike */
      for (int32_t n = 0; n < topo->nnodes && levels->ranks[r].nic >= 0; n++)
        if (topo->nodes[n].kind == BNY_TOPO_NIC && bny_topo_ancestor(topo, n, BNY_TOPO_HOST) == levels->ranks[r].host)
          ck_assert_int_ge(bny_topo_path_between(topo, levels->ranks[r].node, n), levels->ranks[r].nic_path);
  }
}

/* ---- NICs and rails ---------------------------------------------------------------------------------------------- */

/* Hosts that name their NICs in different orders have the same rails. */
TEST(rails_do_not_follow_names) {
  ck_facts(
      tree_of("host/a numa/node0 pci/p0 nic/mlx5_0 . gpu/GPU0 .. pci/p1 nic/mlx5_1 . gpu/GPU1 .. pci/p2 nic/mlx5_2 . "
              "gpu/GPU2 ... .host/b numa/node0 pci/p0 nic/mlx5_7 . gpu/GPU4 .. pci/p1 nic/mlx5_6 . gpu/GPU5 .. "
              "pci/p2 nic/mlx5_5 . gpu/GPU6"),
      "3 rail; GPU0 rail 0; GPU1 rail 1; GPU2 rail 2; GPU4 rail 0; GPU5 rail 1; GPU6 rail 2; GPU4 nic mlx5_7;"
      "GPU4 mlx5_7 PIX; GPU6 nic mlx5_5");
}

/* A GPU with a choice leaves a NIC to the GPU that has no other. Its own NIC is rail 0 whatever its number. */
TEST(nics_are_spared) {
  ck_facts(tree_of("host/a numa/node0 pci/outer pci/p3 gpu/GPU0 .. pci/inner nic/n0 . gpu/GPU1 .. pci/p2 nic/n1"),
           "GPU0 n0 PXB; GPU0 nic n1; GPU1 nic n0; GPU0 rail 0");
}

/* A wireless card serves no GPU, even if it is the only NIC. */
TEST(wireless_serves_none) {
  for (int with = 0; with < 2; with++) {
    bny_topo *topo = tree_of(with ? "host/a pci/p0 nic/wlp3s0 . nic/card . gpu/GPU0 .. pci/p1 nic/eth0"
                                  : "host/a pci/p0 nic/wlp3s0 . nic/card . gpu/GPU0");
    bny_topo_set_string(topo, &topo->nodes[node_of(topo, "card")].model, "Wi-Fi 6 AX200");
    ck_facts(topo, with ? "GPU0 nic eth0; GPU0 rail 0" : "GPU0 nic none; GPU0 rail -1");
  }
}

/* A GPU of a host without a NIC has none. */
TEST(bare_hosts) {
  ck_facts(tree_of("host/a pci/p0 nic/n0 . gpu/GPU0 ... host/b gpu/GPU1"), "GPU0 nic n0; GPU1 nic none; GPU1 rail -1");
}

/* ---- size -------------------------------------------------------------------------------------------------------- */

/* Returns CPU time, which does not depend on the load of the machine. */
static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

TEST(large_clusters) {
  static const char *const texts[] = {
      "leaf:32@rails host:64 nvswitch package:2 numa bridge:4 pci gpu@sm90@gen5x16 nic@400g",
      "spine:4 leaf:8@rails host:64 xgmi package:2 numa:4 bridge pci gpu@gfx942 nic@400g",
      "leaf:32 nvswitch host:64 gpu:8@sm100 nic:8@400g",
  };
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    bny_topo *topo = load(texts[i]);
    double loaded = now_s();
    bny_topo_levels *levels = topo_derive(topo);
    ck_assert_double_lt(now_s() - loaded, 2);
    ck_assert_int_eq(levels->nranks, 16384);
    ck_assert_int_eq(bny_topo_level_of(levels, BNY_TOPO_LEVEL_RAIL)->ngroups, 8);
  }
}

int main(void) { return suite_main(suite_with("topo_levels", 60, NULL, drop_kept)); }
