#include "graph/import/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/import/json_file.h"
#include "graph/ir/program.h"
#include "graph/ir/status_macros.h"
#include "json/parse_json.h"
#include "nlohmann/json.hpp"

namespace tacc::graph {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100 << 20;  // the format's own limit
constexpr int64_t kMaxIndexBytes = 100 << 20;
constexpr int kMaxListed = 20;

// Bytes of one element, or 0 for a dtype that safetensors does not have.
int64_t StoredByteSize(const std::string& dtype) {
  static constexpr struct {
    const char* name;
    int64_t bytes;
  } kTypes[] = {{"F64", 8}, {"I64", 8}, {"U64", 8}, {"F32", 4}, {"I32", 4},  {"U32", 4},     {"F16", 2},    {"BF16", 2},
                {"I16", 2}, {"U16", 2}, {"I8", 1},  {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  for (const auto& type : kTypes) {
    if (dtype == type.name) return type.bytes;
  }
  return 0;
}

absl::Status Damaged(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// Never throws: a name that no file can have is not there.
bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// One entry of a header. `data_bytes` is the length of what follows the first `header_bytes` of the file.
absl::StatusOr<StoredTensor> ParseEntry(const std::string& path, const std::string& name, const nlohmann::json& entry,
                                        int64_t header_bytes, int64_t data_bytes) {
  auto bad = [&](const std::string& what) { return Damaged(path, absl::StrCat("tensor \"", name, "\": ", what)); };
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() || !entry.contains("shape") ||
      !entry["shape"].is_array() || !entry.contains("data_offsets") || !entry["data_offsets"].is_array() ||
      entry["data_offsets"].size() != 2) {
    return bad("the header's entry is not dtype, shape and data_offsets");
  }
  StoredTensor tensor;
  tensor.dtype = entry["dtype"].get<std::string>();
  const int64_t element_bytes = StoredByteSize(tensor.dtype);
  if (element_bytes == 0) return bad(absl::StrCat("unknown dtype \"", tensor.dtype, "\""));
  int64_t bytes = element_bytes;
  for (const auto& dim : entry["shape"]) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() > uint64_t{1} << 48) return bad("a dim is not a size");
    tensor.dims.push_back(static_cast<int64_t>(dim.get<uint64_t>()));
    if (tensor.dims.back() != 0 && bytes > (int64_t{1} << 60) / tensor.dims.back())
      return bad("the shape is too large");
    bytes *= tensor.dims.back();
  }
  for (const auto& offset : entry["data_offsets"]) {
    if (!offset.is_number_unsigned() || offset.get<uint64_t>() > uint64_t{1} << 60)
      return bad("an offset is not a size");
  }
  const int64_t begin = entry["data_offsets"][0].get<int64_t>();
  const int64_t end = entry["data_offsets"][1].get<int64_t>();
  if (end - begin != bytes) {
    return bad(absl::StrCat(end - begin, " bytes by its offsets, but ", tensor.dtype, DimsToString(tensor.dims),
                            " has ", bytes));
  }
  if (end > data_bytes) {
    return Damaged(path, absl::StrCat("the file is cut short: tensor \"", name, "\" ends at byte ", end,
                                      " of the data, which has ", data_bytes, " bytes; fetch the file again"));
  }
  tensor.offset = header_bytes + begin;
  tensor.bytes = bytes;
  return tensor;
}

absl::Status ReadHeader(const std::string& dir, const std::string& file, StoredWeights* weights) {
  const std::string path = absl::StrCat(dir, "/", file);
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return Damaged(path, "not a file");  // a pipe would be waited for
  const uintmax_t size = std::filesystem::file_size(path, error);
  std::ifstream in(path, std::ios::binary);
  if (error || !in) return Damaged(path, "cannot be opened");
  unsigned char prefix[8];
  if (size < 8 || !in.read(reinterpret_cast<char*>(prefix), 8))
    return Damaged(path, absl::StrCat("not a safetensors file: ", size, " bytes"));
  if (std::string(reinterpret_cast<const char*>(prefix), 8) == "version ") {
    return Damaged(path,
                   "this is a pointer of git-lfs, the weights themselves were not fetched; run `git lfs pull` in "
                   "the folder, or fetch it with `hf download ORG/NAME --local-dir DIR`");
  }
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | prefix[i];
  if (header_bytes > kMaxHeaderBytes)
    return Damaged(path, absl::StrCat("not a safetensors file: its header would have ", header_bytes, " bytes"));
  if (8 + header_bytes > size) {
    return Damaged(path, absl::StrCat("the file is cut short inside its header: ", size, " bytes, the header needs ",
                                      8 + header_bytes, "; fetch the file again"));
  }
  std::string header(header_bytes, '\0');
  if (!in.read(header.data(), static_cast<std::streamsize>(header_bytes))) return Damaged(path, "cannot be read");
  const nlohmann::json json = tacc::ParseJson(header);
  if (!json.is_object()) return Damaged(path, "not a safetensors file: its header is not a JSON object");
  const auto data_begin = static_cast<int64_t>(8 + header_bytes);
  const int64_t data_bytes = static_cast<int64_t>(size) - data_begin;
  for (const auto& item : json.items()) {
    if (item.key() == "__metadata__") continue;
    TACC_ASSIGN_OR_RETURN(StoredTensor tensor, ParseEntry(path, item.key(), item.value(), data_begin, data_bytes));
    tensor.file = file;
    const auto [it, inserted] = weights->tensors.emplace(item.key(), std::move(tensor));
    if (!inserted) return Damaged(path, absl::StrCat("tensor \"", item.key(), "\" is also in ", it->second.file));
  }
  return absl::OkStatus();
}

absl::Status ReadIndexed(const std::string& dir, const std::string& index_path, StoredWeights* weights) {
  TACC_ASSIGN_OR_RETURN(const nlohmann::json index, ReadJsonFile(index_path, kMaxIndexBytes));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object()) return Damaged(index_path, "has no object weight_map");
  std::set<std::string> files;
  for (const auto& item : map->items()) {
    if (!item.value().is_string())
      return Damaged(index_path, absl::StrCat("weight_map: \"", item.key(), "\" names no file"));
    const std::string file = item.value().get<std::string>();
    if (file.empty() || file.find('/') != std::string::npos || file == "..") {
      return Damaged(index_path, absl::StrCat("weight_map: \"", file, "\" is not the name of a file beside it"));
    }
    files.insert(file);
  }
  std::vector<std::string> missing;
  for (const std::string& file : files) {
    if (!Exists(absl::StrCat(dir, "/", file))) missing.push_back(file);
  }
  if (!missing.empty())
    return Damaged(index_path, absl::StrCat("names files that are not there: ", absl::StrJoin(missing, ", ")));
  for (const std::string& file : files) TACC_RETURN_IF_ERROR(ReadHeader(dir, file, weights));
  for (const auto& item : map->items()) {
    const auto it = weights->tensors.find(item.key());
    if (it == weights->tensors.end() || it->second.file != item.value().get<std::string>()) {
      return Damaged(
          index_path,
          absl::StrCat("says that tensor \"", item.key(), "\" is in ", item.value().get<std::string>(), ", but it is ",
                       it == weights->tensors.end() ? "in none of the files" : absl::StrCat("in ", it->second.file)));
    }
  }
  return absl::OkStatus();
}

// Element `index` of little-endian data; a float64 holds every value of the others.
double FloatAt(const std::string& dtype, const std::string& data, size_t index) {
  const auto bits = [&](auto type) {
    std::memcpy(&type, data.data() + index * sizeof(type), sizeof(type));
    return type;
  };
  if (dtype == "F64") return bits(double{});
  if (dtype == "F32") return bits(float{});
  const uint16_t half = bits(uint16_t{});
  if (dtype == "BF16") {
    const uint32_t wide = uint32_t{half} << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
  }
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  const double size = exponent == 31  ? (fraction == 0 ? HUGE_VAL : std::nan(""))
                      : exponent == 0 ? std::ldexp(fraction, -24)
                                      : std::ldexp(1024 + fraction, exponent - 25);
  return half >> 15 != 0 ? -size : size;
}

// The next bytes of a tensor.
absl::Status ReadNext(const std::string& path, int64_t bytes, std::ifstream& in, std::string* data) {
  data->resize(bytes);
  if (!in.read(data->data(), bytes)) return Damaged(path, "cannot be read");
  return absl::OkStatus();
}

// Collects problems of one kind; the first ones are listed, the rest counted.
class Problems {
 public:
  void Add(std::string problem) {
    if (++count_ <= kMaxListed) lines_.push_back(std::move(problem));
  }
  void AppendTo(std::vector<std::string>* all) const {
    all->insert(all->end(), lines_.begin(), lines_.end());
    if (count_ > kMaxListed) all->push_back(absl::StrCat("... and ", count_ - kMaxListed, " more like the last one"));
  }

 private:
  int count_ = 0;
  std::vector<std::string> lines_;
};

}  // namespace

bool IsOfWeights(const std::string& dtype) {
  return dtype == "F32" || dtype == "BF16" || dtype == "F16" || dtype == "F64";
}

std::vector<WantedTensor> WantedTensors(const Graph& graph, const std::function<bool(const Node& param)>& is_wanted) {
  std::vector<WantedTensor> wanted;
  std::map<std::string, size_t> index;
  for (const Node& node : graph.nodes) {
    if (node.op != Op::kParam || !is_wanted(node)) continue;
    const Dims dims = GetAttr<std::vector<int64_t>>(node.attrs, "stored", graph.type(node.results[0]).dims);
    const size_t star = node.symbol.find('*');
    if (star != std::string::npos) {  // a stack
      for (int64_t i = 0; i < dims[0]; ++i) {
        std::string name = node.symbol;
        wanted.push_back({name.replace(star, 1, absl::StrCat(i)), Dims(dims.begin() + 1, dims.end())});
      }
      continue;
    }
    const std::string name = node.symbol.substr(0, node.symbol.find('['));
    const auto [it, inserted] = index.emplace(name, wanted.size());
    if (inserted) {
      const bool is_buffer = GetAttr<std::string>(node.attrs, "role") == Name(WeightRole::kBuffer);
      wanted.push_back({name, dims, is_buffer});
    } else {
      const size_t dim = node.symbol.compare(name.size(), 3, "[:,") == 0 ? 1 : 0;
      wanted[it->second].dims[dim] += dims[dim];
    }
  }
  return wanted;
}

absl::StatusOr<StoredWeights> ReadStoredFile(const std::string& dir, const std::string& file) {
  StoredWeights weights;
  weights.kind = StoredWeights::kSafetensors;
  TACC_RETURN_IF_ERROR(ReadHeader(dir, file, &weights));
  return weights;
}

absl::StatusOr<StoredWeights> ReadStoredWeights(const std::string& dir) {
  StoredWeights weights;
  const std::string single = absl::StrCat(dir, "/model.safetensors");
  const std::string index = absl::StrCat(dir, "/model.safetensors.index.json");
  if (Exists(single)) return ReadStoredFile(dir, "model.safetensors");
  if (Exists(index)) {
    weights.kind = StoredWeights::kSafetensors;
    TACC_RETURN_IF_ERROR(ReadIndexed(dir, index, &weights));
    return weights;
  }
  std::error_code error;
  for (std::filesystem::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    const std::filesystem::directory_entry& entry = *it;
    const std::string extension = entry.path().extension().string();
    if (extension == ".safetensors") {
      return Damaged(entry.path().string(),
                     "a folder with several safetensors files needs model.safetensors.index.json; a single one is "
                     "named model.safetensors");
    }
    if (extension == ".bin" || extension == ".pt" || extension == ".pth") weights.kind = StoredWeights::kPickledOnly;
  }
  // Weights may be there.
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    return Damaged(dir, absl::StrCat("cannot be listed: ", error.message()));
  return weights;
}

absl::StatusOr<bool> AreEqual(const std::string& dir, const StoredTensor& a, const StoredTensor& b) {
  constexpr int64_t kElements = 1 << 18;  // at a time
  const bool are_floats = IsOfWeights(a.dtype) && IsOfWeights(b.dtype);
  if (a.dims != b.dims || (a.dtype != b.dtype && !are_floats)) return false;
  const std::string paths[] = {absl::StrCat(dir, "/", a.file), absl::StrCat(dir, "/", b.file)};
  std::ifstream in_a(paths[0], std::ios::binary), in_b(paths[1], std::ios::binary);
  in_a.seekg(a.offset);
  in_b.seekg(b.offset);
  const int64_t bytes_a = StoredByteSize(a.dtype), bytes_b = StoredByteSize(b.dtype);
  std::string data_a, data_b;
  for (int64_t left = a.bytes / bytes_a; left > 0; left -= kElements) {
    const int64_t count = std::min(left, kElements);
    TACC_RETURN_IF_ERROR(ReadNext(paths[0], count * bytes_a, in_a, &data_a));
    TACC_RETURN_IF_ERROR(ReadNext(paths[1], count * bytes_b, in_b, &data_b));
    if (a.dtype == b.dtype && data_a == data_b) continue;
    if (!are_floats) return false;
    for (int64_t i = 0; i < count; ++i) {
      if (FloatAt(a.dtype, data_a, i) != FloatAt(b.dtype, data_b, i)) return false;
    }
  }
  return true;
}

absl::Status CheckWeights(const StoredWeights& stored, const WeightsCheck& check) {
  Problems missing, unexpected, shapes, dtypes;
  std::set<std::string> wanted;
  for (const WantedTensor& tensor : check.wanted) {
    wanted.insert(tensor.name);
    const auto it = stored.tensors.find(tensor.name);
    if (it == stored.tensors.end()) {
      missing.Add(
          absl::StrCat("*.safetensors: tensor \"", tensor.name, "\" ", DimsToString(tensor.dims), " is missing"));
      continue;
    }
    const StoredTensor& found = it->second;
    if (found.dims != tensor.dims) {
      shapes.Add(absl::StrCat(found.file, ": tensor \"", tensor.name, "\" has shape ", DimsToString(found.dims),
                              ", but by config.json it is ", DimsToString(tensor.dims)));
    }
    if (!IsOfWeights(found.dtype)) {
      dtypes.Add(
          absl::StrCat(found.file, ": tensor \"", tensor.name, "\" is ", found.dtype, "; wanted ", kWeightTypes));
    } else if (!check.dtype.empty() && found.dtype != check.dtype && !(tensor.may_be_f32 && found.dtype == "F32")) {
      dtypes.Add(absl::StrCat(found.file, ": tensor \"", tensor.name, "\" is ", found.dtype,
                              ", but config.json says dtype ", check.dtype, "; correct or remove that key"));
    }
  }
  for (const auto& [name, tensor] : stored.tensors) {
    if (wanted.count(name) > 0 || check.ignorable(name)) continue;
    unexpected.Add(absl::StrCat(tensor.file, ": tensor \"", name, "\" ", DimsToString(tensor.dims),
                                " is not part of the model that config.json describes"));
  }
  std::vector<std::string> all;
  for (const Problems* problems : {&missing, &unexpected, &shapes, &dtypes}) problems->AppendTo(&all);
  return all.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(all, "\n"));
}

}  // namespace tacc::graph
