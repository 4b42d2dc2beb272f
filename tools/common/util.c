/* SPDX-License-Identifier: Apache-2.0
 * Errors of the tools, their clock, and percentiles. */
#include "tools/common/util.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/printable.h"

bool tool_error_set(tool_error *error, const char *format, ...) {
  error->everywhere = false;
  error->status = TOOL_EXIT_FAILED;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error->text, sizeof error->text, format, arguments);
  va_end(arguments);
  bny_printable(error->text, "\n"); /* names come from files */
  return false;
}

bool tool_error_usage(tool_error *error, bool ok) {
  error->status = ok ? error->status : TOOL_EXIT_USAGE;
  return ok;
}

bool tool_flush(FILE *stream) { return fflush(stream) == 0 && !ferror(stream); }

bool tool_error_stdout(tool_error *error) {
  return tool_error_usage(error, tool_error_set(error, "cannot write to standard output"));
}

bool tool_error_banyan(tool_error *error, banyan_status status, const char *what) {
  return tool_error_set(error, "%s: %s: %s", what, banyan_status_string(status), banyan_last_error());
}

int64_t tool_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double tool_percentile(double *values, size_t count, double percent) {
  if (count == 0) return 0;
  qsort(values, count, sizeof *values, compare_doubles);
  double rank = ceil(percent / 100 * (double)count);
  size_t index = rank < 1 ? 0 : (size_t)rank - 1;
  return values[index < count ? index : count - 1];
}

/* ---- memory that nobody frees ------------------------------------------------------------------------------------ */

static struct {
  void **blocks;
  size_t count, capacity;
} pool;

_Noreturn void tool_no_memory(void) {
  fprintf(stderr, "%s: out of memory\n", program_invocation_short_name);
  exit(TOOL_EXIT_USAGE);
}

static void *keep(void *block) {
  if (block != NULL && pool.count == pool.capacity) {
    pool.capacity = pool.capacity == 0 ? 64 : 2 * pool.capacity;
    pool.blocks = realloc(pool.blocks, pool.capacity * sizeof *pool.blocks);
  }
  if (block == NULL || pool.blocks == NULL) tool_no_memory();
  return pool.blocks[pool.count++] = block;
}

void *tool_new(size_t count, size_t size) { return keep(calloc(count + 1, size)); }

enum { HUGE_PAGE = 2 << 20, HUGE_FROM = 2 * HUGE_PAGE };

void *tool_take(size_t bytes) {
  if (bytes > SIZE_MAX / 2) tool_no_memory();
  size_t unit = bytes >= HUGE_FROM ? HUGE_PAGE : 64, rounded = bytes == 0 ? unit : (bytes + unit - 1) / unit * unit;
  void *memory = keep(aligned_alloc(unit, rounded));
  if (unit == HUGE_PAGE) madvise(memory, rounded, MADV_HUGEPAGE); /* optional */
  return memset(memory, 0, rounded);
}

void *tool_more(void *items, int32_t count, size_t size) {
  if (count != 0 && (count < 16 || (count & (count - 1)) != 0)) return items;
  void *more = tool_new(count == 0 ? 16 : 2 * (size_t)count, size);
  return count == 0 ? more : memcpy(more, items, (size_t)count * size);
}

char *tool_format(const char *format, ...) {
  char *text = NULL;
  va_list arguments;
  va_start(arguments, format);
  int length = vasprintf(&text, format, arguments);
  va_end(arguments);
  return keep(length < 0 ? NULL : text);
}

FILE *tool_page_begin(tool_page *page) {
  *page = (tool_page){.text = NULL};
  page->stream = open_memstream(&page->text, &page->bytes);
  if (page->stream == NULL) tool_no_memory();
  return page->stream;
}

char *tool_page_end(tool_page *page) { return keep(fclose(page->stream) == 0 ? page->text : NULL); }

size_t tool_mark(void) { return pool.count; }

void tool_release(size_t mark) {
  while (pool.count > mark) free(pool.blocks[--pool.count]);
}

void tool_print_wrapped(FILE *stream, int column, int indent, const char *text) {
  enum { COLUMNS = 100 };
  bool begun = false; /* this line has text */
  while (*text != '\0') {
    size_t word = strcspn(text, " \n");
    if (begun && column + 1 + (int)word > COLUMNS) {
      column = fprintf(stream, "\n%*s", indent, "") - 1;
      begun = false;
    }
    column += fprintf(stream, "%s%.*s", begun ? " " : "", (int)word, text);
    begun = true;
    text += word;
    if (*text == '\n' && text[1] != '\0') {
      column = fprintf(stream, "\n%*s", text[1] == '\n' ? 0 : indent, "") - 1;
      begun = false;
    }
    text += *text != '\0';
  }
  fputc('\n', stream);
}

int32_t tool_terminal_columns(void) {
  struct winsize size = {0};
  return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

int32_t tool_cpus(void) {
  cpu_set_t allowed;
  int count = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  return count > 0 ? count : 1;
}

bool tool_parse_int(const char *text, int64_t min, int64_t max, int64_t *value) {
  if (!isdigit((unsigned char)text[0]) && text[0] != '-') return false;
  char *end;
  errno = 0;
  long long parsed = strtoll(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || parsed < min || parsed > max) return false;
  *value = parsed;
  return true;
}

bool tool_option_device(const char *text, int32_t *ordinal, tool_error *error) {
  int64_t number = 0;
  if (strcmp(text, "cuda") != 0 && (strncmp(text, "cuda:", 5) != 0 || !tool_parse_int(text + 5, 0, 1023, &number)))
    return tool_error_set(error, "--device %.60s: neither cuda nor cuda:N", text);
  *ordinal = (int32_t)number;
  return true;
}

bool tool_parse_bytes(const char *text, size_t *bytes) {
  if (!isdigit((unsigned char)text[0])) return false;
  char *end;
  errno = 0;
  unsigned long long parsed = strtoull(text, &end, 10);
  unsigned shift = 0;
  if (*end != '\0') {
    const char *suffix = strchr("KMG", toupper((unsigned char)*end));
    if (suffix == NULL || end[1] != '\0') return false;
    shift = *suffix == 'K' ? 10 : *suffix == 'M' ? 20 : 30;
  }
  if (errno != 0 || parsed > (UINT64_C(1) << 40) >> shift) return false;
  *bytes = (size_t)parsed << shift;
  return true;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

const bny_name tool_dtypes[] = {{"f32", BANYAN_F32},
                                {"f16", BANYAN_F16},
                                {"bf16", BANYAN_BF16},
                                {"e4m3", BANYAN_E4M3},
                                {"e5m2", BANYAN_E5M2},
                                {"int8", BANYAN_I8},
                                {NULL, 0}};

const bny_name tool_wires[] = {
#define BNY_FORMAT(id, name, dtype, bytes, bound) {name, dtype},
#include "formats.def"
#undef BNY_FORMAT
    {NULL, 0},
};

const char *tool_dtype_name(banyan_dtype dtype) { return bny_name_of(tool_dtypes, (int)dtype); }

bool tool_check_order(banyan_order order, banyan_dtype wire, tool_error *error) {
  return order != BANYAN_ORDER_EXACT || wire == 0 || wire == BANYAN_F32 ||
         tool_error_set(error, "--order exact has a wire format of its own: it takes no --wire %s",
                        tool_dtype_name(wire));
}

size_t tool_dtype_bytes(banyan_dtype dtype) {
  return dtype == BANYAN_F32 ? 4 : dtype == BANYAN_E4M3 || dtype == BANYAN_E5M2 || dtype == BANYAN_I8 ? 1 : 2;
}

/* ---- partials ---------------------------------------------------------------------------------------------------- */

double tool_error_bound(banyan_dtype wire, uint64_t roundings) {
  double one = wire == BANYAN_F16 ? 0x1p-11 : wire == BANYAN_BF16 ? 0x1p-8 : 0;
  double all = wire == BANYAN_E4M3 ? pow(18.0 / 17, (double)roundings) - 1 : one * (double)roundings;
  return 2e-6 + all + 0x1p-23 * (double)roundings;
}

double tool_error_bound_of(banyan_dtype wire, const banyan_op *op) {
  banyan_op_info info = {.size = sizeof info};
  return tool_error_bound(wire, banyan_op_query(op, &info) == BANYAN_OK ? info.roundings : 0);
}

tool_part tool_part_of_rank(const banyan_combine_desc *desc, int32_t rank, int32_t nranks) {
  tool_part part = {.tokens = desc->tokens, .heads = desc->heads};
  if (desc->scatter == BANYAN_SCATTER_ROOT && rank != 0)
    part.tokens = part.heads = 0;
  else if (desc->scatter == BANYAN_SCATTER_HEADS)
    banyan_split(desc->heads, nranks, rank, &part.head0, &part.heads);
  else if (desc->scatter == BANYAN_SCATTER_TOKENS)
    banyan_split(desc->tokens, nranks, rank, &part.token0, &part.tokens);
  return part;
}

banyan_partial tool_partial_max_sum(float *values, float *max, float *sum, int32_t heads, int32_t value_dim) {
  banyan_partial partial;
  banyan_partial_init(&partial, values, BANYAN_F32, max, BANYAN_F32, heads, value_dim);
  partial.values_kind = BANYAN_VALUES_NUMERATOR;
  partial.sum = sum;
  partial.stats_kind = BANYAN_STATS_MAX_SUM;
  partial.base = BANYAN_BASE_2;
  return partial;
}

bool tool_partial_result(const banyan_combine_desc *desc, int32_t rank, int32_t nranks, float *values,
                         banyan_partial *result) {
  tool_part part = tool_part_of_rank(desc, rank, nranks);
  banyan_partial_init(result, values, BANYAN_F32, NULL, BANYAN_F32, part.heads, desc->value_dim);
  return desc->scatter != BANYAN_SCATTER_ROOT || rank == 0;
}

void tool_print_combine(FILE *stream, const banyan_combine_desc *desc) {
  fprintf(stream, "wire %s, scatter %s, order %s, algorithm %s\n", tool_dtype_name(desc->wire),
          bny_scatter_name(desc->scatter), bny_order_name(desc->order),
          desc->algorithm == NULL ? "by predicted cost" : desc->algorithm);
}

banyan_status tool_run(banyan_op *op) {
  banyan_status status = banyan_start(op);
  return status == BANYAN_OK ? banyan_wait(op) : status;
}
