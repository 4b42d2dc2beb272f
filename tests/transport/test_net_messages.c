/* SPDX-License-Identifier: Apache-2.0
 * Invalid messages from the network. Foreign messages are ignored, and a few are reported. A message of this
 * communicator that is too long or has an invalid target gives an error that names its sender. */
#include "comm/comm.h"
#include "tests/support/world.h"

#include <unistd.h>

#include "tests/transport/net_util.h"
#include "transport/ucx/ucx.h"

enum { RANKS = 3, BYTES = 4000, SENDER = 1, VICTIM = 2, HEAD = sizeof(bny_net_data) };

/* A message with a forged header; head_bytes of it are sent. */
typedef struct forgery {
  const char *what;
  int32_t kind;
  size_t head_bytes, bytes;
  bny_net_data data;
} forgery;

static bny_net *net_of(const world_rank *self) { return bny_net_of(self->comm->transport); }

/* Returns when the message is no longer read. */
static void send_forgery(world_rank *self, const forgery *forgery) {
  static char payload[1 << 16];
  bny_net *net = net_of(self);
  ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_AM_SEND_FLAG_EAGER};
  bny_net_take(net);
  memset(payload, 0xa5, sizeof payload);
  bny_net_data data = forgery->data;
  data.head.kind = forgery->kind;
  ucs_status_ptr_t request = net->ucx.ucp_am_send_nbx(net->peers[VICTIM]->endpoint, 0, &data, forgery->head_bytes,
                                                      payload, forgery->bytes, &param);
  while (request && !UCS_PTR_IS_ERR(request) && net->ucx.ucp_request_check_status(request) == UCS_INPROGRESS)
    net->ucx.ucp_worker_progress(net->worker);
  if (request && !UCS_PTR_IS_ERR(request)) net->ucx.ucp_request_free(request);
  bny_net_give(net);
}

/* A valid message of rank 1 for a future run. */
static bny_net_data good_data(const world_rank *self) {
  return (bny_net_data){.head = {.cookie = net_of(self)->cookie, .rank = SENDER},
                        .tag = (self->comm->exec->epoch + 2) << 32,
                        .bytes = 100};
}

static banyan_status gather(world_rank *self, int round) {
  unsigned char mine[BYTES], all[RANKS * BYTES];
  size_t counts[RANKS] = {BYTES, BYTES, BYTES};
  memset(mine, self->rank * 20 + round, sizeof mine);
  banyan_status status = banyan_allgather(self->comm, mine, all, counts);
  for (int i = 0; status == BANYAN_OK && i < RANKS * BYTES; i++)
    if (!world_check(self, all[i] == i / BYTES * 20 + round, "round %d: byte %d is %d", round, i, all[i])) break;
  return status;
}

/* ---- foreign messages -------------------------------------------------------------------------------------------- */

static int send_foreign(world_rank *self) {
  const bny_net_data good = good_data(self);
  enum { NOTE = sizeof(bny_net_note), RENDEZVOUS = sizeof(bny_net_rendezvous) };
  forgery forgeries[] = {
      {"of another communicator", BNY_NET_DATA, HEAD, 100, good},
      {"of no rank", BNY_NET_DATA, HEAD, 100, good},
      {"of the receiver", BNY_NET_DATA, HEAD, 100, good},
      {"of a rank below 0", BNY_NET_DATA, HEAD, 100, good},
      {"a head cut short", BNY_NET_DATA, HEAD - 8, 100, good},
      {"no head", BNY_NET_DATA, 0, 100, good},
      {"a note with a payload", BNY_NET_NOTE, NOTE, 100, good},
      {"a note cut short", BNY_NET_NOTE, 3, 0, good},
      {"a note of no meaning", BNY_NET_NOTE, NOTE, 0, good},
      {"news cut short", BNY_NET_REPORT, 20, 0, good},
      {"rendezvous that is too long", BNY_NET_RENDEZVOUS, RENDEZVOUS, 60000, good},
      {"rendezvous cut short", BNY_NET_RENDEZVOUS, 5, 100, good},
      {"a sleeper for no slot", BNY_NET_NOTE, NOTE, 0, good},
  };
  int count = sizeof forgeries / sizeof forgeries[0];
  forgeries[0].data.head.cookie++;
  forgeries[1].data.head.rank = RANKS;
  forgeries[2].data.head.rank = VICTIM;
  forgeries[3].data.head.rank = -1;
  const bny_net_note sleeper = {.head = good.head, .slot = self->comm->transport->slots_max, .word = BNY_NET_SLEEP};
  memcpy(&forgeries[count - 1].data, &sleeper, sizeof sleeper);
  for (int i = 0; i < count; i++) send_forgery(self, &forgeries[i]);
  return count;
}

static void go_on_amid(world_rank *self) {
  enum { ROUNDS = 12 };
  int *sent = self->argument;
  for (int round = 0; round < ROUNDS; round++) {
    if (self->rank == SENDER && round % 3 == 1) *sent += send_foreign(self);
    if (!world_ok(self, gather(self, round), "gather")) return;
  }
  if (self->rank == VICTIM)
    world_check(self, net_of(self)->rejected == (uint64_t)*sent, "%d messages of %d were rejected",
                (int)net_of(self)->rejected, *sent);
}

static int count_lines(const char *path) {
  FILE *file = fopen(path, "re");
  int count = 0, byte;
  while (file && (byte = getc(file)) != EOF) count += byte == '\n';
  if (file) fclose(file);
  return count;
}

static void be_nodes(bool together) { world_be_nodes(together ? "a,a,b" : "a,b,c"); }

TEST_LOOP(foreign_messages_are_ignored, 2) {
  char path[] = "/tmp/test_net_messages.XXXXXX";
  int *sent = world_take(sizeof *sent), file = mkstemp(path);
  ck_assert_int_ge(file, 0);
  be_nodes(_i);
  setenv("BANYAN_LOG", "warn", 1);
  setenv("BANYAN_LOG_FILE", path, 1);
  WORLD_RUN(go_on_amid, .nranks = RANKS, .processes = true, .argument = sent);
  int lines = count_lines(path);
  unlink(path), close(file);
  ck_assert_msg(lines == BNY_NET_REJECTIONS_REPORTED + 1, "of %d messages %d lines tell", *sent, lines);
}

/* ---- broken messages --------------------------------------------------------------------------------------------- */

enum { BROKEN = 8 };

static forgery broken_message(const world_rank *self, int which) {
  size_t half_bytes = self->comm->transport->half_bytes;
  forgery made = {"", BNY_NET_DATA, HEAD, 100, good_data(self)};
  switch (which) {
  case 0: made.data.slot = self->comm->transport->slots_max, made.what = "no such slot"; break;
  case 1: made.data.slot = INT32_MIN, made.what = "a slot below 0"; break;
  case 2: made.data.offset = half_bytes - 99, made.what = "beyond the half"; break;
  case 3: made.data.offset = UINT64_MAX - 50, made.what = "an offset that wraps"; break;
  case 4: made.data.bytes = 59999, made.bytes = 60000, made.what = "longer than it says"; break;
  case 5: made.data.first = 1, made.what = "a piece beyond the message"; break;
  case 6: made.data.first = UINT64_MAX, made.what = "a piece that wraps"; break;
  default: made.bytes = 0, made.what = "an empty piece"; break;
  }
  return made;
}

/* Sends a note that this rank has finished long ago. After a broken message, the sender's notes are ignored. */
static void send_excuse(world_rank *self) {
  forgery note = {"a note", BNY_NET_NOTE, sizeof(bny_net_note), 0, good_data(self)};
  bny_net_note content = {.head = note.data.head, .word = BNY_NET_ACKNOWLEDGE};
  content.head.done = self->comm->exec->epoch + 1000;
  memcpy(&note.data, &content, sizeof content);
  send_forgery(self, &note);
}

static void break_down(world_rank *self) {
  const int *which = self->argument;
  banyan_status status = gather(self, 0);
  if (!world_ok(self, status, "gather")) return;
  forgery forgery = broken_message(self, *which);
  if (self->rank == SENDER) {
    send_forgery(self, &forgery);
    send_excuse(self);
  }
  for (int round = 1; status == BANYAN_OK && round < 12; round++) {
    status = gather(self, round);
    world_sleep_ms(2);
  }
  int32_t failed = banyan_comm_failed_rank(self->comm);
  /* Only rank 0 reports the failure to the sender, which may first see that the victim has disconnected. */
  bool is_named = failed == SENDER || (self->rank == SENDER && failed == VICTIM);
  world_check(self, status == BANYAN_ERR_PEER && is_named, "%s: %s, of rank %d: %s", forgery.what,
              banyan_status_string(status), failed, banyan_comm_error(self->comm));
}

TEST_LOOP(broken_messages_name_their_sender, BROKEN) {
  be_nodes(_i % 2);
  setenv("BANYAN_LOG", "error", 1);
  WORLD_RUN(break_down, .nranks = RANKS, .processes = true, .argument = &_i);
}

int main(void) {
  if (net_is_absent()) return 77;
  return world_main(suite_of("net_messages", 60));
}
