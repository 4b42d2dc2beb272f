/* SPDX-License-Identifier: Apache-2.0
 * Tests a CUDA device over the fake driver: how it is chosen and rejected, and its memory, streams and kernels. The
 * thread's context must not change, and no object may remain. */
#include <sys/wait.h>

#include "base/clock.h"
#include "device/cuda/entry.h"
#ifdef HAVE_CUDA
#include "device/cuda/driver.h"
#endif
#include "tests/device/device_util.h"
#include "tests/support/world.h"

/* Checks that opening fails with this status and text. */
static void rejects(const bny_device_choice *choice, banyan_status wanted, const char *says) {
  bny_device *device = NULL;
  banyan_status status = bny_device_open("cuda", choice, &device);
  ck_assert_msg(status == wanted && strstr(banyan_last_error(), says), "status %d, \"%s\"; not %d, \"%s\"", (int)status,
                banyan_last_error(), (int)wanted, says);
  ck_assert_ptr_null(device);
}

TEST(unknown_vendors_are_rejected) {
  bny_device_choice choice = {.by = BNY_DEVICE_BY_ORDINAL};
  bny_device *device = NULL;
  ck_assert_int_eq(bny_device_open("abacus", &choice, &device), BANYAN_ERR_ARGUMENT);
  ck_assert_ptr_nonnull(strstr(banyan_last_error(), "\"abacus\""));
}

TEST(missing_drivers_are_named) {
  bny_device_choice choice = {.by = BNY_DEVICE_BY_ORDINAL, .library = "/nowhere/libcuda.so.1"};
#ifdef HAVE_CUDA
  rejects(&choice, BANYAN_ERR_UNSUPPORTED, "no NVIDIA driver on this machine");
#else
  rejects(&choice, BANYAN_ERR_UNSUPPORTED, "built without CUDA");
#endif
}

#if defined HAVE_CUDA && defined HAVE_CXX17

static void machine(const char *words) { setenv("FAKE_CUDA", words, 1); }

/* ---- choice ------------------------------------------------------------------------------------------------------ */

#define OK(call) ck_assert_msg((call) == BANYAN_OK, "%s", banyan_last_error())

static bny_device *open_or_fail(const bny_device_choice *choice) {
  bny_device *device = NULL;
  OK(bny_device_open("cuda", choice, &device));
  return device;
}

static bny_device *open_ordinal(int32_t ordinal) {
  return open_or_fail(
      &(bny_device_choice){.by = BNY_DEVICE_BY_ORDINAL, .ordinal = ordinal, .library = fake_cuda_path()});
}

static void ck_nothing_is_left(void) {
  char text[256];
  int left = FAKE_CUDA(fake_cuda_live)(text, sizeof text);
  ck_assert_msg(left == 0, "left: %s", text);
}

TEST(what_is_missing_is_named) {
  char other[4096];
  bny_device_choice choice = {.by = BNY_DEVICE_BY_ORDINAL, .library = other};
  snprintf(other, sizeof other, "%s/tests/topo/.libs/fake_nvml.so", getenv("top_builddir"));
  rejects(&choice, BANYAN_ERR_UNSUPPORTED, "not CUDA's driver");
  choice.library = fake_cuda_path();
  machine("cuMemCreate");
  rejects(&choice, BANYAN_ERR_UNSUPPORTED, "has no cuMemCreate");
  machine("init-fails");
  rejects(&choice, BANYAN_ERR_UNSUPPORTED, "cuInit");
  machine("devices=0");
  rejects(&choice, BANYAN_ERR_UNSUPPORTED, "cuInit");
  machine("compute=75");
  rejects(&choice, BANYAN_ERR_UNSUPPORTED, "has compute capability 7.5; banyan needs 8.0");
  ck_nothing_is_left();
}

TEST(by_ordinal) {
  bny_device_choice choice = {.by = BNY_DEVICE_BY_ORDINAL, .library = fake_cuda_path()};
  for (choice.ordinal = 0; choice.ordinal < 4; choice.ordinal++) {
    bny_device *device = open_or_fail(&choice);
    const bny_device_facts *facts = &device->facts;
    ck_assert_int_eq(facts->ordinal, choice.ordinal);
    ck_assert_int_eq(facts->uuid[15], choice.ordinal);
    ck_assert_int_eq(facts->sm_count, 16 + choice.ordinal);
    ck_assert_int_eq(facts->compute, 90);
    ck_assert_int_eq(facts->driver, CUDA_VERSION);
    ck_assert(facts->clusters && facts->early_launch);
    ck_assert_uint_eq(facts->memory_kinds, (1u << BNY_MEMORY_KINDS) - 1);
    device->ops->close(device);
  }
  rejects(&choice, BANYAN_ERR_ARGUMENT, "device 4 was asked for; this process sees 4");
  choice.ordinal = -1;
  rejects(&choice, BANYAN_ERR_ARGUMENT, "device -1");
  choice.by = (bny_device_by)9;
  rejects(&choice, BANYAN_ERR_ARGUMENT, "not by 9");
  ck_nothing_is_left();
}

TEST(by_local_rank) {
  bny_device_choice choice = {.by = BNY_DEVICE_BY_LOCAL_RANK, .library = fake_cuda_path()};
  unsetenv("LOCAL_RANK");
  rejects(&choice, BANYAN_ERR_ARGUMENT, "LOCAL_RANK is not set");
  setenv("LOCAL_RANK", "2x", 1);
  rejects(&choice, BANYAN_ERR_ARGUMENT, "LOCAL_RANK is \"2x\"");
  setenv("LOCAL_RANK", "4", 1);
  rejects(&choice, BANYAN_ERR_ARGUMENT, "LOCAL_RANK is 4, and this process sees 4 CUDA devices");
  setenv("LOCAL_RANK", "3", 1);
  bny_device *device = open_or_fail(&choice);
  ck_assert_int_eq(device->facts.ordinal, 3);
  device->ops->close(device);
  machine("devices=1,first=3"); /* a launcher hides the other devices */
  device = open_or_fail(&choice);
  ck_assert_int_eq(device->facts.ordinal, 0);
  ck_assert_int_eq(device->facts.uuid[15], 3);
  device->ops->close(device);
}

TEST(by_context) {
  bny_device_choice choice = {.by = BNY_DEVICE_BY_CONTEXT, .library = fake_cuda_path()};
  rejects(&choice, BANYAN_ERR_ARGUMENT, "no CUDA device is current");
  FAKE_CUDA(fake_cuda_set_device)(2);
  bny_device *device = open_or_fail(&choice);
  ck_assert_int_eq(device->facts.ordinal, 2);
  ck_assert_int_eq(FAKE_CUDA(fake_cuda_current)(), 2);
  device->ops->close(device);
  machine("other-context");
  FAKE_CUDA(fake_cuda_set_device)(0);
  rejects(&choice, BANYAN_ERR_UNSUPPORTED, "is not its primary one");
  ck_nothing_is_left();
}

/* Images of a toolkit load only on drivers of its major version or newer. The error comes before anything is opened,
 * and names the remedy. */
TEST(older_drivers) {
  static const int major = CUDA_VERSION / 1000 * 1000;
  char words[64], says[256];
  bny_device_choice choice = {.by = BNY_DEVICE_BY_ORDINAL, .library = fake_cuda_path()};
  snprintf(words, sizeof words, "version=%d", major - 1000 + 90);
  machine(words);
  snprintf(says, sizeof says,
           "the NVIDIA driver is of CUDA %d.9, and this banyan was built with the toolkit of CUDA %d.%d",
           major / 1000 - 1, major / 1000, CUDA_VERSION % 1000 / 10);
  rejects(&choice, BANYAN_ERR_UNSUPPORTED, says);
  snprintf(says, sizeof says, "install a newer driver, or build banyan with a toolkit of CUDA %d", major / 1000 - 1);
  rejects(&choice, BANYAN_ERR_UNSUPPORTED, says);
  snprintf(words, sizeof words, "version=%d,cuLaunchKernelEx,cuFuncLoad,compute=80", major);
  machine(words);
  bny_device *device = open_or_fail(&choice);
  ck_assert(!device->facts.clusters && !device->facts.early_launch);
  ck_assert_int_eq(device->facts.driver, major);
  device->ops->close(device);
}

TEST(drivers_and_toolkits) {
  static const struct {
    int driver, toolkit;
    const char *says; /* NULL: they fit */
  } cases[] = {
      {12040, 12040, NULL},
      {12000, 12080, NULL},
      {13000, 12040, NULL},
      {13000, 13010, NULL},
      {14020, 13000, NULL},
      {12080, 13000, "of CUDA 12.8, and this banyan was built with the toolkit of CUDA 13.0 (release 580)"},
      {11080, 12040,
       "need a driver of CUDA 12.0 (release 525) or newer: install a newer driver, or build banyan with a toolkit of "
       "CUDA 11"},
      {13020, 14000, "need a driver of CUDA 14.0 or newer"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    banyan_status status = bny_cuda_driver_check_version(cases[i].driver, cases[i].toolkit);
    ck_assert_int_eq(status, cases[i].says ? BANYAN_ERR_UNSUPPORTED : BANYAN_OK);
    ck_assert_msg(!cases[i].says || strstr(banyan_last_error(), cases[i].says), "%s", banyan_last_error());
  }
}

TEST(links) {
  bny_device *first = open_ordinal(0), *second = open_ordinal(1);
  unsigned char unknown[BNY_DEVICE_UUID_BYTES] = {1, 2, 3};
  bny_device_link link;
  OK(first->ops->link(first, first->facts.uuid, &link));
  ck_assert(link.same && link.visible && link.access && link.atomics && link.lines_whole);
  OK(first->ops->link(first, second->facts.uuid, &link));
  ck_assert(!link.same && link.visible && link.access && link.atomics);
  OK(first->ops->link(first, unknown, &link));
  ck_assert(!link.same && !link.visible && !link.access);
  machine("no-peer:1");
  OK(first->ops->link(first, second->facts.uuid, &link));
  ck_assert(!link.same && link.visible && !link.access && !link.atomics && !link.lines_whole);
  first->ops->close(first);
  second->ops->close(second);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

TEST(kinds_are_tried) {
  static const struct {
    const char *words;
    uint32_t kinds;
  } cases[] = {
      {"no-vmm", 1u << BNY_MEMORY_IPC | 1u << BNY_MEMORY_HOST},
      {"no-files,no-ipc", 1u << BNY_MEMORY_FABRIC | 1u << BNY_MEMORY_HOST},
      {"no-fabric,no-host", 1u << BNY_MEMORY_FILE | 1u << BNY_MEMORY_IPC},
      {"no-vmm,no-ipc,no-host", 0},
      {"full", (1u << BNY_MEMORY_KINDS) - 1}, /* memory may be available later */
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    machine(cases[i].words);
    bny_device *device = open_ordinal(1);
    ck_assert_msg(device->facts.memory_kinds == cases[i].kinds, "%s: %x", cases[i].words, device->facts.memory_kinds);
    device->ops->close(device);
  }
  machine("full");
  bny_device *device = open_ordinal(0);
  bny_device_memory *memory = NULL;
  ck_assert_int_eq(device->ops->memory_make(device, BNY_MEMORY_FILE, 100, &memory), BANYAN_ERR_MEMORY);
  ck_assert_ptr_null(memory);
  machine("no-vmm");
  ck_assert_int_eq(device->ops->memory_make(device, BNY_MEMORY_FILE, 100, &memory), BANYAN_ERR_UNSUPPORTED);
  ck_assert_int_eq(device->ops->memory_make(device, BNY_MEMORY_FABRIC, 100, &memory), BANYAN_ERR_UNSUPPORTED);
  device->ops->close(device);
  ck_nothing_is_left();
}

static bny_device_memory *import(bny_device *device, bny_device_memory *memory) {
  bny_device_offer offer = {.kind = memory->kind, .bytes = memory->bytes, .file = -1, .same_process = true};
  bny_device_memory *imported = NULL;
  OK(memory->device->ops->memory_export(memory, &offer.handle, &offer.file));
  OK(device->ops->memory_import(device, &offer, &imported));
  if (offer.file >= 0) close(offer.file);
  ck_assert(imported->imported && imported->bytes == memory->bytes && imported->device == device);
  return imported;
}

static void write_then_read(bny_device *writer, void *to, bny_device *reader, const void *from) {
  bny_device_words words[2];
  OK(writer->ops->words_make(writer, 16, &words[0]));
  OK(reader->ops->words_make(reader, 16, &words[1]));
  for (uint64_t i = 0; i < 16; i++) {
    ck_assert_uint_eq(atomic_load(&words[1].host[i]), 0);
    atomic_store(&words[0].host[i], 0x1234567 * (i + 1));
  }
  OK(writer->ops->copy(writer, to, words[0].device, 128, NULL));
  OK(reader->ops->copy(reader, words[1].device, from, 128, NULL));
  for (uint64_t i = 0; i < 16; i++) ck_assert_uint_eq(atomic_load(&words[1].host[i]), 0x1234567 * (i + 1));
  writer->ops->words_free(writer, &words[0]);
  reader->ops->words_free(reader, &words[1]);
  ck_assert_ptr_null(words[0].host);
}

/* Shares each kind of memory between two devices and on one device, with either side freeing first, and with either
 * device current on the thread. Another thread may be capturing, which set-up must not invalidate. */
TEST_LOOP(memory_is_shared, 8 * BNY_MEMORY_KINDS) {
  bny_memory_kind kind = (bny_memory_kind)(_i % BNY_MEMORY_KINDS);
  bool owner_first = _i / BNY_MEMORY_KINDS % 2, one_device = _i / BNY_MEMORY_KINDS / 2 % 2;
  int current = one_device ? -1 : 3;
  machine(_i / BNY_MEMORY_KINDS / 4 ? "capturing" : "");
  FAKE_CUDA(fake_cuda_set_device)(current);
  bny_device *owner = open_ordinal(1), *peer = open_ordinal(one_device ? 1 : 2);
  bny_device_memory *memory = NULL;
  OK(owner->ops->memory_make(owner, kind, 100000, &memory));
  ck_assert(memory->bytes >= 100000 && memory->kind == kind && !memory->imported);
  bny_device_memory *seen = import(peer, memory);
  write_then_read(peer, (char *)seen->address + 99000, owner, (char *)memory->address + 99000);
  write_then_read(owner, memory->address, peer, seen->address);
  ck_assert_int_eq(FAKE_CUDA(fake_cuda_current)(), current);
  if (owner_first) {
    owner->ops->memory_free(memory);
    owner->ops->close(owner);
    write_then_read(peer, seen->address, peer, seen->address);
    peer->ops->memory_free(seen);
  } else {
    peer->ops->memory_free(seen);
    write_then_read(owner, memory->address, owner, memory->address);
    owner->ops->memory_free(memory);
    owner->ops->close(owner);
  }
  peer->ops->close(peer);
  ck_assert_int_eq(FAKE_CUDA(fake_cuda_current)(), current);
  ck_nothing_is_left();
}

TEST(imports_that_fail_leave_nothing) {
  static const char *const words[] = {"import-fails:2", "no-peer:2", "no-host:2"};
  for (int i = 0; i < 3; i++)
    for (int kind = 0; kind < BNY_MEMORY_KINDS; kind++) {
      machine("");
      bny_device *owner = open_ordinal(1), *peer = open_ordinal(2);
      bny_device_memory *memory = NULL, *seen = NULL;
      bny_device_offer offer = {.kind = (bny_memory_kind)kind, .file = -1, .same_process = true};
      OK(owner->ops->memory_make(owner, offer.kind, 4096, &memory));
      OK(owner->ops->memory_export(memory, &offer.handle, &offer.file));
      offer.bytes = memory->bytes;
      machine(words[i]);
      if (peer->ops->memory_import(peer, &offer, &seen) == BANYAN_OK)
        peer->ops->memory_free(seen);
      else
        ck_assert_ptr_null(seen);
      if (offer.file >= 0) close(offer.file);
      owner->ops->memory_free(memory);
      owner->ops->close(owner);
      peer->ops->close(peer);
      ck_nothing_is_left();
    }
}

/* After a fork, the first writer of private memory gets copies of pages. The parent's pages would then differ from
 * those that its device reads. */
TEST(registered_memory_is_not_inherited) {
  bny_device *device = open_ordinal(1);
  size_t bytes = (size_t)4 * (size_t)sysconf(_SC_PAGESIZE);
  char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(memory, MAP_FAILED);
  memset(memory, 1, bytes);
  for (int registered = 1; registered >= 0; registered--) {
    void *address = NULL;
    if (registered)
      OK(device->ops->host_register(device, memory, bytes, &address));
    else
      device->ops->host_unregister(device, memory, bytes);
    pid_t child = fork();
    unsigned char there[4];
    if (child == 0) _exit(mincore(memory, bytes, there) == 0 ? 0 : 3);
    int how = -1;
    ck_assert_int_eq(waitpid(child, &how, 0), child);
    ck_assert_int_eq(WEXITSTATUS(how), registered ? 3 : 0);
  }
  munmap(memory, bytes);
  device->ops->close(device);
  ck_nothing_is_left();
}

TEST(pointers) {
  bny_device *device = open_ordinal(1), *other = open_ordinal(2);
  bny_device_memory *memory = NULL;
  bny_device_words words;
  bny_pointer_facts facts;
  int plain = 0;
  OK(device->ops->memory_make(device, BNY_MEMORY_IPC, 4096, &memory));
  OK(device->ops->words_make(device, 1, &words));
  OK(device->ops->pointer(device, (char *)memory->address + 5, &facts));
  ck_assert(facts.kind == BNY_POINTER_DEVICE && facts.same && facts.ordinal == 1 && facts.reached);
  ck_assert(facts.first == (uintptr_t)memory->address && facts.bytes >= 4096);
  OK(other->ops->pointer(other, memory->address, &facts));
  ck_assert(facts.kind == BNY_POINTER_DEVICE && !facts.same && facts.ordinal == 1);
  OK(device->ops->pointer(device, words.device, &facts));
  ck_assert(facts.kind == BNY_POINTER_HOST && !facts.same && facts.ordinal == -1);
  OK(device->ops->pointer(device, &plain, &facts));
  ck_assert(facts.kind == BNY_POINTER_UNKNOWN && !facts.same && facts.ordinal == -1);
  device->ops->words_free(device, &words);
  device->ops->memory_free(memory);
  device->ops->close(device);
  other->ops->close(other);
}

/* ---- streams and kernels ----------------------------------------------------------------------------------------- */

static void fill(const fake_cuda_launch *launch) {
  unsigned char *to = *(unsigned char **)launch->arguments[0];
  uint32_t value = *(uint32_t *)launch->arguments[1];
  memset(to, (int)value, launch->grid[0] * launch->block[0]);
}

static fake_cuda_launch last_launch;
static void note(const fake_cuda_launch *launch) { last_launch = *launch; }

static const fake_cuda_image image = {.magic = FAKE_CUDA_MAGIC, .kernels = {{"fill", fill}, {"note", note}}};

static bny_device_module *load(bny_device *device, const void *what, size_t bytes, const char *name,
                               bny_device_kernel *kernel) {
  bny_device_module *made = NULL;
  OK(device->ops->module_load(device, what, bytes, &made));
  OK(device->ops->kernel_find(made, name, kernel));
  return made;
}

TEST_LOOP(streams, 2) {
  bny_device_memory *memory = NULL;
  bny_device_words words;
  void *stream = NULL, *local = NULL;
  bool done = false;
  machine(_i ? "capturing" : "");
  bny_device *device = open_ordinal(1);
  ck_assert_uint_eq(device->facts.memory_kinds, (1u << BNY_MEMORY_KINDS) - 1);
  OK(device->ops->memory_make(device, BNY_MEMORY_FILE, 4096, &memory));
  OK(device->ops->local_make(device, 1000, &local));
  OK(device->ops->words_make(device, 4, &words));
  OK(device->ops->stream_make(device, &stream));
  uint64_t before = FAKE_CUDA(fake_cuda_setup_calls)();
  OK(device->ops->zero(device, memory->address, 4096, stream));
  atomic_store(&words.host[0], 77);
  OK(device->ops->copy(device, words.device, memory->address, 8, stream));
  OK(device->ops->copy(device, words.device, NULL, 0, stream));
  ck_assert_uint_eq(atomic_load(&words.host[0]), 0);
  FAKE_CUDA(fake_cuda_capture)(stream, true);
  atomic_store(&words.host[0], 77);
  OK(device->ops->copy(device, words.device, memory->address, 8, stream));
  ck_assert_uint_eq(atomic_load(&words.host[0]), 77);
  FAKE_CUDA(fake_cuda_capture)(stream, false);
  ck_assert_msg(FAKE_CUDA(fake_cuda_setup_calls)() == before, "a hot call allocates or waits");
  OK(device->ops->stream_query(device, stream, &done));
  ck_assert(done);
  OK(device->ops->zero(device, local, 1000, stream));
  OK(bny_device_wait(device, stream, 0));
  ck_assert_int_eq(device->ops->copy(device, words.device, &device, 8, stream), BANYAN_ERR_SYSTEM);
  ck_assert_ptr_nonnull(strstr(banyan_last_error(), "copy of 8 bytes on CUDA device 1"));
  device->ops->stream_free(device, stream);
  device->ops->local_free(device, local);
  device->ops->words_free(device, &words);
  device->ops->memory_free(memory);
  device->ops->close(device);
  ck_nothing_is_left();
}

TEST_LOOP(kernels, 2) {
  machine(_i ? "capturing" : "");
  bny_device *device = open_ordinal(1);
  bny_device_module *module = NULL;
  bny_device_memory *memory = NULL;
  bny_device_kernel kernel, none;
  int32_t blocks = 0;
  FAKE_CUDA(fake_cuda_set_device)(0);
  ck_assert_int_eq(device->ops->module_load(device, &image, 0, &module), BANYAN_ERR_UNSUPPORTED);
  ck_assert_int_eq(device->ops->module_load(device, "no image at all", 16, &module), BANYAN_ERR_UNSUPPORTED);
  ck_assert_ptr_null(module);
  module = load(device, &image, sizeof image, "fill", &kernel);
  ck_assert_int_eq(device->ops->kernel_find(module, "nothing", &none), BANYAN_ERR_SYSTEM);
  ck_assert_ptr_nonnull(strstr(banyan_last_error(), "kernel nothing on CUDA device 1"));
  OK(device->ops->kernel_residency(device, &kernel, 256, 0, &blocks));
  ck_assert_int_eq(blocks, 8);
  OK(device->ops->kernel_clusters(device, &kernel, 256, 0, 4, &blocks));
  ck_assert_int_eq(blocks, device->facts.clusters ? device->facts.sm_count / 4 * 8 : 0);
  OK(device->ops->memory_make(device, BNY_MEMORY_HOST, 4096, &memory));
  void *to = memory->address;
  uint32_t value = 0x5b;
  void *arguments[] = {&to, &value};
  bny_device_launch launch = {.kernel = &kernel, .grid = {4, 1, 1}, .block = {32, 1, 1}, .arguments = arguments};
  uint64_t before = FAKE_CUDA(fake_cuda_setup_calls)();
  OK(device->ops->launch(device, &launch, NULL));
  ck_assert_uint_eq(((unsigned char *)to)[127], 0x5b);
  ck_assert_uint_ne(((unsigned char *)to)[128], 0x5b);
  ck_assert_uint_eq(FAKE_CUDA(fake_cuda_setup_calls)(), before);
  launch.grid[0] = 0;
  ck_assert_int_eq(device->ops->launch(device, &launch, NULL), BANYAN_ERR_SYSTEM);
  ck_assert_int_eq(FAKE_CUDA(fake_cuda_current)(), 0);
  device->ops->memory_free(memory);
  device->ops->module_unload(module);
  device->ops->close(device);
  ck_nothing_is_left();
}

/* Users of one device and image in a process share a module, until the last one has left. */
TEST(a_device_has_one_module) {
  enum { USERS = 4 };
  static const fake_cuda_image other = {.magic = FAKE_CUDA_MAGIC, .kernels = {{"fill", fill}}};
  static const struct {
    int32_t ordinal;
    const fake_cuda_image *image;
  } users[USERS] = {{1, &image}, {1, &image}, {2, &image}, {1, &other}};
  bny_device *devices[USERS];
  bny_device_module *modules[USERS];
  bny_device_kernel kernel;
  machine("");
  for (int i = 0; i < USERS; i++) {
    devices[i] = open_ordinal(users[i].ordinal);
    modules[i] = load(devices[i], users[i].image, sizeof *users[i].image, "fill", &kernel);
  }
  ck_assert_int_eq(FAKE_CUDA(fake_cuda_loads)(), USERS - 1);
  ck_assert(modules[0] == modules[1] && modules[0] != modules[2] && modules[0] != modules[3]);
  for (int i = 0; i < USERS; i++) {
    OK(devices[i]->ops->kernel_find(modules[i], "fill", &kernel));
    devices[i]->ops->module_unload(modules[i]);
    devices[i]->ops->close(devices[i]);
  }
  ck_nothing_is_left();
}

TEST_LOOP(launches_carry_attributes, 2) {
  bny_device_kernel kernel;
  machine(_i ? "compute=80" : "");
  bny_device *device = open_ordinal(2);
  bny_device_module *module = load(device, &image, sizeof image, "note", &kernel);
  bny_device_launch launch = {
      .kernel = &kernel, .grid = {8, 2, 1}, .block = {64, 1, 1}, .shared_bytes = 1000, .early = true};
  OK(device->ops->launch(device, &launch, NULL));
  ck_assert(last_launch.device == 2 && last_launch.grid[0] == 8 && last_launch.grid[1] == 2 &&
            last_launch.block[0] == 64);
  ck_assert(last_launch.shared_bytes == 1000 && last_launch.early == !_i && last_launch.cluster[0] == 0);
  launch.cluster[0] = 4, launch.cluster[1] = launch.cluster[2] = 1;
  ck_assert_int_eq(device->ops->launch(device, &launch, NULL), _i ? BANYAN_ERR_UNSUPPORTED : BANYAN_OK);
  ck_assert_uint_eq(last_launch.cluster[0], _i ? 0 : 4);
  device->ops->module_unload(module);
  device->ops->close(device);
}

/* A first launch loads nothing and allocates no stack memory, because drivers may wait for all kernels to do so. The
 * fake driver rejects launches that would. */
TEST_LOOP(kernels_are_ready_when_found, 3) {
  static const char *const machines[] = {"", "local=5000", "local=5000,cuFuncLoad"};
  bny_device_kernel kernel;
  char memory[4096] = {0};
  void *arguments[] = {memory, memory, memory};
  fake_cuda_set_image("emulated", 8);
  machine(machines[_i]);
  bny_device *device = open_ordinal(0);
  bny_device_module *module = load(device, "emulated", 8, "bny_oneshot_ll16_32", &kernel);
  ck_assert_int_eq(kernel.local_bytes, _i ? 5000 : 800);
  bny_device_launch launch = {.kernel = &kernel, .grid = {1, 1, 1}, .block = {32, 1, 1}, .arguments = arguments};
  OK(device->ops->launch(device, &launch, NULL));
  device->ops->module_unload(module);
  device->ops->close(device);
}

/* An image that a driver cannot use is reported as unsupported, with both versions and the remedy. Other failures do
 * not mention versions. */
TEST(images_that_do_not_load) {
  static const struct {
    CUresult result;
    banyan_status status;
  } cases[] = {
      {CUDA_ERROR_INVALID_IMAGE, BANYAN_ERR_UNSUPPORTED},
      {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, BANYAN_ERR_UNSUPPORTED},
      {CUDA_ERROR_INVALID_PTX, BANYAN_ERR_UNSUPPORTED},
      {CUDA_ERROR_NO_BINARY_FOR_GPU, BANYAN_ERR_UNSUPPORTED},
      {CUDA_ERROR_JIT_COMPILER_NOT_FOUND, BANYAN_ERR_UNSUPPORTED},
      {CUDA_ERROR_JIT_COMPILATION_DISABLED, BANYAN_ERR_UNSUPPORTED},
      {CUDA_ERROR_OUT_OF_MEMORY, BANYAN_ERR_MEMORY},
  };
  char words[64], says[256];
  snprintf(says, sizeof says,
           "by the toolkit of CUDA %d.%d, and the driver is of CUDA %d.%d: install a driver of CUDA %d.%d or newer, or "
           "build banyan "
           "with CUDA_ARCHS=103",
           CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10, CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10,
           CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    snprintf(words, sizeof words, "compute=103,load-fails=%d", (int)cases[i].result);
    machine(words);
    bny_device *device = open_ordinal(0);
    bny_device_module *module = NULL;
    ck_assert_int_eq(device->ops->module_load(device, "emulated", 8, &module), cases[i].status);
    ck_assert_ptr_null(module);
    bool said = strstr(banyan_last_error(), says) != NULL;
    ck_assert_msg(said == (cases[i].status == BANYAN_ERR_UNSUPPORTED), "%s", banyan_last_error());
    device->ops->close(device);
  }
  ck_nothing_is_left();
}

#endif

int main(void) { return world_main(suite_of("device", 0)); }
