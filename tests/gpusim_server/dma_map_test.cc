// The memory behind DMA mappings: which descriptors are mapped, shared, or reached by pread.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "base/shared_memory.h"
#include "raw_client.h"
#include "tools/gpusim/server/dma_map.h"

namespace gpusim::testing {
namespace {

base::UniqueFd copy_of(const base::UniqueFd& fd) { return fd.duplicate().value(); }

TEST(DmaMemory, OneMappingServesManyRangesOfAFile) {
  const auto fd = base::make_memfd("client", 0x100000).value();
  DmaMap map;
  for (std::uint64_t i = 0; i < 0x100; ++i)
    ASSERT_EQ(map.map(0x1000000 + i * 0x2000, 0x1000, true, true, copy_of(fd), i * 0x1000), 0);
  const std::byte* first = map.direct(0x1000000, 8, true);
  for (std::uint64_t i = 0; i < 0x100; ++i)
    EXPECT_EQ(map.direct(0x1000000 + i * 0x2000, 8, true), first + i * 0x1000);
}

TEST(DmaMemory, NeighboursAreListedAsOne) {
  DmaMap map;
  for (const std::uint64_t at : {0x30000u, 0x10000u, 0x11000u, 0x13000u})
    ASSERT_EQ(map.map(at, 0x1000, true, true, {}, 0), 0);
  using Covered = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
  EXPECT_EQ(map.covered(), (Covered{{0x10000, 0x2000}, {0x13000, 0x1000}, {0x30000, 0x1000}}));
  ASSERT_EQ(map.unmap(0x11000, 0x1000), 0);
  EXPECT_EQ(map.covered().front(), std::pair(std::uint64_t{0x10000}, std::uint64_t{0x1000}));
}

TEST(DmaMemory, FileThatGrewIsMappedAgain) {
  const auto fd = base::make_memfd("client", 0x1000, F_SEAL_SHRINK).value();
  DmaMap map;
  ASSERT_EQ(map.map(0x10000, 0x1000, true, true, copy_of(fd), 0), 0);
  ASSERT_EQ(::ftruncate(fd.get(), 0x100000), 0);
  ASSERT_EQ(map.map(0x20000, 0x1000, true, true, copy_of(fd), 0xFF000), 0);
  *map.direct(0x20FFF, 1, true) = std::byte{7};
  *map.direct(0x10000, 1, true) = std::byte{8};
  std::byte last{};
  ASSERT_EQ(::pread(fd.get(), &last, 1, 0xFFFFF), 1);
  EXPECT_EQ(last, std::byte{7});
}

TEST(DmaMemory, FileThatCanShrinkIsNeverMapped) {
  const auto fd = base::make_memfd("client", 0x2000, 0).value();
  DmaMap map;
  ASSERT_EQ(map.map(0x10000, 0x2000, true, true, copy_of(fd), 0), 0);
  EXPECT_EQ(map.direct(0x10000, 8, false), nullptr);
  const auto piece = map.piece(0x10008, 8);
  ASSERT_NE(piece.range, nullptr);
  EXPECT_TRUE(piece.range->file->write(8, pattern(8)));
  std::vector<std::byte> got(8);
  EXPECT_TRUE(piece.range->file->read(8, got));
  EXPECT_EQ(got, pattern(8));
  ASSERT_EQ(::ftruncate(fd.get(), 0), 0);
  EXPECT_FALSE(piece.range->file->read(8, got));
  EXPECT_FALSE(piece.range->file->write(8, got));
  struct stat status{};
  ASSERT_EQ(::fstat(fd.get(), &status), 0);
  EXPECT_EQ(status.st_size, 0);
}

TEST(DmaMemory, RightsComeFromTheDescriptor) {
  const auto fd = base::make_memfd("client", 0x1000).value();
  const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
  const auto read_only = [&] { return base::UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)); };
  DmaMap map;
  EXPECT_EQ(map.map(0x10000, 0x1000, true, true, read_only(), 0), EACCES);
  EXPECT_EQ(map.map(0x10000, 0x1000, true, false, read_only(), 0), 0);
  // A writable mapping of the same file lends its right to nobody.
  EXPECT_EQ(map.map(0x20000, 0x1000, true, true, copy_of(fd), 0), 0);
  EXPECT_EQ(map.map(0x30000, 0x1000, true, true, read_only(), 0), EACCES);
  EXPECT_EQ(map.direct(0x10000, 8, true), nullptr);
  EXPECT_NE(map.direct(0x10000, 8, false), nullptr);
}

TEST(DmaMemory, OnlyRegularFiles) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
  const base::UniqueFd other(pipe_ends[1]);
  DmaMap map;
  EXPECT_EQ(map.map(0x10000, 0x1000, true, false, base::UniqueFd(pipe_ends[0]), 0), EINVAL);
  EXPECT_EQ(map.map(0x10000, 0x1000, true, false,
                    base::UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC)), 0),
            EINVAL);
}

TEST(DmaMemory, PieceStopsAtTheNextMapping) {
  DmaMap map;
  ASSERT_EQ(map.map(0x10000, 0x1000, true, true, {}, 0), 0);
  EXPECT_EQ(map.piece(0xF000, 0x5000).range, nullptr);
  EXPECT_EQ(map.piece(0xF000, 0x5000).size, 0x1000u);
  EXPECT_EQ(map.piece(0x10800, 0x5000).size, 0x800u);
  EXPECT_EQ(map.piece(0x10800, 0x5000).inside, 0x800u);
  EXPECT_EQ(map.piece(0x11000, 0x5000).size, 0x5000u);
}

TEST(DmaMemory, LimitOnMappings) {
  DmaMap map;
  for (std::uint64_t i = 0; i < wire::kMaxDmaMaps; ++i)
    ASSERT_EQ(map.map(i * 0x1000, 0x1000, true, true, {}, 0), 0);
  EXPECT_EQ(map.map(0x1000'0000'0000, 0x1000, true, true, {}, 0), ENOSPC);
}

}  // namespace
}  // namespace gpusim::testing
