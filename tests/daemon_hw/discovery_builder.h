// Builds discovery binaries, good ones and others, from docs/hardware/discovery.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace daemon_hw {

struct IpEntry {
  std::uint16_t id;
  std::uint8_t instance;
  std::uint8_t major, minor, revision;
  std::vector<std::uint64_t> bases;
};

struct DiscoveryBuilder {
  std::uint16_t binary_major = 1;
  std::uint16_t version = 4;
  bool wide = false;
  std::vector<std::vector<IpEntry>> dies;
  std::vector<std::pair<std::uint16_t, std::uint8_t>> harvested;

  // The blocks of a small GPU: `mids` MMHUBs, `xccs` GCs with two SDMA instances each.
  static DiscoveryBuilder gpu(unsigned mids = 2, unsigned xccs = 2) {
    DiscoveryBuilder builder;
    auto& die = builder.dies.emplace_back();
    die.push_back({108, 0, 6, 3, 2, {0x0, 0x14, 0xD20, 0x10400}});
    die.push_back({40, 0, 7, 1, 0, {0x10A0}});
    die.push_back({255, 0, 15, 0, 8, {0x0, 0x16000, 0x16C00}});
    die.push_back({91, 0, 7, 1, 0, {0x11400}});
    die.push_back({41, 0, 7, 0, 0, {0xF20}});
    for (std::uint8_t i = 0; i < mids; ++i)
      die.push_back({34, i, 4, 2, 0, {0, 0x18000 + 0x40000ull * i, 0x19800 + 0x40000ull * i}});
    for (std::uint8_t i = 0; i < xccs; ++i) {
      const std::vector<std::uint64_t> gc{0x1260 + 0x40000ull * i, 0xA000 + 0x40000ull * i};
      die.push_back({11, i, 12, 1, 0, gc});
      die.push_back({42, static_cast<std::uint8_t>(2 * i), 7, 1, 0, gc});
      die.push_back({42, static_cast<std::uint8_t>(2 * i + 1), 7, 1, 0, gc});
    }
    return builder;
  }

  std::vector<std::byte> build() const {
    Out out;
    const std::size_t list = binary_major == 2 ? 16 : 12;
    const std::size_t ip = list + 7 * 8;
    out.bytes.resize(ip + 80);
    for (std::size_t d = 0; d < dies.size(); ++d) put_die(out, ip, d);
    const std::size_t ip_size = out.bytes.size() - ip;
    out.put<std::uint32_t>(ip, 0x53445049);
    out.put<std::uint16_t>(ip + 4, version);
    out.put<std::uint16_t>(ip + 6, static_cast<std::uint16_t>(ip_size));
    out.put<std::uint16_t>(ip + 12, static_cast<std::uint16_t>(dies.size()));
    out.put<std::uint8_t>(ip + 78, wide ? 1 : 0);
    put_list(out, list + 0 * 8, ip, ip_size);
    if (!harvested.empty()) put_harvest(out, list + 2 * 8);

    out.put<std::uint32_t>(0, 0x28211407);
    out.put<std::uint16_t>(4, binary_major);
    out.put<std::uint16_t>(10, static_cast<std::uint16_t>(out.bytes.size()));
    if (binary_major == 2) out.put<std::uint16_t>(12, 7);
    fix_checksum(out.bytes);
    return std::move(out.bytes);
  }

  static std::uint16_t sum(const std::vector<std::byte>& bytes, std::size_t at, std::size_t size) {
    unsigned total = 0;
    for (std::size_t i = at; i < at + size && i < bytes.size(); ++i)
      total += std::to_integer<unsigned>(bytes[i]);
    return static_cast<std::uint16_t>(total);
  }
  // Of the whole binary.
  static void fix_checksum(std::vector<std::byte>& bytes) {
    const auto total = sum(bytes, 10, bytes.size());
    std::memcpy(bytes.data() + 8, &total, 2);
  }

 private:
  struct Out {
    std::vector<std::byte> bytes;
    template <class T>
    void put(std::size_t at, T value) {
      if (bytes.size() < at + sizeof value) bytes.resize(at + sizeof value);
      std::memcpy(bytes.data() + at, &value, sizeof value);
    }
    template <class T>
    void append(T value) {
      put(bytes.size(), value);
    }
  };

  void put_die(Out& out, std::size_t ip, std::size_t die) const {
    out.put<std::uint16_t>(ip + 14 + die * 4 + 2, static_cast<std::uint16_t>(out.bytes.size()));
    out.append<std::uint16_t>(static_cast<std::uint16_t>(die));
    out.append<std::uint16_t>(static_cast<std::uint16_t>(dies[die].size()));
    for (const auto& entry : dies[die]) {
      out.append<std::uint16_t>(entry.id);
      out.append<std::uint8_t>(entry.instance);
      out.append<std::uint8_t>(static_cast<std::uint8_t>(entry.bases.size()));
      out.append<std::uint8_t>(entry.major);
      out.append<std::uint8_t>(entry.minor);
      out.append<std::uint8_t>(entry.revision);
      out.append<std::uint8_t>(0x21);
      for (const auto base : entry.bases)
        if (wide)
          out.append<std::uint64_t>(base);
        else
          out.append<std::uint32_t>(static_cast<std::uint32_t>(base));
    }
  }
  void put_harvest(Out& out, std::size_t entry) const {
    const std::size_t at = out.bytes.size();
    out.bytes.resize(at + 8 + 32 * 4);
    out.put<std::uint32_t>(at, 0x56524148);
    for (std::size_t i = 0; i < harvested.size(); ++i) {
      out.put<std::uint16_t>(at + 8 + i * 4, harvested[i].first);
      out.put<std::uint8_t>(at + 8 + i * 4 + 2, harvested[i].second);
    }
    put_list(out, entry, at, 8 + 32 * 4);
  }
  static void put_list(Out& out, std::size_t entry, std::size_t at, std::size_t size) {
    out.put<std::uint16_t>(entry, static_cast<std::uint16_t>(at));
    out.put<std::uint16_t>(entry + 2, sum(out.bytes, at, size));
    out.put<std::uint16_t>(entry + 4, static_cast<std::uint16_t>(size));
  }
};

}  // namespace daemon_hw
