/* SPDX-License-Identifier: Apache-2.0
 * The time of plans, step by step. Each rank has a clock, and all begin at 0.
 *   COPY: work. MERGE, DELIVER: work over every source, and reading it where ranks share memory.
 *   SEND: a message crosses all of its links at once, and each carries its messages one after another. It arrives alpha
 *   after the last link has carried it; message_ns for each receiver but the first where messages are posted.
 *   WAIT: until the arrival, plus a switch if ranks take turns on a core; message_ns if it arrives before that.
 * Ranks are taken in the order of their clocks. The result is the last clock. Without levels, writes to shared memory
 * and the last division are left out, as in the formula. */
#include "plan/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/network.h"
#include "plan/slice.h"

typedef struct rank_clock {
  double ns;
  int32_t next;    /* step */
  int32_t awaited; /* message; -1: none */
  int32_t first;   /* its messages in `arrivals` */
  bool posts;      /* it has sent since its last wait */
} rank_clock;

typedef struct run {
  const bny_request *request;
  bny_plan *const *plans;
  const bny_link_cost *work; /* gamma, and how ranks take turns on a core */
  double turns, switch_ns;
  rank_clock *ranks;
  double *arrivals; /* by message; negative: not sent */
  double *busy;     /* by link: until then */
  int32_t *heads;   /* by receiver and sender: the first message that is not sent, of the receiver; -1: none */
  int32_t *next;    /* by message: the next of its pair */
  int32_t *heap;    /* ranks that can go on, the earliest first */
  int32_t nheap;
  bool stuck; /* a message has no way */
} run;

/* ---- the earliest rank ------------------------------------------------------------------------------------------- */

static bool is_before(const run *r, int32_t a, int32_t b) {
  return r->ranks[a].ns != r->ranks[b].ns ? r->ranks[a].ns < r->ranks[b].ns : a < b;
}

static void heap_add(run *r, int32_t rank) {
  int32_t at = r->nheap++;
  for (; at > 0 && is_before(r, rank, r->heap[(at - 1) / 2]); at = (at - 1) / 2) r->heap[at] = r->heap[(at - 1) / 2];
  r->heap[at] = rank;
}

static int32_t heap_take(run *r) {
  int32_t first = r->heap[0], moved = r->heap[--r->nheap], at = 0;
  for (int32_t child = 1; child < r->nheap; at = child, child = 2 * at + 1) {
    if (child + 1 < r->nheap && is_before(r, r->heap[child + 1], r->heap[child])) child++;
    if (!is_before(r, r->heap[child], moved)) break;
    r->heap[at] = r->heap[child];
  }
  r->heap[at] = moved;
  return first;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static int32_t *head_of(const run *r, int32_t receiver, int32_t sender) {
  return &r->heads[(size_t)receiver * (size_t)r->request->nranks + (size_t)sender];
}

static void lists_make(run *r) {
  size_t nranks = (size_t)r->request->nranks;
  memset(r->heads, -1, nranks * nranks * sizeof *r->heads);
  for (int32_t rank = 0; rank < r->request->nranks; rank++)
    for (int32_t i = r->plans[rank]->nmessages - 1; i >= 0; i--) {
      int32_t *head = head_of(r, rank, r->plans[rank]->messages[i].peer);
      r->next[r->ranks[rank].first + i] = *head;
      *head = i;
    }
}

/* Takes a message from the list of its pair, mostly the first, and returns its index at its receiver; -1: that does not
 * wait for it. */
static int32_t message_take(const run *r, int32_t receiver, int32_t sender, int32_t slot) {
  int32_t *at = head_of(r, receiver, sender);
  for (; *at >= 0; at = &r->next[r->ranks[receiver].first + *at]) {
    int32_t message = *at;
    if (r->plans[receiver]->messages[message].slot != slot) continue;
    *at = r->next[r->ranks[receiver].first + message];
    return message;
  }
  return -1;
}

/* Without levels all ranks share memory. */
static void route_of(const run *r, int32_t from, int32_t to, bny_route *route) {
  const bny_request *request = r->request;
  if (request->levels) {
    bny_links_route(request->levels, from, to, route);
    return;
  }
  *route = (bny_route){
      .exists = true, .latency_ns = request->cost.alpha_ns, .read_ns_per_byte = request->cost.beta_ns_per_byte};
  *(request->cost.posted > 0 ? &route->post_ns : &route->seen_ns) = bny_link_message_ns(&request->cost);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

double bny_step_ns(const bny_request *request, const bny_plan *plan, const bny_step *step, double gamma_ns_per_byte) {
  const bny_link_cost *work = request->levels ? &request->levels->levels[0].link : &request->cost;
  run r = {.request = request};
  double bytes = (double)bny_slice_wire_bytes(request, &step->slice), each = bytes * gamma_ns_per_byte, ns = 0;
  double turns = work->ranks_per_core > 1 ? work->ranks_per_core : 1;
  if (step->kind == BNY_STEP_COPY) return each * turns;
  if (request->levels && step->kind == BNY_STEP_DELIVER && bny_call_merges(&request->call)) ns = each;
  for (int32_t i = 0; i < step->count; i++) {
    int32_t message = plan->sources[step->first + i].message;
    bny_route route = {.read_ns_per_byte = 0};
    if (message >= 0) route_of(&r, plan->messages[message].peer, plan->rank, &route);
    ns += each + bytes * route.read_ns_per_byte;
  }
  return ns * turns;
}

static void send(run *r, const bny_plan *plan, const bny_step *step) {
  rank_clock *mine = &r->ranks[plan->rank];
  double bytes = (double)plan->slots[step->slot].bytes;
  for (int32_t i = 0; i < step->count; i++) {
    int32_t peer = plan->peers[step->first + i], message = message_take(r, peer, plan->rank, step->slot);
    bny_route route;
    route_of(r, plan->rank, peer, &route);
    r->stuck = r->stuck || !route.exists;
    /* In shared memory the peer has read these cache lines before, so a write fetches them back. */
    if (i == 0 && route.nlinks == 0 && r->request->levels) mine->ns += bytes * route.read_ns_per_byte * r->turns;
    if (mine->posts) mine->ns += route.post_ns * r->turns;
    mine->posts = true;
    double carried = mine->ns;
    for (int32_t l = 0; l < route.nlinks && bytes > 0; l++) {
      double *busy = &r->busy[route.links[l]];
      *busy = (*busy > mine->ns ? *busy : mine->ns) +
              bytes * r->request->levels->network->links[route.links[l]].ns_per_byte;
      carried = *busy > carried ? *busy : carried;
    }
    if (message < 0) continue;
    r->arrivals[r->ranks[peer].first + message] = carried + route.latency_ns;
    if (r->ranks[peer].awaited != message) continue;
    r->ranks[peer].awaited = -1;
    heap_add(r, peer);
  }
}

/* Returns false if the message has not arrived at the rank's time. */
static bool wait(run *r, const bny_plan *plan, const bny_step *step) {
  rank_clock *mine = &r->ranks[plan->rank];
  double arrival = r->arrivals[mine->first + step->message];
  if (arrival < 0) {
    mine->awaited = step->message;
    return false;
  }
  bny_route route;
  route_of(r, plan->messages[step->message].peer, plan->rank, &route);
  double seen = mine->ns + route.seen_ns * r->turns;
  bool first = mine->posts, blocks = arrival > seen;
  mine->posts = false;
  mine->next++;
  mine->ns = (blocks ? arrival : seen) + (blocks || first ? r->switch_ns : 0);
  if (blocks) heap_add(r, plan->rank);
  return !blocks;
}

/* Goes on until the rank waits, or another one is earlier. */
static void rank_run(run *r, int32_t rank) {
  const bny_plan *plan = r->plans[rank];
  rank_clock *mine = &r->ranks[rank];
  while (mine->next < plan->nsteps) {
    const bny_step *step = &plan->steps[mine->next];
    if (step->kind == BNY_STEP_WAIT) {
      if (!wait(r, plan, step)) return;
      continue;
    }
    if (step->kind == BNY_STEP_SEND) {
      if (r->nheap > 0 && r->ranks[r->heap[0]].ns < mine->ns) {
        heap_add(r, rank);
        return;
      }
      send(r, plan, step);
    } else {
      mine->ns += bny_step_ns(r->request, plan, step, r->work->gamma_ns_per_byte);
    }
    mine->next++;
  }
}

static bool run_make(run *r, int64_t messages) {
  size_t nranks = (size_t)r->request->nranks;
  const bny_levels *levels = r->request->levels;
  r->ranks = calloc(nranks, sizeof *r->ranks);
  r->arrivals = malloc(((size_t)messages + 1) * sizeof *r->arrivals);
  r->busy = calloc(levels ? (size_t)levels->network->nlinks + 1 : 1, sizeof *r->busy);
  r->heads = malloc(nranks * nranks * sizeof *r->heads);
  r->next = malloc(((size_t)messages + 1) * sizeof *r->next);
  r->heap = malloc(nranks * sizeof *r->heap);
  if (!r->ranks || !r->arrivals || !r->busy || !r->heads || !r->next || !r->heap) return false;
  for (int64_t i = 0; i < messages; i++) r->arrivals[i] = -1;
  for (int32_t rank = 0, first = 0; rank < r->request->nranks; rank++) {
    r->ranks[rank] = (rank_clock){.awaited = -1, .first = first};
    first += r->plans[rank]->nmessages;
    heap_add(r, rank);
  }
  lists_make(r);
  return true;
}

double bny_plans_ns(const bny_request *request, bny_plan *const *plans) {
  run r = {
      .request = request, .plans = plans, .work = request->levels ? &request->levels->levels[0].link : &request->cost};
  int64_t messages = 0;
  double last = -1;
  r.turns = r.work->ranks_per_core > 1 ? r.work->ranks_per_core : 1;
  r.switch_ns = r.work->ranks_per_core > 1 ? r.work->switch_ns * r.work->ranks_per_core : 0;
  for (int32_t rank = 0; rank < request->nranks; rank++) messages += plans[rank]->nmessages;
  if (run_make(&r, messages)) {
    last = 0;
    while (r.nheap > 0) rank_run(&r, heap_take(&r));
    for (int32_t rank = 0; rank < request->nranks; rank++) last = fmax(last, r.ranks[rank].ns);
    if (r.stuck) last = INFINITY;
  }
  free(r.ranks);
  free(r.arrivals);
  free(r.busy);
  free(r.heads);
  free(r.next);
  free(r.heap);
  return last;
}
