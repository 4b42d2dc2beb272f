/* SPDX-License-Identifier: Apache-2.0
 * These laws hold for any input of the importers. Fuzzers check them, and tests replay what fuzzers found.
 * Each function returns NULL, or a text about the broken law. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "topo/model/json.h"
#include "topo/levels/levels.h"
#include "topo/model/model.h"
#include "tools/topo/import/import.h"
#include "tools/topo/import/xml.h"

enum { LAWS_DEVICES = 48, LAWS_NODES = 4000 };

static inline const char *law_of_reason(const bny_topo_error *error) {
  if (error->text[0] == '\0') return "rejected without a reason";
  for (const char *at = error->text; *at != '\0'; at++)
    if (*at < ' ' || *at > '~') return "a reason that is not printable";
  return error->line < 0 ? "a negative line" : NULL;
}

static inline bool laws_same_text(const char *a, const char *b) {
  return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* Compares every field, and doubles by their bits. */
static inline bool laws_same_model(const bny_topo *a, const bny_topo *b) {
  bool same = a->nnodes == b->nnodes && a->nlinks == b->nlinks && a->nnotes == b->nnotes;
  for (int32_t n = 0; same && n < a->nnodes; n++) {
    const bny_topo_node *x = &a->nodes[n], *y = &b->nodes[n];
    same = x->kind == y->kind && x->parent == y->parent && x->index == y->index && laws_same_text(x->name, y->name) &&
           laws_same_text(x->model, y->model) && laws_same_text(x->vendor, y->vendor) &&
           laws_same_text(x->bus_id, y->bus_id) && laws_same_text(x->guid, y->guid) &&
           laws_same_text(x->attributes, y->attributes) && x->compute == y->compute &&
           x->host_bridge == y->host_bridge && x->source == y->source && x->first_link == y->first_link;
  }
  for (int32_t l = 0; same && l < a->nlinks; l++) {
    const bny_topo_link *x = &a->links[l], *y = &b->links[l];
    const double speeds[2][3] = {{x->gbytes_per_s, x->rated_gbytes_per_s, x->latency_us},
                                 {y->gbytes_per_s, y->rated_gbytes_per_s, y->latency_us}};
    same = x->kind == y->kind && x->from == y->from && x->to == y->to && x->count == y->count &&
           x->source == y->source && memcmp(speeds[0], speeds[1], sizeof speeds[0]) == 0;
  }
  for (int32_t n = 0; same && n < a->nnotes; n++)
    same = a->notes[n].kind == b->notes[n].kind && a->notes[n].node == b->notes[n].node &&
           laws_same_text(a->notes[n].text, b->notes[n].text);
  return same;
}

/* Lists GPUs, then NICs, at most LAWS_DEVICES. Returns their number. */
static inline int32_t devices_of(const bny_topo *topo, int32_t devices[LAWS_DEVICES]) {
  int32_t count = 0;
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t n = 0; n < topo->nnodes && count < LAWS_DEVICES; n++)
      if (topo->nodes[n].kind == (pass == 0 ? BNY_TOPO_GPU : BNY_TOPO_NIC)) devices[count++] = n;
  }
  return count;
}

/* Checks that writing a model as JSON and reading it returns the same model. */
static inline const char *law_of_json(const bny_topo *topo) {
  bny_topo_error error = {.text = ""};
  char *text = bny_topo_export_json(topo, &error);
  if (text == NULL) return law_of_reason(&error); /* no jansson */
  bny_topo *again = bny_topo_import(text, strlen(text), NULL, &error);
  char *text_again = again == NULL ? NULL : bny_topo_export_json(again, &error);
  const char *broken = NULL;
  if (again == NULL)
    broken = "what is exported is rejected";
  else if (text_again == NULL || strcmp(text, text_again) != 0 || !laws_same_model(topo, again))
    broken = "its JSON, read again, is another model";
  bny_topo_free(again);
  free(text);
  free(text_again);
  return broken;
}

static inline const char *law_of_paths(const bny_topo *topo) {
  int32_t devices[LAWS_DEVICES], count = devices_of(topo, devices);
  for (int32_t a = 0; a < count; a++) {
    for (int32_t b = 0; b <= a; b++) {
      bny_topo_path there = bny_topo_path_between(topo, devices[a], devices[b]);
      if ((unsigned)there >= BNY_TOPO_PATHS || (there == BNY_TOPO_PATH_SELF) != (a == b))
        return "a path that there is not";
      if (there != bny_topo_path_between(topo, devices[b], devices[a])) return "a path that is another on the way back";
    }
  }
  return NULL;
}

static inline const char *law_of_level(const bny_topo_levels *levels, const bny_topo_level *level) {
  int32_t members = 0, grouped = 0;
  for (int32_t g = 0; g < level->ngroups; g++) {
    const bny_topo_group *group = &level->groups[g];
    if (group->first != members || group->count < 1) return "a group that does not follow the one before";
    members += group->count;
    for (int32_t i = group->first; i < members; i++) {
      int32_t rank = level->members[i];
      if (rank < 0 || rank >= levels->nranks || level->group_of[rank] != g)
        return "a level whose groups are not those of its members";
      if (i > group->first && level->members[i - 1] >= rank) return "members of a group that do not ascend";
    }
    if (!(group->gbytes_per_s >= 0) || (unsigned)group->path >= BNY_TOPO_PATHS)
      return "a group without a speed or path";
  }
  for (int32_t r = 0; r < levels->nranks; r++) grouped += level->group_of[r] >= 0;
  return members == level->nmembers && members == grouped ? NULL : "a level that counts members wrong";
}

/* Checks that each group of the inner level is inside one group of the outer level. */
static inline const char *law_of_nesting(const bny_topo_levels *levels) {
  static const bny_topo_level_kind pairs[][2] = {{BNY_TOPO_LEVEL_PACKAGE, BNY_TOPO_LEVEL_HOST},
                                                 {BNY_TOPO_LEVEL_ISLAND, BNY_TOPO_LEVEL_HOST},
                                                 {BNY_TOPO_LEVEL_ISLAND, BNY_TOPO_LEVEL_DOMAIN},
                                                 {BNY_TOPO_LEVEL_LEAF, BNY_TOPO_LEVEL_SPINE},
                                                 {BNY_TOPO_LEVEL_SPINE, BNY_TOPO_LEVEL_CORE}};
  for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++) {
    const bny_topo_level *in = bny_topo_level_of(levels, pairs[p][0]), *out = bny_topo_level_of(levels, pairs[p][1]);
    for (int32_t r = 0; in && out && r < levels->nranks; r++) {
      int32_t group = in->group_of[r];
      if (group >= 0 && out->group_of[r] != out->group_of[in->members[in->groups[group].first]])
        return "a group that lies in two of an outer level";
    }
  }
  return NULL;
}

static inline const char *law_of_rank(const bny_topo *topo, const bny_topo_levels *levels, const bny_topo_rank *rank) {
  if (topo->nodes[rank->node].kind != levels->rank_kind) return "a rank of another kind";
  if (rank->nic < 0) return NULL;
  if (bny_topo_ancestor(topo, rank->nic, BNY_TOPO_HOST) != rank->host) return "a NIC of another host";
  return rank->nic_path == bny_topo_path_between(topo, rank->node, rank->nic) ? NULL : "another path to a NIC";
}

static inline const char *law_of_levels(const bny_topo *topo) {
  bny_topo_levels *levels = bny_topo_derive(topo);
  const char *broken = levels == NULL ? "no levels" : law_of_nesting(levels);
  for (int32_t i = 0; levels != NULL && i < levels->nlevels && broken == NULL; i++)
    broken = i > 0 && levels->levels[i].kind <= levels->levels[i - 1].kind ? "levels that are not in order"
                                                                           : law_of_level(levels, &levels->levels[i]);
  for (int32_t r = 0; levels != NULL && r < levels->nranks && broken == NULL; r++)
    broken = law_of_rank(topo, levels, &levels->ranks[r]);
  bny_topo_levels_free(levels);
  return broken;
}

/* Derives, exports and checks a model, as tools and the library do. */
static inline const char *law_of_model(const bny_topo *topo) {
  bny_topo_error error = {.text = ""};
  const char *broken = bny_topo_check(topo, &error) ? NULL : "it does not pass the check";
  const char *(*const laws[])(const bny_topo *) = {law_of_paths, law_of_json, law_of_levels};
  for (size_t i = 0; i < sizeof laws / sizeof laws[0] && topo->nnodes <= LAWS_NODES && broken == NULL; i++)
    broken = laws[i](topo);
  return broken;
}

/* Imports a text by its content. */
static inline const char *law_of_import(const char *text, size_t bytes) {
  bny_topo_error error = {.line = -1, .text = ""};
  const char *name = NULL;
  bny_topo *topo = bny_topo_import(text, bytes, &name, &error);
  if (topo == NULL) return law_of_reason(&error);
  const char *broken = name == NULL ? "no name" : law_of_model(topo);
  bny_topo_free(topo);
  return broken;
}

/* Tries a single importer, also on input that it does not recognise. */
static inline const char *law_of_importer(const bny_topo_importer *importer, const char *text, size_t bytes) {
  bny_topo_error error = {.text = ""};
  bny_topo *topo = bny_topo_new();
  if (topo == NULL) return NULL;
  importer->recognises(text, bytes);
  /* The check may still reject a text that the importer accepted. */
  bool taken = importer->parse(text, bytes, topo, &error) && bny_topo_check(topo, &error);
  const char *broken = taken ? NULL : law_of_reason(&error);
  bny_topo_free(topo);
  return broken;
}
