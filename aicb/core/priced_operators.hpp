// Priced operators that depend on the same integers, looked up by these.
#pragma once

#include <aicb/flat_map.hpp>
#include <aicb/iteration_pricing.hpp>
#include <array>
#include <cstdint>
#include <vector>

namespace aicb {

// aicb.iteration.pricing.PricedOperators.
struct PricedOperators {
    std::array<TimePs, kPhases> phase_ps{};
    TimePs total_ps = 0;
    TimePs estimated_ps = 0;
    TimePs clocked_ps = 0;
    TimePs tensor_ps = 0;
    std::uint64_t estimated = 0;      // one bit per name of an operator
    std::int32_t communications = 0;  // number of the list; 0 is the empty one

    // Times and estimates; the collectives stay those of this one.
    PricedOperators& operator+=(const PricedOperators& other);
    // The same kernels with so much exposed time, all phases in proportion.
    PricedOperators scaled_to(TimePs new_total_ps) const;
};

// Groups of operators, by what they depend on.
enum class OperatorGroup : std::uint8_t {
    kTokens,              // tokens of a rank
    kOtherDecodeKernels,  // tokens of a rank of decodes: kernels of attention that do not read the cache
    kMaskedExperts,       // most tokens of a rank, tokens of the group; decodes only
    kContiguousExperts,   // most tokens of a rank, tokens of the group
    kHead,                // rows
    kExpandedChunk,       // sums of tokens over the prefills of a rank
    kExpandedPast,
    kMerged,
    kRecurrentPrompts,  // tokens and requests of the prefills of a rank: linear attention
};

struct GroupKey {
    OperatorGroup kind;
    std::int64_t first;
    std::int64_t second;  // 0 where the kind depends on one integer

    std::uint64_t packed() const {
        return static_cast<std::uint64_t>(kind) << 60 | static_cast<std::uint64_t>(first) << 30 |
               static_cast<std::uint64_t>(second);
    }
};

// Counts of tokens that are priced with this one, itself among them: about `run` of those between which `PricedTable`
// interpolates. A count that is not one of those is priced alone.
std::vector<std::int64_t> priced_together(std::int64_t tokens, std::int64_t run);

// Groups of one stage. What is asked for and not there is noted in `missing` and counts nothing.
class PricedTable {
  public:
    void insert(const GroupKey& key, const PricedOperators& group) { groups_.insert(key.packed(), group); }
    const PricedOperators& at(const GroupKey& key);

    // Linear in the tokens between two of 64 grid points per octave, from the count after the lower one: both are
    // priced, and all counts below 256. Collectives are those of the nearest priced count, so that there are few.
    PricedOperators between(OperatorGroup kind, std::int64_t tokens);
    // The same in both integers; equal integers stay equal.
    PricedOperators between(OperatorGroup kind, std::int64_t first, std::int64_t second);

    std::vector<GroupKey> missing;

  private:
    PricedOperators along_second(OperatorGroup kind, std::int64_t first, std::int64_t second);

    FlatMap<PricedOperators> groups_;
};

}  // namespace aicb
