/* SPDX-License-Identifier: Apache-2.0
 * The rules of banyan-topo --check. Healthy machines are damaged link by link, and each fault is found once. */
#include "tests/topo/topo_xml_util.h"

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

#define H100 "host nvswitch package:2 numa bridge:2 pci:2 gpu@sm90@gen5x16 nic@400g@gen5x16"
#define A100 "host package:2 numa bridge:2 pci:2 gpu@sm80 nic@200g"

static const struct {
  const char *machine, *damage, *facts;
} cases[] = {
    /* healthy, or built so */
    {H100, "", "no fault; no note; no info"},
    {"host:2 nvswitch package:2 numa bridge:2 pci:2 gpu@sm90@gen5x16 nic@400g", "", "no fault; no note"},
    {"host nvlink gpu:8@sm80 nic@200g", "", "no fault; no note"},
    {"host:2 package:2 numa bridge pci gpu:2 nic@200g", "", "2 rail; rail speed 12.5; no fault"},
    {"host numa bridge pci nic@25g gpu nic@400g", "", "GPU0 speed 50; no fault; no note; no info"},
    {"host package:2 numa:2 gpu:2", "", "no fault; no note"},
    /* lost or asymmetric links */
    {"nvswitch host:2 gpu:4@sm100 nic:4@400g", "nvlink gpu:5 12 481.2",
     "1 faults; fault host1 GPU1: 12 of 18 NVLinks; domain shape all,uneven; domain speed 481.2"},
    {H100, "nvlink gpu:3 0 0", "1 faults; fault GPU3: no NVLink, 7 GPUs of its host have them"},
    {H100, "nvlink gpu:2 18 185.4 370.8", "1 faults; fault GPU2: its nvlink links have 185.4 GB/s of 370.8"},
    {H100, "nvlink gpu:6 18 0 370.8", "1 faults; fault GPU6: 18 NVLinks, but no peer access"},
    {"host xgmi gpu:8@gfx942 nic:8@400g", "xgmi gpu:1 0 0", "1 faults; fault GPU1: no xGMI link, 7 GPUs"},
    /* PCIe narrower or slower than it can */
    {H100, "pci gpu:4 8 24", "1 faults; fault GPU4: its PCI link has 8 lanes, those of its siblings 16"},
    {H100, "pci gpu:1 -1 12", "1 faults; fault GPU1: its PCI link runs at 12 GB/s, those of its siblings at 48"},
    {"host:4 numa bridge pci gpu@gen5x16 nic@400g@gen5x16", "pci gpu:1 16 12; pci nic:3 16 12 12",
     "1 faults; fault host1 GPU0 and host3 NIC0: its PCI link runs at 12 GB/s, those of its siblings at 48"},
    {H100, "pci gpu:1 16 3", "0 faults; note GPU1: its PCI link is at generation 1"},
    {"host gpu:2@gen5x16", "pci gpu:1 16 24", "0 faults; note GPU1: its PCI link runs at 24 GB/s, that of its sibling"},
    {"host gpu@gen5x16", "pci gpu:0 4 12", "0 faults; note GPU0: its PCI link runs at 12 GB/s of 48"},
    /* missing, slow and far NICs */
    {"host:2 gpu:2", "", "1 faults; fault host0 and host1: no NIC is known there"},
    {A100, "net nic:3 1 0",
     "1 faults; fault NIC3 port 1: it is down (25 GB/s if it were up), and its NIC serves 1 GPU"},
    {"host numa bridge pci gpu:2 nic:2@200g", "net nic:1 1 0",
     "1 faults; fault NIC1 port 1: it is down (25 GB/s if it were up), so GPUs share another NIC"},
    {"host numa bridge pci gpu nic:2@2x200g", "net port:0 1 0; net port:1 1 0; net port:2 1 0",
     "GPU0 nic NIC1; GPU0 speed 25; 0 faults"},
    {"host:4 numa bridge pci gpu nic@400g", "net nic:2 1 12.5 12.5",
     "1 faults; fault host2 NIC0: it runs at 12.5 GB/s, other NICs at 50"},
    {"host:4 numa bridge pci gpu nic@400g", "net nic:1 1 0 0", "1 faults; fault host1 NIC0: it has no speed"},
    {"host package:2 numa bridge gpu:4 nic:4@400g", "", "no fault"},
    {"host nvswitch package:2 numa bridge pci:4 gpu nic@400g", "", "no fault"},
    {"leaf:2@20000g host:2 numa bridge pci gpu nic@400g", "net port:1 1 25000",
     "0 faults; note host1 NIC0: it is said to run at 25000 GB/s"},
    /* the link between NUMA nodes; several networks */
    {"host package:2 numa bridge gpu nic@400g", "", "0 faults"},
    {"leaf:2 host:2 gpu nic@400g", "net switch:0 0 0", "1 faults; fault host2 and host3: no link joins its network"},
};

TEST_LOOP(damaged_machines, (int)(sizeof cases / sizeof cases[0])) {
  bny_topo *topo = load(cases[_i].machine);
  damage(topo, cases[_i].damage);
  ck_facts(topo, cases[_i].facts);
}

/* Hosts of which one lacks a part that most have, as trees of nodes. */
TEST(hosts_that_lack_a_part) {
#define HOST(name, devices) "host/" name " numa/node0 pci/p0 " devices " ...."
  bny_topo *topo = tree_of(HOST("a", "gpu/GPU0 . gpu/GPU1 . nic/n0") HOST("b", "gpu/GPU0 . gpu/GPU1 . nic/n0")
                               HOST("c", "gpu/GPU0 . nic/n0"));
  ck_facts(topo, "1 faults; fault c: 1 GPUs, most hosts have 2");
  topo = tree_of("host/a package/p numa/near pci/s0 gpu/GPU0 . gpu/GPU1 . gpu/GPU2 . gpu/GPU3 . gpu/GPU4 . gpu/GPU5 . "
                 "gpu/GPU6 . nic/n0 ... .package/q numa/far gpu/GPU7");
  ck_facts(topo, "1 faults; fault GPU7: its NIC is SYS away, those of the other GPUs PIX; info a: 1 of 8 GPUs");
}

/* A fault that very many hosts have is reported for some of them, and the others are counted. */
TEST(findings_are_bounded) {
  bny_topo *topo = load("host:500 gpu@gen5x16 nic@400g");
  for (int32_t l = 0; l < topo->nlinks; l++) {
    bny_topo_link *link = &topo->links[l];
    if (link->kind == BNY_TOPO_LINK_NET) link->gbytes_per_s = 0.01 + 0.02 * link->from; /* every host differs */
  }
  topo_findings found = topo_diagnose(topo, topo_derive(topo), NULL, 0);
  ck_assert(has_finding(&found, TOPO_FAULT, "more of link-slow"));
  ck_assert_int_lt(found.count, 200);
}

int main(void) { return suite_main(suite_with("topo_health", 60, NULL, drop_kept)); }
