/* SPDX-License-Identifier: Apache-2.0
 * Normalises the GUIDs of NICs, ports and switches to 16 lower-case hexadecimal digits: "b8599f0300c2f06a". The highest
 * byte comes first and belongs to the vendor. ibnetdiscover and hwloc print GUIDs this way. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { BNY_TOPO_GUID_BYTES = 17 };

/* Accepts "0xff08c43213b3f38", "b8599f0300c2f06a", "9803:9b03:0082:9c64" and the last four groups of a GID. Returns
 * false for any other text, and for 0, which means that there is no GUID. */
bool bny_topo_guid_normalise(const char *text, size_t bytes, char guid[BNY_TOPO_GUID_BYTES]);

/* Converts from NCCL's form. sys_image_guid of ibv_device_attr is in network byte order, but NCCL reads
 * it as a native number. On x86 and Arm the bytes are therefore reversed: Mellanox's b8:59:9f comes last in
 * guid="0x3a050700039f59b8". A GUID made from a MAC address has 03:00 or ff:fe in the middle. If these bytes are
 * already in the right position, a person wrote the file, and the GUID is kept. Returns false for other
 * text, and for numbers of at most 32 bits: some network plugins number their devices from 0 instead. */
bool bny_topo_guid_from_nccl(const char *text, char guid[BNY_TOPO_GUID_BYTES]);
