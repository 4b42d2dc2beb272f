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
  char vendor[16];
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

typedef struct agreement {
  uint32_t kinds;
  bool strict;
  bool unseen;    /* some process does not see a peer's device, so the driver does not report their link */
  bool multicast; /* all devices support multicast */
  reach *reaches; /* [nranks] */
} agreement;

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
  rank_report *reports;       /* [nranks] */
  int64_t copies_deadline_ns; /* earlier than the exchange's deadline, so that the others still learn of a timeout */
  void *stream;
  bny_device_words words; /* two cells out and two cells in per rank */
  uint64_t epoch;         /* makes patterns unique: different in each attempt and each group */
  bool joint;             /* all ranks know the last failure, so they may continue together */
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
  snprintf(own.vendor, sizeof own.vendor, "%s", device->ops->name);
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

static banyan_status compare(const facts *all, const int32_t *processes, bny_arenas *arenas, agreement *agreed) {
  const facts *own = &all[arenas->rank];
  agreed->multicast = true;
  arenas->compute_least = own->compute;
  arenas->sm_count_least = own->sm_count;
  arenas->driver_least = own->driver;
  for (int32_t i = 0; i < arenas->nranks; i++) {
    if (all[i].status != BANYAN_OK)
      return bny_fail((banyan_status)all[i].status, "rank %d could not begin to share its device's memory", i);
    if (strncmp(all[i].vendor, own->vendor, sizeof own->vendor) != 0)
      return bny_fail(BANYAN_ERR_MISMATCH, "rank %d has a device of %.15s, this rank one of %.15s", i, all[i].vendor,
                      own->vendor);
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
    agreed->strict = agreed->strict || all[i].strict;
    agreed->multicast = agreed->multicast && all[i].multicast;
  }
  return BANYAN_OK;
}

/* ---- agreement --------------------------------------------------------------------------------------------------- */

static obstacle obstacle_between(const bny_arenas *arenas, const facts *all, const bny_arenas_config *config,
                                 const bny_device_link *link, int32_t peer, bny_memory_kind kind) {
  bool one_node = config->nodes[peer] == config->nodes[arenas->rank];
  if (!(all[arenas->rank].kinds >> kind & 1)) return LACKED_HERE;
  if (!(all[peer].kinds >> kind & 1)) return LACKED_THERE;
  if (!one_node && kind != BNY_MEMORY_FABRIC) return OTHER_NODE;
  /* A device that this process does not see may still be reachable. The attempt decides. */
  if (one_node && link->visible && !link->access && kind != BNY_MEMORY_HOST) return NO_ACCESS;
  return NONE;
}

static reach probe_links(const bny_arenas *arenas, const facts *all, const bny_arenas_config *config) {
  reach own = {.lines_whole = true, .atomics = true, .unseen = -1, .kinds = (1u << BNY_MEMORY_KINDS) - 1};
  for (int32_t peer = 0; peer < arenas->nranks; peer++) {
    bny_device_link link;
    banyan_status status = arenas->device->ops->link(arenas->device, all[peer].uuid, &link);
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
      obstacle found = obstacle_between(arenas, all, config, &link, peer, (bny_memory_kind)kind);
      if (found == NONE || own.obstacle[kind] != NONE) continue;
      own.obstacle[kind] = (int32_t)found;
      own.peer[kind] = peer;
      own.kinds &= ~(1u << kind);
    }
  }
  return own;
}

static banyan_status agree(arenas_work *work, const facts *all, agreement *agreed) {
  bny_arenas *arenas = work->arenas;
  reach own = probe_links(arenas, all, work->config);
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", own.status ? banyan_last_error() : "");
  banyan_status status = bny_exchange_all(work->exchange, &own, agreed->reaches, sizeof own);
  if (own.status) return bny_fail((banyan_status)own.status, "%s", why);
  if (status != BANYAN_OK) return status;
  agreed->kinds = (1u << BNY_MEMORY_KINDS) - 1;
  arenas->lines_whole = arenas->atomics = true;
  for (int32_t i = 0; i < arenas->nranks; i++) {
    const reach *theirs = &agreed->reaches[i];
    if (theirs->status)
      return bny_fail((banyan_status)theirs->status, "rank %d cannot find out which devices its device reaches (%s)", i,
                      banyan_status_string((banyan_status)theirs->status));
    agreed->kinds &= theirs->kinds;
    arenas->lines_whole = arenas->lines_whole && theirs->lines_whole;
    arenas->atomics = arenas->atomics && theirs->atomics;
    agreed->unseen = agreed->unseen || theirs->unseen >= 0;
  }
  return BANYAN_OK;
}

/* Fabric handles and multicast work only within an NVLink domain. They therefore reveal NVLink where the driver does
 * not report links: between devices that processes hide from one another, or on other nodes. */
static void infer_nvlink(bny_arenas *arenas, const agreement *agreed) {
  bool nvlink = !agreed->unseen || agreed->multicast || arenas->kind == BNY_MEMORY_FABRIC;
  if (arenas->kind == BNY_MEMORY_HOST) nvlink = false;
  arenas->lines_whole = arenas->lines_whole && nvlink;
  arenas->atomics = arenas->atomics && nvlink;
  if (nvlink || arenas->kind == BNY_MEMORY_HOST || arenas->rank != 0) return;
  int32_t rank = 0;
  while (agreed->reaches[rank].unseen < 0) rank++;
  bny_log(BNY_LOG_INFO,
          "rank %d does not see the device of rank %d, and neither fabric handles nor multicast show NVLink between "
          "them: "
          "links are taken for PCIe. If they are NVLink, have each process see all devices of its node",
          rank, agreed->reaches[rank].unseen);
}

/* Explains why a kind of memory is not possible, and names the first rank and peer concerned. */
static void explain(const agreement *agreed, int32_t nranks, bny_memory_kind kind, char *text, size_t bytes) {
  int32_t rank = 0;
  while (rank < nranks - 1 && agreed->reaches[rank].obstacle[kind] == NONE) rank++;
  int32_t peer = agreed->reaches[rank].peer[kind];
  const char *name = bny_memory_kind_name(kind);
  switch ((obstacle)agreed->reaches[rank].obstacle[kind]) {
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

/* Returns word i of the pattern that `writer` writes into its cell `place` in the arena of `owner`. It is never 0. */
static uint64_t pattern(const arenas_work *work, int32_t writer, int32_t owner, int place, int i) {
  uint64_t who = (uint64_t)(uint32_t)writer << 32 | (uint32_t)owner;
  return bny_hash_add(bny_hash_add(bny_hash_of(who), work->epoch), (uint64_t)(place * CELL_WORDS + i)) | 1;
}

static char *cell(const bny_arenas *arenas, int32_t owner, int32_t writer, int place) {
  size_t number = (size_t)(place ? arenas->nranks - writer : writer);
  size_t offset = number * BNY_ARENAS_CELL_BYTES;
  return (char *)arenas->memories[owner]->address + (place ? arenas->bytes - offset : offset);
}

/* Returns the index of a cell in pinned memory. The cells to write come first, by owner, and then the cells that are
 * read back. */
static size_t slot(const bny_arenas *arenas, bool read, int32_t peer, int place) {
  return ((size_t)(read ? arenas->nranks + peer : peer) * PLACES + (size_t)place) * CELL_WORDS;
}

static void *slot_address(const arenas_work *work, bool read, int32_t peer, int place) {
  return (char *)work->words.device + 8 * slot(work->arenas, read, peer, place);
}

/* Waits for the work's stream until the deadline of copies. If the deadline passes, it marks the arenas as stuck. */
static banyan_status wait_copies(arenas_work *work) {
  banyan_status status = bny_device_wait(work->arenas->device, work->stream, work->copies_deadline_ns);
  if (status == BANYAN_ERR_TIMEOUT) work->arenas->stuck = true;
  return status;
}

/* Waits for the stream even after a failure, because memory must not be freed before the copies on it end. */
static banyan_status finish(arenas_work *work, banyan_status status) {
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", banyan_last_error());
  banyan_status waited = wait_copies(work);
  return status == BANYAN_OK || waited == BANYAN_ERR_TIMEOUT ? waited : bny_fail(status, "%s", why);
}

static banyan_status write_all(arenas_work *work) {
  bny_arenas *arenas = work->arenas;
  for (int32_t peer = 0; peer < arenas->nranks; peer++)
    for (int place = 0; place < PLACES; place++) {
      _Atomic uint64_t *words = work->words.host + slot(arenas, false, peer, place);
      for (int i = 0; i < CELL_WORDS; i++)
        atomic_store_explicit(&words[i], pattern(work, arenas->rank, peer, place, i), memory_order_relaxed);
      banyan_status status =
          arenas->device->ops->copy(arenas->device, cell(arenas, peer, arenas->rank, place),
                                    slot_address(work, false, peer, place), BNY_ARENAS_CELL_BYTES, work->stream);
      if (status != BANYAN_OK) return status;
    }
  return BANYAN_OK;
}

/* A cell to read back: that of `writer` in the arena of `owner`. */
typedef struct view {
  int32_t writer, owner;
} view;

static banyan_status read_all(arenas_work *work, view (*of)(const bny_arenas *arenas, int32_t peer)) {
  bny_arenas *arenas = work->arenas;
  for (int32_t peer = 0; peer < arenas->nranks; peer++)
    for (int place = 0; place < PLACES; place++) {
      view wanted = of(arenas, peer);
      banyan_status status = arenas->device->ops->copy(arenas->device, slot_address(work, true, peer, place),
                                                       cell(arenas, wanted.owner, wanted.writer, place),
                                                       BNY_ARENAS_CELL_BYTES, work->stream);
      if (status != BANYAN_OK) return status;
    }
  return BANYAN_OK;
}

/* Returns the first peer with a wrong word in its cells, or -1. */
static int32_t find_wrong(const arenas_work *work, view (*of)(const bny_arenas *arenas, int32_t peer)) {
  const bny_arenas *arenas = work->arenas;
  for (int32_t peer = 0; peer < arenas->nranks; peer++)
    for (int place = 0; place < PLACES; place++) {
      const _Atomic uint64_t *words = work->words.host + slot(arenas, true, peer, place);
      view wanted = of(arenas, peer);
      for (int i = 0; i < CELL_WORDS; i++)
        if (atomic_load_explicit(&words[i], memory_order_relaxed) !=
            pattern(work, wanted.writer, wanted.owner, place, i))
          return peer;
    }
  return -1;
}

static view cell_i_wrote(const bny_arenas *arenas, int32_t peer) { return (view){arenas->rank, peer}; }
static view cell_peer_wrote(const bny_arenas *arenas, int32_t peer) { return (view){peer, arenas->rank}; }
static view cell_of_peer(const bny_arenas *arenas, int32_t peer) {
  (void)arenas;
  return (view){peer, peer};
}

static banyan_status read_and_find(arenas_work *work, view (*of)(const bny_arenas *arenas, int32_t peer),
                                   int32_t *wrong) {
  banyan_status status = finish(work, read_all(work, of));
  if (status == BANYAN_OK) *wrong = find_wrong(work, of);
  return status;
}

static banyan_status verify_write(arenas_work *work) {
  int32_t wrong = -1;
  banyan_status status = finish(work, write_all(work));
  if (status == BANYAN_OK) status = read_and_find(work, cell_i_wrote, &wrong);
  if (status != BANYAN_OK || wrong < 0) return status;
  return bny_fail(BANYAN_ERR_SYSTEM, "what rank %d wrote into the arena of rank %d by %s does not read back",
                  work->arenas->rank, wrong, bny_memory_kind_name(work->arenas->kind));
}

static banyan_status verify_read(arenas_work *work) {
  int32_t wrong = -1;
  banyan_status status = read_and_find(work, cell_peer_wrote, &wrong);
  if (status == BANYAN_OK && wrong >= 0)
    return bny_fail(BANYAN_ERR_SYSTEM, "what rank %d wrote into the arena of rank %d by %s did not arrive", wrong,
                    work->arenas->rank, bny_memory_kind_name(work->arenas->kind));
  if (status == BANYAN_OK) status = read_and_find(work, cell_of_peer, &wrong);
  if (status == BANYAN_OK && wrong >= 0)
    return bny_fail(BANYAN_ERR_SYSTEM,
                    "rank %d reads by %s something else in the arena of rank %d than that rank wrote",
                    work->arenas->rank, bny_memory_kind_name(work->arenas->kind), wrong);
  return status;
}

static banyan_status verify_clear(arenas_work *work) {
  bny_arenas *arenas = work->arenas;
  bny_device_memory *own = arenas->memories[arenas->rank];
  return finish(work, arenas->device->ops->zero(arenas->device, own->address, own->bytes, work->stream));
}

/* ---- one attempt ------------------------------------------------------------------------------------------------- */

/* The export of one rank to the others. */
typedef struct offer {
  uint64_t bytes;
  bny_device_handle handle;
} offer;

/* The resources that are closed at the end of an attempt, whatever its outcome. */
typedef struct transfer {
  int file;
  int *files; /* [nranks] */
  offer *offers;
} transfer;

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

static banyan_status make_own(arenas_work *work, offer *mine, transfer *held) {
  bny_arenas *arenas = work->arenas;
  const bny_device_ops *ops = arenas->device->ops;
  bny_device_memory **own = &arenas->memories[arenas->rank];
  banyan_status status = ops->memory_make(arenas->device, arenas->kind, arenas->bytes, own);
  if (status == BANYAN_OK) status = verify_clear(work);
  /* A driver may refuse IPC handles, which ranks of one process do not need. */
  bny_device_handle *handle = arenas->kind == BNY_MEMORY_IPC && is_one_process(work) ? NULL : &mine->handle;
  if (status == BANYAN_OK) status = ops->memory_export(*own, handle, &held->file);
  if (status == BANYAN_OK) mine->bytes = (*own)->bytes;
  return status;
}

static banyan_status import_one(arenas_work *work, const transfer *held, int32_t peer) {
  bny_arenas *arenas = work->arenas;
  const int32_t *processes = work->config->processes;
  bny_device_offer offered = {
      .kind = arenas->kind,
      .bytes = held->offers[peer].bytes,
      .handle = held->offers[peer].handle,
      .file = held->files[peer],
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

static banyan_status exchange_files(arenas_work *work, transfer *held) {
  bny_fd_passing passing;
  banyan_status status = bny_fd_passing_meet(work->exchange, &passing);
  if (status != BANYAN_OK) return status;
  status = bny_fd_passing_exchange(&passing, held->file, held->files);
  bny_fd_passing_close(&passing);
  return status;
}

static banyan_status import_all(arenas_work *work, transfer *held) {
  bny_arenas *arenas = work->arenas;
  banyan_status status = goes_by_descriptor(arenas) ? exchange_files(work, held) : BANYAN_OK;
  for (int32_t i = 0; i < arenas->nranks && status == BANYAN_OK; i++)
    if (i != arenas->rank) status = import_one(work, held, i);
  return status;
}

static banyan_status run_steps(arenas_work *work, transfer *held) {
  offer mine;
  memset(&mine, 0, sizeof mine);
  banyan_status status = settle(work, make_own(work, &mine, held));
  if (status != BANYAN_OK) return status;
  status = bny_exchange_all(work->exchange, &mine, held->offers, sizeof mine);
  if (status != BANYAN_OK) {
    work->joint = false;
    return status;
  }
  status = import_all(work, held);
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
    status = settle(work, bny_fail(BANYAN_ERR_MEMORY, "out of memory for the arenas of %d ranks", arenas->nranks));
  }
  if (held.file >= 0) close(held.file);
  free(held.offers);
  free(held.files);
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
static void order_kinds(const arenas_work *work, const agreement *agreed, bny_memory_kind order[BNY_MEMORY_KINDS]) {
  order[0] = needs_owners_address(work)             ? BNY_MEMORY_IPC
             : agreed->unseen && !agreed->multicast ? BNY_MEMORY_FABRIC
                                                    : BNY_MEMORY_FILE;
  for (int kind = 0, place = 1; kind < BNY_MEMORY_KINDS; kind++)
    if (kind != (int)order[0]) order[place++] = (bny_memory_kind)kind;
}

static banyan_status descend(arenas_work *work, const agreement *agreed) {
  bny_arenas *arenas = work->arenas;
  char why[BNY_ERROR_TEXT_BYTES];
  explain(agreed, arenas->nranks, BNY_MEMORY_FILE, why, sizeof why);
  if (agreed->kinds >> BNY_MEMORY_FILE & 1) why[0] = 0;
  banyan_status status = BANYAN_ERR_UNSUPPORTED;
  bny_memory_kind order[BNY_MEMORY_KINDS];
  order_kinds(work, agreed, order);
  for (int place = 0; place < BNY_MEMORY_KINDS; place++) {
    bny_memory_kind kind = order[place];
    if (!(agreed->kinds >> kind & 1) && !(kind == BNY_MEMORY_IPC && needs_owners_address(work))) continue;
    if (kind == BNY_MEMORY_HOST && agreed->strict) break;
    if (kind == BNY_MEMORY_HOST && arenas->rank == 0)
      bny_log(BNY_LOG_WARN, "memory of devices cannot be shared: %s; arenas lie in host memory, which is slower", why);
    banyan_status tried = attempt(work, kind);
    if (tried == BANYAN_OK) return BANYAN_OK;
    bool is_slower = place > 0 || kind == BNY_MEMORY_FILE; /* the kinds that come next */
    if (!work->joint || (agreed->strict && is_slower)) return tried;
    status = tried;
    snprintf(why, sizeof why, "%s", banyan_last_error());
    if (arenas->rank == 0)
      bny_log(BNY_LOG_WARN, "sharing of device memory by %s does not work: %s; the next kind is tried",
              bny_memory_kind_name(kind), why);
  }
  return bny_fail(status, "the ranks' devices cannot share memory: %s%s", why,
                  agreed->strict ? " (BANYAN_DEVICE_FALLBACK is error on some rank)" : "");
}

static banyan_status make_steps(arenas_work *work, facts *all, agreement *agreed) {
  bny_arenas *arenas = work->arenas;
  size_t nranks = (size_t)arenas->nranks;
  facts own = gather_own(arenas->device, work->config);
  banyan_status status = bny_exchange_all(work->exchange, &own, all, sizeof own);
  if (status == BANYAN_OK) status = compare(all, work->config->processes, arenas, agreed);
  if (status == BANYAN_OK) status = agree(work, all, agreed);
  if (status != BANYAN_OK) return status;
  work->epoch = all[0].nonce;
  const bny_device_ops *ops = arenas->device->ops;
  status = ops->stream_make(arenas->device, &work->stream);
  if (status == BANYAN_OK)
    status = ops->words_make(arenas->device, nranks * 4 * (BNY_ARENAS_CELL_BYTES / sizeof(uint64_t)), &work->words);
  status = settle(work, status);
  if (status == BANYAN_OK) status = descend(work, agreed);
  if (status == BANYAN_OK) infer_nvlink(arenas, agreed);
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
  size_t nranks = (size_t)exchange->bootstrap->nranks;
  bny_arenas *made = calloc(1, sizeof *made);
  facts *all = calloc(nranks, sizeof *all);
  arenas_work work = {.arenas = made, .exchange = exchange, .config = config};
  int64_t now_ns = bny_deadline_now();
  work.copies_deadline_ns = now_ns + (exchange->deadline_ns - now_ns) / 4 * 3;
  agreement agreed = {.reaches = calloc(nranks, sizeof *agreed.reaches)};
  work.reports = calloc(nranks, sizeof *work.reports);
  bny_device_memory **memories = calloc(nranks, sizeof *memories);
  if (made && all && agreed.reaches && work.reports && memories) {
    *made = (bny_arenas){.device = device,
                         .rank = exchange->bootstrap->rank,
                         .nranks = (int32_t)nranks,
                         .bytes = config->bytes,
                         .memories = memories};
    status = make_steps(&work, all, &agreed);
  } else {
    status = bny_fail(BANYAN_ERR_MEMORY, "out of memory for the arenas of %zu ranks", nranks);
  }
  free(work.reports);
  free(agreed.reaches);
  free(all);
  if (status != BANYAN_OK) {
    free(memories);
    free(made);
    return status;
  }
  *arenas = made;
  return BANYAN_OK;
}

void bny_arenas_free(bny_arenas *arenas) {
  if (!arenas) return;
  release(arenas);
  free(arenas->memories);
  free(arenas);
}
