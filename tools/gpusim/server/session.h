// One client of one GPU: serves its vfio-user commands, and is the bus that the GPU sees while the
// client is connected. Model thread only.
//
// The client is not trusted: every size and index of a message is checked before it is used, a
// request that cannot be served gets an errno, a message that breaks the protocol ends the session.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "tools/gpusim/model/gpu_device.h"
#include "tools/gpusim/server/channel.h"
#include "tools/gpusim/server/dma_map.h"
#include "tools/gpusim/server/intx.h"
#include "tools/gpusim/server/msix.h"
#include "tools/gpusim/server/pci_config.h"
#include "tools/gpusim/server/wake_page.h"

namespace gpusim {

struct ServerOptions {
  std::string name = "gpusim";  // in log lines
  // How long an engine waits for the client to answer a DMA_READ or DMA_WRITE before the access
  // counts as refused.
  std::chrono::milliseconds dma_deadline{1000};
  // For a model on the client's own thread: called again and again while it waits for such an
  // answer, must serve the client's side and return soon. Absent: the wait sleeps in poll().
  std::function<void()> while_waiting;
  // How many idle steps there are to one look at the socket, which costs a system call. More than 1
  // where the client pumps while it waits for an answer.
  unsigned steps_a_look = 1;
  // What a step of the device may move at most (GpuDevice::limit_step()); 0: as the device likes.
  std::size_t step_bytes = 0;
};

// Since the server was made, over all clients.
struct ServerCounters {
  std::uint64_t clients = 0;
  std::uint64_t turned_away = 0;      // came while another was connected
  std::uint64_t messages = 0;         // commands served
  std::uint64_t errors = 0;           // of those, answered with an errno
  std::uint64_t broken_sessions = 0;  // ended by us: protocol broken
  std::uint64_t dma_messages = 0;     // DMA_READ and DMA_WRITE sent
  std::uint64_t dma_refused = 0;      // accesses of engines that ended refused
  std::uint64_t resets = 0;
};

// What of the PCI function outlives a client (docs/hardware/choices.md D56).
struct PciFunction {
  explicit PciFunction(const GpuDevice& device)
      : config(device), msix(device.msix()), intx(device.features().intx) {}

  // After a change of a switch in the configuration space.
  void update_interrupts() {
    msix.set_function(config.msix_enabled() && config.bus_master(), config.msix_function_masked());
    intx.set_disabled(config.intx_disabled());
  }
  void raise(unsigned vector) {
    msix.raise(vector);
    intx.raise();
    config.set_interrupt_status(intx.asserted());
  }
  void lower() {
    intx.lower();
    config.set_interrupt_status(false);
  }

  PciConfig config;
  Msix msix;
  Intx intx;
};

class Session final : private HostBus {
 public:
  // Attaches itself to the device; detaches in the destructor.
  Session(base::UniqueFd socket, GpuDevice& device, PciFunction& function,
          const ServerOptions& options, ServerCounters& counters);
  ~Session() override;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Serves what has arrived, at most a bounded number of messages. True when there was any.
  bool serve();
  bool alive() const { return alive_; }

  int fd() const { return channel_.fd(); }
  bool output_waits() const { return channel_.output_waits(); }
  const DmaMap& dma_map() const { return dma_; }
  bool has_queued() const { return !queued_.empty(); }
  WakePage* wake() { return wake_ ? &*wake_ : nullptr; }  // null unless the client offered it

  void reset_device();

 private:
  // An answer: an errno, or a body of up to two parts with descriptors.
  struct Answer {
    int error = 0;
    std::vector<std::byte> body;
    std::vector<int> fds;
  };
  static Answer refuse(int error) { return {error, {}, {}}; }
  template <class T>
  static Answer answer_with(const T& object);

  void dispatch(Message& message);
  Answer execute(Message& message);
  Answer version(const Message& message);
  Answer dma_map(Message& message);
  Answer dma_unmap(const Message& message);
  Answer region_info(const Message& message) const;
  Answer device_info() const;
  Answer irq_info(const Message& message) const;
  Answer set_irqs(Message& message);
  Answer set_intx(const wire::IrqSet& request, Message& message);
  Answer trigger_irqs(const wire::IrqSet& request, const Message& message);
  Answer region_read(const Message& message);
  Answer region_write(const Message& message);

  std::uint64_t region_size(std::uint32_t index) const;
  BarMemory offered_memory(std::uint32_t index) const;
  int read_region(std::uint32_t region, std::uint64_t offset, std::span<std::byte> to);
  int write_region(std::uint32_t region, std::uint64_t offset, std::span<const std::byte> from);
  std::uint32_t read_dword(std::uint64_t offset);
  void write_dword(std::uint64_t offset, std::uint32_t value);
  int read_registers(std::uint64_t offset, std::span<std::byte> to);
  int write_registers(std::uint64_t offset, std::span<const std::byte> from);
  int write_doorbell(std::uint64_t offset, std::span<const std::byte> from);
  void write_config(std::uint64_t offset, std::span<const std::byte> from);

  std::byte* direct(base::Iova at, std::size_t size, bool write) override;
  bool read(base::Iova at, std::span<std::byte> to) override;
  bool write(base::Iova at, std::span<const std::byte> from) override;
  void raise_interrupt(unsigned vector) override;
  void lower_line() override;

  bool bus_works() const;
  bool read_piece(const DmaMap::Piece& piece, std::uint64_t at, std::span<std::byte> to);
  bool write_piece(const DmaMap::Piece& piece, std::uint64_t at, std::span<const std::byte> from);
  bool ask(std::uint16_t command, std::uint64_t at, std::span<std::byte> read_to,
           std::span<const std::byte> write_from);
  std::optional<Message> await_reply(std::uint16_t id, std::uint16_t command);
  bool refused(const char* what, std::uint64_t at, std::uint64_t size);
  void break_session(const char* why);

  GpuDevice& device_;
  PciFunction& function_;
  const ServerOptions& options_;
  ServerCounters& counters_;
  Channel channel_;
  DmaMap dma_;
  std::optional<WakePage> wake_;
  std::deque<Message> queued_;  // commands that came while an access of ours waited (D63)
  bool alive_ = true;
  bool negotiated_ = false;
  std::uint64_t peer_transfer_ = wire::kDefaultTransfer;
  std::uint16_t next_id_ = 0;
  unsigned logged_refusals_ = 0;
};

}  // namespace gpusim
