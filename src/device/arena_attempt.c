/* SPDX-License-Identifier: Apache-2.0
 * One attempt to share arenas with one kind of memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/arena_steps.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/fd_passing.h"

/* The export of each rank to the others. */
typedef struct offer {
  uint64_t bytes;
  bny_device_handle handle;
} offer;

/* Everything that is closed at the end of an attempt, whatever its outcome. */
typedef struct transfer {
  int file;
  int *files; /* [nranks] */
  offer *offers;
} transfer;

banyan_status bny_arenas_settle(bny_arenas_work *work, banyan_status own) {
  bny_arenas_report said = {.status = (int32_t)own};
  if (own != BANYAN_OK) snprintf(said.why, sizeof said.why, "%s", banyan_last_error());
  banyan_status status = bny_exchange_all(work->exchange, &said, work->reports, sizeof said);
  if (status != BANYAN_OK) {
    work->joint = false;
    return own == BANYAN_OK ? status : bny_fail(own, "%s", said.why);
  }
  for (int32_t i = 0; i < work->arenas->nranks; i++) {
    const bny_arenas_report *report = &work->reports[i];
    if (report->status == BANYAN_OK) continue;
    /* After a timeout there is no time left, and what is stuck may hold up the next attempt as well. */
    work->joint = report->status != BANYAN_ERR_TIMEOUT;
    return bny_fail((banyan_status)report->status, "rank %d: %.*s", i, BNY_ARENAS_WHY_BYTES - 1, report->why);
  }
  return BANYAN_OK;
}

static bool goes_by_descriptor(const bny_arenas *arenas) {
  return arenas->kind != BNY_MEMORY_FABRIC && arenas->nranks > 1;
}

static banyan_status make_own(bny_arenas_work *work, offer *said, transfer *held) {
  bny_arenas *arenas = work->arenas;
  const bny_device_ops *ops = arenas->device->ops;
  bny_device_memory **own = &arenas->memories[arenas->rank];
  banyan_status status = ops->memory_make(arenas->device, arenas->kind, arenas->bytes, own);
  if (status == BANYAN_OK) status = bny_arenas_verify_clear(work);
  if (status == BANYAN_OK) status = ops->memory_export(*own, &said->handle, &held->file);
  if (status == BANYAN_OK) said->bytes = (*own)->bytes;
  return status;
}

static banyan_status import_one(bny_arenas_work *work, const transfer *held, int32_t peer) {
  bny_arenas *arenas = work->arenas;
  const int32_t *processes = work->config->processes;
  bny_device_offer offered = {
      .kind = arenas->kind,
      .bytes = held->offers[peer].bytes,
      .handle = held->offers[peer].handle,
      .file = held->files[peer],
      .same_process = processes[peer] == processes[arenas->rank],
  };
  /* The size is checked because it comes from another rank. Devices round up by their units, which are some MiB. */
  if (offered.bytes < arenas->bytes || offered.bytes - arenas->bytes > (size_t)1 << 30)
    return bny_fail(BANYAN_ERR_MISMATCH, "the arena of rank %d is of %zu bytes, not %zu", peer, offered.bytes,
                    arenas->bytes);
  banyan_status status = arenas->device->ops->memory_import(arenas->device, &offered, &arenas->memories[peer]);
  if (status == BANYAN_OK) return BANYAN_OK;
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", banyan_last_error());
  return bny_fail(status, "the arena of rank %d cannot be mapped by rank %d: %s", peer, arenas->rank, why);
}

static banyan_status exchange_files(bny_arenas_work *work, transfer *held) {
  bny_fd_passing passing;
  banyan_status status = bny_fd_passing_meet(work->exchange, &passing);
  if (status != BANYAN_OK) return status;
  status = bny_fd_passing_exchange(&passing, held->file, held->files);
  bny_fd_passing_close(&passing);
  return status;
}

static banyan_status import_all(bny_arenas_work *work, transfer *held) {
  bny_arenas *arenas = work->arenas;
  banyan_status status = goes_by_descriptor(arenas) ? exchange_files(work, held) : BANYAN_OK;
  for (int32_t i = 0; i < arenas->nranks && status == BANYAN_OK; i++)
    if (i != arenas->rank) status = import_one(work, held, i);
  return status;
}

static banyan_status run_steps(bny_arenas_work *work, transfer *held) {
  offer said;
  memset(&said, 0, sizeof said);
  banyan_status status = bny_arenas_settle(work, make_own(work, &said, held));
  if (status != BANYAN_OK) return status;
  status = bny_exchange_all(work->exchange, &said, held->offers, sizeof said);
  if (status != BANYAN_OK) {
    work->joint = false;
    return status;
  }
  status = import_all(work, held);
  if (status == BANYAN_OK) status = bny_arenas_verify_write(work);
  status = bny_arenas_settle(work, status);
  if (status == BANYAN_OK) status = bny_arenas_settle(work, bny_arenas_verify_read(work));
  if (status == BANYAN_OK) status = bny_arenas_settle(work, bny_arenas_verify_clear(work));
  return status;
}

banyan_status bny_arenas_attempt(bny_arenas_work *work, bny_memory_kind kind) {
  bny_arenas *arenas = work->arenas;
  size_t nranks = (size_t)arenas->nranks;
  transfer held = {.file = -1};
  held.files = malloc(nranks * sizeof *held.files);
  held.offers = calloc(nranks, sizeof *held.offers);
  banyan_status status;
  arenas->kind = kind;
  work->joint = true;
  work->epoch++;
  if (held.files && held.offers) {
    for (size_t i = 0; i < nranks; i++) held.files[i] = -1;
    status = run_steps(work, &held);
    for (size_t i = 0; i < nranks; i++)
      if (held.files[i] >= 0) close(held.files[i]);
  } else {
    status = bny_arenas_settle(work,
                               bny_fail(BANYAN_ERR_MEMORY, "out of memory for the arenas of %d ranks", arenas->nranks));
  }
  if (held.file >= 0) close(held.file);
  free(held.offers);
  free(held.files);
  if (status != BANYAN_OK) bny_arenas_release(arenas);
  return status;
}

void bny_arenas_release(bny_arenas *arenas) {
  if (arenas->stuck) {
    bny_log(BNY_LOG_WARN, "device %d still works on arenas that were given up; they stay until the process ends",
            arenas->device->facts.ordinal);
    return;
  }
  for (int32_t i = arenas->nranks - 1; i >= 0; i--) {
    if (i != arenas->rank) arenas->device->ops->memory_free(arenas->memories[i]);
    if (i != arenas->rank) arenas->memories[i] = NULL;
  }
  arenas->device->ops->memory_free(arenas->memories[arenas->rank]);
  arenas->memories[arenas->rank] = NULL;
}
