#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: options.py TOP >docs/options.md

The page of environment variables, from the tables that the library and banyan-info have: src/base/options.def and, for
the fields of banyan_comm_config that say the same, tools/info/options.c."""
import re
import sys

TEXT = r'"(?:[^"\\]|\\.)*"'


def text(literals):
    """The text of C's string literals side by side."""
    return "".join(part[1:-1].replace('\\"', '"') for part in re.findall(TEXT, literals))


def rows(source):
    """(name, default, range, help) of each option."""
    number = r"BNY_OPTION_NUMBER\(\w+,\s*(%s),\s*(\d+),\s*(\d+),\s*(\d+),\s*(%s),\s*((?:%s\s*)+)\)" % (TEXT, TEXT, TEXT)
    words = r"BNY_OPTION_(?:TEXT|WORD)\(\w+,\s*(%s),\s*(?:(%s),\s*)?((?:%s\s*)+)\)" % (TEXT, TEXT, TEXT)
    for found in re.finditer(number + "|" + words, source):
        name, standard, lowest, highest, unit, about, text_name, few, text_about = found.groups()
        if name:
            yield text(name), ("%s %s" % (standard, text(unit))).strip(), "%s to %s" % (lowest, highest), text(about)
        else:
            yield text(text_name), "unset", text(few) if few else "text", text(text_about)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1] + "/src/base/options.def", encoding="utf-8") as stream:
        source = re.sub(r"^#.*?$|/\*.*?\*/", "", stream.read(), flags=re.S | re.M)
    with open(sys.argv[1] + "/tools/info/options.c", encoding="utf-8") as stream:
        fields = re.findall(r'\{"(BANYAN_\w+)", "(\w+)", (true|false)\}', stream.read())
    found = list(rows(source))
    if len(found) != source.count("BNY_OPTION_"):
        sys.exit("options.py: a row of options.def was not understood")
    print("""# Options

banyan's settings are environment variables, and some are also fields of `banyan_comm_config`. Variables are read when a
communicator is made, and those of the log also before a thread's first line. `banyan-info options` prints the same
list, with the value of each variable and where it comes from. A value out of its range is an error that names the
variable. An unknown name that begins with `BANYAN_` gets a warning. docs/options.py makes this page.

| variable | default | range | what it is |
|---|---|---|---|""")
    shared = {name: ("; the field `%s` takes precedence" if program == "true" else "; overrides the field `%s`") % field
              for name, field, program in fields}
    for name, standard, span, about in found:
        print("| `%s` | %s | %s | %s |" % (name, standard, span, about.replace("|", "\\|") + shared.get(name, "")))


main()
