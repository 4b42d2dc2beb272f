/* SPDX-License-Identifier: Apache-2.0
 * The cost of another number of tokens: blocking combines whose number changes from call to call, beside combines of
 * the same number over and over. */
#ifndef BNY_TOOLS_PERF_TOKENS_H
#define BNY_TOOLS_PERF_TOKENS_H

#include <stdio.h>

#include "tools/perf/measure.h"

/* Measures numbers from 1 to perf->tokens, and prints a table to `stream` or, for JSON, an object to standard output;
 * both on rank 0 alone. *correct: all results that were checked. */
bool perf_tokens_work(const perf_case *perf, const perf_protocol *protocol, bool json, FILE *stream, bool *correct,
                      tool_error *error);

#endif
