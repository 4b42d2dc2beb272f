// SPDX-License-Identifier: Apache-2.0
// The only code that includes SimGrid. Each rank is an actor that takes the steps of its plan. A message is a one-sided
// transfer over its route. SimGrid divides a link among all transfers that use it at the same time (max-min fairness).
// The arrival wakes the receiver if it waits. A second of SimGrid is a microsecond here: its clock is exact to 1e-5.
#include "tools/simulate/simulate.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <simgrid/kernel/Timer.hpp>
#include <simgrid/kernel/routing/NetPoint.hpp>
#include <simgrid/kernel/routing/NetZoneImpl.hpp>
#include <simgrid/s4u.hpp>
#include <string>
#include <unordered_map>
#include <vector>

namespace s4u = simgrid::s4u;
namespace routing = simgrid::kernel::routing;

namespace {

constexpr double unit_ns = 1e3;

// A message arrives when its transfer has crossed all links and its latency has passed.
struct message {
  int32_t receiver;
  bool arrived;
  double latency, bytes;
  s4u::CommPtr transfer;
};

// Messages from one rank to another are sent one after another, as on a queue pair, so pieces do not share a link.
struct line {
  s4u::CommPtr last;
  std::deque<message *> queue; // messages that wait for it; a courier starts them
  bool has_courier = false;
};

struct rank_state {
  s4u::ActorPtr actor;
  s4u::Host *host;
  std::vector<std::vector<message>> messages;                   // by stage, as in the plan
  std::vector<std::vector<std::pair<uint64_t, int32_t>>> index; // by stage: (sender, slot) and message
  std::unordered_map<int32_t, line> lines;                      // by receiver
  message *awaited = nullptr;
};

struct simulation {
  sim_job *job;
  std::vector<rank_state> ranks;
  std::vector<s4u::Link *> links;
  std::vector<sim_event> events;
};

simulation *running;

double now_ns() { return s4u::Engine::get_clock() * unit_ns; }

// A zone of all ranks. It computes routes on request, so n ranks need no table of n^2 routes.
class zone : public routing::NetZoneImpl {
public:
  explicit zone(const std::string &name) : NetZoneImpl(name) {}

protected:
  void get_local_route(const routing::NetPoint *from, const routing::NetPoint *to, routing::Route *into,
                       double *latency) override {
    bny_route way;
    running->job->platform->route(running->job->platform, static_cast<int32_t>(from->id()),
                                  static_cast<int32_t>(to->id()), &way);
    for (int32_t i = 0; i < way.nlinks; i++) into->link_list_.push_back(running->links[way.links[i]]->get_impl());
    (void)latency; // see message
  }
};

// Lets the receiver check a message that has changed.
void wake(const message *changed) {
  rank_state &rank = running->ranks[changed->receiver];
  if (rank.awaited == changed) rank.actor->resume();
}

bool has_arrived(message *wanted) {
  if (wanted->transfer && wanted->transfer->test() &&
      wanted->transfer->get_finish_time() + wanted->latency <= s4u::Engine::get_clock()) {
    wanted->arrived = true;
    wanted->transfer = nullptr;
  }
  return wanted->arrived;
}

// The receiver gets a transfer only after its start, because waiting for an earlier one would start it again.
void start(int32_t sender, line *way, message *sent) {
  s4u::CommPtr transfer = s4u::Comm::sendto_init(running->ranks[sender].host, running->ranks[sent->receiver].host);
  transfer->set_payload_size(static_cast<uint64_t>(sent->bytes));
  transfer->start();
  way->last = transfer;
  sent->transfer = transfer;
  wake(sent);
}

void send_in_order(int32_t sender, message *sent) {
  line *way = &running->ranks[sender].lines[sent->receiver];
  if (!way->has_courier && (!way->last || way->last->test())) return start(sender, way, sent);
  way->queue.push_back(sent);
  if (way->has_courier) return;
  way->has_courier = true;
  s4u::Actor::create("courier", running->ranks[sender].host, [sender, way] {
    while (!way->queue.empty()) {
      way->last->wait();
      message *next = way->queue.front();
      way->queue.pop_front();
      start(sender, way, next);
    }
    way->has_courier = false;
  });
}

message *find(int32_t stage, int32_t receiver, int32_t sender, int32_t slot) {
  rank_state &rank = running->ranks[receiver];
  auto &index = rank.index[stage];
  uint64_t key = static_cast<uint64_t>(sender) << 32 | static_cast<uint32_t>(slot);
  auto at = std::lower_bound(index.begin(), index.end(), std::make_pair(key, INT32_MIN));
  return at != index.end() && at->first == key ? &rank.messages[stage][at->second] : nullptr;
}

// A running rank. Its own time is summed, and spent at the next moment that another rank can observe.
class worker {
  int32_t rank;
  double debt_ns = 0;
  bool posts = false; // it has sent since its last wait, so its next wait is for messages that others send then

  void spend() {
    if (debt_ns > 0) s4u::this_actor::sleep_for(debt_ns / unit_ns);
    debt_ns = 0;
  }

  void note(bny_step_kind kind, int32_t peer, double begin_ns, double end_ns, int64_t bytes) {
    if (running->job->events_wanted) running->events.push_back({rank, peer, kind, begin_ns, end_ns, bytes});
  }

  void send(int32_t stage, const bny_plan *plan, const bny_step &step) {
    sim_job *job = running->job;
    int64_t bytes = static_cast<int64_t>(plan->slots[step.slot].bytes);
    for (int32_t i = 0; i < step.count; i++) {
      int32_t peer = plan->peers[step.first + i];
      bny_route way;
      job->platform->route(job->platform, rank, peer, &way);
      // In shared memory the peer has read these cache lines before, so a write fetches them back.
      if (i == 0 && way.nlinks == 0) debt_ns += static_cast<double>(bytes) * way.read_ns_per_byte * job->turns;
      if (posts) debt_ns += way.post_ns * job->turns;
      posts = true;
      spend();
      note(BNY_STEP_SEND, peer, now_ns(), now_ns(), bytes);
      job->messages++;
      for (int32_t l = 0; l < way.nlinks; l++) job->platform->links[way.links[l]].bytes += static_cast<double>(bytes);
      message *sent = find(stage, peer, rank, step.slot);
      if (!sent) continue; // no rank waits for it
      if (way.nlinks == 0 || bytes == 0) {
        simgrid::kernel::timer::Timer::set(s4u::Engine::get_clock() + way.latency_ns / unit_ns, [sent] {
          sent->arrived = true;
          wake(sent);
        });
        continue;
      }
      sent->latency = way.latency_ns / unit_ns;
      sent->bytes = static_cast<double>(bytes);
      send_in_order(rank, sent);
    }
  }

  void wait(int32_t stage, const bny_plan *plan, const bny_step &step) {
    sim_job *job = running->job;
    rank_state &mine = running->ranks[rank];
    message *wanted = &mine.messages[stage][step.message];
    const bny_message &what = plan->messages[step.message];
    bny_route way;
    job->platform->route(job->platform, what.peer, rank, &way);
    bool first = posts;
    posts = false;
    if (!has_arrived(wanted)) spend();
    double begin = now_ns(), seen_ns = way.seen_ns * job->turns;
    if (!has_arrived(wanted)) {
      mine.awaited = wanted;
      while (!wanted->arrived && !wanted->transfer) s4u::this_actor::suspend();
      mine.awaited = nullptr;
      if (wanted->transfer) {
        wanted->transfer->wait();
        s4u::this_actor::sleep_until(wanted->transfer->get_finish_time() + wanted->latency);
        wanted->transfer = nullptr;
      }
      note(BNY_STEP_WAIT, what.peer, begin, now_ns(), static_cast<int64_t>(what.what.bytes));
    }
    double waited_ns = now_ns() - begin;
    bool blocks = waited_ns > seen_ns;
    if (!blocks) debt_ns += seen_ns - waited_ns;
    if (blocks || first) debt_ns += job->switch_ns; // another rank of the core runs first
  }

public:
  explicit worker(int32_t number) : rank(number) {}

  void operator()() {
    sim_job *job = running->job;
    for (int32_t stage = 0; stage < job->nstages; stage++) {
      const bny_plan *plan = job->stages[stage].plans[rank];
      for (int32_t i = 0; i < plan->nsteps; i++) {
        const bny_step &step = plan->steps[i];
        debt_ns += job->step_ns * job->turns;
        if (step.kind == BNY_STEP_SEND) {
          send(stage, plan, step);
        } else if (step.kind == BNY_STEP_WAIT) {
          wait(stage, plan, step);
        } else {
          double begin = now_ns() + debt_ns;
          debt_ns += job->work_ns(job, &job->stages[stage], plan, &step);
          note(step.kind, -1, begin, now_ns() + debt_ns, 0);
        }
      }
    }
    spend();
    job->finish_ns[rank] = now_ns();
  }
};

void ranks_make(simulation &all, zone *where) {
  sim_job *job = all.job;
  int32_t nranks = job->stages[0].request->nranks;
  all.ranks.resize(static_cast<size_t>(nranks));
  for (int32_t r = 0; r < nranks; r++) {
    rank_state &rank = all.ranks[r];
    rank.host = where->create_host("rank" + std::to_string(r), {1.0});
    rank.messages.resize(static_cast<size_t>(job->nstages));
    rank.index.resize(static_cast<size_t>(job->nstages));
    for (int32_t stage = 0; stage < job->nstages; stage++) {
      const bny_plan *plan = job->stages[stage].plans[r];
      rank.messages[stage].resize(static_cast<size_t>(plan->nmessages), message{r, false, 0, 0, nullptr});
      for (int32_t m = 0; m < plan->nmessages; m++)
        rank.index[stage].emplace_back(
            static_cast<uint64_t>(plan->messages[m].peer) << 32 | static_cast<uint32_t>(plan->messages[m].slot), m);
      std::sort(rank.index[stage].begin(), rank.index[stage].end());
    }
  }
  for (int32_t l = 0; l < job->platform->nlinks; l++)
    all.links.push_back(
        where->create_link("link" + std::to_string(l), {job->platform->links[l].bytes_per_ns * unit_ns})->seal());
}

bool run(sim_job *job, char *error, size_t bytes) try {
  static simulation all;
  if (running) throw std::runtime_error("a process simulates once");
  running = &all;
  all.job = job;
  int count = 2;
  char name[] = "banyan", quiet[] = "--log=root.thresh:critical", *arguments[] = {name, quiet, nullptr};
  s4u::Engine engine(&count, arguments);
  for (const char *setting : {"network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0",
                              "contexts/stack-size:64", "contexts/guard-size:0"})
    s4u::Engine::set_config(setting);
  auto *root = s4u::create_full_zone("all"); // it includes the models
  auto *where = new zone("machine");
  where->set_parent(root->get_impl());
  ranks_make(all, where);
  where->seal();
  for (int32_t r = 0; r < static_cast<int32_t>(all.ranks.size()); r++) job->finish_ns[r] = -1;
  for (int32_t r = 0; r < static_cast<int32_t>(all.ranks.size()); r++)
    all.ranks[r].actor = s4u::Actor::create("rank", all.ranks[r].host, worker(r));
  engine.run();
  job->total_ns = 0;
  for (int32_t r = 0; r < static_cast<int32_t>(all.ranks.size()); r++) {
    if (job->finish_ns[r] < 0) throw std::runtime_error("rank " + std::to_string(r) + " waits for ever");
    job->total_ns = std::max(job->total_ns, job->finish_ns[r]);
  }
  job->nevents = static_cast<int64_t>(all.events.size());
  job->events = static_cast<sim_event *>(malloc(all.events.size() * sizeof(sim_event) + 1));
  if (!job->events) throw std::bad_alloc();
  std::copy(all.events.begin(), all.events.end(), job->events);
  return true;
} catch (const std::exception &problem) {
  snprintf(error, bytes, "SimGrid: %.200s", problem.what());
  return false;
}

} // namespace

extern "C" __attribute__((visibility("default"))) const sim_engine banyan_sim_engine;
const sim_engine banyan_sim_engine = {"SimGrid 3.32", run};
