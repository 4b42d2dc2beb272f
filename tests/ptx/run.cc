/* SPDX-License-Identifier: Apache-2.0
 * Runs a function's instructions, on the stack of the emulated thread. */
#include <alloca.h>

#include <cstdio>

#include "cuda/device.h"
#include "tests/ptx/ptx.hh"

namespace ptx {

enum : ptrdiff_t { FRAMES_BYTES_MAX = 200 << 10 };

void fail(const thread &self, const instruction *at, const char *why) {
  char text[200];
  snprintf(text, sizeof text, "%s (line %u of the PTX, %.80s)", why, at->line, self.running->name.c_str());
  bny_emulated_fail(text);
}

namespace {

void prepare(thread &self, const function &what, const call *made, unsigned char *frame) {
  uint64_t base = reinterpret_cast<uint64_t>(frame);
  unsigned char *before = self.frame;
  memcpy(frame, what.image.data(), what.image.size());
  memcpy(frame, before, SPECIAL_BYTES);
  memcpy(frame + AT_FRAME, &base, sizeof base);
  for (size_t k = 0; made && k < made->arguments.size(); k++)
    memcpy(frame + what.parameters[k].at, before + made->arguments[k], what.parameters[k].bytes);
  uint64_t result = made && made->result != NOWHERE ? reinterpret_cast<uint64_t>(before + made->result) : 0;
  memcpy(frame + AT_RESULT, &result, sizeof result);
}

void execute(thread &self, const function &what, const call *made, const instruction *from) {
  unsigned char *frame = static_cast<unsigned char *>(alloca(what.image.size() + 64));
  frame += -reinterpret_cast<uintptr_t>(frame) & 63;
  unsigned char *before = self.frame;
  const function *caller = self.running;
  if (!self.bottom) self.bottom = frame + what.image.size();
  if (self.bottom - frame > FRAMES_BYTES_MAX) fail(self, from, "too many calls within each other");
  prepare(self, what, made, frame);
  self.frame = frame;
  self.running = &what;
  if (what.has_matrices) begin_matrices(&self, static_cast<uint32_t>(what.image.size()));
  for (const instruction *i = what.code.data(); i && !what.has_matrices;) {
    if (!i->always && !wanted(self, i))
      i++;
    else
      i = i->run(self, i);
  }
  for (const instruction *i = what.code.data(); i && what.has_matrices;) {
    if (!i->always && !wanted(self, i)) {
      i++;
    } else {
      check_registers(self, i);
      i = i->run(self, i);
    }
  }
  if (what.has_matrices) end_matrices(&self);
  self.frame = before;
  self.running = caller;
}

} // namespace

const instruction *run_call(thread &self, const instruction *i) {
  execute(self, *i->call->callee, i->call, i);
  return i + 1;
}

const instruction *run_return(thread &, const instruction *) { return nullptr; }

/* Runs a jump. A loop yields every 1024 rounds, even if it accesses no memory. */
const instruction *run_jump(thread &self, const instruction *i) {
  const instruction *to = self.running->code.data() + i->target;
  if (to <= i && ++self.rounds % 1024 == 0) bny_emulated_yield();
  return to;
}

namespace {

/* The emulator allocates static shared memory by key. One key serves the static memory of any kernel. */
char static_key;

void run_thread(const function &kernel, uint32_t dynamic_bytes, const std::vector<unsigned char> &parameters) {
  alignas(64) unsigned char special[SPECIAL_BYTES] = {};
  const bny_emulated_thread &place = bny_emulated();
  thread self = {};
  self.frame = special;
  self.running = &kernel;
  self.shared = bny_dynamic_shared();
  self.dynamic_at = kernel.dynamic_at;
  self.dynamic_end = kernel.dynamic_at + dynamic_bytes;
  void *fixed = bny_emulated_shared(&static_key, kernel.dynamic_at + kernel.shared_bytes);
  self.static_at = static_cast<uint32_t>(static_cast<unsigned char *>(fixed) - self.shared) + kernel.dynamic_at;
  self.static_end = self.static_at + kernel.shared_bytes;
  self.parameters = parameters.data();
  self.parameters_bytes = parameters.size();
  uint64_t wide[] = {0, self.static_at, reinterpret_cast<uint64_t>(self.parameters), 0, 0};
  uint32_t numbers[] = {place.thread, place.block_threads, place.block,
                        place.blocks, place.cluster_rank,  place.cluster_blocks};
  memcpy(special, wide, sizeof wide);
  memcpy(special + AT_TID, numbers, sizeof numbers);
  if (kernel.threads_max && place.block_threads > kernel.threads_max)
    fail(self, kernel.code.data(), "more threads than the kernel is made for");
  execute(self, kernel, nullptr, kernel.code.data());
}

} // namespace

std::function<void()> bind(const function *kernel, uint32_t dynamic_bytes, void **arguments) {
  size_t bytes = kernel->parameters_bytes;
  auto parameters = std::make_shared<std::vector<unsigned char>>(bytes);
  for (size_t k = 0; k < kernel->parameters.size(); k++)
    memcpy(parameters->data() + kernel->parameters[k].at, arguments[k], kernel->parameters[k].bytes);
  return [=] { run_thread(*kernel, dynamic_bytes, *parameters); };
}

} // namespace ptx
