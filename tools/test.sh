#!/usr/bin/env bash
# Installs what is missing, builds, runs every test, and closes with a line "N passed, N failed". What CI
# runs (.ci/run) is this.
#
#   tools/test.sh             debug build (g++), every test, the whole system with both sizes of BAR 0;
#                             AddressSanitizer (clang++) with every test, ThreadSanitizer with those
#                             where threads meet; the guest tests (tests/rig/run.sh)
#   tools/test.sh --debug     the debug build and the guest tests alone
#   tools/test.sh --only X    only the ctest entries whose name matches the expression X, no guest
#   --no-rig                  without the guest tests
#   --no-kernel-build         those with Debian's own kernel, which has the group interface alone
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

all=1
only=.
rig=1
rig_options=()
while [ $# -gt 0 ]; do
  case $1 in
  --debug) all=0 ;;
  --only) only=${2:?--only needs an expression}; rig=0; shift ;;
  --no-rig) rig=0 ;;
  --no-kernel-build) rig_options+=(--no-kernel-build) ;;
  *)
    echo "usage: tools/test.sh [--debug] [--only EXPRESSION] [--no-rig] [--no-kernel-build]" >&2
    exit 2
    ;;
  esac
  shift
done

start=$SECONDS
passed=0
failed=0
results=$(mktemp -d)
setup_pid=
end() {
  [ -z "$setup_pid" ] || kill -- "-$setup_pid" 2>/dev/null
  rm -rf "$results"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# The cache may be shared by clones at different paths.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

say() { printf '== %5ds  %s\n' $((SECONDS - start)) "$*"; }

# A step that is not a GoogleTest program counts as one test.
step() {
  local name=$1
  shift
  say "$name"
  if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $name"; fi
}

build() {
  cmake --preset "$1" >"$results/configure-$1" 2>&1 || { cat "$results/configure-$1"; return 1; }
  cmake --build --preset "$1" -- -k 0 >"$results/build-$1" 2>&1 ||
    { grep -E 'error|FAILED|warning' "$results/build-$1" | head -n 40; return 1; }
}

# run PRESET LABEL [NAME=VALUE ...]: the ctest entries of a build that have the label, or "all", counted
# test by test.
run() {
  local preset=$1 label=$2 labelled=()
  shift 2
  [ "$label" = all ] || labelled=(-L "$label")
  local out="$results/$preset-$label-${1:-default}"
  mkdir -p "$out"
  say "tests: $preset $label $*"
  env "$@" GTEST_OUTPUT="json:$out/" ctest --test-dir "build/$preset" ${labelled[@]+"${labelled[@]}"} -R "$only" \
    --no-tests=error --output-on-failure -j2 >"$out/log" 2>&1
  local code=$?
  [ $code -eq 0 ] || sed -n '/\[  FAILED  \]/p;/Failure$/,+4p;/ERROR: .*Sanitizer/,+20p;/WARNING: ThreadSan/,+20p;/tests failed/,$p' "$out/log" | head -n 200
  local counts
  counts=$(python3 tools/count_tests.py "$out" "$code")
  passed=$((passed + ${counts% *}))
  failed=$((failed + ${counts#* }))
}

# The guest's kernel is built beside the builds and unit tests, and gets what they leave.
begin_rig() {
  mkdir -p build/rig
  setsid nice -n 19 tests/rig/setup.sh ${rig_options[@]+"${rig_options[@]}"} >build/rig/setup.log 2>&1 &
  setup_pid=$!
}

# Its last line has the counts.
run_rig() {
  local out="$results/rig" line
  say "guest tests: wait for their set-up (build/rig/setup.log)"
  wait "$setup_pid"
  setup_pid=
  say "guest tests"
  tests/rig/run.sh ${rig_options[@]+"${rig_options[@]}"} >"$out" 2>&1
  grep -E '^(FAIL|skip|rig:)' "$out"
  line=$(tail -n 1 "$out")
  if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
    passed=$((passed + BASH_REMATCH[1]))
    failed=$((failed + BASH_REMATCH[2]))
  else
    failed=$((failed + 1))
    echo "FAILED: guest tests came to no end: $line"
  fi
}

step "packages" tools/setup.sh
[ $rig -eq 0 ] || begin_rig
step "checks: format, citations, layers" tools/check.sh
step "build: debug (g++)" build debug
run debug all GPUUMD_TEST_BAR0=64M
run debug whole GPUUMD_TEST_BAR0=vram
if [ $all -eq 1 ]; then
  step "headers compile alone" cmake --build build/debug --target check_headers -- -k 0
  step "build: asan (clang++)" build asan
  run asan all GPUUMD_TEST_BAR0=64M
  run asan whole GPUUMD_TEST_BAR0=vram
  step "build: tsan" build tsan
  run tsan threads TSAN_OPTIONS=halt_on_error=1
fi
# Last of all: a kernel that is built from nothing takes its time.
if [ $rig -eq 1 ]; then
  run_rig
else
  say "LEFT OUT: the guest tests (kernel VFIO by iommufd and by group, IOMMUs, hot-plug): tests/rig/run.sh runs them"
fi
say "done"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
