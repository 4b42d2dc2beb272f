/* SPDX-License-Identifier: Apache-2.0
 * Every input of tests/corpus, through every importer: what a fuzzer once found stays found. */
#include "tests/topo/topo_laws.h"
#include "tests/topo/topo_util.h"

/* From memory of its own without a byte more, for sanitizers to see what is read beyond it. */
static void ck_input(const char *path, const char *name) {
  (void)name;
  size_t bytes;
  char *text = read_text(path, &bytes);
  ck_assert_msg(text != NULL, "%s cannot be read", path);
  char *exact = malloc(bytes == 0 ? 1 : bytes);
  memcpy(exact, text, bytes);
  const char *broken = law_of_import(exact, bytes);
  ck_assert_msg(broken == NULL, "%s, by content: %s", path, broken);
  for (const bny_topo_importer *const *importer = bny_topo_importers; *importer != NULL; importer++) {
    broken = law_of_importer(*importer, exact, bytes);
    ck_assert_msg(broken == NULL, "%s, as %s: %s", path, (*importer)->name, broken);
  }
  free(exact);
}

/* A folder for each importer, and one for what is chosen by content. */
static const char *const folders[] = {"import", "hwloc", "ibnet", "json", "matrix", "nccl", "smi", "synthetic"};
enum { FOLDERS = sizeof folders / sizeof folders[0] };

TEST_LOOP(inputs, FOLDERS) {
  char folder[64];
  snprintf(folder, sizeof folder, "corpus/%s", folders[_i]);
  each_own(folder, ck_input);
}

TEST(folders_are_there) {
  int importers = 0;
  while (bny_topo_importers[importers] != NULL) importers++;
  ck_assert_int_eq(FOLDERS, importers + 1);
}

int main(void) { return suite_main(suite_with("topo_corpus", 60, NULL, drop_kept)); }
