/* SPDX-License-Identifier: Apache-2.0
 * Reads PTX. The functions of a file are located at once, and each is parsed at its first request. */
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/ptx/lexer.hh"
#include "tests/ptx/ptx.hh"

namespace ptx {

enum : uint32_t { COMMON_SHARED_BYTES = 2048 };

/* The meaning of a name: a register, or memory with its base. */
struct meaning {
  bool is_register;
  uint32_t at, bytes; /* memory: offset of its base */
  int64_t offset;
};

struct module {
  std::string path, text;
  std::map<std::string, std::pair<size_t, uint32_t>> places; /* functions: offset in the text, and line number */
  std::map<std::string, std::unique_ptr<function>> functions;
  std::map<std::string, meaning> shared;
  uint32_t common_bytes = 0; /* shared memory that several functions may use */
  uint32_t dynamic_at = 0;
};

namespace {

uint32_t up(uint32_t bytes, uint32_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

struct declaration {
  std::string name;
  uint32_t unit = 0, alignment = 1, bytes = 0, numbered = 0; /* name<numbered> */
  bool is_open = false;                                      /* name[] */
};

/* Reads after the state space: .align 8 .b8 name[16], .u64 .ptr .align 1 name, .reg .b32 %r<8>. `unit`: of the previous
 * name. */
declaration read_declaration(lexer *in, uint32_t unit = 0) {
  static const std::map<std::string, uint32_t> types = {
      {".pred", 1}, {".b8", 1},  {".u8", 1},  {".s8", 1},  {".b16", 2}, {".u16", 2}, {".s16", 2}, {".b32", 4},
      {".u32", 4},  {".s32", 4}, {".f32", 4}, {".b64", 8}, {".u64", 8}, {".s64", 8}, {".f64", 8}, {".b128", 16}};
  declaration made;
  uint32_t aligned = 0;
  for (;;) {
    std::string word = in->next();
    auto type = types.find(word);
    if (type != types.end())
      unit = type->second;
    else if (word == ".ptr")
      (void)(in->take(".global"), in->take(".align") && in->number());
    else if (word == ".align")
      aligned = static_cast<uint32_t>(in->number());
    else if (word[0] == '.')
      in->fail("a directive that is not known", word);
    else {
      made.name = word;
      break;
    }
  }
  if (!unit) in->fail("a declaration without a type", made.name);
  made.alignment = aligned ? aligned : unit;
  made.bytes = made.unit = unit;
  if (in->take("<")) {
    made.numbered = static_cast<uint32_t>(in->number());
    in->expect(">");
  } else if (in->take("[")) {
    made.is_open = in->take("]");
    if (!made.is_open) made.bytes = unit * static_cast<uint32_t>(in->number()), in->expect("]");
  }
  return made;
}

/* ---- a function -------------------------------------------------------------------------------------------------- */

struct reader {
  module *of;
  function *made;
  lexer in;
  std::vector<std::map<std::string, meaning>> scopes;
  std::map<uint64_t, uint32_t> constants;
  std::map<std::string, uint32_t> labels;
  std::vector<std::pair<uint32_t, std::string>> jumps;

  uint32_t room(uint32_t bytes, uint32_t alignment) {
    uint32_t at = up(static_cast<uint32_t>(made->image.size()), alignment);
    made->image.resize(at + bytes, 0xa5); /* registers are undefined at first */
    return at;
  }

  uint32_t constant(uint64_t value) {
    auto found = constants.find(value);
    if (found != constants.end()) return found->second;
    uint32_t at = room(8, 8);
    memcpy(made->image.data() + at, &value, sizeof value);
    return constants[value] = at;
  }

  const meaning *look_up(const std::string &name) {
    for (size_t i = scopes.size(); i-- > 0;) {
      auto found = scopes[i].find(name);
      if (found != scopes[i].end()) return &found->second;
    }
    auto found = of->shared.find(name);
    return found == of->shared.end() ? nullptr : &found->second;
  }

  void read_header();
  void read_body();
  void declare(const std::string &space);
  void read_statement();
  void read_call(instruction *made_of);
  void read_operands(std::vector<operand> *operands);
  operand read_operand();
  operand read_address();
  void finish();
};

const std::map<std::string, std::pair<uint32_t, uint32_t>> specials = {{"%tid.x", {AT_TID, 4}},
                                                                       {"%ntid.x", {AT_NTID, 4}},
                                                                       {"%ctaid.x", {AT_CTAID, 4}},
                                                                       {"%nctaid.x", {AT_NCTAID, 4}},
                                                                       {"%cluster_ctarank", {AT_CLUSTER_RANK, 4}},
                                                                       {"%cluster_nctarank", {AT_CLUSTER_BLOCKS, 4}}};

/* Reads .func (.param result) name(.param ..., .param ...) or .entry, and the limits of a launch. */
void reader::read_header() {
  made->is_entry = in.next() == ".entry";
  scopes.emplace_back();
  if (in.take("(")) {
    in.expect(".param");
    declaration result = read_declaration(&in);
    made->result_bytes = result.bytes;
    scopes[0][result.name] = {false, AT_RESULT, result.bytes, 0};
    in.expect(")");
  }
  made->name = in.next();
  in.expect("(");
  while (!in.take(")")) {
    in.take(",");
    in.expect(".param");
    declaration one = read_declaration(&in);
    uint32_t at = made->is_entry ? up(made->parameters_bytes, one.alignment) : room(one.bytes, up(one.alignment, 16));
    made->parameters_bytes = at + one.bytes;
    made->parameters.push_back({one.name, at, one.bytes});
    scopes[0][one.name] = {false, made->is_entry ? uint32_t{AT_PARAMETERS} : uint32_t{AT_FRAME}, one.bytes, at};
  }
  while (!in.take("{")) {
    std::string word = in.next();
    if (word == ".maxntid") {
      made->threads_max = static_cast<uint32_t>(in.number());
      while (in.take(",")) made->threads_max *= static_cast<uint32_t>(in.number());
    } else if (word == ".minnctapersm")
      in.number();
    else
      in.fail("a directive that is not known", word);
  }
}

void reader::declare(const std::string &space) {
  uint32_t unit = 0;
  do {
    declaration one = read_declaration(&in, unit);
    unit = one.unit;
    if (space == ".reg" && one.numbered) {
      uint32_t at = room(one.bytes * one.numbered, 16);
      for (uint32_t i = 0; i < one.numbered; i++)
        scopes.back()[one.name + std::to_string(i)] = {true, at + i * one.bytes, one.bytes, 0};
    } else if (space == ".reg") {
      scopes.back()[one.name] = {true, room(one.bytes, 16), one.bytes, 0};
    } else if (space == ".shared") {
      uint32_t &used = made->is_entry ? made->shared_bytes : of->common_bytes;
      uint32_t from = made->is_entry ? uint32_t{COMMON_SHARED_BYTES} : 0, at = from + up(used, one.alignment);
      used = at + one.bytes - from;
      if (one.alignment > 16 || of->common_bytes > COMMON_SHARED_BYTES)
        in.fail("shared memory that is not expected", one.name);
      scopes.back()[one.name] = {false, AT_STATIC, one.bytes, at};
    } else {
      scopes.back()[one.name] = {false, AT_FRAME, one.bytes, room(one.bytes, up(one.alignment, 16))};
    }
  } while (in.take(","));
  in.expect(";");
}

operand reader::read_address() {
  operand made_of = {ADDRESS, 0, 8, 0, 0, in.next()};
  const meaning *found = look_up(made_of.name);
  if (!found) in.fail("a name that is not known", made_of.name);
  made_of.at = found->at;
  made_of.offset = found->offset;
  if (found->is_register) made_of.bytes = found->bytes;
  if (in.take("+")) made_of.offset += in.number();
  in.expect("]");
  if (made_of.bytes != 4 && made_of.bytes != 8) in.fail("an address of another size", made_of.name);
  return made_of;
}

operand reader::read_operand() {
  if (in.take("[")) return read_address();
  bool is_inverted = in.take("!"), is_negative = in.take("-");
  std::string word = in.next();
  if (is_inverted) in.fail("an operand that is not expected", "!" + word);
  if (isdigit(word[0])) {
    uint64_t value = lexer::value_of(word);
    return {CONSTANT, 0, 0, constant(is_negative ? 0 - value : value), 0, word};
  }
  if (is_negative) in.fail("an operand that is not expected", "-" + word);
  if (word == "%globaltimer") return {CLOCK, 0, 0, AT_ZERO, 0, word};
  auto special = specials.find(word);
  if (special != specials.end()) return {VALUE, 0, special->second.second, special->second.first, 0, word};
  const meaning *found = look_up(word);
  if (!found) return {LABEL, 0, 0, 0, 0, word};
  if (found->is_register) return {VALUE, 0, found->bytes, found->at, 0, word};
  return {SYMBOL, 0, 0, found->at, found->offset, word};
}

/* a, {b, c}, d|p */
void reader::read_operands(std::vector<operand> *operands) {
  for (uint8_t group = 0; !in.take(";"); group++) {
    if (group) in.expect(",");
    bool is_vector = in.take("{");
    do {
      operands->push_back(read_operand());
      operands->back().group = group;
    } while (in.take(is_vector ? "," : "|"));
    if (is_vector) in.expect("}");
  }
}

/* call.uni (result), name, (a, b); */
void reader::read_call(instruction *made_of) {
  made->calls.push_back(std::make_unique<call>());
  call *made_call = made->calls.back().get();
  auto place = [&] {
    std::string name = in.next();
    const meaning *found = look_up(name);
    if (!found || found->is_register || found->at != AT_FRAME) in.fail("a name that is not known", name);
    return static_cast<uint32_t>(found->offset);
  };
  made_call->result = NOWHERE;
  if (in.take("(")) {
    made_call->result = place();
    in.expect(")");
    in.expect(",");
  }
  std::string name = in.next();
  made_call->callee = find(of, name);
  if (!made_call->callee) in.fail("a function that is not there", name);
  in.expect(",");
  in.expect("(");
  while (!in.take(")")) {
    in.take(",");
    made_call->arguments.push_back(place());
  }
  in.expect(";");
  const function &callee = *made_call->callee;
  if (callee.parameters.size() != made_call->arguments.size() ||
      (callee.result_bytes != 0) != (made_call->result != NOWHERE))
    in.fail("a call with other arguments", name);
  made_of->call = made_call;
  made_of->run = run_call;
}

void reader::read_statement() {
  instruction one;
  one.line = in.line;
  if (in.take("@")) {
    one.negated = in.take("!");
    std::string name = in.next();
    const meaning *found = look_up(name);
    if (!found || !found->is_register || found->bytes != 1) in.fail("no predicate", name);
    one.predicate = found->at;
  }
  std::string opcode = in.next();
  one.has_effect = true;
  if (opcode == "bra" || opcode == "bra.uni") {
    jumps.emplace_back(made->code.size(), in.next());
    in.expect(";");
    one.run = run_jump;
  } else if (opcode == "call.uni") {
    read_call(&one);
  } else if (opcode == "ret") {
    in.expect(";");
    one.run = run_return;
  } else {
    std::vector<operand> operands;
    read_operands(&operands);
    one.has_effect = false;
    try {
      decode(opcode, operands, &one);
    } catch (const char *why) {
      in.fail(why, opcode);
    }
  }
  made->code.push_back(std::move(one));
}

void reader::read_body() {
  for (int depth = 1; depth > 0;) {
    if (in.take("{")) {
      scopes.emplace_back();
      depth++;
    } else if (in.take("}")) {
      scopes.pop_back();
      depth--;
    } else if (in.take(".pragma")) {
      std::string what = in.next();
      if (what != "\"nounroll\"" && what.compare(0, 17, "\"used_bytes_mask ") != 0)
        in.fail("a pragma that is not known", what);
      in.expect(";");
    } else if (in.peek()[0] == '.') {
      std::string space = in.next();
      if (space != ".reg" && space != ".param" && space != ".local" && space != ".shared")
        in.fail("a directive that is not known", space);
      declare(space);
    } else if (in.is_label()) {
      labels[in.next()] = static_cast<uint32_t>(made->code.size());
      in.expect(":");
    } else {
      read_statement();
    }
  }
}

void reader::finish() {
  instruction end;
  end.run = run_return;
  end.has_effect = true;
  made->code.push_back(end);
  for (auto &one : jumps) {
    auto found = labels.find(one.second);
    if (found == labels.end()) in.fail("a label that is not there", one.second);
    made->code[one.first].target = found->second;
  }
  made->image.resize(up(static_cast<uint32_t>(made->image.size()), 64), 0xa5);
  made->shared_bytes += COMMON_SHARED_BYTES;
  for (const instruction &one : made->code) made->has_matrices |= one.multiplied != nullptr;
  keep_lines_whole(made);
}

/* ---- a module ---------------------------------------------------------------------------------------------------- */

/* Finds the start of each function, and the module's variables. */
void survey(module *made) {
  lexer in(made->path, made->text, 0, 1);
  while (!in.at_end()) {
    std::string word = in.next();
    if (word == ".version" || word == ".target" || word == ".address_size") {
      in.next();
    } else if (word == ".visible" || word == ".extern") {
      continue;
    } else if (word == ".func" || word == ".entry") {
      size_t at = in.at - word.size();
      uint32_t line = in.line;
      if (in.take("(")) in.skip_past(')');
      std::string name = in.next();
      in.expect("(");
      in.skip_past(')');
      if (in.take(";")) continue; /* declared before its definition */
      made->places[name] = {at, line};
      in.skip_past('{');
      for (int depth = 1; depth > 0;) depth += in.skip_past_brace();
    } else if (word == ".shared") {
      declaration one = read_declaration(&in);
      in.expect(";");
      uint32_t at = up(made->common_bytes, one.alignment);
      made->shared[one.name] = {false, one.is_open ? uint32_t{AT_ZERO} : uint32_t{AT_STATIC}, one.bytes, at};
      if (!one.is_open)
        made->common_bytes = at + one.bytes;
      else if (one.alignment > made->dynamic_at)
        made->dynamic_at = one.alignment;
    } else {
      in.fail("a directive that is not known", word);
    }
  }
  if (made->dynamic_at > 1024) in.fail("shared memory that is not expected", "dynamic");
  for (auto &one : made->shared)
    if (one.second.at == AT_ZERO) one.second.offset = made->dynamic_at;
}

} // namespace

std::shared_ptr<module> make_module(const std::string &path, const std::string &text) {
  auto made = std::make_shared<module>();
  made->path = path;
  made->text = text;
  survey(made.get());
  return made;
}

std::shared_ptr<module> read_module(const std::string &path) {
  std::ifstream file(path);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) {
    fprintf(stderr, "%s: cannot be read\n", path.c_str());
    abort();
  }
  return make_module(path, text.str());
}

const function *find(module *of, const std::string &name) {
  auto found = of->functions.find(name);
  if (found != of->functions.end()) return found->second.get();
  auto place = of->places.find(name);
  if (place == of->places.end()) return nullptr;
  auto made = std::make_unique<function>();
  made->of = of;
  reader one = {of, made.get(), lexer(of->path, of->text, place->second.first, place->second.second), {}, {}, {}, {}};
  made->dynamic_at = of->dynamic_at;
  one.room(SPECIAL_BYTES, 64);
  one.read_header();
  one.read_body();
  one.finish();
  return (of->functions[name] = std::move(made)).get();
}

} // namespace ptx
