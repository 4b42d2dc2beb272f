#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/quickstart in a tree of stubs. Invalid options are rejected before any build, and valid ones reach
# banyan-decode. configure gets --enable-kernels=native, and failed tests show their logs.
# shellcheck source=tests/tools/prelude.sh
. "$(dirname "$0")/prelude.sh"
program=$work/tree/tools/quickstart

# rejected TEXT ARGUMENT...: the command fails with TEXT and creates nothing.
rejected() {
  local text=$1
  shift
  run 2 "$@"
  same "quickstart $*" "$(grep -cF -- "$text" "$work/err")" 1
  same "build/ after quickstart $*" "$(ls -d "$work/tree/build" 2>/dev/null)" ""
}

PATH=$work/bin:$PATH
mkdir -p "$work/bin" "$work/tree/tools" "$work/tree/build-aux"
cp "$top/tools/quickstart" "$work/tree/tools/"
rejected "usage: "
rejected "build: it must be run, test or install" build
rejected "--tokens: run takes" run --tokens 5
rejected "--ranks (nothing): it must be" run --ranks
for ranks in 0 65 08 x 3x; do rejected "--ranks $ranks: it must be" run --ranks $ranks; done
rejected "--method gossip: it must be" run --method gossip
rejected "--json: test takes no options" test --json
rejected "now: install takes no options" install now

# Stubs: sudo fails, apt-get does nothing, and banyan-decode prints its arguments.
printf '#!/bin/sh\nexit 1\n' >"$work/bin/sudo"
printf '#!/bin/sh\n' >"$work/bin/apt-get"
printf '#!/bin/sh\necho "$@"\n' >"$work/bin/banyan-decode"
cat >"$work/makefile" <<END
.PHONY: all banyan-decode check
all:
	echo the rest >rest
banyan-decode:
	cp "$work/bin/banyan-decode" .
check:
ifeq (\$(origin TESTS),undefined)
	mkdir -p tests && echo "what went wrong" >tests/b.log && printf 'not root\ntook 0.1 s\n' >tests/c.log
	printf '# PASS:  3\n# SKIP:  1\n# XFAIL: 0\n# FAIL:  1\n# XPASS: 0\n# ERROR: 0\n' >test-suite.log
	@echo "SKIP: tests/c"; echo "FAIL: tests/b"; exit 1
endif
END
# shellcheck disable=SC2016 # for configure to expand
printf '#!/bin/sh\necho "$CUDA_ARCHS" >archs\necho "$CFLAGS $CXXFLAGS" >flags\necho "$@" >options\ntouch config.status\ncp "%s/makefile" Makefile\n' "$work" >"$work/tree/configure"
touch "$work/tree/Makefile.in" "$work/tree/build-aux/ltmain.sh"
chmod +x "$work/bin/"* "$work/tree/configure"

file=tests/data/smollm2-135m.safetensors
unset CUDA_ARCHS CFLAGS CXXFLAGS
run 0 install
same "what install builds" "$(ls "$work/tree/build")" quickstart.log
run 0 run
same "arguments" "$(cat "$work/out")" "--input $file --ranks 4 --method all"
same "kernels" "$(cat "$work/tree/build/archs")" native
same "flags" "$(cat "$work/tree/build/flags")" "-O3 -O2"
same "options" "$(cat "$work/tree/build/options")" "--enable-kernels=native"
same "other tools" "$(cat "$work/tree/build/rest")" "the rest"
rm "$work/tree/build/rest"
run 0 run --json --method ring --ranks 3
same "other tools" "$(ls "$work/tree/build/rest" 2>/dev/null)" ""
same "arguments" "$(cat "$work/out")" "--input $file --ranks 3 --method ring --json"
rm -rf "$work/tree/build"
CUDA_ARCHS="80 100" CFLAGS=-Og run 0 run
same "kernels that were asked for" "$(cat "$work/tree/build/archs")" "80 100"
same "flags that were asked for" "$(cat "$work/tree/build/flags")" "-Og -O2"

run 1 test
same "log of the test that failed" "$(grep -A 1 'FAILED: tests/b' "$work/out" | tail -n 1)" "what went wrong"
same "why a test was skipped" "$(grep -c '^skipped: tests/c: not root$' "$work/out")" 1
same "counts" "$(tail -n 1 "$work/out")" "3 passed, 1 failed, 1 skipped"

finish
