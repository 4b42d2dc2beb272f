#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2016 # awk, sed and other shells expand the single-quoted text
# The programs of examples/ compile as C and as C++17, have at most 80 lines, and print the expected output. README's
# program is one of them. The C code of docs/migration.md compiles, and its MPI code gives the same numbers as its calls.
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

# blocks KIND: prints the C blocks of docs/migration.md that use MPI (mpi), or only banyan (banyan).
blocks() {
  awk -v want="$1" '/^```c$/ { block = ""; inside = 1; next }
    /^```$/ && inside { kind = block ~ /MPI_/ ? "mpi" : "banyan"
      if (kind == want) printf "%s\n", block
      inside = 0 }
    inside { block = block $0 "\n" }' "$top/docs/migration.md"
}

{ echo '#include <banyan.h>' && blocks banyan; } >"$work/banyan.c"
# shellcheck disable=SC2086
check "the calls of docs/migration.md" ${CC:-cc} -std=c11 $warnings -I"$top/include" -c "$work/banyan.c" -o "$work/banyan.o"

mpi=$(makefile_value MPI_LIBS)
if [ -z "$mpi" ] || ! command -v mpirun >/dev/null; then
  echo "left out: mpi.c and the code of docs/migration.md over MPI, for there is none"
else
  # shellcheck disable=SC2046,SC2086
  if compile mpi "$top/examples/mpi.c" $(makefile_value MPI_CFLAGS) -DOMPI_SKIP_MPICXX -L"$build/.libs" -lbanyan-mpi $mpi; then
    prints mpi "$(printf 'rank %d: heads %d to %d: attention is 1, lse 1.09861\n' 0 0 2 1 3 5 2 6 7)" mpirun -n 3 "$work/mpi"
  fi
  { printf '#include <%s.h>\n' banyan_mpi math stdio stdlib && blocks mpi && blocks banyan; cat <<'END'
enum { T = 3, H = 4, D = 5, ROWS = T * H };
int main(void) {
  MPI_Init(NULL, NULL);
  banyan_comm *comm = NULL;
  if (banyan_comm_create_mpi(MPI_COMM_WORLD, NULL, &comm)) return 1;
  float o[3][ROWS * D], lse[3][ROWS], mine[ROWS * D], worst = 0;
  int rank = banyan_comm_rank(comm), failed = 0;
  for (int form = 0; form < 3; form++) {
    for (int i = 0; i < ROWS; i++) lse[form][i] = i % 5 == rank ? -INFINITY : sinf((float)(i * 7 + rank));
    for (int i = 0; i < ROWS * D; i++) o[form][i] = cosf((float)(i * 3 + rank));
  }
  merge_by_allreduces(MPI_COMM_WORLD, o[0], lse[0], ROWS, D);
  failed |= scatter_heads(comm, o[2], lse[2], mine, T, H, D, NULL);
  banyan_op *op = NULL;
  failed |= merge(comm, o[1], lse[1], T, H, D) || merge_prepare(comm, o[2], lse[2], T, H, D, &op) || merge_again(op);
  for (int form = 1; form < 3; form++) {
    for (int i = 0; i < ROWS * D; i++) worst = fmaxf(worst, fabsf(o[form][i] - o[0][i]));
    for (int i = 0; i < ROWS; i++) worst = fmaxf(worst, fabsf(lse[form][i] - lse[0][i]));
  }
  int32_t first, number;
  banyan_split(H, banyan_comm_nranks(comm), rank, &first, &number);
  for (int i = 0; i < T * number * D; i++) {
    worst = fmaxf(worst, fabsf(mine[i] - o[0][(i / (number * D) * H + first) * D + i % (number * D)]));
  }
  printf("%s\n", failed || !(worst < 1e-5f) ? "differ" : "agree");
  banyan_op_free(op);
  banyan_comm_destroy(comm);
  return MPI_Finalize();
}
END
  } >"$work/forms.c"
  # shellcheck disable=SC2046,SC2086
  if check "the forms of docs/migration.md" ${CC:-cc} -std=c11 $warnings -I"$top/include" $(makefile_value MPI_CFLAGS) \
    "$work/forms.c" -o "$work/forms" -L"$build/.libs" -lbanyan-mpi -lbanyan $mpi -lm; then
    prints forms "$(printf 'agree\nagree\nagree')" mpirun -n 3 "$work/forms"
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
