/* SPDX-License-Identifier: Apache-2.0
 * Makes texts of others printable. Tools that link no internal function of the library use this too. */
#pragma once

#include <stddef.h>
#include <string.h>

/* Returns the bytes of the character of UTF-8 at the beginning of the text; 0: it is none, or a control character. */
static inline size_t bny_character_bytes(const unsigned char *text) {
  if (*text < 0x80) return *text >= ' ' && *text != 0x7f;
  size_t bytes = *text >= 0xf0 && *text < 0xf5   ? 4
                 : *text >= 0xe0 && *text < 0xf0 ? 3
                 : *text >= 0xc2 && *text < 0xe0 ? 2
                                                 : 0;
  for (size_t i = 1; i < bytes; i++)
    if (text[i] < 0x80 || text[i] > 0xbf) return 0;
  return *text == 0xc2 && text[1] < 0xa0 ? 0 : bytes; /* these are control characters of eight bits */
}

/* Replaces what is no printable character of UTF-8 by '?', but for characters that are `kept`. Names, paths and texts
 * of other processes, peers, files and the environment reach a terminal only through this: errors and log lines do. */
static inline void bny_printable(char *text, const char *kept) {
  while (*text) {
    size_t bytes = bny_character_bytes((const unsigned char *)text);
    if (bytes == 0 && !strchr(kept, *text)) *text = '?';
    text += bytes ? bytes : 1;
  }
}
