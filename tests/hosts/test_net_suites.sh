#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Repeats tests of the whole library with ranks that act as ranks of several nodes and connect by UCX over TCP on the
# loopback interface. The ranks of each test get the first of the node names.
set -u
directory=${top_builddir:-.}/tests
export UCX_TLS=tcp UCX_NET_DEVICES=lo
[ -x "$directory/transport/test_net" ] || { echo "skipped: no unit tests are built, or none of UCX" && exit 77; }
CK_RUN_CASE=none "$directory/transport/test_net" || exit 77 # prints that UCX is missing
failed=0

# suite HOSTS PROGRAM: runs the program with these node names.
suite() {
  local said
  if ! said=$(BANYAN_NODE=$1 timeout 400 "$directory/$2" 2>&1); then
    echo "$said" | tail -n 20
    echo "test_net_suites: $2 failed with BANYAN_NODE=$1"
    failed=$((failed + 1))
  fi
}

mixed=a,a,b,b,a,b,c,d,e,a,a,b,c,d,e,f,g
apart=a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q
(
  suite $mixed api/test_contract
  suite $mixed api/test_mismatch
  exit $failed
) &
suite $mixed exec/test_faults # these mostly wait
suite $apart exec/test_faults
wait $! || failed=$((failed + 1))
exit $failed
