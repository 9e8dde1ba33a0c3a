#include "worker/rank/session/client_link.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "graph/ir/fingerprint.h"
#include "graph/ir/status_macros.h"
#include "machine/secret.h"
#include "worker/rank/session/client_socket.h"
#include "worker/rank/session/inflate.h"

namespace tacc::worker {
namespace {

using nlohmann::json;

// Of the frames; a client of another version is refused.
constexpr int kProtocol = 1;
// Who has not shown the token by then has gone, or means harm.
constexpr absl::Duration kPatience = absl::Seconds(5);
constexpr uint32_t kMaxHeaderBytes = 1 << 20;
constexpr size_t kAnswersKept = 2;
constexpr int kBacklog = 128;

absl::Status Unavailable(const std::string& what) {
  return absl::UnavailableError(absl::StrCat("cannot listen for a client, ", what, ": ", strerror(errno)));
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

std::shared_ptr<const Outbox::Message> MessageOf(json header, std::string bytes = "") {
  std::string head = FrameHead(std::move(header), bytes.size());
  return std::make_shared<const Outbox::Message>(Outbox::Message{std::move(head), std::move(bytes)});
}

}  // namespace

ClientLink::Connection::~Connection() {
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
  TACC_ASSIGN_OR_RETURN(endpoint_.token, NewSecret());
  TACC_RETURN_IF_ERROR(ListenLocally());
  if (options_.local_folder.empty()) TACC_RETURN_IF_ERROR(ListenOverTcp());
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return wake_ >= 0 ? absl::OkStatus() : Unavailable("eventfd");
}

absl::Status ClientLink::ListenLocally() {
  TACC_ASSIGN_OR_RETURN(const std::string name, NewSecret());
  // Of an abstract name nothing is left behind by a rank that is killed; the folder is its daemon's to clear.
  endpoint_.local = options_.local_folder.empty() ? absl::StrCat("tacc-rank-", name)
                                                  : absl::StrCat(options_.local_folder, "/", name, ".sock");
  local_listener_ = worker::ListenLocally(endpoint_.local, kBacklog);
  return local_listener_ >= 0 ? absl::OkStatus() : Unavailable("a Unix socket");
}

absl::Status ClientLink::ListenOverTcp() {
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
  return absl::OkStatus();
}

void ClientLink::Loop() {
  while (true) {
    // Who cannot be accepted, as by a process without a descriptor, is looked at again after a tick.
    const int16_t comes = accepts_ ? POLLIN : 0;
    std::vector<pollfd> polled = {{wake_, POLLIN, 0}, {local_listener_, comes, 0}, {listener_, comes, 0}};
    for (const auto& connection : connections_) polled.push_back({connection->fd, Events(*connection), 0});
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
      const bool stays = !IsLate(*connection) && Serve(connection, polled[i].revents);
      if (!stays) Forget(connection);
      it = stays ? std::next(it) : connections_.erase(it);
    }
    accepts_ = true;
    Accept(local_listener_, /*is_local=*/true);
    if (listener_ >= 0) Accept(listener_, /*is_local=*/false);
  }
}

void ClientLink::Accept(int listener, bool is_local) {
  // Those of one round leave each other their places, so that each is read once before it may have to go.
  for (size_t count = 0; count < kMaxWaiting; ++count) {
    auto connection = std::make_shared<Connection>();
    connection->fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (connection->fd < 0) {
      accepts_ = accepts_ && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED);
      return;
    }
    if (is_local && !IsOwn(connection->fd)) continue;
    if (!is_local) KeepAlive(connection->fd);
    connection->is_local = is_local;
    connection->since = absl::Now();
    const auto waits = [&](const auto& other) { return !other->is_attached && other->is_local == is_local; };
    if (std::count_if(connections_.begin(), connections_.end(), waits) >= static_cast<int64_t>(kMaxWaiting))
      connections_.erase(std::find_if(connections_.begin(), connections_.end(), waits));
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
  const bool is_heard = !connection.is_attached || (attached_.get() == &connection && next_ == nullptr);
  // It has two answers to read at most when it asks for more.
  return is_heard && !connection.ends && connection.outbox.size() < kAnswersKept;
}

int16_t ClientLink::Events(const Connection& connection) {
  const bool reads = MayRead(connection);
  absl::MutexLock lock(&mutex_);
  return static_cast<int16_t>((reads ? POLLIN : 0) | (connection.outbox.size() > 0 ? POLLOUT : 0));
}

bool ClientLink::IsLate(const Connection& connection) {
  const absl::Time now = absl::Now();
  absl::MutexLock lock(&mutex_);
  return (!connection.is_attached && now - connection.since > kPatience) || connection.outbox.IsLate(now);
}

bool ClientLink::Serve(const std::shared_ptr<Connection>& connection, int events) {
  if ((events & POLLOUT) != 0) {
    absl::MutexLock lock(&mutex_);
    if (!connection->outbox.Send(connection->fd, absl::Now())) return false;
    if (connection->ends && connection->outbox.size() == 0) return false;
  }
  if ((events & ~POLLOUT) == 0) return true;
  // What poll reports of one that is not read is that it is over.
  return MayRead(*connection) ? Read(connection) : (events & (POLLHUP | POLLERR)) == 0;
}

void ClientLink::Post(Connection& connection, std::shared_ptr<const Outbox::Message> message) {
  connection.outbox.Push(std::move(message), absl::Now());
  if (!connection.outbox.Send(connection.fd, absl::Now())) shutdown(connection.fd, SHUT_RDWR);
}

bool ClientLink::Read(const std::shared_ptr<Connection>& connection) {
  while (MayRead(*connection)) {
    const absl::Span<char> space = connection->reader.Space();
    const bool takes_memory = connection->is_local && !connection->is_attached;
    const ssize_t count = Receive(connection->fd, space, takes_memory ? &connection->memory : nullptr);
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
      absl::MutexLock lock(&mutex_);
      Post(*connection, MessageOf({{"error", std::string(status.message())}}));
      connection->ends = true;
      return connection->outbox.size() > 0;
    }
  }
  return true;
}

int64_t ClientLink::MaxBytes(const Connection& connection) const {
  if (!connection.is_attached) return 0;
  int64_t most = 0;
  for (const ClientBucket& bucket : options_.buckets) most = std::max(most, bucket.bytes());
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
  if (connection->memory.is_unclear) {
    return absl::InvalidArgumentError(
        "the client's memory did not come as the one descriptor with its hello: there were more, or the rank may open "
        "no more files");
  }
  if (connection->memory.fd >= 0) {
    TACC_ASSIGN_OR_RETURN(connection->ring, Ring::Map(connection->memory.fd));
    connection->memory.Close();  // It stays mapped.
  }
  absl::MutexLock lock(&mutex_);
  if (attached_ != nullptr) {
    Post(*attached_, MessageOf({{"error", "another client drives the job now"}, {"code", "replaced"}}));
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
  Post(*attached_, MessageOf(std::move(welcome), std::move(bytes)));
}

absl::Status ClientLink::TakeCommand(const std::shared_ptr<Connection>& connection) {
  TACC_ASSIGN_OR_RETURN(std::shared_ptr<ClientCommand> command, ParseCommand(*connection));
  absl::MutexLock lock(&mutex_);
  if (attached_ != connection) return absl::OkStatus();
  for (const Answered& answered : answered_) {
    if (answered.serial != command->serial) continue;
    Post(*connection, answered.message);
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
  TACC_RETURN_IF_ERROR(FindBuckets(header, *command));
  if (header.contains("packed")) TACC_RETURN_IF_ERROR(Unpack(header["packed"], *command));
  TACC_RETURN_IF_ERROR(PlaceTensors(header, *command));
  uint64_t hash = 0;
  // Where the tensors lie is each rank's own.
  json shared = header;
  for (const char* own : {"offsets", "bytes", "packed"}) shared.erase(own);
  const std::string same =
      absl::StrCat(connection.client, " ", shared.dump(-1, ' ', false, json::error_handler_t::replace));
  (void)absl::SimpleHexAtoi(graph::Fingerprint(same), &hash);
  command->name = hash;
  return command;
}

absl::Status ClientLink::FindBuckets(const json& header, ClientCommand& command) const {
  using Kind = ClientCommand::Kind;
  TACC_ASSIGN_OR_RETURN(const uint64_t given, WholeNumber(header, "micro_batches", 0));
  const auto most = static_cast<uint64_t>(options_.num_micro_batches);
  const bool takes_some = command.kind == Kind::kStep ? given == most
                          : command.kind == Kind::kForward || command.kind == Kind::kMicroBatch
                              ? given >= 1 && given <= most
                              : given == 0;
  if (!takes_some)
    return absl::InvalidArgumentError(absl::StrCat("a command with ", given, " micro-batches; a step has ", most));
  command.buckets.assign(given, 0);
  const auto lengths = header.find("lengths");
  if (lengths == header.end()) return absl::OkStatus();
  if (!lengths->is_array() || lengths->size() != given)
    return absl::InvalidArgumentError("\"lengths\" is no list of a length for each micro-batch");
  for (uint64_t m = 0; m < given; ++m) {
    const auto found = std::find_if(options_.buckets.begin(), options_.buckets.end(),
                                    [&](const ClientBucket& bucket) { return (*lengths)[m] == json(bucket.seq_len); });
    if (found == options_.buckets.end()) {
      const auto length = [](std::string* out, const ClientBucket& bucket) { absl::StrAppend(out, bucket.seq_len); };
      return absl::InvalidArgumentError(
          absl::StrCat("a micro-batch of length ", (*lengths)[m].dump().substr(0, 80), "; the job is compiled for ",
                       absl::StrJoin(options_.buckets, ", ", length), " (data.seq_len and data.client.buckets)"));
    }
    command.buckets[m] = found - options_.buckets.begin();
  }
  return absl::OkStatus();
}

absl::Status ClientLink::Unpack(const json& packed, ClientCommand& command) const {
  if (!packed.is_array() || packed.size() > command.buckets.size())
    return absl::InvalidArgumentError("\"packed\" is no list of a list for each micro-batch");
  std::string whole;
  size_t next = 0;  // In what came.
  for (size_t m = 0; m < packed.size(); ++m) {
    const json& of_batch = packed[m];
    const std::vector<ClientInput>& inputs = options_.buckets[command.buckets[m]].inputs;
    if (!of_batch.is_array() || of_batch.size() != inputs.size())
      return absl::InvalidArgumentError("\"packed\" does not have a size for each input");
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto bytes = static_cast<uint64_t>(inputs[i].bytes);
      // 0: as it is.
      const bool is_packed = of_batch[i] != 0;
      const uint64_t came = is_packed && of_batch[i].is_number_unsigned() ? of_batch[i].get<uint64_t>() : bytes;
      if ((is_packed && !of_batch[i].is_number_unsigned()) || came > bytes || came > command.bytes.size() - next) {
        return absl::InvalidArgumentError(absl::StrCat(
            "input \"", inputs[i].name, "\" of ", bytes, " bytes, compressed to ", of_batch[i].dump().substr(0, 20),
            ", is not inside the ", command.bytes.size(), " bytes that were given"));
      }
      const absl::string_view part(command.bytes.data() + next, came);
      next += came;
      if (!is_packed) {
        whole.append(part.data(), part.size());
        continue;
      }
      const size_t begin = whole.size();
      whole.resize(begin + bytes);
      TACC_RETURN_IF_ERROR(Inflate(part, absl::MakeSpan(whole).subspan(begin)));
    }
  }
  if (next != command.bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a command with ", command.bytes.size(), " bytes of inputs; \"packed\" tells of ", next));
  }
  command.bytes = std::move(whole);
  return absl::OkStatus();
}

absl::Status ClientLink::PlaceTensors(const json& header, ClientCommand& command) const {
  const json* const offsets = header.contains("offsets") ? &header["offsets"] : nullptr;
  if (offsets != nullptr &&
      (command.ring == nullptr || !offsets->is_array() || offsets->size() != command.buckets.size()))
    return absl::InvalidArgumentError(
        "\"offsets\" are no list of a list for each micro-batch, in memory that was given");
  uint64_t next = 0;  // In the bytes behind the header.
  for (size_t m = 0; m < command.buckets.size(); ++m) {
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

void ClientLink::Answer(json answer, std::string bytes) {
  {
    absl::MutexLock lock(&mutex_);
    const std::shared_ptr<const ClientCommand> command = taken_.front();
    taken_.pop_front();
    answer["serial"] = command->serial;
    // Not of a client that has gone: another one counts anew.
    if (command->client == client_) {
      answered_.push_back({command->serial, MessageOf(std::move(answer), std::move(bytes))});
      if (answered_.size() > kAnswersKept) answered_.pop_front();
      // One that has come meanwhile sends the command again.
      if (attached_ != nullptr && !is_welcome_due_) Post(*attached_, answered_.back().message);
    }
    if (taken_.empty()) Welcome();
  }
  // What the socket did not take, the thread sends.
  (void)eventfd_write(wake_, 1);
}

absl::Duration ClientLink::WithoutClient() {
  absl::MutexLock lock(&mutex_);
  return attached_ != nullptr ? absl::ZeroDuration() : absl::Now() - left_;
}

}  // namespace tacc::worker
