#include "vfio/sysfs/bind.h"

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "vfio/sysfs/guarded_io.h"

namespace vfio::sysfs {
namespace {

using base::Errc;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kUndoPatience{10};
constexpr std::chrono::seconds kProbePatience{5};  // a driver may bind after the write has returned
constexpr const char* kDefaultMethods = "default\n";

milliseconds left_until(Clock::time_point deadline) {
  return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(deadline - Clock::now()));
}

std::string driver_of(const Roots& roots, const PciAddress& address) {
  return link_name(roots.function(address) + "/driver").value_or("");
}

// Which methods a device has changes with its neighbours: one of the bus is gone when another
// function of the card has come up since, and the kernel then refuses the whole text. A device with
// other methods works; one without its driver does not. What is not as before; empty: nothing.
base::Result<std::string> restore_resets(const std::string& path, const std::string& methods,
                                         Clock::time_point deadline) {
  auto done = write_guarded(path, methods, left_until(deadline));
  if (done) return std::string();
  auto text = "its reset methods \"" + joined(words(methods), " ") + "\" are not restored";
  if (done.error().sys == EINVAL && methods != kDefaultMethods) {
    done = write_guarded(path, kDefaultMethods, left_until(deadline));
    if (done)
      return text + ": the kernel has not all of them any more, and chose (" +
             joined(words(read_guarded(path, left_until(deadline)).value_or("?")), " ") + ")";
  }
  // Without the device, or without time, there is nothing more to be done.
  const auto code = done.error().code;
  if (code == Errc::kNotFound || code == Errc::kTimeout) return std::unexpected(done.error());
  return text + ": " + done.error().message();
}

class Work {
 public:
  Work(const Roots& roots, bool binds, BindState& state, milliseconds patience)
      : roots_(roots), binds_(binds), state_(state), deadline_(Clock::now() + patience) {}

  base::Result<void> device(const DevicePlan& device) {
    if (device.steps.empty()) return {};
    // Without a driver and remembered: an earlier command came to no end, and knows better.
    const bool knows_better =
        device.from.empty() && state_.find(device.address, device.before.part);
    is_new_ = binds_ && !is_vfio_driver(device.from) && !knows_better;
    if (is_new_)
      if (auto saved = state_.remember(device.address, device.before); !saved) return saved;
    auto done = steps(device);
    if (done) done = arrived(device);
    if (done) return binds_ ? done : state_.forget(device.address);
    return failed(device, done.error());
  }

  // Of the device that was worked on last (DevicePlan::not_restored); then forgotten.
  std::vector<std::string> not_restored() { return std::exchange(not_restored_, {}); }

 private:
  base::Result<void> steps(const DevicePlan& device) {
    for (const auto& step : device.steps) {
      auto done = step.restores_resets
                      ? resets(step.path, step.value, deadline_)
                      : write_guarded(step.path, step.value, left_until(deadline_));
      if (!done) return base::fail_within(device.address.text() + ": " + step.what, done.error());
      // What follows is of the new driver, which sets the device up in its own way first.
      if (step.path == roots_.sys + "/bus/pci/drivers_probe")
        if (auto there = arrived(device); !there) return there;
    }
    return {};
  }

  base::Result<void> resets(const std::string& path, const std::string& methods,
                            Clock::time_point deadline) {
    auto changed = restore_resets(path, methods, deadline);
    if (!changed) return std::unexpected(changed.error());
    if (!changed->empty()) not_restored_.push_back(std::move(*changed));
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
    } else if (!binds_) {
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
        done = resets(step.path, *device.before.reset_method + "\n", end);
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
  const bool binds_;
  BindState& state_;
  const Clock::time_point deadline_;
  bool is_new_ = false;  // the present device has just been remembered
  std::vector<std::string> not_restored_;
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

// What is not restored of these and of the one that failed.
std::string not_restored(const Plan& plan) {
  std::string text;
  for (const auto& device : plan.devices)
    for (const auto& what : device.not_restored) text += "; " + device.address.text() + ": " + what;
  return text;
}

}  // namespace

base::Result<void> carry_out(const Roots& roots, Plan& plan, BindState& state,
                             std::chrono::milliseconds patience) {
  Work work(roots, plan.binds, state, patience);
  for (auto& device : plan.devices) {
    auto done = work.device(device);
    device.not_restored = work.not_restored();
    if (done) continue;
    done.error().step += already_done(plan, device) + not_restored(plan);
    return done;
  }
  return {};
}

}  // namespace vfio::sysfs
