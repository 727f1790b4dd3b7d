// One ring queue of an SDMA instance: fetches packets and does them, in order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tools/gpusim/model/command_stream.h"
#include "tools/gpusim/model/data_mover.h"
#include "tools/gpusim/model/sdma.h"
#include "tools/gpusim/model/sdma_packets.h"
#include "tools/gpusim/model/sdma_registers.h"

namespace gpusim {

// What the queues of an instance share; all of it outlives them.
struct SdmaShared {
  const SdmaConfig& config;
  const BlockContext& context;
  VmHub& hub;
  SdmaRegisters& registers;
  SdmaCounters& counters;
};

class SdmaQueue {
 public:
  SdmaQueue(const SdmaShared& shared, unsigned index);

  // Has something to do now or at some time, as far as the queue itself can tell.
  bool has_work() const;
  // A retryable fault or the other side's "retry" holds it.
  bool stalled() const { return stalled_; }
  // Does packets until the budget (bytes) or the packets of one step are used up. True when it did
  // something.
  bool run(std::size_t& budget);

  // RB_ENABLE was set, was cleared.
  void enabled();
  void disabled();
  void doorbell(std::uint64_t value, bool wide);
  // QUEUE_RESET_REQ: drops what it was doing, empties and disables the ring.
  void reset();
  void set_delay(ModelTime delay) { mover_.set_delay(delay); }

 private:
  enum class Progress : std::uint8_t {
    kDone,    // the packet took effect
    kMore,    // out of budget
    kLater,   // wait until not_before_
    kFailed,  // failure_ says how
    kStopped  // an interrupt was raised and the queue stands
  };
  struct Failure {
    Outcome outcome = Outcome::kOk;
    std::uint64_t va = 0;
    AccessError error;
  };

  // sdma_queue.cc: the stream of packets
  void poll_write_pointer();
  bool next_packet(Progress& progress);
  bool decode(Progress& progress);
  void complete();
  bool settle(Progress progress);
  Progress fail(Outcome outcome, std::uint64_t va);
  void retry_later();
  void stop_for(const Failure& failure);
  Progress stop(SdmaSource source, std::array<std::uint32_t, 4> data = {}, bool raise = true);
  Iv vector(SdmaSource source) const;
  void write_back_rptr();
  void abort_packet();
  CommandStream& stream() { return in_buffer_ ? buffer_ : ring_; }
  std::uint64_t& position() { return in_buffer_ ? buffer_position_ : ring_position_; }
  std::uint32_t word(unsigned index) const { return packet_[index]; }
  std::uint64_t address(unsigned index) const {
    return (std::uint64_t{packet_[index + 1]} << 32) | packet_[index];
  }

  // sdma_packets.cc: what they do
  Progress execute(std::size_t& budget);
  Progress move(std::size_t& budget);
  Progress begin_move();
  Progress write_linear(std::size_t& budget);
  Progress indirect();
  Progress fence();
  Progress trap();
  Progress poll();
  Progress cond_exe();
  Progress atomic();
  Progress pte_pde(std::size_t& budget);
  Progress timestamp();
  Progress register_write();
  Outcome store_words(std::uint64_t va, std::span<const std::uint64_t> words);
  Progress exception() { return stop(SdmaSource::kCommandException, {packet_[0], 0, 0, 0}); }

  const SdmaShared& shared_;
  const SdmaQueueRegisters& registers_;
  unsigned index_;
  std::string name_;
  Requester who_;  // of the packets: the VMID is the ring's or the buffer's
  DataMover mover_;

  CommandStream ring_, buffer_;
  bool in_buffer_ = false;
  std::uint64_t ring_position_ = 0;
  std::uint64_t buffer_position_ = 0;
  bool privileged_ = false;  // of the stream being read

  bool active_ = false;  // a packet is decoded and not done
  std::array<std::uint32_t, kMaxPacketDwords> packet_{};
  base::Value<SDMA_HEADER> header_;
  std::uint64_t length_ = 0;    // bytes of the packet, with data and skipped dwords
  std::uint64_t progress_ = 0;  // of the packet, in its own unit
  bool begun_ = false;

  bool stopped_ = false;
  bool stalled_ = false;
  ModelTime not_before_{};
  std::optional<ModelTime> remote_since_;  // since when the other side says "retry"
  Failure failure_;
  std::uint64_t written_back_ = 0;
  bool write_back_due_ = false;
  std::int64_t timestamp_offset_ = 0;
};

}  // namespace gpusim
