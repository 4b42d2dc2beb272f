#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs banyan-topo as users do. BANYAN_TOPO names the program; the default is that of the build. Its text is compared
# with goldens next to the topologies. BANYAN_UPDATE_GOLDENS=1 rewrites the goldens, for review.
# shellcheck source=tests/tools/prelude.sh
. "$(dirname "$0")/prelude.sh"
tool banyan-topo
dumps=${BANYAN_TOPOLOGIES:-$top/../shared/topologies}
[ -d "$dumps" ] && dumps=$(cd "$dumps" && pwd)
cd "$top/tests/topologies" || exit 1
export LC_ALL=C
xml=yes
"$program" --from pcie-8gpu.xml 2>&1 | grep -q 'without libxml2' && xml=no

is_silent() {
  [ ! -s "$work/err" ] || fail "unexpected words: $(cat "$work/err")"
}
readable() { # succeeds unless the file needs libxml2 and the build lacks it
  case $1 in *.xml) [ $xml = yes ] ;; *) true ;; esac
}
golden() { # compares the output of the last command with the file
  if [ -n "${BANYAN_UPDATE_GOLDENS:-}" ]; then
    cp "$work/out" "$1"
  fi
  diff -u "$1" "$work/out" >"$work/diff" 2>&1 || fail "not as in $1: $(head -n 40 "$work/diff")"
}

# ---- the text --------------------------------------------------------------------------------------------------------
for file in dgx-h100.txt gb200-nvl72.txt hgx-h100-faults.xml pcie-8gpu.xml; do
  if readable $file; then
    run 0 --from $file
    golden "${file%.*}.text"
  fi
done
run 0 --from spine-leaf.txt --levels
golden spine-leaf.table

# A port that is down, as a probe would report it.
"$program" --from "host numa bridge pci:2 gpu:2 nic@400g" --json |
  awk '/"kind": "net"/ && ++nets == 2 { sub(/"gbytes_per_s": [0-9.]*, /, "") } { print }' >"$work/down.json"
run 0 --from "$work/down.json"
says 'GPU2 .* NIC1 .* fault$'
run 3 --from "$work/down.json" --check
says '^fault: port-down: NIC1 port 1: it is down .50 GB/s if it were up., and its NIC serves 2 GPUs'

for file in *.txt *.xml; do
  readable "$file" || continue
  run 0 --from "$file"
  is_silent
  run 0 --from "$file" --all
done

big="spine:4 leaf:8@rails host:64 nvswitch package:2 pci:4 gpu:1@sm90@gen5x16 nic:1@400g"
run 0 --from "$big"
says '^host0,.* and 2047 alike: host1, host2, .*, \.\.$'
[ "$(wc -l <"$work/out")" -lt 50 ] || fail "2048 hosts alike take $(wc -l <"$work/out") lines"
"$program" --from 'host:2 gpu:2@sm90' --json | awk '/"compute": 90/ && ++gpus > 2 { sub(/90/, "80") } { print }' >"$work/two.json"
run 0 --from "$work/two.json"
says '^host0, 2 x NVIDIA sm_90$'
says '^host1, 2 x NVIDIA sm_80$'

run 0
says '^this machine: 1 host'
says '^Probes$'
is_silent

# ---- formats ---------------------------------------------------------------------------------------------------------
for file in *.txt *.xml; do
  readable "$file" || continue
  run 0 --from "$file" --json
  cp "$work/out" "$work/once.json"
  for key in nodes links levels ranks findings probes; do
    says "^\"$key\": \["
  done
  run 0 --from "$work/once.json" --json
  diff <(sed '/^"command"\|^"date"/d' "$work/once.json") <(sed '/^"command"\|^"date"/d' "$work/out") >/dev/null || fail "$file: JSON that was read is not the same when it is written again"
done
printf '{"nodes": [{"id": "h", "kind": "host", "name": "a\\"b"}, {"id": "g", "kind": "gpu", "parent": "h"}]}' >"$work/quote.json"
for file in *.txt *.xml "$work/quote.json"; do
  readable "$file" || continue
  run 0 --from "$file" --dot
  says '^graph topology \{$'
  # Each node has one line, and the ends of each edge are such nodes.
  awk '/^ +n[0-9]+ \[label=/ { if (seen[$1]++) exit bad = 1 } / -- / && !(seen[$1] && seen[$3]) { exit bad = 1 }
       { gsub(/\\./, ""); if (gsub(/"/, "") % 2) exit bad = 1 } END { exit bad || $0 != "}" }' "$work/out" || fail "$file: no graph"
  ! command -v dot >/dev/null || dot -Tsvg "$work/out" >/dev/null || fail "$file: Graphviz rejects the graph"
done
run 0 --from "host:4 nvswitch gpu:8 nic:8@400g" --dot
says 'label="host0 and 3 alike"'
[ "$(grep -c 'label="GPU' "$work/out")" = 8 ] || fail "one of four equal hosts is drawn"
says ' -- .*18 x'
rejects '^banyan-topo: --json, --dot: one at a time' --from "host gpu:2 nic:1" --json --dot

# ---- levels and check ------------------------------------------------------------------------------------------------
run 0 --from dgx-h100.txt --check
is_silent
[ ! -s "$work/out" ] || fail "findings of a healthy machine: $(cat "$work/out")"
run 0 --from one-gpu.txt --check
is_silent
run 3 --from "host:2 gpu:2" --check
says '^fault: nic-none: host0 and host1: no NIC is known'
run 3 --from "host:2 gpu:2" --check --json
says '^"status": "fault"'
run 0 --from dgx-h100.txt --check --json
says '^"status": "healthy"'
rejects '^banyan-topo: nowhere\.xml: No such file' --from nowhere.xml --check
if [ $xml = yes ]; then
  run 3 --from hgx-h100-faults.xml --check
  says '^fault: nvlink-fewer: GPU3: 12 of 18 NVLinks'
  [ "$(grep -c '^fault' "$work/out")" = 2 ] || fail "not two faults: $(cat "$work/out")"
  run 3 --from hgx-h100-faults.xml --check --json
  says '"id": "nvlink-fewer", "severity": "fault", "node": "GPU3", "text": "GPU3: 12'
fi
run 0 --from dgx-h100.txt --levels
says '^rail +8 +4 +NET +50 .* 0-24 by 8'

# ---- inputs ----------------------------------------------------------------------------------------------------------
run 0 --from one-gpu.txt
cp "$work/out" "$work/plain"
run 0 one-gpu.txt
cmp -s "$work/out" "$work/plain" || fail "a file alone is not as with --from"
for input in - /dev/stdin; do
  cat one-gpu.txt | "$program" "$input" 2>&1 | tail -n +2 >"$work/out"
  checks=$((checks + 1))
  cmp -s "$work/out" <(tail -n +2 "$work/plain") || fail "$input is not read"
done
mkdir "$work/folder"
rejects 'neither a file nor a pipe' "$work/folder"

# ---- words that people use -------------------------------------------------------------------------------------------
run 0 hgx-a100-4nic.txt --levels
says '^package +2 +4'
echo "ROCm System Management Interface" >"$work/bad.txt"
rejects "rocm-smi, .* give the XML of NCCL_TOPO_DUMP_FILE or lstopo" "$work/bad.txt"

# ---- files -----------------------------------------------------------------------------------------------------------
mkdir "$work/files"
run 0 --from dgx-h100.txt --json -o "$work/files/a.json"
[ ! -s "$work/out" ] || fail "-o also writes to standard output"
grep -q '^"nodes"' "$work/files/a.json" || fail "-o a.json is no JSON"
run 0 --from dgx-h100.txt -o "$work/files/a.txt"
grep -q '^Levels' "$work/files/a.txt" || fail "-o a.txt is not the text"
ln -s a.txt "$work/files/link.txt"
chmod 640 "$work/files/a.txt"
run 0 --from one-gpu.txt -o "$work/files/link.txt"
[ -L "$work/files/link.txt" ] || fail "-o replaces a link by a file"
grep -q 'one-gpu' "$work/files/a.txt" || fail "-o does not write through a link"
[ "$(stat -c %a "$work/files/a.txt")" = 640 ] || fail "-o changes the mode of a file"
rejects "cannot write $work/none/a.json: No such file or directory" --from dgx-h100.txt --json -o "$work/none/a.json"
rejects 'Is a directory' --from dgx-h100.txt -o "$work/files"
cp "$work/files/a.json" "$work/before"
(
  trap '' XFSZ # the file cannot grow, so the write fails halfway
  ulimit -f 1
  run 2 --from "$big" --json -o "$work/files/a.json" 2>/dev/null
  exit $failed
) || failed=$((failed + 1))
cmp -s "$work/before" "$work/files/a.json" || fail "-o left half of a file"
if [ -c /dev/full ]; then
  "$program" --from dgx-h100.txt >/dev/full 2>"$work/err"
  [ $? = 2 ] || fail "a full device goes unnoticed"
  rejects 'cannot write /dev/full: No space left' --from dgx-h100.txt --json -o /dev/full
fi
[ "$(ls "$work/files" | tr '\n' ' ')" = "a.json a.txt link.txt " ] || fail "left behind: $(ls "$work/files")"

# ---- measuring --------------------------------------------------------------------------------------------------------
checks=$((checks + 1))
if "$program" --save-costs "$work/costs.json" --seconds 1 >"$work/out" 2>"$work/err" </dev/null; then
  grep -q '"costs_version": 1' "$work/costs.json" || fail "no costs are saved: $(cat "$work/err")"
else
  grep -q 'on 1 CPU:' "$work/err" || fail "--save-costs fails: $(cat "$work/err")"
fi

# ---- plans for this machine use measured costs; plans for others do not ------------------------------------------------
if [ -e "$work/costs.json" ]; then
  export BANYAN_COSTS=$work/costs.json
  tool banyan-plan
  run 0 --bytes 16K
  merging=$(sed -n 's/.*"merge_ns_per_byte": \([0-9.]\{4\}\).*/\1/p' "$work/costs.json")
  says "merging: $merging"
  sed 's/"packages": [0-9]*/"packages": 77/' "$work/costs.json" >"$work/other.json"
  export BANYAN_COSTS=$work/other.json
  rejects 'measured on another machine: packages is 77 there' --bytes 16K
  run 0 --from dgx-h100.txt --bytes 16K
  tool banyan-topo
  unset BANYAN_COSTS
fi

# ---- rejected input ---------------------------------------------------------------------------------------------------
rejects 'dgx-h100.txt: one file at a time' one-gpu.txt dgx-h100.txt
rejects 'one file at a time' --from one-gpu.txt dgx-h100.txt
rejects 'one at a time' --check --levels
rejects '--levels and --check are written as text or JSON' --levels --dot
rejects '--save-costs measures this machine' --save-costs "$work/none.json" --from one-gpu.txt
rejects '--seconds goes with --save-costs' --seconds 1
rejects 'not a whole number' --save-costs "$work/none.json" --seconds nan
rejects 'No such file or directory, and no description' "Package:2 Core:4 PU:2"
rejects '^banyan-topo: ' --from "host gpu:0"
printf '{"nodes": [\n {"id": 1,, }' >"$work/bad.json"
rejects "bad\.json:2: " --from "$work/bad.json"
if [ $xml = yes ]; then
  head -n 20 hgx-h100-faults.xml >"$work/cut.xml"
  rejects 'cut\.xml:[0-9]+: ' --from "$work/cut.xml"
  [ ! -s "$work/out" ] || fail "something is shown of a file that is rejected"
fi
printf '{"nodes": [{"id": "h", "kind": "host", "name": "a\\u001b[31mb\\u0007"}]}' >"$work/escape.json"
run 0 --from "$work/escape.json"
grep -q $'[\x07\x1b]' "$work/out" && fail "a name steers the terminal"

# ---- dumps of real machines ------------------------------------------------------------------------------------------
visited=0
if [ -d "$dumps" ] && [ $xml = yes ]; then
  while read -r file; do
    "$program" --from "$file" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    checks=$((checks + 1))
    visited=$((visited + 1))
    case $status in
    0) ;;
    2) grep -Eq "^banyan-topo: .*${file##*/}:[0-9]+: " "$work/err" || fail "$file rejected: $(cat "$work/err")" ;;
    *) fail "$file: exit status $status" ;;
    esac
  done < <(find "$dumps" -mindepth 2 -type f | LC_ALL=C sort)
else
  echo "no dumps of machines, or no libxml2: not looked at"
fi

finish "$visited dumps"
