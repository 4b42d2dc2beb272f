/* SPDX-License-Identifier: Apache-2.0
 * Makes UCX's context and worker for one communicator, or reports why they cannot be made. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/interface.h"
#include "base/log.h"
#include "base/options.h"
#include "base/status.h"
#include "transport/ucx/ucx.h"

/* Returns the end of an error text, which names a file system that UCX needs and cannot read; "" if there is none. */
static const char *lacks(void) {
  if (access("/proc/sys/kernel/random/boot_id", R_OK) != 0)
    return "; /proc cannot be read here, without which UCX does not work and each rank counts as a node of its own: "
           "mount it";
  return access("/sys/class/net", R_OK) != 0 ? "; /sys cannot be read here, where UCX looks for devices: mount it" : "";
}

static banyan_status fail(const bny_net *net, ucs_status_t status, const char *what) {
  const char *logged = bny_ucx_captured_log();
  return bny_fail(BANYAN_ERR_SYSTEM, "UCX %s: %s%s%s%s%s", what, net->ucx.ucs_status_string(status),
                  *logged ? " (" : "", logged, *logged ? ")" : "", lacks());
}

/* ---- the network ------------------------------------------------------------------------------------------------- */

static bool begins_as_one(const char *name, const char *const *beginnings, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (strncmp(name, beginnings[i], strlen(beginnings[i])) == 0) return true;
  return false;
}

/* Parses a list that UCX prints for people: "resource 2 : md 1 dev 2 flags -- tcp/eth0". A transport with an unknown
 * name counts as one that leaves the node. */
static bny_network network_of(const char *list) {
  static const char flags[] = "flags ";
  static const char *const within[] = {"self", "posix", "sysv", "cma", "knem", "xpmem", "cuda", "gdr", "rocm", "ze_"};
  static const char *const rdma[] = {"-- rc_", "-- dc_", "-- ud_", "-- srd", "-- ugni", "-- gga"};
  bny_network found = BNY_NETWORK_NONE;
  for (const char *at = strstr(list, flags); at; at = strstr(at, flags)) {
    at += sizeof flags - 1;
    const char *name = strchr(at, ' ');
    if (!name) break;
    if (begins_as_one(at, rdma, sizeof rdma / sizeof rdma[0])) return BNY_NETWORK_RDMA;
    if (!begins_as_one(name + 1, within, sizeof within / sizeof within[0])) found = BNY_NETWORK_TCP;
  }
  return found;
}

bny_network bny_net_find_network(const bny_net *net) {
  char *text = NULL;
  size_t bytes;
  FILE *stream = open_memstream(&text, &bytes);
  if (!stream) return BNY_NETWORK_TCP;
  net->ucx.ucp_context_print_info(net->context, stream);
  bny_network found = fclose(stream) == 0 ? network_of(text) : BNY_NETWORK_TCP;
  free(text);
  return found;
}

static banyan_status fail_without_network(void) {
  const char *transports = getenv("UCX_TLS"), *devices = getenv("UCX_NET_DEVICES"), *logged = bny_ucx_captured_log();
  char set[192] = "";
  size_t length = 0;
  if (transports) bny_append(set, sizeof set, &length, "; UCX_TLS is \"%.60s\"", transports);
  if (devices) bny_append(set, sizeof set, &length, "; UCX_NET_DEVICES is \"%.60s\"", devices);
  return bny_fail(BANYAN_ERR_SYSTEM, "UCX has no transport here that leads to other nodes%s%s%s%s", set, lacks(),
                  *logged ? "; UCX: " : "", logged);
}

/* ---- the devices ------------------------------------------------------------------------------------------------- */

/* By default UCX listens at each interface that it may use, without checking who connects. BANYAN_INTERFACE and
 * BANYAN_NET_DEVICES confine it. */
static banyan_status choose_devices(bny_net *net, const bny_net_config *config) {
  bny_interface found;
  bny_net_device *devices = NULL;
  int32_t ndevices = 0;
  bny_net_device_wishes wishes = {.option = config->devices,
                                  .nearest = config->nearest,
                                  .ucx = getenv("UCX_NET_DEVICES"),
                                  .reached = config->reached,
                                  .shared = config->shared};
  banyan_status status = BANYAN_OK;
  if (config->interface && !wishes.ucx) {
    status = bny_interface_find(config->interface, AF_UNSPEC, NULL, &found);
    wishes.interface = found.is_routed ? NULL : found.name; /* other interfaces lead to it */
  }
  if (status == BANYAN_OK) status = bny_net_devices_find("/sys", &devices, &ndevices);
  if (status == BANYAN_OK) status = bny_net_devices_choose(&wishes, devices, ndevices, &net->devices);
  free(devices);
  if (status == BANYAN_ERR_MEMORY) bny_fail(status, "rank %d: %s", net->transport.rank, banyan_last_error());
  if (status != BANYAN_OK) return status;
  const char *list = wishes.ucx ? wishes.ucx : net->devices.list ? net->devices.list : "all devices";
  snprintf(net->transport.devices, sizeof net->transport.devices, "%.120s%s (%s)", list,
           strlen(list) > 120 ? "..." : "", net->devices.why);
  if (wishes.ucx && wishes.option)
    bny_log(BNY_LOG_WARN, "BANYAN_NET_DEVICES=%.80s has no effect, because UCX_NET_DEVICES=%.80s is set", wishes.option,
            wishes.ucx);
  return BANYAN_OK;
}

/* With one rail, reports stay behind the data that was sent before them. */
static void warn_of_rails(void) {
  static const char *const variables[] = {"UCX_MAX_EAGER_LANES", "UCX_MAX_EAGER_RAILS"};
  for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
    const char *text = getenv(variables[i]);
    if (text && strcmp(text, "1") != 0)
      bny_log(BNY_LOG_WARN, "%s=%.20s lets reports of ranks overtake their data, so that calls may fail with %s",
              variables[i], text, banyan_status_string(BANYAN_ERR_MISMATCH));
  }
}

/* ---- start ------------------------------------------------------------------------------------------------------- */

/* UCX may end the process, or leave threads behind, if it runs out of descriptors. So there must be enough before it
 * starts. */
static banyan_status check_descriptors(void) {
  enum { NEEDED = 24 };
  int tried[NEEDED], count = 0;
  while (count < NEEDED && (tried[count] = eventfd(0, EFD_CLOEXEC)) >= 0) count++;
  int error = errno;
  for (int i = 0; i < count; i++) close(tried[i]);
  if (count == NEEDED) return BANYAN_OK;
  return bny_fail(
      BANYAN_ERR_SYSTEM,
      "UCX needs some %d file descriptors, and this process can open %d more: %s. Raise the limit (ulimit -n)", NEEDED,
      count, strerror(error));
}

/* The context serves between nodes; the user's settings of UCX take precedence. Only RDMA needs a cache of registered
 * memory, which watches all that the process maps and unmaps. */
static banyan_status make_context(bny_net *net, bool puts, bool cache) {
  ucp_config_t *config;
  banyan_status status = check_descriptors();
  if (status != BANYAN_OK) return status;
  ucs_status_t made = net->ucx.ucp_config_read(NULL, NULL, &config);
  if (made != UCS_OK) return fail(net, made, "cannot read its UCX_* variables");
  if (!getenv("UCX_TLS")) net->ucx.ucp_config_modify(config, "TLS", "^sm");
  unsigned major, minor, patch;
  net->ucx.ucp_get_version(&major, &minor, &patch);
  /* Otherwise TCP would wait minutes for a node whose packets are dropped. */
  if (!cache && !getenv("UCX_TCP_CONN_NB"))
    net->ucx.ucp_config_modify(config, major > 1 || minor >= 17 ? "TCP_CONN_NB" : "CONN_NB", "y");
  /* A rank that closes the connection to a node that does not answer would seem dead to that node. Deadlines bound the
   * wait instead. */
  if (!getenv("UCX_TCP_KEEPIDLE"))
    net->ucx.ucp_config_modify(config, major > 1 || minor >= 17 ? "TCP_KEEPIDLE" : "KEEPIDLE", "inf");
  /* 1.13 and later */
  if (!cache && !getenv("UCX_RCACHE_ENABLE")) net->ucx.ucp_config_modify(config, "RCACHE_ENABLE", "n");
  ucp_params_t params = {
      .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
      .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP | (puts ? UCP_FEATURE_RMA : 0),
      .name = "banyan",
  };
  if (net->devices.list) made = net->ucx.ucp_config_modify(config, "NET_DEVICES", net->devices.list);
  if (made != UCS_OK) status = fail(net, made, "takes no list of devices");
  if (status == BANYAN_OK) {
    made = net->ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &net->context);
    if (made != UCS_OK) status = fail(net, made, "cannot start");
  }
  net->ucx.ucp_config_release(config);
  return status;
}

/* Requests puts only where they may be used, because they change how UCX connects. */
static banyan_status make_context_for_network(bny_net *net) {
  banyan_status status = make_context(net, net->wish == BNY_NET_PUT_EMULATED, false);
  if (status != BANYAN_OK) return status;
  bny_network network = bny_net_find_network(net);
  if (network == BNY_NETWORK_NONE) return fail_without_network();
  if (network != BNY_NETWORK_RDMA) return BANYAN_OK;
  net->ucx.ucp_cleanup(net->context);
  net->context = NULL;
  return make_context(net, net->wish != BNY_NET_PUT_OFF, true);
}

static void *return_at_once(void *argument) { return argument; }

/* UCX 1.13 ends the process if it cannot make its thread. */
static banyan_status try_thread(void) {
  pthread_t thread;
  int error = pthread_create(&thread, NULL, return_at_once, NULL);
  if (error)
    return bny_fail_errno(BANYAN_ERR_SYSTEM, error,
                          "UCX needs a thread of its own, and this process cannot make one (raise ulimit -u, or "
                          "pids.max of its control group)");
  pthread_join(thread, NULL);
  return BANYAN_OK;
}

static banyan_status make_worker(bny_net *net) {
  ucp_worker_params_t params = {
      .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
      .thread_mode = UCS_THREAD_MODE_SERIALIZED, /* any thread may abort */
  };
  ucs_status_t status = net->ucx.ucp_worker_create(net->context, &params, &net->worker);
  if (status != UCS_OK) return fail(net, status, "makes no worker");
  status = net->ucx.ucp_worker_get_efd(net->worker, &net->event_fd);
  if (status != UCS_OK) return fail(net, status, "has no transport that can be slept on");
  return bny_net_listen(net);
}

banyan_status bny_net_start(bny_net *net, const bny_net_config *config, ucp_address_t **address,
                            size_t *address_bytes) {
  banyan_status status = bny_ucx_load(&net->ucx);
  if (status != BANYAN_OK) return status;
  bny_ucx_capture_log(&net->ucx, true);
  status = try_thread();
  if (status == BANYAN_OK) status = choose_devices(net, config);
  if (status == BANYAN_OK) warn_of_rails();
  if (status == BANYAN_OK) status = make_context_for_network(net);
  if (status == BANYAN_OK) status = make_worker(net);
  if (status == BANYAN_OK) {
    ucs_status_t got = net->ucx.ucp_worker_get_address(net->worker, address, address_bytes);
    if (got != UCS_OK) status = fail(net, got, "has no address");
  }
  bny_ucx_capture_log(&net->ucx, false);
  return status;
}

banyan_status bny_net_describe(char *text, size_t bytes) {
  bny_net net = {.peers = NULL};
  banyan_status status = bny_ucx_load(&net.ucx);
  if (status != BANYAN_OK) return status;
  bny_ucx_capture_log(&net.ucx, true);
  status = try_thread();
  bny_net_config config = {.devices = bny_option_text("BANYAN_NET_DEVICES"),
                           .interface = bny_option_text("BANYAN_INTERFACE")};
  if (status == BANYAN_OK) status = choose_devices(&net, &config);
  if (status == BANYAN_OK) status = make_context(&net, false, false);
  if (status == BANYAN_OK && bny_net_find_network(&net) == BNY_NETWORK_NONE) status = fail_without_network();
  bny_ucx_capture_log(&net.ucx, false);
  if (status == BANYAN_OK)
    snprintf(text, bytes, "UCX %.40s, over %s, %s", net.ucx.ucp_get_version_string(),
             bny_net_find_network(&net) == BNY_NETWORK_RDMA ? "RDMA" : "TCP", net.transport.devices);
  if (net.context) net.ucx.ucp_cleanup(net.context);
  free(net.devices.list);
  return status;
}
