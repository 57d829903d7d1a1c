// Composition of an iteration of one pipeline stage from its groups, as aicb/iteration/model.py describes it.
#pragma once

#include <aicb/flat_map.hpp>
#include <aicb/iteration_pricing.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "attention.hpp"
#include "clock.hpp"
#include "priced_operators.hpp"

namespace aicb {

// Host times of one stage (aicb.iteration.host.HostModel), and what launches cost the device.
struct HostTimes {
    TimePs step_ps;                                      // of the device: kernels besides those of layers and head
    TimePs gaps_ps;                                      // of the device: between the kernels of graphs
    TimePs prepare_ps, prompt_ps, token_ps, request_ps;  // preparing: always, with prompts, by their tokens, by request
    TimePs hand_over_ps;                                 // handing over to workers, part of `prepare_ps`
    TimePs full_ps, piecewise_ps, eager_ps;              // launching and sampling

    TimePs prepare(std::int64_t tokens, std::int64_t requests, bool is_decode) const {
        return prepare_ps + request_ps * requests + (is_decode ? 0 : prompt_ps + token_ps * tokens);
    }
};

// How the ranks of a stage run an iteration.
struct StageRules {
    // Rising; batches up to the last are padded to one of them. Of decodes alone, and of batches with prompts.
    std::vector<std::int64_t> graph_sizes, prompt_graph_sizes;
    bool replays_divided;  // also where some ranks have prompts and others decodes alone
    bool shares_experts;   // the ranks' tokens meet in the experts
    HostTimes host;
    std::optional<ClockLaw> clock, settled_clock;  // with prompts, of decodes alone
};

// InternTable of sets of estimated operators and of lists of collectives, shared by the stages of a model.
class InternTable {
  public:
    struct Collectives {
        std::int32_t tokens, experts, head;  // lists one after another
    };

    std::int32_t of_estimated(std::uint64_t names);
    std::int32_t of_communications(const Collectives& lists);
    std::uint64_t estimated(std::int32_t number) const { return estimated_.at(static_cast<std::size_t>(number)); }
    const Collectives& communications(std::int32_t number) const {
        return communications_.at(static_cast<std::size_t>(number));
    }

  private:
    FlatMap<std::int32_t> estimated_numbers_, communication_numbers_;
    std::vector<std::uint64_t> estimated_;
    std::vector<Collectives> communications_;
};

// What the ranks of an iteration compute: decodes alone, or decodes alone on some ranks and prompts on others.
struct Phases {
    bool is_decode, is_divided;
};

// Attention of the ranks in consecutive iterations whose kernels are timed elsewhere.
struct TimedAttention {
    struct RankAttention {
        std::int64_t tokens;      // of the rank's batch
        PricedOperators prompts;  // prefills and what else does not read the cache of decodes
        std::vector<TimedKernel> decodes;
    };
    std::vector<RankAttention> ranks;
    std::int64_t steps;
    std::int64_t most_requests;  // of a rank
    std::int64_t logit_rows;
    Phases phases;
};

class StagePricing final : public IterationPricing {
  public:
    StagePricing(StageRules rules, StageAttention attention, std::shared_ptr<InternTable> numbers)
        : attention(std::move(attention)), rules_(std::move(rules)), interned_(std::move(numbers)) {}

    bool price(const RankBatches& batches, std::int64_t steps, IterationCost& first,
               std::vector<TimePs>& compute_ps) override;
    HostWork host_work(const RankBatches& batches) override;

    // Each decode computes so many queries; `rows` of logits.
    bool price_queries(const RankBatches& batches, std::int64_t steps, std::int64_t queries, std::int64_t rows,
                       IterationCost& first, std::vector<TimePs>& compute_ps);

    // The same with attention that is timed elsewhere.
    bool price_timed(const TimedAttention& timed, IterationCost& first, std::vector<TimePs>& compute_ps);

    PricedTable groups;
    StageAttention attention;

  private:
    struct Padding {
        bool is_captured;
        std::int64_t tokens;  // of every rank where captured
        TimePs launch_ps;
    };
    Padding pad(std::int64_t most_tokens, Phases phases) const;
    HostWork host_work(std::int64_t most_tokens, std::int64_t most_requests, Phases phases) const;
    std::int64_t padded(const Padding& padding, std::int64_t tokens) const;
    Phases split(const RankBatches& batches);
    struct Shared {
        std::int64_t group_tokens;   // of all ranks, padded
        std::int64_t most_tokens;    // of a rank
        std::int64_t most_requests;  // of a rank
        std::int64_t rows;
        Phases phases;
    };
    PricedOperators token_group(const Padding& padding, std::int64_t tokens);
    PricedOperators other_decode_kernels(const Padding& padding, std::int64_t tokens, bool is_decode);
    void price_rank(std::size_t rank, const Padding& padding, std::int64_t queries, bool is_decode);
    bool finish(const Padding& padding, const Shared& shared, IterationCost& first, std::vector<TimePs>& compute_ps);
    void keep_slower(std::size_t rank);
    PricedOperators common(const Padding& padding, const Shared& shared, InternTable::Collectives& lists);
    TimePs at_clock(const ClockLaw& law, std::size_t step, TimePs added_ps, TimePs host_ps) const;

    StageRules rules_;
    std::shared_ptr<InternTable> interned_;

    // Requests of the ranks in this iteration, prefills apart from decodes.
    struct Rank {
        std::size_t decodes_begin, decodes, prefills_begin, prefills;
        std::int64_t tokens;
    };
    std::vector<Rank> ranks_;
    std::vector<std::int64_t> decode_kv_, prefill_new_, prefill_kv_;
    StepLoads loads_, slowest_;
    PricedOperators first_, slowest_first_;  // of a rank in the first step
};

}  // namespace aicb
