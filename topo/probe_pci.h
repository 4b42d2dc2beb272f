/* SPDX-License-Identifier: Apache-2.0
 * What probes share of PCI devices as sysfs shows them, and of network devices below them. `sysfs` is where it is
 * mounted. */
#ifndef BNY_TOPO_PROBE_PCI_H
#define BNY_TOPO_PROBE_PCI_H

#include "topo/probe_util.h"

/* The node with that bus id; if there is none, one of that kind and name is added where sysfs says that it stands:
 * below the PCI switches and the host bridge of its path (which are added as needed), in its NUMA node, else in the
 * host. A host must be there. -1 without memory. */
int32_t bny_topo_probe_pci_device(const char *sysfs, bny_topo *topo, const char *bus_id, bny_topo_kind kind,
                                  const char *name);

/* What the link of a device upwards could do and what it was trained to, into the model's link: of GPUs and switches
 * the width counts, as they lower the rate of idle links; of NICs rate and width. Returns true if it is below its
 * rating. Nothing is changed where sysfs does not know. */
bool bny_topo_probe_pci_rate(const char *sysfs, bny_topo *topo, int32_t node);

/* Its NUMA node's number; -1 unknown. */
int32_t bny_topo_probe_pci_numa(const char *sysfs, const char *bus_id);

/* "NVIDIA" and the like by the number of the vendor; NULL. */
const char *bny_topo_probe_pci_vendor(int64_t vendor);

/* A NIC's name in this system: "mlx5_0" if it is an RDMA device, else "eth0". False if it has none. */
bool bny_topo_probe_nic_name(const char *sysfs, const char *bus_id, char name[BNY_TOPO_PROBE_NAME]);

/* Whether this function is only a part of another one that the model has: a virtual function, unless it is the one that
 * has a network; the second port of two that are bonded into one RDMA device. */
bool bny_topo_probe_pci_part(const char *sysfs, const char *bus_id);

/* Mb/s of all ports of this NIC's card together that are bonded with it; 0 if it is not bonded, or that is unknown. */
double bny_topo_probe_bond_megabits(const char *sysfs, const char *bus_id);

#endif
