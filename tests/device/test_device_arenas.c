/* SPDX-License-Identifier: Apache-2.0
 * Tests arenas shared by the devices of a group, over the fake driver. Ranks are threads or processes. The tests cover
 * each kind of memory, agreement among different devices, broken mappings, silent ranks, and leaks. Kinds of memory and
 * broken mappings are tested on a GPU too. */
#include <dirent.h>

#include "base/clock.h"
#include "base/process.h"
#include "device/arena.h"
#include "tests/device/device_util.h"
#include "tests/support/world.h"

enum { BYTES = 1 << 16, RANKS_MAX = 5, MS = 1000000 };

typedef struct task {
  const char *words; /* value of FAKE_CUDA; rank r uses device r */
  int32_t nranks;
  bool processes, one_device, strict, nodes_differ;
  bool alone;            /* each rank's process sees only its own device, as under some launchers */
  const char *odd_words; /* words for rank 1 */
  int64_t deadline_ms;   /* 0: 15 s */
  /* The expected outcome. */
  banyan_status status;
  bny_memory_kind kind;
  bool pcie;         /* links count as PCIe */
  const char *says;  /* part of every rank's error */
  const char *warns; /* part of a warning, after which the next kind is tried */
  bool stuck;        /* the device keeps its memory until the process ends */
  int32_t odd_rank;  /* the rank that behaves differently; 0: none */
  bool odd_bytes, odd_strict;
  bool silence; /* the odd rank falls silent after some gathers. The error may be that of the bootstrap. */
  int32_t odd_gathers;
} task;

static int count_files(void) {
  DIR *directory = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(directory)) count++;
  closedir(directory);
  return count;
}

/* A bootstrap whose rank falls silent. */
typedef struct fading {
  const banyan_bootstrap *under;
  int32_t gathers;
} fading;

static int gather_fading(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  fading *self = context;
  if (self->gathers-- <= 0) return 1;
  return self->under->allgather(self->under->context, mine, all, bytes, timeout_ns);
}

/* Returns word i of the data of `writer` in the arena of `owner`. */
static uint64_t word_of(int32_t writer, int32_t owner, int i) {
  return (uint64_t)(writer * 100 + owner) << 32 | (uint32_t)(i + 1);
}

enum { WORDS = 64 };

static bool copy(world_rank *self, bny_device *device, void *to, const void *from, size_t bytes) {
  return world_ok(self, device->ops->copy(device, to, from, bytes, NULL), "copy") &&
         world_ok(self, bny_device_wait(device, NULL, bny_clock_ns() + WORLD_GUARD_NS), "wait");
}

/* Each rank writes into all arenas, and then reads its own. */
static bool use_arenas(world_rank *self, const bny_arenas *arenas) {
  bny_device *device = arenas->device;
  const bny_device_ops *ops = device->ops;
  bny_device_words words;
  if (!world_ok(self, ops->words_make(device, BYTES / 8, &words), "words")) return false;
  void *own = arenas->memories[self->rank]->address;
  bool good = copy(self, device, words.device, own, BYTES);
  for (int i = 0; i < BYTES / 8 && good; i++)
    good = world_check(self, atomic_load(&words.host[i]) == 0, "word %d of a new arena is not zero", i);
  good = good && world_meet(self);
  for (int32_t peer = 0; peer < self->nranks && good; peer++) {
    for (int i = 0; i < WORDS; i++) atomic_store(&words.host[i], word_of(self->rank, peer, i));
    char *to = (char *)arenas->memories[peer]->address + (size_t)self->rank * WORDS * 8;
    good = copy(self, device, to, words.device, WORDS * 8);
  }
  good = good && world_meet(self) && copy(self, device, words.device, own, BYTES);
  for (int i = 0; i < self->nranks * WORDS && good; i++)
    good = world_check(self, atomic_load(&words.host[i]) == word_of(i / WORDS, self->rank, i % WORDS),
                       "what rank %d wrote is not there", i / WORDS);
  ops->words_free(device, &words);
  return good && world_meet(self);
}

/* Ranks of one process that share a device do not map memory a second time. */
static bny_memory_kind kind_of(const task *task) {
  bool aliases = task->one_device && !task->processes && task->nranks > 1;
  return aliases ? BNY_MEMORY_IPC : task->kind;
}

static bool check_addresses(world_rank *self, const task *task, const bny_arenas *arenas) {
  static void *_Atomic owners[RANKS_MAX]; /* shared by all ranks of this process */
  if (task->processes || arenas->kind != BNY_MEMORY_IPC) return true;
  atomic_store(&owners[self->rank], arenas->memories[self->rank]->address);
  if (!world_meet(self)) return false;
  bool same = true;
  for (int32_t i = 0; i < self->nranks; i++) same = same && arenas->memories[i]->address == atomic_load(&owners[i]);
  return world_check(self, same, "memory has a second address") && world_meet(self);
}

static bool check_share(world_rank *self, const task *task, const bny_arenas *arenas) {
  bool crosses = !task->one_device && task->nranks > 1;
  bool apart = task->processes || arenas->kind != BNY_MEMORY_IPC;
  int32_t compute = 90, sms = 16;
  return world_check(self, arenas->kind == kind_of(task), "shared by %s, not by %s", bny_memory_kind_name(arenas->kind),
                     bny_memory_kind_name(kind_of(task))) &&
         check_addresses(self, task, arenas) &&
         world_check(self, bny_arenas_have_aliases(arenas) == (!crosses && task->nranks > 1 && apart), "aliases") &&
         world_check(self, arenas->rank == self->rank && arenas->nranks == self->nranks && arenas->bytes == BYTES,
                     "facts") &&
         world_check(self, arenas->ranks_per_device == (crosses ? 1 : task->nranks) && arenas->compute_least == compute,
                     "facts of devices") &&
         world_check(self, arenas->sm_count_least == sms, "%d SMs", arenas->sm_count_least) &&
         world_check(self, arenas->lines_whole == (kind_of(task) != BNY_MEMORY_HOST && !task->pcie), "lines") &&
         world_check(self, arenas->atomics == arenas->lines_whole, "atomics") && use_arenas(self, arenas);
}

static void share_and_check(world_rank *self, const task *task, bny_device *device) {
  int32_t nodes[RANKS_MAX] = {0}, processes[RANKS_MAX] = {0};
  for (int32_t i = 0; i < self->nranks; i++) {
    nodes[i] = task->nodes_differ ? i : 0;
    processes[i] = task->processes ? i : 0;
  }
  bool odd = task->odd_rank && self->rank == task->odd_rank, silent = odd && task->silence;
  bny_arenas_config config = {.bytes = odd && task->odd_bytes ? 2 * BYTES : BYTES,
                              .nodes = nodes,
                              .processes = processes,
                              .strict = odd && task->odd_strict ? !task->strict : task->strict};
  fading fades = {&self->bootstrap, silent ? task->odd_gathers : INT32_MAX};
  banyan_bootstrap bootstrap = self->bootstrap;
  bootstrap.context = &fades;
  bootstrap.allgather = gather_fading;
  bny_exchange exchange = {&bootstrap, bny_clock_ns() + (task->deadline_ms ? task->deadline_ms : 15000) * MS,
                           bny_process()};
  bny_arenas *arenas = NULL;
  banyan_status status = bny_arenas_make(device, &exchange, &config, &arenas);
  if (status == BANYAN_OK) {
    if (world_check(self, task->status == BANYAN_OK, "it worked")) check_share(self, task, arenas);
    bny_arenas_free(arenas);
  } else if (!silent) { /* the result of that rank is not checked */
    bool fits = status == task->status || (task->silence && status == BANYAN_ERR_BOOTSTRAP);
    world_check(self, fits && strstr(banyan_last_error(), task->says ? task->says : ""),
                "status %d, \"%s\"; not %d, \"%s\"", (int)status, banyan_last_error(), (int)task->status, task->says);
    world_check(self, arenas == NULL, "a share was given in spite of an error");
  }
}

static void run_rank(world_rank *self) {
  const task *task = self->argument;
  int files = count_files();
  bny_device *device = NULL;
  if (task->alone) {
    char words[256];
    snprintf(words, sizeof words, "devices=1,first=%d,%s", self->rank,
             self->rank == 1 && task->odd_words ? task->odd_words : task->words);
    setenv("FAKE_CUDA", words, 1);
  }
  if (!world_ok(self, open_fake(task->one_device || task->alone ? 0 : self->rank, &device), "open")) return;
  share_and_check(self, task, device);
  if (task->stuck) return;
  device->ops->close(device);
  if (!task->processes) return;
  char left[256];
  world_check(self, FAKE_CUDA(fake_cuda_live)(left, sizeof left) == 0, "left: %s", left);
  world_check(self, count_files() == files, "%d files were open, and %d are", files, count_files());
}

/* Runs a task within 5 s, or without a limit. Reads what it warns. */
static void run_task(task task) {
  char left[256], text[8192];
  FILE *said = task.warns ? tmpfile() : NULL;
  const int before = dup(STDERR_FILENO);
  setenv("FAKE_CUDA", task.words ? task.words : "", 1);
  FAKE_CUDA(fake_cuda_live)(left, sizeof left);
  fflush(stderr);
  if (said) dup2(fileno(said), STDERR_FILENO);
  const int files = count_files();
  const double began = world_now_s();
  WORLD_RUN(run_rank, .nranks = task.nranks, .processes = task.processes, .bare = true, .argument = &task);
  const double took = world_now_s() - began;
  ck_assert_msg(!task.deadline_ms || took < 5, "it took %g s", took);
  ck_assert_msg(FAKE_CUDA(fake_cuda_live)(left, sizeof left) == 0, "left: %s", left);
  ck_assert_int_eq(count_files(), files);
  dup2(before, STDERR_FILENO);
  close(before);
  if (!said) return;
  rewind(said);
  text[fread(text, 1, sizeof text - 1, said)] = 0;
  fclose(said);
  ck_assert_msg(strstr(text, task.warns) && strstr(text, "the next kind is tried"), "%s", text);
  const bool is_slow = task.kind == BNY_MEMORY_HOST;
  ck_assert_msg(is_slow == !!strstr(text, "arenas lie in host memory, which is slower"), "%s", text);
}

/* ---- each kind --------------------------------------------------------------------------------------------------- */

static const char *const words_of_kind[BNY_MEMORY_KINDS] = {
    [BNY_MEMORY_FILE] = "devices=5",
    [BNY_MEMORY_FABRIC] = "devices=5,no-files",
    [BNY_MEMORY_IPC] = "devices=5,no-vmm",
    [BNY_MEMORY_HOST] = "devices=5,no-vmm,no-ipc",
};

TEST_LOOP(every_kind, 2 * BNY_MEMORY_KINDS) {
  int kind = _i % BNY_MEMORY_KINDS;
  for (int32_t nranks = 1; nranks <= RANKS_MAX; nranks++)
    for (int one_device = 0; one_device < 2; one_device++)
      run_task((task){.words = words_of_kind[kind],
                      .nranks = nranks,
                      .processes = _i >= BNY_MEMORY_KINDS,
                      .one_device = one_device,
                      .kind = (bny_memory_kind)kind});
}

/* Each process sees only its own device. Links count as NVLink if memory is shared by fabric handles or all devices
 * have multicast. Without such evidence they count as PCIe. */
TEST(links_of_devices_that_are_not_seen) {
  static const task tasks[] = {
      {.words = "", .kind = BNY_MEMORY_FABRIC},
      {.words = "", .kind = BNY_MEMORY_FABRIC, .nodes_differ = true},
      {.words = "multicast", .kind = BNY_MEMORY_FILE},
      {.words = "multicast,no-fabric", .kind = BNY_MEMORY_FILE},
      {.words = "multicast,no-vmm", .kind = BNY_MEMORY_IPC},
      {.words = "multicast,no-fabric", .odd_words = "no-fabric", .kind = BNY_MEMORY_FILE, .pcie = true},
      {.words = "multicast", .odd_words = "", .kind = BNY_MEMORY_FABRIC},
      {.words = "no-fabric", .kind = BNY_MEMORY_FILE, .pcie = true},
      {.words = "", .odd_words = "no-fabric", .kind = BNY_MEMORY_FILE, .pcie = true},
      {.words = "no-vmm", .kind = BNY_MEMORY_IPC, .pcie = true},
      {.words = "multicast,no-vmm,no-ipc", .kind = BNY_MEMORY_HOST, .pcie = true},
  };
  for (size_t i = 0; i < sizeof tasks / sizeof tasks[0]; i++) {
    task task = tasks[i];
    task.nranks = 3, task.alone = task.processes = true;
    run_task(task);
  }
}

/* ---- devices that differ or are broken --------------------------------------------------------------------------- */

#define LOST "what rank 1 wrote into the arena of rank 0 by memory files did not arrive"
#define NOT_IMPORTED "the arena of rank 0 cannot be mapped by rank 2: importing a peer's arena into CUDA device 2"
#define STRICT " (BANYAN_DEVICE_FALLBACK is error on some rank)"

/* Ranks are threads and processes. */
static const task outcomes[] = {
    /* ranks on several nodes of one NVLink domain */
    {.words = "", .nodes_differ = true, .kind = BNY_MEMORY_FABRIC},
    {.words = "no-fabric:2",
     .nodes_differ = true,
     .status = BANYAN_ERR_UNSUPPORTED,
     .says = "ranks 0 and 1 are on different nodes"},
    /* a device that lacks a kind decides for all */
    {.words = "no-files:1", .kind = BNY_MEMORY_FABRIC},
    {.words = "no-vmm:2", .kind = BNY_MEMORY_IPC},
    {.words = "no-files:0,no-fabric:1", .kind = BNY_MEMORY_IPC},
    {.words = "no-vmm:2,no-ipc:0", .kind = BNY_MEMORY_HOST},
    {.words = "no-peer:1", .kind = BNY_MEMORY_HOST},
    /* nothing in common */
    {.words = "no-vmm:2,no-ipc:2,no-host:1",
     .status = BANYAN_ERR_UNSUPPORTED,
     .says = "the device of rank 2 does not share memory by memory files"},
    {.words = "no-peer:1",
     .strict = true,
     .status = BANYAN_ERR_UNSUPPORTED,
     .says = "the device of rank 0 has no peer access to that of rank 1" STRICT},
    {.words = "no-peer:1",
     .odd_rank = 2,
     .odd_strict = true,
     .status = BANYAN_ERR_UNSUPPORTED,
     .says = "the device of rank 0 has no peer access to that of rank 1" STRICT},
    {.words = "", .odd_rank = 1, .odd_bytes = true, .status = BANYAN_ERR_MISMATCH, .says = "arenas on devices are of"},
    /* Broken mappings are named. All ranks fail, or all use another kind. Threads use addresses, which are right. */
    {.words = "lost-writes:1", .strict = true, .status = BANYAN_ERR_SYSTEM, .says = LOST},
    {.words = "lost-writes:1", .kind = BNY_MEMORY_IPC, .warns = LOST},
    {.words = "import-fails:2", .strict = true, .status = BANYAN_ERR_SYSTEM, .says = NOT_IMPORTED},
    {.words = "import-fails:2", .kind = BNY_MEMORY_IPC, .warns = NOT_IMPORTED},
};
enum { OUTCOMES = sizeof outcomes / sizeof outcomes[0] };

TEST_LOOP(outcomes_of_devices_that_differ, 2 * OUTCOMES) {
  task task = outcomes[_i / 2];
  task.nranks = 3;
  task.processes = _i % 2;
  if (task.warns && task.processes) task.kind = BNY_MEMORY_HOST;
  run_task(task);
}

TEST(arenas_too_small_are_rejected) {
  bny_device *device = NULL;
  banyan_bootstrap bootstrap = {.size = sizeof bootstrap, .nranks = 4};
  bny_exchange exchange = {&bootstrap, 0, bny_process()};
  int32_t zeros[4] = {0};
  bny_arenas_config config = {.bytes = 4 * 2 * BNY_ARENAS_CELL_BYTES - 16, .nodes = zeros, .processes = zeros};
  bny_arenas *arenas = NULL;
  ck_assert_int_eq(open_fake(0, &device), BANYAN_OK);
  ck_assert_int_eq(bny_arenas_make(device, &exchange, &config, &arenas), BANYAN_ERR_ARGUMENT);
  config.bytes = BYTES + 8;
  ck_assert_int_eq(bny_arenas_make(device, &exchange, &config, &arenas), BANYAN_ERR_ARGUMENT);
  device->ops->close(device);
}

/* For any device: arenas by the allowed kinds of memory, where one rank maps other memory than its peer's. */
typedef struct mapping {
  uint32_t kinds;
  int32_t victim, owner; /* victim -1: no mapping is broken */
  bool strict, one_device;
} mapping;

static _Thread_local struct {
  banyan_status (*import)(bny_device *device, const bny_device_offer *offer, bny_device_memory **memory);
  int before; /* imports before the broken one; below 0: no import is broken */
} broken;

static banyan_status import_or_break(bny_device *device, const bny_device_offer *offer, bny_device_memory **memory) {
  if (broken.before-- != 0) return broken.import(device, offer, memory);
  return device->ops->memory_make(device, offer->kind, offer->bytes, memory);
}

static void map_and_use(world_rank *self) {
  const mapping *what = self->argument;
  const bool breaks = what->victim >= 0, must_fail = what->strict && (self->on->processes || !what->one_device);
  int32_t nodes[WORLD_RANKS_MAX] = {0}, processes[WORLD_RANKS_MAX] = {0};
  char pair[2][16];
  bny_device *device = NULL;
  bny_arenas *arenas = NULL;
  for (int32_t i = 0; i < self->nranks; i++) processes[i] = self->on->processes ? i : 0;
  if (!world_ok(self, bny_device_open_named(self->device, getenv("BANYAN_CUDA_LIBRARY"), &device), "open")) return;
  bny_device_ops ops = *device->ops;
  broken.import = ops.memory_import;
  broken.before = self->rank == what->victim ? what->owner - (what->owner > what->victim) : -1;
  ops.memory_import = import_or_break;
  device->ops = &ops;
  device->facts.memory_kinds &= what->kinds;
  const bny_arenas_config config = {.bytes = BYTES, .nodes = nodes, .processes = processes, .strict = what->strict};
  const bny_exchange exchange = {&self->bootstrap, bny_clock_ns() + WORLD_GUARD_NS, bny_process()};
  if (!breaks && device->facts.memory_kinds == 0) {
    if (self->rank == 0) world_skip("mappings", "the device does not have this kind of memory");
    device->ops->close(device);
    return;
  }
  banyan_status status = bny_arenas_make(device, &exchange, &config, &arenas);
  if (breaks && status != BANYAN_OK) {
    snprintf(pair[0], sizeof pair[0], "rank %d", what->victim);
    snprintf(pair[1], sizeof pair[1], "rank %d", what->owner);
    world_check(self, what->strict && strstr(banyan_last_error(), pair[0]) && strstr(banyan_last_error(), pair[1]),
                "%s and %s are not named: %s", pair[0], pair[1], banyan_last_error());
    status = bny_arenas_make(device, &exchange, &config, &arenas); /* the device must still work */
  } else {
    world_check(self, !breaks || !must_fail, "a broken mapping was not found");
  }
  if (world_ok(self, status, "arenas")) use_arenas(self, arenas);
  bny_arenas_free(arenas);
  device->ops->close(device);
}

/* A broken mapping is reported, or ranks use another kind of memory. Ranks that are threads on one device have two
 * kinds of equal rank. */
TEST_EVERYWHERE(mappings, 24) {
  static const int32_t ranks[] = {2, 3, 8};
  const int kind = (_i + _i / 8) % BNY_MEMORY_KINDS;
  const int32_t nranks = world_ranks(on, ranks[_i / BNY_MEMORY_KINDS % 3]);
  mapping what = {.kinds = 1u << kind, .victim = -1, .one_device = on != &world_emulated};
  if (!on->is_device || on == &world_staged) return;
  if (world_is_quick() && nranks > 3) {
    world_skip("mappings", "--quick");
    return;
  }
  WORLD_RUN(map_and_use, .on = on, .nranks = nranks, .bare = true, .one_device = what.one_device, .argument = &what);
  if (kind == BNY_MEMORY_HOST) return; /* there is no slower kind */
  what.kinds = (1u << BNY_MEMORY_KINDS) - (1u << kind);
  for (int way = 0; way < 4; way++) {
    what.victim = way / 2 ? nranks - 1 : 0;
    what.owner = way / 2 ? 0 : nranks - 1;
    what.strict = way % 2;
    WORLD_RUN(map_and_use, .on = on, .nranks = nranks, .bare = true, .one_device = what.one_device, .argument = &what);
  }
}

/* One rank leaves after any number of gathers. All others end in time. */
TEST_LOOP(silent_ranks_are_waited_for_in_vain, 2) {
  for (int gathers = 0; gathers < 8; gathers++)
    run_task((task){.nranks = 3,
                    .processes = _i,
                    .deadline_ms = 250,
                    .status = BANYAN_ERR_TIMEOUT,
                    .silence = true,
                    .odd_rank = 1,
                    .odd_gathers = gathers});
}

TEST(busy_devices_are_not_waited_for) {
  run_task((task){.words = "slow-writes:1",
                  .nranks = 3,
                  .processes = true,
                  .stuck = true,
                  .deadline_ms = 300,
                  .status = BANYAN_ERR_TIMEOUT,
                  .says = "device 1 (Fake 1) did not finish copies in time"});
}

int main(void) { return world_main(suite_of("device_share", 60)); }
