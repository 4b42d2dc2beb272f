/* SPDX-License-Identifier: Apache-2.0
 * The first program of a virtual machine of tests/hosts/roce. It loads the modules listed in /modules and uses the
 * files of the host machine as its root. A memory overlay keeps writes from the host. It then becomes the command
 * passed to the kernel. When that ends, the kernel panics, which ends the virtual machine. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void fail(const char *what, const char *name) {
  fprintf(stderr, "roce_init: %s %s: %s\n", what, name, strerror(errno));
  exit(1);
}

static void load_modules(void) {
  char path[256];
  FILE *list = fopen("/modules", "re");
  if (!list) fail("reading", "/modules");
  while (fgets(path, sizeof path, list)) {
    path[strcspn(path, "\n")] = 0;
    int module = open(path, O_RDONLY | O_CLOEXEC);
    if (module < 0) fail("opening", path);
    if (syscall(SYS_finit_module, module, "", 0) && errno != EEXIST) fail("loading", path);
    close(module);
  }
  fclose(list);
}

static void make_directory(const char *path) {
  if (mkdir(path, 0755) && errno != EEXIST) fail("making", path);
}

static void mount_on(const char *path, const char *type, unsigned long flags, const char *options) {
  if (mount(type, path, type, flags, options)) fail("mounting", path);
}

static void make_root(void) {
  make_directory("/host");
  make_directory("/above");
  make_directory("/root");
  if (mount("host", "/host", "9p", MS_RDONLY, "trans=virtio,version=9p2000.L,msize=500000,cache=loose"))
    fail("mounting", "/host");
  mount_on("/above", "tmpfs", 0, "mode=755");
  make_directory("/above/upper");
  make_directory("/above/work");
  mount_on("/root", "overlay", 0, "lowerdir=/host,upperdir=/above/upper,workdir=/above/work");
  mount_on("/root/proc", "proc", 0, NULL);
  mount_on("/root/sys", "sysfs", 0, NULL);
  mount_on("/root/dev", "devtmpfs", 0, "mode=755");
  make_directory("/root/dev/shm");
  mount_on("/root/dev/shm", "tmpfs", 0, NULL);
  mount_on("/root/run", "tmpfs", 0, NULL);
  if (chdir("/root") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".")) fail("entering", "/root");
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  load_modules();
  make_root();
  execv(argv[1], argv + 1);
  fail("starting", argv[1]);
}
