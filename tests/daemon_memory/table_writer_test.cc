#include "daemon/gpu/memory/table_writer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "daemon/gpu/memory/entry_store.h"
#include "daemon/gpu/registers/nbio.h"
#include "tests/daemon_memory/memory_fixture.h"

namespace {

using namespace gpuumd;

// Does what it is told when the test says so.
class HeldEngine : public TableEngine {
 public:
  void write(std::vector<EngineWrite> writes, Done done) override {
    jobs.push_back({std::move(writes), std::move(done)});
  }
  void finish(base::Result<void> result = {}) {
    auto job = std::move(jobs.front());
    jobs.pop_front();
    job.done(std::move(result));
  }
  struct Job {
    std::vector<EngineWrite> writes;
    Done done;
  };
  std::deque<Job> jobs;
};

class TableWriterTest : public ::testing::Test {
 protected:
  static TablePlace visible(std::uint64_t at) { return TablePlace::in_vram(base::VramOffset(at)); }
  static TablePlace invisible() {
    return TablePlace::in_vram(base::VramOffset(fake::kVramMap.visible() + 0x3000));
  }
  void write(const TableUpdate& update) {
    writer.write(update,
                 [this](base::Result<void> result) { results.push_back(std::move(result)); });
  }
  TableUpdate link(TablePlace table, std::uint64_t value, std::uint16_t count = 1) {
    TableUpdate update;
    update.link = {{table, 3, count, value, 0x1000}};
    return update;
  }

  fake::FakeBar bar{fake::kVramMap.visible()};
  fake::FakeRegisterIo io;
  HeldEngine engine;
  TableWriter writer{fake::kVramMap, bar, fake::nbio_block(io), nullptr};
  std::vector<base::Result<void>> results;
};

TEST_F(TableWriterTest, StoresThroughTheBarThenFlushesEachStage) {
  std::vector<std::string> order;
  bar.state().on_write = [&](std::uint64_t offset, std::uint64_t) {
    order.push_back(offset < 0x2000 ? "fill" : "link");
  };
  const auto nbio = fake::nbio_block(io);
  io.on_write[nbio.dword<nbio::HDP_MEM_COHERENCY_FLUSH_CNTL>()] = [&](std::uint32_t) {
    order.push_back("flush");
  };
  TableUpdate update;
  update.fill = {{visible(0x1000), 0, 2, 6, 0}};
  update.link = {{visible(0x2000), 5, 1, 0x1005, 0}};
  write(update);
  EXPECT_EQ(order, (std::vector<std::string>{"fill", "fill", "flush", "link", "flush"}));
  EXPECT_FALSE(io.log.back().write);  // read back
  ASSERT_EQ(results.size(), 1u);
  EXPECT_TRUE(results[0]);
  EXPECT_EQ(bar.read64(0x2000 + 5 * 8), 0x1005u);
  EXPECT_EQ(writer.counters().hdp_flushes, 2u);
}

TEST_F(TableWriterTest, HostTablesNeedNoHdpFlush) {
  TablePage::Entries page{};
  write(link(TablePlace::in_host(base::Iova(0x5000), page.data()), 0x9000, 4));
  EXPECT_EQ(page[2], 0u);
  EXPECT_EQ(page[3], 0x9000u);
  EXPECT_EQ(page[6], 0xC000u);
  EXPECT_EQ(page[7], 0u);
  EXPECT_TRUE(io.log.empty());
}

TEST_F(TableWriterTest, InvisibleTablesGoThroughTheEngineFillBeforeLink) {
  writer.set_engine(&engine);
  TableUpdate update;
  update.fill = {{invisible(), 0, 512, 6, 0}};
  update.link = {{visible(0x2000), 0, 1, 7, 0}};
  write(update);
  ASSERT_EQ(engine.jobs.size(), 1u);
  EXPECT_EQ(engine.jobs[0].writes,
            (std::vector<EngineWrite>{{fake::kVramMap.mc(invisible().vram), 512, 6, 0}}));
  EXPECT_EQ(bar.read64(0x2000), 0u);  // not linked while the engine fills
  EXPECT_TRUE(results.empty());
  engine.finish();
  EXPECT_EQ(bar.read64(0x2000), 7u);
  EXPECT_EQ(results.size(), 1u);
}

TEST_F(TableWriterTest, LargeUpdatesGoThroughTheEngine) {
  writer.set_engine(&engine);
  TableUpdate update;
  for (unsigned i = 0; i < 8; ++i)
    update.fill.push_back({visible(0x10000 + i * 0x1000), 0, 512, 6, 0});
  write(update);
  ASSERT_EQ(engine.jobs.size(), 1u);
  EXPECT_EQ(engine.jobs[0].writes.size(), 8u);
  EXPECT_EQ(bar.read64(0x10000), 0u);
  engine.finish();
  EXPECT_EQ(writer.counters().engine_entries, 4096u);
  EXPECT_EQ(writer.counters().cpu_entries, 0u);
}

TEST_F(TableWriterTest, LaterUpdatesWaitForEarlierOnes) {
  writer.set_engine(&engine);
  write(link(invisible(), 1));
  write(link(visible(0x2000), 2));
  EXPECT_EQ(bar.read64(0x2000 + 24), 0u);
  engine.finish();
  EXPECT_EQ(bar.read64(0x2000 + 24), 2u);
  EXPECT_EQ(results.size(), 2u);
}

TEST_F(TableWriterTest, AFailedFillIsNeverLinked) {
  writer.set_engine(&engine);
  TableUpdate update;
  update.fill = {{invisible(), 0, 512, 6, 0}};
  update.link = {{visible(0x2000), 0, 1, 7, 0}};
  write(update);
  write(link(visible(0x3000), 9));
  engine.finish(base::fail(base::Errc::kDeviceError, "SDMA"));
  EXPECT_EQ(bar.read64(0x2000), 0u);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].error().code, base::Errc::kDeviceError);
  EXPECT_TRUE(results[1]);
  EXPECT_EQ(bar.read64(0x3000 + 24), 9u);
}

TEST_F(TableWriterTest, EndingItAnswersWhatWaits) {
  auto gone = std::make_unique<TableWriter>(fake::kVramMap, bar, fake::nbio_block(io), &engine);
  gone->write(link(invisible(), 1), [this](base::Result<void> r) { results.push_back(r); });
  gone.reset();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].error().code, base::Errc::kDeviceLost);
  engine.finish();  // late: finds nobody
}

TEST(EntryStore, VectorStoresEqualScalarOnes) {
  for (unsigned offset = 0; offset < 4; ++offset) {
    for (unsigned count = 0; count < 20; ++count) {
      alignas(64) std::uint64_t pairs[32] = {};
      alignas(64) std::uint64_t single[32] = {};
      store_entries_in_pairs(pairs + offset, count, 0x8000'0000'0000'1065u, 0x1000);
      store_entries_one_by_one(single + offset, count, 0x8000'0000'0000'1065u, 0x1000);
      EXPECT_TRUE(std::equal(std::begin(pairs), std::end(pairs), std::begin(single)))
          << offset << " " << count;
    }
  }
}

}  // namespace
