/* SPDX-License-Identifier: Apache-2.0
 *
 * Machines that were once read wrongly: small files of our own with the same property, in tests/corpus, and the dumps
 * of real machines where they are there. At the end, what every export must keep of every machine. */
#include "tests/topo/topo_xml_util.h"
#include "topo/derive/levels.h"
#include "topo/export/export.h"
#include "topo/import/json.h"
#include "topo/model/speed.h"

typedef struct machine {
  bny_topo *topo;
  bny_topo_levels *levels;
} machine;

static machine derive(bny_topo *topo) { return (machine){topo, topo == NULL ? NULL : topo_derive(topo)}; }

static machine corpus(const char *name) {
  const char *source = getenv("top_srcdir");
  char path[4096];
  snprintf(path, sizeof path, "%s/tests/corpus/%s", source == NULL ? "." : source, name);
  return derive(load_file(path));
}

/* Without such a dump `topo` is NULL, and the file of our own alone is looked at. */
static machine examined(const char *name) {
  char path[512];
  snprintf(path, sizeof path, "examined/%s", name);
  return derive(dump(path));
}

static int32_t groups_of(machine m, bny_topo_level_kind kind) {
  const bny_topo_level *level = bny_topo_level_of(m.levels, kind);
  return level == NULL ? 0 : level->ngroups;
}

static double speed_of(machine m, bny_topo_level_kind kind) {
  const bny_topo_level *level = bny_topo_level_of(m.levels, kind);
  ck_assert_ptr_nonnull(level);
  return level->groups[0].gbytes_per_s;
}

static const char *nic_of(machine m, int32_t rank) {
  int32_t nic = m.levels->ranks[rank].nic;
  return nic < 0 ? "none" : m.topo->nodes[nic].name;
}

static bool finds(machine m, const char *words) {
  for (int32_t i = 0; i < m.levels->nfindings; i++)
    if (strstr(m.levels->findings[i].text, words) != NULL) return true;
  return false;
}

/* Returns whether more than a note is found at a GPU about its NVLinks. */
static bool blames(machine m, int32_t rank) {
  for (int32_t i = 0; i < m.levels->nfindings; i++) {
    const bny_topo_finding *finding = &m.levels->findings[i];
    if (finding->severity > BNY_TOPO_INFO && finding->node == m.levels->ranks[rank].node &&
        strstr(finding->text, "NVLink") != NULL)
      return true;
  }
  return false;
}

/* ---- NVLink ------------------------------------------------------------------------------------------------------ */

TEST(trays_are_one_domain) {
  machine m = corpus("nccl/two-trays.xml");
  ck_assert_int_eq(bny_topo_count(m.topo, BNY_TOPO_HOST), 2);
  ck_assert_int_eq(bny_topo_count(m.topo, BNY_TOPO_SWITCH), 1);
  ck_assert_int_eq(groups_of(m, BNY_TOPO_LEVEL_DOMAIN), 1);
  ck_assert_int_eq(groups_of(m, BNY_TOPO_LEVEL_HOST), 2);
  ck_assert_double_eq_tol(speed_of(m, BNY_TOPO_LEVEL_DOMAIN), 18 * 40.1, 1e-6);
  m = examined("nccl-eBPF__mnnvl_topo_2tray_0405.xml");
  if (m.topo != NULL) {
    ck_assert_int_eq(m.levels->nranks, 8);
    ck_assert_int_eq(groups_of(m, BNY_TOPO_LEVEL_DOMAIN), 1);
  }
}

/* Links that are down are none: the device stands apart from those that have some. */
TEST(rows_of_no_links) {
  machine m = corpus("nccl/count-zero.xml");
  ck_assert_int_eq(groups_of(m, BNY_TOPO_LEVEL_ISLAND), 2);
  ck_assert_int_eq(m.levels->ranks[1].nvlinks, 0);
  ck_assert(finds(m, "GPU1: no NVLink"));
  m = examined("nccl-eBPF__mnnvl_topo_fault_gpu1.xml");
  ck_assert(m.topo == NULL || finds(m, "GPU1: no NVLink"));
  m = examined("nccl-eBPF__mnnvl_topo_1tray_healthy.xml");
  for (int32_t r = 0; m.topo != NULL && r < m.levels->nranks; r++) ck_assert(!blames(m, r));
}

TEST(links_that_are_too_many) {
  machine m = corpus("nccl/too-many-links.xml");
  ck_assert_int_eq(m.levels->ranks[0].nvlinks, 18);
  ck_assert_double_eq_tol(speed_of(m, BNY_TOPO_LEVEL_ISLAND), 18 * 40.1, 1e-6);
  ck_assert(finds(m, "36 NVLinks"));
  m = examined("gvisor__hist_f49650f4_nccl_topo.xml");
  ck_assert(m.topo == NULL || (finds(m, "126 NVLinks") && m.levels->ranks[0].nvlinks == 18));
}

/* A generation that is newer than all tables is no slower than the newest in them, and may have more links. */
TEST(newer_generations) {
  machine m = corpus("nccl/newer.xml");
  ck_assert_int_eq(m.levels->ranks[0].nvlinks, 36);
  ck_assert(speed_of(m, BNY_TOPO_LEVEL_ISLAND) >= 36 * bny_topo_speed_nvlink(BNY_TOPO_COMPUTE_NEWEST));
  int32_t gpu = m.levels->ranks[0].node;
  ck_assert(between(m.topo, gpu, m.topo->nodes[gpu].parent)->gbytes_per_s >=
            bny_topo_speed_pci(BNY_TOPO_PCI_GENERATIONS, 16));
  ck_assert_int_eq(m.topo->nnotes, 0);
  for (int32_t compute = BNY_TOPO_COMPUTE_NEWEST; compute < 300; compute += 10)
    ck_assert(bny_topo_speed_nvlink(compute) >= bny_topo_speed_nvlink(BNY_TOPO_COMPUTE_NEWEST));
  ck_assert(bny_topo_speed_xgmi(1250) >= bny_topo_speed_xgmi(942));
  ck_assert_int_eq(bny_topo_compute_of("Rubin", "NVIDIA R200"), -1);
  ck_assert_int_eq(bny_topo_compute_of(NULL, "NVIDIA GB300"), 103);
  ck_assert_int_eq(bny_topo_compute_of(NULL, "GH100[H100 PCIe]"), 90);
}

TEST(newer_architecture) {
  char text[sizeof smi_example + 64] = "";
  const char *at = strstr(smi_example, "Hopper");
  snprintf(text, sizeof text, "%.*sRubin%s", (int)(at - smi_example), smi_example, at + strlen("Hopper"));
  bny_topo *topo = import(text, "nvidia-smi-xml");
  int32_t gpu = named(topo, BNY_TOPO_GPU, "GPU0");
  ck_assert_int_eq(topo->nodes[gpu].compute, -1);
  ck_assert(between(topo, gpu, named(topo, BNY_TOPO_SWITCH, "nvlink0"))->gbytes_per_s >=
            18 * bny_topo_speed_nvlink(BNY_TOPO_COMPUTE_NEWEST));
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

TEST(partitions_of_nccl) {
  machine m = corpus("nccl/partitions.xml");
  const bny_topo *t = m.topo;
  int32_t g0 = named(t, BNY_TOPO_GPU, "GPU0"), g1 = named(t, BNY_TOPO_GPU, "GPU1"), g2 = named(t, BNY_TOPO_GPU, "GPU2");
  ck_assert_int_eq(t->nodes[g1].parent, g0);
  ck_assert_int_eq(bny_topo_device(t, g1), g0);
  ck_assert_int_eq(bny_topo_path_between(t, g0, g1), BNY_TOPO_PATH_NVL);
  ck_assert_int_eq(bny_topo_path_between(t, g1, g2), BNY_TOPO_PATH_NVL);
  ck_assert_int_eq(bny_topo_path_between(t, g1, named(t, BNY_TOPO_NIC, "mlx5_0")), BNY_TOPO_PATH_PIX);
  ck_assert_int_eq(groups_of(m, BNY_TOPO_LEVEL_ISLAND), 1);
  ck_assert_int_eq(links_of_kind(t, BNY_TOPO_LINK_NVLINK), 2); /* both partitions list the links of their device */
  ck_assert_double_eq_tol(speed_of(m, BNY_TOPO_LEVEL_ISLAND), 9 * 40.1, 1e-6);
  /* The switches are linked, so data between them need not pass the CPU. */
  ck_assert_int_eq(bny_topo_path_between(t, g1, named(t, BNY_TOPO_NIC, "mlx5_1")), BNY_TOPO_PATH_PXB);
  ck_assert_int_eq(bny_topo_path_between(t, g1, named(t, BNY_TOPO_NIC, "mlx5_2")), BNY_TOPO_PATH_PHB);
}

/* As ROCm lists them: two devices of two functions, each linked to the three others. */
TEST(partitions_of_rocm) {
  machine m = corpus("nccl/functions.xml");
  int32_t first = named(m.topo, BNY_TOPO_GPU, "GPU0"), second = named(m.topo, BNY_TOPO_GPU, "GPU1");
  ck_assert_int_eq(bny_topo_device(m.topo, second), first);
  ck_assert_int_eq(bny_topo_find_bus(m.topo, "0000:0c:00.1"), second);
  ck_assert_int_eq(links_of_kind(m.topo, BNY_TOPO_LINK_XGMI), 1);
  ck_assert_double_eq_tol(speed_of(m, BNY_TOPO_LEVEL_ISLAND), 24, 1e-6); /* half of a link's 48 GB/s */
  ck_assert_int_eq(m.topo->nnotes, 0);
  m = derive(import(exported(bny_topo_export_nccl, m.topo), "nccl-xml"));
  ck_assert_int_eq(bny_topo_find_bus(m.topo, "0000:0c:00.1"), named(m.topo, BNY_TOPO_GPU, "GPU1"));
}

TEST(partitions_of_hwloc) {
  machine m = corpus("hwloc/partitions.xml");
  ck_assert_int_eq(m.levels->nranks, 6);
  ck_assert_int_eq(links_of_kind(m.topo, BNY_TOPO_LINK_XGMI), 1);
  ck_assert_int_eq(bny_topo_path_between(m.topo, m.levels->ranks[0].node, m.levels->ranks[5].node), BNY_TOPO_PATH_NVL);
  ck_assert_double_eq_tol(speed_of(m, BNY_TOPO_LEVEL_ISLAND), 100.0 / 3, 1e-6);
  ck_assert_str_eq(nic_of(m, 1), "hsi0");
  ck_assert_str_eq(nic_of(m, 5), "hsi1");
  m = examined("flux-core__tuo.CPX.xml");
  if (m.topo != NULL) {
    ck_assert_int_eq(m.levels->nranks, 24);
    ck_assert_int_eq(groups_of(m, BNY_TOPO_LEVEL_PACKAGE), 4);
    ck_assert_int_eq(links_of_kind(m.topo, BNY_TOPO_LINK_XGMI), 6);
  }
}

TEST(repeated_bus_ids) {
  machine m = corpus("nccl/repeated-bus.xml");
  ck_assert_int_eq(bny_topo_count(m.topo, BNY_TOPO_PCI), 2);
  ck_assert_int_eq(bny_topo_count(m.topo, BNY_TOPO_NIC), 1);
  ck_assert_int_eq(m.levels->nranks, 2);
  ck_assert(finds(m, "0000:a1:00.0"));
  /* Ranks follow the numbers of GPUs, and not the order of the file. */
  ck_assert_str_eq(m.topo->nodes[m.levels->ranks[0].node].name, "GPU0");
  ck_assert(m.levels->ranks[0].node > m.levels->ranks[1].node);
  m = examined("rccl__topo_4p4h.xml");
  ck_assert(m.topo == NULL || m.levels->nranks == 16);
  m = examined("rccl__topo_8p1h_1.xml");
  ck_assert(m.topo == NULL || m.levels->nranks == 8);
}

TEST(virtual_interfaces) {
  machine m = corpus("nccl/virtual-nets.xml");
  ck_assert_int_eq(bny_topo_count(m.topo, BNY_TOPO_NIC), 1);
  ck_assert_str_eq(nic_of(m, 0), "eth0");
  ck_assert_double_eq_tol(m.levels->ranks[0].nic_gbytes_per_s, 12.5, 1e-6);
  ck_assert(finds(m, "6 network interfaces"));
  ck_assert_int_eq(m.levels->findings[0].severity, BNY_TOPO_INFO); /* the worst */
  m = examined("nccl_test__nccl_topo.xml");
  ck_assert(m.topo == NULL || (m.levels->ranks[0].nic_gbytes_per_s < 1 && finds(m, "tunl0")));
}

TEST(displays_and_roots) {
  machine m = corpus("hwloc/numa-root.xml");
  ck_assert_str_eq(m.topo->nodes[0].name, "one-numa");
  ck_assert_int_eq(bny_topo_count(m.topo, BNY_TOPO_NUMA), 1);
  ck_assert_int_eq(bny_topo_count(m.topo, BNY_TOPO_GPU), 1); /* and no management controller */
  ck_assert(bny_topo_ancestor(m.topo, m.levels->ranks[0].node, BNY_TOPO_NUMA) >= 0);
  m = examined("mpibind__epyc-corona-hwloc1.xml");
  ck_assert(m.topo == NULL || m.levels->nranks == 4);
}

/* Kinds of devices are bits in version 3, and the host's name stands at the top. */
TEST(hwloc_version_3) {
  machine m = corpus("hwloc/version3.xml");
  ck_assert_str_eq(m.topo->nodes[0].name, "third");
  ck_assert_str_eq(nic_of(m, 0), "mlx5_0");
  ck_assert_int_eq(bny_topo_count(m.topo, BNY_TOPO_PORT), 1);
  ck_assert_int_eq(m.topo->nodes[m.levels->ranks[0].node].compute, 90);
}

/* ---- the NIC of a rank ------------------------------------------------------------------------------------------- */

TEST(nics_by_kind_speed_and_place) {
  machine m = corpus("hwloc/nics.xml");
  /* No plain Ethernet however near, no slow one: EFA serves both, also across packages. */
  ck_assert_str_eq(nic_of(m, 0), "rdmap131s0");
  ck_assert_str_eq(nic_of(m, 1), "rdmap131s0");
  static const struct {
    const char *file, *nics[8];
  } known[] = {{"mpibind__eas-tioga.xml", {"hsi0", "hsi0", "hsi1", "hsi1", "hsi2", "hsi2", "hsi3", "hsi3"}},
               {"flux-core__ipa20.xml", {"mlx5_0", "mlx5_2", "mlx5_3", "mlx5_3"}},
               {"mpibind__epyc-corona-hwloc1.xml", {"mlx5_0", "mlx5_0", "mlx5_0", "mlx5_0"}},
               {"mpibind__g4dnmetal.xml", {"rdmap197s0", "rdmap197s0", "rdmap197s0", "rdmap197s0", "rdmap197s0"}}};
  for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
    m = examined(known[k].file);
    for (int32_t r = 0; m.topo != NULL && r < 8 && known[k].nics[r] != NULL; r++) {
      ck_assert_msg(strcmp(nic_of(m, r), known[k].nics[r]) == 0, "%s: rank %d is served by %s, not %s", known[k].file,
                    (int)r, nic_of(m, r), known[k].nics[r]);
    }
  }
}

/* If NICs are alike and on other NUMA nodes, the one in the same package serves. */
TEST(nics_in_the_package) {
  bny_topo *topo = topo_new();
  int32_t host = put(topo, BNY_TOPO_HOST, -1, "host0", NULL);
  for (int p = 0; p < 2; p++) {
    int32_t package = put(topo, BNY_TOPO_PACKAGE, host, p == 0 ? "package0" : "package1", NULL);
    put(topo, BNY_TOPO_NIC, put(topo, BNY_TOPO_NUMA, package, "near", NULL), p == 0 ? "mlx5_0" : "mlx5_1", NULL);
    put(topo, BNY_TOPO_GPU, put(topo, BNY_TOPO_NUMA, package, "far", NULL), p == 0 ? "GPU1" : "GPU0", NULL);
  }
  machine m = derive(topo);
  for (int32_t r = 0; r < 2; r++) {
    const bny_topo_rank *rank = &m.levels->ranks[r];
    ck_assert_int_eq(rank->nic_path, BNY_TOPO_PATH_SYS);
    ck_assert_int_eq(bny_topo_ancestor(m.topo, rank->nic, BNY_TOPO_PACKAGE),
                     bny_topo_ancestor(m.topo, rank->node, BNY_TOPO_PACKAGE));
  }
}

/* ---- routes ------------------------------------------------------------------------------------------------------ */

TEST(routes_of_nccl) {
  machine m = corpus("nccl/ring-of-four.xml");
  const bny_topo *t = m.topo;
  int32_t g[4], n[4];
  for (int i = 0; i < 4; i++) {
    g[i] = named(t, BNY_TOPO_GPU, numbered("GPU", i));
    n[i] = named(t, BNY_TOPO_NIC, numbered("mlx5_", i));
  }
  ck_assert_int_eq(bny_topo_path_between(t, g[0], g[3]), BNY_TOPO_PATH_SYS);
  ck_assert_int_eq(bny_topo_path_routed(t, g[0], g[3]), BNY_TOPO_PATH_NVB);
  ck_assert_int_eq(bny_topo_path_routed(t, g[0], g[1]), BNY_TOPO_PATH_NVL);
  ck_assert_int_eq(bny_topo_path_routed(t, g[0], n[0]), BNY_TOPO_PATH_PIX);
  ck_assert_int_eq(bny_topo_path_routed(t, g[0], n[1]), BNY_TOPO_PATH_PXN);
  ck_assert_int_eq(bny_topo_path_routed(t, n[2], g[0]), BNY_TOPO_PATH_PXN);
  ck_assert_int_eq(bny_topo_path_routed(t, g[0], n[3]), BNY_TOPO_PATH_SYS); /* two GPUs away */
  m = corpus("nccl/two-trays.xml");
  t = m.topo;
  int32_t nic = named(t, BNY_TOPO_NIC, "mlx5_bond_0");
  ck_assert_int_eq(bny_topo_path_between(t, m.levels->ranks[0].node, nic), BNY_TOPO_PATH_NODE);
  ck_assert_int_eq(bny_topo_path_routed(t, m.levels->ranks[0].node, nic), BNY_TOPO_PATH_P2C);
  ck_assert_int_eq(bny_topo_path_routed(t, m.levels->ranks[3].node, nic), BNY_TOPO_PATH_NET);
  ck_assert(BNY_TOPO_PATH_NVL < BNY_TOPO_PATH_NVB && BNY_TOPO_PATH_NVB < BNY_TOPO_PATH_C2C);
  ck_assert(BNY_TOPO_PATH_PXB < BNY_TOPO_PATH_P2C && BNY_TOPO_PATH_P2C < BNY_TOPO_PATH_PXN);
  ck_assert(BNY_TOPO_PATH_PXN < BNY_TOPO_PATH_PHB);
}

/* GPUs that cannot do GPU Direct do not reach a NIC for others. */
TEST(routes_without_gdr) {
  machine m = corpus("nccl/ring-of-four.xml");
  int32_t g0 = named(m.topo, BNY_TOPO_GPU, "GPU0"), g1 = named(m.topo, BNY_TOPO_GPU, "GPU1"),
          nic = named(m.topo, BNY_TOPO_NIC, "mlx5_1");
  char value[BNY_TOPO_ATTRIBUTES_BYTES];
  ck_assert(bny_topo_attribute(&m.topo->nodes[g1], "gdr", value));
  ck_assert_str_eq(value, "1");
  ck_assert(bny_topo_set_string(m.topo, &m.topo->nodes[g1].attributes, "class=0x030200 gdr=0"));
  ck_assert_int_eq(bny_topo_path_routed(m.topo, g0, nic), bny_topo_path_between(m.topo, g0, nic));
}

/* ---- exports ----------------------------------------------------------------------------------------------------- */

TEST(nccl_keeps_attributes) {
  machine m = corpus("nccl/two-trays.xml");
  char *text = exported(bny_topo_export_nccl, m.topo);
  static const char *const kept[] = {
      "affinity=\"ff\"",    "vendor=\"0x10de\"", "device=\"0x31c2\"", "device=\"0xa2dc\"",  "gdr=\"1\"",
      "maxconn=\"131072\"", "gin=\"1\"",         "host_hash=\"0xa\"", "class=\"0x020000\"", "bw=\"44712\" count=\"5\""};
  for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
    ck_assert_msg(strstr(text, kept[i]) != NULL, "%s is lost in %s", kept[i], text);
  ck_assert_int_eq(tags(text, "fffffff:"), 4);
  m = corpus("nccl/partitions.xml");
  text = exported(bny_topo_export_nccl, m.topo);
  ck_assert_int_eq(tags(text, "mlopart="), 2);
  ck_assert_int_eq(tags(text, "<pcilink "), 2);
}

/* Bus ids that are made up are those of different devices, and not of ones that are there. */
TEST(made_up_bus_ids) {
  machine m = derive(
      import("\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNODE\tSYS\nGPU1\tNODE\tX\tSYS\nGPU2\tSYS\tSYS\tX\n", "nvidia-smi topo -m"));
  char *text = exported(bny_topo_export_nccl, m.topo);
  bny_topo *again = import(text, "nccl-xml");
  char before[BNY_TOPO_BUS_BYTES] = "";
  for (int32_t n = 0; n < again->nnodes; n++) {
    const char *bus_id = again->nodes[n].bus_id;
    if (bus_id != NULL) {
      ck_assert_int_ne(strncmp(bus_id, before, strlen("0000:00:00.")), 0);
      snprintf(before, sizeof before, "%s", bus_id);
    }
  }
  ck_assert_int_eq(bny_topo_path_between(again, named(again, BNY_TOPO_GPU, "GPU0"), named(again, BNY_TOPO_GPU, "GPU1")),
                   BNY_TOPO_PATH_NODE);
}

static const char *host_name(const bny_topo *topo, int32_t node) {
  int32_t host = bny_topo_ancestor(topo, node, BNY_TOPO_HOST);
  return host < 0 ? "" : topo->nodes[host].name;
}

/* The device of the same host, kind and name; -1 if there is none, -2 if there are several. */
static int32_t counterpart(const bny_topo *topo, const bny_topo *again, int32_t device) {
  int32_t found = -1;
  for (int32_t n = 0; n < again->nnodes; n++)
    if (again->nodes[n].kind == topo->nodes[device].kind &&
        strcmp(again->nodes[n].name, topo->nodes[device].name) == 0 &&
        strcmp(host_name(again, n), host_name(topo, device)) == 0)
      found = found == -1 ? n : -2;
  return found;
}

static void ck_same_paths(const char *what, const bny_topo *topo, const bny_topo *again) {
  enum { DEVICES = 48 };
  int32_t ours[DEVICES], theirs[DEVICES], count = 0;
  for (int pass = 0; pass < 2; pass++) {
    bny_topo_kind kind = pass == 0 ? BNY_TOPO_GPU : BNY_TOPO_NIC;
    for (int32_t n = 0; n < topo->nnodes; n++) {
      if (topo->nodes[n].kind != kind) continue;
      int32_t same = counterpart(topo, again, n);
      ck_assert_msg(same != -1, "%s: %s is lost", what, topo->nodes[n].name);
      if (count < DEVICES && same >= 0) {
        ours[count] = n;
        theirs[count++] = same;
      }
    }
    ck_assert_msg(bny_topo_count(again, kind) == bny_topo_count(topo, kind), "%s: %d devices", what,
                  (int)bny_topo_count(again, kind));
  }
  for (int32_t a = 0; a < count; a++) {
    for (int32_t b = 0; b < a; b++) {
      bny_topo_path path = bny_topo_path_between(topo, ours[a], ours[b]);
      bny_topo_path other = bny_topo_path_between(again, theirs[a], theirs[b]);
      ck_assert_msg(path == other, "%s: %s to %s is %s, not %s", what, topo->nodes[ours[a]].name,
                    topo->nodes[ours[b]].name, bny_topo_path_name(other), bny_topo_path_name(path));
    }
  }
}

static const struct {
  const char *name;
  char *(*write)(const bny_topo *topo, bny_topo_error *error);
} exporters[] = {{"JSON", bny_topo_export_json}, {"NCCL's XML", bny_topo_export_nccl}};

static int compared[2];

static void ck_comes_back(const char *path, const char *name) {
  bny_topo_error error = {.text = ""};
  bny_topo *topo = topo_load(path, NULL, &error);
  (void)name;
  if (topo == NULL || bny_topo_count(topo, BNY_TOPO_HOST) == 0 ||
      bny_topo_count(topo, BNY_TOPO_GPU) + bny_topo_count(topo, BNY_TOPO_NIC) == 0) {
    return;
  }
  for (size_t e = 0; e < sizeof exporters / sizeof exporters[0]; e++) {
    char what[4300], *text = exporters[e].write(topo, &error);
    snprintf(what, sizeof what, "%s as %s", path, exporters[e].name);
    ck_assert_msg(text != NULL, "%s: %s", what, error.text);
    bny_topo *again = topo_import(text, strlen(text), NULL, &error);
    ck_assert_msg(again != NULL, "%s: line %d: %s", what, error.line, error.text);
    ck_same_paths(what, topo, again);
    compared[e]++;
    free(text);
  }
}

TEST(exports_come_back) {
  static const char *const own[] = {"topologies", "corpus/nccl", "corpus/hwloc", "corpus/smi", "corpus/matrix"};
  static const char *const dumps[] = {"nccl", "hwloc", "nvidia-smi", "matrix", "fabric", "examined"};
  for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) each_own(own[i], ck_comes_back);
  int of_others = 0;
  for (size_t i = 0; i < sizeof dumps / sizeof dumps[0]; i++) of_others += each_dump(dumps[i], "", ck_comes_back);
  fprintf(stderr, "%d dumps; JSON %d, NCCL's XML %d\n", of_others, compared[0], compared[1]);
  ck_assert(compared[1] >= 20);
}

int main(void) {
  if (!xml_is_read()) return 77;
  return suite_main(suite_with("topo_machines", 120, NULL, drop_kept));
}
