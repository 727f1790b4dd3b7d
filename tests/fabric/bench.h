// One node on a test bench: its actions are carried out at once or held back, its peers are played
// by the test. Time moves only when the test says so.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "fabric/message.h"
#include "fabric/node.h"
#include "fabric/packet.h"

namespace fabric_test {

using namespace std::chrono_literals;
using base::AccelId;
using base::Errc;

class SeededRandom final : public fabric::RandomSource {
 public:
  explicit SeededRandom(std::uint64_t seed) : state_(seed) {}
  // splitmix64
  std::uint64_t next() override {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t limit) { return next() % limit; }

 private:
  std::uint64_t state_;
};

inline fabric::PodConfig pod(std::uint32_t self, std::initializer_list<int> members) {
  fabric::PodConfig config;
  config.accel_id = self;
  config.ppod_size = 16;
  config.vpod_id = 7;
  config.vpod_size = static_cast<std::uint32_t>(members.size());
  for (int id : members) config.members.set(static_cast<std::size_t>(id));
  config.state = fabric::ConfigState::kComplete;
  return config;
}

class Bench {
 public:
  static constexpr AccelId kSelf{3};
  static constexpr AccelId kPeer{5};
  static constexpr AccelId kOther{9};

  struct Post {
    AccelId peer;
    fabric::RingType ring{};
    std::uint32_t opcode = 0;
    std::uint32_t sequence = 0;
    std::uint64_t wptr = 0;
    fabric::PostStores raw;
  };
  struct PeerSide {
    bool reachable = true;          // stores and loads work
    bool writes_back = true;        // firmware consumes entries at once
    bool answers_shootdown = true;  // firmware knows opcode 1
    bool answers_hello = true;
    std::optional<fabric::Extension> extension{{fabric::kOwnCapabilities, 77}};
    std::uint64_t wptr[2] = {0, 0};
    std::uint32_t status = 0;
    std::vector<fabric::Message> got;
  };

  explicit Bench(fabric::NodeConfig config = default_config()) : node(config, random) {}

  static fabric::NodeConfig default_config() {
    fabric::NodeConfig config;
    config.ring_buffer = base::VramOffset(16 * base::kMiB);
    config.record_buffer = base::VramOffset(32 * base::kMiB);
    config.vram_base = base::McAddress(0x80'0000'0000);
    return config;
  }

  void activate(std::initializer_list<int> members = {3, 5, 9}) {
    node.apply_config(now, token(), pod(kSelf.value(), members));
    run();
  }

  fabric::Token token() { return fabric::Token(++last_token); }

  void receive(AccelId from, const fabric::Message& message) {
    feed(fabric::MessageReceived{from.value(), fabric::encode(message)});
  }

  // A HELLO of a peer that has just started: its pointer words are zero.
  void hello_from(AccelId from, std::optional<fabric::Extension> extension) {
    peers[from].wptr[0] = peers[from].wptr[1] = 0;
    receive(from, fabric::Hello{kSelf, from, extension});
  }

  // Events wait until all actions before them have been carried out.
  void feed(fabric::Event event) {
    pending_.push_back(std::move(event));
    run();
  }
  void run() {
    if (std::exchange(running_, true)) return;
    for (;;) {
      for (auto& action : node.take_actions()) actions_.push_back(std::move(action));
      if (!actions_.empty()) {
        auto action = std::move(actions_.front());
        actions_.pop_front();
        std::visit([&](auto& a) { execute(a); }, action);
      } else if (!pending_.empty()) {
        auto event = std::move(pending_.front());
        pending_.pop_front();
        node.handle(now, event);
      } else {
        break;
      }
    }
    running_ = false;
  }

  void advance(std::chrono::milliseconds by) {
    const auto until = now + by;
    for (auto next = node.next_deadline(); next && *next <= until; next = node.next_deadline()) {
      now = std::max(now, *next);
      node.tick(now);
      run();
    }
    now = until;
    node.tick(now);
    run();
  }

  void done(fabric::OpId op, base::Result<void> result = {}) {
    feed(fabric::OpDone{op, std::move(result)});
  }

  // The result of a request, if it has ended.
  const base::Result<fabric::ImportedMemory>* result(fabric::Token t) const {
    const auto it = results.find(t);
    return it == results.end() ? nullptr : &it->second;
  }
  Errc error(fabric::Token t) const {
    const auto* r = result(t);
    return r == nullptr ? Errc::kAgain : r->has_value() ? Errc{} : r->error().code;
  }
  bool ok(fabric::Token t) const { return result(t) != nullptr && result(t)->has_value(); }

  template <class M>
  std::vector<M> got(AccelId peer) {
    std::vector<M> all;
    for (const auto& message : peers[peer].got) {
      if (const auto* m = std::get_if<M>(&message)) all.push_back(*m);
    }
    return all;
  }
  std::size_t logged(const std::string& what) const {
    return static_cast<std::size_t>(std::count(log.begin(), log.end(), what));
  }
  std::size_t at(const std::string& what) const {
    return static_cast<std::size_t>(std::find(log.begin(), log.end(), what) - log.begin());
  }

  fabric::Handle exported(std::uint64_t buffer, std::uint64_t pages = 4) {
    return *node.export_buffer({fabric::BufferId(buffer), pages, std::nullopt});
  }
  fabric::ConnectionState connection(AccelId peer) { return info(peer).state; }
  fabric::PeerInfo info(AccelId peer) {
    for (const auto& p : node.peers()) {
      if (p.id == peer) return p;
    }
    return {};
  }

  // An import that has been granted at `page`.
  fabric::ImportedMemory imported(AccelId peer, const fabric::Handle& handle,
                                  std::uint32_t page = 0x1000) {
    const auto t = token();
    node.import_handle(now, t, handle);
    run();
    receive(peer, fabric::NpaRsp{handle.lo, 4, page});
    return **result(t);
  }

  void write_back(const Post& post, std::uint32_t status = 0) {
    feed(fabric::RecordRead{post.peer, post.ring, {post.sequence, status, post.wptr}});
  }

  SeededRandom random{1};
  fabric::Node node;
  fabric::TimePoint now{1000s};
  std::map<AccelId, PeerSide> peers;
  std::map<fabric::Token, base::Result<fabric::ImportedMemory>> results;
  std::vector<std::string> log;  // what was asked for, in order
  std::vector<Post> posts;
  std::vector<fabric::UpdateNpa> updates;
  std::vector<fabric::DetachImport> detaches;
  std::vector<fabric::Report> reports;
  std::vector<fabric::LoadMetadata> loads;
  bool hold_updates = false;
  bool hold_detaches = false;
  bool hold_posts = false;
  bool hold_pins = false;
  std::vector<fabric::OpId> held_pins;
  std::set<std::string> failing;  // names of steps that fail
  std::uint64_t last_token = 0;

 private:
  void execute(fabric::PostStores& a) {
    Post post{.peer = a.peer, .raw = a};
    const auto bytes = std::span<const std::byte>(a.stores.at(0).bytes);
    post.opcode = base::load<std::uint32_t>(bytes, 0) & 0xFFF'FFFF;
    post.sequence = base::load<std::uint32_t>(bytes, 4);
    post.ring = (a.stores[0].at.value() >> 12 & 1) != 0 ? fabric::RingType::kInterrupt
                                                        : fabric::RingType::kShootdown;
    post.wptr = base::load<std::uint64_t>(std::span<const std::byte>(a.stores.at(1).bytes), 0);
    posts.push_back(post);
    log.push_back("post " + std::to_string(post.opcode));
    if (hold_posts) return;
    PeerSide& side = peers[a.peer];
    if (!side.reachable) return done(a.op, base::fail(Errc::kPeerLost, "store"));
    side.wptr[static_cast<int>(post.ring)] = post.wptr;
    done(a.op);
    if (!side.writes_back || (post.opcode == 1 && !side.answers_shootdown)) return;
    fabric::Dwords dwords;
    for (std::size_t i = 0; i < 4; ++i) dwords[i] = base::load<std::uint32_t>(bytes, 48 + 4 * i);
    write_back(post, side.status);
    if (post.opcode == 2) deliver(a.peer, side, dwords);
  }
  void deliver(AccelId peer, PeerSide& side, const fabric::Dwords& dwords) {
    const auto message = fabric::decode(dwords, peer, kSelf);
    side.got.push_back(*message);
    const auto* hello = std::get_if<fabric::Hello>(&*message);
    if (hello == nullptr || !side.answers_hello) return;
    fabric::HelloAck ack;
    if (side.extension && hello->extension) ack = {side.extension, hello->extension->nonce};
    receive(peer, ack);
  }
  void execute(fabric::ReadRemote& a) {
    PeerSide& side = peers[a.peer];
    log.push_back("read");
    if (!side.reachable) {
      return feed(fabric::BytesRead{a.op, base::fail(Errc::kPeerLost, "load")});
    }
    std::vector<std::byte> bytes(16);
    base::store(std::span(bytes), 0, side.wptr[1]);
    base::store(std::span(bytes), 8, side.wptr[0]);
    feed(fabric::BytesRead{a.op, bytes});
  }
  void execute(fabric::UpdateNpa& a) {
    constexpr const char* kNames[] = {"map", "retry", "gone"};
    const std::string name = kNames[static_cast<int>(a.entry)];
    log.push_back(name);
    updates.push_back(a);
    if (!hold_updates) step(a.op, name);
  }
  void execute(fabric::PinBuffer& a) {
    log.push_back("pin");
    if (hold_pins) return held_pins.push_back(a.op);
    if (failing.contains("pin")) {
      return feed(fabric::BufferPinned{a.op, base::fail(Errc::kNoSpace, "pin")});
    }
    const auto info = node.exports();
    std::uint64_t pages = 0;
    for (const auto& e : info) {
      if (e.buffer == a.buffer) pages = e.pages;
    }
    const base::VramOffset at(a.buffer.value() << 24);
    feed(fabric::BufferPinned{a.op, std::vector<fabric::VramRun>{{at, pages}}});
  }
  void execute(fabric::UnpinBuffer&) { log.push_back("unpin"); }
  void execute(fabric::DetachImport& a) {
    log.push_back("detach");
    detaches.push_back(a);
    if (!hold_detaches) step(a.op, "detach");
  }
  void execute(fabric::Complete& a) {
    log.push_back("complete");
    results.insert_or_assign(a.token, std::move(a.result));
  }
  void execute(fabric::SetNpaAccess& a) { plain(a.op, a.enable ? "access on" : "access off"); }
  void execute(fabric::SetNpaVm& a) { plain(a.op, a.enable ? "vm on" : "vm off"); }
  void execute(fabric::ClearRings& a) { plain(a.op, "clear"); }
  void execute(fabric::LoadMetadata& a) {
    loads.push_back(a);
    plain(a.op, "load");
  }
  void execute(fabric::HaltFirmware& a) { plain(a.op, "halt"); }
  void execute(fabric::MapPeers& a) { plain(a.op, a.enable ? "peers on" : "peers off"); }
  void execute(fabric::Report& a) { reports.push_back(a); }
  void plain(fabric::OpId op, const std::string& name) {
    log.push_back(name);
    step(op, name);
  }
  bool running_ = false;
  std::deque<fabric::Action> actions_;
  std::deque<fabric::Event> pending_;

  void step(fabric::OpId op, const std::string& name) {
    if (failing.contains(name)) return done(op, base::fail(Errc::kDeviceError, name));
    done(op);
  }
};

}  // namespace fabric_test
