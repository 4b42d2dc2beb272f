/* SPDX-License-Identifier: Apache-2.0
 * Machines as one table (machines.def): levels, NICs, rails, paths, and what banyan-topo --check finds, also after
 * damage. Then laws of any model, sizes, and exports of NCCL's format. */
#include <time.h>

#include "tests/topo/topo_laws.h"
#include "tests/topo/topo_xml_util.h"
#include "topo/levels/levels.h"
#include "topo/model/speed.h"

/* ---- the table --------------------------------------------------------------------------------------------------- */

#define H100 "host nvswitch package:2 numa bridge:2 pci:2 gpu@sm90@gen5x16 nic@400g@gen5x16"
#define A100 "host package:2 numa bridge:2 pci:2 gpu@sm80 nic@200g"
#define PAIRED(bus, number, other) \
  "<pci busid=\"" bus "\"><gpu dev=\"" number "\" sm=\"80\"><nvlink target=\"" other "\" count=\"4\"/></gpu></pci>"
#define UNKNOWN(bus, number, sm) "<pci busid=\"" bus "\"><gpu dev=\"" number "\" sm=\"" sm "\"/></pci>"
#define NIC(nets) NCCL_HEAD "<pci busid=\"0000:01:00.0\"><nic>" nets "</nic></pci>" NCCL_TAIL
#define HOST(name, devices) "host/" name " numa/node0 pci/p0 " devices " ...."

static const struct {
  const char *source, *damage, *facts;
} machines[] = {
#include "tests/topo/machines.def"
};

/* Returns NULL for a dump that is not here, and for XML if this build cannot read it. */
static bny_topo *machine_of(const char *source) {
  bool folder = strchr(source, '/') != NULL;
  if (*source == '<') return bny_topo_xml_available() ? load(source) : NULL;
  if (strchr(source, ' ')) return folder ? tree_of(source) : load(source);
  if (!strchr(source, '.')) return load(source);
  if (strstr(source, ".xml") && !bny_topo_xml_available()) return NULL;
  if (strncmp(source, "examined/", 9) == 0 || strncmp(source, "reduced/", 8) == 0) return dump(source);
  if (strncmp(source, "dumps/", 6) == 0) return dump(source + 6);
  return folder ? load(corpus_text(source, NULL, NULL)) : load_own(source);
}

/* Returns the node of a word such as "gpu:5", the fifth of that kind. */
static int32_t nth(const bny_topo *topo, const char *word) {
  char kind[16];
  int which;
  ck_assert_int_eq(sscanf(word, "%15[a-z]:%d", kind, &which), 2);
  for (int32_t n = 0; n < topo->nnodes; n++)
    if (topo->nodes[n].kind == bny_topo_kind_parse(kind) && which-- == 0) return n;
  ck_abort_msg("there is no %s", word);
}

/* Applies damages such as "nvlink gpu:5 12 481": all links of that kind at the node get this count and speed. A fourth
 * number is their rating. A count of -1 is unknown. With a count of 0 a link joins nothing. */
static void damage(bny_topo *topo, const char *text) {
  char copy[512], *rest = copy, *one;
  snprintf(copy, sizeof copy, "%s", text);
  while ((one = strsep(&rest, ";")) != NULL && *one != '\0') {
    char kind[16], word[32];
    int count;
    double speed, rated = -1;
    ck_assert_msg(sscanf(one, " %15s %31s %d %lf %lf", kind, word, &count, &speed, &rated) >= 4, "%s", one);
    int32_t node = nth(topo, word);
    for (int32_t l = 0; l < topo->nlinks; l++) {
      bny_topo_link *link = &topo->links[l];
      if (link->kind != bny_topo_link_parse(kind) || (link->from != node && link->to != node)) continue;
      link->count = count < 0 ? 0 : count;
      link->gbytes_per_s = speed;
      if (rated >= 0) link->rated_gbytes_per_s = rated;
      if (count == 0) *link = (bny_topo_link){.kind = link->kind, .from = node, .to = node, .count = 1};
    }
  }
}

TEST_LOOP(machines_are_right, (int)(sizeof machines / sizeof machines[0])) {
  bny_topo *topo = machine_of(machines[_i].source);
  if (topo == NULL) return;
  if (machines[_i].damage) damage(topo, machines[_i].damage);
  ck_facts(topo, machines[_i].facts);
}

/* A fault that very many hosts have is reported for some of them, and the others are counted. */
TEST(findings_are_bounded) {
  bny_topo *topo = load("host:500 gpu@gen5x16 nic@400g");
  for (int32_t l = 0; l < topo->nlinks; l++) {
    bny_topo_link *link = &topo->links[l];
    if (link->kind == BNY_TOPO_LINK_NET) link->gbytes_per_s = 0.01 + 0.02 * link->from; /* every host differs */
  }
  topo_findings found = topo_diagnose(topo, topo_derive(topo), NULL);
  ck_assert(has_finding(&found, TOPO_FAULT, "more of link-slow"));
  ck_assert_int_lt(found.count, 200);
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

/* ---- NVLink ------------------------------------------------------------------------------------------------------ */

/* An unknown newer generation is at least as fast as the newest known one, and may have more links. */
TEST(newer_generations) {
  if (!xml_is_read()) return;
  bny_topo *topo = machine_of("nccl/newer.xml");
  bny_topo_levels *levels = topo_derive(topo);
  int32_t gpu = levels->ranks[0].node;
  ck_assert(bny_topo_level_of(levels, BNY_TOPO_LEVEL_ISLAND)->groups[0].gbytes_per_s >=
            36 * bny_topo_speed_nvlink(BNY_TOPO_COMPUTE_NEWEST));
  ck_assert(between(topo, gpu, topo->nodes[gpu].parent)->gbytes_per_s >=
            bny_topo_speed_pci(BNY_TOPO_PCI_GENERATIONS, 16));
  for (int32_t compute = BNY_TOPO_COMPUTE_NEWEST; compute < 300; compute += 10)
    ck_assert(bny_topo_speed_nvlink(compute) >= bny_topo_speed_nvlink(BNY_TOPO_COMPUTE_NEWEST));
  ck_assert(bny_topo_speed_xgmi(1250) >= bny_topo_speed_xgmi(942));
  ck_assert_int_eq(bny_topo_compute_of("Rubin", "NVIDIA R200"), -1);
  ck_assert_int_eq(bny_topo_compute_of(NULL, "NVIDIA GB300"), 103);
  ck_assert_int_eq(bny_topo_compute_of(NULL, "GH100[H100 PCIe]"), 90);
}

int main(void) { return suite_main(suite_with("topo_machines", 120, NULL, drop_kept)); }
