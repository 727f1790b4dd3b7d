// Every register that both sides define: the daemon's type, at the bases that the daemon found, is
// the model's register of the same name; fields have the same bits.
#include <gtest/gtest.h>

#include "daemon/gpu/registers/hdp.h"
#include "daemon/gpu/registers/lsdma.h"
#include "daemon/gpu/registers/mp0.h"
#include "daemon/gpu/registers/nht_mailbox.h"
#include "daemon/gpu/registers/sdma.h"
#include "tests/contract/contract_rig.h"
#include "tools/gpusim/model/hub_registers.h"
#include "tools/gpusim/model/nht.h"
#include "tools/gpusim/model/sdma_registers.h"

namespace contract {
namespace {

using gpuumd::RegisterBlock;

struct Registers : testing::TestWithParam<std::uint64_t> {
  Rig rig{GetParam()};

  template <class R>
  void expect(const RegisterBlock& block, const std::string& name, unsigned index = 0) {
    const auto* reg = rig.gpu->registers().find(block.dword<R>(index));
    if (reg == nullptr)
      ADD_FAILURE() << "the model has nothing at the daemon's " << name << ", dword "
                    << block.dword<R>(index);
    else
      EXPECT_EQ(reg->name, name);
  }
};
#define SAME(block, prefix, reg) expect<reg>(block, std::string(prefix) + #reg)
#define ROW(block, name, reg, index) expect<reg>(block, name, index)

TEST_P(Registers, Hubs) {
  using namespace gpuumd::vm_hub;
  for (const auto& hub : rig.hubs()) {
    const bool mm = hub.kind == gpuumd::HubKind::kMmhub;
    const auto p = (mm ? "MMHUB" : "GFXHUB") + std::to_string(hub.instance) + ".";
    const auto& r = hub.registers;
    SAME(r, p, SYSTEM_APERTURE_DEFAULT_ADDR_LSB);
    SAME(r, p, SYSTEM_APERTURE_DEFAULT_ADDR_MSB);
    SAME(r, p, L2_CNTL);
    SAME(r, p, L2_CNTL2);
    SAME(r, p, L2_CNTL3);
    SAME(r, p, L2_CNTL4);
    SAME(r, p, L2_CNTL5);
    SAME(r, p, L2_STATUS);
    SAME(r, p, DUMMY_PAGE_FAULT_CNTL);
    SAME(r, p, DUMMY_PAGE_FAULT_ADDR_LO32);
    SAME(r, p, DUMMY_PAGE_FAULT_ADDR_HI32);
    SAME(r, p, INVALIDATE_CNTL);
    SAME(r, p, L2_PROTECTION_FAULT_CNTL_LO32);
    SAME(r, p, L2_PROTECTION_FAULT_CNTL_HI32);
    SAME(r, p, L2_PROTECTION_FAULT_CNTL2);
    SAME(r, p, L2_PROTECTION_FAULT_MM_CNTL3);
    SAME(r, p, L2_PROTECTION_FAULT_MM_CNTL4);
    SAME(r, p, L2_PROTECTION_FAULT_STATUS_LO32);
    SAME(r, p, L2_PROTECTION_FAULT_STATUS_HI32);
    SAME(r, p, L2_PROTECTION_FAULT_ADDR_LO32);
    SAME(r, p, L2_PROTECTION_FAULT_ADDR_HI32);
    SAME(r, p, L2_PROTECTION_FAULT_DEFAULT_ADDR_LO32);
    SAME(r, p, L2_PROTECTION_FAULT_DEFAULT_ADDR_HI32);
    ROW(r, p + "CONTEXT1_IDENTITY_0", L2_CONTEXT1_IDENTITY_APERTURE_LOW_ADDR_LO32, 0);
    ROW(r, p + "CONTEXT1_IDENTITY_1", L2_CONTEXT1_IDENTITY_APERTURE_LOW_ADDR_HI32, 0);
    ROW(r, p + "CONTEXT1_IDENTITY_2", L2_CONTEXT1_IDENTITY_APERTURE_HIGH_ADDR_LO32, 0);
    ROW(r, p + "CONTEXT1_IDENTITY_3", L2_CONTEXT1_IDENTITY_APERTURE_HIGH_ADDR_HI32, 0);
    ROW(r, p + "CONTEXT1_IDENTITY_4", L2_CONTEXT_IDENTITY_PHYSICAL_OFFSET_LO32, 0);
    ROW(r, p + "CONTEXT1_IDENTITY_5", L2_CONTEXT_IDENTITY_PHYSICAL_OFFSET_HI32, 0);
    ROW(r, p + "BANK_SELECT_RESERVED_CID", L2_BANK_SELECT_RESERVED_CID, 0);
    ROW(r, p + "BANK_SELECT_RESERVED_CID2", L2_BANK_SELECT_RESERVED_CID2, 0);
    SAME(r, p, FB_LOCATION_BASE_LO32);
    SAME(r, p, FB_LOCATION_BASE_HI32);
    SAME(r, p, FB_LOCATION_TOP_LO32);
    SAME(r, p, FB_LOCATION_TOP_HI32);
    SAME(r, p, AGP_TOP_LO32);
    SAME(r, p, AGP_TOP_HI32);
    SAME(r, p, AGP_BOT_LO32);
    SAME(r, p, AGP_BOT_HI32);
    SAME(r, p, AGP_BASE_LO32);
    SAME(r, p, AGP_BASE_HI32);
    SAME(r, p, SYSTEM_APERTURE_LOW_ADDR_LO32);
    SAME(r, p, SYSTEM_APERTURE_LOW_ADDR_HI32);
    SAME(r, p, SYSTEM_APERTURE_HIGH_ADDR_LO32);
    SAME(r, p, SYSTEM_APERTURE_HIGH_ADDR_HI32);
    SAME(r, p, MX_L1_TLB_CNTL);
    SAME(r, p, CONTEXTS_DISABLE);
    SAME(r, p, PCIE_ATOMIC_SUPPORTED);
    for (unsigned n = 0; n < kContexts; ++n) {
      const auto c = p + "CONTEXT" + std::to_string(n) + "_";
      ROW(r, c + "CNTL", CONTEXT_CNTL, n);
      ROW(r, c + "PAGE_TABLE_BASE_ADDR_LO32", CONTEXT_PAGE_TABLE_BASE_ADDR_LO32, n);
      ROW(r, c + "PAGE_TABLE_BASE_ADDR_HI32", CONTEXT_PAGE_TABLE_BASE_ADDR_HI32, n);
      ROW(r, c + "PAGE_TABLE_START_ADDR_LO32", CONTEXT_PAGE_TABLE_START_ADDR_LO32, n);
      ROW(r, c + "PAGE_TABLE_START_ADDR_HI32", CONTEXT_PAGE_TABLE_START_ADDR_HI32, n);
      ROW(r, c + "PAGE_TABLE_END_ADDR_LO32", CONTEXT_PAGE_TABLE_END_ADDR_LO32, n);
      ROW(r, c + "PAGE_TABLE_END_ADDR_HI32", CONTEXT_PAGE_TABLE_END_ADDR_HI32, n);
      ROW(r, c + "PER_PFVF_PTE_CACHE_FRAGMENT_SIZES", L2_PER_PFVF_PTE_CACHE_FRAGMENT_SIZES, n);
    }
    for (unsigned e = 0; e < kEngines; ++e) {
      const auto g = p + "INVALIDATE_ENG" + std::to_string(e) + "_";
      ROW(r, g + "SEM", INVALIDATE_ENG_SEM, e);
      ROW(r, g + "REQ", INVALIDATE_ENG_REQ, e);
      ROW(r, g + "ACK", INVALIDATE_ENG_ACK, e);
      ROW(r, g + "ADDR_RANGE_LO32", INVALIDATE_ENG_ADDR_RANGE_LO32, e);
      ROW(r, g + "ADDR_RANGE_HI32", INVALIDATE_ENG_ADDR_RANGE_HI32, e);
    }
    if (!mm) continue;
    SAME(r, p, XGMI_LFB_CNTL);
    SAME(r, p, XGMI_LFB_SIZE);
    SAME(r, p, FB_OFFSET);
  }
}

// Offsets of the sheet, for the two parts of a GFXHUB and for an MMHUB.
TEST_P(Registers, HubOffsetsByTheSheet) {
  using namespace gpuumd::vm_hub;
  const auto& mm = rig.topology.mmhubs[1].registers;
  const auto mm2 = rig.gpu->bases().at(gpusim::Ip::kMmhub, 1, 2);
  EXPECT_EQ(mm.dword<CONTEXT_CNTL>(15) - mm2, 0x11Fu);
  EXPECT_EQ(mm.dword<CONTEXT_PAGE_TABLE_BASE_ADDR_LO32>(15) - mm2, 0x199u);
  EXPECT_EQ(mm.dword<CONTEXT_PAGE_TABLE_END_ADDR_HI32>(15) - mm2, 0x1DAu);
  EXPECT_EQ(mm.dword<INVALIDATE_ENG_SEM>(17) - mm2, 0x132u);
  EXPECT_EQ(mm.dword<INVALIDATE_ENG_REQ>(17) - mm2, 0x144u);
  EXPECT_EQ(mm.dword<INVALIDATE_ENG_ACK>(17) - mm2, 0x156u);
  EXPECT_EQ(mm.dword<INVALIDATE_ENG_ADDR_RANGE_LO32>(17) - mm2, 0x179u);
  const auto& gfx = rig.topology.xccs[1].hub.registers;
  const auto gc0 = rig.gpu->bases().at(gpusim::Ip::kGc, 1, 0);
  EXPECT_EQ(gfx.dword<L2_CNTL>() - gc0, 0x15C4u);
  EXPECT_EQ(gfx.dword<L2_PROTECTION_FAULT_STATUS_LO32>() - gc0, 0x15D1u);
  EXPECT_EQ(gfx.dword<L2_CNTL5>() - gc0, 0x15E4u);
  EXPECT_EQ(gfx.dword<FB_LOCATION_BASE_LO32>() - gc0, 0x1624u);
  EXPECT_EQ(gfx.dword<CONTEXT_CNTL>(0) - gc0, 0x1634u);
  EXPECT_EQ(gfx.dword<INVALIDATE_ENG_REQ>(17) - gc0, 0x1668u);
  EXPECT_EQ(gfx.dword<CONTEXT_PAGE_TABLE_BASE_ADDR_LO32>(0) - gc0, 0x169Fu);
  EXPECT_EQ(gfx.dword<CONTEXT_PAGE_TABLE_END_ADDR_LO32>(0) - gc0, 0x16DFu);
}

TEST_P(Registers, InterruptHandler) {
  using namespace gpuumd::osssys;
  const auto& r = rig.topology.osssys;
  for (unsigned v = 0; v < 16; ++v) {
    ROW(r, "IH_VMID_" + std::to_string(v) + "_LUT", IH_VMID_LUT, v);
    ROW(r, "IH_VMID_" + std::to_string(v) + "_LUT_MM", IH_VMID_LUT_MM, v);
  }
  for (unsigned n = 0; n < 8; ++n) ROW(r, "IH_COOKIE_" + std::to_string(n), IH_COOKIE, n);
  for (const unsigned ring : {0u, 1u}) {
    const std::string suffix = ring == 0 ? "" : "_RING1";
    ROW(r, "IH_RB_CNTL" + suffix, IH_RB_CNTL, ring);
    ROW(r, "IH_RB_RPTR" + suffix, IH_RB_RPTR, ring);
    ROW(r, "IH_RB_WPTR" + suffix, IH_RB_WPTR, ring);
    ROW(r, "IH_RB_BASE" + suffix, IH_RB_BASE, ring);
    ROW(r, "IH_RB_BASE_HI" + suffix, IH_RB_BASE_HI, ring);
    ROW(r, "IH_DOORBELL_RPTR" + suffix, IH_DOORBELL_RPTR, ring);
  }
  SAME(r, "", IH_VMID_LUT_INDEX);
  SAME(r, "", IH_RB_WPTR_ADDR_HI);
  SAME(r, "", IH_RB_WPTR_ADDR_LO);
  SAME(r, "", IH_DOORBELL_RETRY_CAM);
  SAME(r, "", IH_RETRY_CAM_ACK);
  SAME(r, "", IH_VERSION);
  SAME(r, "", IH_CNTL);
  SAME(r, "", IH_STORM_CLIENT_LIST_CNTL);
  SAME(r, "", IH_LIMIT_INT_RATE_CNTL);
  SAME(r, "", IH_RETRY_INT_CAM_CNTL);
  SAME(r, "", IH_CNTL2);
  SAME(r, "", IH_STATUS);
  SAME(r, "", IH_INT_FLOOD_CNTL);
  SAME(r, "", IH_MSI_STORM_CTRL);
  SAME(r, "", IH_RING1_CLIENT_CFG_INDEX);
  SAME(r, "", IH_RING1_CLIENT_CFG_DATA);
  SAME(r, "", IH_CHICKEN);
  EXPECT_EQ(r.read<IH_VERSION>().get<IH_VERSION::MAJVER>(), 7u);
  EXPECT_EQ(r.read<IH_VERSION>().get<IH_VERSION::MINVER>(), 1u);
}

TEST_P(Registers, Sdma) {
  using namespace gpuumd::sdma;
  for (unsigned x = 0; x < 2; ++x)
    for (unsigned i = 0; i < 2; ++i) {
      const auto& r = rig.topology.xccs[x].sdma[i];
      const auto p = "XCC" + std::to_string(x) + ".SDMA" + std::to_string(i) + ".";
      SAME(r, p, SDMA_CNTL);
      SAME(r, p, STATUS);
      SAME(r, p, FREEZE);
      SAME(r, p, WATCHDOG_CNTL);
      SAME(r, p, ATOMIC_CNTL);
      SAME(r, p, UTCL1_CNTL);
      SAME(r, p, UTCL1_TIMEOUT);
      SAME(r, p, UTCL1_PAGE);
      SAME(r, p, QUEUE_RESET_REQ);
      SAME(r, p, QUEUE_DEQUEUE_REQUEST);
      SAME(r, p, MCU_CNTL);
      for (unsigned q = 0; q < kQueues; ++q) {
        const auto n = p + "QUEUE" + std::to_string(q) + ".";
        ROW(r, n + "RB_CNTL", RB_CNTL, q);
        ROW(r, n + "RB_BASE", RB_BASE, q);
        ROW(r, n + "RB_BASE_HI", RB_BASE_HI, q);
        ROW(r, n + "RB_RPTR", RB_RPTR, q);
        ROW(r, n + "RB_RPTR_HI", RB_RPTR_HI, q);
        ROW(r, n + "RB_WPTR", RB_WPTR, q);
        ROW(r, n + "RB_WPTR_HI", RB_WPTR_HI, q);
        ROW(r, n + "RB_RPTR_ADDR", RB_RPTR_ADDR_LO, q);
        ROW(r, n + "RB_RPTR_ADDR_HI", RB_RPTR_ADDR_HI, q);
        ROW(r, n + "IB_CNTL", IB_CNTL, q);
        ROW(r, n + "IB_RPTR", IB_RPTR, q);
        ROW(r, n + "IB_OFFSET", IB_OFFSET, q);
        ROW(r, n + "IB_BASE", IB_BASE_LO, q);
        ROW(r, n + "IB_BASE_HI", IB_BASE_HI, q);
        ROW(r, n + "IB_SIZE", IB_SIZE, q);
        ROW(r, n + "DOORBELL", DOORBELL, q);
        ROW(r, n + "DOORBELL_LOG", DOORBELL_LOG, q);
        ROW(r, n + "DOORBELL_OFFSET", DOORBELL_OFFSET, q);
        ROW(r, n + "CSA_ADDR", CSA_ADDR_LO, q);
        ROW(r, n + "CSA_ADDR_HI", CSA_ADDR_HI, q);
        ROW(r, n + "SCHEDULE_CNTL", SCHEDULE_CNTL, q);
        ROW(r, n + "IB_SUB_REMAIN", IB_SUB_REMAIN, q);
        ROW(r, n + "PREEMPT", PREEMPT, q);
        ROW(r, n + "DUMMY_REG", DUMMY_REG, q);
        ROW(r, n + "RB_WPTR_POLL_ADDR", RB_WPTR_POLL_ADDR_LO, q);
        ROW(r, n + "RB_WPTR_POLL_ADDR_HI", RB_WPTR_POLL_ADDR_HI, q);
        ROW(r, n + "RB_AQL_CNTL", RB_AQL_CNTL, q);
        ROW(r, n + "MINOR_PTR_UPDATE", MINOR_PTR_UPDATE, q);
        ROW(r, n + "CONTEXT_SWITCH_STATUS", CONTEXT_SWITCH_STATUS, q);
        ROW(r, n + "MQD_BASE_ADDR", MQD_BASE_LO, q);
        ROW(r, n + "MQD_BASE_ADDR_HI", MQD_BASE_HI, q);
        ROW(r, n + "MQD_CONTROL", MQD_CONTROL, q);
        ROW(r, n + "CONTEXT_STATUS", CONTEXT_STATUS, q);
      }
    }
}

TEST_P(Registers, Lsdma) {
  using namespace gpuumd::lsdma;
  const auto& r = rig.topology.lsdma;
  SAME(r, "LSDMA.", PIO_SRC_ADDR_LO);
  SAME(r, "LSDMA.", PIO_SRC_ADDR_HI);
  SAME(r, "LSDMA.", PIO_DST_ADDR_LO);
  SAME(r, "LSDMA.", PIO_DST_ADDR_HI);
  SAME(r, "LSDMA.", PIO_COMMAND);
  SAME(r, "LSDMA.", PIO_CONSTFILL_DATA);
  SAME(r, "LSDMA.", PIO_CONTROL);
  SAME(r, "LSDMA.", PIO_STATUS);
  const auto status = r.read<PIO_STATUS>();
  EXPECT_EQ(status.raw(), 0x9000'0000u);
  EXPECT_TRUE(status.get<PIO_STATUS::IDLE>() && status.get<PIO_STATUS::FIFO_EMPTY>());
}

TEST_P(Registers, Nbio) {
  using namespace gpuumd::nbio;
  const auto& r = rig.topology.nbio;
  SAME(r, "", MM_INDEX);
  SAME(r, "", MM_DATA);
  SAME(r, "", MM_INDEX_HI);
  SAME(r, "", PCIE_INDEX2);
  SAME(r, "", PCIE_DATA2);
  SAME(r, "", PCIE_INDEX2_HI);
  ROW(r, "RCC_DEV0_EPF0_STRAP0", RCC_STRAP0, 0);
  SAME(r, "", RCC_DOORBELL_APER_EN);
  SAME(r, "", RCC_CONFIG_MEMSIZE);
  SAME(r, "", INTERRUPT_CNTL);
  SAME(r, "", INTERRUPT_CNTL2);
  SAME(r, "", DOORBELL_SELFRING_GPA_APER_BASE_HIGH);
  SAME(r, "", DOORBELL_SELFRING_GPA_APER_BASE_LOW);
  SAME(r, "", DOORBELL_SELFRING_GPA_APER_CNTL);
  SAME(r, "", HDP_REG_COHERENCY_FLUSH_CNTL);
  SAME(r, "", HDP_MEM_COHERENCY_FLUSH_CNTL);
  SAME(r, "", BIF_DOORBELL_CNTL);
  SAME(r, "", BIF_DOORBELL_INT_CNTL);
  SAME(r, "", BIF_FB_EN);
  SAME(r, "", GPU_HDP_FLUSH_REQ);
  SAME(r, "", GPU_HDP_FLUSH_DONE);
  SAME(r, "", BIF_TRANS_PENDING);
  SAME(r, "", PARTITION_COMPUTE_CAP);
  SAME(r, "", PARTITION_MEM_CAP);
  SAME(r, "", PARTITION_COMPUTE_STATUS);
  SAME(r, "", PARTITION_MEM_STATUS);
  SAME(r, "", DOORBELL_ACCESS_EN_PF);
  for (unsigned n = 0; n < 16; ++n) {
    ROW(r, "BIOS_SCRATCH_" + std::to_string(n), BIOS_SCRATCH, n);
    ROW(r, "DRIVER_SCRATCH_" + std::to_string(n), DRIVER_SCRATCH, n);
  }
  for (unsigned n = 0; n < kS2aEntries; ++n) {
    const auto entry = "S2A_DOORBELL_ENTRY_" + std::to_string(n);
    ROW(r, entry + "_CTRL", S2A_DOORBELL_ENTRY_CTRL, n);
    ROW(r, entry + "_CTRL1", S2A_DOORBELL_ENTRY_CTRL1, n);
  }
  EXPECT_EQ(r.dword<RCC_CONFIG_MEMSIZE>(), 0x0DE3u);
  EXPECT_EQ(r.dword<DRIVER_SCRATCH>(0), 0x0094u);
  EXPECT_EQ(r.read<RCC_CONFIG_MEMSIZE>().raw(), Rig::kVram >> 20);
  const auto flushes = rig.gpu->nbio().flushes();
  gpuumd::flush_hdp(r);
  EXPECT_EQ(rig.gpu->nbio().flushes(), flushes + 1);
}

TEST_P(Registers, DoorbellRoutes) {
  using namespace gpuumd::nbio;
  struct Route {
    unsigned entry;
    DoorbellConsumer consumer;
    std::uint32_t first, dwords, word;
    gpusim::DoorbellTarget target;
  };
  const Route routes[] = {
      {0, DoorbellConsumer::kGraphics, 0, 0, 0x3000'0007, gpusim::DoorbellTarget::kGraphics},
      {kIhEntry, DoorbellConsumer::kInterruptHandler, kIhRing0Doorbell, kIhDoorbells, 0x0011'A001,
       gpusim::DoorbellTarget::kInterrupts},
      {kSdmaEntry, DoorbellConsumer::kSdma, kSdmaDoorbells, 4 * kSdmaDoorbellStep,
       0xE001'001D + (4 * kSdmaDoorbellStep << 17), gpusim::DoorbellTarget::kSdma},
  };
  for (const auto& route : routes) {
    const auto word = doorbell_route(route.consumer, route.first, route.dwords);
    EXPECT_EQ(word.raw(), route.word);
    rig.topology.nbio.write(word, route.entry);
    rig.topology.nbio.write(
        base::Value<S2A_DOORBELL_ENTRY_CTRL1>().with<S2A_DOORBELL_ENTRY_CTRL1::TARGET_PORT_TYPE>(
            S2A_DOORBELL_ENTRY_CTRL1::kPortType),
        route.entry);
    const auto seen = rig.gpu->nbio().s2a_entry(route.entry);
    EXPECT_TRUE(seen.enabled);
    EXPECT_EQ(seen.target, static_cast<unsigned>(route.target));
    EXPECT_EQ(seen.first_dword, route.first);
    EXPECT_EQ(seen.dwords, route.dwords);
    EXPECT_FALSE(seen.drop || seen.no_64bit);
  }
}

TEST_P(Registers, SecurityProcessor) {
  using namespace gpuumd::mp0;
  const auto& r = rig.topology.mp0;
  SAME(r, "MP0_SMN_", C2PMSG_33);
  SAME(r, "MP0_SMN_", C2PMSG_35);
  SAME(r, "MP0_SMN_", C2PMSG_59);
  SAME(r, "MP0_SMN_", C2PMSG_64);
  SAME(r, "MP0_SMN_", C2PMSG_67);
  SAME(r, "MP0_SMN_", C2PMSG_69);
  SAME(r, "MP0_SMN_", C2PMSG_70);
  SAME(r, "MP0_SMN_", C2PMSG_71);
  SAME(r, "MP0_SMN_", C2PMSG_81);
  SAME(r, "MP0_SMN_", IH_CREDIT);
  SAME(r, "MP0_SMN_", IH_SW_INT);
  SAME(r, "MP0_SMN_", IH_SW_INT_CTRL);
  EXPECT_EQ(r.dword<C2PMSG_33>(), C2PMSG_33::kBeforeDiscovery);
  EXPECT_TRUE(r.read<C2PMSG_33>().get<C2PMSG_33::COMPLETE>());
  EXPECT_EQ(r.read<C2PMSG_64>().raw(), 0x8000'0000u);
}

TEST_P(Registers, NhtMailbox) {
  using namespace gpuumd::nht;
  gpusim::Nht nht(rig.gpu->context(), rig.gpu->mmhub(0), {});
  const RegisterBlock r(*rig.io, smn_bases());
  SAME(r, "NHT.", CMD);
  SAME(r, "NHT.", DATA);
  SAME(r, "NHT.", ADDR_LO);
  SAME(r, "NHT.", ADDR_HI);
  SAME(r, "NHT.", STATUS);
  EXPECT_EQ(r.read<STATUS>().get<STATUS::STATE>(), Status::kPreInit);
  EXPECT_EQ(rig.topology.nht.dword<CMD>(), 0x0AE1'0958u / 4);
}

// Nominal bases, and two sets from seeds.
INSTANTIATE_TEST_SUITE_P(Bases, Registers, testing::Values(0, 7, 41));

// ---- fields ----

template <class A, class B>
constexpr bool same = A::kMask == B::kMask;

namespace hub_fields {
using D = gpuumd::vm_hub::CONTEXT_CNTL;
using M = gpusim::CONTEXT_CNTL;
static_assert(same<D::ENABLE_CONTEXT, M::ENABLE_CONTEXT>);
static_assert(same<D::PAGE_TABLE_DEPTH, M::PAGE_TABLE_DEPTH>);
static_assert(same<D::PAGE_TABLE_BLOCK_SIZE, M::PAGE_TABLE_BLOCK_SIZE>);
static_assert(
    same<D::RETRY_PERMISSION_OR_INVALID_PAGE_FAULT, M::RETRY_PERMISSION_OR_INVALID_PAGE_FAULT>);
static_assert(same<D::RETRY_OTHER_FAULT, M::RETRY_OTHER_FAULT>);
using DR = gpuumd::vm_hub::INVALIDATE_ENG_REQ;
using MR = gpusim::INVALIDATE_REQ;
static_assert(same<DR::PER_VMID_INVALIDATE_REQ, MR::PER_VMID>);
static_assert(same<DR::FLUSH_TYPE, MR::FLUSH_TYPE>);
static_assert(same<DR::INVALIDATE_L2_PTES, MR::L2_PTES>);
static_assert(same<DR::INVALIDATE_L2_PDE0, MR::L2_PDE0>);
static_assert(same<DR::INVALIDATE_L2_PDE1, MR::L2_PDE1>);
static_assert(same<DR::INVALIDATE_L2_PDE2, MR::L2_PDE2>);
static_assert(same<DR::INVALIDATE_L2_PDE3, MR::L2_PDE3>);
static_assert(same<DR::INVALIDATE_L1_PTES, MR::L1_PTES>);
static_assert(same<DR::CLEAR_PROTECTION_FAULT_STATUS_ADDR, MR::CLEAR_FAULT_STATUS>);
static_assert(same<DR::INVALIDATE_4K_PAGES_ONLY, MR::ONLY_4K_PAGES>);
static_assert(static_cast<unsigned>(gpuumd::vm_hub::FlushType::kHeavy) == MR::kHeavy);
using DS = gpuumd::vm_hub::L2_PROTECTION_FAULT_STATUS_LO32;
using MS = gpusim::FAULT_STATUS_LO;
static_assert(same<DS::MORE_FAULTS, MS::MORE_FAULTS> && same<DS::WALKER_ERROR, MS::WALKER_ERROR>);
static_assert(same<DS::PERMISSION_FAULTS, MS::PERMISSION_FAULTS>);
static_assert(same<DS::MAPPING_ERROR, MS::MAPPING_ERROR> && same<DS::CID, MS::CID>);
static_assert(same<DS::RW, MS::RW> && same<DS::ATOMIC, MS::ATOMIC> && same<DS::VMID, MS::VMID>);
using DH = gpuumd::vm_hub::L2_PROTECTION_FAULT_STATUS_HI32;
static_assert(same<DH::PRT, gpusim::FAULT_STATUS_HI::PRT>);
static_assert(same<DH::UCE, gpusim::FAULT_STATUS_HI::UCE>);
}  // namespace hub_fields

namespace sdma_fields {
using D = gpuumd::sdma::RB_CNTL;
using M = gpusim::RB_CNTL;
static_assert(same<D::RB_ENABLE, M::RB_ENABLE> && same<D::RB_SIZE, M::RB_SIZE>);
static_assert(same<D::WPTR_POLL_ENABLE, M::WPTR_POLL_ENABLE>);
static_assert(same<D::MCU_WPTR_POLL_ENABLE, M::MCU_WPTR_POLL_ENABLE>);
static_assert(same<D::RPTR_WRITEBACK_ENABLE, M::RPTR_WRITEBACK_ENABLE>);
static_assert(same<D::RB_PRIV, M::RB_PRIV> && same<D::RB_VMID, M::RB_VMID>);
static_assert(same<gpuumd::sdma::IB_CNTL::IB_ENABLE, gpusim::IB_CNTL::IB_ENABLE>);
static_assert(same<gpuumd::sdma::IB_CNTL::IB_PRIV, gpusim::IB_CNTL::IB_PRIV>);
static_assert(same<gpuumd::sdma::DOORBELL::ENABLE, gpusim::SDMA_DOORBELL::ENABLE>);
static_assert(same<gpuumd::sdma::DOORBELL::CAPTURED, gpusim::SDMA_DOORBELL::CAPTURED>);
static_assert(same<gpuumd::sdma::DOORBELL_OFFSET::OFFSET, gpusim::SDMA_DOORBELL_OFFSET::OFFSET>);
using DC = gpuumd::sdma::SDMA_CNTL;
using MC = gpusim::SDMA_CNTL;
static_assert(same<DC::TRAP_ENABLE, MC::TRAP_ENABLE>);
static_assert(same<DC::PAGE_RETRY_TIMEOUT_INT_ENABLE, MC::PAGE_RETRY_TIMEOUT_INT>);
static_assert(same<DC::PAGE_NULL_INT_ENABLE, MC::PAGE_NULL_INT>);
static_assert(same<DC::PAGE_FAULT_INT_ENABLE, MC::PAGE_FAULT_INT>);
static_assert(same<DC::CTXEMPTY_INT_ENABLE, MC::CTXEMPTY_INT>);
static_assert(same<gpuumd::sdma::MCU_CNTL::HALT, gpusim::MCU_CNTL::HALT>);
static_assert(same<gpuumd::sdma::MCU_CNTL::RESET, gpusim::MCU_CNTL::RESET>);
static_assert(gpuumd::sdma::kQueues == gpusim::SdmaRegisters::kQueues);
}  // namespace sdma_fields

// 0x08F8_0000 | 1 << v: every level, every kind of entry, type legacy.
TEST(Fields, InvalidateRequestByTheSheet) {
  using D = gpuumd::vm_hub::INVALIDATE_ENG_REQ;
  using M = gpusim::INVALIDATE_REQ;
  for (unsigned vmid = 0; vmid < 16; ++vmid) {
    const auto request = base::Value<D>()
                             .with<D::PER_VMID_INVALIDATE_REQ>(1u << vmid)
                             .with<D::INVALIDATE_L2_PTES>(true)
                             .with<D::INVALIDATE_L2_PDE0>(true)
                             .with<D::INVALIDATE_L2_PDE1>(true)
                             .with<D::INVALIDATE_L2_PDE2>(true)
                             .with<D::INVALIDATE_L2_PDE3>(true)
                             .with<D::INVALIDATE_L1_PTES>(true);
    EXPECT_EQ(request.raw(), 0x08F8'0000u | 1u << vmid);
    const base::Value<M> seen(request.raw());
    EXPECT_EQ(seen.get<M::PER_VMID>(), 1u << vmid);
    EXPECT_TRUE(seen.get<M::L2_PTES>() && seen.get<M::L2_PDE0>() && seen.get<M::L2_PDE1>());
    EXPECT_TRUE(seen.get<M::L2_PDE2>() && seen.get<M::L2_PDE3>() && seen.get<M::L1_PTES>());
    EXPECT_EQ(seen.get<M::FLUSH_TYPE>(), 0u);
  }
}

}  // namespace
}  // namespace contract
