// Opening a node below /dev, with errors that say what to do.
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace vfio {

// Whose a node is: without a module's the machine is not prepared, a device's goes when the device
// does.
enum class NodeOf : std::uint8_t { kModule, kDevice };

// For reading and writing. kNotFound (which modules to load; that the device has gone),
// kPermission (who may), kBusy, kSystem.
base::Result<base::UniqueFd> open_node(const std::string& path, NodeOf whose);

// EACCES of a call that is to give a device: it is a virtual function and wants a token.
// kPermission.
base::Error token_error();

}  // namespace vfio
