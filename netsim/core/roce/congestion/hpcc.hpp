// HPCC: rate control by in-band telemetry (Li et al., SIGCOMM 2019, algorithm 1, as its simulator implements it).
//
// Every ACK yields the utilisation of the busiest hop, averaged over a base round trip, and from it a rate; the rate
// on which the next are based (and the count of additive steps) is committed once per round trip. One rate for the
// whole path (MULTI_RATE 0). Floating point: only + - * / of doubles in a fixed order, so bits agree wherever
// contraction to fused operations is off.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "roce/congestion/parameters.hpp"
#include "roce/congestion/telemetry.hpp"

namespace netsim {

class Hpcc {
  public:
    // `parameters` have to outlive the controller. Throws MisuseError without a base RTT or a window.
    Hpcc(const HpccParameters& parameters, const FlowLimits& limits, TimePs /*now_ps*/)
        : parameters_(&parameters),
          line_bps_(limits.line_bps),
          min_bps_(std::min(parameters.min_rate_bps, limits.line_bps)),
          step_bps_(parameters.additive_increase.at(limits.line_bps)),
          base_rtt_ps_(limits.base_rtt_ps),
          queue_bps_per_byte_(static_cast<double>(limits.line_bps) / static_cast<double>(limits.window_bytes)),
          rate_bps_(limits.line_bps),
          committed_bps_(limits.line_bps),
          last_(std::make_unique<std::array<Sample, kMaxIntHops>>()) {
        if (limits.base_rtt_ps <= 0 || limits.window_bytes <= 0) {
            throw MisuseError("HPCC needs a positive base RTT and window");
        }
    }

    // Telemetry of a first ACK, of a path with another number of hops or of no later instant is a new beginning.
    void on_ack(const AckSignal& ack) {
        const bool commits = ack.acked_seq > commit_after_seq_;
        if (!commits && !parameters_->reacts_within_rtt) return;
        if (commits) commit_after_seq_ = std::max(commit_after_seq_, ack.next_seq);
        const bool is_measured = measure(ack.hops);
        remember(ack.hops);
        if (is_measured) adjust(commits);
    }

    void on_timer(TimePs /*now_ps*/) {}

    // What is sent again may take another path.
    void on_timeout(TimePs /*now_ps*/) { hop_count_ = 0; }

    std::int64_t rate_bps() const { return rate_bps_; }
    static constexpr TimePs next_timer_ps() { return kNever; }
    void move_on(std::int64_t bytes) { commit_after_seq_ += bytes; }

    double utilization() const { return utilization_; }
    std::int64_t committed_bps() const { return committed_bps_; }
    std::uint32_t additive_steps() const { return additive_steps_; }

  private:
    struct Sample {
        TimePs at_ps;
        std::int64_t sent_bytes;
        std::int64_t queue_bytes;
    };

    // Folds the largest utilisation among the hops, over the time since the sample before, into the average.
    // Returns whether there was anything to measure.
    bool measure(std::span<const IntHop> hops) {
        if (hops.size() != hop_count_ || hops.empty()) return false;
        double highest = -1;
        TimePs span_ps = 0;
        for (std::size_t i = 0; i < hops.size(); ++i) {
            const IntHop& hop = hops[i];
            const Sample& last = (*last_)[i];
            const TimePs elapsed_ps = hop.at_ps - last.at_ps;
            if (elapsed_ps <= 0 || hop.sent_bytes < last.sent_bytes) return false;
            const double sent_bps = static_cast<double>(hop.sent_bytes - last.sent_bytes) *
                                    static_cast<double>(8 * kPsPerSecond) / static_cast<double>(elapsed_ps);
            const double queued_bps =
                static_cast<double>(std::min(hop.queue_bytes, last.queue_bytes)) * queue_bps_per_byte_;
            const double utilization = (sent_bps + queued_bps) / static_cast<double>(hop.capacity_bps);
            if (utilization > highest) {
                highest = utilization;
                span_ps = elapsed_ps;
            }
        }
        span_ps = std::min(span_ps, base_rtt_ps_);
        utilization_ =
            (utilization_ * static_cast<double>(base_rtt_ps_ - span_ps) + highest * static_cast<double>(span_ps)) /
            static_cast<double>(base_rtt_ps_);
        return true;
    }

    void remember(std::span<const IntHop> hops) {
        if (hops.size() > kMaxIntHops) {
            throw MisuseError("HPCC takes telemetry of at most " + std::to_string(kMaxIntHops) + " hops, not " +
                              std::to_string(hops.size()));
        }
        for (std::size_t i = 0; i < hops.size(); ++i) {
            (*last_)[i] = {hops[i].at_ps, hops[i].sent_bytes, hops[i].queue_bytes};
        }
        hop_count_ = hops.size();
    }

    void adjust(bool commits) {
        const double excess = utilization_ / parameters_->target_utilization;
        const bool scales = excess >= 1 || additive_steps_ >= parameters_->max_additive_steps;
        const double base_bps = static_cast<double>(committed_bps_);
        const double wanted_bps = (scales ? base_bps / excess : base_bps) + static_cast<double>(step_bps_);
        const bool is_below_line = wanted_bps < static_cast<double>(line_bps_);  // false for x / 0, too
        rate_bps_ = is_below_line ? std::max(min_bps_, static_cast<std::int64_t>(wanted_bps)) : line_bps_;
        if (!commits) return;
        committed_bps_ = rate_bps_;
        additive_steps_ = scales ? 0 : additive_steps_ + 1;
    }

    const HpccParameters* parameters_;
    std::int64_t line_bps_;
    std::int64_t min_bps_;
    std::int64_t step_bps_;
    TimePs base_rtt_ps_;
    double queue_bps_per_byte_;  // line / window
    double utilization_ = 1;
    std::int64_t rate_bps_;
    std::int64_t committed_bps_;
    std::int64_t commit_after_seq_ = 0;
    std::unique_ptr<std::array<Sample, kMaxIntHops>> last_;  // apart: 192 bytes that the other schemes do not need
    std::size_t hop_count_ = 0;
    std::uint32_t additive_steps_ = 0;
};

}  // namespace netsim
