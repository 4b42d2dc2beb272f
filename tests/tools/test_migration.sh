#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2016 # awk's own variables
# The C code of docs/migration.md compiles, and its MPI code gives the same numbers as its calls of banyan.
set -u
top=$(cd "${top_srcdir:-$(dirname "$0")/../..}" && pwd)
build=$(cd "${top_builddir:-.}" && pwd)
[ -e "$build/.libs/libbanyan.so" ] || { echo "skipped: libbanyan.so has not been built" && exit 77; }
for variable in $(compgen -e BANYAN_); do unset "$variable"; done
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export LD_LIBRARY_PATH=$build/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
failed=0

makefile_value() { sed -n "s/^$1 = *//p" "$build/Makefile"; }

# compile NAME FLAG...: compiles $work/NAME.c to the program or object $work/NAME.
compile() {
  local name=$1
  shift
  # shellcheck disable=SC2086
  ${CC:-cc} -std=c11 -Wall -Wextra -Werror -I"$top/include" "$work/$name.c" -o "$work/$name" "$@" && return
  echo "FAIL: $name does not compile"
  failed=$((failed + 1))
  return 1
}

# blocks KIND: prints the C blocks that use MPI (mpi), or only banyan (banyan).
blocks() {
  awk -v want="$1" '/^```c$/ { block = ""; inside = 1; next }
    /^```$/ && inside { kind = block ~ /MPI_/ ? "mpi" : "banyan"
      if (kind == want) printf "%s\n", block
      inside = 0 }
    inside { block = block $0 "\n" }' "$top/docs/migration.md"
}

{ echo '#include <banyan.h>' && blocks banyan; } >"$work/banyan.c"
compile banyan -c
mpi=$(makefile_value MPI_LIBS)
if [ -n "$mpi" ] && command -v mpirun >/dev/null; then
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
  } >"$work/mpi.c"
  # shellcheck disable=SC2046,SC2086
  if compile mpi $(makefile_value MPI_CFLAGS) -L"$build/.libs" -lbanyan-mpi -lbanyan $mpi -lm; then
    said=$(timeout 300 mpirun -n 3 "$work/mpi" 2>"$work/warnings" </dev/null)
    if [ "$said" != "$(printf 'agree\nagree\nagree')" ]; then
      printf 'FAIL: the forms do not agree:\n%s\n' "$said"
      cat "$work/warnings"
      failed=$((failed + 1))
    fi
  fi
else
  echo "left out: the forms over MPI, for there is none"
fi
echo "test_migration: $failed failed"
[ $failed = 0 ]
