// The messages for bad files are goldens, in tests/bad_input/; here is what a good file means, and what cannot be
// written as a text.
#include "jobfile/job_file.h"

#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "jobfile/foreign_names.h"
#include "jobfile/job_paths.h"
#include "jobfile/yaml_tree.h"
#include "machine/tacc_python.h"

namespace tacc::jobfile {
namespace {

using testing::HasSubstr;

constexpr char kSixLines[] =
    "name: tiny\n"
    "model:\n"
    "  path: model\n"
    "data:\n"
    "  path: data\n"
    "train: {max_steps: 100}\n";

std::string Error(const std::string& text) {
  const auto spec = ParseJobFile(text, "job.yaml", "/home/ada");
  return spec.ok() ? "" : std::string(spec.status().message());
}

void ExpectJob(const std::string& text, const std::string& wanted_text) {
  const auto spec = ParseJobFile(text, "job.yaml", "/home/ada");
  ASSERT_TRUE(spec.ok()) << spec.status();
  v1::JobSpec wanted;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(wanted_text, &wanted));
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*spec, wanted)) << spec->DebugString();
}

TEST(JobFileTest, SixLinesAreAJob) {
  ExpectJob(kSixLines,
            "name: 'tiny' model { path: '/home/ada/model' } data { path: '/home/ada/data' } train { max_steps: 100 } "
            "checkpoint { dir: '/home/ada/runs/tiny' }");
}

TEST(JobFileTest, ReadsEveryKindOfField) {
  ExpectJob(
      "name: 'a-1'\n"
      "model: {graph: ../mlp.graph, weights: random}\n"
      "data: {path: /data/train/, eval_path: \"./held out\", seq_len: 512}\n"
      "train: {max_steps: 100, global_batch_size: 8, learning_rate: 3e-4, lr_scheduler_type: cosine, min_lr_ratio: .1, "
      "adam_epsilon: 1E-8}\n"
      "compute: {bf16: false, reduce_dtype: bfloat16}\n"
      "dist: {dp: {size: 2}, fsdp: {size: 2, wrap_layer_cls: [A, B]}, topology: [fsdp, dp], pins: {a.*.b: '[tp, -]'}}\n"
      "checkpoint: {dir: out, resume_from_checkpoint: never}\n"
      "resources: {workers: 4}\n"
      "max_restarts: 0\n",
      "name: 'a-1' model { graph: '/home/mlp.graph' weights: WEIGHTS_RANDOM } data { path: '/data/train' eval_path: "
      "'/home/ada/held out' seq_len: 512 } "
      "train { max_steps: 100 global_batch_size: 8 learning_rate: 3e-4 lr_scheduler_type: LR_SCHEDULER_TYPE_COSINE "
      "min_lr_ratio: 0.1 adam_epsilon: 1e-8 } "
      "compute { bf16: false reduce_dtype: REDUCE_DTYPE_BFLOAT16 } dist { dp { size: 2 } fsdp { size: 2 "
      "wrap_layer_cls: 'A' wrap_layer_cls: 'B' } topology: 'fsdp' topology: 'dp' pins { key: 'a.*.b' value: '[tp, -]' "
      "} "
      "} "
      "checkpoint { dir: '/home/ada/out' resume_from_checkpoint: 'never' } resources { workers: 4 } max_restarts: 0");
}

std::string SetError(const std::vector<std::string>& sets) {
  const auto spec = ParseJobFile(kSixLines, "job.yaml", "/home/ada", {sets});
  return spec.ok() ? "" : std::string(spec.status().message());
}

TEST(JobFileTest, SetsLieOverTheFile) {
  const auto spec =
      ParseJobFile(std::string(kSixLines) + "dist: {fsdp: {size: 2}, topology: [dp, fsdp]}\nmemory: {gc: true}\n",
                   "job.yaml", "/home/ada",
                   {{"train.max_steps=200", "train.max_steps=300", "data.eval_path=held-out",
                     "dist.topology=[fsdp, dp]", "memory=null", "dist.fsdp.size=null", "checkpoint.save_steps=7",
                     "dist.pins.model.layers.*.mlp=[tp, -]", "compute={bf16: false}", "max_restarts=null"}});
  ASSERT_FALSE(spec.ok());  // a list is no text, in a file as here
  EXPECT_THAT(spec.status().message(), HasSubstr("--set dist.pins.model.layers.*.mlp=[tp, -]: dist.pins"));
  const auto good =
      ParseJobFile(std::string(kSixLines) + "dist: {fsdp: {size: 2}, topology: [dp, fsdp]}\nmemory: {gc: true}\n",
                   "job.yaml", "/home/ada",
                   {{"train.max_steps=200", "train.max_steps=300", "data.eval_path=held-out",
                     "dist.topology=[fsdp, dp]", "memory=null", "dist.fsdp.size=null", "checkpoint.save_steps=7",
                     "dist.pins.model.layers.*.mlp='[tp, -]'", "compute={bf16: false}", "max_restarts=null"}});
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(good->train().max_steps(), 300);
  // A shell completes paths in its own folder.
  EXPECT_EQ(good->data().eval_path(), (std::filesystem::current_path() / "held-out").string());
  EXPECT_THAT(good->dist().topology(), testing::ElementsAre("fsdp", "dp"));
  EXPECT_FALSE(good->has_memory() || good->dist().fsdp().has_size() || good->has_max_restarts());
  EXPECT_EQ(good->checkpoint().save_steps(), 7);
  EXPECT_EQ(good->dist().pins().at("model.layers.*.mlp"), "[tp, -]");
  EXPECT_FALSE(good->compute().bf16());
}

TEST(JobFileTest, WhatIsWrongWithASetNamesIt) {
  EXPECT_EQ(SetError({"train.max_steps=abc"}),
            "--set train.max_steps=abc: train.max_steps = abc is not a whole number");
  EXPECT_EQ(SetError({"train.max_steps=1e10"}),
            "--set train.max_steps=1e10: train.max_steps = 1e10 is too large; the largest is 2147483647");
  EXPECT_EQ(SetError({"train.max_steps=1e2"}),
            "--set train.max_steps=1e2: train.max_steps = 1e2 is not a whole number; write 100");
  EXPECT_EQ(SetError({"train.max_step=3"}),
            "--set train.max_step=3: unknown field \"max_step\" in train; did you mean \"max_steps\"?");
  EXPECT_EQ(SetError({"trian=null"}), "--set trian=null: unknown field \"trian\"; did you mean \"train\"?");
  EXPECT_EQ(SetError({"max_steps=3"}), "--set max_steps=3: unknown field \"max_steps\"; it belongs at train.max_steps");
  EXPECT_EQ(SetError({"train"}), "--set train: it is not FIELD=VALUE, as train.max_steps=200");
  EXPECT_EQ(SetError({"train.seed="}), "--set train.seed=: it has no value; `null` takes the field out of the job");
  EXPECT_EQ(SetError({"name.first=x"}), "--set name.first=x: name is text in the job file; it has no fields");
  EXPECT_THAT(SetError({"dist.topology=[dp"}),
              HasSubstr("--set dist.topology=[dp: not valid YAML: a '[' is never closed"));
  EXPECT_EQ(SetError({"train.max_steps=null"}),
            "job.yaml:6:1: train.max_steps is missing; give it, or train.num_train_epochs");
}

TEST(JobFileTest, OneNameIsAListOfOne) {
  ExpectJob(std::string(kSixLines) + "dist: {fsdp: {wrap_layer_cls: LlamaDecoderLayer}}\n",
            "name: 'tiny' model { path: '/home/ada/model' } data { path: '/home/ada/data' } train { max_steps: 100 } "
            "dist { fsdp { wrap_layer_cls: 'LlamaDecoderLayer' } } checkpoint { dir: '/home/ada/runs/tiny' }");
}

// A pattern that is compiled for each number takes minutes.
TEST(JobFileTest, ReadsALongListOfNumbers) {
  std::string numbers = "0.5";
  for (int i = 1; i < 40000; ++i) numbers += ",0.5";
  const auto spec = ParseJobFile(
      absl::StrReplaceAll(kSixLines,
                          {{"{max_steps: 100}", absl::StrCat("{max_steps: 100, lr_factors: [", numbers, "]}")}}),
      "job.yaml", "/home/ada");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->train().lr_factors_size(), 40000);
}

TEST(JobFileTest, ReadsMapsOfSectionsAndListsOfNumbers) {
  const std::string text =
      absl::StrReplaceAll(kSixLines, {{"{max_steps: 100}",
                                       "{max_steps: 100, optim: adamw_torch, lr_factors: [1, 5e-1], "
                                       "param_groups: {\"*.bias\": {weight_decay: 0}}}"}});
  EXPECT_NE(text, kSixLines);
  ExpectJob(
      text,
      "name: 'tiny' model { path: '/home/ada/model' } data { path: '/home/ada/data' } train { max_steps: 100 "
      "optim: OPTIM_ADAMW lr_factors: 1 lr_factors: 0.5 param_groups { key: '*.bias' value { weight_decay: 0 } } } "
      "checkpoint { dir: '/home/ada/runs/tiny' }");
  EXPECT_EQ(SetError({"train.param_groups={a: {lr: 1}}"}),
            "--set train.param_groups={a: {lr: 1}}: unknown field \"lr\" in train.param_groups[\"a\"]; "
            "give train.learning_rate\n"
            "--set train.param_groups={a: {lr: 1}}: train.param_groups[\"a\"] says nothing; "
            "give learning_rate, weight_decay or optim, or leave it out");
  EXPECT_EQ(SetError({"train.param_groups={a: 3}"}),
            "--set train.param_groups={a: 3}: train.param_groups[\"a\"] wants fields (learning_rate, weight_decay, "
            "optim), not a number");
  EXPECT_EQ(SetError({"train.lr_factors=[1, x]"}),
            "--set train.lr_factors=[1, x]: train.lr_factors[1] = x is not a number");
}

TEST(JobFileTest, ByteOrderMarkAndCarriageReturnsAreFine) {
  std::string text = kSixLines;
  for (size_t i = 0; (i = text.find('\n', i)) != std::string::npos; i += 2) text.replace(i, 1, "\r\n");
  ExpectJob("\xef\xbb\xbf" + text,
            "name: 'tiny' model { path: '/home/ada/model' } data { path: '/home/ada/data' } train { max_steps: 100 } "
            "checkpoint { dir: '/home/ada/runs/tiny' }");
}

TEST(JobFileTest, LimitsSizeAndDepth) {
  EXPECT_EQ(Error(std::string(kMaxYamlBytes + 1, '#')),
            "job.yaml:1:1: the file has more than 262144 bytes; is it a job file?");
  EXPECT_THAT(Error(absl::StrCat("name: ", std::string(1000, '['))), HasSubstr("more than 16 levels of nesting"));
  EXPECT_THAT(Error(std::string(kMaxYamlBytes, '{')), HasSubstr("levels of nesting"));
  EXPECT_THAT(Error("name: " + std::string(100000, 'x')), HasSubstr("is not a job name"));
  std::string many;
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&many, "key", i, ": 1\n");
  EXPECT_THAT(Error(many), HasSubstr("job.yaml: and 904 more"));
}

// Each error of one list is looked for among all of the other's: a minute, if each is compared with each.
TEST(JobFileTest, ManyErrorsAreReadInNoTime) {
  std::string negative = "-1", nested = "[]";
  for (int i = 1; i < 40000; ++i) {
    negative += ",-1";
    nested += ",[]";
  }
  const std::string error = Error(absl::StrReplaceAll(
      kSixLines,
      {{"{max_steps: 100}", absl::StrCat("{max_steps: 100, lr_factors: [", negative, "], freeze: [", nested, "]}")}}));
  EXPECT_THAT(error, HasSubstr("train.lr_factors[0] = -1 is too small"));
  EXPECT_THAT(error, HasSubstr("job.yaml: and 79"));
}

TEST(JobFileTest, LoadsRelativeToTheFile) {
  const std::string dir = testing::TempDir() + "/job_file_test";
  std::filesystem::create_directories(dir + "/sub");
  std::ofstream(dir + "/sub/job.yaml") << kSixLines;
  const auto spec = LoadJobFile(dir + "/sub/../sub/job.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->data().path(), std::filesystem::path(dir + "/sub/data").lexically_normal().string());
  EXPECT_EQ(LoadJobFile(dir).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LoadJobFile(dir + "/none.yaml").status().code(), absl::StatusCode::kNotFound);
  std::filesystem::remove_all(dir);
}

// Whatever the bytes: a job or an error, no crash, no hang.
TEST(JobFileTest, SurvivesRandomChanges) {
  const std::string pieces[] = {":", "-", "[",  "]",  "{", "}",    "'",    "\"",  "&a",  "*a", "!", "|",   ">",
                                "%", "@", "\t", "\n", " ", "\xff", "\x01", "---", "...", "?",  "#", "<<:", "~"};
  std::mt19937 random(7);
  const std::string seed = std::string(kSixLines) + "dist: {fsdp: {size: 2, wrap_layer_cls: ['A', \"B\"]}}\n";
  int errors = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string text = seed;
    for (int k = 0; k < 1 + static_cast<int>(random() % 4); ++k) {
      const size_t at = random() % text.size();
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 5);
      } else {
        text.insert(at, pieces[random() % std::size(pieces)]);
      }
    }
    const auto spec = ParseJobFile(text, "job.yaml", "/home/ada");
    if (!spec.ok()) {
      ++errors;
      EXPECT_THAT(std::string(spec.status().message()), testing::StartsWith("job.yaml:")) << text;
    }
  }
  EXPECT_GT(errors, 500);
}

// A coordinator reads what a client sends it while workers wait: the largest files take no minutes.
TEST(JobFileTest, ReadsTheLargestFiles) {
  std::string list = kSixLines;
  list.replace(list.size() - 2, 2, ", freeze: [");
  int num_names = 0;
  for (; list.size() + 10 < kMaxYamlBytes; ++num_names) absl::StrAppend(&list, num_names == 0 ? "" : ",", "a");
  EXPECT_THAT(Error(list + "]}\n"), HasSubstr(absl::StrCat("train.freeze has ", num_names, " entries; at most ")));

  std::string keys = kSixLines, twice = kSixLines;
  int num_keys = 0;
  for (; keys.size() + 20 < kMaxYamlBytes; ++num_keys) absl::StrAppend(&keys, "k", num_keys, ": 1\n");
  EXPECT_THAT(Error(keys), testing::EndsWith(absl::StrCat("job.yaml: and ", num_keys - 100, " more")));
  while (twice.size() + 20 < kMaxYamlBytes) twice += "k: 1\n";
  EXPECT_THAT(Error(twice), HasSubstr("job.yaml:8:1: \"k\" is given twice, first at line 7; keep one"));
}

TEST(JobFileTest, UlyssesInATopologyIsThePlaceOfContextParallel) {
  const auto topology = [](const std::string& text) {
    const absl::StatusOr<v1::JobSpec> spec =
        ParseJobFile(absl::StrCat(kSixLines, "dist: {sp: {size: 2}, topology: ", text, "}\n"), "job.yaml", "/d");
    return spec.ok() ? absl::StrJoin(spec->dist().topology(), " ") : std::string(spec.status().message());
  };
  EXPECT_EQ(topology("[dp, fsdp, pp, tp, sp]"), "dp fsdp pp tp cp");
  EXPECT_EQ(topology("[sp, dp]"), "cp dp");
  EXPECT_THAT(topology("[sp, dp, cp]"),
              HasSubstr("\"sp\" is no axis; there are pp, dp, fsdp, ep, cp, tp; sp lies inside cp"));
}

TEST(JobFileTest, EveryForeignNameIsUnknownHereAndItsFieldIsNot) {
  std::set<std::string> seen;
  for (const ForeignName& foreign : ForeignNames()) {
    EXPECT_TRUE(seen.insert(foreign.name).second) << foreign.name << " is there twice";
    EXPECT_EQ(Error(absl::StrCat(kSixLines, foreign.name, ": 1\n")),
              absl::StrCat("job.yaml:7:1: unknown field \"", foreign.name, "\"; ", WithTaccPython(foreign.text)));
    if (foreign.field.empty()) continue;
    // With a value of a wrong kind, which names the field.
    EXPECT_THAT(SetError({foreign.field + "=[[]]"}), HasSubstr(": " + foreign.field)) << foreign.name;
    EXPECT_THAT(SetError({foreign.field + "=[[]]"}), testing::Not(HasSubstr("unknown field"))) << foreign.name;
  }
}

TEST(JobFileTest, PathsThatAreReadMustBeThere) {
  const std::string folder = testing::TempDir() + "paths_test";
  std::filesystem::create_directories(folder + "/model");
  const auto spec = ParseJobFile(kSixLines, "job.yaml", folder);
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(CheckPaths(*spec).message(),
            "data.path = " + folder +
                WithTaccPython("/data does not exist; it is a folder that `python -m tacc data prepare` writes"));
  std::filesystem::create_directories(folder + "/data");
  EXPECT_TRUE(CheckPaths(*spec).ok()) << CheckPaths(*spec);  // checkpoint.dir is made
  v1::JobSpec changed = *spec;
  changed.mutable_checkpoint()->set_dir("/dev/null");
  changed.mutable_checkpoint()->set_resume_from_checkpoint(folder);
  EXPECT_EQ(CheckPaths(changed).message(),
            "checkpoint.dir = /dev/null is no folder; name one, which need not be there yet, or leave it out\n"
            "checkpoint.resume_from_checkpoint = " +
                folder +
                " is no checkpoint: it has no manifest.json; name a folder such as runs/NAME/step-00000200.a1");
  // A word is no path, whatever is called so where the command runs.
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::create_directories(folder + "/auto");
  std::filesystem::current_path(folder);
  EXPECT_TRUE(CheckPaths(*spec).ok()) << CheckPaths(*spec);
  std::filesystem::current_path(before);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tacc::jobfile
