/* SPDX-License-Identifier: Apache-2.0
 * Opens devices by the name of their vendor, and waits for streams. */
#include "device/device.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/deadline.h"
#include "device/cuda/entry.h"
#include "base/status.h"

banyan_status bny_device_open(const char *vendor, const bny_device_choice *choice, bny_device **device) {
  if (strcmp(vendor, "cuda") == 0) return bny_cuda_open(choice, device);
  return bny_fail(BANYAN_ERR_ARGUMENT, "config.device is \"%.40s\"; it takes \"cuda\"", vendor);
}

banyan_status bny_device_open_named(const char *name, const char *library, bny_device **device) {
  char vendor[16];
  const char *which = strchr(name, ':');
  size_t length = which ? (size_t)(which - name) : strlen(name);
  bny_device_choice choice = {.by = BNY_DEVICE_BY_CONTEXT, .library = library};
  if (which && strcmp(which, ":local") == 0) {
    choice.by = BNY_DEVICE_BY_LOCAL_RANK;
  } else if (which) {
    char *end;
    long ordinal = strtol(which + 1, &end, 10);
    choice.by = BNY_DEVICE_BY_ORDINAL;
    choice.ordinal = (int32_t)ordinal;
    if (which[1] < '0' || which[1] > '9' || *end || ordinal > INT16_MAX) length = sizeof vendor;
  }
  if (length >= sizeof vendor)
    return bny_fail(BANYAN_ERR_ARGUMENT, "\"%.40s\" is not a device; use \"cuda\", \"cuda:2\" or \"cuda:local\"", name);
  memcpy(vendor, name, length);
  vendor[length] = 0;
  return bny_device_open(vendor, &choice, device);
}

banyan_status bny_device_wait(bny_device *device, void *stream, int64_t deadline_ns) {
  int64_t pause_ns = 20000;
  for (;;) {
    bool done = false;
    banyan_status status = device->ops->stream_query(device, stream, &done);
    if (status != BANYAN_OK || done) return status;
    if (bny_deadline_now() >= deadline_ns) break;
    nanosleep(&(struct timespec){0, pause_ns}, NULL);
    if (pause_ns < 1000000) pause_ns *= 2;
  }
  return bny_fail(BANYAN_ERR_TIMEOUT, "device %d (%s) did not finish copies in time; it is busy, or a link hangs",
                  device->facts.ordinal, device->facts.name);
}

#ifndef HAVE_CUDA
banyan_status bny_cuda_open(const bny_device_choice *choice, bny_device **device) {
  (void)choice, (void)device;
  return bny_fail(BANYAN_ERR_UNSUPPORTED,
                  "this banyan was built without CUDA; install the CUDA toolkit and configure it "
                  "--with-cuda");
}
#endif
