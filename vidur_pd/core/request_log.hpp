// What has become of requests, as columns: a request is forgotten once its row is written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "request.hpp"

namespace serving {

constexpr std::int64_t kNever = -1;  // in a column of figures that may not apply

// [requests] in the order of their ends.
struct RequestColumns {
    std::vector<std::int64_t> index, status;
#define REQUEST_FIGURE(type, name, is_stage) std::vector<std::int64_t> name;
#include "request_figures.inc"
    std::vector<std::pair<std::int64_t, std::string>> reasons;  // (index, why it was rejected or failed)
};

class RequestLog {
  public:
    void add(const Request& request) {
        ++ended_;
        rows_.index.push_back(request.index);
        rows_.status.push_back(static_cast<std::int64_t>(request.status));
#define REQUEST_FIGURE(type, name, is_stage) rows_.name.push_back(or_never(request.name));
#include "request_figures.inc"
        if (request.status_reason) rows_.reasons.emplace_back(request.index, *request.status_reason);
    }

    // Requests that have ended so far.
    std::int64_t ended() const { return ended_; }
    // Rows that have not been taken.
    std::int64_t size() const { return static_cast<std::int64_t>(rows_.index.size()); }
    // Takes the rows written so far.
    RequestColumns take() { return std::exchange(rows_, {}); }

  private:
    static std::int64_t or_never(std::int64_t value) { return value; }
    static std::int64_t or_never(const std::optional<std::int64_t>& value) { return value.value_or(kNever); }

    std::int64_t ended_ = 0;
    RequestColumns rows_;
};

}  // namespace serving
