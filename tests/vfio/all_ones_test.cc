#include "vfio/all_ones.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "base/address.h"
#include "base/shared_memory.h"
#include "vfio/bar_memory.h"

namespace vfio_test {
namespace {

using vfio::AllOnes;

std::size_t mappings_of_this_process() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  std::size_t count = 0;
  while (std::getline(maps, line)) ++count;
  return count;
}

TEST(AllOnes, StandsInForAMapping) {
  const auto file = base::make_memfd("bar", 8 * base::kPageSize).value();
  const auto bar =
      base::Mapping::map(file.get(), 0, 8 * base::kPageSize, PROT_READ | PROT_WRITE).value();
  std::memset(bar.data(), 0x5a, bar.size());
  const auto ones = AllOnes::create(bar.size()).value();
  EXPECT_EQ(ones->tile(), bar.size()) << "no more than the area";

  errno = ENXIO;
  ASSERT_TRUE(ones->stand_in(bar.data() + base::kPageSize, 6 * base::kPageSize));
  EXPECT_EQ(errno, ENXIO);
  for (const std::size_t page : {1u, 6u})
    EXPECT_EQ(*bar.at<std::uint64_t>(page * base::kPageSize), ~std::uint64_t{0}) << page;
  for (const std::size_t page : {0u, 7u})
    EXPECT_EQ(*bar.at<std::uint64_t>(page * base::kPageSize), 0x5a5a5a5a5a5a5a5a) << page;

  *bar.at<std::uint32_t>(base::kPageSize) = 7;  // goes nowhere
  const auto file_again = base::Mapping::map(file.get(), 0, 8 * base::kPageSize, PROT_READ).value();
  EXPECT_EQ(*file_again.at<std::uint32_t>(base::kPageSize), 0x5a5a5a5au);
}

// A process has some 65530 mappings, and a BAR may be as large as VRAM.
TEST(AllOnes, ABarOf256GiBTakesFewMappingsAndLittleMemory) {
  constexpr std::uint64_t kBar = 256 * base::kGiB;
  void* const at =
      ::mmap(nullptr, kBar, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  const auto before = mappings_of_this_process();
  const auto ones = AllOnes::create(kBar).value();
  EXPECT_LE(ones->tile(), 64 * base::kMiB);
  auto* const bytes = static_cast<std::byte*>(at);
  EXPECT_TRUE(ones->stand_in(bytes, kBar));
  EXPECT_LE(mappings_of_this_process(), before + 4200);
  for (std::uint64_t offset = 0; offset < kBar; offset += 37 * base::kGiB + 4096)
    EXPECT_EQ(bytes[offset], std::byte{0xff}) << offset;
  EXPECT_EQ(bytes[kBar - 1], std::byte{0xff});
  ::munmap(at, kBar);
}

TEST(AllOnes, RefusalIsSaid) {
  const auto ones = AllOnes::create(base::kPageSize).value();
  EXPECT_FALSE(ones->stand_in(reinterpret_cast<std::byte*>(1), base::kPageSize)) << "no address";
}

TEST(BarMemory, FindsAreasAndLetsGoOfAll) {
  const auto file = base::make_memfd("bar", 4 * base::kPageSize).value();
  std::vector<base::Mapping> mappings;
  std::vector<vfio::MappedArea> areas;
  for (const std::uint64_t page : {0u, 2u}) {
    mappings.push_back(base::Mapping::map(file.get(), page * base::kPageSize, base::kPageSize,
                                          PROT_READ | PROT_WRITE)
                           .value());
    areas.push_back({page * base::kPageSize, base::kPageSize, mappings.back().data()});
  }
  auto memory = vfio::BarMemory::create(std::move(mappings), areas).value();
  EXPECT_EQ(memory->at(8), areas[0].data + 8);
  EXPECT_EQ(memory->at(base::kPageSize), nullptr);
  EXPECT_EQ(memory->at(2 * base::kPageSize + 4), areas[1].data + 4);
  EXPECT_EQ(memory->at(3 * base::kPageSize), nullptr);

  vfio::BarMemories all;
  all.add(memory);
  EXPECT_TRUE(all.let_go());
  for (const auto& area : memory->areas()) EXPECT_EQ(area.data[17], std::byte{0xff});
  EXPECT_TRUE(all.let_go());
  memory.reset();
  EXPECT_TRUE(all.let_go()) << "it is gone";
}

}  // namespace
}  // namespace vfio_test
