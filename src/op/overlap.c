/* SPDX-License-Identifier: Apache-2.0
 * Overlaps attention with the combine of its rows, on the host. The batch is cut into slices: while the rows of one
 * slice are on the network, the next is attended to. This pays if a combine waits for the network and attention takes
 * long enough. Within a node ranks copy by themselves, so there is no wait to hide.
 *
 * All ranks must cut alike. Once per shape they therefore exchange the predicted time of attention, and plan with the
 * longest. */
#include <math.h>
#include <stdlib.h>

#include "op/operation.h"
#include "attention/call.h"

/* A core reads keys at about this speed (docs/performance.md, "Local attention"). */
static const double keys_bytes_per_ns = 20;

enum { SLICES_MAX = 8 };

/* A smaller gain is uncertain, because prices are off by as much (docs/performance.md, "Overlap"). */
static const double least_gain = 0.1;

/* The interval between looks at the network while rows are on it. */
static const double look_ns = 20000;

/* Without lengths it uses keys_max, if that is set. */
static double attention_ns(const bny_attention *attention, bool has_lengths) {
  const bny_attention_desc *desc = &attention->desc;
  int32_t threads = attention->pool ? bny_pool_threads(attention->pool) : 1;
  double bytes = (double)desc->batch * desc->keys_max * desc->kv_heads * (double)bny_attention_key_bytes(desc);
  if (has_lengths && desc->keys_max == 0) bytes = (double)bny_attention_bytes(desc);
  return bytes / (keys_bytes_per_ns * threads);
}

/* The facts that ranks exchange to plan slices. */
typedef struct outlook {
  double attention_ns;
  double is_tcp; /* 1: its network takes time of the processor */
} outlook;

/* Returns the longest attention of any rank, and the slower network. Collective. */
static banyan_status gather_outlooks(banyan_comm *comm, const outlook *own, outlook *longest) {
  outlook *all = calloc((size_t)comm->nranks, sizeof *all);
  if (!all) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for an operation");
  banyan_status status = bny_op_gather(comm, own, sizeof *own, all);
  *longest = (outlook){0, 0};
  for (int32_t i = 0; i < comm->nranks; i++) {
    longest->attention_ns = fmax(longest->attention_ns, all[i].attention_ns);
    longest->is_tcp = fmax(longest->is_tcp, all[i].is_tcp);
  }
  free(all);
  return status;
}

/* The time of a combine, and the part of it that is the rank's own work. */
typedef struct price {
  double ns, work_ns;
} price;

/* The time that a core takes to send and receive a message over TCP, and a byte of it (docs/performance.md,
 * "Overlap"). */
static const double tcp_message_ns = 10000, tcp_byte_ns = 0.8;

static double smaller(double a, double b) { return a < b ? a : b; }

/* Sets the link's cost to the rank's own work for it. An adapter sends a posted message by itself. */
static void take_work_alone(bny_link_cost *link, bool is_tcp) {
  double message_ns = is_tcp ? tcp_message_ns : bny_link_message_ns(link);
  link->alpha_ns = link->message_ns = message_ns;
  link->beta_ns_per_byte = is_tcp ? tcp_byte_ns : 0;
  link->shared_ns_per_byte = 0;
}

static const bny_levels *worked(const bny_levels *levels, bool is_tcp, bny_levels *made, bny_levels *leaders) {
  *made = *levels;
  take_work_alone(&made->levels[made->nlevels - 1].link, is_tcp);
  if (!levels->leaders) return made;
  *leaders = *levels->leaders;
  take_work_alone(&leaders->levels[leaders->nlevels - 1].link, is_tcp);
  made->leaders = leaders;
  return made;
}

static banyan_status predict(const bny_request *request, int32_t rank, double *ns) {
  bny_plan *plan = NULL;
  banyan_status status = bny_plan_make(request, rank, &plan);
  if (status == BANYAN_OK) *ns = plan->predicted_ns;
  bny_plan_free(plan);
  return status;
}

/* The price of one slice of `slices`, which may itself be in parts. */
static banyan_status price_slice(const banyan_op *op, int32_t slices, bool is_tcp, price *of) {
  bny_request request = op->kinds[0].request;
  int32_t tokens = (op->call.all_tokens + slices - 1) / slices;
  if (request.tokens > tokens) request.tokens = tokens;
  double parts = (double)tokens / request.tokens * op->call.all_heads / request.heads;
  request.algorithm = op->kinds[0].plan->algorithm;
  banyan_status status = predict(&request, op->comm->rank, &of->ns);
  if (status != BANYAN_OK) return status;
  bny_levels levels, leaders;
  if (request.levels) request.levels = worked(request.levels, is_tcp, &levels, &leaders);
  take_work_alone(&request.cost, is_tcp);
  status = predict(&request, op->comm->rank, &of->work_ns);
  of->ns *= parts;
  of->work_ns = smaller(of->work_ns * parts, of->ns);
  return status;
}

/* A rank can attend to the next slice while one is on the network. It must wait only for the last. */
static double total_ns(double attention, const price *slice, int32_t slices) {
  double wait = slice->ns - slice->work_ns, left = wait - attention / slices;
  return attention + slices * slice->work_ns + wait + (slices - 1) * (left > 0 ? left : 0);
}

static banyan_status choose_slices(const banyan_op *op, const outlook *longest, int32_t *slices) {
  double attention = longest->attention_ns;
  bool is_tcp = longest->is_tcp > 0;
  price slice;
  banyan_status status = price_slice(op, 1, is_tcp, &slice);
  if (status != BANYAN_OK) return status;
  double best = (1 - least_gain) * total_ns(attention, &slice, 1);
  *slices = 1;
  for (int32_t n = 2; n <= SLICES_MAX && n <= op->call.all_tokens; n *= 2) {
    status = price_slice(op, n, is_tcp, &slice);
    if (status != BANYAN_OK) return status;
    double total = total_ns(attention, &slice, n);
    if (total >= best) continue;
    best = total;
    *slices = n;
  }
  return BANYAN_OK;
}

banyan_status bny_op_overlap(banyan_op *op, bool has_lengths) {
  banyan_comm *comm = op->comm;
  const bny_attention *attention = op->attention;
  if (attention->engine || comm->nranks == 1 || !comm->transport->ops->connect || attention->desc.has_queries ||
      op->first < BNY_STAGE_ROWS || op->call.all_tokens < 2 || op->call.all_heads == 0)
    return BANYAN_OK;
  outlook own = {attention_ns(attention, has_lengths), comm->transport->network == BNY_NETWORK_TCP}, longest = {0, 0};
  int32_t slices = 1;
  banyan_status status = gather_outlooks(comm, &own, &longest);
  if (status == BANYAN_OK && longest.attention_ns > 0) {
    slices = comm->slices;
    if (slices == 0) status = choose_slices(op, &longest, &slices);
  }
  if (status != BANYAN_OK || slices <= 1) return status;
  op->slices = slices;
  op->sequences = (int32_t)fmin(ceil(look_ns / (own.attention_ns + 1) * attention->desc.batch), INT32_MAX);
  return bny_op_plan_again(op);
}
