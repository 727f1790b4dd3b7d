"""What boots do in a guest: devices, bindings, daemons."""
import re
import shlex

from machine import Trouble, last_line, wait_until

MODEL_OPTIONS = {"vram": "256M", "bar0": "64M", "stall": "queue"}


class Guest:
    """A booted machine with names for what the checks do in it."""

    def __init__(self, machine):
        self.machine = machine
        self.run, self.must, self.start = machine.run, machine.must, machine.start

    def gpu(self, n):
        """The PCI address of the n-th GPU."""
        return self.must(f"cd /sys/bus/pci/devices/0000:00:{0x10 + n:x}.0 && ls -d 0000:??:??.?").split()[-1]

    EDU = "0000:00:1e.0"

    def bind(self, *addresses):
        """To vfio-pci, by hand: gpuctl bind has checks of its own."""
        for address in addresses:
            device = f"/sys/bus/pci/devices/{address}"
            self.must(f"echo vfio-pci >{device}/driver_override && echo {address} >/sys/bus/pci/drivers_probe && "
                      f"readlink {device}/driver | grep vfio-pci")

    def unbind(self, address, patience=30):
        self.must(f"echo {address} >/sys/bus/pci/drivers/vfio-pci/unbind", patience)

    def daemon(self, name, device, *options, ready="gpuumd: ready"):
        """Starts gpuumd with runtime directory /run/NAME; its pid."""
        return self.start(name, f"gpuumd --device {device} --runtime-dir /run/{name} --no-same-host {' '.join(options)}",
                          ready)

    def end_daemon(self, name, pid, codes=(0,)):
        """SIGTERM; it has to end, by itself, in time."""
        self.must(f"kill -TERM {pid}")
        code = self.machine.wait_line(name, 1, "exit ", 60)
        if int(code) not in codes:
            raise Trouble(f"{name} ended with {code}: {last_line(self.log(name).rpartition('exit ')[0])}")

    def log(self, name):
        return self.run(f"cat /tmp/{name}.log")[1]

    def said(self, name, pattern):
        """The first line of a program's log that has the pattern."""
        for line in self.log(name).splitlines():
            if re.search(pattern, line):
                return line
        return None

    def refused(self, device, *words, user=None, before="", patience=60):
        """gpuumd on this device ends with an error, in one line with all the words, in time."""
        command = f"{before}gpuumd --device {device} --runtime-dir /tmp/refused-{user} --log-level off"
        if user:
            command = f"su -s /bin/sh {user} -c {shlex.quote(command)}"
        code, text = self.run(command, patience)
        lines = [line for line in text.splitlines() if line]
        if code == 0:
            raise Trouble("it started")
        if code > 128:
            raise Trouble(f"it died of signal {code - 128}: {last_line(text)}")
        if len(lines) != 1:
            raise Trouble(f"{len(lines)} lines for one error: {text!r}")
        for word in words:
            if not re.search(word, lines[0]):
                raise Trouble(f"no \"{word}\" in: {lines[0]}")
        return lines[0]

    def works(self, name, mib=8):
        """A client of the daemon copies data with page faults, and checks it."""
        text = self.must(f"gpuctl --runtime-dir /run/{name} --timeout 100 demo --mib {mib}", 120)
        return text

    def kernel_says(self, pattern, patience=10):
        """Waits for a line of the kernel's log."""
        return wait_until(f"the guest kernel's line \"{pattern}\"",
                          lambda: re.search(pattern, self.run("dmesg")[1]), patience)

    def removed(self, address):
        """Whether the guest's kernel has taken a device out."""
        return self.run(f"test -e /sys/bus/pci/devices/{address}")[0] != 0


class Node:
    """A daemon in the guest and the programs of the demo that are its clients; outside.Node is the same outside."""

    def __init__(self, guest, name, device):
        self.guest, self.name = guest, name
        self.pid = guest.daemon(name, device)

    def client(self, program, *arguments, stdin="/dev/null"):
        run = f"{program} --runtime-dir /run/{self.name} --control /tmp/{program}.fifo {' '.join(arguments)} <{stdin}"
        self.guest.must(f"rm -f /tmp/{program}.fifo; mkfifo /tmp/{program}.fifo; : >/tmp/{program}.log; "
                        f"( {run}; echo exit $? ) >/tmp/{program}.log 2>&1 &")

    def line(self, program, beginning, patience=120):
        return self.guest.machine.wait_line(program, 1, beginning, patience)

    def tell(self, program, word):
        self.guest.must(f"timeout 60 sh -c 'echo {word} >/tmp/{program}.fifo'", 90)

    def random_file(self, mib):
        self.guest.must(f"head -c {mib << 20} /dev/urandom >/tmp/input")
        return "/tmp/input"

    def place(self, name):
        return f"/tmp/{name}"

    def digest(self, path):
        return self.guest.must(f"sha256sum {path}").split()[0]

    def end(self):
        self.guest.end_daemon(self.name, self.pid)


def main_job(exporter, importer, mib=8):
    """The demo between two nodes: export, import, copy over the fabric, read back, free while it is copied."""
    data = exporter.random_file(mib)
    exporter.client("demo_exporter", stdin=data)
    handle = exporter.line("demo_exporter", "handle ")
    output = importer.place("output")
    importer.client("demo_importer", "--handle", handle, "--bytes", str(mib << 20), "--output", output)
    importer.line("demo_importer", "looping")
    exporter.tell("demo_exporter", "free")
    exporter.line("demo_exporter", "secret")
    importer.line("demo_importer", "revoked")
    importer.tell("demo_importer", "look")
    for node, program in ((importer, "demo_importer"), (exporter, "demo_exporter")):
        if node is exporter:
            node.tell(program, "end")
        code = node.line(program, "exit ")
        if code != "0":
            raise Trouble(f"{program} ended with {code}")
    if exporter.digest(data) != importer.digest(output):
        raise Trouble("what the importer's GPU holds is not what was exported")
