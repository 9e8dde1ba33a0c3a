#include "worker/rank/session/client_command.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"

namespace tacc::worker {

using nlohmann::json;

absl::StatusOr<uint64_t> WholeNumber(const json& header, const char* name, uint64_t absent) {
  const auto found = header.find(name);
  if (found == header.end()) return absent;
  if (!found->is_number_unsigned())
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" is ", found->dump().substr(0, 80), "; wanted a whole number"));
  return found->get<uint64_t>();
}

namespace {

absl::StatusOr<ClientCommand::Kind> KindOf(const std::string& command) {
  using Kind = ClientCommand::Kind;
  if (command == "step") return Kind::kStep;
  if (command == "micro_batch") return Kind::kMicroBatch;
  if (command == "update") return Kind::kUpdate;
  if (command == "discard") return Kind::kDiscard;
  if (command == "forward") return Kind::kForward;
  if (command == "read") return Kind::kRead;
  if (command == "load") return Kind::kLoad;
  if (command == "save") return Kind::kSave;
  if (command == "close") return Kind::kClose;
  return absl::InvalidArgumentError(absl::StrCat("\"", command.substr(0, 80),
                                                 "\" is no command; known are step, micro_batch, update, discard, ",
                                                 "forward, read, load, save and close"));
}

absl::StatusOr<std::vector<std::string>> Texts(const json& header, const char* name) {
  std::vector<std::string> texts;
  for (const json& text : header.value(name, json::array())) {
    if (!text.is_string()) return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is no list of names"));
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

// A finite number.
absl::StatusOr<double> Number(const json& value, const char* name) {
  if (!value.is_number() || !std::isfinite(value.get<double>()))
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" is ", value.dump().substr(0, 80), "; wanted a finite number"));
  return value.get<double>();
}

absl::StatusOr<UpdateOptions> ParseUpdate(const json& header) {
  UpdateOptions options;
  for (const json& pair : header.value("learning_rates", json::array())) {
    if (!pair.is_array() || pair.size() != 2)
      return absl::InvalidArgumentError("\"learning_rates\" is no list of peaks with what they are now");
    TACC_ASSIGN_OR_RETURN(const double peak, Number(pair[0], "learning_rates"));
    TACC_ASSIGN_OR_RETURN(const double rate, Number(pair[1], "learning_rates"));
    options.learning_rates.emplace_back(peak, rate);
  }
  if (const auto found = header.find("gradient_factor"); found != header.end()) {
    TACC_ASSIGN_OR_RETURN(options.gradient_factor, Number(*found, "gradient_factor"));
  }
  if (const auto found = header.find("max_grad_norm"); found != header.end()) {
    TACC_ASSIGN_OR_RETURN(options.max_grad_norm, Number(*found, "max_grad_norm"));
  }
  if (header.contains("optimizer_step")) {
    TACC_ASSIGN_OR_RETURN(const uint64_t step, WholeNumber(header, "optimizer_step", 0));
    options.optimizer_step = static_cast<int64_t>(step);
  }
  return options;
}

}  // namespace

absl::Status ParseHeader(const json& header, ClientCommand& command) {
  const json name = header.value("command", json());
  if (!name.is_string()) return absl::InvalidArgumentError("a frame without \"command\"");
  TACC_ASSIGN_OR_RETURN(command.kind, KindOf(name.get<std::string>()));
  TACC_ASSIGN_OR_RETURN(command.serial, WholeNumber(header, "serial", 0));
  TACC_ASSIGN_OR_RETURN(const uint64_t step, WholeNumber(header, "step", 0));
  if (command.serial == 0) return absl::InvalidArgumentError("a command without \"serial\", from 1");
  command.step = static_cast<int64_t>(step);
  command.has_state = header.contains("state_bytes");
  TACC_ASSIGN_OR_RETURN(command.outputs, Texts(header, "outputs"));
  TACC_ASSIGN_OR_RETURN(command.states, Texts(header, "states"));
  TACC_ASSIGN_OR_RETURN(command.update, ParseUpdate(header));
  for (auto& [field, value] : {std::pair{"path", &command.path}, std::pair{"upload", &command.upload}}) {
    const json text = header.value(field, json(""));
    if (!text.is_string()) return absl::InvalidArgumentError(absl::StrCat("\"", field, "\" is no text"));
    *value = text.get<std::string>();
  }
  return absl::OkStatus();
}

}  // namespace tacc::worker
