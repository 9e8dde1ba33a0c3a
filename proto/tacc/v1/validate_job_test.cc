#include "proto/tacc/v1/validate_job.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace tacc {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr char kMinimal[] =
    "name: 'tiny' model { path: '/m' weights: WEIGHTS_RANDOM } data { path: '/d' } train { max_steps: 10 } checkpoint "
    "{ dir: '/c' } ";

v1::JobSpec Job(const std::string& more) {
  v1::JobSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(kMinimal + more, &spec));
  return spec;
}

std::vector<std::string> Messages(const v1::JobSpec& spec) {
  std::vector<std::string> messages;
  for (const JobDiagnostic& diagnostic : ValidateJobSpec(spec)) messages.push_back(diagnostic.message);
  return messages;
}

std::vector<std::string> Messages(const std::string& more) {
  v1::JobSpec spec = Job("");
  v1::JobSpec extra;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(more, &extra));
  spec.MergeFrom(extra);
  return Messages(spec);
}

TEST(ValidateJobTest, AcceptsTheSmallestJob) { EXPECT_THAT(Messages(""), IsEmpty()); }

TEST(ValidateJobTest, NamesEachMissingField) {
  EXPECT_THAT(Messages(v1::JobSpec()),
              ElementsAre("name is missing", "model is missing; give model.path or model.graph",
                          "data is missing; give data.path or data.client",
                          "train is missing; give train.max_steps or train.num_train_epochs",
                          "checkpoint.dir is missing; give the folder of the checkpoints"));
}

TEST(ValidateJobTest, TheDataIsAFolderOrAClients) {
  v1::JobSpec spec = Job("");
  spec.mutable_data()->clear_path();
  EXPECT_THAT(Messages(spec), ElementsAre("data.path is missing; give a folder that `python -m tacc data prepare` "
                                          "writes (or data.client: {})"));
  spec.mutable_data()->mutable_client();
  EXPECT_THAT(Messages(spec), ElementsAre("data.seq_len is missing; with data.client no folder tells the length of a "
                                          "sample"));
  spec.mutable_data()->set_seq_len(16);
  EXPECT_THAT(Messages(spec), IsEmpty());
  spec.mutable_data()->set_eval_path("/e");
  EXPECT_THAT(Messages(spec), ElementsAre("data.eval_path and data.client are both given; a client sends all batches, "
                                          "those to evaluate on too: keep one"));
  spec.mutable_data()->clear_eval_path();
  spec.mutable_train()->clear_max_steps();
  spec.mutable_train()->set_num_train_epochs(1);
  EXPECT_THAT(Messages(spec), ElementsAre("train.num_train_epochs needs data.path; with data.client give "
                                          "train.max_steps"));
}

TEST(ValidateJobTest, KeepsWeightsOnlyWhereTheyAreGathered) {
  EXPECT_THAT(Messages("dist { fsdp { reshard_after_forward: false } }"), IsEmpty());
  EXPECT_THAT(Messages("dist { fsdp { reshard_after_forward: true reshard_cnt: 2 } }"), IsEmpty());
  EXPECT_THAT(Messages("dist { pp { size: 2 } fsdp { reshard_after_forward: true } }"), IsEmpty());
  EXPECT_THAT(Messages("dist { fsdp { reshard_cnt: 2 } }"),
              ElementsAre("dist.fsdp.reshard_cnt needs dist.fsdp.reshard_after_forward: true"));
  EXPECT_THAT(Messages("dist { fsdp { reshard_after_forward: false reshard_cnt: 2 } }"),
              ElementsAre("dist.fsdp.reshard_cnt needs dist.fsdp.reshard_after_forward: true"));
  EXPECT_THAT(Messages("dist { fsdp { reshard_after_forward: true zero_stage: 2 } }"),
              ElementsAre("dist.fsdp.reshard_after_forward: true needs dist.fsdp.zero_stage: 3; with 2 no weights are "
                          "gathered"));
  EXPECT_THAT(Messages("dist { fsdp { reduce_each_micro_batch: false } }"), IsEmpty());
  EXPECT_THAT(Messages("dist { fsdp { reduce_each_micro_batch: false zero_stage: 2 } }"),
              ElementsAre("dist.fsdp.reduce_each_micro_batch: false needs dist.fsdp.zero_stage: 3; with 1 gradients "
                          "are reduced once, with 2 those of each micro-batch"));
  EXPECT_THAT(Messages("dist { pp { size: 2 } fsdp { reshard_after_forward: false } }"),
              ElementsAre("dist.fsdp.reshard_after_forward: false does not go with dist.pp.size = 2: weights would be "
                          "kept for each micro-batch under way; leave it out, or use dist.fsdp.zero_stage: 2, which "
                          "gathers no weights"));
}

TEST(ValidateJobTest, ProductsAreComputedInOneType) {
  EXPECT_THAT(Messages("compute { fp16: true bf16: false grad_scaler { init_scale: 1024 growth_interval: 100 } }"),
              IsEmpty());
  EXPECT_THAT(Messages("compute { tf32: true }"), IsEmpty());
  EXPECT_THAT(Messages("compute { bf16: true fp16: true }"),
              ElementsAre("compute.bf16 and compute.fp16 are both true; products are computed in one type: keep one"));
  EXPECT_THAT(Messages("compute { bf16: true tf32: true }"),
              ElementsAre("compute.bf16 and compute.tf32 are both true; products are computed in one type: keep one"));
  EXPECT_THAT(Messages("compute { fp16: true tf32: true }"),
              ElementsAre("compute.fp16 and compute.tf32 are both true; products are computed in one type: keep one"));
  EXPECT_THAT(Messages("compute { grad_scaler { init_scale: 1024 } }"),
              ElementsAre("compute.grad_scaler needs compute.fp16: true"));
  EXPECT_THAT(Messages("compute { bf16: true residual_dtype: RESIDUAL_DTYPE_BFLOAT16 }"), IsEmpty());
  EXPECT_THAT(Messages("compute { residual_dtype: RESIDUAL_DTYPE_FLOAT32 }"), IsEmpty());
  EXPECT_THAT(Messages("compute { residual_dtype: RESIDUAL_DTYPE_AUTO }"), IsEmpty());
  EXPECT_THAT(Messages("compute { bf16: true residual_dtype: RESIDUAL_DTYPE_AUTO }"), IsEmpty());
  for (const char* other : {"bf16: false", "fp16: true", "tf32: true"}) {
    EXPECT_THAT(Messages(absl::StrCat("compute { residual_dtype: RESIDUAL_DTYPE_AUTO ", other, " }")),
                ElementsAre("compute.residual_dtype: auto chooses bfloat16 only beside products in bfloat16, which the "
                            "job rules out: leave it out, or set compute.bf16: true"));
  }
  for (const char* other : {"", "bf16: false", "fp16: true"}) {
    EXPECT_THAT(Messages(absl::StrCat("compute { residual_dtype: RESIDUAL_DTYPE_BFLOAT16 ", other, " }")),
                ElementsAre("compute.residual_dtype: bfloat16 needs compute.bf16: true"));
  }
  EXPECT_THAT(Messages("compute { fp16: true grad_scaler { init_scale: 0.5 } }"),
              ElementsAre("compute.grad_scaler.init_scale = 0.5 is too small; the smallest is 1"));
}

TEST(ValidateJobTest, ChecksTheTopology) {
  EXPECT_THAT(Messages("dist { topology: 'dp' topology: 'pp' topology: 'fsdp' pp { size: 2 } }"), IsEmpty());
  EXPECT_THAT(Messages("dist { topology: 'pp' topology: 'sp' }"),
              ElementsAre("dist.topology: \"sp\" is no axis; there are pp, dp, fsdp, ep, cp, tp; sp lies inside cp"));
  EXPECT_THAT(Messages("dist { topology: 'pp' topology: 'dp' topology: 'pp' }"),
              ElementsAre("dist.topology names \"pp\" twice"));
  EXPECT_THAT(
      Messages("dist { topology: 'fsdp' topology: 'dp' tp { size: 2 } }"),
      ElementsAre("dist.topology leaves out tp, but dist.tp.size = 2; name it where it is to lie, between nodes "
                  "first: unless said otherwise the order is pp, dp, fsdp, ep, cp, tp"));
}

TEST(ValidateJobTest, ChecksPins) {
  const auto pin = [](const std::string& text) {
    return Messages("dist { pins { key: 'a.*.weight' value: '" + text + "' } }");
  };
  EXPECT_THAT(pin("[tp, -]"), IsEmpty());
  EXPECT_THAT(pin("[dp+fsdp,-,cp + tp]"), IsEmpty());
  EXPECT_THAT(pin("tp, -"),
              ElementsAre("dist.pins[\"a.*.weight\"] = \"tp, -\" is no sharding; give its dims in brackets, each - or "
                          "axes joined by +, as \"[tp, -]\" or \"[dp+fsdp, -, tp]\""));
  EXPECT_THAT(pin("[pp, -]"),
              ElementsAre("dist.pins[\"a.*.weight\"]: \"pp\" is no axis that splits tensors; there are dp, fsdp, ep, "
                          "cp, tp, and - for none"));
  EXPECT_THAT(pin("[tp, tp]"), ElementsAre("dist.pins[\"a.*.weight\"]: tp is given twice; it can split one dim"));
  EXPECT_THAT(pin(""), ElementsAre("dist.pins[\"a.*.weight\"] is empty"));
}

TEST(ValidateJobTest, ChecksTheOptimizer) {
  EXPECT_THAT(Messages("train { optim: OPTIM_SGD momentum: 0.9 nesterov: true }"), IsEmpty());
  EXPECT_THAT(Messages("train { optim: OPTIM_MUON momentum: 0.9 ns_steps: 3 }"), IsEmpty());
  EXPECT_THAT(Messages("train { param_groups { key: '*.q' value { optim: OPTIM_SGD } } momentum: 0.9 }"), IsEmpty());
  EXPECT_THAT(Messages("train { momentum: 0.9 }"),
              ElementsAre("train.momentum is of train.optim: sgd or muon; set that, or leave it out"));
  EXPECT_THAT(Messages("train { optim: OPTIM_SGD ns_steps: 3 }"),
              ElementsAre("train.ns_steps is of train.optim: muon; set that, or leave it out"));
  EXPECT_THAT(Messages("train { optim: OPTIM_SGD nesterov: true }"),
              ElementsAre("train.nesterov with sgd needs train.momentum above 0 and no train.dampening"));
  EXPECT_THAT(Messages("train { optim: OPTIM_SGD dampening: 0.5 }"),
              ElementsAre("train.dampening needs train.momentum above 0"));
  EXPECT_THAT(Messages("train { optim: OPTIM_SGD momentum: 1 }"),
              ElementsAre("train.momentum = 1 is too large; it must be less than 1"));
}

TEST(ValidateJobTest, ChecksGroupsOfParameters) {
  EXPECT_THAT(Messages("train { param_groups { key: '*.bias' value { weight_decay: 0 } } }"), IsEmpty());
  EXPECT_THAT(Messages("train { param_groups { key: '*.bias' value {} } }"),
              ElementsAre("train.param_groups[\"*.bias\"] says nothing; give learning_rate, weight_decay or optim, or "
                          "leave it out"));
  EXPECT_THAT(Messages("train { param_groups { key: '*.bias' value { learning_rate: 0 } } }"),
              ElementsAre("train.param_groups[\"*.bias\"].learning_rate = 0 is too small; it must be more than 0"));
}

TEST(ValidateJobTest, ChecksTheSchedule) {
  EXPECT_THAT(Messages("train { lr_factors: 1 lr_factors: 0.5 }"), IsEmpty());
  EXPECT_THAT(Messages("train { lr_scheduler_type: LR_SCHEDULER_TYPE_POLYNOMIAL lr_scheduler_kwargs { power: 2 } }"),
              IsEmpty());
  EXPECT_THAT(Messages("train { lr_factors: 1 lr_factors: -0.5 }"),
              ElementsAre("train.lr_factors[1] = -0.5 is too small; the smallest is 0"));
  EXPECT_THAT(Messages("train { lr_factors: 1 warmup_steps: 3 max_steps: 9 }"),
              ElementsAre("train.lr_factors and train.warmup_steps are both given; keep one"));
  EXPECT_THAT(Messages("train { lr_factors: 1 lr_factors_path: '/f' }"),
              ElementsAre("train.lr_factors and train.lr_factors_path are both given; keep one"));
  EXPECT_THAT(Messages("train { lr_scheduler_kwargs { power: 2 } }"),
              ElementsAre("train.lr_scheduler_kwargs.power is of train.lr_scheduler_type: polynomial; set that, or "
                          "leave it out"));
  EXPECT_THAT(Messages("train { lr_scheduler_type: LR_SCHEDULER_TYPE_WARMUP_STABLE_DECAY }"),
              ElementsAre("train.lr_scheduler_type: warmup_stable_decay needs "
                          "train.lr_scheduler_kwargs.num_decay_steps"));
  EXPECT_THAT(Messages("train { lr_scheduler_type: LR_SCHEDULER_TYPE_WARMUP_STABLE_DECAY lr_scheduler_kwargs { "
                       "num_decay_steps: 3 decay_type: 'sqrt' } }"),
              ElementsAre("train.lr_scheduler_kwargs.decay_type = \"sqrt\" is not one of cosine, linear, 1-sqrt"));
}

TEST(ValidateJobTest, ChecksBounds) {
  EXPECT_THAT(Messages("train { max_steps: 0 }"),
              ElementsAre("train.max_steps = 0 steps is too small; the smallest is 1"));
  EXPECT_THAT(Messages("train { learning_rate: 0 }"),
              ElementsAre("train.learning_rate = 0 is too small; it must be more than 0"));
  EXPECT_THAT(Messages("train { adam_beta2: 1 }"),
              ElementsAre("train.adam_beta2 = 1 is too large; it must be less than 1"));
  EXPECT_THAT(Messages("train { min_lr_ratio: 1.5 }"),
              ElementsAre("train.min_lr_ratio = 1.5 is too large; the largest is 1"));
  EXPECT_THAT(Messages("train { weight_decay: nan }"),
              ElementsAre("train.weight_decay is not a finite number; give a finite one"));
  EXPECT_THAT(Messages("dist { fsdp { zero_stage: 4 } }"),
              ElementsAre("dist.fsdp.zero_stage = 4 is too large; the largest is 3"));
  EXPECT_THAT(Messages("checkpoint { save_total_limit: 1 }"),
              ElementsAre("checkpoint.save_total_limit = 1 is too small; the smallest is 2"));
}

TEST(ValidateJobTest, ChecksText) {
  EXPECT_THAT(
      Messages("name: 'a b'"),
      ElementsAre(
          "name = \"a b\" is not a job name; use at most 63 letters, digits, '.', '_' and '-', beginning with a "
          "letter or digit"));
  EXPECT_THAT(Messages("data { path: 'd' }"),
              ElementsAre("data.path = \"d\" is a relative path; give an absolute one"));
  EXPECT_THAT(Messages(absl::StrCat("model { path: 'upload:", std::string(64, 'a'), "' }")), IsEmpty());
  EXPECT_THAT(
      Messages("model { path: 'upload:5f' }"),
      ElementsAre("model.path = \"upload:5f\" is no upload; give what tacc.Client.upload returned, upload: and 64 "
                  "hex digits"));
  EXPECT_THAT(Messages("data { path: '/d\\n' }"), ElementsAre("data.path = \"/d\\x0a\" has a control character"));
  EXPECT_THAT(Messages("checkpoint { resume_from_checkpoint: 'never' }"), IsEmpty());
  EXPECT_THAT(
      Messages("checkpoint { resume_from_checkpoint: 'sometimes' }"),
      ElementsAre("checkpoint.resume_from_checkpoint = \"sometimes\" is a relative path; give an absolute one"));
  EXPECT_THAT(Messages("dist { fsdp { wrap_layer_cls: 'A' wrap_layer_cls: 'A' } }"),
              ElementsAre("dist.fsdp.wrap_layer_cls names \"A\" twice"));
}

TEST(ValidateJobTest, ChecksMemory) {
  EXPECT_THAT(Messages("memory { gc: true gc_cls: 'A' gc_cnt: 3 }"), IsEmpty());
  EXPECT_THAT(Messages("memory { gc: true gc_cnt: 0 }"),
              ElementsAre("memory.gc_cnt = 0 layers is too small; the smallest is 1"));
  EXPECT_THAT(Messages("memory { gc_cls: 'A' gc_cnt: 3 }"),
              ElementsAre("memory.gc_cls needs memory.gc: true", "memory.gc_cnt needs memory.gc: true"));
}

TEST(ValidateJobTest, ChecksTheModel) {
  EXPECT_THAT(Messages("model { graph: '/g' }"), ElementsAre("model.path and model.graph are both given; keep one"));
  v1::JobSpec spec = Job("");
  spec.mutable_model()->clear_path();
  EXPECT_THAT(Messages(spec),
              ElementsAre("model.path is missing; give the folder of a Hugging Face model (or model.graph)"));
  spec.mutable_model()->set_graph("/g");
  EXPECT_THAT(Messages(spec), IsEmpty());
  spec.mutable_model()->set_weights(v1::WEIGHTS_PRETRAINED);
  EXPECT_THAT(Messages(spec), IsEmpty());
}

TEST(ValidateJobTest, ChecksTheLayout) {
  EXPECT_THAT(Messages("dist { dp { size: 2 } fsdp { size: 2 } } resources { workers: 4 }"), IsEmpty());
  EXPECT_THAT(Messages("dist { dp { size: 2 } fsdp { size: 2 } } resources { workers: 2 }"),
              ElementsAre("dist.dp.size 2 x dist.fsdp.size 2 = 4, but resources.workers = 2; set resources.workers to "
                          "4 or leave it out"));
  EXPECT_THAT(Messages("dist { cp { size: 4 } sp { size: 2 } } resources { workers: 8 }"), IsEmpty());
  EXPECT_THAT(Messages("dist { cp { size: 4 } sp { size: 3 } }"),
              ElementsAre("dist.sp.size = 3 does not divide dist.cp.size = 4; use 1, 2 or 4"));
  EXPECT_THAT(Messages("dist { sp { size: 4 } } resources { workers: 6 }"),
              ElementsAre("dist.sp.size = 4 does not divide resources.workers = 6; use 1, 2, 3 or 6"));
  EXPECT_THAT(
      Messages(
          "train { global_batch_size: 3 } dist { pp { size: 1 } cp { size: 2 } tp { size: 1 } } resources { workers: "
          "4 }"),
      ElementsAre("train.global_batch_size = 3 is not a multiple of resources.workers / dist.cp.size 2; use 2 or 4"));
  EXPECT_THAT(Messages("dist { fsdp { size: 4 } } resources { workers: 6 }"),
              ElementsAre("dist.fsdp.size = 4 does not divide resources.workers = 6; use 1, 2, 3 or 6"));
}

TEST(ValidateJobTest, ChecksTheBatch) {
  EXPECT_THAT(
      Messages(
          "train { global_batch_size: 16 per_device_train_batch_size: 4 } dist { dp { size: 2 } fsdp { size: 2 } }"),
      IsEmpty());
  EXPECT_THAT(Messages("train { global_batch_size: 10 per_device_train_batch_size: 4 } dist { fsdp { size: 2 } }"),
              ElementsAre("train.global_batch_size = 10 is not a multiple of train.per_device_train_batch_size 4 x "
                          "dist.fsdp.size 2 = 8; use 8 or 16"));
  EXPECT_THAT(
      Messages("train { global_batch_size: 3 } dist { pp { size: 1 } cp { size: 1 } tp { size: 1 } } resources { "
               "workers: 4 }"),
      ElementsAre("train.global_batch_size = 3 is not a multiple of resources.workers 4; use 4"));
  // The planner may find workers that share samples.
  EXPECT_THAT(Messages("train { global_batch_size: 3 } resources { workers: 4 }"), IsEmpty());
  EXPECT_THAT(Messages("train { global_batch_size: 1 per_device_train_batch_size: 2147483647 } dist { dp { size: 65536 "
                       "} fsdp { size: 65536 } }"),
              ElementsAre("train.global_batch_size = 1 is not a multiple of train.per_device_train_batch_size "
                          "2147483647 x dist.dp.size 65536 x "
                          "dist.fsdp.size 65536 = 9223372032559808512; use smaller sizes"));
  EXPECT_THAT(
      Messages("train { global_batch_size: 67108865 } data { seq_len: 2147483647 }"),
      UnorderedElementsAre(HasSubstr("train.global_batch_size = 67108865"), HasSubstr("data.seq_len = 2147483647")));
}

TEST(ValidateJobTest, ChecksTheSteps) {
  EXPECT_THAT(Messages("train { warmup_steps: 11 }"),
              ElementsAre("train.warmup_steps = 11 is more than train.max_steps = 10"));
  EXPECT_THAT(Messages("train { eval_steps: 5 }"),
              ElementsAre("train.eval_steps needs data.eval_path; give the folder of the held-out data"));
}

TEST(ValidateJobTest, DefaultsComeFromTheSchema) {
  const v1::JobSpec filled = WithDefaults(Job(""));
  EXPECT_TRUE(filled.train().has_learning_rate());
  EXPECT_EQ(filled.train().learning_rate(), 5e-5);
  EXPECT_EQ(filled.train().seed(), 42);
  EXPECT_TRUE(filled.has_max_restarts());
  EXPECT_EQ(filled.checkpoint().resume_from_checkpoint(), "auto");
  EXPECT_TRUE(filled.compute().has_reduce_dtype());
  // The planner's.
  EXPECT_FALSE(filled.train().has_global_batch_size());
  EXPECT_FALSE(filled.compute().has_bf16());
  EXPECT_FALSE(filled.dist().dp().has_size());
  EXPECT_FALSE(filled.dist().pp().has_schedule());
  EXPECT_FALSE(filled.memory().has_gc());
  EXPECT_EQ(WithDefaults(filled).SerializeAsString(), filled.SerializeAsString());
}

TEST(ValidateJobTest, WhereWeightsComeFromIsNoDefault) {
  v1::JobSpec spec;
  spec.mutable_model()->set_graph("/g");
  EXPECT_FALSE(WithDefaults(spec).model().has_weights());
}

TEST(ValidateJobTest, RequestedWorld) {
  EXPECT_EQ(RequestedWorld(Job("")), 0);
  EXPECT_EQ(RequestedWorld(Job("dist { fsdp { size: 4 } }")), 4);
  EXPECT_EQ(RequestedWorld(Job("dist { fsdp { size: 4 } cp { size: 6 } sp { size: 3 } tp { size: 2 } }")), 48);
  EXPECT_EQ(RequestedWorld(Job("dist { sp { size: 2 } }")), 2);
  EXPECT_EQ(RequestedWorld(Job("dist { dp { size: 3 } fsdp { size: 4 } }")), 12);
  EXPECT_EQ(RequestedWorld(Job("dist { fsdp { size: 2 } } resources { workers: 8 }")), 8);
}

TEST(ValidateJobTest, EnumValuesInTheJobFile) {
  EXPECT_EQ(EnumValueInJobFile(*v1::LrSchedulerType_descriptor()->FindValueByNumber(1)), "cosine");
  EXPECT_EQ(EnumValueInJobFile(*v1::ReduceDtype_descriptor()->FindValueByNumber(1)), "float32");
}

}  // namespace
}  // namespace tacc
