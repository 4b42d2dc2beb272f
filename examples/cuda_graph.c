/* SPDX-License-Identifier: Apache-2.0
 * A combine on devices, captured in a CUDA graph and replayed. Ranks are threads, one per device. A barrier precedes
 * kernels that wait for each other, because calls that allocate or load may wait for all kernels of the process. */
#include <banyan.h>
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 2, HEADS = 16, DIM = 64, STEPS = 10 }; /* one token with 16 heads */
enum { LSE = HEADS * DIM, MERGED = LSE + HEADS, MERGED_LSE = MERGED + HEADS * DIM, FLOATS = MERGED_LSE + HEADS };

#define CUDA(call) need((call) == CUDA_SUCCESS, #call, "the driver rejected it")
#define BANYAN(call) need((call) == BANYAN_OK, #call, banyan_last_error())
static void need(int good, const char *call, const char *text) { /* exits on failure, so peers do not wait */
  if (!good) fprintf(stderr, "%s: %s\n", call, text), _Exit(1);
}
static banyan_threads *group; /* lives as long as the process */
static pthread_barrier_t meeting;
static int numbers[RANKS] = {0, 1};
static float rows[RANKS][FLOATS];

static void *live(void *argument) {
  int rank = *(int *)argument;
  CUdevice device;
  CUcontext context;
  CUstream stream;
  CUgraph graph;
  CUgraphExec steps;
  CUdeviceptr memory;
  for (int i = 0; i < LSE; i++) rows[rank][i] = (float)rank; /* attention to one key of logit 0 and value rank */
  CUDA(cuDeviceGet(&device, rank));
  CUDA(cuDevicePrimaryCtxRetain(&context, device));
  CUDA(cuCtxSetCurrent(context));
  CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUDA(cuMemAlloc(&memory, sizeof rows[rank]));
  CUDA(cuMemcpyHtoD(memory, rows[rank], sizeof rows[rank]));
  banyan_bootstrap bootstrap;
  banyan_comm *comm = NULL;
  banyan_comm_config config = BANYAN_COMM_CONFIG_INIT;
  config.device = "cuda"; /* the current device of this thread */
  BANYAN(banyan_threads_bootstrap(group, rank, &bootstrap));
  BANYAN(banyan_comm_create(&bootstrap, &config, &comm));
  float *at = (float *)memory;
  banyan_partial in, out;
  banyan_partial_init(&in, at, BANYAN_F32, at + LSE, BANYAN_F32, HEADS, DIM);
  banyan_partial_init(&out, at + MERGED, BANYAN_F32, at + MERGED_LSE, BANYAN_F32, HEADS, DIM);
  banyan_combine_desc desc = BANYAN_COMBINE_DESC_INIT;
  desc.tokens = 1, desc.heads = HEADS, desc.value_dim = DIM, desc.stream = stream;
  BANYAN(banyan_combine(comm, &desc, &in, &out)); /* only the first call of a shape may allocate */
  CUDA(cuStreamSynchronize(stream));
  CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  BANYAN(banyan_combine(comm, &desc, &in, &out)); /* a model has other kernels before and after it */
  CUDA(cuStreamEndCapture(stream, &graph));
  CUDA(cuGraphInstantiateWithFlags(&steps, graph, 0));
  CUDA(cuGraphUpload(steps, stream));
  pthread_barrier_wait(&meeting);
  for (int i = 0; i < STEPS; i++) CUDA(cuGraphLaunch(steps, stream));
  CUDA(cuStreamSynchronize(stream));
  BANYAN(banyan_comm_status(comm)); /* reports errors of the replays */
  pthread_barrier_wait(&meeting);
  CUDA(cuMemcpyDtoH(rows[rank], memory, sizeof rows[rank]));
  if (rank == 0) printf("%d replays: attention is %g, lse %g\n", STEPS, rows[0][MERGED], rows[0][MERGED_LSE]);
  cuGraphExecDestroy(steps), cuGraphDestroy(graph);
  banyan_comm_destroy(comm);
  cuMemFree(memory), cuStreamDestroy(stream);
  cuDevicePrimaryCtxRelease(device);
  return NULL;
}

int main(void) {
  pthread_t threads[RANKS];
  CUDA(cuInit(0));
  BANYAN(banyan_threads_create(RANKS, &group));
  pthread_barrier_init(&meeting, NULL, RANKS);
  for (int rank = 0; rank < RANKS; rank++)
    need(pthread_create(&threads[rank], NULL, live, &numbers[rank]) == 0, "pthread_create", "no room for a thread");
  for (int rank = 0; rank < RANKS; rank++) pthread_join(threads[rank], NULL);
  return 0;
}
