#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: reference.py man|names DIRECTORY VERSION HEADER...

The reference from the public headers, whose comments are the manual: a man page for each group of calls and for each type
(section 3), in DIRECTORY. `names` prints the public functions. Declarations that no blank line separates are one group,
and the comment above them describes all of them."""
import os
import re
import sys

COMMENT = re.compile(r"/\*(.*?)\*/", re.S)


class Entry:
    """A group of declarations with its comment. A note has a comment alone."""

    def __init__(self, header, section, text):
        self.header, self.section = header, section
        above = re.match(r"\s*/\*(.*?)\*/", text, re.S)
        self.text = unstarred(above.group(1)) if above else ""
        code = text[above.end():] if above else text
        self.code = re.sub(r"^\s*#(?:.*\\\n)*.*(?:\n|$)", "", code, flags=re.M).strip()
        bare = re.sub(r"\{(?:[^{}]|\{[^{}]*\})*\}", "{}", COMMENT.sub("", self.code))
        self.functions = re.findall(r"\b(banyan_\w+)\s*\((?!\*)", bare)
        self.types = re.findall(r"\b(banyan_\w+)\s*;", "\n".join(re.findall(r"typedef[^;]*;", bare)))
        self.fields = fields(self.code)
        if self.fields and not self.types:
            self.types = [os.path.commonprefix([name.split(" ")[0] for name, _ in self.fields]).rsplit("_", 1)[0]]
        self.name = (self.functions + self.types + [""])[0]

    def summary(self):
        """The first sentence, or what follows the first of the calls."""
        text = " ".join(self.text.split()) or " ".join(note for _, note in self.notes()[:1])
        sentence = re.split(r"(?<=[a-z0-9)`])[.:;](?= |$)", text)[0].replace("`", "")
        if sentence.count("(") > sentence.count(")"):
            sentence = sentence[:sentence.rindex("(")].strip()
        return sentence if len(sentence) <= 110 else sentence[:110].rsplit(" ", 1)[0] + " ..."

    def notes(self):
        """(function, comment) where a comment stands behind a declaration."""
        found = [] if self.fields else re.findall(r"\b(banyan_\w+)\([^;{]*;[ \t]*/\*(.*?)\*/", self.code, re.S)
        return [(name, " ".join(unstarred(note).split())) for name, note in found]

    def prototypes(self):
        """Declarations without comments and bodies."""
        code = COMMENT.sub("", self.code)
        if self.functions:
            code = re.sub(r"\s*\{(?:[^{}]|\{[^{}]*\})*\}(?!\s*banyan)", ";", code).replace("BNY_DEVICE", "__device__")
        return re.sub(r"[ \t]+$", "", code, flags=re.M).strip()


def unstarred(comment):
    """A comment's text: lines without the star that they begin with."""
    lines = [re.sub(r"^\s*\* ?", "", line) if i else line.strip() for i, line in enumerate(comment.split("\n"))]
    return "\n".join(line for line in lines if "SPDX-License" not in line).strip("\n")


def fields(code):
    """(declaration, comment) of a struct's fields, or of an enum's values. A comment stands above its field or behind it."""
    body = re.search(r"\b(struct|enum)[^{;]*\{(.*)\}", code, re.S)
    if not body:
        return []
    declaration = r"([^;/]+);" if body.group(1) == "struct" else r"(BANYAN_\w+(?: = \w+)?),?"
    found = re.findall(r"(?:/\*((?:(?!\*/).)*)\*/\n\s*)?" + declaration + r"(?:[ \t]*/\*(.*?)\*/)?", body.group(2), re.S)
    return [(" ".join(name.split()), " ".join(unstarred(above or behind).split())) for above, name, behind in found]


def entries(path):
    """The groups of a header in their order."""
    header, section, group, depth = os.path.basename(path), "", [], 0
    with open(path, encoding="utf-8") as stream:
        lines = stream.read().split("\n") + [""]
    for line in lines:
        title = re.match(r"/\* -+ (.*?) -+ \*/$", line)
        if title:
            section = title.group(1)
            continue
        group.append(line)
        text = "\n".join(group)
        depth = text.count("{") - text.count("}") - text.count('extern "C" {')
        if line == "" and depth == 0 and text.count("/*") == text.count("*/"):
            if re.sub(r"^#(?:.*\\\n)*.*$", "", text, flags=re.M).strip() and "extern \"C\"" not in text and text.strip() != "}":
                yield Entry(header, section, text)
            group = []


def paragraphs(text):
    """(kind, text): plain, item or code."""
    for block in re.split(r"\n\s*\n", text):
        lines = block.split("\n")
        if all(line.startswith("  ") for line in lines):
            yield "code", block
            continue
        part = []
        kind = "plain"
        for line in lines:
            if line.startswith("- "):
                if part:
                    yield kind, " ".join(part)
                part, kind, line = [], "item", line[2:]
            part.append(line.strip())
        yield kind, " ".join(part)


# ---- man pages ---------------------------------------------------------------------------------------------------------


def roff_plain(text):
    for char, name in (("\\", "\\e"), ("-", "\\-"), ("^", "\\(ha"), ("~", "\\(ti")):
        text = text.replace(char, name)
    return re.sub(r"^([.'])", r"\\&\1", text)


def roff(text):
    """A line of text for roff, with names of calls in bold and `words` in italics."""
    text = roff_plain(text)
    text = re.sub(r"`([^`]*)`|(?<!\w)\*(\w+)\*", r"\\fI\1\2\\fP", text)
    text = re.sub(r"\b(banyan_\w+)\(\)", r"\\fB\1\\fP(3)", text)
    return text


def roff_block(text):
    """Lines as they are."""
    return [".nf"] + [roff_plain(line) for line in text.split("\n")] + [".fi"]


def roff_text(text):
    out = []
    for kind, part in paragraphs(text):
        out += {"plain": [".PP", roff(part)], "item": [".IP \\(bu 3", roff(part)]}.get(kind) or [".PP"] + roff_block(part)
    return out


def wrapped(prototypes):
    """Long declarations in lines of at most 76 columns."""
    out = []
    for line in re.sub(r",\s*\n\s*", ", ", prototypes).split("\n"):
        while len(line) > 76 and ", " in line[:76]:
            cut = line[:76].rindex(", ") + 1
            out.append(line[:cut])
            line = "    " + line[cut:].strip()
        out.append(line)
    return "\n".join(out)


def man_page(entry, version, others):
    names = entry.functions or entry.types
    out = ['.TH "%s" 3 "" "banyan %s" "banyan"' % (entry.name, version), ".SH NAME"]
    out += [roff(", ".join(names)) + " \\- " + roff(entry.summary() or entry.section)]
    out += [".SH SYNOPSIS", ".nf", "#include <%s>" % entry.header, ".fi", ".PP"]
    if entry.functions:
        out += roff_block(wrapped(entry.prototypes()))
    elif entry.code.startswith("typedef"):
        out += roff_block(re.split(r"\s*[{;]", entry.code.replace("typedef ", ""))[0] + ";")
    out += [".SH DESCRIPTION"] + roff_text(entry.text)
    for name, note in entry.notes():
        out += [".TP", roff(name + "()"), roff(note)]
    for name, note in entry.fields:
        out += [".TP", "\\fB" + roff(name) + "\\fP", roff(note)]
    if re.search(r"^banyan_status\b", entry.code, re.M):
        out += [".SH RETURN VALUE", roff("BANYAN_OK, or the status of a failure, whose text banyan_last_error() returns. "
                                         "The page banyan_status(3) lists what there is.")]
    mentioned = set(re.findall(r"\bbanyan_\w+", entry.code + " " + entry.text)) & others - set(names)
    out += [".SH SEE ALSO", ",\n".join("\\fB%s\\fP(3)" % roff(name) for name in ["banyan"] + sorted(mentioned))]
    return "\n".join(out) + "\n"


def overview(all_entries, version):
    notes = [entry for entry in all_entries if not entry.name]
    out = ['.TH "banyan" 3 "" "banyan %s" "banyan"' % version, ".SH NAME"]
    out += ["banyan \\- merges attention partials across ranks in one topology\\-aware collective"]
    out += [".SH SYNOPSIS", ".nf", "#include <banyan.h>", ".fi", ".PP", "cc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs banyan)"]
    out += [".SH DESCRIPTION"] + roff_text(notes[0].text)
    for note in notes[1:]:
        title, _, rest = note.text.partition(".")
        if note is next(entry for entry in all_entries if entry.header == note.header):
            title, rest = note.header, note.text
        if len(title) < 60 < len(rest):
            out += [".SH " + roff(title), *roff_text(rest.strip())]
    for section in dict.fromkeys(entry.section or entry.header for entry in all_entries):
        pages = [entry for entry in all_entries if entry.name and (entry.section or entry.header) == section]
        out += [".SH " + roff(section).upper()] if pages else []
        for entry in pages:
            out += [".TP", ", ".join("\\fB%s\\fP(3)" % roff(name) for name in entry.functions or entry.types), roff(entry.summary())]
    return "\n".join(out) + "\n"


def write(directory, name, text):
    with open(os.path.join(directory, name), "w", encoding="utf-8") as stream:
        stream.write(text)


def make_man(directory, version, all_entries):
    pages = [entry for entry in all_entries if entry.name]
    others = {name for entry in pages for name in entry.functions + entry.types}
    write(directory, "banyan.3", overview(all_entries, version))
    for entry in pages:
        write(directory, entry.name + ".3", man_page(entry, version, others))
        for name in (entry.functions + entry.types)[1:]:
            if name != entry.name:
                write(directory, name + ".3", ".so man3/%s.3\n" % entry.name)


def main():
    if len(sys.argv) < 5 or sys.argv[1] not in ("man", "names"):
        sys.exit(__doc__)
    form, directory, version = sys.argv[1:4]
    all_entries = [entry for path in sys.argv[4:] for entry in entries(path)]
    if form == "names":
        print("\n".join(name for entry in all_entries for name in entry.functions))
        return
    os.makedirs(directory, exist_ok=True)
    make_man(directory, version, all_entries)


main()
