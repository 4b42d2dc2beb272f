/* SPDX-License-Identifier: Apache-2.0
 * Inlining compiles the loops of attention once for each form of the cache and number of heads. With sanitizers that
 * takes minutes, so loops are functions there, which compute the same. */
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ATTENTION_SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ATTENTION_SANITIZED
#endif

#ifdef ATTENTION_SANITIZED
#define INLINE static inline
#define UNROLL
#define UNROLL2
#elif defined(__clang__)
#define INLINE static inline __attribute__((always_inline))
#define UNROLL
#define UNROLL2
#else
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define UNROLL2 _Pragma("GCC unroll 2")
#endif
