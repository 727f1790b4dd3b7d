#include "daemon/gpu/bringup/reset.h"

#include <memory>
#include <string>
#include <utility>

#include "daemon/gpu/registers/describe.h"
#include "daemon/gpu/registers/mp0.h"
#include "daemon/gpu/registers/nbio.h"

namespace gpuumd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Mailbox = base::Value<mp0::C2PMSG_64>;

// DRIVER_SCRATCH_3, absolute (docs/hardware/pci.md): a reset takes the mark away.
constexpr std::uint32_t kMarkPlace = 0x97, kMark = 0x6770'7564;

// One mode-1 reset under way.
class Mode1Reset {
 public:
  Mode1Reset(vfio::PciDevice& device, BootState& boot) : device_(device), boot_(boot) {}

  base::Result<bool> poll() {
    if (state_ == State::kIdle && !begin()) return leave_mark();
    read_ = Mailbox(boot_.io->read(mp0::C2PMSG_64::kBeforeDiscovery));
    // A device in the middle of its reset may read as all ones.
    if (!read_.get<mp0::C2PMSG_64::RESPONSE>() || read_.raw() == ~0u) return false;
    if (state_ == State::kMailboxBusy) {
      boot_.io->write(mp0::C2PMSG_64::kBeforeDiscovery,
                      Mailbox().with<mp0::C2PMSG_64::COMMAND>(mp0::RingCommand::kMode1Reset).raw());
      state_ = State::kResetting;
      return false;
    }
    if (read_.get<mp0::C2PMSG_64::STATUS>() != 0)
      return base::fail(base::Errc::kDeviceError,
                        "mode-1 reset: " + reads("C2PMSG_64", read_.raw()));
    if (auto again = enable_memory(device_); !again) return std::unexpected(again.error());
    boot_.remarks.push_back("reset by its security processor (mode 1): " + reason_);
    return leave_mark();
  }

  std::string waiting_for() const {
    return reads("C2PMSG_64", read_.raw()) + ", bit 31 expected " +
           (state_ == State::kResetting ? "after a mode-1 reset" : "before a command");
  }

 private:
  enum class State { kIdle, kMailboxBusy, kResetting };

  // False: there is nothing to reset.
  bool begin() {
    reason_ = boot_.function_reset_refused;
    if (reason_.empty() && boot_.io->read(kMarkPlace) == kMark)
      reason_ = "the reset of the function has not reset it";
    if (reason_.empty()) return false;
    const base::Value<mp0::C2PMSG_33> loader(boot_.io->read(mp0::C2PMSG_33::kBeforeDiscovery));
    state_ = State::kMailboxBusy;
    return loader.get<mp0::C2PMSG_33::COMPLETE>();
  }

  bool leave_mark() {
    boot_.io->write(kMarkPlace, kMark);
    return true;
  }

  vfio::PciDevice& device_;
  BootState& boot_;
  State state_ = State::kIdle;
  std::string reason_;
  Mailbox read_;
};

}  // namespace

Step reset_step(vfio::PciDevice& device, BootState& boot) {
  Step step{.name = step_name::kReset, .deadline = seconds(5), .up = {}, .down = {}};
  step.up.start = [&device, &boot]() -> base::Result<void> {
    auto done = device.reset();
    if (done || done.error().code != base::Errc::kUnsupported) return done;
    boot.function_reset_refused = done.error().step;
    return {};
  };
  return step;
}

Step mode1_reset_step(vfio::PciDevice& device, BootState& boot) {
  Step step{.name = step_name::kMode1Reset, .deadline = seconds(10), .up = {}, .down = {}};
  auto reset = std::make_shared<Mode1Reset>(device, boot);
  step.up.poll = [reset] { return reset->poll(); };
  step.up.waiting_for = [reset] { return reset->waiting_for(); };
  // Long enough that the device is back when it is asked again: behind the kernel's VFIO one that
  // reads as all ones is lost for good.
  step.up.every = milliseconds(500);
  return step;
}

bool reset_since(const BootState& boot) {
  if (boot.io->read(kMarkPlace) == kMark) return false;
  const auto mib = boot.topology.nbio.read<nbio::RCC_CONFIG_MEMSIZE>().raw();
  return mib * base::kMiB == boot.vram_size && !boot.io->lost();
}

}  // namespace gpuumd
