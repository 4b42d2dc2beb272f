// SPDX-License-Identifier: Apache-2.0
#include "comm.hh"

namespace bny {

namespace {

void adopted(comm *self, nb::capsule made, const std::string &device) {
  new (self) comm(static_cast<banyan_comm *>(made.data("banyan_comm")), device);
}

std::string network() {
  char text[1024];
  call_alone([&] { return banyan_network_describe(text, sizeof text); });
  return text;
}

nb::tuple split(nb::handle count_of, nb::handle parts_of, nb::handle index_of) {
  int32_t count = read_int32("count", count_of), parts = read_int32("parts", parts_of);
  int32_t index = read_int32("index", index_of);
  if (count < 0) reject("count", "it is at least 0");
  if (parts < 1) reject("parts", "it is at least 1");
  if (index < 0 || index >= parts) reject("index", "it is from 0 to parts - 1");
  int32_t first, number;
  banyan_split(count, parts, index, &first, &number);
  return nb::make_tuple(first, number);
}

} // namespace

NB_MODULE(_core, module) {
  interrupt_prepare();
  // With warnings on, scripts that end without close() print a list of all types to stderr.
  nb::set_leak_warnings(false);
  module.doc() = "The calls of libbanyan. Use the package banyan, which has all of it.";
  module.def(
      "version", [] { return banyan_version(); }, doc::version);
  module.def("network", network, doc::network);
  module.def("split", split, nb::arg("count").none(), nb::arg("parts").none(), nb::arg("index").none(), doc::split);
  module.def("status_names", [] {
    nb::list names;
    for (int i = BANYAN_OK; i <= BANYAN_ERR_ABORTED; i++)
      names.append(banyan_status_string(static_cast<banyan_status>(i)));
    return names;
  });
  nb::class_<threads>(module, "Threads", doc::Threads)
      .def(nb::init<nb::handle>(), nb::arg("nranks").none())
      .def_prop_ro("nranks", &threads::nranks, doc::Threads_nranks)
      .def("__repr__",
           [](const threads &self) { return "<banyan.Threads, " + std::to_string(self.nranks()) + " ranks>"; });
  nb::class_<comm> type(module, "Comm", doc::Comm, nb::is_weak_referenceable());
  using word = nb::handle;
  type.def(nb::init<word, word, word, word, word, word, word, word, word>(), nb::arg("source") = nb::none(),
           nb::arg("rank").none() = 0, nb::arg("nranks").none() = 0, nb::arg("timeout").none() = 0.0,
           nb::arg("arena_bytes").none() = 0, nb::arg("algorithm") = nb::none(), nb::arg("device") = nb::none(),
           nb::arg("first_timeout").none() = 0.0, nb::arg("threads").none() = 0)
      .def("__init__", adopted)
      .def_prop_ro("rank", &comm::rank, doc::Comm_rank)
      .def_prop_ro("nranks", &comm::nranks, doc::Comm_nranks)
      .def_prop_ro("device", &comm::device, doc::Comm_device)
      .def_prop_ro("is_open", &comm::is_open, doc::Comm_is_open)
      .def_prop_ro(
          "failed", [](const comm &self) { return banyan_comm_status(self.handle()) != BANYAN_OK; }, doc::Comm_failed)
      .def_prop_ro(
          "failed_rank", [](const comm &self) { return banyan_comm_failed_rank(self.handle()); }, doc::Comm_failed_rank)
      .def_prop_ro(
          "error", [](const comm &self) { return banyan_comm_error(self.handle()); }, doc::Comm_error)
      .def("close", &comm::close, doc::Comm_close)
      .def("abort", &comm::abort, nb::arg("reason") = nb::none(), doc::Comm_abort)
      .def("describe", &comm::describe, doc::Comm_describe)
      .def("metrics", &comm::metrics, doc::Comm_metrics)
      .def(
          "set_tag",
          [](comm &self, nb::handle tag) { return self.set_tag(read_integer("tag", tag, INT64_MIN, INT64_MAX)); },
          nb::arg("tag").none(), nb::sig("def set_tag(self, tag: int) -> int"), doc::Comm_set_tag)
      .def(
          "_reject",
          [](comm &self, const char *argument, const std::string &text) {
            self.read(false, [&] { reject(argument, text); });
          },
          nb::arg("argument"), nb::arg("text"), doc::Comm__reject)
      .def("_shrink", &comm::shrink)
      .def(
          "_split",
          [](comm &self, nb::handle color, nb::handle key) {
            int32_t numbers[2];
            self.read(false, [&] { numbers[0] = read_int32("color", color), numbers[1] = read_int32("key", key); });
            return self.split(numbers[0], numbers[1]);
          },
          nb::arg("color"), nb::arg("key").none());
  define_calls(type);
  define_attention(module);
  define_select(module);
  define_attention_step(module, type);
  define_operation(module);
  define_ownership(module);
  define_jax(module);
  define_torch(module);
  wrap_calls(module);
}

} // namespace bny
