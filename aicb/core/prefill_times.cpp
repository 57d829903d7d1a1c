#include "prefill_times.hpp"

#include <algorithm>
#include <cmath>

#include "transfer.hpp"

namespace aicb {

namespace {

constexpr double kGridPerOctave = 16.0;  // aicb.kernels.fitting.surface.on_grid

std::int64_t grid_number(double value) {
    return static_cast<std::int64_t>(std::nearbyint(std::log2(value) * kGridPerOctave));
}

double grid_value(std::int64_t number) { return std::exp2(static_cast<double>(number) / kGridPerOctave); }

// Equal requests, as a key: contexts stay below 2^24 tokens.
std::uint64_t packed(std::int64_t requests, std::int64_t kv_tokens, std::int64_t new_tokens) {
    return static_cast<std::uint64_t>(requests) << 48 | static_cast<std::uint64_t>(kv_tokens) << 24 |
           static_cast<std::uint64_t>(new_tokens);
}

// Sum with a running compensation (Neumaier): the order of requests must not matter.
class ExactSum {
  public:
    void add(double value) {
        const double sum = sum_ + value;
        lost_ += std::abs(sum_) >= std::abs(value) ? (sum_ - sum) + value : (value - sum) + sum_;
        sum_ = sum;
    }
    double value() const { return sum_ + lost_; }

  private:
    double sum_ = 0.0, lost_ = 0.0;
};

}  // namespace

// Of `tile_rows` rows, queries times the query heads that share a KV head.
double PrefillReference::tiles(const PrefillShape& shape) const {
    return shape.kv_heads * std::ceil(shape.new_tokens * shape.sharing / tile_rows);
}

double PrefillReference::time_us(const PrefillShape& shape) const {
    const double row_us = 2.0 * shape.width / peak_flops * 1e6;
    const double keys = std::max(shape.kv_tokens - shape.new_tokens / 2, 64.0) + 64.0;
    const double tiled_us = tiled_share * row_us * tiles(shape) * tile_rows * keys;
    const double cache_us =
        cache_share * element_bytes * shape.kv_tokens * shape.kv_heads * shape.width / bytes_per_s * 1e6;
    const double longest_us = longest_share * row_us * tile_rows * shape.kv_tokens * sms;
    const double busy_us =
        std::pow(std::pow(tiled_us, norm) + std::pow(cache_us, norm) + std::pow(longest_us, norm), 1.0 / norm);
    const double alone_us = floor_us + busy_us + wave_us * std::ceil(tiles(shape) / sms);
    return alone_us * (1.0 + throttling * std::log1p(alone_us / throttling_us));
}

// Octaves, but for how full the last of few waves is.
std::array<double, 8> PrefillReference::coordinates(const PrefillShape& shape) const {
    constexpr double kFewWaves = 6.0, kMostWaves = 8.0;
    const double waves = tiles(shape) / sms;
    return {std::log2(shape.new_tokens),
            std::log2(shape.kv_tokens / shape.new_tokens),
            std::log2(shape.kv_heads * shape.sharing),
            std::log2(shape.width),
            std::log2(shape.sharing),
            std::log2(std::min(waves, kMostWaves)),
            waves < kFewWaves ? waves / std::ceil(waves) : 1.0,
            std::log2(shape.kv_tokens)};
}

void PrefillTimes::insert_measured(std::int64_t requests, std::int64_t kv_tokens, std::int64_t new_tokens,
                                   double time_us) {
    measured_.insert(packed(requests, kv_tokens, new_tokens), time_us);
}

const double* PrefillTimes::measured(std::int64_t requests, double kv_tokens, double new_tokens) const {
    return measured_.find(
        packed(requests, static_cast<std::int64_t>(kv_tokens), static_cast<std::int64_t>(new_tokens)));
}

double PrefillTimes::modelled_us(double kv_heads, const Request& request) {
    const double sharing = static_cast<double>(geometry.heads) / static_cast<double>(geometry.kv_heads);
    const PrefillShape shape{kv_heads, sharing, geometry.width(), request.kv_tokens, request.new_tokens};
    return reference.time_us(shape) * correction(shape);
}

// That of the nearest place on a grid: utilisation varies far more slowly, and prices are many.
double PrefillTimes::correction(const PrefillShape& shape) {
    const std::int64_t heads_number = grid_number(shape.kv_heads * shape.sharing);
    const std::int64_t new_number = grid_number(shape.new_tokens);
    const std::int64_t kv_number = std::max(grid_number(shape.kv_tokens), new_number);
    const std::uint64_t place = static_cast<std::uint64_t>(heads_number) << 40 |
                                static_cast<std::uint64_t>(kv_number) << 20 | static_cast<std::uint64_t>(new_number);
    if (const double* known = corrections_.find(place)) return *known;
    const double kv_heads = grid_value(heads_number) / shape.sharing;
    const auto coordinates =
        reference.coordinates({kv_heads, shape.sharing, shape.width, grid_value(kv_number), grid_value(new_number)});
    const double factor = std::exp(residuals->at(coordinates.data()));
    corrections_.insert(place, factor);
    return factor;
}

PrefillTimes::Found PrefillTimes::of(const std::int64_t* new_tokens, const std::int64_t* kv_tokens, std::size_t count) {
    requests_.clear();
    double pairs = 0.0, inside = 0.0, new_sum = 0.0, kv_sum = 0.0;
    bool is_equal = true;
    for (std::size_t i = 0; i < count; ++i) {
        const auto chunk = static_cast<double>(new_tokens[i]), kv = static_cast<double>(kv_tokens[i]);
        const double own = causal_pairs(chunk, kv);
        requests_.push_back({chunk, kv, own});
        pairs += own;
        if (chunk >= least_new && chunk <= most_new && kv <= most_kv) inside += own;
        new_sum += chunk;
        kv_sum += kv;
        is_equal = is_equal && new_tokens[i] == new_tokens[0] && kv_tokens[i] == kv_tokens[0];
    }
    const auto kv_heads = static_cast<double>(geometry.kv_heads);
    Found found{0.0, false, is_estimate || transfer || inside / pairs < 0.5, {}};
    found.cost.flops = rates.flops_per_pair * pairs;
    found.cost.moved_bytes = kv_sum * rates.bytes_per_kv_token + new_sum * rates.bytes_per_new_token;
    const auto all = static_cast<double>(count);
    const Request& first = requests_.front();
    const double* known =
        is_equal ? measured(static_cast<std::int64_t>(count), first.kv_tokens, first.new_tokens) : nullptr;
    found.is_measured = known != nullptr;
    if (found.is_measured) {
        found.time_us = *known;
    } else if (is_equal) {
        found.time_us = modelled_us(kv_heads * all, first);
        if (count > 1) found.time_us = std::min(found.time_us, alone_us(first) * all);
    } else {
        found.time_us = unequal_us(pairs);
    }
    found.time_us = bounded_us(found.time_us, found.is_measured, found.cost);
    return found;
}

double PrefillTimes::alone_us(const Request& request) {
    const double* known = measured(1, request.kv_tokens, request.new_tokens);
    return known ? *known : modelled_us(static_cast<double>(geometry.kv_heads), request);
}

// Each request scaled to the whole batch, weighted by its share of the FLOPs; at most the requests one after another.
double PrefillTimes::unequal_us(double pairs) {
    ExactSum together_us, in_turn_us;
    for (const Request& request : requests_) {
        const double share = request.pairs / pairs;
        together_us.add(share * modelled_us(static_cast<double>(geometry.kv_heads) / share, request));
        in_turn_us.add(alone_us(request));
    }
    return std::min(together_us.value(), in_turn_us.value());
}

double PrefillTimes::bounded_us(double time_us, bool is_measured, const PrefillCost& cost) const {
    if (!is_measured || !keeps_measured) {
        const bool is_resident = cost.moved_bytes <= bound.resident_bytes;
        const double memory_s = is_resident ? 0.0 : cost.moved_bytes / bound.bytes_per_s;
        time_us = std::max(time_us, std::max(cost.flops / bound.peak_flops, memory_s) * 1e6);
    }
    if (transfer) {
        const auto parts = [&](double latency_us, double flops, double bytes_per_s) {
            return TransferParts{latency_us, cost.flops / flops * 1e6, cost.moved_bytes / bytes_per_s * 1e6};
        };
        const TransferParts origin =
            parts(transfer->origin_latency_us, transfer->origin_flops, transfer->origin_bytes_per_s);
        const TransferParts target =
            parts(transfer->target_latency_us, transfer->target_flops, transfer->target_bytes_per_s);
        const double least_us =
            1e6 * std::max(cost.flops / transfer->peak_flops, cost.moved_bytes / transfer->bytes_per_s);
        time_us = std::max(transferred_us(time_us, origin, target), least_us);
    }
    return time_us;
}

}  // namespace aicb
