// DCTCP on a paced sender: alpha estimates the share of marked packets per window, the first mark cuts the rate by
// alpha / 2, and windows without a cut add a step (Alizadeh et al., SIGCOMM 2010, section 3.1, with a rate in the
// place of the congestion window, as the HPCC simulator implements it). Doubles as in hpcc.hpp.
#pragma once

#include <algorithm>
#include <cstdint>

#include "roce/congestion/parameters.hpp"
#include "roce/congestion/telemetry.hpp"

namespace netsim {

class Dctcp {
  public:
    // `parameters` have to outlive the controller. Throws MisuseError without an MTU.
    Dctcp(const DctcpParameters& parameters, const FlowLimits& limits, TimePs /*now_ps*/)
        : parameters_(&parameters),
          line_bps_(limits.line_bps),
          rate_bps_(limits.line_bps),
          mtu_bytes_(limits.mtu_bytes) {
        if (limits.mtu_bytes <= 0) throw MisuseError("DCTCP needs a positive MTU");
    }

    void on_ack(const AckSignal& ack) {
        if (ack.is_marked) marked_packets_ += packets(ack.acked_bytes);
        const bool ends_window = ack.acked_seq > window_end_seq_;
        if (ends_window) end_window(ack);
        if (ack.acked_seq > cut_end_seq_) has_cut_ = false;
        if (ack.is_marked && !has_cut_) cut(ack.next_seq);
        if (ends_window && !has_cut_) {
            rate_bps_ = std::min(line_bps_, rate_bps_ + parameters_->additive_increase.at(line_bps_));
        }
    }

    void on_timer(TimePs /*now_ps*/) {}
    void on_timeout(TimePs /*now_ps*/) {}  // losses are left to the transport: lossless fabrics have none

    std::int64_t rate_bps() const { return rate_bps_; }
    static constexpr TimePs next_timer_ps() { return kNever; }
    void move_on(std::int64_t bytes) {
        window_end_seq_ += bytes;
        cut_end_seq_ += bytes;
    }

    double alpha() const { return alpha_; }

  private:
    // Packets that one ACK stands for: one, unless ACKs are coalesced.
    std::int64_t packets(std::int64_t acked_bytes) const {
        return acked_bytes <= mtu_bytes_ ? 1 : (acked_bytes + mtu_bytes_ - 1) / mtu_bytes_;
    }

    // The first window has no estimate yet: alpha keeps its 1, and the marks so far count for the second.
    void end_window(const AckSignal& ack) {
        const bool is_first = window_packets_ == 0;
        if (!is_first) {
            const double marked_share =
                std::min(1.0, static_cast<double>(marked_packets_) / static_cast<double>(window_packets_));
            alpha_ = (1 - parameters_->gain) * alpha_ + parameters_->gain * marked_share;
            marked_packets_ = 0;
        }
        window_packets_ = (ack.next_seq - (is_first ? 0 : ack.acked_seq)) / mtu_bytes_ + 1;
        window_end_seq_ = ack.next_seq;
    }

    void cut(std::int64_t next_seq) {
        const auto scaled_bps = static_cast<std::int64_t>(static_cast<double>(rate_bps_) * (1 - alpha_ / 2));
        rate_bps_ = std::max(std::min(parameters_->min_rate_bps, line_bps_), scaled_bps);
        has_cut_ = true;
        cut_end_seq_ = next_seq;
    }

    const DctcpParameters* parameters_;
    std::int64_t line_bps_;
    std::int64_t rate_bps_;
    std::int64_t mtu_bytes_;
    std::int64_t window_end_seq_ = 0;
    std::int64_t cut_end_seq_ = 0;
    std::int64_t marked_packets_ = 0;
    std::int64_t window_packets_ = 0;
    double alpha_ = 1;
    bool has_cut_ = false;  // until what was sent by then is acknowledged
};

}  // namespace netsim
