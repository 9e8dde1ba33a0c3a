// Checks of what a job says of its training.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/tacc/v1/job_validator.h"

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
    Add(field, absl::StrCat(field, " and data.client are both given; a client sends all batches, those to evaluate on ",
                            "too: keep one"),
        {"data.client"});
  }
  if (spec.model().has_path() && !data.has_seq_len())
    Add("data.seq_len", "data.seq_len is missing; with data.client no folder tells the length of a sample");
  if (spec.train().has_num_train_epochs()) {
    Add("train.num_train_epochs", "train.num_train_epochs needs data.path; with data.client give train.max_steps",
        {"data.client"});
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
  if (train.has_eval_steps() && spec.has_data() && !spec.data().has_eval_path()) {
    Add("train.eval_steps", "train.eval_steps needs data.eval_path; give the folder of the held-out data",
        {"data.eval_path"});
  }
  if (spec.eval().has_max_batches() && spec.has_data() && !spec.data().has_eval_path()) {
    Add("eval.max_batches", "eval.max_batches needs data.eval_path; give the folder of the held-out data",
        {"data.eval_path"});
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
