// Figures of links at regular instants.
#pragma once

#include <string>

#include "roce/packet_carrier.hpp"
#include "roce/port.hpp"

namespace netsim::roce {

// Knows when to sample, and keeps the samples. While nothing is under way, none is due.
class LinkSampler {
  public:
    // From now on, once something is under way; 0: never.
    void sample_every(TimePs interval_ps) {
        interval_ps_ = interval_ps;
        next_ps_ = kNever;
    }
    // Something is under way: a sample is due now, or an interval after one of this instant.
    void wake(TimePs now_ps) {
        if (interval_ps_ == 0 || next_ps_ != kNever) return;
        const bool has_one = !series_.at_ps.empty() && series_.at_ps.back() == now_ps;
        next_ps_ = has_one ? now_ps + interval_ps_ : now_ps;
    }
    // When the next sample is due; kNever where none is.
    TimePs next_ps() const { return next_ps_; }

    // Begins a sample, to which every link is added in order.
    // Throws MisuseError once there are more than kMostSamples: memory would end before the flows do.
    void begin(TimePs now_ps, bool is_busy) {
        if (series_.wire_bytes.size() > kMostSamples) {
            throw MisuseError("interval: found " + std::to_string(interval_ps_) +
                              " ps, by which links have more than " + std::to_string(kMostSamples) + " samples by " +
                              std::to_string(now_ps) + " ps; expected a longer one");
        }
        series_.at_ps.push_back(now_ps);
        next_ps_ = is_busy ? later(now_ps, interval_ps_) : kNever;
    }
    void add(const LinkCounters& counters, std::int64_t queued_bytes) {
        series_.wire_bytes.push_back(counters.wire_bytes);
        series_.queued_bytes.push_back(queued_bytes);
        series_.paused_ps.push_back(counters.paused_ps);
        series_.pauses.push_back(counters.pauses);
        series_.marks.push_back(counters.marks);
    }

    const TimeSeries& series() const { return series_; }

  private:
    static constexpr std::size_t kMostSamples = std::size_t{1} << 23;  // of all links, 40 bytes each
    TimePs interval_ps_ = 0, next_ps_ = kNever;
    TimeSeries series_;
};

}  // namespace netsim::roce
