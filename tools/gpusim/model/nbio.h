// NBIO: memory size, scratch and strap registers, the windows into SMN and VRAM, doorbell routing
// registers, flushes of the host data path (docs/hardware/pci.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tools/gpusim/model/bases.h"
#include "tools/gpusim/model/doorbells.h"
#include "tools/gpusim/model/options.h"
#include "tools/gpusim/model/register_file.h"

namespace gpusim {

// VRAM as the host sees it: through BAR 0 and the MM window. Offsets are from the start of VRAM and
// inside it (the caller's duty).
class HostVram {
 public:
  virtual ~HostVram() = default;
  virtual void host_read(std::uint64_t offset, std::span<std::byte> to) = 0;
  virtual void host_write(std::uint64_t offset, std::span<const std::byte> from) = 0;
  // Makes all earlier stores of the host visible to the engines.
  virtual void flush_host_stores() = 0;
};

class Nbio : public DoorbellGate {
 public:
  // Defines the registers. `registers` and `vram` must outlive it.
  Nbio(RegisterFile& registers, const Bases& bases, const GpuOptions& options, HostVram& vram);

  // What firmware leaves for the driver: DRIVER_SCRATCH_0..2, which survive a reset (D56).
  void set_discovery_scratch(std::uint64_t offset, std::uint32_t size);

  // BIF_FB_EN: whether the host's reads (writes) of VRAM go through (D57).
  bool host_reads_enabled() const;
  bool host_writes_enabled() const;

  // Absolute dword of the memory coherency flush register, whose page may be mapped. A read of it
  // gives a word that no driver writes, so that the model sees each store into a mapped page.
  std::uint32_t flush_dword() const { return flush_dword_; }
  std::uint64_t flushes() const { return flushes_; }

  bool doorbell_aperture_enabled() const override;
  std::uint32_t doorbell_access() const override;
  S2aEntry s2a_entry(unsigned index) const override;

 private:
  void define_windows();
  void define_identity(const GpuOptions& options);
  void define_flushes();
  void define_doorbells();
  void define_unused_registers();
  std::uint32_t at(unsigned segment, std::uint32_t offset) const;

  // The register that PCIE_INDEX2 names; null for the windows themselves and other dies.
  RegisterFile::Register* smn_target(std::uint32_t& dword) const;
  std::uint32_t read_mm_data() const;
  void write_mm_data(std::uint32_t value);
  void flush();

  RegisterFile& registers_;
  const Bases& bases_;
  HostVram& vram_;
  std::uint64_t seed_;
  std::uint64_t vram_bytes_;
  std::uint32_t flush_dword_;
  std::uint64_t flushes_ = 0;
  RegisterFile::Register* index2_ = nullptr;
  RegisterFile::Register* index2_hi_ = nullptr;
  RegisterFile::Register* mm_index_ = nullptr;
  RegisterFile::Register* mm_index_hi_ = nullptr;
  RegisterFile::Register* fb_enable_ = nullptr;
  RegisterFile::Register* aperture_ = nullptr;
  RegisterFile::Register* access_ = nullptr;
  std::array<RegisterFile::Register*, kEntries> entries_{};
};

}  // namespace gpusim
