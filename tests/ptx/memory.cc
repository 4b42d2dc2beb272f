/* SPDX-License-Identifier: Apache-2.0
 * The memory accesses of PTX. Plain stores to global memory are delayed like other stores. Stores to shared memory are
 * not delayed. Stores to the thread's local memory are not delayed either, because no other thread sees them. */
#include "cuda/device.h"
#include "tests/ptx/ptx.hh"

namespace ptx {

namespace {

bool is_within(const void *at, size_t bytes, const void *from, size_t room) {
  return static_cast<const char *>(at) >= static_cast<const char *>(from) &&
         static_cast<const char *>(at) + bytes <= static_cast<const char *>(from) + room;
}
bool is_own(const thread &self, const void *at, size_t bytes) {
  return is_within(at, bytes, self.frame, static_cast<size_t>(self.bottom - self.frame));
}
bool is_parameter(const thread &self, const void *at, size_t bytes) {
  return is_within(at, bytes, self.parameters, self.parameters_bytes);
}

uint64_t address(const thread &self, const instruction *i, int k, int which) {
  uint32_t at = i->at[k];
  if (!(at & SHORT_ADDRESS)) return get<uint64_t>(self, i, k) + static_cast<uint64_t>(i->offset[which]);
  uint32_t value;
  memcpy(&value, self.frame + (at & ~SHORT_ADDRESS), sizeof value);
  return value + static_cast<uint64_t>(i->offset[which]);
}

/* Returns operand k's address of `bytes` bytes. is_local: stores there are not delayed. */
unsigned char *resolve(const thread &self, const instruction *i, int k, size_t bytes, bool writes, bool *is_local) {
  uint64_t number = address(self, i, k, 0);
  if (i->space == SHARED) number += reinterpret_cast<uint64_t>(self.shared);
  auto at = reinterpret_cast<unsigned char *>(number);
  if (number % bytes) fail(self, i, "an access is not aligned");
  bool own = is_own(self, at, bytes), parameter = is_parameter(self, at, bytes), shared = is_shared(self, at, bytes);
  if (i->space == SHARED && !shared) fail(self, i, "an address beyond the block's shared memory");
  if (i->space == LOCAL && !own) fail(self, i, "an address outside of local memory");
  if (i->space == PARAM && !own && !parameter) fail(self, i, "an address outside of the parameters");
  if (i->space == GLOBAL && (own || parameter || shared)) fail(self, i, "an address outside of global memory");
  if (i->space == GENERIC && number < 4096) fail(self, i, "an access to address 0");
  if (parameter && writes) fail(self, i, "a store to a parameter of the kernel");
  *is_local = own || parameter || shared;
  if (self.matrices && shared && writes) note_store(self, number - reinterpret_cast<uint64_t>(self.shared), bytes);
  return at;
}

void put_element(const thread &self, const instruction *i, int k, const unsigned char *from) {
  if (i->width == 16) {
    memcpy(self.frame + i->at[k], from, 16);
    return;
  }
  uint64_t value = 0;
  copy_bytes(&value, from, i->bytes);
  if (i->is_signed && i->bytes < 8 && value >> (8 * i->bytes - 1)) value |= ~uint64_t(0) << 8 * i->bytes;
  copy_bytes(self.frame + i->at[k], &value, i->width);
}

const instruction *load(thread &self, const instruction *i) {
  size_t bytes = static_cast<size_t>(i->bytes) * i->count;
  unsigned char values[32];
  bool is_local;
  const unsigned char *from = resolve(self, i, i->count, bytes, false, &is_local);
  if (i->order != WEAK) bny_emulated_yield();
  if (is_local)
    copy_bytes(values, from, bytes);
  else
    bny_emulated_load(from, values, bytes);
  for (int k = 0; k < i->count; k++) put_element(self, i, k, values + k * i->bytes);
  return i + 1;
}

/* Stores the elements of a vector separately, because others may see it in parts. */
const instruction *store(thread &self, const instruction *i) {
  size_t bytes = static_cast<size_t>(i->bytes) * i->count;
  bool is_local;
  unsigned char *to = resolve(self, i, 0, bytes, true, &is_local);
  if (i->order == ORDERED) bny_emulated_settle();
  for (int k = 0; k < i->count; k++) {
    const unsigned char *value = self.frame + i->at[1 + k];
    if (is_local)
      copy_bytes(to + k * i->bytes, value, i->bytes);
    else
      bny_emulated_store(to + k * i->bytes, value, i->bytes);
  }
  if (i->order != WEAK) bny_emulated_yield();
  return i + 1;
}

const instruction *load_line(thread &self, const instruction *i) {
  bool is_wanted = wanted(self, i), is_local;
  const void *from = is_wanted ? resolve(self, i, 4, 16, false, &is_local) : nullptr;
  bny_quad quad;
  bny_poll_line(from, is_wanted, &quad);
  for (int k = 0; is_wanted && k < 4; k++) put(self, i, k, quad.word[k]);
  return i + 1;
}

const instruction *store_line(thread &self, const instruction *i) {
  bool is_local;
  void *to = wanted(self, i) ? resolve(self, i, 0, 16, true, &is_local) : nullptr;
  bny_quad quad = {};
  for (int k = 0; to && k < 4; k++) quad.word[k] = get<uint32_t>(self, i, 1 + k);
  bny_store_line(to, quad);
  return i + 1;
}

/* Converts an address in the shared state space to a pointer. */
unsigned char *shared_of(thread &self, const instruction *i, int k, int which, size_t bytes) {
  unsigned char *at = self.shared + address(self, i, k, which);
  if (!is_shared(self, at, bytes)) fail(self, i, "an address beyond the block's shared memory");
  return at;
}
template <class T> T *global_of(thread &self, const instruction *i, int k, size_t bytes, int which = 0) {
  auto at = reinterpret_cast<T *>(address(self, i, k, which));
  if (is_own(self, at, bytes) || is_parameter(self, at, bytes) || is_shared(self, at, bytes))
    fail(self, i, "an address outside of global memory");
  if (reinterpret_cast<uint64_t>(at) % sizeof(T)) fail(self, i, "an access is not aligned");
  return at;
}

const instruction *copy_16(thread &self, const instruction *i) {
  uint32_t bytes = get<uint32_t>(self, i, 2), filled = get<uint32_t>(self, i, 3);
  if (bytes != 16 || (filled != 0 && filled != 16)) fail(self, i, "a copy of neither 16 nor 0 bytes");
  bny_copy_async_16(shared_of(self, i, 0, 0, 16), global_of<bny_quad>(self, i, 1, 16, 1), filled != 0);
  if (self.matrices) note_copy(self, address(self, i, 0, 0));
  return i + 1;
}

} // namespace

bool is_shared(const thread &self, const void *at, size_t bytes) {
  return is_within(at, bytes, self.shared + self.dynamic_at, self.dynamic_end - self.dynamic_at) ||
         is_within(at, bytes, self.shared + self.static_at, self.static_end - self.static_at);
}

/* ld and st: .order.scope.space.hints.vector.type */
bool decode_access(const std::string &opcode, const std::vector<operand> &operands, instruction *made) {
  bool is_load = opcode.compare(0, 3, "ld.") == 0;
  if (!is_load && opcode.compare(0, 3, "st.") != 0) return false;
  std::string rest = opcode.substr(2);
  auto take = [&](const char *word) {
    size_t length = strlen(word);
    if (rest.compare(0, length, word) != 0 || (rest.size() > length && rest[length] != '.')) return false;
    rest.erase(0, length);
    return true;
  };
  bool is_volatile = take(".volatile");
  made->order = take(is_load ? ".acquire" : ".release") ? ORDERED : take(".relaxed") ? RELAXED : WEAK;
  if (made->order != WEAK && !take(".gpu") && !take(".sys")) throw "no scope of the access";
  made->space = take(".global")   ? GLOBAL
                : take(".shared") ? SHARED
                : take(".local")  ? LOCAL
                : take(".param")  ? PARAM
                                  : GENERIC;
  take(".L1::no_allocate");
  made->count = take(".v4") ? 4 : take(".v2") ? 2 : 1;
  static const std::map<std::string, int> types = {{".u8", 1},  {".s8", 1},  {".b8", 1},  {".u16", 2}, {".s16", 2},
                                                   {".b16", 2}, {".u32", 4}, {".s32", 4}, {".b32", 4}, {".f32", 4},
                                                   {".u64", 8}, {".s64", 8}, {".b64", 8}, {".f64", 8}, {".b128", 16}};
  auto type = types.find(rest);
  if (type == types.end()) throw "a modifier that is not known";
  made->bytes = static_cast<uint8_t>(type->second);
  made->is_signed = rest[1] == 's';
  if (made->bytes * made->count > 16) throw "more than 16 bytes";
  const operand &at = operands.at(is_load ? made->count : 0);
  if (operands.size() != made->count + 1u || at.kind != ADDRESS) throw "operands that are not right";
  for (const operand &one : operands) {
    if (&one == &at) continue;
    if (one.bytes ? one.bytes < made->bytes : is_load || made->bytes > 8) throw "a register that is too small";
    made->width = static_cast<uint8_t>(one.bytes);
  }
  if (made->order != WEAK && made->space != GLOBAL) throw "an ordered access that is not to global memory";
  if (is_volatile && (made->space != GLOBAL || made->count != 4 || made->bytes != 4))
    throw "a volatile access to less than a line";
  made->run = is_volatile ? is_load ? load_line : store_line : is_load ? load : store;
  made->always = is_volatile;
  made->stores_line = is_volatile && !is_load;
  made->has_effect = !is_load || made->order != WEAK || is_volatile;
  if (is_volatile) made->order = LINE;
  return true;
}

/* clang-format off */
const row memory_rows[] = {
  /* Addresses are generic ones in all state spaces except shared memory. */
  {"cvta.to.global.u64", "88", DOES { put(self, i, 0, get<uint64_t>(self, i, 1)); return i + 1; }, false},
  {"cvta.local.u64", "88", DOES { put(self, i, 0, get<uint64_t>(self, i, 1)); return i + 1; }, false},
  {"cvta.param.u64", "88", DOES { put(self, i, 0, get<uint64_t>(self, i, 1)); return i + 1; }, false},
  {"cvta.to.local.u64", "88", DOES { put(self, i, 0, get<uint64_t>(self, i, 1)); return i + 1; }, false},
  {"cvta.to.shared.u64", "88", DOES {
     put(self, i, 0, get<uint64_t>(self, i, 1) - reinterpret_cast<uint64_t>(self.shared));
     return i + 1;
   }, false},
  {"cvta.shared.u64", "88", DOES {
     put(self, i, 0, get<uint64_t>(self, i, 1) + reinterpret_cast<uint64_t>(self.shared));
     return i + 1;
   }, false},
  {"mapa.u64", "884", DOES {
     auto own = reinterpret_cast<unsigned char *>(get<uint64_t>(self, i, 1));
     put(self, i, 0, bny_cluster_address(own, get<uint32_t>(self, i, 2)));
     return i + 1;
   }, false}
   ,
       ROW("fence.acq_rel.gpu", "", bny_fence_gpu()) ROW("fence.acq_rel.sys", "", bny_fence_sys())
           ROW("fence.proxy.alias", "", bny_fence_alias())
               ROW("atom.add.relaxed.gpu.global.u64", "8a8",
                   put(self, i, 0,
                       bny_add_relaxed_gpu_64(global_of<uint64_t>(self, i, 1, 8), get<uint64_t>(self, i, 2))))
                   ROW("atom.add.acq_rel.gpu.global.u32", "4a4",
                       put(self, i, 0, bny_add_gpu_32(global_of<uint32_t>(self, i, 1, 4), get<uint32_t>(self, i, 2))))
                       ROW("atom.cas.acq_rel.sys.global.b64", "8a88",
                           put(self, i, 0,
                               bny_compare_swap_sys_64(global_of<uint64_t>(self, i, 1, 8), get<uint64_t>(self, i, 2),
                                                       get<uint64_t>(self, i, 3)))){"cp.async.cg.shared.global", "aa44",
                                                                                    copy_16, true},
       ROW("cp.async.commit_group", "", bny_copy_async_commit(); if (self.matrices) note_commit(self))
           ROW("cp.async.wait_group", "4", bny_emulated_wait(get<int>(self, i, 0));
               if (self.matrices) note_wait(self, get<int>(self, i, 0)))
                           ROW("fence.proxy.async", "", bny_fence_async(); if (self.matrices) note_fence(self))
                               ROW("fence.proxy.async.shared::cta", "", bny_fence_async();
                                   if (self.matrices) note_fence(self)) ROW("griddepcontrol.wait", "", bny_grid_wait())
                                   ROW("griddepcontrol.launch_dependents", "", bny_grid_release()) {
     nullptr, nullptr, nullptr, false
   }
};
/* clang-format on */

} // namespace ptx
