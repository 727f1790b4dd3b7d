// An empty round trip through the daemon, beside a ring with nothing behind it.
#include "tools/bench/bench.h"

namespace bench {

void run_ping(Context& context) {
  using namespace std::chrono_literals;
  // Longer than the reactor goes on polling, so that it sleeps when the next request comes.
  constexpr auto kPause = 300us;

  InlineDaemon system(context);
  const auto ping = [&](std::uint32_t mode) {
    return [&, wait = gpuumd::Wait(5s, mode)] { must(system.device.ping(wait)); };
  };
  {
    const Section section(context, "no-op round trip, polled", InlineDaemon::placement(context));
    const auto polled = timed(500, ping(GPUUMD_WAIT_POLL));
    print_pairs("ping, both sides poll", "bare ring, both sides poll",
                measure(2 * context.pairs(), context.time(), polled, context.bare.polled_ring(500)),
                "2");
    print_pairs("the same ping", "line ping-pong",
                measure(context.pairs(), context.time(), polled, context.bare.ping_pong(500)));
  }
  {
    const Section section(context, "no-op round trip, sleeping",
                          "as above; 300 us between round trips, so that both sides sleep");
    print_pairs("ping, both sides sleep", "bare ring, both read() an eventfd",
                measure(context.pairs(), context.time(),
                        timed(20, ping(GPUUMD_WAIT_SLEEP), [&] { spin(kPause); }),
                        context.bare.sleeping_ring(20, kPause)),
                "2");
    print_pairs("ping, client sleeps, back to back", "bare ring, both read() an eventfd",
                measure(context.pairs(), context.time(), timed(20, ping(GPUUMD_WAIT_SLEEP)),
                        context.bare.sleeping_ring(20, 0us)));
  }
}

}  // namespace bench
