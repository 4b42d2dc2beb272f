#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_results.py FILE...

Whether files that check-gpu wrote are what docs/gpu-results/README.md says they are."""
import json
import re
import sys

NUMBER = (int, float)
NONE = type(None)
TOP = {"format": int, "date": str, "quick": bool, "machine": dict, "device": (dict, NONE), "tests": list,
       "figures": list, "rivals": dict, "problems": list, "summary": dict}
TEST = {"program": str, "name": str, "index": int, "result": str, "text": str, "seconds": NUMBER}
FIGURE = {"name": str, "value": NUMBER + (NONE,), "unit": str, "better": str, "reach": NUMBER + (NONE,),
          "goal": NUMBER + (NONE,), "reached": (bool, NONE), "rival": (str, NONE), "rival_value": NUMBER + (NONE,),
          "ratio": NUMBER + (NONE,)}


def check_fields(where, what, fields):
    for name, kind in fields.items():
        if name not in what:
            raise ValueError("%s lacks %s" % (where, name))
        if not isinstance(what[name], kind):
            raise ValueError("%s: %s is %r" % (where, name, what[name]))


def check(results):
    check_fields("the file", results, TOP)
    if results["format"] != 1 or not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", results["date"]):
        raise ValueError("format %r of %r" % (results["format"], results["date"]))
    for test in results["tests"]:
        check_fields("test " + str(test.get("name")), test, TEST)
        if test["result"] not in ("pass", "fail", "skip") or (test["result"] != "pass" and not test["text"]):
            raise ValueError("test %(name)s: %(result)s, %(text)r" % test)
    for one in results["figures"]:
        check_fields("figure " + str(one.get("name")), one, FIGURE)
        if one["better"] not in ("lower", "higher"):
            raise ValueError("figure %(name)s: %(better)s is better" % one)
    if not any(test["result"] == "pass" for test in results["tests"]) or not results["figures"] or not results["device"]:
        raise ValueError("no test has passed, or there are no figures, or no device")


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
