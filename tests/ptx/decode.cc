/* SPDX-License-Identifier: Apache-2.0
 * Decodes an opcode and its operands into an instruction. */
#include <unordered_map>

#include "cuda/device.h"
#include "tests/ptx/ptx.hh"

namespace ptx {

namespace {

const std::unordered_map<std::string, const row *> &table() {
  static const auto *made = [] {
    auto *all = new std::unordered_map<std::string, const row *>;
    for (const row *rows : {arithmetic_rows, conversion_rows, memory_rows, warp_rows, matrix_rows})
      for (; rows->name; rows++) all->emplace(rows->name, rows);
    return all;
  }();
  return *made;
}

/* Returns whether an operand fits a letter of a signature. `may_be_wider`: the lower part of a larger register fits
 * too. */
bool fits(char wanted, const operand &one, bool may_be_wider) {
  if (wanted == 'a') return one.kind == ADDRESS;
  if (one.kind == CONSTANT) return true;
  const uint32_t bytes = wanted == 'p' ? 1u : static_cast<uint32_t>(wanted - '0');
  return one.kind == VALUE && (one.bytes == bytes || (may_be_wider && one.bytes > bytes));
}

const instruction *move_bytes(thread &self, const instruction *i) {
  if (i->at[0] != i->at[1]) copy_bytes(self.frame + i->at[0], self.frame + i->at[1], i->bytes);
  return i + 1;
}
const instruction *move_predicate(thread &self, const instruction *i) {
  put(self, i, 0, get<bool>(self, i, 1));
  return i + 1;
}
const instruction *move_symbol(thread &self, const instruction *i) {
  uint64_t address = get<uint64_t>(self, i, 1) + static_cast<uint64_t>(i->offset[0]);
  memcpy(self.frame + i->at[0], &address, i->bytes);
  return i + 1;
}
const instruction *move_clock(thread &self, const instruction *i) {
  put(self, i, 0, bny_clock_ns());
  return i + 1;
}
const instruction *join_parts(thread &self, const instruction *i) {
  unsigned char whole[16];
  for (int k = 0; k < i->count; k++) copy_bytes(whole + k * i->width, self.frame + i->at[1 + k], i->width);
  copy_bytes(self.frame + i->at[0], whole, i->bytes);
  return i + 1;
}
const instruction *split_parts(thread &self, const instruction *i) {
  unsigned char whole[16];
  copy_bytes(whole, self.frame + i->at[i->count], i->bytes);
  for (int k = 0; k < i->count; k++) copy_bytes(self.frame + i->at[k], whole + k * i->width, i->width);
  return i + 1;
}

/* Decodes mov of a value, an address or the clock, or between one register and several. The first of several is the low
 * part. */
void decode_move(const std::string &type, const std::vector<operand> &operands, instruction *made) {
  static const std::map<std::string, uint8_t> types = {{"pred", 1}, {"b16", 2}, {"u16", 2},  {"s16", 2}, {"b32", 4},
                                                       {"u32", 4},  {"s32", 4}, {"f32", 4},  {"b64", 8}, {"u64", 8},
                                                       {"s64", 8},  {"f64", 8}, {"b128", 16}};
  auto found = types.find(type);
  if (found == types.end()) throw "a modifier that is not known";
  made->bytes = found->second;
  size_t to = 0;
  while (to < operands.size() && operands[to].group == 0) to++;
  size_t from = operands.size() - to, parts = to > from ? to : from;
  if (to == 0 || from == 0 || (to > 1 && from > 1)) throw "operands that are not right";
  const operand &source = operands[to];
  made->count = static_cast<uint8_t>(parts);
  made->width = static_cast<uint8_t>(made->bytes / parts);
  for (size_t k = 0; k < operands.size(); k++) {
    uint32_t wanted = (k < to) == (to >= from) || parts == 1 ? made->width : made->bytes;
    if (operands[k].bytes != wanted && (k < to || operands[k].kind == VALUE)) throw "registers of another size";
  }
  made->offset[0] = source.offset;
  made->run = parts > 1               ? to > 1 ? split_parts : join_parts
              : source.kind == SYMBOL ? move_symbol
              : source.kind == CLOCK  ? move_clock
              : made->bytes == 1      ? move_predicate
                                      : move_bytes;
  made->has_effect = source.kind == CLOCK;
  made->is_move = made->run == move_bytes;
}

} // namespace

void decode(const std::string &opcode, const std::vector<operand> &operands, instruction *made) {
  if (decode_multiply(opcode, operands, made)) return;
  if (operands.size() > OPERANDS_MAX) throw "too many operands";
  int addresses = 0;
  for (size_t k = 0; k < operands.size(); k++) {
    const operand &one = operands[k];
    if (one.kind == VALUE && one.bytes == 4) made->registers |= 1u << k;
    made->at[k] = one.kind == ADDRESS && one.bytes == 4 ? one.at | SHORT_ADDRESS : one.at;
    if (one.kind == ADDRESS && addresses == 3) throw "too many operands";
    if (one.kind == ADDRESS) made->offset[addresses++] = one.offset;
  }
  if (opcode.compare(0, 4, "mov.") == 0) return decode_move(opcode.substr(4), operands, made);
  if (decode_access(opcode, operands, made)) return;
  auto found = table().find(opcode);
  if (found == table().end()) throw "an opcode that is not known";
  const char *signature = found->second->signature;
  if (strlen(signature) != operands.size()) throw "operands that are not right";
  for (size_t k = 0; k < operands.size(); k++)
    if (!fits(signature[k], operands[k], k > 0 && opcode.compare(0, 4, "cvt.") == 0))
      throw "operands that are not right";
  made->run = found->second->run;
  made->has_effect = found->second->has_effect;
}

/* Runs a jump around a store. The thread takes part in the store without a value. */
static const instruction *run_jump_around(thread &self, const instruction *i) {
  bny_store_line(nullptr, {});
  return self.running->code.data() + i->target;
}

/* Eight lanes store a line and take the same path, while other lanes of the warp may have nothing to store. These may
 * jump around the store and the instructions that only it needs, by one jump or several. The 8 lanes still reach the
 * store together. The emulator stores by complete warps, so the jumping lanes must join the store. */
void keep_lines_whole(function *made) {
  std::vector<instruction> &code = made->code;
  for (uint32_t store = 0; store < code.size(); store++) {
    if (!code[store].stores_line || code[store].predicate != NOWHERE) continue;
    uint32_t end = store + 1, first = store;
    while (!code[end].has_effect) end++;
    auto is_around = [&](const instruction &one) {
      return one.run == run_jump && one.predicate != NOWHERE && one.target > store && one.target <= end;
    };
    while (first > 0 && (!code[first - 1].has_effect || is_around(code[first - 1]))) first--;
    for (const instruction &other : code)
      if (other.run == run_jump && other.target > first && other.target <= store) first = other.target;
    for (uint32_t i = first; i < store; i++)
      if (is_around(code[i])) code[i].run = run_jump_around;
  }
}

} // namespace ptx
