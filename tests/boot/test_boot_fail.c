/* SPDX-License-Identifier: Apache-2.0
 * A rank whose bootstrap fails sends the reason to its parent and children, even if these do not read for a while. If
 * they never read, it waits for a bounded time. */
#include "boot/tcp.h"
#include "tests/support/world.h"

#ifdef HAVE_SODIUM
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A peer that reads nothing for some time, and then reads everything. */
typedef struct sleepy_peer {
  int fd;
  double sleep_ms;
  size_t bytes;       /* bytes read so far */
  char tail[2 << 10]; /* the last bytes read */
} sleepy_peer;

static void *sleep_and_read(void *argument) {
  sleepy_peer *peer = argument;
  char block[4096];
  ssize_t got;
  world_sleep_ms(peer->sleep_ms);
  while ((got = read(peer->fd, block, sizeof block)) > 0) {
    size_t kept = peer->bytes < sizeof peer->tail ? peer->bytes : sizeof peer->tail, fresh = (size_t)got;
    peer->bytes += fresh;
    size_t taken = fresh < sizeof peer->tail ? fresh : sizeof peer->tail;
    if (kept > sizeof peer->tail - taken) {
      size_t dropped = kept - (sizeof peer->tail - taken);
      memmove(peer->tail, peer->tail + dropped, kept - dropped);
      kept -= dropped;
    }
    memcpy(peer->tail + kept, block + fresh - taken, taken);
  }
  return NULL;
}

/* A connection whose socket buffers are full. */
static struct bny_boot_link full_link(int32_t rank, int *other_end) {
  int ends[2];
  char junk[4096];
  memset(junk, 'x', sizeof junk);
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  while (send(ends[0], junk, sizeof junk, MSG_DONTWAIT) > 0) continue;
  while (send(ends[0], junk, 1, MSG_DONTWAIT) > 0) continue;
  *other_end = ends[1];
  return (struct bny_boot_link){.fd = ends[0], .rank = rank};
}

static void fail_all(struct banyan_env *env) {
  bny_fail(BANYAN_ERR_TIMEOUT, "the reason of it all");
  ck_assert_int_eq(bny_boot_fail_all(env, BANYAN_ERR_TIMEOUT), BANYAN_ERR_TIMEOUT);
  ck_assert_int_eq(env->parent.fd, -1);
}

static bool holds(const sleepy_peer *peer, const char *text) {
  for (size_t i = 0; i + strlen(text) <= sizeof peer->tail; i++)
    if (memcmp(peer->tail + i, text, strlen(text)) == 0) return true;
  return false;
}

TEST(sleepy_peers_get_the_reason) {
  sleepy_peer peers[2] = {{.sleep_ms = 100}, {.sleep_ms = 200}};
  pthread_t threads[2];
  struct bny_boot_link child = full_link(2, &peers[1].fd);
  struct banyan_env env = {.parent = full_link(0, &peers[0].fd), .children = &child, .nchildren = 1};
  for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, sleep_and_read, &peers[i]), 0);
  fail_all(&env);
  for (int i = 0; i < 2; i++) {
    pthread_join(threads[i], NULL);
    ck_assert_msg(holds(&peers[i], "the reason of it all"), "%s did not get the reason (%zu bytes)",
                  i ? "the child" : "the parent", peers[i].bytes);
    close(peers[i].fd);
  }
}

TEST(silent_peers_are_given_up) {
  int other_end;
  struct banyan_env env = {.parent = full_link(0, &other_end)};
  double begun = world_now_s();
  fail_all(&env);
  double took = world_now_s() - begun;
  ck_assert_msg(took > 0.5 && took < 3, "it took %.3f s", took);
  close(other_end);
}

int main(void) { return world_main(suite_of("boot_fail", 60)); }
#else
int main(void) {
  printf("skipped: built without libsodium\n");
  return 77;
}
#endif
