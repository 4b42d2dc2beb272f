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

/* Adds a port of device `number`, which is part of its GUID. lid 0: no lid. */
static void add_port(const tree *t, const char *name, int port, int number, const char *layer, const char *rate,
                     int lid) {
  char text[64];
  snprintf(text, sizeof text, "fe80:0000:0000:0000:946d:ae03:0000:%04x", (unsigned)(16 * number + port));
  port_file(t, name, port, "gids/0", text);
  snprintf(text, sizeof text, "946d:ae03:0000:%04x", (unsigned)(16 * number));
  tree_file(t, text, "class/infiniband/%s/node_guid", name);
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

static const bny_topo_link *port_link(const bny_topo *topo, const char *nic, int32_t port) {
  int32_t parent = bny_topo_find_name(topo, BNY_TOPO_NIC, nic);
  ck_assert_msg(parent >= 0, "%s is not in the model", nic);
  for (int32_t n = parent + 1; n < topo->nnodes; n++) {
    if (topo->nodes[n].kind == BNY_TOPO_PORT && topo->nodes[n].parent == parent && topo->nodes[n].index == port) {
      int32_t link = bny_topo_first_link(topo, n);
      ck_assert_int_ge(link, 0);
      ck_assert_int_eq(topo->links[link].kind, BNY_TOPO_LINK_NET);
      ck_assert_int_eq(bny_topo_next_link(topo, n, link), -1);
      return &topo->links[link];
    }
  }
  ck_abort_msg("%s has no port %d", nic, port);
  return NULL;
}

static const char *port_words(const bny_topo *topo, const char *nic) {
  const char *words = topo->nodes[port_link(topo, nic, 1)->from].model;
  return words == NULL ? "" : words;
}

/* If `topo` is NULL, the sysfs probe makes the model first. */
static bny_topo *take(const tree *t, bny_topo *topo, bny_topo_probe_report *report) {
  extern const bny_topo_probe bny_topo_probe_sysfs, bny_topo_probe_rdma;
  bny_topo_probe_options options = {.sysfs = t->root};
  bny_topo_error error = {0};
  if (topo == NULL) bny_topo_probe_sysfs.run(&options, topo = topo_new(), report);
  *report = (bny_topo_probe_report){.name = "rdma"};
  bny_topo_probe_rdma.run(&options, topo, report);
  ck_assert_msg(bny_topo_check(topo, &error), "%s", error.text);
  return topo;
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
    add_port(&t, name, 1, i, infiniband, i < 8 ? ndr : hdr, 100 + i);
    if (i >= 8) tree_file(&t, "MT_0000000701", "class/infiniband/%s/board_id", name);
  }
  return t;
}

TEST(cards) {
  tree t = dgx();
  bny_topo_probe_report report;
  bny_topo *topo = take(&t, NULL, &report);
  ck_assert_int_eq(report.outcome, BNY_TOPO_PROBE_FOUND);
  ck_assert_str_eq(report.text, "10 RDMA devices, 10 ports");
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_NIC), 10);
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_PORT), 10);
  ck_assert_double_eq(port_link(topo, "mlx5_0", 1)->gbytes_per_s, 50);
  ck_assert_double_eq(port_link(topo, "mlx5_0", 1)->rated_gbytes_per_s, 50);
  ck_assert_double_eq(port_link(topo, "mlx5_9", 1)->gbytes_per_s, 25);
  ck_assert_str_eq(port_words(topo, "mlx5_3"), "InfiniBand 4x NDR, lid 103");
  const bny_topo_node *nic = &topo->nodes[bny_topo_find_bus(topo, "0000:41:00.0")];
  ck_assert_str_eq(nic->name, "mlx5_3");
  ck_assert_str_eq(nic->guid, "946dae0300000030");
  ck_assert_str_eq(nic->model, "MT4129");
  ck_assert_str_eq(topo->nodes[port_link(topo, "mlx5_3", 1)->from].guid, "946dae0300000031");
  int32_t numa = bny_topo_ancestor(topo, bny_topo_find_bus(topo, "0000:41:00.0"), BNY_TOPO_NUMA);
  ck_assert_int_eq(topo->nodes[numa].index, 1);
}

/* A dead port gets the rating of its board's other ports. An initialising port is rated at its trained speed. */
TEST(port_down) {
  tree t = dgx();
  port_file(&t, "mlx5_2", 1, "rate", "10 Gb/sec (4X SDR)"); /* the rate that drivers report when down */
  port_file(&t, "mlx5_2", 1, "lid", "0x0");
  port_file(&t, "mlx5_5", 1, "state", "2: INIT");
  static const char *const down[] = {"mlx5_2", "mlx5_8", "mlx5_9"};
  for (int i = 0; i < 3; i++) port_file(&t, down[i], 1, "state", "1: DOWN");
  bny_topo_probe_report report;
  bny_topo *topo = take(&t, NULL, &report);
  ck_assert_str_eq(report.text, "10 RDMA devices, 10 ports, 4 not active (mlx5_2 port 1 first)");
  const struct {
    const char *nic;
    double speed, rated;
    const char *words;
  } wanted[] = {{"mlx5_1", 50, 50, "InfiniBand 4x NDR, lid 101"},
                {"mlx5_2", 0, 50, "InfiniBand, down"},
                {"mlx5_5", 0, 50, "InfiniBand 4x NDR, lid 105, initialising"},
                {"mlx5_8", 0, 0, "InfiniBand, lid 108, down"}}; /* no port of its board is up */
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
    ck_assert_double_eq(port_link(topo, wanted[i].nic, 1)->gbytes_per_s, wanted[i].speed);
    ck_assert_double_eq(port_link(topo, wanted[i].nic, 1)->rated_gbytes_per_s, wanted[i].rated);
    ck_assert_str_eq(port_words(topo, wanted[i].nic), wanted[i].words);
  }
}

TEST(roce_bonded) {
  tree t = start();
  const char *const paths[] = {"pci0000:10/0000:10:01.0/0000:11:00.0", "pci0000:10/0000:10:01.0/0000:11:00.1"};
  const char *const names[] = {"ens1f0", "ens1f1"};
  for (int port = 0; port < 2; port++) {
    char master[256];
    tree_pci(&t, (tree_device){paths[port], "0x020000", "0x15b3", "0", "16.0 GT/s PCIe", "16", "16.0 GT/s PCIe", "16"});
    tree_interface(&t, paths[port], "net", names[port]);
    tree_file(&t, "100000", "class/net/%s/speed", names[port]);
    snprintf(master, sizeof master, "devices/%s/net/%s/master", paths[port], names[port]);
    tree_file(&t, "ens1f0 ens1f1", "devices/virtual/net/bond0/bonding/slaves");
    tree_link(&t, "devices/virtual/net/bond0", master);
  }
  tree_interface(&t, paths[0], "infiniband", "mlx5_bond_0");
  add_port(&t, "mlx5_bond_0", 1, 0, ethernet, edr, 0);
  bny_topo_probe_report report;
  bny_topo *topo = take(&t, NULL, &report);
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_NIC), 1);
  ck_assert_double_eq(port_link(topo, "mlx5_bond_0", 1)->gbytes_per_s, 25);
  ck_assert_str_eq(port_words(topo, "mlx5_bond_0"), "Ethernet (RDMA)");
  ck_assert_str_eq(report.text, "1 RDMA device, 1 port");
  /* The device may be faster than the sum of its interfaces. */
  port_file(&t, "mlx5_bond_0", 1, "rate", ndr);
  topo = take(&t, NULL, &report);
  ck_assert_double_eq(port_link(topo, "mlx5_bond_0", 1)->gbytes_per_s, 50);
}

TEST(speeds) {
  static const struct {
    const char *rate;
    double gbytes_per_s;
  } cases[] = {{"2.5 Gb/sec (1X SDR)", 0.3125},
               {"56 Gb/sec (4X FDR)", 7},
               {"800 Gb/sec (4X XDR)", 100},
               {"25 Gb/sec (1X EDR)", 3.125},
               {"many Gb/sec", 0},
               {"1e300", 0},
               {"nan", 0},
               {"-1 Gb/sec", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    tree t = start();
    add_card(&t, 0x10, "0", "mlx5_0");
    add_port(&t, "mlx5_0", 1, 0, infiniband, cases[i].rate, 1);
    bny_topo_probe_report report;
    double speed = port_link(take(&t, NULL, &report), "mlx5_0", 1)->gbytes_per_s;
    ck_assert_msg(speed == cases[i].gbytes_per_s, "%s: %g", cases[i].rate, speed);
  }
}

/* Virtual functions and subfunctions share their ports. Software devices and second ports have their own. */
TEST(odd_devices) {
  tree t = start();
  add_card(&t, 0x10, "0", "mlx5_0");
  for (int port = 1; port <= 2; port++) add_port(&t, "mlx5_0", port, 0, infiniband, edr, 1);
  port_file(&t, "mlx5_0", 2, "state", "77: NEW");
  /* a virtual function; a subfunction of the card above */
  const char *virtual_function = "pci0000:10/0000:10:01.0/0000:11:00.1";
  tree_pci(&t, (tree_device){.path = virtual_function, .class = "0x020700", .vendor = "0x15b3"});
  tree_interface(&t, virtual_function, "infiniband", "mlx5_1");
  tree_link(&t, "devices/pci0000:10/0000:10:01.0/0000:11:00.0", "devices/pci0000:10/0000:10:01.0/0000:11:00.1/physfn");
  tree_interface(&t, "pci0000:10/0000:10:01.0/0000:11:00.0/mlx5_core.sf.2", "infiniband", "mlx5_2");
  add_port(&t, "mlx5_1", 1, 1, infiniband, edr, 2);
  add_port(&t, "mlx5_2", 1, 2, infiniband, edr, 3);
  /* software devices: over an interface of a virtual machine, and without one */
  tree_pci(&t, (tree_device){.path = "pci0000:00/0000:00:03.0", .class = "0x020000", .vendor = "0x1af4"});
  tree_interface(&t, "pci0000:00/0000:00:03.0/virtio2", "net", "eth0");
  tree_file(&t, "eth0", "class/infiniband/rxe0/parent");
  tree_file(&t, "../../etc", "class/infiniband/siw0/parent");
  add_port(&t, "rxe0", 1, 3, ethernet, edr, 0);
  add_port(&t, "siw0", 1, 4, ethernet, "5 Gb/sec (1X DDR)", 0);
  bny_topo_probe_report report;
  bny_topo *topo = take(&t, NULL, &report);
  ck_assert_str_eq(report.text, "3 RDMA devices, 4 ports, 1 not active (mlx5_0 port 2), 2 more share them");
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_NIC), 3);
  ck_assert_str_eq(topo->nodes[port_link(topo, "mlx5_0", 2)->from].name, "2");
  ck_assert_str_eq(topo->nodes[bny_topo_find_bus(topo, "0000:00:03.0")].name, "rxe0");
  ck_assert_int_ge(bny_topo_find_name(topo, BNY_TOPO_NIC, "siw0"), 0);
}

/* NICs and ports from another probe are completed, not duplicated. */
TEST(known_already) {
  tree t = start();
  add_card(&t, 0x10, "0", "mlx5_0");
  add_port(&t, "mlx5_0", 1, 0, infiniband, ndr, 7);
  bny_topo *topo = topo_new();
  int32_t host = put(topo, BNY_TOPO_HOST, -1, "h", NULL), nic = put(topo, BNY_TOPO_NIC, host, "ib0", "0000:11:00.0");
  int32_t port = put(topo, BNY_TOPO_PORT, nic, "1", NULL);
  topo->nodes[port].index = 1;
  for (int again = 0; again < 2; again++) {
    bny_topo_probe_report report;
    take(&t, topo, &report);
    ck_assert_int_eq(topo->nnodes, 3);
    ck_assert_int_eq(topo->nlinks, 1);
    ck_assert_str_eq(topo->nodes[nic].name, "mlx5_0");
    ck_assert_str_eq(topo->nodes[port].guid, "946dae0300000001");
    ck_assert_double_eq(port_link(topo, "mlx5_0", 1)->gbytes_per_s, 50);
  }
}

TEST(none) {
  tree t = start();
  bny_topo_probe_report report;
  bny_topo *topo = take(&t, NULL, &report);
  ck_assert_int_eq(report.outcome, BNY_TOPO_PROBE_NOTHING);
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_NIC), 0);
}

int main(void) { return suite_main(suite_with("topo_rdma", 60, NULL, drop_kept)); }
