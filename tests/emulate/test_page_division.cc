/* SPDX-License-Identifier: Apache-2.0
 * Decode kernels find the page of a key by a multiplication. */
#include <check.h>

#include "cuda/decode_general.cuh"

extern "C" {
#include "tests/support/generator.h"
#include "tests/support/suite.h"
}

TEST(page_divisions) {
  world_random random = random_seed();
  for (uint32_t keys = 1; keys < 3000; keys++) {
    bny_decode_general general;
    bny_decode_divide_pages(&general, keys);
    for (int i = 0; i < 50; i++) {
      const uint32_t page = static_cast<uint32_t>(random_below(&random, static_cast<int32_t>(INT32_MAX / keys)));
      if (bny_general_page_of(general, page * keys) != page ||
          bny_general_page_of(general, page * keys + keys - 1) != page)
        ck_abort_msg("pages of %u keys: page %u", keys, page);
    }
    ck_assert_uint_eq(bny_general_page_of(general, INT32_MAX), INT32_MAX / keys);
  }
}

int main() { return suite_main(suite_of("page_division", 0)); }
