#include "daemon/submit/slice.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "daemon/gpu/engine/sdma_packets.h"
#include "daemon/submit/fence.h"

namespace gpuumd {
namespace {

// The longest packet sequence that one command adds: a WRITE of 64 bytes (20 dwords), or NOP and
// two FENCEs (9); and the padding at the end.
constexpr std::size_t kMaxCommandDwords = 24;
constexpr std::size_t kIbAlignDwords = 8;
// What one command moves that is not cut in parts: a slice with less room than this is full.
constexpr std::uint64_t kMaxWholeBytes = sizeof(command::Write::data);

std::optional<sdma::AtomicCode> atomic_code(const command::Atomic& atomic) {
  using enum command::AtomicOperation;
  const bool wide = atomic.width == 8;
  switch (atomic.operation) {
    case kAdd:
      return wide ? sdma::AtomicCode::kAdd64 : sdma::AtomicCode::kAdd32;
    case kSwap:
      return wide ? sdma::AtomicCode::kSwap64 : sdma::AtomicCode::kSwap32;
    case kCompareSwap:
      return wide ? sdma::AtomicCode::kCompareSwap64 : sdma::AtomicCode::kCompareSwap32;
    case kAnd:
    case kOr:
    case kXor:
      return std::nullopt;  // codes not known (docs/hardware/choices.md D31)
  }
  return std::nullopt;
}

// Appends what one command stands for. True when the command is used up; false when a rest of it
// stays at the front.
class Builder {
 public:
  Builder(Slice& slice, const FindFence& find_fence)
      : slice_(slice), out_(slice.ib), find_fence_(find_fence) {}

  bool full() const {
    return slice_.bytes + kMaxWholeBytes > kSliceBytes ||
           slice_.ib.size() + kMaxCommandDwords + kIbAlignDwords > kIbDwords;
  }

  base::Result<bool> operator()(command::Copy& copy) {
    const auto bytes = std::min(copy.bytes, kSliceBytes - slice_.bytes);
    ordered();
    sdma::copy_linear(out_, copy.from.value(), copy.to.value(), bytes);
    slice_.bytes += bytes;
    copy.bytes -= bytes;
    copy.from += bytes;
    copy.to += bytes;
    return copy.bytes == 0;
  }

  base::Result<bool> operator()(command::Fill& fill) {
    // In whole dwords, whatever the copies before it have left.
    const auto bytes = std::min(fill.bytes, base::align_down(kSliceBytes - slice_.bytes, 4));
    ordered();
    sdma::const_fill(out_, fill.to.value(), fill.pattern, sdma::FillSize::kDword, bytes);
    slice_.bytes += bytes;
    fill.bytes -= bytes;
    fill.to += bytes;
    return fill.bytes == 0;
  }

  base::Result<bool> operator()(command::Write& write) {
    std::uint32_t words[16];
    std::memcpy(words, write.data, write.bytes);
    ordered();
    sdma::write_linear(out_, write.to.value(), std::span(words, write.bytes / 4));
    slice_.bytes += write.bytes;
    return true;
  }

  base::Result<bool> operator()(command::Atomic& atomic) {
    const auto code = atomic_code(atomic);
    if (!code) return base::fail(base::Errc::kUnsupported, "this atomic operation");
    ordered();
    sdma::atomic(out_, atomic.to.value(), *code, atomic.operand, atomic.compare);
    slice_.bytes += atomic.width;
    return true;
  }

  base::Result<bool> operator()(command::Timestamp& timestamp) {
    ordered();
    sdma::timestamp_global(out_, timestamp.to.value());
    return true;
  }

  base::Result<bool> operator()(command::Signal& signal) {
    const auto place = find_fence_(signal.fence);
    if (place.fence == nullptr) return base::fail(base::Errc::kNotFound, "fence of a signal");
    if (auto promised = place.fence->promise(signal.point); !promised)
      return std::unexpected(promised.error());
    ordered();
    sdma::fence64(out_, place.slot.value(), signal.point);
    slice_.signals.push_back({place.fence, signal.point});
    return true;
  }

  base::Result<bool> operator()(command::Wait& wait) {
    const auto place = find_fence_(wait.fence);
    if (place.fence == nullptr) return base::fail(base::Errc::kNotFound, "fence of a wait");
    if (place.fence->reached() < wait.point) return false;
    if (const auto why = place.fence->failure(wait.point))
      return base::fail(*why, "fence of a wait");
    return true;
  }

 private:
  // Packets of a queue complete in order but for two COPYs without a NOP between them.
  void ordered() {
    if (!slice_.ib.empty()) sdma::nop(out_);
  }

  Slice& slice_;
  sdma::PacketWriter out_;
  const FindFence& find_fence_;
};

// Header bits beside opcode and sub-opcode that a client's packet may set. None of those that leave
// the VM (physical and system addresses, encryption) or that make an ATOMIC loop.
constexpr std::uint32_t allowed_bits(sdma::Op op) {
  switch (op) {
    case sdma::Op::kNop:
      return sdma::kMaxNopDwords << 16;
    case sdma::Op::kFence:
      return 7u << 16;  // MTYPE
    case sdma::Op::kConstFill:
      return 3u << 30;  // element size
    case sdma::Op::kAtomic:
      return 0x7Fu << 25;  // operation
    default:
      return 0;
  }
}

// Dwords of the packet at the front of `ib`, or 0 when a client's IB may not hold it.
std::uint64_t allowed_dwords(std::span<const std::uint32_t> ib) {
  const auto op = static_cast<sdma::Op>(ib[0] & 0xFF);
  const auto sub_op = (ib[0] >> 8) & 0xFF;
  if ((ib[0] & ~0xFFFFu & ~allowed_bits(op)) != 0) return 0;
  if (op == sdma::Op::kTimestamp) return sub_op == 2 ? 3 : 0;
  if (sub_op != 0) return 0;
  switch (op) {
    case sdma::Op::kNop:
      return 1 + ((ib[0] >> 16) & 0x3FFF);
    case sdma::Op::kCopy:
      return 7;
    case sdma::Op::kWrite:
      return ib.size() < 4 ? 0 : 5 + std::uint64_t{ib[3]};
    case sdma::Op::kFence:
      return 4;
    case sdma::Op::kAtomic:
      return 8;
    case sdma::Op::kConstFill:
      return 5;
    default:
      return 0;
  }
}

}  // namespace

base::Result<BuildStop> build_slice(std::deque<Command>& commands, const FindFence& find_fence,
                                    Slice& slice) {
  Builder builder(slice, find_fence);
  auto stop = BuildStop::kEmptyQueue;
  std::optional<base::Error> error;
  while (!commands.empty()) {
    if (builder.full()) {
      stop = BuildStop::kFull;
      break;
    }
    const bool waits = std::holds_alternative<command::Wait>(commands.front());
    auto used_up = std::visit(builder, commands.front());
    if (!used_up) {
      error = used_up.error();
      break;
    }
    if (*used_up) {
      commands.pop_front();
    } else if (waits) {
      stop = BuildStop::kWait;
      break;
    }
  }
  sdma::PacketWriter out(slice.ib);
  sdma::pad_to(out, kIbAlignDwords);
  if (error) return std::unexpected(*error);
  return stop;
}

base::Result<void> check_ib(std::span<const std::uint32_t> ib) {
  if (ib.size() > kIbDwords || ib.size() % kIbAlignDwords != 0)
    return base::fail(base::Errc::kInvalidArgument, "size of an IB");
  while (!ib.empty()) {
    const auto dwords = allowed_dwords(ib);
    if (dwords == 0 || dwords > ib.size())
      return base::fail(base::Errc::kInvalidArgument, "packet in an IB");
    ib = ib.subspan(dwords);
  }
  return {};
}

}  // namespace gpuumd
