// SPDX-License-Identifier: Apache-2.0
// The sum over ranks, and its persistent operation with the same arguments.
#include "comm.hh"

namespace bny {

namespace {

// The first of several dimensions is that of tokens. The others are the columns of a token, so they are contiguous.
int64_t columns_of(const array &from) {
  int64_t columns = 1;
  from.want_rows_apart(from.ndim > 1 ? 1 : 0);
  for (int i = from.ndim - 1; i >= (from.ndim > 1 ? 1 : 0); i--) {
    if (from.shape[i] > 1 && from.strides[i] != columns && from.count() > 0)
      reject(from.name, "all dimensions but the first are contiguous together, and the stride of dimension " +
                            std::to_string(i) + " is " + std::to_string(from.strides[i]));
    columns *= from.shape[i];
  }
  return columns;
}

} // namespace

void sum_call::read(const comm &owner, nb::handle array, nb::handle out, const sum_words &words) {
  desc.stream = owner.stream_for(nb::none(), array);
  x.open("x", array, false, owner.device(), desc.stream);
  has_output = read_how(&desc, &algorithm, owner, words);
  int64_t columns = columns_of(x), tokens = x.ndim > 1 ? x.shape[0] : 1;
  if (tokens > INT32_MAX || columns > INT32_MAX) reject("x", "a dimension is above 2^31 - 1");
  desc.tokens = static_cast<int32_t>(tokens), desc.dim = static_cast<int32_t>(columns), desc.dtype = x.number();
  desc.in_stride = x.ndim > 1 ? x.strides[0] : 0;
  if (read_tokens(owner, words.tokens, desc.stream)) desc.valid = &valid;
  std::copy(x.shape, x.shape + x.ndim, shape);
  int32_t first, number;
  if (desc.scatter == BANYAN_SCATTER_TOKENS) {
    if (x.ndim < 2) reject("scatter", "for \"tokens\" x is [tokens, ...]");
    banyan_split(desc.tokens, owner.nranks(), owner.rank(), &first, &number);
    shape[0] = number;
  } else if (desc.scatter == BANYAN_SCATTER_HEADS) {
    if (x.ndim < 1 || x.ndim > 2) reject("scatter", "for \"heads\" x is [tokens, dim] or [dim]");
    banyan_split(desc.dim, owner.nranks(), owner.rank(), &first, &number);
    shape[x.ndim - 1] = number;
  }
  if (!has_output) return;
  if (out.is_none()) {
    made = result.make("x", array, x, {shape, x.ndim}, false, owner.device(), desc.stream);
    return;
  }
  made = nb::borrow(out);
  result.open("out", out, true, owner.device(), desc.stream);
  result.want_dims(x.ndim, "that of this rank's sums");
  for (int i = 0; i < x.ndim; i++) result.want_shape(i, shape[i], "that of this rank's sums");
  if (result.number() != desc.dtype) reject("out", result.dtype_name() + ", and x differs");
  columns_of(result);
  desc.out_stride = x.ndim > 1 ? result.strides[0] : 0;
}

namespace {

/* clang-format off */
#define PARAMETERS nb::handle x, nb::handle out SUM_WORDS(WORD_PARAMETER)
#define ARGUMENTS nb::arg("x").none(), nb::kw_only(), nb::arg("out") = nb::none() SUM_WORDS(WORD_ARGUMENT)
/* clang-format on */

nb::object allreduce(comm &self, PARAMETERS) {
  sum_call request;
  self.read(false, [&] { request.read(self, x, out, {SUM_WORDS(WORD_NAME)}); });
  self.call([&] { return banyan_allreduce(self.handle(), &request.desc, request.x.data, request.result.data); });
  return request.has_output ? finished(out.is_none() ? x : nb::handle(Py_None), request.made) : nb::none();
}

nb::object allreduce_init(nb::object self, PARAMETERS) {
  return make_operation(
      self,
      [&](operation &op) {
        op.sums.read(op.owner(), x, out, {SUM_WORDS(WORD_NAME)});
        if (op.sums.has_output) op.outputs = op.sums.made;
        for (nb::handle array : {x, tokens}) op.kept.push_back(nb::borrow(array));
      },
      [](banyan_comm *comm, operation &op) {
        return banyan_allreduce_init(comm, &op.sums.desc, op.sums.x.data, op.sums.result.data, &op.op);
      });
}

} // namespace

void define_allreduce(nb::class_<comm> &type) {
  type.def("allreduce", allreduce, ARGUMENTS, doc::Comm_allreduce);
  type.def("allreduce_init", allreduce_init, ARGUMENTS, doc::Comm_allreduce_init);
}

} // namespace bny
