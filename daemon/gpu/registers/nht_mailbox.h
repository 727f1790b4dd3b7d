// Mailbox of the nHT firmware. First reading of docs/hardware/nht.md, "Mailbox". The
// registers are named by SMN byte address; a RegisterBlock at smn_bases() reaches them, since SMN
// byte 4 x n is the register at absolute dword n (docs/hardware/choices.md D37).
#pragma once

#include <cstdint>

#include "base/register.h"
#include "daemon/gpu/registers/register_io.h"

namespace gpuumd::nht {

constexpr RegisterBlock::Bases smn_bases() {
  RegisterBlock::Bases bases;
  bases.fill(RegisterBlock::kAbsent);
  bases[0] = 0;
  return bases;
}

template <std::uint32_t Byte>
using SmnReg = base::Reg<0, Byte / 4>;

enum class Command : std::uint32_t { kLoad = 1, kHalt = 2 };
enum class Status : std::uint32_t {
  kPreInit = 0xA0,
  kReady = 0xA1,
  kHalted = 0xA2,
  kError = 0xA3,
  kFatal = 0xF0,
};

struct CMD : SmnReg<0x0AE10958> {
  using COMMAND = base::Field<CMD, 31, 0, Command>;
};
struct DATA : SmnReg<0x0AE1095C> {
  using ACCELERATORS = base::Field<DATA, 31, 8>;
};
struct ADDR_LO : SmnReg<0x0AE10960> {};
struct ADDR_HI : SmnReg<0x0AE10964> {};
struct STATUS : SmnReg<0x0AE10968> {
  using STATE = base::Field<STATUS, 31, 0, Status>;
};

}  // namespace gpuumd::nht
