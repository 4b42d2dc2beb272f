// SPDX-License-Identifier: Apache-2.0
// Reads the arguments of a sum over ranks.
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

void sum_call::read(const comm &owner, const words &given) {
  desc.stream = owner.stream_for(nb::none(), given.x);
  x.open("x", given.x, false, owner.device(), desc.stream);
  bool has_output = read_how(&desc, &algorithm, owner, given.how);
  int64_t columns = columns_of(x), tokens = x.ndim > 1 ? x.shape[0] : 1;
  if (tokens > INT32_MAX || columns > INT32_MAX) reject("x", "a dimension is above 2^31 - 1");
  desc.tokens = static_cast<int32_t>(tokens), desc.dim = static_cast<int32_t>(columns), desc.dtype = x.number();
  desc.in_stride = x.ndim > 1 ? x.strides[0] : 0;
  if (read_tokens(owner, given.how.tokens, desc.stream)) desc.valid = &valid;
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
  if (given.out.is_none()) {
    made = total.make("x", given.x, x, {shape, x.ndim}, false, owner.device(), desc.stream), like = given.x;
    return;
  }
  made = nb::borrow(given.out);
  total.open("out", made, true, owner.device(), desc.stream);
  total.want_dims(x.ndim, "that of this rank's sums");
  for (int i = 0; i < x.ndim; i++) total.want_shape(i, shape[i], "that of this rank's sums");
  if (total.number() != desc.dtype) reject("out", total.dtype_name() + ", and x differs");
  columns_of(total);
  desc.out_stride = x.ndim > 1 ? total.strides[0] : 0;
}

} // namespace bny
