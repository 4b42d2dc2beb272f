/* SPDX-License-Identifier: Apache-2.0
 * The model of machines and clusters. Its nodes form a containment tree (host, package, NUMA node, PCI bridge, GPU,
 * NIC, port, switch), and a link joins any two nodes. A host is one machine; here "node" always means a node of this
 * tree. Each entry records where its data comes from, and each link its speed, if that is known. Probes and importers
 * fill a model through the functions below; derivation (levels, rails) only reads it.
 *
 * A GPU below a GPU is a partition of that device. It shares the device's location, PCI link and links to other nodes.
 * Partitions of one device reach one another over its NVLinks or xGMI links (NVL); if it has none, the path is PIX.
 *
 * A model owns its memory. Indices are stable, because nodes and links are never removed. The functions are not
 * thread-safe and keep no global state. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "topo/model/names.h"

typedef enum bny_topo_kind {
  BNY_TOPO_HOST,
  BNY_TOPO_PACKAGE,
  BNY_TOPO_NUMA,
  BNY_TOPO_PCI, /* bridge or switch above devices */
  BNY_TOPO_GPU,
  BNY_TOPO_NIC,
  BNY_TOPO_PORT,   /* port of a NIC */
  BNY_TOPO_SWITCH, /* NVSwitch, leaf or spine; may have any parent, or none */
  BNY_TOPO_KINDS
} bny_topo_kind;

typedef enum bny_topo_link_kind {
  BNY_TOPO_LINK_PCI, /* to the parent, or across */
  BNY_TOPO_LINK_NVLINK,
  BNY_TOPO_LINK_XGMI,
  BNY_TOPO_LINK_C2C, /* coherent CPU to GPU */
  BNY_TOPO_LINK_SYS, /* between packages or NUMA nodes */
  BNY_TOPO_LINK_NET, /* port to fabric switch, or switch to switch */
  BNY_TOPO_LINK_KINDS
} bny_topo_link_kind;

/* Path types between two devices, nearest first. */
typedef enum bny_topo_path {
  BNY_TOPO_PATH_SELF,
  BNY_TOPO_PATH_NVL, /* NVLink or xGMI, directly or through NVSwitch */
  BNY_TOPO_PATH_C2C,
  BNY_TOPO_PATH_PIX,  /* at most one PCI bridge */
  BNY_TOPO_PATH_PXB,  /* several PCI bridges, not the host bridge */
  BNY_TOPO_PATH_PHB,  /* the host bridge */
  BNY_TOPO_PATH_NODE, /* several host bridges of one NUMA node */
  BNY_TOPO_PATH_SYS,  /* between NUMA nodes */
  BNY_TOPO_PATH_NET,  /* between hosts */
  BNY_TOPO_PATH_NONE, /* no known connection */
  BNY_TOPO_PATHS
} bny_topo_path;

typedef enum bny_topo_source {
  BNY_TOPO_ASSUMED, /* default value */
  BNY_TOPO_FILE,
  BNY_TOPO_PROBED,
  BNY_TOPO_MEASURED
} bny_topo_source;

typedef struct bny_topo_node {
  bny_topo_kind kind;
  int32_t parent;         /* node index, -1 at the top */
  int32_t index;          /* the operating system's number: GPU ordinal, NUMA node, package; -1 unknown */
  const char *name;       /* "mlx5_0", "GPU0", "node1": never NULL; unique within its host for GPUs and NICs */
  const char *model;      /* "NVIDIA H100 80GB HBM3", "EPYC"; NULL unknown */
  const char *vendor;     /* NULL unknown */
  const char *bus_id;     /* "0000:1b:00.0" in lower case; NULL unknown */
  const char *guid;       /* GPUs, switches, hosts: the same in any file; NULL unknown */
  const char *attributes; /* further facts, as "class=0x020700 vendor=0x15b3": see bny_topo_attribute(); NULL none */
  int32_t compute;        /* GPU: 90 for sm_90; gfx number for AMD such as 942, 910 for gfx90a; -1 unknown */
  bool host_bridge;       /* PCI: a root complex, not a switch */
  bny_topo_source source;
  int32_t first_link; /* internal: see bny_topo_first_link */
  int32_t numas;      /* internal: NUMA nodes below, at most 64 levels deep */
} bny_topo_node;

/* A full-duplex link. It is stored once per pair of nodes, and either end may be `from`. Two kinds of nodes have a link
 * to their parent:
 *   a PCI device or switch: kind PCI, to its parent; count is lanes;
 *   a port with nothing known behind it: kind NET, to its NIC.
 * Speeds are data rates (topo/model/speed.h), not signalling rates. A virtual machine's file may link a GPU to itself;
 * such a link connects nothing. */
typedef struct bny_topo_link {
  bny_topo_link_kind kind;
  int32_t from, to;          /* node indices */
  int32_t count;             /* parallel links in this entry; NVLinks between two GPUs; PCI lanes */
  double gbytes_per_s;       /* sum over count, one direction; 0 unknown, or dead: see bny_topo_link_dead() */
  double rated_gbytes_per_s; /* hardware limit; 0 unknown */
  double latency_us;         /* 0 unknown */
  bny_topo_source source;
  int32_t next_from, next_to; /* internal: see bny_topo_next_link */
} bny_topo_link;

typedef enum bny_topo_note_kind {
  BNY_TOPO_NOTE_INPUT,     /* the input contradicts itself, or a part of it was skipped */
  BNY_TOPO_NOTE_LOST,      /* the driver cannot reach a device, or a host lists fewer devices than it has */
  BNY_TOPO_NOTE_FABRIC,    /* the NVLink fabric of a GPU does not work */
  BNY_TOPO_NOTE_ONE_SIDED, /* only the other end lists this link */
  BNY_TOPO_NOTE_DIFFERS,   /* the other end lists this link with different facts */
  BNY_TOPO_NOTE_VIRTUAL,   /* network interfaces that are not NICs */
  BNY_TOPO_NOTE_KINDS
} bny_topo_note_kind;

/* A statement of the source about health or about itself. banyan-topo makes findings from notes. */
typedef struct bny_topo_note {
  bny_topo_note_kind kind;
  int32_t node;     /* -1: the whole model (INPUT and VIRTUAL only) */
  const char *text; /* one line without a full stop */
} bny_topo_note;

typedef struct bny_topo {
  bny_topo_node *nodes;
  bny_topo_link *links;
  bny_topo_note *notes;
  int32_t nnodes, nlinks, nnotes;
  int32_t nodes_capacity, links_capacity, notes_capacity;
  bool out_of_memory; /* sticky: importers may check once at the end */
} bny_topo;

/* Where and why an input was rejected. */
typedef struct bny_topo_error {
  int line;       /* 1-based; 0 unknown */
  char text[256]; /* does not contain the line */
} bny_topo_error;

/* Writes *error and returns false, for use as `return bny_topo_fail(error, line, "...")`. The text may quote the input,
 * so every byte that is not printable ASCII becomes '?'. */
bool bny_topo_fail(bny_topo_error *error, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

bny_topo *bny_topo_new(void); /* NULL if out of memory */
void bny_topo_free(bny_topo *topo);

/* Returns the length of the UTF-8 character at `text`; 0 if it is incomplete, overlong or a surrogate. */
size_t bny_topo_character_bytes(const char *text);

/* Returns a node with these members; all others are unknown. */
bny_topo_node bny_topo_node_of(bny_topo_kind kind, int32_t parent, int32_t index, const char *name,
                               bny_topo_source source);

/* Both copy their argument and return its index. If out of memory, they return -1 and set out_of_memory. Strings are
 * truncated to 255 bytes and lose trailing blanks; invalid UTF-8 and control characters become '?'. Unknown numbers
 * must be -1 or 0 as stated above. */
int32_t bny_topo_add_node(bny_topo *topo, const bny_topo_node *node);
int32_t bny_topo_add_link(bny_topo *topo, const bny_topo_link *link);

/* Adds a link without rating or latency. */
int32_t bny_topo_join(bny_topo *topo, bny_topo_link_kind kind, int32_t from, int32_t to, int32_t count,
                      double gbytes_per_s, bny_topo_source source);

/* Replaces a string of an existing node (NULL clears it). */
bool bny_topo_set_string(bny_topo *topo, const char **field, const char *value);

/* Both add a note; add_note() adds one of kind INPUT. They return false if out of memory. */
bool bny_topo_add_note(bny_topo *topo, int32_t node, const char *format, ...) __attribute__((format(printf, 3, 4)));
bool bny_topo_add_sign(bny_topo *topo, bny_topo_note_kind kind, int32_t node, const char *text);

/* Names and values of attributes contain no blanks. put() appends name=value to the text, unless the value is NULL or
 * does not fit. bny_topo_attribute() reads a value, and returns false if the node has no attribute of that name. */
enum { BNY_TOPO_ATTRIBUTES_BYTES = 256 };
void bny_topo_attribute_put(char text[BNY_TOPO_ATTRIBUTES_BYTES], const char *name, const char *value);
bool bny_topo_attribute(const bny_topo_node *node, const char *name, char value[BNY_TOPO_ATTRIBUTES_BYTES]);

/* Returns the device that a partition belongs to; for any other node, the node itself. */
int32_t bny_topo_device(const bny_topo *topo, int32_t node);

/* Converts "00000000:1B:00.0" and "1b:00.0" to "0000:1b:00.0". Returns false if this is not a bus id. */
enum { BNY_TOPO_BUS_BYTES = 24 };
bool bny_topo_bus_normalise(const char *text, char bus_id[BNY_TOPO_BUS_BYTES]);

/* Iterate over the links at a node, last added first. Both return -1 after the last.
 *   for (int32_t l = bny_topo_first_link(topo, node); l >= 0; l = bny_topo_next_link(topo, node, l)) */
int32_t bny_topo_first_link(const bny_topo *topo, int32_t node);
int32_t bny_topo_next_link(const bny_topo *topo, int32_t node, int32_t link);
int32_t bny_topo_other_end(const bny_topo *topo, int32_t node, int32_t link);

/* Returns the link of this kind between a node and its parent; -1 if there is none. */
int32_t bny_topo_link_up(const bny_topo *topo, int32_t node, bny_topo_link_kind kind);

bool bny_topo_joins_gpus(const bny_topo_link *link); /* an NVLink or xGMI link */

/* Returns whether an NVLink, xGMI or network link has a rating but no speed. Such a link exists but carries no data,
 * because peer access is rejected or the port is down. */
bool bny_topo_link_dead(const bny_topo_link *link);

/* Links the first 64 NUMA nodes of each host to one another, at a speed that is assumed. The host's `index` selects the
 * speed. Returns false if out of memory. */
bool bny_topo_join_numas(bny_topo *topo, const double *gbytes_per_s);

/* Return the first node with that bus id, with that kind and name, or the NUMA node with that number; -1 if there is
 * none. They search linearly. */
int32_t bny_topo_find_bus(const bny_topo *topo, const char *bus_id);
int32_t bny_topo_find_name(const bny_topo *topo, bny_topo_kind kind, const char *name);
int32_t bny_topo_find_numa(const bny_topo *topo, int32_t number);
int32_t bny_topo_ancestor(const bny_topo *topo, int32_t node, bny_topo_kind kind); /* itself included; -1 if none */
bool bny_topo_is_below(const bny_topo *topo, int32_t node, int32_t above);         /* itself included */
int32_t bny_topo_nic_of(const bny_topo *topo, int32_t node); /* the NIC itself, or that of a port; -1 if none */
int32_t bny_topo_count(const bny_topo *topo, bny_topo_kind kind);

/* Checks that parents come before children, link ends exist, speeds are finite and at most 1e6 GB/s, and bus ids and
 * GPU names are unique within a host. Otherwise it returns false and sets *error. Importers must pass this check. */
bool bny_topo_check(const bny_topo *topo, bny_topo_error *error);

/* Returns the path type between two GPUs or NICs, from containment and links, as nvidia-smi topo -m names it. */
bny_topo_path bny_topo_path_between(const bny_topo *topo, int32_t a, int32_t b);

const char *bny_topo_path_name(bny_topo_path path);       /* "NVL" .. */
const char *bny_topo_kind_name(bny_topo_kind kind);       /* "host" .. */
const char *bny_topo_link_name(bny_topo_link_kind kind);  /* "nvlink" .. */
const char *bny_topo_source_name(bny_topo_source source); /* "file" .. */
const char *bny_topo_note_name(bny_topo_note_kind kind);  /* "input" .. */

/* Parse such a name. For an unknown name they return the number of kinds, such as BNY_TOPO_KINDS. */
bny_topo_kind bny_topo_kind_parse(const char *name);
bny_topo_link_kind bny_topo_link_parse(const char *name);
bny_topo_source bny_topo_source_parse(const char *name); /* unknown: BNY_TOPO_MEASURED + 1 */
bny_topo_note_kind bny_topo_note_parse(const char *name);
