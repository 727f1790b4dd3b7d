#!/usr/bin/env bash
# clang-tidy over the product's sources (not the tests), with the checks of .clang-tidy. Needs no build; some
# twenty minutes on 2 cores for all.
#
#   tools/tidy.sh             every source
#   tools/tidy.sh FILE...     these
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset clang >/dev/null
if [ $# -gt 0 ]; then
  files=("$@")
else
  mapfile -t files < <(git ls-files '*.cc' ':!tests/*')
fi
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy-19 -p build/clang --quiet 2>/dev/null &&
  echo "tidy: ${#files[@]} files are clean"
