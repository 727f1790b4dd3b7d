// Failures inside the library: a public status and a text that names the missing thing.
#pragma once

#include <cstdint>
#include <cstring>
#include <expected>
#include <string>
#include <utility>

#include "base/result.h"
#include "gpuumd/gpuumd.h"

namespace gpuumd::client {

struct Failure {
  gpuumd_status status;
  std::string text;
};

// [[nodiscard]] as base::Result is; the codes are the public ones.
template <class T>
class [[nodiscard]] Outcome : public std::expected<T, Failure> {
 public:
  using std::expected<T, Failure>::expected;
};

inline std::unexpected<Failure> fail(gpuumd_status status, std::string text) {
  return std::unexpected(Failure{status, std::move(text)});
}
inline std::unexpected<Failure> invalid(std::string text) {
  return fail(GPUUMD_INVALID_ARGUMENT, std::move(text));
}
// A system call that failed with errno.
std::unexpected<Failure> system_failure(const std::string& what, int error);
std::unexpected<Failure> system_failure(const base::Error& error);

// Keeps the text for gpuumd_last_error() of this thread, and gives the status.
gpuumd_status report(Failure failure);
template <class T>
gpuumd_status report(Outcome<T>& outcome) {
  return outcome ? GPUUMD_OK : report(std::move(outcome.error()));
}

// Runs `body`, which gives an Outcome, at the border of the C interface: no exception passes it.
template <class Body>
gpuumd_status guarded(Body body) noexcept {
  try {
    auto outcome = body();
    return report(outcome);
  } catch (...) {  // std::bad_alloc, std::system_error of a mutex: both say that memory ran out
    return report(Failure{GPUUMD_NO_MEMORY, "host memory"});
  }
}

// A copy of a caller's struct that begins with `size`; bytes that this version does not know must
// be 0. NULL gives `defaults`.
template <class T>
Outcome<T> read_options(const T* in, T defaults, const char* name) {
  if (in == nullptr) return defaults;
  if (in->size < sizeof(std::uint32_t) || in->size > 4096)
    return invalid(std::string("size ") + std::to_string(in->size) + " of " + name);
  const auto* bytes = reinterpret_cast<const unsigned char*>(in);
  for (std::uint32_t i = sizeof(T); i < in->size; ++i)
    if (bytes[i] != 0) return invalid(std::string(name) + " has a field that this library lacks");
  std::memcpy(&defaults, in, in->size < sizeof(T) ? in->size : sizeof(T));
  return defaults;
}

// Fills a caller's struct that begins with `size` as far as the caller knows it.
template <class T>
Outcome<void> write_struct(T* out, T value, const char* name) {
  if (out == nullptr || out->size < sizeof(std::uint32_t))
    return invalid(std::string("size of ") + name);
  value.size = out->size < sizeof(T) ? out->size : std::uint32_t{sizeof(T)};
  std::memcpy(out, &value, value.size);
  return {};
}

}  // namespace gpuumd::client
