// Low-rank adapters (LoRA): a linear module's product y = x W^T becomes y + s B A dropout(x), of which A and B are
// trained. Names and meaning are those of peft. Source: Hu et al., "LoRA", arXiv 2106.09685.
#ifndef TACC_GRAPH_IMPORT_FINETUNE_LORA_H_
#define TACC_GRAPH_IMPORT_FINETUNE_LORA_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/ir/graph.h"
#include "graph/ops/op.h"

namespace tacc::graph {

inline constexpr char kAllLinear[] = "all-linear";

struct LoraOptions {
  int64_t r = 8;
  double alpha = 8;
  double dropout = 0;
  bool use_rslora = false;                  // s = alpha / sqrt(r), not alpha / r
  std::vector<std::string> target_modules;  // module paths, or ends of them; or kAllLinear
  std::vector<std::string> modules_to_save;
};

// What of a model the adapters must know beside its graph.
struct LoraModel {
  // The head, which is no target of kAllLinear, as the graph's names have it and as transformers does; and what they
  // leave out of the paths that transformers gives all other modules.
  std::string head, head_path, base_prefix;
  int64_t seed = 0;                            // of dropout
  std::map<std::string, std::string> renamed;  // ends of the graph's paths, and what transformers has in their place
  std::set<std::string> taken_for_experts;     // last names of modules that peft takes for those of experts
};

// What became of the options.
struct LoraModules {
  // As few names as say to peft which modules they are, in order.
  std::vector<std::string> target_modules, modules_to_save;
  // Their matrices lie in the files transposed, [in, out], as those of transformers' Conv1D: peft's fan_in_fan_out.
  bool transposed = false;
};

// Adds the adapters to a forward graph, and freezes all else but the modules to save. An adapter's params are
// "MODULE.lora_A.weight" [r, in dims] and "MODULE.lora_B.weight" [out dims, r], with role=adapter, the axes of the
// module's weight, and stored dims as peft has them ([r, in], [out, r]). Where a module's weight is several params,
// NAME[BEGIN:END], there is one A, and a B for each. A begins as uniform(-1/sqrt(in), 1/sqrt(in)), which is peft's
// Kaiming-uniform with a = sqrt(5); B as zeros. Nodes have the module's path. With dropout each module has a key of its
// own, and the graph the inputs "step" and "sample".
//
// Errors: InvalidArgument, naming the option and the module: no module has that name (with the nearest), it is no
// linear module (an embedding, a norm, experts, their router, a head that is tied), the files call it otherwise than
// transformers does, peft takes it for experts, or it is to be saved and its weight is that of another module too.
absl::StatusOr<LoraModules> AddLora(const LoraOptions& options, const LoraModel& model, const OpTable& ops,
                                    Graph& forward);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_FINETUNE_LORA_H_
