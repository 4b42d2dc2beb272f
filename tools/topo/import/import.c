/* SPDX-License-Identifier: Apache-2.0
 * Imports a dump of a machine into a model, with the first importer that recognises the content. */
#include "tools/topo/import/import.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/import/xml.h"

extern const bny_topo_importer bny_topo_import_nccl, bny_topo_import_hwloc, bny_topo_import_ibnet,
    bny_topo_import_synthetic;

/* They are tried in this order. */
const bny_topo_importer *const bny_topo_importers[] = {&bny_topo_import_nccl,      &bny_topo_import_hwloc,
                                                       &bny_topo_import_json,      &bny_topo_import_ibnet,
                                                       &bny_topo_import_synthetic, NULL};

static const bny_topo_importer *importer_of(const char *text, size_t bytes) {
  const bny_topo_importer *const *importer = bny_topo_importers;
  while (*importer != NULL && !(*importer)->recognises(text, bytes)) importer++;
  return *importer;
}

/* Unsupported formats that users may try: text in their first bytes, and the input to use instead. */
#define XML_OR_JSON "give the XML of NCCL_TOPO_DUMP_FILE or lstopo, or run banyan-topo --json -o machine.json there"
#define NETWORK "give ibnetdiscover, or a description such as leaf:4 host:8 gpu:8 nic:8@400g"
static const struct {
  const char *words, *format, *instead;
} others[] = {
    {"(Topology)", "output of rocm-smi", XML_OR_JSON},
    {"ROCm System Management Interface", "output of rocm-smi", XML_OR_JSON},
    {"WEIGHT TABLE", "output of amd-smi", XML_OR_JSON},
    {"\"link_type\"", "output of amd-smi", XML_OR_JSON},
    {"SwitchName=", "Slurm's topology.conf", NETWORK},
    {"BlockName=", "Slurm's topology.conf", NETWORK},
    {"Machine (", "lstopo's text", "give lstopo machine.xml"},
    {" PU:", "hwloc's synthetic description", "give lstopo machine.xml"},
    {"PCI bridge:", "output of lspci", "give lstopo machine.xml"},
    {"Host bridge:", "output of lspci", "give lstopo machine.xml"},
    {"NCCL INFO", "a log of NCCL", "give what NCCL_TOPO_DUMP_FILE writes"},
    {"LinkUp)==>", "output of iblinkinfo", "give ibnetdiscover"},
    {"Neighbor Guid", "ibdiagnet's net_dump", "give ibnetdiscover"},
    {"ibwarn", "an error of ibnetdiscover", "run it as root, on a node whose InfiniBand port is up"},
    {"iberror", "an error of ibnetdiscover", "run it as root, on a node whose InfiniBand port is up"},
    {"command not found", "an error of the shell", "install the tool, or run it on the node itself"},
    {"- topology:", "Slurm's topology.yaml", NETWORK},
    {"apiVersion:", "YAML", NETWORK},
    {"topology/tree", "a cluster model of topograph", NETWORK},
    {"switches:", "YAML", NETWORK},
    {"NVIDIA-SMI ", "the table of nvidia-smi", XML_OR_JSON},
    {"==NVSMI LOG==", "the text of nvidia-smi -q", XML_OR_JSON},
    {"GPU0", "the matrix of nvidia-smi topo -m", XML_OR_JSON},
    {"GPU 0: ", "output of nvidia-smi", XML_OR_JSON},
    {"\x1f\x8b\x08", "a gzip archive", "unpack it: gunzip"},
    {"\xfe\xff", "UTF-16", "write it anew as UTF-8: iconv -f UTF-16 -t UTF-8"},
    {"\xff\xfe", "UTF-16", "write it anew as UTF-8: iconv -f UTF-16 -t UTF-8"},
};

static bool reject_unknown(const char *text, size_t bytes, bny_topo_error *error) {
  enum { LOOKED_AT = 16384 };
  char root[64];
  int line;
  if (bytes == 0) return bny_topo_fail(error, 0, "empty");
  if (bny_topo_xml_root(text, bytes, root, sizeof root, &line)) {
    if (strcmp(root, "nvidia_smi_log") == 0)
      return bny_topo_fail(error, line, "this is output of nvidia-smi -q -x, which is not read: " XML_OR_JSON);
    return bny_topo_fail(error, line, "XML with the root <%s> is none that is known (NCCL <system>, hwloc <topology>)",
                         root);
  }
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    if (memmem(text, bytes < LOOKED_AT ? bytes : LOOKED_AT, others[i].words, strlen(others[i].words)) != NULL)
      return bny_topo_fail(error, 1, "this seems to be %s, which is not read: %s", others[i].format, others[i].instead);
  }
  size_t start = 0;
  while (start < bytes && memchr(" \t\r\n", text[start], 4) != NULL) start++;
  bool json = start < bytes && memchr("{[", text[start], 2) != NULL;
  return bny_topo_fail(error, 1,
                       json ? "JSON without a list \"nodes\", which banyan-topo --json writes"
                            : "not a format that is known: NCCL or hwloc XML, ibnetdiscover, JSON of banyan-topo, "
                              "or a synthetic description");
}

bny_topo *bny_topo_import(const char *text, size_t bytes, const char **importer_name, bny_topo_error *error) {
  if (bytes > BNY_TOPO_INPUT_BYTES_MAX) {
    bny_topo_fail(error, 0, "larger than %d MiB", BNY_TOPO_INPUT_BYTES_MAX >> 20);
    return NULL;
  }
  if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) text += 3, bytes -= 3; /* byte order mark */
  const bny_topo_importer *importer = importer_of(text, bytes);
  if (importer == NULL) {
    reject_unknown(text, bytes, error);
    return NULL;
  }
  bny_topo *topo = bny_topo_input_parse(importer, text, bytes, error);
  if (topo != NULL && importer_name != NULL) *importer_name = importer->name;
  return topo;
}

bny_topo *bny_topo_load(const char *path, const char **importer_name, bny_topo_error *error) {
  bny_topo_error why = {0};
  bool missing = false;
  size_t bytes = 0;
  if (path[0] == '\0') {
    bny_topo_fail(error, 0, "an empty name: give a file, a description, or - for standard input");
    return NULL;
  }
  char *text = bny_topo_input_read(path, true, &bytes, &missing, &why);
  if (text == NULL && missing && importer_of(path, strlen(path)) != NULL)
    return bny_topo_import(path, strlen(path), importer_name, error);
  bny_topo *topo = text == NULL ? NULL : bny_topo_import(text, bytes, importer_name, &why);
  free(text);
  if (topo == NULL) {
    bny_topo_input_place(path, &why);
    if (missing && strpbrk(path, ": ") != NULL && strchr(path, '/') == NULL)
      snprintf(why.text + strlen(why.text), sizeof why.text - strlen(why.text),
               ", and no description, which begins with leaf, host, gpu or the like");
    *error = why;
  }
  return topo;
}
