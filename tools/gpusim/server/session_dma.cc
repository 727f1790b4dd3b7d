// The bus of a session: DMA mappings, accesses of engines, interrupts.

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "tools/gpusim/server/session.h"

namespace gpusim {

namespace {

using Clock = std::chrono::steady_clock;

// Commands that one wait for a reply may queue. A client has few in flight; one that goes on
// sending without ever answering is broken.
constexpr std::size_t kMaxQueued = 1024;
constexpr unsigned kMaxLoggedRefusals = 16;

}  // namespace

Session::Answer Session::dma_map(Message& message) {
  if (message.body.size() < sizeof(wire::DmaMap)) return refuse(EINVAL);
  const auto request = base::load<wire::DmaMap>(message.body, 0);
  constexpr std::uint32_t kRights = wire::kDmaReadable | wire::kDmaWritable;
  if ((request.flags & ~kRights) != 0 || message.fds.size() > 1) return refuse(EINVAL);
  base::UniqueFd fd;
  if (!message.fds.empty()) fd = std::move(message.fds.front());
  const int error =
      dma_.map(request.address, request.size, (request.flags & wire::kDmaReadable) != 0,
               (request.flags & wire::kDmaWritable) != 0, std::move(fd), request.offset);
  if (error != 0)
    spdlog::info("{}: DMA_MAP of {:#x}+{:#x} refused: {}", options_.name, request.address,
                 request.size, std::strerror(error));
  return refuse(error);
}

Session::Answer Session::dma_unmap(const Message& message) {
  if (message.body.size() < sizeof(wire::DmaUnmap)) return refuse(EINVAL);
  const auto request = base::load<wire::DmaUnmap>(message.body, 0);
  if ((request.flags & ~wire::kUnmapAll) != 0) return refuse(EINVAL);
  if ((request.flags & wire::kUnmapAll) != 0) {
    if (request.address != 0 || request.size != 0) return refuse(EINVAL);
    dma_.clear();
  } else if (const int error = dma_.unmap(request.address, request.size)) {
    return refuse(error);
  }
  Answer answer;
  answer.body.assign(message.body.begin(),
                     message.body.begin() + static_cast<std::ptrdiff_t>(sizeof request));
  return answer;
}

bool Session::bus_works() const {
  return alive_ && negotiated_ && !device_.gone() && function_.config.bus_master();
}

std::byte* Session::direct(base::Iova at, std::size_t size, bool write) {
  if (size == 0 || !bus_works()) return nullptr;
  return dma_.direct(at.value(), size, write);
}

bool Session::refused(const char* what, std::uint64_t at, std::uint64_t size) {
  ++counters_.dma_refused;
  if (logged_refusals_ < kMaxLoggedRefusals) {
    ++logged_refusals_;
    spdlog::warn("{}: {} of IOVA {:#x}, {} bytes, refused{}", options_.name, what, at, size,
                 logged_refusals_ == kMaxLoggedRefusals ? " (further ones are only counted)" : "");
  }
  return false;
}

bool Session::read(base::Iova at, std::span<std::byte> to) {
  const std::uint64_t start = at.value();
  if (to.empty()) return true;
  if (!bus_works() || start + to.size() - 1 < start) return refused("read", start, to.size());
  if (const std::byte* memory = dma_.direct(start, to.size(), false)) {
    std::memcpy(to.data(), memory, to.size());
    return true;
  }
  // Collected first: a refusal in the middle delivers nothing.
  std::vector<std::byte> bytes(to.size());
  for (std::size_t done = 0; done < bytes.size();) {
    const DmaMap::Piece piece = dma_.piece(start + done, bytes.size() - done);
    if (!read_piece(piece, start + done, std::span(bytes).subspan(done, piece.size)))
      return refused("read", start, to.size());
    done += piece.size;
  }
  std::ranges::copy(bytes, to.begin());
  return true;
}

bool Session::read_piece(const DmaMap::Piece& piece, std::uint64_t at, std::span<std::byte> to) {
  if (piece.range != nullptr && piece.range->readable && piece.range->file) {
    const std::uint64_t offset = piece.range->offset + piece.inside;
    if (const std::byte* memory = piece.range->file->mapped(offset)) {
      std::memcpy(to.data(), memory, to.size());
      return true;
    }
    return piece.range->file->read(offset, to);
  }
  return ask(wire::kDmaRead, at, to, {});
}

bool Session::write(base::Iova at, std::span<const std::byte> from) {
  const std::uint64_t start = at.value();
  if (from.empty()) return true;
  if (!bus_works() || start + from.size() - 1 < start) return refused("write", start, from.size());
  // The client is asked first: if it refuses, nothing was delivered through a mapping either.
  for (const bool asking : {true, false}) {
    for (std::size_t done = 0; done < from.size();) {
      const DmaMap::Piece piece = dma_.piece(start + done, from.size() - done);
      const bool mapped =
          piece.range != nullptr && piece.range->writable && piece.range->file != nullptr;
      if (mapped != asking && !write_piece(piece, start + done, from.subspan(done, piece.size)))
        return refused("write", start, from.size());
      done += piece.size;
    }
  }
  return true;
}

bool Session::write_piece(const DmaMap::Piece& piece, std::uint64_t at,
                          std::span<const std::byte> from) {
  if (piece.range != nullptr && piece.range->writable && piece.range->file) {
    const std::uint64_t offset = piece.range->offset + piece.inside;
    if (std::byte* memory = piece.range->file->mapped(offset)) {
      std::memcpy(memory, from.data(), from.size());
      return true;
    }
    return piece.range->file->write(offset, from);
  }
  return ask(wire::kDmaWrite, at, {}, from);
}

// One DMA_READ or DMA_WRITE for each piece that the client can take in a message.
bool Session::ask(std::uint16_t command, std::uint64_t at, std::span<std::byte> read_to,
                  std::span<const std::byte> write_from) {
  const std::size_t total = std::max(read_to.size(), write_from.size());
  for (std::size_t done = 0; done < total;) {
    const std::size_t count = std::min<std::size_t>(total - done, peer_transfer_);
    const wire::DmaAccess access{at + done, count};
    const auto data =
        command == wire::kDmaWrite ? write_from.subspan(done, count) : std::span<const std::byte>{};
    wire::Header header{};
    header.id = next_id_++;
    header.command = command;
    header.size = static_cast<std::uint32_t>(sizeof header + sizeof access + data.size());
    ++counters_.dma_messages;
    if (!channel_.send(header, base::as_bytes(access), data)) {
      alive_ = false;
      return false;
    }
    const auto reply = await_reply(header.id, command);
    if (!reply || (reply->header.flags & wire::kError) != 0) return false;
    if (command == wire::kDmaRead) {
      if (reply->body.size() != sizeof access + count) return false;
      std::copy(reply->body.begin() + sizeof access, reply->body.end(),
                read_to.begin() + static_cast<std::ptrdiff_t>(done));
    }
    done += count;
  }
  return true;
}

// Commands that arrive meanwhile wait (D63): their answers must not show a half-done access.
std::optional<Message> Session::await_reply(std::uint16_t id, std::uint16_t command) {
  const auto deadline = Clock::now() + options_.dma_deadline;
  while (alive_) {
    if (!channel_.flush()) break;
    Message message;
    const auto status = channel_.receive(message);
    if (status == Channel::Status::kMessage) {
      if (message.is_reply()) {
        if (message.header.id == id && message.header.command == command) return message;
      } else if (queued_.size() >= kMaxQueued) {
        break_session("sends commands and leaves ours unanswered");
      } else {
        queued_.push_back(std::move(message));
      }
      continue;
    }
    if (status == Channel::Status::kClosed) break;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return std::nullopt;
    if (options_.while_waiting)
      options_.while_waiting();
    else
      wait_for_socket(channel_.fd(), channel_.output_waits(), static_cast<int>(left));
  }
  alive_ = false;
  return std::nullopt;
}

void Session::raise_interrupt(unsigned vector) {
  if (!device_.gone()) function_.raise(vector);
}

void Session::lower_line() { function_.lower(); }

}  // namespace gpusim
