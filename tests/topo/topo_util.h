/* SPDX-License-Identifier: Apache-2.0
 * Helpers of the topology tests, for dumps of real machines, which are not in this tree, and for handmade models. */
#pragma once

#include <glob.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tools/topo/health.h"
#include "tools/topo/import/import.h"
#include "topo/levels/levels.h"
#include "topo/model/model.h"
#include "tests/support/generator.h"
#include "tests/topo/kept.h"

/* ---- objects freed after a test ---------------------------------------------------------------------------------- */

static inline void drop_topo(void *topo) { bny_topo_free(topo); }

static inline void drop_levels(void *levels) { bny_topo_levels_free(levels); }

static inline bny_topo *topo_new(void) { return keep(bny_topo_new(), drop_topo); }

static inline bny_topo *topo_import(const char *text, size_t bytes, const char **importer, bny_topo_error *error) {
  return keep(bny_topo_import(text, bytes, importer, error), drop_topo);
}

static inline bny_topo *topo_load(const char *path, const char **importer, bny_topo_error *error) {
  return keep(bny_topo_load(path, importer, error), drop_topo);
}

static inline bny_topo_levels *topo_derive(const bny_topo *topo) {
  bny_topo_levels *levels = keep(bny_topo_derive(topo), drop_levels);
  ck_assert_ptr_nonnull(levels);
  return levels;
}

static inline char *topo_text(char *text) { return keep(text, free); }

/* Returns the text of an exporter, which must not fail. */
static inline char *exported(char *(*write)(const bny_topo *topo, bny_topo_error *error), const bny_topo *topo) {
  bny_topo_error error = {0};
  char *text = topo_text(write(topo, &error));
  ck_assert_msg(text != NULL, "%s", error.text);
  return text;
}

/* ---- files and descriptions -------------------------------------------------------------------------------------- */

/* Returns the model of a text, which must be accepted. */
static inline bny_topo *load(const char *text) {
  bny_topo_error error = {0};
  bny_topo *topo = topo_import(text, strlen(text), NULL, &error);
  ck_assert_msg(topo != NULL, "%.4000s: line %d: %s", text, error.line, error.text);
  return topo;
}

/* Checks that importers reject a text at this line (-1: any), with a reason that contains `part`. */
static inline void ck_rejected(const char *text, size_t bytes, int line, const char *part) {
  bny_topo_error error = {.line = -1, .text = ""};
  bny_topo *topo = topo_import(text, bytes, NULL, &error);
  ck_assert_msg(topo == NULL && (line < 0 || error.line == line) && strstr(error.text, part) != NULL,
                "%.4000s\nwanted line %d \"%s\", got line %d \"%s\"", text, line, part, error.line, error.text);
}

/* Returns `head`, then `unit` repeated, then `tail`. */
static inline char *repeated(const char *head, const char *unit, size_t units, const char *tail) {
  size_t step = strlen(unit), at = strlen(head);
  char *text = topo_text(malloc(at + units * step + strlen(tail) + 1));
  memcpy(text, head, at);
  for (; units > 0; units--, at += step) memcpy(text + at, unit, step);
  strcpy(text + at, tail);
  return text;
}

/* Checks that a large hostile text is rejected for this reason, in bounded memory. */
static inline void ck_hostile(const char *text, const char *why) {
  struct rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  ck_rejected(text, strlen(text), -1, why);
  getrusage(RUSAGE_SELF, &after);
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
  long grown_kb = after.ru_maxrss - before.ru_maxrss;
  ck_assert_msg(grown_kb < 512 << 10, "grew by %ld KiB", grown_kb);
#endif
}

enum { HOSTILE_BYTES = 60 << 20 };

/* Returns the model of a file, which must be accepted. */
static inline bny_topo *load_file(const char *path) {
  bny_topo_error error = {0};
  bny_topo *topo = topo_load(path, NULL, &error);
  ck_assert_msg(topo != NULL, "%s", error.text);
  return topo;
}

static const char *const own_topologies[]
    __attribute__((unused)) = {"cpu-only.txt",      "dgx-h100.txt",        "fabric-two-rails.txt", "gb200-nvl72.txt",
                               "hgx-a100-4nic.txt", "hgx-h100-faults.xml", "mi300x.txt",           "one-gpu.txt",
                               "pcie-8gpu.xml",     "spine-leaf.txt",      "two-islands.txt"};
enum { OWN_TOPOLOGIES = sizeof own_topologies / sizeof own_topologies[0] };

/* Returns the path of tests/topologies/NAME, or of the file next to it with another suffix, such as ".text". */
static inline void own_path(const char *name, const char *end, char path[4096]) {
  const char *source = getenv("top_srcdir");
  size_t stem = *end ? (size_t)(strrchr(name, '.') - name) : strlen(name);
  snprintf(path, 4096, "%s/tests/topologies/%.*s%s", source ? source : ".", (int)stem, name, end);
}

/* Returns NULL for XML if this build cannot read it. */
static inline bny_topo *load_own(const char *name) {
  char path[4096];
  bny_topo_error error = {0};
  own_path(name, "", path);
  bny_topo *topo = topo_load(path, NULL, &error);
  ck_assert_msg(topo != NULL || strstr(error.text, "without libxml2") != NULL, "%s", error.text);
  return topo;
}

/* Writes DIR/name of the dumps to path[4096]. DIR is BANYAN_TOPOLOGIES, or a folder next to the tree. Returns false if
 * there are no dumps. */
static inline bool dump_path(const char *name, char path[4096]) {
  const char *own = getenv("BANYAN_TOPOLOGIES"), *source = getenv("top_srcdir");
  if (own != NULL)
    snprintf(path, 4096, "%s/%s", own, name);
  else
    snprintf(path, 4096, "%s/../shared/topologies/%s", source == NULL ? "." : source, name);
  FILE *there = fopen(path, "r");
  if (there != NULL) fclose(there);
  return there != NULL;
}

/* Returns the content of a file with a final NUL; NULL if it cannot be read. */
static inline char *read_text(const char *path, size_t *bytes) {
  FILE *file = fopen(path, "r");
  if (file == NULL) return NULL;
  char *text = malloc((size_t)1 << 20);
  *bytes = text == NULL ? 0 : fread(text, 1, ((size_t)1 << 20) - 1, file);
  fclose(file);
  if (text != NULL) text[*bytes] = '\0';
  return topo_text(text);
}

/* Calls visit(path, name) for each file that matches a glob() pattern. Returns the number of files. */
static inline int each_file(const char *pattern, void (*visit)(const char *path, const char *name)) {
  glob_t found = {0};
  int visited = 0;
  if (glob(pattern, 0, NULL, &found) != 0) return 0;
  for (size_t i = 0; i < found.gl_pathc; i++) {
    struct stat about;
    if (stat(found.gl_pathv[i], &about) != 0 || !S_ISREG(about.st_mode)) continue;
    visit(found.gl_pathv[i], strrchr(found.gl_pathv[i], '/') + 1);
    visited++;
  }
  globfree(&found);
  return visited;
}

/* The same for each file of a folder of dumps whose name ends in `end`. */
static inline int each_dump(const char *folder, const char *end, void (*visit)(const char *path, const char *name)) {
  char path[4096], pattern[4200];
  if (!dump_path(folder, path)) return 0;
  snprintf(pattern, sizeof pattern, "%s/*%s", path, end);
  return each_file(pattern, visit);
}

/* The same for the files of a folder below tests/, which must not be empty. */
static inline void each_own(const char *folder, void (*visit)(const char *path, const char *name)) {
  const char *source = getenv("top_srcdir");
  char pattern[4096];
  snprintf(pattern, sizeof pattern, "%s/tests/%s/*", source == NULL ? "." : source, folder);
  ck_assert_msg(each_file(pattern, visit) > 0, "nothing is in %s", pattern);
}

/* Returns a text such as "GPU3". It stays valid for the next three calls. */
static inline const char *numbered(const char *stem, int number) {
  static char texts[4][24];
  static int next;
  char *text = texts[next++ % 4];
  snprintf(text, sizeof texts[0], "%.10s%d", stem, number);
  return text;
}

static inline int32_t named(const bny_topo *topo, bny_topo_kind kind, const char *name) {
  int32_t node = bny_topo_find_name(topo, kind, name);
  ck_assert_msg(node >= 0, "there is no %s %s", bny_topo_kind_name(kind), name);
  return node;
}

static inline bool has_finding(const topo_findings *found, topo_severity severity, const char *part) {
  for (int32_t i = 0; i < found->count; i++)
    if (found->list[i].severity == severity && strstr(found->list[i].text, part)) return true;
  return false;
}

/* ---- facts ------------------------------------------------------------------------------------------------------- */

/* Returns the node with a name, a "kind/name", a bus id, or "mlx5_0:1", a port of a NIC; -1 if there is none. */
static inline int32_t node_of(const bny_topo *topo, const char *name) {
  static const bny_topo_kind order[] = {BNY_TOPO_GPU,    BNY_TOPO_NIC,  BNY_TOPO_NUMA, BNY_TOPO_PACKAGE,
                                        BNY_TOPO_SWITCH, BNY_TOPO_PORT, BNY_TOPO_PCI,  BNY_TOPO_HOST};
  const char *slash = strchr(name, '/');
  char kind[16];
  snprintf(kind, sizeof kind, "%.*s", slash ? (int)(slash - name) : 0, name);
  if (slash) return bny_topo_find_name(topo, bny_topo_kind_parse(kind), slash + 1);
  const char *port = strchr(name, ':');
  int32_t node = bny_topo_find_bus(topo, name);
  for (int32_t n = 0; node < 0 && port != NULL && n < topo->nnodes; n++) {
    const bny_topo_node *one = &topo->nodes[n];
    const char *nic = one->kind == BNY_TOPO_PORT ? topo->nodes[one->parent].name : "";
    if (strlen(nic) == (size_t)(port - name) && strncmp(nic, name, strlen(nic)) == 0 && one->index == atoi(port + 1))
      node = n;
  }
  for (int k = 0; node < 0 && k < (int)(sizeof order / sizeof order[0]); k++)
    node = bny_topo_find_name(topo, order[k], name);
  return node;
}

static inline int32_t links_of_kind(const bny_topo *topo, bny_topo_link_kind kind) {
  int32_t count = 0;
  for (int32_t l = 0; l < topo->nlinks; l++) count += topo->links[l].kind == kind;
  return count;
}

/* Counts nodes or links of a kind, groups of a level, ranks, notes or faults. */
static inline int32_t count_of(const bny_topo *topo, const bny_topo_levels *levels, const topo_findings *found,
                               const char *what) {
  if (strcmp(what, "ranks") == 0) return levels->nranks;
  if (strcmp(what, "notes") == 0) return topo->nnotes;
  if (strcmp(what, "links") == 0) return topo->nlinks;
  int32_t faults = 0;
  for (int32_t f = 0; f < found->count; f++) faults += found->list[f].severity == TOPO_FAULT;
  if (strcmp(what, "faults") == 0) return faults;
  if (bny_topo_kind_parse(what) < BNY_TOPO_KINDS) return bny_topo_count(topo, bny_topo_kind_parse(what));
  if (bny_topo_link_parse(what) < BNY_TOPO_LINK_KINDS) return links_of_kind(topo, bny_topo_link_parse(what));
  for (int32_t l = 0; l < levels->nlevels; l++)
    if (strcmp(bny_topo_level_name(levels->levels[l].kind), what) == 0) return levels->levels[l].ngroups;
  return 0;
}

/* Writes sums over a node's links of one kind: how many, their counts, speeds and ratings, and how many are dead. */
static inline void write_sums(const bny_topo *topo, int32_t node, bny_topo_link_kind kind, char is[128]) {
  int32_t links = 0, count = 0, dead = 0;
  double speed = 0, rated = 0;
  for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) {
    const bny_topo_link *link = &topo->links[l];
    if (link->kind != kind) continue;
    links++;
    count += link->count;
    dead += link->gbytes_per_s <= 0 && link->rated_gbytes_per_s > 0;
    speed += link->gbytes_per_s;
    rated += link->rated_gbytes_per_s;
  }
  snprintf(is, 128, "%d/%d/%.6g/%.6g/%d", links, count, speed, rated, dead);
}

/* Writes a fact about a node, or about the first group of a level, to `is`. */
static inline void write_quality(const bny_topo *topo, const bny_topo_levels *levels, const char *name,
                                 const char *quality, char is[128]) {
  const bny_topo_node *node = node_of(topo, name) < 0 ? NULL : &topo->nodes[node_of(topo, name)];
  const bny_topo_rank *rank = NULL;
  int32_t other = -1;
  for (int32_t r = 0; node && r < levels->nranks; r++)
    rank = &topo->nodes[levels->ranks[r].node] == node ? &levels->ranks[r] : rank;
  for (int32_t l = 0; l < levels->nlevels; l++) {
    const bny_topo_group *group = levels->levels[l].groups;
    if (strcmp(bny_topo_level_name(levels->levels[l].kind), name) != 0) continue;
    if (strcmp(quality, "speed") == 0) snprintf(is, 128, "%.6g", group->gbytes_per_s);
    if (strcmp(quality, "source") == 0) snprintf(is, 128, "%s", bny_topo_source_name(group->source));
    if (strcmp(quality, "shape") == 0)
      snprintf(is, 128, "%s,%s", group->all_to_all ? "all" : "partial", group->uniform ? "even" : "uneven");
  }
  if (!node) return;
  if (strcmp(quality, "number") == 0) snprintf(is, 128, "%d", node->index);
  if (strcmp(quality, "compute") == 0) snprintf(is, 128, "%d", node->compute);
  if (strcmp(quality, "vendor") == 0) snprintf(is, 128, "%s", node->vendor ? node->vendor : "none");
  if (strcmp(quality, "bus") == 0) snprintf(is, 128, "%s", node->bus_id ? node->bus_id : "none");
  if (strcmp(quality, "guid") == 0) snprintf(is, 128, "%s", node->guid ? node->guid : "none");
  if (strcmp(quality, "model") == 0) snprintf(is, 128, "%s", node->model ? node->model : "none");
  if (strcmp(quality, "links") == 0 && rank) snprintf(is, 128, "%d", rank->nvlinks);
  if (strcmp(quality, "speed") == 0 && rank) snprintf(is, 128, "%.6g", rank->nic_gbytes_per_s);
  if (strcmp(quality, "rail") == 0 && rank) snprintf(is, 128, "%d", rank->rail);
  if (strcmp(quality, "kind") == 0) snprintf(is, 128, "%s", bny_topo_kind_name(node->kind));
  if (strcmp(quality, "source") == 0) snprintf(is, 128, "%s", bny_topo_source_name(node->source));
  if (strcmp(quality, "parent") == 0) other = node->parent;
  for (int k = 0; k < BNY_TOPO_LINK_KINDS; k++)
    if (strcmp(quality, bny_topo_link_name((bny_topo_link_kind)k)) == 0)
      write_sums(topo, node_of(topo, name), (bny_topo_link_kind)k, is);
  if (strcmp(quality, "device") == 0) other = bny_topo_device(topo, node_of(topo, name));
  if (strcmp(quality, "numa") == 0) other = bny_topo_ancestor(topo, node_of(topo, name), BNY_TOPO_NUMA);
  if (strcmp(quality, "package") == 0) other = bny_topo_ancestor(topo, node_of(topo, name), BNY_TOPO_PACKAGE);
  if (strcmp(quality, "nic") == 0 && rank) other = rank->nic;
  if (is[0] == '\0') snprintf(is, 128, "%s", other < 0 ? "none" : topo->nodes[other].name);
}

/* Writes all groups of a level, and once for groups in a row what they share: "NVL 371 GB/s file, all to all:
 * host0 0-3 | host1 4-7 / PHB 24 GB/s file, uneven: - 8 10". */
static inline void write_groups(const bny_topo *topo, const bny_topo_level *level, FILE *out) {
  char before[128] = "", what[128];
  for (int32_t g = 0; g < level->ngroups; g++) {
    const bny_topo_group *group = &level->groups[g];
    snprintf(what, sizeof what, "%s %.4g GB/s %s%s%s: ", bny_topo_path_name(group->path), group->gbytes_per_s,
             bny_topo_source_name(group->source), group->all_to_all ? ", all to all" : "",
             group->uniform ? "" : ", uneven");
    if (strcmp(what, before) != 0) fprintf(out, "%s%s", g > 0 ? " / " : "", what);
    fprintf(out, "%s%s", strcmp(what, before) == 0 ? " | " : "",
            group->node >= 0 ? topo->nodes[group->node].name : "-");
    for (int32_t i = 0; i < group->count;) {
      int32_t start = level->members[group->first + i], last = start;
      while (++i < group->count && level->members[group->first + i] == last + 1) last++;
      fprintf(out, start == last ? " %d" : " %d-%d", start, last);
    }
    strcpy(before, what);
  }
}

/* Writes the kind of ranks, and those of each host unless they are like those of the host before: NVLinks, and for a
 * NIC its name, path, ranks that share it, GB/s and rail: "gpu host0: GPU0 18 NIC0 PIX 1 50 0, GPU1 .. | host1". */
static inline void write_hosts(const bny_topo *topo, const bny_topo_levels *levels, FILE *out) {
  char before[8192] = "", ranks[8192];
  fprintf(out, "%s ", bny_topo_kind_name(levels->rank_kind));
  for (int32_t r = 0, first = 0; r < levels->nranks; first = r) {
    size_t used = 0;
    for (; r < levels->nranks && levels->ranks[r].host == levels->ranks[first].host; r++) {
      const bny_topo_rank *rank = &levels->ranks[r];
      used += (size_t)snprintf(ranks + used, sizeof ranks - used, "%s%s %d", r > first ? ", " : ": ",
                               topo->nodes[rank->node].name, rank->nvlinks);
      if (rank->nic >= 0)
        used +=
            (size_t)snprintf(ranks + used, sizeof ranks - used, " %s %s %d %.4g %d", topo->nodes[rank->nic].name,
                             bny_topo_path_name(rank->nic_path), rank->nic_shared, rank->nic_gbytes_per_s, rank->rail);
      ck_assert_uint_lt(used, sizeof ranks);
    }
    fprintf(out, "%s%s%s", first > 0 ? " | " : "", topo->nodes[levels->ranks[first].host].name,
            strcmp(ranks, before) == 0 ? "" : ranks);
    strcpy(before, ranks);
  }
}

/* Checks "hosts" or "LEVEL groups", whose right text is the rest of the fact. Returns false for other facts. */
static inline bool ck_whole(const bny_topo *topo, const bny_topo_levels *levels, const char *fact) {
  static const char groups_word[] = " groups ", hosts_word[] = "hosts ";
  const char *groups = strstr(fact, groups_word);
  bool hosts = strncmp(fact, hosts_word, strlen(hosts_word)) == 0;
  if (!groups && !hosts) return false;
  char *is = NULL;
  size_t bytes;
  FILE *out = open_memstream(&is, &bytes);
  if (hosts) write_hosts(topo, levels, out);
  for (int32_t l = 0; l < levels->nlevels && groups; l++)
    if (strncmp(fact, bny_topo_level_name(levels->levels[l].kind), (size_t)(groups - fact)) == 0)
      write_groups(topo, &levels->levels[l], out);
  fclose(out);
  topo_text(is);
  ck_assert_msg(strcmp(is, hosts ? fact + strlen(hosts_word) : groups + strlen(groups_word)) == 0, "\"%s\" is %s", fact,
                is);
  return true;
}

/* Checks facts such as these, with a semicolon between them:
 *   "3 gpu"                 counts of nodes, links or groups of a level; "4 ranks", "0 notes"
 *   "GPU0 mlx5_0 PIX"       the path
 *   "GPU0 GPU1 link 2x41.2" the latest link between two nodes: how many, and their GB/s together
 *   "GPU0 compute 90"       and number, vendor, model (all words), bus, guid, links, rail, device, parent, numa,
 *                           package, nic, kind, source
 *   "GPU0 nvlink 4/18/370.8/370.8/0"  sums over links: how many, counts, GB/s, rated GB/s, dead ones
 *   "island speed 370.8"    of the first group of a level, or of a rank's NIC, in GB/s; also its source, and its shape:
 *                           "all,even" if it is all to all and uniform, or partial, uneven
 *   "island groups TEXT"    all groups, see write_groups(); "hosts TEXT": all ranks, see write_hosts()
 *   "fault GPU1: no NVLink" a finding of this severity that holds the text; "no fault TEXT": none does */
static inline void ck_facts(const bny_topo *topo, const char *facts) {
  bny_topo_levels *levels = topo_derive(topo);
  const topo_findings found = topo_diagnose(topo, levels, NULL);
  char copy[4096], *rest = copy, *fact;
  ck_assert_int_lt(snprintf(copy, sizeof copy, "%s", facts), (int)sizeof copy);
  while ((fact = strsep(&rest, ";")) != NULL) {
    char w[4][64] = {"", "", "", ""}, is[128] = "";
    fact += strspn(fact, " ");
    if (ck_whole(topo, levels, fact)) continue;
    int words = sscanf(fact, "%63s %63s %63s %63s", w[0], w[1], w[2], w[3]);
    bool no = strcmp(w[0], "no") == 0;
    int severity = TOPO_INFO;
    while (severity <= TOPO_FAULT && strcmp(topo_severity_name((topo_severity)severity), w[no]) != 0) severity++;
    if (severity <= TOPO_FAULT) {
      const char *text = fact + (no ? 3 : 0) + strlen(w[no]);
      ck_assert_msg(has_finding(&found, (topo_severity)severity, text + (*text == ' ')) != no, "%s", fact);
      continue;
    }
    int32_t a = node_of(topo, w[0]), b = node_of(topo, w[1]);
    if (words == 2) {
      snprintf(is, sizeof is, "%d", count_of(topo, levels, &found, w[1]));
    } else if (a >= 0 && b >= 0 && strcmp(w[2], "link") == 0) {
      int32_t l = bny_topo_first_link(topo, a);
      while (l >= 0 && bny_topo_other_end(topo, a, l) != b) l = bny_topo_next_link(topo, a, l);
      if (l >= 0) snprintf(is, sizeof is, "%dx%.6g", topo->links[l].count, topo->links[l].gbytes_per_s);
    } else if (a >= 0 && b >= 0) {
      snprintf(is, sizeof is, "%s", bny_topo_path_name(bny_topo_path_between(topo, a, b)));
    } else {
      write_quality(topo, levels, w[0], w[1], is);
    }
    const char *model = strcmp(w[1], "model") == 0 ? strstr(fact, "model ") + strlen("model ") : NULL;
    ck_assert_msg(strcmp(is, model != NULL ? model
                             : words == 2  ? w[0]
                                           : w[words - 1]) == 0,
                  "\"%s\" is %s", fact, is[0] ? is : "not known");
  }
}

static inline int32_t put(bny_topo *topo, bny_topo_kind kind, int32_t parent, const char *name, const char *bus_id) {
  bny_topo_node node = {.kind = kind,
                        .parent = parent,
                        .index = -1,
                        .name = (char *)name,
                        .bus_id = (char *)bus_id,
                        .compute = -1,
                        .source = BNY_TOPO_ASSUMED};
  return bny_topo_add_node(topo, &node);
}

static inline int32_t join(bny_topo *topo, bny_topo_link_kind kind, int32_t from, int32_t to, double gbytes_per_s) {
  bny_topo_link link = {.kind = kind, .from = from, .to = to, .count = 1, .gbytes_per_s = gbytes_per_s};
  return bny_topo_add_link(topo, &link);
}

/* A model of one node for each word, "kind/name", inside the node of the word before; each dot goes up by one.
 * "bridge/r0" is a host bridge, and "gpu/GPU0=0000:10:00.0" has a bus id. */
static inline bny_topo *tree_of(const char *text) {
  bny_topo *topo = topo_new();
  int32_t at = -1;
  char copy[1024], *rest = copy, *word;
  snprintf(copy, sizeof copy, "%s", text);
  while ((word = strsep(&rest, " ")) != NULL) {
    for (; *word == '.'; word++) at = topo->nodes[at].parent;
    if (*word == '\0') continue;
    char *name = strchr(word, '/'), *bus = strchr(word, '=');
    *name++ = '\0';
    if (bus) *bus++ = '\0';
    bool bridge = strcmp(word, "bridge") == 0;
    at = put(topo, bridge ? BNY_TOPO_PCI : bny_topo_kind_parse(word), at, name, bus);
    topo->nodes[at].host_bridge = bridge;
  }
  return topo;
}

/* A random model with 2 to most_nodes nodes and fewer than most_links links, unlike any machine, with or without hosts.
 * Names repeat, except those of GPUs. No host is inside another host. */
static inline bny_topo *random_model(uint64_t seed, int32_t most_nodes, int32_t most_links) {
  uint64_t state = seed;
  bny_topo *topo = topo_new();
  int32_t nodes = 2 + (int32_t)(random_next(&state) % (uint64_t)(most_nodes - 1));
  int32_t links = (int32_t)(random_next(&state) % (uint64_t)most_links);
  for (int32_t n = 0; n < nodes; n++) {
    char name[32], bus_id[BNY_TOPO_BUS_BYTES];
    bny_topo_kind kind = (bny_topo_kind)(random_next(&state) % BNY_TOPO_KINDS);
    int32_t parent = (int32_t)(random_next(&state) % (uint64_t)(n + 1)) - 1;
    while (parent > 20) parent /= 4; /* keeps the tree shallow */
    bool host = parent >= 0 && bny_topo_ancestor(topo, parent, BNY_TOPO_HOST) >= 0;
    if (kind == BNY_TOPO_HOST && host) kind = BNY_TOPO_PCI;
    uint64_t number = kind == BNY_TOPO_GPU ? (uint64_t)n : random_next(&state) % 7;
    snprintf(name, sizeof name, "%s%d", random_next(&state) % 2 ? bny_topo_kind_name(kind) : "#", (int)number);
    snprintf(bus_id, sizeof bus_id, "0000:%02x:%02x.0", n / 32, n % 32);
    int32_t node = put(topo, kind, parent, name, random_next(&state) % 2 ? bus_id : NULL);
    topo->nodes[node].index = n % 3 - 1;
    topo->nodes[node].host_bridge = kind == BNY_TOPO_PCI && random_next(&state) % 2 == 0;
  }
  for (int32_t l = 0; l < links; l++) {
    uint64_t drawn = random_next(&state);
    bny_topo_link link = {.kind = (bny_topo_link_kind)(drawn % BNY_TOPO_LINK_KINDS),
                          .from = (int32_t)((drawn >> 8 & 0xffff) % (uint64_t)nodes),
                          .to = (int32_t)((drawn >> 24 & 0xffff) % (uint64_t)nodes),
                          .count = 1 + (int32_t)(drawn >> 40 & 3),
                          .gbytes_per_s = (double)(drawn >> 44 & 63) / 7,
                          .rated_gbytes_per_s = (double)(drawn >> 50 & 63),
                          .source = (bny_topo_source)(drawn >> 56 & 3)};
    bny_topo_add_link(topo, &link);
  }
  return topo;
}
