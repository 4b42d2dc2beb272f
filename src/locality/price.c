/* SPDX-License-Identifier: Apache-2.0
 * Lists the default cost of each class of link, and the memory speed of GPUs by compute capability. */
#include "locality/price.h"

#include <stddef.h>

/* A GPU looks for signals with the threads of a warp side by side: 32 of them for the 280 ns that a line of its own L2
 * takes on H800. */
enum { GPU_MESSAGE_NS = 9 };

/* The time to post a message with verbs, by UCX's estimate. */
enum { POSTED_NS = 75 };

const bny_prices bny_prices_default = {
    .rows =
        {
            [BNY_LINK_CACHE] = {"cache", 180, 0, 0, 100.0 / 3, false, false, false,
                                "as memory, but a line goes from core to core within one cache, which saves 70 ns"},
            [BNY_LINK_MEMORY] = {"memory", 250, 0, 0, 100.0 / 3, false, false, false,
                                 "between ranks of one node: 250 ns, 0.03 ns a byte"},
            [BNY_LINK_SOCKETS] = {"sockets", 250, 250, 0, 20, false, false, false,
                                  "as memory, and a cache line from another package: 100 ns there, 100 back; 20 GB/s "
                                  "is the speed of one core to another package"},
            [BNY_LINK_NVLINK] =
                {"nvlink", 700, 800, GPU_MESSAGE_NS, 160, false, false, false,
                 "a peer's memory is read in 0.8 to 1.0 us on H800, and a one-shot exchange between 8 GPUs takes 2 us "
                 "at least: one store, one fence, one poll; 160 GB/s is 8 links of Volta"},
            [BNY_LINK_XGMI] = {"xgmi", 1000, 1000, GPU_MESSAGE_NS, 48, false, false, false,
                               "as NVLink, with a slower fence; 48 GB/s is one link of MI300X"},
            [BNY_LINK_C2C] = {"c2c", 700, 500, GPU_MESSAGE_NS, 225, false, false, false,
                              "as NVLink, with a shorter way; 225 GB/s is half of Grace Hopper's link"},
            [BNY_LINK_PCIE] = {"pcie", 1200, 1300, GPU_MESSAGE_NS, 24, false, false, false,
                               "a read over PCI takes 1.3 us and more; 24 GB/s is generation 4 with 16 lanes"},
            [BNY_LINK_PCIE_SYS] = {"pcie-sys", 1200, 2300, GPU_MESSAGE_NS, 10, true, false, false,
                                   "as PCI, through two host bridges and the link between packages, which their GPUs "
                                   "share; most machines reach 10 GB/s there"},
            [BNY_LINK_NETWORK] = {"network", 3000, 600, POSTED_NS, 12.5, false, true, false,
                                  "a signal that a GPU posts and another sees behind it: 3 to 5 us; from NIC to NIC "
                                  "0.6 us, by UCX's estimate; 12.5 GB/s is 100 Gb/s"},
            [BNY_LINK_NETWORK_CPU] = {"network", 1900, 600, POSTED_NS, 12.5, false, true, false,
                                      "a message and its signal over RDMA to a rank that polls: 2.5 us, of which 0.6 "
                                      "us from NIC to NIC, by UCX's estimate; 12.5 GB/s is 100 Gb/s"},
            [BNY_LINK_TCP] = {"tcp", 20000, 0, 0, 1.25, true, false, false,
                              "two kernels on the way: 20 us; 10 Gb/s for all ranks of a node together"},
        },
    .merge_ns_per_byte = 0.03,
};

const double bny_price_tier_ns = 400;
const double bny_price_switch_ns = 1500;

bny_link_cost bny_price_cost(const bny_prices *prices, bny_link_class class, double ranks_per_core) {
  const bny_price *price = &prices->rows[class];
  return (bny_link_cost){
      .alpha_ns = price->software_ns + price->way_ns,
      .message_ns = price->message_ns,
      .posted = price->posted,
      .beta_ns_per_byte = 1 / price->gbytes_per_s,
      .shared_ns_per_byte = price->shared ? 1 / price->gbytes_per_s : 0,
      .gamma_ns_per_byte = prices->merge_ns_per_byte,
      .ranks_per_core = ranks_per_core,
      .switch_ns = bny_price_switch_ns,
  };
}

/* The speed of a GPU's memory, GB/s, from makers' data sheets. Each byte that is merged is read, and as much is
 * written. */
static const struct {
  int32_t compute;
  double gbytes_per_s;
} gpu_memory[] = {{70, 900},   {75, 320},   {80, 1555},  {86, 600},   {89, 864},   {90, 3350},  {100, 8000},
                  {103, 8000}, {120, 1792}, {906, 1024}, {908, 1229}, {910, 1638}, {942, 5300}, {950, 8000}};
static const double gpu_memory_unknown = 900;

double bny_price_merge_gpu(int32_t compute, double *gbytes_per_s) {
  *gbytes_per_s = gpu_memory_unknown;
  for (size_t i = 0; i < sizeof gpu_memory / sizeof gpu_memory[0]; i++)
    if (gpu_memory[i].compute == compute) *gbytes_per_s = gpu_memory[i].gbytes_per_s;
  return 2 / *gbytes_per_s;
}
