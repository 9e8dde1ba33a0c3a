// What the calls of a connection and of a principal may cost, counted by real clients.
#include "coordinator/service/calls.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/service/listener.h"
#include "coordinator/testing/tls_server.h"
#include "tacc/v1/coordinator.grpc.pb.h"

namespace tacc::coordinator {
namespace {

using testing::HasSubstr;

// Handlers that go on after their calls were cancelled, until they are let go.
class SlowService : public v1::CoordinatorService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext*, const v1::GetRequest*, v1::GetResponse*) override {
    auto* call = new Call();
    std::lock_guard<std::mutex> lock(mutex_);
    ++num_begun_;
    open_.push_back(call);
    return call;
  }
  int num_begun() {
    std::lock_guard<std::mutex> lock(mutex_);
    return num_begun_;
  }
  void LetGo() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Call* call : std::exchange(open_, {})) call->Finish(grpc::Status::OK);
  }

 private:
  class Call : public grpc::ServerUnaryReactor {
    void OnDone() override { delete this; }
  };
  std::mutex mutex_;
  std::vector<Call*> open_;
  int num_begun_ = 0;
};

class UnfinishedCallsTest : public testing::Test {
 protected:
  static constexpr int kMaxOpen = 20;
  void SetUp() override {
    grpc::ServerBuilder builder;
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
    interceptors.push_back(
        std::make_unique<CallInterceptors>(CallInterceptors::Parts{&newcomers_, &connections_, nullptr}));
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    auto listener = Listener::Listen("127.0.0.1:0");
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    listener_->Start(
        1000, [this](int listener_fd, int fd) { newcomers_.Arrive(listener_fd, fd); },
        [this] { return newcomers_.MakeRoom(); });
    address_ = listener_->address();
  }
  void TearDown() override {
    service_.LetGo();
    server_->Shutdown();
  }

  // Makes calls by a connection of its own.
  class Client {
   public:
    explicit Client(const std::string& address) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      stub_ = v1::CoordinatorService::NewStub(
          grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    }
    ~Client() {
      for (Call& call : calls_) call.context.TryCancel();
      while (num_ended_ < calls_.size()) WaitForOne();
    }
    struct Call {
      grpc::ClientContext context;
      v1::GetResponse response;
      std::unique_ptr<grpc::ClientAsyncResponseReader<v1::GetResponse>> reader;
      grpc::Status status;
      bool has_ended = false;
    };
    Call* Begin() {
      Call* call = &calls_.emplace_back();
      call->context.set_wait_for_ready(true);
      call->reader = stub_->AsyncGet(&call->context, v1::GetRequest(), &queue_);
      call->reader->Finish(&call->response, &call->status, call);
      return call;
    }
    void WaitFor(const Call* call) {
      while (!call->has_ended) WaitForOne();
    }

   private:
    void WaitForOne() {
      void* tag = nullptr;
      bool ok = false;
      ASSERT_TRUE(queue_.Next(&tag, &ok));
      static_cast<Call*>(tag)->has_ended = true;
      ++num_ended_;
    }
    std::unique_ptr<v1::CoordinatorService::Stub> stub_;
    grpc::CompletionQueue queue_;
    std::list<Call> calls_;
    size_t num_ended_ = 0;
  };
  // Calls, and cancels as soon as the handler has begun.
  void CallAndCancel(Client* client) {
    const int before = service_.num_begun();
    Client::Call* call = client->Begin();
    ASSERT_TRUE(WaitUntil([&] { return service_.num_begun() > before; }));
    call->context.TryCancel();
    client->WaitFor(call);
    EXPECT_EQ(call->status.error_code(), grpc::StatusCode::CANCELLED);
  }

  SlowService service_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  Newcomers newcomers_{{}, [this](int listener_fd, int fd) {
                         grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
                         connection.listener_fd = listener_fd;
                         connection.fd = fd;
                         acceptor_->HandleNewConnection(&connection);
                       }};
  Connections connections_{{.max_unfinished = kMaxOpen}};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Listener> listener_;
  std::string address_;
};

TEST_F(UnfinishedCallsTest, ShutsTheOneThatMakesThemFasterThanTheyEnd) {
  Client honest(address_), hostile(address_);
  Client::Call* of_honest = honest.Begin();
  ASSERT_TRUE(WaitUntil([&] { return service_.num_begun() == 1; }));
  Client::Call* kept = hostile.Begin();
  ASSERT_TRUE(WaitUntil([&] { return service_.num_begun() == 2; }));
  for (int i = 1; i < kMaxOpen; ++i) ASSERT_NO_FATAL_FAILURE(CallAndCancel(&hostile));
  EXPECT_FALSE(kept->has_ended) << "as many as it may have";
  hostile.Begin();
  hostile.WaitFor(kept);
  EXPECT_EQ(kept->status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(WaitUntil([&] { return service_.num_begun() == kMaxOpen + 2; })) << "the last one was one too many";
  EXPECT_FALSE(of_honest->has_ended);
  service_.LetGo();
  honest.WaitFor(of_honest);
  EXPECT_TRUE(of_honest->status.ok()) << of_honest->status.error_message();
}

TEST_F(UnfinishedCallsTest, CallsThatEndDoNotCount) {
  Client client(address_);
  Client::Call* kept = client.Begin();
  ASSERT_TRUE(WaitUntil([&] { return service_.num_begun() == 1; }));
  // More than it may have, though not at the same time.
  for (int round = 0; round < 10; ++round) {
    for (int i = 1; i < kMaxOpen / 4; ++i) ASSERT_NO_FATAL_FAILURE(CallAndCancel(&client));
    service_.LetGo();
    client.WaitFor(kept);
    EXPECT_TRUE(kept->status.ok()) << kept->status.error_message();
    const int before = service_.num_begun();
    kept = client.Begin();
    ASSERT_TRUE(WaitUntil([&] { return service_.num_begun() > before; }));
  }
}

const identity::Principal kAlice = {identity::Role::kUser, "alice", "vision"};
const identity::Principal kBob = {identity::Role::kUser, "bob", "audio"};
const identity::Principal kWorker = {identity::Role::kWorker, "worker", ""};

// Both ends of TCP connections by which calls come.
class ConnectionsTest : public testing::Test {
 protected:
  static constexpr int64_t kIdleBytes = 1000;
  void SetUp() override {
    auto listener = Listener::Listen("127.0.0.1:0");
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    listener_->Start(1000, [this](int, int fd) { arrived_ = fd; });
  }
  void TearDown() override {
    listener_.reset();
    for (const int fd : fds_) close(fd);
  }
  struct Connection {
    int client = -1, server = -1;
    std::string peer;
  };
  Connection Connect() {
    Connection made{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), -1, ""};
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(listener_->address().substr(listener_->address().rfind(':') + 1), &port));
    address.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(connect(made.client, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_TRUE(WaitUntil([&] { return (made.server = arrived_.exchange(-1)) >= 0; }));
    made.peer = "ipv4:" + AddressOfOtherEnd(made.server);
    fds_.insert(fds_.end(), {made.client, made.server});
    return made;
  }
  static void Call(Connections* connections, const Connection& by, std::optional<identity::Principal> who) {
    connections->Begin(by.peer, by.server, who);
    connections->End(by.peer);
  }
  static void Send(const Connection& by, size_t num_bytes) {
    const std::string text(num_bytes, 'x');
    EXPECT_EQ(send(by.client, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(num_bytes));
  }
  static bool IsEnded(const Connection& one) {
    char byte = 0;
    return recv(one.client, &byte, 1, MSG_DONTWAIT) == 0;
  }

  Connections::Limits limits_ = {.max_unfinished = 3, .idle_bytes = kIdleBytes, .calm_seconds = 0.5};
  std::vector<std::string> shut_out_;
  const Connections::ShutOut note_ = [this](const identity::Principal& who, const std::string& did) {
    shut_out_.push_back(absl::StrCat(identity::Describe(who), " ", did));
  };
  std::atomic<int> arrived_{-1};
  std::unique_ptr<Listener> listener_;
  std::vector<int> fds_;
};

TEST_F(ConnectionsTest, WhoSendsMuchWithoutACallIsShutOutWithAllItsConnections) {
  Connections connections(limits_, note_);
  const Connection hostile = Connect(), also = Connect(), modest = Connect(), busy = Connect(), worker = Connect();
  Call(&connections, hostile, kAlice);
  Call(&connections, also, kAlice);
  Call(&connections, modest, kBob);
  connections.Begin(busy.peer, busy.server, kBob);
  Call(&connections, worker, kWorker);
  Send(also, 3 * kIdleBytes);  // It was on the way when the call ended.
  absl::SleepFor(absl::Milliseconds(1500));
  EXPECT_FALSE(IsEnded(also));
  Send(modest, kIdleBytes);
  Send(busy, 3 * kIdleBytes);
  Send(hostile, kIdleBytes + 1);
  ASSERT_TRUE(WaitUntil([&] { return IsEnded(hostile) && IsEnded(also); }));
  EXPECT_EQ(shut_out_, std::vector<std::string>({"user alice of project vision made a connection that sent 1001 bytes "
                                                 "without a call"}));
  absl::SleepFor(absl::Seconds(1));
  for (const Connection* one : {&modest, &busy, &worker}) EXPECT_FALSE(IsEnded(*one));
  connections.End(busy.peer);
}

// Calls of an honest client time out while the coordinator waits for its disk.
TEST_F(ConnectionsTest, UnfinishedCallsEndTheirConnectionAlone) {
  Connections connections(limits_, note_);
  const Connection hostile = Connect(), also = Connect();
  Call(&connections, also, kAlice);
  for (int i = 0; i < 3; ++i) connections.Begin(hostile.peer, hostile.server, kAlice);
  EXPECT_FALSE(IsEnded(hostile));
  connections.Begin(hostile.peer, -1, kAlice);
  EXPECT_TRUE(IsEnded(hostile));
  EXPECT_FALSE(IsEnded(also));
  EXPECT_TRUE(shut_out_.empty());
}

TEST_F(ConnectionsTest, AllOfAPrincipalAreEnded) {
  Connections connections(limits_, note_);
  const Connection one = Connect(), another = Connect(), other = Connect();
  Call(&connections, one, kAlice);
  connections.Begin(another.peer, another.server, kAlice);
  Call(&connections, other, kBob);
  connections.ShutOutAll(kAlice, "did harm");
  EXPECT_TRUE(IsEnded(one) && IsEnded(another));
  EXPECT_FALSE(IsEnded(other));
  EXPECT_EQ(shut_out_, std::vector<std::string>({"user alice of project vision did harm"}));
  connections.End(another.peer);
}

// Its certificate may be that of many machines.
TEST_F(ConnectionsTest, OfAWorkerOneConnectionIsEnded) {
  Connections connections(limits_, note_);
  const Connection hostile = Connect(), other = Connect();
  Call(&connections, other, kWorker);
  Call(&connections, hostile, kWorker);
  absl::SleepFor(absl::Seconds(1));
  Send(hostile, 3 * kIdleBytes);
  EXPECT_TRUE(WaitUntil([&] { return IsEnded(hostile); }));
  EXPECT_FALSE(IsEnded(other));
}

TEST_F(ConnectionsTest, ADescriptorThatIsAnothersByNowIsLeftAlone) {
  Connections connections(limits_, note_);
  const Connection gone = Connect(), other = Connect();
  Call(&connections, gone, kAlice);
  ASSERT_EQ(dup2(other.server, gone.server),
            gone.server);  // As if it had been closed, and the next one got its number.
  absl::SleepFor(absl::Seconds(1));
  Send(other, 3 * kIdleBytes);
  absl::SleepFor(absl::Seconds(1));
  EXPECT_FALSE(IsEnded(other));
  EXPECT_TRUE(shut_out_.empty());
}

TEST(OpenStreamsTest, NobodyKeepsTheOthersOut) {
  OpenStreams streams({.of_one = 3, .of_all = 5});
  std::vector<std::shared_ptr<void>> open;
  const auto try_open = [&](const std::string& caller) {
    auto ticket = streams.Open(caller);
    if (!ticket.ok()) return std::string(ticket.status().message());
    open.push_back(*std::move(ticket));
    return std::string("open");
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(try_open("viewer eve"), "open");
  EXPECT_EQ(try_open("viewer eve"),
            "viewer eve may have 3 streams of Watch and Logs open; try again when one has ended");
  EXPECT_EQ(try_open("user alice of project vision"), "open");
  EXPECT_EQ(try_open("admin root"), "open");
  EXPECT_THAT(try_open("admin root"), HasSubstr("there are 5 streams of Watch and Logs open"));
  open.erase(open.begin());
  EXPECT_EQ(try_open("viewer eve"), "open");
  open.clear();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(try_open(""), "open");
  EXPECT_THAT(try_open(""), HasSubstr("the callers may have 3 streams"));
}

class PrincipalCallsTest : public TlsServerTest {
 protected:
  static grpc::Status List(v1::CoordinatorService::Stub* stub) {
    grpc::ClientContext context;
    v1::ListResponse response;
    return stub->List(&context, v1::ListRequest(), &response);
  }
};

TEST_F(PrincipalCallsTest, WhoCallsTooOftenIsToldWhenToTryAgain) {
  options_.call_limits.calls_per_second = 0.1;  // One call, and then one in ten seconds.
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto alice = Client("alice");
  EXPECT_TRUE(List(alice.get()).ok());
  const grpc::Status refused = List(alice.get());
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("user alice of project vision makes more than 0.1 calls a second"));
  EXPECT_THAT(refused.error_message(), HasSubstr("try again in 10 s"));
  EXPECT_EQ(List(Client("alice").get()).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
      << "another connection is no way around";
  EXPECT_TRUE(List(Client("bob").get()).ok());
  EXPECT_TRUE(WaitUntil([&] { return List(alice.get()).ok(); }));
}

TEST_F(PrincipalCallsTest, ItHasAQuarterOfAllConnections) {
  options_.max_open_files = 400;  // 300 of them for connections; this process has both ends of each.
  options_.call_limits.calls_per_second = 1e6;
  ASSERT_NO_FATAL_FAILURE(Start());
  constexpr size_t kMost = 300 / 4;
  std::list<std::unique_ptr<v1::CoordinatorService::Stub>> alice;
  const auto may_have_one_more = [&] {
    alice.push_back(Client("alice"));
    return List(alice.back().get()).error_code();
  };
  while (alice.size() < kMost) ASSERT_EQ(may_have_one_more(), grpc::StatusCode::OK) << alice.size();
  EXPECT_EQ(may_have_one_more(), grpc::StatusCode::UNAVAILABLE);
  alice.pop_back();
  for (const auto& stub : alice) EXPECT_TRUE(List(stub.get()).ok()) << "those that it has stay";
  EXPECT_TRUE(List(Client("bob").get()).ok());
  // Those that were closed count no more.
  alice.resize(kMost / 2);
  EXPECT_TRUE(WaitUntil([&] {
    const bool may = may_have_one_more() == grpc::StatusCode::OK;
    if (!may) alice.pop_back();
    return may;
  }));
  EXPECT_EQ(alice.size(), kMost / 2 + 1);
}

TEST_F(PrincipalCallsTest, AConnectionHas256CallsAtATime) {
  constexpr char kWatch[] = "/grpc.health.v1.Health/Watch";
  grpc::CompletionQueue queue;
  std::list<grpc::ClientContext> contexts;
  std::vector<std::unique_ptr<grpc::GenericClientAsyncReaderWriter>> streams;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const std::shared_ptr<grpc::Channel> channel = Connect("alice");
  grpc::GenericStub stub(channel);
  for (int i = 0; i < 256; ++i) {
    streams.push_back(stub.PrepareCall(&contexts.emplace_back(), kWatch, &queue));
    streams.back()->StartCall(nullptr);
    ASSERT_TRUE(next()) << i;
  }
  // HTTP/2 has told the client how many there may be: its next call waits.
  const auto list = [&](std::chrono::seconds patience) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + patience);
    v1::ListResponse response;
    return v1::CoordinatorService::NewStub(channel)->List(&context, v1::ListRequest(), &response).error_code();
  };
  EXPECT_EQ(list(std::chrono::seconds(1)), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(List(Client("alice").get()).ok()) << "by another connection";
  contexts.front().TryCancel();
  EXPECT_EQ(list(std::chrono::seconds(20)), grpc::StatusCode::OK);
  for (grpc::ClientContext& context : contexts) context.TryCancel();
  for (auto& stream : streams) {
    grpc::Status status;
    stream->Finish(&status, nullptr);
    next();
  }
}

TEST_F(PrincipalCallsTest, APlanIsAsSmallAsAJob) {
  grpc::ClientContext context;
  v1::PlanRequest request;
  *request.mutable_spec() = TestSpec("toy", dir_.path() + "/runs", 1);
  request.set_cluster_json(std::string(1 << 20, ' '));
  v1::PlanResponse response;
  const grpc::Status status = Client("alice")->Plan(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("bytes, at most 1048576"));
}

TEST_F(PrincipalCallsTest, OnlySoManyOfItsStreamsAreOpen) {
  constexpr char kWatch[] = "/grpc.health.v1.Health/Watch";
  options_.call_limits.max_open = 3;
  ASSERT_NO_FATAL_FAILURE(Start());
  grpc::GenericStub stub(Connect("alice"));
  grpc::CompletionQueue queue;
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  std::list<grpc::ClientContext> contexts;
  std::vector<std::unique_ptr<grpc::GenericClientAsyncReaderWriter>> streams;
  for (int i = 0; i < 3; ++i) {
    streams.push_back(stub.PrepareCall(&contexts.emplace_back(), kWatch, &queue));
    streams.back()->StartCall(nullptr);
    ASSERT_TRUE(done());
    streams.back()->Write(Buffer(""), nullptr);
    ASSERT_TRUE(done());
    grpc::ByteBuffer answer;
    streams.back()->Read(&answer, nullptr);
    ASSERT_TRUE(done()) << "it is open";
  }
  const auto alice = Client("alice");
  const grpc::Status refused = List(alice.get());
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("user alice of project vision has 3 calls open, and may have 3"));
  EXPECT_TRUE(List(Client("bob").get()).ok());
  contexts.front().TryCancel();
  EXPECT_TRUE(WaitUntil([&] { return List(alice.get()).ok(); }));
  for (grpc::ClientContext& context : contexts) context.TryCancel();
  for (auto& stream : streams) {
    grpc::Status status;
    stream->Finish(&status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
  }
}

}  // namespace
}  // namespace tacc::coordinator
