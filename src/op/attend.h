/* SPDX-License-Identifier: Apache-2.0
 * Local attention as a part of operations. It is bound to memory once and runs many times, on the host or on the
 * communicator's device. */
#pragma once

#include "attention.h"
#include "base/pool.h"
#include "comm/comm.h"
#include "attention/call.h"
#include "prune/prune.h"
#include "select.h"
#include "device/decode.h"
#include "base/status.h"

typedef struct bny_attention {
  bny_engine *engine; /* NULL: on the host */
  bny_attention_desc desc;
  banyan_kv_part parts[BNY_ATTENTION_PARTS_MAX]; /* desc.parts is NULL or points here */
  bool combines;                                 /* a combine takes its rows */
  bool is_exact;                                 /* `out` has rows of the exact order */
  int32_t tokens_max;                            /* number of tokens for which `out` has room */
  banyan_partial out;
  const bny_attention_kernels *kernels; /* on the host: those that BANYAN_KERNELS names for the communicator */
  const bny_kernels *finish;
  bny_pool *pool;    /* the communicator's; NULL: one thread */
  bny_decode decode; /* on a device */
  void *rows;        /* owned: host memory for rows that a combine reads */
  size_t rows_bytes;
  bool certifies;              /* pages with mass may be left out, and a combine takes the rows */
  bny_certificate certificate; /* [tokens_max][heads]: this rank's */
  float *certified;            /* owned: values and lse of the merged certificate, then those of
                                        * `certificate` */
  bool over_ranks;             /* it reads the best pages of all ranks, so selections run between its steps */
  bny_top_pages *top;          /* owned */
  bny_page_lists lists;        /* their memory is owned, from `indices` on */
  size_t lists_bytes;
  float *tops, *merged_tops;           /* in the same memory, [tokens][heads]: of this rank, and of all ranks */
  char text[2 * BNY_ERROR_TEXT_BYTES]; /* how it runs */
} bny_attention;

/* Makes attention that writes to `out`. If that is NULL, a combine reads its rows, in the exact order or in f32: the
 * same kernel sends them if `why_apart` is NULL. Otherwise they go to library memory, made->out, with room for
 * tokens_max, and the text says why ("": no reason to report). */
banyan_status bny_attention_make(banyan_comm *comm, const bny_attention_desc *desc, const banyan_partial *out,
                                 int32_t tokens_max, bool is_exact, const char *why_apart, bny_attention **attention);

/* Binds other memory of a shape that fits. Returns false, and changes nothing, if it does not fit or the memory is not
 * suitable. */
bool bny_attention_rebind(const banyan_comm *comm, bny_attention *attention, const bny_attention_desc *desc);

/* Makes each run on a device read its number of tokens and its mask from `valid`. */
void bny_attention_set_valid(bny_attention *attention, const banyan_valid_rows *valid);

/* Describes the rows in wire form, which a combine reads without conversion. */
banyan_partial bny_attention_rows(const bny_attention_desc *desc);

/* Returns the description of a run of `tokens` tokens. */
bny_attention_desc bny_attention_of_tokens(const bny_attention_desc *given, int32_t tokens);

/* Check a run of `tokens` tokens on the host, by its description or by the attention that was made. The caller checks
 * each run before it starts it. */
banyan_status bny_attention_check_desc(const banyan_comm *comm, const bny_attention_desc *desc, int32_t tokens,
                                       bool is_exact);
banyan_status bny_attention_check(const bny_attention *attention, int32_t tokens);

/* Makes room to choose pages over ranks in a call of `tokens` tokens and `sequences` at most, and returns the memory of
 * its selections. */
banyan_status bny_attention_bind_lists(bny_attention *attention, int32_t tokens, int32_t sequences, bny_lists *tops,
                                       bny_lists *pages);

/* Continue a run over ranks: after the selection of tops, and after that of pages. */
void bny_attention_offer(bny_attention *attention);
banyan_status bny_attention_read_chosen(bny_attention *attention);

/* Return the memory of a selection, and whether its results are the page table; otherwise attention has a mask. */
bny_lists bny_chosen_lists(const banyan_select_desc *desc);
static inline bool bny_chosen_is_list(const bny_attention_desc *desc) {
  return desc->kv.pages.table != NULL && desc->kv.pages.table == desc->select.own;
}

/* Checks the rows of desc->select that this rank offers, and lists all of them as chosen, so that the description can
 * be checked before the run selects. */
banyan_status bny_chosen_offer(const bny_attention_desc *desc);

/* Marks the chosen keys in the mask, if attention has one. */
void bny_chosen_mark(const bny_attention_desc *desc);

/* Starts a run after its keys have been selected. */
banyan_status bny_attention_start_chosen(bny_attention *attention, int32_t tokens);

/* Returns how many sequences a run of `tokens` tokens has. */
int32_t bny_attention_sequences(const bny_attention *attention, int32_t tokens);

/* Starts a run; one over ranks only weighs pages. `combine` is the parameter of an operation made `within` a kernel, or
 * NULL. `tokens` is the number of tokens of this run, on the host. On a device this is hot and may be captured. */
banyan_status bny_attention_start(bny_attention *attention, const bny_device_combine *combine, int32_t tokens);

/* Does the same for sequences [first, first + count) of the batch only, on the host. */
banyan_status bny_attention_start_slice(const bny_attention *attention, int32_t first, int32_t count);

/* Returns this rank's certificate and room for the merged one, as partials. bny_attention_write_errors() writes
 * desc.prune.error from the merged one, or zeros if no page with mass is left out. */
banyan_partial bny_attention_certificate(const bny_attention *attention);
banyan_partial bny_attention_certified(const bny_attention *attention, int32_t heads);
void bny_attention_write_errors(const bny_attention *attention, int64_t rows);

void bny_attention_free(bny_attention *attention); /* NULL is allowed */
