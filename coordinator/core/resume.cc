#include "coordinator/core/resume.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace tacc::coordinator {
namespace {

using Json = nlohmann::ordered_json;

// Entry of the identity that manifests of earlier versions lack.
constexpr char kWeights[] = "weights";

// What to call an entry of the identity in messages, and what else its change means.
std::string Label(const std::string& key) {
  if (key == "model") return "the model";
  if (key == kWeights) return "the model's initial weights";
  if (key == "data") return "data.path";
  if (key == "seq_len") return "data.seq_len";
  if (key == "global_batch_size") return "train.global_batch_size";
  if (key == "seed") return "train.seed";
  return key;
}

// An entry's value, with the path of what it was taken from where the identity tells.
std::string Describe(const Json& identity, const std::string& key) {
  const Json value = identity.contains(key) ? identity[key] : Json();
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  const auto path = identity.find(absl::StrCat(key == kWeights ? "model" : key, "_path"));
  return path != identity.end() && path->is_string() ? absl::StrCat(path->get<std::string>(), " (", text, ")") : text;
}

bool SaysInitialWeights(const v1::FoundCheckpoint& found) {
  const Json identity = Json::parse(found.identity(), nullptr, /*allow_exceptions=*/false);
  return identity.is_object() && identity.contains(kWeights);
}

// Empty when the checkpoint carries on the job's training, else what differs, both values named.
std::string Difference(const std::string& job_identity, const v1::FoundCheckpoint& found) {
  const Json mine = Json::parse(job_identity, nullptr, /*allow_exceptions=*/false);
  const Json theirs = Json::parse(found.identity(), nullptr, /*allow_exceptions=*/false);
  if (!mine.is_object()) return "";
  if (!theirs.is_object()) return "its manifest has no identity";
  std::string text;
  for (const auto& [key, value] : mine.items()) {
    // The same tokens may lie elsewhere, and the shapes say more than the class.
    if (key == "model_path" || key == "data_path" || key == "architecture") continue;
    if (key == kWeights && !theirs.contains(key)) continue;
    if (theirs.contains(key) && theirs[key] == value) continue;
    const bool is_plural = key == kWeights;
    absl::StrAppend(&text, text.empty() ? "" : "; ", Label(key), is_plural ? " were " : " was ", Describe(theirs, key),
                    is_plural ? " and are now " : " and is now ", Describe(mine, key));
    if (key == kWeights) {
      absl::StrAppend(&text,
                      " (that is another training, as fine-tuning is: it needs a name or checkpoint.dir of its own)");
    }
  }
  return text;
}

v1::Checkpoint FromFound(const v1::FoundCheckpoint& found) {
  v1::Checkpoint checkpoint;
  checkpoint.set_name(found.name());
  checkpoint.set_step(found.step());
  checkpoint.set_attempt(found.attempt());
  checkpoint.set_size_bytes(found.size_bytes());
  checkpoint.set_time(found.time());
  return checkpoint;
}

const v1::FoundCheckpoint* Find(const v1::CheckPathsResult& found, const std::string& name) {
  for (const v1::FoundCheckpoint& checkpoint : found.checkpoints()) {
    if (checkpoint.name() == name) return &checkpoint;
  }
  return nullptr;
}

void Finish(const JobState& job, const v1::CheckPathsResult& found, Resume* resume) {
  if (resume->from.empty() || resume->step < job.MaxSteps()) return;
  resume->finished = found.exported_checkpoint() == resume->from || !job.spec.model().has_path();
}

// Where a job waits for what cannot be read. One that has never run waits only for what may pass by itself.
std::string* WhereUnread(const JobState& job, const v1::PathProblem& problem, Resume* resume) {
  const bool waits = job.HasRun() || problem.kind() == v1::PATH_PROBLEM_KIND_UNAVAILABLE;
  return waits ? &resume->away : &resume->error;
}

// It is not there, or a part of it is not: what is copied back, or is on a file system that is not mounted, may come.
bool IsMissing(const v1::FoundCheckpoint* found) {
  return found == nullptr || (found->has_unread() && found->unread().kind() == v1::PATH_PROBLEM_KIND_MISSING);
}

// A job's first start in a folder with a history.
void ResumeFromEarlierJob(const JobState& job, const v1::CheckPathsResult& found, Resume* resume) {
  std::vector<const v1::FoundCheckpoint*> whole;
  for (const v1::FoundCheckpoint& checkpoint : found.checkpoints()) {
    if (!checkpoint.name().empty() && checkpoint.name()[0] == '/') continue;  // A PATH outside the folder.
    if (job.first_attempt != 0 && checkpoint.attempt() >= job.first_attempt) continue;
    if (IsMissing(&checkpoint)) {
      resume->notes.push_back(
          absl::StrCat("checkpoint ", checkpoint.name(), " is not used: ", checkpoint.unread().message()));
      continue;
    }
    if (checkpoint.has_unread()) {
      *WhereUnread(job, checkpoint.unread(), resume) = absl::StrCat("checkpoint ", checkpoint.unread().message());
      return;
    }
    if (!checkpoint.damage().empty()) {
      resume->notes.push_back(absl::StrCat("checkpoint ", checkpoint.name(), " is not used: ", checkpoint.damage()));
      continue;
    }
    whole.push_back(&checkpoint);
  }
  if (whole.empty()) return;
  std::sort(whole.begin(), whole.end(), [](const auto* a, const auto* b) {
    return std::make_pair(a->step(), a->attempt()) < std::make_pair(b->step(), b->attempt());
  });
  const std::string difference = Difference(job.compile.identity(), *whole.back());
  if (!difference.empty()) {
    resume->error =
        absl::StrCat("cannot resume from ", job.spec.checkpoint().dir(), "/", whole.back()->name(), ": ", difference,
                     "; change it back, give another checkpoint.dir, or set resume_from_checkpoint: never");
    return;
  }
  for (const auto* checkpoint : whole) {
    if (Difference(job.compile.identity(), *checkpoint).empty()) resume->adopted.push_back(FromFound(*checkpoint));
  }
  resume->from = whole.back()->name();
  resume->step = whole.back()->step();
  if (!SaysInitialWeights(*whole.back())) {
    resume->notes.push_back(absl::StrCat("checkpoint ", resume->from,
                                         " is of an earlier version and does not say from ",
                                         "which initial weights it was trained: they are not compared"));
  }
}

// resume_from_checkpoint: PATH.
void ResumeFromPath(const JobState& job, const v1::CheckPathsResult& found, Resume* resume) {
  const std::string& path = job.spec.checkpoint().resume_from_checkpoint();
  const v1::FoundCheckpoint* there = Find(found, path);
  const std::string prefix = job.spec.checkpoint().dir() + "/";
  if (there == nullptr && path.compare(0, prefix.size(), prefix) == 0) there = Find(found, path.substr(prefix.size()));
  const std::string option = "checkpoint.resume_from_checkpoint: ";
  if (there == nullptr || there->unread().kind() == v1::PATH_PROBLEM_KIND_MISSING) {
    (job.HasRun() ? resume->away : resume->error) = absl::StrCat(option, "no checkpoint at ", path);
  } else if (there->has_unread()) {
    *WhereUnread(job, there->unread(), resume) = absl::StrCat(option, there->unread().message());
  } else if (!there->damage().empty()) {
    resume->error = absl::StrCat(option, path, ": ", there->damage());
  } else if (const std::string difference = Difference(job.compile.identity(), *there); !difference.empty()) {
    resume->error = absl::StrCat(option, "cannot resume from ", path, ": ", difference);
  } else {
    resume->from = there->name();
    resume->step = there->step();
  }
}

}  // namespace

Resume ChooseResume(const JobState& job, const v1::CheckPathsResult& found) {
  Resume resume;
  std::vector<std::string> missing;
  for (auto it = job.checkpoints.rbegin(); it != job.checkpoints.rend(); ++it) {
    const v1::FoundCheckpoint* there = Find(found, it->name());
    if (IsMissing(there)) {
      missing.push_back(it->name());
    } else if (there->has_unread()) {
      resume.away = absl::StrCat("checkpoint ", there->unread().message(),
                                 "; if it stays unreadable, remove its folder to go on from the one before it");
      return resume;
    } else if (!there->damage().empty()) {
      resume.damaged.push_back(it->name());
      resume.notes.push_back(absl::StrCat("checkpoint ", it->name(), " is not used: ", there->damage()));
    } else {
      for (const std::string& name : missing)
        resume.notes.push_back(
            absl::StrCat("checkpoint ", name, " is not used: it is not in the folder, or not all of it is"));
      resume.from = it->name();
      resume.step = it->step();
      Finish(job, found, &resume);
      return resume;
    }
  }
  if (!missing.empty()) {
    resume.away = absl::StrCat(
        "checkpoint.dir ", job.spec.checkpoint().dir(), ": the checkpoints that this job wrote (",
        absl::StrJoin(missing, ", "),
        ") are not there, or not whole; if they are gone for good, cancel the job and submit it again with "
        "another checkpoint.dir or with resume_from_checkpoint: never");
    return resume;
  }
  const std::string& mode = job.spec.checkpoint().resume_from_checkpoint();
  if (mode == "auto" && !job.HasRun()) ResumeFromEarlierJob(job, found, &resume);
  if (mode != "auto" && mode != "never") ResumeFromPath(job, found, &resume);
  if (mode == "auto") Finish(job, found, &resume);
  const bool starts = resume.away.empty() && resume.error.empty();
  if (starts && resume.from.empty() && job.num_damaged + static_cast<int>(resume.damaged.size()) > 0) {
    resume.notes.push_back("no whole checkpoint is left: training begins again from the initial weights");
  }
  return resume;
}

}  // namespace tacc::coordinator
