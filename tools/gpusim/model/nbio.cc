#include "tools/gpusim/model/nbio.h"

#include <array>
#include <string>

#include "base/address.h"
#include "base/bytes.h"
#include "tools/gpusim/model/reset_noise.h"

namespace gpusim {
namespace {

// Offsets in dwords (docs/hardware/pci.md, "NBIO registers").
constexpr std::uint32_t kMmIndex = 0x000, kMmData = 0x001, kMmIndexHi = 0x006;
constexpr std::uint32_t kIndex2 = 0x00E, kData2 = 0x00F, kIndex2Hi = 0x011;
constexpr std::uint32_t kBiosScratch = 0x038, kDriverScratch = 0x080;  // segment 1
constexpr std::uint32_t kStrap0 = 0x021, kDoorbellAperEn = 0x0C0, kMemsize = 0x0C3;
constexpr std::uint32_t kHdpRegFlush = 0x0F6, kHdpMemFlush = 0x0F7, kFbEn = 0x100;
constexpr std::uint32_t kHdpFlushReq = 0x106, kHdpFlushDone = 0x107, kTransPending = 0x108;
constexpr std::uint32_t kPartitionMemStatus = 0x164;
constexpr std::uint32_t kS2aEntry = 0x1CB, kDoorbellAccessEnPf = 0x1F7;

constexpr std::uint32_t kMmIndexVram = 1u << 31;
constexpr std::uint32_t kTargetPortType = 3;

RegisterFile::WriteHook read_only() {
  return [](std::uint32_t, std::uint32_t stored) { return stored; };
}

}  // namespace

Nbio::Nbio(RegisterFile& registers, const Bases& bases, const GpuOptions& options, HostVram& vram)
    : registers_(registers),
      bases_(bases),
      vram_(vram),
      seed_(options.seed),
      vram_bytes_(options.vram_bytes),
      flush_dword_(bases.at(Ip::kNbio, 0, 2) + kHdpMemFlush) {
  define_windows();
  define_identity(options);
  define_flushes();
  define_doorbells();
  define_unused_registers();
}

std::uint32_t Nbio::at(unsigned segment, std::uint32_t offset) const {
  return bases_.at(Ip::kNbio, 0, segment) + offset;
}

void Nbio::define_windows() {
  mm_index_ = &registers_.define(at(0, kMmIndex), "MM_INDEX");
  mm_index_hi_ = &registers_.define(at(0, kMmIndexHi), "MM_INDEX_HI");
  auto& mm_data = registers_.define(at(0, kMmData), "MM_DATA");
  mm_data.on_read = [this](std::uint32_t) { return read_mm_data(); };
  mm_data.on_write = [this](std::uint32_t value, std::uint32_t) {
    write_mm_data(value);
    return value;
  };

  index2_ = &registers_.define(at(0, kIndex2), "PCIE_INDEX2");
  index2_hi_ = &registers_.define(at(0, kIndex2Hi), "PCIE_INDEX2_HI");
  auto& data2 = registers_.define(at(0, kData2), "PCIE_DATA2");
  data2.on_read = [this](std::uint32_t) -> std::uint32_t {
    std::uint32_t dword = 0;
    return smn_target(dword) == nullptr ? 0 : registers_.read(dword);
  };
  data2.on_write = [this](std::uint32_t value, std::uint32_t) {
    std::uint32_t dword = 0;
    if (smn_target(dword) != nullptr) registers_.write(dword, value);
    return value;
  };
}

RegisterFile::Register* Nbio::smn_target(std::uint32_t& dword) const {
  if (index2_hi_->stored != 0) return nullptr;  // another die or socket
  dword = index2_->stored / 4;
  if (dword == at(0, kData2) || dword == at(0, kMmData)) return nullptr;
  return registers_.find(dword);
}

// Only the VRAM window of MM_INDEX (bit 31 set); other forms read 0 and drop writes.
std::uint32_t Nbio::read_mm_data() const {
  const std::uint64_t offset =
      std::uint64_t{mm_index_hi_->stored} << 31 | (mm_index_->stored & ~(kMmIndexVram | 3u));
  if (!host_reads_enabled()) return ~0u;
  if ((mm_index_->stored & kMmIndexVram) == 0 || !base::fits(offset, 4, vram_bytes_)) return 0;
  std::uint32_t word = 0;
  vram_.host_read(offset, base::as_writable_bytes(word));
  return word;
}

void Nbio::write_mm_data(std::uint32_t value) {
  const std::uint64_t offset =
      std::uint64_t{mm_index_hi_->stored} << 31 | (mm_index_->stored & ~(kMmIndexVram | 3u));
  if ((mm_index_->stored & kMmIndexVram) == 0 || !base::fits(offset, 4, vram_bytes_)) return;
  if (host_writes_enabled()) vram_.host_write(offset, base::as_bytes(value));
}

void Nbio::define_identity(const GpuOptions& options) {
  const auto mib = static_cast<std::uint32_t>(options.vram_bytes / base::kMiB);
  registers_.define(at(2, kMemsize), "RCC_CONFIG_MEMSIZE", mib).on_write = read_only();
  const std::uint32_t strap = at(2, kStrap0);
  registers_
      .define(strap, "RCC_DEV0_EPF0_STRAP0",
              (noise(seed_, strap) & 0x00FF'FFFF) | options.revision << 24)
      .on_write = read_only();
  registers_.define(at(2, kPartitionMemStatus), "PARTITION_MEM_STATUS", 1).on_write = read_only();
  fb_enable_ = &registers_.define(at(2, kFbEn), "BIF_FB_EN", 3);
  for (std::uint32_t n = 0; n < 16; ++n) {
    define_unused(registers_, seed_, at(1, kBiosScratch + n), "BIOS_SCRATCH_" + std::to_string(n));
    auto& scratch =
        registers_.define(at(1, kDriverScratch + n), "DRIVER_SCRATCH_" + std::to_string(n));
    scratch.survives_reset = n < 3;
  }
}

void Nbio::set_discovery_scratch(std::uint64_t offset, std::uint32_t size) {
  registers_.find(at(1, kDriverScratch))->stored = static_cast<std::uint32_t>(offset);
  registers_.find(at(1, kDriverScratch + 1))->stored = static_cast<std::uint32_t>(offset >> 32);
  registers_.find(at(1, kDriverScratch + 2))->stored = size;
}

bool Nbio::host_reads_enabled() const { return (fb_enable_->stored & 1) != 0; }
bool Nbio::host_writes_enabled() const { return (fb_enable_->stored & 2) != 0; }

void Nbio::flush() {
  ++flushes_;
  vram_.flush_host_stores();
}

void Nbio::define_flushes() {
  // Reads give a word that is neither 0 nor 1 nor all ones: a store of those into a mapped page is
  // then always seen as a change.
  const std::uint32_t idle = (noise(seed_, flush_dword_) & 0x7FFF'FF00) | 0x40;
  registers_.define(flush_dword_, "HDP_MEM_COHERENCY_FLUSH_CNTL", idle).on_write =
      [this](std::uint32_t, std::uint32_t stored) {
        flush();
        return stored;
      };
  registers_.define(at(2, kHdpRegFlush), "HDP_REG_COHERENCY_FLUSH_CNTL");
  auto& done = registers_.define(at(2, kHdpFlushDone), "GPU_HDP_FLUSH_DONE");
  done.on_write = read_only();
  registers_.define(at(2, kHdpFlushReq), "GPU_HDP_FLUSH_REQ").on_write =
      [this, &done](std::uint32_t clients, std::uint32_t) {
        if (clients != 0) flush();
        done.stored = clients;
        return clients;
      };
  registers_.define(at(2, kTransPending), "BIF_TRANS_PENDING").on_write = read_only();
}

void Nbio::define_doorbells() {
  aperture_ = &registers_.define(at(2, kDoorbellAperEn), "RCC_DOORBELL_APER_EN");
  access_ = &registers_.define(at(2, kDoorbellAccessEnPf), "DOORBELL_ACCESS_EN_PF");
  for (unsigned n = 0; n < kEntries; ++n) {
    const std::string name = "S2A_DOORBELL_ENTRY_" + std::to_string(n);
    entries_[n] = &registers_.define(at(2, kS2aEntry + 2 * n), name + "_CTRL");
    registers_.define(at(2, kS2aEntry + 2 * n + 1), name + "_CTRL1");
  }
}

bool Nbio::doorbell_aperture_enabled() const { return (aperture_->stored & 1) != 0; }
std::uint32_t Nbio::doorbell_access() const { return access_->stored; }

S2aEntry Nbio::s2a_entry(unsigned index) const {
  const std::uint32_t word = entries_[index]->stored;
  if ((word & 1) == 0) return {};
  const std::uint32_t port = registers_.find(at(2, kS2aEntry + 2 * index + 1))->stored;
  return S2aEntry{
      .enabled = (port & 3) == kTargetPortType,
      .target = static_cast<std::uint8_t>(word >> 1 & 0x1F),
      .first_dword = word >> 7 & 0x3FF,
      .dwords = word >> 17 & 0xFF,
      .no_64bit = (word >> 25 & 1) != 0,
      .drop = (word >> 27 & 1) != 0,
  };
}

void Nbio::define_unused_registers() {
  struct Named {
    unsigned segment;
    std::uint32_t offset;
    const char* name;
  };
  static constexpr std::array kNamed = {
      Named{0, 0x00C, "PCIE_INDEX"},
      Named{0, 0x00D, "PCIE_DATA"},
      Named{0, 0x010, "PCIE_INDEX_HI"},
      Named{1, 0x000, "RSMU_INDEX"},
      Named{1, 0x001, "RSMU_DATA"},
      Named{1, 0x002, "RSMU_INDEX_HI"},
      Named{2, 0x0F1, "INTERRUPT_CNTL"},
      Named{2, 0x0F2, "INTERRUPT_CNTL2"},
      Named{2, 0x0F3, "DOORBELL_SELFRING_GPA_APER_BASE_HIGH"},
      Named{2, 0x0F4, "DOORBELL_SELFRING_GPA_APER_BASE_LOW"},
      Named{2, 0x0F5, "DOORBELL_SELFRING_GPA_APER_CNTL"},
      Named{2, 0x0FD, "BIF_DOORBELL_CNTL"},
      Named{2, 0x0FE, "BIF_DOORBELL_INT_CNTL"},
      Named{2, 0x136, "MAILBOX_MSGBUF_TRN_DW0"},
      Named{2, 0x137, "MAILBOX_MSGBUF_TRN_DW1"},
      Named{2, 0x138, "MAILBOX_MSGBUF_TRN_DW2"},
      Named{2, 0x139, "MAILBOX_MSGBUF_TRN_DW3"},
      Named{2, 0x13A, "MAILBOX_MSGBUF_RCV_DW0"},
      Named{2, 0x13B, "MAILBOX_MSGBUF_RCV_DW1"},
      Named{2, 0x13C, "MAILBOX_MSGBUF_RCV_DW2"},
      Named{2, 0x13D, "MAILBOX_MSGBUF_RCV_DW3"},
      Named{2, 0x13E, "MAILBOX_CONTROL"},
      Named{2, 0x13F, "MAILBOX_INT_CNTL"},
      Named{2, 0x161, "PARTITION_COMPUTE_CAP"},
      Named{2, 0x162, "PARTITION_MEM_CAP"},
      Named{2, 0x163, "PARTITION_COMPUTE_STATUS"},
      Named{2, 0x1F8, "DOORBELL_ACCESS_EN_VF_1"},
      Named{2, 0x1F9, "DOORBELL_ACCESS_EN_VF_2"},
      Named{2, 0x1FA, "DOORBELL_ACCESS_EN_VF_3"},
      Named{2, 0x1FB, "DOORBELL_ACCESS_EN_VF_4"},
  };
  for (const Named& named : kNamed)
    define_unused(registers_, seed_, at(named.segment, named.offset), named.name);
}

}  // namespace gpusim
