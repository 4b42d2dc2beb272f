#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Completion in bash offers the current options, values, collectives and sections of the tools. zsh, if installed,
# completes an option of each tool on a pseudo-terminal.
set -u
top=$(cd "${top_srcdir:-$(dirname "$0")/../..}" && pwd)
build=$(cd "${top_builddir:-.}" && pwd)
[ -x "$build/banyan-info" ] || { echo "skipped: the tools have not been built" && exit 77; }
# shellcheck source=/dev/null
. "$top/packaging/completions/banyan.bash"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0

# offers TEXT WORD BEFORE TOOL: completing WORD after BEFORE offers TEXT.
offers() {
  local text=$1 word=$2 before=$3 tool=$4
  COMPREPLY=()
  _banyan "$build/$tool" "$word" "$before"
  [ "${COMPREPLY[*]}" = "$text" ] && return
  echo "FAIL: $tool $before $word: ${COMPREPLY[*]} and not $text"
  failed=$((failed + 1))
}

offers "f32 f16 bf16 e4m3" "" --wire banyan-perf
offers "bf16" b --wire banyan-decode
offers "heads" h --scatter banyan-plan
offers "--help" --he banyan-topo banyan-topo
offers "--scatter" --sc combine banyan-perf
offers "allgather allgather-heads" a banyan-perf banyan-perf
offers "options" o banyan-info banyan-info
for tool in banyan-decode banyan-perf banyan-plan banyan-topo banyan-info; do
  complete -p $tool >/dev/null || failed=$((failed + 1))
done

# Each row has a tool and an option with a unique prefix. zsh writes the rest of the option to the terminal.
cat >"$work/complete.zsh" <<'END'
zmodload zsh/zpty || exit 77
zpty shell zsh -f -i
zpty -w shell "PS1=; fpath=(${(q)1}/packaging/completions \$fpath); PATH=${(q)2}:\$PATH; autoload -U compinit"
zpty -w shell "compinit -u -d ${(q)3}/dump; bindkey '^I' expand-or-complete; print rea''dy"
zpty -r shell seen '*ready*' || exit 1
while read tool typed rest; do
  zpty -w -n shell "$tool $typed"$'\t'
  zpty -r shell seen "*$typed*$rest*" || exit 1
  zpty -w -n shell $'\x15'
  print "$tool $typed$rest"
done <$3/rows
END
cat >"$work/rows" <<'END'
banyan-info --js on
banyan-perf --sca tter
banyan-decode --rag ged
banyan-plan --comp are
banyan-topo --expl ain
END
how="no zsh"
if command -v zsh >/dev/null; then
  timeout 120 zsh -f "$work/complete.zsh" "$top" "$build" "$work" >"$work/seen"
  status=$?
  how="zsh: $(wc -l <"$work/seen") of $(wc -l <"$work/rows")"
  if [ $status != 77 ] && ! diff <(sed 's/ \([a-z]*\)$/\1/' "$work/rows") "$work/seen"; then failed=$((failed + 1)); fi
fi
echo "test_completion: $how, $failed failed"
[ $failed = 0 ]
