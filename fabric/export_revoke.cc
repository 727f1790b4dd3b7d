// The second half of an export's life: revoke. The order is the whole point (errata A1, A27):
// retry, shootdown, no entries, memory back, and only then the messages.
#include <algorithm>
#include <utility>

#include "fabric/export_table.h"

namespace fabric {
namespace {

const base::Error kSilent{.code = Errc::kTimeout, .step = "importer does not answer"};

}  // namespace

void ExportTable::revoke(TimePoint now, Token token, const Handle& handle) {
  Export* e = by_handle(handle);
  if (e == nullptr) return outbox_.complete(token, base::fail(Errc::kNotFound, "export"));
  if (e->phase == Phase::kStuck) {
    return outbox_.complete(token, base::fail(Errc::kDeviceError, "clearing of NPA entries"));
  }
  e->revokers.push_back(token);
  if (std::exchange(e->revoked, true)) return;
  // Exporting the buffer again makes a new handle from now on (U47).
  serial_of_buffer_.erase(e->buffer);
  advance(now, *e);
}

void ExportTable::begin_shootdown(TimePoint now, Export& e) {
  e.phase = Phase::kShooting;
  for (auto& [peer, grant] : e.grants) {
    // Without an RSP it knows no address; one that ignores opcode 1 is waited for later (U48).
    if (grant.rsp == 0 || !host_.answers_shootdown(peer)) continue;
    grant.shootdown = host_.send_shootdown(now, peer, e.serial);
  }
  timers_.set({TimerKey::kRelease, e.serial, 0}, now + limits_.shootdown_timeout);
  after_shootdown(now, e);
}

void ExportTable::on_shootdown_sent(TimePoint now, AccelId peer, Export& e,
                                    const SendReport& report) {
  const auto it = e.grants.find(peer);
  if (it == e.grants.end() || it->second.shootdown != report.id) return;
  if (report.stage == SendStage::kInRing) return;
  it->second.shootdown = 0;
  if (report.stage == SendStage::kTaken) {
    it->second.shot = true;
  } else if (host_.extended(peer)) {
    return host_.reset_connection(now, peer, report.error);  // comes back through drop_peer()
  } else {
    host_.no_shootdown(now, peer);
  }
  after_shootdown(now, e);
}

void ExportTable::after_shootdown(TimePoint now, Export& e) {
  (void)now;
  const auto waits = [](const auto& entry) { return entry.second.shootdown != 0; };
  if (e.phase != Phase::kShooting || std::ranges::any_of(e.grants, waits)) return;
  timers_.clear({TimerKey::kRelease, e.serial, 0});
  e.phase = Phase::kClearing;
  update(e, NpaEntry::kGone, NpaFlush::kHeavy);
}

// Importers that had an answer and gave no sign that their translations are gone.
bool ExportTable::memory_in_reach(const Export& e) const {
  return std::ranges::any_of(
      e.grants, [](const auto& entry) { return entry.second.rsp != 0 && !entry.second.shot; });
}

void ExportTable::send_revokes(TimePoint now, Export& e) {
  std::optional<TimePoint> later;
  for (auto it = e.grants.begin(); it != e.grants.end();) {
    auto& [peer, grant] = *it;
    if (grant.rsp == 0) {
      // Asked and never answered: it has nothing that could be taken back.
      refuse(now, peer, e.handle, FailReason::kUnknownHandle);
      --grants_to_[peer];
      it = e.grants.erase(it);
      continue;
    }
    ++it;
    if (grant.revoke != 0) continue;
    if (!host_.extended(peer)) {
      // A reference peer may crash on a REVOKE that overtakes its own handling of the RSP (U21).
      if (!grant.taken) continue;
      const TimePoint due = *grant.taken + limits_.legacy_revoke_gap;
      if (now < due) {
        later = later ? std::min(*later, due) : due;
        continue;
      }
    }
    grant.revoke = host_.send(now, peer, SendKind::kRevoke, NpaRevoke{e.handle}, e.serial);
    // One time for all, counted from the last REVOKE (U36).
    timers_.set({TimerKey::kRelease, e.serial, 0}, now + limits_.release_timeout);
  }
  if (later) {
    timers_.set({TimerKey::kRevokeSend, e.serial, 0}, *later);
    timers_.set({TimerKey::kRelease, e.serial, 0}, *later + limits_.release_timeout);
  }
  after_release(now, e);
}

void ExportTable::after_release(TimePoint, Export& e) {
  if (e.grants.empty()) return finish(e);
  if (!memory_in_reach(e)) unpin(e);
}

void ExportTable::on_revoke_send_due(TimePoint now, std::uint64_t serial) {
  Export* e = by_serial(serial);
  if (e != nullptr && e->phase == Phase::kReleasing) send_revokes(now, *e);
}

// Whoever has not answered by now is treated as lost: its connection goes, and with it the grant.
// Our own table has no entry any more, so the memory is safe; the range stays quarantined.
void ExportTable::on_release_due(TimePoint now, std::uint64_t serial) {
  Export* e = by_serial(serial);
  if (e == nullptr) return;
  std::vector<AccelId> silent;
  for (auto& [peer, grant] : e->grants) {
    if (e->phase == Phase::kReleasing || (grant.shootdown != 0 && host_.extended(peer))) {
      silent.push_back(peer);
    } else if (std::exchange(grant.shootdown, 0) != 0) {
      host_.no_shootdown(now, peer);
    }
  }
  for (AccelId peer : silent) host_.reset_connection(now, peer, kSilent);
  if ((e = by_serial(serial)) != nullptr) after_shootdown(now, *e);
}

void ExportTable::on_sent(TimePoint now, AccelId peer, const SendReport& report) {
  Export* e = by_serial(report.subject);
  if (e == nullptr) return;
  if (report.kind == SendKind::kShootdown) return on_shootdown_sent(now, peer, *e, report);
  const auto it = e->grants.find(peer);
  if (it == e->grants.end()) return;
  if (report.kind == SendKind::kRevoke && it->second.revoke == report.id) {
    if (report.stage == SendStage::kFailed) host_.reset_connection(now, peer, report.error);
    return;
  }
  if (report.kind != SendKind::kRsp || it->second.rsp != report.id) return;
  if (report.stage == SendStage::kTaken) {
    it->second.taken = now;
    if (e->phase == Phase::kReleasing) send_revokes(now, *e);
  } else if (report.stage == SendStage::kFailed) {
    // The grant is undone without a FAIL (U44). The peer may have got it all the same, so the range
    // stays marked as known to it.
    e->grants.erase(it);
    --grants_to_[peer];
    advance(now, *e);
  }
}

}  // namespace fabric
