/* SPDX-License-Identifier: Apache-2.0
 * Runs programs that move bytes. Unit k is bytes [k U, (k + 1) U) of the collective's buffer, where U is the shape's
 * chunk_columns. Words therefore have the same alignment on all ranks, wherever ranges begin. The first and last unit
 * of a range may be partial.
 *
 * With `heads`, programs all-gather heads. A unit is then one head of one token, as it lies in the caller's memory, at
 * any strides. All ranks omit the tokens that a run does not have. */
#pragma once

#include "cuda/interpret.cuh"

/* The words of a packet. Bytes [low, high) of the collective's buffer belong to the step. */
struct bny_bytes_range {
  uint64_t byte, low, high; /* byte: offset of the first word */
  int words;

  BNY_DEVICE_METHOD bool is_empty() const { return low >= high; }
  BNY_DEVICE_METHOD bool is_whole() const { return byte >= low && byte + 4 * (uint32_t)words <= high; }
  BNY_DEVICE_METHOD bool has(int i) const {
    return byte + (uint32_t)i >= low && byte + (uint32_t)i < high && i < 4 * words;
  }
};

/* Returns the range of a packet, in the collective's buffer or in the row of a head. It is empty if the packet does not
 * exist. */
template <int protocol, bool heads>
BNY_DEVICE bny_bytes_range bny_bytes_range_of(const bny_interpreter &run, int32_t head, int packet) {
  const bny_unit_shape &shape = run.program->shape;
  uint64_t end = heads ? (uint64_t)shape.value_dim : run.step->byte0 + run.step->bytes;
  bny_bytes_range range;
  range.byte = 4 * (uint64_t)bny_packet_first<protocol>(packet);
  if (!heads) range.byte += (uint64_t)head * (uint64_t)shape.chunk_columns;
  range.low = heads ? 0 : run.step->byte0;
  range.high = packet < run.work.packets ? end : 0;
  range.words = bny_packet_words<protocol>(packet);
  return range;
}

/* Returns the width in bytes of accesses to a complete, aligned packet. Lines of LL128 carry 120 bytes. */
template <int protocol> BNY_DEVICE constexpr int bny_bytes_width() {
  return protocol == BNY_PROTOCOL_SIMPLE ? 16 : protocol == BNY_PROTOCOL_LL128 ? 8 : 4;
}

template <int protocol>
BNY_DEVICE void bny_bytes_load(const unsigned char *from, const bny_bytes_range &range, uint32_t *word) {
  constexpr int width = bny_bytes_width<protocol>(), words = bny_packet_words_max<protocol>();
  bool whole = range.is_whole();
  if (width == 16 && whole && ((uintptr_t)from & 15) == 0) {
    bny_quad quad = bny_load_quad(from);
    BNY_UNROLL for (int w = 0; w < words; w++) word[w] = quad.word[w];
  } else if (width == 8 && whole && ((uintptr_t)from & 7) == 0) {
    BNY_UNROLL for (int w = 0; w + 1 < words; w += 2) {
      uint64_t pair = w < range.words ? ((const uint64_t *)from)[w / 2] : 0;
      word[w] = (uint32_t)pair;
      word[w + 1] = (uint32_t)(pair >> 32);
    }
  } else if (whole && ((uintptr_t)from & 3) == 0) {
    BNY_UNROLL for (int w = 0; w < words; w++) word[w] = w < range.words ? ((const uint32_t *)from)[w] : 0;
  } else {
    BNY_UNROLL for (int i = 0; i < 4 * words; i++) {
      if (i % 4 == 0) word[i / 4] = 0;
      if (range.has(i)) word[i / 4] |= (uint32_t)from[i] << (8 * (i % 4));
    }
  }
}

template <int protocol>
BNY_DEVICE void bny_bytes_store(unsigned char *to, const bny_bytes_range &range, const uint32_t *word) {
  constexpr int width = bny_bytes_width<protocol>(), words = bny_packet_words_max<protocol>();
  bool whole = range.is_whole();
  if (width == 16 && whole && ((uintptr_t)to & 15) == 0) {
    bny_quad quad;
    BNY_UNROLL for (int w = 0; w < words; w++) quad.word[w] = word[w];
    bny_store_quad(to, quad);
  } else if (width == 8 && whole && ((uintptr_t)to & 7) == 0) {
    BNY_UNROLL for (int w = 0; w + 1 < words; w += 2) {
      if (w < range.words) ((uint64_t *)to)[w / 2] = word[w] | (uint64_t)word[w + 1] << 32;
    }
  } else if (whole && ((uintptr_t)to & 3) == 0) {
    BNY_UNROLL for (int w = 0; w < words; w++) {
      if (w < range.words) ((uint32_t *)to)[w] = word[w];
    }
  } else {
    BNY_UNROLL for (int i = 0; i < 4 * words; i++) {
      if (range.has(i)) to[i] = (unsigned char)(word[i / 4] >> (8 * (i % 4)));
    }
  }
}

template <int protocol, bool heads>
BNY_DEVICE bny_packet bny_bytes_read(const bny_interpreter &run, int32_t token, int32_t head, int packet) {
  const bny_device_call &call = *run.call;
  bny_packet made = {{0, 0, 0, 0}};
  bny_bytes_range range = bny_bytes_range_of<protocol, heads>(run, head, packet);
  if (range.is_empty()) return made;
  const unsigned char *from = heads ? (const unsigned char *)call.in.values : call.in_bytes;
  int64_t row = heads ? token * call.in.values_token_stride + (head - call.in_head0) * call.in.values_head_stride
                      : -(int64_t)call.in_byte0;
  bny_bytes_load<protocol>(from + (row + (int64_t)range.byte), range, made.word);
  return made;
}

template <int protocol, bool heads>
BNY_DEVICE void bny_bytes_write(const bny_interpreter &run, int32_t token, int32_t head, int packet,
                                const bny_packet &value) {
  const bny_device_call &call = *run.call;
  bny_bytes_range range = bny_bytes_range_of<protocol, heads>(run, head, packet);
  if (range.is_empty()) return;
  unsigned char *to = heads ? (unsigned char *)call.out.values : call.out_bytes;
  int64_t row = heads ? token * call.out.values_token_stride + head * call.out.values_head_stride
                      : run.step->shift - (int64_t)call.out_byte0;
  bny_bytes_store<protocol>(to + (row + (int64_t)range.byte), range, value.word);
}

template <int protocol, bool heads> BNY_DEVICE void bny_bytes_unit(bny_interpreter *run, int32_t token, int32_t head) {
  bool copies = run->step->kind == BNY_PROGRAM_COPY;
  run->sources.token = token;
  run->sources.head = head;
  if (protocol == BNY_PROTOCOL_SIMPLE && !copies) bny_merge_await(&run->self, run->sources, 0, 1, 0);
  BNY_ROLLED for (int first = 0; first < run->work.packets && !run->self.failed; first += BNY_WARP_LANES) {
    int packet = first + (int)bny_lane();
    bool active = packet < run->work.packets;
    bny_packet value[1] = {};
    if (copies)
      value[0] = bny_bytes_read<protocol, heads>(*run, token, head, packet);
    else
      bny_merge_receive<protocol>(&run->self, run->sources, 0, 1, 0, packet, active, value);
    if (run->self.failed) return;
    if (run->step->kind == BNY_PROGRAM_DELIVER)
      bny_bytes_write<protocol, heads>(*run, token, head, packet, value[0]);
    else
      bny_push_packet<protocol>(run->self, run->to, token, head, packet, active, value[0]);
  }
  if (!run->self.failed) bny_push_row<protocol>(run->self, run->to, token, head, &run->pending);
}

template <int protocol, bool heads> BNY_DEVICE void bny_bytes_step(bny_interpreter *run) {
  const bny_program_step *step = run->step;
  bny_unit_rows rows;
  bool more = bny_unit_rows_first(&rows, run->program->shape, run->work, heads ? step->token0 : 0,
                                  heads ? step->tokens : 1, step->head0, step->heads);
  BNY_ROLLED for (; more && !run->self.failed; more = bny_unit_rows_next(&rows)) {
    if (heads && run->call->valid.most && rows.token >= run->valid.count) break;
    bny_bytes_unit<protocol, heads>(run, rows.token, rows.head);
  }
  if (!run->self.failed) bny_push_end<protocol>(run->self, run->to, &run->pending);
}

template <int protocol, bool heads>
BNY_DEVICE void bny_interpret_bytes(const bny_device_group &group, const bny_program *program,
                                    const bny_device_call &call) {
  bny_interpreter run;
  bny_worker_begin(&run.self, group);
  bny_worker_join(&run.self);
  if (heads) run.valid = bny_valid_begin(call.valid);
  if (bny_worker_announces()) {
    if (heads && call.valid.most) bny_valid_announce(run.self.group, run.self.epoch, run.valid.count);
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
              bny_grid_blocks() * warps,
              0,
              false,
              0};
  BNY_ROLLED for (int32_t i = 0; i < program->nsteps; i++) {
    bny_interpret_set_step(&run, i);
    bny_bytes_step<protocol, heads>(&run);
  }
}

#define BNY_BYTES_KERNEL(name, protocol, bits, heads)                                                                  \
  BNY_KERNEL BNY_LAUNCH_BOUNDS(BNY_BLOCK_THREADS_MAX, 1)                                                               \
      name(BNY_PARAMETER(bny_device_group, group), const bny_program *program, BNY_PARAMETER(bny_device_call, call)) { \
    bny_interpret_bytes<protocol, heads>(group, program, call);                                                        \
  }
