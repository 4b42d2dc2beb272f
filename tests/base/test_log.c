/* SPDX-License-Identifier: Apache-2.0
 * Lines of the log: which lines are written, by which rank, to which file, and that lines of several ranks do not
 * mix. */
#include <pthread.h>

#include "banyan.h"
#include "base/log.h"
#include "base/status.h"
#include "tests/support/lone.h"
#include "tests/support/directory.h"

static void set_up(void) {
  directory_make();
  unsetenv("BANYAN_LOG");
  unsetenv("BANYAN_LOG_FILE");
  bny_log_read();
  bny_log_rank(-1);
}

static void log_to(const char *level, const char *name) {
  directory_set("BANYAN_LOG_FILE", name);
  if (level)
    setenv("BANYAN_LOG", level, 1);
  else
    unsetenv("BANYAN_LOG");
  bny_log_read();
}

static void say_all(void) {
  bny_log(BNY_LOG_ERROR, "one");
  bny_log(BNY_LOG_WARN, "two");
  bny_log(BNY_LOG_INFO, "three");
  bny_log(BNY_LOG_DEBUG, "four");
}

static int lines_of(const char *text) {
  int count = 0;
  for (; *text; text++) count += *text == '\n';
  return count;
}

TEST(levels_are_kept) {
  static const char *const levels[] = {"error", "warn", "info", "debug"};
  for (int i = 0; i < 4; i++) {
    log_to(levels[i], levels[i]);
    say_all();
    ck_assert_int_eq(lines_of(directory_read(levels[i])), i + 1);
    ck_assert(bny_log_wants((bny_log_level)i));
    ck_assert(i == 3 || !bny_log_wants((bny_log_level)(i + 1)));
  }
  log_to(NULL, "default");
  say_all();
  ck_assert_int_eq(lines_of(directory_read("default")), 2);
}

TEST(lines_say_who_speaks) {
  log_to("info", "log");
  bny_log_from("../src/transport/shm.c", BNY_LOG_INFO, "%d peers", 3);
  bny_log_rank(7);
  bny_log_from("/home/src/banyan/src/boot/tcp_link.c", BNY_LOG_WARN, "late");
  const char *text = directory_read("log");
  ck_assert_msg(strstr(text, "banyan info transport: 3 peers\n") != NULL, "%s", text);
  ck_assert_msg(strstr(text, "banyan warn boot, rank 7: late\n") != NULL, "%s", text);
  char process[32];
  snprintf(process, sizeof process, "[%d] banyan", (int)getpid());
  ck_assert_msg(strstr(text, process) != NULL, "%s", text);
}

/* Texts of others reach a terminal through errors and lines. A newline must not begin a line of its own. */
TEST(texts_of_others_are_printable) {
  static const struct {
    const char *given, *error, *line;
  } cases[] = {{"a\033[31mb\x7f", "a?[31mb?", "a?[31mb?"},
               {"two\nbanyan error", "two\nbanyan error", "two?banyan error"},
               {"J\303\266rg \342\202\254", "J\303\266rg \342\202\254", "J\303\266rg \342\202\254"},
               {"\302\233", "??", "??"},
               {"\303", "?", "?"},
               {"\xff\xfe\x80", "???", "???"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char name[16];
    snprintf(name, sizeof name, "log%zu", i);
    log_to("info", name);
    bny_fail(BANYAN_ERR_DATA, "%s", cases[i].given);
    ck_assert_str_eq(banyan_last_error(), cases[i].error);
    bny_log_from("src/boot/a.c", BNY_LOG_INFO, "(%s)", cases[i].given);
    char want[64];
    snprintf(want, sizeof want, "boot: (%s)\n", cases[i].line);
    ck_assert_msg(strstr(directory_read(name), want) != NULL, "%s", directory_read(name));
  }
}

TEST(files_are_told_apart) {
  char path[64];
  char want[64];
  ck_assert(bny_log_path("a%r", 3, path, sizeof path));
  ck_assert_str_eq(path, "a3");
  ck_assert(bny_log_path("a", 3, path, sizeof path));
  ck_assert_str_eq(path, "a.3");
  ck_assert(bny_log_path("%p-%%-%x%", 3, path, sizeof path));
  snprintf(want, sizeof want, "%d-%%-%%x%%", (int)getpid());
  ck_assert_str_eq(path, want);
  ck_assert(!bny_log_path("123456", 3, path, 8));
  ck_assert(bny_log_path("12345", 3, path, 8));
  log_to("warn", "log.%r");
  bny_log_rank(5);
  say_all();
  ck_assert_int_eq(lines_of(directory_read("log.5")), 2);
}

TEST(what_cannot_be_written_is_said_on_stderr) {
  char path[128];
  snprintf(path, sizeof path, "%s/stderr", directory);
  int saved = dup(STDERR_FILENO);
  ck_assert_ptr_nonnull(freopen(path, "w", stderr));
  log_to("warn", "no/such/directory");
  errno = EDOM;
  say_all();
  say_all();
  ck_assert_int_eq(errno, EDOM);
  unsetenv("BANYAN_LOG_FILE");
  bny_log_read();
  say_all();
  dup2(saved, STDERR_FILENO);
  close(saved);
  const char *text = directory_read("stderr"), *first = strchr(text, '\n') + 1; /* the reason is printed once */
  ck_assert_msg(strncmp(text, "banyan warn base: BANYAN_LOG_FILE=/", 35) == 0 &&
                    strstr(text, "no/such/directory cannot be written: No such file or directory\n") < first,
                "%s", text);
  ck_assert_str_eq(first, "banyan error test: one\nbanyan warn test: two\n"
                          "banyan error test: one\nbanyan warn test: two\n"
                          "banyan error test: one\nbanyan warn test: two\n");
}

static void *say_much(void *argument) {
  bny_log_rank((int32_t)(intptr_t)argument);
  for (int i = 0; i < 200; i++) bny_log(BNY_LOG_WARN, "%0*d", 40 + i % 30, i);
  return NULL;
}

/* The program may change its environment in any thread. Logging in other threads does not read it. */
TEST(the_environment_is_not_read_for_lines) {
  log_to("error", "log");
  setenv("BANYAN_LOG", "debug", 1);
  unsetenv("BANYAN_LOG_FILE");
  say_all();
  ck_assert_int_eq(lines_of(directory_read("log")), 1);
}

TEST(lines_of_ranks_stay_whole) {
  enum { RANKS = 4 };
  pthread_t threads[RANKS];
  log_to("warn", "log");
  for (intptr_t i = 0; i < RANKS; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, say_much, (void *)i), 0);
  for (int i = 0; i < RANKS; i++) pthread_join(threads[i], NULL);
  char *text = (char *)(uintptr_t)directory_read("log"), *rest = NULL;
  ck_assert_int_eq(lines_of(text), RANKS * 200);
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    const char *number = strrchr(line, ' ');
    ck_assert_msg(strstr(line, "banyan warn ") != NULL && strstr(line, ", rank ") != NULL, "%s", line);
    ck_assert_uint_eq(strlen(number + 1), 40 + strtoul(number, NULL, 10) % 30);
  }
}

TEST(long_lines_are_cut) {
  char much[4000];
  memset(much, 'x', sizeof much - 1);
  much[sizeof much - 1] = 0;
  log_to("warn", "log");
  bny_log(BNY_LOG_WARN, "%s", much);
  bny_log(BNY_LOG_WARN, "after");
  const char *text = directory_read("log");
  ck_assert_int_eq(lines_of(text), 2);
  ck_assert_uint_lt(strlen(text), 1200);
}

static banyan_status make_alone(void) {
  banyan_comm *comm = NULL;
  banyan_status status = lone_create(NULL, &comm);
  if (status == BANYAN_OK) status = banyan_barrier(comm);
  banyan_comm_destroy(comm);
  return status;
}

TEST(operations_that_are_not_freed) {
  banyan_comm *comm = NULL;
  banyan_op *op[2];
  log_to("warn", "log");
  ck_assert_int_eq(lone_create(NULL, &comm), BANYAN_OK);
  for (int i = 0; i < 2; i++) ck_assert_int_eq(banyan_barrier_init(comm, &op[i]), BANYAN_OK);
  for (int i = 0; i < 2; i++) banyan_op_free(op[i]);
  banyan_comm_destroy(comm);
  ck_assert_str_eq(directory_read("log"), "");
  ck_assert_int_eq(lone_create(NULL, &comm), BANYAN_OK);
  ck_assert_int_eq(banyan_barrier_init(comm, op), BANYAN_OK);
  banyan_comm_destroy(comm);
  ck_assert_ptr_nonnull(strstr(directory_read("log"), "call banyan_op_free() first"));
  ASSERT_FAILS(banyan_start(op[0]), BANYAN_ERR_ARGUMENT, "the communicator of op was destroyed");
  banyan_op_free(op[0]);
}

TEST(settings_say_where_they_come_from) {
  setenv("BANYAN_TIMEOUT_MS", "1500", 1);
  log_to("debug", "log");
  ck_assert_int_eq(make_alone(), BANYAN_OK);
  const char *text = directory_read("log");
  const char *wanted = "banyan info comm, rank 0: timeout 1500 ms (the environment), of first calls 1500 ms, "
                       "arena 16384 KiB (default";
  ck_assert_msg(strstr(text, wanted) != NULL, "%s", text);
  ck_assert_msg(strstr(text, "banyan debug op, rank 0: planned in 1 part: ") != NULL, "%s", text);
  log_to("loud", "log");
  ck_assert_int_eq(make_alone(), BANYAN_ERR_ARGUMENT);
  ck_assert_msg(strstr(banyan_last_error(), "BANYAN_LOG is \"loud\"") != NULL, "%s", banyan_last_error());
  unsetenv("BANYAN_TIMEOUT_MS");
}

int main(void) { return suite_main(suite_with("log", 0, set_up, directory_remove)); }
