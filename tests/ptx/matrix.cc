/* SPDX-License-Identifier: Apache-2.0
 * PTX's matrix operations of warpgroups, wgmma, of the PTX ISA's chapter "Asynchronous Warpgroup Level Matrix
 * Multiply-Accumulate Instructions". An operation is executed as late as possible: when its warp waits for it, with the
 * contents of registers and shared memory at that time. A warp's wait does not cover the rows of other warps.
 *
 * These are errors: use of an operation's registers before it was waited for, or since the last wgmma.fence; shared
 * memory that was written through the generic proxy without a later fence.proxy.async by the same thread; warps of a
 * warpgroup that issue different operations; operations that are never waited for. A mov between registers, or of a
 * constant, after the fence counts as another name of the value, because ptxas assigns the registers. */
#include <deque>

#include "cuda/device.h"
#include "tests/ptx/ptx.hh"

namespace ptx {

/* A warp has ROWS rows. */
enum : uint32_t { GROUP_THREADS = 128, ROWS = 16, INNER = 16, COLUMNS_MAX = 256, ROW_BYTES = 128, COPIED = UINT16_MAX };

/* Offsets of the operands in the frame. */
struct multiplication {
  uint32_t columns;
  bool is_bf16, a_in_registers;
  std::vector<uint32_t> d;
  uint32_t a[4], b, adds, scale_a, scale_b, across_a, across_b; /* across: MN-major, by "imm-trans" */
};

namespace {

struct operation {
  const instruction *at;
  uint64_t a, b; /* descriptors */
  bool adds, across_a, across_b;
  float scale;
};

bool is_same(const operation &x, const operation &y) {
  bool same_a = x.at->multiplied->a_in_registers || x.a == y.a;
  return x.at == y.at && same_a && x.b == y.b && x.adds == y.adds;
}

/* A register's last operations, and the fences before its last use by other instructions and as an accumulator of
 * `columns` columns. */
struct uses {
  uint32_t as_d = 0, as_a = 0, touched = 0, shaped = 0, columns = 0;
};

/* State of two bytes: the writer's thread number + 1, and its fences at the time; COPIED: the copy was not waited
 * for. */
struct written {
  uint16_t writer, fences;
};

/* An operation, and how many warps have issued it. */
struct arrival {
  operation what;
  uint32_t warps;
};

struct warpgroup {
  std::deque<arrival> arrivals;
  uint32_t gone = 0; /* number of arrivals removed */
};

struct of_block {
  std::vector<std::unique_ptr<matrices>> threads;
  std::vector<written> memory;
  std::vector<warpgroup> groups;
  uint32_t ended = 0;
};

/* Lies in shared memory, which the emulator fills with other bytes. */
struct anchor {
  uint64_t known;
  of_block *block;
};
enum : uint64_t { ANCHOR = 0x77676d6d61 };
char anchor_key;

} // namespace

struct matrices {
  of_block *block;
  std::vector<uses> registers; /* for each 4 bytes of the frame */
  std::vector<operation> open; /* not committed */
  std::deque<std::vector<operation>> groups;
  uint32_t issued = 0, completed = 0, fences = 0;
  uint16_t proxy_fences = 0;
  std::vector<uint32_t> copies; /* not committed, to shared memory */
  std::deque<std::vector<uint32_t>> copy_groups;
};

/* ---- state of threads -------------------------------------------------------------------------------------------- */

void begin_matrices(thread *self, uint32_t frame_bytes) {
  const bny_emulated_thread &place = bny_emulated();
  auto at = static_cast<anchor *>(bny_emulated_shared(&anchor_key, sizeof(anchor)));
  if (!self->running->is_entry)
    fail(*self, self->running->code.data(), "a function that is called multiplies matrices");
  if (at->known != ANCHOR) {
    *at = {ANCHOR, new of_block};
    at->block->threads.resize(place.block_threads);
    at->block->memory.resize(self->static_end / 2);
    at->block->groups.resize(place.block_threads / GROUP_THREADS);
  }
  auto &mine = at->block->threads[place.thread];
  mine = std::make_unique<matrices>();
  mine->block = at->block;
  mine->registers.resize(frame_bytes / 4);
  self->matrices = mine.get();
}

void end_matrices(thread *self) {
  of_block *block = self->matrices->block;
  const instruction *end = &self->running->code.back();
  if (!self->matrices->open.empty() || !self->matrices->groups.empty())
    fail(*self, end, "a thread ends while matrix operations of it are under way");
  self->matrices = nullptr;
  if (++block->ended < block->threads.size()) return;
  for (const warpgroup &one : block->groups)
    if (!one.arrivals.empty())
      fail(*self, end, "warps of a warpgroup have done different numbers of matrix operations");
  delete block;
}

void check_registers(const thread &self, const instruction *i) {
  matrices &all = *self.matrices;
  for (uint32_t left = i->registers; left; left &= left - 1) {
    uses &one = all.registers[i->at[__builtin_ctz(left)] / 4];
    if (one.as_d > all.completed) fail(self, i, "an accumulator is used before its operation was waited for");
    if (one.as_a > all.completed) fail(self, i, "a register of matrix A is used before its operation was waited for");
    one.touched = i->is_move ? all.registers[i->at[1] / 4].touched : all.fences;
  }
}

static void note(const thread &self, uint64_t at, size_t bytes, written what) {
  for (uint64_t i = at / 2; i < (at + bytes + 1) / 2; i++) self.matrices->block->memory[i] = what;
}
static uint16_t number_of_thread() { return static_cast<uint16_t>(bny_thread() + 1); }

void note_store(const thread &self, uint64_t at, size_t bytes) {
  note(self, at, bytes, {number_of_thread(), self.matrices->proxy_fences});
}
void note_fence(const thread &self) { self.matrices->proxy_fences++; }

void note_copy(const thread &self, uint64_t at) {
  note(self, at, 16, {number_of_thread(), COPIED});
  self.matrices->copies.push_back(static_cast<uint32_t>(at));
}
void note_commit(const thread &self) {
  self.matrices->copy_groups.push_back(std::move(self.matrices->copies));
  self.matrices->copies.clear();
}
void note_wait(const thread &self, int groups) {
  auto &waiting = self.matrices->copy_groups;
  for (; waiting.size() > static_cast<size_t>(groups); waiting.pop_front())
    for (uint32_t at : waiting.front()) note_store(self, at, 16);
}

/* ---- matrices in shared memory ----------------------------------------------------------------------------------- */

namespace {

/* A matrix whose rows are rows or columns of the product (MN), and over whose columns the product sums (K). Kernels use
 * swizzles of 128 bytes alone. */
struct descriptor {
  uint32_t start, leading, stride, base;
  bool across; /* MN-major: MN runs along rows of memory */

  descriptor(const thread &self, const instruction *i, uint64_t bits, bool is_across) : across(is_across) {
    auto decode = [&](int from) { return static_cast<uint32_t>(bits >> from & 0x3fff) << 4; };
    if (bits & 0x3ff1c000c000c000) fail(self, i, "a descriptor of a matrix with bits that are none of it");
    start = decode(0);
    leading = decode(16);
    stride = decode(32);
    base = static_cast<uint32_t>(bits >> 49 & 7);
    if (bits >> 62 != 1) fail(self, i, "a swizzle that is not of rows of 128 bytes");
    if (((start >> 7) ^ base) & 7) fail(self, i, "a matrix that begins amid a swizzle's pattern");
    if (!across && start % ROW_BYTES + 2 * INNER > ROW_BYTES)
      fail(self, i, "a matrix that leaves the rows of a swizzle's pattern");
    if (across && start % ROW_BYTES) fail(self, i, "a matrix that begins amid the rows of a swizzle's pattern");
  }

  /* Returns the address of an element. It is first computed without swizzling, in patterns of 8 rows. Bits 4 to 6 are
   * then changed by those from 7 on, which count rows. */
  uint32_t place(uint32_t mn, uint32_t k) const {
    const uint32_t within = across ? k : mn, along = across ? mn : k,
                   at = start + within % 8 * ROW_BYTES + within / 8 * stride + along % (ROW_BYTES / 2) * 2 +
                        along / (ROW_BYTES / 2) * leading;
    return at ^ (((at >> 7) - base) & 7) << 4;
  }
};

float half(uint16_t bits, bool is_bf16) { return is_bf16 ? bny_float_of_bf16(bits) : bny_float_of_f16(bits); }

float element(const thread &self, const operation &what, const descriptor &of, uint32_t mn, uint32_t k) {
  uint32_t at = of.place(mn, k);
  const of_block &block = *self.matrices->block;
  if (!is_shared(self, self.shared + at, 2)) fail(self, what.at, "a matrix beyond the block's shared memory");
  written by = block.memory[at / 2];
  if (by.writer && (by.fences == COPIED || block.threads[by.writer - 1u]->proxy_fences == by.fences))
    fail(self, what.at, "a matrix in shared memory that was written without a fence.proxy.async since");
  uint16_t bits;
  memcpy(&bits, self.shared + at, sizeof bits);
  return half(bits, what.at->multiplied->is_bf16);
}

struct product {
  float a[ROWS][INNER], b[COLUMNS_MAX][INNER];
};

/* Lane 4 g + t holds A in 4 registers: rows g and g + 8 of columns 2t and 2t + 1, then of the columns 8 further. */
void take_a(thread *const *lanes, const operation &what, product *made) {
  const multiplication &how = *what.at->multiplied;
  uint32_t first = bny_warp() % 4 * ROWS;
  if (how.a_in_registers) {
    for (uint32_t lane = 0; lane < 32; lane++)
      for (uint32_t e = 0; e < 8; e++) {
        uint32_t row = lane / 4 + ((e < 2 || (4 <= e && e < 6)) ? 0 : 8),
                 column = lane % 4 * 2 + (e & 1) + (e < 4 ? 0 : 8), bits;
        memcpy(&bits, lanes[lane]->frame + how.a[e / 2], sizeof bits);
        made->a[row][column] = half(static_cast<uint16_t>(e & 1 ? bits >> 16 : bits), how.is_bf16);
      }
    return;
  }
  descriptor of(*lanes[0], what.at, what.a, what.across_a);
  for (uint32_t row = 0; row < ROWS; row++)
    for (uint32_t k = 0; k < INNER; k++) made->a[row][k] = element(*lanes[0], what, of, first + row, k);
}

/* Computes a warp's rows of D. Of each 8 columns, lane 4 g + t has columns 2t and 2t + 1, of row g and then of row
 * g + 8. */
void carry_out(thread *const *lanes, const operation &what) {
  const multiplication &how = *what.at->multiplied;
  auto parts = std::make_unique<product>();
  descriptor of(*lanes[0], what.at, what.b, what.across_b);
  take_a(lanes, what, parts.get());
  for (uint32_t n = 0; n < how.columns; n++)
    for (uint32_t k = 0; k < INNER; k++) parts->b[n][k] = element(*lanes[0], what, of, n, k);
  for (uint32_t lane = 0; lane < 32; lane++)
    for (uint32_t i = 0; i < how.columns / 2; i++) {
      uint32_t row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      float before = 0;
      if (what.adds) memcpy(&before, lanes[lane]->frame + how.d[i], sizeof before);
      if (bny_emulated_truncates()) {
        float scaled[INNER];
        for (uint32_t k = 0; k < INNER; k++) scaled[k] = what.scale * parts->a[row][k];
        before = bny_sum_truncated(before, scaled, parts->b[column]);
        memcpy(lanes[lane]->frame + how.d[i], &before, sizeof before);
        continue;
      }
      double sum = 0;
      for (uint32_t k = 0; k < INNER; k++)
        sum += static_cast<double>(parts->a[row][k]) * static_cast<double>(parts->b[column][k]);
      before = static_cast<float>(static_cast<double>(before) + static_cast<double>(what.scale) * sum);
      memcpy(lanes[lane]->frame + how.d[i], &before, sizeof before);
    }
}

/* ---- instructions ------------------------------------------------------------------------------------------------ */

/* Checks that all warps of a warpgroup issue the same operations. */
void meet(const thread &self, const operation &what) {
  const matrices &all = *self.matrices;
  warpgroup &group = all.block->groups[bny_thread() / GROUP_THREADS];
  uint32_t index = all.issued - group.gone;
  if (index == group.arrivals.size()) group.arrivals.push_back({what, 0});
  if (!is_same(group.arrivals[index].what, what))
    fail(self, what.at, "warps of a warpgroup come with different matrix operations");
  group.arrivals[index].warps++;
  for (; !group.arrivals.empty() && group.arrivals.front().warps == GROUP_THREADS / 32; group.gone++)
    group.arrivals.pop_front();
}

void take_registers(const thread &self, const instruction *i) {
  const multiplication &how = *i->multiplied;
  matrices &all = *self.matrices;
  uint32_t serial = all.issued + 1;
  for (uint32_t at : how.d) {
    uses &one = all.registers[at / 4];
    if (one.touched == all.fences || (one.shaped == all.fences && one.columns != how.columns))
      fail(self, i, "an accumulator that was used since the last wgmma.fence");
    if (one.as_a > all.completed) fail(self, i, "an accumulator that is matrix A of an operation under way");
  }
  for (uint32_t k = 0; how.a_in_registers && k < 4; k++) {
    uses &one = all.registers[how.a[k] / 4];
    if (one.touched == all.fences) fail(self, i, "a register of matrix A that was used since the last wgmma.fence");
    if (one.as_d > all.completed)
      fail(self, i, "a register of matrix A that is an accumulator of an operation under way");
    one.as_a = serial;
  }
  for (uint32_t at : how.d) {
    uses &one = all.registers[at / 4];
    one.as_d = serial;
    one.shaped = all.fences;
    one.columns = how.columns;
  }
}

int64_t immediate(const thread &self, const instruction *i, uint32_t at, int64_t low, int64_t high) {
  int64_t value;
  memcpy(&value, self.frame + at, sizeof value);
  if (value != low && value != high) fail(self, i, "an immediate that is not expected");
  return value;
}

const instruction *multiply(thread &self, const instruction *i) {
  const multiplication &how = *i->multiplied;
  matrices &all = *self.matrices;
  operation mine = {i, 0, 0, self.frame[how.adds] != 0, false, false, 1};
  if (!how.a_in_registers) memcpy(&mine.a, self.frame + how.a[0], sizeof mine.a);
  memcpy(&mine.b, self.frame + how.b, sizeof mine.b);
  mine.scale = static_cast<float>(immediate(self, i, how.scale_a, 1, -1) * immediate(self, i, how.scale_b, 1, -1));
  if (!how.a_in_registers) mine.across_a = immediate(self, i, how.across_a, 0, 1);
  mine.across_b = immediate(self, i, how.across_b, 0, 1);
  if (!all.fences) fail(self, i, "no wgmma.fence before the first matrix operation");
  if (bny_thread() / GROUP_THREADS >= all.block->groups.size()) fail(self, i, "a warpgroup that is not whole");
  auto *lanes = bny_emulated_exchange(aligned(BNY_EMULATED_MMA, i), &mine, sizeof mine);
  for (uint32_t lane = 0; lane < 32; lane++) {
    operation other;
    memcpy(&other, lanes[lane], sizeof other);
    if (!is_same(mine, other)) fail(self, i, "lanes come with different descriptors");
  }
  if (bny_lane() == 0) meet(self, mine);
  take_registers(self, i);
  all.issued++;
  all.open.push_back(mine);
  return i + 1;
}

void lanes_meet(const instruction *i) { bny_emulated_exchange(aligned(BNY_EMULATED_SYNC, i), nullptr, 0); }

/* One lane executes them for all, before these continue. */
const instruction *wait(thread &self, const instruction *i) {
  uint32_t pending = get<uint32_t>(self, i, 0);
  if (!self.matrices) fail(self, i, "a wait for matrix operations where there are none");
  matrices &all = *self.matrices;
  thread *mine = &self, *lanes[32];
  auto *deposits = bny_emulated_exchange(aligned(BNY_EMULATED_MMA, i), &mine, sizeof mine);
  for (uint32_t lane = 0; lane < 32; lane++) memcpy(&lanes[lane], deposits[lane], sizeof mine);
  for (size_t k = 0; bny_lane() == 0 && k + pending < all.groups.size(); k++)
    for (const operation &one : all.groups[k]) carry_out(lanes, one);
  lanes_meet(i);
  for (; all.groups.size() > pending; all.groups.pop_front())
    all.completed += static_cast<uint32_t>(all.groups.front().size());
  return i + 1;
}

const instruction *commit(thread &self, const instruction *i) {
  lanes_meet(i);
  if (!self.matrices) return i + 1;
  self.matrices->groups.push_back(std::move(self.matrices->open));
  self.matrices->open.clear();
  return i + 1;
}

const instruction *fence(thread &self, const instruction *i) {
  lanes_meet(i);
  if (self.matrices) self.matrices->fences++;
  return i + 1;
}

} // namespace

/* wgmma.mma_async.sync.aligned.m64nNk16.f32.TYPE.TYPE d, a or its descriptor, b's descriptor, adds, scales of a and b,
 * trans of a (if it is in shared memory) and b */
bool decode_multiply(const std::string &opcode, const std::vector<operand> &operands, instruction *made) {
  static const std::string name = "wgmma.mma_async.sync.aligned.m64n";
  if (opcode.compare(0, name.size(), name) != 0) return false;
  auto how = std::make_shared<multiplication>();
  std::string rest = opcode.substr(name.size());
  how->columns = static_cast<uint32_t>(strtoul(rest.c_str(), nullptr, 10));
  rest.erase(0, std::to_string(how->columns).size());
  how->is_bf16 = rest == "k16.f32.bf16.bf16";
  if (!how->is_bf16 && rest != "k16.f32.f16.f16") throw "a modifier that is not known";
  if (how->columns == 0 || how->columns % 8 || how->columns > COLUMNS_MAX) throw "a shape that is none";
  std::vector<std::vector<operand>> groups;
  for (const operand &one : operands) {
    groups.resize(one.group + 1u);
    groups.back().push_back(one);
  }
  how->a_in_registers = groups.size() > 1 && groups[1].size() == 4;
  std::vector<uint32_t *> immediates = {&how->scale_a, &how->scale_b, &how->across_a, &how->across_b};
  if (how->a_in_registers) immediates.erase(immediates.begin() + 2);
  if (groups.size() != 4 + immediates.size() || groups[0].size() != how->columns / 2)
    throw "operands that are not right";
  auto take = [&](size_t group, size_t k, uint32_t bytes) {
    const operand &one = groups[group].at(k);
    if (one.kind != (bytes ? VALUE : CONSTANT) || one.bytes != bytes) throw "operands that are not right";
    return one.at;
  };
  for (size_t k = 0; k < groups[0].size(); k++) how->d.push_back(take(0, k, 4));
  for (size_t k = 0; k < groups[1].size(); k++) how->a[k] = take(1, k, how->a_in_registers ? 4 : 8);
  how->b = take(2, 0, 8);
  how->adds = take(3, 0, groups[3][0].kind == CONSTANT ? 0 : 1);
  for (size_t k = 0; k < immediates.size(); k++) *immediates[k] = take(4 + k, 0, 0);
  made->multiplied = how;
  made->run = multiply;
  made->has_effect = true;
  return true;
}

const row matrix_rows[] = {{"wgmma.fence.sync.aligned", "", fence, true},
                           {"wgmma.commit_group.sync.aligned", "", commit, true},
                           {"wgmma.wait_group.sync.aligned", "4", wait, true},
                           {nullptr, nullptr, nullptr, false}};

} // namespace ptx
