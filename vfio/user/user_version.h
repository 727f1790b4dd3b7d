// The capabilities that both sides state in the VERSION handshake. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/result.h"

namespace vfio {

// What the server stated, or the protocol's default.
struct ServerCapabilities {
  std::uint64_t max_msg_fds = 1;
  std::uint64_t max_data_xfer_size = base::kMiB;
  std::uint64_t max_dma_maps = 65535;
  std::uint64_t page_sizes = base::kPageSize;
  // "gpuumd.wake" (docs/vfio-user.md): regions whose doorbells need it, in order of their eventfds.
  bool wake = false;
  std::vector<std::uint32_t> wake_regions;
};

// The JSON text that we send, without its NUL.
std::string offer_capabilities(std::uint64_t max_data_xfer_size, bool offer_wake);

// Reads the payload of the VERSION reply. kProtocol for text that is not JSON, a value of the wrong
// type, a version that was not proposed, or descriptors that do not fit what is stated;
// kUnsupported for a server that no driver could use (no descriptors, no 8-byte access).
base::Result<ServerCapabilities> parse_version_reply(std::span<const std::byte> payload,
                                                     bool offered_wake, std::size_t fd_count);

}  // namespace vfio
