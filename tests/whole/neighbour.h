// A client that works all the time and must not notice what others do.
#pragma once

#include <atomic>
#include <thread>

#include "tests/whole/client.h"

namespace whole {

class WithNeighbours : public System {
 protected:
  // Of node 0's status.
  std::uint64_t count(const std::vector<std::string>& path) {
    return number(0, GPUUMD_QUERY_STATUS, path);
  }
};

// Somebody who works all the time, in a thread and a session of its own; every byte is checked.
class Neighbour {
 public:
  static constexpr std::uint64_t kSize = 4 << 20;
  explicit Neighbour(const std::string& runtime_dir)
      : client_(must(gpuumd::Client::connect(runtime_dir, "neighbour", 20s))),
        device_(must(client_.open_device(0u))),
        space_(Space::make(device_, GPUUMD_VM_FAULTS)),
        buffer_(vram(device_, kSize)),
        data_(random_bytes(kSize, 50)) {
    space_.map_on_fault(kVa, buffer_, kSize, 256 << 10);
    must(space_.staging.upload(kVa, data_, gpuumd::Wait(30s)));
    thread_ = std::thread([this] {
      while (!ended_.load()) {
        std::vector<std::byte> back(kSize);
        const auto read = space_.staging.download(back, kVa, gpuumd::Wait(15s));
        if (!read || back != data_) {
          bad_.fetch_add(1);
          return;
        }
        rounds_.fetch_add(1);
      }
    });
  }
  ~Neighbour() { end(); }
  // Whether it goes on from here.
  bool works() {
    const int before = rounds_.load();
    return eventually([&] { return bad_.load() != 0 || rounds_.load() >= before + 2; }) &&
           bad_.load() == 0;
  }
  bool end() {
    ended_ = true;
    if (thread_.joinable()) thread_.join();
    return bad_.load() == 0;
  }

 private:
  gpuumd::Client client_;
  gpuumd::Device device_;
  Space space_;
  gpuumd::Buffer buffer_;
  std::vector<std::byte> data_;
  std::atomic<bool> ended_{false};
  std::atomic<int> rounds_{0}, bad_{0};
  std::thread thread_;
};

}  // namespace whole
