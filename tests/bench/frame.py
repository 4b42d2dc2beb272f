# SPDX-License-Identifier: Apache-2.0
"""The frame of the bench: programs, rounds in which forms take turns, their statistics, and the table of a view."""
import json
import os
import statistics
import subprocess
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.pop("BANYAN_BUILD", None) or os.environ.get("top_builddir") or os.path.join(TOP, "build"))
PERF, DECODE, TOPO = (os.path.join(BUILD, "banyan-" + name) for name in ("perf", "decode", "topo"))
CPUS = sorted(os.sched_getaffinity(0))
DTYPES = {"f16": 2, "bf16": 2, "f32": 4, "e4m3": 1, "e5m2": 1, "int8": 1}


class Skipped(Exception):
    pass


def run(command, env=None):
    """Standard output of a program."""
    try:
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False, env={**os.environ, **(env or {})})
    except FileNotFoundError as why:
        raise Skipped(why) from why
    if done.returncode != 0:
        raise Skipped(f"{' '.join(map(str, command[-8:]))}: {done.stderr.strip()[-400:] or done.stdout.strip()[-400:]}")
    return done.stdout


def json_in(text):
    return json.loads(text[text.index("{"):])


def json_of(command, env=None):
    return json_in(run([*command, "--json"], env))


def timed(call, calls=1):
    """A form that is measured: the microseconds of one of so many calls in a row."""
    def form():
        since = time.perf_counter()
        for _ in range(calls):
            call()
        return 1e6 * (time.perf_counter() - since) / calls

    return form


def low(values):
    """The figure that a tenth of the rounds stay below, because other programs only add time."""
    return sorted(values)[len(values) // 10]


class Times:
    """Figures of all rounds, by key and name."""

    def __init__(self):
        self.found = {}

    def add(self, key, name, value):
        self.found.setdefault((key, name), []).append(value)

    def turns(self, key, forms, rounds, warm_up=0, before=None):
        """Forms take turns in rounds, so that what disturbs the machine disturbs all. Each returns its figure, or several
        by name."""
        for turn in range(-warm_up, rounds):
            for name, form in forms.items():
                if before is not None:
                    before()
                figures = form()
                for each, value in (figures if isinstance(figures, dict) else {name: figures}).items():
                    if turn >= 0:
                        self.add(key, each, value)

    def __call__(self, key, name, of=statistics.median):
        """The median, or another statistic; None if it was not measured."""
        return of(self.found[key, name]) if (key, name) in self.found else None

    def ratio(self, key, over, under):
        """The median of the ratios within rounds."""
        ratios = [a / b for a, b in zip(self.found.get((key, over), []), self.found.get((key, under), []))]
        return statistics.median(ratios) if ratios else None


def cell(value, digits=2):
    return "" if value is None else str(value) if isinstance(value, (int, str)) else f"{value:,.{digits}f}"


def table(options, head, rows):
    """Prints each row as soon as it is there, as Markdown, or all as JSON objects. A page's table has no options."""
    if options and options.json:
        print(json.dumps([dict(zip(head, row)) for row in rows], indent=2))
        return
    if options:
        print(f"{time.strftime('%Y-%m-%d')}, {len(CPUS)} CPUs, load {os.getloadavg()[0]:.1f}, {options.rounds} rounds")
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|", flush=True)
    for row in rows:
        print("| " + " | ".join(cell(value) for value in row) + " |", flush=True)
