#include "vfio/sysfs/pci_address.h"

#include <charconv>
#include <cstdio>
#include <optional>

namespace vfio::sysfs {
namespace {

// Takes the hexadecimal number before `end_mark` off the text; `end_mark` 0: up to its end.
std::optional<std::uint32_t> take_number(std::string_view& text, char end_mark,
                                         std::size_t max_digits, std::uint32_t max) {
  const auto end = end_mark != 0 ? text.find(end_mark) : text.size();
  if (end == std::string_view::npos || end == 0 || end > max_digits) return std::nullopt;
  std::uint32_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + end, value, 16);
  if (error != std::errc{} || stop != text.data() + end || value > max) return std::nullopt;
  text.remove_prefix(end_mark != 0 ? end + 1 : end);
  return value;
}

}  // namespace

base::Result<PciAddress> PciAddress::parse(std::string_view text) {
  auto rest = text;
  std::optional<std::uint32_t> domain = 0;
  if (text.find(':') != text.rfind(':')) domain = take_number(rest, ':', 8, 0xFFFFFFFF);
  const auto bus = domain ? take_number(rest, ':', 2, 0xFF) : std::nullopt;
  const auto device = bus ? take_number(rest, '.', 2, 31) : std::nullopt;
  const auto function = device ? take_number(rest, 0, 1, 7) : std::nullopt;
  if (!function)
    return base::fail(base::Errc::kInvalidArgument, "\"" + std::string(text.substr(0, 64)) +
                                                        "\" is no PCI address like 0000:03:00.0");
  return PciAddress{*domain, static_cast<std::uint8_t>(*bus), static_cast<std::uint8_t>(*device),
                    static_cast<std::uint8_t>(*function)};
}

std::string PciAddress::text() const {
  char out[24];
  std::snprintf(out, sizeof(out), "%04x:%02x:%02x.%x", domain, bus, device, function);
  return out;
}

}  // namespace vfio::sysfs
