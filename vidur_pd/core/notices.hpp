// Notices: what Python has to do before the loop goes on, one type each, with the objects that it is about.
#pragma once

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "instance.hpp"

namespace serving {

// An event of its own is due.
struct CallDue {
    std::int64_t number;
};
// The instance is about to schedule: remote requests may be admitted.
struct BeforeStep {
    InstancePtr instance;
};
// Policies in Python decide, or let the instance decode `steps` times (`Loop::decode_run`), if that is not 0.
struct DecideIteration {
    InstancePtr instance;
    std::int64_t steps;
};
// The iteration needs stages and compute times.
struct PriceIteration {
    InstancePtr instance;
    RunningIterationPtr iteration;
};
// An iteration has ended, and the host work of the batch that is next is asked for (`Loop::set_next_host`); without a
// batch all running requests decode.
struct PriceNextHost {
    InstancePtr instance;
    std::shared_ptr<GroupBatch> batch;
};
// The pricing of the instance lacks operators.
struct PriceOperators {
    InstancePtr instance;
};
// The instance lacks the price of a list of collectives.
struct PriceCollectives {
    InstancePtr instance;
    std::int64_t stage;
    std::int64_t number;
};
// The iteration needs times and the event that ends it.
struct LaunchIteration {
    InstancePtr instance;
    RunningIterationPtr iteration;
};
// The iteration has begun.
struct IterationLaunched {
    InstancePtr instance;
    RunningIterationPtr iteration;
};
// The iteration needs the drafts that its decodes keep (`Loop::set_accepted`).
struct AcceptDrafts {
    InstancePtr instance;
    RunningIterationPtr iteration;
};
// A prefill instance has computed the prompt of a request.
struct PromptPrefilled {
    RequestPtr request;
};
// An iteration is decided with which loads from tiers have begun on ranks of the instance (`RankState::take_loads`), or
// chunks have been evicted (`RankState::take_evicted`).
struct TiersDue {
    InstancePtr instance;
};
// The instance, whose ranks have tiers, has computed prompts.
struct PromptsComputed {
    InstancePtr instance;
    std::vector<std::pair<std::int64_t, RequestPtr>> prompts;  // with the rank of each
};
// An iteration has ended, and nothing waits to run on the instance (after `Traits::reports_rest`).
struct InstanceRests {
    InstancePtr instance;
};
// Requests have got their last tokens (after `Loop::report_completions`).
struct RequestsCompleted {
    std::vector<RequestPtr> requests;
};
// A flow graph has come to its end on the network, or failed.
struct GraphEnded {
    std::int64_t graph;
    bool is_failed;
};

using Notice = std::variant<CallDue, BeforeStep, DecideIteration, PriceIteration, PriceNextHost, PriceOperators,
                            PriceCollectives, LaunchIteration, IterationLaunched, AcceptDrafts, PromptPrefilled,
                            TiersDue, PromptsComputed, InstanceRests, RequestsCompleted, GraphEnded>;

}  // namespace serving
