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
  bny_topo_span id, description;
  bool is_switch, left_out;
  int line;
  int32_t group; /* adapters: number of the host */
  int32_t node;  /* in the model */
} entry;

typedef struct cable { /* one port line; ends[0] is the port at its start */
  struct {
    int32_t entry, port;
  } ends[2];
  bny_topo_span peer;
  double gbytes_per_s, faster_gbytes_per_s; /* slower and faster speed that its ends list */
  int line;
  int lister; /* the only end that lists it; -1: both */
} cable;

typedef struct fabric {
  entry *entries;
  cable *cables;
  int32_t nentries, ncables, entries_capacity, cables_capacity;
  cable *lost; /* cables to a node without a block */
  int32_t nlost, lost_capacity;
  int32_t *by_id;   /* entries, sorted */
  int32_t *by_host; /* adapters, sorted */
  int32_t nadapters;
  int loop; /* line of a cable between two ports of one node; 0: none */
} fabric;

static void fabric_free(fabric *fab) {
  free(fab->entries);
  free(fab->cables);
  free(fab->lost);
  free(fab->by_id);
  free(fab->by_host);
}

/* Parses "4xNDR" as lanes times the data rate of each lane in Gb/s. Returns 0 if the word is not such a rate. */
static double speed_of(bny_topo_span word) {
  static const struct {
    const char *name;
    double lane_gbits_per_s;
  } rates[] = {{"SDR", 2},  {"DDR", 4},  {"QDR", 8},   {"FDR10", 10}, {"FDR", 13.64},
               {"EDR", 25}, {"HDR", 50}, {"NDR", 100}, {"XDR", 200}};
  size_t digits = 0;
  while (digits < word.bytes && digits < 3 && word.text[digits] >= '0' && word.text[digits] <= '9') digits++;
  int32_t lanes = 0;
  if (digits == word.bytes || word.text[digits] != 'x' ||
      !bny_topo_span_number((bny_topo_span){word.text, digits}, 12, &lanes))
    return 0;
  bny_topo_span rate = {word.text + digits + 1, word.bytes - digits - 1};
  for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++)
    if (bny_topo_span_is(rate, rates[i].name)) return lanes * rates[i].lane_gbits_per_s / 8;
  return 0;
}

/* Removes "[12]" from the start of *rest. */
static bool port_take(bny_topo_span *rest, int32_t *port) {
  const char *close = rest->bytes ? memchr(rest->text, ']', rest->bytes) : NULL;
  if (!close || rest->text[0] != '[' ||
      !bny_topo_span_number((bny_topo_span){rest->text + 1, (size_t)(close - rest->text - 1)}, PORTS_MAX, port))
    return false;
  *rest = (bny_topo_span){close + 1, (size_t)(rest->text + rest->bytes - close - 1)};
  return true;
}

static bool starts_node(bny_topo_span line, bool *is_switch) {
  bny_topo_span rest = line, kind, ports;
  int32_t number;
  if (!bny_topo_span_word(&rest, &kind) || !bny_topo_span_word(&rest, &ports) ||
      !bny_topo_span_number(ports, INT32_MAX, &number))
    return false;
  *is_switch = bny_topo_span_is(kind, "Switch") || bny_topo_span_is(kind, "Rt");
  return *is_switch || bny_topo_span_is(kind, "Ca");
}

static bool recognises(const char *text, size_t bytes) {
  bny_topo_reader reader = bny_topo_reader_of(text, bytes);
  bny_topo_span line, id;
  bool is_switch;
  for (int lines = 0; lines < 1000 && bny_topo_reader_line(&reader, &line); lines++)
    if (starts_node(line, &is_switch) && bny_topo_span_quoted(&line, &id) && id.bytes > 2 && id.text[1] == '-')
      return true;
  return false;
}

/* Returns whether this is an aggregation node inside a switch. It may have no block of its own. */
static bool aggregates(bny_topo_span description) {
  static const char words[] = "Aggregation Node";
  return description.bytes > 0 && memmem(description.text, description.bytes, words, sizeof words - 1);
}

static bool node_read(fabric *fab, bny_topo_span line, bool is_switch, int line_number, bny_topo_error *error) {
  entry node = {.is_switch = is_switch, .line = line_number, .node = -1, .group = -1};
  if (!bny_topo_span_quoted(&line, &node.id) || node.id.bytes < 3 || node.id.bytes > 64)
    return bny_topo_fail(error, line_number, "a node without an id in quotes, such as \"S-0123456789abcdef\"");
  if (!bny_topo_span_quoted(&line, &node.description)) node.description = node.id;
  if (node.description.bytes > 256)
    return bny_topo_fail(error, line_number, "a description of %zu bytes", node.description.bytes);
  node.left_out = !is_switch && aggregates(node.description);
  if (fab->nentries == NODES_MAX) return bny_topo_fail(error, line_number, "more than %d nodes", NODES_MAX);
  if (!bny_topo_grow(&fab->entries, fab->nentries, &fab->entries_capacity, sizeof *fab->entries)) return false;
  fab->entries[fab->nentries++] = node;
  return true;
}

static bool cable_read(fabric *fab, bny_topo_span line, int line_number, bny_topo_error *error) {
  cable one = {.ends = {{.entry = fab->nentries - 1}, {.entry = -1}}, .line = line_number};
  if (one.ends[0].entry < 0) return bny_topo_fail(error, line_number, "a port before any node");
  if (!port_take(&line, &one.ends[0].port))
    return bny_topo_fail(error, line_number, "a port's number must be 0 to %d in brackets", PORTS_MAX);
  if (!bny_topo_span_quoted(&line, &one.peer) || !port_take(&line, &one.ends[1].port))
    return bny_topo_fail(error, line_number, "port %d is not followed by \"PEER\"[PORT]: is the file cut off?",
                         one.ends[0].port);
  bny_topo_span word, rest = line, description;
  if (bny_topo_span_quoted(&rest, &description) && aggregates(description)) return true;
  while (bny_topo_span_word(&line, &word)) {
    double speed = speed_of(word);
    one.gbytes_per_s = speed > 0 ? speed : one.gbytes_per_s;
  }
  one.faster_gbytes_per_s = one.gbytes_per_s;
  if (fab->ncables == CABLES_MAX) return bny_topo_fail(error, line_number, "more than %d lines of ports", CABLES_MAX);
  if (!bny_topo_grow(&fab->cables, fab->ncables, &fab->cables_capacity, sizeof *fab->cables)) return false;
  fab->cables[fab->ncables++] = one;
  return true;
}

static bool lines_read(fabric *fab, const char *text, size_t bytes, bny_topo_error *error) {
  bny_topo_reader reader = bny_topo_reader_of(text, bytes);
  bny_topo_span line;
  while (bny_topo_reader_line(&reader, &line)) {
    bool is_switch;
    if (starts_node(line, &is_switch)) {
      if (!node_read(fab, line, is_switch, reader.line, error)) return false;
    } else if (line.bytes > 0 && line.text[0] == '[') {
      if (!cable_read(fab, line, reader.line, error)) return false;
    }
  }
  if (fab->nentries == 0) return bny_topo_fail(error, 0, "no node in it");
  return true;
}

static int span_order(bny_topo_span a, bny_topo_span b) {
  size_t both = a.bytes < b.bytes ? a.bytes : b.bytes;
  int order = memcmp(a.text, b.text, both);
  return order ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

static int id_order(const void *a, const void *b, void *context) {
  const entry *entries = context;
  return span_order(entries[*(const int32_t *)a].id, entries[*(const int32_t *)b].id);
}

/* Returns one word of a description of two words; an empty span if it has more or fewer. */
static bny_topo_span description_word(const entry *node, int which) {
  bny_topo_span rest = node->description, words[3] = {{NULL, 0}, {NULL, 0}, {NULL, 0}};
  int count = 0;
  while (count < 3 && bny_topo_span_word(&rest, &words[count])) count++;
  return count == 2 ? words[which] : (bny_topo_span){node->description.text, 0};
}

static bny_topo_span host_of(const entry *node) {
  bny_topo_span word = description_word(node, 0);
  return word.bytes ? word : node->id;
}

static int host_order(const void *a, const void *b, void *context) {
  const entry *entries = context;
  int32_t left = *(const int32_t *)a, right = *(const int32_t *)b;
  int order = span_order(host_of(&entries[left]), host_of(&entries[right]));
  if (order == 0) order = span_order(description_word(&entries[left], 1), description_word(&entries[right], 1));
  return order ? order : (left > right) - (left < right);
}

/* Builds the index of nodes by id, and resolves the ids that cables name. */
static bool cables_resolve(fabric *fab, bny_topo_error *error) {
  fab->by_id = malloc((size_t)fab->nentries * sizeof *fab->by_id);
  if (!fab->by_id) return false;
  for (int32_t i = 0; i < fab->nentries; i++) fab->by_id[i] = i;
  qsort_r(fab->by_id, (size_t)fab->nentries, sizeof *fab->by_id, id_order, fab->entries);
  for (int32_t i = 1; i < fab->nentries; i++) {
    const entry *a = &fab->entries[fab->by_id[i - 1]], *b = &fab->entries[fab->by_id[i]];
    if (bny_topo_span_same(a->id, b->id))
      return bny_topo_fail(error, a->line > b->line ? a->line : b->line, "node \"%.*s\" appears again: also on line %d",
                           bny_topo_span_shown(a->id), a->id.text, a->line > b->line ? b->line : a->line);
  }
  for (int32_t i = 0; i < fab->ncables; i++) {
    cable *one = &fab->cables[i];
    int32_t low = 0, high = fab->nentries;
    while (low < high) {
      int32_t middle = low + (high - low) / 2;
      if (span_order(fab->entries[fab->by_id[middle]].id, one->peer) < 0)
        low = middle + 1;
      else
        high = middle;
    }
    bool listed = low < fab->nentries && bny_topo_span_same(fab->entries[fab->by_id[low]].id, one->peer);
    one->ends[1].entry = listed ? fab->by_id[low] : -1;
    if (listed) continue;
    if (fab->nlost == fab->ncables / LOST_PART)
      return bny_topo_fail(error, one->line, "a link to \"%.*s\", which the file does not list: is it cut off?",
                           bny_topo_span_shown(one->peer), one->peer.text);
    if (!bny_topo_grow(&fab->lost, fab->nlost, &fab->lost_capacity, sizeof *fab->lost)) return false;
    fab->lost[fab->nlost++] = *one;
  }
  return true;
}

static bool hosts_group(fabric *fab) {
  fab->by_host = malloc((size_t)fab->nentries * sizeof *fab->by_host);
  if (!fab->by_host) return false;
  for (int32_t i = 0; i < fab->nentries; i++)
    if (!fab->entries[i].is_switch && !fab->entries[i].left_out) fab->by_host[fab->nadapters++] = i;
  qsort_r(fab->by_host, (size_t)fab->nadapters, sizeof *fab->by_host, host_order, fab->entries);
  int32_t group = -1;
  for (int32_t i = 0; i < fab->nadapters; i++) {
    entry *node = &fab->entries[fab->by_host[i]];
    if (i == 0 || !bny_topo_span_same(host_of(node), host_of(&fab->entries[fab->by_host[i - 1]]))) group++;
    node->group = group;
  }
  return true;
}

static int32_t node_add(bny_topo *topo, bny_topo_kind kind, int32_t parent, bny_topo_span name) {
  char *text = bny_topo_span_copy(name);
  int32_t node = -1;
  bny_topo_node made = bny_topo_node_of(kind, parent, -1, text, BNY_TOPO_FILE);
  if (text == NULL)
    topo->out_of_memory = true;
  else
    node = bny_topo_add_node(topo, &made);
  free(text);
  return node;
}

static bny_topo_span guid_of(const entry *node) { /* "S-0123": the part after the dash */
  return (bny_topo_span){node->id.text + 2, node->id.bytes - 2};
}

/* A switch keeps its GUID, by which ranks with different files know that it is the same one. */
static int32_t switch_add(bny_topo *topo, const entry *node) {
  char *guid = bny_topo_span_copy(guid_of(node));
  int32_t added = node_add(topo, BNY_TOPO_SWITCH, -1, node->description);
  if (guid == NULL || (added >= 0 && !bny_topo_set_string(topo, &topo->nodes[added].guid, guid))) added = -1;
  topo->out_of_memory = topo->out_of_memory || added < 0;
  free(guid);
  return added;
}

/* Adds switches first, then every host with its adapters, in the order of the file. */
static bool nodes_add(fabric *fab, bny_topo *topo) {
  int32_t *hosts = malloc(((size_t)fab->nadapters + 1) * sizeof *hosts); /* by group */
  if (!hosts) return false;
  for (int32_t i = 0; i < fab->nentries; i++) {
    entry *node = &fab->entries[i];
    if (node->is_switch) node->node = switch_add(topo, node);
  }
  for (int32_t i = 0; i < fab->nadapters; i++) hosts[i] = -1;
  for (int32_t i = 0; i < fab->nentries; i++) {
    entry *node = &fab->entries[i];
    if (node->group >= 0 && hosts[node->group] < 0)
      hosts[node->group] = node_add(topo, BNY_TOPO_HOST, -1, host_of(node));
  }
  /* Within a host, adapters are sorted by name. Devices with the same name are adjacent, and get their GUIDs as
   * names. */
  for (int32_t i = 0; i < fab->nadapters; i++) {
    entry *node = &fab->entries[fab->by_host[i]];
    bny_topo_span name = description_word(node, 1);
    for (int32_t other = i - 1; other <= i + 1; other += 2) {
      const entry *near = other >= 0 && other < fab->nadapters ? &fab->entries[fab->by_host[other]] : NULL;
      if (near && near->group == node->group &&
          bny_topo_span_same(description_word(near, 1), description_word(node, 1)))
        name.bytes = 0;
    }
    node->node = node_add(topo, BNY_TOPO_NIC, hosts[node->group], name.bytes ? name : guid_of(node));
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
      good = bny_topo_fail(error, uses[i].line, "port %d of \"%.*s\" is joined to another port on line %d",
                           uses[i].port, bny_topo_span_shown(fab->entries[uses[i].entry].id),
                           fab->entries[uses[i].entry].id.text, uses[i - 1].line);
  }
  free(uses);
  return good;
}

static int32_t port_add(bny_topo *topo, const entry *adapter, int32_t number) {
  char name[12];
  int length = snprintf(name, sizeof name, "%d", number);
  int32_t port = node_add(topo, BNY_TOPO_PORT, adapter->node, (bny_topo_span){name, (size_t)length});
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
    bny_topo_span lister = fab->entries[one->ends[one->lister].entry].description;
    snprintf(text, sizeof text, "port %d has no line for the cable that port %d of %.*s lists",
             one->ends[!one->lister].port, one->ends[one->lister].port, bny_topo_span_shown(lister), lister.text);
    bny_topo_add_sign(topo, BNY_TOPO_NOTE_ONE_SIDED, silent->node, text);
  }
  for (int32_t i = 0; i < fab->ncables; i++) {
    const cable *one = &fab->cables[i];
    if (one->faster_gbytes_per_s <= one->gbytes_per_s) continue;
    bny_topo_span other = fab->entries[one->ends[1].entry].description;
    snprintf(text, sizeof text,
             "its cable from port %d to port %d of %.*s has %.4g GB/s at one end and %.4g at the other",
             one->ends[0].port, one->ends[1].port, bny_topo_span_shown(other), other.text, one->gbytes_per_s,
             one->faster_gbytes_per_s);
    bny_topo_add_sign(topo, BNY_TOPO_NOTE_DIFFERS, fab->entries[one->ends[0].entry].node, text);
  }
  for (int32_t i = 0; i < fab->nlost; i++) {
    const cable *one = &fab->lost[i];
    const entry *lister = &fab->entries[one->ends[0].entry];
    snprintf(text, sizeof text, "port %d is cabled to %.*s, which has no block", one->ends[0].port,
             bny_topo_span_shown(one->peer), one->peer.text);
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
