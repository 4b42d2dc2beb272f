/* SPDX-License-Identifier: Apache-2.0
 * A document of 100 K tokens with memory for 20 K of its keys. When memory is full, a page moves to a mapped file, and
 * each step attends to both in place. The page that all queries match stays in memory. Keys are random numbers. */
#include <banyan.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { DIM = 64, HEADS = 4, KEYS = 256 /* per page */, PAGE = KEYS * 2 * DIM /* keys, each with its value */ };
enum { PAGES = 400, ROOM = 80 /* pages in memory */, KEEP = 8, PASSAGE = 150 /* the page that queries match */ };

static float q[HEADS * DIM], o[ROOM * HEADS * DIM], lse[HEADS], own[ROOM * HEADS], *memory, *file;
static int32_t above[ROOM][2]; /* page number and slot of the pages in memory, in token order */
static uint64_t reads[ROOM];
static int32_t nabove, nbelow; /* pages in memory and in the file */

static void make_page(int32_t number, float *to) {
  for (uint32_t i = 0; i < PAGE; i++)
    to[i] = (float)((((uint32_t)number * PAGE + i) * 2654435769u) >> 8) / (1 << 23) - 1 +
            (number == PASSAGE && !(i & DIM) ? q[i % DIM] : 0);
}

static void attend(const banyan_attention_desc *desc, float *stats) {
  banyan_partial out;
  banyan_partial_init(&out, o, BANYAN_F32, stats, BANYAN_F32, HEADS, DIM);
  if (banyan_attention(desc, &out) == BANYAN_OK) return;
  fprintf(stderr, "%s\n", banyan_last_error()), exit(1);
}

/* Attends to all pages. Then counts a page in memory as read if a head gives it twice its share of the weight. */
static void step(void) {
  int32_t table[2][PAGES], lens[ROOM], keys[2] = {nbelow * KEYS, nabove * KEYS}, all = keys[0] + keys[1];
  for (int i = 0; i < PAGES; i++) table[0][i] = i, table[1][i] = i < nabove ? above[i][1] : 0, lens[i % ROOM] = KEYS;
  banyan_kv_part parts[2] = {BANYAN_KV_PART_INIT, BANYAN_KV_PART_INIT};
  banyan_attention_desc desc = BANYAN_ATTENTION_DESC_INIT;
  desc.batch = 1, desc.heads = HEADS, desc.kv_heads = 1, desc.head_dim = DIM, desc.q_dtype = BANYAN_F32;
  desc.q = q, desc.q_head_stride = DIM, desc.kv.seq_lens = &all, desc.parts = parts, desc.part_count = 2;
  for (int i = 0; i < 2; i++) {
    banyan_kv_part *part = &parts[i];
    part->dtype = BANYAN_F32, part->seq_lens = &keys[i], part->k = i ? memory : file, part->k_batch_stride = PAGE;
    part->v = (i ? memory : file) + DIM, part->v_batch_stride = PAGE, part->k_token_stride = 2 * DIM;
    part->v_token_stride = 2 * DIM, part->pages.table = table[i], part->pages.keys = KEYS;
  }
  attend(&desc, lse);
  desc.batch = nabove, desc.parts = NULL, desc.part_count = 0, desc.kv = parts[1]; /* one sequence per page */
  desc.kv.pages.table_stride = 1, desc.kv.seq_lens = lens, attend(&desc, own);
  for (int32_t i = 0; i < nabove * HEADS; i++)
    reads[i / HEADS] += expf(own[i] - lse[i % HEADS]) * (float)(nabove + nbelow) > 2;
}

int main(void) {
  size_t bytes = (size_t)PAGES * PAGE * sizeof(float), page_bytes = PAGE * sizeof(float);
  FILE *store = tmpfile();
  for (uint32_t i = 0; i < HEADS * DIM; i++) q[i] = (float)(i * 2654435769u >> 8) / (1 << 23) - 1;
  memory = (float *)malloc(ROOM * page_bytes);
  if (!store || !memory || posix_fallocate(fileno(store), 0, (off_t)bytes)) return puts("no room for the keys"), 1;
  file = (float *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(store), 0);
  if (file == MAP_FAILED) return 1;
  for (int32_t number = 0; number < PAGES; number++) {
    int64_t down = 0, slot = nabove;
    if (nabove == ROOM) {
      for (int32_t i = 1; i < ROOM - KEEP; i++) down = reads[i] < reads[down] ? i : down; /* the least read page */
      slot = above[down][1], nabove--;
      memcpy(file + (size_t)nbelow++ * PAGE, memory + (size_t)slot * PAGE, page_bytes);
      memmove(above + down, above + down + 1, (size_t)(nabove - down) * sizeof above[0]);
      memmove(reads + down, reads + down + 1, (size_t)(nabove - down) * sizeof reads[0]);
    }
    make_page(number, memory + (size_t)slot * PAGE);
    reads[nabove] = 0, above[nabove][0] = number, above[nabove++][1] = (int32_t)slot;
    if (number % 8 == 7) step();
  }
  int stays = 0;
  for (int32_t i = 0; i < nabove; i++) stays += above[i][0] == PASSAGE;
  printf("%d tokens: %d in memory, %d in the file, and the passage in %s\n", PAGES * KEYS, nabove * KEYS, nbelow * KEYS,
         stays ? "memory" : "the file");
  return !stays;
}
