// The messages of a fabric link (docs/sim-link.md): one packet of a SOCK_SEQPACKET socket each.
#pragma once

#include <array>
#include <cstdint>

namespace gpusim {

inline constexpr std::uint32_t kLinkMagic = 0x4C46'5347;  // "GSFL"
inline constexpr std::uint16_t kLinkVersion = 1;
inline constexpr std::uint32_t kLinkMostInline = 64 * 1024;  // bytes of data in a packet
inline constexpr std::uint32_t kLinkMostGpus = 64;

enum class LinkType : std::uint16_t { kState = 1, kAccess = 2, kAnswer = 3 };

struct LinkHeader {
  std::uint32_t magic = kLinkMagic;
  std::uint16_t version = kLinkVersion;
  std::uint16_t type = 0;
  std::uint64_t tag = 0;          // of an access, repeated in its answer
  std::uint16_t gpu = 0;          // kAccess: index of the requester among its process's GPUs
  std::uint16_t memory_gpu = 0;   // by reference: whose memory, an index as `gpu`
  std::uint8_t kind = 0;          // RemoteAccess::Kind
  std::uint8_t op = 0;            // AtomicOp
  std::uint8_t outcome = 0;       // kAnswer: Outcome
  std::uint8_t by_reference = 0;  // data lies in the requester's memory
  std::uint64_t npa = 0;
  std::uint64_t bytes = 0;
  std::uint64_t memory_offset = 0;
  std::uint64_t operand = 0;
  std::uint64_t compare = 0;
  std::uint64_t result = 0;  // kAnswer of an atomic
};
static_assert(sizeof(LinkHeader) == 72);

// kState: one of these a GPU. The first kState carries a descriptor of each one's memory.
struct LinkGpu {
  std::uint32_t up = 0;
  std::uint32_t accel_id = 0;
  std::array<std::uint8_t, 16> ppod_id{};
  std::uint32_t vpod_id = 0;
  std::uint32_t vpod_size = 0;
  std::array<std::uint32_t, 32> active{};
};
static_assert(sizeof(LinkGpu) == 160);

}  // namespace gpusim
