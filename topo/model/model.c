/* SPDX-License-Identifier: Apache-2.0
 * Adds nodes, links and notes to a model, and frees it. */
#include "topo/model/model.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STRING_BYTES = 255, DEPTH = 64 };
static const double absurd_gbytes_per_s = 1e6;

static const char *const kind_names[BNY_TOPO_KINDS] = {"host", "package", "numa", "pci",
                                                       "gpu",  "nic",     "port", "switch"};
static const char *const link_names[BNY_TOPO_LINK_KINDS] = {"pci", "nvlink", "xgmi", "c2c", "sys", "net"};
static const char *const path_names[BNY_TOPO_PATHS] = {"SELF", "NVL",  "C2C", "PIX", "PXB",
                                                       "PHB",  "NODE", "SYS", "NET", "NONE"};
enum { SOURCES = BNY_TOPO_MEASURED + 1 };
static const char *const source_names[SOURCES] = {"assumed", "file", "probed", "measured"};
static const char *const note_names[BNY_TOPO_NOTE_KINDS] = {"input",     "lost",    "fabric",
                                                            "one-sided", "differs", "virtual"};

bool bny_topo_fail(bny_topo_error *error, int line, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  error->line = line;
  vsnprintf(error->text, sizeof error->text, format, arguments);
  va_end(arguments);
  for (char *at = error->text; *at != '\0'; at++) /* the text may quote the input */
    *at = *at >= ' ' && *at <= '~' ? *at : '?';
  return false;
}

bny_topo *bny_topo_new(void) { return calloc(1, sizeof(bny_topo)); }

enum { STRINGS = 6 };

static const char **string_of(bny_topo_node *node, int which) {
  const char **strings[STRINGS] = {&node->name,   &node->model, &node->vendor,
                                   &node->bus_id, &node->guid,  &node->attributes};
  return strings[which];
}

static void free_strings(bny_topo_node *node) {
  for (int i = 0; i < STRINGS; i++) free((char *)*string_of(node, i));
}

void bny_topo_free(bny_topo *topo) {
  if (topo == NULL) return;
  for (int32_t n = 0; n < topo->nnodes; n++) free_strings(&topo->nodes[n]);
  for (int32_t n = 0; n < topo->nnotes; n++) free((char *)topo->notes[n].text);
  free(topo->nodes);
  free(topo->links);
  free(topo->notes);
  free(topo);
}

size_t bny_topo_character_bytes(const char *character) {
  const unsigned char *text = (const unsigned char *)character;
  static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
  size_t bytes = *text < 0x80 ? 1 : *text >= 0xf0 ? 4 : *text >= 0xe0 ? 3 : *text >= 0xc2 ? 2 : 0;
  if (bytes < 2) return bytes;
  uint32_t code = *text & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; i++) {
    if ((text[i] & 0xc0) != 0x80) return 0;
    code = code << 6 | (text[i] & 0x3f);
  }
  bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < least[bytes] || code > 0x10ffff || surrogate ? 0 : bytes;
}

/* Returns a copy that is safe for terminals and JSON; NULL if out of memory. */
static char *clean_copy(const char *text) {
  char *copy = malloc(STRING_BYTES + 1);
  if (copy == NULL) return NULL;
  size_t out = 0;
  const unsigned char *in = (const unsigned char *)text;
  while (*in != '\0') {
    size_t bytes = bny_topo_character_bytes((const char *)in);
    /* The C1 controls, U+0080..U+009F, affect terminals too. */
    bool control = *in < 0x20 || *in == 0x7f || (bytes == 2 && in[0] == 0xc2 && in[1] < 0xa0);
    size_t kept = bytes == 0 || control ? 1 : bytes;
    if (out + kept > STRING_BYTES) break;
    if (bytes == 0 || control)
      copy[out] = '?';
    else
      memcpy(copy + out, in, bytes);
    out += kept;
    in += bytes == 0 ? 1 : bytes;
  }
  while (out > 0 && copy[out - 1] == ' ') out--;
  copy[out++] = '\0';
  char *shrunk = realloc(copy, out);
  return shrunk == NULL ? copy : shrunk;
}

bool bny_topo_set_string(bny_topo *topo, const char **field, const char *value) {
  char *copy = NULL;
  if (value != NULL) {
    copy = clean_copy(value);
    if (copy == NULL) {
      topo->out_of_memory = true;
      return false;
    }
  }
  free((char *)*field);
  *field = copy;
  return true;
}

/* bny_topo_grow() for an array of a model. */
static bool grow(bny_topo *topo, void *array, int32_t count, int32_t *capacity, size_t item_bytes) {
  bool room = bny_topo_grow(array, count, capacity, item_bytes);
  topo->out_of_memory = topo->out_of_memory || !room;
  return room;
}

/* Counts NUMA nodes below each ancestor, so that path queries need not visit all nodes. bny_topo_check() reports
 * misplaced parents and excess depth. */
static void count_numa(bny_topo *topo, int32_t numa) {
  int32_t below = numa, above = topo->nodes[numa].parent;
  for (int depth = 0; depth <= DEPTH && above >= 0 && above < below; depth++) {
    topo->nodes[above].numas++;
    below = above;
    above = topo->nodes[above].parent;
  }
}

bny_topo_node bny_topo_node_of(bny_topo_kind kind, int32_t parent, int32_t index, const char *name,
                               bny_topo_source source) {
  return (bny_topo_node){.kind = kind, .parent = parent, .index = index, .name = name, .compute = -1, .source = source};
}

int32_t bny_topo_add_node(bny_topo *topo, const bny_topo_node *node) {
  if (!grow(topo, &topo->nodes, topo->nnodes, &topo->nodes_capacity, sizeof *topo->nodes)) return -1;
  bny_topo_node copy = *node, given = *node;
  if (given.name == NULL) given.name = "";
  copy.name = copy.model = copy.vendor = copy.bus_id = copy.guid = copy.attributes = NULL;
  copy.first_link = -1;
  copy.numas = 0;
  bool set = true;
  for (int i = 0; i < STRINGS && set; i++) set = bny_topo_set_string(topo, string_of(&copy, i), *string_of(&given, i));
  if (!set) {
    free_strings(&copy);
    return -1;
  }
  topo->nodes[topo->nnodes++] = copy;
  if (copy.kind == BNY_TOPO_NUMA) count_numa(topo, topo->nnodes - 1);
  return topo->nnodes - 1;
}

bool bny_topo_add_note(bny_topo *topo, int32_t node, const char *format, ...) {
  char text[STRING_BYTES + 1];
  if (!grow(topo, &topo->notes, topo->nnotes, &topo->notes_capacity, sizeof *topo->notes)) return false;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  topo->notes[topo->nnotes] = (bny_topo_note){.node = node};
  bool set = bny_topo_set_string(topo, &topo->notes[topo->nnotes].text, text);
  topo->nnotes += set;
  return set;
}

bool bny_topo_add_sign(bny_topo *topo, bny_topo_note_kind kind, int32_t node, const char *text) {
  bool added = bny_topo_add_note(topo, node, "%s", text);
  if (added) topo->notes[topo->nnotes - 1].kind = kind;
  return added;
}

void bny_topo_attribute_put(char text[BNY_TOPO_ATTRIBUTES_BYTES], const char *name, const char *value) {
  size_t used = strlen(text);
  if (value == NULL || value[0] == '\0' || strpbrk(value, " \t\r\n\"=") != NULL ||
      used + strlen(name) + strlen(value) + 2 >= BNY_TOPO_ATTRIBUTES_BYTES)
    return;
  snprintf(text + used, BNY_TOPO_ATTRIBUTES_BYTES - used, "%s%s=%s", used > 0 ? " " : "", name, value);
}

bool bny_topo_attribute(const bny_topo_node *node, const char *name, char value[BNY_TOPO_ATTRIBUTES_BYTES]) {
  size_t length = strlen(name);
  for (const char *word = node->attributes; word != NULL && *word != '\0'; word += strspn(word, " ")) {
    size_t bytes = strcspn(word, " ");
    if (bytes > length && bytes < BNY_TOPO_ATTRIBUTES_BYTES && word[length] == '=' &&
        strncmp(word, name, length) == 0) {
      snprintf(value, BNY_TOPO_ATTRIBUTES_BYTES, "%.*s", (int)(bytes - length - 1), word + length + 1);
      return true;
    }
    word += bytes;
  }
  return false;
}

int32_t bny_topo_device(const bny_topo *topo, int32_t node) {
  while (topo->nodes[node].kind == BNY_TOPO_GPU && topo->nodes[node].parent >= 0 &&
         topo->nodes[topo->nodes[node].parent].kind == BNY_TOPO_GPU)
    node = topo->nodes[node].parent;
  return node;
}

static bool node_exists(const bny_topo *topo, int32_t node) { return node >= 0 && node < topo->nnodes; }

int32_t bny_topo_add_link(bny_topo *topo, const bny_topo_link *link) {
  if (!grow(topo, &topo->links, topo->nlinks, &topo->links_capacity, sizeof *topo->links)) return -1;
  int32_t added = topo->nlinks++;
  bny_topo_link *copy = &topo->links[added];
  *copy = *link;
  copy->next_from = copy->next_to = -1;
  /* bny_topo_check() reports an end that does not exist. */
  if (node_exists(topo, link->from)) {
    copy->next_from = topo->nodes[link->from].first_link;
    topo->nodes[link->from].first_link = added;
  }
  if (node_exists(topo, link->to) && link->to != link->from) {
    copy->next_to = topo->nodes[link->to].first_link;
    topo->nodes[link->to].first_link = added;
  }
  return added;
}

int32_t bny_topo_join(bny_topo *topo, bny_topo_link_kind kind, int32_t from, int32_t to, int32_t count,
                      double gbytes_per_s, bny_topo_source source) {
  bny_topo_link link = {kind, from, to, count, gbytes_per_s, .source = source};
  return bny_topo_add_link(topo, &link);
}

int32_t bny_topo_first_link(const bny_topo *topo, int32_t node) { return topo->nodes[node].first_link; }

int32_t bny_topo_next_link(const bny_topo *topo, int32_t node, int32_t link) {
  return topo->links[link].from == node ? topo->links[link].next_from : topo->links[link].next_to;
}

int32_t bny_topo_other_end(const bny_topo *topo, int32_t node, int32_t link) {
  return topo->links[link].from == node ? topo->links[link].to : topo->links[link].from;
}

int32_t bny_topo_link_up(const bny_topo *topo, int32_t node, bny_topo_link_kind kind) {
  int32_t l = bny_topo_first_link(topo, node), parent = topo->nodes[node].parent;
  while (l >= 0 && (topo->links[l].kind != kind || bny_topo_other_end(topo, node, l) != parent))
    l = bny_topo_next_link(topo, node, l);
  return l;
}

bool bny_topo_join_numas(bny_topo *topo, const double *gbytes_per_s) {
  enum { JOINED = 64 };
  for (int32_t n = 0; n < topo->nnodes; n++) {
    int32_t before[JOINED], count = 0;
    int32_t host = topo->nodes[n].kind == BNY_TOPO_NUMA ? bny_topo_ancestor(topo, n, BNY_TOPO_HOST) : -1;
    for (int32_t other = n - 1; host >= 0 && other > host && count < JOINED; other--)
      if (topo->nodes[other].kind == BNY_TOPO_NUMA && bny_topo_ancestor(topo, other, BNY_TOPO_HOST) == host)
        before[count++] = other;
    while (count < JOINED && count > 0)
      if (bny_topo_join(topo, BNY_TOPO_LINK_SYS, before[--count], n, 1, gbytes_per_s[topo->nodes[host].index],
                        BNY_TOPO_ASSUMED) < 0)
        return false;
  }
  return true;
}

bool bny_topo_joins_gpus(const bny_topo_link *link) {
  return link->kind == BNY_TOPO_LINK_NVLINK || link->kind == BNY_TOPO_LINK_XGMI;
}

bool bny_topo_bus_normalise(const char *text, char bus_id[BNY_TOPO_BUS_BYTES]) {
  unsigned domain = 0, bus, device, function;
  int used = -1;
  /* Bounded widths prevent overflow. The character check comes first because %x would accept signs and blanks. */
  if (text[strspn(text, "0123456789abcdefABCDEF:.")] != '\0') return false;
  if (sscanf(text, "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &used) != 4 || text[used] != '\0') {
    domain = 0;
    used = -1;
    if (sscanf(text, "%2x:%2x.%1x%n", &bus, &device, &function, &used) != 3 || text[used] != '\0') return false;
  }
  snprintf(bus_id, BNY_TOPO_BUS_BYTES, "%04x:%02x:%02x.%x", domain, bus, device, function);
  return true;
}

bool bny_topo_link_dead(const bny_topo_link *link) {
  return link->gbytes_per_s <= 0 && link->rated_gbytes_per_s > 0 &&
         (bny_topo_joins_gpus(link) || link->kind == BNY_TOPO_LINK_NET);
}

int32_t bny_topo_find_bus(const bny_topo *topo, const char *bus_id) {
  for (int32_t n = 0; n < topo->nnodes; n++)
    if (topo->nodes[n].bus_id != NULL && strcmp(topo->nodes[n].bus_id, bus_id) == 0) return n;
  return -1;
}

int32_t bny_topo_find_name(const bny_topo *topo, bny_topo_kind kind, const char *name) {
  for (int32_t n = 0; n < topo->nnodes; n++)
    if (topo->nodes[n].kind == kind && strcmp(topo->nodes[n].name, name) == 0) return n;
  return -1;
}

int32_t bny_topo_find_numa(const bny_topo *topo, int32_t number) {
  for (int32_t n = 0; number >= 0 && n < topo->nnodes; n++)
    if (topo->nodes[n].kind == BNY_TOPO_NUMA && topo->nodes[n].index == number) return n;
  return -1;
}

int32_t bny_topo_ancestor(const bny_topo *topo, int32_t node, bny_topo_kind kind) {
  while (node >= 0 && topo->nodes[node].kind != kind) node = topo->nodes[node].parent;
  return node;
}

bool bny_topo_is_below(const bny_topo *topo, int32_t node, int32_t above) {
  while (node >= 0 && node != above) node = topo->nodes[node].parent;
  return node >= 0;
}

int32_t bny_topo_nic_of(const bny_topo *topo, int32_t node) {
  bny_topo_kind kind = topo->nodes[node].kind;
  return kind == BNY_TOPO_NIC || kind == BNY_TOPO_PORT ? bny_topo_ancestor(topo, node, BNY_TOPO_NIC) : -1;
}

int32_t bny_topo_count(const bny_topo *topo, bny_topo_kind kind) {
  int32_t count = 0;
  for (int32_t n = 0; n < topo->nnodes; n++) count += topo->nodes[n].kind == kind;
  return count;
}

/* ---- checks of every importer's result --------------------------------------------------------------------------- */

static bool check_node(const bny_topo *topo, int32_t n, const unsigned char *depths, bny_topo_error *error) {
  const bny_topo_node *node = &topo->nodes[n];
  char bus_id[BNY_TOPO_BUS_BYTES];
  if ((unsigned)node->kind >= BNY_TOPO_KINDS || (unsigned)node->source >= SOURCES)
    return bny_topo_fail(error, 0, "node %d: no such kind or source", n);
  if (node->name == NULL || node->name[0] == '\0')
    return bny_topo_fail(error, 0, "node %d (%s) has no name", n, kind_names[node->kind]);
  if (node->parent < -1 || node->parent >= n) {
    return bny_topo_fail(error, 0, "%s \"%.60s\": its parent does not come before it", kind_names[node->kind],
                         node->name);
  }
  if (node->parent >= 0 && depths[node->parent] >= DEPTH)
    return bny_topo_fail(error, 0, "%s \"%.60s\": more than %d levels deep", kind_names[node->kind], node->name, DEPTH);
  if (node->index < -1 || node->compute < -1) {
    return bny_topo_fail(error, 0, "%s \"%.60s\": a negative index or compute capability", kind_names[node->kind],
                         node->name);
  }
  if (node->bus_id != NULL && (!bny_topo_bus_normalise(node->bus_id, bus_id) || strcmp(node->bus_id, bus_id) != 0)) {
    return bny_topo_fail(error, 0, "%s \"%.60s\": \"%.60s\" is not a bus id such as 0000:1b:00.0",
                         kind_names[node->kind], node->name, node->bus_id);
  }
  return true;
}

static bool speed_is_sane(double gbytes_per_s) {
  return isfinite(gbytes_per_s) && gbytes_per_s >= 0 && gbytes_per_s <= absurd_gbytes_per_s;
}

static bool check_link(const bny_topo *topo, int32_t l, bny_topo_error *error) {
  const bny_topo_link *link = &topo->links[l];
  if ((unsigned)link->kind >= BNY_TOPO_LINK_KINDS || (unsigned)link->source >= SOURCES)
    return bny_topo_fail(error, 0, "link %d: no such kind or source", l);
  if (!node_exists(topo, link->from) || !node_exists(topo, link->to))
    return bny_topo_fail(error, 0, "link %d (%s): an end does not exist", l, link_names[link->kind]);
  const char *from = topo->nodes[link->from].name, *to = topo->nodes[link->to].name;
  if (link->count < 0 || !speed_is_sane(link->gbytes_per_s) || !speed_is_sane(link->rated_gbytes_per_s) ||
      !isfinite(link->latency_us) || link->latency_us < 0 || link->latency_us > 1e9) {
    return bny_topo_fail(error, 0, "link %d (%s, from \"%.60s\" to \"%.60s\"): count, speed or latency is out of range",
                         l, link_names[link->kind], from, to);
  }
  return true;
}

/* Checks that bus ids and names of GPUs are unique within a host. */
static bool check_unique(const bny_topo *topo, const int32_t *hosts, bny_topo_error *error) {
  bny_topo_names buses = {0}, gpus = {0};
  for (int32_t n = 0; n < topo->nnodes; n++) {
    const bny_topo_node *node = &topo->nodes[n];
    if (node->bus_id != NULL) bny_topo_names_add(&buses, hosts[n], node->bus_id, n);
    if (node->kind == BNY_TOPO_GPU) bny_topo_names_add(&gpus, hosts[n], node->name, n);
  }
  const bny_topo_name *twice_bus = bny_topo_names_sort(&buses), *twice_gpu = bny_topo_names_sort(&gpus);
  bool unique = true;
  if (buses.out_of_memory || gpus.out_of_memory)
    unique = bny_topo_fail(error, 0, "out of memory");
  else if (twice_bus != NULL)
    unique = bny_topo_fail(error, 0, "bus id %s appears twice in one host", twice_bus->key);
  else if (twice_gpu != NULL)
    unique = bny_topo_fail(error, 0, "two GPUs of one host are called \"%.60s\"", twice_gpu->key);
  bny_topo_names_free(&buses);
  bny_topo_names_free(&gpus);
  return unique;
}

bool bny_topo_check(const bny_topo *topo, bny_topo_error *error) {
  if (topo->out_of_memory)
    return bny_topo_fail(error, 0, "out of memory, or more than %d nodes or links", BNY_TOPO_MOST);
  size_t nodes = (size_t)topo->nnodes + 1;
  unsigned char *depths = malloc(nodes);
  int32_t *hosts = malloc(nodes * sizeof *hosts);
  bool sane = depths != NULL && hosts != NULL;
  if (!sane) bny_topo_fail(error, 0, "out of memory");
  for (int32_t n = 0; sane && n < topo->nnodes; n++) {
    sane = check_node(topo, n, depths, error);
    if (sane) {
      int32_t parent = topo->nodes[n].parent;
      depths[n] = parent < 0 ? 0 : (unsigned char)(depths[parent] + 1);
      hosts[n] = topo->nodes[n].kind == BNY_TOPO_HOST ? n : parent < 0 ? -1 : hosts[parent];
    }
  }
  for (int32_t l = 0; sane && l < topo->nlinks; l++) sane = check_link(topo, l, error);
  for (int32_t n = 0; sane && n < topo->nnotes; n++) {
    sane = node_exists(topo, topo->notes[n].node) ||
           (topo->notes[n].node == -1 &&
            (topo->notes[n].kind == BNY_TOPO_NOTE_INPUT || topo->notes[n].kind == BNY_TOPO_NOTE_VIRTUAL)) ||
           bny_topo_fail(error, 0, "note %d: its node does not exist", n);
  }
  sane = sane && check_unique(topo, hosts, error);
  free(depths);
  free(hosts);
  return sane;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

const char *bny_topo_path_name(bny_topo_path path) { return (unsigned)path < BNY_TOPO_PATHS ? path_names[path] : "?"; }

const char *bny_topo_kind_name(bny_topo_kind kind) { return (unsigned)kind < BNY_TOPO_KINDS ? kind_names[kind] : "?"; }

const char *bny_topo_link_name(bny_topo_link_kind kind) {
  return (unsigned)kind < BNY_TOPO_LINK_KINDS ? link_names[kind] : "?";
}

const char *bny_topo_source_name(bny_topo_source source) {
  return (unsigned)source < SOURCES ? source_names[source] : "?";
}

const char *bny_topo_note_name(bny_topo_note_kind kind) {
  return (unsigned)kind < BNY_TOPO_NOTE_KINDS ? note_names[kind] : "?";
}

static int parse_name(const char *const *names, int count, const char *name) {
  int i = 0;
  while (i < count && strcmp(names[i], name) != 0) i++;
  return i;
}

bny_topo_kind bny_topo_kind_parse(const char *name) {
  return (bny_topo_kind)parse_name(kind_names, BNY_TOPO_KINDS, name);
}

bny_topo_link_kind bny_topo_link_parse(const char *name) {
  return (bny_topo_link_kind)parse_name(link_names, BNY_TOPO_LINK_KINDS, name);
}

bny_topo_source bny_topo_source_parse(const char *name) {
  return (bny_topo_source)parse_name(source_names, SOURCES, name);
}

bny_topo_note_kind bny_topo_note_parse(const char *name) {
  return (bny_topo_note_kind)parse_name(note_names, BNY_TOPO_NOTE_KINDS, name);
}
