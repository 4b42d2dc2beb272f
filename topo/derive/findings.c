/* SPDX-License-Identifier: Apache-2.0
 * Builds the list of findings: faults, notes and infos about a machine. Each fact appears once, with all nodes that it
 * holds for. */
#include "topo/derive/derive.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 600, NAMED_MAX = 3, COMPUTE_OF_AMD = 600, SEARCH_MAX = 4096 };

#define BNY_TOPO_FINDING(id, severity, function, meaning, advice) {id, BNY_TOPO_##severity, meaning, advice},
#define BNY_TOPO_FINDING_OF_TOOL(id, severity, meaning, advice) {id, BNY_TOPO_##severity, meaning, advice},
const bny_topo_finding_kind bny_topo_finding_kinds[] = {
#include "topo/derive/findings.def"
    {NULL, BNY_TOPO_INFO, NULL, NULL}};
#undef BNY_TOPO_FINDING
#undef BNY_TOPO_FINDING_OF_TOOL

const bny_topo_finding_kind *bny_topo_finding_kind_of(const char *id) {
  const bny_topo_finding_kind *kind = bny_topo_finding_kinds;
  while (kind->id && strcmp(kind->id, id) != 0) kind++;
  return kind->id ? kind : NULL;
}

/* ---- advice by maker --------------------------------------------------------------------------------------------- */

/* Advice that replaces that of findings.def, which is for NVIDIA's devices. MAKER_NETWORK stands for NICs, ports and
 * switches. */
typedef enum maker { MAKER_NVIDIA, MAKER_AMD, MAKER_OTHER, MAKER_NETWORK } maker;

static const struct {
  const char *id;
  maker maker;
  const char *advice;
} advices[] = {
    {"gpu-lost", MAKER_AMD,
     "look for errors of amdgpu in the kernel's log and see amd-smi list, reset the GPU, reseat it or drain the host"},
    {"gpu-lost", MAKER_OTHER,
     "look for errors of its driver in the kernel's log, reset the GPU, reseat it or drain the host"},
    {"nvlink-missing", MAKER_AMD, "see amd-smi topology and errors of amdgpu in the kernel's log, then reset the GPU"},
    {"nvlink-missing", MAKER_OTHER, "see the links in the tool of its maker, then reset the GPU"},
    {"nvlink-fewer", MAKER_AMD,
     "see amd-smi xgmi and errors of amdgpu in the kernel's log, then reset the GPU; replace it or its board if links "
     "stay down"},
    {"nvlink-fewer", MAKER_OTHER,
     "see the links in the tool of its maker, then reset the GPU; replace it or its board if links stay down"},
    {"nvlink-uneven", MAKER_AMD, "see amd-smi xgmi, and compare with a machine of the same kind: --profile"},
    {"nvlink-uneven", MAKER_OTHER, "compare with a machine of the same kind: --profile"},
    {"peer-refused", MAKER_AMD, "see amd-smi topology; look for ACS, for the IOMMU and for a BAR that is too small"},
    {"peer-refused", MAKER_OTHER, "look for ACS and for the IOMMU"},
    {"link-slow", MAKER_AMD, "see amd-smi xgmi, then reset the GPU, so that the link trains again"},
    {"link-slow", MAKER_OTHER, "reset the GPU, so that the link trains again"},
    {"link-slow", MAKER_NETWORK, "check cable, transceiver and the port of the switch, then train the link again"},
    {"gdr-off", MAKER_AMD,
     "use a kernel with PCI peer-to-peer DMA and dma-buf, and a driver of the NIC that knows them"},
    {"gdr-off", MAKER_OTHER, "use a kernel with dma-buf, and a driver of the NIC that knows it"},
};

/* Returns the maker of a GPU by its vendor, generation or links; MAKER_OTHER if these are unknown. */
static maker maker_of_gpu(const bny_topo *topo, int32_t gpu) {
  static const struct {
    const char *word;
    maker maker;
  } words[] = {{"NVIDIA", MAKER_NVIDIA},
               {"0x10de", MAKER_NVIDIA},
               {"AMD", MAKER_AMD},
               {"Advanced Micro", MAKER_AMD},
               {"0x1002", MAKER_AMD}};
  const bny_topo_node *node = &topo->nodes[bny_topo_device(topo, gpu)];
  char value[BNY_TOPO_ATTRIBUTES_BYTES];
  const char *vendors[] = {node->vendor, bny_topo_attribute(node, "vendor", value) ? value : NULL};
  for (int v = 0; v < 2; v++)
    for (size_t i = 0; vendors[v] && i < sizeof words / sizeof words[0]; i++)
      if (strstr(vendors[v], words[i].word)) return words[i].maker;
  if (node->compute >= 0) return node->compute >= COMPUTE_OF_AMD ? MAKER_AMD : MAKER_NVIDIA;
  for (int32_t l = bny_topo_first_link(topo, gpu); l >= 0; l = bny_topo_next_link(topo, gpu, l)) {
    if (topo->links[l].kind == BNY_TOPO_LINK_XGMI) return MAKER_AMD;
    if (topo->links[l].kind == BNY_TOPO_LINK_NVLINK) return MAKER_NVIDIA;
  }
  return MAKER_OTHER;
}

/* Returns the maker of the GPUs of a node's host. The search is bounded, because in a cluster no GPU may have a known
 * maker. */
static maker maker_of_host(const bny_topo *topo, int32_t node) {
  int32_t host = bny_topo_ancestor(topo, node, BNY_TOPO_HOST);
  maker found = MAKER_OTHER;
  for (int32_t n = host; host >= 0 && n < topo->nnodes && n < host + SEARCH_MAX && found == MAKER_OTHER; n++)
    if (topo->nodes[n].kind == BNY_TOPO_GPU && bny_topo_ancestor(topo, n, BNY_TOPO_HOST) == host)
      found = maker_of_gpu(topo, n);
  return found;
}

static const char *advice_of(const bny_topo_finding_kind *kind, maker maker) {
  for (size_t i = 0; i < sizeof advices / sizeof advices[0]; i++)
    if (advices[i].maker == maker && strcmp(advices[i].id, kind->id) == 0) return advices[i].advice;
  return NULL;
}

/* Returns the advice of a kind of finding about a node; -1: the whole model. */
static const char *advice_for(const bny_topo *topo, const bny_topo_finding_kind *kind, int32_t node) {
  if (node < 0 || !advice_of(kind, MAKER_OTHER)) return kind->advice;
  bny_topo_kind what = topo->nodes[node].kind;
  bool network = what == BNY_TOPO_NIC || what == BNY_TOPO_PORT || what == BNY_TOPO_SWITCH;
  if (network && advice_of(kind, MAKER_NETWORK)) return advice_of(kind, MAKER_NETWORK);
  maker found = what == BNY_TOPO_GPU ? maker_of_gpu(topo, node) : MAKER_OTHER;
  const char *advice = advice_of(kind, found == MAKER_OTHER ? maker_of_host(topo, node) : found);
  return advice ? advice : kind->advice;
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

/* Takes ownership of `nodes`, and inserts the finding in the order of kinds. */
static bool put(bny_topo_levels *levels, const bny_topo_finding_kind *kind, int32_t *nodes, int32_t nnodes,
                const char *text) {
  bool room = bny_topo_grow(&levels->findings, levels->nfindings, &levels->findings_capacity, sizeof *levels->findings);
  char *copy = room ? strdup(text) : NULL;
  if (!copy) {
    free(nodes);
    return false;
  }
  int32_t at = levels->nfindings++;
  for (; at > 0 && bny_topo_finding_kind_of(levels->findings[at - 1].id) > kind; at--)
    levels->findings[at] = levels->findings[at - 1];
  levels->findings[at] = (bny_topo_finding){.id = kind->id,
                                            .severity = kind->severity,
                                            .node = nnodes > 0 ? nodes[0] : -1,
                                            .nnodes = nnodes,
                                            .nodes = nodes,
                                            .text = copy};
  return true;
}

static void drop(bny_topo_levels *levels, int32_t at) {
  free(levels->findings[at].text);
  free(levels->findings[at].nodes);
  levels->nfindings--;
  memmove(&levels->findings[at], &levels->findings[at + 1],
          (size_t)(levels->nfindings - at) * sizeof *levels->findings);
}

void bny_topo_findings_remove(bny_topo_levels *levels, const char *id) {
  for (int32_t f = levels->nfindings - 1; f >= 0; f--)
    if (strcmp(levels->findings[f].id, id) == 0) drop(levels, f);
}

/* Composes "GPU0, GPU1 and 6 others: FACT; ADVICE". */
static void compose(char text[TEXT_BYTES], const char *labels, const char *fact, const char *advice) {
  snprintf(text, TEXT_BYTES, "%s%s%s%s%s", labels, labels[0] ? ": " : "", fact, advice[0] ? "; " : "", advice);
}

static bool is_about(const bny_topo_finding *finding, int32_t node) {
  for (int32_t n = 0; n < finding->nnodes; n++)
    if (finding->nodes[n] == node) return true;
  return false;
}

bool bny_topo_finding_add(bny_topo_levels *levels, const bny_topo *topo, const char *id, int32_t node,
                          const char *fact) {
  const bny_topo_finding_kind *kind = bny_topo_finding_kind_of(id);
  char text[TEXT_BYTES];
  for (int32_t f = levels->nfindings - 1; f >= 0 && node >= 0; f--) {
    const bny_topo_finding *finding = &levels->findings[f];
    if (finding->id != kind->id || !is_about(finding, node)) continue;
    if (finding->nnodes > 1) return true;
    drop(levels, f);
  }
  compose(text, "", fact, advice_for(topo, kind, node));
  int32_t *nodes = malloc(sizeof *nodes);
  if (!nodes) return false;
  *nodes = node;
  return put(levels, kind, nodes, node >= 0, text);
}

/* ---- facts of one kind ------------------------------------------------------------------------------------------- */

static void fact_add(bny_topo_finder *s, bny_topo_fact *fact, int32_t node) {
  if (bny_topo_grow(&fact->nodes, fact->count, &fact->capacity, sizeof *fact->nodes))
    fact->nodes[fact->count++] = node;
  else
    s->no_memory = true;
}

void bny_topo_find(bny_topo_finder *s, int32_t node, const char *format, ...) {
  char text[TEXT_BYTES / 2];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const char *advice = advice_for(s->d->topo, s->kind, node);
  int32_t f = 0;
  while (f < s->nfacts && (strcmp(s->facts[f].text, text) != 0 || s->facts[f].advice != advice)) f++;
  if (f == s->nfacts) {
    if (f == BNY_TOPO_FACTS_MAX) {
      s->more++;
      return;
    }
    char *copy = strdup(text);
    s->no_memory = s->no_memory || !copy;
    if (!copy) return;
    s->facts[s->nfacts++] = (bny_topo_fact){.text = copy, .advice = advice};
  }
  if (node >= 0) fact_add(s, &s->facts[f], node);
}

static void labels_of(const bny_topo_derivation *d, const bny_topo_fact *fact, char text[TEXT_BYTES / 2]) {
  size_t used = 0;
  int32_t named = fact->count <= NAMED_MAX ? fact->count : NAMED_MAX - 1;
  text[0] = '\0';
  for (int32_t i = 0; i < named; i++) {
    char label[BNY_TOPO_LABEL_BYTES];
    const char *between = i == 0 ? "" : i + 1 == fact->count ? " and " : ", ";
    used += (size_t)snprintf(text + used, TEXT_BYTES / 2 - used, "%s%.70s", between,
                             bny_topo_find_label(d, fact->nodes[i], label));
  }
  if (named < fact->count)
    snprintf(text + used, TEXT_BYTES / 2 - used, " and %d other%s", fact->count - named,
             bny_topo_plural(fact->count - named));
}

bool bny_topo_find_end(bny_topo_finder *s) {
  const bny_topo_finding_kind *kind = s->kind;
  char text[TEXT_BYTES], labels[TEXT_BYTES / 2];
  bool good = !s->no_memory;
  for (int32_t f = 0; f < s->nfacts; f++) {
    bny_topo_fact *fact = &s->facts[f];
    labels_of(s->d, fact, labels);
    compose(text, labels, fact->text, fact->advice);
    good = put(s->d->levels, kind, fact->nodes, fact->count, text) && good;
    free(fact->text);
  }
  if (s->more > 0) {
    snprintf(text, sizeof text, "and %d more like these: %s", s->more, kind->meaning);
    good = put(s->d->levels, kind, NULL, 0, text) && good;
  }
  return good;
}

/* ---- for the files that look for findings ------------------------------------------------------------------------ */

const char *bny_topo_find_label(const bny_topo_derivation *d, int32_t node, char text[BNY_TOPO_LABEL_BYTES]) {
  const bny_topo *topo = d->topo;
  int32_t host = d->host_of[node], nic = topo->nodes[node].kind == BNY_TOPO_PORT ? topo->nodes[node].parent : -1;
  bool named = d->nhosts > 1 && host >= 0 && host != node;
  snprintf(text, BNY_TOPO_LABEL_BYTES, "%.40s%s%.40s%s%.30s", named ? topo->nodes[host].name : "", named ? " " : "",
           nic >= 0 ? topo->nodes[nic].name : topo->nodes[node].name, nic >= 0 ? " port " : "",
           nic >= 0 ? topo->nodes[node].name : "");
  return text;
}

const char *bny_topo_plural(int32_t count) { return count == 1 ? "" : "s"; }

bool bny_topo_is_amd(const bny_topo_derivation *d, int32_t gpu) {
  maker found = maker_of_gpu(d->topo, gpu);
  return (found == MAKER_OTHER ? maker_of_host(d->topo, gpu) : found) == MAKER_AMD;
}

const char *bny_topo_members_word(const bny_topo_derivation *d) {
  return d->levels->rank_kind == BNY_TOPO_GPU ? "GPU" : "rank";
}

bool bny_topo_same_stem(const char *a, const char *b) {
  size_t letters = strcspn(a, "0123456789");
  return letters == strcspn(b, "0123456789") && strncmp(a, b, letters) == 0;
}

static int value_order(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

double bny_topo_usual(double *values, int32_t count, int32_t *times) {
  double usual = 0;
  *times = 0;
  if (count > 0) qsort(values, (size_t)count, sizeof *values, value_order);
  for (int32_t i = 0; i < count;) {
    int32_t start = i;
    while (i < count && values[i] <= values[start]) i++;
    if (i - start >= *times) *times = i - start, usual = values[start];
  }
  return usual;
}

const bny_topo_note *bny_topo_find_note(const bny_topo *topo, bny_topo_note_kind kind, int32_t *at) {
  while (*at < topo->nnotes) {
    const bny_topo_note *note = &topo->notes[(*at)++];
    if (note->kind == kind) return note;
  }
  return NULL;
}

bool bny_topo_is_noted(const bny_topo *topo, bny_topo_note_kind kind, int32_t node) {
  int32_t at = 0;
  for (const bny_topo_note *note; (note = bny_topo_find_note(topo, kind, &at)) != NULL;)
    if (note->node == node) return true;
  return false;
}

bool bny_topo_is_found(const bny_topo_derivation *d, const char *id, int32_t node) {
  for (int32_t f = 0; f < d->levels->nfindings; f++) {
    const bny_topo_finding *finding = &d->levels->findings[f];
    if (strcmp(finding->id, id) == 0 && is_about(finding, node)) return true;
  }
  return false;
}
