/* SPDX-License-Identifier: Apache-2.0
 * The libFuzzer entry point. -DIMPORTER=bny_topo_import_nccl and so on makes one program per importer. Without IMPORTER
 * the content selects the importer, and all functions on models run. tests/topo/fuzz builds and runs the programs. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/topo/topo_laws.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

extern const bny_topo_importer bny_topo_import_synthetic;
#ifdef IMPORTER
extern const bny_topo_importer IMPORTER;
#endif

/* A description of a few bytes may be valid and create a million nodes, which is slow. Larger products are skipped. */
static bool is_huge(const char *text, size_t bytes) {
  const double most = 5000;
  double product = 1, number = 0;
  for (size_t i = 0; i < bytes && product <= most; i++) {
    bool counts = text[i] == ':' && i + 1 < bytes && text[i + 1] != '0';
    for (number = 0; counts && i + 1 < bytes && text[i + 1] >= '0' && text[i + 1] <= '9'; i++)
      number = 10 * number + (text[i + 1] - '0');
    product *= number > 1 ? number : 1;
  }
  return product > most && bny_topo_import_synthetic.recognises(text, bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  const char *text = (const char *)data;
  if (is_huge(text, bytes)) return 0;
#ifdef IMPORTER
  const char *broken = law_of_importer(&IMPORTER, text, bytes);
#else
  const char *broken = law_of_import(text, bytes);
#endif
  if (broken != NULL) {
    fprintf(stderr, "broken: %s\n", broken);
    abort();
  }
  return 0;
}
