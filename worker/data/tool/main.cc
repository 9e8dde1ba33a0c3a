// tacc-data: looks at prepared data and exports checkpoints, for what needs no coordinator.
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "confinement/flags.h"
#include "machine/machine.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/export.h"
#include "worker/checkpoint/tensors/model_fingerprint.h"
#include "worker/data/loader.h"
#include "worker/data/tool/check.h"
#include "worker/data/tool/summary.h"

namespace tacc::worker {
namespace {

constexpr int kOk = 0;
constexpr int kError = 1;
constexpr int kBadInput = 2;
constexpr int64_t kMaxShownTokens = int64_t{1} << 26;

// Prints one `error:` line for each line of the message.
int Fail(const absl::Status& status) {
  for (absl::string_view line : absl::StrSplit(status.message(), '\n')) std::cerr << "error: " << line << "\n";
  const bool is_bad_input = !absl::IsInternal(status) && !absl::IsResourceExhausted(status) &&
                            !absl::IsUnavailable(status) && !absl::IsAborted(status);
  return is_bad_input ? kBadInput : kError;
}

struct ShowOptions {
  std::string data;
  std::string split = "train";
  int64_t seq_len = 0;
  int64_t global_batch_size = 0;
  uint64_t seed = 42;
  int64_t step = 1;
  int64_t num_steps = 1;
  bool json = false;
};

absl::Status ShowStep(const ShowOptions& options, int64_t step, const LoaderOptions& order, const BatchReader& reader) {
  const size_t size = order.seq_len * order.global_batch_size;
  std::vector<int32_t> tokens(size), targets(size);
  const auto info = reader.Read(step - 1, tokens.data(), targets.data());
  if (!info.ok()) return info.status();

  std::string samples, rows;
  for (int64_t row = 0; row < order.global_batch_size; ++row) {
    const int64_t sample = reader.Sample(step - 1, row);
    if (sample < 0) break;  // The padding of the last held-out batch.
    absl::StrAppend(&samples, row == 0 ? "" : ", ", sample);
    absl::StrAppend(&rows, !options.json ? "" : row == 0 ? "[" : ", [");
    for (int64_t i = 0; i < order.seq_len; ++i) {
      absl::StrAppend(&rows, i == 0 ? "" : options.json ? ", " : " ", tokens[row * order.seq_len + i]);
    }
    absl::StrAppend(&rows, options.json ? "]" : "\n");
  }
  if (options.json) {
    std::cout << "{\"step\": " << step << ", \"batch_hash\": \"" << HashText(info->hash) << "\", \"samples\": ["
              << samples << "], \"tokens\": [" << rows << "]}\n";
  } else {
    std::cout << rows;
  }
  return absl::OkStatus();
}

int Show(const ShowOptions& options) {
  const bool is_eval = options.split == "eval";
  const std::string dir = is_eval ? absl::StrCat(options.data, "/eval") : options.data;
  if (is_eval && std::filesystem::is_directory(options.data) && !std::filesystem::exists(dir)) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat(options.data, ": has no held-out data (no folder `eval`); prepare it with --eval-fraction")));
  }
  const auto dataset = Dataset::Open(dir);
  if (!dataset.ok()) return Fail(dataset.status());
  LoaderOptions order;
  order.seq_len = options.seq_len > 0 ? options.seq_len : (*dataset)->info().seq_len;
  order.global_batch_size = options.global_batch_size;
  order.last_row = options.global_batch_size;
  order.seed = options.seed;
  if (is_eval) order.order = LoaderOptions::Order::kSequential;
  const auto reader = BatchReader::Create(dataset->get(), order);
  if (!reader.ok()) return Fail(reader.status());
  const int64_t last_step = options.step + options.num_steps - 1;
  if (is_eval && last_step > reader->NumBatches()) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("--step ", last_step, ": the held-out data has ", reader->NumBatches(), " batches")));
  }
  if (order.seq_len > kMaxShownTokens / order.global_batch_size) {
    return Fail(absl::InvalidArgumentError(absl::StrCat("a batch of ", order.global_batch_size, " x ", order.seq_len,
                                                        " tokens is too large to print; at most ", kMaxShownTokens)));
  }
  for (int64_t step = options.step; step <= last_step; ++step) {
    if (const absl::Status status = ShowStep(options, step, order, *reader); !status.ok()) return Fail(status);
  }
  return kOk;
}

int Info(const std::string& dir) {
  const auto dataset = Dataset::Open(dir);
  if (!dataset.ok()) return Fail(dataset.status());
  auto summary = Summarize(**dataset);
  if (!summary.ok()) return Fail(summary.status());
  const std::string eval_dir = absl::StrCat(dir, "/eval");
  if (std::filesystem::exists(eval_dir)) {
    const auto eval = Dataset::Open(eval_dir);
    if (!eval.ok()) return Fail(eval.status());
    const auto eval_summary = Summarize(**eval);
    if (!eval_summary.ok()) return Fail(eval_summary.status());
    (*summary)["eval"] = *eval_summary;
  }
  std::cout << summary->dump(2) << "\n";
  return kOk;
}

int Check(const CheckRequest& request) {
  const CheckResult result = CheckData(request);
  for (const std::string& problem : result.problems) std::cerr << "error: " << problem << "\n";
  if (!result.problems.empty()) return kBadInput;
  std::cout << result.summary.dump() << "\n";
  return kOk;
}

int Fingerprint(const std::string& model_dir, const std::string& adapter_dir) {
  const auto fingerprint = ModelFingerprint(model_dir);
  if (!fingerprint.ok()) return Fail(fingerprint.status());
  std::cout << *fingerprint;
  if (!adapter_dir.empty()) {
    const auto adapter = AdapterFingerprint(adapter_dir, *fingerprint);
    if (!adapter.ok()) return Fail(adapter.status());
    std::cout << ", adapter " << *adapter;
  }
  std::cout << "\n";
  return kOk;
}

int Export(const ExportRequest& request) {
  const auto exported = ExportCheckpoint(request);
  if (!exported.ok()) return Fail(exported.status());
  std::cout << request.out_dir << "\n";
  return kOk;
}

int Main(int argc, char** argv) {
  RaiseOpenFilesLimit();  // A checkpoint has a file of each rank: read fastest when all are open.
  CLI::App app("Looks at prepared data and exports checkpoints.", "tacc-data");
  app.set_version_flag("--version", "tacc-data " TACC_VERSION);
  app.require_subcommand(1);
  int exit_code = kOk;
  ConfinementFlags confinement;
  confinement.AddTo(&app);
  absl::Status confined;
  // Before the command's callback.
  app.parse_complete_callback([&] {
    const absl::StatusOr<Confinement> read = confinement.Read();
    confined = read.ok() ? ConfineProcess(*read) : read.status();
    if (!confined.ok()) throw CLI::RuntimeError(kError);
  });

  ShowOptions show;
  CLI::App* show_command =
      app.add_subcommand("show", "Print the token ids of the global batch of a step, one row a line");
  show_command->add_option("--data", show.data, "Folder of the data")->required();
  show_command->add_option("--split", show.split, "train, or eval: the folder `eval` inside, in order")
      ->check(CLI::IsMember({"train", "eval"}));
  show_command->add_option("--seq-len", show.seq_len, "Tokens of a sample (default: as the data was prepared)")
      ->check(CLI::Range(1, 1 << 26));
  show_command->add_option("--global-batch-size", show.global_batch_size, "Samples of one update")
      ->required()
      ->check(CLI::Range(1, 1 << 26));
  show_command->add_option("--seed", show.seed, "train.seed of the job (default: 42)");
  show_command->add_option("--step", show.step, "Step, as in the job's metrics: 1 is the first update")
      ->required()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  show_command->add_option("--num-steps", show.num_steps, "So many steps, from --step on (default: 1)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  show_command->add_flag("--json", show.json,
                         "Print one JSON object of each step on a line of its own: step, batch_hash, samples, tokens");
  show_command->callback([&] { exit_code = Show(show); });

  std::string info_dir;
  CLI::App* info_command =
      app.add_subcommand("info", "Print what is in a data folder, with its unigram entropy, as JSON");
  info_command->add_option("--data", info_dir, "Folder of the data")->required();
  info_command->callback([&] { exit_code = Info(info_dir); });

  CheckRequest check;
  bool full = false;
  CLI::App* check_command =
      app.add_subcommand("check", "Say whether data suits a job: a JSON summary, or all problems");
  check_command->add_option("--data", check.data, "Folder of the training data")->required();
  check_command->add_option("--eval", check.eval, "Folder of the held-out data");
  check_command
      ->add_option("--seq-len", check.seq_len,
                   "Tokens of a sample (default: as the data was prepared, at most the model's)")
      ->check(CLI::Range(1, 1 << 26));
  check_command->add_option("--global-batch-size", check.global_batch_size, "Samples of one update")
      ->check(CLI::Range(1, 1 << 26));
  check_command->add_option("--vocab-size", check.vocab_size, "The model's (default: that of --model)")
      ->check(CLI::Range(1, 1 << 30));
  check_command->add_option("--model", check.model, "Folder of the model: its tokenizer must be the data's");
  check_command->add_option("--tokenizer-fingerprint", check.tokenizer_fingerprint,
                            "SHA-256 of the tokenizer.json wanted");
  check_command->add_flag("--full", full, "Also compare the SHA-256 of every shard with the index");
  check_command->callback([&] {
    if (full) check.depth = CheckRequest::Depth::kEveryByte;
    exit_code = Check(check);
  });

  std::string model_dir, adapter_dir;
  CLI::App* fingerprint_command =
      app.add_subcommand("fingerprint", "Print which pretrained weights a model folder holds: one line");
  fingerprint_command->add_option("--model", model_dir, "Folder of the model")->required();
  fingerprint_command->add_option("--adapter", adapter_dir, "Folder of an adapter of it, whose weights count too");
  fingerprint_command->callback([&] { exit_code = Fingerprint(model_dir, adapter_dir); });

  ExportRequest request;
  CLI::App* export_command = app.add_subcommand("export", "Write a checkpoint as a plain Hugging Face model folder");
  export_command->add_option("--checkpoint", request.checkpoint, "The checkpoint, a folder step-N.aK")->required();
  export_command->add_option("--model", request.model_dir,
                             "Folder of the model that was trained (default: the checkpoint's)");
  export_command->add_option(
      "--data", request.data_dir,
      "Folder of the data, for its tokenizer where the model has none (default: the checkpoint's)");
  export_command->add_option("--out", request.out_dir, "The new folder")->required();
  bool merge = false;
  export_command->add_flag("--merge", merge, "Of adapters: the whole model, with the adapters added to its weights");
  export_command->callback([&] {
    if (merge) request.adapters = ExportRequest::Adapters::kMerged;
    exit_code = Export(request);
  });

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForAllHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    std::cout << version.what() << "\n";
    return kOk;
  } catch (const CLI::RuntimeError&) {
    return Fail(confined);
  } catch (const CLI::ParseError& error) {
    std::cerr << "error: " << error.what() << "; see --help\n";
    return kBadInput;
  }
  std::cout.flush();
  if (!std::cout) {
    std::cerr << "error: cannot write to stdout\n";
    return kError;
  }
  return exit_code;
}

}  // namespace
}  // namespace tacc::worker

int main(int argc, char** argv) { return tacc::worker::Main(argc, argv); }
