// Random map and unmap against one record a page, looked at by the test's own walker in the memory
// that the driver wrote. FRAGMENT is believed as the hardware does: what an entry claims must hold.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/daemon_memory/memory_fixture.h"

namespace {

using namespace gpuumd;
using fake::Vm;

struct Page {
  std::uint64_t address;
  bool write;
};

class RandomPageTable : public ::testing::TestWithParam<std::tuple<Unmapped, int>> {
 protected:
  // Four chunks of 2 MiB round a border of 1 GiB, where the tables of two levels meet.
  static constexpr std::uint64_t kFirst = base::kGiB - 4 * base::kMiB;
  static constexpr std::uint64_t kPages = 2048;

  std::uint64_t va(std::uint64_t page) const { return kFirst + page * base::kPageSize; }

  bool free(std::uint64_t first, std::uint64_t count) const {
    const auto at = model_.lower_bound(first);
    return at == model_.end() || at->first >= first + count;
  }

  void random_map(Vm& vm, std::uint64_t first, std::uint64_t count) {
    std::vector<PhysRun> runs;
    const bool write = random_() % 2 == 0;
    for (std::uint64_t done = 0; done < count;) {
      const std::uint64_t pages = std::min(count - done, 1 + random_() % 700);
      // Often aligned like the virtual address, so that fragments and large leaves come about.
      std::uint64_t target = 0x10'0000'0000 + random_() % 4096 * (2 * base::kMiB);
      if (random_() % 4 != 0) target += va(first + done) % (2 * base::kMiB);
      runs.push_back(PhysRun::system(base::Iova(target), pages));
      for (std::uint64_t i = 0; i < pages; ++i)
        model_[first + done + i] = {target + i * base::kPageSize, write};
      done += pages;
    }
    vm.map(va(first), runs, {.read = true, .write = write});
  }

  void change_rights(Vm& vm, std::uint64_t first, std::uint64_t count) {
    std::vector<PhysRun> runs;
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto at = model_.find(first + i);
      if (at == model_.end()) return;
      runs.push_back(PhysRun::system(base::Iova(at->second.address), 1));
    }
    const bool write = random_() % 2 == 0;
    for (std::uint64_t i = 0; i < count; ++i) model_[first + i].write = write;
    vm.map(va(first), runs, {.read = true, .write = write});
  }

  void check(Vm& vm) {
    const std::uint64_t invalid = vm.table->invalid_entry();
    for (std::uint64_t page = 0; page < kPages; ++page) {
      const auto found = vm.walk(va(page));
      const auto expected = model_.find(page);
      ASSERT_EQ(found.has_value(), expected != model_.end()) << "page " << page;
      if (!found) {
        ASSERT_EQ(vm.walker.last_entry(), invalid) << "page " << page;
        continue;
      }
      ASSERT_EQ(found->address, expected->second.address) << "page " << page;
      ASSERT_EQ(found->write, expected->second.write) << "page " << page;
      ASSERT_GE(found->fragment, 9 * found->level);
      const std::uint64_t run = std::uint64_t{1} << found->fragment;
      ASSERT_EQ((found->address ^ va(page)) / base::kPageSize % run, 0u)
          << "page " << page << ": aligned alike in both spaces";
      const std::uint64_t start =
          (va(page) / base::kPageSize & ~(run - 1)) - kFirst / base::kPageSize;
      for (std::uint64_t i = 0; i < run; ++i) {
        const auto other = model_.find(start + i);
        ASSERT_NE(other, model_.end()) << "page " << page << " claims " << start + i;
        ASSERT_EQ(other->second.address - found->address, (start + i - page) * base::kPageSize);
        ASSERT_EQ(other->second.write, found->write);
      }
      const auto leaf = vm.table->lookup(base::GpuVa(va(page)));
      ASSERT_TRUE(leaf);
      ASSERT_EQ(leaf->bytes, base::kPageSize << (9 * found->level));
    }
    ASSERT_FALSE(vm.walk(va(0) - base::kPageSize));
    ASSERT_FALSE(vm.walk(va(kPages)));
  }

  std::mt19937_64 random_{static_cast<std::uint64_t>(std::get<1>(GetParam()))};
  std::map<std::uint64_t, Page> model_;
};

TEST_P(RandomPageTable, SVM_8_AgreesWithAPerPageModel) {
  Vm vm(std::get<0>(GetParam()));
  const std::size_t all = vm.pages.left;
  for (int i = 0; i < 400; ++i) {
    std::uint64_t first = random_() % kPages;
    std::uint64_t count =
        1 + random_() % std::min<std::uint64_t>(kPages - first, random_() % 3 == 0 ? 1100 : 20);
    if (random_() % 4 == 0) {  // whole chunks
      first = first / 512 * 512;
      count = 512;
    }
    switch (random_() % 3) {
      case 0:
        if (free(first, count)) random_map(vm, first, count);
        break;
      case 1:
        change_rights(vm, first, count);
        break;
      case 2:
        for (std::uint64_t page = first; page < first + count; ++page) model_.erase(page);
        vm.unmap(va(first), count * base::kPageSize);
        break;
    }
    if (HasFatalFailure()) return;
    if (i % 8 == 0) {
      ASSERT_NO_FATAL_FAILURE(check(vm)) << "after step " << i;
    }
  }
  vm.unmap(va(0), kPages * base::kPageSize);
  EXPECT_EQ(vm.table->tables(), 1u);
  EXPECT_EQ(vm.pages.left, all);  // every table came back
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomPageTable,
                         ::testing::Combine(::testing::Values(Unmapped::kNoRetry, Unmapped::kRetry),
                                            ::testing::Values(1, 2, 3)));

}  // namespace
