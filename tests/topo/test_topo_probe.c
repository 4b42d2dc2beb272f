/* SPDX-License-Identifier: Apache-2.0
 * The probe of sysfs, on made-up machines and on this machine. */
#include "topo/levels/levels.h"
#include "topo/probe/probe.h"
#include "topo/probe/util.h"
#include "tests/topo/topo_sysfs.h"
#include "tests/topo/topo_util.h"

#define BRIDGE "0x060400"
#define GPU "0x030200"
#define ETHERNET "0x020000"
#define INFINIBAND "0x020700"
#define GEN1 "2.5 GT/s PCIe"
#define GEN4 "16.0 GT/s PCIe"
#define GEN5 "32.0 GT/s PCIe"

#define LEFT_SWITCH "pci0000:16/0000:16:01.0/0000:17:00.0"
#define RIGHT_SWITCH "pci0000:97/0000:97:01.0/0000:98:00.0"
#define LEFT_NIC LEFT_SWITCH "/0000:18:01.0/0000:1a:00.0"
#define RIGHT_NIC RIGHT_SWITCH "/0000:99:01.0/0000:9b:00.0"

/* Each of two sockets has a switch with an idle GPU and a NIC. One NIC and a management controller are elsewhere. */
static const tree_device dgx[] = {
    {"pci0000:16/0000:16:01.0", BRIDGE, "0x8086", "0", GEN5, "16", GEN5, "16"},
    {LEFT_SWITCH, BRIDGE, "0x1000", "0", GEN5, "16", GEN5, "16"},
    {LEFT_SWITCH "/0000:18:00.0", BRIDGE, "0x1000", "0", GEN5, "16", GEN1, "16"},
    {LEFT_SWITCH "/0000:18:01.0", BRIDGE, "0x1000", "0", GEN5, "16", GEN5, "16"},
    {LEFT_SWITCH "/0000:18:00.0/0000:1b:00.0", GPU, "0x10de", "0", GEN5, "16", GEN1, "16"},
    {LEFT_NIC, INFINIBAND, "0x15b3", "0", GEN5, "16", GEN5, "16"},
    {"pci0000:97/0000:97:01.0", BRIDGE, "0x8086", "1", GEN5, "16", GEN5, "16"},
    {RIGHT_SWITCH, BRIDGE, "0x1000", "1", GEN5, "16", GEN5, "16"},
    {RIGHT_SWITCH "/0000:99:00.0", BRIDGE, "0x1000", "1", GEN5, "16", GEN1, "16"},
    {RIGHT_SWITCH "/0000:99:01.0", BRIDGE, "0x1000", "1", GEN5, "16", GEN5, "16"},
    {RIGHT_SWITCH "/0000:99:00.0/0000:9a:00.0", GPU, "0x10de", "1", GEN5, "16", GEN1, "16"},
    {RIGHT_NIC, INFINIBAND, "0x15b3", "1", GEN5, "16", GEN5, "16"},
    {"pci0000:00/0000:00:1c.0", BRIDGE, "0x8086", "0", GEN4, "4", GEN4, "4"},
    {"pci0000:00/0000:00:1c.0/0000:03:00.0", ETHERNET, "0x8086", "0", GEN5, "8", GEN4, "4"},
    {"pci0000:00/0000:00:1d.0/0000:04:00.0", "0x030000", "0x1a03", "0", NULL, NULL, NULL, NULL},
};
enum { DGX_DEVICES = sizeof dgx / sizeof dgx[0] };

static tree dgx_tree(void) {
  tree t = tree_new();
  tree_numa(&t, 0, 0, 0, 3);
  tree_numa(&t, 1, 1, 4, 7);
  tree_file(&t, "", "devices/system/node/node2/cpulist"); /* a node without CPUs */
  for (int i = 0; i < DGX_DEVICES; i++) tree_pci(&t, dgx[i]);
  tree_interface(&t, LEFT_NIC, "infiniband", "mlx5_0");
  tree_interface(&t, LEFT_NIC, "net", "ibs1");
  tree_interface(&t, RIGHT_NIC, "infiniband", "mlx5_1");
  tree_interface(&t, "pci0000:00/0000:00:1c.0/0000:03:00.0", "net", "eno1");
  tree_file(&t, "10000", "class/net/eno1/speed");
  return t;
}

/* Returns the model of a machine. *said becomes the report of the probe of sysfs. */
static bny_topo *probe(const char *sysfs, bny_topo_probe_report *said) {
  bny_topo_probe_options options = {.sysfs = sysfs, .nvml = "/nowhere/libnvidia-ml.so.1"};
  bny_topo_probe_report reports[BNY_TOPO_PROBES];
  bny_topo_error error = {0};
  bny_topo *topo = keep(bny_topo_probe_machine(&options, reports, &error), drop_topo);
  ck_assert_msg(topo != NULL, "%s", error.text);
  *said = reports[0];
  ck_assert_str_eq(said->name, "sysfs");
  return topo;
}

/* ---- sysfs ------------------------------------------------------------------------------------------------------- */

TEST(two_sockets) {
  tree t = dgx_tree();
  bny_topo_probe_report said;
  bny_topo *topo = probe(t.root, &said);
  /* Three host bridges and two switches. An idle GPU has its rated speed. eno1's slot has generation 4 and 4 lanes. */
  ck_facts(
      topo,
      "1 host; 2 package; 2 numa; 2 gpu; 3 nic; 5 pci; GPU0 bus 0000:1b:00.0; GPU1 bus 0000:9a:00.0;"
      "GPU1 number 1; GPU0 vendor NVIDIA; mlx5_0 bus 0000:1a:00.0; eno1 bus 0000:03:00.0; GPU1 numa node1;"
      "GPU1 package package1; GPU0 mlx5_0 PIX; GPU0 GPU1 SYS; GPU0 eno1 NODE; GPU0 pci 1/16/48/48/0;"
      "mlx5_0 pci 1/16/48/48/0; 0000:17:00.0 parent pci0000:16; eno1 pci 1/4/6/6/0; 1 port; port/1 eno1 link 1x1.25");
  ck_assert_int_eq(said.outcome, BNY_TOPO_PROBE_FOUND);
  ck_assert_str_eq(said.text, "2 packages, 2 NUMA nodes, 2 GPUs on PCI, 3 NICs on PCI, 7 PCI links say their rating");
  for (int32_t n = 0; n < topo->nnodes; n++) ck_assert_int_eq(topo->nodes[n].source, BNY_TOPO_PROBED);
}

/* Siblings have 48 GB/s, so a slower link is found. */
TEST(below_rating) {
  static const struct {
    const char *file, *text, *facts;
  } cases[] = {
      {"devices/" LEFT_NIC "/current_link_width", "8", "mlx5_0 pci 1/8/24/48/0"},
      {"devices/" LEFT_NIC "/current_link_speed", GEN4, "mlx5_0 pci 1/16/24/48/0"},
      {"devices/" LEFT_NIC "/current_link_speed", "Unknown", "mlx5_0 pci 1/16/48/48/0"},
      {"devices/" LEFT_NIC "/current_link_width", "0", "mlx5_0 pci 1/16/48/48/0"},
      {"devices/" LEFT_NIC "/current_link_width", "255", "mlx5_0 pci 1/16/48/48/0"},
      {"devices/" LEFT_NIC "/max_link_speed", GEN4, "mlx5_0 pci 1/16/24/24/0"},
      {"devices/" LEFT_NIC "/max_link_speed", "7 GT/s", "mlx5_0 pci 1/16/48/48/0"}, /* the slot's speed counts */
      {"devices/" LEFT_SWITCH "/current_link_width", "8", "0000:17:00.0 pci0000:16 link 8x24"},
      {"devices/" LEFT_SWITCH "/current_link_speed", GEN1, "0000:17:00.0 pci0000:16 link 16x48"},
      {"devices/" RIGHT_SWITCH "/0000:99:00.0/0000:9a:00.0/current_link_width", "4", "GPU1 pci 1/4/12/48/0"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    tree t = dgx_tree();
    bny_topo_probe_report said;
    tree_file(&t, cases[i].text, "%s", cases[i].file);
    bny_topo *topo = probe(t.root, &said);
    ck_facts(topo, cases[i].facts);
    bool slow = strstr(cases[i].facts, "48") == NULL || strstr(cases[i].facts, "24") || strstr(cases[i].facts, "12/");
    bool below = slow && strstr(cases[i].facts, "24/24") == NULL;
    ck_assert_int_eq(strstr(said.text, ", 1 is below it") != NULL, below);
    topo_findings found = topo_diagnose(topo, topo_derive(topo), NULL);
    ck_assert_int_eq(
        has_finding(&found, TOPO_FAULT, "its PCI link ") || has_finding(&found, TOPO_NOTE, "its PCI link "), slow);
  }
}

/* Virtual functions and the second half of a bond do not count as NICs. virtio devices do. */
TEST(kinds_of_nics) {
  tree t = tree_new();
  tree_numa(&t, 0, 0, 0, 1);
  static const char *const paths[] = {"pci0000:00/0000:00:01.0/0000:01:00.0",
                                      "pci0000:00/0000:00:01.0/0000:01:00.1",
                                      "pci0000:00/0000:00:02.0/0000:02:00.0",
                                      "pci0000:00/0000:00:02.0/0000:02:00.1",
                                      "pci0000:00/0000:00:03.0",
                                      "pci0000:00/0000:00:04.0/0000:04:00.0",
                                      "pci0000:00/0000:00:04.0/0000:04:00.2"};
  for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
    tree_pci(&t, (tree_device){.path = paths[i], .class = ETHERNET, .vendor = "0x15b3", .numa = "-1"});
  /* 1: a function with an interface, and a virtual function. 4: only the virtual function has an interface. */
  tree_interface(&t, paths[0], "net", "eth0");
  tree_interface(&t, paths[1], "net", "eth1");
  tree_link(&t, "devices/pci0000:00/0000:00:01.0/0000:01:00.0", "devices/pci0000:00/0000:00:01.0/0000:01:00.1/physfn");
  tree_interface(&t, paths[6], "net", "eth9");
  tree_link(&t, "devices/pci0000:00/0000:00:04.0/0000:04:00.0", "devices/pci0000:00/0000:00:04.0/0000:04:00.2/physfn");
  /* 2: two ports bonded into one RDMA device. */
  tree_interface(&t, paths[2], "infiniband", "mlx5_bond_0");
  tree_bond(&t, &paths[2], (const char *const[]){"enp2s0f0", "enp2s0f1"});
  tree_interface(&t, "pci0000:00/0000:00:03.0/virtio2", "net", "eth2");
  tree_file(&t, "-1", "class/net/eth2/speed");
  tree_file(&t, "0x1af4", "devices/pci0000:00/0000:00:03.0/vendor");
  bny_topo_probe_report said;
  bny_topo *topo = probe(t.root, &said);
  ck_facts(topo, "0 port; eth0 bus 0000:01:00.0; mlx5_bond_0 bus 0000:02:00.0; eth2 bus 0000:00:03.0; eth2 numa node0;"
                 "eth9 bus 0000:04:00.2"); /* node0 is the only one */
  ck_assert(bny_topo_find_bus(topo, "0000:01:00.1") < 0 && bny_topo_find_bus(topo, "0000:02:00.1") < 0);
  ck_assert_double_eq(bny_topo_probe_bond_megabits(t.root, "0000:02:00.0"), 200000);
  ck_assert_double_eq(bny_topo_probe_bond_megabits(t.root, "0000:01:00.0"), 0);
  ck_assert_ptr_nonnull(strstr(said.text, "no GPU on PCI, 5 NICs on PCI"));
}

TEST(nothing_there) {
  tree t = tree_new();
  bny_topo_probe_report said;
  bny_topo *topo = probe(t.root, &said);
  ck_assert_int_eq(topo->nnodes, bny_topo_count(topo, BNY_TOPO_HOST));
  ck_assert_int_eq(said.outcome, BNY_TOPO_PROBE_ABSENT);
  tree_file(&t, "", "bus/pci/drivers_probe");
  topo = probe(t.root, &said);
  ck_assert_int_eq(said.outcome, BNY_TOPO_PROBE_NOTHING);
  ck_assert_str_eq(said.text, "no package, no NUMA node, no GPU on PCI, no NIC on PCI");
}

/* ---- malformed sysfs --------------------------------------------------------------------------------------------- */

TEST(strange_things) {
  tree t = dgx_tree();
  char whole[1024];
  static const char *const odd[] = {"...", "0000:zz:00.0", "0000:1b:00.0.0", "1b:00.0", "%s%n", "pci", "-1"};
  for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) tree_file(&t, GPU, "bus/pci/devices/%s/class", odd[i]);
  /* The tree has links to themselves, dangling links, circular links, a pipe, a directory and an endless file. */
  tree_link(&t, "bus/pci/devices/0000:aa:00.0", "bus/pci/devices/0000:aa:00.0");
  tree_link(&t, "nowhere", "bus/pci/devices/0000:ab:00.0");
  tree_link(&t, "bus/pci/devices", "bus/pci/devices/0000:ac:00.0");
  tree_link(&t, "devices/" LEFT_SWITCH, "devices/" LEFT_NIC "/virtio0");
  tree_file(&t, GPU, "bus/pci/devices/0000:ad:00.0/class");
  tree_file(&t, "0x10de", "bus/pci/devices/0000:ad:00.0/vendor");
  tree_path(&t, whole, "bus/pci/devices/0000:ae:00.0/class");
  ck_assert_int_eq(mkfifo(whole, 0600), 0);
  tree_file(&t, GPU, "bus/pci/devices/0000:af:00.0/class/class");
  tree_link(&t, "../../dev/zero", "bus/pci/devices/0000:b0:00.0/class");
  tree_path(&t, whole, "bus/pci/devices/0000:b1:00.0/class");
  ck_assert_int_eq(symlink("/dev/zero", whole), 0);
  tree_file(&t, "0-3,99999999999999999999-,x", "devices/system/node/node3/cpulist");
  tree_file(&t, "4294967296-4294967297", "devices/system/node/node4/cpulist");
  tree_file(&t, "0", "devices/system/node/node99999999/cpulist");
  tree_file(&t, "0", "devices/system/node/node-1/cpulist");
  bny_topo_probe_report said;
  bny_topo *topo = probe(t.root, &said);
  ck_facts(topo, "3 gpu; 4 numa");
  int32_t ad = bny_topo_find_bus(topo, "0000:ad:00.0"); /* its path does not show its position */
  ck_assert(ad >= 0 && topo->nodes[topo->nodes[ad].parent].kind == BNY_TOPO_HOST);
}

static uint64_t garbage_state;

static int spoil(const char *path, const struct stat *about, int kind, struct FTW *place) {
  (void)about;
  (void)place;
  if (kind == FTW_F && random_next(&garbage_state) % 4 == 0) {
    FILE *file = fopen(path, "w");
    uint64_t bytes = random_next(&garbage_state) % 3 == 0 ? 5000 : random_next(&garbage_state) % 12;
    for (uint64_t i = 0; file != NULL && i < bytes; i++) {
      uint64_t byte = random_next(&garbage_state);
      fputc(byte % 3 == 0 ? "0123456789xabcdef-, .\n\0GT/s"[byte / 3 % 27] : (int)(byte / 3 % 256), file);
    }
    if (file != NULL) fclose(file);
  }
  return 0;
}

TEST_LOOP(garbage, 40) {
  tree t = dgx_tree();
  garbage_state = 0x9e3779b97f4a7c15u + (uint64_t)_i;
  nftw(t.root, spoil, 16, FTW_PHYS);
  bny_topo_probe_options options = {.sysfs = t.root, .nvml = "/nowhere"};
  bny_topo_error error = {0};
  bny_topo *topo = keep(bny_topo_probe_machine(&options, NULL, &error), drop_topo);
  ck_assert_msg(topo != NULL, "seed %d: %s", _i, error.text);
}

/* ---- this machine ------------------------------------------------------------------------------------------------ */

TEST(this_machine) {
  bny_topo_probe_report reports[BNY_TOPO_PROBES];
  bny_topo_error error = {0};
  bny_topo *topo = keep(bny_topo_probe_machine(NULL, reports, &error), drop_topo);
  ck_assert_msg(topo != NULL, "%s", error.text);
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_HOST), 1);
  for (int32_t i = 0; i < BNY_TOPO_PROBES; i++) {
    ck_assert_str_eq(reports[i].name, ((const char *[BNY_TOPO_PROBES]){"sysfs", "nvml", "rdma"})[i]);
    ck_assert_int_lt(reports[i].outcome, BNY_TOPO_PROBE_OUTCOMES);
    ck_assert_msg(reports[i].text[0] != '\0', "%s says nothing", reports[i].name);
    printf("%s: %s: %s\n", reports[i].name, bny_topo_outcome_name(reports[i].outcome), reports[i].text);
  }
  bny_topo_levels *levels = topo_derive(topo);
  ck_assert_int_ge(levels->nranks, 1);
}

int main(void) { return suite_main(suite_with("topo_probe", 60, NULL, drop_kept)); }
