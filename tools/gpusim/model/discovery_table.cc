#include "tools/gpusim/model/discovery_table.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <numeric>
#include <span>
#include <utility>

#include "base/address.h"
#include "base/bytes.h"
#include "tools/gpusim/model/reset_noise.h"

namespace gpusim {
namespace {

constexpr std::uint32_t kSignature = 0x2821'1407;
constexpr std::uint32_t kIpTableId = 0x5344'5049;
constexpr std::uint32_t kHarvestId = 0x5652'4148;
constexpr std::uint32_t kNpsId = 0x0053'504E;
constexpr std::size_t kTables = 7;
constexpr std::size_t kIpHeaderBytes = 80;
constexpr std::size_t kMaxBytes = 10 * base::kKiB;
constexpr std::uint16_t kIpTableVersion = 4;

struct Version {
  std::uint8_t major, minor, revision;
};

struct Entry {
  std::uint16_t id;
  std::uint8_t instance;
  Version version;
  std::vector<std::uint64_t> bases;
};

std::vector<std::uint64_t> bases_of(const Bases& bases, Ip ip, unsigned instance) {
  std::vector<std::uint64_t> list;
  for (unsigned segment = 0; segment < bases.segments(ip).size(); ++segment)
    list.push_back(bases.at(ip, instance, segment));
  return list;
}

std::vector<Entry> modelled_blocks(const GpuOptions& options, const Bases& bases) {
  std::vector<Entry> entries;
  const auto add = [&](Ip ip, unsigned instance, Version version) {
    entries.push_back({static_cast<std::uint16_t>(ip), static_cast<std::uint8_t>(instance), version,
                       bases_of(bases, ip, instance)});
  };
  add(Ip::kNbio, 0, {6, 3, 2});
  add(Ip::kOsssys, 0, {7, 1, 0});
  add(Ip::kLsdma, 0, {7, 1, 0});
  add(Ip::kMp0, 0, {15, 0, 8});
  add(Ip::kHdp, 0, {7, 1, 0});
  for (unsigned k = 0; k < options.mids; ++k) add(Ip::kMmhub, k, {4, 2, 0});
  for (unsigned j = 0; j < options.xccs; ++j) {
    add(Ip::kGc, j, {12, 1, 0});
    for (unsigned i = 0; i < options.sdma_per_xcc; ++i) {
      const auto instance = static_cast<std::uint8_t>(j * options.sdma_per_xcc + i);
      entries.push_back({static_cast<std::uint16_t>(Ip::kSdma0), instance, Version{7, 1, 0},
                         bases_of(bases, Ip::kGc, j)});
    }
  }
  return entries;
}

// Blocks that a real table lists too and that have no registers here; a reader has to skip them.
void add_strangers(std::vector<Entry>& entries, const Bases& bases, Random& random) {
  entries.push_back(
      {static_cast<std::uint16_t>(Ip::kMp1), 0, Version{15, 0, 8}, bases_of(bases, Ip::kMp0, 0)});
  struct Stranger {
    std::uint16_t id;
    unsigned instances;
    Version version;
  };
  for (const Stranger& stranger :
       {Stranger{3, 1, {15, 0, 0}}, Stranger{4, 1, {15, 0, 8}}, Stranger{35, 2, {4, 2, 0}},
        Stranger{46, 1, {4, 15, 0}}, Stranger{150, 4, {12, 5, 0}}, Stranger{200, 2, {6, 5, 0}}}) {
    for (unsigned instance = 0; instance < stranger.instances; ++instance) {
      std::vector<std::uint64_t> list(1 + random.below(5));
      for (auto& base : list) base = 0x0100'0000 + 0x400 * random.below(0x4000);
      entries.push_back(
          {stranger.id, static_cast<std::uint8_t>(instance), stranger.version, std::move(list)});
    }
  }
}

class Writer {
 public:
  template <class T>
  void put(T value) {
    const auto bytes = base::as_bytes(value);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  template <class T>
  void put_at(std::size_t at, T value) {
    base::store(bytes_, at, value);
  }
  void pad_to(std::size_t size) { bytes_.resize(std::max(size, bytes_.size())); }
  std::size_t size() const { return bytes_.size(); }
  std::uint16_t sum(std::size_t from) const {
    return std::accumulate(
        bytes_.begin() + static_cast<std::ptrdiff_t>(from), bytes_.end(), std::uint16_t{0},
        [](std::uint16_t sum, std::byte byte) {
          return static_cast<std::uint16_t>(sum + std::to_integer<unsigned>(byte));
        });
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

void put_ip_table(Writer& out, const std::vector<Entry>& entries, bool wide) {
  const std::size_t start = out.size();
  out.put(kIpTableId);
  out.put(kIpTableVersion);
  out.put(std::uint16_t{0});  // size, below
  out.put(std::uint32_t{0});  // id
  out.put(std::uint16_t{1});  // dies
  out.put(std::uint16_t{0});  // die 0: id, offset in the binary
  out.put(static_cast<std::uint16_t>(start + kIpHeaderBytes));
  out.pad_to(start + 78);
  out.put(static_cast<std::uint8_t>(wide ? 1 : 0));
  out.pad_to(start + kIpHeaderBytes);
  out.put(std::uint16_t{0});
  out.put(static_cast<std::uint16_t>(entries.size()));
  for (const Entry& entry : entries) {
    out.put(entry.id);
    out.put(entry.instance);
    out.put(static_cast<std::uint8_t>(entry.bases.size()));
    out.put(entry.version);
    out.put(std::uint8_t{0});  // sub-revision, variant
    for (const std::uint64_t base : entry.bases) {
      if (wide)
        out.put(base);
      else
        out.put(static_cast<std::uint32_t>(base));
    }
  }
  out.put_at(start + 6, static_cast<std::uint16_t>(out.size() - start));
}

// One memory channel is fused off, as on most parts.
void put_harvest_table(Writer& out) {
  const std::size_t start = out.size();
  out.put(kHarvestId);
  out.put(std::uint32_t{0});
  out.put(static_cast<std::uint16_t>(Ip::kUmc));
  out.put(std::uint8_t{3});
  out.pad_to(start + 8 + 32 * 4);
}

void put_nps_table(Writer& out, std::uint64_t vram_bytes) {
  const std::size_t start = out.size();
  out.put(kNpsId);
  out.put(std::uint16_t{1});
  out.put(std::uint16_t{0});
  out.put(std::uint32_t{12 + 8 + 12 * 16});
  out.put(std::uint32_t{1});  // NPS1
  out.put(std::uint32_t{1});
  out.put(std::uint64_t{0});
  out.put(vram_bytes - 1);
  out.pad_to(start + 12 + 8 + 12 * 16);
}

}  // namespace

std::vector<std::byte> build_discovery(const GpuOptions& options, const Bases& bases) {
  Random random(options.seed ^ 0xD15C'07E4);
  std::vector<Entry> entries = modelled_blocks(options, bases);
  add_strangers(entries, bases, random);
  for (std::size_t i = entries.size(); i > 1; --i)
    std::swap(entries[i - 1], entries[random.below(i)]);

  Writer out;
  out.put(kSignature);
  out.put(static_cast<std::uint16_t>(options.binary_major));
  out.put(std::uint16_t{0});
  out.put(std::uint32_t{0});  // checksum and size, below
  if (options.binary_major >= 2) {
    out.put(static_cast<std::uint16_t>(kTables));
    out.put(std::uint16_t{0});
  }
  const std::size_t list = out.size();
  out.pad_to(list + kTables * 8);
  const auto add_table = [&](std::size_t index, auto put_table) {
    const std::size_t start = out.size();
    put_table();
    out.put_at(list + 8 * index, static_cast<std::uint16_t>(start));
    out.put_at(list + 8 * index + 2, out.sum(start));
    out.put_at(list + 8 * index + 4, static_cast<std::uint16_t>(out.size() - start));
  };
  add_table(0, [&] { put_ip_table(out, entries, options.bases_64bit); });
  add_table(2, [&] { put_harvest_table(out); });
  add_table(5, [&] { put_nps_table(out, options.vram_bytes); });
  assert(out.size() <= kMaxBytes);
  out.put_at(10, static_cast<std::uint16_t>(out.size()));
  out.put_at(8, out.sum(10));
  return out.take();
}

std::uint64_t discovery_offset(const GpuOptions& options) {
  if (options.discovery == DiscoveryPlace::kTopOfVram) return options.vram_bytes - 64 * base::kKiB;
  return options.vram_bytes - base::kMiB + base::kPageSize * Random(options.seed).below(128);
}

}  // namespace gpusim
