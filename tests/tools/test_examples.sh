#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2016 # sed and other shells expand the single-quoted text
# The programs of examples/ compile as C and as C++17, have at most 80 lines, and print the expected output. README's
# program is one of them.
# shellcheck source=tests/tools/prelude.sh
. "$(dirname "$0")/prelude.sh"
[ -e "$build/.libs/libbanyan.so" ] || { echo "skipped: libbanyan.so has not been built" && exit 77; }
export LD_LIBRARY_PATH=$build/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
warnings="-Wall -Wextra -Wmissing-field-initializers -Werror"

# check WHAT COMMAND...: the command must succeed.
check() {
  local what=$1
  shift
  checks=$((checks + 1))
  "$@" >"$work/log" 2>&1 && return
  fail "$what: $*"
  sed 's/^/  | /' "$work/log"
  return 1
}

makefile_value() { sed -n "s/^$1 = *//p" "$build/Makefile"; }

# compile NAME SOURCE FLAG...: compiles SOURCE to $work/NAME. Foreign headers may cause warnings.
compile() {
  local name=$1 source=$2
  shift 2
  # shellcheck disable=SC2086
  check "$name as C" ${CC:-cc} $warnings -I"$top/include" "$source" -o "$work/$name" "$@" \
    -L"$build/.libs" -lbanyan -pthread || return
  local cxx=${CXX:-c++}
  command -v "${cxx%% *}" >/dev/null || return 0
  # shellcheck disable=SC2086
  check "$name as C++17" $cxx -x c++ -std=c++17 $warnings -I"$top/include" -fsyntax-only "$source" -x none "${@/#-I/-isystem}"
}

# prints NAME TEXT COMMAND...: sorted standard output equals TEXT. Open MPI may print warnings to stderr.
prints() {
  local name=$1 text=$2 said
  shift 2
  checks=$((checks + 1))
  said=$(timeout 300 "$@" 2>"$work/warnings" </dev/null | LC_ALL=C sort)
  [ "$said" = "$text" ] && return
  printf 'FAIL: %s printed\n%s\nand not\n%s\n' "$name" "$said" "$text"
  sed 's/^/  | /' "$work/warnings"
  failed=$((failed + 1))
}

# both PROGRAM: runs two ranks on a random port. If another program has that port, it tries other ports.
both() {
  local port
  for _ in 1 2 3 4 5; do
    port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
    for rank in 0 1; do
      RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$1" >"$work/said.$rank" 2>&1 &
    done
    wait
    grep -q "in use" "$work/said.0" || break
  done
  cat "$work/said.0" "$work/said.1"
}
export -f both
export work

for source in "$top"/examples/*.c; do
  check "${source##*/} has at most 80 lines" [ "$(wc -l <"$source")" -le 80 ]
done

# README shows environment.c without its licence line.
sed -n '/^```c$/,/^```$/{/^```/d;p}' "$top/README.md" >"$work/readme.c"
check "README's program is examples/environment.c" diff "$work/readme.c" <(tail -n +2 "$top/examples/environment.c")
if compile readme "$work/readme.c"; then
  prints readme "$(printf 'rank %d: attention is 0.5, lse 0.693147\n' 0 1)" bash -c 'both "$0"' "$work/readme"
fi

if compile threads "$top/examples/threads.c"; then
  prints threads "100 steps: attention is 100.5, lse 1.38629" "$work/threads"
fi

if compile valid_rows "$top/examples/valid_rows.c"; then
  prints valid_rows "all rows are right" bash -c 'both "$0"' "$work/valid_rows"
fi

if compile prefill "$top/examples/prefill.c"; then
  prints prefill "all queries saw the keys up to their own" bash -c 'both "$0"' "$work/prefill"
fi

# The example's first comment shows the output.
if compile ownership "$top/examples/ownership.c"; then
  prints ownership "$(sed -n '/^ \*   /{s/^ \*   //;s, \*/$,,;p}' "$top/examples/ownership.c" | LC_ALL=C sort)" "$work/ownership"
fi

if compile tiers "$top/examples/tiers.c" -lm; then
  prints tiers "102400 tokens: 20480 in memory, 81920 in the file, and the passage in memory" "$work/tiers"
fi

mpi=$(makefile_value MPI_LIBS)
if [ -z "$mpi" ] || ! command -v mpirun >/dev/null; then
  echo "left out: mpi.c, for there is no MPI"
else
  # shellcheck disable=SC2046,SC2086
  if compile mpi "$top/examples/mpi.c" $(makefile_value MPI_CFLAGS) -DOMPI_SKIP_MPICXX -L"$build/.libs" -lbanyan-mpi $mpi; then
    prints mpi "$(printf 'rank %d: heads %d to %d: attention is 1, lse 1.09861\n' 0 0 2 1 3 5 2 6 7)" mpirun -n 3 "$work/mpi"
  fi
fi

fake=$build/tests/emulate/.libs/fake_cuda.so
if [ ! -e "$fake" ]; then
  echo "left out: cuda_graph.c, for no device is emulated here"
else
  # This image selects the emulator's own kernels.
  printf emulated >"$work/image"
  # shellcheck disable=SC2046
  if compile cuda_graph "$top/examples/cuda_graph.c" $(makefile_value CUDA_CFLAGS) "$fake" -Wl,-rpath,"$(dirname "$fake")"; then
    prints cuda_graph "10 replays: attention is 0.5, lse 0.693147" env BANYAN_CUDA_LIBRARY="$fake" \
      BANYAN_CUDA_IMAGE="$work/image" FAKE_CUDA=devices=2,live,step-ns=200 "$work/cuda_graph"
  fi
fi

# kubernetes.yaml matches the API's schemas, if kubernetes-validate is installed, and its parts match each other.
if ! python3 -c 'import yaml' 2>/dev/null; then
  echo "left out: kubernetes.yaml, for python3 has no yaml"
else
  check "kubernetes.yaml" python3 - "$top" <<'EOF'
import re, sys, yaml
top = sys.argv[1]
text = open(top + "/examples/kubernetes.yaml").read()
service, ranks = yaml.safe_load_all(text)
spec, name, app = ranks["spec"], ranks["metadata"]["name"], service["spec"]["selector"]
assert (service["kind"], ranks["kind"], service["spec"]["clusterIP"]) == ("Service", "StatefulSet", "None")
assert service["spec"]["publishNotReadyAddresses"] and spec["podManagementPolicy"] == "Parallel"  # all meet before any is ready
assert service["metadata"]["name"] == spec["serviceName"]
assert app == spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
(rank,) = spec["template"]["spec"]["containers"]
env = {each["name"]: each.get("value", each.get("valueFrom")) for each in rank["env"]}
assert env["MASTER_ADDR"] == f"{name}-0.{spec['serviceName']}" and env["WORLD_SIZE"] == str(spec["replicas"])
assert 0 < int(env["MASTER_PORT"]) < 65536
assert env["RANK"]["fieldRef"]["fieldPath"] == "metadata.labels['apps.kubernetes.io/pod-index']"
secret = env["BANYAN_SECRET"]["secretKeyRef"]
assert f"create secret generic {secret['name']} --from-literal={secret['key']}=" in text
options = open(top + "/src/base/options.def").read()
for each in env:
    assert not each.startswith("BANYAN_") or re.search(rf'"{each}"', options), each
try:
    import kubernetes_validate
except ImportError:
    sys.exit()
for version in "1.28", kubernetes_validate.latest_version():
    for each in service, ranks:
        kubernetes_validate.validate(each, version, strict=True)
EOF
fi

finish
