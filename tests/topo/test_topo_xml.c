/* SPDX-License-Identifier: Apache-2.0
 * XML of any format that is truncated, changed, hostile or just large, and the XML of nvidia-smi. */
#include <pthread.h>

#include "tests/topo/topo_xml_util.h"
#include "topo/import/xml.h"

/* Threads that are the first to read XML in this process. */
static void *read_first(void *together) {
  bny_topo_error error;
  pthread_barrier_wait(together);
  bny_topo_xml *xml = bny_topo_xml_parse("<a/>", 4, &error);
  bny_topo_xml_free(xml);
  return xml ? together : NULL;
}

TEST(threads_read_at_once) {
  enum { THREADS = 16 };
  pthread_t threads[THREADS];
  pthread_barrier_t together;
  pthread_barrier_init(&together, NULL, THREADS);
  for (int i = 0; i < THREADS; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, read_first, &together), 0);
  for (int i = 0; i < THREADS; i++) {
    void *good;
    pthread_join(threads[i], &good);
    ck_assert_ptr_nonnull(good);
  }
  pthread_barrier_destroy(&together);
}

static const rejection rejected[] = {
    {"<system version=\"1\">\n<cpu numaid=\"0\">", 2, "ends too early, in <cpu> of line 2"},
    {"<system version=\"1\">\n<cpu numaid=\"0\"></system>", 2, "XML: Opening and ending tag mismatch"},
    {"\n<!DOCTYPE system [\n<!ENTITY a \"b\">]>\n<system version=\"1\"/>", 2, "entities"},
    {"<!DOCTYPE system [\n<!ENTITY % a SYSTEM \"file:///etc/passwd\">%a;]>\n<system version=\"1\"/>", 1, "entities"},
    {"<!DOCTYPE system SYSTEM \"[>\">\n<system version=\"5\"/>", 2, "version 5"},
    {"<?xml version=\"1.0\" encoding=\"UTF-7\"?>\n<system version=\"1\">+ADw-cpu/+AD4-</system>", 2, "no <cpu>"},
    {"<system version=\"1\">&lol;</system>", 1, "XML"},
    {"<nvidia_smi_log>\n</nvidia_smi_log>", 1, "no <gpu>"},
    {"<nvidia_smi_log>\n<gpu id=\"one\"/></nvidia_smi_log>", 2, "not a bus id"},
    {"<nvidia_smi_log><gpu id=\"00000000:01:00.0\"/>\n<gpu id=\"00000000:01:00.0\"/></nvidia_smi_log>", 2,
     "appears twice"},
    {"<nvidia_smi_log>\n<attached_gpus>1</attached_gpus><gpu id=\"00000000:01:00.0\"/>\n<gpu "
     "id=\"00000000:02:00.0\"/></nvidia_smi_log>",
     2, "lists 2"},
    {"<nvidia_smi_log><gpu id=\"00000000:01:00.0\"><pci><pci_gpu_link_info><pcie_gen>\n<max_link_gen>77</max_link_gen>"
     "</pcie_gen></pci_gpu_link_info></pci></gpu></nvidia_smi_log>",
     2, "must be"},
};

TEST_LOOP(what_is_rejected, (int)(sizeof rejected / sizeof rejected[0])) {
  ck_rejected(rejected[_i].text, strlen(rejected[_i].text), rejected[_i].line, rejected[_i].why);
}

static const char *const examples[] = {"nccl/example.xml", "hwloc/version2.xml", "hwloc/version1.xml",
                                       "smi/example.xml"};

/* An example cut at any byte is rejected with an existing line number. The buffer is exact, for sanitizers. */
TEST_LOOP(cut_short, (int)(sizeof examples / sizeof examples[0])) {
  const char *example = corpus_text(examples[_i], NULL, NULL);
  size_t whole = strlen(example);
  while (whole > 0 && example[whole - 1] == '\n') whole--;
  for (size_t bytes = 1; bytes < whole; bytes++) {
    char *text = malloc(bytes);
    memcpy(text, example, bytes);
    bny_topo_error error = {.line = -1, .text = ""};
    bny_topo *topo = topo_import(text, bytes, NULL, &error);
    ck_assert_msg(topo == NULL && error.text[0] != '\0' && error.line >= 0, "cut to %zu bytes", bytes);
    free(text);
  }
}

/* 60 MiB each of shapes that make parsers use much memory. They are rejected in memory bounded by the input's size. */
TEST_LOOP(hostile_sizes, 10) {
  static const struct {
    const char *head, *unit, *why;
  } cases[] = {
      {"<system version=\"1\">", "<a>", "more than 64 deep"},
      {"<system version=\"1\">", "<a/>", "more than a million elements"},
      {"<system version=\"1\"><a>", "&lt;", "XML"},
      {"<topology version=\"2.0\">", "<a b=\"\" c=\"\" d=\"\" e=\"\" f=\"\" g=\"\" h=\"\" i=\"\" j=\"\"/>",
       "more than"},
      {"<system version=\"1\"><cpu numaid=\"0\"/>", "<cpu/>", "more than 16384"},
      {"<nvidia_smi_log>", "<!-- -->", "XML"},
      {"<system version=\"", "1111", "XML"},
      {"<!-- <a b=' --><?p \"?><!DOCTYPE system SYSTEM \"<!--\"><system ", "a=\"\" ", "more than 256 attributes"},
      {"<system><![CDATA[\"]]><b ", "a='\"' ", "more than 256 attributes"},
      {"<!-- <pci busid='> --><system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" class=\"0x02\">",
       "<nic/>", "more than a million elements"}};
  /* The file of processors is complete and below the limit of elements, so the importer itself must stop. */
  bool whole = strcmp(cases[_i].why, "more than 16384") == 0;
  size_t units = whole ? 20000 : HOSTILE_BYTES / strlen(cases[_i].unit);
  ck_hostile(repeated(cases[_i].head, cases[_i].unit, units, whole ? "</system>" : ""), cases[_i].why);
}

/* 300,000 of each shape that would take quadratic time with linear lookups. */
TEST_LOOP(large_and_good, 6) {
  static const struct {
    const char *head, *unit, *tail;
  } cases[] = {
      {NCCL_HEAD "<pci busid=\"0000:01:00.0\"><nic>", "<net name=\"a\"/>", "</nic></pci>" NCCL_TAIL},
      {NCCL_HEAD "<pci busid=\"0000:01:00.0\"><nic/>", "<x/>", "</pci>" NCCL_TAIL},
      {NCCL_HEAD, "<nic><net name=\"eth0\"/></nic>", NCCL_TAIL},
      {"<topology version=\"2.0\"><object type=\"Machine\">", "<object type=\"Package\"/>", "</object></topology>"},
      {"<topology version=\"2.0\"><object type=\"Machine\">", "<object type=\"NUMANode\"/>", "</object></topology>"},
      {"<nvidia_smi_log><gpu id=\"00000000:01:00.0\">", "<a>text</a>", "</gpu></nvidia_smi_log>"}};
  load(repeated(cases[_i].head, cases[_i].unit, 300000, cases[_i].tail));
}

/* ---- nvidia-smi -q -x -------------------------------------------------------------------------------------------- */

/* PCI links have their rated speed, because an idle GPU lowers it, but their current width. The second GPU has not
 * joined the fabric. */
TEST(smi) {
  bny_topo *t = import(corpus_text("smi/example.xml", NULL, NULL), "nvidia-smi-xml");
  ck_facts(t, "GPU0 compute 90; GPU0 bus 0000:53:00.0; GPU0 host0 link 8x24; 1 switch; 1 nvlink; GPU0 GPU1 SYS");
  ck_assert_double_eq_tol(between(t, node_of(t, "GPU0"), 0)->rated_gbytes_per_s, 48, 1e-9);
}

/* A MIG instance is a rank with the locality and links of its GPU, and is not counted as a GPU of the file. */
TEST(smi_instances) {
  char *text = corpus_text("smi/example.xml", "</gpu>",
                           "<mig_mode><current_mig>Enabled</current_mig></mig_mode><mig_devices><mig_device><index>0"
                           "</index></mig_device><mig_device><index>1</index></mig_device></mig_devices></gpu>");
  const char *second = strstr(text, "<fabric><state>In");
  char *both = topo_text(malloc(strlen(text) + 128));
  sprintf(both, "%.*s<pci><replay_counter>500</replay_counter></pci>%s", (int)(second - text), text, second);
  bny_topo *t = load(both);
  ck_facts(t, "3 gpu; GPU0.1 device GPU0; GPU0.1 nvlink0 NVL; note GPU1: the driver counts 500 PCI replays");
}

TEST(smi_without_instances) {
  ck_facts(load(corpus_text("smi/example.xml", "</gpu>",
                            "<mig_mode><current_mig>Enabled</current_mig></mig_mode><mig_devices>None</mig_devices>"
                            "</gpu>")),
           "2 ranks; note GPU0: MIG is enabled and it has no instance");
}

static void ck_smi_dump(const char *path, const char *name) {
  size_t bytes;
  char *text = read_text(path, &bytes);
  bny_topo *topo = load_file(path);
  ck_assert_msg(bny_topo_count(topo, BNY_TOPO_GPU) == tags(text, "<gpu id="), "%s", name);
  ck_assert_msg(links_of_kind(topo, BNY_TOPO_LINK_NVLINK) == tags(text, "<status>Success<"), "%s", name);
}

TEST(dumps_of_smi) { each_dump("nvidia-smi", ".xml", ck_smi_dump); }

int main(void) {
  if (!xml_is_read()) return 77;
  return suite_main(suite_with("topo_xml", 120, NULL, drop_kept));
}
