#include "daemon/gpu/bringup/nbio_setup.h"

#include <cassert>
#include <string>

#include "daemon/gpu/registers/nbio.h"

namespace gpuumd {
namespace {

using namespace nbio;

void set_route(const RegisterBlock& nbio, unsigned entry,
               base::Value<S2A_DOORBELL_ENTRY_CTRL> route) {
  using C1 = S2A_DOORBELL_ENTRY_CTRL1;
  nbio.write(base::Value<C1>().with<C1::TARGET_PORT_TYPE>(C1::kPortType), entry);
  nbio.write(route, entry);
}

}  // namespace

void enable_doorbells(const RegisterBlock& nbio, std::uint64_t bar_address) {
  using A = DOORBELL_SELFRING_GPA_APER_CNTL;
  nbio.write(base::Value<DOORBELL_ACCESS_EN_PF>(DOORBELL_ACCESS_EN_PF::kAll));
  nbio.modify<RCC_DOORBELL_APER_EN>(
      [](auto v) { return v.template with<RCC_DOORBELL_APER_EN::BIF_DOORBELL_APER_EN>(true); });
  nbio.write(base::Value<DOORBELL_SELFRING_GPA_APER_BASE_HIGH>(
      static_cast<std::uint32_t>(bar_address >> 32)));
  nbio.write(
      base::Value<DOORBELL_SELFRING_GPA_APER_BASE_LOW>(static_cast<std::uint32_t>(bar_address)));
  nbio.write(base::Value<A>().with<A::EN>(true).with<A::MODE>(1).with<A::SIZE>(0));
}

void disable_doorbells(const RegisterBlock& nbio) {
  for (const unsigned entry : {kSdmaEntry, kIhEntry})
    nbio.write(base::Value<S2A_DOORBELL_ENTRY_CTRL>(), entry);
  nbio.write(base::Value<DOORBELL_SELFRING_GPA_APER_CNTL>());
  nbio.modify<RCC_DOORBELL_APER_EN>(
      [](auto v) { return v.template with<RCC_DOORBELL_APER_EN::BIF_DOORBELL_APER_EN>(false); });
  nbio.write(base::Value<DOORBELL_ACCESS_EN_PF>(0));
}

void route_interrupt_doorbells(const RegisterBlock& nbio) {
  set_route(nbio, kIhEntry,
            doorbell_route(DoorbellConsumer::kInterruptHandler, kIhRing0Doorbell, kIhDoorbells));
}

base::Result<void> route_sdma_doorbells(const RegisterBlock& nbio, unsigned engines) {
  const std::uint64_t dwords = std::uint64_t{engines} * kSdmaDoorbellStep;
  if (dwords > kSdmaDoorbellsMax)
    return base::fail(base::Errc::kUnsupported,
                      "doorbells for " + std::to_string(engines) + " SDMA engines");
  set_route(
      nbio, kSdmaEntry,
      doorbell_route(DoorbellConsumer::kSdma, kSdmaDoorbells, static_cast<std::uint32_t>(dwords)));
  return {};
}

void set_interrupt_control(const RegisterBlock& nbio, base::Iova dummy_page) {
  using C = INTERRUPT_CNTL;
  assert(dummy_page.aligned(256) && dummy_page.value() >> 40 == 0);
  nbio.write(base::Value<INTERRUPT_CNTL2>(static_cast<std::uint32_t>(dummy_page.value() >> 8)));
  nbio.modify<C>([](auto v) {
    return v.template with<C::IH_DUMMY_RD_OVERRIDE>(false).template with<C::IH_REQ_NONSNOOP_EN>(
        false);
  });
}

void enable_frame_buffer(const RegisterBlock& nbio, bool on) {
  using F = BIF_FB_EN;
  nbio.write(base::Value<F>().with<F::FB_READ_EN>(on).with<F::FB_WRITE_EN>(on));
}

}  // namespace gpuumd
