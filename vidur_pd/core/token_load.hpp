// Tokens that the requests of one rank stand for, as routing compares them.
#pragma once

#include <algorithm>
#include <utility>

#include "request.hpp"

namespace serving {

// Each change comes by a call, so that reading costs nothing. A request may compute its prompt on one rank and be
// counted on another, where it is going to decode. Requests that leave by `clear` keep stale counts of their own;
// `enter_prompt` and `enter_context` set them anew.
class TokenLoad {
  public:
    // To be computed before every request is a plain decode: of waiting prompts, chunks to come and chunks in
    // iteration.
    Tokens outstanding() const { return outstanding_; }
    // Context of all requests that decode here as they came, from their assignment to their end. Tokens generated here
    // do not count, as by default in Dynamo 1.6.1's router (router_track_output_blocks).
    Tokens context() const { return context_; }

    // The request computes its prompt here.
    void enter_prompt(Request& request, Tokens outstanding) {
        request.outstanding_tokens = 0;
        set_outstanding(request, outstanding);
    }
    // The request decodes here, now or later.
    void enter_context(Request& request, Tokens context) {
        request.assigned_tokens = context;
        context_ += context;
    }
    void leave_prompt(Request& request) { set_outstanding(request, 0); }
    void leave_context(Request& request) { context_ -= std::exchange(request.assigned_tokens, 0); }
    void clear() { outstanding_ = context_ = 0; }
    void set_outstanding(Request& request, Tokens outstanding) {
        outstanding_ += outstanding - std::exchange(request.outstanding_tokens, outstanding);
    }
    // An iteration has computed tokens of the request.
    void compute(Request& request, Tokens tokens) {
        set_outstanding(request, std::max<Tokens>(request.outstanding_tokens - tokens, 0));
    }

  private:
    Tokens outstanding_ = 0, context_ = 0;
};

}  // namespace serving
