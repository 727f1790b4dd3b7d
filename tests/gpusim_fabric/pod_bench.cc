#include "tests/gpusim_fabric/pod_bench.h"

#include <gtest/gtest.h>

#include <string>

namespace gpusim::test {
namespace {

constexpr std::uint32_t lo(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
constexpr std::uint32_t hi(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

constexpr std::uint32_t kGartPages = 0x2000, kNpaPages = 0x2000;
constexpr std::uint32_t kIhBytes = 0x8000;
constexpr std::uint32_t kQueueBytes = 4096;

}  // namespace

Node::Node(Gpu& gpu, std::function<void()> settle, bool ident)
    : gpu_(gpu),
      settle_(std::move(settle)),
      ident_(ident),
      physical_(std::uint64_t{fb_offset(gpu.options())} << 24) {
  gpu_.attach(bus);
}

void Node::write_pair(std::uint32_t dword, std::uint64_t value) {
  write(dword, lo(value));
  write(dword + 1, hi(value));
}

void Node::write_smn(std::uint32_t byte, std::uint32_t value) {
  write(0xE, byte);
  write(0x11, 0);
  write(0xF, value);
}

std::uint32_t Node::read_smn(std::uint32_t byte) {
  write(0xE, byte);
  write(0x11, 0);
  return read(0xF);
}

// --- bring-up ---

std::uint32_t Node::hub_row(bool gfx, std::uint32_t row) const {
  if (!gfx) return at(Ip::kMmhub, 2) + row;
  return at(Ip::kGc, 0) + row + (row < 0x100 ? 0x15A0 : 0x1524);
}

void Node::open_hub(std::uint32_t, bool gfx) {
  const auto row = [&](std::uint32_t offset) { return hub_row(gfx, offset); };
  write_pair(row(0x10A), 0);
  write_pair(row(0x10C), ~0ull >> 18);
  write_pair(row(0x104), 0);  // AGP closed
  write_pair(row(0x106), 1);
  write_pair(row(0x17B), (physical_ + kGart) | kV | kC);
  write_pair(row(0x19B), 0);
  write_pair(row(0x1BB), kGartPages - 1);
  write(row(0x110), 1 | 0x0055'5400);  // depth 0
  write(row(0x02E), 3u << 18);
  if (gfx) return;
  const std::uint64_t first = ident_ ? std::uint64_t{peer_} << 29 : 0;
  write_pair(row(0x17B + 30), (physical_ + kNpaTable) | kV | kC);
  write_pair(row(0x19B + 30), first);
  write_pair(row(0x1BB + 30), first + kNpaPages - 1);
  write(row(0x110 + 15), 1 | 0x0055'5400);
}

void Node::start_interrupts() {
  const std::uint32_t ih = at(Ip::kOsssys, 0);
  write(ih + 0x83, lo(kHost >> 8));
  write(ih + 0x84, lo(kHost >> 40));
  write(ih + 0x80, 1 | 13 << 1 | 2 << 28);
  vectors_read_ = 0;
}

bool Node::enable_npa() {
  const std::uint32_t mailbox = at(Ip::kMp0, 1) + 0x80;
  write_pair(mailbox + 5, kMc + kPsp);
  write(mailbox + 7, 4096);
  write(mailbox, 2 << 16);
  settle_();
  put(kPsp, kMc + kPsp + 0x1000);
  put(kPsp + 8, 1024u);
  put(kPsp + 12, kMc + kPsp + 0x2000);
  put(kPsp + 0x1004, 1u);
  put(kPsp + 0x1008, 0x59u);
  put(kPsp + 0x101C, 15u);
  put(kPsp + 0x1020, 1u);
  write(mailbox + 3, 16);
  settle_();
  return gpu_.security_processor().npa_enabled();
}

void Node::start_queue() {
  const std::uint32_t gc = at(Ip::kGc, 0);
  write(gc + 0x00D, 0x3801);
  write(at(Ip::kGc, 1) + 0x588E, 0);
  write_pair(gc + 0x201, (kMc + kQueue) >> 8);
  write_pair(gc + 0x203, 0);
  write_pair(gc + 0x205, 0);
  write(gc + 0x211, 0x200 << 2);
  write(gc + 0x20F, 1u << 28);
  write(gc + 0x209, 1);
  const std::uint32_t control = 10 << 1 | 1u << 23;
  write(gc + 0x200, control);
  write(gc + 0x200, control | 1);
  queue_written_ = 0;
}

void Node::bring_up() {
  open_hub(0, true);
  open_hub(0, false);
  start_interrupts();
  ASSERT_TRUE(enable_npa());
  start_queue();
  for (std::uint64_t i = 0; i < 512; ++i) set_npa(kNpaRings + i, vram_entry(kRings + 4096 * i));
  for (std::uint64_t i = 0; i < 2; ++i) set_npa(kNpaRecords + i, vram_entry(kRecords + 4096 * i));
  for (std::uint64_t i = 0; i < kBufferBytes / 4096; ++i)
    set_npa(kNpaBuffer + i, vram_entry(kBuffer + 4096 * i));
  for (std::uint64_t at = kRings; at < kRecords + 0x2000; at += 8) put(at, std::uint64_t{0});
  written = {};
}

void Node::write_table() {
  for (std::uint64_t s = 0; s < 256; ++s) {
    const std::uint64_t entry = kTable + 40 * s;
    const bool other = s != id();
    put(entry, other ? 0x4E48'5446u : 0u);
    put(entry + 4, other ? 6u : 0u);
    const std::uint64_t slot = kMc + kRings + (s << 13);
    const std::uint64_t pointers = kMc + kRings + (std::uint64_t{id()} << 13) + 16 * s;
    put(entry + 8, other ? slot + 4096 : 0);
    put(entry + 16, other ? slot : 0);
    put(entry + 24, other ? pointers : 0);
    put(entry + 32, other ? pointers + 8 : 0);
  }
}

std::uint32_t Node::command(std::uint32_t cmd) {
  write_smn(0x0AE1'0964, hi(kMc + kTable));
  write_smn(0x0AE1'0960, lo(kMc + kTable));
  write_smn(0x0AE1'095C, 0x1'0000);
  write_smn(0x0AE1'0958, cmd);
  settle_();
  return status();
}

void Node::load_firmware() { ASSERT_EQ(command(1), 0xA1u); }

void Node::set_npa(std::uint64_t page, std::uint64_t entry) { put(kNpaTable + 8 * page, entry); }
void Node::set_gart(std::uint64_t page, std::uint64_t entry) { put(kGart + 8 * page, entry); }

void Node::flush(unsigned type) {
  const std::uint32_t levels = 0x08F8'0000 | type << 16;
  write(hub_row(true, 0x133 + 17), levels | 1);
  EXPECT_EQ(read(hub_row(false, 0x121 + 17)), 1u);
  write(hub_row(false, 0x133 + 17), levels | 0x8001);
  write(hub_row(false, 0x121 + 17), 0);
}

void Node::map_peer(std::uint16_t peer) {
  peer_ = peer;
  const std::uint64_t there = std::uint64_t{peer} << 29;
  const auto npa = [&](std::uint64_t page) { return (there + page) << 12 | kNpa; };
  set_gart(kGartShootdownRing, npa(kNpaRings + 2 * id()));
  set_gart(kGartInterruptRing, npa(kNpaRings + 2 * id() + 1));
  set_gart(kGartPointers, npa(kNpaRings + 2 * std::uint64_t{peer}));
  set_gart(kGartDoorbell, 0xFFFull << 40 | std::uint64_t{peer} << 30 | kNpa);
  for (std::uint64_t i = 0; i < kBufferBytes / 4096; ++i)
    set_gart(kGartBuffer + i, npa(kNpaBuffer + i));
}

// --- engines ---

void Node::start_copy(std::uint64_t from, std::uint64_t to, std::uint32_t bytes) {
  const std::uint32_t lsdma = at(Ip::kLsdma, 0);
  write(lsdma + 0x8A, 0x000F'F800);
  write_pair(lsdma + 0x80, from);
  write_pair(lsdma + 0x82, to);
  write(lsdma + 0x86, 0);
  write(lsdma + 0x84, bytes);
}

std::uint32_t Node::copy_errors() { return read(at(Ip::kLsdma, 0) + 0x8A) & 0x000F'F800; }

std::uint32_t Node::copy(std::uint64_t from, std::uint64_t to, std::uint32_t bytes) {
  start_copy(from, to, bytes);
  settle_();
  EXPECT_NE(read(at(Ip::kLsdma, 0) + 0x8A) & 0x8000'0000, 0u) << "LSDMA is still busy";
  return copy_errors();
}

void Node::submit(std::initializer_list<std::uint32_t> dwords) {
  for (const std::uint32_t dword : dwords) {
    put(kQueue + queue_written_ % kQueueBytes, dword);
    queue_written_ += 4;
  }
  EXPECT_TRUE(gpu_.sdma(0, 0).doorbell(0x200, queue_written_, 8));
}

void Node::submit_copy(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
  submit({1, lo(bytes - 1), 0, lo(from), hi(from), lo(to), hi(to)});
}

std::uint64_t Node::queue_read() {
  const std::uint32_t gc = at(Ip::kGc, 0);
  return read(gc + 0x203) | std::uint64_t{read(gc + 0x204)} << 32;
}

// --- rings ---

void Node::store_slot(Ring ring, std::uint64_t slot, const Packet& packet) {
  put(kScratch, packet);
  const std::uint64_t page = ring == kInterrupt ? kGartInterruptRing : kGartShootdownRing;
  EXPECT_EQ(copy(kMc + kScratch, page * 4096 + slot * 64, 64), 0u);
}

std::uint32_t Node::store_pointer(Ring ring, std::uint64_t value) {
  put(kScratch, value);
  return copy(kMc + kScratch, kGartPointers * 4096 + 16 * id() + 8 * ring, 8);
}

std::uint32_t Node::ring_doorbell(Ring ring, std::uint32_t value, unsigned port) {
  put(kScratch, value);
  return copy(kMc + kScratch, kGartDoorbell * 4096 + port * 0x100 + ring * 0x40, 4);
}

void Node::send(Ring ring, const Packet& packet) {
  store_slot(ring, written[ring] % 64, packet);
  ++written[ring];
  EXPECT_EQ(store_pointer(ring, written[ring]), 0u);
  EXPECT_EQ(ring_doorbell(ring, lo(written[ring])), 0u);
}

std::uint64_t Node::record_npa(const Node& peer, Ring ring) const {
  return std::uint64_t{id()} << 41 | (kNpaRecords * 4096 + 32 * peer.id() + 16 * ring);
}

Record Node::record(const Node& peer, Ring ring) {
  const std::uint64_t at = kRecords + 32 * peer.id() + 16 * ring;
  return {get<std::uint32_t>(at), get<std::uint32_t>(at + 4), get<std::uint64_t>(at + 8)};
}

Packet Node::move_record(const Node& peer, Ring ring, std::uint32_t sequence) const {
  const std::uint64_t npa = record_npa(peer, ring);
  return {0x3000'0003, sequence, lo(npa), hi(npa)};
}

Packet Node::message(std::uint32_t sequence, std::array<std::uint32_t, 4> dwords) {
  Packet packet{0x3000'0002, sequence};
  for (unsigned i = 0; i < 4; ++i) packet[12 + i] = dwords[i];
  return packet;
}

Packet Node::shootdown(std::uint32_t sequence, std::uint32_t type) {
  Packet packet{0x3000'0001, sequence};
  packet[8] = 0xFFFF'F800 | type;
  packet[9] = 0x000F'FFFF;
  return packet;
}

void Node::introduce(Node& peer) {
  for (const Ring ring : {kInterrupt, kShootdown}) {
    send(ring, move_record(peer, ring, 1));
    EXPECT_EQ(record(peer, ring), (Record{1, 0, 1}));
  }
}

std::vector<Vector> Node::vectors() {
  std::vector<Vector> found;
  const std::uint32_t end = read(at(Ip::kOsssys, 0) + 0x82) & ~1u;
  for (; vectors_read_ != end; vectors_read_ = (vectors_read_ + 32) % kIhBytes) {
    const std::uint64_t iv = kHost + vectors_read_;
    const std::uint32_t first = bus.word(iv);
    Vector& vector = found.emplace_back();
    vector.client = static_cast<std::uint8_t>(first);
    vector.source = static_cast<std::uint8_t>(first >> 8);
    vector.ring_id = static_cast<std::uint8_t>(first >> 16);
    vector.vmid = static_cast<std::uint8_t>(first >> 24 & 0xF);
    vector.pasid = static_cast<std::uint16_t>(bus.word(iv + 12));
    for (unsigned i = 0; i < 4; ++i) vector.data[i] = bus.word(iv + 16 + 4 * i);
  }
  return found;
}

std::vector<Vector> Node::messages() {
  auto all = vectors();
  std::erase_if(all, [](const Vector& vector) { return vector.client != 0x1C; });
  return all;
}

// --- pod ---

PodBench::PodBench(unsigned gpus, std::string_view options) {
  PodSetup setup;
  setup.gpus = gpus;
  EXPECT_TRUE(setup.set_list("vram=64M,bar0=vram,hdp=off"));
  EXPECT_TRUE(setup.set_list(options));
  ident = setup.ident;
  auto made = gpu_pod(setup)(hooks, log, clock);
  if (!made) ADD_FAILURE() << made.error().message();
  parts = std::move(*made);
  for (unsigned i = 0; i < gpus; ++i)
    nodes.push_back(std::make_unique<Node>(gpu(i), [this] { settle(); }, ident));
}

void PodBench::bring_up(bool introduced) {
  for (auto& node : nodes) node->map_peer(*nodes[node == nodes[0] ? 1 : 0]);
  for (auto& node : nodes) {
    node->bring_up();
    node->write_table();
    node->load_firmware();
  }
  if (!introduced) return;
  nodes[0]->introduce(*nodes[1]);
  nodes[1]->introduce(*nodes[0]);
}

// As Pod does: GPUs first, then the switch.
PodBench::~PodBench() {
  parts.gpus.clear();
  parts.parts.clear();
}

bool PodBench::step() {
  bool any = false;
  for (auto& part : parts.parts) any |= part->step();
  for (auto& gpu : parts.gpus) any |= gpu->step();
  return any;
}

void PodBench::settle() {
  for (unsigned quiet = 0, turns = 0; turns < 1'000'000; ++turns) {
    if (step()) {
      quiet = 0;
      continue;
    }
    const bool waits = std::ranges::any_of(parts.gpus, [](const auto& g) { return g->waiting(); });
    if (!waits || ++quiet > 40'000) return;  // 400 ms without anything
    clock.advance(10us);
  }
  ADD_FAILURE() << "the pod never came to rest";
}

ScenarioValues PodBench::run(std::string_view name, const ScenarioValues& arguments) {
  auto answer = hooks.run(name, arguments);
  if (!answer) {
    ADD_FAILURE() << name << ": " << answer.error().message();
    return {};
  }
  return *answer;
}

}  // namespace gpusim::test
