/* SPDX-License-Identifier: Apache-2.0
 *
 * The NVML probe against fake_nvml.c, which answers as machines do that are named: the model, what is derived from it,
 * and that the library is shut down and closed whatever it answered. */
#include <dlfcn.h>

#include "topo/derive/levels.h"
#include "topo/probe/nvml.h"
#include "topo/probe/probe.h"
#include "topo/model/speed.h"
#include "tests/topo/topo_sysfs.h"
#include "tests/topo/topo_util.h"

extern const bny_topo_probe bny_topo_probe_nvml;

static void library_path(bool old, char path[4096]) {
  const char *build = getenv("top_builddir");
  snprintf(path, 4096, "%s/tests/topo/.libs/fake_nvml%s.so", build ? build : ".", old ? "_old" : "");
}

static bny_topo_probe_report probe_at(const char *path, const char *sysfs, const char *machine, bny_topo *topo) {
  bny_topo_probe_options options = {.sysfs = sysfs, .nvml = path};
  bny_topo_probe_report report = {.name = bny_topo_probe_nvml.name, .outcome = BNY_TOPO_PROBE_OUTCOMES};
  bny_topo_error error = {0};
  setenv("FAKE_NVML", machine, 1);
  bny_topo_probe_nvml.run(&options, topo, &report);
  ck_assert_msg(!getenv("FAKE_NVML_OPEN"), "%s: was not shut down", machine);
  ck_assert_msg(!dlopen(path, RTLD_NOW | RTLD_NOLOAD), "%s: was not closed", machine);
  ck_assert_msg(bny_topo_check(topo, &error), "%s: %s", machine, error.text);
  ck_assert_msg(report.outcome < BNY_TOPO_PROBE_OUTCOMES && report.text[0], "%s: says nothing", machine);
  return report;
}

static bny_topo_probe_report probe(const char *machine, bny_topo *topo) {
  char path[4096];
  library_path(false, path);
  return probe_at(path, "/nowhere", machine, topo);
}

/* Into a model of its own, which is found. */
static bny_topo *probe_new(const char *machine, const char *says) {
  bny_topo *topo = topo_new();
  bny_topo_probe_report report = probe(machine, topo);
  ck_assert_msg(report.outcome == BNY_TOPO_PROBE_FOUND && strcmp(report.text, says) == 0, "%s: outcome %d, \"%s\"",
                machine, (int)report.outcome, report.text);
  return topo;
}

static int32_t gpu(const bny_topo *topo, int32_t number) { return named(topo, BNY_TOPO_GPU, numbered("GPU", number)); }

/* Sums over a node's links of one kind. */
typedef struct sums {
  int32_t links, count, rejected;
  double gbytes_per_s, rated;
} sums;

static sums sum(const bny_topo *topo, int32_t node, bny_topo_link_kind kind) {
  sums s = {0};
  for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) {
    const bny_topo_link *link = &topo->links[l];
    if (link->kind != kind) continue;
    ck_assert_int_eq(link->source, BNY_TOPO_PROBED);
    s.links++;
    s.count += link->count;
    s.rejected += link->gbytes_per_s <= 0 && link->rated_gbytes_per_s > 0;
    s.gbytes_per_s += link->gbytes_per_s;
    s.rated += link->rated_gbytes_per_s;
  }
  return s;
}

static int32_t findings(const bny_topo_levels *levels, bny_topo_severity severity, const char *part) {
  int32_t found = 0;
  for (int32_t i = 0; i < levels->nfindings; i++)
    found += levels->findings[i].severity >= severity && strstr(levels->findings[i].text, part) != NULL;
  return found;
}

static const bny_topo_level *islands_of(const bny_topo_levels *levels) {
  const bny_topo_level *islands = bny_topo_level_of(levels, BNY_TOPO_LEVEL_ISLAND);
  ck_assert_ptr_nonnull(islands);
  return islands;
}

static bool near(double a, double b) { return fabs(a - b) < 1e-6 * (1 + fabs(b)); }

/* ---- NVSwitches -------------------------------------------------------------------------------------------------- */

TEST(switches) {
  bny_topo *topo = probe_new("dgx-h100", "8 GPUs, 144 NVLinks by 4 NVSwitches");
  double one = bny_topo_speed_nvlink(90);
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_HOST), 1);
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_GPU), 8);
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_SWITCH), 4);
  for (int32_t g = 0; g < 8; g++) {
    const bny_topo_node *node = &topo->nodes[gpu(topo, g)];
    ck_assert_str_eq(node->model, "NVIDIA H100 80GB HBM3");
    ck_assert_str_eq(node->vendor, "NVIDIA");
    ck_assert_int_eq(node->compute, 90);
    ck_assert_int_eq(node->index, g);
    ck_assert_int_eq(node->source, BNY_TOPO_PROBED);
    ck_assert_int_eq(topo->nodes[node->parent].kind, BNY_TOPO_HOST);
    ck_assert_int_eq(strncmp(node->guid, "GPU-", 4), 0);
    sums nvl = sum(topo, gpu(topo, g), BNY_TOPO_LINK_NVLINK), pci = sum(topo, gpu(topo, g), BNY_TOPO_LINK_PCI);
    ck_assert_int_eq(nvl.links, 4);
    ck_assert_int_eq(nvl.count, 18);
    ck_assert(near(nvl.gbytes_per_s, 18 * one) && near(nvl.rated, 18 * one));
    ck_assert_int_eq(pci.count, 16); /* idle, and yet of its generation */
    ck_assert(near(pci.gbytes_per_s, bny_topo_speed_pci(5, 16)) && near(pci.rated, pci.gbytes_per_s));
  }
  ck_assert_str_eq(topo->nodes[gpu(topo, 3)].bus_id, "0000:61:00.0");
  ck_assert_int_ge(bny_topo_find_bus(topo, "0000:07:00.0"), 0);
  bny_topo_levels *levels = topo_derive(topo);
  const bny_topo_level *islands = islands_of(levels);
  ck_assert_int_eq(islands->ngroups, 1);
  ck_assert(islands->groups[0].all_to_all && islands->groups[0].uniform);
  ck_assert(near(islands->groups[0].gbytes_per_s, 18 * one));
  ck_assert_int_eq(findings(levels, BNY_TOPO_WARNING, ""), 0);
}

TEST(links_down) {
  bny_topo *topo = probe_new("dgx-h100-gpu3-12-links", "8 GPUs, 138 NVLinks by 4 NVSwitches, 6 down");
  double one = bny_topo_speed_nvlink(90);
  sums fewer = sum(topo, gpu(topo, 3), BNY_TOPO_LINK_NVLINK), all = sum(topo, gpu(topo, 4), BNY_TOPO_LINK_NVLINK);
  ck_assert_int_eq(fewer.count, 12);
  ck_assert(near(fewer.gbytes_per_s, 12 * one) && near(fewer.rated, 18 * one));
  ck_assert(near(all.gbytes_per_s, 18 * one) && near(all.rated, 18 * one));
  bny_topo_levels *levels = topo_derive(topo);
  ck_assert_int_eq(findings(levels, BNY_TOPO_FAULT, "GPU3: 12 of 18 NVLinks, so the whole domain runs at that pace"),
                   1);
  ck_assert_int_eq(findings(levels, BNY_TOPO_FAULT, ""), 1);
  ck_assert(!islands_of(levels)->groups[0].uniform);

  /* All alike: no sibling shows it, but each knows what it has. */
  topo = probe_new("dgx-h100-all-12-links", "8 GPUs, 96 NVLinks by 4 NVSwitches, 48 down");
  fewer = sum(topo, gpu(topo, 0), BNY_TOPO_LINK_NVLINK);
  ck_assert(near(fewer.gbytes_per_s, 12 * one) && near(fewer.rated, 18 * one));
}

TEST(slower) {
  bny_topo *topo = probe_new("dgx-h100-gpu2-slow", "8 GPUs, 144 NVLinks by 4 NVSwitches");
  sums slow = sum(topo, gpu(topo, 2), BNY_TOPO_LINK_NVLINK), full = sum(topo, gpu(topo, 1), BNY_TOPO_LINK_NVLINK);
  ck_assert(near(slow.gbytes_per_s, slow.rated / 2) && near(full.gbytes_per_s, full.rated));
  bny_topo_levels *levels = topo_derive(topo);
  ck_assert_int_eq(findings(levels, BNY_TOPO_FAULT, "GPU2: its nvlink links have"), 1);
  ck_assert_int_eq(findings(levels, BNY_TOPO_FAULT, ""), 1);

  topo = probe_new("dgx-h100-gpu4-8-lanes", "8 GPUs, 144 NVLinks by 4 NVSwitches");
  sums pci = sum(topo, gpu(topo, 4), BNY_TOPO_LINK_PCI);
  ck_assert_int_eq(pci.count, 8);
  ck_assert(near(pci.gbytes_per_s, bny_topo_speed_pci(5, 8)) && near(pci.rated, bny_topo_speed_pci(5, 16)));
  levels = topo_derive(topo);
  ck_assert_int_eq(findings(levels, BNY_TOPO_FAULT, "GPU4: its PCI link has 8 lanes, those of its siblings 16"), 1);
}

TEST(one_is_out) {
  bny_topo *topo =
      probe_new("dgx-h100-gpu6-not-registered", "8 GPUs, 144 NVLinks by 4 NVSwitches, 18 without peer access");
  sums out = sum(topo, gpu(topo, 6), BNY_TOPO_LINK_NVLINK), in = sum(topo, gpu(topo, 5), BNY_TOPO_LINK_NVLINK);
  ck_assert_int_eq(out.rejected, 4);
  ck_assert(near(out.rated, 18 * bny_topo_speed_nvlink(90)));
  ck_assert_int_eq(in.rejected, 0);
  bny_topo_levels *levels = topo_derive(topo);
  ck_assert_int_eq(islands_of(levels)->ngroups, 2);
  ck_assert_int_eq(findings(levels, BNY_TOPO_FAULT, "GPU6: the driver says of its fabric: state"), 1);
  ck_assert_int_eq(findings(levels, BNY_TOPO_FAULT, ""), 1);

  topo = probe_new("dgx-h100-gpu5-lost", "7 GPUs, 126 NVLinks by 4 NVSwitches; GPU 5 does not answer: GPU is lost");
  ck_assert_int_eq(bny_topo_find_name(topo, BNY_TOPO_GPU, "GPU5"), -1);
  ck_assert_int_eq(topo->nodes[gpu(topo, 7)].index, 7);

  topo = probe_new("one-bus", "1 GPU, 18 NVLinks by 4 NVSwitches; GPU 1 and others do not answer: Unknown Error");
}

TEST(hidden_switches) {
  bny_topo *topo = probe_new("hgx-h100-vm", "8 GPUs, 144 NVLinks by 1 NVSwitch");
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_SWITCH), 1);
  ck_assert_ptr_null(topo->nodes[bny_topo_find_name(topo, BNY_TOPO_SWITCH, "nvswitch0")].bus_id);
  bny_topo_levels *levels = topo_derive(topo);
  ck_assert(islands_of(levels)->groups[0].all_to_all);
}

/* ---- links from GPU to GPU --------------------------------------------------------------------------------------- */

TEST(mesh) {
  bny_topo *topo = probe_new("v100-mesh", "8 GPUs, 24 NVLinks");
  for (int32_t g = 0; g < 8; g++) {
    sums nvl = sum(topo, gpu(topo, g), BNY_TOPO_LINK_NVLINK);
    ck_assert_int_eq(nvl.links, 4);
    ck_assert_int_eq(nvl.count, 6);
    ck_assert(near(nvl.gbytes_per_s, 6 * bny_topo_speed_nvlink(70)));
  }
  ck_assert_int_eq(bny_topo_path_between(topo, gpu(topo, 0), gpu(topo, 4)), BNY_TOPO_PATH_NVL);
  ck_assert_int_ne(bny_topo_path_between(topo, gpu(topo, 0), gpu(topo, 5)), BNY_TOPO_PATH_NVL);
  bny_topo_levels *levels = topo_derive(topo);
  const bny_topo_level *islands = islands_of(levels);
  ck_assert_int_eq(islands->ngroups, 1);
  ck_assert(!islands->groups[0].all_to_all);
  ck_assert_int_eq(findings(levels, BNY_TOPO_WARNING, ""), 0);
  ck_assert_int_eq(findings(levels, BNY_TOPO_INFO, "but not each to each"), 1);

  topo = probe_new("v100-mesh-gpu0-0-links", "8 GPUs, 18 NVLinks");
  levels = topo_derive(topo);
  ck_assert_int_eq(findings(levels, BNY_TOPO_FAULT, "GPU0: no NVLink, 7 GPUs of its host have them"), 1);
}

TEST(no_peer) {
  bny_topo *topo = probe_new("no-peer", "8 GPUs, 24 NVLinks, 24 without peer access");
  sums nvl = sum(topo, gpu(topo, 0), BNY_TOPO_LINK_NVLINK);
  ck_assert_int_eq(nvl.rejected, 4);
  ck_assert(near(nvl.gbytes_per_s, 0) && near(nvl.rated, 6 * bny_topo_speed_nvlink(70)));
  bny_topo_levels *levels = topo_derive(topo);
  ck_assert_int_eq(findings(levels, BNY_TOPO_FAULT, "GPU0, GPU1 and 6 others: 6 NVLinks, but no peer access"), 1);
  ck_assert_int_eq(findings(levels, BNY_TOPO_FAULT, ""), 1);
  ck_assert_ptr_null(bny_topo_level_of(levels, BNY_TOPO_LEVEL_ISLAND));
}

TEST(none) {
  bny_topo *topo = probe_new("l40s", "8 GPUs");
  ck_assert_int_eq(topo->nodes[gpu(topo, 7)].compute, 89);
  ck_assert_int_eq(sum(topo, gpu(topo, 7), BNY_TOPO_LINK_NVLINK).links, 0);
}

/* ---- with what is known already ---------------------------------------------------------------------------------- */

TEST(several_hosts) {
  bny_topo *topo = topo_new();
  int32_t host = put(topo, BNY_TOPO_HOST, -1, "tray", NULL);
  for (int32_t n = 0; n < 2; n++) {
    int32_t numa = put(topo, BNY_TOPO_NUMA, host, n ? "node1" : "node0", NULL);
    topo->nodes[numa].index = n;
  }
  bny_topo_probe_report report = probe("gb200", topo);
  ck_assert_str_eq(report.text, "4 GPUs, 72 NVLinks in NVLink domain 10111213-1415-1617-1819-1a1b1c1d1e1f.3");
  int32_t domain = bny_topo_find_name(topo, BNY_TOPO_SWITCH, "nvlink0");
  ck_assert_int_ge(domain, 0);
  ck_assert_int_eq(topo->nodes[domain].parent, -1);
  ck_assert_str_eq(topo->nodes[domain].guid, "10111213-1415-1617-1819-1a1b1c1d1e1f.3");
  for (int32_t g = 0; g < 4; g++) {
    sums nvl = sum(topo, gpu(topo, g), BNY_TOPO_LINK_NVLINK), cpu = sum(topo, gpu(topo, g), BNY_TOPO_LINK_C2C);
    ck_assert_int_eq(nvl.links, 1);
    ck_assert_int_eq(nvl.count, 18);
    ck_assert_int_eq(topo->nodes[topo->nodes[gpu(topo, g)].parent].index, g / 2); /* its NUMA node */
    ck_assert_int_eq(cpu.count, 10);
    ck_assert(near(cpu.gbytes_per_s, 447.12) && near(cpu.rated, 447.12));
  }
  bny_topo_levels *levels = topo_derive(topo);
  ck_assert_int_eq(islands_of(levels)->ngroups, 1);
  ck_assert_int_eq(findings(levels, BNY_TOPO_WARNING, ""), 0);
}

TEST(found_by_bus) {
  bny_topo *topo = topo_new();
  int32_t host = put(topo, BNY_TOPO_HOST, -1, "known", NULL);
  int32_t numa = put(topo, BNY_TOPO_NUMA, host, "node1", NULL);
  topo->nodes[numa].index = 1;
  int32_t bridge = put(topo, BNY_TOPO_PCI, numa, "bridge", "0000:9c:00.0");
  int32_t known = put(topo, BNY_TOPO_GPU, bridge, "card3", "0000:9d:00.0");
  int32_t other = put(topo, BNY_TOPO_GPU, numa, "GPU0", "0000:aa:00.0"); /* a GPU of another vendor */
  int32_t bare = put(topo, BNY_TOPO_PCI, bridge, "device", "0000:c3:00.0");
  int32_t nvswitch = put(topo, BNY_TOPO_SWITCH, host, "switch", "0000:08:00.0");
  int32_t taken = put(topo, BNY_TOPO_PCI, host, "device", "0000:09:00.0");
  join(topo, BNY_TOPO_LINK_PCI, known, bridge, 3); /* read while it was idle */
  ck_assert_int_eq(probe("dgx-h100", topo).outcome, BNY_TOPO_PROBE_FOUND);
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_HOST), 1);
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_GPU), 9);
  ck_assert_int_eq(topo->nodes[known].index, 4);
  ck_assert_str_eq(topo->nodes[known].name, "card3");
  ck_assert_int_eq(topo->nodes[known].compute, 90);
  ck_assert_int_eq(topo->nodes[known].parent, bridge);
  sums pci = sum(topo, known, BNY_TOPO_LINK_PCI);
  ck_assert_int_eq(pci.links, 1);
  ck_assert(near(pci.gbytes_per_s, bny_topo_speed_pci(5, 16)));
  ck_assert_int_eq(topo->nodes[other].compute, -1);
  ck_assert_int_eq(topo->nodes[gpu(topo, 5)].parent, bare); /* NVML's GPU 5 is there */
  ck_assert_ptr_null(topo->nodes[gpu(topo, 5)].bus_id);
  ck_assert_int_eq(bny_topo_ancestor(topo, gpu(topo, 7), BNY_TOPO_NUMA), numa);
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_SWITCH), 4);
  ck_assert_int_eq(sum(topo, nvswitch, BNY_TOPO_LINK_NVLINK).links, 8);
  ck_assert_int_eq(sum(topo, taken, BNY_TOPO_LINK_NVLINK).links, 0);

  /* Known devices are corrected, not added again. */
  int32_t nodes = topo->nnodes, links = topo->nlinks;
  ck_assert_int_eq(probe("dgx-h100-gpu3-12-links", topo).outcome, BNY_TOPO_PROBE_FOUND);
  ck_assert_int_eq(topo->nlinks, links + 8); /* the switch without a bus id of its own */
  ck_assert_int_eq(topo->nnodes, nodes + 1);
}

/* ---- drivers that are old, broken or not there ------------------------------------------------------------------- */

TEST(old_driver) {
  char path[4096];
  const char *const lacks = "; this driver does not tell of link speeds, the fabric";
  library_path(true, path);
  bny_topo *topo = topo_new();
  bny_topo_probe_report report = probe_at(path, "/nowhere", "v100-mesh", topo);
  ck_assert_int_eq(report.outcome, BNY_TOPO_PROBE_FOUND);
  ck_assert_msg(strstr(report.text, "8 GPUs, 24 NVLinks;") && strstr(report.text, lacks), "%s", report.text);
  ck_assert_int_eq(sum(topo, gpu(topo, 0), BNY_TOPO_LINK_NVLINK).count, 6);

  /* NVML does not report the other end of these links; the system may know it. */
  topo = topo_new();
  report = probe_at(path, "/nowhere", "dgx-h100", topo);
  ck_assert_msg(strstr(report.text, "8 GPUs, 144 lead out of sight;"), "%s", report.text);
  tree t = tree_new();
  for (int i = 0; i < 4; i++) tree_file(&t, "0x068000", "bus/pci/devices/0000:%02x:00.0/class", 7 + i);
  topo = topo_new();
  report = probe_at(path, t.root, "dgx-h100", topo);
  ck_assert_msg(strstr(report.text, "8 GPUs, 144 NVLinks by 4 NVSwitches;"), "%s", report.text);
}

/* A call in eight fails, whichever: nothing is promised but a model that holds together, and words. */
TEST(calls_fail_at_random) {
  static const char *const on[] = {"dgx-h100", "v100-mesh", "gb200", "dgx-h100-gpu3-12-links"};
  char seed[16];
  int found = 0;
  for (int i = 0; i < 200; i++) {
    bny_topo *topo = topo_new();
    snprintf(seed, sizeof seed, "%d", 1 + i);
    setenv("FAKE_NVML_FAILS", seed, 1);
    found += probe(on[i % 4], topo).outcome == BNY_TOPO_PROBE_FOUND;
    topo_derive(topo);
  }
  unsetenv("FAKE_NVML_FAILS");
  ck_assert_int_gt(found, 150);
  ck_assert_int_lt(found, 200);
}

static const struct {
  const char *machine;
  bny_topo_outcome outcome;
  const char *says;
} nothing_found[] = {
    {"broken", BNY_TOPO_PROBE_FAILED, "nvmlDeviceGetCount_v2: Unknown Error"},
    {"all-lost", BNY_TOPO_PROBE_FAILED, "none of 8 GPUs answers: GPU is lost"},
    {"init-fails", BNY_TOPO_PROBE_FAILED, "nvmlInit_v2: Driver/library version mismatch"},
    {"no-driver", BNY_TOPO_PROBE_ABSENT, "nvmlInit_v2: Driver Not Loaded"},
    {"no-gpu", BNY_TOPO_PROBE_NOTHING, "the driver has no GPU"},
    {"absurd", BNY_TOPO_PROBE_FAILED, "4000000000 GPUs, which no machine has"},
};

TEST_LOOP(nothing, (int)(sizeof nothing_found / sizeof nothing_found[0])) {
  bny_topo *topo = topo_new();
  bny_topo_probe_report report = probe(nothing_found[_i].machine, topo);
  ck_assert_int_eq(report.outcome, nothing_found[_i].outcome);
  ck_assert_str_eq(report.text, nothing_found[_i].says);
  ck_assert_int_eq(topo->nnodes, 0);
}

TEST(no_library) {
  bny_topo *topo = topo_new();
  bny_topo_probe_report report = probe_at("libno-such-thing.so.1", NULL, "dgx-h100", topo);
  ck_assert_int_eq(report.outcome, BNY_TOPO_PROBE_ABSENT);
  ck_assert_str_eq(report.text, "libno-such-thing.so.1 is not there: no NVIDIA driver");
  bny_topo_probe_options options = {.nvml = "libm.so.6"}; /* a library, of other things */
  bny_topo_probe_nvml.run(&options, topo, &report);
  ck_assert_int_eq(report.outcome, BNY_TOPO_PROBE_FAILED);
  ck_assert_ptr_nonnull(strstr(report.text, "has no nvmlInit_v2"));
  options.nvml = "/dev/null";
  bny_topo_probe_nvml.run(&options, topo, &report);
  ck_assert_int_eq(report.outcome, BNY_TOPO_PROBE_FAILED);
  ck_assert_int_eq(topo->nnodes, 0);
}

int main(void) {
  char path[4096];
  library_path(false, path);
  if (access(path, R_OK) != 0) {
    fprintf(stderr, "no %s: skipped\n", path);
    return 77;
  }
  return suite_main(suite_with("topo_nvml", 0, NULL, drop_kept));
}
