// Every code of gpuumd_status once: a real cause, the code, and a text that names the thing.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/whole/child.h"
#include "tests/whole/client.h"
#include "tests/whole/relay.h"

namespace whole {
namespace {

using namespace gpuumd;

constexpr std::uint64_t kSize = 1 << 20;

template <class T>
Failure failure_of(const Outcome<T>& outcome) {
  return outcome ? Failure{GPUUMD_OK, "it worked"} : outcome.error();
}

class ErrorCauses : public System {
 public:
  // ---- of the request ----

  Failure misaligned_bind() {
    work_alone();
    return failure_of(space().vm.map(kVa + 0x100, buffer(), 0, 4096, kReadWrite));
  }
  Failure bind_past_the_end_of_a_buffer() {
    work_alone();
    return failure_of(space().vm.map(kVa, buffer(), kSize, 4096, kReadWrite));
  }
  Failure bind_over_another() {
    work_alone();
    must(space().vm.map(kVa, buffer(), 0, kSize, kReadWrite));
    return failure_of(space().vm.map(kVa + 4096, buffer(), 0, 4096, kReadWrite));
  }
  Failure device_of_no_such_name() {
    start();
    return failure_of(connect().open_device("nobody"));
  }
  Failure write_to_a_read_only_range() {
    work_alone();
    must(space().vm.map(kVa, buffer(), 0, kSize, GPUUMD_BIND_READ));
    return failure_of(space().copy(kVa, kStagingVa, 4096));
  }
  Failure cpu_view_of_vram() {
    work_alone();
    return failure_of(buffer().cpu_view());
  }
  Failure copy_from_where_nothing_is() {
    work_alone();
    return failure_of(space().copy(kStagingVa, 5 * kVa, 4096));
  }

  // ---- of resources ----

  Failure host_buffer_larger_than_memory() {
    work_alone();
    return failure_of(device().create_buffer(GPUUMD_BUFFER_HOST, std::uint64_t{1} << 50));
  }
  Failure vram_buffer_as_large_as_vram() {
    work_alone();
    return failure_of(device().create_buffer(GPUUMD_BUFFER_VRAM, device().info().vram_bytes));
  }
  Failure more_vms_than_a_device_has() {
    work_alone();
    std::vector<Vm> vms;
    for (;;) {
      auto vm = device().create_vm();
      if (!vm || vms.size() > 100) return failure_of(vm);
      vms.push_back(std::move(*vm));
    }
  }
  Failure no_event_there() {
    start();
    return failure_of(connect().next_event());
  }

  // ---- of processes ----

  Failure fence_that_nobody_raises() {
    work_alone();
    return failure_of(space().fence.wait(1, Wait(50ms)));
  }
  Failure daemon_killed() {
    work_alone();
    kill_daemon(0);
    return failure_of(device().ping());
  }
  Failure parents_device_in_a_child() {
    work_alone();
    Child child([this](const Child::Say& say) {
      const auto ping = failure_of(device().ping());
      say(std::to_string(ping.status));
      say(ping.text);
      return 0;
    });
    const auto status = child.line(), text = child.line();
    if (!status || !text) return {GPUUMD_OK, "the child said nothing"};
    return {static_cast<gpuumd_status>(std::stoi(*status)), *text};
  }
  Failure runtime_directory_that_leads_to_itself() {
    std::filesystem::create_symlink("loop", directory() + "/loop");
    return failure_of(Client::connect(directory() + "/loop"));
  }
  Failure library_of_a_later_protocol() {
    start();
    Relay relay(directory() + "/relay", runtime_dir(0), from_the_future, [](auto&) {});
    return failure_of(Client::connect(relay.directory()));
  }
  Failure welcome_with_its_end_missing() {
    start();
    Relay relay(
        directory() + "/relay", runtime_dir(0), [](auto&) {},
        [](auto& welcome) { welcome.resize(welcome.size() - 8); });
    return failure_of(Client::connect(relay.directory()));
  }

  // ---- of the device ----

  Failure model_killed() {
    work_alone();
    kill_model();
    EXPECT_TRUE(eventually([&] { return must(space().vm.state()) == GPUUMD_DEVICE_LOST; }));
    EXPECT_EQ(must(buffer().state()), GPUUMD_DEVICE_LOST);
    const auto failure = failure_of(connect().open_device(0u));
    kill_daemon(0);  // it would say that its device could not be shut down
    return failure;
  }
  Failure bus_that_refuses_an_access() {
    work_alone();
    expect(Mistake::kBusError);
    must(space().vm.map(kVa, buffer(), 0, kSize, kReadWrite));
    for (const auto* engine : {"gfxhub0", "gfxhub1"})
      control(R"({"command": ")" + std::string(engine) +
              R"(.wrong_iova", "add": "0x4000000000000"})");
    return failure_of(space().copy(kVa, kStagingVa, 4096));
  }
  // Two VMs on one engine that hangs for good: the end of one is a reset for the other.
  Failure neighbour_on_an_engine_that_hangs() {
    start({.gpus = 1, .model = {{"xccs", "1"}}, .daemon = {}});
    open_session(0);
    must(space().vm.map(kVa, buffer(), 0, kSize, kReadWrite));
    auto other = std::make_optional(must(device().create_vm()));
    auto queue = must(other->create_queue());
    control(R"({"command": "sdma0.0.hang", "hard": true})");
    must(space().queue.fill(kVa, kSize, 1));
    must(space().queue.signal(space().fence, 1));
    must(space().queue.submit());
    must(queue.fill(kVa, 4096, 1));
    must(queue.submit());
    EXPECT_TRUE(
        eventually([&] { return number(0, GPUUMD_QUERY_STATUS, {"work", "in_flight"}) == 2; }));
    other.reset();
    return failure_of(space().fence.wait(1, Wait(30s)));
  }

  // ---- of the peer ----

  Failure exporter_revokes() {
    work_with_an_import();
    must(exported_->revoke(Wait(20s)));
    return failure_of(space().copy(kStagingVa, kVa, 4096));
  }
  Failure way_to_the_exporter_is_cut() {
    work_with_an_import();
    cut();
    return failure_of(space().copy(kStagingVa, kVa, 4096));
  }
  // The exporter's driver is gone and its device was reset: the link is there, the memory is
  // closed.
  Failure exporter_has_closed_its_memory() {
    work_with_an_import();
    kill_daemon(1);
    control(R"({"command": "device.reset", "gpu": 1})");
    std::this_thread::sleep_for(100ms);  // the link trains for 1 ms
    return failure_of(space().copy(kStagingVa, kVa, 4096));
  }

 private:
  void TestBody() override {}

 protected:
  Device& device() { return *device_; }
  Space& space() { return *space_; }
  Buffer& buffer() { return *buffer_; }

  void open_session(unsigned node) {
    client_.emplace(connect(node));
    device_.emplace(open(*client_));
    space_.emplace(Space::make(*device_));
    buffer_.emplace(vram(*device_, kSize));
  }
  void work_alone() {
    start();
    open_session(0);
  }
  // Node 0 has memory of node 1 at kVa.
  void work_with_an_import() {
    start({.gpus = 2, .model = {}, .daemon = {"--no-same-host"}});
    open_session(0);
    exporter_.emplace(connect(1));
    exporters_device_.emplace(open(*exporter_));
    exported_.emplace(vram(*exporters_device_, kSize));
    import_.emplace(must(device().import_handle(must(exported_->export_handle()), Wait(20s))));
    must(space().vm.map(kVa, *import_, 0, kSize, GPUUMD_BIND_READ));
    must(space().copy(kStagingVa, kVa, 4096));
  }
  void cut() {
    const auto id = [&](unsigned node) {
      return std::to_string(number(node, GPUUMD_QUERY_STATUS, {"accelerator_id"}));
    };
    control(R"({"command": "fabric.cut", "a": )" + id(0) + R"(, "b": )" + id(1) + "}");
  }

  // In the order in which they are made: objects go before what they belong to.
  std::optional<Client> client_, exporter_;
  std::optional<Device> device_, exporters_device_;
  std::optional<Space> space_;
  std::optional<Buffer> buffer_, exported_, import_;
};

struct Case {
  gpuumd_status status;
  Failure (ErrorCauses::*provoke)();
  const char* named;  // in the text
  friend std::ostream& operator<<(std::ostream& out, const Case& one) {
    return out << gpuumd_status_text(one.status);
  }
};

using E = ErrorCauses;
const Case kCases[] = {
    {GPUUMD_INVALID_ARGUMENT, &E::misaligned_bind, "0x001000000100"},
    {GPUUMD_OUT_OF_RANGE, &E::bind_past_the_end_of_a_buffer, "4096 bytes at 0x001000000000"},
    {GPUUMD_EXISTS, &E::bind_over_another, "0x001000001000"},
    {GPUUMD_NOT_FOUND, &E::device_of_no_such_name, "'nobody'"},
    {GPUUMD_PERMISSION, &E::write_to_a_read_only_range, "fence point 1"},
    {GPUUMD_NO_MEMORY, &E::host_buffer_larger_than_memory, "1125899906842624 bytes"},
    {GPUUMD_NO_SPACE, &E::vram_buffer_as_large_as_vram, "VRAM: 1073741824 bytes"},
    {GPUUMD_LIMIT, &E::more_vms_than_a_device_has, "VMIDs: all 13"},
    {GPUUMD_TIMEOUT, &E::fence_that_nobody_raises, "fence"},
    {GPUUMD_DISCONNECTED, &E::daemon_killed, "daemon is gone"},
    {GPUUMD_DEVICE_LOST, &E::model_killed, "gpu0.sock"},
    {GPUUMD_DEVICE_ERROR, &E::bus_that_refuses_an_access, "fence point 1"},
    {GPUUMD_PROTOCOL, &E::welcome_with_its_end_missing, "message of the daemon"},
    {GPUUMD_UNSUPPORTED, &E::cpu_view_of_vram, "not in host memory"},
    {GPUUMD_REVOKED, &E::exporter_revokes, "fence point 2"},
    {GPUUMD_PEER_LOST, &E::way_to_the_exporter_is_cut, "fence point 2"},
    {GPUUMD_REFUSED, &E::exporter_has_closed_its_memory, "fence point 2"},
    {GPUUMD_FAULT, &E::copy_from_where_nothing_is, "fence point 1"},
    {GPUUMD_RESET, &E::neighbour_on_an_engine_that_hangs, "fence point 1"},
    {GPUUMD_AGAIN, &E::no_event_there, "no event"},
    {GPUUMD_SYSTEM, &E::runtime_directory_that_leads_to_itself, "loop/gpuumd.sock"},
    {GPUUMD_WRONG_PROCESS, &E::parents_device_in_a_child, "fork()"},
    {GPUUMD_WRONG_VERSION, &E::library_of_a_later_protocol, "protocol 99"},
};

class Errors : public ErrorCauses, public ::testing::WithParamInterface<Case> {};

TEST_P(Errors, ComesOfItsCauseAndNamesTheThing) {
  const auto failure = (this->*GetParam().provoke)();
  EXPECT_EQ(failure.status, GetParam().status)
      << gpuumd_status_text(failure.status) << ": " << failure.text;
  EXPECT_NE(failure.text.find(GetParam().named), std::string::npos) << failure.text;
  EXPECT_EQ(std::ranges::count(failure.text, '\n'), 0) << failure.text;
}

std::string camel_case(const ::testing::TestParamInfo<Case>& info) {
  std::string name;
  bool upper = true;
  for (const char* c = gpuumd_status_text(info.param.status); *c != 0; ++c) {
    if (std::isalpha(static_cast<unsigned char>(*c)) != 0)
      name += static_cast<char>(upper ? std::toupper(*c) : *c);
    upper = std::isalpha(static_cast<unsigned char>(*c)) == 0;
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(Status, Errors, ::testing::ValuesIn(kCases), camel_case);

// gpuumd_status_text() knows every enumerator (-Wswitch), and has nothing to say of other values.
TEST(ErrorCodes, EveryCodeHasACause) {
  for (int status = GPUUMD_OK + 1; status < 256; ++status) {
    const std::string text = gpuumd_status_text(static_cast<gpuumd_status>(status));
    const auto provoked = std::ranges::count(kCases, status, &Case::status);
    EXPECT_EQ(provoked, text == "unknown status" ? 0 : 1) << status << ": " << text;
  }
}

}  // namespace
}  // namespace whole
