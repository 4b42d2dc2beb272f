/* SPDX-License-Identifier: Apache-2.0
 * Importers of text: nvidia-smi topo -m, ibnetdiscover and synthetic descriptions. */
#include "topo/derive/levels.h"
#include "topo/export/export.h"
#include "topo/import/synthetic.h"
#include "tests/topo/topo_util.h"

static void rejected(const char *text, int line, const char *part) { ck_rejected(text, strlen(text), line, part); }

static int32_t by_name(const bny_topo *topo, const char *name) {
  int32_t node = bny_topo_find_name(topo, BNY_TOPO_GPU, name);
  if (node < 0) node = bny_topo_find_name(topo, BNY_TOPO_NIC, name);
  ck_assert_msg(node >= 0, "no %s", name);
  return node;
}

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

/* Compares every cell of `text` with the model. A simple reader of this test splits the text. */
static int cells_compare(const char *text, const bny_topo *topo, const char *file) {
  char *copy = strdup(text), *lines = NULL, *names[128];
  int columns = 0, compared = 0;
  for (char *line = strtok_r(copy, "\n", &lines); line; line = strtok_r(NULL, "\n", &lines)) {
    char *words = NULL, *first = strtok_r(line, " \t\r", &words), *word;
    if (!first || first[0] == '#') continue;
    if (columns == 0) {
      for (word = first; word && strcmp(word, "CPU") != 0; word = strtok_r(NULL, " \t\r", &words))
        names[columns++] = word;
      continue;
    }
    for (int column = 0; column < columns && (word = strtok_r(NULL, " \t\r", &words)); column++) {
      int32_t a = by_name(topo, first), b = by_name(topo, names[column]);
      const char *path = bny_topo_path_name(bny_topo_path_between(topo, a, b));
      const char *wanted = strcmp(word, "X") == 0        ? "SELF"
                           : strncmp(word, "NV", 2) == 0 ? "NVL"
                           : strcmp(word, "SOC") == 0    ? "SYS"
                                                         : word;
      ck_assert_msg(strcmp(path, wanted) == 0, "%s: %s to %s is %s, not %s", file, first, names[column], path, word);
      compared++;
    }
  }
  free(copy);
  return compared;
}

static int all_compared;

static void matrix_compare(const char *path, const char *name) {
  bny_topo_error error = {0};
  const char *importer = NULL;
  size_t bytes;
  char *text = read_text(path, &bytes);
  bny_topo *topo = topo_load(path, &importer, &error);
  ck_assert_msg(topo != NULL, "%s", error.text);
  ck_assert_str_eq(importer, "nvidia-smi topo -m");
  all_compared += cells_compare(text, topo, name);
}

TEST(matrices_of_machines) {
  char path[4096];
  own_path("hgx-a100-4nic.txt", "", path);
  all_compared = 0;
  matrix_compare(path, "hgx-a100-4nic.txt");
  ck_assert_int_eq(all_compared, 144);
  if (each_dump("matrix", ".txt", matrix_compare) > 0) ck_assert_int_gt(all_compared, 1000);
}

TEST(matrix_links) {
  /* More than 18 links in a row lead to a switch. */
  ck_facts(load("\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\n"
                "GPU0\t X \tNV18\tNV18\tNV12\t0-7\t0\n"
                "GPU1\tNV18\t X \tNV18\tNV12\t0-7\t0\n"
                "GPU2\tNV18\tNV18\t X \tNV12\t8-15\t1\n"
                "GPU3\tNV12\tNV12\tNV12\t X \t8-15\t1\n"),
           "1 switch; 4 nvlink; GPU0 links 18; GPU3 links 12; GPU2 numa node1");
  /* The matrix has no speeds. */
  ck_facts(load("GPU0 GPU1 GPU2 CPU Affinity\nGPU0 X NV4 NV4 0\nGPU1 NV4 X NV4 0\nGPU2 NV4 NV4 X 0\n"),
           "0 switch; 3 nvlink; GPU0 GPU1 link 4x0");
  /* Without affinity, as in a container, NUMA nodes are unknown. */
  ck_facts(load("GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X NV18\nGPU1 NV18 X\n"),
           "0 numa; 1 island; 1 host; 2 ranks");
}

/* Colour codes appear with or without the escape character, lines end in carriage returns, and a prompt comes first. */
TEST(matrix_as_pasted) {
  ck_facts(load("$ nvidia-smi topo -m\r\n"
                "\033[4m\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\033[0m\r\n"
                "GPU0\t X \tPIX\tPXB\t0-3\t0\t\tN/A\r\n"
                "[1mGPU1\tPIX[0m\t X \tPXB\t0-3\t0\t\tN/A\r\n"
                "NIC0\tPXB\tPXB\t X \t\t\t\t\r\n\r\nLegend:\r\n\r\n  X    = Self\r\n"
                "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes\r\n\r\n"
                "NIC Legend:\r\n\r\n  NIC0: mlx5_7\r\n"),
           "GPU0 GPU1 PIX; GPU0 mlx5_7 PXB");
}

/* The header lists 56 of 76 NICs. Rows of the other NICs have the same number of cells and no diagonal. */
TEST(matrix_of_76_nics) {
  char *text = NULL;
  size_t bytes;
  FILE *out = open_memstream(&text, &bytes);
  fprintf(out, "\tGPU0");
  for (int i = 0; i < 56; i++) fprintf(out, "\tNIC%d", i);
  fprintf(out, "\tCPU Affinity\tNUMA Affinity\nGPU0\t X ");
  for (int i = 0; i < 56; i++) fprintf(out, i % 2 ? "\tNODE" : "\tSYS");
  fprintf(out, "\t0-7\t1\n");
  for (int i = 0; i < 76; i++) {
    fprintf(out, "NIC%d\t%s", i, i % 2 ? "NODE" : "SYS");
    for (int j = 0; j < 56; j++) fprintf(out, i == j ? "\t X " : i % 2 == j % 2 ? "\tNODE" : "\tSYS");
    fputc('\n', out);
  }
  fclose(out);
  bny_topo *topo = load(text);
  ck_facts(topo, "76 nic; NIC75 NIC1 NODE; NIC74 GPU0 SYS");
  free(text);
}

/* Cells that differ between the halves, or that no machine has, become findings. */
TEST(matrix_halves) {
  static const struct {
    const char *text, *id, *label, *fact;
    int32_t links;
    bny_topo_path path;
  } cases[] = {
      {"GPU0 GPU1 CPU Affinity\nGPU0 X PIX 0\nGPU1 PXB X 0\n", "ends-differ", "GPU1", "PXB to GPU0, which lists PIX", 0,
       BNY_TOPO_PATH_PXB},
      {"GPU0 GPU1 CPU Affinity\nGPU0 X NV4 0\nGPU1 NV2 X 0\n", "ends-differ", "GPU1",
       "2 NVLinks to GPU0, which lists 4", 2, BNY_TOPO_PATH_NVL},
      {"GPU0 GPU1 CPU Affinity\nGPU0 X NV1 0\nGPU1 NV12 X 0\n", "ends-differ", "GPU0",
       "1 NVLink to GPU1, which lists 12", 1, BNY_TOPO_PATH_NVL},
      {"GPU0 GPU1 CPU Affinity\nGPU0 X NV4 0\nGPU1 SYS X 0\n", "nvlink-one-sided", "GPU1", "links of 1 other GPU", 4,
       BNY_TOPO_PATH_NVL},
      {"GPU0 GPU1 NIC0 CPU Affinity\nGPU0 X PIX NV2 0\nGPU1 PIX X PIX 0\n", "input-odd", "NIC0", "both must be GPUs", 0,
       BNY_TOPO_PATH_PIX},
      {"GPU0 GPU1 GPU2 CPU Affinity\nGPU0 X PIX SYS 0\nGPU1 PIX X PIX 0\nGPU2 SYS PIX X 0\n", "input-odd", "GPU2",
       "SYS to GPU0, but both are nearer", 0, BNY_TOPO_PATH_PIX},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bny_topo *topo = load(cases[i].text);
    bny_topo_levels *levels = topo_derive(topo);
    ck_assert_msg(levels->nfindings > 0 && strcmp(levels->findings[0].id, cases[i].id) == 0, "%s", cases[i].text);
    const char *text = levels->findings[0].text;
    ck_assert_msg(strncmp(text, cases[i].label, 4) == 0 && strstr(text, cases[i].fact) != NULL, "%s", text);
    ck_assert_int_eq(levels->ranks[0].nvlinks, cases[i].links);
    ck_assert_int_eq(bny_topo_path_between(topo, by_name(topo, "GPU0"), by_name(topo, "GPU1")), cases[i].path);
  }
}

/* If any one cell of a row is changed, the matrix is accepted with a finding. */
TEST(matrix_of_any_other_cell) {
  static const char *const words[] = {"PIX", "PXB", "PHB", "NODE", "SYS", "NV4", "NV12"};
  char path[4096], changed[8192];
  size_t bytes;
  own_path("hgx-a100-4nic.txt", "", path);
  char *text = read_text(path, &bytes);
  int tried = 0;
  for (const char *at = strstr(text, "\nGPU"); at != NULL && strncmp(at, "\nGPU", 4) == 0; at = strchr(at + 1, '\n')) {
    const char *cell = at;
    for (int column = 0; column < 12; column++) {
      cell += strcspn(cell, " \t");
      cell += strspn(cell, " \t");
      size_t length = strcspn(cell, " \t\n");
      for (size_t w = 0; w < sizeof words / sizeof words[0] && *cell != 'X'; w++) {
        bool same = length == strlen(words[w]) && strncmp(cell, words[w], length) == 0;
        if (same) continue;
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(cell - text), text, words[w], cell + length);
        bny_topo *topo = load(changed);
        bny_topo_levels *levels = topo_derive(topo);
        ck_assert_msg(levels->nfindings > 0 && levels->findings[0].severity > BNY_TOPO_INFO, "%s", changed);
        tried++;
      }
    }
  }
  ck_assert_int_gt(tried, 300);
}

#define PAIR(path) "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t" path "\t0-3\nGPU1\t" path "\t X \t0-3\n"

TEST(several_tables) {
  static const struct {
    const char *text;
    int32_t hosts, notes;
  } cases[] = {
      {PAIR("NV4"), 1, 0},
      {PAIR("NV4") "\nLegend:\n\n  X    = Self\n\n" PAIR("PIX"), 2, 0},
      {PAIR("NV4") PAIR("PIX") PAIR("SYS"), 3, 0},
      {PAIR("NV4") "\n" PAIR("OK"), 1, 1}, /* output of topo -p2p */
      {PAIR("OK") "\n" PAIR("NV4"), 1, 1},
      {"\xef\xbb\xbf" PAIR("NV4"), 1, 0},
      /* as copied from web pages, mails and tables */
      {"\xc2\xa0\xc2\xa0GPU0\xc2\xa0GPU1\nGPU0\xc2\xa0X\xc2\xa0PIX\nGPU1\xc2\xa0PIX\xc2\xa0X\n", 1, 0},
      {"> \tGPU0\tGPU1\n> GPU0\t X \tPIX\n> GPU1\tPIX\t X \n", 1, 0},
      {"| | GPU0 | GPU1 |\n|---|:---:|---|\n| GPU0 | X | PIX |\n| GPU1 | PIX | X |\n", 1, 0},
      {"\t^[[4mGPU0\tGPU1\tCPU Affinity^[[0m\n\nGPU0\t X \tNV4\t0-3\n\n\nGPU1\tNV4\t X \t0-3\n", 1, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bny_topo *topo = load(cases[i].text);
    ck_assert_msg(bny_topo_count(topo, BNY_TOPO_HOST) == cases[i].hosts, "%s", cases[i].text);
    ck_assert_msg(bny_topo_count(topo, BNY_TOPO_GPU) == 2 * cases[i].hosts, "%s", cases[i].text);
    ck_assert_msg(topo->nnotes == cases[i].notes, "%s", cases[i].text);
  }
  rejected(PAIR("NV4") "\n"
                       "\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tFAR\t X \n",
           7, "\"FAR\" is not a path");
  static const char *const dumps[] = {"bom.txt", "caret_esc.txt", "blank_between.txt", "two_hosts.txt"};
  for (int i = 0; i < 4; i++) {
    char name[64], path[4096];
    snprintf(name, sizeof name, "reduced/%s", dumps[i]);
    if (!dump_path(name, path)) continue;
    bny_topo *topo = load_file(path);
    ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_GPU), 8 * bny_topo_count(topo, BNY_TOPO_HOST));
    ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_HOST), i == 3 ? 2 : 1);
  }
}

/* A matrix that is exported and imported again has the same hosts, devices and paths. */
TEST_LOOP(matrices_written, 6) {
  static const char *const names[] = {"hgx-a100-4nic.txt", "dgx-h100.txt",   "one-gpu.txt",
                                      "two-islands.txt",   "spine-leaf.txt", "gb200-nvl72.txt"};
  char path[4096];
  bny_topo_error error = {0};
  own_path(names[_i], "", path);
  bny_topo *topo = load_file(path);
  char *text = topo_text(bny_topo_export_matrix(topo, &error));
  if (text == NULL) ck_assert_str_eq(error.text, "no host has a GPU");
  bny_topo *again = text == NULL ? NULL : load(text);
  bny_topo_levels *levels[2] = {topo_derive(topo), again == NULL ? NULL : topo_derive(again)};
  for (int32_t a = 0; again != NULL && a < levels[0]->nranks; a++) {
    ck_assert_int_eq(levels[1]->nranks, levels[0]->nranks);
    for (int32_t b = 0; b < a; b++) {
      bny_topo_path before = bny_topo_path_between(topo, levels[0]->ranks[a].node, levels[0]->ranks[b].node);
      bny_topo_path after = bny_topo_path_between(again, levels[1]->ranks[a].node, levels[1]->ranks[b].node);
      bool same_host = levels[0]->ranks[a].host == levels[0]->ranks[b].host;
      ck_assert_msg(!same_host || before == after, "%s: %d to %d", names[_i], a, b);
    }
    ck_assert_int_eq(levels[1]->ranks[a].nic_path, levels[0]->ranks[a].nic_path);
  }
  if (again != NULL) ck_assert_int_eq(bny_topo_count(again, BNY_TOPO_NIC), bny_topo_count(topo, BNY_TOPO_NIC));
}

/* The CPUs of a GPU come from the matrix, from NCCL's mask or from hwloc's. NICs keep their order. */
TEST(matrices_say_affinity) {
  static const struct {
    const char *text, *columns;
  } cases[] = {
      {"\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-31,64-95\t3\n", "\t0-31,64-95\t3\t"},
      {"\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t\t\n", "\t\t\t"},
      {"\tGPU0\tNIC0\tNIC1\nGPU0\t X \tSYS\tPIX\nNIC0\tSYS\t X \tSYS\nNIC1\tPIX\tSYS\t X \n",
       "\nGPU0\t X \tSYS\tPIX\t"},
      {"\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-71\t0,2-17\n", "\t0-71\t0\t"},
      {"<system version=\"1\"><cpu numaid=\"1\" affinity=\"0000000f,00000000,ffff0001\" arch=\"x86_64\" "
       "vendor=\"AuthenticAMD\" familyid=\"23\" modelid=\"49\"><pci busid=\"0000:01:00.0\" class=\"0x030000\" "
       "link_speed=\"16.0 GT/s PCIe\" link_width=\"16\"><gpu dev=\"0\" sm=\"90\" rank=\"0\" gdr=\"1\"/></pci></cpu>"
       "</system>",
       "\t0,16-31,64-67\t1\t"},
      {"<?xml version=\"1.0\"?><topology version=\"2.0\"><object type=\"Machine\" os_index=\"0\" "
       "cpuset=\"0x00000001,0x80000003\"><object type=\"NUMANode\" os_index=\"0\" "
       "cpuset=\"0x00000001,0x80000003\"/><object type=\"Bridge\" bridge_type=\"0-1\" "
       "bridge_pci=\"0000:[00-02]\"><object type=\"PCIDev\" pci_busid=\"0000:01:00.0\" pci_type=\"0302 [10de:20b0] "
       "[10de:144e] a1\" pci_link_speed=\"31.5\"/></object></object></topology>",
       "\t0-1,31-32\t0\t"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bny_topo_error error = {0};
    char *text = topo_text(bny_topo_export_matrix(load(cases[i].text), &error));
    ck_assert_msg(text != NULL && strstr(text, cases[i].columns) != NULL, "%zu: %s%s", i, error.text, text);
  }
}

TEST(matrices_rejected) {
  rejected("GPU0 GPU1 CPU Affinity\nGPU0 X PIX 0\nGPU1 PIX\n", 3, "GPU1 has 1 paths, the header 2 devices");
  rejected("GPU0 GPU1 CPU Affinity\nGPU0 X PIX 0\n", 1, "no row for GPU1");
  rejected("GPU0 NIC0 NIC1\nGPU0 X PIX SYS\nNIC0 PIX X SYS\n", 1,
           "no row for NIC1"); /* all rows have an affinity, or none */
  rejected("GPU0 GPU1\nGPU0 X OK\nGPU1 OK X\n", 2, "give nvidia-smi topo -m");
  rejected("GPU0 GPU1 CPU Affinity\nGPU0 X FAR 0\nGPU1 PIX X 0\n", 2, "\"FAR\" is not a path");
  rejected("GPU0 GPU1 CPU Affinity\nGPU0 X NV0 0\nGPU1 NV0 X 0\n", 2, "\"NV0\" is not a path");
  rejected("GPU0 GPU1 CPU Affinity\nGPU0 PIX X 0\nGPU1 X PIX 0\n", 2, "X belongs on the diagonal");
  rejected("GPU0 GPU0 CPU Affinity\nGPU0 X X 0\n", 1, "two columns");
  rejected("GPU0 GPU1 CPU Affinity\nGPU0 X PIX 0\nGPU0 X PIX 0\n", 3, "has a row on line 2");
  rejected("see\nGPU0 X PIX 0\n", 2, "without a header");
  rejected("GPU0 CPU Affinity\nGPU0 X 0\nNIC0 SYS SYS\n", 3, "NIC0 has more paths than the header has devices, 1");
}

/* ---- ibnetdiscover ----------------------------------------------------------------------------------------------- */

static int count_starts(const char *text, const char *start) {
  int count = strncmp(text, start, strlen(start)) == 0;
  char line[64];
  snprintf(line, sizeof line, "\n%s", start);
  for (const char *at = strstr(text, line); at; at = strstr(at + 1, line)) count++;
  return count;
}

static void fabric_count(const char *path, const char *name) {
  bny_topo_error error = {0};
  const char *importer = NULL;
  size_t bytes;
  char *text = read_text(path, &bytes);
  bny_topo *topo = topo_load(path, &importer, &error);
  ck_assert_msg(topo != NULL, "%s", error.text);
  ck_assert_str_eq(importer, "ibnetdiscover");
  ck_assert_msg(bny_topo_count(topo, BNY_TOPO_SWITCH) == count_starts(text, "Switch"), "%s", name);
  ck_assert_msg(bny_topo_count(topo, BNY_TOPO_NIC) == count_starts(text, "Ca"), "%s", name);
  for (int32_t l = 0; l < topo->nlinks; l++) ck_assert_double_gt(topo->links[l].gbytes_per_s, 0);
}

TEST(fabrics) {
  char path[4096];
  own_path("fabric-two-rails.txt", "", path);
  fabric_count(path, "fabric-two-rails.txt");
  each_dump("fabric", ".txt", fabric_count);

  bny_topo_error error = {0};
  bny_topo *topo = topo_load(path, NULL, &error);
  ck_assert_ptr_nonnull(topo);
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_HOST), 8);
  int32_t trunks = 0;
  for (int32_t l = 0; l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    bool trunk = topo->nodes[link->from].kind == BNY_TOPO_SWITCH && topo->nodes[link->to].kind == BNY_TOPO_SWITCH;
    trunks += trunk;
    ck_assert_int_eq(link->count, trunk ? 2 : 1);
    ck_assert_double_eq_tol(link->gbytes_per_s, trunk ? 100 : 50, 1e-9); /* two cables of 400 Gb/s; one cable */
  }
  ck_assert_int_eq(trunks, 4);
}

#define SWITCH(id) "Switch\t2 \"S-" id "\"\t# \"sw" id "\" base port 0 lid 1 lmc 0\n"
#define ADAPTER(id, what) "Ca\t1 \"H-" id "\"\t# \"" what "\"\n"

TEST(fabric_shapes) {
  bny_topo *topo = load(SWITCH(
      "0a") "[1]\t\"H-01\"[1](01)\t# \"a mlx5_0\" lid 3 4xEDR\n"
            "[2]\t\"H-02\"[2](02)\t# \"a mlx5_1\" lid 3 2xHDR\n"
            "[3]\t\"H-ff\"[1](ff)\t# \"Mellanox Technologies Aggregation Node\" lid 2 4xEDR\n" ADAPTER("01", "a mlx5_0")
                            ADAPTER("02", "a mlx5_1") ADAPTER("03", "just one name here") ADAPTER("04", "b mlx5_0")
                                ADAPTER("05", "b mlx5_0") "[1](05)\t\"S-0a\"[4]\t# lid 3 lmc 0 \"sw0a\" lid 1 4xNDR\n");
  /* A cable that only one end lists counts, and cables to the aggregation node do not. Equal names get GUIDs. */
  ck_facts(topo, "3 host; 5 nic; 3 net; sw0a net 3/3/75/0/0; 04 parent b; 05 parent b");

  rejected(SWITCH("0a") "[1]\t\"H-01\"[1](01)\t# \"a mlx5_0\" lid 3 4xEDR\n", 2,
           "a link to \"H-01\", which the file does not list");
  rejected(SWITCH("0a") SWITCH("0b") SWITCH("0a"), 3, "node \"S-0a\" appears again: also on line 1");
  rejected(SWITCH("0a") "[1]\t\"S-0a", 2, "port 1 is not followed by");
  rejected(SWITCH("0a") "[x]\t\"S-0a\"[1]\n", 2, "number must be 0 to 255");
  rejected("[1]\t\"S-0a\"[1]\n" SWITCH("0a"), 1, "a port before any node");
  rejected(SWITCH("0a") SWITCH("0b") SWITCH("0c") "[1]\t\"S-0a\"[1]\n[2]\t\"S-0a\"[1]\n", 5,
           "port 1 of \"S-0a\" is joined to");
}

/* A cable whose ends differ, or that leads nowhere, is reported as a note. */
TEST(cables_of_two_ends) {
  bny_topo *topo =
      load(SWITCH("0a") "[1]\t\"H-01\"[1](01)\t# \"a mlx5_0\" lid 3 4xNDR\n"
                        "[2]\t\"S-0a\"[3]\t# \"sw0a\" lid 3 4xNDR\n" ADAPTER(
                            "01", "a mlx5_0") "[1](01)\t\"S-0a\"[1]\t# lid 3 lmc 0 \"sw0a\" lid 1 4xHDR\n");
  ck_assert_int_eq(topo->nnotes, 2);
  ck_assert_int_eq(topo->notes[0].kind, BNY_TOPO_NOTE_DIFFERS);
  ck_assert_msg(strstr(topo->notes[0].text, "25 GB/s at one end and 50") != NULL, "%s", topo->notes[0].text);
  ck_assert_msg(strstr(topo->notes[1].text, "line 3 is the first") != NULL, "%s", topo->notes[1].text);
  ck_assert_double_eq_tol(topo->links[0].gbytes_per_s, 25, 1e-9);
}

/* ---- synthetic descriptions -------------------------------------------------------------------------------------- */

TEST(descriptions) {
  static const struct {
    const char *text;
    int32_t hosts, packages, numa, pci, gpus, nics, ports, switches, links;
  } cases[] = {
      {"host", 1, 0, 0, 0, 0, 0, 0, 0, 0},
      {"gpu", 1, 0, 0, 0, 1, 0, 0, 0, 0},
      {"# a comment\n\n  gpu:3   nic:2  # no comment here", 0, 0, 0, 0, 0, 0, 0, 0, -1},
      {"# a comment\n\n  gpu:3   nic:2  \n# another\n", 1, 0, 0, 0, 3, 2, 2, 0, 2},
      {"fabric:2 host:8 nvswitch gpu:8 nic:8@400g", 16, 0, 0, 0, 128, 128, 128, 19, 128 + 128 + 2},
      {"leaf:2@rails host:3 gpu:2 nic:4", 6, 0, 0, 0, 12, 24, 24, 9, 24 + 8},
      {"spine:3 leaf:2 host nic", 6, 0, 0, 0, 0, 6, 6, 6 + 3 + 1, 6 + 6 + 3},
      {"package:2 numa:2 bridge:2 pci:2 pci:3 gpu:2 nic@2x100g", 1, 2, 4, 8 + 16 + 48, 96, 48, 96, 0, 96},
      {"nvlink:2@3 gpu:4", 1, 0, 0, 0, 8, 0, 0, 0, 12},
      {"xgmi gpu:8@gfx942", 1, 0, 0, 0, 8, 0, 0, 0, 28},
      {"nvswitch host:18 package:2 numa gpu:2@sm100@c2c225GB nic:2@400g", 18, 36, 36, 0, 72, 72, 72, 1, 72 + 72 + 72},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    if (cases[i].links < 0) {
      rejected(cases[i].text, 3, "\"#\" is not a kind of item");
      continue;
    }
    bny_topo *topo = load(cases[i].text);
    const int32_t counts[][2] = {{BNY_TOPO_HOST, cases[i].hosts}, {BNY_TOPO_PACKAGE, cases[i].packages},
                                 {BNY_TOPO_NUMA, cases[i].numa},  {BNY_TOPO_PCI, cases[i].pci},
                                 {BNY_TOPO_GPU, cases[i].gpus},   {BNY_TOPO_NIC, cases[i].nics},
                                 {BNY_TOPO_PORT, cases[i].ports}, {BNY_TOPO_SWITCH, cases[i].switches}};
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
      int32_t found = bny_topo_count(topo, (bny_topo_kind)counts[k][0]);
      ck_assert_msg(found == counts[k][1], "%s: %d of kind %s", cases[i].text, found,
                    bny_topo_kind_name((bny_topo_kind)counts[k][0]));
    }
    ck_assert_msg(topo->nlinks == cases[i].links, "%s: %d links", cases[i].text, topo->nlinks);
  }
}

TEST(description_speeds) {
  bny_topo *topo = load("leaf:2 host numa bridge pci@gen4x16 nvlink@6 gpu:2@sm90@gen5x8 nic@2x200g");
  ck_facts(topo, "GPU0 GPU1 link 6x123.6; island source assumed; GPU0 GPU1 NVL; GPU0 NIC0 PIX; NIC0 number 0");
  for (int32_t l = 0; l < topo->nlinks; l++) {
    const bny_topo_link *link = &topo->links[l];
    bool trunk = topo->nodes[link->from].kind == BNY_TOPO_SWITCH;
    if (link->kind != BNY_TOPO_LINK_NET) continue;
    ck_assert_double_eq_tol(link->gbytes_per_s, trunk ? 50 : 25, 1e-9);
    ck_assert_int_eq(link->source, trunk ? BNY_TOPO_ASSUMED : BNY_TOPO_FILE);
  }
  ck_facts(load("gpu:2@sm80 nic@12.5GB"), "GPU0 speed 12.5");
}

TEST(descriptions_rejected) {
  rejected("host nvswich gpu:8", 1, "\"nvswich\" is not a kind of item");
  rejected("gpu:0", 1, "one count of 1 to 65536");
  rejected("gpu:65537", 1, "one count");
  rejected("gpu:", 1, "one count");
  rejected("gpu:2:3", 1, "one count");
  rejected("gpu:99999999999999999999", 1, "one count");
  rejected("gpu@h100", 1, "this cannot be said of gpu, which takes sm90 or gfx942, gen5x16, c2c");
  rejected("nic@400", 1, "this cannot be said of nic");
  rejected("nic@400g@2x100g", 1, "two of this kind cannot be said of nic");
  rejected("nic@0g", 1, "cannot be said");
  rejected("nic@-1g", 1, "cannot be said");
  rejected("nic@gen8x16", 1, "cannot be said");
  rejected("nic@gen5x33", 1, "cannot be said");
  rejected("host@sm90", 1, "cannot be said of host");
  rejected("gpu@", 1, "cannot be said of gpu");
  rejected("package host gpu", 1, "host inside of package");
  rejected("host leaf gpu", 1, "leaf inside of host");
  rejected("host host", 1, "host inside of host");
  rejected("numa package", 1, "package inside of numa");
  rejected("gpu host", 1, "gpu outside of a host");
  rejected("nvswitch nvlink gpu", 1, "joined twice");
  rejected("leaf:2 gpu\nleaf:3 gpu", 2, "a second line");
  rejected("host:65536 gpu:65536", 1, "more than 1000000 nodes");
  rejected("host:65536 package:65536 numa:65536 pci:65536 pci:65536 pci:65536 gpu:65536", 1, "more than 1000000 nodes");
  rejected("nvlink gpu:65", 1, "more than 64 GPUs linked each to each");
  rejected("leaf@rails nic:257", 1, "more than 256 rails");
  rejected(
      "gpu gpu gpu gpu gpu gpu gpu gpu gpu gpu gpu gpu gpu gpu gpu gpu gpu gpu gpu gpu gpu gpu gpu gpu gpu gpu gpu "
      "gpu gpu gpu "
      "gpu gpu gpu",
      1, "more than");
}

/* ---- size -------------------------------------------------------------------------------------------------------- */

/* A matrix with the most devices is fast, whether its cells carry the least or the most information. */
TEST(matrix_of_the_most_devices) {
  for (int kind = 0; kind < 3; kind++) {
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    for (int i = 0; i < 320; i++) fprintf(out, "\tGPU%d", i);
    fprintf(out, "\tCPU Affinity\tNUMA Affinity\n");
    for (int i = 0; i < 320; i++) {
      fprintf(out, "GPU%d", i);
      for (int j = 0; j < 320; j++)
        fputs(i == j                            ? "\tX"
              : kind == 0                       ? "\tN/A"
              : kind == 1 && i % 160 == j % 160 ? "\tSYS"
              : kind == 1                       ? "\tNV1"
                                                : "\tPIX",
              out);
      fprintf(out, "\t0-7\t0\n");
    }
    fclose(out);
    bny_topo *topo = load(text);
    ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_GPU), 320);
    free(text);
  }
}

int main(void) { return suite_main(suite_with("topo_text", 60, NULL, drop_kept)); }
