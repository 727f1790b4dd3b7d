// What the two example programs share, none of it about GPUs: errors, lines that are out at once,
// whole reads and writes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpuumd/gpuumd.hpp"

namespace example {

// Prints "PROGRAM: TEXT" and ends the program with 1.
[[noreturn]] void die(const std::string& text);

// The value of a call that must succeed; otherwise the program says at which step it failed.
template <class T>
T need(const std::string& step, gpuumd::Outcome<T> result) {
  if (!result) die(step + ": " + result.error().text);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// One line "KEY VALUE" on standard output, flushed: others wait for it.
void say(const std::string& key, const std::string& value);

std::vector<std::byte> read_all(int descriptor);
void write_file(const std::string& path, std::span<const std::byte> data);

// The first line of a FIFO (or file), without its end. Nothing by the deadline: dies.
std::string wait_for_line(const std::string& path, std::chrono::seconds deadline);

double seconds_since(std::chrono::steady_clock::time_point start);

// ---- on-fault mappings ----

inline constexpr std::uint64_t kBigWindow = 2 << 20;
inline constexpr std::uint64_t kSmallWindow = 4 << 10;

// Maps `bytes` of `buffer` at `va` so that pages appear when the GPU touches them: the first 16 MiB
// in windows of 2 MiB, up to 64 MiB in windows of 4 KiB, which is a fault a page, and 2 MiB again
// from there on.
void map_on_fault(gpuumd::Vm& vm, std::uint64_t va, const gpuumd::Buffer& buffer,
                  std::uint64_t bytes);
// How many windows of each size that makes.
struct Windows {
  std::uint64_t big = 0, small = 0;
};
Windows windows(std::uint64_t bytes);

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace example
