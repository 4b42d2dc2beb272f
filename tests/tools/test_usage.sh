#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# All tools behave alike. --help and the man page come from one table. An invalid command line prints one line and a
# hint, and each kind of failure has one exit status.
# shellcheck source=tests/tools/prelude.sh
. "$(dirname "$0")/prelude.sh"

# Each row: a tool, the exit status, and the arguments.
topo=$top/tests/topologies
while read -r name status arguments; do
  tool "banyan-$name"
  # shellcheck disable=SC2086
  run "$status" $arguments
  [ "$status" != 2 ] || says "^banyan-$name: " err
done <<END
perf 0 --help
perf 0 combine --sizes 520 --iterations 2
perf 1 combine --algorithm nonsense
perf 2
perf 2 combine --nonsense
perf 2 barrier --wire f16
perf 2 combine --order exact --wire f16
decode 0 --tokens 9 --repeat 1
decode 2 --order exact --wire e4m3 --method fused
decode 1 --tokens 9 --repeat 1 --algorithm nonsense
decode 1 --tokens 9 --repeat 1 --ranks 2 --algorithm nonsense
decode 2 --input /nonexistent
decode 2 --ranks 2 --input /nonexistent
decode 2 --nonsense
decode 2 what
plan 0 --ranks 4
plan 1 --ranks 4 --algorithm nonsense
plan 1 --prove --ranks 16384 --algorithm oneshot
plan 2 --order exact --wire bf16 --ranks 4
plan 2 --cost --memory 1G --ranks 4
plan 2 --regret --algorithm ring --ranks 4
plan 2 --from /nonexistent
plan 2 --ranks 8 --levels 4,x
plan 2 --nonsense
topo 0 --from $topo/dgx-h100.txt --check
topo 2 --from /nonexistent --check
topo 2 --from $topo/dgx-h100.txt --json -o /nonexistent/a
topo 2 --nonsense
info 0 --json build
info 2 --nonsense
info 2 what
END

# The last value of an option is not taken in silence. Methods that merge in an order of their own reject the exact one.
tool banyan-perf
rejects '^banyan-perf: --sizes is given twice$' combine --sizes 520 --sizes 1K
rejects '^banyan-perf: --pin is given twice$' combine --pin --pin
tool banyan-decode
for method in ring allreduce3 all; do
  rejects '^banyan-decode: --order exact: ring and allreduce3 merge in an order of their own' --order exact --method $method
done
law 'o["verified"] and o["order"] == "exact"' --order exact --method tree --tokens 300 --ranks 2 --repeat 1

# The JSON of every tool begins with version, command, date and node. The command can be run again.
while read -r name arguments; do
  tool "banyan-$name"
  # shellcheck disable=SC2086
  law 'list(o)[:4] == ["version", "command", "date", "node"]' $arguments
  json 'list(o["node"]) == ["hostname", "cpus", "kernel"] and o["node"]["cpus"] > 0 and o["node"]["kernel"].startswith("Linux ")'
  json '__import__("datetime").datetime.strptime(o["date"], "%Y-%m-%dT%H:%M:%SZ").year > 2000'
  json "sorted(o['command'].split()[1:]) == sorted('$arguments --json'.split())" # getopt moves options to the front
done <<END
perf combine --ranks 2 --sizes 520 --iterations 2
decode --ranks 2 --tokens 9 --repeat 1
plan --ranks 4
plan --ranks 4 --print
plan --ranks 4 --prove
topo --from $topo/one-gpu.txt
topo --from $topo/one-gpu.txt --check
info build
END
# A failed write of output is a usage error in every view.
while read -r name arguments; do
  tool "banyan-$name"
  [ -c /dev/full ] || continue
  # shellcheck disable=SC2086
  "$program" $arguments >/dev/full 2>"$work/err" </dev/null
  same "banyan-$name $arguments to a full device" $? 2
  says 'cannot write to standard output' err
done <<END
perf combine --ranks 2 --sizes 520 --iterations 2
decode --ranks 2 --tokens 9 --repeat 1
plan --ranks 4
plan --ranks 4 --print
plan --ranks 4 --prove
topo --from $topo/one-gpu.txt
info
END

# A name with a line break does not break the error into several lines.
for name in plan topo; do
  tool "banyan-$name"
  run 2 --from "/nonexistent"$'\n'"a"
  same "lines of banyan-$name --from a name of two lines" "$(cat "$work/err")" \
    "banyan-$name: /nonexistent?a: No such file or directory"
  run 2 --ranks $'\n'
  same "lines of banyan-$name --ranks of two lines" "$(wc -l <"$work/err")" 2
done

tool banyan-topo
law "o['command'].endswith(\"--from 'host gpu:2' --json\")" --from 'host gpu:2'

for name in perf decode plan topo info; do
  tool "banyan-$name"
  # A usage error prints one line about the fault and one line with a hint.
  run 2 --nonsense
  same "lines of banyan-$name --nonsense" "$(cat "$work/err")" \
    "$(printf '%s: --nonsense: no such option\ntry '"'%s --help'" "banyan-$name" "banyan-$name")"
  same "output of banyan-$name --nonsense" "$(cat "$work/out")" ""
  run 0 --version
  says "^banyan-$name [0-9]"
  if [ -c /dev/full ]; then
    "$program" --help >/dev/full 2>"$work/err"
    same "banyan-$name --help to a full device" $? 2
    says "^banyan-$name: cannot write to standard output" err
  fi
  run 0 --help
  same "columns of banyan-$name --help" "$(($(wc -L <"$work/out") <= 100))" 1
  # The man page lists the options of --help and each exit status.
  page=$build/tools/$name/banyan-$name.1
  listed=$(sed -nE 's/^  (-[a-z], )?--([a-z-]+).*/\2/p' "$work/out" | sort)
  same "options in $page" "$(sed -nE '/^\.Sh OPTIONS/,/^\.Sh EXIT/s/^\.It (Fl [a-z] , )?Fl -([a-z-]+)( .*)?$/\2/p' "$page" | sort)" "$listed"
  same "headings of $page" "$(grep -cE '^\.Sh (NAME|SYNOPSIS|DESCRIPTION|OPTIONS|EXIT STATUS|SEE ALSO)$' "$page")" 6
  for status in 0 1 2; do says "(^Exit status:|^ {12}) $status [a-z-]"; done
  if command -v groff >/dev/null && [ -e /usr/share/groff/current/tmac/mdoc.tmac ]; then
    same "warnings of groff for $page" "$(groff -mdoc -ww -z "$page" 2>&1)" ""
  fi
done

# Tables have at most 100 columns, whatever their content. Files for programs may be wider.
while read -r name arguments; do
  tool "banyan-$name"
  # shellcheck disable=SC2086
  run 0 $arguments
  same "columns of banyan-$name $arguments: $(wc -L <"$work/out")" "$(($(wc -L <"$work/out") <= 100))" 1
done <<END
info
perf combine --ranks 2 --sizes 520,1M --iterations 2
perf barrier --ranks 2 --iterations 2
decode --ranks 3 --tokens 9 --repeat 1
plan --ranks 64 --levels 8,8
plan --ranks 64 --levels 4,8
plan --ranks 12 --print
plan --ranks 64 --levels 8,8 --prove
plan --from $topo/gb200-nvl72.txt --print
plan --from $topo/spine-leaf.txt
plan --from $topo/dgx-h100.txt --prove
plan --from $topo/fabric-two-rails.txt --collective broadcast
topo --from $topo/dgx-h100.txt
topo --from $topo/mi300x.txt
END

# Each local rank of banyan-perf has its own core, or a warning reports too few cores.
tool banyan-perf
run 0 combine --ranks 2 --sizes 520 --iterations 2
if ! grep -q '2 ranks share 1 core' "$work/err"; then
  same "CPUs of 2 ranks" "$(sed -n 's/^# rank .* cpu //p' "$work/out" | sort -u | wc -l)" 2
fi
if command -v taskset >/dev/null; then
  cpu=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')
  taskset -c "$cpu" "$program" combine --ranks 2 --sizes 520 --iterations 2 >"$work/out" 2>"$work/err"
  says '^banyan-perf: 2 ranks share 1 core,' err
fi
tool banyan-decode
run 0 --ranks 3 --tokens 9 --repeat 1
says '^recursive_doubling +[0-9.]+ us \('
says '^tree_chain +[0-9.]+ us \('
says '^all ranks bitwise equal: tree, allreduce3$'
run 0 --ranks 3 --tokens 9 --repeat 1 --method ring
hides 'all ranks bitwise equal'

finish
