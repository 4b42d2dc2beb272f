# SPDX-License-Identifier: Apache-2.0
"""Nodes of one server notice each other's end, also between requests, when their ranks do not communicate.

Each command keeps a connection to that of node 0, which knows by the secret who asks. If the other end is lost, the
server cannot go on: the command says which node and ranks it was, and ends with status 1.
"""

import hmac
import logging
import os
import signal
import socket
import threading
import time

GRACE_S = 20  # from SIGTERM to SIGKILL
PROOF_S = 10  # within which the other end of a connection proves that it knows the secret
UNPROVEN = 64  # connections that may do so at once
_logger = logging.getLogger("vllm.banyan")


class Watch:
    def __init__(self, node, nodes, address, ranks, secret):
        """Begins to watch. `address` is that of node 0, and `ranks` the number of ranks of each node."""
        self.node, self.nodes, self.ranks, self.secret = node, nodes, ranks, secret
        self.lost = None
        self.places = threading.Semaphore(UNPROVEN)
        if node == 0:
            # The port is taken here, so that one in use is an error at once.
            self.listener = socket.create_server(address, family=_family(address))
            _begin(self._admit)
        else:
            _begin(lambda: self._join(address))

    def _answer(self, node, challenge):
        return hmac.digest(self.secret, b"banyan-vllm %d " % node + challenge, "sha256")

    def _admit(self):
        while True:
            self.places.acquire()  # a connection without a proof gives its place back after PROOF_S
            try:
                peer, (host, *_) = self.listener.accept()
            except OSError as error:  # such as too many open files
                self.places.release()
                _logger.warning("node 0 accepts no connection of other nodes, and tries again: %s", error)
                time.sleep(1)
                continue
            _begin(lambda peer=peer, host=host: self._serve(peer, host))

    def _serve(self, peer, host):
        try:
            node = self._prove(peer, host)
        finally:
            self.places.release()
        if node:
            self._await_end(peer, node, host)

    def _prove(self, peer, host):
        """Returns the number of the node at the other end, or None if it does not know the secret."""
        challenge = os.urandom(32)
        peer.settimeout(PROOF_S)
        try:
            peer.sendall(challenge)
            said = _receive(peer, 36)
            node = int.from_bytes(said[:4], "big")
            if not 0 < node < self.nodes or not hmac.compare_digest(said[4:], self._answer(node, challenge)):
                _logger.warning("a connection from %s has another secret, or is of no node of this server", host)
                return peer.close()
            peer.sendall(self._answer(0, challenge))
            return node
        except OSError:
            return peer.close()

    def _join(self, address):
        tries = 0
        while True:
            try:
                peer = socket.create_connection(address, PROOF_S)
                challenge = _receive(peer, 32)
                break
            except OSError as error:
                tries += 1
                if tries % 60 == 0:  # vLLM itself ends a node that node 0 never joins
                    _logger.warning("node 0 at %s:%d does not answer yet: %s", *address, error)
            time.sleep(1)
        try:
            peer.sendall(self.node.to_bytes(4, "big") + self._answer(self.node, challenge))
            if not hmac.compare_digest(_receive(peer, 32), self._answer(0, challenge)):
                raise ConnectionError
        except OSError:
            self._end(f"node 0 at {address[0]} has another secret, or this node's rank is none of its: this server ends")
        self._await_end(peer, 0, address[0])

    def _await_end(self, peer, node, host):
        peer.settimeout(None)
        for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
            peer.setsockopt(socket.IPPROTO_TCP, option, value)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        try:
            peer.recv(1)
            why = "its process has ended"
        except OSError as error:
            why = str(error)
        first = node * self.ranks
        self._end(f"node {node} at {host}, ranks {first} to {first + self.ranks - 1}, is lost ({why}): this server ends")

    def _end(self, why):
        import psutil

        self.lost = why
        _logger.error(why)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        for child in psutil.Process().children(recursive=True):
            child.kill()
        os._exit(1)


def _family(address):
    return socket.getaddrinfo(*address)[0][0]


def _begin(work):
    threading.Thread(target=work, daemon=True, name="banyan-nodes").start()


def _receive(peer, size):
    said, end = b"", time.monotonic() + PROOF_S
    while len(said) < size:
        peer.settimeout(max(0.01, end - time.monotonic()))
        more = peer.recv(size - len(said))
        if not more:
            raise ConnectionError("it was closed")
        said += more
    return said
