/* SPDX-License-Identifier: Apache-2.0 */
#include "place/machine.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

enum { PATH_BYTES = 512 };

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Returns the first number of a file, in any base; -1 if there is none. */
static long first_number(const char *folder, const char *name, const char *file) {
  char path[PATH_BYTES], text[64], *end;
  snprintf(path, sizeof path, "%.300s/%.40s/%.80s", folder, name, file);
  FILE *stream = fopen(path, "re");
  bool read = stream && fgets(text, sizeof text, stream);
  if (stream) fclose(stream);
  long number = read ? strtol(text, &end, 0) : -1;
  return read && end != text ? number : -1;
}

static int is_entry(const struct dirent *entry) { return entry->d_name[0] != '.'; }

/* Calls `visit` for each entry of a folder, in the order of names. */
static void for_each(const char *root, const char *place,
                     void (*visit)(bny_machine *machine, const char *folder, const char *name), bny_machine *machine) {
  char folder[PATH_BYTES];
  struct dirent **entries = NULL;
  snprintf(folder, sizeof folder, "%.300s%.100s", root, place);
  int count = scandir(folder, &entries, is_entry, versionsort);
  for (int i = 0; i < count; i++) {
    visit(machine, folder, entries[i]->d_name);
    free(entries[i]);
  }
  if (count >= 0) free(entries);
}

/* ---- processors -------------------------------------------------------------------------------------------------- */

/* Returns whether a name is `word` and a number, which is then *number. */
static bool is_numbered(const char *name, const char *word, int32_t *number) {
  int end = 0;
  char format[32];
  snprintf(format, sizeof format, "%s%%d%%n", word);
  return sscanf(name, format, number, &end) == 1 && !name[end];
}

/* A core or a package counts at the first of its CPUs. */
static void visit_cpu(bny_machine *machine, const char *folder, const char *name) {
  int32_t cpu;
  if (!is_numbered(name, "cpu", &cpu)) return;
  machine->cores += first_number(folder, name, "topology/thread_siblings_list") == cpu;
  machine->packages += first_number(folder, name, "topology/core_siblings_list") == cpu;
}

static void visit_numa_node(bny_machine *machine, const char *folder, const char *name) {
  int32_t node;
  (void)folder;
  machine->numa_nodes += is_numbered(name, "node", &node);
}

/* x86 names the model. ARM has numbers of maker and part, and POWER has "cpu". */
static void find_cpu(const char *root, bny_machine *machine) {
  static const char *const fields[] = {"model name", "CPU implementer", "CPU part", "cpu\t"};
  char path[PATH_BYTES], line[256], values[4][sizeof line] = {""};
  snprintf(path, sizeof path, "%.300s/proc/cpuinfo", root);
  FILE *stream = fopen(path, "re");
  while (stream && fgets(line, sizeof line, stream)) {
    char *value = strchr(line, ':');
    for (int i = 0; value && i < 4; i++)
      if (!values[i][0] && strncmp(line, fields[i], strlen(fields[i])) == 0)
        snprintf(values[i], sizeof values[i], "%.*s", (int)strcspn(value + 2, "\n"), value[1] ? value + 2 : "");
  }
  if (stream) fclose(stream);
  const char *model = values[0][0] ? values[0] : values[3];
  if (model[0])
    snprintf(machine->cpu, sizeof machine->cpu, "%.100s", model);
  else if (values[2][0])
    snprintf(machine->cpu, sizeof machine->cpu, "implementer %.40s part %.40s", values[1], values[2]);
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

/* Virtual functions come and go. */
static bool is_virtual(const char *folder, const char *name) {
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "%.300s/%.40s/physfn", folder, name);
  return access(path, F_OK) == 0;
}

static void visit_pci(bny_machine *machine, const char *folder, const char *name) {
  enum { NETWORK = 0x02, DISPLAY = 0x03, ACCELERATOR = 0x12 };
  long class = first_number(folder, name, "class") >> 16;
  bool is_gpu = class == DISPLAY || class == ACCELERATOR;
  if ((!is_gpu && class != NETWORK) || is_virtual(folder, name)) return;
  char *list = is_gpu ? machine->gpus : machine->nics;
  size_t length = strlen(list);
  bny_append(list, sizeof machine->gpus, &length, "%s%.20s %04lx:%04lx", length ? ", " : "", name,
             first_number(folder, name, "vendor"), first_number(folder, name, "device"));
}

void bny_machine_find(const char *root, bny_machine *machine) {
  *machine = (bny_machine){.cpu = ""};
  find_cpu(root, machine);
  for_each(root, "/sys/devices/system/cpu", visit_cpu, machine);
  for_each(root, "/sys/devices/system/node", visit_numa_node, machine);
  for_each(root, "/sys/bus/pci/devices", visit_pci, machine);
}
