// The job of the matrix of layouts, as a spec and compiled.
#ifndef TACC_TESTS_MATRIX_JOB_H_
#define TACC_TESTS_MATRIX_JOB_H_

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/import/decoder/decoder.h"
#include "graph/passes/pipeline.h"
#include "tests/matrix/layouts.h"
#include "tests/ranks/in_process_ranks.h"

namespace tacc::matrix {

// The job that every layout runs: a small model of a family, 16 rows of 16 tokens a step.
inline constexpr int64_t kGlobalBatch = 16, kSeqLen = 16;
inline constexpr int64_t kSteps = 20;
inline constexpr double kLearningRate = 3e-4;

struct Job {
  std::string family;  // "llama", "qwen3", "bloom", "chatglm", "mixtral"
  int64_t num_layers = 4;
  int64_t num_micro_batches = 2;
  double dropout = 0;  // of "bloom"
  int64_t vocab = 64;
  int64_t global_batch = kGlobalBatch;
  bool half = false;                // products in bf16, and sums of gradients between ranks, which widen
  bool lora = false;                // adapters of all linear modules, with dropout, are trained in place of the model
  std::vector<std::string> freeze;  // parameters that are not trained
  double learning_rate = kLearningRate;
  std::string optim = "adamw";
  double momentum = 0;

  bool operator<(const Job& other) const {
    const auto key = [](const Job& job) {
      return std::tie(job.family, job.num_layers, job.num_micro_batches, job.dropout, job.vocab, job.global_batch,
                      job.half, job.lora, job.freeze, job.learning_rate, job.optim, job.momentum);
    };
    return key(*this) < key(other);
  }
};

// An output of jobs with experts: the sum, over all tokens and layers, of the token times the layer's number times the
// numbers of the experts that it goes to. Small integers: exact in any order.
inline constexpr char kChosenExperts[] = "chosen_experts";

// The job that a layout can run: enough micro-batches and layers for its pipeline.
Job JobFor(const std::string& family, const Layout& layout);

// Its model: every dim that a layout splits is a multiple of 8, or 4 kv heads.
absl::StatusOr<graph::DecoderSpec> SpecOf(const Job& job);

// By the way of a job in the compiler: candidates from a request, the programs of the best. Errors are the product's.
absl::StatusOr<graph::Compiled> CompileJob(const Job& job, const Layout& layout, const graph::OpTable& ops);

// A cycle of four global batches of rows that count up, each in steps of its own; one target in nine is ignored.
worker::BatchSource Batches(const Job& job);

// Trains steps [first, last) with fresh weights or, if not empty, from the checkpoint at `from`; saves at the end in
// `directory` if not empty.
struct TrainingRun {
  worker::TrainingLog log;
  std::string checkpoint;
  // By rank.
  std::vector<int64_t> touched_bytes;              // of the arena, as it was written; of a CPU
  std::vector<int64_t> packed_bytes;               // in a step, for collectives; of a simulated GPU
  std::vector<worker::InProcessRanks::Sent> sent;  // in a step, as its transport was given them
};
// Where the ranks are.
struct Place {
  worker::InProcessRanks::Memory memory = worker::InProcessRanks::Memory::kPlanned;
  int ranks_a_machine = 0;  // in order; 0: all are on one
};
absl::StatusOr<TrainingRun> Train(const Job& job, const std::vector<graph::Program>& stages, const graph::OpTable& ops,
                                  int64_t first, int64_t last, const std::string& from = "",
                                  const std::string& directory = "", const Place& place = {});

// Loads the checkpoint at `from` into the ranks of a compiled job, of any layout, and writes it again in `directory` as
// of `step`. Returns its path.
absl::StatusOr<std::string> LoadAndSave(const std::vector<graph::Program>& stages, const graph::OpTable& ops,
                                        const std::string& from, int64_t step, const std::string& directory);

}  // namespace tacc::matrix

#endif  // TACC_TESTS_MATRIX_JOB_H_
