# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# Read by tests of several hosts: where things are, and what is a reason to skip.
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

# Hosts can be made here.
need_hosts() {
  local said
  said=$("$hosts" 1x1 -- true 2>&1)
  [ $? != 77 ] || skip "${said#skipped: }"
}

# Hosts have names: without /etc/hosts there is nowhere to put them.
have_names() {
  [ -e /etc/hosts ] || { echo "skipped: names of hosts, because there is no /etc/hosts"; return 1; }
}

# Ranks of different hosts can exchange messages: not without UCX. Any other failure is one for the test to show.
have_messages() {
  ! "$hosts" --timeout 30 2x1 -- "$world" 2>&1 | grep "apt-get install libucx" >/dev/null
}

need_messages() {
  have_messages || skip "no UCX, which connects hosts"
}
