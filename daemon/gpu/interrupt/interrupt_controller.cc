#include "daemon/gpu/interrupt/interrupt_controller.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "daemon/gpu/bringup/nbio_setup.h"
#include "daemon/gpu/bringup/pci_setup.h"
#include "daemon/gpu/bringup/steps.h"
#include "daemon/gpu/registers/nbio.h"

namespace gpuumd {
namespace {

using namespace osssys;

constexpr unsigned kRing0 = 0, kRing1 = 1;
constexpr std::uint32_t kStormClient = static_cast<std::uint32_t>(IvClient::kVmc);
constexpr unsigned kStormDelay = 3;
constexpr unsigned kSelfInterruptTimeout = 8;

// In the write-back memory: the device's write pointer, then our shadows of the read pointers.
constexpr std::size_t kWptrAt = 0, kRptr0At = 8, kRptr1At = 12;

// What the address registers can hold.
constexpr unsigned kAddressBits = 57, kDummyPageBits = 40;

constexpr std::uint16_t key(IvClient client, std::uint8_t source) {
  return static_cast<std::uint16_t>(static_cast<unsigned>(client) << 8 | source);
}

std::atomic_ref<std::uint32_t> word(const DeviceMemory& memory, std::size_t at) {
  return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(memory.cpu + at));
}

base::Result<void> check(const InterruptMemory& memory) {
  const auto reachable = [](std::uint64_t at, std::uint64_t alignment) {
    return at % alignment == 0 && at >> kAddressBits == 0;
  };
  if (!reachable(memory.ring0.device_address, 256) ||
      !reachable(memory.ring1.device_address, 256) ||
      !reachable(memory.write_back.device_address, InterruptMemory::kWriteBackBytes) ||
      !memory.dummy_page.aligned(256) || memory.dummy_page.value() >> kDummyPageBits != 0)
    return base::fail(base::Errc::kOutOfRange,
                      "memory of the interrupt rings lies where its registers cannot point");
  return {};
}

}  // namespace

InterruptController::InterruptController(const RegisterBlock& osssys, const RegisterBlock& nbio,
                                         vfio::Bar& doorbells, const InterruptMemory& memory,
                                         HubSet hubs)
    : osssys_(osssys),
      nbio_(nbio),
      doorbells_(doorbells),
      memory_(memory),
      hubs_(hubs),
      ring0_(memory.ring0),
      ring1_(memory.ring1),
      retry_faults_([this](std::uint16_t index) { acknowledge(index); }) {}

void InterruptController::acknowledge(std::uint16_t cam_index) {
  // The register, not the doorbell: a doorbell is a word in memory to whoever watches it, so of two
  // stores in a row the first may be lost, and with it a CAM entry for a second.
  osssys_.write(
      base::Value<osssys::IH_RETRY_CAM_ACK>().with<osssys::IH_RETRY_CAM_ACK::INDEX>(cam_index));
}

void InterruptController::handle(IvClient client, std::uint8_t source, Handler handler) {
  handlers_[key(client, source)] = std::move(handler);
}

Step InterruptController::step(vfio::PciDevice& device) {
  Step step{.name = step_name::kInterrupts,
            .deadline = std::chrono::milliseconds(1000),
            .up = {},
            .down = {}};
  step.up.start = [this, &device] { return set_up(device); };
  step.down.start = [this]() -> base::Result<void> {
    tear_down();
    return {};
  };
  return step;
}

// The order of docs/hardware/ih.md, "Set-up".
base::Result<void> InterruptController::set_up(vfio::PciDevice& device) {
  if (auto good = check(memory_); !good) return good;
  disable_rings();
  std::memset(memory_.write_back.cpu, 0, InterruptMemory::kWriteBackBytes);
  ring0_.reset();
  ring1_.reset();
  set_interrupt_control(nbio_, memory_.dummy_page);
  program_ring(kRing0, ring0_);
  program_ring(kRing1, ring1_);
  route_interrupt_doorbells(nbio_);
  set_rates();
  route_to_ring1();
  if (auto on = set_bus_master(device, true); !on) return on;
  enable_retry_cam();
  enable_rings();
  if (osssys_.io().lost()) return base::fail(base::Errc::kDeviceLost, "interrupt rings");
  running_ = true;
  return {};
}

void InterruptController::tear_down() {
  retry_faults_.clear();
  running_ = false;
  disable_rings();
}

void InterruptController::disable_rings() {
  osssys_.modify<IH_RETRY_INT_CAM_CNTL>(
      [](auto v) { return v.template with<IH_RETRY_INT_CAM_CNTL::ENABLE>(false); });
  for (const unsigned ring : {kRing0, kRing1}) {
    osssys_.modify<IH_RB_CNTL>(
        [](auto v) {
          return v.template with<IH_RB_CNTL::RB_ENABLE>(false)
              .template with<IH_RB_CNTL::ENABLE_INTR>(false);
        },
        ring);
    osssys_.write(base::Value<IH_RB_RPTR>(), ring);
    osssys_.write(base::Value<IH_RB_WPTR>(), ring);
  }
}

void InterruptController::program_ring(unsigned index, const InterruptRing& ring) {
  using C = IH_RB_CNTL;
  const std::uint64_t at = ring.device_address();
  osssys_.write(base::Value<IH_RB_BASE>(static_cast<std::uint32_t>(at >> 8)), index);
  osssys_.write(base::Value<IH_RB_BASE_HI>().with<IH_RB_BASE_HI::ADDR>(at >> 40), index);

  auto control = base::Value<C>()
                     .with<C::MC_SPACE>(memory_.space)
                     .with<C::WPTR_OVERFLOW_CLEAR>(true)
                     .with<C::RB_SIZE>(std::countr_zero(kInterruptRingBytes / 4))
                     .with<C::MC_SNOOP>(true)
                     .with<C::MC_VMID>(0);
  if (index == kRing0) {
    control.set<C::WPTR_OVERFLOW_ENABLE>(true);
    control.set<C::WPTR_WRITEBACK_ENABLE>(true);
    control.set<C::RPTR_REARM>(true);
  } else {
    // It tells its pointer by a vector in ring 0, so it must wait for the reader, never overtake.
    control.set<C::RB_FULL_DRAIN_ENABLE>(true);
  }
  osssys_.write(control, index);

  if (index == kRing0) {
    const std::uint64_t wptr = memory_.write_back.device_address + kWptrAt;
    osssys_.write(base::Value<IH_RB_WPTR_ADDR_LO>(static_cast<std::uint32_t>(wptr)));
    osssys_.write(base::Value<IH_RB_WPTR_ADDR_HI>().with<IH_RB_WPTR_ADDR_HI::ADDR>(wptr >> 32));
  }
  osssys_.write(base::Value<IH_RB_WPTR>(), index);
  osssys_.write(base::Value<IH_RB_RPTR>(), index);
  osssys_.write(base::Value<IH_DOORBELL_RPTR>()
                    .with<IH_DOORBELL_RPTR::OFFSET>(index == kRing0 ? nbio::kIhRing0Doorbell
                                                                    : nbio::kIhRing1Doorbell)
                    .with<IH_DOORBELL_RPTR::ENABLE>(true),
                index);
}

void InterruptController::set_rates() {
  osssys_.modify<IH_STORM_CLIENT_LIST_CNTL>(
      [](auto v) { return base::Value<IH_STORM_CLIENT_LIST_CNTL>(v.raw() | 1u << kStormClient); });
  osssys_.modify<IH_INT_FLOOD_CNTL>(
      [](auto v) { return v.template with<IH_INT_FLOOD_CNTL::FLOOD_CNTL_ENABLE>(true); });
  osssys_.modify<IH_MSI_STORM_CTRL>(
      [](auto v) { return v.template with<IH_MSI_STORM_CTRL::DELAY>(kStormDelay); });
}

void InterruptController::route_to_ring1() {
  using D = IH_RING1_CLIENT_CFG_DATA;
  osssys_.write(base::Value<IH_RING1_CLIENT_CFG_INDEX>().with<IH_RING1_CLIENT_CFG_INDEX::INDEX>(0));
  osssys_.write(base::Value<D>()
                    .with<D::CLIENT_ID>(static_cast<std::uint64_t>(IvClient::kGfx))
                    .with<D::SOURCE_ID>(0)
                    .with<D::SOURCE_ID_MATCH_ENABLE>(true));
}

void InterruptController::enable_retry_cam() {
  using C = IH_RETRY_INT_CAM_CNTL;
  osssys_.write(base::Value<IH_DOORBELL_RETRY_CAM>()
                    .with<IH_DOORBELL_RETRY_CAM::OFFSET>(nbio::kRetryCamDoorbell)
                    .with<IH_DOORBELL_RETRY_CAM::ENABLE>(true));
  osssys_.modify<C>([](auto v) {
    return v.template with<C::CAM_SIZE>(C::kLargest).template with<C::ENABLE>(true);
  });
}

void InterruptController::enable_rings() {
  using C = IH_RB_CNTL;
  osssys_.modify<C>(
      [](auto v) {
        return v.template with<C::WPTR_OVERFLOW_CLEAR>(false)
            .template with<C::RB_ENABLE>(true)
            .template with<C::ENABLE_INTR>(true);
      },
      kRing0);
  osssys_.modify<C>(
      [](auto v) {
        return v.template with<C::WPTR_OVERFLOW_CLEAR>(false).template with<C::RB_ENABLE>(true);
      },
      kRing1);
  osssys_.modify<IH_CNTL2>([](auto v) {
    return v.template with<IH_CNTL2::SELF_IV_FORCE_WPTR_UPDATE_TIMEOUT>(kSelfInterruptTimeout)
        .template with<IH_CNTL2::SELF_IV_FORCE_WPTR_UPDATE_ENABLE>(true);
  });
}

bool InterruptController::poll() {
  unsigned done = 0;
  while (running_) {
    ring0_.set_wptr(producer());  // also after the last batch: nothing is left behind
    if (ring0_.empty() || done >= kBatch) break;
    done += drain(ring0_, kBatch - done);
    if (running_) publish(ring0_, kRing0);
  }
  if (running_ && !ring0_.empty()) ++counters_.full_batches;

  const unsigned done1 = running_ ? drain(ring1_, kBatch) : 0;
  if (done1 > 0 && running_) publish(ring1_, kRing1);
  counters_.ring1_vectors += done1;
  return done + done1 > 0;
}

Poller InterruptController::poller() {
  return {.name = "interrupt ring", .poll = [this] { return poll(); }, .arm = {}};
}

// Where the device will write next in ring 0, from its write-back word; from the register when that
// word says that vectors were overwritten.
std::uint32_t InterruptController::producer() {
  auto written = word(memory_.write_back, kWptrAt);
  std::uint32_t raw = written.load(std::memory_order_acquire);
  if ((raw & 1) == 0) return checked(raw);

  const auto wptr = osssys_.read<IH_RB_WPTR>(kRing0);
  if (osssys_.io().lost()) return ring0_.rptr();
  // The word keeps its bit until the next vector; without it each poll would read the register. If
  // the device has written in between, its word stays.
  const std::uint32_t clean = wptr.with<IH_RB_WPTR::RB_OVERFLOW>(false).raw();
  written.compare_exchange_strong(raw, clean, std::memory_order_acq_rel);
  return wptr.get<IH_RB_WPTR::RB_OVERFLOW>() ? recover(wptr.raw()) : checked(wptr.raw());
}

// The oldest vector that is still whole is the one after the device's place.
std::uint32_t InterruptController::recover(std::uint32_t raw) {
  ++counters_.overflows;
  const std::uint32_t wptr = checked(raw);
  ring0_.skip_to((wptr + InterruptVector::kBytes) & InterruptRing::kMask);
  for (const bool clear : {true, false})
    osssys_.modify<IH_RB_CNTL>(
        [clear](auto v) { return v.template with<IH_RB_CNTL::WPTR_OVERFLOW_CLEAR>(clear); },
        kRing0);
  if (on_overflow_) on_overflow_();
  return wptr;
}

std::uint32_t InterruptController::checked(std::uint32_t raw) {
  if (!InterruptRing::well_formed(raw)) ++counters_.bad_pointers;
  return InterruptRing::offset(raw);
}

unsigned InterruptController::drain(InterruptRing& ring, unsigned budget) {
  unsigned done = 0;
  for (; done < budget && running_ && !ring.empty(); ++done) {
    ++counters_.vectors;
    dispatch(ring.take());
  }
  return done;
}

void InterruptController::publish(const InterruptRing& ring, unsigned index) {
  word(memory_.write_back, index == kRing0 ? kRptr0At : kRptr1At)
      .store(ring.rptr(), std::memory_order_release);
  const auto dword = index == kRing0 ? nbio::kIhRing0Doorbell : nbio::kIhRing1Doorbell;
  doorbells_.ring_doorbell32(std::uint64_t{4} * dword, ring.rptr());
}

void InterruptController::dispatch(const InterruptVector& vector) {
  if (is_page_fault(vector)) return page_fault(vector);
  if (vector.client() == IvClient::kIh && vector.source() == iv::kSelf) return ring1_moved(vector);
  const auto found = handlers_.find(key(vector.client(), vector.source()));
  if (found == handlers_.end() || !found->second) {
    ++counters_.unhandled;
    return;
  }
  found->second(vector);
}

void InterruptController::page_fault(const InterruptVector& vector) {
  const auto fault = decode_page_fault(vector, hubs_);
  if (!fault) {
    ++counters_.bad_faults;
    if (is_retry_fault(vector)) acknowledge(cam_index(vector));
    return;
  }
  if (fault->retry) {
    if (!retry_faults_.arrive(*fault)) return;
  } else {
    ++counters_.faults;
  }
  if (on_fault_) on_fault_(*fault);
}

void InterruptController::ring1_moved(const InterruptVector& vector) {
  if (vector.ring_id() != kRing1) {
    ++counters_.unhandled;
    return;
  }
  ring1_.set_wptr(checked(vector.source_data(0)));
}

InterruptController::Watermark InterruptController::watermark() {
  const auto wptr = osssys_.read<IH_RB_WPTR>(kRing0);
  if (osssys_.io().lost() || !running_) return {ring0_.consumed()};
  // A full ring more after an overflow: poll() will take the oldest whole vectors first.
  if (wptr.get<IH_RB_WPTR::RB_OVERFLOW>()) return {ring0_.consumed() + kInterruptRingBytes};
  return {ring0_.consumed() + ring0_.distance(InterruptRing::offset(wptr.raw()))};
}

void InterruptController::set_pasid(HubKind kind, unsigned instance, base::Vmid vmid,
                                    base::Pasid pasid) {
  osssys_.write(base::Value<IH_VMID_LUT_INDEX>().with<IH_VMID_LUT_INDEX::DIE>(instance));
  if (kind == HubKind::kGfxhub)
    osssys_.write(base::Value<IH_VMID_LUT>().with<IH_VMID_LUT::PASID>(pasid.value()), vmid.value());
  else
    osssys_.write(base::Value<IH_VMID_LUT_MM>().with<IH_VMID_LUT_MM::PASID>(pasid.value()),
                  vmid.value());
}

}  // namespace gpuumd
