#include "vfio/sysfs/function.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>

namespace vfio::sysfs {
namespace {

constexpr std::uint16_t kAmd = 0x1002;
constexpr std::uint32_t kDisplay = 0x03;
constexpr std::uint32_t kAccelerator = 0x1200;

// Of a line of `resource` (the kernel's IORESOURCE_*).
constexpr std::uint64_t kIo = 0x100;
constexpr std::uint64_t kPrefetch = 0x2000;
constexpr std::uint64_t kWide = 0x100000;
constexpr unsigned kBars = 6;

// The identity: without it there is no function. An attribute that is no number is one error.
base::Result<std::uint32_t> identity(const std::string& path, std::uint32_t max) {
  const auto value = read_number(path);
  if (!value) return std::unexpected(value.error());
  if (*value > max) return base::fail(base::Errc::kProtocol, path + " is out of range");
  return static_cast<std::uint32_t>(*value);
}

// Notes what is wrong with an attribute; one that is not there is nothing wrong.
void note(Function& function, const base::Error& error) {
  if (error.code != base::Errc::kNotFound) function.unread.push_back(error.message());
}

void read_bars(Function& function, const std::string& directory) {
  const auto text = read_text(directory + "/resource");
  if (!text) return note(function, text.error());
  const auto all = lines(*text);
  for (unsigned index = 0; index < kBars && index < all.size(); ++index) {
    const auto parts = words(all[index]);
    std::optional<std::uint64_t> values[3];
    for (std::size_t i = 0; i < 3 && parts.size() == 3; ++i) values[i] = parse_number(parts[i]);
    if (!values[0] || !values[1] || !values[2] || *values[1] < *values[0]) {
      function.unread.push_back(directory + "/resource: line " + std::to_string(index + 1) +
                                " holds no range");
      continue;
    }
    if (*values[2] == 0) continue;  // no such BAR
    function.bars.push_back({index, *values[1] - *values[0] + 1, (*values[2] & kIo) != 0,
                             (*values[2] & kPrefetch) != 0, (*values[2] & kWide) != 0});
  }
}

void read_group_number(Function& function, const std::string& directory) {
  const auto name = link_name(directory + "/iommu_group");
  if (!name) return;
  const auto number = parse_number(*name);
  if (number && *number <= 0xFFFFFFFF)
    function.iommu_group = static_cast<unsigned>(*number);
  else
    function.unread.push_back(directory + "/iommu_group leads to \"" + *name + "\", no group");
}

// -1: the machine has no NUMA, or firmware says nothing.
void read_numa_node(Function& function, const std::string& directory) {
  const auto text = read_text(directory + "/numa_node");
  if (!text) return note(function, text.error());
  int node = -1;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), node);
  if (error != std::errc{} || end != text->data() + text->size())
    function.unread.push_back(directory + "/numa_node holds \"" + text->substr(0, 32) +
                              "\", no number");
  else if (node >= 0)
    function.numa_node = node;
}

std::uint64_t optional_number(Function& function, const std::string& path) {
  const auto value = read_number(path);
  if (value) return *value;
  note(function, value.error());
  return 0;
}

// nullopt when the kernel does not say; empty: none.
std::optional<std::string> driver_by_link(const std::string& directory) {
  if (auto name = link_name(directory + "/driver")) return name;
  char ignored = 0;
  const bool none = ::readlink((directory + "/driver").c_str(), &ignored, 1) < 0 && errno == ENOENT;
  return none ? std::optional<std::string>("") : std::nullopt;
}

// What the kernel judges a member by is its driver alone: a member counts whatever else of it can
// be read. `directory`: the group's link to it.
void add_member(const Roots& roots, const std::string& directory, const std::string& name,
                Group& group) {
  if (!exists(directory)) return;  // it has just gone
  const auto driver = driver_by_link(directory);
  const auto address = PciAddress::parse(name);
  if (address && driver) {
    auto member = read_function(roots, *address);
    if (!member) {
      const auto why = member.error().message();
      member.emplace();
      member->address = *address;
      member->unread.push_back(why);
    }
    member->driver = *driver;
    group.members.push_back(std::move(*member));
  } else if (!driver || !driver->empty()) {
    group.strangers.push_back(name + " (" + driver.value_or("its driver cannot be read") + ")");
  }
}

}  // namespace

std::string Function::part() const {
  char text[16];
  std::snprintf(text, sizeof(text), "%04x:%04x", vendor, device);
  return text;
}

bool is_our_kind(const Function& function) {
  return function.vendor == kAmd &&
         (function.class_code >> 16 == kDisplay || function.class_code >> 8 == kAccelerator);
}

base::Result<Function> read_function(const Roots& roots, const PciAddress& address) {
  const auto directory = roots.function(address);
  Function function;
  function.address = address;
  const auto vendor = identity(directory + "/vendor", 0xFFFF);
  if (!vendor && vendor.error().code == base::Errc::kNotFound)
    return base::fail(base::Errc::kNotFound, "no PCI device at " + address.text());
  if (!vendor) return std::unexpected(vendor.error());
  const auto device = identity(directory + "/device", 0xFFFF);
  if (!device) return std::unexpected(device.error());
  const auto class_code = identity(directory + "/class", 0xFFFFFF);
  if (!class_code) return std::unexpected(class_code.error());
  function.vendor = static_cast<std::uint16_t>(*vendor);
  function.device = static_cast<std::uint16_t>(*device);
  function.class_code = *class_code;
  function.driver = link_name(directory + "/driver").value_or("");
  read_group_number(function, directory);
  read_numa_node(function, directory);
  read_bars(function, directory);
  if (auto state = read_text(directory + "/power_state"))
    function.power_state = std::move(*state);
  else
    note(function, state.error());
  if (const auto names = names_in(directory + "/vfio-dev"); !names.empty())
    function.vfio_device = names.front();
  function.boot_vga = optional_number(function, directory + "/boot_vga") == 1;
  function.virtual_functions =
      static_cast<unsigned>(optional_number(function, directory + "/sriov_numvfs"));
  return function;
}

base::Result<std::vector<Function>> all_functions(const Roots& roots) {
  if (!exists(roots.pci_devices()))
    return base::fail(base::Errc::kNotFound,
                      "this machine has no PCI (" + roots.pci_devices() + ")");
  std::vector<Function> functions;
  for (const auto& name : names_in(roots.pci_devices())) {
    const auto address = PciAddress::parse(name);
    if (!address) continue;
    if (auto function = read_function(roots, *address)) functions.push_back(std::move(*function));
  }
  std::sort(functions.begin(), functions.end(),
            [](const Function& a, const Function& b) { return a.address < b.address; });
  return functions;
}

bool is_vfio_driver(std::string_view driver) {
  return driver == "vfio-pci" || driver.ends_with("-vfio-pci") || driver.ends_with("_vfio_pci");
}

bool is_harmless_in_group(const Function& member) {
  return member.driver.empty() || is_vfio_driver(member.driver) || member.driver == "pci-stub" ||
         member.is_bridge();
}

std::vector<const Function*> Group::offenders() const {
  std::vector<const Function*> out;
  for (const auto& member : members)
    if (!is_harmless_in_group(member)) out.push_back(&member);
  return out;
}

std::string Group::dev_node() const {
  return (no_iommu ? "vfio/noiommu-" : "vfio/") + std::to_string(id);
}

base::Result<Group> read_group(const Roots& roots, unsigned id) {
  const auto directory = roots.sys + "/kernel/iommu_groups/" + std::to_string(id);
  if (!exists(directory))
    return base::fail(base::Errc::kNotFound, "no IOMMU group " + std::to_string(id));
  Group group;
  group.id = id;
  if (const auto name = read_text(directory + "/name")) group.no_iommu = *name == "vfio-noiommu";
  for (const auto& name : names_in(directory + "/devices"))
    add_member(roots, directory + "/devices/" + name, name, group);
  if (const auto regions = read_text(directory + "/reserved_regions"))
    for (const auto& line : lines(*regions))
      if (const auto parts = words(line); !parts.empty() && parts.back() == "direct")
        group.firmware_mapped = true;
  return group;
}

std::string names_of(const std::vector<const Function*>& functions) {
  std::vector<std::string> names;
  for (const auto* function : functions)
    names.push_back(function->address.text() +
                    (function->driver.empty() ? "" : " (" + function->driver + ")"));
  return joined(names);
}

std::string group_obstacle(const Group& group) {
  if (group.firmware_mapped)
    return "firmware wants memory of IOMMU group " + std::to_string(group.id) +
           " mapped one to one (RMRR): the kernel gives no such device away; look for an option in "
           "the firmware's set-up";
  const auto offenders = group.offenders();
  if (offenders.empty() && group.strangers.empty()) return {};
  auto names = group.strangers;
  if (!offenders.empty()) names.insert(names.begin(), names_of(offenders));
  const std::string them = offenders.size() == 1 ? "it" : "them";
  return "IOMMU group " + std::to_string(group.id) + " is shared with " + joined(names) + ": " +
         (group.strangers.empty()
              ? "bind " + them + " to vfio-pci too"
              : "what is not PCI must lose its driver, the rest go to vfio-pci");
}

}  // namespace vfio::sysfs
