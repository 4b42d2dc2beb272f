// SPDX-License-Identifier: Apache-2.0
#include "words.hh"

#include <cmath>
#include <cstring>

namespace bny {

namespace {

// The words of each kind, in the order in which errors list them.
constexpr struct {
  const char *kind, *word;
  int value;
} table[] = {{"wire", "f32", BANYAN_F32},
             {"wire", "f16", BANYAN_F16},
             {"wire", "bf16", BANYAN_BF16},
             {"wire", "e4m3", BANYAN_E4M3},
             {"preset", "flash_attention_2", BANYAN_PRESET_FLASH_ATTENTION_2},
             {"preset", "flash_attention_3", BANYAN_PRESET_FLASH_ATTENTION_3},
             {"preset", "flashinfer", BANYAN_PRESET_FLASHINFER},
             {"preset", "flashmla", BANYAN_PRESET_FLASHMLA},
             {"preset", "tensorrt_llm_helix", BANYAN_PRESET_TENSORRT_LLM_HELIX},
             {"preset", "ggml", BANYAN_PRESET_GGML},
             {"preset", "torch", BANYAN_PRESET_TORCH},
             {"empty_rows", "written", BANYAN_EMPTY_ROWS_WRITTEN},
             {"empty_rows", "kept", BANYAN_EMPTY_ROWS_KEPT},
             {"kv_rows", "plain", BANYAN_KV_ROWS_PLAIN},
             {"kv_rows", "flashmla_fp8", BANYAN_KV_ROWS_FLASHMLA_FP8},
             {"kind", "ranges", BANYAN_OWNERSHIP_RANGES},
             {"kind", "blocks", BANYAN_OWNERSHIP_BLOCKS},
             {"scatter", "none", BANYAN_SCATTER_NONE},
             {"scatter", "heads", BANYAN_SCATTER_HEADS},
             {"scatter", "tokens", BANYAN_SCATTER_TOKENS},
             {"scatter", "root", BANYAN_SCATTER_ROOT},
             {"order", "plan", BANYAN_ORDER_PLAN},
             {"order", "canonical", BANYAN_ORDER_CANONICAL},
             {"order", "exact", BANYAN_ORDER_EXACT},
             {"base", "e", BANYAN_BASE_E},
             {"base", "2", BANYAN_BASE_2},
             {"values", "normalised", BANYAN_VALUES_NORMALISED},
             {"values", "numerator", BANYAN_VALUES_NUMERATOR}};

int empty_flag(const char *argument, const std::string &word) {
  if (word == "-inf") return BANYAN_EMPTY_NEG_INF;
  if (word == "+inf" || word == "inf") return BANYAN_EMPTY_POS_INF;
  if (word == "nan") return BANYAN_EMPTY_NAN;
  reject(argument, "\"" + word + "\": it is \"-inf\", \"+inf\", \"nan\", several joined by \"|\", or a number");
}

// Shows what a caller gave in one line. An array may have thousands of elements, so its type stands for it.
std::string shown(nb::handle word) {
  std::string text = nb::repr(word).c_str();
  bool is_short = text.size() <= 80 && text.find('\n') == std::string::npos;
  return is_short ? text : "a value of type " + std::string(nb::type_name(word.type()).c_str());
}

} // namespace

combine_words result_words::as_combine() const {
  const result_words &words = *this;
  combine_words how;
  RESULT_WORDS(WORD_SET)
  how.empty = out_empty;
  return how;
}

int choose(const char *kind, nb::handle word, const char *argument) {
  const char *text = PyUnicode_Check(word.ptr()) ? PyUnicode_AsUTF8AndSize(word.ptr(), nullptr) : nullptr;
  std::string known;
  for (const auto &row : table) {
    if (std::strcmp(kind, row.kind) != 0) continue;
    if (text && std::strcmp(row.word, text) == 0) return row.value;
    known += (known.empty() ? "\"" : ", \"") + std::string(row.word) + "\"";
  }
  reject(argument ? argument : kind, shown(word) + ": it is one of " + known);
}

banyan_base read_base(const char *argument, nb::handle word) {
  if (PyLong_Check(word.ptr()) && PyLong_AsLong(word.ptr()) == 2) return BANYAN_BASE_2;
  return read_word<banyan_base>("base", word, argument);
}

void read_empty(const char *argument, nb::handle word, banyan_partial *rows) {
  rows->empty = 0;
  rows->empty_below = 0;
  if (PyBool_Check(word.ptr())) reject(argument, "it is a mark or a number, and not a bool");
  if (PyFloat_Check(word.ptr()) || PyLong_Check(word.ptr())) {
    double below = PyFloat_AsDouble(word.ptr());
    if (PyErr_Occurred()) reject(argument, "the number does not fit into a float");
    if (std::isinf(below) && below < 0) {
      rows->empty = BANYAN_EMPTY_NEG_INF;
    } else if (std::isfinite(below)) {
      rows->empty = BANYAN_EMPTY_BELOW;
      rows->empty_below = below;
    } else {
      reject(argument, "a number is -inf or finite; write \"+inf\" or \"nan\" for these");
    }
    return;
  }
  const char *text = read_text(argument, word);
  if (!text) reject(argument, "it is None, and what a row without keys looks like is not guessed");
  if (std::strcmp(text, "-inf") == 0) {
    rows->empty = BANYAN_EMPTY_NEG_INF;
    return;
  }
  std::string rest = text;
  while (true) {
    size_t bar = rest.find('|');
    rows->empty |= static_cast<uint32_t>(empty_flag(argument, rest.substr(0, bar)));
    if (bar == std::string::npos) return;
    rest = rest.substr(bar + 1);
  }
}

const char *read_text(const char *argument, nb::handle word) {
  if (word.is_none()) return nullptr;
  Py_ssize_t size = 0;
  const char *text = PyUnicode_Check(word.ptr()) ? PyUnicode_AsUTF8AndSize(word.ptr(), &size) : nullptr;
  if (!text && PyErr_Occurred()) reject(argument, "it is not text in UTF-8");
  if (!text) reject(argument, "it is of type " + std::string(nb::type_name(word.type()).c_str()) + ", and not a str");
  if (std::strlen(text) != static_cast<size_t>(size)) reject(argument, "it contains a character of code 0");
  return text;
}

void *read_stream(nb::handle word) {
  if (word.is_none()) return nullptr;
  if (!PyLong_Check(word.ptr())) reject("stream", "it is an integer, such as torch.cuda.current_stream().cuda_stream");
  void *stream = PyLong_AsVoidPtr(word.ptr());
  if (PyErr_Occurred()) reject("stream", "it is no address");
  return stream;
}

int64_t read_seconds(const char *argument, nb::handle seconds) {
  double number = PyFloat_AsDouble(seconds.ptr());
  PyErr_Clear(); // the number is then -1
  if (!(number >= 0 && number <= 9e9)) reject(argument, "it is a number of seconds from 0 on; 0 is the default");
  return std::llround(number * 1e9);
}

int64_t read_integer(const char *argument, nb::handle number, int64_t least, int64_t most) {
  nb::object whole = nb::steal(PyNumber_Index(number.ptr()));
  PyErr_Clear(); // repr() must not run with an error set
  if (!whole.is_valid()) reject(argument, shown(number) + ": it is an integer");
  int overflow = 0;
  long long value = PyLong_AsLongLongAndOverflow(whole.ptr(), &overflow);
  if (!overflow && least == 0 && value < 0) reject(argument, "it is " + std::to_string(value) + ", and at least 0");
  if (overflow || value < least || value > most)
    reject(argument, "it does not fit into " + std::to_string(most == INT32_MAX ? 32 : 64) + " bits");
  return value;
}

} // namespace bny
