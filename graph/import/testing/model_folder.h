// A model's folder of a test, which removes it.
#ifndef TACC_GRAPH_IMPORT_TESTING_MODEL_FOLDER_H_
#define TACC_GRAPH_IMPORT_TESTING_MODEL_FOLDER_H_

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/type.h"
#include "nlohmann/json.hpp"

namespace tacc::graph {

using Tensors = std::map<std::string, std::pair<std::string, Dims>>;  // name -> dtype, shape
using Values = std::map<std::string, std::string>;  // name -> bytes of an element; zeros where there are none

class ModelFolder {
 public:
  ModelFolder() {
    path_ = std::filesystem::temp_directory_path() / absl::StrCat("tacc_import_test.", getpid(), ".", ++count_);
    std::filesystem::create_directories(path_);
  }
  ~ModelFolder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  void WriteConfig(const nlohmann::json& config) const { Write("config.json", config.dump()); }

  static std::string Safetensors(const Tensors& tensors, const Values& values = {}) {
    nlohmann::json header = nlohmann::json::object();
    int64_t offset = 0;
    std::string data;
    for (const auto& [name, type] : tensors) {
      const int64_t element = type.first == "F32" || type.first == "I32" ? 4
                              : type.first == "F64"                      ? 8
                              : type.first == "BOOL"                     ? 1
                                                                         : 2;
      const int64_t bytes = element * TensorType{DType::kF32, type.second}.num_elements();
      header[name] = {{"dtype", type.first}, {"shape", type.second}, {"data_offsets", {offset, offset + bytes}}};
      offset += bytes;
      const auto value = values.find(name);
      while (static_cast<int64_t>(data.size()) < offset)
        data += value == values.end() ? std::string(element, '\0') : value->second;
    }
    const std::string text = header.dump();
    std::string file;
    for (int i = 0; i < 8; ++i) file += static_cast<char>(text.size() >> (8 * i) & 0xff);
    return absl::StrCat(file, text, data);
  }
  void WriteTensors(const Tensors& tensors, const Values& values = {}) const {
    Write("model.safetensors", Safetensors(tensors, values));
  }

 private:
  inline static int count_ = 0;
  std::filesystem::path path_;
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_TESTING_MODEL_FOLDER_H_
