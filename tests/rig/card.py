"""One card with two functions behind one root port: what the kernel then makes of a function's reset methods."""
import json

from binding import expect
from boots import Boot
from machine import Machine, Trouble


class CardMachine(Machine):
    @staticmethod
    def gpu_device(n, path):
        return json.dumps({"driver": "vfio-user-pci", "id": f"gpu{n}", "bus": "port0", "addr": f"0.{n}",
                           "multifunction": True, "socket": {"type": "unix", "path": str(path)}})


class Card(Boot):
    machine_type = CardMachine

    def checks(self):
        first, second = self.guest.must("cd /sys/bus/pci/devices/0000:00:10.0 && ls -d 0000:??:??.?").split()
        with self.check("function 0 says a method that the kernel has no more"):
            methods = self.methods(first)
            if "bus" not in methods.split() or self.guest.run(self.writing(first, methods))[0] == 0:
                raise Trouble(f"reset methods: {methods}, and the kernel takes them")
        with self.check("gpuctl unbind --yes gives both functions back"):
            self.gpuctl(f"bind --yes {first} {second}")
            text = self.gpuctl(f"unbind --yes {first} {second}")
            self.given_back(first, second)
            expect(self.methods(first), methods, "reset methods")
            if "WARNING" in text:
                raise Trouble(text)
        with self.check("gpuctl unbind --yes: methods that cannot be restored are a warning"):
            self.gpuctl(f"bind --yes {first} {second}")
            self.guest.must(self.writing(first, "flr"))
            text = self.gpuctl(f"unbind --yes {first} {second}")
            self.given_back(first, second)
            if f'its reset methods "{methods}" are not restored' not in text:
                raise Trouble(text)
            # The kernel's own choice, made anew.
            expect(self.methods(first), " ".join(m for m in methods.split() if m != "bus"), "reset methods")

    def gpuctl(self, arguments):
        code, text = self.guest.run(f"gpuctl {arguments}", 120)
        if code != 0:
            raise Trouble(f"gpuctl {arguments}: exit code {code}: {text}")
        return text

    def methods(self, address):
        return self.guest.must(f"cat /sys/bus/pci/devices/{address}/reset_method")

    @staticmethod
    def writing(address, methods):
        return f"echo {methods} >/sys/bus/pci/devices/{address}/reset_method"

    def given_back(self, *addresses):
        for address in addresses:
            directory = f"/sys/bus/pci/devices/{address}"
            expect(self.guest.run(f"readlink {directory}/driver")[1], "", f"driver of {address}")
            expect(self.guest.must(f"cat {directory}/driver_override"), "(null)", f"override of {address}")
