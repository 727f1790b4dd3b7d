// Random replies, from a seed: whatever comes, each call ends, with a result or a typed error.
#include <algorithm>
#include <cstdlib>
#include <random>

#include "rig.h"

namespace vfio_test {
namespace {

namespace wire = vfio::wire;

constexpr unsigned kIterations = 2000;

class Fuzz : public Rig {
 protected:
  // A well-behaved reply with bytes changed, cut, grown or replaced, and at times descriptors.
  static void garble(std::mt19937& random, ScriptedServer& s, Packet& reply) {
    const auto below = [&](std::size_t n) { return random() % n; };
    Bytes all = bytes_of(reply.header);
    all.insert(all.end(), reply.body.begin(), reply.body.end());
    switch (below(6)) {
      case 0:  // nothing of it is left
        all.resize(below(64));
        std::ranges::generate(all, [&] { return std::byte(random()); });
        break;
      case 1:
        all.resize(below(all.size() + 1));
        break;
      case 2: {  // another size, and as many bytes
        const auto size = static_cast<std::uint32_t>(below(200));
        base::store(std::span(all), 4, size);
        all.resize(size);
        break;
      }
      case 3:
        reply.send_fds.resize(below(12), s.bar0.get());
        break;
      default:
        for (auto n = 1 + below(8); n > 0; --n) all[below(all.size())] ^= std::byte(1 << below(8));
    }
    if (!all.empty()) s.send_raw(all, reply.send_fds);
    if (below(2) == 0) s.hang_up();
  }

  void use(std::mt19937& random, int memory) {
    for (int i = 0; i < 6 && !device_->lost(); ++i) {
      switch (random() % 8) {
        case 0:
          (void)device_->read_config(0, 4);
          break;
        case 1:
          (void)device_->map_dma(memory, 0, 4096, Iova(random() % 4 * 4096), Rights::kReadWrite);
          break;
        case 2:
          (void)device_->unmap_dma(Iova(random() % 4 * 4096), 4096);
          break;
        case 3:
          (void)device_->arm_msix(1 + random() % 9);
          break;
        case 4:
          (void)device_->reset();
          break;
        case 5:
          device_->handle_events();
          break;
        default:
          if (auto bar = device_->open_bar(static_cast<BarIndex>(random() % 6))) {
            if ((*bar)->size() >= 8) {
              (*bar)->write32(0, 1);
              (void)(*bar)->read64(0);
            }
          }
      }
    }
  }
};

TEST_F(Fuzz, RandomRepliesEndEveryCall) {
  const char* given = std::getenv("GPUUMD_SEED");
  const unsigned seed = given != nullptr ? static_cast<unsigned>(std::atoi(given)) : 20;
  auto options = patient();
  options.handshake = options.trap = options.call = options.reset = 20ms;
  const auto memory = base::make_memfd("memory", 4096).value();
  unsigned connected = 0;
  for (unsigned i = 0; i < kIterations; ++i) {
    SCOPED_TRACE("GPUUMD_SEED=" + std::to_string(seed) + " iteration " + std::to_string(i));
    std::mt19937 random(seed + i);
    std::mt19937 server_random(seed + i + 1'000'000);
    // Well-behaved up to some message, so that each stage is reached.
    unsigned good = random() % 12;
    server_.emplace();
    for (std::uint16_t command = 1; command <= 13; ++command)
      server().script(static_cast<Command>(command),
                      [&](ScriptedServer& s, const Packet& request, Packet& reply) {
                        if ((request.header.flags & wire::kNoReply) != 0) return;
                        if (good > 0) {
                          --good;
                          s.send(reply);
                        } else {
                          garble(server_random, s, reply);
                        }
                      });
    if (try_connect(options)) {
      ++connected;
      use(random, memory.get());
    }
    device_.reset();
    server_.reset();
  }
  EXPECT_GT(connected, kIterations / 4);
}

}  // namespace
}  // namespace vfio_test
