#include "scripted_server.h"

#include <dirent.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace vfio_test {
namespace {

namespace wire = vfio::wire;
using namespace std::chrono_literals;

constexpr auto kPatience = 10s;

}  // namespace

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

ScriptedServer::ScriptedServer(Host host) : registers(kBar5Size) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  socket_.reset(ends[0]);
  client_end_.reset(ends[1]);
  const auto memory = [](const char* name, std::uint64_t size, base::UniqueFd& fd,
                         base::Mapping& mapping) {
    fd = base::make_memfd(name, size).value();
    mapping = base::Mapping::map(fd.get(), 0, size, PROT_READ | PROT_WRITE).value();
  };
  memory("bar0", kBar0Size, bar0, bar0_memory);
  memory("bar2", kBar2Size, bar2, bar2_memory);
  memory("bar5", kBar5Size, bar5, bar5_memory);
  memory("wake", 4096, wake_page, wake_memory);
  wake_eventfd.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  base::store(config, 0, std::uint32_t{0x74a11002});
  base::store(config, 8, std::uint32_t{0x12000007});
  if (host == Host::kThread) thread_ = std::thread([this] { run(); });
}

ScriptedServer::~ScriptedServer() {
  hang_up();
  if (thread_.joinable()) thread_.join();
}

void ScriptedServer::step() {
  pollfd socket{socket_.get(), POLLIN, 0};
  if (::poll(&socket, 1, 0) <= 0) return;
  if (auto packet = read_packet()) handle(std::move(*packet));
}

void ScriptedServer::script(Command command, Script script) {
  const std::lock_guard lock(mutex_);
  scripts_[command] = std::move(script);
}

void ScriptedServer::send_raw(std::span<const std::byte> bytes, std::span<const int> fds) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 32)> control{};
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  const std::lock_guard lock(send_mutex_);
  while (part.iov_len > 0) {
    const ssize_t sent = ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL);
    if (sent <= 0) return;  // the client has gone
    part.iov_base = static_cast<std::byte*>(part.iov_base) + sent;
    part.iov_len -= static_cast<std::size_t>(sent);
    header.msg_control = nullptr;
    header.msg_controllen = 0;
  }
}

void ScriptedServer::send(const Packet& packet) {
  Bytes all = bytes_of(packet.header);
  all.insert(all.end(), packet.body.begin(), packet.body.end());
  send_raw(all, packet.send_fds);
}

void ScriptedServer::hang_up() { ::shutdown(socket_.get(), SHUT_RDWR); }

std::uint16_t ScriptedServer::send_command(Command command, Bytes body, std::uint32_t flags) {
  Packet packet;
  {
    const std::lock_guard lock(mutex_);
    packet.header.id = next_id_++;
  }
  packet.header.command = static_cast<std::uint16_t>(command);
  packet.header.size = static_cast<std::uint32_t>(sizeof(Header) + body.size());
  packet.header.flags = flags;
  packet.body = std::move(body);
  send(packet);
  return packet.header.id;
}

std::optional<Packet> ScriptedServer::wait_answer(std::uint16_t id) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kPatience, [&] { return answers_.contains(id); })) return {};
  return std::move(answers_.extract(id).mapped());
}

Packet ScriptedServer::ask(Command command, Bytes body) {
  const auto id = send_command(command, std::move(body));
  pollfd socket{socket_.get(), POLLIN, 0};
  while (while_asking && ::poll(&socket, 1, 0) == 0) while_asking();
  while (auto packet = read_packet()) {
    if ((packet->header.flags & wire::kTypeMask) != wire::kTypeReply)
      postponed_.push_back(std::move(*packet));
    else if (packet->header.id == id)
      return std::move(*packet);
  }
  return {};
}

bool ScriptedServer::wait_until(const std::function<bool()>& done) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, done);
}

std::size_t ScriptedServer::count(Command command) {
  const std::lock_guard lock(mutex_);
  return counts_[command];
}

Packet ScriptedServer::last(Command command) {
  const std::lock_guard lock(mutex_);
  Packet copy;
  copy.header = last_[command].header;
  copy.body = last_[command].body;
  return copy;
}

bool ScriptedServer::read_exactly(std::span<std::byte> to, std::vector<base::UniqueFd>& fds) {
  while (!to.empty()) {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 32)> control;
    iovec part{to.data(), to.size()};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
    if (got <= 0) return false;
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
      const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        fds.emplace_back(fd);
      }
    }
    to = to.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

std::optional<Packet> ScriptedServer::read_packet() {
  Packet packet;
  if (!read_exactly(base::as_writable_bytes(packet.header), packet.fds)) return {};
  packet.body.resize(packet.header.size - sizeof(Header));
  if (!read_exactly(packet.body, packet.fds)) return {};
  return packet;
}

void ScriptedServer::run() {
  while (auto packet = read_packet()) {
    handle(std::move(*packet));
    while (!postponed_.empty()) {
      Packet next = std::move(postponed_.front());
      postponed_.erase(postponed_.begin());
      handle(std::move(next));
    }
  }
}

void ScriptedServer::handle(Packet packet) {
  if ((packet.header.flags & wire::kTypeMask) == wire::kTypeReply) {
    const std::lock_guard lock(mutex_);
    const auto id = packet.header.id;
    answers_.insert_or_assign(id, std::move(packet));
    changed_.notify_all();
    return;
  }
  const auto command = static_cast<Command>(packet.header.command);
  Packet reply;
  Script script;
  {
    const std::lock_guard lock(mutex_);
    script = scripts_[command];
    last_[command].header = packet.header;
    last_[command].body = packet.body;
    reply = well_behaved(packet);
    ++counts_[command];
    changed_.notify_all();
  }
  if (script)
    script(*this, packet, reply);
  else if ((packet.header.flags & wire::kNoReply) == 0)
    send(reply);
}

Packet ScriptedServer::well_behaved(Packet& request) {
  Packet reply;
  reply.header = request.header;
  reply.header.flags = wire::kTypeReply;
  switch (static_cast<Command>(request.header.command)) {
    case Command::kVersion:
      version(request, reply);
      break;
    case Command::kDeviceGetInfo:
      reply.body = bytes_of(wire::DeviceInfo{16, wire::kDeviceCanReset | wire::kDeviceIsPci, 9, 5});
      break;
    case Command::kDeviceGetRegionInfo:
      region_info(request, reply);
      break;
    case Command::kRegionRead:
    case Command::kRegionWrite:
      region_access(request, reply);
      break;
    case Command::kDmaMap:
    case Command::kDmaUnmap:
      dma(request, reply);
      break;
    case Command::kDeviceGetIrqInfo:
    case Command::kDeviceSetIrqs:
      interrupts(request, reply);
      break;
    case Command::kDeviceReset:
      ++resets;
      break;
    default:
      break;
  }
  reply.header.size = static_cast<std::uint32_t>(sizeof(Header) + reply.body.size());
  return reply;
}

void ScriptedServer::version(Packet& request, Packet& reply) {
  client_json.assign(reinterpret_cast<const char*>(request.body.data()) + sizeof(wire::Version),
                     request.body.size() - sizeof(wire::Version) - 1);
  client_offered_wake = client_json.find("gpuumd.wake") != std::string::npos;
  std::string json = capabilities;
  if (json.empty()) {
    json = R"({"capabilities": {"max_msg_fds": 4, "max_data_xfer_size": 65536, "pgsizes": 4096,)"
           R"( "max_dma_maps": 100)";
    if (client_offered_wake) {
      json += R"(, "gpuumd.wake": {"version": 1, "regions": [2]})";
      reply.send_fds = {wake_page.get(), wake_eventfd.get()};
    }
    json += "}}";
  }
  reply.body = bytes_of(wire::Version{0, 1});
  const auto text = std::as_bytes(std::span(json.c_str(), json.size() + 1));
  reply.body.insert(reply.body.end(), text.begin(), text.end());
}

void ScriptedServer::region_info(const Packet& request, Packet& reply) {
  const auto index = request.as<wire::RegionInfo>().index;
  wire::RegionInfo info{32, wire::kRegionReadable | wire::kRegionWriteable, index, 0, 0, 0};
  std::optional<wire::SparseArea> area;
  switch (index) {
    case 0:
      info.size = kBar0Size;
      info.flags |= wire::kRegionMappable;
      reply.send_fds = {bar0.get()};
      break;
    case 2:
      info.size = kBar2Size;
      if (client_offered_wake) {
        area = {kDoorbellPage, 4096};
        reply.send_fds = {bar2.get()};
      }
      break;
    case 5:
      info.size = kBar5Size;
      area = {kMappedRegister, 4096};
      reply.send_fds = {bar5.get()};
      break;
    case wire::kConfigRegion:
      info.size = config.size();
      break;
    default:
      break;
  }
  if (!area) {
    reply.body = bytes_of(info);
    return;
  }
  info.flags |= wire::kRegionMappable | wire::kRegionHasCapabilities;
  info.capability_offset = sizeof(info);
  info.argsz = sizeof(info) + 32;
  reply.body = bytes_of(info, wire::CapabilityHeader{wire::kCapabilitySparseMmap, 1, 0},
                        wire::SparseMmap{1, 0}, *area);
}

void ScriptedServer::region_access(const Packet& request, Packet& reply) {
  const auto access = request.as<wire::RegionAccess>();
  const bool in_config = access.region == wire::kConfigRegion;
  const std::span<std::byte> space = in_config ? std::span<std::byte>(config) : registers;
  reply.body = bytes_of(access);
  const auto target = space.subspan(access.offset, access.count);
  if (request.is(Command::kRegionRead))
    reply.body.insert(reply.body.end(), target.begin(), target.end());
  else
    std::memcpy(target.data(), request.body.data() + sizeof(access), access.count);
}

void ScriptedServer::dma(Packet& request, Packet& reply) {
  if (request.is(Command::kDmaMap)) {
    const auto map = request.as<wire::DmaMap>();
    DmaMap entry{map, request.fds.empty() ? base::UniqueFd() : std::move(request.fds[0])};
    dma_maps.insert_or_assign(map.address, std::move(entry));
  } else {
    const auto unmap = request.as<wire::DmaUnmap>();
    dma_maps.erase(unmap.address);
    reply.body = bytes_of(unmap);
  }
}

void ScriptedServer::interrupts(Packet& request, Packet& reply) {
  if (request.is(Command::kDeviceGetIrqInfo)) {
    const auto index = request.as<wire::IrqInfo>().index;
    reply.body = bytes_of(wire::IrqInfo{16, wire::kIrqEventfd, index, index == 2 ? 9u : 0u});
    return;
  }
  const auto set = request.as<wire::IrqSet>();
  if ((set.flags & wire::kIrqDataNone) != 0 && set.count == 0) vectors.clear();
  for (std::uint32_t i = 0; i < set.count && i < request.fds.size(); ++i)
    vectors[set.start + i] = std::move(request.fds[i]);
}

}  // namespace vfio_test
