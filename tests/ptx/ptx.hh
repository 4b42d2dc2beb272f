/* SPDX-License-Identifier: Apache-2.0
 * Runs nvcc's PTX of kernels on the emulator of tests/emulate/emulate.hh. Each emulated thread interprets instructions
 * instead of running a host compiler's code.
 *
 * The effect of an instruction follows from the PTX ISA (of CUDA 13, chapters "Instruction Set", "Memory Consistency
 * Model"), not from the emulator's version of the same function. The emulator decides everything between threads: when
 * stores become visible, barriers, asynchronous copies, time. Reading is strict: an unknown opcode, modifier or
 * directive is an error that names it. Errors are also accesses that are not aligned, leave their state space, or
 * change a kernel's parameters.
 *
 * Three things go beyond PTX. `ld.volatile.global.v4` and `st.volatile.global.v4` access complete lines as in device.h;
 * lanes that branch around such a store, and around nothing else, take part in it without a value. Instructions that
 * are .aligned meet at one place in the code. Approximations, and sums of mma, are as exact as the host's. */
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ptx {

struct instruction;
struct function;
struct module;
struct matrices;
struct multiplication;

/* A running thread. Each call has a frame, which holds special registers, constants, registers and memory. */
struct thread {
  unsigned char *frame;
  const function *running;
  unsigned char *shared; /* shared memory of the block: address 0 of the state space */
  uint32_t dynamic_at, dynamic_end, static_at, static_end;
  const unsigned char *parameters; /* parameters of the kernel */
  size_t parameters_bytes;
  unsigned char *bottom; /* end of the first frame, the highest address */
  uint32_t rounds;       /* backward jumps */
  bool in_cluster_barrier;
  ptx::matrices *matrices; /* NULL if the kernel has no warpgroup operations */
};

using handler = const instruction *(*)(thread &, const instruction *);

enum space : uint8_t { GENERIC, GLOBAL, SHARED, LOCAL, PARAM };
enum order : uint8_t { WEAK, RELAXED, ORDERED /* acquire, release */, LINE };
enum : uint32_t { OPERANDS_MAX = 14, NOWHERE = UINT32_MAX, SHORT_ADDRESS = 1u << 31 };

struct call {
  const function *callee;
  std::vector<uint32_t> arguments; /* offsets in the caller's frame */
  uint32_t result;
};

struct instruction {
  handler run;
  uint32_t predicate = NOWHERE; /* offset of the predicate in the frame */
  bool negated = false;
  bool always = false; /* the handler checks the predicate itself */
  bool is_move = false, stores_line = false;
  bool has_effect = false;
  ptx::space space = GENERIC;
  ptx::order order = WEAK;
  uint8_t bytes = 0, width = 0, count = 0; /* size of an element in memory; width of its register; elements */
  bool is_signed = false;
  uint32_t at[OPERANDS_MAX] = {}; /* offsets of operands; with SHORT_ADDRESS for an address of 4 bytes */
  int64_t offset[3] = {};         /* offsets added to addresses */
  uint32_t target = 0;            /* branch: index in the code */
  const ptx::call *call = nullptr;
  std::shared_ptr<const multiplication> multiplied; /* used by warpgroup operations */
  uint32_t line = 0, registers = 0;                 /* registers: bit k: operand k has 4 bytes */
};

struct variable {
  std::string name;
  uint32_t at, bytes;
};

struct function {
  std::string name;
  const module *of;
  bool is_entry;
  bool has_matrices = false;        /* it has warpgroup operations */
  std::vector<variable> parameters; /* entry: offsets in its parameters; otherwise in the frame */
  uint32_t parameters_bytes = 0, threads_max = 0, result_bytes = 0, shared_bytes = 0;
  uint32_t dynamic_at = 0; /* start of dynamic shared memory, with only its declared alignment */
  std::vector<instruction> code;
  std::vector<std::unique_ptr<call>> calls;
  std::vector<unsigned char> image; /* initial contents of a frame */
};

/* A frame begins with the special registers. */
enum : uint32_t {
  AT_FRAME = 0,       /* its own address */
  AT_STATIC = 8,      /* static shared memory */
  AT_PARAMETERS = 16, /* parameters of a kernel */
  AT_RESULT = 24,     /* address of the caller's result */
  AT_ZERO = 32,
  AT_TID = 40,
  AT_NTID = 44,
  AT_CTAID = 48,
  AT_NCTAID = 52,
  AT_CLUSTER_RANK = 56,
  AT_CLUSTER_BLOCKS = 60,
  SPECIAL_BYTES = 64
};

enum operand_kind : uint8_t { VALUE, CONSTANT, CLOCK, SYMBOL /* a named address */, ADDRESS /* in brackets */, LABEL };
struct operand {
  operand_kind kind;
  uint8_t group;  /* number of the written operand; a vector, or a pair with |, has several parts */
  uint32_t bytes; /* 0: a constant; 1: a predicate */
  uint32_t at;
  int64_t offset;
  std::string name;
};

/* An opcode of the tables. signature: its operands as letters: p predicate, 2 4 8 bytes of a value, a address. */
struct row {
  const char *name, *signature;
  handler run;
  bool has_effect;
};
/* The tables. A row without a name ends each of them. */
extern const row arithmetic_rows[], conversion_rows[], memory_rows[], warp_rows[], matrix_rows[];

/* Throws the reason of an error as text. */
void decode(const std::string &opcode, const std::vector<operand> &operands, instruction *made);
void keep_lines_whole(function *made);
/* These return false for another opcode. */
bool decode_access(const std::string &opcode, const std::vector<operand> &operands, instruction *made);
bool decode_multiply(const std::string &opcode, const std::vector<operand> &operands, instruction *made);

/* Reads a function at the first request; NULL: it does not exist. Errors end the process, since only tests run this. */
std::shared_ptr<module> read_module(const std::string &path);
std::shared_ptr<module> make_module(const std::string &path, const std::string &text); /* path: for error texts */
const function *find(module *of, const std::string &name);
/* Returns the function that each thread of a launch runs, with a copy of the arguments. */
std::function<void()> bind(const function *kernel, uint32_t dynamic_bytes, void **arguments);
const instruction *run_jump(thread &self, const instruction *i);
const instruction *run_call(thread &self, const instruction *i);
const instruction *run_return(thread &self, const instruction *i);

[[noreturn]] void fail(const thread &self, const instruction *at, const char *why);

/* State of threads with warpgroup operations (matrix.cc), until the last thread of the block ends. */
void begin_matrices(thread *self, uint32_t frame_bytes);
void end_matrices(thread *self);
void check_registers(const thread &self, const instruction *i);
/* These record writes to shared memory, by its addresses, and fences between proxies. Writes come through the generic
 * proxy, also by copies that are waited for, or by a bulk copy. */
void note_store(const thread &self, uint64_t at, size_t bytes);
void note_copy(const thread &self, uint64_t at);
void note_commit(const thread &self);
void note_wait(const thread &self, int groups);
void note_fence(const thread &self);
bool is_shared(const thread &self, const void *at, size_t bytes);

template <class T> inline T get(const thread &self, const instruction *i, int k) {
  T value;
  memcpy(&value, self.frame + i->at[k], sizeof value);
  return value;
}
/* A constant predicate may be any number. */
template <> inline bool get<bool>(const thread &self, const instruction *i, int k) { return self.frame[i->at[k]] != 0; }
template <class T> inline void put(const thread &self, const instruction *i, int k, T value) {
  memcpy(self.frame + i->at[k], &value, sizeof value);
}
/* Copies bytes. It is a memcpy that is fast for the sizes of values. */
inline void copy_bytes(void *to, const void *from, size_t bytes) {
  switch (bytes) {
  case 4: memcpy(to, from, 4); break;
  case 8: memcpy(to, from, 8); break;
  case 2: memcpy(to, from, 2); break;
  default: memcpy(to, from, bytes);
  }
}
/* Returns the kind of an exchange at this one instruction, as .aligned requires. */
inline uint32_t aligned(uint32_t kind, const instruction *i) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(i) / sizeof *i) << 4 | kind;
}
inline bool wanted(const thread &self, const instruction *i) {
  return i->predicate == NOWHERE || (self.frame[i->predicate] != 0) != i->negated;
}

/* For the tables: a handler, and a row whose instruction has an effect and continues with the next. */
#define DOES [](thread & self, const instruction *i) -> const instruction *
#define ROW(name, signature, ...)    \
  {name, signature, DOES{(void)self; \
  __VA_ARGS__;                       \
  return i + 1;                      \
  }                                  \
  , true                             \
  }                                  \
  ,

} // namespace ptx
