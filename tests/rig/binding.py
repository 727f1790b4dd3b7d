"""gpuctl devices, doctor, bind and unbind against a real kernel. Leaves the GPUs as they were: without a driver."""
import json

from machine import Trouble, wait_until


def expect(found, wanted, what):
    if found != wanted:
        raise Trouble(f"{what}: {found!r}, not {wanted!r}")


class Binding:
    def __init__(self, boot):
        self.boot, self.guest = boot, boot.guest
        self.gpus = [self.guest.gpu(n) for n in boot.inside]

    def gpuctl(self, arguments, code=0, patience=120):
        got, text = self.guest.run(f"gpuctl {arguments}", patience)
        if got != code:
            raise Trouble(f"gpuctl {arguments}: exit code {got}, not {code}: {text}")
        return text

    def document(self, arguments, code=0):
        return json.loads(self.gpuctl(f"{arguments} --json", code))

    def device(self, address):
        return self.document(f"devices --device {address}")["devices"][0]

    def driver(self, address):
        return self.guest.run(f"readlink /sys/bus/pci/devices/{address}/driver")[1].rpartition("/")[2]

    def checks(self):
        check = self.boot.check
        with check("gpuctl doctor finds no problem here"):
            doctor = self.document("doctor")
            expect([c for c in doctor["checks"] if c["level"] == "problem"], [], "problems")
            levels = {c["name"]: c["level"] for c in doctor["checks"]}
            for name in ("iommu", "interrupt remapping", "vfio-pci", "vfio_iommu_type1", "memlock", "no-IOMMU mode"):
                expect(levels[name], "ok", name)
        with check("gpuctl devices shows both GPUs, bindable"):
            self.shows_both()
        with check("gpuctl bind shows a plan and writes nothing without --yes"):
            plan = self.gpuctl(f"bind {' '.join(self.gpus)}")
            if "drivers_probe" not in plan or self.driver(self.gpus[0]):
                raise Trouble(plan)
        with check("gpuctl bind --yes binds both, and they are ready"):
            self.gpuctl(f"bind --yes {' '.join(self.gpus)}")
            for gpu in self.gpus:
                expect(self.driver(gpu), "vfio-pci", gpu)
                expect(self.device(gpu)["state"], "ready", self.device(gpu)["why"])
                control = f"/sys/bus/pci/devices/{gpu}/power/control"  # a kernel without CONFIG_PM has none
                expect(self.guest.must(f"[ ! -e {control} ] || cat {control}") or "on", "on", "power control")
        for backend in self.boot.backends:
            with check(f"gpuctl unbind refuses what a daemon has, by {backend}, and names it"):
                self.daemon_keeps(backend)
        with check("gpuctl unbind gives up a write that the kernel keeps, and the device comes free later"):
            self.hung_unbind()
        with check("gpuctl unbind --yes gives both back"):
            self.gpuctl(f"bind --yes {' '.join(self.gpus)}")
            self.gpuctl(f"unbind --yes {' '.join(self.gpus)}")
            for gpu in self.gpus:
                expect(self.driver(gpu), "", gpu)
                expect(self.device(gpu)["state"], "bindable", gpu)
                expect(self.guest.must(f"cat /sys/bus/pci/devices/{gpu}/driver_override"), "(null)", "override")

    def shows_both(self):
        devices = self.document("devices")["devices"]
        expect([d["address"] for d in devices], sorted(self.gpus), "addresses")
        for device in devices:
            expect(device["state"], "bindable", device["why"])
            expect(device["pci_id"], "1002:75f0", "PCI id")
            sizes = {bar["index"]: bar["bytes"] for bar in device["bars"]}
            expect(sizes, {0: 64 << 20, 2: 2 << 20, 5: 512 << 10}, "BARs")
            if "flr" not in device["reset_methods"] and "bus" not in device["reset_methods"]:
                raise Trouble(f"reset methods: {device['reset_methods']}")
            expect(device["iommu_group"] is None, False, "has no group")
            expect(device["unread"], [], "unread")

    def daemon_keeps(self, backend):
        gpu = self.gpus[0]
        pid = self.guest.daemon("keeper", self.boot.device(0, backend))
        device = self.device(gpu)
        expect(device["state"], "in use", device["why"])
        if pid not in [holder["pid"] for holder in device["holders"]]:
            raise Trouble(f"holders: {device['holders']}, not {pid}")
        text = self.gpuctl(f"unbind --yes {gpu}", 8)
        if f"gpuumd (pid {pid}" not in text:
            raise Trouble(text)
        expect(self.driver(gpu), "vfio-pci", gpu)
        self.guest.end_daemon("keeper", pid)
        expect(self.device(gpu)["state"], "ready", gpu)

    def hung_unbind(self):
        """A daemon that is stopped keeps the device; gpuctl with an empty /proc cannot see it."""
        gpu = self.gpus[0]
        self.guest.must("mkdir -p /tmp/blind/proc && ln -sfn /sys /tmp/blind/sys && ln -sfn /dev /tmp/blind/dev")
        pid = self.guest.daemon("stopped", self.boot.device(0, self.boot.backends[0]))
        self.guest.must(f"kill -STOP {pid}")
        text = self.gpuctl(f"unbind --yes {gpu} --sysroot /tmp/blind --timeout 3", 4)
        if "unbind from vfio-pci" not in text or "has not answered" not in text:
            raise Trouble(text)
        # Nothing that gpuctl reads waits for the lock for ever.
        self.gpuctl("devices")
        self.guest.must(f"kill -CONT {pid}")
        wait_until("the kernel to unbind", lambda: self.driver(gpu) == "", 30)
        self.guest.end_daemon("stopped", pid, codes=(1,))

    def without_iommu(self):
        """On a machine without an IOMMU: the reason and the remedy; with VFIO's no-IOMMU mode, a warning."""
        check, gpu = self.boot.check, self.gpus[0]
        with check("gpuctl doctor names the missing IOMMU and what to do"):
            checks = {c["name"]: c for c in self.document("doctor", 1)["checks"]}
            expect(checks["iommu"]["level"], "problem", "iommu")
            if not checks["iommu"]["remedy"]:
                raise Trouble("no remedy")
        with check("gpuctl bind refuses a device without an IOMMU group"):
            text = self.gpuctl(f"bind --yes {gpu}", 1)
            if "no IOMMU group" not in text or self.driver(gpu):
                raise Trouble(text)
        with check("gpuctl bind warns of no-IOMMU mode, and devices counts it as blocked"):
            self.guest.must("echo 1 >/sys/module/vfio/parameters/enable_unsafe_noiommu_mode")
            text = self.gpuctl(f"bind --yes {gpu}")
            if "can overwrite all memory" not in text:
                raise Trouble(text)
            device = self.device(gpu)
            expect((device["state"], device["no_iommu"]), ("blocked", True), device["why"])
            checks = {c["name"]: c["level"] for c in self.document("doctor", 1)["checks"]}
            expect(checks["no-IOMMU mode"], "problem", "no-IOMMU mode")
            self.gpuctl(f"unbind --yes {gpu}")
            expect(self.driver(gpu), "", gpu)
