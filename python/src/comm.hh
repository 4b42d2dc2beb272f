// SPDX-License-Identifier: Apache-2.0
// The communicator of the Python package, and its calls.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "array.hh"
#include "interrupt.hh"
#include "words.hh"

namespace bny::doc { // docstrings by name, which docstrings.py takes from banyan/_core.pyi
#include "docstrings.hh"
}

namespace bny {

class operation;

// Calls `body`, which uses no communicator, without the GIL. A failure becomes an exception.
template <class body_type> void call_alone(body_type body) {
  banyan_status status;
  {
    gil_released without;
    status = body();
  }
  if (status != BANYAN_OK) raise_status(status, -1);
}

// A group of ranks that are threads of this process.
class threads {
public:
  explicit threads(nb::handle nranks);
  threads(const threads &) = delete;
  ~threads();
  banyan_threads *handle() const { return group_; }
  int32_t nranks() const { return nranks_; }

private:
  banyan_threads *group_ = nullptr;
  int32_t nranks_;
};

class comm {
public:
  // `source` is None (the environment), a group of threads, or a Python function allgather(bytes, timeout_s).
  comm(nb::handle source, nb::handle rank, nb::handle nranks, nb::handle timeout, nb::handle arena_bytes,
       nb::handle algorithm, nb::handle device, nb::handle first_timeout, nb::handle threads);
  comm(banyan_comm *made, const std::string &device);
  comm(const comm &) = delete;
  ~comm();

  banyan_comm *handle() const;
  bool is_open() const { return comm_ != nullptr; }
  bool is_inherited() const { return made_in_ != forks(); } // this process is a forked child
  const std::string &device() const { return device_; }
  int32_t rank() const { return banyan_comm_rank(handle()); }
  int32_t nranks() const { return banyan_comm_nranks(handle()); }
  void close();
  void abort(nb::handle reason);
  nb::tuple shrink();
  nb::object split(int32_t color, int32_t key);
  std::string describe() const;
  std::string metrics();
  int64_t set_tag(int64_t tag) { return banyan_comm_set_tag(handle(), tag); }
  // Calls `body`, whose runs have this tag. A negative tag leaves that of the communicator.
  template <class body_type> banyan_status with_tag(int64_t tag, body_type body) {
    if (tag < 0) return body();
    int64_t before = set_tag(tag);
    banyan_status status = body();
    set_tag(before);
    return status;
  }
  std::string describe_operation(const banyan_op *op) const;
  void *stream_for(nb::handle given, nb::handle object) const;

  // Calls `body` without the GIL, because it may wait. A failure becomes an exception.
  template <class body_type> void call(body_type body) {
    claim claimed(*this);
    banyan_status status;
    {
      gil_released without;
      interrupt_window window;
      status = body();
    }
    throw_pending();
    if (status != BANYAN_OK) fail(status);
  }
  [[noreturn]] void fail(banyan_status status);

  // Reads the arguments of a collective call. A failure is reported to the peers, so that they do not wait for this
  // rank.
  template <class reader> void read(bool init, reader body) {
    try {
      body();
    } catch (nb::python_error &error) {
      report(init, error);
      throw;
    }
  }

  // The same for calls that do not hold the GIL and raise nothing. Returns false if another thread uses the
  // communicator.
  bool try_claim() { return !busy_.exchange(true, std::memory_order_acquire); }
  void release_claim() { busy_.store(false, std::memory_order_release); }

  // Frees an operation that Python no longer references: at once, or after the current call of another thread.
  void discard(std::unique_ptr<operation> forgotten);
  void end_of_operation(banyan_op *op); // waits without the GIL

  std::vector<operation *> operations;
  bool compiled = false; // compiled JAX functions use it
  int64_t number = 0;    // handle for torch ops; 0: none

  // Claims the communicator, which only one thread at a time may use. Another thread gets an exception. Needs the GIL.
  struct claim {
    explicit claim(comm &owner);
    ~claim();
    comm &owner_;
  };

private:
  void report(bool init, const nb::python_error &error);
  void end();
  void unclaim();

  std::vector<std::unique_ptr<operation>> discarded_;
  unsigned made_in_ = forks();
  banyan_comm *comm_ = nullptr;
  std::string device_;
  std::atomic<bool> busy_{false};
};

// Returns the name of an algorithm, which is kept in `algorithm`; NULL for None.
const char *read_algorithm(std::string *algorithm, nb::handle word);

// Reads how rows are merged into a description, which refers to `algorithm`. Returns whether this rank has a result.
template <class desc_type, class words_type>
bool read_how(desc_type *desc, std::string *algorithm, const comm &owner, const words_type &words) {
  desc->wire = read_word<banyan_dtype>("wire", words.wire);
  desc->scatter = read_word<banyan_scatter>("scatter", words.scatter);
  desc->order = read_word<banyan_order>("order", words.order);
  desc->root = read_int32("root", words.root);
  desc->algorithm = read_algorithm(algorithm, words.algorithm);
  return desc->scatter != BANYAN_SCATTER_ROOT || desc->root == owner.rank();
}

// A collective call of one kind, whose arguments have been read. Descriptions refer to members.
struct request {
  virtual ~request() = default;
  virtual banyan_status call(banyan_comm *comm) = 0;
  virtual banyan_status init(banyan_comm *comm, banyan_op **op) = 0;
  virtual nb::object result(); // after a call: `made`, in the framework of `like`
  virtual int32_t *set_tokens() { return valid.tokens == &tokens_now ? &tokens_now : nullptr; } // NULL: not by a number

  // Reads the number of tokens of a run: None, a number or an array. Returns whether there is one.
  bool read_tokens(const comm &owner, nb::handle word, void *stream);

  nb::object made = nb::none(); // the arrays that the call writes, or a tuple of them
  nb::handle like = Py_None;    // the array of the caller that results are like; None: results are the caller's
  array valid_tokens;
  banyan_valid_rows valid = BANYAN_VALID_ROWS_INIT;
  int32_t tokens_now = 0; // valid.tokens, where it was given as a number
  std::string algorithm;
};

// The arguments of a combine after reading. They live as long as the operation.
struct combine_call : request {
  struct words {
    nb::handle o, lse, sum, out;
    combine_words how;
  };

  array values, stats, sum, out_values, out_stats, out_sum, scale, out_scale;
  array seq_lens, query_start_loc, token_mask;
  banyan_partial in = BANYAN_PARTIAL_INIT, out = BANYAN_PARTIAL_INIT;
  banyan_combine_desc desc = BANYAN_COMBINE_DESC_INIT;
  float scale_now = 1, out_scale_now = 1;
  bool has_output = true;
  bool lse_f32 = false; // an lse that is made is f32, whatever its pattern has
  nb::object made_values, made_stats, made_sum;

  void read(const comm &owner, const words &given);
  banyan_status call(banyan_comm *comm) override { return banyan_combine(comm, &desc, &in, written()); }
  banyan_status init(banyan_comm *comm, banyan_op **op) override {
    return banyan_combine_init(comm, &desc, &in, written(), op);
  }
  const banyan_partial *written() const { return has_output ? &out : nullptr; }
  // Opens another output of the same layout for the same call. Returns false if it is not one array of that layout.
  bool repeat(const comm &owner, nb::handle out_array);
  // Makes or opens the outputs, like `o` and `lse`, which the patterns have read. With `with_sum` the statistics are m
  // and d.
  void read_output(const comm &owner, nb::handle o, nb::handle lse, nb::handle out_arrays, bool with_sum,
                   const array &pattern_values, const array &pattern_stats, const combine_words &words);

private:
  // Reads o, lse and d in their memory layout. A preset's convention defines where the statistics are.
  void read_plain(const comm &owner, nb::handle o, nb::handle lse, nb::handle d, const combine_words &words);
  void read_preset(const comm &owner, nb::handle o, nb::handle lse, banyan_preset preset);
  void read_valid(const comm &owner, const combine_words &words);
  void read_out_words(const combine_words &words);
  void set_made();
};

// The arguments of a sum after reading.
struct sum_call : request {
  struct words {
    nb::handle x, out;
    sum_words how;
  };
  array x, total;
  banyan_allreduce_desc desc = BANYAN_ALLREDUCE_DESC_INIT;

  void read(const comm &owner, const words &given);
  banyan_status call(banyan_comm *comm) override { return banyan_allreduce(comm, &desc, x.data, total.data); }
  banyan_status init(banyan_comm *comm, banyan_op **op) override {
    return banyan_allreduce_init(comm, &desc, x.data, total.data, op);
  }

private:
  int64_t shape[ARRAY_DIMS]; // the sums of this rank have it
};

// The arguments of a selection after reading.
struct select_call : request {
  struct words {
    nb::handle scores, indices;
    nb::handle k = Py_None, rows = Py_None, out = Py_None, algorithm = Py_None, tokens = Py_None;
  };
  array scores, indices, rows, best_scores, best_indices, own, own_counts;
  std::vector<int64_t> wide, best_wide; // those of int32 indices
  bool narrow = false;
  banyan_select_desc desc = BANYAN_SELECT_DESC_INIT;

  void read(const comm &owner, const words &given);
  banyan_status call(banyan_comm *comm) override { return banyan_select(comm, &desc); }
  banyan_status init(banyan_comm *comm, banyan_op **op) override { return banyan_select_init(comm, &desc, op); }
  nb::object result() override;
};

// The heads of all ranks: mine [tokens, heads of this rank, dim] -> [tokens, heads, dim].
struct heads_call : request {
  struct words {
    nb::handle mine;
    nb::handle out = Py_None, counts = Py_None, tokens = Py_None;
  };
  array mine, all;
  std::vector<int32_t> counts;
  banyan_heads_desc desc = BANYAN_HEADS_DESC_INIT;

  void read(const comm &owner, const words &given) {
    read_named(owner, owner.stream_for(nb::none(), given.mine), "mine", given);
  }
  // Errors call the array `argument`.
  void read_named(const comm &owner, void *stream, const char *argument, const words &given);
  banyan_status call(banyan_comm *comm) override { return banyan_allgather_heads(comm, &desc, mine.data, all.data); }
  banyan_status init(banyan_comm *comm, banyan_op **op) override {
    return banyan_allgather_heads_init(comm, &desc, mine.data, all.data, op);
  }

private:
  void read_counts(const comm &owner, const char *argument, nb::handle word);
};

// Returns the memory of a contiguous int32 array.
const int32_t *read_int32s(array *from, const char *argument, const std::string &device, nb::handle word, void *stream);

/* clang-format off */
// Name and default of these arguments: those that are equal for all layers of a step, those of a layer, and all.
#define BATCH_WORDS(WORD)                                                                                              \
  WORD(seq_lens, nb::none()) WORD(page_table, nb::none()) WORD(keys_max, 0) WORD(empty, nb::none())                    \
  WORD(query_start_loc, nb::none()) WORD(query_start, nb::none()) WORD(tree_mask, nb::none())                          \
  WORD(key_start, nb::none()) WORD(key_block, nb::none()) WORD(key_stride, nb::none()) WORD(key_pattern, nb::none())   \
  WORD(key_mask, nb::none()) WORD(page_indptr, nb::none()) WORD(last_page_len, nb::none())
#define LAYER_WORDS(WORD)                                                                                              \
  WORD(scale, 0.0) WORD(window, nb::none()) WORD(soft_cap, nb::none()) WORD(sinks, nb::none())                         \
  WORD(k_scale, nb::none()) WORD(v_scale, nb::none())
#define ATTENTION_WORDS(WORD)                                                                                          \
  BATCH_WORDS(WORD) LAYER_WORDS(WORD) WORD(kv_rows, nb::none()) WORD(q_rope, nb::none()) WORD(parts, nb::none())       \
  WORD(prune, nb::none())
/* clang-format on */

// The Python arguments of attention besides its arrays and its output.
struct attention_words {
  ATTENTION_WORDS(WORD_MEMBER)
  nb::handle gather = Py_None, select = Py_None; // attention_combine() alone
};

struct attention_call {
  array q, k, v, seq_lens, page_table, query_start_loc, query_start, tree_mask, key_start, key_mask, sinks, k_scale,
      v_scale, page_indptr, last_page_len, q_rope, bounds, error, pages_read, page_reads;
  heads_call gather;     // gathers the complete q
  select_call selection; // selects the keys
  banyan_attention_desc desc = BANYAN_ATTENTION_DESC_INIT;
  banyan_queries queries = BANYAN_QUERIES_INIT;
  float k_scale_now = 1, v_scale_now = 1;
  std::vector<int32_t> whole; // seq_lens by default: all keys
  std::vector<int32_t> key_pattern;
  std::vector<std::unique_ptr<attention_call>> pieces; // one per part of the keys
  std::vector<banyan_kv_part> parts;

  // `owner` is NULL for attention without a combine.
  void read(const comm *owner, void *stream_of_call, nb::handle q_array, nb::handle k_array, nb::handle v_array,
            const attention_words &words);
  // Opens other arrays of the same layouts. Of the words only scale, soft_cap, sinks, k_scale and v_scale may differ.
  // Returns false if anything else differs.
  bool repeat(nb::handle q_array, nb::handle k_array, nb::handle v_array, const attention_words &words);
  int32_t rows() const { return desc.queries ? queries.tokens : desc.batch; } // rows of q and of the output

private:
  std::string device;
  void *stream = nullptr;

  void read_q(const comm *owner, nb::handle q_array, const attention_words &words);
  void read_rope(const attention_words &words);
  void read_keys(nb::handle k_array, nb::handle v_array, const attention_words &words);
  void read_queries(const attention_words &words);
  void read_lengths(const attention_words &words);
  void read_pages(const attention_words &words);
  void read_logits(const attention_words &words);
  void read_scales(const attention_words &words);
  void read_rows(const attention_words &words);
  void read_prune(const attention_words &words);
  void read_select(const comm &owner, const attention_words &words);
  void read_parts(const attention_words &words);
  int64_t keys_of(int32_t sequence) const;
  void check_mask() const;
  int64_t batch_of(const attention_words &words) const;
};

// Attention over the keys of all ranks.
struct attention_request : request {
  struct words {
    nb::handle q, k, v;
    attention_words how;
    nb::handle out;
    result_words result;
  };
  attention_call attention;
  combine_call combine;

  void read(const comm &owner, const words &given);
  // Opens other arrays of the same layouts, see attention_call::repeat(). Returns false if anything else differs.
  bool repeat(const comm &owner, const words &given);
  banyan_status call(banyan_comm *comm) override {
    return banyan_attention_combine(comm, &attention.desc, &combine.desc, combine.written());
  }
  banyan_status init(banyan_comm *comm, banyan_op **op) override {
    return banyan_attention_combine_init(comm, &attention.desc, &combine.desc, combine.written(), op);
  }
  nb::object result() override;
  int32_t *set_tokens() override { return combine.set_tokens(); }
};

// A persistent operation. It keeps its arrays alive.
class operation {
public:
  explicit operation(nb::object owner) : owner_object_(owner), comm_(nb::cast<comm *>(owner)) {}
  operation(const operation &) = delete;
  ~operation();

  comm &owner() const { return *comm_; }
  banyan_op *handle() const;
  void free();    // called by Python; throws StateError while another thread uses the communicator
  void release(); // the caller has claimed the communicator
  void start();
  bool test();
  nb::object wait();
  nb::object run();
  nb::dict info() const;
  double timed(int runs);
  std::string repr() const;
  std::string describe() const;
  nb::object tokens();
  void set_tokens(nb::handle number);

  std::unique_ptr<request> planned;
  nb::object outputs = nb::none();
  std::vector<nb::object> kept; // holds what the caller gave
  banyan_op *op = nullptr;
  bool started = false;
  bool has_run = false; // it was started, so its outputs have been written

private:
  nb::object owner_object_;
  comm *comm_;
};

// The Python object of an operation. The operation may outlive it until another thread's call ends.
class operation_handle {
public:
  explicit operation_handle(std::unique_ptr<operation> held) : held_(std::move(held)) {}
  operation_handle(const operation_handle &) = delete;
  ~operation_handle() { held_->owner().discard(std::move(held_)); }
  operation &get() const { return *held_; }

private:
  std::unique_ptr<operation> held_;
};

void define_calls(nb::class_<comm> &type);
void define_attention(nb::module_ &module);
void define_select(nb::module_ &module);
void define_attention_step(nb::module_ &module, nb::class_<comm> &type);
void define_operation(nb::module_ &module);
void define_ownership(nb::module_ &module);
void define_jax(nb::module_ &module);
void define_torch(nb::module_ &module);
void wrap_calls(nb::module_ &module); // after all definitions

// Ends the calls of compiled JAX functions to this communicator, and waits for a running one.
void jax_forget(comm *ended);

// Invalidates the handle of this communicator for torch ops.
void torch_forget(const comm *ended);

} // namespace bny
