// The nHT firmware of one accelerator: its mailbox, and the rings in which other accelerators leave
// interrupts and TLB shootdowns (docs/hardware/nht.md, docs/model-fabric.md).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/gpusim/model/block_context.h"
#include "tools/gpusim/model/nht_port.h"
#include "tools/gpusim/model/nht_rules.h"
#include "tools/gpusim/model/vm_hub.h"

namespace gpusim {

// Of a write-back record.
enum class NhtStatus : std::uint32_t {
  kOk = 0,
  kFifoOverflow = 1,  // only by a scenario
  kBadCommand = 2,
  kTimeout = 3,  // a heavy shootdown whose accesses did not end
  kBadMetadata = 4,
  kOverflow = 5,
  kBadPointer = 6,
  kNoInterrupt = 7,
  kBadRing = 8,
  kBadRecord = 9,
};

struct NhtCounters {
  std::uint64_t loads = 0;
  std::uint64_t doorbells = 0;
  std::uint64_t dropped_doorbells = 0;  // not loaded, or halted
  std::uint64_t entries = 0;            // consumed one by one
  std::uint64_t failed = 0;             // records with a status other than 0
  std::uint64_t messages = 0;           // vectors raised
  std::uint64_t shootdowns = 0;
  std::uint64_t unrecorded = 0;    // no record address known
  std::uint64_t lost_records = 0;  // the sender's memory refused, or was not reached
};

// Model thread only.
class Nht : public NhtBlock {
 public:
  // Defines the mailbox in `context.registers`. `memory`: MMHUB 0, whose VMID 0 the firmware uses;
  // `hubs`: all of the GPU, for shootdowns. Everything outlives the last step; hooks and registers
  // outlive this, or end before its next step.
  Nht(const BlockContext& context, AddressSpace& memory, std::vector<VmHub*> hubs);
  ~Nht() override;
  Nht(const Nht&) = delete;
  Nht& operator=(const Nht&) = delete;

  void remote_doorbell(std::uint16_t sender, unsigned port, unsigned index,
                       std::uint32_t value) override;
  void reset() override;
  bool step() override;
  bool waiting() const override;

  const NhtCounters& counters() const { return counters_; }

  // Rings by doorbell index; their type in an NPA is the opposite (U39).
  static constexpr unsigned kInterruptRing = 0, kShootdownRing = 1;

 private:
  static constexpr std::size_t kPacketBytes = 64;
  using Packet = std::array<std::uint32_t, kPacketBytes / 4>;

  // A heavy shootdown that waits for accesses begun before it.
  struct Flush {
    Packet packet;
    std::vector<std::uint64_t> marks;  // a hub
    ModelTime deadline;
    bool no_write_back;
  };
  struct Ring {
    std::uint64_t read = 0;                // entries consumed since the load
    std::uint64_t reported = 0;            // as the record shows it
    std::optional<std::uint64_t> record;   // in the sender's window, told since the load
    std::optional<std::uint64_t> earlier;  // told before the load (D43)
    std::optional<std::uint32_t> doorbell;
    std::optional<Flush> flush;
  };
  struct Entry {  // of the metadata table
    std::uint32_t magic = 0;
    std::uint32_t shape = 0;
    std::array<std::uint64_t, 2> ring{};  // by doorbell index
    std::array<std::uint64_t, 2> pointer{};
  };
  struct Late {
    std::uint16_t sender;
    ModelTime due;
    bool until_next;  // raised after the sender's next vector
    Iv iv;
  };

  void define_mailbox();
  void add_scenarios();
  void add_rules();
  void add_flags();
  void add_command(std::string name, std::string help, ScenarioHooks::Command command);
  bool run_command();
  void load();
  void stop();
  bool serve(std::uint16_t sender, unsigned index, Ring& ring);
  bool judge(std::uint16_t sender, unsigned index, Ring& ring, std::uint64_t& write);
  void give_up(std::uint16_t sender, Ring& ring, std::uint32_t data, NhtStatus status);
  bool fetch(std::uint16_t sender, unsigned index, std::uint64_t slot, Packet& packet);
  bool execute(std::uint16_t sender, unsigned index, Ring& ring, const Packet& packet);
  NhtStatus interrupt(std::uint16_t sender, const Packet& packet,
                      const std::optional<NhtRule>& rule);
  bool raise(std::uint16_t sender, const Iv& iv);
  bool begin_shootdown(std::uint16_t sender, Ring& ring, const Packet& packet);
  bool end_shootdown(std::uint16_t sender, Ring& ring);
  void move_record(std::uint16_t sender, Ring& ring, const Packet& packet);
  void consumed(std::uint16_t sender, Ring& ring, const Packet& packet, NhtStatus status);
  Outcome write_record(std::uint16_t sender, std::uint64_t record, std::uint32_t data,
                       NhtStatus status, std::optional<std::uint64_t> read);
  Outcome write_sender(std::uint16_t sender, std::uint64_t at, std::span<const std::byte> bytes);
  bool raise_late();
  const Entry* entry(std::uint16_t sender) const;

  const BlockContext& context_;
  AddressSpace& memory_;
  std::vector<VmHub*> hubs_;
  ScenarioHooks* hooks_;
  unsigned gpu_;
  RegisterFile::Register *status_ = nullptr, *data_ = nullptr, *addr_lo_ = nullptr,
                         *addr_hi_ = nullptr;
  std::optional<std::uint32_t> command_;  // written, not done yet
  std::vector<Entry> table_;
  std::map<std::uint16_t, std::array<Ring, 2>> rings_;
  std::vector<Late> late_;
  bool no_write_back_ = false;  // for the entry being executed
  NhtRules rules_;
  std::vector<std::string> commands_;
  NhtCounters counters_;
};

}  // namespace gpusim
