/* SPDX-License-Identifier: Apache-2.0
 * Passes file descriptors between processes over an abstract Unix socket. */
#include "transport/fd_passing.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/deadline.h"
#include "base/file.h"
#include "base/process.h"
#include "base/status.h"

enum { NAME_BYTES = 24, SECRET_BYTES = 16, FDS_PER_PARCEL = 128 };

/* Rank 0's address and secret, sent through the bootstrap. If the name is empty, rank 0 does not listen. */
typedef struct ticket {
  char name[NAME_BYTES];
  unsigned char secret[SECRET_BYTES];
} ticket;

typedef struct greeting {
  unsigned char secret[SECRET_BYTES];
  int32_t rank;
} greeting;

/* The message that travels with descriptors, or instead of them. */
typedef struct parcel {
  int32_t status;                        /* not BANYAN_OK: there are no descriptors, and `why` is the reason */
  unsigned char present[FDS_PER_PARCEL]; /* flags of the expected descriptors that are included */
  char why[BNY_REPORT_BYTES];
} parcel;

static const int64_t retry_ns = 1000000;

static void pause_briefly(void) { nanosleep(&(struct timespec){0, retry_ns}, NULL); }

/* False: see errno. A fork in the wait leaves the sockets to the parent. */
static bool wait_for(int fd, short events, int64_t deadline_ns) {
  uint64_t process = bny_process();
  for (;;) {
    struct pollfd poll_fd = {.fd = fd, .events = events};
    int ready = poll(&poll_fd, 1, bny_deadline_poll_ms(deadline_ns));
    if (process != bny_process()) {
      errno = ECANCELED;
      return false;
    }
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (bny_deadline_is_late(deadline_ns)) {
      errno = ETIMEDOUT;
      return false;
    }
  }
}

/* ---- parcels ----------------------------------------------------------------------------------------------------- */

typedef union control {
  struct cmsghdr header;
  char room[CMSG_SPACE(FDS_PER_PARCEL * sizeof(int))];
} control;

/* Sends up to FDS_PER_PARCEL descriptors; -1 is allowed. False: see errno. */
static bool send_parcel(int socket_fd, parcel *parcel, const int *fds, int count, int64_t deadline_ns) {
  control control;
  int there = 0;
  memset(&control, 0, sizeof control);
  for (int i = 0; i < count; i++) {
    parcel->present[i] = fds[i] >= 0;
    if (fds[i] >= 0) memcpy(CMSG_DATA(&control.header) + (size_t)there++ * sizeof(int), &fds[i], sizeof(int));
  }
  struct iovec part = {parcel, sizeof *parcel};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (there > 0) {
    message.msg_control = &control;
    message.msg_controllen = CMSG_SPACE((size_t)there * sizeof(int));
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN((size_t)there * sizeof(int));
  }
  for (;;) {
    if (sendmsg(socket_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof *parcel) return true;
    bool is_full = errno == EAGAIN || errno == EWOULDBLOCK;
    /* A user may have only a limited number of descriptors in flight, until peers receive theirs. */
    if (!is_full && errno != ETOOMANYREFS && errno != EINTR) return false;
    if (bny_deadline_is_late(deadline_ns)) {
      errno = ETIMEDOUT;
      return false;
    }
    if (is_full && !wait_for(socket_fd, POLLOUT, deadline_ns)) return false;
    if (!is_full) pause_briefly();
  }
}

/* Sends `count` descriptors in as many parcels as needed. */
static bool send_all(int socket_fd, const int *fds, int32_t count, int64_t deadline_ns) {
  for (int32_t first = 0; first < count; first += FDS_PER_PARCEL) {
    parcel parcel = {.status = BANYAN_OK};
    int some = count - first < FDS_PER_PARCEL ? count - first : FDS_PER_PARCEL;
    if (!send_parcel(socket_fd, &parcel, fds + first, some, deadline_ns)) return false;
  }
  return true;
}

static banyan_status fail_receive(int32_t peer, int error) {
  if (error == ETIMEDOUT)
    return bny_fail(BANYAN_ERR_TIMEOUT, "rank %d hands over nothing: it is stopped, or slow", peer);
  if (error == ECONNRESET) return bny_fail(BANYAN_ERR_PEER, "rank %d ended while descriptors were handed over", peer);
  return bny_fail_errno(BANYAN_ERR_SYSTEM, error, "cannot take the descriptors that rank %d hands over%s", peer,
                        error == EMFILE ? " (raise ulimit -n)" : "");
}

/* Fills fds[count]. After a failure there is nothing to close. */
static banyan_status receive_parcel(int socket_fd, int32_t peer, int *fds, int count, int64_t deadline_ns) {
  parcel parcel = {.status = BANYAN_OK};
  control control;
  struct iovec part = {&parcel, sizeof parcel};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  if (!wait_for(socket_fd, POLLIN, deadline_ns)) return fail_receive(peer, errno);
  ssize_t bytes = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC);
  /* A peer that closes without having read all is reported first, and then come its parcels. */
  for (int resets = 0; bytes < 0 && (errno == EINTR || (errno == ECONNRESET && resets++ == 0));)
    bytes = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC);
  if (bytes != (ssize_t)sizeof parcel) return fail_receive(peer, bytes < 0 ? errno : ECONNRESET);
  const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  int received[FDS_PER_PARCEL], there = 0, wanted = 0;
  if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    there = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(received, CMSG_DATA(header), (size_t)there * sizeof(int));
    for (int i = 0; i < there; i++) received[i] = bny_file_above_stderr(received[i]);
  }
  for (int i = 0; i < count; i++) wanted += parcel.present[i] != 0;
  if (parcel.status == BANYAN_OK && there == wanted) {
    for (int i = count - 1; i >= 0; i--) fds[i] = parcel.present[i] ? received[--wanted] : -1;
    return BANYAN_OK;
  }
  for (int i = 0; i < there; i++) close(received[i]);
  if (parcel.status == BANYAN_OK) return fail_receive(peer, EMFILE);
  return bny_fail((banyan_status)parcel.status, "rank %d hands over nothing: %.*s", peer, (int)sizeof parcel.why - 1,
                  parcel.why);
}

static banyan_status receive_all(int socket_fd, int32_t peer, int *fds, int32_t count, int64_t deadline_ns) {
  banyan_status status = BANYAN_OK;
  for (int32_t first = 0; first < count && status == BANYAN_OK; first += FDS_PER_PARCEL)
    status = receive_parcel(socket_fd, peer, fds + first,
                            count - first < FDS_PER_PARCEL ? count - first : FDS_PER_PARCEL, deadline_ns);
  return status;
}

/* Sends the thread's error to all that this rank is connected to, as long as they receive. */
static void send_failure(const bny_fd_passing *passing, banyan_status status) {
  if (passing->process != bny_process()) return; /* a callback has forked, and this is the child */
  parcel parcel = {.status = (int32_t)status};
  snprintf(parcel.why, sizeof parcel.why, "%s", banyan_last_error());
  for (int32_t i = 0; i < passing->nranks; i++)
    if (passing->sockets[i] >= 0) send_parcel(passing->sockets[i], &parcel, NULL, 0, 0);
}

static banyan_status fail_send(int32_t peer, int error) {
  if (error == ETIMEDOUT)
    return bny_fail(BANYAN_ERR_TIMEOUT, "rank %d takes no descriptors: it is stopped, or slow", peer);
  if (error == EPIPE || error == ECONNRESET) return fail_receive(peer, ECONNRESET);
  return bny_fail_errno(BANYAN_ERR_SYSTEM, error, "cannot hand descriptors over to rank %d", peer);
}

/* ---- connecting -------------------------------------------------------------------------------------------------- */

static socklen_t abstract_address(const ticket *ticket, struct sockaddr_un *address) {
  memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  memcpy(address->sun_path + 1, ticket->name, sizeof ticket->name); /* a leading NUL: no file */
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + sizeof ticket->name);
}

static banyan_status listen_as_first(ticket *tickets, int *listener) {
  ticket made = {.name = "banyan-"};
  unsigned char noise[8];
  struct sockaddr_un address;
  if (getrandom(noise, sizeof noise, 0) != sizeof noise ||
      getrandom(made.secret, sizeof made.secret, 0) != (ssize_t)sizeof made.secret)
    return bny_fail_errno(BANYAN_ERR_SYSTEM, errno, "cannot read random numbers");
  size_t length = strlen(made.name);
  for (size_t i = 0; i < sizeof noise; i++) bny_append(made.name, sizeof made.name, &length, "%02x", noise[i]);
  int fd = bny_file_above_stderr(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd < 0) return bny_fail_errno(BANYAN_ERR_SYSTEM, errno, "cannot make a Unix socket");
  socklen_t address_bytes = abstract_address(&made, &address);
  if (bind(fd, (struct sockaddr *)&address, address_bytes) != 0 || listen(fd, SOMAXCONN) != 0) {
    int error = errno;
    close(fd);
    return bny_fail_errno(BANYAN_ERR_SYSTEM, error, "cannot listen on a Unix socket");
  }
  *listener = fd;
  *tickets = made;
  return BANYAN_OK;
}

static bool is_same_user(int socket_fd) {
  struct ucred peer;
  socklen_t peer_bytes = sizeof peer;
  return getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) == 0 && peer.uid == geteuid();
}

/* Connects to rank 0 and sends this rank's number. *again: rank 0 has too many connections to accept now. A rejection
 * means that rank 0 is unreachable or has given up; in that case the exchange brings the reason. */
static banyan_status greet(const ticket *ticket, bny_fd_passing *passing, bool *again) {
  struct sockaddr_un address;
  socklen_t address_bytes = abstract_address(ticket, &address);
  greeting hello = {.rank = passing->rank};
  memcpy(hello.secret, ticket->secret, sizeof hello.secret);
  int fd = bny_file_above_stderr(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd < 0) return bny_fail_errno(BANYAN_ERR_SYSTEM, errno, "cannot make a Unix socket");
  int error = connect(fd, (struct sockaddr *)&address, address_bytes) == 0 ? 0 : errno;
  bool is_other = !error && !is_same_user(fd); /* rank 0 may have ended, and its name been taken */
  if (!error && !is_other && send(fd, &hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello) error = errno;
  bool is_rejection = error == ECONNREFUSED || error == ECONNRESET || error == EPIPE;
  *again = error == EAGAIN || error == EINTR || (is_rejection && !passing->was_rejected);
  passing->was_rejected = is_rejection;
  banyan_status status = BANYAN_OK;
  if (is_other)
    status = bny_fail(BANYAN_ERR_BOOTSTRAP, "rank 0 runs as another user than rank %d; they cannot share memory",
                      passing->rank);
  else if (error && !*again)
    status = bny_fail_errno(BANYAN_ERR_BOOTSTRAP, error, "rank 0 cannot be reached for shared memory");
  if (status == BANYAN_OK && !*again)
    passing->sockets[0] = fd;
  else
    close(fd);
  return status;
}

/* The time limit for a greeting, so that a silent process of the same user cannot use up the time of all ranks. It is
 * longer than a rank may be without a core between its connection and its greeting. */
enum { GREETING_NS = 2000000000 };

/* Returns the rank of a connection, or -1 for a foreign one. */
static int32_t rank_of(int socket_fd, const ticket *ticket, const bny_fd_passing *passing, bool patient) {
  greeting hello;
  if (!is_same_user(socket_fd)) return -1;
  if (patient && !wait_for(socket_fd, POLLIN, bny_deadline_now() + GREETING_NS)) return -1;
  if (recv(socket_fd, &hello, sizeof hello, MSG_DONTWAIT) != (ssize_t)sizeof hello) return -1;
  if (memcmp(hello.secret, ticket->secret, sizeof hello.secret) != 0) return -1;
  if (hello.rank < 1 || hello.rank >= passing->nranks || passing->sockets[hello.rank] >= 0) return -1;
  return hello.rank;
}

/* Accepts waiting connections. `patient`: waits for a greeting that may still come. */
static banyan_status admit(int listener, const ticket *ticket, bny_fd_passing *passing, bool patient) {
  for (;;) {
    int fd = bny_file_above_stderr(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return BANYAN_OK;
    if (fd < 0)
      return bny_fail_errno(BANYAN_ERR_SYSTEM, errno, "cannot accept a rank of this node%s",
                            errno == EMFILE ? " (raise ulimit -n)" : "");
    int32_t rank = rank_of(fd, ticket, passing, patient);
    if (rank < 0)
      close(fd);
    else
      passing->sockets[rank] = fd;
  }
}

static banyan_status admit_last(int listener, const ticket *ticket, bny_fd_passing *passing) {
  banyan_status status = admit(listener, ticket, passing, false);
  for (int32_t i = 1; i < passing->nranks && status == BANYAN_OK; i++)
    if (passing->sockets[i] < 0)
      status =
          bny_fail(BANYAN_ERR_BOOTSTRAP,
                   "rank %d did not connect as the user of rank 0; ranks that share memory must run as one user", i);
  return status;
}

static const char doing[] = "could not set up shared memory";

/* Runs rounds until all are connected. There is more than one round if rank 0's queue of connections is full. */
static banyan_status connect_all(const bny_exchange *exchange, const ticket *ticket, int listener, banyan_status status,
                                 bny_fd_passing *passing) {
  for (bool again = true; again;) {
    again = false;
    bool is_new = passing->rank > 0 && passing->sockets[0] < 0 && ticket->name[0];
    if (status == BANYAN_OK && is_new) status = greet(ticket, passing, &again);
    status = bny_exchange_settle_round(exchange, status, doing, &again);
    if (status != BANYAN_OK) return status;
    if (again && passing->rank == 0)
      status = admit(listener, ticket, passing, true);
    else if (again)
      pause_briefly();
  }
  if (passing->rank > 0) return BANYAN_OK;
  passing->admitted = admit_last(listener, ticket, passing);
  snprintf(passing->why, sizeof passing->why, "%s", banyan_last_error());
  return BANYAN_OK;
}

enum { GRACE_NS = 200000000 };

banyan_status bny_fd_passing_meet(const bny_exchange *exchange, bny_fd_passing *passing) {
  int32_t rank = exchange->bootstrap->rank, nranks = exchange->bootstrap->nranks;
  int listener = -1;
  ticket own = {.name = ""}, *tickets = calloc((size_t)nranks, sizeof *tickets);
  *passing = (bny_fd_passing){
      .process = exchange->process, .rank = rank, .nranks = nranks, .sockets = malloc((size_t)nranks * sizeof(int))};
  banyan_status status = BANYAN_OK;
  if (!tickets || !passing->sockets)
    status = bny_fail(BANYAN_ERR_MEMORY, "rank %d has no memory to meet %d ranks", rank, nranks);
  for (int32_t i = 0; i < nranks && status == BANYAN_OK; i++) passing->sockets[i] = -1;
  banyan_status listens = status == BANYAN_OK && rank == 0 ? listen_as_first(&own, &listener) : BANYAN_OK;
  char why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", banyan_last_error());
  if (status == BANYAN_OK) status = bny_exchange_all(exchange, &own, tickets, sizeof own);
  if (status == BANYAN_OK) {
    if (listens != BANYAN_OK) bny_fail(listens, "%s", why);
    status = connect_all(exchange, &tickets[0], listener, listens, passing);
  }
  if (listener >= 0) close(listener);
  free(tickets);
  if (status != BANYAN_OK) bny_fd_passing_close(passing);
  int64_t now_ns = bny_deadline_now(), left_ns = exchange->deadline_ns - now_ns;
  passing->deadline_ns = now_ns + left_ns / 2;
  passing->last_ns = passing->deadline_ns + (left_ns / 4 < GRACE_NS ? left_ns / 4 : GRACE_NS);
  return status;
}

void bny_fd_passing_close(bny_fd_passing *passing) {
  for (int32_t i = 0; i < passing->nranks && passing->sockets; i++)
    if (passing->sockets[i] >= 0) close(passing->sockets[i]);
  free(passing->sockets);
  passing->sockets = NULL;
}

/* ---- descriptors from each to all -------------------------------------------------------------------------------- */

static banyan_status trade_as_first(bny_fd_passing *passing, const int *mine, int32_t each, int *fds) {
  banyan_status status = passing->admitted == BANYAN_OK ? BANYAN_OK : bny_fail(passing->admitted, "%s", passing->why);
  for (int32_t i = 1; i < passing->nranks && status == BANYAN_OK; i++)
    status = receive_all(passing->sockets[i], i, fds + i * each, each, passing->deadline_ns);
  memcpy(fds, mine, (size_t)each * sizeof *fds);
  for (int32_t i = 1; i < passing->nranks && status == BANYAN_OK; i++)
    if (!send_all(passing->sockets[i], fds, passing->nranks * each, passing->deadline_ns)) status = fail_send(i, errno);
  for (int32_t i = 0; i < each; i++) fds[i] = -1;
  return status;
}

banyan_status bny_fd_passing_exchange(bny_fd_passing *passing, banyan_status own, const int *mine, int32_t each,
                                      int *fds) {
  banyan_status status = own;
  int32_t count = passing->nranks * each;
  for (int32_t i = 0; i < count; i++) fds[i] = -1;
  if (status == BANYAN_OK && passing->rank == 0)
    status = trade_as_first(passing, mine, each, fds);
  else if (status == BANYAN_OK) {
    /* Rank 0 may have failed and closed, and then its parcel has the reason. */
    int error = send_all(passing->sockets[0], mine, each, passing->deadline_ns) ? 0 : errno;
    status = receive_all(passing->sockets[0], 0, fds, count, passing->last_ns);
    if (status == BANYAN_OK && error) status = fail_send(0, error);
  }
  for (int32_t i = 0; i < count; i++) {
    if (fds[i] < 0 || (status == BANYAN_OK && i / each != passing->rank)) continue;
    close(fds[i]);
    fds[i] = -1;
  }
  if (status != BANYAN_OK) send_failure(passing, status);
  return status;
}
