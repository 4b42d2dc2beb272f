/* SPDX-License-Identifier: Apache-2.0
 * The arithmetic of PTX. Each line has one instruction, the types of its operands, and its result from a, b, c. */
#include <cmath>
#include <limits>
#include <type_traits>

#include "merge_math.h"
#include "tests/ptx/ptx.hh"

namespace ptx {

namespace {

using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using f32 = float;
using f64 = double;

template <class T> constexpr char letter = std::is_same_v<T, bool> ? 'p' : static_cast<char>('0' + sizeof(T));
template <class... T> constexpr char signature[] = {letter<T>..., 0};

/* Returns the minimum. Only two NaN give NaN, and -0 is less than +0. */
template <class T> T minimum(T a, T b) {
  return std::isnan(a) ? b : std::isnan(b) ? a : a < b || (a == b && std::signbit(a)) ? a : b;
}
template <class T> T maximum(T a, T b) {
  return std::isnan(a) ? b : std::isnan(b) ? a : a > b || (a == b && !std::signbit(a)) ? a : b;
}
template <class T> bool ordered(T a, T b) { return !std::isnan(a) && !std::isnan(b); }

/* Shifts left. Larger amounts than the width have the effect of the width. */
template <class T> T shift_left(T a, u32 b) {
  return b >= 8 * sizeof(T) ? T(0) : static_cast<T>(static_cast<u64>(a) << b);
}
template <class T> T shift_right(T a, u32 b) {
  if (b >= 8 * sizeof(T)) return a < T(0) ? static_cast<T>(-1) : T(0);
  return static_cast<T>(a >> b);
}

/* Returns a value whose lowest `length` bits are set, or all bits if `length` is larger. */
template <class T> T ones(u32 length) { return static_cast<T>(shift_left<T>(1, length) - 1); }
template <class T> T insert(T a, T b, u32 position, u32 length) {
  T mask = shift_left<T>(ones<T>(length & 255), position & 255);
  return static_cast<T>((b & ~mask) | (shift_left<T>(a, position & 255) & mask));
}
template <class T> T extract(T a, u32 position, u32 length) {
  return shift_right<T>(a, position & 255) & ones<T>(length & 255);
}

u32 permute(u32 a, u32 b, u32 selector) {
  u64 from = a | static_cast<u64>(b) << 32;
  u32 d = 0;
  for (u32 i = 0; i < 4; i++) {
    u32 choice = selector >> 4 * i & 15, byte = from >> 8 * (choice & 7) & 255;
    if (choice & 8) byte = byte & 128 ? 255 : 0;
    d |= byte << 8 * i;
  }
  return d;
}

u32 reverse(u32 a) {
  u32 d = 0;
  for (u32 i = 0; i < 32; i++) d |= (a >> i & 1) << (31 - i);
  return d;
}

u32 logic(u32 a, u32 b, u32 c, u32 table) {
  u32 d = 0;
  for (u32 i = 0; i < 32; i++) d |= (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i;
  return d;
}

/* Converts a byte of E4M3 to f16, exactly. */
u32 half_of_e4m3(u32 byte) {
  const int exponent = static_cast<int>(byte >> 3 & 15), mantissa = static_cast<int>(byte & 7);
  const f32 size = exponent ? std::ldexp(8.0f + static_cast<f32>(mantissa), exponent - 10)
                            : std::ldexp(static_cast<f32>(mantissa), -9);
  const u32 half = (byte & 0x7f) == 0x7f ? 0x7e00u : bny_f16_of_float(size);
  return half | (byte & 0x80) << 8;
}

/* Converts with saturation, because integers have no infinity. NaN becomes 0. */
template <class T> T whole(f64 a) {
  if (std::isnan(a)) return 0;
  if (a <= static_cast<f64>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (a >= static_cast<f64>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return static_cast<T>(a);
}

f32 flushed(f32 a) { return std::fpclassify(a) == FP_SUBNORMAL ? std::copysign(0.0f, a) : a; }

/* Returns a quotient. A division by 0 is undefined in PTX and gives all ones here. */
template <class T> T quotient(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  return b == static_cast<T>(-1) && std::is_signed_v<T> ? static_cast<T>(-static_cast<u64>(a)) : static_cast<T>(a / b);
}
template <class T> T remainder(T a, T b) { return static_cast<T>(a - static_cast<u64>(quotient(a, b)) * b); }

} // namespace

/* clang-format off */
#define ONE(name, D, A, value)               \
  {name, signature<D, A>, DOES {             \
     A a = get<A>(self, i, 1);               \
     put<D>(self, i, 0, D(value));           \
     return i + 1;                           \
   }, false},
#define TWO(name, D, A, B, value)                               \
  {name, signature<D, A, B>, DOES {                             \
     A a = get<A>(self, i, 1);                                  \
     B b = get<B>(self, i, 2);                                  \
     put<D>(self, i, 0, D(value));                              \
     return i + 1;                                              \
   }, false},
#define THREE(name, D, A, B, C, value)                          \
  {name, signature<D, A, B, C>, DOES {                          \
     A a = get<A>(self, i, 1);                                  \
     B b = get<B>(self, i, 2);                                  \
     C c = get<C>(self, i, 3);                                  \
     put<D>(self, i, 0, D(value));                              \
     return i + 1;                                              \
   }, false},
#define SAME(name, T, value) TWO(name, T, T, T, value)
#define BITS(op, value)                                                                       \
  SAME(op ".b16", u16, value) SAME(op ".b32", u32, value) SAME(op ".b64", u64, value) SAME(op ".pred", bool, value)
#define WHOLE(op, of16, of32, of64, value) SAME(op of16, u16, value) SAME(op of32, u32, value) SAME(op of64, u64, value)
#define SIGNS(op, value)                                                                      \
  SAME(op ".s32", s32, value) SAME(op ".u32", u32, value) SAME(op ".s64", s64, value) SAME(op ".u64", u64, value)

const row arithmetic_rows[] = {
  WHOLE("add", ".s16", ".s32", ".s64", a + b) SAME("add.u32", u32, a + b) SAME("add.u64", u64, a + b)
  WHOLE("sub", ".s16", ".s32", ".s64", a - b) SAME("sub.u32", u32, a - b) SAME("sub.u64", u64, a - b)
  WHOLE("mul.lo", ".s16", ".s32", ".s64", static_cast<u64>(a) * b) SAME("mul.lo.u32", u32, a * b)
  TWO("mul.wide.s32", s64, s32, s32, static_cast<s64>(a) * b)
  TWO("mul.wide.u32", u64, u32, u32, static_cast<u64>(a) * b)
  TWO("mul.wide.u16", u32, u16, u16, static_cast<u32>(a) * b)
  TWO("mul.wide.s16", s32, s16, s16, static_cast<s32>(a) * b)
  SAME("mul.hi.s32", s32, (static_cast<s64>(a) * b) >> 32)
  SAME("mul.hi.u32", u32, (static_cast<u64>(a) * b) >> 32)
  SAME("mul.hi.u16", u16, (static_cast<u32>(a) * b) >> 16)
  SAME("mul.hi.u64", u64, (static_cast<unsigned __int128>(a) * b) >> 64)
  THREE("mad.lo.s32", u32, u32, u32, u32, a * b + c)
  THREE("mad.lo.s64", u64, u64, u64, u64, a * b + c)
  THREE("mad.wide.s32", s64, s32, s32, s64, static_cast<u64>(static_cast<s64>(a) * b) + static_cast<u64>(c))
  THREE("mad.wide.u32", u64, u32, u32, u64, static_cast<u64>(a) * b + c)
  THREE("dp2a.lo.u32.u32", u32, u32, u32, u32, c + (a & 0xffff) * (b & 0xff) + (a >> 16) * (b >> 8 & 0xff))
  SIGNS("div", quotient(a, b)) SIGNS("rem", remainder(a, b)) SIGNS("min", a < b ? a : b) SIGNS("max", a > b ? a : b)
  ONE("neg.s32", u32, u32, -a) ONE("neg.s64", u64, u64, -a) ONE("abs.s32", s32, s32, a < 0 ? -static_cast<u32>(a) : a)
  BITS("and", a & b) BITS("or", a | b) BITS("xor", a ^ b)
  ONE("not.b16", u16, u16, ~a) ONE("not.b32", u32, u32, ~a) ONE("not.b64", u64, u64, ~a) ONE("not.pred", bool, bool, !a)
  TWO("shl.b16", u16, u16, u32, shift_left(a, b)) TWO("shl.b32", u32, u32, u32, shift_left(a, b))
  TWO("shl.b64", u64, u64, u32, shift_left(a, b))
  TWO("shr.u16", u16, u16, u32, shift_right(a, b)) TWO("shr.u32", u32, u32, u32, shift_right(a, b))
  TWO("shr.b32", u32, u32, u32, shift_right(a, b)) TWO("shr.u64", u64, u64, u32, shift_right(a, b))
  TWO("shr.s16", s16, s16, u32, shift_right(a, b)) TWO("shr.s32", s32, s32, u32, shift_right(a, b))
  TWO("shr.s64", s64, s64, u32, shift_right(a, b))
  THREE("shf.l.wrap.b32", u32, u32, u32, u32, ((static_cast<u64>(b) << 32 | a) << (c & 31)) >> 32)
  THREE("shf.r.wrap.b32", u32, u32, u32, u32, (static_cast<u64>(b) << 32 | a) >> (c & 31))
  THREE("prmt.b32", u32, u32, u32, u32, permute(a, b, c))
  THREE("bfe.u32", u32, u32, u32, u32, extract(a, b, c)) THREE("bfe.u64", u64, u64, u32, u32, extract(a, b, c))
  ONE("brev.b32", u32, u32, reverse(a)) ONE("popc.b32", u32, u32, __builtin_popcount(a))
  ONE("popc.b64", u32, u64, __builtin_popcountll(a))
  ONE("clz.b32", u32, u32, a ? __builtin_clz(a) : 32)
  ONE("bfind.shiftamt.u32", u32, u32, a ? static_cast<u32>(__builtin_clz(a)) : UINT32_MAX)
  {"bfi.b32", "44444", DOES {
     put(self, i, 0, insert(get<u32>(self, i, 1), get<u32>(self, i, 2), get<u32>(self, i, 3), get<u32>(self, i, 4)));
     return i + 1;
   }, false},
  {"bfi.b64", "88844", DOES {
     put(self, i, 0, insert(get<u64>(self, i, 1), get<u64>(self, i, 2), get<u32>(self, i, 3), get<u32>(self, i, 4)));
     return i + 1;
   }, false},
  {"lop3.b32", "44444", DOES {
     put(self, i, 0, logic(get<u32>(self, i, 1), get<u32>(self, i, 2), get<u32>(self, i, 3), get<u32>(self, i, 4)));
     return i + 1;
   }, false}
   , SAME("add.f32", f32, a + b) SAME("add.rn.f32", f32, a + b) SAME("sub.f32", f32, a - b)
         SAME("sub.rn.f32", f32, a - b) SAME("mul.f32", f32, a *b) SAME("mul.rn.f32", f32, a *b)
             SAME("div.rn.f32", f32, a / b) ONE("rcp.rn.f32", f32, f32, 1 / a) SAME("add.f64", f64, a + b)
                 SAME("add.rn.f64", f64, a + b) SAME("sub.f64", f64, a - b) SAME("mul.f64", f64, a *b)
                     SAME("mul.rn.f64", f64, a *b) SAME("div.rn.f64", f64, a / b) THREE("fma.rn.f32", f32, f32, f32,
                                                                                        f32, std::fma(a, b, c))
                         THREE("fma.rn.f64", f64, f64, f64, f64, std::fma(a, b, c)) SAME("min.f32", f32, minimum(a, b))
                             SAME("max.f32", f32, maximum(a, b)) SAME("min.f64", f64, minimum(a, b))
                                 SAME("max.f64", f64, maximum(a, b)) ONE("abs.f32", f32, f32, std::fabs(a))
                                     ONE("abs.f64", f64, f64, std::fabs(a)) ONE("neg.f32", f32, f32, -a)
                                         ONE("neg.f64", f64, f64, -a) ONE("sqrt.rn.f32", f32, f32, std::sqrt(a))
                                             ONE("ex2.approx.ftz.f32", f32, f32, flushed(std::exp2(flushed(a))))
                                                 ONE("lg2.approx.ftz.f32", f32, f32, flushed(std::log2(flushed(a)))) {
     nullptr, nullptr, nullptr, false
   }
};

#define SELECT(type, T) THREE("selp." type, T, T, T, bool, c ? a : b)
#define COMPARE(type, T)                                                                                  \
  TWO("setp.eq." type, bool, T, T, a == b) TWO("setp.ne." type, bool, T, T, a != b)                       \
  TWO("setp.lt." type, bool, T, T, a < b) TWO("setp.le." type, bool, T, T, a <= b)                        \
  TWO("setp.gt." type, bool, T, T, a > b) TWO("setp.ge." type, bool, T, T, a >= b)
#define COMPARE_FLOATS(type, T)                                                                           \
  TWO("setp.eq." type, bool, T, T, a == b) TWO("setp.ne." type, bool, T, T, ordered(a, b) && a != b)      \
  TWO("setp.lt." type, bool, T, T, a < b) TWO("setp.le." type, bool, T, T, a <= b)                        \
  TWO("setp.gt." type, bool, T, T, a > b) TWO("setp.ge." type, bool, T, T, a >= b)                        \
  TWO("setp.equ." type, bool, T, T, !ordered(a, b) || a == b) TWO("setp.neu." type, bool, T, T, a != b)   \
  TWO("setp.ltu." type, bool, T, T, !(a >= b)) TWO("setp.leu." type, bool, T, T, !(a > b))                \
  TWO("setp.gtu." type, bool, T, T, !(a <= b)) TWO("setp.geu." type, bool, T, T, !(a < b))                \
  TWO("setp.num." type, bool, T, T, ordered(a, b)) TWO("setp.nan." type, bool, T, T, !ordered(a, b))

/* The rows of comparisons, selections and conversions. */
const row conversion_rows[] = {
    COMPARE("s16", s16) COMPARE("u16", u16) COMPARE("b16", u16) COMPARE("s32", s32) COMPARE("u32", u32) COMPARE(
        "b32", u32) COMPARE("s64", s64) COMPARE("u64", u64) COMPARE("b64", u64) COMPARE_FLOATS("f32", f32)
        COMPARE_FLOATS("f64", f64) SELECT("b16", u16) SELECT("u16", u16) SELECT("s16", u16) SELECT("b32", u32) SELECT(
            "u32", u32) SELECT("s32", u32) SELECT("f32", u32) SELECT("b64", u64) SELECT("u64", u64) SELECT("s64", u64)
            SELECT("f64", u64) ONE("cvt.u16.u32", u16, u32, a) ONE("cvt.u16.u64", u16, u64, a)
                ONE("cvt.u32.u16", u32, u16, a) ONE("cvt.u32.u64", u32, u64, a) ONE("cvt.u64.u16", u64, u16, a)
                    ONE("cvt.u64.u32", u64, u32, a) ONE("cvt.s32.s8", s32, s16, static_cast<int8_t>(a))
                    ONE("cvt.s32.s16", s32, s16, a) ONE("cvt.s64.s16", s64, s16, a) ONE(
                        "cvt.s64.s32", s64, s32, a) ONE("cvt.f64.f32", f64, f32, a) ONE("cvt.rn.f32.f64", f32, f64, a)
                        ONE("cvt.rn.f32.s32", f32, s32, a) ONE("cvt.rn.f32.u32", f32, u32, a)
                            ONE("cvt.rn.f32.s64", f32, s64, a) ONE("cvt.rn.f64.s32", f64, s32, a)
                                ONE("cvt.rn.f64.u32", f64, u32, a) ONE("cvt.rpi.f32.f32", f32, f32, std::ceil(a))
                                    ONE("cvt.rmi.f32.f32", f32, f32, std::floor(a))
                                        ONE("cvt.rzi.s32.f32", s32, f32, whole<s32>(std::trunc(a)))
                                            ONE("cvt.rzi.u32.f32", u32, f32, whole<u32>(std::trunc(a)))
                                                ONE("cvt.f32.f16", f32, u16, bny_float_of_f16(a))
                                                    ONE("cvt.f32.bf16", f32, u16, bny_float_of_bf16(a))
                                                        ONE("cvt.rn.f16.f32", u16, f32, bny_f16_of_float(a))
                                                            ONE("cvt.rn.bf16.f32", u16, f32, bny_bf16_of_float(a))
    ONE("cvt.rn.f64.s64", f64, s64, static_cast<f64>(a)) ONE("cvt.rzi.s64.f64", s64, f64, whole<s64>(std::trunc(a)))
        ONE("cvt.rzi.u32.f64", u32, f64, whole<u32>(std::trunc(a)))
    ONE("cvt.rn.f16x2.e4m3x2", u32, u16, half_of_e4m3(a & 0xff) | half_of_e4m3(a >> 8) << 16)
    /* The first operand is the upper half. */
    TWO("cvt.rn.f16x2.f32", u32, f32, f32, static_cast<u32>(bny_f16_of_float(a)) << 16 | bny_f16_of_float(b))
        TWO("cvt.rn.bf16x2.f32", u32, f32, f32,
            static_cast<u32>(bny_bf16_of_float(a)) << 16 | bny_bf16_of_float(b)){nullptr, nullptr, nullptr, false}};

/* clang-format on */

} // namespace ptx
