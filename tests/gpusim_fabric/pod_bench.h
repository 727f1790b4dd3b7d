// GPUs of one pod, each brought up by hand as far as the fabric needs it: apertures, a flat GART,
// the NPA address space, a copy queue, interrupts, ring memory and metadata. Constants are spelled
// out here once more: the tests are a third reading of the contract.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "tests/gpusim_blocks/fakes.h"
#include "tools/gpusim/host/assembly.h"

namespace gpusim::test {

using namespace std::chrono_literals;

inline constexpr std::uint64_t kMc = 0x80'0000'0000;  // FB_LOCATION_BASE
inline constexpr std::uint64_t kHost = 0x5'0000'0000;

// VRAM of a node, by offset.
inline constexpr std::uint64_t kVram = 64 << 20;
inline constexpr std::uint64_t kPsp = 0x1'0000, kGart = 0x4'0000, kNpaTable = 0x6'0000,
                               kQueue = 0x8'0000, kTable = 0x9'0000, kScratch = 0xA'0000,
                               kRings = 0x20'0000, kRecords = 0x40'0000, kBuffer = 0x80'0000;
inline constexpr std::uint64_t kBufferBytes = 8 << 20;

// Pages of the NPA window of a node.
inline constexpr std::uint64_t kNpaRings = 0x200, kNpaRecords = 0x800, kNpaBuffer = 0x900;

// Pages of the GART of a node, for one peer.
inline constexpr std::uint64_t kGartInterruptRing = 0x10, kGartShootdownRing = 0x11,
                               kGartPointers = 0x12, kGartDoorbell = 0x13, kGartBuffer = 0x800;

inline constexpr std::uint64_t kV = 1, kC = 4, kX = 16, kR = 32, kW = 64, kRw = kR | kW;
inline constexpr std::uint64_t kT = 1ull << 56, kB = 1ull << 59, kP = 1ull << 63;
inline constexpr std::uint64_t kNpa = kC | kT | kP | kB | kRw;
inline constexpr std::uint64_t kFinal = 6;

enum Ring : unsigned { kInterrupt = 0, kShootdown = 1 };
using Packet = std::array<std::uint32_t, 16>;

struct Vector {
  std::uint8_t client, source;
  std::uint8_t ring_id, vmid;
  std::uint16_t pasid;
  std::array<std::uint32_t, 4> data;
};

struct Record {
  std::uint32_t data = 0, status = 0;
  std::uint64_t read = 0;
  bool operator==(const Record&) const = default;
};

class Node {
 public:
  Node(Gpu& gpu, std::function<void()> settle, bool ident);
  Gpu& gpu() { return gpu_; }
  std::uint16_t id() const { return gpu_.accel_id(); }

  // --- registers and memory ---
  void write(std::uint32_t dword, std::uint32_t value) {
    gpu_.write_register(std::uint64_t{dword} * 4, value);
  }
  std::uint32_t read(std::uint32_t dword) { return gpu_.read_register(std::uint64_t{dword} * 4); }
  void write_pair(std::uint32_t dword, std::uint64_t value);
  void write_smn(std::uint32_t byte, std::uint32_t value);
  std::uint32_t read_smn(std::uint32_t byte);
  template <class T>
  void put(std::uint64_t offset, const T& value) {
    base::store(gpu_.vram().cpu_view(), offset, value);
  }
  template <class T>
  T get(std::uint64_t offset) {
    return base::load<T>(gpu_.vram().cpu_view(), offset);
  }

  // --- bring-up; the constructor does all but the firmware ---
  void bring_up();
  void write_table();                        // entries of all peers
  void load_firmware();                      // expects it to get ready
  std::uint32_t command(std::uint32_t cmd);  // 1 or 2; returns the status
  std::uint32_t status() { return read_smn(0x0AE1'0968); }
  // An entry of VMID 15, of the GART; no flush.
  void set_npa(std::uint64_t page, std::uint64_t entry);
  void set_gart(std::uint64_t page, std::uint64_t entry);
  std::uint64_t vram_entry(std::uint64_t offset) const {
    return physical_ + offset + (kV | kP | kRw);
  }
  void flush(unsigned type = 0);  // VMIDs 0 and 15 of MMHUB 0, VMID 0 of GFXHUB 0
  void map_peer(Node& peer) { map_peer(peer.id()); }
  void map_peer(std::uint16_t peer);  // rings, pointers, doorbell and buffer of a peer
  static std::uint64_t buffer_va(std::uint64_t offset = 0) { return kGartBuffer * 4096 + offset; }

  // --- engines ---
  // Error bits of LSDMA's status.
  std::uint32_t copy(std::uint64_t from, std::uint64_t to, std::uint32_t bytes);
  void start_copy(std::uint64_t from, std::uint64_t to, std::uint32_t bytes);
  std::uint32_t copy_errors();
  // Puts packets into the SDMA queue and rings; they are done by settling.
  void submit(std::initializer_list<std::uint32_t> dwords);
  void submit_copy(std::uint64_t from, std::uint64_t to, std::uint64_t bytes);
  std::uint64_t queue_read();

  // --- rings ---
  // Leaves an entry for a peer as a driver does: packet, pointer, doorbell.
  void send(Ring ring, const Packet& packet);
  void store_slot(Ring ring, std::uint64_t slot, const Packet& packet);
  std::uint32_t store_pointer(Ring ring, std::uint64_t value);
  std::uint32_t ring_doorbell(Ring ring, std::uint32_t value, unsigned port = 1);
  // Our record about our ring at `peer`.
  Record record(const Node& peer, Ring ring);
  std::uint64_t record_npa(const Node& peer, Ring ring) const;  // with our id
  Packet move_record(const Node& peer, Ring ring, std::uint32_t sequence) const;
  static Packet message(std::uint32_t sequence, std::array<std::uint32_t, 4> dwords);
  static Packet shootdown(std::uint32_t sequence, std::uint32_t type = 2);
  void introduce(Node& peer);              // opcode 3 on both rings, sequence 1
  std::array<std::uint64_t, 2> written{};  // write pointers, by ring

  // Vectors since the last call.
  std::vector<Vector> vectors();
  std::vector<Vector> messages();  // client 0x1C only

  FakeBus bus{kHost, 1 << 16};

 private:
  void open_hub(std::uint32_t base, bool gfx);
  void start_interrupts();
  bool enable_npa();
  void start_queue();
  std::uint32_t at(Ip ip, unsigned segment) const { return gpu_.bases().at(ip, 0, segment); }
  std::uint32_t hub_row(bool gfx, std::uint32_t row) const;

  Gpu& gpu_;
  std::function<void()> settle_;
  bool ident_;
  std::uint64_t physical_;
  std::uint64_t queue_written_ = 0;
  std::uint32_t vectors_read_ = 0;
  std::uint16_t peer_ = 0;
};

class PodBench {
 public:
  explicit PodBench(unsigned gpus = 2, std::string_view options = {});
  ~PodBench();
  Node& operator[](unsigned index) { return *nodes[index]; }
  Gpu& gpu(unsigned index) { return static_cast<Gpu&>(*parts.gpus[index]); }
  // Brings up everything, the firmware included, and introduces nodes 0 and 1 to each other.
  void bring_up(bool introduced = true);
  // Steps all until nothing happens any more; time goes on while something waits for it.
  void settle();
  bool step();
  ScenarioValues run(std::string_view name, const ScenarioValues& arguments = {});

  FakeClock clock;
  ScenarioHooks hooks;
  AccessLog log;
  PodParts parts;
  bool ident = false;
  std::vector<std::unique_ptr<Node>> nodes;
};

}  // namespace gpusim::test
