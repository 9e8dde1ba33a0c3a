// Models from Hugging Face folders and from texts of graphs.
#ifndef TACC_GRAPH_IMPORT_IMPORT_H_
#define TACC_GRAPH_IMPORT_IMPORT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/graph.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// In errors of this folder each line is a problem of its own, but a line indented by two spaces continues the one
// above.

struct ImportOptions {
  int64_t batch = 1;    // B, rows of a micro-batch over all ranks
  int64_t seq_len = 1;  // S, tokens
  // kAuto: pretrained when the folder has safetensors, else an error that asks for random.
  enum class Weights { kAuto, kPretrained, kRandom } weights = Weights::kAuto;
  uint64_t seed = 0;  // of dropout
  // Classes whose instances are the units of FSDP, and those that compute their activations again; empty: the decoder
  // layers, and so far no other class is possible.
  std::vector<std::string> wrap_layer_cls, gc_cls;
  enum class Outputs { kLoss, kLogits } outputs = Outputs::kLoss;
  // ImportedModel::own_head of an earlier import of the same folder, which spares reading the two tensors again.
  std::optional<bool> own_head;
};

struct ImportedModel {
  // In f32. Of a graph text, any inputs (graph/ops/input_axes.h), and outputs with returned=true besides the two. Of a
  // folder, inputs "tokens" i32[B,S]; "targets" i32[B,S], -1 = ignored (not with kLogits); with dropout "step" i64[]
  // and "sample" i64[B]; with an auxiliary loss of experts "sample" (-1: padding). Leaves `param "NAME"`, NAME as in
  // the model's safetensors (NAME[BEGIN:END] for those rows of it, NAME[:,BEGIN:END] for those of each entry), with
  // init=, axes= and, where the logical shape is a reshape of the stored one, stored=. Outputs "loss" (sum over target
  // tokens) and "target_tokens", or "logits" f32[B,S,V].
  Graph forward;
  std::string family;  // "llama", ..., or "graph"
  // Where the initial weights come from; never kAuto.
  ImportOptions::Weights weights = ImportOptions::Weights::kRandom;
  std::vector<std::string> live_inputs;  // of a graph text: the inputs that no data folder has, only a client sends
  int64_t vocab_size = 0;                // token ids must be less
  int64_t num_layers = 0;                // decoder layers; 0 for a graph text
  int64_t num_parameters = 0;
  int64_t max_seq_len = 0;                 // 0: no limit
  std::vector<std::string> layer_classes;  // names that wrap_layer_cls and gc_cls accept
  std::vector<std::string> units;          // module paths of the decoder layers
  std::string residual_module;             // whose result [B,S,N] the residual stream begins with; may be empty
  // Of a model with tied embeddings whose files have both matrices: whether their values differ.
  std::optional<bool> own_head;
  // For adapters: the head, as the graph's names have it and as transformers does; what they leave out of the paths of
  // all other modules ("transformer."); the ends of paths that transformers calls otherwise; the last names that peft
  // takes for experts'; the modules that peft adapts in this family unless told otherwise, empty: all linear ones.
  std::string head_module, head_path, base_prefix;
  std::map<std::string, std::string> renamed_modules;
  std::set<std::string> taken_for_experts;
  std::vector<std::string> lora_targets;
  std::string adapter_config;      // once adapters were added: their adapter_config.json (Finetune)
  std::vector<std::string> notes;  // what the user should know of how the model was read, a sentence or two each
  // Of a folder, the class in transformers, as config.json's `architectures` names it: what it says itself, or where it
  // says nothing, its family's; and the whole text of config.json.
  std::string architecture, config_json;
  // What config.json says of the mathematics (ModelFacts); of a graph text, `graph`: a fingerprint that comments and
  // blanks do not change.
  std::map<std::string, std::string> facts;
  // The keys of facts that config.json calls otherwise (FactKeys).
  std::map<std::string, std::string> fact_keys;
};

// A Hugging Face folder: config.json, and the headers of its safetensors. Tied embeddings are read as transformers 5
// reads them: where the files have a head and an embedding of different values, they are not tied, and a note says so;
// where they have only the head, it is the embedding too. To see that, both tensors are read up to their first
// difference, the only weights that are read here: of 128,256 x 2,048 in BF16 1 GB, where they are equal. Errors:
// InvalidArgument with every problem, one a line; NotFound when there is no such folder or no config.json.
absl::StatusOr<ImportedModel> ImportModel(const std::string& dir, const ImportOptions& options, const OpTable& ops);

// A graph in text form with the inputs and outputs above; B and S may stand in dims of types and in attributes. Its
// units are its module paths up to the first number, as layers.0 for layers.0.mlp. A file's initial weights are
// those of model.safetensors (or its index) in its folder where it is there, unless random ones are asked for; a
// text alone has random ones. Errors: InvalidArgument "file:line:col: what"; NotFound when there is no such file.
absl::StatusOr<ImportedModel> ImportGraphFile(const std::string& path, const ImportOptions& options,
                                              const OpTable& ops);
absl::StatusOr<ImportedModel> ImportGraphText(const std::string& text, const std::string& file,
                                              const ImportOptions& options, const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_IMPORT_H_
