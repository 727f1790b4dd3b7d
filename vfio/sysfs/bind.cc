#include "vfio/sysfs/bind.h"

#include <algorithm>
#include <thread>

#include "vfio/sysfs/guarded_io.h"

namespace vfio::sysfs {
namespace {

using base::Errc;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kUndoPatience{10};
constexpr std::chrono::seconds kProbePatience{5};  // a driver may bind after the write has returned

milliseconds left_until(Clock::time_point deadline) {
  return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(deadline - Clock::now()));
}

std::string driver_of(const Roots& roots, const PciAddress& address) {
  return link_name(roots.function(address) + "/driver").value_or("");
}

class Work {
 public:
  Work(const Roots& roots, const Plan& plan, BindState& state, milliseconds patience)
      : roots_(roots), plan_(plan), state_(state), deadline_(Clock::now() + patience) {}

  base::Result<void> device(const DevicePlan& device) {
    if (device.steps.empty()) return {};
    // Without a driver and remembered: an earlier command came to no end, and knows better.
    const bool knows_better =
        device.from.empty() && state_.find(device.address, device.before.part);
    is_new_ = plan_.binds && !is_vfio_driver(device.from) && !knows_better;
    if (is_new_)
      if (auto saved = state_.remember(device.address, device.before); !saved) return saved;
    auto done = steps(device);
    if (done) done = arrived(device);
    if (done) return plan_.binds ? done : state_.forget(device.address);
    return failed(device, done.error());
  }

 private:
  base::Result<void> steps(const DevicePlan& device) {
    for (const auto& step : device.steps) {
      auto done = write_guarded(step.path, step.value, left_until(deadline_));
      if (!done) return base::fail_within(device.address.text() + ": " + step.what, done.error());
      // What follows is of the new driver, which sets the device up in its own way first.
      if (step.path == roots_.sys + "/bus/pci/drivers_probe")
        if (auto there = arrived(device); !there) return there;
    }
    return {};
  }

  // Waits until the driver that the plan names has the device.
  base::Result<void> arrived(const DevicePlan& device) {
    if (device.kernel_chooses) return {};
    const auto end = std::min(deadline_, Clock::now() + kProbePatience);
    while (driver_of(roots_, device.address) != device.to) {
      if (!exists(roots_.function(device.address)))
        return base::fail(Errc::kNotFound, device.address.text());
      if (Clock::now() >= end)
        return base::fail(Errc::kSystem, device.address.text() + ": driver " + device.to +
                                             " did not take it (dmesg says why)");
      std::this_thread::sleep_for(milliseconds(5));
    }
    return {};
  }

  base::Result<void> failed(const DevicePlan& device, base::Error error) {
    if (!exists(roots_.function(device.address))) {
      (void)state_.forget(device.address);
      error.code = Errc::kDeviceLost;
      error.step += "; the device has gone";
    } else if (error.code == Errc::kTimeout) {
      error.step += "; nothing more was written" + whoever_holds(device);
    } else if (!plan_.binds) {
      error.step += "; it is left without a driver unless dmesg says otherwise";
    } else if (auto undone = undo(device); undone) {
      if (is_new_) (void)state_.forget(device.address);
      error.step += "; undone";
    } else {
      error.step += "; and undoing it failed too: " + undone.error().message();
    }
    return std::unexpected(std::move(error));
  }

  // Back to what it was before bind, as far as the steps had come.
  base::Result<void> undo(const DevicePlan& device) {
    const auto directory = roots_.function(device.address);
    const auto end = Clock::now() + kUndoPatience;
    const auto put = [&](const std::string& path, const std::string& value) {
      return write_guarded(path, value, left_until(end));
    };
    auto done = base::Result<void>{};
    const auto driver = driver_of(roots_, device.address);
    if (driver != device.from && !driver.empty())
      done = put(roots_.pci_drivers() + "/" + driver + "/unbind", device.address.text());
    if (done && !is_vfio_driver(device.from))
      done = put(directory + "/driver_override", device.before.driver_override + "\n");
    for (const auto& step : device.steps)
      if (done && step.path == directory + "/reset_method")
        done = put(step.path, *device.before.reset_method + "\n");
    if (done && !device.from.empty() && driver != device.from)
      done = put(roots_.sys + "/bus/pci/drivers_probe", device.address.text());
    return done;
  }

  std::string whoever_holds(const DevicePlan& device) {
    const auto function = read_function(roots_, device.address);
    if (!function) return {};
    const auto usage = usage_of(roots_, OpenNodes::scan(roots_), *function);
    return usage.holders.empty() ? std::string() : "; " + usage.text();
  }

  const Roots& roots_;
  const Plan& plan_;
  BindState& state_;
  const Clock::time_point deadline_;
  bool is_new_ = false;  // the present device has just been remembered
};

// What has become of the devices before the one that failed, "; ..."; empty: nothing was done.
std::string already_done(const Plan& plan, const DevicePlan& failed) {
  std::vector<std::string> names;
  for (const auto& device : plan.devices) {
    if (device.address == failed.address) break;
    if (!device.steps.empty()) names.push_back(device.address.text());
  }
  if (names.empty()) return {};
  const std::string verb = names.size() == 1 ? " stays" : " stay";
  return "; " + joined(names) + verb +
         (plan.binds ? " bound (gpuctl unbind gives back)" : " given back");
}

}  // namespace

base::Result<void> carry_out(const Roots& roots, const Plan& plan, BindState& state,
                             std::chrono::milliseconds patience) {
  Work work(roots, plan, state, patience);
  for (const auto& device : plan.devices)
    if (auto done = work.device(device); !done) {
      done.error().step += already_done(plan, device);
      return done;
    }
  return {};
}

}  // namespace vfio::sysfs
