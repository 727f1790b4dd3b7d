#include "daemon/session/exports.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

namespace gpuumd {
namespace {

// A refusal reaches us before the REVOKE that explains it: the exporter cuts the memory off first
// and tells afterwards. How long the reason may take.
constexpr Duration kExplainDeadline = std::chrono::milliseconds(500);

}  // namespace

Exports::Exports(Gpu& gpu, BufferStore& buffers, ImportOwner& owner, const ExportOptions& options)
    : gpu_(gpu), buffers_(buffers), owner_(owner), options_(options), runner_(gpu, *this) {}

void Exports::device_lost() {
  runner_.lose();
  for (auto& waiting : std::exchange(explanations_, {})) waiting.explained(base::Errc::kDeviceLost);
}

bool Exports::poll() {
  bool any = runner_.poll();
  any |= explain();
  return any;
}

// ---- exports ----

void Exports::export_buffer(BufferRef buffer, DoneWith<ExportHandle> done) {
  if (buffer->kind() != BufferKind::kVram)
    return done(base::fail(base::Errc::kUnsupported, "only VRAM buffers can be exported"));
  auto handle = runner_.export_buffer(
      {fabric::BufferId(buffer->id().value()), buffer->bytes() / base::kPageSize, std::nullopt});
  if (!handle) return done(std::unexpected(handle.error()));
  exported_.insert_or_assign(buffer->id().value(), *handle);
  done(ExportHandle{handle->lo, handle->hi});
}

void Exports::revoke(Buffer& buffer, Done done) {
  const auto node = exported_.extract(buffer.id().value());
  if (node.empty()) return done(base::fail(base::Errc::kNotFound, "buffer is not exported"));
  runner_.revoke(node.mapped(), std::move(done));
}

void Exports::last_reference(Buffer& buffer, std::move_only_function<void()> free) {
  if (runner_.lost()) return free();
  if (buffer.kind() == BufferKind::kImport) {
    release_import(buffer);
    return free();
  }
  if (!exported_.contains(buffer.id().value())) return free();
  // Whether the peers gave it up or not: what is still pinned goes into quarantine.
  revoke(buffer, [free = std::move(free)](base::Result<void>) mutable { free(); });
}

void Exports::pin_buffer(fabric::BufferId id, DoneWith<std::vector<fabric::VramRun>> done) {
  auto* buffer = buffers_.find(ObjectId(id.value()));
  if (buffer == nullptr || !buffer->referenced())
    return done(base::fail(base::Errc::kNotFound, "buffer"));
  buffers_.pin(*buffer);
  BufferRef kept(*buffer);
  buffers_.make_present(kept, 0, buffer->bytes(),
                        [this, kept, done = std::move(done)](base::Result<void> present) mutable {
                          if (!present) {
                            buffers_.unpin(*kept);
                            return done(std::unexpected(present.error()));
                          }
                          std::vector<fabric::VramRun> runs;
                          for (const auto& run : kept->runs(0, kept->bytes()))
                            runs.push_back({run.vram_offset(), run.pages()});
                          done(std::move(runs));
                        });
}

void Exports::unpin_buffer(fabric::BufferId id) {
  if (auto* buffer = buffers_.find(ObjectId(id.value()))) buffers_.unpin(*buffer);
}

void Exports::notice(const fabric::Report& what) {
  using enum fabric::Notice;
  if (what.notice == kPeerUp) owner_.peer_changed(what.peer, true);
  if (what.notice == kPeerDown) owner_.peer_changed(what.peer, false);
  if (what.notice == kExportGone)
    std::erase_if(exported_, [&](const auto& entry) { return entry.second == what.handle; });
}

// ---- imports ----

void Exports::import(const ExportHandle& wanted, uid_t uid, Duration timeout,
                     DoneWith<BufferRef> done) {
  const fabric::Handle handle{wanted.lo, wanted.hi};
  if (const auto own = node()->find_export(handle)) return import_own(*own, std::move(done));
  // The caller's deadline may be shorter than the protocol's; what comes later is given back.
  auto answer = std::make_shared<std::optional<DoneWith<BufferRef>>>(std::move(done));
  auto timer = std::make_shared<Registration>();
  *timer = gpu_.reactor().after(timeout, "import", [answer] {
    if (auto done = std::exchange(*answer, std::nullopt))
      (*done)(base::fail(base::Errc::kTimeout, "import"));
  });
  runner_.import_handle(
      handle, [this, uid, answer, timer](base::Result<fabric::ImportedMemory> result) mutable {
        timer->cancel();
        auto done = std::exchange(*answer, std::nullopt);
        if (!done) {
          if (result) runner_.close_import(result->import);
          return;
        }
        if (!result) return (*done)(std::unexpected(result.error()));
        imported(*result, uid, std::move(*done));
      });
}

void Exports::import_own(const fabric::ExportInfo& own, DoneWith<BufferRef> done) {
  if (!options_.same_host)
    return done(base::fail(base::Errc::kInvalidArgument, "handle of this GPU's own memory"));
  auto* buffer = buffers_.find(ObjectId(own.buffer.value()));
  if (buffer == nullptr || !buffer->referenced())  // it is being taken back
    return done(base::fail(base::Errc::kNotFound, "exported buffer"));
  done(BufferRef(*buffer));
}

// The same handle is the same object while it lives (UAL-4).
void Exports::imported(const fabric::ImportedMemory& memory, uid_t uid, DoneWith<BufferRef> done) {
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

void Exports::release_import(const Buffer& buffer) {
  const auto node = imports_.extract(buffer.remote()->import);
  if (node.empty()) return;
  for (auto n = node.mapped().references; n > 0; --n) runner_.close_import(node.mapped().import);
}

void Exports::detach_import(fabric::ImportId import, base::Errc why, Done done) {
  const auto it = imports_.find(import.value());
  auto* buffer = it == imports_.end() ? nullptr : buffers_.find(it->second.buffer);
  if (buffer == nullptr) return done({});
  owner_.detach_import(*buffer, why, std::move(done));
}

// ---- refusals ----

void Exports::explain_refusal(std::uint64_t npa_page, base::Errc reported,
                              std::move_only_function<void(base::Errc)> explained) {
  if (runner_.lost()) return explained(base::Errc::kDeviceLost);
  const base::Npa at(npa_page * base::kPageSize);
  for (const auto& [id, entry] : imports_) {
    if (at < entry.at || entry.at + entry.bytes <= at) continue;
    auto timer = gpu_.reactor().after(kExplainDeadline, "refusal", [this] { explain(); });
    explanations_.push_back({entry.buffer, reported, gpu_.reactor().now() + kExplainDeadline,
                             std::move(explained), std::move(timer)});
    return;
  }
  // Of an import that has been taken down already.
  explained(reported == base::Errc::kRefused ? base::Errc::kRevoked : reported);
}

bool Exports::explain() {
  if (explanations_.empty()) return false;
  std::vector<std::pair<Explanation, base::Errc>> ready;
  std::erase_if(explanations_, [&](Explanation& waiting) {
    const auto* buffer = buffers_.find(waiting.buffer);
    const auto gone = buffer != nullptr ? buffer->gone() : base::Errc::kRevoked;
    if (!gone && gpu_.reactor().now() < waiting.deadline) return false;
    const auto why = gone.value_or(waiting.reported);
    ready.emplace_back(std::move(waiting), why);
    return true;
  });
  for (auto& [waiting, why] : ready) waiting.explained(why);
  return !ready.empty();
}

}  // namespace gpuumd
