/* SPDX-License-Identifier: Apache-2.0
 * Runs all probes in order, into one model. */
#include "topo/probe/probe.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "topo/probe/util.h"

static const bny_topo_probe *const probes[BNY_TOPO_PROBES] = {&bny_topo_probe_sysfs, &bny_topo_probe_nvml,
                                                              &bny_topo_probe_rdma};

const char *bny_topo_outcome_name(bny_topo_outcome outcome) {
  static const char *const names[BNY_TOPO_PROBE_OUTCOMES] = {"found", "nothing", "absent", "failed"};
  return (unsigned)outcome < BNY_TOPO_PROBE_OUTCOMES ? names[outcome] : "?";
}

bny_topo *bny_topo_probe_machine(const bny_topo_probe_options *options, bny_topo_probe_report reports[BNY_TOPO_PROBES],
                                 bny_topo_error *error) {
  bny_topo_probe_options where = options == NULL ? (bny_topo_probe_options){0} : *options;
  where.sysfs = where.sysfs == NULL ? "/sys" : where.sysfs;
  where.nvml = where.nvml == NULL ? "libnvidia-ml.so.1" : where.nvml;

  char name[HOST_NAME_MAX + 1] = "";
  if (gethostname(name, sizeof name - 1) != 0) name[0] = '\0';
  bny_topo *topo = bny_topo_new();
  int32_t host = topo == NULL ? -1 : bny_topo_probe_host(topo, name);
  if (host < 0) {
    bny_topo_fail(error, 0, "out of memory");
    bny_topo_free(topo);
    return NULL;
  }
  for (int i = 0; i < BNY_TOPO_PROBES; i++) {
    bny_topo_probe_report own;
    bny_topo_probe_report *report = reports == NULL ? &own : &reports[i];
    *report = (bny_topo_probe_report){.name = probes[i]->name, .outcome = BNY_TOPO_PROBE_NOTHING};
    probes[i]->run(&where, topo, report);
  }
  bny_topo_error why = {0};
  if (!bny_topo_check(topo, &why)) {
    const char *what = topo->out_of_memory ? "" : "the results of the probes contradict each other: ";
    bny_topo_fail(error, 0, "%s%.180s", what, why.text);
    bny_topo_free(topo);
    return NULL;
  }
  return topo;
}
