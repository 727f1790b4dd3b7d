// A machine's /sys, /dev and /proc in a temporary directory, as far as vfio/sysfs reads them.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "vfio/sysfs/tree.h"

namespace sysfs_test {

namespace fs = std::filesystem;

struct Part {
  std::string address;
  std::string vendor = "0x1002";
  std::string device = "0x75f0";
  std::string class_code = "0x120000";
  std::string driver = "";
  int group = 7;  // -1: none
  bool behind_bridge = false;
};

class FakeMachine {
 public:
  FakeMachine() {
    std::string pattern = fs::temp_directory_path() / "sysfs-test-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << pattern;
    root_ = pattern;
    for (const auto* name : {"vfio-pci", "pci-stub", "pcieport", "amdgpu", "snd_hda_intel"})
      add_driver(name);
    put("/sys/bus/pci/drivers_probe", "");
    put("/proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n");
    fs::create_directories(root_ + "/dev/vfio");
    fs::create_directories(root_ + "/sys/bus/pci/devices");
  }
  ~FakeMachine() {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  FakeMachine(const FakeMachine&) = delete;

  const std::string& root() const { return root_; }
  vfio::sysfs::Roots roots() const { return vfio::sysfs::Roots::below(root_); }
  static std::string dir_of(const std::string& address) { return "/sys/devices/pci0/" + address; }
  std::string path(const std::string& below) const { return root_ + below; }

  // Writes a file, with the folders above it.
  void put(const std::string& below, const std::string& text) const {
    fs::create_directories(fs::path(root_ + below).parent_path());
    std::ofstream(root_ + below) << text;
  }
  std::string get(const std::string& below) const {
    return vfio::sysfs::read_text(root_ + below).value_or("(none)");
  }
  void link(const std::string& below, const std::string& to) const {
    fs::create_directories(fs::path(root_ + below).parent_path());
    fs::remove(root_ + below);
    fs::create_symlink(to.starts_with("/sys/") ? root_ + to : to, root_ + below);
  }
  void remove(const std::string& below) const { fs::remove_all(root_ + below); }
  void fifo(const std::string& below) const {
    fs::remove(root_ + below);
    ASSERT_EQ(::mkfifo((root_ + below).c_str(), 0600), 0) << below;
  }

  void add_driver(const std::string& name) const {
    for (const auto* file : {"bind", "unbind"})
      put("/sys/bus/pci/drivers/" + name + "/" + file, "");
  }

  void add(const Part& part) const {
    const auto dir = dir_of(part.address);
    if (part.behind_bridge) {  // its real folder is inside that of the bridge
      fs::create_directories(root_ + dir_of("0000:00:01.0") + "/" + part.address);
      link(dir, dir_of("0000:00:01.0") + "/" + part.address);
    }
    put(dir + "/vendor", part.vendor + "\n");
    put(dir + "/device", part.device + "\n");
    put(dir + "/class", part.class_code + "\n");
    put(dir + "/numa_node", "1\n");
    put(dir + "/power_state", "D0\n");
    put(dir + "/power/control", "auto\n");
    put(dir + "/driver_override", "(null)\n");
    put(dir + "/reset_method", "flr bus\n");
    put(dir + "/resource",
        "0x0000380000000000 0x00003800ffffffff 0x000000000014220c\n"
        "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
        "0x0000381000000000 0x00003810001fffff 0x000000000014220c\n"
        "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
        "0x0000000000003000 0x00000000000030ff 0x0000000000040101\n"
        "0x00000000f7b00000 0x00000000f7b7ffff 0x0000000000040200\n"
        "0x0000000000000000 0x0000000000000000 0x0000000000000000\n");
    link("/sys/bus/pci/devices/" + part.address, dir);
    if (part.group >= 0) join_group(part.address, part.group);
    if (!part.driver.empty()) set_driver(part.address, part.driver);
  }
  void join_group(const std::string& address, int group) const {
    const auto path = "/sys/kernel/iommu_groups/" + std::to_string(group);
    link(path + "/devices/" + address, dir_of(address));
    link(dir_of(address) + "/iommu_group", path);
  }
  // As the kernel does when a driver takes or leaves a device; empty: none.
  void set_driver(const std::string& address, const std::string& driver) const {
    const auto dir = dir_of(address);
    remove(dir + "/driver");
    remove(dir + "/vfio-dev");
    if (!driver.empty()) link(dir + "/driver", "/sys/bus/pci/drivers/" + driver);
    if (driver != "vfio-pci") return;
    fs::create_directories(root_ + dir + "/vfio-dev/vfio0");
    put("/dev/vfio/" + vfio::sysfs::link_name(root_ + dir + "/iommu_group").value_or("noiommu-0"),
        "");
  }

  // A process with one descriptor, a link to `target`.
  void add_process(int pid, const std::string& command, const std::string& target) const {
    const auto dir = "/proc/" + std::to_string(pid);
    put(dir + "/comm", command + "\n");
    link(dir + "/fd/3", target);
  }
  // A process without descriptors that has `path` mapped; `rights` as in "rw-s". The kernel's link
  // to what is mapped leads to `file`.
  void add_mapping(int pid, const std::string& command, const std::string& path,
                   const std::string& rights = "rw-s", const std::string& file = "") const {
    const auto dir = "/proc/" + std::to_string(pid);
    put(dir + "/comm", command + "\n");
    fs::create_directories(root_ + dir + "/fd");
    put(dir + "/maps",
        "55d0c0000000-55d0c0001000 r-xp 00000000 08:01 17    /usr/bin/job\n"
        "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n"
        "7f0000200000-7f0000300000 " +
            rights + " 100000000 00:06 421                     " + path + "\n");
    link(dir + "/map_files/7f0000200000-7f0000300000", file.empty() ? path : file);
  }

 private:
  std::string root_;
};

}  // namespace sysfs_test
