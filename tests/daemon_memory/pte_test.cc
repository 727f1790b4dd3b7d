#include "daemon/gpu/memory/pte.h"

#include <gtest/gtest.h>

#include "daemon/gpu/memory/table_page.h"

namespace {

using namespace gpuumd;

const VramMap kMap(base::kGiB, 64 * base::kMiB, base::McAddress(0x80'0000'0000),
                   base::PhysicalAddress(0));
constexpr PteFlags kReadWrite{.read = true, .write = true};

// The worked examples of docs/hardware/gpuvm.md.
TEST(Pte, NpaExamplesOfTheManual) {
  const PhysRun npa = PhysRun::npa(base::Npa(0), 1);
  EXPECT_EQ((PteFormat{.vram = kMap}.leaf(npa, kReadWrite).raw()), 0x89C0'0000'0000'0064u);
  EXPECT_EQ((PteFormat{.vram = kMap, .stepping_a1 = true}.leaf(npa, kReadWrite).raw()),
            0x8900'0000'0000'0064u);
  // A GART mapping of ring pages is UC whatever the stepping.
  EXPECT_EQ((PteFormat{.vram = kMap, .stepping_a1 = true}
                 .leaf(npa, {.read = true, .write = true, .uncached = true})
                 .raw()),
            0x89C0'0000'0000'0064u);
}

TEST(Pte, ExporterExamplesOfTheManual) {
  const PhysRun vram = PhysRun::vram(base::VramOffset(0), 1);
  EXPECT_EQ((PteFormat{.vram = kMap}.leaf(vram, kReadWrite).raw()), 0x8800'0000'0000'0065u);
  EXPECT_EQ((PteFormat{.vram = kMap, .stepping_a1 = true}.leaf(vram, kReadWrite).raw()),
            0x8880'0000'0000'0065u);
}

TEST(Pte, VramIsNamedByItsPhysicalAddress) {
  const VramMap map(base::kGiB, 64 * base::kMiB, base::McAddress(0x80'0000'0000),
                    base::PhysicalAddress(0x1'0000'0000));
  const Pte entry =
      PteFormat{.vram = map}.leaf(PhysRun::vram(base::VramOffset(0x5000), 1), {.read = true});
  EXPECT_EQ(entry.get<PTE::ADDRESS>(), 0x1'0000'5000u >> 12);
  EXPECT_FALSE(entry.get<PTE::SYSTEM>());
  EXPECT_FALSE(entry.get<PTE::WRITEABLE>());
}

TEST(Pte, HostMemoryIsSnoopedSystemAndUncached) {
  const Pte entry = PteFormat{.vram = kMap}.leaf(PhysRun::system(base::Iova(0x1234'5000), 1),
                                                 {.read = true, .write = true, .execute = true});
  EXPECT_EQ(entry.raw(), 0x80C0'0000'1234'5077u);
  EXPECT_TRUE((PteFormat{.vram = kMap, .host_atomics = true}
                   .leaf(PhysRun::system(base::Iova(0), 1), kReadWrite)
                   .get<PTE::BUS_ATOMICS>()));
}

TEST(Pte, DirectoryEntryIsValidAndSnooped) {
  EXPECT_EQ(TablePlace::in_vram(base::VramOffset(0x7000)).pointer(kMap).raw(), 0x7005u);
  EXPECT_EQ(TablePlace::in_host(base::Iova(0x9000), nullptr).pointer(kMap).raw(), 0x9007u);
}

// errata C4: what does not fit is refused before it could become a wrong entry.
TEST(Pte, C4_AddressesThatNoEntryCanNameAreRefused) {
  const PteFormat format{.vram = kMap};
  EXPECT_TRUE(format.can_encode(PhysRun::system(base::Iova(kPhysicalEnd - 4096), 1)));
  EXPECT_FALSE(format.can_encode(PhysRun::system(base::Iova(kPhysicalEnd - 4096), 2)));
  EXPECT_FALSE(format.can_encode(PhysRun::system(base::Iova(kPhysicalEnd), 1)));
  EXPECT_FALSE(format.can_encode(PhysRun::system(base::Iova(0x800), 1)));
  EXPECT_FALSE(format.can_encode(PhysRun::vram(base::VramOffset(base::kGiB - 4096), 2)));
  EXPECT_FALSE(format.can_encode(PhysRun::vram(base::VramOffset(0), 0)));
  EXPECT_FALSE(format.can_encode(PhysRun::vram(base::VramOffset(0), ~std::uint64_t{0})));
}

}  // namespace
