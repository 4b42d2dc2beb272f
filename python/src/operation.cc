// SPDX-License-Identifier: Apache-2.0
#include "comm.hh"

#include <algorithm>
#include <chrono>

namespace bny {

operation::~operation() {
  auto &all = comm_->operations;
  all.erase(std::remove(all.begin(), all.end(), this), all.end());
  release();
}

banyan_op *operation::handle() const {
  if (!op) reject_state("this operation is freed, or its communicator is closed");
  return op;
}

void operation::free() {
  if (!op) return;
  if (comm_->is_inherited()) return release();
  {
    comm::claim claimed(*comm_);
    release();
  }
  throw_pending();
}

// Waits for an operation that is in progress. The wait ends because the peers have started it too. Releases its arrays,
// since Python may keep this object for long. Their destructors may call into this object again.
void operation::release() {
  if (!op) return;
  banyan_op *last = op;
  op = nullptr;
  started = false;
  comm_->end_of_operation(last);
  std::unique_ptr<request> done = std::move(planned);
  std::vector<nb::object> arrays;
  arrays.swap(kept);
}

void operation::start() {
  banyan_op *started_op = handle();
  comm_->call([&] { return banyan_start(started_op); });
  started = has_run = true;
}

bool operation::test() {
  int done = 0;
  banyan_op *tested = handle();
  comm_->call([&] { return banyan_test(tested, &done); });
  if (done) started = false;
  return done != 0;
}

nb::object operation::wait() {
  banyan_op *waited = handle();
  if (!has_run) reject_state("this operation has not been started");
  comm_->call([&] {
    banyan_status status = banyan_wait(waited);
    started = false;
    return status;
  });
  return outputs;
}

nb::object operation::run() {
  banyan_op *running = handle();
  has_run = true;
  comm_->call([&] {
    banyan_status status = banyan_start(running);
    return status == BANYAN_OK ? banyan_wait(running) : status;
  });
  return outputs;
}

nb::dict operation::info() const {
  banyan_op_info info = BANYAN_OP_INFO_INIT;
  banyan_status status = banyan_op_query(handle(), &info);
  if (status != BANYAN_OK) raise_status(status, -1);
  nb::dict said;
  said["algorithm"] = info.algorithm ? info.algorithm : "";
  said["reason"] = info.reason ? info.reason : "";
  said["predicted_us"] = info.predicted_us;
  said["bytes_sent"] = info.bytes_sent;
  said["messages_sent"] = info.messages_sent;
  said["arena_bytes"] = info.arena_bytes;
  said["plan_hash"] = info.plan_hash;
  said["bytes_between_nodes"] = info.bytes_between_nodes;
  said["roundings"] = info.roundings;
  if (info.saturated == BANYAN_NOT_COUNTED)
    said["saturated"] = nb::none();
  else
    said["saturated"] = info.saturated;
  return said;
}

double operation::timed(int runs) {
  banyan_op *timed_op = handle();
  auto began = std::chrono::steady_clock::now();
  comm_->call([&] {
    banyan_status status = BANYAN_OK;
    for (int i = 0; i < runs && status == BANYAN_OK; i++) {
      status = banyan_start(timed_op);
      if (status == BANYAN_OK) status = banyan_wait(timed_op);
    }
    return status;
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

std::string operation::repr() const {
  if (!op) return "<banyan.Operation, freed>";
  std::string text = describe();
  return "<banyan.Operation, " + text.substr(0, text.find_first_of(":\n")) + ">";
}

std::string operation::describe() const { return comm_->describe_operation(handle()); }

nb::object operation::tokens() {
  int32_t *place = planned ? planned->set_tokens() : nullptr;
  return place ? nb::object(nb::int_(*place)) : nb::object(nb::none());
}

void operation::set_tokens(nb::handle number) {
  handle();
  int32_t *place = planned ? planned->set_tokens() : nullptr;
  if (!place) reject_state("this operation was not made with a number of tokens; an array is written by its owner");
  if (started) reject_state("this operation has started, and its number of tokens is read until it is waited for");
  *place = read_int32("tokens", number);
}

namespace {

template <class result, class... types> auto on(result (operation::*method)(types...)) {
  return [method](operation_handle &self, types... given) -> result { return (self.get().*method)(given...); };
}

template <class result> auto on(result (operation::*method)() const) {
  return [method](operation_handle &self) -> result { return (self.get().*method)(); };
}

} // namespace

void define_operation(nb::module_ &module) {
  nb::class_<operation_handle>(module, "Operation", doc::Operation)
      .def("__repr__", [](operation_handle &self) { return self.get().repr(); })
      .def("__call__", on(&operation::run), doc::Operation___call__)
      .def("start", on(&operation::start), doc::Operation_start)
      .def("test", on(&operation::test), doc::Operation_test)
      .def("wait", on(&operation::wait), doc::Operation_wait)
      .def("info", on(&operation::info), doc::Operation_info)
      .def("timed", on(&operation::timed), nb::arg("runs"), doc::Operation_timed)
      .def("describe", on(&operation::describe), doc::Operation_describe)
      .def("free", on(&operation::free), doc::Operation_free)
      .def_prop_rw("tokens", on(&operation::tokens), on(&operation::set_tokens), doc::Operation_tokens)
      .def_prop_ro(
          "outputs", [](operation_handle &self) { return self.get().outputs; }, doc::Operation_outputs);
}

} // namespace bny
