// What a doorbell costs the one who rings it, and when a sleeping model notices it: with the wake
// capability and trapped (docs/adr/0001-wake.md).
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tools/bench/bench.h"
#include "vfio/user/user_device.h"

namespace bench {
namespace {

using namespace std::chrono_literals;

// Nobody's: a store there wakes the model and starts nothing.
constexpr std::uint64_t kDoorbell = 0x800;
// The model polls 50 us after its last work.
constexpr auto kUntilAsleep = 300us;

base::UniqueFd connect(const std::string& path) {
  base::UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    throw Failed("connect to " + path + ": " + std::strerror(errno));
  return fd;
}

struct Device {
  Device(const std::string& path, bool offer_wake) {
    vfio::UserOptions options;
    options.offer_wake = offer_wake;
    device = must(vfio::connect_vfio_user(connect(path), "vfio-user:" + path, std::move(options)));
    doorbells = must(device->open_bar(vfio::BarIndex::k2));
  }
  std::unique_ptr<vfio::UserDevice> device;
  std::unique_ptr<vfio::Bar> doorbells;
};

// The word of the wake page, which the vfio client keeps to itself: looked up among our mappings.
const std::atomic<std::uint32_t>* sleeping_word() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("gpusim-wake") != std::string::npos)
      return reinterpret_cast<const std::atomic<std::uint32_t>*>(
          std::stoull(line.substr(0, line.find('-')), nullptr, 16));
  throw Failed("the model has no gpuumd.wake");
}

// From the doorbell until the model says that it is awake.
Block until_awake(Device& device, const std::atomic<std::uint32_t>& sleeping) {
  return timed(
      10,
      [&] {
        device.doorbells->ring_doorbell64(kDoorbell, 1);
        // Whoever is not on a core at that time misses it: one sample too long, of ten.
        const auto end = Clock::now() + 5ms;
        while (sleeping.load(std::memory_order_relaxed) != 0 && Clock::now() < end) {
        }
      },
      [&] {
        spin(kUntilAsleep);
        const auto end = Clock::now() + 1s;
        while (sleeping.load(std::memory_order_relaxed) == 0 && Clock::now() < end) spin(50us);
      });
}

// The other way for a mapped page: whoever serves it sleeps, and looks once a millisecond.
class MillisecondPoll {
 public:
  MillisecondPoll() : thread_([this] { look(); }) {}
  ~MillisecondPoll() {
    end_ = true;
    thread_.join();
  }
  // From the store until it has been seen.
  Block until_seen() {
    return timed(
        10,
        [this] {
          stored_.fetch_add(1, std::memory_order_release);
          const auto end = Clock::now() + 20ms;
          while (seen_.load(std::memory_order_acquire) != stored_ && Clock::now() < end) {
          }
        },
        // Another part of its millisecond each time.
        [this] { spin(kUntilAsleep + 37us * (stored_ % 27)); });
  }

 private:
  void look() {
    pin(kServerCore);
    while (!end_) {
      std::this_thread::sleep_for(1ms);
      seen_.store(stored_.load(std::memory_order_acquire), std::memory_order_release);
    }
  }
  std::atomic<std::uint64_t> stored_{0}, seen_{0};
  std::atomic<bool> end_{false};
  std::thread thread_;
};

}  // namespace

void run_wake(Context& context) {
  const auto directory = context.directory + "/wake";
  std::filesystem::create_directories(directory);
  const auto model =
      must(Program::start(context.bin + "/gpusim", {"--dir", directory, "--gpus", "2"}, kServerCore,
                          "ready", directory + "/gpusim.log"));
  // Both GPUs of a process sleep and wake together, so the word of one tells of a message to the
  // other.
  Device with_wake(directory + "/gpu0.sock", true);
  Device trapped(directory + "/gpu1.sock", false);
  const auto& sleeping = *sleeping_word();
  const Section section(context, "doorbell of a model in another process",
                        "driver on core 0, gpusim on core 1");
  // The one before keeps it awake, and there is time to serve each.
  const auto ring = [](Device& device) {
    return timed(
        50, [&device] { device.doorbells->ring_doorbell64(kDoorbell, 1); }, [] { spin(20us); });
  };
  const base::UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const auto signal = timed(200, [&] {
    const std::uint64_t one = 1;
    (void)!::write(event.get(), &one, sizeof(one));
  });
  print_pairs("model awake: trapped, ringer's cost", "gpuumd.wake",
              measure(context.pairs(), context.time(), ring(trapped), ring(with_wake)));
  print_pairs("model awake: eventfd written each time", "gpuumd.wake",
              measure(context.pairs(), context.time(), signal, ring(with_wake)));
  print_pairs("model asleep: trapped, until it is awake", "gpuumd.wake",
              measure(context.pairs(), context.time(), until_awake(trapped, sleeping),
                      until_awake(with_wake, sleeping)));
  MillisecondPoll poll;
  print_pairs("model asleep: a look each millisecond, until it has looked", "gpuumd.wake",
              measure(context.pairs(), context.time(), poll.until_seen(),
                      until_awake(with_wake, sleeping)));
  if (trapped.device->lost() || with_wake.device->lost()) throw Failed("the model was lost");
}

}  // namespace bench
