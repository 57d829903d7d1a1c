// DCQCN: rate control by ECN marks, in the variant of the NIC vendor that the ns-3 models of HPCC and SimAI simulate.
//
// Zhu et al., SIGCOMM 2015, section 5, with the timers of the NIC: from the first mark on, alpha is averaged every
// alpha interval and the rate is cut every decrease interval (1 ns later than alpha), if a mark came since the last
// time; an increase timer, restarted by every cut, recovers the rate. There is no byte counter, and the rate is kept
// at the first mark itself.
//
// Nothing ticks here. Alpha is brought up to date when a mark or a cut needs it; a cut is an event only while a mark
// waits for it; the increase timer stops once rate and target are back at the line. Until an instant's ticks have run,
// an acknowledgement of that instant is not seen: so it does not matter which of the two the engine runs first.
#pragma once

#include <algorithm>
#include <cstdint>

#include "roce/congestion/parameters.hpp"
#include "roce/congestion/telemetry.hpp"

namespace netsim {

class Dcqcn {
  public:
    // Alpha is a binary fraction of 48 places, rounded down in each of its steps. So it is the same on every machine,
    // whenever the steps are taken, and it reaches 0: with g = 1/256 after 7,232 steps (7.2 ms) without a mark, which
    // bounds the work of catching up after any pause.
    static constexpr int kAlphaPlaces = 48;
    static constexpr std::uint64_t kAlphaOne = std::uint64_t{1} << kAlphaPlaces;

    // `parameters` have to outlive the controller.
    Dcqcn(const DcqcnParameters& parameters, const FlowLimits& limits, TimePs /*now_ps*/)
        : parameters_(&parameters),
          line_bps_(limits.line_bps),
          rate_bps_(limits.line_bps),
          target_bps_(limits.line_bps),
          kept_share_(kAlphaOne - gain_share()) {}

    void on_ack(const AckSignal& ack) {
        on_timer(ack.now_ps);
        if (ack.is_marked) mark(ack.now_ps);
    }

    // Runs all cuts and increases up to and including `now_ps`, in order; at one instant the increase comes first, as
    // the longer timer is the one that was set earlier.
    void on_timer(TimePs now_ps) {
        while (next_timer_ps() <= now_ps) {
            if (next_increase_ps_ <= next_decrease_ps_) {
                increase();
            } else {
                decrease();
            }
        }
    }

    void on_timeout(TimePs now_ps) { on_timer(now_ps); }  // DCQCN does not react to losses

    std::int64_t rate_bps() const { return rate_bps_; }
    TimePs next_timer_ps() const { return std::min(next_increase_ps_, next_decrease_ps_); }

    std::int64_t target_bps() const { return target_bps_; }
    std::uint32_t increase_stage() const { return stage_; }

    // Alpha in units of 2^-48, after all its steps up to and including `now_ps`.
    std::uint64_t alpha_at(TimePs now_ps) const {
        Dcqcn later = *this;
        later.update_alpha(now_ps);
        return later.alpha_;
    }

  private:
    std::uint64_t gain_share() const {
        return static_cast<std::uint64_t>(parameters_->gain * static_cast<double>(kAlphaOne));
    }

    void mark(TimePs now_ps) {
        if (next_alpha_ps_ == kNever) {  // the first mark starts the clocks
            next_alpha_ps_ = now_ps + parameters_->alpha_interval_ps;
            next_decrease_ps_ = now_ps + kPsPerNs + parameters_->decrease_interval_ps;
            return;
        }
        update_alpha(now_ps);
        is_marked_ = true;
        if (next_decrease_ps_ == kNever) {
            const TimePs interval_ps = parameters_->decrease_interval_ps;
            next_decrease_ps_ = last_decrease_ps_ + ((now_ps - last_decrease_ps_) / interval_ps + 1) * interval_ps;
        }
    }

    void update_alpha(TimePs now_ps) {
        if (now_ps < next_alpha_ps_ || next_alpha_ps_ == kNever) return;
        const TimePs interval_ps = parameters_->alpha_interval_ps;
        TimePs steps = 1;
        if (now_ps - next_alpha_ps_ >= interval_ps) steps += (now_ps - next_alpha_ps_) / interval_ps;
        next_alpha_ps_ += steps * interval_ps;
        alpha_ = kept(alpha_) + (is_marked_ ? kAlphaOne - kept_share_ : 0);
        is_marked_ = false;
        for (TimePs step = 1; step < steps && alpha_ != 0; ++step) alpha_ = kept(alpha_);
    }

    std::uint64_t kept(std::uint64_t alpha) const {
        return static_cast<std::uint64_t>(Work{alpha} * kept_share_ >> kAlphaPlaces);
    }

    void decrease() {
        last_decrease_ps_ = next_decrease_ps_;
        next_decrease_ps_ = kNever;
        update_alpha(last_decrease_ps_);
        if (stage_ > 0 || parameters_->clamps_target) target_bps_ = rate_bps_;
        const auto cut_bps = static_cast<std::int64_t>(Work{rate_bps_} * alpha_ >> (kAlphaPlaces + 1));  // alpha / 2
        rate_bps_ = std::max(std::min(parameters_->min_rate_bps, line_bps_), rate_bps_ - cut_bps);
        stage_ = 0;
        next_increase_ps_ = last_decrease_ps_ + parameters_->increase_interval_ps;
    }

    // Fast recovery halves the distance to the target; then the target rises, too. Half of an odd distance is rounded
    // up, so that the target is reached.
    void increase() {
        if (stage_ >= parameters_->fast_recovery_steps) {
            const bool is_additive = stage_ == parameters_->fast_recovery_steps;
            const RateStep& step = is_additive ? parameters_->additive_increase : parameters_->hyper_increase;
            target_bps_ = std::min(line_bps_, target_bps_ + step.at(line_bps_));
        }
        rate_bps_ += (target_bps_ - rate_bps_ + 1) / 2;
        stage_ = std::min(stage_, parameters_->fast_recovery_steps) + 1;
        const bool is_back = rate_bps_ == line_bps_;  // then so is the target: further ticks would change nothing
        next_increase_ps_ = is_back ? kNever : next_increase_ps_ + parameters_->increase_interval_ps;
    }

    const DcqcnParameters* parameters_;
    std::int64_t line_bps_;
    std::int64_t rate_bps_;
    std::int64_t target_bps_;
    std::uint64_t kept_share_;  // 1 - g
    std::uint64_t alpha_ = kAlphaOne;
    TimePs next_alpha_ps_ = kNever;
    TimePs next_decrease_ps_ = kNever;
    TimePs next_increase_ps_ = kNever;
    TimePs last_decrease_ps_ = 0;
    std::uint32_t stage_ = 0;
    bool is_marked_ = false;  // since alpha's last step
};

}  // namespace netsim
