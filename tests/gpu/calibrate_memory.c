/* SPDX-License-Identifier: Apache-2.0
 * gpu_calibrate: measures latencies, bandwidth, and words between two CTAs, through one mapping, two
 * mappings, and a peer's memory. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/calibration.h"

/* ---- latency ----------------------------------------------------------------------------------------------------- */

/* Measures the latency of a load, over `count` dependent loads. Each load returns the next address, in a ring of
 * `bytes` whose steps no prefetcher predicts. */
static bool chase(calibration *self, size_t bytes, uint32_t count, double *ns) {
  enum { STRIDE = 4096 / 8 + 16 }; /* elements; each step changes the page and the line */
  size_t elements = bytes / sizeof(uint64_t);
  uint64_t *host = calloc(elements, sizeof *host), *ring = NULL, *end = NULL;
  void *arguments[] = {&ring, &count, &end};
  calibration_launch launch = {"calibrate_chase", 1, 32, 0, arguments};
  double once, twice;
  for (size_t i = 0; host && i < elements; i++) host[i] = (i + STRIDE) % elements;
  bool ok = (host || tool_error_set(&self->error, "out of memory")) && calibration_take(self, bytes, &ring) &&
            calibration_take(self, sizeof *end, &end) && gpu_write(self->gpu, ring, host, bytes, &self->error) &&
            calibration_time(self, &launch, 1, &once);
  count *= 2;
  ok = ok && calibration_time(self, &launch, 1, &twice);
  if (ok) *ns = (twice - once) * 1e3 / (count / 2);
  gpu_give(self->gpu, ring);
  gpu_give(self->gpu, end);
  free(host);
  return ok;
}

static bool fence(calibration *self, uint32_t is_sys, double *ns) {
  uint64_t *word = NULL;
  uint32_t count = self->quick ? 4 : 10000;
  void *arguments[] = {&word, &count, &is_sys};
  calibration_launch launch = {"calibrate_fence", 1, 32, 0, arguments};
  double us;
  bool ok = calibration_take(self, sizeof *word, &word) && calibration_time(self, &launch, 3, &us);
  if (ok) *ns = us * 1e3 / count;
  gpu_give(self->gpu, word);
  return ok;
}

bool calibrate_latency(calibration *self) {
  const gpu_facts *facts = gpu_facts_of(self->gpu);
  size_t near = 1 << 20, far = self->quick ? 1 << 20 : 8 * (size_t)facts->cache_bytes;
  uint32_t loads = self->quick ? 8 : 20000;
  double l2, memory, gpu_ns, sys_ns;
  if (!chase(self, near, loads, &l2) || !chase(self, far, loads, &memory) || !fence(self, 0, &gpu_ns) ||
      !fence(self, 1, &sys_ns))
    return false;
  calibration_say("l2_ns", l2, "ns", 300, "a load from the second-level cache, nothing else under way");
  calibration_say("memory_ns", memory, "ns", NAN, "a load from memory, nothing else under way; with misses of the TLB");
  calibration_say("fence_gpu_ns", gpu_ns, "ns", NAN, "a store and fence.acq_rel.gpu");
  calibration_say("fence_sys_ns", sys_ns, "ns", NAN, "a store and fence.acq_rel.sys");
  return true;
}

/* ---- bandwidth --------------------------------------------------------------------------------------------------- */

bool calibrate_bandwidth(calibration *self) {
  const gpu_facts *facts = gpu_facts_of(self->gpu);
  size_t bytes = self->quick ? 1 << 16 : (size_t)4 << 30;
  if ((int64_t)bytes > facts->memory_bytes / 4 && !self->quick) bytes = (size_t)facts->memory_bytes / 4;
  unsigned char *memory = NULL;
  uint32_t *sum = NULL;
  uint64_t quads = bytes / 16;
  void *arguments[] = {&memory, &quads, &sum};
  calibration_launch launch = {"calibrate_read", self->quick ? 2 : 8 * (uint32_t)facts->sms, self->quick ? 32 : 256, 0,
                               arguments};
  double us;
  bool ok = calibration_take(self, bytes, &memory) && calibration_take(self, sizeof *sum, &sum) &&
            calibration_time(self, &launch, self->quick ? 1 : 10, &us);
  gpu_give(self->gpu, memory);
  gpu_give(self->gpu, sum);
  if (!ok) return false;
  /* Memory does two transfers per clock. */
  double nominal = 2.0 * facts->memory_clock_mhz * 1e6 * facts->bus_bits / 8, rate = (double)bytes / (us * 1e-6);
  calibration_say("read_gbytes_per_s", rate * 1e-9, "GB/s", NAN, "all SMs read memory once");
  calibration_say("read_share", nominal > 0 ? rate / nominal : NAN, "", 0.93,
                  "of the bandwidth that clock and width of the bus give");
  return true;
}

/* ---- words between two CTAs -------------------------------------------------------------------------------------- */

/* A page of device memory at its owner's address and at a second mapping. */
typedef struct twice_mapped {
  bny_device_memory *owned, *mapped;
} twice_mapped;

static bool map_twice(calibration *self, calibration *other, twice_mapped *made) {
  const bny_device_ops *ops = self->device->ops;
  bny_device_offer offer = {.kind = BNY_MEMORY_FILE, .file = -1};
  *made = (twice_mapped){NULL, NULL};
  bool ok =
      calibration_status(self, ops->memory_make(self->device, BNY_MEMORY_FILE, 4096, &made->owned), "memory file") &&
      calibration_status(self, ops->memory_export(made->owned, &offer.handle, &offer.file), "export");
  if (!ok) return false;
  offer.bytes = made->owned->bytes;
  ok = calibration_status(self, ops->memory_import(other->device, &offer, &made->mapped), "import");
  if (offer.file >= 0) close(offer.file);
  return ok;
}

static void unmap(calibration *self, twice_mapped *made) {
  self->device->ops->memory_free(made->mapped);
  self->device->ops->memory_free(made->owned);
}

/* Lays out a pair in a page. Word 0 goes from role 0 to role 1, and word 16 goes back. The payload begins at byte
 * 1024. */
static calibrate_pair pair_of(void *as_role_0, void *as_role_1) {
  calibrate_pair pair = {.rounds = 0};
  uint64_t *words[2] = {as_role_0, as_role_1};
  for (int role = 0; role < 2; role++) {
    pair.to[role] = words[role] + 16 * role;
    pair.from[role] = words[role] + 16 * (1 - role);
    pair.payload[role] = (unsigned char *)words[role] + 1024;
  }
  return pair;
}

/* Runs role 1 on `other`. If that is the same device, one launch has both roles. */
static bool run_pair(calibration *self, calibration *other, const char *kernel, calibrate_pair pair, void *page,
                     double *us, uint32_t counts[3]) {
  void *arguments[] = {&pair};
  calibration_launch launch = {kernel, self == other ? 2 : 1, 32, 0, arguments};
  bny_device_kernel found, found_there;
  void *from = NULL, *to = NULL;
  double passed_us = 0;
  bool ok =
      gpu_enter(self->gpu, &self->error) && calibration_find(self, kernel, &found) &&
      calibration_find(other, kernel, &found_there) && gpu_fill(self->gpu, page, 0, 4096, self->stream, &self->error) &&
      gpu_fill(self->gpu, pair.counts, 0, 3 * sizeof *counts, self->stream, &self->error) && calibration_finish(self) &&
      gpu_event_make(self->gpu, &from, &self->error) && gpu_event_make(self->gpu, &to, &self->error) &&
      gpu_event_record(self->gpu, from, self->stream, &self->error) &&
      calibration_launch_found(self, &found, &launch) && gpu_event_record(self->gpu, to, self->stream, &self->error);
  if (ok && self != other) {
    pair.role = 1;
    ok = gpu_enter(other->gpu, &self->error) && calibration_launch_found(other, &found_there, &launch) &&
         calibration_finish(other) && gpu_enter(self->gpu, &self->error);
  }
  ok = ok && calibration_finish(self) && gpu_event_elapsed(self->gpu, from, to, &passed_us, &self->error) &&
       gpu_read(self->gpu, counts, pair.counts, 3 * sizeof *counts, &self->error);
  gpu_event_free(self->gpu, from);
  gpu_event_free(self->gpu, to);
  *us = passed_us;
  return ok;
}

/* Checks that no message is torn. */
static bool message(calibration *self, calibration *other, calibrate_pair pair, void *page, const char *name) {
  uint32_t counts[3];
  double us;
  if (!run_pair(self, other, "calibrate_message", pair, page, &us, counts)) return false;
  calibration_say(name, counts[0] ? NAN : counts[1], "lanes", 0,
                  counts[0] ? "a word did not come" : "read old values after an acquire, of 32 in each message");
  return true;
}

/* Checks that no message is torn if role 1 has another address of signal and payload, or only of the payload, without
 * and with fences for aliases. exchange() covers the first case. */
static bool message_aliases(calibration *self, calibration *other, calibrate_pair pair, void *page, const char *where) {
  (void)where;
  pair.is_sys = 1;
  pair.rounds = self->quick ? 6 : 20000;
  calibrate_pair data = pair, both = pair;
  data.to[1] = pair.from[0];
  data.from[1] = pair.to[0];
  both.fences = 1;
  if (!message(self, other, both, page, "stale_sys_two_mappings_fenced") ||
      !message(self, other, data, page, "stale_sys_payload_mapped_twice"))
    return false;
  data.fences = 1;
  return message(self, other, data, page, "stale_sys_payload_mapped_twice_fenced");
}

/* Measures the one-way latency in both scopes, and then checks that no message is torn. */
static bool exchange(calibration *self, calibration *other, calibrate_pair pair, void *page, const char *where) {
  static const char *const scopes[] = {"gpu", "sys"};
  const bool is_near = self == other;
  char name[60];
  uint32_t counts[3], rounds = self->quick ? 3 : 5000;
  double once, twice;
  for (uint32_t i = is_near ? 0 : 1; i < 2; i++) {
    pair.is_sys = i;
    pair.rounds = rounds;
    if (!run_pair(self, other, "calibrate_ping", pair, page, &once, counts)) return false;
    uint32_t lost = counts[0];
    pair.rounds = 2 * rounds;
    if (!run_pair(self, other, "calibrate_ping", pair, page, &twice, counts)) return false;
    lost += counts[0];
    snprintf(name, sizeof name, "signal_%s_%s_ns", scopes[i], where);
    calibration_say(name, lost ? NAN : (twice - once) * 1e3 / (2.0 * rounds), "ns",
                    i && !is_near ? 1000
                    : i           ? 400
                                  : NAN,
                    lost ? "a word did not come" : "one way: st.release until ld.acquire sees it");
    snprintf(name, sizeof name, "stale_%s_%s", scopes[i], where);
    if (!message(self, other, pair, page, name)) return false;
  }
  return true;
}

/* Counts the reads with torn words, for each kind of store. */
static bool tear(calibration *self, calibration *other, calibrate_pair pair, void *page, const char *where) {
  static const char *const forms[] = {"quad", "b128", "line"};
  char name[60], note[100];
  uint32_t counts[3];
  double us;
  pair.rounds = self->quick ? 20 : 200000;
  for (uint32_t form = CALIBRATE_QUAD; form <= CALIBRATE_LINE; form++) {
    pair.form = form;
    if (!run_pair(self, other, "calibrate_tear", pair, page, &us, counts)) return false;
    snprintf(name, sizeof name, "torn_%s_%s", forms[form], where);
    snprintf(note, sizeof note, "reads that saw half of a store, beside %u that saw another value",
             (unsigned)counts[2]);
    calibration_say(name, counts[0] ? NAN : counts[1], "reads", form == CALIBRATE_QUAD ? NAN : 0, note);
  }
  return true;
}

typedef bool use_of_pair(calibration *self, calibration *other, calibrate_pair pair, void *page, const char *where);

/* Runs with both roles at the owner's address if `first` is 0, and then with role 1 at another address of the same
 * memory. */
static bool near_pairs(calibration *self, int first, use_of_pair *use) {
  twice_mapped memory = {NULL, NULL};
  uint32_t *counts = NULL;
  bool ok = calibration_take(self, 64, &counts) && map_twice(self, self, &memory);
  for (int i = first; ok && i < 2; i++) {
    void *page = memory.owned->address;
    calibrate_pair pair = pair_of(page, i ? memory.mapped->address : page);
    pair.counts = counts;
    ok = use(self, self, pair, page, i ? "two_mappings" : "one_mapping");
  }
  unmap(self, &memory);
  gpu_give(self->gpu, counts);
  return ok;
}

bool calibrate_words(calibration *self) {
  return near_pairs(self, 0, exchange) && near_pairs(self, 1, message_aliases);
}
bool calibrate_tearing(calibration *self) { return near_pairs(self, 0, tear); }

/* Measures between this device and the next one, in this device's memory. */
bool calibrate_peer(calibration *self) {
  calibration other = {.gpu = NULL};
  twice_mapped memory = {NULL, NULL};
  uint32_t *counts = NULL;
  tool_error none = {.text = ""};
  if (gpu_count(&none) < 2) {
    calibration_say("signal_sys_peer_ns", NAN, "ns", 1000, "there is one device");
    return true;
  }
  bool ok = (calibration_open(1, &other) || tool_error_set(&self->error, "device 1: %s", other.error.text)) &&
            gpu_enter(self->gpu, &self->error) && calibration_take(self, 64, &counts) &&
            map_twice(self, &other, &memory);
  if (ok) {
    calibrate_pair pair = pair_of(memory.owned->address, memory.mapped->address);
    pair.counts = counts;
    ok = exchange(self, &other, pair, memory.owned->address, "peer");
  }
  unmap(self, &memory);
  gpu_give(self->gpu, counts);
  calibration_close(&other);
  gpu_enter(self->gpu, &none);
  return ok;
}
