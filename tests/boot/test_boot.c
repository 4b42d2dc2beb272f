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

static banyan_threads *group;
static struct member members[RANKS_AT_MOST];

/* Makes a group whose members are absent. */
static void make_group(int nranks) {
  memset(members, 0, sizeof members);
  ck_assert_int_eq(banyan_threads_create(nranks, &group), BANYAN_OK);
}

static void fill_member(int index, int rank, size_t bytes, double timeout_s) {
  members[index] = (struct member){.bytes = bytes, .timeout_ns = (int64_t)(timeout_s * 1e9), .rounds = 1};
  ck_assert_int_eq(banyan_threads_bootstrap(group, rank, &members[index].bootstrap), BANYAN_OK);
}

/* Runs the members that are present as threads, and returns the seconds that they took. */
static double run_members(void) {
  pthread_t threads[RANKS_AT_MOST];
  double before = now_s();
  for (int i = 0; i < RANKS_AT_MOST; i++)
    if (members[i].bootstrap.size) ck_assert_int_eq(pthread_create(&threads[i], NULL, gather_rounds, &members[i]), 0);
  for (int i = 0; i < RANKS_AT_MOST; i++)
    if (members[i].bootstrap.size) pthread_join(threads[i], NULL);
  return now_s() - before;
}

static void assert_failure(int index, banyan_status status, const char *text) {
  ck_assert_int_eq(members[index].result, status);
  ck_assert_msg(strstr(members[index].text, text) != NULL, "text: %s", members[index].text);
}

TEST_RANGE(gathers_any_number_of_times, 1, RANKS_AT_MOST + 1) {
  static const size_t sizes[] = {0, 1, 8, 777};
  make_group(_i);
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    for (int rank = 0; rank < _i; rank++) {
      fill_member(rank, rank, sizes[s], 20);
      members[rank].rounds = ROUNDS;
    }
    run_members();
    for (int rank = 0; rank < _i; rank++) {
      ck_assert_msg(members[rank].result == 0, "rank %d: %s", rank, members[rank].text);
      ck_assert_int_eq(members[rank].wrong, 0);
    }
  }
  banyan_threads_destroy(group);
}

/* `mine` may point to its own block of `all`. */
TEST(gathers_in_place) {
  make_group(1);
  fill_member(0, 0, 0, 1);
  banyan_bootstrap *bootstrap = &members[0].bootstrap;
  int value = 42;
  ck_assert_int_eq(bootstrap->allgather(bootstrap->context, &value, &value, sizeof value, second_ns), 0);
  ck_assert_int_eq(value, 42);
  banyan_threads_destroy(group);
}

/* A child forked while a rank waits is rejected, and frees its copy. */
TEST(rejects_the_child_of_a_fork) {
  pthread_t first;
  make_group(2);
  for (int rank = 0; rank < 2; rank++) fill_member(rank, rank, 8, 20);
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
  make_group(5);
  for (int rank = 0; rank < 5; rank += 2) /* those with a longer deadline get the failure of rank 0 */
    fill_member(rank, rank, 8, rank ? 10 : 0.2);
  double before = now_s(), took = run_members();
  ck_assert_msg(took >= 0.2 && took < 5, "took %g s", took);
  for (int rank = 0; rank < 5; rank += 2) assert_failure(rank, BANYAN_ERR_TIMEOUT, "ranks 1 and 3 of 5");
  /* A late rank gets the reason at once. */
  fill_member(1, 1, 8, 10);
  gather_rounds(&members[1]);
  ck_assert_int_eq(members[1].result, BANYAN_ERR_TIMEOUT);
  ck_assert_msg(now_s() - before < took + 5, "the late rank waited");
  banyan_threads_destroy(group);
}

TEST(rejects_a_rank_used_twice) {
  make_group(3);
  for (int i = 0; i < 3; i++) fill_member(i, i ? 1 : 0, 8, 10);
  double took = run_members();
  ck_assert_msg(took < 5, "took %g s", took);
  for (int i = 1; i < 3; i++) assert_failure(i, BANYAN_ERR_BOOTSTRAP, "rank 1 of 3 is used by two threads");
  banyan_threads_destroy(group);
}

TEST(names_a_rank_with_another_size) {
  make_group(2);
  for (int rank = 0; rank < 2; rank++) fill_member(rank, rank, rank ? 16 : 8, 10);
  run_members();
  for (int i = 0; i < 2; i++) { /* the first of the two sets the expected size */
    assert_failure(i, BANYAN_ERR_BOOTSTRAP, "16");
    assert_failure(i, BANYAN_ERR_BOOTSTRAP, "rank 1");
  }
  banyan_threads_destroy(group);
}

int main(void) { return suite_main(suite_of("boot", 60)); }
