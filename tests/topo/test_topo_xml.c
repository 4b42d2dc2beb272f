/* SPDX-License-Identifier: Apache-2.0
 * XML whatever its format: what is cut short, changed, hostile, or only large; and that of nvidia-smi. */
#include "tests/topo/topo_xml_util.h"
#include <sys/resource.h>

#include "topo/export/export.h"

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
     "stands twice"},
    {"<nvidia_smi_log>\n<attached_gpus>1</attached_gpus><gpu id=\"00000000:01:00.0\"/>\n<gpu "
     "id=\"00000000:02:00.0\"/></nvidia_smi_log>",
     2, "lists 2"},
    {"<nvidia_smi_log><gpu id=\"00000000:01:00.0\"><pci><pci_gpu_link_info><pcie_gen>\n<max_link_gen>77</max_link_gen>"
     "</pcie_gen></pci_gpu_link_info></pci></gpu></nvidia_smi_log>",
     2, "absurd"},
};

TEST_LOOP(what_is_rejected, (int)(sizeof rejected / sizeof rejected[0])) {
  ck_rejected(rejected[_i].text, strlen(rejected[_i].text), rejected[_i].line, rejected[_i].why);
}

static const char *const examples[] = {nccl_example, hwloc_v2_example, hwloc_v1_example, smi_example};
enum { EXAMPLES = sizeof examples / sizeof examples[0] };

/* Cut anywhere, an example is rejected with a line that it has; the copy has no byte more, for sanitizers to see. */
TEST_LOOP(cut_short, EXAMPLES) {
  size_t whole = strlen(examples[_i]);
  while (whole > 0 && examples[_i][whole - 1] == '\n') whole--;
  for (size_t bytes = 1; bytes < whole; bytes++) {
    char *text = malloc(bytes);
    memcpy(text, examples[_i], bytes);
    bny_topo_error error = {.line = -1, .text = ""};
    bny_topo *topo = topo_import(text, bytes, NULL, &error);
    ck_assert_msg(topo == NULL && error.text[0] != '\0' && error.line >= 0, "cut to %zu bytes", bytes);
    free(text);
  }
}

/* Bytes changed, doubled and taken out: any end is good but a crash, and what is taken passes the check. */
TEST_LOOP(changed_bytes, EXAMPLES) {
  enum { ROUNDS = IS_SANITIZED ? 300 : 3000 }; /* fuzzers have sanitizers too */
  uint64_t seed = 0x9e3779b97f4a7c15u + (uint64_t)_i, state = seed;
  size_t bytes = strlen(examples[_i]);
  char *text = malloc(bytes + 1);
  int taken = 0;
  for (int round = 0; round < ROUNDS; round++) {
    memcpy(text, examples[_i], bytes);
    size_t length = bytes;
    for (uint64_t changes = random_word(&state) % 4; changes < 4; changes++) {
      size_t at = (size_t)(random_word(&state) % length);
      uint64_t how = random_word(&state) % 4;
      if (how == 0) {
        text[at] = (char)random_word(&state);
      } else if (how == 1) {
        text[at] = "0123456789\"<>/"[random_word(&state) % 14];
      } else if (how == 2) {
        memmove(text + at, text + at + 1, length - at - 1);
        length--;
      } else {
        text[at] ^= (char)(1u << (random_word(&state) % 7));
      }
    }
    bny_topo_error error;
    bny_topo *topo = topo_import(text, length, NULL, &error);
    if (topo != NULL) {
      ck_assert_msg(bny_topo_check(topo, &error), "seed %llx round %d: %s", (unsigned long long)seed, round,
                    error.text);
      char *again = topo_text(bny_topo_export_nccl(topo, &error));
      ck_assert_ptr_nonnull(again);
      taken++;
    }
  }
  ck_assert_int_gt(taken, 0);
  free(text);
}

/* 60 MiB each of what makes parsers eat memory: rejected, in memory that is bounded by the input's. */
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
  size_t bytes = (size_t)60 << 20, unit = strlen(cases[_i].unit), at = strlen(cases[_i].head);
  char *text = malloc(bytes);
  memcpy(text, cases[_i].head, at);
  for (; at + unit <= bytes; at += unit) memcpy(text + at, cases[_i].unit, unit);
  if (strcmp(cases[_i].why, "more than 16384") == 0) {
    /* whole, and not too many elements: the importer itself must stop */
    at = strlen(cases[_i].head) + 20000 * unit;
    memcpy(text + at, "</system>", 9);
    at += 9;
  }
  struct rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  bny_topo_error error = {.text = ""};
  bny_topo *topo = topo_import(text, at, NULL, &error);
  getrusage(RUSAGE_SELF, &after);
  ck_assert_msg(topo == NULL && strstr(error.text, cases[_i].why) != NULL, "got \"%s\"", error.text);
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
  long grown_kb = after.ru_maxrss - before.ru_maxrss;
  ck_assert_msg(grown_kb < 512 << 10, "grew by %ld KiB", grown_kb);
#endif
  free(text);
}

/* Shapes that would take long if anything were looked up by looking at all: 300,000 of each. */
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
  enum { UNITS = 300000 };
  size_t head = strlen(cases[_i].head), unit = strlen(cases[_i].unit), tail = strlen(cases[_i].tail);
  char *text = malloc(head + UNITS * unit + tail);
  memcpy(text, cases[_i].head, head);
  for (size_t u = 0; u < UNITS; u++) memcpy(text + head + u * unit, cases[_i].unit, unit);
  memcpy(text + head + UNITS * unit, cases[_i].tail, tail);
  bny_topo_error error = {.text = ""};
  bny_topo *topo = topo_import(text, head + UNITS * unit + tail, NULL, &error);
  ck_assert_msg(topo != NULL, "%s", error.text);
  free(text);
}

/* ---- nvidia-smi -q -x -------------------------------------------------------------------------------------------- */

TEST(smi) {
  bny_topo *t = import(smi_example, "nvidia-smi-xml");
  int32_t g0 = named(t, BNY_TOPO_GPU, "GPU0"), g1 = named(t, BNY_TOPO_GPU, "GPU1");
  ck_assert_int_eq(t->nodes[g0].compute, 90);
  ck_assert_str_eq(t->nodes[g0].bus_id, "0000:53:00.0");
  /* rated, not idle; but the width is what it is */
  ck_assert_double_eq_tol(between(t, g0, 0)->gbytes_per_s, 24, 1e-9);
  ck_assert_double_eq_tol(between(t, g0, 0)->rated_gbytes_per_s, 48, 1e-9);
  ck_assert_int_eq(bny_topo_count(t, BNY_TOPO_SWITCH), 1);
  ck_assert_int_eq(links_of_kind(t, BNY_TOPO_LINK_NVLINK), 1); /* the second GPU did not come into the fabric */
  ck_assert_int_eq(bny_topo_path_between(t, g0, g1), BNY_TOPO_PATH_SYS);
}

#define REPLAYS "<pci><replay_counter>500</replay_counter></pci>"

/* A MIG instance is a rank with its GPU's place and links, and no GPU of its own in the file's order. */
TEST(smi_instances) {
  char text[sizeof smi_example + 256];
  const char *at = strstr(smi_example, "</gpu>");
  snprintf(text, sizeof text,
           "%.*s<mig_mode><current_mig>Enabled</current_mig></mig_mode><mig_devices><mig_device><index>0</index>"
           "</mig_device><mig_device><index>1</index></mig_device></mig_devices>%s",
           (int)(at - smi_example), smi_example, at);
  char *replays = strstr(text, "<fabric><state>In"); /* GPU1's, which is behind the instance in the model */
  memmove(replays + strlen(REPLAYS), replays, strlen(replays) + 1);
  memcpy(replays, REPLAYS, strlen(REPLAYS));
  bny_topo *t = import(text, "nvidia-smi-xml");
  int32_t whole = named(t, BNY_TOPO_GPU, "GPU0"), part = named(t, BNY_TOPO_GPU, "GPU0.1");
  ck_assert_int_eq(bny_topo_count(t, BNY_TOPO_GPU), 3);
  ck_assert_int_eq(bny_topo_device(t, part), whole);
  ck_assert_int_eq(bny_topo_path_between(t, part, named(t, BNY_TOPO_SWITCH, "nvlink0")), BNY_TOPO_PATH_NVL);
  ck_assert_int_eq(t->notes[t->nnotes - 1].kind, BNY_TOPO_NOTE_REPLAYS);
  ck_assert_int_eq(t->notes[t->nnotes - 1].node, named(t, BNY_TOPO_GPU, "GPU1"));
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
