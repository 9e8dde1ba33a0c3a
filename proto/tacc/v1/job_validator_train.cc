// Checks of what a job says of its training.
#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/tacc/v1/job_validator.h"
#include "proto/tacc/v1/job_words.h"

namespace tacc {

void JobValidator::CheckData(const v1::JobSpec& spec) {
  if (!spec.has_data()) return;
  const v1::DataSpec& data = spec.data();
  if (!data.has_client()) {
    if (!data.has_path()) {
      Add("data.path",
          "data.path is missing; give a folder that `python -m tacc data prepare` writes (or data.client: {})",
          {"data.client"});
    }
    return;
  }
  if (data.has_path() || data.has_eval_path()) {
    const std::string field = data.has_path() ? "data.path" : "data.eval_path";
    Add(field,
        absl::StrCat(field, " and data.client are both given; a client sends all batches, those to evaluate on ",
                     "too: keep one"),
        {"data.client"});
  }
  if (spec.model().has_path() && !data.has_seq_len())
    Add("data.seq_len", "data.seq_len is missing; with data.client no folder tells the length of a sample");
  CheckBuckets(spec);
  if (spec.train().has_num_train_epochs()) {
    Add("train.num_train_epochs", "train.num_train_epochs needs data.path; with data.client give train.max_steps",
        {"data.client"});
  }
}

void JobValidator::CheckBuckets(const v1::JobSpec& spec) {
  const auto& buckets = spec.data().client().buckets();
  if (buckets.empty()) return;
  const std::string name = "data.client.buckets";
  if (!spec.data().has_seq_len()) {
    Add("data.seq_len", absl::StrCat("data.seq_len is missing; with ", name, " give the longest length of a sample"),
        {name});
    return;
  }
  for (int i = 0; i < buckets.size(); ++i) {
    const std::string entry = absl::StrCat(name, "[", i, "]");
    if (i > 0 && buckets[i] <= buckets[i - 1]) {
      Add(entry, absl::StrCat(entry, " = ", buckets[i], " comes after ", buckets[i - 1],
                              "; give the lengths in ascending order, each once"));
    } else if (buckets[i] > spec.data().seq_len()) {
      Add(entry,
          absl::StrCat(entry, " = ", buckets[i], " is more than data.seq_len = ", spec.data().seq_len(),
                       ", which is the longest; raise that or leave the length out"),
          {"data.seq_len"});
    }
    // Each worker of a ring has two blocks of the sequence.
    const int64_t sharers = ContextSize(spec.dist());
    const bool has_ring = sharers > std::max(1, spec.dist().sp().size());
    const int64_t unit = has_ring ? 2 * sharers : sharers;
    if (buckets[i] % unit == 0) continue;
    Add(entry,
        absl::StrCat(entry, " = ", buckets[i], " is no multiple of ", unit, ", ",
                     has_ring ? "2 x dist.cp.size" : "dist.sp.size", "; use ", (buckets[i] / unit + 1) * unit),
        {"dist.cp.size", "dist.sp.size"});
  }
}

void JobValidator::CheckTrain(const v1::JobSpec& spec) {
  const v1::TrainSpec& train = spec.train();
  if (train.has_max_steps() && train.has_num_train_epochs()) {
    Add("train.num_train_epochs", "train.max_steps and train.num_train_epochs are both given; keep one",
        {"train.max_steps"});
  } else if (spec.has_train() && !train.has_max_steps() && !train.has_num_train_epochs()) {
    Add("train.max_steps", "train.max_steps is missing; give it, or train.num_train_epochs",
        {"train.num_train_epochs"});
  }
  if (train.has_max_steps() && train.max_steps() >= 1 && train.warmup_steps() > train.max_steps()) {
    Add("train.warmup_steps",
        absl::StrCat("train.warmup_steps = ", train.warmup_steps(),
                     " is more than train.max_steps = ", train.max_steps()),
        {"train.max_steps"});
  }
  CheckOptimizer(train);
  CheckSchedule(train);
  if (train.has_eval_steps() && spec.has_data() && !spec.data().has_eval_path()) {
    Add("train.eval_steps", "train.eval_steps needs data.eval_path; give the folder of the held-out data",
        {"data.eval_path"});
  }
  if (spec.eval().has_max_batches() && spec.has_data() && !spec.data().has_eval_path()) {
    Add("eval.max_batches", "eval.max_batches needs data.eval_path; give the folder of the held-out data",
        {"data.eval_path"});
  }
}

void JobValidator::CheckOptimizer(const v1::TrainSpec& train) {
  // What the job trains with: its own optimizer and those of groups.
  std::set<int> used = {train.optim()};
  for (const auto& [pattern, group] : train.param_groups()) {
    if (group.has_optim()) used.insert(group.optim());
    if (!group.has_optim() && !group.has_learning_rate() && !group.has_weight_decay()) {
      const std::string name = absl::StrCat("train.param_groups[\"", pattern, "\"]");
      Add(name, absl::StrCat(name, " says nothing; give learning_rate, weight_decay or optim, or leave it out"));
    }
  }
  const auto wants = [&](bool is_set, const char* field, std::set<int> of, const char* names) {
    const bool any = std::any_of(of.begin(), of.end(), [&](int optim) { return used.count(optim) > 0; });
    if (is_set && !any)
      Add(field, absl::StrCat(field, " is of train.optim: ", names, "; set that, or leave it out"), {"train.optim"});
  };
  const std::set<int> with_momentum = {v1::OPTIM_SGD, v1::OPTIM_MUON};
  wants(train.has_momentum(), "train.momentum", with_momentum, "sgd or muon");
  wants(train.has_nesterov(), "train.nesterov", with_momentum, "sgd or muon");
  wants(train.has_dampening(), "train.dampening", {v1::OPTIM_SGD}, "sgd");
  wants(train.has_ns_steps(), "train.ns_steps", {v1::OPTIM_MUON}, "muon");
  wants(train.has_adjust_lr_fn(), "train.adjust_lr_fn", {v1::OPTIM_MUON}, "muon");
  if (used.count(v1::OPTIM_SGD) == 0) return;
  if (train.nesterov() && (train.momentum() == 0 || train.dampening() != 0)) {
    Add("train.nesterov", "train.nesterov with sgd needs train.momentum above 0 and no train.dampening",
        {"train.momentum", "train.dampening"});
  } else if (train.dampening() != 0 && train.momentum() == 0) {
    Add("train.dampening", "train.dampening needs train.momentum above 0", {"train.momentum"});
  }
}

void JobValidator::CheckSchedule(const v1::TrainSpec& train) {
  const v1::LrSchedulerKwargs& kwargs = train.lr_scheduler_kwargs();
  const bool has_table = train.lr_factors_size() > 0 || train.has_lr_factors_path();
  const char* const table = train.lr_factors_size() > 0 ? "train.lr_factors" : "train.lr_factors_path";
  if (train.lr_factors_size() > 0 && train.has_lr_factors_path())
    Add("train.lr_factors", "train.lr_factors and train.lr_factors_path are both given; keep one",
        {"train.lr_factors_path"});
  if (has_table) {
    for (const auto& [is_set, field] : {std::pair(train.has_lr_scheduler_type(), "train.lr_scheduler_type"),
                                        {train.has_warmup_steps() && train.warmup_steps() > 0, "train.warmup_steps"},
                                        {train.has_min_lr_ratio() && train.min_lr_ratio() > 0, "train.min_lr_ratio"}}) {
      if (is_set) Add(table, absl::StrCat(table, " and ", field, " are both given; keep one"), {field});
    }
  }
  const auto wants = [&](bool is_set, const char* field, std::set<int> of, const char* names) {
    if (!is_set || (of.count(train.lr_scheduler_type()) > 0 && !has_table)) return;
    const std::string name = absl::StrCat("train.lr_scheduler_kwargs.", field);
    Add(name, absl::StrCat(name, " is of train.lr_scheduler_type: ", names, "; set that, or leave it out"),
        {"train.lr_scheduler_type"});
  };
  wants(kwargs.has_num_cycles(), "num_cycles",
        {v1::LR_SCHEDULER_TYPE_COSINE, v1::LR_SCHEDULER_TYPE_COSINE_WITH_RESTARTS,
         v1::LR_SCHEDULER_TYPE_WARMUP_STABLE_DECAY},
        "cosine, cosine_with_restarts or warmup_stable_decay");
  wants(kwargs.has_power(), "power", {v1::LR_SCHEDULER_TYPE_POLYNOMIAL}, "polynomial");
  wants(kwargs.has_timescale(), "timescale", {v1::LR_SCHEDULER_TYPE_INVERSE_SQRT}, "inverse_sqrt");
  wants(kwargs.has_num_decay_steps(), "num_decay_steps", {v1::LR_SCHEDULER_TYPE_WARMUP_STABLE_DECAY},
        "warmup_stable_decay");
  wants(kwargs.has_decay_type(), "decay_type", {v1::LR_SCHEDULER_TYPE_WARMUP_STABLE_DECAY}, "warmup_stable_decay");
  if (train.lr_scheduler_type() == v1::LR_SCHEDULER_TYPE_WARMUP_STABLE_DECAY && !kwargs.has_num_decay_steps()) {
    Add("train.lr_scheduler_type",
        "train.lr_scheduler_type: warmup_stable_decay needs train.lr_scheduler_kwargs.num_decay_steps",
        {"train.lr_scheduler_kwargs.num_decay_steps"});
  }
  if (const int64_t steps = int64_t{train.warmup_steps()} + kwargs.num_decay_steps();
      kwargs.has_num_decay_steps() && train.has_max_steps() && steps > train.max_steps()) {
    Add("train.lr_scheduler_kwargs.num_decay_steps",
        absl::StrCat("train.warmup_steps + train.lr_scheduler_kwargs.num_decay_steps = ", steps,
                     " is more than train.max_steps = ", train.max_steps()),
        {"train.max_steps", "train.warmup_steps"});
  }
  const std::string& decay = kwargs.decay_type();
  if (decay != "cosine" && decay != "linear" && decay != "1-sqrt") {
    Add("train.lr_scheduler_kwargs.decay_type",
        absl::StrCat("train.lr_scheduler_kwargs.decay_type = ", QuotedText(decay),
                     " is not one of cosine, linear, 1-sqrt"));
  }
}

void JobValidator::CheckFinetuning(const v1::JobSpec& spec) {
  const v1::TrainSpec& train = spec.train();
  if (!train.has_lora()) return;
  if (spec.model().has_graph()) {
    Add("train.lora", "train.lora needs model.path: adapters belong to modules of a Hugging Face model",
        {"model.graph"});
  } else if (spec.model().weights() == v1::WEIGHTS_RANDOM) {
    Add("train.lora", "train.lora needs the model's own weights, but model.weights = random; leave that out",
        {"model.weights"});
  }
  if (train.freeze_size() > 0) {
    Add("train.freeze",
        "train.freeze and train.lora are both given; with adapters everything but train.lora.modules_to_save is "
        "frozen: "
        "keep one",
        {"train.lora"});
  }
  const auto& targets = train.lora().target_modules();
  if (targets.size() > 1 && std::find(targets.begin(), targets.end(), "all-linear") != targets.end()) {
    Add("train.lora.target_modules", "train.lora.target_modules names all-linear and others; all-linear has them all");
  }
}

}  // namespace tacc
