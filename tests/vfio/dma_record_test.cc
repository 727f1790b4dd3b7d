#include "vfio/kernel/dma_record.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

namespace vfio_test {
namespace {

using base::Errc;
using base::Iova;
using base::kPageSize;

vfio::IovaLimits limits() {
  vfio::IovaLimits limits;
  limits.usable = {{Iova(0), Iova(0xfedfffff)}, {Iova(0xfef00000), Iova(0xffffffffff)}};
  limits.max_mappings = 3;
  return limits;
}

class Record : public testing::Test {
 protected:
  Errc fails(std::uint64_t size, std::uint64_t at, std::uint64_t offset = 0) {
    const auto done = record_.reserve(offset, size, Iova(at));
    EXPECT_FALSE(done);
    return done ? Errc{} : done.error().code;
  }
  void map(std::uint64_t size, std::uint64_t at) {
    ASSERT_TRUE(record_.reserve(0, size, Iova(at)));
    record_.commit(Iova(at));
  }
  vfio::DmaRecord record_{limits()};
};

TEST_F(Record, WholePagesInsideOneRange) {
  EXPECT_EQ(fails(0, 0), Errc::kInvalidArgument);
  EXPECT_EQ(fails(kPageSize, 0x800), Errc::kInvalidArgument);
  EXPECT_EQ(fails(0x1800, 0), Errc::kInvalidArgument);
  EXPECT_EQ(fails(kPageSize, 0, 0x10), Errc::kInvalidArgument);
  EXPECT_EQ(fails(kPageSize, 0xfee00000), Errc::kOutOfRange);
  EXPECT_EQ(fails(2 * kPageSize, 0xfedff000), Errc::kOutOfRange) << "into the gap";
  EXPECT_EQ(fails(0x200000, 0xfedff000), Errc::kOutOfRange) << "over the gap";
  EXPECT_EQ(fails(2 * kPageSize, 0xfffffff000), Errc::kOutOfRange);
  EXPECT_EQ(fails(~std::uint64_t{0xfff}, 0x1000), Errc::kOutOfRange) << "wraps";
  map(kPageSize, 0xfedff000);
  map(kPageSize, 0xfffffff000);
  EXPECT_EQ(record_.count(), 2u);
}

TEST_F(Record, OutOfRangeSaysWhatIsUsable) {
  const auto error = record_.reserve(0, kPageSize, Iova(0xfee00000)).error();
  EXPECT_NE(error.step.find("0xfee00000"), std::string::npos) << error.step;
  EXPECT_NE(error.step.find("[0x0, 0xfedfffff], [0xfef00000, 0xffffffffff]"), std::string::npos)
      << error.step;
}

TEST_F(Record, LargerPagesOfTheIommu) {
  auto wide = limits();
  wide.page_sizes = 0x10000 | 0x200000;
  vfio::DmaRecord record(wide);
  EXPECT_EQ(record.reserve(0, kPageSize, Iova(0)).error().code, Errc::kInvalidArgument);
  EXPECT_TRUE(record.reserve(kPageSize, 0x10000, Iova(0)));
}

TEST_F(Record, OverlapAndLimit) {
  map(2 * kPageSize, 0x10000);
  EXPECT_EQ(fails(kPageSize, 0x10000), Errc::kExists);
  EXPECT_EQ(fails(kPageSize, 0x11000), Errc::kExists);
  EXPECT_EQ(fails(2 * kPageSize, 0xf000), Errc::kExists);
  EXPECT_EQ(fails(0x100000, 0), Errc::kExists) << "around it";
  map(kPageSize, 0xf000);
  map(kPageSize, 0x12000);
  EXPECT_EQ(fails(kPageSize, 0x20000), Errc::kLimit);
}

TEST_F(Record, UnmapIsExact) {
  map(2 * kPageSize, 0x10000);
  const auto claim = [&](std::uint64_t size, std::uint64_t at) {
    const auto done = record_.claim(Iova(at), size);
    return done ? Errc{} : done.error().code;
  };
  EXPECT_EQ(claim(kPageSize, 0x10000), Errc::kNotFound);
  EXPECT_EQ(claim(kPageSize, 0x11000), Errc::kNotFound);
  EXPECT_EQ(claim(4 * kPageSize, 0x10000), Errc::kNotFound);
  EXPECT_EQ(claim(2 * kPageSize, 0x10000), Errc{});
  EXPECT_EQ(claim(2 * kPageSize, 0x10000), Errc::kNotFound) << "somebody is at it";
  EXPECT_EQ(fails(kPageSize, 0x10000), Errc::kExists) << "still mapped";
  record_.drop(Iova(0x10000));
  EXPECT_EQ(record_.count(), 0u);
  map(kPageSize, 0x10000);
}

TEST_F(Record, NotMappedBeforeTheKernelHasDoneIt) {
  ASSERT_TRUE(record_.reserve(0, kPageSize, Iova(0)));
  EXPECT_EQ(record_.claim(Iova(0), kPageSize).error().code, Errc::kNotFound);
  record_.drop(Iova(0));
  map(kPageSize, 0);
}

TEST_F(Record, StopWaitsForWhatIsUnderWay) {
  ASSERT_TRUE(record_.reserve(0, kPageSize, Iova(0)));
  std::atomic<bool> stopped = false;
  std::thread other([&] {
    record_.stop();
    stopped = true;
  });
  // Once it refuses, it has begun to stop; it cannot have ended.
  while (record_.reserve(0, kPageSize, Iova(0x5000))) {
    record_.drop(Iova(0x5000));
    std::this_thread::yield();
  }
  EXPECT_FALSE(stopped);
  record_.commit(Iova(0));
  other.join();
  EXPECT_EQ(record_.claim(Iova(0), kPageSize).error().code, Errc::kDeviceLost);
}

}  // namespace
}  // namespace vfio_test
