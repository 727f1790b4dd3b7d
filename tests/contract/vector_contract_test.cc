// One interrupt vector of each kind: raised by the model's block, written into a ring that the
// daemon's register definitions set up, read by the daemon (docs/hardware/ih.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/gpu/bringup/psp_records.h"
#include "daemon/gpu/engine/sdma_instance.h"
#include "daemon/gpu/engine/sdma_packets.h"
#include "daemon/gpu/engine/sdma_queue.h"
#include "daemon/gpu/interrupt/page_fault.h"
#include "daemon/gpu/memory/pte.h"
#include "daemon/gpu/registers/mp0.h"
#include "tests/contract/contract_rig.h"
#include "tests/fake/fake_pci_device.h"

namespace contract {
namespace {

using gpusim::AccessType;
using gpuumd::HubKind;
using gpuumd::IvClient;
namespace iv = gpuumd::iv;

constexpr std::uint64_t kVa = 0x01AB'CDEF'0123'4000;  // 57 bits, the top one set
constexpr unsigned kVmid = 7;
constexpr std::uint16_t kPasid = 0x1234, kPasidMm = 0x4321;

struct Vectors : testing::Test {
  Rig rig;

  Vectors() {
    rig.start_interrupts();
    using namespace gpuumd::osssys;
    rig.topology.osssys.write(base::Value<IH_VMID_LUT>(kPasid), kVmid);
    rig.topology.osssys.write(base::Value<IH_VMID_LUT_MM>(kPasidMm), kVmid);
  }
  // VMID kVmid of the hub: an empty tree of five levels.
  void enable_context(const gpuumd::VmHub& hub, bool retry) {
    using namespace gpuumd::vm_hub;
    const auto& r = hub.registers;
    const auto root =
        gpuumd::directory_entry(rig.physical(rig.allocate(base::kPageSize)), false).raw();
    r.write(base::Value<CONTEXT_PAGE_TABLE_BASE_ADDR_LO32>(lo(root)), kVmid);
    r.write(base::Value<CONTEXT_PAGE_TABLE_BASE_ADDR_HI32>(hi(root)), kVmid);
    r.write(base::Value<CONTEXT_PAGE_TABLE_START_ADDR_LO32>(0), kVmid);
    r.write(base::Value<CONTEXT_PAGE_TABLE_START_ADDR_HI32>(0), kVmid);
    r.write(base::Value<CONTEXT_PAGE_TABLE_END_ADDR_LO32>(~0u), kVmid);
    r.write(base::Value<CONTEXT_PAGE_TABLE_END_ADDR_HI32>(0x1FFF), kVmid);
    using C = CONTEXT_CNTL;
    r.write(base::Value<C>()
                .with<C::ENABLE_CONTEXT>(true)
                .with<C::PAGE_TABLE_DEPTH>(4)
                .with<C::RETRY_PERMISSION_OR_INVALID_PAGE_FAULT>(retry)
                .with<C::RANGE_PROTECTION_FAULT_ENABLE_INTERRUPT>(true)
                .with<C::PDE0_PROTECTION_FAULT_ENABLE_INTERRUPT>(true)
                .with<C::VALID_PROTECTION_FAULT_ENABLE_INTERRUPT>(true)
                .with<C::READ_PROTECTION_FAULT_ENABLE_INTERRUPT>(true)
                .with<C::WRITE_PROTECTION_FAULT_ENABLE_INTERRUPT>(true),
            kVmid);
    r.write(base::Value<L2_PROTECTION_FAULT_CNTL2>()
                .with<L2_PROTECTION_FAULT_CNTL2::ENABLE_RETRY_FAULT_INTERRUPT>(true));
  }
  void access(const gpuumd::VmHub& hub, AccessType type, std::uint64_t va = kVa + 0x234) {
    gpusim::Run run;
    const gpusim::Requester who{"test", kVmid, 10, 10};
    rig.model_hub(hub).translate(who, va, 4, type, run);
  }
};

std::uint32_t head(unsigned client, unsigned source, unsigned ring, unsigned vmid, bool mm) {
  return client | source << 8 | ring << 16 | vmid << 24 | (mm ? 1u << 31 : 0);
}

TEST_F(Vectors, PageFaultsOfEveryHub) {
  for (const bool retry : {false, true})
    for (const auto& hub : rig.hubs()) {
      const bool mm = hub.kind == HubKind::kMmhub;
      enable_context(hub, retry);
      struct Kind {
        AccessType type;
        std::uint32_t bits;
      };
      std::uint64_t page = kVa;
      for (const auto& [type, bits] :
           {Kind{AccessType::kRead, 1u << 22}, Kind{AccessType::kWrite, 1u << 21},
            Kind{AccessType::kAtomic, 3u << 21}}) {
        rig.clock.advance(std::chrono::microseconds(3));
        access(hub, type, page + 0x234);
        const auto vector = rig.vector();
        ASSERT_TRUE(vector) << "hub " << hub.instance << (mm ? " MMHUB" : " GFXHUB");
        // By the sheet.
        const unsigned node = mm ? 8 * hub.instance : 2 + hub.instance;
        EXPECT_EQ(vector->dwords[0], head(mm ? 0x12 : 0x1B, retry ? 1 : 0, 0, kVmid, mm));
        EXPECT_EQ(vector->dwords[3], (mm ? kPasidMm : kPasid) | node << 16);
        EXPECT_EQ(vector->dwords[4], lo(page >> 12));
        EXPECT_EQ(vector->dwords[5], (page >> 44 & 0x1FFF) | bits);
        EXPECT_EQ(vector->dwords[6], 0u);
        EXPECT_EQ(vector->timestamp(), static_cast<std::uint64_t>(rig.clock.now().count()) / 10);
        // As the daemon reads it.
        const auto fault = gpuumd::decode_page_fault(*vector, rig.topology.hubs());
        ASSERT_TRUE(fault);
        EXPECT_EQ(fault->hub, hub.kind);
        EXPECT_EQ(fault->instance, hub.instance);
        EXPECT_EQ(fault->vmid.value(), kVmid);
        EXPECT_EQ(fault->pasid.value(), mm ? kPasidMm : kPasid);
        EXPECT_EQ(fault->va.value(), page);
        EXPECT_EQ(fault->read, type != AccessType::kWrite);
        EXPECT_EQ(fault->write, type != AccessType::kRead);
        EXPECT_FALSE(fault->execute);
        EXPECT_EQ(fault->retry, retry);
        page += base::kPageSize;
      }
      EXPECT_FALSE(rig.vector());
    }
}

// Two pages, two entries; acknowledged by the index that the daemon reads, they are free.
TEST_F(Vectors, CamIndices) {
  const auto& hub = rig.topology.xccs[1].hub;
  enable_context(hub, true);
  std::vector<std::uint16_t> indices;
  for (unsigned i = 0; i < 3; ++i) {
    access(hub, AccessType::kRead, kVa + i * base::kPageSize);
    access(hub, AccessType::kRead, kVa + i * base::kPageSize);
    const auto vector = rig.vector();
    ASSERT_TRUE(vector);
    EXPECT_EQ(vector->dwords[7] & ~0x3FFu, 0u);
    indices.push_back(gpuumd::cam_index(*vector));
    EXPECT_FALSE(rig.vector()) << "one vector while the entry lives";
  }
  EXPECT_NE(indices[0], indices[1]);
  EXPECT_NE(indices[1], indices[2]);
  using gpuumd::osssys::IH_RETRY_CAM_ACK;
  rig.topology.osssys.write(
      base::Value<IH_RETRY_CAM_ACK>().with<IH_RETRY_CAM_ACK::INDEX>(indices[1]));
  access(hub, AccessType::kRead, kVa);
  EXPECT_FALSE(rig.vector()) << "that of the first page still lives";
  access(hub, AccessType::kRead, kVa + base::kPageSize);
  EXPECT_TRUE(rig.vector());
}

TEST_F(Vectors, FaultStatusAndAddress) {
  using namespace gpuumd::vm_hub;
  for (const auto& hub : rig.hubs()) {
    enable_context(hub, false);
    access(hub, AccessType::kWrite);
    using S = L2_PROTECTION_FAULT_STATUS_LO32;
    const auto status = hub.registers.read<S>();
    EXPECT_TRUE(status.get<S::RW>());
    EXPECT_EQ(status.get<S::VMID>(), kVmid);
    EXPECT_EQ(status.get<S::CID>(), 10u);
    EXPECT_EQ(status.get<S::PERMISSION_FAULTS>(), 5u) << "D17: not valid, write";
    const auto page = hub.registers.read<L2_PROTECTION_FAULT_ADDR_LO32>().raw() |
                      std::uint64_t{hub.registers.read<L2_PROTECTION_FAULT_ADDR_HI32>().raw()}
                          << 32;
    EXPECT_EQ(page, kVa >> 12);
    using C = L2_PROTECTION_FAULT_CNTL_LO32;
    hub.registers.write(base::Value<C>().with<C::CLEAR_PROTECTION_FAULT_STATUS_ADDR>(true));
    EXPECT_EQ(hub.registers.read<S>().raw(), 0u);
  }
}

// Traps, and queues that stop: instance and queue in ring_id, the XCC in node_id.
TEST_F(Vectors, SdmaTrapsAndErrors) {
  using namespace gpuumd;
  const auto& nbio = rig.topology.nbio;
  nbio.write(base::Value<nbio::RCC_DOORBELL_APER_EN>(1));
  nbio.write(base::Value<nbio::DOORBELL_ACCESS_EN_PF>(nbio::DOORBELL_ACCESS_EN_PF::kAll));
  nbio.write(nbio::doorbell_route(nbio::DoorbellConsumer::kSdma, nbio::kSdmaDoorbells,
                                  4 * nbio::kSdmaDoorbellStep),
             nbio::kSdmaEntry);
  nbio.write(base::Value<nbio::S2A_DOORBELL_ENTRY_CTRL1>(3), nbio::kSdmaEntry);
  fake::FakeBar doorbells(8192);
  doorbells.state().on_doorbell = [&](std::uint64_t offset, std::uint64_t value) {
    rig.gpu->ring_doorbell(offset, value, 8);
  };
  for (unsigned x = 0; x < 2; ++x)
    for (unsigned i = 0; i < 2; ++i)
      for (const unsigned q : {0u, 9u}) {
        const auto& registers = rig.topology.xccs[x].sdma[i];
        SdmaInstance(registers, "").start();
        SdmaQueue::Place place;
        place.registers = registers;
        place.queue = q;
        place.doorbells = &doorbells;
        place.doorbell = nbio::sdma_doorbell(2 * x + i, q);
        place.ring = rig.allocate(1024);
        place.pointers = rig.allocate(SdmaQueue::kPointerBytes);
        SdmaQueue queue(place);
        queue.program();
        std::vector<std::uint32_t> packets;
        sdma::PacketWriter out(packets);
        sdma::trap(out, 0x0ABC'DEF);
        ASSERT_TRUE(queue.submit(packets));
        auto vector = rig.vector();
        ASSERT_TRUE(vector) << x << "." << i << " q" << q;
        EXPECT_EQ(vector->dwords[0], head(0x0A, 0x31, q | i << 4, 0, false));
        EXPECT_EQ(vector->node(), 2 + x);
        EXPECT_EQ(vector->dwords[4], 0x0ABC'DEFu);
        EXPECT_EQ(vector->client(), IvClient::kGfx);
        EXPECT_EQ(vector->source(), iv::kSdmaTrap);
        EXPECT_EQ(xcc_of_node(vector->node()), x);

        packets.assign(1, 0xFF);  // no packet at all
        ASSERT_TRUE(queue.submit(packets));
        vector = rig.vector();
        ASSERT_TRUE(vector);
        EXPECT_EQ(vector->dwords[0], head(0x0A, 0x44, q | i << 4, 0, false));
        EXPECT_EQ(vector->source(), iv::kSdmaBadCommand);
        EXPECT_EQ(xcc_of_node(vector->node()), x);

        // A page of VMID 0 that is not there.
        queue.disable();
        queue.program();
        packets.clear();
        constexpr std::uint64_t kNowhere = 0x7123'4567'8000;
        sdma::fence(out, kNowhere, 1);
        ASSERT_TRUE(queue.submit(packets));
        std::optional<InterruptVector> stop;
        while (auto next = rig.vector())
          if (next->client() == IvClient::kGfx) stop = next;
        ASSERT_TRUE(stop);
        EXPECT_EQ(stop->source(), iv::kSdmaPageFault);
        EXPECT_EQ(stop->source_data(1) | std::uint64_t{stop->source_data(2)} << 32, kNowhere >> 12);
        queue.disable();
      }
}

// Eight XCCs on two AIDs, four MIDs: the numbers that both sides use for each node.
TEST(Nodes, D20_XccsAndMids) {
  const unsigned nodes[8] = {0x2, 0x3, 0x4, 0x5, 0xA, 0xB, 0xC, 0xD};
  for (unsigned x = 0; x < 8; ++x) EXPECT_EQ(gpuumd::xcc_of_node(nodes[x]), x);
  for (const unsigned other : {0x0, 0x1, 0x6, 0x7, 0x8, 0x9, 0xE, 0xF})
    EXPECT_FALSE(gpuumd::xcc_of_node(other)) << other;

  gpusim::GpuOptions options;
  options.vram_bytes = options.bar0_bytes = 64 << 20;
  options.xccs = 8;
  options.mids = 4;
  gpusim::FakeClock clock;
  auto gpu = gpusim::Gpu::create(options, {.clock = clock});
  ASSERT_TRUE(gpu) << gpu.error().message();
  gpusim::FakeBus bus(Rig::kHost, Rig::kHostBytes);
  (*gpu)->attach(bus);
  auto& file = (*gpu)->registers();
  const auto ih = (*gpu)->bases().at(gpusim::Ip::kOsssys, 0, 0);
  file.write(ih + 0x83, lo(Rig::kHost >> 8));
  file.write(ih + 0x84, 0);
  file.write(ih + 0x80, 1 | 12 << 1 | 1 << 16 | 2 << 28);
  unsigned read = 0;
  // VMID 1 is off everywhere: each access is a final fault. Its vector needs the interrupt bits.
  const auto fault = [&](gpusim::VmHub& hub, std::uint32_t cntl) {
    file.write(cntl, 0x0155'5400);
    gpusim::Run run;
    hub.translate({"test", 1, 10, 10}, 0x1000, 4, AccessType::kRead, run);
    while ((*gpu)->step()) {
    }
    gpuumd::InterruptVector vector;
    for (unsigned i = 0; i < 8; ++i) vector.dwords[i] = bus.word(Rig::kHost + read + 4 * i);
    read += 32;
    return vector;
  };
  const gpuumd::HubSet all{.mmhubs = 0xF, .gfxhubs = 0xFF};
  for (unsigned x = 0; x < 8; ++x) {
    const auto vector =
        fault((*gpu)->gfxhub(x), (*gpu)->bases().at(gpusim::Ip::kGc, x, 0) + 0x1634 + 1);
    EXPECT_EQ(vector.node(), nodes[x]);
    const auto decoded = gpuumd::decode_page_fault(vector, all);
    ASSERT_TRUE(decoded);
    EXPECT_EQ(decoded->instance, x);
    EXPECT_EQ(decoded->hub, HubKind::kGfxhub);
  }
  for (unsigned m = 0; m < 4; ++m) {
    const auto vector =
        fault((*gpu)->mmhub(m), (*gpu)->bases().at(gpusim::Ip::kMmhub, m, 2) + 0x110 + 1);
    EXPECT_EQ(vector.node(), 8 * m);
    const auto decoded = gpuumd::decode_page_fault(vector, all);
    ASSERT_TRUE(decoded);
    EXPECT_EQ(decoded->instance, m);
    EXPECT_EQ(decoded->hub, HubKind::kMmhub);
  }
}

TEST_F(Vectors, SecurityProcessor) {
  using namespace gpuumd::mp0;
  const auto& mp0 = rig.topology.mp0;
  using Notice = gpusim::SecurityProcessor::Notice;
  using Kind = gpuumd::psp::Request::Kind;
  rig.gpu->security_processor().notify(Notice::kPause);
  EXPECT_FALSE(rig.vector()) << "masked at reset";
  mp0.write(base::Value<IH_SW_INT>().with<IH_SW_INT::ID>(0xFF));
  mp0.write(base::Value<IH_SW_INT_CTRL>().with<IH_SW_INT_CTRL::INT_MASK>(false));
  const auto vector = rig.vector();
  ASSERT_TRUE(vector);
  EXPECT_EQ(vector->dwords[0], head(0x1E, 0xFF, 0, 0, false));
  EXPECT_EQ(vector->dwords[4], 1u << 24 | 2);
  const auto request = gpuumd::psp::decode_request(*vector);
  ASSERT_TRUE(request);
  EXPECT_EQ(request->category, gpuumd::psp::Request::Category::kCommand);
  EXPECT_EQ(request->kind, Kind::kPause);
  EXPECT_TRUE(mp0.read<IH_SW_INT>().get<IH_SW_INT::VALID>());
  mp0.modify<IH_SW_INT_CTRL>([](auto v) { return v.template with<IH_SW_INT_CTRL::INT_ACK>(true); });
  EXPECT_FALSE(mp0.read<IH_SW_INT>().get<IH_SW_INT::VALID>());
  static_assert(static_cast<int>(Kind::kConfigUpdate) == static_cast<int>(Notice::kConfigUpdate));
  static_assert(static_cast<int>(Kind::kResume) == static_cast<int>(Notice::kResume));
}

// Ring 1 has no write-back and no message of its own: ring 0 tells where it stands.
TEST_F(Vectors, RingOneAndItsSelfInterrupt) {
  using namespace gpuumd::osssys;
  const auto& ih = rig.topology.osssys;
  ih.write(base::Value<IH_RING1_CLIENT_CFG_INDEX>(0));
  ih.write(base::Value<IH_RING1_CLIENT_CFG_DATA>()
               .with<IH_RING1_CLIENT_CFG_DATA::CLIENT_ID>(0x0A)
               .with<IH_RING1_CLIENT_CFG_DATA::SOURCE_ID>(0)
               .with<IH_RING1_CLIENT_CFG_DATA::SOURCE_ID_MATCH_ENABLE>(true));
  rig.gpu->interrupts().raise({.client = 0x0A, .source = 0, .vmid = 3, .src_data = {1, 2, 3, 4}});
  const auto self = rig.vector(0);
  ASSERT_TRUE(self);
  EXPECT_EQ(self->dwords[0], head(0, 0, 1, 0, false));
  EXPECT_EQ(self->client(), IvClient::kIh);
  EXPECT_EQ(self->source(), iv::kSelf);
  EXPECT_EQ(self->ring_id(), 1u);
  EXPECT_EQ(self->source_data(0), 32u);
  const auto vector = rig.vector(1);
  ASSERT_TRUE(vector);
  EXPECT_EQ(vector->dwords[0], head(0x0A, 0, 0, 3, false));
  EXPECT_THAT(std::span(vector->dwords).last(4), testing::ElementsAre(1, 2, 3, 4));
  // Another source of that client stays on ring 0.
  rig.gpu->interrupts().raise({.client = 0x0A, .source = 0x31});
  EXPECT_FALSE(rig.vector(1));
  EXPECT_TRUE(rig.vector(0));
}

TEST(Image, EveryField) {
  gpusim::Iv model;
  model.client = 0x1C;
  model.source = 0xE7;
  model.ring_id = 0x19;
  model.vmid = 15;
  model.vmid_src_mmhub = true;
  model.pasid = 0xFFFE;
  model.node_id = 0xA5;
  model.src_data = {0x1111'1111, 0x2222'2222, 0x3333'3333, 0x4444'4444};
  const gpuumd::InterruptVector vector{gpusim::encode(model, 0xABCD'1234'5678)};
  EXPECT_EQ(vector.client(), IvClient::kNht);
  EXPECT_EQ(vector.source(), 0xE7u);
  EXPECT_EQ(vector.ring_id(), 0x19u);
  EXPECT_EQ(vector.vmid().value(), 15u);
  EXPECT_EQ(vector.dw0().get<iv::DW0::VMID_SRC>(), 1u);
  EXPECT_EQ(vector.pasid().value(), 0xFFFEu);
  EXPECT_EQ(vector.node(), 0xA5u);
  EXPECT_EQ(vector.timestamp(), 0xABCD'1234'5678u);
  for (unsigned i = 0; i < 4; ++i) EXPECT_EQ(vector.source_data(i), model.src_data[i]);
}

}  // namespace
}  // namespace contract
