/* SPDX-License-Identifier: Apache-2.0
 * BANYAN_DEVICE_TUNE: combines on devices are measured when a communicator is made, or the times are read from a
 * file. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm.h"
#include "device/tune.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"

banyan_status bny_tune_parse(const char *text, bny_tune *tune) {
  bny_tune read = {.way = BNY_TUNE_OFF};
  if (text && strcmp(text, "create") == 0)
    read.way = BNY_TUNE_CREATE;
  else if (text && strchr(text, '/'))
    read = (bny_tune){BNY_TUNE_FILE, text};
  else if (text && strcmp(text, "off") != 0)
    return bny_fail(BANYAN_ERR_ARGUMENT,
                    "BANYAN_DEVICE_TUNE is \"%.40s\"; it takes off, create, or the path of a file, with a / in it",
                    text);
  *tune = read;
  return BANYAN_OK;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* *found: the file exists. */
static banyan_status read_file(const banyan_comm *comm, const char *path, bny_measured *measured, bool *found) {
  FILE *file = bny_file_read(path);
  *found = file != NULL;
  if (!file && errno == ENOENT) return BANYAN_OK;
  if (!file) return bny_fail_errno(BANYAN_ERR_ARGUMENT, errno, "BANYAN_DEVICE_TUNE: %.200s cannot be read", path);
  banyan_status status = bny_measured_read(file, path, measured);
  fclose(file);
  const char *machine = comm->device.engine->device->facts.name;
  if (status == BANYAN_OK && (measured->nranks != comm->nranks || strcmp(measured->machine, machine) != 0))
    status = bny_fail(
        BANYAN_ERR_ARGUMENT,
        "BANYAN_DEVICE_TUNE: %.200s was measured by %d ranks with %s, and these are %d with %s; name another file",
        path, measured->nranks, measured->machine, comm->nranks, machine);
  return status;
}

/* The file appears complete or not at all, because other programs may be reading it. A failure to write it is only a
 * warning. */
static void write_file(const char *path, const bny_measured *measured) {
  char beside[4096];
  int length = snprintf(beside, sizeof beside, "%s.%ld", path, (long)getpid());
  FILE *file = length > 0 && (size_t)length < sizeof beside ? fopen(beside, "wxe") : NULL;
  bny_file_guard guard;
  bny_file_guard_begin(&guard);
  bool good = file && bny_measured_write(measured, file) == 0;
  if (file && fclose(file) != 0) good = false;
  bny_file_guard_end(&guard);
  if (good && rename(beside, path) != 0) good = false;
  if (!good) {
    bny_log(BNY_LOG_WARN, "BANYAN_DEVICE_TUNE: measured times cannot be written to %s (%s)", path, strerror(errno));
    if (file) unlink(beside);
  }
}

/* ---- all ranks --------------------------------------------------------------------------------------------------- */

typedef struct message {
  int32_t status;
  int32_t found;
  char why[BNY_ERROR_TEXT_BYTES];
  bny_measured measured;
} message;

/* Memory that a rank may lack. */
typedef struct buffers {
  message *messages; /* of all ranks, and this rank's own; only with a file */
  bny_measured *measured;
  bny_device_tuner *tuner;
} buffers;

static banyan_status make_buffers(const banyan_comm *comm, const bny_tune *tune, buffers *buffers) {
  bool has_file = tune->way == BNY_TUNE_FILE;
  buffers->measured = calloc(1, sizeof *buffers->measured);
  if (has_file) buffers->messages = calloc((size_t)comm->nranks + 1, sizeof *buffers->messages);
  if (!buffers->measured || (has_file && !buffers->messages))
    return bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory for measured times", comm->rank);
  return bny_device_tuner_make(comm->nranks, &buffers->tuner);
}

static void free_buffers(buffers *buffers) {
  free(buffers->messages);
  free(buffers->measured);
  bny_device_tuner_free(buffers->tuner);
}

/* Rank 0 reads, so that ranks agree even if files differ from node to node. *found: rank 0 has one. */
static banyan_status take_from_file(const banyan_comm *comm, const bny_exchange *exchange, const char *path,
                                    const buffers *buffers, bool *found) {
  message *all = buffers->messages, *own = &all[comm->nranks];
  if (comm->rank == 0) {
    bool here = false;
    own->status = (int32_t)read_file(comm, path, &own->measured, &here);
    own->found = here;
    if (own->status != BANYAN_OK) snprintf(own->why, sizeof own->why, "%s", banyan_last_error());
  }
  banyan_status status = bny_exchange_all(exchange, own, all, sizeof *own);
  if (status != BANYAN_OK) return status;
  if (all[0].status != BANYAN_OK)
    return bny_fail((banyan_status)all[0].status, "%.*s", BNY_ERROR_TEXT_BYTES - 1, all[0].why);
  *found = all[0].found;
  *buffers->measured = all[0].measured;
  return BANYAN_OK;
}

static banyan_status measure(banyan_comm *comm, const bny_exchange *exchange, const buffers *buffers) {
  bny_request like = {.collective = BNY_COMBINE,
                      .nranks = comm->nranks,
                      .cost = comm->device.cost,
                      .levels = comm->levels,
                      .outbox_bytes = comm->device.outbox_bytes,
                      .slots_max = comm->transport->slots_max};
  return bny_device_tune(buffers->tuner, &comm->device, exchange, &like, buffers->measured);
}

/* *known: there are times. */
static banyan_status read_or_measure(banyan_comm *comm, const bny_exchange *exchange, const bny_tune *tune,
                                     bool one_process, const buffers *buffers, bool *known) {
  *known = false;
  banyan_status status = BANYAN_OK;
  if (tune->way == BNY_TUNE_FILE) status = take_from_file(comm, exchange, tune->path, buffers, known);
  if (status != BANYAN_OK || *known) return status;
  if (comm->device.engine->arenas->ranks_per_device > 1 && !one_process) {
    if (comm->rank == 0)
      bny_log(BNY_LOG_WARN,
              "BANYAN_DEVICE_TUNE: processes that share a device take turns on it; combines are not measured");
    return BANYAN_OK;
  }
  status = measure(comm, exchange, buffers);
  *known = status == BANYAN_OK;
  if (*known && tune->way == BNY_TUNE_FILE && comm->rank == 0) write_file(tune->path, buffers->measured);
  return status;
}

banyan_status bny_comm_tune(banyan_comm *comm, const bny_exchange *exchange, const bny_settings *settings,
                            bool one_process) {
  bny_tune tune = {.way = BNY_TUNE_OFF};
  buffers buffers = {0};
  bool known = false;
  banyan_status status = bny_tune_parse(settings->options.device_tune, &tune); /* all ranks have the same, see
                                                                                * facts.c */
  if (status != BANYAN_OK || tune.way == BNY_TUNE_OFF || comm->nranks == 1) return status;
  status = bny_comm_confirm(exchange, make_buffers(comm, &tune, &buffers));
  if (status == BANYAN_OK) status = read_or_measure(comm, exchange, &tune, one_process, &buffers, &known);
  if (known) {
    comm->measured = buffers.measured;
    buffers.measured = NULL;
  }
  free_buffers(&buffers);
  return status;
}
