/* SPDX-License-Identifier: Apache-2.0
 * Writes a table of the paths from a host's GPUs to each other and to its NICs. */
#include <string.h>

#include "tools/topo/topo.h"

enum { GPUS_MOST = 16, NICS_MOST = 32, NARROWEST = 4 };

typedef struct matrix {
  const topo_view *view;
  const topo_fold *fold;
  int32_t gpus[GPUS_MOST], nics[NICS_MOST];
  int32_t ngpus, nnics;
  int32_t cell, nic_cell; /* widths */
  bool numbered;          /* NICs are labelled N0, N1 .., with a legend */
  bool seen[BNY_TOPO_PATHS], seen_nvlink, seen_xgmi, served;
} matrix;

static const bny_topo_rank *rank_of(const matrix *m, int32_t gpu) {
  int32_t rank = m->fold->rank[gpu];
  return rank < 0 ? NULL : &m->view->levels->ranks[rank];
}

static bool serves(const matrix *m, int32_t nic) {
  for (int32_t g = 0; g < m->ngpus; g++) {
    const bny_topo_rank *rank = rank_of(m, m->gpus[g]);
    if (rank != NULL && rank->nic == nic) return true;
  }
  return false;
}

/* Collects GPUs and NICs. Returns false if there are too few or too many for a table. */
static bool gather(matrix *m, int32_t host) {
  const bny_topo *topo = m->view->topo;
  int32_t ngpus = 0, nnics = 0;
  for (int32_t n = host; n >= 0 && n < topo->nnodes; n++) {
    bny_topo_kind kind = topo->nodes[n].kind;
    if ((kind != BNY_TOPO_GPU && kind != BNY_TOPO_NIC) || m->fold->host[n] != host) continue;
    if (kind == BNY_TOPO_GPU && ngpus++ < GPUS_MOST)
      m->gpus[m->ngpus++] = n;
    else if (kind == BNY_TOPO_NIC && nnics++ < NICS_MOST)
      m->nics[m->nnics++] = n;
  }
  return ngpus <= GPUS_MOST && ngpus + nnics > 1 && ngpus > 0;
}

static int32_t names_width(const matrix *m, const int32_t *nodes, int32_t count) {
  int32_t widest = NARROWEST;
  for (int32_t i = 0; i < count; i++) {
    int32_t width = topo_width(m->view->topo->nodes[nodes[i]].name);
    widest = width > widest ? width : widest;
  }
  return widest;
}

static int32_t table_width(const matrix *m) {
  return names_width(m, m->gpus, m->ngpus) + m->ngpus * (m->cell + 1) + m->nnics * (m->nic_cell + 1);
}

/* Fits the table to the width. If needed, NICs get numbers in place of names, then only NICs that serve GPUs are shown,
 * then none. */
static void lay_out(matrix *m) {
  m->cell = names_width(m, m->gpus, m->ngpus);
  m->nic_cell = names_width(m, m->nics, m->nnics);
  m->nic_cell = m->nic_cell < NARROWEST + 1 ? NARROWEST + 1 : m->nic_cell;
  if (table_width(m) <= m->view->columns) return;
  m->numbered = m->nnics > 0;
  m->nic_cell = NARROWEST + 1;
  if (table_width(m) > m->view->columns) m->cell = NARROWEST;
  if (table_width(m) > m->view->columns) {
    int32_t kept = 0;
    for (int32_t i = 0; i < m->nnics; i++)
      if (serves(m, m->nics[i])) m->nics[kept++] = m->nics[i];
    m->nnics = kept;
  }
  m->nnics = table_width(m) > m->view->columns ? 0 : m->nnics;
}

static void put_right(FILE *out, const topo_view *view, topo_ink ink, const char *text, int32_t width) {
  topo_string cut = {.text = ""};
  topo_append(&cut, "%s", text);
  topo_clip(cut.text, width);
  topo_put_blanks(out, width - topo_width(cut.text));
  topo_put(out, view, ink, cut.text);
}

static void put_cell(matrix *m, FILE *out, int32_t from, int32_t to, bool serving) {
  const bny_topo *topo = m->view->topo;
  bny_topo_path path = bny_topo_path_routed(topo, from, to);
  topo_string text = {.text = ""};
  bool xgmi = false;
  int32_t links = path == BNY_TOPO_PATH_NVL ? bny_topo_links_between(topo, from, to, &xgmi) : 0;
  m->seen[path] = true;
  if (path == BNY_TOPO_PATH_SELF) {
    topo_append(&text, "%s", m->view->utf8 ? "·" : "-");
  } else if (links > 0 && links < 100) {
    topo_append(&text, "%s%d", xgmi ? "XG" : "NV", (int)links);
    m->seen_nvlink = m->seen_nvlink || !xgmi;
    m->seen_xgmi = m->seen_xgmi || xgmi;
  } else {
    topo_append(&text, "%s", path == BNY_TOPO_PATH_NONE ? "?" : bny_topo_path_name(path));
  }
  topo_append(&text, "%s", serving ? "*" : "");
  fputc(' ', out);
  put_right(out, m->view, topo_ink_of_path(path), text.text,
            topo->nodes[to].kind == BNY_TOPO_NIC ? m->nic_cell : m->cell);
}

static void put_header(const matrix *m, FILE *out, int32_t names) {
  topo_put_blanks(out, names);
  for (int32_t g = 0; g < m->ngpus; g++) {
    fputc(' ', out);
    const char *name = m->view->topo->nodes[m->gpus[g]].name;
    put_right(out, m->view, TOPO_INK_GPU, topo_width(name) > m->cell ? tool_format("G%d", (int)g) : name, m->cell);
  }
  for (int32_t i = 0; i < m->nnics; i++) {
    const char *name = m->view->topo->nodes[m->nics[i]].name;
    fputc(' ', out);
    put_right(out, m->view, TOPO_INK_NIC, m->numbered ? tool_format("N%d", (int)i) : name, m->nic_cell);
  }
  fputc('\n', out);
}

static void put_legend(const matrix *m, FILE *out) {
  static const char *const meanings[BNY_TOPO_PATHS] = {
      [BNY_TOPO_PATH_NVB] = "NVB NVLink through another GPU",
      [BNY_TOPO_PATH_C2C] = "C2C a coherent CPU between",
      [BNY_TOPO_PATH_PIX] = "PIX at most one PCI switch",
      [BNY_TOPO_PATH_PXB] = "PXB several PCI switches",
      [BNY_TOPO_PATH_P2C] = "P2C C2C to the CPU and PCI from there",
      [BNY_TOPO_PATH_PXN] = "PXN through a GPU beside the NIC",
      [BNY_TOPO_PATH_PHB] = "PHB the host bridge",
      [BNY_TOPO_PATH_NODE] = "NODE host bridges of one NUMA node",
      [BNY_TOPO_PATH_SYS] = "SYS between NUMA nodes",
      [BNY_TOPO_PATH_NONE] = "? not known",
  };
  char text[512] = "", nics[2048] = "";
  const char *nvlinks = m->seen_nvlink ? "NV# so many NVLinks" : "",
             *xgmi = m->seen_xgmi ? "XG# so many xGMI links" : "";
  snprintf(text, sizeof text, "%s%s%s%s%s", m->served ? "* serves this GPU" : "",
           m->served && (m->seen_nvlink || m->seen_xgmi) ? ", " : "", nvlinks,
           m->seen_nvlink && m->seen_xgmi ? ", " : "", xgmi);
  for (int p = 0; p < BNY_TOPO_PATHS; p++)
    if (m->seen[p] && meanings[p] != NULL)
      snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", text[0] == '\0' ? "" : ", ", meanings[p]);
  topo_put_wrapped(out, m->view, TOPO_INK_DIM, 0, text);
  for (int32_t i = 0; m->numbered && i < m->nnics; i++) {
    snprintf(nics + strlen(nics), sizeof nics - strlen(nics), "%sN%d %.40s", i == 0 ? "" : ", ", (int)i,
             m->view->topo->nodes[m->nics[i]].name);
  }
  topo_put_wrapped(out, m->view, TOPO_INK_DIM, 0, nics);
}

void topo_put_matrix(FILE *out, const topo_view *view, const topo_fold *fold, int32_t host) {
  matrix m = {.view = view, .fold = fold};
  if (host < 0 || !gather(&m, host)) return;
  lay_out(&m);
  int32_t names = names_width(&m, m.gpus, m.ngpus);
  if (table_width(&m) > view->columns) return;
  topo_string heading = {.text = "Paths"};
  if (bny_topo_count(view->topo, BNY_TOPO_HOST) > 1) topo_append(&heading, " in %.100s", view->topo->nodes[host].name);
  topo_put_heading(out, view, heading.text);
  put_header(&m, out, names);
  for (int32_t g = 0; g < m.ngpus; g++) {
    const char *name = view->topo->nodes[m.gpus[g]].name;
    topo_put(out, view, TOPO_INK_GPU, name);
    topo_put_blanks(out, names - topo_width(name));
    const bny_topo_rank *rank = rank_of(&m, m.gpus[g]);
    for (int32_t i = 0; i < m.ngpus + m.nnics; i++) {
      int32_t to = i < m.ngpus ? m.gpus[i] : m.nics[i - m.ngpus];
      bool serving = rank != NULL && rank->nic == to;
      m.served = m.served || serving;
      put_cell(&m, out, m.gpus[g], to, serving);
    }
    fputc('\n', out);
  }
  put_legend(&m, out);
}
