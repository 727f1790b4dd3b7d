#include "tools/gpusim/host/fabric_link.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/bytes.h"
#include "tools/gpusim/model/pte.h"

namespace gpusim {

namespace {

using Clock = std::chrono::steady_clock;

base::Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path)
    return base::fail(base::Errc::kInvalidArgument, "fabric socket path of 1 to 107 bytes");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

base::UniqueFd packet_socket() {
  return base::UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

bool connect_to(const base::UniqueFd& socket, const sockaddr_un& address) {
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

std::uint16_t target_of(std::uint64_t npa) {
  constexpr std::uint64_t kDoorbells = 0xFFF;
  return (npa >> 40 & kDoorbells) == kDoorbells ? static_cast<std::uint16_t>(npa >> 30 & 0x3FF)
                                                : npa_accel(npa);
}

}  // namespace

base::Result<base::UniqueFd> listen_fabric(const std::string& path) {
  const auto address = address_of(path);
  if (!address) return std::unexpected(address.error());
  struct stat status{};
  if (::lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode))
      return base::fail(base::Errc::kInvalidArgument, path + " exists and is no socket");
    if (connect_to(packet_socket(), *address) || errno == EAGAIN)
      return base::fail(base::Errc::kBusy, path + " is in use by another process");
    ::unlink(path.c_str());
  }
  base::UniqueFd socket = packet_socket();
  constexpr int kBacklog = 8;
  if (!socket ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0 ||
      ::chmod(path.c_str(), 0600) != 0 || ::listen(socket.get(), kBacklog) != 0)
    return base::fail(base::Errc::kSystem, "listen at " + path, errno);
  return socket;
}

base::Result<base::UniqueFd> join_fabric(const std::string& path) {
  const auto address = address_of(path);
  if (!address) return std::unexpected(address.error());
  base::UniqueFd socket = packet_socket();
  if (!socket) return base::fail(base::Errc::kSystem, "socket", errno);
  if (!connect_to(socket, *address))
    return base::fail(base::Errc::kNotFound, "nobody listens at " + path, errno);
  return socket;
}

// A GPU of the other side, as the switch here sees it.
class FabricLink::Far final : public FabricTarget {
 public:
  Far(FabricLink& link, unsigned index) : link_(link), index_(index) {}

  void update(const LinkGpu& gpu) {
    up_ = gpu.up != 0;
    config_.accel_id = gpu.accel_id;
    config_.ppod_id = gpu.ppod_id;
    config_.vpod_id = gpu.vpod_id;
    config_.vpod_size = gpu.vpod_size;
    config_.active = gpu.active;
  }
  const PodConfig& pod_config() const override { return config_; }
  bool link_up() const override { return up_ && link_.open(); }
  Outcome incoming(RemoteAccess& access) override { return link_.ask(index_, access); }
  // Its memory is not ours to walk: each access is a message, only the data is not.
  std::span<const std::byte> incoming_source(std::uint16_t, std::uint64_t, std::uint64_t) override {
    return {};
  }
  std::span<std::byte> incoming_target(std::uint16_t, std::uint64_t, std::uint64_t) override {
    return {};
  }
  void incoming_stored(std::uint16_t, std::uint64_t, std::uint64_t) override {}

 private:
  FabricLink& link_;
  unsigned index_;
  bool up_ = false;
  PodConfig config_;
};

FabricLink::FabricLink(base::UniqueFd socket, FabricSwitch& fabric, const std::vector<Gpu*>& locals,
                       unsigned first_port)
    : socket_(std::move(socket)),
      fabric_(fabric),
      locals_(locals),
      first_port_(first_port),
      buffer_(sizeof(LinkHeader) + kLinkMostInline) {}

FabricLink::~FabricLink() {
  for (unsigned i = 0; i < far_.size(); ++i) fabric_.unplug(first_port_ + i);
}

void FabricLink::close() { socket_.reset(); }

void FabricLink::add_poll_fds(std::vector<pollfd>& fds) const {
  if (open()) fds.push_back({socket_.get(), POLLIN, 0});
}

bool FabricLink::step() {
  bool any = tell_state();
  while (auto message = receive()) {
    any = true;
    if (handle(std::move(*message))) continue;
    ++counters_.bad_messages;
    close();
  }
  return any;
}

// --- state ---

std::vector<std::byte> FabricLink::current_state() const {
  std::vector<std::byte> state(locals_.size() * sizeof(LinkGpu));
  for (std::size_t i = 0; i < locals_.size(); ++i) {
    const PodConfig& config = locals_[i]->pod_config();
    LinkGpu gpu;
    gpu.up = locals_[i]->link_up() ? 1 : 0;
    gpu.accel_id = config.accel_id;
    gpu.ppod_id = config.ppod_id;
    gpu.vpod_id = config.vpod_id;
    gpu.vpod_size = config.vpod_size;
    gpu.active = config.active;
    base::store(std::span(state), i * sizeof gpu, gpu);
  }
  return state;
}

bool FabricLink::tell_state() {
  if (!open()) return false;
  auto state = current_state();
  if (state == told_) return false;
  std::vector<int> descriptors;
  if (told_.empty())
    for (Gpu* gpu : locals_) descriptors.push_back(gpu->vram().fd());
  LinkHeader header;
  header.type = static_cast<std::uint16_t>(LinkType::kState);
  header.bytes = state.size();
  if (!send(header, state, descriptors)) close();
  told_ = std::move(state);
  return true;
}

// The other side can shrink no memory that we map: only sealed memfds are taken.
bool FabricLink::take_memory(Message& message, std::size_t gpus) {
  if (message.descriptors.size() != gpus) return false;
  for (const base::UniqueFd& fd : message.descriptors) {
    struct stat status{};
    const int seals = ::fcntl(fd.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd.get(), &status) != 0 ||
        status.st_size <= 0)
      return false;
    auto mapping = base::Mapping::map(fd.get(), 0, static_cast<std::size_t>(status.st_size),
                                      PROT_READ | PROT_WRITE);
    if (!mapping) return false;
    memory_.push_back(std::move(*mapping));
  }
  return true;
}

bool FabricLink::take_state(Message& message) {
  const std::size_t gpus = message.data.size() / sizeof(LinkGpu);
  if (message.data.size() % sizeof(LinkGpu) != 0 || gpus == 0 || gpus > kLinkMostGpus) return false;
  const bool first = far_.empty();
  if (first && !take_memory(message, gpus)) return false;
  if (!first && gpus != far_.size()) return false;
  for (unsigned i = 0; i < gpus; ++i) {
    if (first) {
      far_.push_back(std::make_unique<Far>(*this, i));
      fabric_.plug(first_port_ + i, *far_[i]);
    }
    far_[i]->update(base::load<LinkGpu>(message.data, i * sizeof(LinkGpu)));
  }
  return true;
}

// --- our accesses to them ---

// Whether the bytes lie in the memory of one of our GPUs, which the other side has mapped.
bool FabricLink::refer(std::span<const std::byte> bytes, LinkHeader& header) const {
  for (std::size_t i = 0; i < locals_.size(); ++i) {
    const auto memory = locals_[i]->vram().cpu_view();
    const auto at = reinterpret_cast<std::uintptr_t>(bytes.data());
    const auto start = reinterpret_cast<std::uintptr_t>(memory.data());
    if (at < start || !base::fits(at - start, bytes.size(), memory.size())) continue;
    header.by_reference = 1;
    header.memory_gpu = static_cast<std::uint16_t>(i);
    header.memory_offset = at - start;
    return true;
  }
  return false;
}

Outcome FabricLink::ask(unsigned, RemoteAccess& access) {
  using Kind = RemoteAccess::Kind;
  if (!open()) return Outcome::kPeerLost;
  const auto sender = std::ranges::find_if(
      locals_, [&](const Gpu* gpu) { return gpu->accel_id() == access.sender; });
  if (sender == locals_.end()) return Outcome::kRefused;  // nothing is forwarded
  const bool read = access.kind == Kind::kRead;
  const std::span<const std::byte> bytes = read ? access.read_to : access.write_from;
  LinkHeader header;
  header.type = static_cast<std::uint16_t>(LinkType::kAccess);
  header.tag = ++tag_;
  header.gpu = static_cast<std::uint16_t>(sender - locals_.begin());
  header.kind = static_cast<std::uint8_t>(access.kind);
  header.op = static_cast<std::uint8_t>(access.op);
  header.npa = access.npa;
  header.bytes = bytes.size();
  header.operand = access.operand;
  header.compare = access.compare;
  const bool referred = access.kind != Kind::kAtomic && refer(bytes, header);
  if (!referred && bytes.size() > kLinkMostInline) return Outcome::kRefused;
  ++counters_.asked;
  if (referred) ++counters_.by_reference;
  const bool inline_data = access.kind == Kind::kWrite && !referred;
  if (!send(header, inline_data ? bytes : std::span<const std::byte>{})) {
    close();
    return Outcome::kPeerLost;
  }
  return wait_for_answer(header.tag, access).value_or(Outcome::kPeerLost);
}

// Serves the other side meanwhile, which may be waiting for us just as well.
std::optional<Outcome> FabricLink::wait_for_answer(std::uint64_t tag, RemoteAccess& access) {
  const auto deadline = Clock::now() + kAnswerTime;
  answer_.reset();
  while (open()) {
    while (auto message = receive()) {
      if (!handle(std::move(*message))) {
        ++counters_.bad_messages;
        close();
      }
      if (!answer_ || answer_->header.tag != tag) continue;
      take_answer(*answer_, access);
      return static_cast<Outcome>(answer_->header.outcome);
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) break;
    pollfd entry{socket_.get(), POLLIN, 0};
    if (open()) ::poll(&entry, 1, static_cast<int>(left.count()));
  }
  ++counters_.timeouts;
  return std::nullopt;
}

void FabricLink::take_answer(const Message& message, RemoteAccess& access) {
  access.result = message.header.result;
  if (access.kind == RemoteAccess::Kind::kRead && message.data.size() == access.read_to.size())
    std::ranges::copy(message.data, access.read_to.begin());
}

// --- their accesses to us ---

std::optional<std::span<std::byte>> FabricLink::named_memory(const LinkHeader& header) {
  if (header.memory_gpu >= memory_.size()) return std::nullopt;
  const auto memory = memory_[header.memory_gpu].bytes();
  if (!base::fits(header.memory_offset, header.bytes, memory.size())) return std::nullopt;
  return memory.subspan(header.memory_offset, header.bytes);
}

// The switch puts in who the sender is, by what the other side told of that GPU.
bool FabricLink::serve(const Message& message) {
  using Kind = RemoteAccess::Kind;
  const LinkHeader& asked = message.header;
  if (asked.gpu >= far_.size() || asked.kind > static_cast<std::uint8_t>(Kind::kAtomic) ||
      asked.op > static_cast<std::uint8_t>(AtomicOp::kCompareSwap64))
    return false;
  RemoteAccess access;
  access.kind = static_cast<Kind>(asked.kind);
  access.npa = asked.npa;
  access.op = static_cast<AtomicOp>(asked.op);
  access.operand = asked.operand;
  access.compare = asked.compare;
  std::vector<std::byte> data;
  if (asked.by_reference != 0) {
    const auto memory = named_memory(asked);
    if (!memory) return false;
    access.read_to = *memory;
    access.write_from = *memory;
    ++counters_.by_reference;
  } else if (access.kind == Kind::kRead) {
    if (asked.bytes > kLinkMostInline) return false;
    data.resize(asked.bytes);
    access.read_to = data;
  } else {
    access.write_from = message.data;
  }
  LinkHeader answer;
  answer.type = static_cast<std::uint16_t>(LinkType::kAnswer);
  answer.tag = asked.tag;
  const bool ours = std::ranges::any_of(
      locals_, [&](const Gpu* gpu) { return gpu->accel_id() == target_of(asked.npa); });
  const Outcome outcome =
      ours ? fabric_.port(first_port_ + asked.gpu).access(access) : Outcome::kRefused;
  ++counters_.served;
  answer.outcome = static_cast<std::uint8_t>(outcome);
  answer.result = access.result;
  if (outcome != Outcome::kOk) data.clear();
  answer.bytes = data.size();
  return send(answer, data);
}

bool FabricLink::handle(Message message) {
  const LinkHeader& header = message.header;
  if (header.magic != kLinkMagic || header.version != kLinkVersion) return false;
  switch (static_cast<LinkType>(header.type)) {
    case LinkType::kState:
      return take_state(message);
    case LinkType::kAccess:
      return serve(message);
    case LinkType::kAnswer:
      if (header.outcome > static_cast<std::uint8_t>(Outcome::kPeerLost)) return false;
      answer_ = std::move(message);
      return true;
  }
  return false;
}

// --- packets ---

bool FabricLink::send(LinkHeader header, std::span<const std::byte> data,
                      std::span<const int> descriptors) {
  iovec parts[2] = {{&header, sizeof header}, {const_cast<std::byte*>(data.data()), data.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  alignas(cmsghdr) std::byte control[CMSG_SPACE(kLinkMostGpus * sizeof(int))]{};
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent == static_cast<ssize_t>(sizeof header + data.size());
}

std::optional<FabricLink::Message> FabricLink::receive() {
  if (!open()) return std::nullopt;
  iovec part{buffer_.data(), buffer_.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::byte control[CMSG_SPACE(kLinkMostGpus * sizeof(int))]{};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t size = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  Message received;
  for (cmsghdr* part_of = CMSG_FIRSTHDR(&message); part_of != nullptr;
       part_of = CMSG_NXTHDR(&message, part_of)) {
    if (part_of->cmsg_level != SOL_SOCKET || part_of->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part_of->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part_of) + i * sizeof fd, sizeof fd);
      received.descriptors.emplace_back(fd);
    }
  }
  const bool cut = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  if (size < static_cast<ssize_t>(sizeof(LinkHeader)) || cut) {
    close();  // the other side ended, or speaks something else
    return std::nullopt;
  }
  const std::span<const std::byte> all(buffer_.data(), static_cast<std::size_t>(size));
  received.header = base::load<LinkHeader>(all, 0);
  received.data.assign(all.begin() + sizeof(LinkHeader), all.end());
  return received;
}

}  // namespace gpusim
