/* SPDX-License-Identifier: Apache-2.0
 * The emulator of emulate.hh: fibers, their scheduler, and their shared state. */
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "cuda/device.h"
#include "tests/emulate/emulate_stack.hh"

static std::atomic<bool> truncates;
void bny_emulator_truncate(bool on) { truncates = on; }
bool bny_emulated_truncates(void) { return truncates.load(std::memory_order_relaxed); }

static std::atomic<const unsigned char *> watched, watched_end;
static std::atomic<uint64_t> watched_bytes;
uint64_t bny_emulator_watch_copies(const void *memory, size_t bytes) {
  watched = static_cast<const unsigned char *>(memory);
  watched_end = watched + bytes;
  return watched_bytes.exchange(0);
}

namespace {

enum { NAMED_BARRIERS = 16, WEAK_STORES_MAX = 8 };

struct weak_store {
  unsigned char *to;
  unsigned char value[16];
  uint8_t bytes;
  bool synced;   /* becomes visible at the latest at the block's next fence */
  bool held;     /* waits for a fence for aliases */
  uint32_t line; /* stores of one line become visible together; 0: no line */
};

struct owned_memory {
  uint32_t device;
  const unsigned char *memory;
  size_t bytes;
};

struct async_copy {
  void *to;
  const void *from;
  size_t bytes;
};

struct block_state;

struct fiber {
  bny_emulated_thread self;
  block_state *block;
  emulated_stack stack;
  uint32_t meetings; /* exchanges in which it has taken part */
  bool writes;       /* it is in the emulator's list of writers */
  std::vector<weak_store> stores;
  std::vector<async_copy> copies; /* not yet committed */
  std::vector<std::vector<async_copy>> groups;
};

/* A fiber that can run, and its warp. The scheduler reads the warp here instead of the fiber's memory, which is
 * slower. */
struct runnable_fiber {
  fiber *one;
  uint32_t warp;
};

struct warp_state {
  int arrived = 0;
  uint32_t kind = 0;
  std::vector<fiber *> waiting;
  unsigned char deposits[2][BNY_WARP_LANES][BNY_EMULATED_EXCHANGE_BYTES];
};

struct barrier_state {
  int arrived = 0;
  std::vector<fiber *> waiting;
};

struct launch_state;

struct block_state {
  launch_state *launch;
  uint32_t index;
  std::vector<fiber> fibers;
  std::vector<runnable_fiber> runnable;
  std::vector<warp_state> warps;
  barrier_state named[NAMED_BARRIERS];
  unsigned char *shared; /* part of the cluster's memory */
  uint32_t unfinished;
  bool released;
};

struct cluster_state {
  barrier_state barrier;
  std::unique_ptr<unsigned char[], decltype(&free)> shared{nullptr, free};
  uint32_t unfinished_blocks;
};

struct launch_state {
  bny_emulator_launch what;
  launch_state *before = nullptr; /* the previous launch on its stream */
  std::map<const void *, size_t> shared_offsets;
  size_t shared_bytes;
  uint32_t started = 0, finished = 0, released = 0;
  std::map<uint32_t, cluster_state> clusters;
  std::vector<fiber *> waiting; /* fibers that wait for the end of the previous launch */
  bool done() const { return finished == what.blocks; }
};

} // namespace

struct bny_emulator {
  bny_emulator_config config;
  uint64_t random;
  uint32_t lines; /* number of lines so far */
  uint64_t steps = 0;
  std::vector<std::unique_ptr<launch_state>> launches;
  std::map<uint32_t, uint32_t> resident;
  std::vector<std::unique_ptr<block_state>> blocks; /* running blocks */
  std::vector<fiber *> writers;                     /* fibers with delayed stores */
  std::vector<owned_memory> owned;
  fiber *current = nullptr;
  std::function<void()> watch;
  std::string failure;
  own_stack stack;
};

namespace {

/* A thread runs one emulator at a time. */
__attribute__((tls_model("initial-exec"))) thread_local bny_emulator *running;

/* Switches to the scheduler. If `last` is set, it never returns. */
void switch_to_scheduler(bool last) { leave_stack(&running->stack, &running->current->stack, last); }

void finish_fiber(fiber *self);

void fiber_main() {
  begin_stack(&running->stack);
  fiber *self = running->current;
  self->block->launch->what.kernel();
  finish_fiber(self);
  switch_to_scheduler(true);
  abort();
}

/* ---- random choices ---------------------------------------------------------------------------------------------- */

uint32_t random_below(bny_emulator *emulator, size_t n) {
  emulator->random ^= emulator->random << 13;
  emulator->random ^= emulator->random >> 7;
  emulator->random ^= emulator->random << 17;
  return static_cast<uint32_t>((emulator->random >> 32) % n);
}

template <typename T> T take_any(std::vector<T> *from, uint32_t index) {
  T taken = std::move((*from)[index]);
  if (index + 1 != from->size()) (*from)[index] = std::move(from->back());
  from->pop_back();
  return taken;
}

/* ---- delayed accesses -------------------------------------------------------------------------------------------- */

bool overlap(const weak_store &one, const unsigned char *at, size_t bytes) {
  return one.to < at + bytes && at < one.to + one.bytes;
}

void apply_store(fiber *writer, size_t index);

/* Makes those stores visible that `which` selects. */
template <typename Which> void apply_stores(fiber *writer, Which which) {
  for (size_t i = 0; i < writer->stores.size();)
    if (which(writer->stores[i]))
      apply_store(writer, i), i = 0;
    else
      i++;
}

/* Makes a store visible, after the thread's earlier stores to the same address, and together with its line. */
void apply_store(fiber *writer, size_t index) {
  for (size_t i = 0; i < index; i++)
    if (overlap(writer->stores[i], writer->stores[index].to, writer->stores[index].bytes)) index = i;
  weak_store one = writer->stores[index];
  writer->stores.erase(writer->stores.begin() + static_cast<std::ptrdiff_t>(index));
  memcpy(one.to, one.value, one.bytes);
  if (one.line != 0) apply_stores(writer, [&](const weak_store &other) { return other.line == one.line; });
}

/* Applies delayed stores. Returns whether a store had to stay delayed. */
bool apply_any(fiber *writer) {
  std::vector<size_t> free;
  for (size_t i = 0; i < writer->stores.size(); i++)
    if (!writer->stores[i].held) free.push_back(i);
  if (free.empty()) return false;
  apply_store(writer, free[random_below(running, free.size())]);
  return true;
}

void settle(fiber *writer) {
  while (apply_any(writer)) {
  }
}

/* Makes visible what other threads of the block stored before a sync. */
void settle_synced(const fiber *self) {
  for (fiber *writer : running->writers)
    if (writer->block == self->block)
      apply_stores(writer, [](const weak_store &one) { return one.synced && !one.held; });
}

/* Makes overlapping stores visible. A block sees its own stores, and stores to one address in order. */
void apply_overlapping(const fiber *self, const void *at, size_t bytes, bool own) {
  const auto *first = static_cast<const unsigned char *>(at);
  for (fiber *writer : running->writers)
    if ((own || writer != self) && writer->block == self->block)
      apply_stores(writer, [&](const weak_store &one) { return overlap(one, first, bytes); });
}

/* ---- life of blocks ---------------------------------------------------------------------------------------------- */

void make_runnable(fiber *one) { one->block->runnable.push_back({one, one->self.thread / BNY_WARP_LANES}); }

void wake(std::vector<fiber *> *waiting) {
  for (fiber *one : *waiting) make_runnable(one);
  waiting->clear();
}

void finish_launch(bny_emulator *emulator, launch_state *launch) {
  for (auto &other : emulator->launches)
    if (other->before == launch) wake(&other->waiting);
}

/* Ends a fiber. The end of a kernel is also a fence for aliases. */
void finish_fiber(fiber *self) {
  for (weak_store &one : self->stores) one.held = false;
  settle(self);
  if (!self->copies.empty() || !self->groups.empty()) bny_emulated_fail("a thread ends while its copies are under way");
  block_state *block = self->block;
  if (--block->unfinished > 0) return;
  launch_state *launch = block->launch;
  if (!block->released) launch->released++;
  launch->finished++;
  if (launch->done()) finish_launch(running, launch);
}

void start_block(bny_emulator *emulator, launch_state *launch) {
  uint32_t index = launch->started++, wide = launch->what.cluster;
  auto block = std::make_unique<block_state>();
  cluster_state &cluster = launch->clusters[index / wide];
  if (!cluster.shared) {
    size_t bytes = launch->shared_bytes * wide;
    cluster.shared.reset(static_cast<unsigned char *>(aligned_alloc(1024, bytes)));
    memset(cluster.shared.get(), 0xcb, bytes); /* shared memory is undefined at first */
    cluster.unfinished_blocks = wide;
  }
  block->launch = launch;
  block->index = index;
  block->shared = cluster.shared.get() + index % wide * launch->shared_bytes;
  block->unfinished = launch->what.threads;
  block->released = false;
  block->warps.resize(launch->what.threads / BNY_WARP_LANES);
  block->fibers.resize(launch->what.threads);
  for (uint32_t i = 0; i < launch->what.threads; i++) {
    fiber *made = &block->fibers[i];
    made->self = {i, launch->what.threads, index, launch->what.blocks, index % wide, wide};
    made->block = block.get();
    make_stack(&made->stack, fiber_main);
    make_runnable(made);
  }
  emulator->resident[launch->what.device]++;
  emulator->blocks.push_back(std::move(block));
}

bool may_start(bny_emulator *emulator, const launch_state *launch) {
  if (launch->started == launch->what.blocks) return false;
  const launch_state *before = launch->before;
  if (before && !before->done() && !(launch->what.overlap && before->released == before->what.blocks)) return false;
  if (before && before->before && !before->before->done()) return false;
  uint32_t resident = emulator->resident[launch->what.device], limit = emulator->config.resident_blocks;
  return limit == 0 || launch->started % launch->what.cluster != 0 || resident + launch->what.cluster <= limit;
}

void start_blocks(bny_emulator *emulator) {
  for (auto &launch : emulator->launches)
    while (may_start(emulator, launch.get())) start_block(emulator, launch.get());
}

void end_block(bny_emulator *emulator, size_t index) {
  block_state *block = emulator->blocks[index].get();
  launch_state *launch = block->launch;
  auto &writers = emulator->writers;
  writers.erase(std::remove_if(writers.begin(), writers.end(), [=](fiber *one) { return one->block == block; }),
                writers.end());
  for (fiber &one : block->fibers) free_stack(&one.stack);
  emulator->resident[launch->what.device]--;
  auto cluster = launch->clusters.find(block->index / launch->what.cluster);
  if (--cluster->second.unfinished_blocks == 0) launch->clusters.erase(cluster);
  take_any(&emulator->blocks, static_cast<uint32_t>(index));
}

/* ---- the scheduler ----------------------------------------------------------------------------------------------- */

/* Causes a random event: a delayed store becomes visible. */
void let_things_happen(bny_emulator *emulator) {
  if (!emulator->writers.empty() && random_below(emulator, 4) == 0) {
    uint32_t index = random_below(emulator, emulator->writers.size());
    fiber *writer = emulator->writers[index];
    apply_any(writer);
    if (writer->stores.empty()) take_any(&emulator->writers, index)->writes = false;
  }
}

/* Returns a block with a runnable thread, searched from a random block on, or -1. */
int64_t pick_block(bny_emulator *emulator) {
  size_t count = emulator->blocks.size(), first = count ? random_below(emulator, count) : 0;
  for (size_t i = 0; i < count; i++) {
    size_t index = (first + i) % count;
    if (!emulator->blocks[index]->runnable.empty()) return static_cast<int64_t>(index);
  }
  return -1;
}

void describe_deadlock(bny_emulator *emulator) {
  size_t waiting = 0;
  for (auto &block : emulator->blocks) waiting += block->unfinished;
  char text[160];
  snprintf(text, sizeof text, "deadlock: %zu threads wait for each other, the first in block %u of device %u", waiting,
           emulator->blocks.empty() ? 0 : emulator->blocks[0]->index,
           emulator->blocks.empty() ? 0 : emulator->blocks[0]->launch->what.device);
  emulator->failure = text;
}

/* Returns a runnable thread. It prefers the favoured warp if it finds one of its threads soon. */
fiber *pick_fiber(bny_emulator *emulator, block_state *block, uint32_t favoured) {
  uint32_t index = 0;
  for (int tries = favoured < block->warps.size() ? 8 : 1; tries > 0; tries--) {
    index = random_below(emulator, block->runnable.size());
    if (block->runnable[index].warp == favoured) break;
  }
  return take_any(&block->runnable, index).one;
}

/* Runs one block for a random time. It may favour one of the warps, so that warps drift apart. */
void run_block(bny_emulator *emulator, size_t index) {
  block_state *block = emulator->blocks[index].get();
  uint32_t favoured = random_below(emulator, 2 * block->warps.size()); /* an index beyond the last warp favours none */
  uint32_t burst = 1 + random_below(emulator, random_below(emulator, 4) == 0 ? 4096 : 256);
  while (burst-- > 0 && !block->runnable.empty() && emulator->failure.empty()) {
    if (emulator->steps++ >= emulator->config.steps_max)
      emulator->failure = "more steps than allowed: something waits forever";
    if (emulator->watch) emulator->watch();
    let_things_happen(emulator);
    emulator->current = pick_fiber(emulator, block, favoured);
    enter_stack(&emulator->stack, &emulator->current->stack);
    emulator->current = nullptr;
  }
  if (block->unfinished == 0) end_block(emulator, index);
}

/* Suspends the running thread until it is woken. */
void park(std::vector<fiber *> *where) {
  where->push_back(running->current);
  switch_to_scheduler(false);
}

bool barrier_arrive(barrier_state *barrier, int threads) {
  if (++barrier->arrived < threads) return false;
  barrier->arrived = 0;
  wake(&barrier->waiting);
  return true;
}

} // namespace

bny_emulator *bny_emulator_make(const bny_emulator_config &config) {
  bny_emulator *made = new bny_emulator{};
  made->config = config;
  if (made->config.step_ns == 0) made->config.step_ns = 10;
  if (made->config.steps_max == 0) made->config.steps_max = 2000000000;
  made->random = config.seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
  if (made->random == 0) made->random = 1;
  return made;
}

void bny_emulator_free(bny_emulator *emulator) {
  for (auto &block : emulator->blocks)
    for (fiber &one : block->fibers) free_stack(&one.stack);
  delete emulator;
}

void bny_emulator_watch(bny_emulator *emulator, std::function<void()> watch) { emulator->watch = std::move(watch); }
void bny_emulator_own(bny_emulator *emulator, uint32_t device, void *memory, size_t bytes) {
  emulator->owned.push_back({device, static_cast<const unsigned char *>(memory), bytes});
}

void bny_emulator_add(bny_emulator *emulator, const bny_emulator_launch &launch) {
  auto made = std::make_unique<launch_state>();
  made->what = launch;
  if (made->what.cluster == 0) made->what.cluster = 1;
  if (launch.threads == 0 || launch.threads % BNY_WARP_LANES || launch.blocks % made->what.cluster) abort();
  made->shared_bytes = (launch.shared_bytes + 1023) / 1024 * 1024 + (64 << 10);
  for (auto &other : emulator->launches)
    if (other->what.device == launch.device && other->what.stream == launch.stream) made->before = other.get();
  emulator->launches.push_back(std::move(made));
}

bool bny_emulator_run(bny_emulator *emulator, char *why, size_t bytes) {
  bny_emulator *outer = running;
  running = emulator;
  emulator->failure.clear();
  for (;;) {
    start_blocks(emulator);
    if (emulator->blocks.empty()) break;
    int64_t index = pick_block(emulator);
    if (index < 0)
      describe_deadlock(emulator);
    else
      run_block(emulator, static_cast<size_t>(index));
    if (!emulator->failure.empty()) break;
  }
  running = outer;
  for (auto &launch : emulator->launches)
    if (emulator->failure.empty() && !launch->done()) emulator->failure = "a launch cannot start";
  if (!emulator->failure.empty()) {
    snprintf(why, bytes, "%s", emulator->failure.c_str());
    return false;
  }
  emulator->launches.clear();
  return true;
}

/* ---- inside a kernel --------------------------------------------------------------------------------------------- */

const bny_emulated_thread &bny_emulated(void) { return running->current->self; }

void bny_emulated_fail(const char *why) {
  fiber *self = running->current;
  char text[256];
  snprintf(text, sizeof text, "%s (device %u, block %u, thread %u)", why, self->block->launch->what.device,
           self->self.block, self->self.thread);
  running->failure = text;
  switch_to_scheduler(true);
  abort();
}

void bny_emulated_yield(void) {
  fiber *self = running->current;
  make_runnable(self);
  switch_to_scheduler(false);
}

const unsigned char (*bny_emulated_exchange(uint32_t kind, const void *value,
                                            size_t bytes))[BNY_EMULATED_EXCHANGE_BYTES] {
  fiber *self = running->current;
  warp_state *warp = &self->block->warps[self->self.thread / BNY_WARP_LANES];
  /* Two buffers alternate: a lane in the next exchange must not overwrite what a slower one still reads. */
  auto *deposits = warp->deposits[self->meetings++ % 2];
  if (warp->arrived > 0 && warp->kind != kind) bny_emulated_fail("lanes of a warp are in different functions");
  warp->kind = kind;
  if (bytes > 0) memcpy(deposits[self->self.thread % BNY_WARP_LANES], value, bytes);
  if (++warp->arrived < BNY_WARP_LANES) {
    park(&warp->waiting);
  } else {
    warp->arrived = 0;
    wake(&warp->waiting);
  }
  return deposits;
}

void bny_emulated_barrier(int id, int threads, bool wait) {
  fiber *self = running->current;
  bny_emulated_sync();
  if (id < 0 || id >= NAMED_BARRIERS || threads % BNY_WARP_LANES) bny_emulated_fail("a barrier that does not exist");
  barrier_state *barrier = &self->block->named[id];
  if (!barrier_arrive(barrier, threads) && wait) park(&barrier->waiting);
}

void bny_emulated_cluster_barrier(void) {
  fiber *self = running->current;
  launch_state *launch = self->block->launch;
  bny_emulated_settle();
  barrier_state *barrier = &launch->clusters[self->self.block / launch->what.cluster].barrier;
  if (!barrier_arrive(barrier, static_cast<int>(launch->what.cluster * launch->what.threads))) park(&barrier->waiting);
}

void bny_emulated_store(void *to, const void *value, size_t bytes, uint32_t line) {
  fiber *self = running->current;
  weak_store one = {static_cast<unsigned char *>(to), {}, static_cast<uint8_t>(bytes), false, false, line};
  for (const owned_memory &memory : running->owned)
    one.held |= memory.device != self->block->launch->what.device && overlap(one, memory.memory, memory.bytes);
  memcpy(one.value, value, bytes);
  apply_overlapping(self, to, bytes, false);
  if (self->stores.empty()) {
    if (!one.held && (!running->config.weak || random_below(running, 2) == 0)) {
      memcpy(to, value, bytes);
      return;
    }
    if (!self->writes) running->writers.push_back(self);
    self->writes = true;
  }
  self->stores.push_back(one);
  if (self->stores.size() > WEAK_STORES_MAX) apply_any(self);
}

uint32_t bny_emulated_new_line(void) { return ++running->lines; }

void bny_emulated_settle(void) {
  settle(running->current);
  settle_synced(running->current);
}

void bny_emulated_alias(void) {
  fiber *self = running->current;
  for (weak_store &one : self->stores) one.held = false;
  for (fiber *writer : running->writers)
    for (weak_store &one : writer->stores)
      if (writer->block == self->block && one.synced) one.held = false;
}

void bny_emulated_sync(void) {
  fiber *self = running->current;
  const block_state *block = self->block;
  apply_stores(self, [=](const weak_store &one) { return overlap(one, block->shared, block->launch->shared_bytes); });
  for (weak_store &one : self->stores) one.synced = true;
}

void bny_emulated_load(const void *from, void *value, size_t bytes) {
  apply_overlapping(running->current, from, bytes, true);
  memcpy(value, from, bytes);
}

void *bny_emulated_shared(const void *key, size_t bytes) {
  block_state *block = running->current->block;
  launch_state *launch = block->launch;
  auto found = launch->shared_offsets.find(key);
  if (found == launch->shared_offsets.end()) {
    size_t used = (launch->what.shared_bytes + 1023u) / 1024 * 1024;
    for (auto &other : launch->shared_offsets)
      if (other.second > used) used = other.second;
    /* an offset is the end of its variable */
    size_t end = (used + 15) / 16 * 16 + (bytes + 15) / 16 * 16;
    if (end > launch->shared_bytes) bny_emulated_fail("more static shared memory than there is");
    found = launch->shared_offsets.emplace(key, end).first;
  }
  return block->shared + found->second - (bytes + 15) / 16 * 16;
}

void *bny_emulated_dynamic(void) { return running->current->block->shared; }

void *bny_emulated_cluster_address(void *shared, uint32_t rank) {
  block_state *block = running->current->block;
  launch_state *launch = block->launch;
  ptrdiff_t offset = static_cast<unsigned char *>(shared) - block->shared;
  if (offset < 0 || static_cast<size_t>(offset) >= launch->shared_bytes || rank >= launch->what.cluster)
    bny_emulated_fail("no shared memory of this cluster");
  return launch->clusters[block->index / launch->what.cluster].shared.get() + rank * launch->shared_bytes + offset;
}

void bny_emulated_copy(void *to, const void *from, size_t bytes) {
  fiber *self = running->current;
  if (from >= watched && from < watched_end) watched_bytes += bytes;
  self->copies.push_back({to, from, bytes});
}

void bny_emulated_commit(void) {
  fiber *self = running->current;
  self->groups.push_back(std::move(self->copies));
  self->copies.clear();
}

void bny_emulated_wait(int groups) {
  fiber *self = running->current;
  while (self->groups.size() > static_cast<size_t>(groups)) {
    for (const async_copy &copy : self->groups.front()) memcpy(copy.to, copy.from, copy.bytes);
    self->groups.erase(self->groups.begin());
  }
}

void bny_emulated_grid_wait(void) {
  launch_state *launch = running->current->block->launch;
  while (launch->before && !launch->before->done()) park(&launch->waiting);
}

void bny_emulated_grid_release(void) {
  block_state *block = running->current->block;
  if (block->released) return;
  block->released = true;
  block->launch->released++;
}

uint64_t bny_emulated_clock(void) {
  bny_emulated_yield();
  return running->steps * running->config.step_ns;
}
