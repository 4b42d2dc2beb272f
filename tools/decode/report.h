/* SPDX-License-Identifier: Apache-2.0
 * The report of banyan-decode, as text for people and as JSON for programs. */
#ifndef BNY_TOOLS_DECODE_REPORT_H
#define BNY_TOOLS_DECODE_REPORT_H

#include <stdbool.h>
#include <stdio.h>

#include "tools/decode/measure.h"

typedef struct decode_report {
  const tool_world *world;
  const decode_problem *problem;
  const decode_settings *settings;
  const char *input; /* file, or NULL */
  int32_t repeat;
  const decode_result *results;
  int count;
} decode_report;

/* Prints what was found and chosen, before the work. */
void report_begin(const decode_report *report, FILE *stream);

/* The table and the verdict. */
void report_results(const decode_report *report, FILE *stream);

/* One object. */
bool report_json(const decode_report *report, FILE *stream, tool_error *error);

/* All methods. */
bool report_verified(const decode_report *report);

#endif
