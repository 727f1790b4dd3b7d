// VMIDs change hands when nothing of their last owner can come any more.
#include "daemon/gpu/device/vmid_pool.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "tests/daemon_memory/hub_fixture.h"
#include "tests/fake/fake_pci_device.h"

namespace {

using namespace gpuumd;

constexpr std::uint32_t kIh = 0x10A0, kNbio = 0xD20, kWptr = kIh + 0x82;

class VmidPoolTest : public testing::Test {
 protected:
  VmidPoolTest() {
    InterruptMemory memory;
    memory.ring0 = {ring0_.data(), 0x10'0000};
    memory.ring1 = {ring1_.data(), 0x20'0000};
    memory.write_back = {reinterpret_cast<std::byte*>(write_back_), 0x30'0000};
    memory.dummy_page = base::Iova(0x40'0000);
    interrupts_.emplace(RegisterBlock(io_, {kIh, 0, 0, 0, 0, 0, 0, 0}),
                        RegisterBlock(io_, {0, 0x14, kNbio, 0, 0, 0, 0, 0}), doorbells_, memory,
                        HubSet{0b11, 0b11});
    EXPECT_TRUE(interrupts_->set_up(device_));
    pool_.emplace(std::vector{hubs_.hubs[2], hubs_.hubs[3]}, *interrupts_, flushes_);
  }
  // The device raises a vector.
  void raise() {
    write_back_[0] += 32;
    io_.values[kWptr] = write_back_[0];
  }
  VmidPool::Binding bind() {
    std::optional<base::Result<VmidPool::Binding>> bound;
    pool_->bind(Pde(0x5000), false, [&](auto result) { bound = std::move(result); });
    reactor_.settle();
    EXPECT_TRUE(bound && *bound);
    return **bound;
  }
  void release(VmidPool::Binding binding) {
    pool_->release(binding, [this](base::Result<void> result) { released_ += result ? 1 : 100; });
    reactor_.settle();
  }

  fake::Hubs hubs_;
  fake::ManualReactor reactor_;
  FlushQueue flushes_{reactor_, hubs_.hubs, {}, {}};
  fake::FakeRegisterIo io_;
  fake::FakePciDevice device_;
  fake::FakeBar doorbells_{2 * base::kMiB};
  std::vector<std::byte> ring0_ = std::vector<std::byte>(kInterruptRingBytes),
                         ring1_ = std::vector<std::byte>(kInterruptRingBytes);
  alignas(64) std::uint32_t write_back_[16] = {};
  std::optional<InterruptController> interrupts_;
  std::optional<VmidPool> pool_;
  int released_ = 0;
};

TEST_F(VmidPoolTest, FH_1_AVmidIsFreeWhenTheFaultsOfItsOwnerHaveBeenHandled) {
  const auto all = pool_->free();
  const auto binding = bind();
  hubs_.acknowledge = false;
  release(binding);
  raise();  // while the flush is under way
  hubs_.acknowledge_all();
  reactor_.advance(std::chrono::milliseconds(1));
  EXPECT_EQ(released_, 1) << "its tables may go";
  EXPECT_FALSE(pool_->poll());
  EXPECT_EQ(pool_->free(), all - 1) << "a fault of it is in the ring";
  interrupts_->poll();
  EXPECT_TRUE(pool_->poll());
  EXPECT_EQ(pool_->free(), all);
}

TEST_F(VmidPoolTest, FH_1_APasidComesAgainAsLateAsPossible) {
  const auto first = bind();
  release(first);
  EXPECT_TRUE(pool_->poll());
  std::vector<VmidPool::Binding> later;
  while (pool_->free() > 0) {
    later.push_back(bind());
    EXPECT_NE(later.back().pasid, first.pasid);
  }
  EXPECT_EQ(later.size(), 13u);
}

}  // namespace
