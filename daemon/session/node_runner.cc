#include "daemon/session/node_runner.h"

#include <spdlog/spdlog.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>

namespace gpuumd {
namespace {

using fabric::Token;

// Write-backs raise no interrupt. They come within microseconds where the peer is awake; after that
// looking once in a while is enough.
constexpr Duration kEagerRecords = std::chrono::milliseconds(1);
constexpr Duration kLazyRecords = std::chrono::microseconds(500);
constexpr std::size_t kMetadataBytes = 12 * base::kKiB;

class SystemRandom final : public fabric::RandomSource {
 public:
  // Handles are capabilities: the kernel's generator, which cannot fail for 8 bytes once seeded.
  std::uint64_t next() override {
    std::uint64_t value = 0;
    while (::getrandom(&value, sizeof(value), 0) != sizeof(value)) {
    }
    return value;
  }
};

fabric::PodConfig pod_config(const psp::Config& config) {
  fabric::PodConfig out;
  out.accel_id = config.accel_id ? config.accel_id->value() : 0xFFFF'FFFF;
  std::memcpy(out.ppod_id.data(), config.ppod.id.data(), out.ppod_id.size());
  out.ppod_size = config.ppod.size;
  if (config.vpod) {
    out.vpod_id = config.vpod->id;
    out.vpod_size = config.vpod->size;
    for (std::uint16_t id = 0; id < psp::kMaxAccelerators; ++id)
      if (config.vpod->member(base::AccelId(id))) out.members.set(id);
  }
  out.addr_mode = config.address_mode;
  out.state = static_cast<fabric::ConfigState>(config.state);
  return out;
}

}  // namespace

NodeRunner::NodeRunner(Gpu& gpu, NodeClient& client)
    : gpu_(gpu),
      client_(client),
      random_(std::make_unique<SystemRandom>()),
      space_(gpu),
      firmware_(gpu.reactor(), gpu.topology().nht) {}

// ---- joining and leaving ----

void NodeRunner::start(Done done) {
  auto memory = FabricMemory::create(gpu_);
  if (!memory) return done(std::unexpected(memory.error()));
  memory_ = std::move(*memory);
  metadata_ = gpu_.permanent().take(kMetadataBytes, base::kPageSize);
  fabric::NodeConfig config;
  config.ring_buffer = memory_->rings();
  config.record_buffer = memory_->records();
  config.vram_base = gpu_.vram_map().fb_base();
  node_ = std::make_unique<fabric::Node>(config, *random_);
  gpu_.psp().get_interface_version([this, done = std::move(done)](
                                       base::Result<psp::InterfaceVersion> version) mutable {
    if (!version) return done(std::unexpected(version.error()));
    gpu_.psp().get_config([this, done = std::move(done)](base::Result<psp::Config> config) mutable {
      if (!config) return done(std::unexpected(config.error()));
      apply(*config, std::move(done));
    });
  });
}

void NodeRunner::apply(const psp::Config& config, Done done) {
  if (leaving_) return done(base::fail(base::Errc::kReset, "the daemon leaves the pod"));
  node_->apply_config(now(), expect(std::move(done)), pod_config(config));
  run_actions();
}

void NodeRunner::stop(Done done) {
  leaving_ = true;
  if (lost_ || !node_) return done({});
  node_->deactivate(now(), expect(std::move(done)));
  run_actions();
}

// The outcome is reported when it is known, not when the request was read (A26).
void NodeRunner::security_request(const psp::Request& request) {
  using Kind = psp::Request::Kind;
  const auto answer = [this, kind = request.kind](const base::Result<void>& result) {
    gpu_.psp().send_completion(kind, result ? 0 : 1, [](base::Result<void>) {});
  };
  if (request.category != psp::Request::Category::kCommand || !node_) return;
  if (request.kind == Kind::kPause) {
    node_->pause(now(), expect(Done(answer)));
    return run_actions();
  }
  if (request.kind == Kind::kResume) {
    node_->resume(now());
    run_actions();
    return answer({});
  }
  gpu_.psp().get_config([this, answer](base::Result<psp::Config> config) {
    if (!config) return answer(std::unexpected(config.error()));
    apply(*config, answer);
  });
}

void NodeRunner::message(std::uint32_t sender, const std::array<std::uint32_t, 4>& dwords) {
  if (node_) tell(fabric::MessageReceived{sender, dwords});
}

void NodeRunner::lose() {
  lost_ = true;
  timer_.cancel();
  for (auto& [token, completion] : std::exchange(completions_, {}))
    completion(base::fail(base::Errc::kDeviceLost, "fabric"));
}

// ---- requests ----

Token NodeRunner::expect(Imported done) {
  const Token token(next_token_++);
  completions_.emplace(token.value(), std::move(done));
  return token;
}

Token NodeRunner::expect(Done done) {
  return expect([done = std::move(done)](base::Result<fabric::ImportedMemory> result) mutable {
    if (!result) return done(std::unexpected(result.error()));
    done({});
  });
}

base::Result<fabric::Handle> NodeRunner::export_buffer(const fabric::ExportRequest& request) {
  auto handle = node_->export_buffer(request);
  run_actions();
  return handle;
}

void NodeRunner::revoke(const fabric::Handle& handle, Done done) {
  if (lost_) return done(base::fail(base::Errc::kDeviceLost, "revoke"));
  node_->revoke(now(), expect(std::move(done)), handle);
  run_actions();
}

void NodeRunner::import_handle(const fabric::Handle& handle, Imported done) {
  if (lost_) return done(base::fail(base::Errc::kDeviceLost, "import"));
  node_->import_handle(now(), expect(std::move(done)), handle);
  run_actions();
}

void NodeRunner::close_import(fabric::ImportId import) {
  (void)node_->close_import(now(), import);  // gone already: revoked meanwhile
  run_actions();
}

// ---- the node's actions ----

void NodeRunner::tell(const fabric::Event& event) {
  node_->handle(now(), event);
  run_actions();
}

void NodeRunner::run_actions() {
  if (running_actions_) return;  // the outer call takes what the inner one added
  running_actions_ = true;
  for (auto actions = node_->take_actions(); !actions.empty(); actions = node_->take_actions())
    for (auto& action : actions) std::visit([this](auto& one) { run(one); }, action);
  running_actions_ = false;
  arm_timer();
}

Done NodeRunner::op_done(fabric::OpId op) {
  return [this, op](base::Result<void> result) {
    outcome(result);
    tell(fabric::OpDone{op, std::move(result)});
  };
}

// LSDMA, the security processor or the firmware does not answer. That ends what is done with peers,
// and clients' own work goes on; but it may be that nothing answers.
void NodeRunner::outcome(const base::Result<void>& result) {
  if (result || result.error().code != base::Errc::kTimeout) return;
  if (const auto more = late_.admit(now()))
    spdlog::warn("{}: fabric: {} ({} more before)", gpu_.identity().name, result.error().message(),
                 *more);
  gpu_.look_for_reset();
}

void NodeRunner::run(fabric::PostStores& action) {
  records_since_ = now();
  memory_->post(*node_->layout(), action, op_done(action.op));
}

void NodeRunner::run(fabric::ReadRemote& action) {
  memory_->read(*node_->layout(), action,
                [this, op = action.op](base::Result<std::vector<std::byte>> bytes) {
                  if (!bytes) outcome(std::unexpected(bytes.error()));
                  tell(fabric::BytesRead{op, std::move(bytes)});
                });
}

void NodeRunner::run(fabric::UpdateNpa& action) { space_.update(action, op_done(action.op)); }

void NodeRunner::run(fabric::PinBuffer& action) {
  client_.pin_buffer(action.buffer,
                     [this, op = action.op](base::Result<std::vector<fabric::VramRun>> runs) {
                       tell(fabric::BufferPinned{op, std::move(runs)});
                     });
}

void NodeRunner::run(fabric::UnpinBuffer& action) { client_.unpin_buffer(action.buffer); }

void NodeRunner::run(fabric::DetachImport& action) {
  client_.detach_import(action.import, action.reason, op_done(action.op));
}

void NodeRunner::run(fabric::Complete& action) {
  auto node = completions_.extract(action.token.value());
  if (!node.empty()) node.mapped()(std::move(action.result));
}

void NodeRunner::run(fabric::SetNpaAccess& action) {
  gpu_.psp().set_npa(base::Vmid(vm_hub::kNpaContext), action.enable, op_done(action.op));
}

void NodeRunner::run(fabric::SetNpaVm& action) { space_.enable(action.enable, op_done(action.op)); }

void NodeRunner::run(fabric::ClearRings& action) {
  seen_.clear();
  memory_->clear(op_done(action.op));
}

void NodeRunner::run(fabric::LoadMetadata& action) {
  if (action.table.size() > metadata_->bytes)
    return op_done(action.op)(base::fail(base::Errc::kInvalidArgument, "metadata table"));
  std::memcpy(metadata_->cpu, action.table.data(), action.table.size());
  firmware_.load(gpu_.permanent().engine(*metadata_).at, action.data, op_done(action.op));
}

void NodeRunner::run(fabric::HaltFirmware& action) { firmware_.halt(op_done(action.op)); }

void NodeRunner::run(fabric::MapPeers& action) {
  memory_->map_peers(*node_->layout(), action, op_done(action.op));
}

void NodeRunner::run(fabric::Report& action) { client_.notice(action); }

// ---- polling ----

bool NodeRunner::poll_records() {
  const auto awaited = node_->awaited_records();
  if (awaited.empty()) return false;
  const auto layout = node_->layout();
  if (!layout) return false;
  for (const auto& name : awaited) {
    const auto record = memory_->record(*layout, name);
    auto& seen = seen_[{name.peer.value(), name.ring == fabric::RingType::kInterrupt}];
    if (record == seen) continue;
    seen = record;
    records_since_ = now();
    tell(fabric::RecordRead{name.peer, name.ring, record});
  }
  return now() - records_since_ < kEagerRecords;
}

bool NodeRunner::poll() {
  if (!node_ || lost_) return false;
  bool any = poll_records();
  if (const auto next = node_->next_deadline(); next && *next <= now()) {
    node_->tick(now());
    run_actions();
    any = true;
  }
  return any;
}

// So that a sleeping reactor wakes for the protocol's deadlines and looks at records.
void NodeRunner::arm_timer() {
  if (lost_) return;
  auto next = node_->next_deadline();
  if (!node_->awaited_records().empty())
    next = std::min(next.value_or(TimePoint::max()), now() + kLazyRecords);
  if (!next)
    timer_.cancel();
  else
    timer_ = gpu_.reactor().after(*next - now(), "fabric", [this] {
      poll();
      arm_timer();
    });
}

}  // namespace gpuumd
