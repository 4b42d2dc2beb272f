/* SPDX-License-Identifier: Apache-2.0
 * Reads this rank, the address of rank 0 and the secret from the environment. */
#include "boot/tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "boot/exchange.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/options.h"

enum { NRANKS_AT_MOST = 1 << 20, SECRET_BYTES_AT_MOST = 4096 };

/* Reads a whole number in decimal digits only; `must` follows "must be" in the error text. */
static banyan_status read_number(const char *name, long least, long most, const char *must, long *number) {
  const char *text = getenv(name);
  if (!text)
    return bny_boot_reject(
        "%s is not set: start the ranks by a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT", name);
  size_t length = strlen(text);
  long value = -1;
  if (length > 0 && length <= 10 && strspn(text, "0123456789") == length) value = strtol(text, NULL, 10);
  if (value < least || value > most) return bny_boot_reject("%s is \"%.64s\": must be %s", name, text, must);
  *number = value;
  return BANYAN_OK;
}

/* The variables of rank, size and ranks of this node, by launcher. mpirun comes before Slurm, because inside of Slurm
 * the variables of the batch script are set as well. */
static const struct {
  const char *rank, *size, *local;
} launchers[] = {{"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"},
                 {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                 {"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"},
                 {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_TASKS_PER_NODE"}};

/* Returns the first launcher that gives a rank; without any, the first one, for error texts. */
static size_t find_launcher(void) {
  size_t count = sizeof launchers / sizeof *launchers;
  if (getenv("WORLD_SIZE")) return 0;
  for (size_t i = 0; i < count; i++)
    if (getenv(launchers[i].rank)) return i;
  return 0;
}

static banyan_status read_rank(struct bny_boot_settings *settings) {
  long nranks, rank;
  const size_t launcher = find_launcher();
  const char *name = launchers[launcher].rank, *size_name = launchers[launcher].size;
  char must[64];
  banyan_status status =
      read_number(size_name, 1, NRANKS_AT_MOST, "the number of ranks, a whole number of 1..1048576", &nranks);
  if (status) return status;
  snprintf(must, sizeof must, "a whole number of at least 0 and less than %s", size_name);
  status = read_number(name, 0, NRANKS_AT_MOST, must, &rank);
  if (status) return status;
  if (rank >= nranks)
    return bny_boot_reject("%s is \"%ld\": must be less than %s, which is \"%ld\"", name, rank, size_name, nranks);
  settings->rank = (int32_t)rank;
  settings->nranks = (int32_t)nranks;
  settings->rank_from = name;
  settings->size_from = size_name;
  const char *local = getenv(launchers[launcher].local);
  settings->is_one_node = local && strcmp(local, getenv(size_name)) == 0;
  settings->has_nodes = local && atoi(local) > 0 && atoi(local) < nranks; /* Slurm writes 2(x3) */
  if (settings->is_one_node) settings->local_from = launchers[launcher].local;
  return BANYAN_OK;
}

/* If a launcher has started as many ranks as this job has, its id is that of the job and not of a part. */
static bool is_size(const struct bny_boot_settings *settings, const char *name) {
  const char *text = getenv(name);
  return text && atoi(text) == settings->nranks;
}

/* Writes the id that distinguishes this job from others at the same port. */
static void name_job(const struct bny_boot_settings *settings, char *name, size_t bytes) {
  const char *own = getenv("BANYAN_JOB"), *torch = getenv("TORCHELASTIC_RUN_ID"), *port = getenv("MASTER_PORT");
  const char *mpi = getenv("PMIX_NAMESPACE"), *slurm = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");
  if (!mpi) mpi = getenv("OMPI_MCA_ess_base_jobid");
  if (own && *own)
    snprintf(name, bytes, "%s", own);
  else if (torch) /* "none" unless it is set, so the port of torchrun's store is part of the name */
    snprintf(name, bytes, "torchrun %s:%s", torch, port ? port : "");
  else if (mpi && is_size(settings, "OMPI_COMM_WORLD_SIZE"))
    snprintf(name, bytes, "mpirun %s", mpi);
  else if (slurm && step && is_size(settings, "SLURM_STEP_NUM_TASKS"))
    snprintf(name, bytes, "slurm %s.%s", slurm, step);
  else if (slurm)
    snprintf(name, bytes, "slurm %s", slurm);
  else
    name[0] = '\0';
}

/* A long name is cut, and a hash of all of it is added. */
static void read_job(struct bny_boot_settings *settings) {
  enum { KEPT = 20 };
  char name[512];
  name_job(settings, name, sizeof name);
  const char *attempt = getenv("TORCHELASTIC_RESTART_COUNT");
  uint64_t hash = bny_hash_add_bytes(0, name, strlen(name));
  settings->attempt = attempt ? (uint32_t)strtoul(attempt, NULL, 10) : 0;
  if (strlen(name) < sizeof settings->job)
    strcpy(settings->job, name);
  else
    snprintf(settings->job, sizeof settings->job, "%.*s~%010llx", KEPT, name,
             (unsigned long long)(hash & 0xffffffffff));
}

void bny_boot_append_job(char *text, size_t bytes, size_t *length, const char *job, uint32_t nranks, uint64_t began_s) {
  time_t began = (time_t)began_s;
  struct tm when;
  char clock[32] = "";
  if (gmtime_r(&began, &when)) strftime(clock, sizeof clock, "%Y-%m-%d %H:%M:%S", &when);
  bny_append(text, bytes, length, job[0] ? "job %.*s" : "a job without id%.*s", BNY_BOOT_JOB_BYTES - 1, job);
  bny_append(text, bytes, length, " (%u ranks, since %s UTC)", nranks, clock);
}

void bny_boot_append_origin(char *text, size_t bytes, size_t *length, const struct bny_boot_settings *settings) {
  if (!settings->rank_from) return;
  bny_append(text, bytes, length, " (rank %d is set by %s=%d and %s=%d", settings->rank, settings->rank_from,
             settings->rank, settings->size_from, settings->nranks);
  if (settings->local_from)
    bny_append(text, bytes, length, ", one node by %s=%d", settings->local_from, settings->nranks);
  if (strcmp(settings->rank_from, "SLURM_PROCID") == 0)
    bny_append(text, bytes, length, "; a shell of salloc has these variables too: start the ranks by srun");
  bny_append(text, bytes, length, ")");
}

bool bny_boot_is_at_loopback(const struct banyan_env *env) {
  return strncmp(env->address, "127.", 4) == 0 || strncmp(env->address, "[::1]", 5) == 0;
}

void bny_boot_append_loopback(char *text, size_t bytes, size_t *length, const char *before,
                              const struct banyan_env *env) {
  if (bny_boot_is_at_loopback(env) && !env->settings.is_one_node)
    bny_append(text, bytes, length,
               "%sa loopback address that ranks of other nodes cannot reach: for these set BANYAN_INTERFACE to a "
               "network of all nodes",
               before);
}

/* Returns whether this rank is the only one. It then connects to no other and may lack settings. Existing settings are
 * checked as for any rank. */
static bool is_alone(const struct bny_boot_settings *settings) { return settings->nranks == 1; }

/* Reads BANYAN_PORT, or MASTER_PORT. If torchrun's own store listens on the latter, the port follows from it and the
 * job. */
static banyan_status read_port(struct bny_boot_settings *settings) {
  enum { PORT_FIRST = 20000, PORTS = 8000 };
  const char *name = bny_option_text("BANYAN_PORT") ? "BANYAN_PORT" : "MASTER_PORT";
  const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
  bool shared = strcmp(name, "MASTER_PORT") == 0 && agent && strcmp(agent, "True") == 0;
  long port;
  if (is_alone(settings) && !getenv(name)) return BANYAN_OK;
  if (!getenv(name) && strcmp(settings->rank_from, "OMPI_COMM_WORLD_RANK") == 0)
    return bny_boot_reject(
        "MASTER_PORT is not set: pass a free port to all ranks (mpirun -x MASTER_PORT=29500), or make "
        "ranks of MPI_COMM_WORLD (banyan_mpi.h)");
  banyan_status status = read_number(name, 1, 65535, "a port, a whole number of 1..65535", &port);
  if (status) return status;
  settings->port = (int)port;
  if (!shared) return BANYAN_OK;
  uint64_t hash = bny_hash_add_bytes((uint64_t)port, settings->job, strlen(settings->job));
  settings->port = PORT_FIRST + (int)(hash % PORTS);
  return BANYAN_OK;
}

static banyan_status read_interface(struct bny_boot_settings *settings) {
  const char *text = getenv("BANYAN_INTERFACE");
  if (!text || !*text) return BANYAN_OK;
  if (strlen(text) >= sizeof settings->interface)
    return bny_boot_reject("BANYAN_INTERFACE is \"%.64s...\": must be the name of an interface, an address, or a "
                           "network such as 10.0.0.0/8",
                           text);
  strcpy(settings->interface, text);
  return BANYAN_OK;
}

static banyan_status read_address(struct bny_boot_settings *settings) {
  const char *host = getenv("MASTER_ADDR");
  if (!host ? !is_alone(settings) && !settings->is_one_node : !*host)
    return bny_boot_reject("MASTER_ADDR is %s: must be the address of rank 0's node", host ? "\"\"" : "not set");
  if (host && strlen(host) >= sizeof settings->host)
    return bny_boot_reject("MASTER_ADDR is \"%.64s...\": longer than %zu characters", host, sizeof settings->host - 1);
  if (host) strcpy(settings->host, host);
  size_t length = strlen(settings->host);
  if (settings->host[0] == '[' && settings->host[length - 1] == ']') { /* the form of IPv6 addresses in URLs */
    settings->host[length - 1] = '\0';
    memmove(settings->host, settings->host + 1, length - 1);
  }
  banyan_status status = read_port(settings);
  if (!status) status = read_interface(settings);
  if (status) return status;
  if (settings->rank > 0 || !bny_option_text("BANYAN_LISTEN_FD")) return BANYAN_OK;
  long fd;
  status = read_number("BANYAN_LISTEN_FD", 0, 1 << 30, "the number of a listening socket", &fd);
  if (status) return status;
  settings->listen_fd = (int)fd;
  return BANYAN_OK;
}

/* Rejects a file that other users could have read or written. */
static banyan_status check_secret_file(int fd, const char *path) {
  struct stat facts;
  if (fstat(fd, &facts) != 0)
    return bny_fail_errno(BANYAN_ERR_SYSTEM, errno, "banyan_env_create: BANYAN_SECRET_FILE \"%s\"", path);
  if (!S_ISREG(facts.st_mode)) return bny_boot_reject("BANYAN_SECRET_FILE \"%s\" is not a regular file", path);
  if (facts.st_mode & (S_IRWXG | S_IRWXO))
    return bny_boot_reject("BANYAN_SECRET_FILE \"%s\" has mode %04o: others can get at the secret; chmod 600 it", path,
                           (unsigned)(facts.st_mode & 07777));
  if (facts.st_uid != geteuid() && facts.st_uid != 0)
    return bny_boot_reject("BANYAN_SECRET_FILE \"%s\" belongs to user %ld, not to this one", path, (long)facts.st_uid);
  return BANYAN_OK;
}

/* Reads the file to its end into text[SECRET_BYTES_AT_MOST + 1]. One newline at the end is not part of the secret. */
static banyan_status read_secret_file(int fd, const char *path, char *text, size_t *bytes) {
  size_t length = 0;
  ssize_t got = 1;
  while (got != 0 && length <= SECRET_BYTES_AT_MOST) {
    got = read(fd, text + length, SECRET_BYTES_AT_MOST + 1 - length);
    if (got < 0 && errno != EINTR)
      return bny_fail_errno(BANYAN_ERR_SYSTEM, errno, "banyan_env_create: BANYAN_SECRET_FILE \"%s\"", path);
    if (got > 0) length += (size_t)got;
  }
  if (length > SECRET_BYTES_AT_MOST)
    return bny_boot_reject("BANYAN_SECRET_FILE \"%s\" is longer than %d bytes", path, SECRET_BYTES_AT_MOST);
  if (length > 0 && text[length - 1] == '\n') length--;
  if (length > 0 && text[length - 1] == '\r') length--;
  if (length == 0) return bny_boot_reject("BANYAN_SECRET_FILE \"%s\" is empty", path);
  *bytes = length;
  return BANYAN_OK;
}

static banyan_status derive_key(struct bny_boot_settings *settings, const void *secret, size_t bytes) {
  if (bny_boot_key_derive(secret, bytes, settings->key)) return BANYAN_OK;
  return bny_fail(BANYAN_ERR_SYSTEM, "banyan_env_create: libsodium cannot be initialised: no source of random bytes?");
}

static banyan_status derive_key_of_file(struct bny_boot_settings *settings, const char *path) {
  char text[SECRET_BYTES_AT_MOST + 1];
  size_t bytes = 0;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* a FIFO must not block */
  if (fd < 0)
    return bny_fail_errno(BANYAN_ERR_ARGUMENT, errno,
                          "banyan_env_create: BANYAN_SECRET_FILE \"%.200s\" cannot be opened", path);
  banyan_status status = check_secret_file(fd, path);
  if (!status) status = read_secret_file(fd, path, text, &bytes);
  close(fd);
  if (!status) status = derive_key(settings, text, bytes);
  bny_boot_key_erase(text, sizeof text);
  return status;
}

/* Reads the secret. BANYAN_SECRET precedes BANYAN_SECRET_FILE, because launchers set it. */
static banyan_status read_secret(struct bny_boot_settings *settings) {
  const char *secret = getenv("BANYAN_SECRET");
  const char *path = getenv("BANYAN_SECRET_FILE");
  settings->has_secret = secret || path;
  if (secret && !*secret) return bny_boot_reject("BANYAN_SECRET is \"\": set it to a secret or unset it");
  if (secret) return derive_key(settings, secret, strlen(secret));
  if (path) return derive_key_of_file(settings, path);
  return derive_key(settings, "", 0);
}

banyan_status bny_boot_settings_read(struct bny_boot_settings *settings) {
  bny_log_read();
  memset(settings, 0, sizeof *settings);
  settings->listen_fd = -1;
  banyan_status status = read_rank(settings);
  if (status) return status;
  read_job(settings);
  status = read_address(settings);
  if (!status) return read_secret(settings);
  if (strcmp(settings->rank_from, launchers[0].rank) == 0) return status;
  char origin[256] = "";
  size_t length = 0;
  bny_boot_append_origin(origin, sizeof origin, &length, settings);
  return bny_fail(status, "%s%s", banyan_last_error(), origin);
}
