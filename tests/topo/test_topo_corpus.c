/* SPDX-License-Identifier: Apache-2.0
 * Checks the laws that hold for any input. Every importer reads the files of tests/corpus, which include old findings
 * of fuzzers. They and the files of tests/topologies are also mutated. Dumps of real machines are read if present. */
#include "tests/topo/topo_laws.h"
#include "tests/topo/topo_util.h"

/* Imports from a buffer of the exact size, so that sanitizers detect reads beyond its end. */
static void ck_laws(const char *text, size_t bytes, const char *what) {
  char *exact = malloc(bytes == 0 ? 1 : bytes);
  memcpy(exact, text, bytes);
  const char *broken = law_of_import(exact, bytes);
  ck_assert_msg(broken == NULL, "%s, by content: %s", what, broken);
  for (const bny_topo_importer *const *importer = bny_topo_importers; *importer != NULL; importer++) {
    broken = law_of_importer(*importer, exact, bytes);
    ck_assert_msg(broken == NULL, "%s, as %s: %s", what, (*importer)->name, broken);
  }
  free(exact);
}

static void ck_input(const char *path, const char *name) {
  (void)name;
  size_t bytes;
  char *text = read_text(path, &bytes);
  ck_assert_msg(text != NULL, "%s cannot be read", path);
  ck_laws(text, bytes, path);
}

/* Cuts the file, and damages it. */
static void ck_changed(const char *path, const char *name) {
  enum { ROUNDS = IS_SANITIZED ? 40 : 400, BYTES_MAX = 12000 };
  static const char *const pieces[] = {"0", "9", "-", "\"", "{", "}", "[", "]",  "<",  ">",    "/",    ",", ":",
                                       "G", "N", "@", "#",  "(", ")", " ", "\t", "\n", "\xff", "\033", NULL};
  size_t bytes = 0;
  char *text = read_text(path, &bytes), *changed = malloc(bytes + MUTATION_BYTES), what[4200];
  uint64_t seed = strlen(name), state = 0x9e3779b97f4a7c15u * (seed + bytes);
  for (int round = 0; round < ROUNDS && bytes > 0 && bytes < BYTES_MAX; round++) {
    memcpy(changed, text, bytes);
    size_t length = round % 2 ? bytes : 1 + random_next(&state) % bytes;
    if (round >= 20) length = mutate(&state, changed, length, pieces);
    snprintf(what, sizeof what, "%s, round %d", path, round);
    ck_laws(changed, length, what);
  }
  free(changed);
}

/* One folder per importer, and one for inputs whose importer is selected by content. */
static const char *const folders[] = {"corpus/import", "corpus/hwloc",     "corpus/ibnet", "corpus/json",
                                      "corpus/nccl",   "corpus/synthetic", "topologies"};
enum { FOLDERS = sizeof folders / sizeof folders[0] };

TEST_LOOP(inputs, FOLDERS) { each_own(folders[_i], ck_input); }

TEST_LOOP(changed_inputs, FOLDERS) { each_own(folders[_i], ck_changed); }

static const char *const dumps[] = {"examined", "fabric", "hwloc", "matrix", "nccl", "nvidia-smi", "reduced"};

TEST_LOOP(real_machines, (int)(sizeof dumps / sizeof dumps[0])) { each_dump(dumps[_i], "", ck_input); }

TEST(folders_are_there) {
  int importers = 0;
  while (bny_topo_importers[importers] != NULL) importers++;
  ck_assert_int_eq(FOLDERS, importers + 2);
}

int main(void) { return suite_main(suite_with("topo_corpus", 120, NULL, drop_kept)); }
