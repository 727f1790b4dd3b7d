// MSI-X: descriptors by SET_IRQS, masks by the table, pending bits.
#include <sys/eventfd.h>
#include <algorithm>

#include "server_fixture.h"

namespace gpusim::testing {
namespace {

class Irqs : public ServerTest {
 protected:
  using ServerTest::ServerTest;
  static int set(RawClient& client, std::uint32_t flags, std::uint32_t start, std::uint32_t count,
                 std::span<const int> fds = {}, std::span<const std::byte> data = {},
                 std::uint32_t index = wire::kMsixIndex) {
    const wire::IrqSet request{sizeof request, flags, index, start, count};
    return client.call(wire::kSetIrqs, join(base::as_bytes(request), data), fds).error();
  }
  static base::UniqueFd event() { return base::UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)); }
  static std::uint64_t count(const base::UniqueFd& fd) {
    eventfd_t value = 0;
    return ::eventfd_read(fd.get(), &value) == 0 ? value : 0;
  }
  static constexpr std::uint32_t kSetFds = wire::kIrqDataEventfd | wire::kIrqActionTrigger;
  static constexpr std::uint32_t kControl = FakeGpuDevice::kTable + 12;  // of vector 0
};

TEST_F(Irqs, InfoNamesNineMsixVectorsAndNothingElse) {
  RawClient client = connect();
  client.negotiate();
  for (std::uint32_t i = 0; i < 5; ++i) {
    const Received reply = client.call(wire::kGetIrqInfo, wire::IrqInfo{16, 0, i, 0});
    EXPECT_EQ(reply.as<wire::IrqInfo>().count, i == wire::kMsixIndex ? 9u : 0u);
  }
  EXPECT_EQ(client.call(wire::kGetIrqInfo, wire::IrqInfo{16, 0, 5, 0}).error(), EINVAL);
}

TEST_F(Irqs, RaisedVectorSignalsItsEventfd) {
  RawClient client = connect_ready();
  const auto a = event();
  const auto b = event();
  const int fds[] = {a.get(), b.get()};
  EXPECT_EQ(set(client, kSetFds, 0, 2, fds), 0);
  gpu.bus()->raise_interrupt(1);
  gpu.bus()->raise_interrupt(8);  // has none
  gpu.bus()->raise_interrupt(9);  // does not exist
  EXPECT_EQ(count(a), 0u);
  EXPECT_EQ(count(b), 1u);
}

TEST_F(Irqs, MoreVectorsThanDescriptors) {
  RawClient client = connect_ready();
  const auto a = event();
  const auto b = event();
  int fds[] = {a.get(), b.get()};
  EXPECT_EQ(set(client, kSetFds, 0, 2, fds), 0);
  EXPECT_EQ(set(client, kSetFds, 0, 9, std::span(fds, 1)), 0);  // vector 1 loses its own
  gpu.bus()->raise_interrupt(0);
  gpu.bus()->raise_interrupt(1);
  EXPECT_EQ(count(a), 1u);
  EXPECT_EQ(count(b), 0u);
}

TEST_F(Irqs, CountZeroTakesAllAway) {
  RawClient client = connect_ready();
  const auto a = event();
  const int fd = a.get();
  EXPECT_EQ(set(client, kSetFds, 0, 1, {&fd, 1}), 0);
  EXPECT_NE(client.read32(wire::kConfigRegion, 0xA0) & 1u << 31, 0u);
  EXPECT_EQ(set(client, wire::kIrqDataNone | wire::kIrqActionTrigger, 0, 0), 0);
  EXPECT_EQ(client.read32(wire::kConfigRegion, 0xA0) & 1u << 31, 0u);
  gpu.bus()->raise_interrupt(0);
  EXPECT_EQ(count(a), 0u);
}

TEST_F(Irqs, TriggersByHand) {
  RawClient client = connect_ready();
  const auto a = event();
  const auto b = event();
  const int fds[] = {a.get(), b.get()};
  EXPECT_EQ(set(client, kSetFds, 0, 2, fds), 0);
  EXPECT_EQ(set(client, wire::kIrqDataNone | wire::kIrqActionTrigger, 0, 2), 0);
  EXPECT_EQ(count(a), 1u);
  EXPECT_EQ(count(b), 1u);
  const std::byte which[] = {std::byte{0}, std::byte{1}};
  EXPECT_EQ(set(client, wire::kIrqDataBool | wire::kIrqActionTrigger, 0, 2, {}, which), 0);
  EXPECT_EQ(count(a), 0u);
  EXPECT_EQ(count(b), 1u);
  EXPECT_EQ(set(client, wire::kIrqDataBool | wire::kIrqActionTrigger, 0, 3, {}, which), EINVAL);
}

TEST_F(Irqs, BadRequests) {
  RawClient client = connect_ready();
  const auto a = event();
  const int fds[] = {a.get(), a.get(), a.get()};
  EXPECT_EQ(set(client, kSetFds, 8, 2, std::span(fds, 2)), EINVAL);
  EXPECT_EQ(set(client, kSetFds, ~0u, 2, std::span(fds, 2)), EINVAL);
  EXPECT_EQ(set(client, kSetFds, 0, ~0u), EINVAL);
  EXPECT_EQ(set(client, kSetFds, 0, 2, fds), EINVAL);  // more descriptors than vectors
  EXPECT_EQ(set(client, kSetFds, 0, 1, std::span(fds, 1), {}, 0), EINVAL);  // INTx
  EXPECT_EQ(set(client, wire::kIrqDataNone | wire::kIrqActionMask, 0, 1), EINVAL);
  EXPECT_EQ(set(client, wire::kIrqDataEventfd | wire::kIrqDataBool | wire::kIrqActionTrigger, 0, 1),
            EINVAL);
  EXPECT_EQ(set(client, 0, 0, 0), EINVAL);
}

TEST_F(Irqs, D30_MaskedVectorIsPendingUntilUnmasked) {
  RawClient client = connect_ready();
  const auto a = event();
  const int fd = a.get();
  EXPECT_EQ(set(client, kSetFds, 0, 1, {&fd, 1}), 0);
  EXPECT_EQ(client.read32(kRegisterRegion, kControl), 1u);  // as after reset
  client.write32(kRegisterRegion, kControl, 1);
  gpu.bus()->raise_interrupt(0);
  EXPECT_EQ(count(a), 0u);
  EXPECT_EQ(client.read32(kRegisterRegion, FakeGpuDevice::kPba), 1u);
  client.write32(kRegisterRegion, FakeGpuDevice::kPba, 0);  // read-only
  client.write32(kRegisterRegion, kControl, 0);
  EXPECT_EQ(count(a), 1u);
  EXPECT_EQ(client.read32(kRegisterRegion, FakeGpuDevice::kPba), 0u);
  // None of this is the device's business.
  EXPECT_TRUE(
      std::ranges::none_of(gpu.calls, [](const auto& c) { return c.starts_with("write"); }));
}

TEST_F(Irqs, TableHoldsWhatIsWritten) {
  RawClient client = connect_ready();
  const std::uint64_t address = 0xFEE00000'12345678;
  const std::uint32_t entry = FakeGpuDevice::kTable + 16 * 8;
  EXPECT_EQ(client.write(kRegisterRegion, entry, base::as_bytes(address)).error(), 0);
  EXPECT_EQ(client.write32(kRegisterRegion, entry + 8, 0x4041), 0);
  EXPECT_EQ(client.read(kRegisterRegion, entry, 8).as<std::uint64_t>(16), address);
  EXPECT_EQ(client.read32(kRegisterRegion, entry + 8), 0x4041u);
  client.write32(kRegisterRegion, entry + 16, 5);  // past the last vector: a register
  EXPECT_EQ(gpu.registers[entry + 16], 5u);
}

TEST_F(Irqs, FunctionMaskAndBusMasterHoldVectorsBack) {
  RawClient client = connect_ready();
  const auto a = event();
  const int fd = a.get();
  EXPECT_EQ(set(client, kSetFds, 0, 1, {&fd, 1}), 0);
  const std::uint32_t capability = client.read32(wire::kConfigRegion, 0xA0);
  client.write32(wire::kConfigRegion, 0xA0, capability | 1u << 30);
  gpu.bus()->raise_interrupt(0);
  EXPECT_EQ(count(a), 0u);
  client.write32(wire::kConfigRegion, 0xA0, capability);
  EXPECT_EQ(count(a), 1u);
  client.write32(wire::kConfigRegion, 4, 2);
  gpu.bus()->raise_interrupt(0);
  EXPECT_EQ(count(a), 0u);
  client.write32(wire::kConfigRegion, 4, 6);
  EXPECT_EQ(count(a), 1u);
}

TEST_F(Irqs, DescriptorsGoWithTheirClient) {
  const auto a = event();
  {
    RawClient client = connect_ready();
    const int fd = a.get();
    EXPECT_EQ(set(client, kSetFds, 0, 1, {&fd, 1}), 0);
  }
  RawClient client = connect_ready();
  gpu.bus()->raise_interrupt(0);
  EXPECT_EQ(count(a), 0u);
}

TEST_F(Irqs, FullDescriptorNeverBlocksTheServer) {
  RawClient client = connect_ready();
  const base::UniqueFd full(::eventfd(0, EFD_CLOEXEC));  // blocking
  ASSERT_EQ(::eventfd_write(full.get(), ~0ull - 1), 0);
  const int fd = full.get();
  EXPECT_EQ(set(client, kSetFds, 0, 1, {&fd, 1}), 0);
  gpu.bus()->raise_interrupt(0);
  EXPECT_EQ(count(full), ~0ull - 1);
}

// ---- a function with an INTx pin and no MSI-X ----

class IntxLine : public Irqs {
 protected:
  IntxLine() : Irqs(true) {}

  static int line(RawClient& client, std::uint32_t flags, std::uint32_t count,
                  std::span<const int> fds = {}) {
    return set(client, flags, 0, count, fds, {}, wire::kIntxIndex);
  }
  static constexpr std::uint32_t kUnmask = wire::kIrqDataNone | wire::kIrqActionUnmask;
  static bool status_bit(RawClient& client) {
    return (client.read32(wire::kConfigRegion, 0x04) >> 16 & 8) != 0;
  }
};

TEST_F(IntxLine, IsThereInPlaceOfMsix) {
  RawClient client = connect_ready();
  const auto intx = client.call(wire::kGetIrqInfo, wire::IrqInfo{16, 0, wire::kIntxIndex, 0});
  EXPECT_EQ(intx.as<wire::IrqInfo>().count, 1u);
  EXPECT_EQ(intx.as<wire::IrqInfo>().flags,
            wire::kIrqEventfd | wire::kIrqMaskable | wire::kIrqAutomasked);
  const auto msix = client.call(wire::kGetIrqInfo, wire::IrqInfo{16, 0, wire::kMsixIndex, 0});
  EXPECT_EQ(msix.as<wire::IrqInfo>().count, 0u);
  EXPECT_EQ(client.read32(wire::kConfigRegion, 0x3C) >> 8 & 0xFF, 1u);  // INTA
  EXPECT_EQ(client.read32(wire::kConfigRegion, 0x40) >> 8 & 0xFF, 0u);  // the last capability
}

TEST_F(IntxLine, MasksItselfAndSignalsAgainOnlyWhileAsserted) {
  RawClient client = connect_ready();
  const auto a = event();
  const int fd = a.get();
  ASSERT_EQ(line(client, kSetFds, 1, {&fd, 1}), 0);
  EXPECT_FALSE(status_bit(client));
  gpu.bus()->raise_interrupt(0);
  gpu.bus()->raise_interrupt(0);
  EXPECT_EQ(count(a), 1u);  // masked by the first
  EXPECT_TRUE(status_bit(client));
  EXPECT_EQ(line(client, kUnmask, 1), 0);
  EXPECT_EQ(count(a), 1u);  // nobody has answered yet
  gpu.bus()->lower_line();
  EXPECT_FALSE(status_bit(client));
  EXPECT_EQ(line(client, kUnmask, 1), 0);
  EXPECT_EQ(count(a), 0u);
  gpu.bus()->raise_interrupt(0);
  EXPECT_EQ(count(a), 1u);
}

TEST_F(IntxLine, InterruptDisableHoldsItBack) {
  RawClient client = connect_ready();
  const auto a = event();
  const int fd = a.get();
  ASSERT_EQ(line(client, kSetFds, 1, {&fd, 1}), 0);
  const auto command = client.read32(wire::kConfigRegion, 0x04) & 0xFFFF;
  client.write32(wire::kConfigRegion, 0x04, command | 1u << 10);
  gpu.bus()->raise_interrupt(0);
  EXPECT_EQ(count(a), 0u);
  EXPECT_TRUE(status_bit(client));
  client.write32(wire::kConfigRegion, 0x04, command);
  EXPECT_EQ(count(a), 1u);
}

TEST_F(IntxLine, RefusesWhatALineCannotDo) {
  RawClient client = connect_ready();
  const auto a = event();
  const int fds[] = {a.get(), a.get()};
  EXPECT_EQ(line(client, kSetFds, 2, fds), EINVAL);
  EXPECT_EQ(line(client, kSetFds, 1, fds), EINVAL);
  EXPECT_EQ(line(client, wire::kIrqDataEventfd | wire::kIrqActionUnmask, 1, {fds, 1}), EINVAL);
  EXPECT_EQ(line(client, kUnmask, 0), EINVAL);
  EXPECT_EQ(set(client, kSetFds, 0, 1, {fds, 1}), EINVAL);  // MSI-X is not there
}

TEST_F(IntxLine, ADeviceWithoutFunctionResetSaysSoAndIsNotReset) {
  RawClient client = connect_ready();
  const auto info = client.call(wire::kDeviceGetInfo, wire::DeviceInfo{16, 0, 0, 0});
  EXPECT_EQ(info.as<wire::DeviceInfo>().flags, wire::kDevicePci);
  EXPECT_EQ(client.call(wire::kDeviceReset, {}).error(), EOPNOTSUPP);
  const auto control = client.read32(wire::kConfigRegion, 0x48);
  client.write32(wire::kConfigRegion, 0x48, control | 1u << 15);  // an FLR, if there were one
  EXPECT_EQ(gpu.resets, 0u);
}

}  // namespace
}  // namespace gpusim::testing
