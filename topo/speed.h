/* SPDX-License-Identifier: Apache-2.0
 *
 * What data gets on a link of a kind, in GB/s and one direction: signalling rate less coding and protocol, as NCCL counts
 * it. One table for all importers and probes, so that their figures compare. */
#ifndef BNY_TOPO_SPEED_H
#define BNY_TOPO_SPEED_H

#include <stdint.h>

enum { BNY_TOPO_PCI_GENERATIONS = 6 };

/* Generation 1..6; 0 if not in that range. */
double bny_topo_speed_pci(int generation, int lanes);

/* Of "16.0 GT/s PCIe", "16 GT/s" and their like; 0 if the text says nothing ("", "Unknown"), -1 if no generation has it. */
int bny_topo_speed_pci_generation(const char *text);

/* "32.0 GT/s PCIe" of generation 5; NULL out of range. */
const char *bny_topo_speed_pci_text(int generation);

/* From the bytes that the lines carry, 15.75 for generation 3 and 16 lanes (hwloc, sysfs times width). */
double bny_topo_speed_pci_raw(double raw_gbytes_per_s);

/* One NVLink of a GPU by its compute capability (90), one xGMI link by its gfx number (942). */
double bny_topo_speed_nvlink(int32_t compute);
double bny_topo_speed_xgmi(int32_t gfx);

/* Between two packages. `vendor` as cpuid says ("GenuineIntel"), `arch` "x86_64", "arm64", "ppc64"; either may be NULL. */
double bny_topo_speed_cpu(const char *arch, const char *vendor, int32_t family, int32_t model);

/* A network port, from Mb/s. */
double bny_topo_speed_net(double megabits_per_s);

#endif
