#include "jobfile/cluster_file.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tacc::jobfile {
namespace {

const KnownMachines& Known() {
  static const KnownMachines known{{"a100", "h100", "h200"}, {"machine", "nodes", "gpus", "inter_bytes_per_second"}};
  return known;
}

std::string Error(const std::string& text) {
  const auto file = ParseClusterFile(text, "c.yaml", Known());
  return file.ok() ? "" : std::string(file.status().message());
}

TEST(ClusterFile, IsARequestsCluster) {
  const auto file = ParseClusterFile("machine: h100\nnodes: 16\ninter_bytes_per_second: 2.5e10 # one adapter for two\n",
                                     "c.yaml", Known());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->cluster.dump(), R"({"inter_bytes_per_second":25000000000.0,"machine":"h100","nodes":16})");
}

TEST(ClusterFile, AFolderIsNone) {
  EXPECT_EQ(LoadClusterFile(testing::TempDir(), Known()).status().message(),
            testing::TempDir() + ": is a folder; give the path of a cluster file (YAML)");
}

TEST(ClusterFile, UnknownNamesHaveAPlaceAndTheNearest) {
  EXPECT_EQ(Error("machine: h10\n"),
            "c.yaml:1:10: machine \"h10\" is not known; did you mean \"h100\"? Known: a100, h100, h200");
  EXPECT_EQ(Error("machine: abacus\n"), "c.yaml:1:10: machine \"abacus\" is not known; known: a100, h100, h200");
  EXPECT_EQ(Error("machine: h100\nnode: 2\n"),
            "c.yaml:2:1: field \"node\" is not known; did you mean \"nodes\"? Known: machine, nodes, gpus, "
            "inter_bytes_per_second");
  EXPECT_EQ(Error("machine: [h100]\nnodes: {}\n"),
            "c.yaml:1:10: machine wants a name or a number, not a list\nc.yaml:2:8: nodes wants a name or a number, "
            "not a map");
  EXPECT_EQ(Error("- h100\n"),
            "c.yaml:1:1: a cluster file is a map of fields (machine, nodes or gpus, ...), this is a list");
  EXPECT_THAT(Error("machine: \"h100\n"), testing::HasSubstr("c.yaml:1:10: "));
}

TEST(ClusterFile, WhatThePlannerSaysGetsItsPlace) {
  const auto file = ParseClusterFile("machine: h100\ngpus: 12\n", "c.yaml", Known());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Locate("cluster: gpus = 12 is not a number of whole h100 nodes"),
            "c.yaml:2:7: gpus = 12 is not a number of whole h100 nodes");
  EXPECT_EQ(file->Locate("cluster: nodes = 0"), "c.yaml:1:1: nodes = 0");
  EXPECT_EQ(file->Locate("the model does not fit"), "the model does not fit");
  EXPECT_EQ(LoadClusterFile("/nowhere/c.yaml", Known()).status().message(),
            "/nowhere/c.yaml: cannot be read; give the path of a cluster file (YAML)");
}

}  // namespace
}  // namespace tacc::jobfile
