#!/usr/bin/env bash
# The main job, to watch: two nodes of a pod, each a gpuumd with a modelled GPU; an application on
# node A puts data into GPU memory and exports it, one on node B imports it, copies it over the
# fabric and reads it back; A frees the memory while B is still copying.
#
#   tools/demo.sh [FILE]             installs, builds, then runs; 64 MiB of random data without FILE
#   tools/demo.sh --bin DIR [FILE]   with the programs in DIR; installs and builds nothing
#
# Ends with "demo: success" and 0, or with "demo: failed: ..." and 1. Root gives A and B users of
# their own, and B a mount namespace; without root they are told apart by directory alone.
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/.." && pwd)

readonly UID_A=64001 UID_B=64002     # users without a name, of this demo only
readonly DEFAULT_BYTES=$((64 << 20))
readonly STEP_SECONDS=120            # for any one step, on a slow machine

bin=
work=
failed=
declare -A pids=() # name -> pid, of what we started

say() { printf '%s\n' "$*"; }
heading() { printf '\n== %s\n' "$*"; }

# What the programs said last, each line with the program's name.
show_logs() {
  local log
  for log in "$work"/logs/*; do
    [ -s "$log" ] && tail -n 12 "$log" | sed "s|^|  $(basename "$log"): |" >&2
  done
  return 0
}

fail() {
  failed=1
  [ -n "$work" ] && show_logs
  say "demo: failed: $*" >&2
  exit 1
}

# Ends one of ours: asks, then insists.
stop() {
  local pid=${pids[$1]:-}
  [ -n "$pid" ] || return 0
  unset "pids[$1]"
  kill -TERM "$pid" 2>/dev/null || return 0
  for _ in $(seq 100); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL "$pid" 2>/dev/null || true
}

cleanup() {
  local code=$? name
  trap - EXIT
  for name in importer exporter gpuumd-a gpuumd-b gpusim; do stop "$name"; done
  [ -n "$work" ] && rm -rf "$work"
  [ $code -eq 0 ] || [ -n "$failed" ] || say "demo: failed" >&2
  exit $code
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

usage() {
  echo "usage: tools/demo.sh [--bin DIR] [FILE]" >&2
  exit 2
}

# Starts a program in the background with its output in logs/NAME.
start() {
  local name=$1
  shift
  "$@" >"$work/logs/$name" 2>&1 &
  pids[$name]=$!
}

# wait_line NAME PREFIX: prints the rest of the first line that NAME wrote after PREFIX.
wait_line() {
  local end=$((SECONDS + STEP_SECONDS)) line
  while [ $SECONDS -lt $end ]; do
    if line=$(grep -m1 "^$2" "$work/logs/$1"); then
      printf '%s\n' "${line#"$2"}"
      return 0
    fi
    if ! kill -0 "${pids[$1]}" 2>/dev/null && ! grep -q "^$2" "$work/logs/$1"; then
      say "$1 ended before it said \"$2\"" >&2
      return 1
    fi
    sleep 0.05
  done
  say "$1 did not say \"$2\" in $STEP_SECONDS s" >&2
  return 1
}

# wait_end NAME: its exit code must be 0.
wait_end() {
  local pid=${pids[$1]} end=$((SECONDS + STEP_SECONDS))
  while kill -0 "$pid" 2>/dev/null; do
    [ $SECONDS -lt $end ] || fail "$1 did not end in $STEP_SECONDS s"
    sleep 0.05
  done
  unset "pids[$1]"
  wait "$pid" || fail "$1 ended with code $?"
}

# ---- arguments, programs ----

input=
while [ $# -gt 0 ]; do
  case $1 in
  --bin) [ $# -gt 1 ] || usage; bin=$2; shift ;;
  -*) usage ;;
  *) [ -z "$input" ] || usage; input=$1 ;;
  esac
  shift
done
bytes=$DEFAULT_BYTES
if [ -n "$input" ]; then
  [ -f "$input" ] && [ -r "$input" ] || fail "$input: no file that can be read"
  input=$(realpath "$input")
  bytes=$(stat -c %s "$input")
  [ "$bytes" -gt 0 ] || fail "$input: empty"
fi

if [ -z "$bin" ]; then
  heading "installing and building"
  "$source_dir/tools/setup.sh"
  log=$(mktemp)
  export CCACHE_BASEDIR=$source_dir CCACHE_NOHASHDIR=1
  if ! { cd "$source_dir" && cmake --preset demo &&
    cmake --build --preset demo --target gpusim gpuumd gpuctl demo_exporter demo_importer; } \
    >"$log" 2>&1; then
    grep -E 'error|FAILED|CMake Error' "$log" | head -n 20 >&2 || tail -n 20 "$log" >&2
    rm -f "$log"
    fail "the build"
  fi
  rm -f "$log"
  bin=$source_dir/build/demo/bin
  say "built in $SECONDS s: $bin"
fi
for program in gpusim gpuumd gpuctl demo_exporter demo_importer; do
  [ -x "$bin/$program" ] || fail "$bin/$program: not there"
done
started=$SECONDS

# ---- places: what belongs to a node is closed to the other ----

work=$(mktemp -d "${TMPDIR:-/tmp}/gpuumd-demo.XXXXXX")
chmod 711 "$work"
mkdir "$work"/{logs,gpusim,run-a,run-b,node-a,node-b,bin}
chmod 700 "$work"/{logs,gpusim,run-a,run-b,node-a,node-b}
# Where the sources lie need not be open to users A and B.
cp "$bin"/demo_exporter "$bin"/demo_importer "$work/bin"
cp -L "$(ldd "$bin/demo_importer" | awk '$1 == "libgpuumd.so.1" { print $3 }')" "$work/bin/libgpuumd.so.1"
export LD_LIBRARY_PATH=$work/bin
mkfifo "$work/node-a/control" "$work/node-b/control" "$work/digest"

as_a=()
as_b=()
hidden=()
if [ "$(id -u)" -eq 0 ]; then
  chown -R $UID_A:$UID_A "$work"/{run-a,node-a}
  chown -R $UID_B:$UID_B "$work"/{run-b,node-b}
  as_a=(setpriv --reuid=$UID_A --regid=$UID_A --clear-groups --inh-caps=-all --no-new-privs)
  as_b=(setpriv --reuid=$UID_B --regid=$UID_B --clear-groups --inh-caps=-all --no-new-privs)
  if unshare --mount true 2>/dev/null; then
    hidden=(gpusim logs run-a node-a)
    # In B's mount namespace the folders of A and of the model are empty, and FILE is /dev/null.
    as_b=(unshare --mount --propagation private bash -c '
      set -e
      work=$1 input=$2 folders=$3
      shift 3
      for folder in $folders; do mount -t tmpfs -o mode=000 none "$work/$folder"; done
      [ -z "$input" ] || mount --bind /dev/null "$input"
      exec "$@"' b "$work" "$input" "${hidden[*]}" "${as_b[@]}")
  fi
fi

# ---- the pod ----

heading "two nodes, each a gpuumd with a simulated GPU of its own"
vram=$((256 << 20)) # of each GPU: twice the data and what the daemon needs
while [ $vram -lt $((2 * bytes + (64 << 20))) ]; do vram=$((2 * vram)); done
start gpusim "$bin/gpusim" --dir "$work/gpusim" --gpus 2 --vram $vram
wait_line gpusim ready >/dev/null || fail "gpusim"
for node in a b; do
  gpu=$([ $node = a ] && echo 0 || echo 1)
  start gpuumd-$node "$bin/gpuumd" --device "vfio-user:$work/gpusim/gpu$gpu.sock" \
    --runtime-dir "$work/run-$node" --no-same-host --log-level warn
done
for node in a b; do
  wait_line gpuumd-$node "gpuumd: ready" >/dev/null || fail "gpuumd of node $node"
  say "node $node:"
  "$bin/gpuctl" --runtime-dir "$work/run-$node" list | sed 's/^/  /' || fail "gpuctl list of node $node"
done

# ---- node A: upload, export ----

heading "node A: data into GPU memory, exported"
random_data() {
  python3 -c '
import random, secrets, sys
seed, left = secrets.randbits(64), int(sys.argv[1])
print(f"input: {left} random bytes, seed {seed:016x}", file=sys.stderr)
source = random.Random(seed)
while left:
    piece = min(left, 1 << 20)
    sys.stdout.buffer.write(source.randbytes(piece))
    left -= piece' "$bytes"
}
sha256sum <"$work/digest" >"$work/node-a/digest" &
digest_pid=$!
exec 3<>"$work/node-a/control" 4<>"$work/node-b/control"
{ if [ -n "$input" ]; then
  echo "input: $input, $bytes bytes" >&2
  cat "$input"
else random_data; fi; } | tee "$work/digest" |
  exec "${as_a[@]}" "$work/bin/demo_exporter" --runtime-dir "$work/run-a" --control "$work/node-a/control" \
    >"$work/logs/exporter" 2>&1 3>&- 4>&- &
pids[exporter]=$!
handle=$(wait_line exporter "handle ") || fail "node A"
wait $digest_pid
sed 's/^/  A: /' "$work/logs/exporter"

# ---- node B: import, copy, read back ----

heading "node B: imports the handle, copies over the fabric, reads its own GPU"
if [ "$(id -u)" -eq 0 ]; then
  say "  B is user $UID_B in its own directory$([ ${#hidden[@]} -gt 0 ] && echo ', in a mount namespace without the input, A and the model')"
  # A look as B at what it must not see. FILE is out of its sight only in a mount namespace.
  secret=("$work/node-a/digest" "$work/logs/exporter" "$work/gpusim/control.sock")
  if [ -n "$input" ] && [ ${#hidden[@]} -gt 0 ]; then secret+=("$input"); fi
  for path in "${secret[@]}"; do
    b_sees() { "$@" sh -c '[ -S "$1" ] || [ "$(head -c 1 "$1" | wc -c)" -gt 0 ]' look "$path" 2>/dev/null; }
    b_sees || fail "$path: empty, so that B does not see it would say nothing"
    if b_sees "${as_b[@]}"; then fail "B can open $path"; fi
  done
  say "  tried as B: none of that can be opened"
else
  say "  B has its own directory; not run as root, so it is the same user as A"
fi
start importer "${as_b[@]}" "$work/bin/demo_importer" --runtime-dir "$work/run-b" \
  --control "$work/node-b/control" --handle "$handle" --bytes "$bytes" --output "$work/node-b/output"
wait_line importer "looping" >/dev/null || fail "node B"

# ---- revoke ----

sleep 0.2 # B is somewhere within a copy
echo free >&3
wait_line exporter "secret" >/dev/null || fail "node A did not get its memory again"
wait_line importer "revoked" >/dev/null || fail "B's loop did not end with revoked"
echo look >&4
wait_end importer
sed 's/^/  B: /' "$work/logs/importer"
heading "node A: freed the memory while B was copying"
sed -n '/^handle/,$p' "$work/logs/exporter" | sed '1d;s/^/  A: /'

# ---- what the daemons and the model counted ----

for node in a b; do
  "$bin/gpuctl" --runtime-dir "$work/run-$node" --json faults >"$work/logs/faults-$node.json" ||
    fail "gpuctl faults of node $node"
done
"$bin/gpusim" ctl "$work/gpusim" '{"command": "totals"}' >"$work/logs/totals.json" || fail "gpusim totals"
echo end >&3
wait_end exporter
sha256sum <"$work/node-b/output" >"$work/node-b/digest"
python3 "$source_dir/tools/demo_report.py" "$work" "$bytes" || fail "see above"
for name in gpuumd-a gpuumd-b gpusim; do
  pid=${pids[$name]}
  stop $name
  wait "$pid" || fail "$name ended with code $?"
done
heading "ended in $((SECONDS - started)) s"
say "demo: success"
