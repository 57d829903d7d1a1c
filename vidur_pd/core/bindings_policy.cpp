// Python bindings of what a policy reads and decides; vidur_pd/scheduling/policy.py says how they are used.
#include "bindings.hpp"
#include "vllm_v1.hpp"

namespace serving {

namespace {

// Of one request between two of its tokens, by a policy in Python; our choice. It would lose its KV for ever.
constexpr std::int64_t kMostPreemptions = 1000;

using RankPtr = std::shared_ptr<RankState>;

// What a policy may read of a rank.
struct RankView {
    RankPtr rank;
};

// What a policy decides for a rank, entry by entry.
struct Decision {
    RankPtr rank;
};

void bind_view(py::module_& module) {
    const auto request = py::arg("request").none(false);
    py::class_<RankView>(module, "RankView", py::is_final())
        .def(py::init<RankPtr>(), py::arg("rank").none(false))
        .def_property_readonly("role", [](const RankView& view) { return name_of(view.rank->role()); })
        .def_property_readonly("now_ps", [](const RankView& view) { return view.rank->now_ps(); })
        .def_property_readonly("unasked_iterations",
                               [](const RankView& view) { return view.rank->unasked_iterations(); })
        .def_property_readonly("running", [](const RankView& view) { return view.rank->running(); })
        .def_property_readonly("waiting",
                               [](const RankView& view) {
                                   std::vector<RequestPtr> waiting;
                                   for (const RequestPtr& request : view.rank->waiting()) {
                                       if (!request->is_held) waiting.push_back(request);
                                   }
                                   return waiting;
                               })
        .def_property_readonly("arrived", [](const RankView& view) { return view.rank->arrived(); })
        .def_property_readonly("running_requests", [](const RankView& view) { return view.rank->running_requests(); })
        .def_property_readonly("has_candidates", [](const RankView& view) { return view.rank->has_candidates(); })
        .def_property_readonly("is_transferring", [](const RankView& view) { return view.rank->is_transferring(); })
        .def_property_readonly("budget_left", [](const RankView& view) { return view.rank->budget_left(); })
        .def_property_readonly("free_blocks", [](const RankView& view) { return view.rank->free_blocks(); })
        .def_property_readonly("usable_blocks", [](const RankView& view) { return view.rank->usable_blocks(); })
        .def_property_readonly("block_tokens", [](const RankView& view) { return view.rank->block_tokens(); })
        .def_property_readonly("max_batched_tokens",
                               [](const RankView& view) { return view.rank->limits().max_batched_tokens; })
        .def_property_readonly("max_seqs", [](const RankView& view) { return view.rank->limits().max_seqs; })
        .def_property_readonly("long_prefill_token_threshold",
                               [](const RankView& view) { return view.rank->limits().long_prefill_token_threshold; })
        .def_property_readonly("max_model_len", [](const RankView& view) { return view.rank->limits().max_model_len; })
        .def_property_readonly("watermark_blocks",
                               [](const RankView& view) { return view.rank->limits().watermark_blocks; })
        .def_property_readonly("pipeline_stages",
                               [](const RankView& view) { return view.rank->limits().pipeline_stages; })
        .def_property_readonly("by_priority", [](const RankView& view) { return view.rank->limits().by_priority; })
        .def_property_readonly("chunks_prompts",
                               [](const RankView& view) { return view.rank->limits().chunks_prompts; })
        .def_property_readonly("drafts_per_step",
                               [](const RankView& view) { return view.rank->limits().drafts_per_step; })
        .def(
            "most_tokens", [](const RankView& view, const Request& of) { return view.rank->most_tokens(of); }, request)
        .def(
            "most_drafts", [](const RankView& view, const Request& of) { return view.rank->most_drafts(of); }, request)
        .def(
            "cached_tokens",
            [](const RankView& view, const Request& of) {
                return view.rank->ready_tokens(of, view.rank->cached_prefix(of));
            },
            request)
        .def(
            "lacking_blocks",
            [](const RankView& view, const Request& of, Tokens tokens) {
                return view.rank->lacking_blocks(of, tokens);
            },
            request, py::arg("tokens"))
        .def(
            "whole_blocks", [](const RankView& view, const Request& of) { return view.rank->whole_blocks(of); },
            request)
        .def(
            "content",
            [](const RankView& view, const Request& of, Tokens tokens) { return view.rank->content(of, tokens); },
            request, py::arg("tokens"))
        .def(
            "depth_first",
            [](const RankView& view, const std::vector<RequestPtr>& of) { return view.rank->depth_first(of); },
            py::arg("requests"))
        .def(
            "blocks", [](const RankView& view, Tokens tokens) { return view.rank->blocks(tokens); }, py::arg("tokens"));
}

void bind_decision(py::module_& module) {
    const auto request = py::arg("request").none(false);
    py::class_<Decision>(module, "Decision", py::is_final())
        .def(py::init<RankPtr>(), py::arg("rank").none(false))
        .def(
            "run",
            [](const Decision& decision, const RequestPtr& of, Tokens tokens, Tokens held_tokens) {
                decision.rank->run(of, tokens, held_tokens);
            },
            request, py::arg("tokens"), py::arg("held_tokens") = 0)
        .def(
            "preempt",
            [](const Decision& decision, const RequestPtr& of) {
                if (of->vain_preemptions >= kMostPreemptions) {
                    throw BrokenRule("progress", "request " + of->request_id + " would be preempted for the " +
                                                     std::to_string(kMostPreemptions + 1) +
                                                     "th time since its last token, expected at most " +
                                                     std::to_string(kMostPreemptions));
                }
                decision.rank->preempt(of);
            },
            request)
        .def(
            "touch",
            [](const Decision& decision, const Request& of, Tokens tokens) { return decision.rank->touch(of, tokens); },
            request, py::arg("tokens"))
        .def(
            "evict", [](const Decision& decision, std::int64_t blocks) { decision.rank->evict(blocks); },
            py::arg("blocks"));
}

void refuse_subclasses(const py::handle& type, const std::string& text) {
    const py::cpp_function refuse([text](const py::args&, const py::kwargs&) { throw py::type_error(text); });
    type.attr("__init_subclass__") = py::module_::import("builtins").attr("classmethod")(refuse);
}

}  // namespace

void bind_policy(py::module_& module) {
    bind_view(module);
    bind_decision(module);
    py::class_<Policy, std::shared_ptr<Policy>>(module, "CorePolicy", py::is_final());
    py::class_<VllmV1, Policy, std::shared_ptr<VllmV1>> vllm_v1(module, "VllmV1");
    vllm_v1.def(py::init<>())
        .def(
            "decide", [](VllmV1& policy, const RankView& rank, const Decision&) { policy.decide(*rank.rank); },
            py::arg("rank"), py::arg("decision"))
        .def(
            "is_steady", [](VllmV1& policy, const RankView& rank) { return policy.is_steady(*rank.rank); },
            py::arg("rank"));
    refuse_subclasses(vllm_v1,
                      "VllmV1 decides in C++, which a subclass cannot change: fork "
                      "vidur_pd/scheduling/vllm_v1_python.py, or call its decide from a Policy");
}

}  // namespace serving
