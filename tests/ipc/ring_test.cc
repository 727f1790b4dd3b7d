// The two ends of a ring, against another side that may write what it likes.
#include "gpuumd/ring.h"

#include <gtest/gtest.h>

namespace gpuumd {
namespace {

constexpr std::uint32_t kSlots = 8;

struct Ring : ::testing::Test {
  void fill(std::uint32_t count) {
    producer.fill(count);
    producer.publish();
  }
  wire::RingIndices indices{};
  RingProducer producer{&indices, kSlots};
  RingConsumer consumer{&indices, kSlots};
};

TEST_F(Ring, RoomIsWhatTheConsumerGaveBack) {
  EXPECT_EQ(producer.has_room(kSlots), true);
  EXPECT_EQ(producer.has_room(kSlots + 1), false);
  fill(kSlots);
  EXPECT_EQ(producer.has_room(1), false);
  consumer.release(3);
  EXPECT_EQ(producer.has_room(3), true);
  EXPECT_EQ(producer.has_room(4), false);
  fill(3);
  EXPECT_EQ(producer.has_room(1), false);
  consumer.release(kSlots);
  EXPECT_EQ(producer.has_room(kSlots), true);
}

TEST_F(Ring, RoomRoundTheEndOfTheIndices) {
  const std::uint32_t near_end = 0u - 5;
  producer.fill(near_end);
  producer.publish();
  consumer.release(near_end);
  EXPECT_EQ(producer.has_room(kSlots), true);
  fill(kSlots);
  EXPECT_EQ(producer.tail(), 3u);
  EXPECT_EQ(producer.has_room(1), false);
  consumer.release(6);
  EXPECT_EQ(producer.has_room(6), true);
  EXPECT_EQ(producer.has_room(7), false);
}

// What was seen of the consumer's index is enough as long as it says that there is room.
TEST_F(Ring, TheConsumersIndexIsLookedAtOnlyWhenItIsNeeded) {
  EXPECT_EQ(producer.has_room(1), true);
  indices.head = 4711;
  fill(kSlots - 1);
  EXPECT_EQ(producer.has_room(1), true);
  fill(1);
  EXPECT_EQ(producer.has_room(1), std::nullopt);
}

// An index of things never written stays broken, and is no room at the second look either.
TEST_F(Ring, AnIndexThatCannotBeIsNeverRoom) {
  fill(kSlots);
  for (const std::uint32_t head : {kSlots + 1, 0u - 1, 0x8000'0000u}) {
    indices.head = head;
    for (int look = 0; look < 3; ++look)
      EXPECT_EQ(producer.has_room(1), std::nullopt) << head << ", look " << look;
    EXPECT_EQ(producer.room(), std::nullopt);
  }
  indices.head = 2;
  EXPECT_EQ(producer.has_room(2), true) << "only what is read decides";
}

TEST_F(Ring, BothQuestionsMayBeAskedOfOneRing) {
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(producer.room(), kSlots);
    fill(kSlots);
    consumer.release(kSlots);
  }
  fill(kSlots);
  EXPECT_EQ(producer.has_room(1), false);
}

// A consumer that takes back what it gave can only hurt itself.
TEST_F(Ring, AnIndexThatGoesBackIsFoundAtTheNextLook) {
  fill(kSlots);
  indices.head = kSlots;
  EXPECT_EQ(producer.has_room(1), true);
  indices.head = 0;
  fill(kSlots);
  EXPECT_EQ(producer.has_room(1), std::nullopt);
}

}  // namespace
}  // namespace gpuumd
