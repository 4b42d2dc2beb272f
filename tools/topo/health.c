/* SPDX-License-Identifier: Apache-2.0
 * The rules of banyan-topo --check, one table. Most compare devices with their siblings: what at least half of them
 * have is taken as intended. */
#include "tools/topo/health.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/util.h"
#include "topo/levels/derive.h"
#include "topo/model/speed.h"

enum { FACTS_MAX = 32, NAMED_MAX = 3, TEXT_BYTES = 300 };

static const double alike = 0.95; /* a speed below this fraction of another counts as slower */

/* The objects that a rule looks at, each in turn; the last kinds only if ranks are GPUs. */
typedef enum scope { ONCE, NOTES, NODES, RANKS, HOSTS, GPU_NODES, GPU_RANKS, GPU_HOSTS, SCOPES } scope;

typedef struct checker {
  const bny_topo *topo;
  const bny_topo_levels *levels;
  const bny_topo_level *hosts; /* level of hosts: their ranks */
  const bny_topo_probe_report *reports;
  const struct rule *rule;
  int32_t at;                 /* the note, node, rank or host that the rule looks at */
  const bny_topo_group *host; /* if it is a host */
  const bny_topo_rank *rank;  /* if it is a rank */
  topo_findings found;
  int32_t first, more;            /* first finding of this rule, and its facts beyond FACTS_MAX */
  double *values;                 /* scratch space, one for each node and link */
  const bny_topo_rank **served;   /* by node: a rank that this NIC serves; NULL: none */
  int32_t gpus_usual, nics_usual; /* most hosts have so many GPUs, and NICs that serve; 0: no majority */
  double speed_usual;             /* NICs have it */
  bool speeds_known;              /* most ranks have a NIC of known speed */
} checker;

typedef struct rule {
  const char *id;
  topo_severity severity;
  scope scope;
  void (*look)(checker *c);
  const char *advice;
} rule;

/* ---- the list ---------------------------------------------------------------------------------------------------- */

/* Adds a fact about a node; -1: the whole model. */
static void find(checker *c, int32_t node, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void find(checker *c, int32_t node, const char *format, ...) {
  char text[TEXT_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  int32_t f = c->first;
  while (f < c->found.count && strcmp(c->found.list[f].text, text) != 0) f++;
  if (f == c->found.count) {
    if (f - c->first == FACTS_MAX) {
      c->more++;
      return;
    }
    c->found.list = tool_more(c->found.list, f, sizeof *c->found.list);
    c->found.list[c->found.count++] =
        (topo_finding){.id = c->rule->id, .severity = c->rule->severity, .node = node, .text = tool_format("%s", text)};
  }
  topo_finding *finding = &c->found.list[f];
  if (node < 0) return;
  finding->nodes = tool_more(finding->nodes, finding->nnodes, sizeof *finding->nodes);
  finding->nodes[finding->nnodes++] = node;
}

/* Returns "host3 GPU2", or "GPU2" if there is only one host. A port is labelled by its NIC. */
static const char *label_of(const checker *c, int32_t node) {
  const bny_topo_node *nodes = c->topo->nodes;
  int32_t host = bny_topo_ancestor(c->topo, node, BNY_TOPO_HOST);
  bool named = bny_topo_count(c->topo, BNY_TOPO_HOST) > 1 && host >= 0 && host != node;
  bool port = nodes[node].kind == BNY_TOPO_PORT && nodes[node].parent >= 0;
  return tool_format("%.40s%s%.40s%s%.30s", named ? nodes[host].name : "", named ? " " : "",
                     nodes[port ? nodes[node].parent : node].name, port ? " port " : "", port ? nodes[node].name : "");
}

static const char *plural(int32_t count) { return count == 1 ? "" : "s"; }

/* Composes "GPU0, GPU1 and 6 others: FACT; ADVICE" for the findings of a rule. */
static void rule_end(checker *c) {
  const char *advice = c->rule->advice;
  for (int32_t f = c->first; f < c->found.count; f++) {
    topo_finding *finding = &c->found.list[f];
    int32_t named = finding->nnodes <= NAMED_MAX ? finding->nnodes : NAMED_MAX - 1;
    const char *labels = "";
    for (int32_t i = 0; i < named; i++) {
      const char *comma = i + 1 == finding->nnodes ? " and " : ", ";
      labels = tool_format("%s%s%s", labels, i == 0 ? "" : comma, label_of(c, finding->nodes[i]));
    }
    if (named < finding->nnodes)
      labels = tool_format("%s and %d other%s", labels, finding->nnodes - named, plural(finding->nnodes - named));
    finding->text =
        tool_format("%s%s%s%s%s", labels, labels[0] ? ": " : "", finding->text, advice[0] ? "; " : "", advice);
  }
  int32_t more = c->more;
  c->first = c->found.count;
  c->more = 0;
  if (more > 0) find(c, -1, "and %d more of %s", (int)more, c->rule->id);
}

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

/* Returns whether an earlier rule has found this about a node. */
static bool is_found(const checker *c, const char *id, int32_t node) {
  for (int32_t f = 0; f < c->found.count; f++)
    for (int32_t n = 0; n < c->found.list[f].nnodes && strcmp(c->found.list[f].id, id) == 0; n++)
      if (c->found.list[f].nodes[n] == node) return true;
  return false;
}

static int32_t notes_of(const checker *c, bny_topo_note_kind kind, int32_t node) {
  int32_t count = 0;
  for (int32_t i = 0; i < c->topo->nnotes; i++)
    count += c->topo->notes[i].kind == kind && c->topo->notes[i].node == node;
  return count;
}

/* Finds what the source says of its nodes. */
static void note_pass(checker *c, bny_topo_note_kind kind, const char *about) {
  const bny_topo_note *note = &c->topo->notes[c->at];
  if (note->kind == kind) find(c, note->node, "%s%s", about, note->text);
}

/* Returns the value that most have, which is then the median, or 0 if no value has a majority. */
static double usual(double *values, int32_t count) {
  int32_t times = 0;
  double median = tool_percentile(values, (size_t)count, 50);
  for (int32_t i = 0; i < count; i++) times += values[i] == median;
  return 2 * times > count ? median : 0;
}

static const bny_topo_rank *rank_of(const checker *c, const bny_topo_group *host, int32_t i) {
  return &c->levels->ranks[c->hosts->members[host->first + i]];
}

/* Returns what most of at least three hosts have; 0 if there is no majority. */
static int32_t usual_of(const checker *c, int32_t (*count)(const checker *c, const bny_topo_group *host)) {
  for (int32_t h = 0; h < c->hosts->ngroups; h++) c->values[h] = count(c, &c->hosts->groups[h]);
  return c->hosts->ngroups < 3 ? 0 : (int32_t)usual(c->values, c->hosts->ngroups);
}

static const char *links_word(const checker *c, int32_t gpu) {
  for (int32_t l = bny_topo_first_link(c->topo, gpu); l >= 0; l = bny_topo_next_link(c->topo, gpu, l))
    if (c->topo->links[l].kind == BNY_TOPO_LINK_XGMI) return "xGMI link";
  return c->topo->nodes[gpu].compute >= 300 || c->topo->nodes[gpu].compute == 910 ? "xGMI link" : "NVLink";
}

/* ---- GPUs and their links ---------------------------------------------------------------------------------------- */

static int32_t devices_of(const checker *c, const bny_topo_group *host) {
  int32_t devices = 0;
  for (int32_t i = 0; i < host->count; i++)
    devices += bny_topo_device(c->topo, rank_of(c, host, i)->node) == rank_of(c, host, i)->node;
  return devices;
}

/* A few GPUs that links lead to and that are not listed are lost. More of them are hidden from this process. */
static void gpu_lost(checker *c) {
  char bus_id[BNY_TOPO_BUS_BYTES];
  int32_t node = c->host->node, missing = notes_of(c, BNY_TOPO_NOTE_LOST, node), present = devices_of(c, c->host);
  for (int32_t i = 0; i < c->topo->nnotes && missing > 0; i++) {
    const bny_topo_note *note = &c->topo->notes[i];
    if (note->kind != BNY_TOPO_NOTE_LOST || note->node != node) continue;
    if (!bny_topo_bus_normalise(note->text, bus_id))
      find(c, node, "%s", note->text);
    else if (3 * missing <= present)
      find(c, node, "the GPU at %s is missing, which links of others lead to", note->text);
  }
  if (present < c->gpus_usual && 2 * present >= c->gpus_usual && missing == 0)
    find(c, node, "%d GPUs, most hosts have %d", (int)present, (int)c->gpus_usual);
}

static bool is_explained(const checker *c, int32_t node) {
  return notes_of(c, BNY_TOPO_NOTE_LOST, node) > 0 || notes_of(c, BNY_TOPO_NOTE_FABRIC, node) > 0;
}

/* Returns the links to GPUs that exist but carry no data. */
static int32_t dead_links(const checker *c, int32_t node) {
  int32_t dead = 0;
  for (int32_t l = bny_topo_first_link(c->topo, node); l >= 0; l = bny_topo_next_link(c->topo, node, l)) {
    const bny_topo_link *link = &c->topo->links[l];
    if (bny_topo_joins_gpus(link) && bny_topo_link_dead(link)) dead += link->count > 0 ? link->count : 1;
  }
  return dead;
}

/* NVLink bridges join pairs, and a GPU beside such pairs may have none by design. */
static void nvlink_missing(checker *c) {
  const bny_topo_level *islands = bny_topo_level_of(c->levels, BNY_TOPO_LEVEL_ISLAND);
  const bny_topo_group *host = c->host;
  int32_t joined = 0;
  bool large = false;
  for (int32_t i = 0; i < host->count && islands != NULL; i++) {
    const bny_topo_group *island = &islands->groups[islands->group_of[c->hosts->members[host->first + i]]];
    joined += rank_of(c, host, i)->nvlinks > 0;
    large = large || island->count > 2 || (island->count == 2 && island->node >= 0);
  }
  for (int32_t i = 0; i < host->count && large && 2 * joined > host->count; i++) {
    int32_t node = rank_of(c, host, i)->node;
    if (rank_of(c, host, i)->nvlinks == 0 && bny_topo_device(c->topo, node) == node && !is_explained(c, node) &&
        dead_links(c, node) == 0)
      find(c, node, "no %s, %d GPUs of its host have them: a collective of the whole host runs over PCIe",
           links_word(c, rank_of(c, host, 0)->node), (int)joined);
  }
}

/* Behind a switch all GPUs should have the same number of links. In a mesh, a majority shows what is intended. */
static void nvlink_fewer(checker *c) {
  const bny_topo_level *domains = bny_topo_level_of(c->levels, BNY_TOPO_LEVEL_DOMAIN);
  const bny_topo_level *level = domains != NULL ? domains : bny_topo_level_of(c->levels, BNY_TOPO_LEVEL_ISLAND);
  int32_t most = 0, with_most = 0;
  if (level == NULL || level->group_of[c->at] < 0) return;
  const bny_topo_group *group = &level->groups[level->group_of[c->at]];
  for (int32_t i = 0; i < group->count; i++) {
    int32_t links = c->levels->ranks[level->members[group->first + i]].nvlinks;
    with_most = links > most ? 1 : with_most + (links == most);
    most = links > most ? links : most;
  }
  if (c->rank->nvlinks < most && (group->node >= 0 || 2 * with_most > group->count) &&
      notes_of(c, BNY_TOPO_NOTE_ONE_SIDED, c->rank->node) == 0)
    find(c, c->rank->node, "%d of %d %ss, so all that it is linked to run at that pace", (int)c->rank->nvlinks,
         (int)most, links_word(c, c->rank->node));
}

static void nvlink_one_sided(checker *c) {
  int32_t links = notes_of(c, BNY_TOPO_NOTE_ONE_SIDED, c->rank->node);
  if (links > 0) find(c, c->rank->node, "it does not list links of %d other GPU%s to it", (int)links, plural(links));
}

static void cable_one_sided(checker *c) {
  int32_t node = c->topo->notes[c->at].node;
  if (node >= 0 && c->topo->nodes[node].kind != BNY_TOPO_GPU) note_pass(c, BNY_TOPO_NOTE_ONE_SIDED, "");
}

static void ends_differ(checker *c) { note_pass(c, BNY_TOPO_NOTE_DIFFERS, ""); }

static void fabric(checker *c) { note_pass(c, BNY_TOPO_NOTE_FABRIC, "the driver says of its fabric: "); }

static void input_odd(checker *c) { note_pass(c, BNY_TOPO_NOTE_INPUT, ""); }

static void nic_virtual(checker *c) { note_pass(c, BNY_TOPO_NOTE_VIRTUAL, ""); }

static void peer_refused(checker *c) {
  int32_t node = c->rank->node, links = dead_links(c, node);
  if (links > 0 && !is_explained(c, node))
    find(c, node, "%d %s%s, but no peer access: data goes over PCIe or the host's memory", (int)links,
         links_word(c, node), plural(links));
}

/* Missing links also reduce the sum; they have their own rule. */
static void link_slow(checker *c) {
  bny_topo_kind what = c->topo->nodes[c->at].kind;
  bool device = what == BNY_TOPO_GPU || what == BNY_TOPO_PORT || what == BNY_TOPO_NIC;
  for (int kind = BNY_TOPO_LINK_NVLINK; device && kind < BNY_TOPO_LINK_KINDS; kind++) {
    int32_t links = 0;
    double is = 0, rated = 0;
    for (int32_t l = bny_topo_first_link(c->topo, c->at); l >= 0; l = bny_topo_next_link(c->topo, c->at, l)) {
      const bny_topo_link *link = &c->topo->links[l];
      bool slow = link->gbytes_per_s > 0 && link->gbytes_per_s < alike * link->rated_gbytes_per_s;
      if ((int)link->kind != kind || !slow) continue;
      links += link->count > 0 ? link->count : 1;
      is += link->gbytes_per_s;
      rated += link->rated_gbytes_per_s;
    }
    if (links > 0 && !is_found(c, "nvlink-fewer", c->at))
      find(c, c->at, "its %s link%s %s %.4g GB/s of %.4g", bny_topo_link_name((bny_topo_link_kind)kind), plural(links),
           links == 1 ? "has" : "have", is, rated);
  }
}

/* ---- PCIe -------------------------------------------------------------------------------------------------------- */

/* A GPU, a NIC that serves ranks, or a PCI switch, and its PCI link. Devices of one kind and model are siblings, in any
 * host. Switches have none, since they lead to unlike devices. */
typedef struct slot {
  const bny_topo_node *node;
  const bny_topo_link *link;
} slot;

static int models_order(const slot *a, const slot *b) {
  if (a->node->kind != b->node->kind) return (int)a->node->kind - (int)b->node->kind;
  return strcmp(a->node->model == NULL ? "" : a->node->model, b->node->model == NULL ? "" : b->node->model);
}

static int slot_order(const void *a, const void *b) {
  const slot *x = a, *y = b;
  int models = models_order(x, y);
  return models ? models : (x->node > y->node) - (x->node < y->node);
}

static int32_t slots_list(const checker *c, slot *slots) {
  int32_t count = 0;
  for (int32_t n = 0; n < c->topo->nnodes; n++) {
    const bny_topo_node *node = &c->topo->nodes[n];
    bool looked = node->kind == BNY_TOPO_GPU || node->kind == BNY_TOPO_PCI ||
                  (node->kind == BNY_TOPO_NIC && c->served[n] != NULL);
    int32_t l = looked ? bny_topo_link_up(c->topo, n, BNY_TOPO_LINK_PCI) : -1;
    const bny_topo_link *link = l < 0 ? NULL : &c->topo->links[l];
    if (link == NULL || link->gbytes_per_s <= 0 || link->source == BNY_TOPO_ASSUMED) continue;
    if (link->count <= 0 && node->kind == BNY_TOPO_NIC) continue; /* slots of NICs differ by design */
    slots[count++] = (slot){node, link};
  }
  qsort(slots, (size_t)count, sizeof *slots, slot_order);
  return count;
}

/* One rule has the faults, and another the doubts. */
static void pci_look(checker *c) {
  bool faults = c->rule->severity == TOPO_FAULT;
  slot *slots = tool_new((size_t)c->topo->nnodes, sizeof *slots);
  int32_t count = slots_list(c, slots);
  for (int32_t first = 0, end; first < count; first = end) {
    bool alone = slots[first].node->kind == BNY_TOPO_PCI;
    for (end = first; end == first || (end < count && !alone && models_order(&slots[first], &slots[end]) == 0); end++)
      c->values[end - first] = slots[end].link->count;
    int32_t siblings = end - first, lanes = (int32_t)usual(c->values, siblings);
    double fastest = 0;
    for (int32_t i = first; i < end; i++) fastest = fmax(fastest, c->values[i - first] = slots[i].link->gbytes_per_s);
    double speed = usual(c->values, siblings);
    for (int32_t i = first; i < end; i++) {
      const bny_topo_link *link = slots[i].link;
      int32_t node = (int32_t)(slots[i].node - c->topo->nodes), own = link->count;
      double is = link->gbytes_per_s;
      bool narrow = own > 0 && own < lanes, old = is < 0.75 * speed;
      /* A link at generation 1, unlike its siblings, saves power. */
      bool idle = is < 1.1 * bny_topo_speed_pci(1, own > 0 ? own : 16) && speed > 2 * is;
      if ((narrow || (old && !idle)) != faults) continue;
      if (narrow)
        find(c, node, "its PCI link has %d lane%s, those of its siblings %d", (int)own, plural(own), (int)lanes);
      else if (faults)
        find(c, node, "its PCI link runs at %.4g GB/s, those of its siblings at %.4g", is, speed);
      else if (idle)
        find(c, node, "its PCI link is at generation 1, unlike its siblings: read it again under load");
      else if (siblings == 2 && is < 0.75 * fastest)
        find(c, node, "its PCI link runs at %.4g GB/s, that of its sibling at %.4g", is, fastest);
      else if (siblings == 1 && is < 0.75 * link->rated_gbytes_per_s)
        find(c, node, "its PCI link runs at %.4g GB/s of %.4g", is, link->rated_gbytes_per_s);
    }
  }
}

/* ---- NICs and networks ------------------------------------------------------------------------------------------- */

/* A port that is down is a fault if its NIC serves ranks, or would spare two ranks of its host from sharing one. */
static void port_down(checker *c) {
  int32_t nic = bny_topo_port_down(c->topo, c->at) ? bny_topo_nic_of(c->topo, c->at) : -1, alone = 0, missed = 0;
  if (nic < 0) return;
  int32_t host = bny_topo_ancestor(c->topo, nic, BNY_TOPO_HOST);
  double rated = bny_topo_port_rated(c->topo, c->at);
  for (int32_t r = 0; r < c->levels->nranks; r++) {
    const bny_topo_rank *rank = &c->levels->ranks[r];
    alone += rank->nic == nic && rank->nic_gbytes_per_s <= 0;
    missed += rank->host == host && rank->nic_shared > 1 && c->served[nic] == NULL && rated > 0 &&
              rated >= alike * rank->nic_gbytes_per_s;
  }
  const char *up = rated > 0 ? tool_format(" (%.4g GB/s if it were up)", rated) : "";
  if (alone > 0)
    find(c, c->at, "it is down%s, and its NIC serves %d GPU%s", up, (int)alone, plural(alone));
  else if (missed > 0)
    find(c, c->at, "it is down%s, so GPUs share another NIC", up);
}

/* Returns the number of NICs that serve ranks of a host. */
static int32_t nics_serving(const checker *c, const bny_topo_group *host) {
  int32_t serving = 0;
  for (int32_t i = 0; i < host->count; i++) {
    int32_t nic = rank_of(c, host, i)->nic, before = 0;
    while (before < i && rank_of(c, host, before)->nic != nic) before++;
    serving += nic >= 0 && before == i;
  }
  return serving;
}

static void nic_none(checker *c) {
  if (c->hosts->ngroups > 1 && nics_serving(c, c->host) == 0)
    find(c, c->host->node, "no NIC is known there, so it does not reach other hosts at speed");
}

static void nic_missing(checker *c) {
  const bny_topo_group *host = c->host;
  const bny_topo_rank *first = rank_of(c, host, 0);
  int32_t serving = nics_serving(c, host), near = 0, most = c->nics_usual;
  if (serving == 0 || is_found(c, "gpu-lost", host->node)) return;
  for (int32_t i = 0; i < host->count; i++) {
    const bny_topo_rank *rank = rank_of(c, host, i);
    near += rank->nic_path == first->nic_path && rank->nic_gbytes_per_s == first->nic_gbytes_per_s;
  }
  for (int32_t f = 0; f < c->found.count; f++)
    if (strcmp(c->found.list[f].id, "port-down") == 0 &&
        bny_topo_ancestor(c->topo, c->found.list[f].node, BNY_TOPO_HOST) == host->node)
      return;
  if (serving < most && 2 * serving >= most)
    find(c, host->node, "%d NIC%s, most hosts have %d", (int)serving, plural(serving), (int)most);
  else if (host->count >= 4 && serving == host->count - 1 && near == host->count)
    find(c, host->node, "%d NICs serve %d GPUs, so two share one", (int)serving, (int)host->count);
}

/* Finds GPUs whose NIC is farther than those of at least three quarters of their host. Small hosts may be so. */
static void nic_far(checker *c) {
  const bny_topo_group *host = c->host;
  for (int32_t i = 0; i < host->count && host->count >= 8; i++) {
    const bny_topo_rank *rank = rank_of(c, host, i);
    int32_t nearer = 0;
    bny_topo_path path = BNY_TOPO_PATH_SELF;
    for (int32_t j = 0; j < host->count; j++) {
      const bny_topo_rank *other = rank_of(c, host, j);
      bool is_nearer = other->nic >= 0 && other->nic_path < rank->nic_path;
      nearer += is_nearer;
      if (is_nearer && other->nic_path > path) path = other->nic_path;
    }
    if (4 * nearer >= 3 * host->count && path <= BNY_TOPO_PATH_PXB)
      find(c, rank->node, "its NIC is %s away, those of the other GPUs %s", bny_topo_path_name(rank->nic_path),
           bny_topo_path_name(path));
  }
}

/* Returns whether a NIC or one of its ports has a network link; if `speed`, one of known speed, or is down. */
static bool has_net(const checker *c, int32_t nic, bool speed) {
  for (int32_t n = nic; n < c->topo->nnodes; n++) {
    if (bny_topo_nic_of(c->topo, n) != nic) continue;
    if (speed && bny_topo_port_down(c->topo, n)) return true;
    for (int32_t l = bny_topo_first_link(c->topo, n); l >= 0; l = bny_topo_next_link(c->topo, n, l))
      if (c->topo->links[l].kind == BNY_TOPO_LINK_NET && (!speed || c->topo->links[l].gbytes_per_s > 0)) return true;
  }
  return false;
}

/* A speed that no NIC can have counts as none, and is an error of the file. */
static void nic_slow(checker *c) {
  const bny_topo_rank *rank = c->served[c->at];
  if (rank != NULL && rank->nic_gbytes_per_s > 0 && rank->nic_gbytes_per_s < alike * c->speed_usual)
    find(c, rank->nic, "it runs at %.4g GB/s, other NICs at %.4g: what hosts exchange waits for it",
         rank->nic_gbytes_per_s, c->speed_usual);
  else if (rank != NULL && rank->nic_gbytes_per_s <= 0 && c->speeds_known && rank->nic != rank->node &&
           !has_net(c, rank->nic, true))
    find(c, rank->nic, "it has no speed, and other NICs have one");
}

/* A model whose ranks are NICs is of a network alone, where each NIC has a cable. */
static void nic_uncabled(checker *c) {
  const bny_topo_level *leaves = bny_topo_level_of(c->levels, BNY_TOPO_LEVEL_LEAF);
  int32_t nic = c->rank->nic;
  if (nic < 0 || notes_of(c, BNY_TOPO_NOTE_ONE_SIDED, nic) > 0) return;
  if (leaves != NULL ? leaves->group_of[c->at] < 0 : c->levels->rank_kind == BNY_TOPO_NIC && !has_net(c, nic, false))
    find(c, nic, "it is on no switch");
}

static void nic_numa(checker *c) {
  int32_t far = 0;
  for (int32_t i = 0; i < c->host->count; i++) {
    const bny_topo_rank *rank = rank_of(c, c->host, i);
    bool placed = bny_topo_ancestor(c->topo, rank->node, BNY_TOPO_NUMA) >= 0 ||
                  bny_topo_ancestor(c->topo, rank->node, BNY_TOPO_PACKAGE) >= 0;
    far += rank->nic >= 0 && rank->nic_path == BNY_TOPO_PATH_SYS && placed;
  }
  if (far > 0)
    find(c, c->host->node, "%d of %d GPUs reach a NIC only across NUMA nodes, over the link between CPUs", (int)far,
         (int)c->host->count);
}

/* Hosts that neither a link nor another host joins are on several networks. */
static void networks(checker *c) {
  const bny_topo *topo = c->topo;
  int32_t *roots = tool_new((size_t)topo->nnodes, sizeof *roots), first = -1;
  if (bny_topo_level_of(c->levels, BNY_TOPO_LEVEL_LEAF) == NULL) return;
  for (int32_t n = 0; n < topo->nnodes; n++) {
    int32_t host = bny_topo_ancestor(topo, n, BNY_TOPO_HOST);
    roots[n] = host >= 0 ? host : n;
  }
  for (int32_t l = 0; l < topo->nlinks; l++)
    if (topo->links[l].kind == BNY_TOPO_LINK_NET) bny_topo_unite(roots, topo->links[l].from, topo->links[l].to);
  for (int32_t h = 0; h < c->hosts->ngroups; h++) {
    int32_t host = c->hosts->groups[h].node;
    if (nics_serving(c, &c->hosts->groups[h]) == 0) continue;
    first = first < 0 ? host : first;
    if (bny_topo_root(roots, host) != bny_topo_root(roots, first))
      find(c, host, "no link joins its network to that of %s", topo->nodes[first].name);
  }
}

/* The links of a leaf switch to others carry less than its NICs: by design, or a switch or cables are gone. */
static void uplinks_narrow(checker *c) {
  const bny_topo_level *leaves = bny_topo_level_of(c->levels, BNY_TOPO_LEVEL_LEAF);
  for (int32_t g = 0; leaves != NULL && g < leaves->ngroups; g++) {
    const bny_topo_group *leaf = &leaves->groups[g];
    double below = leaf->gbytes_per_s * leaf->count, up = leaf->up_gbytes_per_s;
    if (leaf->uniform && up > 0 && up < 0.75 * below)
      find(c, leaf->node, "its links to other switches carry %.4g GB/s, those to NICs %.4g", up, below);
  }
}

/* A fast NIC that serves no GPU, because those that do are on another network. */
static void networks_mixed(checker *c) {
  const bny_topo_group *host = c->host;
  const bny_topo_rank *rank = rank_of(c, host, 0);
  bny_topo_network serving = rank->nic < 0 ? BNY_TOPO_NETWORK_UNKNOWN : bny_topo_network_of(c->topo, rank->nic);
  for (int32_t n = 0; serving != BNY_TOPO_NETWORK_UNKNOWN && n < c->topo->nnodes; n++) {
    if (c->topo->nodes[n].kind != BNY_TOPO_NIC || c->served[n] != NULL ||
        bny_topo_ancestor(c->topo, n, BNY_TOPO_HOST) != rank->host)
      continue;
    bny_topo_network own = bny_topo_network_of(c->topo, n);
    bool near = false;
    for (int32_t i = 0; !near && i < host->count; i++)
      near = bny_topo_path_between(c->topo, rank_of(c, host, i)->node, n) <= BNY_TOPO_PATH_PXB;
    if (own != serving && own != BNY_TOPO_NETWORK_UNKNOWN && near)
      find(c, n, "it is near a GPU and serves none, because the other NICs are on another network");
  }
}

static void probe_failed(checker *c) {
  for (int32_t i = 0; c->reports != NULL && i < BNY_TOPO_PROBES; i++)
    if (c->reports[i].outcome == BNY_TOPO_PROBE_FAILED)
      find(c, -1, "the probe %s failed: %s", c->reports[i].name, c->reports[i].text);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* A rule may use the findings of earlier ones. */
static const rule rules[] = {
    {"gpu-lost", TOPO_FAULT, GPU_HOSTS, gpu_lost,
     "look for errors of its driver in the kernel's log, then reset or reseat it"},
    {"nvlink-missing", TOPO_FAULT, GPU_HOSTS, nvlink_missing,
     "see nvidia-smi nvlink -s or amd-smi xgmi, then reset the GPU"},
    {"nvlink-fewer", TOPO_FAULT, RANKS, nvlink_fewer, "see nvidia-smi nvlink -s or amd-smi xgmi, then reset the GPU"},
    {"nvlink-one-sided", TOPO_FAULT, GPU_RANKS, nvlink_one_sided, "the link is down at this end: reset both GPUs"},
    {"cable-one-sided", TOPO_FAULT, NOTES, cable_one_sided, "check the cable and the ports at both ends"},
    {"ends-differ", TOPO_FAULT, NOTES, ends_differ, "look at both ends, where links may be down at one of them"},
    {"fabric-unhealthy", TOPO_FAULT, NOTES, fabric,
     "see the logs of the fabric manager and of the subnet manager of NVLink"},
    {"peer-refused", TOPO_FAULT, RANKS, peer_refused, "look for the fabric manager, for ACS and for the IOMMU"},
    {"link-slow", TOPO_FAULT, NODES, link_slow, "check its cables or reset it, so that the link trains again"},
    {"pci-slow", TOPO_FAULT, ONCE, pci_look,
     "reseat the card or its riser, then compare LnkSta with LnkCap in lspci -vv"},
    {"port-down", TOPO_FAULT, GPU_NODES, port_down, "check cable and transceiver, and the port of the switch"},
    {"nic-none", TOPO_FAULT, HOSTS, nic_none, "look for its driver, and in a container for /dev/infiniband"},
    {"nic-missing", TOPO_FAULT, GPU_HOSTS, nic_missing,
     "look for the card in lspci and for its driver in the kernel's log"},
    {"nic-far", TOPO_FAULT, GPU_HOSTS, nic_far, "look for the card beside this GPU in lspci and for its driver"},
    {"nic-slow", TOPO_FAULT, NODES, nic_slow,
     "check cable, transceiver and the port of the switch; see ibstat or ethtool"},
    {"nic-uncabled", TOPO_FAULT, RANKS, nic_uncabled, "check its port and its cable"},
    {"network-apart", TOPO_FAULT, ONCE, networks, "check the links between their switches"},
    {"uplinks-narrow", TOPO_NOTE, ONCE, uplinks_narrow,
     "look for a switch above or cables that are gone, unless the network is built so"},
    {"pci-below-rating", TOPO_NOTE, ONCE, pci_look, "use a slot with all lanes, or reseat the card"},
    {"input-odd", TOPO_NOTE, NOTES, input_odd, "read the machine anew, or with another tool"},
    {"probe-failed", TOPO_NOTE, ONCE, probe_failed, ""},
    {"network-mixed", TOPO_INFO, GPU_HOSTS, networks_mixed, ""},
    {"nic-numa", TOPO_INFO, GPU_HOSTS, nic_numa, ""},
    {"nic-virtual", TOPO_INFO, NOTES, nic_virtual, ""},
};

topo_findings topo_diagnose(const bny_topo *topo, const bny_topo_levels *levels, const bny_topo_probe_report *reports) {
  checker c = {.topo = topo,
               .levels = levels,
               .hosts = bny_topo_level_of(levels, BNY_TOPO_LEVEL_HOST),
               .reports = reports,
               .values = tool_new((size_t)topo->nnodes + (size_t)topo->nlinks, sizeof *c.values),
               .served = tool_new((size_t)topo->nnodes, sizeof *c.served)};
  const int32_t hosts = c.hosts->ngroups;
  const bool gpus = levels->rank_kind == BNY_TOPO_GPU;
  const int32_t counts[SCOPES] = {1,     topo->nnotes,        topo->nnodes,          levels->nranks,
                                  hosts, gpus * topo->nnodes, gpus * levels->nranks, gpus * hosts};
  int32_t known = 0;
  for (int32_t r = levels->nranks - 1; r >= 0; r--) {
    if (levels->ranks[r].nic >= 0) c.served[levels->ranks[r].nic] = &levels->ranks[r];
    if (levels->ranks[r].nic_gbytes_per_s > 0) c.values[known++] = levels->ranks[r].nic_gbytes_per_s;
  }
  c.speed_usual = usual(c.values, known);
  c.speeds_known = 2 * known > levels->nranks;
  c.gpus_usual = usual_of(&c, devices_of);
  c.nics_usual = usual_of(&c, nics_serving);
  for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
    c.rule = &rules[i];
    for (c.at = 0; c.at < counts[rules[i].scope]; c.at++) {
      c.host = &c.hosts->groups[c.at < hosts ? c.at : 0];
      c.rank = &levels->ranks[c.at < levels->nranks ? c.at : 0];
      rules[i].look(&c);
    }
    rule_end(&c);
    c.first = c.found.count;
  }
  return c.found;
}

const char *topo_severity_name(topo_severity severity) {
  static const char *const names[] = {"info", "note", "fault"};
  return (unsigned)severity <= TOPO_FAULT ? names[severity] : "?";
}
