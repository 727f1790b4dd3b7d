// What holds of every device: opening, configuration space, DMA mappings, letting go.
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/memfd.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "kernel_fixture.h"

namespace vfio_kernel_test {
namespace {

constexpr std::uint32_t kCommand = 4, kBusMaster = 4;

class AnyDevice : public EachWay {};
GPUUMD_EACH_WAY(AnyDevice);

base::UniqueFd memory_of(std::uint64_t size) { return base::make_memfd("memory", size).value(); }

TEST_P(AnyDevice, SaysWhatItIs) {
  open();
  const auto& identity = device_->identity();
  EXPECT_EQ(identity.name, "pci:" + address_);
  EXPECT_EQ(identity.vendor, std::stoul(get(sysfs("vendor")), nullptr, 16));
  EXPECT_EQ(identity.device, std::stoul(get(sysfs("device")), nullptr, 16));
  EXPECT_EQ(identity.class_code, std::stoul(get(sysfs("class")), nullptr, 16));
  EXPECT_FALSE(device_->lost());
  EXPECT_EQ(device_->lost_why(), "");
  EXPECT_GE(device_->event_fd(), 0);
  device_->handle_events();
  EXPECT_FALSE(device_->lost());
}

TEST_P(AnyDevice, ConfigSpace) {
  open();
  EXPECT_EQ(device_->read_config(0, 2).value(), device_->identity().vendor);
  EXPECT_EQ(device_->read_config(0, 4).value() >> 16, device_->identity().device);
  const auto command = device_->read_config(kCommand, 2).value();
  ASSERT_TRUE(device_->write_config(kCommand, 2, command | kBusMaster));
  EXPECT_EQ(device_->read_config(kCommand, 2).value(), command | kBusMaster);
  ASSERT_TRUE(device_->write_config(kCommand, 2, command & ~kBusMaster));
  EXPECT_EQ(device_->read_config(kCommand, 2).value(), command & ~kBusMaster);
  EXPECT_EQ(device_->read_config(1, 2).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(device_->read_config(1 << 20, 4).error().code, Errc::kOutOfRange);
}

TEST_P(AnyDevice, ASecondOpeningIsBusyWhateverWayItTakes) {
  open();
  for (const Way way : {Way::kIommufd, Way::kGroup}) {
    if (way == Way::kIommufd && !has_iommufd()) continue;
    const auto second = try_open(way);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, Errc::kBusy) << name_of(way) << second.error().message();
  }
  EXPECT_FALSE(device_->lost());
  device_.reset();
  open();
}

TEST_P(AnyDevice, WithoutTheRightTheNodeIsNamed) {
  // The root of an initramfs may be closed to others.
  ASSERT_EQ(::chmod("/", 0755), 0);
  ASSERT_EQ(::seteuid(65534), 0);
  const auto refused = try_open(GetParam());
  ASSERT_EQ(::seteuid(0), 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kPermission) << refused.error().message();
  EXPECT_NE(refused.error().step.find("/dev/"), std::string::npos) << refused.error().message();
}

TEST_P(AnyDevice, NotBoundIsSaidWithTheRemedy) {
  ASSERT_TRUE(put(sysfs("driver/unbind"), address_));
  const auto refused = try_open(GetParam());
  ASSERT_TRUE(put("/sys/bus/pci/drivers_probe", address_));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kPermission);
  EXPECT_NE(refused.error().step.find("gpuctl bind " + address_), std::string::npos)
      << refused.error().message();
  open();
}

TEST_P(AnyDevice, IovaLimitsAreTheIommus) {
  open();
  const auto& limits = device_->iova_limits();
  ASSERT_FALSE(limits.usable.empty());
  EXPECT_NE(limits.page_sizes & kPageSize, 0u);
  EXPECT_GT(limits.max_mappings, 1000u);
  for (const auto& range : limits.usable) EXPECT_LE(range.first, range.last);
  // The interrupt window of x86 is no memory.
  const auto memory = memory_of(kPageSize);
  EXPECT_EQ(
      device_->map_dma(memory.get(), 0, kPageSize, Iova(0xfee00000), Rights::kRead).error().code,
      Errc::kOutOfRange);
  const auto last = limits.usable.back().last;
  EXPECT_TRUE(device_->map_dma(memory.get(), 0, kPageSize, Iova(last.value() & ~(kPageSize - 1)),
                               Rights::kRead))
      << std::hex << last.value();
}

TEST_P(AnyDevice, MapsAndUnmapsExactly) {
  open();
  const auto memory = memory_of(4 * kMiB);
  const auto map = [&](std::uint64_t offset, std::uint64_t size, std::uint64_t at) {
    const auto done = device_->map_dma(memory.get(), offset, size, Iova(at), Rights::kReadWrite);
    return done ? Errc{} : done.error().code;
  };
  const auto unmap = [&](std::uint64_t size, std::uint64_t at) {
    const auto done = device_->unmap_dma(Iova(at), size);
    return done ? Errc{} : done.error().code;
  };
  EXPECT_EQ(map(0, 2 * kMiB, 0x40000000), Errc{});
  EXPECT_EQ(map(0, kPageSize, 0x40000000), Errc::kExists);
  EXPECT_EQ(map(0, kPageSize, 0x401ff000), Errc::kExists);
  EXPECT_EQ(map(0, 2 * kPageSize, 0x3ffff000), Errc::kExists);
  EXPECT_EQ(map(2 * kMiB, 2 * kMiB, 0x40200000), Errc{}) << "right behind it";
  EXPECT_EQ(map(4 * kMiB, kPageSize, 0x50000000), Errc::kOutOfRange) << "past the memory";
  EXPECT_EQ(map(0, 100, 0x50000000), Errc::kInvalidArgument);
  EXPECT_EQ(unmap(kMiB, 0x40000000), Errc::kNotFound);
  EXPECT_EQ(unmap(4 * kMiB, 0x40000000), Errc::kNotFound) << "two at once";
  EXPECT_EQ(unmap(2 * kMiB, 0x40000000), Errc{});
  EXPECT_EQ(unmap(2 * kMiB, 0x40000000), Errc::kNotFound);
  EXPECT_EQ(map(0, kPageSize, 0x40000000), Errc{}) << "the kernel had it unmapped";
  EXPECT_EQ(map(0, kPageSize, 0x401ff000), Errc{});
  EXPECT_EQ(unmap(2 * kMiB, 0x40200000), Errc{});
}

TEST_P(AnyDevice, LargeRangesAndMemoryOfManyKinds) {
  open();
  const auto large = memory_of(16 * kMiB);
  EXPECT_TRUE(device_->map_dma(large.get(), 0, 16 * kMiB, Iova(0x80000000), Rights::kReadWrite));
  EXPECT_TRUE(device_->unmap_dma(Iova(0x80000000), 16 * kMiB));
  const auto pair = memory_of(2 * kPageSize);
  const base::UniqueFd reader(
      ::open(("/proc/self/fd/" + std::to_string(pair.get())).c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(reader);
  EXPECT_TRUE(device_->map_dma(reader.get(), kPageSize, kPageSize, Iova(0x1000), Rights::kRead));
  EXPECT_FALSE(device_->map_dma(reader.get(), 0, kPageSize, Iova(0x2000), Rights::kReadWrite))
      << "memory that may not be written";
  EXPECT_TRUE(device_->map_dma(pair.get(), 0, kPageSize, Iova(0x2000), Rights::kReadWrite))
      << "the failed one left nothing";
  const auto sealed = base::make_memfd("sealed", kPageSize, F_SEAL_FUTURE_WRITE).value();
  EXPECT_EQ(device_->map_dma(sealed.get(), 0, kPageSize, Iova(0x3000), Rights::kWrite).error().code,
            Errc::kPermission);
  EXPECT_TRUE(device_->map_dma(sealed.get(), 0, kPageSize, Iova(0x3000), Rights::kRead));
  EXPECT_EQ(device_->map_dma(-1, 0, kPageSize, Iova(0x3000), Rights::kRead).error().code,
            Errc::kInvalidArgument);
}

TEST_P(AnyDevice, HugePagesAreMappedWhole) {
  constexpr std::uint64_t kHuge = 2 * kMiB, kSize = 32 * kHuge;
  const std::string pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
  ASSERT_TRUE(put(pool, "32"));
  {
    const base::UniqueFd memory(::memfd_create("huge", MFD_HUGETLB | MFD_HUGE_2MB | MFD_CLOEXEC));
    ASSERT_TRUE(memory);
    ASSERT_EQ(::ftruncate(memory.get(), kSize), 0);
    ASSERT_EQ(::fallocate(memory.get(), 0, 0, kSize), 0) << "32 huge pages of the guest's memory";
    open();
    EXPECT_TRUE(device_->map_dma(memory.get(), 0, kSize, Iova(1ull << 32), Rights::kReadWrite));
    EXPECT_TRUE(device_->unmap_dma(Iova(1ull << 32), kSize));
    EXPECT_TRUE(device_->map_dma(memory.get(), kHuge, kPageSize, Iova(0x1000), Rights::kReadWrite))
        << "a part of one";
    device_.reset();
  }
  EXPECT_TRUE(put(pool, "0"));
}

// The reactor's mappings and the memory worker's.
TEST_P(AnyDevice, TwoThreadsMap) {
  open();
  const auto memory = memory_of(kMiB);
  std::atomic<unsigned> wrong = 0;
  const auto work = [&](std::uint64_t base) {
    for (std::uint64_t i = 0; i < 50; ++i) {
      const Iova at(base + i * kPageSize);
      if (!device_->map_dma(memory.get(), 0, kPageSize, at, Rights::kReadWrite)) ++wrong;
      if (!device_->unmap_dma(at, kPageSize)) ++wrong;
    }
  };
  std::thread worker(work, 0x10000000);
  work(0x20000000);
  worker.join();
  EXPECT_EQ(wrong, 0u);
}

// Without CAP_IPC_LOCK for as long as it lives; the right stays permitted.
class WithoutIpcLock {
 public:
  WithoutIpcLock() { set(false); }
  ~WithoutIpcLock() { set(true); }
  WithoutIpcLock(const WithoutIpcLock&) = delete;

 private:
  static void set(bool on) {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> data{};
    ASSERT_EQ(::syscall(SYS_capget, &header, data.data()), 0);
    auto& effective = data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective;
    effective = on ? effective | CAP_TO_MASK(CAP_IPC_LOCK) : effective & ~CAP_TO_MASK(CAP_IPC_LOCK);
    ASSERT_EQ(::syscall(SYS_capset, &header, data.data()), 0);
  }
};

TEST_P(AnyDevice, TooLittleMemoryThatMayBeLockedIsSaidWithTheLimit) {
  open();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit little{256 * base::kKiB, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &little), 0);
  const auto memory = memory_of(2 * kMiB);
  {
    const WithoutIpcLock without;
    const auto refused =
        device_->map_dma(memory.get(), 0, 2 * kMiB, Iova(0x10000000), Rights::kReadWrite);
    EXPECT_FALSE(refused);
    if (!refused) {
      EXPECT_EQ(refused.error().code, Errc::kNoMemory) << refused.error().message();
      EXPECT_NE(refused.error().step.find("256 KiB"), std::string::npos)
          << refused.error().message();
      EXPECT_NE(refused.error().step.find("RLIMIT_MEMLOCK"), std::string::npos);
    }
    EXPECT_TRUE(
        device_->map_dma(memory.get(), 0, 64 * base::kKiB, Iova(0x10000000), Rights::kReadWrite));
    EXPECT_TRUE(device_->unmap_dma(Iova(0x10000000), 64 * base::kKiB));
  }
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
  EXPECT_TRUE(device_->map_dma(memory.get(), 0, 2 * kMiB, Iova(0x10000000), Rights::kReadWrite));
}

TEST_F(KernelVfio, AGroupsMappingsAreCounted) {
  const std::string limit = "/sys/module/vfio_iommu_type1/parameters/dma_entry_limit";
  const std::string before = get(limit);
  ASSERT_FALSE(before.empty());
  ASSERT_TRUE(put(limit, "5"));
  open(Way::kGroup);
  EXPECT_EQ(device_->iova_limits().max_mappings, 5u);
  const auto memory = memory_of(kPageSize);
  for (std::uint64_t i = 0; i < 5; ++i)
    EXPECT_TRUE(device_->map_dma(memory.get(), 0, kPageSize, Iova(i * kPageSize), Rights::kRead));
  const auto sixth = device_->map_dma(memory.get(), 0, kPageSize, Iova(kMiB), Rights::kRead);
  EXPECT_EQ(sixth.error().code, Errc::kLimit);
  EXPECT_NE(sixth.error().step.find("dma_entry_limit"), std::string::npos);
  EXPECT_TRUE(device_->unmap_dma(Iova(0), kPageSize));
  EXPECT_TRUE(device_->map_dma(memory.get(), 0, kPageSize, Iova(kMiB), Rights::kRead));
  device_.reset();
  EXPECT_TRUE(put(limit, before));
}

TEST_F(KernelVfio, ThePreferredWayIsIommufd) {
  vfio::KernelName name;
  name.address = vfio::sysfs::PciAddress::parse(address_).value();
  auto device = vfio::open_kernel_device("x", name);
  ASSERT_TRUE(device) << device.error().message();
  // The container of a group counts its mappings, iommufd does not.
  EXPECT_EQ((*device)->iova_limits().max_mappings, UINT64_MAX);
}

// What a BAR access is while memory space is off, or the device in its sleep: SIGBUS.
TEST_P(AnyDevice, ABarThatGoesAwayIsALossAndNoSignal) {
  open();
  auto bar = device_->open_bar(BarIndex::k0);
  ASSERT_TRUE(bar) << bar.error().message();
  ASSERT_FALSE((*bar)->mapped().empty());
  const auto* const word =
      reinterpret_cast<const volatile std::uint32_t*>((*bar)->mapped()[0].data);
  (void)*word;
  ASSERT_FALSE(device_->lost());
  const auto command = device_->read_config(kCommand, 2).value();
  ASSERT_TRUE(device_->write_config(kCommand, 2, command & ~2u));
  EXPECT_EQ(*word, 0xffffffffu);
  EXPECT_TRUE(device_->lost());
  EXPECT_NE(device_->lost_why().find("BAR 0 went away"), std::string::npos) << device_->lost_why();
  pollfd wait{device_->event_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&wait, 1, 10'000), 1) << "who polls is told";
  EXPECT_EQ(device_->read_config(0, 4).error().code, Errc::kDeviceLost);
  device_.reset();
  open();
  auto again = device_->open_bar(BarIndex::k0);
  ASSERT_TRUE(again);
  (void)(*again)->read32(0);
  EXPECT_FALSE(device_->lost()) << "memory space is on again";
}

TEST_P(AnyDevice, LettingGoLeavesAllOnesAndTheDeviceFree) {
  open();
  auto bar = device_->open_bar(BarIndex::k0);
  ASSERT_TRUE(bar) << bar.error().message();
  ASSERT_TRUE(device_->write_config(kCommand, 2, 6));
  const auto memory = memory_of(2 * kMiB);
  ASSERT_TRUE(device_->map_dma(memory.get(), 0, 2 * kMiB, Iova(0), Rights::kReadWrite));
  auto* const word = reinterpret_cast<volatile std::uint32_t*>((*bar)->mapped()[0].data);
  device_->release();
  EXPECT_EQ(device_->lost_why(), "let go of");
  EXPECT_EQ(device_->event_fd(), -1);
  EXPECT_EQ(*word, 0xffffffffu);
  *word = 7;
  EXPECT_EQ((*bar)->read32(0), 0xffffffffu);
  EXPECT_EQ(device_->map_dma(memory.get(), 0, kPageSize, Iova(0), Rights::kRead).error().code,
            Errc::kDeviceLost);
  EXPECT_EQ(device_->reset().error().code, Errc::kDeviceLost);
  EXPECT_EQ(device_->arm_msix(1).error().code, Errc::kDeviceLost);
  device_->release();

  // The kernel has it: another one may open it while the first, with its BAR, still exists.
  auto next = try_open(GetParam());
  ASSERT_TRUE(next) << next.error().message();
  EXPECT_EQ((*next)->read_config(kCommand, 2).value() & kBusMaster, 0u);
  next->reset();
  bar->reset();
}

// A child, one that hangs in the kernel perhaps, must not keep the device by what it inherited.
TEST_P(AnyDevice, AChildDoesNotKeepTheBars) {
  open();
  auto bar = device_->open_bar(BarIndex::k0);
  ASSERT_TRUE(bar) << bar.error().message();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close_range(3, ~0u, 0);
    for (;;) ::pause();
  }
  device_->release();
  // Until the child has closed what it inherited.
  auto next = try_open(GetParam());
  for (int i = 0; i < 100 && !next && next.error().code == Errc::kBusy; ++i) {
    ::usleep(10'000);
    next = try_open(GetParam());
  }
  EXPECT_TRUE(next) << next.error().message();
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  bar->reset();
}

// An unbind waits until the device is let go of, and says so by the request interrupt.
TEST_P(AnyDevice, AnUnbindAsksAndGetsTheDevice) {
  open();
  auto bar = device_->open_bar(BarIndex::k0);
  ASSERT_TRUE(bar) << bar.error().message();
  (void)(*bar)->read32(0);
  std::atomic<bool> unbound = false;
  std::thread other([&] {
    put(sysfs("driver/unbind"), address_);
    unbound = true;
  });
  pollfd wait{device_->event_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&wait, 1, 20'000), 1);
  EXPECT_FALSE(unbound);
  device_->handle_events();
  EXPECT_TRUE(device_->lost());
  EXPECT_NE(device_->lost_why().find("the kernel wants the device back"), std::string::npos)
      << device_->lost_why();
  device_->release();
  other.join();
  EXPECT_EQ(get(sysfs("driver/uevent")), "") << "no driver has it";
  bar->reset();
  device_.reset();
  ASSERT_TRUE(put("/sys/bus/pci/drivers_probe", address_));
  open();
}

// A device that no IOMMU holds, in VFIO's mode for that.
class NoIommu : public KernelVfio {
 protected:
  void SetUp() override {
    address_ = address_under_test();
    if (address_.empty()) GTEST_SKIP() << "GPUUMD_TEST_PCI names no device";
    if (has_iommu()) GTEST_SKIP() << "an IOMMU holds the device";
    descriptors_ = open_descriptors();
  }
};

TEST_F(NoIommu, IsRefusedUnlessOneInsistsAndThenMapsNothing) {
  const auto refused = try_open(Way::kGroup);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kUnsupported);
  EXPECT_NE(refused.error().step.find("i-know-that-this-device-can-overwrite-all-memory"),
            std::string::npos);
  EXPECT_EQ(try_open(Way::kIommufd, true).error().code, Errc::kUnsupported);

  auto device = try_open(Way::kGroup, true);
  ASSERT_TRUE(device) << device.error().message();
  device_ = std::move(*device);
  EXPECT_EQ(device_->identity().vendor, device_->read_config(0, 2).value());
  EXPECT_TRUE(device_->iova_limits().usable.empty());
  const auto memory = memory_of(kPageSize);
  const auto mapped = device_->map_dma(memory.get(), 0, kPageSize, Iova(0), Rights::kRead);
  EXPECT_EQ(mapped.error().code, Errc::kUnsupported);
  EXPECT_NE(mapped.error().step.find("without an IOMMU"), std::string::npos);
  EXPECT_EQ(device_->unmap_dma(Iova(0), kPageSize).error().code, Errc::kNotFound);
  auto bar = device_->open_bar(BarIndex::k0);
  ASSERT_TRUE(bar) << bar.error().message();
  (void)(*bar)->read32(0);
  EXPECT_FALSE(device_->lost());
  EXPECT_TRUE(device_->arm_msix(1));
  EXPECT_TRUE(device_->disarm_msix());
}

TEST_F(KernelVfio, NoSuchDevice) {
  address_ = "0000:ff:1f.7";
  const auto nobody = try_open(Way::kIommufd);
  EXPECT_EQ(nobody.error().code, Errc::kNotFound);
  EXPECT_NE(nobody.error().step.find(address_), std::string::npos);
}

}  // namespace
}  // namespace vfio_kernel_test
