// TIMELY: rate control by the gradient of the round-trip time (Mittal et al., SIGCOMM 2015, algorithm 1 with its
// hyper-active increase), once per round trip, as the HPCC simulator implements it. Doubles as in hpcc.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "roce/congestion/parameters.hpp"
#include "roce/congestion/telemetry.hpp"

namespace netsim {

class Timely {
  public:
    // `parameters` have to outlive the controller.
    Timely(const TimelyParameters& parameters, const FlowLimits& limits, TimePs /*now_ps*/)
        : parameters_(&parameters), line_bps_(limits.line_bps), rate_bps_(limits.line_bps) {}

    void on_ack(const AckSignal& ack) {
        if (ack.acked_seq <= update_after_seq_) return;
        update_after_seq_ = std::max(update_after_seq_, ack.next_seq);
        if (last_rtt_ps_) update(ack.rtt_ps, *last_rtt_ps_);
        last_rtt_ps_ = ack.rtt_ps;
    }

    void on_timer(TimePs /*now_ps*/) {}
    void on_timeout(TimePs /*now_ps*/) {}  // TIMELY does not react to losses

    std::int64_t rate_bps() const { return rate_bps_; }
    static constexpr TimePs next_timer_ps() { return kNever; }

    // Averaged RTT difference of two updates over the minimum RTT.
    double gradient() const { return rtt_difference_ps_ / static_cast<double>(parameters_->min_rtt_ps); }
    std::uint32_t increases() const { return increases_; }

  private:
    void update(TimePs rtt_ps, TimePs last_rtt_ps) {
        const TimelyParameters& p = *parameters_;
        rtt_difference_ps_ = (1 - p.gain) * rtt_difference_ps_ + p.gain * static_cast<double>(rtt_ps - last_rtt_ps);
        if (rtt_ps > p.high_rtt_ps) {
            const double target_share = static_cast<double>(p.high_rtt_ps) / static_cast<double>(rtt_ps);
            decrease(1 - p.beta * (1 - target_share));
        } else if (rtt_ps < p.low_rtt_ps || gradient() <= 0) {
            increase();
        } else {
            decrease(std::max(0.0, 1 - p.beta * gradient()));
        }
    }

    void increase() {
        const bool is_hyper = increases_ >= parameters_->steps_before_hyper;
        const RateStep& step = is_hyper ? parameters_->hyper_increase : parameters_->additive_increase;
        rate_bps_ = std::min(line_bps_, rate_bps_ + step.at(line_bps_));
        ++increases_;
    }

    void decrease(double factor) {
        const auto scaled_bps = static_cast<std::int64_t>(static_cast<double>(rate_bps_) * factor);
        rate_bps_ = std::max(std::min(parameters_->min_rate_bps, line_bps_), scaled_bps);
        increases_ = 0;
    }

    const TimelyParameters* parameters_;
    std::int64_t line_bps_;
    std::int64_t rate_bps_;
    std::int64_t update_after_seq_ = 0;
    std::optional<TimePs> last_rtt_ps_;
    double rtt_difference_ps_ = 0;
    std::uint32_t increases_ = 0;  // in a row
};

}  // namespace netsim
