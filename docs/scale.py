#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: docs/scale.py check|regret [--random POINTS SEED [--sums]]|layer|choice|paper|bytes|models|beyond|growth|large [--draw]

The tables of docs/scale.md, each by one command, from banyan-plan --simulate and --regret. Inputs are in docs/scale.json.

  check    simulated against measured time on this machine, with its measured costs
  regret   how much slower the chosen algorithm is than the fastest, over a grid of machines, ranks and payloads, or on
           machines that a generator draws, of combines or of sums
  layer    what the ranks of 16 CPU nodes exchange for a layer of a model of 70 billion parameters
  choice   milliseconds that a rank takes to choose, for a shape that it meets for the first time
  paper    128 H100: one combine, three allreduces and Ring Attention, and what half and double of each input changes
  bytes    what a rank sends and holds, by the paper's formulae and as planned and simulated
  models   time for each token of the paper's models
  beyond   NVL72, PCIe and Ethernet: two levels against the best flat algorithm; depth and radix of the tree
  growth   seconds and memory of planning and proving 2^k ranks, of making communicators, and of making one from the ranks
           that are left when one of them dies, with exponents
  large    one combine of 8 to 16,384 ranks through the simulator, with what that takes

--draw writes the chart of the table into docs/pictures, which needs matplotlib. BANYAN_BUILD names the folder of the build."""
import functools
import json
import math
import os
import pathlib
import random
import re
import statistics
import sys
import tempfile

import charts

DOCS = pathlib.Path(__file__).resolve().parent
INPUTS = json.loads((DOCS / "scale.json").read_text(encoding="utf-8"))
sys.path.insert(0, str(DOCS.parent / "tests" / "bench"))
import frame  # noqa: E402

table = functools.partial(frame.table, None)


# ---- running -----------------------------------------------------------------------------------------------------------


def run(program, *arguments, **variables):
    """The JSON of a tool."""
    try:
        form = [] if "bench" in program else ["--json"]
        return frame.json_in(frame.run([os.path.join(frame.BUILD, program), *arguments, *form], variables))
    except frame.Skipped as why:
        if "SimGrid, which simulates" not in str(why):
            raise SystemExit(why) from why
        print("skipped:", why)
        raise SystemExit(77) from why


def machine(name, ranks):
    one = INPUTS["machines"][name]
    return one["from"].format(groups=ranks // one["group"], half=ranks // 2, ranks=ranks)


def plan(action, name, ranks, *arguments):
    return run("banyan-plan", action, "--from", machine(name, ranks), *arguments)


def figures(value):
    return "%.3g" % value if value < 1000 else "%.0f" % value


def chart(name, title, xlabel, ylabel, series, base=10):
    """Draws lines, {label: (values of x, values of y)}, into docs/pictures/NAME, if charts are wanted."""
    if "--draw" not in sys.argv:
        return
    figure, axes = charts.start()
    for label, (x, y) in series.items():
        axes.plot(x, y, marker="o", markersize=4, label=label)
    axes.set_xscale("log", base=base)
    axes.set_yscale("log", base=base)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_title(title, fontsize=11)
    charts.finish(figure, name, axes)


# ---- views -------------------------------------------------------------------------------------------------------------


def least_costs(path):
    """Writes the lowest value of each cost in several short measurements."""
    least = None
    for _ in range(6):
        run("banyan-topo", "--seconds", 1, "--save-costs", path)
        with open(path, encoding="utf-8") as file:
            one = json.load(file)
        least = least or one
        for mine, other in [(least, one), *zip(least["links"], one["links"])]:
            mine.update({key: min(value, other[key]) for key, value in mine.items() if key in other and key.endswith(("_ns", "_byte"))})
    with open(path, "w", encoding="utf-8") as file:
        json.dump(least, file)


def check():
    """Fastest of many short rounds in turn, as other work on the machine only adds time. Calls follow one another: a barrier
    before each would add the time by which one rank leaves it after the other."""
    rows, worst = [], 1
    sizes = [1024 << k for k in range(11)]
    with tempfile.TemporaryDirectory() as folder:
        costs = os.path.join(folder, "costs.json")
        least_costs(costs)
        # A single rank has two steps. Apart from the cost per byte, a small call takes only the time of these steps.
        alone = min(run("banyan-perf", "combine", "--ranks", 1, "--sizes", 1024, "--no-check")["rows"][0]["banyan_us"] for _ in range(5))
        work = run("banyan-plan", "--simulate", "--ranks", 1, "--bytes", 1024, "--heads", 1, BANYAN_COSTS=costs)["simulated_us"]
        step_ns = max(0, round((alone - work) * 1e3 / 2))
        for ranks in (2, 4):
            rounds = [run("banyan-perf", "combine", "--ranks", ranks, "--sizes", ",".join(map(str, sizes)), "--no-check",
                          "--in-a-row", "--iterations", 100, BANYAN_COSTS=costs)["rows"] for _ in range(40)]
            for k, size in enumerate(sizes):
                measured = min(one[k]["banyan_us"] for one in rounds)
                simulated = run("banyan-plan", "--simulate", "--ranks", ranks, "--bytes", rounds[0][k]["bytes"], "--heads", 1,
                                "--cores", len(frame.CPUS), "--step-ns", step_ns, "--algorithm", rounds[0][k]["algorithm"],
                                BANYAN_COSTS=costs)["simulated_us"]
                ratio = simulated / measured
                worst = max(worst, ratio, 1 / ratio)
                rows.append((ranks, size, rounds[0][k]["algorithm"], "%.2f" % measured, "%.2f" % simulated, "%.2f" % ratio))
    table(("ranks", "bytes", "algorithm", "measured us", "simulated us", "ratio"), rows)
    print("\nstep: %d ns; worst ratio: %.2f" % (step_ns, worst))
    if worst > 1.5:
        raise SystemExit("simulated and measured times differ by more than 1.5 times; other work on the machine adds time")


def points():
    """(machine, ranks, bytes, scatter) of the grid."""
    grid = INPUTS["regret"]
    for name, ranks in grid["ranks"].items():
        for n in ranks:
            for size in grid["bytes"]:
                for scatter in grid["scatter"]:
                    yield name, n, size, scatter
    for name, n, size in grid["large"]:
        yield name, n, size, "none"


def drawn_cluster(numbers):
    """GPUs of several nodes, of which some may have fewer, slower NICs, or one slow rail."""
    nodes, gpus = numbers.randint(2, 5), numbers.choice((2, 3, 4, 8))
    nics = numbers.choice((1, 2, gpus))
    rails = nics == gpus and numbers.random() < 0.4
    fabric = numbers.choice(("leaf@rails", "spine leaf@rails") if rails else ("", "leaf", "leaf:2@%dg", "spine:2@%dg leaf:2@%dg"))
    narrow = [numbers.choice((50, 100, 200, 400, 1600)) for _ in range(fabric.count("%d"))]
    inside = numbers.choice(("nvswitch@18 gpu:%d@sm90", "nvlink@4 gpu:%d@sm80", "xgmi gpu:%d@gfx942@gen5x16",
                            "package:2 numa gpu:%d@sm89@gen4x16", "package numa:2 pci@gen4x16 gpu:%d@sm86@gen4x16"))
    each = gpus // 2 if ":2" in inside and gpus > 2 else gpus
    text = "%s host:%d %s nic:%d@%dg" % (fabric % tuple(narrow), nodes if ":2" not in fabric else max(1, nodes // 2), inside % each,
                                         max(1, nics // 2) if each != gpus else nics, numbers.choice((25, 100, 200, 400)))
    return changed(run("banyan-topo", "--from", text.strip()), numbers, fabric != "leaf@rails")


def changed(model, numbers, uneven):
    """The machine with GPUs taken out of a node, or with NICs of other speeds. Where no switch joins rails, ranks without a
    peer on their rail could not be reached, so nodes stay alike."""
    nodes = {node["id"]: node for node in model["nodes"]}

    def above(node, kind):
        while node and node["kind"] != kind:
            node = nodes.get(node.get("parent"))
        return node

    hosts = [node["id"] for node in model["nodes"] if node["kind"] == "host"]
    gone = set()
    for host in numbers.sample(hosts, numbers.choice((0, 1, 1, 2)) % (len(hosts) + 1)) if uneven else ():
        gpus = [n["id"] for n in model["nodes"] if n["kind"] == "gpu" and above(n, "host")["id"] == host]
        gone.update(gpus[numbers.randint(1, len(gpus)):])
    what, factor = numbers.choice(("all alike", "slow rail", "slow host")), numbers.choice((0.25, 0.5))
    rail, slow = numbers.randrange(4), numbers.choice(hosts)
    for link in model["links"]:
        nic = above(nodes[link["from"]], "nic") if link["kind"] == "net" else None
        if nic and (what == "slow rail" and nic["index"] == rail or what == "slow host" and above(nic, "host")["id"] == slow):
            link["gbytes_per_s"] *= factor
            link["rated_gbytes_per_s"] *= factor
    model["nodes"] = [node for node in model["nodes"] if node["id"] not in gone]
    model["links"] = [link for link in model["links"] if link["from"] not in gone and link["to"] not in gone]
    return model


def drawn(numbers, path):
    """Arguments of banyan-plan: a machine, drawn at random, and a combine on it. The file `path` may hold the machine."""
    kind = numbers.choice(("cluster", "cluster", "cluster", "box", "cpus", "numbers"))
    if kind == "cluster":
        path.write_text(json.dumps(drawn_cluster(numbers)), encoding="utf-8")
        where = ["--from", path]
    elif kind == "box":
        where = ["--from", "host package:%d numa:%d %s gpu:%d@sm%d@gen%dx%d" % (
            numbers.randint(1, 2), numbers.randint(1, 2), numbers.choice(("", "bridge pci", "bridge:2 pci")), numbers.randint(2, 4),
            numbers.choice((80, 86, 89)), numbers.randint(3, 5), numbers.choice((8, 16)))]
    elif kind == "cpus":
        where = ["--from", "leaf host:%d package:%d numa:%d nic@%dg" % (
            numbers.randint(2, 6), numbers.randint(1, 2), numbers.randint(1, 4), numbers.choice((10, 25, 100, 200)))]
    else:
        inner = numbers.randint(2, 8)
        where = ["--ranks", numbers.randint(inner + 1, 40), "--levels",
                 numbers.choice(("%d" % inner, "%d,%d" % (inner, inner * numbers.randint(2, 3))))]
    scatter = numbers.choice(("none", "none", "root", "heads", "tokens"))
    return [*map(str, where), "--bytes", str(1 << numbers.randint(10, 23)), "--heads", str(numbers.choice((2, 8, 32, 64))), "--scatter",
            scatter] + (["--root", "1"] if scatter == "root" else [])


def random_points(count, seed):
    """(name, ranks, bytes, scatter, result of --regret) of machines drawn at random."""
    numbers = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            path = pathlib.Path(folder) / ("drawn-%d.json" % number)
            arguments = drawn(numbers, path)
            one = run("banyan-plan", "--regret", *arguments, *(["--collective", "allreduce"] if "--sums" in sys.argv else []))
            yield arguments[1] if arguments[0] == "--from" else "levels " + arguments[3], one["ranks"], one["bytes_per_rank"], one["scatter"], one


def regret():
    bounds, found = INPUTS["regret"], []
    if "--random" in sys.argv:
        count, seed = map(int, sys.argv[sys.argv.index("--random") + 1:][:2])
        print("seed %d\n" % seed)
        bounds, every = bounds["random"], random_points(count, seed)
    else:
        every = ((*p, plan("--regret", p[0], p[1], "--bytes", p[2], "--scatter", p[3])) for p in points())
    for name, ranks, size, scatter, one in every:
        chosen = next(m for m in one["methods"] if m["chosen"])
        found.append((one["regret"], name, ranks, size, scatter, chosen, one["best"]))
        if "--all" in sys.argv:
            print(*found[-1][:5], chosen["name"], one["best"], flush=True)
    found.sort(key=lambda f: -f[0])
    table(("machine", "ranks", "bytes", "scatter", "chosen", "predicted us", "simulated us", "fastest", "regret"),
          [(f[1], f[2], f[3], f[4], f[5]["name"], "%.1f" % f[5]["predicted_us"], "%.1f" % f[5]["simulated_us"], f[6],
            "%.1f %%" % (100 * f[0])) for f in found[:8]])
    mean = statistics.mean(f[0] for f in found)
    print("\n%d points: mean regret %.1f %%, worst %.1f %%" % (len(found), 100 * mean, 100 * found[0][0]))
    if mean > bounds["mean"] or found[0][0] > bounds["worst"]:
        raise SystemExit("more than docs/scale.json allows")


def choice():
    rows = []
    for name, ranks in (("pcie", 8), ("h100", 8), ("ethernet-100g", 8), ("two-sockets", 64), ("dgx-h100", 64)):
        for scatter in ("none", "heads"):
            times = [min(plan("--prove", name, ranks, "--bytes", size, "--scatter", scatter)["choose_seconds"] for _ in range(3))
                     for size in (2048, 65536, 1048576)]
            rows.append((name, ranks, scatter, *("%.3f" % (1e3 * one) for one in times)))
    table(("machine", "ranks", "scatter", "2 KiB: ms", "64 KiB: ms", "1 MiB: ms"), rows)


def attention(shape, keys, *more):
    return plan("--simulate", shape["machine"], shape["ranks"], "--heads", shape["heads"], "--kv-heads",
                more[0] if more else shape["kv_heads"], "--head-dim", shape["head_dim"], "--wire", "bf16", "--keys",
                keys // shape["ranks"], *more[1:])


def paper():
    shape = INPUTS["paper"]["figure"]
    rows, series = [], {"one combine": [], "three allreduces": [], "Ring Attention": []}
    for keys in shape["keys"]:
        one = attention(shape, keys)
        tree = one["attention_us"] + one["simulated_us"]
        times = (tree, one["attention_us"] + one["allreduces_us"], one["ring_us"])
        for name, value in zip(series, times):
            series[name].append(value)
        rows.append((keys, figures(one["attention_us"]), figures(one["simulated_us"]), *map(figures, times),
                     figures(one["ring_us"] / tree)))
    table(("keys", "attention us", "combine us", "one combine us", "three allreduces us", "Ring Attention us", "ring / tree"), rows)
    rows = []
    base = attention(shape, shape["keys"][-1])
    for what in ("nvlink", "nic", "latency", "memory"):
        cells = [what]
        for factor in (0.5, 2):
            one = attention(shape, shape["keys"][-1], shape["kv_heads"], "--scale", "%s=%g" % (what, factor))
            cells.append(figures(one["ring_us"] / (one["attention_us"] + one["simulated_us"])))
        rows.append(cells)
    print("\nring / tree at %d keys, %s as given:\n" % (shape["keys"][-1],
          figures(base["ring_us"] / (base["attention_us"] + base["simulated_us"]))))
    table(("input", "halved", "doubled"), rows)
    ring, tree = series["Ring Attention"][-1], series["one combine"][-1]
    print("\nThe ratio is %g if both sides take %.0f ms more." % (shape["ratio"], (ring - shape["ratio"] * tree) / (shape["ratio"] - 1) / 1e3))

    chart("scale-paper.svg", "One layer of decode on 128 H100, simulated", "keys", "microseconds",
          {name: (shape["keys"], values) for name, values in series.items()})


def bytes_of():
    """The paper's formulae: per rank p 2btd elements sent by the ring, 2(p-1)/p (bd + 2b n_h) by the tree; held 4btd + 2bd and
    2btd + 2bd + 2b n_h, of which 2btd are the rank's own keys and values."""
    shape = INPUTS["paper"]["figure"]
    p, heads, hidden, element = shape["ranks"], shape["heads"], shape["heads"] * shape["head_dim"], 2
    rows = []
    for keys in (shape["keys"][0], shape["keys"][-1]):
        t = keys // p
        own = 2 * t * hidden * element
        methods = {m["name"]: m for m in plan("--cost", shape["machine"], p, "--heads", heads, "--kv-heads", shape["kv_heads"],
                                              "--head-dim", shape["head_dim"], "--wire", shape["wire"], "--keys", t)["methods"]}
        ring, tree = methods["ring attention"], next(m for m in methods.values() if m["chosen"])
        for name, one, sent, held in (
                ("Ring Attention", ring, 2 * t * hidden * p, 4 * t * hidden + 2 * hidden),
                ("one combine", tree, 2 * (p - 1) / p * (hidden + 2 * heads), 2 * t * hidden + 2 * hidden + 2 * heads)):
            rows.append((keys, name, *("%.4g" % (value / 1e3) for value in (
                element * sent, one["bytes_sent_per_rank"], element * held, own + one["memory_bytes"]))))
    table(("keys", "method", "paper: sent kB", "planned: sent kB", "paper: held kB", "planned: held kB"), rows)


def models():
    rows = []
    for model in INPUTS["paper"]["models"]:
        for keys, (tree_s, ring_s) in model["seconds"].items():
            one, wide = attention(model, int(keys)), attention(model, int(keys), model["heads"])
            tree, ring, wide_ring = (model["layers"] * us / 1e3 for us in (
                one["attention_us"] + one["simulated_us"], one["ring_us"], wide["ring_us"]))
            rows.append((model["name"], keys, "%.2f" % tree, "%.1f" % ring, "%.1f" % wide_ring, "%.0f" % (ring / tree),
                         "%.0f" % (100 * (ring_s - tree_s)), "%.1f" % (ring_s / tree_s)))
    table(("machine", "keys", "combine ms", "ring ms", "ring, heads repeated ms", "ratio", "paper: ring - tree ms", "paper's ratio"),
          rows)


def flat_and_levels(one):
    """The fastest flat algorithm and the fastest over levels, simulated, in us."""
    times = {True: math.inf, False: math.inf}
    for method in one["methods"]:
        if method["simulated_us"] is not None:
            levels = method["name"].startswith("levels")
            times[levels] = min(times[levels], method["simulated_us"])
    return times[False], times[True]


def tree_form(name, ranks, *arguments):
    """Radix by level and pieces of the tree that follows the levels: how its depth adapts to the machine."""
    why = next(m["why"] for m in plan("--cost", name, ranks, *arguments)["methods"] if m["name"] == "tree_levels")
    found = re.search(r"radix ([0-9.]+)(?:, ([0-9]+) pieces)?", why)
    return "%s, %s" % (found[1], found[2] or 1) if found else "-"


def beyond():
    cases = [("nvl72", n, size, "heads") for n in (8, 36, 72) for size in (16384, 262144, 4194304)]
    cases += [("two-nvl72", 144, size, scatter) for size in (16384, 262144) for scatter in ("heads", "none")]
    cases += [(name, n, size, "none") for name, n in (("dgx-h100", 64), ("pcie", 8), ("ethernet-25g", 32),
              ("ethernet-100g", 32), ("two-sockets", 64)) for size in (16384, 262144)]
    rows, series = [], {}
    for name, ranks, size, scatter in cases:
        one = plan("--regret", name, ranks, "--bytes", size, "--scatter", scatter)
        flat, levels = flat_and_levels(one)
        chosen = next(m for m in one["methods"] if m["chosen"])
        gain = flat / levels if levels < math.inf else None
        series.setdefault("%s, %d" % (name, ranks), []).append((size, chosen["simulated_us"]))
        rows.append((name, ranks, size, scatter, chosen["name"], figures(chosen["simulated_us"]), figures(flat),
                     figures(levels) if gain else "-", "%.2f" % gain if gain else "-",
                     tree_form(name, ranks, "--bytes", size) if scatter == "none" else "-"))
    table(("machine", "ranks", "bytes", "scatter", "chosen", "us", "best flat us", "best over levels us", "flat / levels",
           "tree: radix, pieces"), rows)

    chart("scale-beyond.svg", "The chosen algorithm, simulated", "bytes of a partial", "microseconds",
          {name: tuple(zip(*values)) for name, values in series.items()})

    sizes, forms = [1024 << k for k in range(0, 15, 2)], {}
    for name, ranks in dict.fromkeys((name, n) for name, n, _, scatter in cases if scatter == "none"):
        forms["%s, %d" % (name, ranks)] = [tree_form(name, ranks, "--bytes", size) for size in sizes]
    print("\nTree over levels, radix by level and pieces:\n")
    table(("machine", *map(str, sizes)), [(name, *values) for name, values in forms.items()])

    chart("scale-depth.svg", "The tree over levels follows machine and payload: a smaller radix is a deeper tree",
          "bytes of a partial", "radix of the innermost level",
          {name: (sizes, [int(value.split(".")[0].split(",")[0]) for value in values]) for name, values in forms.items()}, 2)


def growth():
    ranks = [2 ** k for k in range(4, 15)]
    rows, seconds, memory = [], [], []
    for n in ranks:
        one = plan("--prove", "dgx-h100", n, "--bytes", 65536, "--algorithm", "levels")
        seconds.append((one["make_seconds"], one["prove_seconds"]))
        memory.append(one["peak_memory_bytes"])
        rows.append((n, one["steps"], "%.4f" % one["make_seconds"], "%.1f" % (1e6 * one["make_seconds"] / n),
                     "%.4f" % one["prove_seconds"], "%.0f" % (memory[-1] / 2 ** 20)))
    table(("ranks", "steps", "plan all s", "plan one us", "prove s", "memory MiB"), rows)

    def exponent(values):
        first = ranks.index(1024)
        return math.log(values[-1] / values[first]) / math.log(ranks[-1] / ranks[first])

    powers = [exponent([s[0] for s in seconds]), exponent([s[1] for s in seconds]), exponent(memory)]
    print("\nExponents from 1,024 ranks: plan all %.2f, prove %.2f, memory %.2f.\n" % tuple(powers))
    rows, made = [], {}
    for kind in ("threads", "processes"):
        for n in [2 ** k for k in range(1, 10)] + ([1024] if kind == "threads" else []):
            rounds = [run("tests/bench/bench_grow", kind, n, BANYAN_ARENA_KIB="256") for _ in range(1 if n > 128 else 3)]
            one = {name: min(r[name] for r in rounds) for name in rounds[0]}
            made.setdefault(kind, []).append((n, one["create"], one["shrink"]))
            rows.append((kind, n, *("%.4f" % one[name] for name in ("create", "first", "noticed", "shrink", "again")),
                         "%.0f" % (one["peak_memory_bytes"] / 2 ** 20)))
    table(("ranks are", "ranks", "create s", "first combine s", "death noticed s", "shrink s", "first combine s", "memory MiB"), rows)
    alone = [min((run("tests/bench/bench_grow", "simulated", n) for _ in range(3)), key=lambda one: one["create"])
             for n in [2 ** k for k in range(9, 15)]]
    print("\nRank 0 alone, with a simulated bootstrap:\n")
    table(("ranks", "create s", "create us for each rank", "MiB gathered", "memory MiB"),
          [(one["ranks"], "%.4f" % one["create"], "%.1f" % (1e6 * one["create"] / one["ranks"]),
            "%.1f" % (one["bytes_from_each"] * one["ranks"] / 2 ** 20), "%.0f" % (one["peak_memory_bytes"] / 2 ** 20)) for one in alone])
    for kind, values in made.items():
        (a, create_a, shrink_a), (b, create_b, shrink_b) = values[4], values[8]
        print("\n%s, exponents from %d to %d ranks on %d cores: create %.2f, shrink %.2f." % (
            kind, a, b, len(frame.CPUS), *(math.log(y / x) / math.log(b / a) for x, y in ((create_a, create_b),
                                                                                                (shrink_a, shrink_b)))))

    series = {}
    for kind, values in made.items():
        n, create, shrink = zip(*values)
        series.update({"create, " + kind: (n, create), "shrink, " + kind: (n, shrink)})
    series["create, one rank alone"] = ([one["ranks"] for one in alone], [one["create"] for one in alone])
    series["plan all, exponent %.2f" % powers[0]] = (ranks, [s[0] for s in seconds])
    series["prove, exponent %.2f" % powers[1]] = (ranks, [s[1] for s in seconds])
    chart("scale-growth.svg", "All ranks: planning, proving, making and shrinking communicators", "ranks", "seconds", series)


def large():
    rows = []
    for n in [2 ** k for k in range(3, 15)]:
        one = plan("--simulate", "h100" if n == 8 else "dgx-h100", n, "--bytes", 16384, "--keys", 1)
        rows.append((n, one["algorithm"], figures(one["simulated_us"]), figures(one["predicted_us"]), one["messages"],
                     one["busiest"], "%.1f" % one["wall_seconds"], "%.0f" % (one["peak_memory_bytes"] / 2 ** 20)))
    table(("ranks", "algorithm", "simulated us", "predicted us", "messages", "busiest link", "seconds", "memory MiB"), rows)


def layer():
    """A token of a layer with 64 heads on 8 KV heads x 128 and rows of 8,192: q is gathered, its rows are attended to and
    combined by heads, and what each rank projects of its heads is summed."""
    one = INPUTS["layer"]
    shape = ["--from", one["from"], "--tokens", 1, "--heads", 64, "--head-dim", 128]
    found = [run("banyan-plan", "--simulate", *shape, "--collective", collective, *how)
             for collective, how in (("allgather-heads", ["--wire", "bf16"]), ("combine", ["--scatter", "heads"]), ("allreduce", ["--wire", "bf16"]))]
    attend = one["keys"] * 8 * 128 * 2 * 2 / found[0]["ranks"] / one["gbytes_per_s"] / 1e3
    times = [found[0]["simulated_us"], attend, *(each["simulated_us"] for each in found[1:])]
    table(("keys", "ranks", "gather us", "attention us", "combine us", "sum us", "layer us", "exchanged"),
          [(one["keys"], found[0]["ranks"], *map(figures, times), figures(sum(times)), "%.0f %%" % (100 - 100 * attend / sum(times)))])


if __name__ == "__main__":
    views = {"layer": layer, "check": check, "regret": regret, "choice": choice, "paper": paper, "bytes": bytes_of, "models": models, "beyond": beyond,
             "growth": growth, "large": large}
    if len(sys.argv) < 2 or sys.argv[1] not in views:
        raise SystemExit(__doc__)
    views[sys.argv[1]]()
