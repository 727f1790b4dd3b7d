// Page table entries written by the daemon's own SDMA queue, for TableWriter. Device thread.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/gpu/engine/copy_engine.h"
#include "daemon/gpu/memory/table_writer.h"

namespace gpuumd {

class SdmaTableEngine final : public TableEngine {
 public:
  // The engine outlives it.
  explicit SdmaTableEngine(CopyEngine& engine) : engine_(engine) {}
  void write(std::vector<EngineWrite> writes, Done done) override;

 private:
  CopyEngine& engine_;
  std::vector<std::uint32_t> packets_;
};

}  // namespace gpuumd
