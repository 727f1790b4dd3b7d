// The two ends of a ring of wire.h. Each end keeps its own index in private memory, publishes
// copies of it, and reads nothing but the other side's index, which it bounds: what the other side
// scribbles makes a ring broken, never an access outside it.
#pragma once

#include <bit>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <optional>

#include "gpuumd/wire.h"

namespace gpuumd {

// Words that two processes share.
template <class T>
T load_acquire(const T& word) {
  return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
}
template <class T>
T load_relaxed(const T& word) {
  return __atomic_load_n(&word, __ATOMIC_RELAXED);
}
template <class T>
void store_release(T& word, T value) {
  __atomic_store_n(&word, value, __ATOMIC_RELEASE);
}

// Publishes whether this side sleeps; look once more at what it waits for before it does. Both this
// and must_wake() are read-modify-writes of one word: whichever comes second sees all that the
// other side stored before the first. So either the sleeper finds what was published, or it is
// woken.
inline void publish_sleeping(std::uint32_t& word, bool sleeping) {
  __atomic_exchange_n(&word, sleeping ? 1u : 0u, __ATOMIC_SEQ_CST);
}
// After something was published: whether the other side sleeps and has to be woken. Takes the flag
// down, so that a burst wakes once.
inline bool must_wake(std::uint32_t& word) {
  return __atomic_fetch_or(&word, 0u, __ATOMIC_SEQ_CST) != 0 &&
         __atomic_exchange_n(&word, 0u, __ATOMIC_SEQ_CST) != 0;
}

// Copies a slot out of shared memory word by word, each read once. Racing writes of a hostile other
// side give garbage in the copy, nothing worse.
inline void copy_shared(void* to, const void* from, std::size_t bytes) {
  assert(bytes % 8 == 0);
  auto* words = static_cast<const std::uint64_t*>(from);
  auto* out = static_cast<std::byte*>(to);
  for (std::size_t i = 0; i < bytes / 8; ++i) {
    const std::uint64_t word = __atomic_load_n(words + i, __ATOMIC_RELAXED);
    std::memcpy(out + 8 * i, &word, 8);
  }
}
inline void store_shared(void* to, const void* from, std::size_t bytes) {
  assert(bytes % 8 == 0);
  auto* words = static_cast<std::uint64_t*>(to);
  auto* in = static_cast<const std::byte*>(from);
  for (std::size_t i = 0; i < bytes / 8; ++i) {
    std::uint64_t word;
    std::memcpy(&word, in + 8 * i, 8);
    __atomic_store_n(words + i, word, __ATOMIC_RELAXED);
  }
}

class RingConsumer {
 public:
  RingConsumer() = default;
  RingConsumer(wire::RingIndices* indices, std::uint32_t slots) : indices_(indices), slots_(slots) {
    assert(std::has_single_bit(slots));
  }
  std::uint32_t slots() const { return slots_; }

  // Slots that the producer has filled; nothing when it claims more than the ring holds.
  std::optional<std::uint32_t> filled() const {
    const std::uint32_t count = load_acquire(indices_->tail) - head_;
    if (count > slots_) return std::nullopt;
    return count;
  }
  // Position of the `ahead`th filled slot.
  std::uint32_t slot(std::uint32_t ahead = 0) const { return (head_ + ahead) & (slots_ - 1); }
  // Gives `count` slots back.
  void release(std::uint32_t count) {
    head_ += count;
    store_release(indices_->head, head_);
  }

 private:
  wire::RingIndices* indices_ = nullptr;
  std::uint32_t slots_ = 0;
  std::uint32_t head_ = 0;
};

class RingProducer {
 public:
  RingProducer() = default;
  RingProducer(wire::RingIndices* indices, std::uint32_t slots) : indices_(indices), slots_(slots) {
    assert(std::has_single_bit(slots));
  }
  std::uint32_t slots() const { return slots_; }

  // Slots that may be filled; nothing when the consumer claims to have read what was never written.
  std::optional<std::uint32_t> room() const {
    const std::uint32_t unread = tail_ - load_acquire(indices_->head);
    if (unread > slots_) return std::nullopt;
    return slots_ - unread;
  }
  // Whether `count` slots may be filled; nothing as above. The consumer's index, which the other
  // side's core has to give up, is looked at only when what it was last does not do.
  std::optional<bool> has_room(std::uint32_t count) {
    // More unread than there are slots: room() was asked in between, or the index was broken.
    if (const auto unread = tail_ - head_seen_; unread <= slots_ && slots_ - unread >= count)
      return true;
    head_seen_ = load_acquire(indices_->head);
    const std::uint32_t unread = tail_ - head_seen_;
    if (unread > slots_) return std::nullopt;
    return slots_ - unread >= count;
  }
  std::uint32_t slot(std::uint32_t ahead = 0) const { return (tail_ + ahead) & (slots_ - 1); }
  // Puts `count` filled slots aside; they are seen after publish().
  void fill(std::uint32_t count) { tail_ += count; }
  void publish() { store_release(indices_->tail, tail_); }
  // The index after the last slot filled: consumed once the consumer's index has passed it.
  std::uint32_t tail() const { return tail_; }
  bool consumed(std::uint32_t tail) const {
    return static_cast<std::int32_t>(load_acquire(indices_->head) - tail) >= 0;
  }

 private:
  wire::RingIndices* indices_ = nullptr;
  std::uint32_t slots_ = 0;
  std::uint32_t tail_ = 0;
  std::uint32_t head_seen_ = 0;
};

}  // namespace gpuumd
