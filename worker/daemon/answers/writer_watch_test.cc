#include "worker/daemon/answers/writer_watch.h"

#include <gtest/gtest.h>

namespace tacc::worker {
namespace {

using Life = WriterWatch::Life;

FolderWriter At(double renewed) {
  FolderWriter writer;
  writer.service = "a";
  writer.renewed = renewed;
  return writer;
}

TEST(WriterWatchTest, OneThatRenewsLives) {
  WriterWatch watch;
  EXPECT_EQ(watch.Look("dir", "job-1", At(1), 0), Life::kUnknown);
  EXPECT_EQ(watch.Look("dir", "job-1", At(6), 7), Life::kLives);
  // By whatever clock.
  EXPECT_EQ(watch.Look("dir", "job-1", At(2), 15), Life::kLives);
  EXPECT_EQ(watch.Look("dir", "job-1", At(2), 16), Life::kUnknown);
  EXPECT_EQ(watch.Look("other", "job-1", At(2), 100), Life::kUnknown);
}

// At the times at which a job that waits looks.
TEST(WriterWatchTest, OneThatDoesNotIsDeadAfterHalfAMinute) {
  WriterWatch watch;
  for (const double now : {0, 1, 3, 7, 15, 29})
    EXPECT_EQ(watch.Look("dir", "job-1", At(1), now), Life::kUnknown) << now;
  EXPECT_EQ(watch.Look("dir", "job-1", At(1), 31), Life::kDead);
}

// It may have died since the one before asked.
TEST(WriterWatchTest, WhoAsksAnewBeginsAnew) {
  WriterWatch watch;
  EXPECT_EQ(watch.Look("dir", "job-1", At(1), 0), Life::kUnknown);
  EXPECT_EQ(watch.Look("dir", "job-2", At(6), 7), Life::kUnknown);
  EXPECT_EQ(watch.Look("dir", "job-2", At(6), 22), Life::kUnknown);
  EXPECT_EQ(watch.Look("dir", "job-2", At(6), 37), Life::kDead);
}

TEST(WriterWatchTest, WhatWasNotSeenDoesNotCount) {
  WriterWatch watch;
  EXPECT_EQ(watch.Look("dir", "job-1", At(1), 0), Life::kUnknown);
  EXPECT_EQ(watch.Look("dir", "job-1", At(1), 1000), Life::kUnknown);
  watch.Forget("dir");
  EXPECT_EQ(watch.Look("dir", "job-1", At(1), 1015), Life::kUnknown);
  EXPECT_EQ(watch.Look("dir", "job-1", At(1), 1030), Life::kUnknown);
  EXPECT_EQ(watch.Look("dir", "job-1", At(1), 1045), Life::kDead);
}

}  // namespace
}  // namespace tacc::worker
