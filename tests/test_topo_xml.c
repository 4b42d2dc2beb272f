/* SPDX-License-Identifier: Apache-2.0
 * Importers of XML (NCCL, hwloc, nvidia-smi), NCCL's format out again, and what is refused. Examples of our own stand here;
 * dumps of real machines are looked at where there are any. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "topo/export.h"
#include "topo/model.h"
#include "topo/xml.h"
#include "topo_util.h"

#define NCCL_HEAD "<system version=\"1\">\n<cpu numaid=\"0\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"143\">\n"
#define NCCL_TAIL "</cpu>\n</system>\n"

/* Two GPUs below one switch, a third beside it, a NIC with two ports, one of a virtual machine, two NVSwitches. */
static const char nccl_example[] =
    "<!-- a comment first -->\n" NCCL_HEAD
    "<pci busid=\"ffff:ff:01.0\" class=\"0x060400\" link_speed=\"16 GT/s\" link_width=\"16\">\n"
    " <pci busid=\"0000:10:00.0\" class=\"0x030200\" vendor=\"0x10de\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">\n"
    "  <gpu dev=\"0\" sm=\"90\" rank=\"0\" gdr=\"1\"><nvlink target=\"0000:a0:00.0\" count=\"4\" tclass=\"0x068000\"/>\n"
    "   <nvlink target=\"0000:a1:00.0\" count=\"5\" tclass=\"0x068000\"/><nvlink target=\"0000:11:00.0\" count=\"2\" "
    "tclass=\"0x030200\"/></gpu>\n"
    " </pci>\n"
    " <pci busid=\"0000:11:00.0\" link_speed=\"\" link_width=\"0\">\n"
    "  <gpu dev=\"1\" sm=\"90\" rank=\"1\" gdr=\"1\"><nvlink target=\"0000:a0:00.0\" count=\"4\" tclass=\"0x068000\"/>\n"
    "   <nvlink target=\"0000:10:00.0\" count=\"1\" tclass=\"0x030200\"/></gpu>\n"
    " </pci>\n"
    " <pci busid=\"0000:12:00.0\" class=\"0x020700\" link_speed=\"32 GT/s PCIe/s\" link_width=\"8\">\n"
    "  <nic><net name=\"mlx5_0\" dev=\"0\" speed=\"400000\" port=\"1\" guid=\"0x1\" latency=\"1.5\"/>\n"
    "   <net name=\"mlx5_1\" dev=\"1\" speed=\"-1\" port=\"2\" guid=\"0x1\"/></nic>\n"
    " </pci>\n"
    "</pci>\n"
    "<nic><net name=\"eth0\" dev=\"2\" speed=\"0\" port=\"0\"/></nic>\n"
    "<pci busid=\"0000:20:00.0\" class=\"0x030200\"><gpu dev=\"2\" sm=\"90\" rank=\"2\"><nvlink target=\"fffffff:ffff:ff\" "
    "count=\"3\" tclass=\"0x068000\"/><c2c bw=\"450000\" count=\"1\"/></gpu></pci>\n"
    "</cpu>\n<cpu numaid=\"1\">\n<nic><net name=\"eth0\" dev=\"2\" speed=\"10000\" port=\"0\"/></nic>\n"
    "<future><pci busid=\"0000:99:00.0\"/></future>\n" NCCL_TAIL;

static const char hwloc_v2_example[] =
    "<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n"
    "<object type=\"Machine\" gp_index=\"1\"><info name=\"HostName\" value=\"a &amp; b\"/>\n"
    "<info name=\"Architecture\" value=\"x86_64\"/>\n"
    "<object type=\"Package\" os_index=\"0\" gp_index=\"2\"><info name=\"CPUVendor\" value=\"AuthenticAMD\"/>\n"
    " <object type=\"NUMANode\" os_index=\"0\" gp_index=\"3\"/><object type=\"L3Cache\" gp_index=\"4\"/>\n"
    " <object type=\"Bridge\" gp_index=\"5\" bridge_type=\"0-1\" bridge_pci=\"0000:[00-0f]\">\n"
    "  <object type=\"Bridge\" gp_index=\"6\" bridge_type=\"1-1\" pci_busid=\"0000:00:01.0\">\n"
    "   <object type=\"Bridge\" gp_index=\"7\" bridge_type=\"1-1\" pci_busid=\"0000:01:00.0\" pci_link_speed=\"31.507692\">\n"
    "    <object type=\"Bridge\" gp_index=\"8\" bridge_type=\"1-1\" pci_busid=\"0000:02:00.0\">\n"
    "     <object type=\"PCIDev\" gp_index=\"9\" pci_busid=\"0000:03:00.0\" pci_type=\"0302 [10de:2330] [10de:1] a1\" "
    "pci_link_speed=\"63.015385\"><object type=\"OSDev\" gp_index=\"10\" name=\"nvml1\" osdev_type=\"5\"/></object></object>\n"
    "    <object type=\"Bridge\" gp_index=\"11\" bridge_type=\"1-1\" pci_busid=\"0000:02:01.0\">\n"
    "     <object type=\"PCIDev\" gp_index=\"12\" pci_busid=\"0000:04:00.0\" pci_type=\"0207 [15b3:1021] [15b3:1] 00\">"
    "<object type=\"OSDev\" gp_index=\"13\" name=\"mlx5_0\" osdev_type=\"3\"><info name=\"Port1State\" value=\"4\"/>"
    "<info name=\"Port1GID0\" value=\"fe80:0000:0000:0000:9803:9b03:0082:9c64\"/></object></object></object>\n"
    "   </object></object>\n"
    "  <object type=\"Bridge\" gp_index=\"14\" bridge_type=\"1-1\" pci_busid=\"0000:00:02.0\">\n"
    "   <object type=\"PCIDev\" gp_index=\"15\" pci_busid=\"0000:05:00.0\" pci_type=\"0300 [1a03:2000] [0:0] 41\"/></object>\n"
    " </object>\n"
    " <object type=\"Bridge\" gp_index=\"16\" bridge_type=\"0-1\" bridge_pci=\"0000:[10-1f]\">\n"
    "  <object type=\"PCIDev\" gp_index=\"17\" pci_busid=\"0000:11:00.0\" pci_type=\"0302 [10de:2330] [10de:1] a1\">"
    "<object type=\"OSDev\" gp_index=\"18\" name=\"nvml0\" osdev_type=\"5\"/></object></object>\n"
    "</object></object>\n"
    "<distances2hetero nbobjs=\"2\" kind=\"25\" name=\"NVLinkBandwidth\"><indexes length=\"16\">OSDev:10 OSDev:18 </indexes>\n"
    "<u64values length=\"9\">0 100000 </u64values><u64values length=\"9\">75000 0 </u64values></distances2hetero>\n"
    "</topology>\n";

/* Of version 1 NUMA nodes hold what is near to them. */
static const char hwloc_v1_example[] =
    "<topology>\n<object type=\"Machine\" os_index=\"0\">\n"
    "<object type=\"NUMANode\" os_index=\"0\"><object type=\"Socket\" os_index=\"0\"><object type=\"Core\"/></object>\n"
    " <object type=\"Bridge\" bridge_type=\"0-1\" bridge_pci=\"0000:[00-0f]\"><object type=\"PCIDev\" pci_busid=\"0000:03:00.0\" "
    "pci_type=\"0302 [10de:1db4] [0:0] a1\" pci_link_speed=\"0.000000\"/></object></object>\n"
    "<object type=\"NUMANode\" os_index=\"1\"><object type=\"Socket\" os_index=\"1\"/>\n"
    " <object type=\"Bridge\" bridge_type=\"0-1\" bridge_pci=\"0000:[80-8f]\"><object type=\"PCIDev\" pci_busid=\"0000:83:00.0\" "
    "pci_type=\"0302 [10de:1db4] [0:0] a1\"/></object></object>\n"
    "</object></topology>\n";

static const char smi_example[] =
    "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log>\n"
    "<attached_gpus>2</attached_gpus>\n<gpu id=\"00000000:53:00.0\"><product_name>NVIDIA H100 80GB HBM3</product_name>\n"
    "<product_architecture>Hopper</product_architecture><uuid>GPU-1</uuid><pci><pci_gpu_link_info><pcie_gen>\n"
    "<max_link_gen>5</max_link_gen><current_link_gen>1</current_link_gen></pcie_gen><link_widths>"
    "<max_link_width>16x</max_link_width><current_link_width>8x</current_link_width></link_widths></pci_gpu_link_info></pci>\n"
    "<fabric><state>Completed</state><status>Success</status><cliqueId>0</cliqueId>"
    "<clusterUuid>00000000-0000-0000-0000-000000000000</clusterUuid></fabric></gpu>\n"
    "<gpu id=\"00000000:64:00.0\"><product_name>NVIDIA H100 80GB HBM3</product_name>\n"
    "<product_architecture>Hopper</product_architecture><fabric><state>In Progress</state><status>N/A</status></fabric></gpu>\n"
    "</nvidia_smi_log>\n";

static bny_topo *import(const char *text, const char *importer) {
  bny_topo_error error = {.text = ""};
  const char *name = NULL;
  bny_topo *topo = bny_topo_import(text, strlen(text), &name, &error);
  ck_assert_msg(topo != NULL, "line %d: %s", error.line, error.text);
  ck_assert_str_eq(name, importer);
  return topo;
}

static int32_t named(const bny_topo *topo, bny_topo_kind kind, const char *name) {
  int32_t node = bny_topo_find_name(topo, kind, name);
  ck_assert_msg(node >= 0, "there is no %s %s", bny_topo_kind_name(kind), name);
  return node;
}

static const bny_topo_link *between(const bny_topo *topo, int32_t a, int32_t b) {
  for (int32_t l = bny_topo_first_link(topo, a); l >= 0; l = bny_topo_next_link(topo, a, l)) {
    if (bny_topo_other_end(topo, a, l) == b) {
      return &topo->links[l];
    }
  }
  ck_abort_msg("%s and %s are not linked", topo->nodes[a].name, topo->nodes[b].name);
  return NULL;
}

static int32_t links_of_kind(const bny_topo *topo, bny_topo_link_kind kind) {
  int32_t count = 0;
  for (int32_t l = 0; l < topo->nlinks; l++) {
    count += topo->links[l].kind == kind;
  }
  return count;
}

START_TEST(nccl) {
  bny_topo *t = import(nccl_example, "nccl-xml");
  ck_assert_int_eq(bny_topo_count(t, BNY_TOPO_HOST), 1);
  ck_assert_int_eq(bny_topo_count(t, BNY_TOPO_NUMA), 2);
  ck_assert_int_eq(bny_topo_count(t, BNY_TOPO_PCI), 1);
  ck_assert_int_eq(bny_topo_count(t, BNY_TOPO_GPU), 3);
  ck_assert_int_eq(bny_topo_count(t, BNY_TOPO_NIC), 3);
  ck_assert_int_eq(bny_topo_count(t, BNY_TOPO_PORT), 4);
  ck_assert_int_eq(bny_topo_count(t, BNY_TOPO_SWITCH), 3);
  int32_t g0 = named(t, BNY_TOPO_GPU, "GPU0"), g1 = named(t, BNY_TOPO_GPU, "GPU1"), g2 = named(t, BNY_TOPO_GPU, "GPU2");
  int32_t nic = named(t, BNY_TOPO_NIC, "mlx5_0"), port = named(t, BNY_TOPO_PORT, "mlx5_0");
  named(t, BNY_TOPO_NIC, "eth0");
  named(t, BNY_TOPO_NIC, "eth0#1");
  ck_assert_int_eq(t->nodes[g0].compute, 90);
  ck_assert_str_eq(t->nodes[g0].vendor, "NVIDIA");
  ck_assert_str_eq(t->nodes[g0].bus_id, "0000:10:00.0");
  ck_assert_int_eq(t->nodes[port].index, 1);
  ck_assert_double_eq_tol(between(t, port, nic)->gbytes_per_s, 50, 1e-9);
  ck_assert_double_eq_tol(between(t, port, nic)->latency_us, 1.5, 1e-9);
  ck_assert_double_eq(between(t, named(t, BNY_TOPO_PORT, "mlx5_1"), nic)->gbytes_per_s, 0);
  ck_assert_double_eq_tol(between(t, g0, t->nodes[g0].parent)->gbytes_per_s, 48, 1e-9);
  ck_assert_int_eq(between(t, g0, t->nodes[g0].parent)->source, BNY_TOPO_FILE);
  ck_assert_double_eq_tol(between(t, g1, t->nodes[g1].parent)->gbytes_per_s, 12, 1e-9);
  ck_assert_int_eq(between(t, g1, t->nodes[g1].parent)->source, BNY_TOPO_ASSUMED);
  /* both ends tell of it, 2 and 1: one is down */
  ck_assert_int_eq(between(t, g0, g1)->count, 1);
  ck_assert_double_eq_tol(between(t, g0, g1)->gbytes_per_s, 20.6, 1e-9);
  ck_assert_int_eq(links_of_kind(t, BNY_TOPO_LINK_NVLINK), 5);
  int32_t a1 = bny_topo_find_bus(t, "0000:a1:00.0"), numa = named(t, BNY_TOPO_NUMA, "node0");
  ck_assert_int_eq(between(t, g0, a1)->count, 5);
  ck_assert_double_eq_tol(between(t, g2, numa)->gbytes_per_s, 450, 1e-9);
  ck_assert_int_eq(links_of_kind(t, BNY_TOPO_LINK_SYS), 1);
  ck_assert_int_eq(bny_topo_path_between(t, g0, g1), BNY_TOPO_PATH_NVL);
  ck_assert_int_eq(bny_topo_path_between(t, g0, g2), BNY_TOPO_PATH_PHB);
  ck_assert_int_eq(bny_topo_path_between(t, g0, nic), BNY_TOPO_PATH_PIX);
  bny_topo_free(t);
}
END_TEST

START_TEST(nccl_of_several_hosts) {
  bny_topo *t = import("<system version=\"1\"><cpu host_hash=\"0xa\" numaid=\"0\"><pci busid=\"0000:01:00.0\"><gpu dev=\"0\" "
                       "sm=\"100\"/></pci></cpu><cpu host_hash=\"0xb\" numaid=\"0\"><pci busid=\"0000:01:00.0\"><gpu dev=\"0\" "
                       "sm=\"100\"/></pci></cpu></system>",
                       "nccl-xml");
  ck_assert_int_eq(bny_topo_count(t, BNY_TOPO_HOST), 2);
  ck_assert_int_eq(bny_topo_count(t, BNY_TOPO_GPU), 2);
  ck_assert_int_eq(links_of_kind(t, BNY_TOPO_LINK_SYS), 0);
  bny_topo_free(t);
}
END_TEST

START_TEST(nccl_of_amd_and_power) {
  bny_topo *t = import("<system version=\"2\"><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" class=\"0x120000\"><gpu dev=\"0\" "
                       "sm=\"304\" gcn=\"gfx90a\"><xgmi target=\"0000:02:00.0\" count=\"2\" tclass=\"0x120000\"/></gpu></pci>"
                       "<pci busid=\"0000:02:00.0\" class=\"0x120000\"><gpu dev=\"1\" sm=\"304\" gcn=\"942\"><xgmi "
                       "target=\"0000:01:00.0\" count=\"2\"/></gpu></pci><pci busid=\"0000:03:00.0\"><gpu dev=\"2\" sm=\"70\">"
                       "<nvlink target=\"0004:04:00.1\" count=\"1\" tclass=\"0x068001\"/><nvlink target=\"0004:04:00.2\" "
                       "count=\"2\" tclass=\"0x068001\"/></gpu></pci></cpu></system>",
                       "nccl-xml");
  int32_t g0 = named(t, BNY_TOPO_GPU, "GPU0"), g1 = named(t, BNY_TOPO_GPU, "GPU1"), g2 = named(t, BNY_TOPO_GPU, "GPU2");
  ck_assert_int_eq(t->nodes[g0].compute, 910);
  ck_assert_int_eq(t->nodes[g1].compute, 942);
  ck_assert_str_eq(t->nodes[g0].vendor, "AMD");
  ck_assert_int_eq(between(t, g0, g1)->kind, BNY_TOPO_LINK_XGMI);
  ck_assert_double_eq_tol(between(t, g0, g1)->gbytes_per_s, 72, 1e-9);
  ck_assert_int_eq(between(t, g2, named(t, BNY_TOPO_NUMA, "node0"))->count, 3);
  ck_assert_int_eq(links_of_kind(t, BNY_TOPO_LINK_NVLINK), 1);
  ck_assert_int_eq(bny_topo_path_between(t, g0, g1), BNY_TOPO_PATH_NVL);
  bny_topo_free(t);
}
END_TEST

START_TEST(hwloc_v2) {
  bny_topo *t = import(hwloc_v2_example, "hwloc-xml");
  ck_assert_str_eq(t->nodes[0].name, "a & b");
  ck_assert_int_eq(bny_topo_count(t, BNY_TOPO_PACKAGE), 1);
  ck_assert_int_eq(bny_topo_count(t, BNY_TOPO_NUMA), 1);
  ck_assert_int_eq(bny_topo_count(t, BNY_TOPO_GPU), 2); /* and no management controller */
  ck_assert_int_eq(bny_topo_count(t, BNY_TOPO_PCI), 3); /* two host bridges, one switch */
  int32_t g0 = named(t, BNY_TOPO_GPU, "GPU0"), g1 = named(t, BNY_TOPO_GPU, "GPU1"), nic = named(t, BNY_TOPO_NIC, "mlx5_0");
  ck_assert_str_eq(t->nodes[g1].bus_id, "0000:03:00.0"); /* as NVML numbers them */
  ck_assert_int_eq(bny_topo_ancestor(t, nic, BNY_TOPO_NUMA), named(t, BNY_TOPO_NUMA, "node0"));
  ck_assert_str_eq(t->nodes[named(t, BNY_TOPO_PORT, "1")].guid, "98039b0300829c64");
  ck_assert_int_eq(bny_topo_path_between(t, g1, nic), BNY_TOPO_PATH_PIX);
  ck_assert_int_eq(bny_topo_path_between(t, g0, nic), BNY_TOPO_PATH_NODE);
  ck_assert_int_eq(between(t, g0, g1)->count, 3);
  ck_assert_int_eq(bny_topo_path_between(t, g0, g1), BNY_TOPO_PATH_NVL);
  ck_assert_double_eq_tol(between(t, g1, t->nodes[g1].parent)->gbytes_per_s, 48, 1e-9);
  bny_topo_free(t);
}
END_TEST

START_TEST(hwloc_v1) {
  bny_topo *t = import(hwloc_v1_example, "hwloc-xml");
  ck_assert_int_eq(bny_topo_count(t, BNY_TOPO_PACKAGE), 2);
  ck_assert_int_eq(bny_topo_count(t, BNY_TOPO_NUMA), 2);
  int32_t g0 = named(t, BNY_TOPO_GPU, "GPU0"), g1 = named(t, BNY_TOPO_GPU, "GPU1"), numa = named(t, BNY_TOPO_NUMA, "node1");
  ck_assert_int_eq(bny_topo_ancestor(t, g1, BNY_TOPO_NUMA), numa);
  ck_assert_int_eq(bny_topo_ancestor(t, numa, BNY_TOPO_PACKAGE), named(t, BNY_TOPO_PACKAGE, "package1"));
  ck_assert_int_eq(bny_topo_path_between(t, g0, g1), BNY_TOPO_PATH_SYS);
  bny_topo_free(t);
}
END_TEST

START_TEST(smi) {
  bny_topo *t = import(smi_example, "nvidia-smi-xml");
  int32_t g0 = named(t, BNY_TOPO_GPU, "GPU0"), g1 = named(t, BNY_TOPO_GPU, "GPU1");
  ck_assert_int_eq(t->nodes[g0].compute, 90);
  ck_assert_str_eq(t->nodes[g0].bus_id, "0000:53:00.0");
  /* rated, not idle; but the width is what it is */
  ck_assert_double_eq_tol(between(t, g0, 0)->gbytes_per_s, 24, 1e-9);
  ck_assert_double_eq_tol(between(t, g0, 0)->rated_gbytes_per_s, 48, 1e-9);
  ck_assert_int_eq(bny_topo_count(t, BNY_TOPO_SWITCH), 1);
  ck_assert_int_eq(links_of_kind(t, BNY_TOPO_LINK_NVLINK), 1); /* the second GPU did not come into the fabric */
  ck_assert_int_eq(bny_topo_path_between(t, g0, g1), BNY_TOPO_PATH_SYS);
  bny_topo_free(t);
}
END_TEST

/* ---- what is refused --------------------------------------------------------------------------------------------- */

#define GPU_AT(bus, number, links) \
  "<pci busid=\"" bus "\" class=\"0x030200\"><gpu dev=\"" number "\" sm=\"90\">" links "</gpu></pci>\n"

static const struct {
  const char *text;
  int line;
  const char *why;
} bad[] = {
    {"<system version=\"1\">\n<cpu numaid=\"0\">", 2, "ends too early, in <cpu> of line 2"},
    {"<system version=\"1\">\n<cpu numaid=\"0\"></system>", 2, "XML: Opening and ending tag mismatch"},
    {"<system version=\"3\"/>", 1, "version 3"},
    {"<system version=\"1\">\n</system>", 1, "no <cpu>"},
    {"<graphs version=\"1\">\n</graphs>", 1, "channels, not a machine"},
    {"<system>\n<pci busid=\"0000:01:00.0\"/>\n</system>", 2, "outside of a <cpu>"},
    {NCCL_HEAD "<cpu numaid=\"1\"/>" NCCL_TAIL, 3, "outside of <system>"},
    {NCCL_HEAD "<pci/>" NCCL_TAIL, 3, "no busid"},
    {NCCL_HEAD "<pci busid=\"here\"/>" NCCL_TAIL, 3, "not a bus id"},
    {NCCL_HEAD "\n<gpu dev=\"0\"/>" NCCL_TAIL, 4, "outside of a <pci>"},
    {NCCL_HEAD "<net name=\"a\"/>" NCCL_TAIL, 3, "outside of a <nic>"},
    {NCCL_HEAD "<nvlink target=\"0000:01:00.0\"/>" NCCL_TAIL, 3, "outside of a <gpu>"},
    {NCCL_HEAD GPU_AT("0000:01:00.0", "0", "") GPU_AT("0000:01:00.0", "1", "") NCCL_TAIL, 4, "bus id 0000:01:00.0 stands twice"},
    {NCCL_HEAD GPU_AT("0000:01:00.0", "0", "") GPU_AT("0000:02:00.0", "0", "") NCCL_TAIL, 4, "GPU0 stands twice"},
    {NCCL_HEAD "</cpu>\n<cpu numaid=\"0\">" NCCL_TAIL, 4, "node0 stands twice"},
    {NCCL_HEAD "<pci busid=\"0000:01:00.0\">\n<gpu dev=\"0\"/>\n<gpu dev=\"1\"/></pci>" NCCL_TAIL, 5, "the second of its <pci>"},
    {NCCL_HEAD GPU_AT("0000:01:00.0", "0", "\n<nvlink target=\"0000:77:00.0\" count=\"1\" tclass=\"0x030200\"/>") NCCL_TAIL, 4,
     "leads nowhere"},
    {NCCL_HEAD GPU_AT("0000:01:00.0", "0", "<nvlink count=\"1\"/>") NCCL_TAIL, 3, "no target"},
    {NCCL_HEAD GPU_AT("0000:01:00.0", "0", "<nvlink target=\"over there\" count=\"1\"/>") NCCL_TAIL, 3, "not a bus id"},
    {NCCL_HEAD GPU_AT("0000:01:00.0", "0", "<nvlink target=\"0000:0a:00.0\" tclass=\"0x068000\" count=\"0\"/>") NCCL_TAIL, 3,
     "absurd"},
    {NCCL_HEAD GPU_AT("0000:01:00.0", "0", "<nvlink target=\"0000:0a:00.0\" tclass=\"0x068000\" count=\"99999\"/>") NCCL_TAIL, 3,
     "absurd"},
    {NCCL_HEAD GPU_AT("0000:01:00.0", "0",
                      "<nvlink target=\"0000:0a:00.0\" tclass=\"0x068000\"/>\n<nvlink target=\"0000:0a:00.0\" "
                      "tclass=\"0x068000\"/>") NCCL_TAIL,
     4, "stands twice"},
    {NCCL_HEAD "<pci busid=\"0000:01:00.0\" link_speed=\"17 GT/s\"/>" NCCL_TAIL, 3, "no PCI link has that speed"},
    {NCCL_HEAD "<pci busid=\"0000:01:00.0\" link_speed=\"0 GT/s\"/>" NCCL_TAIL, 3, "no PCI link has that speed"},
    {NCCL_HEAD "<pci busid=\"0000:01:00.0\" link_width=\"999\"/>" NCCL_TAIL, 3, "absurd"},
    {NCCL_HEAD "<pci busid=\"0000:01:00.0\" link_width=\"wide\"/>" NCCL_TAIL, 3, "not a whole number"},
    {NCCL_HEAD "<nic><net name=\"a\" speed=\"fast\"/></nic>" NCCL_TAIL, 3, "absurd"},
    {NCCL_HEAD "<nic><net name=\"a\" speed=\"-7\"/></nic>" NCCL_TAIL, 3, "absurd"},
    {NCCL_HEAD "<nic><net name=\"a\" speed=\"nan\"/></nic>" NCCL_TAIL, 3, "absurd"},
    {NCCL_HEAD "<nic><net name=\"a\" speed=\"1e30\"/></nic>" NCCL_TAIL, 3, "absurd"},
    {NCCL_HEAD "<nic><net name=\"a\" dev=\"99999999999999999999\"/></nic>" NCCL_TAIL, 3, "absurd"},
    {"\n<!DOCTYPE system [\n<!ENTITY a \"b\">]>\n<system version=\"1\"/>", 2, "entities"},
    {"<!DOCTYPE system [\n<!ENTITY % a SYSTEM \"file:///etc/passwd\">%a;]>\n<system version=\"1\"/>", 1, "entities"},
    {"<!DOCTYPE system SYSTEM \"[>\">\n<system version=\"5\"/>", 2, "version 5"},
    {"<?xml version=\"1.0\" encoding=\"UTF-7\"?>\n<system version=\"1\">+ADw-cpu/+AD4-</system>", 2, "no <cpu>"},
    {"<system version=\"1\">&lol;</system>", 1, "XML"},
    {"<topology version=\"3.0\">\n</topology>", 1, "version 3.0"},
    {"<topology version=\"2.0\">\n</topology>", 1, "no Machine"},
    {"<topology version=\"2.0\">\n<object type=\"Package\"/></topology>", 2, "outside of a Machine"},
    {"<topology version=\"2.0\"><object type=\"Machine\"/>\n<object type=\"Machine\"/></topology>", 2, "the second"},
    {"<topology version=\"2.0\"><object type=\"Machine\">\n<object type=\"PCIDev\" pci_busid=\"?\" pci_type=\"0302 [10de:1] [0:0] "
     "a\"/></object></topology>",
     2, "pci_busid"},
    {"<topology version=\"2.0\"><object type=\"Machine\">\n<object type=\"PCIDev\" pci_busid=\"0000:01:00.0\" "
     "pci_link_speed=\"-4\" pci_type=\"0302 [10de:1] [0:0] a\"/></object></topology>",
     2, "absurd"},
    {"<topology version=\"2.0\"><object type=\"Machine\"><object type=\"PCIDev\" pci_busid=\"0000:01:00.0\" pci_type=\"0302 "
     "[10de:1] [0:0] a\"/>\n<object type=\"PCIDev\" pci_busid=\"0000:01:00.0\" pci_type=\"0302 [10de:1] [0:0] "
     "a\"/></object></topology>",
     2, "stands twice"},
    {"<topology version=\"2.0\"><object type=\"Machine\" gp_index=\"1\">\n<object type=\"Core\" "
     "gp_index=\"1\"/></object></topology>",
     2, "gp_index 1 stands twice"},
    {"<topology version=\"2.0\"><object type=\"Machine\" gp_index=\"1\"/>\n<distances2 nbobjs=\"99999999\" "
     "name=\"NVLinkBandwidth\"/></topology>",
     2, "absurd"},
    {"<topology version=\"2.0\"><object type=\"Machine\" gp_index=\"1\"/>\n<distances2 nbobjs=\"1\" "
     "name=\"NVLinkBandwidth\"><indexes>OSDev:4</indexes></distances2></topology>",
     2, "no object OSDev:4"},
    {"<topology version=\"2.0\"><object type=\"Machine\" gp_index=\"1\"/>\n<distances2 nbobjs=\"1\" "
     "name=\"NVLinkBandwidth\"><indexes>1</indexes><u64values>1 2</u64values></distances2></topology>",
     2, "2 of 1 values"},
    {"<nvidia_smi_log>\n</nvidia_smi_log>", 1, "no <gpu>"},
    {"<nvidia_smi_log>\n<gpu id=\"one\"/></nvidia_smi_log>", 2, "not a bus id"},
    {"<nvidia_smi_log><gpu id=\"00000000:01:00.0\"/>\n<gpu id=\"00000000:01:00.0\"/></nvidia_smi_log>", 2, "stands twice"},
    {"<nvidia_smi_log>\n<attached_gpus>1</attached_gpus><gpu id=\"00000000:01:00.0\"/>\n<gpu "
     "id=\"00000000:02:00.0\"/></nvidia_smi_log>",
     2, "tells of 2"},
    {"<nvidia_smi_log><gpu id=\"00000000:01:00.0\"><pci><pci_gpu_link_info><pcie_gen>\n<max_link_gen>77</max_link_gen>"
     "</pcie_gen></pci_gpu_link_info></pci></gpu></nvidia_smi_log>",
     2, "absurd"},
};

START_TEST(what_is_refused) {
  bny_topo_error error = {.line = -1, .text = ""};
  bny_topo *topo = bny_topo_import(bad[_i].text, strlen(bad[_i].text), NULL, &error);
  ck_assert_msg(topo == NULL && error.line == bad[_i].line && strstr(error.text, bad[_i].why) != NULL,
                "%s\nwanted line %d \"%s\", got line %d \"%s\"", bad[_i].text, bad[_i].line, bad[_i].why, error.line, error.text);
}
END_TEST

static const char *const examples[] = {nccl_example, hwloc_v2_example, hwloc_v1_example, smi_example};
enum { EXAMPLES = sizeof examples / sizeof examples[0] };

/* Cut anywhere, an example is refused with a line that it has; the copy has no byte more, for sanitizers to see. */
START_TEST(cut_short) {
  size_t whole = strlen(examples[_i]);
  while (whole > 0 && examples[_i][whole - 1] == '\n') {
    whole--;
  }
  for (size_t bytes = 1; bytes < whole; bytes++) {
    char *text = malloc(bytes);
    memcpy(text, examples[_i], bytes);
    bny_topo_error error = {.line = -1, .text = ""};
    bny_topo *topo = bny_topo_import(text, bytes, NULL, &error);
    ck_assert_msg(topo == NULL && error.text[0] != '\0' && error.line >= 0, "cut to %zu bytes", bytes);
    free(text);
  }
}
END_TEST

/* Bytes changed, doubled and taken out: any end is good but a crash, and what is taken passes the check. */
START_TEST(changed_bytes) {
  enum { ROUNDS = 3000 };
  uint64_t seed = 0x9e3779b97f4a7c15u + (uint64_t)_i, state = seed;
  size_t bytes = strlen(examples[_i]);
  char *text = malloc(bytes + 1);
  int taken = 0;
  for (int round = 0; round < ROUNDS; round++) {
    memcpy(text, examples[_i], bytes);
    size_t length = bytes;
    for (uint64_t changes = next_random(&state) % 4; changes < 4; changes++) {
      size_t at = (size_t)(next_random(&state) % length);
      uint64_t how = next_random(&state) % 4;
      if (how == 0) {
        text[at] = (char)next_random(&state);
      } else if (how == 1) {
        text[at] = "0123456789\"<>/"[next_random(&state) % 14];
      } else if (how == 2) {
        memmove(text + at, text + at + 1, length - at - 1);
        length--;
      } else {
        text[at] ^= (char)(1u << (next_random(&state) % 7));
      }
    }
    bny_topo_error error;
    bny_topo *topo = bny_topo_import(text, length, NULL, &error);
    if (topo != NULL) {
      ck_assert_msg(bny_topo_check(topo, &error), "seed %llx round %d: %s", (unsigned long long)seed, round, error.text);
      char *again = bny_topo_export_nccl(topo, &error);
      ck_assert_ptr_nonnull(again);
      free(again);
      taken++;
    }
    bny_topo_free(topo);
  }
  ck_assert_int_gt(taken, 0);
  free(text);
}
END_TEST

/* 60 MiB each of what makes parsers eat memory: refused, in memory that is bounded by the input's. */
START_TEST(hostile_sizes) {
  static const struct {
    const char *head, *unit, *why;
  } cases[] = {{"<system version=\"1\">", "<a>", "more than 64 deep"},
               {"<system version=\"1\">", "<a/>", "more than a million elements"},
               {"<system version=\"1\"><a>", "&lt;", "XML"},
               {"<topology version=\"2.0\">", "<a b=\"\" c=\"\" d=\"\" e=\"\" f=\"\" g=\"\" h=\"\" i=\"\" j=\"\"/>", "more than"},
               {"<system version=\"1\"><cpu numaid=\"0\"/>", "<cpu/>", "more than 16384"},
               {"<nvidia_smi_log>", "<!-- -->", "XML"},
               {"<system version=\"", "1111", "XML"},
               {"<!-- <a b=' --><?p \"?><!DOCTYPE system SYSTEM \"<!--\"><system ", "a=\"\" ", "more than 256 attributes"},
               {"<system><![CDATA[\"]]><b ", "a='\"' ", "more than 256 attributes"},
               {"<!-- <pci busid='> --><system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" class=\"0x02\">",
                "<nic/>", "more than a million elements"}};
  size_t bytes = (size_t)60 << 20, unit = strlen(cases[_i].unit), at = strlen(cases[_i].head);
  char *text = malloc(bytes);
  memcpy(text, cases[_i].head, at);
  for (; at + unit <= bytes; at += unit) {
    memcpy(text + at, cases[_i].unit, unit);
  }
  if (strcmp(cases[_i].why, "more than 16384") == 0) {
    /* whole, and not too many elements: the importer itself must stop */
    at = strlen(cases[_i].head) + 20000 * unit;
    memcpy(text + at, "</system>", 9);
    at += 9;
  }
  struct rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  bny_topo_error error = {.text = ""};
  bny_topo *topo = bny_topo_import(text, at, NULL, &error);
  getrusage(RUSAGE_SELF, &after);
  ck_assert_msg(topo == NULL && strstr(error.text, cases[_i].why) != NULL, "got \"%s\"", error.text);
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
  long grown_kb = after.ru_maxrss - before.ru_maxrss;
  ck_assert_msg(grown_kb < 512 << 10, "grew by %ld KiB", grown_kb);
#endif
  free(text);
}
END_TEST

/* Shapes that would take long if anything were looked up by looking at all: 300,000 of each. */
START_TEST(large_and_good) {
  static const struct {
    const char *head, *unit, *tail;
  } cases[] = {
      {NCCL_HEAD "<pci busid=\"0000:01:00.0\"><nic>", "<net name=\"a\"/>", "</nic></pci>" NCCL_TAIL},
      {NCCL_HEAD "<pci busid=\"0000:01:00.0\"><nic/>", "<x/>", "</pci>" NCCL_TAIL},
      {NCCL_HEAD, "<nic><net name=\"eth0\"/></nic>", NCCL_TAIL},
      {"<topology version=\"2.0\"><object type=\"Machine\">", "<object type=\"Package\"/>", "</object></topology>"},
      {"<topology version=\"2.0\"><object type=\"Machine\">", "<object type=\"NUMANode\"/>", "</object></topology>"},
      {"<nvidia_smi_log><gpu id=\"00000000:01:00.0\">", "<a>text</a>", "</gpu></nvidia_smi_log>"}};
  enum { UNITS = 300000 };
  size_t head = strlen(cases[_i].head), unit = strlen(cases[_i].unit), tail = strlen(cases[_i].tail);
  char *text = malloc(head + UNITS * unit + tail);
  memcpy(text, cases[_i].head, head);
  for (size_t u = 0; u < UNITS; u++) {
    memcpy(text + head + u * unit, cases[_i].unit, unit);
  }
  memcpy(text + head + UNITS * unit, cases[_i].tail, tail);
  bny_topo_error error = {.text = ""};
  bny_topo *topo = bny_topo_import(text, head + UNITS * unit + tail, NULL, &error);
  ck_assert_msg(topo != NULL, "%s", error.text);
  bny_topo_free(topo);
  free(text);
}
END_TEST

/* ---- NCCL's format out ------------------------------------------------------------------------------------------- */

static void ck_same_machine(const bny_topo *a, const bny_topo *b, const char *name) {
  const bny_topo_kind kinds[] = {BNY_TOPO_HOST, BNY_TOPO_NUMA, BNY_TOPO_PCI, BNY_TOPO_GPU, BNY_TOPO_NIC, BNY_TOPO_PORT,
                                 BNY_TOPO_SWITCH};
  for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
    ck_assert_msg(bny_topo_count(a, kinds[k]) == bny_topo_count(b, kinds[k]), "%s: %s", name, bny_topo_kind_name(kinds[k]));
  }
  ck_assert_msg(a->nlinks == b->nlinks, "%s: %d and %d links", name, a->nlinks, b->nlinks);
  for (int32_t n = 0; n < a->nnodes; n++) {
    if (a->nodes[n].bus_id == NULL) {
      continue;
    }
    int32_t same = bny_topo_find_bus(b, a->nodes[n].bus_id);
    ck_assert_msg(same >= 0, "%s: %s is lost", name, a->nodes[n].bus_id);
    ck_assert_int_eq(b->nodes[same].kind, a->nodes[n].kind);
    ck_assert_int_eq(b->nodes[same].compute, a->nodes[n].compute);
    if (a->nodes[n].kind == BNY_TOPO_GPU) {
      ck_assert_str_eq(b->nodes[same].name, a->nodes[n].name);
    }
    for (int32_t m = 0; m < n; m++) {
      bool devices = a->nodes[n].kind == BNY_TOPO_GPU && a->nodes[m].kind == BNY_TOPO_GPU;
      if (devices && a->nodes[m].bus_id != NULL) {
        bny_topo_path path = bny_topo_path_between(b, same, bny_topo_find_bus(b, a->nodes[m].bus_id));
        ck_assert_msg(path == bny_topo_path_between(a, n, m), "%s: %s to %s", name, a->nodes[n].name, a->nodes[m].name);
      }
    }
  }
  double sum_a = 0, sum_b = 0;
  for (int32_t l = 0; l < a->nlinks; l++) {
    sum_a += a->links[l].gbytes_per_s;
    sum_b += b->links[l].gbytes_per_s;
  }
  ck_assert_msg(sum_a - sum_b < 1e-3 && sum_b - sum_a < 1e-3, "%s: %g and %g GB/s", name, sum_a, sum_b);
}

static void ck_exported(bny_topo *topo, const char *name) {
  bny_topo_error error = {.text = ""};
  char *text = bny_topo_export_nccl(topo, &error);
  ck_assert_msg(text != NULL, "%s", error.text);
  bny_topo *again = bny_topo_import(text, strlen(text), NULL, &error);
  ck_assert_msg(again != NULL, "%s: line %d: %s\n%s", name, error.line, error.text, text);
  ck_same_machine(topo, again, name);
  char *text_again = bny_topo_export_nccl(again, &error);
  ck_assert_str_eq(text, text_again);
  free(text);
  free(text_again);
  bny_topo_free(again);
  bny_topo_free(topo);
}

START_TEST(nccl_out) {
  ck_exported(import(nccl_example, "nccl-xml"), "example");
}
END_TEST

/* What has no bus ids, and names that XML must quote. */
START_TEST(nccl_out_by_hand) {
  bny_topo *t = bny_topo_new();
  for (int h = 0; h < 2; h++) {
    int32_t host = put(t, BNY_TOPO_HOST, -1, "host", NULL), numa = put(t, BNY_TOPO_NUMA, host, "node0", NULL);
    int32_t other = put(t, BNY_TOPO_NUMA, host, "node0", NULL), pci = put(t, BNY_TOPO_PCI, numa, "s", NULL);
    int32_t g0 = put(t, BNY_TOPO_GPU, pci, "GPU0", NULL), g1 = put(t, BNY_TOPO_GPU, other, "GPU1", NULL);
    t->nodes[g0].index = 0;
    t->nodes[g1].index = 1;
    t->nodes[numa].index = t->nodes[other].index = 0;
    int32_t nic = put(t, BNY_TOPO_NIC, pci, "a<b>&\"c", NULL), port = put(t, BNY_TOPO_PORT, nic, "1", NULL);
    join(t, BNY_TOPO_LINK_NVLINK, g0, g1, 20);
    join(t, BNY_TOPO_LINK_NET, port, nic, 50);
  }
  bny_topo_error error = {.text = ""};
  char *text = bny_topo_export_nccl(t, &error);
  bny_topo *again = bny_topo_import(text, strlen(text), NULL, &error);
  ck_assert_msg(again != NULL, "line %d: %s\n%s", error.line, error.text, text);
  ck_assert_int_eq(bny_topo_count(again, BNY_TOPO_HOST), 2);
  ck_assert_int_eq(bny_topo_count(again, BNY_TOPO_GPU), 4);
  ck_assert_int_eq(bny_topo_count(again, BNY_TOPO_NUMA), 4);
  int32_t nic = named(again, BNY_TOPO_NIC, "a<b>&\"c");
  ck_assert_int_eq(bny_topo_path_between(again, nic, named(again, BNY_TOPO_GPU, "GPU0")), BNY_TOPO_PATH_PIX);
  ck_assert_int_eq(links_of_kind(again, BNY_TOPO_LINK_NVLINK), 2);
  free(text);
  bny_topo_free(again);
  bny_topo_free(t);
}
END_TEST

/* Switches without bus ids are one to NCCL, which knows of one hidden switch alone. */
START_TEST(nccl_out_hidden_switches) {
  bny_topo *t = bny_topo_new();
  int32_t host = put(t, BNY_TOPO_HOST, -1, "host", NULL), gpu = put(t, BNY_TOPO_GPU, host, "GPU0", NULL);
  for (int s = 0; s < 3; s++) {
    join(t, BNY_TOPO_LINK_NVLINK, gpu, put(t, BNY_TOPO_SWITCH, host, "nvswitch", NULL), 20);
  }
  bny_topo_error error = {.text = ""};
  char *text = bny_topo_export_nccl(t, &error);
  ck_assert_msg(strstr(text, "<nvlink target=\"fffffff:ffff:ff\" count=\"3\" tclass=\"0x068000\"/>") != NULL, "%s", text);
  free(text);
  bny_topo_free(t);
}
END_TEST

/* ---- real machines ----------------------------------------------------------------------------------------------- */

static int32_t tags(const char *text, const char *tag) {
  int32_t count = 0;
  for (const char *at = strstr(text, tag); at != NULL; at = strstr(at + 1, tag)) {
    count++;
  }
  return count;
}

/* The attribute's text within the tag at `at`; "" if it has none. */
static void attribute_of(const char *at, const char *name, char *value, size_t bytes) {
  char key[32];
  size_t end = strcspn(at, ">");
  snprintf(key, sizeof key, " %s=\"", name);
  const char *found = strstr(at, key);
  value[0] = '\0';
  if (found != NULL && found < at + end) {
    found += strlen(key);
    snprintf(value, bytes, "%.*s", (int)strcspn(found, "\""), found);
  }
}

/* By the text alone: pairs of a GPU's <pci> and a target, each once whichever end tells of it; the sum of their counts. */
static int32_t linked_pairs(const char *text, int64_t *sum) {
  enum { MOST = 512, BYTES = 24 };
  static char pairs[MOST][2][BYTES];
  char bus[BYTES] = "", target[BYTES], count[BYTES];
  int32_t found = 0;
  *sum = 0;
  for (const char *at = strchr(text, '<'); at != NULL; at = strchr(at + 1, '<')) {
    if (strncmp(at, "<pci ", 5) == 0) {
      attribute_of(at, "busid", bus, sizeof bus);
    }
    if (strncmp(at, "<nvlink ", 8) != 0 && strncmp(at, "<xgmi ", 6) != 0) {
      continue;
    }
    attribute_of(at, "target", target, sizeof target);
    attribute_of(at, "count", count, sizeof count);
    bool seen = false;
    for (int32_t p = 0; p < found; p++) {
      seen = seen || (strcmp(pairs[p][0], target) == 0 && strcmp(pairs[p][1], bus) == 0);
    }
    if (!seen) {
      ck_assert_int_lt(found, MOST);
      snprintf(pairs[found][0], BYTES, "%s", bus);
      snprintf(pairs[found][1], BYTES, "%s", target);
      found++;
      *sum += atoi(count);
    }
  }
  return found;
}

static void ck_nccl_dump(const char *path, const char *name) {
  size_t bytes;
  char *text = read_text(path, &bytes);
  bny_topo_error error = {.text = ""};
  bny_topo *topo = bny_topo_load(path, NULL, &error);
  if (strstr(text, "<graphs") != NULL) {
    ck_assert_msg(topo == NULL && strstr(error.text, "a graph that NCCL made") != NULL, "%s", error.text);
    free(text);
    return;
  }
  ck_assert_msg(topo != NULL, "%s", error.text);
  bool input = tags(text, "<gpu ") == 0;
  int32_t gpus = input ? tags(text, " class=\"0x03") : tags(text, "<gpu ");
  int32_t nics = input ? tags(text, " class=\"0x02") : tags(text, "<nic>");
  int64_t counted, sum = 0;
  int32_t links = linked_pairs(text, &counted), linked = 0;
  for (int32_t l = 0; l < topo->nlinks; l++) {
    bool device = topo->links[l].kind == BNY_TOPO_LINK_NVLINK || topo->links[l].kind == BNY_TOPO_LINK_XGMI;
    linked += device;
    sum += device ? topo->links[l].count : 0;
  }
  ck_assert_msg(bny_topo_count(topo, BNY_TOPO_GPU) == gpus, "%s: %d GPUs", name, gpus);
  ck_assert_msg(bny_topo_count(topo, BNY_TOPO_NIC) == nics, "%s: %d NICs", name, nics);
  ck_assert_msg(bny_topo_count(topo, BNY_TOPO_PORT) == tags(text, "<net "), "%s: ports", name);
  ck_assert_msg(bny_topo_count(topo, BNY_TOPO_NUMA) == tags(text, "<cpu "), "%s: processors", name);
  ck_assert_msg(linked == links, "%s: %d links, the file has %d", name, linked, links);
  ck_assert_msg(sum == counted, "%s: %lld single links, the file has %lld", name, (long long)sum, (long long)counted);
  free(text);
  ck_exported(topo, name);
}

START_TEST(dumps_of_nccl) {
  if (each_dump("nccl", ".xml", ck_nccl_dump) == 0) {
    fprintf(stderr, "no dumps of NCCL: not looked at\n");
  }
}
END_TEST

static void ck_hwloc_dump(const char *path, const char *name) {
  size_t bytes;
  char *text = read_text(path, &bytes);
  bny_topo_error error = {.text = ""};
  bny_topo *topo = bny_topo_load(path, NULL, &error);
  ck_assert_msg(topo != NULL, "%s", error.text);
  ck_assert_msg(bny_topo_count(topo, BNY_TOPO_PACKAGE) == tags(text, "<object type=\"Package\""), "%s: packages", name);
  ck_assert_msg(bny_topo_count(topo, BNY_TOPO_NUMA) == tags(text, "<object type=\"NUMANode\""), "%s: NUMA nodes", name);
  ck_assert_msg(bny_topo_count(topo, BNY_TOPO_NIC) == tags(text, "pci_type=\"02"), "%s: NICs", name);
  /* AMD's that computes, and not its displays of management controllers */
  int32_t gpus = tags(text, "\"0302 [") + tags(text, "\"0300 [10de:") + tags(text, " [1002:66a1]") + tags(text, " [1002:6798]");
  ck_assert_msg(bny_topo_count(topo, BNY_TOPO_GPU) == gpus, "%s: %d GPUs, the file has %d", name,
                bny_topo_count(topo, BNY_TOPO_GPU), gpus);
  ck_assert_msg(bny_topo_count(topo, BNY_TOPO_SWITCH) == tags(text, "subtype=\"NVSwitch\""), "%s: NVSwitches", name);
  free(text);
  bny_topo_free(topo);
}

START_TEST(dumps_of_hwloc) {
  each_dump("hwloc", ".xml", ck_hwloc_dump);
}
END_TEST

static void ck_smi_dump(const char *path, const char *name) {
  size_t bytes;
  char *text = read_text(path, &bytes);
  bny_topo_error error = {.text = ""};
  bny_topo *topo = bny_topo_load(path, NULL, &error);
  ck_assert_msg(topo != NULL, "%s", error.text);
  ck_assert_msg(bny_topo_count(topo, BNY_TOPO_GPU) == tags(text, "<gpu id="), "%s", name);
  ck_assert_msg(links_of_kind(topo, BNY_TOPO_LINK_NVLINK) == tags(text, "<status>Success<"), "%s", name);
  free(text);
  bny_topo_free(topo);
}

START_TEST(dumps_of_smi) {
  each_dump("nvidia-smi", ".xml", ck_smi_dump);
}
END_TEST

/* Every pair of GPUs of one dump: the path wanted, by whether a is near b as the machine's maker says. */
static bny_topo *dump(const char *name) {
  char path[4096];
  bny_topo_error error = {.text = ""};
  if (!dump_path(name, path)) {
    return NULL;
  }
  bny_topo *topo = bny_topo_load(path, NULL, &error);
  ck_assert_msg(topo != NULL, "%s", error.text);
  return topo;
}

/* The same class of machine, told of by NCCL and by nvidia-smi topo -m: one path for each pair of GPUs. */
START_TEST(paths_as_the_matrix_says) {
  static const char *const pairs[][2] = {
      {"nccl/hgx_h200_8gpu.xml", "matrix/hgx_h200_8gpu_8nic_vastai.txt"},
      {"nccl/oci_h100.xml", "matrix/hgx_h100_8gpu_10nic_nccl1264.txt"},
      {"nccl/perlmutter_a100_4gpu.xml", "matrix/a100_4gpu_nv4_nccl1261.txt"},
  };
  bny_topo *xml = dump(pairs[_i][0]), *matrix = dump(pairs[_i][1]);
  for (int a = 0; xml != NULL && matrix != NULL && a < bny_topo_count(matrix, BNY_TOPO_GPU); a++) {
    char name_a[16], name_b[16];
    snprintf(name_a, sizeof name_a, "GPU%d", a);
    int32_t xml_a = named(xml, BNY_TOPO_GPU, name_a), matrix_a = named(matrix, BNY_TOPO_GPU, name_a);
    for (int b = 0; b < bny_topo_count(matrix, BNY_TOPO_GPU); b++) {
      snprintf(name_b, sizeof name_b, "GPU%d", b);
      bny_topo_path by_xml = bny_topo_path_between(xml, xml_a, named(xml, BNY_TOPO_GPU, name_b));
      bny_topo_path by_matrix = bny_topo_path_between(matrix, matrix_a, named(matrix, BNY_TOPO_GPU, name_b));
      ck_assert_msg(by_xml == by_matrix, "%s: %s to %s is %s, the matrix says %s", pairs[_i][0], name_a, name_b,
                    bny_topo_path_name(by_xml), bny_topo_path_name(by_matrix));
    }
  }
  bny_topo_free(xml);
  bny_topo_free(matrix);
}
END_TEST

/* The NIC of each GPU is behind its PCI switch, as the matrix of that class of machine says too. */
START_TEST(rails_of_a_real_machine) {
  bny_topo *topo = dump("nccl/oci_h100.xml");
  for (int32_t a = 0; topo != NULL && a < topo->nnodes; a++) {
    int32_t near = 0;
    for (int32_t b = 0; topo->nodes[a].kind == BNY_TOPO_GPU && b < topo->nnodes; b++) {
      if (topo->nodes[b].kind == BNY_TOPO_NIC) {
        bny_topo_path path = bny_topo_path_between(topo, a, b);
        near += path == BNY_TOPO_PATH_PIX;
        ck_assert(path == BNY_TOPO_PATH_PIX || path == BNY_TOPO_PATH_PHB || path == BNY_TOPO_PATH_SYS);
      }
    }
    ck_assert_int_eq(near, topo->nodes[a].kind == BNY_TOPO_GPU);
  }
  bny_topo_free(topo);
}
END_TEST

START_TEST(paths_of_real_bridges) {
  bny_topo *topo = dump("hwloc/nvidiaDGX2.xml");
  if (topo != NULL) {
    int32_t g[16];
    for (int i = 0; i < 16; i++) {
      char name[16];
      snprintf(name, sizeof name, "GPU%d", i);
      g[i] = named(topo, BNY_TOPO_GPU, name);
    }
    ck_assert_int_eq(links_of_kind(topo, BNY_TOPO_LINK_NVLINK), 16 * 6);
    ck_assert_int_eq(bny_topo_path_between(topo, g[0], g[1]), BNY_TOPO_PATH_NVL);
    ck_assert_int_eq(bny_topo_path_between(topo, g[0], g[8]), BNY_TOPO_PATH_SYS); /* two halves; their trunks are not told of */
    /* without its NVLinks */
    for (int32_t l = 0; l < topo->nlinks; l++) {
      topo->links[l].kind = topo->links[l].kind == BNY_TOPO_LINK_NVLINK ? BNY_TOPO_LINK_SYS : topo->links[l].kind;
    }
    ck_assert_int_eq(bny_topo_path_between(topo, g[0], g[1]), BNY_TOPO_PATH_PIX);
    ck_assert_int_eq(bny_topo_path_between(topo, g[0], g[2]), BNY_TOPO_PATH_PXB);
    ck_assert_int_eq(bny_topo_path_between(topo, g[0], g[4]), BNY_TOPO_PATH_NODE);
    ck_assert_int_eq(bny_topo_path_between(topo, g[0], g[8]), BNY_TOPO_PATH_SYS);
  }
  bny_topo_free(topo);
}
END_TEST

int main(void) {
  bny_topo_error error;
  bny_topo_xml *xml = bny_topo_xml_parse("<a/>", 4, &error);
  if (xml == NULL) {
    fprintf(stderr, "skipped: %s\n", error.text);
    return 77;
  }
  bny_topo_xml_free(xml);
  Suite *suite = suite_create("topo_xml");
  TCase *tests = tcase_create("xml");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, nccl);
  tcase_add_test(tests, nccl_of_several_hosts);
  tcase_add_test(tests, nccl_of_amd_and_power);
  tcase_add_test(tests, hwloc_v2);
  tcase_add_test(tests, hwloc_v1);
  tcase_add_test(tests, smi);
  tcase_add_loop_test(tests, what_is_refused, 0, (int)(sizeof bad / sizeof bad[0]));
  tcase_add_loop_test(tests, cut_short, 0, EXAMPLES);
  tcase_add_loop_test(tests, changed_bytes, 0, EXAMPLES);
  tcase_add_loop_test(tests, hostile_sizes, 0, 10);
  tcase_add_loop_test(tests, large_and_good, 0, 6);
  tcase_add_test(tests, nccl_out);
  tcase_add_test(tests, nccl_out_by_hand);
  tcase_add_test(tests, nccl_out_hidden_switches);
  tcase_add_test(tests, dumps_of_nccl);
  tcase_add_test(tests, dumps_of_hwloc);
  tcase_add_test(tests, dumps_of_smi);
  tcase_add_loop_test(tests, paths_as_the_matrix_says, 0, 3);
  tcase_add_test(tests, rails_of_a_real_machine);
  tcase_add_test(tests, paths_of_real_bridges);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
