#include "failpoint/failpoint.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tacc {
namespace {

// 0: not known.
int ErrnoOf(absl::string_view name) {
  for (int error = 1; error < 256; ++error) {
    const char* known = strerrorname_np(error);
    if (known != nullptr && name == known) return error;
  }
  return 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Failpoints>> Failpoints::Parse(const std::string& text) {
  auto result = std::make_unique<Failpoints>();
  absl::MutexLock lock(&result->mutex_);
  for (absl::string_view entry : absl::StrSplit(text, ';', absl::SkipWhitespace())) {
    entry = absl::StripAsciiWhitespace(entry);
    auto bad = [&entry](const std::string& why) {
      return absl::InvalidArgumentError(
          absl::StrCat("TACC_FAILPOINTS: \"", entry, "\": ", why,
                       "; write name=kill, name=error, name=errno:NAME or name=sleep:SECONDS, each with an "
                       "optional @COUNT"));
    };
    const std::pair<std::string, std::string> name_action = absl::StrSplit(entry, absl::MaxSplits('=', 1));
    if (name_action.first.empty()) return bad("the name is empty");
    const std::vector<std::string> action_count = absl::StrSplit(name_action.second, '@');
    Point point;
    if (action_count.size() > 2) return bad("more than one @");
    if (action_count.size() == 2 && (!absl::SimpleAtoi(action_count[1], &point.at) || point.at < 1)) {
      return bad("the count is not a positive number");
    }
    absl::string_view action = action_count[0];
    if (action == "kill") {
      point.action = Action::kKill;
    } else if (action == "error") {
      point.action = Action::kError;
    } else if (absl::ConsumePrefix(&action, "errno:")) {
      point.action = Action::kErrno;
      point.error = ErrnoOf(action);
      if (point.error == 0) return bad("unknown name of an error");
    } else if (absl::ConsumePrefix(&action, "sleep:")) {
      point.action = Action::kSleep;
      if (!absl::SimpleAtod(action, &point.seconds) || !(point.seconds >= 0 && point.seconds <= 86400)) {
        return bad("the seconds are not a number from 0 to 86400");
      }
    } else {
      return bad("unknown action");
    }
    if (!result->points_.emplace(name_action.first, point).second) return bad("the name is set twice");
  }
  return result;
}

absl::Status Failpoints::Hit(const std::string& name) {
  Point point;
  {
    absl::MutexLock lock(&mutex_);
    auto it = points_.find(name);
    if (it == points_.end()) return absl::OkStatus();
    ++it->second.hits;
    point = it->second;
  }
  if (point.at != 0 && point.hits != point.at) return absl::OkStatus();
  switch (point.action) {
    case Action::kKill:
      std::fprintf(stderr, "failpoint %s: killed\n", name.c_str());
      kill(getpid(), SIGKILL);
      pause();  // The signal is on its way: nothing after this place may run.
      break;
    case Action::kError:
    case Action::kErrno:
      return absl::InternalError(absl::StrCat("failpoint ", name, " (hit ", point.hits, ")"));
    case Action::kSleep:
      absl::SleepFor(absl::Seconds(point.seconds));
      break;
  }
  return absl::OkStatus();
}

int Failpoints::Errno(const std::string& name) {
  if (Hit(name).ok()) return 0;
  absl::MutexLock lock(&mutex_);
  const int error = points_[name].error;
  return error == 0 ? EIO : error;
}

}  // namespace tacc
