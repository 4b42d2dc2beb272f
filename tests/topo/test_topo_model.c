/* SPDX-License-Identifier: Apache-2.0
 * The model: stored and rejected values, path types, speeds, and the choice of an importer. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "topo/model/load.h"
#include "topo/model/model.h"
#include "topo/model/names.h"
#include "topo/model/speed.h"
#include "tests/support/directory.h"
#include "tests/topo/topo_util.h"

TEST(strings_are_made_fit) {
  static const struct {
    const char *in, *out;
  } cases[] = {{"mlx5_0", "mlx5_0"},
               {"", ""},
               {"a\033[31mb\tc\x7f", "a?[31mb?c?"},
               {"na\xc3\xafve \xe2\x82\xac \xf0\x9f\x8c\xb3", "na\xc3\xafve \xe2\x82\xac \xf0\x9f\x8c\xb3"},
               {"\xff\xc3-\xe2\x82", "?\?-?\?"},  /* an invalid byte, then two truncated characters */
               {"\xc0\x80\xed\xa0\x80", "?????"}, /* an overlong encoding, a surrogate */
               {"\xc2\x9b"
                "31m",
                "?31m"}, /* a control character of two bytes */
               {"EPYC 7401   ", "EPYC 7401"}};
  bny_topo *topo = topo_new();
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    int32_t n = put(topo, BNY_TOPO_HOST, -1, cases[i].in, NULL);
    ck_assert_str_eq(topo->nodes[n].name, cases[i].out);
  }
  char *huge = malloc(100000);
  memset(huge, 'x', 99999);
  huge[99999] = '\0';
  int32_t n = put(topo, BNY_TOPO_HOST, -1, huge, NULL);
  ck_assert_uint_eq(strlen(topo->nodes[n].name), 255);
  memset(huge, '\xc3', 99999);
  for (int i = 1; i < 99999; i += 2) huge[i] = '\xa9';
  ck_assert(bny_topo_set_string(topo, &topo->nodes[n].name, huge));
  ck_assert_uint_eq(strlen(topo->nodes[n].name), 254); /* cut at a character boundary */
  ck_assert(bny_topo_set_string(topo, &topo->nodes[n].model, NULL));
  ck_assert_ptr_null(topo->nodes[n].model);
  free(huge);
  bny_topo_free(NULL);
}

TEST(bus_ids) {
  static const struct {
    const char *in, *out; /* out: NULL if rejected */
  } cases[] = {{"0000:1b:00.0", "0000:1b:00.0"},
               {"00000000:1B:00.0", "0000:1b:00.0"},
               {"1b:00.1", "0000:1b:00.1"},
               {"ffff:ff:01.0", "ffff:ff:01.0"},
               {"10000:e1:00.0", "10000:e1:00.0"},
               {"0:0:0.0", "0000:00:00.0"},
               {"fffffff:ffff:ff", NULL},
               {"", NULL},
               {"0000:1b:00", NULL},
               {"0000:1b:00.0x", NULL},
               {"0000:1b:00.10", NULL},
               {" 0000:1b:00.0", NULL},
               {"0000:+b:00.0", NULL},
               {"123456789:1b:00.0", NULL},
               {"banana", NULL}};
  char bus_id[BNY_TOPO_BUS_BYTES];
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bool taken = bny_topo_bus_normalise(cases[i].in, bus_id);
    ck_assert_msg(taken == (cases[i].out != NULL), "\"%s\"", cases[i].in);
    if (taken) ck_assert_str_eq(bus_id, cases[i].out);
  }
}

TEST(links_of_a_node) {
  bny_topo *topo = topo_new();
  int32_t nodes[4], links[5];
  for (int i = 0; i < 4; i++) {
    nodes[i] = put(topo, BNY_TOPO_GPU, -1, numbered("GPU", i), NULL);
    ck_assert_int_eq(bny_topo_first_link(topo, nodes[i]), -1);
  }
  links[0] = join(topo, BNY_TOPO_LINK_NVLINK, nodes[0], nodes[1], 1);
  links[1] = join(topo, BNY_TOPO_LINK_NVLINK, nodes[2], nodes[0], 1);
  links[2] = join(topo, BNY_TOPO_LINK_NVLINK, nodes[0], nodes[0], 1);
  links[3] = join(topo, BNY_TOPO_LINK_NVLINK, nodes[1], nodes[2], 1);
  links[4] = join(topo, BNY_TOPO_LINK_NVLINK, nodes[0], nodes[1], 2);
  const int32_t wanted[4][5] = {
      {links[4], links[2], links[1], links[0], -1}, {links[4], links[3], links[0], -1}, {links[3], links[1], -1}, {-1}};
  for (int i = 0; i < 4; i++) {
    int at = 0;
    for (int32_t l = bny_topo_first_link(topo, nodes[i]); l >= 0; l = bny_topo_next_link(topo, nodes[i], l)) {
      ck_assert_int_eq(l, wanted[i][at]);
      at++;
    }
    ck_assert_int_eq(wanted[i][at], -1);
  }
  ck_assert_int_eq(bny_topo_other_end(topo, nodes[2], links[1]), nodes[0]);
  ck_assert_int_eq(bny_topo_other_end(topo, nodes[0], links[1]), nodes[2]);
  ck_assert_int_eq(bny_topo_other_end(topo, nodes[0], links[2]), nodes[0]);
}

static bny_topo *two_gpus(void) {
  bny_topo *topo = topo_new();
  int32_t host = put(topo, BNY_TOPO_HOST, -1, "host0", NULL);
  int32_t a = put(topo, BNY_TOPO_GPU, host, "GPU0", "0000:01:00.0"),
          b = put(topo, BNY_TOPO_GPU, host, "GPU1", "0000:02:00.0");
  join(topo, BNY_TOPO_LINK_NVLINK, a, b, 20.6);
  return topo;
}

static void ck_broken(const bny_topo *topo, const char *why) {
  bny_topo_error error = {.text = ""};
  ck_assert_msg(!bny_topo_check(topo, &error) && strstr(error.text, why) != NULL, "%s: \"%s\"", why, error.text);
}

TEST(what_is_rejected) {
  bny_topo *t = two_gpus();
  bny_topo_error error = {.text = ""};
  ck_assert_msg(bny_topo_check(t, &error), "%s", error.text);
/* breaks a valid model; the error has these words */
#define BREAK(statement, why) t = two_gpus(), statement, ck_broken(t, why)
  BREAK(t->nodes[1].kind = (bny_topo_kind)99, "no such kind");
  BREAK(t->nodes[1].source = (bny_topo_source)7, "no such kind or source");
  BREAK(bny_topo_set_string(t, &t->nodes[1].name, ""), "has no name");
  BREAK(t->nodes[1].parent = 2, "does not come before");
  BREAK(t->nodes[1].parent = 1, "does not come before");
  BREAK(t->nodes[1].index = -5, "negative index");
  BREAK(bny_topo_set_string(t, &t->nodes[1].bus_id, "1B:00.0"), "not a bus id");
  BREAK(bny_topo_set_string(t, &t->nodes[1].bus_id, "0000:02:00.0"), "appears twice");
  BREAK(bny_topo_set_string(t, &t->nodes[1].name, "GPU1"), "are called \"GPU1\"");
  BREAK(t->links[0].to = 77, "does not exist");
  BREAK(t->links[0].kind = (bny_topo_link_kind)-1, "no such kind");
  BREAK(t->links[0].gbytes_per_s = NAN, "out of range");
  BREAK(t->links[0].rated_gbytes_per_s = INFINITY, "out of range");
  BREAK(t->links[0].gbytes_per_s = -1, "out of range");
  BREAK(t->links[0].gbytes_per_s = 1.1e6, "out of range");
  BREAK(t->links[0].latency_us = -3, "out of range");
  BREAK(t->links[0].count = -1, "out of range");
  BREAK(t->out_of_memory = true, "out of memory");
#undef BREAK
}

TEST(names_repeat_in_other_hosts) {
  bny_topo *topo = topo_new();
  for (int h = 0; h < 2; h++) {
    int32_t host = put(topo, BNY_TOPO_HOST, -1, "same", NULL);
    put(topo, BNY_TOPO_GPU, host, "GPU0", "0000:01:00.0");
  }
  bny_topo_error error;
  ck_assert(bny_topo_check(topo, &error));
  /* 70 nested bridges */
  for (int i = 0, parent = 0; i < 70; i++) parent = put(topo, BNY_TOPO_PCI, parent, "bridge", NULL);
  ck_assert(!bny_topo_check(topo, &error));
  ck_assert_ptr_nonnull(strstr(error.text, "deep"));
}

TEST(names_and_their_reverse) {
  for (int k = 0; k < BNY_TOPO_KINDS; k++)
    ck_assert_int_eq(bny_topo_kind_parse(bny_topo_kind_name((bny_topo_kind)k)), k);
  for (int k = 0; k < BNY_TOPO_LINK_KINDS; k++)
    ck_assert_int_eq(bny_topo_link_parse(bny_topo_link_name((bny_topo_link_kind)k)), k);
  for (int s = 0; s <= BNY_TOPO_MEASURED; s++)
    ck_assert_int_eq(bny_topo_source_parse(bny_topo_source_name((bny_topo_source)s)), s);
  ck_assert_int_eq(bny_topo_kind_parse("disk"), BNY_TOPO_KINDS);
  ck_assert_int_eq(bny_topo_link_parse(""), BNY_TOPO_LINK_KINDS);
  ck_assert_int_eq(bny_topo_source_parse("heard"), BNY_TOPO_MEASURED + 1);
  ck_assert_str_eq(bny_topo_path_name(BNY_TOPO_PATH_PHB), "PHB");
  ck_assert_str_eq(bny_topo_path_name((bny_topo_path)-1), "?");
  bny_topo *topo = topo_new();
  int32_t host = put(topo, BNY_TOPO_HOST, -1, "h", NULL), gpu = put(topo, BNY_TOPO_GPU, host, "GPU0", "0000:01:00.0");
  ck_assert_int_eq(bny_topo_find_bus(topo, "0000:01:00.0"), gpu);
  ck_assert_int_eq(bny_topo_find_bus(topo, "0000:02:00.0"), -1);
  ck_assert_int_eq(bny_topo_find_name(topo, BNY_TOPO_GPU, "GPU0"), gpu);
  ck_assert_int_eq(bny_topo_find_name(topo, BNY_TOPO_NIC, "GPU0"), -1);
  ck_assert_int_eq(bny_topo_ancestor(topo, gpu, BNY_TOPO_HOST), host);
  ck_assert_int_eq(bny_topo_ancestor(topo, gpu, BNY_TOPO_NUMA), -1);
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_GPU), 1);
}

static void ck_path(const bny_topo *topo, const char *facts) {
  char copy[1024], back[1024] = "", *rest = copy, *fact;
  bny_topo_error error = {.text = ""};
  ck_assert_msg(bny_topo_check(topo, &error), "%s", error.text);
  ck_facts(topo, facts);
  snprintf(copy, sizeof copy, "%s", facts);
  while ((fact = strsep(&rest, ";")) != NULL) {
    char w[3][64];
    ck_assert_int_eq(sscanf(fact, "%63s %63s %63s", w[0], w[1], w[2]), 3);
    snprintf(back + strlen(back), sizeof back - strlen(back), "%s%s %s %s", back[0] ? ";" : "", w[1], w[0], w[2]);
  }
  ck_facts(topo, back);
}

TEST(paths_by_containment) {
  bny_topo *t = tree_of(
      "host/h0 package/p0 numa/n0 bridge/r0 pci/s0 pci/s1 gpu/GPU0 . gpu/GPU1 .. gpu/GPU2 . nic/mlx5_0 port/1 . port/2 "
      "... gpu/GPU3 .. bridge/r1 gpu/GPU4 ... numa/n1 bridge/r2 gpu/GPU5 ..... host/h1 gpu/GPU6 . gpu/GPU7 .. "
      "gpu/GPU9");
  ck_path(t, "GPU0 GPU0 SELF;GPU0 GPU1 PIX;GPU0 GPU2 PXB;GPU2 mlx5_0 PIX;GPU2 1 PIX;GPU0 1 PXB;1 2 PIX;GPU0 GPU3 PHB;"
             "GPU0 GPU4 NODE;GPU0 GPU5 SYS;GPU4 GPU5 SYS;GPU0 GPU6 NET;GPU0 GPU9 NONE;"
             "GPU6 GPU7 SYS"); /* no nearer ancestor is known */
}

/* NCCL reports no host bridges. Each PCI domain counts as a host bridge, and functions of one device are PIX. */
TEST(paths_without_host_bridges) {
  ck_path(tree_of("host/h0 numa/n0 pci/s0=0000:10:00.0 gpu/GPU0=0000:11:00.0 .. pci/s1=0000:20:00.0 "
                  "gpu/GPU1=0000:21:00.0 .. gpu/GPU2=0001:30:00.0 . nic/eth0 . nic/mlx5_0=0000:40:00.0 . "
                  "nic/mlx5_1=0000:40:00.1 . nic/mlx5_2=0000:41:00.0"),
          "GPU0 GPU1 PHB;GPU0 GPU2 NODE;GPU0 eth0 PHB;mlx5_0 mlx5_1 PIX;mlx5_0 mlx5_2 PHB");
  /* Without NUMA nodes, or with one, all devices share a node. With two, the node of each device is unknown. */
  ck_path(tree_of("host/h0 bridge/r0 gpu/GPU0 .. bridge/r1 gpu/GPU1"), "GPU0 GPU1 NODE");
  ck_path(tree_of("host/h0 bridge/r0 gpu/GPU0 .. bridge/r1 gpu/GPU1 .. numa/n0"), "GPU0 GPU1 NODE");
  ck_path(tree_of("host/h0 bridge/r0 gpu/GPU0 .. bridge/r1 gpu/GPU1 .. numa/n0 . numa/n1"), "GPU0 GPU1 SYS");
}

TEST(paths_by_links) {
  bny_topo *t = tree_of("host/h0 numa/n0 gpu/GPU0 . gpu/GPU1 . gpu/GPU2 . gpu/GPU3 . gpu/GPU4 ... host/h1 gpu/GPU5 .. "
                        "switch/nvswitch . switch/leaf");
  static const struct {
    bny_topo_link_kind kind;
    const char *from, *to;
  } links[] = {{BNY_TOPO_LINK_NVLINK, "GPU0", "GPU1"},     {BNY_TOPO_LINK_XGMI, "GPU2", "GPU1"},
               {BNY_TOPO_LINK_NVLINK, "GPU3", "nvswitch"}, {BNY_TOPO_LINK_NVLINK, "nvswitch", "GPU5"},
               {BNY_TOPO_LINK_NVLINK, "GPU4", "GPU4"}, /* some virtual machines report this */
               {BNY_TOPO_LINK_NET, "GPU4", "leaf"},        {BNY_TOPO_LINK_NET, "GPU5", "leaf"},
               {BNY_TOPO_LINK_C2C, "GPU0", "n0"},          {BNY_TOPO_LINK_C2C, "GPU4", "n0"},
               {BNY_TOPO_LINK_NVLINK, "GPU1", "n0"},       {BNY_TOPO_LINK_NVLINK, "GPU3", "n0"}};
  for (int i = 0; i < 11; i++) {
    join(t, links[i].kind, node_of(t, links[i].from), node_of(t, links[i].to), 20);
    /* A GPU does not forward data, a domain may span hosts, and a leaf is not an NVSwitch. */
    if (i == 6)
      ck_path(t, "GPU0 GPU1 NVL;GPU1 GPU2 NVL;GPU0 GPU2 PHB;GPU3 GPU5 NVL;GPU0 GPU3 PHB;GPU4 GPU5 NET;GPU4 GPU0 PHB");
    if (i == 8) ck_path(t, "GPU0 GPU4 C2C;GPU0 GPU1 NVL;GPU1 GPU4 PHB");
  }
  ck_path(t, "GPU1 GPU3 PHB"); /* two NVLinks to the CPU are not an NVLink path */
}

/* A path query reads only the two devices and their ancestors, even in a large model. All nodes after the first host's
 * are in inaccessible memory during the query. */
TEST(paths_look_at_few_nodes) {
  static const char *const inside[] = {"pci:8 gpu:2", "package:2 pci:4 gpu:2", "package:2 numa:2 bridge:2 pci gpu:2",
                                       "gpu:4 nic:4"};
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  for (size_t i = 0; i < sizeof inside / sizeof inside[0]; i++) {
    char text[128];
    snprintf(text, sizeof text, "host:1024 %s", inside[i]);
    bny_topo *topo = load(text);
    int32_t first = 1; /* the first host is node 0 */
    while (topo->nodes[first].kind != BNY_TOPO_HOST) first++;
    size_t near = ((size_t)first * sizeof *topo->nodes + page - 1) / page * page;
    size_t all = (size_t)topo->nnodes * sizeof *topo->nodes;
    ck_assert_uint_lt(near, all / 50);
    char *there = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(there != MAP_FAILED);
    memcpy(there, topo->nodes, all);
    bny_topo fenced = *topo;
    fenced.nodes = (bny_topo_node *)there;
    ck_assert_int_eq(mprotect(there + near, all - near, PROT_NONE), 0);
    for (int32_t a = 0; a < first; a++)
      for (int32_t b = 0; b < first; b++) ck_assert_int_lt(bny_topo_path_between(&fenced, a, b), BNY_TOPO_PATH_NONE);
    ck_assert_int_eq(munmap(there, all), 0);
  }
}

/* The stored counts equal the counts of a walk over all nodes. */
TEST(numa_nodes_below) {
  const char *text = "host:3 package:2 numa:3 bridge pci:2 gpu";
  bny_topo_error error;
  bny_topo *topo = topo_import(text, strlen(text), NULL, &error);
  for (int32_t n = 0; n < topo->nnodes; n++) {
    int32_t below = 0;
    for (int32_t m = 0; m < topo->nnodes; m++) {
      int32_t up = topo->nodes[m].kind == BNY_TOPO_NUMA ? topo->nodes[m].parent : -1;
      while (up > n) up = topo->nodes[up].parent;
      below += up == n;
    }
    ck_assert_int_eq(topo->nodes[n].numas, below);
  }
  /* a parent that comes later or is the node itself */
  topo = topo_new();
  put(topo, BNY_TOPO_NUMA, 1, "a", NULL);
  put(topo, BNY_TOPO_NUMA, 0, "b", NULL);
  put(topo, BNY_TOPO_NUMA, 2, "c", NULL);
  ck_assert_int_eq(topo->nodes[0].numas, 1);
  ck_assert(!bny_topo_check(topo, &error));
}

TEST(speeds) {
  ck_assert_double_eq_tol(bny_topo_speed_pci(3, 16), 12, 1e-9);
  ck_assert_double_eq_tol(bny_topo_speed_pci(4, 16), 24, 1e-9);
  ck_assert_double_eq_tol(bny_topo_speed_pci(5, 8), 24, 1e-9);
  ck_assert_double_eq(bny_topo_speed_pci(0, 16), 0);
  ck_assert_double_eq(bny_topo_speed_pci(BNY_TOPO_PCI_GENERATIONS + 1, 16), 0);
  ck_assert_double_eq(bny_topo_speed_pci(3, 0), 0);
  ck_assert_int_eq(bny_topo_speed_pci_generation("16 GT/s"), 4);
  ck_assert_int_eq(bny_topo_speed_pci_generation("16.0 GT/s PCIe"), 4);
  ck_assert_int_eq(bny_topo_speed_pci_generation("32 GT/s PCIe/s"), 5);
  ck_assert_int_eq(bny_topo_speed_pci_generation("2.5 GT/s PCIe"), 1);
  ck_assert_int_eq(bny_topo_speed_pci_generation(""), 0);
  ck_assert_int_eq(bny_topo_speed_pci_generation("Unknown speed"), 0);
  ck_assert_int_eq(bny_topo_speed_pci_generation("0 GT/s"), -1);
  ck_assert_int_eq(bny_topo_speed_pci_generation("17 GT/s"), -1);
  ck_assert_int_eq(bny_topo_speed_pci_generation("fast"), -1);
  ck_assert_double_eq_tol(bny_topo_speed_pci_raw(15.753846), 12, 1e-9);
  ck_assert_double_eq_tol(bny_topo_speed_pci_raw(31.507692), 24, 1e-9);
  ck_assert_double_eq_tol(bny_topo_speed_pci_raw(0.25), 0.1875, 1e-9);
  ck_assert_double_eq_tol(bny_topo_speed_nvlink(90), 20.6, 1e-9);
  ck_assert_double_eq_tol(bny_topo_speed_nvlink(60), 18, 1e-9);
  ck_assert_double_eq_tol(bny_topo_speed_nvlink(86), 12, 1e-9);
  ck_assert_double_eq_tol(bny_topo_speed_nvlink(100), 40.1, 1e-9);
  ck_assert_double_eq_tol(bny_topo_speed_nvlink(-1), 20, 1e-9);
  ck_assert_double_eq_tol(bny_topo_speed_cpu("x86_64", "GenuineIntel", 6, 143), 22, 1e-9);
  ck_assert_double_eq_tol(bny_topo_speed_cpu("x86_64", "GenuineIntel", 6, 207), 40, 1e-9);
  ck_assert_double_eq_tol(bny_topo_speed_cpu("x86_64", "AuthenticAMD", 175, 1), 16, 1e-9);
  ck_assert_double_eq_tol(bny_topo_speed_cpu("ppc64le", NULL, -1, -1), 32, 1e-9);
  ck_assert_double_eq_tol(bny_topo_speed_net(400000), 50, 1e-9);
}

TEST(sorted_names) {
  bny_topo_names names = {0};
  ck_assert_ptr_null(bny_topo_names_sort(&names));
  ck_assert_int_eq(bny_topo_names_find(&names, 0, "a"), -1);
  static const char *const keys[] = {"d", "b", "a", "c"};
  for (int scope = 0; scope < 100; scope++)
    for (int k = 0; k < 4; k++) bny_topo_names_add(&names, scope, keys[k], 10 * scope + k);
  ck_assert_ptr_null(bny_topo_names_sort(&names));
  ck_assert_int_eq(bny_topo_names_find(&names, 7, "a"), 72);
  ck_assert_int_eq(bny_topo_names_find(&names, 99, "d"), 990);
  ck_assert_int_eq(bny_topo_names_find(&names, 100, "d"), -1);
  ck_assert_int_eq(bny_topo_names_find(&names, 7, "e"), -1);
  bny_topo_names_add(&names, 50, "c", 9999);
  const bny_topo_name *twice = bny_topo_names_sort(&names);
  ck_assert_ptr_nonnull(twice);
  ck_assert_int_eq(twice->value, 9999);
  ck_assert_int_eq(bny_topo_names_find(&names, 50, "c"), 503);
  bny_topo_names_free(&names);
}

TEST(no_importer_takes_it) {
  ck_rejected("", 0, -1, "empty");
  ck_rejected("\0\0\0\0", 4, -1, "not a format");
  ck_rejected("what is this\n", 13, -1, "not a format");
  ck_rejected("<?xml version='1.0'?>\n<!-- a > b -->\n<svg/>", 43, -1, "<svg>");
  /* output of other tools */
  static const char *const others[][2] = {
      {"WEIGHT TABLE:\n             0000:05:00.0\n", "amd-smi"},
      {"SwitchName=s1 Nodes=n[1-4]\n", "Slurm's topology.conf"},
      {"{\"system\": {\"(Topology) Link type between DRM devices 0 and 1\": \"XGMI\"}}", "output of rocm-smi"},
      {"[{\"gpu\": 0, \"links\": [{\"link_type\": \"XGMI\"}]}]", "output of amd-smi"},
      {"# Slurm\nBlockName=b1 Nodes=n[1-18]\n", "Slurm's topology.conf, which is not read: give ibnetdiscover"},
      {"---\n- topology: tree\n  tree:\n    switches:\n",
       "Slurm's topology.yaml, which is not read: give ibnetdiscover"},
      {"\"MQM9700\", LID 14\n  # : IB# : Sta : Neighbor Guid : N#\n",
       "net_dump, which is not read: give ibnetdiscover"},
      {"\tGPU0\tGPU1\nGPU0\t X \tNV18\n", "nvidia-smi topo -m, which is not read: give the XML of NCCL_TOPO_DUMP_FILE"},
      {"00:00.0 Host bridge: Intel\n", "lspci, which is not read: give lstopo"},
      {"a:1:2 [0] NCCL INFO Bootstrap\n", "log of NCCL, which is not read: give what NCCL_TOPO_DUMP_FILE"},
      {"GPU 0: NVIDIA H100 (UUID: GPU-1)\n", "output of nvidia-smi"},
      {"ibwarn: [1] mad_rpc_open_port\n", "ibnetdiscover, which is not read: run it as root"},
      {"device,(Topology) Numa Node\ncard0,0\n", "output of rocm-smi"},
      {"{\"gpus\": []}", "JSON without a list \"nodes\""},
      {"bash: nvidia-smi: command not found\n", "an error of the shell"},
      {"ibnetdiscover: iberror: failed: discover failed\n", "an error of ibnetdiscover"},
      {"Package:2 L3Cache:1 Core:1 PU:2\n", "hwloc's synthetic"},
      {"apiVersion: v1\n", "YAML"},
      {"\x1f\x8b\x08\x01", "gunzip"},
  };
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
    ck_rejected(others[i][0], strlen(others[i][0]), 1, others[i][1]);
  char *large = calloc(1, (64 << 20) + 1);
  ck_rejected(large, (64 << 20) + 1, -1, "larger than 64 MiB");
  free(large);
}

TEST(files) {
  char path[128];
  bny_topo_error error;
  directory_make();
  ck_assert_ptr_null(bny_topo_read(directory, &error));
  ck_assert_msg(strstr(error.text, "not a regular file") != NULL, "%s", error.text);
  ck_assert_msg(strncmp(error.text, directory, strlen(directory)) == 0, "%s", error.text);
  ck_assert_ptr_null(topo_load(directory, NULL, &error));
  ck_assert_msg(strstr(error.text, "neither a file nor a pipe") != NULL, "%s", error.text);
  ck_assert_ptr_null(topo_load("/dev/zero", NULL, &error));
  snprintf(path, sizeof path, "%s/pipe", directory);
  ck_assert_int_eq(mkfifo(path, 0600), 0);
  ck_assert_ptr_null(bny_topo_read(path, &error)); /* fails at once for a pipe without a writer */
  ck_assert_msg(strstr(error.text, "not a regular file") != NULL, "%s", error.text);
  unlink(path);
  int large = open(path, O_CREAT | O_WRONLY, 0600);
  ck_assert(large >= 0 && ftruncate(large, (off_t)1 << 40) == 0 && close(large) == 0);
  ck_assert_ptr_null(topo_load(path, NULL, &error));
  ck_assert_msg(strstr(error.text, "larger than 64 MiB") != NULL, "%s", error.text);
  unlink(path);
  snprintf(path, sizeof path, "%s/there-is-none.xml", directory);
  ck_assert_ptr_null(topo_load(path, NULL, &error));
  ck_assert_msg(strstr(error.text, "there-is-none.xml: No such file") != NULL, "%s", error.text);
  snprintf(path, sizeof path, "%s/odd", directory);
  FILE *file = fopen(path, "w");
  fputs("\n\n<odd/>\n", file);
  fclose(file);
  ck_assert_ptr_null(topo_load(path, NULL, &error));
  ck_assert_msg(strstr(error.text, "/odd:3: XML with the root <odd>") != NULL, "%s", error.text);
  /* a long path must not displace the reason */
  char longer[600];
  memset(longer, 'x', sizeof longer - 1);
  longer[sizeof longer - 1] = '\0';
  ck_assert_ptr_null(topo_load(longer, NULL, &error));
  ck_assert_msg(strstr(error.text, "...xxx") == error.text && strstr(error.text, "File name too long") != NULL, "%s",
                error.text);
  directory_remove();
}

int main(void) { return suite_main(suite_with("topo_model", 60, NULL, drop_kept)); }
