// SPDX-License-Identifier: Apache-2.0
// Attention over the keys of all ranks in one step of a decoder. All that is equal for its layers is read once. Later
// layers of the same shapes only exchange pointers.
#include "comm.hh"

#include <cstring>

namespace bny {

namespace {

/* clang-format off */
#define KEEP(name, standard) step->given.how.name = kept(*step, name);
#define KEEP_RESULT(name, standard) step->given.result.name = kept(*step, name);
#define MAKE_PARAMETERS                                                                                                \
  nb::handle slots, nb::handle gather BATCH_WORDS(WORD_PARAMETER) RESULT_WORDS(WORD_PARAMETER)
#define LAYER(name, standard) given.how.name = name;
/* clang-format on */

struct attention_step {
  nb::object owner_object, slots_object;
  std::vector<nb::object> held;
  attention_request::words given; // handles of objects that `held` keeps; those of layers are set by each call
  array slots;
  std::unique_ptr<attention_request> last; // the call of the last layer
  int64_t slot(int64_t token) const {
    const void *at = static_cast<const char *>(slots.data) + token * slots.strides[0] * (slots.dtype.bits / 8);
    return slots.dtype.bits == 64 ? *static_cast<const int64_t *>(at) : *static_cast<const int32_t *>(at);
  }
};

nb::handle kept(attention_step &step, nb::handle word) {
  step.held.push_back(nb::borrow(word));
  return word;
}

attention_step *make(nb::object self, MAKE_PARAMETERS) {
  comm &owner = *nb::cast<comm *>(self);
  auto step = std::make_unique<attention_step>();
  step->owner_object = self;
  BATCH_WORDS(KEEP)
  RESULT_WORDS(KEEP_RESULT)
  step->given.how.gather = kept(*step, gather);
  if (slots.is_none()) return step.release();
  if (!owner.device().empty()) reject("slots", "kernels of a device write its keys: it is None");
  step->slots_object = nb::borrow(slots);
  step->slots.open("slots", slots, false, owner.device(), nullptr);
  step->slots.want_dims(1, "[tokens]");
  const dl_dtype &type = step->slots.dtype;
  if (type.code != DL_INT || (type.bits != 64 && type.bits != 32))
    reject("slots", step->slots.dtype_name() + ": it is int64 or int32");
  return step.release();
}

// Copies the rows of new keys, or values, to their slots.
void append(const attention_step &step, const char *name, nb::handle given, const array &into) {
  array rows;
  rows.open(name, given, false, "", nullptr);
  rows.want_dims(3, "[tokens, kv_heads, dim]");
  rows.want_contiguous_rows();
  rows.want_shape(1, into.shape[1], "the number of KV heads");
  rows.want_shape(2, into.shape[3], "that of a row of the cache");
  if (rows.dtype.code != into.dtype.code || rows.dtype.bits != into.dtype.bits)
    reject(name, rows.dtype_name() + ", and the cache has " + into.dtype_name());
  if (step.slots.shape[0] > rows.shape[0])
    reject("slots", "it has more elements than " + std::string(name) + " tokens");
  size_t size = into.dtype.bits / 8, bytes = static_cast<size_t>(into.shape[3]) * size;
  int64_t keys = into.shape[2], step_bytes = static_cast<int64_t>(size);
  for (int64_t token = 0; token < step.slots.shape[0]; token++) {
    int64_t slot = step.slot(token);
    if (slot < 0) continue;
    if (slot >= into.shape[0] * keys)
      reject("slots", "element " + std::to_string(token) + " is " + std::to_string(slot) + ", and the cache has " +
                          std::to_string(into.shape[0] * keys) + " slots");
    const char *from = static_cast<const char *>(rows.data) + token * rows.strides[0] * step_bytes;
    char *to =
        static_cast<char *>(into.data) + (slot / keys * into.strides[0] + slot % keys * into.strides[2]) * step_bytes;
    for (int64_t head = 0; head < into.shape[1]; head++)
      std::memcpy(to + head * into.strides[1] * step_bytes, from + head * rows.strides[1] * step_bytes, bytes);
  }
}

nb::object run(attention_step &step, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle new_k,
               nb::handle new_v LAYER_WORDS(WORD_PARAMETER)) {
  comm &owner = *nb::cast<comm *>(step.owner_object);
  attention_request::words &given = step.given;
  LAYER_WORDS(LAYER)
  given.q = q, given.k = k, given.v = v, given.out = out;
  owner.read(false, [&] {
    try {
      if (!step.last || !step.last->repeat(owner, given)) {
        step.last = std::make_unique<attention_request>();
        step.last->read(owner, given);
      }
    } catch (...) { // some of its arrays may be those of this layer
      step.last = nullptr;
      throw;
    }
    if (new_k.is_none() != new_v.is_none()) reject("new_v", "new_k and new_v are both arrays, or both None");
    if (new_k.is_none()) return;
    if (!step.slots_object.is_valid()) reject("new_k", "the step was made without slots");
    for (const array *cache : {&step.last->attention.k, &step.last->attention.v}) cache->want_writable("new keys");
    append(step, "new_k", new_k, step.last->attention.k);
    append(step, "new_v", new_v, step.last->attention.v);
  });
  owner.call([&] { return step.last->call(owner.handle()); });
  return step.last->result();
}

} // namespace

void define_attention_step(nb::module_ &module, nb::class_<comm> &type) {
  nb::class_<attention_step>(module, "AttentionStep", doc::AttentionStep)
      .def("__call__", run, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(),
           nb::arg("out").none() = nb::none(), nb::kw_only(), nb::arg("new_k").none() = nb::none(),
           nb::arg("new_v").none() = nb::none() LAYER_WORDS(WORD_ARGUMENT), doc::AttentionStep___call__);
  type.def("attention_step", make, nb::rv_policy::take_ownership, nb::kw_only(), nb::arg("slots").none() = nb::none(),
           nb::arg("gather").none() = nb::none() BATCH_WORDS(WORD_ARGUMENT) RESULT_WORDS(WORD_ARGUMENT),
           doc::Comm_attention_step);
}

} // namespace bny
