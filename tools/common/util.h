/* SPDX-License-Identifier: Apache-2.0
 * Small things that both tools need: error texts, time, percentiles, numbers and names on the command line. */
#ifndef TOOL_UTIL_H
#define TOOL_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"
#include "base/hash.h"
#include "base/names.h"

/* Why something did not work, for people. */
typedef struct tool_error {
  char text[600];
  bool everywhere; /* all ranks have this same error: one of them says it */
} tool_error;

/* Words the error and returns false, so that `return tool_error_set(error, "...")` reads well. */
bool tool_error_set(tool_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The library's failure: "WHAT: STATUS: the text of banyan_last_error()". Returns false. */
bool tool_error_banyan(tool_error *error, banyan_status status, const char *what);

int64_t tool_now_ns(void); /* CLOCK_MONOTONIC */

/* Sorts values. The smallest value that at least `percent` of all do not exceed; 0 if there is none. */
double tool_percentile(double *values, size_t count, double percent);

/* Zeroed, at a multiple of 64 bytes; free() releases it. NULL if there is no memory. 0 bytes give a valid pointer. */
void *tool_allocate(size_t bytes);

/* A whole number in [min, max], and nothing after it. */
bool tool_parse_int(const char *text, int64_t min, int64_t max, int64_t *value);

/* The same of the option --name; the error says what it takes. */
bool tool_option_int(const char *name, const char *text, int32_t min, int32_t max, int32_t *value, tool_error *error);

/* What --device takes: "cuda" (the first device) or "cuda:N". */
bool tool_option_device(const char *text, int32_t *ordinal, tool_error *error);

/* Names of tables. The error lists those that there are. */
bool tool_option_collective(const char *text, bny_collective *collective, tool_error *error);
bool tool_option_scatter(const char *text, banyan_scatter *scatter, tool_error *error);
bool tool_option_order(const char *text, banyan_order *order, tool_error *error);
bool tool_option_dtype(const char *option, const char *text, banyan_dtype *dtype, tool_error *error);
const char *tool_dtype_name(banyan_dtype dtype);

/* A size in bytes, with a suffix K, M or G (1024 based) or none. */
bool tool_parse_bytes(const char *text, size_t *bytes);

size_t tool_dtype_bytes(banyan_dtype dtype);

/* The bound that banyan.h states, under "Numbers", for the relative error of a row that is combined: 2e-6 for arithmetic in
 * f32, and what `roundings` to the wire's type may cost, as banyan_op_info says how many there are; 0 for other means. */
double tool_error_bound(banyan_dtype wire, uint64_t roundings);

/* The same of a combine. */
double tool_error_bound_of(banyan_dtype wire, const banyan_op *op);

/* [first, first + number) of the rows along tokens and heads that `rank` holds after a combine with this scatter. */
typedef struct tool_part {
  int32_t token0, tokens, head0, heads;
} tool_part;

tool_part tool_part_of_rank(banyan_scatter scatter, int32_t tokens, int32_t heads, int32_t rank, int32_t nranks);

/* Contiguous partials of [tokens][heads] rows in the form in which the tools keep them: numerators, maximum and sum in
 * base 2, all f32. And a contiguous result: normalised values alone. */
banyan_partial tool_partial_max_sum(float *values, float *max, float *sum, int32_t heads, int32_t value_dim);
banyan_partial tool_partial_result(float *values, int32_t heads, int32_t value_dim);

#endif
