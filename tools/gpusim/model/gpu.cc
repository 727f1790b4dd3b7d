#include "tools/gpusim/model/gpu.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/address.h"
#include "base/bytes.h"
#include "tools/gpusim/model/discovery_table.h"

namespace gpusim {
namespace {

constexpr std::uint64_t kDoorbellBarBytes = 2 * base::kMiB;
constexpr std::uint64_t kRegisterBarBytes = std::uint64_t{Bases::kBar5Dwords} * 4;
constexpr std::uint64_t kVramGranule = 16 * base::kMiB;  // the unit of FB_LOCATION
constexpr std::uint32_t kData2Dword = 0x00F;
constexpr unsigned kXccsAnAid = 4;
constexpr std::uint32_t kMsixTable = 0x400, kMsixPending = 0x800;  // NBIO segment 3

std::uint64_t bar0_size(const GpuOptions& options) {
  return options.bar0_bytes != 0 ? options.bar0_bytes : std::bit_ceil(options.vram_bytes);
}

std::uint64_t visible_vram(const GpuOptions& options) {
  return std::min(bar0_size(options), options.vram_bytes);
}

base::Result<void> check(const GpuOptions& options) {
  const auto bad = [](const char* what) { return base::fail(base::Errc::kInvalidArgument, what); };
  if (options.vram_bytes == 0 || options.vram_bytes % kVramGranule != 0)
    return bad("VRAM size, not a multiple of 16 MiB");
  if (!std::has_single_bit(bar0_size(options)) || bar0_size(options) < base::kMiB)
    return bad("BAR 0 size, not a power of two of at least 1 MiB");
  if (options.xccs < 1 || options.xccs > 8) return bad("XCC count, not 1 to 8");
  if (options.mids < 1 || options.mids > 4) return bad("MID count, not 1 to 4");
  if (options.sdma_per_xcc < 1 || options.sdma_per_xcc > 2)
    return bad("SDMA instances an XCC, not 1 or 2");
  if (options.binary_major < 1 || options.binary_major > 2)
    return bad("major version of the discovery binary, not 1 or 2");
  if (options.revision > 0xFF) return bad("revision, more than 8 bits");
  return {};
}

// XCC j sits on AID j / 4; MMHUB k is on MID k (D20).
std::uint8_t xcc_node(unsigned xcc) {
  return static_cast<std::uint8_t>(8 * (xcc / kXccsAnAid) + 2 + xcc % kXccsAnAid);
}

}  // namespace

class Gpu::HostSide : public HostVram {
 public:
  explicit HostSide(Vram& vram) : vram_(vram) {}
  void host_read(std::uint64_t offset, std::span<std::byte> to) override {
    std::ranges::copy(vram_.cpu_view().subspan(offset, to.size()), to.begin());
  }
  void host_write(std::uint64_t offset, std::span<const std::byte> from) override {
    std::ranges::copy(from, vram_.cpu_view().subspan(offset).begin());
  }
  void flush_host_stores() override { vram_.hdp_flush(); }

 private:
  Vram& vram_;
};

class Gpu::SdmaDoorbells : public DoorbellConsumer {
 public:
  explicit SdmaDoorbells(const std::vector<std::unique_ptr<SdmaEngine>>& engines)
      : engines_(engines) {}
  bool doorbell(std::uint32_t dword, std::uint64_t value, bool wide) override {
    return std::ranges::any_of(
        engines_, [&](const auto& engine) { return engine->doorbell(dword, value, wide ? 8 : 4); });
  }

 private:
  const std::vector<std::unique_ptr<SdmaEngine>>& engines_;
};

class Gpu::NoFabric : public FabricPort {
 public:
  Outcome access(RemoteAccess&) override { return Outcome::kPeerLost; }
  std::span<const std::byte> source(std::uint64_t, std::uint64_t) override { return {}; }
  std::span<std::byte> target(std::uint64_t, std::uint64_t) override { return {}; }
  void stored(std::uint64_t, std::uint64_t) override {}
};

base::Result<std::unique_ptr<Gpu>> Gpu::create(const GpuOptions& options,
                                               const GpuSurroundings& surroundings) {
  if (auto checked = check(options); !checked)
    return base::fail_within(options.name, checked.error());
  VramOptions memory;
  memory.bytes = options.vram_bytes;
  memory.visible_bytes = visible_vram(options);
  memory.hdp_strict = options.hdp == HdpMode::kStrict;
  auto vram = Vram::create(memory, surroundings.clock);
  if (!vram) return base::fail_within(options.name, vram.error());
  auto doorbells = DoorbellPage::create(kDoorbellBarBytes);
  if (!doorbells) return base::fail_within(options.name, doorbells.error());
  std::unique_ptr<Gpu> gpu(new Gpu(options, surroundings, std::move(*vram), std::move(*doorbells)));
  if (auto finished = gpu->finish(); !finished)
    return base::fail_within(options.name, finished.error());
  return gpu;
}

Gpu::Gpu(const GpuOptions& options, const GpuSurroundings& surroundings, std::unique_ptr<Vram> vram,
         DoorbellPage doorbells)
    : options_(options),
      bases_(options),
      vram_(std::move(vram)),
      host_side_(std::make_unique<HostSide>(*vram_)),
      no_fabric_(std::make_unique<NoFabric>()),
      nbio_(std::make_unique<Nbio>(registers_, bases_, options_, *host_side_)),
      router_(*nbio_),
      interrupts_(
          std::make_unique<InterruptHandler>(registers_, bases_, options_, surroundings.clock)),
      context_{.registers = registers_,
               .interrupts = *interrupts_,
               .fabric = surroundings.fabric != nullptr ? *surroundings.fabric : *no_fabric_,
               .clock = surroundings.clock,
               .bus = [this] { return bus_; },
               .log = surroundings.log,
               .hooks = surroundings.hooks,
               .gpu = options.index,
               .seed = options.seed},
      doorbell_page_(std::move(doorbells)) {}

Gpu::~Gpu() {
  if (context_.hooks == nullptr) return;
  for (const std::string& name : scenario_names_) context_.hooks->remove(options_.index, name);
}

base::Result<void> Gpu::finish() {
  build_hubs();
  build_engines();
  write_discovery();
  add_scenarios();
  const std::uint32_t page = nbio_->flush_dword() & ~(RegisterPage::kDwords - 1);
  auto mapped = RegisterPage::create(kRegisterBarBytes, page, registers_);
  if (!mapped) return std::unexpected(mapped.error());
  register_page_ = std::make_unique<RegisterPage>(std::move(*mapped));
  if (options_.gone_after != 0) go_after(options_.gone_after);
  return {};
}

void Gpu::build_hubs() {
  VmHubConfig config;
  config.fb_base = kFbLocationBase;
  config.fb_offset = fb_offset(options_);
  for (unsigned j = 0; j < options_.xccs; ++j) {
    config.mmhub = false;
    config.index = j;
    config.node_id = xcc_node(j);
    config.base = bases_.at(Ip::kGc, j, 0);
    gfxhubs_.push_back(std::make_unique<VmHub>(config, context_, *vram_));
  }
  for (unsigned k = 0; k < options_.mids; ++k) {
    config.mmhub = true;
    config.index = 8 + k;
    config.node_id = static_cast<std::uint8_t>(8 * k);
    config.base = bases_.at(Ip::kMmhub, k, 2);
    mmhubs_.push_back(std::make_unique<VmHub>(config, context_, *vram_));
  }
}

void Gpu::build_engines() {
  for (unsigned j = 0; j < options_.xccs; ++j) {
    for (unsigned i = 0; i < options_.sdma_per_xcc; ++i) {
      SdmaConfig config;
      config.xcc = j;
      config.instance = i;
      config.node_id = xcc_node(j);
      config.gc0_base = bases_.at(Ip::kGc, j, 0);
      config.gc1_base = bases_.at(Ip::kGc, j, 1);
      config.stall =
          options_.stall == StallScope::kQueue ? SdmaStall::kQueue : SdmaStall::kInstance;
      sdma_.push_back(std::make_unique<SdmaEngine>(config, context_, *gfxhubs_[j]));
    }
  }
  LsdmaConfig config;
  config.base = bases_.at(Ip::kLsdma, 0, 0);
  lsdma_ = std::make_unique<Lsdma>(config, context_, *mmhubs_[0]);
  security_ = std::make_unique<SecurityProcessor>(registers_, bases_, options_, context_.clock,
                                                  *interrupts_);
  security_->set_address_space(*mmhubs_[0]);
  security_->set_reset_request([this] { reset(); });
  interrupts_->set_address_space(*mmhubs_[0]);
  sdma_doorbells_ = std::make_unique<SdmaDoorbells>(sdma_);
  router_.connect(DoorbellTarget::kInterrupts, *interrupts_);
  router_.connect(DoorbellTarget::kSdma, *sdma_doorbells_);
}

void Gpu::write_discovery() {
  const auto binary = build_discovery(options_, bases_);
  const std::uint64_t offset = discovery_offset(options_);
  host_side_->host_write(offset, binary);
  nbio_->set_discovery_scratch(offset, static_cast<std::uint32_t>(binary.size()));
}

PciIdentity Gpu::identity() const {
  PciIdentity identity;
  identity.revision = static_cast<std::uint8_t>(options_.revision);
  return identity;
}

std::uint64_t Gpu::bar_size(Bar bar) const {
  switch (bar) {
    case Bar::kVram:
      return bar0_size(options_);
    case Bar::kDoorbells:
      return kDoorbellBarBytes;
    case Bar::kRegisters:
      return kRegisterBarBytes;
  }
  return 0;
}

BarMemory Gpu::bar_memory(Bar bar) const {
  switch (bar) {
    case Bar::kVram:
      return {vram_->fd(), {{0, visible_vram(options_)}}};
    case Bar::kDoorbells:
      return {doorbell_page_.fd(), {{0, DoorbellPage::kBytes}}};
    case Bar::kRegisters:
      return {register_page_->fd(), {{register_page_->offset(), RegisterPage::kDwords * 4}}};
  }
  return {};
}

MsixLayout Gpu::msix() const {
  const std::uint32_t segment3 = bases_.at(Ip::kNbio, 0, 3);
  MsixLayout layout;
  if (options_.interrupts != Interrupts::kMsix) layout.vectors = 0;
  layout.table_offset = 4 * (segment3 + kMsixTable);
  layout.pba_offset = 4 * (segment3 + kMsixPending);
  return layout;
}

PciFeatures Gpu::features() const {
  return {options_.interrupts == Interrupts::kIntx,
          options_.function_reset != GpuOptions::Reset::kOff,
          options_.function_reset == GpuOptions::Reset::kDeaf};
}

void Gpu::attach(HostBus& bus) {
  bus_ = &bus;
  interrupts_->set_host(&bus);
}

void Gpu::detach() {
  bus_ = nullptr;
  interrupts_->set_host(nullptr);
}

// VRAM and the firmware's registers stay (D56).
void Gpu::reset() {
  set_link(false);
  registers_.reset();
  interrupts_->reset();
  security_->reset();
  for (auto& hub : gfxhubs_) hub->reset();
  for (auto& hub : mmhubs_) hub->reset();
  for (auto& engine : sdma_) engine->reset();
  lsdma_->reset();
  if (nht_ != nullptr) nht_->reset();
  if (gone_) return;
  register_page_->publish();
  set_link(true);
}

std::uint32_t Gpu::read_register(std::uint64_t offset) {
  count_to_the_end();
  return gone_ ? ~0u : registers_.read(static_cast<std::uint32_t>(offset / 4));
}

void Gpu::write_register(std::uint64_t offset, std::uint32_t value) {
  count_to_the_end();
  if (gone_) return;
  const auto dword = static_cast<std::uint32_t>(offset / 4);
  registers_.write(dword, value);
  // The SMN window reaches the mapped page too.
  if (register_page_->covers(dword) || dword == kData2Dword) register_page_->publish();
}

void Gpu::ring_doorbell(std::uint64_t offset, std::uint64_t value, unsigned width) {
  if (!gone_) router_.store(offset, value, width);
}

void Gpu::read_vram_bar(std::uint64_t offset, std::span<std::byte> to) {
  const bool readable = !gone_ && nbio_->host_reads_enabled() &&
                        base::fits(offset, to.size(), visible_vram(options_));
  if (readable)
    host_side_->host_read(offset, to);
  else
    std::ranges::fill(to, std::byte{0xFF});
}

void Gpu::write_vram_bar(std::uint64_t offset, std::span<const std::byte> from) {
  const bool writable = !gone_ && nbio_->host_writes_enabled() &&
                        base::fits(offset, from.size(), visible_vram(options_));
  if (writable) host_side_->host_write(offset, from);
}

// Doorbells are taken before the registers are looked at and rung after: a client that flushes and
// then rings has both seen in its order.
bool Gpu::look() {
  const auto& stores = doorbell_page_.take();
  if (gone_) {
    register_page_->fill_ones();
    return false;
  }
  const bool any = register_page_->look();
  for (const auto& store : stores) router_.store(store.offset, store.value, store.bytes);
  return any || !stores.empty();
}

bool Gpu::step() { return !gone_ && step_blocks(); }

bool Gpu::stored() const { return gone_ || doorbell_page_.stored() || register_page_->stored(); }

// SDMA and LSDMA share what a step may move. Whoever comes after the one that took the last of it
// is first next time.
bool Gpu::step_engines() {
  const std::size_t count = sdma_.size() + 1;
  std::size_t budget = step_bytes_;
  bool did = false;
  for (std::size_t i = 0; i < count && budget != 0; ++i) {
    const std::size_t engine = (first_engine_ + i) % count;
    did |= engine < sdma_.size() ? sdma_[engine]->step(budget) : lsdma_->step(budget);
    if (budget != 0) continue;
    first_engine_ = (engine + 1) % count;
  }
  return did;
}

// One piece of each block; interrupts last, so that what the others raised goes out with them.
bool Gpu::step_blocks() {
  bool did = security_->step();
  did |= step_engines();
  if (nht_ != nullptr) did |= nht_->step();
  did |= interrupts_->step();
  return did;
}

bool Gpu::waiting() const {
  return security_->waiting() || lsdma_->waiting() || interrupts_->waiting() ||
         (nht_ != nullptr && nht_->waiting()) ||
         std::ranges::any_of(sdma_, [](const auto& engine) { return engine->waiting(); });
}

std::uint16_t Gpu::accel_id() const {
  return static_cast<std::uint16_t>(security_->config().accel_id);
}

const PodConfig& Gpu::pod_config() const { return security_->config(); }

AddressMode Gpu::address_mode() const {
  return security_->config().addr_mode == 1 ? AddressMode::kIdent : AddressMode::kAlias;
}

// The doorbell space has bits 51:40 set; port and index are low bits of the address (D48).
Outcome Gpu::incoming(RemoteAccess& access) {
  if (!link_up()) return Outcome::kPeerLost;
  const bool enabled = security_->npa_enabled();
  if ((access.npa >> 40 & 0xFFF) != 0xFFF)
    return mmhubs_[0]->incoming(access, address_mode(), enabled);
  const bool word = access.kind == RemoteAccess::Kind::kWrite && access.write_from.size() == 4;
  if (!enabled || nht_ == nullptr || !word) return Outcome::kRefused;
  nht_->remote_doorbell(access.sender, access.npa >> 8 & 0xF, access.npa >> 6 & 3,
                        base::load<std::uint32_t>(access.write_from, 0));
  return Outcome::kOk;
}

bool Gpu::reachable() const { return link_up() && security_->npa_enabled(); }

std::span<const std::byte> Gpu::incoming_source(std::uint16_t sender, std::uint64_t npa,
                                                std::uint64_t bytes) {
  if (!reachable()) return {};
  return mmhubs_[0]->incoming_source(sender, npa, bytes, address_mode());
}

std::span<std::byte> Gpu::incoming_target(std::uint16_t sender, std::uint64_t npa,
                                          std::uint64_t bytes) {
  if (!reachable()) return {};
  return mmhubs_[0]->incoming_target(sender, npa, bytes, address_mode());
}

void Gpu::incoming_stored(std::uint16_t sender, std::uint64_t npa, std::uint64_t bytes) {
  if (reachable()) mmhubs_[0]->incoming_stored(sender, npa, bytes, address_mode());
}

void Gpu::set_link(bool up) {
  if (up == link_up_) return;
  link_up_ = up;
  if (link_observer_) link_observer_(up);
}

void Gpu::go_after(std::uint64_t accesses) { accesses_left_ = accesses; }

void Gpu::count_to_the_end() {
  if (!accesses_left_) return;
  if (*accesses_left_ == 0) return set_gone(true);
  --*accesses_left_;
}

void Gpu::set_gone(bool gone) {
  accesses_left_.reset();
  if (gone == gone_) return;
  gone_ = gone;
  if (gone)
    register_page_->fill_ones();
  else
    register_page_->publish();
  set_link(!gone);
}

}  // namespace gpusim
