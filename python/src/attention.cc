// SPDX-License-Identifier: Apache-2.0
// Attention over this rank's keys, and over those of all ranks.
#include "comm.hh"

namespace bny {

namespace {

int32_t small(const array &from, int dim) {
  if (from.shape[dim] > INT32_MAX) refuse(from.name, "a dimension is above 2^31 - 1");
  return static_cast<int32_t>(from.shape[dim]);
}

void want_int32(const array &from) {
  if (from.dtype.code != DL_INT || from.dtype.bits != 32) refuse(from.name, from.dtype_name() + ": it is int32");
}

nb::tuple dims(std::initializer_list<int64_t> sizes) {
  nb::list list;
  for (int64_t size : sizes) list.append(size);
  return nb::tuple(list);
}

} // namespace

void attention_call::read(const std::string &device, void *stream, nb::handle q_array, nb::handle k_array,
                          nb::handle v_array, nb::handle lens, nb::handle pages, double scale, int32_t keys_max,
                          nb::handle empty) {
  q.open("q", q_array, false, device, stream);
  q.want_dims(3, "[batch, heads, head_dim]");
  q.want_contiguous_rows();
  k.open("k", k_array, false, device, stream);
  k.want_dims(4, "[batch, kv_heads, keys, head_dim], or [pages, kv_heads, page_keys, head_dim] with a page table");
  k.want_contiguous_rows();
  k.want_shape(3, q.shape[2], "head_dim of q");
  v.open("v", v_array, false, device, stream);
  v.want_dims(4, "[batch, kv_heads, keys, value_dim], or [pages, kv_heads, page_keys, value_dim] with a page table");
  v.want_contiguous_rows();
  for (int i = 0; i < 3; i++) v.want_shape(i, k.shape[i], "that of k");
  if (k.number() != v.number()) refuse("v", v.dtype_name() + ", and k is " + k.dtype_name());
  desc.batch = small(q, 0), desc.heads = small(q, 1), desc.head_dim = small(q, 2);
  desc.kv_heads = small(k, 1), desc.value_dim = small(v, 3);
  desc.scale = static_cast<float>(scale);
  desc.q_dtype = q.number(), desc.kv_dtype = k.number();
  desc.q = q.data, desc.q_batch_stride = q.strides[0], desc.q_head_stride = q.strides[1];
  desc.k = k.data, desc.k_batch_stride = k.strides[0], desc.k_head_stride = k.strides[1];
  desc.k_token_stride = k.strides[2];
  desc.v = v.data, desc.v_batch_stride = v.strides[0], desc.v_head_stride = v.strides[1];
  desc.v_token_stride = v.strides[2];
  desc.stream = stream, desc.keys_max = keys_max;
  if (!pages.is_none()) {
    page_table.open("page_table", pages, false, device, stream);
    page_table.want_dims(2, "[batch, pages of a sequence]");
    page_table.want_contiguous_rows();
    page_table.want_shape(0, q.shape[0], "the batch of q");
    want_int32(page_table);
    desc.page_table = static_cast<const int32_t *>(page_table.data);
    // One sequence, or a broadcast table, may have a stride that says nothing.
    desc.page_table_stride = q.shape[0] > 1 ? page_table.strides[0] : page_table.shape[1];
    desc.page_keys = small(k, 2);
    desc.pages = k.shape[0];
    if (lens.is_none()) refuse("seq_lens", "with a page table it says how many keys each sequence has");
  } else {
    k.want_shape(0, q.shape[0], "the batch of q");
  }
  if (!lens.is_none()) {
    seq_lens.open("seq_lens", lens, false, device, stream);
    seq_lens.want_dims(1, "[batch]");
    seq_lens.want_shape(0, q.shape[0], "the batch of q");
    seq_lens.want_contiguous();
    want_int32(seq_lens);
    desc.seq_lens = static_cast<const int32_t *>(seq_lens.data);
    for (int64_t b = 0; device.empty() && b < q.shape[0]; b++) {
      int64_t most = pages.is_none() ? k.shape[2] : page_table.shape[1] * k.shape[2];
      if (desc.seq_lens[b] < 0 || desc.seq_lens[b] > most) {
        refuse("seq_lens", "sequence " + std::to_string(b) + " has " + std::to_string(desc.seq_lens[b]) +
                               " keys, and there is room for " + std::to_string(most));
      }
    }
  } else {
    if (!device.empty()) refuse("seq_lens", "on a device it is memory of that device, and has to be given");
    whole.assign(static_cast<size_t>(desc.batch), small(k, 2));
    desc.seq_lens = whole.data();
  }
  if (!empty.is_none()) {
    const char *word = read_text("empty", empty);
    if (std::string(word) != "nan") refuse("empty", "for attention it is \"nan\" or None");
    desc.empty = BANYAN_EMPTY_NAN;
  }
}

namespace {

// Output of local attention: o [batch, heads, value_dim] like q, lse [batch, heads] in f32.
struct local_output {
  array o, lse;
  banyan_partial rows = BANYAN_PARTIAL_INIT;
  nb::object made;

  void open(const attention_call &call, nb::handle q, nb::handle out, nb::handle base) {
    const banyan_attention_desc &desc = call.desc;
    if (out.is_none()) {
      nb::object lse_made = empty_like("q", q, dims({desc.batch, desc.heads}));
      made = nb::make_tuple(empty_like("q", q, dims({desc.batch, desc.heads, desc.value_dim})), lse_made);
    } else {
      if (!PyTuple_Check(out.ptr()) || PyTuple_Size(out.ptr()) != 2) refuse("out", "it is a pair: values and lse");
      made = nb::borrow(out);
    }
    o.open("out", made[0], true, "", nullptr);
    o.want_dims(3, "[batch, heads, value_dim]");
    o.want_shape(0, desc.batch, "the batch"), o.want_shape(1, desc.heads, "the number of heads");
    o.want_shape(2, desc.value_dim, "value_dim of v");
    o.want_contiguous_rows();
    lse.open("out lse", made[1], true, "", nullptr);
    lse.want_dims(2, "[batch, heads]");
    lse.want_shape(0, desc.batch, "the batch"), lse.want_shape(1, desc.heads, "the number of heads");
    banyan_partial_init(&rows, o.data, o.number(), lse.data, lse.number(), desc.heads, desc.value_dim);
    rows.values_token_stride = o.strides[0], rows.values_head_stride = o.strides[1];
    rows.stats_token_stride = lse.strides[0], rows.stats_head_stride = lse.strides[1];
    rows.base = read_base("base", base);
  }
};

nb::object attention(nb::handle q, nb::handle k, nb::handle v, nb::handle seq_lens, nb::handle page_table, double scale,
                     nb::handle base, nb::handle empty, nb::handle out) {
  attention_call call;
  local_output output;
  call.read("", nullptr, q, k, v, seq_lens, page_table, scale, 0, empty);
  output.open(call, q, out, base);
  banyan_status status;
  {
    nb::gil_scoped_release without;
    status = banyan_attention(&call.desc, &output.rows);
  }
  if (status != BANYAN_OK) raise_status(status, -1);
  if (!out.is_none()) return output.made;
  return nb::make_tuple(finished(q, output.made[0]), finished(q, output.made[1]));
}

struct attention_words {
  nb::handle seq_lens, page_table;
  double scale;
  int32_t keys_max;
  nb::handle empty;
};

void read_both(const comm &self, nb::handle q, nb::handle k, nb::handle v, const attention_words &words, nb::handle out,
               const combine_words &combine_words, attention_call *call, combine_call *combine) {
  void *stream = self.stream_for(combine_words.stream, q);
  call->read(self.device(), stream, q, k, v, words.seq_lens, words.page_table, words.scale, words.keys_max,
             words.empty);
  combine->desc.tokens = call->desc.batch, combine->desc.heads = call->desc.heads;
  combine->desc.value_dim = call->desc.value_dim, combine->desc.stream = stream;
  combine->read_desc(self, combine_words);
  combine->read_output(self, q, q, out, false, call->q, call->q, combine_words);
}

nb::object attention_combine(comm &self, nb::handle q, nb::handle k, nb::handle v, nb::handle seq_lens,
                             nb::handle page_table, double scale, int32_t keys_max, nb::handle empty, nb::handle out,
                             nb::handle base, nb::handle out_empty, nb::handle scatter, nb::handle root,
                             nb::handle order, nb::handle wire, nb::handle algorithm, nb::handle stream) {
  attention_call call;
  combine_call combine;
  nb::str normalised("normalised");
  read_both(
      self, q, k, v, {seq_lens, page_table, scale, keys_max, empty}, out,
      {base, out_empty, normalised, nb::none(), out_empty, nb::none(), scatter, root, order, wire, algorithm, stream},
      &call, &combine);
  const banyan_partial *written = combine.has_output ? &combine.out : nullptr;
  self.call([&] { return banyan_attention_combine(self.handle(), &call.desc, &combine.desc, written); });
  return combine.result(out.is_none() ? q : nb::handle(Py_None));
}

nb::object attention_combine_init(nb::object self, nb::handle q, nb::handle k, nb::handle v, nb::handle seq_lens,
                                  nb::handle page_table, double scale, int32_t keys_max, nb::handle empty,
                                  nb::handle out, nb::handle base, nb::handle out_empty, nb::handle scatter,
                                  nb::handle root, nb::handle order, nb::handle wire, nb::handle algorithm,
                                  nb::handle stream) {
  auto op = std::make_unique<operation>(self);
  comm &owner = op->owner();
  nb::str normalised("normalised");
  read_both(
      owner, q, k, v, {seq_lens, page_table, scale, keys_max, empty}, out,
      {base, out_empty, normalised, nb::none(), out_empty, nb::none(), scatter, root, order, wire, algorithm, stream},
      &op->attention, &op->combine);
  op->outputs = op->combine.result(nb::none());
  for (nb::handle array : {q, k, v, seq_lens, page_table}) op->kept.push_back(nb::borrow(array));
  const banyan_partial *written = op->combine.has_output ? &op->combine.out : nullptr;
  owner.call([&] {
    return banyan_attention_combine_init(owner.handle(), &op->attention.desc, &op->combine.desc, written, &op->op);
  });
  owner.operations.push_back(op.get());
  return nb::cast(op.release(), nb::rv_policy::take_ownership);
}

} // namespace

#define ATTENTION_ARGUMENTS                                                                                       \
  nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::kw_only(),                                   \
      nb::arg("seq_lens") = nb::none(), nb::arg("page_table") = nb::none(), nb::arg("scale") = 0.0,               \
      nb::arg("keys_max") = 0, nb::arg("empty") = nb::none(), nb::arg("out") = nb::none(), nb::arg("base") = "e", \
      nb::arg("out_empty") = "-inf", nb::arg("scatter") = "none", nb::arg("root") = 0, nb::arg("order") = "plan", \
      nb::arg("wire") = "f32", nb::arg("algorithm") = nb::none(), nb::arg("stream") = nb::none()

void define_attention(nb::module_ &module, nb::class_<comm> &type) {
  module.def(
      "attention", attention, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::kw_only(),
      nb::arg("seq_lens") = nb::none(), nb::arg("page_table") = nb::none(), nb::arg("scale") = 0.0,
      nb::arg("base") = "e", nb::arg("empty") = nb::none(), nb::arg("out") = nb::none(),
      "Attention of one query token per sequence over this rank's keys, in host memory.\n\n"
      "q: [batch, heads, head_dim]; k: [batch, kv_heads, keys, head_dim]; v: [batch, kv_heads, keys, value_dim].\n"
      "Strides are any, but the last dimension is contiguous. seq_lens: int32 [batch]; None: all keys.\n"
      "page_table: int32 [batch, n]; k and v are then [pages, kv_heads, page_keys, dim].\n"
      "scale: 0 is 1 / sqrt(head_dim). empty=\"nan\": a row with a logit of NaN counts as one without keys.\n\n"
      "Returns (o, lse): [batch, heads, value_dim] and [batch, heads], the input of Communicator.combine().");
  type.def("attention_combine", attention_combine, ATTENTION_ARGUMENTS,
           "Attention over the keys of all ranks: banyan.attention() and combine() in one call. The first call with\n"
           "another keys_max plans; on devices set it to what a sequence will have at most.\n\n"
           "Returns (o, lse) like combine().");
  type.def("attention_combine_init", attention_combine_init, ATTENTION_ARGUMENTS,
           "A persistent attention_combine() of these arrays, an Operation.");
}

} // namespace bny
