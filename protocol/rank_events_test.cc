#include "protocol/rank_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_replace.h"

namespace tacc::protocol {
namespace {

// The example of an event in docs/contracts.md.
template <typename Event>
nlohmann::json ExampleOf() {
  std::ifstream in("docs/contracts.md");
  std::stringstream page;
  page << in.rdbuf();
  const std::string text = absl::StrReplaceAll(page.str(), {{"\"step\":N", "\"step\":1"}});
  const size_t begin = text.find(absl::StrCat("{\"event\":\"", Event::kName, "\""));
  if (begin == std::string::npos) return nullptr;
  return nlohmann::json::parse(text.substr(begin, text.find('}', begin) + 1 - begin), nullptr, false);
}

template <typename Event>
class RankEventsTest : public ::testing::Test {};
using Events =
    ::testing::Types<StartedEvent, ListeningEvent, ReadyEvent, CheckpointEvent, TraceEvent, ReportEvent, ExportedEvent,
                     FetchEvent, WarningEvent, FailedEvent, LogEvent, FinishedEvent, StoppedEvent>;
TYPED_TEST_SUITE(RankEventsTest, Events);

TYPED_TEST(RankEventsTest, ThePageHasAnExampleWithAllFieldsThatAreAlwaysThere) {
  const nlohmann::json example = ExampleOf<TypeParam>();
  ASSERT_TRUE(example.is_object()) << TypeParam::kName;
  const absl::StatusOr<TypeParam> event = ReadEvent<TypeParam>(example);
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_EQ(EventJson(*event), example);
}

TYPED_TEST(RankEventsTest, AFieldThatIsMissingOrWrongIsNamed) {
  const nlohmann::json whole = EventJson(TypeParam());
  ForEachField(kEventFields<TypeParam>, [&](const auto& field) {
    nlohmann::json wrong = whole;
    wrong[field.name] = nullptr;
    EXPECT_THAT(std::string(ReadEvent<TypeParam>(wrong).status().message()),
                testing::StartsWith(absl::StrCat("\"", field.name, "\" must be ")));
    wrong.erase(field.name);
    EXPECT_EQ(ReadEvent<TypeParam>(wrong).ok(), field.presence != Presence::kRequired) << field.name;
  });
}

TEST(ReadyEventTest, WhatIsOfGpusIsThereWhereItIsSet) {
  ReadyEvent ready;
  ready.attention = {{{"shape", "a"}}};
  ready.device_memory_used_bytes = 7;
  const nlohmann::json json = EventJson(ready);
  EXPECT_EQ(json["attention"], nlohmann::json::parse(R"([{"shape": "a"}])"));
  EXPECT_FALSE(json.contains("products"));
  const absl::StatusOr<ReadyEvent> read = ReadEvent<ReadyEvent>(json);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->attention, ready.attention);
  EXPECT_EQ(read->device_memory_used_bytes, 7);
}

}  // namespace
}  // namespace tacc::protocol
