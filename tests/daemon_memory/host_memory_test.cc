#include "daemon/gpu/memory/host_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "daemon/gpu/memory/pools.h"
#include "tests/daemon_memory/worker_fixture.h"

namespace {

using namespace gpuumd;

class HostMemoryTest : public ::testing::Test {
 protected:
  HostBuffer create(std::uint64_t bytes, bool huge = false) {
    std::optional<base::Result<HostBuffer>> made;
    memory.create({.name = "test", .bytes = bytes, .huge = huge},
                  [&](base::Result<HostBuffer> r) { made = std::move(r); });
    EXPECT_TRUE(reactor.until([&] { return made.has_value(); }));
    EXPECT_TRUE(*made) << made->error().message();
    return std::move(**made);
  }
  template <class T, class F>
  base::Result<T> wait(F start) {
    std::optional<base::Result<T>> got;
    start([&](base::Result<T> r) { got = std::move(r); });
    EXPECT_TRUE(reactor.until([&] { return got.has_value(); }));
    return std::move(*got);
  }
  void TearDown() override {
    EXPECT_TRUE(reactor.until([&] { return worker->pending() == 0; }));
  }

  fake::PostedReactor reactor;
  fake::IommuDevice device;
  std::unique_ptr<MemoryWorker> worker = std::move(*MemoryWorker::create(reactor));
  IovaSpace space = std::move(*IovaSpace::create(device.limits, 1));
  HostMemory memory{*worker};
  DmaMapper dma{device, space, *worker};
};

TEST_F(HostMemoryTest, BuffersAreSealedAndHaveAllTheirPages) {
  const HostBuffer buffer = create(5 * base::kMiB + 1);
  EXPECT_EQ(buffer.bytes(), 5 * base::kMiB + 4096);
  EXPECT_EQ(::fcntl(buffer.fd()->get(), F_GET_SEALS), base::kSizeSeals);
  struct stat status{};
  ::fstat(buffer.fd()->get(), &status);
  EXPECT_EQ(static_cast<std::uint64_t>(status.st_size), buffer.bytes());
  EXPECT_EQ(static_cast<std::uint64_t>(status.st_blocks) * 512, buffer.bytes());
}

TEST_F(HostMemoryTest, HugePagesOrAnOrdinaryAnswer) {
  const HostBuffer buffer = create(3 * base::kMiB, true);
  const auto& counters = memory.counters();
  if (buffer.pages() == HostPages::kHuge2M) {
    EXPECT_EQ(buffer.bytes(), 4 * base::kMiB);
    EXPECT_EQ(counters.huge, 1u);
  } else {
    EXPECT_EQ(buffer.bytes(), 3 * base::kMiB);
    EXPECT_EQ(counters.huge_fallbacks, 1u);
  }
  EXPECT_EQ(counters.failures, 0u);
}

TEST_F(HostMemoryTest, ASizeThatCannotBeIsAnError) {
  for (const std::uint64_t bytes : {std::uint64_t{0}, ~std::uint64_t{0}}) {
    const auto made = wait<HostBuffer>(
        [&](auto done) { memory.create({.name = "test", .bytes = bytes}, std::move(done)); });
    EXPECT_FALSE(made);
  }
}

TEST_F(HostMemoryTest, CpuMappingShowsTheBuffer) {
  const HostBuffer buffer = create(3 * base::kMiB);
  auto mapping = wait<base::Mapping>([&](auto done) { memory.map_cpu(buffer, std::move(done)); });
  ASSERT_TRUE(mapping);
  EXPECT_EQ(mapping->size(), buffer.bytes());
  std::memset(mapping->data(), 0x5A, mapping->size());
}

TEST_F(HostMemoryTest, DMA_4_MapsAndUnmapsAreEqualInTheEnd) {
  const HostBuffer buffer = create(5 * base::kMiB);
  auto chunks = wait<std::vector<HostChunk>>(
      [&](auto done) { dma.map_all(buffer, vfio::Rights::kReadWrite, std::move(done)); });
  ASSERT_TRUE(chunks);
  ASSERT_EQ(chunks->size(), 3u);
  EXPECT_EQ((*chunks)[2].bytes(), base::kMiB);
  EXPECT_TRUE((*chunks)[0].iova().aligned(2 * base::kMiB));
  EXPECT_EQ((*chunks)[1].offset(), 2 * base::kMiB);
  EXPECT_EQ(device.mapped(), 3u);
  EXPECT_EQ(space.used(), buffer.bytes());
  chunks->clear();
  ASSERT_TRUE(reactor.until([&] { return dma.counters().unmaps == 3; }));
  EXPECT_EQ(dma.counters().maps, 3u);
  EXPECT_EQ(dma.counters().mapped_bytes, 0u);
  EXPECT_EQ(device.mapped(), 0u);
  EXPECT_EQ(space.used(), 0u);
}

TEST_F(HostMemoryTest, DMA_9_AFailureInTheMiddleUndoesTheRest) {
  const HostBuffer buffer = create(6 * base::kMiB);
  for (int step = 1; step <= 3; ++step) {
    device.refuse_maps = step;
    const auto chunks = wait<std::vector<HostChunk>>(
        [&](auto done) { dma.map_all(buffer, vfio::Rights::kReadWrite, std::move(done)); });
    ASSERT_FALSE(chunks);
    EXPECT_EQ(chunks.error().code, base::Errc::kLimit);
    ASSERT_TRUE(reactor.until([&] { return worker->pending() == 0; }));
    EXPECT_EQ(device.mapped(), 0u);
    EXPECT_EQ(space.used(), 0u);
  }
}

// "A request whose client died completes, and its result is undone."
TEST_F(HostMemoryTest, AnAnswerThatNobodyTakesIsUndone) {
  const HostBuffer buffer = create(2 * base::kMiB);
  dma.map(buffer, 0, 2 * base::kMiB, vfio::Rights::kRead, [](base::Result<HostChunk>) {});
  ASSERT_TRUE(reactor.until([&] { return dma.counters().unmaps == 1; }));
  EXPECT_EQ(device.mapped(), 0u);
}

#ifndef NDEBUG
TEST_F(HostMemoryTest, DMA_3_UnmapBeforeClearOrFlushIsOurMistake) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the worker is a second thread
  const HostBuffer buffer = create(4096);
  auto chunk = wait<HostChunk>(
      [&](auto done) { dma.map(buffer, 0, 4096, vfio::Rights::kReadWrite, std::move(done)); });
  ASSERT_TRUE(chunk);
  DmaUse use(*chunk);
  EXPECT_DEATH(chunk->reset(), "written == 0");
  use.cleared();
  EXPECT_DEATH(chunk->reset(), "unflushed == 0");
  use.flushed();
  chunk->reset();
  EXPECT_TRUE(reactor.until([&] { return device.mapped() == 0; }));
}
#endif

TEST_F(HostMemoryTest, TablePoolTakesVisibleVramThenHostMemory) {
  auto vram = std::move(*Vram::create(64 * base::kMiB, base::kMiB, {}));  // 256 pages visible
  std::vector<TablePage> taken;
  TablePool pool(reactor, vram, memory, dma, {.low = 16, .target = 64});
  ASSERT_TRUE(reactor.until([&] { return pool.ready() >= 64; }));
  EXPECT_EQ(pool.host_pages(), 0u);
  bool ready = false;
  pool.when_ready(400, [&](base::Result<void> result) { ready = result.has_value(); });
  ASSERT_TRUE(reactor.until([&] { return ready; }));
  EXPECT_EQ(pool.vram_pages(), 256u);
  EXPECT_EQ(pool.host_pages(), 512u);
  for (int i = 0; i < 400; ++i) {
    taken.push_back(pool.take());
    ASSERT_TRUE(taken.back());
    if (taken.back().place().kind == TablePlace::Kind::kHost) *taken.back().place().host = i;
  }
  EXPECT_EQ(pool.counters().empty, 0u);
  taken.clear();
  EXPECT_EQ(pool.ready(), 768u);
}

// Clients were promised the rest, visible or not.
TEST_F(HostMemoryTest, TablePoolTakesNoMoreVramThanIsKeptForTables) {
  auto vram = std::move(*Vram::create(64 * base::kMiB, base::kMiB, {}));
  TablePool pool(reactor, vram, memory, dma,
                 {.low = 16, .target = 64, .vram_bytes = 256 * base::kKiB + 1});
  bool ready = false;
  pool.when_ready(400, [&](base::Result<void> result) { ready = result.has_value(); });
  ASSERT_TRUE(reactor.until([&] { return ready; }));
  EXPECT_EQ(pool.vram_pages(), 64u);
  EXPECT_EQ(vram.visible_usage().used, 256 * base::kKiB);
  EXPECT_EQ(pool.host_pages(), 512u);
}

TEST_F(HostMemoryTest, AnEmptyTablePoolIsCountedAndAnswered) {
  auto vram = std::move(*Vram::create(64 * base::kMiB, 0, {}));
  device.refuse_maps = 1;
  TablePool pool(reactor, vram, memory, dma, {.low = 16, .target = 64});
  EXPECT_FALSE(pool.take());
  EXPECT_EQ(pool.counters().empty, 1u);
  std::optional<base::Result<void>> answer;
  pool.when_ready(1, [&](base::Result<void> result) { answer = std::move(result); });
  ASSERT_TRUE(reactor.until([&] { return answer.has_value(); }));
  EXPECT_EQ(answer->error().code, base::Errc::kLimit);
  reactor.advance(std::chrono::seconds(1));  // it tries again by itself
  ASSERT_TRUE(reactor.until([&] { return pool.ready() > 0; }));
}

TEST_F(HostMemoryTest, ChunkPoolFillsItselfAndCountsWhenEmpty) {
  HostChunkPool pool(reactor, memory, dma, 3);
  EXPECT_FALSE(pool.take());
  EXPECT_EQ(pool.counters().empty, 1u);
  ASSERT_TRUE(reactor.until([&] { return pool.ready() == 3; }));
  HostChunk chunk = pool.take();
  ASSERT_TRUE(chunk);
  EXPECT_EQ(chunk.run().pages(), 512u);
  ASSERT_TRUE(reactor.until([&] { return pool.ready() == 3; }));
}

}  // namespace
