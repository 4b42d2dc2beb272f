/* SPDX-License-Identifier: Apache-2.0
 * Reads and writes banyan's own format. */
#include "topo/model/json.h"

#include "topo/model/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool recognises(const char *text, size_t bytes) {
  size_t at = 0;
  while (at < bytes && (text[at] == ' ' || text[at] == '\t' || text[at] == '\r' || text[at] == '\n')) at++;
  return at < bytes && text[at] == '{' && memmem(text, bytes, "\"nodes\"", 7) != NULL;
}

#ifndef HAVE_JANSSON

static const char without[] = "JSON cannot be read or written: this banyan was built without jansson";

struct json_t *bny_topo_json(const bny_topo *topo) {
  (void)topo;
  return NULL;
}

char *bny_topo_json_text(const struct json_t *json) {
  (void)json;
  return NULL;
}

char *bny_topo_export_json(const bny_topo *topo, bny_topo_error *error) {
  (void)topo;
  bny_topo_fail(error, 0, "%s", without);
  return NULL;
}

static bool parse(const char *text, size_t bytes, bny_topo *topo, bny_topo_error *error) {
  (void)text, (void)bytes, (void)topo;
  return bny_topo_fail(error, 0, "%s", without);
}

#else

#include <jansson.h>

enum { DEPTH = 64, MOST_VALUES = 8000000, STRING_BYTES = 255 };

/* ---- export ------------------------------------------------------------------------------------------------------ */

/* The id of a node is its name: "eth0". If another node has the same name, or the name contains #, the node's number is
 * appended: "eth0#17". All ids are therefore unique. `twice` marks the nodes that need the number. */
static void mark_twice(const bny_topo_names *sorted, bool *twice) {
  for (int32_t i = 0; i < sorted->count; i++) {
    const bny_topo_name *here = &sorted->entries[i];
    bool same = i > 0 && strcmp(here[-1].key, here->key) == 0;
    twice[here->value] = same || strchr(here->key, '#') != NULL;
    if (same) twice[here[-1].value] = true;
  }
}

/* Returns NULL, which is omitted, for an unknown value. */
static json_t *known_integer(int32_t value) { return value == -1 ? NULL : json_integer(value); }

static json_t *known_real(double value) { return value == 0 ? NULL : json_real(value); }

static json_t *node_out(const bny_topo *topo, json_t *const *ids, int32_t n) {
  const bny_topo_node *node = &topo->nodes[n];
  return json_pack("{s:O, s:s, s:s*, s:O*, s:o*, s:s*, s:s*, s:s*, s:s*, s:s*, s:o*, s:o*, s:s}", "id", ids[n], "kind",
                   bny_topo_kind_name(node->kind), "name", node->name, "parent",
                   node->parent < 0 ? NULL : ids[node->parent], "index", known_integer(node->index), "model",
                   node->model, "vendor", node->vendor, "bus_id", node->bus_id, "guid", node->guid, "attributes",
                   node->attributes, "compute", known_integer(node->compute), "host_bridge",
                   node->host_bridge ? json_true() : NULL, "source", bny_topo_source_name(node->source));
}

static json_t *link_out(const bny_topo *topo, json_t *const *ids, int32_t l) {
  const bny_topo_link *link = &topo->links[l];
  json_t *speed = link->gbytes_per_s == 0 ? json_null() : json_real(link->gbytes_per_s);
  return json_pack("{s:O, s:O, s:s, s:i, s:o, s:o*, s:o*, s:s}", "from", ids[link->from], "to", ids[link->to], "kind",
                   bny_topo_link_name(link->kind), "count", (int)link->count, "gbytes_per_s", speed,
                   "rated_gbytes_per_s", known_real(link->rated_gbytes_per_s), "latency_us",
                   known_real(link->latency_us), "source", bny_topo_source_name(link->source));
}

static json_t *note_out(const bny_topo *topo, json_t *const *ids, int32_t n) {
  const bny_topo_note *note = &topo->notes[n];
  return json_pack("{s:O*, s:s*, s:s}", "node", note->node < 0 ? NULL : ids[note->node], "kind",
                   note->kind == BNY_TOPO_NOTE_INPUT ? NULL : bny_topo_note_name(note->kind), "text", note->text);
}

static bool all_out(const bny_topo *topo, json_t **ids, json_t *nodes, json_t *links, json_t *notes) {
  bny_topo_names names = {0};
  for (int32_t n = 0; n < topo->nnodes; n++) bny_topo_names_add(&names, 0, topo->nodes[n].name, n);
  bny_topo_names_sort(&names);
  bool *twice = calloc((size_t)topo->nnodes + 1, sizeof *twice);
  bool good = !names.out_of_memory && twice != NULL;
  if (good) mark_twice(&names, twice);
  for (int32_t n = 0; good && n < topo->nnodes; n++) {
    const char *name = topo->nodes[n].name;
    ids[n] = twice[n] ? json_sprintf("%s#%d", name, (int)n) : json_string(name);
    good = ids[n] != NULL && json_array_append_new(nodes, node_out(topo, ids, n)) == 0;
  }
  for (int32_t l = 0; good && l < topo->nlinks; l++) good = json_array_append_new(links, link_out(topo, ids, l)) == 0;
  for (int32_t n = 0; good && n < topo->nnotes; n++) good = json_array_append_new(notes, note_out(topo, ids, n)) == 0;
  free(twice);
  bny_topo_names_free(&names);
  return good;
}

json_t *bny_topo_json(const bny_topo *topo) {
  json_t *nodes = json_array(), *links = json_array(), *notes = json_array();
  json_t **ids = calloc((size_t)topo->nnodes + 1, sizeof(json_t *));
  json_t *root = NULL;
  if (nodes != NULL && links != NULL && notes != NULL && ids != NULL && all_out(topo, ids, nodes, links, notes)) {
    root = json_pack("{s:s, s:i, s:O, s:O}", "format", "banyan-topology", "version", 1, "nodes", nodes, "links", links);
    if (root != NULL && topo->nnotes > 0 && json_object_set(root, "notes", notes) != 0) {
      json_decref(root);
      root = NULL;
    }
  }
  for (int32_t n = 0; ids != NULL && n < topo->nnodes; n++) json_decref(ids[n]);
  free(ids);
  json_decref(nodes);
  json_decref(links);
  json_decref(notes);
  return root;
}

/* Returns the precision, 15 to 17 digits, at which every number in this JSON is read back exactly. */
static int precision_of(const json_t *json) {
  int most = 15;
  if (json_is_real(json)) {
    char text[64];
    double value = json_real_value(json);
    do {
      snprintf(text, sizeof text, "%.*g", most, value);
    } while (strtod(text, NULL) != value && most++ < 17);
  } else if (json_is_array(json)) {
    size_t i;
    json_t *item;
    json_array_foreach(json, i, item) {
      int needed = precision_of(item);
      most = needed > most ? needed : most;
    }
  } else if (json_is_object(json)) {
    for (void *i = json_object_iter((json_t *)json); i != NULL; i = json_object_iter_next((json_t *)json, i)) {
      int needed = precision_of(json_object_iter_value(i));
      most = needed > most ? needed : most;
    }
  }
  return most > 17 ? 17 : most;
}

/* Writes each object of an array on its own line. */
static bool write_member(FILE *out, const json_t *value, size_t flags) {
  if (json_array_size(value) == 0 || !json_is_object(json_array_get(value, 0)))
    return json_dumpf(value, out, flags | JSON_ENCODE_ANY) == 0;
  bool good = fputs("[", out) >= 0;
  for (size_t i = 0; good && i < json_array_size(value); i++)
    good = fputs(i == 0 ? "\n  " : ",\n  ", out) >= 0 && json_dumpf(json_array_get(value, i), out, flags) == 0;
  return good && fputs("\n]", out) >= 0;
}

char *bny_topo_json_text(const json_t *json) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  if (out == NULL) return NULL;
  size_t flags = JSON_REAL_PRECISION((size_t)precision_of(json));
  bool good = fputs("{", out) >= 0, first = true;
  for (void *i = json_object_iter((json_t *)json); good && i != NULL; i = json_object_iter_next((json_t *)json, i)) {
    good = fprintf(out, "%s\"%s\": ", first ? "" : ",\n", json_object_iter_key(i)) > 0 &&
           write_member(out, json_object_iter_value(i), flags);
    first = false;
  }
  good = good && fputs("}\n", out) >= 0;
  good = fclose(out) == 0 && good;
  if (!good) {
    free(text);
    return NULL;
  }
  return text;
}

char *bny_topo_export_json(const bny_topo *topo, bny_topo_error *error) {
  json_t *json = bny_topo_json(topo);
  char *text = json == NULL ? NULL : bny_topo_json_text(json);
  json_decref(json);
  if (text == NULL) bny_topo_fail(error, 0, "out of memory");
  return text;
}

/* ---- import ------------------------------------------------------------------------------------------------------ */

typedef struct reading {
  bny_topo *topo;
  bny_topo_error *error;
  bny_topo_names ids;
  char **texts;     /* owned copies for `ids` */
  const char *list; /* current list: "nodes" or "links" */
  size_t at;        /* current index in the list */
} reading;

static bool fail_at(const reading *r, const char *key, const char *what) {
  return bny_topo_fail(r->error, 0, "%s[%zu].%s: %s", r->list, r->at, key, what);
}

static bool text_in(const reading *r, const json_t *object, const char *key, const char **text) {
  const json_t *value = json_object_get(object, key);
  if (value == NULL || json_is_null(value)) return true;
  if (!json_is_string(value) || json_string_length(value) > STRING_BYTES)
    return fail_at(r, key, json_is_string(value) ? "longer than 255 bytes" : "wants a string");
  *text = json_string_value(value);
  return true;
}

static bool integer_in(const reading *r, const json_t *object, const char *key, int32_t least, int32_t *number) {
  const json_t *value = json_object_get(object, key);
  if (value == NULL || json_is_null(value)) return true;
  json_int_t integer = json_integer_value(value);
  if (!json_is_integer(value) || integer < least || integer > INT32_MAX)
    return fail_at(r, key, "wants a whole number that is not negative");
  *number = (int32_t)integer;
  return true;
}

static bool real_in(const reading *r, const json_t *object, const char *key, double *number) {
  const json_t *value = json_object_get(object, key);
  if (value == NULL || json_is_null(value)) return true;
  double real = json_number_value(value);
  if (!json_is_number(value) || !(real >= 0 && real <= 1e9)) return fail_at(r, key, "must be a number from 0 to 1e9");
  *number = real;
  return true;
}

static bool source_in(const reading *r, const json_t *object, bny_topo_source *source) {
  const char *text = "file";
  if (!text_in(r, object, "source", &text)) return false;
  *source = bny_topo_source_parse(text);
  return *source <= BNY_TOPO_MEASURED || fail_at(r, "source", "wants assumed, file, probed or measured");
}

/* Looks up the node that a member refers to. */
static bool node_in(const reading *r, const json_t *object, const char *key, int32_t *node) {
  const json_t *value = json_object_get(object, key);
  char number[32];
  const char *id = json_string_value(value);
  if (json_is_integer(value)) {
    snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
    id = number;
  }
  if (id == NULL) return fail_at(r, key, "wants the id of a node");
  *node = bny_topo_names_find(&r->ids, 0, id);
  return *node >= 0 || bny_topo_fail(r->error, 0, "%s[%zu].%s: no node has the id \"%.60s\"", r->list, r->at, key, id);
}

static bool take_node(reading *r, const json_t *object) {
  bny_topo_node node = {.parent = -1, .index = -1, .compute = -1, .name = r->texts[r->at]};
  const char *kind = NULL, *strings[6] = {node.name};
  static const char *const keys[6] = {"name", "model", "vendor", "bus_id", "guid", "attributes"};
  for (int i = 0; i < 6; i++)
    if (!text_in(r, object, keys[i], &strings[i])) return false;
  if (!text_in(r, object, "kind", &kind) || !integer_in(r, object, "index", -1, &node.index) ||
      !integer_in(r, object, "compute", -1, &node.compute) || !source_in(r, object, &node.source))
    return false;
  node.kind = kind == NULL ? BNY_TOPO_KINDS : bny_topo_kind_parse(kind);
  if (node.kind == BNY_TOPO_KINDS)
    return fail_at(r, "kind", "wants host, package, numa, pci, gpu, nic, port or switch");
  const json_t *parent = json_object_get(object, "parent");
  if (parent != NULL && !json_is_null(parent)) {
    if (!node_in(r, object, "parent", &node.parent)) return false;
    if ((size_t)node.parent >= r->at) return fail_at(r, "parent", "stands behind its child; put it before");
  }
  const json_t *host_bridge = json_object_get(object, "host_bridge");
  if (host_bridge != NULL && !json_is_boolean(host_bridge)) return fail_at(r, "host_bridge", "wants true or false");
  node.host_bridge = json_is_true(host_bridge);
  char bus_id[BNY_TOPO_BUS_BYTES];
  if (strings[3] != NULL && !bny_topo_bus_normalise(strings[3], bus_id))
    return fail_at(r, "bus_id", "not a bus id such as 0000:1b:00.0");
  node.name = strings[0], node.model = strings[1], node.vendor = strings[2];
  node.bus_id = strings[3] == NULL ? NULL : bus_id;
  node.guid = strings[4], node.attributes = strings[5];
  return bny_topo_add_node(r->topo, &node) >= 0;
}

static bool take_link(reading *r, const json_t *object) {
  bny_topo_link link = {.count = 1};
  const char *kind = NULL;
  if (!node_in(r, object, "from", &link.from) || !node_in(r, object, "to", &link.to) ||
      !text_in(r, object, "kind", &kind) || !integer_in(r, object, "count", 0, &link.count) ||
      !real_in(r, object, "gbytes_per_s", &link.gbytes_per_s) ||
      !real_in(r, object, "rated_gbytes_per_s", &link.rated_gbytes_per_s) ||
      !real_in(r, object, "latency_us", &link.latency_us) || !source_in(r, object, &link.source))
    return false;
  link.kind = kind == NULL ? BNY_TOPO_LINK_KINDS : bny_topo_link_parse(kind);
  if (link.kind == BNY_TOPO_LINK_KINDS) return fail_at(r, "kind", "wants pci, nvlink, xgmi, c2c, sys or net");
  return bny_topo_add_link(r->topo, &link) >= 0;
}

static bool take_note(reading *r, const json_t *object) {
  const char *text = NULL, *kind = "input";
  int32_t node = -1;
  if (!text_in(r, object, "text", &text) || !text_in(r, object, "kind", &kind) ||
      (json_object_get(object, "node") && !node_in(r, object, "node", &node)))
    return false;
  bny_topo_note_kind known = bny_topo_note_parse(kind);
  if (text == NULL || known == BNY_TOPO_NOTE_KINDS) {
    return fail_at(r, text == NULL ? "text" : "kind",
                   text == NULL ? "wants a string" : "wants input, lost, fabric, one-sided, differs or errors");
  }
  return bny_topo_add_sign(r->topo, known, node, text);
}

/* Collects and sorts the ids of all nodes. A node's number is its index in the list. */
static bool read_ids(reading *r, const json_t *nodes) {
  json_t *object;
  json_array_foreach((json_t *)nodes, r->at, object) {
    const json_t *id = json_object_get(object, "id");
    char number[32];
    snprintf(number, sizeof number, "%lld", (long long)json_integer_value(id));
    const char *text = json_is_integer(id) ? number : json_string_value(id);
    if (text == NULL || *text == '\0') return fail_at(r, "id", "wants a string or a whole number");
    r->texts[r->at] = strdup(text);
    if (r->texts[r->at] == NULL) return false;
    bny_topo_names_add(&r->ids, 0, r->texts[r->at], (int32_t)r->at);
  }
  const bny_topo_name *twice = bny_topo_names_sort(&r->ids);
  if (r->ids.out_of_memory) return false;
  return twice == NULL || bny_topo_fail(r->error, 0, "nodes[%d].id: \"%.60s\" is also that of nodes[%d]",
                                        (int)twice->value, twice->key, (int)twice[-1].value);
}

static bool read_lists(reading *r, const json_t *root, bny_topo_error *error) {
  const json_t *nodes = json_object_get(root, "nodes"), *links = json_object_get(root, "links"),
               *notes = json_object_get(root, "notes");
  const json_t *version = json_object_get(root, "version");
  json_t *object;
  if (version != NULL && json_integer_value(version) != 1) return bny_topo_fail(error, 0, "version: 1 is known");
  if (!json_is_array(nodes) || json_array_size(nodes) == 0 || (links != NULL && !json_is_array(links)))
    return bny_topo_fail(error, 0, "wants \"nodes\", a list that is not empty, and \"links\", a list");
  r->list = "nodes";
  r->texts = calloc(json_array_size(nodes), sizeof(char *));
  bool good = r->texts != NULL && read_ids(r, nodes);
  for (r->at = 0; good && r->at < json_array_size(nodes); r->at++) good = take_node(r, json_array_get(nodes, r->at));
  r->list = "links";
  if (good && links != NULL) {
    json_array_foreach((json_t *)links, r->at, object) { good = good && take_link(r, object); }
  }
  r->list = "notes";
  if (good && notes != NULL) {
    json_array_foreach((json_t *)notes, r->at, object) { good = good && take_note(r, object); }
  }
  for (size_t i = 0; r->texts != NULL && i < json_array_size(nodes); i++) free(r->texts[i]);
  free(r->texts);
  return good;
}

/* Checks depth and number of values before jansson parses the text, so that its memory is bounded. */
static bool is_bounded(const char *text, size_t bytes, bny_topo_error *error) {
  int depth = 0, line = 1;
  int64_t values = 0;
  bool quoted = false;
  for (size_t i = 0; i < bytes; i++) {
    char c = text[i];
    line += c == '\n';
    if (quoted) {
      i += c == '\\';
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      values++;
      if (++depth > DEPTH) return bny_topo_fail(error, line, "nests more than %d deep", DEPTH);
    } else if (c == ']' || c == '}') {
      depth--;
    } else if (c == ',') {
      values++;
    }
    if (values > MOST_VALUES) return bny_topo_fail(error, line, "more than %d values", MOST_VALUES);
  }
  return true;
}

static bool parse(const char *text, size_t bytes, bny_topo *topo, bny_topo_error *error) {
  if (!is_bounded(text, bytes, error)) return false;
  json_error_t why;
  json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
  if (root == NULL) return bny_topo_fail(error, why.line, "JSON: %.200s", why.text);
  reading r = {.topo = topo, .error = error};
  bool taken = read_lists(&r, root, error);
  bny_topo_names_free(&r.ids);
  json_decref(root);
  return taken;
}

#endif

const bny_topo_importer bny_topo_import_json = {.name = "json", .recognises = recognises, .parse = parse};
