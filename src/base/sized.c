/* SPDX-License-Identifier: Apache-2.0
 * Reads and writes callers' structs whose size may be that of an older or a newer version. */
#include "base/sized.h"

#include <stdbool.h>
#include <string.h>

#include "base/status.h"

#define SIZED(type, first_bytes) \
  { #type, first_bytes, sizeof(type) }
const bny_sized bny_sized_bootstrap = SIZED(banyan_bootstrap, 32);
const bny_sized bny_sized_comm_config = SIZED(banyan_comm_config, 40);
const bny_sized bny_sized_partial = SIZED(banyan_partial, 96);
const bny_sized bny_sized_combine_desc = SIZED(banyan_combine_desc, 56);
const bny_sized bny_sized_valid = SIZED(banyan_valid_rows, 56);
const bny_sized bny_sized_heads_desc = SIZED(banyan_heads_desc, 80);
const bny_sized bny_sized_allreduce_desc = SIZED(banyan_allreduce_desc, 72);
const bny_sized bny_sized_select_desc = SIZED(banyan_select_desc, 120);
const bny_sized bny_sized_attention_desc = SIZED(banyan_attention_desc, 392);
const bny_sized bny_sized_op_info = SIZED(banyan_op_info, 72);
const bny_sized bny_sized_queries = SIZED(banyan_queries, 64);
const bny_sized bny_sized_ownership = SIZED(banyan_ownership, 40);
#undef SIZED

/* Several times the size of any struct: if `size` is larger, it was never set and is invalid. */
enum { SIZE_LIMIT = 1024 };

static banyan_status check_size(const bny_sized *type, const char *what, size_t size) {
  const bool is_whole = size % sizeof(size_t) == 0; /* no version ends in the middle of a field */
  if (is_whole && size >= type->first_bytes && size <= SIZE_LIMIT) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_ARGUMENT, "%s.size is %zu; set it to sizeof(%s), here %zu", what, size, type->name,
                  type->bytes);
}

static bool is_zero(const char *bytes, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (bytes[i] != 0) return false;
  return true;
}

const void *bny_sized_convert(const bny_sized *type, const char *what, const void *given, void *room) {
  size_t size = *(const size_t *)given;
  if (check_size(type, what, size) != BANYAN_OK) return NULL;
  if (size > type->bytes && !is_zero((const char *)given + type->bytes, size - type->bytes)) {
    bny_fail(BANYAN_ERR_ARGUMENT,
             "%s has %zu bytes, and %s has %zu in banyan %s: the caller was built for a newer version, and uses a "
             "field that is not in this one",
             what, size, type->name, type->bytes, banyan_version());
    return NULL;
  }
  memset(room, 0, type->bytes);
  memcpy(room, given, size < type->bytes ? size : type->bytes);
  memcpy(room, &type->bytes, sizeof type->bytes);
  return room;
}

banyan_status bny_sized_write(const bny_sized *type, const char *what, const void *made, void *out) {
  size_t size = *(const size_t *)out, known = size < type->bytes ? size : type->bytes;
  banyan_status status = check_size(type, what, size);
  if (status != BANYAN_OK) return status;
  memset(out, 0, size);
  memcpy(out, made, known);
  memcpy(out, &size, sizeof size);
  return BANYAN_OK;
}
