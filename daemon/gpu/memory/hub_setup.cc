#include "daemon/gpu/memory/hub_setup.h"

#include <string>

#include "daemon/gpu/memory/page_table.h"

namespace gpuumd {
namespace {

using namespace vm_hub;

constexpr std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
constexpr std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

// A 64-bit value in a LO32 and a HI32 register, low half first.
template <class Lo, class Hi>
void write_pair(const RegisterBlock& hub, std::uint64_t value, unsigned index = 0) {
  hub.write(base::Value<Lo>(low(value)), index);
  hub.write(base::Value<Hi>(high(value)), index);
}

void set_page_range(const RegisterBlock& hub, unsigned context, std::uint64_t first,
                    std::uint64_t last) {
  write_pair<CONTEXT_PAGE_TABLE_START_ADDR_LO32, CONTEXT_PAGE_TABLE_START_ADDR_HI32>(hub, first,
                                                                                     context);
  write_pair<CONTEXT_PAGE_TABLE_END_ADDR_LO32, CONTEXT_PAGE_TABLE_END_ADDR_HI32>(hub, last,
                                                                                 context);
}

void set_apertures(const RegisterBlock& hub, const HubSetup& setup) {
  constexpr unsigned kAgpShift = 24;
  constexpr unsigned kSystemShift = 18;
  // Closed: bottom above top.
  write_pair<AGP_BASE_LO32, AGP_BASE_HI32>(hub, 0);
  write_pair<AGP_BOT_LO32, AGP_BOT_HI32>(hub, (std::uint64_t{1} << (57 - kAgpShift)) - 1);
  write_pair<AGP_TOP_LO32, AGP_TOP_HI32>(hub, 0);
  const std::uint64_t first = setup.vram.fb_base().value();
  const std::uint64_t last = first + setup.vram.size() - 1;
  write_pair<SYSTEM_APERTURE_LOW_ADDR_LO32, SYSTEM_APERTURE_LOW_ADDR_HI32>(hub,
                                                                           first >> kSystemShift);
  write_pair<SYSTEM_APERTURE_HIGH_ADDR_LO32, SYSTEM_APERTURE_HIGH_ADDR_HI32>(hub,
                                                                             last >> kSystemShift);
  const std::uint64_t page = setup.vram.physical(setup.default_page).page();
  write_pair<SYSTEM_APERTURE_DEFAULT_ADDR_LSB, SYSTEM_APERTURE_DEFAULT_ADDR_MSB>(hub, page);
  write_pair<L2_PROTECTION_FAULT_DEFAULT_ADDR_LO32, L2_PROTECTION_FAULT_DEFAULT_ADDR_HI32>(hub,
                                                                                           page);
  hub.modify<L2_PROTECTION_FAULT_CNTL2>([](auto value) {
    using R = L2_PROTECTION_FAULT_CNTL2;
    return value.template with<R::ACTIVE_PAGE_MIGRATION_PTE_READ_RETRY>(true)
        .template with<R::ENABLE_RETRY_FAULT_INTERRUPT>(true);
  });
}

void set_caches(const RegisterBlock& hub) {
  hub.modify<MX_L1_TLB_CNTL>([](auto value) {
    using R = MX_L1_TLB_CNTL;
    return value.template with<R::ENABLE_L1_TLB>(true)
        .template with<R::SYSTEM_ACCESS_MODE>(3)
        .template with<R::SYSTEM_APERTURE_UNMAPPED_ACCESS>(0)
        .template with<R::ENABLE_ADVANCED_DRIVER_MODEL>(true)
        .template with<R::MTYPE>(static_cast<std::uint64_t>(Mtype::kUc));
  });
  hub.modify<L2_CNTL>([](auto value) {
    using R = L2_CNTL;
    return value.template with<R::ENABLE_L2_CACHE>(true)
        .template with<R::ENABLE_L2_FRAGMENT_PROCESSING>(true)
        .template with<R::L2_PDE0_CACHE_TAG_GENERATION_MODE>(0)
        .template with<R::ENABLE_DEFAULT_PAGE_OUT_TO_SYSTEM_MEMORY>(true)
        .template with<R::PDE_FAULT_CLASSIFICATION>(0)
        .template with<R::CONTEXT1_IDENTITY_ACCESS_MODE>(1)
        .template with<R::IDENTITY_MODE_FRAGMENT_SIZE>(0);
  });
  // translate_further: bank select 12 and big fragments of 2 MiB.
  hub.write(base::Value<L2_CNTL3>(L2_CNTL3::kStart)
                .with<L2_CNTL3::BANK_SELECT>(12)
                .with<L2_CNTL3::L2_CACHE_BIGK_FRAGMENT_SIZE>(9));
  // Tables are fetched by MC address only where CPU and GPU share one space; not on a PCIe card.
  hub.write(base::Value<L2_CNTL4>(L2_CNTL4::kStart)
                .with<L2_CNTL4::VMC_TAP_PDE_REQUEST_PHYSICAL>(false)
                .with<L2_CNTL4::VMC_TAP_PTE_REQUEST_PHYSICAL>(false));
  hub.write(base::Value<L2_CNTL5>(L2_CNTL5::kStart));
}

// Enabled, every kind of fault raises an interrupt, and none is retried.
base::Value<CONTEXT_CNTL> context(unsigned depth) {
  using R = CONTEXT_CNTL;
  return base::Value<R>()
      .with<R::ENABLE_CONTEXT>(true)
      .with<R::PAGE_TABLE_DEPTH>(depth)
      .with<R::RANGE_PROTECTION_FAULT_ENABLE_INTERRUPT>(true)
      .with<R::DUMMY_PAGE_PROTECTION_FAULT_ENABLE_INTERRUPT>(true)
      .with<R::PDE0_PROTECTION_FAULT_ENABLE_INTERRUPT>(true)
      .with<R::VALID_PROTECTION_FAULT_ENABLE_INTERRUPT>(true)
      .with<R::READ_PROTECTION_FAULT_ENABLE_INTERRUPT>(true)
      .with<R::WRITE_PROTECTION_FAULT_ENABLE_INTERRUPT>(true)
      .with<R::EXECUTE_PROTECTION_FAULT_ENABLE_INTERRUPT>(true);
}

// A VM with faults: bad accesses are retried, and once its VM is dead they go to the default page,
// so that what is in flight runs out. Not those outside the address space, which are never retried.
// A VM without faults: each bad access stops the queue that made it.
base::Value<CONTEXT_CNTL> with_fault_mode(base::Value<CONTEXT_CNTL> value, bool faults) {
  using R = CONTEXT_CNTL;
  return value.with<R::RETRY_PERMISSION_OR_INVALID_PAGE_FAULT>(faults)
      .with<R::RANGE_PROTECTION_FAULT_ENABLE_DEFAULT>(false)
      .with<R::DUMMY_PAGE_PROTECTION_FAULT_ENABLE_DEFAULT>(faults)
      .with<R::PDE0_PROTECTION_FAULT_ENABLE_DEFAULT>(faults)
      .with<R::VALID_PROTECTION_FAULT_ENABLE_DEFAULT>(faults)
      .with<R::READ_PROTECTION_FAULT_ENABLE_DEFAULT>(faults)
      .with<R::WRITE_PROTECTION_FAULT_ENABLE_DEFAULT>(faults)
      .with<R::EXECUTE_PROTECTION_FAULT_ENABLE_DEFAULT>(faults);
}

void close_identity_aperture(const RegisterBlock& hub) {
  write_pair<L2_CONTEXT1_IDENTITY_APERTURE_LOW_ADDR_LO32,
             L2_CONTEXT1_IDENTITY_APERTURE_LOW_ADDR_HI32>(hub, 0x1FFF'FFFF'FFFF);
  write_pair<L2_CONTEXT1_IDENTITY_APERTURE_HIGH_ADDR_LO32,
             L2_CONTEXT1_IDENTITY_APERTURE_HIGH_ADDR_HI32>(hub, 0);
  write_pair<L2_CONTEXT_IDENTITY_PHYSICAL_OFFSET_LO32, L2_CONTEXT_IDENTITY_PHYSICAL_OFFSET_HI32>(
      hub, 0);
}

void enable_fault_defaults(const RegisterBlock& hub) {
  hub.modify<L2_PROTECTION_FAULT_CNTL_LO32>([](auto value) {
    using R = L2_PROTECTION_FAULT_CNTL_LO32;
    return value.template with<R::RANGE_PROTECTION_FAULT_ENABLE_DEFAULT>(true)
        .template with<R::PDE0_PROTECTION_FAULT_ENABLE_DEFAULT>(true)
        .template with<R::PDE1_PROTECTION_FAULT_ENABLE_DEFAULT>(true)
        .template with<R::PDE2_PROTECTION_FAULT_ENABLE_DEFAULT>(true)
        .template with<R::PDE3_PROTECTION_FAULT_ENABLE_DEFAULT>(true)
        .template with<R::TRANSLATE_FURTHER_PROTECTION_FAULT_ENABLE_DEFAULT>(true)
        .template with<R::NACK_PROTECTION_FAULT_ENABLE_DEFAULT>(true)
        .template with<R::DUMMY_PAGE_PROTECTION_FAULT_ENABLE_DEFAULT>(true)
        .template with<R::VALID_PROTECTION_FAULT_ENABLE_DEFAULT>(true)
        .template with<R::READ_PROTECTION_FAULT_ENABLE_DEFAULT>(true)
        .template with<R::WRITE_PROTECTION_FAULT_ENABLE_DEFAULT>(true)
        .template with<R::EXECUTE_PROTECTION_FAULT_ENABLE_DEFAULT>(true)
        .template with<R::CRASH_ON_NO_RETRY_FAULT>(false);
  });
  hub.modify<L2_PROTECTION_FAULT_CNTL_HI32>([](auto value) {
    return value.template with<L2_PROTECTION_FAULT_CNTL_HI32::CRASH_ON_RETRY_FAULT>(false);
  });
}

}  // namespace

base::Result<VramMap> read_vram_map(const VmHub& mmhub, std::uint64_t vram_bytes,
                                    std::uint64_t visible_bytes) {
  constexpr unsigned kShift = 24;
  const RegisterBlock& hub = mmhub.registers;
  const auto location = [&]<class Lo, class Hi>() {
    const std::uint64_t bit56 = hub.read<Hi>().raw() & 1;
    return (bit56 << 32 | hub.read<Lo>().raw()) << kShift;
  };
  const std::uint64_t base = location.operator()<FB_LOCATION_BASE_LO32, FB_LOCATION_BASE_HI32>();
  const std::uint64_t top = location.operator()<FB_LOCATION_TOP_LO32, FB_LOCATION_TOP_HI32>();
  const std::uint64_t physical = std::uint64_t{hub.read<FB_OFFSET>().raw()} << kShift;
  if (hub.io().lost()) return base::fail(base::Errc::kDeviceLost, "FB_LOCATION");
  const std::uint64_t unit = std::uint64_t{1} << kShift;
  if (top < base || top - base + unit < vram_bytes ||
      !base::fits(physical, vram_bytes, kPhysicalEnd) || visible_bytes > vram_bytes)
    return base::fail(base::Errc::kDeviceError, "FB_LOCATION or FB_OFFSET does not hold " +
                                                    std::to_string(vram_bytes) + " bytes of VRAM");
  return VramMap(vram_bytes, visible_bytes, base::McAddress(base), base::PhysicalAddress(physical));
}

void bring_up_hub(const VmHub& vm_hub, const HubSetup& setup) {
  const RegisterBlock& hub = vm_hub.registers;
  set_root(vm_hub, base::Vmid(0), setup.gart_root);
  set_page_range(hub, 0, setup.gart_first.page(),
                 setup.gart_first.page() + setup.gart_bytes / base::kPageSize - 1);
  set_apertures(hub, setup);
  set_caches(hub);
  // VMID 0: a fault is a mistake of ours, so it stops the engine that made it instead of letting it
  // go on with zeros.
  hub.write(context(0), 0);
  close_identity_aperture(hub);
  for (unsigned n = 1; n < kContexts; ++n) {
    auto value = context(PageTable::kLevels - 1);
    // A remote access that does not translate is refused, never answered from the default page.
    if (vm_hub.kind != HubKind::kMmhub || n != kNpaContext)
      value = with_fault_mode(value, setup.retry);
    set_root(vm_hub, base::Vmid(static_cast<std::uint8_t>(n)), Pde());  // faults every access
    hub.write(value, n);
    set_page_range(hub, n, 0, PageTable::kEnd.page() - 1);
  }
  for (unsigned engine = 0; engine < kEngines; ++engine) {
    hub.write(base::Value<INVALIDATE_ENG_ADDR_RANGE_LO32>(0xFFFF'FFFF), engine);
    hub.write(base::Value<INVALIDATE_ENG_ADDR_RANGE_HI32>(0x3FFF), engine);
  }
  enable_fault_defaults(hub);
}

void set_root(const VmHub& hub, base::Vmid vmid, Pde root) {
  write_pair<CONTEXT_PAGE_TABLE_BASE_ADDR_LO32, CONTEXT_PAGE_TABLE_BASE_ADDR_HI32>(
      hub.registers, root.raw(), vmid.value());
}

void set_fault_mode(const VmHub& hub, base::Vmid vmid, bool faults) {
  hub.registers.modify<CONTEXT_CNTL>(
      [faults](auto value) { return with_fault_mode(value, faults); }, vmid.value());
}

}  // namespace gpuumd
