/* SPDX-License-Identifier: Apache-2.0
 * Import and export of NCCL's format, and import of AMD's. */
#include "topo/levels/levels.h"
#include "tests/topo/topo_xml_util.h"

/* The file has two GPUs below a switch and one GPU outside, NICs with one and two ports, and two NVSwitches. */
TEST(nccl) {
  bny_topo *t = import(corpus_text("nccl/example.xml", NULL, NULL), "nccl-xml");
  ck_facts(t, "1 host; 2 numa; 1 pci; 3 gpu; 3 nic; 4 port; 3 switch; 5 nvlink; 1 sys;"
              "GPU0 compute 90; GPU0 vendor NVIDIA; GPU0 bus 0000:10:00.0; eth0 number 2; eth0#1 number 2;"
              "port/mlx5_0 number 1; port/mlx5_0 nic/mlx5_0 link 1x50; port/mlx5_1 nic/mlx5_0 link 1x0;"
              "GPU0 ffff:ff:01.0 link 16x48; GPU1 ffff:ff:01.0 link 0x12;" /* the link of GPU1 is unknown */
              "GPU0 GPU1 link 1x20.6;" /* the ends list 2 links and 1 link, so one is down */
              "GPU0 0000:a1:00.0 link 5x103; GPU2 node0 link 1x450;"
              "GPU0 GPU1 NVL; GPU0 GPU2 PHB; GPU0 mlx5_0 PIX");
  int32_t g0 = node_of(t, "GPU0"), g1 = node_of(t, "GPU1"), port = node_of(t, "port/mlx5_0");
  ck_assert_double_eq_tol(between(t, port, t->nodes[port].parent)->latency_us, 1.5, 1e-9);
  ck_assert_int_eq(between(t, g0, t->nodes[g0].parent)->source, BNY_TOPO_FILE);
  ck_assert_int_eq(between(t, g1, t->nodes[g1].parent)->source, BNY_TOPO_ASSUMED);
}

/* ---- NCCL's view of a machine ------------------------------------------------------------------------------------ */

/* Two levels with the ids that NCCL knows are one Broadcom switch. Three levels are a switch below another. */
TEST(broadcom_switches) {
  static const struct {
    const char *above, *below;
    bool one;
  } cases[] = {
      {"c030 1000 0x0100", "c030 1000 0x1003", true},  {"c030 1000 0x100b", "c030 1000 0x100b", false},
      {"c030 1000 0x0100", "c030 1000 0x0100", false}, {"c030 1000 0x1003", "c030 1000 0x0100", false},
      {"c030 15d9 0x0100", "c030 15d9 0x1003", false}, {"c010 1000 0xa032", "c010 1000 0xa096", true},
      {"c010 1000 0xa032", "c010 1000 0xb096", false}, {"c010 1000 0xa032", "c030 1000 0x1003", false},
      {"c030 1000 0x0100", "c030 1000 ", false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[2048], device[2][8], vendor[2][8], subsystem[2][8] = {"", ""};
    ck_assert_int_ge(sscanf(cases[i].above, "%7s %7s %7s", device[0], vendor[0], subsystem[0]), 2);
    ck_assert_int_ge(sscanf(cases[i].below, "%7s %7s %7s", device[1], vendor[1], subsystem[1]), 2);
#define BRIDGE(bus)                                                                                        \
  "<pci busid=\"" bus "\" class=\"0x060400\" vendor=\"0x1000\" device=\"0x%s\" subsystem_vendor=\"0x%s\" " \
  "subsystem_device=\"%s\">"
#define BELOW(bus, number) "<pci busid=\"" bus "\"><gpu dev=\"" number "\"/></pci>"
    snprintf(
        text, sizeof text,
        NCCL_HEAD BRIDGE("0000:01:00.0") BELOW("0000:02:00.0", "0") BRIDGE("0000:03:00.0") BELOW("0000:04:00.0", "1")
            BRIDGE("0000:05:00.0") BELOW("0000:06:00.0", "2") "</pci></pci></pci>" NCCL_TAIL,
        device[0], vendor[0], subsystem[0], device[1], vendor[1], subsystem[1], device[1], vendor[1], subsystem[1]);
    bny_topo *t = import(text, "nccl-xml");
    int32_t gpus[3] = {named(t, BNY_TOPO_GPU, "GPU0"), named(t, BNY_TOPO_GPU, "GPU1"), named(t, BNY_TOPO_GPU, "GPU2")};
    ck_assert_msg(bny_topo_path_between(t, gpus[0], gpus[1]) == (cases[i].one ? BNY_TOPO_PATH_PIX : BNY_TOPO_PATH_PXB),
                  "%s over %s", cases[i].above, cases[i].below);
    ck_assert_int_eq(bny_topo_path_between(t, gpus[1], gpus[2]), BNY_TOPO_PATH_PXB);
  }
}

/* ---- ends that differ, and parts that are skipped ---------------------------------------------------------------- */

#define LINKED(bus, number, rows) "<pci busid=\"" bus "\"><gpu dev=\"" number "\" sm=\"90\">" rows "</gpu></pci>"
#define ROW(bus, count) "<nvlink target=\"" bus "\" count=\"" count "\" tclass=\"0x030200\"/>"
#define BRIDGED(bus, inside) "<pci busid=\"" bus "\" class=\"0x060400\">" inside "</pci>"

/* No part of a file is dropped silently. Each row must yield this first finding. */
TEST(no_silence) {
  static const struct {
    const char *inside, *id, *fact;
  } cases[] = {
      {LINKED("0000:01:00.0", "0", ROW("0000:02:00.0", "1")) LINKED("0000:02:00.0", "1", ROW("0000:01:00.0", "12")),
       "ends-differ", "GPU0: it lists 1 link to GPU1, which lists 12 to it"},
      {LINKED("0000:01:00.0", "0", ROW("0000:02:00.0", "12")) LINKED("0000:02:00.0", "1", ROW("0000:01:00.0", "11")),
       "ends-differ", "GPU1: it lists 11 links to GPU0, which lists 12 to it"},
      {LINKED("0000:01:00.0", "0", ROW("0000:02:00.0", "12")) LINKED("0000:02:00.0", "1", ROW("0000:01:00.0", "0")),
       "nvlink-one-sided", "GPU1: it does not list"},
      {LINKED("0000:01:00.0", "0", ROW("0000:02:00.0", "12")) LINKED("0000:02:00.0", "1", ""), "nvlink-one-sided",
       "GPU1: it does not list"},
      {"<pci busid=\"0000:45:00.0\"><pci busid=\"0000:4f:00.0\"/><pci busid=\"0000:50:00.0\"/></pci>", "input-odd",
       "0000:4f:00.0 and 0000:50:00.0: a PCI device without a class"},
      {BRIDGED("0000:01:00.0", "<pcilink target=\"0000:02:00.0\"/>") BRIDGED("0000:02:00.0", ""), "input-odd",
       "0000:02:00.0: it does not list the PCI link that 0000:01:00.0 lists"},
      {BRIDGED("0000:01:00.0", "<pcilink target=\"0000:09:00.0\"/>"), "input-odd",
       "PCI link to 0000:09:00.0 is left out"},
      {BRIDGED("0000:01:00.0", "<dpu busid=\"0000:09:00.0\"/><dpu/>"), "input-odd", "<dpu> is no known element"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[2048];
    snprintf(text, sizeof text, NCCL_HEAD "%s" NCCL_TAIL, cases[i].inside);
    bny_topo *t = import(text, "nccl-xml");
    const topo_findings all = topo_diagnose(t, topo_derive(t), NULL);
    ck_assert_msg(all.count > 0 && strcmp(all.list[0].id, cases[i].id) == 0 &&
                      strstr(all.list[0].text, cases[i].fact) != NULL,
                  "%s\n%s", text, all.count > 0 ? all.list[0].text : "no finding");
  }
  bny_topo *t = import(NCCL_HEAD BRIDGED("0000:01:00.0", "<pcilink target=\"0000:02:00.0\"/>")
                           BRIDGED("0000:02:00.0", "<pcilink target=\"0000:01:00.0\"/>") NCCL_TAIL,
                       "nccl-xml");
  ck_assert_int_eq(t->nnotes, 0);
}

/* ---- rejected input ---------------------------------------------------------------------------------------------- */

#define GPU_AT(bus, number, links) \
  "<pci busid=\"" bus "\" class=\"0x030200\"><gpu dev=\"" number "\" sm=\"90\">" links "</gpu></pci>\n"

static const rejection rejected[] = {
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
    {NCCL_HEAD GPU_AT("0000:01:00.0", "0", "") GPU_AT("0000:01:00.0", "1", "") NCCL_TAIL, 4,
     "bus id 0000:01:00.0 belongs to two GPUs"},
    {NCCL_HEAD GPU_AT("0000:01:00.0", "0", "") GPU_AT("0000:02:00.0", "0", "") NCCL_TAIL, 4, "GPU0 appears twice"},
    {NCCL_HEAD "</cpu>\n<cpu numaid=\"0\">" NCCL_TAIL, 4, "node0 appears twice"},
    {NCCL_HEAD "<pci busid=\"0000:01:00.0\"><gpu dev=\"1\"/>\n<gpu dev=\"2\"/></pci>" GPU_AT("0000:02:00.0", "2", "")
         NCCL_TAIL,
     4, "GPU2 appears twice"},
    {NCCL_HEAD GPU_AT("0000:01:00.0", "0", "<nvlink count=\"1\"/>") NCCL_TAIL, 3, "no target"},
    {NCCL_HEAD GPU_AT("0000:01:00.0", "0", "<nvlink target=\"over there\" count=\"1\"/>") NCCL_TAIL, 3, "not a bus id"},
    {NCCL_HEAD GPU_AT("0000:01:00.0", "0", "<nvlink target=\"0000:0a:00.0\" tclass=\"0x068000\" count=\"-1\"/>")
         NCCL_TAIL,
     3, "must be"},
    {NCCL_HEAD GPU_AT("0000:01:00.0", "0", "<nvlink target=\"0000:0a:00.0\" tclass=\"0x068000\" count=\"99999\"/>")
         NCCL_TAIL,
     3, "must be"},
    {NCCL_HEAD GPU_AT("0000:01:00.0", "0",
                      "<nvlink target=\"0000:0a:00.0\" tclass=\"0x068000\"/>\n<nvlink target=\"0000:0a:00.0\" "
                      "tclass=\"0x068000\"/>") NCCL_TAIL,
     4, "appears twice"},
    {NCCL_HEAD "<pci busid=\"0000:01:00.0\" link_speed=\"17 GT/s\"/>" NCCL_TAIL, 3, "no PCI link has that speed"},
    {NCCL_HEAD "<pci busid=\"0000:01:00.0\" link_speed=\"0 GT/s\"/>" NCCL_TAIL, 3, "no PCI link has that speed"},
    {NCCL_HEAD "<pci busid=\"0000:01:00.0\" link_width=\"999\"/>" NCCL_TAIL, 3, "must be"},
    {NCCL_HEAD "<pci busid=\"0000:01:00.0\" link_width=\"wide\"/>" NCCL_TAIL, 3, "not a whole number"},
    {NCCL_HEAD "<nic><net name=\"a\" speed=\"fast\"/></nic>" NCCL_TAIL, 3, "must be"},
    {NCCL_HEAD "<nic><net name=\"a\" speed=\"-7\"/></nic>" NCCL_TAIL, 3, "must be"},
    {NCCL_HEAD "<nic><net name=\"a\" speed=\"nan\"/></nic>" NCCL_TAIL, 3, "must be"},
    {NCCL_HEAD "<nic><net name=\"a\" speed=\"1e30\"/></nic>" NCCL_TAIL, 3, "must be"},
    {NCCL_HEAD "<nic><net name=\"a\" dev=\"99999999999999999999\"/></nic>" NCCL_TAIL, 3, "must be"},
};

TEST_LOOP(what_is_rejected, (int)(sizeof rejected / sizeof rejected[0])) {
  ck_rejected(rejected[_i].text, strlen(rejected[_i].text), rejected[_i].line, rejected[_i].why);
}

int main(void) {
  if (!xml_is_read()) return 77;
  return suite_main(suite_with("topo_nccl", 120, NULL, drop_kept));
}
