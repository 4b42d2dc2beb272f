#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs banyan-info as users do: every section as text and JSON, the sources of values, and invalid usage. BANYAN_INFO
# names the program; the default is that of the build.
# shellcheck source=tests/tools/prelude.sh
. "$(dirname "$0")/prelude.sh"
tool banyan-info

# ---- all sections ----
run 0
says '^banyan [0-9]+\.[0-9]+\.[0-9]+$'
for title in Build Options Devices Transports Levels; do says "^$title\$"; done
says '^  BANYAN_TIMEOUT_MS +30000 ms +default '
says '^  kernels .*\(chosen\)'
says '^  probe sysfs '
says '^  loop .* available '
run 0 --json
json 'list(o) == ["version", "command", "date", "node", "build", "options", "devices", "transports", "levels"]'
json '"portable" in o["build"]["kernels"] and o["build"]["compiler"] and o["build"]["command"]'
json '{p["name"] for p in o["build"]["packages"]} >= {"mpi", "sodium", "jansson", "ucx", "cuda"}'
json '[p["found"] for p in o["build"]["packages"] if p["name"] == "jansson"] == [True]'
json 'all(p["text"] for p in o["build"]["packages"])'
json 'all(v["source"] == "default" for v in o["options"])'
json 'len([k for k in o["devices"]["cpu"]["kernels"] if k["chosen"]]) == 1'
json 'o["devices"]["cpu"]["cpus_allowed"] >= 1 and o["devices"]["cuda"]["text"]'
json 'o["devices"]["cpu"]["threads_limited_by"] in ("affinity", "quota")'
json 'all(t["text"] for t in o["transports"])'

# ---- options: value, source, rejection ----
BANYAN_TIMEOUT_MS=1234 BANYAN_KERNELS=portable BANYAN_SECRET=do-not-tell run 0 --json options devices
json '[(v["value"], v["source"]) for v in o["options"] if v["name"] == "BANYAN_TIMEOUT_MS"] == [(1234, "environment")]'
json '[k["name"] for k in o["devices"]["cpu"]["kernels"] if k["chosen"]] == ["portable"]'
json 'o["devices"]["cpu"]["attention_kernels"] == "portable"'
json '"levels" not in o'
hides 'do-not-tell'
BANYAN_ARENA_KIB=a-lot BANYAN_KERNELS=nonsense run 0
says '^  BANYAN_ARENA_KIB +a-lot +environment'
tells 'rejected: [^:]*BANYAN_ARENA_KIB.*whole number of KiB'
says 'BANYAN_KERNELS names none'
BANYAN_JOB=$'a\e[31m' run 0 options # no escape sequence reaches a terminal
says '^  BANYAN_JOB +a\?\[31m +environment'
BANYAN_LEVELS=$'\xff' run 0 --json options
json '[v["value"] for v in o["options"] if v["name"] == "BANYAN_LEVELS"] == ["(not UTF-8)"]'

# ---- levels and their sources ----
run 0 --ranks 4 levels
says '^  rank 0 +sysfs.*found in [0-9.]+ ms$'
says '^  level .*GB/s \('
"$build/banyan-topo" --from 'host package:2 numa:2' --json -o "$work/machine.json" 2>/dev/null
if BANYAN_TOPO=$work/machine.json BANYAN_TOPO_RANK=0,1,2,3 run 0 --ranks 4 --json levels; then
  json '[(l["name"], l["groups"], l["members_most"]) for l in o["levels"]["levels"]] == [("package", 2, 2), ("host", 1, 2)]'
  json 'all(p["source"].find("machine.json") >= 0 for p in o["levels"]["localities"])'
fi
BANYAN_TOPO=/nowhere run 1 --ranks 4 levels
says 'BANYAN_TOPO: /nowhere' err

run 0 devices
tells 'allowed.*; the default number of threads follows the (affinity|quota)'

# ---- a node whose name UCX cannot load with ----
long=a-node-with-a-name-of-sixty-four-characters-as-clouds-like-to-do
if unshare --uts true 2>"$work/err" && "$program" transports | grep -q UCX; then
  # shellcheck disable=SC2016
  unshare --uts sh -c 'hostname "$0" && exec "$1" transports' "$long" "$program" >"$work/out" 2>"$work/err"
  same "exit status on a node with a name of ${#long} characters" $? 0
  tells 'UCX, which connects them, aborts if the name of its node has more than 63 characters'
fi

# ---- live: one rank is stopped, and the other waits for it ----
"$build/banyan-perf" allgather --ranks 2 --sizes 1K,1K,1K,1K,1K,1K,1K,1K --iterations 10000000 --no-check --timeout 600 >"$work/perf" 2>&1 &
perf=$!
pids=()
# until_true COMMAND: waits up to half a minute for the command to succeed.
until_true() {
  for ((i = 0; i < 600; i++)); do
    if "$@" >/dev/null 2>&1; then return 0; fi
    sleep 0.05
  done
  fail "$* did not come true: $(cat "$work/perf")"
}
# shows PID PYTHON: the expression is true. `c` is the first communicator in the output of --live.
shows() { "$program" --json --live "$1" | python3 -c "import json, sys; o = json.load(sys.stdin)['live']; c = o['communicators'][0]
sys.exit(not ($2))"; }
find_ranks() { mapfile -t pids < <(pgrep -P $perf) && [ ${#pids[@]} = 2 ] && shows "${pids[0]}" "c['operations'] > 50" && shows "${pids[1]}" 1; }
if until_true find_ranks; then
  kill -STOP "${pids[0]}"
  until_true shows "${pids[1]}" "c['rank'] == 1 - c['waits_for']['rank'] and c['waits_for']['since_s'] > 0 and c['in_flight']['collective'] in ('allgather', 'barrier')"
  until_true shows "${pids[0]}" "o['state'] == 'stopped' and 'failed' not in c"
  run 0 --live "${pids[1]}"
  says 'rank [01] of 2: operation [0-9]+: (allgather|barrier), .*not finished'
  says 'waits for rank [01], for (its message|it to read memory), [0-9.]+ s so far'
  # A process of somebody else may write anything: a copy of that recorder, with escape sequences in its texts.
  python3 -c 'import glob, os, re, sys, time
fd = next(f for f in glob.glob(f"/proc/{sys.argv[1]}/fd/*") if "banyan-flight" in os.readlink(f))
head, texts = (lambda all: (all[:64], all[64:]))(open(fd, "rb").read())
recorder = head + re.sub(rb"(?<=[a-z])[a-z]{3}(?=\0)", b"\x1b[m", texts)
file = os.memfd_create("banyan-flight")
os.write(file, recorder)
print("ready", flush=True)
time.sleep(60)' "${pids[1]}" >"$work/forged" &
  forger=$!
  until_true grep -q ready "$work/forged"
  run 0 --live $forger
  says 'by [a-z]*\?\[m, begun'
  kill $forger
  kill -CONT "${pids[0]}"
fi
kill $perf "${pids[@]}" 2>"$work/err"
wait $perf 2>"$work/err"
run 1 --live $$
says 'has no flight recorder' err
# A parent that does not wait for its child. The child ends once its parent is `sleep`, because bash would wait for it.
bash -c '{ for i in {1..3000}; do grep -q sleep /proc/$$/comm && break; sleep 0.01; done; } & echo $! >"$0"
exec sleep 60' "$work/pid" &
parent=$!
until_true eval 'grep -q "^State:.*zombie" "/proc/$(cat "$work/pid")/status"'
run 1 --live "$(cat "$work/pid")"
says 'has ended, and its parent has not waited for it yet' err
kill $parent

# ---- probes, where the build has them ----
run 0 --json build
if python3 -c 'import json, sys; sys.exit(not [p for p in json.load(sys.stdin)["build"]["packages"] if p["name"] == "sdt" and p["found"]])' \
  <"$work/out" && [ -e "$build/.libs/libbanyan.so" ]; then
  readelf -n "$build/.libs/libbanyan.so" >"$work/out"
  for probe in start wait wait_end end failure; do says "^ +Name: $probe\$"; done
fi

# ---- usage ----
run 2 selection
run 2 --ranks 0
run 2 --ranks 65
rejects 'nonsense: no section' nonsense

finish
