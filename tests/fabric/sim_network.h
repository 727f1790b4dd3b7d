// A simulated pod: real fabric::Nodes, and below them a seeded model of firmware, links, page
// tables and importing engines that loses, delays, duplicates, kills and restarts. It checks after
// every access that nobody reaches memory that the handle does not stand for. Written from
// docs/hardware/nht.md, not from fabric/: it decodes packets and metadata with its own numbers.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bench.h"
#include "fabric/node.h"

namespace fabric_test {

struct SimOptions {
  unsigned nodes = 2;
  bool legacy_last = false;    // the last node speaks no extension
  bool shootdown_last = true;  // its firmware knows opcode 1
  unsigned lose_permille = 0;  // a vector that never reaches the driver
  unsigned duplicate_permille = 0;
  unsigned refuse_permille = 0;  // a post or a read that fails
  unsigned stall_permille = 0;   // an entry whose write-back comes seconds late
  std::uint64_t npa_pages = 0;   // size of the NPA window; 0: all of it
  bool restarts = false;
  bool link_flaps = false;
};

class SimNetwork {
 public:
  SimNetwork(std::uint64_t seed, const SimOptions& options);

  // Random requests for `steps` steps, then healing, then everything must come to rest.
  void play(int steps);
  const std::vector<std::string>& violations() const { return violations_; }
  std::uint64_t imports_granted = 0;
  std::uint64_t revokes_done = 0;
  std::uint64_t accesses = 0;

 private:
  using Time = fabric::TimePoint;
  // No request may take longer, whatever happens.
  static constexpr std::chrono::seconds kLongest{40};
  struct Entry {
    std::uint64_t vram_page = 0;
    fabric::NpaEntry state = fabric::NpaEntry::kGone;
  };
  struct Mapping {
    std::uint64_t import = 0;
    fabric::Handle handle;
    base::Npa at;
    std::uint64_t pages = 0;
    bool open = true;  // the application may still close it
  };
  struct Request {
    Time since;
    std::string what;
    fabric::Handle handle;
    bool revoke = false;
  };
  struct Buffer {
    std::vector<std::uint64_t> pages;
    bool pinned = false;
    bool freed = false;
    std::optional<fabric::Handle> handle;
  };
  struct Member {
    AccelId id;
    std::unique_ptr<fabric::Node> node;
    std::map<std::uint64_t, std::array<std::byte, 4096>> vram;  // ring and record pages
    std::map<std::uint64_t, Entry> table;                       // VMID 15
    std::map<std::uint64_t, Entry> stale;  // replaced, not flushed yet: may still be used
    bool access = false;
    bool loaded = false;
    std::vector<std::byte> metadata;
    std::map<std::pair<unsigned, int>, std::uint64_t> rptr;
    std::map<std::pair<unsigned, int>, std::uint64_t> record_at;
    std::vector<Mapping> mappings;
    std::map<std::uint64_t, Buffer> buffers;
    std::vector<std::uint64_t> free_pages;
    std::map<std::uint64_t, std::uint64_t> owner_of;  // vram page -> buffer
    std::map<std::uint64_t, Request> requests;
    std::map<unsigned, Time> post_order;            // last post to this peer ends then
    std::set<unsigned> failing;                     // posts fail until the failure was answered
    std::map<unsigned, Time> delivery;              // last vector from this sender arrives then
    std::map<std::pair<unsigned, int>, Time> busy;  // firmware, by sender and ring
    std::uint64_t life = 0;
    std::uint64_t next_buffer = 1;
    bool alive = false;
  };

  Member& at(AccelId id) { return *members_.at(id.value()); }
  void later(std::chrono::microseconds delay, std::function<void()> what);
  void at_time(Time when, std::function<void()> what);
  std::chrono::microseconds delay() { return std::chrono::microseconds(1 + random_.below(300)); }
  bool chance(unsigned permille) { return !healed_ && random_.below(1000) < permille; }
  void violate(const std::string& what);

  void start(Member& m);
  void kill(Member& m);
  void feed(Member& m, std::uint64_t life, fabric::Event event);
  void collect(Member& m);
  void step_time(Time until);

  void execute(Member& m, fabric::PostStores& a);
  void execute(Member& m, fabric::ReadRemote& a);
  void execute(Member& m, fabric::UpdateNpa& a);
  void execute(Member& m, fabric::PinBuffer& a);
  void execute(Member& m, fabric::UnpinBuffer& a);
  void execute(Member& m, fabric::DetachImport& a);
  void execute(Member& m, fabric::Complete& a);
  void execute(Member& m, fabric::SetNpaAccess& a);
  void execute(Member& m, fabric::SetNpaVm& a);
  void execute(Member& m, fabric::ClearRings& a);
  void execute(Member& m, fabric::LoadMetadata& a);
  void execute(Member& m, fabric::HaltFirmware& a);
  void execute(Member& m, fabric::MapPeers& a);
  void execute(Member&, fabric::Report&) {}
  void done(Member& m, fabric::OpId op, base::Result<void> result = {});

  bool linked(const Member& a, const Member& b) const;
  // VRAM byte behind an incoming address, or nothing: the exporter's table decides.
  std::optional<std::uint64_t> translate(Member& m, std::uint64_t npa, bool stale);
  std::byte* ram(Member& m, std::uint64_t byte);
  template <class T>
  T word(Member& m, std::uint64_t byte);
  void firmware(Member& m, AccelId sender, int ring);
  void consume(Member& m, AccelId sender, int ring);
  void write_back(Member& m, AccelId sender, int ring, std::uint32_t sequence,
                  std::uint32_t status);
  void deliver(Member& m, AccelId sender, std::array<std::uint32_t, 4> dwords);
  void poll(Member& m);

  void random_request();
  void touch_random(bool stale_too);
  void access(Member& m, const Mapping& mapping);
  void check_requests();
  void check_rest();
  std::vector<std::uint64_t> take_pages(Member& m, std::uint64_t buffer, std::size_t n);
  void free_buffer(Member& m, std::uint64_t buffer);

  SimOptions options_;
  SeededRandom random_;
  Time now_{std::chrono::seconds(1000)};
  std::map<unsigned, std::unique_ptr<Member>> members_;
  std::multimap<Time, std::function<void()>> queue_;
  std::set<std::pair<unsigned, unsigned>> down_;
  std::map<fabric::Handle, std::pair<unsigned, std::uint64_t>> buffer_of_;  // exporter, buffer
  std::vector<fabric::Handle> known_;
  std::vector<std::string> violations_;
  std::uint64_t last_token_ = 0;
  bool healed_ = false;
};

}  // namespace fabric_test
