/* SPDX-License-Identifier: Apache-2.0
 *
 * What banyan knows of machines and clusters: nodes in a tree of containment (host, package, NUMA node, PCI bridge, GPU, NIC,
 * port, switch) and links between any of them, each with what is known of its speed and where that was learnt. Probes
 * and importers fill a model through the functions below; derivation (levels, rails, findings) only reads it.
 *
 * A model owns its memory. Indices are stable: nodes and links are only ever added. Not thread-safe; no global state. */
#ifndef BNY_TOPO_MODEL_H
#define BNY_TOPO_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum bny_topo_kind {
  BNY_TOPO_HOST,
  BNY_TOPO_PACKAGE,
  BNY_TOPO_NUMA,
  BNY_TOPO_PCI,    /* a bridge or a switch: what devices hang below */
  BNY_TOPO_GPU,
  BNY_TOPO_NIC,
  BNY_TOPO_PORT,   /* of a NIC */
  BNY_TOPO_SWITCH, /* NVSwitch, leaf, spine: at any place of the tree, or at its top */
  BNY_TOPO_KINDS
} bny_topo_kind;

typedef enum bny_topo_link_kind {
  BNY_TOPO_LINK_PCI,    /* to the parent, or across */
  BNY_TOPO_LINK_NVLINK,
  BNY_TOPO_LINK_XGMI,
  BNY_TOPO_LINK_C2C,    /* coherent CPU to GPU */
  BNY_TOPO_LINK_SYS,    /* between packages or NUMA nodes */
  BNY_TOPO_LINK_NET,    /* port to fabric switch, or switch to switch */
  BNY_TOPO_LINK_KINDS
} bny_topo_link_kind;

/* How near two devices are, nearest first. */
typedef enum bny_topo_path {
  BNY_TOPO_PATH_SELF,
  BNY_TOPO_PATH_NVL,  /* NVLink or xGMI, directly or through NVSwitch */
  BNY_TOPO_PATH_C2C,
  BNY_TOPO_PATH_PIX,  /* at most one PCI bridge */
  BNY_TOPO_PATH_PXB,  /* several PCI bridges, not the host bridge */
  BNY_TOPO_PATH_PHB,  /* the host bridge */
  BNY_TOPO_PATH_NODE, /* several host bridges of one NUMA node */
  BNY_TOPO_PATH_SYS,  /* between NUMA nodes */
  BNY_TOPO_PATH_NET,  /* between hosts */
  BNY_TOPO_PATH_NONE, /* not connected as far as is known */
  BNY_TOPO_PATHS
} bny_topo_path;

typedef enum bny_topo_source {
  BNY_TOPO_ASSUMED, /* a default of ours */
  BNY_TOPO_FILE,
  BNY_TOPO_PROBED,
  BNY_TOPO_MEASURED
} bny_topo_source;

typedef struct bny_topo_node {
  bny_topo_kind kind;
  int32_t parent;      /* node index, -1 at the top */
  int32_t index;       /* the system's own number: GPU ordinal, NUMA node, package; -1 unknown */
  char *name;          /* "mlx5_0", "GPU0", "node1": never NULL; unique within its host for GPUs and NICs */
  char *model;         /* "NVIDIA H100 80GB HBM3", "EPYC"; NULL unknown */
  char *vendor;        /* NULL unknown */
  char *bus_id;        /* "0000:1b:00.0" in lower case; NULL unknown */
  char *guid;          /* ports, NICs, switches; NULL unknown */
  int32_t compute;     /* GPU: 90 for sm_90; gfx number for AMD such as 942, 910 for gfx90a; -1 unknown */
  bool host_bridge;    /* PCI: a root complex, not a switch */
  bny_topo_source source;
  int32_t first_link;  /* the model's own: see bny_topo_first_link */
  int32_t numas;       /* the model's own: how many NUMA nodes are below, at most 64 levels deep */
} bny_topo_node;

/* Full duplex, and once for a pair of nodes, whichever end is `from`. What is said of a node's way to the rest of the machine:
 *   a PCI device or switch: kind PCI, to its parent; count is lanes;
 *   a port with nothing known behind it: kind NET, to its NIC.
 * Speeds are what data gets on such a link (topo/speed.h), not signalling rates. A file of a virtual machine may hold a link
 * from a GPU to itself: it joins nothing. */
typedef struct bny_topo_link {
  bny_topo_link_kind kind;
  int32_t from, to;        /* node indices */
  int32_t count;           /* parallel links in one; NVLinks between two GPUs; PCI lanes */
  double gbytes_per_s;     /* of all of them, in one direction; 0 unknown, or dead: see bny_topo_link_dead() */
  double rated_gbytes_per_s; /* what the hardware could do; 0 unknown */
  double latency_us;       /* 0 unknown */
  bny_topo_source source;
  int32_t next_from, next_to; /* the model's own: see bny_topo_next_link */
} bny_topo_link;

typedef struct bny_topo {
  bny_topo_node *nodes;
  bny_topo_link *links;
  int32_t nnodes, nlinks;
  int32_t nodes_capacity, links_capacity;
  bool out_of_memory; /* sticky: importers may check once at the end */
} bny_topo;

/* Where and why an input was refused. */
typedef struct bny_topo_error {
  int line;       /* 1-based; 0 unknown */
  char text[256]; /* without the line */
} bny_topo_error;

/* Words *error and returns false, so that `return bny_topo_fail(error, line, "...")` reads well. Words of the input may
 * stand in it: what is not printable ASCII becomes '?'. */
bool bny_topo_fail(bny_topo_error *error, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

bny_topo *bny_topo_new(void); /* NULL without memory */
void bny_topo_free(bny_topo *topo);

/* Strings of *node are copied; what is not UTF-8 or not printable in them becomes '?', blanks at the end go, 255 bytes are
 * kept. Return the index, or -1 (and set out_of_memory). Unset numbers must be -1 or 0 as the comments above say. */
int32_t bny_topo_add_node(bny_topo *topo, const bny_topo_node *node);
int32_t bny_topo_add_link(bny_topo *topo, const bny_topo_link *link);

/* Replaces a string of a node that was added (NULL clears it). */
bool bny_topo_set_string(bny_topo *topo, char **field, const char *value);

/* "00000000:1B:00.0" and "1b:00.0" into "0000:1b:00.0"; false if this is not a bus id. */
enum { BNY_TOPO_BUS_BYTES = 24 };
bool bny_topo_bus_normalise(const char *text, char bus_id[BNY_TOPO_BUS_BYTES]);

/* The links of a node, at either end; -1 after the last. The latest added comes first.
 *   for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) */
int32_t bny_topo_first_link(const bny_topo *topo, int32_t node);
int32_t bny_topo_next_link(const bny_topo *topo, int32_t node, int32_t link);
int32_t bny_topo_other_end(const bny_topo *topo, int32_t node, int32_t link);

/* A link of NVLink, xGMI or the network that has a rating and no speed: it is there and carries nothing (peer access is
 * refused, the port is down). */
bool bny_topo_link_dead(const bny_topo_link *link);

/* The first node with that bus id, or of that kind and name; -1 if there is none. Each looks at every node. */
int32_t bny_topo_find_bus(const bny_topo *topo, const char *bus_id);
int32_t bny_topo_find_name(const bny_topo *topo, bny_topo_kind kind, const char *name);
int32_t bny_topo_ancestor(const bny_topo *topo, int32_t node, bny_topo_kind kind); /* itself included; -1 if none */
int32_t bny_topo_count(const bny_topo *topo, bny_topo_kind kind);

/* Parents come before children, links join nodes that exist, speeds are finite and not absurd (at most 1e6 GB/s), bus ids and
 * GPU names are unique within a host. False and *error if not. Every importer's result must pass. */
bool bny_topo_check(const bny_topo *topo, bny_topo_error *error);

/* The path type between two GPUs, NICs or a pair of them, from containment and links. */
bny_topo_path bny_topo_path_between(const bny_topo *topo, int32_t a, int32_t b);
const char *bny_topo_path_name(bny_topo_path path); /* "NVL" .. */
const char *bny_topo_kind_name(bny_topo_kind kind); /* "host" .. */
const char *bny_topo_link_name(bny_topo_link_kind kind); /* "nvlink" .. */
const char *bny_topo_source_name(bny_topo_source source); /* "file" .. */

/* The reverse, by BNY_TOPO_KINDS and the like and the name functions; the count (KINDS ..) if there is no such name. */
bny_topo_kind bny_topo_kind_parse(const char *name);
bny_topo_link_kind bny_topo_link_parse(const char *name);
bny_topo_source bny_topo_source_parse(const char *name); /* BNY_TOPO_MEASURED + 1 */

/* ---- importers: one file and one row each ------------------------------------------------------------------------ */

typedef struct bny_topo_importer {
  const char *name; /* "nccl-xml" */
  /* Whether this text looks like its format; looks at the content alone, never fails. */
  bool (*recognises)(const char *text, size_t bytes);
  /* Adds to an empty model. `text` is not NUL-terminated and may hold anything. False and *error if refused. Bounded time
   * and memory: at most 64 MiB of input, depth 64, 1e6 nodes. */
  bool (*parse)(const char *text, size_t bytes, bny_topo *topo, bny_topo_error *error);
} bny_topo_importer;

extern const bny_topo_importer *const bny_topo_importers[]; /* ends with NULL; topo/importers.def has the rows */

/* By content; *importer may be NULL, else receives the one that took it. The model is checked. NULL and *error if refused. */
bny_topo *bny_topo_import(const char *text, size_t bytes, const char **importer_name, bny_topo_error *error);

/* A file, or a synthetic string if no such file exists and it looks like one. The text of *error then begins with "FILE:LINE: "
 * and is whole. */
bny_topo *bny_topo_load(const char *path_or_synthetic, const char **importer_name, bny_topo_error *error);

#endif
