#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_results.py FILE...

Whether files that check-gpu wrote are what docs/gpu-results/README.md says they are."""
import json
import re
import sys

NUMBER = (int, float)
NONE = type(None)
TOP = {"format": int, "date": str, "quick": bool, "machine": dict, "device": dict, "steps": list, "tests": list,
       "figures": list, "left_out": list, "rivals": dict, "problems": list, "summary": dict}
STEP = {"step": str, "date": str, "seconds": NUMBER, "text": str}
TEST = {"step": str, "program": str, "name": str, "index": int, "result": str, "text": str, "seconds": NUMBER}
FIGURE = {"step": str, "name": str, "value": NUMBER + (NONE,), "unit": str, "better": str, "reach": NUMBER + (NONE,),
          "goal": NUMBER + (NONE,), "reached": (bool, NONE), "rival": (str, NONE), "rival_value": NUMBER + (NONE,),
          "ratio": NUMBER + (NONE,)}
DATE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def check_fields(where, what, fields):
    for name, kind in fields.items():
        if name not in what:
            raise ValueError("%s lacks %s" % (where, name))
        if not isinstance(what[name], kind):
            raise ValueError("%s: %s is %r" % (where, name, what[name]))


def check_made(results, steps):
    """That every step that was run has made something."""
    for test in results["tests"]:
        check_fields("test " + str(test.get("name")), test, TEST)
        if test["result"] not in ("pass", "fail", "skip") or (test["result"] != "pass" and not test["text"]):
            raise ValueError("test %(name)s: %(result)s, %(text)r" % test)
    for one in results["figures"]:
        check_fields("figure " + str(one.get("name")), one, FIGURE)
        if one["better"] not in ("lower", "higher"):
            raise ValueError("figure %(name)s: %(better)s is better" % one)
    made = {one["step"] for name in ("tests", "figures", "problems") for one in results[name]}
    made |= {"rivals"} if results["rivals"] else set()
    idle = {step["step"] for step in steps if not step["text"]} - made
    if idle:
        raise ValueError("nothing has come of %s" % ", ".join(sorted(idle)))


def check(results):
    check_fields("the file", results, TOP)
    if results["format"] != 4 or not re.fullmatch(DATE, results["date"]):
        raise ValueError("format %r of %r" % (results["format"], results["date"]))
    for step in results["steps"]:
        check_fields("step " + str(step.get("step")), step, STEP)
    names = [step["step"] for step in results["steps"]]
    if not names or len(set(names)) != len(names):
        raise ValueError("steps: %s" % names)
    check_fields("the device", results["device"], {"name": str, "compute": str, "cuda": str, "sms": int})
    check_made(results, results["steps"])


def main():
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            try:
                check(json.load(file))
            except ValueError as error:
                print("%s: %s" % (path, error))
                return 1
        print("%s is as it should be" % path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
