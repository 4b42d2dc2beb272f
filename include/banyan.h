/* SPDX-License-Identifier: Apache-2.0
 *
 * banyan: merges attention partials across devices in one topology-aware collective.
 *
 * When a KV cache is sharded along the sequence, each rank attends to its own shard. For each (query token, head) row
 * it then holds a *partial*: a number m near the maximum logit, the denominator d = sum exp(t - m) and the numerator n
 * = sum exp(t - m) v. Any m will do, as long as d and n are relative to it. banyan_combine() merges the partials of all
 * ranks into attention over the whole cache.
 *
 * A program gets a banyan_bootstrap (how ranks find each other) and creates a communicator. It calls collectives in the
 * same order on every rank, and destroys the communicator. */
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
 * - A *node* is a machine. "Host" is the CPU side of it and "device" an accelerator, so host memory is a node's plain
 *   memory.
 * - A *local* call involves no other rank. A *collective* call is made by all ranks of its communicator, in the same
 *   order.
 * - Sizes are in bytes where their names say so, times in ns, strides in elements.
 * - Memory that a call is given remains the caller's. What a call makes is freed by the call named beside it, and these
 *   accept NULL.
 * - A struct that begins with `size` needs it set to sizeof of the struct. BANYAN_COMM_CONFIG_INIT and the like do so,
 *   in C and in C++. A field that is zero takes its default, except the enums of banyan_partial, which have none:
 *   nothing about the meaning of memory is guessed.
 * - Later versions append fields. A program therefore runs with an older library, and with a newer one. A field that
 *   the struct lacks counts as zero. One that the library does not know must be zero, or the call is
 *   BANYAN_ERR_ARGUMENT. */

/* ---- status ---------------------------------------------------------------------------------------------------- */

/* Returns "0.1.0": the version of the library that runs, not of the header compiled against. Static. */
const char *banyan_version(void);

/* The outcome of a call. */
typedef enum banyan_status {
  BANYAN_OK = 0,
  BANYAN_ERR_ARGUMENT,    /* an argument is wrong, and this rank sent nothing. Whether the communicator remains usable,
                           * "Errors" says */
  BANYAN_ERR_MEMORY,      /* out of memory, or a message larger than the arena allows */
  BANYAN_ERR_SYSTEM,      /* the operating system refused something */
  BANYAN_ERR_UNSUPPORTED, /* not on this machine or not in this build */
  BANYAN_ERR_DATA,        /* statistics that no row has: a d below 0, or NaN or +inf not declared to mean an empty row.
                           * Or a row of the result that out->stats_dtype cannot hold */
  BANYAN_ERR_STATE,       /* a call in the wrong order */
  BANYAN_ERR_BOOTSTRAP,   /* ranks could not find or authenticate each other */
  BANYAN_ERR_TIMEOUT,     /* the deadline passed; banyan_comm_failed_rank() names the rank that was waited for */
  BANYAN_ERR_PEER,        /* a rank died, left, or refused its call */
  BANYAN_ERR_MISMATCH,    /* ranks called with different shapes, dtypes, algorithms or in different order */
  BANYAN_ERR_ABORTED      /* banyan_comm_abort() was called, here or on another rank */
} banyan_status;

/* Errors.
 *
 * - Every call that can fail returns a banyan_status, and writes its results only on BANYAN_OK. banyan_last_error() is
 *   the text of this thread's last failure: what was wrong, where, on which rank, and what to do.
 * - A failure that involves other ranks (timeout, dead peer, mismatch, abort, bad data) ends the communicator on every
 *   rank. Later calls return the same status. banyan_comm_shrink() makes another one of the ranks that are left.
 * - A collective that this rank refuses for itself (a wrong argument, no memory) counts as a call, and others need not
 *   wait for it. They get BANYAN_ERR_PEER with the text and the name of the rank that refused.
 * - Ranks compare the first call of a shape, and every *_init. If one refuses there, nothing was sent, and the
 *   communicator remains usable on all ranks. In later calls and in runs of persistent operations peers may have sent
 *   already. The communicator then ends on all ranks as soon as one of them needs what the refused call would have
 *   sent. The rank that refused learns of it by banyan_comm_status(), and at the latest by its next call. If all ranks
 *   refuse the same call, it remains usable.
 * - A rank that comes late learns the last eight refusals, and those that a rank makes one after another count as
 *   one. A rank further behind waits to its deadline.
 * - On a device two refusals are not reported, and kernels of peers wait to their deadline: that of a blocking call,
 *   unless its planning fails, and that of a start. A rank whose peers do not refuse the same calls
 *   banyan_comm_abort(), which ends them at once.
 * - An operation before that of a death or of bad data completes on each rank that has all it needs. */

/* Returns "timeout" for BANYAN_ERR_TIMEOUT and so on; never NULL. Static. */
const char *banyan_status_string(banyan_status status);

/* Returns the text of the last failure in the calling thread, "" before the first. Valid until the thread's next banyan
 * call. */
const char *banyan_last_error(void);

/* ---- bootstrap: how ranks find each other ------------------------------------------------------------------------ */

/* Rank, size and one blocking allgather. Supply your own, or use one of the makers below.
 *
 * In allgather every rank gives `bytes` bytes at `mine`, and `all` receives nranks * bytes in rank order. It returns 0
 * on success, anything else on failure, and may say more by `return banyan_bootstrap_fail(...)`. It gives up after
 * timeout_ns, because nobody else notices that a rank does not come. It is called only inside banyan_comm_create(). */
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

/* Makes `text` this thread's banyan_last_error() and returns `status`. For an allgather of your own:
 * banyan_comm_create() then gives both to its caller. */
banyan_status banyan_bootstrap_fail(banyan_status status, const char *text);

/* Ranks that are threads of this process: one group of nranks, then one bootstrap for each thread. The group is
 * destroyed when all of them have their communicators. These use plain memory and no system resources. */
typedef struct banyan_threads banyan_threads;
banyan_status banyan_threads_create(int32_t nranks, banyan_threads **group);
banyan_status banyan_threads_bootstrap(banyan_threads *group, int32_t rank, banyan_bootstrap *bootstrap);
void banyan_threads_destroy(banyan_threads *group); /* NULL is allowed */

/* Ranks that a launcher describes by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun does. Collective, and
 * bounded by timeout_ns (0: 30 s), but for the time that the system takes to look MASTER_ADDR up, which is repeated
 * until then. Destroy it as soon as the communicator is made.
 *
 * - Under torchrun, whose own store owns MASTER_PORT, rank 0 takes a free one of 16 ports that follow from the run's id
 *   and MASTER_PORT. BANYAN_PORT overrides them.
 * - Without RANK and WORLD_SIZE, the variables of Open MPI, PMI and Slurm say rank and size.
 * - All ranks must be of one job: by BANYAN_JOB, else by the id that torchrun, mpirun or Slurm gives. Two jobs without
 *   an id need different ports.
 * - Ranks connect over TCP and authenticate both ways with the secret of BANYAN_SECRET, or of the file
 *   BANYAN_SECRET_FILE (mode 0600). It is required unless MASTER_ADDR is a loopback address, or LOCAL_WORLD_SIZE equals
 *   WORLD_SIZE: then there is one node, and MASTER_ADDR is not looked up. Without a secret all ranks must be processes
 *   of one user on one node, which the kernel vouches for.
 * - Rank 0 listens at MASTER_ADDR, or where BANYAN_INTERFACE says: eth0, an address, or a network such as
 * 10.0.0.0/8. */
typedef struct banyan_env banyan_env;
banyan_status banyan_env_create(int64_t timeout_ns, banyan_env **env, banyan_bootstrap *bootstrap);
void banyan_env_destroy(banyan_env *env); /* NULL is allowed */

/* From an MPI_Comm: see banyan_mpi.h (its own library, so that this one never links MPI). */

/* ---- communicator ------------------------------------------------------------------------------------------------ */

/* A communicator: ranks that call collectives together.
 *
 * One thread at a time may use a communicator and its operations. banyan_comm_abort() alone may be called from any
 * thread. Different communicators are independent. The child of a fork may free its copies of operations and destroy
 * those of communicators, which neither its parent nor its peers notice. Its other calls on them return
 * BANYAN_ERR_STATE, and banyan_comm_abort() does nothing. */
typedef struct banyan_comm banyan_comm;

/* Settings of a communicator. */
typedef struct banyan_comm_config {
  size_t size;
  int64_t timeout_ns;    /* deadline of each call, from when it first has to wait; of each part, if it is sent in parts;
                         * of an operation that is polled, from the first banyan_test(). The caller's own time between
                         * banyan_start() and these does not count. 0: 30 s, and ten minutes on a device, as a peer may
                         * be compiling kernels (BANYAN_TIMEOUT_MS overrides the default) */
  size_t arena_bytes;    /* memory shared with peers, per rank, 64 KiB to 16 GiB. Larger messages are sent in parts. A
                         * value below 16 MiB is raised to what any algorithm needs for a row of 128 f32 values among
                         * this many ranks (9 ranks: about 140 KiB; banyan_comm_describe() says it). A longer row that
                         * does not fit is BANYAN_ERR_MEMORY with the size that it needs. 0: 16 MiB, and on a device 256
                         * MiB: attention of up to 8192 rows (batch x heads) of 512 values is then combined within its
                         * kernel (BANYAN_ARENA_KIB overrides the default) */
  const char *algorithm; /* for combines that name none, see banyan_combine_desc; NULL: by predicted cost
                          * (BANYAN_ALGORITHM overrides) */
  const char *device;    /* where collectives run. NULL: on the host. "cuda": on the calling thread's current CUDA
                         * device; "cuda:2": on that one; "cuda:local": on that of the variable LOCAL_RANK. All ranks
                         * have a device of the same kind, or none */
  int64_t first_timeout_ns; /* deadline of the first call of a shape, and of each *_init, in which ranks wait for each
                             * other to plan, load and allocate. 0: timeout_ns, but on a device ten minutes at least
                             * (BANYAN_FIRST_TIMEOUT_MS overrides the default) */
  int64_t threads; /* per rank with its caller, for attention on the host; at most 1024. They start with the first
                    * attention and are bound to the cores of the caller's binding, which ranks that share these cores
                    * divide. Results have the same bits for any number. 0: one for each of these cores, or as many as
                    * a CPU quota of its control group allows, or as can be started (BANYAN_THREADS overrides the
                    * default). Pools of threads do not know each other, so a program that runs OpenMP regions at the
                    * same time sets it. OMP_PROC_BIND may bind the thread that makes the communicator to one core: 0
                    * then counts that core alone */
} banyan_comm_config;

/* clang-format off */
#define BANYAN_COMM_CONFIG_INIT {sizeof(banyan_comm_config), 0, 0, NULL, NULL, 0, 0}
/* clang-format on */

/* Makes a communicator. Collective over all ranks of the bootstrap, which may be freed afterwards. config may be
 * NULL. */
banyan_status banyan_comm_create(const banyan_bootstrap *bootstrap, const banyan_comm_config *config,
                                 banyan_comm **comm);

/* Frees a communicator with all that it has; its operations must be freed before. Local; NULL is allowed. Peers that
 * still wait for this rank get BANYAN_ERR_PEER. On one node it returns at once. Between nodes it waits until peers have
 * received what this rank has sent: a round trip, and 0.5 s if a peer does not look (0.05 s after a failure; 0.2 s more
 * if a peer is stopped while it connects). */
void banyan_comm_destroy(banyan_comm *comm);

/* Ends every running and later call on this communicator, on all ranks, with BANYAN_ERR_ABORTED. Any thread, any time;
 * waits for no peer. `reason` (may be NULL) becomes part of the error text on this rank. Where a connection between
 * nodes accepts nothing more, the abort is sent when this rank next waits, or destroys the communicator. */
void banyan_comm_abort(banyan_comm *comm, const char *reason);

/* Refuses the next collective call for this rank, as the library does for an argument that is wrong (see "Errors"). It
 * is for layers above, whose own checks fail before they call: peers get BANYAN_ERR_PEER with `why`, and do not wait.
 * `status` is not BANYAN_OK. init: the call is a *_init (0 or 1). Returns `status`, with `why` as
 * banyan_last_error(). */
banyan_status banyan_comm_refuse(banyan_comm *comm, banyan_status status, const char *why, int init);

/* While a call of this thread waits for other ranks on the host, `check` is called about every 50 ms, so that a runtime
 * can run its handlers of signals. If it returns nonzero, the call fails, and a communicator that exists is aborted as
 * by banyan_comm_abort(); later waits of the thread end likewise, until the next banyan_on_wait(). NULL: none, as at
 * first. Local, and of the calling thread alone. */
void banyan_on_wait(int (*check)(void *context), void *context);

/* Makes a communicator of the ranks that are left after a failure, in the order of their ranks and with the settings of
 * the old one. Collective over them, and once; all call it within the deadline of a call.
 *
 * - Left out are ranks that died or left, the one that a timeout named, and those that do not call in time. Such a rank
 *   gets BANYAN_ERR_PEER if it lives and calls.
 * - `members` (may be NULL) has room for all old ranks and receives the old rank of each new one.
 * - The old communicator stays as it is, and the caller destroys it, before or afterwards.
 * - It takes three deadlines of a call at most, and one and a half more for each rank that stops meanwhile.
 * - All ranks that live and go on get the same communicator, or none. A rank that stopped at the very end may still be
 *   a member; the first call then reports it. */
banyan_status banyan_comm_shrink(banyan_comm *comm, int32_t *members, banyan_comm **shrunk);

/* Devices.
 *
 * A communicator has a device if its banyan_comm_config names one.
 *
 * - Memory. Collectives take memory that the device can read and write, from wherever it comes. It is not shared with
 *   peers; only the arenas are. If the driver says that the device does not reach its first byte, the call is
 *   BANYAN_ERR_ARGUMENT and names the field. This is so for plain host memory, unless devices share the page tables of
 *   the machine, and for another device without peer access. Allocations that were accepted once are remembered.
 * - Streams. Collectives are ordered on a stream, return at once and synchronise nothing. A barrier holds the stream,
 *   not the caller, until the streams of all ranks have come to it.
 * - Graphs. The first call of a shape, and each *_init, waits for the other ranks, and allocates. Every later call
 *   may be captured in a graph, which may be replayed as often as all ranks do so alike. The runs of a communicator
 *   come in the same order on all ranks, and in order on each; on several streams the caller must see to that.
 * - Errors of runs arrive later, at banyan_comm_status(). All runs of this rank have ended before
 *   banyan_comm_destroy().
 * - Several communicators. Drivers may wait for all kernels of the process when memory is freed or kernels are
 *   loaded. So a thread makes or destroys a communicator, or makes a first call of a shape, only while no kernel of the
 *   process waits for one that this thread has yet to launch for another communicator.
 * - Several nodes. If ranks are on nodes whose devices share no memory, each such communicator has one thread of the
 *   library, which exchanges data between nodes. There the collectives other than combines move host memory, and return
 *   when they are done. */

/* Sets the stream (a cudaStream_t of the communicator's device) of calls that name none: allgather, shift, broadcast,
 * barrier, and combines whose desc.stream is NULL. NULL, as at first: the device's default stream. Persistent
 * operations keep the stream of when they were made. Local, not compared. */
banyan_status banyan_comm_set_stream(banyan_comm *comm, void *stream);

/* The caller's rank, from 0, and the number of ranks. NULL is allowed: -1. */
int32_t banyan_comm_rank(const banyan_comm *comm);
int32_t banyan_comm_nranks(const banyan_comm *comm);

/* The failure that ended this communicator, or BANYAN_OK; its text ("": none; the communicator's); and the rank to
 * blame (-1: none known). NULL is allowed: BANYAN_ERR_ARGUMENT, "" and -1. */
banyan_status banyan_comm_status(const banyan_comm *comm);
const char *banyan_comm_error(const banyan_comm *comm);
int32_t banyan_comm_failed_rank(const banyan_comm *comm);

/* Describes in one paragraph what was found and chosen: ranks, transport, CPU kernels, arena. Writes at most `bytes`
 * bytes including the final NUL and returns the length of the whole text, as snprintf does. */
size_t banyan_comm_describe(const banyan_comm *comm, char *text, size_t bytes);

/* Describes what connects ranks of several nodes, and whether it moves memory of CUDA devices; the text is cut to
 * `bytes`. Loads it. BANYAN_ERR_UNSUPPORTED where it is lacking, and banyan_last_error() says why. */
banyan_status banyan_network_describe(char *text, size_t bytes);

/* ---- partials ---------------------------------------------------------------------------------------------------- */

/* Types of numbers in memory and on the wire. E4M3 and E5M2 are the eight-bit floats of OCP (e4m3fn: no infinity,
 * largest 448; e5m2: largest 57344). They and I8 serve values and keys, never statistics. As a wire, E4M3 has a
 * power-of-two scale for each 32 values of a row. Values beyond the largest number of an eight-bit type become that
 * number, rounded to nearest even as all others; NaN stays NaN. */
typedef enum banyan_dtype {
  BANYAN_F32 = 1,
  BANYAN_F16,
  BANYAN_BF16,
  BANYAN_E4M3,
  BANYAN_E5M2,
  BANYAN_I8 /* keys and values of attention on the host alone */
} banyan_dtype;

/* Values of a row: normalised (o = n / d, what attention kernels usually return) or the numerator n itself. */
typedef enum banyan_values { BANYAN_VALUES_NORMALISED = 1, BANYAN_VALUES_NUMERATOR } banyan_values;

/* Statistics of a row: lse = m + log d in one array, or m and d in two. On output m is a whole number in base 2 (in
 * base e, that times ln 2) that is no less than the maximum logit, so that rescaling is exact. A row whose lse or m the
 * type cannot hold is BANYAN_ERR_DATA on that rank, with the number of the row; all other rows are right. */
typedef enum banyan_stats { BANYAN_STATS_LSE = 1, BANYAN_STATS_MAX_SUM } banyan_stats;

/* Base of the logarithm and the exponentials: natural (FlashAttention, FlashMLA) or 2 (FlashInfer). */
typedef enum banyan_base { BANYAN_BASE_E = 1, BANYAN_BASE_2 } banyan_base;

/* These say how the lse (or m) of a row without keys looks. -inf always means empty, and so does d = 0. On input
 * they are flags, or-ed: a +inf or NaN that is not declared is BANYAN_ERR_DATA and names the row. On output it is
 * exactly one of NEG_INF, POS_INF and BELOW (which writes empty_below itself). Values of an empty row are never
 * read, and written as 0. */
enum {
  BANYAN_EMPTY_NEG_INF = 1, /* -inf */
  BANYAN_EMPTY_POS_INF = 2, /* +inf (FlashAttention-2, FlashMLA) */
  BANYAN_EMPTY_NAN = 4,     /* NaN */
  BANYAN_EMPTY_BELOW = 8    /* any value <= empty_below, such as -FLT_MAX or -49994 */
};

/* Partials of [tokens][heads] rows in the caller's memory. Strides are in elements, and a row's values are contiguous,
 * so strides express any order of tokens and heads. Input and output may share memory only if each row has the same
 * place and type in both. Arrays that share it otherwise, also two of one output, are BANYAN_ERR_ARGUMENT. Those that
 * interleave count as apart if they have a stride in common, and lie in different columns. Neither input nor output may
 * be touched between start and wait. */
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
                                * run. On the host one that is not finite or not above 0 is BANYAN_ERR_ARGUMENT with
                                * its head; on a device kernels read it, and do not check. NULL: 1 */
  int64_t values_scale_stride; /* from the scale of a head to the next, in scales; 0: one for all heads. Heads are those
                                * of this descriptor: with BANYAN_SCATTER_HEADS an output's are its own range */
} banyan_partial;

/* With all fields but `size` unset; see banyan_partial_init(). */
/* clang-format off */
#define BANYAN_PARTIAL_INIT \
  {sizeof(banyan_partial), NULL, 0, 0, (banyan_dtype)0, (banyan_values)0, NULL, NULL, 0, 0, (banyan_dtype)0, \
   (banyan_stats)0, (banyan_base)0, 0, 0, NULL, 0}
/* clang-format on */

/* Fills `partial` for contiguous [tokens][heads][value_dim] values and [tokens][heads] statistics: normalised values,
 * lse in base e, -inf for empty rows, both of the given dtypes. Edit it where memory differs. Local. */
void banyan_partial_init(banyan_partial *partial, void *values, banyan_dtype values_dtype, void *lse,
                         banyan_dtype stats_dtype, int32_t heads, int32_t value_dim);

/* Kernels and engines whose conventions are known. Statistics are f32. */
typedef enum banyan_preset {
  BANYAN_PRESET_FLASH_ATTENTION_2 = 1, /* softmax_lse [heads][tokens], base e; +inf: empty */
  BANYAN_PRESET_FLASH_ATTENTION_3,     /* softmax_lse [heads][tokens], base e; -inf: empty */
  BANYAN_PRESET_FLASHINFER,            /* lse [tokens][heads], base 2; -inf: empty */
  BANYAN_PRESET_FLASHMLA,              /* lse [tokens][heads], base e; +inf: empty */
  BANYAN_PRESET_TENSORRT_LLM_HELIX,    /* pairs of m and d, [tokens][heads][2], base e; -inf: empty */
  BANYAN_PRESET_GGML, /* f32 rows of m, d and numerators, [tokens][heads][2 + value_dim], base e; `values`
                                        * is NULL */
  BANYAN_PRESET_TORCH /* lse [tokens][heads], base e; -inf: empty. The CPU's kernel leaves 0 in rows that are
                                        * fully masked: select the valid rows by banyan_live */
} banyan_preset;

/* Fills `partial` as banyan_partial_init() does, in the convention of a preset: contiguous [tokens][heads][value_dim]
 * values, normalised unless said otherwise. One token of a sequence each is assumed, where a kernel has dimensions for
 * both. BANYAN_ERR_ARGUMENT: there is no such preset, or values are given beside rows of ggml. Local. */
banyan_status banyan_partial_preset(banyan_partial *partial, banyan_preset preset, void *values,
                                    banyan_dtype values_dtype, void *stats, int32_t tokens, int32_t heads,
                                    int32_t value_dim);

/* ---- collectives ------------------------------------------------------------------------------------------------- */

/* Where the merged rows go. With HEADS and TOKENS rank r gets the range that banyan_split() says, and its output
 * descriptor describes that range alone. */
typedef enum banyan_scatter {
  BANYAN_SCATTER_NONE = 0, /* all rows on every rank */
  BANYAN_SCATTER_ROOT,     /* all rows on `root`; others pass NULL as output */
  BANYAN_SCATTER_HEADS,    /* all tokens of a range of heads */
  BANYAN_SCATTER_TOKENS    /* all heads of a range of tokens */
} banyan_scatter;

/* The order in which partials are merged. Both give the same bits on every rank and in every run. PLAN: as suits the
 * algorithm chosen. CANONICAL: a fixed balanced tree over ranks, so that the bits do not depend on algorithm,
 * transport, placement of ranks or batch either. */
typedef enum banyan_order { BANYAN_ORDER_PLAN = 0, BANYAN_ORDER_CANONICAL } banyan_order;

/* Part `index` of `count` things dealt to `parts` (at least 1) owners: [*first, *first + *number). Sizes differ by at
 * most one, the larger ones first; a part may be empty. Local. */
void banyan_split(int32_t count, int32_t parts, int32_t index, int32_t *first, int32_t *number);

/* Rows of the result that no rank has keys for, nor attention a sink. WRITTEN: as the output's empty row. KEPT: values
 * and statistics stay as they were. */
typedef enum banyan_empty_rows { BANYAN_EMPTY_ROWS_WRITTEN = 0, BANYAN_EMPTY_ROWS_KEPT } banyan_empty_rows;

/* Selects the valid rows of a run. Use it when a kernel leaves statistics undefined for rows that it skips: masked rows
 * are never read on this rank, and count as rows without keys.
 *
 * The struct is read when a call is made, and by a *_init. What its pointers lead to is read at each run, by
 * banyan_start() or the blocking call, and may change once that has returned.
 *
 * - Only the number of tokens must agree on all ranks, and whether `tokens` is NULL. A difference is
 *   BANYAN_ERR_MISMATCH, whose text names rank and numbers.
 * - Contents that are invalid (tokens that are negative or too many, a negative length, starts that decrease or end
 *   past the tokens) are BANYAN_ERR_ARGUMENT with a text that names index and value.
 * - On a device kernels read it, at each run and each replay of a graph, in memory that the device can read; the host
 *   does not. There the number of tokens is clamped to what is allowed, and a negative length counts as 0. Wrong starts
 *   end the run on all ranks, and a difference of tokens comes at the latest with the next run: both at
 *   banyan_comm_status(). All ranks name the rank; those whose kernels noticed it say the numbers. Between nodes,
 *   devices send tokens that a run does not have as empty rows, and compare numbers within a node alone.
 * - The caller's kernel can query the valid rows, see banyan_device.cuh. Attention knows which rows have keys: its
 *   combine has no seq_lens and no query_start_loc here. */
typedef struct banyan_live {
  size_t size;
  const int32_t *tokens;          /* tokens of this run, 0 to desc.tokens: rows past them are neither read nor written.
                                   * BANYAN_SCATTER_TOKENS deals them as banyan_split(*tokens, nranks, rank) says.
                                   * NULL: desc.tokens */
  int32_t batch;                  /* sequences: 0 without seq_lens and query_start_loc, else at least 1 unless
                                   * desc.tokens is 0 */
  const int32_t *seq_lens;        /* [batch]: this rank's keys of each sequence; 0: no valid rows. NULL: all
                                   * sequences have keys */
  const int32_t *query_start_loc; /* [batch + 1]: the first token of each sequence, then the end of the last. Tokens
                                   * before the first start and from that end on are padding, which is masked,
                                   * whatever seq_lens and token_mask say. NULL: one token per sequence, and sequences
                                   * past the tokens are not looked at */
  const uint8_t *token_mask;      /* [tokens]: rows of a token with 0 are masked. NULL: as if it were 1 throughout */
  banyan_empty_rows empty_rows;
} banyan_live;

/* clang-format off */
#define BANYAN_LIVE_INIT {sizeof(banyan_live), NULL, 0, NULL, NULL, NULL, BANYAN_EMPTY_ROWS_WRITTEN}
/* clang-format on */

/* The shape of a combine, and how it is done. All fields but `stream` and `live` must agree on all ranks. A difference
 * is BANYAN_ERR_MISMATCH, whose text names rank and field. */
typedef struct banyan_combine_desc {
  size_t size;
  int32_t tokens; /* rows are tokens x heads, at most 2^31 - 1; 0 is allowed. With live->tokens the most that a run
                   * has: a plan for them serves any number up to them */
  int32_t heads;
  int32_t value_dim; /* elements of a row's values, at most 65536; 0 merges statistics alone */
  banyan_dtype wire; /* values in flight: F32, F16, BF16, or E4M3 with a scale for each 32 values of a row, for which
                      * banyan_device_combine_init() gives BANYAN_ERR_UNSUPPORTED. Statistics always travel as f32. A
                      * lossy wire rounds with one rank too, and an F16 wire saturates: values up to 65504 never, from
                      * 131008 on always; banyan_op_info counts them. 0: BANYAN_F32 */
  banyan_scatter scatter;
  int32_t root; /* for BANYAN_SCATTER_ROOT */
  banyan_order order;
  const char *algorithm;   /* "oneshot", "twoshot", "recursive", "tree", "ring", "levels", or a variant of one such as
                           * "recursive_halving"; see docs/algorithms.md. NULL: by predicted cost */
  void *stream;            /* a cudaStream_t of the communicator's device; NULL: that of banyan_comm_set_stream(). Not
                           * compared. Ranks that share a device need a stream each: on a common one they would take
                           * turns, and wait for each other until the deadline */
  const banyan_live *live; /* the valid rows; NULL: all of them */
} banyan_combine_desc;

/* clang-format off */
#define BANYAN_COMBINE_DESC_INIT \
  {sizeof(banyan_combine_desc), 0, 0, 0, BANYAN_F32, BANYAN_SCATTER_NONE, 0, BANYAN_ORDER_PLAN, NULL, NULL, NULL}
/* clang-format on */

/* Merges the partials of all ranks. `in`: this rank's partial of all tokens x heads rows (a rank without keys gives
 * empty rows, or says so by desc->live). `out`: the result in any convention, lse included if out->lse is set.
 *
 * A call plans for a class of tokens: the least power of two that holds them. Calls of one class share a plan, so
 * another number of tokens takes no barrier and allocates nothing. With BANYAN_ORDER_PLAN the bits of a row may depend
 * on the class; within it they do not depend on the number, unless tokens are scattered. banyan_comm_describe() counts
 * plans.
 *
 * A row's values differ from the exact ones by at most e A, as lengths of vectors, where A is the mean of |v| over
 * ranks by weight and e = 2e-6 + (u + 2^-23) R. u is the rounding of the wire (F32: 0, F16: 2^-11, BF16: 2^-8), R how
 * often it rounds (banyan_op_info). The rounding to the output's type comes on top. A row may count as 0 if its weight
 * is below 2^-46 of the largest. docs/numbers.md has E4M3, large logits and values, and where each type ends. */
banyan_status banyan_combine(banyan_comm *comm, const banyan_combine_desc *desc, const banyan_partial *in,
                             const banyan_partial *out);

/* Gives all ranks the bytes of each: `all` receives them one after another in rank order. counts[r] is the number of
 * bytes of rank r, identical on all ranks. Meant for Q when its heads are sharded. `mine` may be its own place in
 * `all`, and else does not overlap it. */
banyan_status banyan_allgather(banyan_comm *comm, const void *mine, void *all, const size_t *counts);

/* Heads of a tensor [tokens][heads][dim] that ranks hold in shares, as Q under tensor parallelism. Rank r holds
 * counts[r] heads, which follow those of rank r - 1. All fields but strides, `stream` and `live` agree on all ranks,
 * and so does the number of tokens of a run: a difference is BANYAN_ERR_MISMATCH. Strides may be negative, or lead over
 * gaps, which are not written. */
typedef struct banyan_heads_desc {
  size_t size;
  int32_t tokens; /* with live->tokens the most that a run has */
  int32_t heads;  /* heads of all ranks */
  int32_t dim;    /* elements of a head, 1 to 65536 */
  banyan_dtype dtype;
  const int32_t *counts; /* [nranks]: heads of each rank, which add up to `heads`. NULL: as banyan_split() deals them */
  int64_t mine_token_stride, mine_head_stride; /* strides of this rank's share. Both 0: contiguous */
  int64_t all_token_stride, all_head_stride;   /* strides of the result. Both 0: contiguous */
  void *stream;                                /* as in banyan_combine_desc */
  const banyan_live *live;                     /* only `tokens` is used; NULL: all tokens */
} banyan_heads_desc;

/* clang-format off */
#define BANYAN_HEADS_DESC_INIT {sizeof(banyan_heads_desc), 0, 0, 0, (banyan_dtype)0, NULL, 0, 0, 0, 0, NULL, NULL}
/* clang-format on */

/* Gives all ranks the heads of each, in place: `all` receives [tokens][heads][dim]. `mine` may be its own place in
 * `all`, with the strides of `all`, and else does not overlap it: its memory is apart, or both have one token stride
 * and lie in different columns. Plans by classes of tokens, as banyan_combine(). On a device it is one launch; where
 * devices of several nodes share no memory, it moves host memory, `live` included. */
banyan_status banyan_allgather_heads(banyan_comm *comm, const banyan_heads_desc *desc, const void *mine, void *all);

/* Sends `bytes` from `send` to rank + distance and receives as many from rank - distance, modulo the number of ranks.
 * `bytes` and `distance` agree on all ranks; `send` and `receive` do not overlap. */
banyan_status banyan_shift(banyan_comm *comm, const void *send, void *receive, size_t bytes, int32_t distance);

/* Copies `bytes` at `data` from `root` to all. */
banyan_status banyan_broadcast(banyan_comm *comm, void *data, size_t bytes, int32_t root);

/* Returns when all ranks have called it; on a device see "Devices". What came before it on any rank, also in memory
 * that ranks share by other means, is seen by what comes after it. */
banyan_status banyan_barrier(banyan_comm *comm);

/* ---- persistent operations: planned once, started many times ----------------------------------------------------- */

/* A persistent operation. The *_init calls are collective: they plan, compare plans over all ranks and bind the memory
 * (and stream) given. banyan_op_free() frees what they make.
 *
 * - Between start and wait nothing is allocated and no lock is taken, but by the network's library and, between nodes,
 *   in the first runs. Attention on the host by several threads is another exception: start wakes those that sleep,
 *   with a lock and a system call, and allocates when a run needs more scratch memory than all runs before it.
 * - On a device a run is complete in the order of its stream: start puts it there, test and wait find it done.
 * - Operations of one communicator run in the order in which they were started, which is the same on all ranks. Several
 *   may be started before the first is waited for. */
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

/* A run of an operation is a start, and then waiting for it or testing it until it is done. */
banyan_status banyan_start(banyan_op *op);           /* does what it can without waiting */
banyan_status banyan_test(banyan_op *op, int *done); /* makes progress; *done = 1: complete, may be started again */
banyan_status banyan_wait(banyan_op *op);
void banyan_op_free(banyan_op *op); /* NULL is allowed; local; not between start and wait */

/* A number of banyan_op_info that is not known. */
#define BANYAN_NOT_COUNTED UINT64_MAX

/* How an operation was planned, and what it has sent. */
typedef struct banyan_op_info {
  size_t size;
  const char *algorithm; /* valid until banyan_op_free() */
  const char *reason;    /* why it was chosen: every candidate with its predicted or measured time. Valid as long */
  double predicted_us;   /* or measured */
  uint64_t bytes_sent;   /* by this rank in the last run: payload to each receiver counted */
  uint64_t messages_sent;
  uint64_t arena_bytes;         /* arena memory used by this operation, on this rank */
  uint64_t plan_hash;           /* covers all that decides what runs; identical on all ranks */
  uint64_t bytes_between_nodes; /* part of bytes_sent: to ranks of other nodes, as given to the network */
  uint64_t roundings; /* how often a value is rounded to a lossy wire on its way from a rank into the result, at most:
                             * R in the bound of banyan_combine(). 0 for an f32 wire */
  uint64_t saturated; /* finite values that this rank gave in the last run and its wire cannot hold: they became
                             * the largest that it can. BANYAN_NOT_COUNTED for a lossy wire on a device: a run
                             * there may still be under way, or be replayed by a graph, so that none is the last */
} banyan_op_info;

/* clang-format off */
#define BANYAN_OP_INFO_INIT {sizeof(banyan_op_info), NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0}
/* clang-format on */

/* Fills `info`, whose size the caller has set. Fields that the library does not know become zero. Local. */
banyan_status banyan_op_query(const banyan_op *op, banyan_op_info *info);

/* Says what this rank runs: its steps, one a line, and the kernel on a device. Writes and returns as
 * banyan_comm_describe() does. Local. */
size_t banyan_op_describe(const banyan_op *op, char *text, size_t bytes);

/* ---- combine within a kernel of your own ------------------------------------------------------------------------- */

/* Makes an operation for an attention kernel that pushes its partials from its epilogue and merges them itself: see
 * banyan_device.cuh. Collective, once for each shape. desc->algorithm is NULL or "oneshot", and desc->stream is
 * ignored. With desc->live one shape serves every number of tokens up to desc->tokens. Launching that kernel on all
 * ranks, in the common order of runs, is a run; banyan_start() refuses the operation. BANYAN_ERR_UNSUPPORTED: the
 * communicator has no device, more than 72 ranks, or arenas in host memory; or canonical order on a lossy wire. */
banyan_status banyan_device_combine_init(banyan_comm *comm, const banyan_combine_desc *desc, banyan_op **op);

/* Writes `combine`, a banyan_device_combine of `bytes` bytes, for the kernel to take by value. Local, allocates
 * nothing: may be called for each launch. It is good for launches and graphs until banyan_comm_destroy(), also after
 * banyan_op_free().
 *
 * - `rows` says what the pushed rows mean (kinds, base, empty). Pointers and strides are ignored; dtypes are
 *   BANYAN_F32.
 * - `out` is as for banyan_combine().
 * - `blocks` of the kernel fit on the device at once. Fewer leave more of the device to others. */
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
