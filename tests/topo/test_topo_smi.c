/* SPDX-License-Identifier: Apache-2.0
 * nvidia-smi -q -x. */
#include "tests/topo/topo_xml_util.h"
#include "tests/support/suite.h"

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

static const refusal refused[] = {
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

TEST_LOOP(what_is_refused, (int)(sizeof refused / sizeof refused[0])) { ck_refused(&refused[_i]); }

static void ck_smi_dump(const char *path, const char *name) {
  size_t bytes;
  char *text = read_text(path, &bytes);
  bny_topo_error error = {.text = ""};
  bny_topo *topo = topo_load(path, NULL, &error);
  ck_assert_msg(topo != NULL, "%s", error.text);
  ck_assert_msg(bny_topo_count(topo, BNY_TOPO_GPU) == tags(text, "<gpu id="), "%s", name);
  ck_assert_msg(links_of_kind(topo, BNY_TOPO_LINK_NVLINK) == tags(text, "<status>Success<"), "%s", name);
}

TEST(dumps_of_smi) { each_dump("nvidia-smi", ".xml", ck_smi_dump); }

int main(void) {
  if (!xml_is_read()) return 77;
  return suite_main(suite_with("topo_smi", 120, NULL, drop_kept));
}
