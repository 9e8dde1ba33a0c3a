#ifndef TACC_PROTOCOL_START_FILE_H_
#define TACC_PROTOCOL_START_FILE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "protocol/field.h"
#include "protocol/json_values.h"

namespace tacc::protocol {

// What one rank of one attempt is to do. Its fields are in kStartFields, with their meaning.
struct StartFile {
  enum class Weights { kPretrained, kRandom };

  std::string version;
  std::string job;
  int64_t attempt = 1;
  int rank = 0;
  int world = 1;
  int threads = 1;

  std::string device;
  int64_t memory_bytes = 0;
  std::string advertise;
  std::string local_folder;
  std::string program;

  std::string model_dir;
  std::string adapter_dir;
  Weights weights = Weights::kRandom;
  uint64_t seed = 0;

  std::string data_path;
  std::string eval_path;
  int64_t seq_len = 0;
  int64_t global_batch_size = 0;
  double client_wait_seconds = -1;
  // A client sends the batches; there is no data_path then.
  bool has_client() const { return client_wait_seconds >= 0; }

  int64_t max_steps = 0;
  int64_t eval_steps = 0;
  int64_t stop_if_stuck_steps = 0;
  bool deterministic = false;
  int64_t max_eval_batches = 0;
  bool tf32 = false;

  std::map<std::string, std::string> attention;
  std::map<std::string, std::string> products;

  std::string checkpoint_dir;
  bool checkpoint_claimed = false;
  std::string service;
  int64_t save_steps = 0;
  std::string resume;
  std::string export_dir;

  std::string trace_path;
  std::string predicted_trace;
  int64_t trace_step = 3;

  nlohmann::json run = nlohmann::json::object();
  double flops_per_step = 0;
  double peak_flops_per_second = 0;

  nlohmann::json identity = nlohmann::json::object();
  double collective_timeout_seconds = 300;
};

// What the names of checkpoints take, and what programs take as --threads.
inline constexpr int64_t kMaxAttempt = int64_t{1} << 30;
inline constexpr int64_t kMaxThreads = 4096;

// The one declaration of the start file's fields, in the order in which they are written.
inline constexpr auto kStartFields = std::make_tuple(
    Field{"version", &StartFile::version, Source::kCoordinator, Presence::kRequired, Range::kAny,
          "of the programs; `tacc-rank` takes its own only"},
    Field{"job", &StartFile::job, Source::kCoordinator, Presence::kRequired, Range::kAny, "the job's id"},
    Field{"attempt", &StartFile::attempt, Source::kCoordinator, Presence::kRequired, Range::kPositive,
          "which attempt of the job", kMaxAttempt},
    Field{"rank", &StartFile::rank, Source::kCoordinator, Presence::kRequired, Range::kNotNegative,
          "which rank of the attempt, below `world`"},
    Field{"world", &StartFile::world, Source::kCoordinator, Presence::kRequired, Range::kPositive,
          "how many ranks the attempt has"},
    Field{"threads", &StartFile::threads, Source::kCoordinator, Presence::kRequired, Range::kPositive,
          "those that the program was compiled for; the daemon lowers it to its own where they are fewer", kMaxThreads},
    Field{"device", &StartFile::device, Source::kDaemon, Presence::kRequired, Range::kAny,
          "`cpu`, `cuda:N` or `reference`"},
    Field{"memory_bytes", &StartFile::memory_bytes, Source::kDaemon, Presence::kRequired, Range::kNotNegative,
          "the memory that the rank may use"},
    Field{"advertise", &StartFile::advertise, Source::kDaemon, Presence::kRequired, Range::kAny,
          "the address at which other ranks reach this one"},
    Field{"local_folder", &StartFile::local_folder, Source::kDaemon, Presence::kSparse, Range::kAny,
          "of a daemon whose coordinator has a Unix socket: a folder of its user alone, where the rank puts the socket "
          "for its client, and rank 0 the file by which the ranks find one another; empty: both are TCP ports"},
    Field{"program", &StartFile::program, Source::kDaemon, Presence::kRequired, Range::kAny,
          "path of the program's text"},
    Field{"model_dir", &StartFile::model_dir, Source::kCoordinator, Presence::kRequired, Range::kAny,
          "the model's folder (`model.path`, or that of `model.graph` if its weights are pretrained); empty: none"},
    Field{"adapter_dir", &StartFile::adapter_dir, Source::kCoordinator, Presence::kSparse, Range::kAny,
          "the folder of the adapter that training begins with (`train.lora.init_from`); empty: new adapters"},
    Field{"weights", &StartFile::weights, Source::kCoordinator, Presence::kRequired, Range::kAny,
          "where the initial weights come from"},
    Field{"seed", &StartFile::seed, Source::kCoordinator, Presence::kRequired, Range::kNotNegative, "`train.seed`"},
    Field{"data.path", &StartFile::data_path, Source::kJob, Presence::kRequired, Range::kAny, "the data's folder"},
    Field{"data.eval_path", &StartFile::eval_path, Source::kJob, Presence::kRequired, Range::kAny,
          "that of the held-out data; empty: no evaluation"},
    Field{"data.seq_len", &StartFile::seq_len, Source::kCoordinator, Presence::kRequired, Range::kPositive,
          "tokens of a sample"},
    Field{"data.global_batch_size", &StartFile::global_batch_size, Source::kCoordinator, Presence::kRequired,
          Range::kPositive, "samples of a step, of all ranks"},
    Field{"client.wait_seconds", &StartFile::client_wait_seconds, Source::kCoordinator, Presence::kWithSection,
          Range::kNotNegative,
          "a client sends the batches, and `data.path` is empty: how long the rank waits for one before it saves and "
          "ends; 0: without end"},
    Field{"train.max_steps", &StartFile::max_steps, Source::kCoordinator, Presence::kRequired, Range::kNotNegative,
          "the last step; of a job with `train.num_train_epochs`, what that comes to"},
    Field{"train.eval_steps", &StartFile::eval_steps, Source::kJob, Presence::kRequired, Range::kNotNegative,
          "steps between evaluations; 0: at the end only"},
    Field{"train.stop_if_stuck_steps", &StartFile::stop_if_stuck_steps, Source::kJob, Presence::kDefaulted,
          Range::kNotNegative, "steps without progress after which the training has failed; 0: never"},
    Field{"train.deterministic", &StartFile::deterministic, Source::kJob, Presence::kRequired, Range::kAny,
          "no algorithm whose order of sums varies; CPU kernels always give the same bits"},
    Field{"eval.max_batches", &StartFile::max_eval_batches, Source::kJob, Presence::kWithSection, Range::kPositive,
          "of `data.global_batch_size` samples, the first of the held-out data; absent: all of it"},
    Field{"compute.tf32", &StartFile::tf32, Source::kJob, Presence::kRequired, Range::kAny,
          "products of f32 may use TF32; a CPU refuses it"},
    Field{"checkpoint.dir", &StartFile::checkpoint_dir, Source::kJob, Presence::kRequired, Range::kAny,
          "the run's folder; empty: nothing is saved"},
    Field{"checkpoint.claimed", &StartFile::checkpoint_claimed, Source::kCoordinator, Presence::kDefaulted, Range::kAny,
          "a daemon has written `checkpoint.dir/job.json`"},
    Field{"checkpoint.service", &StartFile::service, Source::kCoordinator, Presence::kDefaulted, Range::kAny,
          "that of `writer.json`, for whose job the folder is claimed; empty: nobody asks"},
    Field{"checkpoint.save_steps", &StartFile::save_steps, Source::kJob, Presence::kRequired, Range::kNotNegative,
          "steps between checkpoints; 0: at the end only"},
    Field{
        "checkpoint.resume", &StartFile::resume, Source::kCoordinator, Presence::kRequired, Range::kAny,
        "name of a checkpoint in `checkpoint.dir`, or an absolute path of one; empty: begin with the initial weights"},
    Field{"checkpoint.export", &StartFile::export_dir, Source::kCoordinator, Presence::kRequired, Range::kAny,
          "where the trained model is exported to; empty: nowhere"},
    Field{"trace.path", &StartFile::trace_path, Source::kCoordinator, Presence::kWithSection, Range::kAny,
          "of the trace of one step of all ranks, which this rank writes; its folder must be there"},
    Field{"trace.step", &StartFile::trace_step, Source::kCoordinator, Presence::kWithSection, Range::kPositive,
          "which step, counted from this start"},
    Field{"trace.predicted", &StartFile::predicted_trace, Source::kCoordinator, Presence::kSparse, Range::kAny,
          "text of the trace that the plan predicts, which this rank writes beside the other"},
    Field{"run", &StartFile::run, Source::kCoordinator, Presence::kSparse, Range::kAny,
          "of rank 0: what its record of the run takes from the plan, the devices and the attempts before"},
    // Set by whoever reads `run`, of which they are a part.
    Field{"run.flops_per_step", &StartFile::flops_per_step, Source::kCoordinator, Presence::kSparse,
          Range::kNotNegative, "the model's FLOPs; 0: not known"},
    Field{"run.peak_flops_per_second", &StartFile::peak_flops_per_second, Source::kCoordinator, Presence::kSparse,
          Range::kNotNegative, "what the devices of all ranks together could do; 0: not known"},
    Field{"attention", &StartFile::attention, Source::kCoordinator, Presence::kSparse, Range::kAny,
          "by shape, who computed attention in the attempt before"},
    Field{"products", &StartFile::products, Source::kCoordinator, Presence::kSparse, Range::kAny,
          "by shape, with which algorithm the attempt before multiplied"},
    Field{"identity", &StartFile::identity, Source::kCoordinator, Presence::kDefaulted, Range::kAny,
          "what the checkpoints are of; written into each manifest as it is"},
    Field{"collective_timeout_seconds", &StartFile::collective_timeout_seconds, Source::kCoordinator,
          Presence::kRequired, Range::kPositive, "how long a rank waits for another one in a collective"});

// A start file without the daemon's fields. What is not UTF-8 is replaced.
std::string WriteStartFile(const StartFile& start);

// Reads a whole start file; fields that are not declared are ignored. InvalidArgument, with `where` before the field's
// name: it lacks a field, or has one of another type or out of range.
absl::StatusOr<StartFile> ReadStartFile(const nlohmann::json& object, const std::string& where);

// `value` as its field in JSON.
template <typename T>
nlohmann::ordered_json ToJson(const T& value) {
  return value;
}
nlohmann::ordered_json ToJson(StartFile::Weights weights);

// As the functions of protocol/json_values.h.
std::optional<std::string> Take(const nlohmann::json& json, Range range, StartFile::Weights* value);

// Where a field stands in an object: "/train/max_steps".
nlohmann::json::json_pointer Place(const char* name);
nlohmann::ordered_json::json_pointer OrderedPlace(const char* name);

// Calls `body` with the declaration of a member.
template <typename T, typename Body>
void WithField(T StartFile::*member, Body&& body) {
  ForEachField(kStartFields, [&](const auto& field) {
    if constexpr (std::is_same_v<decltype(field.member), T StartFile::*const> ||
                  std::is_same_v<decltype(field.member), T StartFile::*>) {
      if (field.member == member) body(field);
    }
  });
}

// Sets a field of a start file that is otherwise passed on as it is.
template <typename T>
void SetStartField(nlohmann::ordered_json* start, T StartFile::*member, const std::type_identity_t<T>& value) {
  WithField(member, [&](const auto& field) { (*start)[OrderedPlace(field.name)] = ToJson(value); });
}

// One field of a start file that need not be whole; nothing where it is not there, or not what is declared.
template <typename T>
std::optional<T> StartFieldOf(const nlohmann::json& start, T StartFile::*member) {
  std::optional<T> found;
  WithField(member, [&](const auto& field) {
    const nlohmann::json::json_pointer place = Place(field.name);
    T value{};
    if (start.is_object() && start.contains(place) && !Take(start[place], field.range, &value).has_value())
      found = std::move(value);
  });
  return found;
}

// `page`, docs/contracts.md, with the rows of the start file's table written anew.
std::string WithStartTable(const std::string& page);

}  // namespace tacc::protocol

#endif  // TACC_PROTOCOL_START_FILE_H_
