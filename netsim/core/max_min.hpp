// Max-min fair sharing, repaired after every change instead of solved again.
#pragma once

#include "movable_queue.hpp"
#include "rate_policy.hpp"

namespace netsim {

// Progressive filling (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2): the link with the smallest equal
// share saturates first and fixes its flows at that share; it is taken out with them, and so on. Ties go to the lower
// link number; a flow with a cap is fixed at the cap where the filling comes there first, as if it also crossed a link
// of its own of that capacity. Shares are whole units, rounded down, so allocations are always feasible. Where flows
// load links with weights, the share of a link is what is left of it over the weights of the flows that it fixes.
//
// The solution is characterised link by link. Call (share, link) the key of a link that fixes flows, infinite for one
// that fixes none. A flow's limiter is the smallest key on its way; to a link, the flow *offers* the smallest key
// elsewhere on its way. A link that fills by itself, its flows leaving at the keys they offer as soon as its own share
// is not below them, ends at a key. Where for every link this is the key it has, the keys are those of progressive
// filling, by induction over them: the smallest key is the first link to saturate, the next smallest the second.
//
// So after a change, only links where flows started or stopped, or where an offer below or at their key changed, are
// evaluated again, until all agree: rates that stay the same cost nothing. Evaluation goes in the order of keys, as the
// key of a link depends on smaller offers only; this makes it short, the result does not depend on it. Compare
// Ramalingam and Reps, "An incremental algorithm for a generalization of the shortest-path problem", 1996.
class MaxMin final : public RatePolicy {
  public:
    // Where `tolerance` is not 0, a link keeps its share while the right one differs by no more than this fraction. No
    // link then carries more than 1 + tolerance of its capacity, and the share of every link is within the tolerance of
    // the one that follows from the shares of the others.
    explicit MaxMin(std::size_t links, double tolerance = 0);

    void on_start(const ActiveFlows& flows, Slot slot) override;
    void on_stop(const ActiveFlows& flows, Slot slot) override;
    void on_capacity(const ActiveFlows& flows, LinkId link, Rate available) override;
    void reassign(const ActiveFlows& flows, Reassignment& changes) override;

  private:
    static constexpr Rate kInfinite = std::numeric_limits<Rate>::max();

    struct Key {
        Rate share;
        std::uint32_t rank;  // 0 for a cap, else the link number + 1
        auto operator<=>(const Key&) const = default;
    };
    static constexpr Key kNoKey{kInfinite, ~std::uint32_t{0}};
    // What a flow is offered elsewhere, with its weight on the link.
    struct Bid {
        Key key;
        std::uint32_t weight;
    };
    struct Offer {
        Key key;
        Limiter limiter;
    };
    // The share that a link should have, and whether its own flows are then known to stay the same.
    struct Target {
        Rate share;
        bool keeps_flows;
    };
    // Flows with this link as their limiter, or with none, are its own; the others load it with rates fixed elsewhere.
    struct alignas(64) LinkState {
        Work residual = 0;            // capacity less the load of flows fixed elsewhere; below 0 only in passing
        std::int64_t own_weight = 0;  // of its own flows
        std::int64_t weight = 0;      // of all flows
        Rate fixed_up_to = 0;         // no flow fixed elsewhere has a larger rate
        Rate own_from = kInfinite;    // none of its own flows is offered less
        Rate queued_at = kInfinite;   // where it is in the queue, if it is
        bool is_touched = false;      // listed in touched_
    };

    Key key_of(const ActiveFlows& flows, Limiter limiter, Slot slot) const;
    Offer best_offer(const ActiveFlows& flows, Slot slot, LinkId except) const;
    void touch(LinkId link);
    void enqueue_touched(const ActiveFlows& flows);
    bool is_right(Rate share, Rate target) const;
    Rate lower_bound(const ActiveFlows& flows, LinkId link) const;
    void visit(const ActiveFlows& flows, LinkId link, Rate front);
    Target evaluate(const ActiveFlows& flows, LinkId link);
    Rate fill_alone(const ActiveFlows& flows, LinkId link, Rate at_least);
    void set_share(const ActiveFlows& flows, LinkId link, Target target);
    void refill(const ActiveFlows& flows, LinkId link, Key old, Key key);
    void refill_same_flows(const ActiveFlows& flows, LinkId link, Rate old_share, Rate share);
    void limit(const ActiveFlows& flows, Slot slot, Limiter from, Rate old_rate, Limiter to, Rate new_rate);
    void set_limiter(Slot slot, Limiter limiter);
    void enqueue(LinkId link, Rate at);
    void dequeue(LinkId link);

    double tolerance_;
    std::vector<LinkState> links_;
    std::vector<Rate> shares_;                  // [links] kInfinite where no flow has the link as its limiter
    std::vector<std::vector<Slot>> own_flows_;  // [links] that have the link as their limiter
    std::vector<Limiter> limiters_;             // [slots]
    std::vector<std::uint32_t> own_position_;   // [slots] among the flows of the limiter, where that is a link
    std::vector<LinkId> touched_;               // to be put into the queue
    MovableQueue queue_;            // of links, by the smaller of the share they have and what they will have at least
    std::vector<Bid> bids_;         // to the link being evaluated
    std::vector<Slot> moved_;       // flows that started or got another limiter in this instant
    std::vector<LinkId> refilled_;  // links that got another share
};

}  // namespace netsim
