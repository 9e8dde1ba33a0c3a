// What a client asks of the ranks (docs/contracts.md), as its header says it.
#ifndef TACC_WORKER_RANK_SESSION_CLIENT_COMMAND_H_
#define TACC_WORKER_RANK_SESSION_CLIENT_COMMAND_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/session/ring.h"

namespace tacc::worker {

// What a client gives with an update in place of what the job says.
struct UpdateOptions {
  std::vector<std::pair<double, double>> learning_rates;  // By peak.
  std::vector<std::pair<double, double>> momenta;         // By the same peaks.
  double gradient_factor = 1;
  std::optional<double> max_grad_norm;
  std::optional<int64_t> optimizer_step;  // Updates that the optimizer counts before it.
};

// Why no update can be made with it: a weight would be no number behind it. Empty: one can.
std::string WhyNot(const UpdateOptions& update);

// What a client asks of all ranks alike.
struct ClientCommand {
  enum class Kind { kStep, kMicroBatch, kUpdate, kDiscard, kForward, kRead, kLoad, kSave, kClose };
  Kind kind = Kind::kStep;
  std::string client;   // Who asks it: its own text, another one of each client.
  uint64_t serial = 0;  // The client's, from 1; each but once.
  int64_t step = 0;     // Updates done before it, as the client counts.
  // Of all that is the same in the command to each rank: ranks have the same command when their names are equal.
  uint64_t name = 0;
  // [micro-batch][client's input], this rank's part, dense.
  std::vector<std::vector<const char*>> tensors;
  // Of each micro-batch: the bucket that its samples' length is.
  std::vector<size_t> buckets;
  // Of a forward: the outputs that the client wants beside the loss.
  std::vector<std::string> outputs;
  // Of a step or an update: what its inputs with a default are.
  UpdateOptions update;
  std::vector<std::string> states;  // Of kRead; empty: none but a list of all.
  std::string path;                 // Of kLoad: a folder, or
  std::string upload;               // the id of one that the coordinator has.
  // What the client needs to go on after it, where it says: part of checkpoints.
  bool has_state = false;
  std::string state;

 private:
  friend class ClientLink;
  std::shared_ptr<const Ring> ring;  // Where the tensors lie, or
  std::string bytes;                 // they came with the command, before the state.
};

// A field that is a whole number, or `absent`. InvalidArgument: it is something else.
absl::StatusOr<uint64_t> WholeNumber(const nlohmann::json& header, const char* name, uint64_t absent);

// Fills all of the command that its header alone says. InvalidArgument names the field.
absl::Status ParseHeader(const nlohmann::json& header, ClientCommand& command);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_SESSION_CLIENT_COMMAND_H_
