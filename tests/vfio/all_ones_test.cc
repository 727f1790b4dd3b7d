#include "vfio/all_ones.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

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

// When a device goes away there may be no memory left to write.
TEST(AllOnes, NothingIsWrittenWhenTheyAreNeeded) {
  const auto file = base::make_memfd("bar", base::kPageSize).value();
  const auto bar =
      base::Mapping::map(file.get(), 0, base::kPageSize, PROT_READ | PROT_WRITE).value();
  const auto ones = AllOnes::create(bar.size()).value();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit nothing{0, before.rlim_max};
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &nothing), 0);
  const bool stands = ones->stand_in(bar.data(), bar.size());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  EXPECT_TRUE(stands);
  EXPECT_EQ(*bar.at<std::uint32_t>(0), 0xffffffffu);
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

// All mappings that this process may have but a few.
class FewMappingsLeft {
 public:
  explicit FewMappingsLeft(std::size_t left) {
    std::ifstream("/proc/sys/vm/max_map_count") >> limit_;
    size_ = (limit_ + 2) * base::kPageSize;
    void* const at =
        ::mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return;
    at_ = static_cast<std::byte*>(at);
    // Each second page other than its neighbours: two more mappings each.
    std::size_t page = 1;
    while (page < limit_ && split(page, PROT_READ)) page += 2;
    used_up_ = page < limit_;
    for (std::size_t given = 0; given < left && page > 2; given += 2) split(page -= 2, PROT_NONE);
  }
  ~FewMappingsLeft() { ::munmap(at_, size_); }
  FewMappingsLeft(const FewMappingsLeft&) = delete;
  bool used_up() const { return used_up_; }

 private:
  bool split(std::size_t page, int protection) {
    return ::mprotect(at_ + page * base::kPageSize, base::kPageSize, protection) == 0;
  }

  std::size_t limit_ = 0;
  std::size_t size_ = 0;
  std::byte* at_ = nullptr;
  bool used_up_ = false;
};

// A mapping that stays keeps the device, and the kernel waits for it without end.
TEST(BarMemory, LetsGoOfAnAreaThatAllOnesFindNoRoomIn) {
#if defined(GPUUMD_SANITIZED)
  GTEST_SKIP() << "sanitizers want mappings of their own";
#endif
  constexpr std::uint64_t kBar = 64 * base::kMiB;  // 32 mappings of all ones
  const auto file = base::make_memfd("a bar of no room", kBar).value();
  std::vector<base::Mapping> mappings;
  mappings.push_back(base::Mapping::map(file.get(), 0, kBar, PROT_READ | PROT_WRITE).value());
  const std::vector<vfio::MappedArea> areas = {{0, kBar, mappings.back().data()}};
  const auto memory = vfio::BarMemory::create(std::move(mappings), areas).value();
  bool gone = false, stands = true;
  {
    const FewMappingsLeft few(8);
    if (!few.used_up()) GTEST_SKIP() << "vm.max_map_count is out of reach";
    stands = memory->ones().stand_in(areas[0].data, kBar);
    gone = memory->let_go();
  }
  EXPECT_FALSE(stands) << "the test's own premise";
  EXPECT_TRUE(gone);
  std::ifstream maps("/proc/self/maps");
  const std::string all(std::istreambuf_iterator<char>(maps), {});
  EXPECT_EQ(all.find("a bar of no room"), std::string::npos);
}

}  // namespace
}  // namespace vfio_test
