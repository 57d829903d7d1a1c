// What prices the iterations of one pipeline stage of an instance; other extensions include this header alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace aicb {

using TimePs = std::int64_t;

// The batches of the data-parallel ranks of one instance, requests of one rank after another: a view.
struct RankBatches {
    const std::int64_t* new_tokens;  // [requests of all ranks], nullptr: one each (decodes)
    const std::int64_t* kv_tokens;   // [requests of all ranks]
    const std::int64_t* requests;    // [ranks]
    const std::int64_t* logit_rows;  // [ranks]
    std::size_t ranks;
};

constexpr std::size_t kPhases = 6;  // aicb.pricing.PHASES

// Time of an iteration without its communication.
struct IterationCost {
    TimePs compute_ps, host_ps, estimated_ps;
    std::array<TimePs, kPhases> phase_ps;
    std::int32_t estimated;       // number of the set of operator names that are estimates
    std::int32_t communications;  // number of the list of collectives
};

class IterationPricing {
  public:
    virtual ~IterationPricing() = default;
    // Prices `steps` consecutive iterations of unchanged decodes, or one iteration with prefills (steps = 1): `first` is
    // the first of them, `compute_ps` is resized to [steps]. False where parts have not been priced yet: Python then
    // calls `supply` and asks again.
    virtual bool price(const RankBatches& batches, std::int64_t steps, IterationCost& first,
                       std::vector<TimePs>& compute_ps) = 0;
};

}  // namespace aicb
