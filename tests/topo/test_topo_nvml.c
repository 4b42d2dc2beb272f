/* SPDX-License-Identifier: Apache-2.0
 * The NVML probe against fake_nvml.c, which answers as a named machine. The tests check the model, the findings, and
 * that the library is shut down and closed after any answer. */
#include <dlfcn.h>

#include "topo/levels/levels.h"
#include "topo/probe/nvml.h"
#include "topo/probe/probe.h"
#include "topo/model/speed.h"
#include "tests/topo/topo_util.h"

static void library_path(char path[4096]) {
  const char *build = getenv("top_builddir");
  snprintf(path, 4096, "%s/tests/topo/.libs/fake_nvml.so", build ? build : ".");
}

static bny_topo_probe_report probe_at(const char *path, const char *machine, bny_topo *topo) {
  bny_topo_probe_options options = {.nvml = path};
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
  library_path(path);
  return probe_at(path, machine, topo);
}

/* Probes a machine, which must succeed, and returns the model. */
static bny_topo *probe_new(const char *machine, const char *says) {
  bny_topo *topo = topo_new();
  bny_topo_probe_report report = probe(machine, topo);
  ck_assert_msg(report.outcome == BNY_TOPO_PROBE_FOUND && strcmp(report.text, says) == 0, "%s: outcome %d, \"%s\"",
                machine, (int)report.outcome, report.text);
  return topo;
}

#define H100_LINKS "4/18/370.8/370.8/0"

/* The probe must report this text about a machine, and its model must have these facts. */
static const struct {
  const char *machine, *says, *facts;
} machines[] = {
    /* PCI links are idle, but have the speed of their generation */
    {"dgx-h100", "8 GPUs, 144 NVLinks by 4 NVSwitches",
     "1 host; 8 gpu; 4 switch; GPU0 vendor NVIDIA; GPU0 compute 90; GPU7 number 7; GPU0 source probed; GPU0 kind gpu;"
     "GPU0 nvlink " H100_LINKS "; GPU7 nvlink " H100_LINKS "; GPU0 pci 1/16/48/48/0; GPU3 bus 0000:61:00.0;"
     "0000:07:00.0 kind switch; 1 island; island shape all,even; island speed 370.8; no note; no fault"},
    {"dgx-h100-gpu3-12-links", "8 GPUs, 138 NVLinks by 4 NVSwitches, 6 down",
     "GPU3 nvlink 4/12/247.2/370.8/0; GPU4 nvlink " H100_LINKS "; 1 faults; island shape all,uneven;"
     "fault GPU3: 12 of 18 NVLinks"},
    /* all GPUs are alike, so no sibling differs, but each reports its own maximum */
    {"dgx-h100-all-12-links", "8 GPUs, 96 NVLinks by 4 NVSwitches, 48 down", "GPU0 nvlink 4/12/247.2/370.8/0"},
    {"dgx-h100-gpu2-slow", "8 GPUs, 144 NVLinks by 4 NVSwitches",
     "GPU2 nvlink 4/18/185.4/370.8/0; GPU1 nvlink " H100_LINKS "; 1 faults; fault GPU2: its nvlink links have"},
    {"dgx-h100-gpu4-8-lanes", "8 GPUs, 144 NVLinks by 4 NVSwitches",
     "GPU4 pci 1/8/24/48/0; fault GPU4: its PCI link has 8 lanes, those of its siblings 16"},
    {"dgx-h100-gpu6-not-registered", "8 GPUs, 144 NVLinks by 4 NVSwitches, 18 without peer access",
     "GPU6 nvlink 4/18/0/370.8/4; GPU5 nvlink " H100_LINKS "; 2 island; 1 faults;"
     "fault GPU6: the driver says of its fabric: state"},
    {"dgx-h100-gpu5-lost", "7 GPUs, 126 NVLinks by 4 NVSwitches; GPU 5 does not answer: GPU is lost",
     "7 gpu; GPU7 number 7"},
    {"one-bus", "1 GPU, 18 NVLinks by 4 NVSwitches; GPU 1 and others do not answer: Unknown Error", "1 gpu"},
    {"hgx-h100-vm", "8 GPUs, 144 NVLinks by 1 NVSwitch", "1 switch; nvswitch0 bus none; island shape all,even"},
    /* links from GPU to GPU */
    {"v100-mesh", "8 GPUs, 24 NVLinks",
     "GPU0 nvlink 4/6/120/120/0; GPU7 nvlink 4/6/120/120/0; GPU0 GPU4 NVL; GPU0 GPU5 SYS; 1 island;"
     "island shape partial,even; no note; no fault"},
    {"v100-mesh-gpu0-0-links", "8 GPUs, 18 NVLinks", "fault GPU0: no NVLink, 7 GPUs of its host have them"},
    {"no-peer", "8 GPUs, 24 NVLinks, 24 without peer access",
     "GPU0 nvlink 4/6/0/120/4; 0 island; 1 faults; fault GPU0, GPU1 and 6 others: 6 NVLinks, but no peer access"},
    {"l40s", "8 GPUs", "GPU7 compute 89; GPU7 nvlink 0/0/0/0/0"},
};

TEST_LOOP(found, (int)(sizeof machines / sizeof machines[0])) {
  bny_topo *topo = probe_new(machines[_i].machine, machines[_i].says);
  ck_facts(topo, machines[_i].facts);
  for (int32_t n = 0; n < topo->nnodes; n++) {
    const bny_topo_node *node = &topo->nodes[n];
    if (node->kind == BNY_TOPO_GPU) ck_assert(node->guid && strncmp(node->guid, "GPU-", 4) == 0 && node->model);
  }
  for (int32_t l = 0; l < topo->nlinks; l++) ck_assert_int_eq(topo->links[l].source, BNY_TOPO_PROBED);
}

/* ---- probes of a known model ------------------------------------------------------------------------------------- */

static const char domain[] = "10111213-1415-1617-1819-1a1b1c1d1e1f.3";

TEST(several_hosts) {
  bny_topo *topo = topo_new();
  int32_t host = put(topo, BNY_TOPO_HOST, -1, "tray", NULL);
  for (int32_t n = 0; n < 2; n++) topo->nodes[put(topo, BNY_TOPO_NUMA, host, numbered("node", n), NULL)].index = n;
  bny_topo_probe_report report = probe("gb200", topo);
  ck_assert_msg(strcmp(report.text, "4 GPUs, 72 NVLinks in NVLink domain 10111213-1415-1617-1819-1a1b1c1d1e1f.3") == 0,
                "%s", report.text);
  ck_assert_str_eq(topo->nodes[node_of(topo, "nvlink0")].guid, domain);
  ck_facts(topo,
           "nvlink0 parent none; GPU0 nvlink 1/18/721.8/721.8/0; GPU1 c2c 1/10/447.12/447.12/0; GPU1 parent node0;"
           "GPU2 parent node1; GPU3 nvlink 1/18/721.8/721.8/0; 1 island; no note; no fault");
}

/* Known devices are found by their bus ids, and their links are corrected. A GPU of another vendor stays, even with
 * the name of a probed GPU. A GPU whose bus id another device has in the model has none. */
TEST(found_by_bus) {
  bny_topo *topo = topo_new();
  int32_t host = put(topo, BNY_TOPO_HOST, -1, "known", NULL), numa = put(topo, BNY_TOPO_NUMA, host, "node1", NULL);
  topo->nodes[numa].index = 1;
  int32_t bridge = put(topo, BNY_TOPO_PCI, numa, "bridge", "0000:9c:00.0");
  int32_t known = put(topo, BNY_TOPO_GPU, bridge, "card3", "0000:9d:00.0");
  put(topo, BNY_TOPO_GPU, numa, "GPU0", "0000:aa:00.0");
  put(topo, BNY_TOPO_NIC, bridge, "device", "0000:c3:00.0");
  put(topo, BNY_TOPO_SWITCH, host, "switch", "0000:08:00.0");
  put(topo, BNY_TOPO_PCI, host, "taken", "0000:09:00.0");
  join(topo, BNY_TOPO_LINK_PCI, known, bridge, 3); /* speed of an idle link */
  ck_assert_int_eq(probe("dgx-h100", topo).outcome, BNY_TOPO_PROBE_FOUND);
  ck_facts(topo,
           "1 host; 9 gpu; 4 switch; card3 number 4; card3 compute 90; card3 parent bridge; card3 pci 1/16/48/48/0;"
           "0000:aa:00.0 compute -1; GPU5 bus none; GPU7 numa node1; 0000:09:00.0 nvlink "
           "0/0/0/0/0; 0000:08:00.0 nvlink 8/40/824/824/0");
}

/* ---- broken and missing drivers ---------------------------------------------------------------------------------- */

/* One call in eight fails at random. The model must still pass its check, and the report must have a text. */
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
  bny_topo_probe_report report = probe_at("libno-such-thing.so.1", "dgx-h100", topo);
  ck_assert_int_eq(report.outcome, BNY_TOPO_PROBE_ABSENT);
  ck_assert_str_eq(report.text, "libno-such-thing.so.1 is not there: no NVIDIA driver");
  bny_topo_probe_options options = {.nvml = "libm.so.6"}; /* a library without NVML's functions */
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
  library_path(path);
  if (access(path, R_OK) != 0) {
    fprintf(stderr, "no %s: skipped\n", path);
    return 77;
  }
  return suite_main(suite_with("topo_nvml", 0, NULL, drop_kept));
}
