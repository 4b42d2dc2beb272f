# SPDX-License-Identifier: Apache-2.0
"""Nodes of a vLLM server notice each other. Connections that prove nothing neither pile up nor keep a node out. The
secret that they share is whole when it is seen."""

import importlib.util
import pathlib
import queue
import socket
import threading
import types

import pytest

SOURCE = pathlib.Path(__file__).parents[2] / "integrations/vllm/banyan_vllm"
SILENT, PATIENCE_S = 70, 30


def read(name):
    spec = importlib.util.spec_from_file_location(name, SOURCE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(monkeypatch, met):
    nodes = read("nodes")
    monkeypatch.setattr(nodes, "PROOF_S", 1)
    monkeypatch.setattr(nodes.Watch, "_await_end", lambda watch, peer, node, host: met.put((watch.node, node, peer)))
    monkeypatch.setattr(nodes.Watch, "_end", lambda watch, why: met.put(why))
    return nodes


def test_silent_connections(monkeypatch):
    assert SOURCE.exists(), "the source tree is not around this test"
    met = queue.Queue()
    nodes = load(monkeypatch, met)
    assert SILENT > nodes.UNPROVEN
    proving, most, lock, prove = 0, 0, threading.Lock(), nodes.Watch._prove

    def counted(watch, peer, host):
        nonlocal proving, most
        with lock:
            proving += 1
            most = max(most, proving)
        try:
            return prove(watch, peer, host)
        finally:
            with lock:
                proving -= 1

    monkeypatch.setattr(nodes.Watch, "_prove", counted)
    first = nodes.Watch(0, 2, ("127.0.0.1", 0), 1, b"secret")
    address = first.listener.getsockname()
    silent = [socket.create_connection(address, PATIENCE_S) for _ in range(SILENT)]
    nodes.Watch(1, 2, address, 1, b"secret")
    ends = [met.get(timeout=PATIENCE_S) for _ in range(2)]
    assert sorted(end[:2] for end in ends) == [(0, 1), (1, 0)], ends
    for peer in silent:
        while peer.recv(32):  # node 0 closes each of them
            pass
        peer.close()
    assert most <= nodes.UNPROVEN, f"{most} connections without a proof at once"
    for *_, peer in ends:
        peer.close()


def test_other_secret(monkeypatch):
    met = queue.Queue()
    nodes = load(monkeypatch, met)
    first = nodes.Watch(0, 2, ("127.0.0.1", 0), 1, b"secret")
    nodes.Watch(1, 2, first.listener.getsockname(), 1, b"another")
    assert "has another secret" in met.get(timeout=PATIENCE_S)


def test_a_secret_is_seen_whole(monkeypatch, tmp_path):
    command, path = read("command"), tmp_path / "secret"
    monkeypatch.delenv("BANYAN_SECRET", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BANYAN_SECRET_FILE", "~/secret")
    monkeypatch.setattr(command.secrets, "token_hex", lambda n: "" if path.exists() else "5a" * n)
    for node in range(2):  # `banyan-vllm check` makes none
        assert "not there" in command.find_secret(types.SimpleNamespace(node_rank=node), serves=False)
    assert not path.exists()
    assert "made now" in command.find_secret(types.SimpleNamespace(node_rank=0))
    assert command.read_secret() == b"5a" * 32 and path.stat().st_mode & 0o777 == 0o600
    assert command.find_secret(types.SimpleNamespace(node_rank=1)) == str(path)
    path.write_text("\n")
    with pytest.raises(SystemExit, match="is empty"):
        command.read_secret()
