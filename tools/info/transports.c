/* SPDX-License-Identifier: Apache-2.0
 * banyan-info transports: between which ranks this copy can move messages on this machine, and why not between
 * others. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "banyan.h"
#include "tools/common/options.h"
#include "tools/info/section.h"

static json_t *transport(const char *name, const char *between, bool available, const char *text) {
  return json_pack("{s:s, s:s, s:b, s:s}", "name", name, "between", between, "available", available, "text", text);
}

/* Tries what connecting takes first: a memory file, and a descriptor of a process to notice its death. */
static json_t *shared_memory(void) {
  char text[160], memory[80] = "an unnamed memory file";
  int file = memfd_create("banyan-info", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file >= 0)
    close(file);
  else
    snprintf(memory, sizeof memory, "a file without a name, because of memfd_create: %s", strerror(errno));
  int process = (int)syscall(SYS_pidfd_open, getpid(), 0);
  if (process >= 0) close(process);
  snprintf(text, sizeof text, "%s; deaths are noticed by %s", memory,
           process >= 0 ? "pidfd" : "sockets, because pidfd_open is rejected");
  return transport("shm", "processes of one node", true, text);
}

/* The library loads UCX only when ranks of several nodes meet; so does this. */
static json_t *several_hosts(void) {
  const char *between = "ranks of several nodes";
  char text[160], more[200];
  if (banyan_network_describe(text, sizeof text) != BANYAN_OK)
    return transport("net", between, false, banyan_last_error());
  snprintf(more, sizeof more, "%s; memory within one node", text);
  return transport("net", between, true, more);
}

static json_t *gather(const info_request *request, tool_error *error) {
  (void)request;
  (void)error;
  json_t *list = json_array();
  json_array_append_new(list, transport("loop", "threads of one process", true, "plain memory"));
  json_array_append_new(list, shared_memory());
  json_array_append_new(list, several_hosts());
  return list;
}

static void print(const json_t *facts, FILE *stream) {
  size_t i;
  json_t *one;
  json_array_foreach(facts, i, one) {
    info_row(stream,
             tool_format("%-6s %-27s %-10s", info_text(one, "name"), info_text(one, "between"),
                         json_is_true(json_object_get(one, "available")) ? "available" : "not here"),
             info_text(one, "text"));
  }
}

const info_section info_transports = {"transports", "Transports", gather, print};
