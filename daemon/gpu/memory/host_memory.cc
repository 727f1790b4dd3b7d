#include "daemon/gpu/memory/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <fstream>
#include <string>
#include <utility>

namespace gpuumd {
namespace {

constexpr std::uint64_t kHugePage = 2 * base::kMiB;
constexpr unsigned kHugeFlags = MFD_HUGETLB | 21u << 26;  // MFD_HUGE_2MB, which glibc lacks

// Whether the kernel backs memfds with transparent huge pages without being asked by madvise().
bool memfds_are_transparent() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string text;
  std::getline(file, text);
  return text.find("[always]") != std::string::npos ||
         text.find("[within_size]") != std::string::npos ||
         text.find("[force]") != std::string::npos;
}

}  // namespace

struct HostMemory::Job {
  Request request;
  bool huge = false;  // this attempt
  HostBuffer buffer;
  std::uint64_t done_bytes = 0;
  DoneWith<HostBuffer> done;
};

HostMemory::HostMemory(MemoryWorker& worker)
    : worker_(worker),
      transparent_(memfds_are_transparent()),
      self_(std::make_shared<HostMemory*>(this)) {}

HostMemory::~HostMemory() { *self_ = nullptr; }

void HostMemory::create(const Request& request, DoneWith<HostBuffer> done) {
  auto job = std::make_shared<Job>();
  job->request = request;
  job->huge = request.huge && request.bytes >= kHugePage;
  job->done = std::move(done);
  start(std::move(job));
}

void HostMemory::start(std::shared_ptr<Job> job) {
  const std::uint64_t page = job->huge ? kHugePage : base::kPageSize;
  HostBuffer& buffer = job->buffer;
  buffer.bytes_ = base::align_up(job->request.bytes, page);
  buffer.pages_ = job->huge                                    ? HostPages::kHuge2M
                  : transparent_ && buffer.bytes_ >= kHugePage ? HostPages::kTransparent
                                                               : HostPages::kSmall;
  job->done_bytes = 0;
  if (buffer.bytes_ == 0 || buffer.bytes_ < job->request.bytes)
    return failed(std::move(job), {base::Errc::kInvalidArgument, 0, "size of host memory"});
  auto fd = base::make_memfd(job->request.name, buffer.bytes_, job->request.seals,
                             job->huge ? kHugeFlags : 0);
  if (!fd) return failed(std::move(job), fd.error());
  buffer.fd_ = std::make_shared<const base::UniqueFd>(std::move(*fd));
  next_piece(std::move(job));
}

void HostMemory::next_piece(std::shared_ptr<Job> job) {
  HostBuffer& buffer = job->buffer;
  if (job->done_bytes == buffer.bytes_) {
    ++counters_.buffers;
    counters_.bytes += buffer.bytes_;
    if (job->huge) ++counters_.huge;
    return job->done(std::move(buffer));
  }
  const std::uint64_t bytes = std::min(buffer.bytes_ - job->done_bytes, MemoryWorker::kPiece);
  worker_.allocate(buffer.fd_, job->done_bytes, bytes,
                   [self = self_, job, bytes](base::Result<void> result) {
                     if (*self == nullptr) return;
                     if (!result) return (*self)->failed(job, result.error());
                     job->done_bytes += bytes;
                     (*self)->next_piece(job);
                   });
}

void HostMemory::failed(std::shared_ptr<Job> job, const base::Error& error) {
  job->buffer.fd_.reset();
  if (job->huge) {  // an empty pool, or a host without huge pages: an ordinary answer
    ++counters_.huge_fallbacks;
    job->huge = false;
    return start(std::move(job));
  }
  ++counters_.failures;
  job->done(base::fail_within(std::string("host memory ") + job->request.name, error));
}

struct HostMemory::CpuJob {
  HostBuffer buffer;
  base::Mapping mapping;
  std::uint64_t done_bytes = 0;
  DoneWith<base::Mapping> done;
};

void HostMemory::map_cpu(const HostBuffer& buffer, DoneWith<base::Mapping> done) {
  auto mapping = base::Mapping::map(buffer.fd()->get(), 0, buffer.bytes(), PROT_READ | PROT_WRITE);
  if (!mapping) return done(std::move(mapping));
  auto job = std::make_shared<CpuJob>();
  job->buffer = buffer;
  job->mapping = std::move(*mapping);
  job->done = std::move(done);
  populate_next(std::move(job));
}

void HostMemory::populate_next(std::shared_ptr<CpuJob> job) {
  const std::uint64_t left = job->mapping.size() - job->done_bytes;
  if (left == 0) return job->done(std::move(job->mapping));
  const std::uint64_t bytes = std::min(left, MemoryWorker::kPiece);
  worker_.populate(job->mapping.bytes().subspan(job->done_bytes, bytes),
                   [self = self_, job, bytes](base::Result<void> result) {
                     if (*self == nullptr) return;
                     if (!result) return job->done(std::unexpected(result.error()));
                     job->done_bytes += bytes;
                     (*self)->populate_next(job);
                   });
}

struct HostChunk::State {
  DmaMapper* mapper;
  HostBuffer buffer;
  std::uint64_t offset;
  std::uint64_t bytes;
  base::Iova iova;
  std::uint32_t written = 0;    // uses whose entries may point here
  std::uint32_t unflushed = 0;  // uses whose entries are cleared, but a TLB may remember
};

HostChunk::HostChunk() = default;
HostChunk::HostChunk(std::unique_ptr<State> state) : state_(std::move(state)) {}
HostChunk::HostChunk(HostChunk&&) noexcept = default;
HostChunk& HostChunk::operator=(HostChunk&& other) noexcept {
  if (this != &other) {
    reset();
    state_ = std::move(other.state_);
  }
  return *this;
}
HostChunk::~HostChunk() { reset(); }

void HostChunk::reset() {
  if (state_ == nullptr) return;
  assert(state_->written == 0);    // DMA-3: clear the entries first,
  assert(state_->unflushed == 0);  // then flush, and only then unmap
  DmaMapper* mapper = state_->mapper;
  mapper->unmap(std::move(state_));
}

base::Iova HostChunk::iova() const { return state_->iova; }
std::uint64_t HostChunk::bytes() const { return state_->bytes; }
const HostBuffer& HostChunk::buffer() const { return state_->buffer; }
std::uint64_t HostChunk::offset() const { return state_->offset; }
PhysRun HostChunk::run() const {
  return PhysRun::system(state_->iova, state_->bytes / base::kPageSize);
}

DmaUse::DmaUse(HostChunk& chunk) : chunk_(chunk.state_.get()) { ++chunk_->written; }
DmaUse::DmaUse(DmaUse&& other) noexcept
    : chunk_(std::exchange(other.chunk_, nullptr)), state_(other.state_) {}
DmaUse::~DmaUse() { assert(chunk_ == nullptr || state_ == State::kFlushed); }

void DmaUse::cleared() {
  assert(state_ == State::kWritten);
  state_ = State::kCleared;
  --chunk_->written;
  ++chunk_->unflushed;
}

void DmaUse::flushed() {
  assert(state_ == State::kCleared);
  state_ = State::kFlushed;
  --chunk_->unflushed;
}

DmaMapper::DmaMapper(vfio::PciDevice& device, IovaSpace& space, MemoryWorker& worker)
    : device_(device), space_(space), worker_(worker), self_(std::make_shared<DmaMapper*>(this)) {}

DmaMapper::~DmaMapper() { *self_ = nullptr; }

void DmaMapper::map(const HostBuffer& buffer, std::uint64_t offset, std::uint64_t bytes,
                    vfio::Rights rights, DoneWith<HostChunk> done) {
  assert(bytes != 0 && bytes <= IovaSpace::kChunk && base::is_aligned(bytes, base::kPageSize));
  assert(base::is_aligned(offset, base::kPageSize) && base::fits(offset, bytes, buffer.bytes()));
  auto iova = bytes == IovaSpace::kChunk ? space_.allocate_chunk() : space_.allocate_small(bytes);
  if (!iova) {
    ++counters_.map_failures;
    return done(std::unexpected(iova.error()));
  }
  auto state = std::make_unique<HostChunk::State>();
  *state = {.mapper = this, .buffer = buffer, .offset = offset, .bytes = bytes, .iova = *iova};
  worker_.map_dma(device_, buffer.fd(), offset, bytes, *iova, rights,
                  [self = self_, state = std::move(state),
                   done = std::move(done)](base::Result<void> result) mutable {
                    if (*self == nullptr) return;
                    DmaMapper& mapper = **self;
                    if (!result) {
                      ++mapper.counters_.map_failures;
                      mapper.space_.release(state->iova, state->bytes);
                      return done(base::fail_within("map for DMA", result.error()));
                    }
                    ++mapper.counters_.maps;
                    mapper.counters_.mapped_bytes += state->bytes;
                    done(HostChunk(std::move(state)));
                  });
}

// The memfd stays open until the device cannot reach it any more; the IOVA is free only then.
void DmaMapper::unmap(std::unique_ptr<HostChunk::State> state) {
  const base::Iova at = state->iova;
  const std::uint64_t bytes = state->bytes;
  worker_.unmap_dma(device_, at, bytes,
                    [self = self_, state = std::move(state)](base::Result<void> result) {
                      if (*self == nullptr) return;
                      DmaMapper& mapper = **self;
                      mapper.counters_.mapped_bytes -= state->bytes;
                      if (!result) {
                        ++mapper.counters_.unmap_failures;
                        return;
                      }
                      ++mapper.counters_.unmaps;
                      mapper.space_.release(state->iova, state->bytes);
                    });
}

struct DmaMapper::MapAll {
  HostBuffer buffer;
  vfio::Rights rights;
  std::vector<HostChunk> chunks;
  std::uint64_t done_bytes = 0;
  DoneWith<std::vector<HostChunk>> done;
};

void DmaMapper::map_all(const HostBuffer& buffer, vfio::Rights rights,
                        DoneWith<std::vector<HostChunk>> done) {
  auto job = std::make_shared<MapAll>();
  job->buffer = buffer;
  job->rights = rights;
  job->done = std::move(done);
  map_next(std::move(job));
}

void DmaMapper::map_next(std::shared_ptr<MapAll> job) {
  const std::uint64_t left = job->buffer.bytes() - job->done_bytes;
  if (left == 0) return job->done(std::move(job->chunks));
  const std::uint64_t bytes = std::min(left, IovaSpace::kChunk);
  map(job->buffer, job->done_bytes, bytes, job->rights,
      [self = self_, job, bytes](base::Result<HostChunk> chunk) {
        if (!chunk) {
          job->chunks.clear();
          return job->done(std::unexpected(chunk.error()));
        }
        job->chunks.push_back(std::move(*chunk));
        job->done_bytes += bytes;
        (*self)->map_next(job);
      });
}

}  // namespace gpuumd
