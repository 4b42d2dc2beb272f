/* SPDX-License-Identifier: Apache-2.0
 * Helpers that the probes share. */
#pragma once

#include "base/sysfs.h"
#include "topo/probe/probe.h"

/* Reading of sysfs, and texts of reports. */

enum { BNY_TOPO_PROBE_PATH = 4096, BNY_TOPO_PROBE_NAME = 64 };

/* Reads the first line of a file (bny_sysfs_line()) as a number, decimal or 0x.... Returns `otherwise` if there is no
 * number in [least, most]. */
int64_t bny_topo_probe_number(int64_t least, int64_t most, int64_t otherwise, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

bool bny_topo_probe_exists(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The names in a directory, except names that begin with a dot or have BNY_TOPO_PROBE_NAME bytes or more. They are
 * sorted by length and then by bytes. The caller frees `names`. If there is no such directory, count is 0. */
typedef struct bny_topo_probe_list {
  char (*names)[BNY_TOPO_PROBE_NAME];
  int32_t count;
} bny_topo_probe_list;

bny_topo_probe_list bny_topo_probe_names(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Resolves a path and extracts its last bus id: "0000:1b:00.0" from ".../0000:1b:00.0/virtio2". Returns false if the
 * path has no bus id. */
bool bny_topo_probe_bus_of(char bus_id[BNY_TOPO_BUS_BYTES], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns the first host of the model. If there is none, adds one of this name ("host0" for NULL). Returns -1 without
 * memory. */
int32_t bny_topo_probe_host(bny_topo *topo, const char *name);

/* Returns the link of `kind` between a node and its parent. If there is none, adds one without speed. Returns -1
 * without memory. */
int32_t bny_topo_probe_upwards(bny_topo *topo, int32_t node, bny_topo_link_kind kind);

void bny_topo_probe_say(bny_topo_probe_report *report, bny_topo_outcome outcome, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Appends to the text and truncates it to its size. */
void bny_topo_probe_more(bny_topo_probe_report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Appends "2 packages", "1 GPU" or "no NIC", after ", " if the text is not empty. */
void bny_topo_probe_count(bny_topo_probe_report *report, int32_t count, const char *one, const char *many);

/* PCI devices in sysfs, and the network devices below them. `sysfs` is the mount point. */

/* Returns the node with that bus id. If there is none, adds one of that kind and name. Its parent follows from its path
 * in sysfs: PCI switches and a host bridge, which are added as needed, in its NUMA node or else the host. A host must
 * exist. Returns -1 without memory. */
int32_t bny_topo_probe_pci_device(const char *sysfs, bny_topo *topo, const char *bus_id, bny_topo_kind kind,
                                  const char *name);

/* Updates a device's upstream link with its rated and trained speed. GPUs and switches lower the rate of idle links, so
 * only their trained width is used; for NICs, trained rate and width. Returns true if the link is below its rating.
 * Changes nothing if sysfs has no rating. */
bool bny_topo_probe_pci_rate(const char *sysfs, bny_topo *topo, int32_t node);

/* Returns the number of the device's NUMA node; -1 if unknown. */
int32_t bny_topo_probe_pci_numa(const char *sysfs, const char *bus_id);

/* Writes the system name of a NIC: "mlx5_0" for an RDMA device, otherwise "eth0". Returns false if it has no name. */
bool bny_topo_probe_nic_name(const char *sysfs, const char *bus_id, char name[BNY_TOPO_PROBE_NAME]);

/* Returns whether this PCI function belongs to another one, which stands for both in the model. This holds for a
 * virtual function, unless it alone has a network device. It also holds for the second of two ports that are bonded
 * into one RDMA device. */
bool bny_topo_probe_pci_part(const char *sysfs, const char *bus_id);

/* Returns the total Mb/s of all ports of this card that are bonded with this NIC; 0 if not bonded or unknown. */
double bny_topo_probe_bond_megabits(const char *sysfs, const char *bus_id);
