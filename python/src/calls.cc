// SPDX-License-Identifier: Apache-2.0
// The collectives that move bytes; and all collectives in Python, each as a call and as a persistent operation.
#include "comm.hh"

#include <algorithm>

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

void heads_call::read_named(const comm &owner, void *stream, const char *argument, const words &given) {
  desc.stream = stream;
  mine.open(argument, given.mine, false, owner.device(), stream);
  mine.want_dims(3, "[tokens, heads, dim]");
  mine.want_contiguous_rows();
  mine.want_rows_apart(2);
  if (mine.shape[0] > INT32_MAX || mine.shape[1] > INT32_MAX / owner.nranks() || mine.shape[2] > INT32_MAX)
    reject(argument, "a dimension is above 2^31 - 1");
  desc.tokens = static_cast<int32_t>(mine.shape[0]), desc.dim = static_cast<int32_t>(mine.shape[2]);
  desc.dtype = mine.values_number(true);
  desc.mine_token_stride = mine.strides[0], desc.mine_head_stride = mine.strides[1];
  const char *counted = mine.name == std::string("q") ? "gather" : "counts"; // attention names it differently
  read_counts(owner, counted, given.counts);
  int64_t heads = 0;
  for (int32_t count : counts) heads += count;
  if (heads < 0 || heads > INT32_MAX) reject(counted, "their sum is no number of heads");
  desc.heads = static_cast<int32_t>(heads), desc.counts = counts.data();
  if (read_tokens(owner, given.tokens, stream)) desc.valid = &valid;
  if (given.out.is_none()) {
    made = all.make(argument, given.mine, mine, {desc.tokens, heads, desc.dim}, false, owner.device(), stream);
    like = given.mine;
  } else {
    made = nb::borrow(given.out);
    all.open("out", made, true, owner.device(), stream);
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

// A call that moves the bytes of contiguous arrays.
struct bytes_call : request {
  array from, into;

  void open(const comm &owner, const char *name, nb::handle given) {
    from.open(name, given, false, owner.device(), owner.stream_for(nb::none(), given));
    from.want_contiguous();
  }
  void open_result(const comm &owner, nb::handle given, nb::handle out, const dims_list &dims) {
    if (out.is_none()) like = given;
    made = out.is_none() ? empty_like(from.name, given, dims) : nb::borrow(out);
    into.open("out", made, true, owner.device(), owner.stream_for(nb::none(), given));
    into.want_contiguous();
  }
};

// Gathers mine into [nranks, *shape]. With counts, the result has the rows of all ranks in its first dimension.
struct gather_call : bytes_call {
  struct words {
    nb::handle mine, out, counts;
  };
  std::vector<size_t> bytes;

  void read(const comm &owner, const words &given) {
    open(owner, "mine", given.mine);
    bytes.assign(static_cast<size_t>(owner.nranks()), from.bytes());
    std::vector<int64_t> shape(from.shape, from.shape + from.ndim);
    if (given.counts.is_none())
      shape.insert(shape.begin(), owner.nranks());
    else
      shape[0] = read_counts(owner, given.counts);
    if (given.out.is_none() && shape.size() > ARRAY_DIMS) reject("out", "it has more than six dimensions");
    int dims = std::min(static_cast<int>(shape.size()), ARRAY_DIMS); // those of an array that is made
    open_result(owner, given.mine, given.out, {shape.data(), dims});
    size_t total = 0;
    for (size_t count : bytes) total += count;
    if (into.bytes() != total)
      reject("out", "it has " + std::to_string(into.bytes()) + " bytes, and all ranks give " + std::to_string(total));
  }
  banyan_status call(banyan_comm *comm) override { return banyan_allgather(comm, from.data, into.data, bytes.data()); }
  banyan_status init(banyan_comm *comm, banyan_op **op) override {
    return banyan_allgather_init(comm, from.data, into.data, bytes.data(), op);
  }

private:
  // Sets the bytes of each rank, and returns the rows of all.
  int64_t read_counts(const comm &owner, nb::handle counts) {
    if (from.ndim < 1) reject("mine", "with counts it has at least one dimension");
    size_t row = from.dtype.bits / 8u;
    for (int i = 1; i < from.ndim; i++) row *= static_cast<size_t>(from.shape[i]);
    if (PySequence_Check(counts.ptr()) != 1 || PyObject_Size(counts.ptr()) != owner.nranks())
      reject("counts", "it is a list of one for each rank");
    int64_t rows = 0;
    for (int32_t r = 0; r < owner.nranks(); r++) {
      int32_t count = read_int32("counts", nb::object(counts[r]));
      if (count < 0) reject("counts", "one is below 0");
      bytes[static_cast<size_t>(r)] = static_cast<size_t>(count) * row;
      rows += count;
    }
    from.want_shape(0, read_int32("counts", nb::object(counts[owner.rank()])), "this rank's count");
    return rows;
  }
};

struct shift_call : bytes_call {
  struct words {
    nb::handle send, distance, out;
  };
  int32_t by = 0;

  void read(const comm &owner, const words &given) {
    open(owner, "send", given.send);
    open_result(owner, given.send, given.out, {from.shape, from.ndim});
    if (into.bytes() != from.bytes()) reject("out", "it is not as large as send");
    by = read_int32("distance", given.distance);
  }
  banyan_status call(banyan_comm *comm) override { return banyan_shift(comm, from.data, into.data, from.bytes(), by); }
  banyan_status init(banyan_comm *comm, banyan_op **op) override {
    return banyan_shift_init(comm, from.data, into.data, from.bytes(), by, op);
  }
};

struct broadcast_call : request {
  struct words {
    nb::handle data, root;
  };
  int32_t from = 0;
  array memory;

  void read(const comm &owner, const words &given) {
    from = read_int32("root", given.root);
    memory.open("data", given.data, from != owner.rank(), owner.device(), owner.stream_for(nb::none(), given.data));
    memory.want_contiguous();
    made = nb::borrow(given.data);
  }
  banyan_status call(banyan_comm *comm) override { return banyan_broadcast(comm, memory.data, memory.bytes(), from); }
  banyan_status init(banyan_comm *comm, banyan_op **op) override {
    return banyan_broadcast_init(comm, memory.data, memory.bytes(), from, op);
  }
  nb::object result() override { return nb::none(); }
};

struct barrier_call : request {
  struct words {};
  void read(const comm &, const words &) {}
  banyan_status call(banyan_comm *comm) override { return banyan_barrier(comm); }
  banyan_status init(banyan_comm *comm, banyan_op **op) override { return banyan_barrier_init(comm, op); }
};

template <size_t> using handle_at = nb::handle;

// Makes an operation of the communicator `self`.
template <class kind, class... handles> nb::object make_operation(nb::object self, handles... given) {
  auto op = std::make_unique<operation>(self);
  comm &owner = op->owner();
  std::unique_ptr<kind> planned;
  {
    array::lasting_scope lasting(true);
    planned = std::make_unique<kind>();
  }
  owner.read(true, [&] { planned->read(owner, {given...}); });
  op->outputs = planned->made;
  op->planned = std::move(planned);
  (op->kept.push_back(nb::borrow(given)), ...);
  owner.call([&] { return op->planned->init(owner.handle(), &op->op); });
  owner.operations.push_back(op.get());
  return nb::cast(new operation_handle(std::move(op)), nb::rv_policy::take_ownership);
}

template <class kind, size_t... at, class... types>
void define_at(nb::class_<comm> &type, const char *name, const char *text, const char *init_text,
               std::index_sequence<at...>, const types &...arguments) {
  auto at_once = [](comm &self, handle_at<at>... given) {
    kind request;
    self.read(false, [&] { request.read(self, {given...}); });
    self.call([&] { return request.call(self.handle()); });
    return request.result();
  };
  type.def(name, at_once, arguments..., text);
  type.def((std::string(name) + "_init").c_str(), make_operation<kind, handle_at<at>...>, arguments..., init_text);
}

// Defines a call and its persistent form NAME_init. Both take the handles of kind::words, in their order.
template <class kind, class... types>
void define(nb::class_<comm> &type, const char *name, const char *text, const char *init_text,
            const types &...arguments) {
  constexpr size_t count = sizeof(typename kind::words) / sizeof(nb::handle);
  define_at<kind>(type, name, text, init_text, std::make_index_sequence<count>(), arguments...);
}

} // namespace

void define_calls(nb::class_<comm> &type) {
  const auto out = nb::arg("out") = nb::none(), counts = nb::arg("counts") = nb::none();
  const auto tokens = nb::arg("tokens") = nb::none();
  const nb::kw_only by_name;
  define<combine_call>(type, "combine", doc::Comm_combine, doc::Comm_combine_init, nb::arg("o").none(),
                       nb::arg("lse").none(), by_name, nb::arg("sum") = nb::none(), out COMBINE_WORDS(WORD_ARGUMENT));
  define<sum_call>(type, "allreduce", doc::Comm_allreduce, doc::Comm_allreduce_init, nb::arg("x").none(), by_name,
                   out CALL_WORDS(WORD_ARGUMENT));
  define<attention_request>(type, "attention_combine", doc::Comm_attention_combine, doc::Comm_attention_combine_init,
                            nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(),
                            by_name ATTENTION_WORDS(WORD_ARGUMENT), nb::arg("gather") = nb::none(),
                            nb::arg("select") = nb::none(), out RESULT_WORDS(WORD_ARGUMENT));
  define<select_call>(type, "select", doc::Comm_select, doc::Comm_select_init, nb::arg("scores").none(),
                      nb::arg("indices").none(), by_name, nb::arg("k") = nb::none(), nb::arg("rows") = nb::none(), out,
                      nb::arg("algorithm") = nb::none(), tokens);
  define<gather_call>(type, "allgather", doc::Comm_allgather, doc::Comm_allgather_init, nb::arg("mine").none(), by_name,
                      out, counts);
  define<heads_call>(type, "allgather_heads", doc::Comm_allgather_heads, doc::Comm_allgather_heads_init,
                     nb::arg("mine").none(), by_name, out, counts, tokens);
  define<shift_call>(type, "shift", doc::Comm_shift, doc::Comm_shift_init, nb::arg("send").none(),
                     nb::arg("distance") = 1, by_name, out);
  define<broadcast_call>(type, "broadcast", doc::Comm_broadcast, doc::Comm_broadcast_init, nb::arg("data").none(),
                         nb::arg("root") = 0);
  define<barrier_call>(type, "barrier", doc::Comm_barrier, doc::Comm_barrier_init);
}

} // namespace bny
