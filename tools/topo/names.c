/* SPDX-License-Identifier: Apache-2.0
 * Names, numbers and speeds as the views of banyan-topo write them. */
#include "tools/topo/topo.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { PIECES_MOST = 6 }; /* ranges of a list */

/* Returns the number at the end of a name, and sets *start to its position; -1 if there is none. */
static int64_t number_at_end(const char *name, size_t *start) {
  size_t length = strlen(name), at = length;
  while (at > 0 && isdigit((unsigned char)name[at - 1])) at--;
  *start = at;
  bool counts = at < length && length - at <= 9 && (name[at] != '0' || length - at == 1);
  return counts ? strtoll(name + at, NULL, 10) : -1;
}

static bool follows(const char *before, const char *name) {
  size_t start, start_before;
  int64_t number = number_at_end(name, &start), number_before = number_at_end(before, &start_before);
  return number > 0 && number_before >= 0 && number == number_before + 1 && start == start_before &&
         memcmp(name, before, start) == 0;
}

void topo_put_names(FILE *out, const bny_topo *topo, const int32_t *nodes, int32_t count) {
  for (int32_t i = 0, next, piece = 0; i < count; i = next, piece++) {
    const char *first = topo->nodes[nodes[i]].name, *last = first;
    for (next = i + 1; next < count && follows(last, topo->nodes[nodes[next]].name); next++)
      last = topo->nodes[nodes[next]].name;
    if (next - i == 2) next = i + 1; /* "GPU0, GPU1" reads better than a range */
    if (piece == PIECES_MOST) {
      fprintf(out, " and %d more", (int)(count - i));
      return;
    }
    fprintf(out, "%s%s", piece > 0 ? ", " : "", first);
    if (next - i > 2) fprintf(out, "..%s", last);
  }
}

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
