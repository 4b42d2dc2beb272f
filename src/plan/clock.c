/* SPDX-License-Identifier: Apache-2.0
 * The time of plans, step by step. Each rank has a clock, and all begin at 0.
 *   COPY: work. MERGE, DELIVER: work over every source, and reading it where ranks share memory.
 *   SEND: a message crosses all of its links at once, after those before it from this rank to that one. It arrives
 *   alpha after the last link has carried it; message_ns for each receiver but the first where messages are posted.
 *   WAIT: until the arrival, plus a switch if ranks take turns on a core; message_ns if it arrives before that.
 * A link divides its speed evenly among the messages that cross it. One that waits for another link keeps its share:
 * the simulator (tools/simulate) gives the rest to others, which takes much longer to compute. Events are taken in the
 * order of their times. The result is the last clock of a rank. Without levels, writes to shared memory and the last
 * division are left out, as in the formula. */
#include "plan/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/network.h"
#include "plan/slice.h"

typedef struct rank_clock {
  double ns;
  int32_t next;    /* step */
  int32_t awaited; /* one of its messages; -1: none */
  int32_t first;   /* its messages in those of all ranks */
  int32_t sent;    /* peers of a SEND that it is in */
  bool posts;      /* it has sent since its last wait */
} rank_clock;

typedef struct message_clock {
  double arrival_ns; /* negative: not known */
  double latency_ns, seen_ns;
  int32_t receiver;
  int32_t nlinks; /* links that still carry it */
  int32_t next;   /* the next of its pair that is not sent, and then the next to cross; -1: none */
} message_clock;

typedef struct link_clock {
  double ns, carried;         /* the bytes of each message until then, if that has been there from the beginning */
  int32_t count, first, last; /* transfers, in the order of their ends */
} link_clock;

typedef struct transfer {
  double end; /* the `carried` of its link */
  int32_t message, next;
} transfer;

typedef struct event {
  double ns;
  int32_t id; /* a rank, or behind these a link */
} event;

typedef struct run {
  const bny_request *request;
  bny_plan *const *plans;
  const bny_link_cost *work; /* gamma, and how ranks take turns on a core */
  double turns, switch_ns;
  rank_clock *ranks;
  message_clock *messages;
  link_clock *links;
  transfer *transfers;
  int32_t ntransfers, capacity, unused; /* unused: a list; -1: empty */
  int32_t *heads;                       /* by receiver and sender: the first message that is not sent; -1: none */
  int32_t *lines; /* by receiver and sender: the last message that is sent and has not crossed; -1: none */
  event *heap;    /* ranks that can go on and links that carry messages, the earliest first */
  int32_t *place; /* by rank and link: its index in the heap; -1: it is not there */
  int32_t nheap;
  bool stuck;  /* a message has no way */
  bool failed; /* no memory */
} run;

/* ---- the earliest event ------------------------------------------------------------------------------------------ */

static void heap_put(run *r, int32_t at, event moved) {
  r->heap[at] = moved;
  r->place[moved.id] = at;
}

static void heap_down(run *r, int32_t at, event moved) {
  for (int32_t child = 2 * at + 1; child < r->nheap; at = child, child = 2 * at + 1) {
    if (child + 1 < r->nheap && r->heap[child + 1].ns < r->heap[child].ns) child++;
    if (r->heap[child].ns >= moved.ns) break;
    heap_put(r, at, r->heap[child]);
  }
  heap_put(r, at, moved);
}

/* Adds an event, or makes one earlier. */
static void heap_add(run *r, int32_t id, double ns) {
  int32_t at = r->place[id] >= 0 ? r->place[id] : r->nheap++;
  for (; at > 0 && r->heap[(at - 1) / 2].ns > ns; at = (at - 1) / 2) heap_put(r, at, r->heap[(at - 1) / 2]);
  heap_put(r, at, (event){ns, id});
}

static event heap_take(run *r) {
  event first = r->heap[0], moved = r->heap[--r->nheap];
  r->place[first.id] = -1;
  if (r->nheap > 0) heap_down(r, 0, moved);
  return first;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static size_t pair_of(const run *r, int32_t receiver, int32_t sender) {
  return (size_t)receiver * (size_t)r->request->nranks + (size_t)sender;
}

static void messages_make(run *r) {
  for (int32_t rank = 0, first = 0; rank < r->request->nranks; rank++) {
    const bny_plan *plan = r->plans[rank];
    r->ranks[rank] = (rank_clock){.awaited = -1, .first = first};
    for (int32_t i = plan->nmessages - 1; i >= 0; i--) {
      int32_t *head = &r->heads[pair_of(r, rank, plan->messages[i].peer)];
      r->messages[first + i] = (message_clock){.arrival_ns = -1, .receiver = rank, .next = *head};
      *head = first + i;
    }
    first += plan->nmessages;
  }
}

static const bny_message *message_of(const run *r, int32_t message) {
  int32_t receiver = r->messages[message].receiver;
  return &r->plans[receiver]->messages[message - r->ranks[receiver].first];
}

/* Takes a message from the list of its pair, mostly the first; -1: the receiver does not wait for it. */
static int32_t message_take(const run *r, int32_t receiver, int32_t sender, int32_t slot) {
  for (int32_t *at = &r->heads[pair_of(r, receiver, sender)]; *at >= 0; at = &r->messages[*at].next) {
    int32_t message = *at;
    if (message_of(r, message)->slot != slot) continue;
    *at = r->messages[message].next;
    r->messages[message].next = -1;
    return message;
  }
  return -1;
}

/* The links that may limit a message. Without levels all ranks share memory. */
static void route_of(const run *r, int32_t from, int32_t to, bny_route *route) {
  const bny_request *request = r->request;
  if (request->levels) {
    const bny_link *links = request->levels->network->links;
    bny_links_route(request->levels, from, to, route);
    int32_t kept = 0;
    for (int32_t l = 0; l < route->nlinks; l++)
      if (!links[route->links[l]].wide) route->links[kept++] = route->links[l];
    route->nlinks = kept;
    return;
  }
  *route = (bny_route){
      .exists = true, .latency_ns = request->cost.alpha_ns, .read_ns_per_byte = request->cost.beta_ns_per_byte};
  *(request->cost.posted > 0 ? &route->post_ns : &route->seen_ns) = bny_link_message_ns(&request->cost);
}

/* ---- links ------------------------------------------------------------------------------------------------------- */

static void message_arrive(run *r, int32_t message, double ns) {
  message_clock *arrived = &r->messages[message];
  rank_clock *receiver = &r->ranks[arrived->receiver];
  arrived->arrival_ns = ns + arrived->latency_ns;
  if (receiver->awaited != message) return;
  receiver->awaited = -1;
  heap_add(r, arrived->receiver, receiver->ns);
}

static double ns_per_byte_of(const run *r, int32_t link) {
  return r->request->levels->network->links[link].ns_per_byte * r->links[link].count;
}

/* The time until the first message has crossed, at the present shares. */
static double link_left_ns(const run *r, int32_t link) {
  const link_clock *one = &r->links[link];
  return (r->transfers[one->first].end - one->carried) * ns_per_byte_of(r, link);
}

/* An event that is too early stays: link_run() looks again. */
static void link_schedule(run *r, int32_t link) {
  int32_t id = r->request->nranks + link;
  double ns = r->links[link].ns + link_left_ns(r, link);
  if (r->place[id] < 0 || ns < r->heap[r->place[id]].ns) heap_add(r, id, ns);
}

static void link_advance(run *r, int32_t link, double ns) {
  link_clock *one = &r->links[link];
  if (one->count > 0) one->carried += (ns - one->ns) / ns_per_byte_of(r, link);
  one->ns = ns;
}

static int32_t transfer_new(run *r) {
  int32_t made = r->unused;
  if (made >= 0) {
    r->unused = r->transfers[made].next;
    return made;
  }
  if (r->ntransfers == r->capacity) {
    transfer *grown = realloc(r->transfers, 2 * (size_t)r->capacity * sizeof *grown);
    r->failed = r->failed || !grown;
    if (!grown) return -1;
    r->transfers = grown;
    r->capacity *= 2;
  }
  return r->ntransfers++;
}

static void link_carry(run *r, int32_t link, int32_t message, double bytes, double ns) {
  link_clock *one = &r->links[link];
  link_advance(r, link, ns);
  int32_t added = transfer_new(r);
  if (added < 0) return;
  double end = one->carried + bytes;
  int32_t *at = &one->first;
  if (one->count > 0 && end >= r->transfers[one->last].end) at = &r->transfers[one->last].next;
  while (*at >= 0 && r->transfers[*at].end <= end) at = &r->transfers[*at].next;
  r->transfers[added] = (transfer){end, message, *at};
  if (*at < 0) one->last = added;
  *at = added;
  one->count++;
  link_schedule(r, link);
}

/* Sends a message over its links, which carry at least one byte. */
static void message_cross(run *r, int32_t message, const bny_route *route, double ns) {
  r->messages[message].nlinks = route->nlinks;
  for (int32_t l = 0; l < route->nlinks; l++)
    link_carry(r, route->links[l], message, (double)message_of(r, message)->what.bytes, ns);
}

/* All links have carried it: the next message of its pair follows. */
static void message_end(run *r, int32_t message, double ns) {
  int32_t receiver = r->messages[message].receiver, sender = message_of(r, message)->peer;
  int32_t *line = &r->lines[pair_of(r, receiver, sender)], next = r->messages[message].next;
  if (*line == message) *line = -1;
  message_arrive(r, message, ns);
  if (next < 0) return;
  bny_route route;
  route_of(r, sender, receiver, &route);
  message_cross(r, next, &route, ns);
}

/* Ends the transfers that are due, and those that rounding divides from them. */
static void link_run(run *r, int32_t link, double ns) {
  link_clock *one = &r->links[link];
  link_advance(r, link, ns);
  while (one->count > 0 && link_left_ns(r, link) <= 1e-9 * ns) {
    int32_t ended = one->first, message = r->transfers[ended].message;
    one->first = r->transfers[ended].next;
    one->count--;
    r->transfers[ended].next = r->unused;
    r->unused = ended;
    if (--r->messages[message].nlinks == 0) message_end(r, message, ns);
  }
  if (one->count > 0) link_schedule(r, link);
}

static void message_send(run *r, int32_t message, const bny_route *route, double bytes) {
  message_clock *sent = &r->messages[message];
  int32_t sender = message_of(r, message)->peer, *line = &r->lines[pair_of(r, sent->receiver, sender)];
  sent->latency_ns = route->latency_ns;
  sent->seen_ns = route->seen_ns;
  if (route->nlinks == 0 || bytes == 0) {
    message_arrive(r, message, r->ranks[sender].ns);
    return;
  }
  if (*line >= 0)
    r->messages[*line].next = message;
  else
    message_cross(r, message, route, r->ranks[sender].ns);
  *line = message;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

double bny_step_ns(const bny_request *request, const bny_plan *plan, const bny_step *step, double gamma_ns_per_byte) {
  const bny_link_cost *work = request->levels ? &request->levels->levels[0].link : &request->cost;
  run r = {.request = request};
  double bytes = (double)bny_slice_wire_bytes(request, &step->slice), each = bytes * gamma_ns_per_byte, ns = 0;
  double turns = work->ranks_per_core > 1 ? work->ranks_per_core : 1;
  if (step->kind == BNY_STEP_COPY) return each * turns;
  if (request->levels && step->kind == BNY_STEP_DELIVER && bny_call_merges(&request->call)) ns = each;
  if (step->kind == BNY_STEP_DELIVER && step->count == 1) each *= bny_payload_of(&request->call)->delivery;
  for (int32_t i = 0; i < step->count; i++) {
    int32_t message = plan->sources[step->first + i].message;
    bny_route route = {.read_ns_per_byte = 0};
    if (message >= 0) route_of(&r, plan->messages[message].peer, plan->rank, &route);
    ns += each + bytes * route.read_ns_per_byte;
  }
  return ns * turns;
}

/* Returns false if another event comes before a message. */
static bool send(run *r, const bny_plan *plan, const bny_step *step) {
  double bytes = (double)plan->slots[step->slot].bytes;
  rank_clock *mine = &r->ranks[plan->rank];
  for (; mine->sent < step->count; mine->sent++) {
    int32_t peer = plan->peers[step->first + mine->sent];
    bny_route route;
    route_of(r, plan->rank, peer, &route);
    double ns = mine->ns + (mine->posts ? route.post_ns * r->turns : 0);
    /* In shared memory the peer has read these cache lines before, so a write fetches them back. */
    if (mine->sent == 0 && route.nlinks == 0 && r->request->levels) ns += bytes * route.read_ns_per_byte * r->turns;
    if (r->nheap > 0 && r->heap[0].ns < ns) {
      heap_add(r, plan->rank, ns);
      return false;
    }
    mine->ns = ns;
    mine->posts = true;
    r->stuck = r->stuck || !route.exists;
    int32_t message = message_take(r, peer, plan->rank, step->slot);
    if (message >= 0) message_send(r, message, &route, bytes);
  }
  mine->sent = 0;
  return true;
}

/* Returns false if the message has not arrived at the rank's time. */
static bool wait(run *r, const bny_plan *plan, const bny_step *step) {
  rank_clock *mine = &r->ranks[plan->rank];
  double arrival = r->messages[mine->first + step->message].arrival_ns;
  if (arrival < 0) {
    mine->awaited = mine->first + step->message;
    return false;
  }
  double seen = mine->ns + r->messages[mine->first + step->message].seen_ns * r->turns;
  bool first = mine->posts, blocks = arrival > seen;
  mine->posts = false;
  mine->next++;
  mine->ns = (blocks ? arrival : seen) + (blocks || first ? r->switch_ns : 0);
  if (blocks) heap_add(r, plan->rank, mine->ns);
  return !blocks;
}

/* Goes on until the rank waits, or another event is earlier. */
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
      if (!send(r, plan, step)) return;
    } else {
      mine->ns += bny_step_ns(r->request, plan, step, r->work->gamma_ns_per_byte);
    }
    mine->next++;
  }
}

static bool run_make(run *r, size_t messages) {
  size_t nranks = (size_t)r->request->nranks;
  size_t nlinks = r->request->levels ? (size_t)r->request->levels->network->nlinks : 0;
  r->ranks = malloc(nranks * sizeof *r->ranks);
  r->messages = malloc((messages + 1) * sizeof *r->messages);
  r->links = malloc((nlinks + 1) * sizeof *r->links);
  r->capacity = 256;
  r->transfers = malloc((size_t)r->capacity * sizeof *r->transfers);
  r->heads = malloc(2 * nranks * nranks * sizeof *r->heads);
  r->heap = malloc((nranks + nlinks) * sizeof *r->heap);
  r->place = malloc((nranks + nlinks) * sizeof *r->place);
  if (!r->ranks || !r->messages || !r->links || !r->transfers || !r->heads || !r->heap || !r->place) return false;
  memset(r->heads, -1, 2 * nranks * nranks * sizeof *r->heads);
  memset(r->place, -1, (nranks + nlinks) * sizeof *r->place);
  r->lines = r->heads + nranks * nranks;
  for (size_t l = 0; l < nlinks; l++) r->links[l] = (link_clock){.first = -1};
  messages_make(r);
  for (int32_t rank = 0; rank < r->request->nranks; rank++) heap_add(r, rank, 0);
  return true;
}

double bny_plans_ns(const bny_request *request, bny_plan *const *plans) {
  run r = {.request = request,
           .plans = plans,
           .work = request->levels ? &request->levels->levels[0].link : &request->cost,
           .unused = -1};
  size_t messages = 0;
  double last = -1;
  r.turns = r.work->ranks_per_core > 1 ? r.work->ranks_per_core : 1;
  r.switch_ns = r.work->ranks_per_core > 1 ? r.work->switch_ns * r.work->ranks_per_core : 0;
  for (int32_t rank = 0; rank < request->nranks; rank++) messages += (size_t)plans[rank]->nmessages;
  if (run_make(&r, messages)) {
    while (r.nheap > 0 && !r.failed) {
      event next = heap_take(&r);
      if (next.id < request->nranks)
        rank_run(&r, next.id);
      else
        link_run(&r, next.id - request->nranks, next.ns);
    }
    last = r.failed ? -1 : 0;
    for (int32_t rank = 0; rank < request->nranks && !r.failed; rank++) last = fmax(last, r.ranks[rank].ns);
    if (r.stuck) last = INFINITY;
  }
  free(r.ranks);
  free(r.messages);
  free(r.links);
  free(r.transfers);
  free(r.heads);
  free(r.heap);
  free(r.place);
  return last;
}
