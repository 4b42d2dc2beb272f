/* SPDX-License-Identifier: Apache-2.0
 * From what is derived of a topology (topo/derive/levels.h) to the facts that plans are made from (src/plan/levels.h).
 *
 * Levels of plans nest and tell apart links that cost differently. Taken, from inner to outer:
 *
 *     package   where its members reach one another over PCI or memory; not where NVLinks join more than it
 *     island    as derived
 *     host
 *     domain    then it is the island: a level whose links cost what those of the next outer level cost is left out
 *     leaf      where hosts are whole on one leaf switch
 *     pod       where leaf switches carry rails, and so cut across hosts: hosts that share their leaf switches. What
 *               goes from carrier to carrier of a rail takes one leaf switch
 *     spine, core
 *     fabric    what joins everything, where no level above does
 *
 * Rails themselves do not nest. They are in the carriers: ranks with a NIC. */
#ifndef PLAN_LEVELS_H
#define PLAN_LEVELS_H

#include "place/price.h"
#include "plan/levels.h"
#include "topo/derive/levels.h"
#include "topo/model/model.h"

/* What became of one derived level, or of "pod" or "fabric", for people. */
typedef struct plan_level_note {
  char name[BNY_LEVEL_NAME_BYTES];
  bool kept; /* it is the level of that name */
  bny_link_class link;
  double gbytes_per_s;
  char speed_source[16]; /* "probed", "file", "assumed" */
  bool latency_known;    /* way_ns is the topology's */
  char text[200];        /* why it was left out; of one that was kept: where its figures come from */
} plan_level_note;

enum { PLAN_NOTES_MAX = BNY_TOPO_LEVEL_KINDS + 2 };

typedef struct plan_level_notes {
  int32_t count; /* in the order of the levels */
  plan_level_note notes[PLAN_NOTES_MAX];
  char work[160]; /* where the cost of merging comes from */
} plan_level_notes;

/* `notes` may be NULL. A topology without a rank is refused. Levels are for bny_levels_free(). */
banyan_status plan_levels_of(const bny_topo *topo, const bny_topo_levels *derived, plan_level_notes *notes,
                             bny_levels **levels);

/* The note of a level that was kept; NULL if there is none of that name. */
const plan_level_note *plan_level_note_of(const plan_level_notes *notes, const char *name);

#endif
