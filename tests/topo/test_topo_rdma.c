/* SPDX-License-Identifier: Apache-2.0
 * RDMA devices in a made-up sysfs. */
#include "topo/probe/probe.h"
#include "tests/topo/topo_sysfs.h"
#include "tests/topo/topo_util.h"

static const char infiniband[] = "InfiniBand", ethernet[] = "Ethernet", ndr[] = "400 Gb/sec (4X NDR)",
                  hdr[] = "200 Gb/sec (4X HDR)", edr[] = "100 Gb/sec (4X EDR)";

static void port_file(const tree *t, const char *name, int port, const char *file, const char *text) {
  tree_file(t, text, "class/infiniband/%s/ports/%d/%s", name, port, file);
}

/* lid 0: no lid. */
static void add_port(const tree *t, const char *name, int port, const char *layer, const char *rate, int lid) {
  char text[16];
  snprintf(text, sizeof text, "0x%x", (unsigned)lid);
  port_file(t, name, port, "lid", text);
  port_file(t, name, port, "state", "4: ACTIVE");
  port_file(t, name, port, "link_layer", layer);
  port_file(t, name, port, "rate", rate);
}

/* Adds a card below its own root port. */
static void add_card(const tree *t, int bus, const char *numa, const char *name) {
  char path[128];
  snprintf(path, sizeof path, "pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0", bus, bus, bus + 1);
  tree_pci(t, (tree_device){path, "0x020700", "0x15b3", numa, "32.0 GT/s PCIe", "16", "32.0 GT/s PCIe", "16"});
  tree_interface(t, path, "infiniband", name);
  tree_file(t, "MT4129", "class/infiniband/%s/hca_type", name);
  tree_file(t, "MT_0000000838", "class/infiniband/%s/board_id", name);
}

/* Probes the tree, and checks report and facts. If `topo` is NULL, the sysfs probe makes the model first. */
static void ck_probe(const tree *t, bny_topo *topo, const char *says, const char *facts) {
  bny_topo_probe_options options = {.sysfs = t->root};
  bny_topo_probe_report report = {.name = "sysfs"};
  bny_topo_error error = {0};
  if (topo == NULL) bny_topo_probe_sysfs.run(&options, topo = topo_new(), &report);
  report = (bny_topo_probe_report){.name = "rdma"};
  bny_topo_probe_rdma.run(&options, topo, &report);
  ck_assert_msg(bny_topo_check(topo, &error), "%s", error.text);
  ck_assert_msg(strncmp(report.text, says, strlen(says)) == 0, "\"%s\", not \"%s\"", report.text, says);
  ck_assert_int_eq(report.outcome, strncmp(says, "no", 2) == 0 ? BNY_TOPO_PROBE_NOTHING : BNY_TOPO_PROBE_FOUND);
  ck_facts(topo, facts);
}

static tree start(void) {
  tree t = tree_new();
  tree_numa(&t, 0, 0, 0, 1);
  tree_numa(&t, 1, 1, 2, 3);
  return t;
}

/* Makes eight cards of 400 Gb/s, and two of 200 for storage. */
static tree dgx(void) {
  tree t = start();
  for (int i = 0; i < 10; i++) {
    const char *name = numbered("mlx5_", i);
    add_card(&t, 0x10 + 0x10 * i, i % 2 == 0 ? "0" : "1", name);
    add_port(&t, name, 1, infiniband, i < 8 ? ndr : hdr, 100 + i);
    if (i >= 8) tree_file(&t, "MT_0000000701", "class/infiniband/%s/board_id", name);
  }
  return t;
}

TEST(cards) {
  tree t = dgx();
  ck_probe(&t, NULL, "10 RDMA devices, 10 ports",
           "10 nic; 10 port; mlx5_0:1 net 1/1/50/50/0; mlx5_9:1 net 1/1/25/25/0; mlx5_3 bus 0000:41:00.0; mlx5_3 model "
           "MT4129; mlx5_3:1 model InfiniBand 4x NDR, lid 103; mlx5_3 numa node1");
}

/* A dead port gets the rating of its board's other ports. An initialising port is rated at its trained speed. */
TEST(port_down) {
  tree t = dgx();
  port_file(&t, "mlx5_2", 1, "rate", "10 Gb/sec (4X SDR)"); /* the rate that drivers report when down */
  port_file(&t, "mlx5_2", 1, "lid", "0x0");
  port_file(&t, "mlx5_5", 1, "state", "2: INIT");
  static const char *const down[] = {"mlx5_2", "mlx5_8", "mlx5_9"};
  for (int i = 0; i < 3; i++) port_file(&t, down[i], 1, "state", "1: DOWN");
  /* no port of the board of mlx5_8 is up */
  ck_probe(&t, NULL, "10 RDMA devices, 10 ports, 4 not active (mlx5_2 port 1 first)",
           "mlx5_1:1 net 1/1/50/50/0; mlx5_1:1 model InfiniBand 4x NDR, lid 101; mlx5_2:1 net 1/1/0/50/1;"
           "mlx5_2:1 model InfiniBand, down; mlx5_5:1 net 1/1/0/50/1; mlx5_5:1 model InfiniBand 4x NDR, lid 105, "
           "initialising; mlx5_8:1 net 1/1/0/0/0; mlx5_8:1 model InfiniBand, lid 108, down");
}

TEST(roce_bonded) {
  tree t = start();
  const char *const paths[] = {"pci0000:10/0000:10:01.0/0000:11:00.0", "pci0000:10/0000:10:01.0/0000:11:00.1"};
  for (int port = 0; port < 2; port++)
    tree_pci(&t, (tree_device){paths[port], "0x020000", "0x15b3", "0", "16.0 GT/s PCIe", "16", "16.0 GT/s PCIe", "16"});
  tree_bond(&t, paths, (const char *const[]){"ens1f0", "ens1f1"});
  tree_interface(&t, paths[0], "infiniband", "mlx5_bond_0");
  add_port(&t, "mlx5_bond_0", 1, ethernet, edr, 0);
  ck_probe(&t, NULL, "1 RDMA device, 1 port",
           "1 nic; mlx5_bond_0:1 net 1/1/25/25/0; mlx5_bond_0:1 model Ethernet (RDMA)");
  /* The device may be faster than the sum of its interfaces. */
  port_file(&t, "mlx5_bond_0", 1, "rate", ndr);
  ck_probe(&t, NULL, "1 RDMA device, 1 port", "mlx5_bond_0:1 net 1/1/50/50/0");
}

TEST(speeds) {
  static const char *const cases[][2] = {{"2.5 Gb/sec (1X SDR)", "0.3125"},
                                         {"56 Gb/sec (4X FDR)", "7"},
                                         {"800 Gb/sec (4X XDR)", "100"},
                                         {"25 Gb/sec (1X EDR)", "3.125"},
                                         {"many Gb/sec", "0"},
                                         {"1e300", "0"},
                                         {"nan", "0"},
                                         {"-1 Gb/sec", "0"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char fact[64];
    tree t = start();
    add_card(&t, 0x10, "0", "mlx5_0");
    add_port(&t, "mlx5_0", 1, infiniband, cases[i][0], 1);
    snprintf(fact, sizeof fact, "mlx5_0:1 net 1/1/%s/%s/0", cases[i][1], cases[i][1]);
    ck_probe(&t, NULL, "1 RDMA device", fact);
  }
}

/* Virtual functions and subfunctions share their ports. Software devices and second ports have their own. */
TEST(odd_devices) {
  tree t = start();
  add_card(&t, 0x10, "0", "mlx5_0");
  for (int port = 1; port <= 2; port++) add_port(&t, "mlx5_0", port, infiniband, edr, 1);
  port_file(&t, "mlx5_0", 2, "state", "77: NEW");
  /* a virtual function; a subfunction of the card above */
  const char *virtual_function = "pci0000:10/0000:10:01.0/0000:11:00.1";
  tree_pci(&t, (tree_device){.path = virtual_function, .class = "0x020700", .vendor = "0x15b3"});
  tree_interface(&t, virtual_function, "infiniband", "mlx5_1");
  tree_link(&t, "devices/pci0000:10/0000:10:01.0/0000:11:00.0", "devices/pci0000:10/0000:10:01.0/0000:11:00.1/physfn");
  tree_interface(&t, "pci0000:10/0000:10:01.0/0000:11:00.0/mlx5_core.sf.2", "infiniband", "mlx5_2");
  add_port(&t, "mlx5_1", 1, infiniband, edr, 2);
  add_port(&t, "mlx5_2", 1, infiniband, edr, 3);
  /* software devices: over an interface of a virtual machine, and without one */
  tree_pci(&t, (tree_device){.path = "pci0000:00/0000:00:03.0", .class = "0x020000", .vendor = "0x1af4"});
  tree_interface(&t, "pci0000:00/0000:00:03.0/virtio2", "net", "eth0");
  tree_file(&t, "eth0", "class/infiniband/rxe0/parent");
  tree_file(&t, "../../etc", "class/infiniband/siw0/parent");
  add_port(&t, "rxe0", 1, ethernet, edr, 0);
  add_port(&t, "siw0", 1, ethernet, "5 Gb/sec (1X DDR)", 0);
  ck_probe(&t, NULL, "3 RDMA devices, 4 ports, 1 not active (mlx5_0 port 2), 2 more share them",
           "3 nic; mlx5_0:2 number 2; rxe0 bus 0000:00:03.0; siw0 kind nic");
}

/* NICs and ports from another probe are completed, not duplicated. */
TEST(known_already) {
  tree t = start();
  add_card(&t, 0x10, "0", "mlx5_0");
  add_port(&t, "mlx5_0", 1, infiniband, ndr, 7);
  bny_topo *topo = topo_new();
  int32_t host = put(topo, BNY_TOPO_HOST, -1, "h", NULL), nic = put(topo, BNY_TOPO_NIC, host, "ib0", "0000:11:00.0");
  topo->nodes[put(topo, BNY_TOPO_PORT, nic, "1", NULL)].index = 1;
  for (int again = 0; again < 2; again++)
    ck_probe(&t, topo, "1 RDMA device, 1 port", "1 host; 1 nic; 1 port; 1 links; mlx5_0:1 net 1/1/50/50/0");
}

TEST(none) {
  tree t = start();
  ck_probe(&t, NULL, "no RDMA device", "0 nic");
}

int main(void) { return suite_main(suite_with("topo_rdma", 60, NULL, drop_kept)); }
