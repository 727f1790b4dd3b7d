// The register space of one GPU, by absolute dword address: BAR 5 shows dwords below its size, the
// SMN index/data window reaches all of them (byte address = 4 x dword, docs/hardware/pci.md).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>

namespace gpusim {

class RegisterFile {
 public:
  using ReadHook = std::function<std::uint32_t(std::uint32_t stored)>;
  using WriteHook = std::function<std::uint32_t(std::uint32_t written, std::uint32_t stored)>;

  struct Register {
    std::string name;
    std::uint32_t stored = 0;
    std::uint32_t reset = 0;
    bool survives_reset = false;
    ReadHook on_read;    // what a read gives; absent: `stored`
    WriteHook on_write;  // does the effect, returns what is stored; absent: the written value
  };

  // Adds a register. Two registers at one dword are a mistake of the model: asserts.
  Register& define(std::uint32_t dword, std::string name, std::uint32_t reset = 0);
  Register* find(std::uint32_t dword);

  // Unknown dwords read 0 and drop writes (docs/hardware/choices.md D37).
  std::uint32_t read(std::uint32_t dword);
  void write(std::uint32_t dword, std::uint32_t value);

  // All registers but those that survive take their reset value, without hooks.
  void reset();

 private:
  std::unordered_map<std::uint32_t, Register> registers_;
};

}  // namespace gpusim
