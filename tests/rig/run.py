#!/usr/bin/env python3
"""Boots the guests and runs all checks (run.sh prepares and starts it)."""
import argparse
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import boots
from card import Card
from report import Report


class Rig:
    """What every boot needs."""

    def __init__(self, arguments):
        self.bin = pathlib.Path(arguments.bin)
        self.qemu = arguments.qemu
        self.kernel = pathlib.Path(arguments.kernel)
        self.keep = pathlib.Path(arguments.keep)
        self.initramfs = self.keep / "initramfs.gz"
        self.bench = arguments.bench
        self.report = Report()
        # Debian's kernel has VFIO's group interface and no iommufd.
        self.iommufd = self.kernel.name != "kernel-debian"

    def pack(self):
        names = boots.PROGRAMS if self.bench is None else ["gpuumd", "gpuumd-bench"]
        programs = [self.bin / name for name in names if (self.bin / name).exists()]
        maker = pathlib.Path(__file__).with_name("initramfs.sh")
        subprocess.run([maker, self.initramfs, self.kernel, *programs], check=True)


def main():
    parser = argparse.ArgumentParser()
    for name in ("bin", "qemu", "kernel", "keep", "only"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--bench")
    arguments = parser.parse_args()
    # Ends by an exception, so that everything that was started is ended.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    rig = Rig(arguments)
    start = time.monotonic()
    rig.pack()
    print(f"rig: {rig.kernel.name}, programs of {rig.bin}, {rig.initramfs.stat().st_size >> 20} MiB initramfs", flush=True)
    all_boots = {**boots.BOOTS, "card": Card} if rig.bench is None else {"bench": boots.Bench}
    for name, boot in all_boots.items():
        if not re.search(arguments.only, name):
            continue
        reason = boot.left_out(rig)
        if reason:
            print(f"rig: boot \"{name}\" left out: {reason}", flush=True)
            continue
        failed = rig.report.failed
        shutil.rmtree(rig.keep / name, ignore_errors=True)
        boot(rig, name).run()
        if rig.report.failed != failed:
            print(f"rig: logs: {rig.keep / name}", flush=True)
    if not rig.iommufd:
        print("rig: not tested with Debian's kernel: iommufd and its device files, the AMD IOMMU, no-IOMMU mode", flush=True)
    print(f"rig: {time.monotonic() - start:.0f} s of guests, {rig.report.skipped} tests skipped", flush=True)
    print(rig.report.counts(), flush=True)
    return 1 if rig.report.failed else 0


sys.exit(main())
