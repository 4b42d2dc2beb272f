/* SPDX-License-Identifier: Apache-2.0
 * The decode problem: a KV cache from a file of tensors or from random values, with its queries and shards. */
#include "tools/decode/decode.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/float.h"

/* Tokens are read in batches of about this many elements. */
enum { PIECE_ELEMENTS = 1 << 16 };

/* Standard deviations of the random values. Logits have deviation 1.5, so that some keys have larger weights than
 * others. */
static const float query_deviation = 1.5f;

static void set_lengths(decode_problem *problem) {
  problem->lengths = tool_new((size_t)problem->batch, sizeof *problem->lengths);
  for (int32_t b = 0; b < problem->batch; b++) problem->lengths[b] = problem->tokens;
}

/* ---- from a file ------------------------------------------------------------------------------------------------- */

static const char tensor_letters[] = "qkv";

static const safetensor *find_tensor(const decode_problem *problem, int32_t layer_number, decode_tensor tensor) {
  char name[40];
  snprintf(name, sizeof name, "layers.%" PRId32 ".%c", layer_number, tensor_letters[tensor]);
  return safetensors_find(problem->file, name);
}

/* True if `name` is layers.L.q, with L written as find_tensor() writes it. */
static bool parse_query_name(const char *name, int32_t *layer_number) {
  const char *digits = name + strlen("layers.");
  if (strncmp(name, "layers.", strlen("layers.")) != 0 || !isdigit((unsigned char)*digits)) return false;
  char *end;
  errno = 0;
  long number = strtol(digits, &end, 10);
  if (errno != 0 || number > INT32_MAX || strcmp(end, ".q") != 0 || (digits[0] == '0' && end != digits + 1))
    return false;
  *layer_number = (int32_t)number;
  return true;
}

static int compare_numbers(const void *a, const void *b) {
  int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

static bool find_layers(decode_problem *problem, tool_error *error) {
  size_t count = problem->file->count;
  problem->layer_numbers = tool_new(count, sizeof *problem->layer_numbers);
  for (size_t i = 0; i < count; i++) {
    if (parse_query_name(problem->file->tensors[i].name, &problem->layer_numbers[problem->layers])) problem->layers++;
  }
  if (problem->layers == 0)
    return tool_error_set(error, "%s: no tensor layers.L.q, so there is nothing to decode", problem->file->path);
  qsort(problem->layer_numbers, (size_t)problem->layers, sizeof *problem->layer_numbers, compare_numbers);
  return true;
}

static bool check_tensor(const decode_problem *problem, int32_t layer_number, decode_tensor tensor, int32_t dims,
                         const int64_t *shape, tool_error *error) {
  const char *path = problem->file->path;
  char letter = tensor_letters[tensor];
  const safetensor *t = find_tensor(problem, layer_number, tensor);
  if (t == NULL) return tool_error_set(error, "%s: tensor layers.%d.%c is missing", path, layer_number, letter);
  if (!t->supported) {
    return tool_error_set(error, "%s: tensor %s: dtype %s is not one of F32, F16 and BF16", path, t->name,
                          t->dtype_name);
  }
  bool same = t->dims == dims;
  for (int32_t i = 0; same && i < dims; i++) same = t->shape[i] == shape[i];
  if (!same && dims == 3) {
    return tool_error_set(error, "%s: tensor %s: shape is not [%lld, %lld, %lld] as in the first layer", path, t->name,
                          (long long)shape[0], (long long)shape[1], (long long)shape[2]);
  }
  if (!same) {
    return tool_error_set(error,
                          "%s: tensor %s: shape is not [%lld, %lld, %lld, %lld] as q and the first layer's k say", path,
                          t->name, (long long)shape[0], (long long)shape[1], (long long)shape[2], (long long)shape[3]);
  }
  return true;
}

static bool check_shapes(decode_problem *problem, tool_error *error) {
  const char *path = problem->file->path;
  const safetensor *q = find_tensor(problem, problem->layer_numbers[0], DECODE_Q);
  const safetensor *k = find_tensor(problem, problem->layer_numbers[0], DECODE_K);
  if (k == NULL) return tool_error_set(error, "%s: tensor layers.%d.k is missing", path, problem->layer_numbers[0]);
  if (q->dims != 3 || k->dims != 4) {
    return tool_error_set(error, "%s: tensor %s: shape is not [batch, %s, head_dim]", path,
                          q->dims != 3 ? q->name : k->name, q->dims != 3 ? "heads" : "kv_heads, tokens");
  }
  const int64_t q_shape[3] = {q->shape[0], q->shape[1], q->shape[2]};
  const int64_t k_shape[4] = {q->shape[0], k->shape[1], k->shape[2], q->shape[2]};
  for (int i = 0; i < 4; i++) {
    if (k_shape[i] < 1 || k_shape[i] > INT32_MAX || q_shape[i % 3] < 1 || q_shape[i % 3] > INT32_MAX)
      return tool_error_set(error, "%s: tensors %s and %s: a size is 0 or too large", path, q->name, k->name);
  }
  if (q_shape[1] % k_shape[1] != 0) {
    return tool_error_set(error, "%s: %lld heads are not a multiple of %lld KV heads", path, (long long)q_shape[1],
                          (long long)k_shape[1]);
  }
  for (int32_t i = 0; i < problem->layers; i++) {
    if (!check_tensor(problem, problem->layer_numbers[i], DECODE_Q, 3, q_shape, error) ||
        !check_tensor(problem, problem->layer_numbers[i], DECODE_K, 4, k_shape, error) ||
        !check_tensor(problem, problem->layer_numbers[i], DECODE_V, 4, k_shape, error)) {
      return false;
    }
  }
  problem->batch = (int32_t)q_shape[0];
  problem->heads = (int32_t)q_shape[1];
  problem->head_dim = problem->value_dim = (int32_t)q_shape[2];
  problem->kv_heads = (int32_t)k_shape[1];
  problem->tokens = (int32_t)k_shape[2];
  return true;
}

static float plain_scale(const decode_problem *problem) { return (float)(1 / sqrt((double)problem->head_dim)); }

static bool set_scale(decode_problem *problem, tool_error *error) {
  problem->scale = plain_scale(problem);
  const char *text = safetensors_metadata(problem->file, "scale");
  if (text == NULL) return true;
  char *end;
  double scale = strtod(text, &end);
  if (end == text || *end != '\0' || !(scale > 0) || !isfinite((float)scale) || (float)scale == 0)
    return tool_error_set(error, "%s: metadata: scale \"%.40s\" is not a positive number", problem->file->path, text);
  problem->scale = (float)scale;
  return true;
}

/* Queries of an 8-bit cache are bf16, as in models with such caches. */
static banyan_dtype query_dtype(banyan_dtype dtype) { return tool_dtype_bytes(dtype) == 1 ? BANYAN_BF16 : dtype; }

bool decode_problem_open(const char *path, banyan_dtype dtype, decode_problem *problem, tool_error *error) {
  decode_problem opened = {.dtype = dtype == 0 ? BANYAN_F32 : dtype, .queries = 1};
  opened.q_dtype = query_dtype(opened.dtype);
  if (!safetensors_open(path, &opened.file, error)) return false;
  if (!find_layers(&opened, error) || !check_shapes(&opened, error) || !set_scale(&opened, error)) {
    decode_problem_close(&opened);
    return false;
  }
  set_lengths(&opened);
  *problem = opened;
  return true;
}

/* ---- from a seed ------------------------------------------------------------------------------------------------- */

void decode_problem_make(const decode_shape *shape, banyan_dtype dtype, uint64_t seed, decode_problem *problem) {
  decode_problem made = {.layers = 1,
                         .batch = shape->batch,
                         .heads = shape->heads,
                         .kv_heads = shape->kv_heads,
                         .head_dim = shape->head_dim,
                         .value_dim = shape->head_dim == DECODE_LATENT_DIM ? DECODE_LATENT_VALUE_DIM : shape->head_dim,
                         .tokens = shape->tokens,
                         .queries = shape->queries > 0 ? shape->queries : 1,
                         .dtype = dtype == 0 ? BANYAN_F32 : dtype,
                         .seed = seed};
  made.q_dtype = query_dtype(made.dtype);
  made.layer_numbers = tool_new(1, sizeof *made.layer_numbers);
  made.scale = plain_scale(&made);
  set_lengths(&made);
  for (int32_t b = 1; shape->ragged && b < made.batch; b++)
    made.lengths[b] = (int32_t)(bny_hash_of(bny_hash_of(seed) ^ (uint64_t)b) % (uint64_t)made.tokens) + 1;
  *problem = made;
}

void decode_problem_close(decode_problem *problem) {
  safetensors_close(problem->file);
  *problem = (decode_problem){.layers = 0};
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool read_file(const decode_problem *problem, int32_t layer, decode_tensor tensor, uint64_t first, size_t count,
                      float *values, tool_error *error) {
  const safetensor *t = find_tensor(problem, problem->layer_numbers[layer], tensor);
  tool_floats_load(t->dtype, (const char *)t->data + first * tool_dtype_bytes(t->dtype), count, values);
  for (size_t i = 0; i < count; i++) {
    if (!isfinite(values[i])) {
      return tool_error_set(error, "%s: tensor %s: element %" PRIu64 " is not finite", problem->file->path, t->name,
                            first + i);
    }
  }
  return true;
}

/* Rounds values to the dtype of the cache, because the computation uses the stored values. */
static bool keep(const decode_problem *problem, int32_t layer, decode_tensor tensor, size_t count, float *values,
                 tool_error *error) {
  banyan_dtype dtype = tensor == DECODE_Q ? problem->q_dtype : problem->dtype;
  uint16_t kept[256];
  for (size_t i = 0; i < count; i += 256) {
    size_t n = count - i < 256 ? count - i : 256;
    tool_floats_store(dtype, values + i, n, kept);
    tool_floats_load(dtype, kept, n, values + i);
    for (size_t j = i; j < i + n; j++) {
      if (!isfinite(values[j])) {
        return tool_error_set(error, "layers.%d.%c has values beyond the range of %s", problem->layer_numbers[layer],
                              tensor_letters[tensor], tool_dtype_name(dtype));
      }
    }
  }
  return true;
}

bool decode_problem_read(const decode_problem *problem, int32_t layer, decode_tensor tensor, int32_t sequence,
                         int32_t kv_head, int32_t first, int32_t count, float *values, tool_error *error) {
  uint64_t dim = (uint64_t)problem->head_dim;
  uint64_t line = tensor == DECODE_Q ? (uint64_t)sequence * (uint64_t)problem->queries + (uint64_t)problem->query
                                     : (uint64_t)sequence * (uint64_t)problem->kv_heads + (uint64_t)kv_head;
  uint64_t length = (uint64_t)(tensor == DECODE_Q ? problem->heads : problem->tokens);
  uint64_t place = (line * length + (uint64_t)first) * dim;
  size_t elements = (size_t)count * (size_t)dim;
  if (problem->file != NULL) {
    if (!read_file(problem, layer, tensor, place, elements, values, error)) return false;
  } else {
    tool_floats_random(bny_hash_of(problem->seed) ^ (uint64_t)tensor, place, elements,
                       tensor == DECODE_Q ? query_deviation : 1.0f, values);
  }
  return problem->dtype == BANYAN_F32 || keep(problem, layer, tensor, elements, values, error);
}

bool decode_problem_query(const decode_problem *problem, int32_t layer, void **q, tool_error *error) {
  size_t line = (size_t)problem->heads * (size_t)problem->head_dim;
  size_t element = tool_dtype_bytes(problem->q_dtype);
  int32_t tokens = problem->batch * problem->queries;
  char *kept = tool_take((size_t)tokens * line * element);
  float *values = tool_new(line, sizeof *values);
  for (int32_t t = 0; t < tokens; t++) {
    decode_problem one = *problem;
    one.query = t % problem->queries;
    if (!decode_problem_read(&one, layer, DECODE_Q, t / problem->queries, 0, 0, problem->heads, values, error))
      return false;
    tool_floats_store(problem->q_dtype, values, line, kept + (size_t)t * line * element);
  }
  *q = kept;
  return true;
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */

static void divide(const decode_problem *problem, int32_t length, int32_t rank, int32_t nranks, int32_t *first,
                   int32_t *number) {
  int32_t split_keys = problem->split_keys > 0 ? problem->split_keys : 1;
  int32_t pieces = length / split_keys + (length % split_keys != 0), piece, count;
  banyan_split(pieces, nranks, rank, &piece, &count);
  *first = piece < pieces ? piece * split_keys : length;
  *number = (piece + count < pieces ? (piece + count) * split_keys : length) - *first;
}

void decode_problem_shard_lengths(const decode_problem *problem, int32_t rank, int32_t nranks, int32_t *lengths) {
  for (int32_t b = 0; b < problem->batch; b++) {
    int32_t first;
    divide(problem, problem->lengths[b], rank, nranks, &first, &lengths[b]);
  }
}

int decode_problem_tensors(const decode_problem *problem) { return problem->value_dim < problem->head_dim ? 1 : 2; }

bool decode_shard_size(const decode_problem *problem, int32_t rank, int32_t nranks, decode_shard *shard,
                       tool_error *error) {
  int32_t first;
  *shard = (decode_shard){.bytes = (size_t)decode_problem_tensors(problem) * tool_dtype_bytes(problem->dtype)};
  divide(problem, problem->tokens, 0, nranks, &first, &shard->capacity); /* rank 0 has the most */
  const int32_t sizes[] = {problem->batch, problem->kv_heads, shard->capacity, problem->head_dim};
  for (int i = 0; i < 4; i++) {
    if (__builtin_mul_overflow(shard->bytes, (size_t)sizes[i], &shard->bytes))
      return tool_error_set(error, "the shard of rank %d is too large for memory", rank);
  }
  return true;
}

bool decode_shard_make(const decode_problem *problem, int32_t rank, int32_t nranks, decode_shard *shard,
                       tool_error *error) {
  if (!decode_shard_size(problem, rank, nranks, shard, error)) return false;
  shard->block = tool_take(shard->bytes);
  return true;
}

bool decode_shard_fill(const decode_problem *problem, int32_t layer, int32_t rank, int32_t nranks, decode_shard *shard,
                       tool_error *error) {
  int32_t dim = problem->head_dim;
  int32_t piece = PIECE_ELEMENTS / dim > 0 ? PIECE_ELEMENTS / dim : 1;
  size_t element = tool_dtype_bytes(problem->dtype);
  float *values = tool_new((size_t)piece * (size_t)dim, sizeof *values);
  bool ok = true;
  int64_t lines = (int64_t)problem->batch * problem->kv_heads;
  for (int64_t line = 0; ok && line < decode_problem_tensors(problem) * lines; line++) { /* first k, then v */
    int32_t sequence = (int32_t)(line % lines / problem->kv_heads), kv_head = (int32_t)(line % problem->kv_heads);
    int32_t first, number;
    divide(problem, problem->lengths[sequence], rank, nranks, &first, &number);
    char *target = (char *)shard->block + (size_t)line * (size_t)shard->capacity * (size_t)dim * element;
    for (int32_t t = 0; ok && t < number; t += piece) {
      int32_t count = number - t < piece ? number - t : piece;
      ok = decode_problem_read(problem, layer, line < lines ? DECODE_K : DECODE_V, sequence, kv_head, first + t, count,
                               values, error);
      if (ok) {
        tool_floats_store(problem->dtype, values, (size_t)count * (size_t)dim,
                          target + (size_t)t * (size_t)dim * element);
      }
    }
  }
  return ok;
}

banyan_attention_desc decode_shard_attention(const decode_problem *problem, const void *q, const decode_shard *shard,
                                             const int32_t *lengths) {
  int64_t token = problem->head_dim, head = token * shard->capacity, sequence = head * problem->kv_heads;
  return (banyan_attention_desc){
      .size = sizeof(banyan_attention_desc),
      .batch = problem->batch,
      .heads = problem->heads,
      .kv_heads = problem->kv_heads,
      .head_dim = problem->head_dim,
      .value_dim = problem->value_dim,
      .scale = problem->scale,
      .q_dtype = problem->q_dtype,
      .kv.dtype = problem->dtype,
      .q = q,
      .q_batch_stride = token * problem->heads,
      .q_head_stride = token,
      .kv.k = shard->block,
      .kv.k_batch_stride = sequence,
      .kv.k_head_stride = head,
      .kv.k_token_stride = token,
      .kv.v = (const char *)shard->block + (decode_problem_tensors(problem) == 1 ? 0 : shard->bytes / 2),
      .kv.v_batch_stride = sequence,
      .kv.v_head_stride = head,
      .kv.v_token_stride = token,
      .kv.seq_lens = lengths,
  };
}
