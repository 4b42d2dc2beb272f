/* SPDX-License-Identifier: Apache-2.0
 *
 * banyan: merges attention partials across devices in one topology-aware collective.
 *
 * When a KV cache is sharded along the sequence, each rank attends to its own shard. For each (query token, head) row
 * it then holds a *partial*: a number m near the maximum logit, the denominator d = sum exp(t - m) and the numerator n
 * = sum exp(t - m) v. Any m will do, as long as d and n are relative to it. banyan_combine() merges the partials of all
 * ranks into attention over the whole cache.
 *
 * A program gets a banyan_bootstrap (how ranks find each other), creates a communicator, calls collectives in the same
 * order on every rank, and destroys the communicator. */
#ifndef BANYAN_H
#define BANYAN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The library is compiled with hidden visibility: what this header declares is what it exports. */
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

#define BANYAN_VERSION_MAJOR 0
#define BANYAN_VERSION_MINOR 1
#define BANYAN_VERSION_PATCH 0

/* Conventions.
 *
 * - A *node* is a machine. The *host* is its CPU side and a *device* is an accelerator, so host memory is a node's
 *   plain memory.
 * - A *local* call involves no other rank. A *collective* call is made by all ranks of its communicator, in the same
 *   order.
 * - Sizes are in bytes where their names say so, times in ns, strides in elements.
 * - Memory that is passed to a call remains the caller's. An object that a call makes is freed by the matching destroy
 *   or free call, which accepts NULL.
 * - A struct that begins with `size` needs it set to sizeof of the struct. BANYAN_COMM_CONFIG_INIT and the like do so,
 *   in C and in C++. A field that is zero takes its default. The enums of banyan_partial have no default, because the
 *   library never guesses what memory means.
 * - Later versions append fields, so a program runs with an older library and with a newer one. A field that the
 *   caller's struct lacks counts as zero. A field that the library does not know must be zero, or the call returns
 *   BANYAN_ERR_ARGUMENT. */

/* ---- status ---------------------------------------------------------------------------------------------------- */

/* Returns the version of the running library, such as "0.1.0", not that of the header. Static. */
const char *banyan_version(void);

/* The outcome of a call. */
typedef enum banyan_status {
  BANYAN_OK = 0,
  BANYAN_ERR_ARGUMENT,    /* an argument is wrong, and this rank sent nothing. "Errors" says whether the communicator
                           * remains usable */
  BANYAN_ERR_MEMORY,      /* out of memory, or a message larger than the arena allows */
  BANYAN_ERR_SYSTEM,      /* a call of the operating system failed */
  BANYAN_ERR_UNSUPPORTED, /* this machine or this build cannot do it */
  BANYAN_ERR_DATA,        /* invalid statistics: a d below 0, or a NaN or +inf that is not declared to mean an empty
                           * row. Or out->stats_dtype cannot hold a row of the result */
  BANYAN_ERR_STATE,       /* a call in the wrong order */
  BANYAN_ERR_BOOTSTRAP,   /* ranks could not find or authenticate each other */
  BANYAN_ERR_TIMEOUT,     /* the deadline passed; banyan_comm_failed_rank() names the rank that was waited for */
  BANYAN_ERR_PEER,        /* a rank died, left, or rejected its call */
  BANYAN_ERR_MISMATCH,    /* ranks called with different shapes, dtypes, algorithms or in different order */
  BANYAN_ERR_ABORTED      /* banyan_comm_abort() was called, here or on another rank */
} banyan_status;

/* Errors.
 *
 * - Every call that can fail returns a banyan_status, and writes its results only on BANYAN_OK. banyan_last_error() is
 *   the text of this thread's last failure: what was wrong, where, on which rank, and what to do.
 * - A failure that involves other ranks (timeout, dead peer, mismatch, abort, bad data) ends the communicator on every
 *   rank. Later calls return the same status. banyan_comm_shrink() makes a new one from the ranks that are left.
 * - A collective that this rank rejects (a wrong argument, no memory) counts as a call, and peers do not wait for it.
 *   They get BANYAN_ERR_PEER, whose text has the reason and names the rank.
 * - Ranks compare the first call of a shape, and every *_init. If a rank rejects such a call, nothing was sent, and the
 *   communicator remains usable on all ranks. In later calls and in runs of persistent operations, peers may already
 *   have sent. The communicator then ends on all ranks as soon as one of them needs what the rejected call would have
 *   sent. The rank that rejected it learns this from banyan_comm_status(), or from its next call. If all ranks reject
 *   the same call, the communicator remains usable.
 * - A late rank learns the last eight rejections of a peer; rejections of consecutive calls count as one. A rank that
 *   is further behind waits until its deadline.
 * - On a device two kinds of rejection are not reported: that of a start, and that of a blocking call unless planning
 *   has failed. Kernels of peers then wait until their deadline. If its peers do not reject the same call, the rank
 *   should call banyan_comm_abort(), which ends their wait at once.
 * - If a rank dies or has bad data, earlier operations still complete on each rank that has all it needs. */

/* Returns "timeout" for BANYAN_ERR_TIMEOUT and so on; never NULL. Static. */
const char *banyan_status_string(banyan_status status);

/* Returns the text of the last failure in the calling thread, "" before the first. Valid until the thread's next banyan
 * call. */
const char *banyan_last_error(void);

/* ---- bootstrap: how ranks find each other ------------------------------------------------------------------------ */

/* Rank, size and one blocking allgather. Supply your own, or use one of the makers below.
 *
 * In allgather every rank passes `bytes` bytes at `mine`, and `all` receives nranks * bytes in rank order. It returns 0
 * on success and anything else on failure; `return banyan_bootstrap_fail(...)` adds a status and a text. It must give
 * up after timeout_ns, because nothing else notices a missing rank. Only banyan_comm_create() calls it. */
typedef struct banyan_bootstrap {
  size_t size;
  int32_t rank;
  int32_t nranks;
  void *context;
  int (*allgather)(void *context, const void *mine, void *all, size_t bytes, int64_t timeout_ns);
} banyan_bootstrap;

/* clang-format off */
#define BANYAN_BOOTSTRAP_INIT {sizeof(banyan_bootstrap), 0, 0, NULL, NULL}
/* clang-format on */

/* Makes `text` this thread's banyan_last_error() and returns `status`. A custom allgather returns it on failure, and
 * banyan_comm_create() passes both to its caller. */
banyan_status banyan_bootstrap_fail(banyan_status status, const char *text);

/* Makes ranks of threads of this process: one group of nranks, then one bootstrap for each thread. Destroy the group
 * when all threads have their communicators. Such ranks use plain memory and no system resources. */
typedef struct banyan_threads banyan_threads;
banyan_status banyan_threads_create(int32_t nranks, banyan_threads **group);
banyan_status banyan_threads_bootstrap(banyan_threads *group, int32_t rank, banyan_bootstrap *bootstrap);
void banyan_threads_destroy(banyan_threads *group); /* NULL is allowed */

/* Makes a rank from a launcher's RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them. Collective. Ends
 * within timeout_ns (0: 30 s). MASTER_ADDR is looked up until then; a thread ends later if the system's look-up does.
 * Destroy it as soon as the communicator is made.
 *
 * - Under torchrun, whose own store listens on MASTER_PORT, rank 0 takes a free one of 16 ports that follow from the
 *   run's id and MASTER_PORT. BANYAN_PORT overrides them.
 * - Without RANK and WORLD_SIZE, rank and size come from the variables of Open MPI, PMI or Slurm.
 * - All ranks must belong to one job. Its id is BANYAN_JOB, else the one that torchrun, mpirun or Slurm sets. Two jobs
 *   without an id need different ports.
 * - Ranks connect over TCP and authenticate both ways with the secret of BANYAN_SECRET, or of the file
 *   BANYAN_SECRET_FILE (mode 0600). It is required unless MASTER_ADDR is a loopback address, or LOCAL_WORLD_SIZE equals
 *   WORLD_SIZE: then there is one node, and MASTER_ADDR is not looked up. Without a secret all ranks must be processes
 *   of one user on one node, which the kernel checks.
 * - Rank 0 listens at MASTER_ADDR, or at BANYAN_INTERFACE: an interface such as eth0, an address, or a network such as
 *   10.0.0.0/8. */
typedef struct banyan_env banyan_env;
banyan_status banyan_env_create(int64_t timeout_ns, banyan_env **env, banyan_bootstrap *bootstrap);
void banyan_env_destroy(banyan_env *env); /* NULL is allowed */

/* banyan_mpi.h makes ranks from an MPI_Comm. It is a separate library, so that this one never links MPI. */

/* ---- communicator ------------------------------------------------------------------------------------------------ */

/* A communicator: ranks that call collectives together.
 *
 * One thread at a time may use a communicator and its operations; only banyan_comm_abort() may be called from any
 * thread. Different communicators are independent. The child of a fork may free its copies of operations and destroy
 * its copies of communicators; neither its parent nor its peers notice. Its other calls on them return
 * BANYAN_ERR_STATE, and banyan_comm_abort() does nothing there. */
typedef struct banyan_comm banyan_comm;

/* Settings of a communicator. */
typedef struct banyan_comm_config {
  size_t size;
  int64_t timeout_ns; /* deadline of each call, or of each part if it is sent in parts. It counts from the first wait,
                       * or from the first banyan_test(). Time between banyan_start() and these calls does not count.
                       * 0: 30 s, or ten minutes on a device, because a peer may be compiling kernels
                       * (BANYAN_TIMEOUT_MS overrides the default) */
  size_t arena_bytes; /* memory shared with peers, per rank, 64 KiB to 16 GiB. Larger messages are sent in parts. A
                       * value below 16 MiB is raised to what any algorithm needs for a row of 128 f32 values among
                       * this many ranks (9 ranks: about 140 KiB; banyan_comm_describe() reports it). A longer row that
                       * does not fit is BANYAN_ERR_MEMORY, and the text has the size that it needs. 0: 16 MiB, or 256
                       * MiB on a device, where attention of up to 8192 rows (batch x heads) of 512 values is then
                       * combined within its kernel (BANYAN_ARENA_KIB overrides the default) */
  const char *algorithm;    /* used by combines whose desc has none, see banyan_combine_desc. NULL: by predicted cost
                             * (BANYAN_ALGORITHM overrides it) */
  const char *device;       /* where collectives run. NULL: on the host. "cuda": on the calling thread's current CUDA
                             * device. "cuda:2": on device 2. "cuda:local": on the device numbered LOCAL_RANK. All ranks
                             * need the same kind of device, or none */
  int64_t first_timeout_ns; /* deadline of the first call of a shape, and of each *_init, in which ranks wait for each
                             * other to plan, load and allocate. 0: timeout_ns, but at least ten minutes on a device
                             * (BANYAN_FIRST_TIMEOUT_MS overrides the default) */
  int64_t threads; /* threads per rank for attention on the host, the caller included; at most 1024. They start with the
                    * first attention, and are bound to the cores of the caller's binding, which ranks that share them
                    * divide. Results have the same bits for any number. 0: one for each of these cores, or fewer if a
                    * CPU quota of the control group allows fewer or fewer can be started (BANYAN_THREADS overrides the
                    * default). Set it in a program that runs OpenMP regions at the same time, because pools of threads
                    * do not know each other. With OMP_PROC_BIND the thread that makes the communicator may be bound to
                    * one core: 0 then counts only that core */
} banyan_comm_config;

/* clang-format off */
#define BANYAN_COMM_CONFIG_INIT {sizeof(banyan_comm_config), 0, 0, NULL, NULL, 0, 0}
/* clang-format on */

/* Makes a communicator. Collective over all ranks of the bootstrap, which may be freed afterwards. config may be
 * NULL: all defaults. */
banyan_status banyan_comm_create(const banyan_bootstrap *bootstrap, const banyan_comm_config *config,
                                 banyan_comm **comm);

/* Frees a communicator and all that it owns; free its operations first. Local; NULL is allowed. Peers that still wait
 * for this rank get BANYAN_ERR_PEER. On one node it returns at once. Between nodes it waits until peers have received
 * what this rank has sent: a round trip, or 0.5 s if a peer does not answer (0.05 s after a failure; 0.2 s more if a
 * peer is stopped while it connects). */
void banyan_comm_destroy(banyan_comm *comm);

/* Ends every running and later call on this communicator, on all ranks, with BANYAN_ERR_ABORTED. Any thread may call it
 * at any time; it waits for no peer. `reason` (may be NULL) becomes part of the error text on this rank. If a
 * connection between nodes accepts no more data, the abort is sent when this rank next waits or destroys the
 * communicator. */
void banyan_comm_abort(banyan_comm *comm, const char *reason);

/* Rejects the next collective call on behalf of this rank, as the library does for a wrong argument (see "Errors"). A
 * layer above calls it if its own checks fail, so that peers get BANYAN_ERR_PEER with `why` instead of waiting.
 * `status` is any but BANYAN_OK. init: the rejected call is a *_init (0 or 1). Returns `status`, and makes `why` the
 * banyan_last_error(). */
banyan_status banyan_comm_reject(banyan_comm *comm, banyan_status status, const char *why, int init);

/* Sets a function that is called about every 50 ms while a call of this thread waits for other ranks on the host, so
 * that a runtime can run its signal handlers. If `check` returns nonzero, the call fails and its communicator, if it
 * exists, is aborted as by banyan_comm_abort(). Later waits of the thread end the same way, until the next
 * banyan_on_wait(). NULL, the initial value: none. Local; affects only the calling thread. */
void banyan_on_wait(int (*check)(void *context), void *context);

/* Makes a communicator from the ranks that are left after a failure, in the order of their old ranks and with the
 * settings of the old communicator. Collective over these ranks, once; all call it within the deadline of a call.
 *
 * - It leaves out ranks that died or left, the rank that a timeout named, and ranks that do not call in time. Such a
 *   rank gets BANYAN_ERR_PEER if it is alive and calls.
 * - `members` (may be NULL) has room for all old ranks and receives the old rank of each new one.
 * - The old communicator is not changed. The caller destroys it, before or afterwards.
 * - The call takes at most three deadlines, and one and a half more for each rank that stops meanwhile.
 * - All surviving ranks get the same communicator, or none does. A rank that stopped at the very end may still be a
 *   member; the first call then reports it. */
banyan_status banyan_comm_shrink(banyan_comm *comm, int32_t *members, banyan_comm **shrunk);

/* A color of banyan_comm_split() that makes no communicator, as any negative one. */
#define BANYAN_COLOR_NONE (-1)

/* Splits a communicator, as MPI_Comm_split() and ncclCommSplit() do: the ranks of each color make one, in the order of
 * their keys, and of their old ranks where keys are equal. Collective over all ranks of `comm`, which exchange by it
 * what a bootstrap would. *sub is NULL on ranks without a color.
 *
 * - A new communicator has the settings of `comm`, its device and its share of a machine's cores. It is independent
 *   from then on: either may be destroyed, fail, shrink or be split first, and a failure of one does not affect the
 *   other. BANYAN_LEVELS is ignored for it.
 * - If `comm` fails meanwhile, for example because a rank dies, the call fails on all ranks. If the ranks of one color
 *   cannot make theirs, each of them gets the reason, and `comm` and the other colors remain usable. */
banyan_status banyan_comm_split(banyan_comm *comm, int32_t color, int32_t key, banyan_comm **sub);

/* Devices.
 *
 * A communicator has a device if its banyan_comm_config names one.
 *
 * - Memory. Collectives take any memory that the device can read and write. It is not shared with peers; only the
 *   arenas are. If the device cannot reach its first byte, by what the driver reports, the call returns
 *   BANYAN_ERR_ARGUMENT and names the field. Plain host memory is rejected, unless devices share the page tables of the
 *   machine, and so is the memory of another device without peer access. Accepted allocations are remembered.
 * - Streams. Collectives are ordered on a stream, return at once and synchronise nothing. A barrier blocks the stream,
 *   not the caller, until the streams of all ranks have reached it.
 * - Graphs. The first call of a shape, and each *_init, waits for the other ranks, and allocates. Every later call may
 *   be captured in a graph, which may be replayed any number of times if all ranks replay it alike. The runs of a
 *   communicator come in the same order on all ranks, and one after another; on several streams the caller ensures
 *   that.
 * - Errors of runs arrive later, at banyan_comm_status(). All runs of this rank have ended before
 *   banyan_comm_destroy().
 * - Several communicators. Drivers may wait for all kernels of the process when memory is freed or kernels are loaded.
 *   So make or destroy a communicator, or make the first call of a shape, only while no kernel of the process waits for
 *   one that the same thread has yet to launch for another communicator.
 * - Several nodes. If devices of different nodes share no memory, each communicator has one thread of the library that
 *   exchanges data between nodes. Collectives other than combines then move host memory, and return when complete. */

/* Sets the stream (a cudaStream_t of the communicator's device) of calls without one: allgather, shift, broadcast,
 * barrier, and combines whose desc.stream is NULL. NULL, the initial value: the device's default stream. Persistent
 * operations keep the stream that was set when they were made. Local, not compared. */
banyan_status banyan_comm_set_stream(banyan_comm *comm, void *stream);

/* Sets the caller's tag, such as the number of a layer, for all operations that start from now on. The flight recorder,
 * traces, probes and errors show it. Local, not compared; runs on devices have no tag. BANYAN_TAG_NONE, the initial
 * value, or any other number below 0: none. A comm of NULL is allowed. */
#define BANYAN_TAG_NONE (-1)
void banyan_comm_set_tag(banyan_comm *comm, int64_t tag);

/* Return the caller's rank, from 0, and the number of ranks. NULL is allowed: -1. */
int32_t banyan_comm_rank(const banyan_comm *comm);
int32_t banyan_comm_nranks(const banyan_comm *comm);

/* Return the failure that ended this communicator, or BANYAN_OK; its text, owned by the communicator ("": none); and
 * the rank that caused it (-1: none known). NULL is allowed: BANYAN_ERR_ARGUMENT, "" and -1. */
banyan_status banyan_comm_status(const banyan_comm *comm);
const char *banyan_comm_error(const banyan_comm *comm);
int32_t banyan_comm_failed_rank(const banyan_comm *comm);

/* Describes in one paragraph what was found and chosen: ranks, transport, CPU kernels, arena. Writes at most `bytes`
 * bytes including the final NUL and returns the length of the whole text, as snprintf does. */
size_t banyan_comm_describe(const banyan_comm *comm, char *text, size_t bytes);

/* Writes this rank's counters as Prometheus text: operations finished on the host and bytes contributed to them, by
 * collective; and waits of BANYAN_METRICS_WAIT_US or more, by the rank waited for. Returns as above; 0 if
 * BANYAN_FLIGHT is off. Not while another thread uses the communicator. */
size_t banyan_comm_metrics(const banyan_comm *comm, char *text, size_t bytes);

/* Loads the network library that connects ranks of several nodes (UCX), and describes it and whether it moves memory of
 * CUDA devices. The text is cut to `bytes`. BANYAN_ERR_UNSUPPORTED if it cannot be loaded; banyan_last_error() says
 * why. */
banyan_status banyan_network_describe(char *text, size_t bytes);

/* ---- partials ---------------------------------------------------------------------------------------------------- */

/* Types of numbers in memory and on the wire. E4M3 and E5M2 are the eight-bit floats of OCP (e4m3fn: no infinity,
 * largest 448; e5m2: largest 57344). They and I8 are types of values and keys, never of statistics. As a wire, E4M3 has
 * a power-of-two scale for each 32 values of a row. Values are rounded to nearest even. Values beyond the largest
 * number of an eight-bit type become that number; NaN stays NaN. */
typedef enum banyan_dtype {
  BANYAN_F32 = 1,
  BANYAN_F16,
  BANYAN_BF16,
  BANYAN_E4M3,
  BANYAN_E5M2,
  BANYAN_I8 /* only for keys and values of attention on the host */
} banyan_dtype;

/* Values of a row: normalised (o = n / d, what attention kernels usually return) or the numerator n itself. */
typedef enum banyan_values { BANYAN_VALUES_NORMALISED = 1, BANYAN_VALUES_NUMERATOR } banyan_values;

/* Statistics of a row: lse = m + log d in one array, or m and d in two. On output m is a whole number in base 2 (in
 * base e, that times ln 2) that is no less than the maximum logit, so that rescaling is exact. If the type cannot hold
 * the lse or m of a row, that rank gets BANYAN_ERR_DATA with the number of the row; all other rows are right. */
typedef enum banyan_stats { BANYAN_STATS_LSE = 1, BANYAN_STATS_MAX_SUM } banyan_stats;

/* Base of the logarithm and the exponentials: natural (FlashAttention, FlashMLA) or 2 (FlashInfer). */
typedef enum banyan_base { BANYAN_BASE_E = 1, BANYAN_BASE_2 } banyan_base;

/* The lse (or m) of a row without keys, which is an empty row. -inf always means empty, and so does d = 0. On input
 * these are flags: or them together. A +inf or NaN without its flag is BANYAN_ERR_DATA and names the row. On output set
 * exactly one of NEG_INF, POS_INF and BELOW, which writes empty_below. Values of an empty row are never read, and are
 * written as 0. */
enum {
  BANYAN_EMPTY_NEG_INF = 1, /* -inf */
  BANYAN_EMPTY_POS_INF = 2, /* +inf (FlashAttention-2, FlashMLA) */
  BANYAN_EMPTY_NAN = 4,     /* NaN */
  BANYAN_EMPTY_BELOW = 8    /* any value <= empty_below, such as -FLT_MAX or -49994 */
};

/* Partials of [tokens][heads] rows in the caller's memory. Strides are in elements, and a row's values are contiguous,
 * so strides express any order of tokens and heads. Input and output may share memory only if each row has the same
 * address and type in both. Any other overlap of arrays, also of two arrays of one output, is BANYAN_ERR_ARGUMENT.
 * Interleaved arrays do not overlap if they have a stride in common and lie in different columns. Do not touch input or
 * output between start and wait. */
typedef struct banyan_partial {
  size_t size;
  void *values;                /* [tokens][heads][value_dim]; may be NULL if value_dim is 0 */
  int64_t values_token_stride; /* elements from a token to the next */
  int64_t values_head_stride;  /* elements from a head to the next */
  banyan_dtype values_dtype;
  banyan_values values_kind;
  void *lse; /* [tokens][heads]: lse, or m with BANYAN_STATS_MAX_SUM; NULL on output: not wanted */
  void *sum; /* [tokens][heads]: d, with BANYAN_STATS_MAX_SUM only */
  int64_t stats_token_stride;
  int64_t stats_head_stride;
  banyan_dtype stats_dtype;
  banyan_stats stats_kind;
  banyan_base base;
  uint32_t empty;            /* BANYAN_EMPTY_* */
  double empty_below;        /* for BANYAN_EMPTY_BELOW */
  const float *values_scale; /* for values of E4M3 and E5M2: a value is what memory holds times the scale. Read at each
                              * run. On the host a scale that is not finite or not above 0 is BANYAN_ERR_ARGUMENT
                              * and names the head; kernels of a device do not check it. NULL: 1 */
  int64_t values_scale_stride; /* from the scale of a head to the next, in scales; 0: one for all heads. Heads are those
                                * of this descriptor: with BANYAN_SCATTER_HEADS the range of this rank */
} banyan_partial;

/* Sets `size` and no other field; see banyan_partial_init(). */
/* clang-format off */
#define BANYAN_PARTIAL_INIT \
  {sizeof(banyan_partial), NULL, 0, 0, (banyan_dtype)0, (banyan_values)0, NULL, NULL, 0, 0, (banyan_dtype)0, \
   (banyan_stats)0, (banyan_base)0, 0, 0, NULL, 0}
/* clang-format on */

/* Fills `partial` for contiguous [tokens][heads][value_dim] values and [tokens][heads] statistics: normalised values,
 * lse in base e, -inf for empty rows, both of the given dtypes. Edit it where memory differs. Local. */
void banyan_partial_init(banyan_partial *partial, void *values, banyan_dtype values_dtype, void *lse,
                         banyan_dtype stats_dtype, int32_t heads, int32_t value_dim);

/* Kernels and engines whose conventions the library knows. Statistics are f32. */
typedef enum banyan_preset {
  BANYAN_PRESET_FLASH_ATTENTION_2 = 1, /* softmax_lse [heads][tokens], base e; +inf: empty */
  BANYAN_PRESET_FLASH_ATTENTION_3,     /* softmax_lse [heads][tokens], base e; -inf: empty */
  BANYAN_PRESET_FLASHINFER,            /* lse [tokens][heads], base 2; -inf: empty */
  BANYAN_PRESET_FLASHMLA,              /* lse [tokens][heads], base e; +inf: empty */
  BANYAN_PRESET_TENSORRT_LLM_HELIX,    /* pairs of m and d, [tokens][heads][2], base e; -inf: empty */
  BANYAN_PRESET_GGML, /* f32 rows of m, d and numerators, [tokens][heads][2 + value_dim], base e; `values`
                       * is NULL */
  BANYAN_PRESET_TORCH /* lse [tokens][heads], base e; -inf: empty. The CPU's kernel leaves 0 in rows that are
                       * fully masked: select the valid rows by banyan_valid_rows */
} banyan_preset;

/* Fills `partial` as banyan_partial_init() does, in the convention of a preset: contiguous [tokens][heads][value_dim]
 * values, normalised except for GGML. If a kernel has dimensions for sequences and tokens, one token per sequence is
 * assumed. BANYAN_ERR_ARGUMENT: there is no such preset, or `values` is not NULL for GGML. Local. */
banyan_status banyan_partial_preset(banyan_partial *partial, banyan_preset preset, void *values,
                                    banyan_dtype values_dtype, void *stats, int32_t tokens, int32_t heads,
                                    int32_t value_dim);

/* ---- collectives ------------------------------------------------------------------------------------------------- */

/* Where the merged rows go. With HEADS and TOKENS rank r gets the range of banyan_split(), and its output descriptor
 * describes only that range. */
typedef enum banyan_scatter {
  BANYAN_SCATTER_NONE = 0, /* all rows on every rank */
  BANYAN_SCATTER_ROOT,     /* all rows on `root`; others pass NULL as output */
  BANYAN_SCATTER_HEADS,    /* all tokens of a range of heads */
  BANYAN_SCATTER_TOKENS    /* all heads of a range of tokens */
} banyan_scatter;

/* The order in which partials are merged. All give the same bits on every rank and in every run.
 *
 * - PLAN: as suits the algorithm chosen.
 * - CANONICAL: a fixed balanced tree over ranks, so that the bits do not depend on algorithm, transport, placement of
 *   ranks or batch either.
 * - EXACT: sums of integers on an absolute grid, which commute and associate (docs/numbers.md). The bits depend only on
 *   the partials, so ranks may be permuted. A row differs from the exact sum by less than N 2^-42 of its largest value,
 *   with N partials, at most 2^20. Values and d are rounded once, at the end. The wire format is its own, 17 bytes for
 *   each value and 40 for a row: leave `wire` 0 or BANYAN_F32. Within banyan_attention_combine() each 256 keys are a
 *   partial, so the bits do not depend on the number of ranks either. Devices that share memory support it for
 *   banyan_combine() and its *_init, by "oneshot" with f32 on the wire; their last bit may differ from the host's. They
 *   do not support it for attention or within a kernel. */
typedef enum banyan_order { BANYAN_ORDER_PLAN = 0, BANYAN_ORDER_CANONICAL, BANYAN_ORDER_EXACT } banyan_order;

/* Divides `count` things among `parts` (at least 1) owners and writes the range of owner `index`, [*first, *first +
 * *number). Sizes differ by at most one, the larger ones first; a range may be empty. Local. */
void banyan_split(int32_t count, int32_t parts, int32_t index, int32_t *first, int32_t *number);

/* How to treat rows of the result for which no rank has keys and attention has no sink. WRITTEN: they are written as
 * empty rows. KEPT: their values and statistics stay as they were. */
typedef enum banyan_empty_rows { BANYAN_EMPTY_ROWS_WRITTEN = 0, BANYAN_EMPTY_ROWS_KEPT } banyan_empty_rows;

/* Selects the valid rows of a run. Use it when a kernel leaves statistics undefined for rows that it skips: masked rows
 * are never read on this rank, and count as rows without keys.
 *
 * The struct itself is read by the blocking call or the *_init. The arrays that it points to are read at each run, by
 * banyan_start() or the blocking call, and may change once that has returned.
 *
 * - Only the number of tokens must agree on all ranks, and whether `tokens` is NULL. A difference is
 *   BANYAN_ERR_MISMATCH, whose text names the rank and both numbers.
 * - Invalid contents (a negative or too large number of tokens, a negative length, starts that decrease or end past the
 *   tokens) are BANYAN_ERR_ARGUMENT, whose text names index and value.
 * - On a device only kernels read the arrays, at each run and each replay of a graph, in memory that the device can
 *   read. The number of tokens is then clamped to the allowed range, and a negative length counts as 0. Wrong starts
 *   end the run on all ranks. A difference in tokens is found by the next run at the latest. banyan_comm_status()
 *   reports both. All ranks name the rank; those whose kernels noticed it report the numbers. Between nodes, devices
 *   send tokens that a run does not have as empty rows, and compare numbers only within a node.
 * - The caller's kernel can query the valid rows, see banyan_device.cuh. Attention knows which rows have keys, so the
 *   descriptor of its combine has no seq_lens and no query_start_loc. */
typedef struct banyan_valid_rows {
  size_t size;
  const int32_t *tokens;          /* tokens of this run, 0 to desc.tokens: rows past them are neither read nor written.
                                   * BANYAN_SCATTER_TOKENS divides them by banyan_split(*tokens, nranks, rank).
                                   * NULL: desc.tokens */
  int32_t batch;                  /* sequences: 0 without seq_lens and query_start_loc, else at least 1 unless
                                   * desc.tokens is 0 */
  const int32_t *seq_lens;        /* [batch]: this rank's keys of each sequence; 0: no valid rows. NULL: all
                                   * sequences have keys */
  const int32_t *query_start_loc; /* [batch + 1]: the first token of each sequence, then the end of the last. Tokens
                                   * before the first start and from that end on are padding: masked, whatever seq_lens
                                   * and token_mask contain. NULL: one token per sequence, and sequences past the tokens
                                   * are ignored */
  const uint8_t *token_mask;      /* [tokens]: rows of a token with 0 are masked. NULL: no token is masked */
  banyan_empty_rows empty_rows;
} banyan_valid_rows;

/* clang-format off */
#define BANYAN_VALID_ROWS_INIT {sizeof(banyan_valid_rows), NULL, 0, NULL, NULL, NULL, BANYAN_EMPTY_ROWS_WRITTEN}
/* clang-format on */

/* Describes a combine. All fields except `stream` and `valid` must be equal on all ranks. A difference is
 * BANYAN_ERR_MISMATCH, whose text names the rank and the field. */
typedef struct banyan_combine_desc {
  size_t size;
  int32_t tokens; /* rows are tokens x heads, at most 2^31 - 1; 0 is allowed. With valid->tokens this is the upper
                   * bound, and the plan serves every number up to it */
  int32_t heads;
  int32_t value_dim; /* elements of a row's values, at most 65536; 0 merges statistics alone */
  banyan_dtype wire; /* values in flight: F32, F16, BF16, or E4M3 with a scale for each 32 values of a row, for which
                      * banyan_device_combine_init() returns BANYAN_ERR_UNSUPPORTED. Statistics always travel as f32. A
                      * lossy wire also rounds with one rank. An F16 wire saturates: never up to 65504, always from
                      * 131008 on; banyan_op_info counts such values. 0: BANYAN_F32 */
  banyan_scatter scatter;
  int32_t root; /* for BANYAN_SCATTER_ROOT */
  banyan_order order;
  const char *algorithm; /* "oneshot", "twoshot", "recursive", "tree", "ring", "levels", or a variant of one such as
                            * "recursive_halving"; see docs/algorithms.md. NULL: by predicted cost */
  void *stream;          /* a cudaStream_t of the communicator's device; NULL: that of banyan_comm_set_stream(). Not
                          * compared. Ranks that share a device need a stream each: on a common one their kernels
                          * would take turns, and wait for each other until the deadline */
  const banyan_valid_rows *valid; /* the valid rows; NULL: all of them */
} banyan_combine_desc;

/* clang-format off */
#define BANYAN_COMBINE_DESC_INIT \
  {sizeof(banyan_combine_desc), 0, 0, 0, BANYAN_F32, BANYAN_SCATTER_NONE, 0, BANYAN_ORDER_PLAN, NULL, NULL, NULL}
/* clang-format on */

/* Merges the partials of all ranks. `in`: this rank's partial of all tokens x heads rows (a rank without keys gives
 * empty rows, or masks them by desc->valid). `out`: the result in any convention, with lse if out->lse is set.
 *
 * A call plans for a class of tokens, those up to the next power of two. Calls of one class share a plan, so a change
 * of tokens within it takes no barrier and allocates nothing. With BANYAN_ORDER_PLAN the bits of a row may depend on
 * the class. Within a class they do not depend on the number of tokens, unless tokens are scattered.
 * banyan_comm_describe() counts plans.
 *
 * A row's values differ from the exact ones by at most e A, as lengths of vectors, where A is the mean of |v| over
 * ranks by weight and e = 2e-6 + (u + 2^-23) R. u is the rounding of the wire (F32: 0, F16: 2^-11, BF16: 2^-8), and R
 * the number of roundings (banyan_op_info). The rounding to the output's type comes on top. A row may count as 0 if its
 * weight is below 2^-46 of the largest. docs/numbers.md has E4M3, large logits and values, and the range of each
 * type. */
banyan_status banyan_combine(banyan_comm *comm, const banyan_combine_desc *desc, const banyan_partial *in,
                             const banyan_partial *out);

/* Gathers the bytes of each rank on all ranks: `all` receives them in rank order. counts[r] is the number of bytes of
 * rank r, identical on all ranks. `mine` may be its own part of `all`; otherwise they must not overlap. */
banyan_status banyan_allgather(banyan_comm *comm, const void *mine, void *all, const size_t *counts);

/* Describes a tensor [tokens][heads][dim] whose heads are divided among ranks, as Q is under tensor parallelism. Rank r
 * has counts[r] heads, which follow those of rank r - 1. All fields except strides, `stream` and `valid` must be equal
 * on all ranks, and so must the number of tokens of a run; a difference is BANYAN_ERR_MISMATCH. Strides may be
 * negative. Gaps between rows are not written. */
typedef struct banyan_heads_desc {
  size_t size;
  int32_t tokens; /* with valid->tokens the upper bound of a run */
  int32_t heads;  /* heads of all ranks */
  int32_t dim;    /* elements of a head, 1 to 65536 */
  banyan_dtype dtype;
  const int32_t *counts; /* [nranks]: heads of each rank, which add up to `heads`. NULL: divided by banyan_split() */
  int64_t mine_token_stride, mine_head_stride; /* strides of this rank's share. Both 0: contiguous */
  int64_t all_token_stride, all_head_stride;   /* strides of the result. Both 0: contiguous */
  void *stream;                                /* as in banyan_combine_desc */
  const banyan_valid_rows *valid;              /* only `tokens` is used; NULL: all tokens */
} banyan_heads_desc;

/* clang-format off */
#define BANYAN_HEADS_DESC_INIT {sizeof(banyan_heads_desc), 0, 0, 0, (banyan_dtype)0, NULL, 0, 0, 0, 0, NULL, NULL}
/* clang-format on */

/* Gathers the heads of each rank on all ranks: `all` receives [tokens][heads][dim]. `mine` may be its own part of
 * `all`, with the strides of `all`. Otherwise they must not overlap: they are separate memory, or have one token stride
 * and lie in different columns. Plans by classes of tokens, as banyan_combine() does. On a device it is one launch; if
 * devices of several nodes share no memory, it moves host memory, and `valid` is in host memory too. */
banyan_status banyan_allgather_heads(banyan_comm *comm, const banyan_heads_desc *desc, const void *mine, void *all);

/* Sends `bytes` from `send` to rank + distance and receives as many from rank - distance, modulo the number of ranks.
 * `bytes` and `distance` must be equal on all ranks, and `send` and `receive` must not overlap. */
banyan_status banyan_shift(banyan_comm *comm, const void *send, void *receive, size_t bytes, int32_t distance);

/* Copies `bytes` at `data` from `root` to all. */
banyan_status banyan_broadcast(banyan_comm *comm, void *data, size_t bytes, int32_t root);

/* Returns when all ranks have called it; on a device see "Devices". Writes before it on any rank, also to memory that
 * ranks share by other means, are visible after it on all ranks. */
banyan_status banyan_barrier(banyan_comm *comm);

/* ---- persistent operations: planned once, started many times ----------------------------------------------------- */

/* A persistent operation. The *_init calls are collective: they plan, compare plans over all ranks, and bind the memory
 * and the stream of the call. banyan_op_free() frees the operation.
 *
 * - Between start and wait nothing is allocated and no lock is taken, with four exceptions. The network's library may
 *   do so, and between nodes the first runs do. With several threads of attention on the host, start wakes sleeping
 *   threads with a lock and a system call, and allocates if a run needs more scratch memory than all runs before it.
 *   Attention that prunes or reads ahead allocates memory for each run. BANYAN_TRACE and BANYAN_METRICS write files.
 * - On a device a run completes in the order of its stream: start enqueues it, and test and wait report it as done.
 * - Operations of one communicator run in the order in which they were started, which is the same on all ranks. Several
 *   may be started before the first wait. */
typedef struct banyan_op banyan_op;
banyan_status banyan_combine_init(banyan_comm *comm, const banyan_combine_desc *desc, const banyan_partial *in,
                                  const banyan_partial *out, banyan_op **op);
banyan_status banyan_allgather_init(banyan_comm *comm, const void *mine, void *all, const size_t *counts,
                                    banyan_op **op);
banyan_status banyan_allgather_heads_init(banyan_comm *comm, const banyan_heads_desc *desc, const void *mine, void *all,
                                          banyan_op **op);
banyan_status banyan_shift_init(banyan_comm *comm, const void *send, void *receive, size_t bytes, int32_t distance,
                                banyan_op **op);
banyan_status banyan_broadcast_init(banyan_comm *comm, void *data, size_t bytes, int32_t root, banyan_op **op);
banyan_status banyan_barrier_init(banyan_comm *comm, banyan_op **op);

/* A run of an operation is a start, followed by a wait, or by tests until it is done. */
banyan_status banyan_start(banyan_op *op);           /* does what it can without waiting */
banyan_status banyan_test(banyan_op *op, int *done); /* makes progress; *done = 1: complete, may be started again */
banyan_status banyan_wait(banyan_op *op);
void banyan_op_free(banyan_op *op); /* NULL is allowed; local; not between start and wait */

/* The value of a banyan_op_info field that is not known. */
#define BANYAN_NOT_COUNTED UINT64_MAX

/* How an operation was planned, and what it has sent. */
typedef struct banyan_op_info {
  size_t size;
  const char *algorithm; /* valid until banyan_op_free() */
  const char *reason;    /* why it was chosen: every candidate with its predicted time. Valid as long */
  double predicted_us;
  uint64_t bytes_sent; /* by this rank in the last run: the payload counts once for each receiver */
  uint64_t messages_sent;
  uint64_t arena_bytes;         /* arena memory used by this operation, on this rank */
  uint64_t plan_hash;           /* covers all that decides what runs; identical on all ranks */
  uint64_t bytes_between_nodes; /* the part of bytes_sent that was passed to the network, for ranks of other nodes */
  uint64_t roundings; /* how often a value is rounded to a lossy wire on its way from a rank into the result, at most:
                       * R in the bound of banyan_combine(). 0 for an f32 wire */
  uint64_t saturated; /* finite values of this rank in the last run that the wire cannot hold; they became the
                       * largest number of its type. BANYAN_NOT_COUNTED for a lossy wire on a device, because a
                       * run there may still be in progress, or be replayed by a graph */
} banyan_op_info;

/* clang-format off */
#define BANYAN_OP_INFO_INIT {sizeof(banyan_op_info), NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0}
/* clang-format on */

/* Fills `info`, whose size the caller has set. Fields that the library does not know become zero. Local. */
banyan_status banyan_op_query(const banyan_op *op, banyan_op_info *info);

/* Describes what this rank runs: its steps, one per line, and the kernel on a device. Writes and returns as
 * banyan_comm_describe() does. Local. */
size_t banyan_op_describe(const banyan_op *op, char *text, size_t bytes);

/* ---- combine within the caller's kernel -------------------------------------------------------------------------- */

/* Makes an operation for an attention kernel that pushes its partials from its epilogue and merges them itself: see
 * banyan_device.cuh. Collective, once for each shape. desc->algorithm is NULL or "oneshot", and desc->stream is
 * ignored. With desc->valid one shape serves every number of tokens up to desc->tokens. A run is one launch of that
 * kernel on all ranks, in the common order of runs; banyan_start() rejects the operation. BANYAN_ERR_UNSUPPORTED: the
 * communicator has no device, more than 72 ranks, or arenas in host memory; the wire is E4M3; or the order is exact, or
 * canonical on a lossy wire. */
banyan_status banyan_device_combine_init(banyan_comm *comm, const banyan_combine_desc *desc, banyan_op **op);

/* Writes `combine`, a banyan_device_combine of `bytes` bytes, which the kernel takes by value. Local, allocates
 * nothing: may be called for each launch. The result is valid for launches and graphs until banyan_comm_destroy(), also
 * after banyan_op_free().
 *
 * - `rows` describes the pushed rows (kinds, base, empty). Pointers and strides are ignored; dtypes are BANYAN_F32.
 * - `out` is as for banyan_combine().
 * - `blocks` is how many blocks of the kernel fit on the device at once. A lower number leaves more of the device to
 *   others. */
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
