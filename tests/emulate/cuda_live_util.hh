/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs of emulated devices in which some rows are masked: what ranks say, and what a plan of all rows would see. */
#ifndef BNY_TESTS_EMULATE_CUDA_LIVE_UTIL_HH
#define BNY_TESTS_EMULATE_CUDA_LIVE_UTIL_HH

#include <cmath>
#include <cstring>
#include <vector>

#include "cuda/program.h"

extern "C" {
#include "plan/plan.h"
#include "plan/slice.h"
#include "tests/support/sheet.h"
#include "tests/support/sheet_element.h"
}

/* The arrays that select the valid rows of a rank, in memory of a device. */
struct liveness {
  std::vector<int32_t> tokens, lengths, starts;
  std::vector<uint8_t> mask;
};

/* One run. */
struct live_rows {
  bny_device_live live; /* without pointers; most 0: all rows are valid */
  std::vector<liveness> said;
  std::vector<sheet> seen;       /* inputs as the plan sees them: masked rows are empty */
  std::vector<int32_t> token_of; /* token of the run for each token of the plan; -1: none */
  void *merged;                  /* merge of the visible parts */
};

inline void copy_row(const sheet &to, int32_t to_token, const sheet &from, int32_t from_token, int32_t to_head,
                     int32_t from_head) {
  memcpy(value_address(&to, to_token, to_head), value_address(&from, from_token, from_head),
         static_cast<size_t>(to.value_dim) * element_bytes(to.partial.values_dtype));
  const size_t bytes = element_bytes(to.partial.stats_dtype);
  if (to.partial.lse) memcpy(lse_address(&to, to_token, to_head), lse_address(&from, from_token, from_head), bytes);
  if (to.partial.sum) memcpy(sum_address(&to, to_token, to_head), sum_address(&from, from_token, from_head), bytes);
}

/* As banyan.h defines it, token by token. */
inline bool lives(const liveness &of, int32_t token) {
  if (token >= of.tokens[0] || (!of.mask.empty() && !of.mask[static_cast<size_t>(token)])) return false;
  if (of.lengths.empty() && of.starts.empty()) return true;
  for (size_t i = 0; i < (of.starts.empty() ? of.lengths.size() : of.starts.size() - 1); i++) {
    bool within =
        of.starts.empty() ? token == static_cast<int32_t>(i) : token >= of.starts[i] && token < of.starts[i + 1];
    if (within) return of.lengths.empty() || of.lengths[i] > 0;
  }
  return false;
}

/* Some rows are valid on each rank. Of `most` tokens a run has `count`. Lengths that are negative count as 0. */
inline std::vector<liveness> liveness_of(world_random *random, int32_t nranks, int32_t count, int32_t batch) {
  std::vector<liveness> all(static_cast<size_t>(nranks));
  std::vector<int32_t> starts;
  bool has_starts = random_one_in(random, 2), has_lengths = random_below(random, 3) > 0,
       has_mask = random_one_in(random, 3);
  for (int32_t i = 0, at = random_one_in(random, 4) ? 1 : 0; i <= batch; i++) {
    starts.push_back(at < count ? at : count);
    at += random_below(random, 3);
  }
  for (liveness &one : all) {
    one.tokens.push_back(count);
    if (has_starts) one.starts = starts;
    for (int32_t i = 0; i < batch && has_lengths; i++) one.lengths.push_back(random_below(random, 4) - 1);
    for (int32_t i = 0; i < count && has_mask; i++) one.mask.push_back(random_below(random, 3) > 0);
  }
  return all;
}

/* The run's token of one of the plan, by ranges that a rank owns. */
inline std::vector<int32_t> tokens_of(const bny_request &request, int32_t count) {
  std::vector<int32_t> found(static_cast<size_t>(request.all_tokens), -1);
  int32_t owners = request.scatter == BANYAN_SCATTER_TOKENS ? request.nranks : 1;
  for (int32_t owner = 0; owner < owners; owner++) {
    int32_t first, number, begin, live;
    sheet_split(request.all_tokens, owners, owner, &first, &number);
    sheet_split(count, owners, owner, &begin, &live);
    for (int32_t i = 0; i < number && i < live; i++) found[static_cast<size_t>(first + i)] = begin + i;
  }
  return found;
}

/* Masked rows become what kernels leave there. */
inline void poison(const sheet &in, int32_t token) {
  for (int32_t h = 0; h < in.heads; h++) {
    for (int32_t i = 0; i < in.value_dim; i++) store_value(&in, token, h, i, static_cast<double>(NAN));
    store_lse(&in, token, h, token % 2 ? 0.0 : static_cast<double>(NAN));
    if (in.partial.sum) store_sum(&in, token, h, -1);
  }
}

/* Draws a run. Masked rows of the inputs become what kernels leave there. */
inline live_rows live_rows_of(sheet_pool *pool, world_random *random, const bny_request &request,
                              const std::vector<sheet> &inputs) {
  live_rows made = {};
  const int32_t count = random_below(random, request.all_tokens + 1);
  const int32_t batch = random_one_in(random, 3) ? 40 + random_below(random, 1100) : random_below(random, count + 1);
  made.live.most = request.all_tokens;
  made.live.count = count;
  made.live.batch = batch;
  made.live.owners = request.scatter == BANYAN_SCATTER_TOKENS ? request.nranks : 1;
  made.live.keeps_empty_rows = random_one_in(random, 3);
  made.said = liveness_of(random, request.nranks, count, batch);
  made.token_of = tokens_of(request, count);
  for (size_t rank = 0; rank < inputs.size(); rank++) {
    const sheet &in = inputs[rank], seen = sheet_copy(pool, &in);
    for (int32_t t = 0; t < seen.tokens; t++) {
      int32_t token = made.token_of[static_cast<size_t>(t)];
      bool reads = token >= 0 && lives(made.said[rank], token);
      for (int32_t h = 0; h < seen.heads; h++)
        if (reads)
          copy_row(seen, t, in, token, h, h);
        else
          store_lse(&seen, t, h, -static_cast<double>(INFINITY));
    }
    made.seen.push_back(seen);
    for (int32_t t = 0; t < in.tokens; t++)
      if (!lives(made.said[rank], t)) poison(in, t);
  }
  made.merged = sheet_merge(pool, made.seen.data(), request.nranks);
  return made;
}

/* Rows of a result that the run does not have, or keeps, are as they were. */
inline void live_rows_restore(const live_rows &made, const bny_request &request, const bny_slice &owned,
                              const sheet &expected, const sheet &out) {
  const size_t row_bytes = sheet_row_bytes(request.value_dim);
  for (int32_t t = 0; t < out.tokens; t++) {
    for (int32_t h = 0; h < out.heads; h++) {
      size_t row = static_cast<size_t>(owned.token0 + t) * static_cast<size_t>(request.all_heads) +
                   static_cast<size_t>(owned.head0 + h);
      bool empty = reinterpret_cast<const sheet_row *>(static_cast<const char *>(made.merged) + row * row_bytes)->empty;
      if (made.token_of[static_cast<size_t>(owned.token0 + t)] < 0 || (empty && made.live.keeps_empty_rows))
        copy_row(expected, t, out, t, h, h);
    }
  }
}

/* A rank's argument. The number of tokens is one, or leads to memory of the device. */
inline bny_device_live live_rows_tell(const live_rows &made, size_t rank, bool leads) {
  bny_device_live live = made.live;
  if (made.said.empty()) return live;
  const liveness &said = made.said[rank];
  if (leads) live.tokens = said.tokens.data();
  if (!said.lengths.empty()) live.seq_lens = said.lengths.data();
  if (!said.starts.empty()) live.query_start_loc = said.starts.data();
  if (!said.mask.empty()) live.token_mask = said.mask.data();
  return live;
}

#endif
