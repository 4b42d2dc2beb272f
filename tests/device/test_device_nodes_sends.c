/* SPDX-License-Identifier: Apache-2.0
 * Messages for devices of several nodes state the kind of their memory to UCX. Otherwise UCX would query the CUDA
 * driver, or treat unknown memory as host memory. A query could deadlock: kernels wait for the thread that makes it,
 * and the driver may wait for kernels. Puts state the kind too, but testing them needs RDMA, or ranks that stay in
 * calls. */
#include "comm/comm.h"
#include "tests/device/device_nodes.h"
#include "device/proxy.h"

#include "transport/ucx/ucx.h"

/* Counts of sends since the last check. */
static struct {
  __typeof__(&ucp_am_send_nbx) send;
  atomic_int host, unknown;
} seen;

static void note(const ucp_request_param_t *param) {
  bool is_host = param->op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE && param->memory_type == UCS_MEMORY_TYPE_HOST;
  atomic_fetch_add(is_host ? &seen.host : &seen.unknown, 1);
}

static ucs_status_ptr_t send_noted(ucp_ep_h endpoint, unsigned id, const void *header, size_t header_bytes,
                                   const void *payload, size_t count, const ucp_request_param_t *param) {
  note(param);
  return seen.send(endpoint, id, header, header_bytes, payload, count, param);
}

static void combine_noted(world_rank *self) {
  bny_net *net = bny_net_of(self->comm->device.proxy->transport);
  const combine_attempt *attempt = &((const combine_task *)self->argument)->attempts[0];
  if (self->rank == 0) { /* no send is in flight */
    seen.send = net->ucx.ucp_am_send_nbx;
    bny_net_take(net);
    net->ucx.ucp_am_send_nbx = send_noted;
    bny_net_give(net);
  }
  if (!world_meet(self)) return;
  bool good = world_ok(self, device_nodes_start(self, attempt, COMBINE_FIRST), "combine") && device_nodes_finish(self);
  world_meet(self); /* all messages have arrived */
  if (!good || self->rank != 0) return;
  int unknown = atomic_load(&seen.unknown);
  world_check(self, unknown == 0, "%d sends of memory that UCX asks the driver about", unknown);
  world_check(self, atomic_load(&seen.host) > 0, "nothing was sent");
}

TEST(memory_is_said_to_be_of_the_host) {
  combine_task *of = combine_task_new(2, 51);
  combine_group group = combine_group_make(of, 1, 4, 16);
  combine_task_add(of, &group, (banyan_combine_desc){.wire = BANYAN_F32}, true);
  device_nodes_run(of, combine_noted, (world_setup){.on = NULL});
  combine_task_free(of);
}

int main(void) {
  if (!world_has_network()) return 77;
  return world_main(suite_of("device_nodes_sends", 60));
}
