#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs banyan-plan as users do: each view on odd topologies, valid JSON, and rejected input. BANYAN_PLAN names the
# program; the default is that of the build.
# shellcheck source=tests/tools/prelude.sh
. "$(dirname "$0")/prelude.sh"
tool banyan-plan

# ---- proofs on odd topologies ----
proofs=0
prove() {
  run 0 --prove "$@"
  says '^proved: '
  proofs=$((proofs + 1))
}
for ranks in 1 2 3 4 5 6 7 8 11 12 13 16 23 24 31 32 48 63 64; do
  for sizes in '' 2 3 8 2,6 3,12 4,16,32; do
    prove --ranks $ranks ${sizes:+--levels $sizes} --tokens 3 --heads 5 --head-dim 4
  done
  prove --ranks $ranks --levels 3 --tokens 2 --heads 7 --head-dim 4 --order canonical --wire bf16
  for scatter in root heads tokens; do
    prove --ranks $ranks --levels 4 --tokens 3 --heads 9 --head-dim 4 --scatter $scatter
  done
done
for topology in \
  'host:5 nvswitch gpu:3@sm90' \
  'host nvswitch gpu:8@sm90 nic:8@400g' \
  'host:7 gpu@sm80 nic@200g' \
  'host:3 package:2 numa nvlink gpu:3@sm80 nic@100g' \
  'leaf:2@rails host:3 nvswitch gpu:4@sm90 nic:4@400g' \
  'spine:2 leaf:2@400g host:2 nvlink@4 package:2 numa bridge pci gpu:2@sm80 nic@200g' \
  'leaf:2 nvswitch host:3 package:2 numa gpu:2@sm100 nic:2@400g' \
  'host:3 numa:2 nic'; do
  for algorithm in '' recursive_doubling tree; do
    prove --from "$topology" --tokens 2 --heads 6 --head-dim 8 ${algorithm:+--algorithm $algorithm}
  done
done
# Unequal hosts: five GPUs in a chain of links with one NIC, two linked GPUs, and one GPU with a NIC.
cat >"$work/uneven.json" <<'JSON'
{"format": "banyan-topology", "version": 1,
 "nodes": [{"id": "h0", "kind": "host"}, {"id": "h1", "kind": "host"}, {"id": "h2", "kind": "host"},
  {"id": "a0", "kind": "gpu", "name": "GPU0", "parent": "h0"}, {"id": "a1", "kind": "gpu", "name": "GPU1", "parent": "h0"},
  {"id": "a2", "kind": "gpu", "name": "GPU2", "parent": "h0"}, {"id": "a3", "kind": "gpu", "name": "GPU3", "parent": "h0"},
  {"id": "a4", "kind": "gpu", "name": "GPU4", "parent": "h0"}, {"id": "n0", "kind": "nic", "name": "mlx5_0", "parent": "h0"},
  {"id": "b0", "kind": "gpu", "name": "GPU0", "parent": "h1"}, {"id": "b1", "kind": "gpu", "name": "GPU1", "parent": "h1"},
  {"id": "c0", "kind": "gpu", "name": "GPU0", "parent": "h2"}, {"id": "n2", "kind": "nic", "name": "mlx5_0", "parent": "h2"}],
 "links": [{"from": "a0", "to": "a1", "kind": "nvlink", "gbytes_per_s": 50}, {"from": "a1", "to": "a2", "kind": "nvlink", "gbytes_per_s": 50},
  {"from": "a2", "to": "a3", "kind": "nvlink", "gbytes_per_s": 50}, {"from": "a3", "to": "a4", "kind": "nvlink", "gbytes_per_s": 25},
  {"from": "b0", "to": "b1", "kind": "nvlink", "gbytes_per_s": 50}]}
JSON
for scatter in none root; do
  prove --from "$work/uneven.json" --tokens 2 --heads 6 --head-dim 8 --scatter $scatter
done
for collective in allgather allreduce select shift broadcast barrier; do
  prove --from 'host:3 nvswitch gpu:3@sm90' --collective $collective
done
for topology in "$top"/tests/topologies/*.txt "$top"/tests/topologies/*.xml; do
  if "$program" --from "$topology" 2>&1 | grep -q 'built without libxml2'; then continue; fi
  run 0 --from "$topology"
  says 'chosen: least predicted'
  prove --from "$topology"
done

# ---- views ----
cluster='leaf:2@rails host:2 nvswitch gpu:4@sm90 nic:4@400g'
run 0 --from "$cluster" --bytes 1M
says '^island +4 +4 +nvlink'
says '^leaf +-  each leaf switch carries a rail'
says '^ +1 KiB '
says '^ +64 MiB '
law 'o["ranks"] == 16 and [l["name"] for l in o["levels"]] == ["island", "pod", "spine"]' --from "$cluster" --bytes 1M
json '[s["bytes"] for s in o["sizes"]] == [2**k for k in range(10, 27)]'
json 'o["choice"] == [m["name"] for m in o["methods"] if m["chosen"]][0]'
json 'all(m["predicted_us"] >= o["predicted_us"] for m in o["methods"] if m["serves"])'
# The speed of a NIC counts whatever its source is.
"$build/banyan-topo" --from 'host:2 nvswitch gpu:2@sm90 nic:2@400g' --json | sed 's/"file"/"measured"/' >"$work/measured.json"
run 0 --from "$work/measured.json"
says '^fabric .* 50 measured'
run 0 --from "$cluster" --tokens 4 --keys 8192 --kv-heads 4
tells ' ring attention [0-9.]+ .?s .* times the time'
tells ' three allreduces [0-9.]+ .?s .* times the time'
law '{"ring attention", "three allreduces", "oneshot"} <= {m["name"] for m in o["methods"]}' --from "$cluster" --tokens 4 --keys 8192 --kv-heads 4 --wire bf16
# 15 steps send the shard's keys and values: 8192 keys x 4 heads x 128 values of 2 bytes.
json '[m for m in o["methods"] if m["name"] == "ring attention"][0]["bytes_sent_per_rank"] == 15 * 2 * 8192 * 4 * 128 * 2'
json 'sorted(m["predicted_us"] for m in o["methods"] if m["serves"]) == [m["predicted_us"] for m in o["methods"] if m["serves"]]'
json 'all(m["why"] for m in o["methods"])'
# A row of exact sums has 17 bytes per value and 40 bytes more. Messages are padded.
law '17 * 128 + 40 <= [m for m in o["methods"] if m["chosen"]][0]["bytes_sent_per_rank"] < 17 * 128 + 40 + 128' --ranks 2 --tokens 1 --heads 1 --head-dim 128 --order exact
run 0 --ranks 16 --collective broadcast
# GPUs of a package share its link to the next package, so a large box crosses that link once per lane.
law 'o["choice"] == "levels_whole"' --from 'host package:2 numa bridge pci gpu:4@sm89@gen4x16' --bytes 1M
# Rounds over nodes send owners no fewer bytes than a single round.
law 'o["choice"] == "oneshot"' --from 'leaf host:8 package:2 numa nic@100g' --bytes 1M --scatter heads
run 0 --ranks 64 --algorithm ring
says '^ring: .* predicted, named$'
run 0 --print --ranks 3 --tokens 1 --heads 3 --head-dim 4
says '^combine of rank 0 of 3 by '
says '^combine of rank 2 of 3 by '
run 0 --print --ranks 20
says '^Of rank 0 of 20'
run 0 --print --ranks 20 --rank 19
says '^combine of rank 19 of 20'
law 'len(o["plans"]) == 4 and all(p["steps"][-1]["step"] == "deliver" for p in o["plans"])' --print --ranks 4
json 'sum(len(s["ranks"]) for p in o["plans"] for s in p["steps"] if s["step"] == "send") == sum(s["step"] == "wait" for p in o["plans"] for s in p["steps"])'
law 'o["proved"] and o["steps"] > 0 and len(o["holds"]) >= 4 and o["error"] is None' --prove --from "$cluster"
run 0 --prove --ranks 4096 --levels 8 --algorithm recursive_doubling
says 'proved'

# A name that is no UTF-8 does not spoil JSON.
cp "$top/tests/topologies/one-gpu.txt" "$work/"$'\xff'
law 'o["topology"].endswith("/?")' --from "$work/"$'\xff'

# ---- simulation ----
# Rails that no switch joins: algorithms whose messages go from one to another cannot serve.
rails='leaf@rails host:2 nvswitch gpu:4@sm90 nic:4@400g'
law 'o["choice"].startswith("levels") and [m["why"] for m in o["methods"] if m["name"] == "ring"] == ["cannot: some messages have no way, as no switch joins their NICs"]' --from "$rails"
run 1 --from "$rails" --algorithm twoshot
says 'some messages have no way' err

if "$program" --simulate --ranks 2 >/dev/null 2>"$work/err"; then
  # A single transfer has a closed form: latency plus bytes divided by the speed of the slowest link.
  shift='--collective shift --bytes 8M'
  near='lambda a, b: abs(a - b) <= 0.02 * b'
  # Two GPUs of a node share a NIC of 50 GB/s, or have one each. Each rank also copies 8 MiB from and to memory.
  law "($near)(o['simulated_us'], 2 * 8388.608 / 50 + 3.6 + 10)" --simulate --from 'host:2 nvswitch gpu:2@sm90 nic@400g' $shift --distance 2
  law "($near)(o['simulated_us'], 8388.608 / 50 + 3.6 + 10)" --simulate --from 'host:2 nvswitch gpu:2@sm90 nic:2@400g' $shift --distance 2
  says '"nic of rank'
  # CPU ranks have no PCIe link. Reading and writing 8 MiB takes 30 us per MB.
  law "($near)(o['simulated_us'], 8388.608 * (1 / 12.5 + 0.06) + 2.5)" --simulate --from 'leaf host:3 package numa nic@100g' $shift
  # Four NICs are below a leaf switch whose uplink has the speed of one NIC.
  law "($near)(o['simulated_us'], 4 * 8388.608 / 50 + 4 + 10)" --simulate --from 'leaf:2@400g host:4 nvswitch gpu:1@sm90 nic:1@400g' $shift --distance 4
  json 'o["busiest"].startswith("leaf switch of rank") and max(l["load"] for l in o["links"]) <= 1.0001'
  # The link from a spine switch to the core: each of 16 ranks sends 8 MiB over its 6.25 GB/s.
  law "($near)(o['simulated_us'], 16 * 8388.608 / 6.25)" --simulate --from 'spine:2@50g leaf:2@3200g host:2 nvswitch gpu:4@sm90 nic:2@100g' $shift --distance 16
  json 'o["busiest"].startswith("spine switch of rank")'
  # Groups of 2 and 4 in one of 8: rank 0 sends at the speed of level 1, rank 2 at that of level 2, 4 and 16 times slower.
  law "($near)(o['first_us'], 8388.608 * (0.12 + 0.06) + 2) and ($near)(o['simulated_us'], 8388.608 * (0.48 + 0.06) + 16)" --simulate \
    --ranks 8 --levels 2,4 $shift --distance 2
  # The link between packages is not known, so it has 10 GB/s, not the speed of the PCIe links at its ends.
  law "($near)(o['simulated_us'], 2 * 8388.608 / 10 + 8388.608 * 0.0067 + 3.5)" --simulate --from 'host package:2 numa gpu:2@sm86@gen4x16' $shift --distance 2
  json 'o["busiest"].startswith("package of rank")'
  # Two runs agree, and shorter latencies do not make a machine slower.
  law 'o["messages"] > 0 and o["first_us"] <= o["simulated_us"] and o["ring_us"] > o["attention_us"]' --simulate --from "$cluster"
  cp "$work/out" "$work/once"
  law "all(o[k] == json.load(open('$work/once'))[k] for k in ('simulated_us', 'first_us', 'ring_us', 'allreduces_us'))" --simulate --from "$cluster"
  law "o['simulated_us'] <= json.load(open('$work/once'))['simulated_us']" --simulate --from "$cluster" --scale latency=0.5
  # A group of one rank sends all that it sends to other groups, which predictions know.
  for uneven in '9 --levels 8 --bytes 1K' '9 --levels 8 --bytes 64K' '17 --levels 8 --bytes 4K' '13 --levels 6 --bytes 64K'; do
    # shellcheck disable=SC2086
    law '0.7 < o["predicted_us"] / o["simulated_us"] < 1.4' --simulate --ranks $uneven
  done
  # The ring's best case: a transfer hides behind attention, or attention behind the transfer.
  law "($near)(o['ring_us'], 16 * o['attention_us'])" --simulate --from "$cluster" --keys 65536 --scale memory=0.01
  law 'o["first_us"] > 0' --simulate --from 'host:128 nvswitch gpu:8@sm90 nic:8@400g' --algorithm levels --keys 1
  # Ranks that share a core send only in their turn, so each call costs at least one context switch.
  law 'o["simulated_us"] > 3' --simulate --ranks 4 --cores 2 --bytes 1K --heads 1
  run 0 --simulate --from "$cluster" --timeline "$work/timeline.json"
  says '^busiest of all: '
  run 0 --simulate --collective barrier --ranks 1 --timeline "$work/empty.json"
  checks=$((checks + 1))
  python3 - "$work" <<'PYTHON' || complain 'timelines'
import json, sys
events = json.load(open(sys.argv[1] + "/timeline.json"))
spans = [e for e in events if e["ph"] == "X"]
assert {e["pid"] for e in spans} == set(range(16)) and {"send", "compute", "wait"} == {e["cat"] for e in spans}
assert [e["ph"] for e in json.load(open(sys.argv[1] + "/empty.json"))] == ["M"]
PYTHON
  law 'o["regret"] >= 0 and sum(m["chosen"] for m in o["methods"]) == 1 and min(m["simulated_us"] for m in o["methods"] if m["simulated_us"]) * (1 + o["regret"]) <= 1.0001 * [m for m in o["methods"] if m["chosen"]][0]["simulated_us"]' --regret --from "$cluster"
  # The choice on machines where several ranks of a plan share a link, groups are uneven, or one rank gets all.
  while read -r arguments; do
    eval "run 0 --regret --json $arguments"
    json 'o["regret"] < 0.05 and all(0.97 < m["predicted_us"] / m["simulated_us"] < 1.03 for m in o["methods"] if m["simulated_us"])'
  done <<'END'
--from 'host package:2 numa:2 gpu:2@sm86@gen4x16' --bytes 16M --scatter heads
--from 'leaf host:2 package:2 numa gpu:2@sm86@gen4x16 nic@100g' --bytes 256K
--ranks 25 --levels 8 --bytes 64K --scatter root
--ranks 23 --levels 5 --bytes 1K --scatter root
--ranks 17 --levels 4 --bytes 128K --scatter root
--from 'leaf host:3 nvswitch gpu:4@sm90 nic:2@100g' --bytes 1M --heads 4 --scatter heads
--from 'host package:2 numa bridge:2 pci gpu:3@sm86@gen4x8' --bytes 4K --heads 8
--from 'host package:2 numa bridge:2 pci gpu:2@sm86@gen3x16' --bytes 16K --heads 32
--from 'leaf:4@3200g host:8 package:2 numa gpu:4@sm89@gen4x16 nic:1@100g' --bytes 8K --heads 64 --scatter root
END
  # Rails that no switch joins: what sends from one to another is not chosen, and cannot be simulated.
  law 'o["methods"][0]["chosen"] and o["methods"][0]["name"].startswith("levels") and o["methods"][0]["simulated_us"] > 0' --regret --from "$rails" --bytes 64K
  run 1 --simulate --from "$rails" --algorithm twoshot
  says 'a message from rank [0-9]+ to rank [0-9]+ has no way: no switch joins their NICs' err
  run 2 --simulate --ranks 4 --scale wheels=2
  run 2 --simulate --ranks 4 --timeline "$work/none/such"
  run 2 --simulate --ranks 4 --timeline /dev/full
else
  run 1 --simulate --ranks 2
  says 'apt-get install libsimgrid' err
fi
run 2 --ranks 4 --timeline x
run 2 --from "$cluster" --cores 2

# ---- rejected input ----
run 1 --prove --ranks 16384 --algorithm oneshot
says 'more than --memory 8 GiB' err
run 1 --ranks 16 --algorithm oneshot --bytes 1M --outbox 64K
says 'outbox' err
run 1 --ranks 16 --algorithm nonsense
says 'unknown algorithm "nonsense"' err
rejects 'whole number from 1 to 16384' --ranks 16385
rejects '16392 ranks; plans are made for up to 16384' --from 'host:2049 gpu:8'
rejects 'none-such' --from "$work/none-such"
run 2 --from 'host:2 gpu:x'
head -c 100 "$work/uneven.json" >"$work/broken.json"
rejects 'broken.json:[0-9]+: ' --from "$work/broken.json"
run 2 --from 'host:2 gpu:8' --ranks 4
run 2 --levels 4
rejects 'levels "4,x"' --ranks 8 --levels 4,x
run 2 --ranks 8 --levels 4,6
run 2 --ranks 8 --cost --prove
run 2 --ranks 8 --bytes 1K --tokens 4
run 0 --ranks 3 --collective allreduce --tokens 5 --heads 3 --head-dim 33 --wire e4m3 --scatter heads --prove
run 0 --ranks 8 --collective allreduce --order exact --prove
rejects 'a selection has no --wire' --ranks 8 --collective select --wire bf16
run 2 --ranks 8 --collective allgather --heads 4
run 2 --ranks 8 --rank 3
run 2 --ranks 8 --root 3
run 2 --ranks 8 --distance 2
run 2 --ranks 8 --collective shift --keys 3
run 2 --ranks 8 --step-ns 0
rejects 'more than 1 PiB' --ranks 8 --keys 1099511627776 --kv-heads 1048576
run 2 --ranks 8 --print --rank 8
run 2 --ranks 8 --scatter root --root 8
run 2 --ranks 8 --wire f64
run 2 --ranks 8 --tokens 1048576 --heads 1048576
run 2 --ranks 8 what

finish "$proofs proofs"
