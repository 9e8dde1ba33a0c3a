#include "worker/rank/protocol/commands.h"

#include <errno.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "json/parse_json.h"
#include "nlohmann/json.hpp"

namespace tacc::worker {

CommandReader::CommandReader(int fd, EventWriter* events, std::function<void()> at_end)
    : state_(std::make_shared<State>()) {
  thread_ = std::thread(Loop, fd, state_, events, std::move(at_end));
}

CommandReader::~CommandReader() { thread_.detach(); }

void CommandReader::Loop(int fd, std::shared_ptr<State> state, EventWriter* events, std::function<void()> at_end) {
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer, n);
    for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
      Handle(text.substr(0, end), *state, events);
      text.erase(0, end + 1);
    }
    if (text.size() > kMaxLineBytes) text.clear();
  }
  at_end();
}

void CommandReader::Handle(const std::string& line, State& state, EventWriter* events) {
  const nlohmann::json command = ParseJson(line);
  const std::string name = command.is_object() && command.contains("command") && command["command"].is_string()
                               ? command["command"].get<std::string>()
                               : "";
  const auto text = [&command](const char* field) -> absl::optional<std::string> {
    const auto value = command.find(field);
    return value != command.end() && value->is_string() ? absl::make_optional(value->get<std::string>())
                                                        : absl::nullopt;
  };
  absl::MutexLock lock(&state.mutex);
  if (name == "rendezvous" && command.contains("host") && command["host"].is_string() && command.contains("port") &&
      command["port"].is_number_integer()) {
    state.endpoint = Endpoint{command["host"].get<std::string>(), command["port"].get<int>(), text("file").value_or(""),
                              text("secret").value_or("")};
  } else if (name == "checkpoint") {
    ++state.counts.checkpoints;
  } else if (name == "stop") {
    ++state.counts.stops;
  } else if (name == "fetched" && text("upload").has_value()) {
    state.upload = *text("upload");
    state.upload_path = text("path").has_value() ? absl::StatusOr<std::string>(*text("path"))
                                                 : absl::UnavailableError(text("error").value_or("it is not said why"));
  } else {
    events->Log(absl::StrCat("not a command: ", line.substr(0, 200)));
  }
}

Endpoint CommandReader::WaitForRendezvous() {
  absl::MutexLock lock(&state_->mutex);
  State* state = state_.get();
  const auto arrived = [state]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return state->endpoint.has_value(); };
  state->mutex.Await(absl::Condition(&arrived));
  return *state->endpoint;
}

absl::StatusOr<std::string> CommandReader::WaitForUpload(const std::string& upload, const std::function<void()>& wait) {
  constexpr absl::Duration kTick = absl::Seconds(1);
  absl::MutexLock lock(&state_->mutex);
  State* state = state_.get();
  const auto has_come = [state, &upload]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return state->upload == upload; };
  while (!state_->mutex.AwaitWithTimeout(absl::Condition(&has_come), kTick)) wait();
  state_->upload.clear();
  return state_->upload_path;
}

CommandCounts CommandReader::counts() {
  absl::MutexLock lock(&state_->mutex);
  return state_->counts;
}

}  // namespace tacc::worker
