/* SPDX-License-Identifier: Apache-2.0
 * Finds kernels by name in the files that EMULATE_PTX names. */
#define BNY_TESTS_PTX
#include "tests/ptx/compiled.hh"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sstream>

#include "tests/ptx/ptx.hh"

/* Reads a file, and a kernel in it, at the first request, under a lock. Both live as long as the process. */
static const ptx::function *find(const char *name) {
  static std::mutex mutex;
  static std::vector<std::shared_ptr<ptx::module>> *modules;
  std::lock_guard<std::mutex> lock(mutex);
  if (!modules) {
    modules = new std::vector<std::shared_ptr<ptx::module>>;
    std::stringstream paths(getenv("EMULATE_PTX"));
    for (std::string path; std::getline(paths, path, ':');) modules->push_back(ptx::read_module(path));
  }
  for (auto &one : *modules)
    if (const ptx::function *found = ptx::find(one.get(), name)) return found;
  return nullptr;
}

static void note(const char *name) {
  const char *path = getenv("EMULATE_PTX_NOTES");
  FILE *notes = path ? fopen(path, "a") : nullptr;
  if (!notes) return;
  fprintf(notes, "%s\n", name);
  fclose(notes);
}

bool compiled_is_on(void) { return getenv("EMULATE_PTX") != nullptr; }

bool compiled_has(const char *name) { return find(name) != nullptr; }

std::function<void()> compiled_kernel(const char *name, uint32_t dynamic_bytes, void **arguments) {
  const ptx::function *found = find(name);
  if (!found) {
    fprintf(stderr, "%s: not in %s\n", name, getenv("EMULATE_PTX"));
    abort();
  }
  note(name);
  return ptx::bind(found, dynamic_bytes, arguments);
}
