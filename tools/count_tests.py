#!/usr/bin/env python3
"""Prints "passed failed" of a directory of GoogleTest's JSON results.

A program that died leaves no result (or one without its summary); then ctest's exit code, the second
argument, was not 0, and at least one failure is counted.
"""
import json
import pathlib
import sys

passed = failed = 0
for path in pathlib.Path(sys.argv[1]).glob("*.json"):
    try:
        result = json.loads(path.read_text())
    except ValueError:
        continue
    bad = result["failures"] + result.get("errors", 0)
    skipped = result.get("disabled", 0)
    failed += bad
    passed += result["tests"] - bad - skipped
if sys.argv[2] != "0" and failed == 0:
    failed = 1
print(passed, failed)
