# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# Sourced by tests of several nodes: paths, and reasons to skip a test.
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
room=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
hosts=$room/hosts
build=$(cd "${top_builddir:-$here/../../build}" && pwd)
world=$build/tests/hosts/hosts_world

skip() {
  echo "skipped: $*"
  exit 77
}

need_programs() {
  local program
  for program; do [ -x "$program" ] || skip "$program is not built"; done
}

# Skips the test if hosts cannot be made here.
need_hosts() {
  local said
  said=$("$hosts" 1x1 -- true 2>&1)
  [ $? != 77 ] || skip "${said#skipped: }"
}

# Returns true if ranks of different nodes can exchange messages, which needs UCX. Other failures are left to the test.
have_messages() {
  ! "$hosts" --timeout 30 2x1 -- "$world" 2>&1 | grep "apt-get install libucx" >/dev/null
}

need_messages() {
  have_messages || skip "no UCX, which connects hosts"
}

# The files and hosts of a test are removed when it ends.
work=$(mktemp -d /tmp/banyan-hosts.XXXXXX) || exit 1
name=
finish() {
  [ -z "$name" ] || "$hosts" down "$name"
  rm -rf "$work"
}
trap finish EXIT

checks=0
failures=0
# outcome WHAT PASSED TEXT: counts a check. After a failure, it shows the text and the last output.
outcome() {
  checks=$((checks + 1))
  [ "$2" != yes ] || return 0
  failures=$((failures + 1))
  echo "FAIL: $1: $3"
  [ ! -e "$work/out" ] || cat "$work/out"
}

# expect WHAT STATUS TEXT COMMAND...: checks the exit status, and that a line contains TEXT, or equals it after "=".
expect() {
  local what=$1 status=$2 text=$3 got found=yes
  shift 3
  "$@" >"$work/out" 2>&1
  got=$?
  case $text in
  =*) grep -qxF -- "${text#=}" "$work/out" || found=no ;;
  *) grep -qF -- "$text" "$work/out" || [ -z "$text" ] || found=no ;;
  esac
  [ $got = "$status" ] || found=no
  outcome "$what" $found "status $got, must be $status; \"$text\" must be in:"
}

# The last command of a test.
report() {
  echo "$(basename "$0" .sh): $checks checks, $failures failures"
  [ $failures = 0 ]
}
