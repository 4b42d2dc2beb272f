/* SPDX-License-Identifier: Apache-2.0
 * A lexer, which splits PTX into words. */
#pragma once

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace ptx {

struct lexer {
  const std::string &path, &text;
  size_t at;
  uint32_t line;

  lexer(const std::string &of, const std::string &with, size_t from, uint32_t of_line)
      : path(of), text(with), at(from), line(of_line) {}

  [[noreturn]] void fail(const char *why, const std::string &what) const {
    fprintf(stderr, "%s:%u: %s: %s\n", path.c_str(), line, why, what.c_str());
    abort();
  }

  void skip() {
    for (; at < text.size(); at++) {
      if (text[at] == '/' && text[at + 1] == '/') at = text.find('\n', at);
      if (at >= text.size()) at = text.size() - 1;
      if (!isspace(static_cast<unsigned char>(text[at]))) return;
      if (text[at] == '\n') line++;
    }
  }

  bool at_end() {
    skip();
    return at >= text.size();
  }

  static bool is_word(char c) {
    bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return is_letter || (c >= '0' && c <= '9') || c == '_' || c == '$' || c == '%' || c == '.';
  }

  size_t end_of_word() {
    skip();
    size_t end = at;
    if (at < text.size() && text[at] == '"') return text.find('"', at + 1) + 1;
    while (end < text.size() && (is_word(text[end]) || (text[end] == ':' && text[end + 1] == ':')))
      end += text[end] == ':' ? 2 : 1;
    return end > at ? end : at + 1;
  }

  std::string peek() {
    size_t end = end_of_word();
    return text.substr(at, end - at);
  }

  std::string next() {
    if (at_end()) fail("the file ends", "");
    std::string word = peek();
    at += word.size();
    return word;
  }

  bool take(const char *word) {
    skip();
    if (at >= text.size() || text[at] != word[0]) return false;
    size_t end = end_of_word();
    if (text.compare(at, end - at, word) != 0) return false;
    at = end;
    return true;
  }

  void expect(const char *word) {
    if (!take(word)) fail("not what is expected there", peek());
  }

  bool is_label() {
    size_t end = end_of_word();
    return text[at] != '@' && text[end] == ':';
  }

  /* Returns the value of an integer, or the bits of a float such as 0f3F800000 or 0d... */
  static uint64_t value_of(const std::string &word) {
    bool is_float = word.size() >= 10 && (word[1] == 'f' || word[1] == 'F' || word[1] == 'd' || word[1] == 'D');
    return is_float ? strtoull(word.c_str() + 2, nullptr, 16) : strtoull(word.c_str(), nullptr, 0);
  }

  int64_t number() {
    bool is_negative = take("-");
    std::string word = next();
    if (!isdigit(static_cast<unsigned char>(word[0]))) fail("no number", word);
    int64_t value = static_cast<int64_t>(value_of(word));
    return is_negative ? -value : value;
  }

  void skip_past(char wanted) {
    for (; text[at] != wanted; at++)
      if (text[at] == '\n') line++;
    at++;
  }

  /* Skips past the next brace. Returns 1 if it is an opening brace, -1 if it is a closing one. */
  int skip_past_brace() {
    for (;; at++) {
      if (at >= text.size()) fail("the file ends", "");
      if (text[at] == '\n') line++;
      if (text[at] == '{' || text[at] == '}') return text[at++] == '{' ? 1 : -1;
    }
  }
};

} // namespace ptx
