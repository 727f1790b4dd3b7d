// The kernel's part of binding, for a FakeMachine: a thread that sees what is written into the
// attributes of drivers and does what the kernel does then.
#pragma once

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "tests/sysfs/fake_machine.h"

namespace sysfs_test {

class FakeKernel {
 public:
  explicit FakeKernel(const FakeMachine& machine)
      : machine_(machine), events_(::inotify_init1(IN_CLOEXEC)) {
    watch("/sys/bus/pci", "");
    for (const auto& driver : vfio::sysfs::names_in(machine.path("/sys/bus/pci/drivers")))
      watch("/sys/bus/pci/drivers/" + driver, driver);
    thread_ = std::thread([this] { run(); });
  }
  ~FakeKernel() {
    stop_ = true;
    thread_.join();
  }
  FakeKernel(const FakeKernel&) = delete;

  // Which driver takes the device when no override says otherwise.
  void match(const std::string& address, const std::string& driver) {
    const std::lock_guard lock(mutex_);
    matches_[address] = driver;
  }
  // Reset methods that the device can do from now on, whatever it has said: the kernel refuses a
  // text with any other (needs resets_of_sysfs.cc in the program, and is for this process alone).
  void can_reset_by(const std::string& address, const std::string& methods) {
    machine_.put(FakeMachine::dir_of(address) + "/reset_method.possible", methods);
  }
  // The driver takes nothing from now on.
  void refuse(const std::string& driver) {
    const std::lock_guard lock(mutex_);
    refusing_ = driver;
  }
  // The device goes away when it is next unbound.
  void vanish_on_unbind() { vanish_ = true; }

 private:
  void watch(const std::string& below, const std::string& driver) {
    const int wd = ::inotify_add_watch(events_.get(), machine_.path(below).c_str(), IN_CLOSE_WRITE);
    watched_[wd] = driver;
  }

  void run() {
    while (!stop_) {
      pollfd entry{events_.get(), POLLIN, 0};
      if (::poll(&entry, 1, 10) <= 0) continue;
      alignas(inotify_event) char buffer[4096];
      const auto got = ::read(events_.get(), buffer, sizeof(buffer));
      for (ssize_t at = 0; at < got;) {
        const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
        at += static_cast<ssize_t>(sizeof(*event)) + event->len;
        if (event->len > 0) written(watched_[event->wd], event->name);
      }
    }
  }

  void written(const std::string& driver, const std::string& file) {
    const auto folder = driver.empty() ? "/sys/bus/pci/" : "/sys/bus/pci/drivers/" + driver + "/";
    const auto address = machine_.get(folder + file);
    if (!fs::exists(machine_.path(FakeMachine::dir_of(address)))) return;
    if (file == "drivers_probe") probe(address);
    if (file == "unbind") unbind(address, driver);
  }
  void unbind(const std::string& address, const std::string& driver) {
    const auto link = machine_.path(FakeMachine::dir_of(address) + "/driver");
    if (vfio::sysfs::link_name(link) != driver) return;
    machine_.set_driver(address, "");
    if (!vanish_) return;
    machine_.remove("/sys/bus/pci/devices/" + address);
    machine_.remove(FakeMachine::dir_of(address));
  }
  void probe(const std::string& address) {
    const std::lock_guard lock(mutex_);
    const auto dir = FakeMachine::dir_of(address);
    if (vfio::sysfs::link_name(machine_.path(dir + "/driver"))) return;
    const auto forced = machine_.get(dir + "/driver_override");
    const auto driver = forced.empty() || forced == "(null)" ? matches_[address] : forced;
    if (driver == refusing_ || driver.empty()) return;
    if (driver == "vfio-pci") machine_.put(dir + "/power/control", "auto\n");
    machine_.set_driver(address, driver);
  }

  const FakeMachine& machine_;
  base::UniqueFd events_;
  std::map<int, std::string> watched_;
  std::mutex mutex_;
  std::map<std::string, std::string> matches_;
  std::string refusing_ = "(none)";
  std::atomic<bool> vanish_ = false;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace sysfs_test
