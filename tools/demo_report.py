#!/usr/bin/env python3
"""Checks and tells what tools/demo.sh found: faults, digests, and the paths that the bytes took.

usage: demo_report.py WORK BYTES      (WORK: the demo's directory)
"""

import json
import os
import re
import sys

GPU_OF_NODE = {"a": 0, "b": 1}
STAGES = ["drain", "resolve", "populate", "write", "acknowledge", "total"]
# Fences, write-back words and interrupts of A's GPU go to host memory; data does not.
A_HOST_WRITES_MAX = 1 << 20
problems = []


def check(good, what):
    if not good:
        problems.append(what)
    return good


def load(name):
    with open(os.path.join(work, "logs", name), encoding="utf-8") as file:
        return json.load(file)


def program_line(program, key):
    with open(os.path.join(work, "logs", program), encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith(key + " "):
                return line[len(key) + 1 :].strip()
    check(False, f"{program} did not say {key}")
    return ""


def numbers(text):
    return [float(number) for number in re.findall(r"[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?", text)]


def micro(ns):
    return f"{ns / 1000:.1f} us"


def tell_faults():
    print("\n== page faults that the GPUs raised and the daemons serviced")
    serviced = 0
    for node, program in (("a", "exporter"), ("b", "importer")):
        device = load(f"faults-{node}.json")["devices"][0]
        big, small = (int(n) for n in numbers(program_line(program, "windows"))[0:4:2])
        print(
            f"  node {node}  {'SIM' if device['simulated'] else 'PCI'}: {device['serviced']} faults serviced, "
            f"{device['windows']} windows of memory made present ({big} of 2 MiB, {small} of 4 KiB), "
            f"{device['pages']} pages"
        )
        print(f"    {'stage':<12}{'count':>8}{'median':>12}{'p99':>12}")
        for stage in STAGES:
            s = device["stages"][stage]
            print(f"    {stage:<12}{s['count']:>8}{micro(s['p50_ns']):>12}{micro(s['p99_ns']):>12}")
        check(device["windows"] >= big + small, f"node {node}: fewer windows than its program mapped")
        check(device["timeouts"] == 0, f"node {node}: a fault was not serviced in time")
        serviced += device["windows"]
    # The default input has thousands; a small FILE has as many as it has windows.
    if size >= 64 << 20:
        check(serviced >= 256, f"{serviced} faults serviced, not 256")


def tell_paths():
    print("\n== the way of the bytes, by the model's access log")
    totals = load("totals.json")["totals"]

    def total(node, kind, write):
        return sum(
            t["bytes"]
            for t in totals
            if t["gpu"] == GPU_OF_NODE[node] and t["kind"] == kind and t["write"] == write
            and t["engine"].startswith("sdma")
        )

    remote = total("b", "remote", False)
    print(f"  B's copy engines read {remote} bytes of A's memory over the fabric (input: {size})")
    print(f"  A's copy engines wrote {total('a', 'bus', True)} bytes to host memory, "
          f"{total('a', 'remote', True)} to the fabric; B's wrote {total('b', 'remote', True)} to the fabric")
    check(remote >= size, "fewer bytes over the fabric than the input has")
    check(total("a", "bus", True) < A_HOST_WRITES_MAX, "data left A's GPU by host memory")
    check(total("a", "remote", True) == 0, "A's GPU wrote to the fabric")
    check(total("b", "remote", True) == 0, "B's GPU wrote to the fabric")


def tell_result():
    print("\n== result")
    copied = numbers(program_line("importer", "copied"))
    more = numbers(program_line("importer", "copies"))
    print(f"  over the fabric: {copied[0]:.0f} bytes in {copied[1]:.3f} s, {copied[0] / copied[1] / 1e9:.2f} GB/s, "
          "page faults on the way")
    print(f"  and {more[0]:.0f} times more until the revoke: {more[0] * more[1] / more[2] / 1e9:.2f} GB/s")
    digests = []
    for node, what in (("a", "A was given"), ("b", "B read from its GPU")):
        with open(os.path.join(work, f"node-{node}", "digest"), encoding="ascii") as file:
            digests.append(file.read().split()[0])
        print(f"  sha256 {digests[-1]}  of what {what}")
    same = check(digests[0] == digests[1], "the digests differ")
    print(f"  digests {'equal' if same else 'DIFFER'}")
    print(f"  revoke observed: {program_line('importer', 'revoked')}; event: {program_line('importer', 'event')}")
    print(f"  B's other work: {program_line('importer', 'other')}")
    print(f"  the memory is A's again: {program_line('exporter', 'reused')}; "
          f"of what A then wrote there B has nothing: {program_line('importer', 'looked')}")


work, size = sys.argv[1], int(sys.argv[2])
tell_faults()
tell_paths()
tell_result()
for problem in problems:
    print(f"demo: {problem}", file=sys.stderr)
sys.exit(1 if problems else 0)
