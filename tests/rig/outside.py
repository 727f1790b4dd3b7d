"""What runs on this side of the guest: gpusim with the pod, a daemon, clients."""
import hashlib
import json
import os
import pathlib
import shutil
import socket
import tempfile
import time

from machine import Trouble, end_program, start_program, wait_until

# What the model must not have seen of a driver (as tests/whole/system.cc has it): group "" is the server's own.
MISTAKES = [
    ("", "dma_refused", "bus error"),
    ("model", "hubs.bus_errors", "bus error"),
    ("model", "ih.lost_writes", "bus error"),
    ("model", "psp.lost_accesses", "bus error"),
    ("model", "vram.poison_reads", "poison read"),
    ("model", "hubs.flushes_without_semaphore", "protocol"),
    ("model", "ih.bad_pointers", "protocol"),
    ("model", "psp.bad_pointers", "protocol"),
]


class Model:
    """A gpusim process with its sockets in a directory of its own; its log among the artefacts."""

    def __init__(self, bin_directory, artefacts, gpus=2, **options):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="gpuumd-rig-"))
        self.options = options
        self.log = pathlib.Path(artefacts) / "gpusim.log"
        self.announced = {}
        arguments = [bin_directory / "gpusim", "--dir", self.directory, "--gpus", str(gpus)]
        for name, value in options.items():
            arguments += [f"--{name}", value]
        self.process = start_program(arguments, self.log)
        wait_until("gpusim's ready line", self.ready, 30)

    def ready(self):
        if self.process.poll() is not None:
            raise Trouble(f"gpusim ended with {self.process.returncode}: {self.log.read_text()[-300:]}")
        return self.log.exists() and "\nready\n" in "\n" + self.log.read_text()

    def socket(self, gpu):
        return self.directory / f"gpu{gpu}.sock"

    def command(self, name, **arguments):
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(30)
            line.connect(str(self.directory / "control.sock"))
            line.sendall(json.dumps({"command": name, **arguments}).encode() + b"\n")
            answer = json.loads(line.makefile().readline())
        if not answer.get("ok"):
            raise Trouble(f"gpusim: {name}: {answer.get('error')}")
        return answer

    def mistakes(self):
        """(GPU, counter) -> (count, kind), of what is not 0."""
        found = {}
        for gpu in self.command("counters")["gpus"]:
            for group, name, kind in MISTAKES:
                if count := (gpu[group] if group else gpu)[name]:
                    found[gpu["gpu"], name] = (count, kind)
        return found

    def end(self):
        code = end_program(self.process)
        shutil.rmtree(self.directory, ignore_errors=True)
        return code


class Node:
    """A daemon outside and the programs of the demo that are its clients; guest.Node is the same in a guest."""

    def __init__(self, bin_directory, artefacts, device):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="gpuumd-rig-"))
        self.bin, self.artefacts = pathlib.Path(bin_directory), pathlib.Path(artefacts)
        self.clients = {}
        self.process = start_program([self.bin / "gpuumd", "--device", device, "--runtime-dir", self.directory / "run",
                                      "--no-same-host"], self.log("gpuumd"))
        self.line("gpuumd", "gpuumd: ready", 60)

    def log(self, program):
        return self.artefacts / f"{program}-outside.log"

    def client(self, program, *arguments, stdin=os.devnull):
        self.log(program).unlink(missing_ok=True)
        control = self.directory / f"{program}.fifo"
        control.unlink(missing_ok=True)
        os.mkfifo(control)
        with open(stdin, "rb") as data:
            self.clients[program] = start_program(
                [self.bin / program, "--runtime-dir", self.directory / "run", "--control", control, *arguments],
                self.log(program), stdin=data)

    def line(self, program, beginning, patience=120):
        """The rest of the first line that a program says with this beginning. "exit " gives its exit code."""
        process = self.clients.get(program, self.process)

        def look():
            ended = process.poll() is not None
            if beginning == "exit " and ended:
                return [str(process.returncode)]
            text = self.log(program).read_text(errors="replace") if self.log(program).exists() else ""
            found = [line[len(beginning):].strip() for line in text.splitlines() if line.startswith(beginning)]
            if not found and ended:
                time.sleep(0.2)  # its last words may be on their way
                if beginning not in self.log(program).read_text(errors="replace"):
                    raise Trouble(f"{program} outside ended before it said \"{beginning}\": {text.strip()[-200:]}")
            return found

        return wait_until(f"line \"{beginning}\" of {program} outside", look, patience)[0]

    def tell(self, program, word):
        def attempt():
            try:
                control = os.open(self.directory / f"{program}.fifo", os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                return False  # nobody reads it yet
            os.write(control, word.encode() + b"\n")
            os.close(control)
            return True

        wait_until(f"{program} outside to listen", attempt, 60)

    def random_file(self, mib):
        path = self.directory / "input"
        path.write_bytes(os.urandom(mib << 20))
        return path

    def place(self, name):
        return self.directory / name

    def digest(self, path):
        return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()

    def end(self):
        for process in self.clients.values():
            end_program(process)
        code = end_program(self.process)
        shutil.rmtree(self.directory, ignore_errors=True)
        return code
