// The client of the security processor: one ring, one command at a time, each ended by a fence that
// is polled until a deadline (docs/hardware/psp.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/result.h"
#include "daemon/gpu/bringup/bring_up.h"
#include "daemon/gpu/bringup/psp_records.h"
#include "daemon/gpu/registers/iv.h"
#include "daemon/gpu/registers/register_io.h"
#include "daemon/reactor/reactor.h"

namespace gpuumd {

// kBytes of host memory, page aligned, that VMID 0 reaches at `address`: ring, command buffer,
// fence and config record. Coherent: the device snoops it.
struct PspMemory {
  static constexpr std::size_t kBytes = 2 * base::kPageSize;
  std::byte* cpu = nullptr;
  base::McAddress address;
};

// Device thread. Calls are queued and served in order; each `done` is called once, from a later
// turn. After a command missed its deadline nothing is known about the ring, so all that is queued
// and everything later fails until the ring has been made anew (step().down, step().up).
class Psp {
 public:
  template <class T>
  using Done = std::move_only_function<void(base::Result<T>)>;
  static constexpr std::size_t kMaxQueued = 16;
  static constexpr Duration kCommandDeadline = std::chrono::seconds(2);

  // All must outlive the object.
  Psp(Reactor& reactor, const RegisterBlock& mp0, PspMemory memory);

  // Up: makes the ring and lets the processor interrupt. Down: interrupt off, ring destroyed.
  Step step();

  // Errors of all below: kTimeout, kDeviceLost, kBusy (queue full, or no ring), kDeviceError with
  // the status that the processor gave.

  // kUnsupported for a version newer than the driver speaks.
  void get_interface_version(Done<psp::InterfaceVersion> done);
  void get_config(Done<psp::Config> done);  // kProtocol for a record that makes no sense
  // Whether remote accesses are translated, by VMID `vmid`.
  void set_npa(base::Vmid vmid, bool enable, Done<void> done);
  // Answers a Request. `status` 0 says that it was done.
  void send_completion(psp::Request::Kind kind, std::uint32_t status, Done<void> done);

  // Without a pod controller the host describes the pod itself (docs/hardware/choices.md D52).
  void set_physical_pod(base::AccelId self, const psp::PhysicalPod& pod,
                        std::span<const base::AccelId> local, Done<void> done);
  void set_virtual_pod(const psp::VirtualPod& pod, Done<void> done);

  // Handler of (kMp0, kPspRequest): acknowledges the interrupt, which every vector needs, and says
  // what is asked.
  std::optional<psp::Request> on_interrupt(const InterruptVector& vector);

  struct Counters {
    std::uint64_t commands = 0;
    std::uint64_t refused = 0;  // with a status
    std::uint64_t timeouts = 0;
    std::uint64_t bad_requests = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  // A copy of the response part of the command buffer.
  struct Response {
    std::array<std::byte, psp::command::kResponseBytes> body;
  };
  struct Command {
    psp::CommandId id;
    std::vector<std::byte> body;
    Done<Response> done;
  };

  void submit(psp::CommandId id, std::vector<std::byte> body, Done<Response> done);
  void begin();
  void write_frame(std::uint32_t fence);
  void check_fence();
  void finish(base::Result<Response> result);
  void fail_all(const base::Error& error);

  base::Result<void> start_ring();
  base::Result<bool> poll_ring();
  base::Result<void> start_destroy();
  base::Result<bool> poll_destroy();
  std::string command_word() const;
  void enable_interrupt(bool on);

  Reactor& reactor_;
  RegisterBlock mp0_;
  PspMemory memory_;
  enum class Ring : std::uint8_t { kNone, kReady, kBroken } ring_ = Ring::kNone;
  enum class Create : std::uint8_t { kWaitReady, kSettle, kWaitDone } create_{};
  TimePoint settled_{};
  std::uint32_t wptr_ = 0;     // dwords
  std::uint32_t fence_ = 0;    // of the last command
  std::deque<Command> queue_;  // front: in flight when active_
  bool active_ = false;
  TimePoint deadline_{};
  Registration timer_;
  Counters counters_;
};

}  // namespace gpuumd
