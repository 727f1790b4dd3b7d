#include "tools/gpusim/model/command_stream.h"

#include <algorithm>
#include <cassert>

#include "base/address.h"

namespace gpusim {

CommandStream CommandStream::ring(std::uint64_t va, std::uint64_t bytes, std::uint8_t vmid) {
  CommandStream stream;
  stream.va_ = va;
  stream.mask_ = bytes - 1;
  stream.vmid_ = vmid;
  return stream;
}

CommandStream CommandStream::buffer(std::uint64_t va, std::uint64_t bytes, std::uint8_t vmid) {
  CommandStream stream;
  stream.va_ = va;
  stream.end_ = bytes;
  stream.vmid_ = vmid;
  return stream;
}

Outcome CommandStream::dword(VmHub& hub, const Requester& who, std::uint64_t position,
                             std::uint32_t& value) {
  assert(position < end_);
  if (position < at_ || position - at_ >= held_) {
    const std::uint64_t va = address(position);
    std::uint64_t bytes = std::min<std::uint64_t>(sizeof words_, end_ - position);
    if (mask_ != ~std::uint64_t{0}) bytes = std::min(bytes, mask_ + 1 - (position & mask_));
    bytes = std::min(bytes, base::kPageSize - va % base::kPageSize);
    Requester reader = who;
    reader.vmid = vmid_;
    const auto to = std::as_writable_bytes(std::span(words_)).first(bytes);
    const Outcome outcome = hub.read(reader, va, to);
    if (outcome != Outcome::kOk) return outcome;
    at_ = position;
    held_ = bytes;
  }
  value = words_[(position - at_) / sizeof value];
  return Outcome::kOk;
}

}  // namespace gpusim
