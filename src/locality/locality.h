/* SPDX-License-Identifier: Apache-2.0
 * Where ranks are, and the levels that follow from that. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "locality/price.h"
#include "topo/levels/levels.h"
#include "topo/model/model.h"

/* The locality of a rank in its machine and cluster (`place`), and the levels that follow from the localities of all
 * ranks. Each rank finds its own locality once, and all localities are gathered. The levels are a pure function of
 * them, so every rank derives the same levels. A fact that one rank lacks, or that differs, gives a coarser level.
 *
 * A locality includes prices: the cost of a message at each level, as far as this rank knows it. A file with measured
 * costs on one rank therefore changes what all ranks derive, and never the plan of that rank alone. */

/* Kinds of level, inner to outer. Keys of those up to ISLAND are unique within a node only. */
typedef enum bny_locality_kind {
  BNY_LOCALITY_CACHE, /* last-level cache */
  BNY_LOCALITY_NUMA,
  BNY_LOCALITY_PACKAGE,
  BNY_LOCALITY_SWITCH, /* PCI switch */
  BNY_LOCALITY_ISLAND, /* GPUs joined by NVLink or xGMI */
  BNY_LOCALITY_HOST,   /* a node */
  BNY_LOCALITY_DOMAIN, /* GPUs joined by NVLink across nodes */
  BNY_LOCALITY_RAIL,
  BNY_LOCALITY_LEAF,
  BNY_LOCALITY_SPINE,
  BNY_LOCALITY_CORE,
  BNY_LOCALITY_KINDS
} bny_locality_kind;

typedef struct bny_locality_link {
  double alpha_ns, message_ns;
  double gbytes_per_s;       /* known; 0: not known */
  double usual_gbytes_per_s; /* used if no rank knows the speed */
  int32_t class;             /* a bny_link_class */
  int32_t source;            /* a bny_topo_source, of gbytes_per_s */
  int32_t latency_known;
} bny_locality_link;

typedef struct bny_locality_level {
  uint64_t key;           /* equal keys: one group; 0: not known */
  double up_gbytes_per_s; /* leaf, spine: of all its links to the tier above together; 0: not known */
  bny_locality_link link;
} bny_locality_level;

enum { BNY_LOCALITY_NIC_BYTES = 32, BNY_LOCALITY_SOURCE_BYTES = 160 };

/* Plain data, compared and sent as bytes. */
typedef struct bny_locality {
  bny_locality_level levels[BNY_LOCALITY_KINDS];
  bny_locality_link tcp; /* between nodes that only TCP connects */
  double merge_ns_per_byte;
  double memory_gbytes_per_s; /* speed of device memory; 0: the rank merges on its CPUs */
  double nic_gbytes_per_s;    /* the speed of the whole NIC; 0 unknown */
  uint64_t nic;               /* 0: no NIC is known; unique within a node */
  uint64_t node;              /* with BANYAN_TOPO_RANK: the file's host; 0: the real node is used */
  int32_t compute;            /* the device's bny_topo_node.compute */
  int32_t nic_source;         /* a bny_topo_source */
  int32_t rail;               /* -1 none */
  int32_t topo_rank;          /* set by BANYAN_TOPO_RANK, nodes included; -1: not set */
  char nic_name[BNY_LOCALITY_NIC_BYTES];
  char source[BNY_LOCALITY_SOURCE_BYTES]; /* the source of this locality, and missing facts; for people */
} bny_locality;

/* ---- one rank ---------------------------------------------------------------------------------------------------- */

/* The locality of rank `rank` of a model. Keys of different models may be equal only where a name or guid of a switch
 * says that both mean one thing. */
void bny_locality_of(const bny_topo *topo, const bny_topo_levels *derived, int32_t rank, const bny_prices *prices,
                     bny_locality *locality);

/* The localities of all ranks of a model, as tools show them. */
void bny_locality_of_all(const bny_topo *topo, const bny_topo_levels *derived, const bny_prices *prices,
                         bny_locality *localities);

/* The locality of a rank without a device on a NUMA node, package or host of a model. */
void bny_locality_at(const bny_topo *topo, const bny_topo_levels *derived, int32_t node, const bny_prices *prices,
                     bny_locality *locality);

/* The price of a link if only its class is known. */
bny_locality_link bny_locality_link_of(const bny_prices *prices, bny_link_class class);

/* Sets the locality of a rank if only its node is known. */
void bny_locality_unknown(const bny_prices *prices, bny_locality *locality);

/* ---- all ranks --------------------------------------------------------------------------------------------------- */

/* Facts of a communicator apart from localities. All are zero for a model. */
typedef struct bny_locality_world {
  const int32_t *node_of; /* by rank; NULL: localities set it */
  bool tcp;               /* nodes are connected by TCP alone */
  bool flat_nodes;        /* a node's ranks merge in one step, so levels within it are left out */
  double ranks_per_core;  /* 0: 1 */
} bny_locality_world;

/* The fate of one kind of level, or of "pod" or "fabric", for people. */
typedef struct bny_locality_note {
  char name[BNY_LEVEL_NAME_BYTES];
  bool kept; /* the kind is kept, as the level of that name */
  bny_link_class link;
  double gbytes_per_s;
  char speed_source[16]; /* "probed", "file", "assumed" */
  bool latency_known;    /* a source gave the latency */
  char text[200];        /* why it was left out; of one that was kept: where its figures come from */
} bny_locality_note;

enum { BNY_LOCALITY_NOTES_MAX = BNY_LOCALITY_KINDS + 2 };

typedef struct bny_locality_notes {
  int32_t count; /* in the order of the levels */
  bny_locality_note notes[BNY_LOCALITY_NOTES_MAX];
  char work[160]; /* the source of the cost of merging */
} bny_locality_notes;

/* Makes levels from the localities of all ranks. Levels nest, and separate links whose costs differ. From inner to
 * outer:
 *
 *     cache     unless it holds all ranks
 *     numa, package
 *     switch    PCI switch, if its members reach one another over PCI; the same holds for package
 *     island    as found; it replaces package or PCI switch if its NVLinks join more than these
 *     host
 *     domain    it replaces the island, because a level is left out if its links cost as much as those of the next
 *               outer level
 *     leaf      if each host is on one leaf switch
 *     pod       if leaf switches carry rails and so cut across hosts: hosts that share their leaf switches. A message
 *               between carriers of one rail crosses one leaf switch
 *     spine, core
 *     fabric    joins all ranks, if no level above does
 *
 * Rails do not nest. They are in the carriers: ranks with a NIC. BANYAN_ERR_ARGUMENT if ranks of two nodes have one
 * BANYAN_TOPO_RANK. `notes` may be NULL. The caller frees the levels. */
banyan_status bny_locality_levels(const bny_locality *all, int32_t nranks, const bny_locality_world *world,
                                  bny_locality_notes *notes, bny_levels **levels);

/* Returns the note of a level that was kept; NULL if there is none of that name. */
const bny_locality_note *bny_locality_note_of(const bny_locality_notes *notes, const char *name);

const char *bny_locality_kind_name(bny_locality_kind kind); /* "cache" .. */

/* The locality of this process: in the machine that a file describes, or in this machine as probes find it. Probes that
 * fail give a coarser locality and a note in its source. Settings that cannot be followed are errors. */

typedef struct bny_locality_query {
  const char *topo;         /* BANYAN_TOPO; NULL: this machine */
  const char *topo_rank;    /* BANYAN_TOPO_RANK: a number, or a list by rank; NULL: the rank finds itself */
  int32_t rank;             /* its number among those that the environment describes */
  const char *device;       /* "cuda:2"; NULL: none */
  const char *cuda_library; /* NULL: libcuda.so.1 */
  const char *costs;        /* BANYAN_COSTS; NULL: usual prices */
} bny_locality_query;

banyan_status bny_locality_find(const bny_locality_query *query, bny_locality *locality);

/* Adds the NIC that serves a rank without a device, which leaves its node. This looks at all PCI devices. */
void bny_locality_find_nic(bny_locality *locality);

/* The bus id of a device such as "cuda:2", as this process numbers devices. If it is not known, returns false with the
 * reason in `why`. No context is made. */
bool bny_locality_device_bus(const char *device, const char *library, char bus_id[BNY_TOPO_BUS_BYTES], char *why,
                             size_t bytes);
