/* SPDX-License-Identifier: Apache-2.0
 * One try to share arenas in one way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/arena_steps.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/fd_passing.h"

/* What each rank tells the others about its arena. */
typedef struct offer {
  uint64_t bytes;
  bny_device_handle handle;
} offer;

/* What is closed at the end of an attempt, however it went. */
typedef struct hands {
  int file;
  int *files; /* [nranks] */
  offer *offers;
} hands;

banyan_status bny_share_settle(bny_share_work *work, banyan_status own) {
  bny_share_report said = {.status = (int32_t)own};
  if (own != BANYAN_OK) snprintf(said.why, sizeof said.why, "%s", banyan_last_error());
  banyan_status status = bny_exchange_all(work->exchange, &said, work->reports, sizeof said);
  if (status != BANYAN_OK) {
    work->joint = false;
    return own == BANYAN_OK ? status : bny_fail(own, "%s", said.why);
  }
  for (int32_t i = 0; i < work->share->nranks; i++) {
    const bny_share_report *report = &work->reports[i];
    if (report->status == BANYAN_OK) continue;
    /* After a timeout there is no time left, and what is stuck may hold the next try up as well. */
    work->joint = report->status != BANYAN_ERR_TIMEOUT;
    return bny_fail((banyan_status)report->status, "rank %d: %.*s", i, BNY_SHARE_WHY_BYTES - 1, report->why);
  }
  return BANYAN_OK;
}

static bool goes_by_descriptor(const bny_share *share) { return share->kind != BNY_MEMORY_FABRIC && share->nranks > 1; }

static banyan_status make_own(bny_share_work *work, offer *said, hands *held) {
  bny_share *share = work->share;
  const bny_device_ops *ops = share->device->ops;
  bny_device_memory **own = &share->memories[share->rank];
  banyan_status status = ops->memory_make(share->device, share->kind, share->bytes, own);
  if (status == BANYAN_OK) status = bny_share_verify_clear(work);
  if (status == BANYAN_OK) status = ops->memory_export(*own, &said->handle, &held->file);
  if (status == BANYAN_OK) said->bytes = (*own)->bytes;
  return status;
}

static banyan_status import_one(bny_share_work *work, const hands *held, int32_t peer) {
  bny_share *share = work->share;
  const int32_t *processes = work->config->processes;
  bny_device_offer offered = {
    .kind = share->kind,
    .bytes = held->offers[peer].bytes,
    .handle = held->offers[peer].handle,
    .file = held->files[peer],
    .same_process = processes[peer] == processes[share->rank],
  };
  /* Bounded, for it comes from elsewhere: devices round up by their units, which are some MiB. */
  if (offered.bytes < share->bytes || offered.bytes - share->bytes > (size_t)1 << 30)
    return bny_fail(BANYAN_ERR_MISMATCH, "the arena of rank %d is of %zu bytes, not %zu", peer, offered.bytes, share->bytes);
  banyan_status status = share->device->ops->memory_import(share->device, &offered, &share->memories[peer]);
  if (status == BANYAN_OK) return BANYAN_OK;
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", banyan_last_error());
  return bny_fail(status, "the arena of rank %d cannot be mapped by rank %d: %s", peer, share->rank, why);
}

static banyan_status trade_files(bny_share_work *work, hands *held) {
  bny_handover handover;
  banyan_status status = bny_handover_meet(work->exchange, &handover);
  if (status != BANYAN_OK) return status;
  status = bny_handover_trade(&handover, held->file, held->files);
  bny_handover_close(&handover);
  return status;
}

static banyan_status import_all(bny_share_work *work, hands *held) {
  bny_share *share = work->share;
  banyan_status status = goes_by_descriptor(share) ? trade_files(work, held) : BANYAN_OK;
  for (int32_t i = 0; i < share->nranks && status == BANYAN_OK; i++)
    if (i != share->rank) status = import_one(work, held, i);
  return status;
}

static banyan_status run_steps(bny_share_work *work, hands *held) {
  offer said;
  memset(&said, 0, sizeof said);
  banyan_status status = bny_share_settle(work, make_own(work, &said, held));
  if (status != BANYAN_OK) return status;
  status = bny_exchange_all(work->exchange, &said, held->offers, sizeof said);
  if (status != BANYAN_OK) {
    work->joint = false;
    return status;
  }
  status = import_all(work, held);
  if (status == BANYAN_OK) status = bny_share_verify_write(work);
  status = bny_share_settle(work, status);
  if (status == BANYAN_OK) status = bny_share_settle(work, bny_share_verify_read(work));
  if (status == BANYAN_OK) status = bny_share_settle(work, bny_share_verify_clear(work));
  return status;
}

banyan_status bny_share_attempt(bny_share_work *work, bny_memory_kind kind) {
  bny_share *share = work->share;
  size_t nranks = (size_t)share->nranks;
  hands held = {.file = -1};
  held.files = malloc(nranks * sizeof *held.files);
  held.offers = calloc(nranks, sizeof *held.offers);
  banyan_status status;
  share->kind = kind;
  work->joint = true;
  work->epoch++;
  if (held.files && held.offers) {
    for (size_t i = 0; i < nranks; i++) held.files[i] = -1;
    status = run_steps(work, &held);
    for (size_t i = 0; i < nranks; i++)
      if (held.files[i] >= 0) close(held.files[i]);
  } else {
    status = bny_share_settle(work, bny_fail(BANYAN_ERR_MEMORY, "out of memory for the arenas of %d ranks", share->nranks));
  }
  if (held.file >= 0) close(held.file);
  free(held.offers);
  free(held.files);
  if (status != BANYAN_OK) bny_share_release(share);
  return status;
}

void bny_share_release(bny_share *share) {
  if (share->stuck) {
    bny_log(BNY_LOG_WARN, "device %d is still at work on arenas that nobody wants any more; they stay until the process ends",
            share->device->facts.ordinal);
    return;
  }
  for (int32_t i = share->nranks - 1; i >= 0; i--) {
    if (i != share->rank) share->device->ops->memory_free(share->memories[i]);
    if (i != share->rank) share->memories[i] = NULL;
  }
  share->device->ops->memory_free(share->memories[share->rank]);
  share->memories[share->rank] = NULL;
}
