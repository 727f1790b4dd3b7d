// Exports and imports of one GPU: which buffer stands for which handle, and what clients are told
// when that ends. fabric::Node decides, NodeRunner talks to the hardware (docs/fabric.md). Device
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "daemon/ipc/requests.h"
#include "daemon/session/buffer_store.h"
#include "daemon/session/node_runner.h"

namespace gpuumd {

struct ExportOptions {
  bool same_host = true;  // handles of GPUs of this daemon are resolved without the fabric
};

// What the glue needs of the owner of VMs and sessions.
class ImportOwner {
 public:
  virtual ~ImportOwner() = default;
  // Unmaps every mapping of an import everywhere, tells its sessions `why`; `done` when no engine
  // can reach it any more.
  virtual void detach_import(Buffer& buffer, base::Errc why, Done done) = 0;
  virtual void peer_changed(base::AccelId peer, bool up) = 0;
  virtual ObjectId next_object_id() = 0;
};

class Exports final : private NodeClient {
 public:
  Exports(Gpu& gpu, BufferStore& buffers, ImportOwner& owner, const ExportOptions& options);

  // Joining, leaving, and what the firmwares say: NodeRunner.
  void start(Done done) { runner_.start(std::move(done)); }
  void stop(Done done) { runner_.stop(std::move(done)); }
  void message(std::uint32_t sender, const std::array<std::uint32_t, 4>& dwords) {
    runner_.message(sender, dwords);
  }
  void security_request(const psp::Request& request) { runner_.security_request(request); }
  // All that is under way ends with kDeviceLost.
  void device_lost();

  // The same handle however often (UAL-4). kUnsupported (no pod; not VRAM), kLimit.
  void export_buffer(BufferRef buffer, DoneWith<ExportHandle> done);
  // kNotFound when it is not exported. `done` when no importer can reach it.
  void revoke(Buffer& buffer, Done done);
  void import(const ExportHandle& handle, uid_t uid, Duration timeout, DoneWith<BufferRef> done);
  // The last reference to a buffer has gone: an export is revoked, an import released, then `free`.
  void last_reference(Buffer& buffer, std::move_only_function<void()> free);

  // Why a remote access to page `npa_page` (NPA >> 12) was refused: waits a moment for the revoke
  // that may explain it. `explained` with kRevoked, kPeerLost, kRefused or kDeviceLost.
  void explain_refusal(std::uint64_t npa_page, base::Errc reported,
                       std::move_only_function<void(base::Errc)> explained);

  bool poll();
  // Null before start().
  const fabric::Node* node() const { return runner_.node(); }

 private:
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
    Registration timer;
  };

  // NodeClient
  void pin_buffer(fabric::BufferId buffer, DoneWith<std::vector<fabric::VramRun>> done) override;
  void unpin_buffer(fabric::BufferId buffer) override;
  void detach_import(fabric::ImportId import, base::Errc why, Done done) override;
  void notice(const fabric::Report& what) override;

  void import_own(const fabric::ExportInfo& own, DoneWith<BufferRef> done);
  void imported(const fabric::ImportedMemory& memory, uid_t uid, DoneWith<BufferRef> done);
  void release_import(const Buffer& buffer);
  bool explain();

  Gpu& gpu_;
  BufferStore& buffers_;
  ImportOwner& owner_;
  ExportOptions options_;
  NodeRunner runner_;
  std::unordered_map<std::uint64_t, fabric::Handle> exported_;  // by buffer
  std::unordered_map<std::uint64_t, Imported> imports_;         // by ImportId
  std::vector<Explanation> explanations_;
};

}  // namespace gpuumd
