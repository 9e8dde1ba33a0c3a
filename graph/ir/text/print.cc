#include <charconv>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/ir/text.h"

namespace tacc::graph {
namespace {

std::string PrintDouble(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), x).ptr;
  std::string text(buffer, end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

bool IsWord(const std::string& s) {
  if (s.empty() || s == "true" || s == "false" || s == "inf" || s == "nan") return false;
  if (!absl::ascii_isalpha(s[0]) && s[0] != '_') return false;
  return s.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") == std::string::npos;
}

std::string Quote(absl::string_view s) {
  std::string out = "\"";
  for (char c : s) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string PrintString(const std::string& s) { return IsWord(s) ? s : Quote(s); }

std::string PrintType(const TensorType& type, const std::optional<Placement>& placement, int64_t offset,
                      const Mesh& mesh) {
  std::string out = type.ToString();
  if (placement.has_value()) {
    absl::StrAppend(&out, " of ", placement->global.ToString(), " shard=", placement->sharding.ToString(mesh));
  }
  if (offset >= 0) absl::StrAppend(&out, " at=", offset);
  return out;
}

std::string ValueNames(const Graph& graph, const std::vector<ValueId>& ids) {
  return absl::StrJoin(ids, ", ",
                       [&](std::string* out, ValueId v) { absl::StrAppend(out, "%", graph.values[v].name); });
}

void AppendNodes(const Graph& graph, const Mesh& mesh, const char* indent, std::string* out) {
  for (const Node& node : graph.nodes) absl::StrAppend(out, indent, Print(graph, node, mesh), "\n");
}

void AppendCalls(const char* name, const std::vector<Call>& calls, std::string* out) {
  if (calls.empty()) return;
  absl::StrAppend(out, name, " {\n");
  for (const Call& call : calls) {
    absl::StrAppend(out, "  call ", call.graph, " micro_batch=", call.micro_batch, "\n");
  }
  absl::StrAppend(out, "}\n");
}

}  // namespace

std::string Print(const Attr& attr) {
  struct Visitor {
    std::string operator()(int64_t x) const { return absl::StrCat(x); }
    std::string operator()(double x) const { return PrintDouble(x); }
    std::string operator()(bool x) const { return x ? "true" : "false"; }
    std::string operator()(const std::string& x) const { return PrintString(x); }
    std::string operator()(const std::vector<int64_t>& x) const { return DimsToString(x); }
    std::string operator()(const std::vector<double>& x) const {
      // An empty list reads back as a list of integers; inference treats empty lists alike.
      return absl::StrCat(
          "[", absl::StrJoin(x, ",", [](std::string* out, double d) { absl::StrAppend(out, PrintDouble(d)); }), "]");
    }
    std::string operator()(const std::vector<std::string>& x) const {
      return absl::StrCat(
          "[",
          absl::StrJoin(x, ",", [](std::string* out, const std::string& s) { absl::StrAppend(out, PrintString(s)); }),
          "]");
    }
  };
  return std::visit(Visitor(), attr);
}

std::string Print(const Graph& graph, const Node& node, const Mesh& mesh) {
  std::string out;
  if (!node.results.empty()) absl::StrAppend(&out, ValueNames(graph, node.results), " = ");
  absl::StrAppend(&out, node.op.name());
  if (!node.symbol.empty()) absl::StrAppend(&out, " ", Quote(node.symbol));
  if (!node.operands.empty()) absl::StrAppend(&out, " ", ValueNames(graph, node.operands));
  for (const auto& [key, value] : node.attrs) absl::StrAppend(&out, " ", key, "=", Print(value));
  for (size_t i = 0; i < node.results.size(); ++i) {
    const Value& value = graph.values[node.results[i]];
    absl::StrAppend(&out, i == 0 ? " : " : ", ", PrintType(value.type, value.placement, value.offset, mesh));
  }
  if (!node.module.empty()) absl::StrAppend(&out, " @", node.module);
  if (node.recompute > 0) absl::StrAppend(&out, " recompute=", node.recompute);
  return out;
}

std::string Print(const Graph& graph) {
  std::string out = "tacc.graph 1\n";
  AppendNodes(graph, Mesh(), "", &out);
  return out;
}

std::string Print(const Program& program) {
  std::string out = absl::StrCat("tacc.program 1 ", Name(program.level), "\n");
  if (!program.mesh.axes.empty()) absl::StrAppend(&out, "mesh ", program.mesh.ToString(), "\n");
  absl::StrAppend(&out, "stage ", program.stage, " of ", program.num_stages, "\n");
  if (program.seq_len > 0) absl::StrAppend(&out, "seq_len ", program.seq_len, "\n");
  if (program.arena_bytes >= 0) {
    absl::StrAppend(&out, "arena bytes=", program.arena_bytes, " workspace=", program.workspace_bytes, "\n");
  }
  for (const State& state : program.states) {
    absl::StrAppend(&out, "state ", Quote(state.name), " : ", PrintType(state.type, state.placement, -1, program.mesh),
                    " kind=", Name(state.kind), " init=", PrintString(state.init));
    if (state.role != WeightRole::kTrained) absl::StrAppend(&out, " role=", Name(state.role));
    if (!state.stored_dims.empty()) absl::StrAppend(&out, " stored=", DimsToString(state.stored_dims));
    if (!state.merged_from.empty()) absl::StrAppend(&out, " merged_from=", DimsToString(state.merged_from));
    if (!state.axes.empty()) absl::StrAppend(&out, " axes=", Print(Attr(state.axes)));
    if (state.slots != 1) absl::StrAppend(&out, " slots=", state.slots);
    if (state.owner >= 0) absl::StrAppend(&out, " owner=", state.owner);
    if (state.offset >= 0) absl::StrAppend(&out, " at=", state.offset);
    absl::StrAppend(&out, "\n");
  }
  for (const Graph& graph : program.graphs) {
    absl::StrAppend(&out, "graph ", graph.name, " {\n");
    AppendNodes(graph, program.mesh, "  ", &out);
    absl::StrAppend(&out, "}\n");
  }
  AppendCalls("step", program.step, &out);
  AppendCalls("eval", program.eval, &out);
  return out;
}

}  // namespace tacc::graph
