#include "tools/gpusim/model/register_file.h"

#include <cassert>
#include <utility>

namespace gpusim {

RegisterFile::Register& RegisterFile::define(std::uint32_t dword, std::string name,
                                             std::uint32_t reset) {
  const auto [at, added] = registers_.try_emplace(dword);
  assert(added && "two registers at one dword");
  Register& reg = at->second;
  reg.name = std::move(name);
  reg.stored = reset;
  reg.reset = reset;
  return reg;
}

RegisterFile::Register* RegisterFile::find(std::uint32_t dword) {
  const auto at = registers_.find(dword);
  return at == registers_.end() ? nullptr : &at->second;
}

std::uint32_t RegisterFile::read(std::uint32_t dword) {
  Register* reg = find(dword);
  if (reg == nullptr) return 0;
  return reg->on_read ? reg->on_read(reg->stored) : reg->stored;
}

void RegisterFile::write(std::uint32_t dword, std::uint32_t value) {
  Register* reg = find(dword);
  if (reg == nullptr) return;
  reg->stored = reg->on_write ? reg->on_write(value, reg->stored) : value;
}

void RegisterFile::reset() {
  for (auto& [dword, reg] : registers_)
    if (!reg.survives_reset) reg.stored = reg.reset;
}

}  // namespace gpusim
