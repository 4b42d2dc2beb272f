#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Rehearses a run on a machine with a GPU: packs a bundle, unpacks it, and runs short tests and measurements of check-gpu on
# an emulated device, in an environment with Python only: no PyTorch, compiler, xz or nvidia-smi. It takes the bundle of
# "make gpu-bundle" if that is in the build, or GPU_BUNDLE, and otherwise packs the programs of the build.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${top_builddir:-.}" && pwd)
fake=$build/tests/emulate/.libs/fake_cuda.so
for file in "$fake" "$build/tests/gpu/test_gpu_words" "$build/banyan-perf"; do
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

packed=${GPU_BUNDLE:-$(ls "$build"/banyan-gpu-*.tar.gz 2>/dev/null | head -n 1)}
if [ -z "$packed" ]; then
  # Packs what make-bundle lists. In a build with shared libraries, a program is in .libs and a script takes its name.
  made=$directory/banyan-gpu packed=$directory/packed.tar.gz
  mkdir -p "$made/bin"
  for name in $("$here/make-bundle" --programs); do
    for file in "$build/.libs/$name" "$build/$name" "$build/tests/gpu/.libs/$name" "$build/tests/gpu/$name" \
      "$build"/tests/*/.libs/"$name" "$build"/tests/*/"$name"; do
      if [ -e "$file" ]; then break; fi
    done
    cp "$file" "$made/bin/" && strip --strip-unneeded "$made/bin/$name" || exit 1
  done
  for file in "$build"/.libs/libbanyan*.so.?; do if [ -e "$file" ]; then cp "$file" "$made/bin/"; fi; done
  for file in "$made"/bin/libbanyan*; do if [ -e "$file" ]; then strip --strip-unneeded "$file" || exit 1; fi; done
  for name in $("$here/make-bundle" --scripts); do cp "$here/$name" "$made/" || exit 1; done
  # The fake driver runs its own kernels for any image.
  cp "$build/kernels.fatbin" "$made/" 2>/dev/null || printf emulated >"$made/kernels.fatbin"
  "$here/make-bundle" --pack "$made" "$packed" || exit 1
fi
[ "$(stat -c %s "$packed")" -le 25000000 ] || fail "$packed has more than 25 MB"
mkdir "$directory/unpacked" && tar -C "$directory/unpacked" -xzf "$packed" && mv "$directory"/unpacked/* "$root/bundle" || exit 1
bundle=$root/bundle
cp "$fake" "$root/fake_cuda.so"

# Replaces compute-sanitizer by a script, which counts calls that the driver refuses unless --report-api-errors is no, and
# rejects the device for one tool.
tool=$root/usr/local/cuda/bin/compute-sanitizer
mkdir -p "$(dirname "$tool")"
cat >"$tool" <<END
#!$python
import os, subprocess, sys
if sys.argv[2] == "synccheck":
    sys.exit("Device not supported")
notes = os.environ["FAKE_CUDA_NOTES"]
program = next(at for at, word in enumerate(sys.argv) if at > 0 and os.path.isabs(word))
os.environ["FAKE_CUDA_NOTES"] = notes + ".checked"
status = subprocess.run(sys.argv[program:]).returncode
lines = open(notes + ".checked").read()
open(notes, "a").write(lines)
errors = lines.count("refused\\n")
quiet = sys.argv[1:program][-4:-2] == ["--report-api-errors", "no"]
print("========= ERROR SUMMARY: %d errors" % (0 if quiet else errors))
sys.exit(status or (0 if quiet or not errors else 9))
END
chmod +x "$tool"

echo 'raise ImportError("none here")' >"$root/none/torch.py"

# Runs check-gpu with an empty environment. The emulator's clock runs about as fast as real time.
check_gpu() {
  devices=$1
  shift
  (cd "$root/tmp" && exec sh -c 'echo $$ >"$0" && exec "$@"' "$directory/pid" \
    env -i PATH="$root/none" TMPDIR="$root/tmp" LD_LIBRARY_PATH="$bundle/bin" PYTHONPATH="$root/none" \
    PYTHONDONTWRITEBYTECODE=1 CUDA_HOME="$root/usr/local/cuda" BANYAN_CUDA_LIBRARY="$root$devices" \
    FAKE_CUDA=devices=2,live,truncates,step-ns=200,refuses-fabric FAKE_CUDA_NOTES="$root/tmp/notes" "$python" "$bundle/check-gpu" "$@")
}
results=$root/tmp/r.json

# holds CONDITION: checks that the results of the run meet this Python condition.
holds() {
  python3 -c "import json, sys
r = json.load(open(sys.argv[1]))
sys.exit(not ($1))" "$results" || fail "not so in $results: $1"
}

# A run that is killed keeps the results that it has.
check_gpu /fake_cuda.so --quick --output r.json --only words,kernels >"$directory/cut" 2>&1 &
running=$!
for second in $(seq 120); do
  sleep 1
  if grep -q '"each_kernel_is_right"' "$results" 2>/dev/null; then break; fi
done
[ "$second" -lt 120 ] || { cat "$directory/cut" && fail "kernels has made nothing for two minutes"; }
kill -9 "$(cat "$directory/pid")" # $running may be a shell around it
wait $running 2>/dev/null
holds '{t["result"] for t in r["tests"] if t["name"] == "stores_are_not_torn"} in ({"pass"}, {"pass", "skip"})'

# A run without time leaves steps out, and another one adds to its results.
rm -f "$root/tmp/notes" "$results"
check_gpu /fake_cuda.so --quick --seconds 5 --output r.json --only small,processes >"$directory/said" || exit 1
holds 'r["left_out"] == ["small", "processes"] and not r["steps"]'
check_gpu /fake_cuda.so --quick --output r.json --only words >"$directory/said" || exit 1
cp "$results" "$root/tmp/first.json"
steps=$(check_gpu /fake_cuda.so --list | sed 's/ .*//' | grep -Ev 'processes|racecheck' | tr '\n' ,)
check_gpu /fake_cuda.so --quick --output r.json --add first.json --only "$steps" || exit 1
holds 'len(r["steps"]) == 20 and len({s["step"] for s in r["steps"]}) == 20 and not r["left_out"] and r["machine"]["banyan_info"]'
holds 'r["device"].startswith("Fake ")'
holds '{t["result"] for t in r["tests"] if t["step"] == "memcheck"} == {"pass"}'
holds '{t["result"] for t in r["tests"] if t["step"] == "synccheck"} == {"skip"}'
holds 'all(t["result"] == "pass" for t in r["tests"] if t["step"] == "kernels") and sum(t["step"] == "kernels" for t in r["tests"]) > 30'
holds 'sum(m["step"] == "combine" for m in r["measured"]) == 2 and all(m["answer"]["rows"] for m in r["measured"] if m["step"] == "combine")'
holds 'any("no PyTorch" in line.get("skipped", "") for m in r["measured"] if m["step"] == "rivals" for line in m["answer"])'
# Each decode kernel of this device has run.
sed -n 's/^BNY_DECODE_KERNEL([a-z]*, \([a-z0-9]*\), [0-9]*, \([a-z0-9]*\),.*/bny_decode_\1_\2/p' \
  "$here/../../kernels/cuda/decode_kernels.def" | sort >"$directory/kernels"
sort -u "$root/tmp/notes" | comm -23 "$directory/kernels" - >"$directory/missing"
if [ -s "$directory/missing" ] || [ ! -s "$directory/kernels" ]; then cat "$directory/missing" && fail "no launch of these kernels"; fi

# A program that crashes runs again, with each test in a process of its own.
mv "$bundle/bin/test_heads" "$bundle/bin/heads"
printf '#!/bin/sh\n[ "$CK_FORK" = yes ] || kill -SEGV $$\nexec "%s" "$@"\n' "$bundle/bin/heads" >"$bundle/bin/test_heads"
chmod +x "$bundle/bin/test_heads"
check_gpu /fake_cuda.so --quick --output r.json --only heads >"$directory/said" || exit 1
grep -q 'each test runs again in a process of its own' "$directory/said" || fail "a crash is not noticed"
holds '{t["result"] for t in r["tests"]} <= {"pass", "skip"} and r["tests"]'

# A machine without a GPU is not a failure.
check_gpu /none.so --output r.json
[ $? = 77 ] || fail "without a GPU the exit status is not 77"
