/* SPDX-License-Identifier: Apache-2.0
 * Bootstrap of ranks that are threads of one process. */
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

#include "banyan.h"
#include "tests/support/suite.h"
#include "tests/support/clock.h"
#include "tests/support/rounds.h"

enum { RANKS_AT_MOST = 17, ROUNDS = 200 };

static const int64_t second_ns = 1000000000;

struct member {
  banyan_bootstrap bootstrap;
  size_t bytes;
  int64_t timeout_ns;
  int rounds;
  int result; /* result of the first allgather that failed */
  int wrong;  /* number of wrong bytes from other ranks */
  char text[512];
};

static void *gather_rounds(void *argument) {
  struct member *member = argument;
  member->result = rounds_gather(&member->bootstrap, member->bytes, member->rounds, (double)member->timeout_ns * 1e-9,
                                 &member->wrong);
  strncpy(member->text, banyan_last_error(), sizeof member->text - 1);
  return NULL;
}

/* Runs the members as threads; members without a bootstrap are absent. */
static void run_members(struct member *members, int count) {
  pthread_t threads[RANKS_AT_MOST + 1];
  for (int i = 0; i < count; i++)
    if (members[i].bootstrap.size) ck_assert_int_eq(pthread_create(&threads[i], NULL, gather_rounds, &members[i]), 0);
  for (int i = 0; i < count; i++)
    if (members[i].bootstrap.size) pthread_join(threads[i], NULL);
}

static void fill_member(banyan_threads *group, struct member *member, int rank, size_t bytes, double timeout_s) {
  *member = (struct member){.bytes = bytes, .timeout_ns = (int64_t)(timeout_s * 1e9), .rounds = 1};
  ck_assert_int_eq(banyan_threads_bootstrap(group, rank, &member->bootstrap), BANYAN_OK);
}

TEST_RANGE(gathers_any_number_of_times, 1, RANKS_AT_MOST + 1) {
  static const size_t sizes[] = {0, 1, 8, 777};
  int nranks = _i;
  banyan_threads *group;
  ck_assert_int_eq(banyan_threads_create(nranks, &group), BANYAN_OK);
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    struct member members[RANKS_AT_MOST];
    for (int rank = 0; rank < nranks; rank++) {
      fill_member(group, &members[rank], rank, sizes[s], 20);
      members[rank].rounds = ROUNDS;
    }
    run_members(members, nranks);
    for (int rank = 0; rank < nranks; rank++) {
      ck_assert_msg(members[rank].result == 0, "rank %d: %s", rank, members[rank].text);
      ck_assert_int_eq(members[rank].wrong, 0);
    }
  }
  banyan_threads_destroy(group);
}

/* `mine` may point to its own block of `all`. */
TEST(gathers_in_place) {
  banyan_threads *group;
  banyan_bootstrap bootstrap;
  ck_assert_int_eq(banyan_threads_create(1, &group), BANYAN_OK);
  ck_assert_int_eq(banyan_threads_bootstrap(group, 0, &bootstrap), BANYAN_OK);
  int value = 42;
  ck_assert_int_eq(bootstrap.allgather(bootstrap.context, &value, &value, sizeof value, second_ns), 0);
  ck_assert_int_eq(value, 42);
  banyan_threads_destroy(group);
}

/* A child forked while a rank waits is rejected, and frees its copy. */
TEST(rejects_the_child_of_a_fork) {
  banyan_threads *group;
  struct member members[2];
  pthread_t first;
  ck_assert_int_eq(banyan_threads_create(2, &group), BANYAN_OK);
  for (int rank = 0; rank < 2; rank++) fill_member(group, &members[rank], rank, 8, 20);
  ck_assert_int_eq(pthread_create(&first, NULL, gather_rounds, &members[0]), 0);
  pid_t child = fork();
  if (child == 0) {
    gather_rounds(&members[1]);
    banyan_threads_destroy(group);
    _exit(members[1].result);
  }
  int how;
  ck_assert_int_eq(waitpid(child, &how, 0), child);
  ck_assert_msg(WIFEXITED(how) && WEXITSTATUS(how) == BANYAN_ERR_STATE, "the child ended with %#x", how);
  gather_rounds(&members[1]);
  pthread_join(first, NULL);
  for (int rank = 0; rank < 2; rank++) ck_assert_msg(members[rank].result == 0, "%s", members[rank].text);
  banyan_threads_destroy(group);
}

TEST(names_missing_ranks_in_time) {
  banyan_threads *group;
  struct member members[5] = {0};
  ck_assert_int_eq(banyan_threads_create(5, &group), BANYAN_OK);
  fill_member(group, &members[0], 0, 8, 0.2);
  fill_member(group, &members[2], 2, 8, 10); /* has a longer deadline, but gets the failure of rank 0 */
  fill_member(group, &members[4], 4, 8, 10);
  double before = now_s();
  run_members(members, 5);
  double took = now_s() - before;
  ck_assert_msg(took >= 0.2 && took < 5, "took %g s", took);
  for (int rank = 0; rank < 5; rank += 2) {
    ck_assert_int_eq(members[rank].result, BANYAN_ERR_TIMEOUT);
    ck_assert_msg(strstr(members[rank].text, "ranks 1 and 3 of 5") != NULL, "text: %s", members[rank].text);
  }
  /* A late rank gets the reason at once. */
  fill_member(group, &members[1], 1, 8, 10);
  gather_rounds(&members[1]);
  ck_assert_int_eq(members[1].result, BANYAN_ERR_TIMEOUT);
  ck_assert_msg(now_s() - before < took + 5, "the late rank waited");
  banyan_threads_destroy(group);
}

TEST(rejects_a_rank_used_twice) {
  banyan_threads *group;
  struct member members[3] = {0};
  ck_assert_int_eq(banyan_threads_create(3, &group), BANYAN_OK);
  fill_member(group, &members[0], 0, 8, 10);
  fill_member(group, &members[1], 1, 8, 10);
  fill_member(group, &members[2], 1, 8, 10);
  double before = now_s();
  run_members(members, 3);
  ck_assert_msg(now_s() - before < 5, "took %g s", now_s() - before);
  for (int i = 1; i < 3; i++) {
    ck_assert_int_eq(members[i].result, BANYAN_ERR_BOOTSTRAP);
    ck_assert_msg(strstr(members[i].text, "rank 1 of 3 is used by two threads") != NULL, "text: %s", members[i].text);
  }
  banyan_threads_destroy(group);
}

TEST(names_a_rank_with_another_size) {
  banyan_threads *group;
  struct member members[2] = {0};
  ck_assert_int_eq(banyan_threads_create(2, &group), BANYAN_OK);
  fill_member(group, &members[0], 0, 8, 10);
  fill_member(group, &members[1], 1, 16, 10);
  run_members(members, 2);
  for (int i = 0; i < 2; i++) { /* the first of the two sets the expected size */
    ck_assert_int_eq(members[i].result, BANYAN_ERR_BOOTSTRAP);
    ck_assert_msg(strstr(members[i].text, "16") && strstr(members[i].text, "rank 1"), "%s", members[i].text);
  }
  banyan_threads_destroy(group);
}

int main(void) { return suite_main(suite_of("boot", 60)); }
