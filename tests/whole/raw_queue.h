// A client without the library: what it puts into its rings is the test's.
#pragma once

#include <sys/mman.h>

#include "tests/ipc/raw_client.h"
#include "tests/whole/client.h"

namespace whole {

// A session by hand with a VM and a queue.
struct RawQueue {
  gpuumd::fake::RawClient client;
  std::optional<gpuumd::fake::RawSession> session;
  base::UniqueFd memory;
  base::Mapping ring;

  explicit RawQueue(const std::string& dir) : client(dir) {
    EXPECT_TRUE(client.shake_hands());
    session.emplace(std::move(*client.open_session()));
    const auto vm = session->call(gpuumd::wire::RequestType::kCreateVm, gpuumd::wire::CreateVm{});
    EXPECT_TRUE(vm && vm->header.status == 0);
    gpuumd::wire::CreateQueue request{};
    request.vm = vm->body.object;
    request.slots = 64;
    session->send(gpuumd::wire::RequestType::kCreateQueue, request);
    auto message = client.receive();  // the ring's descriptor comes before the reply
    EXPECT_TRUE(message && message->descriptors.size() == 1);
    const auto queue = session->receive();
    EXPECT_TRUE(queue && queue->header.status == 0);
    memory = std::move(message->descriptors.at(0));
    ring = std::move(
        base::Mapping::map(memory.get(), 0,
                           gpuumd::wire::kQueueSlotsOffset + 64 * sizeof(gpuumd::wire::CommandSlot),
                           PROT_READ | PROT_WRITE)
            .value());
  }
  void put(const gpuumd::wire::CommandSlot& slot) {
    auto* page = ring.at<gpuumd::wire::QueuePage>();
    auto* slots = ring.at<gpuumd::wire::CommandSlot>(gpuumd::wire::kQueueSlotsOffset);
    gpuumd::store_shared(&slots[tail_ % 64], &slot, sizeof(slot));
    gpuumd::store_release(page->ring.tail, ++tail_);
    session->ring();
  }

 private:
  std::uint32_t tail_ = 0;
};

}  // namespace whole
