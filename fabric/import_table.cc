#include "fabric/import_table.h"

#include <algorithm>
#include <utility>

namespace fabric {

unsigned ImportTable::count(const Counts& counts, AccelId peer) {
  const auto it = counts.find(peer);
  return it == counts.end() ? 0 : it->second;
}

void ImportTable::change(Counts& counts, AccelId peer, int by) {
  const auto it = counts.try_emplace(peer, 0).first;
  it->second += static_cast<unsigned>(by);
  if (it->second == 0) counts.erase(it);
}

ImportTable::Import* ImportTable::find(const Handle& handle) {
  const auto it = imports_.find(handle);
  return it == imports_.end() ? nullptr : &it->second;
}

// RSP and FAIL name the low half only; there is at most one request for it (U15).
ImportTable::Import* ImportTable::asked(AccelId peer, std::uint64_t handle_lo) {
  const auto it = open_requests_.find(handle_lo);
  if (it == open_requests_.end() || it->second.exporter() != peer) return nullptr;
  Import* import = find(it->second);
  return import != nullptr && import->phase == Phase::kAsked ? import : nullptr;
}

std::vector<Handle> ImportTable::of_peer(AccelId peer) const {
  std::vector<Handle> handles;
  for (const auto& [handle, import] : imports_) {
    if (handle.exporter() == peer) handles.push_back(handle);
  }
  // In the order in which they were opened: the table's own order is no order.
  std::ranges::sort(handles, {}, [&](const Handle& h) { return imports_.at(h).id; });
  return handles;
}

// The counters and the index of open requests follow the phase, here and nowhere else.
void ImportTable::enter(Import& import, Phase phase) {
  const AccelId peer = import.handle.exporter();
  const auto apply = [&](Phase p, int by) {
    if (p == Phase::kConnecting && by > 0) connecting_[peer].emplace(import.id, import.handle);
    if (p == Phase::kConnecting && by < 0) connecting_[peer].erase(import.id);
    if (p == Phase::kDetaching) change(detaching_, peer, by);
    if (p == Phase::kAsked) change(asked_of_, peer, by);
    if (p == Phase::kAsked || p == Phase::kReady || p == Phase::kBroken) {
      change(held_from_, peer, by);
    }
  };
  apply(import.phase, -1);
  import.phase = phase;
  apply(phase, +1);
  if (phase == Phase::kConnecting || phase == Phase::kAsked) return;
  timers_.clear(key(import.id));
  const auto it = open_requests_.find(import.handle.lo);
  if (it != open_requests_.end() && it->second == import.handle) open_requests_.erase(it);
}

void ImportTable::open(TimePoint now, Token token, const Handle& handle) {
  if (Import* import = find(handle)) {
    switch (import->phase) {
      case Phase::kReady:
        return complete_ready(token, *import);
      case Phase::kBroken:
        return outbox_.complete(token, base::fail(Errc::kProtocol, "reply to an import"));
      case Phase::kDetaching:
        if (import->stuck) {
          return outbox_.complete(token, base::fail(Errc::kDeviceError, "teardown of an import"));
        }
        import->waiters.push_back(token);
        timers_.set(key(import->id), now + limits_.whole_timeout);
        return;
      case Phase::kNew:
      case Phase::kConnecting:
      case Phase::kAsked:
        import->waiters.push_back(token);
        return;
    }
  }
  if (open_requests_.contains(handle.lo)) {
    return outbox_.complete(token, base::fail(Errc::kAgain, "import of a like handle"));
  }
  Import import;
  import.id = ImportId(++last_id_);
  import.handle = handle;
  import.waiters.push_back(token);
  by_id_.emplace(import.id, handle);
  imports_.emplace(handle, std::move(import));
  start(now, handle);
}

void ImportTable::start(TimePoint now, const Handle& handle) {
  Import& import = *find(handle);
  enter(import, Phase::kConnecting);
  open_requests_.emplace(handle.lo, handle);
  import.whole_deadline = now + limits_.whole_timeout;
  timers_.set(key(import.id), import.whole_deadline);
  host_.need_connection(now, handle.exporter());
}

void ImportTable::complete_ready(Token token, Import& import) {
  ++import.references;
  outbox_.complete(token, ImportedMemory{.import = import.id,
                                         .at = npa_of(import.handle.exporter(), import.page),
                                         .pages = import.pages});
}

void ImportTable::ask(TimePoint now, Import& import) {
  enter(import, Phase::kAsked);
  timers_.set(key(import.id), std::min(now + limits_.answer_timeout, import.whole_deadline));
  const Handle handle = import.handle;
  const SendId id =
      host_.send(now, handle.exporter(), SendKind::kReq, NpaReq{handle}, import.id.value());
  if (Import* still = find(handle)) still->request = id;
}

void ImportTable::on_connected(TimePoint now, AccelId peer) { ask_more(now, peer); }

void ImportTable::ask_more(TimePoint now, AccelId peer) {
  auto& waiting = connecting_[peer];
  while (!waiting.empty() && host_.may_ask(peer)) ask(now, *find(waiting.begin()->second));
}

void ImportTable::on_connect_failed(TimePoint, AccelId peer, const base::Error& why) {
  auto& waiting = connecting_[peer];
  while (!waiting.empty()) end(*find(waiting.begin()->second), why);
}

void ImportTable::end(Import& import, const base::Error& why) {
  outbox_.complete(import.waiters, why);
  enter(import, Phase::kBroken);  // takes it out of the index and the timers
  change(held_from_, import.handle.exporter(), -1);
  by_id_.erase(import.id);
  imports_.erase(Handle(import.handle));
}

void ImportTable::drop_peer(TimePoint now, AccelId peer, const base::Error& why, bool ask_again) {
  for (const Handle& handle : of_peer(peer)) {
    Import& import = *find(handle);
    switch (import.phase) {
      case Phase::kNew:
      case Phase::kConnecting:
      case Phase::kAsked:
        if (ask_again) {
          enter(import, Phase::kConnecting);
          timers_.set(key(import.id), import.whole_deadline);
        } else {
          end(import, why);
        }
        break;
      case Phase::kReady:
        if (import.references != 0) {
          detach(import, why.code);
        } else {
          end(import, why);
        }
        break;
      case Phase::kBroken:
        end(import, why);
        break;
      case Phase::kDetaching:
        // The exporter has forgotten us: nobody waits for these.
        import.releases_owed = 0;
        if (!ask_again) outbox_.complete(std::exchange(import.waiters, {}), why);
        break;
    }
  }
  (void)now;
}

void ImportTable::drop_all(TimePoint now, const base::Error& why) {
  std::vector<AccelId> peers;
  for (const auto& [handle, import] : imports_) peers.push_back(handle.exporter());
  for (AccelId peer : peers) drop_peer(now, peer, why, /*ask_again=*/false);
}

void ImportTable::forget_all(const base::Error& why) {
  while (!imports_.empty()) end(imports_.begin()->second, why);
}

void ImportTable::detach(Import& import, Errc reason) {
  enter(import, Phase::kDetaching);
  import.references = 0;
  outbox_.ask(
      {.kind = OpOwner::kDetach, .peer = import.handle.exporter(), .id = import.id.value()},
      DetachImport{.op = {}, .import = import.id, .handle = import.handle, .reason = reason});
}

void ImportTable::release(TimePoint now, const Handle& handle) {
  host_.send(now, handle.exporter(), SendKind::kRelease, NpaRelease{handle}, 0);
}

base::Result<void> ImportTable::close(TimePoint now, ImportId id) {
  const auto it = by_id_.find(id);
  Import* import = it == by_id_.end() ? nullptr : find(it->second);
  if (import == nullptr || import->phase != Phase::kReady || import->references == 0) {
    return base::fail(Errc::kNotFound, "import");
  }
  if (--import->references != 0) return {};
  const Handle handle = import->handle;
  // A legacy exporter would ignore it and choke on the next request: keep the record (U09, U22).
  if (!host_.releases_voluntarily(handle.exporter())) return {};
  end(*import, {});
  release(now, handle);
  return {};
}

void ImportTable::on_rsp(TimePoint now, AccelId peer, const NpaRsp& rsp) {
  Import* import = asked(peer, rsp.handle_lo);
  if (import == nullptr) return;
  const Handle handle = import->handle;
  const bool good = rsp.pages != 0 && rsp.page != 0 && rsp.page < kWindowPages &&
                    rsp.pages <= kWindowPages - rsp.page;  // U31
  if (good) {
    import->page = rsp.page;
    import->pages = rsp.pages;
    enter(*import, Phase::kReady);
    for (Token token : std::exchange(import->waiters, {})) complete_ready(token, *import);
  } else {
    const base::Error why{.code = Errc::kProtocol, .step = "reply to an import"};
    if (host_.releases_voluntarily(peer)) {
      end(*import, why);
      release(now, handle);
    } else {
      outbox_.complete(std::exchange(import->waiters, {}), why);
      enter(*import, Phase::kBroken);
    }
  }
  ask_more(now, peer);
}

void ImportTable::on_fail(TimePoint now, AccelId peer, const NpaFail& fail) {
  Import* import = asked(peer, fail.handle_lo);
  if (import == nullptr) return;
  end(*import, {.code = to_errc(fail.reason), .step = "import at the exporter"});
  ask_more(now, peer);
}

// Always answered with the same 128 bits, once for each (U16, errata A3).
void ImportTable::on_revoke(TimePoint now, AccelId peer, const Handle& handle) {
  Import* import = find(handle);
  if (import == nullptr) return release(now, handle);
  switch (import->phase) {
    case Phase::kReady:
      if (import->references != 0) {
        detach(*import, Errc::kRevoked);
        import->releases_owed = 1;
        return;
      }
      break;
    case Phase::kDetaching:
      ++import->releases_owed;
      return;
    case Phase::kNew:
    case Phase::kConnecting:
    case Phase::kAsked:
    case Phase::kBroken:
      break;
  }
  end(*import, {.code = Errc::kRevoked, .step = "import"});
  release(now, handle);
  ask_more(now, peer);
}

void ImportTable::on_detach_done(TimePoint now, ImportId id, const base::Result<void>& result) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return;
  Import& import = *find(it->second);
  if (!result) {
    // Still mapped somewhere: neither RELEASE nor a new connection may claim otherwise.
    import.stuck = true;
    return outbox_.complete(std::exchange(import.waiters, {}), result.error());
  }
  const Handle handle = import.handle;
  for (unsigned i = 0; i < import.releases_owed; ++i) release(now, handle);
  const std::vector<Token> again = std::exchange(import.waiters, {});
  end(import, {});
  host_.on_detached(now, handle.exporter());
  for (Token token : again) open(now, token, handle);
}

void ImportTable::on_sent(TimePoint now, AccelId peer, const SendReport& report) {
  const auto it = by_id_.find(ImportId(report.subject));
  Import* import = it == by_id_.end() ? nullptr : find(it->second);
  if (import == nullptr || import->phase != Phase::kAsked || import->request != report.id) return;
  if (report.stage == SendStage::kInRing) {
    timers_.set(key(import->id), std::min(now + limits_.answer_timeout, import->whole_deadline));
  }
  if (report.stage == SendStage::kFailed) host_.reset_connection(now, peer, report.error);
}

void ImportTable::on_due(TimePoint now, ImportId id) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return;
  Import& import = *find(it->second);
  const AccelId peer = import.handle.exporter();
  const base::Error late{.code = Errc::kTimeout, .step = "import"};
  if (import.phase == Phase::kDetaching) {
    return outbox_.complete(std::exchange(import.waiters, {}), late);
  }
  const bool asked = import.phase == Phase::kAsked;
  end(import, late);
  // The exporter may have granted it: only a new connection clears that (U37).
  if (asked) host_.reset_connection(now, peer, late);
}

std::vector<ImportInfo> ImportTable::list() const {
  std::vector<ImportInfo> infos;
  for (const auto& [handle, import] : imports_) {
    infos.push_back({.import = import.id,
                     .handle = handle,
                     .ready = import.phase == Phase::kReady,
                     .references = import.references,
                     .pages = import.pages});
  }
  return infos;
}

}  // namespace fabric
