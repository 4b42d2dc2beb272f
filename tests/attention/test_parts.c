/* SPDX-License-Identifier: Apache-2.0
 * Keys in several memories: invalid lists, and a mapped file larger than the process's memory limit. test_laws.c splits
 * keys of random problems into parts. */
#include <fcntl.h>
#include <sys/resource.h>

#include "merge_math.h"
#include "tests/api/attention_local.h"
#include "tests/support/sanitized.h"
#include "tests/support/world.h"

static void good(banyan_status status) {
  ck_assert_msg(status == BANYAN_OK, "%s: %s", banyan_status_string(status), banyan_last_error());
}

/* Merges a row of attention to one part into a row of all keys: o, with the lse before and after. */
static void add_row(double *o, double *lse, const float *part, float part_lse, int32_t dim) {
  if (isinf(part_lse)) return;
  double most = fmax(*lse, (double)part_lse), a = exp(*lse - most), b = exp((double)part_lse - most);
  for (int32_t i = 0; i < dim; i++) o[i] = (o[i] * a + (double)part[i] * b) / (a + b);
  *lse = most + log(a + b);
}

static void check_merged(const double *o, double lse, const float *got, float got_lse, int32_t dim, double largest) {
  ck_assert_msg(isinf(lse) ? (double)got_lse == lse : fabs((double)got_lse - lse) < 1e-5 * (1 + fabs(lse)),
                "lse %.9g, not %.9g", (double)got_lse, lse);
  for (int32_t i = 0; i < dim; i++)
    ck_assert_msg(fabs((double)got[i] - o[i]) <= 1e-5 * largest, "value %d is %.9g, not %.9g", i, (double)got[i], o[i]);
}

/* ---- invalid lists ----------------------------------------------------------------------------------------------- */

typedef struct two_parts {
  problem halves[2];
  banyan_kv_part parts[2];
  banyan_attention_desc desc;
  int32_t first[2], sum[1];
} two_parts;

static banyan_status attend_to_two(two_parts *t) {
  banyan_partial out;
  result r = result_make(&t->desc, &out);
  banyan_status status = banyan_attention(&t->desc, &out);
  result_free(&r);
  for (int p = 0; p < 2; p++) problem_free(&t->halves[p]);
  return status;
}

/* Fills it in place, because the description points into it. */
static void two_parts_make(two_parts *t) {
  static const int32_t lens[2] = {10, 7};
  *t = (two_parts){.first = {0, 10}, .sum = {17}};
  random_state = 5;
  for (int p = 0; p < 2; p++) {
    problem_make(&t->halves[p], 1, 2, 1, 16, 0, BANYAN_F32, p ? BANYAN_F16 : BANYAN_F32, &lens[p], 1);
    t->parts[p] = t->halves[p].desc.kv, t->parts[p].key_first = &t->first[p];
  }
  t->desc = t->halves[0].desc;
  attention_clear_keys(&t->desc);
  t->desc.parts = t->parts, t->desc.part_count = 2, t->desc.kv.seq_lens = t->sum;
}

/* The statements spoil `t`, and attention fails with this text. */
#define REJECTED(status, text, ...)                                                            \
  do {                                                                                         \
    two_parts t;                                                                               \
    two_parts_make(&t);                                                                        \
    __VA_ARGS__;                                                                               \
    ck_assert_int_eq(attend_to_two(&t), status);                                               \
    ck_assert_msg(strstr(banyan_last_error(), text), "%s, not %s", banyan_last_error(), text); \
  } while (0)

TEST(lists_that_are_wrong_are_rejected) {
  REJECTED(BANYAN_ERR_ARGUMENT, "parts[1]: kv_dtype is 0", t.parts[1].dtype = (banyan_dtype)0);
  REJECTED(BANYAN_ERR_ARGUMENT, "parts[1].key_first[0] is 9, which overlaps: the parts before end at key 10",
           t.first[1] = 9);
  REJECTED(BANYAN_ERR_ARGUMENT, "parts[1].key_first[0] is 11, which leaves a gap", t.first[1] = 11);
  REJECTED(BANYAN_ERR_ARGUMENT, "parts[0].key_first[0] is 7, which leaves a gap", t.first[0] = 7, t.first[1] = 0);
  REJECTED(BANYAN_ERR_ARGUMENT, "seq_lens[0] is 16, and the parts have 17 keys", t.sum[0] = 16);
  REJECTED(BANYAN_ERR_ARGUMENT, "part_count is 0, must be 1 to 8", t.desc.part_count = 0);
  REJECTED(BANYAN_ERR_ARGUMENT, "part_count is 9, must be 1 to 8", t.desc.part_count = 9);
  REJECTED(BANYAN_ERR_ARGUMENT, "parts[1]: k is NULL", t.parts[1].k = NULL);
  REJECTED(BANYAN_ERR_ARGUMENT, "k is set next to parts", t.desc.kv.k = t.parts[0].k);
  REJECTED(BANYAN_ERR_ARGUMENT, "v_token_stride is set next to parts", t.desc.kv.v_token_stride = 16);
  REJECTED(BANYAN_ERR_ARGUMENT, "kv_dtype is set next to parts", t.desc.kv.dtype = BANYAN_F16);
  REJECTED(BANYAN_ERR_ARGUMENT, "parts[0]: read_ahead_bytes is -1", t.parts[0].read_ahead_bytes = -1);
  REJECTED(BANYAN_ERR_ARGUMENT, "parts[0]: seq_lens is NULL", t.parts[0].seq_lens = NULL);
  REJECTED(BANYAN_ERR_UNSUPPORTED, "prune is set next to parts", t.desc.prune.epsilon = 0.5f);
  REJECTED(BANYAN_ERR_ARGUMENT, "parts[1]: k_token_stride is 1", t.parts[1].k_token_stride = 1);
  two_parts t;
  two_parts_make(&t);
  good(attend_to_two(&t));
}

/* ---- a mapped file ----------------------------------------------------------------------------------------------- */

/* Each key has the rows [kv_heads][k, then v], as an engine writes them token by token. */
enum { DIM = 64, KV_HEADS = 2, HEADS = 8, ROW = 2 * DIM, KEY = KV_HEADS * ROW, FILE_MIB = 96, CHUNK = 4096 };
enum { KEYS = FILE_MIB * (1 << 20) / (2 * KEY) };

static int file_make(void) {
  char path[] = "parts.XXXXXX";
  int file = mkstemp(path);
  ck_assert_int_ge(file, 0);
  ck_assert_int_eq(unlink(path), 0);
  uint16_t *chunk = malloc((size_t)CHUNK * KEY * 2);
  for (int32_t i = 0; i < CHUNK * KEY; i++) chunk[i] = bny_f16_of_float((float)random_normal());
  for (int32_t first = 0; first < KEYS; first += CHUNK) {
    for (int32_t t = 0; t < CHUNK; t++) /* the keys of each chunk have another scale */
      chunk[t * KEY] = bny_f16_of_float((float)((first / CHUNK) % 17 - 8));
    ck_assert_int_eq(write(file, chunk, (size_t)CHUNK * KEY * 2), CHUNK * KEY * 2);
  }
  free(chunk);
  ck_assert_int_eq(fsync(file), 0);
  return file;
}

static banyan_attention_desc file_desc(const float *q, const uint16_t *k, const int32_t *keys) {
  banyan_attention_desc desc =
      attention_desc_of(1, HEADS, KV_HEADS, 1, DIM, DIM, BANYAN_F32, BANYAN_F16, q, k, k ? k + DIM : NULL, keys);
  desc.kv.k_head_stride = desc.kv.v_head_stride = ROW, desc.kv.k_token_stride = desc.kv.v_token_stride = KEY;
  return desc;
}

/* Computes attention over the file from chunks that it reads, and merges in double. */
static void read_through(int file, const float *q, double (*o)[DIM], double *lse) {
  static const int32_t keys = CHUNK;
  uint16_t *chunk = malloc((size_t)CHUNK * KEY * 2);
  banyan_attention_desc desc = file_desc(q, chunk, &keys);
  banyan_partial out;
  result r = result_make(&desc, &out);
  for (int32_t h = 0; h < HEADS; h++) lse[h] = -INFINITY;
  for (off_t first = 0; first < KEYS; first += CHUNK) {
    ck_assert_int_eq(pread(file, chunk, (size_t)CHUNK * KEY * 2, first * KEY * 2), CHUNK * KEY * 2);
    good(banyan_attention(&desc, &out));
    for (int32_t h = 0; h < HEADS; h++) add_row(o[h], &lse[h], r.values + h * DIM, r.lse[h], DIM);
  }
  result_free(&r);
  free(chunk);
}

/* Limits the process to this much additional memory. */
static void limit_memory(size_t more) {
  char line[256];
  size_t kib = 0;
  FILE *status = fopen("/proc/self/status", "r");
  ck_assert_ptr_nonnull(status);
  while (fgets(line, sizeof line, status)) sscanf(line, "VmData: %zu", &kib);
  fclose(status);
  struct rlimit limit = {kib * 1024 + more, kib * 1024 + more};
  ck_assert_int_eq(setrlimit(RLIMIT_DATA, &limit), 0);
}

static size_t resident_bytes(void *map, size_t bytes) {
  size_t pages = bytes / 4096, resident = 0;
  unsigned char *in = malloc(pages);
  ck_assert_int_eq(mincore(map, bytes, in), 0);
  for (size_t i = 0; i < pages; i++) resident += in[i] & 1;
  free(in);
  return resident * 4096;
}

/* A load beyond the end of a file would kill the process. */
TEST(a_file_that_was_cut_off_is_an_error) {
  static const float q[HEADS * DIM];
  const int32_t keys[2] = {CHUNK, 1}, sum = CHUNK + 1;
  const size_t bytes = (size_t)CHUNK * KEY * 2;
  char path[] = "parts.XXXXXX";
  int file = mkstemp(path);
  ck_assert_int_ge(file, 0);
  ck_assert_int_eq(unlink(path), 0);
  ck_assert_int_eq(ftruncate(file, (off_t)bytes), 0);
  void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
  ck_assert_ptr_ne(map, MAP_FAILED);
  static const uint16_t recent[KEY];
  banyan_attention_desc desc = file_desc(q, NULL, &sum);
  banyan_kv_part parts[2] = {file_desc(NULL, map, &keys[0]).kv, file_desc(NULL, recent, &keys[1]).kv};
  attention_clear_keys(&desc), desc.parts = parts, desc.part_count = 2;
  parts[0].read_ahead_bytes = 1 << 20;
  banyan_partial out;
  result r = result_make(&desc, &out);
  good(banyan_attention(&desc, &out));
  ck_assert_int_eq(ftruncate(file, (off_t)bytes * 3 / 4), 0);
  if (madvise(map, 4096, 22) == 0) { /* MADV_POPULATE_READ, which older systems lack */
    ASSERT_FAILS(banyan_attention(&desc, &out), BANYAN_ERR_SYSTEM,
                 "keys 2048 to 4095 of sequence 0 of parts[0] cannot be read");
    /* Keys of half the bytes are still there, but not their scales. */
    parts[0].dtype = BANYAN_E4M3;
    parts[0].scales.k = parts[0].scales.v = (const float *)map + bytes / 4 - CHUNK;
    parts[0].scales.token_stride = 1;
    ck_assert_int_eq(banyan_attention(&desc, &out), BANYAN_ERR_SYSTEM);
  }
  result_free(&r);
  munmap(map, bytes);
  close(file);
}

/* Memory that may not be read is an error of all ranks, which names the part, and not the end of the process. */
TEST_RANKS(unreadable_memory_is_an_error_of_all_ranks, 1, .nranks = 3) {
  static const float q[HEADS * DIM];
  const int32_t keys = CHUNK;
  const size_t bytes = (size_t)CHUNK * KEY * 2;
  void *map = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(map, MAP_FAILED);
  bool is_known = madvise(map, 4096, 22) == 0;
  if (self->rank == 1 && is_known) ck_assert_int_eq(mprotect((char *)map + bytes / 2, 4096, PROT_NONE), 0);
  banyan_attention_desc desc = file_desc(q, NULL, &keys);
  banyan_kv_part part = file_desc(NULL, map, &keys).kv;
  attention_clear_keys(&desc), desc.parts = &part, desc.part_count = 1, part.read_ahead_bytes = 1 << 20;
  banyan_combine_desc combine = BANYAN_COMBINE_DESC_INIT;
  combine.tokens = 1, combine.heads = HEADS, combine.value_dim = DIM;
  banyan_partial out;
  result r = result_make(&desc, &out);
  banyan_status status = banyan_attention_combine(self->comm, &desc, &combine, &out);
  if (is_known) {
    world_check(self, status == (self->rank == 1 ? BANYAN_ERR_SYSTEM : BANYAN_ERR_PEER), "status %d", (int)status);
    world_check(self, strstr(banyan_last_error(), "keys 2048 to 4095 of sequence 0 of parts[0] cannot be read") != NULL,
                "%s", banyan_last_error());
  } else {
    world_ok(self, status, "attention");
  }
  result_free(&r);
  munmap(map, bytes);
}

TEST(a_file_larger_than_memory) {
  static float q[HEADS * DIM];
  static double o[HEADS][DIM], lse[HEADS];
  const int32_t keys[2] = {KEYS - 1000, 1000}, sum = KEYS;
  const size_t bytes = (size_t)FILE_MIB << 20;
  random_state = 9;
  for (int i = 0; i < HEADS * DIM; i++) q[i] = (float)random_normal();
  int file = file_make();
  void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
  ck_assert_ptr_ne(map, MAP_FAILED);
  uint16_t *recent = malloc(1000 * KEY * 2);
  ck_assert_int_eq(pread(file, recent, 1000 * KEY * 2, (off_t)(KEYS - 1000) * KEY * 2), 1000 * KEY * 2);
  if (!IS_SANITIZED) {
    limit_memory((size_t)FILE_MIB << 18); /* a quarter of the file */
    void *whole = malloc(bytes);
    ck_assert_msg(whole == NULL, "there is no limit");
  }
  read_through(file, q, o, lse);
  banyan_attention_desc desc = file_desc(q, NULL, &sum);
  banyan_kv_part parts[2] = {file_desc(NULL, map, &keys[0]).kv, file_desc(NULL, recent, &keys[1]).kv};
  attention_clear_keys(&desc), desc.parts = parts, desc.part_count = 2;
  parts[0].read_ahead_bytes = 8 << 20;
  banyan_partial out;
  result r = result_make(&desc, &out);
  good(banyan_attention(&desc, &out));
  for (int32_t h = 0; h < HEADS; h++) check_merged(o[h], lse[h], r.values + h * DIM, r.lse[h], DIM, 1);

  /* A window reads only the part of the file that it needs, if the file can be dropped from memory. */
  const int32_t at = KEYS - 1;
  banyan_queries queries = BANYAN_QUERIES_INIT;
  queries.tokens = 1, queries.query_start = &at, queries.window = KEYS / 8;
  desc.queries = &queries;
  ck_assert_int_eq(madvise(map, bytes, MADV_DONTNEED), 0);
  ck_assert_int_eq(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED), 0);
  bool was_dropped = resident_bytes(map, bytes) < bytes / 16;
  good(banyan_attention(&desc, &out));
  if (was_dropped)
    ck_assert_uint_lt(resident_bytes(map, bytes), bytes / 2);
  else
    printf("skipped: the file stays in memory, so what a window reads of it cannot be seen\n");
  result_free(&r);
  free(recent);
  munmap(map, bytes);
  close(file);
}

int main(void) { return suite_main(suite_of("parts of keys", 60)); }
