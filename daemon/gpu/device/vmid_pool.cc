#include "daemon/gpu/device/vmid_pool.h"

#include <algorithm>
#include <utility>

namespace gpuumd {

// Round and round, so that a PASID comes again as late as possible; never one that is in use.
std::optional<base::Pasid> VmidPool::next_pasid() {
  for (std::uint32_t tries = 0; tries < in_use_.size() + 1; ++tries) {
    last_pasid_ = last_pasid_ % kPasids + 1;
    const base::Pasid pasid(static_cast<std::uint16_t>(last_pasid_));
    if (std::ranges::find(in_use_, pasid) == in_use_.end()) return pasid;
  }
  return std::nullopt;
}

void VmidPool::bind(Pde root, bool retry,
                    std::move_only_function<void(base::Result<Binding>)> done) {
  const auto pasid = next_pasid();
  if (free_.empty() || !pasid) {
    done(base::fail(base::Errc::kLimit, "VMIDs: all 13 address spaces are in use"));
    return;
  }
  const auto vmid = free_.front();
  free_.erase(free_.begin());
  in_use_[vmid.value()] = *pasid;
  for (const auto& hub : hubs_) {
    interrupts_.set_pasid(HubKind::kGfxhub, hub.instance, vmid, *pasid);
    set_fault_mode(hub, vmid, retry);
    set_root(hub, vmid, root);
  }
  flushes_.submit(FlushTarget::client(vmid), FlushType::kHeavy, {},
                  [binding = Binding{vmid, *pasid},
                   done = std::move(done)](base::Result<void> flushed) mutable {
                    if (!flushed)
                      done(std::unexpected(flushed.error()));
                    else
                      done(binding);
                  });
}

void VmidPool::replace_root(base::Vmid vmid, Pde root, Done done) {
  for (const auto& hub : hubs_) set_root(hub, vmid, root);
  flushes_.submit(FlushTarget::client(vmid), FlushType::kHeavy, {}, std::move(done));
}

void VmidPool::release(Binding binding, Done done) {
  for (const auto& hub : hubs_) set_root(hub, binding.vmid, Pde(0));
  flushes_.submit(FlushTarget::client(binding.vmid), FlushType::kHeavy, {},
                  [this, binding, done = std::move(done)](base::Result<void> flushed) mutable {
                    if (flushed) draining_.push_back({binding.vmid, interrupts_.watermark()});
                    done(std::move(flushed));
                  });
}

bool VmidPool::poll() {
  return std::erase_if(draining_, [this](const Draining& entry) {
           if (!interrupts_.passed(entry.mark)) return false;
           in_use_[entry.vmid.value()] = base::Pasid(0);
           free_.push_back(entry.vmid);
           return true;
         }) != 0;
}

}  // namespace gpuumd
