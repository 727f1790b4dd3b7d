#include "tools/gpusim/model/nht.h"

#include <algorithm>
#include <utility>

#include "base/address.h"
#include "base/bytes.h"
#include "tools/gpusim/model/pte.h"

namespace gpusim {
namespace {

// Mailbox, by SMN byte address.
constexpr std::uint32_t kCmd = 0x0AE1'0958, kData = 0x0AE1'095C, kAddrLo = 0x0AE1'0960,
                        kAddrHi = 0x0AE1'0964, kStatus = 0x0AE1'0968;
constexpr std::uint32_t kCmdLoad = 1, kCmdHalt = 2;
constexpr std::uint32_t kPreInit = 0xA0, kReady = 0xA1, kHalted = 0xA2, kError = 0xA3;

constexpr std::uint32_t kMagic = 0x4E48'5446;
constexpr std::size_t kEntryBytes = 40;
constexpr std::uint32_t kMostEntries = 256;
constexpr std::uint32_t kRingShape = 6, kRingShapeMask = 0xF;
constexpr std::uint64_t kSlots = 64;

// Packet dwords.
constexpr unsigned kHeader = 0, kSequence = 1, kRecordLo = 2, kRecordHi = 3, kRangeLo = 8,
                   kMessage = 12;
constexpr std::uint32_t kOpcodeMask = 0x0FFF'FFFF, kWriteRead = 1u << 28, kWriteData = 1u << 29;
constexpr std::uint32_t kOpShootdown = 1, kOpInterrupt = 2, kOpRecord = 3;
constexpr std::uint32_t kFlushTypeMask = 7, kFlushLight = 1;

// Record, by byte.
constexpr std::uint64_t kRecordData = 0, kRecordStatus = 4, kRecordRead = 8;
constexpr std::uint64_t kWindow = std::uint64_t{1} << kNpaIdShift;
constexpr std::uint32_t kRecordHiMask = 0xF'FFFF, kRecordLoMask = ~3u;
constexpr std::uint64_t kNotMemory = std::uint64_t{1} << 51;

constexpr std::uint8_t kIvClient = 0x1C;
constexpr unsigned kEntriesInStep = 16;
constexpr ModelTime kFlushLimit = std::chrono::seconds(1);

const Requester kFirmware{"nht", 0, 2, 10};

}  // namespace

Nht::Nht(const BlockContext& context, AddressSpace& memory, std::vector<VmHub*> hubs)
    : context_(context),
      memory_(memory),
      hubs_(std::move(hubs)),
      hooks_(context.hooks),
      gpu_(context.gpu) {
  define_mailbox();
  add_scenarios();
}

Nht::~Nht() {
  if (hooks_ == nullptr) return;
  for (const std::string& name : commands_) hooks_->remove(gpu_, name);
}

// --- mailbox ---

void Nht::define_mailbox() {
  RegisterFile& file = context_.registers;
  file.define(kCmd / 4, "NHT.CMD").on_write = [this](std::uint32_t written, std::uint32_t) {
    command_ = written;
    return written;
  };
  data_ = &file.define(kData / 4, "NHT.DATA");
  addr_lo_ = &file.define(kAddrLo / 4, "NHT.ADDR_LO");
  addr_hi_ = &file.define(kAddrHi / 4, "NHT.ADDR_HI");
  status_ = &file.define(kStatus / 4, "NHT.STATUS", kPreInit);
  status_->on_write = [](std::uint32_t, std::uint32_t stored) { return stored; };
}

void Nht::reset() {
  command_.reset();
  stop();
  rings_.clear();
  table_.clear();
}

// The table may lie in host memory, which is reached from a step only: a command is done there.
bool Nht::run_command() {
  if (!command_) return false;
  const std::uint32_t command = *std::exchange(command_, std::nullopt);
  const std::uint32_t now = status_->stored;
  if (command == kCmdLoad && (now == kPreInit || now == kHalted)) {
    load();
  } else if (command == kCmdHalt) {
    stop();
    status_->stored = kHalted;
  } else {
    status_->stored = kError;
  }
  return true;
}

void Nht::load() {
  const std::uint64_t at = std::uint64_t{addr_hi_->stored} << 32 | addr_lo_->stored;
  const std::uint32_t count = data_->stored >> 8;
  std::vector<std::byte> bytes(std::min(count, kMostEntries) * kEntryBytes);
  if (count == 0 || count > kMostEntries || memory_.read(kFirmware, at, bytes) != Outcome::kOk) {
    status_->stored = kError;
    return;
  }
  table_.clear();
  for (std::size_t i = 0; i < count; ++i) {
    const auto from = std::span<const std::byte>(bytes).subspan(i * kEntryBytes, kEntryBytes);
    Entry& entry = table_.emplace_back();
    entry.magic = base::load<std::uint32_t>(from, 0);
    entry.shape = base::load<std::uint32_t>(from, 4);
    for (unsigned index = 0; index < 2; ++index) {
      entry.ring[index] = base::load<std::uint64_t>(from, 8 + 8 * index);
      entry.pointer[index] = base::load<std::uint64_t>(from, 24 + 8 * index);
    }
  }
  for (auto& [sender, rings] : rings_) {
    for (Ring& ring : rings) {
      const auto known = ring.record ? ring.record : ring.earlier;
      ring = {};
      ring.earlier = known;
    }
  }
  ++counters_.loads;
  status_->stored = kReady;
}

// Nothing that was rung or begun is remembered.
void Nht::stop() {
  late_.clear();
  for (auto& [sender, rings] : rings_) {
    for (Ring& ring : rings) {
      ring.doorbell.reset();
      ring.flush.reset();
    }
  }
}

const Nht::Entry* Nht::entry(std::uint16_t sender) const {
  return sender < table_.size() ? &table_[sender] : nullptr;
}

// --- rings ---

// All ports act alike; only the lower bit of the index names a ring (D48).
void Nht::remote_doorbell(std::uint16_t sender, unsigned, unsigned index, std::uint32_t value) {
  ++counters_.doorbells;
  if (status_->stored != kReady || index > kShootdownRing) {
    ++counters_.dropped_doorbells;
    return;
  }
  rings_[sender][index].doorbell = value;
}

bool Nht::step() {
  bool did = run_command();
  if (status_->stored != kReady) return did;
  did |= raise_late();
  if (rules_.hang) return did;
  for (auto& [sender, rings] : rings_) {
    for (unsigned index = 0; index < rings.size(); ++index)
      did |= serve(sender, index, rings[index]);
  }
  return did;
}

bool Nht::waiting() const {
  return !late_.empty() || std::ranges::any_of(rings_, [](const auto& sender) {
    return std::ranges::any_of(sender.second,
                               [](const Ring& ring) { return ring.flush.has_value(); });
  });
}

bool Nht::serve(std::uint16_t sender, unsigned index, Ring& ring) {
  if (ring.flush) return end_shootdown(sender, ring);
  if (!ring.doorbell) return false;
  if (index == kShootdownRing && rules_.no_shootdown) return false;
  std::uint64_t write = 0;
  if (!judge(sender, index, ring, write)) {
    ring.doorbell.reset();
    return true;
  }
  for (unsigned i = 0; i < kEntriesInStep && ring.read != write; ++i) {
    Packet packet;
    if (!fetch(sender, index, ring.read % kSlots, packet)) {
      ring.read = write;
      give_up(sender, ring, static_cast<std::uint32_t>(write), NhtStatus::kBadRing);
      break;
    }
    if (!execute(sender, index, ring, packet)) return true;
  }
  if (ring.read == write) ring.doorbell.reset();
  return true;
}

// Whether the ring can be read, up to `write`. A bad one gets its record here (D42, D43, U11).
bool Nht::judge(std::uint16_t sender, unsigned index, Ring& ring, std::uint64_t& write) {
  const Entry* known = entry(sender);
  const bool good = known != nullptr && known->magic == kMagic &&
                    (known->shape & kRingShapeMask) == kRingShape && known->ring[index] != 0 &&
                    known->pointer[index] != 0 &&
                    base::is_aligned(known->ring[index], base::kPageSize) &&
                    base::is_aligned(known->pointer[index], sizeof write);
  if (!good) {
    give_up(sender, ring, *ring.doorbell, NhtStatus::kBadMetadata);
    return false;
  }
  if (memory_.read(kFirmware, known->pointer[index], base::as_writable_bytes(write)) !=
      Outcome::kOk) {
    give_up(sender, ring, *ring.doorbell, NhtStatus::kBadPointer);
    return false;
  }
  const bool behind = write < ring.read;
  if (!behind && write - ring.read <= kSlots) return true;
  ring.read = write;
  Packet last{};
  if (fetch(sender, index, (write - 1) % kSlots, last))
    give_up(sender, ring, last[kSequence], behind ? NhtStatus::kBadPointer : NhtStatus::kOverflow);
  else
    give_up(sender, ring, static_cast<std::uint32_t>(write), NhtStatus::kBadRing);
  return false;
}

void Nht::give_up(std::uint16_t sender, Ring& ring, std::uint32_t data, NhtStatus status) {
  ++counters_.failed;
  const auto record = ring.record ? ring.record : ring.earlier;
  if (!record) {
    ++counters_.unrecorded;
    return;
  }
  // An entry of the table that is bad says nothing about where the ring stands.
  std::optional<std::uint64_t> read;
  if (status != NhtStatus::kBadMetadata) read = ring.reported = ring.read;
  if (write_record(sender, *record, data, status, read) != Outcome::kOk) ++counters_.lost_records;
}

bool Nht::fetch(std::uint16_t sender, unsigned index, std::uint64_t slot, Packet& packet) {
  const Entry* known = entry(sender);
  return memory_.read(kFirmware, known->ring[index] + slot * kPacketBytes,
                      base::as_writable_bytes(packet)) == Outcome::kOk;
}

// --- entries ---

// False when the entry is not done yet.
bool Nht::execute(std::uint16_t sender, unsigned index, Ring& ring, const Packet& packet) {
  const std::uint32_t opcode = packet[kHeader] & kOpcodeMask;
  const bool message = opcode == kOpInterrupt && index == kInterruptRing;
  const auto rule = rules_.take(sender, index, message, packet[kMessage]);
  no_write_back_ = rule && rule->effect == NhtRule::Effect::kNoWriteBack;
  if (rule && rule->effect == NhtRule::Effect::kFail)
    consumed(sender, ring, packet, static_cast<NhtStatus>(rule->status));
  else if (message)
    consumed(sender, ring, packet, interrupt(sender, packet, rule));
  else if (opcode == kOpShootdown && index == kShootdownRing)
    return begin_shootdown(sender, ring, packet);
  else if (opcode == kOpRecord)
    move_record(sender, ring, packet);
  else
    consumed(sender, ring, packet, NhtStatus::kBadCommand);
  return true;
}

// Raised whether or not the driver here is ready for it (D49).
NhtStatus Nht::interrupt(std::uint16_t sender, const Packet& packet,
                         const std::optional<NhtRule>& rule) {
  Iv iv;
  iv.client = kIvClient;
  iv.vmid_src_mmhub = true;
  iv.pasid = sender;
  for (unsigned i = 0; i < iv.src_data.size(); ++i) iv.src_data[i] = packet[kMessage + i];
  if (rules_.mute) return NhtStatus::kOk;
  using Effect = NhtRule::Effect;
  const Effect effect = rule ? rule->effect : Effect::kNoWriteBack;
  if (effect == Effect::kDrop) return NhtStatus::kOk;
  if (effect == Effect::kDelay || effect == Effect::kReorder) {
    late_.push_back({sender, context_.clock.now() + rule->time, effect == Effect::kReorder, iv});
    return NhtStatus::kOk;
  }
  if (!raise(sender, iv)) return NhtStatus::kNoInterrupt;
  if (effect == Effect::kDuplicate) raise(sender, iv);
  return NhtStatus::kOk;
}

bool Nht::raise(std::uint16_t sender, const Iv& iv) {
  if (!context_.interrupts.raise(iv)) return false;
  ++counters_.messages;
  for (Late& late : late_) {
    if (late.sender != sender || !late.until_next) continue;
    late.until_next = false;
    late.due = {};
  }
  return true;
}

bool Nht::raise_late() {
  const ModelTime now = context_.clock.now();
  bool any = false;
  for (std::size_t i = 0; i < late_.size();) {
    if (late_[i].due > now) {
      ++i;
      continue;
    }
    const Late late = late_[i];
    late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(i));
    raise(late.sender, late.iv);
    any = true;
  }
  return any;
}

// Every range is the whole space (U26), and what is dropped are all translations that end at the
// sender (D45). Only a heavy one waits for what is still on its way there.
bool Nht::begin_shootdown(std::uint16_t sender, Ring& ring, const Packet& packet) {
  ++counters_.shootdowns;
  Flush flush{packet, {}, context_.clock.now() + kFlushLimit, no_write_back_};
  for (VmHub* hub : hubs_) flush.marks.push_back(hub->flush_npa(sender));
  if ((packet[kRangeLo] & kFlushTypeMask) == kFlushLight) {
    consumed(sender, ring, packet, NhtStatus::kOk);
    return true;
  }
  ring.flush = std::move(flush);
  return end_shootdown(sender, ring);
}

bool Nht::end_shootdown(std::uint16_t sender, Ring& ring) {
  bool done = true;
  for (std::size_t i = 0; i < hubs_.size(); ++i)
    done = done && hubs_[i]->remote_done(sender, ring.flush->marks[i]);
  const bool late = context_.clock.now() >= ring.flush->deadline;
  if (!done && !late) return false;
  const Packet packet = ring.flush->packet;
  no_write_back_ = ring.flush->no_write_back;
  ring.flush.reset();
  consumed(sender, ring, packet, done ? NhtStatus::kOk : NhtStatus::kTimeout);
  return true;
}

// The entry's own write-back goes to the new place already; one that does not translate at the
// sender is told to the old one (U29).
void Nht::move_record(std::uint16_t sender, Ring& ring, const Packet& packet) {
  const std::uint64_t told =
      std::uint64_t{packet[kRecordHi] & kRecordHiMask} << 32 | (packet[kRecordLo] & kRecordLoMask);
  const auto before = ring.record;
  const std::uint64_t next = ring.read + 1;
  const bool data = (packet[kHeader] & kWriteData) != 0;
  const bool moves_read = (packet[kHeader] & kWriteRead) != 0;
  Outcome outcome = Outcome::kRefused;
  if ((told & kNotMemory) == 0) {
    ring.record = told % kWindow;
    outcome = Outcome::kOk;
    const std::uint64_t read = moves_read ? next : ring.reported;
    if (data && !no_write_back_)
      outcome = write_record(sender, *ring.record, packet[kSequence], NhtStatus::kOk, read);
    else if (moves_read && !no_write_back_)
      outcome = write_sender(sender, *ring.record + kRecordRead, base::as_bytes(read));
  }
  if (outcome == Outcome::kOk || outcome == Outcome::kPeerLost) {
    if (outcome == Outcome::kPeerLost) ++counters_.lost_records;
    ++counters_.entries;
    ring.read = next;
    if (moves_read) ring.reported = next;
    return;
  }
  ring.record = before;
  consumed(sender, ring, packet, NhtStatus::kBadRecord);
}

// --- write-back ---

void Nht::consumed(std::uint16_t sender, Ring& ring, const Packet& packet, NhtStatus status) {
  ++counters_.entries;
  if (status != NhtStatus::kOk) ++counters_.failed;
  ++ring.read;
  const bool data = (packet[kHeader] & kWriteData) != 0;
  const bool read = (packet[kHeader] & kWriteRead) != 0;
  if (read) ring.reported = ring.read;
  if (no_write_back_ || (!data && !read)) return;
  if (!ring.record) {
    ++counters_.unrecorded;
    return;
  }
  Outcome outcome = Outcome::kOk;
  if (data)
    outcome = write_record(sender, *ring.record, packet[kSequence], status, ring.reported);
  else
    outcome = write_sender(sender, *ring.record + kRecordRead, base::as_bytes(ring.reported));
  if (outcome != Outcome::kOk) ++counters_.lost_records;
}

// Data last, each word in one store: who sees it sees the rest (U03).
Outcome Nht::write_record(std::uint16_t sender, std::uint64_t record, std::uint32_t data,
                          NhtStatus status, std::optional<std::uint64_t> read) {
  if (read) {
    const Outcome first = write_sender(sender, record + kRecordRead, base::as_bytes(*read));
    if (first != Outcome::kOk) return first;
  }
  const Outcome second = write_sender(sender, record + kRecordStatus, base::as_bytes(status));
  if (second != Outcome::kOk) return second;
  return write_sender(sender, record + kRecordData, base::as_bytes(data));
}

// Whatever id an entry names, only its sender is written to (U04).
Outcome Nht::write_sender(std::uint16_t sender, std::uint64_t at,
                          std::span<const std::byte> bytes) {
  RemoteAccess access;
  access.kind = RemoteAccess::Kind::kWrite;
  access.npa = (at & ~kNpaIdMask) | std::uint64_t{sender} << kNpaIdShift;
  access.write_from = bytes;
  const Outcome outcome = context_.fabric.access(access);
  if (context_.log != nullptr)
    context_.log->add({context_.clock.now(), context_.gpu, std::string(kFirmware.engine),
                       AccessKind::kRemote, true, access.npa, bytes.size(), outcome});
  return outcome;
}

}  // namespace gpusim
