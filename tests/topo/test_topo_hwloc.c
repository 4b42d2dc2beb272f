/* SPDX-License-Identifier: Apache-2.0
 * hwloc's XML. */
#include "tests/topo/topo_xml_util.h"

/* Links whose ends differ, links listed at one end only, and unidentifiable devices are reported as notes. */
TEST(nothing_in_silence) {
  static const struct {
    const char *from, *to;
    bny_topo_note_kind kind;
    const char *text;
  } cases[] = {{"75000 0 ", "75000 0 ", BNY_TOPO_NOTE_DIFFERS, "75000 MB/s from it to 0000:03:00.0, and 100000 back"},
               {"75000 0 ", "0 0     ", BNY_TOPO_NOTE_ONE_SIDED, "0000:03:00.0"},
               {"0300 [1a03:2000]", "0000 [1a03:2000]", BNY_TOPO_NOTE_INPUT, "0000:05:00.0 has no class"},
               {"75000 0 ", "100000 0 ", BNY_TOPO_NOTE_KINDS, NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bny_topo *t = load(corpus_text("hwloc/version2.xml", cases[i].from, cases[i].to));
    bool found = cases[i].text == NULL && t->nnotes == 0;
    for (int32_t n = 0; n < t->nnotes && cases[i].text != NULL; n++)
      found = found || (t->notes[n].kind == cases[i].kind && strstr(t->notes[n].text, cases[i].text) != NULL);
    ck_assert_msg(found, "case %zu: %d notes, %s", i, t->nnotes, t->nnotes > 0 ? t->notes[0].text : "");
  }
}

static const rejection rejected[] = {
    {"<topology version=\"4.0\">\n</topology>", 1, "version 4.0"},
    {"<topology version=\"2.0\">\n</topology>", 1, "no Machine"},
    {"<topology version=\"2.0\">\n<object type=\"Package\"/></topology>", 2, "outside of a Machine"},
    {"<topology version=\"2.0\"><object type=\"Machine\"/>\n<object type=\"Machine\"/></topology>", 2, "the second"},
    {"<topology version=\"2.0\"><object type=\"Machine\">\n<object type=\"PCIDev\" pci_busid=\"?\" pci_type=\"0302 "
     "[10de:1] [0:0] "
     "a\"/></object></topology>",
     2, "pci_busid"},
    {"<topology version=\"2.0\"><object type=\"Machine\">\n<object type=\"PCIDev\" pci_busid=\"0000:01:00.0\" "
     "pci_link_speed=\"-4\" pci_type=\"0302 [10de:1] [0:0] a\"/></object></topology>",
     2, "must be"},
    {"<topology version=\"2.0\"><object type=\"Machine\"><object type=\"PCIDev\" pci_busid=\"0000:01:00.0\" "
     "pci_type=\"0302 "
     "[10de:1] [0:0] a\"/>\n<object type=\"PCIDev\" pci_busid=\"0000:01:00.0\" pci_type=\"0302 [10de:1] [0:0] "
     "a\"/></object></topology>",
     2, "appears twice"},
    {"<topology version=\"2.0\"><object type=\"Machine\" gp_index=\"1\">\n<object type=\"Core\" "
     "gp_index=\"1\"/></object></topology>",
     2, "gp_index 1 appears twice"},
    {"<topology version=\"2.0\"><object type=\"Machine\" gp_index=\"1\"/>\n<distances2 nbobjs=\"99999999\" "
     "name=\"NVLinkBandwidth\"/></topology>",
     2, "must be"},
    {"<topology version=\"2.0\"><object type=\"Machine\" gp_index=\"1\"/>\n<distances2 nbobjs=\"1\" "
     "name=\"NVLinkBandwidth\"><indexes>OSDev:4</indexes></distances2></topology>",
     2, "no object OSDev:4"},
    {"<topology version=\"2.0\"><object type=\"Machine\" gp_index=\"1\"/>\n<distances2 nbobjs=\"1\" "
     "name=\"NVLinkBandwidth\"><indexes>1</indexes><u64values>1 2</u64values></distances2></topology>",
     2, "2 of 1 values"},
};

TEST_LOOP(what_is_rejected, (int)(sizeof rejected / sizeof rejected[0])) {
  ck_rejected(rejected[_i].text, strlen(rejected[_i].text), rejected[_i].line, rejected[_i].why);
}

/* Two halves, whose trunks are not reported; then without NVLinks. */
TEST(paths_of_real_bridges) {
  bny_topo *topo = dump("hwloc/nvidiaDGX2.xml");
  if (topo == NULL) return;
  ck_facts(topo, "96 nvlink; GPU0 GPU1 NVL; GPU0 GPU8 SYS");
  for (int32_t l = 0; l < topo->nlinks; l++)
    if (topo->links[l].kind == BNY_TOPO_LINK_NVLINK) topo->links[l].kind = BNY_TOPO_LINK_SYS;
  ck_facts(topo, "GPU0 GPU1 PIX; GPU0 GPU2 PXB; GPU0 GPU4 NODE; GPU0 GPU8 SYS");
}

int main(void) {
  if (!xml_is_read()) return 77;
  return suite_main(suite_with("topo_hwloc", 120, NULL, drop_kept));
}
