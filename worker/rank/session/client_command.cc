#include "worker/rank/session/client_command.h"

#include <algorithm>
#include <cmath>
#include <limits>

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
  const json list = header.value(name, json::array());
  if (!list.is_array()) return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is no list of names"));
  for (const json& text : list) {
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

// A list of peaks of learning rates, each with a number.
absl::StatusOr<std::vector<std::pair<double, double>>> ByPeak(const json& header, const char* name) {
  std::vector<std::pair<double, double>> found;
  const json list = header.value(name, json::array());
  if (!list.is_array()) return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is no list"));
  for (const json& pair : list) {
    if (!pair.is_array() || pair.size() != 2)
      return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is no list of peaks with what they are now"));
    TACC_ASSIGN_OR_RETURN(const double peak, Number(pair[0], name));
    TACC_ASSIGN_OR_RETURN(const double now, Number(pair[1], name));
    found.emplace_back(peak, now);
  }
  return found;
}

absl::StatusOr<UpdateOptions> ParseUpdate(const json& header) {
  UpdateOptions options;
  TACC_ASSIGN_OR_RETURN(options.learning_rates, ByPeak(header, "learning_rates"));
  TACC_ASSIGN_OR_RETURN(options.momenta, ByPeak(header, "momenta"));
  if (const auto found = header.find("gradient_factor"); found != header.end()) {
    TACC_ASSIGN_OR_RETURN(options.gradient_factor, Number(*found, "gradient_factor"));
  }
  if (const auto found = header.find("max_grad_norm"); found != header.end()) {
    TACC_ASSIGN_OR_RETURN(options.max_grad_norm, Number(*found, "max_grad_norm"));
  }
  if (const auto found = header.find("optimizer_step"); found != header.end()) {
    if (!found->is_number_integer())
      return absl::InvalidArgumentError(
          absl::StrCat("\"optimizer_step\" is ", found->dump().substr(0, 80), "; wanted a whole number"));
    constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    options.optimizer_step = found->is_number_unsigned() ? static_cast<int64_t>(std::min(found->get<uint64_t>(), kMost))
                                                         : found->get<int64_t>();
  }
  return options;
}

// As the float that the program takes.
bool IsFiniteFloat(double value) { return std::abs(value) <= std::numeric_limits<float>::max(); }

}  // namespace

std::string WhyNot(const UpdateOptions& update) {
  // Beyond it a double does not tell a step from the next one.
  constexpr int64_t kMaxStep = int64_t{1} << 53;
  const int64_t step = update.optimizer_step.value_or(0);
  if (step < 0 || step > kMaxStep)
    return absl::StrCat("optimizer_step is ", step, "; it counts updates, from 0 to ", kMaxStep);
  const double norm = update.max_grad_norm.value_or(0);
  if (!(norm >= 0 && IsFiniteFloat(norm)))
    return absl::StrCat("max_grad_norm is ", norm, "; give a number from 0 that a float holds, or none");
  if (!IsFiniteFloat(update.gradient_factor))
    return absl::StrCat("gradient_factor is ", update.gradient_factor, "; give a number that a float holds");
  for (const auto& [peak, rate] : update.learning_rates) {
    // The program has the peak, and takes a factor.
    if (!IsFiniteFloat(rate) || !IsFiniteFloat(rate / peak))
      return absl::StrCat("a learning rate is ", rate, " where the job's is ", peak,
                          "; give one that is a multiple of the job's by a number that a float holds");
  }
  for (const auto& [peak, momentum] : update.momenta) {
    if (!(momentum >= 0 && momentum < 1))
      return absl::StrCat("a momentum is ", momentum, " where the learning rate is ", peak,
                          "; give one from 0 that is below 1");
  }
  return "";
}

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
