/* SPDX-License-Identifier: Apache-2.0
 *
 * Programs that move bytes. Unit k is bytes [k U, (k + 1) U) of the whole, U the shape's chunk_columns, so that words lie alike
 * on all ranks wherever ranges begin; of the first and the last unit of a range only a part counts. */
#ifndef BNY_CUDA_INTERPRET_BYTES_CUH
#define BNY_CUDA_INTERPRET_BYTES_CUH

#include "cuda/interpret.cuh"

/* The bytes of a step that are in the word at `byte`: bit i for byte + i. */
BNY_DEVICE uint32_t bny_bytes_wanted(const bny_program_step &step, uint64_t byte) {
  uint32_t wanted = 0;
  BNY_UNROLL for (int i = 0; i < 4; i++) wanted |= (byte + i >= step.byte0 && byte + i < step.byte0 + step.bytes ? 1u : 0u) << i;
  return wanted;
}

BNY_DEVICE uint32_t bny_bytes_load(const unsigned char *from, uint32_t wanted) {
  if (wanted == 15 && ((uintptr_t)from & 3) == 0) return *(const uint32_t *)from;
  uint32_t word = 0;
  BNY_UNROLL for (int i = 0; i < 4; i++)
    if (wanted >> i & 1) word |= (uint32_t)from[i] << (8 * i);
  return word;
}

BNY_DEVICE void bny_bytes_store(unsigned char *to, uint32_t wanted, uint32_t word) {
  if (wanted == 15 && ((uintptr_t)to & 3) == 0) {
    *(uint32_t *)to = word;
    return;
  }
  BNY_UNROLL for (int i = 0; i < 4; i++)
    if (wanted >> i & 1) to[i] = (unsigned char)(word >> (8 * i));
}

/* Where in the whole the words of a packet begin. */
template <int protocol> BNY_DEVICE uint64_t bny_bytes_at(const bny_interpreter &run, int32_t unit, int packet) {
  return (uint64_t)unit * (uint64_t)run.program->shape.chunk_columns + 4 * (uint64_t)bny_packet_first<protocol>(packet);
}

template <int protocol> BNY_DEVICE bny_packet bny_bytes_read(const bny_interpreter &run, int32_t unit, int packet) {
  bny_packet made = {{0, 0, 0, 0}};
  uint64_t byte = bny_bytes_at<protocol>(run, unit, packet);
  int words = packet < run.work.packets ? bny_packet_words<protocol>(packet) : 0;
  BNY_UNROLL for (int i = 0; i < bny_packet_words_max<protocol>(); i++) {
    uint32_t wanted = i < words ? bny_bytes_wanted(*run.step, byte + 4 * i) : 0;
    made.word[i] = bny_bytes_load(run.call->in_bytes + (byte + 4 * i - run.call->in_byte0), wanted);
  }
  return made;
}

template <int protocol>
BNY_DEVICE void bny_bytes_write(const bny_interpreter &run, int32_t unit, int packet, const bny_packet &value) {
  uint64_t byte = bny_bytes_at<protocol>(run, unit, packet);
  int words = packet < run.work.packets ? bny_packet_words<protocol>(packet) : 0;
  BNY_UNROLL for (int i = 0; i < bny_packet_words_max<protocol>(); i++) {
    uint32_t wanted = i < words ? bny_bytes_wanted(*run.step, byte + 4 * i) : 0;
    bny_bytes_store(run.call->out_bytes + (byte + 4 * i - run.call->out_byte0), wanted, value.word[i]);
  }
}

template <int protocol> BNY_DEVICE void bny_bytes_unit(bny_interpreter *run, int32_t unit) {
  bool copies = run->step->kind == BNY_PROGRAM_COPY;
  run->sources.head = unit;
  if (protocol == BNY_PROTOCOL_SIMPLE && !copies) bny_merge_await(&run->self, run->sources, 0, 1, 0);
  BNY_ROLLED for (int first = 0; first < run->work.packets && !run->self.failed; first += BNY_WARP_LANES) {
    int packet = first + (int)bny_lane();
    bool active = packet < run->work.packets;
    bny_packet value[BNY_MERGE_WIDTH];
    if (copies) value[0] = bny_bytes_read<protocol>(*run, unit, packet);
    else bny_merge_receive<protocol>(&run->self, run->sources, 0, 1, 0, packet, active, value);
    if (run->self.failed) return;
    if (run->step->kind == BNY_PROGRAM_DELIVER) bny_bytes_write<protocol>(*run, unit, packet, value[0]);
    else bny_push_packet<protocol>(run->self, run->to, 0, unit, packet, active, value[0]);
  }
  if (!run->self.failed) bny_push_row<protocol>(run->self, run->to, 0, unit, &run->pending);
}

template <int protocol>
BNY_DEVICE void bny_interpret_bytes(const bny_device_group &group, const bny_program *program, const bny_device_call &call) {
  bny_interpreter run;
  bny_worker_begin(&run.self, group);
  bny_worker_join(&run.self);
  if (bny_worker_announces()) bny_worker_announce_program(run.self, program->label);
  uint32_t warps = bny_block_threads() / BNY_WARP_LANES;
  run.program = program;
  run.call = &call;
  run.work = {0, 0, 0, bny_protocol_packets(protocol, program->shape.chunk_columns / 4), bny_block() * warps + bny_warp(),
              bny_grid_blocks() * warps};
  BNY_ROLLED for (int32_t i = 0; i < program->nsteps; i++) {
    bny_unit_rows rows;
    bny_interpret_set_step(&run, i);
    bool more = bny_unit_rows_first(&rows, program->shape, run.work, 0, 1, run.step->head0, run.step->heads);
    BNY_ROLLED for (; more && !run.self.failed; more = bny_unit_rows_next(&rows)) bny_bytes_unit<protocol>(&run, rows.head);
    if (!run.self.failed) bny_push_end<protocol>(run.self, run.to, &run.pending);
  }
}

#define BNY_BYTES_KERNEL(name, protocol)                                                                \
  BNY_KERNEL BNY_LAUNCH_BOUNDS(BNY_BLOCK_THREADS_MAX, 1)                                                 \
  name(BNY_PARAMETER(bny_device_group, group), const bny_program *program, BNY_PARAMETER(bny_device_call, call)) { \
    bny_interpret_bytes<protocol>(group, program, call);                                                 \
  }

#endif
