/* SPDX-License-Identifier: Apache-2.0
 * The network devices of a node in a simulated /sys, and the devices that a rank uses. */
#include "tests/support/world.h"
#include "tests/topo/topo_sysfs.h"
#include "transport/ucx/devices.h"

/* Two adapters with one port each, one adapter with two ports, one of them down, and interfaces. */
static void make_node(const tree *t) {
  static const struct {
    const char *name, *port, *state, *interface;
  } ports[] = {{"mlx5_10", "1", "4: ACTIVE", NULL},
               {"mlx5_2", "1", "4: ACTIVE", "eth2"},
               {"mlx5_3", "1", "1: DOWN", NULL},
               {"mlx5_3", "2", "4: ACTIVE", NULL},
               {"irdma0", "1", "1: DOWN", NULL}};
  static const char *const interfaces[][2] = {
      {"eth0", "up"}, {"eth1", "up"}, {"eth2", "up"}, {"eth3", "down"}, {"lo", "unknown"}};
  for (size_t i = 0; i < sizeof ports / sizeof *ports; i++) {
    tree_file(t, ports[i].state, "class/infiniband/%s/ports/%s/state", ports[i].name, ports[i].port);
    if (ports[i].interface)
      tree_file(t, "", "class/infiniband/%s/device/net/%s/ifindex", ports[i].name, ports[i].interface);
  }
  for (size_t i = 0; i < sizeof interfaces / sizeof *interfaces; i++)
    tree_file(t, interfaces[i][1], "class/net/%s/operstate", interfaces[i][0]);
  tree_file(t, "", "class/net/bonding_masters"); /* a file of the bonding driver */
}

TEST(lists_the_devices_of_a_node) {
  static const struct {
    const char *name, *interface;
    bool is_adapter, is_up;
  } expected[] = {{"irdma0:1", "", true, false}, {"mlx5_2:1", "eth2", true, true}, {"mlx5_3:1", "", true, false},
                  {"mlx5_3:2", "", true, true},  {"mlx5_10:1", "", true, true},    {"eth0", "", false, true},
                  {"eth1", "", false, true},     {"eth2", "", false, true},        {"eth3", "", false, false},
                  {"lo", "", false, true}};
  tree t = tree_new();
  bny_net_device *devices;
  int32_t count;
  make_node(&t);
  ck_assert_int_eq(bny_net_devices_find(t.root, &devices, &count), BANYAN_OK);
  ck_assert_int_eq(count, (int)(sizeof expected / sizeof *expected));
  for (int32_t i = 0; i < count; i++) {
    ck_assert_str_eq(devices[i].name, expected[i].name);
    ck_assert_str_eq(devices[i].interface, expected[i].interface);
    ck_assert_int_eq(devices[i].is_adapter, expected[i].is_adapter);
    ck_assert_int_eq(devices[i].is_up, expected[i].is_up);
  }
  free(devices);
}

TEST(a_node_without_sysfs_has_no_devices) {
  bny_net_device *devices;
  int32_t count;
  ck_assert_int_eq(bny_net_devices_find("/nonexistent", &devices, &count), BANYAN_OK);
  ck_assert_int_eq(count, 0);
  free(devices);
}

/* `list` is NULL if UCX chooses, and `error` is a part of the error text. */
typedef struct example {
  const char *option, *interface, *nearest, *ucx, *reached, *shared;
  const char *list, *why, *error;
} example;

#define ALL_INTERFACES "eth0,eth1,eth2"

static const example examples[] = {
    /* nothing is set */
    {.why = "UCX chooses"},
    {.nearest = "", .why = "UCX chooses"},
    {.nearest = "nosuch", .why = "UCX chooses"},
    {.nearest = "irdma0", .why = "UCX chooses"}, /* the port is down */
    /* the nearest adapters, next to interfaces */
    {.nearest = "mlx5_2", .list = "mlx5_2:1," ALL_INTERFACES, .why = "nearest to this rank"},
    {.nearest = "mlx5_10,mlx5_2", .list = "mlx5_2:1,mlx5_10:1," ALL_INTERFACES, .why = "nearest"},
    {.nearest = "mlx5_3", .list = "mlx5_3:2," ALL_INTERFACES, .why = "nearest"},
    {.nearest = "eth2", .list = "mlx5_2:1," ALL_INTERFACES, .why = "nearest"},
    {.nearest = "eth0", .why = "UCX chooses"}, /* the kernel routes TCP */
    /* an address that another node also has, such as docker0's */
    {.shared = "", .why = "UCX chooses"},
    {.shared = "docker0,eth", .why = "UCX chooses"},
    {.shared = "eth3", .why = "UCX chooses"}, /* the interface is down */
    {.shared = "eth1",
     .list = "mlx5_2:1,mlx5_3:2,mlx5_10:1,eth0,eth2",
     .why = "without addresses that other nodes have"},
    {.shared = "eth2,eth0", .list = "mlx5_2:1,mlx5_3:2,mlx5_10:1,eth1"},
    {.shared = "eth1", .nearest = "mlx5_2", .list = "mlx5_2:1,eth0,eth2", .why = "nearest"},
    {.shared = "eth1", .interface = "eth1", .list = "mlx5_2:1,mlx5_3:2,mlx5_10:1,eth1", .why = "BANYAN_INTERFACE"},
    {.shared = "eth1", .option = "eth1", .list = "eth1", .why = "BANYAN_NET_DEVICES"},
    {.shared = "eth1", .option = "^eth0", .list = "mlx5_2:1,mlx5_3:2,mlx5_10:1,eth2", .why = "BANYAN_NET_DEVICES"},
    {.shared = "eth1", .ucx = "eth0", .why = "UCX_NET_DEVICES"},
    {.reached = "eth1", .list = "mlx5_2:1,mlx5_3:2,mlx5_10:1,eth1", .why = "by which rank 0 was reached"},
    {.reached = "eth1", .nearest = "mlx5_2", .list = "mlx5_2:1,eth1", .why = "by which rank 0 was reached, nearest"},
    {.reached = "eth3", .why = "UCX chooses"}, /* the interface is down */
    {.reached = "wg0", .shared = "eth1", .list = "mlx5_2:1,mlx5_3:2,mlx5_10:1,eth0,eth2", .why = "without addresses"},
    {.reached = "eth1", .interface = "eth0", .list = "mlx5_2:1,mlx5_3:2,mlx5_10:1,eth0", .why = "BANYAN_INTERFACE"},
    {.reached = "eth1",
     .option = "^eth0",
     .list = "mlx5_2:1,mlx5_3:2,mlx5_10:1,eth1,eth2",
     .why = "BANYAN_NET_DEVICES"},
    /* BANYAN_INTERFACE */
    {.interface = "eth1", .list = "mlx5_2:1,mlx5_3:2,mlx5_10:1,eth1", .why = "BANYAN_INTERFACE"},
    {.interface = "lo", .list = "mlx5_2:1,mlx5_3:2,mlx5_10:1,lo", .why = "BANYAN_INTERFACE"},
    {.interface = "eth1",
     .nearest = "mlx5_2",
     .list = "mlx5_2:1,eth1",
     .why = "BANYAN_INTERFACE, nearest to this rank"},
    /* lists */
    {.option = "mlx5_2", .list = "mlx5_2:1", .why = "BANYAN_NET_DEVICES"},
    {.option = "=mlx5_2,eth1", .list = "mlx5_2:1,eth1", .why = "BANYAN_NET_DEVICES"},
    {.option = "mlx5_3", .list = "mlx5_3:2", .why = "BANYAN_NET_DEVICES"},
    {.option = "mlx5_3:2,mlx5_3:2", .list = "mlx5_3:2", .why = "BANYAN_NET_DEVICES"},
    {.option = "mlx5_*", .list = "mlx5_2:1,mlx5_3:2,mlx5_10:1", .why = "BANYAN_NET_DEVICES"},
    {.option = "eth1", .list = "eth1", .why = "BANYAN_NET_DEVICES"},
    {.option = "lo", .list = "lo", .why = "BANYAN_NET_DEVICES"},
    {.option = "eth0,eth1,eth3", .list = "eth0,eth1", .why = "BANYAN_NET_DEVICES"},
    {.option = "eth0,mlx5_2,eth1,mlx5_10", .list = "mlx5_2:1,mlx5_10:1,eth0,eth1"},
    {.option = "eth1", .interface = "eth0", .list = "eth1", .why = "BANYAN_NET_DEVICES"},
    {.option = "eth1", .nearest = "mlx5_2", .list = "eth1", .why = "BANYAN_NET_DEVICES"},
    {.option = "mlx5_2,mlx5_10",
     .nearest = "mlx5_10",
     .list = "mlx5_10:1",
     .why = "BANYAN_NET_DEVICES, nearest to this rank"},
    {.option = "mlx5_2,mlx5_10", .nearest = "mlx5_3", .list = "mlx5_2:1,mlx5_10:1"},
    /* exclusions */
    {.option = "^mlx5_3", .list = "mlx5_2:1,mlx5_10:1," ALL_INTERFACES},
    {.option = "^=mlx5_*,eth0", .list = "eth1,eth2"},
    {.option = "^eth1", .list = "mlx5_2:1,mlx5_3:2,mlx5_10:1,eth0,eth2"},
    {.option = "^mlx5_2",
     .interface = "eth0",
     .list = "mlx5_3:2,mlx5_10:1,eth0",
     .why = "BANYAN_NET_DEVICES and BANYAN_INTERFACE"},
    {.option = "^mlx5_2",
     .nearest = "mlx5_2,mlx5_10",
     .list = "mlx5_10:1," ALL_INTERFACES,
     .why = "BANYAN_NET_DEVICES, nearest"},
    {.option = "^mlx5_2", .nearest = "mlx5_2", .list = "mlx5_3:2,mlx5_10:1," ALL_INTERFACES},
    /* UCX_NET_DEVICES has precedence, and then even a wrong name is accepted */
    {.ucx = "eth0", .why = "UCX_NET_DEVICES"},
    {.ucx = "all", .nearest = "mlx5_2", .interface = "eth0", .why = "UCX_NET_DEVICES"},
    {.ucx = "eth0", .option = "nosuch", .why = "UCX_NET_DEVICES, so BANYAN_NET_DEVICES has no effect"},
    /* rejections */
    {.option = "mlx5_1",
     .error = "\"mlx5_1\": there is no network device \"mlx5_1\"; this node has irdma0:1 (down), "
              "mlx5_2:1, mlx5_3:1 (down), mlx5_3:2, mlx5_10:1, eth0, eth1, eth2, eth3 (down), lo"},
    {.option = "mlx5", .error = "there is no network device \"mlx5\""},
    {.option = "mlx5_2:2", .error = "there is no network device \"mlx5_2:2\""},
    {.option = "eth0,ib7", .error = "there is no network device \"ib7\""},
    {.option = "^ib7", .error = "there is no network device \"ib7\""},
    {.option = "irdma0", .error = "what it names is down"},
    {.option = "^*", .error = "it leaves no device that is up"},
    {.option = "^eth1", .interface = "eth1", .list = "mlx5_2:1,mlx5_3:2,mlx5_10:1"},
    {.option = "eth0,", .error = "it takes names between commas"},
    {.option = ",eth0", .error = "it takes names between commas"},
    {.option = "eth0,,eth1", .error = "it takes names between commas"},
    {.option = "^", .error = "it takes names between commas"},
    {.option = "a-name-that-is-longer-than-any-name-of-a-device-can-be-in-the-kernel-of-linux",
     .error = "it takes names between commas"},
};

TEST_LOOP(chooses, (int)(sizeof examples / sizeof *examples)) {
  const example *with = &examples[_i];
  const bny_net_device_wishes wishes = {with->option, with->interface, with->nearest,
                                        with->ucx,    with->reached,   with->shared};
  bny_net_device_choice choice;
  bny_net_device *devices;
  int32_t count;
  tree t = tree_new();
  make_node(&t);
  ck_assert_int_eq(bny_net_devices_find(t.root, &devices, &count), BANYAN_OK);
  banyan_status status = bny_net_devices_choose(&wishes, devices, count, &choice);
  if (with->error) {
    ASSERT_FAILS(status, BANYAN_ERR_ARGUMENT, with->error);
  } else {
    ck_assert_int_eq(status, BANYAN_OK);
    ck_assert_pstr_eq(choice.list, with->list);
    ck_assert_msg(!with->why || strstr(choice.why, with->why) == choice.why, "%s", choice.why);
  }
  free(choice.list);
  free(devices);
}

int main(void) { return world_main(suite_with("net_devices", 0, NULL, drop_kept)); }
