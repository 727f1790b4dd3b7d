// The interrupt handler's set-up and its consumer loop, with the test as the device.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "daemon/gpu/interrupt/interrupt_controller.h"
#include "tests/fake/fake_pci_device.h"
#include "tests/fake/fake_register_io.h"

namespace {

using base::Errc;
using gpuumd::InterruptController;
using gpuumd::InterruptVector;
using gpuumd::IvClient;
using gpuumd::PageFault;
using gpuumd::RegisterBlock;
using Access = fake::FakeRegisterIo::Access;
using Doorbell = fake::FakeBar::Doorbell;

constexpr std::uint32_t kIh = 0x10A0, kNbio = 0xD20;
constexpr std::uint32_t kRing = gpuumd::kInterruptRingBytes;
constexpr std::uint64_t kRptr0Door = 4 * 0x340, kRptr1Door = 4 * 0x342;
constexpr std::uint32_t kCamAck = 0xa4;
// Above 2^48, where the address registers need all their bits.
constexpr std::uint64_t kRing0At = 0x1AB'CDEF'0123'4500, kRing1At = 0x1AB'CDEF'1123'4500,
                        kWriteBackAt = 0x1AB'CDEF'2123'4540;

InterruptVector vector(IvClient client, std::uint8_t source, std::uint32_t src0 = 0) {
  return {
      {static_cast<std::uint32_t>(client) | std::uint32_t{source} << 8, 0, 0, 0, src0, 0, 0, 0}};
}

// A fault at page `page` of a GFXHUB's VMID 5.
InterruptVector fault(bool retry, std::uint64_t page, std::uint16_t cam = 0, std::uint8_t node = 2,
                      IvClient client = IvClient::kGcUtcl2) {
  InterruptVector iv = vector(client, retry ? 1 : 0, static_cast<std::uint32_t>(page));
  iv.dwords[0] |= 5u << 24;
  iv.dwords[3] = 0x4321 | std::uint32_t{node} << 16;
  iv.dwords[5] = static_cast<std::uint32_t>(page >> 32) | 1u << 21;
  iv.dwords[7] = 0xABCD0000 | cam;
  return iv;
}

class InterruptTest : public testing::Test {
 protected:
  InterruptTest() : ring0_(kRing), ring1_(kRing), doorbells_(2 * base::kMiB) {
    memory_.space = gpuumd::osssys::McSpace::kVmid0;
    memory_.ring0 = {ring0_.data(), kRing0At};
    memory_.ring1 = {ring1_.data(), kRing1At};
    memory_.write_back = {reinterpret_cast<std::byte*>(write_back_), kWriteBackAt};
    memory_.dummy_page = base::Iova(0x12345000);
    controller_.emplace(RegisterBlock(io_, {kIh, 0, 0, 0, 0, 0, 0, 0}),
                        RegisterBlock(io_, {0, 0x14, kNbio, 0, 0, 0, 0, 0}), doorbells_, memory_,
                        gpuumd::HubSet{0b11, 0b11});
    controller_->on_fault([this](const PageFault& f) { faults_.push_back(f); });
  }
  void set_up() {
    const auto up = controller_->set_up(device_);
    ASSERT_TRUE(up) << up.error().message();
    io_.log.clear();
  }

  // The device raises a vector: ring, then write pointer.
  void raise(const InterruptVector& iv) {
    std::memcpy(ring0_.data() + wptr_, &iv, sizeof iv);
    wptr_ = (wptr_ + 32) & (kRing - 1);
    write_back_[0] = wptr_;
    io_.values[kIh + 0x82] = wptr_;
  }
  void raise_in_ring1(const InterruptVector& iv) {
    std::memcpy(ring1_.data() + wptr1_, &iv, sizeof iv);
    wptr1_ = (wptr1_ + 32) & (kRing - 1);
  }
  void tell_ring1() {
    auto iv = vector(IvClient::kIh, 0, wptr1_);
    iv.dwords[0] |= 1u << 16;
    raise(iv);
  }
  std::vector<Doorbell>& rung() { return doorbells_.state().doorbells; }
  std::size_t acknowledged(std::uint16_t cam) {
    return static_cast<std::size_t>(
        std::ranges::count(io_.writes(), fake::FakeRegisterIo::Access{true, kIh + kCamAck, cam}));
  }

  fake::FakeRegisterIo io_;
  fake::FakePciDevice device_;
  std::vector<std::byte> ring0_, ring1_;
  alignas(64) std::uint32_t write_back_[16] = {};
  std::uint32_t wptr_ = 0, wptr1_ = 0;
  fake::FakeBar doorbells_;
  gpuumd::InterruptMemory memory_;
  std::vector<PageFault> faults_;
  std::optional<InterruptController> controller_;
};

TEST_F(InterruptTest, SetUpWritesWhatTheManualSays) {
  io_.values[kIh + 0xaa] = 0x2;
  ASSERT_TRUE(controller_->set_up(device_));
  auto& v = io_.values;
  // Ring 0: enabled with interrupt, write-back, overflow, snoop, rearm, VMID 0's space, 2^16
  // dwords.
  EXPECT_EQ(v[kIh + 0x80], 0x4033'0121u);
  // Ring 1: no write-back, no overflow, no interrupt, full drain.
  EXPECT_EQ(v[kIh + 0x8c], 0x4010'0221u);
  EXPECT_EQ(v[kIh + 0x83], 0xEF012345u);
  EXPECT_EQ(v[kIh + 0x8f], 0xEF112345u);
  EXPECT_EQ(v[kIh + 0x86], 0x21234540u);
  EXPECT_EQ(v[kIh + 0x87], 0x10000340u);
  EXPECT_EQ(v[kIh + 0x93], 0x10000342u);
  EXPECT_EQ(v[kIh + 0x88], 0x10000344u);
  EXPECT_EQ(v[kIh + 0xaa], 0x40002u) << "VMC is a storm client, the others stay";
  EXPECT_EQ(v[kIh + 0xd5], 8u);
  EXPECT_EQ(v[kIh + 0xf1], 3u);
  EXPECT_EQ(v[kIh + 0x122], 0u);
  EXPECT_EQ(v[kIh + 0x123], 0x1000Au);
  EXPECT_EQ(v[kIh + 0xac], 0x1000Fu);
  EXPECT_EQ(v[kIh + 0xc1], 0x108u);
  EXPECT_EQ(v[kNbio + 0x1CB + 2], 0x0011A001u);
  EXPECT_EQ(v[kNbio + 0x0F2], 0x123450u);
  EXPECT_EQ(device_.command() & 4, 4);
}

TEST_F(InterruptTest, C2_AddressesKeepAllTheirBits) {
  ASSERT_TRUE(controller_->set_up(device_));
  EXPECT_EQ(io_.values[kIh + 0x84], 0x1ABCDu) << "17 bits of RB_BASE_HI";
  EXPECT_EQ(io_.values[kIh + 0x90], 0x1ABCDu);
  EXPECT_EQ(io_.values[kIh + 0x85], 0x1ABCDEFu) << "25 bits of WPTR_ADDR_HI";
}

TEST_F(InterruptTest, SetUpOrder) {
  std::optional<std::size_t> bus_master;
  device_.on_config_write = [&](std::uint32_t, std::uint32_t) { bus_master = io_.writes().size(); };
  io_.values[kIh + 0x80] = 0x20001;  // left running by somebody
  ASSERT_TRUE(controller_->set_up(device_));
  const auto writes = io_.writes();
  const auto last = [&](std::uint32_t dword) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < writes.size(); ++i)
      if (writes[i].dword == dword) at = i;
    return at;
  };
  const auto first = [&](std::uint32_t dword) { return *io_.written_at(dword); };
  EXPECT_EQ(writes[first(kIh + 0x80)].value & 0x20001, 0u) << "off before anything else";
  const std::size_t order[] = {first(kIh + 0x80),  first(kNbio + 0x0F2),     first(kIh + 0x83),
                               first(kIh + 0x8f),  first(kNbio + 0x1CB + 2), first(kIh + 0xaa),
                               first(kIh + 0x123), bus_master.value(),       first(kIh + 0x88),
                               last(kIh + 0xac),   last(kIh + 0x80),         last(kIh + 0x8c),
                               first(kIh + 0xc1)};
  EXPECT_TRUE(std::ranges::is_sorted(order));
  EXPECT_LT(first(kIh + 0x86), last(kIh + 0x80));
  // Overflow is cleared by a one, which must not stay.
  EXPECT_EQ(writes[last(kIh + 0x80)].value >> 31, 0u);
}

TEST_F(InterruptTest, LostInTheMiddleOfSetUp) {
  ASSERT_TRUE(controller_->set_up(device_));
  const auto accesses = static_cast<unsigned>(io_.log.size());
  for (unsigned n = 1; n <= accesses; ++n) {
    fake::FakeRegisterIo io;
    io.lose_at(n);
    InterruptController controller(RegisterBlock(io, {kIh, 0, 0, 0, 0, 0, 0, 0}),
                                   RegisterBlock(io, {0, 0x14, kNbio, 0, 0, 0, 0, 0}), doorbells_,
                                   memory_, {});
    const auto up = controller.set_up(device_);
    ASSERT_FALSE(up) << n;
    EXPECT_EQ(up.error().code, Errc::kDeviceLost);
    write_back_[0] = 32;
    EXPECT_FALSE(controller.poll()) << "nothing is taken from rings that never ran";
    write_back_[0] = 0;
  }
}

TEST_F(InterruptTest, MemoryThatTheRegistersCannotReach) {
  const auto refused = [&](auto change) {
    auto memory = memory_;
    change(memory);
    InterruptController controller(RegisterBlock(io_, {kIh, 0, 0, 0, 0, 0, 0, 0}),
                                   RegisterBlock(io_, {0, 0x14, kNbio, 0, 0, 0, 0, 0}), doorbells_,
                                   memory, {});
    const auto up = controller.set_up(device_);
    return !up && up.error().code == Errc::kOutOfRange;
  };
  EXPECT_TRUE(refused([](auto& m) { m.ring0.device_address += 32; }));
  EXPECT_TRUE(refused([](auto& m) { m.ring1.device_address |= 1ull << 57; }));
  EXPECT_TRUE(refused([](auto& m) { m.dummy_page = base::Iova(1ull << 40); }));
  EXPECT_TRUE(io_.log.empty());
}

TEST_F(InterruptTest, VectorsGoToTheirHandlersInOrder) {
  set_up();
  std::vector<std::uint32_t> seen;
  controller_->handle(IvClient::kGfx, 0x31,
                      [&](const InterruptVector& iv) { seen.push_back(iv.source_data(0)); });
  for (std::uint32_t i = 0; i < 3; ++i) raise(vector(IvClient::kGfx, 0x31, i));
  EXPECT_TRUE(controller_->poll());
  EXPECT_EQ(seen, (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_EQ(rung(), (std::vector<Doorbell>{{kRptr0Door, 96}}));
  EXPECT_TRUE(io_.log.empty()) << "no register on this path";
  EXPECT_FALSE(controller_->poll());
  EXPECT_EQ(rung().size(), 1u) << "no doorbell for nothing";
}

TEST_F(InterruptTest, UnknownVectorsAreCounted) {
  set_up();
  raise(vector(IvClient(0xEE), 0x99));
  raise(vector(IvClient::kGfx, 0x44));
  raise(vector(IvClient::kIh, 0));  // of ring 0: there is no such thing
  EXPECT_TRUE(controller_->poll());
  EXPECT_EQ(controller_->counters().unhandled, 3u);
}

TEST_F(InterruptTest, WritePointerIsReadAgainBeforeLeaving) {
  set_up();
  unsigned seen = 0;
  controller_->handle(IvClient::kGfx, 0x31, [&](const InterruptVector&) {
    if (++seen < 5) raise(vector(IvClient::kGfx, 0x31));
  });
  raise(vector(IvClient::kGfx, 0x31));
  controller_->poll();
  EXPECT_EQ(seen, 5u);
}

TEST_F(InterruptTest, ATurnIsBounded) {
  set_up();
  for (unsigned i = 0; i < 300; ++i) raise(vector(IvClient::kGfx, 0x31));
  EXPECT_TRUE(controller_->poll());
  EXPECT_EQ(controller_->counters().vectors, InterruptController::kBatch);
  EXPECT_EQ(controller_->counters().full_batches, 1u);
  EXPECT_EQ(rung().back(), (Doorbell{kRptr0Door, 256 * 32})) << "room is given back";
  EXPECT_TRUE(controller_->poll());
  EXPECT_EQ(controller_->counters().vectors, 300u);
}

TEST_F(InterruptTest, RingWrapsAround) {
  set_up();
  std::uint32_t expected = 0;
  bool in_order = true;
  controller_->handle(IvClient::kGfx, 0x31, [&](const InterruptVector& iv) {
    in_order = in_order && iv.source_data(0) == expected++;
  });
  for (std::uint32_t i = 0; i < 3 * kRing / 32; ++i) {
    raise(vector(IvClient::kGfx, 0x31, i));
    if (i % 100 == 0) controller_->poll();
  }
  controller_->poll();
  EXPECT_TRUE(in_order);
  EXPECT_EQ(expected, 3 * kRing / 32);
}

TEST_F(InterruptTest, D27_OverflowGoesOnAtTheOldestWholeVector) {
  set_up();
  int told = 0;
  controller_->on_overflow([&] { ++told; });
  std::vector<std::uint32_t> seen;
  controller_->handle(IvClient::kGfx, 0x31,
                      [&](const InterruptVector& iv) { seen.push_back(iv.source_data(0)); });
  // One more than fits: the device wrote over the oldest and says so.
  const std::uint32_t slots = kRing / 32;
  for (std::uint32_t i = 0; i < slots + 10; ++i) raise(vector(IvClient::kGfx, 0x31, i));
  write_back_[0] |= 1;
  io_.on_read[kIh + 0x82] = [this] { return wptr_ | 1; };
  std::vector<std::uint32_t> control;
  io_.on_write[kIh + 0x80] = [&](std::uint32_t v) {
    control.push_back(v >> 31);
    if (v >> 31) io_.on_read.erase(kIh + 0x82);
  };
  EXPECT_TRUE(controller_->poll());
  EXPECT_EQ(controller_->counters().overflows, 1u);
  EXPECT_EQ(told, 1);
  EXPECT_EQ(control, (std::vector<std::uint32_t>{1, 0}));
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.front(), 11u) << "slot 10 is the one being overwritten";
  while (controller_->poll()) {
  }
  EXPECT_EQ(seen.size(), slots - 1);
  EXPECT_EQ(seen.back(), slots + 9);
  EXPECT_EQ(controller_->counters().overflows, 1u) << "recovered once";
  raise(vector(IvClient::kGfx, 0x31, 777));
  controller_->poll();
  EXPECT_EQ(seen.back(), 777u);
}

TEST_F(InterruptTest, OverflowBitThatTheRegisterDoesNotConfirm) {
  set_up();
  raise(vector(IvClient::kGfx, 0x31));
  write_back_[0] |= 1;
  EXPECT_TRUE(controller_->poll());
  EXPECT_EQ(controller_->counters().overflows, 0u);
  EXPECT_EQ(controller_->counters().vectors, 1u);
  io_.log.clear();
  controller_->poll();
  EXPECT_TRUE(io_.log.empty()) << "an old bit does not cost a register read each time";
}

TEST_F(InterruptTest, PointersThatMakeNoSenseAreCounted) {
  set_up();
  write_back_[0] = 0x14;
  controller_->poll();
  EXPECT_GE(controller_->counters().bad_pointers, 1u);
  write_back_[0] = 0xFFFFFFFE;
  while (controller_->poll()) {
  }
  EXPECT_EQ(controller_->counters().vectors, kRing / 32 - 1);
}

TEST_F(InterruptTest, LostDeviceWithAnOverflowInTheWord) {
  set_up();
  write_back_[0] = 0xFFFFFFFF;
  io_.lose();
  EXPECT_FALSE(controller_->poll());
  EXPECT_EQ(controller_->counters().overflows, 0u);
}

TEST_F(InterruptTest, RingOneComesWithAVectorInRingZero) {
  set_up();
  std::vector<std::uint32_t> seen;
  controller_->handle(IvClient::kGfx, 0,
                      [&](const InterruptVector& iv) { seen.push_back(iv.source_data(0)); });
  raise_in_ring1(vector(IvClient::kGfx, 0, 1));
  raise_in_ring1(vector(IvClient::kGfx, 0, 2));
  EXPECT_FALSE(controller_->poll()) << "nobody told";
  tell_ring1();
  EXPECT_TRUE(controller_->poll());
  EXPECT_EQ(seen, (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(controller_->counters().ring1_vectors, 2u);
  EXPECT_EQ(rung(), (std::vector<Doorbell>{{kRptr0Door, 32}, {kRptr1Door, 64}}));
}

TEST_F(InterruptTest, C5_FaultsAreDecodedBy121Rules) {
  set_up();
  auto iv = fault(false, 0x1FFF'0000'0001, 0, 0x0A - 7);            // node 3: XCC 1
  iv.dwords[5] = 0x1FFF | 1u << 20 | 1u << 22 | 1u << 7 | 1u << 5;  // bits of older parts as well
  iv.dwords[4] = 0xFEDCBA98;
  raise(iv);
  controller_->poll();
  ASSERT_EQ(faults_.size(), 1u);
  const auto& f = faults_.front();
  EXPECT_EQ(f.hub, gpuumd::HubKind::kGfxhub);
  EXPECT_EQ(f.instance, 1u);
  EXPECT_EQ(f.vmid.value(), 5);
  EXPECT_EQ(f.pasid.value(), 0x4321);
  EXPECT_EQ(f.va.value(), 0x1FF'FFED'CBA9'8000u) << "57 bits";
  EXPECT_TRUE(f.execute);
  EXPECT_TRUE(f.read);
  EXPECT_FALSE(f.write);
  EXPECT_FALSE(f.retry) << "the source id says so, not a data bit";
  EXPECT_EQ(controller_->counters().faults, 1u);
}

TEST_F(InterruptTest, D20_AtomicIsReadAndWriteAndMmhubIsByNode) {
  set_up();
  auto iv = fault(false, 0x1000, 0, 8, IvClient::kVmc);
  iv.dwords[5] |= 1u << 22;
  raise(iv);
  controller_->poll();
  ASSERT_EQ(faults_.size(), 1u);
  EXPECT_EQ(faults_[0].hub, gpuumd::HubKind::kMmhub);
  EXPECT_EQ(faults_[0].instance, 1u);
  EXPECT_TRUE(faults_[0].atomic());
}

TEST_F(InterruptTest, RetryFaultsWaitInTheSoftRing) {
  set_up();
  for (const std::uint16_t cam : {7, 3, 1023}) raise(fault(true, 0x1000u + cam, cam));
  controller_->poll();
  EXPECT_EQ(faults_.size(), 3u) << "arrivals are told";
  EXPECT_EQ(rung().size(), 1u) << "and not acknowledged yet";
  auto& faults = controller_->retry_faults();
  EXPECT_EQ(faults.queued(), 3u);
  auto first = faults.next();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->fault().cam_index, 7);
  EXPECT_TRUE(first->fault().retry);
  EXPECT_TRUE(first->fault().write);
  EXPECT_EQ(acknowledged(7), 0u);
  first->acknowledge();
  EXPECT_EQ(acknowledged(7), 1u);
  first.reset();
  EXPECT_EQ(acknowledged(7), 1u) << "once";
}

TEST_F(InterruptTest, C3_EntryIsAcknowledgedOnEveryPath) {
  set_up();
  auto& faults = controller_->retry_faults();
  // Dropped by its owner, moved over, and never taken out.
  for (std::uint16_t cam = 1; cam <= 4; ++cam) raise(fault(true, cam, cam));
  controller_->poll();
  {
    const auto dropped = faults.next();
  }
  EXPECT_EQ(acknowledged(1), 1u);
  {
    auto over = faults.next();
    auto by = faults.next();
    *over = std::move(*by);
    EXPECT_EQ(acknowledged(2), 1u);
    EXPECT_EQ(acknowledged(3), 0u);
  }
  EXPECT_EQ(acknowledged(3), 1u);
  faults.clear();
  EXPECT_EQ(acknowledged(4), 1u);
  // From a hub that is not there: nobody else will do it.
  raise(fault(true, 9, 9, 0x0A));
  raise(fault(true, 9, 10, 6));
  raise(fault(true, 9, 11, 0x18, IvClient::kVmc));
  raise(fault(true, 9, 12, 1, IvClient::kVmc));
  controller_->poll();
  for (const std::uint16_t cam : {9, 10, 11, 12}) EXPECT_EQ(acknowledged(cam), 1u) << cam;
  EXPECT_EQ(controller_->counters().bad_faults, 4u);
  // And at the end.
  raise(fault(true, 20, 20));
  controller_->poll();
  controller_->tear_down();
  EXPECT_EQ(acknowledged(20), 1u);
}

TEST_F(InterruptTest, D16_RepeatedFaultOfALiveEntryIsDropped) {
  set_up();
  auto& faults = controller_->retry_faults();
  raise(fault(true, 5, 5));
  raise(fault(true, 5, 5));
  controller_->poll();
  EXPECT_EQ(faults.queued(), 1u);
  auto taken = faults.next();
  raise(fault(true, 5, 5));
  controller_->poll();
  EXPECT_EQ(faults.queued(), 0u);
  EXPECT_EQ(faults.counters().repeated, 2u);
  taken.reset();
  raise(fault(true, 5, 5));
  controller_->poll();
  EXPECT_EQ(faults.queued(), 1u) << "once acknowledged it counts again";
}

TEST_F(InterruptTest, SoftRingHoldsOneFaultForEachEntry) {
  set_up();
  for (int round = 0; round < 3; ++round)
    for (std::uint16_t cam = 0; cam < 1024; ++cam) {
      raise(fault(true, 0x100u + cam, cam));
      controller_->poll();
    }
  auto& faults = controller_->retry_faults();
  EXPECT_EQ(faults.queued(), 1024u);
  std::uint16_t expected = 0;
  while (auto one = faults.next()) ASSERT_EQ(one->fault().cam_index, expected++);
  EXPECT_EQ(expected, 1024);
  EXPECT_EQ(faults.in_service(), 0u);
}

TEST_F(InterruptTest, WatermarkIsPassedWhenWhatWasRaisedIsHandled) {
  set_up();
  EXPECT_TRUE(controller_->passed(controller_->watermark())) << "nothing there";
  for (unsigned i = 0; i < 300; ++i) raise(vector(IvClient::kGfx, 0x31));
  const auto mark = controller_->watermark();
  EXPECT_FALSE(controller_->passed(mark));
  controller_->poll();
  EXPECT_FALSE(controller_->passed(mark)) << "one batch is not all";
  raise(vector(IvClient::kGfx, 0x31));
  controller_->poll();
  EXPECT_TRUE(controller_->passed(mark));
}

TEST_F(InterruptTest, WatermarkOfAVectorThatIsNotYetInTheWriteBack) {
  set_up();
  raise(vector(IvClient::kGfx, 0x31));
  write_back_[0] = 0;  // late
  const auto mark = controller_->watermark();
  controller_->poll();
  EXPECT_FALSE(controller_->passed(mark));
  write_back_[0] = wptr_;
  controller_->poll();
  EXPECT_TRUE(controller_->passed(mark));
}

TEST_F(InterruptTest, PasidTables) {
  set_up();
  controller_->set_pasid(gpuumd::HubKind::kGfxhub, 1, base::Vmid(3), base::Pasid(0x77));
  controller_->set_pasid(gpuumd::HubKind::kMmhub, 0, base::Vmid(15), base::Pasid(0x78));
  EXPECT_EQ(io_.writes(), (std::vector<Access>{{true, kIh + 0x28, 1},
                                               {true, kIh + 3, 0x77},
                                               {true, kIh + 0x28, 0},
                                               {true, kIh + 0x1F, 0x78}}));
}

TEST_F(InterruptTest, TearDownTurnsAllOff) {
  set_up();
  raise(vector(IvClient::kGfx, 0x31));
  controller_->tear_down();
  EXPECT_EQ(io_.values[kIh + 0x80] & 0x20001, 0u);
  EXPECT_EQ(io_.values[kIh + 0x8c] & 1, 0u);
  EXPECT_EQ(io_.values[kIh + 0xac] & 0x10000, 0u);
  EXPECT_FALSE(controller_->poll());
}

TEST_F(InterruptTest, HandlerMayTearDown) {
  set_up();
  controller_->handle(IvClient::kGfx, 0x31,
                      [&](const InterruptVector&) { controller_->tear_down(); });
  raise(vector(IvClient::kGfx, 0x31));
  raise(vector(IvClient::kGfx, 0x31));
  controller_->poll();
  EXPECT_EQ(controller_->counters().vectors, 1u);
  EXPECT_TRUE(rung().empty());
}

TEST_F(InterruptTest, RandomVectorsDoNoHarm) {
  set_up();
  constexpr unsigned kSeed = 7;
  std::mt19937 random(kSeed);
  for (int i = 0; i < 50000; ++i) {
    InterruptVector iv;
    for (auto& dword : iv.dwords) dword = static_cast<std::uint32_t>(random());
    if (i % 2 == 0) iv.dwords[0] = (iv.dwords[0] & ~0xFFFFu) | (i % 4 ? 0x11Bu : 0x112u);
    if (i % 7 == 0) iv.dwords[0] = 0x10000;  // ring 1, wherever it says
    raise(iv);
    controller_->poll();
  }
  EXPECT_GE(controller_->counters().vectors, 50000u);
}

}  // namespace
