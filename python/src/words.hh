// SPDX-License-Identifier: Apache-2.0
// Converts the callers' words, such as scatter="heads", to values of the C API.
#pragma once
#include "errors.hh"

namespace bny {

// The Python arguments that describe a caller's rows and how they are combined.
struct combine_words {
  nb::handle base, empty, values, out_base, out_empty, out_values, scatter, root, order, wire, algorithm, stream;
  nb::handle preset = Py_None, values_scale = Py_None, out_scale = Py_None;
  nb::handle tokens = Py_None, seq_lens = Py_None, query_start_loc = Py_None, token_mask = Py_None;
  nb::handle empty_rows = Py_None;
};

banyan_dtype read_wire(nb::handle word);
banyan_scatter read_scatter(nb::handle word);
banyan_preset read_preset(nb::handle word);
banyan_empty_rows read_empty_rows(nb::handle word);
banyan_kv_rows read_kv_rows(nb::handle word);
banyan_ownership_kind read_ownership_kind(nb::handle word);
banyan_order read_order(nb::handle word);
banyan_base read_base(const char *argument, nb::handle word);
banyan_values read_values(const char *argument, nb::handle word);

// Sets `empty` and `empty_below` of `rows`. The argument is a word, several words joined by "|", or a number, which
// means that number and all below it.
void read_empty(const char *argument, nb::handle word, banyan_partial *rows);

// Returns the text of a string; NULL for None.
const char *read_text(const char *argument, nb::handle word);

// Returns the stream of an integer; NULL for None.
void *read_stream(nb::handle word);

// Returns a time in nanoseconds of a number of seconds.
int64_t read_seconds(const char *argument, nb::handle seconds);

int64_t read_integer(const char *argument, nb::handle number, int64_t least, int64_t most);
inline int32_t read_int32(const char *argument, nb::handle number) {
  return static_cast<int32_t>(read_integer(argument, number, INT32_MIN, INT32_MAX));
}

} // namespace bny
