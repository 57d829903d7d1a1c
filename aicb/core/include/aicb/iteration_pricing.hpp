// What an event loop in C++ calls to price the iterations of one pipeline stage.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace aicb {

using TimePs = std::int64_t;

// The batches of the data-parallel ranks of one instance in one iteration; a view.
struct RankBatches {
    const std::int64_t* new_tokens;  // [requests of all ranks], one rank after another; nullptr: one each (decodes)
    const std::int64_t* kv_tokens;   // [requests of all ranks] past and new tokens
    const std::int64_t* requests;    // [ranks] 0: the rank idles
    const std::int64_t* logit_rows;  // [ranks]
    std::size_t ranks;
};

constexpr std::size_t kPhases = 6;  // aicb.iteration.pricing.PHASES

// Host time of one iteration: up to its first kernel, and from there to where its result can be waited for.
struct HostWork {
    TimePs prepare_ps = 0, launch_ps = 0;
    TimePs hand_over_ps = 0;  // part of preparing before the iteration reaches workers of their own

    TimePs total_ps() const { return prepare_ps + launch_ps; }
    // From one iteration to the next: workers launch one while the next is handed over to them.
    TimePs period_ps() const { return total_ps() - hand_over_ps; }
};

// Of one iteration without its communication, as far as it occupies the device: aicb.iteration.pricing.IterationCost
// says what the times are.
struct IterationCost {
    TimePs compute_ps, host_ps, estimated_ps;
    HostWork host;
    std::array<TimePs, kPhases> phase_ps;
    std::int32_t estimated;       // number of the set of operators that are estimates, see IterationModel.estimated_of
    std::int32_t communications;  // number of the list of collectives, see IterationModel.communications_of
};

class IterationPricing {
  public:
    virtual ~IterationPricing() = default;

    // Prices `steps` consecutive iterations of unchanged decodes (in step j every request attends to j more tokens), or
    // one iteration with prefills. `first` is the cost of the first; `compute_ps` becomes [steps].
    // False where parts have not been priced yet: IterationModel.price_missing prices them, then ask again.
    virtual bool price(const RankBatches& batches, std::int64_t steps, IterationCost& first,
                       std::vector<TimePs>& compute_ps) = 0;

    // Host time of an iteration.
    virtual HostWork host_work(const RankBatches& batches) = 0;
};

}  // namespace aicb
