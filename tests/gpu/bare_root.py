#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: bare_root.py make ROOT FILE...
       bare_root.py run ROOT NAME=VALUE... -- COMMAND...

make: makes a root like that of a bare container. It has this Python with its standard library, the shared libraries that
the FILEs need, and nothing else: no shell, compiler, xz or packages. run: runs the command in that root, with /proc,
/dev/null, its own /dev/shm, and only these variables. The exit status is 77, with the reason, if namespaces or chroot
are rejected."""
import os
import shutil
import subprocess
import sys
import sysconfig

LEFT_OUT = ("site-packages", "dist-packages", "test", "idlelib", "tkinter", "ensurepip", "lib2to3", "__pycache__", "turtledemo")
DEVICES = ("null", "zero", "urandom")
SKIPPED = 77


def python():
    return os.path.realpath(sys.executable)


def put(root, path):
    """Copies a file to the same path below `root`, and follows links."""
    to = root + path
    if not os.path.exists(to):
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copy2(os.path.realpath(path), to)


def libraries(path):
    said = subprocess.run(["ldd", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8", check=False).stdout
    words = [word for line in said.splitlines() for word in line.split()]
    return [word for word in words if word.startswith("/")]


def make(root, files):
    for name in ("proc", "dev", "tmp", "bin"):
        os.makedirs(os.path.join(root, name), exist_ok=True)
    library = sysconfig.get_path("stdlib")
    shutil.copytree(library, root + library, dirs_exist_ok=True, ignore=lambda folder, names: [
        name for name in names if name in LEFT_OUT or name.startswith("config-") or name.endswith(".a")])
    put(root, python())
    native = os.path.join(library, "lib-dynload")
    for path in [python()] + [os.path.join(native, name) for name in os.listdir(native)] + files:
        for needed in libraries(path):
            put(root, needed)


# The root has its own mount namespace, so nothing has to be unmounted.
PREPARE = """set -e
mount -t proc proc "$0/proc"
mount -t tmpfs tmpfs "$0/dev"
mkdir -m 1777 "$0/dev/shm"
for name in %s; do : >"$0/dev/$name"; mount --bind "/dev/$name" "$0/dev/$name"; done
exec chroot "$0" "$@"
""" % " ".join(DEVICES)


def run(root, words):
    end = words.index("--")
    variables = dict(word.split("=", 1) for word in words[:end])
    begin = ["unshare", "--mount", "--pid", "--fork", "--kill-child"] + ([] if os.geteuid() == 0 else ["--user", "--map-root-user"])
    begin += ["sh", "-c", PREPARE, os.path.abspath(root)]
    # chroot and sh are those of this machine, and are found before the root is entered.
    tried = subprocess.run(begin + [python(), "-c", ""], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", check=False)
    if tried.returncode != 0:
        print("no root like a container's: " + (tried.stdout.strip().splitlines() or ["unshare or chroot fails"])[-1])
        return SKIPPED
    script = "import os, sys; os.environ.clear(); os.environ.update(%r); os.chdir('/tmp'); os.execv(sys.argv[1], sys.argv[1:])"
    os.execvp(begin[0], begin + [python(), "-c", script % variables, python()] + words[end + 1:])


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ("make", "run"):
        sys.exit(__doc__)
    if sys.argv[1] == "make":
        make(os.path.abspath(sys.argv[2]), sys.argv[3:])
        return 0
    return run(sys.argv[2], sys.argv[3:])  # which returns if the root cannot be entered


if __name__ == "__main__":
    sys.exit(main())
