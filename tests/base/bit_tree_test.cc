#include "base/bit_tree.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace {

TEST(BitTree, FindsWhatASortedSetFinds) {
  for (const std::uint64_t size : {1u, 63u, 64u, 65u, 4096u, 4097u, 300000u}) {
    base::BitTree tree(size);
    std::set<std::uint64_t> model;
    std::mt19937_64 random(size);
    for (int i = 0; i < 4000; ++i) {
      const std::uint64_t n = random() % size;
      if (random() % 3 != 0) {
        tree.insert(n);
        model.insert(n);
      } else {
        tree.erase(n);
        model.erase(n);
      }
      const std::uint64_t from = random() % (size + 2);
      const auto expected = model.lower_bound(from);
      const auto found = tree.next(from);
      ASSERT_EQ(found.has_value(), expected != model.end()) << size << " from " << from;
      if (found) {
        ASSERT_EQ(*found, *expected) << size << " from " << from;
      }
      ASSERT_EQ(tree.contains(n), model.count(n) != 0);
    }
  }
}

}  // namespace
