/* SPDX-License-Identifier: Apache-2.0
 * Makes, uses and destroys the bootstrap of ranks that a launcher's environment variables describe. */
#include "boot/tcp.h"

#ifdef HAVE_SODIUM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/deadline.h"
#include "base/interface.h"
#include "base/process.h"
#include "boot/exchange.h"
#include "boot/tcp_socket.h"

static int allgather_tcp(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  struct banyan_env *env = context;
  banyan_status status = BANYAN_OK;
  char nothing = 0;
  if (bny_boot_check_process(env->process)) return BANYAN_ERR_STATE;
  if (bytes == 0) mine = all = &nothing; /* the pointers may be NULL */
  /* After a failure the connections are out of step or closed. */
  if (env->failure) return (int)bny_fail(env->failure, "%s", env->failure_text);
  if (bytes > PTRDIFF_MAX / (size_t)env->settings.nranks)
    return (int)bny_fail(BANYAN_ERR_ARGUMENT, "bootstrap: %zu bytes of each of %d ranks are too many", bytes,
                         env->settings.nranks);
  if (env->settings.nranks > 1)
    status = bny_boot_gather(env, mine, all, bytes, timeout_ns);
  else if (bytes > 0)
    memmove(all, mine, bytes);
  if (bny_boot_check_process(env->process)) return BANYAN_ERR_STATE; /* forked meanwhile */
  if (status) bny_boot_failure_set(env, status);
  return (int)status;
}

_Static_assert(BNY_INTERFACE_BYTES == IF_NAMESIZE, "the kernel's names");

/* Finds the interface by the local address of the connection. */
void bny_exchange_interface(const banyan_bootstrap *bootstrap, char name[BNY_INTERFACE_BYTES]) {
  const struct banyan_env *env = bootstrap->context;
  struct sockaddr_storage address;
  struct sockaddr *own = (struct sockaddr *)&address;
  socklen_t bytes = sizeof address;
  bny_interface found;
  char text[64];
  name[0] = '\0';
  if (bootstrap->allgather != allgather_tcp || env->failure) return;
  int fd = -1;
  for (int32_t i = 0; i < env->nlinks && fd < 0; i++) fd = env->links[i].fd;
  if (fd < 0 || getsockname(fd, own, &bytes) != 0 || own->sa_family == AF_UNIX || bny_boot_address_is_loopback(own) ||
      getnameinfo(own, bytes, text, sizeof text, NULL, 0, NI_NUMERICHOST) != 0)
    return;
  if (bny_interface_find(text, own->sa_family, NULL, &found) == BANYAN_OK && !found.is_routed)
    memcpy(name, found.name, IF_NAMESIZE);
}

/* Meets the other ranks. `*listens`: rank 0 has its listener. */
static banyan_status join(struct banyan_env *env, int64_t deadline_ns, bool *listens) {
  if (env->settings.rank > 0) return bny_boot_connect(env, deadline_ns);
  banyan_status status = bny_boot_listen(env, deadline_ns);
  *listens = status == BANYAN_OK;
  return status ? status : bny_boot_accept_all(env, deadline_ns);
}

/* Meets the others without BANYAN_INTERFACE, which is wrong on this rank, so that they get the reason and do not wait
 * until their deadlines. Rank 0 listens at MASTER_ADDR, where they look for it. */
static banyan_status report_interface(struct banyan_env *env, banyan_status status, int64_t deadline_ns) {
  int64_t limit_ns = bny_deadline_now() + BNY_BOOT_REPORT_NS;
  char text[BNY_ERROR_TEXT_BYTES];
  bool listens;
  snprintf(text, sizeof text, "%s", banyan_last_error());
  bny_boot_failure_set(env, bny_fail(status, "rank %d of %d: %.450s", env->settings.rank, env->settings.nranks, text));
  env->settings.interface[0] = '\0';
  join(env, limit_ns < deadline_ns ? limit_ns : deadline_ns, &listens);
  return bny_fail(status, "%s", env->failure_text);
}

static banyan_status meet(struct banyan_env *env, int64_t timeout_ns) {
  int64_t deadline_ns = bny_boot_deadline_ns(timeout_ns);
  const struct bny_boot_settings *settings = &env->settings;
  int32_t nranks = settings->nranks;
  struct sockaddr_storage chosen;
  bool listens = false;
  /* The interface is checked first, so that a wrong setting is reported at once. */
  banyan_status wrong = bny_boot_interface_find(settings, AF_UNSPEC, NULL, &chosen);
  if (wrong && nranks == 1) return wrong;
  banyan_status status = wrong ? BANYAN_OK : bny_boot_user_check(settings);
  if (status || nranks == 1) return status;
  env->links = calloc(settings->rank == 0 ? (size_t)nranks : 1, sizeof *env->links);
  if (!env->links) return bny_fail(BANYAN_ERR_MEMORY, "banyan_env_create: no memory for %d ranks", nranks);
  env->nlinks = settings->rank == 0 ? nranks : 1;
  for (int32_t i = 0; i < env->nlinks; i++)
    env->links[i] = (struct bny_boot_link){.fd = -1, .maker = env->process, .rank = i};
  if (!wrong) status = join(env, deadline_ns, &listens);
  /* Rank 0 could not listen at the interface. */
  if (settings->rank == 0 && settings->interface[0] && !listens && status == BANYAN_ERR_ARGUMENT) wrong = status;
  return wrong ? report_interface(env, wrong, deadline_ns) : status;
}

banyan_status bny_boot_env_make(const struct bny_boot_settings *settings, int64_t timeout_ns, banyan_env **env,
                                banyan_bootstrap *bootstrap) {
  struct banyan_env *made = calloc(1, sizeof *made);
  if (!made) return bny_fail(BANYAN_ERR_MEMORY, "banyan_env_create: no memory");
  made->process = bny_process();
  made->settings = *settings;
  made->began_s = (uint64_t)time(NULL);
  made->listen_fd = -1;
  banyan_status status = meet(made, timeout_ns), copied = bny_boot_check_process(made->process);
  if (copied) status = copied;
  if (status) {
    banyan_env_destroy(made);
    return status;
  }
  *env = made;
  *bootstrap = (banyan_bootstrap){.size = sizeof *bootstrap,
                                  .rank = settings->rank,
                                  .nranks = settings->nranks,
                                  .context = made,
                                  .allgather = allgather_tcp};
  return BANYAN_OK;
}

banyan_status banyan_env_create(int64_t timeout_ns, banyan_env **env, banyan_bootstrap *bootstrap) {
  if (!env || !bootstrap) return bny_boot_reject("%s is NULL", env ? "bootstrap" : "env");
  if (timeout_ns < 0) return bny_boot_reject("timeout_ns is %lld, must not be negative", (long long)timeout_ns);
  struct bny_boot_settings settings;
  banyan_status status = bny_boot_settings_read(&settings);
  if (!status) status = bny_boot_env_make(&settings, timeout_ns, env, bootstrap);
  bny_boot_key_erase(&settings, sizeof settings);
  return status;
}

void banyan_env_destroy(banyan_env *env) {
  struct rlimit files;
  if (!env) return;
  if (env->listen_fd >= 0) close(env->listen_fd);
  for (int32_t i = 0; i < env->nlinks; i++) bny_boot_link_close(&env->links[i]);
  if (env->files && getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = (rlim_t)env->files;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  free(env->links);
  bny_boot_key_erase(&env->settings, sizeof env->settings);
  free(env);
}

#else

#include "boot/exchange.h"

void bny_exchange_interface(const banyan_bootstrap *bootstrap, char name[BNY_INTERFACE_BYTES]) {
  (void)bootstrap;
  name[0] = '\0';
}

banyan_status banyan_env_create(int64_t timeout_ns, banyan_env **env, banyan_bootstrap *bootstrap) {
  (void)timeout_ns, (void)env, (void)bootstrap;
  return bny_fail(BANYAN_ERR_UNSUPPORTED, "banyan_env_create: this libbanyan was built without libsodium, which the "
                                          "TCP bootstrap authenticates ranks with");
}

void banyan_env_destroy(banyan_env *env) { (void)env; }

#endif
