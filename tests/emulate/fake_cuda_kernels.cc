/* SPDX-License-Identifier: Apache-2.0
 * The launches of the library's kernels in the fake CUDA driver. They wait for fake_cuda_run(), which runs them on
 * emulated devices. */
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/combine.cuh"
#include "cuda/decode.cuh"
#include "fake_cuda_parts.h"
#include "fake_cuda_queue.hh"
#include "tests/gpu/words.cuh"
#include "user_kernel.cuh"
extern "C" {
#include "tests/emulate/fake_cuda.h"
}

/* ---- kernels by name --------------------------------------------------------------------------------------------- */

/* Binds the arguments with their current values, because launches copy them. */
template <typename... parameters, size_t... places>
static std::function<void()> call_of(void (*kernel)(parameters...), void **arguments, std::index_sequence<places...>) {
  std::tuple<parameters...> copies(*static_cast<parameters *>(arguments[places])...);
  return [kernel, copies] { std::apply(kernel, copies); };
}

template <typename... parameters>
static std::function<void()> call_of(void (*kernel)(parameters...), void **arguments) {
  return call_of(kernel, arguments, std::index_sequence_for<parameters...>());
}

static void add_words(fake_words *words, const void *from, size_t bytes) {
  size_t first = words->size(), count = bytes / sizeof(uint64_t);
  words->resize(first + count);
  if (count) memcpy(&(*words)[first], from, count * sizeof(uint64_t));
}

/* Adds the words of a parameter and of its program. */
template <typename T> static void add_parameter(fake_words *words, const void *argument) {
  add_words(words, argument, sizeof(T));
  if constexpr (std::is_same_v<T, const bny_program *>) {
    const bny_program *program = *static_cast<const bny_program *const *>(argument);
    add_words(words, program, program->bytes);
  }
}

template <typename... parameters> static fake_words words_of(void (*)(parameters...), void **arguments) {
  fake_words words;
  size_t place = 0;
  (add_parameter<parameters>(&words, arguments[place++]), ...);
  return words;
}

struct entry {
  const char *name;
  std::function<void()> (*bind)(void **arguments);
  fake_words (*words)(void **arguments);
};

#define ENTRY(kernel)                                                    \
  {#kernel, [](void **arguments) { return call_of(kernel, arguments); }, \
   [](void **arguments) { return words_of(kernel, arguments); }},
#define BNY_CUDA_KERNEL(kernel, ...) ENTRY(kernel)
#define BNY_DECODE_KERNEL(form, label, size, variant, shared) ENTRY(bny_decode_##label##_##variant)
static const entry entries[] = {
#include "cuda/decode_kernels.def"
#include "cuda/kernels.def"
    ENTRY(user_kernel) ENTRY(words_message) ENTRY(words_tear)};
#undef ENTRY
#undef BNY_CUDA_KERNEL
#undef BNY_DECODE_KERNEL

const void *fake_kernel_find(const char *name) {
  for (const entry &one : entries)
    if (strcmp(one.name, name) == 0) return &one;
  return nullptr;
}

bool fake_kernel_is(const void *function) {
  return function >= static_cast<const void *>(std::begin(entries)) &&
         function < static_cast<const void *>(std::end(entries));
}

static std::atomic<unsigned> noted[std::size(entries)];

void fake_kernel_note(const void *function, unsigned what) {
  if (fake_kernel_is(function)) noted[static_cast<const entry *>(function) - entries] |= what;
}

unsigned fake_kernel_noted(const void *function) { return noted[static_cast<const entry *>(function) - entries]; }

/* ---- launches ---------------------------------------------------------------------------------------------------- */

struct waiting {
  std::vector<bny_emulator_launch> launches;
  std::map<const void *, std::vector<bny_emulator_launch>> captured; /* by stream */
  uint32_t most_blocks = 0, early = 0;
};

static waiting &all() {
  static waiting made;
  return made;
}

void fake_kernel_launch(const void *function, void *stream, bool captured, const fake_cuda_launch *launch) {
  const entry *kernel = static_cast<const entry *>(function);
  bny_emulator_launch made = {};
  fake_note(kernel->name);
  bny_emulator_truncate(fake_is("truncates", launch->device));
  made.device = static_cast<uint32_t>(launch->device);
  made.stream = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(stream) >> 4);
  made.blocks = launch->grid[0];
  made.threads = launch->block[0];
  made.cluster = launch->cluster[0];
  made.shared_bytes = launch->shared_bytes;
  made.overlap = launch->early;
  made.kernel = kernel->bind(launch->arguments);
  if (fake_queue_is_on()) {
    std::string slow = std::string("slow-") + kernel->name;
    if (fake_is(slow.c_str(), launch->device)) fake_queue_delay(stream, 1000);
    fake_queue_launch(stream, made, kernel->words(launch->arguments));
    return;
  }
  fake_lock();
  all().most_blocks = std::max(all().most_blocks, made.blocks);
  all().early += made.overlap;
  (captured ? all().captured[stream] : all().launches).push_back(made);
  fake_unlock();
}

void fake_kernel_forget(const void *stream) {
  fake_lock();
  all().captured.erase(stream);
  fake_unlock();
}

extern "C" EXPORTED fake_cuda_replay_function fake_cuda_replay;
void fake_cuda_replay(void *stream) {
  fake_lock();
  const std::vector<bny_emulator_launch> &again = all().captured[stream];
  all().launches.insert(all().launches.end(), again.begin(), again.end());
  fake_unlock();
}

extern "C" EXPORTED fake_cuda_most_blocks_function fake_cuda_most_blocks;
uint32_t fake_cuda_most_blocks(void) {
  fake_lock();
  uint32_t most = all().most_blocks;
  fake_unlock();
  return most;
}

extern "C" EXPORTED fake_cuda_early_launches_function fake_cuda_early_launches;
uint32_t fake_cuda_early_launches(void) {
  fake_lock();
  uint32_t early = all().early;
  fake_unlock();
  return early;
}

extern "C" EXPORTED fake_cuda_watch_copies_function fake_cuda_watch_copies;
uint64_t fake_cuda_watch_copies(const void *memory, size_t bytes) { return bny_emulator_watch_copies(memory, bytes); }

/* No device owns it, so every store waits. */
static void hold_stores(void *emulator, void *memory, size_t bytes) {
  bny_emulator_own(static_cast<bny_emulator *>(emulator), UINT32_MAX, memory, bytes);
}

extern "C" EXPORTED fake_cuda_run_function fake_cuda_run;
bool fake_cuda_run(char *why, size_t bytes) {
  bny_emulator_config config = {};
  config.seed = static_cast<uint64_t>(fake_number("seed", 1));
  config.step_ns = static_cast<uint64_t>(fake_number("step-ns", 10));
  config.weak = true;
  config.steps_max = 400000000;
  config.resident_blocks = 8 * static_cast<uint32_t>(fake_number("sms", 0));
  std::vector<bny_emulator_launch> launches;
  bny_emulator *emulator = bny_emulator_make(config);
  fake_lock();
  launches.swap(all().launches);
  if (fake_is("aliases", 0)) fake_each_import(hold_stores, emulator);
  fake_unlock();
  for (const bny_emulator_launch &launch : launches) bny_emulator_add(emulator, launch);
  bool ended = bny_emulator_run(emulator, why, bytes);
  bny_emulator_free(emulator);
  return ended;
}
