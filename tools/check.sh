#!/usr/bin/env bash
# Checks that need no build: format, and that what the code cites exists.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
status=0

mapfile -t sources < <(git ls-files '*.h' '*.hpp' '*.cc' '*.c')
if [ ${#sources[@]} -gt 0 ] && ! clang-format-19 --dry-run --Werror "${sources[@]}" 2>&1 | head -n 20; then
  status=1
fi
clang-format-19 --dry-run --Werror "${sources[@]}" >/dev/null 2>&1 || status=1

python3 tools/check_citations.py || status=1
# The mutations still apply, and name tests that exist.
tools/mutate.sh --check || status=1
exit $status
