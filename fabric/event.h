// What the caller tells a Node. Contents that come from a peer or from the device are checked here
// and never trusted by the caller's word.
#pragma once

#include <array>
#include <cstdint>
#include <variant>
#include <vector>

#include "base/result.h"
#include "fabric/types.h"
#include "fabric/write_back.h"

namespace fabric {

// The action with this `op` has ended.
struct OpDone {
  OpId op;
  base::Result<void> result;
};

// Answer to ReadRemote; the bytes as they lie in the peer's memory.
struct BytesRead {
  OpId op;
  base::Result<std::vector<std::byte>> result;
};

// Answer to PinBuffer. The runs cover the whole buffer, in order, until UnpinBuffer.
struct BufferPinned {
  OpId op;
  base::Result<std::vector<VramRun>> result;
};

// The record of one of our rings, read with read_record(). The caller polls the records of
// Node::awaited_records() while that list is not empty; giving one twice does no harm.
struct RecordRead {
  AccelId peer;
  RingType ring = RingType::kInterrupt;
  WriteBackRecord record;
};

// A vector of client 0x1c, source 0 came out of the interrupt ring. `sender` is its PASID.
struct MessageReceived {
  std::uint32_t sender = 0;
  std::array<std::uint32_t, 4> dwords{};
};

// The link to this peer went down (its memory cannot be reached) or came back.
struct LinkChanged {
  AccelId peer;
  bool up = false;
};

using Event =
    std::variant<OpDone, BytesRead, BufferPinned, RecordRead, MessageReceived, LinkChanged>;

}  // namespace fabric
