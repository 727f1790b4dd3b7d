// Registers and memory records as types. A field belongs to its register, so that a field of
// another register does not compile; a value too wide for its field is our own mistake and asserts.
//
//   struct RB_CNTL : base::Reg<0, 0x080> {
//     using RB_ENABLE = base::Field<RB_CNTL, 0, 0, bool>;
//     using RB_SIZE   = base::Field<RB_CNTL, 5, 1>;
//   };
//   io.write(base::Value<RB_CNTL>().with<RB_CNTL::RB_SIZE>(16).with<RB_CNTL::RB_ENABLE>(true));
#pragma once

#include <cassert>
#include <concepts>
#include <cstdint>
#include <type_traits>

namespace base {

enum class Access : std::uint8_t { kReadWrite, kReadOnly, kWriteOnly, kWriteOneToClear };

// A 32-bit register at `DwordOffset` from the base that discovery gives for segment `Segment`.
// `Stride` (dwords) makes it a row of registers: index n is at DwordOffset + n * Stride.
template <unsigned Segment, std::uint32_t DwordOffset, Access Mode = Access::kReadWrite,
          std::uint32_t Stride = 0>
struct Reg {
  using word = std::uint32_t;
  static constexpr unsigned kSegment = Segment;
  static constexpr std::uint32_t kOffset = DwordOffset;
  static constexpr std::uint32_t kStride = Stride;
  static constexpr Access kAccess = Mode;
};

// A word in memory with fields: a page-table entry, a dword of a packet.
template <class Word>
struct Record {
  using word = Word;
};

// Bits High..Low of Owner, both inclusive, read and written as T (bool, an enum or an integer).
template <class Owner_, unsigned High, unsigned Low, class T = std::uint64_t>
struct Field {
  static_assert(High >= Low && High < 64);
  using owner = Owner_;
  using type = T;
  static constexpr unsigned kLow = Low;
  static constexpr std::uint64_t kMax =
      High - Low == 63 ? ~std::uint64_t{0} : (std::uint64_t{1} << (High - Low + 1)) - 1;
  static constexpr std::uint64_t kMask = kMax << Low;
};

template <class R>
class Value {
 public:
  using word = typename R::word;
  constexpr Value() = default;
  explicit constexpr Value(word raw) : raw_(raw) {}

  constexpr word raw() const { return raw_; }

  template <class F>
  constexpr typename F::type get() const {
    static_assert(std::is_same_v<typename F::owner, R>, "a field of another register");
    static_assert(F::kMask <= word(-1));
    return static_cast<typename F::type>((std::uint64_t{raw_} & F::kMask) >> F::kLow);
  }

  template <class F>
  [[nodiscard]] constexpr Value with(typename F::type value) const {
    static_assert(std::is_same_v<typename F::owner, R>, "a field of another register");
    static_assert(F::kMask <= word(-1));
    const auto bits = static_cast<std::uint64_t>(value);
    assert(bits <= F::kMax);
    return Value(static_cast<word>((std::uint64_t{raw_} & ~F::kMask) | (bits << F::kLow)));
  }

  template <class F>
  constexpr void set(typename F::type value) {
    *this = with<F>(value);
  }

  friend constexpr bool operator==(Value, Value) = default;

 private:
  word raw_ = 0;
};

}  // namespace base
