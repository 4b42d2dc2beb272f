/* SPDX-License-Identifier: Apache-2.0
 * Levels derived from topologies: which levels are kept, their link costs, and which ranks use a NIC. */
#include "locality/locality.h"
#include "tests/topo/topo_util.h"

/* One topology and its levels, one per line: "name groups x members links alpha-ns GB/s". */
typedef struct expectation {
  const char *what; /* a file of tests/topologies or a description */
  int32_t nranks, lanes;
  const char *levels[5];
} expectation;

static const expectation expectations[] = {
    {"cpu-only.txt", 4, 2, {"package 2x2 memory 250 33", "host 1x2 sockets 500 20"}},
    {"dgx-h100.txt", 32, 8, {"island 4x8 nvlink 1500 371", "pod 1x4 network 3600 50"}},
    {"fabric-two-rails.txt", 8, 2, {"host 4x2 memory 250 33", "pod 1x4 network 2500 50"}},
    {"gb200-nvl72.txt", 72, 72, {"domain 1x72 nvlink 1500 722"}},
    {"hgx-a100-4nic.txt", 8, 8, {"island 1x8 nvlink 1500 240"}},
    {"hgx-h100-faults.xml", 8, 8, {"island 1x8 nvlink 1500 247"}}, /* as slow as its slowest GPU */
    {"mi300x.txt", 8, 8, {"island 1x8 xgmi 2000 336"}},
    {"one-gpu.txt", 1, 1, {"host 1x1 pcie 2500 24"}},
    {"pcie-8gpu.xml", 8, 4, {"package 2x4 pcie 2500 24", "host 1x2 pcie-sys 3500 22"}},
    {"spine-leaf.txt",
     32,
     4,
     {"island 8x4 nvlink 1500 240", "leaf 4x2 network 3600 12", "spine 2x2 network 4000 6", "core 1x2 network 4400 6"}},
    {"two-islands.txt", 8, 4, {"island 2x4 nvlink 1500 240", "host 1x2 pcie-sys 3500 10"}},
    /* pairs of GPUs with links inside packages */
    {"host:2 package:2 numa bridge:2 nvlink gpu:2@sm80 nic:2@200g",
     16,
     2,
     {"island 8x2 nvlink 1500 20", "package 4x2 pcie 2500 24", "host 2x2 pcie-sys 3500 10",
      "fabric 1x2 network 3600 25"}},
    /* rails within pods: each leaf switch has one rail of four nodes */
    {"leaf:8@rails host:4 nvswitch gpu:8@sm90 nic:8@400g",
     256,
     8,
     {"island 32x8 nvlink 1500 371", "pod 8x4 network 3600 50", "spine 1x8 network 4000 50"}},
    {"leaf:2 nvswitch host:18 package:2 numa gpu:2@sm100 nic:2@400g",
     144,
     72,
     {"domain 2x72 nvlink 1500 722", "spine 1x2 network 4000 50"}},
    /* ranks of a node share a NIC that is not known, and one of unknown speed */
    {"host:3 nvswitch gpu:3@sm90", 9, 3, {"island 3x3 nvlink 1500 371", "fabric 1x3 network 3600 4"}},
    {"host:2 nvswitch gpu:4@sm90 nic", 8, 4, {"island 2x4 nvlink 1500 371", "fabric 1x2 network 3600 3"}},
    {"host:8 gpu nic@100g", 8, 8, {"fabric 1x8 network 3600 12"}}, /* one rank per node: no level of nodes */
    {"host:4 numa:2 nic@100g", 8, 2, {"host 4x2 memory 250 33", "fabric 1x4 network 2500 12"}},
    {"host:5", 5, 5, {"fabric 1x5 network 2500 12"}},
};

/* A description or the name of a file. */
static bny_topo *load_either(const char *what) {
  return strchr(what, ' ') == NULL && strchr(what, '.') != NULL ? load_own(what) : load(what);
}

static banyan_status topology_levels(const bny_topo *topo, const bny_topo_levels *derived, bny_locality_notes *notes,
                                     bny_levels **levels) {
  bny_locality *localities = calloc((size_t)derived->nranks + 1, sizeof *localities);
  ck_assert_ptr_nonnull(localities);
  bny_locality_of_all(topo, derived, &bny_prices_default, localities);
  banyan_status status = bny_locality_levels(localities, derived->nranks, NULL, notes, levels);
  free(localities);
  return status;
}

static bny_levels *levels_of(const char *what, bny_topo_levels **derived, bny_locality_notes *notes) {
  bny_topo *topo = load_either(what);
  bny_levels *levels = NULL;
  *derived = topo_derive(topo);
  ck_assert_ptr_nonnull(*derived);
  ck_assert_msg(topology_levels(topo, *derived, notes, &levels) == BANYAN_OK, "%s: %s", what, banyan_last_error());
  return levels;
}

/* Every derived level is kept or has a reason. */
static void check_notes(const char *what, const bny_topo_levels *derived, const bny_locality_notes *notes) {
  for (int32_t i = 0; i < derived->nlevels; i++) {
    int found = 0;
    for (int32_t k = 0; k < notes->count; k++) {
      found += strcmp(notes->notes[k].name, bny_topo_level_name(derived->levels[i].kind)) == 0;
      ck_assert_msg(notes->notes[k].text[0] != '\0', "%s: %s", what, notes->notes[k].name);
    }
    ck_assert_msg(found == 1, "%s: %d notes of %s", what, found, bny_topo_level_name(derived->levels[i].kind));
  }
}

/* Ranks set to the same locality of the file may share a node, like processes that share a GPU, but must not be on
 * different nodes. */
TEST(ranks_of_two_nodes_in_one_place) {
  static const struct {
    int32_t topo_ranks[4], node_of[4];
    banyan_status status;
  } cases[] = {{{0, 1, 2, 3}, {0, 0, 1, 1}, BANYAN_OK},
               {{0, 0, 1, 1}, {0, 0, 1, 1}, BANYAN_OK},
               {{0, 1, 0, 1}, {0, 0, 1, 1}, BANYAN_ERR_ARGUMENT},
               {{3, 1, 2, 3}, {0, 0, 0, 1}, BANYAN_ERR_ARGUMENT},
               {{0, 1, 0, -1}, {0, 0, 1, 1}, BANYAN_OK}}; /* one rank detects its locality, so real nodes are used */
  bny_topo *topo = load("host nvswitch gpu:4@sm90");
  bny_topo_levels *derived = topo_derive(topo);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    bny_locality localities[4];
    bny_levels *levels = NULL;
    for (int32_t r = 0; r < 4; r++) {
      bny_locality_of(topo, derived, r, &bny_prices_default, &localities[r]);
      localities[r].topo_rank = cases[i].topo_ranks[r];
    }
    bny_locality_world world = {.node_of = cases[i].node_of};
    ck_assert_msg(bny_locality_levels(localities, 4, &world, NULL, &levels) == cases[i].status, "case %zu", i);
    if (!levels) ck_assert_msg(strstr(banyan_last_error(), "which are on different nodes"), "%s", banyan_last_error());
    bny_levels_free(levels);
  }
}

/* Two machines in one communicator: an unknown speed counts as the default of its class, however fast the other machine
 * is. */
TEST(unknown_is_no_better_than_known) {
  bny_topo *topos[2] = {load("host gpu:2"), load("host nvswitch gpu:2@sm90")};
  bny_locality localities[4];
  double alone = 0;
  for (int32_t order = 0; order < 2; order++) {
    bny_locality_notes notes;
    bny_levels *levels = NULL;
    for (int32_t m = 0; m < 2; m++) {
      bny_topo_levels *derived = topo_derive(topos[m]);
      bny_locality both[2];
      bny_locality_of_all(topos[m], derived, &bny_prices_default, both);
      for (int32_t r = 0; r < 2; r++) localities[2 * (m ^ order) + r] = both[r];
      if (m == 0 && order == 0) {
        ck_assert_int_eq(bny_locality_levels(both, 2, NULL, &notes, &levels), BANYAN_OK);
        alone = 1 / levels->levels[levels->nlevels - 1].link.beta_ns_per_byte;
        bny_levels_free(levels);
      }
    }
    int32_t node_of[4] = {0, 0, 1, 1};
    bny_locality_world world = {.node_of = node_of};
    ck_assert_int_eq(bny_locality_levels(localities, 4, &world, &notes, &levels), BANYAN_OK);
    const bny_locality_note *host = bny_locality_note_of(&notes, "host");
    ck_assert_msg(host != NULL && host->kept && host->gbytes_per_s <= alone * 1.001, "%g GB/s, alone %g",
                  host ? host->gbytes_per_s : 0, alone);
    ck_assert_str_eq(host->speed_source, "assumed");
    bny_levels_free(levels);
  }
}

TEST_LOOP(known_topologies, (int)(sizeof expectations / sizeof expectations[0])) {
  const expectation *one = &expectations[_i];
  bny_locality_notes notes;
  bny_topo_levels *derived;
  bny_levels *levels = levels_of(one->what, &derived, &notes);
  ck_assert_msg(levels->nranks == one->nranks, "%s: %d ranks", one->what, levels->nranks);
  ck_assert_msg(levels->lanes == one->lanes, "%s: %d lanes", one->what, levels->lanes);
  for (int32_t k = 0; k < levels->nlevels; k++) {
    char text[128];
    const bny_level *level = &levels->levels[k];
    const bny_locality_note *note = bny_locality_note_of(&notes, level->name);
    ck_assert_msg(note != NULL, "%s: no note of %s", one->what, level->name);
    snprintf(text, sizeof text, "%s %dx%d %s %.0f %.0f", level->name, level->ngroups, level->most,
             bny_prices_default.rows[note->link].name, level->link.alpha_ns, 1 / level->link.beta_ns_per_byte);
    ck_assert_msg(k < 5 && one->levels[k] != NULL && strcmp(text, one->levels[k]) == 0, "%s: level %d is %s", one->what,
                  k, text);
    ck_assert(level->link.message_ns == bny_prices_default.rows[note->link].message_ns);
    ck_assert_msg(note->text[0] != '\0' && level->link.gamma_ns_per_byte > 0, "%s: %s", one->what, level->name);
  }
  ck_assert_msg(levels->nlevels == 5 || one->levels[levels->nlevels] == NULL, "%s: %d levels", one->what,
                levels->nlevels);
  check_notes(one->what, derived, &notes);
  bny_levels_free(levels);
}

TEST(gpus_without_nic_do_not_carry) {
  bny_topo_levels *derived;
  bny_levels *levels = levels_of("host:2 nvswitch gpu:4@sm90", &derived, NULL); /* without any NIC, all ranks carry */
  ck_assert_int_eq(levels->lanes, 4);
  for (int32_t r = 0; r < 8; r++) ck_assert(levels->carrier[r]);
  bny_levels_free(levels);
}

/* A node whose NICs serve only some of its GPUs. It is built by hand, because no description can express it. */
TEST(uneven_carriers) {
  bny_topo *topo = topo_new();
  for (int h = 0; h < 2; h++) {
    int32_t host = put(topo, BNY_TOPO_HOST, -1, numbered("h", h), NULL);
    int32_t gpus[4];
    for (int g = 0; g < (h == 0 ? 4 : 3); g++) {
      gpus[g] = put(topo, BNY_TOPO_GPU, host, numbered("GPU", g), NULL);
      for (int k = 0; k < g; k++) join(topo, BNY_TOPO_LINK_NVLINK, gpus[k], gpus[g], 50);
    }
    if (h == 0) put(topo, BNY_TOPO_NIC, host, "mlx5_0", NULL);
  }
  bny_topo_levels *derived = topo_derive(topo);
  bny_levels *levels = NULL;
  ck_assert_int_eq(topology_levels(topo, derived, NULL, &levels), BANYAN_OK);
  ck_assert_int_eq(levels->nlevels, 2);
  ck_assert_str_eq(levels->levels[0].name, "island");
  ck_assert_int_eq(levels->levels[0].ngroups, 2);
  ck_assert_int_eq(bny_levels_carriers(levels, 0), 4); /* one NIC serves all four */
  ck_assert_int_eq(bny_levels_carriers(levels, 1), 3); /* no NIC, so all ranks carry */
  for (int32_t r = 0; r < 4; r++) ck_assert_int_eq(derived->ranks[r].nic >= 0, levels->carrier[r]);
  bny_levels_free(levels);
}

TEST(nothing_to_be_a_rank) {
  bny_topo *topo = topo_new();
  put(topo, BNY_TOPO_SWITCH, -1, "leaf0", NULL);
  bny_topo_levels *derived = topo_derive(topo);
  bny_levels *levels = NULL;
  ck_assert_int_eq(topology_levels(topo, derived, NULL, &levels), BANYAN_ERR_ARGUMENT);
  ck_assert_ptr_null(levels);
}

/* Every class in the table has figures and their source. */
TEST(links_have_sources) {
  for (int i = 0; i < BNY_LINK_CLASSES; i++) {
    ck_assert(bny_prices_default.rows[i].name != NULL && strlen(bny_prices_default.rows[i].source) > 10);
    const bny_price *link = &bny_prices_default.rows[i];
    ck_assert(link->software_ns > 0 && link->way_ns >= 0 && link->gbytes_per_s > 0);
    ck_assert(link->message_ns >= 0 && link->message_ns < link->software_ns + link->way_ns);
  }
}

/* A measured latency replaces the assumed link latency; the software cost stays. */
TEST(latency_of_the_topology) {
  bny_topo *topo = topo_new();
  int32_t host = put(topo, BNY_TOPO_HOST, -1, "h", NULL);
  int32_t a = put(topo, BNY_TOPO_GPU, host, "GPU0", NULL), b = put(topo, BNY_TOPO_GPU, host, "GPU1", NULL);
  bny_topo_link link = {
      .kind = BNY_TOPO_LINK_NVLINK, .from = a, .to = b, .count = 4, .gbytes_per_s = 100, .latency_us = 2.5};
  bny_topo_add_link(topo, &link);
  bny_topo_levels *derived = topo_derive(topo);
  bny_locality_notes notes;
  bny_levels *levels = NULL;
  ck_assert_int_eq(topology_levels(topo, derived, &notes, &levels), BANYAN_OK);
  double alpha = bny_prices_default.rows[BNY_LINK_NVLINK].software_ns + 2500;
  ck_assert(fabs(levels->levels[0].link.alpha_ns - alpha) < 1e-9);
  ck_assert(fabs(levels->levels[0].link.beta_ns_per_byte - 0.01) < 1e-12);
  ck_assert(bny_locality_note_of(&notes, "island")->latency_known);
  bny_levels_free(levels);
}

int main(void) { return suite_main(suite_with("plan_levels", 60, NULL, drop_kept)); }
