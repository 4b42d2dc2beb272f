/* SPDX-License-Identifier: Apache-2.0
 * XML of any format that is truncated, changed, hostile or just large. */
#include <pthread.h>

#include "tests/topo/topo_xml_util.h"
#include "tools/topo/import/xml.h"

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
    {"<nvidia_smi_log>\n</nvidia_smi_log>", 1, "nvidia-smi -q -x, which is not read"},
};

TEST_LOOP(what_is_rejected, (int)(sizeof rejected / sizeof rejected[0])) {
  ck_rejected(rejected[_i].text, strlen(rejected[_i].text), rejected[_i].line, rejected[_i].why);
}

static const char *const examples[] = {"nccl/example.xml", "hwloc/version2.xml", "hwloc/version1.xml"};

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
TEST_LOOP(hostile_sizes, 9) {
  static const struct {
    const char *head, *unit, *why;
  } cases[] = {
      {"<system version=\"1\">", "<a>", "more than 64 deep"},
      {"<system version=\"1\">", "<a/>", "more than a million elements"},
      {"<system version=\"1\"><a>", "&lt;", "XML"},
      {"<topology version=\"2.0\">", "<a b=\"\" c=\"\" d=\"\" e=\"\" f=\"\" g=\"\" h=\"\" i=\"\" j=\"\"/>",
       "more than"},
      {"<system version=\"1\"><cpu numaid=\"0\"/>", "<cpu/>", "more than 16384"},
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
TEST_LOOP(large_and_good, 5) {
  static const struct {
    const char *head, *unit, *tail;
  } cases[] = {
      {NCCL_HEAD "<pci busid=\"0000:01:00.0\"><nic>", "<net name=\"a\"/>", "</nic></pci>" NCCL_TAIL},
      {NCCL_HEAD "<pci busid=\"0000:01:00.0\"><nic/>", "<x/>", "</pci>" NCCL_TAIL},
      {NCCL_HEAD, "<nic><net name=\"eth0\"/></nic>", NCCL_TAIL},
      {"<topology version=\"2.0\"><object type=\"Machine\">", "<object type=\"Package\"/>", "</object></topology>"},
      {"<topology version=\"2.0\"><object type=\"Machine\">", "<object type=\"NUMANode\"/>", "</object></topology>"}};
  load(repeated(cases[_i].head, cases[_i].unit, 300000, cases[_i].tail));
}

int main(void) {
  if (!xml_is_read()) return 77;
  return suite_main(suite_with("topo_xml", 120, NULL, drop_kept));
}
