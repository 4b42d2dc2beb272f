/* SPDX-License-Identifier: Apache-2.0
 * Machines that were once read wrongly. tests/corpus has small files with the same property. Dumps of the real machines
 * are read if present. */
#include "tests/topo/topo_xml_util.h"
#include "topo/levels/levels.h"
#include "tools/topo/export/export.h"
#include "topo/model/json.h"
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

/* Each file must yield these facts. Files of examined/ are read if present. */
static const struct {
  const char *file, *facts;
} machines[] = {
    /* one NVLink domain of two trays */
    {"nccl/two-trays.xml", "2 host; 1 switch; 1 domain; domain speed 721.8"},
    {"examined/nccl-eBPF__mnnvl_topo_2tray_0405.xml", "8 ranks; 1 domain"},
    /* links that are down do not count, so the device is not in the island of the others */
    {"nccl/count-zero.xml", "2 island; GPU1 links 0; fault GPU1: no NVLink"},
    {"examined/nccl-eBPF__mnnvl_topo_fault_gpu1.xml", "fault GPU1: no NVLink"},
    {"examined/nccl-eBPF__mnnvl_topo_1tray_healthy.xml", "no fault NVLink; no note NVLink"},
    /* more links than such a GPU has */
    {"nccl/too-many-links.xml", "GPU0 links 18; island speed 721.8; note 36 NVLinks"},
    {"examined/gvisor__hist_f49650f4_nccl_topo.xml", "GPU0 links 18; note 126 NVLinks"},
    {"nccl/newer.xml", "GPU0 links 36; 0 notes"},
    /* partitions: both list the links of their device; data between linked switches need not pass the CPU */
    {"nccl/partitions.xml", "GPU1 device GPU0; GPU0 GPU1 NVL; GPU1 GPU2 NVL; GPU1 mlx5_0 PIX; 1 island; 2 nvlink;"
                            "island speed 360.9; GPU1 mlx5_1 PXB; GPU1 mlx5_2 PHB"},
    /* from ROCm: two devices of two functions, each linked to the other three; half of a link's 48 GB/s */
    {"nccl/functions.xml", "GPU1 device GPU0; GPU1 bus 0000:0c:00.1; 1 xgmi; island speed 24; 0 notes"},
    {"hwloc/partitions.xml", "6 ranks; 1 xgmi; island speed 33.3333; GPU1 nic hsi0; GPU5 nic hsi1; GPU0 GPU5 NVL"},
    {"examined/flux-core__tuo.CPX.xml", "24 ranks; 4 package; 6 xgmi"},
    /* repeated bus ids; ranks follow the numbers of GPUs */
    {"nccl/repeated-bus.xml", "2 pci; 1 nic; 2 ranks; note 0000:a1:00.0"},
    {"examined/rccl__topo_4p4h.xml", "16 ranks"},
    {"examined/rccl__topo_8p1h_1.xml", "8 ranks"},
    {"nccl/virtual-nets.xml", "1 nic; GPU0 nic eth0; GPU0 speed 12.5; info 6 network interfaces; no fault; no note"},
    {"examined/nccl_test__nccl_topo.xml", "info tunl0"},
    /* management controllers are not GPUs; the root may be a NUMA node */
    {"hwloc/numa-root.xml", "host/one-numa number 0; 1 numa; 1 gpu; GPU0 numa node0"},
    {"examined/mpibind__epyc-corona-hwloc1.xml", "4 ranks; GPU0 nic mlx5_0; GPU3 nic mlx5_0"},
    /* version 3 has kinds of devices as bits, and the host name at the top */
    {"hwloc/version3.xml", "host/third number 0; GPU0 nic mlx5_0; 1 port; GPU0 compute 90"},
    /* EFA serves both GPUs, even across packages; near plain Ethernet and slow NICs do not */
    {"hwloc/nics.xml", "GPU0 nic rdmap131s0; GPU1 nic rdmap131s0"},
    {"examined/mpibind__eas-tioga.xml", "GPU0 nic hsi0; GPU1 nic hsi0; GPU2 nic hsi1; GPU3 nic hsi1; GPU4 nic hsi2;"
                                        "GPU5 nic hsi2; GPU6 nic hsi3; GPU7 nic hsi3"},
    {"examined/flux-core__ipa20.xml", "GPU0 nic mlx5_0; GPU1 nic mlx5_2; GPU2 nic mlx5_3; GPU3 nic mlx5_3"},
    {"examined/mpibind__g4dnmetal.xml", "GPU0 nic rdmap197s0; GPU4 nic rdmap197s0"},
    /* InfiniBand serves both GPUs, since the RoCE adapter beside one of them is on another network */
    {"nccl/two-fabrics.xml",
     "GPU0 nic mlx5_0; GPU1 nic mlx5_0; GPU1 mlx5_1 PIX; info mlx5_1: it is near a GPU and serves none"},
    /* a dialect that says where devices are by attributes that NCCL does not know */
    {"nccl/dialect.xml", "note <gpu pci=...> is no known attribute; note <nic pci=...> is no known attribute"},
    /* without a width, half the generation of its siblings is a fault */
    {"nccl/no-width.xml", "fault GPU3: its PCI link runs at 24 GB/s, those of its siblings at 48"},
    /* without CUDA's names GPUs are numbered by bus id, not in the order of the file */
    {"hwloc/bus-order.xml", "GPU0 bus 0000:04:00.0; GPU1 bus 0000:84:00.0"},
    /* NCCL's routes */
    {"nccl/ring-of-four.xml", "GPU0 GPU3 SYS; routed GPU0 GPU3 NVB; routed GPU0 GPU1 NVL; routed GPU0 mlx5_0 PIX;"
                              "routed GPU0 mlx5_1 PXN; routed mlx5_2 GPU0 PXN; routed GPU0 mlx5_3 SYS"},
    {"nccl/two-trays.xml", "GPU0 mlx5_bond_0 NODE; routed GPU0 mlx5_bond_0 P2C"},
};

TEST_LOOP(files, (int)(sizeof machines / sizeof machines[0])) {
  bool other = strncmp(machines[_i].file, "examined/", 9) == 0;
  bny_topo *topo = other ? dump(machines[_i].file) : corpus(machines[_i].file).topo;
  if (topo) ck_facts(topo, machines[_i].facts);
}

/* ---- NVLink ------------------------------------------------------------------------------------------------------ */

/* An unknown newer generation is at least as fast as the newest known one, and may have more links. */
TEST(newer_generations) {
  machine m = corpus("nccl/newer.xml");
  int32_t gpu = m.levels->ranks[0].node;
  ck_assert(bny_topo_level_of(m.levels, BNY_TOPO_LEVEL_ISLAND)->groups[0].gbytes_per_s >=
            36 * bny_topo_speed_nvlink(BNY_TOPO_COMPUTE_NEWEST));
  ck_assert(between(m.topo, gpu, m.topo->nodes[gpu].parent)->gbytes_per_s >=
            bny_topo_speed_pci(BNY_TOPO_PCI_GENERATIONS, 16));
  for (int32_t compute = BNY_TOPO_COMPUTE_NEWEST; compute < 300; compute += 10)
    ck_assert(bny_topo_speed_nvlink(compute) >= bny_topo_speed_nvlink(BNY_TOPO_COMPUTE_NEWEST));
  ck_assert(bny_topo_speed_xgmi(1250) >= bny_topo_speed_xgmi(942));
  ck_assert_int_eq(bny_topo_compute_of("Rubin", "NVIDIA R200"), -1);
  ck_assert_int_eq(bny_topo_compute_of(NULL, "NVIDIA GB300"), 103);
  ck_assert_int_eq(bny_topo_compute_of(NULL, "GH100[H100 PCIe]"), 90);
}

/* If NICs are alike and on other NUMA nodes, the NIC in the same package is chosen. */
TEST(nics_in_the_package) {
  ck_facts(
      tree_of("host/host0 package/p0 numa/near nic/mlx5_0 .. numa/far gpu/GPU1 ... package/p1 numa/near nic/mlx5_1 .. "
              "numa/far gpu/GPU0"),
      "GPU0 nic mlx5_1; GPU0 mlx5_1 SYS; GPU1 nic mlx5_0; GPU1 mlx5_0 SYS");
}

/* GPUs without GPUDirect do not forward data to a NIC for other GPUs. */
TEST(routes_without_gdr) {
  char *text = corpus_text("nccl/ring-of-four.xml", NULL, NULL), *second = strstr(text, "dev=\"1\"");
  *(strstr(second, "gdr=\"1\"") + strlen("gdr=\"")) = '0';
  ck_facts(load(text), "GPU0 mlx5_1 PHB; routed GPU0 mlx5_1 PHB");
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

/* Generated bus ids differ from each other and from the bus ids of the model. */
TEST(made_up_bus_ids) {
  machine m = derive(tree_of("host/h numa/n0 bridge/r0 gpu/GPU0 .. bridge/r1 gpu/GPU1 ... numa/n1 bridge/r2 gpu/GPU2"));
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

int main(void) {
  if (!xml_is_read()) return 77;
  return suite_main(suite_with("topo_machines", 120, NULL, drop_kept));
}
