// SPDX-License-Identifier: Apache-2.0
// The collectives, and the persistent operations of the same arguments.
#include "comm.hh"

#include <memory>

namespace bny {

namespace {

void want_same_shape(const array &second, const array &first, const char *of) {
  second.want_dims(first.ndim, "that of the other array");
  for (int i = 0; i < first.ndim; i++) second.want_shape(i, first.shape[i], of);
}

nb::tuple shape_tuple(std::initializer_list<int64_t> dims) {
  PyObject *tuple = PyTuple_New(static_cast<Py_ssize_t>(dims.size()));
  Py_ssize_t i = 0;
  for (int64_t dim : dims) PyTuple_SetItem(tuple, i++, PyLong_FromLongLong(dim));
  return nb::steal<nb::tuple>(tuple);
}

void fill_values(banyan_partial *rows, const array &values) {
  rows->values = values.data;
  rows->values_dtype = values.number();
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
    refuse(sum->name, "its dtype is " + sum->dtype_name() + ", and that of the maxima differs");
  if (sum->strides[0] != stats.strides[0] || sum->strides[1] != stats.strides[1])
    refuse(sum->name, "its strides differ from those of the maxima");
  rows->sum = sum->data;
}

int32_t small(const array &from, int dim) {
  if (from.shape[dim] > INT32_MAX) refuse(from.name, "a dimension is above 2^31 - 1");
  return static_cast<int32_t>(from.shape[dim]);
}

nb::handle item_of(nb::handle out, size_t index, size_t count) {
  if (out.is_none()) return nb::none();
  if (!PyTuple_Check(out.ptr()) && !PyList_Check(out.ptr())) {
    // One array: the values alone.
    return index == 0 ? out : nb::handle(Py_None);
  }
  if (static_cast<size_t>(PySequence_Size(out.ptr())) != count) {
    refuse("out",
           count == 2 ? "it is a pair: values and lse (None: not wanted)" : "it is three arrays: values, m and d");
  }
  nb::object item = nb::steal(PySequence_GetItem(out.ptr(), static_cast<Py_ssize_t>(index)));
  return nb::handle(item.ptr()); // the tuple keeps it
}

} // namespace

void combine_call::read_desc(const comm &owner, const combine_words &words) {
  desc.wire = read_wire(words.wire);
  desc.scatter = read_scatter(words.scatter);
  desc.order = read_order(words.order);
  desc.root = read_int32("root", words.root);
  const char *text = read_text("algorithm", words.algorithm);
  if (text) algorithm = text;
  desc.algorithm = text ? algorithm.c_str() : nullptr;
  has_output = desc.scatter != BANYAN_SCATTER_ROOT || desc.root == owner.rank();
}

void combine_call::read(const comm &owner, nb::handle o, nb::handle lse, nb::handle d, nb::handle out_arrays,
                        const combine_words &words) {
  void *stream = owner.stream_for(words.stream, o);
  values.open("o", o, false, owner.device(), stream);
  values.want_dims(3, "[tokens, heads, dim]");
  values.want_contiguous_rows();
  stats.open("lse", lse, false, owner.device(), stream);
  stats.want_dims(2, "[tokens, heads]");
  stats.want_shape(0, values.shape[0], "the number of tokens of o");
  stats.want_shape(1, values.shape[1], "the number of heads of o");
  bool with_sum = !d.is_none();
  if (with_sum) {
    sum.open("sum", d, false, owner.device(), stream);
    want_same_shape(sum, stats, "that of lse");
  }
  fill_values(&in, values);
  fill_stats(&in, stats, with_sum ? &sum : nullptr);
  in.values_kind = read_values("values", words.values);
  in.base = read_base("base", words.base);
  read_empty("empty", words.empty, &in);
  desc.tokens = small(values, 0);
  desc.heads = small(values, 1);
  desc.value_dim = small(values, 2);
  desc.stream = stream;
  read_desc(owner, words);
  read_output(owner, o, lse, out_arrays, with_sum, words);
}

void combine_call::read_output(const comm &owner, nb::handle o, nb::handle lse, nb::handle out_arrays, bool with_sum,
                               const combine_words &words) {
  if (!has_output) return;
  int32_t tokens = desc.tokens, heads = desc.heads, first;
  if (desc.scatter == BANYAN_SCATTER_HEADS) banyan_split(desc.heads, owner.nranks(), owner.rank(), &first, &heads);
  if (desc.scatter == BANYAN_SCATTER_TOKENS) banyan_split(desc.tokens, owner.nranks(), owner.rank(), &first, &tokens);
  size_t count = with_sum ? 3 : 2;
  bool given = !out_arrays.is_none();
  if (given) {
    made_values = nb::borrow(item_of(out_arrays, 0, count));
    made_stats = nb::borrow(item_of(out_arrays, 1, count));
    if (with_sum) made_sum = nb::borrow(item_of(out_arrays, 2, count));
  } else {
    made_values = empty_like("o", o, shape_tuple({tokens, heads, desc.value_dim}));
    nb::tuple shape = shape_tuple({tokens, heads});
    made_stats = empty_like("lse", lse, shape);
    if (with_sum) made_sum = empty_like("sum", lse, shape);
  }
  out_values.open("out", made_values, true, owner.device(), desc.stream);
  out_values.want_dims(3, "[tokens, heads, dim]");
  out_values.want_shape(0, tokens, "this rank's number of tokens");
  out_values.want_shape(1, heads, "this rank's number of heads");
  out_values.want_shape(2, desc.value_dim, "the number of values of a row of o");
  out_values.want_contiguous_rows();
  fill_values(&out, out_values);
  out.values_kind = read_values("out_values", words.out_values.is_none() ? words.values : words.out_values);
  out.base = read_base("out_base", words.out_base.is_none() ? words.base : words.out_base);
  read_empty("out_empty", words.out_empty, &out);
  if (made_stats.is_none()) {
    if (with_sum) refuse("out", "m and d are both wanted, or give no sum");
    out.stats_kind = BANYAN_STATS_LSE;
    out.stats_dtype = in.stats_dtype ? in.stats_dtype : BANYAN_F32;
    return;
  }
  out_stats.open("out lse", made_stats, true, owner.device(), desc.stream);
  out_stats.want_dims(2, "[tokens, heads]");
  out_stats.want_shape(0, tokens, "this rank's number of tokens");
  out_stats.want_shape(1, heads, "this rank's number of heads");
  if (with_sum) {
    out_sum.open("out sum", made_sum, true, owner.device(), desc.stream);
    want_same_shape(out_sum, out_stats, "that of the maxima");
  }
  fill_stats(&out, out_stats, with_sum ? &out_sum : nullptr);
}

nb::object combine_call::result(nb::handle o) const {
  if (!has_output) return nb::make_tuple(nb::none(), nb::none());
  if (made_sum.is_valid())
    return nb::make_tuple(finished(o, made_values), finished(o, made_stats), finished(o, made_sum));
  return nb::make_tuple(finished(o, made_values), finished(o, made_stats));
}

namespace {

nb::object combine(comm &self, nb::handle o, nb::handle lse, nb::handle sum, nb::handle out, nb::handle base,
                   nb::handle empty, nb::handle values, nb::handle out_base, nb::handle out_empty,
                   nb::handle out_values, nb::handle scatter, nb::handle root, nb::handle order, nb::handle wire,
                   nb::handle algorithm, nb::handle stream) {
  combine_call request;
  request.read(self, o, lse, sum, out,
               {base, empty, values, out_base, out_empty, out_values, scatter, root, order, wire, algorithm, stream});
  const banyan_partial *written = request.has_output ? &request.out : nullptr;
  self.call([&] { return banyan_combine(self.handle(), &request.desc, &request.in, written); });
  return request.result(out.is_none() ? o : nb::handle(Py_None));
}

// An operation of the communicator `self`, whose arguments `read` reads and `make` gives to the library.
template <class reader, class maker> nb::object make_operation(nb::object self, reader read, maker make) {
  auto op = std::make_unique<operation>(self);
  comm &owner = op->owner();
  read(*op);
  operation &made = *op;
  owner.call([&] { return make(owner.handle(), made); });
  owner.operations.push_back(op.get());
  return nb::cast(op.release(), nb::rv_policy::take_ownership);
}

nb::object combine_init(nb::object self, nb::handle o, nb::handle lse, nb::handle sum, nb::handle out, nb::handle base,
                        nb::handle empty, nb::handle values, nb::handle out_base, nb::handle out_empty,
                        nb::handle out_values, nb::handle scatter, nb::handle root, nb::handle order, nb::handle wire,
                        nb::handle algorithm, nb::handle stream) {
  return make_operation(
      self,
      [&](operation &op) {
        op.combine.read(
            op.owner(), o, lse, sum, out,
            {base, empty, values, out_base, out_empty, out_values, scatter, root, order, wire, algorithm, stream});
        op.outputs = op.combine.result(nb::none());
        for (nb::handle array : {o, lse, sum}) op.kept.push_back(nb::borrow(array));
      },
      [](banyan_comm *comm, operation &op) {
        const banyan_partial *written = op.combine.has_output ? &op.combine.out : nullptr;
        return banyan_combine_init(comm, &op.combine.desc, &op.combine.in, written, &op.op);
      });
}

// mine -> [nranks, *shape]. The memory of `all` when there are counts: rows of the first dimension.
void read_allgather(comm &self, nb::handle mine, nb::handle out, nb::handle counts, array *from, array *into,
                    std::vector<size_t> *bytes, nb::object *all) {
  void *stream = self.stream_for(nb::none(), mine);
  from->open("mine", mine, false, self.device(), stream);
  from->want_contiguous();
  size_t row = from->bytes();
  std::vector<int64_t> shape;
  bytes->assign(static_cast<size_t>(self.nranks()), row);
  int64_t rows = self.nranks();
  if (!counts.is_none()) {
    if (from->ndim < 1) refuse("mine", "with counts it has at least one dimension");
    row = from->dtype.bits / 8u;
    for (int i = 1; i < from->ndim; i++) row *= static_cast<size_t>(from->shape[i]);
    if (PyObject_Size(counts.ptr()) != self.nranks()) refuse("counts", "there is one for each rank");
    rows = 0;
    for (int32_t r = 0; r < self.nranks(); r++) {
      int32_t count = read_int32("counts", nb::object(counts[r]));
      if (count < 0) refuse("counts", "one is below 0");
      (*bytes)[static_cast<size_t>(r)] = static_cast<size_t>(count) * row;
      rows += count;
    }
    from->want_shape(0, read_int32("counts", nb::object(counts[self.rank()])), "this rank's count");
  }
  shape.push_back(rows);
  for (int i = counts.is_none() ? 0 : 1; i < from->ndim; i++) shape.push_back(from->shape[i]);
  if (out.is_none()) {
    nb::list dims;
    for (int64_t dim : shape) dims.append(dim);
    *all = empty_like("mine", mine, nb::tuple(dims));
  } else {
    *all = nb::borrow(out);
  }
  into->open("out", *all, true, self.device(), stream);
  into->want_contiguous();
  size_t total = 0;
  for (size_t count : *bytes) total += count;
  if (into->bytes() != total)
    refuse("out", "it has " + std::to_string(into->bytes()) + " bytes, and all ranks give " + std::to_string(total));
}

nb::object allgather(comm &self, nb::handle mine, nb::handle out, nb::handle counts) {
  array from, into;
  std::vector<size_t> bytes;
  nb::object all;
  read_allgather(self, mine, out, counts, &from, &into, &bytes, &all);
  self.call([&] { return banyan_allgather(self.handle(), from.data, into.data, bytes.data()); });
  return finished(out.is_none() ? mine : nb::handle(Py_None), all);
}

nb::object allgather_init(nb::object self, nb::handle mine, nb::handle out, nb::handle counts) {
  return make_operation(
      self,
      [&](operation &op) {
        read_allgather(op.owner(), mine, out, counts, &op.first, &op.second, &op.counts, &op.outputs);
        op.kept.push_back(nb::borrow(mine));
      },
      [](banyan_comm *comm, operation &op) {
        return banyan_allgather_init(comm, op.first.data, op.second.data, op.counts.data(), &op.op);
      });
}

void read_shift(comm &self, nb::handle send, nb::handle out, array *from, array *into, nb::object *received) {
  void *stream = self.stream_for(nb::none(), send);
  from->open("send", send, false, self.device(), stream);
  from->want_contiguous();
  nb::list dims;
  for (int i = 0; i < from->ndim; i++) dims.append(from->shape[i]);
  *received = out.is_none() ? empty_like("send", send, nb::tuple(dims)) : nb::borrow(out);
  into->open("out", *received, true, self.device(), stream);
  into->want_contiguous();
  if (into->bytes() != from->bytes()) refuse("out", "it is not as large as send");
}

nb::object shift(comm &self, nb::handle send, int32_t distance, nb::handle out) {
  array from, into;
  nb::object received;
  read_shift(self, send, out, &from, &into, &received);
  self.call([&] { return banyan_shift(self.handle(), from.data, into.data, from.bytes(), distance); });
  return finished(out.is_none() ? send : nb::handle(Py_None), received);
}

nb::object shift_init(nb::object self, nb::handle send, int32_t distance, nb::handle out) {
  return make_operation(
      self,
      [&](operation &op) {
        read_shift(op.owner(), send, out, &op.first, &op.second, &op.outputs);
        op.kept.push_back(nb::borrow(send));
      },
      [distance](banyan_comm *comm, operation &op) {
        return banyan_shift_init(comm, op.first.data, op.second.data, op.first.bytes(), distance, &op.op);
      });
}

void broadcast(comm &self, nb::handle data, int32_t root) {
  array memory;
  memory.open("data", data, true, self.device(), self.stream_for(nb::none(), data));
  memory.want_contiguous();
  self.call([&] { return banyan_broadcast(self.handle(), memory.data, memory.bytes(), root); });
}

nb::object broadcast_init(nb::object self, nb::handle data, int32_t root) {
  return make_operation(
      self,
      [&](operation &op) {
        op.first.open("data", data, true, op.owner().device(), op.owner().stream_for(nb::none(), data));
        op.first.want_contiguous();
        op.outputs = nb::borrow(data);
      },
      [root](banyan_comm *comm, operation &op) {
        return banyan_broadcast_init(comm, op.first.data, op.first.bytes(), root, &op.op);
      });
}

void barrier(comm &self) {
  self.call([&] { return banyan_barrier(self.handle()); });
}

nb::object barrier_init(nb::object self) {
  return make_operation(
      self, [](operation &) {}, [](banyan_comm *comm, operation &op) { return banyan_barrier_init(comm, &op.op); });
}

} // namespace

#define COMBINE_ARGUMENTS                                                                                              \
  nb::arg("o").none(), nb::arg("lse").none(), nb::kw_only(),                                                           \
      nb::arg("sum") = nb::none(), nb::arg("out") = nb::none(), nb::arg("base") = "e", nb::arg("empty") = "-inf",      \
      nb::arg("values") = "normalised", nb::arg("out_base") = nb::none(), nb::arg("out_empty") = "-inf",               \
      nb::arg("out_values") = nb::none(), nb::arg("scatter") = "none", nb::arg("root") = 0, nb::arg("order") = "plan", \
      nb::arg("wire") = "f32", nb::arg("algorithm") = nb::none(), nb::arg("stream") = nb::none()

void define_calls(nb::class_<comm> &type) {
  type.def(
      "combine", combine, COMBINE_ARGUMENTS,
      "Merges the partials of all ranks.\n\n"
      "o: [tokens, heads, dim], f32, f16 or bf16; any strides, but the last dimension is contiguous.\n"
      "lse: [tokens, heads], log of the sum of exponentials, in `base` \"e\" or \"2\". With `sum`, [tokens, heads],\n"
      "it is the maximum m, and sum is the denominator d.\n"
      "empty: how lse (or m) of a row without keys looks: \"-inf\", \"+inf\", \"nan\", several joined by \"|\", or a\n"
      "number, which all rows without keys are at most. Values of such rows are never read.\n"
      "values: \"normalised\" or \"numerator\". out_base, out_empty, out_values: the same for what is returned.\n"
      "scatter: \"none\" (all rows on all ranks), \"heads\", \"tokens\" or \"root\".\n"
      "out: a pair of arrays that receive the result, of which lse may be None.\n\n"
      "Returns (out, lse), or (out, m, d) where sum was given, as arrays of the caller's framework. Ranks other than\n"
      "the root get (None, None).");
  type.def(
      "combine_init", combine_init, COMBINE_ARGUMENTS,
      "A persistent combine of these arrays, with the arguments of combine(). Collective. Returns an Operation: op()\n"
      "runs it, and op.outputs are the arrays that it writes.");
  type.def(
      "allgather", allgather, nb::arg("mine"), nb::kw_only(), nb::arg("out") = nb::none(),
      nb::arg("counts") = nb::none(),
      "Gives all ranks the arrays of each: [nranks, *mine.shape]. counts: the size of the first dimension on each\n"
      "rank, where these differ; the arrays are then joined along it.");
  type.def("allgather_init", allgather_init, nb::arg("mine"), nb::kw_only(), nb::arg("out") = nb::none(),
           nb::arg("counts") = nb::none(), "A persistent allgather().");
  type.def("shift", shift, nb::arg("send"), nb::arg("distance") = 1, nb::kw_only(), nb::arg("out") = nb::none(),
           "Sends an array to rank + distance, and returns that of rank - distance, modulo the number of ranks.");
  type.def("shift_init", shift_init, nb::arg("send"), nb::arg("distance") = 1, nb::kw_only(),
           nb::arg("out") = nb::none(), "A persistent shift().");
  type.def("broadcast", broadcast, nb::arg("data"), nb::arg("root") = 0,
           "Copies the memory of `data` from the root to the others, in place.");
  type.def("broadcast_init", broadcast_init, nb::arg("data"), nb::arg("root") = 0, "A persistent broadcast().");
  type.def("barrier", barrier, "Returns when all ranks have called it.");
  type.def("barrier_init", barrier_init, "A persistent barrier().");
}

} // namespace bny
