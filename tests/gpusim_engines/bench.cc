#include "tests/gpusim_engines/bench.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/bytes.h"

namespace gpusim::test {

std::vector<Iv> FakeInterrupts::of(std::uint8_t client, std::uint8_t source) const {
  std::vector<Iv> found;
  std::ranges::copy_if(ivs, std::back_inserter(found),
                       [&](const Iv& iv) { return iv.client == client && iv.source == source; });
  return found;
}

// --- bus ---

std::byte* FakeBus::map(std::uint64_t iova, std::size_t bytes, bool writeable,
                        bool with_descriptor) {
  Map& map = maps_[iova];
  map = {std::vector<std::byte>(bytes), writeable, with_descriptor};
  return map.memory.data();
}

FakeBus::Map* FakeBus::find(std::uint64_t at, std::size_t size, std::uint64_t& offset) {
  auto map = maps_.upper_bound(at);
  if (map == maps_.begin()) return nullptr;
  --map;
  offset = at - map->first;
  return base::fits(offset, size, map->second.memory.size()) ? &map->second : nullptr;
}

std::byte* FakeBus::direct(base::Iova at, std::size_t size, bool write) {
  std::uint64_t offset = 0;
  Map* map = find(at.value(), size, offset);
  if (map == nullptr || !map->with_descriptor || (write && !map->writeable)) return nullptr;
  return map->memory.data() + offset;
}

bool FakeBus::read(base::Iova at, std::span<std::byte> to) {
  ++messages;
  std::uint64_t offset = 0;
  Map* map = find(at.value(), to.size(), offset);
  if (map == nullptr) return false;
  std::memcpy(to.data(), map->memory.data() + offset, to.size());
  return true;
}

bool FakeBus::write(base::Iova at, std::span<const std::byte> from) {
  ++messages;
  std::uint64_t offset = 0;
  Map* map = find(at.value(), from.size(), offset);
  if (map == nullptr || !map->writeable) return false;
  std::memcpy(map->memory.data() + offset, from.data(), from.size());
  return true;
}

// --- fabric ---

Outcome FakeFabric::access(RemoteAccess& access) {
  const std::uint64_t bytes =
      access.kind == RemoteAccess::Kind::kRead ? access.read_to.size() : access.write_from.size();
  seen.push_back({access.kind, access.npa, bytes});
  if (retries_first != 0) {
    --retries_first;
    return Outcome::kRetry;
  }
  if (answer != Outcome::kOk) return answer;
  const std::uint64_t offset = access.npa & ((1ull << 41) - 1);
  if (!base::fits(offset, bytes, memory.size())) return Outcome::kRefused;
  switch (access.kind) {
    case RemoteAccess::Kind::kRead:
      std::memcpy(access.read_to.data(), memory.data() + offset, bytes);
      break;
    case RemoteAccess::Kind::kWrite:
      std::memcpy(memory.data() + offset, access.write_from.data(), bytes);
      break;
    case RemoteAccess::Kind::kAtomic: {
      const auto old = base::load<std::uint64_t>(memory, offset);
      base::store(std::span(memory), offset, old + access.operand);
      access.result = old;
      break;
    }
  }
  return Outcome::kOk;
}

// --- bench ---

Bench::Bench(const BenchOptions& options)
    : context{registers, interrupts, fabric, clock, [this] { return &bus; }, &log, &hooks, 0, 7} {
  VramOptions memory;
  memory.bytes = kVram;
  memory.visible_bytes = kVram;
  memory.hdp_strict = options.hdp_strict;
  memory.poison = options.poison;
  vram = *Vram::create(memory, clock);
  gfx = std::make_unique<VmHub>(VmHubConfig{false, 0, 2, kGc0, kFbBase, kFbOffset}, context, *vram);
  mm = std::make_unique<VmHub>(VmHubConfig{true, 8, 0, kMm, kFbBase, kFbOffset}, context, *vram);
  SdmaConfig engine;
  engine.node_id = 2;
  engine.gc0_base = kGc0;
  engine.gc1_base = kGc1;
  engine.stall = options.stall;
  engine.step_bytes = options.step_bytes;
  sdma0 = std::make_unique<SdmaEngine>(engine, context, *gfx);
  engine.instance = 1;
  sdma1 = std::make_unique<SdmaEngine>(engine, context, *gfx);
  lsdma = std::make_unique<Lsdma>(LsdmaConfig{kLsdma, 256 * 1024}, context, *mm);
  for (const bool mmhub : {false, true}) write(row(mmhub, 0x02E), 3u << 18);
  enable_vmid0();
}

void Bench::enable_vmid0() {
  for (const bool mmhub : {false, true}) {
    write_pair(row(mmhub, 0x10A), 0);
    write_pair(row(mmhub, 0x10C), ~0ull >> 18);
    write_pair(row(mmhub, 0x104), 0);  // AGP top below bottom: closed
    write_pair(row(mmhub, 0x106), 1);
    write(row(mmhub, 0x110), kInterruptBits);
  }
}

std::uint64_t Bench::allocate_page() {
  const std::uint64_t page = next_page_;
  next_page_ += 4096;
  EXPECT_LE(next_page_, kVram);
  std::memset(vram->cpu_view().data() + page, 0, 4096);
  return page;
}

void Bench::set_word(std::uint64_t vram_offset, std::uint64_t value) {
  base::store(vram->cpu_view(), vram_offset, value);
}

std::uint64_t Bench::get_word(std::uint64_t vram_offset) {
  return base::load<std::uint64_t>(vram->cpu_view(), vram_offset);
}

void Bench::enable_context(bool mmhub, unsigned vmid, std::uint32_t control) {
  const std::uint64_t root = allocate_page();
  roots_[{mmhub, vmid}] = root;
  write_pair(row(mmhub, 0x17B + 2 * vmid), (kPhysical + root) | kV | kC);
  write_pair(row(mmhub, 0x19B + 2 * vmid), 0);
  write_pair(row(mmhub, 0x1BB + 2 * vmid), kLastPage);
  write(row(mmhub, 0x110 + vmid), 1 | 4 << 1 | control);
}

std::uint64_t Bench::entry_at(bool mmhub, unsigned vmid, std::uint64_t va, unsigned level) {
  std::uint64_t table = roots_.at({mmhub, vmid});
  for (unsigned at = 4;; --at) {
    const std::uint64_t entry = table + ((va >> (12 + 9 * at)) & 511) * 8;
    if (at == level) return entry;
    std::uint64_t next = get_word(entry);
    if ((next & kV) == 0) {
      next = (kPhysical + allocate_page()) | kV | kC;
      set_word(entry, next);
    }
    EXPECT_EQ(next & kP, 0u) << "a leaf is in the way";
    table = (next & 0x000F'FFFF'FFFF'F000) - kPhysical;
  }
}

void Bench::set(bool mmhub, unsigned vmid, std::uint64_t va, std::uint64_t entry, unsigned level) {
  set_word(entry_at(mmhub, vmid, va, level), entry);
}

void Bench::flush(bool mmhub, unsigned vmid, unsigned type, std::uint32_t levels) {
  constexpr unsigned kEngine = 17;
  if (mmhub) {
    EXPECT_EQ(read(row(true, 0x121 + kEngine)), 1u) << "somebody holds the semaphore";
  }
  write(row(mmhub, 0x133 + kEngine), levels | type << 16 | 1u << vmid);
  if (mmhub) write(row(true, 0x121 + kEngine), 0);
}

Outcome Bench::load(bool mmhub, unsigned vmid, std::uint64_t va, std::uint64_t& value) {
  return hub(mmhub).read(who(vmid), va, base::as_writable_bytes(value));
}

Outcome Bench::store(bool mmhub, unsigned vmid, std::uint64_t va, std::uint64_t value) {
  return hub(mmhub).write(who(vmid), va, base::as_bytes(value));
}

// --- ring ---

Ring::Ring(Bench& bench, const Options& options) : bench_(bench), options_(options) {
  const std::uint64_t bytes = 4ull << options_.log2_dwords;
  memory_ = bench.allocate_page();
  for (std::uint64_t at = 4096; at < bytes; at += 4096) bench.allocate_page();
  if (options_.va == 0) options_.va = Bench::kFbBase + memory_;
  bench.write(Bench::kGc0 + options_.instance * 0x600 + 0x00D, 0x3801 | 1u << 11);
  bench.write(Bench::kGc1 + options_.instance * 0x30 + 0x588E, 0);
  bench.write_pair(reg(0x201), options_.va >> 8);
  bench.write_pair(reg(0x203), 0);
  bench.write_pair(reg(0x205), 0);
  bench.write(reg(0x211), (0x200 + options_.instance * 64 + options_.queue * 2) << 2);
  bench.write(reg(0x20F), 1u << 28);
  bench.write(reg(0x209), 1);
  enable();
}

void Ring::enable() {
  const std::uint32_t control =
      options_.log2_dwords << 1 | (options_.privileged ? 1u << 23 : 0) | options_.vmid << 24;
  bench_.write(reg(0x200), control);
  bench_.write(reg(0x200), control | 1);
}

std::uint32_t Ring::reg(std::uint32_t offset) const {
  return Bench::kGc0 + options_.instance * 0x600 + options_.queue * 0x3C + offset;
}

SdmaEngine& Ring::engine() const { return options_.instance == 0 ? *bench_.sdma0 : *bench_.sdma1; }

Ring& Ring::push(std::initializer_list<std::uint32_t> dwords) {
  const std::uint64_t mask = (4ull << options_.log2_dwords) - 1;
  for (const std::uint32_t dword : dwords) {
    base::store(bench_.vram->cpu_view(), memory_ + (wptr_ & mask), dword);
    wptr_ += 4;
  }
  return *this;
}

Ring& Ring::copy(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
  return push({1, lo(bytes - 1), 0, lo(from), hi(from), lo(to), hi(to)});
}

Ring& Ring::fill(std::uint64_t to, std::uint32_t value, std::uint64_t bytes) {
  return push({11 | 2u << 30, lo(to), hi(to), value, lo(bytes - 1)});
}

Ring& Ring::fence(std::uint64_t at, std::uint32_t value) {
  return push({5 | 3 << 16, lo(at), hi(at), value});
}

Ring& Ring::trap(std::uint32_t context) { return push({6, context}); }

Ring& Ring::indirect(unsigned vmid, std::uint64_t at, std::uint32_t dwords) {
  while (wptr_ / 4 % 8 != 2) push({0});
  return push({4 | vmid << 16, lo(at), hi(at), dwords, 0, 0});
}

Ring& Ring::submit() {
  EXPECT_TRUE(engine().doorbell(0x200 + options_.instance * 64 + options_.queue * 2, wptr_, 8));
  return *this;
}

bool Ring::step() { return engine().step(); }

void Ring::run(unsigned limit) {
  while (limit-- != 0)
    if (!engine().step()) return;
  ADD_FAILURE() << "the engine never came to rest";
}

std::uint64_t Ring::rptr() const {
  return bench_.read(reg(0x203)) | std::uint64_t{bench_.read(reg(0x204))} << 32;
}

}  // namespace gpusim::test
