/* SPDX-License-Identifier: Apache-2.0
 * Exports of a model to other formats; banyan's own format is in topo/import/json.h. Each returns text that the caller
 * frees. On failure it returns NULL and sets *error. */
#pragma once

#include "topo/model/model.h"

/* NCCL's topology XML, for NCCL_TOPO_FILE. Unknown values are omitted, and NCCL determines them where it runs. A device
 * without a bus id gets one in a PCI domain from fffe downwards. The format has no fabric switches. A model is rejected
 * if the format cannot hold all of its GPUs and NICs, such as those outside hosts, or if no reader would accept the
 * result. */
char *bny_topo_export_nccl(const bny_topo *topo, bny_topo_error *error);
