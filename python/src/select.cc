// SPDX-License-Identifier: Apache-2.0
// Selections: the best keys of all ranks, and of this rank's scores.
#include "comm.hh"

namespace bny {

namespace {

// Makes or opens a contiguous array with the first dimensions of `pattern`, and returns it.
nb::object open_result(array *to, const char *name, nb::handle like, nb::handle given, const array &pattern, int dims,
                       int64_t last, const char *dtype, dl_dtype type) {
  int64_t shape[ARRAY_DIMS];
  for (int i = 0; i < dims; i++) shape[i] = i == pattern.ndim - 1 ? last : pattern.shape[i];
  nb::object made = given.is_none() ? empty_of(like, {shape, dims}, dtype) : nb::borrow(given);
  to->open(name, made, true, "", nullptr);
  to->want_dims(dims, "that of a result");
  for (int i = 0; i < dims; i++) to->want_shape(i, shape[i], "that of a result");
  if (to->dtype.code != type.code || to->dtype.bits != type.bits)
    reject(name, to->dtype_name() + ": it is " + std::string(dtype));
  to->want_contiguous();
  return made;
}

constexpr dl_dtype f32 = {DL_FLOAT, 32, 1}, i32 = {DL_INT, 32, 1}, i64 = {DL_INT, 64, 1};

// Returns the results that the caller gave, or None for each.
std::vector<nb::object> results_of(nb::handle out, size_t count) {
  std::vector<nb::object> given(count, nb::none());
  if (out.is_none()) return given;
  if (!PyTuple_Check(out.ptr()) || static_cast<size_t>(PyTuple_Size(out.ptr())) != count)
    reject("out", "it is a tuple of the " + std::to_string(count) + " arrays that the call returns");
  for (size_t i = 0; i < count; i++) given[i] = nb::object(out[i]);
  return given;
}

void open_scores(array *scores, nb::handle given, const std::string &device, int dims_max) {
  scores->open("scores", given, false, device, nullptr);
  scores->floats();
  if (scores->ndim < 1 || scores->ndim > dims_max)
    reject("scores", std::to_string(scores->ndim) + " dimensions, and it has 1 to " + std::to_string(dims_max));
  for (int i = 0; i < scores->ndim; i++) scores->size32(i);
  scores->want_contiguous();
}

} // namespace

void select_call::read(const comm &owner, const words &given) {
  open_scores(&scores, given.scores, owner.device(), 3);
  indices.open("indices", given.indices, false, owner.device(), nullptr);
  narrow = indices.dtype.code == DL_INT && indices.dtype.bits == 32;
  if (indices.dtype.code != DL_INT || (indices.dtype.bits != 64 && !narrow))
    reject("indices", indices.dtype_name() + ": it is int64 or int32");
  if (narrow && indices.lasting) reject("indices", "int32: a persistent operation reads int64");
  if (narrow && !owner.device().empty()) reject("indices", "int32: a device reads int64");
  int dims = scores.ndim;
  auto want_like_scores = [&](array &other) {
    other.want_dims(dims, "that of scores");
    for (int i = 0; i < dims; i++) other.want_shape(i, scores.shape[i], "that of scores");
    other.want_contiguous();
  };
  want_like_scores(indices);
  if (!given.rows.is_none()) {
    desc.rows = read_int32s(&rows, "rows", owner.device(), given.rows, nullptr);
    want_like_scores(rows);
  }
  desc.tokens = dims > 1 ? scores.size32(0) : 1, desc.heads = dims > 2 ? scores.size32(1) : 1;
  if (desc.heads == 0) desc.tokens = 0;
  desc.offers = scores.size32(dims - 1);
  desc.k = given.k.is_none() ? desc.offers : read_int32("k", given.k);
  if (desc.k < 1) reject("k", "it is at least 1, and at most 8192");
  if (desc.offers > desc.k)
    reject("k", "it is " + std::to_string(desc.k) + ", and scores has " + std::to_string(desc.offers) +
                    " for each row: offer the best k, as topk() finds them");
  desc.algorithm = read_algorithm(&algorithm, given.algorithm);
  if (read_tokens(owner, given.tokens, nullptr) && desc.heads > 0) desc.valid = &valid; // else there are no rows
  std::vector<nb::object> results = results_of(given.out, 4);
  if (given.out.is_none()) like = given.scores;
  nb::object all[] = {
      open_result(&best_scores, "out scores", given.scores, results[0], scores, dims, desc.k, "float32", f32),
      open_result(&best_indices, "out indices", given.scores, results[1], scores, dims, desc.k,
                  narrow ? "int32" : "int64", narrow ? i32 : i64),
      open_result(&own, "out own", given.scores, results[2], scores, dims, desc.k, "int32", i32),
      open_result(&own_counts, "out own_counts", given.scores, results[3], scores, dims - 1, 0, "int32", i32)};
  made = nb::make_tuple(all[0], all[1], all[2], all[3]);
  desc.scores = static_cast<const float *>(scores.data);
  desc.best_scores = static_cast<float *>(best_scores.data);
  desc.own = static_cast<int32_t *>(own.data), desc.own_counts = static_cast<int32_t *>(own_counts.data);
  if (narrow) {
    const int32_t *from = static_cast<const int32_t *>(indices.data);
    wide.assign(from, from + indices.count());
    best_wide.assign(static_cast<size_t>(best_indices.count()), -1);
  }
  desc.indices = narrow ? wide.data() : static_cast<const int64_t *>(indices.data);
  desc.best_indices = narrow ? best_wide.data() : static_cast<int64_t *>(best_indices.data);
}

nb::object select_call::result() {
  if (!narrow) return request::result(); // tokens may be in memory of a device
  int64_t rows_now = int64_t{desc.valid ? *valid.tokens : desc.tokens} * desc.heads;
  std::transform(best_wide.begin(), best_wide.begin() + rows_now * desc.k, static_cast<int32_t *>(best_indices.data),
                 [](int64_t index) { return static_cast<int32_t>(index); });
  return request::result();
}

namespace {

nb::object topk(nb::handle scores_word, nb::handle k_word, nb::handle lens_word, nb::handle out) {
  array scores, lens, best, positions;
  open_scores(&scores, scores_word, "", ARRAY_DIMS);
  int32_t n = scores.size32(scores.ndim - 1), k = read_int32("k", k_word);
  int64_t rows = 1;
  for (int i = 0; i < scores.ndim - 1; i++) rows *= scores.shape[i];
  if (rows > INT32_MAX) reject("scores", "it has more than 2^31 - 1 rows");
  const int32_t *lengths = lens_word.is_none() ? nullptr : read_int32s(&lens, "lens", "", lens_word, nullptr);
  if (lengths && lens.count() != rows) reject("lens", "it has one length for each row of scores");
  if (k < 1) reject("k", "it is at least 1, and at most 8192");
  std::vector<nb::object> given = results_of(out, 2);
  nb::object first = open_result(&best, "out values", scores_word, given[0], scores, scores.ndim, k, "float32", f32);
  nb::object second =
      open_result(&positions, "out positions", scores_word, given[1], scores, scores.ndim, k, "int32", i32);
  call_alone([&] {
    return banyan_topk(static_cast<const float *>(scores.data), 0, lengths, static_cast<int32_t>(rows), n, k,
                       static_cast<float *>(best.data), static_cast<int32_t *>(positions.data));
  });
  return finished(out.is_none() ? scores_word : nb::handle(Py_None), nb::make_tuple(first, second));
}

} // namespace

void define_select(nb::module_ &module) {
  module.def("topk", topk, nb::arg("scores").none(), nb::arg("k").none(), nb::kw_only(), nb::arg("lens") = nb::none(),
             nb::arg("out") = nb::none(), doc::topk);
}

} // namespace bny
