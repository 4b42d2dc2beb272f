/* SPDX-License-Identifier: Apache-2.0
 *
 * banyan merges attention partials across ranks in one topology-aware collective.
 *
 * When a KV cache is sharded along the sequence, each rank attends to its own shard of the keys. For each row, a (query
 * token, head) pair, the rank then holds a *partial* over its keys: a number m near the maximum logit t, the
 * denominator d = sum exp(t - m), and the numerator n = sum exp(t - m) v. Any m is valid, as long as d and n are
 * relative to it. banyan_combine() merges the partials of all ranks into attention over the whole cache.
 *
 * A program has four steps, and every rank makes the same collective calls in the same order:
 *
 *   banyan_env_create(0, &env, &bootstrap);            how ranks find each other
 *   banyan_comm_create(&bootstrap, NULL, &comm);       the communicator
 *   banyan_combine(comm, &desc, &in, &out);            once per layer and token
 *   banyan_comm_destroy(comm); */
#ifndef BANYAN_H
#define BANYAN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The library is compiled with hidden visibility. It exports exactly what this header declares. */
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

#define BANYAN_VERSION_MAJOR 0
#define BANYAN_VERSION_MINOR 1
#define BANYAN_VERSION_PATCH 0

/* Conventions.
 *
 * - A *node* is a machine. The *host* is its CPU side, and a *device* is an accelerator.
 * - A *local* call involves no other rank. A *collective* call is made by all ranks of a communicator, in the same
 *   order.
 * - Names state sizes in bytes. Times are in ns, and strides are in elements.
 * - The caller owns the memory that it passes to a call. Free an object that a call makes with the matching destroy or
 *   free call, which accepts NULL.
 * - A struct that begins with `size` needs size = sizeof of the struct. BANYAN_COMM_CONFIG_INIT and the other *_INIT
 *   macros set it, in C and in C++. A field that is 0 takes its default. The enums of banyan_partial have no default,
 *   because the library never guesses what memory means.
 * - Calls compute in the usual floating-point mode, whatever mode the calling thread has: rounding to nearest, with
 *   denormal numbers, without traps. So results do not depend on a library that sets another. Each call restores the
 *   caller's mode at its end, and for callbacks.
 * - Later versions append fields to structs, so a program runs with older and newer libraries. A field that the
 *   caller's struct lacks counts as 0. A field that the library does not know must be 0, or the call returns
 *   BANYAN_ERR_ARGUMENT. */

/* ---- status ---------------------------------------------------------------------------------------------------- */

/* Returns the version of the running library, such as "0.1.0". The string is static. */
const char *banyan_version(void);

typedef enum banyan_status {
  BANYAN_OK = 0,
  BANYAN_ERR_ARGUMENT,    /* an argument is wrong, and this rank sent nothing */
  BANYAN_ERR_MEMORY,      /* out of memory, or a message does not fit the arena */
  BANYAN_ERR_SYSTEM,      /* an operating system call failed */
  BANYAN_ERR_UNSUPPORTED, /* this machine or this build does not support it */
  BANYAN_ERR_DATA,        /* invalid statistics: d < 0, or a NaN or +inf that is not declared to mean an empty row; or
                           * out->stats_dtype cannot hold a row of the result */
  BANYAN_ERR_STATE,       /* calls came in the wrong order */
  BANYAN_ERR_BOOTSTRAP,   /* ranks could not find or authenticate each other */
  BANYAN_ERR_TIMEOUT,     /* the deadline passed. banyan_comm_failed_rank() returns the rank that was missing */
  BANYAN_ERR_PEER,        /* a rank died, left, or rejected its call */
  BANYAN_ERR_MISMATCH,    /* ranks disagree on shape, dtype, algorithm or the order of calls */
  BANYAN_ERR_ABORTED      /* some rank called banyan_comm_abort() */
} banyan_status;

/* Errors.
 *
 * - A call that can fail returns a banyan_status. If that is not BANYAN_OK, results may be written in part, and none
 *   if this rank rejected the call. So a sum in place may have lost its input. banyan_last_error() returns the text of
 *   this thread's last failure: what was wrong, where, on which rank, and what to do.
 * - A failure that involves other ranks (timeout, dead peer, mismatch, abort, bad data) ends the communicator on every
 *   rank. Later calls return the same status. banyan_comm_shrink() makes a new communicator from the surviving ranks.
 * - If this rank rejects a collective (a wrong argument, no memory), the rejection counts as its call. Peers do not
 *   wait for it: they get BANYAN_ERR_PEER, and the text names the rank and its reason.
 * - Ranks compare the first call of a shape and every *_init before they send data. A rejection of such a call, or one
 *   by all ranks, leaves the communicator usable. In later calls and runs peers may already have sent data. The
 *   communicator then ends on all ranks as soon as one needs the data of the rejected call. The rank that rejected it
 *   learns this from banyan_comm_status() or from its next call.
 * - A slow rank learns the last eight rejections of a peer; those of consecutive calls count as one. A rank that is
 *   further behind waits until its deadline.
 * - On a device, peers do not learn a rejection of a start, or of a blocking call unless planning has failed. Their
 *   kernels wait until their deadline. banyan_comm_abort() ends this wait at once.
 * - If a rank dies or has bad data, an earlier operation still completes on each rank that has all the data it
 *   needs. */

/* Returns the name of a status, such as "timeout" for BANYAN_ERR_TIMEOUT. The string is static, and never NULL. */
const char *banyan_status_string(banyan_status status);

/* Returns the text of the calling thread's last failure, or "" if there was none. The text is valid until this thread's
 * next banyan call. */
const char *banyan_last_error(void);

/* ---- bootstrap: how ranks find each other ------------------------------------------------------------------------ */

/* Describes a rank to banyan_comm_create(): its number, the number of ranks, and one blocking allgather. Supply your
 * own, or use one of the calls below.
 *
 * Every rank passes `bytes` bytes at `mine` to allgather, and `all` receives nranks * bytes in rank order. It returns 0
 * on success and anything else on failure. It must return after timeout_ns at the latest, because nothing else notices
 * a missing rank. Only banyan_comm_create() calls it. */
typedef struct banyan_bootstrap {
  size_t size;
  int32_t rank;
  int32_t nranks;
  void *context;
  int (*allgather)(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns);
} banyan_bootstrap;

#define BANYAN_BOOTSTRAP_INIT \
  { sizeof(banyan_bootstrap), 0, 0, NULL, NULL }

/* Sets this thread's banyan_last_error() to `text` and returns `status`. Return it from your own allgather on failure:
 * banyan_comm_create() then reports both to its caller. */
banyan_status banyan_bootstrap_fail(banyan_status status, const char *text);

/* Make ranks of the threads of this process. Create one group of nranks, then one bootstrap in each thread. Destroy the
 * group when all threads have their communicators. These ranks share plain memory, and use no system resources. */
typedef struct banyan_threads banyan_threads;
banyan_status banyan_threads_create(int32_t nranks, banyan_threads **group);
banyan_status banyan_threads_bootstrap(banyan_threads *group, int32_t rank, banyan_bootstrap *bootstrap);
void banyan_threads_destroy(banyan_threads *group);

/* Makes a rank from the environment of a launcher: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets
 * them. Collective. Destroy it as soon as the communicator is made. The call returns within timeout_ns (0: 30 s). If
 * the system takes longer to look up MASTER_ADDR, a thread of the library ends later.
 *
 * - Under torchrun, whose own store listens on MASTER_PORT, the port follows from the run's id and MASTER_PORT.
 *   BANYAN_PORT overrides it.
 * - If RANK and WORLD_SIZE are not set, rank and size come from the variables of Open MPI, PMI or Slurm.
 * - All ranks must belong to one job. Its id is BANYAN_JOB, or else the id that torchrun, mpirun or Slurm sets. Two
 *   jobs without an id need different ports.
 * - Ranks connect over TCP. Both sides authenticate with a secret, which is BANYAN_SECRET or the content of the file
 *   BANYAN_SECRET_FILE (mode 0600). A secret is required unless MASTER_ADDR is a loopback address, or LOCAL_WORLD_SIZE
 *   equals WORLD_SIZE. In the second case there is one node, and MASTER_ADDR is not looked up. Without a secret, all
 *   ranks must be processes of one user on one node, and the kernel checks that.
 * - Rank 0 listens at MASTER_ADDR, or at BANYAN_INTERFACE: an interface such as eth0, an address, or a network such as
 *   10.0.0.0/8. */
typedef struct banyan_env banyan_env;
banyan_status banyan_env_create(int64_t timeout_ns, banyan_env **env, banyan_bootstrap *bootstrap);
void banyan_env_destroy(banyan_env *env);

/* banyan_mpi.h makes ranks from an MPI_Comm. That is a separate library, so this library never links MPI. */

/* ---- communicator ------------------------------------------------------------------------------------------------ */

/* A communicator is a group of ranks that call collectives together. One thread at a time may use it and its
 * operations. Only banyan_comm_abort() may be called from any thread. Different communicators are independent. After a
 * fork, the child may free its copies of operations and destroy its copies of communicators. Neither the parent nor its
 * peers notice. All other calls on these copies return BANYAN_ERR_STATE, and banyan_comm_abort() does nothing. */
typedef struct banyan_comm banyan_comm;

/* The settings of a communicator. The variable in parentheses sets the default of a field. */
typedef struct banyan_comm_config {
  size_t size;

  /* The deadline of each call, or of each part of a call that is sent in parts. It counts from the first wait or the
   * first banyan_test(). A pause between two tests counts for half a deadline at most, so the third test reports a
   * missing rank, however far apart tests are. In a wait, a pause in which the process did not run counts for an
   * eighth. 0: 30 s, or ten minutes on a device, because a peer may be compiling kernels (BANYAN_TIMEOUT_MS). */
  int64_t timeout_ns;

  /* Memory that this rank shares with peers, 64 KiB to 16 GiB. Larger messages are sent in parts. A value below 16 MiB
   * is raised to what any algorithm needs for a row of 128 f32 values among this many ranks (9 ranks: about 140 KiB;
   * banyan_comm_describe() reports it). A longer row that does not fit is BANYAN_ERR_MEMORY, and the text has the size
   * that it needs. 0: 16 MiB, or 256 MiB on a device, where attention of up to 8192 rows (batch x heads) of 512 values
   * then sends its rows from within its kernel (BANYAN_ARENA_KIB). */
  size_t arena_bytes;

  /* The algorithm of combines whose desc has none, see banyan_combine_desc. NULL: the one with the lowest predicted
   * cost. BANYAN_ALGORITHM takes precedence over this field. */
  const char *algorithm;

  /* Where collectives run. NULL: on the host. "cuda": on the calling thread's current CUDA device. "cuda:2": on device
   * 2. "cuda:local": on the device numbered LOCAL_RANK. All ranks have the same kind of device, or none. */
  const char *device;

  /* The deadline of the first call of a shape, and of each *_init, in which ranks wait for each other to plan, load and
   * allocate. 0: timeout_ns, but at least ten minutes on a device (BANYAN_FIRST_TIMEOUT_MS). */
  int64_t first_timeout_ns;

  /* Threads of this rank for attention on the host, including the caller; at most 1024. They start with the first
   * attention, on the cores of the caller's binding, which ranks that share these cores divide. Any number gives the
   * same bits. 0: one for each of these cores, or fewer if the CPU quota of the control group is lower or fewer can be
   * started (BANYAN_THREADS). OMP_PROC_BIND may bind the caller to one core, which alone then counts. Set the number in
   * a program that runs OpenMP regions at the same time, because the two pools do not know each other. */
  int64_t threads;
} banyan_comm_config;

#define BANYAN_COMM_CONFIG_INIT \
  { sizeof(banyan_comm_config), 0, 0, NULL, NULL, 0, 0 }

/* Makes a communicator. Collective over all ranks of the bootstrap, which may be freed afterwards. If config is NULL,
 * all settings have their defaults. */
banyan_status banyan_comm_create(const banyan_bootstrap *bootstrap, const banyan_comm_config *config,
                                 banyan_comm **comm);

/* Frees a communicator and all that it owns. Free its operations first. Local. Peers that still wait for this rank get
 * BANYAN_ERR_PEER. On one node the call returns at once. Between nodes it waits until peers have received what this
 * rank sent. That takes a round trip, or 0.5 s if a peer does not answer (0.05 s after a failure; 0.2 s more if a peer
 * stops while it connects). */
void banyan_comm_destroy(banyan_comm *comm);

/* Ends every running and later call on this communicator, on all ranks, with BANYAN_ERR_ABORTED. Any thread may call it
 * at any time. It waits for no peer. `reason` (may be NULL) becomes part of the error text on this rank. If a
 * connection between nodes accepts no more data, the abort is sent when this rank next waits or destroys the
 * communicator. */
void banyan_comm_abort(banyan_comm *comm, const char *reason);

/* Rejects the next collective call on behalf of this rank, as the library does for a wrong argument (see "Errors"). A
 * layer above the library calls it if its own checks fail. Peers then get the text `why`. `status` is any status but
 * BANYAN_OK. Set `init` to 1 if the rejected call is a *_init, else to 0. Returns `status`, and sets
 * banyan_last_error() to `why`. */
banyan_status banyan_comm_reject(banyan_comm *comm, banyan_status status, const char *why, int init);

/* Sets a function that is called about every 50 ms while a call of this thread waits for other ranks on the host. A
 * runtime can run its signal handlers there. If `check` returns nonzero, the call fails, and its communicator is
 * aborted as by banyan_comm_abort(). Later waits of the thread end the same way, until the next banyan_on_wait(). NULL
 * removes the function. Local; affects only the calling thread. If a fork happens in `check`, in a signal handler or in
 * the caller's allgather, the parent's call goes on. The child's ends with BANYAN_ERR_STATE, and peers do not notice.
 * Before the child waits on a communicator of its own, it calls banyan_on_wait(). */
void banyan_on_wait(int (*check)(void *context), void *context);

/* Makes a communicator from the ranks that survived a failure. They keep their order and the settings of the old
 * communicator. Collective over these ranks, once: all of them call it within the deadline of a call.
 *
 * - Ranks that died or left, the rank that a timeout named, and ranks that do not call in time are left out. On one
 *   node, such a rank gets BANYAN_ERR_PEER if it calls.
 * - Between nodes, a rank that does not answer may be alive and continue elsewhere. Ranks get a communicator only if
 *   all ranks left out are known to have ended or to have given up, or the ranks are a majority: more than half of all
 *   old ranks, or exactly half with the lowest of them. A rank does not count if another rank of its node saw it end
 *   before it called. The others get BANYAN_ERR_PEER if they hear from a member, else BANYAN_ERR_TIMEOUT.
 * - A rank that was left out and is late hears from every member that it reaches, however late it calls, until that
 *   member destroys its new communicator. On each member a library thread, which sleeps meanwhile, answers it.
 * - A rank is known to have ended if a rank of its node saw that, or, but for RDMA, its node closed its connections.
 * - `members` (may be NULL) has room for all old ranks. It receives the old rank of each new one.
 * - The old communicator does not change. Destroy it before or afterwards. If ranks were left out that may be alive,
 *   its connections and arena remain until the new one ends.
 * - banyan_comm_abort() of the old communicator, from any thread, ends a running call on this rank with
 *   BANYAN_ERR_ABORTED. The other ranks continue without it.
 * - The call takes at most three deadlines, and one and a half more for each rank that stops meanwhile.
 * - Two live ranks never have different communicators. A rank that is lost at the very end may still be a member, and
 *   the first call then reports it; or it gets an error although the others have a communicator. */
banyan_status banyan_comm_shrink(banyan_comm *comm, int32_t *members, banyan_comm **shrunk);

/* A color for banyan_comm_split() that makes no communicator. Any negative color does the same. */
#define BANYAN_COLOR_NONE (-1)

/* Splits a communicator, as MPI_Comm_split() and ncclCommSplit() do. The ranks of each color form a new communicator,
 * ordered by key, and by old rank if keys are equal. Collective over all ranks of `comm`, which replaces the bootstrap.
 * *sub is NULL on ranks without a color.
 *
 * - A new communicator has the settings of `comm`, its device and its share of the node's cores. The two are
 *   independent afterwards: each may be destroyed, fail, shrink or be split without an effect on the other.
 *   BANYAN_LEVELS is ignored for the new one.
 * - If `comm` fails during the split, for example because a rank dies, the call fails on all ranks. If the ranks of one
 *   color cannot make their communicator, each of them gets the reason. `comm` and the other colors remain usable. A
 *   rank that lacks memory before any rank knows the colors fails the call on all ranks, and `comm` remains usable. */
banyan_status banyan_comm_split(banyan_comm *comm, int32_t color, int32_t key, banyan_comm **sub);

/* Devices. The following holds for a communicator whose banyan_comm_config names a device.
 *
 * - Memory. Collectives take any memory that the device can read and write. Peers see only the arenas, not the caller's
 *   memory. If the driver reports that the device cannot reach the first byte, the call returns BANYAN_ERR_ARGUMENT and
 *   names the field. This rejects plain host memory, unless the device shares the page tables of the node, and memory
 *   of another device without peer access. Accepted allocations are remembered.
 * - Streams. A collective is ordered on a stream, returns at once, and synchronises nothing.
 * - Graphs. The first call of a shape, and each *_init, waits for other ranks and allocates. Every later call may be
 *   captured in a graph. The graph may be replayed any number of times if all ranks replay it alike. The runs of a
 *   communicator follow one another, in the same order on all ranks. If they are on several streams, the caller ensures
 *   that.
 * - Errors of runs arrive later, at banyan_comm_status(). All runs of this rank must end before banyan_comm_destroy().
 * - Several communicators. A driver may wait for all kernels of the process when memory is freed or kernels are loaded.
 *   So do not make or destroy a communicator, or make the first call of a shape, while a kernel of this process waits
 *   for a kernel that the same thread has yet to launch for another communicator.
 * - Several nodes. If devices of different nodes share no memory, each communicator has one library thread that
 *   exchanges data between nodes. Combines and sums use it; other collectives then move host memory, and return when
 *   complete. Memory of a device is BANYAN_ERR_ARGUMENT for these. */

/* Sets the stream (a cudaStream_t of the communicator's device) for calls without one: allgather, shift, broadcast,
 * barrier, selections, and those whose desc.stream is NULL. NULL, the initial value, is the default stream of the
 * device. Local; ranks do not compare it. */
banyan_status banyan_comm_set_stream(banyan_comm *comm, void *stream);

/* Sets the tag of all operations that start from now on, such as the number of a layer or of a place in the program.
 * The flight recorder, traces, probes and errors show it, and ranks compare it in each run. So if two calls of one
 * shape pair up wrongly, because ranks make them in different orders, the result is BANYAN_ERR_MISMATCH with both tags,
 * and never a merge of the wrong rows. Tags make no plans, and need not be unique.
 *
 * BANYAN_TAG_NONE, the initial value, or any other negative number means no tag. Repeated runs on devices have no tag;
 * the first call of a shape and each *_init compare it there too. Local. comm may be NULL. Returns the previous tag. */
#define BANYAN_TAG_NONE (-1)
int64_t banyan_comm_set_tag(banyan_comm *comm, int64_t tag);

/* Return this rank, from 0, and the number of ranks. If comm is NULL, they return -1. */
int32_t banyan_comm_rank(const banyan_comm *comm);
int32_t banyan_comm_nranks(const banyan_comm *comm);

/* Return the failure that ended this communicator (BANYAN_OK: none), its text (""; the communicator owns it), and the
 * rank that caused it (-1: unknown). If comm is NULL, they return BANYAN_ERR_ARGUMENT, "" and -1. */
banyan_status banyan_comm_status(const banyan_comm *comm);
const char *banyan_comm_error(const banyan_comm *comm);
int32_t banyan_comm_failed_rank(const banyan_comm *comm);

/* Describes in one paragraph what was found and chosen: ranks, transport, CPU kernels, arena. Writes at most `bytes`
 * bytes including the final NUL. Returns the length of the whole text, as snprintf() does. */
size_t banyan_comm_describe(const banyan_comm *comm, char *text, size_t bytes);

/* Writes this rank's counters as Prometheus text: operations finished on the host and the bytes contributed to them, by
 * collective; and waits of BANYAN_METRICS_WAIT_US or more, by the rank that was waited for. Returns the length as
 * above, or 0 if BANYAN_FLIGHT is off. No other thread may use the communicator meanwhile. */
size_t banyan_comm_metrics(const banyan_comm *comm, char *text, size_t bytes);

/* Loads UCX, the network library that connects ranks of several nodes. Describes it, and whether it moves memory of
 * CUDA devices. The text is cut to `bytes`. Returns BANYAN_ERR_UNSUPPORTED if UCX cannot be loaded. */
banyan_status banyan_network_describe(char *text, size_t bytes);

/* ---- partials ---------------------------------------------------------------------------------------------------- */

/* Number types in memory and on the wire. E4M3 and E5M2 are the eight-bit floats of OCP (e4m3fn: no infinity, largest
 * 448; e5m2: largest 57344). They and I8 serve for values and keys, never for statistics. As a wire format, E4M3 has a
 * power-of-two scale for each 32 values of a row. Values are rounded to nearest even. Values above the largest number
 * of an eight-bit type become that number. NaN stays NaN. */
typedef enum banyan_dtype {
  BANYAN_F32 = 1,
  BANYAN_F16,
  BANYAN_BF16,
  BANYAN_E4M3,
  BANYAN_E5M2,
  BANYAN_I8 /* only keys and values of attention on the host */
} banyan_dtype;

/* The values of a row: normalised (o = n / d, which attention kernels usually return), or the numerator n itself. */
typedef enum banyan_values { BANYAN_VALUES_NORMALISED = 1, BANYAN_VALUES_NUMERATOR } banyan_values;

/* The statistics of a row: lse = m + log d in one array, or m and d in two. On output m is an integer in base 2 (in
 * base e, that times ln 2) and at least the maximum logit, so that rescaling is exact. If the output type cannot hold a
 * row's lse or m, this rank gets BANYAN_ERR_DATA with the number of the row. All other rows are right. */
typedef enum banyan_stats { BANYAN_STATS_LSE = 1, BANYAN_STATS_MAX_SUM } banyan_stats;

/* The base of logarithm and exponentials: e (FlashAttention, FlashMLA) or 2 (FlashInfer). */
typedef enum banyan_base { BANYAN_BASE_E = 1, BANYAN_BASE_2 } banyan_base;

/* The lse (or m) that marks an empty row, which is a row without keys. -inf always means empty, and so does d = 0. On
 * input, combine these flags with |. A +inf or NaN without its flag is BANYAN_ERR_DATA and names the row. On output,
 * set exactly one of NEG_INF, POS_INF and BELOW; BELOW writes empty_below. Values of an empty row are never read, and
 * are written as 0. */
enum {
  BANYAN_EMPTY_NEG_INF = 1, /* -inf */
  BANYAN_EMPTY_POS_INF = 2, /* +inf (FlashAttention-2, FlashMLA) */
  BANYAN_EMPTY_NAN = 4,     /* NaN */
  BANYAN_EMPTY_BELOW = 8    /* any value <= empty_below, such as -FLT_MAX or -49994 */
};

/* Describes the partials of [tokens][heads] rows in the caller's memory. A row's values are contiguous, so strides can
 * express any order of tokens and heads.
 *
 * Input and output may share memory only if each row has the same address and type in both. Any other overlap of
 * arrays, including two arrays of one output, is BANYAN_ERR_ARGUMENT, and so is an array that is not aligned to its
 * type. Interleaved arrays do not overlap if they have a common stride and use different columns. Do not touch input or
 * output between start and wait. */
typedef struct banyan_partial {
  size_t size;
  void *values; /* [tokens][heads][value_dim]; may be NULL if value_dim is 0 */
  int64_t values_token_stride;
  int64_t values_head_stride;
  banyan_dtype values_dtype;
  banyan_values values_kind;
  void *lse; /* [tokens][heads]: lse, or m with BANYAN_STATS_MAX_SUM. NULL on output: not written */
  void *sum; /* [tokens][heads]: d. Only with BANYAN_STATS_MAX_SUM */
  int64_t stats_token_stride;
  int64_t stats_head_stride;
  banyan_dtype stats_dtype;
  banyan_stats stats_kind;
  banyan_base base;
  uint32_t empty;            /* BANYAN_EMPTY_* */
  double empty_below;        /* for BANYAN_EMPTY_BELOW */
  const float *values_scale; /* for values of E4M3 and E5M2: a value is the stored number times its scale. Read at each
                              * run. On the host, a scale that is not finite and positive is BANYAN_ERR_ARGUMENT and
                              * names the head. Device kernels do not check it. NULL: 1 */
  int64_t values_scale_stride; /* from the scale of one head of this descriptor to the next. 0: one scale for all */
} banyan_partial;

/* clang-format off */
#define BANYAN_PARTIAL_INIT \
  {sizeof(banyan_partial), NULL, 0, 0, (banyan_dtype)0, (banyan_values)0, NULL, NULL, 0, 0, (banyan_dtype)0, \
   (banyan_stats)0, (banyan_base)0, 0, 0, NULL, 0}
/* clang-format on */

/* Fills `partial` for contiguous [tokens][heads][value_dim] values and [tokens][heads] statistics of the given dtypes.
 * Values are normalised, lse is in base e, and an empty row has lse -inf. Edit the fields that differ in your memory.
 * Local. */
void banyan_partial_init(banyan_partial *partial, void *values, banyan_dtype values_dtype, void *lse,
                         banyan_dtype stats_dtype, int32_t heads, int32_t value_dim);

/* Kernels and engines whose conventions the library knows. Their statistics are f32. */
typedef enum banyan_preset {
  BANYAN_PRESET_FLASH_ATTENTION_2 = 1, /* softmax_lse [heads][tokens], base e; +inf: empty */
  BANYAN_PRESET_FLASH_ATTENTION_3,     /* softmax_lse [heads][tokens], base e; -inf: empty */
  BANYAN_PRESET_FLASHINFER,            /* lse [tokens][heads], base 2; -inf: empty */
  BANYAN_PRESET_FLASHMLA,              /* lse [tokens][heads], base e; +inf: empty */
  BANYAN_PRESET_TENSORRT_LLM_HELIX,    /* pairs of m and d, [tokens][heads][2], base e; -inf: empty */
  BANYAN_PRESET_GGML, /* f32 rows of m, d and numerators, [tokens][heads][2 + value_dim], base e. `values` is NULL */
  BANYAN_PRESET_TORCH /* lse [tokens][heads], base e; -inf: empty. The CPU kernel leaves 0 in rows that are fully
                       * masked: exclude these with banyan_valid_rows */
} banyan_preset;

/* Fills `partial` as banyan_partial_init() does, in the convention of a preset. If a kernel has separate dimensions for
 * sequences and tokens, one token per sequence is assumed. Returns BANYAN_ERR_ARGUMENT if there is no such preset, or
 * if `values` is not NULL for GGML. Local. */
banyan_status banyan_partial_preset(banyan_partial *partial, banyan_preset preset, void *values,
                                    banyan_dtype values_dtype, void *stats, int32_t tokens, int32_t heads,
                                    int32_t value_dim);

/* ---- collectives ------------------------------------------------------------------------------------------------- */

/* Where the merged rows go. With HEADS and TOKENS, rank r gets the range that banyan_split() returns, and its output
 * descriptor describes only that range. */
typedef enum banyan_scatter {
  BANYAN_SCATTER_NONE = 0, /* all rows on every rank */
  BANYAN_SCATTER_ROOT,     /* all rows on `root`; other ranks pass NULL as output */
  BANYAN_SCATTER_HEADS,    /* all tokens of a range of heads */
  BANYAN_SCATTER_TOKENS    /* all heads of a range of tokens */
} banyan_scatter;

/* The order in which partials are merged. Each order gives the same bits on every rank and in every run. The sign and
 * payload of a NaN may depend on the algorithm and on a rank's processor in every order.
 *
 * - PLAN: the order that suits the chosen algorithm.
 * - CANONICAL: a fixed balanced tree over ranks. The bits do not depend on algorithm, transport, placement of ranks or
 *   batch.
 * - EXACT: sums of integers on an absolute grid (docs/certain.md). The bits depend only on the partials, so ranks may
 *   be permuted. With N partials, at most 2^20, a row differs from the exact sum by less than N 2^-42 of its largest
 *   partial, and is then rounded once. The sum is that of the partials as the library reads them: the weight 2^lse of a
 *   partial is rounded to f32, and so are numerators times a power of two that is not whole. So a row that one partial
 *   alone has keeps its normalised values. Its wire format has 17 bytes per value and 40 per row: leave `wire` 0 or
 *   BANYAN_F32.
 * - EXACT on devices: banyan_combine() and its *_init support it, with "oneshot", for at most 72 ranks that share
 *   memory, or 64 on several nodes. The last bit may differ from the host's, as devices round normalised values times
 *   their weight to f32. Attention and combines within a kernel do not support it. */
typedef enum banyan_order { BANYAN_ORDER_PLAN = 0, BANYAN_ORDER_CANONICAL, BANYAN_ORDER_EXACT } banyan_order;

/* Divides `count` items among `parts` (at least 1) owners. Writes the range of owner `index`: [*first, *first +
 * *number). Sizes differ by at most one, and the larger ranges come first. A range may be empty. Local. */
void banyan_split(int32_t count, int32_t parts, int32_t index, int32_t *first, int32_t *number);

/* Selects how to treat a row of the result for which no rank has keys and attention has no sink. WRITTEN: it is written
 * as an empty row. KEPT: its values and statistics keep their old contents. */
typedef enum banyan_empty_rows { BANYAN_EMPTY_ROWS_WRITTEN = 0, BANYAN_EMPTY_ROWS_KEPT } banyan_empty_rows;

/* Selects the valid rows of a run. Use it when a kernel leaves statistics undefined for rows that it skips. Masked rows
 * are never read on this rank, and count as rows without keys.
 *
 * The blocking call or the *_init reads the struct itself. Each run reads the arrays that the struct points to, in
 * banyan_start() or the blocking call. They may change once that call has returned.
 *
 * - Ranks must agree on the number of tokens and on whether `tokens` is NULL, and on nothing else here. A difference is
 *   BANYAN_ERR_MISMATCH, whose text names the rank and both numbers.
 * - Invalid contents are BANYAN_ERR_ARGUMENT, whose text names index and value: a number of tokens out of range, a
 *   negative length, starts that decrease or end past the tokens.
 * - On a device only kernels read the arrays, at each run and each replay of a graph. The arrays are in memory that the
 *   device can read. The number of tokens is clamped to the allowed range, and a negative length counts as 0. Wrong
 *   starts end the run on all ranks. The next run at the latest finds a difference in tokens. banyan_comm_status()
 *   reports both. All ranks name the rank at fault; those whose kernels noticed it also report the numbers. Between
 *   nodes, devices send tokens that a run does not have as empty rows, and they compare numbers only within a node.
 * - The caller's kernel can query the valid rows (banyan_device.cuh). Attention knows which rows have keys, so the
 *   descriptor of its combine leaves seq_lens and query_start_loc NULL. */
typedef struct banyan_valid_rows {
  size_t size;
  const int32_t *tokens;          /* tokens of this run, 0 to desc.tokens. Rows past them are neither read nor written.
                                   * BANYAN_SCATTER_TOKENS divides them by banyan_split(*tokens, nranks, rank). NULL:
                                   * desc.tokens */
  int32_t batch;                  /* number of sequences: 0 without seq_lens and query_start_loc, else at least 1 unless
                                   * desc.tokens is 0 */
  const int32_t *seq_lens;        /* [batch]: this rank's keys of each sequence. 0: no valid rows. NULL: all sequences
                                   * have keys */
  const int32_t *query_start_loc; /* [batch + 1]: the first token of each sequence, then the end of the last. Tokens
                                   * outside these ranges are padding: they are masked, whatever seq_lens and token_mask
                                   * contain. NULL: one token per sequence, and sequences past the tokens are ignored */
  const uint8_t *token_mask;      /* [tokens]: 0 masks the rows of a token. NULL: no token is masked */
  banyan_empty_rows empty_rows;
} banyan_valid_rows;

#define BANYAN_VALID_ROWS_INIT \
  { sizeof(banyan_valid_rows), NULL, 0, NULL, NULL, NULL, BANYAN_EMPTY_ROWS_WRITTEN }

/* Describes a combine. All fields except `stream` and `valid` must be equal on all ranks. A difference is
 * BANYAN_ERR_MISMATCH, whose text names the rank and the field. */
typedef struct banyan_combine_desc {
  size_t size;
  int32_t tokens; /* there are tokens x heads rows, at most 2^31 - 1; 0 is allowed. With valid->tokens this is the upper
                   * bound of a run, and one plan serves every number up to it. On a device, the memory of a plan
                   * grows with this bound */
  int32_t heads;
  int32_t value_dim; /* values per row, at most 65536. 0 merges only statistics */
  banyan_dtype wire; /* type of values in flight: F32, F16, BF16 or E4M3. 0: BANYAN_F32. Statistics always travel as
                      * f32. A wire that rounds does so with one rank too. F16 saturates: never up to 65504, always from
                      * 131008 on; banyan_op_info counts such values */
  banyan_scatter scatter;
  int32_t root; /* for BANYAN_SCATTER_ROOT */
  banyan_order order;
  const char *algorithm; /* "oneshot", "twoshot", "recursive", "tree", "ring", "levels", or a variant such as
                          * "recursive_halving"; see docs/algorithms.md. NULL: that of banyan_comm_config */
  void *stream;          /* a cudaStream_t of the communicator's device. NULL: the stream of banyan_comm_set_stream().
                          * Ranks that share a device each need their own stream: on a common one, kernels run one at a
                          * time and wait for each other until the deadline */
  const banyan_valid_rows *valid; /* NULL: all rows are valid */
} banyan_combine_desc;

#define BANYAN_COMBINE_DESC_INIT \
  { sizeof(banyan_combine_desc), 0, 0, 0, BANYAN_F32, BANYAN_SCATTER_NONE, 0, BANYAN_ORDER_PLAN, NULL, NULL, NULL }

/* Merges the partials of all ranks. `in` describes this rank's partial of all tokens x heads rows. A rank without keys
 * passes empty rows, or masks them with desc->valid. `out` describes the result, in any convention.
 *
 * A call plans for a class of token counts: all counts up to the next power of two. Calls of one class share a plan, so
 * a change of tokens within it costs no barrier and no allocation. With BANYAN_ORDER_PLAN the bits of a row may depend
 * on the class. Within a class they depend on the number of tokens only if tokens are scattered. banyan_comm_describe()
 * reports the number of plans.
 *
 * The error of a row's values, as the length of a vector, is at most e A. A is the weighted mean of |v| over ranks, and
 * e = 2e-6 + (u + 2^-23) R. u is the rounding of the wire (F32: 0, F16: 2^-11, BF16: 2^-8), and R the number of
 * roundings (banyan_op_info). The rounding to the output type comes on top. A contribution may count as 0 if its weight
 * is below 2^-46 of the largest. docs/numbers.md covers E4M3, large logits and values, and the range of each type. */
banyan_status banyan_combine(banyan_comm *comm, const banyan_combine_desc *desc, const banyan_partial *in,
                             const banyan_partial *out);

/* Gathers bytes of all ranks on all ranks. Rank r passes counts[r] bytes at `mine`, and `all` receives the bytes of all
 * ranks in rank order. counts is the same on all ranks. `mine` may be this rank's part of `all`. Otherwise the two must
 * not overlap. */
banyan_status banyan_allgather(banyan_comm *comm, const void *mine, void *all, const size_t *counts);

/* Describes a tensor [tokens][heads][dim] whose heads are divided among ranks, as Q is under tensor parallelism. Rank r
 * has counts[r] heads, which follow those of rank r - 1. All fields except strides, `stream` and `valid` must be equal
 * on all ranks, and so must the number of tokens of a run. A difference is BANYAN_ERR_MISMATCH. Strides may be
 * negative. Gaps between rows are not written. */
typedef struct banyan_heads_desc {
  size_t size;
  int32_t tokens; /* with valid->tokens, the upper bound of a run */
  int32_t heads;  /* heads of all ranks */
  int32_t dim;    /* elements of a head, 1 to 65536 */
  banyan_dtype dtype;
  const int32_t *counts; /* [nranks]: heads of each rank; their sum is `heads`. NULL: as banyan_split() divides them */
  int64_t mine_token_stride, mine_head_stride; /* strides of this rank's share. Both 0: contiguous */
  int64_t all_token_stride, all_head_stride;   /* strides of the result. Both 0: contiguous */
  void *stream;                                /* as in banyan_combine_desc */
  const banyan_valid_rows *valid;              /* only `tokens` is used; NULL: all tokens */
} banyan_heads_desc;

#define BANYAN_HEADS_DESC_INIT \
  { sizeof(banyan_heads_desc), 0, 0, 0, (banyan_dtype)0, NULL, 0, 0, 0, 0, NULL, NULL }

/* Gathers the heads of all ranks on all ranks: `all` receives [tokens][heads][dim]. `mine` may be this rank's part of
 * `all`, with the strides of `all`. Otherwise the two must not overlap: they are separate memory, or have the same
 * token stride and use different columns. The call plans for classes of token counts, as banyan_combine() does. On a
 * device it is one launch. If it moves host memory (see "Devices"), `valid` is in host memory too. */
banyan_status banyan_allgather_heads(banyan_comm *comm, const banyan_heads_desc *desc, const void *mine, void *all);

/* Describes a sum over ranks of a tensor [tokens][dim], as after an output projection under tensor parallelism. All
 * fields except strides, `stream` and `valid` must be equal on all ranks, and so must the number of tokens of a run. A
 * difference is BANYAN_ERR_MISMATCH. Strides may be negative. */
typedef struct banyan_allreduce_desc {
  size_t size;
  int32_t tokens;                 /* with valid->tokens, the upper bound of a run; 0 is allowed */
  int32_t dim;                    /* columns; tokens x dim is at most 2^31 - 1 */
  banyan_dtype dtype;             /* F32, F16 or BF16: type of input and result */
  banyan_dtype wire;              /* F32, F16, BF16 or E4M3: type of values on the way; 0: F32 */
  banyan_scatter scatter;         /* which rank gets which sums; HEADS: all tokens of a range of columns */
  int32_t root;                   /* with ROOT */
  banyan_order order;             /* EXACT: the bits depend on the inputs alone. Its wire is F32 */
  const char *algorithm;          /* as in banyan_combine_desc */
  int64_t in_stride, out_stride;  /* elements from one token to the next; 0: contiguous */
  const banyan_valid_rows *valid; /* only `tokens` is used; NULL: all tokens */
  void *stream;                   /* as in banyan_combine_desc */
} banyan_allreduce_desc;

#define BANYAN_ALLREDUCE_DESC_INIT                                                                                     \
  {                                                                                                                    \
    sizeof(banyan_allreduce_desc), 0, 0, (banyan_dtype)0, BANYAN_F32, BANYAN_SCATTER_NONE, 0, BANYAN_ORDER_PLAN, NULL, \
        0, 0, NULL, NULL                                                                                               \
  }

/* Sums `in` of all ranks in f32, and rounds once to the type of `out`. All ranks that get a value get the same bits.
 * NaN and infinities arrive as such. A finite value that the wire cannot hold becomes the largest that it can, and
 * banyan_op_info counts it. A sum over p ranks is off by at most ((1 + u)^R - 1 + p 2^-23) A, where A is the
 * sum of |v| and u and R are those of banyan_combine(), with u = 1/17 for E4M3. Small values have an absolute
 * precision, in E4M3 that of 32 columns with a common scale: docs/numbers.md. `out` may be `in` if each sum then has
 * the address of its own input. Otherwise the two must not overlap. On devices the stream runs the sum, and its EXACT
 * order has the algorithm "oneshot" alone, for at most 72 ranks that share memory, or 64 on several nodes. */
banyan_status banyan_allreduce(banyan_comm *comm, const banyan_allreduce_desc *desc, const void *in, void *out);

/* Describes a selection: for each of tokens x heads rows, the k best of the scored keys that all ranks offer. A row is
 * a token, or a token and a group of heads. Best comes first in one total order: the higher score, then the lower
 * index. NaN comes after all numbers, and -0 equals 0, which results contain for both. All fields up to k, `algorithm`,
 * and the number of tokens of a run must be equal on all ranks. A difference is BANYAN_ERR_MISMATCH. */
typedef struct banyan_select_desc {
  size_t size;
  int32_t tokens;         /* with valid->tokens, the upper bound of a run; 0 is allowed */
  int32_t heads;          /* rows of a token; 0: 1 */
  int32_t k;              /* 1 to 8192 */
  int32_t offers;         /* pairs that this rank offers for each row, 0 to k. banyan_topk() finds them */
  const char *algorithm;  /* as in banyan_combine_desc */
  const float *scores;    /* [tokens][heads][offers], in any order */
  const int64_t *indices; /* the same: which key of the sequence, over all ranks. Negative: no pair */
  const int32_t *rows;    /* the same: what `own` gets for the pair, such as its key's row in this rank's cache. NULL:
                           * the pair's number among the offers of its row, from 0 */
  float *best_scores;     /* [tokens][heads][k]: the chosen pairs, best first. If there are fewer, the others have score
                           * -inf and index -1. This and all below may be NULL */
  int64_t *best_indices;  /* the same */
  int32_t *counts;        /* [tokens][heads]: pairs that were chosen */
  int32_t *own;           /* [tokens][heads][k]: the chosen pairs that this rank offered, best first, and then -1. With
                           * `rows` it is a page table of pages of one key, and own_counts are its lengths */
  int32_t *own_counts;    /* [tokens][heads] */
  int64_t in_stride, out_stride;  /* elements from one row to the next; 0: contiguous */
  const banyan_valid_rows *valid; /* only `tokens` is used; NULL: all tokens */
} banyan_select_desc;

#define BANYAN_SELECT_DESC_INIT \
  { sizeof(banyan_select_desc), 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL }

/* Selects. All ranks get the same pairs, which depend neither on the number of ranks nor on who offers what. An index
 * that is chosen twice in a row is BANYAN_ERR_DATA on all ranks, and the text names it and the ranks that offered it;
 * the communicator remains usable. If only one of its pairs is chosen, that is not noticed. Attention that reads `own`
 * is the next operation of the communicator, without a barrier: start it when the selection is complete.
 * banyan_attention_desc.select and banyan_prune.top_pages select, attend and combine in one operation. Arrays must not
 * overlap. On the host a call uses up to 200 KiB of the caller's stack. On devices that share memory the communicator's
 * stream runs it, by the algorithm "oneshot" and for at most 72 ranks. banyan_comm_status() reports a doubled index
 * there, and the communicator has then failed. Devices of several nodes select in host memory by any algorithm: copy
 * offers there, such as to pinned memory, and wait for the copies before the call. */
banyan_status banyan_select(banyan_comm *comm, const banyan_select_desc *desc);

/* Finds this rank's k best of n scores for each of `rows` rows, in the order of banyan_select() where positions are
 * indices. Row r has lens[r] scores, or n if lens is NULL, and begins at scores + r * stride (0: n). `best` and
 * `positions` are [rows][k]. If there are fewer than k, the others have score -inf and position -1. Arrays must not
 * overlap. Local; any thread may call it. It uses up to 320 KiB of the caller's stack. */
banyan_status banyan_topk(const float *scores, int64_t stride, const int32_t *lens, int32_t rows, int32_t n, int32_t k,
                          float *best, int32_t *positions);

/* Sends `bytes` bytes at `send` to rank + distance, and receives as many at `receive` from rank - distance, both modulo
 * the number of ranks. `bytes` and `distance` must be equal on all ranks. `send` and `receive` must not overlap. */
banyan_status banyan_shift(banyan_comm *comm, const void *send, void *receive, size_t bytes, int32_t distance);

/* Copies `bytes` bytes at `data` from `root` to all other ranks. `bytes` and `root` must be equal on all ranks. */
banyan_status banyan_broadcast(banyan_comm *comm, void *data, size_t bytes, int32_t root);

/* Returns when all ranks have called it. On a device it blocks the stream, not the caller, until the streams of all
 * ranks have reached it. All writes that any rank made before it are visible to all ranks after it, even in memory that
 * they share by other means. */
banyan_status banyan_barrier(banyan_comm *comm);

/* ---- persistent operations: planned once, started many times ----------------------------------------------------- */

/* An *_init call is collective. It plans, compares plans over all ranks, and binds the call's memory and stream.
 *
 * - Between start and wait the library allocates nothing and takes no lock, with four exceptions: the network library
 *   and the first runs between nodes; several attention threads on the host, which a start wakes by a lock and a system
 *   call, and for which it may allocate more scratch memory; attention that prunes, in each run; and files of
 *   BANYAN_TRACE and BANYAN_METRICS.
 * - On a device, start enqueues the run on its stream, and test and wait report it as done. The run completes in the
 *   order of its stream.
 * - Operations of one communicator run in the order of their starts, which is the same on all ranks. Several may be
 *   started before the first wait. */
typedef struct banyan_op banyan_op;
banyan_status banyan_combine_init(banyan_comm *comm, const banyan_combine_desc *desc, const banyan_partial *in,
                                  const banyan_partial *out, banyan_op **op);
banyan_status banyan_allgather_init(banyan_comm *comm, const void *mine, void *all, const size_t *counts,
                                    banyan_op **op);
banyan_status banyan_allreduce_init(banyan_comm *comm, const banyan_allreduce_desc *desc, const void *in, void *out,
                                    banyan_op **op);
banyan_status banyan_select_init(banyan_comm *comm, const banyan_select_desc *desc, banyan_op **op);
banyan_status banyan_allgather_heads_init(banyan_comm *comm, const banyan_heads_desc *desc, const void *mine, void *all,
                                          banyan_op **op);
banyan_status banyan_shift_init(banyan_comm *comm, const void *send, void *receive, size_t bytes, int32_t distance,
                                banyan_op **op);
banyan_status banyan_broadcast_init(banyan_comm *comm, void *data, size_t bytes, int32_t root, banyan_op **op);
banyan_status banyan_barrier_init(banyan_comm *comm, banyan_op **op);

/* A run of an operation is a start, then a wait, or tests until it is done. */
banyan_status banyan_start(banyan_op *op);           /* does what it can without waiting */
banyan_status banyan_test(banyan_op *op, int *done); /* makes progress. *done = 1: the run is complete, and may be
                                                      * started again */
banyan_status banyan_wait(banyan_op *op);
void banyan_op_free(banyan_op *op); /* Local. Not between start and wait */

/* A banyan_op_info field with this value is not known. */
#define BANYAN_NOT_COUNTED UINT64_MAX

/* How an operation was planned, and what its last run sent. */
typedef struct banyan_op_info {
  size_t size;
  const char *algorithm; /* this text and `reason` are valid until banyan_op_free() */
  const char *reason;    /* why it was chosen, with the predicted time of every candidate */
  double predicted_us;
  uint64_t bytes_sent; /* by this rank. The payload counts once for each receiver */
  uint64_t messages_sent;
  uint64_t arena_bytes;         /* arena memory of this operation, on this rank */
  uint64_t plan_hash;           /* hash of all that decides what runs. Identical on all ranks */
  uint64_t bytes_between_nodes; /* the part of bytes_sent that went to other nodes */
  uint64_t roundings; /* how often, at most, a value is rounded to the wire on its way into the result: R in the bound
                       * of banyan_combine(). 0 for an f32 wire */
  uint64_t saturated; /* finite values of this rank that the wire cannot hold. They became the largest number of its
                       * type. On a device, where a graph may replay runs, those of all runs up to now, for the first
                       * 508 operations with a lossy wire, freed ones included. BANYAN_NOT_COUNTED for others, and for
                       * attention there */
} banyan_op_info;

#define BANYAN_OP_INFO_INIT \
  { sizeof(banyan_op_info), NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Fills `info`. Fields that the library does not know become 0. Local. */
banyan_status banyan_op_query(const banyan_op *op, banyan_op_info *info);

/* Describes what this rank runs: its steps, one per line, and on a device the kernel. Writes and returns as
 * banyan_comm_describe() does. Local. */
size_t banyan_op_describe(const banyan_op *op, char *text, size_t bytes);

/* ---- combine within the caller's kernel -------------------------------------------------------------------------- */

/* Makes an operation for an attention kernel that pushes its partials from its epilogue and merges them itself: see
 * banyan_device.cuh. Collective, once for each shape. A run is one launch of that kernel on all ranks, in the common
 * order of runs; banyan_start() rejects the operation.
 *
 * - desc->algorithm is NULL or "oneshot", and desc->stream is ignored.
 * - BANYAN_ERR_UNSUPPORTED: the communicator has no device, more than 72 ranks, or arenas in host memory; the wire is
 *   E4M3; or the order is exact, or canonical with a lossy wire. */
banyan_status banyan_device_combine_init(banyan_comm *comm, const banyan_combine_desc *desc, banyan_op **op);

/* Writes a banyan_device_combine of `bytes` bytes to `combine`; the kernel takes it by value. Local; allocates nothing,
 * so it may be called for each launch. The result is valid for launches and graphs until banyan_comm_destroy(), even
 * after banyan_op_free().
 *
 * - `rows` describes the pushed rows: kinds, base and empty. Their pointers and strides are ignored, and their dtypes
 *   are BANYAN_F32.
 * - `out` is as for banyan_combine().
 * - `blocks` is the number of blocks of the kernel that fit on the device at once. A lower number leaves more of the
 *   device to other work. */
banyan_status banyan_op_device(const banyan_op *op, const banyan_partial *rows, const banyan_partial *out,
                               int32_t blocks, void *combine, size_t bytes);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#include "banyan_attention.h"
#include "banyan_ownership.h"

#endif
