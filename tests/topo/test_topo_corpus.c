/* SPDX-License-Identifier: Apache-2.0
 * Every input of tests/corpus, through every importer: what a fuzzer once found stays found. */
#include <check.h>
#include <dirent.h>
#include <sys/stat.h>

#include "tests/topo/topo_laws.h"
#include "tests/topo/topo_util.h"
#include "tests/support/suite.h"

enum { FOLDERS_MAX = 32 };
static char folders[FOLDERS_MAX][4096];
static int nfolders;

static void folders_find(void) {
  const char *source = getenv("top_srcdir");
  char root[2048];
  snprintf(root, sizeof root, "%s/tests/corpus", source == NULL ? "." : source);
  DIR *directory = opendir(root);
  for (struct dirent *entry = directory == NULL ? NULL : readdir(directory); entry != NULL;
       entry = readdir(directory)) {
    char path[4096];
    struct stat about;
    snprintf(path, sizeof path, "%s/%s", root, entry->d_name);
    if (entry->d_name[0] != '.' && stat(path, &about) == 0 && S_ISDIR(about.st_mode) && nfolders < FOLDERS_MAX)
      memcpy(folders[nfolders++], path, sizeof path);
  }
  if (directory != NULL) closedir(directory);
}

/* From memory of its own without a byte more, for sanitizers to see what is read beyond it. */
static void ck_input(const char *path) {
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

TEST_LOOP(inputs, nfolders) {
  char path[8192];
  int seen = 0;
  DIR *directory = opendir(folders[_i]);
  ck_assert_ptr_nonnull(directory);
  for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
    if (entry->d_name[0] != '.') {
      snprintf(path, sizeof path, "%s/%s", folders[_i], entry->d_name);
      ck_input(path);
      seen++;
    }
  }
  closedir(directory);
  ck_assert_msg(seen > 0, "nothing in %s", folders[_i]);
}

/* A folder for each importer, and one for what is chosen by content. */
TEST(folders_are_there) {
  int importers = 0;
  while (bny_topo_importers[importers] != NULL) importers++;
  ck_assert_int_eq(nfolders, importers + 1);
}

int main(void) {
  folders_find();
  return suite_main(suite_with("topo_corpus", 60, NULL, drop_kept));
}
