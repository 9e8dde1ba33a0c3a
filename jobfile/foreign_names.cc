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
    {"optimizer", "", "train.optim"},
    {"optim_args", "give fields: train.momentum, train.nesterov, train.adam_beta1 and others", ""},
    {"optim_target_modules", "give train.param_groups: parameters with an optimizer of their own",
     "train.param_groups"},
    {"lr", "", "train.learning_rate"},
    {"lr_scheduler scheduler lr_decay_style", "", "train.lr_scheduler_type"},
    {"min_lr lr_min min_lr_rate lr_end", "give train.min_lr_ratio: a fraction of train.learning_rate",
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
    // What is trained.
    {"peft use_peft peft_config use_lora adapter", "give train.lora", "train.lora"},
    {"lora_r lora_rank", "", "train.lora.r"},
    {"lora_target_modules lora_target", "", "train.lora.target_modules"},
    {"lora_target_linear", "give train.lora.target_modules: all-linear", "train.lora.target_modules"},
    {"exclude_modules layers_to_transform layers_pattern",
     "give train.lora.target_modules: the names, whole or their ends, of all that get adapters",
     "train.lora.target_modules"},
    {"lora_modules_to_save", "", "train.lora.modules_to_save"},
    {"peft_use_rslora", "", "train.lora.use_rslora"},
    {"adapter_name_or_path lora_model_dir", "", "train.lora.init_from"},
    {"use_dora peft_use_dora qlora", "leave it out: adapters are those of LoRA, beside weights that are not quantized",
     ""},
    {"task_type peft_type inference_mode", "leave it out", ""},
    {"bias lora_bias", "leave it out: biases are not trained with adapters", ""},
    {"init_lora_weights", "leave it out: new adapters change nothing at first", ""},
    {"rank_pattern alpha_pattern", "leave it out: all adapters have train.lora.r and train.lora.lora_alpha", ""},
    {"target_parameters trainable_token_indices", "leave it out: experts and embeddings take no adapters", ""},
    {"unfrozen_parameters", "give train.freeze: patterns of the names of the others", "train.freeze"},
    {"freeze_layers frozen_layers frozen_parameters", "give train.freeze: patterns of parameters' names",
     "train.freeze"},
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
    {"report_to use_wandb wandb_project mlflow",
     "leave it out: checkpoint.dir has TensorBoard's files; MLflow and wandb are told by job.report of the Python "
     "package",
     ""},
    {"logging_steps logging_dir logging_strategy logging_first_step log_interval",
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
    // Of TrainingArguments, what has no field of its own here.
    {"average_tokens_across_devices", "leave it out: a loss is always the mean over all tokens of the global batch",
     ""},
    {"torch_compile_backend torch_compile_mode use_liger_kernel liger_kernel_config sdp_attention xformers_attention "
     "flex_attention flash_attn compile",
     "leave it out: the fastest kernels are taken", ""},
    {"activation_checkpointing_kwargs recompute_method selective_ac_option",
     "leave it out, or give memory.gc_cnt: how many layers compute their activations again", "memory.gc_cnt"},
    {"recompute_num_layers", "", "memory.gc_cnt"},
    {"recompute_granularity activation_checkpoint", "give memory.gc: true, or leave it out: the planner decides",
     "memory.gc"},
    {"torch_empty_cache_steps gc_freq gc_steps empty_unused_memory_level",
     "leave it out: memory is planned before the job starts", ""},
    {"log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen log_level log_level_replica disable_tqdm "
     "steps_per_print log_freq wall_clock_breakdown",
     "leave it out: every step is logged, see docs/metrics.md for where", ""},
    {"eval_delay eval_on_start evals_per_epoch", "give data.eval_path, and train.eval_steps for how often",
     "train.eval_steps"},
    {"prediction_loss_only eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics "
     "batch_eval_metrics do_predict label_names",
     "leave it out: an evaluation gives the mean loss of the held-out tokens", ""},
    {"early_stopping_patience", "leave it out: the job trains to train.max_steps; cancel it where you like", ""},
    {"save_on_each_node enable_jit_checkpoint enable_checkpoint async_mode async_save",
     "leave it out: checkpoints are always written, once for all ranks, while the training goes on", ""},
    {"hub_private_repo hub_always_push hub_revision",
     "leave it out: the exported model is a folder in checkpoint.dir, to upload as you like", ""},
    {"ignore_data_skip restore_callback_states_from_checkpoint",
     "leave it out: a job that resumes goes on with the sample behind the last", ""},
    {"full_determinism", "", "train.deterministic"},
    {"use_cpu no_cuda device", "leave it out: the workers' devices are what a job runs on", ""},
    {"accelerator_config parallelism_config parallelism",
     "give the sizes under dist, or leave it out: the planner decides", ""},
    {"dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order "
     "train_sampling_strategy length_column_name streaming data_cache_path",
     "leave it out: data is prepared beforehand, and read ahead", ""},
    {"ddp_broadcast_buffers ddp_static_graph reduce_bucket_size allgather_bucket_size allgather_partitions "
     "contiguous_gradients overlap_comm overlap_grad_reduce overlap_param_gather tp_comm_overlap "
     "enable_async_tensor_parallel disable_loss_parallel",
     "leave it out: what is sent when follows from the layout", ""},
    {"debug skip_memory_metrics", "leave it out; train.trace_step writes a trace of a step", "train.trace_step"},
    // Of torchtitan.
    {"training", "give train", ""},
    {"local_batch_size pipeline_parallel_microbatch_size", "", "train.per_device_train_batch_size"},
    {"steps lr_decay_iters", "", "train.max_steps"},
    {"decay_ratio", "give train.lr_scheduler_type: linear, cosine or constant", "train.lr_scheduler_type"},
    {"data_parallel_replicate_degree dp_replicate_size", "", "dist.dp.size"},
    {"data_parallel_shard_degree dp_shard_size", "", "dist.fsdp.size"},
    {"fsdp_reshard_after_forward", "", "dist.fsdp.reshard_after_forward"},
    {"tensor_parallel_degree", "", "dist.tp.size"},
    {"pipeline_parallel_degree", "", "dist.pp.size"},
    {"pipeline_parallel_split_points", "", "dist.pp.split_points"},
    {"pipeline_parallel_schedule", "", "dist.pp.schedule"},
    {"context_parallel_degree sequence_parallel_degree", "give dist.cp.size (a ring), dist.sp.size (Ulysses) or both",
     "dist.cp.size"},
    {"expert_parallel_degree", "", "dist.ep.size"},
    {"context_parallel_rotate_method ring_attn_func heads_k_stride",
     "leave it out: keys and values go round a ring (dist.cp.size), or heads are exchanged (dist.sp.size)", ""},
    {"mixed_precision_param bfloat16", "give compute.bf16: true, or leave it out: the fastest is taken",
     "compute.bf16"},
    {"mixed_precision_reduce communication_data_type", "", "compute.reduce_dtype"},
    {"interval saves_per_epoch", "", "checkpoint.save_steps"},
    {"keep_latest_k", "", "checkpoint.save_total_limit"},
    {"dump_folder folder", "", "checkpoint.dir"},
    {"initial_load_path auto_resume_from_checkpoints load",
     "give checkpoint.resume_from_checkpoint, or model.path for weights alone", "checkpoint.resume_from_checkpoint"},
    {"enable_cpu_offload offload_optimizer offload_param cpu_offload activation_offloading",
     "leave it out: nothing is kept outside of the device; give memory.gc, dist.fsdp.size or more workers", ""},
    {"float8 fp8 mx", "leave it out: computation in fp8 is not supported", ""},
    {"profiling profiler_steps", "give train.trace_step: the step of which a trace is written", "train.trace_step"},
    {"validation", "give data.eval_path, and train.eval_steps for how often", "train.eval_steps"},
    {"flavor base_model", "give model.path, a folder", "model.path"},
    // Of axolotl.
    {"sequence_len", "", "data.seq_len"},
    {"sample_packing eval_sample_packing pad_to_sequence_len packing",
     "leave it out: samples are packed to data.seq_len, without padding", "data.seq_len"},
    {"datasets pretraining_dataset dataset_prepared_path",
     "give data.path, a folder that `python -m tacc data prepare` wrote", "data.path"},
    {"test_datasets val_set_size",
     "give data.eval_path, a folder that `python -m tacc data prepare --eval-fraction` wrote", "data.eval_path"},
    {"chat_template train_on_inputs", "leave it out: `python -m tacc data prepare --chat` says what is learned", ""},
    {"special_tokens tokenizer_path hf_assets_path tokenizer_type tokenizer_model tokenizer_config vocab_file "
     "merge_file",
     "leave it out: the tokenizer is given to `python -m tacc data prepare`, which writes data.path", ""},
    {"cosine_min_lr_ratio min_lr_factor", "", "train.min_lr_ratio"},
    {"trust_remote_code model_type trainer_cls", "leave it out: model.path's config.json says what the model is", ""},
    {"project trackio_space_id trackio_bucket_id trackio_static_space_id wandb_entity wandb_name wandb_run_id "
     "wandb_watch wandb_log_model mlflow_experiment_name use_tensorboard",
     "leave it out: every step is logged, see docs/metrics.md for where", ""},
    // Of Megatron-LM.
    {"num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups max_position_embeddings "
     "normalization position_embedding_type rotary_base num_experts moe_router_topk vocab_size",
     "leave it out: it is in config.json of model.path", ""},
    {"lr_warmup_fraction", "give train.warmup_steps: that fraction of train.max_steps", "train.warmup_steps"},
    {"lr_warmup_iters", "", "train.warmup_steps"},
    {"sequence_parallel", "leave it out: with dist.tp.size norms and residuals are split over the sequence", ""},
    {"num_layers_per_virtual_pipeline_stage virtual_pipeline_model_parallel_size",
     "give dist.pp.schedule: interleaved, and dist.pp.num_chunks", "dist.pp.num_chunks"},
    {"use_distributed_optimizer", "give dist.fsdp.size, and dist.fsdp.zero_stage: 1", "dist.fsdp.zero_stage"},
    {"moe_expert_capacity_factor", "", "dist.ep.buffer_factor"},
    {"exit_duration_in_mins", "give train.max_seconds: 60 times that", "train.max_seconds"},
    {"rampup_batch_size", "leave it out: train.global_batch_size stays the same", ""},
    {"train_samples", "give train.max_steps: the samples over train.global_batch_size", "train.max_steps"},
    // Of DeepSpeed.
    {"stage", "", "dist.fsdp.zero_stage"},
    {"autotuning", "leave it out: the planner does that", ""},
    {"loss_scale initial_loss_scale", "", "compute.grad_scaler.init_scale"},
    {"initial_scale_power", "give compute.grad_scaler.init_scale: two to that power", "compute.grad_scaler.init_scale"},
    {"loss_scale_window", "", "compute.grad_scaler.growth_interval"},
    // TorchAcc's.
    {"backend", "leave it out: the whole graph is always compiled", ""},
    {"acc_scaled_dot_attn acc_llama disable_kernel_patches", "leave it out: attention and norms are always fused", ""},
    {"dataloader", "leave it out: data is prepared beforehand, in samples of data.seq_len", ""},
    {"num_buckets pad_value_dict", "leave it out: samples are packed to data.seq_len, without padding", "data.seq_len"},
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
      {{"train.lr_scheduler_type", "linear_with_warmup"}, "write linear, and give train.warmup_steps"},
      {{"train.lr_scheduler_type", "reduce_lr_on_plateau"}, "write cosine, or linear"},
      {{"train.lr_scheduler_type", "wsd"}, "write warmup_stable_decay"},
      {{"train.optim", "adamw_8bit"}, "write adamw: states are float32"},
      {{"train.optim", "adamw_bnb_8bit"}, "write adamw: states are float32"},
      {{"train.optim", "lion_8bit"}, "write lion: states are float32"},
      {{"train.optim", "paged_adamw_32bit"}, "write adamw: states lie in the device's memory"},
      {{"train.optim", "rmsprop"}, "write adamw"},
      {{"train.optim", "adagrad"}, "write adafactor, or adamw"},
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
