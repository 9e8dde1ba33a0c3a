#include "protocol/start_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

namespace tacc::protocol {
namespace {

using nlohmann::json;

// As the coordinator writes it and the daemon completes it.
json Whole(StartFile start = {}) {
  start.seq_len = start.global_batch_size = 1;
  nlohmann::ordered_json text = nlohmann::ordered_json::parse(WriteStartFile(start));
  SetStartField(&text, &StartFile::device, "cpu");
  SetStartField(&text, &StartFile::memory_bytes, 1);
  SetStartField(&text, &StartFile::advertise, "127.0.0.1");
  SetStartField(&text, &StartFile::program, "/p");
  return json::parse(text.dump());
}

std::string ErrorOf(const json& start) { return std::string(ReadStartFile(start, "F: ").status().message()); }

TEST(StartFile, EachMemberAndNameIsDeclaredOnce) {
  std::set<std::string> names;
  ForEachField(kStartFields, [&names](const auto& field) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    int num_fields = 0;
    WithField(field.member, [&num_fields](const auto&) { ++num_fields; });
    EXPECT_EQ(num_fields, 1) << field.name;
    EXPECT_STRNE(field.meaning, "") << field.name;
  });
}

TEST(StartFile, IsReadAsItWasWritten) {
  StartFile start;
  start.weights = StartFile::Weights::kPretrained;
  start.seed = uint64_t{1} << 63;
  start.max_eval_batches = 5;
  start.deterministic = true;
  start.trace_path = "/t";
  start.attention = {{"a", "b"}};
  start.run = {{"flops_per_step", 2.5}};
  start.identity = {{"model", "m"}};
  const absl::StatusOr<StartFile> read = ReadStartFile(Whole(start), "");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->weights, StartFile::Weights::kPretrained);
  EXPECT_EQ(read->seed, start.seed);
  EXPECT_EQ(read->max_eval_batches, 5);
  EXPECT_TRUE(read->deterministic);
  EXPECT_EQ(read->trace_path, "/t");
  EXPECT_EQ(read->trace_step, 3);
  EXPECT_EQ(read->attention, start.attention);
  EXPECT_EQ(read->flops_per_step, 2.5);
  EXPECT_EQ(read->identity, start.identity);
  EXPECT_EQ(read->program, "/p");
}

TEST(StartFile, WhatIsNotSetIsLeftOut) {
  const json start = Whole();
  for (const char* name : {"eval", "trace", "run", "attention", "products"}) EXPECT_FALSE(start.contains(name)) << name;
  EXPECT_EQ(start["identity"], json::object());
  EXPECT_EQ(start["train"]["stop_if_stuck_steps"], 0);
  EXPECT_FALSE(json::parse(WriteStartFile({})).contains("device"));
}

TEST(StartFile, AnOlderOneLacksAndHasOtherFields) {
  json start = Whole();
  start["later"] = start["train"]["later"] = 1;
  start["train"].erase("stop_if_stuck_steps");
  for (const char* name : {"claimed", "service"}) start["checkpoint"].erase(name);
  start.erase("identity");
  EXPECT_EQ(ErrorOf(start), "");
}

TEST(StartFile, ErrorsNameTheFieldAndWhatIsWanted) {
  const struct {
    const char* place;
    json value;
    const char* error;
  } kCases[] = {
      {"/version", 1, "F: version is 1; wanted a string"},
      {"/attempt", 0, "F: attempt is 0; wanted a whole number of at least 1"},
      {"/rank", -1, "F: rank is -1; wanted a whole number of at least 0"},
      {"/rank", int64_t{1} << 32, "F: rank is 4294967296; wanted a whole number of at most 2147483647"},
      {"/attempt", uint64_t{1} << 63,
       "F: attempt is 9223372036854775808; wanted a whole number of at most 9223372036854775807"},
      {"/attempt", int64_t{1} << 31, "F: attempt is 2147483648; wanted a whole number of at most 1073741824"},
      {"/threads", 5000, "F: threads is 5000; wanted a whole number of at most 4096"},
      {"/seed", -1, "F: seed is -1; wanted a whole number of at least 0"},
      {"/weights", "best", R"(F: weights is "best"; wanted "pretrained" or "random")"},
      {"/data", 3, "F: data is 3; wanted an object"},
      {"/train/deterministic", 1, "F: train.deterministic is 1; wanted true or false"},
      {"/eval", json::object(), "F: eval.max_batches is missing"},
      {"/eval/max_batches", 0, "F: eval.max_batches is 0; wanted a whole number of at least 1"},
      {"/trace", {{"path", "/t"}}, "F: trace.step is missing"},
      {"/run", 3, "F: run is 3; wanted an object"},
      {"/run/flops_per_step", -1, "F: run.flops_per_step is -1; wanted a number of at least 0"},
      {"/attention", {{"a", 1}}, R"(F: attention is {"a":1}; wanted an object of strings)"},
      {"/collective_timeout_seconds", 0, "F: collective_timeout_seconds is 0; wanted a positive number"},
  };
  for (const auto& c : kCases) {
    json start = Whole();
    start[json::json_pointer(c.place)] = c.value;
    EXPECT_EQ(ErrorOf(start), c.error);
  }
  json start = Whole();
  start.erase("data");
  EXPECT_EQ(ErrorOf(start), "F: data is missing");
}

TEST(StartFile, HasItsTableInThePage) {
  std::ifstream in("docs/contracts.md");
  std::stringstream page;
  page << in.rdbuf();
  ASSERT_TRUE(in.good());
  EXPECT_EQ(WithStartTable(page.str()), page.str()) << "docs/contracts.md is stale: run `ninja -C build docs`";
  EXPECT_THAT(page.str(), testing::HasSubstr("| `train.deterministic` |"));
}

}  // namespace
}  // namespace tacc::protocol
