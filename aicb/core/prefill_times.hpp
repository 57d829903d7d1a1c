// Times of FA3 prefills of one geometry: a reference for the kernel, corrected by remembered values of its surface.
//
// aicb/kernels/prefill_attention.py says how a batch of unequal requests is priced.
#pragma once

#include <aicb/flat_map.hpp>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "key_span.hpp"
#include "kriging.hpp"

namespace aicb {

// Equal requests in one kernel, or one that stands for a share of a batch.
struct PrefillShape {
    double kv_heads;  // of all requests together
    double sharing;   // query heads per KV head
    double width;     // dimensions of keys and values
    double kv_tokens, new_tokens;
};

// The model that measurements correct, with its constants on one GPU.
struct PrefillReference {
    double floor_us, wave_us;
    double tiled_share, cache_share, longest_share, norm;
    double throttling, throttling_us;
    double tile_rows;
    double peak_flops, bytes_per_s, element_bytes, sms;

    double time_us(const PrefillShape& shape) const;
    // Of the residuals.
    std::array<double, 8> coordinates(const PrefillShape& shape) const;

  private:
    double tiles(const PrefillShape& shape) const;
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
    const double* measured(std::int64_t requests, double kv_tokens, double new_tokens) const;
    double bounded_us(double time_us, bool is_measured, const PrefillCost& cost) const;

    FlatMap<double> measured_;
    FlatMap<double> corrections_;  // factors of the reference met so far, by the place on the grid
    std::vector<Request> requests_;
};

}  // namespace aicb
