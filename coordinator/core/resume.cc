#include "coordinator/core/resume.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "json/parse_json.h"
#include "nlohmann/json.hpp"

namespace tacc::coordinator {
namespace {

using Json = nlohmann::ordered_json;

// Entries of the identity that manifests of earlier versions lack.
constexpr char kWeights[] = "weights";
constexpr char kConfig[] = "config";
constexpr char kTrained[] = "trained";
constexpr char kAdapter[] = "adapter_config";
// Of earlier versions, which trained every parameter.
constexpr char kAllTrained[] = "all";
// What config.json calls entries of kConfig that have another name there.
constexpr char kConfigKeys[] = "config_keys";
constexpr char kOwnName[] = ": it needs a name or checkpoint.dir of its own)";

// What to call an entry of the identity in messages, and what else its change means.
std::string Label(const std::string& key) {
  if (key == "model") return "the model";
  if (key == kWeights) return "the model's initial weights";
  if (key == "data") return "data.path";
  if (key == kTrained) return "what is trained (train.freeze, train.lora)";
  if (key == kAdapter) return "train.lora";
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

// What is not compared, because the checkpoint does not say it.
void TellWhatIsUnknown(const v1::FoundCheckpoint& found, std::vector<std::string>* notes) {
  const Json identity = ParseOrderedJson(found.identity());
  for (const auto& [key, what] :
       {std::pair{kWeights, "from which initial weights it was trained: they are not compared"},
        std::pair{kConfig,
                  "what config.json said beside the weights' shapes (norms, heads, rotary embeddings, "
                  "dropout): that is not compared"}}) {
    if (identity.contains(key)) continue;
    notes->push_back(absl::StrCat("checkpoint ", found.name(), " is of an earlier version and does not say ", what));
  }
}

// What differs in what config.json, or a graph text, says of the mathematics, in the file's own names; those of both
// maps are in order.
std::string DifferenceOfConfig(const Json& their_identity, const Json& my_identity) {
  const Json &theirs = their_identity[kConfig], &mine = my_identity[kConfig];
  std::set<std::string> names;
  for (const Json* facts : {&theirs, &mine}) {
    for (const auto& [name, value] : facts->items()) names.insert(name);
  }
  const auto key_of = [&](const std::string& name) {
    for (const Json* identity : {&my_identity, &their_identity}) {
      const auto keys = identity->find(kConfigKeys);
      if (keys == identity->end() || !keys->is_object()) continue;
      if (const auto key = keys->find(name); key != keys->end() && key->is_string()) return key->get<std::string>();
    }
    return name;
  };
  const auto value_of = [](const Json& facts, const std::string& name) -> std::string {
    const auto value = facts.find(name);
    if (value == facts.end()) return "not given";
    return value->is_string() ? value->get<std::string>() : value->dump();
  };
  std::vector<std::string> changes;
  for (const std::string& name : names) {
    const std::string was = value_of(theirs, name), is = value_of(mine, name);
    if (was != is) changes.push_back(absl::StrCat(key_of(name), " was ", was, " and is now ", is));
  }
  return absl::StrJoin(changes, ", ");
}

// What differs in two texts of adapter_config.json, whose names train.lora has; empty where a text is none.
std::string DifferenceOfAdapters(const Json& their_text, const Json& my_text) {
  if (!their_text.is_string() || !my_text.is_string()) return "";
  const Json theirs = ParseOrderedJson(their_text.get<std::string>());
  const Json mine = ParseOrderedJson(my_text.get<std::string>());
  if (!theirs.is_object() || !mine.is_object()) return "";
  std::vector<std::string> changes;
  for (const auto& [name, is] : mine.items()) {
    const Json was = theirs.value(name, Json());
    if (was != is) changes.push_back(absl::StrCat("train.lora.", name, " was ", was.dump(), " and is now ", is.dump()));
  }
  return absl::StrJoin(changes, ", ");
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
  resume->finished = found.exported_checkpoint() == resume->from;
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
  const std::string difference = IdentityDifference(job.compile.identity(), whole.back()->identity());
  if (!difference.empty()) {
    resume->error =
        absl::StrCat("cannot resume from ", job.spec.checkpoint().dir(), "/", whole.back()->name(), ": ", difference,
                     "; change it back, give another checkpoint.dir, or set resume_from_checkpoint: never");
    return;
  }
  for (const auto* checkpoint : whole) {
    if (IdentityDifference(job.compile.identity(), checkpoint->identity()).empty())
      resume->adopted.push_back(FromFound(*checkpoint));
  }
  resume->from = whole.back()->name();
  resume->step = whole.back()->step();
  TellWhatIsUnknown(*whole.back(), &resume->notes);
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
  } else if (const std::string difference = IdentityDifference(job.compile.identity(), there->identity());
             !difference.empty()) {
    resume->error = absl::StrCat(option, "cannot resume from ", path, ": ", difference);
  } else {
    resume->from = there->name();
    resume->step = there->step();
    TellWhatIsUnknown(*there, &resume->notes);
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

std::string IdentityDifference(const std::string& my_identity, const std::string& their_identity) {
  const Json mine = ParseOrderedJson(my_identity);
  const Json theirs = ParseOrderedJson(their_identity);
  if (!mine.is_object()) return "";
  if (!theirs.is_object()) return "its manifest has no identity";
  std::string text;
  for (const auto& [key, value] : mine.items()) {
    // The same tokens may lie elsewhere, the shapes say more than the class, and `config` what matters of the file.
    if (key == "model_path" || key == "data_path" || key == "architecture" || key == "config_json") continue;
    if (key == "frozen") continue;  // `trained` and the model's shapes say the same
    if (key == kTrained && value == theirs.value(kTrained, kAllTrained)) continue;
    if (key == kConfigKeys) continue;
    if ((key == kWeights || key == kConfig) && !theirs.contains(key)) continue;
    if (theirs.contains(key) && theirs[key] == value) continue;
    if (key == kConfig && value.is_object() && theirs[key].is_object()) {
      const std::string difference = DifferenceOfConfig(theirs, mine);
      if (difference.empty()) continue;
      absl::StrAppend(&text, text.empty() ? "" : "; ", mine.value("model_path", std::string("model.path")),
                      value.contains("graph") ? "" : "/config.json",
                      " describes another model than was trained: ", difference, " (that is another training",
                      kOwnName);
      continue;
    }
    if (key == kAdapter && theirs.contains(key)) {
      if (const std::string difference = DifferenceOfAdapters(theirs[key], value); !difference.empty()) {
        absl::StrAppend(&text, text.empty() ? "" : "; ", difference);
        continue;
      }
    }
    const bool is_plural = key == kWeights;
    absl::StrAppend(&text, text.empty() ? "" : "; ", Label(key), is_plural ? " were " : " was ", Describe(theirs, key),
                    is_plural ? " and are now " : " and is now ", Describe(mine, key));
    if (key == kWeights) absl::StrAppend(&text, " (that is another training, as fine-tuning is", kOwnName);
  }
  return text;
}

}  // namespace tacc::coordinator
