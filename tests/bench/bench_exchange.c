/* SPDX-License-Identifier: Apache-2.0
 * Measures UCX without banyan between two ranks, for comparison. Messages alternate in direction, as in ucx_perftest,
 * and then go both ways at once, as in a combine of two ranks.
 *
 *     tests/hosts/hosts 2x1 -- build/tests/bench/bench_exchange [BYTES]...     default 520 16640
 *
 * It sends active messages like src/transport/ucx/message.c, but without a header, and the receiver ignores the data.
 * It prints medians of half a round trip, or of two successive exchanges. */
#ifdef HAVE_UCX
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan.h"
#include "base/clock.h"
#include "tools/common/util.h"
#include "transport/ucx/library.h"

enum { ROUNDS = 4000, WARM_UP = 500, BYTES_MOST = 60 << 10, ADDRESS_BYTES = 4092, MESSAGE = 1 };

typedef struct side {
  banyan_bootstrap bootstrap;
  bny_ucx ucx;
  ucp_context_h context;
  ucp_worker_h worker;
  ucp_ep_h peer;
  int64_t come, awaited; /* numbers of messages */
  char *payload;
} side;

typedef struct worker_address {
  uint32_t bytes;
  char address[ADDRESS_BYTES];
} worker_address;

static void give_up(const char *what, const char *why) {
  fprintf(stderr, "bench_exchange: %s: %s\n", what, why);
  exit(1);
}

static void need(const side *self, ucs_status_t status, const char *what) {
  if (status != UCS_OK) give_up(what, self->ucx.ucs_status_string(status));
}

static ucs_status_t receive(void *argument, const void *header, size_t header_bytes, void *payload, size_t bytes,
                            const ucp_am_recv_param_t *param) {
  side *self = argument;
  (void)header, (void)header_bytes, (void)payload, (void)bytes, (void)param;
  self->come++;
  return UCS_OK;
}

static void release(void *request, ucs_status_t status, void *argument) {
  side *self = argument;
  need(self, status, "a message");
  self->ucx.ucp_request_free(request);
}

static void send_message(side *self, size_t bytes) {
  ucp_request_param_t param = {
      .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
      .flags = UCP_AM_SEND_FLAG_EAGER,
      .cb.send = release,
      .user_data = self,
  };
  ucs_status_ptr_t request = self->ucx.ucp_am_send_nbx(self->peer, MESSAGE, NULL, 0, self->payload, bytes, &param);
  if (UCS_PTR_IS_ERR(request)) need(self, UCS_PTR_STATUS(request), "sending");
}

static void await_message(side *self) {
  self->awaited++;
  while (self->come < self->awaited) self->ucx.ucp_worker_progress(self->worker);
}

/* ---- connecting -------------------------------------------------------------------------------------------------- */

static void make_worker(side *self) {
  ucp_config_t *config;
  ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
  ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                .thread_mode = UCS_THREAD_MODE_SERIALIZED};
  ucp_am_handler_param_t handler = {
      .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                    UCP_AM_HANDLER_PARAM_FIELD_ARG,
      .id = MESSAGE,
      .flags = UCP_AM_FLAG_WHOLE_MSG,
      .cb = receive,
      .arg = self,
  };
  need(self, self->ucx.ucp_config_read(NULL, NULL, &config), "variables");
  if (!getenv("UCX_TLS")) self->ucx.ucp_config_modify(config, "TLS", "^sm");
  need(self, self->ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &self->context), "context");
  self->ucx.ucp_config_release(config);
  need(self, self->ucx.ucp_worker_create(self->context, &worker, &self->worker), "worker");
  need(self, self->ucx.ucp_worker_set_am_recv_handler(self->worker, &handler), "handler");
}

static void gather(const side *self, const void *mine, void *all, size_t bytes) {
  const int64_t timeout_ns = 20000000000;
  if (self->bootstrap.allgather(self->bootstrap.context, mine, all, bytes, timeout_ns) != 0)
    give_up("allgather", banyan_last_error());
}

/* The first rank connects first, because UCX before 1.14 handles simultaneous connections badly. */
static void connect_peer(side *self) {
  static worker_address mine, both[2];
  ucp_address_t *address;
  size_t bytes;
  need(self, self->ucx.ucp_worker_get_address(self->worker, &address, &bytes), "address");
  if (bytes > sizeof mine.address) give_up("address", "too long");
  mine.bytes = (uint32_t)bytes;
  memcpy(mine.address, address, bytes);
  self->ucx.ucp_worker_release_address(self->worker, address);
  gather(self, &mine, both, sizeof mine);
  ucp_ep_params_t params = {
      .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
      .address = (const ucp_address_t *)(const void *)both[!self->bootstrap.rank].address,
      .err_mode = UCP_ERR_HANDLING_MODE_PEER,
  };
  if (self->bootstrap.rank == 1) await_message(self);
  need(self, self->ucx.ucp_ep_create(self->worker, &params, &self->peer), "endpoint");
  send_message(self, 1);
  if (self->bootstrap.rank == 0) await_message(self);
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static double median_us(side *self, size_t bytes, bool both_ways) {
  static double times[ROUNDS];
  int64_t before = bny_clock_ns();
  for (int i = -WARM_UP; i < ROUNDS; i++) {
    if (both_ways || self->bootstrap.rank == 0) send_message(self, bytes);
    await_message(self);
    if (!both_ways && self->bootstrap.rank == 1) send_message(self, bytes);
    if (both_ways) {
      send_message(self, bytes);
      await_message(self);
    }
    int64_t now = bny_clock_ns();
    if (i >= 0) times[i] = (double)(now - before) / 2e3;
    before = now;
  }
  return tool_percentile(times, ROUNDS, 50);
}

int main(int argc, char **argv) {
  static const char *const defaults[] = {"520", "16640"};
  side self = {.come = 0};
  banyan_env *env;
  int count = argc > 1 ? argc - 1 : 2;
  if (banyan_env_create(20000000000, &env, &self.bootstrap) != BANYAN_OK) give_up("bootstrap", banyan_last_error());
  if (self.bootstrap.nranks != 2) give_up("bootstrap", "this is for two ranks");
  if (bny_ucx_load(&self.ucx) != BANYAN_OK) give_up("UCX", banyan_last_error());
  char *memory = aligned_alloc(4096, BYTES_MOST + 4096);
  if (!memory) give_up("memory", "none");
  memset(memory, 1, BYTES_MOST + 4096);
  self.payload = memory + 2048; /* see NETWORK_PAGE_OFFSET in src/exec/bind.c */
  make_worker(&self);
  connect_peer(&self);
  for (int i = 0; i < count; i++) {
    long bytes = strtol(argc > 1 ? argv[i + 1] : defaults[i], NULL, 10);
    if (bytes < 1 || bytes > BYTES_MOST) give_up("usage", "sizes are 1 to 61440 bytes");
    double one_way = median_us(&self, (size_t)bytes, false), both_ways = median_us(&self, (size_t)bytes, true);
    if (self.bootstrap.rank == 0)
      printf("%ld bytes: one way %.2f us, both ways at once %.2f us\n", bytes, one_way, both_ways);
  }
  int32_t done = 1, all[2];
  gather(&self, &done, all, sizeof done);
  self.ucx.ucp_worker_destroy(self.worker);
  self.ucx.ucp_cleanup(self.context);
  banyan_env_destroy(env);
  free(memory);
  return 0;
}
#else
#include <stdio.h>

int main(void) {
  printf("skipped: built without UCX\n");
  return 77;
}
#endif
