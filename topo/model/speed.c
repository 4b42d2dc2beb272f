/* SPDX-License-Identifier: Apache-2.0
 * Speeds of PCIe and NVLink by generation. */
#include "topo/model/speed.h"

#include <ctype.h>
#include <stdbool.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* By generation: the signalling rate of a lane in GT/s, and its data rate in units of 1/80 GB/s. */
static const struct {
  double gigatransfers, lane_times_80;
} generations[BNY_TOPO_PCI_GENERATIONS + 1] = {{0, 0},    {2.5, 15}, {5, 30},   {8, 60},
                                               {16, 120}, {32, 240}, {64, 480}, {128, 960}};

double bny_topo_speed_pci(int generation, int lanes) {
  if (generation < 1 || generation > BNY_TOPO_PCI_GENERATIONS || lanes < 1) return 0;
  return generations[generation].lane_times_80 * lanes / 80;
}

int bny_topo_speed_pci_generation(const char *text) {
  while (isspace((unsigned char)*text)) text++;
  if (*text == '\0' || strncmp(text, "Unknown", 7) == 0) return 0;
  char *end;
  double rate = strtod(text, &end);
  if (end == text) return -1;
  for (int g = 1; g <= BNY_TOPO_PCI_GENERATIONS; g++)
    if (rate == generations[g].gigatransfers) return g;
  /* A generation that is newer than this table counts as its last row. */
  return rate > generations[BNY_TOPO_PCI_GENERATIONS].gigatransfers && rate <= 1024 ? BNY_TOPO_PCI_GENERATIONS : -1;
}

double bny_topo_speed_pci_raw(double raw_gbytes_per_s) {
  /* Generations 1 and 2 carry 0.8 bits per transfer, 3 to 5 carry 128/130, 6 about as much. The generation that gives a
   * whole number of lanes is the right one. */
  for (int g = 1; g <= BNY_TOPO_PCI_GENERATIONS; g++) {
    double lane = generations[g].gigatransfers / 8 * (g < 3 ? 0.8 : 128.0 / 130);
    double lanes = raw_gbytes_per_s / lane;
    double whole = nearbyint(lanes);
    if (whole >= 1 && whole <= 32 && fabs(lanes - whole) < 0.01) return bny_topo_speed_pci(g, (int)whole);
  }
  return raw_gbytes_per_s * 0.76;
}

double bny_topo_speed_nvlink(int32_t compute) {
  if (compute >= 100) return 40.1;
  if (compute >= 90) return 20.6;
  if (compute == 86) return 12;
  return compute >= 60 && compute < 70 ? 18 : 20;
}

int32_t bny_topo_nvlinks_most(int32_t compute) {
  if (compute < 0 || compute >= 90) return 18;
  return compute >= 86 ? 4 : compute >= 80 ? 12 : compute >= 75 ? 2 : compute >= 70 ? 6 : 4;
}

int32_t bny_topo_compute_of(const char *architecture, const char *product) {
  static const struct {
    const char *architecture, *product; /* product: part of the name, or NULL for any other of the architecture */
    int32_t compute;
  } known[] = {
      {"Pascal", "P100", 60},     {"Pascal", "GP100", 60}, {"Pascal", NULL, 61},        {"Volta", "V100", 70},
      {"Volta", "TITAN V", 70},   {"Volta", NULL, 70},     {"Turing", "RTX 20", 75},    {"Turing", "Quadro RTX", 75},
      {"Turing", "T4", 75},       {"Turing", NULL, 75},    {"Ampere", "A100", 80},      {"Ampere", "A800", 80},
      {"Ampere", "A30", 80},      {"Ampere", "A40", 86},   {"Ampere", "A10", 86},       {"Ampere", "RTX A", 86},
      {"Ampere", "RTX 30", 86},   {"Ampere", NULL, 86},    {"Ada Lovelace", "L40", 89}, {"Ada Lovelace", "L4", 89},
      {"Ada Lovelace", NULL, 89}, {"Hopper", "H100", 90},  {"Hopper", "H200", 90},      {"Hopper", "H800", 90},
      {"Hopper", "H20", 90},      {"Hopper", NULL, 90},    {"Blackwell", "B300", 103},  {"Blackwell", "B200", 100},
      {"Blackwell", "B100", 100}, {"Blackwell", NULL, 120}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    bool same = architecture == NULL ? known[i].product != NULL : strcmp(architecture, known[i].architecture) == 0;
    if (same && (known[i].product == NULL || (product != NULL && strstr(product, known[i].product) != NULL)))
      return known[i].compute;
  }
  return -1;
}

double bny_topo_speed_xgmi(int32_t gfx) {
  if (gfx >= 940) return 48;
  return gfx >= 910 ? 36 : 24;
}

double bny_topo_speed_cpu(const char *arch, const char *vendor, int32_t family, int32_t model) {
  if (arch != NULL && strncmp(arch, "ppc64", 5) == 0) return 32;
  if (arch != NULL && (strcmp(arch, "arm64") == 0 || strcmp(arch, "aarch64") == 0)) return 6;
  if (vendor != NULL && strcmp(vendor, "AuthenticAMD") == 0) return 16;
  if (vendor != NULL && strcmp(vendor, "GenuineIntel") == 0 && family == 6)
    return model >= 207 ? 40 : model >= 143 ? 22 : model >= 85 ? 10 : 6;
  return 10;
}

double bny_topo_speed_net(double megabits_per_s) { return megabits_per_s / 8000; }
