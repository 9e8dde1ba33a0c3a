// What a job says of which parameters are trained.
#ifndef TACC_GRAPH_IMPORT_FINETUNE_REQUEST_H_
#define TACC_GRAPH_IMPORT_FINETUNE_REQUEST_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tacc::graph {

// Low-rank adapters; what is absent or empty is that of the adapter in init_from, or peft's default.
struct LoraRequest {
  std::optional<int64_t> r;
  std::optional<double> alpha, dropout;
  std::optional<bool> use_rslora;
  std::vector<std::string> target_modules, modules_to_save;
  std::string init_from;  // an adapter's folder; empty: new adapters
};

// What parameters of a group have of their own; an empty optimizer is the job's.
struct ParamGroup {
  std::optional<double> learning_rate, weight_decay;
  std::string optim;
};

struct FinetuneRequest {
  std::optional<LoraRequest> lora;
  std::vector<std::string> freeze;                 // patterns of names of parameters
  std::map<std::string, ParamGroup> param_groups;  // by such patterns
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_FINETUNE_REQUEST_H_
