#include "base/interval_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/address.h"
#include "base/interval_set.h"

namespace {

// A window into some backing: its start moves on when the range is cut.
struct Window {
  int backing = 0;
  std::uint64_t start = 0;
  friend bool operator==(const Window&, const Window&) = default;
};
struct WindowPolicy {
  static Window tail(const Window& value, std::uint64_t offset) {
    return {value.backing, value.start + offset};
  }
  static bool joins(const Window& left, std::uint64_t size, const Window& right) {
    return left.backing == right.backing && left.start + size == right.start;
  }
};
using Windows = base::IntervalMap<Window, std::uint64_t, WindowPolicy>;

TEST(IntervalMap, RefusesOverlapAndChangesNothing) {
  Windows map;
  EXPECT_TRUE(map.insert(10, 20, {1, 0}));
  EXPECT_FALSE(map.insert(19, 21, {2, 0}));
  EXPECT_FALSE(map.insert(5, 11, {2, 0}));
  EXPECT_FALSE(map.insert(5, 25, {2, 0}));
  EXPECT_TRUE(map.insert(20, 21, {2, 0}));
  EXPECT_EQ(map.count(), 2u);
}

TEST(IntervalMap, EraseInTheMiddleLeavesBothEnds) {
  Windows map;
  map.insert(0, 100, {1, 1000});
  std::vector<Windows::Interval> removed;
  map.erase(40, 60, [&](Windows::Interval&& piece) { removed.push_back(piece); });
  ASSERT_EQ(removed.size(), 1u);
  EXPECT_EQ(removed[0].first, 40u);
  EXPECT_EQ(removed[0].end, 60u);
  EXPECT_EQ(removed[0].value, (Window{1, 1040}));
  std::uint64_t first = 0, end = 0;
  EXPECT_EQ(*map.find(39, &first, &end), (Window{1, 1000}));
  EXPECT_EQ(end, 40u);
  EXPECT_EQ(*map.find(60, &first, &end), (Window{1, 1060}));
  EXPECT_EQ(first, 60u);
  EXPECT_EQ(map.find(40), nullptr);
}

TEST(IntervalMap, JoinsWhatContinues) {
  Windows map;
  map.insert(0, 10, {1, 0});
  map.insert(20, 30, {1, 20});
  map.insert(10, 20, {1, 10});
  EXPECT_EQ(map.count(), 1u);
  map.insert(30, 40, {1, 99});  // adjacent, but goes on elsewhere
  EXPECT_EQ(map.count(), 2u);
}

TEST(IntervalMap, SVM_8_RandomOperationsAgreeWithAPerPageModel) {
  constexpr std::uint64_t kPages = 300;
  Windows map;
  std::vector<Window> model(kPages);  // backing 0: nothing
  std::mt19937 random(3);
  for (int i = 0; i < 30000; ++i) {
    const std::uint64_t first = random() % kPages;
    const std::uint64_t end = first + 1 + random() % std::min<std::uint64_t>(40, kPages - first);
    const Window value{1 + static_cast<int>(random() % 3),
                       random() % 4 == 0 ? first : 1000 + first};
    switch (random() % 4) {
      case 0: {
        bool free = true;
        for (auto at = first; at < end; ++at) free = free && model[at].backing == 0;
        ASSERT_EQ(map.insert(first, end, value), free);
        for (auto at = first; free && at < end; ++at)
          model[at] = WindowPolicy::tail(value, at - first);
        break;
      }
      case 1:
        map.assign(first, end, value);
        for (auto at = first; at < end; ++at) model[at] = WindowPolicy::tail(value, at - first);
        break;
      case 2:
        map.erase(first, end, [&](Windows::Interval&& piece) {
          for (auto at = piece.first; at < piece.end; ++at) {
            ASSERT_GE(at, first);
            ASSERT_LT(at, end);
            ASSERT_EQ(model[at], WindowPolicy::tail(piece.value, at - piece.first));
            model[at] = {};
          }
        });
        for (auto at = first; at < end; ++at) ASSERT_EQ(model[at].backing, 0) << "not removed";
        break;
      case 3:
        map.split(first);
        break;
    }
    bool any = false;
    for (auto at = first; at < end; ++at) any = any || model[at].backing != 0;
    ASSERT_EQ(map.overlaps(first, end), any);
    if (i % 50 != 0) continue;
    std::uint64_t last_end = 0;
    std::vector<Window> seen(kPages);
    map.for_each([&](std::uint64_t from, std::uint64_t to, const Window& v) {
      ASSERT_GE(from, last_end);
      ASSERT_LT(from, to);
      last_end = to;
      for (auto at = from; at < to; ++at) seen[at] = WindowPolicy::tail(v, at - from);
    });
    ASSERT_EQ(seen, model);
    for (std::uint64_t at = 0; at < kPages; ++at) {
      std::uint64_t from = 0;
      const Window* found = map.find(at, &from);
      ASSERT_EQ(found != nullptr, model[at].backing != 0);
      if (found != nullptr) {
        ASSERT_EQ(WindowPolicy::tail(*found, at - from), model[at]);
      }
    }
  }
}

TEST(IntervalMap, ForEachStopsWhenToldTo) {
  Windows map;
  for (std::uint64_t i = 0; i < 10; ++i) map.insert(i * 10, i * 10 + 5, {1, 0});
  int seen = 0;
  map.for_each(12, 95, [&](std::uint64_t, std::uint64_t, const Window&) { return ++seen < 3; });
  EXPECT_EQ(seen, 3);
}

TEST(IntervalSet, CountsEachAddressOnce) {
  base::IntervalSet<base::GpuVa> set;
  const auto at = [](std::uint64_t n) { return base::GpuVa(n); };
  set.insert(at(10), at(20));
  set.insert(at(15), at(30));
  set.insert(at(30), at(40));
  EXPECT_EQ(set.count(), 1u);
  EXPECT_EQ(set.size(), 30u);
  EXPECT_TRUE(set.contains(at(10), at(40)));
  EXPECT_FALSE(set.contains(at(10), at(41)));
  set.erase(at(12), at(14));
  EXPECT_EQ(set.count(), 2u);
  EXPECT_EQ(set.size(), 28u);
  EXPECT_FALSE(set.contains(at(12)));
  EXPECT_TRUE(set.overlaps(at(13), at(15)));
  EXPECT_FALSE(set.overlaps(at(12), at(14)));
}

}  // namespace
