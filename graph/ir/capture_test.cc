#include "graph/ir/capture.h"

#include "absl/strings/str_cat.h"
#include "graph/ir/text.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

using Texts = std::vector<std::string>;

constexpr char kHostTalks[] = "the host takes part in the talk between ranks";
constexpr char kMessage[] = "a message may outlast the graph";
constexpr char kUnderMessage[] = "a collective is under way while a message may outlast the graph";

// The parts of a program whose only graph has these lines.
Texts Parts(const std::string& lines, TalkPlace place, int64_t fsdp = 2) {
  const auto program = ParseProgram(absl::StrCat("tacc.program 1 partitioned\nmesh fsdp=", fsdp, R"( pp=2
stage 0 of 2
state "weights/w" : f32[2] of f32[4] shard=[fsdp] kind=weight init=ones stored=[4]
state "stash/a" : f32[4] of f32[4] shard=[-] kind=stash init=zeros
graph g {
)",
                                                 lines, R"(}
step {
  call g micro_batch=0
  call g micro_batch=1
}
)"),
                                    {});
  EXPECT_TRUE(program.ok()) << program.status();
  if (!program.ok()) return {};
  Texts parts;
  for (const CapturePart& part : CapturePlan(*program, place)) {
    parts.push_back(absl::StrCat(part.num_nodes, " from ", part.first_node,
                                 part.not_captured.empty() ? "" : absl::StrCat(": ", part.not_captured)));
  }
  return parts;
}

constexpr char kGather[] = R"(  %w = read "weights/w" : f32[2] of f32[4] shard=[fsdp]
  %n = neg %w : f32[2] of f32[4] shard=[fsdp]
  %a = all_gather %n async=true dim=0 over=[fsdp] : f32[4] of f32[4] shard=[-] @layer
  %m = neg %n : f32[2] of f32[4] shard=[fsdp]
  %b = wait %a : f32[4] of f32[4] shard=[-] @layer
  %c = neg %b : f32[4] of f32[4] shard=[-] @head
  store "stash/a" %c
)";

TEST(Capture, CollectivesOnTheDeviceAreCaptured) {
  EXPECT_EQ(Parts(kGather, TalkPlace::kDevice), (Texts{"7 from neg"}));
}

TEST(Capture, CollectivesByTheHostAreNot) {
  EXPECT_EQ(Parts(kGather, TalkPlace::kHost),
            (Texts{"2 from neg", absl::StrCat("1 from all_gather @layer: ", kHostTalks), "1 from neg",
                   absl::StrCat("1 from wait @layer: ", kHostTalks), "2 from neg @head"}));
}

TEST(Capture, ACollectiveOfOneRankIsNone) { EXPECT_EQ(Parts(kGather, TalkPlace::kHost, 1), (Texts{"7 from neg"})); }

TEST(Capture, MessagesAreNotNorWhatIsUnderWayWithThem) {
  // What runs nothing goes with what is before it: the reads with the message.
  EXPECT_EQ(
      Parts(R"(  recv "stash/a" channel=0 from=1
  %w = read "weights/w" : f32[2] of f32[4] shard=[fsdp]
  %m = neg %w : f32[2] of f32[4] shard=[fsdp]
  %a = all_gather %w async=true dim=0 over=[fsdp] : f32[4] of f32[4] shard=[-]
  finish "stash/a" channel=0
  %b = wait %a : f32[4] of f32[4] shard=[-]
  %c = neg %b : f32[4] of f32[4] shard=[-]
)",
            TalkPlace::kDevice),
      (Texts{absl::StrCat("2 from recv: ", kMessage), "1 from neg", absl::StrCat("1 from all_gather: ", kUnderMessage),
             absl::StrCat("1 from finish: ", kMessage), absl::StrCat("1 from wait: ", kUnderMessage), "1 from neg"}));
}

// The second gather cannot be captured; the first one, which ends inside it, then neither.
TEST(Capture, OneThatIsCutCutsOthers) {
  EXPECT_EQ(Parts(R"(  %w = read "weights/w" : f32[2] of f32[4] shard=[fsdp]
  %n = neg %w : f32[2] of f32[4] shard=[fsdp]
  %a = all_gather %n async=true dim=0 over=[fsdp] : f32[4] of f32[4] shard=[-]
  %b = all_gather %w async=true dim=0 over=[fsdp] : f32[4] of f32[4] shard=[-]
  %c = wait %a : f32[4] of f32[4] shard=[-]
  store "stash/a" %c
  send "stash/a" channel=0 to=1
  %d = wait %b : f32[4] of f32[4] shard=[-]
)",
                  TalkPlace::kDevice),
            (Texts{"2 from neg", absl::StrCat("4 from all_gather: ", kUnderMessage),
                   absl::StrCat("1 from send: ", kMessage), absl::StrCat("1 from wait: ", kUnderMessage)}));
}

TEST(Capture, PartsCoverTheGraph) {
  const auto program = ParseProgram(absl::StrCat(R"(tacc.program 1 partitioned
mesh fsdp=2
stage 0 of 1
state "weights/w" : f32[2] of f32[4] shard=[fsdp] kind=weight init=ones stored=[4]
state "stash/a" : f32[4] of f32[4] shard=[-] kind=stash init=zeros
graph g {
)",
                                                 kGather, "}\n"),
                                    {});
  ASSERT_TRUE(program.ok()) << program.status();
  const std::vector<GraphPart> parts = CutForCapture(program->graphs[0], program->mesh, TalkPlace::kHost);
  ASSERT_EQ(parts.size(), 5u);
  EXPECT_EQ(parts.front().begin, 0);
  EXPECT_EQ(parts.back().end, 7);
  for (size_t i = 1; i < parts.size(); ++i) EXPECT_EQ(parts[i].begin, parts[i - 1].end);
  EXPECT_TRUE(CutForCapture(Graph(), program->mesh, TalkPlace::kHost).empty());
}

TEST(Capture, InWords) {
  EXPECT_EQ(
      InWords({{"forward", 8, "neg @layer", ""}, {"forward", 1, "send", kMessage}, {"update", 3, "adamw", ""}}),
      "CUDA graphs: forward (8 nodes from neg @layer), update (3 nodes from adamw); not captured: forward (1 node "
      "from send: a message may outlast the graph)");
  EXPECT_EQ(InWords({{"g", 2, "send", kMessage}}),
            "CUDA graphs: none; not captured: g (2 nodes from send: a message may outlast the graph)");
}

}  // namespace
}  // namespace tacc::graph
