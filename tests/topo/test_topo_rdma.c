/* SPDX-License-Identifier: Apache-2.0
 * RDMA devices, as a made-up libibverbs reports them, in a made-up sysfs. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "topo/probe/verbs.h"
#include "tests/topo/topo_sysfs.h"
#include "tests/topo/topo_util.h"
#include "tests/support/suite.h"

enum { MOST_DEVICES = 16, NDR = 128, HDR = 64, EDR = 32, LANES_4 = 2, LANES_2 = 16, ACTIVE = BNY_TOPO_VERBS_ACTIVE };

typedef struct fake_device {
  const char *name;
  int rejected; /* errno */
  bny_topo_verbs_device facts;
  bny_topo_verbs_port ports[2];
} fake_device;

/* The devices that the functions of the table report, and what they counted. */
static struct {
  int32_t count;
  fake_device devices[MOST_DEVICES];
  int opened, calls;
} fake;

static void *fake_open(int32_t *count) {
  fake.calls++;
  *count = fake.count;
  return &fake;
}

static void *fake_no_support(int32_t *count) {
  (void)count;
  errno = ENOSYS;
  return NULL;
}

static void fake_close(void *devices) {
  ck_assert_ptr_eq(devices, &fake);
  ck_assert_int_eq(fake.opened, 0);
}

static const char *fake_name(void *devices, int32_t device) {
  (void)devices;
  ck_assert_int_lt(device, fake.count);
  return fake.devices[device].name;
}

static int fake_ask(void *devices, int32_t device, bny_topo_verbs_device *facts) {
  (void)devices;
  if (fake.devices[device].rejected != 0) return fake.devices[device].rejected;
  fake.opened++;
  *facts = fake.devices[device].facts;
  return 0;
}

static int fake_port(void *devices, int32_t device, int32_t port, bny_topo_verbs_port *facts) {
  (void)devices;
  ck_assert_int_eq(fake.opened, 1);
  if (port > 2) return EINVAL;
  *facts = fake.devices[device].ports[port - 1];
  return 0;
}

static void fake_release(void *devices) {
  (void)devices;
  fake.opened--;
}

static const bny_topo_verbs table = {.open = fake_open,
                                     .close = fake_close,
                                     .name = fake_name,
                                     .device = fake_ask,
                                     .port = fake_port,
                                     .release = fake_release};

static fake_device *fake_add(const char *name, int link_layer, int speed, int width, int lid) {
  fake_device *device = &fake.devices[fake.count];
  uint64_t guid = 0x946dae0300000000u + (uint64_t)fake.count * 16;
  *device = (fake_device){.name = name, .facts = {.guid = guid, .vendor = 0x2c9, .part = 4129, .ports = 1}};
  device->ports[0] = (bny_topo_verbs_port){
      .guid = guid + 1, .state = ACTIVE, .link_layer = link_layer, .speed = speed, .width = width, .lid = lid};
  fake.count++;
  return device;
}

/* A card below a root port of its own. */
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

static bny_topo *take(const tree *t, bny_topo_probe_report *report) {
  extern const bny_topo_probe bny_topo_probe_sysfs;
  bny_topo_probe_options options = {.sysfs = t->root};
  bny_topo *topo = topo_new();
  bny_topo_error error = {0};
  bny_topo_probe_report ignored = {0};
  bny_topo_probe_sysfs.run(&options, topo, &ignored);
  *report = (bny_topo_probe_report){.name = "verbs"};
  bny_topo_verbs_take(&table, t->root, topo, report);
  ck_assert_msg(bny_topo_check(topo, &error), "%s", error.text);
  return topo;
}

static tree start(void) {
  memset(&fake, 0, sizeof fake);
  tree t = tree_new();
  tree_numa(&t, 0, 0, 0, 1);
  tree_numa(&t, 1, 1, 2, 3);
  return t;
}

/* Eight of 400 Gb/s, two for storage of 200. */
static tree dgx(void) {
  static const char *const names[] = {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4",
                                      "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"};
  tree t = start();
  for (int i = 0; i < 10; i++) {
    add_card(&t, 0x10 + 0x10 * i, i % 2 == 0 ? "0" : "1", names[i]);
    fake_add(names[i], BNY_TOPO_VERBS_INFINIBAND, i < 8 ? NDR : HDR, LANES_4, 100 + i);
    if (i >= 8) tree_file(&t, "MT_0000000701", "class/infiniband/%s/board_id", names[i]);
  }
  return t;
}

TEST(infiniband) {
  tree t = dgx();
  bny_topo_probe_report report;
  bny_topo *topo = take(&t, &report);
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

/* Rated as others of the very same board do; what is initialising is rated as it trained. */
TEST(port_down) {
  tree t = dgx();
  fake.devices[2].ports[0].state = BNY_TOPO_VERBS_DOWN;
  fake.devices[2].ports[0].speed = 1; /* as drivers leave it */
  fake.devices[2].ports[0].lid = 0;
  fake.devices[5].ports[0].state = 2;
  fake.devices[8].ports[0].state = BNY_TOPO_VERBS_DOWN;
  fake.devices[9].ports[0].state = BNY_TOPO_VERBS_DOWN;
  bny_topo_probe_report report;
  bny_topo *topo = take(&t, &report);
  ck_assert_str_eq(report.text, "10 RDMA devices, 10 ports, 4 not active (mlx5_2 port 1 first)");
  const struct {
    const char *nic;
    double speed, rated;
    const char *words;
  } wanted[] = {{"mlx5_1", 50, 50, "InfiniBand 4x NDR, lid 101"},
                {"mlx5_2", 0, 50, "InfiniBand, down"},
                {"mlx5_5", 0, 50, "InfiniBand 4x NDR, lid 105, initialising"},
                {"mlx5_8", 0, 0, "InfiniBand, lid 108, down"}}; /* none of its board is up */
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
  fake_add("mlx5_bond_0", BNY_TOPO_VERBS_ETHERNET, EDR, LANES_4, 0);
  bny_topo_probe_report report;
  bny_topo *topo = take(&t, &report);
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_NIC), 1);
  ck_assert_double_eq(port_link(topo, "mlx5_bond_0", 1)->gbytes_per_s, 25);
  ck_assert_str_eq(port_words(topo, "mlx5_bond_0"), "Ethernet (RDMA)");
  ck_assert_str_eq(report.text, "1 RDMA device, 1 port");
  /* 2x 50 of one lane each is said right by the device itself; and so is more than the ports say. */
  fake.devices[0].ports[0].speed = NDR;
  topo = take(&t, &report);
  ck_assert_double_eq(port_link(topo, "mlx5_bond_0", 1)->gbytes_per_s, 50);
}

/* The rows have every rate and width, and some that do not exist. */
TEST(speeds) {
  const struct {
    int speed, width;
    const char *rate; /* as sysfs says */
    double gbytes_per_s;
  } cases[] = {{1, 2, NULL, 1.25},
               {2, 2, NULL, 2.5},
               {4, 2, NULL, 5},
               {8, 2, NULL, 5},
               {16, 2, NULL, 7},
               {32, 2, NULL, 12.5},
               {64, 2, NULL, 25},
               {128, 2, NULL, 50},
               {256, 2, NULL, 100},
               {128, 1, NULL, 12.5},
               {64, LANES_2, NULL, 12.5},
               {128, 4, NULL, 100},
               {128, 8, NULL, 150},
               {0, 2, NULL, 0},
               {3, 2, NULL, 0},
               {128, 3, NULL, 0},
               {-1, -1, NULL, 0},
               {128, 2, "800 Gb/sec (4X XDR)", 100},
               {64, 2, "800 Gb/sec (4X XDR)", 25},
               {0, 0, "25 Gb/sec (1X EDR)", 3.125},
               {0, 0, "many Gb/sec", 0},
               {0, 0, "1e300", 0},
               {0, 0, "nan", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    tree t = start();
    add_card(&t, 0x10, "0", "mlx5_0");
    fake_add("mlx5_0", BNY_TOPO_VERBS_INFINIBAND, cases[i].speed, cases[i].width, 1);
    if (cases[i].rate != NULL) tree_file(&t, cases[i].rate, "class/infiniband/mlx5_0/ports/1/rate");
    bny_topo_probe_report report;
    bny_topo *topo = take(&t, &report);
    double speed = port_link(topo, "mlx5_0", 1)->gbytes_per_s;
    ck_assert_msg(speed == cases[i].gbytes_per_s, "case %zu: %g", i, speed);
  }
}

/* Virtual and sub-functions, software devices, names that are none, two ports on one. */
TEST(odd_devices) {
  tree t = start();
  add_card(&t, 0x10, "0", "mlx5_0");
  fake_add("mlx5_0", BNY_TOPO_VERBS_INFINIBAND, EDR, LANES_4, 1)->facts.ports = 2;
  fake.devices[0].ports[1] = fake.devices[0].ports[0];
  fake.devices[0].ports[1].state = 77;
  /* a virtual function; a subfunction of the card above */
  const char *virtual_function = "pci0000:10/0000:10:01.0/0000:11:00.1";
  tree_pci(&t, (tree_device){.path = virtual_function, .class = "0x020700", .vendor = "0x15b3"});
  tree_interface(&t, virtual_function, "infiniband", "mlx5_1");
  tree_link(&t, "devices/pci0000:10/0000:10:01.0/0000:11:00.0", "devices/pci0000:10/0000:10:01.0/0000:11:00.1/physfn");
  tree_interface(&t, "pci0000:10/0000:10:01.0/0000:11:00.0/mlx5_core.sf.2", "infiniband", "mlx5_2");
  fake_add("mlx5_1", BNY_TOPO_VERBS_INFINIBAND, EDR, LANES_4, 2);
  fake_add("mlx5_2", BNY_TOPO_VERBS_INFINIBAND, EDR, LANES_4, 3);
  /* software over an interface of a virtual machine, and over nothing */
  tree_pci(&t, (tree_device){.path = "pci0000:00/0000:00:03.0", .class = "0x020000", .vendor = "0x1af4"});
  tree_interface(&t, "pci0000:00/0000:00:03.0/virtio2", "net", "eth0");
  tree_file(&t, "eth0", "class/infiniband/rxe0/parent");
  tree_file(&t, "../../etc", "class/infiniband/siw0/parent");
  fake_add("rxe0", BNY_TOPO_VERBS_ETHERNET, EDR, LANES_4, 0);
  fake_add("siw0", BNY_TOPO_VERBS_ETHERNET, 2, 1, 0);
  fake_add("../../etc", BNY_TOPO_VERBS_ETHERNET, 2, 1, 0);
  fake_add("", BNY_TOPO_VERBS_ETHERNET, 2, 1, 0);
  fake_add(NULL, BNY_TOPO_VERBS_ETHERNET, 2, 1, 0);
  bny_topo_probe_report report;
  bny_topo *topo = take(&t, &report);
  ck_assert_str_eq(report.text, "3 RDMA devices, 4 ports, 2 more share them");
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_NIC), 3);
  ck_assert_str_eq(topo->nodes[port_link(topo, "mlx5_0", 2)->from].name, "2");
  ck_assert_str_eq(topo->nodes[bny_topo_find_bus(topo, "0000:00:03.0")].name, "rxe0");
  ck_assert_int_ge(bny_topo_find_name(topo, BNY_TOPO_NIC, "siw0"), 0);
}

/* NICs and ports that another probe put there are completed, not doubled. */
TEST(known_already) {
  tree t = start();
  add_card(&t, 0x10, "0", "mlx5_0");
  fake_add("mlx5_0", BNY_TOPO_VERBS_INFINIBAND, NDR, LANES_4, 7);
  bny_topo *topo = topo_new();
  int32_t host = put(topo, BNY_TOPO_HOST, -1, "h", NULL), nic = put(topo, BNY_TOPO_NIC, host, "ib0", "0000:11:00.0");
  int32_t port = put(topo, BNY_TOPO_PORT, nic, "1", NULL);
  topo->nodes[port].index = 1;
  for (int again = 0; again < 2; again++) {
    bny_topo_probe_report report = {.name = "verbs"};
    bny_topo_verbs_take(&table, t.root, topo, &report);
    ck_assert_int_eq(topo->nnodes, 3);
    ck_assert_int_eq(topo->nlinks, 1);
    ck_assert_str_eq(topo->nodes[nic].name, "mlx5_0");
    ck_assert_str_eq(topo->nodes[port].guid, "946dae0300000001");
    ck_assert_double_eq(port_link(topo, "mlx5_0", 1)->gbytes_per_s, 50);
  }
}

TEST(rejected) {
  tree t = dgx();
  bny_topo_probe_report report;
  fake.devices[3].rejected = EACCES;
  bny_topo *topo = take(&t, &report);
  ck_assert_int_eq(report.outcome, BNY_TOPO_PROBE_FOUND);
  ck_assert_str_eq(report.text, "10 RDMA devices, 9 ports; mlx5_3 cannot be opened: Permission denied");
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_NIC), 10);
  for (int i = 0; i < fake.count; i++) fake.devices[i].rejected = EACCES;
  topo = take(&t, &report);
  ck_assert_int_eq(report.outcome, BNY_TOPO_PROBE_FAILED);
  fake.count = 0;
  topo = take(&t, &report);
  ck_assert_int_eq(report.outcome, BNY_TOPO_PROBE_FAILED);
  ck_assert_str_eq(report.text, "libibverbs has no driver for the kernel's 10 RDMA devices");
  bny_topo_verbs none = table;
  none.open = fake_no_support;
  bny_topo_verbs_take(&none, t.root, topo, &report);
  ck_assert_int_eq(report.outcome, BNY_TOPO_PROBE_FAILED);
  ck_assert_ptr_nonnull(strstr(report.text, strerror(ENOSYS)));
}

/* Where the kernel has none libibverbs, which would complain on stderr, is not asked at all. */
TEST(none) {
  tree t = start();
  bny_topo_probe_report report;
  fake_add("mlx5_0", BNY_TOPO_VERBS_INFINIBAND, EDR, LANES_4, 1);
  bny_topo *topo = take(&t, &report);
  ck_assert_int_eq(report.outcome, BNY_TOPO_PROBE_NOTHING);
  ck_assert_int_eq(fake.calls, 0);
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_NIC), 0);
}

int main(void) { return suite_main(suite_with("topo_verbs", 60, NULL, drop_kept)); }
