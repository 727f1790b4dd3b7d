// The pages of BAR 2 and BAR 5 that a client may map: its stores are found by looking
// (docs/hardware/choices.md D62).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "base/shared_memory.h"
#include "tools/gpusim/model/doorbells.h"
#include "tools/gpusim/model/register_file.h"

namespace gpusim {

// The first page of the doorbell BAR: the S2A entries name dwords below 0x400 only. A word that was
// taken is set back to all ones, so that a value stored twice is seen twice, and a 32-bit store
// shows by the other half. Two stores to one doorbell between two looks are one, as for any reader
// of memory: a consumer for whom each store counts (the retry CAM) has a register too.
class DoorbellPage {
 public:
  static base::Result<DoorbellPage> create(std::uint64_t bar_bytes);

  int fd() const { return fd_.get(); }
  static constexpr std::uint64_t kBytes = 4096;

  // Takes the stores since the last call.
  struct Store {
    std::uint64_t offset;
    std::uint64_t value;
    unsigned bytes;
  };
  const std::vector<Store>& take();
  // Whether take() may find any. Costs a tenth of it.
  bool stored() const;

 private:
  DoorbellPage(base::UniqueFd fd, base::Mapping page);
  std::uint64_t* word(unsigned index) const { return page_.at<std::uint64_t>(8 * index); }

  base::UniqueFd fd_;
  base::Mapping page_;
  std::vector<Store> taken_;
};

// One page of the register BAR, kept equal to what reads of its registers give.
class RegisterPage {
 public:
  // `first_dword`: absolute, of the page. `registers` outlives it; all registers of the page are
  // defined by now.
  static base::Result<RegisterPage> create(std::uint64_t bar_bytes, std::uint32_t first_dword,
                                           RegisterFile& registers);

  int fd() const { return fd_.get(); }
  std::uint64_t offset() const { return std::uint64_t{first_dword_} * 4; }
  static constexpr std::uint32_t kDwords = 1024;
  bool covers(std::uint32_t dword) const { return dword - first_dword_ < kDwords; }

  // Does the writes that a client stored since the last call. True when there were any.
  bool look();
  // Whether look() may find any. Costs a tenth of it.
  bool stored() const;
  // Registers of the page may have changed other than by look().
  void publish();
  // Surprise removal: all ones from now on; publish() ends it.
  void fill_ones();

 private:
  RegisterPage(base::UniqueFd fd, base::Mapping page, std::uint32_t first_dword,
               RegisterFile& registers);
  std::uint32_t* word(std::uint32_t index) const { return page_.at<std::uint32_t>(4 * index); }
  void show(std::uint32_t index, std::uint32_t value);

  base::UniqueFd fd_;
  base::Mapping page_;
  std::uint32_t first_dword_;
  RegisterFile* registers_;
  std::vector<std::uint32_t> defined_;          // indices with a register
  std::array<std::uint32_t, kDwords> shown_{};  // what we stored there last
};

}  // namespace gpusim
