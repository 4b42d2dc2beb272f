// SPDX-License-Identifier: Apache-2.0
// Converts the callers' words, such as scatter="heads", to values of the C API.
#pragma once
#include "errors.hh"

namespace bny {

/* clang-format off */
// Name and default of keyword arguments: of all calls that merge or sum, of combine(), and of attention_combine().
#define CALL_WORDS(WORD)                                                                                               \
  WORD(scatter, "none") WORD(root, 0) WORD(order, "plan") WORD(wire, "f32") WORD(algorithm, nb::none())                \
  WORD(tokens, nb::none())
#define COMBINE_WORDS(WORD)                                                                                            \
  CALL_WORDS(WORD) WORD(base, nb::none()) WORD(empty, nb::none()) WORD(values, nb::none()) WORD(out_base, nb::none())  \
  WORD(out_empty, "-inf") WORD(out_values, nb::none()) WORD(stream, nb::none()) WORD(preset, nb::none())               \
  WORD(values_scale, nb::none()) WORD(out_scale, nb::none()) WORD(seq_lens, nb::none())                                \
  WORD(query_start_loc, nb::none()) WORD(token_mask, nb::none()) WORD(empty_rows, nb::none())
#define RESULT_WORDS(WORD) CALL_WORDS(WORD) WORD(base, "e") WORD(out_empty, "-inf") WORD(stream, nb::none())
// Each list makes parameters, names, members and arguments by these.
#define WORD_PARAMETER(name, standard) , nb::handle name
#define WORD_NAME(name, standard) name,
#define WORD_MEMBER(name, standard) nb::handle name = Py_None;
#define WORD_SET(name, standard) how.name = words.name;
#define WORD_ARGUMENT(name, standard) , nb::arg(#name).none() = standard
/* clang-format on */

// The Python arguments that describe a caller's rows and how they are combined.
struct combine_words {
  COMBINE_WORDS(WORD_MEMBER)
};

// Those of them that attention over the keys of all ranks has.
struct result_words {
  RESULT_WORDS(WORD_MEMBER)
  combine_words as_combine() const;
};

// Those of allreduce().
struct sum_words {
  CALL_WORDS(WORD_MEMBER)
};

// Returns the value of a word of a kind, such as "scatter". Errors name the argument, which is the kind if it is NULL.
int choose(const char *kind, nb::handle word, const char *argument);
template <class value> value read_word(const char *kind, nb::handle word, const char *argument = nullptr) {
  return static_cast<value>(choose(kind, word, argument));
}
banyan_base read_base(const char *argument, nb::handle word); // the number 2 too

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
