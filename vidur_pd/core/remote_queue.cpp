#include "remote_queue.hpp"

#include <algorithm>

namespace serving {

void RemoteQueue::add(RequestPtr request) {
    request->status = Status::kWaiting;
    enqueue(pending_, std::move(request), by_priority_);
}

std::vector<RequestPtr> RemoteQueue::reserve(std::int64_t promised_blocks,
                                             const std::function<bool(const Request&)>& may_go) {
    std::vector<RequestPtr> reserved;
    while (!pending_.empty()) {
        const RequestPtr request = pending_.front();
        if (!may_go(*request)) break;
        const CachedPrefix prefix = pool_.cached_prefix(*request, request->context_tokens);
        if (pool_.blocks(request->context_tokens) - prefix.shared_blocks > pool_.free_blocks() - promised_blocks) break;
        pool_.allocate(*request, request->context_tokens, prefix);
        request->resident_tokens = prefix.tokens;
        request->status = Status::kTransferring;
        transferring_.insert(request->index);
        pending_.pop_front();
        reserved.push_back(request);
    }
    return reserved;
}

bool RemoteQueue::fits(const Request& request, std::int64_t promised_blocks) {
    const CachedPrefix prefix = pool_.cached_prefix(request, request.context_tokens);
    return pool_.blocks(request.context_tokens) - prefix.shared_blocks <= pool_.free_blocks() - promised_blocks;
}

bool RemoteQueue::may_share_more() const {
    return !pending_.empty() && pool_.cached_prefix(*pending_.front(), pending_.front()->context_tokens).may_share_more;
}

void RemoteQueue::prefer(const RequestPtr& request) {
    const auto found = std::find(pending_.begin(), pending_.end(), request);
    ensure(found != pending_.end(), "request " + request->request_id + " waits for no blocks");
    pending_.erase(found);
    pending_.push_front(request);
}

void RemoteQueue::retract(const RequestPtr& request) {
    ensure(transferring_.erase(request->index) == 1, "request " + request->request_id + " has reserved nothing");
    pool_.release(*request);
    add(request);
}

void RemoteQueue::abandon(const RequestPtr& request) {
    if (transferring_.erase(request->index) == 1) return pool_.release(*request);
    const auto found = std::find(pending_.begin(), pending_.end(), request);
    ensure(found != pending_.end(), "request " + request->request_id + " waits for no KV");
    pending_.erase(found);
}

void RemoteQueue::complete(const RequestPtr& request, Tokens computed_tokens) {
    ensure(transferring_.erase(request->index) == 1, "request " + request->request_id + " is not on its way");
    keep(request, computed_tokens);
}

void RemoteQueue::keep(const RequestPtr& request, Tokens computed_tokens) {
    const Tokens context = request->context_tokens;
    ensure(context - 1 <= computed_tokens && computed_tokens <= context, "neither the context nor all but one of it");
    request->set_progress(computed_tokens, computed_tokens - request->prompt_tokens + 1);
    ensure(request->generated_tokens < request->output_tokens,
           "request " + request->request_id + " has no token left to decode");
    request->status = Status::kWaiting;
    request->capacity_tokens = pool_.rounded_up(context);
    pool_.register_blocks(*request, computed_tokens);
    enqueue(arrived, request, by_priority_);
}

void RemoteQueue::load(const RequestPtr& request, const CachedPrefix& prefix) {
    pool_.allocate(*request, request->context_tokens, prefix);
    request->capacity_tokens = pool_.rounded_up(request->context_tokens);
    request->status = Status::kTransferring;
    transferring_.insert(request->index);
}

void RemoteQueue::loaded(const RequestPtr& request, Tokens computed_tokens) {
    ensure(transferring_.erase(request->index) == 1, "request " + request->request_id + " is not on its way");
    ensure(computed_tokens < request->context_tokens, "a token is left to compute");
    request->set_progress(computed_tokens, request->generated_tokens);
    request->status = Status::kWaiting;
    request->is_loaded = true;
    pool_.register_blocks(*request, computed_tokens);
    enqueue(arrived, request, by_priority_);
}

void RemoteQueue::clear() {
    pending_.clear();
    transferring_.clear();
    arrived.clear();
}

void RemoteQueue::drop_arrived(const RequestPtr& request) {
    pool_.release(*request);
    arrived.erase(std::find(arrived.begin(), arrived.end(), request));
}

}  // namespace serving
