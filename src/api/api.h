/* SPDX-License-Identifier: Apache-2.0
 * The checks that several public calls share. */
#pragma once

#include "op/operation.h"
#include "base/float_control.h"

/* Checks everything but memory. *desc then points to a struct of this library's form, in `room` if the caller's has
 * another size. */
banyan_status bny_api_combine_call(const banyan_comm *comm, const banyan_combine_desc **desc, banyan_combine_desc *room,
                                   bny_call *call);

/* Checks that the device reaches the caller's memory; without a device there is nothing to check. Hot. */
banyan_status bny_api_check_memory(banyan_comm *comm, const char *what, const void *pointer);
banyan_status bny_api_check_memory_partial(banyan_comm *comm, const banyan_partial *partial, const bny_box *box,
                                           bool is_output);
banyan_status bny_api_check_memory_valid(banyan_comm *comm, const banyan_valid_rows *valid); /* NULL is allowed */

/* Converts *partial in the same way and checks it. If there are no rows, NULL is allowed and nothing is checked. */
banyan_status bny_api_check_partial(const banyan_partial **partial, banyan_partial *room, const bny_box *box,
                                    bool is_output);

/* Does the same for collectives of bytes. Between nodes they move host memory, which the device need not reach. */
banyan_status bny_api_check_memory_bytes(banyan_comm *comm, const char *what, const void *pointer, size_t bytes);

/* An upper bound for byte counts, above the memory of any machine. A larger count is an error of the caller and must
 * not cause an access. */
static const size_t bny_api_bytes_max = (size_t)1 << 44;
banyan_status bny_api_check_bytes(size_t bytes);
bool bny_api_overlap(const void *first, size_t first_bytes, const void *second, size_t second_bytes);

/* Compares which keys the ranks claim, by their positions or, without these, by their first rows. All ranks get the
 * same error. For blocking calls on the host, whose arrays have been read. */
banyan_status bny_api_check_claims(banyan_comm *comm, const bny_attention_desc *desc);

/* Sets the algorithm of a call that only "oneshot" serves on devices, because it sends the rows of all ranks to the
 * rank that merges them. `what` names the call, and most_over_nodes is its limit of ranks on several nodes. */
banyan_status bny_api_oneshot_alone(const banyan_comm *comm, const char *what, int32_t most_over_nodes,
                                    const char **algorithm);

banyan_status bny_api_check_algorithm(const char *name);

/* Checks scatter, order and root of a call that merges rows, and sets its wire and algorithm. */
banyan_status bny_api_set_way(const banyan_comm *comm, banyan_dtype wire, const char *algorithm, bny_call *key);

/* Reports to the peers that this rank makes no operation, because its `op` is NULL. */
banyan_status bny_api_reject_init(banyan_comm *comm);

/* Adds the valid rows to the call. A blocking one reads the arrays of `valid` now, and is planned for a class of
 * tokens. A persistent operation reads them at each run. On a device only kernels read them. */
banyan_status bny_api_read_valid(const banyan_comm *comm, const banyan_valid_rows **valid, banyan_valid_rows *room,
                                 bool blocking, bny_call *call);

/* Does so for a call that uses `tokens` alone. `valid` is the caller's struct, and then NULL or `counted`. */
banyan_status bny_api_read_tokens(const banyan_comm *comm, const banyan_valid_rows **valid, banyan_valid_rows *counted,
                                  bool blocking, bny_call *call);

/* The rows of a tensor in memory. */
typedef struct bny_api_tensor {
  bny_strided rows;
  int32_t tokens, heads;
  int64_t row_bytes;
} bny_api_tensor;

static inline bool bny_api_tensor_is_empty(const bny_api_tensor *of) { return of->tokens == 0 || of->heads == 0; }

/* Returns whether two tensors overlap. Tensors in separate memory, or in different columns of one matrix, do not. */
bool bny_api_tensors_overlap(const bny_api_tensor *a, const bny_api_tensor *b);

/* A call that gathers heads. It refers to memory of the communicator that is valid until the next such call. */
typedef struct bny_api_heads {
  bny_call call;
  bny_op_memory memory; /* refers to `valid` */
  banyan_valid_rows valid;
} bny_api_heads;

/* Reads desc->gather, which is not NULL, and checks it against q. */
banyan_status bny_api_attention_gather(banyan_comm *comm, const bny_attention_desc *desc, bool blocking,
                                       bny_api_heads *gathered);

/* Checks everything of a selection but its valid rows, and fills in its memory. */
banyan_status bny_api_select_check(banyan_comm *comm, const banyan_select_desc *desc, bny_lists *lists);

/* Checks desc->select, which is not NULL, and that its results are what attention reads. */
banyan_status bny_api_attention_select(banyan_comm *comm, const bny_attention_desc *desc, banyan_order order);

/* Checks an all-gather of heads, and fills in `call`. */
banyan_status bny_api_heads_read(banyan_comm *comm, const banyan_heads_desc *desc, const void *mine, void *all,
                                 bool blocking, bny_api_heads *gathered);
