// Register words and addresses against the numbers of docs/hardware, and the way to a register.

#include <gtest/gtest.h>

#include "daemon/gpu/registers/hdp.h"
#include "daemon/gpu/registers/iv.h"
#include "daemon/gpu/registers/lsdma.h"
#include "daemon/gpu/registers/mp0.h"
#include "daemon/gpu/registers/nbio.h"
#include "daemon/gpu/registers/nht_mailbox.h"
#include "daemon/gpu/registers/osssys.h"
#include "daemon/gpu/registers/register_bus.h"
#include "daemon/gpu/registers/sdma.h"
#include "daemon/gpu/registers/vm_hub.h"
#include "tests/fake/fake_pci_device.h"
#include "tests/fake/fake_register_io.h"

namespace {

using base::Value;
using gpuumd::HubKind;
using gpuumd::RegisterBlock;
using Access = fake::FakeRegisterIo::Access;

constexpr RegisterBlock::Bases bases(std::uint32_t s0, std::uint32_t s1 = 0, std::uint32_t s2 = 0) {
  return {s0, s1, s2, 0, 0, 0, 0, 0};
}

TEST(HubRegisters, MmhubIsWhereTheManualSays) {
  using namespace gpuumd::vm_hub;
  fake::FakeRegisterIo io;
  const RegisterBlock hub(io, gpuumd::vm_hub::bases(HubKind::kMmhub, bases(0, 0x18000, 0x19800)));
  EXPECT_EQ(hub.dword<L2_CNTL>(), 0x19824u);
  EXPECT_EQ(hub.dword<L2_PROTECTION_FAULT_STATUS_LO32>(), 0x19831u);
  EXPECT_EQ(hub.dword<FB_LOCATION_BASE_LO32>(), 0x19900u);
  EXPECT_EQ(hub.dword<FB_OFFSET>(), 0x19AECu);
  EXPECT_EQ(hub.dword<CONTEXT_CNTL>(15), 0x19800u + 0x11f);
  EXPECT_EQ(hub.dword<CONTEXT_PAGE_TABLE_BASE_ADDR_LO32>(15), 0x19800u + 0x199);
  EXPECT_EQ(hub.dword<CONTEXT_PAGE_TABLE_BASE_ADDR_HI32>(15), 0x19800u + 0x19a);
  EXPECT_EQ(hub.dword<CONTEXT_PAGE_TABLE_START_ADDR_LO32>(15), 0x19800u + 0x1b9);
  EXPECT_EQ(hub.dword<CONTEXT_PAGE_TABLE_END_ADDR_HI32>(15), 0x19800u + 0x1da);
  EXPECT_EQ(hub.dword<INVALIDATE_ENG_SEM>(17), 0x19800u + 0x132);
  EXPECT_EQ(hub.dword<INVALIDATE_ENG_REQ>(17), 0x19800u + 0x144);
  EXPECT_EQ(hub.dword<INVALIDATE_ENG_ACK>(17), 0x19800u + 0x156);
  EXPECT_EQ(hub.dword<INVALIDATE_ENG_ADDR_RANGE_LO32>(17), 0x19800u + 0x179);
  EXPECT_EQ(hub.dword<INVALIDATE_ENG_ADDR_RANGE_HI32>(17), 0x19800u + 0x17a);
}

TEST(HubRegisters, GfxhubIsWhereTheManualSays) {
  using namespace gpuumd::vm_hub;
  fake::FakeRegisterIo io;
  const RegisterBlock hub(io, gpuumd::vm_hub::bases(HubKind::kGfxhub, bases(0, 0xA000)));
  EXPECT_EQ(hub.dword<L2_CNTL>(), 0x15C4u);
  EXPECT_EQ(hub.dword<L2_PROTECTION_FAULT_CNTL_LO32>(), 0x15CCu);
  EXPECT_EQ(hub.dword<L2_PROTECTION_FAULT_CNTL2>(), 0x15CEu);
  EXPECT_EQ(hub.dword<L2_PROTECTION_FAULT_STATUS_LO32>(), 0x15D1u);
  EXPECT_EQ(hub.dword<L2_PROTECTION_FAULT_ADDR_HI32>(), 0x15D4u);
  EXPECT_EQ(hub.dword<L2_CNTL4>(), 0x15DEu);
  EXPECT_EQ(hub.dword<L2_CNTL5>(), 0x15E4u);
  EXPECT_EQ(hub.dword<FB_LOCATION_BASE_LO32>(), 0x1624u);
  EXPECT_EQ(hub.dword<MX_L1_TLB_CNTL>(), 0x1632u);
  EXPECT_EQ(hub.dword<CONTEXT_CNTL>(0), 0x1634u);
  EXPECT_EQ(hub.dword<INVALIDATE_ENG_SEM>(0), 0x1645u);
  EXPECT_EQ(hub.dword<INVALIDATE_ENG_REQ>(0), 0x1657u);
  EXPECT_EQ(hub.dword<INVALIDATE_ENG_ACK>(0), 0x1669u);
  EXPECT_EQ(hub.dword<INVALIDATE_ENG_ACK>(17), 0x167Au);
  EXPECT_EQ(hub.dword<INVALIDATE_ENG_ADDR_RANGE_LO32>(17), 0x169Du);
  EXPECT_EQ(hub.dword<CONTEXT_PAGE_TABLE_BASE_ADDR_LO32>(0), 0x169Fu);
  EXPECT_EQ(hub.dword<CONTEXT_PAGE_TABLE_START_ADDR_LO32>(0), 0x16BFu);
  EXPECT_EQ(hub.dword<CONTEXT_PAGE_TABLE_END_ADDR_LO32>(0), 0x16DFu);
}

TEST(HubRegisters, InvalidateRequestWord) {
  using R = gpuumd::vm_hub::INVALIDATE_ENG_REQ;
  const auto request = Value<R>()
                           .with<R::PER_VMID_INVALIDATE_REQ>(1u << 15)
                           .with<R::INVALIDATE_L2_PTES>(true)
                           .with<R::INVALIDATE_L2_PDE0>(true)
                           .with<R::INVALIDATE_L2_PDE1>(true)
                           .with<R::INVALIDATE_L2_PDE2>(true)
                           .with<R::INVALIDATE_L2_PDE3>(true)
                           .with<R::INVALIDATE_L1_PTES>(true);
  EXPECT_EQ(request.raw(), 0x08F88000u);
  EXPECT_EQ(request.with<R::FLUSH_TYPE>(gpuumd::vm_hub::FlushType::kHeavy).raw(), 0x08FA8000u);
}

TEST(SdmaRegisters, QueuesAndInstances) {
  using namespace gpuumd::sdma;
  fake::FakeRegisterIo io;
  const auto gc = bases(0x1260, 0xA000);
  const RegisterBlock zero(io, gpuumd::sdma::bases(0, gc));
  const RegisterBlock one(io, gpuumd::sdma::bases(1, gc));
  EXPECT_EQ(zero.dword<RB_CNTL>(0), 0x1260u + 0x200);
  EXPECT_EQ(zero.dword<RB_WPTR_HI>(9), 0x1260u + 0x206 + 9 * 0x3C);
  EXPECT_EQ(one.dword<RB_CNTL>(1), 0x1260u + 0x200 + 0x600 + 0x3C);
  EXPECT_EQ(one.dword<QUEUE_RESET_REQ>(), 0x1260u + 0x06c + 0x600);
  EXPECT_EQ(zero.dword<MCU_CNTL>(), 0xA000u + 0x588e);
  EXPECT_EQ(one.dword<MCU_CNTL>(), 0xA000u + 0x588e + 0x30);
}

TEST(NbioRegisters, DoorbellRoutes) {
  using namespace gpuumd::nbio;
  EXPECT_EQ(doorbell_route(DoorbellConsumer::kInterruptHandler, 0x340, 8).raw(), 0x0011A001u);
  for (const std::uint32_t n : {20u, 80u})
    EXPECT_EQ(doorbell_route(DoorbellConsumer::kSdma, 0x200, n).raw(), 0xE001001Du + (n << 17));
  EXPECT_EQ(sdma_doorbell(0, 0), 0x200u);
  EXPECT_EQ(sdma_doorbell(3, 9), 0x200u + 60 + 18);
}

TEST(NbioRegisters, HdpFlushIsAWriteAndAReadBack) {
  fake::FakeRegisterIo io;
  gpuumd::flush_hdp(RegisterBlock(io, bases(0, 0x14, 0xD20)));
  EXPECT_EQ(io.log, (std::vector<Access>{{true, 0xD20 + 0x0F7, 0}, {false, 0xE, 0}}));
}

TEST(NhtMailbox, D37_IsReachedBySmnAddress) {
  fake::FakeRegisterIo io;
  const RegisterBlock nht(io, gpuumd::nht::smn_bases());
  EXPECT_EQ(std::uint64_t{4} * nht.dword<gpuumd::nht::CMD>(), 0x0AE10958u);
  EXPECT_EQ(std::uint64_t{4} * nht.dword<gpuumd::nht::STATUS>(), 0x0AE10968u);
}

TEST(Mp0Registers, MailboxIsWhereTheManualSays) {
  fake::FakeRegisterIo io;
  const RegisterBlock mp0(io, bases(0, 0x16000));
  EXPECT_EQ(mp0.dword<gpuumd::mp0::C2PMSG_33>(), gpuumd::mp0::C2PMSG_33::kBeforeDiscovery);
  EXPECT_EQ(mp0.dword<gpuumd::mp0::C2PMSG_64>(), 0x16080u);
  EXPECT_EQ(mp0.dword<gpuumd::mp0::C2PMSG_67>(), 0x16083u);
}

TEST(OsssysRegisters, RingOneIsTwelveDwordsOn) {
  using namespace gpuumd::osssys;
  fake::FakeRegisterIo io;
  const RegisterBlock ih(io, bases(0));
  EXPECT_EQ(ih.dword<IH_RB_CNTL>(1), 0x8cu);
  EXPECT_EQ(ih.dword<IH_RB_WPTR>(1), 0x8eu);
  EXPECT_EQ(ih.dword<IH_RB_BASE_HI>(1), 0x90u);
  EXPECT_EQ(ih.dword<IH_DOORBELL_RPTR>(1), 0x93u);
}

TEST(LsdmaRegisters, A25_EveryErrorBitIsInTheMask) {
  using S = gpuumd::lsdma::PIO_STATUS;
  const auto all = Value<S>()
                       .with<S::ERROR_INVALID_ADDR>(true)
                       .with<S::ERROR_ZERO_COUNT>(true)
                       .with<S::ERROR_DRAM_ECC>(true)
                       .with<S::ERROR_SRAM_ECC>(true)
                       .with<S::ERROR_WRRET_NACK_GEN_ERR>(true)
                       .with<S::ERROR_RDRET_NACK_GEN_ERR>(true)
                       .with<S::ERROR_WRRET_NACK_PRT>(true)
                       .with<S::ERROR_RDRET_NACK_PRT>(true)
                       .with<S::ERROR_REQ_DROP>(true);
  EXPECT_EQ(all.raw(), S::kErrors);
}

// The window of BAR 5, as a list of what was written to it.
class RegisterBusTest : public testing::Test {
 protected:
  void open(std::uint64_t size) {
    bar_ = device_.add_bar(vfio::BarIndex::k5, size);
    bar_->on_write = [this](std::uint64_t offset, std::uint64_t value) {
      writes_.push_back(
          {true, static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(value)});
    };
    auto bus = gpuumd::RegisterBus::open(device_);
    ASSERT_TRUE(bus) << bus.error().message();
    bus_ = std::move(*bus);
  }
  fake::FakePciDevice device_;
  std::shared_ptr<fake::FakeBar::State> bar_;
  std::unique_ptr<gpuumd::RegisterBus> bus_;
  std::vector<Access> writes_;
};

TEST_F(RegisterBusTest, DirectInsideTheBarOnly) {
  open(512 * base::kKiB);
  bus_->write(0x1FFFF, 5);
  EXPECT_EQ(writes_, (std::vector<Access>{{true, 0x7FFFC, 5}}));
  EXPECT_EQ(bus_->read(0x1FFFF), 5u);
  EXPECT_EQ(bus_->counters().smn_writes, 0u);

  writes_.clear();
  bus_->write(0x20000, 7);
  EXPECT_EQ(writes_, (std::vector<Access>{{true, 0x38, 0x80000}, {true, 0x3C, 7}}));
  EXPECT_EQ(bus_->counters().smn_writes, 1u);
}

TEST_F(RegisterBusTest, HighHalfOfTheIndexIsSetAndCleared) {
  open(512 * base::kKiB);
  EXPECT_EQ(bus_->read(0x8000'0010), 0u);
  EXPECT_EQ(writes_, (std::vector<Access>{{true, 0x44, 2}, {true, 0x38, 0x40}, {true, 0x44, 0}}));
  EXPECT_EQ(bus_->counters().smn_reads, 1u);
}

// A register may read as all ones; a function whose vendor id does too is not there any more.
TEST_F(RegisterBusTest, AllOnesEverywhereIsADeviceThatHasLeftTheBus) {
  open(512 * base::kKiB);
  std::ranges::fill(bar_->bytes, std::byte{0xFF});
  ASSERT_TRUE(device_.write_config(0, 2, 0x1002));
  EXPECT_EQ(bus_->read(0x100), ~0u);
  EXPECT_FALSE(bus_->lost());
  ASSERT_TRUE(device_.write_config(0, 2, 0xFFFF));
  EXPECT_EQ(bus_->read(0x30000), ~0u);  // through the window as well
  EXPECT_TRUE(bus_->lost());
}

TEST_F(RegisterBusTest, NoRegisterBarIsAnError) {
  const auto none = gpuumd::RegisterBus::open(device_);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, base::Errc::kNotFound);
  EXPECT_NE(none.error().step.find("BAR (5)"), std::string::npos);
  device_.add_bar(vfio::BarIndex::k5, 64);
  const auto small = gpuumd::RegisterBus::open(device_);
  ASSERT_FALSE(small);
  EXPECT_EQ(small.error().code, base::Errc::kUnsupported);
}

TEST(InterruptVector, Fields) {
  const gpuumd::InterruptVector vector{
      {0x8F00010Au | 3u << 24, 0x11111111, 0x80002222, 0x000A1234, 1, 2, 3, 4}};
  EXPECT_EQ(vector.client(), gpuumd::IvClient::kGfx);
  EXPECT_EQ(vector.source(), 1);
  EXPECT_EQ(vector.vmid().value(), 15);
  EXPECT_EQ(vector.pasid().value(), 0x1234);
  EXPECT_EQ(vector.node(), 0x0A);
  EXPECT_EQ(vector.timestamp(), 0x222211111111u);
  EXPECT_EQ(vector.source_data(3), 4u);
}

}  // namespace
