#include "daemon/gpu/device/sdma_table_engine.h"

#include <memory>
#include <utility>

#include "daemon/gpu/engine/sdma_packets.h"

namespace gpuumd {

void SdmaTableEngine::write(std::vector<EngineWrite> writes, Done done) {
  packets_.clear();
  sdma::PacketWriter out(packets_);
  auto last = std::make_shared<Done>(std::move(done));
  for (std::size_t i = 0; i < writes.size(); ++i) {
    const auto& write = writes[i];
    // Value and step say everything; nothing is OR-ed in.
    sdma::pte_pde_generate(out, write.at.value(), 0, write.value,
                           static_cast<std::uint32_t>(write.step), write.count);
    const bool full = packets_.size() + 32 > CopyEngine::kMaxJobDwords;
    if (i + 1 == writes.size())
      engine_.submit(packets_, [last](base::Result<void> result) { (*last)(std::move(result)); });
    else if (full)
      engine_.submit(packets_,
                     [](const base::Result<void>&) {});  // its failure fails the last one too
    if (full) packets_.clear();
  }
}

}  // namespace gpuumd
