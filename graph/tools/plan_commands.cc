#include "graph/tools/plan_commands.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "graph/import/import.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"
#include "graph/planner/planner.h"
#include "graph/planner/request.h"

namespace tacc::graph {
namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  return absl::OkStatus();
}

std::string PrintAll(const std::vector<Program>& stages) {
  std::string text;
  for (const Program& program : stages) absl::StrAppend(&text, Print(program));
  return text;
}

// 64-bit FNV-1a: names a program in logs and caches.
std::string Fingerprint(const std::string& text) {
  uint64_t hash = 14695981039346656037u;
  for (unsigned char c : text) hash = (hash ^ c) * 1099511628211u;
  return absl::StrFormat("%016x", hash);
}

absl::Status CheckVocabulary(const CompileRequest& request, int64_t vocab_size) {
  if (request.vocab_size <= vocab_size || vocab_size == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("data.path was prepared with a vocabulary of ", request.vocab_size,
                                                 " tokens, the model has ", vocab_size,
                                                 "; prepare it with the model's tokenizer"));
}

ForwardBuilder MakeForwardBuilder(const CompileRequest& request, const OpTable& ops) {
  return [&request, &ops](int64_t batch, int64_t seq_len) -> absl::StatusOr<ForwardModel> {
    ImportOptions options;
    options.batch = batch;
    options.seq_len = seq_len;
    options.seed = request.seed;
    options.weights = request.weights == "random"       ? ImportOptions::Weights::kRandom
                      : request.weights == "pretrained" ? ImportOptions::Weights::kPretrained
                                                        : ImportOptions::Weights::kAuto;
    options.wrap_layer_cls = request.wrap_layer_cls;
    options.gc_cls = request.gc_cls;
    TACC_ASSIGN_OR_RETURN(ImportedModel imported, request.graph_path.empty()
                                                      ? ImportModel(request.model_path, options, ops)
                                                      : ImportGraphFile(request.graph_path, options, ops));
    TACC_RETURN_IF_ERROR(CheckVocabulary(request, imported.vocab_size));
    ForwardModel model;
    model.units = std::move(imported.units);
    model.residual_module = imported.residual_module;
    for (const Node& node : imported.forward.nodes) {
      if (node.op == "param") model.num_parameters += imported.forward.type(node.results[0]).num_elements();
    }
    model.forward = std::move(imported.forward);
    return model;
  };
}

}  // namespace

absl::StatusOr<std::string> PlanCommand(const std::string& request_file, const OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const std::string text, ReadFile(request_file));
  TACC_ASSIGN_OR_RETURN(const CompileRequest request, ParseCompileRequest(text));
  TACC_ASSIGN_OR_RETURN(const std::vector<Candidate> candidates,
                        PlanCandidates(request.plan, MakeForwardBuilder(request, ops), ops));
  return CandidatesJson(request, candidates);
}

absl::Status CompileCommand(const std::string& request_file, const std::string& out_dir, const std::string& dump_dir,
                            const OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const std::string text, ReadFile(request_file));
  TACC_ASSIGN_OR_RETURN(const CompileRequest request, ParseCompileRequest(text));
  const ForwardBuilder builder = MakeForwardBuilder(request, ops);
  TACC_ASSIGN_OR_RETURN(const std::vector<Candidate> candidates, PlanCandidates(request.plan, builder, ops));
  const Candidate& best = candidates[0];
  if (!best.fits) return DoesNotFit(request.plan, best);

  std::error_code error;
  std::filesystem::create_directories(out_dir, error);
  if (!dump_dir.empty()) std::filesystem::create_directories(dump_dir, error);
  PipelineObserver observer;
  std::string times;
  absl::Status dumped;
  if (!dump_dir.empty()) {
    observer.after_step = [&](int index, const Step& step, double seconds, const std::vector<Program>& stages) {
      absl::StrAppend(&times, absl::StrFormat("%02d %-20s %.4f s\n", index, step.name, seconds));
      dumped.Update(WriteFile(absl::StrFormat("%s/%02d.%s.txt", dump_dir, index, step.name), PrintAll(stages)));
    };
  }
  TACC_ASSIGN_OR_RETURN(const ForwardModel model,
                        builder(best.plan.micro_batch * best.plan.num_data_ranks(), request.plan.seq_len));
  TACC_ASSIGN_OR_RETURN(const Compiled compiled, CompilePlan(request.plan, best.plan, model, ops, observer));
  TACC_RETURN_IF_ERROR(dumped);
  if (!dump_dir.empty()) TACC_RETURN_IF_ERROR(WriteFile(dump_dir + "/passes.txt", times));
  TACC_RETURN_IF_ERROR(WriteFile(out_dir + "/plan.txt", PrintPlan(best.plan)));
  for (const Program& program : compiled.stages) {
    TACC_RETURN_IF_ERROR(WriteFile(absl::StrCat(out_dir, "/stage", program.stage, ".program"), Print(program)));
  }
  return WriteFile(out_dir + "/summary.json", SummaryJson(request, best, Fingerprint(PrintAll(compiled.stages))));
}

}  // namespace tacc::graph
