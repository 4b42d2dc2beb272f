// SPDX-License-Identifier: Apache-2.0
#include "comm.hh"

#include <cstring>

namespace bny {

namespace {

// An all-gather written in Python. Its exception is kept until the call has returned to Python.
struct python_gather {
  nb::object call;
  int32_t nranks;
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
};

int gather(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  python_gather *source = static_cast<python_gather *>(context);
  nb::gil_scoped_acquire with;
  try {
    nb::object got = source->call(nb::bytes(mine, bytes), static_cast<double>(timeout_ns) * 1e-9);
    bool is_list = PyList_Check(got.ptr()) || PyTuple_Check(got.ptr());
    nb::object made = nb::steal(is_list ? PyObject_CallMethod(nb::bytes("", 0).ptr(), "join", "O", got.ptr())
                                        : PyBytes_FromObject(got.ptr()));
    if (!made.is_valid()) {
      PyErr_Format(PyExc_TypeError, "allgather: it returned %R, and not the bytes of each rank", got.ptr());
      throw nb::python_error();
    }
    nb::bytes joined(made);
    if (joined.size() != bytes * static_cast<size_t>(source->nranks)) {
      std::string text = "the allgather returned " + std::to_string(joined.size()) + " bytes, and " +
                         std::to_string(source->nranks) + " ranks gave " + std::to_string(bytes) + " each";
      return banyan_bootstrap_fail(BANYAN_ERR_BOOTSTRAP, text.c_str());
    }
    std::memcpy(all, joined.c_str(), joined.size());
    return 0;
  } catch (nb::python_error &error) {
    error.restore();
    PyErr_Fetch(&source->type, &source->value, &source->trace);
    return banyan_bootstrap_fail(BANYAN_ERR_BOOTSTRAP, "the allgather of Python raised an exception");
  }
}

template <class writer> std::string text_of(writer write) {
  std::string text(2048, '\0');
  size_t length = write(&text[0], text.size());
  if (length >= text.size()) {
    text.resize(length + 1);
    length = write(&text[0], text.size());
  }
  text.resize(length);
  return text;
}

} // namespace

threads::threads(nb::handle nranks) : nranks_(read_int32("nranks", nranks)) {
  banyan_status status = banyan_threads_create(nranks_, &group_);
  if (status != BANYAN_OK) raise_status(status, -1);
}

threads::~threads() { banyan_threads_destroy(group_); }

comm::comm(nb::handle source, nb::handle rank_of, nb::handle nranks_of, nb::handle timeout, nb::handle arena_bytes,
           nb::handle algorithm, nb::handle device, nb::handle first_timeout, nb::handle threads_of_rank) {
  if (PyCapsule_CheckExact(source.ptr())) throw nb::next_overload(); // a communicator that was split or shrunk
  int32_t rank = read_int32("rank", rank_of), nranks = read_int32("nranks", nranks_of);
  banyan_comm_config config = BANYAN_COMM_CONFIG_INIT;
  config.timeout_ns = read_seconds("timeout", timeout);
  config.first_timeout_ns = read_seconds("first_timeout", first_timeout);
  config.arena_bytes = static_cast<uint64_t>(read_integer("arena_bytes", arena_bytes, 0, INT64_MAX));
  config.threads = read_integer("threads", threads_of_rank, INT64_MIN, INT64_MAX);
  config.algorithm = read_text("algorithm", algorithm);
  config.device = read_text("device", device);
  if (config.device) device_ = config.device;
  banyan_bootstrap bootstrap = BANYAN_BOOTSTRAP_INIT;
  banyan_env *env = nullptr;
  python_gather python{nb::borrow(source), nranks};
  banyan_status status = BANYAN_OK;
  threads *group = nullptr;
  if (!source.is_none() && !nb::try_cast<threads *>(source, group)) {
    if (!PyCallable_Check(source.ptr())) reject("allgather", "it is a function allgather(bytes, timeout_s)");
    bootstrap.rank = rank, bootstrap.nranks = nranks;
    bootstrap.context = &python, bootstrap.allgather = gather;
  }
  {
    gil_released without;
    interrupt_window window;
    if (source.is_none())
      status = banyan_env_create(config.timeout_ns, &env, &bootstrap);
    else if (group)
      status = banyan_threads_bootstrap(group->handle(), rank, &bootstrap);
    if (status == BANYAN_OK) status = banyan_comm_create(&bootstrap, &config, &comm_);
  }
  std::string text = status == BANYAN_OK ? "" : banyan_last_error();
  banyan_env_destroy(env);
  try {
    throw_pending();
  } catch (nb::python_error &) {
    banyan_comm_destroy(comm_);
    Py_XDECREF(python.type), Py_XDECREF(python.value), Py_XDECREF(python.trace);
    throw;
  }
  if (python.value || python.type) {
    PyErr_Restore(python.type, python.value, python.trace);
    throw nb::python_error();
  }
  if (status != BANYAN_OK) raise_status(status, -1, text.c_str());
}

comm::comm(banyan_comm *made, const std::string &device) : comm_(made), device_(device) {}

comm::~comm() {
  no_throw quiet;
  if (compiled && !is_inherited()) jax_forget(this);
  torch_forget(this);
  end();
}

void comm::end() {
  while (!operations.empty()) {
    operation *last = operations.back();
    operations.pop_back();
    last->release();
  }
  banyan_comm *last = comm_;
  comm_ = nullptr;
  gil_released without;
  interrupt_window window;
  banyan_comm_destroy(last);
}

comm::claim::claim(comm &owner) : owner_(owner) {
  owner.handle();
  if (owner.is_inherited())
    reject_state("this communicator is of the parent of this process, a child of a fork: make one here, or use "
                 "start=\"spawn\"");
  if (!owner.try_claim()) reject_state("another thread uses this communicator now");
}

comm::claim::~claim() { owner_.unclaim(); }

// First frees the operations that other threads discarded meanwhile. Freeing one may discard more.
void comm::unclaim() {
  if (discarded_.empty()) return release_claim();
  no_throw quiet;
  while (!discarded_.empty()) {
    std::unique_ptr<operation> last = std::move(discarded_.back());
    discarded_.pop_back();
    last->release();
  }
  release_claim();
}

// The operation may hold the last reference to the communicator, so it is destroyed last. Its arrays must stay while
// another thread frees it.
void comm::discard(std::unique_ptr<operation> forgotten) {
  if (!is_inherited() && !try_claim()) {
    discarded_.push_back(std::move(forgotten));
    return;
  }
  no_throw quiet;
  forgotten->release();
  if (!is_inherited()) unclaim();
}

void comm::end_of_operation(banyan_op *op) {
  gil_released without;
  interrupt_window window;
  banyan_op_free(op);
}

// Does nothing while another thread uses the communicator, because the failed call was not one of its calls.
void comm::report(bool init, const nb::python_error &error) {
  if (!is_open() || is_inherited() || !try_claim()) return;
  std::string text;
  try {
    text = nb::str(error.value()).c_str();
  } catch (nb::python_error &) {
    text = "its arguments cannot be read";
  }
  {
    gil_released without;
    interrupt_window window;
    banyan_comm_reject(comm_, BANYAN_ERR_ARGUMENT, text.c_str(), init);
  }
  unclaim();
  throw_pending();
}

banyan_comm *comm::handle() const {
  if (!comm_) reject_state("this communicator is closed");
  return comm_;
}

void comm::close() {
  if (!comm_) return;
  if (is_inherited()) return end();
  {
    claim claimed(*this);
    end();
  }
  throw_pending();
}

void comm::abort(nb::handle reason) { banyan_comm_abort(handle(), read_text("reason", reason)); }

void comm::fail(banyan_status status) {
  std::string text = banyan_last_error();
  raise_status(status, banyan_comm_failed_rank(comm_), text.c_str());
}

nb::tuple comm::shrink() {
  std::vector<int32_t> members(static_cast<size_t>(nranks()), -1);
  banyan_comm *shrunk = nullptr;
  try {
    call([&] { return banyan_comm_shrink(comm_, members.data(), &shrunk); });
  } catch (nb::python_error &) {
    banyan_comm_destroy(shrunk);
    throw;
  }
  nb::list old_ranks;
  for (int32_t i = 0; i < banyan_comm_nranks(shrunk); i++) old_ranks.append(members[static_cast<size_t>(i)]);
  return nb::make_tuple(nb::capsule(shrunk, "banyan_comm"), old_ranks);
}

nb::object comm::split(int32_t color, int32_t key) {
  banyan_comm *part = nullptr;
  try {
    call([&] { return banyan_comm_split(comm_, color, key, &part); });
  } catch (nb::python_error &) {
    banyan_comm_destroy(part);
    throw;
  }
  if (!part) return nb::none();
  return nb::capsule(part, "banyan_comm");
}

std::string comm::describe() const {
  return text_of([&](char *text, size_t bytes) { return banyan_comm_describe(handle(), text, bytes); });
}

std::string comm::metrics() {
  claim claimed(*this);
  return text_of([&](char *text, size_t bytes) { return banyan_comm_metrics(handle(), text, bytes); });
}

std::string comm::describe_operation(const banyan_op *op) const {
  return text_of([&](char *text, size_t bytes) { return banyan_op_describe(op, text, bytes); });
}

// None selects the current stream of the array's framework, if the communicator has a device.
void *comm::stream_for(nb::handle given, nb::handle object) const {
  if (!given.is_none()) return read_stream(given);
  return device_.empty() ? nullptr : current_stream(object);
}

} // namespace bny
