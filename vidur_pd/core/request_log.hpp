// What has become of requests, as columns: a request is forgotten once its row is written.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "request.hpp"

namespace serving {

constexpr std::int64_t kNever = -1;  // in a column of times, bytes or instances: does not apply

// [requests] in the order of their ends.
struct RequestColumns {
    std::vector<std::int64_t> index, cached_tokens, resident_tokens, context_tokens, generated_tokens, preemptions,
        restarts, status, prefill_instance, decode_instance, kv_bytes;
    std::vector<std::int64_t> scheduled_ps, prefill_completed_ps, kv_sent_ps, kv_arrived_ps;
    std::vector<std::int64_t> first_token_ps, last_token_ps, completed_ps;
    std::vector<std::int64_t> prefill_compute_ps, prefill_communication_ps, decode_compute_ps, decode_communication_ps;
    std::vector<std::pair<std::int64_t, std::string>> reasons;  // (index, why it was rejected or failed)
};

class RequestLog {
  public:
    void add(const Request& request) {
        const auto or_never = [](const std::optional<std::int64_t>& value) { return value.value_or(kNever); };
        ++ended_;
        rows_.index.push_back(request.index);
        rows_.cached_tokens.push_back(request.cached_tokens);
        rows_.resident_tokens.push_back(request.resident_tokens);
        rows_.context_tokens.push_back(request.context_tokens);
        rows_.generated_tokens.push_back(request.generated_tokens);
        rows_.restarts.push_back(request.restarts);
        rows_.preemptions.push_back(request.preemptions);
        rows_.status.push_back(static_cast<std::int64_t>(request.status));
        rows_.prefill_instance.push_back(or_never(request.prefill_instance));
        rows_.decode_instance.push_back(or_never(request.decode_instance));
        rows_.kv_bytes.push_back(or_never(request.kv_bytes));
        rows_.scheduled_ps.push_back(or_never(request.scheduled_ps));
        rows_.prefill_completed_ps.push_back(or_never(request.prefill_completed_ps));
        rows_.kv_sent_ps.push_back(or_never(request.kv_sent_ps));
        rows_.kv_arrived_ps.push_back(or_never(request.kv_arrived_ps));
        rows_.first_token_ps.push_back(or_never(request.first_token_ps));
        rows_.last_token_ps.push_back(or_never(request.last_token_ps));
        rows_.completed_ps.push_back(or_never(request.completed_ps));
        rows_.prefill_compute_ps.push_back(request.prefill_time.compute_ps);
        rows_.prefill_communication_ps.push_back(request.prefill_time.communication_ps);
        rows_.decode_compute_ps.push_back(request.decode_time.compute_ps);
        rows_.decode_communication_ps.push_back(request.decode_time.communication_ps);
        if (request.status_reason) rows_.reasons.emplace_back(request.index, *request.status_reason);
    }

    // Requests that have ended so far.
    std::int64_t ended() const { return ended_; }
    // Rows that have not been taken.
    std::int64_t size() const { return static_cast<std::int64_t>(rows_.index.size()); }
    // Takes the rows written so far.
    RequestColumns take() { return std::exchange(rows_, {}); }

  private:
    std::int64_t ended_ = 0;
    RequestColumns rows_;
};

}  // namespace serving
