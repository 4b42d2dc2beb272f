// SPDX-License-Identifier: Apache-2.0
// Attention over this rank's keys, and what attention over those of all ranks reads.
#include "comm.hh"

namespace bny {

/* clang-format off */
#define PARAMETERS nb::handle q, nb::handle k, nb::handle v ATTENTION_WORDS(WORD_PARAMETER)
#define WORDS {ATTENTION_WORDS(WORD_NAME)}
#define WORDS_ARGUMENTS                                                                                                \
  nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::kw_only() ATTENTION_WORDS(WORD_ARGUMENT)
/* clang-format on */

namespace {

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
      nb::object lse_made = empty_like("q", q, {call.rows(), desc.heads}, other && word != "q");
      made = nb::make_tuple(empty_like("q", q, {call.rows(), desc.heads, desc.value_dim}, other && word == "f32"),
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
    if (stats.is_none()) stats = empty_like("q", q, {call.rows(), desc.heads}, true);
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
  call_alone([&] { return banyan_attention(&call.desc, &output.rows); });
  return finished(out.is_none() ? q : nb::handle(Py_None), output.made);
}

void page_bounds_update(PARAMETERS, nb::handle first) {
  attention_call call;
  array from;
  call.read(nullptr, nullptr, q, k, v, WORDS);
  const int32_t *firsts = first.is_none() ? nullptr : read_int32s(&from, "first", "", first, nullptr);
  if (firsts) from.want_vector(call.desc.batch, "[batch]", "the batch");
  call_alone([&] { return banyan_page_bounds_update(&call.desc, firsts); });
}

} // namespace

void attention_request::read(const comm &owner, const words &given) {
  combine_words how = given.result.as_combine();
  void *stream = owner.stream_for(how.stream, given.q);
  attention.read(&owner, stream, given.q, given.k, given.v, given.how);
  combine.desc.tokens = attention.rows(), combine.desc.heads = attention.desc.heads;
  combine.desc.value_dim = attention.desc.value_dim, combine.desc.stream = stream;
  combine.has_output = read_how(&combine.desc, &combine.algorithm, owner, how);
  if (combine.read_tokens(owner, how.tokens, stream)) combine.desc.valid = &combine.valid;
  combine.lse_f32 = attention.desc.q_dtype != BANYAN_F32;
  combine.read_output(owner, given.q, given.q, given.out, false, attention.q, attention.q, how);
  made = combine.made, like = given.out.is_none() ? given.q : nb::handle(Py_None);
}

bool attention_request::repeat(const comm &owner, const words &given) {
  if (!combine.repeat(owner, given.out) || !attention.repeat(given.q, given.k, given.v, given.how)) return false;
  made = combine.made, like = Py_None;
  return true;
}

nb::object attention_request::result() {
  if (attention.desc.select) attention.selection.result();
  return request::result();
}

void define_attention(nb::module_ &module) {
  module.def("attention", attention, WORDS_ARGUMENTS, nb::arg("base") = "e", nb::arg("out") = nb::none(),
             nb::arg("dtype") = nb::none(), doc::attention);
  module.def("page_bounds_update", page_bounds_update, WORDS_ARGUMENTS, nb::arg("first") = nb::none(),
             doc::page_bounds_update);
}

} // namespace bny
