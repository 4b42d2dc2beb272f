/* SPDX-License-Identifier: Apache-2.0
 * Checks whether kernels reach the memory of callers. Host memory passed to a device is the most frequent mistake, and
 * in a kernel it is a fault that leaves the whole context unusable. */
#include "device/engine.h"
#include "base/status.h"

static bool is_known(const bny_engine *engine, uintptr_t address) {
  for (int i = 0; i < BNY_ENGINE_KNOWN; i++)
    if (address - engine->known[i].first < engine->known[i].bytes) return true;
  return false;
}

static banyan_status reject(const bny_engine *engine, const char *what, const bny_pointer_facts *facts) {
  const bny_device_facts *own = &engine->device->facts;
  if (facts->kind == BNY_POINTER_DEVICE)
    return bny_fail(
        BANYAN_ERR_ARGUMENT,
        "%s is memory of device %d, which the communicator's device %d (%s) cannot reach: there is no peer access "
        "between them",
        what, facts->ordinal, own->ordinal, own->name);
  return bny_fail(BANYAN_ERR_ARGUMENT,
                  "%s is plain host memory, which the communicator's device %d (%s) cannot reach: give memory of the "
                  "device (cudaMalloc), managed memory, or host memory that is pinned or registered (cudaMallocHost, "
                  "cudaHostRegister)",
                  what, own->ordinal, own->name);
}

banyan_status bny_engine_reach(bny_engine *engine, const char *what, const void *pointer) {
  bny_pointer_facts facts;
  if (!pointer || is_known(engine, (uintptr_t)pointer)) return BANYAN_OK;
  banyan_status status = engine->device->ops->pointer(engine->device, pointer, &facts);
  if (status != BANYAN_OK) return status;
  if (!facts.reached) return reject(engine, what, &facts);
  if (facts.bytes == 0) return BANYAN_OK;
  engine->known[engine->known_next] = (bny_engine_known){facts.first, facts.bytes};
  engine->known_next = (engine->known_next + 1) % BNY_ENGINE_KNOWN;
  return BANYAN_OK;
}
