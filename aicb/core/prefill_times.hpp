// Times of FA3 prefills of one geometry: a reference for the kernel, corrected by remembered values of its surface.
//
// aicb/estimators/prefill_attention.py says how a batch of unequal requests is priced.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "flat_map.hpp"

namespace aicb {

// Constants of the reference model on one GPU.
struct PrefillReference {
    double floor_us, wave_us;
    double tiled_share, cache_share, longest_share, norm;
    double throttling, throttling_us;
    double tile_rows;
    double peak_flops, bytes_per_s, element_bytes, sms;

    // Heads and KV heads are those of all requests together.
    double time_us(double heads, double kv_heads, double width, double kv_tokens, double new_tokens) const;
};

struct PrefillGeometry {
    std::int64_t heads, kv_heads, d_qk, d_v;
    double width() const { return static_cast<double>(d_qk + d_v); }
};

// FLOPs and bytes of a batch.
struct PrefillDemand {
    double flops = 0.0;
    double moved_bytes = 0.0;
};

// Peaks of the GPU that the times are measured on.
struct PrefillBound {
    double peak_flops, bytes_per_s;
    double resident_bytes;  // operands up to this need not cross the memory bus
};

// Scaling of a measured time to another GPU (aicb.transfer); shares of the peaks are applied already.
struct PrefillTransfer {
    double latency_us;
    double origin_flops, origin_bytes_per_s;
    double target_flops, target_bytes_per_s;
    double peak_flops, bytes_per_s;  // nominal, of the target
};

// A shape on the grid of remembered corrections: 16 values per octave, value = 2^(number / 16).
struct GridShape {
    std::int64_t heads, kv_tokens, new_tokens;
    std::uint64_t packed() const;
};

class PrefillTimes {
  public:
    PrefillGeometry geometry{};
    PrefillReference reference{};
    double element_bytes = 2.0;                             // of queries, keys and values
    double least_new = 0.0, most_new = 0.0, most_kv = 0.0;  // beyond these a request is an estimate
    bool is_estimate = false;    // the geometry is far from all measured ones, or the number format is another one
    bool keeps_measured = true;  // measured times may lie below the roofline
    PrefillBound bound{};
    std::optional<PrefillTransfer> transfer;

    // Time of `requests` equal requests that was measured.
    void insert_measured(std::int64_t requests, std::int64_t kv_tokens, std::int64_t new_tokens, double time_us);
    // Factor of the reference at a shape.
    void insert_correction(const GridShape& shape, double factor) { corrections_.insert(shape.packed(), factor); }

    struct Found {
        double time_us;
        bool is_measured;
        bool is_estimate;
        PrefillDemand demand;
    };
    // One batch. Shapes whose corrections are not known are added to `missing`; the time then means nothing.
    Found of(const std::int64_t* new_tokens, const std::int64_t* kv_tokens, std::size_t count);

    std::vector<GridShape> missing;

  private:
    struct Request {
        double new_tokens, kv_tokens, pairs;
    };
    double modelled_us(double heads, double kv_heads, const Request& request);
    double alone_us(const Request& request);
    double unequal_us(double pairs);
    const double* measured(std::int64_t requests, double kv_tokens, double new_tokens) const;
    double bounded_us(double time_us, bool is_measured, const PrefillDemand& demand) const;

    FlatMap<double> measured_;
    FlatMap<double> corrections_;
    std::vector<Request> requests_;
};

}  // namespace aicb
