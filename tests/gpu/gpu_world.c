/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/gpu_world.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FINISH_S = 60 };

bool gpu_quick(void) { return getenv("GPU_TEST_QUICK") != NULL; }

void gpu_skip(const char *test, int index, const char *format, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  printf("SKIP %s %d %s\n", test, index, text);
  fflush(stdout);
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

typedef struct machine {
  int32_t devices, sms;
} machine;

/* Writes the driver's facts to fd, or 0 devices and the reason to stdout. The process ends afterwards. */
static void look(int fd) {
  tool_error error = {.text = ""};
  machine found = {.devices = gpu_count(&error)};
  gpu *first = NULL;
  if (found.devices > 0 && gpu_open(0, &first, &error))
    found.sms = gpu_facts_of(first)->sms;
  else
    found.devices = 0;
  if (found.devices == 0) printf("%s\n", error.text);
  gpu_close(first);
  fflush(stdout);
  _exit(write(fd, &found, sizeof found) == (ssize_t)sizeof found ? EXIT_SUCCESS : EXIT_FAILURE);
}

static machine look_elsewhere(void) {
  machine found = {0, 0};
  int ends[2];
  if (pipe(ends) != 0) return found;
  pid_t pid = fork();
  if (pid == 0) look(ends[1]);
  close(ends[1]);
  if (pid > 0 && read(ends[0], &found, sizeof found) != (ssize_t)sizeof found) found.devices = 0;
  close(ends[0]);
  if (pid > 0) waitpid(pid, NULL, 0);
  return found;
}

static void remember(const char *name, int32_t number) {
  char text[16];
  snprintf(text, sizeof text, "%d", number);
  setenv(name, text, 1);
}

static int32_t recall(const char *name) {
  const char *text = getenv(name);
  return text ? (int32_t)strtol(text, NULL, 10) : 0;
}

int32_t gpu_devices(void) { return recall("GPU_TEST_DEVICES"); }

void gpu_add_case(struct Suite *suite, struct TCase *made) {
  tcase_set_timeout(made, 150);
  suite_add_tcase(suite, made);
}

int gpu_main(struct Suite *suite) {
  /* Streams that share a connection wait for each other; kernels that wait for those of other streams then never
   * end. */
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  machine found = look_elsewhere();
  if (found.devices == 0) return 77;
  remember("GPU_TEST_DEVICES", found.devices);
  remember("GPU_TEST_SMS", found.sms);
  return world_main(suite);
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

bool gpu_ok(gpu_rank *self, bool ok, const tool_error *error) {
  return ok || world_check(self->world, false, "%s", error->text);
}

bool gpu_finish(gpu_rank *self) {
  tool_error error = {.text = ""};
  return gpu_ok(self, gpu_wait(self->device, self->stream, FINISH_S, &error), &error);
}

/* On a GPU kernels of threads meet in microseconds: whoever waits for seconds waits for nothing, and time is short.
 * Those of processes take turns. */
static int64_t timeout_of(const gpu_rank *self, const gpu_setup *setup) {
  if (setup->timeout_ns) return setup->timeout_ns;
  return (int64_t)(gpu_quick() ? 60 : self->is_process ? 40 : 20) * 1000000000;
}

banyan_status gpu_comm_make(gpu_rank *self, const gpu_setup *setup, banyan_comm **comm) {
  banyan_comm_config config = {.size = sizeof config,
                               .arena_bytes = setup->arena_bytes,
                               .device = self->name,
                               .timeout_ns = timeout_of(self, setup)};
  return banyan_comm_create(&self->world->bootstrap, &config, comm);
}

static void live(world_rank *world) {
  const gpu_setup *setup = world->argument;
  gpu_rank self = {.world = world, .is_process = setup->processes};
  tool_error error = {.text = ""};
  int32_t ordinal = setup->spread ? world->rank % gpu_devices() : 0;
  snprintf(self.name, sizeof self.name, "cuda:%d", ordinal);
  bool ok = gpu_ok(&self, gpu_open(ordinal, &self.device, &error), &error);
  if (ok && !setup->bare)
    ok = gpu_ok(&self, gpu_stream_make(self.device, &self.stream, &error), &error) &&
         world_ok(world, gpu_comm_make(&self, setup, &world->comm), "banyan_comm_create");
  if (ok) setup->body(&self, setup->argument);
  world_meet(world); /* the arenas of all are in use until the last has ended */
  if (self.device) gpu_stream_free(self.device, self.stream);
  banyan_comm_destroy(world->comm);
  world->comm = NULL;
  gpu_close(self.device);
}

/* Kernels of all communicators must fit on a device at once, or some wait for others that cannot begin. The library
 * sees to that for the ranks of one communicator, within what is allowed here. */
static void limit_sms(const gpu_setup *setup) {
  int32_t share = recall("GPU_TEST_SMS") / (setup->comms ? setup->comms : 1);
  remember("BANYAN_DEVICE_SMS", share > 1 ? share : 1);
}

void gpu_run(const gpu_setup *setup) {
  gpu_setup copy = *setup;
  world_setup world = {.nranks = setup->nranks, .processes = setup->processes, .bare = true, .argument = &copy};
  limit_sms(setup);
  world_run(&world, live);
}

/* ---- sheets ------------------------------------------------------------------------------------------------------ */

static void *moved(const gpu_sheet *sheet, const void *memory, const void *pointer) {
  return pointer ? (char *)sheet->memory + ((const char *)pointer - (const char *)memory) : NULL;
}

banyan_partial gpu_sheet_partial(const gpu_sheet *sheet, const void *memory, banyan_partial partial) {
  partial.values = moved(sheet, memory, partial.values);
  partial.lse = moved(sheet, memory, partial.lse);
  partial.sum = moved(sheet, memory, partial.sum);
  return partial;
}

bool gpu_sheet_make(gpu_rank *self, const sheet *from, gpu_sheet *made) {
  tool_error error = {.text = ""};
  *made = (gpu_sheet){.memory = NULL};
  if (!gpu_ok(self, gpu_take(self->device, from->bytes, &made->memory, &error), &error)) return false;
  made->partial = gpu_sheet_partial(made, from->memory, from->partial);
  return gpu_sheet_write(self, made, from);
}

bool gpu_sheet_write(gpu_rank *self, const gpu_sheet *to, const sheet *from) {
  tool_error error = {.text = ""};
  return gpu_ok(self, gpu_write(self->device, to->memory, from->memory, from->bytes, &error), &error);
}

bool gpu_sheet_read(gpu_rank *self, sheet *to, const gpu_sheet *from) {
  tool_error error = {.text = ""};
  return gpu_ok(self, gpu_read(self->device, to->memory, from->memory, to->bytes, &error), &error);
}

void gpu_sheet_free(gpu_rank *self, gpu_sheet *sheet) {
  gpu_give(self->device, sheet->memory);
  sheet->memory = NULL;
}
