/* SPDX-License-Identifier: Apache-2.0
 * Imports NCCL's topology XML, as NCCL_TOPO_DUMP_FILE writes it and NCCL_TOPO_FILE reads it. RCCL's XML works too (xgmi
 * for nvlink, gcn for sm). <cpu> is a NUMA node. <pci> is a GPU or NIC, by its content or class, or a bridge. A second
 * <gpu> in a <pci> is another partition of the device. <nic> is the NIC of the enclosing <pci>; in a virtual machine it
 * may stand directly below <cpu>. <net> is a port of that NIC, unless it has the name of a virtual interface or
 * net="0". Unknown elements are skipped with their content. */
#include "tools/topo/import/import.h"
#include "tools/topo/import/nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/model/speed.h"

enum { MOST_CPUS = 16384 };

/* ---- <cpu> ------------------------------------------------------------------------------------------------------- */

/* Finds or adds the host of a host_hash. A dump of one host has no hash, or a single one. */
static bool host_of(bny_topo_nccl *r, int32_t cpu, int32_t *host) {
  const char *hash = bny_topo_nccl_text(r, cpu, "host_hash");
  for (int32_t h = 0; h < r->hosts.count; h++) {
    if (strcmp(r->hosts.entries[h].key, hash == NULL ? "" : hash) == 0) {
      *host = r->hosts.entries[h].value;
      return true;
    }
  }
  if (r->hosts.count == BNY_TOPO_NCCL_HOSTS) return bny_topo_nccl_fail(r, cpu, "more than 1024 hosts");
  char name[32];
  snprintf(name, sizeof name, "host%d", r->hosts.count);
  bny_topo_node node = bny_topo_node_of(BNY_TOPO_HOST, -1, r->hosts.count, name, BNY_TOPO_FILE);
  node.guid = hash;
  *host = bny_topo_add_node(r->topo, &node);
  bny_topo_names_add(&r->hosts, 0, hash == NULL ? "" : hash, *host);
  return *host >= 0 && !r->hosts.out_of_memory;
}

static bool take_cpu(bny_topo_nccl *r, int32_t cpu) {
  int64_t numa = -1, family = -1, model = -1;
  int32_t host = -1;
  if (++r->ncpus > MOST_CPUS) return bny_topo_nccl_fail(r, cpu, "more than 16384 of them");
  if (!bny_topo_nccl_number(r, cpu, "numaid", -1, 65535, &numa) ||
      !bny_topo_nccl_number(r, cpu, "familyid", -1, 65535, &family) ||
      !bny_topo_nccl_number(r, cpu, "modelid", -1, 65535, &model) || !host_of(r, cpu, &host))
    return false;
  const char *arch = bny_topo_nccl_text(r, cpu, "arch"), *vendor = bny_topo_nccl_text(r, cpu, "vendor");
  double speed = bny_topo_speed_cpu(arch, vendor, (int32_t)family, (int32_t)model);
  double *slowest = &r->sys_gbytes_per_s[r->topo->nodes[host].index];
  *slowest = *slowest <= 0 || speed < *slowest ? speed : *slowest;
  char name[32], about[64] = "";
  if (numa < 0)
    snprintf(name, sizeof name, "cpu%d", r->ncpus - 1);
  else
    snprintf(name, sizeof name, "node%d", (int)numa);
  if (family >= 0 && model >= 0)
    snprintf(about, sizeof about, "%.20s family %d model %d", arch == NULL ? "?" : arch, (int)family, (int)model);
  else if (arch != NULL)
    snprintf(about, sizeof about, "%.20s", arch);
  bny_topo_node node = bny_topo_node_of(BNY_TOPO_NUMA, host, (int32_t)numa, name, BNY_TOPO_FILE);
  node.model = about[0] == '\0' ? NULL : about, node.vendor = vendor;
  if (!bny_topo_nccl_add(r, cpu, &node)) return false;
  bny_topo_names_add(&r->numas, bny_topo_ancestor(r->topo, host, BNY_TOPO_HOST), r->topo->nodes[r->node_of[cpu]].name,
                     cpu);
  return true;
}

/* ---- the whole file ---------------------------------------------------------------------------------------------- */

/* Returns whether a name is one of these, which blanks separate. */
static bool is_in(const char *name, const char *names) {
  size_t bytes = strlen(name);
  const char *at = strstr(names, name);
  return bytes > 0 && at != NULL && (at == names || at[-1] == ' ') && (at[bytes] == ' ' || at[bytes] == '\0');
}

/* Notes an unknown element or attribute. Only the first of each name is noted. */
static bool note_first(bny_topo_nccl *r, int32_t element, const char *text) {
  for (int32_t n = 0; n < r->topo->nnotes; n++)
    if (strncmp(r->topo->notes[n].text, text, strlen(text)) == 0) return true;
  return bny_topo_add_note(r->topo, -1, "%s %d", text, bny_topo_xml_line(r->xml, element));
}

/* Skips an unknown element with its content. */
static bool note_unknown(bny_topo_nccl *r, int32_t element, const char *name) {
  char text[160];
  snprintf(text, sizeof text, "<%.40s> is no known element, and is left out with its content: line", name);
  return is_in(name, "nvlink xgmi c2c pcilink") || note_first(r, element, text);
}

/* Notes attributes of a <gpu> or <nic> that NCCL and RCCL do not write: other dialects say there where it is. */
static bool note_attributes(bny_topo_nccl *r, int32_t element) {
  const char *of = bny_topo_xml_name(r->xml, element), *name;
  bool good = true;
  for (int32_t i = 0; good && (name = bny_topo_xml_attribute_at(r->xml, element, i)) != NULL; i++) {
    char text[160];
    snprintf(text, sizeof text, "<%.20s %.40s=...> is no known attribute, and is left out: line", of, name);
    good = is_in(name, "dev sm rank gdr mlopart arch gcn bus speed count id keep") || note_first(r, element, text);
  }
  return good;
}

static bool take_element(bny_topo_nccl *r, int32_t element) {
  int32_t parent = bny_topo_xml_parent(r->xml, element);
  const char *name = bny_topo_xml_name(r->xml, element);
  bool at_top = parent == 0;
  if (strcmp(name, "cpu") == 0)
    return at_top ? take_cpu(r, element) : bny_topo_nccl_fail(r, element, "is outside of <system>");
  if (at_top || r->node_of[parent] < 0) {
    if (at_top && is_in(name, "pci nic gpu net")) return bny_topo_nccl_fail(r, element, "is outside of a <cpu>");
    return !at_top || note_unknown(r, element, name);
  }
  if (strcmp(name, "pci") == 0) {
    return bny_topo_xml_is(r->xml, parent, "cpu") || bny_topo_xml_is(r->xml, parent, "pci")
               ? bny_topo_nccl_pci(r, element, parent)
               : bny_topo_nccl_fail(r, element, "is outside of a <cpu> and a <pci>");
  }
  if (strcmp(name, "gpu") == 0) return note_attributes(r, element) && bny_topo_nccl_gpu(r, element, parent);
  if (strcmp(name, "nic") == 0) return note_attributes(r, element) && bny_topo_nccl_nic(r, element, parent);
  if (strcmp(name, "net") == 0) return bny_topo_nccl_net(r, element, parent);
  return note_unknown(r, element, name);
}

static bool once(bny_topo_nccl *r, bny_topo_names *names, const char *what) {
  const bny_topo_name *twice = bny_topo_names_sort(names);
  if (names->out_of_memory) return false;
  return twice == NULL || bny_topo_fail(r->error, bny_topo_xml_line(r->xml, twice->value),
                                        "%s %.60s appears twice in one host", what, twice->key);
}

/* RCCL's models repeat bus ids. If several devices have the same bus id, the GPU keeps it, or else the first device.
 * The others lose it, because links and look-ups would be ambiguous. */
static bool buses_once(bny_topo_nccl *r) {
  int32_t kept = 0, repeated = 0, example = -1;
  bny_topo_names_sort(&r->buses);
  for (int32_t first = 0, end; first < r->buses.count && !r->buses.out_of_memory; first = end) {
    const bny_topo_name *names = r->buses.entries;
    int32_t owner = first, gpus = 0;
    for (end = first; end < r->buses.count && names[end].scope == names[first].scope &&
                      strcmp(names[end].key, names[first].key) == 0;
         end++) {
      if (r->topo->nodes[r->node_of[names[end].value]].kind == BNY_TOPO_GPU && gpus++ == 0) owner = end;
      if (gpus > 1) {
        return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, names[end].value),
                             "bus id %.60s belongs to two GPUs of one host; give each host its own host_hash",
                             names[end].key);
      }
    }
    bny_topo_name owning = names[owner];
    for (int32_t i = first; i < end; i++) {
      bny_topo_node *node = &r->topo->nodes[r->node_of[names[i].value]];
      if (i != owner && !bny_topo_set_string(r->topo, &node->bus_id, NULL)) return false;
      example = i != owner && example < 0 ? r->node_of[owning.value] : example;
      repeated += i != owner;
    }
    r->buses.entries[kept++] = owning;
  }
  r->buses.count = kept;
  bool noted =
      repeated == 0 ||
      bny_topo_add_note(r->topo, example,
                        "bus ids belong to several devices of the file, %s first: %d device%s "
                        "without one, where nothing can be looked up by it",
                        r->topo->nodes[example].bus_id, (int)repeated, repeated == 1 ? " is taken" : "s are taken");
  return noted && !r->buses.out_of_memory;
}

/* A virtual machine's eth0 may be below each <cpu>: the second becomes "eth0#1". */
static bool distinguish_nics(bny_topo_nccl *r) {
  bny_topo_names nics = {0};
  for (int32_t n = 0; n < r->topo->nnodes; n++)
    if (r->topo->nodes[n].kind == BNY_TOPO_NIC)
      bny_topo_names_add(&nics, bny_topo_ancestor(r->topo, n, BNY_TOPO_HOST), r->topo->nodes[n].name, n);
  bny_topo_names_sort(&nics);
  bool done = !nics.out_of_memory;
  int32_t first = 0; /* first NIC with this name; it keeps the name */
  for (int32_t i = 1; done && i < nics.count; i++) {
    if (nics.entries[i].scope != nics.entries[first].scope ||
        strcmp(nics.entries[i].key, nics.entries[first].key) != 0) {
      first = i;
      continue;
    }
    char name[80];
    bny_topo_node *node = &r->topo->nodes[nics.entries[i].value];
    snprintf(name, sizeof name, "%.60s#%d", node->name, (int)(i - first));
    done = bny_topo_set_string(r->topo, &node->name, name);
  }
  bny_topo_names_free(&nics);
  return done;
}

static bool read_system(bny_topo_nccl *r) {
  int64_t version = 1;
  if (!bny_topo_nccl_number(r, 0, "version", 0, INT32_MAX, &version)) return false;
  if (version < 1 || version > 2) {
    return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, 0), "NCCL topology of version %d: 1 and 2 are known",
                         (int)version);
  }
  for (int32_t e = 0; e < bny_topo_xml_count(r->xml); e++) {
    r->node_of[e] = -1;
    r->has_gpus = r->has_gpus || bny_topo_xml_is(r->xml, e, "gpu");
    r->has_nets = r->has_nets || bny_topo_xml_is(r->xml, e, "net");
  }
  for (int32_t e = 1; e < bny_topo_xml_count(r->xml); e++)
    if (!take_element(r, e)) return false;
  if (r->topo->nnodes == 0) return bny_topo_nccl_fail(r, 0, "holds no <cpu>");
  return once(r, &r->numas, "NUMA node") && buses_once(r) && once(r, &r->gpus, "the number of") &&
         bny_topo_join_numas(r->topo, r->sys_gbytes_per_s) && bny_topo_nccl_links(r) && distinguish_nics(r) &&
         bny_topo_nccl_note_virtual(r);
}

static bool parse(const char *text, size_t bytes, bny_topo *topo, bny_topo_error *error) {
  bny_topo_xml *xml = bny_topo_xml_parse(text, bytes, error);
  if (xml == NULL) return false;
  bool taken = false;
  bny_topo_nccl r = {.xml = xml, .topo = topo, .error = error};
  if (bny_topo_xml_is(xml, 0, "graphs")) {
    bny_topo_fail(error, bny_topo_xml_line(xml, 0),
                  "a graph that NCCL made (NCCL_GRAPH_DUMP_FILE): it holds channels, not a "
                  "machine; give what NCCL_TOPO_DUMP_FILE writes");
  } else {
    r.node_of = malloc((size_t)bny_topo_xml_count(xml) * sizeof *r.node_of);
    taken = r.node_of != NULL && read_system(&r);
  }
  free(r.node_of);
  bny_topo_names_free(&r.hosts);
  bny_topo_names_free(&r.buses);
  bny_topo_names_free(&r.numas);
  bny_topo_names_free(&r.gpus);
  bny_topo_xml_free(xml);
  return taken;
}

static bool recognises(const char *text, size_t bytes) {
  return bny_topo_xml_root_is(text, bytes, "system") || bny_topo_xml_root_is(text, bytes, "graphs");
}

const bny_topo_importer bny_topo_import_nccl = {.name = "nccl-xml", .recognises = recognises, .parse = parse};
