// Large copies by the GPU, local and over the fabric, beside memcpy: one thread, two populated
// memfds with the page size of the model's memory, the better of memcpy() and non-temporal stores.
#include <emmintrin.h>

#include <cstdio>
#include <cstring>

#include "base/shared_memory.h"
#include "tools/bench/bench.h"

namespace bench {
namespace {

constexpr std::uint64_t kBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kSourceVa = std::uint64_t{1} << 40;
constexpr std::uint64_t kTargetVa = std::uint64_t{1} << 41;
constexpr std::uint64_t kRemoteVa = std::uint64_t{1} << 42;

using namespace std::chrono_literals;

// Both 16-byte aligned, `bytes` a multiple of 64.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
  auto* out = reinterpret_cast<__m128i*>(to);
  const auto* in = reinterpret_cast<const __m128i*>(from);
  for (std::size_t i = 0; i < bytes / 16; i += 4) {
    const __m128i words[] = {_mm_load_si128(in + i), _mm_load_si128(in + i + 1),
                             _mm_load_si128(in + i + 2), _mm_load_si128(in + i + 3)};
    for (unsigned k = 0; k < 4; ++k) _mm_stream_si128(out + i + k, words[k]);
  }
  _mm_sfence();
}

class Memcpy {
 public:
  Memcpy() : source_(populated(1)), target_(populated(2)) {}

  // On the core where the model copies.
  Block block(bool past_caches) {
    return [this, past_caches] {
      pin(kServerCore);
      const auto start = ticks();
      if (past_caches)
        copy_past_caches(target_.data(), source_.data(), kBytes);
      else
        std::memcpy(target_.data(), source_.data(), kBytes);
      const auto took = to_ns(ticks() - start);
      pin(kClientCore);
      return took;
    };
  }

 private:
  static base::Mapping populated(int value) {
    const auto fd = must(base::make_memfd("gpuumd-bench", kBytes));
    auto mapping = must(base::Mapping::map(fd.get(), 0, kBytes, PROT_READ | PROT_WRITE));
    ::madvise(mapping.data(), kBytes, MADV_HUGEPAGE);  // as the model does
    std::memset(mapping.data(), value, kBytes);
    return mapping;
  }
  base::Mapping source_, target_;
};

// What the ratio of rates is, and both rates.
void print_rate(const char* what, const Pairs& pairs) {
  const auto rate = [](double ns) { return static_cast<double>(kBytes) / ns; };
  std::printf(
      "  %-34s %6.2f of memcpy (%.2f..%.2f; aim >= 0.7): %.1f GB/s beside %.1f GB/s, %u pairs\n",
      what, 1 / pairs.ratio.median, 1 / pairs.ratio.high, 1 / pairs.ratio.low,
      rate(pairs.one.median), rate(pairs.other.median), pairs.count);
  std::fflush(stdout);
}

}  // namespace

void run_copy(Context& context, Pod& pod) {
  const Section section(context, "copies of 256 MiB",
                        Pod::placement(context) + " (sleeping); memcpy on core 1");
  Memcpy memory;
  const auto plain = measure(5, context.time(), memory.block(false), memory.block(true));
  const bool past_caches = plain.ratio.median > 1;
  std::printf("  memcpy() %.1f GB/s, non-temporal stores %.1f GB/s; pages %s\n",
              kBytes / plain.one.median, kBytes / plain.other.median,
              "of 4 KiB unless the kernel gives huge ones");
  const auto limit = memory.block(past_caches);

  auto& exporter = pod.devices[0];
  auto& importer = pod.devices[1];
  Work fill(exporter), work(importer);
  auto exported = must(exporter.create_buffer(GPUUMD_BUFFER_VRAM, kBytes));
  const auto source = must(importer.create_buffer(GPUUMD_BUFFER_VRAM, kBytes));
  const auto target = must(importer.create_buffer(GPUUMD_BUFFER_VRAM, kBytes));
  const auto handle = must(exported.export_handle());
  const auto remote = must(importer.import_handle(handle, gpuumd::Wait(20s)));
  must(work.vm.map(kSourceVa, source, 0, kBytes, kReadWrite));
  must(work.vm.map(kTargetVa, target, 0, kBytes, kReadWrite));
  must(work.vm.map(kRemoteVa, remote, 0, kBytes, GPUUMD_BIND_READ));

  const gpuumd::Wait wait(20s);
  const auto copy = [&](std::uint64_t from) {
    return timed(1, [&work, &wait, from] { work.copy(kTargetVa, from, kBytes, wait); });
  };
  print_rate("local copy", measure(context.pairs(), 2 * context.time(), copy(kSourceVa), limit));
  print_rate("remote copy", measure(context.pairs(), 2 * context.time(), copy(kRemoteVa), limit));
  // As the pages of a fault window of 4 KiB: no two entries make a larger run.
  must(work.vm.unmap(kSourceVa, kBytes));
  must(work.vm.map(kSourceVa + 4096, source, 0, kBytes, kReadWrite));
  print_rate("local copy from pages of 4 KiB",
             measure(context.pairs() / 2, context.time(), copy(kSourceVa + 4096), limit));
}

}  // namespace bench
