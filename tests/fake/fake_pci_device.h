// A PCI device whose configuration space and BARs are memory of the test.
#pragma once

#include <sys/eventfd.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "vfio/pci_device.h"

namespace fake {

// A BAR as plain memory. Doorbells are recorded, and stored like the rest.
class FakeBar : public vfio::Bar {
 public:
  struct Doorbell {
    std::uint64_t offset = 0;
    std::uint64_t value = 0;
    friend bool operator==(const Doorbell&, const Doorbell&) = default;
  };
  struct State {
    std::vector<std::byte> bytes;
    std::vector<Doorbell> doorbells;
    std::function<void(std::uint64_t offset, std::uint64_t value)> on_write;
    std::function<void(std::uint64_t offset, std::uint64_t value)> on_doorbell;
  };

  explicit FakeBar(std::uint64_t size) : state_(std::make_shared<State>()) {
    state_->bytes.resize(size);
  }
  explicit FakeBar(std::shared_ptr<State> state) : state_(std::move(state)) {}

  State& state() { return *state_; }

  std::uint64_t size() const override { return state_->bytes.size(); }
  std::span<const vfio::MappedArea> mapped() const override { return {}; }
  std::uint32_t read32(std::uint64_t offset) override { return load<std::uint32_t>(offset); }
  std::uint64_t read64(std::uint64_t offset) override { return load<std::uint64_t>(offset); }
  void write32(std::uint64_t offset, std::uint32_t value) override { store(offset, value); }
  void write64(std::uint64_t offset, std::uint64_t value) override { store(offset, value); }
  void ring_doorbell32(std::uint64_t offset, std::uint32_t value) override { ring(offset, value); }
  void ring_doorbell64(std::uint64_t offset, std::uint64_t value) override { ring(offset, value); }
  base::Result<void> read(std::uint64_t offset, std::span<std::byte> to) override {
    std::memcpy(to.data(), state_->bytes.data() + offset, to.size());
    return {};
  }
  base::Result<void> write(std::uint64_t offset, std::span<const std::byte> from) override {
    std::memcpy(state_->bytes.data() + offset, from.data(), from.size());
    return {};
  }

 private:
  template <class T>
  T load(std::uint64_t offset) {
    T value;
    std::memcpy(&value, state_->bytes.data() + offset, sizeof value);
    return value;
  }
  template <class T>
  void store(std::uint64_t offset, T value) {
    std::memcpy(state_->bytes.data() + offset, &value, sizeof value);
    if (state_->on_write) state_->on_write(offset, value);
  }
  void ring(std::uint64_t offset, std::uint64_t value) {
    state_->doorbells.push_back({offset, value});
    if (state_->on_doorbell) state_->on_doorbell(offset, value);
  }

  std::shared_ptr<State> state_;
};

class FakePciDevice : public vfio::PciDevice {
 public:
  FakePciDevice() : config(256) {
    who.name = "fake";
    who.vendor = 0x1002;
    who.device = 0x75F0;
    who.class_code = 0x120000;
  }

  std::shared_ptr<FakeBar::State> add_bar(vfio::BarIndex index, std::uint64_t size) {
    auto state = std::make_shared<FakeBar::State>();
    state->bytes.resize(size);
    bars[index] = state;
    return state;
  }

  const vfio::DeviceIdentity& identity() const override { return who; }
  bool lost() const override { return is_lost; }
  std::string lost_why() const override { return is_lost ? why : ""; }
  base::Result<std::uint32_t> read_config(std::uint32_t offset, unsigned width) override {
    std::uint32_t value = 0;
    if (is_lost)
      std::memset(&value, 0xFF, width);
    else
      std::memcpy(&value, config.data() + offset, width);
    return value;
  }
  base::Result<void> write_config(std::uint32_t offset, unsigned width,
                                  std::uint32_t value) override {
    if (is_lost) return base::fail(base::Errc::kDeviceLost, "write_config");
    std::memcpy(config.data() + offset, &value, width);
    if (on_config_write) on_config_write(offset, value);
    return {};
  }
  base::Result<std::unique_ptr<vfio::Bar>> open_bar(vfio::BarIndex index) override {
    const auto found = bars.find(index);
    if (found == bars.end()) return base::fail(base::Errc::kNotFound, "no such BAR");
    return std::unique_ptr<vfio::Bar>(std::make_unique<FakeBar>(found->second));
  }
  const vfio::IovaLimits& iova_limits() const override { return limits; }
  base::Result<void> map_dma(int, std::uint64_t, std::uint64_t, base::Iova, vfio::Rights) override {
    return {};
  }
  base::Result<void> unmap_dma(base::Iova, std::uint64_t) override { return {}; }
  base::Result<std::vector<base::UniqueFd>> arm_msix(unsigned) override {
    if (!has_msix) return base::fail(base::Errc::kUnsupported, "no vectors");
    std::vector<base::UniqueFd> fds;
    fds.push_back(event());
    return fds;
  }
  base::Result<void> disarm_msix() override {
    line = -1;
    return {};
  }
  base::Result<base::UniqueFd> arm_intx() override {
    if (!has_pin) return base::fail(base::Errc::kUnsupported, "no pin");
    return event();
  }
  base::Result<void> unmask_intx() override {
    ++unmasked;
    return {};
  }
  base::Result<void> reset() override {
    if (!no_reset.empty()) return base::fail(base::Errc::kUnsupported, no_reset);
    return {};
  }
  int event_fd() const override { return -1; }
  void handle_events() override {}
  void release() override {
    is_lost = true;
    ++releases;
  }

  std::uint16_t command() const {
    std::uint16_t value;
    std::memcpy(&value, config.data() + 4, sizeof value);
    return value;
  }

  vfio::DeviceIdentity who;
  vfio::IovaLimits limits;
  std::vector<std::byte> config;
  std::map<vfio::BarIndex, std::shared_ptr<FakeBar::State>> bars;
  bool is_lost = false;
  std::string why = "fake";
  unsigned releases = 0;
  bool has_msix = false, has_pin = false;
  int line = -1;  // the eventfd that was armed, while it is
  unsigned unmasked = 0;
  std::string no_reset;  // why reset() is refused, empty: it is not
  std::function<void(std::uint32_t offset, std::uint32_t value)> on_config_write;

 private:
  base::UniqueFd event() {
    base::UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    line = fd.get();
    return fd;
  }
};

}  // namespace fake
