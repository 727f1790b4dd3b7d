"""The boots and their checks. Each boot is one guest with one gpusim pod of two GPUs on this side."""
import contextlib
import json
import re
import shlex
import subprocess

import outside
from binding import Binding
from guest import MODEL_OPTIONS, Guest, Node, main_job
from machine import Machine, Trouble, last_line, wait_until

PROGRAMS = ["gpuumd", "gpuctl", "whole_test", "vfio_kernel_test", "demo_exporter", "demo_importer"]


class Boot:
    iommu = "intel"
    edu = False
    function = {}  # options of the model beyond MODEL_OPTIONS
    inside = [0, 1]  # GPUs of the pod that the guest has
    machine_type = Machine

    def __init__(self, rig, name):
        self.rig, self.name = rig, name
        self.directory = rig.keep / name
        self.directory.mkdir(parents=True, exist_ok=True)
        self.model = self.machine = self.guest = None
        self.backends = ["iommufd", "group"] if rig.iommufd else ["group"]

    @classmethod
    def left_out(cls, rig):
        """Why this boot cannot be had with this kernel; None when it can."""
        return None

    def run(self):
        failed = self.rig.report.failed
        try:
            with self.check("boots"):
                self.model = outside.Model(self.rig.bin, self.directory, 2, **MODEL_OPTIONS, **self.function)
                self.machine = self.machine_type(
                    self.rig.qemu, self.rig.kernel, self.rig.initramfs, self.directory, self.iommu,
                    [self.model.socket(n) for n in self.inside], self.edu)
                self.machine.boot()
                self.guest = Guest(self.machine)
            if self.guest:
                try:
                    self.checks()
                except (Trouble, OSError) as why:
                    with self.rig.report.check(f"{self.name}: to its end"):
                        raise Trouble(f"{why}; QEMU said last: {self.machine.last_words()}") from why
        finally:
            if self.guest and self.rig.report.failed != failed:
                self.machine.keep_logs()
            if self.machine:
                self.machine.end()
            if self.model:
                self.model.end()

    @contextlib.contextmanager
    def check(self, name, allowed=()):
        """One check of this boot. The model must have counted no mistakes in it but of the allowed (GPU, kind)."""
        with self.rig.report.check(f"{self.name}: {name}"):
            if self.guest and self.machine.process.poll() is not None:
                raise Trouble(f"QEMU has ended: {self.machine.last_words()}")
            before = self.model.mistakes() if self.model else {}
            try:
                yield
            except Exception:
                self.clean_up()
                raise
            if self.model and self.model.process.poll() is None:
                for key, (count, kind) in self.model.mistakes().items():
                    if (key[0], kind) not in allowed and count > before.get(key, (0,))[0]:
                        raise Trouble(f"the model counted {count} {key[1]} of GPU {key[0]}: a {kind}")

    def clean_up(self):
        """After a failure: the next check must not fail of what this one has left."""
        if self.guest and self.machine.process.poll() is None:
            with contextlib.suppress(Trouble):
                self.guest.run("killall -9 gpuumd gpuctl demo_exporter demo_importer", 30)

    def device(self, n, backend):
        return f"pci:{self.guest.gpu(n)},backend={backend}"

    def whole_system_tests(self, backend, tests, gpus=2, patience=900):
        devices = " ".join(self.device(n, backend) for n in range(gpus))
        model = " ".join(f"{name}={value}" for name, value in MODEL_OPTIONS.items())
        code, text = self.guest.run(
            f"GPUUMD_BIN=/gpuumd/bin GPUUMD_TEST_DEVICES={shlex.quote(devices)} GPUUMD_TEST_MODEL={shlex.quote(model)} "
            f"timeout {patience} whole_test --gtest_color=no --gtest_filter={shlex.quote(tests)}", patience + 30)
        (self.directory / f"whole-{backend}.log").write_text(text)
        self.rig.report.googletest(f"{self.name}, {backend}", code, text)

    def binds(self):
        with self.check("vfio-pci takes the GPUs"):
            self.guest.bind(*(self.guest.gpu(n) for n in self.inside))

    def kernel_tests(self, device, address, tests="*"):
        """vfio/ alone on one device, by every way that the kernel has (tests/vfio_kernel)."""
        if not self.rig.iommufd:
            tests += ":*Iommufd*" if "-" in tests else "-*Iommufd*"
        code, text = self.guest.run(
            f"GPUUMD_TEST_PCI={address} timeout 300 vfio_kernel_test --gtest_color=no --gtest_filter={shlex.quote(tests)}", 330)
        (self.directory / f"vfio-{device}.log").write_text(text)
        self.rig.report.googletest(f"{self.name}, {device}", code, text)

    def comes_up(self, backend, n=0):
        with self.check(f"gpuumd by {backend}: comes up, serves page faults, ends"):
            pid = self.guest.daemon("up", self.device(n, backend))
            self.guest.works("up")
            self.guest.end_daemon("up", pid)

    def checks(self):
        raise NotImplementedError


class Whole(Boot):
    """vfio/ and the whole system behind the Intel IOMMU."""

    edu = True

    def checks(self):
        guest = self.guest
        with self.check("not bound: the daemon says so and how to bind"):
            guest.refused(f"pci:{guest.gpu(0)}", "vfio-pci")
        Binding(self).checks()
        self.binds()
        with self.check("edu: vfio-pci takes it"):
            guest.bind(guest.EDU)
        self.kernel_tests("edu", guest.EDU, "-*Gpusim*")
        self.kernel_tests("gpusim", guest.gpu(0), "-*Edu*")
        for backend in self.backends:
            self.comes_up(backend)
        self.whole_system_tests(self.backends[0], "Guest*:*/Guest*/0")
        if len(self.backends) > 1:
            self.whole_system_tests(self.backends[1], "GuestCopy.*:GuestFabric.AnImport*:GuestRestart.Killed*")


class OtherIommu(Boot):
    """The same daemon behind another IOMMU."""

    def checks(self):
        self.binds()
        for backend in self.backends:
            self.comes_up(backend)
        self.whole_system_tests(self.backends[0], "GuestCopy.*:GuestFabric.AnImport*:GuestFabric.UAL_2*")


class Virtio(OtherIommu):
    """And a function that has no reset of its own."""

    iommu = "virtio"
    function = {"flr": "off"}


class Amd(OtherIommu):
    """And a function whose reset does nothing."""

    iommu = "amd"
    function = {"flr": "deaf"}
    edu = True

    # QEMU 11.1.3's amd-iommu aborts (amdvi_notify_iommu) when the kernel gives back, at once, a range of many small
    # pages: memory is had in huge ones.
    def checks(self):
        self.guest.must("echo always >/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        super().checks()
        # Not by the first daemon: the mark of the one before tells that the reset has done nothing.
        with self.check("gpuumd: resets it by the security processor, as the function does not"):
            if not self.guest.said("up", "mode 1"):
                raise Trouble(last_line(self.guest.log("up")))
        with self.check("edu: vfio-pci takes it"):
            self.guest.bind(self.guest.EDU)
        self.kernel_tests("edu", self.guest.EDU, "*Edu*")

    @classmethod
    def left_out(cls, rig):
        return None if rig.iommufd else "Debian's cloud kernel has no AMD IOMMU"


class NoIommu(Boot):
    """No IOMMU: refused, unless the operator insists; then still no DMA that we choose the addresses of."""

    iommu = "none"

    def checks(self):
        guest = self.guest
        Binding(self).without_iommu()
        with self.check("without an IOMMU the daemon refuses, and says why"):
            guest.run(f"echo 1 >/sys/module/vfio/parameters/enable_unsafe_noiommu_mode")
            guest.bind(guest.gpu(0))
            guest.refused(f"pci:{guest.gpu(0)}", "IOMMU")
        with self.check("with the override too: DMA needs an IOMMU"):
            guest.refused(f"pci:{guest.gpu(0)},i-know-that-this-device-can-overwrite-all-memory", "DMA without an IOMMU")
        self.kernel_tests("gpusim", guest.gpu(0), "NoIommu*")

    @classmethod
    def left_out(cls, rig):
        return None if rig.iommufd else "Debian's cloud kernel has no no-IOMMU mode"


class Intx(Boot):
    """A function without MSI-X: its interrupts come by INTx."""

    function = {"interrupts": "intx"}

    # A GPU for each backend: QEMU 11.1.3 takes a BAR's memory mapping away at the first INTx and, once the driver has
    # gone, does not give it back, so that the next one's page tables go by a trap an entry.
    def checks(self):
        self.binds()
        for n, backend in enumerate(self.backends):
            self.comes_up(backend, n)
            with self.check(f"gpuumd by {backend}: says that it has no MSI-X"):
                if not self.guest.said("up", "INTx"):
                    raise Trouble(last_line(self.guest.log("up")))


class Pod(Boot):
    """GPU 0 in the guest, GPU 1 with a daemon outside; then everything that can be taken away is."""

    inside = [0]

    def checks(self):
        self.binds()
        self.main_jobs()
        with self.check("reset through sysfs, while nobody has the device"):
            self.reset()
        with self.check("a wrong IOVA: refused by the IOMMU, told by its kernel and by the daemon", [(0, "bus error")]):
            self.stray(lambda: {"add": hex(1 << 36)})
        with self.check("reset through sysfs under a daemon: its device is lost, and a restart has it again"):
            self.reset_under_a_daemon()
        with self.check("an IOVA that was valid and is unmapped: refused and told as well", [(0, "bus error")]):
            self.formerly_valid()
        self.bad_input()
        with self.check("a device that was lost for another reason is let go of at an unbind"):
            self.lost_before()
        with self.check("unbound while the daemon has it"):
            self.lost_by(lambda: self.guest.unbind(self.guest.gpu(0)))
        with self.check("bound again: works again"):
            self.guest.bind(self.guest.gpu(0))
            self.serves()
        with self.check("off the bus while the daemon has it: everything reads all ones"):
            self.falls_off_the_bus()
        with self.check("taken out by the kernel while the daemon has it, and found again"):
            self.taken_out()
        # The last: QEMU may not survive it.
        with self.check("unplugged while the daemon has it (device_del)"):
            self.unplugged()

    def outside(self):
        return outside.Node(self.rig.bin, self.directory, f"vfio-user:{self.model.socket(1)}")

    # After the loop the importer looks at its copy through a second address space, without having written there: what
    # the model counts as a read of poison (docs/model-memory.md), on the importer's GPU.
    def main_jobs(self):
        nodes = {}
        try:
            with self.check("the two daemons of the main job"):
                nodes["outside"] = self.outside()
                nodes["in the guest"] = Node(self.guest, "pod", self.device(0, self.backends[0]))
            for exporter, importer, gpu in (("in the guest", "outside", 1), ("outside", "in the guest", 0)):
                with self.check(f"main job: exported {exporter}, imported {importer}", [(gpu, "poison read")]):
                    main_job(nodes[exporter], nodes[importer])
        finally:
            for node in reversed(nodes.values()):
                node.end()

    def serves(self):
        pid = self.guest.daemon("serves", self.device(0, self.backends[0]))
        self.guest.works("serves")
        self.guest.end_daemon("serves", pid)

    def resets(self):
        return self.model.command("counters")["gpus"][0]["resets"]

    def reset(self):
        before = self.resets()
        self.guest.must(f"echo 1 >/sys/bus/pci/devices/{self.guest.gpu(0)}/reset")
        if self.resets() == before:
            raise Trouble("the model saw no reset")
        self.serves()

    def reset_under_a_daemon(self):
        pid = self.guest.daemon("under", self.device(0, self.backends[0]))
        self.guest.works("under")
        self.guest.must(f"echo 1 >/sys/bus/pci/devices/{self.guest.gpu(0)}/reset")
        if self.guest.run("gpuctl --runtime-dir /run/under --timeout 60 demo --mib 1", 90)[0] == 0:
            raise Trouble("a client was served by a device that had been reset")
        wait_until("gpuctl list to show it as lost", lambda: "lost" in self.guest.must("gpuctl --runtime-dir /run/under list"), 30)
        self.guest.end_daemon("under", pid, codes=(1,))
        self.serves()

    def bus_errors(self):
        return self.model.command("counters")["gpus"][0]["model"]["hubs.bus_errors"]

    def stray(self, where):
        """An engine goes to another IOVA than its page table says: the client is told, the guest's kernel and the daemon
        name the same page. That page."""
        pid = self.guest.daemon("stray", self.device(0, self.backends[0]))
        arguments = where()
        self.guest.must("dmesg -c >/dev/null")
        before = self.bus_errors()
        for hub in ("gfxhub0", "gfxhub1"):
            self.model.command(f"{hub}.wrong_iova", gpu=0, **arguments)
        code, text = self.guest.run("gpuctl --runtime-dir /run/stray demo --mib 1", 120)
        if code == 0:
            raise Trouble("the copy was done all the same")
        if self.bus_errors() == before:
            raise Trouble("the model got no error")
        # "DMAR: [DMA Read NO_PASID] Request device [01:00.0] fault addr 0x..."
        pattern = r"DMAR: .*Request device.*fault addr (?:0x)?([0-9a-f]+)"
        self.guest.kernel_says(pattern)
        line = wait_until("the daemon's line with the IOVA", lambda: self.guest.said("stray", "IOVA 0x"), 10)
        told = int(re.search(r"IOVA 0x([0-9a-f]+)", line).group(1), 16) >> 12
        refused = {int(at, 16) >> 12 for at in re.findall(pattern, self.guest.run("dmesg")[1])}
        if told not in refused:
            raise Trouble(f"the daemon says page {told:#x}, the kernel {sorted(map(hex, refused))}")
        # The hub that the client did not use may have misled the daemon's own engine, with which the device is lost.
        for hub in ("gfxhub0", "gfxhub1"):
            self.model.command(f"{hub}.wrong_iova", gpu=0, add=1, count=0)
        lost = "lost" in self.guest.must("gpuctl --runtime-dir /run/stray list")
        self.guest.end_daemon("stray", pid, codes=(1,) if lost else (0,))
        return told

    def mapped_pages(self):
        text = self.model.command("pci.mappings", gpu=0)["mappings"]
        ranges = [tuple(map(int, part.split("+"))) for part in str(text).split()]
        return {page for at, size in ranges for page in range(at >> 12, at + size >> 12)}

    def page_that_was_mapped(self):
        """Of a client that has left its daemon meanwhile."""
        client = self.guest.must("gpuctl --runtime-dir /run/stray demo --mib 64 >/tmp/earlier.log 2>&1 & echo $!").split()[-1]
        busy = set()
        while self.guest.run(f"kill -0 {client}")[0] == 0:
            busy |= self.mapped_pages()
        return max(wait_until("the client's memory to be unmapped", lambda: busy - self.mapped_pages(), 20))

    def formerly_valid(self):
        page = None

        def there():
            nonlocal page
            page = self.page_that_was_mapped()
            return {"to": hex(page << 12)}

        told = self.stray(there)
        if told != page:
            raise Trouble(f"page {told:#x} was refused, not {page:#x}")

    def bad_input(self):
        guest, address = self.guest, self.guest.gpu(0)
        with self.check("no such PCI device, and a name that is none"):
            guest.refused("pci:0000:77:00.0", "0000:77:00.0")
            guest.refused("pci:seven", "seven")
        with self.check("/dev/vfio without permission"):
            guest.refused(f"pci:{address}", "/dev/", "[Pp]ermi", user="nobody")
        with self.check("too little memory may be locked"):
            guest.must("chmod -R a+rwX /dev/vfio; [ ! -e /dev/iommu ] || chmod a+rw /dev/iommu")
            for backend in self.backends:
                guest.refused(self.device(0, backend), "RLIMIT_MEMLOCK", user="nobody", before="ulimit -l 64; ")
        with self.check("a second daemon for one device"):
            pid = guest.daemon("first", self.device(0, self.backends[0]))
            guest.refused(self.device(0, self.backends[0]), "in use|busy")
            guest.end_daemon("first", pid)
        with self.check("configuration space all ones"):
            self.model.command("device.gone", gpu=0)
            try:
                guest.refused(self.device(0, self.backends[0]), "all ones", patience=150)
            finally:
                self.model.command("device.gone", gpu=0, on=False)
            self.serves()
        with self.check("the device vanishes during bring-up"):
            self.vanishes()

    def vanishes(self):
        """Bring-ups, each with the device gone after another number of accesses to its registers."""
        where = set()
        for after in (1, 200, 1000, 2200, 3000):
            self.model.command("device.gone", gpu=0, after=after)
            try:
                line = self.guest.refused(self.device(0, self.backends[0]), "all ones.*device lost$")
            finally:
                self.model.command("device.gone", gpu=0, on=False)
            where.add(line.split(": ")[2])
        if len(where) < 4:
            raise Trouble(f"it was in {where} alone")
        self.serves()

    def lose(self, take_away):
        """A daemon with a client at work; the device is taken; the client is told, the daemon lets go. Its pid."""
        guest = self.guest
        pid = guest.daemon("loser", self.device(0, self.backends[0]))
        guest.must("(while gpuctl --runtime-dir /run/loser --timeout 100 demo --mib 4; do echo round; done; "
                   "echo exit) >/tmp/client.log 2>&1 &")
        guest.machine.wait_line("client", 1, "round", 100)
        take_away()
        guest.machine.wait_line("client", 1, "exit", 60)
        if not guest.said("client", "lost"):
            raise Trouble(f"the client was told: {last_line(guest.log('client').replace('exit', ''))}")
        wait_until("the daemon to let go of VFIO's descriptors",
                   lambda: not re.search("vfio|/dev/iommu", guest.run(f"ls -l /proc/{pid}/fd")[1]), 20)
        return pid

    def lost_by(self, take_away):
        """As lose(); then it shows the device as lost, and ends."""
        pid = self.lose(take_away)
        self.shows_lost("loser")
        self.guest.end_daemon("loser", pid, codes=(1,))

    def shows_lost(self, name):
        text = self.guest.must(f"gpuctl --runtime-dir /run/{name} list")
        if "lost" not in text:
            raise Trouble(f"gpuctl list does not show it as lost: {last_line(text)}")

    def lost_before(self):
        """Its flushes are not acknowledged any more. It is still there, so the daemon keeps it, until it has to go."""
        guest = self.guest
        pid = guest.daemon("broken", self.device(0, self.backends[0]))
        guest.works("broken")
        for hub in ("gfxhub0", "gfxhub1", "mmhub0"):
            self.model.command(f"{hub}.late_ack", gpu=0, us=3600_000_000, count=1000)
        code, text = guest.run("gpuctl --runtime-dir /run/broken --timeout 60 demo --mib 1", 120)
        if code == 0 or "no acknowledgement" not in text:
            raise Trouble(f"the client was told: {last_line(text)}")
        self.shows_lost("broken")
        guest.unbind(guest.gpu(0))
        guest.end_daemon("broken", pid, codes=(1,))
        guest.bind(guest.gpu(0))
        self.serves()

    def falls_off_the_bus(self):
        try:
            self.lost_by(lambda: self.model.command("device.gone", gpu=0))
        finally:
            self.model.command("device.gone", gpu=0, on=False)
        self.serves()

    def taken_out(self):
        address = self.guest.gpu(0)
        try:
            self.lost_by(lambda: self.guest.must(f"echo 1 >/sys/bus/pci/devices/{address}/remove", 60))
            if not self.guest.removed(address):
                raise Trouble("the kernel still has it")
        finally:
            self.clean_up()
            self.guest.must("echo 1 >/sys/bus/pci/rescan", 60)
            self.guest.bind(self.guest.gpu(0))
        self.serves()

    # QEMU 11.1.3 aborts in the end of a vfio-user-pci device, which comes when the guest's kernel has switched the
    # slot's power off: what was said until then is in the console's file.
    QEMU_DIES = "memory_region_del_subregion"

    def unplugged(self):
        guest, console = self.guest, "/dev/ttyS0"
        said = lambda words: wait_until(f"\"{words}\" on the console", lambda: words in self.machine.console(), 60)
        guest.must(f"gpuumd --device {self.device(0, self.backends[0])} --runtime-dir /run/plug --no-same-host >{console} 2>&1 &")
        said("/run/plug/gpuumd.sock")
        guest.must(f"(while gpuctl --runtime-dir /run/plug --timeout 100 demo --mib 4 >{console} 2>&1; do echo round; done "
                   f">{console}; echo client ended >{console}) &")
        said("round")
        self.machine.qmp("device_del", id="gpu0")
        said("lost: the kernel wants the device back")
        try:
            said("client ended")
            wait_until("the guest's kernel to take the device out", lambda: guest.removed(guest.gpu(0)), 30)
        except (Trouble, OSError):
            wait_until("QEMU's end", lambda: self.machine.process.poll() is not None, 5)
            if self.QEMU_DIES not in (self.directory / "qemu.log").read_text(errors="replace"):
                raise


class Bench(Boot):
    """No checks: gpuumd-bench in the guest, and beside it on this side with the same model by vfio-user."""

    def checks(self):
        self.binds()
        outside = [f"vfio-user:{self.model.socket(n)}" for n in self.inside]
        inside = [self.device(n, self.backends[0]) for n in self.inside]
        code, text = self.guest.run(self.command("/gpuumd/bin/", inside), 1200)
        (self.directory / "bench-guest.txt").write_text(text)
        print(f"== in the guest, exit code {code}\n{text}", flush=True)
        self.machine.end()  # a model has one client at a time
        done = subprocess.run(self.command(f"{self.rig.bin}/", outside), shell=True, text=True, timeout=1200,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        (self.directory / "bench-outside.txt").write_text(done.stdout)
        print(f"== outside, exit code {done.returncode}\n{done.stdout}", flush=True)

    def command(self, place, devices):
        return f"{place}gpuumd-bench {self.rig.bench} {' '.join('--device ' + name for name in devices)}"


BOOTS = {"intel": Whole, "pod": Pod, "virtio": Virtio, "amd": Amd, "INTx": Intx, "no IOMMU": NoIommu}
