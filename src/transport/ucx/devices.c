/* SPDX-License-Identifier: Apache-2.0
 * Lists the network devices of this node, and chooses those that a rank uses. */
#include "transport/ucx/devices.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/sysfs.h"

/* ---- this node's devices ----------------------------------------------------------------------------------------- */

typedef struct listing {
  bny_net_device *devices;
  int32_t count;
  const char *adapter; /* the adapter whose ports are visited */
  bool failed;
} listing;

static void add(listing *list, const bny_net_device *device) {
  bny_net_device *grown = realloc(list->devices, ((size_t)list->count + 1) * sizeof *grown);
  list->failed = list->failed || !grown;
  if (!grown) return;
  list->devices = grown;
  list->devices[list->count++] = *device;
}

/* Keeps the first interface that is visited. */
static void set_interface(void *context, const char *folder, const char *name) {
  listing *list = context;
  bny_net_device *port = &list->devices[list->count - 1];
  (void)folder;
  if (!port->interface[0]) snprintf(port->interface, sizeof port->interface, "%.*s", IF_NAMESIZE - 1, name);
}

static void visit_port(void *context, const char *folder, const char *name) {
  char state[32];
  listing *list = context;
  bny_net_device port = {.is_adapter = true};
  snprintf(port.name, sizeof port.name, "%.48s:%.8s", list->adapter, name);
  bny_sysfs_line(state, sizeof state, "%s/%s/state", folder, name);
  port.is_up = strncmp(state, "4:", 2) == 0; /* "4: ACTIVE" */
  add(list, &port);
  if (!list->failed) bny_sysfs_each(set_interface, list, "%s/../device/net", folder);
}

static void visit_adapter(void *context, const char *folder, const char *name) {
  listing *list = context;
  list->adapter = name;
  bny_sysfs_each(visit_port, list, "%s/%s/ports", folder, name);
}

/* Virtual interfaces such as lo have no link, and the state "unknown". */
static void visit_interface(void *context, const char *folder, const char *name) {
  char state[32];
  bny_net_device device = {.is_adapter = false};
  snprintf(device.name, sizeof device.name, "%.48s", name);
  bool is_interface = bny_sysfs_line(state, sizeof state, "%s/%s/operstate", folder, name);
  device.is_up = strcmp(state, "up") == 0 || strcmp(state, "unknown") == 0;
  if (is_interface) add(context, &device); /* other entries are files of drivers */
}

banyan_status bny_net_devices_find(const char *sysfs, bny_net_device **devices, int32_t *ndevices) {
  listing list = {.count = 0};
  bny_sysfs_each(visit_adapter, &list, "%s/class/infiniband", sysfs);
  bny_sysfs_each(visit_interface, &list, "%s/class/net", sysfs);
  if (list.failed) {
    free(list.devices);
    return bny_fail(BANYAN_ERR_MEMORY, "there is no memory for a list of %d network devices", list.count + 1);
  }
  *devices = list.devices;
  *ndevices = list.count;
  return BANYAN_OK;
}

/* ---- the choice -------------------------------------------------------------------------------------------------- */

typedef struct choosing {
  const bny_net_device *devices;
  int32_t ndevices;
  bool *taken; /* by device */
} choosing;

/* An adapter's name without a port means all of its ports. */
static bool is_meant(const char *pattern, const bny_net_device *device) {
  char adapter[sizeof device->name];
  snprintf(adapter, sizeof adapter, "%.*s", device->is_adapter ? (int)strcspn(device->name, ":") : 63, device->name);
  return fnmatch(pattern, device->name, 0) == 0 || fnmatch(pattern, adapter, 0) == 0;
}

static banyan_status reject(const choosing *c, const char *option, const char *format, const char *subject) {
  char text[BNY_ERROR_TEXT_BYTES], what[160];
  size_t length = 0;
  snprintf(what, sizeof what, format, subject);
  bny_append(text, sizeof text, &length, "BANYAN_NET_DEVICES is \"%.80s\": %s; this node has", option, what);
  for (int32_t i = 0; i < c->ndevices; i++)
    bny_append(text, sizeof text, &length, "%s %s%s", i ? "," : "", c->devices[i].name,
               c->devices[i].is_up ? "" : " (down)");
  return bny_fail(BANYAN_ERR_ARGUMENT, "%s%s", text, c->ndevices ? "" : " none in /sys");
}

static banyan_status mark_named(const choosing *c, const char *option, bool *named) {
  const char *at = option + (*option == '^');
  for (at += *at == '='; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) { /* NCCL's mark of exact names */
    char pattern[64];
    size_t length = strcspn(at, ",");
    bool found = false;
    if (length == 0 || length >= sizeof pattern)
      return reject(c, option, "it takes names between commas, such as mlx5_0,mlx5_1:1 or ^eth0%s", "");
    snprintf(pattern, sizeof pattern, "%.*s", (int)length, at);
    for (int32_t i = 0; i < c->ndevices; i++) {
      bool meant = is_meant(pattern, &c->devices[i]);
      named[i] = named[i] || meant;
      found = found || meant;
    }
    if (!found) return reject(c, option, "there is no network device \"%s\"", pattern);
  }
  return BANYAN_OK;
}

static bool lists(const char *names, const char *name) {
  for (const char *at = names; at && *at; at += strcspn(at, ","), at += *at == ',')
    if (strcspn(at, ",") == strlen(name) && strncmp(at, name, strlen(name)) == 0) return true;
  return false;
}

/* Returns the interface that reached rank 0, unless the user chooses; NULL: there is none. */
static const char *reached_by(const choosing *c, const bny_net_device_wishes *wishes) {
  if (wishes->option || wishes->interface || !wishes->reached) return NULL;
  for (int32_t i = 0; i < c->ndevices; i++)
    if (c->devices[i].is_up && !c->devices[i].is_adapter && strcmp(c->devices[i].name, wishes->reached) == 0)
      return wishes->reached;
  return NULL;
}

static bool is_default(const choosing *c, const bny_net_device *device, const bny_net_device_wishes *wishes) {
  if (!device->is_up || device->is_adapter) return device->is_up;
  const char *only = wishes->interface ? wishes->interface : reached_by(c, wishes);
  if (only) return strcmp(device->name, only) == 0;
  return strcmp(device->name, "lo") != 0 && !lists(wishes->shared, device->name);
}

/* Returns whether an interface is left out because of its address, while others remain. */
static bool leaves_shared(const choosing *c, const bny_net_device_wishes *wishes) {
  bool left = false, any = false;
  for (int32_t i = 0; i < c->ndevices; i++) {
    any = any || c->taken[i];
    left = left || (!c->taken[i] && c->devices[i].is_up && lists(wishes->shared, c->devices[i].name));
  }
  return left && any;
}

static banyan_status mark_allowed(const choosing *c, const bny_net_device_wishes *wishes) {
  bool *named = calloc((size_t)c->ndevices + 1, sizeof *named), any = false;
  if (!named) return bny_fail(BANYAN_ERR_MEMORY, "there is no memory to choose among %d devices", c->ndevices);
  const char *option = wishes->option;
  banyan_status status = option ? mark_named(c, option, named) : BANYAN_OK;
  bool is_list = option && *option != '^';
  for (int32_t i = 0; i < c->ndevices; i++) {
    const bny_net_device *device = &c->devices[i];
    c->taken[i] = is_list ? named[i] && device->is_up : !named[i] && is_default(c, device, wishes);
    any = any || c->taken[i];
  }
  free(named);
  if (status != BANYAN_OK || any || !option) return status;
  return reject(c, option, is_list ? "what it names is down%s" : "it leaves no device that is up%s", "");
}

/* The probe of a NIC may know it by its interface alone. */
static bool is_near(const bny_net_device *device, const char *nearest) {
  for (const char *at = nearest; device->is_adapter && at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    char name[sizeof device->name];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
    if (name[0] && (is_meant(name, device) || strcmp(name, device->interface) == 0)) return true;
  }
  return false;
}

/* Keeps only the adapters near this rank, if some of those taken are near. Returns whether that is so. */
static bool keep_nearest(const choosing *c, const char *nearest) {
  bool any = false;
  for (int32_t i = 0; i < c->ndevices; i++) any = any || (c->taken[i] && is_near(&c->devices[i], nearest));
  for (int32_t i = 0; i < c->ndevices && any; i++)
    if (c->devices[i].is_adapter && !is_near(&c->devices[i], nearest)) c->taken[i] = false;
  return any;
}

static banyan_status write_list(const choosing *c, bny_net_device_choice *choice) {
  size_t bytes = (size_t)c->ndevices * sizeof c->devices->name + 1, length = 0;
  choice->list = calloc(1, bytes);
  if (!choice->list) return bny_fail(BANYAN_ERR_MEMORY, "there is no memory for a list of %d devices", c->ndevices);
  for (int32_t i = 0; i < c->ndevices; i++)
    if (c->taken[i]) bny_append(choice->list, bytes, &length, "%s%s", length ? "," : "", c->devices[i].name);
  return BANYAN_OK;
}

banyan_status bny_net_devices_choose(const bny_net_device_wishes *wishes, const bny_net_device *devices,
                                     int32_t ndevices, bny_net_device_choice *choice) {
  *choice = (bny_net_device_choice){.why = "UCX chooses"};
  if (wishes->ucx) {
    snprintf(choice->why, sizeof choice->why, "UCX_NET_DEVICES%s",
             wishes->option ? ", so BANYAN_NET_DEVICES has no effect" : "");
    return BANYAN_OK;
  }
  choosing c = {devices, ndevices, calloc((size_t)ndevices + 1, sizeof *c.taken)};
  if (!c.taken) return bny_fail(BANYAN_ERR_MEMORY, "there is no memory to choose among %d devices", ndevices);
  banyan_status status = mark_allowed(&c, wishes);
  bool near = status == BANYAN_OK && keep_nearest(&c, wishes->nearest);
  bool is_list = wishes->option && *wishes->option != '^', confined = wishes->interface && !is_list;
  bool reached = reached_by(&c, wishes) != NULL;
  if (status == BANYAN_OK && (wishes->option || confined || reached || near || leaves_shared(&c, wishes))) {
    status = write_list(&c, choice);
    size_t length = 0;
    bny_append(choice->why, sizeof choice->why, &length, "%s%s%s%s%s", wishes->option ? "BANYAN_NET_DEVICES" : "",
               wishes->option && confined ? " and " : "",
               confined  ? "BANYAN_INTERFACE"
               : reached ? "by which rank 0 was reached"
                         : "",
               (wishes->option || confined || reached) && near ? ", " : "", near ? "nearest to this rank" : "");
    if (!choice->why[0]) snprintf(choice->why, sizeof choice->why, "without addresses that other nodes have too");
  }
  free(c.taken);
  return status;
}
