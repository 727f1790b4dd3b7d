#include "tools/gpusim/host/setup.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <functional>
#include <map>

#include "base/address.h"

namespace gpusim {

namespace {

base::Result<std::uint64_t> parse_number(std::string_view text) {
  int base = 10;
  if (text.starts_with("0x")) {
    text.remove_prefix(2);
    base = 16;
  }
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end != text.data() + text.size())
    return base::fail(base::Errc::kInvalidArgument, "number \"" + std::string(text) + "\"");
  return value;
}

template <class Word>
base::Result<void> set_number(Word& word, std::string_view text, std::uint64_t low,
                              std::uint64_t high) {
  const auto value = parse_number(text);
  if (!value) return std::unexpected(value.error());
  if (*value < low || *value > high)
    return base::fail(
        base::Errc::kInvalidArgument,
        std::string(text) + ", must be " + std::to_string(low) + " to " + std::to_string(high));
  word = static_cast<Word>(*value);
  return {};
}

base::Result<void> set_size(std::uint64_t& word, std::string_view text) {
  const auto value = parse_size(text);
  if (!value) return std::unexpected(value.error());
  word = *value;
  return {};
}

base::Result<void> set_vram(PodSetup& setup, std::string_view text) {
  auto done = set_size(setup.gpu.vram_bytes, text);
  if (done && !setup.bar0_given)
    setup.gpu.bar0_bytes = std::bit_ceil(std::min(GpuOptions{}.bar0_bytes, setup.gpu.vram_bytes));
  return done;
}

template <class Word>
base::Result<void> set_choice(Word& word, std::string_view text,
                              std::initializer_list<std::pair<std::string_view, Word>> choices) {
  std::string known;
  for (const auto& [name, value] : choices) {
    if (name == text) {
      word = value;
      return {};
    }
    known += known.empty() ? std::string(name) : " or " + std::string(name);
  }
  return base::fail(base::Errc::kInvalidArgument, std::string(text) + ", must be " + known);
}

using Setter = base::Result<void> (*)(PodSetup&, std::string_view);

const std::map<std::string_view, Setter>& setters() {
  static const std::map<std::string_view, Setter> all = {
      {"gpus", [](PodSetup& s, std::string_view v) { return set_number(s.gpus, v, 1, 64); }},
      {"vram", [](PodSetup& s, std::string_view v) { return set_vram(s, v); }},
      {"bar0",
       [](PodSetup& s, std::string_view v) -> base::Result<void> {
         s.bar0_given = true;
         if (v != "vram") return set_size(s.gpu.bar0_bytes, v);
         s.gpu.bar0_bytes = 0;
         return {};
       }},
      {"xccs", [](PodSetup& s, std::string_view v) { return set_number(s.gpu.xccs, v, 1, 8); }},
      {"mids", [](PodSetup& s, std::string_view v) { return set_number(s.gpu.mids, v, 1, 4); }},
      {"sdma",
       [](PodSetup& s, std::string_view v) { return set_number(s.gpu.sdma_per_xcc, v, 1, 2); }},
      {"seed", [](PodSetup& s, std::string_view v) { return set_number(s.gpu.seed, v, 0, ~0ull); }},
      {"bases",
       [](PodSetup& s, std::string_view v) { return set_number(s.gpu.bases_seed, v, 0, ~0ull); }},
      {"bases64",
       [](PodSetup& s, std::string_view v) {
         return set_choice(s.gpu.bases_64bit, v, {{"on", true}, {"off", false}});
       }},
      {"major",
       [](PodSetup& s, std::string_view v) { return set_number(s.gpu.binary_major, v, 1, 2); }},
      {"discovery",
       [](PodSetup& s, std::string_view v) {
         return set_choice(
             s.gpu.discovery, v,
             {{"top", DiscoveryPlace::kTopOfVram}, {"scratch", DiscoveryPlace::kScratchOnly}});
       }},
      {"stall",
       [](PodSetup& s, std::string_view v) {
         return set_choice(s.gpu.stall, v,
                           {{"queue", StallScope::kQueue}, {"instance", StallScope::kInstance}});
       }},
      {"hdp",
       [](PodSetup& s, std::string_view v) {
         return set_choice(s.gpu.hdp, v,
                           {{"strict", HdpMode::kStrict}, {"off", HdpMode::kRelaxed}});
       }},
      {"interrupts",
       [](PodSetup& s, std::string_view v) {
         return set_choice(s.gpu.interrupts, v,
                           {{"msix", Interrupts::kMsix},
                            {"intx", Interrupts::kIntx},
                            {"none", Interrupts::kNone}});
       }},
      {"flr",
       [](PodSetup& s, std::string_view v) {
         return set_choice(s.gpu.function_reset, v,
                           {{"on", GpuOptions::Reset::kOn},
                            {"off", GpuOptions::Reset::kOff},
                            {"deaf", GpuOptions::Reset::kDeaf}});
       }},
      {"gone_after",
       [](PodSetup& s, std::string_view v) { return set_number(s.gpu.gone_after, v, 0, ~0ull); }},
      {"revision",
       [](PodSetup& s, std::string_view v) { return set_number(s.gpu.revision, v, 0, 15); }},
      {"pod",
       [](PodSetup& s, std::string_view v) -> base::Result<void> {
         s.pod = v == "none"      ? PodSetup::Pod::kNone
                 : v == "default" ? PodSetup::Pod::kConfigured
                                  : PodSetup::Pod::kAuto;
         s.pod_file = s.pod == PodSetup::Pod::kAuto ? v : std::string_view{};
         return {};
       }},
      {"listen-fabric",
       [](PodSetup& s, std::string_view v) -> base::Result<void> {
         s.listen_fabric = v;
         return {};
       }},
      {"join-fabric",
       [](PodSetup& s, std::string_view v) -> base::Result<void> {
         s.join_fabric = v;
         return {};
       }},
      {"addr_mode",
       [](PodSetup& s, std::string_view v) {
         return set_choice(s.ident, v, {{"alias", false}, {"ident", true}});
       }},
  };
  return all;
}

}  // namespace

base::Result<std::uint64_t> parse_size(std::string_view text) {
  std::uint64_t unit = 1;
  if (!text.empty()) {
    switch (text.back()) {
      case 'K':
        unit = base::kKiB;
        break;
      case 'M':
        unit = base::kMiB;
        break;
      case 'G':
        unit = base::kGiB;
        break;
      case 'T':
        unit = 1024 * base::kGiB;
        break;
      default:
        break;
    }
    if (unit != 1) text.remove_suffix(1);
  }
  const auto value = parse_number(text);
  if (!value) return std::unexpected(value.error());
  if (*value > ~0ull / unit)
    return base::fail(base::Errc::kInvalidArgument, "size " + std::string(text));
  return *value * unit;
}

base::Result<void> PodSetup::set(std::string_view name, std::string_view value) {
  const auto found = setters().find(name);
  if (found == setters().end())
    return base::fail(base::Errc::kInvalidArgument, "model option \"" + std::string(name) + "\"");
  if (auto done = found->second(*this, value); !done)
    return base::fail_within("model option " + std::string(name), done.error());
  return {};
}

base::Result<void> PodSetup::set_list(std::string_view list) {
  while (!list.empty()) {
    const auto comma = list.find(',');
    const std::string_view item = list.substr(0, comma);
    list = comma == std::string_view::npos ? std::string_view{} : list.substr(comma + 1);
    const auto equals = item.find('=');
    if (equals == std::string_view::npos)
      return base::fail(base::Errc::kInvalidArgument,
                        "model option \"" + std::string(item) + "\" without a value");
    if (auto done = set(item.substr(0, equals), item.substr(equals + 1)); !done) return done;
  }
  return {};
}

base::Result<void> PodSetup::check() const {
  constexpr std::uint64_t kVramUnit = 16 * base::kMiB;
  if (gpu.vram_bytes == 0 || !base::is_aligned(gpu.vram_bytes, kVramUnit))
    return base::fail(base::Errc::kInvalidArgument, "VRAM must be a multiple of 16 MiB");
  const auto memory = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                      static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (gpu.vram_bytes > memory / gpus)
    return base::fail(base::Errc::kNoMemory,
                      std::to_string(gpus) + " times " +
                          std::to_string(gpu.vram_bytes / base::kMiB) + " MiB of VRAM in " +
                          std::to_string(memory / base::kMiB) + " MiB of memory");
  const std::uint64_t largest = std::bit_ceil(gpu.vram_bytes);
  if (gpu.bar0_bytes != 0 && (!std::has_single_bit(gpu.bar0_bytes) || gpu.bar0_bytes < base::kMiB ||
                              gpu.bar0_bytes > largest))
    return base::fail(base::Errc::kInvalidArgument,
                      "BAR 0 must be a power of two from 1 MiB to the size of VRAM");
  return {};
}

}  // namespace gpusim
