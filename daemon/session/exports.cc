#include "daemon/session/exports.h"

#include <sys/random.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/gpu/device/nht_firmware.h"
#include "daemon/session/fabric_memory.h"
#include "daemon/session/npa_space.h"

namespace gpuumd {
namespace {

using fabric::Token;

// A refusal reaches us before the REVOKE that explains it: the exporter cuts the memory off first
// and tells afterwards. How long the reason may take.
constexpr Duration kExplainDeadline = std::chrono::milliseconds(500);
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

class Exports::Core {
 public:
  Core(Gpu& gpu, BufferStore& buffers, ImportOwner& owner, const ExportOptions& options)
      : gpu_(gpu),
        buffers_(buffers),
        owner_(owner),
        options_(options),
        space_(gpu),
        firmware_(gpu.reactor(), gpu.topology().nht) {}

  void start(Done done);
  void stop(Done done);
  void export_buffer(BufferRef buffer, DoneWith<ExportHandle> done);
  void revoke(Buffer& buffer, Done done);
  void import(const ExportHandle& handle, uid_t uid, Duration timeout, DoneWith<BufferRef> done);
  void last_reference(Buffer& buffer, std::move_only_function<void()> free);
  void message(std::uint32_t sender, const std::array<std::uint32_t, 4>& dwords);
  void security_request(const psp::Request& request);
  void device_lost();
  void explain_refusal(std::uint64_t npa_page, base::Errc reported,
                       std::move_only_function<void(base::Errc)> explained);
  bool poll();
  const fabric::Node* node() const { return node_.get(); }

 private:
  using Completion = std::move_only_function<void(base::Result<fabric::ImportedMemory>)>;
  struct Imported {
    ObjectId buffer;
    fabric::ImportId import;
    base::Npa at;
    std::uint64_t bytes = 0;
    unsigned references = 0;  // that the node counts
  };
  struct Explanation {
    ObjectId buffer;
    base::Errc reported;
    TimePoint deadline;
    std::move_only_function<void(base::Errc)> explained;
  };

  TimePoint now() const { return gpu_.reactor().now(); }
  Token expect(Completion done);
  void apply(const psp::Config& config, Done done);
  void tell(const fabric::Event& event);
  void run_actions();
  Done op_done(fabric::OpId op);
  void run(fabric::PostStores& action);
  void run(fabric::ReadRemote& action);
  void run(fabric::UpdateNpa& action);
  void run(fabric::PinBuffer& action);
  void run(fabric::UnpinBuffer& action);
  void run(fabric::DetachImport& action);
  void run(fabric::Complete& action);
  void run(fabric::SetNpaAccess& action);
  void run(fabric::SetNpaVm& action);
  void run(fabric::ClearRings& action);
  void run(fabric::LoadMetadata& action);
  void run(fabric::HaltFirmware& action);
  void run(fabric::MapPeers& action);
  void run(fabric::Report& action);
  void imported(const fabric::ImportedMemory& memory, uid_t uid, DoneWith<BufferRef> done);
  bool poll_records();
  bool poll_explanations();
  void arm_timer();

  Gpu& gpu_;
  BufferStore& buffers_;
  ImportOwner& owner_;
  ExportOptions options_;
  SystemRandom random_;
  std::unique_ptr<FabricMemory> memory_;
  std::unique_ptr<fabric::Node> node_;
  NpaSpace space_;
  NhtFirmware firmware_;
  std::optional<PermanentMemory::Piece> metadata_;
  std::uint64_t next_token_ = 1;
  std::unordered_map<std::uint64_t, Completion> completions_;   // by Token
  std::unordered_map<std::uint64_t, fabric::Handle> exported_;  // by buffer
  std::unordered_map<std::uint64_t, Imported> imports_;         // by ImportId
  std::map<std::pair<std::uint16_t, bool>, fabric::WriteBackRecord> seen_;
  std::vector<Explanation> explanations_;
  TimePoint records_since_{};
  bool lost_ = false;
  bool running_actions_ = false;
  Registration timer_;
};

// ---- joining and leaving ----

void Exports::Core::start(Done done) {
  auto memory = FabricMemory::create(gpu_);
  if (!memory) return done(std::unexpected(memory.error()));
  memory_ = std::move(*memory);
  metadata_ = gpu_.permanent().take(kMetadataBytes, base::kPageSize);
  fabric::NodeConfig config;
  config.ring_buffer = memory_->rings();
  config.record_buffer = memory_->records();
  config.vram_base = gpu_.vram_map().fb_base();
  node_ = std::make_unique<fabric::Node>(config, random_);
  gpu_.psp().get_interface_version([this, done = std::move(done)](
                                       base::Result<psp::InterfaceVersion> version) mutable {
    if (!version) return done(std::unexpected(version.error()));
    gpu_.psp().get_config([this, done = std::move(done)](base::Result<psp::Config> config) mutable {
      if (!config) return done(std::unexpected(config.error()));
      apply(*config, std::move(done));
    });
  });
}

void Exports::Core::apply(const psp::Config& config, Done done) {
  const auto token = expect([done = std::move(done)](auto result) mutable {
    if (!result) return done(std::unexpected(result.error()));
    done({});
  });
  node_->apply_config(now(), token, pod_config(config));
  run_actions();
}

void Exports::Core::stop(Done done) {
  if (lost_ || !node_) return done({});
  const auto token = expect([done = std::move(done)](auto result) mutable {
    if (!result) return done(std::unexpected(result.error()));
    done({});
  });
  node_->deactivate(now(), token);
  run_actions();
}

// The outcome is reported when it is known, not when the request was read (A26).
void Exports::Core::security_request(const psp::Request& request) {
  using Kind = psp::Request::Kind;
  const auto answer = [this, kind = request.kind](const base::Result<void>& result) {
    gpu_.psp().send_completion(kind, result ? 0 : 1, [](base::Result<void>) {});
  };
  if (request.category != psp::Request::Category::kCommand || !node_) return;
  if (request.kind == Kind::kPause) {
    node_->pause(now(), expect([answer](auto result) {
                   answer(result ? base::Result<void>() : std::unexpected(result.error()));
                 }));
    return run_actions();
  }
  if (request.kind == Kind::kResume) {
    node_->resume(now());
    run_actions();
    return answer({});
  }
  gpu_.psp().get_config([this, answer](base::Result<psp::Config> config) {
    if (!config) return answer(std::unexpected(config.error()));
    apply(*config, [answer](base::Result<void> result) { answer(result); });
  });
}

// ---- requests ----

Token Exports::Core::expect(Completion done) {
  const Token token(next_token_++);
  completions_.emplace(token.value(), std::move(done));
  return token;
}

void Exports::Core::export_buffer(BufferRef buffer, DoneWith<ExportHandle> done) {
  if (buffer->kind() != BufferKind::kVram)
    return done(base::fail(base::Errc::kUnsupported, "only VRAM buffers can be exported"));
  auto handle = node_->export_buffer(
      {fabric::BufferId(buffer->id().value()), buffer->bytes() / base::kPageSize, std::nullopt});
  run_actions();
  if (!handle) return done(std::unexpected(handle.error()));
  exported_.insert_or_assign(buffer->id().value(), *handle);
  done(ExportHandle{handle->lo, handle->hi});
}

void Exports::Core::revoke(Buffer& buffer, Done done) {
  auto node = exported_.extract(buffer.id().value());
  if (node.empty()) return done(base::fail(base::Errc::kNotFound, "buffer is not exported"));
  if (lost_) return done(base::fail(base::Errc::kDeviceLost, "revoke"));
  node_->revoke(now(), expect([done = std::move(done)](auto result) mutable {
                  if (!result) return done(std::unexpected(result.error()));
                  done({});
                }),
                node.mapped());
  run_actions();
}

void Exports::Core::last_reference(Buffer& buffer, std::move_only_function<void()> free) {
  if (lost_) return free();
  if (buffer.kind() == BufferKind::kImport) {
    const auto it = std::ranges::find_if(
        imports_, [&](const auto& entry) { return entry.second.buffer == buffer.id(); });
    if (it != imports_.end()) {
      const auto import = it->second.import;
      for (auto n = it->second.references; n > 0; --n)
        (void)node_->close_import(now(), import);  // gone already: revoked meanwhile
      imports_.erase(import.value());
      run_actions();
    }
    return free();
  }
  if (!exported_.contains(buffer.id().value())) return free();
  // Whether the peers gave it up or not: what is still pinned goes into quarantine.
  revoke(buffer, [free = std::move(free)](base::Result<void>) mutable { free(); });
}

void Exports::Core::import(const ExportHandle& wanted, uid_t uid, Duration timeout,
                           DoneWith<BufferRef> done) {
  if (lost_) return done(base::fail(base::Errc::kDeviceLost, "import"));
  const fabric::Handle handle{wanted.lo, wanted.hi};
  if (const auto own = node_->find_export(handle)) {
    if (!options_.same_host)
      return done(base::fail(base::Errc::kInvalidArgument, "handle of this GPU's own memory"));
    auto* buffer = buffers_.find(ObjectId(own->buffer.value()));
    if (buffer == nullptr || !buffer->referenced())  // it is being taken back
      return done(base::fail(base::Errc::kNotFound, "exported buffer"));
    return done(BufferRef(*buffer));
  }
  // The caller's deadline may be shorter than the protocol's; what comes later is given back.
  auto answer = std::make_shared<std::optional<DoneWith<BufferRef>>>(std::move(done));
  auto timer = std::make_shared<Registration>();
  *timer = gpu_.reactor().after(timeout, "import", [answer] {
    if (auto done = std::exchange(*answer, std::nullopt))
      (*done)(base::fail(base::Errc::kTimeout, "import"));
  });
  const auto token =
      expect([this, uid, answer, timer](base::Result<fabric::ImportedMemory> result) mutable {
        timer->cancel();
        auto done = std::exchange(*answer, std::nullopt);
        if (!done) {
          if (result) (void)node_->close_import(now(), result->import);
          return;
        }
        if (!result) return (*done)(std::unexpected(result.error()));
        imported(*result, uid, std::move(*done));
      });
  node_->import_handle(now(), token, handle);
  run_actions();
}

// The same handle is the same object while it lives (UAL-4).
void Exports::Core::imported(const fabric::ImportedMemory& memory, uid_t uid,
                             DoneWith<BufferRef> done) {
  auto& entry = imports_[memory.import.value()];
  ++entry.references;
  auto* buffer = entry.references > 1 ? buffers_.find(entry.buffer) : nullptr;
  if (buffer != nullptr) return done(BufferRef(*buffer));
  const auto bytes = memory.pages * base::kPageSize;
  auto made = buffers_.create_import(owner_.next_object_id(), {memory.import.value(), memory.at},
                                     bytes, uid);
  entry.buffer = made->id();
  entry.import = memory.import;
  entry.at = memory.at;
  entry.bytes = bytes;
  done(std::move(made));
}

void Exports::Core::message(std::uint32_t sender, const std::array<std::uint32_t, 4>& dwords) {
  if (node_) tell(fabric::MessageReceived{sender, dwords});
}

void Exports::Core::explain_refusal(std::uint64_t npa_page, base::Errc reported,
                                    std::move_only_function<void(base::Errc)> explained) {
  if (lost_) return explained(base::Errc::kDeviceLost);
  const base::Npa at(npa_page * base::kPageSize);
  for (const auto& [id, entry] : imports_) {
    if (at < entry.at || entry.at + entry.bytes <= at) continue;
    explanations_.push_back(
        {entry.buffer, reported, now() + kExplainDeadline, std::move(explained)});
    return;
  }
  // Of an import that has been taken down already.
  explained(reported == base::Errc::kRefused ? base::Errc::kRevoked : reported);
}

// Nobody tells the node the time any more, so nothing that is under way would end.
void Exports::Core::device_lost() {
  lost_ = true;
  timer_.cancel();
  for (auto& [token, completion] : std::exchange(completions_, {}))
    completion(base::fail(base::Errc::kDeviceLost, "fabric"));
  for (auto& waiting : std::exchange(explanations_, {})) waiting.explained(base::Errc::kDeviceLost);
}

// ---- the node's actions ----

void Exports::Core::tell(const fabric::Event& event) {
  node_->handle(now(), event);
  run_actions();
}

void Exports::Core::run_actions() {
  if (running_actions_) return;  // the outer call takes what the inner one added
  running_actions_ = true;
  for (auto actions = node_->take_actions(); !actions.empty(); actions = node_->take_actions())
    for (auto& action : actions) std::visit([this](auto& one) { run(one); }, action);
  running_actions_ = false;
  arm_timer();
}

Done Exports::Core::op_done(fabric::OpId op) {
  return [this, op](base::Result<void> result) { tell(fabric::OpDone{op, std::move(result)}); };
}

void Exports::Core::run(fabric::PostStores& action) {
  records_since_ = now();
  memory_->post(*node_->layout(), action, op_done(action.op));
}

void Exports::Core::run(fabric::ReadRemote& action) {
  memory_->read(*node_->layout(), action,
                [this, op = action.op](base::Result<std::vector<std::byte>> bytes) {
                  tell(fabric::BytesRead{op, std::move(bytes)});
                });
}

void Exports::Core::run(fabric::UpdateNpa& action) { space_.update(action, op_done(action.op)); }

void Exports::Core::run(fabric::PinBuffer& action) {
  auto* buffer = buffers_.find(ObjectId(action.buffer.value()));
  if (buffer == nullptr || !buffer->referenced())
    return tell(fabric::BufferPinned{action.op, base::fail(base::Errc::kNotFound, "buffer")});
  buffers_.pin(*buffer);
  BufferRef kept(*buffer);
  buffers_.make_present(kept, 0, buffer->bytes(),
                        [this, op = action.op, kept](base::Result<void> present) {
                          if (!present) {
                            buffers_.unpin(*kept);
                            return tell(fabric::BufferPinned{op, std::unexpected(present.error())});
                          }
                          std::vector<fabric::VramRun> runs;
                          for (const auto& run : kept->runs(0, kept->bytes()))
                            runs.push_back({run.vram_offset(), run.pages()});
                          tell(fabric::BufferPinned{op, std::move(runs)});
                        });
}

void Exports::Core::run(fabric::UnpinBuffer& action) {
  if (auto* buffer = buffers_.find(ObjectId(action.buffer.value()))) buffers_.unpin(*buffer);
}

void Exports::Core::run(fabric::DetachImport& action) {
  const auto it = imports_.find(action.import.value());
  auto* buffer = it == imports_.end() ? nullptr : buffers_.find(it->second.buffer);
  if (buffer == nullptr) return op_done(action.op)({});
  owner_.detach_import(*buffer, action.reason, op_done(action.op));
}

void Exports::Core::run(fabric::Complete& action) {
  auto node = completions_.extract(action.token.value());
  if (!node.empty()) node.mapped()(std::move(action.result));
}

void Exports::Core::run(fabric::SetNpaAccess& action) {
  gpu_.psp().set_npa(base::Vmid(vm_hub::kNpaContext), action.enable, op_done(action.op));
}

void Exports::Core::run(fabric::SetNpaVm& action) {
  space_.enable(action.enable, op_done(action.op));
}

void Exports::Core::run(fabric::ClearRings& action) {
  seen_.clear();
  memory_->clear(op_done(action.op));
}

void Exports::Core::run(fabric::LoadMetadata& action) {
  if (action.table.size() > metadata_->bytes)
    return op_done(action.op)(base::fail(base::Errc::kInvalidArgument, "metadata table"));
  std::memcpy(metadata_->cpu, action.table.data(), action.table.size());
  firmware_.load(gpu_.permanent().engine(*metadata_).at, action.data, op_done(action.op));
}

void Exports::Core::run(fabric::HaltFirmware& action) { firmware_.halt(op_done(action.op)); }

void Exports::Core::run(fabric::MapPeers& action) {
  memory_->map_peers(*node_->layout(), action, op_done(action.op));
}

void Exports::Core::run(fabric::Report& action) {
  if (action.notice == fabric::Notice::kPeerUp) owner_.peer_changed(action.peer, true);
  if (action.notice == fabric::Notice::kPeerDown) owner_.peer_changed(action.peer, false);
  if (action.notice == fabric::Notice::kExportGone)
    std::erase_if(exported_, [&](const auto& entry) { return entry.second == action.handle; });
}

// ---- polling ----

bool Exports::Core::poll_records() {
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

bool Exports::Core::poll_explanations() {
  if (explanations_.empty()) return false;
  std::vector<std::pair<std::move_only_function<void(base::Errc)>, base::Errc>> ready;
  std::erase_if(explanations_, [&](Explanation& waiting) {
    const auto* buffer = buffers_.find(waiting.buffer);
    const auto gone = buffer != nullptr ? buffer->gone() : base::Errc::kRevoked;
    if (!gone && now() < waiting.deadline) return false;
    ready.emplace_back(std::move(waiting.explained), gone.value_or(waiting.reported));
    return true;
  });
  for (auto& [explained, why] : ready) explained(why);
  return !ready.empty();
}

bool Exports::Core::poll() {
  if (!node_ || lost_) return false;
  bool any = poll_records();
  any |= poll_explanations();
  if (const auto next = node_->next_deadline(); next && *next <= now()) {
    node_->tick(now());
    run_actions();
    any = true;
  }
  return any;
}

// So that a sleeping reactor wakes for the protocol's deadlines and looks at records.
void Exports::Core::arm_timer() {
  if (lost_) return;
  auto next = node_->next_deadline();
  if (!node_->awaited_records().empty() || !explanations_.empty())
    next = std::min(next.value_or(TimePoint::max()), now() + kLazyRecords);
  if (!next)
    timer_.cancel();
  else
    timer_ = gpu_.reactor().after(*next - now(), "fabric", [this] {
      poll();
      arm_timer();
    });
}

// ---- Exports ----

Exports::Exports(Gpu& gpu, BufferStore& buffers, ImportOwner& owner, const ExportOptions& options)
    : core_(std::make_unique<Core>(gpu, buffers, owner, options)) {}
Exports::~Exports() = default;

void Exports::start(Done done) { core_->start(std::move(done)); }
void Exports::stop(Done done) { core_->stop(std::move(done)); }
void Exports::export_buffer(BufferRef buffer, DoneWith<ExportHandle> done) {
  core_->export_buffer(std::move(buffer), std::move(done));
}
void Exports::revoke(Buffer& buffer, Done done) { core_->revoke(buffer, std::move(done)); }
void Exports::import(const ExportHandle& handle, uid_t uid, Duration timeout,
                     DoneWith<BufferRef> done) {
  core_->import(handle, uid, timeout, std::move(done));
}
void Exports::last_reference(Buffer& buffer, std::move_only_function<void()> free) {
  core_->last_reference(buffer, std::move(free));
}
void Exports::message(std::uint32_t sender, const std::array<std::uint32_t, 4>& dwords) {
  core_->message(sender, dwords);
}
void Exports::security_request(const psp::Request& request) { core_->security_request(request); }
void Exports::device_lost() { core_->device_lost(); }
void Exports::explain_refusal(std::uint64_t npa_page, base::Errc reported,
                              std::move_only_function<void(base::Errc)> explained) {
  core_->explain_refusal(npa_page, reported, std::move(explained));
}
bool Exports::poll() { return core_->poll(); }
const fabric::Node* Exports::node() const { return core_->node(); }

}  // namespace gpuumd
