// SPDX-License-Identifier: Apache-2.0
// Attention over this rank's keys, and over those of all ranks.
#include "comm.hh"

namespace bny {

/* clang-format off */
#define PARAMETERS nb::handle q, nb::handle k, nb::handle v ATTENTION_WORDS(WORD_PARAMETER)
#define WORDS {ATTENTION_WORDS(WORD_NAME)}
#define WORDS_ARGUMENTS                                                                                                \
  nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::kw_only() ATTENTION_WORDS(WORD_ARGUMENT)
#define WORD_SET(name, standard) how.name = name;
#define WORD_ITEM(name, standard) , name
#define RESULT_PARAMETERS nb::handle out RESULT_WORDS(WORD_PARAMETER), nb::handle gather, nb::handle select
#define ATTENTION_ARGUMENTS                                                                                            \
  WORDS_ARGUMENTS, nb::arg("out") = nb::none() RESULT_WORDS(WORD_ARGUMENT), nb::arg("gather") = nb::none(),       \
      nb::arg("select") = nb::none()
/* clang-format on */

namespace {

nb::tuple dims(std::initializer_list<int64_t> sizes) {
  nb::list list;
  for (int64_t size : sizes) list.append(size);
  return nb::tuple(list);
}

// Output of local attention: o [batch, heads, value_dim] has the dtype of q, and lse [batch, heads] is f32. With dtype
// "f32" both are f32, and with "q" both have the dtype of q.
struct local_output {
  array o, lse;
  banyan_partial rows = BANYAN_PARTIAL_INIT;
  nb::object made, stats;

  void open(const attention_call &call, nb::handle q, nb::handle out, nb::handle dtype, nb::handle base) {
    const banyan_attention_desc &desc = call.desc;
    std::string word = dtype.is_none() ? "" : read_text("dtype", dtype);
    if (!word.empty() && word != "f32" && word != "q") reject("dtype", "it is \"f32\", \"q\" or None");
    if (!word.empty() && !out.is_none()) reject("dtype", "arrays in out have their own");
    if (out.is_none()) {
      bool other = desc.q_dtype != BANYAN_F32;
      nb::object lse_made = empty_like("q", q, dims({call.rows(), desc.heads}), other && word != "q");
      made = nb::make_tuple(empty_like("q", q, dims({call.rows(), desc.heads, desc.value_dim}), other && word == "f32"),
                            lse_made);
    } else {
      bool is_pair = PyTuple_Check(out.ptr());
      if (is_pair && PyTuple_Size(out.ptr()) != 2) reject("out", "it is a pair, values and lse, or the values alone");
      made = is_pair ? nb::borrow(out) : nb::make_tuple(out, nb::none());
    }
    o.open("out", made[0], true, "", nullptr);
    o.want_dims(3, "[batch, heads, value_dim]");
    o.want_shape(0, call.rows(), "the number of rows of q"), o.want_shape(1, desc.heads, "the number of heads");
    o.want_shape(2, desc.value_dim, "value_dim of v");
    o.want_contiguous_rows();
    stats = made[1]; // None: not wanted
    if (stats.is_none()) stats = empty_like("q", q, dims({call.rows(), desc.heads}), true);
    lse.open("out lse", stats, true, "", nullptr);
    lse.want_dims(2, "[batch, heads]");
    lse.want_shape(0, call.rows(), "the number of rows of q"), lse.want_shape(1, desc.heads, "the number of heads");
    banyan_partial_init(&rows, o.data, o.number(), lse.data, lse.number(), desc.heads, desc.value_dim);
    rows.values_token_stride = o.strides[0], rows.values_head_stride = o.strides[1];
    rows.stats_token_stride = lse.strides[0], rows.stats_head_stride = lse.strides[1];
    rows.base = read_base("base", base);
  }
};

nb::object attention(PARAMETERS, nb::handle base, nb::handle out, nb::handle dtype) {
  attention_call call;
  local_output output;
  call.read(nullptr, nullptr, q, k, v, WORDS);
  output.open(call, q, out, dtype, base);
  banyan_status status;
  {
    gil_released without;
    status = banyan_attention(&call.desc, &output.rows);
  }
  if (status != BANYAN_OK) raise_status(status, -1);
  if (!out.is_none()) return output.made;
  return nb::make_tuple(finished(q, output.made[0]), finished(q, output.made[1]));
}

void page_bounds_update(PARAMETERS, nb::handle first) {
  attention_call call;
  array from;
  call.read(nullptr, nullptr, q, k, v, WORDS);
  const int32_t *firsts = first.is_none() ? nullptr : read_int32s(&from, "first", "", first, nullptr);
  if (firsts) from.want_dims(1, "[batch]"), from.want_shape(0, call.desc.batch, "the batch");
  banyan_status status;
  {
    nb::gil_scoped_release without;
    status = banyan_page_bounds_update(&call.desc, firsts);
  }
  if (status != BANYAN_OK) raise_status(status, -1);
}

} // namespace

void read_both(const comm &self, nb::handle q, nb::handle k, nb::handle v, const attention_words &words, nb::handle out,
               const combine_words &combine_words, attention_call *call, combine_call *combine) {
  void *stream = self.stream_for(combine_words.stream, q);
  call->read(&self, stream, q, k, v, words);
  combine->desc.tokens = call->rows(), combine->desc.heads = call->desc.heads;
  combine->desc.value_dim = call->desc.value_dim, combine->desc.stream = stream;
  combine->has_output = read_how(&combine->desc, &combine->algorithm, self, combine_words);
  if (combine->read_tokens(self, combine_words.tokens, stream)) combine->desc.valid = &combine->valid;
  combine->lse_f32 = call->desc.q_dtype != BANYAN_F32;
  combine->read_output(self, q, q, out, false, call->q, call->q, combine_words);
}

namespace {

nb::object attention_combine(comm &self, PARAMETERS, RESULT_PARAMETERS) {
  attention_call call;
  combine_call combine;
  attention_words words WORDS;
  words.gather = gather, words.select = select;
  combine_words how;
  RESULT_WORDS(WORD_SET)
  how.empty = out_empty;
  self.read(false, [&] { read_both(self, q, k, v, words, out, how, &call, &combine); });
  const banyan_partial *written = combine.has_output ? &combine.out : nullptr;
  self.call([&] { return banyan_attention_combine(self.handle(), &call.desc, &combine.desc, written); });
  call.selection.finish();
  return combine.result(out.is_none() ? q : nb::handle(Py_None));
}

nb::object attention_combine_init(nb::object self, PARAMETERS, RESULT_PARAMETERS) {
  attention_words words WORDS;
  words.gather = gather, words.select = select;
  combine_words how;
  RESULT_WORDS(WORD_SET)
  how.empty = out_empty;
  return make_operation(
      self,
      [&](operation &op) {
        read_both(op.owner(), q, k, v, words, out, how, &op.attention, &op.combine);
        op.outputs = op.combine.result(nb::none());
        for (nb::handle array : {q, k, v, tokens, select ATTENTION_WORDS(WORD_ITEM)})
          op.kept.push_back(nb::borrow(array));
      },
      [](banyan_comm *comm, operation &op) {
        const banyan_partial *written = op.combine.has_output ? &op.combine.out : nullptr;
        return banyan_attention_combine_init(comm, &op.attention.desc, &op.combine.desc, written, &op.op);
      });
}

} // namespace

void define_attention(nb::module_ &module, nb::class_<comm> &type) {
  module.def("attention", attention, WORDS_ARGUMENTS, nb::arg("base") = "e", nb::arg("out") = nb::none(),
             nb::arg("dtype") = nb::none(), doc::attention);
  module.def("page_bounds_update", page_bounds_update, WORDS_ARGUMENTS, nb::arg("first") = nb::none(),
             doc::page_bounds_update);
  type.def("attention_combine", attention_combine, ATTENTION_ARGUMENTS, doc::Comm_attention_combine);
  type.def("attention_combine_init", attention_combine_init, ATTENTION_ARGUMENTS, doc::Comm_attention_combine_init);
}

} // namespace bny
