# SPDX-License-Identifier: Apache-2.0
"""check-gpu runs programs by these functions: it runs them for a bounded time, and reads what their tests say while they run."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import xml.etree.ElementTree

POLL_S = 2
TEXT_MAX = 4000


def say(text):
    print("check-gpu: " + text, flush=True)


def end(process):
    """Politely first, so that a test program can end what it has forked."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            return process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            pass
    return "", ""


def watch(command, seconds, environment, poll=None):
    """Exit status, stdout, stderr; a program that takes too long is ended and has the status None. `poll` is called now and then
    meanwhile. If this program is to end, the other one is ended first."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=dict(os.environ, **environment), encoding="utf-8", errors="replace",
                                   start_new_session=True)
    except OSError as error:
        return None, "", str(error)
    until = time.monotonic() + seconds
    try:
        while True:
            left = until - time.monotonic()
            try:
                out, err = process.communicate(timeout=max(0.01, min(left, POLL_S)) if poll else max(0.01, left))
                return process.returncode, out, err
            except subprocess.TimeoutExpired:
                if poll:
                    poll()
                if time.monotonic() >= until:
                    out, err = end(process)
                    return None, out, err + "\nended after %d s" % seconds
    except BaseException:
        end(process)
        raise


def run(command, seconds, **environment):
    return watch(command, seconds, environment)


def tail(text, lines=12):
    return "\n".join(text.strip().splitlines()[-lines:])[-TEXT_MAX:]


def json_of(command, seconds, **environment):
    """Returns the JSON that a program prints, or None with the reason."""
    status, out, err = run(command, seconds, **environment)
    try:
        return json.loads(out), "" if status == 0 else "exit status %s: %s" % (status, tail(err))
    except ValueError:
        return None, "exit status %s: %s" % (status, tail(out + err))


def lines_of(text):
    """Lines of JSON; a program that was ended may have left half of one."""
    made = []
    for line in text.splitlines():
        try:
            made.append(json.loads(line))
        except ValueError:
            pass
    return made


# ---- tests -----------------------------------------------------------------------------------------------------------

def read_log(path):
    """A log in XML; of a program that was ended, as far as it got."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    try:
        return xml.etree.ElementTree.fromstring(text)
    except xml.etree.ElementTree.ParseError:
        whole = text.rfind("</test>") + len("</test>")
        return xml.etree.ElementTree.fromstring(text[:whole] + "</suite></testsuites>")


def tests_of_log(program, path, skips):
    """The tests of a log; a test that said that it is skipped has passed in there."""
    tests = []
    for test in (one for one in read_log(path).iter() if one.tag.endswith("}test") or one.tag == "test"):
        fields = {part.tag.split("}")[-1]: (part.text or "").strip() for part in test}
        name, index = fields.get("id", "?"), int(fields.get("iteration", 0))
        result = "pass" if test.get("result") == "success" else "fail"
        text = "" if result == "pass" else fields.get("message", "")
        if result == "pass" and (name, index) in skips:
            result, text = "skip", skips[name, index]
        tests.append({"program": program, "name": name, "index": index, "result": result, "text": text,
                      "seconds": float(fields.get("duration", 0))})
    return tests


def one_test(program, name, result, text, seconds=0.0):
    return {"program": program, "name": name, "index": 0, "result": result, "text": text, "seconds": seconds}


def program_of(options, name):
    """Where a test program is: in a build tests of behaviour have folders of their own."""
    folders = [os.path.join(options.tests, "..", folder) for folder in ("api", "device")] + [options.tests]
    paths = [os.path.join(folder, name) for folder in folders]
    return next((path for path in paths if os.path.exists(path)), paths[-1])


SMALL_CASES = "2"  # each test runs so many


def environment_of(step, options, log, forks):
    made = {"CK_XML_LOG_FILE_NAME": log, "CK_VERBOSITY": "silent", "CK_RUN_CASE": step.case, "CK_FORK": "yes" if forks else "no"}
    if step.name == "small":
        made["GPU_TEST_CASES"] = SMALL_CASES
    if options.quick:
        made["GPU_TEST_QUICK"] = "1"
    return made


def run_program(step, options, seconds, keep, forks):
    """A case of a test program; each test is kept as soon as it has ended. Returns whether all passed and the program ended well."""
    handle, log = tempfile.mkstemp(suffix=".xml")
    os.close(handle)
    kept = []

    def look(skips):
        """Skipped tests are reported at the end alone, so tests that passed before may prove to be skips."""
        try:
            tests = tests_of_log(step.program, log, skips)
        except (xml.etree.ElementTree.ParseError, OSError):
            tests = []
        if len(tests) > len(kept) or skips:
            kept[:] = tests
            keep({"tests": tests}, True)

    try:
        status, out, err = watch([program_of(options, step.program)], seconds, environment_of(step, options, log, forks), lambda: look({}))
        words = [line.split(" ", 3) for line in out.splitlines() if line.startswith("SKIP ")]
        look({(word[1], int(word[2])): word[3] for word in words})
    finally:
        os.unlink(log)
    if not kept or (status != 0 and all(test["result"] != "fail" for test in kept)):
        keep({"tests": [one_test(step.program, "program", "fail", "exit status %s\n%s" % (status, tail(out + err)))]})
    return status == 0 and bool(kept)


def run_cases(step, options, seconds, keep):
    """Ranks that are processes are forked anyway. Otherwise each test has a process of its own only if one has failed."""
    until = time.monotonic() + seconds
    forks = step.case == "gpu processes"
    if run_program(step, options, seconds, keep, forks) or forks or until - time.monotonic() < 1:
        return
    say("%s: something failed; each test runs again in a process of its own" % step.name)
    run_program(step, options, until - time.monotonic(), keep, True)


# ---- compute-sanitizer -----------------------------------------------------------------------------------------------

def sanitizer():
    found = shutil.which("compute-sanitizer")
    for home in filter(None, (os.environ.get("CUDA_HOME"), "/usr/local/cuda")):
        for folder in ("bin", "compute-sanitizer", "extras/compute-sanitizer"):
            found = found or shutil.which("compute-sanitizer", path=os.path.join(home, folder))
    return found


def run_sanitizer(step, options, seconds, keep):
    """Small problems under a tool of compute-sanitizer, which is named like the case. The driver refuses some kinds of
    memory, which the library tries; these are no errors."""
    command = sanitizer()
    if not command:
        keep({"tests": [one_test(step.program, step.case, "skip", "no compute-sanitizer here")]})
        return
    began = time.monotonic()
    status, out, err = run([command, "--tool", step.case, "--report-api-errors", "no", "--error-exitcode", "9",
                            program_of(options, step.program)], seconds, CK_RUN_CASE="gpu", CK_FORK="no", GPU_TEST_QUICK="1")
    both = out + err
    rejected = "Device not supported" in both or "not supported on this" in both
    result = "pass" if status == 0 else "skip" if rejected else "fail"
    told = ("========= ERROR SUMMARY", "========= RACECHECK SUMMARY")
    lines = [line for line in both.splitlines() if line.startswith(told) or "%: Checks" in line]
    text = "\n".join(lines) if status == 0 else tail(both, 60) or "exit status %s" % status
    keep({"tests": [one_test(step.program, step.case, result, text, time.monotonic() - began)]})
