#include "daemon/gpu/memory/gart.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace gpuumd {
namespace {

// The order of docs/vmid0.md: nothing, permanent, peers, windows; each begins where the last ends.
static_assert(Gart::kPermanentFirst < Gart::kPeersFirst);
static_assert(Gart::kPeersFirst + Gart::kPeers * Gart::kPagesPerPeer == Gart::kWindowsFirst);
static_assert(Gart::kWindowsFirst + Gart::kWindows * Gart::kWindowPages == Gart::kPages);
static_assert(Gart::kWindowsFirst % Gart::kWindowPages == 0, "windows are 2 MiB aligned");
static_assert(Gart::kTableBytes == base::kMiB);

void call(Done& done, base::Result<void> result) {
  if (done) done(std::move(result));
}

}  // namespace

GartRange::GartRange(GartRange&& other) noexcept
    : gart_(std::exchange(other.gart_, nullptr)), first_(other.first_), pages_(other.pages_) {}

GartRange& GartRange::operator=(GartRange&& other) noexcept {
  if (this != &other) {
    unmap({});
    gart_ = std::exchange(other.gart_, nullptr);
    first_ = other.first_;
    pages_ = other.pages_;
  }
  return *this;
}

GartRange::~GartRange() { unmap({}); }

base::McAddress GartRange::address() const { return Gart::first() + first_ * base::kPageSize; }

void GartRange::unmap(Done done) {
  if (gart_ == nullptr) return call(done, {});
  Gart& gart = *std::exchange(gart_, nullptr);
  gart.clear(first_, pages_,
             [self = gart.self_, first = first_, pages = pages_,
              done = std::move(done)](base::Result<void> result) mutable {
               // Without an acknowledged flush the addresses are never used again.
               if (result && *self != nullptr) (*self)->release(first, pages);
               call(done, std::move(result));
             });
}

Gart::Gart(const PteFormat& format, VramBlock table, TableWriter& writer, FlushQueue& flushes)
    : format_(format),
      table_(std::move(table)),
      writer_(writer),
      flushes_(flushes),
      shadow_(kPages, kRetryEntry),  // VMID 0 never retries: invalid is invalid
      self_(std::make_shared<Gart*>(this)) {
  free_.insert(kPermanentFirst, kPeersFirst);
  for (unsigned slot = kWindows; slot-- > 0;) free_windows_.push_back(slot);
}

Gart::~Gart() { *self_ = nullptr; }

base::Result<std::unique_ptr<Gart>> Gart::create(const PteFormat& format, Vram& vram,
                                                 TableWriter& writer, FlushQueue& flushes,
                                                 Done ready) {
  if (format.vram.fb_base() < first() + kBytes)
    return base::fail(base::Errc::kDeviceError, "the FB aperture of VMID 0 lies over the GART");
  auto table = vram.allocate(kTableBytes, VramZone::kVisible);
  if (!table) return base::fail_within("GART table", table.error());
  std::unique_ptr<Gart> gart(new Gart(format, std::move(*table), writer, flushes));
  gart->write(0, kPages, std::move(ready));
  return gart;
}

Pde Gart::root() const {
  return directory_entry(format_.vram.physical(table_.offset()).value(), false);
}

Pte Gart::entry(base::McAddress at) const {
  assert(at < first() + kBytes);
  return Pte(shadow_[at.page()]);
}

// The number of pages, if entries can name all of them.
base::Result<std::uint64_t> Gart::check(std::span<const PhysRun> runs, PteFlags flags) const {
  std::uint64_t pages = 0;
  for (const PhysRun& run : runs) {
    if (!format_.can_encode(run) || (run.kind() == RunKind::kNpa && flags.execute))
      return base::fail(base::Errc::kInvalidArgument, "memory that no GART entry can name");
    pages += run.pages();
    if (pages > kPages) return base::fail(base::Errc::kNoSpace, "GART");
  }
  if (pages == 0) return base::fail(base::Errc::kInvalidArgument, "nothing to map in the GART");
  return pages;
}

base::Result<GartRange> Gart::map(std::span<const PhysRun> runs, PteFlags flags, Done done) {
  const auto pages = check(runs, flags);
  if (!pages) return std::unexpected(pages.error());
  std::optional<std::uint64_t> at;
  free_.for_each([&](std::uint64_t first, std::uint64_t end) {
    if (end - first >= *pages) at = first;
    return !at;
  });
  if (!at) return base::fail(base::Errc::kNoSpace, "permanent part of the GART");
  free_.erase(*at, *at + *pages);
  set(*at, runs, flags, std::move(done));
  return GartRange(this, *at, *pages);
}

base::McAddress Gart::peer_address(unsigned peer, PeerPage page) {
  assert(peer < kPeers);
  const std::uint64_t index = kPeersFirst + peer * kPagesPerPeer + static_cast<unsigned>(page);
  return first() + index * base::kPageSize;
}

base::Result<void> Gart::map_peer(unsigned peer, PeerPage page, base::Npa at, Done done) {
  const PhysRun run = PhysRun::npa(at, 1);
  if (peer >= kPeers || !format_.can_encode(run))
    return base::fail(base::Errc::kInvalidArgument, "ring page of a peer");
  const std::uint64_t index = peer_address(peer, page).page();
  if (is_leaf(shadow_[index])) return base::fail(base::Errc::kExists, "ring page of a peer");
  set(index, std::span(&run, 1), {.read = true, .write = true, .uncached = true}, std::move(done));
  return {};
}

void Gart::unmap_peer(unsigned peer, Done done) {
  clear(peer_address(peer, PeerPage{}).page(), kPagesPerPeer, std::move(done));
}

base::Result<GartRange> Gart::acquire_window(std::span<const PhysRun> runs, PteFlags flags,
                                             Done done) {
  const auto pages = check(runs, flags);
  if (!pages) return std::unexpected(pages.error());
  if (*pages > kWindowPages)
    return base::fail(base::Errc::kInvalidArgument, "more than 2 MiB for a GART window");
  if (free_windows_.empty()) return base::fail(base::Errc::kAgain, "GART windows");
  const std::uint64_t first = kWindowsFirst + free_windows_.back() * kWindowPages;
  free_windows_.pop_back();
  set(first, runs, flags, std::move(done));
  return GartRange(this, first, *pages);
}

void Gart::set(std::uint64_t first, std::span<const PhysRun> runs, PteFlags flags, Done done) {
  std::uint64_t index = first;
  for (const PhysRun& run : runs) {
    Pte entry = format_.leaf(run, flags);
    const std::uint64_t target = entry.get<PTE::ADDRESS>();
    for (std::uint64_t page = 0; page < run.pages(); ++page, ++index) {
      assert(!is_leaf(shadow_[index]));
      entry.set<PTE::ADDRESS>(target + page);
      shadow_[index] = entry.raw();
    }
  }
  write(first, index - first, std::move(done));
}

void Gart::clear(std::uint64_t first, std::uint64_t pages, Done done) {
  std::fill_n(shadow_.begin() + static_cast<std::ptrdiff_t>(first), pages, kRetryEntry);
  write(first, pages, [self = self_, done = std::move(done)](base::Result<void> written) mutable {
    if (!written) return call(done, std::move(written));
    if (*self == nullptr) return call(done, base::fail(base::Errc::kDeviceLost, "GART"));
    (*self)->flushes_.submit(FlushTarget::vmid0(), FlushType::kHeavy, {}, std::move(done));
  });
}

// Carries the shadow of [first, first + pages) to the table.
void Gart::write(std::uint64_t first, std::uint64_t pages, Done done) {
  TableUpdate update;
  const std::uint64_t end = first + pages;
  while (first < end) {
    const std::uint64_t page = first / kTableEntries;
    const std::uint64_t stop = std::min(end, (page + 1) * kTableEntries);
    append_runs(update.link, TablePlace::in_vram(table_.offset() + page * base::kPageSize),
                std::span<const std::uint64_t, kTableEntries>(shadow_.data() + page * kTableEntries,
                                                              kTableEntries),
                static_cast<unsigned>(first % kTableEntries),
                static_cast<unsigned>(stop - page * kTableEntries));
    first = stop;
  }
  writer_.write(update, [done = std::move(done)](base::Result<void> result) mutable {
    call(done, std::move(result));
  });
}

void Gart::release(std::uint64_t first, std::uint64_t pages) {
  if (first >= kWindowsFirst) {
    free_windows_.push_back(static_cast<std::uint16_t>((first - kWindowsFirst) / kWindowPages));
  } else {
    free_.insert(first, first + pages);
  }
}

}  // namespace gpuumd
