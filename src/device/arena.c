/* SPDX-License-Identifier: Apache-2.0
 * Shares the arenas of a group: ranks exchange facts, agree on an order of the kinds of memory, and try one kind after
 * another. Each attempt is verified. */
#include "device/arena.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/deadline.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/fd_passing.h"

/* The facts of each rank. They are sent as bytes, padding included. */
typedef struct facts {
  unsigned char uuid[BNY_DEVICE_UUID_BYTES];
  uint64_t bytes, nonce;
  uint32_t kinds;
  int32_t strict, compute, sm_count, driver, multicast, status;
} facts;

typedef enum obstacle { NONE, LACKED_HERE, LACKED_THERE, OTHER_NODE, NO_ACCESS } obstacle;

/* The links of one rank to all others. */
typedef struct reach {
  int32_t status, lines_whole, atomics; /* known only for devices that this process sees */
  int32_t unseen;                       /* a peer whose device this process does not see; -1: none */
  uint32_t kinds;
  int32_t obstacle[BNY_MEMORY_KINDS], peer[BNY_MEMORY_KINDS]; /* by kind: the reason against it, and the first peer
                                                               * concerned */
} reach;

/* The export of one rank to the others. */
typedef struct offer {
  uint64_t bytes;
  bny_device_handle handle;
} offer;

enum { WHY_BYTES = 252 };

/* The report of one rank after a step. */
typedef struct rank_report {
  int32_t status;
  char why[WHY_BYTES];
} rank_report;

typedef struct arenas_work {
  bny_arenas *arenas;
  const bny_exchange *exchange;
  const bny_arenas_config *config;
  int64_t copies_deadline_ns; /* earlier than the exchange's deadline, so that the others still learn of a timeout */
  void *stream;
  bny_device_words words; /* two cells out and two cells in per rank */
  uint64_t epoch;         /* makes patterns unique: different in each attempt and each group */
  bool joint;             /* all ranks know the last failure, so they may continue together */
  /* The ranks agree on these. */
  uint32_t kinds;
  bool strict;
  bool unseen;    /* some process does not see a peer's device, so the driver does not report their link */
  bool multicast; /* all devices support multicast */
  /* Ranks exchange these. */
  facts facts[BNY_DEVICE_RANKS_MAX];
  reach reaches[BNY_DEVICE_RANKS_MAX];
  rank_report reports[BNY_DEVICE_RANKS_MAX];
  offer offers[BNY_DEVICE_RANKS_MAX];
  int files[BNY_DEVICE_RANKS_MAX], file; /* those of an attempt, and this rank's own; -1: none */
} arenas_work;

/* Exchanges the status of all ranks. The first failure becomes the failure of every rank. */
static banyan_status settle(arenas_work *work, banyan_status own) {
  rank_report mine = {.status = (int32_t)own};
  if (own != BANYAN_OK) snprintf(mine.why, sizeof mine.why, "%s", banyan_last_error());
  banyan_status status = bny_exchange_all(work->exchange, &mine, work->reports, sizeof mine);
  if (status != BANYAN_OK) {
    work->joint = false;
    return own == BANYAN_OK ? status : bny_fail(own, "%s", mine.why);
  }
  for (int32_t i = 0; i < work->arenas->nranks; i++) {
    const rank_report *report = &work->reports[i];
    if (report->status == BANYAN_OK) continue;
    /* After a timeout no time is left, and the cause may also delay the next attempt. */
    work->joint = report->status != BANYAN_ERR_TIMEOUT;
    return bny_fail((banyan_status)report->status, "rank %d: %.*s", i, WHY_BYTES - 1, report->why);
  }
  return BANYAN_OK;
}

/* ---- facts ------------------------------------------------------------------------------------------------------- */

static facts gather_own(const bny_device *device, const bny_arenas_config *config) {
  facts own;
  memset(&own, 0, sizeof own);
  memcpy(own.uuid, device->facts.uuid, sizeof own.uuid);
  own.bytes = config->bytes;
  own.kinds = device->facts.memory_kinds;
  own.strict = config->strict;
  own.compute = device->facts.compute;
  own.sm_count = device->facts.sm_count;
  own.driver = device->facts.driver;
  own.multicast = device->facts.multicast;
  if (getrandom(&own.nonce, sizeof own.nonce, 0) != sizeof own.nonce)
    own.status = (int32_t)bny_fail_errno(BANYAN_ERR_SYSTEM, errno, "cannot read random numbers");
  return own;
}

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

static banyan_status compare(arenas_work *work) {
  bny_arenas *arenas = work->arenas;
  const int32_t *processes = work->config->processes;
  const facts *all = work->facts, *own = &all[arenas->rank];
  work->multicast = true;
  arenas->compute_least = own->compute;
  arenas->sm_count_least = own->sm_count;
  arenas->driver_least = own->driver;
  for (int32_t i = 0; i < arenas->nranks; i++) {
    if (all[i].status != BANYAN_OK)
      return bny_fail((banyan_status)all[i].status, "rank %d could not begin to share its device's memory", i);
    if (all[i].bytes != own->bytes)
      return bny_fail(BANYAN_ERR_MISMATCH,
                      "arenas on devices are of %" PRIu64 " bytes on rank %d and of %" PRIu64 " here", all[i].bytes, i,
                      own->bytes);
    arenas->compute_least = least(arenas->compute_least, all[i].compute);
    arenas->sm_count_least = least(arenas->sm_count_least, all[i].sm_count);
    arenas->driver_least = least(arenas->driver_least, all[i].driver);
    int32_t together = 0;
    for (int32_t k = 0; k < arenas->nranks; k++) {
      bool same = memcmp(all[k].uuid, all[i].uuid, sizeof own->uuid) == 0;
      together += same;
      arenas->apart = arenas->apart || (same && processes[k] != processes[i]);
    }
    if (together > arenas->ranks_per_device) arenas->ranks_per_device = together;
    work->strict = work->strict || all[i].strict;
    work->multicast = work->multicast && all[i].multicast;
  }
  return BANYAN_OK;
}

/* ---- agreement --------------------------------------------------------------------------------------------------- */

static obstacle obstacle_between(const arenas_work *work, const bny_device_link *link, int32_t peer,
                                 bny_memory_kind kind) {
  const int32_t *nodes = work->config->nodes, rank = work->arenas->rank;
  bool one_node = nodes[peer] == nodes[rank];
  if (!(work->facts[rank].kinds >> kind & 1)) return LACKED_HERE;
  if (!(work->facts[peer].kinds >> kind & 1)) return LACKED_THERE;
  if (!one_node && kind != BNY_MEMORY_FABRIC) return OTHER_NODE;
  /* A device that this process does not see may still be reachable. The attempt decides. */
  if (one_node && link->visible && !link->access && kind != BNY_MEMORY_HOST) return NO_ACCESS;
  return NONE;
}

static reach probe_links(const arenas_work *work) {
  bny_device *device = work->arenas->device;
  reach own = {.lines_whole = true, .atomics = true, .unseen = -1, .kinds = (1u << BNY_MEMORY_KINDS) - 1};
  for (int32_t peer = 0; peer < work->arenas->nranks; peer++) {
    bny_device_link link;
    banyan_status status = device->ops->link(device, work->facts[peer].uuid, &link);
    if (status != BANYAN_OK) {
      own.status = (int32_t)status;
      return own;
    }
    if (link.visible) {
      own.lines_whole = own.lines_whole && link.lines_whole;
      own.atomics = own.atomics && link.atomics;
    } else if (own.unseen < 0) {
      own.unseen = peer;
    }
    for (int kind = 0; kind < BNY_MEMORY_KINDS; kind++) {
      obstacle found = obstacle_between(work, &link, peer, (bny_memory_kind)kind);
      if (found == NONE || own.obstacle[kind] != NONE) continue;
      own.obstacle[kind] = (int32_t)found;
      own.peer[kind] = peer;
      own.kinds &= ~(1u << kind);
    }
  }
  return own;
}

static banyan_status agree(arenas_work *work) {
  bny_arenas *arenas = work->arenas;
  reach own = probe_links(work);
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", own.status ? banyan_last_error() : "");
  banyan_status status = bny_exchange_all(work->exchange, &own, work->reaches, sizeof own);
  if (own.status) return bny_fail((banyan_status)own.status, "%s", why);
  if (status != BANYAN_OK) return status;
  work->kinds = (1u << BNY_MEMORY_KINDS) - 1;
  arenas->lines_whole = arenas->atomics = true;
  for (int32_t i = 0; i < arenas->nranks; i++) {
    const reach *theirs = &work->reaches[i];
    if (theirs->status)
      return bny_fail((banyan_status)theirs->status, "rank %d cannot find out which devices its device reaches (%s)", i,
                      banyan_status_string((banyan_status)theirs->status));
    work->kinds &= theirs->kinds;
    arenas->lines_whole = arenas->lines_whole && theirs->lines_whole;
    arenas->atomics = arenas->atomics && theirs->atomics;
    work->unseen = work->unseen || theirs->unseen >= 0;
  }
  return BANYAN_OK;
}

/* Fabric handles and multicast work only within an NVLink domain. They therefore reveal NVLink where the driver does
 * not report links: between devices that processes hide from one another, or on other nodes. */
static void infer_nvlink(const arenas_work *work) {
  bny_arenas *arenas = work->arenas;
  bool nvlink = !work->unseen || work->multicast || arenas->kind == BNY_MEMORY_FABRIC;
  if (arenas->kind == BNY_MEMORY_HOST) nvlink = false;
  arenas->lines_whole = arenas->lines_whole && nvlink;
  arenas->atomics = arenas->atomics && nvlink;
  if (nvlink || arenas->kind == BNY_MEMORY_HOST || arenas->rank != 0) return;
  int32_t rank = 0;
  while (work->reaches[rank].unseen < 0) rank++;
  bny_log(BNY_LOG_INFO,
          "rank %d does not see the device of rank %d, and neither fabric handles nor multicast show NVLink between "
          "them: "
          "links are taken for PCIe. If they are NVLink, have each process see all devices of its node",
          rank, work->reaches[rank].unseen);
}

/* Explains why a kind of memory is not possible, and names the first rank and peer concerned. */
static void explain(const arenas_work *work, bny_memory_kind kind, char *text, size_t bytes) {
  int32_t rank = 0;
  while (rank < work->arenas->nranks - 1 && work->reaches[rank].obstacle[kind] == NONE) rank++;
  int32_t peer = work->reaches[rank].peer[kind];
  const char *name = bny_memory_kind_name(kind);
  switch ((obstacle)work->reaches[rank].obstacle[kind]) {
  case NONE: snprintf(text, bytes, "nothing stands against %s", name); break;
  case LACKED_HERE: snprintf(text, bytes, "the device of rank %d does not share memory by %s", rank, name); break;
  case LACKED_THERE: snprintf(text, bytes, "the device of rank %d does not share memory by %s", peer, name); break;
  case OTHER_NODE: snprintf(text, bytes, "ranks %d and %d are on different nodes", rank, peer); break;
  case NO_ACCESS:
    snprintf(text, bytes, "the device of rank %d has no peer access to that of rank %d", rank, peer);
    break;
  }
}

/* ---- verification ------------------------------------------------------------------------------------------------ */

/* Mappings are tested with data. Rank w has one cell at the start and one at the end of every arena, so that a mapping
 * of the wrong size is detected too. Its pattern depends on w, on the arena's owner and on the epoch. Neither a mapping
 * of another arena nor data of an earlier attempt can therefore pass. No rank begins a step of the verification before
 * all ranks have completed the previous one. */
enum { PLACES = 2, CELL_WORDS = BNY_ARENAS_CELL_BYTES / 8 };

/* The cells of `writer` in the arena of `owner`. */
typedef struct view {
  int32_t writer, owner;
} view;

/* Returns word i of both cells. It is never 0. */
static uint64_t pattern(const arenas_work *work, view of, int i) {
  uint64_t who = (uint64_t)(uint32_t)of.writer << 32 | (uint32_t)of.owner;
  return bny_hash_add(bny_hash_add(bny_hash_of(who), work->epoch), (uint64_t)i) | 1;
}

static char *cell(const bny_arenas *arenas, view of, int place) {
  size_t number = (size_t)(place ? arenas->nranks - of.writer : of.writer);
  size_t offset = number * BNY_ARENAS_CELL_BYTES;
  return (char *)arenas->memories[of.owner]->address + (place ? arenas->bytes - offset : offset);
}

/* Returns the index of a peer's cells in pinned memory. The cells to write come first, by owner, and then the cells
 * that are read back. */
static size_t slot(const bny_arenas *arenas, bool read, int32_t peer) {
  return (size_t)(read ? arenas->nranks + peer : peer) * PLACES * CELL_WORDS;
}

/* Waits for the stream even after a failure, because memory must not be freed before the copies on it end. If the
 * deadline of copies passes, it marks the arenas as stuck. */
static banyan_status finish(arenas_work *work, banyan_status status) {
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", banyan_last_error());
  banyan_status waited = bny_device_wait(work->arenas->device, work->stream, work->copies_deadline_ns);
  if (waited == BANYAN_ERR_TIMEOUT) work->arenas->stuck = true;
  return status == BANYAN_OK || waited == BANYAN_ERR_TIMEOUT ? waited : bny_fail(status, "%s", why);
}

typedef view view_of(const bny_arenas *arenas, int32_t peer);

static view cell_i_wrote(const bny_arenas *arenas, int32_t peer) { return (view){arenas->rank, peer}; }
static view cell_peer_wrote(const bny_arenas *arenas, int32_t peer) { return (view){peer, arenas->rank}; }
static view cell_of_peer(const bny_arenas *arenas, int32_t peer) {
  (void)arenas;
  return (view){peer, peer};
}

static banyan_status copy_all(arenas_work *work, view_of *of, bool read) {
  bny_arenas *arenas = work->arenas;
  for (int32_t peer = 0; peer < arenas->nranks; peer++)
    for (int place = 0; place < PLACES; place++) {
      void *there = cell(arenas, of(arenas, peer), place);
      void *here = (char *)work->words.device + 8 * slot(arenas, read, peer) + BNY_ARENAS_CELL_BYTES * place;
      banyan_status status = arenas->device->ops->copy(arenas->device, read ? here : there, read ? there : here,
                                                       BNY_ARENAS_CELL_BYTES, work->stream);
      if (status != BANYAN_OK) return status;
    }
  return BANYAN_OK;
}

static banyan_status write_all(arenas_work *work) {
  const bny_arenas *arenas = work->arenas;
  for (int32_t peer = 0; peer < arenas->nranks; peer++)
    for (int i = 0; i < PLACES * CELL_WORDS; i++)
      atomic_store_explicit(work->words.host + slot(arenas, false, peer) + i,
                            pattern(work, cell_i_wrote(arenas, peer), i), memory_order_relaxed);
  return copy_all(work, cell_i_wrote, false);
}

/* Returns the first peer with a wrong word in its cells, or -1. */
static int32_t find_wrong(const arenas_work *work, view_of *of) {
  const bny_arenas *arenas = work->arenas;
  for (int32_t peer = 0; peer < arenas->nranks; peer++) {
    const _Atomic uint64_t *words = work->words.host + slot(arenas, true, peer);
    for (int i = 0; i < PLACES * CELL_WORDS; i++)
      if (atomic_load_explicit(&words[i], memory_order_relaxed) != pattern(work, of(arenas, peer), i)) return peer;
  }
  return -1;
}

/* Reads cells and compares them. `what` says what is wrong with the data of a writer; NULL: another arena is read. */
static banyan_status read_and_compare(arenas_work *work, view_of *of, const char *what) {
  const bny_arenas *arenas = work->arenas;
  banyan_status status = finish(work, copy_all(work, of, true));
  int32_t wrong = status == BANYAN_OK ? find_wrong(work, of) : -1;
  if (wrong < 0) return status;
  const char *kind = bny_memory_kind_name(arenas->kind);
  view found = of(arenas, wrong);
  if (what)
    return bny_fail(BANYAN_ERR_SYSTEM, "what rank %d wrote into the arena of rank %d by %s %s", found.writer,
                    found.owner, kind, what);
  return bny_fail(BANYAN_ERR_SYSTEM, "rank %d reads by %s something else in the arena of rank %d than that rank wrote",
                  arenas->rank, kind, wrong);
}

static banyan_status verify_write(arenas_work *work) {
  banyan_status status = finish(work, write_all(work));
  return status == BANYAN_OK ? read_and_compare(work, cell_i_wrote, "does not read back") : status;
}

static banyan_status verify_read(arenas_work *work) {
  banyan_status status = read_and_compare(work, cell_peer_wrote, "did not arrive");
  return status == BANYAN_OK ? read_and_compare(work, cell_of_peer, NULL) : status;
}

static banyan_status verify_clear(arenas_work *work) {
  bny_arenas *arenas = work->arenas;
  bny_device_memory *own = arenas->memories[arenas->rank];
  return finish(work, arenas->device->ops->zero(arenas->device, own->address, own->bytes, work->stream));
}

/* ---- one attempt ------------------------------------------------------------------------------------------------- */

/* Frees the memory of an attempt. */
static void release(bny_arenas *arenas) {
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

static bool is_one_process(const arenas_work *work) {
  const bny_arenas *arenas = work->arenas;
  const int32_t *processes = work->config->processes;
  for (int32_t i = 0; i < arenas->nranks; i++)
    if (processes[i] != processes[arenas->rank]) return false;
  return true;
}

static bool goes_by_descriptor(const bny_arenas *arenas) {
  return arenas->kind != BNY_MEMORY_FABRIC && arenas->nranks > 1;
}

static banyan_status make_own(arenas_work *work, offer *mine) {
  bny_arenas *arenas = work->arenas;
  const bny_device_ops *ops = arenas->device->ops;
  bny_device_memory **own = &arenas->memories[arenas->rank];
  banyan_status status = ops->memory_make(arenas->device, arenas->kind, arenas->bytes, own);
  if (status == BANYAN_OK) status = verify_clear(work);
  /* A driver may refuse IPC handles, which ranks of one process do not need. */
  bny_device_handle *handle = arenas->kind == BNY_MEMORY_IPC && is_one_process(work) ? NULL : &mine->handle;
  if (status == BANYAN_OK) status = ops->memory_export(*own, handle, &work->file);
  if (status == BANYAN_OK) mine->bytes = (*own)->bytes;
  return status;
}

static banyan_status import_one(arenas_work *work, int32_t peer) {
  bny_arenas *arenas = work->arenas;
  const int32_t *processes = work->config->processes;
  bny_device_offer offered = {
      .kind = arenas->kind,
      .bytes = work->offers[peer].bytes,
      .handle = work->offers[peer].handle,
      .file = work->files[peer],
      .same_process = processes[peer] == processes[arenas->rank],
  };
  /* The size is checked because it comes from another rank. Devices round it up to their granularity of a few MiB. */
  if (offered.bytes < arenas->bytes || offered.bytes - arenas->bytes > (size_t)1 << 30)
    return bny_fail(BANYAN_ERR_MISMATCH, "the arena of rank %d is of %zu bytes, not %zu", peer, offered.bytes,
                    arenas->bytes);
  banyan_status status = arenas->device->ops->memory_import(arenas->device, &offered, &arenas->memories[peer]);
  if (status == BANYAN_OK) return BANYAN_OK;
  return bny_fail(status, "the arena of rank %d cannot be mapped by rank %d: %s", peer, arenas->rank,
                  banyan_last_error());
}

static banyan_status exchange_files(arenas_work *work) {
  bny_fd_passing passing;
  banyan_status status = bny_fd_passing_meet(work->exchange, &passing);
  if (status != BANYAN_OK) return status;
  status = bny_fd_passing_exchange(&passing, BANYAN_OK, &work->file, 1, work->files);
  bny_fd_passing_close(&passing);
  return status;
}

static banyan_status import_all(arenas_work *work) {
  bny_arenas *arenas = work->arenas;
  banyan_status status = goes_by_descriptor(arenas) ? exchange_files(work) : BANYAN_OK;
  for (int32_t i = 0; i < arenas->nranks && status == BANYAN_OK; i++)
    if (i != arenas->rank) status = import_one(work, i);
  return status;
}

static banyan_status run_steps(arenas_work *work) {
  offer mine;
  memset(&mine, 0, sizeof mine);
  banyan_status status = settle(work, make_own(work, &mine));
  if (status != BANYAN_OK) return status;
  status = bny_exchange_all(work->exchange, &mine, work->offers, sizeof mine);
  if (status != BANYAN_OK) {
    work->joint = false;
    return status;
  }
  status = import_all(work);
  if (status == BANYAN_OK) status = verify_write(work);
  status = settle(work, status);
  if (status == BANYAN_OK) status = settle(work, verify_read(work));
  if (status == BANYAN_OK) status = settle(work, verify_clear(work));
  return status;
}

/* Makes one attempt with one kind of memory. Arenas are made, exchanged, mapped and verified; a failure leaves
 * nothing. */
static banyan_status attempt(arenas_work *work, bny_memory_kind kind) {
  bny_arenas *arenas = work->arenas;
  arenas->kind = kind;
  work->joint = true;
  work->epoch++;
  work->file = -1;
  for (int32_t i = 0; i < arenas->nranks; i++) work->files[i] = -1;
  banyan_status status = run_steps(work);
  for (int32_t i = 0; i < arenas->nranks; i++)
    if (work->files[i] >= 0) close(work->files[i]);
  if (work->file >= 0) close(work->file);
  if (status != BANYAN_OK) release(arenas);
  return status;
}

/* ---- the way down ------------------------------------------------------------------------------------------------ */

/* If a device sees memory at two addresses, concurrent kernels need a special fence (fence.proxy.alias). Ranks of one
 * process that share a device can avoid it: with BNY_MEMORY_IPC they use the owner's address. */
static bool needs_owners_address(const arenas_work *work) {
  return work->arenas->ranks_per_device > 1 && is_one_process(work);
}

bool bny_arenas_have_aliases(const bny_arenas *arenas) {
  return arenas->ranks_per_device > 1 && (arenas->apart || arenas->kind != BNY_MEMORY_IPC);
}

/* Orders the kinds from fastest to slowest. One kind may come before FILE: the owner's address, or a fabric handle if
 * nothing else reveals the links. A fabric handle maps only over NVLink. */
static void order_kinds(const arenas_work *work, bny_memory_kind order[BNY_MEMORY_KINDS]) {
  order[0] = needs_owners_address(work)         ? BNY_MEMORY_IPC
             : work->unseen && !work->multicast ? BNY_MEMORY_FABRIC
                                                : BNY_MEMORY_FILE;
  for (int kind = 0, place = 1; kind < BNY_MEMORY_KINDS; kind++)
    if (kind != (int)order[0]) order[place++] = (bny_memory_kind)kind;
}

static banyan_status descend(arenas_work *work) {
  bny_arenas *arenas = work->arenas;
  char why[BNY_ERROR_TEXT_BYTES];
  explain(work, BNY_MEMORY_FILE, why, sizeof why);
  if (work->kinds >> BNY_MEMORY_FILE & 1) why[0] = 0;
  banyan_status status = BANYAN_ERR_UNSUPPORTED;
  bny_memory_kind order[BNY_MEMORY_KINDS];
  order_kinds(work, order);
  for (int place = 0; place < BNY_MEMORY_KINDS; place++) {
    bny_memory_kind kind = order[place];
    if (!(work->kinds >> kind & 1) && !(kind == BNY_MEMORY_IPC && needs_owners_address(work))) continue;
    if (kind == BNY_MEMORY_HOST && work->strict) break;
    if (kind == BNY_MEMORY_HOST && arenas->rank == 0)
      bny_log(BNY_LOG_WARN, "memory of devices cannot be shared: %s; arenas lie in host memory, which is slower", why);
    banyan_status tried = attempt(work, kind);
    if (tried == BANYAN_OK) return BANYAN_OK;
    bool is_slower = place > 0 || kind == BNY_MEMORY_FILE; /* the kinds that come next */
    if (!work->joint || (work->strict && is_slower)) return tried;
    status = tried;
    snprintf(why, sizeof why, "%s", banyan_last_error());
    if (arenas->rank == 0)
      bny_log(BNY_LOG_WARN, "sharing of device memory by %s does not work: %s; the next kind is tried",
              bny_memory_kind_name(kind), why);
  }
  return bny_fail(status, "the ranks' devices cannot share memory: %s%s", why,
                  work->strict ? " (BANYAN_DEVICE_FALLBACK is error on some rank)" : "");
}

static banyan_status make_steps(arenas_work *work) {
  bny_arenas *arenas = work->arenas;
  facts own = gather_own(arenas->device, work->config);
  banyan_status status = bny_exchange_all(work->exchange, &own, work->facts, sizeof own);
  if (status == BANYAN_OK) status = compare(work);
  if (status == BANYAN_OK) status = agree(work);
  if (status != BANYAN_OK) return status;
  work->epoch = work->facts[0].nonce;
  const bny_device_ops *ops = arenas->device->ops;
  status = ops->stream_make(arenas->device, &work->stream);
  if (status == BANYAN_OK)
    status = ops->words_make(arenas->device, (size_t)arenas->nranks * 4 * (BNY_ARENAS_CELL_BYTES / sizeof(uint64_t)),
                             &work->words);
  status = settle(work, status);
  if (status == BANYAN_OK) status = descend(work);
  if (status == BANYAN_OK) infer_nvlink(work);
  if (arenas->stuck) return status; /* the device still uses them */
  if (work->words.host) ops->words_free(arenas->device, &work->words);
  if (work->stream) ops->stream_free(arenas->device, work->stream);
  return status;
}

static banyan_status check_config(const bny_exchange *exchange, const bny_arenas_config *config) {
  size_t needed = (size_t)exchange->bootstrap->nranks * 2 * BNY_ARENAS_CELL_BYTES;
  if (config->bytes < needed)
    return bny_fail(BANYAN_ERR_ARGUMENT, "arenas of %zu bytes are too small for %d ranks; they need %zu at least",
                    config->bytes, exchange->bootstrap->nranks, needed);
  if (config->bytes % 16)
    return bny_fail(BANYAN_ERR_ARGUMENT, "arenas of %zu bytes: make it a multiple of 16", config->bytes);
  return BANYAN_OK;
}

banyan_status bny_arenas_make(bny_device *device, const bny_exchange *exchange, const bny_arenas_config *config,
                              bny_arenas **arenas) {
  banyan_status status = check_config(exchange, config);
  if (status != BANYAN_OK) return status;
  bny_arenas *made = calloc(1, sizeof *made);
  arenas_work *work = calloc(1, sizeof *work);
  if (made && work) {
    const int64_t now_ns = bny_deadline_now();
    made->device = device;
    made->rank = exchange->bootstrap->rank;
    made->nranks = exchange->bootstrap->nranks;
    made->bytes = config->bytes;
    work->arenas = made;
    work->exchange = exchange;
    work->config = config;
    work->copies_deadline_ns = now_ns + (exchange->deadline_ns - now_ns) / 4 * 3;
    status = make_steps(work);
  } else {
    status = bny_fail(BANYAN_ERR_MEMORY, "out of memory for the arenas of %d ranks", exchange->bootstrap->nranks);
  }
  free(work);
  if (status == BANYAN_OK)
    *arenas = made;
  else
    free(made);
  return status;
}

void bny_arenas_free(bny_arenas *arenas) {
  if (!arenas) return;
  release(arenas);
  free(arenas);
}
