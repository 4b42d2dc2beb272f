#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Damages healthy machines and checks the findings of banyan-topo --check: see health_checks.py. PROGRAM names the tool;
# the default is that of the build.
# shellcheck source=tests/tools/prelude.sh
. "$(dirname "$0")/prelude.sh"
tool banyan-topo
here=$(cd "$(dirname "$0")" && pwd)
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 7))' 2>/dev/null; then
  echo "skipped: no python3 of 3.7 or newer"
  exit 77
fi
if "$program" --from "$top/tests/topologies/pcie-8gpu.xml" 2>&1 | grep -q 'without libxml2'; then
  echo "skipped: built without libxml2"
  exit 77
fi
PROGRAM=$program TOP=$top exec python3 "$here/health_checks.py" "$@"
