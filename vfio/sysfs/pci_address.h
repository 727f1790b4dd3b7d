// Where a PCI function is: domain, bus, device, function, as in "0000:03:00.0".
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace vfio::sysfs {

struct PciAddress {
  std::uint32_t domain = 0;  // more than 16 bits behind some host bridges
  std::uint8_t bus = 0;
  std::uint8_t device = 0;    // 0 to 31
  std::uint8_t function = 0;  // 0 to 7

  // "0000:03:00.0", or "03:00.0" in domain 0. kInvalidArgument, with the text that was given.
  static base::Result<PciAddress> parse(std::string_view text);
  // As sysfs spells it: "0000:03:00.0".
  std::string text() const;

  auto operator<=>(const PciAddress&) const = default;
};

}  // namespace vfio::sysfs
