// The data-parallel ranks of one instance, which run in lockstep: one call per iteration for all of them.
#pragma once

#include <aicb/flat_map.hpp>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "frontend.hpp"
#include "policy.hpp"

namespace serving {

// Histogram of inter-token latencies, in requests per gap. Exact up to `kMostGaps` different gaps; beyond, gaps are
// rounded to one in 2^14 of their value, so that memory stays bounded.
class GapCounts {
  public:
    void add(TimePs gap_ps, std::int64_t requests) {
        requests_[static_cast<std::uint64_t>(is_rounding_ ? rounded(gap_ps) : gap_ps)] += requests;
        if (!is_rounding_ && requests_.size() > kMostGaps) round_all();
    }
    // (gaps, requests), rising gaps.
    std::pair<std::vector<TimePs>, std::vector<std::int64_t>> counts() const;

  private:
    static constexpr std::size_t kMostGaps = 4'000'000;  // our choice: 200 MB at most

    static TimePs rounded(TimePs gap_ps);
    void round_all();

    aicb::FlatMap<std::int64_t> requests_;
    bool is_rounding_ = false;
};

// Stamps tokens that a request gets, from the first of these to the last.
void get_tokens(Request& request, TimePs first_ps, TimePs last_ps, GapCounts& gaps);

// Batches of all ranks in one iteration; `batches` is [ranks], empty where a rank idles.
struct GroupBatch {
    std::vector<BatchPtr> batches;
    std::int64_t requests = 0;
    Tokens prefill_tokens = 0;
    Tokens decode_tokens = 0;
    Tokens most_drafts = 0;  // that one decode verifies
    Tokens most_tokens = 0;  // of a rank, drafts included

    // Sets the sums from the batches of the ranks.
    void sum_up();
};

// Requests that an iteration, or a run of them, has moved on.
struct GroupOutcome {
    std::vector<RequestPtr> prefilled;  // those whose prompt is done and whose KV is to be handed over
    std::vector<RequestPtr> completed;  // those that have got their last token
    std::vector<std::pair<std::int64_t, RequestPtr>> computed;  // rank, and a prompt that is done there: of tiers
    std::int64_t produced = 0;                                  // requests that got tokens which are delivered here
};

// End of the first step and of the last one, and how much later their tokens are handed out.
struct StepTimes {
    TimePs first_end_ps;
    TimePs last_end_ps;
    TimePs late_ps = 0;
};

class RankGroup {
  public:
    // Without a policy of the core Python decides, between `RankState::open_decision` and `schedule`.
    RankGroup(std::vector<std::shared_ptr<RankState>> ranks, std::shared_ptr<Policy> policy);

    // Counts gaps between tokens in `gaps` from now on.
    void count_gaps_in(std::shared_ptr<GapCounts> gaps) { gaps_ = std::move(gaps); }
    // Tokens reach clients through a frontend from now on; none: at once.
    void deliver_through(std::shared_ptr<Frontend> frontend) { frontend_ = std::move(frontend); }
    // [servers] tokens of each of them in a step that decodes every running request.
    std::vector<std::int64_t> tokens_of_servers() const { return frontend_->shares(running()); }

    // Whether Python has to decide: some rank has work and there is no policy of the core.
    bool asks_policy() const;

    // Whether some rank waits for loads from tiers that nobody has put on the network yet, or has evicted chunks that
    // somebody asks for.
    bool has_news_for_tiers() const;
    // Whether some rank has work.
    bool has_work() const;

    std::int64_t waiting_requests() const;
    std::int64_t running_requests() const;
    // On the rank with the most.
    std::int64_t most_running() const;
    std::int64_t used_blocks() const;
    // Iterations, at most `longest`, that could decode all running requests of all ranks; 0 if there are fewer than
    // two.
    std::int64_t plain_decode_steps(std::int64_t longest) const;
    // Whether the policy of the core would decide so in each of them.
    bool is_steady();
    // Appends the KV length that each running request's next decode sees; returns the requests of each rank.
    std::vector<std::int64_t> decode_kv_tokens(std::vector<Tokens>& kv_tokens) const;
    // Requests that run on any rank.
    std::vector<RequestPtr> running() const;
    std::size_t rank_count() const { return ranks_.size(); }
    // The next iteration is decided while one runs.
    bool plans_ahead() const { return ranks_.front()->limits().plans_ahead; }
    // The next micro-batch of every rank; none if all idle.
    std::shared_ptr<GroupBatch> schedule(TimePs now_ps);
    // The same, where each running request decodes one token.
    std::shared_ptr<GroupBatch> schedule_plain(TimePs now_ps);
    // The micro-batches start to run: stamps the requests that run for the first time.
    void begin(const GroupBatch& batch, TimePs now_ps);
    // Credits the tokens of an iteration and stamps its requests.
    GroupOutcome finish(const GroupBatch& batch, const DraftResults& results, StepTimes times);
    // The same for a run of steps that decode every running request; `passed` is what a frontend has taken of them.
    GroupOutcome advance_decode(std::int64_t steps, StepTimes times, const PassedSteps& passed);
    // Aborts an iteration; returns its requests, see `RankState::abandon`.
    std::vector<RequestPtr> abandon(const GroupBatch& batch);
    // Takes the requests that do not run any more out of what was to come next; false if nothing is left.
    bool keep_running_in(GroupBatch& batch);
    // Fails all ranks; returns the requests that ran or waited there, see `RankState::clear`.
    std::vector<RequestPtr> clear();

    // Total time of the group's iterations so far; requests count its growth from the batch on that they join.
    InstanceTime done;

  private:
    std::shared_ptr<GroupBatch> joined(std::vector<BatchPtr> batches) const;
    void deliver(const std::vector<RequestPtr>& produced, StepTimes times);

    std::vector<std::shared_ptr<RankState>> ranks_;
    std::shared_ptr<Policy> policy_;
    std::shared_ptr<GapCounts> gaps_;
    std::shared_ptr<Frontend> frontend_;
};

}  // namespace serving
