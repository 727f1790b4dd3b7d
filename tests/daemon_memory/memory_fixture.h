// A device's memory without a device: VRAM as bytes behind a fake BAR 0, table pages from a list, a
// writer, and the walker that looks at the result.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "daemon/gpu/memory/page_table.h"
#include "daemon/gpu/memory/table_writer.h"
#include "tests/daemon_memory/walker.h"
#include "tests/fake/fake_pci_device.h"
#include "tests/fake/fake_register_io.h"
#include "tests/fake/manual_reactor.h"

namespace fake {

// All different and none zero, so that mixing two address spaces shows.
inline const gpuumd::VramMap kVramMap(64 * base::kMiB, 16 * base::kMiB,
                                      base::McAddress(0x80'0000'0000),
                                      base::PhysicalAddress(0x1'0000'0000));

// Table pages: alternately in VRAM and in host memory.
class TestTablePages : public gpuumd::TablePages {
 public:
  enum class Where { kVram, kHost, kBoth };
  explicit TestTablePages(std::size_t count, Where where = Where::kBoth) : left(count) {
    for (std::size_t i = 0; i < count; ++i) {
      if (where == Where::kHost || (where == Where::kBoth && i % 2 != 0)) {
        auto& page = host[kHostBase + i * 4096];
        page = std::make_unique<gpuumd::TablePage::Entries>();
        page->fill(0xDEAD'DEAD'DEAD'DEADu);
        places.push_back(
            gpuumd::TablePlace::in_host(base::Iova(kHostBase + i * 4096), page->data()));
      } else {
        places.push_back(gpuumd::TablePlace::in_vram(base::VramOffset(0x10000 + i * 4096)));
      }
    }
  }
  gpuumd::TablePage take() override {
    if (left == 0) return {};
    --left;
    auto place = places.back();
    places.pop_back();
    auto shadow = std::make_unique<gpuumd::TablePage::Entries>();
    shadow->fill(0xBAD0'BAD0'BAD0'BAD0u);
    return {*this, place, std::move(shadow)};
  }

  static constexpr std::uint64_t kHostBase = 0x7000'0000'0000;
  std::size_t left;
  std::vector<gpuumd::TablePlace> places;
  std::map<std::uint64_t, std::unique_ptr<gpuumd::TablePage::Entries>> host;

 private:
  void give_back(const gpuumd::TablePlace& place,
                 std::unique_ptr<gpuumd::TablePage::Entries>) override {
    ++left;
    places.push_back(place);
  }
};

inline gpuumd::RegisterBlock nbio_block(gpuumd::RegisterIo& io) {
  gpuumd::RegisterBlock::Bases bases;
  bases.fill(0x1000);
  return {io, bases};
}

struct Vm {
  explicit Vm(gpuumd::Unmapped mode, std::size_t pages = 2000,
              TestTablePages::Where where = TestTablePages::Where::kBoth)
      : pages(pages, where), bar(kVramMap.visible()) {
    std::memset(bar.state().bytes.data(), 0xA5, bar.state().bytes.size());
    gpuumd::TableUpdate update;
    auto made = gpuumd::PageTable::create(format, this->pages, mode, update);
    EXPECT_TRUE(made);
    table = std::make_unique<gpuumd::PageTable>(std::move(*made));
    apply(update);
  }

  void apply(const gpuumd::TableUpdate& update) {
    bool done = false;
    writer.write(update, [&](base::Result<void> result) { done = result.has_value(); });
    EXPECT_TRUE(done);
  }
  void map(std::uint64_t va, std::vector<gpuumd::PhysRun> runs, gpuumd::PteFlags flags) {
    auto plan = table->plan_map(base::GpuVa(va), std::move(runs), flags);
    ASSERT_TRUE(plan) << plan.error().message();
    gpuumd::TableUpdate update;
    table->map(std::move(*plan), update);
    apply(update);
    table->flushed(std::move(update));
  }
  void unmap(std::uint64_t va, std::uint64_t bytes) {
    auto plan = table->plan_unmap(base::GpuVa(va), bytes);
    ASSERT_TRUE(plan) << plan.error().message();
    gpuumd::TableUpdate update;
    table->unmap(std::move(*plan), update);
    apply(update);
    table->flushed(std::move(update));
  }
  std::optional<Translation> walk(std::uint64_t va) { return walker.walk(table->root().raw(), va); }
  std::uint64_t load(bool system, std::uint64_t address) {
    if (!system) return bar.read64(address - kVramMap.fb_physical().value());
    const auto page = pages.host.find(address & ~std::uint64_t{4095});
    if (page == pages.host.end()) return 0xDEAD;
    return (*page->second)[address % 4096 / 8];
  }

  gpuumd::PteFormat format{.vram = kVramMap};
  TestTablePages pages;
  FakeBar bar;
  FakeRegisterIo io;
  gpuumd::TableWriter writer{kVramMap, bar, nbio_block(io), nullptr};
  std::unique_ptr<gpuumd::PageTable> table;
  Walker walker{[this](bool system, std::uint64_t at) { return load(system, at); }};
};

}  // namespace fake
