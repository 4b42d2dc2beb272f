#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The recipe of Spack is read with a stub of Spack's names. Every option that it gives to configure is one that there is,
for each of its variants alone and for all of them, and its version is that of configure."""
import itertools
import os
import re
import subprocess
import sys
import types

TOP = os.environ.get("top_srcdir") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
CONFIGURE = os.path.join(TOP, "configure")


class Package:
    """An AutotoolsPackage as far as the recipe needs it."""

    def __init__(self, variants):
        self.spec = Spec(variants)

    def with_or_without(self, name, variant=None):
        return ["--with%s-%s" % ("" if self.spec.satisfies("+" + (variant or name)) else "out", name)]


class Spec:
    def __init__(self, on):
        self.on = on
        self.variants = {"cuda_arch": types.SimpleNamespace(value=("90",))}

    def satisfies(self, text):
        return text[1:] in self.on

    def __getitem__(self, name):
        if name not in depended:
            raise KeyError("the recipe does not depend on " + name)
        return types.SimpleNamespace(prefix="/prefix", mpicc="/prefix/bin/mpicc")


variants, versions, depended, licenses = {"cuda"}, [], {"cuda"}, []
names = {
    "AutotoolsPackage": Package,
    "CudaPackage": type("CudaPackage", (), {}),
    "variant": lambda name, default, description: variants.add(name),
    "depends_on": lambda spec, when="", type=None: depended.add(re.match(r"[a-z0-9-]+", spec).group(0)),
    "conflicts": lambda spec, msg: None,
    "license": licenses.append,
    "version": versions.append,
}
package = types.ModuleType("spack.package")
package.__dict__.update(names)
sys.modules.update({"spack": types.ModuleType("spack"), "spack.package": package})

if not os.path.exists(CONFIGURE):
    print("skipped: configure has not been made")
    sys.exit(77)
recipe = {"__name__": "package"}
with open(os.path.join(TOP, "packaging", "spack", "package.py"), encoding="utf-8") as stream:
    exec(compile(stream.read(), stream.name, "exec"), recipe)

known = subprocess.run([CONFIGURE, "--help"], capture_output=True, text=True, check=True).stdout
version = subprocess.run([CONFIGURE, "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
wrong = []
if versions != [version] or version not in recipe["Banyan"].url or licenses != ["Apache-2.0"]:
    wrong.append("version %s, url %s and licence %s; configure is %s" % (versions, recipe["Banyan"].url, licenses, version))
count = 0
for size in (0, 1, len(variants)):
    for on in itertools.combinations(sorted(variants), size):
        for argument in recipe["Banyan"](set(on)).configure_args():
            count += 1
            name = re.sub(r"^--with(out)?-|=.*$", "", argument)
            if not re.search(r"^  (--with(out)?-)?%s\b" % re.escape(name), known, re.M):
                wrong.append("%s: configure does not know %s" % (on, argument))
for line in wrong:
    print("test_spack: " + line)
print("test_spack: %d variants, %d arguments, %d wrong" % (len(variants), count, len(wrong)))
sys.exit(bool(wrong))
