#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check-gpu with programs that hang, crash and fail: what is cut by --seconds is no failure and runs again, what has failed
stays failed, and files of another kind are refused."""
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import types

TOP = os.environ.get("top_srcdir") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SCRIPT = os.path.join(TOP, "tests", "gpu", "check-gpu")
sys.dont_write_bytecode = True
LOADER = importlib.machinery.SourceFileLoader("check_gpu", SCRIPT)
check_gpu = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_gpu", LOADER))
LOADER.exec_module(check_gpu)
check_gpu.END_S = 0.5
STEPS = {step.name: step for step in check_gpu.STEPS}

LOG = """<test result="%s"><path>.</path><fn>f</fn><id>%s</id><iteration>0</iteration><duration>0.1</duration>
<description>d</description><message>m</message></test>"""


def program(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)


def perform(folder, name, seconds, most=100):
    """Runs one step with a program of this folder. Returns its entry, its tests by name, and its problems."""
    options = types.SimpleNamespace(tests=folder, tools=folder, quick=True, output=os.path.join(folder, "out.json"))
    results = {"format": check_gpu.FORMAT, "quick": True, "device": "Fake", "machine": {"some": "thing"}, "steps": [],
               "tests": [], "measured": [], "problems": [], "left_out": []}
    began = time.monotonic()
    check_gpu.run_step(STEPS[name]._replace(most=most), options, results, seconds)
    assert time.monotonic() - began < seconds + 30, "it takes longer than it may"
    with open(options.output, encoding="utf-8") as file:
        assert json.load(file)["tests"] == results["tests"]
    tests = [(test["name"], test["result"]) for test in results["tests"]]
    return results["steps"][0]["text"], tests, results["problems"]


def check_sanitizer(folder):
    program(folder, "test_device_attention", "exit 0\n")
    os.makedirs(os.path.join(folder, "bin"))
    os.environ["PATH"] = os.path.join(folder, "bin") + ":" + os.environ["PATH"]
    tool = os.path.join("bin", "compute-sanitizer")
    for text, seconds, most, expected in (("exec sleep 60", 1, 100, ("ended by --seconds", "skip")), ("exit 0", 5, 100, ("", "pass")),
                                          ("exec sleep 60", 1, 1, ("", "fail")), ("exit 9", 5, 100, ("", "fail"))):
        program(folder, tool, text + "\n")
        cut, tests, _ = perform(folder, "memcheck", seconds, most)
        assert (cut, tests) == (expected[0], [("memcheck", expected[1])]), (text, cut, tests)


def check_second_run(folder):
    """The first run has a failure, or crashes, and the second passes, hangs, or has no result of that test."""
    failed, passed, other = LOG % ("failure", "a"), LOG % ("success", "a"), LOG % ("success", "b")
    for first, second, expected in (
            ((failed, "exit 1"), ("", "exec sleep 60"), [("program", "skip"), ("a", "fail")]),
            ((failed, "exit 1"), (other, "exit 0"), [("b", "pass"), ("a", "fail")]),
            ((failed, "exit 1"), (passed, "exit 0"), [("a", "pass")]),
            ((other, "kill -SEGV $$"), (other, "exec sleep 60"), [("b", "pass"), ("program", "skip"), ("program", "fail")]),
            ((other, "kill -SEGV $$"), (other, "exit 0"), [("b", "pass")])):
        program(folder, "test_heads", """if [ "$CK_FORK" = no ]; then
  printf '%%s' '%s' >"$CK_XML_LOG_FILE_NAME"; %s
fi
printf '%%s' '%s' >"$CK_XML_LOG_FILE_NAME"; %s
""" % (first + second))
        _, tests, _ = perform(folder, "heads", 2)
        assert tests == expected, (first, second, tests)


def check_measurements(folder):
    """Each step has two programs. The first answers or fails, and the second hangs."""
    text = 'case "$*" in *"%s "*) %s ;; *) exec sleep 60 ;; esac\n'
    program(folder, "banyan-decode", text % ("--ranks 2", "echo {}"))
    os.environ["CUDA_MODULE_LOADING"] = "EAGER"
    cut, _, problems = perform(folder, "speed", 2)
    assert (cut, problems) == ("ended by --seconds", []), (cut, problems)
    cut, _, problems = perform(folder, "speed", 2, 2)
    assert cut == "" and len(problems) == 1, (cut, problems)
    program(folder, "banyan-perf", text % ("--sizes 520", "exit 3"))
    cut, _, problems = perform(folder, "combine", 2)
    assert cut and len(problems) == 1 and "exit status 3" in problems[0]["text"], (cut, problems)
    program(folder, "banyan-decode", "exec sleep 60\n")
    cut, _, problems = perform(folder, "speed", 2)
    assert (cut, problems) == ("ended by --seconds", []), (cut, problems)


def check_given_up(folder):
    """A program is given up if a process that it forked into another session holds its output."""
    program(folder, "forks", "echo some\nsetsid sleep 20 &\nexec sleep 60\n")
    began = time.monotonic()
    status, out, err = check_gpu.run([os.path.join(folder, "forks")], 1)
    assert status is None and out == "some\n" and "given up" in err, (status, out, err)
    assert time.monotonic() - began < 15


def check_add(folder):
    program(folder, "test_gpu_words", "exit 0\n")
    path = os.path.join(folder, "file.json")

    def add(*words, **changes):
        row = {"step": "heads", "name": "a", "result": "pass", "text": "", "index": 0}
        entries = [{"step": "heads", "text": ""}, {"step": "sums", "text": "ended by --seconds"},
                   {"step": "bytes", "text": "it was under way when this was written"}]
        results = dict({"format": check_gpu.FORMAT, "quick": False, "device": "unknown", "machine": {"some": "thing"},
                        "steps": entries, "tests": [dict(row, step=entry["step"]) for entry in entries], "measured": [],
                        "problems": [{"step": "sums", "text": "p"}, {"step": "heads", "text": "q"}], "left_out": ["user"]}, **changes)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(results, file)
        done = subprocess.run([sys.executable, SCRIPT, "--tests", folder, "--tools", folder, "--add", path, "--output", path, *words],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", check=False,
                              env=dict(os.environ, BANYAN_CUDA_LIBRARY=os.path.join(folder, "none.so")))
        with open(path, encoding="utf-8") as file:
            return done.returncode, done.stdout, json.load(file)

    _, said, _ = add("--list")
    names = {line.split()[0] for line in said.splitlines()}
    assert names == set(STEPS) - {"heads"}, names
    status, said, results = add("--seconds", "1", "--only", "sums,user")
    assert status == 1 and results["left_out"] == ["sums", "user"], (said, results)
    assert all(one["step"] == "heads" for name in ("steps", "tests", "problems") for one in results[name]), results
    for words, changes, says in (((), {"format": 4}, "format %d" % check_gpu.FORMAT), (("--quick",), {}, "without --quick"),
                                 ((), {"quick": True}, "with --quick"), ((), {"device": "H200"}, '"H200"')):
        status, said, results = add(*words, **changes)
        assert status == 1 and says in said and "Traceback" not in said and results["left_out"] == ["user"], (says, said)


for check in (check_sanitizer, check_second_run, check_measurements, check_given_up, check_add):
    with tempfile.TemporaryDirectory() as place:
        check(place)
