/* SPDX-License-Identifier: Apache-2.0
 * Names, numbers and speeds as the views of banyan-topo write them. */
#include "tools/topo/topo.h"

#include <string.h>

enum { PIECES_MOST = 6 }; /* ranges of a list */

void topo_put_numbers(FILE *out, const int32_t *numbers, int32_t count) {
  for (int32_t i = 0, next, piece = 0; i < count; i = next, piece++) {
    int32_t step = i + 1 < count ? numbers[i + 1] - numbers[i] : 1;
    for (next = i + 1; next < count && numbers[next] == numbers[next - 1] + step; next++) {
    }
    next = step > 1 && next - i < 3 ? i + 1 : next;
    if (piece == PIECES_MOST) {
      fprintf(out, " and %d more", (int)(count - i));
      return;
    }
    fprintf(out, next - i == 1 ? "%s%d" : "%s%d-%d", piece > 0 ? ", " : "", (int)numbers[i], (int)numbers[next - 1]);
    if (next - i > 1 && step > 1) fprintf(out, " by %d", (int)step);
  }
}

const char *topo_speed(double gbytes_per_s, bool assumed) {
  if (gbytes_per_s <= 0) return "";
  return tool_format(gbytes_per_s >= 1000 ? "%s%.0f GB/s" : "%s%.3g GB/s", assumed ? "~" : "", gbytes_per_s);
}

const char *topo_count(int32_t count, bny_topo_kind kind) {
  static const char *const words[BNY_TOPO_KINDS][2] = {[BNY_TOPO_HOST] = {"host", "hosts"},
                                                       [BNY_TOPO_PACKAGE] = {"CPU package", "CPU packages"},
                                                       [BNY_TOPO_NUMA] = {"NUMA node", "NUMA nodes"},
                                                       [BNY_TOPO_PCI] = {"PCI switch", "PCI switches"},
                                                       [BNY_TOPO_GPU] = {"GPU", "GPUs"},
                                                       [BNY_TOPO_NIC] = {"NIC", "NICs"},
                                                       [BNY_TOPO_PORT] = {"port", "ports"},
                                                       [BNY_TOPO_SWITCH] = {"switch", "switches"}};
  return tool_format("%d %s", (int)count, words[kind][count != 1]);
}

const char *topo_model(const bny_topo_node *node) {
  if (node->model != NULL && strncmp(node->model, "0x", 2) != 0)
    return node->vendor == NULL || node->kind != BNY_TOPO_NUMA ? node->model
                                                               : tool_format("%s %s", node->vendor, node->model);
  if (node->compute == 910) return "AMD gfx90a";
  return node->compute < 0 ? "" : tool_format(node->compute >= 300 ? "AMD gfx%d" : "NVIDIA sm_%d", (int)node->compute);
}
