/* SPDX-License-Identifier: Apache-2.0
 * The interpreter, which runs all steps of any program in one launch. Every warp executes the steps for its own units.
 * After the join no warp waits for one of another block of this rank. */
#pragma once

#include "cuda/exact_sum.h"
#include "cuda/valid.h"
#include "cuda/remote.h"
#include "cuda/merge.h"
#include "cuda/push.h"

BNY_DEVICE const bny_program_step *bny_program_steps(const bny_program *program) {
  return (const bny_program_step *)(program + 1);
}

BNY_DEVICE const bny_program_endpoint *bny_program_endpoints(const bny_program *program) {
  return (const bny_program_endpoint *)(bny_program_steps(program) + program->nsteps);
}

struct bny_program_view {
  const bny_worker *self;
  const bny_program *program;
  const bny_program_endpoint *endpoints; /* the first endpoint of the view */
  int32_t count_, token, head, chunk;

  BNY_DEVICE_METHOD int64_t number_in(const bny_program_endpoint &endpoint, int32_t t, int32_t h) const {
    return ((int64_t)(t - endpoint.token0) * endpoint.heads + h - endpoint.head0) * program->shape.chunks + chunk;
  }
};

/* The sources of the current row. A message from another node has one signal for all its units. */
struct bny_program_sources : bny_program_view {
  BNY_DEVICE_METHOD const unsigned char *unit(int s) const {
    const bny_program_endpoint &endpoint = endpoints[s];
    return bny_worker_inbox(*self, self->group->rank, program->protocol) + endpoint.offset +
           number_in(endpoint, token, head) * (int64_t)program->shape.unit_bytes;
  }
  BNY_DEVICE_METHOD const uint64_t *signal(int s) const {
    if (bny_is_remote(endpoints[s])) return (const uint64_t *)endpoints[s].signals[self->epoch & 1];
    return bny_worker_signals(*self, self->group->rank) + endpoints[s].signal + number_in(endpoints[s], token, head);
  }
  BNY_DEVICE_METHOD int32_t peer(int s) const { return endpoints[s].peer; }
  BNY_DEVICE_METHOD int32_t slot(int s) const { return endpoints[s].slot; }
};

/* The sources with the bits of a value, which determine the layout of messages from other nodes. */
template <int bits> struct bny_program_sources_of {
  const bny_program_sources *all;

  BNY_DEVICE_METHOD const unsigned char *unit(int s) const { return all->unit(s); }
  BNY_DEVICE_METHOD const uint64_t *signal(int s) const { return all->signal(s); }
  BNY_DEVICE_METHOD int32_t peer(int s) const { return all->peer(s); }
  BNY_DEVICE_METHOD int32_t slot(int s) const { return all->slot(s); }
};

template <int protocol, int bits>
BNY_DEVICE void bny_merge_poll(const bny_program_sources_of<bits> &typed, int s, const unsigned char *unit, int packet,
                               bool wanted, bny_quad *raw) {
  const bny_program_sources &sources = *typed.all;
  if (protocol != BNY_PROTOCOL_SIMPLE || !wanted || !bny_is_remote(sources.endpoints[s])) {
    bny_packet_poll<protocol>(unit, packet, wanted, raw);
    return;
  }
  const bny_program_endpoint &endpoint = sources.endpoints[s];
  const bny_unit_shape &shape = sources.program->shape;
  int64_t row = sources.number_in(endpoint, sources.token, sources.head) / shape.chunks;
  *raw = bny_remote_load(bny_remote_unit_make<bits>(endpoint, shape, sources.self->epoch, row, sources.chunk), packet);
}

struct bny_program_destinations : bny_program_view {
  BNY_DEVICE_METHOD int count() const { return count_; }
  BNY_DEVICE_METHOD bool alike() const { return false; }
  BNY_DEVICE_METHOD int64_t number(int d, int32_t t, int32_t h) const { return number_in(endpoints[d], t, h); }
  BNY_DEVICE_METHOD unsigned char *unit(int d, int64_t number) const {
    return bny_worker_inbox(*self, endpoints[d].peer, program->protocol) + endpoints[d].offset +
           number * (int64_t)program->shape.unit_bytes;
  }
  BNY_DEVICE_METHOD uint64_t *signal(int d, int64_t number) const {
    if (bny_is_remote(endpoints[d])) return (uint64_t *)endpoints[d].signals[self->epoch & 1] + number;
    return bny_worker_signals(*self, endpoints[d].peer) + endpoints[d].signal + number;
  }
};

/* The state of a warp's run, with its current step. */
struct bny_interpreter {
  bny_worker self;
  bny_unit_work work;
  const bny_program *program;
  const bny_device_call *call;
  const bny_program_step *step;
  bny_program_sources sources;
  bny_program_destinations to;
  bny_push_pending pending;
  bny_valid_run valid;
};

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Pushes a packet into inboxes. Each lane looks up the address of one destination, so 32 addresses take one read of the
 * program. */
template <int protocol>
BNY_DEVICE void bny_interpret_push_local(const bny_interpreter &run, const bny_unit_rows &rows, int count, int packet,
                                         bool active, const bny_packet &value) {
  BNY_ROLLED for (int first = 0; first < count; first += BNY_WARP_LANES) {
    int mine = first + (int)bny_lane(), some = count - first < BNY_WARP_LANES ? count - first : BNY_WARP_LANES;
    uint64_t unit = 0;
    if (mine < count) unit = (uint64_t)(uintptr_t)run.to.unit(mine, run.to.number(mine, rows.token, rows.head));
    BNY_ROLLED for (int d = 0; d < some; d++) {
      bny_packet_store<protocol>((unsigned char *)(uintptr_t)bny_shuffle(unit, d), packet, value, run.self.epoch,
                                 active);
    }
  }
}

/* Pushes a packet to all destinations of the step: inboxes, and messages to other nodes. */
template <int protocol, int bits>
BNY_DEVICE void bny_interpret_push(bny_interpreter *run, const bny_unit_rows &rows, int packet,
                                   const bny_packet &value) {
  const bny_unit_shape &shape = run->program->shape;
  bool active = packet < run->work.packets;
  const int local = run->to.count_ - run->step->nremote;
  bny_interpret_push_local<protocol>(*run, rows, local, packet, active, value);
  const int end = protocol == BNY_PROTOCOL_SIMPLE && active ? run->to.count_ : 0; /* only SIMPLE leaves the node */
  BNY_ROLLED for (int d = local; d < end; d++) {
    int64_t row = run->to.number(d, rows.token, rows.head) / shape.chunks;
    bny_remote_store(bny_remote_unit_make<bits>(run->to.endpoints[d], shape, run->self.epoch, row, run->work.chunk),
                     packet, value);
  }
}

template <int protocol, int bits>
BNY_DEVICE void bny_interpret_copy(bny_interpreter *run, const bny_unit_rows &rows, int32_t token) {
  const bny_unit_shape &shape = run->program->shape;
  const banyan_partial &in = run->call->in;
  bny_import import = {-BNY_INFINITY_F, 0.0f, 0.0f, false};
  bool reads = !run->call->valid.most || (token >= 0 && bny_valid_reads(run->call->valid, token));
  if (reads) import = bny_import_row(in, token, rows.head, bits != 32);
  bny_valid_report_data(&run->self, run->call->valid, run->valid, import.bad, token, rows.head);
  BNY_ROLLED for (int first = 0; first < run->work.packets && !run->self.failed; first += BNY_WARP_LANES) {
    int packet = first + (int)bny_lane();
    bool active = packet < run->work.packets;
    bny_lane_values<protocol, bits> values;
    bny_unit_read<protocol, bits>(in, run->work, token, rows.head, packet, active && reads, &values);
    bny_packet made = bny_unit_import(values, run->work, import, packet, shape.wire);
    bny_interpret_push<protocol, bits>(run, rows, packet, made);
  }
}

/* Sends merged values to the step's destinations, or writes them to the caller's result. */
template <int protocol, int bits>
BNY_DEVICE void bny_interpret_put(bny_interpreter *run, const bny_unit_rows &rows, int packet, float m, float d,
                                  const bny_lane_values<protocol, bits> &values) {
  bool active = packet < run->work.packets;
  if (run->step->kind == BNY_PROGRAM_MERGE) {
    bny_packet made = bny_unit_pack(values, run->work, packet, m, d, run->program->shape.wire);
    bny_interpret_push<protocol, bits>(run, rows, packet, made);
    return;
  }
  const banyan_partial &out = run->call->out;
  if (run->call->valid.keeps_empty_rows && d == 0.0f) return;
  int32_t token = rows.token - run->call->out_token0, head = rows.head - run->call->out_head0;
  bool writes = run->work.chunk == 0 && packet - (int)bny_lane() == 0;
  float factor = bny_export_row(run->self.group, out, token, head, m, d, writes);
  bny_unit_write(out, run->work, token, head, packet, factor, active, values);
}

template <int protocol, int bits> BNY_DEVICE void bny_interpret_merge(bny_interpreter *run, const bny_unit_rows &rows) {
  constexpr int width = bits == 8 ? 4 : BNY_MERGE_WIDTH; /* registers cannot hold sixteen values of eight sources */
  bny_program_sources_of<bits> sources = {&run->sources};
  int count = run->step->nsources;
  bny_rounding rounding = {run->program->shape.wire, run->program->round_nodes != 0,
                           bits != 32 && run->step->kind == BNY_PROGRAM_MERGE};
  bool together = count <= width && !(bits != 32 && rounding.nodes);
  bny_merge_tree tree;
  if (protocol == BNY_PROTOCOL_SIMPLE && together) bny_merge_await(&run->self, sources, 0, count, 0);
  BNY_ROLLED for (int first = 0; first < run->work.packets && !run->self.failed; first += BNY_WARP_LANES) {
    int packet = first + (int)bny_lane();
    bny_merge_part<protocol, bits> merged;
    if (together) {
      bny_packet packets[width];
      bny_merge_receive<protocol>(&run->self, sources, 0, count, 0, packet, packet < run->work.packets, packets);
      if (first == 0) bny_merge_tree_of<protocol>(packets, count, rounding.last, &tree);
      merged = {tree.m, tree.d, bny_merge_tree_values<protocol, bits>(packets, count, tree, packet, rounding.wire)};
    } else {
      bny_merge_many(&run->self, sources, count, run->work, packet, rounding, &merged);
    }
    if (!run->self.failed) bny_interpret_put(run, rows, packet, merged.m, merged.d, merged.values);
  }
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

BNY_DEVICE void bny_interpret_set_step(bny_interpreter *run, int32_t index) {
  const bny_program_endpoint *endpoints = bny_program_endpoints(run->program);
  run->step = bny_program_steps(run->program) + index;
  bny_program_view view = {&run->self, run->program,   endpoints + run->step->sources, run->step->nsources, 0,
                           0,          run->work.chunk};
  *(bny_program_view *)&run->sources = view;
  view.endpoints = endpoints + run->step->destinations;
  view.count_ = run->step->ndestinations;
  *(bny_program_view *)&run->to = view;
  run->pending = {0, 0, 0};
}

/* `exact`: each row is delivered as a sum of BANYAN_ORDER_EXACT. */
template <int protocol, int bits, bool exact> BNY_DEVICE void bny_interpret_step(bny_interpreter *run) {
  const bny_program_step *step = run->step;
  bny_unit_rows rows;
  bool more =
      bny_unit_rows_first(&rows, run->program->shape, run->work, step->token0, step->tokens, step->head0, step->heads);
  BNY_ROLLED for (; more && !run->self.failed; more = bny_unit_rows_next(&rows)) {
    int32_t token = rows.token;
    if (run->program->shape.columns)
      bny_unit_work_move<protocol, bits>(&run->work, run->program->shape, rows.head, (int32_t)step->byte0,
                                         (int32_t)step->bytes);
    if (run->call->valid.most) {
      token = bny_valid_token(run->call->valid, run->valid, rows.token);
      /* A proxy sends and awaits complete messages, so tokens that the run omits are sent as empty rows. */
      if (token < 0 && (!run->self.group->proxy || step->kind == BNY_PROGRAM_DELIVER)) continue;
    }
    run->sources.token = rows.token;
    run->sources.head = rows.head;
    if (step->kind == BNY_PROGRAM_COPY)
      bny_interpret_copy<protocol, bits>(run, rows, token);
    else if constexpr (exact)
      bny_exact_merge<protocol>(&run->self, bny_program_sources_of<bits>{&run->sources}, run->step->nsources, run->work,
                                run->program->shape.wire, *run->call, rows.token, rows.head);
    else
      bny_interpret_merge<protocol, bits>(run, rows);
    if (!run->self.failed) bny_push_row<protocol>(run->self, run->to, rows.token, rows.head, &run->pending);
  }
  if (!run->self.failed) bny_push_end<protocol>(run->self, run->to, &run->pending);
}

template <int protocol, int bits, bool exact>
BNY_DEVICE void bny_interpret(const bny_device_group &group, const bny_program *program, const bny_device_call &call) {
  bny_interpreter run;
  bny_worker_begin(&run.self, group);
  bny_worker_join(&run.self);
  run.valid = bny_valid_begin(call.valid);
  if (bny_worker_announces()) {
    if (call.valid.most) bny_valid_announce(run.self.group, run.self.epoch, run.valid.count);
    bny_worker_announce_program(run.self, program->label);
    bny_valid_check(run.self.group, call.valid, run.valid);
  }
  run.program = program;
  run.call = &call;
  run.work = bny_unit_work_make<protocol, bits>(program->shape);
  BNY_ROLLED for (int32_t i = 0; i < program->nsteps; i++) {
    bny_interpret_set_step(&run, i);
    /* All chunks of a row must have read its statistics. */
    if (call.shares_stats && run.step->kind == BNY_PROGRAM_DELIVER) bny_unit_row_sync(program->shape);
    bny_interpret_step<protocol, bits, exact>(&run);
  }
  if (bits != 32 && call.saturated) bny_unit_count_saturated(call.saturated, run.work.saturated);
  bny_worker_end(run.self);
}

#define BNY_INTERPRET_KERNEL(name, protocol, bits, how)                                                                \
  BNY_KERNEL BNY_LAUNCH_BOUNDS(BNY_BLOCK_THREADS_MAX, 1)                                                               \
      name(BNY_PARAMETER(bny_device_group, group), const bny_program *program, BNY_PARAMETER(bny_device_call, call)) { \
    bny_interpret<protocol, bits, how>(group, program, call);                                                          \
  }
