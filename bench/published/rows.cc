#include "bench/published/rows.h"

#include <fstream>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "graph/ir/status_macros.h"

namespace tacc::bench {
namespace {

using graph::Axis;
using graph::PipelineSchedule;

// Where every fit starts, whatever the presets have learned from these tables: middling fractions of the data sheet, a
// product depth of 64, attention at three quarters of products' speed, and eager PyTorch, whose host issues a kernel in
// tens of microseconds, Python and autograd included.
void Unfit(graph::Machine& machine) {
  machine.matmul_fraction = 0.8;
  machine.matmul_depth = 64;
  machine.attention_fraction = 0.75;
  machine.bandwidth_fraction = 0.85;
  machine.intra_latency_seconds = 5e-6;
  machine.inter_latency_seconds = 10e-6;
  machine.issue_seconds = 50e-6;
}

// Where fits start of what the host of an eager program takes between two micro-batches: a batch to read and send to
// the other ranks of tp, the schedule's turn, a loss to report.
constexpr double kHostSeconds = 1e-3;

// A csv file: a header line, and the values of each line by column.
using Values = std::map<std::string, std::string>;

absl::StatusOr<std::vector<Values>> ReadCsv(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  std::vector<std::string> names;
  std::vector<Values> rows;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const std::vector<std::string> cells = absl::StrSplit(line, ',');
    if (number == 1) {
      names = cells;
      continue;
    }
    if (line.empty()) continue;
    if (cells.size() != names.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": ", cells.size(), " cells; the header has ", names.size()));
    }
    Values& row = rows.emplace_back();
    for (size_t i = 0; i < cells.size(); ++i) row[names[i]] = cells[i];
  }
  return rows;
}

// Reads numbers; remembers the first that is missing or none.
class Cells {
 public:
  explicit Cells(const Values& values) : values_(values) {}
  double Number(const std::string& column) {
    auto it = values_.find(column);
    double number = 0;
    if (it == values_.end() || !absl::SimpleAtod(it->second, &number)) {
      status_.Update(absl::InvalidArgumentError(absl::StrCat("column \"", column, "\" is not a number")));
    }
    return number;
  }
  int64_t Int(const std::string& column) { return static_cast<int64_t>(Number(column)); }
  const absl::Status& status() const { return status_; }

 private:
  const Values& values_;
  absl::Status status_;
};

ModelShape Gpt(int64_t hidden, int64_t heads, int64_t layers, int64_t seq_len) {
  return {hidden, heads, heads, 4 * hidden, layers, 51200, seq_len};
}

std::string GroupOf(const Row& row, int64_t gpus, int64_t batch) {
  return absl::StrCat(row.model, ", ", gpus, " GPUs, batch ", batch);
}

// Megatron-DeepSpeed of 2023: activations of norms and residuals whole on each tp rank, nothing overlaps, gradients in
// half precision.
graph::Execution MegatronDeepSpeed() {
  graph::Execution x;
  x.issues_ahead = x.even_stages = true;
  x.sequence_sharded = false;
  x.overlap_data = x.overlap_tensor = x.overlap_sends = 0;
  x.gradient_bytes = 2;
  x.keeps_copies = x.keeps_gradients = true;
  x.update_traffic_bytes = 34;  // fp16 gradient, fp32 copy, moments, master, fp16 weight
  x.micro_batch_seconds = kHostSeconds;
  return x;
}

absl::StatusOr<Table> VTrain(const std::string& path, const std::string& name) {
  TACC_ASSIGN_OR_RETURN(const std::vector<Values> csv, ReadCsv(path));
  Table table;
  table.name = name;
  TACC_ASSIGN_OR_RETURN(table.machine, graph::FindMachine("a100-80g"));
  Unfit(table.machine);
  table.machine.inter_bytes_per_second = 12.5e9;  // 800 Gb/s a node
  table.execution = MegatronDeepSpeed();
  for (const Values& values : csv) {
    Cells c(values);
    Row row;
    row.shape = Gpt(c.Int("hidden size"), c.Int("attention heads"), c.Int("# layers"), c.Int("sequence length"));
    row.layout.sizes[Axis::kTp] = c.Int("tensor parallelism");
    row.layout.sizes[Axis::kDp] = c.Int("data parallelism");
    row.layout.sizes[Axis::kPp] = c.Int("pipeline parallelism");
    row.layout.micro_batch = c.Int("micro batch");
    const int64_t batch = c.Int("global batch");
    row.layout.recompute = true;
    row.layout.accumulation = batch / (row.layout.sizes[Axis::kDp] * row.layout.micro_batch);
    row.seconds = c.Number("iteration time (ms)") / 1000;
    row.model = absl::StrCat("GPT of ", row.shape.layers, " layers of ", row.shape.hidden);
    row.group = GroupOf(row, c.Int("# GPUs"), batch);
    if (!c.status().ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", c.status().message()));
    table.rows.push_back(row);
  }
  return table;
}

// NeMo on TransformerEngine: flash attention, sequence-sharded norms, tp products overlapped with their collectives,
// gradients and weights of the sharded optimizer overlapped.
absl::StatusOr<Table> DgxH100(const std::string& path) {
  TACC_ASSIGN_OR_RETURN(const std::vector<Values> csv, ReadCsv(path));
  Table table;
  table.name = "DGX H100";
  TACC_ASSIGN_OR_RETURN(table.machine, graph::FindMachine("h100"));
  Unfit(table.machine);
  table.execution.issues_ahead = table.execution.even_stages = table.execution.optimizer_sharded = true;
  table.execution.keeps_copies = table.execution.keeps_gradients = true;
  table.execution.micro_batch_seconds = kHostSeconds;
  table.execution.overlap_tensor = 0.75;  // in as many pieces as tp ranks, four: all but one hide
  table.execution.gradient_bytes = 2;
  for (const Values& values : csv) {
    Cells c(values);
    Row row;
    row.model = values.at("model");
    row.shape = row.model == "llama3.1-8b" ? ModelShape{4096, 32, 8, 14336, 32, 128256, c.Int("seq"), true}
                                           : Gpt(12288, 96, 96, c.Int("seq"));
    row.shape.attention_in_one = true;
    row.layout.sizes[Axis::kTp] = c.Int("tp");
    row.layout.sizes[Axis::kPp] = c.Int("pp");
    row.layout.sizes[Axis::kCp] = c.Int("cp");
    row.layout.zero_stage = 1;  // the optimizer over dp and cp
    if (!values.at("vp").empty()) {
      row.layout.chunks = c.Int("vp");
      row.layout.schedule = PipelineSchedule::kInterleaved;
    }
    row.layout.micro_batch = c.Int("mbs");
    row.layout.sizes[Axis::kDp] =
        c.Int("gpus") / (row.layout.sizes[Axis::kTp] * row.layout.sizes[Axis::kPp] * row.layout.sizes[Axis::kCp]);
    row.layout.accumulation = c.Int("global_batch") / (row.layout.sizes[Axis::kDp] * row.layout.micro_batch);
    row.seconds = c.Number("step_s");
    row.group = GroupOf(row, c.Int("gpus"), c.Int("global_batch"));
    if (!c.status().ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", c.status().message()));
    table.rows.push_back(row);
  }
  return table;
}

absl::StatusOr<Table> MegatronSc21(const std::string& path) {
  TACC_ASSIGN_OR_RETURN(const std::vector<Values> csv, ReadCsv(path));
  Table table;
  table.name = "Megatron SC21";
  TACC_ASSIGN_OR_RETURN(table.machine, graph::FindMachine("a100-80g"));
  Unfit(table.machine);
  table.execution = MegatronDeepSpeed();
  for (const Values& values : csv) {
    Cells c(values);
    Row row;
    const int64_t batch = c.Int("global_batch"), gpus = c.Int("gpus");
    row.shape = Gpt(c.Int("hidden"), c.Int("heads"), c.Int("layers"), 2048);
    row.layout.sizes[Axis::kTp] = c.Int("tp");
    row.layout.sizes[Axis::kPp] = c.Int("pp");
    row.layout.sizes[Axis::kDp] = gpus / (row.layout.sizes[Axis::kTp] * row.layout.sizes[Axis::kPp]);
    row.layout.recompute = true;
    row.layout.accumulation = batch / row.layout.sizes[Axis::kDp];
    row.layout_is_whole = false;
    const double s = 2048, h = static_cast<double>(row.shape.hidden), l = static_cast<double>(row.shape.layers);
    const double flops = 96 * static_cast<double>(batch) * s * l * h * h * (1 + s / (6 * h) + 51200 / (16 * l * h));
    row.seconds = flops / (c.Number("tflops_gpu") * 1e12 * static_cast<double>(gpus));
    row.model = absl::StrCat("GPT ", values.at("params_b"), " B");
    row.group = GroupOf(row, gpus, batch);
    if (!c.status().ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", c.status().message()));
    table.rows.push_back(row);
  }
  return table;
}

}  // namespace

absl::StatusOr<std::vector<Table>> ReadTables(const std::string& folder) {
  std::vector<Table> tables;
  TACC_ASSIGN_OR_RETURN(Table multi, VTrain(folder + "/vtrain_multi_node_a100.csv", "vTrain multi-node"));
  multi.bar = 0.08;
  multi.calculon = "15.4 % and 39 % on vTrain's rows";
  TACC_ASSIGN_OR_RETURN(Table single, VTrain(folder + "/vtrain_single_node_a100.csv", "vTrain single-node"));
  single.bar = 0.05;
  single.calculon = multi.calculon;
  TACC_ASSIGN_OR_RETURN(Table dgx, DgxH100(folder + "/dgx_h100.csv"));
  dgx.bar = 0.04;
  TACC_ASSIGN_OR_RETURN(Table megatron, MegatronSc21(folder + "/megatron_sc21.csv"));
  megatron.bar = 0.05;
  tables.push_back(std::move(multi));
  tables.push_back(std::move(single));
  tables.push_back(std::move(dgx));
  tables.push_back(std::move(megatron));
  return tables;
}

}  // namespace tacc::bench
