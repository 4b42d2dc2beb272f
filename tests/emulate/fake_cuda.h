/* SPDX-License-Identifier: Apache-2.0
 * A fake CUDA driver for machines without a GPU. The library loads it in place of libcuda.so.1. The memory of its
 * devices consists of memory files, so a rank really maps the exports of other ranks, of this process or another. Work
 * on streams is done at once.
 *
 * FAKE_CUDA describes the machine in words that are separated by commas. A word that ends in :D applies only to device
 * D:
 *   devices=N (4)  first=N (0): number of the first device among those of the node  compute=N (90)
 *   version=N       version of CUDA; default: that of the toolkit
 *   load-fails=N    loading an image returns this error
 *   no-vmm  no-files  no-fabric  no-ipc  no-host  no-peer    features that the device lacks
 *   refuses-fabric  it says that it has fabric handles, but refuses to make them, as drivers without IMEX do
 *   multicast       the device has multicast, which shows that its links are NVLink
 *   no-pageable     the device cannot reach plain host memory
 *   moved           registered host memory has another address on devices; whole pages are registered
 *   import-fails    peers' memory cannot be imported
 *   lost-writes     its writes into peers' memory do not arrive
 *   aliases         stores of kernels into peers' memory become visible after a fence for aliases only
 *   slow-writes     its copies never end: streams stay busy
 *   full            no memory is left
 *   init-fails      cuInit fails
 *   capturing       another thread captures a graph: calls that would spoil it fail, except in relaxed mode
 *   other-context   the context that is current at first is not the primary one
 *   sms=N           multiprocessors of each device; at most 8 blocks run at once on each
 *   seed=N (1)  step-ns=N (10)    of the emulator, see below
 *   truncates       matrix operations truncate sums, as tensor cores do
 *   live            a thread runs the work of streams, as a GPU does, see below
 *   local=N (800)   bytes of local memory that a thread of a kernel needs
 *   slow-KERNEL     by the times of events, launches of the kernel of this name take a second longer; nothing waits
 *
 * FAKE_CUDA_NOTES names a file that gets a line for each launched kernel, with its name, and for the first "cuInit" of
 * a process, each "cuModuleLoadData", and each "refused".
 *
 * Images are of three kinds. A fake_cuda_image of the test has kernels that run at once on the thread that launches
 * them. A fat binary, or a file that says "emulated", stands for the kernels of the library. Those wait until the test
 * calls fake_cuda_run(), and then all run together on an emulated device.
 *
 * With the word `live` programs need not know that the driver is fake. A thread does all work, in the order of each
 * stream. There are events, and graphs of one stream, and kernels of one process may wait for those of another. Calls
 * that allocate, free or load wait until all kernels of the process have ended, and no thread can launch one meanwhile.
 * Real drivers may behave this way, so the fake one finds a call that is made between a rank's launch and that of its
 * peers. Two more faults end the process. The first is to unmap memory while queued work uses its address, since
 * drivers may unmap at once. The second is a call by the thread that kernels wait for, since the call may wait for
 * another thread's. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_CUDA_KERNELS_MAX = 8, FAKE_CUDA_MAGIC = 0x46414b45 };

typedef struct fake_cuda_launch {
  int device; /* device number in this process */
  uint32_t grid[3], block[3], cluster[3], shared_bytes;
  bool early;
  void **arguments;
} fake_cuda_launch;

typedef struct fake_cuda_image {
  uint32_t magic;
  struct {
    const char *name;
    void (*run)(const fake_cuda_launch *launch);
  } kernels[FAKE_CUDA_KERNELS_MAX]; /* the first entry without a name ends the list; "*" matches any other name */
} fake_cuda_image;

/* The functions that tests find by dlsym. */

/* Counts the objects that exist. The text lists them by kind: "2 contexts, 1 stream". */
typedef int fake_cuda_live_function(char *text, size_t bytes);

/* Counts the images that have been loaded. */
typedef int fake_cuda_loads_function(void);

/* Counts the calls so far that allocate, free or wait. */
typedef uint64_t fake_cuda_setup_calls_function(void);

/* Makes a device's primary context current on this thread, as cudaSetDevice() does; -1: no context. */
typedef void fake_cuda_set_device_function(int ordinal);

/* Returns the device whose context is current on this thread, or -1. */
typedef int fake_cuda_current_function(void);

/* Begins or ends the capture of a stream. Until the end nothing on it runs; launches of the library's kernels are
 * recorded, and what it had recorded before is forgotten. */
typedef void fake_cuda_capture_function(void *stream, bool on);

/* Launches again what was captured on a stream. */
typedef void fake_cuda_replay_function(void *stream);

/* Runs all launches of the library's kernels, on all devices of this process. Returns false and the reason if they
 * never end. */
typedef bool fake_cuda_run_function(char *why, size_t bytes);

/* Returns the most blocks of any launch of the library's kernels so far. */
typedef uint32_t fake_cuda_most_blocks_function(void);

/* Returns how many cuMemsetD8Async() there have been. */
typedef uint32_t fake_cuda_fills_function(void);

/* From now on counts the bytes that kernels copy asynchronously from this memory. Returns the count before. */
typedef uint64_t fake_cuda_watch_copies_function(const void *memory, size_t bytes);

/* Counts the launches that may begin early. */
typedef uint32_t fake_cuda_early_launches_function(void);
