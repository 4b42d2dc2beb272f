/* SPDX-License-Identifier: Apache-2.0
 * Tests the warpgroup matrix operations of ptx/matrix.cc: layouts of shared memory and registers, and errors. The test
 * generates the kernels' PTX. The environment variable PTX_MATRIX_SHOW prints it, so that ptxas can check it. */
#include "tests/ptx/ptx.hh" /* before Check, which has a macro of the same name */
#include <check.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "cuda/device.h"

extern "C" {
#include "tests/support/world.h"
}

namespace {

enum : uint32_t {
  ROWS = 64,
  INNER = 64,
  STEPS = INNER / 16,
  THREADS = 128,
  ATOM_BYTES = 1024,
  MEMORY_BYTES = 8192 + 256 * INNER * 2
};

enum mistake {
  NONE,
  NO_PROXY_FENCE,
  EARLY_PROXY_FENCE,
  NO_FENCE,
  NO_WAIT,
  EARLY_USE,
  A_CHANGES,
  A_AFTER_FENCE,
  OTHER_DESCRIPTORS,
  WARPS_DIFFER,
  OVERWRITTEN,
  MISTAKES
};

/* A matrix in the layout of the kernels: atoms of 8 rows of 128 bytes, ordered by k first. */
struct layout {
  bool across; /* MN-major */

  uint32_t along_k() const { return across ? INNER / 8 : INNER / 64; } /* atoms */

  /* Returns the offset of an element. The 8 units of a row, of 8 elements, are swizzled by the row's number. */
  uint32_t offset(uint32_t mn, uint32_t k) const {
    uint32_t element = across ? mn : k, row = across ? k : mn, unit = element / 8;
    uint32_t i = across ? unit / 8 : row / 8, j = across ? row / 8 : unit / 8;
    return (i * along_k() + j) * ATOM_BYTES + row % 8 * 128 + ((unit ^ row) % 8) * 16 + element % 8 * 2;
  }

  uint32_t start_of(uint32_t step) const { return across ? 2 * step * ATOM_BYTES : step * 32; }

  uint64_t descriptor(uint32_t start) const {
    uint64_t next_mn = along_k() * ATOM_BYTES, next_k = ATOM_BYTES;
    return (start >> 4) | (across ? next_mn : next_k) >> 4 << 16 | (across ? next_k : next_mn) >> 4 << 32 | 1ull << 62;
  }
};

struct form {
  uint32_t columns;
  bool is_bf16, a_in_registers, adds;
  layout a, b;
  mistake wrong;
};

std::string list(const char *name, uint32_t from, uint32_t count) {
  std::string made;
  for (uint32_t i = 0; i < count; i++) made += (i ? ", " : "") + (name + std::to_string(from + i));
  return "{" + made + "}";
}

std::string copies(const form &what) {
  if (what.wrong == EARLY_PROXY_FENCE)
    return "COPY: cp.async.cg.shared.global [r1], [x0], 16, 16;\nadd.s64 x0, x0, 2048;\nadd.s32 r1, r1, 2048;\n"
           "add.s32 r2, r2, 2048;\nsetp.lt.u32 p1, r2, r3;\n@p1 bra COPY;\n"
           "cp.async.commit_group;\nfence.proxy.async.shared::cta;\ncp.async.wait_group 0;\n";
  std::string made =
      "COPY: ld.global.v4.u32 {r4, r5, r6, r7}, [x0];\nst.shared.v4.u32 [r1], {r4, r5, r6, r7};\n"
      "add.s64 x0, x0, 2048;\nadd.s32 r1, r1, 2048;\nadd.s32 r2, r2, 2048;\nsetp.lt.u32 p1, r2, r3;\n@p1 bra COPY;\n";
  return what.wrong == NO_PROXY_FENCE ? made : made + "fence.proxy.async.shared::cta;\n";
}

std::string multiplications(const form &what) {
  std::string type = what.is_bf16 ? ".bf16.bf16 " : ".f16.f16 ", made,
              shape = "m64n" + std::to_string(what.columns) + "k16.f32";
  if (what.wrong != NO_FENCE) made += "wgmma.fence.sync.aligned;\n";
  if (what.wrong == A_AFTER_FENCE) made += "add.s32 a0, a0, 0;\n";
  for (uint32_t step = 0; step < STEPS; step++) {
    made += "add.s64 x4, x2, " + std::to_string(what.a.start_of(step) >> 4) + ";\n";
    made += "add.s64 x5, x3, " + std::to_string(what.b.start_of(step) >> 4) + ";\n";
    if (what.wrong == OTHER_DESCRIPTORS) made += "and.b64 x6, x7, 1;\nadd.s64 x5, x5, x6;\n";
    if (what.wrong == WARPS_DIFFER) made += "shr.u64 x6, x7, 6;\nadd.s64 x5, x5, x6;\n";
    made += "wgmma.mma_async.sync.aligned." + shape + type + list("f", 0, what.columns / 2) + ", ";
    made += what.a_in_registers ? list("a", 4 * step, 4) : "x4";
    made += ", x5, p" + std::string(step ? "2, " : "3, ") + "1, 1" +
            (what.a_in_registers ? ""
             : what.a.across     ? ", 1"
                                 : ", 0");
    made += what.b.across ? ", 1;\n" : ", 0;\n";
  }
  made += "wgmma.commit_group.sync.aligned;\n";
  if (what.wrong == EARLY_USE) made += "add.f32 f0, f0, f0;\n";
  if (what.wrong == A_CHANGES) made += "mov.u32 a3, 0;\n";
  if (what.wrong == OVERWRITTEN) made += "mov.u32 r4, 0;\nst.shared.u32 [r8], r4;\nfence.proxy.async;\nbar.sync 0;\n";
  if (what.wrong != NO_WAIT) made += "wgmma.wait_group.sync.aligned 0;\n";
  return made;
}

std::string text_of(const form &what) {
  std::string made =
      ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 memory[];\n"
      ".visible .entry multiply(.param .u64 image, .param .u32 bytes, .param .u64 a, .param .u64 d, .param .u64 "
      "of_a, .param .u64 of_b, .param .u32 adds) {\n"
      ".reg .pred p<4>;\n.reg .b32 r<16>;\n.reg .b32 a<16>;\n.reg .f32 f<128>;\n.reg .b64 x<16>;\n"
      "mov.u32 r0, %tid.x;\nmul.wide.u32 x6, r0, 16;\ncvt.u64.u32 x7, r0;\nld.param.u64 x0, [image];\n"
      "cvta.to.global.u64 x0, x0;\nadd.s64 x0, x0, x6;\nmov.u32 r1, memory;\nshl.b32 r2, r0, 4;\n"
      "add.s32 r1, r1, r2;\nadd.s32 r8, r1, 8192;\nld.param.u32 r3, [bytes];\n";
  made += copies(what) + "bar.sync 0;\n";
  made +=
      "mov.u32 r9, memory;\nshr.u32 r9, r9, 4;\ncvt.u64.u32 x8, r9;\nld.param.u64 x2, [of_a];\nadd.s64 x2, x2, x8;\n"
      "ld.param.u64 x3, [of_b];\nadd.s64 x3, x3, x8;\nld.param.u32 r10, [adds];\nsetp.ne.u32 p3, r10, 0;\n"
      "setp.eq.u32 p2, r0, r0;\nld.param.u64 x10, [a];\ncvta.to.global.u64 x10, x10;\nmul.wide.u32 x11, r0, 64;\n"
      "add.s64 x10, x10, x11;\nld.param.u64 x12, [d];\ncvta.to.global.u64 x12, x12;\nmul.wide.u32 x13, r0, 512;\n"
      "add.s64 x12, x12, x13;\n";
  for (uint32_t i = 0; i < 16; i++)
    made += "ld.global.u32 a" + std::to_string(i) + ", [x10+" + std::to_string(4 * i) + "];\n";
  for (uint32_t i = 0; i < what.columns / 2; i++)
    made += "ld.global.f32 f" + std::to_string(i) + ", [x12+" + std::to_string(4 * i) + "];\n";
  made += multiplications(what);
  for (uint32_t i = 0; i < what.columns / 2 && what.wrong != NO_WAIT; i++)
    made += "st.global.f32 [x12+" + std::to_string(4 * i) + "], f" + std::to_string(i) + ";\n";
  return made + "ret;\n}\n";
}

/* Small integers, so that sums are exact. */
struct matrices {
  float a[ROWS][INNER], b[256][INNER], d[ROWS][256];
  std::vector<uint16_t> image = std::vector<uint16_t>(MEMORY_BYTES / 2);
  std::vector<uint32_t> a_parts = std::vector<uint32_t>(THREADS * 16);
  std::vector<float> d_parts = std::vector<float>(THREADS * 128, NAN);

  /* Returns the thread and register of an element of D. Each of 8 rows of a warp lies in 4 lanes, and a lane holds 2 of
   * each 8 columns. */
  static size_t place_of_d(uint32_t row, uint32_t column) {
    uint32_t thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
    return thread * 128 + column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
  }

  matrices(const form &what, uint64_t seed) {
    world_random random = seed;
    auto any = [&] { return static_cast<float>(random_below(&random, 9) - 4); };
    auto bits = [&](float value) { return what.is_bf16 ? bny_bf16_of_float(value) : bny_f16_of_float(value); };
    for (uint32_t i = 0; i < ROWS; i++)
      for (uint32_t k = 0; k < INNER; k++) {
        image[what.a.offset(i, k) / 2] = bits(a[i][k] = any());
        uint32_t thread = i / 16 * 32 + i % 8 * 4 + k % 8 / 2, at = k / 16 * 4 + k % 16 / 8 * 2 + i % 16 / 8;
        a_parts[thread * 16 + at] |= static_cast<uint32_t>(bits(a[i][k])) << (k % 2 ? 16 : 0);
      }
    for (uint32_t i = 0; i < what.columns; i++)
      for (uint32_t k = 0; k < INNER; k++) image[(8192 + what.b.offset(i, k)) / 2] = bits(b[i][k] = any());
    for (uint32_t i = 0; i < ROWS; i++)
      for (uint32_t j = 0; j < what.columns; j++)
        if (what.adds)
          d_parts[place_of_d(i, j)] = d[i][j] = any();
        else
          d[i][j] = 0;
  }

  bool is_product(const form &what) const {
    for (uint32_t i = 0; i < ROWS; i++)
      for (uint32_t j = 0; j < what.columns; j++) {
        float sum = d[i][j];
        for (uint32_t k = 0; k < INNER; k++) sum += a[i][k] * b[j][k];
        if (d_parts[place_of_d(i, j)] != sum) return false;
      }
    return true;
  }
};

/* Returns the error, or an empty string. */
std::string run(const form &what, uint64_t seed) {
  std::string text = text_of(what);
  if (getenv("PTX_MATRIX_SHOW")) puts(text.c_str());
  matrices with(what, seed);
  auto module = ptx::make_module("PTX of the test", text);
  void *image = with.image.data(), *a = with.a_parts.data(), *d = with.d_parts.data();
  uint64_t of_a = what.a.descriptor(0), of_b = what.b.descriptor(8192);
  uint32_t bytes = MEMORY_BYTES, adds = what.adds;
  void *arguments[] = {&image, &bytes, &a, &d, &of_a, &of_b, &adds};
  bny_emulator *emulator = bny_emulator_make({seed, 0, true, 0, 10000000});
  const ptx::function *kernel = ptx::find(module.get(), "multiply");
  bny_emulator_add(emulator, {0, 0, 1, THREADS, 1, MEMORY_BYTES, false, ptx::bind(kernel, MEMORY_BYTES, arguments)});
  char why[256] = "";
  if (bny_emulator_run(emulator, why, sizeof why) && !with.is_product(what))
    snprintf(why, sizeof why, "another product");
  bny_emulator_free(emulator);
  return why;
}

/* Products of attention with latent keys: the scores, and the sum of values. */
TEST_LOOP(products_of_attention, 2) {
  const form forms[] = {{64, true, false, false, {false}, {false}, NONE},
                        {256, false, true, true, {false}, {true}, NONE}};
  std::string why = run(forms[_i], random_seed());
  ck_assert_msg(why.empty(), "%s", why.c_str());
}

static const char *const words[MISTAKES] = {"",
                                            "without a fence.proxy.async",
                                            "without a fence.proxy.async",
                                            "no wgmma.fence",
                                            "under way",
                                            "an accumulator is used before",
                                            "of matrix A is used before",
                                            "since the last wgmma.fence",
                                            "lanes come with different",
                                            "warps of a warpgroup come with different",
                                            "another product"};

TEST_LOOP(mistakes, MISTAKES) {
  form what = {64, true, _i == A_CHANGES || _i == A_AFTER_FENCE, false, {false}, {true}, static_cast<mistake>(_i)};
  std::string why = run(what, random_seed());
  ck_assert_msg(why.find(words[_i]) != std::string::npos && why.empty() == !_i, "mistake %d: %s", _i, why.c_str());
}

} // namespace

int main() { return world_main(suite_of("ptx_matrix", 60)); }
