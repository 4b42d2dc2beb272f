/* SPDX-License-Identifier: Apache-2.0
 * The JSON format. A model that is written and read again is identical to the bit. Invalid input is rejected. */
#include "topo/model/json.h"
#include "topo/model/model.h"
#include "tests/topo/topo_laws.h"
#include "tests/topo/topo_util.h"

static void ck_round_trip(const bny_topo *topo, const char *name) {
  const char *broken = law_of_json(topo);
  ck_assert_msg(broken == NULL, "%s: %s", name, broken);
}

TEST(every_field) {
  bny_topo *t = topo_new();
  bny_topo_node host = {.kind = BNY_TOPO_HOST,
                        .parent = -1,
                        .index = 3,
                        .name = "host \"a\" \\ \xe2\x82\xac",
                        .model = "m",
                        .vendor = "v",
                        .guid = "0x1",
                        .compute = -1,
                        .source = BNY_TOPO_PROBED};
  int32_t h = bny_topo_add_node(t, &host);
  bny_topo_node gpu = {.kind = BNY_TOPO_GPU,
                       .parent = h,
                       .index = 0,
                       .name = "GPU0",
                       .bus_id = "0000:1b:00.0",
                       .compute = 90,
                       .source = BNY_TOPO_MEASURED};
  int32_t g = bny_topo_add_node(t, &gpu);
  int32_t bridge = put(t, BNY_TOPO_PCI, h, "0000:[00-0f]", NULL);
  t->nodes[bridge].host_bridge = true;
  /* duplicate names, and names like the ids that the export generates */
  int32_t twice[] = {put(t, BNY_TOPO_NIC, h, "eth0", NULL), put(t, BNY_TOPO_PORT, h, "eth0", NULL),
                     put(t, BNY_TOPO_NIC, h, "eth0#3", NULL), put(t, BNY_TOPO_NIC, h, "eth0#4", NULL),
                     put(t, BNY_TOPO_NIC, h, "#", NULL)};
  const double speeds[] = {
      0, 0.1, 1.0 / 3, 20.6, 20.6 * 18, 1e-300, 5e-324, 1e6, 123456.78901234567, 1.0000000000000002};
  for (size_t s = 0; s < sizeof speeds / sizeof speeds[0]; s++) {
    bny_topo_link link = {.kind = (bny_topo_link_kind)(s % BNY_TOPO_LINK_KINDS),
                          .from = twice[s % 5],
                          .to = s % 2 == 0 ? g : h,
                          .count = (int32_t)s,
                          .gbytes_per_s = speeds[s],
                          .rated_gbytes_per_s = speeds[9 - s],
                          .latency_us = speeds[s] / 7,
                          .source = (bny_topo_source)(s % 4)};
    bny_topo_add_link(t, &link);
  }
  bny_topo_error error;
  ck_assert_msg(bny_topo_check(t, &error), "%s", error.text);
  ck_round_trip(t, "by hand");
}

/* Numbers have 17 digits only if fewer digits would change them. */
TEST(short_numbers) {
  bny_topo *t = topo_new();
  int32_t a = put(t, BNY_TOPO_GPU, -1, "GPU0", NULL), b = put(t, BNY_TOPO_GPU, -1, "GPU1", NULL);
  join(t, BNY_TOPO_LINK_NVLINK, a, b, 20.6);
  join(t, BNY_TOPO_LINK_PCI, a, b, 0);
  char *text = exported(bny_topo_export_json, t);
  ck_assert_msg(strstr(text, "\"gbytes_per_s\": 20.6,") != NULL, "%s", text);
  ck_assert_msg(strstr(text, "\"gbytes_per_s\": null") != NULL, "%s", text);
  ck_assert_msg(strstr(text, "{\"id\": \"GPU0\", \"kind\": \"gpu\",") != NULL, "%s", text);
}

TEST_LOOP(models_at_random, 20) {
  char name[64];
  bny_topo_error error;
  bny_topo *t = random_model(88172645463325252u + (uint64_t)_i, 300, 500);
  snprintf(name, sizeof name, "model %d", _i);
  ck_assert_msg(bny_topo_check(t, &error), "%s: %s", name, error.text);
  ck_round_trip(t, name);
}

/* A minimal text with numbers as ids and unknown members. */
TEST(by_hand) {
  static const char text[] =
      " {\"nodes\": [{\"id\": 7, \"kind\": \"host\", \"colour\": \"blue\"}, "
      "{\"id\": \"g\", \"kind\": \"gpu\", "
      "\"parent\": 7, \"bus_id\": \"1B:00.0\", \"model\": null}, {\"id\": 8, \"kind\": \"switch\"}],\n"
      "\"links\": [{\"from\": \"g\", \"to\": 8, \"kind\": \"nvlink\", \"gbytes_per_s\": 370}],\n"
      "\"levels\": [], \"findings\": [1, 2]}";
  bny_topo *t = load(text);
  ck_assert_str_eq(t->nodes[0].name, "7");
  ck_assert_int_eq(t->nodes[1].parent, 0);
  ck_assert_str_eq(t->nodes[1].bus_id, "0000:1b:00.0");
  ck_assert_int_eq(t->nodes[1].source, BNY_TOPO_FILE);
  ck_assert_int_eq(t->links[0].count, 1);
  ck_assert_double_eq(t->links[0].gbytes_per_s, 370);
  ck_round_trip(t, "by hand");
}

#define NODES                                          \
  "{\"nodes\": [{\"id\": \"h\", \"kind\": \"host\"}, " \
  "{\"id\": \"g\", \"kind\": \"gpu\", \"parent\": \"h\"}], \"links\": "

static const struct {
  const char *text, *why;
} bad[] = {
    {"{", "JSON"},
    {"{}", "JSON without a list"},
    {"{\"nodes\": 3}", "wants \"nodes\""},
    {"{\"nodes\": []}", "wants \"nodes\""},
    {"{\"nodes\": [3]}", "nodes[0].id"},
    {"{\"nodes\": [{\"id\": \"\", \"kind\": \"host\"}]}", "nodes[0].id"},
    {"{\"nodes\": [{\"id\": \"a\"}]}", "nodes[0].kind"},
    {"{\"nodes\": [{\"id\": \"a\", \"kind\": \"disk\"}]}", "nodes[0].kind"},
    {"{\"nodes\": [{\"id\": \"a\", \"kind\": 4}]}", "nodes[0].kind: wants a string"},
    {"{\"nodes\": [{\"id\": \"a\", \"kind\": \"host\"}, {\"id\": \"a\", \"kind\": \"host\"}]}",
     "nodes[1].id: \"a\" is also that of nodes[0]"},
    {"{\"nodes\": [{\"id\": \"a\", \"kind\": \"host\", \"parent\": \"b\"}]}",
     "nodes[0].parent: no node has the id \"b\""},
    {"{\"nodes\": [{\"id\": \"a\", \"kind\": \"host\", \"parent\": \"a\"}]}", "nodes[0].parent: stands behind"},
    {"{\"nodes\": [{\"id\": \"a\", \"kind\": \"host\", \"parent\": \"b\"}, {\"id\": \"b\", \"kind\": \"host\"}]}",
     "put it before"},
    {"{\"nodes\": [{\"id\": \"a\", \"kind\": \"host\", \"index\": 1.5}]}", "nodes[0].index"},
    {"{\"nodes\": [{\"id\": \"a\", \"kind\": \"host\", \"index\": 99999999999}]}", "nodes[0].index"},
    {"{\"nodes\": [{\"id\": \"a\", \"kind\": \"gpu\", \"bus_id\": \"x\"}]}", "nodes[0].bus_id"},
    {"{\"nodes\": [{\"id\": \"a\", \"kind\": \"pci\", \"host_bridge\": 1}]}", "nodes[0].host_bridge"},
    {"{\"nodes\": [{\"id\": \"a\", \"kind\": \"host\", \"source\": \"heard\"}]}", "nodes[0].source"},
    {"{\"version\": 2, \"nodes\": [{\"id\": \"a\", \"kind\": \"host\"}]}", "version"},
    {"{\"nodes\": [{\"id\": \"a\", \"kind\": \"gpu\", \"name\": \"x\"}, {\"id\": \"b\", \"kind\": \"gpu\", \"name\": "
     "\"x\"}]}",
     "called \"x\""},
    {NODES "7}", "wants \"nodes\""},
    {NODES "[7]}", "links[0].from"},
    {NODES "[{\"from\": \"g\", \"to\": \"nowhere\", \"kind\": \"pci\"}]}",
     "links[0].to: no node has the id \"nowhere\""},
    {NODES "[{\"from\": \"g\", \"to\": \"h\"}]}", "links[0].kind"},
    {NODES "[{\"from\": \"g\", \"to\": \"h\", \"kind\": \"pci\", \"gbytes_per_s\": -1}]}",
     "links[0].gbytes_per_s: must be"},
    {NODES "[{\"from\": \"g\", \"to\": \"h\", \"kind\": \"pci\", \"gbytes_per_s\": 1e300}]}", "must be"},
    {NODES "[{\"from\": \"g\", \"to\": \"h\", \"kind\": \"pci\", \"gbytes_per_s\": 2e6}]}", "out of range"},
    {NODES "[{\"from\": \"g\", \"to\": \"h\", \"kind\": \"pci\", \"gbytes_per_s\": \"fast\"}]}", "must be"},
    {NODES "[{\"from\": \"g\", \"to\": \"h\", \"kind\": \"pci\", \"count\": -4}]}", "links[0].count"},
    {NODES "[]} more", "JSON"},
    {"{\"nodes\": [], \"nodes\": []}", "JSON"},
};

TEST_LOOP(what_is_rejected, (int)(sizeof bad / sizeof bad[0])) {
  ck_rejected(bad[_i].text, strlen(bad[_i].text), -1, bad[_i].why);
}

TEST(lines_of_errors) {
  bny_topo_error error = {.text = ""};
  static const char text[] = "{\n\"nodes\": [\n {\"id\": 1,, }";
  ck_assert_ptr_null(topo_import(text, sizeof text - 1, NULL, &error));
  ck_assert_int_eq(error.line, 3);
}

TEST_LOOP(hostile_sizes, 6) {
  static const struct {
    const char *head, *unit, *why;
  } cases[] = {{"{\"nodes\":", "[", "nests more than 64 deep"},
               {"{\"nodes\":", "{\"a\":", "nests more than 64 deep"},
               {"{\"nodes\":[", "0,", "more than 8000000 values"},
               {"{\"nodes\":[", "[],", "more than 8000000 values"},
               {"{\"nodes\":\"", "xxxxxxxx", "JSON"},
               {"{\"nodes\":[", "        ", "JSON"}};
  ck_hostile(repeated(cases[_i].head, cases[_i].unit, HOSTILE_BYTES / strlen(cases[_i].unit), ""), cases[_i].why);
}

int main(void) { return suite_main(suite_with("topo_json", 120, NULL, drop_kept)); }
