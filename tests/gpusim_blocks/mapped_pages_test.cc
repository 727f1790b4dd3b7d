#include "tools/gpusim/model/mapped_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

namespace gpusim {
namespace {

base::Mapping map_page(int fd, std::uint64_t offset) {
  return std::move(*base::Mapping::map(fd, offset, 4096, PROT_READ | PROT_WRITE));
}

template <class T>
void store(base::Mapping& page, std::size_t offset, T value) {
  __atomic_store_n(page.at<T>(offset), value, __ATOMIC_RELEASE);
}

TEST(DoorbellPage, D62_StoresAreFoundWithTheirWidth) {
  auto page = std::move(*DoorbellPage::create(2 << 20));
  EXPECT_EQ(*base::sealed_size(page.fd()), 2u << 20);
  EXPECT_NE(::fcntl(page.fd(), F_GET_SEALS) & F_SEAL_GROW, 0);
  auto client = map_page(page.fd(), 0);
  EXPECT_TRUE(page.take().empty());
  store(client, 0xD00, std::uint32_t{0x60});
  store(client, 0x804, std::uint32_t{9});
  store(client, 0x810, std::uint64_t{0x1'0000'0040});
  const auto& taken = page.take();
  ASSERT_EQ(taken.size(), 3u);
  EXPECT_EQ(taken[0].offset, 0x804u);
  EXPECT_EQ(taken[0].bytes, 4u);
  EXPECT_EQ(taken[1].offset, 0x810u);
  EXPECT_EQ(taken[1].value, 0x1'0000'0040u);
  EXPECT_EQ(taken[1].bytes, 8u);
  EXPECT_EQ(taken[2].offset, 0xD00u);
  EXPECT_EQ(taken[2].value, 0x60u);
  EXPECT_EQ(taken[2].bytes, 4u);
}

TEST(DoorbellPage, TheSameValueTwiceIsSeenTwice) {
  auto page = std::move(*DoorbellPage::create(2 << 20));
  auto client = map_page(page.fd(), 0);
  for (int n = 0; n < 2; ++n) {
    store(client, 0xD10, std::uint32_t{5});
    ASSERT_EQ(page.take().size(), 1u);
    EXPECT_TRUE(page.take().empty());
  }
}

// Under ThreadSanitizer stored() leaves it to take() and look() to find nothing.
#if !defined(__SANITIZE_THREAD__)
TEST(DoorbellPage, StoredSaysWhetherThereIsSomethingToTake) {
  auto page = std::move(*DoorbellPage::create(2 << 20));
  auto client = map_page(page.fd(), 0);
  EXPECT_FALSE(page.stored());
  for (const std::size_t offset : {0, 4, 2048, 4092}) {
    store(client, offset, std::uint32_t{0});
    EXPECT_TRUE(page.stored()) << offset;
    EXPECT_EQ(page.take().size(), 1u);
    EXPECT_FALSE(page.stored()) << offset;
  }
}
#endif

class RegisterPageTest : public ::testing::Test {
 protected:
  RegisterPageTest() {
    registers.define(0xC10, "PLAIN", 0x77);
    auto& flush = registers.define(0xE17, "FLUSH", 0x4240);
    flush.on_write = [this](std::uint32_t, std::uint32_t stored) {
      ++flushes;
      return stored;
    };
    registers.define(0xE18, "READ_ONLY", 32).on_write = [](std::uint32_t, std::uint32_t stored) {
      return stored;
    };
    page = std::make_unique<RegisterPage>(
        std::move(*RegisterPage::create(512 << 10, 0xC00, registers)));
    client = map_page(page->fd(), 0x3000);
  }
  std::uint32_t load(std::uint32_t dword) {
    return __atomic_load_n(client.at<std::uint32_t>(4 * (dword - 0xC00)), __ATOMIC_ACQUIRE);
  }
  void put(std::uint32_t dword, std::uint32_t value) { store(client, 4 * (dword - 0xC00), value); }

  RegisterFile registers;
  unsigned flushes = 0;
  std::unique_ptr<RegisterPage> page;
  base::Mapping client;
};

TEST_F(RegisterPageTest, ShowsWhatReadsGive) {
  EXPECT_EQ(page->offset(), 0x3000u);
  EXPECT_TRUE(page->covers(0xC00));
  EXPECT_FALSE(page->covers(0xBFF));
  EXPECT_FALSE(page->covers(0x1000));
  EXPECT_EQ(load(0xC10), 0x77u);
  EXPECT_EQ(load(0xE18), 32u);
  EXPECT_EQ(load(0xD00), 0u);
}

TEST_F(RegisterPageTest, D62_StoresTakeEffect) {
  EXPECT_FALSE(page->look());
  put(0xC10, 0x88);
  put(0xE18, 5);
  put(0xD00, 6);
  EXPECT_TRUE(page->look());
  EXPECT_EQ(registers.read(0xC10), 0x88u);
  EXPECT_EQ(load(0xE18), 32u);
  EXPECT_EQ(load(0xD00), 0u) << "no register there";
  EXPECT_FALSE(page->look());
}

#if !defined(__SANITIZE_THREAD__)
TEST_F(RegisterPageTest, StoredSaysWhetherThereIsSomethingToLookAt) {
  EXPECT_FALSE(page->stored());
  for (const std::uint32_t dword : {0xC00u, 0xC10u, 0xE17u, 0xFFFu}) {
    put(dword, 0x1234);
    EXPECT_TRUE(page->stored()) << dword;
    EXPECT_TRUE(page->look());
    EXPECT_FALSE(page->stored()) << dword;
  }
  registers.write(0xC10, 0x99);
  page->publish();
  EXPECT_FALSE(page->stored()) << "our own store is none of the client's";
}
#endif

TEST_F(RegisterPageTest, EachFlushIsSeenWhateverItsValue) {
  for (const std::uint32_t value : {0u, 0u, 1u, 1u}) {
    put(0xE17, value);
    EXPECT_TRUE(page->look());
  }
  EXPECT_EQ(flushes, 4u);
}

TEST_F(RegisterPageTest, ChangesFromElsewhereArePublished) {
  registers.write(0xC10, 0x99);
  page->publish();
  EXPECT_EQ(load(0xC10), 0x99u);
  EXPECT_FALSE(page->look()) << "our own store is none of the client's";
}

TEST_F(RegisterPageTest, PublishingKeepsAClientsStore) {
  put(0xC10, 0xAB);
  registers.write(0xC10, 0x99);
  page->publish();
  EXPECT_TRUE(page->look());
  EXPECT_EQ(registers.read(0xC10), 0xABu);
}

TEST_F(RegisterPageTest, GoneReadsAllOnes) {
  page->fill_ones();
  EXPECT_EQ(load(0xC10), ~0u);
  page->publish();
  EXPECT_EQ(load(0xC10), 0x77u);
}

}  // namespace
}  // namespace gpusim
