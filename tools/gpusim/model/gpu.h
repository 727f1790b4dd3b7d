// One GPU, put together: the blocks, the BARs, and what the fabric sees of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/result.h"
#include "tools/gpusim/model/bases.h"
#include "tools/gpusim/model/block_context.h"
#include "tools/gpusim/model/doorbells.h"
#include "tools/gpusim/model/gpu_device.h"
#include "tools/gpusim/model/interrupt_handler.h"
#include "tools/gpusim/model/lsdma.h"
#include "tools/gpusim/model/mapped_pages.h"
#include "tools/gpusim/model/nbio.h"
#include "tools/gpusim/model/nht_port.h"
#include "tools/gpusim/model/options.h"
#include "tools/gpusim/model/register_file.h"
#include "tools/gpusim/model/sdma.h"
#include "tools/gpusim/model/security_processor.h"
#include "tools/gpusim/model/vm_hub.h"
#include "tools/gpusim/model/vram.h"

namespace gpusim {

// What a GPU is plugged into. All of it outlives the GPU.
struct GpuSurroundings {
  const ModelClock& clock;
  FabricPort* fabric = nullptr;    // null: no link, remote accesses end kPeerLost
  AccessLog* log = nullptr;        // null: nothing is logged
  ScenarioHooks* hooks = nullptr;  // null: no fault injection
};

// Model thread only, as all of GpuDevice.
class Gpu : public GpuDevice, public FabricTarget {
 public:
  // kInvalidArgument names the option that cannot be; kSystem when host memory is short.
  static base::Result<std::unique_ptr<Gpu>> create(const GpuOptions& options,
                                                   const GpuSurroundings& surroundings);
  ~Gpu() override;
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  // --- GpuDevice ---
  PciIdentity identity() const override;
  std::uint64_t bar_size(Bar bar) const override;
  BarMemory bar_memory(Bar bar) const override;
  MsixLayout msix() const override;
  PciFeatures features() const override;
  void attach(HostBus& bus) override;
  void detach() override;
  void reset() override;
  std::uint32_t read_register(std::uint64_t offset) override;
  void write_register(std::uint64_t offset, std::uint32_t value) override;
  void ring_doorbell(std::uint64_t offset, std::uint64_t value, unsigned width) override;
  void read_vram_bar(std::uint64_t offset, std::span<std::byte> to) override;
  void write_vram_bar(std::uint64_t offset, std::span<const std::byte> from) override;
  bool look() override;
  bool stored() const override;
  void limit_step(std::size_t bytes) override { step_bytes_ = bytes; }
  bool step() override;
  bool waiting() const override;
  bool gone() const override { return gone_; }

  // --- FabricTarget ---
  const PodConfig& pod_config() const override;
  bool link_up() const override { return link_up_ && !gone_; }
  Outcome incoming(RemoteAccess& access) override;
  std::span<const std::byte> incoming_source(std::uint16_t sender, std::uint64_t npa,
                                             std::uint64_t bytes) override;
  std::span<std::byte> incoming_target(std::uint16_t sender, std::uint64_t npa,
                                       std::uint64_t bytes) override;
  void incoming_stored(std::uint16_t sender, std::uint64_t npa, std::uint64_t bytes) override;

  // The nHT block, once it was built on context(); it outlives the GPU's last step.
  void set_nht(NhtBlock* nht) { nht_ = nht; }
  // Called when the link goes down or comes up: reset, removal, scenario.
  void set_link_observer(std::function<void(bool up)> observer) {
    link_observer_ = std::move(observer);
  }
  void set_link(bool up);

  // Surprise removal: registers and VRAM read all ones, stores are lost, engines stand still.
  void set_gone(bool gone);
  void go_after(std::uint64_t accesses);  // once so many accesses to registers were served

  // --- for the nHT block, the pod and tests ---
  const GpuOptions& options() const { return options_; }
  const Bases& bases() const { return bases_; }
  const BlockContext& context() const { return context_; }
  RegisterFile& registers() { return registers_; }
  InterruptHandler& interrupts() { return *interrupts_; }
  SecurityProcessor& security_processor() { return *security_; }
  const DoorbellRouter& doorbells() const { return router_; }
  Nbio& nbio() { return *nbio_; }
  Vram& vram() { return *vram_; }
  VmHub& gfxhub(unsigned xcc) { return *gfxhubs_[xcc]; }
  VmHub& mmhub(unsigned mid) { return *mmhubs_[mid]; }
  SdmaEngine& sdma(unsigned xcc, unsigned instance) {
    return *sdma_[xcc * options_.sdma_per_xcc + instance];
  }
  Lsdma& lsdma() { return *lsdma_; }
  AddressMode address_mode() const;
  std::uint16_t accel_id() const;

 private:
  class HostSide;       // VRAM as NBIO's windows see it
  class SdmaDoorbells;  // one S2A target, several engines
  class NoFabric;

  Gpu(const GpuOptions& options, const GpuSurroundings& surroundings, std::unique_ptr<Vram> vram,
      DoorbellPage doorbells);
  base::Result<void> finish();
  void count_to_the_end();
  void build_hubs();
  void build_engines();
  void write_discovery();
  void add_scenarios();
  void poison_vram();
  bool step_blocks();
  bool step_engines();
  bool reachable() const;

  GpuOptions options_;
  Bases bases_;
  RegisterFile registers_;
  std::unique_ptr<Vram> vram_;
  std::unique_ptr<HostSide> host_side_;
  std::unique_ptr<NoFabric> no_fabric_;
  std::unique_ptr<Nbio> nbio_;
  DoorbellRouter router_;
  std::unique_ptr<InterruptHandler> interrupts_;
  HostBus* bus_ = nullptr;
  BlockContext context_;
  std::vector<std::unique_ptr<VmHub>> gfxhubs_;
  std::vector<std::unique_ptr<VmHub>> mmhubs_;
  std::vector<std::unique_ptr<SdmaEngine>> sdma_;
  std::unique_ptr<Lsdma> lsdma_;
  std::size_t step_bytes_ = 4 * base::kMiB;
  std::size_t first_engine_ = 0;  // of the next step
  std::unique_ptr<SecurityProcessor> security_;
  std::unique_ptr<SdmaDoorbells> sdma_doorbells_;
  NhtBlock* nht_ = nullptr;
  DoorbellPage doorbell_page_;
  std::unique_ptr<RegisterPage> register_page_;
  std::function<void(bool up)> link_observer_;
  std::vector<std::string> scenario_names_;
  bool link_up_ = true;
  bool gone_ = false;
  std::optional<std::uint64_t> accesses_left_;  // of registers, until it is gone
};

}  // namespace gpusim
