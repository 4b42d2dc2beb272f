/* SPDX-License-Identifier: Apache-2.0
 * A communicator's device: opened, its memory shared with the other ranks', and what its kernels tell. */
#include "comm.h"
#include "device/device.h"
#include "status.h"

/* Local. */
static banyan_status open_engine(const bny_settings *settings, bny_engine **engine) {
  const bny_options *options = &settings->options;
  bny_device *device = NULL;
  banyan_status status = bny_device_open_named(settings->device, options->cuda_library, &device);
  if (status != BANYAN_OK) return status;
  bny_engine_config config = {.image = options->cuda_image, .sm_limit = (int32_t)options->device_sms};
  return bny_engine_make(device, &config, engine);
}

banyan_status bny_comm_join_device(banyan_comm *comm, const bny_exchange *exchange, const bny_settings *settings,
                                   const bny_placement *place) {
  bny_share_config share = {.bytes = comm->arena_bytes, .hosts = place->host_of, .processes = place->process_of};
  bny_engine *engine = NULL;
  banyan_status status = bny_share_read_fallback(settings->options.device_fallback, &share.strict);
  if (status == BANYAN_OK) status = open_engine(settings, &engine);
  comm->device.engine = engine;
  status = bny_comm_confirm(exchange, status);
  if (status != BANYAN_OK) return status;
  status = bny_engine_connect(engine, exchange, &share, settings->timeout_ns);
  if (status == BANYAN_OK) status = bny_device_exec_make(engine, &comm->device);
  return bny_comm_confirm(exchange, status);
}

void bny_comm_leave_device(banyan_comm *comm) {
  bny_engine_free(comm->device.engine);
  comm->device.engine = NULL;
}

/* A failure of kernels becomes one of the communicator, whose text says what kernels cannot. */
static banyan_status take_fault(banyan_comm *comm, const bny_device_fault *fault) {
  bny_exec *exec = comm->exec;
  banyan_status status = (banyan_status)fault->status;
  int32_t culprit = fault->culprit;
  switch (status) {
  case BANYAN_ERR_TIMEOUT:
    return bny_exec_fail(exec, status, culprit, "rank %d did not come in time to a run on devices (noticed by rank %d)",
                         culprit, fault->reporter);
  case BANYAN_ERR_DATA:
    return bny_exec_fail(exec, status, culprit,
                         "rank %d gave statistics that are NaN or infinite without being declared empty, in row %u", culprit,
                         fault->detail);
  case BANYAN_ERR_ABORTED:
    return bny_exec_fail(exec, status, culprit, "rank %d called banyan_comm_abort()", culprit);
  default:
    return bny_exec_fail(exec, status, culprit, "a run on devices failed on rank %d (%s)", culprit,
                         banyan_status_string(status));
  }
}

banyan_status bny_comm_check(banyan_comm *comm) {
  bny_engine *engine = comm->device.engine;
  banyan_status status = bny_exec_check(comm->exec, NULL);
  if (!engine) return status;
  if (status == BANYAN_OK) {
    bny_device_fault fault = bny_engine_fault(engine);
    if (fault.status == BANYAN_OK) return BANYAN_OK;
    status = take_fault(comm, &fault);
  }
  /* Kernels that wait end. */
  bny_engine_abort(engine, status, comm->exec->failure.culprit);
  return status;
}
