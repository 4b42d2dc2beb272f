/* SPDX-License-Identifier: Apache-2.0
 * A fake /sys in a temporary directory, for tests of probes. */
#pragma once

#include <errno.h>
#include <ftw.h>
#include <glob.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>

#include "tests/topo/kept.h"

typedef struct tree {
  char root[256];
} tree;

static inline int tree_remove_one(const char *path, const struct stat *about, int kind, struct FTW *place) {
  (void)about;
  (void)kind;
  (void)place;
  return remove(path);
}

static inline void tree_drop(void *root) {
  ck_assert_int_eq(nftw(root, tree_remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
  free(root);
}

/* Removes what tests left that were killed: the number in a name is that of the process. */
static inline void tree_sweep(const char *folder) {
  char pattern[256];
  glob_t found = {0};
  snprintf(pattern, sizeof pattern, "%.200s/sysfs-*", folder);
  if (glob(pattern, 0, NULL, &found) != 0) return;
  for (size_t i = 0; i < found.gl_pathc; i++)
    if (kill(atoi(strrchr(found.gl_pathv[i], '/') + sizeof "sysfs-"), 0) != 0 && errno == ESRCH)
      nftw(found.gl_pathv[i], tree_remove_one, 16, FTW_DEPTH | FTW_PHYS);
  globfree(&found);
}

static inline tree tree_new(void) {
  static bool is_swept;
  tree t;
  const char *memory =
      access("/dev/shm", W_OK) == 0 ? "/dev/shm" : getenv("TMPDIR"); /* disks are slow to remove files */
  memory = memory != NULL ? memory : "/tmp";
  if (!is_swept) tree_sweep(memory);
  is_swept = true;
  snprintf(t.root, sizeof t.root, "%.200s/sysfs-%d-XXXXXX", memory, (int)getpid());
  ck_assert_ptr_nonnull(mkdtemp(t.root));
  keep(strdup(t.root), tree_drop);
  return t;
}

/* Writes the full path, and makes the directories above it. */
static inline void tree_path(const tree *t, char whole[1024], const char *path) {
  snprintf(whole, 1024, "%s/%s", t->root, path);
  for (char *slash = whole + strlen(t->root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
    *slash = '\0';
    mkdir(whole, 0700);
    *slash = '/';
  }
}

static inline void tree_bytes(const tree *t, const char *path, const void *bytes, size_t count) {
  char whole[1024];
  tree_path(t, whole, path);
  FILE *file = fopen(whole, "w");
  ck_assert_msg(file != NULL, "%s", whole);
  ck_assert_uint_eq(fwrite(bytes, 1, count, file), count);
  ck_assert_int_eq(fclose(file), 0);
}

static inline void tree_file(const tree *t, const char *text, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Makes a file with this text and a line end. */
static inline void tree_file(const tree *t, const char *text, const char *format, ...) {
  char path[512], line[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(path, sizeof path, format, arguments);
  va_end(arguments);
  int length = snprintf(line, sizeof line, "%s\n", text);
  tree_bytes(t, path, line, (size_t)length);
}

/* Makes a link at `path` to `target`, both in the tree. */
static inline void tree_link(const tree *t, const char *target, const char *path) {
  char whole[1024], absolute[1024];
  tree_path(t, whole, path);
  snprintf(absolute, sizeof absolute, "%s/%s", t->root, target);
  unlink(whole);
  ck_assert_int_eq(symlink(absolute, whole), 0);
}

static inline void tree_numa(const tree *t, int node, int package, int first_cpu, int last_cpu) {
  char list[64], number[16];
  snprintf(list, sizeof list, "%d-%d", first_cpu, last_cpu);
  snprintf(number, sizeof number, "%d", package);
  tree_file(t, list, "devices/system/node/node%d/cpulist", node);
  for (int cpu = first_cpu; cpu <= last_cpu; cpu++)
    tree_file(t, number, "devices/system/cpu/cpu%d/topology/physical_package_id", cpu);
}

typedef struct tree_device {
  const char *path; /* "pci0000:16/0000:16:01.0/0000:17:00.0" */
  const char *class, *vendor, *numa, *most_speed, *most_width, *speed, *width; /* NULL: no such file */
} tree_device;

static inline void tree_pci(const tree *t, tree_device device) {
  const char *bus = strrchr(device.path, '/') + 1;
  const struct {
    const char *name, *text;
  } files[] = {{"class", device.class},
               {"vendor", device.vendor},
               {"numa_node", device.numa},
               {"max_link_speed", device.most_speed},
               {"max_link_width", device.most_width},
               {"current_link_speed", device.speed},
               {"current_link_width", device.width}};
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
    if (files[i].text != NULL) tree_file(t, files[i].text, "devices/%s/%s", device.path, files[i].name);
  char target[512], link[512];
  snprintf(target, sizeof target, "devices/%s", device.path);
  snprintf(link, sizeof link, "bus/pci/devices/%s", bus);
  tree_link(t, target, link);
}

/* Adds an interface of class net or infiniband below a device: "net", "eth0". */
static inline void tree_interface(const tree *t, const char *device, const char *class, const char *name) {
  char target[512], link[512], below[512];
  tree_file(t, "", "devices/%s/%s/%s/uevent", device, class, name);
  snprintf(target, sizeof target, "devices/%s/%s/%s", device, class, name);
  snprintf(link, sizeof link, "class/%s/%s", class, name);
  tree_link(t, target, link);
  snprintf(target, sizeof target, "devices/%s", device);
  snprintf(below, sizeof below, "devices/%s/%s/%s/device", device, class, name);
  tree_link(t, target, below);
}

/* Gives two functions of a card 100 Gb/s interfaces, and bonds these. */
static inline void tree_bond(const tree *t, const char *const devices[2], const char *const names[2]) {
  for (int port = 0; port < 2; port++) {
    char master[256], slaves[64];
    tree_interface(t, devices[port], "net", names[port]);
    tree_file(t, "100000", "class/net/%s/speed", names[port]);
    snprintf(master, sizeof master, "devices/%s/net/%s/master", devices[port], names[port]);
    snprintf(slaves, sizeof slaves, "%s %s", names[0], names[1]);
    tree_file(t, slaves, "devices/virtual/net/bond0/bonding/slaves");
    tree_link(t, "devices/virtual/net/bond0", master);
  }
}
