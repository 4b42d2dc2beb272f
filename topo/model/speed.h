/* SPDX-License-Identifier: Apache-2.0
 * Data rates of links in GB/s per direction. They are signalling rates minus coding and protocol overhead, with NCCL's
 * figures. All importers and probes use this table, so their figures are comparable. */
#pragma once

#include <stdint.h>

enum { BNY_TOPO_PCI_GENERATIONS = 7 };

/* `generation` is 1..7; returns 0 outside that range. */
double bny_topo_speed_pci(int generation, int lanes);

/* Returns the generation for "16.0 GT/s PCIe", "16 GT/s" and the like; 0 for "" or "Unknown", -1 if there is none. */
int bny_topo_speed_pci_generation(const char *text);

/* Converts a raw line rate in GB/s to the data rate. hwloc reports raw rates, such as 15.75 for generation 3 with 16
 * lanes; for sysfs it is the rate of a lane times the width. */
double bny_topo_speed_pci_raw(double raw_gbytes_per_s);

/* Returns the compute capability of an NVIDIA GPU by its architecture and product; -1 unknown. The architecture may be
 * NULL; then only the product is used. */
int32_t bny_topo_compute_of(const char *architecture, const char *product);

/* The newest compute capability in the table. A GPU with a name that bny_topo_compute_of() does not know is assumed to
 * be newer, with links that are at least as fast. */
enum { BNY_TOPO_COMPUTE_NEWEST = 103 };

/* Returns the largest number of NVLinks of a GPU with this compute capability. */
int32_t bny_topo_nvlinks_most(int32_t compute);

/* Return the speed of one NVLink by the GPU's compute capability (90), or of one xGMI link by its gfx number (942). */
double bny_topo_speed_nvlink(int32_t compute);
double bny_topo_speed_xgmi(int32_t gfx);

/* Returns the speed between two packages. `vendor` is the string of cpuid ("GenuineIntel"), `arch` "x86_64", "arm64" or
 * "ppc64"; either may be NULL. */
double bny_topo_speed_cpu(const char *arch, const char *vendor, int32_t family, int32_t model);

/* Converts the speed of a network port from Mb/s. */
double bny_topo_speed_net(double megabits_per_s);
