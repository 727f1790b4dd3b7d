// What a device was before we took it, kept in a file until it is given back.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "vfio/sysfs/pci_address.h"
#include "vfio/sysfs/tree.h"

namespace vfio::sysfs {

struct Remembered {
  std::string driver;           // empty: it had none
  std::string driver_override;  // empty: none
  // As the attributes had them; nullopt: the kernel does not have the attribute.
  std::optional<std::string> reset_method;
  std::optional<std::string> power_control;
  std::string part = {};  // "1002:75f0": which device it was
};

// DIRECTORY/bind.json. What was written before this boot is void: the kernel has forgotten our
// bindings too.
class BindState {
 public:
  // Looks, and makes nothing: no file is an empty state. kProtocol when it is damaged.
  static base::Result<BindState> read(const Roots& roots, const std::string& directory);
  // Makes the directory if need be and keeps others from changing the state as long as this object
  // lives: kBusy when another process does so now. kPermission, kSystem.
  static base::Result<BindState> lock(const Roots& roots, const std::string& directory);

  std::optional<Remembered> find(const PciAddress& address) const;
  // The same, unless another part was at that address then.
  std::optional<Remembered> find(const PciAddress& address, const std::string& part) const;
  // Both write the file, as a whole or not at all. Of a locked state only.
  base::Result<void> remember(const PciAddress& address, const Remembered& what);
  base::Result<void> forget(const PciAddress& address);

  const std::string& file() const { return file_; }

 private:
  base::Result<void> load(const Roots& roots);
  base::Result<void> save() const;

  std::string file_;
  std::string boot_id_;
  base::UniqueFd lock_;
  std::map<PciAddress, Remembered> devices_;
};

}  // namespace vfio::sysfs
