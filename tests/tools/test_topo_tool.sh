#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs banyan-topo as users do. BANYAN_TOPO names the program; the default is that of the build. Pictures are compared
# with goldens next to the topologies. BANYAN_UPDATE_GOLDENS=1 rewrites the goldens, for review.
# shellcheck source=tests/tools/prelude.sh
. "$(dirname "$0")/prelude.sh"
tool banyan-topo
dumps=${BANYAN_TOPOLOGIES:-$top/../shared/topologies}
[ -d "$dumps" ] && dumps=$(cd "$dumps" && pwd)
cd "$top/tests/topologies" || exit 1
unset NO_COLOR LANG LC_CTYPE
export LC_ALL=C.UTF-8 COLUMNS=100 TERM=xterm
utf8=no
[ "$(locale charmap 2>/dev/null)" = UTF-8 ] && utf8=yes
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

# ---- the picture -----------------------------------------------------------------------------------------------------
for file in dgx-h100.txt gb200-nvl72.txt hgx-h100-faults.xml pcie-8gpu.xml; do
  if readable $file && [ $utf8 = yes ]; then
    run 0 --from $file
    golden "${file%.*}.text"
  fi
done
run 0 --from spine-leaf.txt --levels
golden spine-leaf.table
for file in dgx-h100.txt gb200-nvl72.txt hgx-h100-faults.xml mi300x.xml; do # the pictures of docs/topology.md
  readable $file || continue
  run 0 --from $file --format svg
  golden "../../docs/pictures/${file%.*}.svg"
done

# A port that is down, as a probe would report it.
"$program" --from "host numa bridge pci:2 gpu:2 nic@400g" --json |
  awk '/"kind": "net"/ && ++nets == 2 { sub(/"gbytes_per_s": [0-9.]*, /, "") } { print }' >"$work/down.json"
run 0 --from "$work/down.json"
says 'NIC1 +down '
run 3 --from "$work/down.json" --check
says '^fault: port-down: NIC1 port 1: it is down .50 GB/s if it were up.: GPU2 and another'

for file in *.txt *.xml; do
  readable "$file" || continue
  run 0 --from "$file"
  cp "$work/out" "$work/plain"
  is_silent
  for columns in 80 100 140; do
    COLUMNS=$columns run 0 --from "$file"
    widest=$(wc -L <"$work/out")
    [ "$widest" -le $columns ] || fail "$file: a line of $widest columns where there are $columns"
  done
  run 0 --from "$file" --colour always
  sed 's/\x1b\[[0-9;]*m//g' "$work/out" | cmp -s - "$work/plain" || fail "$file: colours change the text"
  grep -q $'\x1b' "$work/plain" && fail "$file: colours where there is no terminal"
  LC_ALL=C run 0 --from "$file"
  LC_ALL=C grep -q '[^ -~]' "$work/out" && fail "$file: more than ASCII without a UTF-8 locale"
  [ "$(wc -l <"$work/out")" = "$(wc -l <"$work/plain")" ] || fail "$file: other lines in ASCII"
  run 0 --from "$file" --all
done

big="spine:4 leaf:8@rails host:64 nvswitch package:2 pci:4 gpu:1@sm90@gen5x16 nic:1@400g"
run 0 --from "$big"
says 'host0 .*and 2047 alike: host1\.\.host2047'
[ "$(wc -l <"$work/out")" -lt 50 ] || fail "2048 hosts alike take $(wc -l <"$work/out") lines"

run 0
says '^this machine: 1 host'
says '^Probes$'
is_silent

# ---- formats ---------------------------------------------------------------------------------------------------------
for file in *.txt *.xml; do
  readable "$file" || continue
  run 0 --from "$file" --format json
  cp "$work/out" "$work/once.json"
  for key in nodes links levels ranks findings probes; do
    says "^\"$key\": \["
  done
  run 0 --from "$work/once.json" --json
  diff <(sed '/^"command"\|^"date"/d' "$work/once.json") <(sed '/^"command"\|^"date"/d' "$work/out") >/dev/null || fail "$file: JSON that was read is not the same when it is written again"
  run 0 --diff "$file" "$work/once.json"
  says '^no differences$'
done
run 0 --from dgx-h100.txt --format xml
says '<gpu '
run 2 --from "host gpu:2 nic:1" --format pdf
says '^banyan-topo: --format pdf: not one of text, json, svg, xml' err

# ---- levels, check, diff ---------------------------------------------------------------------------------------------
run 0 --from dgx-h100.txt --check
is_silent
[ ! -s "$work/out" ] || fail "findings of a healthy machine: $(cat "$work/out")"
run 0 --from one-gpu.txt --check
is_silent
run 0 --from one-gpu.txt --check --all
says '^info: nic-alone: '
run 3 --from "host:2 gpu:2" --check
says '^fault: nic-none: host0 and host1: no NIC is known'
run 3 --from "host:2 gpu:2" --check --json
says '^"status": "fault"'
run 0 --from dgx-h100.txt --check --json
says '^"status": "healthy"'
run 2 --from nowhere.xml --check
says '^banyan-topo: nowhere\.xml: No such file' err
if [ $xml = yes ]; then
  run 3 --from hgx-h100-faults.xml --check
  says '^fault: nvlink-fewer: GPU3: 12 of 18 NVLinks'
  [ "$(wc -l <"$work/out")" = 2 ] || fail "not two findings: $(cat "$work/out")"
  run 3 --from hgx-h100-faults.xml --check --json
  says '"id": "nvlink-fewer", "severity": "fault", "node": "GPU3", "text": "GPU3: 12'
  run 0 --from hgx-h100-faults.xml --json
  sed 's/"count": 3, "gbytes_per_s": 61[.0-9]*/"count": 4, "gbytes_per_s": 82.4/; /"GPU7"/d
       s/"gbytes_per_s": 12.5/"gbytes_per_s": 50/' "$work/out" | sed -z 's/,\n\]/\n]/g' >"$work/better.json"
  run 1 --diff hgx-h100-faults.xml "$work/better.json"
  says '^- gpu GPU7 \(0000:8a:00.0\)$'
  says '^~ nic mlx5_5: network 12.5 GB/s → 50 GB/s$'
  says '^~ nvlink GPU3 - NVSwitch: x12, 247 GB/s → x16, 330 GB/s$'
  says '^~ level island: 1 group of 8 GPUs'
  run 1 --diff hgx-h100-faults.xml "$work/better.json" --json
  says '"same": false'
  says '\{"change": "missing", "what": "gpu", "text": "gpu GPU7'
fi
run 1 --diff "host:2 gpu:4" "host:3 gpu:4"
says '^\+ host host2$'
run 1 --diff "host gpu:8@gen5x16" "host gpu:8@gen4x16"
says '^~ gpu GPU0: PCI 48 GB/s → 24 GB/s$'
run 0 --diff "host:2 gpu:4" "host:2 gpu:4"
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
mkdir "$work/folder" "$work/folder/inner" "$work/empty"
cp one-gpu.txt "$work/folder/b.txt"
echo "host:2 gpu:2" >"$work/folder/a.txt"
run 3 --check "$work/folder" dgx-h100.txt
says "^$work/folder/a.txt: fault: nic-none: "
[ "$(wc -l <"$work/out")" = 1 ] || fail "healthy files are not silent: $(cat "$work/out")"
run 3 --check --from "$work/folder/a.txt" "$work/folder/b.txt" --json
tells '^\[ \{.*"status": "fault".*"status": "healthy".*\} \]'
run 2 --check one-gpu.txt nowhere.txt dgx-h100.txt
says '^banyan-topo: nowhere.txt: No such file' err
run 3 --check nowhere.txt "$work/folder/a.txt"
run 0 --check one-gpu.txt dgx-h100.txt
is_silent
run 2 --check "$work/empty"
says 'a folder without files' err
run 2 --check "$work/folder" --save-profile "$work/profile.json"
says 'takes one machine' err
run 2 "$work/folder"
says 'neither a file nor a pipe' err

# ---- words that people use -------------------------------------------------------------------------------------------
run 0 hgx-a100-4nic.txt --levels
says '^NUMA node +2 +4'
run 0 hgx-a100-4nic.txt --raw
says $'^GPU0\t X \tNV12.*\tSYS\tPXB\tSYS\tNODE\t0-31,64-95\t0\t\tN/A$'
cp "$work/out" "$work/raw.txt"
run 0 --diff hgx-a100-4nic.txt "$work/raw.txt"
run 1 --diff "host gpu:8@sm90" "host nvswitch gpu:8@sm90"
says '^~ level host: SYS → NVL, none → 371 GB/s, none → all to all$'
run 1 --check "host gpu:2 nic:2@200000g"
says 'said to run at 25000 GB/s'
echo "ROCm System Management Interface" >"$work/bad.txt"
run 2 "$work/bad.txt"
says "rocm-smi, .* give lstopo machine.xml" err

# ---- files -----------------------------------------------------------------------------------------------------------
mkdir "$work/files"
run 0 --from dgx-h100.txt -o "$work/files/a.json"
[ ! -s "$work/out" ] || fail "-o also writes to standard output"
grep -q '^"nodes"' "$work/files/a.json" || fail "-o a.json is no JSON"
run 0 --from dgx-h100.txt -o "$work/files/a.txt"
grep -q '^Levels' "$work/files/a.txt" || fail "-o a.txt is no picture"
run 0 --from dgx-h100.txt --output "$work/files/a.xml"
grep -q '<system' "$work/files/a.xml" || fail "-o a.xml is no XML"
ln -s a.txt "$work/files/link.txt"
chmod 640 "$work/files/a.txt"
run 0 --from one-gpu.txt -o "$work/files/link.txt"
[ -L "$work/files/link.txt" ] || fail "-o replaces a link by a file"
grep -q 'one-gpu' "$work/files/a.txt" || fail "-o does not write through a link"
[ "$(stat -c %a "$work/files/a.txt")" = 640 ] || fail "-o changes the mode of a file"
run 2 --from dgx-h100.txt -o "$work/files/a"
says 'does not select a format' err
run 2 --from dgx-h100.txt -o "$work/none/a.json"
says "cannot write $work/none/a.json: No such file or directory" err
run 2 --from dgx-h100.txt --format text -o "$work/files"
says 'Is a directory' err
cp "$work/files/a.json" "$work/before"
(
  trap '' XFSZ # the file cannot grow, so the write fails halfway
  ulimit -f 1
  run 2 --from "$big" -o "$work/files/a.json" 2>/dev/null
  exit $failed
) || failed=$((failed + 1))
cmp -s "$work/before" "$work/files/a.json" || fail "-o left half of a file"
if [ -c /dev/full ]; then
  "$program" --from dgx-h100.txt >/dev/full 2>"$work/err"
  [ $? = 2 ] || fail "a full device goes unnoticed"
  run 2 --from dgx-h100.txt --format json -o /dev/full
  says 'cannot write /dev/full: No space left' err
fi
[ "$(ls "$work/files" | tr '\n' ' ')" = "a.json a.txt a.xml link.txt " ] || fail "left behind: $(ls "$work/files")"

# ---- measuring: this machine may be busy and slow, so status 1 is accepted -------------------------------------------
for cpus in 1 2; do
  checks=$((checks + 1))
  rm -f "$work/costs.json"
  costs=()
  [ $cpus = 1 ] || costs=(--save-costs "$work/costs.json")
  "$program" --measure --ranks $cpus --seconds 0.2 --json "${costs[@]}" >"$work/out" 2>"$work/err" </dev/null
  status=$?
  case $status in
  0 | 1)
    says '"measured"'
    says '"reads_1m_gbytes_per_s"|"pairs": \[\]'
    [ $cpus = 1 ] || grep -q '"costs_version": 1' "$work/costs.json" || fail "no costs are saved: $(cat "$work/err")"
    cp "$work/out" "$work/measured.json"
    run 0 --from "$work/measured.json" --json ;;
  *) [ $cpus = 2 ] && grep -q 'on 1 CPU:' "$work/err" || fail "--measure exits with $status: $(cat "$work/err")" ;;
  esac
done

# ---- plans for this machine use measured costs; plans for others do not ------------------------------------------------
if [ -e "$work/costs.json" ]; then
  export BANYAN_COSTS=$work/costs.json
  tool banyan-plan
  run 0 --bytes 16K
  merging=$(sed -n 's/.*"merge_ns_per_byte": \([0-9.]\{4\}\).*/\1/p' "$work/costs.json")
  says "merging: $merging"
  sed 's/"packages": [0-9]*/"packages": 77/' "$work/costs.json" >"$work/other.json"
  export BANYAN_COSTS=$work/other.json
  run 2 --bytes 16K
  says 'measured on another machine: packages is 77 there' err
  run 0 --from dgx-h100.txt --bytes 16K
  tool banyan-topo
  unset BANYAN_COSTS
fi

# ---- rejected input ---------------------------------------------------------------------------------------------------
run 2 --from one-gpu.txt --from one-gpu.txt
says '^banyan-topo: --from is given twice' err
run 2 one-gpu.txt dgx-h100.txt
says 'dgx-h100.txt: one file at a time, but with --check and --diff' err
run 2 --from one-gpu.txt dgx-h100.txt
says 'one file at a time' err
run 2 --diff one-gpu.txt
says '--diff wants two' err
run 2 --check --levels
says 'one at a time' err
run 2 --levels --format xml
says 'written as text or json' err
run 2 --measure --from one-gpu.txt
says 'not with --from' err
run 2 --ranks 2
says '--ranks goes with --measure' err
run 2 --save-costs "$work/costs.json"
says '--save-costs goes with --measure' err
run 2 --measure --ranks 100000
run 2 --measure --seconds nan
says 'not a number' err
run 2 --colour red
says 'not one of auto, always, never' err
run 2 "Package:2 Core:4 PU:2"
says 'No such file or directory, and no description' err
run 2 --from "host gpu:0"
says '^banyan-topo: ' err
printf '{"nodes": [\n {"id": 1,, }' >"$work/bad.json"
run 2 --from "$work/bad.json"
says "bad\.json:2: " err
if [ $xml = yes ]; then
  head -n 20 hgx-h100-faults.xml >"$work/cut.xml"
  run 2 --from "$work/cut.xml"
  says 'cut\.xml:[0-9]+: ' err
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
    0) [ "$(wc -L <"$work/out")" -le 100 ] || fail "$file: a line of $(wc -L <"$work/out") columns" ;;
    2) grep -Eq "^banyan-topo: .*${file##*/}:[0-9]+: " "$work/err" || fail "$file rejected: $(cat "$work/err")" ;;
    *) fail "$file: exit status $status" ;;
    esac
  done < <(find "$dumps" -mindepth 2 -type f | LC_ALL=C sort)
else
  echo "no dumps of machines, or no libxml2: not looked at"
fi

finish "$visited dumps"
