/* SPDX-License-Identifier: Apache-2.0
 * Tests of the importers of XML share this: an example of each format, and ways to look at the model. */
#ifndef BNY_TESTS_TOPO_TOPO_XML_UTIL_H
#define BNY_TESTS_TOPO_TOPO_XML_UTIL_H

#include "topo/model/model.h"
#include "topo/import/xml.h"
#include "tests/topo/topo_util.h"

#define NCCL_HEAD                                                                                     \
  "<system version=\"1\">\n<cpu numaid=\"0\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" " \
  "modelid=\"143\">\n"
#define NCCL_TAIL "</cpu>\n</system>\n"

/* Two GPUs below one switch, a third beside it, a NIC with two ports, one of a virtual machine, two NVSwitches. */
static const char nccl_example[] __attribute__((unused)) =
    "<!-- a comment first -->\n" NCCL_HEAD
    "<pci busid=\"ffff:ff:01.0\" class=\"0x060400\" link_speed=\"16 GT/s\" link_width=\"16\">\n"
    " <pci busid=\"0000:10:00.0\" class=\"0x030200\" vendor=\"0x10de\" link_speed=\"32.0 GT/s PCIe\" "
    "link_width=\"16\">\n"
    "  <gpu dev=\"0\" sm=\"90\" rank=\"0\" gdr=\"1\"><nvlink target=\"0000:a0:00.0\" count=\"4\" "
    "tclass=\"0x068000\"/>\n"
    "   <nvlink target=\"0000:a1:00.0\" count=\"5\" tclass=\"0x068000\"/><nvlink target=\"0000:11:00.0\" count=\"2\" "
    "tclass=\"0x030200\"/></gpu>\n"
    " </pci>\n"
    " <pci busid=\"0000:11:00.0\" link_speed=\"\" link_width=\"0\">\n"
    "  <gpu dev=\"1\" sm=\"90\" rank=\"1\" gdr=\"1\"><nvlink target=\"0000:a0:00.0\" count=\"4\" "
    "tclass=\"0x068000\"/>\n"
    "   <nvlink target=\"0000:10:00.0\" count=\"1\" tclass=\"0x030200\"/></gpu>\n"
    " </pci>\n"
    " <pci busid=\"0000:12:00.0\" class=\"0x020700\" link_speed=\"32 GT/s PCIe/s\" link_width=\"8\">\n"
    "  <nic><net name=\"mlx5_0\" dev=\"0\" speed=\"400000\" port=\"1\" guid=\"0x1\" latency=\"1.5\"/>\n"
    "   <net name=\"mlx5_1\" dev=\"1\" speed=\"-1\" port=\"2\" guid=\"0x1\"/></nic>\n"
    " </pci>\n"
    "</pci>\n"
    "<nic><net name=\"eth0\" dev=\"2\" speed=\"0\" port=\"0\"/></nic>\n"
    "<pci busid=\"0000:20:00.0\" class=\"0x030200\"><gpu dev=\"2\" sm=\"90\" rank=\"2\"><nvlink "
    "target=\"fffffff:ffff:ff\" "
    "count=\"3\" tclass=\"0x068000\"/><c2c bw=\"450000\" count=\"1\"/></gpu></pci>\n"
    "</cpu>\n<cpu numaid=\"1\">\n<nic><net name=\"eth0\" dev=\"2\" speed=\"10000\" port=\"0\"/></nic>\n"
    "<future><pci busid=\"0000:99:00.0\"/></future>\n" NCCL_TAIL;

static const char hwloc_v2_example[] __attribute__((unused)) =
    "<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n"
    "<object type=\"Machine\" gp_index=\"1\"><info name=\"HostName\" value=\"a &amp; b\"/>\n"
    "<info name=\"Architecture\" value=\"x86_64\"/>\n"
    "<object type=\"Package\" os_index=\"0\" gp_index=\"2\"><info name=\"CPUVendor\" value=\"AuthenticAMD\"/>\n"
    " <object type=\"NUMANode\" os_index=\"0\" gp_index=\"3\"/><object type=\"L3Cache\" gp_index=\"4\"/>\n"
    " <object type=\"Bridge\" gp_index=\"5\" bridge_type=\"0-1\" bridge_pci=\"0000:[00-0f]\">\n"
    "  <object type=\"Bridge\" gp_index=\"6\" bridge_type=\"1-1\" pci_busid=\"0000:00:01.0\">\n"
    "   <object type=\"Bridge\" gp_index=\"7\" bridge_type=\"1-1\" pci_busid=\"0000:01:00.0\" "
    "pci_link_speed=\"31.507692\">\n"
    "    <object type=\"Bridge\" gp_index=\"8\" bridge_type=\"1-1\" pci_busid=\"0000:02:00.0\">\n"
    "     <object type=\"PCIDev\" gp_index=\"9\" pci_busid=\"0000:03:00.0\" pci_type=\"0302 [10de:2330] [10de:1] a1\" "
    "pci_link_speed=\"63.015385\"><object type=\"OSDev\" gp_index=\"10\" name=\"nvml1\" "
    "osdev_type=\"5\"/></object></object>\n"
    "    <object type=\"Bridge\" gp_index=\"11\" bridge_type=\"1-1\" pci_busid=\"0000:02:01.0\">\n"
    "     <object type=\"PCIDev\" gp_index=\"12\" pci_busid=\"0000:04:00.0\" pci_type=\"0207 [15b3:1021] [15b3:1] 00\">"
    "<object type=\"OSDev\" gp_index=\"13\" name=\"mlx5_0\" osdev_type=\"3\"><info name=\"Port1State\" value=\"4\"/>"
    "<info name=\"Port1GID0\" value=\"fe80:0000:0000:0000:9803:9b03:0082:9c64\"/></object></object></object>\n"
    "   </object></object>\n"
    "  <object type=\"Bridge\" gp_index=\"14\" bridge_type=\"1-1\" pci_busid=\"0000:00:02.0\">\n"
    "   <object type=\"PCIDev\" gp_index=\"15\" pci_busid=\"0000:05:00.0\" pci_type=\"0300 [1a03:2000] [0:0] "
    "41\"/></object>\n"
    " </object>\n"
    " <object type=\"Bridge\" gp_index=\"16\" bridge_type=\"0-1\" bridge_pci=\"0000:[10-1f]\">\n"
    "  <object type=\"PCIDev\" gp_index=\"17\" pci_busid=\"0000:11:00.0\" pci_type=\"0302 [10de:2330] [10de:1] a1\">"
    "<object type=\"OSDev\" gp_index=\"18\" name=\"nvml0\" osdev_type=\"5\"/></object></object>\n"
    "</object></object>\n"
    "<distances2hetero nbobjs=\"2\" kind=\"25\" name=\"NVLinkBandwidth\"><indexes length=\"16\">OSDev:10 OSDev:18 "
    "</indexes>\n"
    "<u64values length=\"9\">0 100000 </u64values><u64values length=\"9\">75000 0 </u64values></distances2hetero>\n"
    "</topology>\n";

/* In version 1, NUMA nodes hold the objects that are near to them. */
static const char hwloc_v1_example[] __attribute__((unused)) =
    "<topology>\n<object type=\"Machine\" os_index=\"0\">\n"
    "<object type=\"NUMANode\" os_index=\"0\"><object type=\"Socket\" os_index=\"0\"><object type=\"Core\"/></object>\n"
    " <object type=\"Bridge\" bridge_type=\"0-1\" bridge_pci=\"0000:[00-0f]\"><object type=\"PCIDev\" "
    "pci_busid=\"0000:03:00.0\" "
    "pci_type=\"0302 [10de:1db4] [0:0] a1\" pci_link_speed=\"0.000000\"/></object></object>\n"
    "<object type=\"NUMANode\" os_index=\"1\"><object type=\"Socket\" os_index=\"1\"/>\n"
    " <object type=\"Bridge\" bridge_type=\"0-1\" bridge_pci=\"0000:[80-8f]\"><object type=\"PCIDev\" "
    "pci_busid=\"0000:83:00.0\" "
    "pci_type=\"0302 [10de:1db4] [0:0] a1\"/></object></object>\n"
    "</object></topology>\n";

static const char smi_example[] __attribute__((unused)) =
    "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log>\n"
    "<attached_gpus>2</attached_gpus>\n<gpu id=\"00000000:53:00.0\"><product_name>NVIDIA H100 80GB "
    "HBM3</product_name>\n"
    "<product_architecture>Hopper</product_architecture><uuid>GPU-1</uuid><pci><pci_gpu_link_info><pcie_gen>\n"
    "<max_link_gen>5</max_link_gen><current_link_gen>1</current_link_gen></pcie_gen><link_widths>"
    "<max_link_width>16x</max_link_width><current_link_width>8x</current_link_width></link_widths></"
    "pci_gpu_link_info></pci>\n"
    "<fabric><state>Completed</state><status>Success</status><cliqueId>0</cliqueId>"
    "<clusterUuid>00000000-0000-0000-0000-000000000000</clusterUuid></fabric></gpu>\n"
    "<gpu id=\"00000000:64:00.0\"><product_name>NVIDIA H100 80GB HBM3</product_name>\n"
    "<product_architecture>Hopper</product_architecture><fabric><state>In "
    "Progress</state><status>N/A</status></fabric></gpu>\n"
    "</nvidia_smi_log>\n";

static inline bny_topo *import(const char *text, const char *importer) {
  bny_topo_error error = {.text = ""};
  const char *name = NULL;
  bny_topo *topo = topo_import(text, strlen(text), &name, &error);
  ck_assert_msg(topo != NULL, "line %d: %s", error.line, error.text);
  ck_assert_str_eq(name, importer);
  return topo;
}

static inline const bny_topo_link *between(const bny_topo *topo, int32_t a, int32_t b) {
  for (int32_t l = bny_topo_first_link(topo, a); l >= 0; l = bny_topo_next_link(topo, a, l))
    if (bny_topo_other_end(topo, a, l) == b) return &topo->links[l];
  ck_abort_msg("%s and %s are not linked", topo->nodes[a].name, topo->nodes[b].name);
  return NULL;
}

static inline int32_t links_of_kind(const bny_topo *topo, bny_topo_link_kind kind) {
  int32_t count = 0;
  for (int32_t l = 0; l < topo->nlinks; l++) count += topo->links[l].kind == kind;
  return count;
}

typedef struct rejection {
  const char *text;
  int line;
  const char *why;
} rejection;

/* ---- real machines ----------------------------------------------------------------------------------------------- */

/* How often this stands in the text. */
static inline int32_t tags(const char *text, const char *tag) {
  int32_t count = 0;
  for (const char *at = strstr(text, tag); at != NULL; at = strstr(at + 1, tag)) count++;
  return count;
}

/* A dump by its name; NULL if there is none. */
static inline bny_topo *dump(const char *name) {
  char path[4096];
  return dump_path(name, path) ? load_file(path) : NULL;
}

/* False, with a word on it, where libxml2 is missing. */
static inline bool xml_is_read(void) {
  if (!bny_topo_xml_available()) fprintf(stderr, "skipped: built without libxml2\n");
  return bny_topo_xml_available();
}

#endif
