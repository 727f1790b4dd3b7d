// Little-endian words in byte buffers, without alignment or aliasing traps.
#pragma once

#include <bit>
#include <cassert>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>

namespace base {

static_assert(std::endian::native == std::endian::little,
              "the device and its host are little-endian");

// The T at byte `offset` of `bytes`, which must reach that far: check sizes before.
template <class T>
T load(std::span<const std::byte> bytes, std::size_t offset) {
  static_assert(std::is_trivially_copyable_v<T>);
  assert(offset + sizeof(T) <= bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <class T>
void store(std::span<std::byte> bytes, std::size_t offset, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  assert(offset + sizeof(T) <= bytes.size());
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

template <class T>
std::span<const std::byte> as_bytes(const T& object) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(std::span(&object, 1));
}

template <class T>
std::span<std::byte> as_writable_bytes(T& object) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_writable_bytes(std::span(&object, 1));
}

}  // namespace base
