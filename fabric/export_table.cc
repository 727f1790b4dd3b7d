#include "fabric/export_table.h"

#include <numeric>
#include <utility>

namespace fabric {

ExportTable::Export* ExportTable::by_serial(std::uint64_t serial) {
  const auto it = exports_.find(serial);
  return it == exports_.end() ? nullptr : &it->second;
}

// Low halves are unique here, but the whole handle decides (errata A2).
ExportTable::Export* ExportTable::by_handle(const Handle& handle) {
  const auto it = serial_of_lo_.find(handle.lo);
  Export* e = it == serial_of_lo_.end() ? nullptr : by_serial(it->second);
  return e != nullptr && e->handle == handle ? e : nullptr;
}

base::Result<Handle> ExportTable::add(AccelId self, const ExportRequest& request) {
  if (const auto it = serial_of_buffer_.find(request.buffer); it != serial_of_buffer_.end()) {
    return by_serial(it->second)->handle;
  }
  auto handle =
      make_handle(self, random_, [&](std::uint64_t lo) { return serial_of_lo_.contains(lo); });
  if (!handle) return handle;
  Export e;
  e.serial = ++last_serial_;
  e.handle = *handle;
  e.buffer = request.buffer;
  e.pages = request.pages;
  e.allowed = request.allowed;
  serial_of_lo_.emplace(handle->lo, e.serial);
  serial_of_buffer_.emplace(e.buffer, e.serial);
  exports_.emplace(e.serial, std::move(e));
  return handle;
}

void ExportTable::refuse(TimePoint now, AccelId peer, const Handle& handle, FailReason reason) {
  host_.send(now, peer, SendKind::kFail, NpaFail{handle.lo, reason}, 0);
}

void ExportTable::on_req(TimePoint now, AccelId peer, const Handle& handle) {
  Export* e = by_handle(handle);
  // Who is not on the list learns nothing, not even that the handle exists.
  if (e == nullptr || e->revoked || draining_ || (e->allowed && !e->allowed->test(peer.value()))) {
    return refuse(now, peer, handle, FailReason::kUnknownHandle);
  }
  if (const auto it = e->grants.find(peer); it != e->grants.end()) {
    // Asked again: the same answer, once the first is through (U13, errata A9).
    if (it->second.taken) answer(now, peer, *e, it->second);
    return;
  }
  e->grants.try_emplace(peer);
  ++grants_to_[peer];
  advance(now, *e);
}

void ExportTable::answer(TimePoint now, AccelId peer, Export& e, Grant& grant) {
  e.holders.insert_or_assign(peer, host_.generation(peer));
  grant.rsp = host_.send(now, peer, SendKind::kRsp,
                         NpaRsp{e.handle.lo, static_cast<std::uint32_t>(e.range->pages),
                                static_cast<std::uint32_t>(e.range->page)},
                         e.serial);
}

void ExportTable::advance(TimePoint now, Export& e) {
  switch (e.phase) {
    case Phase::kIdle:
      if (e.revoked) {
        refuse_waiting(now, e, FailReason::kUnknownHandle);
        return finish(e);
      }
      if (e.grants.empty() || draining_) return;
      e.phase = Phase::kPinning;
      outbox_.ask({.kind = OpOwner::kPin, .id = e.serial}, PinBuffer{.op = {}, .buffer = e.buffer});
      return;
    case Phase::kMapped:
      if (e.revoked) {
        // Peers are told "retry" while their caches are emptied, so that nothing faults too early.
        e.phase = Phase::kRetrying;
        return update(e, NpaEntry::kRetry, NpaFlush::kHeavy);
      }
      if (e.grants.empty()) {
        e.phase = Phase::kUnmapping;
        return update(e, NpaEntry::kGone, NpaFlush::kHeavy);
      }
      for (auto& [peer, grant] : e.grants) {
        if (grant.rsp == 0) answer(now, peer, e, grant);
      }
      return;
    case Phase::kShooting:
      return after_shootdown(now, e);
    case Phase::kReleasing:
      return after_release(now, e);
    case Phase::kPinning:
    case Phase::kMapping:
    case Phase::kUnmapping:
    case Phase::kRetrying:
    case Phase::kClearing:
    case Phase::kStuck:
      return;
  }
}

void ExportTable::update(Export& e, NpaEntry entry, NpaFlush flush) {
  outbox_.ask({.kind = OpOwner::kNpa, .id = e.serial},
              UpdateNpa{.op = {},
                        .range = *e.range,
                        .entry = entry,
                        .flush = flush,
                        .runs = entry == NpaEntry::kGone ? std::vector<VramRun>{} : e.runs});
}

void ExportTable::refuse_waiting(TimePoint now, Export& e, FailReason reason) {
  for (const auto& [peer, grant] : e.grants) {
    refuse(now, peer, e.handle, reason);
    --grants_to_[peer];
  }
  e.grants.clear();
}

void ExportTable::on_pinned(TimePoint now, std::uint64_t serial,
                            const base::Result<std::vector<VramRun>>& result) {
  Export* e = by_serial(serial);
  if (e == nullptr) return;
  if (e->phase != Phase::kPinning) {
    if (result) outbox_.put(UnpinBuffer{e->buffer});  // came after the fabric was left in haste
    return;
  }
  const auto pages = [](std::uint64_t n, const VramRun& run) { return n + run.pages; };
  if (!result) {
    refuse_waiting(
        now, *e, result.error().code == Errc::kNoSpace ? FailReason::kNoSpace : FailReason::kOther);
    e->phase = Phase::kIdle;
    return advance(now, *e);
  }
  e->pinned = true;
  e->runs = *result;
  if (std::accumulate(e->runs.begin(), e->runs.end(), std::uint64_t{0}, pages) != e->pages) {
    refuse_waiting(now, *e, FailReason::kOther);
  }
  map(now, *e);
}

void ExportTable::map(TimePoint now, Export& e) {
  if (!e.revoked && !e.grants.empty() && !draining_) {
    e.range = allocator_->allocate(e.pages);
    if (!e.range) refuse_waiting(now, e, FailReason::kNoSpace);
  }
  if (!e.range) {
    unpin(e);
    e.phase = Phase::kIdle;
    return advance(now, e);
  }
  e.phase = Phase::kMapping;
  update(e, NpaEntry::kMapped, NpaFlush::kLight);
}

void ExportTable::on_npa_done(TimePoint now, std::uint64_t serial,
                              const base::Result<void>& result) {
  Export* e = by_serial(serial);
  if (e == nullptr) return;
  switch (e->phase) {
    case Phase::kMapping:
      e->phase = Phase::kMapped;
      // What was written in part is cleared like what was written whole.
      if (!result) refuse_waiting(now, *e, FailReason::kOther);
      return advance(now, *e);
    case Phase::kRetrying:
      // Even if "retry" could not be set, clearing must be tried.
      return begin_shootdown(now, *e);
    case Phase::kUnmapping:
    case Phase::kClearing:
      return on_cleared(now, *e, result.has_value());
    default:
      return;
  }
}

void ExportTable::on_cleared(TimePoint now, Export& e, bool ok) {
  if (!ok) {
    e.phase = Phase::kStuck;
    outbox_.complete(std::exchange(e.revokers, {}),
                     {.code = Errc::kDeviceError, .step = "clearing of NPA entries"});
    return;
  }
  if (e.phase == Phase::kUnmapping) {
    unpin(e);
    give_back(e);
    e.phase = Phase::kIdle;
    return advance(now, e);
  }
  e.phase = Phase::kReleasing;
  if (!memory_in_reach(e)) unpin(e);
  timers_.set({TimerKey::kRelease, e.serial, 0}, now + limits_.release_timeout);
  send_revokes(now, e);
}

void ExportTable::unpin(Export& e) {
  if (!e.pinned) return;
  e.pinned = false;
  e.runs.clear();
  outbox_.put(UnpinBuffer{e.buffer});
}

// The range is free at once only if nobody can have it mapped.
void ExportTable::give_back(Export& e) {
  if (!e.range) return;
  if (e.holders.empty()) {
    allocator_->free(*e.range);
  } else {
    quarantine_.push_back({*e.range, e.holders});
    for (const auto& [peer, generation] : e.holders) {
      outbox_.put(Report{.notice = Notice::kQuarantined,
                         .peer = peer,
                         .generation = generation,
                         .handle = e.handle,
                         .reason = Errc::kTimeout});
    }
  }
  e.range.reset();
  e.holders.clear();
}

void ExportTable::finish(Export& e) {
  unpin(e);
  give_back(e);
  timers_.clear({TimerKey::kRelease, e.serial, 0});
  timers_.clear({TimerKey::kRevokeSend, e.serial, 0});
  for (Token token : e.revokers) outbox_.complete(token, {});
  serial_of_lo_.erase(e.handle.lo);
  // The buffer may have been exported anew since, under another handle.
  const auto it = serial_of_buffer_.find(e.buffer);
  if (it != serial_of_buffer_.end() && it->second == e.serial) serial_of_buffer_.erase(it);
  exports_.erase(std::uint64_t{e.serial});
}

void ExportTable::drop_peer(TimePoint now, AccelId peer) {
  std::vector<std::uint64_t> touched;
  for (auto& [serial, e] : exports_) {
    if (e.grants.erase(peer) == 0) continue;
    --grants_to_[peer];
    touched.push_back(serial);
  }
  for (std::uint64_t serial : touched) {
    if (Export* e = by_serial(serial)) advance(now, *e);
  }
}

void ExportTable::on_new_generation(AccelId peer, Generation generation) {
  const auto clear = [&](std::map<AccelId, Generation>& holders) {
    const auto it = holders.find(peer);
    if (it != holders.end() && it->second < generation) holders.erase(it);
    return holders.empty();
  };
  for (auto& [serial, e] : exports_) clear(e.holders);
  std::erase_if(quarantine_, [&](Quarantined& q) {
    if (!clear(q.holders)) return false;
    allocator_->free(q.range);
    return true;
  });
}

void ExportTable::on_release(TimePoint now, AccelId peer, const Handle& handle) {
  Export* e = by_handle(handle);
  if (e == nullptr || e->grants.erase(peer) == 0) return;
  --grants_to_[peer];
  e->holders.erase(peer);
  advance(now, *e);
}

void ExportTable::drain(TimePoint now) {
  draining_ = true;
  std::vector<std::uint64_t> serials;
  for (auto& [serial, e] : exports_) {
    for (const auto& [peer, grant] : e.grants) --grants_to_[peer];
    e.grants.clear();
    e.holders.clear();
    serials.push_back(serial);
  }
  for (std::uint64_t serial : serials) {
    if (Export* e = by_serial(serial)) advance(now, *e);
  }
}

bool ExportTable::quiet() const {
  for (const auto& [serial, e] : exports_) {
    if (e.phase != Phase::kIdle && e.phase != Phase::kStuck) return false;
  }
  return true;
}

void ExportTable::close() {
  std::vector<std::uint64_t> revoked;
  for (auto& [serial, e] : exports_) {
    unpin(e);
    e.range.reset();
    e.holders.clear();
    e.phase = Phase::kIdle;
    if (e.revoked) revoked.push_back(serial);
  }
  for (std::uint64_t serial : revoked) finish(*by_serial(serial));
  quarantine_.clear();
  allocator_.reset();
  draining_ = false;
}

void ExportTable::forget_all() {
  while (!exports_.empty()) {
    Export& e = exports_.begin()->second;
    outbox_.put(Report{.notice = Notice::kExportGone, .peer = {}, .handle = e.handle});
    finish(e);
  }
}

bool ExportTable::uses(AccelId peer) const {
  const auto it = grants_to_.find(peer);
  return it != grants_to_.end() && it->second != 0;
}

ExportInfo ExportTable::info(const Export& e) const {
  ExportInfo info{.handle = e.handle,
                  .buffer = e.buffer,
                  .pages = e.pages,
                  .pinned = e.pinned,
                  .revoking = e.revoked,
                  .importers = {}};
  for (const auto& [peer, grant] : e.grants) info.importers.push_back(peer);
  return info;
}

std::optional<ExportInfo> ExportTable::find(const Handle& handle) const {
  const auto it = serial_of_lo_.find(handle.lo);
  if (it == serial_of_lo_.end()) return std::nullopt;
  const Export& e = exports_.at(it->second);
  if (e.handle != handle) return std::nullopt;
  return info(e);
}

std::vector<ExportInfo> ExportTable::list() const {
  std::vector<ExportInfo> infos;
  for (const auto& [serial, e] : exports_) infos.push_back(info(e));
  return infos;
}

}  // namespace fabric
