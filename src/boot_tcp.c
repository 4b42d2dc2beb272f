/* SPDX-License-Identifier: Apache-2.0
 * Ranks that a launcher described by environment variables: create, allgather, destroy. */
#include "boot_tcp.h"

#ifdef HAVE_SODIUM
#include <stdlib.h>
#include <string.h>

static int allgather_tcp(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns) {
  struct banyan_env *env = context;
  banyan_status status = BANYAN_OK;
  char nothing = 0;
  if (bytes == 0) mine = all = &nothing; /* they may be NULL */
  /* After a failure the connections are out of step, or gone. */
  if (env->failure) return (int)bny_fail(env->failure, "%s", env->failure_text);
  if (bytes > PTRDIFF_MAX / (size_t)env->settings.nranks)
    return (int)bny_fail(BANYAN_ERR_ARGUMENT, "bootstrap: %zu bytes of each of %d ranks are too many", bytes,
                         env->settings.nranks);
  if (env->settings.nranks == 1) {
    if (bytes > 0) memmove(all, mine, bytes);
  } else if (env->settings.rank == 0) {
    status = bny_boot_server_gather(env, mine, all, bytes, timeout_ns);
  } else {
    status = bny_boot_client_gather(env, mine, all, bytes, timeout_ns);
    if (status) bny_boot_link_close(&env->links[0]); /* so that rank 0 need not wait for this rank */
  }
  if (status) {
    env->failure = status;
    memcpy(env->failure_text, banyan_last_error(), strlen(banyan_last_error()) + 1);
  }
  return (int)status;
}

banyan_status banyan_env_create(int64_t timeout_ns, banyan_env **env, banyan_bootstrap *bootstrap) {
  if (!env || !bootstrap)
    return bny_fail(BANYAN_ERR_ARGUMENT, "banyan_env_create: %s is NULL", env ? "bootstrap" : "env");
  if (timeout_ns < 0)
    return bny_fail(BANYAN_ERR_ARGUMENT, "banyan_env_create: timeout_ns is %lld, must not be negative",
                    (long long)timeout_ns);
  struct banyan_env *made = calloc(1, sizeof *made);
  if (!made) return bny_fail(BANYAN_ERR_MEMORY, "banyan_env_create: no memory");
  banyan_status status = bny_boot_settings_read(&made->settings);
  if (status) goto made;
  int32_t nlinks = made->settings.rank == 0 ? made->settings.nranks : 1;
  made->links = calloc((size_t)nlinks, sizeof *made->links);
  made->polls = calloc((size_t)nlinks, sizeof *made->polls);
  if (!made->links || !made->polls) {
    status = bny_fail(BANYAN_ERR_MEMORY, "banyan_env_create: no memory for %d ranks", nlinks);
    goto made;
  }
  made->nlinks = nlinks;
  for (int32_t i = 0; i < nlinks; i++) made->links[i].fd = -1;
  if (made->settings.nranks > 1)
    status = made->settings.rank == 0 ? bny_boot_server_join(made, timeout_ns) : bny_boot_client_join(made, timeout_ns);
  if (status) goto made;
  *env = made;
  *bootstrap = (banyan_bootstrap){.size = sizeof *bootstrap,
                                  .rank = made->settings.rank,
                                  .nranks = made->settings.nranks,
                                  .context = made,
                                  .allgather = allgather_tcp};
  return BANYAN_OK;
made:
  banyan_env_destroy(made);
  return status;
}

void banyan_env_destroy(banyan_env *env) {
  if (!env) return;
  for (int32_t i = 0; i < env->nlinks; i++) bny_boot_link_close(&env->links[i]);
  free(env->polls);
  free(env->links);
  bny_boot_key_erase(&env->settings, sizeof env->settings);
  free(env);
}

#else

banyan_status banyan_env_create(int64_t timeout_ns, banyan_env **env, banyan_bootstrap *bootstrap) {
  (void)timeout_ns, (void)env, (void)bootstrap;
  return bny_fail(BANYAN_ERR_UNSUPPORTED,
                  "banyan_env_create: this libbanyan was built without libsodium, which the TCP "
                  "bootstrap authenticates ranks with");
}

void banyan_env_destroy(banyan_env *env) { (void)env; }

#endif
