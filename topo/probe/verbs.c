/* SPDX-License-Identifier: Apache-2.0
 * Calls of libibverbs only. The library prints what it lacks to stderr, so it is called only if the kernel has RDMA
 * devices: see bny_topo_verbs_take. */
#include "topo/probe/verbs.h"

#include "topo/probe/util.h"

#ifdef HAVE_VERBS
#include <endian.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>

_Static_assert(IBV_PORT_DOWN == (int)BNY_TOPO_VERBS_DOWN && IBV_PORT_ACTIVE == (int)BNY_TOPO_VERBS_ACTIVE, "states");
_Static_assert(IBV_LINK_LAYER_INFINIBAND == (int)BNY_TOPO_VERBS_INFINIBAND &&
                   IBV_LINK_LAYER_ETHERNET == (int)BNY_TOPO_VERBS_ETHERNET,
               "link layers");

typedef struct opened {
  struct ibv_device **devices;
  struct ibv_context *context; /* the open device's, or NULL */
} opened;

static int errno_of(int returned) { return returned > 0 ? returned : errno != 0 ? errno : EIO; }

static void *open_devices(int32_t *count) {
  opened *o = calloc(1, sizeof *o);
  int found = 0;
  if (o == NULL) return NULL;
  o->devices = ibv_get_device_list(&found);
  if (o->devices == NULL) {
    int why = errno;
    free(o);
    errno = why;
    return NULL;
  }
  *count = found;
  return o;
}

static void release(void *devices) {
  opened *o = devices;
  if (o->context != NULL) {
    ibv_close_device(o->context);
    o->context = NULL;
  }
}

static void close_devices(void *devices) {
  opened *o = devices;
  release(o);
  ibv_free_device_list(o->devices);
  free(o);
}

static const char *name_of(void *devices, int32_t device) {
  return ibv_get_device_name(((opened *)devices)->devices[device]);
}

static int ask_device(void *devices, int32_t device, bny_topo_verbs_device *facts) {
  opened *o = devices;
  struct ibv_device_attr about = {0};
  errno = 0;
  o->context = ibv_open_device(o->devices[device]);
  if (o->context == NULL) return errno_of(0);
  int failed = ibv_query_device(o->context, &about);
  if (failed != 0) {
    release(o);
    return errno_of(failed);
  }
  *facts = (bny_topo_verbs_device){.guid = be64toh(about.node_guid),
                                   .vendor = (int32_t)about.vendor_id,
                                   .part = (int32_t)about.vendor_part_id,
                                   .ports = about.phys_port_cnt};
  return 0;
}

static int ask_port(void *devices, int32_t device, int32_t port, bny_topo_verbs_port *facts) {
  opened *o = devices;
  struct ibv_port_attr about = {0};
  union ibv_gid gid;
  (void)device;
  errno = 0;
  int failed = ibv_query_port(o->context, (uint8_t)port, &about);
  if (failed != 0) return errno_of(failed);
  *facts = (bny_topo_verbs_port){.state = (int32_t)about.state,
                                 .link_layer = about.link_layer,
                                 .speed = about.active_speed,
                                 .width = about.active_width,
                                 .lid = about.lid};
  if (ibv_query_gid(o->context, (uint8_t)port, 0, &gid) == 0) facts->guid = be64toh(gid.global.interface_id);
  return 0;
}

static const bny_topo_verbs libibverbs = {.open = open_devices,
                                          .close = close_devices,
                                          .name = name_of,
                                          .device = ask_device,
                                          .port = ask_port,
                                          .release = release};

static void run(const bny_topo_probe_options *options, bny_topo *topo, bny_topo_probe_report *report) {
  bny_topo_verbs_take(&libibverbs, options->sysfs == NULL ? "/sys" : options->sysfs, topo, report);
}

#else

static void run(const bny_topo_probe_options *options, bny_topo *topo, bny_topo_probe_report *report) {
  (void)options;
  (void)topo;
  bny_topo_probe_say(report, BNY_TOPO_PROBE_ABSENT,
                     "built without libibverbs: RDMA ports and their speeds are unknown");
}

#endif

const bny_topo_probe bny_topo_probe_verbs = {.name = "verbs", .run = run};
