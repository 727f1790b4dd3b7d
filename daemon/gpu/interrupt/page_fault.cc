#include "daemon/gpu/interrupt/page_fault.h"

namespace gpuumd {
namespace {

// node_id: bits above 2 number the MID or AID; 2:0 say which node of it.
constexpr unsigned kMidNode = 0, kFirstXcc = 2, kXccsAnAid = 4;

bool has(std::uint32_t mask, unsigned instance) {
  return instance < 32 && (mask >> instance & 1) != 0;
}

}  // namespace

bool is_page_fault(const InterruptVector& vector) {
  const auto client = vector.client();
  if (client != IvClient::kVmc && client != IvClient::kGcUtcl2) return false;
  return vector.source() == iv::kFault || vector.source() == iv::kRetryFault;
}

bool is_retry_fault(const InterruptVector& vector) {
  return is_page_fault(vector) && vector.source() == iv::kRetryFault;
}

std::uint16_t cam_index(const InterruptVector& vector) {
  return static_cast<std::uint16_t>(
      base::Value<iv::FAULT_SRC3>(vector.source_data(3)).get<iv::FAULT_SRC3::CAM_INDEX>());
}

std::optional<unsigned> xcc_of_node(std::uint8_t node) {
  const unsigned aid = node >> 3;
  const unsigned place = node & 7;
  if (place < kFirstXcc || place >= kFirstXcc + kXccsAnAid) return {};
  return aid * kXccsAnAid + place - kFirstXcc;
}

std::optional<PageFault> decode_page_fault(const InterruptVector& vector, HubSet hubs) {
  if (!is_page_fault(vector)) return {};
  PageFault fault;
  if (vector.client() == IvClient::kVmc) {
    const unsigned mid = vector.node() >> 3;
    if ((vector.node() & 7) != kMidNode || !has(hubs.mmhubs, mid)) return {};
    fault.hub = HubKind::kMmhub;
    fault.instance = mid;
  } else {
    const auto xcc = xcc_of_node(vector.node());
    if (!xcc || !has(hubs.gfxhubs, *xcc)) return {};
    fault.hub = HubKind::kGfxhub;
    fault.instance = *xcc;
  }
  const base::Value<iv::FAULT_SRC1> word(vector.source_data(1));
  fault.vmid = vector.vmid();
  fault.pasid = vector.pasid();
  fault.va = base::GpuVa(word.get<iv::FAULT_SRC1::PAGE_56_44>() << 44 |
                         std::uint64_t{vector.source_data(0)} << 12);
  fault.read = word.get<iv::FAULT_SRC1::READ>();
  fault.write = word.get<iv::FAULT_SRC1::WRITE>();
  fault.execute = word.get<iv::FAULT_SRC1::EXECUTE>();
  fault.retry = is_retry_fault(vector);
  fault.cam_index = fault.retry ? cam_index(vector) : 0;
  fault.timestamp = vector.timestamp();
  return fault;
}

}  // namespace gpuumd
