// SPDX-License-Identifier: Apache-2.0
// The target that compiled JAX functions call on the CPU. XLA calls it in its own threads, without the GIL.
//
// Python prepares the settings of a call, and the compiled function holds their number. A function that is mapped
// over several devices of one process has a communicator per device. An argument selects the communicator.
#include "comm.hh"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>

#include "xla_ffi.hh"

namespace bny {

namespace {

struct prepared {
  std::vector<comm *> comms; // NULL: closed
  banyan_partial in = BANYAN_PARTIAL_INIT, out = BANYAN_PARTIAL_INIT;
  banyan_combine_desc desc = BANYAN_COMBINE_DESC_INIT;
  banyan_allreduce_desc sum = BANYAN_ALLREDUCE_DESC_INIT; // a sum uses this, and none of the three above
  banyan_select_desc selection = BANYAN_SELECT_DESC_INIT; // and a selection this
  std::string algorithm;
  int64_t tag = -1; // negative: that of the communicator
};

std::mutex lock; // protects the list and the communicators in it
std::vector<std::unique_ptr<prepared>> list;

std::unique_ptr<prepared> begin(nb::list comms, nb::handle tag) {
  auto made = std::make_unique<prepared>();
  for (nb::handle each : comms) {
    comm *one = nb::cast<comm *>(each);
    if (!one->device().empty()) reject("comm", "the target of XLA is for the CPU, and a communicator has a device");
    one->compiled = true;
    made->comms.push_back(one);
  }
  made->tag = read_integer("tag", tag, INT64_MIN, INT64_MAX);
  return made;
}

int64_t keep(std::unique_ptr<prepared> made) {
  std::lock_guard<std::mutex> locked(lock);
  list.push_back(std::move(made));
  return static_cast<int64_t>(list.size()) - 1;
}

struct how_words {
  nb::handle scatter, order, wire, root, algorithm;
};

int64_t prepare(nb::list comms, nb::handle base, nb::handle empty, nb::handle out_base, nb::handle out_empty,
                nb::handle scatter, nb::handle order, nb::handle wire, nb::handle algorithm, nb::handle tag) {
  auto made = begin(comms, tag);
  made->in.values_kind = made->out.values_kind = BANYAN_VALUES_NORMALISED;
  made->in.stats_kind = made->out.stats_kind = BANYAN_STATS_LSE;
  made->in.base = read_base("base", base);
  read_empty("empty", empty, &made->in);
  made->out.base = out_base.is_none() ? made->in.base : read_base("out_base", out_base);
  read_empty("out_empty", out_empty, &made->out);
  nb::object root = nb::int_(0);
  read_how(&made->desc, &made->algorithm, *made->comms[0], how_words{scatter, order, wire, root, algorithm});
  return keep(std::move(made));
}

int64_t prepare_sum(nb::list comms, nb::handle scatter, nb::handle order, nb::handle wire, nb::handle algorithm,
                    nb::handle tag) {
  auto made = begin(comms, tag);
  nb::object root = nb::int_(0);
  read_how(&made->sum, &made->algorithm, *made->comms[0], how_words{scatter, order, wire, root, algorithm});
  return keep(std::move(made));
}

int64_t prepare_select(nb::list comms, nb::handle k, nb::handle algorithm, nb::handle tag) {
  auto made = begin(comms, tag);
  made->selection.k = read_int32("k", k);
  made->selection.algorithm = read_algorithm(&made->algorithm, algorithm);
  return keep(std::move(made));
}

ffi_error *fail(const ffi_call *call, ffi_code code, const std::string &text) {
  ffi_error_arguments arguments = {sizeof arguments, nullptr, text.c_str(), code};
  return call->api->make_error(&arguments);
}

ffi_code code_of(banyan_status status) {
  switch (status) {
  case BANYAN_ERR_TIMEOUT: return FFI_DEADLINE_EXCEEDED;
  case BANYAN_ERR_PEER: return FFI_UNAVAILABLE;
  case BANYAN_ERR_ABORTED: return FFI_ABORTED;
  default: return FFI_INVALID_ARGUMENT;
  }
}

banyan_dtype dtype_of(ffi_dtype dtype) {
  switch (dtype) {
  case FFI_F32: return BANYAN_F32;
  case FFI_F16: return BANYAN_F16;
  case FFI_BF16: return BANYAN_BF16;
  case FFI_F8E4M3FN: return BANYAN_E4M3;
  case FFI_F8E5M2: return BANYAN_E5M2;
  default: return static_cast<banyan_dtype>(0);
  }
}

// XLA's buffers are contiguous, in row-major order.
void fill(banyan_partial *rows, const ffi_buffer *values, const ffi_buffer *stats) {
  rows->values = values->data;
  rows->values_dtype = dtype_of(values->dtype);
  rows->values_head_stride = values->dims[2];
  rows->values_token_stride = values->dims[1] * values->dims[2];
  rows->lse = stats->data;
  rows->stats_dtype = dtype_of(stats->dtype);
  rows->stats_head_stride = 1;
  rows->stats_token_stride = stats->dims[1];
}

const ffi_buffer *buffer(const ffi_list &from, int64_t index) { return static_cast<ffi_buffer *>(from.items[index]); }

bool number_of(const ffi_attributes &from, const char *name, int64_t *number) {
  for (int64_t i = 0; i < from.count; i++) {
    if (from.names[i]->length != std::strlen(name) || std::memcmp(from.names[i]->start, name, std::strlen(name)) != 0)
      continue;
    const ffi_scalar *scalar = static_cast<ffi_scalar *>(from.items[i]);
    if (from.types[i] != FFI_ATTRIBUTE_SCALAR || scalar->dtype != FFI_S64) return false;
    std::memcpy(number, scalar->value, sizeof *number);
    return true;
  }
  return false;
}

// Claims the communicator of this device and finds the prepared settings. Returns NULL with the reason in *text. The
// argument after `inputs` arrays is the device's index.
comm *claim(const ffi_call *call, int64_t inputs, const prepared **settings, std::string *text) {
  int64_t number;
  std::lock_guard<std::mutex> locked(lock);
  if (!number_of(call->attributes, "call", &number) || number < 0 || number >= static_cast<int64_t>(list.size())) {
    *text = "the compiled function is of another process, and its communicator is not here";
    return nullptr;
  }
  *settings = list[static_cast<size_t>(number)].get();
  int32_t index = 0;
  if ((*settings)->comms.size() > 1) std::memcpy(&index, buffer(call->arguments, inputs)->data, sizeof index);
  if (index < 0 || index >= static_cast<int64_t>((*settings)->comms.size())) {
    *text = "device " + std::to_string(index) + " of the axis has no communicator";
    return nullptr;
  }
  comm *found = (*settings)->comms[static_cast<size_t>(index)];
  if (!found || !found->is_open()) {
    *text = "the communicator is closed";
    return nullptr;
  }
  if (found->try_claim()) return found;
  *text = "another call uses the communicator now; pass the result of the one before it as `after`";
  return nullptr;
}

// Runs `body` with the communicator and the settings of a call of this many input arrays.
template <class body_type> ffi_error *run_call(ffi_call *call, int64_t inputs, body_type body) {
  for (ffi_extension *each = call->extensions; each; each = each->next) {
    if (each->type != FFI_EXTENSION_METADATA) continue;
    ffi_metadata *metadata = reinterpret_cast<ffi_metadata_extension *>(each)->metadata;
    metadata->version.major = 0, metadata->version.minor = 1;
    return nullptr;
  }
  if (call->stage != FFI_STAGE_EXECUTE) return nullptr;
  std::string text;
  const prepared *settings = nullptr;
  comm *found = claim(call, inputs, &settings, &text);
  if (!found) return fail(call, FFI_INVALID_ARGUMENT, "banyan: " + text);
  banyan_status status = found->with_tag(settings->tag, [&] { return body(found->handle(), *settings); });
  if (status != BANYAN_OK) text = std::string("banyan ") + banyan_status_string(status) + ": " + banyan_last_error();
  found->release_claim();
  return status == BANYAN_OK ? nullptr : fail(call, code_of(status), text);
}

ffi_error *combine_target(ffi_call *call) {
  return run_call(call, 2, [&](banyan_comm *comm, const prepared &settings) {
    banyan_partial in = settings.in, out = settings.out;
    banyan_combine_desc desc = settings.desc;
    const ffi_buffer *o = buffer(call->arguments, 0);
    fill(&in, o, buffer(call->arguments, 1));
    fill(&out, buffer(call->results, 0), buffer(call->results, 1));
    desc.tokens = static_cast<int32_t>(o->dims[0]), desc.heads = static_cast<int32_t>(o->dims[1]);
    desc.value_dim = static_cast<int32_t>(o->dims[2]);
    return banyan_combine(comm, &desc, &in, &out);
  });
}

ffi_error *allreduce_target(ffi_call *call) {
  return run_call(call, 1, [&](banyan_comm *comm, const prepared &settings) {
    banyan_allreduce_desc desc = settings.sum;
    const ffi_buffer *x = buffer(call->arguments, 0);
    int64_t columns = 1;
    for (int64_t i = x->rank > 1 ? 1 : 0; i < x->rank; i++) columns *= x->dims[i];
    desc.tokens = x->rank > 1 ? static_cast<int32_t>(x->dims[0]) : 1, desc.dim = static_cast<int32_t>(columns);
    desc.dtype = dtype_of(x->dtype);
    return banyan_allreduce(comm, &desc, x->data, buffer(call->results, 0)->data);
  });
}

// The indices of XLA are int32 unless its 64 bits are enabled.
ffi_error *select_target(ffi_call *call) {
  return run_call(call, 2, [&](banyan_comm *comm, const prepared &settings) {
    banyan_select_desc desc = settings.selection;
    const ffi_buffer *scores = buffer(call->arguments, 0), *indices = buffer(call->arguments, 1);
    int64_t rows = 1, last = scores->rank - 1;
    for (int64_t i = 0; i < last; i++) rows *= scores->dims[i];
    desc.tokens = static_cast<int32_t>(rows), desc.offers = static_cast<int32_t>(scores->dims[last]);
    desc.scores = static_cast<const float *>(scores->data);
    desc.best_scores = static_cast<float *>(buffer(call->results, 0)->data);
    desc.own = static_cast<int32_t *>(buffer(call->results, 2)->data);
    desc.own_counts = static_cast<int32_t *>(buffer(call->results, 3)->data);
    void *best = buffer(call->results, 1)->data;
    if (indices->dtype == FFI_S64) {
      desc.indices = static_cast<const int64_t *>(indices->data), desc.best_indices = static_cast<int64_t *>(best);
      return banyan_select(comm, &desc);
    }
    const int32_t *from = static_cast<const int32_t *>(indices->data);
    std::vector<int64_t> wide(from, from + rows * desc.offers), found(static_cast<size_t>(rows * desc.k));
    desc.indices = wide.data(), desc.best_indices = found.data();
    banyan_status status = banyan_select(comm, &desc);
    std::transform(found.begin(), found.end(), static_cast<int32_t *>(best),
                   [](int64_t index) { return static_cast<int32_t>(index); });
    return status;
  });
}

} // namespace

void jax_forget(comm *ended) {
  std::lock_guard<std::mutex> locked(lock);
  for (auto &each : list)
    for (comm *&one : each->comms)
      if (one == ended) one = nullptr;
  // A compiled function may still be running. It does not need the GIL, and it ends by its deadline.
  while (!ended->try_claim()) std::this_thread::yield();
  ended->release_claim();
}

void define_jax(nb::module_ &module) {
  module.def("jax_prepare", prepare, nb::arg("comms"), nb::arg("base"), nb::arg("empty"), nb::arg("out_base").none(),
             nb::arg("out_empty"), nb::arg("scatter"), nb::arg("order"), nb::arg("wire"), nb::arg("algorithm").none(),
             nb::arg("tag"));
  module.def("jax_prepare_sum", prepare_sum, nb::arg("comms"), nb::arg("scatter"), nb::arg("order"), nb::arg("wire"),
             nb::arg("algorithm").none(), nb::arg("tag"));
  module.def("jax_prepare_select", prepare_select, nb::arg("comms"), nb::arg("k"), nb::arg("algorithm").none(),
             nb::arg("tag"));
  module.def(
      "jax_target",
      [](const std::string &name) {
        auto target = name == "banyan_allreduce" ? &allreduce_target
                      : name == "banyan_select"  ? &select_target
                                                 : &combine_target;
        return nb::steal<nb::object>(
            PyCapsule_New(reinterpret_cast<void *>(target), "xla._CUSTOM_CALL_TARGET", nullptr));
      },
      nb::arg("name"));
}

} // namespace bny
