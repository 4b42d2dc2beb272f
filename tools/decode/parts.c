/* SPDX-License-Identifier: Apache-2.0
 * A cache in two parts: recent keys in memory, and older keys in a mapped file. */
#include "tools/decode/decode.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 20, READ_AHEAD_BYTES = 32 << 20 };

static int make_file(size_t bytes, tool_error *error) {
  const char *folder = getenv("TMPDIR");
  char path[4096];
  snprintf(path, sizeof path, "%s/banyan-decode.XXXXXX", folder != NULL ? folder : "/tmp");
  int file = mkstemp(path);
  if (file < 0 || unlink(path) != 0 || posix_fallocate(file, 0, (off_t)bytes) != 0) {
    tool_error_set(error, "%s: no file of %zu bytes for keys; TMPDIR names another folder", path, bytes);
    if (file >= 0) close(file);
    return -1;
  }
  return file;
}

/* Copies the last keys of each sequence. */
static void copy_recent(const decode_problem *problem, decode_parts *parts) {
  size_t row = (size_t)problem->head_dim * tool_dtype_bytes(problem->dtype);
  int64_t lines = (int64_t)problem->batch * problem->kv_heads;
  for (int64_t line = 0; line < lines * decode_problem_tensors(problem); line++) {
    int32_t b = (int32_t)(line % lines / problem->kv_heads);
    memcpy((char *)parts->recent + (size_t)line * (size_t)parts->capacity * row,
           (const char *)parts->shard.block +
               ((size_t)line * (size_t)parts->shard.capacity + (size_t)parts->lengths[0][b]) * row,
           (size_t)parts->lengths[1][b] * row);
  }
}

bool decode_parts_make(const decode_problem *problem, int32_t recent, decode_parts *parts, tool_error *error) {
  *parts = (decode_parts){.file = -1, .capacity = recent < problem->tokens ? recent : problem->tokens};
  decode_shard *shard = &parts->shard;
  if (!decode_shard_size(problem, 0, 1, shard, error)) return false;
  parts->file = make_file(shard->bytes, error);
  if (parts->file < 0) return false;
  shard->block = mmap(NULL, shard->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, parts->file, 0);
  if (shard->block == MAP_FAILED) {
    shard->block = NULL;
    return tool_error_set(error, "a file of %zu bytes cannot be mapped", shard->bytes);
  }
  for (int i = 0; i < 2; i++) parts->lengths[i] = tool_new((size_t)problem->batch, sizeof(int32_t));
  parts->buffer = tool_take(READ_BYTES);
  parts->recent = tool_take(shard->bytes / (size_t)problem->tokens * (size_t)parts->capacity);
  if (!decode_shard_fill(problem, 0, 0, 1, shard, error)) return false;
  for (int32_t b = 0; b < problem->batch; b++) {
    parts->lengths[1][b] = problem->lengths[b] < parts->capacity ? problem->lengths[b] : parts->capacity;
    parts->lengths[0][b] = problem->lengths[b] - parts->lengths[1][b];
  }
  copy_recent(problem, parts);
  return true;
}

void decode_parts_describe(const decode_problem *problem, decode_parts *parts, banyan_attention_desc *desc) {
  int64_t head = (int64_t)problem->head_dim * parts->capacity;
  size_t bytes = parts->shard.bytes / (size_t)problem->tokens * (size_t)parts->capacity;
  for (int i = 0; i < 2; i++) {
    parts->list[i] = desc->kv;
    parts->list[i].seq_lens = parts->lengths[i];
  }
  banyan_kv_part *recent = &parts->list[1];
  parts->list[0].read_ahead_bytes = READ_AHEAD_BYTES;
  recent->k = parts->recent;
  recent->v = (const char *)parts->recent + (decode_problem_tensors(problem) == 1 ? 0 : bytes / 2);
  recent->k_head_stride = recent->v_head_stride = head;
  recent->k_batch_stride = recent->v_batch_stride = head * problem->kv_heads;
  desc->kv = (banyan_kv_part){.seq_lens = desc->kv.seq_lens};
  desc->parts = parts->list;
  desc->part_count = 2;
}

bool decode_parts_drop(const decode_parts *parts, tool_error *error) {
  const decode_shard *shard = &parts->shard;
  return (fdatasync(parts->file) == 0 && madvise(shard->block, shard->bytes, MADV_DONTNEED) == 0 &&
          posix_fadvise(parts->file, 0, 0, POSIX_FADV_DONTNEED) == 0) ||
         tool_error_set(error, "the file of keys cannot be dropped from memory");
}

bool decode_parts_read_us(const decode_parts *parts, double *us, tool_error *error) {
  char *buffer = parts->buffer;
  int64_t since = tool_now_ns();
  size_t done = 0;
  for (ssize_t count = 1; count > 0 && done < parts->shard.bytes; done += (size_t)count) {
    count = pread(parts->file, buffer, READ_BYTES, (off_t)done);
    if (count <= 0) break;
  }
  *us = (double)(tool_now_ns() - since) * 1e-3;
  return done == parts->shard.bytes || tool_error_set(error, "the file of keys cannot be read");
}

void decode_parts_free(decode_parts *parts) {
  if (parts->shard.block != NULL) munmap(parts->shard.block, parts->shard.bytes);
  if (parts->file >= 0) close(parts->file);
}
