/* SPDX-License-Identifier: Apache-2.0
 * Random problems of attention: a function of a seed and of the features that they may have. Keys, queries and masks
 * are drawn from the seed alone. Where keys lie is drawn from another seed, so problems that differ only in strides,
 * pages, parts and their order have the same result. Memory that no key has is NaN. */
#pragma once

#include <sys/mman.h>

#include "attention/call.h"
#include "attention/queries.h"
#include "banyan.h"
#include "tests/support/attention_oracle.h"
#include "tests/support/generator.h"

enum {
  DRAWN_SEVERAL = 1, /* query tokens of a sequence */
  DRAWN_WINDOW = 2,
  DRAWN_TREE = 4,    /* queries see a tree of drafts */
  DRAWN_MASK = 8,    /* queries see the keys of a mask */
  DRAWN_STARTS = 16, /* keys begin at any position, and may be every other block of the sequence */
  DRAWN_CODES = 32,  /* eight-bit keys with scales */
  DRAWN_LATENT = 64, /* rows of FlashMLA */
  DRAWN_ROPE = 128,
  DRAWN_SINKS = 256,
  DRAWN_CAP = 512,
  DRAWN_NANS = 1 << 10,   /* some keys are NaN, and count as absent */
  DRAWN_HUGE = 1 << 11,   /* sums of values overflow */
  DRAWN_PEAKED = 1 << 12, /* groups of keys that are near a query or far from it, with larger values */
  DRAWN_LONG = 1 << 13,   /* more than 2048 keys */
  DRAWN_EDGES = 1 << 14,  /* lengths at the edges of blocks and segments, of few columns */
  DRAWN_MIXED = 1 << 15,  /* parts of different types */
  DRAWN_FEW = 1 << 16,    /* few heads and tokens */
  DRAWN_PAGES = 1 << 17,  /* this and those below: where keys lie */
  DRAWN_PARTS = 1 << 18,
  DRAWN_APART = 1 << 20,     /* each row of keys, values and scales has a page of memory of its own */
  DRAWN_BLOCKS = 1 << 21,    /* parts begin at multiples of 256 keys, and there are more of these */
  DRAWN_PROMPT = 1 << 22,    /* sequences have many rows, often of bf16 */
  DRAWN_FAR = 1 << 23,       /* queries, keys and values are near the largest floats or the least; logits are as ever */
  DRAWN_PAGED = 1 << 24,     /* all keys are in pages */
  DRAWN_TIGHT = 1 << 25,     /* rows of a head follow each other without gaps */
  DRAWN_JOINT = 1 << 26,     /* values are the first columns of keys */
  DRAWN_POSITIVE = 1 << 27,  /* values are not negative, so errors of truncated sums add up */
  DRAWN_FAR_PAGES = 1 << 28, /* two pages for each sequence, 3/4 2^30 elements apart in sparse memory */
  DRAWN_QUERIES = DRAWN_SEVERAL | DRAWN_WINDOW | DRAWN_TREE | DRAWN_MASK | DRAWN_STARTS,
  DRAWN_SHAPES = DRAWN_QUERIES | DRAWN_CODES | DRAWN_ROPE | DRAWN_SINKS | DRAWN_CAP,
  DRAWN_BATCH = 4,
  DRAWN_PARTS_MAX = 4,
  DRAWN_LINE = 4096
};

/* Memory that ends at an inaccessible page, so a read past the end of a row crashes. */
typedef struct guarded {
  char *map; /* NULL: the memory has no such page */
  size_t map_bytes;
  void *data;
} guarded;

typedef struct drawn {
  banyan_attention_desc desc;
  banyan_queries queries;
  banyan_kv_part parts[DRAWN_PARTS_MAX];       /* the only one is also desc.kv, unless it is a list of one */
  guarded q, rope, memory[DRAWN_PARTS_MAX][4]; /* rows of keys, of values, and their scales */
  int32_t *tables[DRAWN_PARTS_MAX], *firsts[DRAWN_PARTS_MAX], *lengths[DRAWN_PARTS_MAX];
  int32_t *lens, *loc, *start, *key_start; /* by sequence */
  int32_t page_keys;                       /* keys of every page; 0: drawn */
  int32_t features, count, longest;
  int32_t scale_stride; /* between heads; 0: all share a scale */
  bool scales_by_key;
  uint64_t *tree;
  uint8_t *mask;
  float *sinks;
  double q_size, k_size, v_size; /* powers of two */
  void *(*take)(size_t bytes);   /* where memory is from, which drawn_free() leaves; NULL: memory of its own */
} drawn;

extern uint64_t random_state; /* the next of the numbers below, which one thread draws */

static inline uint64_t random_bits(void) { return random_next(&random_state); }

static inline int32_t random_range(int32_t low, int32_t high) { /* bounds included */
  return low + (int32_t)(random_bits() % (uint64_t)(high - low + 1));
}

double random_normal(void);

guarded guarded_make(size_t bytes);

/* I8 codes count sixteenths; scales are of about that size. */
void store(void *base, int64_t index, banyan_dtype dtype, double value);
double load(const void *base, int64_t index, banyan_dtype dtype);
void fill(void *base, int64_t elements, banyan_dtype dtype, double size);

/* Makes a problem with the features `must`, and some of `may`. */
void drawn_make(drawn *p, uint64_t seed, uint64_t layout, int32_t must, int32_t may);

/* Makes a problem of these sizes without features, and with logits that are `q_size` times larger. If value_dim is 0,
 * it is not set. */
void drawn_plain(drawn *p, uint64_t seed, int32_t batch, int32_t heads, int32_t kv_heads, int32_t head_dim,
                 int32_t value_dim, banyan_dtype q_dtype, banyan_dtype kv_dtype, const int32_t *lens, double q_size);

/* The steps of these: memory for desc.batch sequences; queries; and keys, where and as p->features, p->lens and
 * p->longest have them. */
void drawn_begin(drawn *p);
void drawn_rows(drawn *p);
void drawn_keys(drawn *p, const banyan_dtype *dtypes, uint64_t layout, uint64_t data);

/* Makes `to` of some keys of `from`, which has no parts, and of some of its queries, with the same values. Keys lie as
 * to->features and `layout` have it, and to->page_keys. Its to->desc.batch sequences are those from `first` on, without
 * the first `skip` queries of each. */
void drawn_deal(const drawn *from, drawn *to, uint64_t layout, int32_t first, int32_t skip,
                bool (*owns)(const void *context, int32_t t), const void *context);
void drawn_free(drawn *p);

static inline bool drawn_has(const drawn *p, int32_t feature) { return (p->features & feature) == feature; }

/* Returns a row of a part, which has key `t` of the part: of keys, values, or their scales. */
char *drawn_row(const banyan_kv_part *kv, int which, int32_t b, int32_t h, int32_t t);
/* Returns a row of key `t` of the problem, which may have parts. */
char *drawn_row_of(const drawn *p, int which, int32_t b, int32_t h, int32_t t);
/* Returns the bytes of such a row; 0: there is none of its own. */
size_t drawn_row_bytes(const drawn *p, int which);
