// Entries as the daemon writes them and as the model walks them (docs/hardware/gpuvm.md).
#include <gtest/gtest.h>

#include "daemon/gpu/memory/pte.h"
#include "fabric/layout.h"
#include "tests/contract/contract_rig.h"
#include "tools/gpusim/model/pte.h"

namespace contract {
namespace {

using gpusim::EntryKind;
using gpuumd::PhysRun;
using gpuumd::PteFlags;
using gpuumd::PteFormat;

template <class A, class B>
constexpr bool same = A::kMask == B::kMask;
using D = gpuumd::PTE;
using M = gpusim::PTE;
static_assert(same<D::VALID, M::V> && same<D::SYSTEM, M::S> && same<D::SNOOPED, M::C>);
static_assert(same<D::EXECUTABLE, M::X> && same<D::READABLE, M::R> && same<D::WRITEABLE, M::W>);
static_assert(same<D::FRAGMENT, M::FRAGMENT> && same<D::ADDRESS, M::ADDRESS>);
static_assert(same<D::PRT, M::T> && same<D::BUS_ATOMICS, M::B> && same<D::IS_PTE, M::P>);
static_assert(same<gpuumd::PDE::VALID, gpusim::PDE::V> &&
              same<gpuumd::PDE::SYSTEM, gpusim::PDE::S>);
static_assert(same<gpuumd::PDE::ADDRESS, gpusim::PDE::TABLE>);

PteFormat format(bool a1, std::uint64_t physical = 0) {
  return {gpuumd::VramMap(1 << 30, 1 << 30, base::McAddress(0x80'0000'0000),
                          base::PhysicalAddress(physical)),
          a1, false};
}

struct Example {
  const char* what;
  std::uint64_t daemon;
  std::uint64_t sheet;
  EntryKind kind;
};

TEST(PageTables, WorkedExamples) {
  const PteFlags rw{.read = true, .write = true};
  const auto npa = PhysRun::npa(base::Npa(0), 1);
  const auto vram = PhysRun::vram(base::VramOffset(0), 1);
  const Example examples[] = {
      {"remote, UC", format(false).leaf(npa, rw).raw(), 0x89C0'0000'0000'0064, EntryKind::kRemote},
      {"remote, NC (A1)", format(true).leaf(npa, rw).raw(), 0x8900'0000'0000'0064,
       EntryKind::kRemote},
      {"exported, NC", format(false).leaf(vram, rw).raw(), 0x8800'0000'0000'0065, EntryKind::kLeaf},
      {"exported, RW (A1)", format(true).leaf(vram, rw).raw(), 0x8880'0000'0000'0065,
       EntryKind::kLeaf},
      {"host", format(false).leaf(PhysRun::system(base::Iova(0x1'2345'6000), 1), rw).raw(),
       0x80C0'0001'2345'6067, EntryKind::kLeaf},
      {"being revoked", format(false).leaf(vram, {true, true, true, false}).raw(),
       0x8800'0000'0000'0075, EntryKind::kLeaf},
      {"accelerator 5, page 0x12345",
       format(false).leaf(PhysRun::npa(fabric::npa_of(base::AccelId(5), 0x12345), 1), rw).raw(),
       0x89C0'0A00'1234'5064, EntryKind::kRemote},
      {"no retry", gpuumd::kNoRetryEntry, 0x6, EntryKind::kFinal},
      {"retry", gpuumd::kRetryEntry, 0, EntryKind::kRetryable},
  };
  for (const auto& example : examples) {
    EXPECT_EQ(example.daemon, example.sheet) << example.what;
    for (unsigned level = 0; level < 4; ++level)
      EXPECT_EQ(gpusim::classify(base::Value<gpusim::PTE>(example.sheet), level), example.kind)
          << example.what << " at level " << level;
    EXPECT_EQ(gpuumd::is_leaf(example.daemon),
              example.kind == EntryKind::kLeaf || example.kind == EntryKind::kRemote)
        << example.what;
  }
}

TEST(PageTables, DirectoriesAndRoots) {
  const auto vram = gpuumd::directory_entry(0x11'0000'3000, false).raw();
  const auto host = gpuumd::directory_entry(0xF'FFFF'FFFF'F000, true).raw();
  EXPECT_EQ(vram, 0x0000'0011'0000'3005u);
  EXPECT_EQ(host, 0x000F'FFFF'FFFF'F007u);
  for (const auto entry : {vram, host}) {
    EXPECT_EQ(gpusim::classify(base::Value<gpusim::PTE>(entry), 0), EntryKind::kMalformed);
    for (unsigned level = 1; level < 5; ++level)
      EXPECT_EQ(gpusim::classify(base::Value<gpusim::PTE>(entry), level), EntryKind::kDirectory);
    EXPECT_EQ(base::Value<gpusim::PDE>(entry).get<gpusim::PDE::S>(), entry == host);
  }
}

TEST(PageTables, NpaIds) {
  for (const std::uint16_t id : {0, 1, 5, 255, 1023}) {
    const auto npa = fabric::npa_of(base::AccelId(id), 0x1FFF'FFFF);
    EXPECT_EQ(gpusim::npa_accel(npa.value()), id);
    EXPECT_EQ(npa.value() >> 51, 0u);
  }
}

// The daemon's tables and registers, the model's walk, in every hub.
TEST(PageTables, AWalkArrivesWhereTheDaemonMeant) {
  Rig rig;
  using namespace gpuumd::vm_hub;
  constexpr std::uint64_t kVa = 0x0123'4567'89AB'C000 & ((1ull << 57) - 1);
  const PteFormat entries{
      gpuumd::VramMap(Rig::kVram, Rig::kVram, rig.topology.fb_base, rig.topology.vram_base), false,
      false};
  const PteFlags rw{.read = true, .write = true};
  std::array<gpuumd::EngineMemory, 5> tables;
  for (auto& table : tables) table = rig.allocate(base::kPageSize);
  const auto slot = [&](unsigned level) -> std::uint64_t& {
    return reinterpret_cast<std::uint64_t*>(tables[level].cpu)[kVa >> (12 + 9 * level) & 511];
  };
  for (unsigned level = 4; level > 0; --level)
    slot(level) = gpuumd::directory_entry(rig.physical(tables[level - 1]), false).raw();
  const auto root = gpuumd::directory_entry(rig.physical(tables[4]), false).raw();

  const auto remote = fabric::npa_of(base::AccelId(9), 0x777);
  struct Case {
    PhysRun run;
    gpusim::Run::Kind kind;
    std::uint64_t address;
  };
  const Case cases[] = {
      {PhysRun::vram(base::VramOffset(0x30'0000), 1), gpusim::Run::Kind::kVram, 0x30'0000},
      {PhysRun::system(base::Iova(Rig::kHost + 0x3000), 1), gpusim::Run::Kind::kSystem,
       Rig::kHost + 0x3000},
      {PhysRun::npa(remote, 1), gpusim::Run::Kind::kRemote, remote.value()},
  };
  constexpr unsigned kVmid = 6;
  for (const auto& hub : rig.hubs()) {
    const auto& r = hub.registers;
    r.write(base::Value<CONTEXT_PAGE_TABLE_BASE_ADDR_LO32>(lo(root)), kVmid);
    r.write(base::Value<CONTEXT_PAGE_TABLE_BASE_ADDR_HI32>(hi(root)), kVmid);
    r.write(base::Value<CONTEXT_PAGE_TABLE_START_ADDR_LO32>(0), kVmid);
    r.write(base::Value<CONTEXT_PAGE_TABLE_START_ADDR_HI32>(0), kVmid);
    r.write(base::Value<CONTEXT_PAGE_TABLE_END_ADDR_LO32>(~0u), kVmid);
    r.write(base::Value<CONTEXT_PAGE_TABLE_END_ADDR_HI32>(0x1FFF), kVmid);
    r.write(base::Value<CONTEXT_CNTL>()
                .with<CONTEXT_CNTL::ENABLE_CONTEXT>(true)
                .with<CONTEXT_CNTL::PAGE_TABLE_DEPTH>(4),
            kVmid);
    for (const auto& c : cases) {
      slot(0) = entries.leaf(c.run, rw).raw();
      gpusim::Run run;
      const gpusim::Requester who{"test", kVmid, 10, 10};
      ASSERT_EQ(rig.model_hub(hub).translate(who, kVa + 0x123, 16, gpusim::AccessType::kWrite, run),
                gpusim::Outcome::kOk);
      EXPECT_EQ(run.kind, c.kind);
      EXPECT_EQ(run.address, c.address + 0x123);
      // A flush as the daemon asks for it, by the engine that it uses.
      if (hub.kind == gpuumd::HubKind::kMmhub) {
        EXPECT_TRUE(r.read<INVALIDATE_ENG_SEM>(kCpuEngine).get<INVALIDATE_ENG_SEM::SEMAPHORE>());
      }
      r.write(base::Value<INVALIDATE_ENG_REQ>(0x08F8'0000 | 1u << kVmid), kCpuEngine);
      EXPECT_EQ(r.read<INVALIDATE_ENG_ACK>(kCpuEngine).raw() >> kVmid & 1, 1u);
      if (hub.kind == gpuumd::HubKind::kMmhub)
        r.write(base::Value<INVALIDATE_ENG_SEM>(0), kCpuEngine);
      EXPECT_EQ(rig.model_hub(hub).cached(kVmid), 0u);
    }
    EXPECT_EQ(rig.model_hub(hub).counters().flushes_without_semaphore, 0u);
  }
}

}  // namespace
}  // namespace contract
