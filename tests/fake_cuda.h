/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA driver for machines that have no GPU, loaded by the library in place of libcuda.so.1. Its devices' memory is memory
 * files, so that what one rank exports another one truly maps, be it in this process or in another. Work on streams is
 * done at once.
 *
 * FAKE_CUDA says what the machine is like, in words with commas between; a word that ends in :D is true of device D alone:
 *   devices=N (4)  first=N (0): the number of its first device among all of the host  version=N (12080)  compute=N (90)
 *   no-vmm  no-files  no-fabric  no-ipc  no-host  no-peer    what it cannot do
 *   no-pageable     nor reach plain memory of the host
 *   moved           where it does, memory that is registered has another address for devices; it is whole pages
 *   import-fails    peers' memory cannot be imported
 *   lost-writes     what it writes into peers' memory does not arrive there
 *   slow-writes     its copies end never: streams are busy for ever
 *   full            no memory is left
 *   init-fails      cuInit
 *   capturing       another thread captures a graph: calls that would spoil it fail, unless their thread says it is aware
 *   other-context   the context current at first is not the primary one
 *   sms=N           multiprocessors of each device; no more blocks run at once than 8 on each
 *   seed=N (1)  step-ns=N (10)    of the emulator, see below
 *   live            a thread runs what is put on streams, as a GPU does, see below
 *   local=N (800)   bytes of local memory that a thread of a kernel needs
 *   slow-KERNEL     of this name, a launch takes a second longer, by what events tell: it waits for none
 *
 * EMULATE_PTX names files of what nvcc made of kernels, to be run instead of what the host's compiler did: see ptx/compiled.hh.
 *
 * Images are of three kinds: a fake_cuda_image of the test, whose kernels run at once on the thread that launches them; and a
 * fat binary, or a file that says "emulated", both of which stand for the kernels of the library: those wait until the
 * test calls fake_cuda_run(), and then all run together on an emulated device.
 *
 * With the word `live` programs need not know that the driver is fake: nothing is done at once, but by a thread, in the order of
 * each stream; there are events, and graphs of one stream; and kernels of one process may wait for those of another. Calls that
 * allocate, free or load wait until all kernels of the process have ended, and nobody launches one meanwhile, as may be with
 * drivers: so a call that is made between a rank's launch and that of its peers is found. What ends the process besides:
 * memory that is unmapped while something in a queue was told of it, since drivers may do that at once; and a call by the
 * thread that kernels wait for, since it may have to wait for somebody else's. */
#ifndef BNY_TESTS_FAKE_CUDA_H
#define BNY_TESTS_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_CUDA_KERNELS_MAX = 8, FAKE_CUDA_MAGIC = 0x46414b45 };

typedef struct fake_cuda_launch {
  int device; /* in this process */
  uint32_t grid[3], block[3], cluster[3], shared_bytes;
  bool early;
  void **arguments;
} fake_cuda_launch;

typedef struct fake_cuda_image {
  uint32_t magic;
  struct {
    const char *name;
    void (*run)(const fake_cuda_launch *launch);
  } kernels[FAKE_CUDA_KERNELS_MAX]; /* up to the first without a name; "*" is any other name */
} fake_cuda_image;

/* What the fake driver tells tests; found by dlsym. */

/* Objects that are alive, by kind: "2 contexts, 1 stream"; returns how many. */
typedef int fake_cuda_live_function(char *text, size_t bytes);

/* Calls made so far that allocate, free or wait. */
typedef uint64_t fake_cuda_setup_calls_function(void);

/* Makes a device's primary context current on this thread, as cudaSetDevice() does; -1: none. */
typedef void fake_cuda_set_device_function(int ordinal);

/* The device whose context is current on this thread; -1: none. */
typedef int fake_cuda_current_function(void);

/* Begins and ends the capture of a stream. While it lasts nothing on it runs; launches of the library's kernels are kept. */
typedef void fake_cuda_capture_function(void *stream, bool on);

/* Launches again what was captured of a stream. */
typedef void fake_cuda_replay_function(void *stream);

/* Runs all launches of the library's kernels, of all devices of this process, to their end. False, and why: they never end. */
typedef bool fake_cuda_run_function(char *why, size_t bytes);

/* The most blocks of any launch of the library's kernels so far. */
typedef uint32_t fake_cuda_most_blocks_function(void);

/* How many of them may begin early. */
typedef uint32_t fake_cuda_early_launches_function(void);

#endif
