#include "tools/gpusim/model/mapped_pages.h"

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <utility>

namespace gpusim {
namespace {

constexpr std::uint64_t kIdle = ~std::uint64_t{0};

// Whether a page that a client writes differs from what was left in it. A plain comparison: a store
// that comes while it runs is found by this one or the next.
bool differs([[maybe_unused]] const base::Mapping& page, [[maybe_unused]] const void* left) {
#if defined(__SANITIZE_THREAD__)
  return true;  // the caller's loop of atomic loads decides
#else
  return std::memcmp(page.data(), left, DoorbellPage::kBytes) != 0;
#endif
}

// A memfd of the size of the BAR, of which one page is mapped here.
struct Memory {
  base::UniqueFd fd;
  base::Mapping page;
};

base::Result<Memory> make_memory(const char* name, std::uint64_t bar_bytes,
                                 std::uint64_t page_offset) {
  auto fd = base::make_memfd(name, bar_bytes);
  if (!fd) return std::unexpected(fd.error());
  auto page =
      base::Mapping::map(fd->get(), page_offset, DoorbellPage::kBytes, PROT_READ | PROT_WRITE);
  if (!page) return std::unexpected(page.error());
  return Memory{std::move(*fd), std::move(*page)};
}

}  // namespace

base::Result<DoorbellPage> DoorbellPage::create(std::uint64_t bar_bytes) {
  auto memory = make_memory("gpusim-doorbells", bar_bytes, 0);
  if (!memory) return base::fail_within("doorbell page", memory.error());
  return DoorbellPage(std::move(memory->fd), std::move(memory->page));
}

DoorbellPage::DoorbellPage(base::UniqueFd fd, base::Mapping page)
    : fd_(std::move(fd)), page_(std::move(page)) {
  for (unsigned i = 0; i < kBytes / 8; ++i) __atomic_store_n(word(i), kIdle, __ATOMIC_RELAXED);
}

bool DoorbellPage::stored() const {
  static const std::vector<std::uint64_t> idle(kBytes / 8, kIdle);
  return differs(page_, idle.data());
}

const std::vector<DoorbellPage::Store>& DoorbellPage::take() {
  taken_.clear();
  for (unsigned i = 0; i < kBytes / 8; ++i) {
    if (__atomic_load_n(word(i), __ATOMIC_RELAXED) == kIdle) continue;
    const std::uint64_t value = __atomic_exchange_n(word(i), kIdle, __ATOMIC_ACQUIRE);
    const auto low = static_cast<std::uint32_t>(value);
    const auto high = static_cast<std::uint32_t>(value >> 32);
    const std::uint64_t offset = 8 * std::uint64_t{i};
    if (high == ~0u)
      taken_.push_back({offset, low, 4});
    else if (low == ~0u)
      taken_.push_back({offset + 4, high, 4});
    else
      taken_.push_back({offset, value, 8});
  }
  return taken_;
}

base::Result<RegisterPage> RegisterPage::create(std::uint64_t bar_bytes, std::uint32_t first_dword,
                                                RegisterFile& registers) {
  auto memory = make_memory("gpusim-registers", bar_bytes, std::uint64_t{first_dword} * 4);
  if (!memory) return base::fail_within("register page", memory.error());
  return RegisterPage(std::move(memory->fd), std::move(memory->page), first_dword, registers);
}

RegisterPage::RegisterPage(base::UniqueFd fd, base::Mapping page, std::uint32_t first_dword,
                           RegisterFile& registers)
    : fd_(std::move(fd)),
      page_(std::move(page)),
      first_dword_(first_dword),
      registers_(&registers) {
  for (std::uint32_t i = 0; i < kDwords; ++i)
    if (registers_->find(first_dword_ + i) != nullptr) defined_.push_back(i);
  publish();
}

bool RegisterPage::stored() const { return differs(page_, shown_.data()); }

bool RegisterPage::look() {
  bool any = false;
  for (std::uint32_t i = 0; i < kDwords; ++i) {
    const std::uint32_t value = __atomic_load_n(word(i), __ATOMIC_ACQUIRE);
    if (value == shown_[i]) continue;
    any = true;
    shown_[i] = value;
    registers_->write(first_dword_ + i, value);
    show(i, registers_->read(first_dword_ + i));
  }
  if (any) publish();  // one register may change another
  return any;
}

void RegisterPage::publish() {
  for (const std::uint32_t i : defined_) show(i, registers_->read(first_dword_ + i));
}

// A client's store that came in between stays, and the next look() takes it.
void RegisterPage::show(std::uint32_t index, std::uint32_t value) {
  if (value == shown_[index]) return;
  std::uint32_t expected = shown_[index];
  if (__atomic_compare_exchange_n(word(index), &expected, value, false, __ATOMIC_RELEASE,
                                  __ATOMIC_RELAXED))
    shown_[index] = value;
}

void RegisterPage::fill_ones() {
  for (std::uint32_t i = 0; i < kDwords; ++i) {
    __atomic_store_n(word(i), ~0u, __ATOMIC_RELAXED);
    shown_[i] = ~0u;
  }
}

}  // namespace gpusim
