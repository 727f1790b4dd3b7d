// How a pod is built, as a user writes it: options of the gpusim program and of `sim:...` names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tools/gpusim/model/options.h"

namespace gpusim {

struct PodSetup {
  unsigned gpus = 1;        // 1..64
  GpuOptions gpu;           // of each, before its index, seed and pod record are filled in
  bool bar0_given = false;  // else BAR 0 is no larger than VRAM asks for
  std::string pod_file;     // docs/model.md "Pod file"; empty: see `pod`
  enum class Pod : std::uint8_t {
    kAuto,        // several GPUs form a virtual pod, one has no fabric configuration (D52)
    kConfigured,  // one GPU too
    kNone,
  };
  Pod pod = Pod::kAuto;
  bool ident = false;  // address mode of that virtual pod
  // Sockets of links to other gpusim processes (docs/sim-link.md); empty: none.
  std::string listen_fabric;
  std::string join_fabric;

  // Sets one option by name: gpus, vram, bar0, xccs, mids, sdma, seed, bases, bases64, major,
  // discovery, stall, hdp, revision, pod, addr_mode, listen-fabric, join-fabric. kInvalidArgument
  // names the option and what it takes.
  base::Result<void> set(std::string_view name, std::string_view value);
  // "name=value,name=value"; empty: nothing.
  base::Result<void> set_list(std::string_view list);
  // Options that do not fit each other or this machine (VRAM beyond its memory).
  base::Result<void> check() const;
};

// "4096", "64K", "64M", "1G", "0x1000". kInvalidArgument.
base::Result<std::uint64_t> parse_size(std::string_view text);

}  // namespace gpusim
