/* SPDX-License-Identifier: Apache-2.0
 * Writes the events of a trace as JSON. */
#include "base/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file.h"
#include "log.h"
#include "process.h"
#include "status.h"

enum { PATH_BYTES = 1024, PAGE_TEXT_BYTES = 1 << 15, LINE_BYTES = 512 };

_Thread_local bny_trace_local bny_trace_of_thread;

/* ---- text on its way to the file --------------------------------------------------------------------------------- */

typedef struct page {
  bny_trace *trace;
  size_t length;
  char text[PAGE_TEXT_BYTES];
} page;

static void page_flush(page *page) {
  bny_trace *trace = page->trace;
  for (size_t done = 0; done < page->length && !trace->failed;) {
    ssize_t written = bny_file_write(trace->file, page->text + done, page->length - done);
    if (written > 0) done += (size_t)written;
    if (written < 0 && errno != EINTR) {
      trace->failed = true;
      bny_log(BNY_LOG_WARN, "the trace is not whole: %s", strerror(errno));
    }
  }
  page->length = 0;
}

static void put(page *page, const char *text) {
  size_t length = strlen(text);
  memcpy(page->text + page->length, text, length);
  page->length += length;
}

/* Other ranks wait while this rank writes events. This function takes a third of the time of printf(). */
static void put_number(page *page, uint64_t value) {
  char digits[20];
  int count = 0;
  do digits[count++] = (char)('0' + value % 10);
  while (value /= 10);
  while (count) page->text[page->length++] = digits[--count];
}

static void put_us(page *page, int64_t ns) {
  uint64_t value = ns > 0 ? (uint64_t)ns : 0, rest = value % 1000;
  put_number(page, value / 1000);
  char fraction[] = {'.', (char)('0' + rest / 100), (char)('0' + rest / 10 % 10), (char)('0' + rest % 10), 0};
  put(page, fraction);
}

static void put_argument(page *page, const char *name, uint64_t value) {
  put(page, name);
  put_number(page, value);
}

static void put_tag(page *page, int64_t tag) {
  if (tag >= 0) put_argument(page, ",\"tag\":", (uint64_t)tag);
}

/* Begins an event, up to and including the brace of its arguments. Names are banyan's own and need no escaping. */
static void event_begin(page *page, const char *name, int32_t number, const char *category, int64_t begin_ns,
                        int64_t end_ns) {
  if (page->length + LINE_BYTES > sizeof page->text) page_flush(page);
  put(page, "{\"name\":\"");
  put(page, name);
  if (number >= 0) put_argument(page, " ", (uint64_t)number);
  put(page, "\",\"cat\":\"");
  put(page, category);
  put_argument(page, "\",\"ph\":\"X\",\"pid\":", (uint64_t)page->trace->rank);
  put(page, ",\"tid\":0,\"ts\":");
  put_us(page, begin_ns);
  put(page, ",\"dur\":");
  put_us(page, end_ns - begin_ns);
  put(page, ",\"args\":{");
}

static void event_print(page *page, const bny_trace_event *event, int64_t begin_ns, int64_t end_ns) {
  switch (event->kind) {
  case BNY_TRACE_OPERATION:
    event_begin(page, event->name, -1, "operation", begin_ns, end_ns);
    put_argument(page, "\"operation\":", event->operation);
    put(page, ",\"algorithm\":\"");
    put(page, event->detail);
    put_argument(page, "\",\"bytes\":", event->bytes);
    put_tag(page, event->tag);
    break;
  case BNY_TRACE_PHASE:
    event_begin(page, event->name, -1, "phase", begin_ns, end_ns);
    put_argument(page, "\"operation\":", event->operation);
    put_argument(page, ",\"level\":", (uint64_t)event->number);
    break;
  case BNY_TRACE_WAIT:
    event_begin(page, event->name, event->number, "wait", begin_ns, end_ns);
    put_argument(page, "\"operation\":", event->operation);
    put_argument(page, ",\"peer\":", (uint64_t)event->number);
    put_argument(page, ",\"bytes\":", event->bytes);
    put_tag(page, event->tag);
    break;
  case BNY_TRACE_ATTENTION:
    event_begin(page, "attention", -1, "compute", begin_ns, end_ns);
    put_argument(page, "\"rows\":", (uint64_t)event->number);
    put_argument(page, ",\"bytes\":", event->bytes);
    break;
  }
  put(page, "}},\n");
}

static void write_pages(bny_trace *trace, page *page) {
  uint64_t tick = bny_clock_ticks();
  int64_t clock_ns = bny_clock_ns();
  int64_t now_ns = trace->ns0 + clock_ns - trace->clock0;
  bny_clock_scale scale = bny_clock_scale_make(trace->tick0, trace->ns0, tick, now_ns);
  for (uint32_t i = 0; i < trace->count; i++) {
    const bny_trace_event *event = &trace->events[i];
    event_print(page, event, bny_clock_scale_ns(&scale, event->begin), bny_clock_scale_ns(&scale, event->end));
  }
  trace->count = 0;
  trace->tick0 = tick;
  trace->ns0 = now_ns;
  trace->clock0 = clock_ns;
}

void bny_trace_write(bny_trace *trace) {
  page page = {.trace = trace, .length = 0};
  write_pages(trace, &page);
  page_flush(&page);
}

static void print_head(bny_trace *trace, int32_t nranks) {
  char host[64] = "";
  page page = {.trace = trace, .length = 0};
  gethostname(host, sizeof host - 1);
  for (char *c = host; *c; c++)
    if (*c == '"' || *c == '\\' || (unsigned char)*c < 32) *c = '?';
  bny_append(page.text, sizeof page.text, &page.length,
             "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"rank %d of %d (%s, "
             "process %d)\"}},\n",
             trace->rank, trace->rank, nranks, host, (int)getpid());
  page_flush(&page);
}

banyan_status bny_trace_open(const char *pattern, int32_t rank, int32_t nranks, int64_t events, bny_trace **trace) {
  static const int64_t day_ns = (int64_t)86400 * 1000000000;
  struct timespec now;
  bny_trace *made = calloc(1, sizeof *made);
  size_t bytes = (size_t)events * sizeof *made->events;
  if (made) made->events = malloc(bytes);
  if (!made || !made->events) {
    free(made);
    return bny_fail(BANYAN_ERR_MEMORY, "out of memory for a trace of %" PRId64 " events", events);
  }
  char path[PATH_BYTES];
  banyan_status status = bny_log_claim("the trace", pattern, rank, path, sizeof path, &made->file);
  if (status == BANYAN_OK && ftruncate(made->file, 0) != 0) {
    status = bny_fail_errno(BANYAN_ERR_SYSTEM, errno, "cannot write the trace");
    close(made->file);
  }
  if (status != BANYAN_OK) {
    free(made->events);
    free(made);
    return status;
  }
  memset(made->events, 0, bytes); /* causes the page faults now */
  made->capacity = (uint32_t)events;
  made->process = bny_process();
  made->rank = rank;
  clock_gettime(CLOCK_REALTIME, &now);
  made->tick0 = bny_clock_ticks();
  made->clock0 = bny_clock_ns();
  made->ns0 = ((int64_t)now.tv_sec * 1000000000 + now.tv_nsec) % day_ns;
  print_head(made, nranks);
  bny_trace_of_thread = (bny_trace_local){.on = true};
  *trace = made;
  return BANYAN_OK;
}

void bny_trace_close(bny_trace *trace) {
  if (!trace) return;
  if (trace->process == bny_process()) {
    page page = {.trace = trace, .length = 0};
    bny_trace_take_spans(trace);
    write_pages(trace, &page);
    /* The last event must have no comma after it: it gives the number of events that did not fit. */
    event_begin(&page, "end of the trace", -1, "trace", trace->ns0, trace->ns0);
    put_argument(&page, "\"events_left_out\":", trace->dropped);
    put(&page, "}}\n]\n");
    page_flush(&page);
    bny_trace_of_thread.on = false;
  }
  close(trace->file);
  free(trace->events);
  free(trace);
}

void bny_trace_take_spans(bny_trace *trace) {
  bny_trace_local *local = &bny_trace_of_thread;
  for (uint32_t i = 0; i < local->count; i++) {
    const bny_trace_span *span = &local->spans[i];
    bny_trace_add(trace, &(bny_trace_event){.begin = span->begin,
                                            .end = span->end,
                                            .bytes = span->bytes,
                                            .number = span->rows,
                                            .kind = BNY_TRACE_ATTENTION});
  }
  local->count = 0;
  local->on = true;
}
