#include "vfio/user/user_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <string_view>
#include <utility>

#include "base/address.h"
#include "base/bytes.h"
#include "vfio/eventfds.h"

namespace vfio {
namespace {

using wire::Command;

// What we take in one DMA_READ or DMA_WRITE.
constexpr std::uint64_t kMaxTransfer = base::kMiB;
constexpr std::size_t kMaxVersionData = 16 * 1024;
constexpr std::size_t kUsualRegionInfo = 4096;
constexpr std::size_t kMaxRegionInfo = 64 * 1024;
constexpr std::uint64_t kMinConfigSize = 256;

// Whether a descriptor is an eventfd: writing into anything else of the server's choice could
// block, or raise SIGPIPE.
bool is_eventfd(int fd) {
  std::array<char, 64> target{};
  const auto link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = ::readlink(link.c_str(), target.data(), target.size());
  return size > 0 &&
         std::string_view(target.data(), static_cast<std::size_t>(size)) == "anon_inode:[eventfd]";
}

}  // namespace

base::Result<std::unique_ptr<UserDevice>> connect_vfio_user(base::UniqueFd socket, std::string name,
                                                            UserOptions options) {
  auto wake = make_eventfd("eventfd of a device");
  if (!wake) return std::unexpected(wake.error());
  std::unique_ptr<UserDevice> device(
      new UserDevice(std::move(socket), std::move(*wake), name, std::move(options)));
  if (auto ready = device->handshake(); !ready) return std::unexpected(ready.error());
  return device;
}

UserDevice::UserDevice(base::UniqueFd socket, base::UniqueFd wake, std::string name,
                       UserOptions options)
    : options_(std::move(options)),
      transport_(
          std::move(socket), std::move(wake), sizeof(wire::DmaAccess) + kMaxTransfer,
          [this](const wire::Header& header, std::span<const std::byte> body,
                 std::vector<std::byte>& reply) { return serve_dma(header, body, reply); },
          options_.pump) {
  identity_.name = std::move(name);
  identity_.backend = "vfio-user";
}

UserDevice::~UserDevice() { say_goodbye(); }

void UserDevice::say_goodbye() {
  const auto deadline = within(options_.call);
  if (armed_ && !lost()) (void)disarm(deadline);
  for (const auto& range : dma_.all()) {
    if (lost()) return;
    (void)send_unmap(range.at, range.size, deadline);
  }
}

void UserDevice::release() {
  say_goodbye();
  transport_.close("let go of");
  bars_.let_go();
  dma_.clear();
  wake_eventfds_.clear();  // of no use without the connection: settle() fails first
  armed_.reset();
}

base::Result<void> UserDevice::handshake() {
  const auto deadline = within(options_.handshake);
  if (auto done = negotiate(deadline); !done) return done;
  if (auto done = read_device_info(deadline); !done) return done;
  auto config = region_info(wire::kConfigRegion, deadline);
  if (!config) return std::unexpected(config.error());
  config_size_ = config->region.size;
  if (config_size_ < kMinConfigSize)
    return transport_.broken(Command::kDeviceGetRegionInfo, "no configuration space");
  return read_identity(deadline);
}

base::Result<void> UserDevice::negotiate(Clock::time_point deadline) {
  const wire::Version proposed{wire::kMajor, wire::kMinor};
  const std::string text = offer_capabilities(kMaxTransfer, options_.offer_wake);
  std::vector<std::byte> buffer(sizeof(wire::Version) + kMaxVersionData);
  auto reply = transport_.call({.command = Command::kVersion,
                                .head = base::as_bytes(proposed),
                                .tail = std::as_bytes(std::span(text.c_str(), text.size() + 1)),
                                .reply = buffer,
                                .reply_min = sizeof(wire::Version),
                                .max_fds = kMaxMessageFds},
                               deadline);
  if (!reply) return std::unexpected(reply.error());
  auto server = parse_version_reply(std::span(buffer).first(reply->size), options_.offer_wake,
                                    reply->fds.size());
  if (!server && server.error().code == base::Errc::kProtocol)
    return transport_.broken(Command::kVersion, server.error().step);
  if (!server) return std::unexpected(server.error());
  server_ = std::move(*server);
  limits_.usable = {{base::Iova(0), base::Iova(UINT64_MAX)}};
  limits_.page_sizes = server_.page_sizes;
  limits_.max_mappings = server_.max_dma_maps;
  if (server_.wake) return take_wake(std::move(reply->fds));
  return {};
}

base::Result<void> UserDevice::take_wake(std::vector<base::UniqueFd> fds) {
  const auto size = base::sealed_size(fds[0].get());
  if (!size || *size < base::kPageSize)
    return transport_.broken(Command::kVersion, "wake page is not a sealed page");
  auto page = base::Mapping::map(fds[0].get(), 0, base::kPageSize, PROT_READ);
  if (!page) return base::fail_within("wake page", page.error());
  for (std::size_t i = 0; i < server_.wake_regions.size(); ++i) {
    const int fd = fds[1 + i].get();
    if (!is_eventfd(fd))
      return transport_.broken(Command::kVersion, "wake descriptor is no eventfd");
    // Of the open file, so for the server too: a full counter must not stop us.
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
      return base::fail(base::Errc::kSystem, "wake eventfd", errno);
    wakes_.at(server_.wake_regions[i]).emplace(page->at<std::uint32_t>(), fd);
    wake_eventfds_.push_back(std::move(fds[1 + i]));
  }
  wake_page_ = std::move(*page);
  return {};
}

base::Result<void> UserDevice::read_device_info(Clock::time_point deadline) {
  wire::DeviceInfo info{sizeof(info), 0, 0, 0};
  const auto request = info;
  auto reply = transport_.call({.command = Command::kDeviceGetInfo,
                                .head = base::as_bytes(request),
                                .reply = base::as_writable_bytes(info),
                                .reply_min = sizeof(info)},
                               deadline);
  if (!reply) return std::unexpected(reply.error());
  if ((info.flags & wire::kDeviceIsPci) == 0)
    return base::fail(base::Errc::kUnsupported, "a device that is not PCI");
  if (info.region_count <= wire::kConfigRegion)
    return transport_.broken(Command::kDeviceGetInfo, "PCI device without configuration space");
  can_reset_ = (info.flags & wire::kDeviceCanReset) != 0;
  irq_count_ = info.irq_count;
  return {};
}

base::Result<void> UserDevice::read_identity(Clock::time_point deadline) {
  constexpr std::uint32_t kVendorAndDevice = 0x00;
  constexpr std::uint32_t kClassAndRevision = 0x08;
  auto ids = config_word(kVendorAndDevice, 4, deadline);
  if (!ids) return std::unexpected(ids.error());
  auto kind = config_word(kClassAndRevision, 4, deadline);
  if (!kind) return std::unexpected(kind.error());
  identity_.vendor = static_cast<std::uint16_t>(*ids);
  identity_.device = static_cast<std::uint16_t>(*ids >> 16);
  identity_.class_code = *kind >> 8;
  identity_.revision = static_cast<std::uint8_t>(*kind);
  return {};
}

base::Result<UserDevice::RegionReply> UserDevice::region_info(std::uint32_t index,
                                                              Clock::time_point deadline) {
  std::size_t room = kUsualRegionInfo;
  for (;;) {
    std::vector<std::byte> buffer(room);
    const wire::RegionInfo request{static_cast<std::uint32_t>(room), 0, index, 0, 0, 0};
    auto reply = transport_.call({.command = Command::kDeviceGetRegionInfo,
                                  .head = base::as_bytes(request),
                                  .reply = buffer,
                                  .reply_min = sizeof(wire::RegionInfo),
                                  .max_fds = kMaxMessageFds},
                                 deadline);
    if (!reply) return std::unexpected(reply.error());
    const auto payload = std::span<const std::byte>(buffer).first(reply->size);
    const std::size_t needs = region_info_needs(payload);
    if (needs > room && room == kUsualRegionInfo && needs <= kMaxRegionInfo) {
      room = needs;
      continue;
    }
    if (needs != 0)
      return transport_.broken(Command::kDeviceGetRegionInfo, "more is said to follow than comes");
    auto region = parse_region_info(payload, index, reply->fds.size());
    if (!region) return transport_.broken(Command::kDeviceGetRegionInfo, region.error().step);
    return RegionReply{std::move(*region),
                       reply->fds.empty() ? base::UniqueFd() : std::move(reply->fds[0])};
  }
}

base::Result<std::unique_ptr<Bar>> UserDevice::open_bar(BarIndex index) {
  const auto number = static_cast<std::uint32_t>(index);
  auto info = region_info(number, within(options_.call));
  if (!info) return std::unexpected(info.error());
  if (info->region.size == 0)
    return base::fail(base::Errc::kNotFound, "BAR " + std::to_string(number));
  const auto& wake = wakes_[number];
  auto bar = UserBar::create(*this, number, info->region, info->fd, wake ? &*wake : nullptr);
  if (bar) {
    if ((*bar)->memory() != nullptr) bars_.add((*bar)->memory());
    return std::unique_ptr<Bar>(std::move(*bar));
  }
  if (bar.error().code == base::Errc::kProtocol)
    return transport_.broken(Command::kDeviceGetRegionInfo, bar.error().step);
  return std::unexpected(bar.error());
}

base::Result<void> UserDevice::check_config(std::uint32_t offset, unsigned width) const {
  if ((width != 1 && width != 2 && width != 4) || offset % width != 0)
    return base::fail(base::Errc::kInvalidArgument, "width or alignment of a config access");
  if (!base::fits(offset, width, config_size_))
    return base::fail(base::Errc::kOutOfRange, "config access");
  return {};
}

base::Result<std::uint32_t> UserDevice::config_word(std::uint32_t offset, unsigned width,
                                                    Clock::time_point deadline) {
  std::uint32_t value = 0;
  auto done = access(Command::kRegionRead, wire::kConfigRegion, offset,
                     base::as_writable_bytes(value).first(width), {}, deadline);
  if (!done) return std::unexpected(done.error());
  return value;
}

base::Result<std::uint32_t> UserDevice::read_config(std::uint32_t offset, unsigned width) {
  if (auto ok = check_config(offset, width); !ok) return std::unexpected(ok.error());
  return config_word(offset, width, within(options_.trap));
}

base::Result<void> UserDevice::write_config(std::uint32_t offset, unsigned width,
                                            std::uint32_t value) {
  if (auto ok = check_config(offset, width); !ok) return ok;
  return access(Command::kRegionWrite, wire::kConfigRegion, offset, {},
                base::as_bytes(value).first(width), within(options_.trap));
}

base::Result<void> UserDevice::access(Command command, std::uint32_t region, std::uint64_t offset,
                                      std::span<std::byte> to, std::span<const std::byte> from,
                                      Clock::time_point deadline) {
  const wire::RegionAccess request{offset, region,
                                   static_cast<std::uint32_t>(std::max(to.size(), from.size()))};
  std::array<std::byte, sizeof(request) + sizeof(std::uint64_t)> buffer;
  assert(to.size() <= sizeof(std::uint64_t));
  const std::size_t size = sizeof(request) + to.size();
  auto reply = transport_.call({.command = command,
                                .head = base::as_bytes(request),
                                .tail = from,
                                .reply = std::span(buffer).first(size),
                                .reply_min = size},
                               deadline);
  if (!reply) return std::unexpected(reply.error());
  const auto echo = base::load<wire::RegionAccess>(buffer, 0);
  if (echo.offset != offset || echo.region != region || echo.count != request.count)
    return transport_.broken(command, "another access than asked for");
  std::ranges::copy(std::span(buffer).subspan(sizeof(request), to.size()), to.begin());
  return {};
}

base::Result<void> UserDevice::region_read(std::uint32_t region, std::uint64_t offset,
                                           std::span<std::byte> to) {
  return access(Command::kRegionRead, region, offset, to, {}, within(options_.trap));
}

base::Result<void> UserDevice::region_write(std::uint32_t region, std::uint64_t offset,
                                            std::span<const std::byte> from) {
  return access(Command::kRegionWrite, region, offset, {}, from, within(options_.trap));
}

void UserDevice::region_post(std::uint32_t region, std::uint64_t offset,
                             std::span<const std::byte> from) {
  const wire::RegionAccess request{offset, region, static_cast<std::uint32_t>(from.size())};
  (void)transport_.post(Command::kRegionWrite, base::as_bytes(request), from,
                        within(options_.trap));
}

bool UserDevice::settle() {
  if (transport_.posts_open()) [[unlikely]]
    (void)config_word(0, sizeof(std::uint32_t), within(options_.trap));
  return !lost();
}

base::Result<void> UserDevice::check_dma(std::uint64_t offset, std::uint64_t size,
                                         base::Iova at) const {
  const std::uint64_t page =
      std::max(base::kPageSize, std::uint64_t{1} << std::countr_zero(limits_.page_sizes));
  if (size == 0 || !base::is_aligned(size, page) || !at.aligned(page) ||
      !base::is_aligned(offset, base::kPageSize))
    return base::fail(base::Errc::kInvalidArgument, "DMA mapping is not whole pages");
  if (at.value() > UINT64_MAX - (size - 1))
    return base::fail(base::Errc::kOutOfRange, "DMA mapping past the last IOVA");
  return {};
}

base::Result<void> UserDevice::map_dma(int fd, std::uint64_t offset, std::uint64_t size,
                                       base::Iova at, Rights rights) {
  if (auto ok = check_dma(offset, size, at); !ok) return ok;
  if (lost()) return base::fail(base::Errc::kDeviceLost, "DMA_MAP");
  // In the table before the server knows: it may use the memory before its reply is read.
  if (auto ok = dma_.reserve(fd, offset, size, at, rights, limits_.max_mappings); !ok) return ok;
  const wire::DmaMap request{sizeof(request), static_cast<std::uint32_t>(rights), offset,
                             at.value(), size};
  static_assert(static_cast<std::uint32_t>(Rights::kRead) == wire::kDmaReadable &&
                static_cast<std::uint32_t>(Rights::kWrite) == wire::kDmaWriteable);
  auto reply = transport_.call(
      {.command = Command::kDmaMap, .head = base::as_bytes(request), .fds = std::span(&fd, 1)},
      within(options_.call));
  if (!reply) {
    dma_.drop(at);
    return std::unexpected(reply.error());
  }
  dma_.commit(at);
  return {};
}

base::Result<void> UserDevice::unmap_dma(base::Iova at, std::uint64_t size) {
  if (lost()) return base::fail(base::Errc::kDeviceLost, "DMA_UNMAP");
  if (auto ok = dma_.claim(at, size); !ok) return ok;
  auto done = send_unmap(at, size, within(options_.call));
  // Where the server says no, it may still reach the memory: the mapping stands. A lost one sees
  // the end of its connection.
  if (!done && !lost())
    dma_.commit(at);
  else
    dma_.drop(at);
  return done;
}

base::Result<void> UserDevice::send_unmap(base::Iova at, std::uint64_t size,
                                          Clock::time_point deadline) {
  const wire::DmaUnmap request{sizeof(request), 0, at.value(), size};
  wire::DmaUnmap echo{};
  auto reply = transport_.call({.command = Command::kDmaUnmap,
                                .head = base::as_bytes(request),
                                .reply = base::as_writable_bytes(echo),
                                .reply_min = sizeof(echo)},
                               deadline);
  if (!reply) return std::unexpected(reply.error());
  if (echo.address != at.value() || echo.size != size)
    return transport_.broken(Command::kDmaUnmap, "another mapping than asked for");
  return {};
}

void UserDevice::handle_events() { transport_.serve(within(options_.trap)); }

int UserDevice::serve_dma(const wire::Header& header, std::span<const std::byte> body,
                          std::vector<std::byte>& reply) {
  const bool write = header.command == static_cast<std::uint16_t>(Command::kDmaWrite);
  const auto refuse = [this](int error) {
    dma_refused_.fetch_add(1, std::memory_order_relaxed);
    return error;
  };
  if (!write && header.command != static_cast<std::uint16_t>(Command::kDmaRead))
    return refuse(EOPNOTSUPP);
  if (body.size() < sizeof(wire::DmaAccess)) return refuse(EINVAL);
  const auto request = base::load<wire::DmaAccess>(body, 0);
  const auto data = body.subspan(sizeof(request));
  if (request.count > kMaxTransfer || data.size() != (write ? request.count : 0))
    return refuse(EINVAL);

  reply.resize(sizeof(request) + (write ? 0 : request.count));
  base::store(reply, 0, request);
  const base::Iova at(request.address);
  const int error =
      write ? dma_.write(at, data) : dma_.read(at, std::span(reply).subspan(sizeof(request)));
  if (error != 0) return refuse(error);
  (write ? dma_writes_ : dma_reads_).fetch_add(1, std::memory_order_relaxed);
  return 0;
}

UserCounters UserDevice::counters() const {
  return {dma_reads_.load(std::memory_order_relaxed), dma_writes_.load(std::memory_order_relaxed),
          dma_refused_.load(std::memory_order_relaxed), transport_.error_replies()};
}

}  // namespace vfio
