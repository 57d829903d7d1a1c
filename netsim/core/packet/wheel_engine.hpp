// The event engine of backend `packet`.
#pragma once

#include "packet/event_queue.hpp"
#include "roce/fabric.hpp"

namespace netsim {

class WheelEngine {
  public:
    // Buckets as wide as the mean distance of pending events: about two per link within the reach of a hop.
    explicit WheelEngine(std::size_t links) : queue_(bucket_shift(links), kBucketBits) {}

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

    static constexpr int kBucketBits = 14;
    static constexpr TimePs kHopPs = 600'000;  // latency and serialisation of a packet, to the nearest power of two

    static int bucket_shift(std::size_t links) {
        const auto width = static_cast<std::uint64_t>(kHopPs) / (2 * std::max<std::size_t>(links, 1));
        // The wheel has to reach at least one hop.
        return std::max(std::bit_width(width), std::bit_width(static_cast<std::uint64_t>(2 * kHopPs)) - kBucketBits);
    }

    TimePs now_ps_ = 0;
    Queue queue_;
};

}  // namespace netsim
