// A vfio-user server in a thread of the test, at the other end of a socketpair. By itself it is a
// well-behaved PCI device; a test makes it misbehave by changing the replies to one command.
//
// The device: BAR 0 is 64 KiB of sealed memory, mapped whole; BAR 2 is 16 KiB of doorbells, the
// second page mapped, with "gpuumd.wake" when the client offers it; BAR 5 is 64 KiB of registers,
// page 3 mapped, the rest trapped; 4 KiB of configuration space; 9 MSI-X vectors.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/address.h"
#include "base/bytes.h"
#include "base/fd.h"
#include "base/shared_memory.h"
#include "vfio/user/user_wire.h"

namespace vfio_test {

using vfio::wire::Command;
using vfio::wire::Header;

using Bytes = std::vector<std::byte>;

struct Packet {
  Header header{};
  Bytes body;
  std::vector<base::UniqueFd> fds;  // received
  std::vector<int> send_fds;        // to send, not owned
  bool is(Command command) const { return header.command == static_cast<std::uint16_t>(command); }
  template <class T>
  T as(std::size_t offset = 0) const {
    return base::load<T>(body, offset);
  }
};

template <class... Parts>
Bytes bytes_of(const Parts&... parts) {
  Bytes all;
  const auto add = [&all](std::span<const std::byte> part) {
    all.insert(all.end(), part.begin(), part.end());
  };
  (add(base::as_bytes(parts)), ...);
  return all;
}

inline constexpr std::uint64_t kBar0Size = 64 * base::kKiB;
inline constexpr std::uint64_t kBar2Size = 16 * base::kKiB;
inline constexpr std::uint64_t kBar5Size = 64 * base::kKiB;
inline constexpr std::uint64_t kDoorbellPage = 4096;        // in BAR 2
inline constexpr std::uint64_t kMappedRegister = 3 * 4096;  // in BAR 5

class ScriptedServer {
 public:
  // Gets the well-behaved reply and sends what it likes instead. On the server's thread.
  using Script = std::function<void(ScriptedServer&, const Packet& request, Packet& reply)>;

  // kInline: no thread; the test calls step(), as a model in line is stepped by its host.
  enum class Host { kThread, kInline };
  explicit ScriptedServer(Host host = Host::kThread);
  ~ScriptedServer();

  void step();                         // kInline: handles one message if one is there
  std::function<void()> while_asking;  // kInline: called while ask() waits

  base::UniqueFd take_client_end() { return std::move(client_end_); }

  // From now on `script` sends the replies to `command`; empty: well-behaved again.
  void script(Command command, Script script);

  // Sends. Any thread, one at a time.
  void send(const Packet& packet);
  void send_raw(std::span<const std::byte> bytes, std::span<const int> fds = {});
  void hang_up();

  // A command of the server, from another thread: the answer is collected by the server's thread.
  std::uint16_t send_command(Command command, Bytes body, std::uint32_t flags = 0);
  // The answer to a command; nothing when it does not come in ten seconds.
  std::optional<Packet> wait_answer(std::uint16_t id);
  // The same from within a script, i.e. on the server's thread.
  Packet ask(Command command, Bytes body);

  // Waits (ten seconds at most) until `done` holds; it is called locked after each message.
  bool wait_until(const std::function<bool()>& done);
  std::size_t count(Command command);  // how many arrived
  Packet last(Command command);        // without its descriptors

  // The device's state. The server's thread changes it: look only after a reply or wait_until().
  struct DmaMap {
    vfio::wire::DmaMap request;
    base::UniqueFd fd;
  };
  std::map<std::uint64_t, DmaMap> dma_maps;
  std::map<std::uint32_t, base::UniqueFd> vectors;
  std::array<std::byte, 4096> config{};
  std::vector<std::byte> registers;  // BAR 5
  unsigned resets = 0;
  bool client_offered_wake = false;
  std::string capabilities;  // JSON of the VERSION reply; set before connecting
  std::string client_json;

  base::UniqueFd bar0, bar2, bar5, wake_page;
  base::UniqueFd wake_eventfd;
  base::Mapping bar0_memory, bar2_memory, bar5_memory, wake_memory;

 private:
  void run();
  bool read_exactly(std::span<std::byte> to, std::vector<base::UniqueFd>& fds);
  std::optional<Packet> read_packet();
  void handle(Packet packet);
  Packet well_behaved(Packet& request);
  void version(Packet& request, Packet& reply);
  void region_info(const Packet& request, Packet& reply);
  void region_access(const Packet& request, Packet& reply);
  void dma(Packet& request, Packet& reply);
  void interrupts(Packet& request, Packet& reply);

  base::UniqueFd socket_;
  base::UniqueFd client_end_;
  std::mutex mutex_;
  std::mutex send_mutex_;
  std::condition_variable changed_;
  std::map<Command, Script> scripts_;
  std::map<Command, std::size_t> counts_;
  std::map<Command, Packet> last_;
  std::map<std::uint16_t, Packet> answers_;
  std::vector<Packet> postponed_;
  std::uint16_t next_id_ = 0x8000;
  std::thread thread_;
};

// Number of open descriptors of this process.
std::size_t open_descriptors();

}  // namespace vfio_test
