#include "daemon/gpu/bringup/discovery.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/address.h"
#include "base/bytes.h"

namespace gpuumd::discovery {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::uint32_t kSignature = 0x28211407;
constexpr std::size_t kMajor = 4, kMinor = 6, kChecksum = 8, kSummed = 10, kTotal = 10;
constexpr std::size_t kList1 = 12, kList1Entries = 7;  // major 1
constexpr std::size_t kCount2 = 12, kList2 = 16;       // major 2
constexpr std::size_t kListEntry = 8;
constexpr std::size_t kIpDiscovery = 0, kHarvest = 2;  // places in the list

constexpr std::uint32_t kIpSignature = 0x53445049;
constexpr std::size_t kIpVersion = 4, kIpSize = 6, kIpDies = 12, kIpDieList = 14;
constexpr std::size_t kIpFlags = 78, kIpHeader = 80, kMaxDies = 16;
constexpr std::size_t kDieHeader = 4, kEntryHeader = 8;

constexpr std::uint32_t kHarvestSignature = 0x56524148;
constexpr std::size_t kHarvestHeader = 8, kHarvestEntries = 32, kHarvestEntry = 4;

// The highest base that leaves room for every offset in 32 bits.
constexpr std::uint64_t kHighestBase = 0xFFFF0000;

std::unexpected<base::Error> bad(std::string what) {
  return base::fail(base::Errc::kProtocol, "discovery table: " + std::move(what));
}

std::uint16_t u16(Bytes bytes, std::size_t at) { return base::load<std::uint16_t>(bytes, at); }
std::uint32_t u32(Bytes bytes, std::size_t at) { return base::load<std::uint32_t>(bytes, at); }
std::uint8_t u8(Bytes bytes, std::size_t at) { return base::load<std::uint8_t>(bytes, at); }

std::uint16_t sum(Bytes bytes) {
  std::uint16_t total = 0;
  for (const auto byte : bytes)
    total = static_cast<std::uint16_t>(total + std::to_integer<unsigned>(byte));
  return total;
}

// Where a table of the list is, and what its bytes have to add up to.
struct Entry {
  std::size_t offset = 0;  // 0: there is none
  std::uint16_t checksum = 0;
};

base::Result<Entry> find_table(Bytes binary, std::size_t index) {
  std::size_t list = kList1, count = kList1Entries;
  if (u16(binary, kMajor) == 2) {
    if (binary.size() < kList2) return bad("too short for a table list");
    list = kList2;
    count = u16(binary, kCount2);
  }
  if (index >= count) return Entry{};
  const std::size_t at = list + index * kListEntry;
  if (!base::fits(at, kListEntry, binary.size())) return bad("too short for its table list");
  return Entry{u16(binary, at), u16(binary, at + 2)};
}

// The bytes of a table whose size is known, checked.
base::Result<Bytes> table_bytes(Bytes binary, Entry entry, std::size_t size, const char* name) {
  if (!base::fits(entry.offset, size, binary.size()))
    return bad(std::string(name) + " reaches past the end");
  const Bytes table = binary.subspan(entry.offset, size);
  if (sum(table) != entry.checksum) return bad(std::string(name) + " has a wrong checksum");
  return table;
}

base::Result<std::size_t> parse_entry(Bytes rest, bool wide, std::uint16_t die, Table& table) {
  if (rest.size() < kEntryHeader) return bad("an IP entry reaches past the table");
  const std::size_t count = u8(rest, 3);
  const std::size_t width = wide ? 8 : 4;
  const std::size_t size = kEntryHeader + count * width;
  if (rest.size() < size) return bad("the bases of an IP entry reach past the table");

  Block block;
  block.id = HardwareId(u16(rest, 0));
  block.instance = u8(rest, 2);
  block.die = die;
  block.version = {u8(rest, 4), u8(rest, 5), u8(rest, 6)};
  block.sub_revision = u8(rest, 7) & 0xF;
  block.variant = u8(rest, 7) >> 4;
  block.bases.fill(RegisterBlock::kAbsent);
  for (std::size_t i = 0; i < std::min(count, block.bases.size()); ++i) {
    const std::size_t at = kEntryHeader + i * width;
    const auto base = wide ? base::load<std::uint64_t>(rest, at) : u32(rest, at);
    if (base <= kHighestBase) block.bases[i] = static_cast<std::uint32_t>(base);
  }
  table.blocks.push_back(block);
  return size;
}

base::Result<void> parse_die(Bytes binary, std::size_t at, std::size_t end, Table& table) {
  if (!base::fits(at, kDieHeader, end)) return bad("a die reaches past the table");
  const auto die = u16(binary, at);
  const unsigned blocks = u16(binary, at + 2);
  at += kDieHeader;
  for (unsigned i = 0; i < blocks; ++i) {
    const auto size = parse_entry(binary.subspan(at, end - at), table.wide_bases, die, table);
    if (!size) return std::unexpected(size.error());
    at += *size;
  }
  return {};
}

base::Result<void> parse_ip_discovery(Bytes binary, Table& table) {
  const auto entry = find_table(binary, kIpDiscovery);
  if (!entry) return std::unexpected(entry.error());
  if (entry->offset == 0) return bad("no IP discovery table in it");
  if (!base::fits(entry->offset, kIpHeader, binary.size()))
    return bad("IP discovery reaches past the end");
  const Bytes header = binary.subspan(entry->offset, kIpHeader);
  if (u32(header, 0) != kIpSignature) return bad("IP discovery has no signature");
  const std::size_t size = u16(header, kIpSize);
  if (size < kIpHeader) return bad("IP discovery is smaller than its header");
  if (auto bytes = table_bytes(binary, *entry, size, "IP discovery"); !bytes)
    return std::unexpected(bytes.error());

  table.version = u16(header, kIpVersion);
  if (table.version != 3 && table.version != 4)
    return base::fail(base::Errc::kUnsupported,
                      "discovery table: IP discovery of version " + std::to_string(table.version));
  table.wide_bases = table.version == 4 && (u8(header, kIpFlags) & 1) != 0;
  table.dies = u16(header, kIpDies);
  if (table.dies == 0 || table.dies > kMaxDies)
    return bad("it lists " + std::to_string(table.dies) + " dies");
  for (std::size_t die = 0; die < table.dies; ++die) {
    const std::size_t at = u16(header, kIpDieList + die * 4 + 2);
    if (at < entry->offset + kIpHeader) return bad("a die lies outside the table");
    if (auto parsed = parse_die(binary, at, entry->offset + size, table); !parsed) return parsed;
  }
  return {};
}

// Takes the blocks out that are there but must not be used.
base::Result<void> apply_harvest(Bytes binary, Table& table) {
  const auto entry = find_table(binary, kHarvest);
  if (!entry) return std::unexpected(entry.error());
  if (entry->offset == 0) return {};
  const auto harvest =
      table_bytes(binary, *entry, kHarvestHeader + kHarvestEntries * kHarvestEntry, "harvest info");
  if (!harvest) return std::unexpected(harvest.error());
  if (u32(*harvest, 0) != kHarvestSignature) return bad("harvest info has no signature");
  for (std::size_t i = 0; i < kHarvestEntries; ++i) {
    const std::size_t at = kHarvestHeader + i * kHarvestEntry;
    const auto id = HardwareId(u16(*harvest, at));
    const auto instance = u8(*harvest, at + 2);
    if (id == HardwareId{}) break;
    table.harvested += static_cast<std::uint32_t>(std::erase_if(
        table.blocks, [&](const Block& b) { return b.id == id && b.instance == instance; }));
  }
  return {};
}

}  // namespace

bool has_signature(Bytes bytes) { return bytes.size() >= 4 && u32(bytes, 0) == kSignature; }

base::Result<std::size_t> total_size(Bytes header) {
  if (header.size() < kHeaderBytes) return bad("shorter than its header");
  if (!has_signature(header)) return bad("no signature");
  const std::size_t size = u16(header, kTotal);
  if (size < kList1 + kListEntry) return bad("impossible size of " + std::to_string(size));
  return size;
}

base::Result<Table> parse(Bytes binary) {
  const auto size = total_size(binary);
  if (!size) return std::unexpected(size.error());
  if (*size > binary.size()) return bad("cut short");
  binary = binary.first(*size);
  if (sum(binary.subspan(kSummed)) != u16(binary, kChecksum)) return bad("wrong checksum");

  Table table;
  table.binary_major = u16(binary, kMajor);
  table.binary_minor = u16(binary, kMinor);
  if (table.binary_major != 1 && table.binary_major != 2)
    return base::fail(base::Errc::kUnsupported,
                      "discovery table: binary of version " + std::to_string(table.binary_major));
  if (auto parsed = parse_ip_discovery(binary, table); !parsed)
    return std::unexpected(parsed.error());
  if (auto harvested = apply_harvest(binary, table); !harvested)
    return std::unexpected(harvested.error());
  return table;
}

}  // namespace gpuumd::discovery
