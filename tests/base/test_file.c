/* SPDX-License-Identifier: Apache-2.0
 * Files named by the environment, in a folder that others can write. Links and files of others are rejected, whoever
 * the caller is. A failed write is an error and does not end the process. */
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "exec/record.h"
#include "base/file.h"
#include "base/log.h"
#include "base/trace.h"
#include "transport/memory_file.h"
#include "tests/support/directory.h"
#include "tests/support/world.h"

enum { NOBODY = 65534, PATH_BYTES = 128 };

static const char content[] = "what was there before\n";
static char path[PATH_BYTES], victim[PATH_BYTES];

static void set_up(void) {
  directory_make();
  snprintf(path, sizeof path, "%s/file.0", directory); /* the file of rank 0 */
  snprintf(victim, sizeof victim, "%s/victim", directory);
  setenv("BANYAN_LOG", "warn", 1);
}

/* ---- links and files of others ----------------------------------------------------------------------------------- */

static void write_log(void) {
  setenv("BANYAN_LOG_FILE", path, 1);
  bny_log_read();
  bny_log(BNY_LOG_ERROR, "a line");
  unsetenv("BANYAN_LOG_FILE");
  bny_log_read();
}

static void write_trace(void) {
  char pattern[PATH_BYTES];
  bny_trace *trace = NULL;
  snprintf(pattern, sizeof pattern, "%s/file", directory);
  if (bny_trace_open(pattern, 0, 1, 64, &trace) == BANYAN_OK) bny_trace_close(trace);
}

static void write_flight(void) {
  char pattern[PATH_BYTES];
  bny_flight *flight = bny_flight_make(0, 1);
  snprintf(pattern, sizeof pattern, "%s/file", directory);
  bny_flight_dump(flight, 0, 0, "a reason", pattern);
  bny_flight_free(flight);
}

static void (*const writers[])(void) = {write_log, write_trace, write_flight};
enum { WRITERS = sizeof writers / sizeof writers[0] };

static void write_content(const char *to) {
  int fd = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(write(fd, content, strlen(content)), (ssize_t)strlen(content));
  close(fd);
}

static off_t size_of(const char *of) {
  struct stat file;
  return stat(of, &file) == 0 ? file.st_size : -1;
}

TEST_LOOP(writes_to_files_of_its_own, WRITERS) {
  for (int again = 0; again < 2; again++) { /* first created, then found */
    writers[_i]();
    ck_assert_int_gt(size_of(path), 0);
  }
}

TEST_LOOP(follows_no_symbolic_link, WRITERS) {
  write_content(victim);
  ck_assert_int_eq(symlink(victim, path), 0);
  writers[_i]();
  ck_assert_int_eq(size_of(victim), (off_t)strlen(content));
  ck_assert_int_eq(unlink(victim), 0); /* a dangling link creates no file */
  writers[_i]();
  ck_assert_int_eq(size_of(victim), -1);
}

TEST_LOOP(writes_through_no_hard_link, WRITERS) {
  write_content(victim);
  ck_assert_int_eq(link(victim, path), 0);
  writers[_i]();
  ck_assert_int_eq(size_of(victim), (off_t)strlen(content));
}

TEST_LOOP(writes_to_nobody_elses_file, WRITERS) {
  if (geteuid() != 0) {
    printf("skipped: a file of another user needs root\n");
    return;
  }
  write_content(path);
  ck_assert_int_eq(chown(path, NOBODY, NOBODY), 0);
  writers[_i]();
  ck_assert_int_eq(size_of(path), (off_t)strlen(content));
}

TEST(says_what_is_wrong) {
  bny_trace *trace = NULL;
  char pattern[PATH_BYTES];
  snprintf(pattern, sizeof pattern, "%s/file", directory);
  ck_assert_int_eq(symlink(victim, path), 0);
  ASSERT_FAILS(bny_trace_open(pattern, 0, 1, 64, &trace), BANYAN_ERR_SYSTEM, "file.0: it is a symbolic link");
}

/* Log lines may go to FIFOs and devices, where a trace would block. */
TEST(logs_to_a_fifo_and_a_device) {
  char line[256] = "";
  ck_assert_int_eq(mkfifo(path, 0600), 0);
  int reader = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  write_log();
  ck_assert_int_gt(read(reader, line, sizeof line - 1), 0);
  close(reader);
  ck_assert_ptr_nonnull(strstr(line, "a line"));
  int fd = bny_file_open("/dev/null", O_APPEND, BNY_FILE_OR_CHANNEL);
  ck_assert_int_ge(fd, 0);
  close(fd);
  ck_assert_int_eq(bny_file_open("/dev/null", O_APPEND, BNY_FILE_REGULAR), -1);
  ck_assert_int_eq(errno, ENOTSUP);
}

/* Rejections return at once, although no process writes to the FIFO. */
TEST(reads_regular_files_alone) {
  write_content(victim);
  char line[64] = "";
  FILE *file = bny_file_read(victim);
  ck_assert_ptr_nonnull(file);
  ck_assert_ptr_nonnull(fgets(line, sizeof line, file));
  ck_assert_str_eq(line, content);
  fclose(file);
  ck_assert_int_eq(mkfifo(path, 0600), 0);
  const char *const others[] = {path, directory, "/dev/zero"};
  for (int i = 0; i < 3; i++) {
    ck_assert_ptr_null(bny_file_read(others[i]));
    ck_assert_int_eq(errno, ENOTSUP);
  }
}

/* ---- failed writes ----------------------------------------------------------------------------------------------- */

static void assert_no_signal(void) {
  sigset_t pending, blocked;
  sigpending(&pending);
  pthread_sigmask(SIG_BLOCK, NULL, &blocked);
  ck_assert(!sigismember(&pending, SIGPIPE) && !sigismember(&pending, SIGXFSZ));
  ck_assert(!sigismember(&blocked, SIGPIPE) && !sigismember(&blocked, SIGXFSZ));
}

/* No assertions while the limit holds, because Check writes into a file. RLIM_INFINITY: the hard limit. */
static void limit_files(rlim_t bytes) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0) abort();
  limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) abort();
}

TEST(outlives_the_reader_of_stderr) {
  int ends[2];
  ck_assert_int_eq(pipe(ends), 0);
  close(ends[0]);
  int saved = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  close(ends[1]);
  bny_log(BNY_LOG_ERROR, "nobody reads this");
  ck_assert_int_eq(bny_file_write(STDERR_FILENO, "x", 1), -1);
  ck_assert_int_eq(errno, EPIPE);
  dup2(saved, STDERR_FILENO);
  close(saved);
  assert_no_signal();
}

/* A signal that the program blocks itself stays pending. */
TEST(leaves_a_signal_that_was_there) {
  sigset_t pipe_signal, pending;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe_signal, NULL);
  raise(SIGPIPE);
  ck_assert_int_eq(bny_file_write(STDERR_FILENO, "", 0), 0);
  sigpending(&pending);
  ck_assert(sigismember(&pending, SIGPIPE));
}

TEST_LOOP(outlives_the_limit_of_files, WRITERS) {
  limit_files(10);
  writers[_i]();
  writers[_i]();
  limit_files(RLIM_INFINITY);
  ck_assert_int_le(size_of(path), 10);
  assert_no_signal();
}

TEST(memory_above_the_limit_of_files_is_an_error) {
  int file = -1;
  limit_files(1 << 16);
  banyan_status status = bny_memory_file_make(1 << 20, &file);
  limit_files(RLIM_INFINITY);
  ASSERT_FAILS(status, BANYAN_ERR_SYSTEM, "ulimit -f");
  ck_assert_int_eq(bny_memory_file_make(1 << 20, &file), BANYAN_OK);
  close(file);
}

TEST_RANKS(arenas_above_the_limit_of_files_are_an_error, 1, .nranks = 2, .processes = true, .bare = true) {
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = 20 * INT64_C(1000000000)};
  if (self->rank == 0) limit_files(1 << 16); /* it creates the arenas of all ranks */
  banyan_status status = banyan_comm_create(&self->bootstrap, &config, &self->comm);
  world_check(self, status == BANYAN_ERR_SYSTEM, "%s: %s", banyan_status_string(status), banyan_last_error());
  if (self->rank == 0) world_check(self, strstr(banyan_last_error(), "ulimit -f") != NULL, "%s", banyan_last_error());
}

int main(void) { return world_main(suite_with("file", 60, set_up, directory_remove)); }
