// Two MMHUBs and two GFXHUBs made of registers that remember, which acknowledge when told to.
#pragma once

#include <vector>

#include "daemon/gpu/memory/flush_queue.h"
#include "daemon/gpu/registers/vm_hub.h"
#include "tests/fake/fake_register_io.h"
#include "tests/fake/manual_reactor.h"

namespace fake {

struct Hubs {
  Hubs() {
    for (unsigned i = 0; i < 4; ++i) {
      gpuumd::RegisterBlock::Bases bases;
      bases.fill(0x10000 * (i + 1));
      const auto kind = i < 2 ? gpuumd::HubKind::kMmhub : gpuumd::HubKind::kGfxhub;
      hubs.push_back({kind, i % 2, {io, gpuumd::vm_hub::bases(kind, bases)}});
      const gpuumd::VmHub& hub = hubs.back();
      io.on_read[sem(hub)] = [this] { return semaphore_free ? 1u : 0u; };
      io.on_write[req(hub)] = [this, &io = io, ack = ack(hub)](std::uint32_t value) {
        io.values[ack] &= ~value & 0xFFFF;
        if (acknowledge) io.values[ack] |= value & 0xFFFF;
      };
    }
  }
  template <class R>
  static std::uint32_t at(const gpuumd::VmHub& hub, unsigned index = 0) {
    return hub.registers.dword<R>(index);
  }
  static std::uint32_t sem(const gpuumd::VmHub& hub) {
    return at<gpuumd::vm_hub::INVALIDATE_ENG_SEM>(hub, 17);
  }
  static std::uint32_t req(const gpuumd::VmHub& hub) {
    return at<gpuumd::vm_hub::INVALIDATE_ENG_REQ>(hub, 17);
  }
  static std::uint32_t ack(const gpuumd::VmHub& hub) {
    return at<gpuumd::vm_hub::INVALIDATE_ENG_ACK>(hub, 17);
  }
  static std::uint32_t cid2(const gpuumd::VmHub& hub) {
    return at<gpuumd::vm_hub::L2_BANK_SELECT_RESERVED_CID2>(hub);
  }
  // All flushes under way are done now.
  void acknowledge_all() {
    for (const auto& hub : hubs) io.values[ack(hub)] |= io.values[req(hub)] & 0xFFFF;
  }

  FakeRegisterIo io;
  std::vector<gpuumd::VmHub> hubs;
  bool semaphore_free = true;
  bool acknowledge = true;  // at once
};

}  // namespace fake
