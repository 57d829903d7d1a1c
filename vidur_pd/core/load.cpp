#include "load.hpp"

#include <algorithm>
#include <utility>

namespace serving {

void RankLoad::count_in(Loads loads, std::size_t instance) {
    ensure(!loads_, "a rank belongs to one instance");
    loads_ = std::move(loads);
    instance_ = instance;
}

void RankLoad::enter(Request& request, Tokens outstanding, Tokens context) {
    request.outstanding_tokens = 0;
    set_outstanding(request, outstanding);
    request.assigned_tokens = context;
    context_tokens_ += context;
}

void RankLoad::leave(Request& request) {
    set_outstanding(request, 0);
    context_tokens_ -= std::exchange(request.assigned_tokens, 0);
}

void RankLoad::set_outstanding(Request& request, Tokens outstanding) {
    outstanding_tokens_ += outstanding - std::exchange(request.outstanding_tokens, outstanding);
}

void RankLoad::compute(Request& request, Tokens tokens) {
    set_outstanding(request, std::max<Tokens>(request.outstanding_tokens - tokens, 0));
}

void RankLoad::publish(std::int64_t waiting, std::int64_t running) {
    const Load load{4 * waiting + running, outstanding_tokens_ + (counts_context_ ? context_tokens_ : 0)};
    if (loads_) {
        Load& instance = loads_->at(instance_);
        instance.requests += load.requests - load_.requests;
        instance.tokens += load.tokens - load_.tokens;
    }
    load_ = load;
}

}  // namespace serving
