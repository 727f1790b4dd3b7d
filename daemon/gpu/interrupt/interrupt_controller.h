// The interrupt handler block: set-up, and the loop that takes vectors out of its rings
// (docs/hardware/ih.md).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>

#include "base/address.h"
#include "base/result.h"
#include "daemon/gpu/bringup/bring_up.h"
#include "daemon/gpu/interrupt/interrupt_ring.h"
#include "daemon/gpu/interrupt/page_fault.h"
#include "daemon/gpu/interrupt/retry_faults.h"
#include "daemon/gpu/registers/iv.h"
#include "daemon/gpu/registers/osssys.h"
#include "daemon/gpu/registers/register_io.h"
#include "daemon/reactor/reactor.h"
#include "vfio/pci_device.h"

namespace gpuumd {

// Memory that the interrupt handler writes, all in one space: bus addresses or VMID 0. Pinned until
// the device's bus mastering is off.
struct InterruptMemory {
  static constexpr std::uint32_t kWriteBackBytes = 64;

  osssys::McSpace space = osssys::McSpace::kBus;
  DeviceMemory ring0;       // kInterruptRingBytes, aligned to 256 bytes
  DeviceMemory ring1;       // the same
  DeviceMemory write_back;  // kWriteBackBytes, aligned to them
  base::Iova dummy_page;    // for the dummy read; always a bus address
};

struct InterruptCounters {
  std::uint64_t vectors = 0;  // from both rings
  std::uint64_t ring1_vectors = 0;
  std::uint64_t unhandled = 0;  // of a client and source that nobody handles
  std::uint64_t overflows = 0;
  std::uint64_t bad_pointers = 0;  // a write pointer that is no multiple of 32
  std::uint64_t bad_faults = 0;    // a fault from a hub that is not there
  std::uint64_t faults = 0;        // final ones
  std::uint64_t full_batches = 0;  // turns that ended with vectors left
};

// Device thread. Handlers run inside poll(); they may call everything here but poll().
class InterruptController {
 public:
  using Handler = std::move_only_function<void(const InterruptVector&)>;
  using FaultHandler = std::move_only_function<void(const PageFault&)>;
  static constexpr unsigned kBatch = 256;  // vectors a turn

  // Everything referred to must outlive the controller.
  InterruptController(const RegisterBlock& osssys, const RegisterBlock& nbio, vfio::Bar& doorbells,
                      const InterruptMemory& memory, HubSet hubs);
  InterruptController(const InterruptController&) = delete;

  // Who gets the vectors of a client and source. One each; a second call takes the first's place.
  // Page faults and the rings' own vectors are handled here and not passed on.
  void handle(IvClient client, std::uint8_t source, Handler handler);
  // Final faults, and retry faults' arrival (so that the pipeline looks at retry_faults()).
  void on_fault(FaultHandler handler) { on_fault_ = std::move(handler); }
  // Vectors were lost: whoever waits for one has to look for itself.
  void on_overflow(std::move_only_function<void()> handler) { on_overflow_ = std::move(handler); }

  // The whole set-up sequence, bus mastering of `device` included. kDeviceLost.
  base::Result<void> set_up(vfio::PciDevice& device);
  // Rings off, interrupt off, retry CAM off. Memory may still be written until bus mastering is
  // off.
  void tear_down();
  // set_up() and tear_down() as a step of bring-up.
  Step step(vfio::PciDevice& device);

  // Takes at most kBatch vectors out. True when there were any.
  bool poll();
  // poll() as a poller of the reactor. No arming is needed: the interrupt fires again by itself
  // when the ring is not empty at the time the read pointer is published.
  Poller poller();

  RetryFaults& retry_faults() { return retry_faults_; }

  // A place in ring 0. Every vector that the device had raised when watermark() was called has been
  // handled once passed() says so. Reads a register.
  struct Watermark {
    std::uint64_t at = 0;
  };
  Watermark watermark();
  bool passed(Watermark mark) const { return ring0_.consumed() >= mark.at; }

  // Which PASID the vectors of a VMID of that hub carry from now on.
  void set_pasid(HubKind kind, unsigned instance, base::Vmid vmid, base::Pasid pasid);

  const InterruptCounters& counters() const { return counters_; }

 private:
  void disable_rings();
  void program_ring(unsigned index, const InterruptRing& ring);
  void set_rates();
  void route_to_ring1();
  void enable_retry_cam();
  void enable_rings();

  void acknowledge(std::uint16_t cam_index);

  std::uint32_t producer();
  std::uint32_t recover(std::uint32_t wptr);
  unsigned drain(InterruptRing& ring, unsigned budget);
  void publish(const InterruptRing& ring, unsigned index);
  void dispatch(const InterruptVector& vector);
  void page_fault(const InterruptVector& vector);
  void ring1_moved(const InterruptVector& vector);
  std::uint32_t checked(std::uint32_t raw);

  RegisterBlock osssys_;
  RegisterBlock nbio_;
  vfio::Bar& doorbells_;
  InterruptMemory memory_;
  HubSet hubs_;
  InterruptRing ring0_;
  InterruptRing ring1_;
  bool running_ = false;
  std::unordered_map<std::uint16_t, Handler> handlers_;  // by client << 8 | source
  FaultHandler on_fault_;
  std::move_only_function<void()> on_overflow_;
  InterruptCounters counters_;
  RetryFaults retry_faults_;
};

}  // namespace gpuumd
