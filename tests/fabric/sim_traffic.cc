// What the applications of a simulated pod ask for, and what must hold whatever happens to it.
#include <utility>

#include "sim_network.h"

namespace fabric_test {

std::vector<std::uint64_t> SimNetwork::take_pages(Member& m, std::uint64_t buffer, std::size_t n) {
  std::vector<std::uint64_t> pages;
  for (; n > 0; --n) {
    pages.push_back(m.free_pages.back());  // the page freed last: reuse as early as can be
    m.owner_of[pages.back()] = buffer;
    m.free_pages.pop_back();
  }
  return pages;
}

void SimNetwork::free_buffer(Member& m, std::uint64_t id) {
  Buffer& buffer = m.buffers.at(id);
  buffer.freed = true;
  for (std::uint64_t page : buffer.pages) {
    m.owner_of.erase(page);
    m.free_pages.push_back(page);
  }
  buffer.pages.clear();
}

void SimNetwork::touch_random(bool) {
  auto it =
      std::next(members_.begin(), static_cast<std::ptrdiff_t>(random_.below(members_.size())));
  Member& m = *it->second;
  if (m.mappings.empty()) return;
  access(m, m.mappings[random_.below(m.mappings.size())]);
}

// One access of an importing engine, through whatever the exporter's table or its cache says now.
void SimNetwork::access(Member& m, const Mapping& mapping) {
  Member& exporter = at(mapping.handle.exporter());
  if (!linked(m, exporter)) return;
  const std::uint64_t npa = mapping.at.value() + random_.below(mapping.pages) * 4096;
  for (bool stale : {false, true}) {
    const auto byte = translate(exporter, npa, stale);
    if (!byte) continue;
    ++accesses;
    const auto owner = exporter.owner_of.find(*byte >> 12);
    const auto [id, buffer] = buffer_of_.at(mapping.handle);
    if (owner == exporter.owner_of.end() || owner->second != buffer) {
      violate("access reached memory that the handle does not stand for");
    }
  }
}

void SimNetwork::random_request() {
  auto it =
      std::next(members_.begin(), static_cast<std::ptrdiff_t>(random_.below(members_.size())));
  Member& m = *it->second;
  const auto dice = random_.below(100);
  if (options_.restarts && dice < 3) {
    if (m.alive) {
      kill(m);
      later(std::chrono::milliseconds(random_.below(9000)), [this, &m] {
        if (!m.alive) start(m);
      });
    }
    return;
  }
  if (options_.link_flaps && dice < 6 && members_.size() > 1) {
    auto other =
        std::next(members_.begin(), static_cast<std::ptrdiff_t>(random_.below(members_.size())));
    if (other == it) return;
    const auto pair =
        std::pair(std::min(it->first, other->first), std::max(it->first, other->first));
    const bool up = down_.contains(pair);
    if (up)
      down_.erase(pair);
    else
      down_.insert(pair);
    for (auto [a, b] : {pair, std::pair(pair.second, pair.first)}) {
      Member& end = *members_.at(a);
      feed(end, end.life, fabric::LinkChanged{AccelId(static_cast<std::uint16_t>(b)), up});
    }
    return;
  }
  if (!m.alive) return;
  const fabric::Token token(++last_token_);
  if (dice < 25 && m.free_pages.size() >= 4) {
    const std::uint64_t id = last_token_ << 8;
    m.buffers[id].pages = take_pages(m, id, 1 + random_.below(3));
    const auto handle =
        m.node->export_buffer({fabric::BufferId(id), m.buffers[id].pages.size(), std::nullopt});
    if (!handle) return free_buffer(m, id);
    m.buffers[id].handle = *handle;
    buffer_of_[*handle] = {it->first, id};
    known_.push_back(*handle);
  } else if (dice < 60 && !known_.empty()) {
    // Mostly young handles: the old ones are revoked by and by.
    const auto n = std::min<std::size_t>(known_.size(), 6);
    const auto handle = known_[known_.size() - 1 - random_.below(n)];
    m.requests.emplace(token.value(), Request{now_, "import", handle, false});
    m.node->import_handle(now_, token, handle);
  } else if (dice < 75) {
    for (auto mapping = m.mappings.begin(); mapping != m.mappings.end(); ++mapping) {
      if (!mapping->open || random_.below(2) == 0) continue;
      // Unmap and flush first, as the contract of close_import() says.
      const fabric::ImportId import(mapping->import);
      m.mappings.erase(mapping);
      (void)m.node->close_import(now_, import);
      break;
    }
  } else {
    for (const auto& e : m.node->exports()) {
      if (e.revoking || random_.below(2) == 0) continue;
      m.requests.emplace(token.value(), Request{now_, "revoke", e.handle, true});
      m.node->revoke(now_, token, e.handle);
      break;
    }
  }
  collect(m);
}

void SimNetwork::check_requests() {
  for (const auto& [id, m] : members_) {
    for (const auto& [token, request] : m->requests) {
      if (now_ - request.since > kLongest) violate(request.what + " never ended");
    }
  }
}

void SimNetwork::play(int steps) {
  for (int i = 0; i < steps && violations_.empty(); ++i) {
    random_request();
    // Mostly quick, now and then long enough for every deadline to pass.
    const auto ms = random_.below(20) == 0 ? random_.below(7000) : random_.below(4);
    step_time(now_ + std::chrono::milliseconds(ms) + std::chrono::microseconds(random_.below(900)));
    check_requests();
  }
  healed_ = true;
  for (auto pair : std::exchange(down_, {})) {
    for (auto [a, b] : {pair, std::pair(pair.second, pair.first)}) {
      Member& end = *members_.at(a);
      feed(end, end.life, fabric::LinkChanged{AccelId(static_cast<std::uint16_t>(b)), true});
    }
  }
  step_time(now_ + std::chrono::seconds(60));
  for (auto& [id, m] : members_) {
    if (!m->alive) start(*m);
  }
  step_time(now_ + std::chrono::seconds(60));
  check_requests();
  check_rest();
}

// Everything is quiet: revoke what is left, let every peer say HELLO anew, and nothing may be
// missing.
void SimNetwork::check_rest() {
  for (auto& [id, m] : members_) {
    if (!m->requests.empty()) violate("a request is lost");
    if (m->node->state() != fabric::AccelState::kActive) violate("a node is not active");
    for (const auto& e : m->node->exports()) {
      const fabric::Token token(++last_token_);
      m->requests.emplace(token.value(), Request{now_, "revoke", e.handle, true});
      m->node->revoke(now_, token, e.handle);
    }
    collect(*m);
  }
  step_time(now_ + std::chrono::seconds(60));
  for (auto& [id, m] : members_) {
    for (auto& [other, o] : members_) {
      if (other != id) (void)m->node->drop_peer(now_, o->id);
    }
    collect(*m);
  }
  step_time(now_ + std::chrono::seconds(10));
  // Any import makes a connection, even one that is refused.
  for (auto& [id, m] : members_) {
    for (auto& [other, o] : members_) {
      if (other == id) continue;
      const fabric::Token token(++last_token_);
      const fabric::Handle none{.lo = 0x7777'0000 << 10 | other, .hi = last_token_};
      m->requests.emplace(token.value(), Request{now_, "probe", none, false});
      m->node->import_handle(now_, token, none);
    }
    collect(*m);
  }
  step_time(now_ + std::chrono::seconds(60));
  for (auto& [id, m] : members_) {
    if (!m->requests.empty()) violate("a request is lost at the end");
    if (!m->node->exports().empty()) violate("an export is left over");
    if (m->node->counters().quarantined_ranges != 0) violate("a range stays quarantined");
    const std::uint64_t all =
        options_.npa_pages != 0 ? options_.npa_pages : (1ULL << 29) - 1 - 0x800;
    if (m->node->counters().free_npa_pages != all - 2) violate("NPA pages are lost");
    if (m->table.size() != 512 + 2) violate("entries are left in the NPA table");
    for (const auto& mapping : m->mappings) {
      if (mapping.open) violate("an import outlived its export");
    }
  }
}

}  // namespace fabric_test
