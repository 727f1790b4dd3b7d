#include "daemon/session/fence_page.h"

#include <cstring>
#include <utility>

namespace gpuumd {

void FenceSlots::create(Gpu& gpu, DoneWith<std::unique_ptr<FenceSlots>> done) {
  HostMemory::Request request{"gpuumd-fences", kBytes, false, F_SEAL_SHRINK | F_SEAL_GROW};
  gpu.host_memory().create(
      request, [&gpu, done = std::move(done)](base::Result<HostBuffer> made) mutable {
        if (!made) return done(std::unexpected(made.error()));
        std::unique_ptr<FenceSlots> self(new FenceSlots);
        self->buffer_ = *made;
        gpu.host_memory().map_cpu(*made, [&gpu, self = std::move(self), done = std::move(done)](
                                             base::Result<base::Mapping> cpu) mutable {
          if (!cpu) return done(std::unexpected(cpu.error()));
          self->cpu_ = std::move(*cpu);
          const auto buffer = self->buffer_;
          gpu.dma().map_all(
              buffer, vfio::Rights::kReadWrite,
              [self = std::move(self),
               done = std::move(done)](base::Result<std::vector<HostChunk>> chunks) mutable {
                if (!chunks) return done(std::unexpected(chunks.error()));
                self->chunks_ = std::move(*chunks);
                // Daemon and device have their mappings; from here on there are no new writable
                // ones.
                if (::fcntl(self->buffer_.fd()->get(), F_ADD_SEALS,
                            F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
                  return done(base::fail(base::Errc::kSystem, "seal the fence page", errno));
                for (auto slot = kSlots; slot > 0; --slot) self->free_.push_back(slot - 1);
                done(std::move(self));
              });
        });
      });
}

base::Result<std::uint32_t> FenceSlots::take() {
  if (free_.empty()) return base::fail(base::Errc::kLimit, "fences of a session: 256");
  const auto index = free_.back();
  free_.pop_back();
  std::memset(&slot(index), 0, sizeof(wire::FenceSlot));
  return index;
}

void FenceSlots::give_back(std::uint32_t slot) { free_.push_back(slot); }

}  // namespace gpuumd
