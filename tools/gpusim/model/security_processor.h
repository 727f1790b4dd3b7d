// The security processor (MP0): boot state, the mailbox, the command ring, and the commands that
// configure the fabric (docs/hardware/psp.md).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>

#include "tools/gpusim/model/bases.h"
#include "tools/gpusim/model/options.h"
#include "tools/gpusim/model/ports.h"
#include "tools/gpusim/model/register_file.h"
#include "tools/gpusim/model/types.h"

namespace gpusim {

class SecurityProcessor : public Steppable {
 public:
  // Defines the registers. All references must outlive it.
  SecurityProcessor(RegisterFile& registers, const Bases& bases, const GpuOptions& options,
                    const ModelClock& clock, InterruptSink& interrupts);

  // MMHUB 0: ring, commands, responses and fences are in its VMID 0. Set once at assembly.
  void set_address_space(AddressSpace& space) { space_ = &space; }
  // Called when the mailbox asks for a mode-1 reset, from step().
  void set_reset_request(std::function<void()> request) { reset_request_ = std::move(request); }

  bool step() override;
  bool waiting() const override;
  // After RegisterFile::reset(): no ring, mailbox ready, incoming NPA accesses off (D56). The
  // configuration is the controller's and stays.
  void reset();

  // Whether incoming NPA accesses are served (command 0x59, D54).
  bool npa_enabled() const { return npa_enabled_; }
  const PodConfig& config() const { return config_; }

  // The controller side, for pod files and scenarios.
  enum class Notice : std::uint8_t { kConfigUpdate = 1, kPause = 2, kResume = 3 };
  // Replaces the configuration, in any state, and tells the driver.
  void update_config(const PodConfig& config);
  void notify(Notice notice);
  // What the driver answered last with command 0x5A.
  struct Completion {
    std::uint32_t command = 0;
    std::uint32_t status = 0;
  };
  const std::optional<Completion>& last_completion() const { return last_completion_; }

  // Scenarios: the boot loader is done, commands are answered, so much later.
  void set_boot_delay(ModelTime delay) { boot_at_ = clock_.now() + delay; }
  void set_answer_delay(ModelTime delay) { answer_delay_ = delay; }

  struct Counters {
    std::uint64_t commands = 0;       // frames served
    std::uint64_t failed = 0;         // answered with a status other than 0
    std::uint64_t bad_pointers = 0;   // write pointer no multiple of 16 dwords or past the ring
    std::uint64_t lost_accesses = 0;  // ring, command, response or fence did not translate
    std::uint64_t notices = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Frame;
  void define_mailbox(std::uint64_t seed);
  void define_interrupt();
  bool booted() const { return clock_.now() >= boot_at_; }
  bool answer_mailbox();
  std::uint32_t run_mailbox(std::uint32_t word);
  bool open_ring();
  void write_ring_pointer(std::uint32_t value);
  bool serve_frame();
  void serve(const Frame& frame);
  std::uint32_t run(std::uint32_t id, std::span<const std::byte> body, std::span<std::byte> out);
  std::uint32_t get_config(std::span<const std::byte> body, std::span<std::byte> out);
  std::uint32_t set_physical_pod(std::span<const std::byte> body);
  std::uint32_t set_virtual_pod(std::span<const std::byte> body);
  std::uint32_t set_stations(std::span<const std::byte> body);
  std::uint32_t get_stations(std::span<std::byte> out) const;
  std::uint32_t set_npa(std::span<const std::byte> body);
  std::uint32_t complete_notice(std::span<const std::byte> body);
  bool send_notice();
  bool copy_in(std::uint64_t address, std::span<std::byte> to);
  bool copy_out(std::uint64_t address, std::span<const std::byte> from);

  const ModelClock& clock_;
  InterruptSink& interrupts_;
  AddressSpace* space_ = nullptr;
  std::function<void()> reset_request_;
  RegisterFile& registers_;
  std::uint32_t segment1_;

  PodConfig config_;
  bool completes_;
  bool npa_enabled_ = false;

  ModelTime boot_at_{};
  ModelTime answer_delay_{};
  std::optional<std::uint32_t> mailbox_;  // the command word not answered yet
  ModelTime mailbox_due_{};

  bool ring_open_ = false;
  std::uint64_t ring_address_ = 0;
  std::uint32_t ring_dwords_ = 0;
  std::uint32_t ring_read_ = 0;         // dwords
  std::uint32_t ring_write_ = 0;        // as written to C2PMSG_67
  std::optional<ModelTime> frame_due_;  // of the frame at ring_read_, once it was seen

  std::deque<Notice> notices_;         // not raised yet
  std::optional<Notice> outstanding_;  // raised, not completed
  bool masked_ = true;                 // IH_SW_INT_CTRL bit 0
  bool valid_ = false;                 // IH_SW_INT bit 8: raised and not acknowledged
  std::uint8_t source_ = 0;            // IH_SW_INT 7:0
  std::optional<Completion> last_completion_;
  Counters counters_;
};

}  // namespace gpusim
