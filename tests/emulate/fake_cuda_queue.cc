/* SPDX-License-Identifier: Apache-2.0
 * The queues of streams in the fake CUDA driver, for its word `live`, and the thread that runs their work.
 *
 * All running kernels share one emulator. New launches are added to it while it runs, so a kernel may wait for one that
 * is launched later, by another thread of this process or by another process. */
#include "tests/emulate/fake_cuda_queue.hh"

#include <time.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

namespace {

enum { STEPS_BETWEEN_LOOKS = 256, SETTLES_CPU_MS = 20000, SETTLES_MS = 10 * SETTLES_CPU_MS };

struct machine {
  std::mutex context; /* held by a thread that adds work; locked before `mutex` */
  std::mutex mutex;
  std::condition_variable news;
  std::map<const void *, std::deque<std::shared_ptr<fake_item>>> streams;
  std::map<const void *, std::shared_ptr<fake_graph>> captures; /* by stream */
  std::map<const void *, double> delays_ms;                     /* likewise */
  bool begun = false, broken = false;
};

/* Returns the state, which lives as long as the process and its thread. */
machine &all() {
  static machine *made = new machine;
  return *made;
}

double now_ms(clockid_t clock = CLOCK_MONOTONIC) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Makes a launch whose ended threads are counted. The count shows the end of the launch. */
bny_emulator_launch counted(const bny_emulator_launch &launch, const std::shared_ptr<fake_item> &of) {
  bny_emulator_launch made = launch;
  made.kernel = [kernel = launch.kernel, of] {
    kernel();
    bny_emulated_settle();
    of->left--;
  };
  return made;
}

/* Advances a stream's first item. Returns true if it has ended. */
bool advance(bny_emulator *emulator, const void *stream, const std::shared_ptr<fake_item> &item) {
  if (item->started) return item->left == 0;
  if (item->host) item->host();
  if (item->records) {
    item->records->done = true;
    item->records->when_ms = now_ms() + all().delays_ms[stream];
  }
  for (const bny_emulator_launch &launch : item->launches) bny_emulator_add(emulator, counted(launch, item));
  item->started = true;
  return item->left == 0;
}

/* Called under the lock. Returns whether any item began or ended. */
bool pump(bny_emulator *emulator) {
  bool any = false;
  for (bool again = true; again;) {
    again = false;
    for (auto &stream : all().streams) {
      if (stream.second.empty()) continue;
      std::shared_ptr<fake_item> first = stream.second.front();
      bool began = first->started;
      if (advance(emulator, stream.first, first)) {
        stream.second.pop_front();
        again = true;
      }
      any = any || again || began != first->started;
    }
  }
  return any;
}

void run_round(uint64_t round) {
  machine &self = all();
  bny_emulator_config config = {};
  config.seed = static_cast<uint64_t>(fake_number("seed", 1)) + round;
  config.step_ns = static_cast<uint64_t>(fake_number("step-ns", 100));
  config.steps_max = UINT64_MAX;
  config.weak = true;
  bny_emulator *emulator = bny_emulator_make(config);
  uint64_t steps = 0;
  bny_emulator_watch(emulator, [&] {
    if (++steps % STEPS_BETWEEN_LOOKS) return;
    std::lock_guard<std::mutex> lock(self.mutex);
    pump(emulator);
  });
  {
    std::unique_lock<std::mutex> lock(self.mutex);
    while (!pump(emulator)) self.news.wait(lock);
  }
  char why[256] = "";
  bool ended = bny_emulator_run(emulator, why, sizeof why);
  bny_emulator_free(emulator);
  if (ended) return;
  fprintf(stderr, "fake CUDA: %s\n", why);
  std::lock_guard<std::mutex> lock(self.mutex);
  self.broken = true;
}

void run_devices() {
  for (uint64_t round = 0; !fake_queue_is_broken(); round++) run_round(round);
}

} // namespace

/* ---- queues ------------------------------------------------------------------------------------------------------ */

void fake_queue_push(const void *stream, const std::shared_ptr<fake_item> &item) {
  std::lock_guard<std::mutex> context(all().context);
  std::lock_guard<std::mutex> lock(all().mutex);
  for (const bny_emulator_launch &launch : item->launches)
    item->left += static_cast<size_t>(launch.blocks) * launch.threads;
  all().streams[stream].push_back(item);
  if (!all().begun) std::thread(run_devices).detach();
  all().begun = true;
  all().news.notify_all();
}

std::shared_ptr<fake_graph> fake_queue_capture_of(const void *stream) {
  std::lock_guard<std::mutex> lock(all().mutex);
  auto found = all().captures.find(stream);
  return found == all().captures.end() ? nullptr : found->second;
}

void fake_queue_set_capture(const void *stream, const std::shared_ptr<fake_graph> &graph) {
  std::lock_guard<std::mutex> lock(all().mutex);
  all().captures[stream] = graph;
}

void fake_queue_end_capture(const void *stream) {
  std::lock_guard<std::mutex> lock(all().mutex);
  all().captures.erase(stream);
}

void fake_queue_launch(const void *stream, const bny_emulator_launch &launch, const fake_words &words) {
  if (std::shared_ptr<fake_graph> graph = fake_queue_capture_of(stream)) {
    graph->launches.push_back(launch);
    graph->words.insert(graph->words.end(), words.begin(), words.end());
    return;
  }
  auto item = std::make_shared<fake_item>();
  item->launches.push_back(launch);
  item->words = words;
  fake_queue_push(stream, item);
}

void fake_queue_delay(const void *stream, double ms) {
  if (std::shared_ptr<fake_graph> graph = fake_queue_capture_of(stream)) {
    graph->delay_ms += ms;
    return;
  }
  auto item = std::make_shared<fake_item>();
  item->host = [=] { all().delays_ms[stream] += ms; }; /* under the lock */
  fake_queue_push(stream, item);
}

/* Adds a host function. In a graph it is a kernel with one thread that calls the function. */
static void add_work(const void *stream, const std::function<void()> &work, const fake_words &words) {
  if (std::shared_ptr<fake_graph> graph = fake_queue_capture_of(stream)) {
    bny_emulator_launch launch = {};
    launch.device = static_cast<uint32_t>(fake_device());
    launch.blocks = 1;
    launch.threads = BNY_WARP_LANES;
    launch.kernel = [work] {
      if (bny_thread() == 0) work();
    };
    graph->launches.push_back(launch);
    graph->words.insert(graph->words.end(), words.begin(), words.end());
    return;
  }
  auto item = std::make_shared<fake_item>();
  item->host = work;
  item->words = words;
  fake_queue_push(stream, item);
}

/* Returns whether all work has ended, or nothing runs any more. */
static bool has_settled() {
  std::lock_guard<std::mutex> lock(all().mutex);
  for (const auto &stream : all().streams)
    if (!stream.second.empty() && !all().broken) return false;
  return true;
}

/* Waiting kernels take processor time, so other kernels may take long on a busy machine. */
void fake_queue_settle(void) {
  machine &self = all();
  std::lock_guard<std::mutex> context(self.context);
  const double until_ms = now_ms() + SETTLES_MS, until_cpu_ms = now_ms(CLOCK_PROCESS_CPUTIME_ID) + SETTLES_CPU_MS;
  while (!has_settled() && now_ms() < until_ms && now_ms(CLOCK_PROCESS_CPUTIME_ID) < until_cpu_ms) usleep(200);
  if (has_settled()) return;
  fprintf(stderr, "fake CUDA: a call waits for kernels that wait for what nobody can launch meanwhile\n");
  abort();
}

bool fake_queue_uses(const void *address, size_t bytes) {
  std::lock_guard<std::mutex> lock(all().mutex);
  for (const auto &stream : all().streams)
    for (const auto &item : stream.second)
      for (uint64_t word : item->words)
        if (!all().broken && word - reinterpret_cast<uintptr_t>(address) < bytes) return true;
  return false;
}

bool fake_queue_is_on(void) { return fake_is("live", -1); }

bool fake_queue_is_broken(void) {
  std::lock_guard<std::mutex> lock(all().mutex);
  return all().broken;
}

bool fake_queue_is_busy(const void *stream) {
  std::lock_guard<std::mutex> lock(all().mutex);
  return !all().streams[stream].empty();
}

bool fake_queue_is_capturing(const void *stream) { return fake_queue_capture_of(stream) != nullptr; }

void fake_queue_copy(const void *stream, void *to, const void *from, size_t bytes) {
  add_work(stream, [=] { memcpy(to, from, bytes); },
           {reinterpret_cast<uintptr_t>(to), reinterpret_cast<uintptr_t>(from)});
}

void fake_queue_fill(const void *stream, void *to, unsigned char value, size_t bytes) {
  add_work(stream, [=] { fake_fill(to, value, bytes); }, {reinterpret_cast<uintptr_t>(to)});
}
