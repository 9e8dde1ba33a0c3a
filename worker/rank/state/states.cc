#include "worker/rank/state/states.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/state_names.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/weight_init.h"
#include "kernels/cpu/random_init.h"
#include "worker/checkpoint/tensors/element.h"
#include "worker/checkpoint/tensors/tensor_rows.h"
#include "worker/rank/collectives/bind_collective.h"
#include "worker/rank/protocol/failure_codes.h"

namespace tacc::worker {
namespace {

using graph::State;
using graph::StateKind;
using kernels::DType;
using kernels::TensorView;

const char* SafetensorsName(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return "BOOL";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kF32:
      return "F32";
    case DType::kF64:
      return "F64";
  }
  return "";
}

// A file that was there and cannot be read may be readable again.
absl::Status OfReading(absl::Status status) {
  return absl::IsUnavailable(status) ? OfFiles(std::move(status)) : status;
}

// The whole local tensor, padding included, at the place of `logical`.
Rectangle LocalBox(const Rectangle& logical, const TensorView& view) {
  return {logical.offset, std::vector<int64_t>(view.dims.begin(), view.dims.end())};
}

int64_t BytesOf(const ShardTensor& tensor) {
  return NumElements(tensor.rectangle.shape).value_or(0) * DtypeBytes(tensor.dtype).value_or(0);
}

// Whether the logical part of a local tensor comes first in it, dense: there is no padding but after the last row.
bool IsPrefix(const TensorView& view, const Rectangle& logical) {
  return std::equal(view.dims.begin() + std::min(view.dims.rank(), 1), view.dims.end(),
                    logical.shape.begin() + std::min<size_t>(logical.shape.size(), 1));
}

// What is padded or converted is read in pieces of so many elements: memory that the plan does not know.
constexpr int64_t kPieceElements = 64 << 10;

// Calls `visit` for parts of at most kPieceElements that make up the rectangle.
template <typename Visit>
absl::Status ForEachPiece(const Rectangle& rectangle, const Visit& visit) {
  if (NumElements(rectangle.shape).value_or(0) <= kPieceElements) return visit(rectangle);
  size_t dim = 0;
  while (rectangle.shape[dim] == 1) ++dim;
  Rectangle first = rectangle, second = rectangle;
  first.shape[dim] /= 2;
  second.offset[dim] += first.shape[dim];
  second.shape[dim] -= first.shape[dim];
  TACC_RETURN_IF_ERROR(ForEachPiece(first, visit));
  return ForEachPiece(second, visit);
}

// Reads a rectangle of a tensor of shape `dims` from where the tensor is of shape `source`.
template <typename Read>
absl::Status ReadParts(const Rectangle& rectangle, const graph::Dims& dims, const graph::Dims& source, float* out,
                       const Read& read) {
  const absl::optional<std::vector<Rectangle>> parts = Reshaped(rectangle, dims, source);
  if (!parts.has_value())
    return absl::InternalError(absl::StrCat(ShapeText(dims), " is no tensor of ", ShapeText(source)));
  for (const Rectangle& part : *parts) {
    TACC_RETURN_IF_ERROR(read(part, out));
    out += NumElements(part.shape).value_or(0);
  }
  return absl::OkStatus();
}

// The tensors of files that hold a state.
std::vector<std::string> TensorsOf(const State& state) {
  if (IsStack(state.name)) {
    std::vector<std::string> entries;
    for (int64_t i = 0; i < state.logical_dims()[0]; ++i) entries.push_back(StackEntryName(state.name, i));
    return entries;
  }
  const absl::optional<TensorRows> rows = ParseTensorRows(state.name);
  return {rows.has_value() ? rows->tensor : state.name};
}

absl::Status ConvertInto(const float* from, int64_t count, DType dtype, char* to) {
  if (dtype != DType::kF64) return ConvertFromFloat(SafetensorsName(dtype), from, count, to);
  for (int64_t i = 0; i < count; ++i) {
    const double value = from[i];
    std::memcpy(to + i * sizeof(value), &value, sizeof(value));
  }
  return absl::OkStatus();
}

}  // namespace

Rectangle RankStates::RectangleOf(const State& state) const {
  graph::Value value;
  value.type = state.type;
  value.placement = state.placement;
  Rectangle rectangle;
  for (const graph::Range& range : RangesOf(value, program_.mesh, rank_)) {
    rectangle.offset.push_back(range.begin);
    rectangle.shape.push_back(range.end - range.begin);
  }
  return rectangle;
}

bool RankStates::IsSaved(const State& state) const {
  if (state.kind == StateKind::kWeight) return saves_frozen_ || state.role != graph::WeightRole::kFrozen;
  return state.kind == StateKind::kOptimizer || state.kind == StateKind::kAverage ||
         state.kind == StateKind::kLossScale;
}

// Ranks that hold the same rectangle differ on axes that do not shard the state only, or are on stages that share it.
bool RankStates::IsFirstReplica(const State& state) const {
  if (state.owner >= 0) return false;
  const std::vector<int64_t> coordinates = program_.mesh.Coordinates(rank_);
  for (size_t axis = 0; axis < coordinates.size(); ++axis) {
    if (program_.num_stages > 1 && program_.mesh.axes[axis].name == graph::kStageAxis) continue;
    if (coordinates[axis] != 0 && !state.placement.sharding.Uses(static_cast<int>(axis))) return false;
  }
  return true;
}

class RankStates::Content {
 public:
  // Begins with what the device has.
  static absl::StatusOr<Content> Read(Device& device, const TensorView& place) {
    Content content(device, place);
    if (!device.is_asynchronous()) return content;
    device.Download(Flat(place.data, place.bytes()), content.view_.data);
    TACC_RETURN_IF_ERROR(device.Synchronize());
    return content;
  }
  // Of a state that is zeros on the device, too.
  static Content Zeros(Device& device, const TensorView& place) { return Content(device, place); }

  const TensorView& view() const { return view_; }

  absl::Status WriteBack() {
    if (!device_->is_asynchronous()) return absl::OkStatus();
    device_->Upload(view_.data, Flat(place_.data, place_.bytes()));
    return device_->Synchronize();
  }

 private:
  Content(Device& device, const TensorView& place) : device_(&device), place_(place), view_(place) {
    if (!device.is_asynchronous()) return;
    copy_.resize(place.bytes());
    view_.data = copy_.data();
  }

  Device* device_;
  TensorView place_, view_;
  std::vector<char> copy_;
};

void RankStates::ClearAll() {
  for (const State& state : program_.states) {
    const TensorView view = views_(state.name);
    device_.Clear(Flat(view.data, view.bytes()));
  }
}

// The init of a weight, or of the loss scale, over a rectangle of it.
absl::Status RankStates::ReadRandom(const State& weight, const graph::Dims& dims, const Rectangle& wanted,
                                    uint64_t seed, float* out) {
  namespace cpu = kernels::cpu;
  const kernels::Dims extent(wanted.shape.begin(), wanted.shape.end());
  const cpu::Rectangle rectangle{kernels::Dims(dims.begin(), dims.end()),
                                 kernels::Dims(wanted.offset.begin(), wanted.offset.end()), extent};
  const cpu::RandomKey key{seed, cpu::HashName(ParameterOf(weight))};
  const TensorView view{out, DType::kF32, extent};
  const absl::StatusOr<graph::WeightInit> init = graph::ParseWeightInit(weight.init);
  if (!init.ok())
    return absl::InvalidArgumentError(absl::StrCat("state \"", weight.name, "\": ", init.status().message()));
  switch (init->kind) {
    case graph::WeightInit::Kind::kConstant:
      cpu::RandomInit(cpu::Distribution::kConstant, init->first, 0.0, key, rectangle, view);
      break;
    case graph::WeightInit::Kind::kNormal:
      cpu::RandomInit(cpu::Distribution::kNormal, 0.0, init->first, key, rectangle, view);
      break;
    case graph::WeightInit::Kind::kTruncatedNormal:
      cpu::RandomInit(cpu::Distribution::kTruncatedNormal, init->first, init->second, key, rectangle, view);
      break;
    case graph::WeightInit::Kind::kUniform:
      cpu::RandomInit(cpu::Distribution::kUniform, init->first, init->second, key, rectangle, view);
      break;
  }
  return absl::OkStatus();
}

absl::Status RankStates::Fill(const State& state, const State& source, const ReadFloat& read) {
  if (progress_) progress_();
  const Rectangle mine = RectangleOf(state);
  const graph::Dims& dims = state.placement.global.dims;
  const int64_t count = NumElements(mine.shape).value_or(0);
  if (count == 0) return absl::OkStatus();
  Content content = Content::Zeros(device_, views_(state.name));
  const TensorView& view = content.view();
  if (count == view.size() && view.dtype == DType::kF32) {
    TACC_RETURN_IF_ERROR(read(source, dims, mine, view.as<float>()));
    return content.WriteBack();
  }
  std::vector<float> values;
  std::vector<char> converted;
  TACC_RETURN_IF_ERROR(ForEachPiece(mine, [&](const Rectangle& piece) -> absl::Status {
    const int64_t elements = NumElements(piece.shape).value_or(0), bytes = kernels::SizeOf(view.dtype);
    values.resize(elements);
    converted.resize(elements * bytes);
    TACC_RETURN_IF_ERROR(read(source, dims, piece, values.data()));
    TACC_RETURN_IF_ERROR(ConvertInto(values.data(), elements, view.dtype, converted.data()));
    CopyIntersection(converted.data(), piece, view.as<char>(), LocalBox(mine, view), bytes);
    return absl::OkStatus();
  }));
  return content.WriteBack();
}

absl::Status RankStates::FillFromWeights(StateKind kind, const ReadFloat& read,
                                         absl::FunctionRef<bool(const State& weight)> is_wanted) {
  for (const State& state : program_.states) {
    if (state.kind != kind) continue;
    const std::string weight_name = graph::WeightState(ParameterOf(state));
    const State* weight = program_.FindState(weight_name);
    if (weight == nullptr)
      return absl::InvalidArgumentError(
          absl::StrCat("state \"", state.name, "\" begins as a weight, but there is no \"", weight_name, "\""));
    if (!is_wanted(*weight)) continue;
    const TensorView place = views_(weight_name);
    const bool lies_alike = weight->placement.sharding == state.placement.sharding &&
                            weight->placement.global.dims == state.placement.global.dims;
    if (lies_alike && place.dtype == DType::kF32) {
      TACC_ASSIGN_OR_RETURN(const Content from, Content::Read(device_, place));
      Content to = Content::Zeros(device_, views_(state.name));
      TACC_RETURN_IF_ERROR(ConvertInto(from.view().as<float>(), place.size(), to.view().dtype, to.view().as<char>()));
      TACC_RETURN_IF_ERROR(to.WriteBack());
    } else {
      TACC_RETURN_IF_ERROR(Fill(state, *weight, read));
    }
  }
  return absl::OkStatus();
}

absl::Status RankStates::ReadInitial(const State& state, const graph::Dims& dims, const Rectangle& wanted,
                                     const InitialWeights& initial, float* out) {
  const ModelWeights* from = initial.model;
  if (state.role == graph::WeightRole::kAdapter || state.kind == StateKind::kLossScale) from = nullptr;
  if (state.role != graph::WeightRole::kFrozen && state.kind == StateKind::kWeight && initial.adapter != nullptr)
    from = initial.adapter;
  if (from == nullptr) return ReadRandom(state, dims, wanted, initial.seed, out);
  const graph::Dims& logical = state.logical_dims();
  return ReadParts(wanted, dims, logical, out, [&](const Rectangle& part, float* to) {
    return OfReading(from->ReadFloat(ParameterOf(state), logical, part, to));
  });
}

absl::Status RankStates::Initialize(const InitialWeights& initial) {
  ClearAll();
  saves_frozen_ = initial.model == nullptr;
  const ReadFloat read = [&](const State& state, const graph::Dims& dims, const Rectangle& rectangle, float* out) {
    return ReadInitial(state, dims, rectangle, initial, out);
  };
  for (const State& state : program_.states) {
    if (state.kind == StateKind::kWeight || state.kind == StateKind::kLossScale)
      TACC_RETURN_IF_ERROR(Fill(state, state, read));
  }
  TACC_RETURN_IF_ERROR(FillFromWeights(StateKind::kAverage, read));
  return FillFromWeights(StateKind::kCopy, read);
}

absl::Status RankStates::CheckOptimizer(const Checkpoint& checkpoint) const {
  const auto& tensors = checkpoint.manifest().tensors;
  std::set<std::string> mine, there, parameters;
  // Of what the checkpoint has at all; and of this rank: a stage of a pipeline has some of the parameters.
  const auto has_weight = [&](const State& state) { return tensors.count(graph::WeightState(ParameterOf(state))) > 0; };
  for (const State& state : program_.states) {
    if (!has_weight(state)) continue;
    if (state.kind == StateKind::kOptimizer || state.kind == StateKind::kAverage) mine.insert(state.name);
    if (state.kind == StateKind::kWeight && IsTrained(state.role)) parameters.insert(ParameterOf(state));
  }
  std::vector<absl::string_view> prefixes = StateNamePrefixes(StateKind::kOptimizer);
  for (const absl::string_view prefix : StateNamePrefixes(StateKind::kAverage)) prefixes.push_back(prefix);
  for (const absl::string_view prefix : prefixes) {
    for (const std::string& parameter : parameters) {
      const std::string name = absl::StrCat(prefix, parameter);
      if (tensors.count(name) > 0) there.insert(name);
    }
  }
  const auto another = [&](const std::string& name, const char* what) {
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint.path(), ": ", what, " \"", name, "\": it was written by a job with another optimizer (train.optim, ",
        "train.momentum, train.param_groups or train.ema_decay), whose states this one cannot go on with; give what "
        "that job had, or begin ",
        "from its exported model with checkpoint.resume_from_checkpoint: never"));
  };
  for (const std::string& name : mine) {
    if (there.count(name) == 0) return another(name, "no tensor");
  }
  for (const std::string& name : there) {
    if (mine.count(name) == 0) return another(name, "a tensor");
  }
  return absl::OkStatus();
}

absl::Status RankStates::Load(const Checkpoint& checkpoint, const InitialWeights& initial) {
  TACC_RETURN_IF_ERROR(CheckOptimizer(checkpoint));
  ClearAll();
  saves_frozen_ = initial.model == nullptr;
  const ReadFloat read = [&](const State& state, const graph::Dims& dims, const Rectangle& rectangle,
                             float* out) -> absl::Status {
    if (!IsSaved(state)) return ReadInitial(state, dims, rectangle, initial, out);
    const std::string& name = state.name;
    const auto it = checkpoint.manifest().tensors.find(name);
    // Steps in another precision had no loss scale.
    if (it == checkpoint.manifest().tensors.end() && state.kind == StateKind::kLossScale)
      return ReadRandom(state, dims, rectangle, 0, out);
    if (it == checkpoint.manifest().tensors.end()) {
      return absl::InvalidArgumentError(absl::StrCat(checkpoint.path(), ": no tensor \"", name, "\""));
    }
    if (it->second.shape != state.logical_dims()) {
      return absl::InvalidArgumentError(absl::StrCat(checkpoint.path(), ": tensor \"", name, "\" is ",
                                                     ShapeText(it->second.shape), ", the model's is ",
                                                     ShapeText(state.logical_dims())));
    }
    // The layout that wrote it may have had other leading dims as one.
    const std::vector<int64_t> sliced = it->second.SlicedShape();
    return ReadParts(rectangle, dims, sliced, out, [&](const Rectangle& part, float* to) -> absl::Status {
      if (it->second.dtype == "F32") return OfReading(checkpoint.Read(name, part, to));
      const int64_t count = NumElements(part.shape).value_or(0);
      TACC_ASSIGN_OR_RETURN(const int64_t element, DtypeBytes(it->second.dtype));
      std::vector<char> raw(count * element);
      TACC_RETURN_IF_ERROR(OfReading(checkpoint.Read(name, part, raw.data())));
      return ConvertToFloat(it->second.dtype, raw.data(), count, to);
    });
  };
  for (const State& state : program_.states) {
    if (IsSaved(state) || state.kind == StateKind::kWeight) TACC_RETURN_IF_ERROR(Fill(state, state, read));
  }
  return FillFromWeights(StateKind::kCopy, read);
}

std::vector<ShardTensor> RankStates::DescribeShard() const {
  std::vector<ShardTensor> tensors;
  for (const State& state : program_.states) {
    if (!IsSaved(state) || !IsFirstReplica(state)) continue;
    ShardTensor tensor;
    tensor.name = state.name;
    tensor.rectangle = RectangleOf(state);
    if (NumElements(tensor.rectangle.shape).value_or(0) == 0) continue;
    tensor.dtype = SafetensorsName(views_(state.name).dtype);
    tensor.shape = state.logical_dims();
    tensor.merged_dims = static_cast<int64_t>(tensor.shape.size() - state.placement.global.dims.size()) + 1;
    const State* weight = program_.FindState(graph::WeightState(ParameterOf(state)));
    tensor.stored_shape = weight != nullptr && NumElements(weight->stored_dims) == NumElements(tensor.shape)
                              ? weight->stored_dims
                              : tensor.shape;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

int64_t RankStates::ShardBytes() const {
  int64_t bytes = 0;
  for (const ShardTensor& tensor : DescribeShard()) bytes += BytesOf(tensor);
  return bytes;
}

absl::StatusOr<RankStates::Shard> RankStates::MakeShard() const {
  Shard shard{DescribeShard(), {}};
  for (ShardTensor& tensor : shard.tensors) {
    const TensorView place = views_(tensor.name);
    if (IsPrefix(place, tensor.rectangle) && !device_.is_asynchronous()) {
      tensor.data = place.data;
      continue;
    }
    shard.copies.emplace_back(BytesOf(tensor));
    tensor.data = shard.copies.back().data();
    TACC_RETURN_IF_ERROR(CopyOut(place, tensor.rectangle, shard.copies.back().data()));
  }
  TACC_RETURN_IF_ERROR(device_.Synchronize());
  return shard;
}

absl::Status RankStates::CopyOut(const TensorView& place, const Rectangle& logical, char* to) const {
  if (IsPrefix(place, logical)) {
    const int64_t bytes = NumElements(logical.shape).value_or(0) * kernels::SizeOf(place.dtype);
    device_.Download(Flat(place.data, bytes), to);
    return absl::OkStatus();
  }
  TACC_ASSIGN_OR_RETURN(const Content content, Content::Read(device_, place));
  CopyIntersection(content.view().as<char>(), LocalBox(logical, place), to, logical, kernels::SizeOf(place.dtype));
  return absl::OkStatus();
}

absl::StatusOr<RankStates::Shard> RankStates::MakeSnapshot(char* memory) const {
  Shard shard{DescribeShard(), {}};
  for (ShardTensor& tensor : shard.tensors) {
    TACC_RETURN_IF_ERROR(CopyOut(views_(tensor.name), tensor.rectangle, memory));
    tensor.data = memory;
    memory += BytesOf(tensor);
  }
  TACC_RETURN_IF_ERROR(device_.Synchronize());
  return shard;
}

absl::StatusOr<RankStates::Shard> RankStates::MakePart(const std::string& name) const {
  Shard shard{DescribeShard(), {}};
  std::erase_if(shard.tensors, [&](const ShardTensor& tensor) { return tensor.name != name; });
  for (ShardTensor& tensor : shard.tensors) {
    shard.copies.emplace_back(BytesOf(tensor));
    tensor.data = shard.copies.back().data();
    TACC_RETURN_IF_ERROR(CopyOut(views_(name), tensor.rectangle, shard.copies.back().data()));
  }
  TACC_RETURN_IF_ERROR(device_.Synchronize());
  return shard;
}

absl::Status RankStates::CheckTensors(const ModelWeights& tensors) const {
  std::set<std::string> used;
  for (const State& state : program_.states) {
    const std::vector<std::string> names = TensorsOf(state);
    if (tensors.tensors().count(names[0]) == 0) continue;
    used.insert(names.begin(), names.end());
    if (!IsSaved(state)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", state.name, "\" is frozen, and read from the model's files"));
    }
    // Reading any of it finds out whether the shapes fit.
    const graph::Dims& dims = state.logical_dims();
    float first;
    TACC_RETURN_IF_ERROR(tensors.ReadFloat(
        state.name, dims, {std::vector<int64_t>(dims.size(), 0), std::vector<int64_t>(dims.size(), 1)}, &first));
  }
  if (program_.num_stages > 1) return absl::OkStatus();  // Other stages may have it.
  for (const auto& [name, tensor] : tensors.tensors()) {
    if (used.count(name) == 0)
      return absl::InvalidArgumentError(absl::StrCat("the training has no state \"", name, "\""));
  }
  return absl::OkStatus();
}

absl::Status RankStates::LoadTensors(const ModelWeights& tensors) {
  const ReadFloat read = [&](const State& state, const graph::Dims& dims, const Rectangle& rectangle, float* out) {
    const graph::Dims& logical = state.logical_dims();
    return ReadParts(rectangle, dims, logical, out, [&](const Rectangle& part, float* to) {
      return OfReading(tensors.ReadFloat(state.name, logical, part, to));
    });
  };
  const auto is_given = [&](const State& state) { return tensors.tensors().count(TensorsOf(state)[0]) > 0; };
  for (const State& state : program_.states) {
    if (is_given(state)) TACC_RETURN_IF_ERROR(Fill(state, state, read));
  }
  return FillFromWeights(StateKind::kCopy, read, is_given);
}

absl::StatusOr<double> RankStates::ReadScalar(const std::string& name) const {
  TACC_ASSIGN_OR_RETURN(const Content content, Content::Read(device_, views_(name)));
  const TensorView& view = content.view();
  return view.dtype == DType::kF64 ? *view.as<double>() : static_cast<double>(*view.as<float>());
}

absl::StatusOr<bool> RankStates::IsFinite(const std::string& name) const {
  TACC_ASSIGN_OR_RETURN(const Content content, Content::Read(device_, views_(name)));
  const TensorView& view = content.view();
  for (int64_t i = 0; i < view.size(); ++i) {
    if (view.dtype == DType::kF32 && !std::isfinite(view.as<float>()[i])) return false;
    if (view.dtype == DType::kF64 && !std::isfinite(view.as<double>()[i])) return false;
  }
  return true;
}

}  // namespace tacc::worker
