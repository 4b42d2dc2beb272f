/* SPDX-License-Identifier: Apache-2.0
 * Ranks of GPU tests, and how a case is skipped or fails. */
#include "tests/gpu/gpu_world.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>

enum { FINISH_S = 60 };

void gpu_skip(const char *test, int index, const char *format, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  printf("SKIP %s %d %s\n", test, index, text);
  fflush(stdout);
}

void gpu_add_case(struct Suite *suite, struct TCase *made) {
  tcase_set_timeout(made, 150);
  suite_add_tcase(suite, made);
}

int gpu_main(struct Suite *suite) { return world_is_here(&world_gpu) ? world_main(suite) : 77; }

bool gpu_ok(gpu_rank *self, bool ok, const tool_error *error) {
  return ok || world_check(self->world, false, "%s", error->text);
}

bool gpu_finish(gpu_rank *self) {
  tool_error error = {.text = ""};
  return gpu_ok(self, gpu_wait(self->device, self->stream, FINISH_S, &error), &error);
}

banyan_status gpu_comm_make(gpu_rank *self, const gpu_setup *setup, banyan_comm **comm) {
  banyan_comm_config config = world_config(self->world);
  config.arena_bytes = setup->arena_bytes;
  if (setup->timeout_ns) config.timeout_ns = setup->timeout_ns;
  return banyan_comm_create(&self->world->bootstrap, &config, comm);
}

static void live(world_rank *world) {
  const gpu_setup *setup = world->argument;
  gpu_rank self = {.world = world, .device = world_gpu_of(world), .stream = world->stream, .name = world->device};
  setup->body(&self, setup->argument);
}

void gpu_run(const gpu_setup *setup) {
  gpu_setup copy = *setup;
  WORLD_RUN(live, .on = setup->processes ? &world_gpu_processes : &world_gpu, .nranks = setup->nranks,
            .one_device = !setup->spread, .comms = setup->comms, .bare = setup->bare, .timeout_ns = setup->timeout_ns,
            .arena_bytes = setup->arena_bytes, .argument = &copy);
}
