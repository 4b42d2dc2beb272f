/* SPDX-License-Identifier: Apache-2.0
 * Reports the plan of an operation, its costs, and the traffic of its last run. */
#include "op/pass.h"
#include "base/hash.h"
#include "base/status.h"

/* Adds what runs before or after the operation, or NULL. */
static void add(banyan_op_info *found, const banyan_op *other) {
  if (!other) return;
  banyan_op_info more = bny_op_query(other);
  found->predicted_us += more.predicted_us;
  found->bytes_sent += more.bytes_sent;
  found->messages_sent += more.messages_sent;
  found->bytes_between_nodes += more.bytes_between_nodes;
  if (more.arena_bytes > found->arena_bytes) found->arena_bytes = more.arena_bytes;
  found->plan_hash = bny_hash_add(found->plan_hash, more.plan_hash);
}

/* All runs add to the word of the operation, if it has one. */
static uint64_t saturated_on_device(const banyan_op *op) {
  if (!op->counter) return BANYAN_NOT_COUNTED;
  return atomic_load_explicit(&op->comm->device.engine->words.host[op->counter], memory_order_relaxed);
}

banyan_op_info bny_op_query(const banyan_op *op) {
  banyan_op_info found = {.size = sizeof found, .algorithm = "attention"};
  if (op->nparts > 0) {
    const bny_plan *first = op->kinds[0].plan;
    found = (banyan_op_info){.size = sizeof found,
                             .algorithm = first->algorithm,
                             .reason = first->reason,
                             .plan_hash = first->hash,
                             .roundings = (uint64_t)first->roundings};
  }
  if (op->attention) found.reason = op->attention->text;
  if (op->pass) {
    found.algorithm = "pass_kv";
    found.reason = op->pass->text;
  }
  for (int64_t i = 0; i < op->nkinds; i++) {
    const bny_op_kind *kind = &op->kinds[i];
    if (!op->pass) found.predicted_us += (double)kind->count * kind->plan->predicted_ns * 1e-3;
    if (op->on_device) {
      if (kind->plan->roundings > 0) found.saturated = saturated_on_device(op);
      const bny_proxy_segment *segment = kind->device_run ? bny_device_run_segment(kind->device_run) : NULL;
      if (segment) found.bytes_between_nodes += segment->bytes;
      continue;
    }
    /* Parts use the same arena in turn. */
    uint64_t arena_bytes = bny_run_arena_bytes(kind->run);
    if (arena_bytes > found.arena_bytes) found.arena_bytes = arena_bytes;
  }
  found.bytes_sent += op->report.bytes_sent;
  found.messages_sent += op->report.messages_sent;
  found.bytes_between_nodes += op->report.bytes_between_nodes;
  if (!op->on_device) found.saturated = op->report.saturated;
  for (int i = 0; i < BNY_STAGES; i++)
    if (op->stages[i] != op) add(&found, op->stages[i]);
  return found;
}

static size_t print_kind(const banyan_op *op, const bny_op_kind *kind, char *text, size_t bytes) {
  if (kind->device_run) return bny_device_run_print(kind->device_run, kind->plan, text, bytes);
  if (!op->within) return bny_plan_print(kind->plan, text, bytes);
  size_t length = bny_plan_print_head(kind->plan, text, bytes);
  bny_append(
      text, bytes, &length,
      "within a kernel: rows go straight to the ranks that get them, and are merged there in the order of ranks\n");
  return length;
}

static size_t describe_rows(const banyan_op *op, char *text, size_t bytes) {
  size_t length = 0;
  if (op->nparts > 0) length = print_kind(op, &op->kinds[0], text, bytes);
  if (op->nparts > 1) bny_append(text, bytes, &length, "and %lld more parts like it\n", (long long)op->nparts - 1);
  if (op->slices > 1)
    bny_append(text, bytes, &length, "in %d slices: one is combined while the next is attended to\n", op->slices);
  if (op->attention) bny_append(text, bytes, &length, "%s\n", op->pass ? op->pass->text : op->attention->text);
  return length;
}

size_t bny_op_describe(const banyan_op *op, char *text, size_t bytes) {
  size_t length = 0;
  for (int i = 0; i < BNY_STAGES; i++) {
    const banyan_op *stage = op->stages[i];
    size_t room = bytes > length ? bytes - length : 0;
    char *to = room ? text + length : NULL;
    if (stage) length += stage == op ? describe_rows(op, to, room) : bny_op_describe(stage, to, room);
  }
  return length;
}
