// Times of FA3 prefills of one geometry: a reference for the kernel, corrected by remembered values of its surface.
//
// aicb/kernels/prefill_attention.py says how a batch of unequal requests is priced.
#pragma once

#include <aicb/flat_map.hpp>
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "key_span.hpp"
#include "kriging.hpp"

namespace aicb {

inline constexpr double kNoWindow = std::numeric_limits<double>::infinity();

// Equal requests in one kernel, or one that stands for a share of a batch.
struct PrefillShape {
    double kv_heads;  // of all requests together
    double sharing;   // query heads per KV head
    double width;     // dimensions of keys and values
    double kv_tokens, new_tokens;
    double window = kNoWindow;  // keys that a query sees at most
};

// Rows up to which a tile of FA3 has these, where all queries of a KV head fit.
inline constexpr double kFewRows = 64.0;

// Parts that the heuristic of FA3 (hopper/heuristics.h) allows a request, by the tiles of all KV heads and the blocks
// of keys of the largest.
double allowed_splits(double tiles, double blocks, double sms);

// Tiles of FA3 for keys and values of so many dimensions together: query rows, and keys of a block.
struct PrefillTile {
    double width;
    double rows, block_tokens;
    double block_share;  // a block's time over that of its FLOPs at the peak of an SM
};

// What the requests of a kernel make of tiles, in blocks of keys.
struct PrefillLoad {
    double tiles = 0.0;              // of all requests and KV heads
    double items = 0.0;              // the same, those that are split counted as often
    double blocks = 0.0;             // of all tiles together
    double least = 0.0, most = 0.0;  // of an item
    bool may_split = false;
    double combined_rows = 0.0;  // of outputs that are put together, times the octaves of their parts
};

// The model that measurements correct, with its constants on one GPU: aicb/kernels/prefill_attention.py.
struct PrefillReference {
    double floor_us;
    double tile_us, tile_width_us, split_width_us;  // of an item; of 256 dimensions; the same where it is a part
    double combine_us, combine_row_us;
    std::vector<PrefillTile> tiles;
    double peak_flops, sms;

    double time_us(const PrefillShape& shape) const { return time_us(&shape, 1); }
    // Requests in one kernel, of one geometry.
    double time_us(const PrefillShape* shapes, std::size_t count) const;
    // Of the residuals.
    std::array<double, 8> coordinates(const PrefillShape& shape) const;

  private:
    // Blocks of keys of a request's tiles, of one KV head.
    struct TileBlocks {
        double tiles, mean, least, most;
        double loaded;  // that the heuristic of splits counts
    };
    TileBlocks blocks_of(const PrefillShape& shape, const PrefillTile& tile, double rows) const;
    const PrefillTile& tile_of(double width) const;
    PrefillLoad load(const PrefillShape* shapes, std::size_t count) const;
    double block_us(double width) const;
    double item_us(double width, bool is_part) const;
    double makespan_us(const PrefillLoad& load, double width) const;
};

struct PrefillGeometry {
    std::int64_t heads, kv_heads, d_qk, d_v;
    double width() const { return static_cast<double>(d_qk + d_v); }
};

// FLOPs and bytes of a kernel, as aicb.kernels.prefill_attention states them.
struct PrefillRates {
    double flops_per_pair;  // of a query and a key
    double bytes_per_kv_token;
    double bytes_per_new_token;  // queries and results
};

// FLOPs and bytes of a batch.
struct PrefillCost {
    double flops = 0.0;
    double moved_bytes = 0.0;
};

// (query, key) pairs under a causal mask aligned at the end.
inline double causal_pairs(double new_tokens, double kv_tokens) {
    return new_tokens * (kv_tokens - new_tokens) + new_tokens * (new_tokens + 1.0) / 2.0;
}

// The same where a query sees its own key and `window − 1` before it.
inline double windowed_pairs(double new_tokens, double kv_tokens, double window) {
    const double growing = std::min(std::max(window - (kv_tokens - new_tokens), 0.0), new_tokens);
    return causal_pairs(growing, kv_tokens - new_tokens + growing) +
           (growing < new_tokens ? (new_tokens - growing) * window : 0.0);
}

// Peaks of the GPU that the times are measured on.
struct PrefillBound {
    double peak_flops, bytes_per_s;
    double resident_bytes;  // operands up to this need not cross the memory bus
};

// Scaling of a measured time to another GPU (aicb.estimators.transfer); shares of the peaks are applied already.
struct PrefillTransfer {
    double origin_latency_us, target_latency_us;
    double origin_flops, origin_bytes_per_s;
    double target_flops, target_bytes_per_s;
    double peak_flops, bytes_per_s;  // nominal, of the target
};

class PrefillTimes {
  public:
    PrefillGeometry geometry{};
    PrefillReference reference{};
    PrefillRates rates{};
    double least_new = 0.0, most_new = 0.0, most_kv = 0.0;  // beyond these a request is an estimate
    double window = kNoWindow;                              // keys that a query sees at most
    bool is_estimate = false;    // the geometry is far from all measured ones, or the number format is another one
    bool keeps_measured = true;  // measured times may lie below the roofline
    PrefillBound bound{};
    std::optional<PrefillTransfer> transfer;
    std::shared_ptr<const Kriging> residuals;  // of the reference

    // Time of `requests` equal requests that was measured.
    void insert_measured(std::int64_t requests, std::int64_t kv_tokens, std::int64_t new_tokens, double time_us);

    struct Found {
        double time_us;
        bool is_measured;
        bool is_estimate;
        PrefillCost cost;
    };
    // One batch.
    Found of(const std::int64_t* new_tokens, const std::int64_t* kv_tokens, std::size_t count);
    Found of(const PromptRequests& requests) {
        return of(requests.new_tokens.data(), requests.kv_tokens.data(), requests.new_tokens.size());
    }

  private:
    struct Request {
        double new_tokens, kv_tokens, pairs;
    };
    double modelled_us(double kv_heads, const Request& request);
    double correction(const PrefillShape& shape);
    double alone_us(const Request& request);
    double unequal_us(double pairs);
    PrefillShape shape_of(double kv_heads, const Request& request) const;
    const double* measured(std::int64_t requests, double kv_tokens, double new_tokens) const;
    double bounded_us(double time_us, bool is_measured, const PrefillCost& cost) const;

    FlatMap<double> measured_;
    FlatMap<double> corrections_;  // factors of the reference met so far, by the place on the grid
    double windowed_us();

    std::vector<Request> requests_;
    std::vector<PrefillShape> shapes_;
};

}  // namespace aicb
