// From the bytes of a request slot, already copied out of shared memory, to a Request. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "daemon/ipc/foreign_fd.h"
#include "daemon/ipc/requests.h"
#include "gpuumd/wire.h"

namespace gpuumd {

// "bind", "create buffer": for messages.
std::string_view request_name(wire::RequestType type);

// `bytes` is the whole request, header included; its size is that of the header. `descriptor` is
// what the header's tag stood for, empty without a tag. kInvalidArgument names the field;
// kUnsupported for an unknown type.
base::Result<Request> decode_request(std::span<const std::byte> bytes, ForeignFd descriptor);

}  // namespace gpuumd
