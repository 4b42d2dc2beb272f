# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The tests of tools share these functions: they run a program, look at its exit status and its output, and count.
set -u
top=$(cd "${top_srcdir:-$(dirname "$0")/../..}" && pwd)
build=$(cd "${top_builddir:-.}" && pwd)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
for variable in $(compgen -e BANYAN_); do
  case $variable in BANYAN_DECODE | BANYAN_INFO | BANYAN_PERF | BANYAN_PLAN | BANYAN_TOPO | BANYAN_TOPOLOGIES | BANYAN_UPDATE_GOLDENS) ;;
  *) unset "$variable" ;; esac
done
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
# A make that runs these tests hands its variables, such as TESTS, to every make below it.
unset MAKEFLAGS MFLAGS MAKEOVERRIDES MAKELEVEL TESTS check_PROGRAMS
checks=0
failed=0

# tool NAME: the program that run() runs. BANYAN_INFO names that of banyan-info and so on, else it is that of the build.
tool() {
  local variable=BANYAN_${1#banyan-}
  variable=${variable^^}
  program=${!variable:-$build/$1}
  [ -x "$program" ] || { echo "skipped: $program has not been built" && exit 77; }
  case $program in /*) ;; *) program=$PWD/$program ;; esac
}

fail() {
  echo "FAIL: $*"
  failed=$((failed + 1))
}

complain() {
  fail "$@"
  sed 's/^/  | /' "$work/out" "$work/err" | head -n 60
}

# run STATUS ARGUMENT...: the exit status must be that; what it says is in $work/out and $work/err.
run() {
  local want=$1 status
  shift
  "$program" "$@" >"$work/out" 2>"$work/err" </dev/null
  status=$?
  checks=$((checks + 1))
  [ $status = "$want" ] || complain "${program##*/} $*: exit status $status, not $want"
}

# says PATTERN [out|err]: what the last run said matches; hides PATTERN: it does not.
says() {
  checks=$((checks + 1))
  grep -qE -- "$1" "$work/${2:-out}" || complain "\"$1\" is not in std${2:-out}"
}
# tells PATTERN: as says, but of standard output as one line, because long texts are wrapped.
tells() {
  checks=$((checks + 1))
  tr -s ' \n' ' ' <"$work/out" | grep -qE -- "$1" || complain "\"$1\" is not in stdout"
}
hides() {
  checks=$((checks + 1))
  if grep -qE -- "$1" "$work/out" "$work/err"; then complain "\"$1\" is there"; fi
}

# json EXPRESSION: of the last run's object `o`.
json() {
  checks=$((checks + 1))
  if ! command -v python3 >/dev/null; then return; fi
  python3 -c 'import json, sys
o = json.load(open(sys.argv[1]))
sys.exit(not eval(sys.argv[2]))' "$work/out" "$1" 2>>"$work/err" || complain "JSON: not so: $1"
}

# same WHAT GOT WANT
same() {
  checks=$((checks + 1))
  [ "$2" = "$3" ] || fail "$1: \"$2\", not \"$3\""
}

# The last command of a test.
finish() {
  echo "$(basename "$0" .sh): $checks checks${1:+, $1}, $failed failed"
  [ $failed = 0 ]
}
