// SPDX-License-Identifier: Apache-2.0
// Reads the arguments of attention.
#include "comm.hh"

#include <algorithm>

namespace bny {

namespace {

float real(const char *argument, nb::handle word) {
  double number = PyFloat_AsDouble(word.ptr());
  if (PyErr_Occurred()) reject(argument, "it is a number");
  return static_cast<float>(number);
}

// Returns a function that finds what a dict has by a name, or None. The dict has no other names.
auto read_dict(const char *argument, const char *what, nb::handle dict, std::initializer_list<const char *> names) {
  nb::dict given = nb::borrow<nb::dict>(dict);
  for (auto entry : given) {
    std::string name = nb::str(entry.first).c_str();
    if (std::find(names.begin(), names.end(), name) == names.end())
      reject(argument, std::string(what) + " has no \"" + name + "\"");
  }
  return
      [given](const char *name) { return given.contains(name) ? nb::handle(given[name].ptr()) : nb::handle(Py_None); };
}

int32_t whole_number(const char *argument, nb::handle word) { return word.is_none() ? 0 : read_int32(argument, word); }

} // namespace

// Returns the number of sequences. q has a row per sequence, or a row per token if sequences have several tokens.
int64_t attention_call::batch_of(const attention_words &words) const {
  if (!desc.queries) return q.shape[0];
  if (queries.query_start_loc) return query_start_loc.shape[0] - 1;
  bool lists = !words.page_table.is_none() || (!words.select.is_none() && words.key_mask.is_none());
  return lists || !words.parts.is_none() ? q.shape[0] : k.shape[0];
}

void attention_call::read_queries(const attention_words &words) {
  bool any = false;
  for (nb::handle word : {words.query_start_loc, words.query_start, words.tree_mask, words.key_start, words.key_block,
                          words.key_stride, words.key_pattern, words.key_mask, words.window})
    any = any || !word.is_none();
  if (!any) return;
  queries.tokens = q.size32(0);
  if (!words.query_start_loc.is_none()) {
    queries.query_start_loc = read_int32s(&query_start_loc, "query_start_loc", device, words.query_start_loc, stream);
    query_start_loc.want_dims(1, "[batch + 1]");
    if (query_start_loc.shape[0] < 1) reject("query_start_loc", "it has batch + 1 elements, and not 0");
    if (device.empty() && queries.query_start_loc[0] != 0)
      reject("query_start_loc", "it begins with " + std::to_string(queries.query_start_loc[0]) +
                                    ", and tokens before the first sequence would be in none: it begins with 0");
  }
  desc.queries = &queries;
  int64_t batch = batch_of(words);
  if (!words.query_start.is_none()) {
    queries.query_start = read_int32s(&query_start, "query_start", device, words.query_start, stream);
    query_start.want_vector(batch, "[batch]", "the batch");
  }
  if (!words.key_start.is_none()) {
    queries.key_start = read_int32s(&key_start, "key_start", device, words.key_start, stream);
    key_start.want_vector(batch, "[batch]", "the batch");
  }
  if (!words.tree_mask.is_none()) {
    tree_mask.open("tree_mask", words.tree_mask, false, device, stream);
    if (tree_mask.dtype.bits != 64 || (tree_mask.dtype.code != DL_UINT && tree_mask.dtype.code != DL_INT))
      reject("tree_mask", tree_mask.dtype_name() + ": it is uint64, or int64 with the same bits");
    tree_mask.want_vector(q.shape[0], "[tokens]", "the number of tokens of q");
    tree_mask.want_contiguous();
    queries.tree_mask = static_cast<const uint64_t *>(tree_mask.data);
  }
  queries.key_block = whole_number("key_block", words.key_block);
  queries.key_stride = whole_number("key_stride", words.key_stride);
  if (!words.key_pattern.is_none()) {
    if (!PySequence_Check(words.key_pattern.ptr()) || PyObject_Size(words.key_pattern.ptr()) < 1)
      reject("key_pattern", "it is a sequence of one number for each block of a period, or None");
    for (nb::handle item : words.key_pattern) key_pattern.push_back(read_int32("key_pattern", item));
    queries.key_pattern = key_pattern.data();
    queries.key_pattern_len = static_cast<int64_t>(key_pattern.size());
  }
  if (!words.key_mask.is_none()) {
    key_mask.open("key_mask", words.key_mask, !words.select.is_none(), device, stream);
    key_mask.want_dims(2, "[batch, keys]");
    key_mask.want_shape(0, batch, "the batch");
    key_mask.want_contiguous_rows();
    queries.key_mask = key_mask.flags();
    queries.key_mask_stride = batch > 1 ? key_mask.strides[0] : 0;
  }
  queries.window = whole_number("window", words.window);
}

void attention_call::read_pages(const attention_words &words) {
  page_table.open("page_table", words.page_table, false, device, stream);
  if (page_table.dtype.code != DL_INT || page_table.dtype.bits != 32)
    reject("page_table", page_table.dtype_name() + ": it is int32");
  page_table.want_contiguous_rows();
  desc.kv.pages.table = static_cast<const int32_t *>(page_table.data);
  desc.kv.pages.keys = k.size32(2);
  desc.kv.pages.count = k.shape[0];
  if (!words.page_indptr.is_none()) {
    page_table.want_dims(1, "[pages of all sequences], as page_indptr is given");
    desc.kv.pages.indptr = read_int32s(&page_indptr, "page_indptr", device, words.page_indptr, stream);
    page_indptr.want_vector(int64_t{desc.batch} + 1, "[batch + 1]", "the batch and 1 more");
    for (int64_t b = 0; device.empty() && b <= desc.batch; b++) {
      if (desc.kv.pages.indptr[b] >= 0 && desc.kv.pages.indptr[b] <= page_table.shape[0]) continue;
      reject("page_indptr", "element " + std::to_string(b) + " is " + std::to_string(desc.kv.pages.indptr[b]) +
                                ", and page_table has " + std::to_string(page_table.shape[0]) + " pages");
    }
    return;
  }
  page_table.want_dims(2, "[batch, pages of a sequence]");
  page_table.want_shape(0, desc.batch, "the batch");
  // The stride of one sequence, or of a broadcast table, may be arbitrary.
  desc.kv.pages.table_stride = desc.batch > 1 ? page_table.strides[0] : page_table.shape[1];
}

void attention_call::read_lengths(const attention_words &words) {
  if (!words.last_page_len.is_none()) {
    if (!words.seq_lens.is_none()) reject("last_page_len", "it stands in place of seq_lens");
    desc.kv.pages.last_len = read_int32s(&last_page_len, "last_page_len", device, words.last_page_len, stream);
    last_page_len.want_vector(desc.batch, "[batch]", "the batch");
    return;
  }
  if (words.seq_lens.is_none()) {
    if (!words.page_table.is_none()) reject("seq_lens", "with a page table it says how many keys each sequence has");
    if (!device.empty()) reject("seq_lens", "on a device it is memory of that device, and has to be given");
    whole.assign(static_cast<size_t>(desc.batch), k.size32(2));
    desc.kv.seq_lens = whole.data();
    return;
  }
  desc.kv.seq_lens = read_int32s(&seq_lens, "seq_lens", device, words.seq_lens, stream);
  seq_lens.want_vector(desc.batch, "[batch]", "the batch");
  if (desc.kv.pages.indptr) return;
  int64_t most = words.page_table.is_none() ? k.shape[2] : page_table.shape[1] * k.shape[2];
  for (int64_t b = 0; device.empty() && b < desc.batch; b++) {
    if (desc.kv.seq_lens[b] >= 0 && desc.kv.seq_lens[b] <= most) continue;
    reject("seq_lens", "sequence " + std::to_string(b) + " has " + std::to_string(desc.kv.seq_lens[b]) +
                           " keys, and there is room for " + std::to_string(most));
  }
}

void attention_call::read_logits(const attention_words &words) {
  desc.scale = real("scale", words.scale);
  if (!words.soft_cap.is_none()) desc.soft_cap = real("soft_cap", words.soft_cap);
  if (!words.empty.is_none()) {
    const char *word = read_text("empty", words.empty);
    if (std::string(word) != "nan") reject("empty", "for attention it is \"nan\" or None");
    desc.empty = BANYAN_EMPTY_NAN;
  }
  if (words.sinks.is_none()) return;
  sinks.open("sinks", words.sinks, false, device, stream);
  sinks.want_vector(desc.heads, "[heads]", "the number of heads of q");
  sinks.want_contiguous();
  desc.sinks = sinks.floats();
}

// A scale is a number, an array with one per KV head, or an array with one per key of each KV head.
void attention_call::read_scales(const attention_words &words) {
  struct {
    const char *name;
    nb::handle word;
    array *from;
    float *now;
    const float **place;
  } const both[] = {{"k_scale", words.k_scale, &k_scale, &k_scale_now, &desc.kv.scales.k},
                    {"v_scale", words.v_scale, &v_scale, &v_scale_now, &desc.kv.scales.v}};
  constexpr int64_t none = INT64_MIN;
  int64_t stride[2] = {none, none};
  int given = 0, by_key = 0;
  for (int i = 0; i < 2; i++) {
    if (both[i].word.is_none()) continue;
    given++;
    if (PyFloat_Check(both[i].word.ptr()) || PyLong_Check(both[i].word.ptr())) {
      if (!device.empty()) reject(both[i].name, "on a device it is an array of that device, not a number");
      *both[i].now = real(both[i].name, both[i].word);
      *both[i].place = both[i].now;
      stride[i] = 0;
      continue;
    }
    array &from = *both[i].from;
    from.open(both[i].name, both[i].word, false, device, stream);
    *both[i].place = from.floats();
    if (from.ndim == 3) {
      for (int dim = 0; dim < 3; dim++) from.want_shape(dim, k.shape[dim], "that of k");
      int64_t token = from.shape[2] > 1 ? from.strides[2] : 1;
      if (token == 0) reject(from.name, "keys share a scale: give one for each KV head");
      if (by_key++ > 0 && (token != desc.kv.scales.token_stride || from.strides[0] != desc.kv.scales.batch_stride))
        reject("v_scale", "it has the strides of k_scale");
      desc.kv.scales.token_stride = token, desc.kv.scales.batch_stride = from.strides[0];
      stride[i] = from.strides[1];
      continue;
    }
    if (from.count() != 1)
      from.want_vector(desc.kv_heads, "[kv_heads], or [batch, kv_heads, keys] as k", "the number of KV heads");
    stride[i] = from.count() == 1 ? 0 : from.strides[0];
  }
  if ((given == 2 && stride[0] != stride[1]) || (by_key > 0 && by_key < given))
    reject("v_scale", "k_scale and v_scale are both one number, or both have one for each KV head, or for each key");
  desc.kv.scales.head_stride = stride[0] != none ? stride[0] : stride[1] != none ? stride[1] : 0;
}

// Reads a banyan.Prune: bounds of pages, and arrays that receive the certificate.
void attention_call::read_prune(const attention_words &words) {
  if (words.prune.is_none()) return;
  if (!nb::hasattr(words.prune, "page_reads")) reject("prune", "it is a banyan.Prune, or None");
  struct {
    const char *name, *field;
    array *from;
    float **place;
  } const all[] = {{"prune.bounds", "bounds", &bounds, &desc.prune.bounds},
                   {"prune.error", "error", &error, &desc.prune.error},
                   {"prune.read", "read", &pages_read, &desc.prune.read}};
  for (const auto &one : all) {
    nb::object word = words.prune.attr(one.field);
    if (word.is_none()) continue;
    one.from->open(one.name, word, true, device, stream);
    one.from->want_contiguous();
    *one.place = one.from->floats();
  }
  if (nb::object word = words.prune.attr("page_reads"); !word.is_none()) {
    page_reads.open("prune.page_reads", word, true, device, stream);
    if (page_reads.dtype_name() != "uint64") reject("prune.page_reads", page_reads.dtype_name() + ": it is uint64");
    page_reads.want_contiguous();
    desc.prune.page_reads = static_cast<uint64_t *>(page_reads.data);
  }
  desc.prune.epsilon = real("prune.epsilon", words.prune.attr("epsilon"));
  desc.prune.top_pages = read_int32("prune.top_pages", words.prune.attr("top_pages"));
  bool paged = desc.kv.pages.table != nullptr;
  nb::object page_keys = words.prune.attr("page_keys");
  if (paged && !page_keys.is_none())
    reject("prune.page_keys", "k has the length of pages: with a page table it is None");
  int32_t keys = page_keys.is_none() ? 16 : read_int32("prune.page_keys", page_keys);
  if (keys < 1) reject("prune.page_keys", "it is at least 1");
  if (desc.prune.bounds) {
    int64_t of_page = paged ? desc.kv.pages.keys : keys, dim = desc.head_dim;
    bounds.want_dims(paged ? 3 : 4, paged ? "[pages, kv_heads, floats]" : "[batch, pages, kv_heads, floats]");
    bounds.want_shape(0, paged ? desc.kv.pages.count : desc.batch, paged ? "the pages of k" : "the batch");
    bounds.want_shape(paged ? 1 : 2, desc.kv_heads, "the number of KV heads");
    bounds.want_shape(paged ? 2 : 3, 2 + of_page * (2 + (dim + 7) / 8 * 2), "that of Prune.floats()");
    if (!paged) desc.prune.keys = keys, desc.prune.batch_pages = bounds.size32(1);
    if (page_reads.data && page_reads.count() < bounds.shape[0] * (paged ? 1 : bounds.shape[1]))
      reject("prune.page_reads", "it has fewer elements than pages");
  }
  for (array *one : {&error, &pages_read})
    if (one->data && one->count() < int64_t{rows()} * desc.heads) reject(one->name, "it has fewer elements than rows");
}

// Reads the last elements of queries if they are a separate array.
void attention_call::read_rope(const attention_words &words) {
  if (words.q_rope.is_none()) return;
  q_rope.open("q_rope", words.q_rope, false, device, stream);
  q_rope.want_dims(3, "[batch, heads, rope_dim]");
  q_rope.want_contiguous_rows();
  q_rope.want_shape(0, q.shape[0], "that of q");
  q_rope.want_shape(1, q.shape[1], "the number of heads of q");
  if (q_rope.number() != desc.q_dtype) reject("q_rope", q_rope.dtype_name() + ", and q is " + q.dtype_name());
  desc.rope.q = q_rope.data, desc.rope.dim = q_rope.size32(2);
  desc.rope.batch_stride = q_rope.strides[0], desc.rope.head_stride = q_rope.strides[1];
}

// With `gather` the array holds this rank's part, and memory for all parts is allocated.
void attention_call::read_q(const comm *owner, nb::handle q_array, const attention_words &words) {
  bool gathers = !words.gather.is_none() && words.gather.ptr() != Py_False;
  if (gathers) {
    nb::handle counts = words.gather.ptr() == Py_True ? nb::handle(Py_None) : words.gather;
    gather.read_named(*owner, stream, "q", {q_array, Py_None, counts});
    desc.gather = &gather.desc, desc.q_mine = gather.mine.data;
    // The gather uses the stream of the attention call and the strides of q.
    gather.desc.stream = nullptr;
    q.open("q", gather.made, true, device, stream);
  } else {
    q.open("q", q_array, false, device, stream);
  }
  q.want_dims(3, "[batch, heads, head_dim]");
  q.want_contiguous_rows();
  desc.q_dtype = q.number();
  desc.q = q.data, desc.q_batch_stride = q.strides[0], desc.q_head_stride = q.strides[1];
  desc.heads = q.size32(1);
  read_rope(words);
  if (q.shape[2] > INT32_MAX - desc.rope.dim) reject("q", "a dimension is above 2^31 - 1");
  desc.head_dim = q.size32(2) + desc.rope.dim;
}

// Reads rows of keys and values. FlashMLA rows are bytes and include the values. An array without keys may have
// arbitrary strides, as in numpy.
void attention_call::read_keys(nb::handle k_array, nb::handle v_array, const attention_words &words) {
  constexpr int32_t flashmla_bytes = 656, flashmla_values = 512;
  desc.kv.rows = words.kv_rows.is_none() ? BANYAN_KV_ROWS_PLAIN : read_word<banyan_kv_rows>("kv_rows", words.kv_rows);
  bool is_plain = desc.kv.rows == BANYAN_KV_ROWS_PLAIN;
  k.open("k", k_array, false, device, stream);
  k.want_dims(4, "[batch, kv_heads, keys, head_dim], or [pages, kv_heads, page_keys, head_dim] with a page table");
  k.want_contiguous_rows();
  desc.kv_heads = k.size32(1);
  desc.kv.k = k.data, desc.kv.k_batch_stride = k.strides[0], desc.kv.k_head_stride = k.strides[1];
  desc.kv.k_token_stride = k.strides[2];
  if (k.shape[2] == 0) desc.kv.k_head_stride = k.shape[3];
  if (!is_plain) {
    if (k.dtype.bits != 8) reject("k", k.dtype_name() + ": rows of FlashMLA are bytes, in uint8 or float8_e4m3fn");
    k.want_shape(3, flashmla_bytes, "a row of FlashMLA");
    if (!v_array.is_none() && v_array.ptr() != k_array.ptr())
      reject("v", "values are part of the rows of FlashMLA: it is None, or k");
    desc.kv.dtype = BANYAN_E4M3, desc.value_dim = flashmla_values;
    return;
  }
  k.want_shape(3, desc.head_dim, desc.rope.dim ? "that of q and q_rope together" : "head_dim of q");
  v.open("v", v_array, false, device, stream);
  v.want_dims(4, "[batch, kv_heads, keys, value_dim], or [pages, kv_heads, page_keys, value_dim] with a page table");
  v.want_contiguous_rows();
  for (int i = 0; i < 3; i++) v.want_shape(i, k.shape[i], "that of k");
  desc.kv.dtype = k.values_number(true), desc.value_dim = v.size32(3);
  if (desc.kv.dtype != v.values_number(true)) reject("v", v.dtype_name() + ", and k is " + k.dtype_name());
  desc.kv.v = v.data, desc.kv.v_batch_stride = v.strides[0], desc.kv.v_head_stride = v.strides[1];
  desc.kv.v_token_stride = v.strides[2];
  if (v.shape[2] == 0) desc.kv.v_head_stride = v.shape[3];
}

void attention_call::read(const comm *owner, void *stream_of_call, nb::handle q_array, nb::handle k_array,
                          nb::handle v_array, const attention_words &words) {
  if (owner) device = owner->device();
  stream = stream_of_call;
  read_q(owner, q_array, words);
  if (words.parts.is_none())
    read_keys(k_array, v_array, words);
  else if (!k_array.is_none() || !v_array.is_none())
    reject("parts", "each part has its own k and v: those of the call are None");
  read_queries(words);
  int64_t batch = batch_of(words);
  if (batch > INT32_MAX) reject("q", "a dimension is above 2^31 - 1");
  desc.batch = static_cast<int32_t>(batch);
  desc.stream = stream, desc.keys_max = whole_number("keys_max", words.keys_max);
  if (!words.select.is_none()) read_select(*owner, words);
  if (desc.select && words.key_mask.is_none())
    desc.kv.seq_lens = desc.select->own_counts;
  else if (words.parts.is_none())
    read_rows(words);
  else
    read_parts(words);
  if (device.empty()) check_mask();
  read_logits(words);
  read_scales(words);
  read_prune(words);
}

bool attention_call::repeat(nb::handle q_array, nb::handle k_array, nb::handle v_array, const attention_words &words) {
  if (desc.rope.dim || desc.parts || desc.kv.rows != BANYAN_KV_ROWS_PLAIN || desc.prune.bounds || v_array.is_none())
    return false;
  if (desc.queries ? whole_number("window", words.window) != queries.window : !words.window.is_none()) return false;
  array &mine = desc.gather ? gather.mine : q;
  if (!mine.reopen(q_array, false, device, stream) || !k.reopen(k_array, false, device, stream) ||
      !v.reopen(v_array, false, device, stream))
    return false;
  (desc.gather ? desc.q_mine : desc.q) = mine.data;
  desc.kv.k = k.data, desc.kv.v = v.data;
  desc.soft_cap = 0, desc.sinks = nullptr, desc.kv.scales = {};
  read_logits(words);
  read_scales(words);
  return true;
}

// Reads a selection: a dict of the arguments of select(). Without a mask, k and v have one key per page.
void attention_call::read_select(const comm &owner, const attention_words &words) {
  if (!PyDict_Check(words.select.ptr())) reject("select", "it is a dict of the arguments of select(), or None");
  auto get = read_dict("select", "it", words.select, {"scores", "indices", "k", "rows", "out", "algorithm"});
  array::lasting_scope like_q(q.lasting);
  selection.read(owner, {get("scores"), get("indices"), get("k"), get("rows"), get("out"), get("algorithm")});
  if (selection.desc.tokens != desc.batch || selection.desc.heads != 1)
    reject("scores",
           "its shape is [batch, offers], with the batch of attention, which is " + std::to_string(desc.batch));
  desc.select = &selection.desc;
  if (!words.key_mask.is_none()) return;
  for (nb::handle word : {words.page_table, words.page_indptr, words.last_page_len, words.seq_lens, words.parts})
    if (!word.is_none())
      reject("select", "without key_mask it says which keys there are: page tables, seq_lens and "
                       "parts are None");
  desc.kv.pages = {selection.desc.own, selection.desc.k, nullptr, nullptr, k.shape[0], k.size32(2)};
  if (desc.kv.pages.keys != 1) reject("k", "without key_mask a selection reads k of [rows, kv_heads, 1, head_dim]");
}

// Reads where the rows are and how many each sequence has.
void attention_call::read_rows(const attention_words &words) {
  if (words.page_table.is_none())
    k.want_shape(0, desc.batch, desc.queries ? "the batch" : "the batch of q");
  else
    read_pages(words);
  read_lengths(words);
}

// Each part is a dict of the arguments that locate its keys.
void attention_call::read_parts(const attention_words &words) {
  if (!device.empty()) reject("parts", "keys of devices are in one memory of the device: it is None");
  if (!PySequence_Check(words.parts.ptr()) || PyObject_Size(words.parts.ptr()) < 1)
    reject("parts", "it is a list of dicts, or None");
  for (nb::handle word :
       {words.page_table, words.page_indptr, words.last_page_len, words.k_scale, words.v_scale, words.kv_rows})
    if (!word.is_none()) reject("parts", "pages, scales and kv_rows are in each part, and not next to parts");
  whole.assign(static_cast<size_t>(desc.batch), 0);
  for (nb::handle item : words.parts) {
    if (!PyDict_Check(item.ptr())) reject("parts", "it is a list of dicts, or None");
    auto get = read_dict(
        "parts", "a part", item,
        {"k", "v", "seq_lens", "page_table", "page_indptr", "last_page_len", "k_scale", "v_scale", "kv_rows"});
    attention_words own;
    own.seq_lens = get("seq_lens"), own.page_table = get("page_table"), own.page_indptr = get("page_indptr");
    own.last_page_len = get("last_page_len"), own.k_scale = get("k_scale"), own.v_scale = get("v_scale");
    own.kv_rows = get("kv_rows");
    array::lasting_scope like_q(q.lasting);
    pieces.push_back(std::make_unique<attention_call>());
    attention_call &piece = *pieces.back();
    piece.desc.batch = desc.batch, piece.desc.heads = desc.heads, piece.desc.head_dim = desc.head_dim;
    piece.desc.q_dtype = desc.q_dtype, piece.desc.rope.dim = desc.rope.dim;
    piece.stream = stream;
    piece.read_keys(get("k"), get("v"), own);
    piece.read_rows(own);
    piece.read_scales(own);
    if (pieces.size() > 1 && (piece.desc.kv_heads != desc.kv_heads || piece.desc.value_dim != desc.value_dim))
      reject("parts", "all parts have as many KV heads and the same value_dim");
    desc.kv_heads = piece.desc.kv_heads, desc.value_dim = piece.desc.value_dim;
    for (int32_t b = 0; b < desc.batch; b++) {
      int64_t keys = whole[static_cast<size_t>(b)] + piece.keys_of(b);
      if (keys > INT32_MAX) reject("parts", "a sequence has more than 2^31 - 1 keys");
      whole[static_cast<size_t>(b)] = static_cast<int32_t>(keys);
    }
    parts.push_back(piece.desc.kv);
  }
  desc.parts = parts.data(), desc.part_count = static_cast<int64_t>(parts.size());
  desc.kv.seq_lens = whole.data();
  if (words.seq_lens.is_none()) return;
  desc.kv.seq_lens = read_int32s(&seq_lens, "seq_lens", device, words.seq_lens, stream);
  seq_lens.want_vector(desc.batch, "[batch]", "the batch");
}

int64_t attention_call::keys_of(int32_t sequence) const {
  if (desc.kv.seq_lens) return desc.kv.seq_lens[sequence];
  int64_t pages = desc.kv.pages.indptr[sequence + 1] - int64_t{desc.kv.pages.indptr[sequence]};
  return pages > 0 ? (pages - 1) * desc.kv.pages.keys + desc.kv.pages.last_len[sequence] : 0;
}

// The mask needs a byte for each key of a sequence.
void attention_call::check_mask() const {
  for (int32_t b = 0; queries.key_mask && b < desc.batch; b++) {
    int64_t keys = keys_of(b);
    if (keys > key_mask.shape[1])
      reject("key_mask", "sequence " + std::to_string(b) + " has " + std::to_string(keys) + " keys, and the mask " +
                             std::to_string(key_mask.shape[1]));
  }
}

} // namespace bny
