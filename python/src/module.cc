// SPDX-License-Identifier: Apache-2.0
#include "comm.hh"

namespace bny {

namespace {

void adopted(comm *self, nb::capsule made, const std::string &device) {
  new (self) comm(static_cast<banyan_comm *>(made.data("banyan_comm")), device);
}

std::string network() {
  char text[1024];
  banyan_status status;
  {
    nb::gil_scoped_release without;
    status = banyan_network_describe(text, sizeof text);
  }
  if (status != BANYAN_OK) raise_status(status, -1);
  return text;
}

nb::tuple split(int32_t count, int32_t parts, int32_t index) {
  if (count < 0) refuse("count", "it is at least 0");
  if (parts < 1) refuse("parts", "it is at least 1");
  if (index < 0 || index >= parts) refuse("index", "it is from 0 to parts - 1");
  int32_t first, number;
  banyan_split(count, parts, index, &first, &number);
  return nb::make_tuple(first, number);
}

} // namespace

NB_MODULE(_core, module) {
  interrupt_prepare();
  // Scripts that end without close() would get a list of all types on stderr.
  nb::set_leak_warnings(false);
  module.doc() = "The calls of libbanyan. Use the package banyan, which has all of it.";
  module.def(
      "version", [] { return banyan_version(); }, "The version of libbanyan that runs.");
  module.def("network", network, "What connects ranks of several nodes.");
  module.def("split", split, nb::arg("count"), nb::arg("parts"), nb::arg("index"),
             "(first, number) of the part `index` of `count` things that are dealt to `parts` owners.");
  module.def("status_names", [] {
    nb::list names;
    for (int i = BANYAN_OK; i <= BANYAN_ERR_ABORTED; i++)
      names.append(banyan_status_string(static_cast<banyan_status>(i)));
    return names;
  });
  nb::class_<threads>(module, "Threads", "A group of ranks that are threads of this process.")
      .def(nb::init<int32_t>(), nb::arg("nranks"))
      .def_prop_ro("nranks", &threads::nranks, "The number of ranks.")
      .def("__repr__",
           [](const threads &self) { return "<banyan.Threads, " + std::to_string(self.nranks()) + " ranks>"; });
  nb::class_<comm> type(module, "Comm", "The base of banyan.Communicator.", nb::is_weak_referenceable());
  type.def(nb::init<nb::handle, int32_t, int32_t, double, uint64_t, nb::handle, nb::handle, double, int64_t>(),
           nb::arg("source") = nb::none(), nb::arg("rank") = 0, nb::arg("nranks") = 0, nb::arg("timeout") = 0.0,
           nb::arg("arena_bytes") = 0, nb::arg("algorithm") = nb::none(), nb::arg("device") = nb::none(),
           nb::arg("first_timeout") = 0.0, nb::arg("threads") = 0)
      .def("__init__", adopted)
      .def_prop_ro("rank", &comm::rank, "This rank, from 0.")
      .def_prop_ro("nranks", &comm::nranks, "The number of ranks.")
      .def_prop_ro("device", &comm::device, "The device, such as \"cuda:0\"; \"\" on the host.")
      .def_prop_ro("is_open", &comm::is_open, "False after close().")
      .def_prop_ro(
          "failed", [](const comm &self) { return banyan_comm_status(self.handle()) != BANYAN_OK; },
          "True if a failure has ended this communicator.")
      .def_prop_ro(
          "failed_rank", [](const comm &self) { return banyan_comm_failed_rank(self.handle()); },
          "The rank to blame for the failure, or -1.")
      .def_prop_ro(
          "error", [](const comm &self) { return banyan_comm_error(self.handle()); }, "The failure's text, or \"\".")
      .def("close", &comm::close, "Frees the communicator with its operations. A with block does so at its end.")
      .def("abort", &comm::abort, nb::arg("reason") = nb::none(),
           "Ends all calls on all ranks with AbortedError. Any thread may call it, at any time.")
      .def("describe", &comm::describe, "What was found and chosen, in one paragraph.")
      .def("metrics", &comm::metrics, "This rank's counters as Prometheus text.")
      .def("set_tag", &comm::set_tag, nb::arg("tag"),
           "A number, such as a layer's, that traces and errors show for operations that start from now on; -1: none.")
      .def(
          "_refuse",
          [](comm &self, const char *argument, const std::string &text) {
            self.read(false, [&] { refuse(argument, text); });
          },
          nb::arg("argument"), nb::arg("text"),
          "Raises ArgumentError in place of a collective call, which peers learn.")
      .def("_shrink", &comm::shrink)
      .def("_split", &comm::split);
  define_combine(type);
  define_calls(type);
  define_attention(module, type);
  define_operation(module);
  define_ownership(module);
  define_jax(module);
  define_torch(module);
}

} // namespace bny
