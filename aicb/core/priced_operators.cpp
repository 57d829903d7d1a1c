#include "priced_operators.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

namespace aicb {

namespace {

const PricedOperators kNothing;

// ⌊value · numerator / denominator⌋ of non-negative integers whose product exceeds 64 bits.
TimePs scaled(TimePs value, TimePs numerator, TimePs denominator) {
    __extension__ using Wide = __int128;
    const Wide product = static_cast<Wide>(value) * numerator;
    const Wide quotient = product / denominator;
    return static_cast<TimePs>(quotient - (product % denominator < 0));
}

constexpr std::int64_t kSmall = 256;
constexpr std::int64_t kPerOctave = 64;

// The largest power of two that is not above a count of tokens of at least one.
std::int64_t octave_of(std::int64_t tokens) {
    return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(tokens)));
}

// Distance of the grid points around a count of tokens: 64 per octave, and all counts below 256.
std::int64_t grid_step(std::int64_t tokens) { return tokens < kSmall ? 1 : octave_of(tokens) / kPerOctave; }

// The priced counts around a count of tokens: kernels compute whole tiles, so that times jump right after a grid point.
struct Neighbours {
    std::int64_t low, high;
    std::int64_t beyond;  // tokens above `low`, 0 where the count is priced itself

    explicit Neighbours(std::int64_t tokens) {
        const std::int64_t step = grid_step(tokens);
        low = tokens % step == 0 ? tokens : tokens / step * step + 1;
        high = (tokens + step - 1) / step * step;
        beyond = tokens - low;
    }
};

PricedOperators mixed(const PricedOperators& low, const PricedOperators& high, const Neighbours& around) {
    const std::int64_t step = around.high - around.low;
    const auto mix = [&](TimePs below, TimePs above) { return below + (above - below) * around.beyond / step; };
    PricedOperators made;
    for (std::size_t phase = 0; phase < kPhases; ++phase) {
        made.phase_ps[phase] = mix(low.phase_ps[phase], high.phase_ps[phase]);
    }
    made.total_ps = std::accumulate(made.phase_ps.begin(), made.phase_ps.end(), TimePs{0});
    made.estimated_ps = std::min(mix(low.estimated_ps, high.estimated_ps), made.total_ps);
    made.clocked_ps = mix(low.clocked_ps, high.clocked_ps);
    made.tensor_ps = mix(low.tensor_ps, high.tensor_ps);
    made.estimated = low.estimated | high.estimated;
    made.communications = 2 * around.beyond < step ? low.communications : high.communications;
    return made;
}

}  // namespace

std::vector<std::int64_t> priced_together(std::int64_t tokens, std::int64_t run) {
    const std::int64_t step = grid_step(tokens);
    if (tokens % step > 1) return {tokens};
    const std::int64_t most = tokens < kSmall ? kSmall : octave_of(tokens);  // steps are others beyond
    const std::int64_t reach = std::min(run / 2 * step, most), first = tokens / reach * reach;
    std::vector<std::int64_t> counts;
    for (std::int64_t count = std::max<std::int64_t>(first, 1); count < first + reach; ++count) {
        if (count % step < 2) counts.push_back(count);
    }
    return counts;
}

PricedOperators& PricedOperators::operator+=(const PricedOperators& other) {
    for (std::size_t phase = 0; phase < kPhases; ++phase) phase_ps[phase] += other.phase_ps[phase];
    total_ps += other.total_ps;
    estimated_ps += other.estimated_ps;
    clocked_ps += other.clocked_ps;
    tensor_ps += other.tensor_ps;
    estimated |= other.estimated;
    return *this;
}

PricedOperators PricedOperators::scaled_to(TimePs new_total_ps) const {
    if (total_ps == 0 || new_total_ps == total_ps) return *this;
    PricedOperators made = *this;
    for (TimePs& time_ps : made.phase_ps) time_ps = scaled(time_ps, new_total_ps, total_ps);
    const TimePs sum = std::accumulate(made.phase_ps.begin(), made.phase_ps.end(), TimePs{0});
    *std::max_element(made.phase_ps.begin(), made.phase_ps.end()) += new_total_ps - sum;
    made.total_ps = new_total_ps;
    made.estimated_ps = scaled(estimated_ps, new_total_ps, total_ps);
    made.clocked_ps = scaled(clocked_ps, new_total_ps, total_ps);
    return made;
}

const PricedOperators& PricedTable::at(const GroupKey& key) {
    if (const PricedOperators* found = groups_.find(key.packed())) return *found;
    missing.push_back(key);
    return kNothing;
}

PricedOperators PricedTable::between(OperatorGroup kind, std::int64_t tokens) {
    const Neighbours around(tokens);
    const PricedOperators& low = at({kind, around.low, 0});
    return around.beyond == 0 ? low : mixed(low, at({kind, around.high, 0}), around);
}

PricedOperators PricedTable::between(OperatorGroup kind, std::int64_t first, std::int64_t second) {
    const Neighbours around(first);
    if (first == second) {
        const PricedOperators& low = at({kind, around.low, around.low});
        return around.beyond == 0 ? low : mixed(low, at({kind, around.high, around.high}), around);
    }
    const PricedOperators low = along_second(kind, around.low, second);
    return around.beyond == 0 ? low : mixed(low, along_second(kind, around.high, second), around);
}

PricedOperators PricedTable::along_second(OperatorGroup kind, std::int64_t first, std::int64_t second) {
    const Neighbours around(second);
    const PricedOperators& low = at({kind, first, around.low});
    return around.beyond == 0 ? low : mixed(low, at({kind, first, around.high}), around);
}

}  // namespace aicb
