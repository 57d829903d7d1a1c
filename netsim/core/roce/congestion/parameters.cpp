#include "roce/congestion/parameters.hpp"

#include <algorithm>
#include <array>

namespace netsim {

namespace {

struct Preset {
    std::string_view scheme;
    std::string_view name;
    CongestionParameters parameters;
};

constexpr TransportSettings kNoWindow{SendWindow::unbounded, true};
constexpr TransportSettings kVariableWindow{SendWindow::variable, false};
constexpr TransportSettings kVariableWindowAcksFirst{SendWindow::variable, true};
constexpr std::int64_t kHpccMinRateBps = 1000 * kBpsPerMbps;
constexpr std::int64_t kSimaiMinRateBps = 100 * kBpsPerMbps;

constexpr RateStep per_25_gbps(std::int64_t mbps) { return {mbps * kBpsPerMbps, 25 * kBpsPerGbps}; }
constexpr RateStep per_10_gbps(std::int64_t mbps) { return {mbps * kBpsPerMbps, 10 * kBpsPerGbps}; }
constexpr RateStep always(std::int64_t mbps) { return {mbps * kBpsPerMbps, std::nullopt}; }

constexpr DcqcnParameters dcqcn_of_hpcc(const TransportSettings& transport) {
    return {
        1 * kPsPerUs,   4 * kPsPerUs,    300 * kPsPerUs,  1.0 / 256, 1,
        per_25_gbps(5), per_25_gbps(50), kHpccMinRateBps, false,     transport,
    };
}
constexpr DcqcnParameters dcqcn_of_paper(const TransportSettings& transport) {
    return {
        50 * kPsPerUs,  50 * kPsPerUs,   55 * kPsPerUs,   1.0 / 256, 1,
        per_25_gbps(5), per_25_gbps(50), kHpccMinRateBps, false,     transport,
    };
}
constexpr DcqcnParameters kDcqcnSimai{
    1 * kPsPerUs, 4 * kPsPerUs, 900 * kPsPerUs,   1.0 / 256, 1,
    always(50),   always(100),  kSimaiMinRateBps, false,     kVariableWindow,
};
constexpr DcqcnParameters kDcqcnNic{
    55 * kPsPerUs, 4 * kPsPerUs, 1500 * kPsPerUs,  1.0 / 16, 5,
    always(5),     always(50),   kSimaiMinRateBps, false,    kNoWindow,
};

constexpr HpccParameters kHpccHpcc{0.95, 0, per_25_gbps(10), kHpccMinRateBps, true, kVariableWindow};
constexpr HpccParameters kHpccSimai{0.95, 0, always(50), kSimaiMinRateBps, true, kVariableWindow};

// Thresholds and gains are attribute defaults of the HPCC simulator, which no run changes.
constexpr TimelyParameters timely_of_hpcc(const TransportSettings& transport) {
    return {
        0.875,           0.8,       50 * kPsPerUs, 500 * kPsPerUs, 20 * kPsPerUs, 5, per_10_gbps(10), per_10_gbps(50),
        kHpccMinRateBps, transport,
    };
}
constexpr TimelyParameters kTimelySimai{
    0.875, 0.8,        50 * kPsPerUs, 500 * kPsPerUs,   20 * kPsPerUs,
    5,     always(50), always(100),   kSimaiMinRateBps, kVariableWindow,
};

// 615 Mbit/s is one 1,000-byte packet per 13 us, the round trip of the HPCC runs.
constexpr DctcpParameters kDctcpHpcc{1.0 / 16, always(615), kHpccMinRateBps, kVariableWindow};
constexpr DctcpParameters kDctcpSimai{1.0 / 256, always(1000), kSimaiMinRateBps, kVariableWindow};

constexpr std::array<Preset, 14> kPresets{{
    {"none", "none", NoControlParameters{}},
    {"dcqcn", "paper_vwin", dcqcn_of_paper(kVariableWindow)},
    {"dcqcn", "paper", dcqcn_of_paper(kNoWindow)},
    {"dcqcn", "hpcc", dcqcn_of_hpcc(kNoWindow)},
    {"dcqcn", "hpcc_vwin", dcqcn_of_hpcc(kVariableWindow)},
    {"dcqcn", "simai", kDcqcnSimai},
    {"dcqcn", "nic", kDcqcnNic},
    {"hpcc", "hpcc", kHpccHpcc},
    {"hpcc", "simai", kHpccSimai},
    {"timely", "hpcc_vwin", timely_of_hpcc(kVariableWindowAcksFirst)},
    {"timely", "hpcc", timely_of_hpcc(kNoWindow)},
    {"timely", "simai", kTimelySimai},
    {"dctcp", "hpcc", kDctcpHpcc},
    {"dctcp", "simai", kDctcpSimai},
}};

void require(bool holds, const char* what) {
    if (!holds) throw MisuseError(std::string("congestion control: ") + what);
}

void check_gain(double gain) { require(gain > 0 && gain <= 1, "gain must be above 0 and at most 1"); }

void check_step(const RateStep& step) {
    require(step.bps > 0 && step.bps <= kMaxCapacityBps, "rate steps must be positive and at most 1 Pbit/s");
    require(!step.per_line_bps || *step.per_line_bps > 0, "the line rate that a rate step refers to must be positive");
}

void check_min_rate(std::int64_t min_rate_bps) { require(min_rate_bps > 0, "min_rate_bps must be positive"); }

void check_scheme(const NoControlParameters&) {}

void check_scheme(const DcqcnParameters& p) {
    require(p.alpha_interval_ps > 0 && p.decrease_interval_ps > 0 && p.increase_interval_ps > 0,
            "intervals of DCQCN must be positive");
    require(p.gain >= 1.0 / 65536 && p.gain <= 1, "gain of DCQCN must be at least 1/65536 and at most 1");
    check_step(p.additive_increase);
    check_step(p.hyper_increase);
    check_min_rate(p.min_rate_bps);
}

void check_scheme(const HpccParameters& p) {
    require(p.target_utilization > 0 && p.target_utilization <= 1, "target_utilization must be above 0 and at most 1");
    check_step(p.additive_increase);
    check_min_rate(p.min_rate_bps);
}

void check_scheme(const TimelyParameters& p) {
    check_gain(p.gain);
    require(p.beta > 0 && p.beta <= 1, "beta must be above 0 and at most 1");
    require(p.low_rtt_ps > 0 && p.low_rtt_ps <= p.high_rtt_ps, "low_rtt_ps must be positive and at most high_rtt_ps");
    require(p.min_rtt_ps > 0, "min_rtt_ps must be positive");
    check_step(p.additive_increase);
    check_step(p.hyper_increase);
    check_min_rate(p.min_rate_bps);
}

void check_scheme(const DctcpParameters& p) {
    check_gain(p.gain);
    check_step(p.additive_increase);
    check_min_rate(p.min_rate_bps);
}

std::string joined(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
}

}  // namespace

std::vector<std::string> congestion_presets(std::string_view scheme) {
    std::vector<std::string> names;
    for (const Preset& preset : kPresets) {
        if (preset.scheme == scheme) names.emplace_back(preset.name);
    }
    if (names.empty()) {
        throw MisuseError("congestion control '" + std::string(scheme) +
                          "' does not exist; expected none, dcqcn, hpcc, timely or dctcp");
    }
    return names;
}

CongestionParameters congestion_preset(std::string_view scheme, std::string_view preset) {
    const std::vector<std::string> names = congestion_presets(scheme);
    const std::string_view wanted = preset.empty() ? std::string_view(names.front()) : preset;
    const auto* const found = std::find_if(kPresets.begin(), kPresets.end(), [&](const Preset& candidate) {
        return candidate.scheme == scheme && candidate.name == wanted;
    });
    if (found == kPresets.end()) {
        throw MisuseError("preset '" + std::string(preset) + "' of " + std::string(scheme) +
                          " does not exist; expected one of: " + joined(names));
    }
    return found->parameters;
}

void check(const CongestionParameters& parameters) {
    std::visit([](const auto& scheme) { check_scheme(scheme); }, parameters);
}

const TransportSettings& transport_of(const CongestionParameters& parameters) {
    return std::visit([](const auto& scheme) -> const TransportSettings& { return scheme.transport; }, parameters);
}

}  // namespace netsim
