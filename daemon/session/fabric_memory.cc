#include "daemon/session/fabric_memory.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <memory>
#include <utility>

#include "base/fence.h"

namespace gpuumd {
namespace {

constexpr std::size_t kScratchBytes = 64;  // one ring entry

}  // namespace

base::Result<std::unique_ptr<FabricMemory>> FabricMemory::create(Gpu& gpu) {
  auto rings = gpu.vram().allocate(kRingBytes, VramZone::kInvisibleFirst);
  if (!rings) return base::fail_within("UALink rings", rings.error());
  auto records = gpu.vram().allocate(kRecordBytes, VramZone::kVisible);
  if (!records) return base::fail_within("UALink write-back records", records.error());
  return std::unique_ptr<FabricMemory>(
      new FabricMemory(gpu, std::move(*rings), std::move(*records)));
}

FabricMemory::FabricMemory(Gpu& gpu, VramBlock rings, VramBlock records)
    : gpu_(gpu),
      rings_(std::move(rings)),
      records_(std::move(records)),
      scratch_(gpu.permanent().take(kScratchBytes, kScratchBytes)) {}

void FabricMemory::clear(Done done) {
  gpu_.copy_engine().fill(gpu_.vram_map().mc(rings_.offset()), 0, rings_.bytes(),
                          [](base::Result<void>) {});  // its failure fails the next one too
  gpu_.copy_engine().fill(gpu_.vram_map().mc(records_.offset()), 0, records_.bytes(),
                          std::move(done));
}

void FabricMemory::map_peers(const fabric::Layout& layout, const fabric::MapPeers& what,
                             Done done) {
  auto left = std::make_shared<std::size_t>(1);
  auto worst = std::make_shared<base::Result<void>>();
  auto last = std::make_shared<Done>(std::move(done));
  const auto one = [this, left, worst, last, on = what.enable](base::Result<void> result) {
    if (!result) *worst = std::move(result);
    if (--*left > 0) return;
    if (!*worst || !on) return (*last)(std::move(*worst));
    // An engine may remember the place as unmapped only by a directory entry; the flush is cheap
    // here.
    gpu_.flushes().submit(FlushTarget::vmid0(), FlushType::kHeavy, {},
                          [last](base::Result<void> flushed) { (*last)(std::move(flushed)); });
  };
  for (const auto peer : what.peers) {
    if (!what.enable) {
      ++*left;
      gpu_.gart().unmap_peer(peer.value(), one);
      continue;
    }
    const auto pages = layout.remote_pages(peer);
    using enum Gart::PeerPage;
    const std::pair<Gart::PeerPage, base::Npa> places[] = {{kInterruptRing, pages.interrupt_ring},
                                                           {kShootdownRing, pages.shootdown_ring},
                                                           {kPointers, pages.pointers},
                                                           {kDoorbell, pages.doorbell}};
    for (const auto& [page, at] : places) {
      ++*left;
      if (auto mapped = gpu_.gart().map_peer(peer.value(), page, at, one); !mapped) one(mapped);
    }
  }
  one({});
}

// Where VMID 0 has a remote address: in one of the peer's four pages.
std::optional<base::McAddress> FabricMemory::reach(const fabric::Layout& layout, base::AccelId peer,
                                                   base::Npa at) const {
  const auto pages = layout.remote_pages(peer);
  const auto page = base::align_down(at.value(), base::kPageSize);
  using enum Gart::PeerPage;
  const std::pair<Gart::PeerPage, base::Npa> places[] = {{kInterruptRing, pages.interrupt_ring},
                                                         {kShootdownRing, pages.shootdown_ring},
                                                         {kPointers, pages.pointers},
                                                         {kDoorbell, pages.doorbell}};
  for (const auto& [name, start] : places)
    if (start.value() == page) return Gart::peer_address(peer.value(), name) + (at.value() - page);
  return std::nullopt;
}

void FabricMemory::post(const fabric::Layout& layout, fabric::PostStores what, Done done) {
  jobs_.push_back({layout, Store{std::move(what), 0, std::move(done)}});
  start();
}

void FabricMemory::read(const fabric::Layout& layout, const fabric::ReadRemote& what,
                        DoneWith<std::vector<std::byte>> done) {
  jobs_.push_back({layout, Load{what, std::move(done)}});
  start();
}

void FabricMemory::start() {
  if (busy_ || jobs_.empty()) return;
  busy_ = true;
  auto& job = jobs_.front();
  if (std::holds_alternative<Store>(job.work)) return store_next();
  const auto& load = std::get<Load>(job.work).what;
  const auto from = reach(job.layout, load.peer, load.at);
  if (!from || load.size > kScratchBytes)
    return end_load(base::fail(base::Errc::kInvalidArgument, "remote address is not mapped"));
  gpu_.lsdma().copy(*from, gpu_.permanent().engine(scratch_).at, load.size,
                    [this, size = load.size](base::Result<void> result) {
                      if (!result) return end_load(std::unexpected(result.error()));
                      base::full_fence();
                      end_load(std::vector<std::byte>(scratch_.cpu, scratch_.cpu + size));
                    });
}

void FabricMemory::store_next() {
  auto& job = jobs_.front();
  auto& store = std::get<Store>(job.work);
  if (store.next == store.what.stores.size()) return end_store({});
  const auto& one = store.what.stores[store.next++];
  const auto to = reach(job.layout, store.what.peer, one.at);
  if (!to)
    return end_store(base::fail(base::Errc::kInvalidArgument, "remote address is not mapped"));
  std::memcpy(scratch_.cpu, one.bytes.data(), one.size);
  gpu_.lsdma().copy(
      gpu_.permanent().engine(scratch_).at, *to, one.size,
      [this](base::Result<void> result) { result ? store_next() : end_store(std::move(result)); });
}

void FabricMemory::end_store(base::Result<void> result) {
  const auto peer = std::get<Store>(jobs_.front().work).what.peer;
  std::vector<Done> answers;
  answers.push_back(std::move(std::get<Store>(jobs_.front().work).done));
  jobs_.pop_front();
  // What was given for this peer before it could know of the failure must not be executed: its ring
  // would get entries behind one that is missing.
  if (!result)
    std::erase_if(jobs_, [&](Job& job) {
      auto* store = std::get_if<Store>(&job.work);
      if (store == nullptr || store->what.peer != peer) return false;
      answers.push_back(std::move(store->done));
      return true;
    });
  busy_ = false;
  for (auto& done : answers) done(result);
  start();
}

void FabricMemory::end_load(base::Result<std::vector<std::byte>> result) {
  auto done = std::move(std::get<Load>(jobs_.front().work).done);
  jobs_.pop_front();
  busy_ = false;
  done(std::move(result));
  start();
}

fabric::WriteBackRecord FabricMemory::record(const fabric::Layout& layout,
                                             const fabric::RecordName& name) const {
  auto& bar = *gpu_.boot().bars.vram;
  const auto at = records_.offset().value() + layout.record_offset(name.peer, name.ring);
  // Data and status come in one load, the pointer after it: the firmware writes data last.
  const auto first = bar.read64(at);
  base::full_fence();
  return {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(first >> 32),
          bar.read64(at + 8)};
}

}  // namespace gpuumd
