// A PCI device that user space owns. The driver is written once against this interface; backends
// differ only in opening, mapping and arming. Nothing here knows a GPU.
//
// Threads: the device's reactor calls everything; map_dma() and unmap_dma() may at the same time be
// called by one other thread (the memory worker). Every call ends within its deadline.
//
// A device that does not answer, answers nonsense or has gone is *lost*: lost() is true from then
// on, reads give all ones, writes are dropped, and every call that can fail gives kDeviceLost.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/fd.h"
#include "base/result.h"

namespace vfio {

enum class BarIndex : std::uint8_t { k0, k1, k2, k3, k4, k5 };

enum class Rights : std::uint8_t { kRead = 1, kWrite = 2, kReadWrite = 3 };  // the device's

// How long a trapped access may take before the device counts as lost.
inline constexpr std::chrono::milliseconds kTrapDeadline{100};

// A part of a BAR that is plain memory of this process: [offset, offset + size) of the BAR.
struct MappedArea {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::byte* data = nullptr;
};

// One BAR. Accesses are naturally aligned and inside size(): the caller's duty, asserted. Where an
// area is mapped an access is a single load or store of that width; elsewhere it is trapped, i.e. a
// round trip with kTrapDeadline (a trapped write does not wait where the backend can post it).
class Bar {
 public:
  virtual ~Bar() = default;

  virtual std::uint64_t size() const = 0;
  virtual std::span<const MappedArea> mapped() const = 0;

  virtual std::uint32_t read32(std::uint64_t offset) = 0;  // all ones when the device is lost
  virtual std::uint64_t read64(std::uint64_t offset) = 0;
  virtual void write32(std::uint64_t offset, std::uint32_t value) = 0;
  virtual void write64(std::uint64_t offset, std::uint64_t value) = 0;

  // A doorbell: a store that orders after every earlier store of this thread to system memory, and
  // after which the device is awake. Not the same as write64(), which promises neither.
  virtual void ring_doorbell32(std::uint64_t offset, std::uint32_t value) = 0;
  virtual void ring_doorbell64(std::uint64_t offset, std::uint64_t value) = 0;

  // Bulk copy between the BAR and memory, any alignment, in aligned accesses of up to 64 bits. Slow
  // where it is trapped; used for the discovery table and self-tests.
  virtual base::Result<void> read(std::uint64_t offset, std::span<std::byte> to) = 0;
  virtual base::Result<void> write(std::uint64_t offset, std::span<const std::byte> from) = 0;
};

// What IOVAs the backend can map: from the kernel's IOMMU, or the peer's limits.
struct IovaRange {
  base::Iova first;
  base::Iova last;  // inclusive
};
struct IovaLimits {
  std::vector<IovaRange> usable;
  std::uint64_t page_sizes = base::kPageSize;  // bit mask
  std::uint64_t max_mappings = 65535;
};

struct DeviceIdentity {
  std::string name;  // as given to open_device(): "vfio-user:/run/gpusim/0.sock"
  std::uint16_t vendor = 0;
  std::uint16_t device = 0;
  std::uint32_t class_code = 0;  // 24 bits
  std::uint8_t revision = 0;
  // To be shown, not to be asked: what it was opened by, "iommufd", "group" or "vfio-user", and in
  // a line why not by what is usually taken. The latter is empty when it was, or was asked for.
  std::string backend;
  std::string backend_remark;
};

class PciDevice {
 public:
  virtual ~PciDevice() = default;

  virtual const DeviceIdentity& identity() const = 0;
  virtual bool lost() const = 0;  // any thread
  // Why, for a user: "the kernel wants the device back (unbind or hot-unplug)". Empty while it is
  // not lost. Any thread.
  virtual std::string lost_why() const = 0;

  // Configuration space; `width` is 1, 2 or 4.
  virtual base::Result<std::uint32_t> read_config(std::uint32_t offset, unsigned width) = 0;
  virtual base::Result<void> write_config(std::uint32_t offset, unsigned width,
                                          std::uint32_t value) = 0;

  // kNotFound for a BAR that the device does not have. The Bar must not outlive the device.
  virtual base::Result<std::unique_ptr<Bar>> open_bar(BarIndex index) = 0;

  virtual const IovaLimits& iova_limits() const = 0;

  // Lets the device reach [offset, offset + size) of the memfd `fd` at [at, at + size). All three
  // are multiples of 4 KiB. kExists when part of the range is mapped, kOutOfRange outside
  // iova_limits(), kLimit when max_mappings is reached. Any of the device's two threads.
  virtual base::Result<void> map_dma(int fd, std::uint64_t offset, std::uint64_t size,
                                     base::Iova at, Rights rights) = 0;
  // Exactly a range that map_dma() mapped, kNotFound otherwise. After it returns the device cannot
  // reach the memory any more.
  virtual base::Result<void> unmap_dma(base::Iova at, std::uint64_t size) = 0;

  // Arms MSI-X vectors 0..count-1 (MSI where the device has no MSI-X) and gives an eventfd for
  // each, in order. kUnsupported when the device has fewer. The device holds its own duplicates
  // until disarm or its end.
  virtual base::Result<std::vector<base::UniqueFd>> arm_msix(unsigned count) = 0;
  // Switches off what arm_msix() or arm_intx() has switched on.
  virtual base::Result<void> disarm_msix() = 0;
  // The interrupt pin, where there is no MSI-X: an eventfd. The line is a level and may be shared:
  // after each signal it stays masked until unmask_intx(), which comes after the device's own cause
  // is cleared; INTx Disable of the command register is the driver's to clear. kUnsupported when
  // there is no pin. Of MSI-X and INTx one is armed at a time: kBusy.
  virtual base::Result<base::UniqueFd> arm_intx() = 0;
  virtual base::Result<void> unmask_intx() = 0;  // kInvalidArgument when it is not armed

  // kUnsupported, with the reason, when the device has no way or the policy for this part forbids
  // all that it has: the driver then goes on without. kDeviceLost also when it is taken away
  // meanwhile. Else afterwards what is behind the BARs is as after power-on, interrupts are
  // disarmed (they may be when the reset fails, too), DMA mappings are as they were; of
  // configuration space the kernel keeps what it was, a server of vfio-user need not.
  virtual base::Result<void> reset() = 0;

  // A descriptor to poll for input, or -1: when readable, call handle_events(). It serves what the
  // device or the kernel asks of us (vfio-user DMA_READ/DMA_WRITE, give the device back) and
  // notices its end. Reactor thread.
  virtual int event_fd() const = 0;
  virtual void handle_events() = 0;

  // Lets go of all that keeps the kernel or the server from taking the device: DMA mappings,
  // interrupts, every descriptor, the mappings of BARs. Addresses of MappedArea stay readable and
  // writable until their Bar goes: all ones at first, and what is written goes nowhere. The device
  // is lost afterwards, event_fd() is -1: stop polling it before. A kernel that wants a device back
  // (an unbind, a hot-unplug) waits for this. Reactor thread; waits for a map_dma() or unmap_dma()
  // under way. Idempotent.
  virtual void release() = 0;
};

// Opens the device that a name stands for: "vfio-user:PATH", or "pci:0000:03:00.0" and its options
// (vfio/kernel/open_kernel.h) for a device behind the kernel's VFIO. kInvalidArgument for a name of
// no known form (the text lists the forms), kNotFound when nothing is there, kBusy when it is in
// use, for a second on end (the kernel's: three).
// Errors do not repeat the name: who gave it says it.
// The only place that chooses a backend. ("sim[:options]" is composed by the daemon's main, which
// starts the model and hands over the socket with connect_vfio_user().)
base::Result<std::unique_ptr<PciDevice>> open_device(const std::string& name);

}  // namespace vfio
