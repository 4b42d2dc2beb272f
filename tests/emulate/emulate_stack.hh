/* SPDX-License-Identifier: Apache-2.0
 * Makes stacks of emulated threads, and switches between them and the stack of the OS thread that runs them all. */
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define EMULATE_ASAN 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace {

enum : size_t { STACK_BYTES = 256 << 10 };

/* Where a stack is left and entered. */
struct stack_place {
#ifdef __x86_64__
  void *sp = nullptr;
#else
  ucontext_t context;
#endif
  void *fake_stack = nullptr; /* for the address sanitizer */
};

struct emulated_stack : stack_place {
  char *memory;
};

struct own_stack : stack_place {
  const void *bottom = nullptr;
  size_t bytes = 0;
};

#ifdef __x86_64__
extern "C" void bny_emulate_switch(void **save, void *to);
__asm__(".text\n.type bny_emulate_switch, @function\nbny_emulate_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
        ".size bny_emulate_switch, .-bny_emulate_switch\n");
#endif

/* Switches, and returns when another switch comes back. `fake_stack` is where the sanitizer notes the stack that is
 * left, NULL if it is left for ever. */
void switch_stacks(stack_place *from, stack_place *to, void **fake_stack, const void *bottom, size_t bytes) {
#ifdef EMULATE_ASAN
  __sanitizer_start_switch_fiber(fake_stack, bottom, bytes);
#else
  (void)fake_stack, (void)bottom, (void)bytes;
#endif
#ifdef __x86_64__
  bny_emulate_switch(&from->sp, to->sp);
#else
  swapcontext(&from->context, &to->context);
#endif
#ifdef EMULATE_ASAN
  __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

void enter_stack(own_stack *own, emulated_stack *next) {
  switch_stacks(own, next, &own->fake_stack, next->memory, STACK_BYTES);
}

void leave_stack(own_stack *own, emulated_stack *stack, bool last) {
  switch_stacks(stack, own, last ? nullptr : &stack->fake_stack, own->bottom, own->bytes);
}

/* The first call on a stack. */
void begin_stack(own_stack *own) {
#ifdef EMULATE_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &own->bottom, &own->bytes);
#else
  (void)own;
#endif
}

/* Clears the sanitizer marks of frames that never returned. Later memory at these addresses would inherit them. */
void clean(char *stack) {
#ifdef EMULATE_ASAN
  __asan_unpoison_memory_region(stack, STACK_BYTES);
#else
  (void)stack;
#endif
}

/* Free stacks, which a thread keeps for its next emulator. */
struct stack_pool {
  std::vector<char *> stacks;
  ~stack_pool() {
    for (char *stack : stacks) {
      clean(stack);
      munmap(stack, STACK_BYTES);
    }
  }
};
thread_local stack_pool pool;

void free_stack(emulated_stack *stack) { pool.stacks.push_back(stack->memory); }

char *take_stack() {
  if (!pool.stacks.empty()) {
    char *stack = pool.stacks.back();
    pool.stacks.pop_back();
    return stack;
  }
  void *memory = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) abort();
  return static_cast<char *>(memory);
}

void make_stack(emulated_stack *made, void (*main)()) {
  made->memory = take_stack();
  clean(made->memory);
#ifdef __x86_64__
  /* Stacks begin at different offsets, so that they do not compete for the same cache sets. */
  size_t offset = reinterpret_cast<uintptr_t>(made->memory) / STACK_BYTES * 640 % (32 << 10);
  void **top = reinterpret_cast<void **>(made->memory + STACK_BYTES - offset) - 2;
  *top = reinterpret_cast<void *>(main);
  for (int i = 1; i <= 6; i++) top[-i] = nullptr;
  top[1] = nullptr;
  made->sp = top - 6;
#else
  getcontext(&made->context);
  made->context.uc_stack.ss_sp = made->memory;
  made->context.uc_stack.ss_size = STACK_BYTES;
  made->context.uc_link = nullptr;
  makecontext(&made->context, main, 0);
#endif
}

} // namespace
