/* SPDX-License-Identifier: Apache-2.0
 * Reads a file of measured costs (BANYAN_COSTS), and rejects one that was measured on another machine. */
#include "locality/price.h"

#include "base/status.h"

const char *bny_costs_class_name(bny_link_class class) {
  return class == BNY_LINK_NETWORK_CPU ? "network-cpu" : bny_prices_default.rows[class].name;
}

banyan_status bny_costs_read(const char *path, bny_prices *prices) {
  bny_machine machine;
  bny_machine_find("", &machine);
  return bny_costs_read_on(&machine, path, prices);
}

#ifdef HAVE_JANSSON
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One reading of a file. It keeps the first error; later ones are not reported. */
typedef struct reading {
  const char *path;
  banyan_status status;
} reading;

static void reject(reading *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void reject(reading *r, const char *format, ...) {
  char why[300];
  va_list arguments;
  if (r->status != BANYAN_OK) return;
  va_start(arguments, format);
  vsnprintf(why, sizeof why, format, arguments);
  va_end(arguments);
  r->status = bny_fail(BANYAN_ERR_ARGUMENT, "BANYAN_COSTS: \"%.100s\": %s", r->path, why);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* Rejects pipes, which would block, and files that are too large to be of this kind. */
static json_t *load(reading *r) {
  enum { BYTES_MAX = 1 << 20 };
  struct stat about;
  json_error_t error;
  int fd = open(r->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return reject(r, "it cannot be opened: %s", strerror(errno)), NULL;
  bool fits = fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size <= BYTES_MAX;
  json_t *root = fits ? json_loadfd(fd, JSON_REJECT_DUPLICATES, &error) : NULL;
  close(fd);
  if (!fits)
    reject(r, "it is not a file of at most 1 MiB");
  else if (!root)
    reject(r, "line %d, column %d: %s", error.line, error.column, error.text);
  return root;
}

/* Returns a number within limits. One that may be missing is then `otherwise`. */
static double number_of(reading *r, const json_t *object, const char *where, const char *name, double least,
                        double most, const double *otherwise) {
  const json_t *member = json_object_get(object, name);
  double number = json_number_value(member);
  if (!member && otherwise) return *otherwise;
  if (!member)
    reject(r, "%s%s is missing", where, name);
  else if (!json_is_number(member))
    reject(r, "%s%s is not a number", where, name);
  else if (!(number >= least && number <= most))
    reject(r, "%s%s is %g; it must be between %g and %g", where, name, number, least, most);
  return number;
}

/* Never returns NULL. */
static const char *text_of(reading *r, const json_t *object, const char *where, const char *name) {
  const char *value = json_string_value(json_object_get(object, name));
  if (!value) reject(r, "%s%s is missing, or not a text", where, name);
  return value ? value : "";
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */

static void compare_count(reading *r, const json_t *measured, const char *name, int32_t here) {
  double there = number_of(r, measured, "machine.", name, 0, INT32_MAX, NULL);
  if (there != here) reject(r, "it was measured on another machine: %s is %g there and %d here", name, there, here);
}

static void compare_text(reading *r, const json_t *measured, const char *name, const char *here) {
  const char *there = text_of(r, measured, "machine.", name);
  if (strcmp(there, here) != 0)
    reject(r, "it was measured on another machine: %s is \"%.80s\" there and \"%.80s\" here", name, there, here);
}

static void compare_machine(reading *r, const json_t *measured, const bny_machine *here) {
  if (!json_is_object(measured)) reject(r, "machine is missing, or not an object");
  compare_text(r, measured, "cpu", here->cpu);
  compare_count(r, measured, "packages", here->packages);
  compare_count(r, measured, "numa_nodes", here->numa_nodes);
  compare_count(r, measured, "cores", here->cores);
  compare_text(r, measured, "gpus", here->gpus);
  compare_text(r, measured, "nics", here->nics);
}

/* ---- links ------------------------------------------------------------------------------------------------------- */

static const double least_ns = 1e-3, most_ns = 1e9, least_ns_per_byte = 1e-6, most_ns_per_byte = 1e3;

static bny_link_class class_of(reading *r, const json_t *link, const char *where) {
  const char *name = text_of(r, link, where, "class");
  for (int class = 0; class < BNY_LINK_CLASSES; class ++)
    if (strcmp(name, bny_costs_class_name((bny_link_class) class)) == 0) return (bny_link_class) class;
  reject(r, "%sclass is \"%.40s\", which is not a class of links", where, name);
  return BNY_LINK_CACHE;
}

static void check_members(reading *r, const json_t *link, const char *where) {
  static const char *const known[] = {"class", "alpha_ns", "message_ns", "beta_ns_per_byte", "source"};
  for (void *at = json_object_iter((json_t *)(uintptr_t)link); at;
       at = json_object_iter_next((json_t *)(uintptr_t)link, at)) {
    bool is_known = false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
      is_known = is_known || strcmp(json_object_iter_key(at), known[i]) == 0;
    if (!is_known) reject(r, "%s%.40s is unknown", where, json_object_iter_key(at));
  }
}

static void read_link(reading *r, const json_t *link, size_t index, bny_prices *prices) {
  const double no_message = 0;
  char where[32];
  snprintf(where, sizeof where, "links[%zu].", index);
  if (!json_is_object(link)) reject(r, "links[%zu] is not an object", index);
  check_members(r, link, where);
  bny_link_class class = class_of(r, link, where);
  bny_price *row = &prices->rows[class];
  if (row->measured) reject(r, "%sclass is \"%s\" for a second time", where, bny_costs_class_name(class));
  row->software_ns = number_of(r, link, where, "alpha_ns", least_ns, most_ns, NULL);
  row->way_ns = 0;
  row->message_ns = number_of(r, link, where, "message_ns", 0, most_ns, &no_message);
  row->gbytes_per_s = 1 / number_of(r, link, where, "beta_ns_per_byte", least_ns_per_byte, most_ns_per_byte, NULL);
  text_of(r, link, where, "source");
  row->measured = true;
  row->source = "measured, from the file of BANYAN_COSTS";
}

static void read_links(reading *r, const json_t *links, bny_prices *prices) {
  for (int i = 0; i < BNY_LINK_CLASSES; i++) prices->rows[i].measured = false;
  if (!json_is_array(links) || json_array_size(links) == 0) reject(r, "links is missing, or has no entry");
  for (size_t i = 0; i < json_array_size(links); i++) read_link(r, json_array_get(links, i), i, prices);
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static void read_costs(reading *r, const json_t *root, const bny_machine *machine, bny_prices *prices) {
  if (!json_is_object(root)) reject(r, "it does not hold an object");
  double version = number_of(r, root, "", "costs_version", 0, INT32_MAX, NULL);
  if (version != BNY_COSTS_VERSION)
    reject(r, "costs_version is %g, and this libbanyan knows %d: measure again, with banyan-topo %s", version,
           BNY_COSTS_VERSION, banyan_version());
  compare_machine(r, json_object_get(root, "machine"), machine);
  const char *date = text_of(r, root, "", "date");
  prices->merge_ns_per_byte =
      number_of(r, root, "", "merge_ns_per_byte", least_ns_per_byte, most_ns_per_byte, &prices->merge_ns_per_byte);
  read_links(r, json_object_get(root, "links"), prices);
  snprintf(prices->source, sizeof prices->source, "%.100s of %.40s", r->path, date);
}

banyan_status bny_costs_read_on(const bny_machine *machine, const char *path, bny_prices *prices) {
  reading r = {.path = path, .status = BANYAN_OK};
  bny_prices read = *prices;
  json_t *root = load(&r);
  if (root) read_costs(&r, root, machine, &read);
  json_decref(root);
  if (r.status == BANYAN_OK) *prices = read;
  return r.status;
}
#else
banyan_status bny_costs_read_on(const bny_machine *machine, const char *path, bny_prices *prices) {
  (void)machine, (void)prices;
  return bny_fail(BANYAN_ERR_UNSUPPORTED,
                  "BANYAN_COSTS: \"%.100s\" is JSON, and this libbanyan was built without jansson, which reads it "
                  "(Debian and Ubuntu: apt-get install libjansson-dev)",
                  path);
}
#endif
