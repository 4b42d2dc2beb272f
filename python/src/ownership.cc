// SPDX-License-Identifier: Apache-2.0
// The owner of each key, and of each page. No communicator is needed.
#include "comm.hh"

#include <limits>

namespace bny {

namespace {

// A sequence of integers. None becomes NULL.
template <class number> class numbers {
public:
  numbers(const char *argument, nb::handle word, int32_t nranks) : given_(!word.is_none()) {
    if (!given_) return;
    if (!PySequence_Check(word.ptr()) || PyObject_Size(word.ptr()) != nranks)
      reject(argument, "it is a sequence of one number for each rank");
    using limits = std::numeric_limits<number>;
    for (nb::handle item : word)
      values_.push_back(static_cast<number>(read_integer(argument, item, limits::min(), limits::max())));
  }
  const number *data() const { return given_ ? values_.data() : nullptr; }

private:
  bool given_;
  std::vector<number> values_;
};

void check(banyan_status status) {
  if (status != BANYAN_OK) raise_status(status, -1);
}

class ownership {
public:
  ownership(nb::handle kind, nb::handle nranks, nb::handle block, nb::handle tokens, nb::handle weights)
      : weights_("weights", weights, read_int32("nranks", nranks)) {
    rule_.kind = read_word<banyan_ownership_kind>("kind", kind);
    rule_.nranks = read_int32("nranks", nranks), rule_.block = read_int32("block", block);
    rule_.tokens = read_integer("tokens", tokens, INT64_MIN, INT64_MAX), rule_.weights = weights_.data();
    keys(0, 0); // rejects an invalid rule
  }
  ownership(const ownership &) = delete;

  nb::object weights() const {
    if (!weights_.data()) return nb::none();
    nb::list list;
    for (int32_t i = 0; i < rule_.nranks; i++) list.append(weights_.data()[i]);
    return list;
  }
  // For pickle and copy.
  nb::tuple state() const {
    const char *kind = rule_.kind == BANYAN_OWNERSHIP_RANGES ? "ranges" : "blocks";
    return nb::make_tuple(kind, rule_.nranks, rule_.block, rule_.tokens, weights());
  }

  nb::tuple of_token(int64_t token) const {
    int32_t rank;
    int64_t position;
    check(banyan_ownership_of_token(&rule_, token, &rank, &position));
    return nb::make_tuple(rank, position);
  }
  nb::tuple of_tokens(nb::handle tokens) const {
    nb::module_ numpy = nb::module_::import_("numpy");
    nb::object given = numpy.attr("asarray")(tokens);
    std::string kind = nb::str(given.attr("dtype").attr("kind")).c_str();
    bool is_whole = kind == "i" || kind == "u" || nb::cast<int>(given.attr("size")) == 0; // [] is of floats
    if (nb::cast<int>(given.attr("ndim")) != 1 || !is_whole)
      reject("tokens", "it is an array of integers of one dimension, or a list");
    nb::object whole = numpy.attr("ascontiguousarray")(given, nb::arg("dtype") = "int64");
    nb::object ranks = numpy.attr("empty_like")(whole, nb::arg("dtype") = "int32");
    nb::object places = numpy.attr("empty_like")(whole);
    array from, to_ranks, to_places;
    from.open("tokens", whole, false, "", nullptr);
    to_ranks.open("ranks", ranks, true, "", nullptr);
    to_places.open("places", places, true, "", nullptr);
    check(banyan_ownership_of_tokens(&rule_, from.count(), static_cast<const int64_t *>(from.data),
                                     static_cast<int32_t *>(to_ranks.data), static_cast<int64_t *>(to_places.data)));
    return nb::make_tuple(ranks, places);
  }
  int64_t token(int32_t rank, int64_t position) const {
    int64_t token;
    check(banyan_ownership_token(&rule_, rank, position, &token));
    return token;
  }
  int64_t keys(int32_t rank, int64_t length) const {
    int64_t keys;
    check(banyan_ownership_keys(&rule_, rank, length, &keys));
    return keys;
  }
  nb::tuple queries(int32_t rank) const {
    banyan_queries queries = BANYAN_QUERIES_INIT;
    int32_t key_start;
    check(banyan_ownership_queries(&rule_, rank, &queries, &key_start));
    return nb::make_tuple(key_start, queries.key_block, queries.key_stride);
  }
  nb::list moves_to(const ownership &other, int64_t length) const {
    constexpr int32_t most = 1024;
    std::vector<banyan_token_move> moves(most);
    nb::list list;
    int64_t next = 0;
    do {
      int32_t count = most;
      check(banyan_ownership_moves(&rule_, &other.rule_, length, &next, moves.data(), &count));
      for (size_t i = 0; i < static_cast<size_t>(count); i++)
        list.append(nb::make_tuple(moves[i].first, moves[i].end, moves[i].from, moves[i].to));
    } while (next < length);
    return list;
  }
  int32_t nranks() const { return rule_.nranks; }
  std::string repr() const {
    bool ranges = rule_.kind == BANYAN_OWNERSHIP_RANGES;
    std::string text = "<banyan.Ownership, " + std::to_string(rule_.nranks) + " ranks, ";
    if (ranges) text += "ranges of " + std::to_string(rule_.tokens) + " tokens in ";
    return text + "blocks of " + std::to_string(rule_.block > 0 ? rule_.block : 1) +
           (weights_.data() ? ", with weights>" : ">");
  }

private:
  numbers<int32_t> weights_;
  banyan_ownership rule_ = BANYAN_OWNERSHIP_INIT;
};

nb::list page_moves(nb::handle pages, nb::handle weights, nb::handle of_moved) {
  Py_ssize_t size = PyObject_Size(pages.ptr());
  if (size < 1 || size > INT32_MAX) reject("pages", "it is a sequence of one number for each rank");
  int32_t nranks = static_cast<int32_t>(size), count;
  numbers<int32_t> shares("weights", weights, nranks);
  numbers<int64_t> held("pages", pages, nranks), moved("of_moved", of_moved, nranks);
  std::vector<banyan_page_move> moves(static_cast<size_t>(nranks));
  check(banyan_page_moves(nranks, shares.data(), held.data(), moved.data(), moves.data(), &count));
  nb::list list;
  for (int32_t i = 0; i < count; i++) {
    const banyan_page_move &move = moves[static_cast<size_t>(i)];
    list.append(nb::make_tuple(move.from, move.to, move.pages));
  }
  return list;
}

} // namespace

void define_ownership(nb::module_ &module) {
  nb::class_<ownership>(module, "Ownership", doc::Ownership)
      .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle>(), nb::arg("kind").none(),
           nb::arg("nranks").none(), nb::kw_only(), nb::arg("block").none() = 0, nb::arg("tokens").none() = 0,
           nb::arg("weights") = nb::none())
      .def_prop_ro("nranks", &ownership::nranks, doc::Ownership_nranks)
      .def("__repr__", &ownership::repr)
      .def("__getstate__", &ownership::state)
      .def("__setstate__",
           [](ownership *self, nb::tuple state) {
             new (self) ownership(state[0], state[1], state[2], state[3], state[4]);
           })
      .def("moves_to", &ownership::moves_to, nb::arg("other"), nb::arg("length"), doc::Ownership_moves_to)
      .def("of_token", &ownership::of_token, nb::arg("token"), doc::Ownership_of_token)
      .def("of_tokens", &ownership::of_tokens, nb::arg("tokens").none(), doc::Ownership_of_tokens)
      .def("token", &ownership::token, nb::arg("rank"), nb::arg("position"), doc::Ownership_token)
      .def("keys", &ownership::keys, nb::arg("rank"), nb::arg("length"), doc::Ownership_keys)
      .def("queries", &ownership::queries, nb::arg("rank"), doc::Ownership_queries);
  module.def("page_moves", page_moves, nb::arg("pages"), nb::kw_only(), nb::arg("weights") = nb::none(),
             nb::arg("of_moved") = nb::none(), doc::page_moves);
}

} // namespace bny
