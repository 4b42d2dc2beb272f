/* SPDX-License-Identifier: Apache-2.0
 * Importers of text: ibnetdiscover and synthetic descriptions. */
#include "topo/levels/levels.h"
#include "tests/topo/topo_util.h"

static void rejected(const char *text, int line, const char *part) { ck_rejected(text, strlen(text), line, part); }

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
  ck_assert_int_eq(bny_topo_count(topo, BNY_TOPO_HOST), 4);
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
  rejected("# a comment\n\n  gpu:3   nic:2  # no comment here", 3, "\"#\" is not a kind of item");
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

int main(void) { return suite_main(suite_with("topo_text", 60, NULL, drop_kept)); }
