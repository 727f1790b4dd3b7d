// One SDMA instance: start, the reset of one queue, the reset of all (docs/hardware/sdma.md). Every
// wait is a state polled from outside. Device thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/result.h"
#include "daemon/gpu/registers/sdma.h"
#include "daemon/reactor/reactor.h"

namespace gpuumd {

class SdmaInstance {
 public:
  // `name` for messages: "SDMA 0.1".
  SdmaInstance(RegisterBlock registers, std::string name)
      : registers_(registers), name_(std::move(name)) {}

  // Time-outs, interrupts, and the microcontroller released. The queues are programmed after it.
  void start();
  // Stops all queues at once and loses what is in flight.
  void halt();

  // Asks for the reset of one queue. Then poll_queue_reset() until it gives an answer: true when
  // the queue is reset (program it again), kTimeout when it did not answer by the deadline.
  void request_queue_reset(unsigned queue, TimePoint deadline);
  std::optional<base::Result<void>> poll_queue_reset(TimePoint now);

  const RegisterBlock& registers() const { return registers_; }
  const std::string& name() const { return name_; }

 private:
  struct Pending {
    unsigned queue;
    TimePoint deadline;
  };
  RegisterBlock registers_;
  std::string name_;
  std::optional<Pending> pending_;
};

}  // namespace gpuumd
