// From the slots of a command, already copied out of shared memory, to a Command. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "daemon/ipc/requests.h"
#include "gpuumd/wire.h"

namespace gpuumd {

// How many slots the command that begins with `first` takes: 1 or 2. kProtocol otherwise.
base::Result<std::uint32_t> command_slots(const wire::CommandSlot& first);

// `slots` are as many as command_slots() said. kProtocol names the field.
base::Result<Command> decode_command(std::span<const wire::CommandSlot> slots);

}  // namespace gpuumd
