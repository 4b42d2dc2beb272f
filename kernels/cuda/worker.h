/* SPDX-License-Identifier: Apache-2.0
 * The state of a run in one warp: its epoch, permission to write into peers' inboxes, waits with a deadline, and
 * faults.
 *
 * No rank overwrites data that a peer still reads. Run e writes into half e & 1 of the inboxes, where run e - 2 wrote.
 * When rank r begins run e - 1, it has finished run e - 2. Kernels of a communicator run one after another, and
 * bny_grid_wait() preserves this order if the device starts them early. Rank r then stores e - 1 into begun[r] of every
 * arena (release, sys), even if r's program sends nothing to that rank. Before a peer pushes in run e, it loads
 * begun[r] >= e - 1 from its own arena (acquire, sys). PTX orders these accesses:
 *   r's reads of run e - 2 -> r's kernel e - 1 begins -> release of begun -> acquire by the peer -> its stores of run e
 * The order holds for any warps, because the stream orders r's kernels. Usually `begun` has arrived long before, with
 * the messages of run e - 1. The load reads local memory and does not cross the link.
 *
 * Between nodes the proxy acts as one more peer, with its words in host memory. The proxy stores e - 1 into
 * proxy->taken when it has sent all of run e - 2. A kernel of run e begins with an acquire of that word, so it
 * overwrites no message that is still being sent. Messages of run e - 2 from other nodes are overwritten only by those
 * of run e, whose senders first learn that run e - 2 has ended here. The last warp of a run stores proxy->ended after
 * all warps have finished reading. Only then does the proxy report the end to peers.
 *
 * Fences order accesses over PCIe. A kernel stores a message, executes a fence of scope sys, and stores its signals
 * (bny_push_signals). Stores to host memory are posted writes, which the fence waits for. A processor that has acquired
 * the signal therefore sees the message, and so does an adapter that it then asks to send it. The processor sees an
 * incoming message once it has acquired the transport's signal. It then stores the message's arrival word (release).
 * The kernel loads that word (acquire, sys), and its later loads of the message are coherent with the processor's
 * caches.
 *
 * A device may see an arena at several addresses (bny_device_group.has_aliases). PTX orders accesses through them if a
 * fence for aliases lies on the way from one to the other. Kernels execute this fence after the last store of a unit or
 * a signal, before each release, in each round of a wait, and at the end of a wait. A packet must also arrive as a
 * whole, which PTX promises for one address. tests/gpu/test_gpu_words tests it for two.
 *
 * A ticket gives a block the epoch, although launches may be replayed and grids differ. Every block takes one ticket
 * from a counter in the arena. Only the first block takes all the remaining tickets of the run's 2^BNY_TICKET_BITS. All
 * tickets of run e then lie in [(e - 1) 2^B, e 2^B), in any order of blocks. Nothing has to be counted at the end.
 *
 * After a fault the communicator stays failed: `abort` of its arenas remains set, and all later runs end at once. */
#pragma once

#include "cuda/device.h"
#include "cuda/program.h"

/* A warp checks for faults and reads the clock once in BNY_WORKER_POLLS polls. Every FAR_LOOKS-th check also reads the
 * words in host memory. */
enum { BNY_WORKER_POLLS = 32, BNY_WORKER_FAR_LOOKS = 16 };

struct bny_worker {
  const bny_device_group *group;
  bny_arena_head *head; /* this rank's arena */
  uint64_t epoch;
  uint64_t ticket, fault; /* valid in lane 0 */
  uint64_t since;         /* time of the warp's first wait in this run, in ns; 0: none yet */
  uint32_t polls;         /* polls that found nothing */
  bool failed;            /* the same in all lanes; if set, the warp reads, writes and awaits nothing more */
  bool checked;           /* the warp has checked for faults, and may have set the head's `waiting` */
};

BNY_DEVICE bny_arena_head *bny_worker_head(const bny_device_group &group, int32_t rank) {
  return (bny_arena_head *)group.arenas[rank];
}

BNY_DEVICE unsigned char *bny_worker_inbox(const bny_worker &self, int32_t rank, int protocol) {
  return self.group->arenas[rank] + self.group->shape.inbox[protocol][self.epoch & 1];
}

BNY_DEVICE uint64_t *bny_worker_signals(const bny_worker &self, int32_t rank) {
  return (uint64_t *)(self.group->arenas[rank] + self.group->shape.signals[self.epoch & 1]);
}

BNY_DEVICE void bny_worker_fence_alias(const bny_device_group &group) {
  if (group.has_aliases) bny_fence_alias();
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

/* Called by one lane. Records this rank's first fault and reports it to the host. Returns false if a fault was recorded
 * before. */
BNY_DEVICE bool bny_worker_report_host(const bny_device_group *group, uint64_t fault, uint64_t position,
                                       uint64_t index) {
  bny_arena_head *head = bny_worker_head(*group, group->rank);
  if (bny_compare_swap_sys_64(&head->fault, 0, fault) != 0) return false;
  if (head->words && position) {
    bny_store_relaxed_sys_64(&head->words[BNY_DEVICE_WORD_POSITION], position);
    bny_store_relaxed_sys_64(&head->words[BNY_DEVICE_WORD_INDEX], index);
    bny_fence_sys();
  }
  if (head->words) bny_store_relaxed_sys_64(&head->words[BNY_DEVICE_WORD_FAULT], fault);
  return true;
}

/* Called by one lane. Reports a fault with its position, which only this rank's host receives, and ends the runs of
 * this rank and of all peers. */
BNY_DEVICE_COLD void bny_worker_report_position(const bny_device_group *group, uint64_t fault, uint64_t position) {
  if (!bny_worker_report_host(group, fault, position, 0)) return;
  BNY_ROLLED for (int32_t rank = 0; rank < group->nranks; rank++) {
    bny_store_relaxed_sys_64(&bny_worker_head(*group, rank)->abort, fault);
  }
  bny_worker_fence_alias(*group);
}

BNY_DEVICE void bny_worker_report(const bny_device_group *group, uint64_t fault) {
  bny_worker_report_position(group, fault, 0);
}

/* Reports a fault in one row of this rank's result. It ends no run, because warps must still send their rows: all other
 * rows stay correct on all ranks. The hosts inform each other. */
BNY_DEVICE_COLD void bny_worker_report_result(const bny_device_group *group, uint64_t fault, uint64_t position) {
  bny_worker_report_host(group, fault, position, 0);
}

/* Reports that two pairs of a selected row have one index. It ends no run, either. All ranks find the same. */
BNY_DEVICE_COLD void bny_worker_report_doubled(const bny_device_group *group, int32_t first, int32_t second,
                                               uint64_t position, uint64_t index) {
  bny_worker_report_host(
      group, bny_device_fault_pack(BANYAN_ERR_DATA, second, group->rank, (uint32_t)first | BNY_DEVICE_DETAIL_DOUBLED),
      position, index);
}

/* A set of ranks, one bit per rank. */
struct bny_rank_set {
  uint64_t word[2];
};

/* Returns the ranks that `rank` waits for. */
BNY_DEVICE bny_rank_set bny_worker_waits_for(const bny_device_group *group, int32_t rank) {
  const uint64_t *waiting = bny_worker_head(*group, rank)->waiting;
  return {{bny_load_relaxed_sys_64(&waiting[0]), bny_load_relaxed_sys_64(&waiting[1])}};
}

/* Returns the rank to blame if `peer` does not deliver. The first choice is a rank that has not begun the run and waits
 * for nobody. The second is the first rank that waits for nobody, along the chain of `waiting` from this rank. The last
 * is `peer`. A rank in long attention that has not announced may be named in place of a dead one of a higher number. */
BNY_DEVICE int32_t bny_worker_blame(const bny_device_group *group, uint64_t epoch, int32_t peer) {
  const uint64_t *begun = bny_worker_head(*group, group->rank)->begun;
  bny_rank_set met = bny_worker_waits_for(group, group->rank);
  met.word[peer / 64] |= (uint64_t)1 << peer % 64;
  BNY_ROLLED for (int32_t i = 0; i < group->nranks * (group->nranks + 1); i++) {
    int32_t rank = i % group->nranks;
    bool first_round = i < group->nranks;
    bool counts = first_round ? bny_load_relaxed_sys_64(&begun[rank]) < epoch : met.word[rank / 64] >> rank % 64 & 1;
    if (!counts || rank == group->rank) continue;
    bny_rank_set theirs = bny_worker_waits_for(group, rank);
    if ((theirs.word[0] | theirs.word[1]) == 0) return rank;
    met.word[0] |= first_round ? 0 : theirs.word[0];
    met.word[1] |= first_round ? 0 : theirs.word[1];
  }
  return peer;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

BNY_DEVICE uint64_t bny_worker_tokens_pack(uint64_t epoch, int32_t count) {
  return epoch << 32 | ((uint32_t)count + 1);
}

/* Called by one lane. Reports and returns a fault if a peer's number of tokens for the run differs from this rank's.
 * Returns 0 if not. */
BNY_DEVICE_COLD uint64_t bny_worker_compare_tokens(const bny_device_group *group, uint64_t epoch) {
  const uint64_t *words = bny_worker_head(*group, group->rank)->tokens[epoch & 1];
  uint64_t own = bny_load_relaxed_sys_64(&words[group->rank]);
  if (own >> 32 != (epoch & 0xffffffffu)) return 0;
  BNY_ROLLED for (int32_t rank = 0; rank < group->nranks; rank++) {
    uint64_t theirs = bny_load_relaxed_sys_64(&words[rank]);
    if (theirs == own || theirs >> 32 != own >> 32) continue;
    uint64_t fault = bny_device_fault_pack(BANYAN_ERR_MISMATCH, rank, group->rank, (uint32_t)own - 1);
    bny_worker_report_position(group, fault,
                               bny_device_position_pack((uint32_t)theirs - 1, (int32_t)(uint32_t)own - 1));
    return fault;
  }
  return 0;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* Called by one lane that has waited `waited` ns for `slot` of `peer`. Returns a fault that ends the wait, or 0. If
 * `far`, it also reads the words in host memory. */
BNY_DEVICE uint64_t bny_worker_find_fault(const bny_device_group *group, uint64_t epoch, uint64_t waited, bool far,
                                          int32_t peer, int32_t slot) {
  bny_arena_head *head = bny_worker_head(*group, group->rank);
  uint64_t fault = bny_load_relaxed_sys_64(&head->abort), timeout = head->timeout_ns;
  if (fault == 0 && far && head->words) fault = bny_load_relaxed_sys_64(&head->words[BNY_DEVICE_WORD_ABORT]);
  /* Each check sets the bit again, because other warps may have cleared it. */
  if (fault == 0 && timeout != 0 && waited > timeout / 8) {
    uint64_t *word = &head->waiting[peer / 64], before = bny_load_relaxed_sys_64(word), bit = (uint64_t)1 << peer % 64;
    if (!(before & bit)) bny_store_relaxed_sys_64(word, before | bit);
    if (!(before & bit) && group->proxy) bny_store_relaxed_sys_64(&group->proxy->waiting[peer / 64], before | bit);
  }
  if (fault == 0) fault = bny_worker_compare_tokens(group, epoch);
  if (fault == 0 && timeout != 0 && waited > timeout)
    fault =
        bny_device_fault_pack(BANYAN_ERR_TIMEOUT, bny_worker_blame(group, epoch, peer), group->rank, (uint32_t)slot);
  if (fault) bny_worker_report(group, fault);
  return fault;
}

/* Called by all lanes after a poll without success. Returns true if bny_worker_look() is due. */
BNY_DEVICE bool bny_worker_poll(bny_worker *self) {
  bny_pause();
  bny_worker_fence_alias(*self->group);
  return ++self->polls % BNY_WORKER_POLLS == 0;
}

/* The fields of a bny_worker that a look changes. */
struct bny_worker_seen {
  uint64_t since;
  bool failed;
};

/* Kernels wait in many places, so this is not inlined. It takes values, because an address would keep the warp's state
 * in memory. */
BNY_DEVICE_COLD bny_worker_seen bny_worker_look_at(const bny_device_group *group, uint64_t epoch, uint64_t since,
                                                   bool far, int32_t peer, int32_t slot) {
  uint32_t lacking = bny_warp_ballot(peer >= 0);
  int leader = lacking ? bny_lowest_bit(lacking) : 0;
  peer = bny_shuffle(peer, leader);
  slot = bny_shuffle(slot, leader);
  uint64_t now = bny_shuffle(bny_clock_ns(), 0), fault = 0;
  if (since == 0) since = now;
  if (bny_lane() == 0) fault = bny_worker_find_fault(group, epoch, now - since, far, peer, slot);
  return {since, bny_shuffle(fault, 0) != 0};
}

/* Called by all lanes. Lanes that still wait pass their `peer` and slot, the others pass -1. May set self->failed. */
BNY_DEVICE void bny_worker_look(bny_worker *self, int32_t peer, int32_t slot) {
  bool far = self->polls % (BNY_WORKER_POLLS * BNY_WORKER_FAR_LOOKS) == 0;
  bny_worker_seen seen = bny_worker_look_at(self->group, self->epoch, self->since, far, peer, slot);
  self->since = seen.since;
  self->failed = seen.failed;
  self->checked = true;
}

/* Clears `waiting`; warps that still wait set their bits again. */
BNY_DEVICE_COLD void bny_worker_waits_no_more(const bny_device_group *group) {
  uint64_t *waiting = bny_worker_head(*group, group->rank)->waiting;
  if (bny_lane() >= 2 || bny_load_relaxed_sys_64(&waiting[bny_lane()]) == 0) return;
  bny_store_relaxed_sys_64(&waiting[bny_lane()], 0);
  if (group->proxy) bny_store_relaxed_sys_64(&group->proxy->waiting[bny_lane()], 0);
}

/* Called by all lanes at the end of a wait. */
BNY_DEVICE void bny_worker_arrived(bny_worker *self) {
  bny_worker_fence_alias(*self->group);
  if (self->checked && !self->failed) bny_worker_waits_no_more(self->group);
  self->checked = false;
}

/* ---- begin ------------------------------------------------------------------------------------------------------- */

BNY_DEVICE void bny_worker_set(bny_worker *self, const bny_device_group &group) {
  self->group = &group;
  self->head = bny_worker_head(group, group.rank);
  self->since = 0;
  self->polls = 0;
  self->checked = false;
  self->ticket = self->fault = 0;
}

/* Called by all threads of the grid. This is the first of two parts, and bny_worker_join() is the second.
 * Loads of the caller's memory between the two overlap with loads of the arena. Work that does not depend on earlier
 * kernels of the stream may come before this call. */
BNY_DEVICE void bny_worker_begin(bny_worker *self, const bny_device_group &group) {
  bny_worker_set(self, group);
  bny_grid_wait();
  /* Blocks that start early occupy SMs. If ranks share the device, another rank may need these SMs to finish the
   * current run. */
  if (!group.shares_device) bny_grid_release();
  if (bny_thread() != 0) return;
  uint64_t tickets = bny_block() == 0 ? ((uint64_t)1 << BNY_TICKET_BITS) - (bny_grid_blocks() - 1) : 1;
  self->ticket = bny_add_relaxed_gpu_64(&self->head->tickets, tickets);
  self->fault = bny_load_relaxed_sys_64(&self->head->abort);
}

/* Begins the run of a kernel that counts the run at its end, after all warps have read the counter. */
BNY_DEVICE void bny_worker_open(bny_worker *self, const bny_device_group &group) {
  bny_worker_set(self, group);
  bny_grid_wait();
  if (bny_lane() != 0) return;
  self->ticket = bny_load_relaxed_gpu_64(&self->head->tickets);
  self->fault = bny_load_relaxed_sys_64(&self->head->abort);
}

BNY_DEVICE void bny_worker_number(bny_worker *self) {
  self->epoch = (bny_shuffle(self->ticket, 0) >> BNY_TICKET_BITS) + 1;
  self->failed = bny_shuffle(self->fault, 0) != 0;
}

/* Returns the word with the last run that a peer has begun. The proxy, if any, has the number after the last rank. */
BNY_DEVICE const uint64_t *bny_worker_begun(const bny_worker &self, int32_t rank) {
  return rank < self.group->nranks ? &self.head->begun[rank] : &self.group->proxy->taken;
}

/* Called by all lanes of a warp. Afterwards the epoch is known. All peers have begun the previous run, so their inboxes
 * may be written. */
BNY_DEVICE void bny_worker_join_alone(bny_worker *self) {
  int32_t own = self->group->rank, nranks = self->group->nranks, rank = (int32_t)bny_lane();
  int32_t npeers = nranks + (self->group->proxy != nullptr);
  bool asks = rank < npeers && rank != own;
  uint64_t begun = asks ? bny_load_acquire_sys_64(bny_worker_begun(*self, rank)) : 0;
  bny_worker_number(self);
  /* Another rank may have set the fault since the last run, so this rank's host may not know it. */
  if (self->failed && bny_lane() == 0) bny_worker_report(self->group, self->fault);
  for (;;) {
    while (!self->failed && bny_warp_any(asks && begun + 1 < self->epoch)) {
      if (bny_worker_poll(self))
        bny_worker_look(self, asks && begun + 1 < self->epoch ? rank < nranks ? rank : own : -1, 0);
      if (asks) begun = bny_load_acquire_sys_64(bny_worker_begun(*self, rank));
    }
    bny_worker_arrived(self);
    rank += BNY_WARP_LANES;
    if (rank - (int32_t)bny_lane() >= npeers) break;
    asks = rank < npeers && rank != own;
    begun = asks ? bny_load_acquire_sys_64(bny_worker_begun(*self, rank)) : 0;
  }
  bny_warp_sync(); /* extends each lane's acquire to all lanes */
}

struct bny_worker_joined {
  uint64_t epoch;
  bool failed;
};

/* The second part of bny_worker_begin(), called once by every warp of the block, maybe at different places. The first
 * warp joins for all of them, and the barrier extends its acquire. */
BNY_DEVICE void bny_worker_join(bny_worker *self) {
  BNY_SHARED(bny_worker_joined, joined);
  if (bny_warp() == 0) {
    bny_worker_join_alone(self);
    if (bny_lane() == 0) joined = {self->epoch, self->failed};
  }
  bny_block_sync();
  self->epoch = joined.epoch;
  self->failed = joined.failed;
}

/* Called by all lanes of one warp, once and early in a run. Reports to peers that this rank has begun the run. */
BNY_DEVICE void bny_worker_announce(const bny_worker &self) {
  const bny_device_group &group = *self.group;
  bny_worker_fence_alias(group);
  BNY_ROLLED for (int32_t rank = (int32_t)bny_lane(); rank < group.nranks; rank += BNY_WARP_LANES) {
    if (rank != group.rank) bny_store_release_sys_64(&bny_worker_head(group, rank)->begun[group.rank], self.epoch);
  }
  bny_worker_fence_alias(group);
}

/* Announces the run to peers and its program to the proxy. Called after bny_worker_join(), when the proxy has read the
 * previous label. */
BNY_DEVICE void bny_worker_announce_program(const bny_worker &self, uint64_t label) {
  bny_proxy_words *proxy = self.group->proxy;
  if (proxy && bny_lane() == 0) {
    bny_store_relaxed_sys_64(&proxy->label, label);
    bny_store_release_sys_64(&proxy->begun, self.epoch);
  }
  bny_worker_announce(self);
}

/* Called by all lanes of all warps of the grid at the end of a program's run. The last warp reports the end to the
 * proxy. */
BNY_DEVICE void bny_worker_end(const bny_worker &self) {
  bny_proxy_words *proxy = self.group->proxy;
  if (!proxy) return;
  uint32_t warps = bny_grid_blocks() * (bny_block_threads() / BNY_WARP_LANES);
  bny_warp_sync();
  if (bny_lane() != 0 || bny_add_gpu_32(&self.head->ended, 1) + 1 != warps) return;
  bny_store_relaxed_gpu_32(&self.head->ended, 0);
  if (!self.failed) bny_store_release_sys_64(&proxy->ended, self.epoch);
}

/* Returns true in the last warp, which announces the run because it has the least work. A release takes as long as a
 * round trip to the peers. */
BNY_DEVICE bool bny_worker_announces(void) {
  return bny_block() + 1 == bny_grid_blocks() && bny_warp() + 1 == bny_block_threads() / BNY_WARP_LANES;
}
