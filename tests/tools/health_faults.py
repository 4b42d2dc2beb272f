# SPDX-License-Identifier: Apache-2.0
"""Faults that are seeded into dumps of any format: one element, chosen at random, is taken away or made worse. Each
fault is a function of a text and a generator, which returns another text, or None where the text has no such element."""
import re

ROWS = r"\s*<(?:nvlink|xgmi)\b[^>]*?(?:/>|>\s*</(?:nvlink|xgmi)>)"


def sub(pattern, to):
    def edit(text, rng=None):
        new, times = re.subn(pattern, to, text, count=1, flags=re.S)
        return new if times else None
    return edit


def within(spans, edit):
    """Tries the spans in random order and edits the first that accepts the edit."""
    def fault(text, rng):
        found = spans(text)
        rng.shuffle(found)
        for start, end in found:
            new = edit(text[start:end])
            if new is not None and new != text[start:end]:
                return text[:start] + new + text[end:]
        return None
    return fault


def gone(spans, least=2):
    def fault(text, rng):
        found = spans(text)
        if len(found) < least:
            return None
        start, end = rng.choice(found)
        return text[:start] + text[end:]
    return fault


# ---- NCCL's XML ------------------------------------------------------------------------------------------------------

def pci_of(tag):
    """Returns the innermost <pci> elements with that tag."""
    def spans(text):
        found, stack = [], []
        for m in re.finditer(r"<(/?)(pci|gpu|nic)\b[^>]*?(/?)>", text):
            close, name, empty = m.groups()
            if name == tag and not close and stack:
                stack[-1][1] = True
            if name == "pci" and close and stack:
                start, holds = stack.pop()
                found += [(start, m.end())] if holds else []
            elif name == "pci" and not close and not empty:
                stack.append([m.start(), False])
        return found
    return spans


def scaled(pattern, scale, least):
    """Scales each number that a pattern matches."""
    def edit(text):
        ends = [m for m in re.finditer(pattern, text, re.S) if float(m[1]) >= least]
        for m in reversed(ends):
            text = text[:m.start(1)] + str(scale(float(m[1]))) + text[m.end(1):]
        return text if ends else None
    return edit


def nccl_faults():
    lanes = scaled(r'\A<pci\b[^>]*?link_width="(\d+)', lambda x: int(x) // 4, 4)
    generation = scaled(r'\A<pci\b[^>]*?link_speed="([\d.]+)', lambda x: {16: 8, 32: 8, 64: 16}.get(x, 8), 16)
    gpu, nic = pci_of("gpu"), pci_of("nic")
    return {"GPU gone": gone(gpu), "NIC gone": gone(nic), "GPU without links": within(gpu, sub(f"(?:{ROWS})+", "")),
            "link listed once": gone(lambda t: [m.span() for m in re.finditer(ROWS, t)], 1),
            "half of the links": within(gpu, scaled(r'<(?:nvlink|xgmi)\b[^>]*?count="(\d+)"', lambda x: int(x) // 2, 2)),
            "GPU lanes": within(gpu, lanes), "GPU generation": within(gpu, generation), "NIC lanes": within(nic, lanes),
            "NIC generation": within(nic, generation),
            "NIC slow": within(nic, scaled(r'\A.*?<net\b[^>]*?speed="(\d+)"', lambda x: int(x) // 4, 1000)),
            "NIC speed": within(nic, sub(r'(<net\b[^>]*?speed=")[1-9]\d*', r"\g<1>0")),
            "GPU gdr": within(gpu, sub(r'(<gpu\b[^>]*?gdr=")1', r"\g<1>0")),
            "NIC gdr": within(nic, sub(r'(<net\b[^>]*?gdr=")1', r"\g<1>0"))}


# ---- hwloc, nvidia-smi -----------------------------------------------------------------------------------------------

def hwloc_gpus(text):
    return [m.span() for m in re.finditer(r'<object\b[^>]*pci_type="(?:03\d\d \[10de|(?:0302|0380|12\d\d) \[1002|0300 '
                                          r'\[1002:66a)[^>]*>', text)]


def smi_gpus(text):
    return [m.span() for m in re.finditer(r"<gpu id=.*?</gpu>", text, re.S)]


def smi_faults():
    edits = {"lanes": (r"(current_link_width>)16x", "4x"), "DRAM": (r"(<volatile>.*?<dram_uncorrectable>)0", "3"),
             "SRAM": (r"(<volatile>.*?<sram_uncorrectable\w*>)0", "3"), "replays": (r"(<replay_counter>)\d+", "54321"),
             "heat": (r"(reason_hw_thermal_slowdown>)Not Active", "Active"),
             "heat by software": (r"(reason_sw_thermal_slowdown>)Not Active", "Active"),
             "slowdown": (r"(reason_hw_slowdown>)Not Active", "Active"), "ECC": (r"(<current_ecc>)Enabled", "Disabled"),
             "row": (r"(<remapped_row_pending>)No", "Yes"), "fabric": (r"(<fabric>\s*<state>)Completed", "In Progress")}
    faults = {name: within(smi_gpus, sub(pattern, rf"\g<1>{to}")) for name, (pattern, to) in edits.items()}
    return dict(faults, **{"GPU gone": gone(smi_gpus)})


# ---- matrices --------------------------------------------------------------------------------------------------------

def matrix_fault(pick, cell=None):
    """Removes a device, or changes cells of its row and column. GPUs are renumbered."""
    def fault(text, rng):
        lines = text.splitlines()
        head = next(i for i, l in enumerate(lines) if re.match(r"\s+\S*GPU0\b", l))
        names = [c for c in lines[head].split() if re.fullmatch(r"GPU\d+|NIC\d+|mlx\S+|bnxt\S+|ib\S+", c)]
        rows = {l.split()[0]: l.split()[1:] for l in lines[head + 1:] if l.split() and l.split()[0] in names}
        of = {a: dict(zip(names, row)) for a, row in rows.items()}
        devices = [n for n in names if n.startswith("GPU") == (pick != "NIC") and (
            cell is None or any(cell(c) != c for c in of.get(n, {}).values()))]
        if len(devices) < 2:
            return None
        one = rng.choice(devices)
        left = names if cell else [n for n in names if n != one]
        gpus = [n for n in left if n.startswith("GPU")]
        said = {n: f"GPU{gpus.index(n)}" if n in gpus else n for n in left}
        text = "\t" + "\t".join(said[n] for n in left) + "\tCPU Affinity\tNUMA Affinity\n"
        for a in left:
            if a in of:
                cells = [cell(of[a][b]) if cell and one in (a, b) else of[a][b] for b in left]
                text += "\t".join([said[a]] + cells + rows[a][len(names):]) + "\n"
        return text
    return fault


def halved(cell):
    return f"NV{max(1, int(cell[2:]) // 2)}" if cell.startswith("NV") else cell


# ---- ibnetdiscover ---------------------------------------------------------------------------------------------------

def ib_blocks(text, kind):
    return [m.span() for m in re.finditer(rf"(?m)^{kind}\b(?![^\n]*Aggregation)[^\n]*\n(?:\[[^\n]*\n)*", text)]


def ib_lines(text):
    lines = []
    for start, end in ib_blocks(text, "(?:Switch|Ca)"):
        own = re.search(r'"([SH]-\w+)"', text[start:end])[1]
        for m in re.finditer(r'(?m)^\[(\d+)\][^\n"]*"([SH]-\w+)"\[(\d+)\](?![^\n]*Aggregation)[^\n]*\n', text[start:end]):
            lines.append((start + m.start(), start + m.end(), (own, m[1]), (m[2], m[3])))
    return lines


def cable_fault(kinds, ends, edit=lambda line: ""):
    def fault(text, rng):
        lines = ib_lines(text)
        some = [l for l in lines if l[2][0][0] + l[3][0][0] == kinds]
        if not some:
            return None
        one = rng.choice(some)
        both = [l for l in lines if l is one or (ends == 2 and (l[2], l[3]) == (one[3], one[2]))]
        for start, end, _, _ in sorted(both, reverse=True):
            text = text[:start] + edit(text[start:end]) + text[end:]
        return text
    return fault


def spine_fault(text, rng):
    """A switch without NICs, of several."""
    spans = [s for s in ib_blocks(text, "Switch") if not re.search(r'(?m)^\[[^\n]*"H-(?![^\n]*Aggregation)', text[slice(*s)])]
    if len(spans) < 2:
        return None
    start, end = rng.choice(spans)
    own = re.search(r'"([SH]-\w+)"', text[start:end])[1]
    return re.sub(rf'(?m)^\[\d+\][^\n"]*"{own}"[^\n]*\n', "", text[:start] + text[end:])


def slower(line):
    return re.sub(r"4x[A-Z]DR", "4xQDR", line)


FAULTS = {"nccl": nccl_faults(), "hwloc": {"GPU at half speed": within(hwloc_gpus, scaled(
    r'pci_link_speed="([\d.]+)"', lambda x: f"{x / 2:.6f}", 0.1))}, "smi": smi_faults(),
    "matrix": {"GPU gone": matrix_fault("GPU"), "NIC gone": matrix_fault("NIC"), "half of the links": matrix_fault(
        "GPU", halved), "GPU without links": matrix_fault("GPU", lambda c: "SYS" if c.startswith("NV") else c)},
    "fabric": {"NIC lists no cable": cable_fault("HS", 1), "leaf lists no cable": cable_fault("SH", 1),
               "NIC without cable": cable_fault("SH", 2), "NIC slow": cable_fault("SH", 2, slower),
               "trunk listed once": cable_fault("SS", 1), "trunk gone": cable_fault("SS", 2),
               "trunk slow": cable_fault("SS", 2, slower), "spine gone": spine_fault}}


def format_of(text):
    """Returns the format of a dump, or None if this file has no faults for it."""
    for name, pattern in [("nccl", r"<system\b"), ("hwloc", r"<topology\b"), ("smi", r"<nvidia_smi_log\b"),
                          ("fabric", r'(?m)^(?:Switch|Ca)\s+\d+ "'), ("matrix", r"(?m)^\s+GPU0\b")]:
        if re.search(pattern, text):
            return name
    return None
