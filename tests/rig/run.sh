#!/usr/bin/env bash
# The guest tests: sets itself up, boots, prints a line a check, and closes with "N passed, N failed".
# Serial lines, gpusim's and the daemons' logs stay in build/rig (or --keep's directory).
#
#   tests/rig/run.sh [--bin DIR] [--kernel 7.3|6.12] [--no-kernel-build] [--only REGEX] [--keep DIR] [--bench OPTIONS]
#
# --no-kernel-build takes Debian's own kernel, which has the group interface alone, and says what was not
# tested. --only runs the boots whose name matches. --bench runs no checks but gpuumd-bench with these
# options, in a guest and outside (docs/performance.md); it wants the release build: --bin build/release/bin.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source_dir=$(cd "$here/../.." && pwd)
bin=$source_dir/build/debug/bin
keep=$source_dir/build/rig
only=.
setup=() bench=()
while [ $# -gt 0 ]; do
  case $1 in
  --bin) bin=$(realpath "${2:?--bin needs a directory}"); shift ;;
  --keep) keep=${2:?--keep needs a directory}; shift ;;
  --only) only=${2:?--only needs an expression}; shift ;;
  --kernel) setup+=(--kernel "${2:?--kernel needs a version}"); shift ;;
  --bench) only=. bench=(--bench="${2?--bench needs options, or \"\"}"); shift ;;
  --no-kernel-build) setup+=(--no-kernel-build) ;;
  *) echo "usage: run.sh [--bin DIR] [--kernel VERSION] [--no-kernel-build] [--only REGEX] [--keep DIR] [--bench OPTIONS]" >&2; exit 2 ;;
  esac
  shift
done

parts=$("$here/setup.sh" ${setup[@]+"${setup[@]}"}) || {
  echo "rig: set-up failed" >&2
  echo "0 passed, 1 failed"
  exit 1
}
qemu=$(sed -n 's/^qemu=//p' <<<"$parts")
kernel=$(sed -n 's/^kernel=//p' <<<"$parts")
mkdir -p "$keep"
exec python3 -B "$here/run.py" --bin "$bin" --qemu "$qemu" --kernel "$kernel" --keep "$keep" --only "$only" ${bench[@]+"${bench[@]}"}
