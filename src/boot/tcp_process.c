/* SPDX-License-Identifier: Apache-2.0
 * Asks the kernel about the processes of a bootstrap: their users, which count if there is no secret, the launcher that
 * has started them, and processes of a second job that look the same. */
#include "boot/tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "boot/exchange.h"
#include "base/file.h"
#include "base/sysfs.h"

void bny_boot_process_text(char text[BNY_BOOT_PROCESS_BYTES]) {
  char host[256] = "";
  if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  snprintf(text, BNY_BOOT_PROCESS_BYTES, "process %d of %.26s", (int)getpid(), *host ? host : "this node");
}

/* ---- users ------------------------------------------------------------------------------------------------------- */

/* Returns whether the kernel shows this process every user as itself. A user namespace shows unmapped users as the
 * overflow user. */
static bool sees_all_users(void) {
  const int64_t all_users = UINT32_MAX;
  long long first, outside, count;
  char line[96];
  return bny_sysfs_line(line, sizeof line, "/proc/self/uid_map") &&
         sscanf(line, "%lld %lld %lld", &first, &outside, &count) == 3 && first == 0 && count == all_users;
}

banyan_status bny_boot_user_check(const struct bny_boot_settings *settings) {
  enum { OVERFLOW_UNLESS_SET = 65534 };
  if (settings->has_secret) return BANYAN_OK;
  int64_t overflow = bny_sysfs_number("/proc/sys/kernel/overflowuid");
  if (overflow < 0) overflow = OVERFLOW_UNLESS_SET;
  if ((int64_t)geteuid() != overflow || sees_all_users()) return BANYAN_OK;
  return bny_boot_reject("rank %d of %d runs as user %ld, which is what this user namespace shows for every user that "
                         "it does not map: without a secret a process of another user could join (set BANYAN_SECRET or "
                         "BANYAN_SECRET_FILE to the same secret on all ranks)",
                         settings->rank, settings->nranks, (long)geteuid());
}

/* ---- launchers --------------------------------------------------------------------------------------------------- */

enum { ARGUMENTS_BYTES = 16384, WRAPPERS_AT_MOST = 16 };

struct process {
  int64_t parent;
  char name[64];
  char arguments[ARGUMENTS_BYTES]; /* each argument ends with a NUL */
  size_t bytes;
};

static bool read_process(int64_t id, struct process *process) {
  char line[512], path[64];
  long long parent;
  bny_sysfs_line(line, sizeof line, "/proc/%lld/stat", (long long)id);
  const char *name = strchr(line, '('), *end = strrchr(line, ')'); /* the name may hold anything */
  if (!name || !end || sscanf(end, ") %*c %lld", &parent) != 1) return false;
  process->parent = parent;
  snprintf(process->name, sizeof process->name, "%.*s", (int)(end - name - 1), name + 1);
  snprintf(path, sizeof path, "/proc/%lld/cmdline", (long long)id);
  FILE *file = bny_file_read(path);
  process->bytes = file ? fread(process->arguments, 1, sizeof process->arguments, file) : 0;
  if (file) fclose(file);
  return true;
}

static void read_input(int64_t id, char target[64]) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%lld/fd/0", (long long)id);
  ssize_t length = readlink(path, target, 63);
  target[length > 0 ? length : 0] = '\0';
}

struct children {
  char input[64]; /* the parent's standard input, from readlink() */
  int count;
};

/* A child that reads a pipe of its own filters what another one writes, and is not counted. */
static void count_children(void *context, const char *folder, const char *thread) {
  struct children *children = context;
  char line[512], input[64], *end;
  bny_sysfs_line(line, sizeof line, "%s/%s/children", folder, thread);
  for (char *at = line; *at; at = end) {
    long long child = strtoll(at, &end, 10);
    if (end == at) return;
    read_input(child, input);
    children->count += strncmp(input, "pipe:", 5) != 0 || strcmp(input, children->input) == 0;
    end += *end == ' ';
  }
}

static bool ends_with(const struct process *process, const char *end, size_t bytes) {
  size_t before = process->bytes - bytes;
  return bytes > 0 && bytes < process->bytes && process->arguments[before - 1] == '\0' &&
         memcmp(process->arguments + before, end, bytes) == 0;
}

/* Returns whether the process exists only for this child: a shell, or a program such as timeout, which has the child's
 * arguments behind its own. The arguments of a script lack its interpreter there. */
static bool is_wrapper(int64_t id, const struct process *process, const struct process *child) {
  struct children children = {.count = 0};
  size_t length = strlen(process->name), first = strnlen(child->arguments, child->bytes) + 1;
  read_input(id, children.input);
  bny_sysfs_each(count_children, &children, "/proc/%lld/task", (long long)id);
  if (children.count > 1) return false;
  if (length >= 2 && strcmp(process->name + length - 2, "sh") == 0) return true;
  if (process->bytes <= child->bytes) return false; /* a copy by fork() */
  return ends_with(process, child->arguments, child->bytes) ||
         (first < child->bytes && ends_with(process, child->arguments + first, child->bytes - first));
}

/* *branch: the child of the launcher from which this process descends. */
static int64_t find_launcher(int64_t id, int64_t *branch) {
  struct process of[2];
  *branch = id;
  if (!read_process(id, &of[0])) return 0;
  for (int i = 0; i < WRAPPERS_AT_MOST; i++) {
    const struct process *child = &of[i % 2];
    struct process *parent = &of[(i + 1) % 2];
    if (child->parent <= 1 || !read_process(child->parent, parent)) return 0;
    if (!is_wrapper(child->parent, parent, child)) return child->parent;
    *branch = child->parent;
  }
  return 0;
}

int64_t bny_boot_launcher_of(int64_t id) {
  int64_t branch;
  return find_launcher(id, &branch);
}

/* A process may also start the other ranks and be one itself. */
bool bny_boot_launcher_differs(int64_t process) {
  int64_t own = getpid(), mine = bny_boot_launcher_of(own), its = bny_boot_launcher_of(process);
  return mine > 0 && its > 0 && mine != its && mine != process && its != own;
}

/* ---- twins ------------------------------------------------------------------------------------------------------- */

struct search {
  const struct banyan_env *env;
  int64_t launcher;
  struct process self;
  int64_t twin; /* 0: none yet */
  int32_t rank; /* its */
};

/* Returns the value of a variable with which a process was executed, or NULL. */
static const char *value_of(const char *environment, size_t bytes, const char *name) {
  size_t length = strlen(name);
  for (const char *at = environment; at < environment + bytes; at += strlen(at) + 1)
    if (strncmp(at, name, length) == 0 && at[length] == '=') return at + length + 1;
  return NULL;
}

static bool has_my_value(const char *environment, size_t bytes, const char *name) {
  const char *its = value_of(environment, bytes, name), *mine = getenv(name);
  return its && mine ? strcmp(its, mine) == 0 : !its && !mine;
}

/* Returns the rank that a process was executed as, if it has this job's port and size; else -1. */
static int32_t rank_of(int64_t id, const struct bny_boot_settings *settings) {
  enum { ENVIRONMENT_BYTES = 1 << 17 };
  char path[64];
  struct stat facts;
  snprintf(path, sizeof path, "/proc/%lld/environ", (long long)id);
  FILE *file = stat(path, &facts) == 0 && facts.st_uid == geteuid() ? bny_file_read(path) : NULL;
  char *environment = file ? malloc(ENVIRONMENT_BYTES) : NULL;
  size_t bytes = environment ? fread(environment, 1, ENVIRONMENT_BYTES - 1, file) : 0;
  int32_t rank = -1;
  if (environment) environment[bytes] = '\0';
  const char *text = environment ? value_of(environment, bytes, settings->rank_from) : NULL;
  if (text && has_my_value(environment, bytes, settings->size_from) &&
      has_my_value(environment, bytes, "MASTER_PORT") && has_my_value(environment, bytes, "BANYAN_PORT"))
    rank = atoi(text);
  free(environment);
  if (file) fclose(file);
  return rank >= 0 && rank < settings->nranks ? rank : -1;
}

/* Both run one program: the name of an interpreter and of its script are equal. */
static bool runs_the_same(const struct process *a, const struct process *b) {
  size_t first = strnlen(a->arguments, a->bytes) + 1, length = first + strnlen(a->arguments + first, a->bytes - first);
  return a->bytes > 0 && length <= a->bytes && length <= b->bytes && memcmp(a->arguments, b->arguments, length) == 0;
}

/* Returns whether a process that has joined descends from this child of the launcher. */
static bool has_joined(const struct banyan_env *env, int64_t branch) {
  int64_t joined_branch;
  long long id = getpid();
  for (int32_t rank = 0; rank < env->nlinks; rank++) {
    if (rank > 0 && sscanf(env->links[rank].process, "process %lld", &id) != 1) continue;
    find_launcher(id, &joined_branch);
    if (branch == joined_branch) return true;
  }
  return false;
}

/* Ranks in other namespaces cannot be told from those that have joined, whose numbers may differ there. */
static bool is_in_my_namespace(int64_t id, const char *name) {
  char path[64], mine[64] = "", its[64] = "";
  snprintf(path, sizeof path, "/proc/%lld/ns/%s", (long long)id, name);
  bool is_known = readlink(path, its, sizeof its - 1) > 0;
  snprintf(path, sizeof path, "/proc/self/ns/%s", name);
  return is_known && readlink(path, mine, sizeof mine - 1) > 0 && strcmp(mine, its) == 0;
}

static void consider_process(void *context, const char *folder, const char *name) {
  struct search *search = context;
  struct process process;
  int64_t branch, id = atoll(name);
  (void)folder;
  if (search->twin || id <= 0 || id == getpid() || !is_in_my_namespace(id, "net") || !is_in_my_namespace(id, "pid"))
    return;
  int32_t rank = rank_of(id, &search->env->settings);
  if (rank < 0 || !read_process(id, &process) || !runs_the_same(&search->self, &process)) return;
  if (find_launcher(id, &branch) != search->launcher || has_joined(search->env, branch)) return;
  search->twin = id;
  search->rank = rank;
}

int64_t bny_boot_find_twin(const struct banyan_env *env, int32_t *rank) {
  struct search search = {.env = env, .launcher = bny_boot_launcher_of(getpid())};
  if (search.launcher > 0 && env->settings.rank_from && read_process(getpid(), &search.self))
    bny_sysfs_each(consider_process, &search, "/proc");
  *rank = search.rank;
  return search.twin;
}
