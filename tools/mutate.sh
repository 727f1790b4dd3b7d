#!/usr/bin/env bash
# Whether the tests bite: each patch of tests/mutations/ takes one promised behaviour away, and the tests that it
# names must fail then. docs/testing.md, "Mutations".
#
#   tools/mutate.sh                 all of them, some 20 minutes on 2 cores
#   tools/mutate.sh --only REGEX    those whose file name matches
#   --jobs N                        build with so many (all cores)
#   --dir DIR                       works there, and leaves it: sources, one build, a log for each patch
#   tools/mutate.sh --check         builds nothing: that they apply and name tests that exist (tools/check.sh)
exec python3 "$(dirname "$0")/mutate.py" "$@"
