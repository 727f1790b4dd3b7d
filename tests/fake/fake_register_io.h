// Registers that remember: every access is recorded, and a test can answer for any of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <vector>

#include "daemon/gpu/registers/register_io.h"

namespace fake {

class FakeRegisterIo : public gpuumd::RegisterIo {
 public:
  struct Access {
    bool write = false;
    std::uint32_t dword = 0;
    std::uint32_t value = 0;
    friend bool operator==(const Access&, const Access&) = default;
    friend std::ostream& operator<<(std::ostream& out, const Access& a) {
      return out << (a.write ? "write" : "read") << std::hex << " [" << a.dword << "] " << a.value
                 << std::dec;
    }
  };

  std::uint32_t read(std::uint32_t dword) override {
    count();
    std::uint32_t value = ~0u;
    if (!lost_) {
      const auto hook = on_read.find(dword);
      value = hook != on_read.end() ? hook->second() : values[dword];
    }
    log.push_back({false, dword, value});
    return value;
  }
  void write(std::uint32_t dword, std::uint32_t value) override {
    count();
    if (lost_) return;
    log.push_back({true, dword, value});
    values[dword] = value;
    if (const auto hook = on_write.find(dword); hook != on_write.end()) hook->second(value);
  }
  bool lost() const override { return lost_; }

  // The device goes with the access number `n` from now (1: the next one).
  void lose_at(unsigned n) { accesses_left_ = n; }
  void lose() { lost_ = true; }

  // What was written, in order.
  std::vector<Access> writes() const {
    std::vector<Access> only;
    for (const auto& access : log)
      if (access.write) only.push_back(access);
    return only;
  }
  // Place of the first write of that kind in writes().
  std::optional<std::size_t> written_at(std::uint32_t dword) const {
    const auto all = writes();
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i].dword == dword) return i;
    return {};
  }

  std::map<std::uint32_t, std::uint32_t> values;  // 0 where nothing was put
  std::map<std::uint32_t, std::function<std::uint32_t()>> on_read;
  std::map<std::uint32_t, std::function<void(std::uint32_t)>> on_write;  // after it was stored
  std::vector<Access> log;

 private:
  void count() {
    if (accesses_left_ > 0 && --accesses_left_ == 0) lost_ = true;
  }

  bool lost_ = false;
  unsigned accesses_left_ = 0;
};

}  // namespace fake
