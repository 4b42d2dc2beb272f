/* SPDX-License-Identifier: Apache-2.0
 * Imports the output of `ibnetdiscover`: the switches of an InfiniBand fabric and the channel adapters of its hosts.
 * The output has one block per node. Its first line has kind, number of ports, id and description; one line per used
 * port follows:
 *
 *     Switch  41 "S-0123456789abcdef"     # "leaf01" enhanced port 0 lid 5 lmc 0
 *     [1]     "H-0123456789abcd00"[1](123456789abcd00)    # "host01 mlx5_0" lid 9 4xNDR
 *     Ca      1 "H-0123456789abcd00"      # "host01 mlx5_0"
 *     [1](123456789abcd00)    "S-0123456789abcdef"[1]     # lid 9 lmc 0 "leaf01" lid 5 4xNDR
 *
 * If an adapter's description has two words, they are host and device. Otherwise the adapter gets its own host.
 * Aggregation nodes inside switches are skipped. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/import/import.h"
#include "tools/topo/import/text.h"

enum { NODES_MAX = 300000, CABLES_MAX = 1000000, PORTS_MAX = 255, LOST_PART = 8 };

typedef struct entry { /* a node */
  const char *id, *description;
  const char *host, *name; /* adapters: of the host, and of the device in it; "" if it has none */
  bool is_switch, left_out;
  int line;
  int32_t group; /* adapters: number of the host */
  int32_t node;  /* in the model */
} entry;

typedef struct cable { /* one port line; ends[0] is the port at its start */
  struct {
    int32_t entry, port;
  } ends[2];
  const char *peer;
  double gbytes_per_s, faster_gbytes_per_s; /* slower and faster speed that its ends list */
  int line;
  int lister; /* the only end that lists it; -1: both */
} cable;

typedef struct fabric {
  bny_topo_lines lines, words; /* two copies of the text; the second is cut at the blanks of descriptions */
  entry *entries;
  cable *cables;
  int32_t nentries, ncables, entries_capacity, cables_capacity;
  cable *lost; /* cables to a node without a block */
  int32_t nlost, lost_capacity;
  bny_topo_names by_id, by_host; /* entries; adapters by host, then by host and device */
  int loop;                      /* line of a cable between two ports of one node; 0: none */
} fabric;

static void fabric_free(fabric *fab) {
  free(fab->lines.copy);
  free(fab->words.copy);
  free(fab->entries);
  free(fab->cables);
  free(fab->lost);
  bny_topo_names_free(&fab->by_id);
  bny_topo_names_free(&fab->by_host);
}

/* Parses "4xNDR" as lanes times the data rate of each lane in Gb/s. Returns 0 if the word is not such a rate. */
static double speed_of(char *word) {
  static const struct {
    const char *name;
    double lane_gbits_per_s;
  } rates[] = {{"SDR", 2},  {"DDR", 4},  {"QDR", 8},   {"FDR10", 10}, {"FDR", 13.64},
               {"EDR", 25}, {"HDR", 50}, {"NDR", 100}, {"XDR", 200}};
  const char *number = strsep(&word, "x");
  int32_t lanes = 0;
  if (word == NULL || !bny_topo_number(number, 12, &lanes)) return 0;
  for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++)
    if (strcmp(word, rates[i].name) == 0) return lanes * rates[i].lane_gbits_per_s / 8;
  return 0;
}

/* Removes "[12]" from the start of *rest. */
static bool port_take(char **rest, int32_t *port) {
  char *close = **rest == '[' ? strchr(*rest, ']') : NULL;
  if (close == NULL) return false;
  *close = '\0';
  bool good = bny_topo_number(*rest + 1, PORTS_MAX, port);
  *rest = close + 1;
  return good;
}

/* Returns the rest of a line that begins a node; NULL for other lines. */
static char *starts_node(char *line, bool *is_switch) {
  char kind[8];
  int used = 0;
  if (sscanf(line, "%7s %*[0-9]%n", kind, &used) != 1 || used == 0 || strchr(" \t", line[used]) == NULL) return NULL;
  *is_switch = strcmp(kind, "Switch") == 0 || strcmp(kind, "Rt") == 0;
  return *is_switch || strcmp(kind, "Ca") == 0 ? line + used : NULL;
}

static bool recognises(const char *text, size_t bytes) {
  enum { LINES = 1000, LOOKED_AT = 1 << 20 };
  bny_topo_lines lines = bny_topo_lines_of(text, bytes < LOOKED_AT ? bytes : LOOKED_AT);
  bool found = false, is_switch;
  for (char *line; !found && lines.line < LINES && (line = bny_topo_lines_next(&lines)) != NULL;) {
    char *rest = starts_node(line, &is_switch), *id = rest == NULL ? NULL : bny_topo_quoted(&rest);
    found = id != NULL && id[0] != '\0' && id[1] == '-' && id[2] != '\0';
  }
  free(lines.copy);
  return found;
}

/* Returns whether this is an aggregation node inside a switch. It may have no block of its own. */
static bool aggregates(const char *description) {
  return description != NULL && strstr(description, "Aggregation Node") != NULL;
}

/* A description of two words has those of host and device. */
static void adapter_name(const fabric *fab, entry *node) {
  char *words = fab->words.copy + (node->description - fab->lines.copy);
  words[strlen(node->description)] = '\0';
  const char *host = bny_topo_word(&words), *name = bny_topo_word(&words);
  bool two = name != NULL && bny_topo_word(&words) == NULL;
  node->host = two ? host : node->id;
  node->name = two ? name : "";
}

static bool node_read(fabric *fab, char *line, bool is_switch, bny_topo_error *error) {
  int at = fab->lines.line;
  entry node = {.is_switch = is_switch, .line = at, .node = -1, .group = -1, .id = bny_topo_quoted(&line)};
  if (node.id == NULL || strlen(node.id) < 3 || strlen(node.id) > 64)
    return bny_topo_fail(error, at, "a node without an id in quotes, such as \"S-0123456789abcdef\"");
  node.description = bny_topo_quoted(&line);
  if (node.description == NULL) node.description = node.id;
  if (strlen(node.description) > 256)
    return bny_topo_fail(error, at, "a description of %zu bytes", strlen(node.description));
  node.left_out = !is_switch && aggregates(node.description);
  adapter_name(fab, &node);
  if (fab->nentries == NODES_MAX) return bny_topo_fail(error, at, "more than %d nodes", NODES_MAX);
  if (!bny_topo_grow(&fab->entries, fab->nentries, &fab->entries_capacity, sizeof *fab->entries)) return false;
  bny_topo_names_add(&fab->by_id, 0, node.id, fab->nentries);
  fab->entries[fab->nentries++] = node;
  return true;
}

static bool cable_read(fabric *fab, char *line, bny_topo_error *error) {
  int at = fab->lines.line;
  cable one = {.ends = {{.entry = fab->nentries - 1}, {.entry = -1}}, .line = at};
  if (one.ends[0].entry < 0) return bny_topo_fail(error, at, "a port before any node");
  if (!port_take(&line, &one.ends[0].port))
    return bny_topo_fail(error, at, "a port's number must be 0 to %d in brackets", PORTS_MAX);
  one.peer = bny_topo_quoted(&line);
  if (one.peer == NULL || !port_take(&line, &one.ends[1].port))
    return bny_topo_fail(error, at, "port %d is not followed by \"PEER\"[PORT]: is the file cut off?",
                         one.ends[0].port);
  if (aggregates(bny_topo_quoted(&line))) return true;
  for (char *word; (word = bny_topo_word(&line)) != NULL;) {
    double speed = speed_of(word);
    one.gbytes_per_s = speed > 0 ? speed : one.gbytes_per_s;
  }
  one.faster_gbytes_per_s = one.gbytes_per_s;
  if (fab->ncables == CABLES_MAX) return bny_topo_fail(error, at, "more than %d lines of ports", CABLES_MAX);
  if (!bny_topo_grow(&fab->cables, fab->ncables, &fab->cables_capacity, sizeof *fab->cables)) return false;
  fab->cables[fab->ncables++] = one;
  return true;
}

static bool lines_read(fabric *fab, const char *text, size_t bytes, bny_topo_error *error) {
  fab->lines = bny_topo_lines_of(text, bytes);
  fab->words = bny_topo_lines_of(text, bytes);
  if (fab->lines.copy == NULL || fab->words.copy == NULL) return false;
  for (char *line; (line = bny_topo_lines_next(&fab->lines)) != NULL;) {
    bool is_switch;
    char *rest = starts_node(line, &is_switch);
    if (rest != NULL ? !node_read(fab, rest, is_switch, error) : *line == '[' && !cable_read(fab, line, error))
      return false;
  }
  if (fab->nentries == 0) return bny_topo_fail(error, 0, "no node in it");
  return true;
}

/* Resolves the ids that cables name. */
static bool cables_resolve(fabric *fab, bny_topo_error *error) {
  const bny_topo_name *twice = bny_topo_names_sort(&fab->by_id);
  if (fab->by_id.out_of_memory) return false;
  if (twice != NULL)
    return bny_topo_fail(error, fab->entries[twice->value].line, "node \"%.48s\" appears again: also on line %d",
                         twice->key, fab->entries[twice[-1].value].line);
  for (int32_t i = 0; i < fab->ncables; i++) {
    cable *one = &fab->cables[i];
    one->ends[1].entry = bny_topo_names_find(&fab->by_id, 0, one->peer);
    if (one->ends[1].entry >= 0) continue;
    if (fab->nlost == fab->ncables / LOST_PART)
      return bny_topo_fail(error, one->line, "a link to \"%.48s\", which the file does not list: is it cut off?",
                           one->peer);
    if (!bny_topo_grow(&fab->lost, fab->nlost, &fab->lost_capacity, sizeof *fab->lost)) return false;
    fab->lost[fab->nlost++] = *one;
  }
  return true;
}

static bool is_adapter(const entry *node) { return !node->is_switch && !node->left_out; }

/* Numbers hosts, and sorts the adapters of each by name. */
static bool hosts_group(fabric *fab) {
  bny_topo_names hosts = {0};
  for (int32_t i = 0; i < fab->nentries; i++)
    if (is_adapter(&fab->entries[i])) bny_topo_names_add(&hosts, 0, fab->entries[i].host, i);
  bny_topo_names_sort(&hosts);
  for (int32_t i = 0, group = -1; i < hosts.count; i++) {
    entry *node = &fab->entries[hosts.entries[i].value];
    group += i == 0 || strcmp(hosts.entries[i].key, hosts.entries[i - 1].key) != 0;
    node->group = group;
    bny_topo_names_add(&fab->by_host, group, node->name, hosts.entries[i].value);
  }
  bny_topo_names_sort(&fab->by_host);
  bool good = !hosts.out_of_memory && !fab->by_host.out_of_memory;
  bny_topo_names_free(&hosts);
  return good;
}

static int32_t node_add(bny_topo *topo, bny_topo_kind kind, int32_t parent, const char *name) {
  bny_topo_node made = bny_topo_node_of(kind, parent, -1, name, BNY_TOPO_FILE);
  return bny_topo_add_node(topo, &made);
}

static const char *guid_of(const entry *node) { return node->id + 2; } /* "S-0123": the part after the dash */

/* Adds switches first, then every host with its adapters, in the order of the file. A switch keeps its GUID, by which
 * ranks with different files know that it is the same one. */
static bool nodes_add(fabric *fab, bny_topo *topo) {
  const bny_topo_names *adapters = &fab->by_host;
  int32_t *hosts = malloc(((size_t)adapters->count + 1) * sizeof *hosts); /* by group */
  if (!hosts) return false;
  for (int32_t i = 0; i < fab->nentries; i++) {
    entry *node = &fab->entries[i];
    if (!node->is_switch) continue;
    node->node = node_add(topo, BNY_TOPO_SWITCH, -1, node->description);
    if (node->node >= 0) bny_topo_set_string(topo, &topo->nodes[node->node].guid, guid_of(node));
  }
  for (int32_t i = 0; i < adapters->count; i++) hosts[i] = -1;
  for (int32_t i = 0; i < fab->nentries; i++) {
    const entry *node = &fab->entries[i];
    if (node->group >= 0 && hosts[node->group] < 0) hosts[node->group] = node_add(topo, BNY_TOPO_HOST, -1, node->host);
  }
  /* Devices of a host with the same name are adjacent, and get their GUIDs as names. */
  for (int32_t i = 0; i < adapters->count; i++) {
    const bny_topo_name *own = &adapters->entries[i];
    entry *node = &fab->entries[own->value];
    bool named = *node->name != '\0';
    for (int32_t other = i - 1; other <= i + 1; other += 2)
      if (other >= 0 && other < adapters->count && own[other - i].scope == own->scope)
        named = named && strcmp(own[other - i].key, own->key) != 0;
    node->node = node_add(topo, BNY_TOPO_NIC, hosts[node->group], named ? node->name : guid_of(node));
  }
  free(hosts);
  return !topo->out_of_memory;
}

static int cable_order(const void *a, const void *b) {
  int32_t keys[2][5];
  for (int i = 0; i < 2; i++) {
    const cable *one = i ? b : a;
    memcpy(keys[i],
           (int32_t[]){one->ends[0].entry, one->ends[1].entry, one->ends[0].port, one->ends[1].port, one->line},
           sizeof keys[i]);
  }
  return bny_topo_order(keys[0], keys[1], 5);
}

/* Keeps one of the two listings of each cable, lower end first, sorted by ends. Drops cables unless both ends are
 * different nodes of the model. */
static void cables_unite(fabric *fab) {
  int32_t kept = 0;
  for (int32_t i = 0; i < fab->ncables; i++) {
    cable one = fab->cables[i];
    if (one.ends[1].entry < 0) continue;
    if (one.ends[0].entry > one.ends[1].entry) {
      one.ends[0] = fab->cables[i].ends[1];
      one.ends[1] = fab->cables[i].ends[0];
      one.lister = 1;
    }
    bool loop = one.ends[0].entry == one.ends[1].entry;
    if (loop && fab->loop == 0) fab->loop = one.line;
    if (!loop && !fab->entries[one.ends[0].entry].left_out && !fab->entries[one.ends[1].entry].left_out)
      fab->cables[kept++] = one;
  }
  if (kept > 0) qsort(fab->cables, (size_t)kept, sizeof *fab->cables, cable_order);
  fab->ncables = 0;
  for (int32_t i = 0; i < kept; i++) {
    const cable *one = &fab->cables[i];
    cable *last = fab->ncables ? &fab->cables[fab->ncables - 1] : NULL;
    bool again = last && last->ends[0].entry == one->ends[0].entry && last->ends[0].port == one->ends[0].port &&
                 last->ends[1].entry == one->ends[1].entry && last->ends[1].port == one->ends[1].port;
    if (!again) {
      fab->cables[fab->ncables++] = *one;
      continue;
    }
    if (one->lister != last->lister) last->lister = -1;
    if (one->gbytes_per_s < last->gbytes_per_s) last->gbytes_per_s = one->gbytes_per_s;
    if (one->faster_gbytes_per_s > last->faster_gbytes_per_s) last->faster_gbytes_per_s = one->faster_gbytes_per_s;
  }
}

typedef struct socket_use {
  int32_t entry, port, line;
} socket_use;

static int use_order(const void *a, const void *b) { return bny_topo_order(a, b, 3); }

static bool ports_check(const fabric *fab, bny_topo_error *error) {
  size_t count = 2 * (size_t)fab->ncables;
  socket_use *uses = malloc((count + 1) * sizeof *uses);
  if (!uses) return false;
  for (size_t i = 0; i < count; i++) {
    const cable *one = &fab->cables[i / 2];
    uses[i] = (socket_use){one->ends[i % 2].entry, one->ends[i % 2].port, one->line};
  }
  qsort(uses, count, sizeof *uses, use_order);
  bool good = true;
  for (size_t i = 1; i < count && good; i++) {
    if (uses[i].entry == uses[i - 1].entry && uses[i].port == uses[i - 1].port)
      good = bny_topo_fail(error, uses[i].line, "port %d of \"%.48s\" is joined to another port on line %d",
                           uses[i].port, fab->entries[uses[i].entry].id, uses[i - 1].line);
  }
  free(uses);
  return good;
}

static int32_t port_add(bny_topo *topo, const entry *adapter, int32_t number) {
  char name[12];
  snprintf(name, sizeof name, "%d", number);
  int32_t port = node_add(topo, BNY_TOPO_PORT, adapter->node, name);
  if (port >= 0) topo->nodes[port].index = number;
  return port;
}

/* Links between the same two switches become one link with a count. Each adapter port has its own link. */
static bool links_add(const fabric *fab, bny_topo *topo) {
  for (int32_t i = 0; i < fab->ncables; i++) {
    const cable *one = &fab->cables[i], *before = i ? &fab->cables[i - 1] : NULL;
    bool trunk = fab->entries[one->ends[0].entry].is_switch && fab->entries[one->ends[1].entry].is_switch;
    if (trunk && before && before->ends[0].entry == one->ends[0].entry && before->ends[1].entry == one->ends[1].entry) {
      topo->links[topo->nlinks - 1].count++;
      topo->links[topo->nlinks - 1].gbytes_per_s += one->gbytes_per_s;
      continue;
    }
    int32_t nodes[2];
    for (int end = 0; end < 2; end++) {
      const entry *node = &fab->entries[one->ends[end].entry];
      nodes[end] = node->is_switch ? node->node : port_add(topo, node, one->ends[end].port);
    }
    if (topo->out_of_memory ||
        bny_topo_join(topo, BNY_TOPO_LINK_NET, nodes[0], nodes[1], 1, one->gbytes_per_s, BNY_TOPO_FILE) < 0)
      return false;
  }
  return true;
}

/* Notes cables that only one end lists. If that holds for half of the cables, the file has a different form, and none
 * is noted. */
static bool notes_add(const fabric *fab, bny_topo *topo) {
  int32_t one_sided = 0;
  char text[256];
  for (int32_t i = 0; i < fab->ncables; i++) one_sided += fab->cables[i].lister >= 0;
  for (int32_t i = 0; i < fab->ncables && 2 * one_sided < fab->ncables; i++) {
    const cable *one = &fab->cables[i];
    if (one->lister < 0) continue;
    const entry *silent = &fab->entries[one->ends[!one->lister].entry];
    snprintf(text, sizeof text, "port %d has no line for the cable that port %d of %.48s lists",
             one->ends[!one->lister].port, one->ends[one->lister].port,
             fab->entries[one->ends[one->lister].entry].description);
    bny_topo_add_sign(topo, BNY_TOPO_NOTE_ONE_SIDED, silent->node, text);
  }
  for (int32_t i = 0; i < fab->ncables; i++) {
    const cable *one = &fab->cables[i];
    if (one->faster_gbytes_per_s <= one->gbytes_per_s) continue;
    snprintf(text, sizeof text,
             "its cable from port %d to port %d of %.48s has %.4g GB/s at one end and %.4g at the other",
             one->ends[0].port, one->ends[1].port, fab->entries[one->ends[1].entry].description, one->gbytes_per_s,
             one->faster_gbytes_per_s);
    bny_topo_add_sign(topo, BNY_TOPO_NOTE_DIFFERS, fab->entries[one->ends[0].entry].node, text);
  }
  for (int32_t i = 0; i < fab->nlost; i++) {
    const cable *one = &fab->lost[i];
    const entry *lister = &fab->entries[one->ends[0].entry];
    snprintf(text, sizeof text, "port %d is cabled to %.48s, which has no block", one->ends[0].port, one->peer);
    if (!lister->left_out) bny_topo_add_sign(topo, BNY_TOPO_NOTE_ONE_SIDED, lister->node, text);
  }
  if (fab->loop > 0)
    bny_topo_add_note(topo, -1, "cables between two ports of one node are left out: line %d is the first", fab->loop);
  return !topo->out_of_memory;
}

static bool parse(const char *text, size_t bytes, bny_topo *topo, bny_topo_error *error) {
  fabric fab = {0};
  bool good = lines_read(&fab, text, bytes, error) && cables_resolve(&fab, error) && hosts_group(&fab);
  if (good) {
    cables_unite(&fab);
    good = ports_check(&fab, error) && nodes_add(&fab, topo) && links_add(&fab, topo) && notes_add(&fab, topo);
  }
  fabric_free(&fab);
  return good;
}

const bny_topo_importer bny_topo_import_ibnet = {.name = "ibnetdiscover", .recognises = recognises, .parse = parse};
