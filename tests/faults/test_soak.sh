#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs tests/faults/soak for ten seconds: ranks on two nodes, faults, shrinking, and growing back.
# shellcheck source=tests/hosts/hosts_prelude.sh
. "$(dirname "$0")/../hosts/hosts_prelude.sh"
need_programs "$world" "$build/tests/faults/soak_rank"
need_hosts
need_messages
"$here/soak" --seconds 10 --quiet
