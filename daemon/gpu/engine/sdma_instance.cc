#include "daemon/gpu/engine/sdma_instance.h"

#include <utility>

namespace gpuumd {

using namespace sdma;  // NOLINT: register names read best bare, as in the manual

void SdmaInstance::start() {
  registers_.modify<UTCL1_CNTL>([](base::Value<UTCL1_CNTL> value) {
    return value.with<UTCL1_CNTL::REDO_DELAY>(9).with<UTCL1_CNTL::RESP_MODE>(3);
  });
  // Traps, page faults and bus errors raise interrupts; without these bits a stopped queue would be
  // silent (docs/hardware/choices.md D5).
  registers_.write(base::Value<SDMA_CNTL>()
                       .with<SDMA_CNTL::TRAP_ENABLE>(true)
                       .with<SDMA_CNTL::PAGE_RETRY_TIMEOUT_INT_ENABLE>(true)
                       .with<SDMA_CNTL::PAGE_NULL_INT_ENABLE>(true)
                       .with<SDMA_CNTL::PAGE_FAULT_INT_ENABLE>(true));
  registers_.write(base::Value<MCU_CNTL>(0));
}

void SdmaInstance::halt() {
  registers_.write(base::Value<MCU_CNTL>().with<MCU_CNTL::HALT>(true));
  registers_.write(base::Value<MCU_CNTL>().with<MCU_CNTL::HALT>(true).with<MCU_CNTL::RESET>(true));
  pending_.reset();
}

void SdmaInstance::request_queue_reset(unsigned queue, TimePoint deadline) {
  registers_.write(base::Value<QUEUE_RESET_REQ>(1u << queue));
  pending_ = Pending{queue, deadline};
}

std::optional<base::Result<void>> SdmaInstance::poll_queue_reset(TimePoint now) {
  if (!pending_) return std::nullopt;
  const auto value = registers_.read<QUEUE_RESET_REQ>().raw();
  if ((value & (1u << pending_->queue)) == 0) {
    pending_.reset();
    return base::Result<void>();
  }
  if (now < pending_->deadline) return std::nullopt;
  const auto queue = std::exchange(pending_, std::nullopt)->queue;
  return base::fail(base::Errc::kTimeout,
                    name_ + " QUEUE_RESET_REQ of queue " + std::to_string(queue));
}

}  // namespace gpuumd
