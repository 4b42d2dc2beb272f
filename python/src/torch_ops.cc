// SPDX-License-Identifier: Apache-2.0
// Functions that torch's dispatcher calls for the ops of banyan.torch_ops, without Python in between.
#include "comm.hh"

namespace bny {

namespace {

// Communicators by handle; NULL once closed. Handles begin at 1 and are never reused.
std::vector<comm *> &handles() {
  static std::vector<comm *> *kept = new std::vector<comm *>{nullptr};
  return *kept;
}

comm &comm_of(int64_t number) {
  const auto &all = handles();
  comm *found = number > 0 && number < static_cast<int64_t>(all.size()) ? all[static_cast<size_t>(number)] : nullptr;
  if (!found)
    reject("comm",
           std::to_string(number) + " is the handle of no communicator that lives; see banyan.torch_ops.handle()");
  return *found;
}

int64_t handle_of(comm &self) {
  if (self.number == 0) {
    self.number = static_cast<int64_t>(handles().size());
    handles().push_back(&self);
  }
  return self.number;
}

// Returns the result, or None if the caller gave memory for it.
template <class kind> nb::object run(comm &self, const typename kind::words &given, int64_t tag) {
  kind request;
  self.read(false, [&] {
    request.read(self, given);
    if (request.desc.scatter == BANYAN_SCATTER_ROOT)
      reject("scatter", "\"root\" has no result on other ranks, which an op must have");
  });
  self.call([&] { return self.with_tag(tag, [&] { return request.call(self.handle()); }); });
  return given.out.is_none() ? request.made : nb::none();
}

nb::object combine(nb::handle o, nb::handle lse, int64_t number, nb::handle base, nb::handle empty, nb::handle scatter,
                   nb::handle wire, nb::handle order, int64_t tag, nb::handle values, nb::handle stats) {
  comm &self = comm_of(number);
  nb::object none = nb::none(), out = values.is_none() ? none : nb::make_tuple(values, stats),
             out_empty = nb::str("-inf"), root = nb::int_(0);
  combine_words how;
  how.base = base, how.empty = empty, how.out_empty = out_empty, how.scatter = scatter, how.root = root;
  how.order = order, how.wire = wire;
  return run<combine_call>(self, {o, lse, none, out, how}, tag);
}

nb::object allreduce(nb::handle x, int64_t number, nb::handle scatter, nb::handle wire, nb::handle order, int64_t tag,
                     nb::handle out) {
  comm &self = comm_of(number);
  nb::object root = nb::int_(0);
  sum_words how;
  how.scatter = scatter, how.wire = wire, how.order = order, how.root = root;
  return run<sum_call>(self, {x, out, how}, tag);
}

} // namespace

void torch_forget(const comm *ended) {
  if (ended->number) handles()[static_cast<size_t>(ended->number)] = nullptr;
}

void define_torch(nb::module_ &module) {
  module.def("torch_handle", handle_of, nb::arg("comm"));
  module.def(
      "torch_comm", [](int64_t number) { return nb::find(comm_of(number)); }, nb::arg("number"));
  module.def("torch_combine", combine, nb::arg("o"), nb::arg("lse"), nb::arg("comm"), nb::arg("base") = "e",
             nb::arg("empty") = "-inf", nb::arg("scatter") = "none", nb::arg("wire") = "f32", nb::arg("order") = "plan",
             nb::arg("tag") = -1, nb::kw_only(), nb::arg("out") = nb::none(), nb::arg("out_lse") = nb::none());
  module.def("torch_allreduce", allreduce, nb::arg("x"), nb::arg("comm"), nb::arg("scatter") = "none",
             nb::arg("wire") = "f32", nb::arg("order") = "plan", nb::arg("tag") = -1, nb::kw_only(),
             nb::arg("out") = nb::none());
}

} // namespace bny
