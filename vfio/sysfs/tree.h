// Reading the kernel's text trees. All paths start at roots that the caller gives, so that a copy
// of another machine's tree, or one made by a test, is read in the same way.
//
// None of these calls waits for the kernel longer than a read of an attribute takes. Attributes
// whose reading takes the device's lock are read with guarded_io.h instead.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "vfio/sysfs/pci_address.h"

namespace vfio::sysfs {

struct Roots {
  std::string sys = "/sys";
  std::string dev = "/dev";
  std::string proc = "/proc";

  // directory/sys, directory/dev, directory/proc; empty: those of this machine.
  static Roots below(const std::string& directory);
  std::string pci_devices() const { return sys + "/bus/pci/devices"; }
  std::string pci_drivers() const { return sys + "/bus/pci/drivers"; }
  std::string function(const PciAddress& address) const {
    return pci_devices() + "/" + address.text();
  }
};

// A file's text, of at most `limit` bytes, without the white space at its end. kNotFound when it is
// not there or its device has gone, kPermission, kSystem. Opens without waiting for anybody.
base::Result<std::string> read_text(const std::string& path, std::size_t limit = 64 << 10);
// "0x1002" or "42", alone. As read_text(), and kProtocol for anything else.
base::Result<std::uint64_t> read_number(const std::string& path);
std::optional<std::uint64_t> parse_number(std::string_view text);

// The last part of what a symbolic link names: the driver of ".../driver". nullopt: no link.
std::optional<std::string> link_name(const std::string& path);
// Names in a directory, sorted; none when it is not there or may not be read.
std::vector<std::string> names_in(const std::string& path);
bool exists(const std::string& path);

std::vector<std::string> words(std::string_view text);  // parts between white space
std::vector<std::string> lines(std::string_view text);
// "a, b and c" is more than a list needs: "a, b, c".
std::string joined(const std::vector<std::string>& parts, std::string_view between = ", ");

// The error of a failed system call on `path`: kNotFound for ENOENT, ENODEV, ENXIO and ENOTDIR,
// kPermission for EACCES, EPERM and EROFS, kBusy for EBUSY, else kSystem.
base::Error system_error(const std::string& what, int error);

}  // namespace vfio::sysfs
