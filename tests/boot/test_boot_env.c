/* SPDX-License-Identifier: Apache-2.0
 * The errors of banyan_env_create() for wrong environment variables. */
#include "boot/tcp.h"
#include "tests/boot/ranks.h"

#ifdef HAVE_SODIUM
/* Sets the variables of this rank alone. */
static void be_rank(int rank, int nranks) {
  clear_environment();
  set_environment(&(struct part){.rank = rank, .nranks = nranks});
}

/* Variables that matter only if there are other ranks. */
static bool is_fine_alone(const char *name, const char *value) {
  if (strcmp(name, "MASTER_ADDR") == 0) return !value || *value;
  return (strcmp(name, "MASTER_PORT") == 0 && !value) ||
         (strcmp(name, "BANYAN_LISTEN_FD") == 0 && strcmp(value, "987") == 0);
}

/* Checks both ranks of two, and a single rank. */
TEST(names_bad_variables) {
  static const struct {
    const char *name, *value, *text[2];
  } cases[] = {{"RANK", NULL, {"RANK", "not set"}},
               {"RANK", "abc", {"RANK", "\"abc\""}},
               {"RANK", "", {"RANK", "\"\""}},
               {"RANK", "-1", {"RANK", "\"-1\""}},
               {"RANK", " 1", {"RANK", "\" 1\""}},
               {"RANK", "1x", {"RANK", "\"1x\""}},
               {"RANK", "2", {"RANK", "\"2\""}},
               {"RANK", "99999999999999999999", {"RANK", "\"99999999999999999999\""}},
               {"WORLD_SIZE", NULL, {"WORLD_SIZE", "not set"}},
               {"WORLD_SIZE", "0", {"WORLD_SIZE", "\"0\""}},
               {"WORLD_SIZE", "2.0", {"WORLD_SIZE", "\"2.0\""}},
               {"MASTER_ADDR", NULL, {"MASTER_ADDR", "not set"}},
               {"MASTER_ADDR", "", {"MASTER_ADDR", "\"\""}},
               {"MASTER_ADDR", "no.such.host.invalid", {"MASTER_ADDR", "no.such.host.invalid"}},
               {"MASTER_ADDR", "0.0.0.0", {"MASTER_ADDR", "one interface"}},
               {"MASTER_ADDR", "::", {"MASTER_ADDR", "one interface"}},
               {"MASTER_ADDR", "192.0.2.77", {"192.0.2.77", "BANYAN_SECRET"}},
               {"MASTER_PORT", NULL, {"MASTER_PORT", "not set"}},
               {"MASTER_PORT", "0", {"MASTER_PORT", "\"0\""}},
               {"MASTER_PORT", "70000", {"MASTER_PORT", "\"70000\""}},
               {"BANYAN_PORT", "0", {"BANYAN_PORT", "\"0\""}},
               {"BANYAN_PORT", "http", {"BANYAN_PORT", "\"http\""}},
               {"BANYAN_INTERFACE", "eth99", {"BANYAN_INTERFACE", "lo 127.0.0.1"}},
               {"BANYAN_INTERFACE", "198.51.100.0/24", {"BANYAN_INTERFACE", "198.51.100.0/24"}},
               {"BANYAN_INTERFACE", "10.0.0.0/33", {"BANYAN_INTERFACE", "10.0.0.0/33"}},
               {"BANYAN_INTERFACE", "a/8", {"BANYAN_INTERFACE", "a/8"}},
               {"BANYAN_SECRET", "", {"BANYAN_SECRET", "\"\""}},
               {"BANYAN_SECRET_FILE", "/no/such/file", {"BANYAN_SECRET_FILE", "/no/such/file"}},
               {"BANYAN_SECRET_FILE", "/", {"BANYAN_SECRET_FILE", "not a regular file"}},
               {"BANYAN_LISTEN_FD", "x", {"BANYAN_LISTEN_FD", "\"x\""}},
               {"BANYAN_LISTEN_FD", "987", {"BANYAN_LISTEN_FD", "\"987\""}}};
  for (int world = 0; world < 3; world++) {
    int rank = world == 1;
    bool alone = world == 2;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
      banyan_env *env = NULL;
      banyan_bootstrap bootstrap = {.rank = -7};
      if (rank == 1 && strcmp(cases[i].name, "BANYAN_LISTEN_FD") == 0) continue; /* only rank 0 reads it */
      if (alone && is_fine_alone(cases[i].name, cases[i].value)) continue;
      be_rank(rank, alone ? 1 : 2);
      if (cases[i].value)
        setenv(cases[i].name, cases[i].value, 1);
      else
        unsetenv(cases[i].name);
      banyan_status status = banyan_env_create(200000000, &env, &bootstrap);
      const char *text = banyan_last_error();
      ck_assert_msg(status == BANYAN_ERR_ARGUMENT || status == BANYAN_ERR_BOOTSTRAP, "%s=%s: status %d: %s",
                    cases[i].name, cases[i].value, status, text);
      ck_assert_msg(strstr(text, cases[i].text[0]) && strstr(text, cases[i].text[1]), "%s=%s: %s", cases[i].name,
                    cases[i].value, text);
      ck_assert_ptr_null(env);
      ck_assert_int_eq(bootstrap.rank, -7);
    }
  }
}

/* A namespace without a network has no interface that is up. */
TEST(names_a_node_without_addresses) {
  banyan_env *env = NULL;
  banyan_bootstrap bootstrap;
  if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
    printf("skipped: namespaces are not allowed here\n");
    return;
  }
  be_rank(1, 2);
  setenv("MASTER_ADDR", "10.77.0.1", 1), setenv("BANYAN_SECRET", "x", 1);
  ASSERT_FAILS(banyan_env_create(200000000, &env, &bootstrap), BANYAN_ERR_TIMEOUT,
               "no network in common with it, but no address (no interface is up)");
}

/* A program that is no rank of banyan holds the port. */
TEST(names_a_held_port) {
  banyan_env *env = NULL;
  banyan_bootstrap bootstrap;
  char text[16];
  int fd = listen_on_any_port(SOCK_CLOEXEC, &port);
  snprintf(text, sizeof text, "%d", port);
  be_rank(0, 2);
  setenv("BANYAN_PORT", text, 1), setenv("BANYAN_SECRET", "x", 1);
  ASSERT_FAILS(banyan_env_create(60 * INT64_C(1000000000), &env, &bootstrap), BANYAN_ERR_BOOTSTRAP, text);
  ck_assert_ptr_ne(strstr(banyan_last_error(), "set BANYAN_PORT to a free port"), NULL);
  close(fd);
}

/* A single rank needs no address, port or secret. */
TEST(one_rank_is_a_world) {
  banyan_env *env = NULL;
  banyan_bootstrap bootstrap;
  int value = 42, all = 0;
  clear_environment();
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  setenv("BANYAN_PORT", "", 1); /* an option without a value counts as unset */
  setenv("BANYAN_LISTEN_FD", "", 1);
  ck_assert_int_eq(banyan_env_create(0, &env, &bootstrap), BANYAN_OK);
  ck_assert_int_eq(bootstrap.allgather(bootstrap.context, &value, &all, sizeof value, 1000000000), 0);
  ck_assert_int_eq(all, 42);
  ck_assert_int_eq(bootstrap.allgather(bootstrap.context, NULL, NULL, 0, 1000000000), 0);
  banyan_env_destroy(env);
}

/* Precedence of the variables of several launchers. */
TEST_LOOP(knows_launchers, 9) {
  static const struct {
    const char *variables[6][2];
    int rank; /* the rank of a single process; -1: rejected */
    const char *text;
  } cases[] = {
      {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}, 0, NULL},
      {{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}, 0, NULL},
      {{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}, 0, NULL},
      {{{"SLURM_PROCID", "7"}, {"SLURM_NTASKS", "9"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}}, 0, NULL},
      {{{"SLURM_PROCID", "7"}, {"SLURM_NTASKS", "9"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
       0,
       NULL},
      {{{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "2"}}, -1, "less than SLURM_NTASKS"},
      {{{"SLURM_PROCID", "0"}}, -1, "SLURM_NTASKS is not set"},
      {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"WORLD_SIZE", "1"}}, -1, "RANK is not set"},
      {{{"SLURM_NTASKS", "1"}}, -1, "WORLD_SIZE is not set"}};
  banyan_env *env = NULL;
  banyan_bootstrap bootstrap;
  clear_environment();
  for (int i = 0; i < 6 && cases[_i].variables[i][0]; i++)
    setenv(cases[_i].variables[i][0], cases[_i].variables[i][1], 1);
  banyan_status status = banyan_env_create(200000000, &env, &bootstrap);
  if (cases[_i].rank < 0) {
    ASSERT_FAILS(status, BANYAN_ERR_ARGUMENT, cases[_i].text);
    return;
  }
  ck_assert_msg(status == BANYAN_OK, "%s", banyan_last_error());
  ck_assert_int_eq(bootstrap.rank, cases[_i].rank);
  ck_assert_int_eq(bootstrap.nranks, 1);
  banyan_env_destroy(env);
}

/* A shell of salloc has Slurm variables that make a process in it rank 0 of all tasks. The error reports these values
 * and the ranks that are missing. */
TEST(says_why_it_waited_for_ranks) {
  banyan_env *env = NULL;
  banyan_bootstrap bootstrap;
  char text[16];
  int fd = listen_on_any_port(0, &port);
  clear_environment();
  setenv("SLURM_PROCID", "0", 1);
  setenv("SLURM_NTASKS", "4", 1);
  ASSERT_FAILS(banyan_env_create(200000000, &env, &bootstrap), BANYAN_ERR_ARGUMENT,
               "SLURM_PROCID=0 and SLURM_NTASKS=4");
  snprintf(text, sizeof text, "%d", fd);
  setenv("BANYAN_LISTEN_FD", text, 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", "1", 1);
  ASSERT_FAILS(banyan_env_create(200000000, &env, &bootstrap), BANYAN_ERR_TIMEOUT,
               "ranks 1, 2 and 3 of 4 did not connect");
  ck_assert_msg(strstr(banyan_last_error(), "SLURM_PROCID=0 and SLURM_NTASKS=4"), "%s", banyan_last_error());
  ck_assert_msg(strstr(banyan_last_error(), "srun"), "%s", banyan_last_error());
  close(fd);
}

/* Each job has an id that is unique at its port. A launcher's id counts only if it has started all ranks. */
TEST_LOOP(knows_ids_of_jobs, 10) {
  static const struct {
    const char *variables[5][2], *job;
  } cases[] = {{{{NULL, NULL}}, ""},
               {{{"BANYAN_JOB", "mine"}, {"TORCHELASTIC_RUN_ID", "none"}}, "mine"},
               {{{"BANYAN_JOB", ""}, {"SLURM_JOB_ID", "7"}}, "slurm 7"},
               {{{"TORCHELASTIC_RUN_ID", "none"}, {"SLURM_JOB_ID", "7"}}, "torchrun none:29500"},
               {{{"PMIX_NAMESPACE", "12@1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"SLURM_JOB_ID", "7"}}, "mpirun 12@1"},
               {{{"PMIX_NAMESPACE", "12@1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, ""},
               {{{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}}, "slurm 7.1"},
               {{{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}}, "slurm 7"},
               {{{"BANYAN_JOB", "a name of thirty-one characters"}}, "a name of thirty-one characters"},
               {{{"BANYAN_JOB", "a name of more than thirty-one characters"}}, "a name of more than ~"}};
  struct bny_boot_settings settings;
  be_rank(1, 4);
  for (int i = 0; i < 5 && cases[_i].variables[i][0]; i++)
    setenv(cases[_i].variables[i][0], cases[_i].variables[i][1], 1);
  ck_assert_int_eq(bny_boot_settings_read(&settings), BANYAN_OK);
  size_t length = strlen(cases[_i].job);
  bool cut = length > 0 && cases[_i].job[length - 1] == '~';
  ck_assert_msg(cut ? strncmp(settings.job, cases[_i].job, length) == 0 : strcmp(settings.job, cases[_i].job) == 0,
                "%s", settings.job);
}

#else
TEST(says_what_is_missing) {
  banyan_env *env = NULL;
  banyan_bootstrap bootstrap;
  ASSERT_FAILS(banyan_env_create(0, &env, &bootstrap), BANYAN_ERR_UNSUPPORTED, "libsodium");
  banyan_env_destroy(env);
}
#endif

int main(void) { return suite_main(suite_of("boot_env", 60)); }
