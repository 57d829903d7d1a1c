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

// FA3 does not split nearly as many tiles as there are SMs, nor few blocks of keys.
constexpr double kFullShare = 0.8, kFewBlocks = 4.0, kMostSplits = 128.0, kEfficiencyShare = 0.85;
// What a request may take of an SM's share of all blocks before it is split (flash_prepare_scheduler.cu).
constexpr double kBlocksMargin = 1.1;
constexpr double kUnitWidth = 256.0;

double wave_efficiency(double items, double sms) { return items / sms / std::ceil(items / sms); }

}  // namespace

const PrefillTile& PrefillReference::tile_of(double width) const {
    return *std::min_element(tiles.begin(), tiles.end(), [&](const PrefillTile& one, const PrefillTile& other) {
        return std::abs(one.width - width) < std::abs(other.width - width);
    });
}

double allowed_splits(double tiles, double blocks, double sms) {
    if (tiles >= kFullShare * sms || blocks <= kFewBlocks) return 1.0;
    const double most = std::min({kMostSplits, sms, blocks});
    double best = 0.0;
    for (double splits = 1.0; splits <= most; ++splits) {
        best = std::max(best, wave_efficiency(tiles * splits, sms));
    }
    double splits = 1.0;
    while (wave_efficiency(tiles * splits, sms) < kEfficiencyShare * best) ++splits;
    return splits;
}

PrefillReference::TileBlocks PrefillReference::blocks_of(const PrefillShape& shape, const PrefillTile& tile,
                                                         double rows) const {
    const auto up = [&](double keys) { return std::ceil(keys / tile.block_tokens); };
    const double tiles = std::ceil(shape.new_tokens * shape.sharing / rows), queries = rows / shape.sharing;
    const double past = shape.kv_tokens - shape.new_tokens;
    if (shape.kv_tokens <= shape.window) {
        const double first = up(past + std::min(shape.new_tokens, std::ceil(queries)));
        const double last = up(shape.kv_tokens);
        return {tiles, (first + last) / 2.0, first, last, last};
    }
    TileBlocks found{tiles, 0.0, up(shape.kv_tokens), 0.0, up(std::min(shape.kv_tokens, shape.window + rows))};
    for (double tile_number = 0.0; tile_number < tiles; ++tile_number) {
        const double begin = past + std::floor(tile_number * queries);
        const double end = past + std::min(shape.new_tokens, std::ceil((tile_number + 1.0) * queries));
        const double unseen = std::floor(std::max(begin - shape.window + 1.0, 0.0) / tile.block_tokens);
        const double blocks = up(end) - unseen;
        found.mean += blocks / tiles;
        found.least = std::min(found.least, blocks);
        found.most = std::max(found.most, blocks);
    }
    return found;
}

PrefillLoad PrefillReference::load(const PrefillShape* shapes, std::size_t count) const {
    const PrefillTile& tile = tile_of(shapes->width);
    double most_new = 0.0, all_blocks = 0.0, most_blocks = 0.0, most_tiles = 0.0;
    for (std::size_t i = 0; i < count; ++i) most_new = std::max(most_new, shapes[i].new_tokens);
    const double rows = most_new * shapes->sharing <= kFewRows ? kFewRows : tile.rows;
    for (std::size_t i = 0; i < count; ++i) {
        const TileBlocks own = blocks_of(shapes[i], tile, rows);
        const double tiles = shapes[i].kv_heads * own.tiles;
        all_blocks += tiles * own.loaded;
        most_tiles = std::max(most_tiles, tiles);
        most_blocks = std::max(most_blocks, own.loaded);
    }
    const double most = allowed_splits(most_tiles, most_blocks, sms);
    const double share = std::ceil(kBlocksMargin * all_blocks / sms);
    PrefillLoad found;
    found.least = std::numeric_limits<double>::infinity();
    found.may_split = most > 1.0;
    for (std::size_t i = 0; i < count; ++i) {
        const PrefillShape& shape = shapes[i];
        const TileBlocks own = blocks_of(shape, tile, rows);
        const double tiles = shape.kv_heads * own.tiles;
        const double splits = std::max(std::min(std::ceil(own.loaded / share), most), 1.0);
        found.tiles += tiles;
        found.items += tiles * splits;
        found.blocks += tiles * own.mean;
        found.least = std::min(found.least, own.least / splits);
        found.most = std::max(found.most, own.most / splits);
        if (splits > 1.0) {
            found.combined_rows += shape.kv_heads * shape.sharing * shape.new_tokens * std::log2(splits + 1.0);
        }
    }
    return found;
}

double PrefillReference::block_us(double width) const {
    const PrefillTile& tile = tile_of(width);
    return tile.block_share * 2.0 * width * tile.rows * tile.block_tokens / (peak_flops / sms) * 1e6;
}

double PrefillReference::item_us(double width, bool is_part) const {
    return tile_us + (tile_width_us + (is_part ? split_width_us : 0.0)) * width / kUnitWidth;
}

// SMs take one item after another, the longest first: what the last round leaves idle is as long as its short items.
double PrefillReference::makespan_us(const PrefillLoad& load, double width) const {
    const double block = block_us(width), item = item_us(width, load.items > load.tiles);
    const double idle_share = std::ceil(load.items / sms) - load.items / sms;
    const double together_us = (load.blocks * block + load.items * item) / sms;
    return std::max(load.most * block + item, together_us + idle_share * (load.least * block + item));
}

double PrefillReference::time_us(const PrefillShape* shapes, std::size_t count) const {
    const PrefillLoad found = load(shapes, count);
    const double alone_us = floor_us + makespan_us(found, shapes->width);
    if (!found.may_split) return alone_us;
    return alone_us + combine_us + combine_row_us * found.combined_rows * shapes->width / kUnitWidth;
}

// Octaves, but for how full the SMs are while items run.
std::array<double, 8> PrefillReference::coordinates(const PrefillShape& shape) const {
    constexpr double kMostWaves = 8.0;
    const PrefillLoad found = load(&shape, 1);
    const double busy_us =
        (found.blocks * block_us(shape.width) + found.items * item_us(shape.width, found.items > found.tiles)) / sms;
    return {std::log2(shape.new_tokens),
            std::log2(shape.kv_tokens / shape.new_tokens),
            std::log2(shape.kv_heads * shape.sharing),
            std::log2(shape.width),
            std::log2(shape.sharing),
            std::log2(std::min(found.tiles / sms, kMostWaves)),
            busy_us / makespan_us(found, shape.width),
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

PrefillShape PrefillTimes::shape_of(double kv_heads, const Request& request) const {
    const double sharing = static_cast<double>(geometry.heads) / static_cast<double>(geometry.kv_heads);
    return {kv_heads, sharing, geometry.width(), request.kv_tokens, request.new_tokens, window};
}

double PrefillTimes::modelled_us(double kv_heads, const Request& request) {
    const PrefillShape shape = shape_of(kv_heads, request);
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
    double pairs = 0.0, inside = 0.0, new_sum = 0.0, seen_sum = 0.0;
    bool is_equal = true, is_within = true;
    for (std::size_t i = 0; i < count; ++i) {
        const auto chunk = static_cast<double>(new_tokens[i]), kv = static_cast<double>(kv_tokens[i]);
        const double own = windowed_pairs(chunk, kv, window), seen = std::min(kv, window - 1.0 + chunk);
        requests_.push_back({chunk, kv, own});
        pairs += own;
        if (chunk >= least_new && chunk <= most_new && seen <= most_kv) inside += own;
        new_sum += chunk;
        seen_sum += seen;
        is_equal = is_equal && new_tokens[i] == new_tokens[0] && kv_tokens[i] == kv_tokens[0];
        is_within = is_within && kv <= window;
    }
    const auto kv_heads = static_cast<double>(geometry.kv_heads);
    Found found{0.0, false, is_estimate || transfer || inside / pairs < 0.5, {}};
    found.cost.flops = rates.flops_per_pair * pairs;
    found.cost.moved_bytes = seen_sum * rates.bytes_per_kv_token + new_sum * rates.bytes_per_new_token;
    const auto all = static_cast<double>(count);
    const Request& first = requests_.front();
    const double* known =
        is_equal && is_within ? measured(static_cast<std::int64_t>(count), first.kv_tokens, first.new_tokens) : nullptr;
    found.is_measured = known != nullptr;
    if (found.is_measured) {
        found.time_us = *known;
    } else if (!is_within) {
        found.time_us = windowed_us();
    } else if (is_equal) {
        found.time_us = modelled_us(kv_heads * all, first);
        if (count > 1) found.time_us = std::min(found.time_us, alone_us(first) * all);
    } else {
        found.time_us = unequal_us(pairs);
    }
    found.time_us = bounded_us(found.time_us, found.is_measured, found.cost);
    return found;
}

// The reference alone: windows have no measurements in the table.
double PrefillTimes::windowed_us() {
    shapes_.clear();
    for (const Request& request : requests_) {
        shapes_.push_back(shape_of(static_cast<double>(geometry.kv_heads), request));
    }
    return reference.time_us(shapes_.data(), shapes_.size());
}

double PrefillTimes::alone_us(const Request& request) {
    const double* known = measured(1, request.kv_tokens, request.new_tokens);
    return known ? *known : modelled_us(static_cast<double>(geometry.kv_heads), request);
}

// The reference of all requests together; corrections are those of each scaled to the whole batch, weighted by its
// share of the FLOPs. At most the requests one after another.
double PrefillTimes::unequal_us(double pairs) {
    const auto kv_heads = static_cast<double>(geometry.kv_heads);
    ExactSum factor, in_turn_us;
    shapes_.clear();
    for (const Request& request : requests_) {
        const double share = request.pairs / pairs;
        shapes_.push_back(shape_of(kv_heads, request));
        factor.add(share * correction(shape_of(kv_heads / share, request)));
        in_turn_us.add(alone_us(request));
    }
    return std::min(factor.value() * reference.time_us(shapes_.data(), shapes_.size()), in_turn_us.value());
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
