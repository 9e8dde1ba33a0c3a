#include "jobfile/foreign_names.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace tacc::jobfile {
namespace {

struct Group {
  const char* names;  // Separated by spaces.
  // "" stands for "give FIELD".
  const char* text;
  const char* field;
};

constexpr Group kGroups[] = {
    // The batch and the length of the training.
    {"gradient_accumulation_steps", "leave it out: it follows from train.global_batch_size", ""},
    {"batch_size train_batch_size total_batch_size", "", "train.global_batch_size"},
    {"micro_batch_size train_micro_batch_size_per_gpu per_gpu_train_batch_size", "",
     "train.per_device_train_batch_size"},
    {"per_device_eval_batch_size eval_batch_size", "leave it out: it is train.per_device_train_batch_size", ""},
    {"auto_find_batch_size", "leave it out: where train.per_device_train_batch_size is not given the planner does that",
     ""},
    {"num_epochs epochs", "", "train.num_train_epochs"},
    {"max_eval_samples eval_iters limit_val_batches", "", "eval.max_batches"},
    {"max_train_steps num_train_steps num_steps total_steps train_iters max_iters", "", "train.max_steps"},
    {"max_seq_length max_seq_len seq_length sequence_length block_size model_max_length max_length context_length", "",
     "data.seq_len"},
    // The optimizer.
    {"optim optimizer optim_args",
     "leave it out: the optimizer is AdamW (train.learning_rate, train.weight_decay, train.adam_beta1, "
     "train.adam_beta2, train.adam_epsilon)",
     ""},
    {"lr", "", "train.learning_rate"},
    {"lr_scheduler scheduler lr_decay_style", "", "train.lr_scheduler_type"},
    {"lr_scheduler_kwargs min_lr lr_min", "give train.min_lr_ratio: a fraction of train.learning_rate",
     "train.min_lr_ratio"},
    {"warmup_ratio", "give train.warmup_steps: that fraction of train.max_steps", "train.warmup_steps"},
    {"num_warmup_steps lr_warmup_steps warmup_iters", "", "train.warmup_steps"},
    {"betas", "give train.adam_beta1 and train.adam_beta2", ""},
    {"beta1", "", "train.adam_beta1"},
    {"beta2", "", "train.adam_beta2"},
    {"eps epsilon adam_eps", "", "train.adam_epsilon"},
    {"gradient_clipping gradient_clip_val clip_grad grad_clip max_norm", "", "train.max_grad_norm"},
    {"label_smoothing_factor neftune_noise_alpha", "leave it out: there is no such thing here", ""},
    // Precision and memory.
    {"dtype torch_dtype mixed_precision precision half_precision_backend",
     "give compute.bf16: true or compute.fp16: true, or leave it out: the fastest is taken", ""},
    {"bf16_full_eval fp16_full_eval", "leave it out: evaluation computes as training does", ""},
    {"gradient_checkpointing activation_checkpointing recompute_activations",
     "give memory.gc: true, or leave it out: the planner decides", "memory.gc"},
    {"gradient_checkpointing_kwargs", "leave it out", ""},
    {"attn_implementation use_flash_attention_2 use_flash_attn flash_attention torch_compile",
     "leave it out: the fastest kernels are taken", ""},
    {"use_cache", "leave it out: training has no such cache", ""},
    {"load_in_4bit load_in_8bit quantization_config quantization",
     "leave it out: training from quantized weights is not supported", ""},
    {"lora peft use_peft peft_config lora_r lora_rank lora_alpha lora_dropout lora_target_modules",
     "leave it out: adapters (LoRA) are not supported, all weights are trained", ""},
    // The layout.
    {"deepspeed zero_optimization fsdp_config fsdp_sharding_strategy",
     "give dist.fsdp.size and dist.fsdp.zero_stage, or leave it out: the planner decides", "dist.fsdp"},
    {"data_parallel_size dp_size", "", "dist.dp.size"},
    {"tensor_parallel_size tensor_model_parallel_size tp_size", "", "dist.tp.size"},
    {"pipeline_parallel_size pipeline_model_parallel_size pp_size", "", "dist.pp.size"},
    {"context_parallel_size cp_size", "", "dist.cp.size"},
    {"expert_parallel_size expert_model_parallel_size ep_size", "", "dist.ep.size"},
    {"sequence_parallel_size ulysses_size", "give dist.sp.size (Ulysses)", "dist.sp.size"},
    {"num_processes nproc_per_node world_size num_gpus gpus n_gpu nnodes num_nodes",
     "give resources.workers: all of them, one a GPU", "resources.workers"},
    {"local_rank ddp_backend ddp_find_unused_parameters ddp_bucket_cap_mb ddp_timeout",
     "leave it out: nothing needs it", ""},
    // What is written, and what it goes on from.
    {"output_dir save_dir checkpoint_dir", "", "checkpoint.dir"},
    {"overwrite_output_dir", "give checkpoint.resume_from_checkpoint: never", "checkpoint.resume_from_checkpoint"},
    {"resume", "", "checkpoint.resume_from_checkpoint"},
    {"save_strategy save_interval save_every checkpoint_interval checkpointing_steps", "", "checkpoint.save_steps"},
    {"save_only_model save_safetensors load_best_model_at_end metric_for_best_model greater_is_better",
     "leave it out: checkpoints hold all of the state, and the last one is exported as safetensors", ""},
    {"push_to_hub hub_model_id hub_token hub_strategy",
     "leave it out: the exported model is a folder in checkpoint.dir, to upload as you like", ""},
    {"evaluation_strategy eval_strategy do_eval eval_interval eval_every",
     "give data.eval_path, and train.eval_steps for how often", "train.eval_steps"},
    {"do_train", "leave it out", ""},
    {"report_to logging_steps logging_dir logging_strategy logging_first_step log_interval use_wandb wandb_project",
     "leave it out: every step is logged, see docs/metrics.md for where", ""},
    {"run_name job_name experiment_name", "give name", "name"},
    // The model and the data.
    {"model_name_or_path pretrained_model_name_or_path model_name model_path", "give model.path, a folder",
     "model.path"},
    {"tokenizer tokenizer_name tokenizer_name_or_path",
     "leave it out: it is given to `python -m tacc data prepare`, which writes data.path", ""},
    {"dataset dataset_name dataset_path data_path train_file train_data",
     "give data.path, a folder that `python -m tacc data prepare` wrote", "data.path"},
    {"validation_file eval_file eval_data eval_dataset",
     "give data.eval_path, a folder that `python -m tacc data prepare --eval-fraction` wrote", "data.eval_path"},
    {"dataloader_num_workers dataloader_pin_memory dataloader_drop_last num_workers group_by_length "
     "remove_unused_columns",
     "leave it out: data is prepared beforehand, and read ahead", ""},
    {"data_seed", "", "train.seed"},
    // TorchAcc's.
    {"backend", "leave it out: the whole graph is always compiled", ""},
    {"acc_scaled_dot_attn acc_llama disable_kernel_patches", "leave it out: attention and norms are always fused", ""},
    {"dataloader", "leave it out: data is prepared beforehand, in samples of data.seq_len", ""},
    {"buckets num_buckets pad_value_dict", "leave it out: samples are packed to data.seq_len, without padding",
     "data.seq_len"},
    {"input_names broadcast_loss", "leave it out: stages are cut from the whole graph, and all ranks know the loss",
     ""},
    {"flatten_parameters sync_module_states use_spmd shard_output_callable",
     "leave it out: shards lie one behind the other, and every rank reads its own part of the weights", ""},
};

}  // namespace

const std::vector<ForeignName>& ForeignNames() {
  static const std::vector<ForeignName> kNames = [] {
    std::vector<ForeignName> names;
    for (const Group& group : kGroups) {
      const std::string text = *group.text != 0 ? group.text : absl::StrCat("give ", group.field);
      for (absl::string_view name : absl::StrSplit(group.names, ' '))
        names.push_back({std::string(name), text, group.field});
    }
    return names;
  }();
  return kNames;
}

const ForeignName* FindForeignName(const std::string& name) {
  for (const ForeignName& foreign : ForeignNames()) {
    if (foreign.name == name) return &foreign;
  }
  return nullptr;
}

std::string ForeignValue(const std::string& field, const std::string& value) {
  static const std::map<std::pair<std::string, std::string>, std::string> kValues = {
      {{"train.lr_scheduler_type", "constant_with_warmup"}, "write constant, and give train.warmup_steps"},
      {{"train.lr_scheduler_type", "cosine_with_min_lr"}, "write cosine, and give train.min_lr_ratio"},
      {{"train.lr_scheduler_type", "cosine_with_restarts"}, "write cosine: there are no restarts"},
      {{"train.lr_scheduler_type", "linear_with_warmup"}, "write linear, and give train.warmup_steps"},
      {{"train.lr_scheduler_type", "polynomial"}, "write linear, or cosine"},
      {{"train.lr_scheduler_type", "inverse_sqrt"}, "write cosine, or linear"},
      {{"train.lr_scheduler_type", "warmup_stable_decay"}, "write cosine, or linear"},
      {{"train.lr_scheduler_type", "reduce_lr_on_plateau"}, "write cosine, or linear"},
      {{"compute.reduce_dtype", "bf16"}, "write bfloat16"},
      {{"compute.reduce_dtype", "fp32"}, "write float32"},
      {{"compute.residual_dtype", "bf16"}, "write bfloat16"},
      {{"compute.residual_dtype", "fp32"}, "write float32"},
      {{"dist.pp.schedule", "gpipe"}, "write 1f1b, which needs less memory"},
      {{"dist.pp.schedule", "zb"}, "write zero_bubble"},
  };
  const auto found = kValues.find({field, value});
  return found == kValues.end() ? "" : found->second;
}

}  // namespace tacc::jobfile
