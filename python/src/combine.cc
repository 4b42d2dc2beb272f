// SPDX-License-Identifier: Apache-2.0
// Reads the arguments of a combine.
#include "comm.hh"

namespace bny {

namespace {

void want_same_shape(const array &second, const array &first, const char *of) {
  second.want_dims(first.ndim, "that of the other array");
  for (int i = 0; i < first.ndim; i++) second.want_shape(i, first.shape[i], of);
}

void fill_values(banyan_partial *rows, const array &values) {
  rows->values = values.data;
  rows->values_dtype = values.values_number();
  rows->values_token_stride = values.strides[0];
  rows->values_head_stride = values.strides[1];
}

void fill_stats(banyan_partial *rows, const array &stats, const array *sum) {
  rows->stats_kind = sum ? BANYAN_STATS_MAX_SUM : BANYAN_STATS_LSE;
  rows->lse = stats.data;
  rows->stats_dtype = stats.number();
  rows->stats_token_stride = stats.strides[0];
  rows->stats_head_stride = stats.strides[1];
  if (!sum) return;
  if (sum->number() != rows->stats_dtype)
    reject(sum->name, "its dtype is " + sum->dtype_name() + ", and that of the maxima differs");
  if (sum->strides[0] != stats.strides[0] || sum->strides[1] != stats.strides[1])
    reject(sum->name, "its strides differ from those of the maxima");
  rows->sum = sum->data;
}

void check_rows(const array &rows, int dims, int32_t tokens, int32_t heads) {
  rows.want_dims(dims, dims == 3 ? "[tokens, heads, dim]" : "[tokens, heads]");
  rows.want_shape(0, tokens, "this rank's number of tokens");
  rows.want_shape(1, heads, "this rank's number of heads");
}

nb::handle item_of(nb::handle out, size_t index, size_t count) {
  if (out.is_none()) return nb::none();
  if (!PyTuple_Check(out.ptr()) && !PyList_Check(out.ptr())) {
    // A single array receives the values only.
    return index == 0 ? out : nb::handle(Py_None);
  }
  if (static_cast<size_t>(PySequence_Size(out.ptr())) != count) {
    reject("out",
           count == 2 ? "it is a pair: values and lse (None: not wanted)" : "it is three arrays: values, m and d");
  }
  nb::object item = nb::steal(PySequence_GetItem(out.ptr(), static_cast<Py_ssize_t>(index)));
  return nb::handle(item.ptr()); // the tuple keeps it alive
}

// Reads the scale of eight-bit values: a number, or an array with one per head.
void read_scale(const char *argument, const comm &owner, nb::handle word, void *stream, array *from, float *number,
                banyan_partial *rows, int32_t heads) {
  if (word.is_none()) return;
  if (PyFloat_Check(word.ptr()) || PyLong_Check(word.ptr())) {
    if (!owner.device().empty()) reject(argument, "on a device it is an array of that device, not a number");
    *number = static_cast<float>(PyFloat_AsDouble(word.ptr()));
    if (PyErr_Occurred()) reject(argument, "the number does not fit into a float");
    rows->values_scale = number;
    return;
  }
  from->open(argument, word, false, owner.device(), stream);
  rows->values_scale = from->floats();
  if (from->count() == 1) return;
  from->want_vector(heads, "[heads]", "the number of heads");
  rows->values_scale_stride = from->strides[0];
}

} // namespace

const int32_t *read_int32s(array *from, const char *argument, const std::string &device, nb::handle word,
                           void *stream) {
  from->open(argument, word, false, device, stream);
  if (from->dtype.code != DL_INT || from->dtype.bits != 32) reject(argument, from->dtype_name() + ": it is int32");
  from->want_contiguous();
  return static_cast<const int32_t *>(from->data);
}

nb::object request::result() { return finished(like, made); }

const char *read_algorithm(std::string *algorithm, nb::handle word) {
  const char *text = read_text("algorithm", word);
  if (text) *algorithm = text;
  return text ? algorithm->c_str() : nullptr;
}

bool request::read_tokens(const comm &owner, nb::handle word, void *stream) {
  // numpy integers count as numbers. numpy arrays have __index__ too, but their memory is read.
  if (PyBool_Check(word.ptr())) reject("tokens", "it is a number, and not a bool");
  if (PyIndex_Check(word.ptr()) && !PyObject_HasAttrString(word.ptr(), "__dlpack__")) {
    if (!owner.device().empty()) reject("tokens", "on a device it is an int32 array of that device, not a number");
    tokens_now = read_int32("tokens", word);
    valid.tokens = &tokens_now;
  } else if (!word.is_none()) {
    valid.tokens = read_int32s(&valid_tokens, "tokens", owner.device(), word, stream);
    if (valid_tokens.count() != 1) reject("tokens", "it is a number, or an int32 array of one element");
  }
  return valid.tokens != nullptr;
}

void combine_call::read_plain(const comm &owner, nb::handle o, nb::handle lse, nb::handle d,
                              const combine_words &words) {
  values.open("o", o, false, owner.device(), desc.stream);
  values.want_dims(3, "[tokens, heads, dim]");
  values.want_contiguous_rows();
  stats.open("lse", lse, false, owner.device(), desc.stream);
  stats.want_dims(2, "[tokens, heads]");
  stats.want_shape(0, values.shape[0], "the number of tokens of o");
  stats.want_shape(1, values.shape[1], "the number of heads of o");
  bool with_sum = !d.is_none();
  if (with_sum) {
    sum.open("sum", d, false, owner.device(), desc.stream);
    want_same_shape(sum, stats, "that of lse");
  }
  fill_values(&in, values);
  fill_stats(&in, stats, with_sum ? &sum : nullptr);
  in.values_kind = words.values.is_none() ? BANYAN_VALUES_NORMALISED : read_word<banyan_values>("values", words.values);
  in.base = words.base.is_none() ? BANYAN_BASE_E : read_base("base", words.base);
  if (words.empty.is_none())
    in.empty = BANYAN_EMPTY_NEG_INF;
  else
    read_empty("empty", words.empty, &in);
  desc.tokens = values.size32(0);
  desc.heads = values.size32(1);
  desc.value_dim = values.size32(2);
}

// The library defines the presets. The arrays have the layout of the preset, and the strides come from them.
void combine_call::read_preset(const comm &owner, nb::handle o, nb::handle lse, banyan_preset preset) {
  bool rows = preset == BANYAN_PRESET_GGML, pairs = preset == BANYAN_PRESET_TENSORRT_LLM_HELIX;
  bool by_head = preset == BANYAN_PRESET_FLASH_ATTENTION_2 || preset == BANYAN_PRESET_FLASH_ATTENTION_3;
  values.open("o", o, false, owner.device(), desc.stream);
  values.want_dims(3, rows ? "[tokens, heads, 2 + dim], rows of ggml" : "[tokens, heads, dim]");
  values.want_contiguous_rows();
  if (rows && !lse.is_none()) reject("lse", "rows of ggml have their statistics within: it is None");
  if (rows && values.shape[2] < 2) reject("o", "rows of ggml begin with two statistics");
  if (!rows) {
    stats.open("lse", lse, false, owner.device(), desc.stream);
    stats.want_dims(pairs ? 3 : 2, pairs     ? "[tokens, heads, 2], pairs of m and d"
                                   : by_head ? "[heads, tokens], as the preset says"
                                             : "[tokens, heads]");
    stats.want_shape(by_head ? 1 : 0, values.shape[0], "the number of tokens of o");
    stats.want_shape(by_head ? 0 : 1, values.shape[1], "the number of heads of o");
    if (pairs) stats.want_shape(2, 2, "that of a pair");
    if (pairs) stats.want_contiguous_rows();
  }
  const array &from = rows ? values : stats;
  if (from.number() != BANYAN_F32) reject(from.name, from.dtype_name() + ": the preset has float32");
  desc.tokens = values.size32(0);
  desc.heads = values.size32(1);
  desc.value_dim = values.size32(2) - (rows ? 2 : 0);
  banyan_status status = banyan_partial_preset(&in, preset, rows ? nullptr : values.data, values.values_number(),
                                               from.data, desc.tokens, desc.heads, desc.value_dim);
  if (status != BANYAN_OK) raise_status(status, -1);
  in.values_token_stride = values.strides[0], in.values_head_stride = values.strides[1];
  in.stats_token_stride = from.strides[by_head ? 1 : 0], in.stats_head_stride = from.strides[by_head ? 0 : 1];
}

void combine_call::read_valid(const comm &owner, const combine_words &words) {
  if (words.tokens.is_none() && words.seq_lens.is_none() && words.query_start_loc.is_none() &&
      words.token_mask.is_none() && words.empty_rows.is_none())
    return;
  read_tokens(owner, words.tokens, desc.stream);
  if (!words.seq_lens.is_none()) {
    valid.seq_lens = read_int32s(&seq_lens, "seq_lens", owner.device(), words.seq_lens, desc.stream);
    seq_lens.want_dims(1, "[batch]");
    valid.batch = seq_lens.size32(0);
  }
  if (!words.query_start_loc.is_none()) {
    valid.query_start_loc =
        read_int32s(&query_start_loc, "query_start_loc", owner.device(), words.query_start_loc, desc.stream);
    query_start_loc.want_dims(1, "[batch + 1]");
    if (query_start_loc.shape[0] < 1) reject("query_start_loc", "it has batch + 1 elements, and not 0");
    if (valid.seq_lens) query_start_loc.want_shape(0, int64_t{valid.batch} + 1, "the batch of seq_lens and 1 more");
    valid.batch = query_start_loc.size32(0) - 1;
  }
  if (!words.token_mask.is_none()) {
    token_mask.open("token_mask", words.token_mask, false, owner.device(), desc.stream);
    token_mask.want_vector(desc.tokens, "[tokens]", "the number of tokens of o");
    token_mask.want_contiguous();
    valid.token_mask = token_mask.flags();
  }
  if (!words.empty_rows.is_none()) valid.empty_rows = read_word<banyan_empty_rows>("empty_rows", words.empty_rows);
  desc.valid = &valid;
}

void combine_call::read(const comm &owner, const words &given) {
  const combine_words &how = given.how;
  nb::handle o = given.o, lse = given.lse, d = given.sum;
  like = given.out.is_none() ? o : nb::handle(Py_None);
  desc.stream = owner.stream_for(how.stream, o);
  if (how.preset.is_none()) {
    read_plain(owner, o, lse, d, how);
  } else {
    if (!how.base.is_none()) reject("base", "the preset says it");
    if (!how.empty.is_none()) reject("empty", "the preset says it");
    if (!how.values.is_none()) reject("values", "the preset says it");
    if (!d.is_none()) reject("sum", "the preset says where the denominators are");
    read_preset(owner, o, lse, read_word<banyan_preset>("preset", how.preset));
  }
  read_scale("values_scale", owner, how.values_scale, desc.stream, &scale, &scale_now, &in, desc.heads);
  read_valid(owner, how);
  has_output = read_how(&desc, &algorithm, owner, how);
  bool in_rows = lse.is_none();
  read_output(owner, o, in_rows ? o : lse, given.out, !d.is_none(), values, in_rows ? values : stats, how);
}

void combine_call::read_out_words(const combine_words &words) {
  bool like_input = in.values_kind && words.preset.is_none();
  if (!words.out_values.is_none())
    out.values_kind = read_word<banyan_values>("values", words.out_values, "out_values");
  else
    out.values_kind = like_input ? in.values_kind : BANYAN_VALUES_NORMALISED;
  nb::handle base = words.out_base.is_none() ? words.base : words.out_base;
  out.base = base.is_none() ? (in.base ? in.base : BANYAN_BASE_E) : read_base("out_base", base);
  read_empty("out_empty", words.out_empty, &out);
}

void combine_call::read_output(const comm &owner, nb::handle o, nb::handle lse, nb::handle out_arrays, bool with_sum,
                               const array &pattern_values, const array &pattern_stats, const combine_words &words) {
  if (!has_output) return set_made();
  int32_t tokens = desc.tokens, heads = desc.heads, first;
  if (desc.scatter == BANYAN_SCATTER_HEADS) banyan_split(desc.heads, owner.nranks(), owner.rank(), &first, &heads);
  if (desc.scatter == BANYAN_SCATTER_TOKENS) banyan_split(desc.tokens, owner.nranks(), owner.rank(), &first, &tokens);
  const std::string &device = owner.device();
  if (!out_arrays.is_none()) {
    size_t count = with_sum ? 3 : 2;
    made_values = nb::borrow(item_of(out_arrays, 0, count));
    made_stats = nb::borrow(item_of(out_arrays, 1, count));
    if (with_sum) made_sum = nb::borrow(item_of(out_arrays, 2, count));
    out_values.open("out", made_values, true, device, desc.stream);
    check_rows(out_values, 3, tokens, heads);
    out_values.want_shape(2, desc.value_dim, "the number of values of a row of o");
    out_values.want_contiguous_rows();
    if (!made_stats.is_none()) out_stats.open("out lse", made_stats, true, device, desc.stream);
    if (!made_stats.is_none() && with_sum) out_sum.open("out sum", made_sum, true, device, desc.stream);
  } else {
    made_values = out_values.make("o", o, pattern_values, {tokens, heads, desc.value_dim}, values.dtype.bits == 8,
                                  device, desc.stream);
    made_stats = out_stats.make("lse", lse, pattern_stats, {tokens, heads}, lse_f32, device, desc.stream);
    if (with_sum) made_sum = out_sum.make("sum", lse, pattern_stats, {tokens, heads}, false, device, desc.stream);
  }
  set_made();
  fill_values(&out, out_values);
  read_scale("out_scale", owner, words.out_scale, desc.stream, &out_scale, &out_scale_now, &out, heads);
  read_out_words(words);
  if (made_stats.is_none()) {
    if (with_sum) reject("out", "m and d are both wanted, or give no sum");
    out.stats_kind = BANYAN_STATS_LSE;
    out.stats_dtype = in.stats_dtype ? in.stats_dtype : BANYAN_F32;
    return;
  }
  check_rows(out_stats, 2, tokens, heads);
  if (with_sum) want_same_shape(out_sum, out_stats, "that of the maxima");
  fill_stats(&out, out_stats, with_sum ? &out_sum : nullptr);
}

bool combine_call::repeat(const comm &owner, nb::handle out_array) {
  if (!has_output || out_array.is_none() || PyTuple_Check(out_array.ptr()) || PyList_Check(out_array.ptr()) ||
      !made_stats.is_none() || !out_values.reopen(out_array, true, owner.device(), desc.stream))
    return false;
  made_values = nb::borrow(out_array);
  set_made();
  out.values = out_values.data;
  return true;
}

void combine_call::set_made() {
  nb::object none = nb::none();
  if (!has_output)
    made = nb::make_tuple(none, none);
  else if (made_sum.is_valid())
    made = nb::make_tuple(made_values, made_stats, made_sum);
  else
    made = nb::make_tuple(made_values, made_stats);
}

} // namespace bny
