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

static banyan_status reject(const char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));

static banyan_status reject(const char *path, const char *format, ...) {
  char why[300];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(why, sizeof why, format, arguments);
  va_end(arguments);
  return bny_fail(BANYAN_ERR_ARGUMENT, "BANYAN_COSTS: \"%.100s\": %s", path, why);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* Rejects pipes, which would block, and files that are too large to be of this kind. */
static banyan_status load(const char *path, json_t **root) {
  enum { BYTES_MAX = 1 << 20 };
  struct stat about;
  json_error_t error;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return reject(path, "it cannot be opened: %s", strerror(errno));
  bool fits = fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size <= BYTES_MAX;
  *root = fits ? json_loadfd(fd, JSON_REJECT_DUPLICATES, &error) : NULL;
  close(fd);
  if (!fits) return reject(path, "it is not a file of at most 1 MiB");
  if (!*root) return reject(path, "line %d, column %d: %s", error.line, error.column, error.text);
  return BANYAN_OK;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* Reads a number within limits. One that may be missing leaves *value. */
static banyan_status read_number(const char *path, const json_t *object, const char *where, const char *name,
                                 bool may_be_missing, double least, double most, double *value) {
  const json_t *member = json_object_get(object, name);
  if (!member && may_be_missing) return BANYAN_OK;
  if (!member) return reject(path, "%s%s is missing", where, name);
  if (!json_is_number(member)) return reject(path, "%s%s is not a number", where, name);
  double number = json_number_value(member);
  if (!(number >= least && number <= most))
    return reject(path, "%s%s is %g; it must be between %g and %g", where, name, number, least, most);
  *value = number;
  return BANYAN_OK;
}

static banyan_status read_text(const char *path, const json_t *object, const char *where, const char *name,
                               const char **value) {
  *value = json_string_value(json_object_get(object, name));
  return *value ? BANYAN_OK : reject(path, "%s%s is missing, or not a text", where, name);
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */

static banyan_status compare_count(const char *path, const json_t *measured, const char *name, int32_t here) {
  double there = 0;
  banyan_status status = read_number(path, measured, "machine.", name, false, 0, INT32_MAX, &there);
  if (status != BANYAN_OK || there == here) return status;
  return reject(path, "it was measured on another machine: %s is %g there and %d here", name, there, here);
}

static banyan_status compare_text(const char *path, const json_t *measured, const char *name, const char *here) {
  const char *there;
  banyan_status status = read_text(path, measured, "machine.", name, &there);
  if (status != BANYAN_OK || strcmp(there, here) == 0) return status;
  return reject(path, "it was measured on another machine: %s is \"%.80s\" there and \"%.80s\" here", name, there,
                here);
}

static banyan_status compare_machine(const char *path, const json_t *measured, const bny_machine *here) {
  if (!json_is_object(measured)) return reject(path, "machine is missing, or not an object");
  banyan_status status = compare_text(path, measured, "cpu", here->cpu);
  if (status == BANYAN_OK) status = compare_count(path, measured, "packages", here->packages);
  if (status == BANYAN_OK) status = compare_count(path, measured, "numa_nodes", here->numa_nodes);
  if (status == BANYAN_OK) status = compare_count(path, measured, "cores", here->cores);
  if (status == BANYAN_OK) status = compare_text(path, measured, "gpus", here->gpus);
  return status == BANYAN_OK ? compare_text(path, measured, "nics", here->nics) : status;
}

/* ---- links ------------------------------------------------------------------------------------------------------- */

static const double least_ns = 1e-3, most_ns = 1e9, least_ns_per_byte = 1e-6, most_ns_per_byte = 1e3;

static banyan_status read_class(const char *path, const json_t *link, const char *where, bny_link_class *class) {
  const char *name;
  banyan_status status = read_text(path, link, where, "class", &name);
  if (status != BANYAN_OK) return status;
  for (int i = 0; i < BNY_LINK_CLASSES; i++) {
    *class = (bny_link_class)i;
    if (strcmp(name, bny_costs_class_name(*class)) == 0) return BANYAN_OK;
  }
  return reject(path, "%sclass is \"%.40s\", which is not a class of links", where, name);
}

static banyan_status check_members(const char *path, const json_t *link, const char *where) {
  static const char *const known[] = {"class", "alpha_ns", "message_ns", "beta_ns_per_byte", "source"};
  for (void *at = json_object_iter((json_t *)(uintptr_t)link); at;
       at = json_object_iter_next((json_t *)(uintptr_t)link, at)) {
    bool is_known = false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
      is_known = is_known || strcmp(json_object_iter_key(at), known[i]) == 0;
    if (!is_known) return reject(path, "%s%.40s is unknown", where, json_object_iter_key(at));
  }
  return BANYAN_OK;
}

static banyan_status read_link(const char *path, const json_t *link, size_t index, bny_prices *prices) {
  char where[32];
  const char *source;
  double alpha_ns = 0, message_ns = 0, beta_ns_per_byte = 1;
  bny_link_class class = BNY_LINK_CLASSES;
  snprintf(where, sizeof where, "links[%zu].", index);
  if (!json_is_object(link)) return reject(path, "links[%zu] is not an object", index);
  banyan_status status = check_members(path, link, where);
  if (status == BANYAN_OK) status = read_class(path, link, where, &class);
  if (status == BANYAN_OK && prices->rows[class].measured)
    status = reject(path, "%sclass is \"%s\" for a second time", where, bny_costs_class_name(class));
  if (status == BANYAN_OK) status = read_number(path, link, where, "alpha_ns", false, least_ns, most_ns, &alpha_ns);
  if (status == BANYAN_OK) status = read_number(path, link, where, "message_ns", true, 0, most_ns, &message_ns);
  if (status == BANYAN_OK)
    status = read_number(path, link, where, "beta_ns_per_byte", false, least_ns_per_byte, most_ns_per_byte,
                         &beta_ns_per_byte);
  if (status == BANYAN_OK) status = read_text(path, link, where, "source", &source);
  if (status != BANYAN_OK) return status;
  bny_price *row = &prices->rows[class];
  row->software_ns = alpha_ns;
  row->way_ns = 0;
  row->message_ns = message_ns;
  row->gbytes_per_s = 1 / beta_ns_per_byte;
  row->measured = true;
  row->source = "measured, from the file of BANYAN_COSTS";
  return BANYAN_OK;
}

static banyan_status read_links(const char *path, const json_t *links, bny_prices *prices) {
  banyan_status status = BANYAN_OK;
  for (int i = 0; i < BNY_LINK_CLASSES; i++) prices->rows[i].measured = false;
  if (!json_is_array(links) || json_array_size(links) == 0) return reject(path, "links is missing, or has no entry");
  for (size_t i = 0; i < json_array_size(links) && status == BANYAN_OK; i++)
    status = read_link(path, json_array_get(links, i), i, prices);
  return status;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static banyan_status read_costs(const char *path, const json_t *root, const bny_machine *machine, bny_prices *prices) {
  double version = 0;
  const char *date;
  if (!json_is_object(root)) return reject(path, "it does not hold an object");
  banyan_status status = read_number(path, root, "", "costs_version", false, 0, INT32_MAX, &version);
  if (status == BANYAN_OK && version != BNY_COSTS_VERSION)
    status = reject(path, "costs_version is %g, and this libbanyan knows %d: measure again, with banyan-topo %s",
                    version, BNY_COSTS_VERSION, banyan_version());
  if (status == BANYAN_OK) status = compare_machine(path, json_object_get(root, "machine"), machine);
  if (status == BANYAN_OK) status = read_text(path, root, "", "date", &date);
  if (status == BANYAN_OK)
    status = read_number(path, root, "", "merge_ns_per_byte", true, least_ns_per_byte, most_ns_per_byte,
                         &prices->merge_ns_per_byte);
  if (status == BANYAN_OK) status = read_links(path, json_object_get(root, "links"), prices);
  if (status == BANYAN_OK) snprintf(prices->source, sizeof prices->source, "%.100s of %.40s", path, date);
  return status;
}

banyan_status bny_costs_read_on(const bny_machine *machine, const char *path, bny_prices *prices) {
  json_t *root = NULL;
  bny_prices read = *prices;
  banyan_status status = load(path, &root);
  if (status == BANYAN_OK) status = read_costs(path, root, machine, &read);
  json_decref(root);
  if (status == BANYAN_OK) *prices = read;
  return status;
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
