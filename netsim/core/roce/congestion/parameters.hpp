// Constants of the congestion-control schemes, with the published sets of them by name.
//
// Sources of the sets
//   hpcc   simulation/run.py of the HPCC simulator (github.com/alibaba-edu/High-Precision-Congestion-Control)
//   paper  its `dcqcn_paper` run: the timers of Zhu et al., "Congestion Control for Large-Scale RDMA Deployments",
//          SIGCOMM 2015
//   hpcc_vwin, paper_vwin  its `dcqcn_vwin`, `timely_vwin` and `dcqcn_paper_vwin` runs: the same with a send window
//   simai  SimAI.conf of SimAI 1.7 (github.com/aliyun/SimAI), whose rate steps do not grow with the line
//   nic    attribute defaults of the simulated NIC (RdmaHw) in the HPCC simulator
//
// The first set of a scheme is its default. For DCQCN that is `paper_vwin`: the intervals of 50 and 55 us of the
// algorithm's authors, steps that grow with the line, so that one set serves 25 Gbit/s to 1.6 Tbit/s, and the window of
// the runs by which HPCC compares itself (DCQCN+win, TIMELY+win: Li et al., SIGCOMM 2019, section 5.1) and of
// SimAI.conf, whose ECN thresholds are ours. Without it, flows that start together at line rate fill the switch before
// the first mark counts. The intervals of `hpcc`, 1, 4 and 300 us, are what NVIDIA documents for ConnectX NICs (DOCA,
// "DCQCN CC Parameters": dce_tcp_rtt 1, rate_reduce_monitor_period 4, dce_tcp_g 1019/1024, so g = 1/205) and what
// mlxconfig reports there (RPG_TIME_RESET 300, RPG_THRESHOLD 1, RPG_AI_RATE 5, RPG_HAI_RATE 50). They cut ten times in
// the time of one of the paper's cuts while alpha is still near 1, and come back six times as slowly: too slow for
// bursts of AI training at 400 Gbit/s, where skewed all-to-alls of 0.4 ms took 39 to 66 % longer than their busiest
// receiver, with `simai` 167 to 231 %, with `paper_vwin` 4 to 11 % (docs/accuracy/network.md). `simai` and `nic` step
// by at most 100 Mbit/s every 900 us and 50 Mbit/s every 1.5 ms on any line: where the target is lost, 200 of 400
// Gbit/s take them 1.8 and 6 s.
#pragma once

#include <cstdint>
#include <netsim/types.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace netsim {

inline constexpr TimePs kPsPerNs = 1'000;
inline constexpr TimePs kPsPerUs = 1'000'000;
inline constexpr std::int64_t kBpsPerMbps = 1'000'000;
inline constexpr std::int64_t kBpsPerGbps = 1'000'000'000;

// A rate that is fixed, or that is `bps` for every `per_line_bps` of the line.
struct RateStep {
    std::int64_t bps;
    std::optional<std::int64_t> per_line_bps;

    // Whole bit/s on this line, rounded down.
    constexpr std::int64_t at(std::int64_t line_bps) const {
        return per_line_bps ? static_cast<std::int64_t>(Work{bps} * line_bps / *per_line_bps) : bps;
    }
};

// Bytes in flight: without bound, up to the bandwidth-delay product, or up to that times rate / line.
enum class SendWindow { unbounded, fixed, variable };

// How the sets were run: they were tuned together with these.
struct TransportSettings {
    SendWindow window;
    bool acks_go_first;  // ACKs use the strict-priority queue, else that of the data
};

struct NoControlParameters {
    TransportSettings transport{SendWindow::fixed, false};
};

struct DcqcnParameters {
    TimePs alpha_interval_ps;
    TimePs decrease_interval_ps;
    TimePs increase_interval_ps;
    double gain;  // g of alpha's moving average
    std::uint32_t fast_recovery_steps;
    RateStep additive_increase;
    RateStep hyper_increase;
    std::int64_t min_rate_bps;
    bool clamps_target;  // a decrease always lowers the target to the rate, not only after an increase
    TransportSettings transport;
};

struct HpccParameters {
    double target_utilization;         // eta
    std::uint32_t max_additive_steps;  // MI_THRESH: additive rounds before a multiplicative one is forced
    RateStep additive_increase;
    std::int64_t min_rate_bps;
    bool reacts_within_rtt;  // FAST_REACT: ACKs between two commits set the rate too
    TransportSettings transport;
};

struct TimelyParameters {
    double gain;  // alpha: weight of the newest RTT difference
    double beta;  // multiplicative decrease
    TimePs low_rtt_ps;
    TimePs high_rtt_ps;
    TimePs min_rtt_ps;                 // normalises the gradient
    std::uint32_t steps_before_hyper;  // consecutive increases after which they are hyper increases
    RateStep additive_increase;
    RateStep hyper_increase;
    std::int64_t min_rate_bps;
    TransportSettings transport;
};

struct DctcpParameters {
    double gain;  // g of alpha's moving average
    RateStep additive_increase;
    std::int64_t min_rate_bps;
    TransportSettings transport;
};

using CongestionParameters =
    std::variant<NoControlParameters, DcqcnParameters, HpccParameters, TimelyParameters, DctcpParameters>;

// Names of the published sets of a scheme (`none`, `dcqcn`, `hpcc`, `timely`, `dctcp`), the default first.
std::vector<std::string> congestion_presets(std::string_view scheme);

// A published set; the scheme's default without a name. Throws MisuseError for names that do not exist.
CongestionParameters congestion_preset(std::string_view scheme, std::string_view preset = {});

// Throws MisuseError if a constant makes no sense: times, gains or rates that are not positive, a gain above 1.
void check(const CongestionParameters& parameters);

const TransportSettings& transport_of(const CongestionParameters& parameters);

}  // namespace netsim
