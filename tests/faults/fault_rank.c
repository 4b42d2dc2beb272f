/* SPDX-License-Identifier: Apache-2.0
 * One rank of tests/faults/faults. It joins the others as a program does (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT),
 * combines, checks every result, and commits its fault if it is the victim. When a call fails, it aborts, shrinks to
 * the surviving ranks, and combines with them. It prints the result of each stage as one line of JSON:
 *
 *     fault_rank FAULT VICTIM [TIMEOUT_MS [ITERATIONS [MEETING_MS]]] */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm.h"
#include "tests/support/self.h"
#include "tests/support/clock.h"

enum { TOKENS = 4, HEADS = 8, VALUE_DIM = 64, ROWS = TOKENS * HEADS, RANKS_MAX = 64, AFTERWARDS = 20, DEED_AT = 25 };

static const char *fault;
static bool is_victim;
static int64_t timeout_ms, meeting_ms;
static int32_t origin; /* rank of this process in the first communicator */

static bool fault_is(const char *name) { return strcmp(fault, name) == 0; }

/* ---- output ------------------------------------------------------------------------------------------------------ */

static void say(const char *stage, banyan_status status, int32_t culprit, const char *why, const char *more) {
  char text[700];
  size_t length = 0;
  for (; *why && length < sizeof text - 2; why++) {
    if (*why == '"' || *why == '\\') text[length++] = '\\';
    text[length++] = (unsigned char)*why < 32 ? ' ' : *why;
  }
  text[length] = 0;
  printf("{\"stage\": \"%s\", \"at\": %.6f, \"status\": \"%s\", \"culprit\": %d, \"text\": \"%s\"%s}\n", stage, now_s(),
         banyan_status_string(status), culprit, text, more);
  fflush(stdout);
}

static void say_deed(void) { say("deed", BANYAN_OK, -1, "", ""); }

static void die(void) {
  say_deed();
  raise(SIGKILL);
}

/* ---- combining --------------------------------------------------------------------------------------------------- */

typedef struct buffers {
  float in[ROWS * VALUE_DIM], lse[ROWS], out[ROWS * VALUE_DIM];
} buffers;

/* Returns true if the fault corrupts a message between nodes. The algorithm is then oneshot, because with two levels
 * the victim may send none. */
static bool spoils(void) { return fault_is("truncated") || fault_is("oversized") || fault_is("misplaced"); }

/* Rank r contributes r + 1 + i with equal weights. The result is the mean of the members' r + 1, plus i. */
static banyan_status combine(banyan_comm *comm, buffers *memory, int i, banyan_dtype wire, int32_t heads) {
  banyan_partial in, out;
  for (int k = 0; k < ROWS * VALUE_DIM; k++) memory->in[k] = (float)(origin + 1 + i % 100);
  banyan_partial_init(&in, memory->in, BANYAN_F32, memory->lse, BANYAN_F32, heads, VALUE_DIM);
  banyan_partial_init(&out, memory->out, BANYAN_F32, NULL, BANYAN_F32, heads, VALUE_DIM);
  banyan_combine_desc desc = {.size = sizeof desc,
                              .tokens = TOKENS,
                              .heads = heads,
                              .value_dim = VALUE_DIM,
                              .wire = wire,
                              .algorithm = spoils() ? "oneshot" : NULL};
  return banyan_combine(comm, &desc, &in, &out);
}

static bool is_right(const buffers *memory, const int32_t *members, int32_t nmembers, int i) {
  double sum = 0;
  for (int32_t k = 0; k < nmembers; k++) sum += members[k] + 1;
  double wanted = sum / nmembers + i % 100;
  for (int k = 0; k < ROWS * VALUE_DIM; k++)
    if (fabs((double)memory->out[k] - wanted) > 1e-4 * wanted) return false;
  return true;
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

static bny_transport_ops bent; /* the victim's functions */
static const bny_transport_ops *straight;
static bool armed;

/* Dies, or corrupts a message, in the middle of a run. */
static void bent_send(bny_transport *transport, uint64_t tag, int32_t slot, size_t offset, size_t bytes,
                      const int32_t *peers, int32_t npeers) {
  bool far = false, near = false;
  for (int32_t k = 0; k < npeers; k++) {
    bool here = bny_transport_is_same_node(transport, peers[k]);
    near |= here;
    far |= !here;
  }
  if (armed && fault_is("kill-planning")) die();
  if (armed && fault_is("kill-intra") && near) die();
  if (armed && fault_is("kill-inter") && far) die();
  if (armed && spoils() && far && bytes) {
    say_deed();
    if (fault_is("truncated")) bytes /= 2;
    if (fault_is("oversized")) bytes *= 2;
    if (fault_is("misplaced")) offset = transport->half_bytes - BNY_LINE_BYTES; /* the message then exceeds the half */
    armed = false;
  }
  straight->send(transport, tag, slot, offset, bytes, peers, npeers);
}

static void bend(banyan_comm *comm) {
  straight = comm->transport->ops;
  bent = *straight;
  bent.send = bent_send;
  comm->transport->ops = &bent;
}

static void *abort_later(void *argument) {
  sleep_s(0.005);
  say_deed();
  banyan_comm_abort(argument, "the fault program aborts");
  return NULL;
}

/* Commits the victim's fault before iteration i. */
static banyan_status misbehave(banyan_comm *comm, buffers *memory, int i) {
  static pthread_t thread;
  if (i == 0 && fault_is("kill-planning")) armed = true;
  if (fault_is("slow") && (i == DEED_AT || i == 2 * DEED_AT)) sleep_s(0.6e-3 * (double)timeout_ms);
  if (i != DEED_AT) return BANYAN_OK;
  armed = true;
  if (fault_is("stop")) {
    say_deed();
    raise(SIGSTOP);
  }
  if (fault_is("abort")) pthread_create(&thread, NULL, abort_later, comm);
  if (fault_is("abort")) pthread_detach(thread);
  if (fault_is("shape") || fault_is("wire") || fault_is("order")) say_deed();
  if (fault_is("shape")) return combine(comm, memory, i, BANYAN_F32, HEADS / 2);
  if (fault_is("wire")) return combine(comm, memory, i, BANYAN_BF16, HEADS);
  if (fault_is("order")) return banyan_barrier(comm);
  return BANYAN_OK;
}

/* ---- another library's version ----------------------------------------------------------------------------------- */

static banyan_bootstrap honest;

static int allgather_lying(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  (void)context;
  static bool lied;
  char *copy = malloc(bytes);
  if (!copy) return 1;
  memcpy(copy, mine, bytes);
  if (!lied && bytes == sizeof(bny_facts)) {
    say_deed();
    snprintf(((bny_facts *)(void *)copy)->version, sizeof(((bny_facts *)0)->version), "9.9.9");
    lied = true;
  }
  int result = honest.allgather(honest.context, copy, all, bytes, timeout_ns);
  free(copy);
  return result;
}

static void *die_later(void *argument) {
  sleep_s(*(const double *)argument * 1e-3);
  die();
  return NULL;
}

/* ---- stages ------------------------------------------------------------------------------------------------------ */

static banyan_status meet(banyan_comm **comm) {
  static double in_ms = 2;
  pthread_t killer;
  banyan_env *env = NULL;
  banyan_bootstrap bootstrap;
  if (is_victim && fault_is("kill-bootstrap") && pthread_create(&killer, NULL, die_later, &in_ms) != 0)
    return BANYAN_ERR_SYSTEM;
  banyan_status status = banyan_env_create(meeting_ms * 1000000, &env, &bootstrap);
  if (is_victim && fault_is("kill-bootstrap")) die();
  if (status != BANYAN_OK) return status;
  honest = bootstrap;
  if (is_victim && fault_is("version")) bootstrap.allgather = allgather_lying;
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = timeout_ms * 1000000};
  status = banyan_comm_create(&bootstrap, &config, comm);
  banyan_env_destroy(env);
  return status;
}

/* Returns the status of the first call that failed. */
static banyan_status work(banyan_comm *comm, buffers *memory, int iterations) {
  int32_t all[RANKS_MAX];
  for (int32_t k = 0; k < RANKS_MAX; k++) all[k] = k;
  if (is_victim) bend(comm);
  for (int i = 0; i < iterations; i++) {
    banyan_status status = is_victim ? misbehave(comm, memory, i) : BANYAN_OK;
    if (status == BANYAN_OK) status = combine(comm, memory, i, BANYAN_F32, HEADS);
    if (status != BANYAN_OK) return status;
    if (!is_right(memory, all, banyan_comm_nranks(comm), i)) say("wrong", BANYAN_OK, -1, "a result is wrong", "");
  }
  return banyan_barrier(comm);
}

static void go_on_without(banyan_comm *comm, buffers *memory) {
  int32_t members[RANKS_MAX] = {0};
  banyan_comm *left = NULL;
  char more[64] = "";
  banyan_comm_abort(comm, "going on without those who failed");
  banyan_status status = banyan_comm_shrink(comm, members, &left);
  if (status == BANYAN_OK) snprintf(more, sizeof more, ", \"members\": %d", banyan_comm_nranks(left));
  say("shrink", status, -1, status == BANYAN_OK ? "" : banyan_last_error(), more);
  for (int i = 0; i < AFTERWARDS && status == BANYAN_OK; i++) {
    status = combine(left, memory, i, BANYAN_F32, HEADS);
    if (status == BANYAN_OK && !is_right(memory, members, banyan_comm_nranks(left), i)) status = BANYAN_ERR_DATA;
    if (status != BANYAN_OK) say("afterwards", status, banyan_comm_failed_rank(left), banyan_last_error(), "");
  }
  if (status == BANYAN_OK) status = banyan_barrier(left);
  if (status == BANYAN_OK) say("afterwards", status, -1, "", more);
  banyan_comm_destroy(left);
}

int main(int argc, char **argv) {
  if (argc < 3 || !getenv("RANK")) {
    fprintf(stderr, "usage: fault_rank FAULT VICTIM [TIMEOUT_MS [ITERATIONS [MEETING_MS]]]\n");
    return 2;
  }
  fault = argv[1];
  origin = atoi(getenv("RANK"));
  is_victim = atoi(argv[2]) == origin;
  timeout_ms = argc > 3 ? atoi(argv[3]) : 1000;
  int iterations = argc > 4 ? atoi(argv[4]) : 100;
  meeting_ms = argc > 5 ? atoi(argv[5]) : timeout_ms;
  static buffers memory;
  char more[128];
  banyan_comm *comm = NULL;
  int files = self_count("/proc/self/fd"), threads = self_count("/proc/self/task");
  say("begin", BANYAN_OK, -1, "", "");
  banyan_status status = meet(&comm);
  if (status != BANYAN_OK) {
    say("meet", status, -1, banyan_last_error(), "");
  } else {
    say("met", status, -1, "", "");
    status = work(comm, &memory, iterations);
    say("work", status, status == BANYAN_OK ? -1 : banyan_comm_failed_rank(comm),
        status == BANYAN_OK ? "" : banyan_comm_error(comm), "");
    if (status != BANYAN_OK && banyan_comm_status(comm) != BANYAN_OK) go_on_without(comm, &memory);
    if (status == BANYAN_OK && is_victim && fault_is("kill-finalise")) die();
  }
  banyan_comm_destroy(comm);
  snprintf(more, sizeof more, ", \"fds\": %d, \"threads\": %d, \"maps\": %d, \"waited_s\": %.3f",
           self_count("/proc/self/fd") - files, self_count("/proc/self/task") - threads, self_mappings("memfd:banyan"),
           self_waited_s());
  say("end", BANYAN_OK, -1, "", more);
  return 0;
}
