// Runs this GPU's fabric::Node on the hardware: gives it time, messages and write-back records, and
// carries out what it decides at peers, rings, NPA tables, firmware and security processor
// (docs/fabric.md). What it decides about buffers goes to the NodeClient. Device thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "daemon/gpu/bringup/psp_records.h"
#include "daemon/gpu/device/gpu.h"
#include "daemon/gpu/device/nht_firmware.h"
#include "daemon/reactor/log_limit.h"
#include "daemon/session/fabric_memory.h"
#include "daemon/session/npa_space.h"
#include "fabric/node.h"

namespace gpuumd {

// What the node wants of buffers and clients.
class NodeClient {
 public:
  virtual ~NodeClient() = default;
  // Makes the buffer's memory present and keeps it where it is; `done` with all of it.
  virtual void pin_buffer(fabric::BufferId buffer, DoneWith<std::vector<fabric::VramRun>> done) = 0;
  virtual void unpin_buffer(fabric::BufferId buffer) = 0;
  // `done` when no engine can reach what was imported.
  virtual void detach_import(fabric::ImportId import, base::Errc why, Done done) = 0;
  virtual void notice(const fabric::Report& what) = 0;
};

class NodeRunner {
 public:
  using Imported = DoneWith<fabric::ImportedMemory>;

  NodeRunner(Gpu& gpu, NodeClient& client);

  // Reads the pod configuration from the security processor and joins. `done` when ACTIVE, or when
  // there is no pod to join (node()->state() says).
  void start(Done done);
  // Leaves for good: nothing of this GPU can be reached over the fabric any more.
  void stop(Done done);
  void message(std::uint32_t sender, const std::array<std::uint32_t, 4>& dwords);
  void security_request(const psp::Request& request);
  // Nobody tells a lost device's node the time, so all that is under way ends, and what is asked
  // from now on as well: kDeviceLost.
  void lose();
  bool lost() const { return lost_; }

  // Of fabric::Node, after start().
  base::Result<fabric::Handle> export_buffer(const fabric::ExportRequest& request);
  void revoke(const fabric::Handle& handle, Done done);
  void import_handle(const fabric::Handle& handle, Imported done);
  void close_import(fabric::ImportId import);

  bool poll();
  // Null before start().
  const fabric::Node* node() const { return node_.get(); }

 private:
  TimePoint now() const { return gpu_.reactor().now(); }
  fabric::Token expect(Imported done);
  fabric::Token expect(Done done);
  void apply(const psp::Config& config, Done done);
  void tell(const fabric::Event& event);
  void run_actions();
  Done op_done(fabric::OpId op);
  void outcome(const base::Result<void>& result);
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
  bool poll_records();
  void arm_timer();

  Gpu& gpu_;
  NodeClient& client_;
  std::unique_ptr<fabric::RandomSource> random_;
  std::unique_ptr<FabricMemory> memory_;
  std::unique_ptr<fabric::Node> node_;
  NpaSpace space_;
  NhtFirmware firmware_;
  std::optional<PermanentMemory::Piece> metadata_;
  std::uint64_t next_token_ = 1;
  std::unordered_map<std::uint64_t, Imported> completions_;  // by Token
  std::map<std::pair<std::uint16_t, bool>, fabric::WriteBackRecord> seen_;
  TimePoint records_since_{};
  bool leaving_ = false;  // stop() was called
  bool lost_ = false;
  bool running_actions_ = false;
  Registration timer_;
  LogLimit late_;
};

}  // namespace gpuumd
