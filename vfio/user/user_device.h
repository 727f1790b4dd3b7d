// A PciDevice at the other end of a vfio-user socket (docs/vfio-user.md).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "base/shared_memory.h"
#include "vfio/bar_memory.h"
#include "vfio/pci_device.h"
#include "vfio/user/user_bar.h"
#include "vfio/user/user_dma.h"
#include "vfio/user/user_transport.h"
#include "vfio/user/user_version.h"

namespace vfio {

struct UserOptions {
  std::chrono::milliseconds handshake{5000};  // all of connect_vfio_user()
  std::chrono::milliseconds trap = kTrapDeadline;
  std::chrono::milliseconds call{2000};  // DMA maps, interrupts, opening a BAR; also all of the end
  std::chrono::milliseconds reset{10000};  // the protocol lets a reset take long
  // Whether doorbells may be mapped: without it the model gets each as a message.
  bool offer_wake = true;
  // For a model that runs on the thread that connects: called by that thread while it waits for a
  // reply, again and again, and must return soon. It may call handle_events() of the device, which
  // a model does that waits for its own DMA_READ to be answered (not before connect_vfio_user() has
  // returned: nothing is mapped then). Other threads wait and leave the pumping to that one.
  std::function<void()> pump;
};

// Since the device was opened.
struct UserCounters {
  std::uint64_t dma_reads = 0;      // served
  std::uint64_t dma_writes = 0;     // served
  std::uint64_t dma_refused = 0;    // not mapped, no right, malformed
  std::uint64_t error_replies = 0;  // of the server, to commands of ours
};

class UserDevice final : public PciDevice, private RegionIo {
 public:
  // Disarms, unmaps and closes, within UserOptions::call; what the server has not done by then
  // it does on seeing the end of the connection.
  ~UserDevice() override;

  const DeviceIdentity& identity() const override { return identity_; }
  bool lost() const override { return transport_.lost(); }
  std::string lost_why() const override { return transport_.lost_why(); }
  base::Result<std::uint32_t> read_config(std::uint32_t offset, unsigned width) override;
  base::Result<void> write_config(std::uint32_t offset, unsigned width,
                                  std::uint32_t value) override;
  base::Result<std::unique_ptr<Bar>> open_bar(BarIndex index) override;
  const IovaLimits& iova_limits() const override { return limits_; }
  base::Result<void> map_dma(int fd, std::uint64_t offset, std::uint64_t size, base::Iova at,
                             Rights rights) override;
  base::Result<void> unmap_dma(base::Iova at, std::uint64_t size) override;
  base::Result<std::vector<base::UniqueFd>> arm_msix(unsigned count) override;
  base::Result<void> disarm_msix() override;
  base::Result<base::UniqueFd> arm_intx() override;
  base::Result<void> unmask_intx() override;
  base::Result<void> reset() override;
  int event_fd() const override { return transport_.fd(); }
  void handle_events() override;
  // A server that is there is told first, within UserOptions::call.
  void release() override;

  UserCounters counters() const;  // any thread

 private:
  friend base::Result<std::unique_ptr<UserDevice>> connect_vfio_user(base::UniqueFd socket,
                                                                     std::string name,
                                                                     UserOptions options);
  using Clock = UserTransport::Clock;

  UserDevice(base::UniqueFd socket, base::UniqueFd wake, std::string name, UserOptions options);
  Clock::time_point within(std::chrono::milliseconds time) const { return Clock::now() + time; }

  base::Result<void> handshake();
  base::Result<void> negotiate(Clock::time_point deadline);
  base::Result<void> take_wake(std::vector<base::UniqueFd> fds);
  base::Result<void> read_device_info(Clock::time_point deadline);
  base::Result<void> read_identity(Clock::time_point deadline);

  struct RegionReply {
    Region region;
    base::UniqueFd fd;
  };
  base::Result<RegionReply> region_info(std::uint32_t index, Clock::time_point deadline);
  base::Result<std::uint32_t> config_word(std::uint32_t offset, unsigned width,
                                          Clock::time_point deadline);
  base::Result<void> check_config(std::uint32_t offset, unsigned width) const;
  base::Result<void> access(wire::Command command, std::uint32_t region, std::uint64_t offset,
                            std::span<std::byte> to, std::span<const std::byte> from,
                            Clock::time_point deadline);

  base::Result<void> check_dma(std::uint64_t offset, std::uint64_t size, base::Iova at) const;
  base::Result<void> send_unmap(base::Iova at, std::uint64_t size, Clock::time_point deadline);

  base::Result<void> check_irqs(std::uint32_t index, unsigned count, Clock::time_point deadline);
  base::Result<void> set_irqs(std::uint32_t index, std::uint32_t flags, std::uint32_t start,
                              std::span<const int> eventfds, Clock::time_point deadline);
  base::Result<void> arm(std::uint32_t index, std::span<const int> eventfds,
                         Clock::time_point deadline);
  base::Result<void> disarm(Clock::time_point deadline);
  void say_goodbye();

  base::Result<void> region_read(std::uint32_t region, std::uint64_t offset,
                                 std::span<std::byte> to) override;
  base::Result<void> region_write(std::uint32_t region, std::uint64_t offset,
                                  std::span<const std::byte> from) override;
  void region_post(std::uint32_t region, std::uint64_t offset,
                   std::span<const std::byte> from) override;
  bool settle() override;

  int serve_dma(const wire::Header& header, std::span<const std::byte> body,
                std::vector<std::byte>& reply);

  const UserOptions options_;
  DeviceIdentity identity_;
  ServerCapabilities server_;
  IovaLimits limits_;
  std::uint32_t irq_count_ = 0;
  bool can_reset_ = false;
  std::optional<std::uint32_t> armed_;  // the index of the interrupts that are
  std::uint64_t config_size_ = 0;
  base::Mapping wake_page_;
  std::vector<base::UniqueFd> wake_eventfds_;
  std::array<std::optional<DoorbellWake>, 6> wakes_;  // by BAR
  BarMemories bars_;
  std::atomic<std::uint64_t> dma_reads_ = 0;
  std::atomic<std::uint64_t> dma_writes_ = 0;
  std::atomic<std::uint64_t> dma_refused_ = 0;
  DmaTable dma_;  // before the transport, which serves from it until it goes
  UserTransport transport_;
};

// Speaks vfio-user over `socket`, a connected Unix stream socket (the model in this process is one
// end of a socketpair). `name` becomes identity().name. The calling thread counts as the one that
// owns the device. kTimeout, kDisconnected, kProtocol, kUnsupported (not a PCI device, another
// major version), kBusy, kDeviceError.
base::Result<std::unique_ptr<UserDevice>> connect_vfio_user(base::UniqueFd socket, std::string name,
                                                            UserOptions options = {});

}  // namespace vfio
