#include "worker/checkpoint/export_tensors.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "json/parse_json.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/tensors/element.h"
#include "worker/checkpoint/tensors/tensor_rows.h"

namespace tacc::worker {
namespace {

constexpr char kWeightsPrefix[] = "weights/";
constexpr char kAveragesPrefix[] = "ema/";  // of weights, which are exported in their place
constexpr char kLoraA[] = ".lora_A.weight", kLoraB[] = ".lora_B.weight";
// Elements converted at a time; bounds the memory of an export at 24 MiB beside one row of a tensor.
constexpr int64_t kChunkElements = 4 << 20;

// The rows [begin, end) of the checkpoint's tensor as its slices have it.
TensorSource RowsOfCheckpoint(const Checkpoint& checkpoint, const std::string& name, int64_t begin, int64_t end) {
  const ManifestTensor& tensor = checkpoint.manifest().tensors.at(name);
  const std::vector<int64_t> shape = tensor.SlicedShape();
  const int64_t elements = *NumElements(shape);
  TensorSource source;
  source.num_rows = elements == 0 ? 0 : end - begin;
  source.row_elements = shape.empty() || elements == 0 ? 1 : elements / shape[0];
  source.read = [&checkpoint, &tensor, name, shape, begin](int64_t first, int64_t rows, float* out) -> absl::Status {
    Rectangle part = WholeTensor(shape);
    if (!shape.empty()) {
      part.offset[0] = begin + first;
      part.shape[0] = rows;
    }
    if (tensor.dtype == "F32") return checkpoint.Read(name, part, out);
    const int64_t count = *NumElements(part.shape);
    std::vector<char> raw(count * *DtypeBytes(tensor.dtype));
    if (absl::Status status = checkpoint.Read(name, part, raw.data()); !status.ok()) return status;
    return ConvertToFloat(tensor.dtype, raw.data(), count, out);
  };
  return source;
}

// A stack, as the tensors of its entries, each of so many rows of the checkpoint's.
void AddStack(const Checkpoint& checkpoint, const std::string& source, const ExportTensor& stack, int64_t entry_rows,
              std::vector<ExportTensor>* tensors) {
  for (int64_t row = 0; row < stack.tensor.shape[0]; ++row) {
    ExportTensor entry = stack;
    entry.sources = {RowsOfCheckpoint(checkpoint, source, row * entry_rows, (row + 1) * entry_rows)};
    entry.tensor.name = StackEntryName(stack.tensor.name, row);
    entry.tensor.shape.erase(entry.tensor.shape.begin());
    entry.num_bytes = stack.num_bytes / stack.tensor.shape[0];
    tensors->push_back(std::move(entry));
  }
}

// All elements of a small tensor.
absl::StatusOr<std::shared_ptr<std::vector<float>>> ReadAll(const ExportTensor& tensor) {
  auto values = std::make_shared<std::vector<float>>(*NumElements(tensor.tensor.shape));
  float* out = values->data();
  for (const TensorSource& source : tensor.sources) {
    if (absl::Status status = source.read(0, source.num_rows, out); !status.ok()) return status;
    out += source.num_rows * source.row_elements;
  }
  return values;
}

// How the products of adapters are added to the matrices of the model.
struct Adding {
  double scale = 1;
  bool transposed = false;  // The matrices of layers are [in, out]; that of a head need not be.
};

absl::StatusOr<Adding> AddingOf(const std::string& adapter_config) {
  const nlohmann::json config = ParseJson(adapter_config);
  if (!config.is_object() || !config.contains("r") || !config["r"].is_number() || config["r"].get<double>() <= 0 ||
      !config.contains("lora_alpha") || !config["lora_alpha"].is_number()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the checkpoint's adapter_config says no r and lora_alpha: ", adapter_config));
  }
  const double r = config["r"].get<double>();
  const bool is_stabilized = config.contains("use_rslora") && config["use_rslora"] == true;
  Adding adding;
  adding.scale = config["lora_alpha"].get<double>() / (is_stabilized ? std::sqrt(r) : r);
  adding.transposed = config.contains("fan_in_fan_out") && config["fan_in_fan_out"] == true;
  return adding;
}

// The tensor that holds the weight of a module; null: none.
ExportTensor* WeightOf(std::string module, const std::map<std::string, ExportTensor*>& tensors) {
  while (true) {
    const auto found = tensors.find(absl::StrCat(module, ".weight"));
    if (found != tensors.end()) return found->second;
    const size_t dot = module.find('.');
    if (dot == std::string::npos) return nullptr;
    module.erase(0, dot + 1);
  }
}

// A matrix, each of whose entries is reached by a row and a place in a sum.
struct Factor {
  std::shared_ptr<std::vector<float>> values;
  int64_t row_stride = 0, sum_stride = 0;
  float at(int64_t row, int64_t k) const { return (*values)[row * row_stride + k * sum_stride]; }
};

// Rows of `base` with scale x a product added, whose entries are sums over `rank` products of an entry of either
// factor.
TensorSource WithProduct(TensorSource base, const Factor& by_row, const Factor& by_column, int64_t rank, double scale) {
  const int64_t width = base.row_elements;
  base.read = [read = base.read, by_row, by_column, rank, width, scale](int64_t first, int64_t rows,
                                                                        float* out) -> absl::Status {
    if (absl::Status status = read(first, rows, out); !status.ok()) return status;
    std::vector<float> more(width);
    for (int64_t row = 0; row < rows; ++row) {
      std::fill(more.begin(), more.end(), 0.0f);
      for (int64_t k = 0; k < rank; ++k) {
        const float factor = by_row.at(first + row, k);
        for (int64_t i = 0; i < width; ++i) more[i] += factor * by_column.at(i, k);
      }
      for (int64_t i = 0; i < width; ++i) out[row * width + i] += static_cast<float>(scale) * more[i];
    }
    return absl::OkStatus();
  };
  return base;
}

// A part of a tensor that the checkpoint has in several.
struct Part {
  std::string source;
  int64_t begin = 0;  // Row of dim `dim` of the tensor.
  int dim = 0;
};

// Adds a part behind those that are there.
absl::Status AddPart(const Checkpoint& checkpoint, const std::string& name, const Part& part, ExportTensor* output) {
  const ManifestTensor& tensor = checkpoint.manifest().tensors.at(part.source);
  std::vector<int64_t>& shape = output->tensor.shape;
  std::vector<int64_t> stored = tensor.stored_shape;
  const bool is_first = output->sources.empty();
  const int64_t num_rows = is_first ? 0 : shape[part.dim];
  if (part.begin != num_rows) {
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint.path(), ": rows ", num_rows, " to ", part.begin, " of \"", name, "\" are missing"));
  }
  if (!is_first) stored[part.dim] += num_rows;
  const std::vector<int64_t> sliced = tensor.SlicedShape();
  const int64_t num_sliced = sliced.empty() ? 1 : sliced[0];
  if (part.dim == 0) {
    output->sources.push_back(RowsOfCheckpoint(checkpoint, part.source, 0, num_sliced));
  } else {
    // Of each entry its rows, behind those of the parts before.
    const int64_t entries = stored[0], of_entry = num_sliced / std::max<int64_t>(1, entries);
    if (of_entry * entries != num_sliced || (!is_first && entries != shape[0])) {
      return absl::InvalidArgumentError(absl::StrCat(checkpoint.path(), ": tensor \"", part.source, "\" of ",
                                                     ShapeText(tensor.shape), " does not consist of the ", entries,
                                                     " entries of \"", name, "\""));
    }
    std::vector<TensorSource> sources;
    const size_t before = output->sources.size() / std::max<int64_t>(1, entries);
    for (int64_t e = 0; e < entries; ++e) {
      std::move(output->sources.begin() + e * before, output->sources.begin() + (e + 1) * before,
                std::back_inserter(sources));
      sources.push_back(RowsOfCheckpoint(checkpoint, part.source, e * of_entry, (e + 1) * of_entry));
    }
    output->sources = std::move(sources);
  }
  shape = std::move(stored);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<ExportTensor>> TensorsOfCheckpoint(const Checkpoint& checkpoint, const std::string& dtype) {
  // By tensor of the model, then by first row.
  std::map<std::string, std::map<int64_t, Part>> sources;
  for (const auto& [name, tensor] : checkpoint.manifest().tensors) {
    if (!absl::StartsWith(name, kWeightsPrefix)) continue;
    if (tensor.dtype != "F32" && tensor.dtype != "BF16" && tensor.dtype != "F16") {
      return absl::InvalidArgumentError(absl::StrCat(checkpoint.path(), ": tensor \"", name, "\" is ", tensor.dtype,
                                                     ", but weights are kept as F32, or as BF16 or F16"));
    }
    const TensorRows rows = ParseTensorRows(name).value_or(TensorRows{name});
    const std::string average = absl::StrCat(kAveragesPrefix, name.substr(sizeof(kWeightsPrefix) - 1));
    const std::string& source = checkpoint.manifest().tensors.count(average) > 0 ? average : name;
    const auto [other, is_new] = sources[rows.tensor].emplace(rows.begin, Part{source, rows.begin, rows.dim});
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat(checkpoint.path(), ": tensors \"", other->second.source,
                                                     "\" and \"", name, "\" would be one of the exported model"));
    }
  }
  std::vector<ExportTensor> tensors;
  for (const auto& [name, parts] : sources) {
    ExportTensor output;
    output.tensor = {name.substr(sizeof(kWeightsPrefix) - 1), dtype, {}};
    for (const auto& [begin, part] : parts) {
      if (part.dim != parts.begin()->second.dim) {
        return absl::InvalidArgumentError(absl::StrCat(checkpoint.path(), ": \"", name, "\" is in rows of two dims, \"",
                                                       parts.begin()->second.source, "\" and \"", part.source, "\""));
      }
      if (absl::Status status = AddPart(checkpoint, name, part, &output); !status.ok()) return status;
    }
    output.num_bytes = *NumElements(output.tensor.shape) * *DtypeBytes(dtype);
    if (!IsStack(output.tensor.name)) {
      tensors.push_back(std::move(output));
      continue;
    }
    const std::string& source = parts.begin()->second.source;
    const ManifestTensor& stack = checkpoint.manifest().tensors.at(source);
    if (stack.shape.empty() || NumElements(stack.shape).value_or(0) == 0 || stack.stored_shape != stack.shape) {
      return absl::InvalidArgumentError(absl::StrCat(checkpoint.path(), ": stack \"", name, "\" of ",
                                                     ShapeText(stack.shape), " has the stored shape ",
                                                     ShapeText(stack.stored_shape), "; wanted the same, not empty"));
    }
    AddStack(checkpoint, source, output, stack.SlicedShape()[0] / stack.shape[0], &tensors);
  }
  if (tensors.empty()) return absl::InvalidArgumentError(absl::StrCat(checkpoint.path(), ": holds no weights"));
  return tensors;
}

absl::StatusOr<std::vector<ExportTensor>> TensorsOfModel(const ModelWeights& model,
                                                         const std::vector<std::string>& names,
                                                         const std::string& dtype) {
  std::map<std::string, const SafetensorsEntry*> wanted;
  for (const std::string& name : names) {
    const absl::optional<TensorRows> rows = ParseTensorRows(name);
    const std::string tensor = rows.has_value() ? rows->tensor : name;
    int64_t entry = 0;
    while (true) {
      const std::string of_entry = IsStack(tensor) ? StackEntryName(tensor, entry) : tensor;
      const auto found = model.tensors().find(of_entry);
      if (found != model.tensors().end()) wanted[of_entry] = found->second.entry;
      if (found == model.tensors().end() && entry == 0)
        return absl::NotFoundError(absl::StrCat("the model's files have no tensor \"", of_entry, "\""));
      if (!IsStack(tensor) || found == model.tensors().end()) break;
      ++entry;
    }
  }
  std::vector<ExportTensor> tensors;
  for (const auto& [name, entry] : wanted) {
    ExportTensor output;
    output.tensor = {name, dtype, entry->shape};
    const int64_t elements = *NumElements(entry->shape);
    output.num_bytes = elements * *DtypeBytes(dtype);
    TensorSource source;
    source.num_rows = elements == 0 ? 0 : entry->shape.empty() ? 1 : entry->shape[0];
    source.row_elements = source.num_rows == 0 ? 1 : elements / source.num_rows;
    source.read = [&model, name = name, shape = entry->shape](int64_t first, int64_t rows, float* out) {
      Rectangle part = WholeTensor(shape);
      if (!shape.empty()) {
        part.offset[0] = first;
        part.shape[0] = rows;
      }
      return model.ReadFloat(name, shape, part, out);
    };
    output.sources = {std::move(source)};
    tensors.push_back(std::move(output));
  }
  return tensors;
}

bool IsOfAdapter(const std::string& name) { return absl::EndsWith(name, kLoraA) || absl::EndsWith(name, kLoraB); }

absl::Status MergeAdapters(const std::string& adapter_config, const std::vector<ExportTensor>& adapters,
                           std::vector<ExportTensor>* tensors) {
  const absl::StatusOr<Adding> adding = AddingOf(adapter_config);
  if (!adding.ok()) return adding.status();
  std::map<std::string, ExportTensor*> by_name;
  for (ExportTensor& tensor : *tensors) by_name[tensor.tensor.name] = &tensor;
  std::map<std::string, const ExportTensor*> downs, ups;
  for (const ExportTensor& adapter : adapters) {
    absl::string_view module = adapter.tensor.name;
    if (absl::ConsumeSuffix(&module, kLoraA)) {
      downs[std::string(module)] = &adapter;
    } else if (absl::ConsumeSuffix(&module, kLoraB)) {
      ups[std::string(module)] = &adapter;
    }
  }
  for (const auto& [module, down] : downs) {
    ExportTensor* const weight = WeightOf(module, by_name);
    const auto up = ups.find(module);
    const std::vector<int64_t>& shape = down->tensor.shape;  // [rank, in]
    const bool is_alone = weight != nullptr && up != ups.end() && weight->sources.size() == 1 && shape.size() == 2;
    const auto fits = [&](bool transposed) {
      if (!is_alone) return false;
      const int64_t num_rows = weight->sources[0].num_rows, width = weight->sources[0].row_elements;
      const std::vector<int64_t> of_up = {transposed ? width : num_rows, shape[0]};
      return shape[1] == (transposed ? num_rows : width) && up->second->tensor.shape == of_up;
    };
    const bool transposed = adding->transposed && fits(true);
    if (!transposed && !fits(false)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the adapter of ", module, ", with A ", ShapeText(shape), ", fits no weight of the base model",
                       weight == nullptr ? "" : absl::StrCat(": it is ", ShapeText(weight->tensor.shape))));
    }
    const auto a = ReadAll(*down), b = ReadAll(*up->second);
    if (!a.ok()) return a.status();
    if (!b.ok()) return b.status();
    const int64_t rank = shape[0];
    const Factor of_in = {*a, 1, shape[1]}, of_out = {*b, rank, 1};
    weight->sources[0] = WithProduct(std::move(weight->sources[0]), transposed ? of_in : of_out,
                                     transposed ? of_out : of_in, rank, adding->scale);
  }
  return absl::OkStatus();
}

absl::Status AppendTensor(const ExportTensor& tensor, SafetensorsWriter* writer) {
  const std::string& dtype = tensor.tensor.dtype;
  for (const TensorSource& source : tensor.sources) {
    if (source.num_rows == 0) continue;
    const int64_t at_once = std::clamp<int64_t>(kChunkElements / source.row_elements, 1, source.num_rows);
    std::vector<float> values(at_once * source.row_elements);
    std::vector<char> bytes(values.size() * *DtypeBytes(dtype));
    for (int64_t row = 0; row < source.num_rows; row += at_once) {
      const int64_t num_rows = std::min(at_once, source.num_rows - row);
      const int64_t count = num_rows * source.row_elements;
      if (absl::Status status = source.read(row, num_rows, values.data()); !status.ok()) return status;
      absl::Status status = ConvertFromFloat(dtype, values.data(), count, bytes.data());
      if (!status.ok()) return status;
      status = writer->Append(bytes.data(), count * *DtypeBytes(dtype));
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace tacc::worker
