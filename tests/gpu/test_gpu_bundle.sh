#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Rehearses the first run on a machine with a GPU on an emulated device. It runs short tests and benchmarks of
# tests/gpu/check-gpu, laid out like the bundle. The bundle finds Python only: no PyTorch, compiler, xz or nvidia-smi.
# GPU_BUNDLE names an unpacked bundle to run instead.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${top_builddir:-.}" && pwd)
fake=$build/tests/emulate/.libs/fake_cuda.so
for file in "$fake" "$build/tests/gpu/gpu_calibrate" "$build/banyan-perf"; do
  if [ ! -e "$file" ]; then
    echo "skipped: $file has not been built"
    exit 77
  fi
done
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
  echo "skipped: no python3 of 3.8 or newer"
  exit 77
fi
export PYTHONDONTWRITEBYTECODE=1
python=$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
root=$directory/root
mkdir -p "$root/tmp" "$root/none"

fail() {
  echo "$*"
  exit 1
}

# Makes the bundle from the list of make-bundle.
bundle=$root/bundle
if [ -n "${GPU_BUNDLE:-}" ]; then
  cp -r "$GPU_BUNDLE" "$bundle"
else
  mkdir -p "$bundle/bin"
  # In a build with shared libraries, the program is in .libs and a script takes its name.
  for name in $("$here/make-bundle" --programs); do
    for file in "$build/.libs/$name" "$build/$name" "$build/tests/gpu/.libs/$name" "$build/tests/gpu/$name" \
      "$build"/tests/*/.libs/"$name" "$build"/tests/*/"$name"; do
      if [ -e "$file" ]; then break; fi
    done
    cp "$file" "$bundle/bin/" || exit 1
  done
  for file in "$build"/.libs/libbanyan*.so.?; do if [ -e "$file" ]; then cp "$file" "$bundle/bin/"; fi; done
  for name in $("$here/make-bundle" --scripts); do cp "$here/$name" "$bundle/" || exit 1; done
fi
cp "$fake" "$root/fake_cuda.so"
# A library without CUDA has no kernels. The fake driver runs its own kernels for any file.
printf emulated >"$root/image"

# Replaces compute-sanitizer by two scripts: one runs the program, and one rejects the device.
tool=$root/usr/local/cuda/bin/compute-sanitizer
mkdir -p "$(dirname "$tool")"
cat >"$tool" <<END
#!$python
import subprocess, sys
if sys.argv[2] != "memcheck":
    sys.exit("Device not supported")
status = subprocess.run(sys.argv[5:]).returncode
print("========= ERROR SUMMARY: 0 errors")
sys.exit(status)
END
chmod +x "$tool"

echo 'raise ImportError("none here")' >"$root/none/torch.py"

# Runs check-gpu with an empty environment. The emulator's clock runs about as fast as real time.
check_gpu() {
  devices=$1
  shift
  (cd "$root/tmp" && exec env -i PATH="$root/none" TMPDIR="$root/tmp" LD_LIBRARY_PATH="$bundle/bin" PYTHONPATH="$root/none" \
    PYTHONDONTWRITEBYTECODE=1 CUDA_HOME="$root/usr/local/cuda" BANYAN_CUDA_LIBRARY="$root$devices" BANYAN_CUDA_IMAGE="$root/image" \
    FAKE_CUDA=devices=2,live,truncates,step-ns=200 FAKE_CUDA_NOTES="$root/tmp/notes" "$python" "$bundle/check-gpu" "$@")
}
results=$root/tmp/r.json

# holds CONDITION: checks that the results of the run meet this Python condition.
holds() {
  python3 -c "import json, sys
r = json.load(open(sys.argv[1]))
sys.exit(not ($1))" "$results" || fail "not so in $results: $1"
}

# A run that is killed keeps the results that it has.
check_gpu /fake_cuda.so --quick --output r.json --only calibrate,threads >"$directory/cut" 2>&1 &
running=$!
for second in $(seq 120); do
  sleep 1
  if grep -q '"signal_sys_peer_ns"' "$results" 2>/dev/null; then break; fi
done
[ "$second" -lt 120 ] || { cat "$directory/cut" && fail "calibrate has made nothing for two minutes"; }
kill -9 "$running"
wait $running 2>/dev/null
holds 'any(one["name"] == "mma_truncates" for one in r["calibration"])'

# Runs all steps in the order of the list, with enough time.
check_gpu /fake_cuda.so --quick --minutes 13 --output r.json || exit 1
python3 "$here/check_results.py" "$results" || exit 1
holds 'r["machine"]["context_held"] and r["steps"][0]["step"] == "calibrate" and not r["left_out"]'
holds '{t["result"] for t in r["tests"] if t["step"] == "memcheck"} == {"pass"}'
holds '{t["result"] for t in r["tests"] if t["step"] == "synccheck"} == {"skip"}'
holds 'all(one["value"] < 0 for one in r["calibration"] if one["name"] == "mma_bias_512")'
holds '{one["value"] for one in r["calibration"] if one["name"] in ("mma_truncates", "mma_extra_bits")} == {1}'
holds 'not any("not come" in one["text"] for one in r["calibration"])'
holds 'all(one["value"] == 0 for one in r["calibration"] if one["name"].startswith(("stale", "torn_b128")))'
holds 'r["rivals"]["skipped"].startswith("no PyTorch") and r["machine"]["nvidia_smi"] == []'
# docs/devices-predicted.md names only figures that exist, with the program's values of assumptions.
python3 - "$here/../../docs/devices-predicted.md" "$results" <<'END' || exit 1
import json, re, sys
rows = re.findall(r"^\| [^|]* \| `(\w+)` \| ([^|]*) \|", open(sys.argv[1], encoding="utf-8").read(), re.MULTILINE)
there = {one["name"]: one["assumed"] for one in json.load(open(sys.argv[2]))["calibration"]}
def differs(name, text):
    number = re.match(r"[0-9.,e-]*[0-9]", text)
    said = float(number.group().replace(",", "")) if number else None
    return name not in there or (said is None) != (there[name] is None) or (said and abs(said / there[name] - 1) > 0.02)
wrong = [name for name, text in rows if differs(name, text)]
if wrong or not rows:
    sys.exit("docs/devices-predicted.md and gpu_calibrate differ in: %s" % (", ".join(wrong) or "everything"))
END
# The sanitizer must have run each decode kernel of this device, and combines by packets and lines.
sed -n 's/^BNY_DECODE_KERNEL([a-z]*, \([a-z0-9]*\), \([a-z0-9]*\), [0-9]*, \([a-z0-9]*\),.*/bny_decode_\1_\2_\3/p
  s/^BNY_CUDA_KERNEL(\([a-z0-9_]*_ll\(16\|128\)[0-9_]*\),.*/\1/p' "$here/../../kernels/cuda/decode_kernels.def" \
  "$here/../../kernels/cuda/kernels.def" | sort >"$directory/kernels"
sort -u "$root/tmp/notes" | comm -23 "$directory/kernels" - >"$directory/missing"
if [ -s "$directory/missing" ] || [ ! -s "$directory/kernels" ]; then cat "$directory/missing" && fail "no launch of these kernels"; fi

# A second run adds to the results: it keeps old results, repeats none, and reports missing ones.
steps=$(grep -c '"seconds"' "$results")
check_gpu /fake_cuda.so --quick --output r.json --only small --add || exit 1
[ "$(grep -c '"seconds"' "$results")" = "$steps" ] || fail "--add has lost or doubled something"
rm "$results"
# With little time, it runs the steps that fit and reports the others.
check_gpu /fake_cuda.so --quick --output r.json --only small,processes --minutes 0.5 --add >"$directory/said" || exit 1
grep -q 'there is no r.json to add to' "$directory/said" || fail "--add does not say that there is nothing to add to"
holds 'r["left_out"] == ["processes"] and [s["step"] for s in r["steps"]] == ["small"]'

# A machine without a GPU is not a failure.
check_gpu /none.so --output r.json
[ $? = 77 ] || fail "without a GPU the exit status is not 77"
