// The event engine of backend `packet`.
#pragma once

#include <algorithm>
#include <bit>

#include "packet/event_queue.hpp"
#include "roce/fabric.hpp"

namespace netsim {

class WheelEngine {
  public:
    explicit WheelEngine(std::size_t links) : queue_(bucket_shift(links), kReachBits - bucket_shift(links)) {}

    TimePs now_ps() const { return now_ps_; }
    void schedule(TimePs at_ps, roce::EventCode code) { queue_.push(at_ps, code); }
    // Earliest scheduled event; kNever where there is none.
    TimePs next_ps() const { return queue_.empty() ? kNever : queue_.next_ps(); }

    // Runs the fabric's events up to `until_ps`, but no further than the first instant with news. Returns the instant
    // reached.
    template <typename Fabric>
    TimePs run(TimePs until_ps, Fabric& fabric) {
        Queue::Event event;
        while (queue_.pop_until(until_ps, event)) {
            now_ps_ = event.at_ps;
            fabric.handle(event.payload);
            if (!fabric.has_news()) continue;
            while (queue_.pop_until(now_ps_, event)) fabric.handle(event.payload);
            return now_ps_;
        }
        now_ps_ = until_ps;
        return until_ps;
    }

  private:
    using Queue = EventQueue<roce::EventCode>;

    static constexpr int kReachBits = 21;  // 2 us: latency and serialisation of a hop
    static constexpr int kMostBucketBits = 18;

    // Buckets as wide as the mean distance of pending events when every link has two within the reach.
    static int bucket_shift(std::size_t links) {
        return std::clamp(kReachBits - static_cast<int>(std::bit_width(2 * links)), kReachBits - kMostBucketBits,
                          kReachBits - 6);
    }

    TimePs now_ps_ = 0;
    Queue queue_;
};

}  // namespace netsim
