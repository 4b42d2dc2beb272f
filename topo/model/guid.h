/* SPDX-License-Identifier: Apache-2.0
 *
 * GUIDs of NICs, ports and switches in one form: 16 lower-case hexadecimal digits, highest byte first, which belongs to
 * the vendor ("b8599f0300c2f06a"). ibnetdiscover and hwloc print them this way. */
#ifndef BNY_TOPO_GUID_H
#define BNY_TOPO_GUID_H

#include <stdbool.h>
#include <stddef.h>

enum { BNY_TOPO_GUID_BYTES = 17 };

/* Accepts "0xff08c43213b3f38", "b8599f0300c2f06a", "9803:9b03:0082:9c64" and the last four groups of a GID. Returns
 * false for anything else, and for 0, which means none. */
bool bny_topo_guid_normalise(const char *text, size_t bytes, char guid[BNY_TOPO_GUID_BYTES]);

/* Converts from and to NCCL's form. NCCL reads sys_image_guid of ibv_device_attr, which is in network byte order, as a
 * native number. On x86 and Arm the bytes are therefore reversed: Mellanox's b8:59:9f is last in
 * guid="0x3a050700039f59b8". A GUID made from a MAC address has 03:00 or ff:fe in the middle. If these are already in
 * place, the file was written by hand and the GUID is kept. from_nccl() returns false for what is not a GUID: other
 * plugins count from 0, and 32 bits are too few. */
bool bny_topo_guid_from_nccl(const char *text, char guid[BNY_TOPO_GUID_BYTES]);

enum { BNY_TOPO_GUID_NCCL_BYTES = 19 };
void bny_topo_guid_to_nccl(const char guid[BNY_TOPO_GUID_BYTES], char text[BNY_TOPO_GUID_NCCL_BYTES]);

#endif
