#include "client/taccctl/show/units.h"

#include <sstream>

#include "client/taccctl/local/share_out.h"
#include "client/taccctl/session/coordinator_client.h"
#include "client/taccctl/show/table.h"
#include "gtest/gtest.h"

namespace tacc::client {
namespace {

TEST(UnitsTest, Formats) {
  EXPECT_EQ(FormatBytes(12), "12 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(3.0 * (1 << 30)), "3.0 GiB");
  EXPECT_EQ(FormatDuration(7), "0:07");
  EXPECT_EQ(FormatDuration(3723), "1:02:03");
  EXPECT_EQ(FormatDuration(4 * 86400 + 3660), "4 d 01:01");
  EXPECT_EQ(FormatDuration(-1), "-");
  EXPECT_EQ(FormatCount(8192), "8.19k");
  EXPECT_EQ(FormatCount(999.9), "1k");
  EXPECT_EQ(FormatCount(9.3e10), "93G");
  EXPECT_EQ(FormatPercent(0.413), "41.3%");
  EXPECT_EQ(FormatPercent(0), "0.0%");
  EXPECT_EQ(FormatPercent(0.0004), "0.04%");
  EXPECT_EQ(FormatPercent(4e-8), "<0.01%");
  EXPECT_EQ(FormatTime(0), "");
}

TEST(PrintableTest, NothingSteersTheTerminal) {
  EXPECT_EQ(Printable("a\x1b[2Jb\x7f\n"), "a [2Jb  ");
  EXPECT_EQ(Printable("a\xc2\x9b"
                      "2Jb\xc2\x85"),
            "a 2Jb ");
  EXPECT_EQ(Printable("\xc2\xa0\xc3\x9f \xe2\x82\xac \xc2"), "\xc2\xa0\xc3\x9f \xe2\x82\xac \xc2");
}

TEST(CommandStartTest, HasAllThatSaysHowToReachTheCoordinator) {
  std::istringstream in;
  std::ostringstream out, err;
  Interrupt interrupt;
  const Context context{.program = "taccctl", .in = in, .out = out, .err = err, .interrupt = interrupt};
  EXPECT_EQ(CommandStart({}, context), "taccctl");
  EXPECT_EQ(CommandStart({.address = "h:1", .tls_dir = "p k", .token_file = "t", .tls_server_name = "n"}, context),
            "taccctl --address h:1 --tls-dir 'p k' --tls-server-name n --token-file t");
}

TEST(BackoffTest, DoublesFromTwoTenthsToTwoSeconds) {
  Backoff backoff;
  for (const double wanted : {0.2, 0.4, 0.8, 1.6, 2.0, 2.0}) EXPECT_DOUBLE_EQ(backoff.Next(), wanted);
  backoff.Reset();
  EXPECT_DOUBLE_EQ(backoff.Next(), 0.2);
}

TEST(ShareOutTest, NeverMoreThreadsThanCpusUnlessItMust) {
  const LocalMachine machine{.num_cpus = 8, .available_memory_bytes = 1000};
  EXPECT_EQ(ShareOut(machine, 3).threads, 2);
  EXPECT_EQ(ShareOut(machine, 3).memory_bytes, 300);
  EXPECT_EQ(ShareOut(machine, 8).threads, 1);
  EXPECT_EQ(ShareOut(machine, 9).threads, 1);
}

TEST(ShareOutTest, GpusGetAPartOfTheCpusAndWhatIsFreeOnThem) {
  LocalMachine machine;
  machine.num_cpus = 32;
  machine.available_memory_bytes = 1000;
  const auto gpus = ShareFor(machine, {"cuda:0", "cuda:1", "cuda:2", "cuda:3"}, 0, "");
  EXPECT_EQ(gpus->threads, 8);
  EXPECT_EQ(gpus->memory_bytes, 0);
  EXPECT_EQ(ShareFor(machine, {"cuda:0"}, 3, "1kB")->threads, 3);
  EXPECT_EQ(ShareFor(machine, {"cuda:0"}, 3, "1kB")->memory_bytes, 1000);
  EXPECT_EQ(ShareFor(machine, {"cpu", "cpu"}, 0, "")->memory_bytes, 450);
  EXPECT_EQ(ShareFor(machine, {"cpu"}, 0, "much").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ShareOutTest, MoreThreadsThanCpusAreToldOf) {
  const LocalMachine machine{.num_cpus = 8, .available_memory_bytes = 1000};
  EXPECT_EQ(TurnsWarning(machine, 8, 1, "--workers"), "");
  EXPECT_EQ(TurnsWarning(machine, 2, 4, "--workers"), "");
  const std::string warning = TurnsWarning(machine, 9, 1, "--workers");
  EXPECT_NE(warning.find("9 workers of 1 thread share 8 CPUs"), std::string::npos) << warning;
  EXPECT_NE(warning.find("lower --workers"), std::string::npos) << warning;
  EXPECT_NE(TurnsWarning(machine, 2, 5, "--threads").find("2 workers of 5 threads share 8 CPUs"), std::string::npos);
}

}  // namespace
}  // namespace tacc::client
