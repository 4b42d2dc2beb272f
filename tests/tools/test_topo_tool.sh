#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs banyan-topo as users do. BANYAN_TOPO names the program, else it is that of the build. Pictures are held against
# goldens beside the topologies; BANYAN_UPDATE_GOLDENS=1 writes them anew, for reading.
set -u
here=$(cd "$(dirname "$0")" && pwd)
program=${BANYAN_TOPO:-${top_builddir:-.}/banyan-topo}
if [ ! -x "$program" ]; then
  echo "skipped: $program has not been built"
  exit 77
fi
case $program in /*) ;; *) program=$PWD/$program ;; esac
dumps=${BANYAN_TOPOLOGIES:-${top_srcdir:-$here/../..}/../shared/topologies}
[ -d "$dumps" ] && dumps=$(cd "$dumps" && pwd)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$here/../topologies" || exit 1
unset NO_COLOR LANG LC_CTYPE
export LC_ALL=C.UTF-8 COLUMNS=100 TERM=xterm
utf8=no
[ "$(locale charmap 2>/dev/null)" = UTF-8 ] && utf8=yes
xml=yes
"$program" --from pcie-8gpu.xml 2>&1 | grep -q 'without libxml2' && xml=no

checks=0
failures=0
fail() {
  echo "FAIL: $*"
  failures=$((failures + 1))
}
# expect STATUS ARGUMENTS..: runs the program; what it writes is in $work/out and $work/err.
expect() {
  local wanted=$1 status
  shift
  checks=$((checks + 1))
  "$program" "$@" >"$work/out" 2>"$work/err" </dev/null
  status=$?
  [ $status = "$wanted" ] || fail "$* exits with $status, not $wanted: $(head -c 300 "$work/err")"
}
# says PATTERN, complains PATTERN: of what ran last.
says() {
  grep -Eq -- "$1" "$work/out" || fail "no \"$1\" in the output: $(head -c 600 "$work/out")"
}
complains() {
  grep -Eq -- "$1" "$work/err" || fail "no \"$1\" in the error: $(cat "$work/err")"
}
is_silent() {
  [ ! -s "$work/err" ] || fail "unexpected words: $(cat "$work/err")"
}
readable() { # whether libxml2 is there, where it is needed
  case $1 in *.xml) [ $xml = yes ] ;; *) true ;; esac
}
golden() { # of what ran last
  if [ -n "${BANYAN_UPDATE_GOLDENS:-}" ]; then
    cp "$work/out" "$1"
  fi
  diff -u "$1" "$work/out" >"$work/diff" 2>&1 || fail "not as in $1: $(head -n 40 "$work/diff")"
}

# ---- the picture -----------------------------------------------------------------------------------------------------
for file in dgx-h100.txt gb200-nvl72.txt hgx-h100-faults.xml pcie-8gpu.xml; do
  if readable $file && [ $utf8 = yes ]; then
    expect 0 --from $file
    golden "${file%.*}.text"
  fi
done
expect 0 --from spine-leaf.txt --levels
golden spine-leaf.table
for file in dgx-h100.txt gb200-nvl72.txt hgx-h100-faults.xml mi300x.xml; do # those of docs/topology.md
  readable $file || continue
  expect 0 --from $file --format svg
  golden "../../docs/pictures/${file%.*}.svg"
done

# A port that is down, as a probe would have found it.
"$program" --from "host numa bridge pci:2 gpu:2 nic@400g" --json |
  awk '/"kind": "net"/ && ++nets == 2 { sub(/"gbytes_per_s": [0-9.]*, /, "") } { print }' >"$work/down.json"
expect 0 --from "$work/down.json"
says 'NIC1 +down '
expect 3 --from "$work/down.json" --check
says '^fault: NIC1 port 1 is down .50 GB/s if it were up.: GPU2 and another'

for file in *.txt *.xml; do
  readable "$file" || continue
  expect 0 --from "$file"
  cp "$work/out" "$work/plain"
  is_silent
  for columns in 80 100 140; do
    COLUMNS=$columns expect 0 --from "$file"
    widest=$(wc -L <"$work/out")
    [ "$widest" -le $columns ] || fail "$file: a line of $widest columns where there are $columns"
  done
  expect 0 --from "$file" --colour always
  sed 's/\x1b\[[0-9;]*m//g' "$work/out" | cmp -s - "$work/plain" || fail "$file: colours change the text"
  grep -q $'\x1b' "$work/plain" && fail "$file: colours where there is no terminal"
  LC_ALL=C expect 0 --from "$file"
  LC_ALL=C grep -q '[^ -~]' "$work/out" && fail "$file: more than ASCII without a UTF-8 locale"
  [ "$(wc -l <"$work/out")" = "$(wc -l <"$work/plain")" ] || fail "$file: other lines in ASCII"
  expect 0 --from "$file" --all
done

big="spine:4 leaf:8@rails host:64 nvswitch package:2 pci:4 gpu:1@sm90@gen5x16 nic:1@400g"
expect 0 --from "$big"
says 'host0 .*and 2047 alike: host1\.\.host2047'
[ "$(wc -l <"$work/out")" -lt 50 ] || fail "2048 hosts alike take $(wc -l <"$work/out") lines"

expect 0
says '^this machine: 1 host'
says '^Probes$'
is_silent

# ---- formats ---------------------------------------------------------------------------------------------------------
for file in *.txt *.xml; do
  readable "$file" || continue
  expect 0 --from "$file" --format json
  cp "$work/out" "$work/once.json"
  for key in nodes links levels ranks findings probes; do
    says "^\"$key\": \["
  done
  expect 0 --from "$work/once.json" --json
  cmp -s "$work/once.json" "$work/out" || fail "$file: JSON that was read is not the same when it is written again"
  expect 0 --diff "$file" "$work/once.json"
  says '^no differences$'
done
expect 0 --from dgx-h100.txt --format synthetic
description=$(cat "$work/out")
expect 0 --from "$description"
says '32 GPUs, 32 NICs'
expect 0 --from dgx-h100.txt --format xml
says '<gpu '
expect 0 --from "host package:2 numa:4 gpu" --format hwloc
says '^Package:2 NUMANode:4 PU:1$'
if "$program" | grep -q '^  hwloc *found'; then
  export HWLOC_SYNTHETIC
  HWLOC_SYNTHETIC=$(cat "$work/out")
  expect 0
  says '2 CPU packages, 8 NUMA nodes$'
  unset HWLOC_SYNTHETIC
fi
expect 0 --from "host numa:2 gpu" --format hwloc
says '^NUMANode:2 PU:1$'
expect 2 --from "host:2 package:2" --format hwloc
complains 'hwloc describes one host, and here are 2$'
expect 2 --from "host gpu" --format hwloc
complains 'neither packages nor NUMA nodes'
expect 2 --from "host gpu:2 nic:1" --format pdf
complains '^banyan-topo: --format pdf: not one of text, json, svg, dot, xml'

# ---- levels, check, diff ---------------------------------------------------------------------------------------------
expect 0 --from dgx-h100.txt --check
is_silent
[ ! -s "$work/out" ] || fail "findings of a healthy machine: $(cat "$work/out")"
expect 0 --from one-gpu.txt --check
says '^info: '
expect 3 --from "host:2 gpu:2" --check
says '^fault: .*no NIC is known'
expect 3 --from "host:2 gpu:2" --check --json
says '^\{"status": "fault"'
expect 0 --from dgx-h100.txt --check --json
says '^\{"status": "good"'
expect 2 --from nowhere.xml --check
complains '^banyan-topo: nowhere\.xml: No such file'
if [ $xml = yes ]; then
  expect 1 --from hgx-h100-faults.xml --check
  says '^warning: GPU3 has 12 of 18 NVLinks'
  [ "$(wc -l <"$work/out")" = 2 ] || fail "not two findings: $(cat "$work/out")"
  expect 1 --from hgx-h100-faults.xml --check --json
  says '"node": "GPU3", "text": "GPU3 has 12'
  expect 0 --from hgx-h100-faults.xml --json
  sed 's/"count": 3, "gbytes_per_s": 61[.0-9]*/"count": 4, "gbytes_per_s": 82.4/; /"GPU7"/d
       s/"gbytes_per_s": 12.5/"gbytes_per_s": 50/' "$work/out" | sed -z 's/,\n\]/\n]/g' >"$work/better.json"
  expect 1 --diff hgx-h100-faults.xml "$work/better.json"
  says '^- gpu GPU7 \(0000:8a:00.0\)$'
  says '^~ nic mlx5_5: network 12.5 GB/s → 50 GB/s$'
  says '^~ nvlink GPU3 - NVSwitch: x12, 247 GB/s → x16, 330 GB/s$'
  says '^~ level island: 1 group of 8 GPUs'
  expect 1 --diff hgx-h100-faults.xml "$work/better.json" --json
  says '"same": false'
  says '\{"change": "missing", "what": "gpu", "text": "gpu GPU7'
fi
expect 1 --diff "host:2 gpu:4" "host:3 gpu:4"
says '^\+ host host2$'
expect 1 --diff "host gpu:8@gen5x16" "host gpu:8@gen4x16"
says '^~ gpu GPU0: PCI 48 GB/s → 24 GB/s$'
expect 0 --diff "host:2 gpu:4" "host:2 gpu:4"
expect 0 --from dgx-h100.txt --levels
says '^rail +8 +4 +NET +50 .* 0-24 by 8'

# ---- files -----------------------------------------------------------------------------------------------------------
mkdir "$work/files"
expect 0 --from dgx-h100.txt -o "$work/files/a.json"
[ ! -s "$work/out" ] || fail "-o also writes to standard output"
grep -q '^"nodes"' "$work/files/a.json" || fail "-o a.json is no JSON"
expect 0 --from dgx-h100.txt -o "$work/files/a.txt"
grep -q '^Levels' "$work/files/a.txt" || fail "-o a.txt is no picture"
expect 0 --from dgx-h100.txt --output "$work/files/a.xml"
grep -q '<system' "$work/files/a.xml" || fail "-o a.xml is no XML"
ln -s a.txt "$work/files/link.txt"
chmod 640 "$work/files/a.txt"
expect 0 --from one-gpu.txt -o "$work/files/link.txt"
[ -L "$work/files/link.txt" ] || fail "-o replaces a link by a file"
grep -q 'one-gpu' "$work/files/a.txt" || fail "-o does not write through a link"
[ "$(stat -c %a "$work/files/a.txt")" = 640 ] || fail "-o changes the mode of a file"
expect 2 --from dgx-h100.txt -o "$work/files/a"
complains 'does not tell the format'
expect 2 --from dgx-h100.txt -o "$work/none/a.json"
complains "cannot write $work/none/a.json: No such file or directory"
expect 2 --from dgx-h100.txt --format text -o "$work/files"
complains 'Is a directory'
cp "$work/files/a.json" "$work/before"
(
  trap '' XFSZ # a file that may not grow: writing fails half way
  ulimit -f 1
  expect 2 --from "$big" -o "$work/files/a.json" 2>/dev/null
  exit $failures
) || failures=$((failures + 1))
cmp -s "$work/before" "$work/files/a.json" || fail "-o left half of a file"
if [ -c /dev/full ]; then
  "$program" --from dgx-h100.txt >/dev/full 2>"$work/err"
  [ $? = 2 ] || fail "a full device goes unnoticed"
  expect 2 --from dgx-h100.txt --format json -o /dev/full
  complains 'cannot write /dev/full: No space left'
fi
[ "$(ls "$work/files" | tr '\n' ' ')" = "a.json a.txt a.xml link.txt " ] || fail "left behind: $(ls "$work/files")"

# ---- measuring: this machine may be busy and slow, so that 1 is as good as 0 -------------------------------------------
for cpus in 1 2; do
  checks=$((checks + 1))
  "$program" --measure --ranks $cpus --seconds 0.2 --json >"$work/out" 2>"$work/err" </dev/null
  status=$?
  case $status in
  0 | 1)
    says '"measured"'
    says '"reads_1m_gbytes_per_s"|"pairs": \[\]'
    cp "$work/out" "$work/measured.json"
    expect 0 --from "$work/measured.json" --json ;;
  *) [ $cpus = 2 ] && grep -q 'on 1 CPU:' "$work/err" || fail "--measure exits with $status: $(cat "$work/err")" ;;
  esac
done

# ---- what is refused -------------------------------------------------------------------------------------------------
expect 2 --from one-gpu.txt --from one-gpu.txt
complains '^banyan-topo: --from is given twice'
expect 2 one-gpu.txt
complains 'a file is shown with --from FILE'
expect 2 --diff one-gpu.txt
complains -- '--diff wants two'
expect 2 --check --levels
complains 'one at a time'
expect 2 --levels --format xml
complains 'written as text or json'
expect 2 --measure --from one-gpu.txt
complains 'not with --from'
expect 2 --ranks 2
complains 'go with --measure'
expect 2 --measure --ranks 100000
expect 2 --measure --seconds nan
complains 'not a number'
expect 2 --colour red
complains 'not one of auto, always, never'
expect 2 --nonsense
complains '^usage: banyan-topo'
expect 2 --from "host gpu:0"
complains '^banyan-topo: '
printf '{"nodes": [\n {"id": 1,, }' >"$work/bad.json"
expect 2 --from "$work/bad.json"
complains "bad\.json:2: "
if [ $xml = yes ]; then
  head -n 20 hgx-h100-faults.xml >"$work/cut.xml"
  expect 2 --from "$work/cut.xml"
  complains 'cut\.xml:[0-9]+: '
  [ ! -s "$work/out" ] || fail "something is shown of a file that is refused"
fi
printf '{"nodes": [{"id": "h", "kind": "host", "name": "a\\u001b[31mb\\u0007"}]}' >"$work/escape.json"
expect 0 --from "$work/escape.json"
grep -q $'[\x07\x1b]' "$work/out" && fail "a name steers the terminal"

# ---- what would be chosen --------------------------------------------------------------------------------------------
expect 0 --explain 256K --from 'leaf:2@rails host:2 nvswitch gpu:4@sm90 nic:4@400g'
says '^island +4 +4 +nvlink'
says 'chosen: least predicted'
says 'times the time'
says 'cannot: '
expect 0 --explain 64K --from one-gpu.txt --json
says '"choice": '
expect 2 --explain 0 --from one-gpu.txt
complains 'not a size'
expect 2 --explain 1K --levels --from one-gpu.txt
complains 'one at a time'

# ---- help ------------------------------------------------------------------------------------------------------------
expect 0 --help
for option in from format output levels check diff measure explain ranks seconds json all colour; do
  says "--$option"
  grep -q "Fl -$option" "$here/../../tools/topo/banyan-topo.1" || fail "the manual page lacks --$option"
done
expect 0 --version
says '^banyan-topo [0-9]'

# ---- dumps of real machines ------------------------------------------------------------------------------------------
visited=0
if [ -d "$dumps" ] && [ $xml = yes ]; then
  while read -r file; do
    "$program" --from "$file" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    checks=$((checks + 1))
    visited=$((visited + 1))
    case $status in
    0) [ "$(wc -L <"$work/out")" -le 100 ] || fail "$file: a line of $(wc -L <"$work/out") columns" ;;
    2) grep -Eq "^banyan-topo: .*${file##*/}:[0-9]+: " "$work/err" || fail "$file refused: $(cat "$work/err")" ;;
    *) fail "$file: exit status $status" ;;
    esac
  done < <(find "$dumps" -mindepth 2 -type f | LC_ALL=C sort)
else
  echo "no dumps of machines, or no libxml2: not looked at"
fi

echo "test_topo_tool: $checks runs, $visited dumps, $failures failures"
[ $failures = 0 ]
