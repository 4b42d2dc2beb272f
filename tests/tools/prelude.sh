# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Shared functions of the tests of tools. They run a program, check its exit status and output, and count checks.
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
# A make that runs these tests passes its variables, such as TESTS, to every inner make.
unset MAKEFLAGS MFLAGS MAKEOVERRIDES MAKELEVEL TESTS check_PROGRAMS
checks=0
failed=0

# tool NAME: selects the program for run(). By default it is that of the build; BANYAN_INFO and so on override it.
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

# run STATUS ARGUMENT...: runs the program, which must exit with STATUS. Its output goes to $work/out and $work/err.
run() {
  local want=$1 status
  shift
  "$program" "$@" >"$work/out" 2>"$work/err" </dev/null
  status=$?
  checks=$((checks + 1))
  [ $status = "$want" ] || complain "${program##*/} $*: exit status $status, not $want"
}

# says PATTERN [out|err]: the output of the last run matches. hides PATTERN: it does not match.
says() {
  checks=$((checks + 1))
  grep -qE -- "$1" "$work/${2:-out}" || complain "\"$1\" is not in std${2:-out}"
}
# tells PATTERN: like says, but joins standard output to one line, because long texts are wrapped.
tells() {
  checks=$((checks + 1))
  tr -s ' \n' ' ' <"$work/out" | grep -qE -- "$1" || complain "\"$1\" is not in stdout"
}
hides() {
  checks=$((checks + 1))
  if grep -qE -- "$1" "$work/out" "$work/err"; then complain "\"$1\" is there"; fi
}

# json EXPRESSION: the Python expression is true. `o` is the JSON output of the last run. One Python judges all of them.
json() {
  local answer
  checks=$((checks + 1))
  if ! command -v python3 >/dev/null; then return; fi
  if [ -z "${to_judge:-}" ]; then
    coproc JUDGE { exec python3 -c 'import json, sys
for line in sys.stdin:
    path, law = line.split("\t", 1)
    try:
        o = json.load(open(path))
        print("no" if not eval(law) else "yes", flush=True)
    except Exception as why:
        print(repr(why), flush=True)'; }
    exec {to_judge}>&"${JUDGE[1]}" {from_judge}<&"${JUDGE[0]}"
  fi
  printf '%s\t%s\n' "$work/out" "${1//$'\n'/ }" >&"$to_judge"
  read -r answer <&"$from_judge"
  [ "$answer" = yes ] || complain "JSON: not so: $1: $answer"
}

# rejects PATTERN ARGUMENT...: the command line is a usage error, which says why on one line of standard error.
rejects() {
  local why=$1
  shift
  run 2 "$@"
  says "$why" err
}
# law EXPRESSION ARGUMENT...: the Python expression is true for the JSON of a run.
law() {
  local is=$1
  shift
  run 0 "$@" --json
  json "$is"
}

# same WHAT GOT WANT: GOT equals WANT. WHAT describes it.
same() {
  checks=$((checks + 1))
  [ "$2" = "$3" ] || fail "$1: \"$2\", not \"$3\""
}

# Prints the result. It is the last command of a test.
finish() {
  echo "$(basename "$0" .sh): $checks checks${1:+, $1}, $failed failed"
  [ $failed = 0 ]
}
