/* SPDX-License-Identifier: Apache-2.0
 *
 * GUIDs of NICs, ports and switches, one form for all that tell of them: 16 hexadecimal digits in lower case, the
 * highest byte, which is the maker's, first ("b8599f0300c2f06a"). So ibnetdiscover and hwloc have them. */
#ifndef BNY_TOPO_GUID_H
#define BNY_TOPO_GUID_H

#include <stdbool.h>
#include <stddef.h>

enum { BNY_TOPO_GUID_BYTES = 17 };

/* "0xff08c43213b3f38", "b8599f0300c2f06a", "9803:9b03:0082:9c64", the last four groups of a GID; false if it is none of
 * these, or 0, which stands for none. */
bool bny_topo_guid_normalise(const char *text, size_t bytes, char guid[BNY_TOPO_GUID_BYTES]);

/* As NCCL writes them, and back. It takes sys_image_guid of ibv_device_attr, which is in network byte order, for a
 * number of the machine's, so that on x86 and Arm the bytes are reversed: Mellanox's b8:59:9f stands last in
 * guid="0x3a050700039f59b8". A GUID that is made of a MAC address has 03:00 or ff:fe in the middle; where these stand
 * as they should, someone has written the file by hand, and it is left. False for what is no GUID: other plugins count
 * from 0, and 32 bits do not hold one. */
bool bny_topo_guid_from_nccl(const char *text, char guid[BNY_TOPO_GUID_BYTES]);

enum { BNY_TOPO_GUID_NCCL_BYTES = 19 };
void bny_topo_guid_to_nccl(const char guid[BNY_TOPO_GUID_BYTES], char text[BNY_TOPO_GUID_NCCL_BYTES]);

#endif
