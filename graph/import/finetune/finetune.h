#ifndef TACC_GRAPH_IMPORT_FINETUNE_FINETUNE_H_
#define TACC_GRAPH_IMPORT_FINETUNE_FINETUNE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "graph/import/finetune/request.h"
#include "graph/import/import.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// Changes `model`, which was imported from `model_path`, as asked; see AddLora and Freeze. With adapters,
// model.adapter_config says them. Errors: InvalidArgument, naming the option: theirs; an adapter in init_from that is
// of another base, by the name that it gives it or by the tensors' shapes; or options that differ from its own.
absl::Status Finetune(const FinetuneRequest& request, const std::string& model_path, uint64_t dropout_seed,
                      const OpTable& ops, ImportedModel& model);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_FINETUNE_FINETUNE_H_
