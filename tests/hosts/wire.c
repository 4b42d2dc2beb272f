/* SPDX-License-Identifier: Apache-2.0
 * usage: wire [--delay 0.1ms] [--rate 1gbit] [--loss 30%] [--owner PID] PORTS
 *
 * A switch in user space, for tests/hosts/hosts on kernels without netem. It creates the TAP devices port0, port1 and
 * so on, prints "ready", and forwards frames between them until its owner ends or all ports are gone. Each port is a
 * link of the given rate in both directions. A frame takes its time to be sent, then the delay, and is then received at
 * the rate of the receiver's link. Its first bits arrive before its last are sent, as with many small frames. Loss
 * applies to each frame of a real network, so senders then split large frames. Without loss, large frames pass
 * undivided. */
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/generator.h"

enum {
  PORTS_AT_MOST = 200,
  FRAME_BYTES = 65536 + 64,   /* an unsplit TCP segment with its headers */
  QUEUE_BYTES = 8 << 20,      /* most bytes of frames queued for a port; more are dropped */
  SEGMENT_HEADERS_BYTES = 66, /* Ethernet, IP and TCP with time stamps */
  BETWEEN_FRAMES_BYTES = 24   /* preamble, check sequence and gap */
};

struct frame {
  struct frame *next;
  int64_t starts_ns, takes_ns; /* arrival of its first bit at the receiver's link, and its transmission time */
  size_t bytes;
  char data[];
};

struct port {
  int fd;
  uint8_t mac[6]; /* source address of the last frames */
  int64_t sends_until_ns, receives_until_ns;
  struct frame *first, **last; /* queued for this port */
  size_t queued_bytes;
};

struct wire {
  int nports;
  struct port ports[PORTS_AT_MOST];
  struct pollfd polls[PORTS_AT_MOST + 1]; /* the last is the owner */
  int64_t delay_ns;
  double ns_per_byte, loss;
  uint64_t random;
};

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Returns a random number in [0, 1). */
static double draw(struct wire *wire) { return (double)(random_next(&wire->random) >> 11) * 0x1p-53; }

/* Bytes of a frame on a real network, where a large frame is sent as many. */
static size_t bytes_on_wire(const struct frame *frame) {
  struct virtio_net_hdr header;
  memcpy(&header, frame->data, sizeof header);
  size_t bytes = frame->bytes - sizeof header, more = 0;
  if (header.gso_type != VIRTIO_NET_HDR_GSO_NONE && header.gso_size > 0 && bytes > SEGMENT_HEADERS_BYTES)
    more = (bytes - SEGMENT_HEADERS_BYTES - 1) / header.gso_size;
  return bytes + more * SEGMENT_HEADERS_BYTES + (1 + more) * BETWEEN_FRAMES_BYTES;
}

/* ---- switching --------------------------------------------------------------------------------------------------- */

static void enqueue(struct port *to, const struct frame *frame) {
  if (to->queued_bytes + frame->bytes > QUEUE_BYTES) return;
  struct frame *copy = malloc(sizeof *copy + frame->bytes);
  if (!copy) return;
  memcpy(copy, frame, sizeof *copy + frame->bytes);
  copy->next = NULL;
  *to->last = copy;
  to->last = &copy->next;
  to->queued_bytes += copy->bytes;
}

/* Queues a frame for the port that last sent from its target address, or for all other ports. */
static void route(struct wire *wire, int from, const struct frame *frame) {
  const uint8_t *macs = (const uint8_t *)frame->data + sizeof(struct virtio_net_hdr);
  memcpy(wire->ports[from].mac, macs + 6, 6);
  for (int i = 0; i < wire->nports && !(macs[0] & 1); i++)
    if (i != from && memcmp(wire->ports[i].mac, macs, 6) == 0) {
      enqueue(&wire->ports[i], frame);
      return;
    }
  for (int i = 0; i < wire->nports; i++)
    if (i != from) enqueue(&wire->ports[i], frame);
}

/* Reads all frames that a host has sent. */
static void take(struct wire *wire, int from, struct frame *scratch) {
  struct port *port = &wire->ports[from];
  int64_t now = now_ns();
  for (;;) {
    ssize_t got = read(port->fd, scratch->data, FRAME_BYTES);
    if (got < (ssize_t)(sizeof(struct virtio_net_hdr) + 14)) return;
    scratch->bytes = (size_t)got;
    scratch->takes_ns = (int64_t)((double)bytes_on_wire(scratch) * wire->ns_per_byte);
    int64_t begins_ns = now > port->sends_until_ns ? now : port->sends_until_ns;
    port->sends_until_ns = begins_ns + scratch->takes_ns;
    scratch->starts_ns = begins_ns + wire->delay_ns;
    if (wire->loss > 0 && draw(wire) < wire->loss) continue;
    route(wire, from, scratch);
  }
}

/* Delivers the frames that are due. Returns the time of the next one. */
static int64_t hand_over(struct port *port) {
  while (port->first) {
    struct frame *frame = port->first;
    int64_t begins_ns = frame->starts_ns > port->receives_until_ns ? frame->starts_ns : port->receives_until_ns;
    int64_t due_ns = begins_ns + frame->takes_ns;
    if (due_ns > now_ns()) return due_ns;
    /* An error means that the host's interface is down, so the frame is lost. */
    if (write(port->fd, frame->data, frame->bytes) < 0 && errno == EAGAIN) return due_ns + 20000;
    port->receives_until_ns = due_ns;
    port->queued_bytes -= frame->bytes;
    port->first = frame->next;
    if (!port->first) port->last = &port->first;
    free(frame);
  }
  return INT64_MAX;
}

static void carry(struct wire *wire) {
  struct frame *scratch = malloc(sizeof *scratch + FRAME_BYTES);
  int nports = wire->nports;
  while (scratch && !wire->polls[nports].revents) {
    int64_t due_ns = INT64_MAX;
    for (int i = 0; i < nports; i++) {
      int64_t due = hand_over(&wire->ports[i]);
      if (due < due_ns) due_ns = due;
    }
    int64_t left_ns = due_ns - now_ns();
    if (left_ns < 0) left_ns = 0;
    struct timespec left = {left_ns / 1000000000, left_ns % 1000000000};
    if (ppoll(wire->polls, (nfds_t)nports + 1, due_ns == INT64_MAX ? NULL : &left, NULL) < 0) continue;
    int nlost = 0;
    for (int i = 0; i < nports; i++) {
      if (wire->polls[i].revents & POLLIN) take(wire, i, scratch);
      if (wire->polls[i].revents & POLLERR) wire->polls[i].fd = -1; /* its host is gone; a port that is down differs */
      nlost += wire->polls[i].fd < 0;
    }
    if (nlost == nports) break;
  }
  free(scratch);
}

/* ---- start ------------------------------------------------------------------------------------------------------- */

static void die(const char *what) {
  fprintf(stderr, "wire: %s: %s\n", what, strerror(errno));
  exit(1);
}

/* Frames begin with a struct virtio_net_hdr, which states the checksums and splitting still to do. */
static int make_port(int index, bool whole) {
  struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
  int header_bytes = (int)sizeof(struct virtio_net_hdr);
  unsigned left_to_us = whole ? TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 : 0;
  int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) die("/dev/net/tun");
  snprintf(request.ifr_name, sizeof request.ifr_name, "port%d", index);
  if (ioctl(fd, TUNSETIFF, &request) != 0 || ioctl(fd, TUNSETVNETHDRSZ, &header_bytes) != 0 ||
      ioctl(fd, TUNSETOFFLOAD, left_to_us) != 0)
    die("cannot make a TAP device");
  return fd;
}

/* Parses a number and one of the units; NULL ends the list. Returns -1 on anything else. */
static double number_with_unit(const char *text, const char *const units[], const double factors[]) {
  char *end;
  double value = strtod(text, &end);
  if (end == text || !(value >= 0)) return -1;
  for (int i = 0; units[i]; i++)
    if (strcmp(end, units[i]) == 0) return value * factors[i];
  return -1;
}

static const char *const times[] = {"s", "ms", "us", "ns", NULL};
static const double nanoseconds[] = {1e9, 1e6, 1e3, 1};
static const char *const rates[] = {"gbit", "mbit", "kbit", "bit", NULL};
static const double bits[] = {1e9, 1e6, 1e3, 1};
static const char *const shares[] = {"%", NULL};
static const double parts[] = {0.01};

static bool parse(struct wire *wire, char **words, int *owner) {
  double value = 0;
  for (; words[0] && words[1]; words += 2) {
    if (strcmp(words[0], "--delay") == 0) {
      value = number_with_unit(words[1], times, nanoseconds);
      wire->delay_ns = (int64_t)value;
    } else if (strcmp(words[0], "--rate") == 0) {
      value = number_with_unit(words[1], rates, bits);
      wire->ns_per_byte = 8e9 / value;
      if (value <= 0) return false;
    } else if (strcmp(words[0], "--loss") == 0) {
      value = wire->loss = number_with_unit(words[1], shares, parts);
    } else if (strcmp(words[0], "--owner") == 0) {
      *owner = atoi(words[1]);
    } else {
      return false;
    }
    if (value < 0) return false;
  }
  wire->nports = words[0] ? atoi(words[0]) : 0;
  return wire->nports >= 1 && wire->nports <= PORTS_AT_MOST;
}

int main(int argc, char **argv) {
  static struct wire wire;
  int owner = 0;
  (void)argc;
  if (!parse(&wire, argv + 1, &owner)) {
    fprintf(stderr, "usage: wire [--delay 0.1ms] [--rate 1gbit] [--loss 30%%] [--owner PID] PORTS\n");
    return 2;
  }
  wire.random = (uint64_t)now_ns() | 1;
  for (int i = 0; i < wire.nports; i++) {
    struct port *port = &wire.ports[i];
    port->fd = make_port(i, wire.loss <= 0);
    port->last = &port->first;
    wire.polls[i] = (struct pollfd){.fd = port->fd, .events = POLLIN};
  }
  int owner_fd = owner > 0 ? (int)syscall(SYS_pidfd_open, owner, 0) : -1;
  if (owner > 0 && owner_fd < 0) die("the owner");
  wire.polls[wire.nports] = (struct pollfd){.fd = owner_fd, .events = POLLIN};
  prctl(PR_SET_TIMERSLACK, 1);
  printf("ready\n");
  fflush(stdout);
  fclose(stdout); /* the reader waits for the end */
  carry(&wire);
  return 0;
}
