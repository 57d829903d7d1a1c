// The congestion controller of one queue pair, whichever scheme it follows: a value, without virtual calls.
//
// The owner calls `on_ack` for every ACK, `on_timer` at `next_timer_ps` (asked anew after every call) and `on_timeout`
// after a retransmission timeout or NACK; `rate_bps` is then the rate at which to pace. Calls come in order of time.
// An ACK first catches up with all timers that are due, so a timer that runs late or at the same instant changes
// nothing but when the new rate is seen.
#pragma once

#include <cstdint>
#include <utility>
#include <variant>

#include "roce/congestion/dcqcn.hpp"
#include "roce/congestion/dctcp.hpp"
#include "roce/congestion/hpcc.hpp"
#include "roce/congestion/parameters.hpp"
#include "roce/congestion/telemetry.hpp"
#include "roce/congestion/timely.hpp"

namespace netsim {

// Always the line rate.
class NoControl {
  public:
    NoControl(const NoControlParameters& /*parameters*/, const FlowLimits& limits, TimePs /*now_ps*/)
        : line_bps_(limits.line_bps) {}

    void on_ack(const AckSignal& /*ack*/) {}
    void on_timer(TimePs /*now_ps*/) {}
    void on_timeout(TimePs /*now_ps*/) {}
    std::int64_t rate_bps() const { return line_bps_; }
    static constexpr TimePs next_timer_ps() { return kNever; }

  private:
    std::int64_t line_bps_;
};

class CongestionControl {
  public:
    // `parameters` have to outlive the controller; `check` them before. Throws MisuseError for limits that the scheme
    // cannot work with.
    CongestionControl(const CongestionParameters& parameters, const FlowLimits& limits, TimePs now_ps)
        : scheme_(make(parameters, limits, now_ps)) {}

    void on_ack(const AckSignal& ack) {
        visit([&](auto& scheme) { scheme.on_ack(ack); });
    }
    void on_timer(TimePs now_ps) {
        visit([&](auto& scheme) { scheme.on_timer(now_ps); });
    }
    void on_timeout(TimePs now_ps) {
        visit([&](auto& scheme) { scheme.on_timeout(now_ps); });
    }
    // The flow is so many bytes further in its message than it was, and else as before.
    void move_on(std::int64_t bytes) {
        visit([&](auto& scheme) {
            if constexpr (requires { scheme.move_on(bytes); }) scheme.move_on(bytes);
        });
    }
    std::int64_t rate_bps() const {
        return std::visit([](const auto& scheme) { return scheme.rate_bps(); }, scheme_);
    }
    TimePs next_timer_ps() const {
        return std::visit([](const auto& scheme) { return scheme.next_timer_ps(); }, scheme_);
    }

  private:
    using Scheme = std::variant<NoControl, Dcqcn, Hpcc, Timely, Dctcp>;

    static Scheme make(const CongestionParameters& parameters, const FlowLimits& limits, TimePs now_ps) {
        if (limits.line_bps <= 0) throw MisuseError("congestion control needs a positive line rate");
        return std::visit(
            [&](const auto& constants) -> Scheme {
                using Controller = decltype(controller_of(constants));
                return Controller(constants, limits, now_ps);
            },
            parameters);
    }

    static NoControl controller_of(const NoControlParameters&);
    static Dcqcn controller_of(const DcqcnParameters&);
    static Hpcc controller_of(const HpccParameters&);
    static Timely controller_of(const TimelyParameters&);
    static Dctcp controller_of(const DctcpParameters&);

    template <typename Call>
    void visit(Call&& call) {
        std::visit(std::forward<Call>(call), scheme_);
    }

    Scheme scheme_;
};

}  // namespace netsim
