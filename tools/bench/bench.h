// What the benchmarks share: what they were asked for, the processes they measure, and how a result
// is printed.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpuumd/gpuumd.hpp"
#include "tools/bench/bare_server.h"
#include "tools/bench/machine.h"
#include "tools/bench/measure.h"
#include "tools/bench/program.h"

namespace bench {

inline constexpr std::uint32_t kReadWrite = GPUUMD_BIND_READ | GPUUMD_BIND_WRITE;

struct Context {
  bool quick = false;
  std::string bin;                   // where gpuumd and gpusim are
  std::string directory;             // ours, removed at the end
  std::vector<std::string> devices;  // to use in place of a model of our own; two for a pod
  BareServer& bare;

  unsigned pairs() const { return quick ? 20 : 100; }
  std::chrono::seconds time() const { return std::chrono::seconds(quick ? 2 : 12); }
};

// Ends a benchmark with the text of what went wrong; main() reports it.
struct Failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};
template <class T>
T must(gpuumd::Outcome<T> outcome) {
  if (!outcome) throw Failed(outcome.error().text);
  if constexpr (!std::is_void_v<T>) return std::move(*outcome);
}
template <class T>
T must(base::Result<T> result) {
  if (!result) throw Failed(result.error().message());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// A heading with what bears on all lines below it; the destructor adds what disturbed them.
class Section {
 public:
  Section(const Context& context, const std::string& title, const std::string& placement);
  ~Section();

 private:
  BareServer& bare_;
  Disturbance disturbance_;
};
void print_cost(const std::string& what, const Spread& ns);
void print_pairs(const std::string& what, const std::string& beside, const Pairs& pairs,
                 const std::string& aim = "");

// gpuumd with the model in line, all of it on kServerCore; or on the first device that was given.
struct InlineDaemon {
  explicit InlineDaemon(const Context& context, const std::string& model_options = "");
  // What the heading of a section says of it.
  static std::string placement(const Context& context);
  Program daemon;
  gpuumd::Client client;
  gpuumd::Device device;
};

// A pod of two GPUs in one gpusim on kServerCore, and a gpuumd for each on kClientCore; or the two
// devices that were given. Exports and imports go over the fabric.
struct Pod {
  explicit Pod(const Context& context);
  static std::string placement(const Context& context);
  std::optional<Program> model;
  std::vector<Program> daemons;
  std::vector<gpuumd::Client> clients;
  std::vector<gpuumd::Device> devices;
};

// A VM with a queue whose work is waited for by polling or as `wait` says.
struct Work {
  explicit Work(gpuumd::Device& device, std::uint32_t vm_flags = 0);
  void copy(std::uint64_t to, std::uint64_t from, std::uint64_t bytes,
            const gpuumd::Wait& wait = gpuumd::Wait::polling());
  gpuumd::Vm vm;
  gpuumd::Queue queue;
  gpuumd::Fence fence;
  std::uint64_t point = 0;
};

void run_ping(Context& context);
void run_map(Context& context);
void run_fault(Context& context);
void run_wake(Context& context);
// One device, opened by the bench itself: what an access costs that is trapped, and one that is
// mapped; what a DMA mapping costs.
void run_trap(Context& context);
void run_import(Context& context, Pod& pod);
void run_copy(Context& context, Pod& pod);

}  // namespace bench
