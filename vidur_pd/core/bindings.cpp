// Python bindings of the core; vidur_pd/_core.pyi describes the module.
#include "bindings.hpp"

#include "candidates.hpp"
#include "prefix_pool.hpp"
#include "radix_pool.hpp"
#include "seconds_text.hpp"

namespace serving {

namespace {

py::array_t<bool> flags(const std::vector<std::uint8_t>& values) {
    py::array_t<bool> made(static_cast<py::ssize_t>(values.size()));
    std::copy(values.begin(), values.end(), made.mutable_data());
    return made;
}

py::object statuses() { return py::module_::import("vidur_pd.workload.request").attr("STATUSES"); }

Role parse_role(const std::string& role) {
    if (role == "mixed") return Role::kMixed;
    if (role == "prefill") return Role::kPrefill;
    if (role == "decode") return Role::kDecode;
    throw InputError("role: found '" + role + "', expected mixed, prefill or decode");
}

std::optional<Role> parse_given(const std::optional<std::string>& role) {
    return role ? std::optional(parse_role(*role)) : std::nullopt;
}

// The one place where C++ exceptions become the Python exceptions of vidur_pd.
void translate(std::exception_ptr error) {
    try {
        if (error) std::rethrow_exception(error);
    } catch (const InputError& e) {
        py::set_error(py::module_::import("boundary.errors").attr("InputError"), e.what());
    } catch (const BrokenRule& e) {
        py::set_error(py::module_::import("vidur_pd.scheduling.policy").attr("BrokenRule"), e.what());
    } catch (const BrokenInvariant& e) {
        py::set_error(PyExc_AssertionError, e.what());
    }
}

void bind_request(py::module_& module) {
    py::class_<Request, RequestPtr> request(module, "Request");
    request
        .def(py::init<std::int64_t, std::string, Tokens, Tokens, TimePs, std::optional<std::vector<std::int64_t>>>(),
             py::arg("index"), py::arg("request_id"), py::arg("prompt_tokens"), py::arg("output_tokens"),
             py::arg("arrived_ps"), py::arg("block_hashes") = py::none())
        .def_readonly("index", &Request::index)
        .def_readonly("request_id", &Request::request_id)
        .def_readonly("prompt_tokens", &Request::prompt_tokens)
        .def_readonly("output_tokens", &Request::output_tokens)
        .def_readonly("arrived_ps", &Request::arrived_ps)
        .def_readonly("block_hashes", &Request::block_hashes)
        .def_readwrite("hashed_tokens", &Request::hashed_tokens)
        .def_readwrite("server", &Request::server)
        .def_readonly("status_reason", &Request::status_reason)
        .def_readonly("computed_tokens", &Request::computed_tokens)
        .def_readonly("is_running", &Request::is_running)
        .def_readonly("is_in_iteration", &Request::is_in_iteration)
        .def_readonly("is_ending", &Request::is_ending)
        .def_property_readonly("role", [](const Request& request) { return name_of(request.role); })
        .def_property_readonly("sequence_tokens", &Request::sequence_tokens)
        .def_property_readonly(
            "status", [](const Request& request) { return statuses()[py::int_(static_cast<int>(request.status))]; })
        .def("restart", &Request::restart, py::arg("kept"))
        .def("__repr__", [](const Request& request) { return "request " + request.request_id; });
#define REQUEST_FIGURE(type, name, is_stage) request.def_readwrite(#name, &Request::name);
#include "request_figures.inc"
}

Eviction parse_eviction(const std::string& name) {
    if (name == "lru") return Eviction::kLru;
    if (name == "lfu") return Eviction::kLfu;
    throw InputError("eviction: found '" + name + "', expected lru or lfu");
}

void bind_pools(py::module_& module) {
    py::class_<KvGroups>(module, "KvGroups")
        .def(py::init<std::int64_t, std::int64_t, std::int64_t>(), py::kw_only(), py::arg("whole"), py::arg("spanned"),
             py::arg("most_spanned_blocks"));
    py::class_<BlockPool, std::shared_ptr<BlockPool>>(module, "BlockPool");
    py::class_<CountingBlockPool, BlockPool, std::shared_ptr<CountingBlockPool>>(module, "CountingBlockPool")
        .def(py::init<std::int64_t, Tokens, KvGroups>(), py::arg("num_blocks"), py::arg("block_tokens") = 16,
             py::arg("groups") = KvGroups());
    py::class_<PrefixCachingBlockPool, BlockPool, std::shared_ptr<PrefixCachingBlockPool>>(module,
                                                                                           "PrefixCachingBlockPool")
        .def(py::init([](std::int64_t num_blocks, Tokens block_tokens, Tokens hash_block_tokens, const KvGroups& groups,
                         bool drops_last_hit, bool when_computed) {
                 return std::make_shared<PrefixCachingBlockPool>(
                     num_blocks, block_tokens, hash_block_tokens, groups, drops_last_hit,
                     when_computed ? Availability::kComputed : Availability::kScheduled);
             }),
             py::arg("num_blocks"), py::arg("block_tokens") = 16, py::arg("hash_block_tokens") = 512,
             py::arg("groups") = KvGroups(), py::arg("drops_last_hit") = false, py::arg("when_computed") = false);
    py::class_<RadixBlockPool, BlockPool, std::shared_ptr<RadixBlockPool>>(module, "RadixBlockPool")
        .def(py::init([](std::int64_t num_blocks, Tokens block_tokens, Tokens hash_block_tokens,
                         const std::string& eviction, const KvGroups& groups) {
                 return std::make_shared<RadixBlockPool>(num_blocks, block_tokens, hash_block_tokens,
                                                         parse_eviction(eviction), groups);
             }),
             py::arg("num_blocks"), py::arg("block_tokens") = 1, py::arg("hash_block_tokens") = 512,
             py::arg("eviction") = "lru", py::arg("groups") = KvGroups())
        .def_property_readonly("evictable_tokens",
                               [](const RadixBlockPool& pool) { return pool.tree().evictable_tokens(); })
        .def_property_readonly("nodes", [](const RadixBlockPool& pool) {
            py::list nodes;
            for (const RadixTree::Shown& node : pool.tree().shown()) {
                nodes.append(py::make_tuple(node.start, node.end, node.locks, node.hits));
            }
            return nodes;
        });
}

void bind_tiers(py::module_& module) {
    py::class_<ChunkKeys, std::shared_ptr<ChunkKeys>>(module, "ChunkKeys")
        .def(py::init<Tokens, Tokens>(), py::arg("chunk_tokens"), py::arg("hash_block_tokens"))
        .def_property_readonly("chunk_tokens", &ChunkKeys::chunk_tokens)
        .def("of", &ChunkKeys::of, py::arg("request"), py::arg("tokens"));
    py::class_<ChunkIndex, std::shared_ptr<ChunkIndex>>(module, "ChunkIndex")
        .def(py::init<std::shared_ptr<ChunkKeys>>(), py::arg("keys"))
        .def("add", &ChunkIndex::add, py::arg("keys"))
        .def("remove", &ChunkIndex::remove, py::arg("keys"))
        .def("__contains__", &ChunkIndex::has, py::arg("key"))
        .def("__len__", &ChunkIndex::size)
        .def("reach", &ChunkIndex::reach, py::arg("request"), py::arg("start"), py::arg("tokens"));
    py::class_<LayerArrivals, std::shared_ptr<LayerArrivals>>(module, "LayerArrivals");
    py::class_<TierLoad>(module, "TierLoad")
        .def_readonly("arrivals", &TierLoad::arrivals)
        .def_readonly("request", &TierLoad::request)
        .def_readonly("cached", &TierLoad::cached)
        .def_readonly("reaches", &TierLoad::reaches)
        .def_property_readonly("end", &TierLoad::end);
}

void bind_batches(py::module_& module) {
    py::class_<ScheduledBatch, BatchPtr>(module, "ScheduledBatch")
        .def_readonly("requests", &ScheduledBatch::requests)
        .def_property_readonly("new_tokens", [](const ScheduledBatch& batch) { return array(batch.new_tokens); })
        .def_property_readonly("kv_tokens", [](const ScheduledBatch& batch) { return array(batch.kv_tokens); })
        .def_property_readonly("drafts", [](const ScheduledBatch& batch) { return array(batch.drafts); })
        .def_property_readonly("samples", [](const ScheduledBatch& batch) { return flags(batch.samples); })
        .def_readonly("admitted", &ScheduledBatch::admitted)
        .def_readonly("preempted", &ScheduledBatch::preempted)
        .def_readonly("logit_rows", &ScheduledBatch::logit_rows)
        .def_readonly("prefill_tokens", &ScheduledBatch::prefill_tokens)
        .def_readonly("decode_tokens", &ScheduledBatch::decode_tokens);
}

std::shared_ptr<RankState> make_rank(std::shared_ptr<BlockPool> pool, const std::string& role,
                                     Tokens max_batched_tokens, std::int64_t max_seqs, Tokens max_model_len,
                                     Tokens long_prefill_token_threshold, std::int64_t drafts_per_step,
                                     std::int64_t watermark_blocks, std::int64_t pipeline_stages, bool plans_ahead,
                                     bool by_priority, bool chunks_prompts, bool pipelines_chunks,
                                     Tokens lookahead_tokens) {
    const Limits limits{max_batched_tokens, max_seqs,         max_model_len,    long_prefill_token_threshold,
                        drafts_per_step,    watermark_blocks, pipeline_stages,  plans_ahead,
                        by_priority,        chunks_prompts,   pipelines_chunks, lookahead_tokens};
    return std::make_shared<RankState>(std::move(pool), parse_role(role), limits);
}

void bind_rank(py::module_& module) {
    py::class_<RankState, std::shared_ptr<RankState>>(module, "RankState", py::is_final())
        .def(py::init(&make_rank), py::arg("pool"), py::kw_only(), py::arg("role") = "mixed",
             py::arg("max_batched_tokens"), py::arg("max_seqs"), py::arg("max_model_len"),
             py::arg("long_prefill_token_threshold") = 0, py::arg("drafts_per_step") = 0,
             py::arg("watermark_blocks") = 0, py::arg("pipeline_stages") = 1, py::arg("plans_ahead") = false,
             py::arg("by_priority") = false, py::arg("chunks_prompts") = true, py::arg("pipelines_chunks") = false,
             py::arg("lookahead_tokens") = 0)
        .def_property_readonly("waiting_requests", &RankState::waiting_requests)
        .def_property_readonly("running_requests", &RankState::running_requests)
        .def_property_readonly("load_tokens", &RankState::load_tokens)
        .def_property_readonly("used_blocks", &RankState::used_blocks)
        .def_property_readonly("usable_blocks", &RankState::usable_blocks)
        .def_property_readonly("block_tokens", &RankState::block_tokens)
        .def_property_readonly("has_work", &RankState::has_work)
        .def("blocks", &RankState::blocks, py::arg("tokens"))
        .def_property_readonly("queued_requests", &RankState::queued_requests)
        .def_property_readonly("outstanding_tokens", &RankState::outstanding_tokens)
        .def(
            "rejection_reason",
            [](const RankState& rank, const Request& request, const std::optional<std::string>& role) {
                return rank.rejection_reason(request, parse_given(role));
            },
            py::arg("request"), py::arg("role") = py::none())
        .def(
            "cached_tokens",
            [](const RankState& rank, const Request& request) { return rank.cached_prefix(request).tokens; },
            py::arg("request"))
        .def(
            "add",
            [](RankState& rank, RequestPtr request, const std::optional<std::string>& role) {
                rank.add(std::move(request), parse_given(role));
            },
            py::arg("request"), py::arg("role") = py::none())
        .def("add_remote", &RankState::add_remote, py::arg("request"))
        .def("admit_remote", &RankState::admit_remote)
        .def("make_room_for_remote", &RankState::make_room_for_remote, py::arg("request"), py::arg("reserved"))
        .def("remote_arrived", &RankState::remote_arrived, py::arg("request"), py::arg("computed_tokens"))
        .def("release", &RankState::release, py::arg("request"))
        .def("keep", &RankState::keep, py::arg("request"), py::arg("computed_tokens"))
        .def("abandon_remote", &RankState::abandon_remote, py::arg("request"))
        .def("load_from", &RankState::load_from, py::arg("tiers"), py::arg("least_tokens"), py::kw_only(),
             py::arg("is_layerwise") = false)
        .def("log_evictions", &RankState::log_evictions, py::arg("chunk_tokens"))
        .def("take_evicted", &RankState::take_evicted)
        .def("chunk_contents", &RankState::chunk_contents, py::arg("request"), py::arg("chunk_tokens"),
             py::arg("tokens"))
        .def("hold", &RankState::hold, py::arg("request"), py::arg("is_held"))
        .def("take_loads", &RankState::take_loads)
        .def("loaded", &RankState::loaded, py::arg("request"), py::arg("tokens"))
        .def("abandon_load", &RankState::abandon_load, py::arg("request"))
        .def("open_decision", &RankState::open_decision, py::arg("now_ps"))
        .def("asks_again", &RankState::asks_again);
}

Candidates::Measure parse_measure(const std::string& name) {
    if (name == "requests") return Candidates::Measure::kRequests;
    if (name == "tokens") return Candidates::Measure::kTokens;
    if (name == "none") return Candidates::Measure::kNone;
    throw InputError("measure: found '" + name + "', expected none, requests or tokens");
}

void bind_candidates(py::module_& module) {
    using Ranks = std::vector<std::vector<std::shared_ptr<RankState>>>;
    py::class_<Candidates>(module, "Candidates")
        .def(py::init([](Ranks candidates, const std::string& measure) {
                 return Candidates(std::move(candidates), parse_measure(measure));
             }),
             py::arg("candidates"), py::arg("measure"))
        .def("set_open", &Candidates::set_open, py::arg("place"), py::arg("is_open"))
        .def("open", &Candidates::open, py::arg("spans"))
        .def("nth", &Candidates::nth, py::arg("spans"), py::arg("number"))
        .def("next", &Candidates::next, py::arg("spans"), py::arg("start"))
        .def("least", &Candidates::least, py::arg("spans"))
        .def_property_readonly("loads_read", &Candidates::loads_read);
}

// Values of all ranks, one after another.
py::array_t<Tokens> joined(const GroupBatch& group, std::vector<Tokens> ScheduledBatch::* column) {
    std::vector<Tokens> values;
    for (const BatchPtr& batch : group.batches) {
        if (batch) values.insert(values.end(), ((*batch).*column).begin(), ((*batch).*column).end());
    }
    return array(values);
}

void bind_group(py::module_& module) {
    py::class_<GapCounts, std::shared_ptr<GapCounts>>(module, "GapCounts")
        .def(py::init<>())
        .def("add", &GapCounts::add, py::arg("gap_ps"), py::arg("requests"))
        .def("counts", [](const GapCounts& gaps) {
            const auto [gaps_ps, requests] = gaps.counts();
            return py::make_tuple(array(gaps_ps), array(requests));
        });
    py::class_<GroupBatch, std::shared_ptr<GroupBatch>>(module, "GroupBatch")
        .def_readonly("batches", &GroupBatch::batches)
        .def_readonly("requests", &GroupBatch::requests)
        .def_readonly("prefill_tokens", &GroupBatch::prefill_tokens)
        .def_readonly("decode_tokens", &GroupBatch::decode_tokens)
        .def_readonly("most_drafts", &GroupBatch::most_drafts)
        .def("new_tokens", [](const GroupBatch& group) { return joined(group, &ScheduledBatch::new_tokens); })
        .def("kv_tokens", [](const GroupBatch& group) { return joined(group, &ScheduledBatch::kv_tokens); })
        .def("drafts", [](const GroupBatch& group) { return joined(group, &ScheduledBatch::drafts); });
}

void bind_texts(py::module_& module) {
    module.def(
        "seconds_texts",
        [](const py::array_t<TimePs, py::array::c_style | py::array::forcecast>& durations_ps, TimePs absent) {
            py::list texts(durations_ps.size());
            for (py::ssize_t row = 0; row < durations_ps.size(); ++row) {
                const TimePs duration_ps = durations_ps.at(row);
                texts[static_cast<std::size_t>(row)] =
                    py::str(duration_ps == absent ? std::string() : seconds_text(duration_ps));
            }
            return texts;
        },
        py::arg("durations_ps"), py::arg("absent"));
}

}  // namespace

PYBIND11_MODULE(_core, module) {
    module.doc() = "C++ core of vidur_pd: requests, KV blocks, schedulers and the loop.";
    for (const char* other : {"netsim._core", "aicb._core"}) py::module_::import(other);  // whose types are taken here
    py::register_local_exception_translator(&translate);
    bind_request(module);
    bind_texts(module);
    bind_pools(module);
    bind_batches(module);
    bind_tiers(module);
    bind_rank(module);
    bind_group(module);
    bind_policy(module);
    bind_candidates(module);
    bind_running_iteration(module);
    bind_loop(module);
}

}  // namespace serving
