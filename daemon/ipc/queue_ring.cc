#include "daemon/ipc/queue_ring.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cassert>
#include <climits>

#include "daemon/ipc/command_decode.h"

namespace gpuumd {

base::Result<QueueRing> QueueRing::create(std::uint32_t slots) {
  const std::size_t bytes = base::align_up(
      wire::kQueueSlotsOffset + std::size_t{slots} * sizeof(wire::CommandSlot), base::kPageSize);
  auto memory = base::make_memfd("gpuumd-queue", bytes);
  if (!memory) return std::unexpected(memory.error());
  auto mapping = base::Mapping::map(memory->get(), 0, bytes, PROT_READ | PROT_WRITE);
  if (!mapping) return std::unexpected(mapping.error());
  return QueueRing(std::move(*memory), std::move(*mapping), slots);
}

QueueRing::QueueRing(base::UniqueFd descriptor, base::Mapping mapping, std::uint32_t slots)
    : descriptor_(std::move(descriptor)),
      mapping_(std::move(mapping)),
      page_(mapping_.at<wire::QueuePage>()),
      commands_(mapping_.at<wire::CommandSlot>(wire::kQueueSlotsOffset)),
      ring_(&page_->ring, slots) {}

bool QueueRing::empty() const {
  const auto filled = ring_.filled();
  return filled && *filled == 0;
}

base::Result<std::optional<Command>> QueueRing::next() {
  const auto filled = ring_.filled();
  if (!filled) return base::fail(base::Errc::kProtocol, "index of a queue's ring");
  if (*filled == 0) return std::optional<Command>();
  std::array<wire::CommandSlot, wire::kMaxCommandSlots> copy;
  copy_shared(&copy[0], commands_ + ring_.slot(0), sizeof(wire::CommandSlot));
  const auto count = command_slots(copy[0]);
  if (!count) return std::unexpected(count.error());
  if (*count > *filled)
    return base::fail(base::Errc::kProtocol, "half a command in a queue's ring");
  for (std::uint32_t i = 1; i < *count; ++i)
    copy_shared(&copy[i], commands_ + ring_.slot(i), sizeof(wire::CommandSlot));
  auto command = decode_command(std::span(copy).first(*count));
  if (!command) return std::unexpected(std::move(command.error()));
  ring_.release(*count);
  if (must_wake(page_->producer_sleeping))
    ::syscall(SYS_futex, &page_->ring.head, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  return std::optional<Command>(std::move(*command));
}

}  // namespace gpuumd
