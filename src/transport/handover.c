/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/handover.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"
#include "status.h"

enum { FDS_PER_MESSAGE = 128 };

typedef struct greeting {
  unsigned char secret[BNY_HANDOVER_SECRET_BYTES];
  int32_t rank;
} greeting;

static socklen_t abstract_address(const bny_handover_ticket *ticket, struct sockaddr_un *address) {
  memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  memcpy(address->sun_path + 1, ticket->name, sizeof ticket->name); /* a leading NUL: no file */
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + sizeof ticket->name);
}

static bool wait_for(int fd, short events, int64_t deadline_ns) {
  for (;;) {
    int64_t left_ns = deadline_ns - bny_clock_ns();
    if (left_ns <= 0) {
      errno = ETIMEDOUT;
      return false;
    }
    struct pollfd poll_fd = {.fd = fd, .events = events};
    int ready = ppoll(&poll_fd, 1, &(struct timespec){left_ns / 1000000000, left_ns % 1000000000}, NULL);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

banyan_status bny_handover_listen(bny_handover_ticket *ticket, int *listener) {
  unsigned char noise[8];
  if (getrandom(noise, sizeof noise, 0) != sizeof noise ||
      getrandom(ticket->secret, sizeof ticket->secret, 0) != (ssize_t)sizeof ticket->secret)
    return bny_fail_errno(BANYAN_ERR_SYSTEM, errno, "cannot read random numbers");
  memset(ticket->name, 0, sizeof ticket->name);
  size_t length = 0;
  bny_append(ticket->name, sizeof ticket->name, &length, "banyan-");
  for (size_t i = 0; i < sizeof noise; i++) bny_append(ticket->name, sizeof ticket->name, &length, "%02x", noise[i]);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return bny_fail_errno(BANYAN_ERR_SYSTEM, errno, "cannot make a Unix socket");
  struct sockaddr_un address;
  socklen_t address_bytes = abstract_address(ticket, &address);
  if (bind(fd, (struct sockaddr *)&address, address_bytes) != 0 || listen(fd, SOMAXCONN) != 0) {
    int error = errno;
    close(fd);
    return bny_fail_errno(BANYAN_ERR_SYSTEM, error, "cannot listen on a Unix socket");
  }
  *listener = fd;
  return BANYAN_OK;
}

/* Sends on this socket, and a connect to a full backlog, end at the deadline. */
static void bound_sends(int fd, int64_t deadline_ns) {
  int64_t left_ns = deadline_ns - bny_clock_ns();
  int64_t left_us = left_ns > 0 ? left_ns / 1000 + 1 : 1; /* 0 would be for ever */
  struct timeval patience = {left_us / 1000000, left_us % 1000000};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

/* A signal of the program ends neither a connect nor a send, as long as there is time. */
static bool goes_on(int64_t deadline_ns) { return errno == EINTR && bny_clock_ns() < deadline_ns; }

static bool connect_to(int socket_fd, const struct sockaddr_un *address, socklen_t bytes, int64_t deadline_ns) {
  int failed;
  do failed = connect(socket_fd, (const struct sockaddr *)address, bytes);
  while (failed && goes_on(deadline_ns));
  return !failed;
}

static bool send_packet(int socket_fd, const void *packet, size_t bytes, int64_t deadline_ns) {
  ssize_t sent;
  do sent = send(socket_fd, packet, bytes, MSG_NOSIGNAL);
  while (sent < 0 && goes_on(deadline_ns));
  return sent == (ssize_t)bytes;
}

static bool is_same_user(int socket_fd, pid_t *pid) {
  struct ucred peer;
  socklen_t peer_bytes = sizeof peer;
  if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) != 0 || peer.uid != geteuid()) return false;
  *pid = peer.pid;
  return true;
}

/* glibc has it since 2.36 only. */
static int open_pidfd(pid_t pid) { return (int)syscall(SYS_pidfd_open, pid, 0); }

static bool send_fds(int socket_fd, const int *fds, int count, int64_t deadline_ns) {
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(FDS_PER_MESSAGE * sizeof(int))];
  } control;
  memset(&control, 0, sizeof control);
  int32_t payload = count;
  struct iovec part = {&payload, sizeof payload};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (count > 0) {
    message.msg_control = &control;
    message.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
    memcpy(CMSG_DATA(header), fds, (size_t)count * sizeof(int));
  }
  for (;;) {
    if (sendmsg(socket_fd, &message, MSG_NOSIGNAL) == (ssize_t)sizeof payload) return true;
    /* A user may have only so many descriptors on the way: peers have yet to take theirs. */
    if ((errno != ETOOMANYREFS && errno != EINTR) || bny_clock_ns() >= deadline_ns) return false;
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  }
}

/* Receives exactly `count` descriptors or none; errno says why none. */
static bool receive_fds(int socket_fd, int *fds, int count, int64_t deadline_ns) {
  if (!wait_for(socket_fd, POLLIN, deadline_ns)) return false;
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(FDS_PER_MESSAGE * sizeof(int))];
  } control;
  int32_t payload = -1;
  struct iovec part = {&payload, sizeof payload};
  struct msghdr message = {
    .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t bytes = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC);
  if (bytes < 0) return false;
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  int received[FDS_PER_MESSAGE], nreceived = 0;
  if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    nreceived = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(received, CMSG_DATA(header), (size_t)nreceived * sizeof(int));
  }
  if (bytes == (ssize_t)sizeof payload && payload == count && nreceived == count) {
    memcpy(fds, received, (size_t)count * sizeof(int));
    return true;
  }
  for (int i = 0; i < nreceived; i++) close(received[i]);
  errno = message.msg_flags & MSG_CTRUNC ? EMFILE : ECONNRESET;
  return false;
}

/* Accepts one peer; returns its rank, or -1 if it is none of ours. */
static int32_t admit(int socket_fd, const bny_handover_ticket *ticket, int32_t nranks, const int *sockets,
                     int64_t deadline_ns, pid_t *pid) {
  greeting hello;
  if (!is_same_user(socket_fd, pid)) return -1;
  if (!wait_for(socket_fd, POLLIN, deadline_ns)) return -1;
  if (recv(socket_fd, &hello, sizeof hello, 0) != (ssize_t)sizeof hello) return -1;
  if (memcmp(hello.secret, ticket->secret, sizeof hello.secret) != 0) return -1;
  if (hello.rank < 1 || hello.rank >= nranks || sockets[hello.rank] >= 0) return -1;
  return hello.rank;
}

/* The wait for one unknown peer's greeting is short, so that a process of the same user that connects and stays silent
 * cannot use up the time of all; but not as short as a rank may be without a core between its connect and its greeting. */
enum { GREETING_NS = 2000000000 };

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

/* pidfds may be NULL. */
static banyan_status admit_all(int listener, const bny_handover_ticket *ticket, int32_t nranks, int *sockets, int *pidfds,
                               int64_t deadline_ns) {
  for (int32_t admitted = 1; admitted < nranks;) {
    if (!wait_for(listener, POLLIN, deadline_ns)) {
      int32_t missing = 1;
      while (sockets[missing] >= 0) missing++;
      return bny_fail(BANYAN_ERR_TIMEOUT, "rank %d did not come for the shared memory in time", missing);
    }
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) continue;
      return bny_fail_errno(BANYAN_ERR_SYSTEM, errno, "cannot accept a rank of this host");
    }
    bound_sends(fd, deadline_ns);
    pid_t pid = 0;
    int32_t rank = admit(fd, ticket, nranks, sockets, earlier(deadline_ns, bny_clock_ns() + GREETING_NS), &pid);
    if (rank < 0) {
      close(fd);
      continue;
    }
    /* The peer waits on its socket, so the pid cannot have been given to another. 0: it is in a pid namespace that we
     * cannot see into; its death will then be noticed by the deadline alone. */
    if (pidfds) pidfds[rank] = pid > 0 ? open_pidfd(pid) : -1;
    sockets[rank] = fd;
    admitted++;
  }
  return BANYAN_OK;
}

/* One descriptor per rank, -1 allowed: which of them exist, then those, in packets. */
static bool send_each(int socket_fd, int32_t nranks, const int *fds, int64_t deadline_ns) {
  for (int32_t first = 0; first < nranks; first += FDS_PER_MESSAGE) {
    int packet[FDS_PER_MESSAGE];
    unsigned char present[FDS_PER_MESSAGE] = {0};
    int count = 0;
    for (int32_t i = first; i < nranks && i < first + FDS_PER_MESSAGE; i++) {
      present[i - first] = fds[i] >= 0;
      if (fds[i] >= 0) packet[count++] = fds[i];
    }
    if (!send_packet(socket_fd, present, sizeof present, deadline_ns)) return false;
    if (!send_fds(socket_fd, packet, count, deadline_ns)) return false;
  }
  return true;
}

banyan_status bny_handover_serve(int listener, const bny_handover_ticket *ticket, int memory, int32_t nranks, int *pidfds,
                                 int64_t deadline_ns) {
  int *sockets = malloc((size_t)nranks * sizeof *sockets);
  if (!sockets) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for %d ranks", nranks);
  for (int32_t i = 0; i < nranks; i++) sockets[i] = -1;
  pidfds[0] = open_pidfd(getpid());
  banyan_status status = admit_all(listener, ticket, nranks, sockets, pidfds, deadline_ns);
  for (int32_t i = 1; i < nranks && status == BANYAN_OK; i++)
    if (!send_fds(sockets[i], &memory, 1, deadline_ns) || !send_each(sockets[i], nranks, pidfds, deadline_ns))
      status = bny_fail_errno(BANYAN_ERR_BOOTSTRAP, errno, "cannot hand the shared memory to rank %d", i);
  for (int32_t i = 0; i < nranks; i++)
    if (sockets[i] >= 0) close(sockets[i]);
  free(sockets);
  return status;
}

static bool receive_each(int socket_fd, int32_t nranks, int *fds, int64_t deadline_ns) {
  for (int32_t first = 0; first < nranks; first += FDS_PER_MESSAGE) {
    unsigned char present[FDS_PER_MESSAGE];
    int packet[FDS_PER_MESSAGE];
    int count = 0, taken = 0;
    if (!wait_for(socket_fd, POLLIN, deadline_ns)) return false;
    if (recv(socket_fd, present, sizeof present, 0) != (ssize_t)sizeof present) {
      errno = ECONNRESET;
      return false;
    }
    for (int i = 0; i < FDS_PER_MESSAGE; i++) count += present[i] != 0;
    if (!receive_fds(socket_fd, packet, count, deadline_ns)) return false;
    for (int32_t i = first; i < nranks && i < first + FDS_PER_MESSAGE; i++)
      if (present[i - first]) fds[i] = packet[taken++];
  }
  return true;
}

/* Connects to rank 0 and says who this is. */
static banyan_status greet(const bny_handover_ticket *ticket, int32_t rank, int64_t deadline_ns, int *socket_fd) {
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return bny_fail_errno(BANYAN_ERR_SYSTEM, errno, "cannot make a Unix socket");
  struct sockaddr_un address;
  socklen_t address_bytes = abstract_address(ticket, &address);
  greeting hello = {.rank = rank};
  memcpy(hello.secret, ticket->secret, sizeof hello.secret);
  bound_sends(fd, deadline_ns);
  banyan_status status = BANYAN_OK;
  pid_t server = 0;
  if (!connect_to(fd, &address, address_bytes, deadline_ns))
    status = bny_fail_errno(BANYAN_ERR_BOOTSTRAP, errno,
                            "cannot reach rank 0 for the shared memory (network namespaces of the ranks must be one)");
  else if (!is_same_user(fd, &server)) /* rank 0 is gone and another has taken its name */
    status = bny_fail(BANYAN_ERR_BOOTSTRAP, "rank 0 runs as another user than this rank; they cannot share memory");
  else if (!send_packet(fd, &hello, sizeof hello, deadline_ns))
    status = bny_fail_errno(BANYAN_ERR_BOOTSTRAP, errno, "rank 0 does not listen to this rank");
  if (status != BANYAN_OK) {
    close(fd);
    return status;
  }
  *socket_fd = fd;
  return BANYAN_OK;
}

banyan_status bny_handover_receive(const bny_handover_ticket *ticket, int32_t rank, int32_t nranks, int *memory,
                                   int *pidfds, int64_t deadline_ns) {
  int fd = -1, memory_fd = -1;
  banyan_status status = greet(ticket, rank, deadline_ns, &fd);
  if (status != BANYAN_OK) return status;
  if (!receive_fds(fd, &memory_fd, 1, deadline_ns) || !receive_each(fd, nranks, pidfds, deadline_ns))
    status = bny_fail_errno(errno == ETIMEDOUT ? BANYAN_ERR_TIMEOUT : BANYAN_ERR_BOOTSTRAP, errno,
                            "rank 0 could not hand over the shared memory and a descriptor for each of %d ranks", nranks);
  close(fd);
  if (status != BANYAN_OK) {
    if (memory_fd >= 0) close(memory_fd);
    return status;
  }
  *memory = memory_fd;
  return BANYAN_OK;
}

/* ---- each to all --------------------------------------------------------------------------------------------------- */

static bool receive_one(int socket_fd, int *fd, int64_t deadline_ns) {
  unsigned char present;
  if (!wait_for(socket_fd, POLLIN, deadline_ns)) return false;
  if (recv(socket_fd, &present, sizeof present, 0) != (ssize_t)sizeof present) {
    errno = ECONNRESET;
    return false;
  }
  return receive_fds(socket_fd, fd, present != 0, deadline_ns);
}

static banyan_status trade_as_first(int listener, const bny_handover_ticket *ticket, int32_t nranks, int mine, int *fds,
                                    int64_t deadline_ns) {
  int *sockets = malloc((size_t)nranks * sizeof *sockets);
  if (!sockets) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for %d ranks", nranks);
  for (int32_t i = 0; i < nranks; i++) sockets[i] = -1;
  banyan_status status = admit_all(listener, ticket, nranks, sockets, NULL, deadline_ns);
  for (int32_t i = 1; i < nranks && status == BANYAN_OK; i++)
    if (!receive_one(sockets[i], &fds[i], deadline_ns))
      status = bny_fail_errno(BANYAN_ERR_BOOTSTRAP, errno, "rank %d did not hand its shared memory over", i);
  fds[0] = mine;
  for (int32_t i = 1; i < nranks && status == BANYAN_OK; i++)
    if (!send_each(sockets[i], nranks, fds, deadline_ns))
      status = bny_fail_errno(BANYAN_ERR_BOOTSTRAP, errno, "cannot hand the shared memory to rank %d", i);
  fds[0] = -1;
  for (int32_t i = 0; i < nranks; i++)
    if (sockets[i] >= 0) close(sockets[i]);
  free(sockets);
  return status;
}

static banyan_status trade_as_other(const bny_handover_ticket *ticket, int32_t rank, int32_t nranks, int mine, int *fds,
                                    int64_t deadline_ns) {
  int fd = -1;
  banyan_status status = greet(ticket, rank, deadline_ns, &fd);
  if (status != BANYAN_OK) return status;
  unsigned char present = mine >= 0;
  if (!send_packet(fd, &present, sizeof present, deadline_ns) ||
      !send_fds(fd, &mine, present, deadline_ns))
    status = bny_fail_errno(BANYAN_ERR_BOOTSTRAP, errno, "cannot hand the shared memory to rank 0");
  else if (!receive_each(fd, nranks, fds, deadline_ns))
    status = bny_fail_errno(errno == ETIMEDOUT ? BANYAN_ERR_TIMEOUT : BANYAN_ERR_BOOTSTRAP, errno,
                            "rank 0 could not hand over the shared memory of %d ranks", nranks);
  close(fd);
  return status;
}

banyan_status bny_handover_trade(int listener, const bny_handover_ticket *ticket, int32_t rank, int32_t nranks, int mine,
                                 int *fds, int64_t deadline_ns) {
  for (int32_t i = 0; i < nranks; i++) fds[i] = -1;
  banyan_status status = rank == 0 ? trade_as_first(listener, ticket, nranks, mine, fds, deadline_ns)
                                   : trade_as_other(ticket, rank, nranks, mine, fds, deadline_ns);
  for (int32_t i = 0; i < nranks; i++) {
    if (fds[i] < 0 || (status == BANYAN_OK && i != rank)) continue;
    close(fds[i]);
    fds[i] = -1;
  }
  return status;
}
