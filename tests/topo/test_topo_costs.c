/* SPDX-License-Identifier: Apache-2.0
 * Files of measured costs. Files that banyan-topo writes are read without loss. Files of other machines, other versions
 * and broken files are rejected with a reason, and change nothing. */
#include <sys/stat.h>

#include "base/hash.h"
#include "banyan.h"
#include "locality/price.h"
#include "tests/topo/topo_sysfs.h"
#include "tools/topo/measure/measure.h"

static const bny_machine here = {.cpu = "Some CPU",
                                 .packages = 2,
                                 .numa_nodes = 4,
                                 .cores = 64,
                                 .gpus = "0000:1b:00.0 10de:2330",
                                 .nics = "0000:17:00.0 15b3:1021"};

static const char sound[] =
    "{\"version\": \"0.1.0\", \"date\": \"2026-11-22T12:00:00Z\", \"costs_version\": 1,\n"
    " \"machine\": {\"cpu\": \"Some CPU\", \"packages\": 2, \"numa_nodes\": 4, \"cores\": 64,\n"
    "  \"gpus\": \"0000:1b:00.0 10de:2330\", \"nics\": \"0000:17:00.0 15b3:1021\"},\n"
    " \"merge_ns_per_byte\": 0.02,\n"
    " \"links\": [{\"class\": \"memory\", \"alpha_ns\": 111, \"message_ns\": 22, \"beta_ns_per_byte\": 0.05, "
    "\"source\": \"a test\"},\n"
    "  {\"class\": \"network-cpu\", \"alpha_ns\": 1800.5, \"beta_ns_per_byte\": 0.08, \"source\": \"a test\"}]}\n";

/* Writes the text to a file and reads it. *prices is set to the default first. */
static banyan_status read_text(const char *text, size_t bytes, bny_prices *prices) {
  static tree t;
  char path[300];
  if (t.root[0] == '\0') t = tree_new();
  tree_bytes(&t, "costs.json", text, bytes);
  snprintf(path, sizeof path, "%s/costs.json", t.root);
  *prices = bny_prices_default;
  return bny_costs_read_on(&here, path, prices);
}

static bool are_default(const bny_prices *prices) { return memcmp(prices, &bny_prices_default, sizeof *prices) == 0; }

TEST(rows_are_replaced) {
  bny_prices prices;
  ck_assert_msg(read_text(sound, strlen(sound), &prices) == BANYAN_OK, "%s", banyan_last_error());
  for (int i = 0; i < BNY_LINK_CLASSES; i++) {
    const bny_price *row = &prices.rows[i];
    bool replaced = i == BNY_LINK_MEMORY || i == BNY_LINK_NETWORK_CPU;
    ck_assert_int_eq(row->measured, replaced);
    if (!replaced) ck_assert_mem_eq(row, &bny_prices_default.rows[i], sizeof *row);
  }
  const bny_link_cost memory = bny_price_cost(&prices, BNY_LINK_MEMORY, 1);
  ck_assert_double_eq(memory.alpha_ns, 111);
  ck_assert_double_eq(memory.message_ns, 22);
  ck_assert_double_eq_tol(memory.beta_ns_per_byte, 0.05, 1e-12);
  ck_assert_double_eq(memory.gamma_ns_per_byte, 0.02);
  const bny_link_cost network = bny_price_cost(&prices, BNY_LINK_NETWORK_CPU, 1);
  ck_assert_double_eq(network.alpha_ns, 1800.5);
  ck_assert_double_eq(network.message_ns, 0); /* not known */
  ck_assert_msg(strstr(prices.source, "costs.json of 2026-11-22T12:00:00Z") != NULL, "%s", prices.source);
}

/* Each row replaces `from` in the valid text by `to`. */
static const struct {
  const char *from, *to, *error;
} rejections[] = {
    /* another machine */
    {"Some CPU", "Other CPU", "another machine: cpu is \"Other CPU\" there and \"Some CPU\" here"},
    {"\"packages\": 2", "\"packages\": 1", "another machine: packages is 1 there and 2 here"},
    {"\"numa_nodes\": 4", "\"numa_nodes\": 2", "another machine: numa_nodes is 2 there and 4 here"},
    {"\"cores\": 64", "\"cores\": 96", "another machine: cores is 96 there and 64 here"},
    {"10de:2330", "10de:2331", "another machine: gpus is \"0000:1b:00.0 10de:2331\" there"},
    {"0000:17:00.0 15b3:1021", "", "another machine: nics is \"\" there"},
    {"\"cores\": 64,", "", "machine.cores is missing"},
    {"\"cpu\": \"Some CPU\"", "\"cpu\": 1", "machine.cpu is missing, or not a text"},
    {"\"machine\": {", "\"machines\": {", "machine is missing, or not an object"},
    /* versions */
    {"\"costs_version\": 1", "\"costs_version\": 2", "costs_version is 2, and this libbanyan knows 1: measure again"},
    {"\"costs_version\": 1,", "", "costs_version is missing"},
    {"\"date\": \"2026-11-22T12:00:00Z\"", "\"date\": null", "date is missing, or not a text"},
    /* numbers */
    {"111", "-111", "links[0].alpha_ns is -111; it must be between 0.001 and 1e+09"},
    {"111", "0", "links[0].alpha_ns is 0; it must be between"},
    {"111", "1e300", "links[0].alpha_ns is 1e+300; it must be between"},
    {"111", "1e999", "line 5, column"},
    {"111", "NaN", "line 5, column"},
    {"111", "\"111\"", "links[0].alpha_ns is not a number"},
    {"\"alpha_ns\": 111, ", "", "links[0].alpha_ns is missing"},
    {": 22", ": -1", "links[0].message_ns is -1; it must be between 0 and 1e+09"},
    {": 22", ": null", "links[0].message_ns is not a number"},
    {"0.08", "0", "links[1].beta_ns_per_byte is 0; it must be between 1e-06 and 1000"},
    {"0.08", "1001", "links[1].beta_ns_per_byte is 1001; it must be between"},
    {"0.02", "-0.02", "merge_ns_per_byte is -0.02; it must be between"},
    /* links */
    {"network-cpu", "memory", "links[1].class is \"memory\" for a second time"},
    {"network-cpu", "telepathy", "links[1].class is \"telepathy\", which is not a class of links"},
    {"\"class\": \"memory\", ", "", "links[0].class is missing, or not a text"},
    {"\"source\": \"a test\"},", "\"source\": 7},", "links[0].source is missing, or not a text"},
    {"\"message_ns\"", "\"mesage_ns\"", "links[0].mesage_ns is unknown"},
    {"\"links\": [", "\"links\": [7, ", "links[0] is not an object"},
    {"\"links\"", "\"link\"", "links is missing, or has no entry"},
    /* the text */
    {"{\"version\"", "[{\"version\"", "line 7, column"},
    {"\"packages\": 2,", "\"packages\": 2, \"packages\": 2,", "line 2, column"},
    {"]}\n", "]}\n{}", "line 7, column"},
};

TEST_LOOP(rejects, (int)(sizeof rejections / sizeof *rejections)) {
  char text[2 * sizeof sound];
  bny_prices prices;
  const char *at = strstr(sound, rejections[_i].from);
  ck_assert_msg(at != NULL, "%s", rejections[_i].from);
  int bytes = snprintf(text, sizeof text, "%.*s%s%s", (int)(at - sound), sound, rejections[_i].to,
                       at + strlen(rejections[_i].from));
  ck_assert_int_eq(read_text(text, (size_t)bytes, &prices), BANYAN_ERR_ARGUMENT);
  ck_assert_msg(strstr(banyan_last_error(), rejections[_i].error) != NULL, "%s", banyan_last_error());
  ck_assert_msg(strstr(banyan_last_error(), "BANYAN_COSTS: \"") == banyan_last_error(), "%s", banyan_last_error());
  ck_assert(are_default(&prices));
}

TEST(rejects_what_is_no_file) {
  tree t = tree_new();
  char path[300];
  bny_prices prices = bny_prices_default;
  snprintf(path, sizeof path, "%s/none", t.root);
  ck_assert_int_eq(bny_costs_read_on(&here, path, &prices), BANYAN_ERR_ARGUMENT);
  ck_assert_msg(strstr(banyan_last_error(), "cannot be opened: No such file") != NULL, "%s", banyan_last_error());
  ck_assert_int_eq(bny_costs_read_on(&here, t.root, &prices), BANYAN_ERR_ARGUMENT);
  ck_assert_msg(strstr(banyan_last_error(), "not a file") != NULL, "%s", banyan_last_error());
  ck_assert_int_eq(mkfifo(path, 0600), 0);
  ck_assert_int_eq(bny_costs_read_on(&here, path, &prices), BANYAN_ERR_ARGUMENT);
  ck_assert_int_eq(unlink(path), 0);
  tree_file(&t, sound, "none");
  ck_assert_int_eq(truncate(path, 2 << 20), 0);
  ck_assert_int_eq(bny_costs_read_on(&here, path, &prices), BANYAN_ERR_ARGUMENT);
  ck_assert_msg(strstr(banyan_last_error(), "at most 1 MiB") != NULL, "%s", banyan_last_error());
  ck_assert(are_default(&prices));
}

/* ---- mutations --------------------------------------------------------------------------------------------------- */

static void check_row(const bny_price *row) {
  ck_assert(isfinite(row->software_ns) && row->software_ns > 0 && row->software_ns <= 1e9);
  ck_assert(isfinite(row->way_ns) && row->way_ns >= 0 && row->way_ns <= 1e9);
  ck_assert(isfinite(row->message_ns) && row->message_ns >= 0 && row->message_ns <= 1e9);
  ck_assert(row->gbytes_per_s >= 1e-3 && row->gbytes_per_s <= 1e6);
}

TEST(mutations_are_rejected_or_sound) {
  enum { MUTATIONS = 5000 };
  static const char *const pieces[] = {"{",   "}",    "[",       "]",       "\"",       ",",        ":",      "-",
                                       "1e9", "null", "1e-9999", "\\u0000", "\xff\xfe", "[[[[[[[[", "{\"\":", NULL};
  uint64_t state = 20261122;
  int taken = 0;
  for (int i = 0; i < MUTATIONS; i++) {
    char text[sizeof sound + MUTATION_BYTES];
    bny_prices prices;
    memcpy(text, sound, sizeof sound);
    size_t bytes = mutate(&state, text, sizeof sound - 1, pieces);
    banyan_status status = read_text(text, bytes, &prices);
    if (status != BANYAN_OK) {
      ck_assert_int_eq(status, BANYAN_ERR_ARGUMENT);
      ck_assert(are_default(&prices));
      continue;
    }
    taken++;
    for (int class = 0; class < BNY_LINK_CLASSES; class ++) check_row(&prices.rows[class]);
    ck_assert(prices.merge_ns_per_byte >= 1e-6 && prices.merge_ns_per_byte <= 1e3);
  }
  ck_assert_int_gt(taken, 0);
  ck_assert_int_lt(taken, MUTATIONS / 2);
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */

static void pci(const tree *t, const char *bus, const char *class, const char *vendor, const char *device) {
  tree_file(t, class, "sys/bus/pci/devices/%s/class", bus);
  tree_file(t, vendor, "sys/bus/pci/devices/%s/vendor", bus);
  tree_file(t, device, "sys/bus/pci/devices/%s/device", bus);
}

/* Makes two packages of two cores with two threads each. The numbers of siblings differ by four. */
static void make_machine(const tree *t) {
  for (int cpu = 0; cpu < 8; cpu++) {
    char siblings[16], package[16];
    snprintf(siblings, sizeof siblings, "%d,%d\n", cpu % 4, cpu % 4 + 4);
    snprintf(package, sizeof package, "%s\n", cpu % 4 < 2 ? "0-1,4-5" : "2-3,6-7");
    tree_file(t, siblings, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    tree_file(t, package, "sys/devices/system/cpu/cpu%d/topology/core_siblings_list", cpu);
  }
  tree_file(t, "", "sys/devices/system/cpu/cpufreq/x");
  for (int node = 0; node < 2; node++) tree_file(t, "", "sys/devices/system/node/node%d/cpulist", node);
  tree_file(t, "", "sys/devices/system/node/online");
  pci(t, "0000:1b:00.0", "0x030200\n", "0x10de\n", "0x2330\n");
  pci(t, "0000:03:00.0", "0x030000\n", "0x1a03\n", "0x2000\n");
  pci(t, "0000:17:00.0", "0x020700\n", "0x15b3\n", "0x1021\n");
  pci(t, "0000:17:00.1", "0x020700\n", "0x15b3\n", "0x101e\n");
  tree_file(t, "", "sys/bus/pci/devices/0000:17:00.1/physfn/class"); /* a virtual function */
  pci(t, "0000:00:1f.0", "0x060100\n", "0x8086\n", "0x1234\n");      /* a bridge */
}

TEST(a_machine_is_known_by_its_parts) {
  static const struct {
    const char *text, *cpu;
  } cpus[] = {{"processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nprocessor\t: 1\nmodel name\t: x\n", "Some CPU @ 2 GHz"},
              {"processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "implementer 0x41 part 0xd4f"},
              {"cpu\t\t: POWER10, altivec supported\n", "POWER10, altivec supported"},
              {"model name\t:\n", ""},
              {"", ""}};
  for (size_t i = 0; i < sizeof cpus / sizeof *cpus; i++) {
    tree t = tree_new();
    bny_machine found;
    make_machine(&t);
    tree_file(&t, cpus[i].text, "proc/cpuinfo");
    bny_machine_find(t.root, &found);
    ck_assert_str_eq(found.cpu, cpus[i].cpu);
    ck_assert_int_eq(found.packages, 2);
    ck_assert_int_eq(found.numa_nodes, 2);
    ck_assert_int_eq(found.cores, 4);
    ck_assert_str_eq(found.gpus, "0000:03:00.0 1a03:2000, 0000:1b:00.0 10de:2330");
    ck_assert_str_eq(found.nics, "0000:17:00.0 15b3:1021");
  }
}

TEST(a_machine_without_files_is_unknown) {
  bny_machine found, nothing = {.cpu = ""};
  bny_machine_find("/nonexistent", &found);
  ck_assert_mem_eq(&found, &nothing, sizeof found);
}

/* ---- from the tool to the library -------------------------------------------------------------------------------- */

static void set_class(topo_measured *measured, bny_link_class class, double alpha, double more, double beta) {
  measured->classes[class] =
      (topo_measured_class){.npairs = 3, .more_ns = more, .alpha_ns = alpha, .beta_ns_per_byte = beta};
}

static void save_and_read(const topo_measured *measured, bny_prices *prices) {
  tool_error error = {.text = ""};
  tree t = tree_new();
  char path[300];
  char *text = topo_measured_costs(measured, &error);
  ck_assert_msg(text != NULL, "%s", error.text);
  tree_bytes(&t, "costs.json", text, strlen(text));
  snprintf(path, sizeof path, "%s/costs.json", t.root);
  *prices = bny_prices_default;
  ck_assert_msg(bny_costs_read(path, prices) == BANYAN_OK, "%s", banyan_last_error());
}

static void check_price(const bny_prices *prices, bny_link_class class, double alpha, double more, double beta) {
  const bny_link_cost cost = bny_price_cost(prices, class, 1);
  ck_assert_double_eq_tol(cost.alpha_ns, alpha, 1e-4 * alpha);
  ck_assert_double_eq_tol(cost.message_ns, more, 1e-4 * more + 1e-9);
  ck_assert_double_eq_tol(cost.beta_ns_per_byte, beta, 1e-4 * beta);
  ck_assert(prices->rows[class].measured);
}

TEST(what_is_saved_is_read) {
  topo_measured measured = {.nsweeps = 3};
  bny_prices prices;
  set_class(&measured, BNY_LINK_CACHE, 80.25, 3.5, 0.02);
  set_class(&measured, BNY_LINK_MEMORY, 160, 0, 0.03);
  set_class(&measured, BNY_LINK_SOCKETS, 400, 30, 0.06);
  save_and_read(&measured, &prices);
  check_price(&prices, BNY_LINK_CACHE, 80.25, 3.5, 0.02);
  check_price(&prices, BNY_LINK_MEMORY, 160, 0, 0.03);
  check_price(&prices, BNY_LINK_SOCKETS, 400, 30, 0.06);
  ck_assert(!prices.rows[BNY_LINK_TCP].measured && !prices.rows[BNY_LINK_NVLINK].measured);
  ck_assert(prices.merge_ns_per_byte > 0);
}

TEST(classes_that_were_not_measured_have_no_price) {
  topo_measured measured = {.nsweeps = 1};
  bny_prices prices;
  tool_error error = {.text = ""};
  ck_assert_ptr_null(topo_measured_costs(&measured, &error));
  ck_assert_msg(strstr(error.text, "no pair of CPUs was measured") != NULL, "%s", error.text);
  measured.classes[BNY_LINK_MEMORY] = (topo_measured_class){.npairs = 2, .alpha_ns = 9}; /* has no fit */
  ck_assert_ptr_null(topo_measured_costs(&measured, &error));
  set_class(&measured, BNY_LINK_CACHE, -5, 1, 0.02); /* the fit of alpha may be negative */
  save_and_read(&measured, &prices);
  check_price(&prices, BNY_LINK_CACHE, 1, 1, 0.02);
  check_price(&prices, BNY_LINK_MEMORY, 1, 1, 0.02);
  ck_assert(!prices.rows[BNY_LINK_SOCKETS].measured);
}

int main(void) { return suite_main(suite_with("topo_costs", 60, NULL, drop_kept)); }
