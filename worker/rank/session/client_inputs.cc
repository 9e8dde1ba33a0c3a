#include "worker/rank/session/client_inputs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/sequence_order.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/collectives/bind_collective.h"

namespace tacc::worker {
namespace {

nlohmann::json RangesJson(const std::vector<graph::Range>& ranges) {
  nlohmann::json json = nlohmann::json::array();
  for (const graph::Range& range : ranges) json.push_back({range.begin, range.end});
  return json;
}

// Neighbouring positions as ranges.
std::vector<graph::Range> RangesOfPositions(const std::vector<int64_t>& positions) {
  std::vector<graph::Range> ranges;
  for (const int64_t position : positions) {
    if (!ranges.empty() && ranges.back().end == position) {
      ++ranges.back().end;
    } else {
      ranges.push_back({position, position + 1});
    }
  }
  return ranges;
}

absl::StatusOr<ClientInput> ClientInputOf(const graph::Program& program, int64_t rank, const Executor::Input& input) {
  ClientInput client;
  client.name = input.name;
  client.type = input.value.placement.has_value() ? input.value.placement->global : input.value.type;
  client.has_batch = !input.axes.empty() && input.axes[0] == graph::InputAxis::kBatch;
  client.ranges = RangesOf(input.value, program.mesh, rank);
  client.bytes = input.value.type.bytes();
  client.limit = input.limit;
  client.ignored = input.ignored;
  for (int dim = 0; dim < client.type.rank(); ++dim) {
    const graph::Range& range = client.ranges[dim];
    if (range.end - range.begin != input.value.type.dims[dim]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the program's input \"", input.name, "\", ", client.type.ToString(), ", does not divide over the ranks: ",
          "rank ", rank, " has ", range.end - range.begin, " of ", input.value.type.dims[dim], " of dim ", dim));
    }
  }
  if (input.zigzag > 1)
    client.positions = RangesOfPositions(graph::Positions({client.type.dims[1], input.zigzag}, client.ranges[1]));
  return client;
}

}  // namespace

nlohmann::json ClientInput::ToJson() const {
  nlohmann::json json = {{"name", name},
                         {"dtype", graph::Name(type.dtype)},
                         {"dims", type.dims},
                         {"batch", has_batch},
                         {"ranges", RangesJson(ranges)}};
  if (!positions.empty()) json["positions"] = RangesJson(positions);
  if (limit.has_value()) json["limit"] = *limit;
  if (ignored.has_value()) json["ignored"] = *ignored;
  return json;
}

absl::StatusOr<std::vector<ClientInput>> ClientInputs(const graph::Program& program, int64_t rank,
                                                      const std::vector<Executor::Input>& inputs) {
  std::vector<ClientInput> given;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].name == "step" || inputs[i].name == "sample" || inputs[i].absent.has_value()) continue;
    TACC_ASSIGN_OR_RETURN(ClientInput input, ClientInputOf(program, rank, inputs[i]));
    input.index = i;
    given.push_back(std::move(input));
  }
  return given;
}

int64_t ClientBucket::bytes() const {
  int64_t sum = 0;
  for (const ClientInput& input : inputs) sum += input.bytes;
  return sum;
}

std::vector<ClientOutput> ClientOutputs(const graph::Program& program, int64_t rank,
                                        const std::vector<Executor::Returned>& returned) {
  std::vector<ClientOutput> outputs;
  const std::vector<int64_t> coordinates = program.mesh.Coordinates(rank);
  for (size_t i = 0; i < returned.size(); ++i) {
    const graph::Value& value = returned[i].value;
    bool is_first = true;
    for (size_t axis = 0; axis < coordinates.size(); ++axis) {
      const bool splits = value.placement.has_value() && value.placement->sharding.Uses(static_cast<int>(axis));
      // Stages return values of their own.
      is_first = is_first && (coordinates[axis] == 0 || splits || program.mesh.axes[axis].name == graph::kStageAxis);
    }
    if (!is_first) continue;
    const graph::TensorType& type = value.placement.has_value() ? value.placement->global : value.type;
    outputs.push_back({i,
                       {{"name", returned[i].name},
                        {"dtype", graph::Name(type.dtype)},
                        {"dims", type.dims},
                        {"ranges", RangesJson(RangesOf(value, program.mesh, rank))}}});
  }
  return outputs;
}

}  // namespace tacc::worker
