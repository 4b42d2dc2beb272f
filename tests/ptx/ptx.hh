/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs PTX, what nvcc makes of kernels, on the emulator of kernels/cuda/emulate.h: each of its threads interprets
 * instructions instead of running the source as a host compiler made it.
 *
 * What an instruction does follows from the PTX ISA (of CUDA 13, chapters "Instruction Set", "Memory Consistency Model")
 * and not from the emulator's idea of the same function. What concerns other threads is the emulator's: when stores become
 * visible, barriers, asynchronous copies, time. Reading is strict: an unknown opcode, modifier or directive is an error
 * that names it, as are accesses that are not aligned, that leave their state space, or that change a kernel's parameters.
 *
 * Three things are more than PTX says. `ld.volatile.global.v4` and `st.volatile.global.v4` are those of whole lines of
 * device.h; lanes that branch around such a store, and around nothing else, take part in it with nothing. Instructions that are
 * .aligned meet at one place in the code. And approximations, and sums of mma, are as exact as the host's. */
#ifndef BNY_TESTS_PTX_HH
#define BNY_TESTS_PTX_HH

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

/* Of a thread that runs. Values lie in a frame, which each call has: special registers, constants, registers, memory. */
struct thread {
  unsigned char *frame;
  const function *running;
  unsigned char *shared; /* of the block: address 0 of the state space */
  uint32_t dynamic_at, dynamic_end, static_at, static_end;
  const unsigned char *parameters; /* of the kernel */
  size_t parameters_bytes;
  unsigned char *bottom; /* end of the first frame, the highest */
  uint32_t rounds;       /* jumps back */
  bool in_cluster_barrier;
  ptx::matrices *matrices; /* NULL: of a kernel without warpgroups' */
};

using handler = const instruction *(*)(thread &, const instruction *);

enum space : uint8_t { GENERIC, GLOBAL, SHARED, LOCAL, PARAM };
enum order : uint8_t { WEAK, RELAXED, ORDERED /* acquire, release */, LINE };
enum : uint32_t { OPERANDS_MAX = 14, NOWHERE = UINT32_MAX, SHORT_ADDRESS = 1u << 31 };

struct call {
  const function *callee;
  std::vector<uint32_t> arguments; /* where in the caller's frame */
  uint32_t result;
};

struct instruction {
  handler run;
  uint32_t predicate = NOWHERE; /* where it lies */
  bool negated = false;
  bool always = false; /* looks at its predicate itself */
  bool is_move = false, stores_line = false;
  bool has_effect = false;
  ptx::space space = GENERIC;
  ptx::order order = WEAK;
  uint8_t bytes = 0, width = 0, count = 0; /* of an element in memory, in its register; elements */
  bool is_signed = false;
  uint32_t at[OPERANDS_MAX] = {}; /* operands, where they lie; of an address of 4 bytes with SHORT_ADDRESS */
  int64_t offset[3] = {};         /* of addresses */
  uint32_t target = 0;            /* of a branch, in the code */
  const ptx::call *call = nullptr;
  std::shared_ptr<const multiplication> multiplied; /* of a warpgroup's matrices */
  uint32_t line = 0, registers = 0; /* bit k: operand k is one of 4 bytes */
};

struct variable {
  std::string name;
  uint32_t at, bytes;
};

struct function {
  std::string name;
  const module *of;
  bool is_entry;
  bool has_matrices = false; /* it multiplies some of a warpgroup */
  std::vector<variable> parameters; /* of an entry within its parameters; otherwise in the frame */
  uint32_t parameters_bytes = 0, threads_max = 0, result_bytes = 0, shared_bytes = 0;
  uint32_t dynamic_at = 0; /* dynamic shared memory: as little aligned as it is declared */
  std::vector<instruction> code;
  std::vector<std::unique_ptr<call>> calls;
  std::vector<unsigned char> image; /* of a frame at its beginning */
};

/* Special registers are where a frame begins. */
enum : uint32_t {
  AT_FRAME = 0,       /* its own address */
  AT_STATIC = 8,      /* of shared memory */
  AT_PARAMETERS = 16, /* of a kernel */
  AT_RESULT = 24,     /* where the caller wants it */
  AT_ZERO = 32,
  AT_TID = 40,
  AT_NTID = 44,
  AT_CTAID = 48,
  AT_NCTAID = 52,
  AT_CLUSTER_RANK = 56,
  AT_CLUSTER_BLOCKS = 60,
  SPECIAL_BYTES = 64
};

enum operand_kind : uint8_t { VALUE, CONSTANT, CLOCK, SYMBOL /* an address by name */, ADDRESS /* in brackets */, LABEL };
struct operand {
  operand_kind kind;
  uint8_t group;  /* which operand as it is written; a vector, or a pair with |, has several */
  uint32_t bytes; /* 0: a constant; 1: a predicate */
  uint32_t at;
  int64_t offset;
  std::string name;
};

/* An opcode that the tables have: operands, by letters: p predicate, 2 4 8 bytes of a value, a address. */
struct row {
  const char *name, *signature;
  handler run;
  bool has_effect;
};
/* Up to one without a name. */
extern const row arithmetic_rows[], conversion_rows[], memory_rows[], warp_rows[], matrix_rows[];

/* Throws what is wrong with it. */
void decode(const std::string &opcode, const std::vector<operand> &operands, instruction *made);
void keep_lines_whole(function *made);
/* False: another opcode. */
bool decode_access(const std::string &opcode, const std::vector<operand> &operands, instruction *made);
bool decode_multiply(const std::string &opcode, const std::vector<operand> &operands, instruction *made);

/* Reads a function when it is first asked for; NULL: there is none. Errors end the process: they are those of a test. */
std::shared_ptr<module> read_module(const std::string &path);
std::shared_ptr<module> make_module(const std::string &path, const std::string &text); /* path: for what is said */
const function *find(module *of, const std::string &name);
/* What a thread of a launch does; arguments are copied. */
std::function<void()> bind(const function *kernel, uint32_t dynamic_bytes, void **arguments);
const instruction *run_jump(thread &self, const instruction *i);
const instruction *run_call(thread &self, const instruction *i);
const instruction *run_return(thread &self, const instruction *i);

[[noreturn]] void fail(const thread &self, const instruction *at, const char *why);

/* What threads of a kernel with warpgroups' matrices keep (matrix.cc), until the last of their block ends. */
void begin_matrices(thread *self, uint32_t frame_bytes);
void end_matrices(thread *self);
void check_registers(const thread &self, const instruction *i);
/* Only of such: shared memory, by its addresses, that is written through the generic proxy, at once or by copies that are
 * waited for, or by a bulk copy; a fence between proxies. */
void note_store(const thread &self, uint64_t at, size_t bytes);
void note_copy(const thread &self, uint64_t at);
void note_commit(const thread &self);
void note_wait(const thread &self, int groups);
void note_bulk(const thread &self, uint64_t at, size_t bytes);
void note_fence(const thread &self);
bool is_shared(const thread &self, const void *at, size_t bytes);

template <class T> inline T get(const thread &self, const instruction *i, int k) {
  T value;
  memcpy(&value, self.frame + i->at[k], sizeof value);
  return value;
}
/* A constant predicate is any number. */
template <> inline bool get<bool>(const thread &self, const instruction *i, int k) { return self.frame[i->at[k]] != 0; }
template <class T> inline void put(const thread &self, const instruction *i, int k, T value) {
  memcpy(self.frame + i->at[k], &value, sizeof value);
}
/* memcpy, quick for sizes that values have. */
inline void copy_bytes(void *to, const void *from, size_t bytes) {
  switch (bytes) {
  case 4: memcpy(to, from, 4); break;
  case 8: memcpy(to, from, 8); break;
  case 2: memcpy(to, from, 2); break;
  default: memcpy(to, from, bytes);
  }
}
/* The kind of an exchange of lanes that are all at this very instruction, as .aligned says. */
inline uint32_t aligned(uint32_t kind, const instruction *i) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(i) / sizeof *i) << 4 | kind;
}
inline bool wanted(const thread &self, const instruction *i) {
  return i->predicate == NOWHERE || (self.frame[i->predicate] != 0) != i->negated;
}

/* For the tables: what an instruction does; and a row of one that has an effect and goes on with the next. */
#define DOES [](thread & self, const instruction *i) -> const instruction *
#define ROW(name, signature, ...)                \
  {name, signature, DOES {                       \
     (void)self;                                 \
     __VA_ARGS__;                                \
     return i + 1;                               \
   }, true},

} // namespace ptx

#endif
