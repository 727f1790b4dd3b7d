#include "daemon/gpu/memory/flush_queue.h"

#include <gtest/gtest.h>

#include "tests/daemon_memory/hub_fixture.h"

namespace {

using namespace gpuumd;
using Access = fake::FakeRegisterIo::Access;
using namespace std::chrono_literals;

class FlushQueueTest : public ::testing::Test {
 protected:
  void submit(FlushTarget target, FlushType type, std::uint64_t first = 0,
              std::uint64_t bytes = 0) {
    base::IntervalSet<base::GpuVa> ranges;
    if (bytes != 0) ranges.insert(base::GpuVa(first), base::GpuVa(first + bytes));
    queue->submit(target, type, ranges, [this](base::Result<void> r) { results.push_back(r); });
  }
  std::vector<std::uint32_t> requests(const VmHub& hub) {
    std::vector<std::uint32_t> values;
    for (const Access& access : f.io.writes())
      if (access.dword == f.req(hub)) values.push_back(access.value);
    return values;
  }
  void make(FlushQueue::Options options) {
    queue.reset();
    queue = std::make_unique<FlushQueue>(reactor, f.hubs, options,
                                         [this](const base::Error& e) { errors.push_back(e); });
  }
  void SetUp() override { make({}); }

  fake::Hubs f;
  fake::ManualReactor reactor;
  std::unique_ptr<FlushQueue> queue;
  std::vector<base::Result<void>> results;
  std::vector<base::Error> errors;
};

// docs/hardware/vmhub.md "Sequences", to the letter.
TEST_F(FlushQueueTest, MmhubSequence) {
  f.io.values[f.cid2(f.hubs[0])] = 0x1;
  f.io.values[f.cid2(f.hubs[1])] = 0x2;
  submit(FlushTarget::npa(), FlushType::kLegacy);
  EXPECT_TRUE(f.io.log.empty());  // not from inside submit()
  reactor.settle();
  std::vector<Access> expected;
  for (unsigned i = 0; i < 2; ++i) {
    const VmHub& hub = f.hubs[i];
    const std::uint32_t cid2 = i + 1;
    expected.push_back({false, f.sem(hub), 1});
    expected.push_back({true, f.req(hub), 0x08F8'8000});
    expected.push_back({false, f.ack(hub), 0x8000});
    expected.push_back({true, f.sem(hub), 0});
    expected.push_back({false, f.cid2(hub), cid2});
    expected.push_back({true, f.cid2(hub), cid2 | 1u << 25});
    expected.push_back({false, f.cid2(hub), cid2 | 1u << 25});
  }
  EXPECT_EQ(f.io.log, expected);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_TRUE(results[0]);
}

// errata C6: no semaphore and no CID2 there.
TEST_F(FlushQueueTest, C6_GfxhubSequence) {
  submit(FlushTarget::client(base::Vmid(5)), FlushType::kLegacy);
  reactor.settle();
  const std::vector<Access> expected = {{true, f.req(f.hubs[2]), 0x08F8'0020},
                                        {true, f.req(f.hubs[3]), 0x08F8'0020},
                                        {false, f.ack(f.hubs[2]), 0x20},
                                        {false, f.ack(f.hubs[3]), 0x20}};
  EXPECT_EQ(f.io.log, expected);
}

TEST_F(FlushQueueTest, A21_TheTypeReachesTheHub) {
  submit(FlushTarget::npa(), FlushType::kHeavy);
  reactor.settle();
  submit(FlushTarget::client(base::Vmid(3)), FlushType::kLight);
  reactor.settle();
  EXPECT_EQ(requests(f.hubs[0]), std::vector<std::uint32_t>{0x08FA'8000});
  EXPECT_EQ(requests(f.hubs[2]), std::vector<std::uint32_t>{0x08F9'0008});
  EXPECT_EQ(queue->counters().heavy, 1u);
}

TEST_F(FlushQueueTest, VmidZeroLivesEverywhere) {
  submit(FlushTarget::vmid0(), FlushType::kLight);
  reactor.settle();
  for (const VmHub& hub : f.hubs) EXPECT_EQ(requests(hub), std::vector<std::uint32_t>{0x08F9'0001});
}

// A client's VMID 15 and the NPA VMID have the same number and are not the same.
TEST_F(FlushQueueTest, ClientVmid15IsNotNpa) {
  submit(FlushTarget::client(base::Vmid(15)), FlushType::kLight);
  reactor.settle();
  EXPECT_TRUE(requests(f.hubs[0]).empty());
  EXPECT_EQ(requests(f.hubs[2]), std::vector<std::uint32_t>{0x08F9'8000});
}

TEST_F(FlushQueueTest, INV_4_RequestsOfOneTurnAreOneFlush) {
  for (unsigned i = 0; i < 100; ++i)
    submit(FlushTarget::client(base::Vmid(3 + i % 4)),
           i == 50 ? FlushType::kHeavy : FlushType::kLight, i * 4096, 4096);
  reactor.settle();
  EXPECT_EQ(requests(f.hubs[2]), std::vector<std::uint32_t>{0x08FA'0078});
  EXPECT_TRUE(requests(f.hubs[0]).empty());
  EXPECT_EQ(results.size(), 100u);
  EXPECT_EQ(queue->counters().requests, 100u);
  EXPECT_EQ(queue->counters().flushes, 1u);
}

TEST_F(FlushQueueTest, WhatComesDuringAFlushWaitsForTheNext) {
  f.acknowledge = false;
  submit(FlushTarget::client(base::Vmid(3)), FlushType::kHeavy);
  reactor.turn();
  // An entry cleared now may have been cached after the flush under way passed it.
  submit(FlushTarget::client(base::Vmid(3)), FlushType::kHeavy);
  reactor.turn();
  EXPECT_EQ(requests(f.hubs[2]).size(), 1u);
  f.acknowledge_all();
  reactor.turn();
  EXPECT_EQ(results.size(), 1u);
  reactor.turn();
  EXPECT_EQ(requests(f.hubs[2]).size(), 2u);
  EXPECT_EQ(results.size(), 1u);
  f.acknowledge_all();
  reactor.turn();
  EXPECT_EQ(results.size(), 2u);
}

TEST_F(FlushQueueTest, DoneOnlyWhenEveryHubAcknowledged) {
  f.acknowledge = false;
  submit(FlushTarget::vmid0(), FlushType::kHeavy);
  reactor.turn();
  for (unsigned i = 0; i < 3; ++i) f.io.values[f.ack(f.hubs[i])] = 1;
  reactor.advance(10ms);
  EXPECT_TRUE(results.empty());
  f.io.values[f.ack(f.hubs[3])] = 1;
  reactor.advance(1ms);
  EXPECT_EQ(results.size(), 1u);
}

TEST_F(FlushQueueTest, ATakenSemaphoreIsWaitedFor) {
  f.semaphore_free = false;
  submit(FlushTarget::npa(), FlushType::kLight);
  reactor.advance(5ms);
  EXPECT_TRUE(requests(f.hubs[0]).empty());
  f.semaphore_free = true;
  reactor.advance(1ms);
  EXPECT_EQ(requests(f.hubs[0]).size(), 1u);
  EXPECT_EQ(results.size(), 1u);
}

TEST_F(FlushQueueTest, ASilentHubIsADeviceErrorAtTheDeadline) {
  f.acknowledge = false;
  submit(FlushTarget::client(base::Vmid(4)), FlushType::kHeavy);
  reactor.turn();
  submit(FlushTarget::npa(), FlushType::kLight);
  reactor.advance(900ms);
  EXPECT_TRUE(results.empty());
  reactor.advance(200ms);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].error().code, base::Errc::kDeviceError);
  EXPECT_EQ(results[1].error().code, base::Errc::kDeviceError);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_NE(errors[0].step.find("no acknowledgement from GFXHUB"), std::string::npos)
      << errors[0].step;
  submit(FlushTarget::npa(), FlushType::kLight);  // and no other is believed later
  reactor.settle();
  EXPECT_EQ(results.back().error().code, base::Errc::kDeviceError);
  EXPECT_EQ(requests(f.hubs[0]).size(), 0u);
}

TEST_F(FlushQueueTest, AllOnesOfALostDeviceAreNoAcknowledgement) {
  f.io.lose_at(2);
  submit(FlushTarget::client(base::Vmid(4)), FlushType::kHeavy);
  reactor.settle();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].error().code, base::Errc::kDeviceLost);
}

TEST_F(FlushQueueTest, EndingItAnswersWhatWaits) {
  f.acknowledge = false;
  submit(FlushTarget::npa(), FlushType::kLight);
  reactor.turn();
  submit(FlushTarget::npa(), FlushType::kLight);
  queue.reset();
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[1].error().code, base::Errc::kDeviceLost);
}

TEST_F(FlushQueueTest, D23_OnePageIsNamedOnlyWhenAllowed) {
  make({.single_page_ranges = true});
  const VmHub& hub = f.hubs[2];
  const auto lo = f.at<vm_hub::INVALIDATE_ENG_ADDR_RANGE_LO32>(hub, 17);
  const auto hi = f.at<vm_hub::INVALIDATE_ENG_ADDR_RANGE_HI32>(hub, 17);
  submit(FlushTarget::client(base::Vmid(3)), FlushType::kLight, 0x1F2'3456'7000, 0x1000);
  reactor.settle();
  EXPECT_EQ(f.io.values[lo], 0x1F23'4567u << 1);
  EXPECT_EQ(f.io.values[hi], 0x0u);
  // Two pages, or two VMIDs: the whole space again.
  submit(FlushTarget::client(base::Vmid(3)), FlushType::kLight, 0x5000, 0x2000);
  reactor.settle();
  EXPECT_EQ(f.io.values[lo], 0xFFFF'FFFFu);
  EXPECT_EQ(f.io.values[hi], 0x3FFFu);
  submit(FlushTarget::client(base::Vmid(3)), FlushType::kLight, 0x5000, 0x1000);
  submit(FlushTarget::client(base::Vmid(4)), FlushType::kLight, 0x5000, 0x1000);
  reactor.settle();
  EXPECT_EQ(f.io.values[lo], 0xFFFF'FFFFu);
}

}  // namespace
