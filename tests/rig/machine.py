"""A guest under QEMU: its devices, a shell in it, and QEMU's own control socket (QMP).

Two serial lines: the kernel's goes to a file; the other one ends at a shell (tests/rig/init), into which
run() types. Everything waits for a bounded time.
"""
import ctypes
import json
import os
import pathlib
import select
import shlex
import signal
import socket
import subprocess
import threading
import time

LOG_LIMIT = 2 << 20  # QEMU writes a line for each access to a device whose server has died
PR_SET_PDEATHSIG = 1


class Trouble(Exception):
    """What a check failed of, in one line."""


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start_program(arguments, log, **more):
    """A program of ours, with its output in a file of bounded size."""
    process = subprocess.Popen([str(a) for a in arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               preexec_fn=end_with_parent, **{"stdin": subprocess.DEVNULL, **more})

    def drain():
        left = LOG_LIMIT
        with open(log, "ab", buffering=0) as file:
            while chunk := process.stdout.read1(65536):
                file.write(chunk[:left])
                left = max(0, left - len(chunk))

    threading.Thread(target=drain, daemon=True).start()
    return process


def end_program(process, patience=20):
    """SIGTERM, and SIGKILL when that does not do it; the exit code."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return process.returncode


def wait_until(what, condition, patience):
    end = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > end:
            raise Trouble(f"{what}: not within {patience} s")
        time.sleep(0.02)
    return value


class Machine:
    """One boot. `gpus` are sockets of vfio-user servers, each behind a root port of its own, where it can be
    unplugged; with `edu`, QEMU's edu device at 0000:00:1e.0."""

    IOMMUS = {
        "intel": (["-device", "intel-iommu,intremap=on,caching-mode=on"], "intel_iommu=on"),
        "amd": (["-device", "amd-iommu,intremap=on,dma-remap=on,xtsup=on"], "rig.unsafe_interrupts"),
        "virtio": (["-device", "virtio-iommu-pci,addr=2.0"], "rig.unsafe_interrupts"),
        "none": ([], ""),
    }

    def __init__(self, qemu, kernel, initramfs, directory, iommu, gpus=(), edu=False, memory_mib=1024):
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.calls = 0
        self.buffered = b""
        self.shell = self.control = None
        # Paths of sockets have to be short.
        self.sockets = pathlib.Path(f"/tmp/gpuumd-rig-{os.getpid()}-{iommu}")
        self.sockets.mkdir(mode=0o700, exist_ok=True)
        devices, line = self.IOMMUS[iommu]
        arguments = [
            qemu, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-machine", "q35,kernel-irqchip=split,memory-backend=ram",
            # Hot-plug as PCI Express has it, by the root ports, not by ACPI.
            "-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off",
            # A nested machine's KVM may be one that cannot run an ordinary kernel.
            "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", f"{memory_mib}M",
            "-object", f"memory-backend-memfd,id=ram,size={memory_mib}M,share=on",
            "-kernel", f"{kernel}/bzImage", "-initrd", initramfs,
            # The TSC is measured while the host may be busy, and a guest whose clock runs fast has short deadlines.
            "-append", f"console=ttyS0 quiet panic=-1 no_timer_check clocksource=acpi_pm {line}",
            "-serial", f"file:{self.directory}/console.log",
            "-chardev", f"socket,id=shell,path={self.sockets}/shell,server=on,wait=off", "-serial", "chardev:shell",
            "-qmp", f"unix:{self.sockets}/qmp,server=on,wait=off",
            *devices,  # before what stands behind it
        ]
        for n, gpu in enumerate(gpus):
            arguments += ["-device", f"pcie-root-port,id=port{n},chassis={n + 1},slot={n + 1},addr={0x10 + n:#x}.0"]
            arguments += ["-device", self.gpu_device(n, gpu)]
        if edu:
            arguments += ["-device", "edu,id=edu,addr=1e.0,dma_mask=0xffffffff"]
        self.process = start_program(arguments, self.directory / "qemu.log")

    @staticmethod
    def gpu_device(n, path):
        return json.dumps({"driver": "vfio-user-pci", "id": f"gpu{n}", "bus": f"port{n}",
                           "socket": {"type": "unix", "path": str(path)}})

    def boot(self, patience=300):
        """Until the shell is there."""
        self.shell = self.connect("shell", patience)
        self.read_until(b"RIG-READY\n", patience)
        self.control = self.connect("qmp", 10).makefile("rwb")
        self.control.readline()
        self.qmp("qmp_capabilities")

    def connect(self, name, patience):
        def attempt():
            if self.process.poll() is not None:
                raise Trouble(f"QEMU ended with {self.process.returncode}: {self.last_words()}")
            line = socket.socket(socket.AF_UNIX)
            try:
                line.connect(f"{self.sockets}/{name}")
                line.settimeout(30)
                return line
            except OSError:
                line.close()
                return None

        return wait_until(f"QEMU's {name} socket", attempt, patience)

    def last_words(self):
        text = (self.directory / "qemu.log").read_text(errors="replace").strip().splitlines()
        return text[-1] if text else "(it said nothing)"

    def read_until(self, mark, patience):
        """What the shell says up to and with `mark`."""
        end = time.monotonic() + patience
        while (at := self.buffered.find(mark)) < 0:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.shell], [], [], left)[0]:
                raise Trouble(f"the guest is silent for {patience} s; it said last: {self.tail()}")
            chunk = self.shell.recv(65536)
            if not chunk:
                raise Trouble(f"the guest is gone: {self.last_words()}")
            self.buffered += chunk
        text, self.buffered = self.buffered[:at + len(mark)], self.buffered[at + len(mark):]
        return text

    def tail(self):
        lines = self.buffered.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "nothing"

    def run(self, command, patience=60):
        """Runs a shell command, one line, in the guest: (exit code, output)."""
        self.calls += 1
        mark = f"RIG-DONE-{self.calls}"
        line = f"( {command} ) </dev/null 2>&1; code=$?; echo; echo {mark} $code .\n"
        self.shell.sendall(line.encode())
        text = self.read_until(f"\n{mark} ".encode(), patience)[:-len(mark) - 2].decode(errors="replace")
        code = self.read_until(b" .\n", 10)
        return int(code.split()[0]), text.rstrip("\n")

    def must(self, command, patience=60):
        code, text = self.run(command, patience)
        if code != 0:
            raise Trouble(f"in the guest: {command.splitlines()[0]}: exit code {code}: {last_line(text)}")
        return text

    def start(self, name, command, ready, patience=60):
        """Starts a program in the guest's background, its output in /tmp/NAME.log and after it "exit CODE", and waits
        for a line of it that begins with `ready`; its pid."""
        self.must(f": >/tmp/{name}.log; {{ {command} & echo pid $!; wait $!; echo exit $?; }} >/tmp/{name}.log 2>&1 &")
        pid = self.wait_line(name, 1, "pid ", patience)
        self.wait_line(name, pid, ready, patience)
        return int(pid)

    def wait_line(self, name, pid, ready, patience=60):
        """The rest of the first line of /tmp/NAME.log that begins with `ready`."""
        script = (f"n=0; while ! grep -q {shlex.quote('^' + ready)} /tmp/{name}.log; do "
                  f"kill -0 {pid} 2>/dev/null || {{ sleep 0.2; grep -q {shlex.quote('^' + ready)} /tmp/{name}.log && break; "
                  f"tail -n 1 /tmp/{name}.log; exit 1; }}; "
                  f"n=$((n+1)); [ $n -lt {patience * 10} ] || exit 2; sleep 0.1; done; "
                  f"grep -m1 {shlex.quote('^' + ready)} /tmp/{name}.log")
        code, text = self.run(script, patience * 3 + 30)
        if code != 0:
            raise Trouble(f"{name} in the guest did not say \"{ready}\": {last_line(text)}")
        return text[len(ready):].strip()

    def wait_gone(self, pid, patience=30):
        """Until a process of the guest has ended."""
        self.must(f"n=0; while kill -0 {pid} 2>/dev/null; do n=$((n+1)); [ $n -lt {patience * 10} ] || "
                  f"{{ echo process {pid} is still there; exit 1; }}; sleep 0.1; done", patience * 3 + 30)

    def qmp(self, command, **arguments):
        self.control.write(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        self.control.flush()
        while True:
            line = self.control.readline()
            if not line:
                raise Trouble(f"QEMU has closed its control socket: {self.last_words()}")
            answer = json.loads(line)
            if "error" in answer:
                raise Trouble(f"QEMU: {command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]

    def console(self):
        return (self.directory / "console.log").read_text(errors="replace")

    def keep_logs(self):
        """What the guest's programs and kernel said, into the directory of artefacts."""
        try:
            code, text = self.run("dmesg; for f in /tmp/*.log; do echo \"== $f\"; tail -n 200 $f; done", 30)
            (self.directory / "guest.log").write_text(text)
        except (Trouble, OSError) as error:
            (self.directory / "guest.log").write_text(f"not to be had: {error}\n")

    def end(self):
        """Once, or again without effect."""
        end_program(self.process, 5)
        if not self.sockets.exists():
            return
        for line in (self.shell, self.control):
            if line:
                line.close()
        for path in self.sockets.iterdir():
            path.unlink()
        self.sockets.rmdir()


def last_line(text):
    lines = [line for line in text.strip().splitlines() if line]
    return lines[-1] if lines else "(no output)"
