// SPDX-License-Identifier: Apache-2.0
// The collectives that move bytes, and persistent operations with the same arguments.
#include "comm.hh"

namespace bny {

void heads_call::read_counts(const comm &owner, const char *argument, nb::handle word) {
  size_t ranks = static_cast<size_t>(owner.nranks());
  counts.assign(ranks, static_cast<int32_t>(mine.shape[1]));
  if (word.is_none()) return;
  if (PySequence_Check(word.ptr()) != 1 || PyObject_Size(word.ptr()) != owner.nranks())
    reject(argument, "it is a list of the heads of each rank");
  for (size_t r = 0; r < ranks; r++) counts[r] = read_int32(argument, nb::object(word[r]));
  mine.want_shape(1, counts[static_cast<size_t>(owner.rank())], "this rank's count");
}

void heads_call::read(const comm &owner, void *stream, const char *argument, nb::handle mine_array, nb::handle out,
                      nb::handle counts_word, nb::handle tokens) {
  desc.stream = stream;
  mine.open(argument, mine_array, false, owner.device(), stream);
  mine.want_dims(3, "[tokens, heads, dim]");
  mine.want_contiguous_rows();
  mine.want_rows_apart(2);
  if (mine.shape[0] > INT32_MAX || mine.shape[1] > INT32_MAX / owner.nranks() || mine.shape[2] > INT32_MAX)
    reject(argument, "a dimension is above 2^31 - 1");
  desc.tokens = static_cast<int32_t>(mine.shape[0]), desc.dim = static_cast<int32_t>(mine.shape[2]);
  desc.dtype = mine.values_number(true);
  desc.mine_token_stride = mine.strides[0], desc.mine_head_stride = mine.strides[1];
  const char *counted = mine.name == std::string("q") ? "gather" : "counts"; // attention names it differently
  read_counts(owner, counted, counts_word);
  int64_t heads = 0;
  for (int32_t count : counts) heads += count;
  if (heads < 0 || heads > INT32_MAX) reject(counted, "their sum is no number of heads");
  desc.heads = static_cast<int32_t>(heads), desc.counts = counts.data();
  if (read_tokens(owner, tokens, stream)) desc.valid = &valid;
  if (out.is_none()) {
    made = all.make(argument, mine_array, mine, {desc.tokens, heads, desc.dim}, false, owner.device(), stream);
  } else {
    made = nb::borrow(out);
    all.open("out", out, true, owner.device(), stream);
    all.want_dims(3, "[tokens, heads, dim]");
    all.want_shape(0, desc.tokens, "the number of tokens of mine");
    all.want_shape(1, heads, "the number of heads of all ranks");
    all.want_shape(2, desc.dim, "the last dimension of mine");
    all.want_contiguous_rows();
    all.want_rows_apart(2);
    if (all.values_number(true) != desc.dtype) reject("out", all.dtype_name() + ", and mine differs");
  }
  desc.all_token_stride = all.strides[0], desc.all_head_stride = all.strides[1];
}

namespace {

// Gathers mine into [nranks, *shape]. With counts, `all` has the rows of all ranks in its first dimension.
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
    if (from->ndim < 1) reject("mine", "with counts it has at least one dimension");
    row = from->dtype.bits / 8u;
    for (int i = 1; i < from->ndim; i++) row *= static_cast<size_t>(from->shape[i]);
    if (PySequence_Check(counts.ptr()) != 1 || PyObject_Size(counts.ptr()) != self.nranks())
      reject("counts", "it is a list of one for each rank");
    rows = 0;
    for (int32_t r = 0; r < self.nranks(); r++) {
      int32_t count = read_int32("counts", nb::object(counts[r]));
      if (count < 0) reject("counts", "one is below 0");
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
    reject("out", "it has " + std::to_string(into->bytes()) + " bytes, and all ranks give " + std::to_string(total));
}

nb::object allgather(comm &self, nb::handle mine, nb::handle out, nb::handle counts) {
  array from, into;
  std::vector<size_t> bytes;
  nb::object all;
  self.read(false, [&] { read_allgather(self, mine, out, counts, &from, &into, &bytes, &all); });
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

nb::object allgather_heads(comm &self, nb::handle mine, nb::handle out, nb::handle counts, nb::handle tokens) {
  heads_call call;
  self.read(false, [&] { call.read(self, self.stream_for(nb::none(), mine), "mine", mine, out, counts, tokens); });
  self.call([&] { return banyan_allgather_heads(self.handle(), &call.desc, call.mine.data, call.all.data); });
  return finished(out.is_none() ? mine : nb::handle(Py_None), call.made);
}

nb::object allgather_heads_init(nb::object self, nb::handle mine, nb::handle out, nb::handle counts,
                                nb::handle tokens) {
  return make_operation(
      self,
      [&](operation &op) {
        op.heads.read(op.owner(), op.owner().stream_for(nb::none(), mine), "mine", mine, out, counts, tokens);
        op.outputs = op.heads.made;
        for (nb::handle array : {mine, tokens}) op.kept.push_back(nb::borrow(array));
      },
      [](banyan_comm *comm, operation &op) {
        return banyan_allgather_heads_init(comm, &op.heads.desc, op.heads.mine.data, op.heads.all.data, &op.op);
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
  if (into->bytes() != from->bytes()) reject("out", "it is not as large as send");
}

nb::object shift(comm &self, nb::handle send, nb::handle distance, nb::handle out) {
  array from, into;
  nb::object received;
  int32_t by = 0;
  self.read(false, [&] {
    read_shift(self, send, out, &from, &into, &received);
    by = read_int32("distance", distance);
  });
  self.call([&] { return banyan_shift(self.handle(), from.data, into.data, from.bytes(), by); });
  return finished(out.is_none() ? send : nb::handle(Py_None), received);
}

nb::object shift_init(nb::object self, nb::handle send, nb::handle distance, nb::handle out) {
  int32_t by = 0;
  return make_operation(
      self,
      [&](operation &op) {
        by = read_int32("distance", distance);
        read_shift(op.owner(), send, out, &op.first, &op.second, &op.outputs);
        op.kept.push_back(nb::borrow(send));
      },
      [&](banyan_comm *comm, operation &op) {
        return banyan_shift_init(comm, op.first.data, op.second.data, op.first.bytes(), by, &op.op);
      });
}

void broadcast(comm &self, nb::handle data, nb::handle root) {
  int32_t from = 0;
  array memory;
  self.read(false, [&] {
    from = read_int32("root", root);
    memory.open("data", data, from != self.rank(), self.device(), self.stream_for(nb::none(), data));
    memory.want_contiguous();
  });
  self.call([&] { return banyan_broadcast(self.handle(), memory.data, memory.bytes(), from); });
}

nb::object broadcast_init(nb::object self, nb::handle data, nb::handle root) {
  int32_t from = 0;
  return make_operation(
      self,
      [&](operation &op) {
        from = read_int32("root", root);
        op.first.open("data", data, from != op.owner().rank(), op.owner().device(),
                      op.owner().stream_for(nb::none(), data));
        op.first.want_contiguous();
        op.outputs = nb::borrow(data);
      },
      [&](banyan_comm *comm, operation &op) {
        return banyan_broadcast_init(comm, op.first.data, op.first.bytes(), from, &op.op);
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

void define_calls(nb::class_<comm> &type) {
  type.def("allgather", allgather, nb::arg("mine").none(), nb::kw_only(), nb::arg("out") = nb::none(),
           nb::arg("counts") = nb::none(), doc::Comm_allgather);
  type.def("allgather_init", allgather_init, nb::arg("mine").none(), nb::kw_only(), nb::arg("out") = nb::none(),
           nb::arg("counts") = nb::none(), doc::Comm_allgather_init);
  type.def("allgather_heads", allgather_heads, nb::arg("mine").none(), nb::kw_only(), nb::arg("out") = nb::none(),
           nb::arg("counts") = nb::none(), nb::arg("tokens") = nb::none(), doc::Comm_allgather_heads);
  type.def("allgather_heads_init", allgather_heads_init, nb::arg("mine").none(), nb::kw_only(),
           nb::arg("out") = nb::none(), nb::arg("counts") = nb::none(), nb::arg("tokens") = nb::none(),
           doc::Comm_allgather_heads_init);
  type.def("shift", shift, nb::arg("send").none(), nb::arg("distance") = 1, nb::kw_only(), nb::arg("out") = nb::none(),
           doc::Comm_shift);
  type.def("shift_init", shift_init, nb::arg("send").none(), nb::arg("distance") = 1, nb::kw_only(),
           nb::arg("out") = nb::none(), doc::Comm_shift_init);
  type.def("broadcast", broadcast, nb::arg("data").none(), nb::arg("root") = 0, doc::Comm_broadcast);
  type.def("broadcast_init", broadcast_init, nb::arg("data").none(), nb::arg("root") = 0, doc::Comm_broadcast_init);
  type.def("barrier", barrier, doc::Comm_barrier);
  type.def("barrier_init", barrier_init, doc::Comm_barrier_init);
}

} // namespace bny
