/* SPDX-License-Identifier: Apache-2.0
 * Helpers of all tools: errors, memory, time, percentiles, and numbers and names on the command line. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "banyan.h"
#include "base/hash.h"
#include "base/names.h"

typedef enum tool_exit { TOOL_EXIT_OK, TOOL_EXIT_FAILED, TOOL_EXIT_USAGE, TOOL_EXIT_FAULTS } tool_exit;

#define TOOL_USAGE_TEXT "the command line is wrong, or a file that it names cannot be read or written"

/* The reason of a failure, as text for the user. */
typedef struct tool_error {
  char text[600];
  bool everywhere;  /* all ranks have the same error, and one of them prints it */
  tool_exit status; /* exit status: failure by default, or usage error */
} tool_error;

/* Sets the text and returns false, for use as `return tool_error_set(error, "...")`. */
bool tool_error_set(tool_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns `ok`. If it is false, the error becomes a usage error: the user named an unusable file or description. */
bool tool_error_usage(tool_error *error, bool ok);

/* Sets "cannot write to standard output" as a usage error. */
bool tool_error_stdout(tool_error *error);

/* Flushes a stream. Returns false if any output was lost. */
bool tool_flush(FILE *stream);

/* Sets an error of the library: "WHAT: STATUS: the text of banyan_last_error()". Returns false. */
bool tool_error_banyan(tool_error *error, banyan_status status, const char *what);

/* ---- memory that nobody frees: of one thread, until tool_release(), or until the program ends -------------------- */

/* Returns zeroed memory. If out of memory, the program ends with an error on stderr. */
void *tool_new(size_t count, size_t size);
_Noreturn void tool_no_memory(void);

/* Like tool_new(), but aligned to 64 bytes, and on huge pages if it is large. */
void *tool_take(size_t bytes);

/* Returns items[count] with room for one more item. Only this call may allocate and grow the array. */
void *tool_more(void *items, int32_t count, size_t size);

char *tool_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A text that is written through a stream. Do not move the struct between begin and end. */
typedef struct tool_page {
  char *text;
  size_t bytes;
  FILE *stream;
} tool_page;

FILE *tool_page_begin(tool_page *page);
char *tool_page_end(tool_page *page);

/* Frees all memory since the mark. */
size_t tool_mark(void);
void tool_release(size_t mark);

int64_t tool_now_ns(void); /* monotonic */

/* Sorts the values and returns the smallest value that is not less than `percent` % of them; 0 if count is 0. */
double tool_percentile(double *values, size_t count, double percent);

/* Prints text in lines of at most 100 columns. Lines break at spaces, and line ends of the text are kept. The first
 * line continues at `column`; the others are indented by `indent`. */
void tool_print_wrapped(FILE *stream, int column, int indent, const char *text);

/* Returns the width of the terminal on standard output; 0 if it is not a terminal. */
int32_t tool_terminal_columns(void);

/* Returns the number of CPUs that this process may use; at least 1. */
int32_t tool_cpus(void);

/* Parses a whole number in [min, max] with nothing after it. */
bool tool_parse_int(const char *text, int64_t min, int64_t max, int64_t *value);

/* Reads the value of --device: "cuda" (the first device) or "cuda:N". */
bool tool_option_device(const char *text, int32_t *ordinal, tool_error *error);

/* Parses a size in bytes, with a suffix K, M or G (1024 based) or none. */
bool tool_parse_bytes(const char *text, size_t *bytes);

extern const bny_name tool_dtypes[]; /* element types of caches, with scale 1 */
extern const bny_name tool_wires[];
const char *tool_dtype_name(banyan_dtype dtype);

/* Rejects a wire format that the order does not support. */
bool tool_check_order(banyan_order order, banyan_dtype wire, tool_error *error);
size_t tool_dtype_bytes(banyan_dtype dtype);

/* Returns the bound of docs/numbers.md for the relative error of a combined row. It is 2e-6 for f32 arithmetic, plus
 * the error of `roundings` to the wire type (see banyan_op_info), which is 0 for methods other than a combine. */
double tool_error_bound(banyan_dtype wire, uint64_t roundings);

/* The same bound, with the roundings of a combine. */
double tool_error_bound_of(banyan_dtype wire, const banyan_op *op);

/* The range of rows, along tokens and heads, that `rank` holds after this combine. */
typedef struct tool_part {
  int32_t token0, tokens, head0, heads;
} tool_part;

tool_part tool_part_of_rank(const banyan_combine_desc *desc, int32_t rank, int32_t nranks);

/* Describes contiguous partials of [tokens][heads] rows, as the tools store them: numerators, and maximum and sum in
 * base 2, all f32. */
banyan_partial tool_partial_max_sum(float *values, float *max, float *sum, int32_t heads, int32_t value_dim);

/* Describes the contiguous result of this combine on `rank`, which is o (normalised). Returns false if the rank
 * receives no result. */
bool tool_partial_result(const banyan_combine_desc *desc, int32_t rank, int32_t nranks, float *values,
                         banyan_partial *result);

/* Prints "wire f32, scatter none, order plan, algorithm by predicted cost" and a line end. */
void tool_print_combine(FILE *stream, const banyan_combine_desc *desc);

/* Starts an operation and waits for it. */
banyan_status tool_run(banyan_op *op);
