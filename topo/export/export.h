/* SPDX-License-Identifier: Apache-2.0
 * Exports of a model to foreign formats; banyan's own is in topo/import/json.h. Each returns text for the caller to
 * free, or NULL and *error on failure. */
#ifndef BNY_TOPO_EXPORT_H
#define BNY_TOPO_EXPORT_H

#include "topo/model/model.h"

/* NCCL's topology XML, for NCCL_TOPO_FILE. Unknown values are omitted, and NCCL determines them where it runs. A device
 * without a bus id gets one in a PCI domain from fffe downwards. The format has no fabric switches. A model is rejected
 * if the format cannot hold all of its GPUs and NICs, such as those outside hosts, or if no reader would accept the
 * result. */
char *bny_topo_export_nccl(const bny_topo *topo, bny_topo_error *error);

/* The matrix of `nvidia-smi topo -m`, one for each host with GPUs: GPUs by number, then NICs with a legend. CPUs are
 * left out, because the model has none. Links of AMD's are XGMI. */
char *bny_topo_export_matrix(const bny_topo *topo, bny_topo_error *error);

#endif
