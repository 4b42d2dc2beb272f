/* SPDX-License-Identifier: Apache-2.0
 * Converts GUIDs of all notations to one form. */
#include "topo/model/guid.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static int digit_of(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : -1;
}

/* Reads 1 to 16 hexadecimal digits, with or without 0x. */
static bool number_read(const char *text, size_t bytes, uint64_t *number) {
  if (bytes > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
    text += 2;
    bytes -= 2;
  }
  uint64_t value = 0;
  if (bytes == 0 || bytes > 16) return false;
  for (size_t i = 0; i < bytes; i++) {
    if (digit_of(text[i]) < 0) return false;
    value = value << 4 | (uint64_t)digit_of(text[i]);
  }
  *number = value;
  return true;
}

/* Reads the last four groups of four digits. */
static bool groups_read(const char *text, size_t bytes, uint64_t *number) {
  enum { GROUPS_BYTES = 19 };
  uint64_t value = 0;
  if (bytes < GROUPS_BYTES) return false;
  text += bytes - GROUPS_BYTES;
  for (size_t i = 0; i < GROUPS_BYTES; i++) {
    int digit = digit_of(text[i]);
    if (i % 5 == 4 ? text[i] != ':' : digit < 0) return false;
    if (i % 5 != 4) value = value << 4 | (uint64_t)digit;
  }
  *number = value;
  return true;
}

static void number_write(uint64_t number, char guid[BNY_TOPO_GUID_BYTES]) {
  snprintf(guid, BNY_TOPO_GUID_BYTES, "%016" PRIx64, number);
}

bool bny_topo_guid_normalise(const char *text, size_t bytes, char guid[BNY_TOPO_GUID_BYTES]) {
  uint64_t number;
  bool read = number_read(text, bytes, &number) || groups_read(text, bytes, &number);
  if (!read || number == 0) return false;
  number_write(number, guid);
  return true;
}

/* Returns whether bytes 3 and 4 from the top are those that expand a MAC address to a GUID. */
static bool in_order(uint64_t number) {
  unsigned middle = (unsigned)(number >> 24) & 0xffff;
  return middle == 0x0300 || middle == 0xfffe;
}

bool bny_topo_guid_from_nccl(const char *text, char guid[BNY_TOPO_GUID_BYTES]) {
  uint64_t number;
  if (!number_read(text, strlen(text), &number) || number >> 32 == 0) return false;
  number_write(in_order(number) ? number : __builtin_bswap64(number), guid);
  return true;
}
