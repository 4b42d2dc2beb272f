/* SPDX-License-Identifier: Apache-2.0
 * Descriptions of machines in one line of text: items are parsed, then a model is built of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/import/import.h"
#include "topo/model/speed.h"
#include "tools/topo/import/text.h"

/* A description lists the parts of a machine or cluster from the outside in:
 *
 *     leaf:2 host:8 nvswitch gpu:8 nic:8@400g
 *     nvswitch host:18 package:2 gpu:2@sm100@c2c nic:2@400g
 *     host package:2 pci:4 gpu@sm90@gen5x16 nic@400g@gen5x16
 *
 *     description = item { blank item }            on one line; lines that start with # are comments
 *     item        = name [ ":" count ] { "@" attribute }        count: 1 to 65536, 1 if omitted
 *
 * An item occurs `count` times in each instance of the items before it. Devices (gpu, nic) belong to the container
 * opened last, and later items are their siblings: "gpu:8 nic:8" is eight of each. Fabric containers are outside hosts,
 * the others inside. If the text contains no host, one is added.
 *
 *     name        meaning                                    attributes
 *     spine       hosts under one spine switch               uplink speed, e.g. 3200g
 *     leaf        hosts under one leaf switch; "fabric" is   rails: a switch for each NIC of a host, the first NIC
 *                 the same                                   of every host on the first; speed of each uplink
 *     host
 *     nvswitch    GPUs below are joined by NVSwitch, also    links of each GPU (18): a number; speed of each link
 *                 across hosts if outside them
 *     nvlink      each two GPUs below have a link            links between two (1); speed of each link
 *     xgmi        the same over AMD's links                  the same
 *     package     a CPU package
 *     numa        a NUMA node
 *     bridge      a host bridge
 *     pci         a PCI switch; they nest                    genGxW: its own link upwards
 *     gpu                                                    smNN or gfxNNN; genGxW; c2c: a coherent link to the CPU
 *                                                            (with a speed: c2c450GB)
 *     nic                                                    speed of its port; 2x200g: two ports; genGxW
 *
 * Speeds are in one direction: 400g is 400 Gb/s, 50GB is 50 GB/s. Omitted values are unknown, with two exceptions.
 * Links between GPUs of a known generation get that generation's speed, and a leaf's uplink gets the sum of the links
 * below it; both are marked as assumed. If the outermost fabric container has a count, one switch above joins its
 * instances. Hosts are named host0, host1 .., GPUs GPU0 .. and NICs NIC0 .. in each; PCI devices get bus ids in the
 * order of the text. */

enum { COUNT_MAX = 65536, ITEMS_MAX = 32, NODES_MAX = 1000000, MESH_MAX = 64, RAILS_MAX = 256, WORD_BYTES = 49 };

static const double absurd_gbytes_per_s = 1e6;

/* Containers are in this order from the outside in. */
enum { SPINE, LEAF, NVSWITCH, NVLINK, XGMI, HOST, CPUS, NUMA, BRIDGE, PCI, GPU, NIC, KINDS };

typedef struct item {
  int kind;
  int32_t count;
  int32_t links;       /* 0 unknown */
  double gbytes_per_s; /* each link, port or uplink has it; 0 unknown */
  int32_t ports;
  int32_t compute;                   /* -1 unknown */
  int32_t pci_generation, pci_lanes; /* 0 unknown */
  bool rails, c2c;
  int line;
} item;

/* Attributes that an item may have. */
enum { LINKS = 1, SPEED = 2, PORTS = 4, COMPUTE = 8, WIDTH = 16, RAILS = 32, C2C = 64 };

static const struct {
  const char *name;
  int kind;
  bny_topo_kind node;
  int attributes;
} names[] = {
    {"spine", SPINE, BNY_TOPO_SWITCH, SPEED},
    {"leaf", LEAF, BNY_TOPO_SWITCH, SPEED | RAILS},
    {"nvswitch", NVSWITCH, BNY_TOPO_SWITCH, LINKS | SPEED},
    {"nvlink", NVLINK, BNY_TOPO_KINDS, LINKS | SPEED},
    {"xgmi", XGMI, BNY_TOPO_KINDS, LINKS | SPEED},
    {"host", HOST, BNY_TOPO_HOST, 0},
    {"package", CPUS, BNY_TOPO_PACKAGE, 0},
    {"numa", NUMA, BNY_TOPO_NUMA, 0},
    {"bridge", BRIDGE, BNY_TOPO_PCI, 0},
    {"pci", PCI, BNY_TOPO_PCI, WIDTH},
    {"gpu", GPU, BNY_TOPO_GPU, COMPUTE | WIDTH | C2C},
    {"nic", NIC, BNY_TOPO_NIC, SPEED | PORTS | WIDTH},
    {"fabric", LEAF, BNY_TOPO_SWITCH, SPEED | RAILS}, /* after those whose place is their kind */
};

static bool is_device(const item *one) { return one->kind == GPU || one->kind == NIC; }

/* Returns whether the item only links the GPUs below it. */
static bool is_joint(const item *one) { return one->kind == NVSWITCH || one->kind == NVLINK || one->kind == XGMI; }

/* ---- items ------------------------------------------------------------------------------------------------------- */

/* Reads "400g" or "46.5GB". */
static bool speed_read(const char *text, double *gbytes_per_s) {
  size_t digits = strspn(text, "0123456789.");
  char *unit;
  double value = digits > 0 && digits <= 12 ? strtod(text, &unit) : 0;
  if (value <= 0 || unit != text + digits || (strcmp(unit, "g") != 0 && strcmp(unit, "GB") != 0)) return false;
  *gbytes_per_s = unit[1] == 'B' ? value : value / 8;
  return true;
}

/* Reads the two numbers of "gen5x16", or the number before the x of "2x200g", whose rest it returns; NULL: neither. */
static const char *number_before_x(const char *text, int32_t most, int32_t *number) {
  char digits[8];
  const char *x = strchr(text, 'x');
  if (x == NULL || (size_t)(x - text) >= sizeof digits) return NULL;
  snprintf(digits, sizeof digits, "%.*s", (int)(x - text), text);
  return bny_topo_number(digits, most, number) && *number > 0 ? x + 1 : NULL;
}

/* Reads one attribute. Returns its kind, or 0 if it is not an attribute. */
static int attribute_read(const char *text, item *one) {
  const char *rest;
  if (strcmp(text, "rails") == 0) return one->rails = true, RAILS;
  if (strncmp(text, "c2c", 3) == 0) {
    one->c2c = true;
    return text[3] == '\0' || speed_read(text + 3, &one->gbytes_per_s) ? C2C : 0;
  }
  if (strncmp(text, "gen", 3) == 0) {
    rest = number_before_x(text + 3, 7, &one->pci_generation);
    return rest != NULL && bny_topo_number(rest, 32, &one->pci_lanes) && one->pci_lanes > 0 ? WIDTH : 0;
  }
  if (strcmp(text, "gfx90a") == 0) return one->compute = 910, COMPUTE;
  if (strncmp(text, "sm", 2) == 0 || strncmp(text, "gfx", 3) == 0)
    return bny_topo_number(text + (text[0] == 's' ? 2 : 3), 9999, &one->compute) ? COMPUTE : 0;
  if (bny_topo_number(text, 1000, &one->links)) return one->links > 0 ? LINKS : 0;
  if (speed_read(text, &one->gbytes_per_s)) return SPEED;
  rest = number_before_x(text, 16, &one->ports);
  return rest != NULL && speed_read(rest, &one->gbytes_per_s) ? PORTS : 0;
}

/* Lists the attributes that an item accepts: "sm90 or gfx942, gen5x16, c2c". */
static void attributes_name(int allowed, char text[128]) {
  static const char *const words[] = {
      "a number of links", "a speed such as 400g or 50GB", "2x200g", "sm90 or gfx942", "gen5x16", "rails", "c2c"};
  size_t used = (size_t)snprintf(text, 128, "%s", allowed ? "" : "nothing");
  for (int i = 0; i < 7; i++)
    if (allowed >> i & 1) used += (size_t)snprintf(text + used, 128 - used, "%s%s", used > 0 ? ", " : "", words[i]);
}

/* Finds the row of names[] of the word's name; -1: none. */
static int name_of(const char *word) {
  size_t length = strcspn(word, ":@");
  int which = (int)(sizeof names / sizeof names[0]) - 1;
  while (which >= 0 && (strlen(names[which].name) != length || strncmp(names[which].name, word, length) != 0)) which--;
  return which;
}

static bool item_read(const char *word, int line, item *one, bny_topo_error *error) {
  char parts[WORD_BYTES], takes[128], *rest = parts;
  int which = name_of(word), said = 0;
  if (which < 0)
    return bny_topo_fail(error, line,
                         "\"%.*s\" is not a kind of item: spine, leaf, host, nvswitch, nvlink, xgmi, package, numa, "
                         "bridge, pci, gpu and nic are",
                         (int)strcspn(word, ":@"), word);
  *one = (item){.kind = names[which].kind, .count = 1, .ports = 1, .compute = -1, .line = line};
  snprintf(parts, sizeof parts, "%s", word);
  rest += strcspn(rest, ":@");
  for (bool first = true; *rest != '\0'; first = false) {
    char separator = *rest, *part = rest + 1, *end = part + strcspn(part, ":@"), next = *end;
    *end = '\0';
    rest = end;
    if (separator == ':') {
      if (!first || !bny_topo_number(part, COUNT_MAX, &one->count) || one->count < 1)
        return bny_topo_fail(error, line, "\"%s\": one count of 1 to %d follows the name", word, COUNT_MAX);
    } else {
      int what = attribute_read(part, one), allowed = names[which].attributes;
      bool twice = (what & said) != 0 || ((what & (SPEED | PORTS)) && (said & (SPEED | PORTS)));
      attributes_name(allowed, takes);
      if (what == 0 || !(what & allowed) || twice)
        return bny_topo_fail(error, line, "\"%s\": %s cannot be said of %s, which takes %s", word,
                             twice ? "two of this kind" : "this", names[which].name, takes);
      said |= what;
    }
    *end = next;
  }
  return true;
}

/* Checks that containers are in the order of their kinds, except nested PCI switches, and that devices are inside a
 * host. */
static bool order_check(const item *items, int count, bny_topo_error *error) {
  const item *outer = NULL;
  bool joined = false, in_host = false;
  for (int i = 0; i < count; i++) {
    const item *one = &items[i];
    bool nests = one->kind == PCI && outer != NULL && outer->kind == PCI;
    in_host = in_host || one->kind == HOST;
    if (is_joint(one) && joined)
      return bny_topo_fail(error, one->line, "GPUs are joined twice: by %s as well", names[one->kind].name);
    if (is_device(one) && !in_host)
      return bny_topo_fail(error, one->line, "%s outside of a host", names[one->kind].name);
    joined = joined || is_joint(one);
    if (is_joint(one) || is_device(one)) continue;
    if (outer != NULL && outer->kind >= one->kind && !nests)
      return bny_topo_fail(error, one->line, "%s inside of %s", names[one->kind].name, names[outer->kind].name);
    outer = one;
  }
  return true;
}

/* If the text has no host, inserts one directly inside the fabric containers. */
static bool host_put_in(item *items, int *count, bny_topo_error *error) {
  int place = 0;
  for (int i = 0; i < *count; i++)
    if (items[i].kind == HOST) return true;
  while (place < *count && items[place].kind <= LEAF) place++;
  if (*count == ITEMS_MAX) return bny_topo_fail(error, items[0].line, "more than %d items", ITEMS_MAX - 1);
  memmove(&items[place + 1], &items[place], (size_t)(*count - place) * sizeof *items);
  items[place] = (item){.kind = HOST, .count = 1, .compute = -1, .ports = 1, .line = items[0].line};
  ++*count;
  return true;
}

/* Returns the next word that no comment holds, at most as long as errors show it; NULL at the end. */
static char *word_next(bny_topo_lines *lines, char **line) {
  for (;;) {
    char *word = *line == NULL ? NULL : bny_topo_word(line);
    if (word != NULL && strlen(word) >= WORD_BYTES) word[WORD_BYTES - 1] = '\0';
    if (word != NULL) return word;
    do
      if ((*line = bny_topo_lines_next(lines)) == NULL) return NULL;
    while ((*line)[strspn(*line, " \t")] == '#');
  }
}

static bool items_read(bny_topo_lines *lines, item items[ITEMS_MAX], int *count, bny_topo_error *error) {
  char *line = NULL, *word;
  for (*count = 0; (word = word_next(lines, &line)) != NULL; ++*count) {
    if (*count == ITEMS_MAX) return bny_topo_fail(error, lines->line, "more than %d items", ITEMS_MAX);
    if (*count > 0 && items[0].line != lines->line)
      return bny_topo_fail(error, lines->line, "a second line: a description is on one, which is line %d",
                           items[0].line);
    if (!item_read(word, lines->line, &items[*count], error)) return false;
  }
  if (*count == 0) return bny_topo_fail(error, 0, "no item in it");
  return host_put_in(items, count, error) && order_check(items, *count, error);
}

static bool recognises(const char *text, size_t bytes) {
  enum { LOOKED_AT = 1 << 20 };
  bny_topo_lines lines = bny_topo_lines_of(text, bytes < LOOKED_AT ? bytes : LOOKED_AT);
  char *line = NULL, *word = word_next(&lines, &line);
  bool known = word != NULL && name_of(word) >= 0;
  free(lines.copy);
  return known;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* A fabric switch and the bandwidth below it. */
typedef struct fabric_switch {
  int32_t node;
  double below_gbytes_per_s;
} fabric_switch;

typedef struct builder {
  const item *items;
  int count;
  bny_topo *topo;
  int32_t *gpus; /* nodes of all GPUs so far */
  int32_t ngpus, gpus_capacity;
  int32_t nic_in_host, bus_in_host;
  int32_t next_index[KINDS];       /* number of the next container or GPU, in its host or overall */
  fabric_switch leaves[RAILS_MAX]; /* switches of the open leaf item */
  int32_t nleaves;
  fabric_switch spine, core; /* open spine and core; node -1: none */
} builder;

static int32_t node_add(builder *b, bny_topo_kind kind, int32_t parent, const char *prefix, int32_t index,
                        const item *one) {
  char name[32], bus[BNY_TOPO_BUS_BYTES];
  snprintf(name, sizeof name, "%s%d", prefix, index);
  bny_topo_node node = bny_topo_node_of(kind, parent, index, name, BNY_TOPO_FILE);
  if (one->kind == BRIDGE)
    node.host_bridge = true;
  else if (kind == BNY_TOPO_PCI || kind == BNY_TOPO_GPU || kind == BNY_TOPO_NIC) {
    snprintf(bus, sizeof bus, "%04x:%02x:00.0", (unsigned)b->bus_in_host / 255, (unsigned)b->bus_in_host % 255 + 1);
    b->bus_in_host++;
    node.bus_id = bus;
  }
  if (kind == BNY_TOPO_GPU) node.compute = one->compute;
  return bny_topo_add_node(b->topo, &node);
}

static void link_add(builder *b, bny_topo_link_kind kind, int32_t from, int32_t to, int32_t count, double gbytes_per_s,
                     bny_topo_source source) {
  int32_t link = bny_topo_join(b->topo, kind, from, to, count, gbytes_per_s, source);
  if (link >= 0) b->topo->links[link].rated_gbytes_per_s = gbytes_per_s;
}

static void pci_link_add(builder *b, int32_t node, const item *one) {
  int32_t parent = b->topo->nodes[node].parent;
  if (one->pci_generation > 0)
    link_add(b, BNY_TOPO_LINK_PCI, node, parent, one->pci_lanes,
             bny_topo_speed_pci(one->pci_generation, one->pci_lanes), BNY_TOPO_FILE);
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

static bool gpu_add(builder *b, int32_t parent, const item *one) {
  if (!bny_topo_grow(&b->gpus, b->ngpus, &b->gpus_capacity, sizeof *b->gpus)) return false;
  int32_t gpu = node_add(b, BNY_TOPO_GPU, parent, "GPU", b->next_index[GPU]++, one);
  if (gpu < 0) return false;
  b->gpus[b->ngpus++] = gpu;
  pci_link_add(b, gpu, one);
  if (one->c2c) {
    int32_t cpu = parent;
    while (b->topo->nodes[cpu].kind == BNY_TOPO_PCI) cpu = b->topo->nodes[cpu].parent;
    link_add(b, BNY_TOPO_LINK_C2C, gpu, cpu, 1, one->gbytes_per_s, BNY_TOPO_FILE);
  }
  return true;
}

/* Ports are linked to the leaf of the NIC's rail, or to the NIC itself if there is no fabric. */
static bool nic_add(builder *b, int32_t parent, const item *one) {
  int32_t number = b->nic_in_host++;
  int32_t nic = node_add(b, BNY_TOPO_NIC, parent, "NIC", number, one);
  if (nic < 0) return false;
  pci_link_add(b, nic, one);
  fabric_switch *leaf = b->nleaves ? &b->leaves[number % b->nleaves] : NULL;
  for (int32_t i = 1; i <= one->ports; i++) {
    int32_t port = node_add(b, BNY_TOPO_PORT, nic, "", i, one);
    if (port < 0) return false;
    link_add(b, BNY_TOPO_LINK_NET, port, leaf ? leaf->node : nic, 1, one->gbytes_per_s, BNY_TOPO_FILE);
    if (leaf) leaf->below_gbytes_per_s += one->gbytes_per_s;
  }
  return true;
}

/* ---- links between GPUs ------------------------------------------------------------------------------------------ */

static double gpu_link_speed(const builder *b, const item *one, int32_t gpu, bny_topo_source *source) {
  int32_t compute = b->topo->nodes[gpu].compute;
  *source = one->gbytes_per_s > 0 || compute < 0 ? BNY_TOPO_FILE : BNY_TOPO_ASSUMED;
  if (one->gbytes_per_s > 0) return one->gbytes_per_s;
  if (compute < 0) return 0;
  return one->kind == XGMI ? bny_topo_speed_xgmi(compute) : bny_topo_speed_nvlink(compute);
}

/* Links the item's GPUs, which begin at `first`. `joint` is the NVSwitch. */
static void gpus_join(builder *b, const item *one, int32_t first, int32_t joint) {
  bny_topo_source source;
  for (int32_t i = first; i < b->ngpus; i++) {
    double speed = gpu_link_speed(b, one, b->gpus[i], &source);
    if (one->kind == NVSWITCH) {
      int32_t links = one->links ? one->links : 18;
      link_add(b, BNY_TOPO_LINK_NVLINK, b->gpus[i], joint, links, links * speed, source);
      continue;
    }
    int32_t links = one->links ? one->links : 1;
    bny_topo_link_kind kind = one->kind == XGMI ? BNY_TOPO_LINK_XGMI : BNY_TOPO_LINK_NVLINK;
    for (int32_t j = i + 1; j < b->ngpus; j++) link_add(b, kind, b->gpus[i], b->gpus[j], links, links * speed, source);
  }
}

/* ---- containers -------------------------------------------------------------------------------------------------- */

/* Counts the NICs of a host. A leaf with rails has as many switches. */
static int64_t nics_of_host(const item *items, int count) {
  int64_t units = 1, nics = 0;
  bool in_host = false;
  for (int i = 0; i < count && units <= NODES_MAX; i++)
    if (items[i].kind == HOST)
      in_host = true;
    else if (in_host && items[i].kind == NIC)
      nics += units * items[i].count;
    else if (in_host && items[i].kind != GPU)
      units *= items[i].count;
  return nics;
}

static bool leaf_open(builder *b, const item *one, int32_t number) {
  int64_t wanted = one->rails ? nics_of_host(b->items, b->count) : 1;
  if (wanted == 0) wanted = 1;
  b->nleaves = 0;
  for (int32_t rail = 0; rail < wanted; rail++) {
    int32_t index = (int32_t)(number * wanted) + rail;
    int32_t node = node_add(b, BNY_TOPO_SWITCH, -1, "leaf", index, one);
    if (node < 0) return false;
    b->leaves[b->nleaves++] = (fabric_switch){.node = node};
  }
  return true;
}

static void uplink_add(builder *b, const fabric_switch *from, fabric_switch *to, const item *one) {
  double said = one->gbytes_per_s;
  double speed = said > 0 ? said : from->below_gbytes_per_s;
  if (speed > absurd_gbytes_per_s) speed = absurd_gbytes_per_s;
  link_add(b, BNY_TOPO_LINK_NET, from->node, to->node, 1, speed, said > 0 ? BNY_TOPO_FILE : BNY_TOPO_ASSUMED);
  to->below_gbytes_per_s += speed;
}

static bool build(builder *b, int at, int32_t parent);

static bool leaf_build(builder *b, int at) {
  const item *one = &b->items[at];
  bool above_missing = b->spine.node < 0 && one->count > 1;
  if (above_missing) b->spine = (fabric_switch){.node = node_add(b, BNY_TOPO_SWITCH, -1, "spine", 0, one)};
  for (int32_t unit = 0; unit < one->count; unit++) {
    if (!leaf_open(b, one, b->next_index[LEAF]++) || !build(b, at + 1, -1)) return false;
    for (int32_t rail = 0; rail < b->nleaves && b->spine.node >= 0; rail++)
      uplink_add(b, &b->leaves[rail], &b->spine, one);
  }
  return true;
}

static bool spine_build(builder *b, int at) {
  const item *one = &b->items[at];
  b->core.node = one->count > 1 ? node_add(b, BNY_TOPO_SWITCH, -1, "core", 0, one) : -1;
  for (int32_t unit = 0; unit < one->count; unit++) {
    b->spine = (fabric_switch){.node = node_add(b, BNY_TOPO_SWITCH, -1, "spine", unit, one)};
    if (b->spine.node < 0 || !build(b, at + 1, -1)) return false;
    if (b->core.node >= 0) uplink_add(b, &b->spine, &b->core, one);
  }
  return true;
}

static bool joint_build(builder *b, int at, int32_t parent) {
  const item *one = &b->items[at];
  for (int32_t unit = 0; unit < one->count; unit++) {
    int32_t first = b->ngpus, joint = -1;
    if (one->kind == NVSWITCH) joint = node_add(b, BNY_TOPO_SWITCH, parent, "nvswitch", b->next_index[NVSWITCH]++, one);
    if (!build(b, at + 1, parent)) return false;
    if (one->kind != NVSWITCH || joint >= 0) gpus_join(b, one, first, joint);
  }
  return true;
}

static bool container_build(builder *b, int at, int32_t parent) {
  const item *one = &b->items[at];
  for (int32_t unit = 0; unit < one->count; unit++) {
    if (one->kind == HOST) {
      b->nic_in_host = b->bus_in_host = 0;
      for (int kind = CPUS; kind < KINDS; kind++) b->next_index[kind] = 0;
    }
    int32_t node = node_add(b, names[one->kind].node, parent, names[one->kind].name, b->next_index[one->kind]++, one);
    if (node < 0) return false;
    if (one->kind == PCI) pci_link_add(b, node, one);
    if (!build(b, at + 1, node)) return false;
  }
  return true;
}

/* Builds the items from `at` on inside `parent`; returns false if out of memory. The recursion depth is the number of
 * items. */
static bool build(builder *b, int at, int32_t parent) {
  for (; at < b->count; at++) {
    const item *one = &b->items[at];
    if (one->kind == SPINE) return spine_build(b, at);
    if (one->kind == LEAF) return leaf_build(b, at);
    if (is_joint(one)) return joint_build(b, at, parent);
    if (!is_device(one)) return container_build(b, at, parent);
    for (int32_t i = 0; i < one->count; i++)
      if (!(one->kind == GPU ? gpu_add : nic_add)(b, parent, one)) return false;
  }
  return !b->topo->out_of_memory;
}

/* Bounds the size of the model before anything is built. */
static bool size_check(const item *items, int count, bny_topo_error *error) {
  int64_t units = 1, nodes = 0, gpus_joined = 0, joints = -1;
  for (int i = 0; i < count; i++) {
    int64_t here = units * items[i].count;
    nodes += here * (items[i].kind == NIC ? 1 + items[i].ports : 1);
    if (items[i].kind == LEAF && items[i].rails) {
      int64_t rails = nics_of_host(items, count);
      if (rails > RAILS_MAX) return bny_topo_fail(error, items[i].line, "more than %d rails", RAILS_MAX);
      nodes += here * rails;
    }
    if (nodes > NODES_MAX) return bny_topo_fail(error, items[i].line, "more than %d nodes", NODES_MAX);
    if (items[i].kind == NVLINK || items[i].kind == XGMI) joints = here;
    if (items[i].kind == GPU && joints > 0) gpus_joined += here / joints;
    if (gpus_joined > MESH_MAX)
      return bny_topo_fail(error, items[i].line, "more than %d GPUs linked each to each", MESH_MAX);
    if (!is_device(&items[i])) units = here;
  }
  return true;
}

static bool parse(const char *text, size_t bytes, bny_topo *topo, bny_topo_error *error) {
  item items[ITEMS_MAX];
  int count;
  bny_topo_lines lines = bny_topo_lines_of(text, bytes);
  bool good = lines.copy != NULL && items_read(&lines, items, &count, error) && size_check(items, count, error);
  free(lines.copy);
  if (!good) return false;
  builder *b = calloc(1, sizeof *b);
  bool built = false;
  if (b) {
    *b = (builder){.items = items, .count = count, .topo = topo, .spine = {.node = -1}, .core = {.node = -1}};
    built = build(b, 0, -1) && !topo->out_of_memory;
    free(b->gpus);
  }
  free(b);
  return built;
}

const bny_topo_importer bny_topo_import_synthetic = {.name = "synthetic", .recognises = recognises, .parse = parse};
