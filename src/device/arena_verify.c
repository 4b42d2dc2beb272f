/* SPDX-License-Identifier: Apache-2.0
 * Mappings are tested with real data. Rank w has a cell at the start and one at the end of every arena, so that a
 * mapping of the wrong size is noticed too. What it writes there depends on w, on the arena's owner and on the epoch.
 * So neither a mapping of another arena nor what an earlier attempt left in memory can pass. */
#include <stdio.h>

#include "device/arena_steps.h"
#include "base/hash.h"
#include "base/status.h"

enum { PLACES = 2, CELL_WORDS = BNY_ARENAS_CELL_BYTES / 8 };

/* Returns word i of what `writer` writes at a place of the arena of `owner`; never 0. */
static uint64_t pattern(const bny_arenas_work *work, int32_t writer, int32_t owner, int place, int i) {
  uint64_t who = (uint64_t)(uint32_t)writer << 32 | (uint32_t)owner;
  return bny_hash_add(bny_hash_add(bny_hash_of(who), work->epoch), (uint64_t)(place * CELL_WORDS + i)) | 1;
}

static char *cell(const bny_arenas *arenas, int32_t owner, int32_t writer, int place) {
  size_t number = (size_t)(place ? arenas->nranks - writer : writer);
  size_t offset = number * BNY_ARENAS_CELL_BYTES;
  return (char *)arenas->memories[owner]->address + (place ? arenas->bytes - offset : offset);
}

/* Returns the place of a cell in pinned memory: first the cells to write, by owner, then those read back. */
static size_t slot(const bny_arenas *arenas, bool read, int32_t peer, int place) {
  return ((size_t)(read ? arenas->nranks + peer : peer) * PLACES + (size_t)place) * CELL_WORDS;
}

static void *slot_address(const bny_arenas_work *work, bool read, int32_t peer, int place) {
  return (char *)work->words.device + 8 * slot(work->arenas, read, peer, place);
}

/* Waits for what is on the work's stream, until the deadline of copies; marks the arenas stuck if it is late. */
static banyan_status wait_copies(bny_arenas_work *work) {
  banyan_status status = bny_device_wait(work->arenas->device, work->stream, work->copies_deadline_ns);
  if (status == BANYAN_ERR_TIMEOUT) work->arenas->stuck = true;
  return status;
}

/* Waits for what was put on the stream before a failure as well, because its memory must not be freed before it
 * ends. */
static banyan_status finish(bny_arenas_work *work, banyan_status status) {
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", banyan_last_error());
  banyan_status waited = wait_copies(work);
  return status == BANYAN_OK || waited == BANYAN_ERR_TIMEOUT ? waited : bny_fail(status, "%s", why);
}

static banyan_status write_all(bny_arenas_work *work) {
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

/* Reads cells back, one per peer and place: that of `writer` in the arena of `owner`. */
typedef struct view {
  int32_t writer, owner;
} view;

static banyan_status read_all(bny_arenas_work *work, view (*of)(const bny_arenas *arenas, int32_t peer)) {
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

/* Returns the first peer with a wrong word in its cells; -1: none. */
static int32_t find_wrong(const bny_arenas_work *work, view (*of)(const bny_arenas *arenas, int32_t peer)) {
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

static view mine_there(const bny_arenas *arenas, int32_t peer) { return (view){arenas->rank, peer}; }
static view theirs_here(const bny_arenas *arenas, int32_t peer) { return (view){peer, arenas->rank}; }
static view theirs_there(const bny_arenas *arenas, int32_t peer) {
  (void)arenas;
  return (view){peer, peer};
}

static banyan_status read_and_find(bny_arenas_work *work, view (*of)(const bny_arenas *arenas, int32_t peer),
                                   int32_t *wrong) {
  banyan_status status = finish(work, read_all(work, of));
  if (status == BANYAN_OK) *wrong = find_wrong(work, of);
  return status;
}

banyan_status bny_arenas_verify_write(bny_arenas_work *work) {
  int32_t wrong = -1;
  banyan_status status = finish(work, write_all(work));
  if (status == BANYAN_OK) status = read_and_find(work, mine_there, &wrong);
  if (status != BANYAN_OK || wrong < 0) return status;
  return bny_fail(BANYAN_ERR_SYSTEM, "what rank %d wrote into the arena of rank %d by %s does not read back",
                  work->arenas->rank, wrong, bny_memory_kind_name(work->arenas->kind));
}

banyan_status bny_arenas_verify_read(bny_arenas_work *work) {
  int32_t wrong = -1;
  banyan_status status = read_and_find(work, theirs_here, &wrong);
  if (status == BANYAN_OK && wrong >= 0)
    return bny_fail(BANYAN_ERR_SYSTEM, "what rank %d wrote into the arena of rank %d by %s did not arrive", wrong,
                    work->arenas->rank, bny_memory_kind_name(work->arenas->kind));
  if (status == BANYAN_OK) status = read_and_find(work, theirs_there, &wrong);
  if (status == BANYAN_OK && wrong >= 0)
    return bny_fail(BANYAN_ERR_SYSTEM,
                    "rank %d reads by %s something else in the arena of rank %d than that rank wrote",
                    work->arenas->rank, bny_memory_kind_name(work->arenas->kind), wrong);
  return status;
}

banyan_status bny_arenas_verify_clear(bny_arenas_work *work) {
  bny_arenas *arenas = work->arenas;
  bny_device_memory *own = arenas->memories[arenas->rank];
  return finish(work, arenas->device->ops->zero(arenas->device, own->address, own->bytes, work->stream));
}
