#include "worker/rank/session/client_link.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "graph/ir/fingerprint.h"
#include "graph/ir/status_macros.h"

namespace tacc::worker {
namespace {

using nlohmann::json;

// Of the frames; a client of another version is refused.
constexpr int kProtocol = 1;
// Who has not shown the token by then has gone, or means harm.
constexpr absl::Duration kPatience = absl::Seconds(10);
constexpr size_t kMaxConnections = 16;
// A client that takes nothing for so long has gone.
constexpr int kWriteMilliseconds = 30'000;
constexpr uint32_t kMaxHeaderBytes = 1 << 20;
constexpr int kAnswersKept = 2;

absl::Status Unavailable(const std::string& what) {
  return absl::UnavailableError(absl::StrCat("cannot listen for a client, ", what, ": ", strerror(errno)));
}

absl::StatusOr<std::string> RandomHex() {
  char bytes[16];
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) return Unavailable("getrandom");
  return absl::BytesToHexString(absl::string_view(bytes, sizeof(bytes)));
}

// Takes as long for any text of the token's length.
bool IsToken(const json& given, const std::string& token) {
  if (!given.is_string()) return false;
  const std::string text = given.get<std::string>();
  if (text.size() != token.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < text.size(); ++i) difference |= static_cast<unsigned char>(text[i] ^ token[i]);
  return difference == 0;
}

json InputsJson(const std::vector<ClientInput>& inputs) {
  json list = json::array();
  for (const ClientInput& input : inputs) list.push_back(input.ToJson());
  return list;
}

bool IsOwn(int fd) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && (peer.uid == geteuid() || peer.uid == 0);
}

}  // namespace

ClientLink::Connection::~Connection() {
  if (memory_fd >= 0) close(memory_fd);
  if (fd >= 0) close(fd);
}

absl::StatusOr<std::unique_ptr<ClientLink>> ClientLink::Open(Options options) {
  std::unique_ptr<ClientLink> link(new ClientLink(std::move(options)));
  TACC_RETURN_IF_ERROR(link->Listen());
  link->left_ = absl::Now();
  link->thread_ = std::thread(&ClientLink::Loop, link.get());
  return link;
}

ClientLink::~ClientLink() {
  {
    absl::MutexLock lock(&mutex_);
    ends_ = true;
  }
  if (wake_ >= 0) (void)eventfd_write(wake_, 1);
  if (thread_.joinable()) thread_.join();
  for (const int fd : {local_listener_, listener_, wake_}) {
    if (fd >= 0) close(fd);
  }
}

absl::Status ClientLink::Listen() {
  constexpr int kBacklog = 16;
  TACC_ASSIGN_OR_RETURN(endpoint_.token, RandomHex());
  TACC_ASSIGN_OR_RETURN(const std::string name, RandomHex());
  // An abstract name: nothing is left behind by a rank that is killed.
  endpoint_.local = absl::StrCat("tacc-rank-", name);
  sockaddr_un local = {};
  local.sun_family = AF_UNIX;
  std::memcpy(local.sun_path + 1, endpoint_.local.data(), endpoint_.local.size());
  const socklen_t local_size = offsetof(sockaddr_un, sun_path) + 1 + endpoint_.local.size();
  local_listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (local_listener_ < 0 || bind(local_listener_, reinterpret_cast<sockaddr*>(&local), local_size) != 0 ||
      listen(local_listener_, kBacklog) != 0) {
    return Unavailable("a Unix socket");
  }
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  if (const int error = getaddrinfo(options_.advertise.c_str(), "0", &hints, &found); error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen for a client at ", options_.advertise, ": ", gai_strerror(error)));
  }
  listener_ = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool listens =
      listener_ >= 0 && bind(listener_, found->ai_addr, found->ai_addrlen) == 0 && listen(listener_, kBacklog) == 0;
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  const bool is_known = listens && getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &size) == 0;
  freeaddrinfo(found);
  if (!is_known) return Unavailable(options_.advertise);
  endpoint_.host = options_.advertise;
  // Both families have the port at the same place.
  endpoint_.port = ntohs(reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return wake_ >= 0 ? absl::OkStatus() : Unavailable("eventfd");
}

void ClientLink::Loop() {
  while (true) {
    std::vector<pollfd> polled = {{wake_, POLLIN, 0}, {local_listener_, POLLIN, 0}, {listener_, POLLIN, 0}};
    for (const auto& connection : connections_)
      polled.push_back({connection->fd, static_cast<int16_t>(MayRead(*connection) ? POLLIN : 0), 0});
    constexpr int kTickMilliseconds = 1000;
    (void)poll(polled.data(), polled.size(), kTickMilliseconds);
    eventfd_t ignored;
    (void)eventfd_read(wake_, &ignored);
    {
      absl::MutexLock lock(&mutex_);
      if (ends_) return;
    }
    size_t i = 3;
    for (auto it = connections_.begin(); it != connections_.end(); ++i) {
      const std::shared_ptr<Connection> connection = *it;
      const bool is_late = !connection->is_attached && absl::Now() - connection->since > kPatience;
      const bool stays = !is_late && (polled[i].revents == 0 || Read(connection));
      if (!stays) Forget(connection);
      it = stays ? std::next(it) : connections_.erase(it);
    }
    Accept(local_listener_, /*is_local=*/true);
    Accept(listener_, /*is_local=*/false);
  }
}

void ClientLink::Accept(int listener, bool is_local) {
  while (true) {
    auto connection = std::make_shared<Connection>();
    connection->fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (connection->fd < 0) return;
    if (connections_.size() >= kMaxConnections || (is_local && !IsOwn(connection->fd))) continue;
    const int on = 1;
    if (!is_local) (void)setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    connection->is_local = is_local;
    connection->since = absl::Now();
    connections_.push_back(std::move(connection));
  }
}

void ClientLink::Forget(const std::shared_ptr<Connection>& connection) {
  absl::MutexLock lock(&mutex_);
  if (attached_ != connection) return;
  attached_ = nullptr;
  left_ = absl::Now();
}

bool ClientLink::MayRead(const Connection& connection) {
  absl::MutexLock lock(&mutex_);
  // One that a later client has replaced says nothing any more.
  return !connection.is_attached || (attached_.get() == &connection && next_ == nullptr);
}

bool ClientLink::Read(const std::shared_ptr<Connection>& connection) {
  if (!MayRead(*connection)) return false;  // What poll reports all the same is that it is over.
  while (MayRead(*connection)) {
    const absl::Span<char> space = connection->reader.Space();
    const ssize_t count = Receive(*connection, space);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (count <= 0) return false;
    const absl::StatusOr<bool> is_whole =
        connection->reader.Read(count, [&](const json&) -> absl::StatusOr<int64_t> { return MaxBytes(*connection); });
    absl::Status status = is_whole.status();
    if (status.ok() && *is_whole) {
      status = connection->is_attached ? TakeCommand(connection) : Attach(connection);
      connection->reader.Reset(kMaxHeaderBytes);
    }
    if (!status.ok()) {
      (void)Write(*connection, FrameHead({{"error", std::string(status.message())}}, 0), "");
      return false;
    }
  }
  return true;
}

ssize_t ClientLink::Receive(Connection& connection, absl::Span<char> space) {
  iovec part = {space.data(), space.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (connection.is_local) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  const ssize_t count = recvmsg(connection.fd, &message, MSG_CMSG_CLOEXEC);
  if (count <= 0) return count;
  for (cmsghdr* part_of = CMSG_FIRSTHDR(&message); part_of != nullptr; part_of = CMSG_NXTHDR(&message, part_of)) {
    if (part_of->cmsg_level != SOL_SOCKET || part_of->cmsg_type != SCM_RIGHTS) continue;
    if (connection.memory_fd >= 0) close(connection.memory_fd);
    std::memcpy(&connection.memory_fd, CMSG_DATA(part_of), sizeof(int));
  }
  return count;
}

int64_t ClientLink::MaxBytes(const Connection& connection) const {
  if (!connection.is_attached) return 0;
  int64_t most = 0;
  for (const ClientBucket& bucket : options_.buckets) {
    int64_t bytes = 0;
    for (const ClientInput& input : bucket.inputs) bytes += input.bytes;
    most = std::max(most, bytes);
  }
  return kMaxStateBytes + options_.num_micro_batches * most;
}

absl::Status ClientLink::Attach(const std::shared_ptr<Connection>& connection) {
  const json& hello = connection->reader.header;
  if (!hello.contains("token") || !IsToken(hello["token"], endpoint_.token)) {
    return absl::UnauthenticatedError(
        "the token is not that of this attempt of the job; ask the coordinator for the "
        "endpoints again");
  }
  if (hello.value("protocol", json()) != kProtocol) {
    return absl::InvalidArgumentError(absl::StrCat("the client speaks protocol ",
                                                   hello.value("protocol", json()).dump(), ", the rank ", kProtocol,
                                                   "; install the same version on both"));
  }
  const json client = hello.value("client", json());
  if (!client.is_string()) return absl::InvalidArgumentError("\"client\" is no text");
  if (connection->memory_fd >= 0) {
    TACC_ASSIGN_OR_RETURN(connection->ring, Ring::Map(connection->memory_fd));
  }
  absl::MutexLock lock(&mutex_);
  if (attached_ != nullptr) {
    (void)Write(*attached_, FrameHead({{"error", "another client drives the job now"}, {"code", "replaced"}}, 0), "");
    shutdown(attached_->fd, SHUT_RDWR);
  }
  attached_ = connection;
  connection->is_attached = true;
  if (client != client_) answered_.clear();
  client_ = connection->client = client.get<std::string>();
  // It sends again what it has no answer to.
  next_ = nullptr;
  is_welcome_due_ = true;
  if (taken_.empty()) Welcome();
  return absl::OkStatus();
}

void ClientLink::Welcome() {
  if (!is_welcome_due_ || attached_ == nullptr) return;
  is_welcome_due_ = false;
  std::string bytes;
  json welcome = options_.welcome(&bytes);
  welcome["protocol"] = kProtocol;
  welcome["serial"] = answered_.empty() ? 0 : answered_.back().serial;
  welcome["num_micro_batches"] = options_.num_micro_batches;
  welcome["inputs"] = InputsJson(options_.buckets[0].inputs);
  if (options_.buckets.size() > 1) welcome["seq_len"] = options_.buckets[0].seq_len;
  for (size_t i = 1; i < options_.buckets.size(); ++i) {
    const ClientBucket& bucket = options_.buckets[i];
    welcome["buckets"].push_back({{"seq_len", bucket.seq_len}, {"inputs", InputsJson(bucket.inputs)}});
  }
  if (!Write(*attached_, FrameHead(std::move(welcome), bytes.size()), bytes)) shutdown(attached_->fd, SHUT_RDWR);
}

absl::Status ClientLink::TakeCommand(const std::shared_ptr<Connection>& connection) {
  TACC_ASSIGN_OR_RETURN(std::shared_ptr<ClientCommand> command, ParseCommand(*connection));
  absl::MutexLock lock(&mutex_);
  if (attached_ != connection) return absl::OkStatus();
  for (const Answered& answered : answered_) {
    if (answered.serial != command->serial) continue;
    if (!Write(*connection, answered.head, answered.bytes)) shutdown(connection->fd, SHUT_RDWR);
    return absl::OkStatus();
  }
  for (const std::shared_ptr<const ClientCommand>& taken : taken_) {
    // Its answer is still to come.
    if (taken->client == client_ && taken->serial == command->serial) return absl::OkStatus();
  }
  const uint64_t last = !taken_.empty() ? taken_.back()->serial : answered_.empty() ? 0 : answered_.back().serial;
  if (command->serial <= last) {
    return absl::InvalidArgumentError(
        absl::StrCat("command ", command->serial, " comes after command ", last, "; serial numbers rise"));
  }
  command->client = client_;
  next_ = std::move(command);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ClientCommand>> ClientLink::ParseCommand(Connection& connection) const {
  const json& header = connection.reader.header;
  auto command = std::make_shared<ClientCommand>();
  TACC_RETURN_IF_ERROR(ParseHeader(header, *command));
  TACC_ASSIGN_OR_RETURN(const uint64_t state_bytes, WholeNumber(header, "state_bytes", 0));
  command->bytes = std::move(connection.reader.bytes);
  if (state_bytes > command->bytes.size() || state_bytes > static_cast<uint64_t>(kMaxStateBytes)) {
    return absl::InvalidArgumentError(absl::StrCat("a state of ", state_bytes, " bytes in a command of ",
                                                   command->bytes.size(), "; at most ", kMaxStateBytes, " may be"));
  }
  const size_t tensor_bytes = command->bytes.size() - state_bytes;
  command->state = command->bytes.substr(tensor_bytes);
  command->bytes.resize(tensor_bytes);
  command->ring = connection.ring;
  TACC_RETURN_IF_ERROR(PlaceTensors(header, *command));
  uint64_t hash = 0;
  // Where the tensors lie is each rank's own.
  json shared = header;
  for (const char* own : {"offsets", "bytes"}) shared.erase(own);
  const std::string same =
      absl::StrCat(connection.client, " ", shared.dump(-1, ' ', false, json::error_handler_t::replace));
  (void)absl::SimpleHexAtoi(graph::Fingerprint(same), &hash);
  command->name = hash;
  return command;
}

absl::StatusOr<std::vector<size_t>> ClientLink::BucketsOf(const json& header, uint64_t num_micro_batches) const {
  std::vector<size_t> buckets(num_micro_batches);
  const auto lengths = header.find("lengths");
  if (lengths == header.end()) return buckets;
  if (!lengths->is_array() || lengths->size() != num_micro_batches)
    return absl::InvalidArgumentError("\"lengths\" is no list of a length for each micro-batch");
  for (uint64_t m = 0; m < num_micro_batches; ++m) {
    const auto found = std::find_if(options_.buckets.begin(), options_.buckets.end(),
                                    [&](const ClientBucket& bucket) { return (*lengths)[m] == json(bucket.seq_len); });
    if (found == options_.buckets.end()) {
      const auto length = [](std::string* out, const ClientBucket& bucket) { absl::StrAppend(out, bucket.seq_len); };
      return absl::InvalidArgumentError(
          absl::StrCat("a micro-batch of length ", (*lengths)[m].dump().substr(0, 80), "; the job is compiled for ",
                       absl::StrJoin(options_.buckets, ", ", length), " (data.seq_len and data.client.buckets)"));
    }
    buckets[m] = found - options_.buckets.begin();
  }
  return buckets;
}

absl::Status ClientLink::PlaceTensors(const json& header, ClientCommand& command) const {
  using Kind = ClientCommand::Kind;
  TACC_ASSIGN_OR_RETURN(const uint64_t given, WholeNumber(header, "micro_batches", 0));
  const auto most = static_cast<uint64_t>(options_.num_micro_batches);
  const bool takes_some = command.kind == Kind::kForward      ? given >= 1 && given <= most
                          : command.kind == Kind::kStep       ? given == most
                          : command.kind == Kind::kMicroBatch ? given >= 1 && given <= most
                                                              : given == 0;
  if (!takes_some)
    return absl::InvalidArgumentError(absl::StrCat("a command with ", given, " micro-batches; a step has ", most));
  TACC_ASSIGN_OR_RETURN(command.buckets, BucketsOf(header, given));
  const json* const offsets = header.contains("offsets") ? &header["offsets"] : nullptr;
  if (offsets != nullptr && (command.ring == nullptr || !offsets->is_array() || offsets->size() != given))
    return absl::InvalidArgumentError(
        "\"offsets\" are no list of a list for each micro-batch, in memory that was given");
  uint64_t next = 0;  // In the bytes behind the header.
  for (uint64_t m = 0; m < given; ++m) {
    std::vector<const char*>& of_batch = command.tensors.emplace_back();
    const std::vector<ClientInput>& inputs = options_.buckets[command.buckets[m]].inputs;
    if (offsets != nullptr && (!(*offsets)[m].is_array() || (*offsets)[m].size() != inputs.size()))
      return absl::InvalidArgumentError("\"offsets\" do not have one for each input");
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto bytes = static_cast<uint64_t>(inputs[i].bytes);
      const auto size = offsets == nullptr ? command.bytes.size() : static_cast<uint64_t>(command.ring->size());
      const json at = offsets == nullptr ? json(next) : (*offsets)[m][i];
      if (!at.is_number_unsigned() || at.get<uint64_t>() > size || bytes > size - at.get<uint64_t>()) {
        return absl::InvalidArgumentError(absl::StrCat("input \"", inputs[i].name, "\" of ", bytes, " bytes at ",
                                                       at.dump(), " is not inside the ", size,
                                                       " bytes that were given"));
      }
      of_batch.push_back((offsets == nullptr ? command.bytes.data() : command.ring->data()) + at.get<uint64_t>());
      next += bytes;
    }
  }
  if (offsets == nullptr && next != command.bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a command with ", command.bytes.size(), " bytes of inputs; the rank reads ", next));
  }
  return absl::OkStatus();
}

bool ClientLink::Write(Connection& connection, const std::string& head, const std::string& bytes) {
  absl::MutexLock lock(&connection.write_mutex);
  for (const std::string* text : {&head, &bytes}) {
    for (size_t sent = 0; sent < text->size();) {
      const ssize_t count = send(connection.fd, text->data() + sent, text->size() - sent, MSG_NOSIGNAL);
      if (count > 0) {
        sent += count;
        continue;
      }
      if (errno == EINTR) continue;
      pollfd room = {connection.fd, POLLOUT, 0};
      if (errno != EAGAIN || poll(&room, 1, kWriteMilliseconds) <= 0) return false;
    }
  }
  return true;
}

std::shared_ptr<const ClientCommand> ClientLink::Next(absl::Duration time_out) {
  absl::MutexLock lock(&mutex_);
  const auto has_come = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return next_ != nullptr; };
  mutex_.AwaitWithTimeout(absl::Condition(&has_come), time_out);
  return next_;
}

void ClientLink::Take(const std::shared_ptr<const ClientCommand>& command) {
  {
    absl::MutexLock lock(&mutex_);
    taken_.push_back(command);
    // It may have been sent again since Next.
    if (next_ != nullptr && next_->client == command->client && next_->serial == command->serial) next_ = nullptr;
  }
  // The connection may be read again.
  (void)eventfd_write(wake_, 1);
}

void ClientLink::Answer(json answer, const std::string& bytes) {
  std::shared_ptr<Connection> to;
  Answered answered;
  {
    absl::MutexLock lock(&mutex_);
    const std::shared_ptr<const ClientCommand> command = taken_.front();
    taken_.pop_front();
    answer["serial"] = command->serial;
    answered = {command->serial, FrameHead(std::move(answer), bytes.size()), bytes};
    // Not of a client that has gone: another one counts anew.
    if (command->client == client_) {
      answered_.push_back(answered);
      if (answered_.size() > kAnswersKept) answered_.pop_front();
      // One that has come meanwhile sends the command again.
      if (!is_welcome_due_) to = attached_;
    }
    if (taken_.empty()) Welcome();
  }
  if (to != nullptr && !Write(*to, answered.head, answered.bytes)) shutdown(to->fd, SHUT_RDWR);
}

absl::Duration ClientLink::WithoutClient() {
  absl::MutexLock lock(&mutex_);
  return attached_ != nullptr ? absl::ZeroDuration() : absl::Now() - left_;
}

}  // namespace tacc::worker
