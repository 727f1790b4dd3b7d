// NBIO: doorbell routing, the interrupt's dummy read, the frame buffer gate (docs/hardware/pci.md).
#pragma once

#include <cstdint>

#include "base/address.h"
#include "base/result.h"
#include "daemon/gpu/registers/register_io.h"

namespace gpuumd {

// Lets the host's doorbell stores into the GPU, and those of the GPU itself to `bar_address`, the
// bus address of the doorbell BAR. Nothing is delivered before a route below is set.
void enable_doorbells(const RegisterBlock& nbio, std::uint64_t bar_address);
// Routes off, then access off: every doorbell from now on is dropped.
void disable_doorbells(const RegisterBlock& nbio);

void route_interrupt_doorbells(const RegisterBlock& nbio);
// For `engines` SDMA instances, all XCCs together. kUnsupported when that is more than one entry
// can route.
base::Result<void> route_sdma_doorbells(const RegisterBlock& nbio, unsigned engines);

// INTERRUPT_CNTL and the page for its dummy read. `dummy_page` is aligned to 256 bytes and below
// 2^40: the register holds bits 39:8.
void set_interrupt_control(const RegisterBlock& nbio, base::Iova dummy_page);

// Whether the host reaches VRAM through BAR 0 and the MM window (docs/hardware/choices.md D57).
void enable_frame_buffer(const RegisterBlock& nbio, bool on);

}  // namespace gpuumd
