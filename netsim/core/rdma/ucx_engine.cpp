#include "ucx_engine.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <regex>
#include <set>

#include "clock.hpp"

namespace netsim::rdma {

namespace {

constexpr unsigned kMessageId = 0;

void check(ucs_status_t status, const std::string& what) {
    if (status != UCS_OK) throw EngineError(what + ": " + ucs_status_string(status));
}

sockaddr_storage socket_address(const std::string& address, std::uint16_t port) {
    sockaddr_storage found{};
    auto* v4 = reinterpret_cast<sockaddr_in*>(&found);
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&found);
    if (inet_pton(AF_INET, address.c_str(), &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
    } else if (inet_pton(AF_INET6, address.c_str(), &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
    } else {
        throw EngineError("address: found " + address + ", expected an IPv4 or IPv6 address");
    }
    return found;
}

std::uint16_t port_of(const sockaddr_storage& address) {
    return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                               : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// Of a contact: "PORT ADDRESS".
sockaddr_storage listener_of(const std::string& contact) {
    std::uint16_t port = 0;
    const char* const end = contact.data() + contact.size();
    const auto [rest, error] = std::from_chars(contact.data(), end, port);
    if (error != std::errc() || rest == end) {
        throw EngineError("contact: found '" + contact + "', expected a port and an address");
    }
    return socket_address({rest + 1, end}, port);
}

ucs_sock_addr_t as_ucs(const sockaddr_storage& address) {
    return {reinterpret_cast<const sockaddr*>(&address),
            static_cast<socklen_t>(address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in))};
}

// What UCX prints about an endpoint; only later versions than 1.13 have a query for its transports.
std::string description_of(ucp_ep_h endpoint) {
    char* text = nullptr;
    std::size_t bytes = 0;
    FILE* stream = open_memstream(&text, &bytes);
    if (stream == nullptr) return {};
    ucp_ep_print_info(endpoint, stream);
    std::fclose(stream);
    std::string found(text, bytes);
    std::free(text);
    return found;
}

}  // namespace

UcxEngine::UcxEngine(const EngineOptions& options, const UcxOptions& ucx)
    : Engine(options),
      ucx_(ucx),
      connections_(static_cast<std::size_t>(options.ranks)),
      greeted_(static_cast<std::size_t>(options.ranks), 0) {
    try {
        if (ucx.gpu >= 0) gpu_ = std::make_unique<CudaDevice>(ucx.gpu);  // first, as UCX opens what is current
        ucp_config_t* config = nullptr;
        check(ucp_config_read(nullptr, nullptr, &config), "ucx settings");
        ucs_status_t status = UCS_OK;
        for (const auto& [name, value] : {std::pair("TLS", &ucx.transports),
                                          {"NET_DEVICES", &options.device},
                                          {"RNDV_THRESH", &ucx.rndv_threshold}}) {
            if (status == UCS_OK && !value->empty()) status = ucp_config_modify(config, name, value->c_str());
        }
        ucp_params_t params{};
        params.field_mask = UCP_PARAM_FIELD_FEATURES;
        params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
        if (status == UCS_OK) status = ucp_init(&params, config, &context_);
        ucp_config_release(config);
        check(status, "ucx with transports '" + ucx.transports + "' and device '" + options.device + "'");

        ucp_worker_params_t worker{};
        worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
        worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
        check(ucp_worker_create(context_, &worker, &worker_), "ucx worker");
        int event_fd = -1;
        check(ucp_worker_get_efd(worker_, &event_fd), "ucx event descriptor");
        watch(event_fd);

        ucp_am_handler_param_t handler{};
        handler.field_mask =
            UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
        handler.id = kMessageId;
        handler.cb = &UcxEngine::on_message;
        handler.arg = this;
        check(ucp_worker_set_am_recv_handler(worker_, &handler), "ucx message handler");

        const sockaddr_storage address = socket_address(options.address, 0);
        ucp_listener_params_t listener{};
        listener.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
        listener.sockaddr = as_ucs(address);
        listener.conn_handler = {&UcxEngine::on_request, this};
        check(ucp_listener_create(worker_, &listener, &listener_), "ucx listener at " + options.address);
        ucp_listener_attr_t bound{};
        bound.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
        check(ucp_listener_query(listener_, &bound), "ucx listener at " + options.address);
        port_ = port_of(bound.sockaddr);
    } catch (...) {
        close();
        throw;
    }
}

UcxEngine::~UcxEngine() { close(); }

void UcxEngine::close() {
    is_closing_ = true;
    if (worker_ != nullptr) {
        std::vector<ucs_status_ptr_t> closing;
        const auto begin_close = [&](ucp_ep_h endpoint) {
            ucp_request_param_t param{};
            param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
            param.flags = UCP_EP_CLOSE_FLAG_FORCE;  // all has been delivered, or is given up
            const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint, &param);
            if (UCS_PTR_IS_PTR(request)) closing.push_back(request);
        };
        for (const auto& channels : connections_) {
            for (const Connection& connection : channels) {
                if (connection.endpoint != nullptr) begin_close(connection.endpoint);
            }
        }
        for (ucp_ep_h endpoint : accepted_) begin_close(endpoint);
        for (ucp_conn_request_h request : requests_) ucp_listener_reject(listener_, request);
        const Nanoseconds deadline = now_ns() + 1'000'000'000;
        for (ucs_status_ptr_t request : closing) {
            while (ucp_request_check_status(request) == UCS_INPROGRESS && now_ns() < deadline) {
                ucp_worker_progress(worker_);
            }
            ucp_request_free(request);
        }
        if (listener_ != nullptr) ucp_listener_destroy(listener_);
        release_memory();
        ucp_worker_destroy(worker_);
    }
    if (context_ != nullptr) ucp_cleanup(context_);
    worker_ = nullptr;
    context_ = nullptr;
    listener_ = nullptr;
}

ucp_ep_h UcxEngine::open_endpoint(const ucp_ep_params_t& params) {
    ucp_ep_params_t with_errors = params;
    with_errors.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    with_errors.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    with_errors.err_handler = {&UcxEngine::on_error, this};
    ucp_ep_h endpoint = nullptr;
    check(ucp_ep_create(worker_, &with_errors, &endpoint), "ucx endpoint");
    return endpoint;
}

Contacts UcxEngine::offer(const std::vector<int>& out, const std::vector<int>& in) {
    out_ = out;
    in_ = in;
    Contacts offered;
    for (const int rank : out) offered[rank];  // a sender is not called back
    for (const int rank : in) offered[rank] = std::to_string(port_) + " " + options_.address;
    return offered;
}

void UcxEngine::connect(const Contacts& offered, Nanoseconds timeout_ns) {
    const Nanoseconds deadline = now_ns() + timeout_ns;
    const sockaddr_storage from = socket_address(options_.address, 0);
    for (const int rank : out_) {
        auto& channels = connections_.at(static_cast<std::size_t>(rank));
        const sockaddr_storage to = listener_of(offered.at(rank));
        while (channels.size() < static_cast<std::size_t>(options_.channels)) {
            ucp_ep_params_t params{};
            params.field_mask =
                UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_LOCAL_SOCK_ADDR;
            params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
            params.sockaddr = as_ucs(to);
            params.local_sockaddr = as_ucs(from);
            channels.push_back({open_endpoint(params), false});
            rank_of_[channels.back().endpoint] = rank;
            Operation hello{
                this, {Kind::kHello, static_cast<std::uint32_t>(options_.rank), ucx_.key, 0, 0}, 0, nullptr};
            hello.header.offset = static_cast<std::int64_t>(channels.size() - 1);
            post(channels.back().endpoint, hello, nullptr);
        }
    }
    while (!is_connected()) {
        if (!failure_.empty()) throw EngineError(failure_);
        if (must_stop_) return;
        if (now_ns() > deadline) throw EngineError("connections: found no answer in time");
        if (progress() == 0) sleep_until(now_ns() + 1'000'000);
    }
    flush(deadline);
}

bool UcxEngine::is_connected() const {
    const auto is_welcome = [](const Connection& connection) { return connection.is_welcome; };
    return under_way_ == 0 &&
           std::ranges::all_of(out_,
                               [&](int rank) {
                                   return std::ranges::all_of(connections_[static_cast<std::size_t>(rank)], is_welcome);
                               }) &&
           std::ranges::all_of(in_,
                               [&](int rank) { return greeted_[static_cast<std::size_t>(rank)] >= options_.channels; });
}

void UcxEngine::flush(Nanoseconds deadline) {
    ucp_request_param_t param{};
    const ucs_status_ptr_t request = ucp_worker_flush_nbx(worker_, &param);
    if (!UCS_PTR_IS_PTR(request)) return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS && now_ns() < deadline && !must_stop_) {
        progress();
    }
    ucp_request_free(request);
}

std::string UcxEngine::lanes(int rank) const {
    static const std::regex lane("lane\\[\\d+\\]:\\s*\\d+:([^\\s./]+)/([^\\s.]+)");
    std::set<std::string> found;
    for (const Connection& connection : connections_.at(static_cast<std::size_t>(rank))) {
        const std::string text = description_of(connection.endpoint);
        for (std::sregex_iterator match(text.begin(), text.end(), lane), end; match != end; ++match) {
            found.insert((*match)[1].str() + "/" + (*match)[2].str());
        }
    }
    std::string joined;
    for (const std::string& each : found) joined += (joined.empty() ? "" : " ") + each;
    return joined;
}

unsigned UcxEngine::progress() {
    accept_requests();
    return ucp_worker_progress(worker_);
}

bool UcxEngine::arm() { return ucp_worker_arm(worker_) == UCS_OK; }

void UcxEngine::register_memory() {
    const std::int64_t all = sum(plan_.receive_bytes);
    const std::int64_t most = std::min(all, std::max(kArenaBytes, largest(plan_.receive_bytes)));
    const auto arena_bytes = static_cast<std::size_t>(most);
    if (gpu_) {
        gpu_departures_ = std::make_unique<CudaMemory>(*gpu_, pattern_->bytes());
        gpu_->copy_to(gpu_departures_->data(), pattern_->data(), pattern_->bytes());
        gpu_arrivals_ = std::make_unique<CudaMemory>(*gpu_, std::max<std::size_t>(1, arena_bytes));
        departures_ = gpu_departures_->data();
        arrivals_ = gpu_arrivals_->data();
    } else {
        host_arrivals_.resize(arena_bytes);
        departures_ = static_cast<char*>(pattern_->data());
        arrivals_ = host_arrivals_.data();
    }
    arena_ = std::make_unique<ReceiveArena>(arrivals_, most);
    const auto registered = [&](void* data, std::size_t bytes) {
        ucp_mem_h memory = nullptr;
        if (bytes == 0) return memory;
        ucp_mem_map_params_t params{};
        params.field_mask =
            UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
        params.address = data;
        params.length = bytes;
        params.memory_type = payload_memory();
        check(ucp_mem_map(context_, &params, &memory), "registration of " + std::to_string(bytes) + " bytes");
        return memory;
    };
    pattern_memory_ = registered(departures_, pattern_->bytes());
    arena_memory_ = registered(arrivals_, arena_bytes);
}

void UcxEngine::release_memory() {
    for (ucp_mem_h* memory : {&pattern_memory_, &arena_memory_}) {
        if (*memory != nullptr) ucp_mem_unmap(context_, *memory);
        *memory = nullptr;
    }
    arena_.reset();
    gpu_departures_.reset();
    gpu_arrivals_.reset();
}

void UcxEngine::send(const Piece& piece) {
    const auto& channels = connections_[static_cast<std::size_t>(plan_.send_peer[piece.send])];
    const std::uint32_t flow = plan_.send_flow[piece.send];
    Operation operation{this, {Kind::kPiece, flow, ucx_.key, piece.offset, piece.bytes}, piece.send, nullptr};
    post(channels[plan_.send_label[piece.send] % channels.size()].endpoint, operation,
         departures_ + PayloadPattern::place_of(flow, piece.offset));
}

void UcxEngine::inform(int rank, Event event) {
    post(connections_[static_cast<std::size_t>(rank)].front().endpoint,
         {this, {Kind::kEvent, event, ucx_.key, 0, 0}, 0, nullptr}, nullptr);
}

void UcxEngine::post(ucp_ep_h endpoint, const Operation& content, void* data) {
    Operation* const operation = take_operation(content);
    ++under_way_;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = content.header.kind == Kind::kHello ? UCP_AM_SEND_FLAG_REPLY : 0;
    if (gpu_ && data != nullptr && content.header.bytes > 0) {  // else small ones would end in memory of the host
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
        param.memory_type = payload_memory();
        param.flags |= UCP_AM_SEND_FLAG_RNDV;
    }
    param.cb.send = &UcxEngine::on_sent;
    param.user_data = operation;
    const std::size_t bytes = data == nullptr ? 0 : static_cast<std::size_t>(content.header.bytes);
    const ucs_status_ptr_t request =
        ucp_am_send_nbx(endpoint, kMessageId, &operation->header, sizeof operation->header, data, bytes, &param);
    if (!UCS_PTR_IS_PTR(request)) finish_send(operation, UCS_PTR_STATUS(request));
}

void UcxEngine::on_sent(void* request, ucs_status_t status, void* operation) {
    ucp_request_free(request);
    auto* const done = static_cast<Operation*>(operation);
    done->engine->finish_send(done, status);
}

void UcxEngine::finish_send(Operation* operation, ucs_status_t status) {
    const Operation done = *operation;
    give_back(operation);
    --under_way_;
    if (status != UCS_OK) {
        fail(std::string("a message could not be sent: ") + ucs_status_string(status));
    } else if (done.header.kind == Kind::kPiece) {
        executor_->on_left(done.index, done.header.bytes, now_ns());
    }
}

ucs_status_t UcxEngine::on_message(void* self, const void* header, std::size_t header_bytes, void* data, std::size_t,
                                   const ucp_am_recv_param_t* param) {
    auto& engine = *static_cast<UcxEngine*>(self);
    Header found{};
    if (header_bytes != sizeof found) {
        engine.fail("a message of a stranger: found a header of " + std::to_string(header_bytes) + " bytes");
        return UCS_OK;
    }
    std::memcpy(&found, header, sizeof found);
    if (found.key != engine.ucx_.key) {
        engine.fail("a message of a stranger: found another key than that of the run");
        return UCS_OK;
    }
    switch (found.kind) {
        case Kind::kHello:
            if (found.number < engine.greeted_.size()) {
                ++engine.greeted_[found.number];
                engine.rank_of_[param->reply_ep] = static_cast<int>(found.number);
                engine.post(param->reply_ep,
                            {&engine,
                             {Kind::kWelcome, static_cast<std::uint32_t>(engine.options_.rank), engine.ucx_.key,
                              found.offset, 0},
                             0,
                             nullptr},
                            nullptr);
            }
            return UCS_OK;
        case Kind::kWelcome:
            engine.connections_.at(found.number).at(static_cast<std::size_t>(found.offset)).is_welcome = true;
            return UCS_OK;
        case Kind::kEvent:
            engine.executor_->on_informed(found.number, now_ns());
            return UCS_OK;
        case Kind::kPiece:
            return engine.take_piece(found, data, (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
    }
    return UCS_OK;
}

ucs_status_t UcxEngine::take_piece(const Header& header, void* data, bool is_announced) {
    const std::int32_t receive = executor_ ? executor_->receive_of(header.number) : -1;
    if (receive < 0) {
        fail("flow " + std::to_string(header.number) + " arrived, which is not for this rank");
        return UCS_OK;
    }
    if (!is_announced) {
        compare(header, data);
        executor_->on_arrived(static_cast<std::uint32_t>(receive), header.bytes, now_ns());
        return UCS_OK;
    }
    const Operation operation{this, header, static_cast<std::uint32_t>(receive), arena_->take(header.bytes)};
    if (operation.memory == nullptr) {
        waiting_.push_back({data, operation});
    } else {
        start_receive(data, operation);
    }
    return UCS_INPROGRESS;
}

void UcxEngine::start_receive(void* descriptor, const Operation& content) {
    Operation* const operation = take_operation(content);
    ++under_way_;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE |
                         UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    param.memory_type = payload_memory();
    param.cb.recv_am = &UcxEngine::on_received;
    param.user_data = operation;
    const ucs_status_ptr_t request = ucp_am_recv_data_nbx(worker_, descriptor, operation->memory,
                                                          static_cast<std::size_t>(content.header.bytes), &param);
    if (!UCS_PTR_IS_PTR(request)) finish_receive(operation, UCS_PTR_STATUS(request));
}

void UcxEngine::on_received(void* request, ucs_status_t status, std::size_t, void* operation) {
    ucp_request_free(request);
    auto* const done = static_cast<Operation*>(operation);
    done->engine->finish_receive(done, status);
}

void UcxEngine::finish_receive(Operation* operation, ucs_status_t status) {
    const Nanoseconds now = now_ns();
    const Operation done = *operation;
    give_back(operation);
    --under_way_;
    if (status != UCS_OK) {
        fail("flow " + std::to_string(done.header.number) + " could not be received: " + ucs_status_string(status));
        return;
    }
    compare(done.header, done.memory);
    arena_->give_back(done.memory, done.header.bytes);
    executor_->on_arrived(done.index, done.header.bytes, now);
    while (!waiting_.empty()) {
        Waiting& next = waiting_.front();
        next.operation.memory = arena_->take(next.operation.header.bytes);
        if (next.operation.memory == nullptr) return;
        const Waiting started = next;
        waiting_.pop_front();
        start_receive(started.descriptor, started.operation);
    }
}

// Payloads on a GPU are copied to be compared.
void UcxEngine::compare(const Header& header, const void* data) {
    if (gpu_ && options_.must_verify && header.bytes > 0) {
        compared_.resize(static_cast<std::size_t>(header.bytes));
        gpu_->copy_from(compared_.data(), data, compared_.size());
        data = compared_.data();
    }
    check_payload(header.number, header.offset, data, header.bytes);
}

void UcxEngine::on_request(ucp_conn_request_h request, void* self) {
    static_cast<UcxEngine*>(self)->requests_.push_back(request);
}

void UcxEngine::accept_requests() {
    while (!requests_.empty()) {
        ucp_ep_params_t params{};
        params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
        params.conn_request = requests_.back();
        requests_.pop_back();
        accepted_.push_back(open_endpoint(params));
    }
}

void UcxEngine::on_error(void* self, ucp_ep_h endpoint, ucs_status_t status) {
    auto& engine = *static_cast<UcxEngine*>(self);
    if (engine.is_closing_) return;
    const auto found = engine.rank_of_.find(endpoint);
    const std::string peer = found == engine.rank_of_.end() ? "a peer" : "rank " + std::to_string(found->second);
    engine.fail("connection to " + peer + ": " + ucs_status_string(status));
}

UcxEngine::Operation* UcxEngine::take_operation(const Operation& content) {
    if (spare_.empty()) {
        operations_.emplace_back();
        spare_.push_back(&operations_.back());
    }
    Operation* const operation = spare_.back();
    spare_.pop_back();
    *operation = content;
    return operation;
}

void UcxEngine::give_back(Operation* operation) { spare_.push_back(operation); }

}  // namespace netsim::rdma
