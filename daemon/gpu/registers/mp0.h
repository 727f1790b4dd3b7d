// Mailbox registers of MP0, the security processor. First reading of docs/hardware/psp.md.
#pragma once

#include <cstdint>

#include "base/register.h"

namespace gpuumd::mp0 {

// C2PMSG_n is at 0x40 + n of segment 1.
template <unsigned N>
using Message = base::Reg<1, 0x40 + N>;

struct C2PMSG_33 : Message<33> {  // boot loader
  using COMPLETE = base::Field<C2PMSG_33, 31, 31, bool>;
  // Absolute, for what comes before discovery.
  static constexpr std::uint32_t kBeforeDiscovery = 0x16061;
};
struct C2PMSG_35 : Message<35> {};  // boot loader accepts commands
struct C2PMSG_59 : Message<59> {};  // boot loader version

enum class RingCommand : std::uint8_t {
  kNone = 0,
  kInitGpcom = 2,
  kDestroyRings = 3,
  kMode1Reset = 7
};
struct C2PMSG_64 : Message<64> {
  using STATUS = base::Field<C2PMSG_64, 15, 0>;
  using COMMAND = base::Field<C2PMSG_64, 19, 16, RingCommand>;
  using RESPONSE = base::Field<C2PMSG_64, 31, 31, bool>;
  static constexpr std::uint32_t kBeforeDiscovery = 0x16080;
};
struct C2PMSG_67 : Message<67> {};  // ring write pointer, in dwords
struct C2PMSG_69 : Message<69> {};  // ring address, low half
struct C2PMSG_70 : Message<70> {};  // ring address, high half
struct C2PMSG_71 : Message<71> {};  // ring size in bytes
struct C2PMSG_81 : Message<81> {};  // sign of life

struct IH_CREDIT : base::Reg<1, 0x140> {};
struct IH_SW_INT : base::Reg<1, 0x141> {
  using ID = base::Field<IH_SW_INT, 7, 0>;
  using VALID = base::Field<IH_SW_INT, 8, 8, bool>;
};
struct IH_SW_INT_CTRL : base::Reg<1, 0x142> {
  using INT_MASK = base::Field<IH_SW_INT_CTRL, 0, 0, bool>;  // true: off
  using INT_ACK = base::Field<IH_SW_INT_CTRL, 8, 8, bool>;
};

}  // namespace gpuumd::mp0
