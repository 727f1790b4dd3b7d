#include "daemon/ipc/command_decode.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>
#include <string>

#include "base/bytes.h"
#include "gpuumd/gpuumd.h"

namespace gpuumd {
namespace {

using base::Result;

std::unexpected<base::Error> bad(std::string text) {
  return base::fail(base::Errc::kProtocol, std::move(text));
}

template <class T>
T load(const wire::CommandSlot& slot) {
  static_assert(sizeof(T) == sizeof(slot));
  T value;
  std::memcpy(&value, slot.bytes, sizeof(T));
  return value;
}

template <std::size_t N>
bool zero(const std::uint64_t (&words)[N]) {
  return std::all_of(words, words + N, [](std::uint64_t word) { return word == 0; });
}

bool wraps(std::uint64_t start, std::uint64_t bytes) {
  return bytes > std::numeric_limits<std::uint64_t>::max() - start;
}

Result<Command> decode_copy(const wire::CommandSlot& slot) {
  const auto in = load<wire::CopyCommand>(slot);
  if (!zero(in.reserved)) return bad("reserved field of a copy command");
  if (in.bytes == 0 || wraps(in.to, in.bytes) || wraps(in.from, in.bytes))
    return bad("range of a copy command");
  return command::Copy{base::GpuVa(in.to), base::GpuVa(in.from), in.bytes};
}

Result<Command> decode_fill(const wire::CommandSlot& slot) {
  const auto in = load<wire::FillCommand>(slot);
  if (in.reserved0 != 0 || !zero(in.reserved)) return bad("reserved field of a fill command");
  if (in.bytes == 0 || !base::is_aligned(in.to | in.bytes, 4) || wraps(in.to, in.bytes))
    return bad("range of a fill command");
  return command::Fill{base::GpuVa(in.to), in.bytes, in.pattern};
}

Result<Command> decode_write(std::span<const wire::CommandSlot> slots) {
  const auto in = load<wire::WriteCommand>(slots[0]);
  if (in.reserved0 != 0 || !zero(in.reserved)) return bad("reserved field of a write command");
  if (in.bytes == 0 || in.bytes > wire::kMaxWriteBytes || !base::is_aligned(in.to | in.bytes, 4) ||
      wraps(in.to, in.bytes))
    return bad("range of a write command");
  command::Write out;
  out.to = base::GpuVa(in.to);
  out.bytes = in.bytes;
  std::memcpy(out.data, slots[1].bytes, sizeof(out.data));
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  if (!std::all_of(out.data + in.bytes, out.data + sizeof(out.data), is_zero))
    return bad("unused bytes of a write command");
  return out;
}

Result<Command> decode_atomic(const wire::CommandSlot& slot) {
  const auto in = load<wire::AtomicCommand>(slot);
  if (!zero(in.reserved)) return bad("reserved field of an atomic command");
  if (in.operation < GPUUMD_ATOMIC_ADD || in.operation > GPUUMD_ATOMIC_COMPARE_SWAP)
    return bad("operation of an atomic command");
  if (in.width != 4 && in.width != 8) return bad("width of an atomic command");
  if (!base::is_aligned(in.to, in.width)) return bad("address of an atomic command");
  constexpr std::uint64_t k32 = std::numeric_limits<std::uint32_t>::max();
  if (in.width == 4 && (in.operand > k32 || in.compare > k32))
    return bad("operand of an atomic command");
  if (in.operation != GPUUMD_ATOMIC_COMPARE_SWAP && in.compare != 0)
    return bad("compare value of an atomic command");
  return command::Atomic{base::GpuVa(in.to), static_cast<command::AtomicOperation>(in.operation),
                         static_cast<std::uint8_t>(in.width), in.operand, in.compare};
}

template <class Out>
Result<Command> decode_fence(const wire::CommandSlot& slot) {
  const auto in = load<wire::FenceCommand>(slot);
  if (!zero(in.reserved)) return bad("reserved field of a fence command");
  if (in.point == 0) return bad("point 0 of a fence command");
  return Out{ObjectId(in.fence), in.point};
}

Result<Command> decode_timestamp(const wire::CommandSlot& slot) {
  const auto in = load<wire::TimestampCommand>(slot);
  if (!zero(in.reserved)) return bad("reserved field of a timestamp command");
  if (!base::is_aligned(in.to, 8)) return bad("address of a timestamp command");
  return command::Timestamp{base::GpuVa(in.to)};
}

}  // namespace

Result<std::uint32_t> command_slots(const wire::CommandSlot& first) {
  wire::CommandHeader header;
  std::memcpy(&header, first.bytes, sizeof(header));
  const std::uint32_t expected = header.operation == wire::Operation::kWrite ? 2 : 1;
  if (header.slots != expected) return bad("command of " + std::to_string(header.slots) + " slots");
  return expected;
}

Result<Command> decode_command(std::span<const wire::CommandSlot> slots) {
  assert(!slots.empty());
  wire::CommandHeader header;
  std::memcpy(&header, slots[0].bytes, sizeof(header));
  if (header.flags != 0) return bad("flags " + std::to_string(header.flags) + " of a command");
  switch (header.operation) {
    case wire::Operation::kCopy:
      return decode_copy(slots[0]);
    case wire::Operation::kFill:
      return decode_fill(slots[0]);
    case wire::Operation::kWrite:
      assert(slots.size() == 2);
      return decode_write(slots);
    case wire::Operation::kAtomic:
      return decode_atomic(slots[0]);
    case wire::Operation::kWait:
      return decode_fence<command::Wait>(slots[0]);
    case wire::Operation::kSignal:
      return decode_fence<command::Signal>(slots[0]);
    case wire::Operation::kTimestamp:
      return decode_timestamp(slots[0]);
  }
  return bad("command operation " + std::to_string(static_cast<unsigned>(header.operation)));
}

}  // namespace gpuumd
