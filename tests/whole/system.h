// A whole system in a temporary directory: gpusim, a gpuumd for each GPU, and clients in this
// process.
//
// With GPUUMD_TEST_DEVICES, names of devices with a blank between them, these are used and no
// gpusim is started: the pod that they belong to is somebody else's. Tests that make sense there
// have a suite whose name begins with "Guest" (docs/testing.md "In the guest"). Those that ask for
// more devices, or for an option of the model that GPUUMD_TEST_MODEL ("stall=queue vram=1G") does
// not name, are skipped.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gpuumd/gpuumd.hpp"
#include "tests/whole/process.h"

namespace whole {

struct SystemOptions {
  unsigned gpus = 1;
  std::map<std::string, std::string> model;  // options of gpusim: {"stall", "instance"}
  std::vector<std::string> daemon;           // further arguments of each gpuumd
};

// What the model must not have seen: mistakes of a driver that do no harm in a model, and would on
// hardware or to another client.
enum class Mistake {
  kBusError,    // an access to host memory that was not mapped, or a refused one
  kPoisonRead,  // memory read that had been another client's and was not written since
  kProtocol,    // a flush without the semaphore, a ring pointer that cannot be
};

// The names in GPUUMD_TEST_DEVICES; none when it is not set.
std::vector<std::string> given_devices();

// The fixture of every whole-system test. TearDown() ends everything in order, and fails the test
// for a process that did not end well, for mistakes that the model counted and the test did not
// announce, and for a daemon that a client's leavings stay in.
class System : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // gpusim and its daemons; fails the test when anything does not come up. Skips it, by an
  // exception, when the given devices are not what it asks for.
  void start(SystemOptions options = {});
  void start_daemon(unsigned node);
  // SIGKILL; TearDown() then expects nothing of it.
  void kill_daemon(unsigned node);
  // SIGTERM; it has to end with this exit code.
  void end_daemon(unsigned node, int code);
  void kill_model();

  const std::string& directory() const { return directory_; }
  std::string runtime_dir(unsigned node) const;
  Process& model() { return *model_; }
  Process& daemon(unsigned node) { return *daemons_.at(node); }

  gpuumd::Client connect(unsigned node = 0, const std::string& name = "test");
  gpuumd::Device open(gpuumd::Client& client);
  // A field of the JSON of gpuumd_query() on a node, by path: {"work", "slices"}.
  std::uint64_t number(unsigned node, std::uint32_t query, const std::vector<std::string>& path);
  // Runs a command of the model's control socket and gives the answer. Not with given devices.
  std::string control(const std::string& command);
  // The test provokes it.
  void expect(Mistake mistake) { expected_.insert(mistake); }
  // What the model counted so far, with the counters in words; nothing with given devices, whose
  // model is somebody else's to ask.
  std::map<Mistake, std::string> mistakes();
  // Fails the test for what was not announced; TearDown() does it.
  void check_mistakes();

 private:
  void start_model();
  std::string device_name(unsigned node) const;
  void report_long_turns() const;

  std::string directory_;
  const std::vector<std::string> given_ = given_devices();
  std::unique_ptr<Process> model_;
  std::map<unsigned, std::unique_ptr<Process>> daemons_;
  SystemOptions options_;
  std::set<Mistake> expected_;
};

// Unwraps an outcome or fails the test with its text.
template <class T>
T must(gpuumd::Outcome<T> outcome) {
  if (!outcome) {
    ADD_FAILURE() << outcome.error().text << " (status " << outcome.error().status << ")";
    throw std::runtime_error(outcome.error().text);  // ends the test; GoogleTest catches it
  }
  if constexpr (!std::is_void_v<T>) return std::move(*outcome);
}

std::vector<std::byte> random_bytes(std::size_t bytes, std::uint64_t seed);

}  // namespace whole
