// Recognises that a fabric repeats itself, so that a carrier can skip ahead.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "roce/fabric.hpp"
#include "roce/packet_carrier.hpp"

namespace netsim::roce {

// A time during which every flow goes on at the rate it has, and what happens in it.
struct Skip {
    TimePs longest_ps;                      // no flow ends before
    TimePs window_ps;                       // over which the following was measured
    std::vector<std::int64_t> flow_bytes;   // [queue pair] that arrived
    std::vector<LinkCounters> link_change;  // [link]
};

// Looks at the fabric at regular instants. Its state counts as steady when two spans of time of one length, the last
// ones, are equal: no flow came or went, nothing was lost, every flow received the same within half the tolerance and
// enough packets to tell (one packet is a quarter of the tolerance at most), no congestion controller waits for a
// timer, and the mean queue of no link grew by more than half the tolerance of what the link carries. Spans of several
// lengths are compared, as pauses and round-robin repeat themselves slowly. Going on at the measured rates is then
// wrong by about the tolerance at most (relative, for each flow's time), as long as the state would have lasted.
//
// Looking costs less than simulating, whatever the loads. A look goes through all links and queue pairs, so there is
// one only after enough packet hops have been simulated to outweigh it. Where there were too few, the step doubles:
// flows of any rate are met after a number of instants that grows with the logarithm of their time. It doubles too, and
// every second look is forgotten, when the looks have become many without anything steady, so that slow flows have time
// to tell. When flows have come or gone it begins anew with the shortest step, but not more often than hops pay for.
template <typename Fabric>
class SteadyState {
  public:
    SteadyState(Fabric& fabric, double tolerance)
        : fabric_(fabric), tolerance_(tolerance), shortest_step_ps_(shortest_step_ps()), step_ps_(shortest_step_ps_) {}

    // When `look` wants to be called next, in the fabric's time.
    TimePs next_look_ps(TimePs now_ps) {
        if (next_ps_ == kNever || next_ps_ < now_ps) begin_anew(now_ps);
        return next_ps_;
    }

    // Takes note of the present state if that is worth its cost, and returns what can be skipped from here.
    std::optional<Skip> look(TimePs now_ps) {
        ++instants_;
        if (changes_ != fabric_.changes()) begin_anew(now_ps);
        const bool is_paid_for = fabric_.packet_hops() - hops_noted_ >= kHopsPerUnit * units();
        if (!is_paid_for || looks_.size() >= most_looks()) {
            lengthen_step();
            next_ps_ = later(looks_.empty() ? now_ps : looks_.back().at_ps, step_ps_);
            return std::nullopt;
        }
        looks_.push_back(note(now_ps));
        next_ps_ = later(now_ps, step_ps_);
        for (std::size_t steps = 1; 2 * steps < looks_.size(); steps *= 2) {
            if (std::optional<Skip> found = skip_by(steps)) return found;
        }
        return std::nullopt;
    }

    // Something has happened to the state: what was seen of it says nothing any more.
    void forget() { next_ps_ = kNever; }

    LookEffort effort() const { return {instants_, units_noted_}; }

  private:
    struct Look {
        TimePs at_ps;
        std::vector<std::int64_t> arrived_bytes;  // [queue pair]
        std::vector<std::int64_t> rate_bps;       // [queue pair] that congestion control allows
        std::vector<LinkCounters> counters;       // [link]
        std::vector<double> queued_bytes;         // [link] sum over all looks up to this one
        double looks;                             // their number
    };

    // At the rate of the fastest network interface, enough packets in four steps.
    TimePs shortest_step_ps() const {
        TimePs fastest = kNever;
        for (LinkId link = 0; link < fabric_.link_count(); ++link) {
            const Port& port = fabric_.port(link);
            if (port.from == NodeRole::host) {
                fastest = std::min(fastest, port.exact_serialization_ps(fabric_.unit_wire_bytes()));
            }
        }
        const double step_ps = static_cast<double>(std::max<TimePs>(fastest, 1)) / tolerance_;
        return static_cast<TimePs>(std::min(step_ps, kLongestStepPs));
    }
    std::size_t units() const { return fabric_.queue_pairs().size() + fabric_.link_count(); }
    std::size_t most_looks() const {
        const std::size_t bytes = fabric_.queue_pairs().size() * 16 + fabric_.link_count() * (8 + sizeof(LinkCounters));
        return std::clamp(kMostBytes / std::max<std::size_t>(bytes, 1), std::size_t{5}, std::size_t{65});
    }

    void begin_anew(TimePs now_ps) {
        looks_.clear();
        changes_ = fabric_.changes();
        if (resets_ * kHopsPerReset <= fabric_.packet_hops() + kFreeResets * kHopsPerReset) {
            ++resets_;
            step_ps_ = shortest_step_ps_;
        }
        next_ps_ = later(now_ps, step_ps_);
    }

    // Keeps the last look and every second one before it.
    void lengthen_step() {
        step_ps_ = std::min(step_ps_, static_cast<TimePs>(kLongestStepPs)) * 2;
        std::deque<Look> kept;
        for (std::size_t back = 0; back < looks_.size(); back += 2) {
            kept.push_front(std::move(looks_[looks_.size() - 1 - back]));
        }
        looks_ = std::move(kept);
    }

    Look note(TimePs now_ps) {
        hops_noted_ = fabric_.packet_hops();
        units_noted_ += units();
        const Look* before = looks_.empty() ? nullptr : &looks_.back();
        Look look{now_ps, {}, {}, {}, {}, before == nullptr ? 1 : before->looks + 1};
        for (const QueuePair& qp : fabric_.queue_pairs()) {
            look.arrived_bytes.push_back(qp.expected_seq);
            look.rate_bps.push_back(qp.control.rate_bps());
        }
        for (LinkId link = 0; link < fabric_.link_count(); ++link) {
            const double sum = before == nullptr ? 0 : before->queued_bytes[link];
            look.queued_bytes.push_back(sum + static_cast<double>(fabric_.queued_bytes(link)));
            look.counters.push_back(fabric_.counters(link));
        }
        return look;
    }

    // What the last two spans of so many steps allow to skip.
    std::optional<Skip> skip_by(std::size_t steps) const {
        const Look& last = looks_.back();
        const Look& middle = looks_[looks_.size() - 1 - steps];
        const Look& first = looks_[looks_.size() - 1 - 2 * steps];
        if (fabric_.is_rerouting()) return std::nullopt;
        Skip skip{kNever, last.at_ps - first.at_ps, {}, {}};
        if (!are_flows_steady(first, middle, skip) || !are_links_steady(first, middle, skip)) return std::nullopt;
        const bool is_worth_it = skip.longest_ps > skip.window_ps / 2 && skip.longest_ps < kNever;
        return is_worth_it ? std::optional(std::move(skip)) : std::nullopt;
    }

    bool are_flows_steady(const Look& before, const Look& middle, Skip& skip) const {
        const std::int64_t unit = fabric_.unit_bytes();
        for (QueuePairIndex i = 0; i < fabric_.queue_pairs().size(); ++i) {
            const QueuePair& qp = fabric_.queue_pairs()[i];
            if (qp.is_closed) {
                skip.flow_bytes.push_back(0);
                continue;
            }
            const std::int64_t first = middle.arrived_bytes[i] - before.arrived_bytes[i];
            const std::int64_t second = looks_.back().arrived_bytes[i] - middle.arrived_bytes[i];
            const std::int64_t left = qp.size_bytes - qp.next_seq - kMarginUnits * unit;
            const bool has_timer = qp.control.next_timer_ps() != kNever;
            const bool is_known = static_cast<double>(first + second) * tolerance_ >= 4 * static_cast<double>(unit);
            const auto allowed = std::max(static_cast<double>(unit), tolerance_ / 2 * static_cast<double>(first));
            const bool is_equal = static_cast<double>(std::abs(second - first)) <= allowed;
            if (qp.selective || has_timer || left <= 0 || !is_known || !is_equal) return false;
            skip.flow_bytes.push_back(first + second);
            const Work until_end = Work{left} * skip.window_ps / (first + second);
            const Work longest = std::min(until_end, Work{until_drifted_ps(i, middle, skip.window_ps)});
            skip.longest_ps = std::min(skip.longest_ps, static_cast<TimePs>(longest));
        }
        return true;
    }

    // How long the rate that congestion control allows may go on drifting as it did, until its mean is off by the
    // tolerance.
    TimePs until_drifted_ps(QueuePairIndex index, const Look& middle, TimePs window_ps) const {
        const std::int64_t rate = looks_.back().rate_bps[index];
        const std::int64_t drift = std::abs(rate - middle.rate_bps[index]);
        if (drift == 0) return kNever / 2;
        const double spans = 2 * tolerance_ * static_cast<double>(rate) / static_cast<double>(drift);
        return static_cast<TimePs>(
            std::min(spans * static_cast<double>(window_ps) / 2, static_cast<double>(kNever / 2)));
    }

    bool are_links_steady(const Look& first, const Look& middle, Skip& skip) const {
        const Look& last = looks_.back();
        for (LinkId link = 0; link < fabric_.link_count(); ++link) {
            // Means over the looks of both spans, so that short waves of pauses cancel out.
            const double growth = mean_queue_bytes(middle, last, link) - mean_queue_bytes(first, middle, link);
            const double span_s = static_cast<double>(skip.window_ps / 2) / static_cast<double>(kPsPerSecond);
            const double carried = static_cast<double>(fabric_.port(link).capacity_bps) / 8 * span_s;
            LinkCounters change = last.counters[link];
            change -= first.counters[link];
            if (std::abs(growth) > tolerance_ / 2 * carried || change.drops > 0) return false;
            skip.link_change.push_back(change);
        }
        return true;
    }

    static double mean_queue_bytes(const Look& before, const Look& last, LinkId link) {
        return (last.queued_bytes[link] - before.queued_bytes[link]) / (last.looks - before.looks);
    }

    static constexpr std::size_t kMostBytes = std::size_t{1} << 26;  // of all looks that are kept
    static constexpr std::int64_t kMarginUnits = 4;  // left for the end of a flow, so that it ends as it would
    static constexpr double kLongestStepPs = 0x1p61;
    // A look at one link or queue pair takes up to 80 ns with all comparisons, a hop about 60: looks take at most a
    // fifth of the time, and as a rule far less.
    static constexpr std::uint64_t kHopsPerUnit = 8;
    static constexpr std::uint64_t kHopsPerReset = 1024;  // after each reset there may be 60 steps without a look
    static constexpr std::uint64_t kFreeResets = 64;

    Fabric& fabric_;
    double tolerance_;
    TimePs shortest_step_ps_;
    TimePs step_ps_;
    TimePs next_ps_ = kNever;
    std::uint64_t changes_ = 0;     // of the fabric, as of the looks
    std::uint64_t hops_noted_ = 0;  // of the fabric at the last look
    std::uint64_t resets_ = 0, instants_ = 0, units_noted_ = 0;
    std::deque<Look> looks_;
};

}  // namespace netsim::roce
