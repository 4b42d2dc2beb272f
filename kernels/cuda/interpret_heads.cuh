/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs programs that all-gather heads. A unit is one head of one token, as it lies in the caller's memory. Rows may lie
 * at any strides. All ranks omit the tokens that a run does not have. */
#ifndef BNY_CUDA_INTERPRET_HEADS_CUH
#define BNY_CUDA_INTERPRET_HEADS_CUH

#include "cuda/interpret_bytes.cuh"

/* Returns the bytes of a packet within its row. */
template <int protocol> BNY_DEVICE bny_bytes_range bny_heads_range(const bny_interpreter &run, int packet) {
  bny_bytes_range range;
  range.byte = 4 * (uint64_t)bny_packet_first<protocol>(packet);
  range.low = 0;
  range.high = packet < run.work.packets ? (uint64_t)run.program->shape.value_dim : 0;
  range.words = bny_packet_words<protocol>(packet);
  return range;
}

template <int protocol>
BNY_DEVICE bny_packet bny_heads_read(const bny_interpreter &run, int32_t token, int32_t head, int packet) {
  const bny_device_call &call = *run.call;
  bny_packet made = {{0, 0, 0, 0}};
  bny_bytes_range range = bny_heads_range<protocol>(run, packet);
  int64_t row = token * call.in.values_token_stride + (head - call.in_head0) * call.in.values_head_stride;
  if (!range.is_empty())
    bny_bytes_load<protocol>((const unsigned char *)call.in.values + (row + (int64_t)range.byte), range, made.word);
  return made;
}

template <int protocol>
BNY_DEVICE void bny_heads_write(const bny_interpreter &run, int32_t token, int32_t head, int packet,
                                const bny_packet &value) {
  const bny_device_call &call = *run.call;
  bny_bytes_range range = bny_heads_range<protocol>(run, packet);
  int64_t row = token * call.out.values_token_stride + head * call.out.values_head_stride;
  if (!range.is_empty())
    bny_bytes_store<protocol>((unsigned char *)call.out.values + (row + (int64_t)range.byte), range, value.word);
}

template <int protocol> BNY_DEVICE void bny_heads_unit(bny_interpreter *run, int32_t token, int32_t head) {
  bool copies = run->step->kind == BNY_PROGRAM_COPY;
  run->sources.token = token;
  run->sources.head = head;
  if (protocol == BNY_PROTOCOL_SIMPLE && !copies) bny_merge_await(&run->self, run->sources, 0, 1, 0);
  BNY_ROLLED for (int first = 0; first < run->work.packets && !run->self.failed; first += BNY_WARP_LANES) {
    int packet = first + (int)bny_lane();
    bool active = packet < run->work.packets;
    bny_packet value[1] = {};
    if (copies)
      value[0] = bny_heads_read<protocol>(*run, token, head, packet);
    else
      bny_merge_receive<protocol>(&run->self, run->sources, 0, 1, 0, packet, active, value);
    if (run->self.failed) return;
    if (run->step->kind == BNY_PROGRAM_DELIVER)
      bny_heads_write<protocol>(*run, token, head, packet, value[0]);
    else
      bny_push_packet<protocol>(run->self, run->to, token, head, packet, active, value[0]);
  }
  if (!run->self.failed) bny_push_row<protocol>(run->self, run->to, token, head, &run->pending);
}

template <int protocol> BNY_DEVICE void bny_heads_step(bny_interpreter *run) {
  const bny_program_step *step = run->step;
  bny_unit_rows rows;
  bool more =
      bny_unit_rows_first(&rows, run->program->shape, run->work, step->token0, step->tokens, step->head0, step->heads);
  BNY_ROLLED for (; more && !run->self.failed; more = bny_unit_rows_next(&rows)) {
    if (run->call->valid.most && rows.token >= run->valid.count) break;
    bny_heads_unit<protocol>(run, rows.token, rows.head);
  }
  if (!run->self.failed) bny_push_end<protocol>(run->self, run->to, &run->pending);
}

template <int protocol>
BNY_DEVICE void bny_interpret_heads(const bny_device_group &group, const bny_program *program,
                                    const bny_device_call &call) {
  bny_interpreter run;
  bny_worker_begin(&run.self, group);
  bny_worker_join(&run.self);
  run.valid = bny_valid_begin(call.valid);
  if (bny_worker_announces()) {
    if (call.valid.most) bny_valid_announce(run.self.group, run.self.epoch, run.valid.count);
    bny_worker_announce(run.self);
  }
  uint32_t warps = bny_block_threads() / BNY_WARP_LANES;
  run.program = program;
  run.call = &call;
  run.work = {0,
              0,
              0,
              bny_protocol_packets(protocol, program->shape.chunk_columns / 4),
              bny_block() * warps + bny_warp(),
              bny_grid_blocks() * warps};
  BNY_ROLLED for (int32_t i = 0; i < program->nsteps; i++) {
    bny_interpret_set_step(&run, i);
    bny_heads_step<protocol>(&run);
  }
}

#define BNY_HEADS_KERNEL(name, protocol, bits, how)                                                                    \
  BNY_KERNEL BNY_LAUNCH_BOUNDS(BNY_BLOCK_THREADS_MAX, 1)                                                               \
      name(BNY_PARAMETER(bny_device_group, group), const bny_program *program, BNY_PARAMETER(bny_device_call, call)) { \
    bny_interpret_heads<protocol>(group, program, call);                                                               \
  }

#endif
