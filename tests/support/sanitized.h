/* SPDX-License-Identifier: Apache-2.0
 * Detects builds with ASan or TSan, where memory use and times differ. */
#pragma once

#ifndef __has_feature
#define __has_feature(feature) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || __has_feature(address_sanitizer) || \
    __has_feature(thread_sanitizer)
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };
#endif

/* Returns true for two of three cases in a build with sanitizers, which takes five times as long. */
static inline int sanitizer_leaves_out(int i) { return IS_SANITIZED && i % 3 != i / 9 % 3; }
