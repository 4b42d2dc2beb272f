/* SPDX-License-Identifier: Apache-2.0
 * PCI devices in sysfs, and the network devices below them, for all probes. `sysfs` is its mount point. */
#ifndef BNY_TOPO_PROBE_PCI_H
#define BNY_TOPO_PROBE_PCI_H

#include "topo/probe/util.h"

/* Returns the node with that bus id. If there is none, adds one of that kind and name at its place in sysfs: below the
 * PCI switches and the host bridge of its path (added as needed), in its NUMA node or else the host. A host must exist.
 * Returns -1 without memory. */
int32_t bny_topo_probe_pci_device(const char *sysfs, bny_topo *topo, const char *bus_id, bny_topo_kind kind,
                                  const char *name);

/* Updates a device's upstream link with its rated and trained speed. GPUs and switches lower the rate of idle links, so
 * only their width counts; for NICs rate and width count. Returns true if it is below its rating. Changes nothing if
 * sysfs has no rating. */
bool bny_topo_probe_pci_rate(const char *sysfs, bny_topo *topo, int32_t node);

/* Returns the number of its NUMA node; -1 unknown. */
int32_t bny_topo_probe_pci_numa(const char *sysfs, const char *bus_id);

/* Writes a NIC's system name: "mlx5_0" if it is an RDMA device, otherwise "eth0". Returns false if it has none. */
bool bny_topo_probe_nic_name(const char *sysfs, const char *bus_id, char name[BNY_TOPO_PROBE_NAME]);

/* Returns whether this function is a part of another one in the model. That is a virtual function, unless only it has a
 * network, or the second port of two that are bonded into one RDMA device. */
bool bny_topo_probe_pci_part(const char *sysfs, const char *bus_id);

/* Returns the Mb/s of all ports of this card that are bonded with this NIC; 0 if not bonded or unknown. */
double bny_topo_probe_bond_megabits(const char *sysfs, const char *bus_id);

#endif
