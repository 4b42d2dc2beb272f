/* SPDX-License-Identifier: Apache-2.0
 * Identifies this machine by its CPU model and its numbers of cores, NUMA nodes, GPUs and NICs. */
#include "locality/price.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "base/sysfs.h"

/* ---- processors -------------------------------------------------------------------------------------------------- */

/* Returns whether a name is `word` and a number, which is then *number. */
static bool is_numbered(const char *name, const char *word, int32_t *number) {
  int end = 0;
  char format[32];
  snprintf(format, sizeof format, "%s%%d%%n", word);
  return sscanf(name, format, number, &end) == 1 && !name[end];
}

/* A core or a package counts at the first of its CPUs. */
static void visit_cpu(void *context, const char *folder, const char *name) {
  bny_machine *machine = context;
  int32_t cpu;
  if (!is_numbered(name, "cpu", &cpu)) return;
  machine->cores += bny_sysfs_number("%s/%s/topology/thread_siblings_list", folder, name) == cpu;
  machine->packages += bny_sysfs_number("%s/%s/topology/core_siblings_list", folder, name) == cpu;
}

static void visit_numa_node(void *context, const char *folder, const char *name) {
  bny_machine *machine = context;
  int32_t node;
  (void)folder;
  machine->numa_nodes += is_numbered(name, "node", &node);
}

/* x86 names the model. ARM has numbers of maker and part, and POWER has "cpu". */
static void find_cpu(const char *root, bny_machine *machine) {
  static const char *const fields[] = {"model name", "CPU implementer", "CPU part", "cpu\t"};
  char path[512], line[256], values[4][sizeof line] = {""};
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

/* Virtual functions are not counted, because they come and go. */
static bool is_virtual(const char *folder, const char *name) {
  char path[512];
  snprintf(path, sizeof path, "%.300s/%.40s/physfn", folder, name);
  return access(path, F_OK) == 0;
}

static void visit_pci(void *context, const char *folder, const char *name) {
  bny_machine *machine = context;
  enum { NETWORK = 0x02, DISPLAY = 0x03, ACCELERATOR = 0x12 };
  int64_t class = bny_sysfs_number("%s/%s/class", folder, name) >> 16;
  bool is_gpu = class == DISPLAY || class == ACCELERATOR;
  if ((!is_gpu && class != NETWORK) || is_virtual(folder, name)) return;
  char *list = is_gpu ? machine->gpus : machine->nics;
  size_t length = strlen(list);
  bny_append(list, sizeof machine->gpus, &length, "%s%.20s %04x:%04x", length ? ", " : "", name,
             (unsigned)bny_sysfs_number("%s/%s/vendor", folder, name),
             (unsigned)bny_sysfs_number("%s/%s/device", folder, name));
}

void bny_machine_find(const char *root, bny_machine *machine) {
  *machine = (bny_machine){.cpu = ""};
  find_cpu(root, machine);
  bny_sysfs_each(visit_cpu, machine, "%s/sys/devices/system/cpu", root);
  bny_sysfs_each(visit_numa_node, machine, "%s/sys/devices/system/node", root);
  bny_sysfs_each(visit_pci, machine, "%s/sys/bus/pci/devices", root);
}
