#include "sim_network.h"

#include <cstring>
#include <functional>
#include <utility>

#include "base/bytes.h"

namespace fabric_test {
namespace {

constexpr std::uint64_t kVramBase = 0x80'0000'0000;
constexpr std::uint64_t kRings = 16 * base::kMiB;
constexpr std::uint64_t kRecords = 20 * base::kMiB;
constexpr std::uint64_t kBuffersFirstPage = 0x10000;
constexpr std::uint64_t kWindowMask = (1ULL << 41) - 1;

}  // namespace

SimNetwork::SimNetwork(std::uint64_t seed, const SimOptions& options)
    : options_(options), random_(seed) {
  for (unsigned i = 0; i < options.nodes; ++i) {
    auto m = std::make_unique<Member>();
    m->id = AccelId(static_cast<std::uint16_t>(2 + 3 * i));
    for (std::uint64_t p = 0; p < 12; ++p) m->free_pages.push_back(kBuffersFirstPage + p);
    members_.emplace(m->id.value(), std::move(m));
  }
  for (auto& [id, m] : members_) start(*m);
}

void SimNetwork::violate(const std::string& what) {
  if (violations_.size() < 10) {
    violations_.push_back(what + " at " +
                          std::to_string((now_ - Time(std::chrono::seconds(1000))).count() / 1000) +
                          " us");
  }
}

void SimNetwork::at_time(Time when, std::function<void()> what) {
  queue_.emplace(when, std::move(what));
}
void SimNetwork::later(std::chrono::microseconds d, std::function<void()> what) {
  at_time(now_ + d, std::move(what));
}

void SimNetwork::start(Member& m) {
  fabric::NodeConfig config;
  config.ring_buffer = base::VramOffset(kRings);
  config.record_buffer = base::VramOffset(kRecords);
  config.vram_base = base::McAddress(kVramBase);
  if (options_.npa_pages != 0) config.npa_end_page = 0x800 + options_.npa_pages;
  const bool last = m.id.value() == members_.rbegin()->first;
  config.offer_extension = !(options_.legacy_last && last);
  ++m.life;
  // A restart resets the device: engines, tables and firmware are as after power on.
  m.mappings.clear();
  m.table.clear();
  m.stale.clear();
  m.access = m.loaded = false;
  m.requests.clear();
  m.failing.clear();
  for (auto& [id, buffer] : m.buffers) {
    if (!buffer.freed) free_buffer(m, id);
  }
  m.buffers.clear();
  m.node = std::make_unique<fabric::Node>(config, random_);
  m.alive = true;
  fabric::PodConfig pod;
  pod.accel_id = m.id.value();
  pod.ppod_size = 16;
  pod.vpod_id = 1;
  pod.vpod_size = static_cast<std::uint32_t>(members_.size());
  for (const auto& [id, other] : members_) pod.members.set(id);
  pod.state = fabric::ConfigState::kComplete;
  m.node->apply_config(now_, fabric::Token(++last_token_), pod);
  m.requests.emplace(last_token_, Request{now_, "activation", {}, false});
  for (const auto& [id, other] : members_) {
    if (down_.contains(
            {std::min<unsigned>(id, m.id.value()), std::max<unsigned>(id, m.id.value())})) {
      m.node->handle(now_, fabric::LinkChanged{AccelId(static_cast<std::uint16_t>(id)), false});
    }
  }
  collect(m);
}

// The driver dies; the device goes on with what it has until the restart.
void SimNetwork::kill(Member& m) {
  m.alive = false;
  ++m.life;
  m.requests.clear();
  m.node.reset();
}

void SimNetwork::feed(Member& m, std::uint64_t life, fabric::Event event) {
  if (!m.alive || m.life != life) return;
  m.node->handle(now_, event);
  collect(m);
}

void SimNetwork::done(Member& m, fabric::OpId op, base::Result<void> result) {
  later(delay(),
        [this, &m, life = m.life, op, result] { feed(m, life, fabric::OpDone{op, result}); });
}

void SimNetwork::collect(Member& m) {
  for (auto& action : m.node->take_actions()) {
    std::visit([&](auto& a) { execute(m, a); }, action);
  }
}

bool SimNetwork::linked(const Member& a, const Member& b) const {
  return !down_.contains(
      {std::min(a.id.value(), b.id.value()), std::max(a.id.value(), b.id.value())});
}

std::byte* SimNetwork::ram(Member& m, std::uint64_t byte) {
  return m.vram[byte >> 12].data() + (byte & 0xFFF);
}

template <class T>
T SimNetwork::word(Member& m, std::uint64_t byte) {
  T value;
  std::memcpy(&value, ram(m, byte), sizeof(T));
  return value;
}

std::optional<std::uint64_t> SimNetwork::translate(Member& m, std::uint64_t npa, bool stale) {
  if (!m.access) return std::nullopt;
  const std::uint64_t page = (npa & kWindowMask) >> 12;
  const auto& table = stale && m.stale.contains(page) ? m.stale : m.table;
  const auto it = table.find(page);
  if (it == table.end() || it->second.state != fabric::NpaEntry::kMapped) return std::nullopt;
  return it->second.vram_page << 12 | (npa & 0xFFF);
}

void SimNetwork::execute(Member& m, fabric::PostStores& a) {
  // In the order given; after a failure the others fail too until it has been answered.
  Time& last = m.post_order[a.peer.value()];
  last = std::max(last, now_) + delay();
  at_time(last, [this, &m, life = m.life, a] {
    if (m.life != life) return;
    Member& peer = at(a.peer);
    bool ok =
        linked(m, peer) && !m.failing.contains(a.peer.value()) && !chance(options_.refuse_permille);
    for (const auto& store : a.stores) {
      if (!ok) break;
      if (store.at.value() >> 40 == 0xFFF) {
        const int ring = (store.at.value() >> 6 & 3) == 0 ? 1 : 0;
        later(delay(), [this, &peer, id = m.id, ring] { firmware(peer, id, ring); });
        continue;
      }
      const auto byte = translate(peer, store.at.value(), false);
      ok = byte.has_value();
      if (ok) std::memcpy(ram(peer, *byte), store.bytes.data(), store.size);
    }
    if (!ok) m.failing.insert(a.peer.value());
    later(delay(), [this, &m, life, a, ok] {
      if (!ok && m.life == life) m.failing.erase(a.peer.value());
      feed(m, life,
           fabric::OpDone{a.op, ok ? base::Result<void>() : base::fail(Errc::kPeerLost, "store")});
    });
  });
}

void SimNetwork::execute(Member& m, fabric::ReadRemote& a) {
  later(delay(), [this, &m, life = m.life, a] {
    Member& peer = at(a.peer);
    base::Result<std::vector<std::byte>> result = base::fail(Errc::kPeerLost, "load");
    if (linked(m, peer) && !chance(options_.refuse_permille)) {
      if (const auto byte = translate(peer, a.at.value(), false)) {
        result = std::vector<std::byte>(ram(peer, *byte), ram(peer, *byte) + a.size);
      }
    }
    later(delay(), [this, &m, life, a, result] { feed(m, life, fabric::BytesRead{a.op, result}); });
  });
}

void SimNetwork::execute(Member& m, fabric::UpdateNpa& a) {
  std::vector<std::uint64_t> pages;
  for (const auto& run : a.runs) {
    for (std::uint64_t i = 0; i < run.pages; ++i) pages.push_back(run.at.page() + i);
  }
  for (std::uint64_t i = 0; i < a.range.pages; ++i) {
    Entry& entry = m.table[a.range.page + i];
    const bool was = entry.state != fabric::NpaEntry::kGone;
    if (was && a.entry == fabric::NpaEntry::kMapped) violate("range mapped twice");
    // The old translation may be used until the flush is acknowledged.
    if (entry.state == fabric::NpaEntry::kMapped) m.stale[a.range.page + i] = entry;
    entry.state = a.entry;
    if (a.entry != fabric::NpaEntry::kGone) entry.vram_page = pages.at(i);
    if (a.entry == fabric::NpaEntry::kGone) m.table.erase(a.range.page + i);
  }
  later(delay(), [this, &m, life = m.life, a] {
    if (m.life != life) return;
    for (std::uint64_t i = 0; i < a.range.pages; ++i) m.stale.erase(a.range.page + i);
    feed(m, life, fabric::OpDone{a.op, {}});
  });
}

void SimNetwork::execute(Member& m, fabric::PinBuffer& a) {
  later(delay(), [this, &m, life = m.life, a] {
    if (m.life != life || !m.alive) return;
    Buffer& buffer = m.buffers.at(a.buffer.value());
    if (buffer.pinned) violate("pinned twice");
    if (chance(options_.refuse_permille)) {
      return feed(m, life, fabric::BufferPinned{a.op, base::fail(Errc::kNoSpace, "pin")});
    }
    buffer.pinned = true;
    std::vector<fabric::VramRun> runs;
    for (std::uint64_t page : buffer.pages) runs.push_back({base::VramOffset(page << 12), 1});
    feed(m, life, fabric::BufferPinned{a.op, runs});
  });
}

// Unpinned memory moves at once: whoever still reaches the old place reads somebody else's.
void SimNetwork::execute(Member& m, fabric::UnpinBuffer& a) {
  Buffer& buffer = m.buffers.at(a.buffer.value());
  if (!buffer.pinned) violate("unpinned twice");
  buffer.pinned = false;
  if (buffer.freed) return;
  for (std::uint64_t page : buffer.pages) {
    m.owner_of.erase(page);
    m.free_pages.push_back(page);
  }
  const std::size_t n = buffer.pages.size();
  buffer.pages = {};
  std::rotate(m.free_pages.begin(), m.free_pages.begin() + 1, m.free_pages.end());
  buffer.pages = take_pages(m, a.buffer.value(), n);
}

void SimNetwork::execute(Member& m, fabric::DetachImport& a) {
  for (auto& mapping : m.mappings) {
    if (mapping.import == a.import.value()) mapping.open = false;
  }
  // The engine may use it until the flush, which now and then takes long.
  const auto busy = random_.below(3) == 0 ? delay() * 500 : delay();
  later(busy, [this, &m, life = m.life, a] {
    if (m.life != life) return;
    std::erase_if(m.mappings, [&](const Mapping& x) { return x.import == a.import.value(); });
    feed(m, life, fabric::OpDone{a.op, {}});
  });
}

void SimNetwork::execute(Member& m, fabric::Complete& a) {
  const auto it = m.requests.find(a.token.value());
  if (it == m.requests.end()) return violate("request completed twice");
  const Request request = it->second;
  m.requests.erase(it);
  if (now_ - request.since > kLongest) violate(request.what + " took too long");
  if (request.revoke) {
    const std::uint64_t id = buffer_of_.at(request.handle).second;
    if (a.result) ++revokes_done;
    if (a.result && m.buffers.at(id).pinned) violate("revoke ended with the buffer pinned");
    if (a.result) free_buffer(m, id);
    return;
  }
  if (request.what != "import" || !a.result) return;
  ++imports_granted;
  // A second reference to one object is one mapping more.
  m.mappings.push_back({a.result->import.value(), request.handle, a.result->at, a.result->pages});
}

void SimNetwork::execute(Member& m, fabric::SetNpaAccess& a) {
  m.access = a.enable;
  done(m, a.op);
}
void SimNetwork::execute(Member& m, fabric::SetNpaVm& a) {
  if (!a.enable) m.table.clear();
  done(m, a.op);
}
void SimNetwork::execute(Member& m, fabric::ClearRings& a) {
  m.vram.clear();
  done(m, a.op);
}
void SimNetwork::execute(Member& m, fabric::LoadMetadata& a) {
  m.metadata = a.table;
  m.rptr.clear();
  m.record_at.clear();
  m.loaded = true;
  done(m, a.op);
}
void SimNetwork::execute(Member& m, fabric::HaltFirmware& a) {
  m.loaded = false;
  done(m, a.op);
}
void SimNetwork::execute(Member& m, fabric::MapPeers& a) { done(m, a.op); }

// --- Firmware of the receiver ---

void SimNetwork::firmware(Member& m, AccelId sender, int ring) {
  if (!m.loaded) return;
  const auto key = std::pair(unsigned{sender.value()}, ring);
  // A stalled entry holds its ring up.
  Time& busy = m.busy[key];
  if (busy > now_) {
    at_time(busy + std::chrono::microseconds(1),
            [this, &m, sender, ring] { firmware(m, sender, ring); });
    return;
  }
  if (chance(options_.stall_permille)) {
    busy = now_ + std::chrono::milliseconds(500 + random_.below(4000));
    return at_time(busy + std::chrono::microseconds(1),
                   [this, &m, sender, ring] { firmware(m, sender, ring); });
  }
  consume(m, sender, ring);
}

void SimNetwork::consume(Member& m, AccelId sender, int ring) {
  const auto key = std::pair(unsigned{sender.value()}, ring);
  const std::span<const std::byte> entry(m.metadata.data() + sender.value() * 40, 40);
  const auto ring_at = base::load<std::uint64_t>(entry, ring == 1 ? 8 : 16) - kVramBase;
  const auto pointer_at = base::load<std::uint64_t>(entry, ring == 1 ? 24 : 32) - kVramBase;
  std::uint64_t& rptr = m.rptr[key];
  const auto wptr = word<std::uint64_t>(m, pointer_at);
  if (wptr < rptr || wptr - rptr > 64) {
    const std::uint32_t status = wptr < rptr ? 6 : 5;
    rptr = wptr;
    return write_back(m, sender, ring, word<std::uint32_t>(m, ring_at + (wptr + 63) % 64 * 64 + 4),
                      status);
  }
  for (; rptr < wptr;) {
    const std::uint64_t slot = ring_at + rptr % 64 * 64;
    const auto opcode = word<std::uint32_t>(m, slot) & 0xFFF'FFFF;
    const auto sequence = word<std::uint32_t>(m, slot + 4);
    ++rptr;
    std::uint32_t status = 0;
    const bool last = m.id.value() == members_.rbegin()->first;
    if (opcode == 3) {
      m.record_at[key] = (word<std::uint32_t>(m, slot + 8) & ~3U) |
                         static_cast<std::uint64_t>(word<std::uint32_t>(m, slot + 12)) << 32;
    } else if (opcode == 2 && ring == 1) {
      std::array<std::uint32_t, 4> dwords;
      for (std::size_t i = 0; i < 4; ++i) dwords[i] = word<std::uint32_t>(m, slot + 48 + 4 * i);
      deliver(m, sender, dwords);
    } else if (opcode == 1 && ring == 0) {
      if (last && !options_.shootdown_last) continue;  // swallowed without a write-back
    } else {
      status = 2;
    }
    write_back(m, sender, ring, sequence, status);
  }
}

void SimNetwork::write_back(Member& m, AccelId sender, int ring, std::uint32_t sequence,
                            std::uint32_t status) {
  const auto key = std::pair(unsigned{sender.value()}, ring);
  const auto record = m.record_at.find(key);
  if (record == m.record_at.end()) return;
  later(delay(), [this, &m, sender, npa = record->second, sequence, status, rptr = m.rptr[key]] {
    Member& s = at(sender);
    const auto byte = linked(m, s) ? translate(s, npa, false) : std::nullopt;
    if (!byte) return;
    std::memcpy(ram(s, *byte + 8), &rptr, 8);
    std::memcpy(ram(s, *byte + 4), &status, 4);
    std::memcpy(ram(s, *byte), &sequence, 4);
    later(delay(), [this, &s] { poll(s); });
  });
}

void SimNetwork::deliver(Member& m, AccelId sender, std::array<std::uint32_t, 4> dwords) {
  if (chance(options_.lose_permille)) return;
  // Vectors of one sender keep their order, those of different senders do not.
  Time& last = m.delivery[sender.value()];
  const int copies = chance(options_.duplicate_permille) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    last = std::max(last, now_) + delay();
    at_time(last, [this, &m, life = m.life, sender, dwords] {
      feed(m, life, fabric::MessageReceived{sender.value(), dwords});
    });
  }
}

void SimNetwork::poll(Member& m) {
  if (!m.alive) return;
  for (const auto& name : m.node->awaited_records()) {
    const auto layout = m.node->layout();
    if (!layout) return;
    const std::byte* record = ram(m, kRecords + layout->record_offset(name.peer, name.ring));
    alignas(16) std::byte copy[16];
    std::memcpy(copy, record, 16);
    feed(m, m.life, fabric::RecordRead{name.peer, name.ring, fabric::read_record(copy)});
  }
}

// --- Time, requests, checks ---

void SimNetwork::step_time(Time until) {
  for (;;) {
    std::optional<Time> next;
    if (!queue_.empty()) next = queue_.begin()->first;
    Member* due = nullptr;
    for (auto& [id, m] : members_) {
      if (!m->alive) continue;
      const auto d = m->node->next_deadline();
      if (d && (!next || *d < *next)) {
        next = d;
        due = m.get();
      }
    }
    if (!next || *next > until) break;
    now_ = std::max(now_, *next);
    if (due != nullptr) {
      due->node->tick(now_);
      collect(*due);
    } else {
      const auto what = std::move(queue_.begin()->second);
      queue_.erase(queue_.begin());
      what();
    }
    if (random_.below(4) == 0) touch_random(true);
  }
  now_ = until;
}

}  // namespace fabric_test
