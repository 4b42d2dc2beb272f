#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks banyan-decode and banyan-perf from outside: options, output, exit status, methods, bad files, launchers."""
import itertools
import json
import os
import pathlib
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
from views import paper  # noqa: E402

DECODE = os.environ["BANYAN_DECODE"]
PERF = os.environ["BANYAN_PERF"]
DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "smollm2-135m.safetensors"
MPIRUN = shutil.which("mpirun")
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", LC_ALL="C")
SMALL = ["--batch", "3", "--tokens", "50", "--heads", "6", "--kv-heads", "2", "--head-dim", "40", "--ragged",
         "--repeat", "2"]
SEED = 20240817  # seeds the damage done to files


def run(program, *args, env=None):
    return subprocess.run([program, *args], env=env or ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=120)


def mpirun(ranks, program, *args):
    environment = dict(ENVIRONMENT)  # Open MPI leaks memory and hides its locks from thread checkers
    environment["ASAN_OPTIONS"] = environment.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    environment["TSAN_OPTIONS"] = environment.get("TSAN_OPTIONS", "") + ":report_bugs=0"
    return run(MPIRUN, "--oversubscribe", "-n", str(ranks), program, *args, env=environment)


def safetensors(tensors, metadata=None):
    """The bytes of a file. tensors: name -> (dtype, shape, bytes)."""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return pack(json.dumps(header).encode(), data)


def pack(header, data):
    return struct.pack("<Q", len(header)) + header + data


def floats(count, scale=1.0, seed=1):
    values = random.Random(seed)
    return struct.pack(f"<{count}f", *(scale * values.uniform(-1, 1) for _ in range(count)))


def layer(number=0, batch=1, heads=4, kv_heads=2, tokens=9, dim=8, scale=1.0):
    return {f"layers.{number}.q": ("F32", [batch, heads, dim], floats(batch * heads * dim, seed=number)),
            f"layers.{number}.k": ("F32", [batch, kv_heads, tokens, dim], floats(batch * kv_heads * tokens * dim)),
            f"layers.{number}.v": ("F32", [batch, kv_heads, tokens, dim],
                                   floats(batch * kv_heads * tokens * dim, scale, 2))}


class Tools(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def write(self, data):
        path = self.directory / "input.safetensors"
        path.write_bytes(data)
        return str(path)

    def expect(self, done, status):
        self.assertEqual(done.returncode, status, f"{done.args}\n{done.stdout}\n{done.stderr}")
        return done

    def rejected(self, data, *words):
        """The file must be rejected with a message that has these words and names the file."""
        done = self.expect(run(DECODE, "--input", self.write(data)), 2)
        for word in ("input.safetensors", *words):
            self.assertIn(word, done.stderr)
        self.assertEqual(done.stdout, "")

    def decoded(self, done, ranks):
        """Returns the JSON object of a verified run."""
        self.expect(done, 0)
        found = json.loads(done.stdout)
        self.assertEqual(found["ranks"], ranks)
        self.assertIs(found["verified"], True)
        self.assertEqual(sum(found["tokens_per_rank"]), found["tokens"])
        return found


class Options(Tools):
    def test_wrong_usage(self):
        decode = ("--frob", "--ranks 0", "--ranks -1", "--ranks 2x", "--ranks 999999", "--tokens 0", "--dtype f64",
                  "--wire int8", "--method star", "--scatter some", "--order none", "--repeat 0", "--seed x",
                  "--heads 6 --kv-heads 4", "--input a --tokens 3", "--timeout 0", "extra", "--input")
        for options in decode:
            done = self.expect(run(DECODE, *options.split()), 2)
            self.assertEqual(done.stdout, "", options)
            self.assertIn("--help", done.stderr)
        perf = ("", "combine allgather", "reduce", "combine --sizes", "combine --sizes 0", "combine --sizes 1,,2",
                "combine --sizes 5X", "combine --against nccl", "combine --scatter heads --against mpi",
                "allgather --heads 3", "barrier --wire f16", "combine --batch 2 --sizes 520", "combine --iterations 0",
                "combine --against mpi", "allgather --against mpi", "allgather-heads --against mpi")
        for options in perf:
            done = self.expect(run(PERF, *options.split()), 2)
            self.assertEqual(done.stdout, "", options)
            self.assertIn("--help", done.stderr)

    def test_wrong_device(self):
        for program, *options in (DECODE,), (PERF, "combine"):
            for device in "rocm", "cuda:", "cuda:x", "cuda:-1", "cuda2", "":
                done = self.expect(run(program, *options, "--device", device), 2)
                self.assertIn(f"--device {device}: neither cuda nor cuda:N", done.stderr)
            done = self.expect(run(program, *options, "--device", "cuda", "--ranks", "33"), 2)
            self.assertIn("--device:", done.stderr)

    def test_ranks_complain_once(self):
        done = self.expect(run(DECODE, "--ranks", "3", "--input", "/nonexistent"), 2)
        self.assertEqual(done.stderr.count("No such file"), 1, done.stderr)
        done = self.expect(run(DECODE, "--ranks", "3", "--algorithm", "telepathy", *SMALL), 1)
        self.assertEqual(done.stderr.count("telepathy"), 1, done.stderr)


class Decode(Tools):
    def test_json_shape(self):
        found = self.decoded(run(DECODE, "--ranks", "3", "--json", *SMALL), 3)
        for key, kind in {"tokens": int, "heads": int, "kv_heads": int, "head_dim": int, "dtype": str, "wire": str,
                          "results": list}.items():
            self.assertIsInstance(found[key], kind, key)
        self.assertEqual([found[k] for k in ("tokens", "heads", "kv_heads", "head_dim")], [50, 6, 2, 40])
        self.assertEqual([r["method"] for r in found["results"]], ["tree", "ring", "allreduce3"])
        for result in found["results"]:
            for key in ("max_abs_error", "max_rel_error", "local_us", "combine_us"):
                self.assertIsInstance(result[key], float, key)
                self.assertGreaterEqual(result[key], 0)
            self.assertGreater(result["latency_us"]["p50"], 0)
            self.assertGreaterEqual(result["latency_us"]["p99"], result["latency_us"]["p50"])
            self.assertGreater(result["bytes_sent_per_rank"], 0)
            self.assertGreater(result["peak_extra_bytes_per_rank"], 0)
            self.assertIsInstance(result["algorithm"], str)
            self.assertIs(result["run_bits_equal"], True)

    def test_all_forms(self):
        """Every scatter x wire x order x number of ranks, all methods."""
        forms = itertools.product((1, 3, 4), ("none", "root", "heads", "tokens"), ("f32", "bf16", "f16"),
                                  ("plan", "canonical"))
        for ranks, scatter, wire, order in forms:
            if ranks != 3 and order == "canonical" and wire == "f16":
                continue
            with self.subTest(ranks=ranks, scatter=scatter, wire=wire, order=order):
                found = self.decoded(run(DECODE, "--ranks", str(ranks), "--scatter", scatter, "--wire", wire, "--order",
                                         order, "--json", *SMALL), ranks)
                tree, ring, allreduce3 = found["results"]
                self.assertEqual(tree["scatter"], scatter)
                self.assertEqual(ring["scatter"], "none")
                if scatter == "none":
                    self.assertIs(tree["rank_bits_equal"], True)
                self.assertIs(allreduce3["rank_bits_equal"], True)
                bound = {"f32": 2e-6, "f16": 2e-3, "bf16": 2e-2}[wire]
                self.assertLessEqual(tree["max_rel_error"], bound)
                self.assertLessEqual(ring["max_rel_error"], 2e-6)

    def test_exact_order(self):
        for ranks in 1, 2, 3:
            found = self.decoded(run(DECODE, "--ranks", str(ranks), "--tokens", "700", "--heads", "2", "--head-dim", "16",
                                     "--order", "exact", "--repeat", "2", "--method", "fused", "--json"), ranks)
            self.assertIs(found["results"][0]["run_bits_equal"], True)

    def test_dtypes_and_single_methods(self):
        for dtype, method in itertools.product(("f32", "f16", "bf16"), ("tree", "ring", "allreduce3")):
            with self.subTest(dtype=dtype, method=method):
                found = self.decoded(run(DECODE, "--ranks", "2", "--dtype", dtype, "--method", method, "--json",
                                         *SMALL), 2)
                self.assertEqual([r["method"] for r in found["results"]], [method])
                self.assertEqual(found["dtype"], dtype)

    def test_fewer_tokens_than_ranks(self):
        found = self.decoded(run(DECODE, "--ranks", "5", "--tokens", "2", "--heads", "3", "--kv-heads", "1",
                                 "--head-dim", "16", "--repeat", "2", "--json"), 5)
        self.assertEqual(found["tokens_per_rank"], [1, 1, 0, 0, 0])

    def test_what_travels(self):
        """Ring sends the shards of other ranks. Tree sends partials, whose size does not depend on the cache."""
        shape = ["--heads", "2", "--kv-heads", "1", "--head-dim", "64", "--repeat", "2", "--json", "--ranks", "3"]
        sent = [{r["method"]: r["bytes_sent_per_rank"] for r in
                 self.decoded(run(DECODE, *shape, "--tokens", str(tokens)), 3)["results"]} for tokens in (300, 3000)]
        self.assertEqual(sent[0]["tree"], sent[1]["tree"])
        self.assertEqual(sent[0]["ring"], 2 * 2 * 100 * 64 * 4)
        self.assertEqual(sent[1]["ring"], 10 * sent[0]["ring"])

    def kernel_only(self, *options):
        """Returns the JSON object of a run of attention alone, after a check that its figures agree."""
        found = json.loads(self.expect(run(DECODE, *options, "--json"), 0).stdout)
        for key in "kv_gbps", "read_gbps", "ratio", "gflops", "attention_us", "read_us", "max_abs_error", "max_rel_error":
            self.assertIsInstance(found[key], float, key)
            self.assertGreater(found[key], 0, key)
        for key in "kv_bytes", "read_bytes", "threads", "batch", "tokens", "keys", "heads", "kv_heads", "head_dim", "repeat":
            self.assertIs(type(found[key]), int, key)
        for speed, size, time in ("kv_gbps", "kv_bytes", "attention_us"), ("read_gbps", "read_bytes", "read_us"):
            self.assertAlmostEqual(found[speed] / (found[size] / found[time] * 1e-3), 1, 6)
        self.assertAlmostEqual(found["ratio"] / (found["kv_gbps"] / found["read_gbps"]), 1, 6)
        queries = found["queries"]  # each sees the keys up to its own
        pairs = queries * (found["keys"] - found["batch"] * (queries - 1) / 2)
        work = 2e-3 * found["heads"] * pairs * (found["head_dim"] + found["value_dim"])
        self.assertAlmostEqual(found["gflops"] / (work / found["attention_us"]), 1, 6)
        self.assertGreaterEqual(found["fma_gflops"], 0)
        self.assertTrue(found["local_pages"] is None or 0 <= found["local_pages"] <= 1, found["local_pages"])
        self.assertIs(found["verified"], True)
        return found

    def test_local_attention_stands_beside_reads(self):
        for threads in "1", "2":
            options = "--kernel-only", "--tokens", "4096", "--dtype", "f16", "--threads", threads, "--repeat", "2"
            found = self.kernel_only(*options)
            self.assertEqual(found["kv_bytes"], 2 * 2 * found["batch"] * 4096 * found["kv_heads"] * found["head_dim"])
            self.assertEqual((found["threads"], found["read_bytes"]), (int(threads), found["kv_bytes"]))
            self.assertIn("read loop", self.expect(run(DECODE, *options), 0).stdout)

    def test_local_attention_of_ragged_sequences_counts_their_keys(self):
        found = self.kernel_only("--kernel-only", "--batch", "7", "--tokens", "600", "--ragged", "--repeat", "1")
        self.assertTrue(600 < found["keys"] < 7 * 600, found["keys"])
        key = 2 * 4 * found["kv_heads"] * found["head_dim"]
        self.assertEqual((found["kv_bytes"], found["read_bytes"]), (found["keys"] * key, 7 * 600 * key))

    def test_local_attention_of_prompts(self):
        for options in ("1", "60"), ("40", "300"), ("300", "300", "--batch", "2", "--dtype", "bf16"):
            found = self.kernel_only("--kernel-only", "--queries", options[0], "--tokens", *options[1:], "--repeat", "1")
            self.assertEqual(found["queries"], int(options[0]))
        for options in ("--queries", "5"), ("--kernel-only", "--queries", "7", "--tokens", "6"):
            self.assertIn("--queries", self.expect(run(DECODE, *options), 2).stderr)

    def test_local_attention_over_all_caches(self):
        """Every type of keys, plain and of MLA; those of eight bits and of MLA are rejected elsewhere."""
        for dtype, size in ("f32", 4), ("f16", 2), ("bf16", 2), ("e4m3", 1), ("int8", 1):
            for columns, dims in ((2 * 64, (64, 64)), (576, (576, 512))):
                with self.subTest(dtype=dtype, dims=dims):
                    found = self.kernel_only("--kernel-only", "--tokens", "300", "--heads", "16", "--kv-heads", "2", "--dtype",
                                             dtype, "--head-dim", str(dims[0]), "--repeat", "1")
                    self.assertEqual(((found["head_dim"], found["value_dim"]), found["dtype"]), (dims, dtype))
                    self.assertEqual(found["kv_bytes"], size * 300 * 2 * columns)
        for options in ("--dtype", "int8"), ("--head-dim", "576"):
            self.assertIn("--kernel-only", self.expect(run(DECODE, *options), 2).stderr)

    def test_local_attention_to_keys_that_are_spread(self):
        """The read loop reads the whole cache, of which the sequence has some keys."""
        for options in ("--kv-heads", "2", "--heads", "6"), ("--head-dim", "576", "--heads", "8", "--kv-heads", "1", "--dtype", "e4m3"):
            found = self.kernel_only("--kernel-only", "--tokens", "300", "--spread", "1000", "--repeat", "1", *options)
            self.assertEqual(found["read_bytes"], found["kv_bytes"] / 300 * 1000)
        for options in ("--spread", "5"), ("--kernel-only", "--tokens", "6", "--spread", "5"):
            self.assertIn("--spread", self.expect(run(DECODE, *options), 2).stderr)

    def test_bytes_and_memory_are_those_of_the_formulae(self):
        """They match banyan's layout exactly, and the paper's formulae if whole rows fill lines of 64 bytes."""
        for ranks, batch, heads, dim, keys in ((2, 1, 8, 32, 24), (3, 2, 7, 20, 30), (4, 1, 32, 128, 8), (8, 4, 64, 64, 16)):
            with self.subTest(ranks=ranks, batch=batch, heads=heads, dim=dim):
                found = paper.methods(DECODE, ranks, ranks * keys, batch, heads, dim, "f16", 1)
                for method in paper.METHODS:
                    shape = method, ranks, batch, heads, dim, keys, 2
                    sent, held = paper.exact(*shape)
                    self.assertEqual(found[method]["bytes_sent_per_rank"], sent, method)
                    self.assertEqual(found[method]["peak_extra_bytes_per_rank"] - found[method]["arena_bytes_per_rank"], held, method)
                    least, room = paper.formula(*shape)
                    most = least * (1 if method == "ring" else 1.1)
                    fewest, greatest = (room * ratio for ratio in paper.memory_ratio(*shape))
                    self.assertLessEqual(fewest * (1 - 1e-9), held, method)
                    self.assertLessEqual(held, greatest * (1 + 1e-9), method)
                    if heads * batch // ranks % 8 == 0:  # statistics fill whole cache lines
                        self.assertLessEqual(least, sent, method)
                        self.assertLessEqual(sent, most, method)

    def test_overlap(self):
        """Within a node nothing runs in slices, and the parts of an operation cannot be measured separately."""
        found = self.decoded(run(DECODE, "--ranks", "2", "--method", "overlap", "--json", *SMALL), 2)
        self.assertEqual([r["method"] for r in found["results"]], ["fused", "overlap"])
        for result in found["results"]:
            self.assertEqual((result["slices"], result["local_us"], result["combine_us"]), (1, None, None))

    def test_epsilon(self):
        shape = ("--ranks", "2", "--method", "overlap", "--tokens", "3000", "--heads", "4", "--kv-heads", "2",
                 "--head-dim", "64", "--repeat", "2")
        before = 1.1
        for epsilon in "1e-6", "1e-2", "0.3":
            found = self.decoded(run(DECODE, *shape, "--epsilon", epsilon, "--json"), 2)
            for result in found["results"]:
                read, certified = result["pages_read"], result["certified_error"]
                self.assertLess(read, before, epsilon)
                self.assertLessEqual(result["max_rel_error"], certified + result["rel_error_bound"])
                self.assertLess(certified, 200 * float(epsilon))
            before = read
        self.assertLess(before, 0.9)
        self.assertNotIn("pages_read", json.loads(run(DECODE, *shape, "--json").stdout)["results"][0])
        done = self.expect(run(DECODE, *shape, "--epsilon", "0.3"), 0)
        self.assertRegex(done.stdout, r"overlap read up to [0-9.]+ % of the pages .*; rows are certified within")
        self.assertRegex(done.stdout, "verified: worst relative error beyond the certificate")

    def test_wrong_epsilon(self):
        for value in "0", "-1", "1.01", "nan", "inf", "1e-2x", "", "x":
            done = self.expect(run(DECODE, "--method", "fused", "--epsilon", value, *SMALL), 2)
            self.assertIn("--epsilon: ", done.stderr, value)
            self.assertEqual(done.stdout, "")
        for options in ("--method", "tree"), ("--method", "fused", "--order", "exact"), ("--kernel-only",):
            done = self.expect(run(DECODE, *options, "--epsilon", "0.1", *SMALL), 2)
            self.assertIn("--epsilon", done.stderr, options)

    def test_for_people(self):
        done = self.expect(run(DECODE, "--ranks", "2", *SMALL), 0)
        last = done.stdout.rstrip().splitlines()[-1]
        self.assertTrue(last.startswith("verified: worst relative error"), last)
        self.assertIn("all ranks bitwise equal: tree, allreduce3\n", done.stdout)

    def test_same_seed_same_errors(self):
        one, two, other = (json.loads(run(DECODE, "--json", "--seed", s, *SMALL).stdout)["results"][0]["max_rel_error"]
                           for s in ("5", "5", "6"))
        self.assertEqual(one, two)
        self.assertNotEqual(one, other)

    def test_not_verified(self):
        """Values beyond the range of f16 cannot be sent as f16. The tool must detect and report that."""
        path = self.write(safetensors(layer(scale=1e7)))
        done = self.expect(run(DECODE, "--ranks", "2", "--input", path, "--wire", "f16", "--method", "tree",
                               "--json"), 1)
        self.assertIs(json.loads(done.stdout)["verified"], False)
        self.assertIn("NOT VERIFIED", done.stderr)
        self.expect(run(DECODE, "--ranks", "2", "--input", path, "--wire", "f32"), 0)

    @unittest.skipUnless(DATA.exists(), "no data of a model here")
    def test_real_input(self):
        found = self.decoded(run(DECODE, "--ranks", "4", "--input", str(DATA), "--repeat", "2", "--json"), 4)
        self.assertGreaterEqual(found["tokens"], 2048)
        self.assertGreaterEqual(len(found["layers"]), 2)
        for result in found["results"]:
            self.assertLess(result["max_rel_error"], 1e-6)


class Files(Tools):
    def test_good(self):
        found = self.decoded(run(DECODE, "--json", "--input", self.write(
            safetensors({**layer(7), **layer(2)}, {"scale": "0.25"}))), 1)
        self.assertEqual(found["layers"], [2, 7])

    def test_damaged(self):
        good = safetensors(layer())
        length, = struct.unpack("<Q", good[:8])
        header, data = good[8:8 + length], good[8 + length:]
        self.rejected(b"", "too short")
        self.rejected(good[:7], "too short")
        self.rejected(good[:100], "header length")
        self.rejected(good[:-1], "outside", "layers.0.v")
        self.rejected(struct.pack("<Q", 1 << 63) + good[8:], "header length")
        self.rejected(struct.pack("<Q", (1 << 64) - 1) + good[8:], "header length")
        self.rejected(struct.pack("<Q", length - 9) + good[8:], "not a JSON object")
        self.rejected(pack(b"[]", data), "not a JSON object")
        self.rejected(pack(b"[" * 100000, data), "not a JSON object")
        self.rejected(pack(b"{}", data), "no tensor layers.L.q")
        self.rejected(pack(b'{"__metadata__": 3}', data), "__metadata__")

    def changed(self, name, **changes):
        """Returns the valid file with fields of one tensor's entry changed, or the entry removed."""
        good = safetensors(layer())
        length, = struct.unpack("<Q", good[:8])
        header = json.loads(good[8:8 + length])
        if changes:
            header[name].update(changes)
        else:
            del header[name]
        return pack(json.dumps(header).encode(), good[8 + length:])

    def test_wrong_entries(self):
        name, v = "layers.0.k", "layers.0.v"
        self.rejected(self.changed(name), name, "missing")
        self.rejected(self.changed(v), v, "missing")
        self.rejected(self.changed(name, dtype="F31"), name, "unknown dtype")
        self.rejected(self.changed(name, dtype="I32"), name, "I32", "not one of F32, F16 and BF16")
        self.rejected(self.changed(name, dtype=7), name, "no dtype")
        self.rejected(self.changed(name, dtype="F16"), name, "data_offsets", "shape")
        self.rejected(self.changed(name, data_offsets=[128, 1 << 40]), name, "outside")
        self.rejected(self.changed(name, data_offsets=[-4, 572]), name, "outside")
        self.rejected(self.changed(name, data_offsets=[704, 128]), name, "outside")
        self.rejected(self.changed(name, data_offsets=[128]), name, "not a pair")
        self.rejected(self.changed(name, data_offsets=[0, 576]), "overlap")
        self.rejected(self.changed(name, data_offsets=["0", "576"]), name, "not a pair")
        self.rejected(self.changed(name, shape=[1, 2, 9, -8]), name, "shape[3]")
        self.rejected(self.changed(name, shape=[1 << 62, 1 << 62, 4, 4]), name, "too large")
        self.rejected(self.changed(name, shape=[1] * 40), name, "shape")
        self.rejected(self.changed(name, shape="144"), name, "shape")
        self.rejected(self.changed(name, shape=[1, 2, 72]), name, "shape is not")
        self.rejected(self.changed(v, shape=[1, 2, 8, 9]), v, "shape is not")
        self.rejected(self.changed("layers.0.q", shape=[1, 32]), "layers.0.q", "shape is not")
        self.rejected(safetensors(layer(heads=3)), "not a multiple")
        self.rejected(safetensors(layer(tokens=0)), "is 0 or too large")
        for scale in "", "x", "-1", "inf", "0", "1e-99", "0.5 ":
            self.rejected(safetensors(layer(), {"scale": scale}), "scale")

    def test_values_out_of_range(self):
        for scale, dtype, reason in (float("inf"), "f32", "not finite"), (1e7, "f16", "beyond the range of f16"):
            path = self.write(safetensors(layer(scale=scale)))
            done = self.expect(run(DECODE, "--input", path, "--dtype", dtype), 2)
            self.assertIn(reason, done.stderr)
            self.assertIn("layers.0.v", done.stderr)

    def test_not_files(self):
        self.assertIn("not a regular file", self.expect(run(DECODE, "--input", str(self.directory)), 2).stderr)
        self.assertIn("not a regular file", self.expect(run(DECODE, "--input", "/dev/zero"), 2).stderr)
        self.assertIn("No such file", self.expect(run(DECODE, "--input", "/nonexistent"), 2).stderr)

    def test_random_damage(self):
        """Files with random changes in the header are read or rejected, and never crash."""
        good = safetensors(layer(), {"scale": "0.5"})
        length, = struct.unpack("<Q", good[:8])
        chance = random.Random(SEED)
        for trial in range(60):
            bad = bytearray(good)
            for _ in range(chance.randint(1, 4)):
                bad[chance.randrange(8 + length)] = chance.choice(b'0123456789{}[]",:-e\\ \x00\xff')
            done = run(DECODE, "--input", self.write(bytes(bad)), "--repeat", "1", "--method", "tree")
            self.assertIn(done.returncode, (0, 2),
                          f"seed {SEED}, trial {trial}: {bytes(bad[:8 + length])}\n{done.stderr}")


class Perf(Tools):
    def rows(self, done):
        self.expect(done, 0)
        found = json.loads(done.stdout)
        self.assertEqual(list(found)[-1], "rows")
        self.assertIn("# Out of bounds values : 0 OK", done.stderr)
        for row in found["rows"]:
            self.assertGreater(row["banyan_us"], 0)
            self.assertEqual(row["errors"], 0)
        return found["rows"]

    def test_combine(self):
        rows = self.rows(run(PERF, "combine", "--ranks", "3", "--sizes", "520,4160,16K", "--iterations", "10",
                             "--json"))
        self.assertEqual([row["bytes"] for row in rows], [520, 4160, 16640])
        self.assertLess(max(row["max_rel_error"] for row in rows), 2e-6)

    def test_exact_order(self):
        rows = self.rows(run(PERF, "combine", "--ranks", "3", "--sizes", "520", "--order", "exact", "--iterations", "5",
                             "--json"))
        self.assertLess(rows[0]["max_rel_error"], 2e-6)

    def test_in_a_row(self):
        for iterations in "1", "2", "120":
            rows = self.rows(run(PERF, "combine", "--ranks", "2", "--sizes", "520", "--iterations", iterations,
                                 "--in-a-row", "--json"))
            self.assertEqual(rows[0]["iterations"], int(iterations))
            self.assertEqual(rows[0]["bytes_between_nodes"], 0)

    def test_combine_forms(self):
        for scatter, wire, order in itertools.product(("none", "root", "heads", "tokens"), ("f32", "f16", "bf16"),
                                                      ("plan", "canonical")):
            with self.subTest(scatter=scatter, wire=wire, order=order):
                rows = self.rows(run(PERF, "combine", "--ranks", "3", "--batch", "5", "--heads", "7",
                                     "--head-dim", "24", "--scatter", scatter, "--wire", wire, "--order", order,
                                     "--iterations", "5", "--json"))
                self.assertEqual([row["rows"] for row in rows], [35])

    def test_other_collectives(self):
        for collective in "allgather", "shift", "broadcast":
            rows = self.rows(run(PERF, collective, "--ranks", "3", "--sizes", "1,77,4K", "--iterations", "5", "--json"))
            self.assertEqual([row["bytes"] for row in rows], [1, 77, 4096])
        self.assertEqual(len(self.rows(run(PERF, "barrier", "--ranks", "3", "--iterations", "5", "--json"))), 1)
        rows = self.rows(run(PERF, "allreduce", "--ranks", "3", "--sizes", "1,77,4K", "--iterations", "5", "--json"))
        self.assertEqual([row["bytes"] for row in rows], [4, 80, 4096])
        rows = self.rows(run(PERF, "select", "--ranks", "3", "--sizes", "1,77,4K", "--iterations", "5", "--json"))
        self.assertEqual([row["bytes"] for row in rows], [12, 84, 4104])

    def test_for_people(self):
        done = self.expect(run(PERF, "combine", "--ranks", "2", "--sizes", "520", "--iterations", "5", "--pin"), 0)
        lines = done.stdout.splitlines()
        self.assertTrue(lines[0].startswith("# banyan-perf"))
        self.assertEqual(len([line for line in lines if not line.startswith("#")]), 1)
        self.assertIn("# Out of bounds values : 0 OK", lines)


class Launchers(Tools):
    def test_variables(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = [subprocess.Popen([DECODE, "--json", *SMALL], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env=dict(ENVIRONMENT, RANK=str(r), WORLD_SIZE="2", LOCAL_RANK=str(r),
                                           MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))) for r in range(2)]
        texts = [rank.communicate(timeout=120) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], texts)
        self.assertEqual(json.loads(texts[0][0])["ranks"], 2)
        self.assertEqual(texts[1][0], "")

    def with_mpi(self):
        if MPIRUN is None or "built without MPI" in mpirun(1, DECODE, *SMALL).stderr:
            self.skipTest("no MPI here")

    def test_mpirun(self):
        self.with_mpi()
        self.decoded(mpirun(3, DECODE, "--json", *SMALL), 3)
        done = mpirun(2, DECODE, "--input", "/nonexistent")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stderr.count("No such file"), 1, done.stderr)
        for program in [DECODE], [PERF, "combine"]:
            for text, *options in (("--ranks 3, but the launcher started 2", "--ranks", "3"), ("no such option", "--frob"),
                                   ("telepathy", "--algorithm", "telepathy")):
                done = mpirun(2, *program, *options)
                self.assertNotEqual(done.returncode, 0)
                self.assertEqual(done.stderr.count(text), 1, done.stderr)

    def test_against_mpi(self):
        self.with_mpi()
        for ranks, *options in (2,), (5,), (2, "--in-a-row"):
            done = self.expect(mpirun(ranks, PERF, "combine", "--against", "mpi", "--sizes", "520,16640",
                                      "--iterations", "20", "--json", *options), 0)
            for row in json.loads(done.stdout)["rows"]:
                self.assertEqual(row["errors"], 0)
                for key in "banyan_us", "mpi_allgather_us", "mpi_op_us", "mpi_allreduce3_us", "ratio_to_best_mpi":
                    self.assertGreater(row[key], 0)

    def test_other_collectives_against_mpi(self):
        self.with_mpi()
        for ranks, collective in itertools.product((2, 3), ("allgather-heads", "select", "allreduce")):
            form = "mpi_allreduce_us" if collective == "allreduce" else "mpi_allgather_us"
            done = self.expect(mpirun(ranks, PERF, collective, "--against", "mpi", "--sizes", "1K,9K", "--iterations", "20",
                                      "--json"), 0)
            for row in json.loads(done.stdout)["rows"]:
                self.assertEqual(row["errors"], 0)
                self.assertNotIn("mpi_op_us", row)
                self.assertAlmostEqual(row["ratio_to_best_mpi"], row[form] / row["banyan_us"], 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
