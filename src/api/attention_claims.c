/* SPDX-License-Identifier: Apache-2.0
 * BANYAN_CHECK=1: at the first call of a shape ranks compare which keys they claim. Two ranks that attend to the same
 * keys give a wrong result that no other check notices: lse is larger by up to log 2. */
#include "api/api.h"
#include "attention/queries.h"
#include "base/hash.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 16, ROWS = 64, BLOCKS = 1 << 16 };

/* The keys of a sequence on one rank. */
typedef struct claim {
  int64_t first; /* position of the first key; -1: the caller gives no positions */
  int32_t keys, block, stride;
  int32_t rows;  /* how many rows the hash covers; 0: it tells nothing */
  uint64_t hash; /* hash of the first rows of k */
} claim;

typedef struct claims {
  int32_t sequences, unused;
  claim of[SEQUENCES];
} claims;

/* Returns NULL if the key's page is none of the cache. */
static const char *row_of(const banyan_kv_part *part, int32_t sequence, int32_t key) {
  const int32_t *pages = bny_attention_pages(part, sequence);
  int64_t outer = sequence, inner = key;
  if (pages) {
    outer = pages[key / part->pages.keys], inner = key % part->pages.keys;
    if (outer < 0 || (part->pages.count > 0 && outer >= part->pages.count)) return NULL;
  }
  int64_t at = outer * part->k_batch_stride + inner * part->k_token_stride;
  return (const char *)part->k + at * (int64_t)bny_dtype_bytes(part->dtype);
}

/* Rows that are all equal, as of memory that was never written, tell nothing. */
static void hash_rows(const bny_attention_desc *desc, int32_t sequence, claim *made) {
  const banyan_kv_part *part = bny_attention_part(desc, 0);
  size_t bytes = part->rows == BANYAN_KV_ROWS_PLAIN ? (size_t)desc->head_dim * bny_dtype_bytes(part->dtype)
                                                    : (size_t)BNY_FLASHMLA_BYTES;
  int32_t keys = bny_attention_keys(part, sequence), rows = keys < ROWS ? keys : ROWS;
  bool differ = false;
  if (bny_attention_mask(desc, sequence) || rows < 2) return;
  const char *first = row_of(part, sequence, 0);
  for (int32_t key = 0; key < rows; key++) {
    const char *row = row_of(part, sequence, key);
    if (!row) return;
    differ = differ || memcmp(row, first, bytes) != 0;
    made->hash = bny_hash_add_bytes(made->hash, row, bytes);
  }
  if (differ) made->rows = rows;
}

static void claim_all(const bny_attention_desc *desc, claims *made) {
  const banyan_queries *queries = &desc->queries;
  bool has_positions =
      desc->tokens > 0 && (queries->query_start || queries->key_start) && queries->key_pattern_len == 0;
  memset(made, 0, sizeof *made);
  made->sequences = desc->batch < SEQUENCES ? desc->batch : SEQUENCES;
  for (int32_t b = 0; b < made->sequences; b++) {
    claim *own = &made->of[b];
    own->keys = bny_attention_keys(&desc->kv, b);
    own->first = -1;
    if (has_positions) {
      own->first = queries->key_start ? queries->key_start[b] : 0;
      own->block = queries->key_block ? queries->key_block : own->keys;
      own->stride = queries->key_block ? queries->key_stride : own->keys;
    } else if (own->keys > 0) {
      hash_rows(desc, b, own);
    }
  }
}

/* Returns how many keys of the claim have positions below `position`. */
static int64_t keys_below(const claim *of, int64_t position) {
  int64_t below = position - of->first;
  if (below <= 0) return 0;
  int64_t rest = below % of->stride;
  below = below / of->stride * of->block + (rest < of->block ? rest : of->block);
  return below < of->keys ? below : of->keys;
}

/* Returns a position that both claim, or -1. */
static int64_t common_position(const claim *a, const claim *b) {
  for (int64_t done = 0, block = 0; done < a->keys && block < BLOCKS; done += a->block, block++) {
    int64_t keys = a->keys - done < a->block ? a->keys - done : a->block, first = a->first + block * a->stride;
    if (keys_below(b, first + keys) == keys_below(b, first)) continue;
    while (keys_below(b, first + 1) == keys_below(b, first)) first++;
    return first;
  }
  return -1;
}

static banyan_status compare(const claims *own, const claims *other, int32_t rank, int32_t other_rank) {
  int32_t sequences = own->sequences < other->sequences ? own->sequences : other->sequences;
  for (int32_t b = 0; b < sequences; b++) {
    const claim *mine = &own->of[b], *its = &other->of[b];
    if (mine->keys == 0 || its->keys == 0) continue;
    bool both = mine->first >= 0 && its->first >= 0;
    int64_t position = both ? common_position(mine, its) : -1;
    if (position >= 0)
      return bny_fail(
          BANYAN_ERR_ARGUMENT,
          "ranks %d and %d both claim the key at position %lld of sequence %d, which would count twice: see "
          "queries.key_start, key_block, key_stride and seq_lens (BANYAN_CHECK)",
          rank, other_rank, (long long)position, b);
    if (mine->rows > 0 && mine->rows == its->rows && mine->hash == its->hash)
      return bny_fail(
          BANYAN_ERR_ARGUMENT,
          "ranks %d and %d begin sequence %d with the same %d keys, which would count twice: give each rank "
          "keys of its own (BANYAN_CHECK)",
          rank, other_rank, b, mine->rows);
  }
  return BANYAN_OK;
}

banyan_status bny_api_check_claims(banyan_comm *comm, const bny_attention_desc *desc) {
  claims own, *all = calloc((size_t)comm->nranks, sizeof *all);
  banyan_status status = all ? BANYAN_OK : bny_fail(BANYAN_ERR_MEMORY, "out of memory for claims");
  if (!all) return bny_op_reject(comm, status, true);
  claim_all(desc, &own);
  status = bny_op_gather(comm, &own, sizeof own, all);
  banyan_status found = BANYAN_OK;
  for (int32_t a = 0; a < comm->nranks && status == BANYAN_OK && found == BANYAN_OK; a++)
    for (int32_t b = a + 1; b < comm->nranks && found == BANYAN_OK; b++) found = compare(&all[a], &all[b], a, b);
  free(all);
  return status == BANYAN_OK ? found : status;
}
