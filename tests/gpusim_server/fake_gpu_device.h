// A GPU of a few registers, for tests of the server: it records what reaches it, and its engine
// does what a test tells it to.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/shared_memory.h"
#include "tools/gpusim/model/gpu_device.h"

namespace gpusim::testing {

class FakeGpuDevice final : public GpuDevice {
 public:
  static constexpr std::uint64_t kVram = std::uint64_t{8} << 20;
  static constexpr std::uint64_t kRegisters = std::uint64_t{512} << 10;
  static constexpr std::uint64_t kDoorbells = std::uint64_t{2} << 20;
  static constexpr std::uint64_t kFlushPage = 0x5000;
  static constexpr std::uint32_t kTable = 0x41000;
  static constexpr std::uint32_t kPba = 0x42000;

  // `intx`: a function with INTA in place of MSI-X, and without FLR.
  explicit FakeGpuDevice(bool intx = false);

  PciIdentity identity() const override { return {}; }
  std::uint64_t bar_size(Bar bar) const override;
  BarMemory bar_memory(Bar bar) const override;
  MsixLayout msix() const override { return {intx_ ? 0u : 9u, kTable, kPba}; }
  PciFeatures features() const override { return {intx_, !intx_}; }
  void attach(HostBus& bus) override;
  void detach() override;
  void reset() override;
  std::uint32_t read_register(std::uint64_t offset) override;
  void write_register(std::uint64_t offset, std::uint32_t value) override;
  void ring_doorbell(std::uint64_t offset, std::uint64_t value, unsigned width) override;
  void read_vram_bar(std::uint64_t offset, std::span<std::byte> to) override;
  void write_vram_bar(std::uint64_t offset, std::span<const std::byte> from) override;
  bool look() override;
  bool stored() const override;
  void limit_step(std::size_t bytes) override { step_limit = bytes; }
  bool step() override;
  bool waiting() const override { return waiting_; }
  bool gone() const override { return gone_; }

  // What the next step() does, with the bus of the client (null: none).
  void on_step(std::function<void(HostBus*)> job) { jobs_.push_back(std::move(job)); }
  void set_waiting(bool waiting) { waiting_ = waiting; }
  void set_gone(bool gone) { gone_ = gone; }

  struct Doorbell {
    std::uint64_t offset;
    std::uint64_t value;
    unsigned width;  // 0: found in the mapped page
    bool operator==(const Doorbell&) const = default;
  };
  std::vector<Doorbell> doorbells;
  std::map<std::uint64_t, std::uint32_t> registers;
  std::vector<std::string> calls;  // "read 16", "doorbell 64", "attach", ...
  unsigned resets = 0;
  std::size_t step_limit = 0;                // 0: none was set
  std::atomic<unsigned> doorbells_seen = 0;  // for a test on another thread
  std::uint64_t steps = 0;

  HostBus* bus() const { return bus_; }
  std::byte* vram() const { return vram_map_.data(); }

 private:
  const bool intx_;
  base::UniqueFd vram_;
  base::UniqueFd doorbell_memory_;
  base::UniqueFd register_memory_;
  base::Mapping vram_map_;
  base::Mapping doorbell_page_;
  std::uint64_t doorbell(std::size_t index) const;

  std::vector<std::uint64_t> seen_;
  std::vector<std::function<void(HostBus*)>> jobs_;
  HostBus* bus_ = nullptr;
  bool waiting_ = false;
  bool gone_ = false;
};

}  // namespace gpusim::testing
