// Exports and imports of one GPU: the daemon's glue between fabric::Node, which decides, and the
// hardware, clients' buffers and VMs, which it acts on (docs/fabric.md). Device thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/result.h"
#include "daemon/gpu/bringup/psp_records.h"
#include "daemon/gpu/device/gpu.h"
#include "daemon/ipc/requests.h"
#include "daemon/session/buffer_store.h"
#include "fabric/node.h"

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

class Exports {
 public:
  Exports(Gpu& gpu, BufferStore& buffers, ImportOwner& owner, const ExportOptions& options);
  ~Exports();

  // Reads the pod configuration from the security processor and joins. `done` when ACTIVE, or when
  // there is no pod to join (state() says).
  void start(Done done);
  // Leaves: nothing of this GPU can be reached over the fabric any more.
  void stop(Done done);

  // The same handle however often (UAL-4). kUnsupported (no pod; not VRAM), kLimit.
  void export_buffer(BufferRef buffer, DoneWith<ExportHandle> done);
  // kNotFound when it is not exported. `done` when no importer can reach it.
  void revoke(Buffer& buffer, Done done);
  void import(const ExportHandle& handle, uid_t uid, Duration timeout, DoneWith<BufferRef> done);
  // The last reference to a buffer has gone: an export is revoked, an import released, then `free`.
  void last_reference(Buffer& buffer, std::move_only_function<void()> free);

  void message(std::uint32_t sender, const std::array<std::uint32_t, 4>& dwords);
  void security_request(const psp::Request& request);
  void device_lost();

  // Why a remote access to page `npa_page` (NPA >> 12) was refused: waits a moment for the revoke
  // that may explain it. `explained` with kRevoked, kPeerLost or kRefused.
  void explain_refusal(std::uint64_t npa_page, base::Errc reported,
                       std::move_only_function<void(base::Errc)> explained);

  bool poll();
  // Null before start().
  const fabric::Node* node() const;

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace gpuumd
