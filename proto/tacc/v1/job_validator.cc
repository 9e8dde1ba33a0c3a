#include "proto/tacc/v1/job_validator.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/tacc/v1/job_words.h"
#include "proto/tacc/v1/upload_name.h"
#include "tacc/v1/options.pb.h"

namespace tacc {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kMaxNameBytes = 63;
constexpr size_t kMaxStringBytes = 4096;
constexpr int kMaxListEntries = 64;
constexpr int kMaxNumbers = 1 << 17;

std::string Join(absl::string_view path, absl::string_view name) {
  return path.empty() ? std::string(name) : absl::StrCat(path, ".", name);
}

bool IsName(const std::string& name) {
  if (name.empty() || name.size() > kMaxNameBytes || !absl::ascii_isalnum(name[0])) return false;
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && c != '.' && c != '_' && c != '-') return false;
  }
  return true;
}

}  // namespace

int64_t JobValidator::ContextSize(const v1::DistSpec& dist) {
  return std::max(1, dist.cp().has_size() ? dist.cp().size() : dist.sp().size());
}

std::vector<JobDiagnostic> JobValidator::Run(const v1::JobSpec& spec) {
  CheckMessage(spec, "");
  if (!spec.name().empty() && !IsName(spec.name())) {
    Add("name", absl::StrCat("name = ", QuotedText(spec.name()), " is not a job name; use at most ", kMaxNameBytes,
                             " letters, digits, '.', '_' and '-', beginning with a letter or digit"));
  }
  CheckModel(spec);
  CheckData(spec);
  CheckTrain(spec);
  CheckFinetuning(spec);
  CheckLayout(spec);
  CheckCompute(spec.compute());
  CheckMemory(spec.memory());
  CheckBatch(spec);
  if (!spec.checkpoint().has_dir())
    Add("checkpoint.dir", "checkpoint.dir is missing; give the folder of the checkpoints");
  return std::move(diagnostics_);
}

void JobValidator::Add(const std::string& field, const std::string& message, std::vector<std::string> related) {
  diagnostics_.push_back({field, message, std::move(related)});
}

void JobValidator::CheckMessage(const Message& message, const std::string& path) {
  const Descriptor& type = *message.GetDescriptor();
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    const v1::FieldRule& rule = field->options().GetExtension(v1::rule);
    const std::string name = Join(path, field->name());
    if (field->is_map()) {
      CheckMap(message, field, name);
      continue;
    }
    if (field->is_repeated()) {
      CheckList(message, field, name);
      continue;
    }
    if (!reflection.HasField(message, field)) {
      if (rule.required()) Add(name, absl::StrCat(name, " is missing", MissingHint(field)));
      continue;
    }
    if (field->message_type() != nullptr) {
      CheckMessage(reflection.GetMessage(message, field), name);
    } else {
      CheckScalar(message, field, rule, name);
    }
  }
}

std::string JobValidator::MissingHint(const FieldDescriptor* field) {
  if (field->message_type() == nullptr) return "";
  std::vector<std::string> names;
  for (int i = 0; i < field->message_type()->field_count(); ++i) {
    const FieldDescriptor* child = field->message_type()->field(i);
    if (child->options().GetExtension(v1::rule).required()) names.push_back(Join(field->name(), child->name()));
  }
  if (field->message_type() == v1::DataSpec::descriptor()) names = {"data.path or data.client"};
  if (field->message_type() == v1::ModelSpec::descriptor()) names = {"model.path or model.graph"};
  if (field->message_type() == v1::TrainSpec::descriptor()) names = {"train.max_steps or train.num_train_epochs"};
  return names.empty() ? "" : absl::StrCat("; give ", absl::StrJoin(names, " and "));
}

void JobValidator::CheckScalar(const Message& message, const FieldDescriptor* field, const v1::FieldRule& rule,
                               const std::string& name) {
  const Reflection& reflection = *message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      CheckBounds(reflection.GetInt32(message, field), rule, name);
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      CheckBounds(reflection.GetDouble(message, field), rule, name);
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      if (reflection.GetEnumValue(message, field) == 0)
        Add(name, absl::StrCat(name, " is set to no value; set one or leave it out"));
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      CheckString(reflection.GetString(message, field), rule, name);
      break;
    default:
      break;
  }
}

void JobValidator::CheckBounds(double value, const v1::FieldRule& rule, const std::string& name) {
  const std::string unit = rule.has_unit() ? absl::StrCat(" ", rule.unit()) : "";
  const std::string got = absl::StrCat(name, " = ", NumberText(value), unit, " is ");
  if (!std::isfinite(value)) {
    Add(name, absl::StrCat(name, " is not a finite number; give a finite one"));
  } else if (rule.has_min() && value < rule.min()) {
    Add(name, absl::StrCat(got, "too small; the smallest is ", NumberText(rule.min())));
  } else if (rule.has_max() && value > rule.max()) {
    Add(name, absl::StrCat(got, "too large; the largest is ", NumberText(rule.max())));
  } else if (rule.has_above() && value <= rule.above()) {
    Add(name, absl::StrCat(got, "too small; it must be more than ", NumberText(rule.above())));
  } else if (rule.has_below() && value >= rule.below()) {
    Add(name, absl::StrCat(got, "too large; it must be less than ", NumberText(rule.below())));
  }
}

void JobValidator::CheckString(const std::string& value, const v1::FieldRule& rule, const std::string& name) {
  if (value.empty()) {
    Add(name, absl::StrCat(name, " is empty"));
    return;
  }
  if (value.size() > kMaxStringBytes) {
    Add(name, absl::StrCat(name, " has ", value.size(), " bytes; at most ", kMaxStringBytes, " are allowed"));
    return;
  }
  for (const char c : value) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      Add(name, absl::StrCat(name, " = ", QuotedText(value), " has a control character"));
      return;
    }
  }
  if (!rule.path() || value[0] == '/') return;
  for (const std::string& word : rule.path_word()) {
    if (value == word) return;
  }
  if (rule.upload() && absl::StartsWith(value, kUploadPrefix)) {
    const std::string id = UploadId(value);
    if (id.size() != 64 || id.find_first_not_of("0123456789abcdef") != std::string::npos) {
      Add(name, absl::StrCat(name, " = ", QuotedText(value), " is no upload; give what tacc.Client.upload returned, ",
                             "upload: and 64 hex digits"));
    }
    return;
  }
  Add(name, absl::StrCat(name, " = ", QuotedText(value), " is a relative path; give an absolute one"));
}

void JobValidator::CheckList(const Message& message, const FieldDescriptor* field, const std::string& name) {
  const Reflection& reflection = *message.GetReflection();
  const int size = reflection.FieldSize(message, field);
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
    if (size > kMaxNumbers)
      Add(name, absl::StrCat(name, " has ", size, " numbers; at most ", kMaxNumbers, " are allowed"));
    for (int i = 0; i < std::min(size, kMaxNumbers); ++i) {
      CheckBounds(reflection.GetRepeatedDouble(message, field, i), field->options().GetExtension(v1::rule),
                  absl::StrCat(name, "[", i, "]"));
    }
    return;
  }
  if (size > kMaxListEntries) {
    Add(name, absl::StrCat(name, " has ", size, " entries; at most ", kMaxListEntries, " are allowed"));
    return;
  }
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
    for (int i = 0; i < size; ++i) {
      CheckBounds(reflection.GetRepeatedInt32(message, field, i), field->options().GetExtension(v1::rule),
                  absl::StrCat(name, "[", i, "]"));
    }
    return;
  }
  std::set<std::string> seen;
  for (int i = 0; i < size; ++i) {
    const std::string entry = reflection.GetRepeatedString(message, field, i);
    CheckString(entry, v1::FieldRule::default_instance(), absl::StrCat(name, "[", i, "]"));
    if (!seen.insert(entry).second) Add(name, absl::StrCat(name, " names ", QuotedText(entry), " twice"));
  }
}

void JobValidator::CheckMap(const Message& message, const FieldDescriptor* field, const std::string& name) {
  const Reflection& reflection = *message.GetReflection();
  const int size = reflection.FieldSize(message, field);
  if (size > kMaxListEntries) {
    Add(name, absl::StrCat(name, " has ", size, " entries; at most ", kMaxListEntries, " are allowed"));
    return;
  }
  const FieldDescriptor* value_of = field->message_type()->map_value();
  std::map<std::string, std::string> entries;
  for (int i = 0; i < size; ++i) {
    const Message& entry = reflection.GetRepeatedMessage(message, field, i);
    if (value_of->message_type() != nullptr) {
      const std::string key = entry.GetReflection()->GetString(entry, field->message_type()->map_key());
      CheckString(key, v1::FieldRule::default_instance(), absl::StrCat("a name in ", name));
      CheckMessage(entry.GetReflection()->GetMessage(entry, value_of), absl::StrCat(name, "[", QuotedText(key), "]"));
      continue;
    }
    const auto text = [&](const char* part) {
      return entry.GetReflection()->GetString(entry, field->message_type()->FindFieldByName(part));
    };
    entries[text("key")] = text("value");
  }
  for (const auto& [key, value] : entries) {
    CheckString(key, v1::FieldRule::default_instance(), absl::StrCat("a name in ", name));
    CheckString(value, v1::FieldRule::default_instance(), absl::StrCat(name, "[", QuotedText(key), "]"));
  }
}

void JobValidator::CheckPins(const v1::DistSpec& dist) {
  const std::vector<std::string> axes = {"dp", "fsdp", "ep", "cp", "tp"};
  const std::map<std::string, std::string> pins(dist.pins().begin(), dist.pins().end());
  for (const auto& [name, pin] : pins) {
    if (pin.empty()) continue;
    const std::string field = absl::StrCat("dist.pins[", QuotedText(name), "]");
    absl::string_view inside = absl::StripAsciiWhitespace(pin);
    if (!absl::ConsumePrefix(&inside, "[") || !absl::ConsumeSuffix(&inside, "]")) {
      Add(field, absl::StrCat(field, " = ", QuotedText(pin),
                              " is no sharding; give its dims in brackets, each - or axes joined by +, as "
                              "\"[tp, -]\" or \"[dp+fsdp, -, tp]\""));
      continue;
    }
    std::set<std::string> seen;
    for (const absl::string_view dim : absl::StrSplit(inside, ',')) {
      if (absl::StripAsciiWhitespace(dim) == "-") continue;
      for (const absl::string_view word : absl::StrSplit(dim, '+')) {
        const std::string axis(absl::StripAsciiWhitespace(word));
        if (std::find(axes.begin(), axes.end(), axis) == axes.end()) {
          Add(field, absl::StrCat(field, ": ", QuotedText(axis), " is no axis that splits tensors; there are ",
                                  absl::StrJoin(axes, ", "), ", and - for none"));
        } else if (!seen.insert(axis).second) {
          Add(field, absl::StrCat(field, ": ", axis, " is given twice; it can split one dim"));
        }
      }
    }
  }
}

void JobValidator::CheckModel(const v1::JobSpec& spec) {
  if (!spec.has_model()) return;
  const v1::ModelSpec& model = spec.model();
  if (model.has_path() && model.has_graph()) {
    Add("model.graph", "model.path and model.graph are both given; keep one", {"model.path"});
  } else if (!model.has_path() && !model.has_graph()) {
    Add("model", "model.path is missing; give the folder of a Hugging Face model (or model.graph)",
        {"model.path", "model.graph"});
  }
}

std::vector<std::string> JobValidator::LayoutFields() {
  std::vector<std::string> fields = {"resources.workers"};
  const google::protobuf::Descriptor* dist = v1::DistSpec::descriptor();
  for (int i = 0; i < dist->field_count(); ++i) {
    if (dist->field(i)->message_type() != nullptr && !dist->field(i)->is_map())
      fields.push_back(absl::StrCat("dist.", dist->field(i)->name(), ".size"));
  }
  return fields;
}

std::vector<JobValidator::AxisSize> JobValidator::SetSizes(const v1::DistSpec& dist) {
  std::vector<AxisSize> sizes;
  if (dist.pp().has_size()) sizes.push_back({"dist.pp.size", dist.pp().size()});
  if (dist.dp().has_size()) sizes.push_back({"dist.dp.size", dist.dp().size()});
  if (dist.fsdp().has_size()) sizes.push_back({"dist.fsdp.size", dist.fsdp().size()});
  if (dist.ep().has_size()) sizes.push_back({"dist.ep.size", dist.ep().size()});
  if (dist.cp().has_size()) {
    sizes.push_back({"dist.cp.size", dist.cp().size()});
  } else if (dist.sp().has_size()) {
    sizes.push_back({"dist.sp.size", dist.sp().size()});
  }
  if (dist.tp().has_size()) sizes.push_back({"dist.tp.size", dist.tp().size()});
  return sizes;
}

void JobValidator::CheckCompute(const v1::ComputeSpec& compute) {
  const std::pair<const char*, bool> chosen[] = {
      {"compute.bf16", compute.bf16()}, {"compute.fp16", compute.fp16()}, {"compute.tf32", compute.tf32()}};
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < i; ++j) {
      if (!chosen[i].second || !chosen[j].second) continue;
      Add(chosen[i].first,
          absl::StrCat(chosen[j].first, " and ", chosen[i].first,
                       " are both true; products are computed in one type: keep one"),
          {chosen[j].first});
      return;
    }
  }
  if (compute.has_grad_scaler() && !compute.fp16())
    Add("compute.grad_scaler", "compute.grad_scaler needs compute.fp16: true", {"compute.fp16"});
  if (compute.residual_dtype() == v1::RESIDUAL_DTYPE_BFLOAT16 && !compute.bf16())
    Add("compute.residual_dtype", "compute.residual_dtype: bfloat16 needs compute.bf16: true", {"compute.bf16"});
  const bool is_bf16_excluded = (compute.has_bf16() && !compute.bf16()) || compute.fp16() || compute.tf32();
  if (compute.residual_dtype() == v1::RESIDUAL_DTYPE_AUTO && is_bf16_excluded) {
    Add("compute.residual_dtype",
        "compute.residual_dtype: auto chooses bfloat16 only beside products in bfloat16, which the job rules out: "
        "leave it out, or set compute.bf16: true",
        {"compute.bf16"});
  }
}

void JobValidator::CheckMemory(const v1::MemorySpec& memory) {
  if (memory.gc()) return;
  if (memory.gc_cls_size() > 0) Add("memory.gc_cls", "memory.gc_cls needs memory.gc: true", {"memory.gc"});
  if (memory.has_gc_cnt()) Add("memory.gc_cnt", "memory.gc_cnt needs memory.gc: true", {"memory.gc"});
}

void JobValidator::CheckReshard(const v1::DistSpec& dist) {
  const v1::FsdpSpec& fsdp = dist.fsdp();
  if (fsdp.has_reshard_cnt() && !fsdp.reshard_after_forward()) {
    Add("dist.fsdp.reshard_cnt", "dist.fsdp.reshard_cnt needs dist.fsdp.reshard_after_forward: true",
        {"dist.fsdp.reshard_after_forward"});
  }
  const bool gathers = !fsdp.has_zero_stage() || fsdp.zero_stage() == 3;
  if (fsdp.has_reduce_each_micro_batch() && !gathers) {
    Add("dist.fsdp.reduce_each_micro_batch",
        absl::StrCat("dist.fsdp.reduce_each_micro_batch: ", fsdp.reduce_each_micro_batch() ? "true" : "false",
                     " needs dist.fsdp.zero_stage: 3; with 1 gradients are reduced once, with 2 those of each "
                     "micro-batch"),
        {"dist.fsdp.zero_stage"});
  }
  if (!fsdp.has_reshard_after_forward()) return;
  const std::string got =
      absl::StrCat("dist.fsdp.reshard_after_forward: ", fsdp.reshard_after_forward() ? "true" : "false");
  if (!gathers) {
    Add("dist.fsdp.reshard_after_forward",
        absl::StrCat(got, " needs dist.fsdp.zero_stage: 3; with ", fsdp.zero_stage(), " no weights are gathered"),
        {"dist.fsdp.zero_stage"});
  } else if (dist.pp().size() > 1 && (!fsdp.reshard_after_forward() || fsdp.has_reshard_cnt())) {
    Add("dist.fsdp.reshard_after_forward",
        absl::StrCat(got, fsdp.has_reshard_cnt() ? " for some layers only" : "",
                     " does not go with dist.pp.size = ", dist.pp().size(),
                     ": weights would be kept for each micro-batch under way; leave it out, or use "
                     "dist.fsdp.zero_stage: 2, which gathers no weights"),
        {"dist.pp.size", "dist.fsdp.reshard_cnt"});
  }
}

void JobValidator::CheckTopology(const v1::DistSpec& dist) {
  const std::vector<std::string> axes = {"pp", "dp", "fsdp", "ep", "cp", "tp"};
  const auto& topology = dist.topology();
  for (int i = 0; i < topology.size(); ++i) {
    if (std::find(axes.begin(), axes.end(), topology[i]) != axes.end()) continue;
    Add(absl::StrCat("dist.topology[", i, "]"),
        absl::StrCat("dist.topology: ", QuotedText(topology[i]), " is no axis; there are ", absl::StrJoin(axes, ", "),
                     topology[i] == "sp" ? "; sp lies inside cp" : ""));
  }
  if (topology.empty()) return;
  for (const AxisSize& size : SetSizes(dist)) {
    std::string axis = std::string(absl::StripSuffix(absl::StripPrefix(size.field, "dist."), ".size"));
    if (axis == "sp") axis = "cp";
    if (size.size <= 1 || std::find(topology.begin(), topology.end(), axis) != topology.end()) continue;
    Add("dist.topology",
        absl::StrCat("dist.topology leaves out ", axis, ", but ", size.field, " = ", size.size,
                     "; name it where it is to lie, between nodes first: unless said otherwise the order is ",
                     absl::StrJoin(axes, ", ")),
        {size.field});
  }
}

void JobValidator::CheckLayout(const v1::JobSpec& spec) {
  CheckTopology(spec.dist());
  CheckPins(spec.dist());
  CheckReshard(spec.dist());
  const v1::PpSpec& pipeline = spec.dist().pp();
  const bool interleaves = pipeline.schedule() == v1::PIPELINE_SCHEDULE_INTERLEAVED;
  if (pipeline.has_num_chunks() && (pipeline.num_chunks() > 1) != interleaves) {
    Add("dist.pp.num_chunks",
        absl::StrCat("dist.pp.num_chunks = ", pipeline.num_chunks(),
                     interleaves ? " with schedule: interleaved; use 2 or more"
                                 : " needs schedule: interleaved; set it or leave num_chunks out"),
        {"dist.pp.num_chunks", "dist.pp.schedule"});
  }
  const int64_t cp = spec.dist().cp().size(), sp = spec.dist().sp().size();
  if (cp >= 1 && sp >= 1 && cp % sp != 0) {
    Add("dist.sp.size",
        absl::StrCat("dist.sp.size = ", sp, " does not divide dist.cp.size = ", cp, "; use ", Divisors(cp)),
        {"dist.cp.size"});
    return;
  }
  const int64_t workers = spec.resources().workers();
  const std::vector<AxisSize> sizes = SetSizes(spec.dist());
  if (workers < 1 || sizes.empty()) return;
  // A mistake in any of them hides this check.
  std::vector<std::string> related = LayoutFields(), terms;
  int64_t product = 1;
  for (const AxisSize& axis : sizes) {
    if (axis.size < 1 || axis.size > kMaxWorld) return;
    product = std::min<int64_t>(product * axis.size, int64_t{1} << 40);
    terms.push_back(absl::StrCat(axis.field, " ", axis.size));
  }
  if (spec.dist().dp().has_size() && spec.dist().fsdp().has_size()) {
    if (product == workers) return;
    Add("resources.workers",
        absl::StrCat(absl::StrJoin(terms, " x "), " = ", product, ", but resources.workers = ", workers,
                     "; set resources.workers to ", product, " or leave it out"),
        related);
  } else if (workers % product != 0 && sizes.size() == 1) {
    Add(sizes[0].field,
        absl::StrCat(sizes[0].field, " = ", product, " does not divide resources.workers = ", workers, "; use ",
                     Divisors(workers)),
        related);
  } else if (workers % product != 0) {
    Add(sizes[0].field,
        absl::StrCat(absl::StrJoin(terms, " x "), " = ", product, " does not divide resources.workers = ", workers,
                     "; the product may be ", Divisors(workers)),
        related);
  }
}

std::string JobValidator::Divisors(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t i = 1; i <= n && i <= 65536; ++i) {
    if (n % i == 0) divisors.push_back(i);
  }
  if (divisors.size() == 1) return "1";
  const int64_t last = divisors.back();
  divisors.pop_back();
  return absl::StrCat(absl::StrJoin(divisors, ", "), " or ", last);
}

void JobValidator::CheckBatch(const v1::JobSpec& spec) {
  const v1::TrainSpec& train = spec.train();
  if (train.global_batch_size() < 1) return;
  uint64_t unit = 1;
  std::vector<std::string> terms, related;
  const auto take = [&](const std::string& name, int64_t value, uint64_t largest) {
    related.push_back(name);
    if (value < 1 || static_cast<uint64_t>(value) > largest) return;
    if (unit > std::numeric_limits<uint64_t>::max() / static_cast<uint64_t>(value)) return;  // far beyond any batch
    unit *= static_cast<uint64_t>(value);
    terms.push_back(absl::StrCat(name, " ", value));
  };
  take("train.per_device_train_batch_size", train.per_device_train_batch_size(), std::numeric_limits<int32_t>::max());
  const bool both = spec.dist().dp().has_size() && spec.dist().fsdp().has_size();
  // Workers that share samples are as many as the planner likes where the job does not say.
  const bool says_sharers = spec.dist().tp().has_size() && spec.dist().pp().has_size() &&
                            (spec.dist().cp().has_size() || spec.dist().sp().has_size());
  const int64_t tp = std::max(1, spec.dist().tp().size()), pp = std::max(1, spec.dist().pp().size());
  const int64_t cp = ContextSize(spec.dist()), sharers = tp * pp * cp;
  if (spec.resources().has_workers() && !both && says_sharers && spec.resources().workers() % sharers == 0) {
    const char* context = spec.dist().cp().has_size() ? " / dist.cp.size" : " / dist.sp.size";
    take(absl::StrCat("resources.workers", pp > 1 ? " / dist.pp.size" : "", cp > 1 ? context : "",
                      tp > 1 ? " / dist.tp.size" : ""),
         spec.resources().workers() / sharers, 65536);
  } else {
    take("dist.dp.size", spec.dist().dp().size(), 65536);
    take("dist.fsdp.size", spec.dist().fsdp().size(), 65536);
    if (spec.dist().ep().has_size()) take("dist.ep.size", spec.dist().ep().size(), 65536);
  }
  const uint64_t batch = train.global_batch_size();
  if (batch % unit == 0) return;
  std::vector<uint64_t> legal;
  if (batch > unit) legal.push_back(batch / unit * unit);
  if ((batch / unit + 1) * unit <= static_cast<uint64_t>(std::numeric_limits<int32_t>::max()))
    legal.push_back((batch / unit + 1) * unit);
  const std::string product = terms.size() == 1 ? terms[0] : absl::StrCat(absl::StrJoin(terms, " x "), " = ", unit);
  Add("train.global_batch_size",
      absl::StrCat("train.global_batch_size = ", batch, " is not a multiple of ", product, "; use ",
                   legal.empty() ? "smaller sizes" : absl::StrJoin(legal, " or ")),
      std::move(related));
}

}  // namespace tacc
