// The interrupt handler (OSSSYS): two rings, the retry CAM, the PASID tables
// (docs/hardware/ih.md). Vectors are queued by raise() and written to memory by step(), because
// host memory is reached from step() only.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>

#include "tools/gpusim/model/bases.h"
#include "tools/gpusim/model/doorbells.h"
#include "tools/gpusim/model/host_bus.h"
#include "tools/gpusim/model/interrupt_ring.h"
#include "tools/gpusim/model/options.h"
#include "tools/gpusim/model/ports.h"
#include "tools/gpusim/model/register_file.h"
#include "tools/gpusim/model/retry_cam.h"
#include "tools/gpusim/model/types.h"

namespace gpusim {

class InterruptHandler : public InterruptSink, public DoorbellConsumer, public Steppable {
 public:
  // Defines the registers. All references must outlive it.
  InterruptHandler(RegisterFile& registers, const Bases& bases, const GpuOptions& options,
                   const ModelClock& clock);

  // Host memory and interrupts while a client is attached, else null.
  void set_host(HostBus* host) { host_ = host; }
  // MMHUB 0, for rings in MC_SPACE 4; set once at assembly.
  void set_address_space(AddressSpace& space) { space_ = &space; }

  bool raise(const Iv& iv) override;
  void raise_retry_fault(unsigned hub, std::uint64_t page, const Iv& iv) override;
  std::uint16_t pasid(bool mmhub, std::uint8_t vmid) const override;

  bool doorbell(std::uint32_t dword, std::uint64_t value, bool wide) override;

  bool step() override;
  bool waiting() const override;

  // After RegisterFile::reset(): forgets queued vectors and the CAM (D56).
  void reset();

  // Scenarios. A filter sees each vector before it is queued and says what becomes of it.
  struct Verdict {
    bool drop = false;
    ModelTime delay{};        // held back so long; later vectors may overtake it
    unsigned duplicates = 0;  // raised so many times more
  };
  using Filter = std::function<Verdict(const Iv& iv)>;
  void set_filter(Filter filter) { filter_ = std::move(filter); }

  struct Counters {
    std::uint64_t raised = 0;   // accepted into a queue
    std::uint64_t written = 0;  // reached a ring
    std::uint64_t off = 0;      // refused: ring 0 is not enabled
    std::uint64_t dropped_scenario = 0;
    std::uint64_t lost_writes = 0;  // the memory of a ring or of the write-back word refused
    std::uint64_t overflows = 0;
    std::uint64_t msis = 0;
    std::uint64_t self_interrupts = 0;
    std::uint64_t bad_pointers = 0;  // a read pointer that is no multiple of 32
  };
  const Counters& counters() const { return counters_; }
  const RetryCam::Counters& cam_counters() const { return cam_.counters(); }
  std::size_t queued() const;

 private:
  struct Delayed {
    ModelTime due;
    IvImage image;
  };
  void define_ring(unsigned ring, std::uint32_t first);
  void define_ring0_only();
  void define_tables(std::uint64_t seed);
  void define_cam();
  void define_status(std::uint64_t seed);
  RegisterFile::Register& define(std::uint32_t offset, const std::string& name);
  void write_cntl(unsigned ring, std::uint32_t value);
  void write_rptr(unsigned ring, std::uint32_t value);

  bool routed_to_ring1(std::uint8_t client, std::uint8_t source) const;
  void enqueue(const IvImage& image);
  bool release_delayed();
  bool repeat_unacknowledged();
  bool deliver(unsigned ring);
  bool write_memory(const InterruptRing& ring, std::uint64_t address,
                    std::span<const std::byte> bytes);
  void write_back();
  bool queue_self_interrupt();
  void announce_write();
  bool announce_rest();
  std::uint32_t status() const;

  RegisterFile& registers_;
  std::uint32_t base_;
  const ModelClock& clock_;
  HostBus* host_ = nullptr;
  AddressSpace* space_ = nullptr;

  std::array<InterruptRing, 2> rings_;
  std::array<std::deque<IvImage>, 2> queues_;
  std::deque<Delayed> delayed_;
  RetryCam cam_;
  IvImage last_{};
  bool armed_ = true;          // the next vector on ring 0 may raise the MSI
  bool self_pending_ = false;  // ring 1 has news that ring 0 does not carry yet
  bool writing_ = false;       // inside an access of our own
  Filter filter_;
  Counters counters_;

  std::array<RegisterFile::Register*, 16> lut_{};
  std::array<RegisterFile::Register*, 16> lut_mm_{};
  std::array<std::uint32_t, 8> ring1_routes_{};
  std::uint32_t cam_doorbell_ = 0;
  std::uint32_t cntl2_ = 0;
};

}  // namespace gpusim
